//! What does not mend itself: each with its reason, its `why` and the next step.
//!
//! A cause that meets many devices is one entry, so that the list stays short when a site goes dark or an update is bad.

use std::collections::BTreeMap;

use margrave_core::deployment::SITE;
use margrave_core::id::DeploymentName;
use margrave_core::why::Code;
use margrave_wire::intent::GoneBack;
use margrave_wire::operator::{self, FleetStatus};

use super::Web;
use super::assignment::settled;
use super::badge::Badge;
use super::certificate::Certificate;
use super::command::Command;
use super::error::{PageError, sentence};
use super::link;
use super::rollout::progress;
use super::tiers::counted;
use crate::fleet::{DeviceQuery, Error, Fleet, RolloutGlimpse};

/// Entries on the page.
const NEEDS_MAX: usize = 8;
/// Devices that are looked at to find what their trouble has in common.
const LOOKED_AT_MAX: usize = 50;
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
        rollouts: &[RolloutGlimpse],
    ) -> Result<Self, PageError> {
        let fleet = web.fleet();
        let mut items = Vec::new();
        let intent = fleet.intent().await?;
        items.extend(repository(&intent));
        items.extend(Certificate::all(web).into_iter().filter_map(ending));
        items.extend(intent.gone_back.iter().take(NEEDS_MAX / 2).map(taken_back));
        items.extend(rollouts.iter().filter(|rollout| rollout.needs_a_person()).map(stopped));
        let mut more = 0;
        for (condition, total) in [("failed", status.devices.failed), ("silent", status.devices.silent)] {
            if total == 0 {
                continue;
            }
            let query = DeviceQuery {
                condition: Some(condition.to_owned()),
                limit: Some(LOOKED_AT_MAX),
                ..DeviceQuery::default()
            };
            let devices = fleet.devices(query).await?.items;
            let mut told = 0;
            for (cause, devices) in together(condition, &devices) {
                if items.len() >= NEEDS_MAX {
                    break;
                }
                told += devices.len() as u64;
                items.push(trouble(fleet, condition, &cause, &devices).await?);
            }
            more += total.saturating_sub(told);
        }
        let (blind, total) = fleet.devices_blind(LOOKED_AT_MAX).await?;
        // Those that also failed or fell silent are told of above.
        let pending: Vec<&operator::Device> =
            blind.iter().filter(|device| device.condition == "pending").collect();
        if !pending.is_empty() {
            let cause = Cause { of: String::new(), code: "cannot-look".to_owned() };
            match items.len() < NEEDS_MAX {
                true => items.push(trouble(fleet, "pending", &cause, &pending).await?),
                false => more += pending.len() as u64,
            }
            more += total.saturating_sub(blind.len() as u64);
        }
        if status.devices.pending > 0 {
            let stuck = fleet.devices_stuck(LOOKED_AT_MAX).await?;
            let mut groups: BTreeMap<Code, Vec<&operator::Device>> = BTreeMap::new();
            for (code, device) in &stuck {
                groups.entry(*code).or_default().push(device);
            }
            for (code, devices) in groups {
                let cause = Cause { of: String::new(), code: code.as_str().to_owned() };
                match items.len() < NEEDS_MAX {
                    true => items.push(trouble(fleet, "pending", &cause, &devices).await?),
                    false => more += devices.len() as u64,
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

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.more == 0 && self.waiting.is_none()
    }
}

/// What the trouble of several devices has in common: the deployment and what is wrong with it, or the site.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Cause {
    of: String,
    code: String,
}

/// Devices by what is the matter, the most first.
fn together<'a>(condition: &str, devices: &'a [operator::Device]) -> Vec<(Cause, Vec<&'a operator::Device>)> {
    let mut groups: BTreeMap<Cause, Vec<&operator::Device>> = BTreeMap::new();
    for device in devices {
        let wrong = failing(device).filter(|_| condition == "failed");
        let cause = match wrong {
            Some(assignment) => Cause {
                of: assignment.deployment.clone(),
                code: assignment.error.as_ref().map(|error| error.code.clone()).unwrap_or_default(),
            },
            None => Cause { of: String::new(), code: device.labels.get(SITE).cloned().unwrap_or_default() },
        };
        groups.entry(cause).or_default().push(device);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, devices)| std::cmp::Reverse(devices.len()));
    groups
}

/// The assignment that makes a device one that failed.
fn failing(device: &operator::Device) -> Option<&operator::Assignment> {
    let unsettled = || device.assignments.iter().filter(|assignment| !settled(assignment));
    unsettled().find(|assignment| assignment.error.is_some()).or_else(|| unsettled().next())
}

async fn trouble(
    fleet: &Fleet,
    condition: &str,
    cause: &Cause,
    devices: &[&operator::Device],
) -> Result<Need, PageError> {
    let first = devices[0];
    let subject = match cause.of.as_str() {
        "" => first.id.clone(),
        deployment => format!("{}/{deployment}", first.id),
    };
    // The chain's last cause is the one to act on. It may have gone between two reads.
    let last = match fleet.why(&subject).await {
        Ok(why) => why.chain.into_iter().next_back(),
        Err(Error::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let reason = first.reason.clone().or_else(|| last.as_ref().map(|cause| cause.text.clone()));
    let reason = reason.unwrap_or_else(|| "no reason is known yet".to_owned());
    let (name, path) = match devices {
        [one] => (one.id.clone(), link::device(&one.id)),
        several => {
            let site = (condition == "silent" && !cause.code.is_empty()).then(|| link::encode(&cause.code));
            let site = site.map(|site| format!("&site={site}")).unwrap_or_default();
            (counted(several.len() as u64, "device"), format!("/devices?condition={condition}{site}"))
        }
    };
    let links = match (cause.of.as_str(), devices) {
        ("", [_]) => vec![Button::new("Open the device", path.clone())],
        ("", _) => vec![Button::new("Show them", path.clone())],
        (deployment, _) => ways_on(fleet, deployment).await?,
    };
    Ok(Need {
        key: format!("need-{condition}-{}-{}", cause.of, cause.code),
        badge: Badge::condition(condition),
        reason: match devices {
            [_] => reason,
            several => {
                let names: Vec<&str> =
                    several.iter().take(NAMES_MAX).map(|device| device.id.as_str()).collect();
                let more = if several.len() > NAMES_MAX { ", …" } else { "" };
                format!("{reason} ({}{more})", names.join(", "))
            }
        },
        name,
        path,
        next: last.and_then(|cause| cause.hint).map(|hint| sentence(&hint)),
        why: Some(link::why(&subject)),
        posts: Vec::new(),
        command: None,
        links,
    })
}

/// Where a deployment is changed, or taken back.
async fn ways_on(fleet: &Fleet, deployment: &str) -> Result<Vec<Button>, PageError> {
    let path = link::deployment(deployment);
    let mut links = vec![Button::new(format!("Change {deployment}"), format!("{path}/edit"))];
    if has_been_otherwise(fleet, deployment).await? {
        links.push(Button::new("Go back", format!("{path}#revisions")));
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
        command: Some(Command::new(["margrave", "rollout", "resume", rollout.name.as_str()])),
        links: vec![post("abort", "Abort"), Button::new("Open", format!("{path}#rollout"))],
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
        command: None,
        links: vec![Button::new("Open", path.clone())],
        path,
    })
}

/// The server and the repository of what is wanted do not agree.
fn repository(intent: &operator::Intent) -> Option<Need> {
    let flaw = intent.flaws.first().map(ToString::to_string);
    let (reason, next, verb) = match (&intent.conflict, flaw) {
        (Some(conflict), _) => (conflict.clone(), "Decide which of the two is right.", "Decide"),
        (None, Some(flaw)) => (flaw, "Mend it where it is written; the next good commit is taken.", "Open"),
        (None, None) => return None,
    };
    Some(Need {
        key: "need-repository".to_owned(),
        badge: Badge::step("paused"),
        name: "The repository of what is wanted".to_owned(),
        path: "/settings#git".to_owned(),
        reason,
        next: Some(next.to_owned()),
        why: None,
        posts: Vec::new(),
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
        command: None,
        links: vec![Button::new("Open", path.clone())],
        path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn device(id: &str, site: &str, code: Option<&str>) -> operator::Device {
        let error = code.map(|code| json!({"code": code, "source": "device", "message": "no"}));
        let assignments: Vec<_> = error
            .map(|error| {
                json!({"id": "a", "deployment": "gate", "device": id, "package": "p", "version": "1",
                    "state": "FAILED", "current": true, "error": error, "components": [], "attempt": 1})
            })
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "id": id, "client": id, "form": "g2", "standing": "accepted", "condition": "failed",
            "simulated": true, "labels": {"site": site}, "manifestVersion": 1, "assignments": assignments,
        }))
        .unwrap()
    }

    #[test]
    fn one_cause_is_one_entry_however_many_devices_it_meets() {
        let devices = [
            device("a", "nord", Some("unhealthy")),
            device("b", "nord", Some("image-pull")),
            device("c", "sued", Some("image-pull")),
        ];
        let told = |condition: &str| -> Vec<String> {
            let groups = together(condition, &devices).into_iter();
            groups
                .map(|(cause, devices)| {
                    let names: Vec<&str> = devices.iter().map(|device| device.id.as_str()).collect();
                    format!("{} {}: {}", cause.of, cause.code, names.join(" "))
                })
                .collect()
        };
        assert_eq!(told("failed"), ["gate image-pull: b c", "gate unhealthy: a"]);
        assert_eq!(told("silent"), [" nord: a b", " sued: c"]);
    }
}
