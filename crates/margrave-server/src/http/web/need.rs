//! What does not mend itself: each with its reason, its `why` and the next step.
//!
//! A cause that meets many devices is one entry, so that the list stays short when a site goes dark or an update is bad.

use std::collections::BTreeMap;

use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_core::moment::Moment;
use margrave_core::why::Code;
use margrave_wire::intent::GoneBack;
use margrave_wire::operator::{self, FleetStatus};

use super::Web;
use super::badge::Badge;
use super::certificate::Certificate;
use super::command::Command;
use super::error::{PageError, sentence};
use super::link;
use super::rollout::progress;
use super::tiers::{counted, grouped};
use crate::fleet::{DeviceQuery, Error, FailedFor, Fleet, RolloutGlimpse, SiteCounts, WITHOUT_SITE, time};

/// Entries on the page.
const NEEDS_MAX: usize = 8;
/// Rollouts that wait for a person and are told of one by one: others need room, too.
const STOPPED_MAX: usize = 3;
/// Sites that are told of one by one where devices are silent.
const DARK_MAX: usize = 3;
/// Pending devices that are looked at to find those that do not go on by themselves.
const LOOKED_AT_MAX: usize = 50;
/// What to do where several are silent at once.
const SILENT_NEXT: &str = "Check power and network there; devices catch up by themselves when they are back.";
/// Devices that an entry names.
const NAMES_MAX: usize = 3;

pub(super) struct Needs {
    pub(super) items: Vec<Need>,
    /// Devices in trouble that no entry speaks of.
    pub(super) more: u64,
    /// "3 devices wait" to be let in.
    pub(super) waiting: Option<Waiting>,
}

pub(super) struct Waiting {
    pub(super) badge: Badge,
    pub(super) words: String,
    /// Of the one that waits longest.
    pub(super) why: Option<String>,
}

pub(super) struct Need {
    pub(super) key: String,
    pub(super) badge: Badge,
    /// What it is about, and where that is.
    pub(super) name: String,
    pub(super) path: String,
    pub(super) reason: String,
    /// What to do, in words.
    pub(super) next: Option<String>,
    pub(super) why: Option<String>,
    /// Buttons that do it.
    pub(super) posts: Vec<Button>,
    /// The revision that these are about.
    pub(super) seen: Option<u64>,
    /// The command that does the same.
    pub(super) command: Option<Command>,
    /// Links that lead to where it can be done; only for who may change things.
    pub(super) links: Vec<Button>,
}

pub(super) struct Button {
    pub(super) label: String,
    pub(super) path: String,
}

impl Button {
    fn new(label: impl Into<String>, path: String) -> Self {
        Button { label: label.into(), path }
    }
}

impl Waiting {
    fn of(fleet: &Fleet) -> Result<Option<Self>, Error> {
        let words = match fleet.signed_waiting() {
            0 => return Ok(None),
            1 => "1 device waits".to_owned(),
            more => format!("{more} devices wait"),
        };
        let oldest = fleet.signed_clients(Some("pending"))?.into_iter().next();
        let why = oldest.map(|oldest| link::why(&oldest.client));
        Ok(Some(Waiting { badge: Badge::waiting(), words, why }))
    }
}

impl Needs {
    pub(super) async fn of(
        web: &Web,
        status: &FleetStatus,
        sites: &SiteCounts,
        rollouts: &[RolloutGlimpse],
    ) -> Result<Self, PageError> {
        let fleet = web.fleet();
        let mut items = Vec::new();
        let intent = fleet.intent().await?;
        items.extend(repository(&intent, fleet.intent_away()));
        items.extend(Certificate::all(web).into_iter().filter_map(ending));
        items.extend(intent.gone_back.iter().take(NEEDS_MAX / 2).map(taken_back));
        let mut waiting: Vec<&RolloutGlimpse> =
            rollouts.iter().filter(|rollout| rollout.needs_a_person()).collect();
        // One that is left over needs no more room than "one more".
        let others =
            if waiting.len() > STOPPED_MAX + 1 { waiting.split_off(STOPPED_MAX) } else { Vec::new() };
        items.extend(waiting.into_iter().map(stopped));
        items.extend(stopped_elsewhere(&others));
        let mut more = 0;
        // Whoever is silent is told of as well, however many things fail.
        let room = NEEDS_MAX - usize::from(status.devices.silent > 0);
        for FailedFor { deployment, code, count, names } in fleet.devices_failing(NAMES_MAX).await? {
            let list = format!("/devices?condition=failed&deployment={}", link::encode(&deployment));
            let deployment = Some(deployment);
            let failed =
                Trouble { condition: "failed", deployment, code, count, at_least: false, names, list };
            match items.len() < room {
                true => items.extend(trouble(fleet, failed).await?),
                false => more += count,
            }
        }
        let (each, others) = dark(sites);
        for (site, count) in each {
            match items.len() < NEEDS_MAX {
                true => items.extend(silent_at(fleet, site, count).await?),
                false => more += count,
            }
        }
        if !others.is_empty() {
            match items.len() < NEEDS_MAX {
                true => items.push(silent_elsewhere(&others)),
                false => more += others.iter().map(|(_, count)| count).sum::<u64>(),
            }
        }
        let (blind, total) = fleet.devices_blind(LOOKED_AT_MAX).await?;
        let unseen = total.saturating_sub(blind.len() as u64);
        // Those that also failed or fell silent are told of above.
        let pending: Vec<&operator::Device> =
            blind.iter().filter(|device| device.condition == "pending").collect();
        if !pending.is_empty() {
            let blind = Trouble::pending(Code::CannotLook, &pending, unseen > 0);
            match items.len() < NEEDS_MAX {
                true => items.extend(trouble(fleet, blind).await?),
                false => more += blind.count,
            }
        }
        if status.devices.pending > 0 {
            let stuck = fleet.devices_stuck(LOOKED_AT_MAX).await?;
            let at_least = status.devices.pending > LOOKED_AT_MAX as u64;
            let mut groups: BTreeMap<Code, Vec<&operator::Device>> = BTreeMap::new();
            for (code, device) in &stuck {
                groups.entry(*code).or_default().push(device);
            }
            for (code, devices) in groups {
                let stuck = Trouble::pending(code, &devices, at_least);
                match items.len() < NEEDS_MAX {
                    true => items.extend(trouble(fleet, stuck).await?),
                    false => more += stuck.count,
                }
            }
        }
        for rollout in rollouts {
            match items.len() < NEEDS_MAX {
                _ if !rollout.left_behind() => {}
                true => items.push(aborted(fleet, rollout).await?),
                false => more += rollout.counts.left_behind,
            }
        }
        Ok(Needs { items, more, waiting: Waiting::of(fleet)? })
    }

    pub(super) fn more_words(&self) -> String {
        grouped(self.more)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.more == 0 && self.waiting.is_none()
    }
}

/// Devices that are in trouble for the same cause.
struct Trouble {
    condition: &'static str,
    /// What fails on them, where something does.
    deployment: Option<String>,
    /// Tells it from others of that condition.
    code: String,
    count: u64,
    /// There may be more: not all were looked at.
    at_least: bool,
    /// The first of them.
    names: Vec<String>,
    /// Where all of them are listed.
    list: String,
}

impl Trouble {
    fn pending(code: Code, devices: &[&operator::Device], at_least: bool) -> Self {
        Trouble {
            condition: "pending",
            deployment: None,
            code: code.as_str().to_owned(),
            count: devices.len() as u64,
            at_least,
            names: devices.iter().take(NAMES_MAX).map(|device| device.id.clone()).collect(),
            list: "/devices?condition=pending".to_owned(),
        }
    }
}

/// A site, if it is one, and how many devices are silent there.
type Dark = (Option<String>, u64);

/// Where devices are silent, the most first: those that are told of one by one, and those that are told of together.
fn dark(sites: &SiteCounts) -> (Vec<Dark>, Vec<Dark>) {
    let silent = |counts: &BTreeMap<String, u64>| counts.get("silent").copied().filter(|count| *count > 0);
    let mut each: Vec<Dark> =
        sites.iter().filter_map(|(site, counts)| Some((site.clone(), silent(counts)?))).collect();
    each.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    // One that is left over needs no more room than "one other".
    let others = if each.len() > DARK_MAX + 1 { each.split_off(DARK_MAX) } else { Vec::new() };
    (each, others)
}

async fn silent_at(fleet: &Fleet, site: Option<String>, count: u64) -> Result<Option<Need>, PageError> {
    let asked = site.clone().unwrap_or_else(|| WITHOUT_SITE.to_owned());
    let list = format!("/devices?condition=silent&site={}", link::encode(&asked));
    let query = DeviceQuery {
        condition: Some("silent".to_owned()),
        site: Some(asked),
        limit: Some(NAMES_MAX),
        ..DeviceQuery::default()
    };
    let names: Vec<String> = fleet.devices(query).await?.items.into_iter().map(|device| device.id).collect();
    let words = format!("silent ({}{})", names.join(", "), and_more(count, &names));
    let code = site.clone().unwrap_or_default();
    let silent = Trouble { condition: "silent", deployment: None, code, count, at_least: false, names, list };
    let Some(mut need) = trouble(fleet, silent).await? else { return Ok(None) };
    if count > 1 {
        // Where it is dark is what several of these differ in.
        if let Some(site) = site {
            need.name = format!("{} at {site}", need.name);
        }
        need.reason = words;
        need.next = Some(SILENT_NEXT.to_owned());
    }
    Ok(Some(need))
}

/// Says that there are more than those that are named.
fn and_more(count: u64, names: &[String]) -> &'static str {
    if count > names.len() as u64 { ", …" } else { "" }
}

fn silent_elsewhere(others: &[Dark]) -> Need {
    let path = "/devices?condition=silent".to_owned();
    let sites: Vec<&str> = others.iter().filter_map(|(site, _)| site.as_deref()).collect();
    let named = &sites[..sites.len().min(NAMES_MAX)];
    let more = if sites.len() > named.len() { ", …" } else { "" };
    // Those without a site are at none.
    let rest = if sites.len() < others.len() { ", and without a site" } else { "" };
    Need {
        key: "need-silent-elsewhere".to_owned(),
        badge: Badge::condition("silent"),
        name: counted(others.iter().map(|(_, count)| count).sum(), "device"),
        reason: format!(
            "silent at {} ({}{more}){rest}",
            counted(sites.len() as u64, "more site"),
            named.join(", ")
        ),
        next: Some(SILENT_NEXT.to_owned()),
        why: None,
        posts: Vec::new(),
        seen: None,
        command: None,
        links: vec![Button::new("Show them", path.clone())],
        path,
    }
}

/// Nothing if the first of them went between two reads.
async fn trouble(fleet: &Fleet, trouble: Trouble) -> Result<Option<Need>, PageError> {
    let Trouble { condition, deployment, code, count, at_least, names, list } = trouble;
    let Some(Ok(first)) = names.first().map(|name| DeviceRef::parse(name)) else { return Ok(None) };
    let first = match fleet.device(&first).await {
        Ok(first) => first,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let subject = match &deployment {
        None => first.id.clone(),
        Some(deployment) => format!("{}/{deployment}", first.id),
    };
    // The chain's last cause is the one to act on.
    let last = match fleet.why(&subject).await {
        Ok(why) => why.chain.into_iter().next_back(),
        Err(Error::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let reason = first.reason.clone().or_else(|| last.as_ref().map(|cause| cause.text.clone()));
    let reason = reason.unwrap_or_else(|| "no reason is known yet".to_owned());
    let alone = count == 1 && !at_least;
    let (name, path) = match alone {
        true => (first.id.clone(), link::device(&first.id)),
        false => (format!("{}{}", if at_least { "At least " } else { "" }, counted(count, "device")), list),
    };
    let links = match &deployment {
        None if alone => vec![Button::new("Open the device", path.clone())],
        None => vec![Button::new("Show them", path.clone())],
        Some(deployment) => ways_on(fleet, deployment).await?,
    };
    Ok(Some(Need {
        key: format!("need-{condition}-{}-{code}", deployment.unwrap_or_default()),
        badge: Badge::condition(condition),
        reason: match alone {
            true => reason,
            // What the first of them says of itself is so of all.
            false => {
                let reason = reason.replacen(&format!(" on {}", first.id), "", 1);
                format!("{reason} ({}{})", names.join(", "), and_more(count, &names))
            }
        },
        name,
        path,
        next: last.and_then(|cause| cause.hint).map(|hint| sentence(&hint)),
        why: Some(link::why(&subject)),
        posts: Vec::new(),
        seen: None,
        command: None,
        links,
    }))
}

/// Where a deployment is changed, or taken back.
async fn ways_on(fleet: &Fleet, deployment: &str) -> Result<Vec<Button>, PageError> {
    if fleet.follows().is_some() {
        // Nothing of it is changed here.
        return Ok(Vec::new());
    }
    let path = link::deployment(deployment);
    let mut links = vec![Button::new(format!("Change {deployment}"), format!("{path}/edit"))];
    if has_been_otherwise(fleet, deployment).await? {
        links.push(Button::new("Earlier revisions", format!("{path}#revisions")));
    }
    Ok(links)
}

/// Whether there is a revision of a deployment to go back to.
async fn has_been_otherwise(fleet: &Fleet, deployment: &str) -> Result<bool, PageError> {
    let Ok(name) = DeploymentName::parse(deployment) else { return Ok(false) };
    match fleet.revisions(&name).await {
        Ok(revisions) => Ok(revisions.len() > 1),
        Err(Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn stopped_elsewhere(others: &[&RolloutGlimpse]) -> Option<Need> {
    let first = others.first()?;
    let path = "/deployments".to_owned();
    let named: Vec<&str> = others.iter().take(NAMES_MAX).map(|rollout| rollout.name.as_str()).collect();
    let more = if others.len() > NAMES_MAX { ", …" } else { "" };
    Some(Need {
        key: "need-rollouts".to_owned(),
        badge: Badge::step(first.state.as_str()),
        name: counted(others.len() as u64, "more rollout"),
        reason: format!("each waits for somebody to go on or to stop it ({}{more})", named.join(", ")),
        next: None,
        why: None,
        posts: Vec::new(),
        seen: None,
        command: Some(Command::new(["margrave", "deployment", "list"])),
        links: vec![Button::new("Show deployments", path.clone())],
        path,
    })
}

fn stopped(rollout: &RolloutGlimpse) -> Need {
    let path = link::deployment(rollout.name.as_str());
    let post = |verb: &str, label: &str| Button::new(label, format!("{path}/rollout/{verb}"));
    Need {
        key: format!("need-rollout-{}", rollout.name),
        badge: Badge::step(rollout.state.as_str()),
        name: format!("{}, revision {}", rollout.name, rollout.revision),
        reason: progress(rollout),
        next: Some("Go on when the cause is gone, or stop here and change it.".to_owned()),
        why: Some(link::why_rollout(rollout.name.as_str())),
        posts: vec![post("resume", "Resume")],
        seen: Some(rollout.revision),
        command: Some(Command::new(["margrave", "rollout", "resume", rollout.name.as_str()])),
        links: vec![post("abort", "Abort…"), Button::new("Open", format!("{path}#rollout"))],
        path,
    }
}

/// Those that an aborted rollout left behind keep what they had until somebody wants something else.
async fn aborted(fleet: &Fleet, rollout: &RolloutGlimpse) -> Result<Need, PageError> {
    let path = link::deployment(rollout.name.as_str());
    let left = match rollout.counts.left_behind {
        1 => "1 device was left behind".to_owned(),
        more => format!("{} were left behind", counted(more, "device")),
    };
    Ok(Need {
        key: format!("need-rollout-{}", rollout.name),
        badge: Badge::left_behind(),
        name: format!("{}, revision {}", rollout.name, rollout.revision),
        reason: format!("{}; {left}", progress(rollout)),
        next: Some(Code::RolloutAborted.next().to_owned()),
        why: Some(link::why_rollout(rollout.name.as_str())),
        posts: Vec::new(),
        seen: None,
        command: None,
        links: ways_on(fleet, rollout.name.as_str()).await?,
        path,
    })
}

/// A certificate of the server's that ends, where somebody has to do something about that.
fn ending(certificate: Certificate) -> Option<Need> {
    let Certificate { key, name, expires, warning, next, .. } = certificate;
    let (warning, next) = (warning?, next?);
    let path = "/settings#certificates".to_owned();
    Some(Need {
        key: format!("need-certificate-{key}"),
        badge: Badge::certificate(warning),
        name: name.to_owned(),
        reason: format!("its certificate {warning}: {expires}"),
        next: Some(next.to_owned()),
        why: None,
        posts: Vec::new(),
        seen: None,
        command: None,
        links: vec![Button::new("Open", path.clone())],
        path,
    })
}

/// The server and the repository of what is wanted do not agree, or it has been away for more than a hiccup.
fn repository(intent: &operator::Intent, away: Option<(Moment, String)>) -> Option<Need> {
    let flaw = intent.flaws.first().map(ToString::to_string);
    let (reason, next, verb) = match (&intent.conflict, flaw, away) {
        (Some(conflict), ..) => (conflict.clone(), "Decide which of the two is right.", "Decide"),
        (None, _, Some((since, why))) => {
            let url = intent.follows.as_deref().unwrap_or("the remote");
            let reason = format!("{url} does not answer since {}: {why}", time(since));
            (reason, Code::IntentAway.next(), "Open")
        }
        (None, Some(flaw), None) => {
            (flaw, "Mend it where it is written; the next good commit is taken.", "Open")
        }
        (None, None, None) => return None,
    };
    Some(Need {
        key: "need-repository".to_owned(),
        badge: Badge::step("paused"),
        name: "The repository of what is wanted".to_owned(),
        path: "/settings#git".to_owned(),
        reason,
        next: Some(next.to_owned()),
        why: Some(link::why_intent()),
        posts: Vec::new(),
        seen: None,
        command: None,
        links: vec![Button::new(verb, "/settings#git".to_owned())],
    })
}

/// The remote wants what failed here, and the server keeps what was before.
fn taken_back(gone: &GoneBack) -> Need {
    let GoneBack { deployment, revision, failed, why, .. } = gone;
    let path = link::deployment(deployment);
    Need {
        key: format!("need-back-{deployment}"),
        badge: Badge::step("halted"),
        name: deployment.clone(),
        reason: format!(
            "revision {failed} failed, so devices keep what revision {revision} says, and not what the remote says: {why}"
        ),
        next: Some(Code::RevertedHere.next().to_owned()),
        why: Some(link::why_deployment(deployment)),
        posts: Vec::new(),
        seen: None,
        command: None,
        links: vec![Button::new("Open", path.clone())],
        path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_dark_sites_are_told_one_by_one_and_many_together() {
        let told = |silent: &[u64]| {
            let sites: SiteCounts = silent
                .iter()
                .enumerate()
                .map(|(number, count)| {
                    let site = (number > 0).then(|| format!("site-{number}"));
                    (site, BTreeMap::from([("silent".to_owned(), *count), ("converged".to_owned(), 7)]))
                })
                .collect();
            let (each, others) = dark(&sites);
            let numbers = |dark: &[Dark]| dark.iter().map(|(_, count)| *count).collect::<Vec<u64>>();
            (numbers(&each), numbers(&others))
        };
        assert_eq!(told(&[]), (vec![], vec![]));
        assert_eq!(told(&[0, 2, 3]), (vec![3, 2], vec![]));
        assert_eq!(told(&[1, 2, 3, 4]), (vec![4, 3, 2, 1], vec![]));
        assert_eq!(told(&[1, 2, 3, 4, 5]), (vec![5, 4, 3], vec![2, 1]));
        let need = silent_elsewhere(
            &dark(&SiteCounts::from_iter(
                (0..40)
                    .map(|number| (Some(format!("s{number}")), BTreeMap::from([("silent".to_owned(), 250)]))),
            ))
            .1,
        );
        assert_eq!(need.name, "9,250 devices");
        assert!(need.reason.starts_with("silent at 37 more sites (s"), "{}", need.reason);
    }
}
