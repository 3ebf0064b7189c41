//! What a deployment would do to the fleet as it is, shown before anybody confirms it.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::response::Response;
use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_wire::intent::{Fetch, Plan, Planned, PlannedBatch, PlannedForce, PlannedMisfit};
use margrave_wire::operator::{self, PutDeployment, Warning};

use super::Web;
use super::command::Command;
use super::difference::{Difference, Packages, Wanted, compare};
use super::error::{PageError, sentence};
use super::frame::{Frame, Section, render};
use super::session::Visitor;
use super::tiers::counted;
use super::told::Told;
use crate::fleet::Error;

/// Devices that the page lists; the rest is counted.
const ROWS_MAX: usize = 100;
/// Sites that it lists; the rest is counted.
const SITES_MAX: usize = 24;
/// Devices that are looked at to tell whether all of them are simulated; a demo has fewer.
const SIMULATED_MAX: usize = 50;
/// The kind of warning that tells of images that are not pinned.
const UNPINNED: &str = "imageUnpinned";
/// Batches that it lists.
const BATCHES_MAX: usize = 50;

#[derive(Template)]
#[template(path = "rehearsal.html")]
struct RehearsalPage {
    frame: Frame,
    name: String,
    package: String,
    /// "3 devices get it, 1 changes".
    summary: Vec<String>,
    sites: Vec<SiteLine>,
    sites_more: usize,
    /// What becomes other than it is, where it is a change.
    differences: Vec<Difference>,
    rows: Vec<Row>,
    rows_more: usize,
    misfits: Vec<PlannedMisfit>,
    misfits_more: usize,
    /// Who gets it although it does not fit.
    forced: Vec<PlannedForce>,
    forced_more: usize,
    /// What somebody should know of it.
    warnings: Vec<String>,
    fetches: Vec<String>,
    fetches_more: usize,
    steps: Vec<String>,
    /// In which order devices get it, where that is not all at once.
    batches: Vec<BatchLine>,
    batches_more: usize,
    groups: usize,
    /// Everything that was typed, secrets only as they were sealed.
    fields: Vec<(String, String)>,
    action: String,
    verb: &'static str,
    command: Command,
}

struct Row {
    device: String,
    site: Option<String>,
    what: String,
}

struct BatchLine {
    number: u32,
    devices: String,
    /// Those that come first, in their order.
    first: String,
    when: String,
}

impl BatchLine {
    fn of(batch: &PlannedBatch) -> Self {
        let mut first = batch.first.join(", ");
        if batch.first.len() < batch.devices as usize {
            first.push_str(", …");
        }
        let mut when = match &batch.after {
            None => "at once".to_owned(),
            Some(after) => format!("once {after}"),
        };
        if batch.not_yet > 0 {
            let whose = if batch.not_yet == 1 { "it gets it" } else { "each gets it" };
            when.push_str(&format!("; {} not in contact, {whose} when it is back", batch.not_yet));
        }
        BatchLine { number: batch.number, devices: counted(batch.devices.into(), "device"), first, when }
    }
}

struct SiteLine {
    site: String,
    devices: String,
}

#[expect(clippy::too_many_arguments, reason = "all that the form knows, once")]
pub(super) async fn page(
    web: &Web,
    visitor: &Visitor,
    package: &operator::Package,
    name: &DeploymentName,
    want: &PutDeployment,
    plan: &Plan,
    action: String,
    changing: bool,
    fields: Vec<(String, String)>,
) -> Result<Response, PageError> {
    let title = if changing {
        format!("Change {name}: what will happen")
    } else {
        format!("Deploy {name}: what will happen")
    };
    let frame = Frame::new(web, visitor, Section::Deployments, title).await?;
    let differences = match changing {
        true => {
            let held = web.fleet().deployment_counted(name).await?;
            let named = [(held.package.as_str(), held.version.as_str())];
            let packages = Packages::of(web.fleet(), named.into()).await?;
            compare(Some(&Wanted::now(&held, &packages)), &Wanted::then(&held, want, package)).0
        }
        false => Vec::new(),
    };
    let coming = plan.changes.iter().filter(|planned| planned.to.is_some());
    let coming = coming.map(|planned| planned.device.as_str()).collect();
    let warnings = worth_knowing(web, plan.warnings.clone(), coming).await?;
    let rollout = plan.rollouts.iter().find(|rollout| rollout.deployment == name.as_str());
    let in_steps = rollout.map(|rollout| format!("in {}", counted(rollout.batches_total.into(), "step")));
    // Others may come in where this leaves room.
    let is_own = |planned: &&Planned| planned.deployment == name.as_str();
    let own: Vec<Planned> = plan.changes.iter().filter(is_own).cloned().collect();
    let mut sites = sites(&own);
    let sites_more = sites.len().saturating_sub(SITES_MAX);
    sites.truncate(SITES_MAX);
    render(&RehearsalPage {
        frame,
        name: name.to_string(),
        package: format!("{} {}", package.name, package.version),
        summary: summary(&own).into_iter().chain(in_steps).collect(),
        differences,
        sites,
        sites_more,
        rows: plan.changes.iter().take(ROWS_MAX).map(|planned| Row::of(planned, name)).collect(),
        rows_more: plan.changes.len().saturating_sub(ROWS_MAX),
        forced: plan.forced.iter().take(ROWS_MAX).cloned().collect(),
        forced_more: plan.forced.len().saturating_sub(ROWS_MAX),
        misfits: plan.misfits.iter().take(ROWS_MAX).cloned().collect(),
        misfits_more: plan.misfits.len().saturating_sub(ROWS_MAX),
        warnings,
        fetches: plan.fetches.iter().take(SITES_MAX).map(fetched).collect(),
        fetches_more: plan.fetches.len().saturating_sub(SITES_MAX),
        steps: match (rollout, &want.strategy) {
            (Some(rollout), _) => rollout.strategy.words(),
            (None, Some(strategy)) => strategy.words(),
            (None, None) => Vec::new(),
        },
        batches: rollout
            .iter()
            .flat_map(|rollout| &rollout.batches)
            .take(BATCHES_MAX)
            .map(BatchLine::of)
            .collect(),
        batches_more: rollout
            .map_or(0, |rollout| (rollout.batches_total as usize).saturating_sub(BATCHES_MAX)),
        groups: want.overrides.len(),
        fields,
        action,
        verb: if changing { "Change" } else { "Deploy" },
        command: Command::wanted(name.as_str(), want),
    })
}

/// What there is to know of a deployment on these devices, in sentences. Where all of them are simulated nobody pulls an image, so
/// that it does not matter which the server could pin.
pub(super) async fn worth_knowing(
    web: &Web,
    mut warnings: Vec<Warning>,
    devices: BTreeSet<&str>,
) -> Result<Vec<String>, Error> {
    if warnings.iter().any(|warning| warning.kind == UNPINNED) && are_simulated(web, devices).await? {
        warnings.retain(|warning| warning.kind != UNPINNED);
    }
    Ok(warnings.iter().map(|warning| sentence(&warning.text)).collect())
}

async fn are_simulated(web: &Web, devices: BTreeSet<&str>) -> Result<bool, Error> {
    if devices.is_empty() || devices.len() > SIMULATED_MAX {
        return Ok(false);
    }
    for device in devices {
        let Ok(device) = DeviceRef::parse(device) else { return Ok(false) };
        match web.fleet().device(&device).await {
            Ok(device) if device.simulated => {}
            Ok(_) | Err(Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

impl Row {
    fn of(planned: &Planned, name: &DeploymentName) -> Self {
        let what = match (&planned.from, &planned.to) {
            (None, Some(to)) => format!("gets version {} with profile {}", to.version, to.profile),
            (Some(_), None) => "loses it".to_owned(),
            (Some(from), Some(to)) if from.version != to.version => {
                format!("goes from version {} to {}", from.version, to.version)
            }
            (Some(from), Some(to)) if from.profile != to.profile => {
                format!("goes from profile {} to {}", from.profile, to.profile)
            }
            _ => "gets other answers".to_owned(),
        };
        let what = match planned.deployment == name.as_str() {
            true => what,
            false => format!("{}: {what}", planned.deployment),
        };
        Row { device: planned.device.clone(), site: planned.site.clone(), what }
    }
}

fn summary(changes: &[Planned]) -> Vec<String> {
    let count = |holds: fn(&Planned) -> bool| changes.iter().filter(|planned| holds(planned)).count() as u64;
    let verb =
        |number: u64, one: &str, many: &str| if number == 1 { one.to_owned() } else { many.to_owned() };
    let new = count(|planned| planned.from.is_none());
    let gone = count(|planned| planned.to.is_none());
    let changed = count(|planned| planned.from.is_some() && planned.to.is_some());
    let mut words = Vec::new();
    for (number, one, many) in
        [(new, "gets it", "get it"), (changed, "changes", "change"), (gone, "loses it", "lose it")]
    {
        if number > 0 {
            words.push(format!("{} {}", counted(number, "device"), verb(number, one, many)));
        }
    }
    if words.is_empty() {
        words.push("No device changes".to_owned());
    }
    words
}

fn sites(changes: &[Planned]) -> Vec<SiteLine> {
    let mut sites: BTreeMap<&str, u64> = BTreeMap::new();
    for planned in changes {
        *sites.entry(planned.site.as_deref().unwrap_or("without a site")).or_default() += 1;
    }
    if sites.len() < 2 {
        return Vec::new();
    }
    let line =
        |(site, count): (&str, u64)| SiteLine { site: site.to_owned(), devices: counted(count, "device") };
    sites.into_iter().map(line).collect()
}

pub(super) fn shown_size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        bytes => format!("{:.1} KiB", bytes as f64 / 1024.0),
    }
}

fn fetched(fetch: &Fetch) -> String {
    let site = fetch.site.as_deref().map(|site| format!(" of {site}")).unwrap_or_default();
    let bytes = shown_size(fetch.bytes);
    let line = format!("{}{site}: {} {bytes}", counted(fetch.devices, "device"), fetch.bound());
    [line].into_iter().chain(fetch.uncounted()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_wire::intent::PlannedState;

    #[test]
    fn what_will_happen_is_told_in_a_line() {
        let state = |version: &str| {
            Some(PlannedState { version: version.into(), profile: "p".into(), document: "d".into() })
        };
        let planned = |from: Option<PlannedState>, to: Option<PlannedState>| Planned {
            device: "line-1".into(),
            site: None,
            deployment: "gate".into(),
            batch: None,
            from,
            to,
        };
        let changes = [
            planned(None, state("1")),
            planned(None, state("1")),
            planned(state("1"), state("2")),
            planned(state("1"), None),
        ];
        assert_eq!(summary(&changes), ["2 devices get it", "1 device changes", "1 device loses it"]);
        assert_eq!(summary(&[]), ["No device changes"]);
        let [own, other] = ["gate", "web"].map(|name| DeploymentName::parse(name).unwrap());
        let told: Vec<String> = changes.iter().map(|planned| Row::of(planned, &own).what).collect();
        assert_eq!(told[2..], ["goes from version 1 to 2", "loses it"]);
        assert_eq!(
            Row::of(&changes[3], &other).what,
            "gate: loses it",
            "where others come and go it is told who"
        );
    }

    #[test]
    fn what_is_not_known_is_told_and_not_counted_as_nothing() {
        let fetch = |images: &[&str]| Fetch {
            site: Some("nord".into()),
            devices: 2,
            bytes: 2048,
            unknown: vec![],
            unknown_images: images.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert_eq!(fetched(&fetch(&[])), "2 devices of nord: at most 2.0 KiB");
        let told = fetched(&fetch(&["a:1", "b:1"]));
        assert_eq!(
            told,
            "2 devices of nord: at least 2.0 KiB; the sizes of 2 images are not known: a:1, b:1"
        );
        let told = fetched(&Fetch { unknown: vec!["oci://x/y:1".into()], ..fetch(&[]) });
        assert_eq!(told, "2 devices of nord: at least 2.0 KiB; of unknown size: oci://x/y:1");
    }
}
