//! What deployments were, and the way back.
//!
//! Looking back reads what the store kept with every change. Going back is a change like any other: it takes
//! the one way in (`intent.rs`), gets a revision of its own and is refused by the same rules, but for devices that are
//! not there any more: those are left out. Where revisions
//! are kept is nobody else's business, so that a repository can hold them later.

use std::collections::BTreeSet;

use margrave_core::deployment::{Deployment, Targets};
use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_store::{DeploymentRecord, RevisionRecord, RolloutState};
use margrave_wire::operator;
use margrave_wire::rollout::StrategyBody;

use super::client::Clients;
use super::difference::{Difference, Packages, Wanted, compare};
use super::event::time;
use super::intent::Change;
use super::secret::unseen;
use super::view::{shown_answers, shown_overrides, shown_rollback, shown_targets, shown_windows};
use super::warning::named;
use super::{Actor, Error, Fleet};

/// Of a list of devices in one line; the rest is counted.
const NAMES_MAX: usize = 5;
/// Of a value in one line, in characters.
const VALUE_MAX: usize = 160;

impl Fleet {
    /// Every revision that is kept of the deployments of this name, newest first, also after they have gone.
    pub async fn revisions(&self, name: &DeploymentName) -> Result<Vec<operator::Revision>, Error> {
        let records = self.store.revisions(name).await?;
        if records.is_empty() {
            return Err(Error::not_found(format!("deployment {name}")));
        }
        let mut shown: Vec<operator::Revision> = records
            .iter()
            .enumerate()
            .map(|(age, record)| shown_revision(&self.live, record, age == 0))
            .collect();
        let wanted = shown.iter().map(|revision| (revision.package.as_str(), revision.version.as_str()));
        let packages = Packages::of(self, wanted.collect()).await?;
        for age in 0..shown.len() {
            shown[age].changes = changes(&shown[age], shown.get(age + 1), &packages);
        }
        for age in 0..records.len() {
            let Some(to) = taken_back(&records, age) else { continue };
            let newest = shown[age].revision;
            shown[age].back_to = Some(to);
            pass_over(&mut shown, to, newest);
        }
        let newest = &records[0];
        if !newest.removed
            && let Some(rollout) = self.store.rollout(newest.deployment.id).await?
            && rollout.state != RolloutState::Done
        {
            let first = || records.iter().rev().find(|record| record.deployment.id == rollout.deployment);
            // Where none came to its end, all of this deployment are passed over.
            let first = || first().map_or(0, |first| first.deployment.revision.saturating_sub(1));
            pass_over(&mut shown, rollout.before.unwrap_or_else(first), rollout.revision);
        }
        Ok(shown)
    }

    /// Who a deployment named at a revision, where that is kept.
    pub async fn named_at(&self, name: &DeploymentName, revision: u64) -> Result<Option<Vec<String>>, Error> {
        let record = self.store.revision(name, revision).await?;
        Ok(record.map(|record| shown_targets(&self.live, record.deployment.targets).devices))
    }

    /// Wants again what was wanted at an earlier revision, as a new revision. `seen` is the revision that the
    /// writer saw; a change in between is then a conflict.
    pub async fn revert(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        to: u64,
        seen: Option<u64>,
    ) -> Result<operator::Deployment, Error> {
        let gone = self.gone_of(&self.wish_of(name, to, seen).await?).await?;
        self.change(actor, Change::RevertDeployment { name: name.clone(), to, seen, reason: None }).await?;
        let mut shown = self.deployment_changed(name).await?;
        shown.warnings.extend(left_out(&gone).map(|left_out| operator::Warning {
            deployment: name.to_string(),
            kind: "leftOut".to_owned(),
            text: format!("{name} went back to revision {to} {left_out}"),
        }));
        Ok(shown)
    }

    /// That the server took a deployment back by itself to what it is now, and from what, if so.
    pub(super) async fn taken_back(&self, record: &DeploymentRecord) -> Result<Option<String>, Error> {
        if record.changed_by != "server" {
            return Ok(None);
        }
        let records = self.store.revisions(&record.deployment.name).await?;
        let to = taken_back(&records, 0);
        Ok(to.zip(records.get(1)).map(|(to, failed)| {
            let why = failed.unfinished.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            format!(
                "revision {} failed{why}; the server went back to what it was at revision {to}",
                failed.deployment.revision
            )
        }))
    }

    /// What failed, where the server went back from it by itself right before this revision.
    pub(super) async fn failed_before(&self, deployment: &Deployment) -> Result<Option<Deployment>, Error> {
        let records = self.store.revisions(&deployment.name).await?;
        let age = records.iter().position(|record| record.deployment.revision < deployment.revision);
        let back = age.filter(|age| taken_back(&records, *age).is_some());
        Ok(back.and_then(|age| records.get(age + 1)).map(|failed| failed.deployment.clone()))
    }

    /// The devices that a wish names and that are not there any more: retired since, or gone.
    async fn gone_of(&self, want: &operator::PutDeployment) -> Result<Vec<String>, Error> {
        let named: Vec<(&String, DeviceRef)> = want
            .targets
            .devices
            .iter()
            .filter_map(|text| Some((text, self.live.addressed(&DeviceRef::parse(text).ok()?))))
            .collect();
        let targets = Targets {
            devices: named.iter().map(|(_, device)| device.clone()).collect(),
            ..Targets::default()
        };
        let found = self.store.devices_targeted(&targets).await?;
        let is_there = |device: &DeviceRef| found.iter().any(|found| found.device == *device);
        Ok(named.into_iter().filter(|(_, device)| !is_there(device)).map(|(text, _)| text.clone()).collect())
    }

    /// Takes out of a wish that goes back to a revision who is not there any more: a new wish must not name them, and those who
    /// are there have to be able to go back without them.
    pub(super) async fn leave_out_gone(
        &self,
        want: &mut operator::PutDeployment,
        to: u64,
    ) -> Result<Vec<String>, Error> {
        let gone = self.gone_of(want).await?;
        let operator::Targets { devices, labels, select, sites } = &mut want.targets;
        devices.retain(|device| !gone.contains(device));
        let nobody = devices.is_empty() && labels.is_empty() && select.is_none() && sites.is_empty();
        if nobody && !gone.is_empty() {
            let message =
                format!("none of the devices of revision {to} is there any more; deploy to others instead");
            return Err(Error::conflict(message));
        }
        Ok(gone)
    }

    /// The wish that a revision was, to be wished anew.
    pub(super) async fn wish_of(
        &self,
        name: &DeploymentName,
        revision: u64,
        seen: Option<u64>,
    ) -> Result<operator::PutDeployment, Error> {
        let record = self.store.revision(name, revision).await?;
        let record = record.ok_or_else(|| Error::not_found(format!("revision {revision} of {name}")))?;
        if record.removed {
            return Err(Error::conflict(format!(
                "with revision {revision} {name} was removed, so there is nothing to go back to; choose an earlier one"
            )));
        }
        let Deployment {
            package,
            version,
            profile,
            answers,
            overrides,
            targets,
            forced,
            rollback,
            strategy,
            windows,
            ..
        } = record.deployment;
        Ok(operator::PutDeployment {
            package: package.to_string(),
            version: Some(version.to_string()),
            profile: profile.map(|profile| profile.to_string()),
            parameters: shown_answers(answers),
            overrides: shown_overrides(&self.live, overrides),
            targets: shown_targets(&self.live, targets),
            force: forced,
            rollback: Some(shown_rollback(rollback)),
            strategy: Some(StrategyBody::from(&strategy)),
            windows: Some(shown_windows(&windows)),
            revision: seen,
        })
    }
}

/// The revision that the server went back to by itself with this one, if it did: the newest that was the same.
fn taken_back(records: &[RevisionRecord], age: usize) -> Option<u64> {
    let record = records.get(age).filter(|record| record.changed_by == "server" && !record.removed)?;
    let is_same =
        |earlier: &&RevisionRecord| !earlier.removed && is_again(&record.deployment, &earlier.deployment);
    records.iter().skip(age + 1).find(is_same).map(|earlier| earlier.deployment.revision)
}

/// Whether a deployment is what it was at an earlier revision, but for devices that it does not name any more. What was behind its
/// secrets then nobody can have again, so it does not count.
pub(super) fn is_again(now: &Deployment, earlier: &Deployment) -> bool {
    is_exactly_again(&unseen(now), &unseen(earlier))
}

/// The same, with the same behind its secrets.
pub(super) fn is_exactly_again(now: &Deployment, earlier: &Deployment) -> bool {
    let mut same = earlier.clone();
    same.revision = now.revision;
    same.targets.devices.retain(|device| now.targets.devices.contains(device));
    same == *now
}

/// Who was left out on the way back, in a phrase; nothing where nobody was.
pub(super) fn left_out(gone: &[String]) -> Option<String> {
    match gone {
        [] => None,
        [one] => Some(format!("without {one}, which is not there any more")),
        several => Some(format!("without {}, which are not there any more", named(several))),
    }
}

/// Those between the two never came to their end.
fn pass_over(shown: &mut [operator::Revision], older: u64, newer: u64) {
    for revision in shown.iter_mut().filter(|it| it.revision > older && it.revision < newer) {
        revision.unfinished = !revision.removed;
    }
}

/// A revision but for what it changed, which takes the one before.
fn shown_revision(names: &Clients, record: &RevisionRecord, newest: bool) -> operator::Revision {
    let RevisionRecord { deployment, removed, changed_at, changed_by, commit, unfinished } = record.clone();
    operator::Revision {
        revision: deployment.revision,
        current: newest && !removed,
        removed,
        back_to: None,
        unfinished: unfinished.is_some() && !removed,
        ended: unfinished,
        changes: Vec::new(),
        package: deployment.package.to_string(),
        version: deployment.version.to_string(),
        profile: deployment.profile.map(|profile| profile.to_string()),
        parameters: shown_answers(deployment.answers),
        overrides: shown_overrides(names, deployment.overrides),
        targets: shown_targets(names, deployment.targets),
        force: deployment.forced,
        commit,
        rollback: shown_rollback(deployment.rollback),
        strategy: StrategyBody::from(&deployment.strategy),
        windows: shown_windows(&deployment.windows),
        changed_at: time(changed_at),
        changed_by,
    }
}

/// What a revision changed, a line each; nothing when the one before is not kept any more.
fn changes(
    revision: &operator::Revision,
    before: Option<&operator::Revision>,
    packages: &Packages,
) -> Vec<String> {
    if revision.removed {
        return vec!["removed".to_owned()];
    }
    let Some(before) = before else {
        return if revision.revision == 1 { vec!["created".to_owned()] } else { Vec::new() };
    };
    let (old, new) = (selecting(before), selecting(revision));
    let (differences, _) = compare(Some(&Wanted::of(&old, packages)), &Wanted::of(&new, packages));
    let again = before.removed.then(|| "created again".to_owned());
    let lines = differences.into_iter().map(|Difference { what, before, after }| {
        // Where nothing is selected, it is who is named.
        let is_named = |text: &str| what == "Where" && text.is_empty();
        let side = |text: Option<String>| match text {
            Some(text) if is_named(&text) => Some("devices by name".to_owned()),
            text => text.map(|text| told(&text)),
        };
        let (before, after) = (side(before), side(after));
        Difference { what, before, after }.words()
    });
    again.into_iter().chain(lines).chain(moved(&before.targets, &revision.targets)).collect()
}

/// Without the devices that are named. There may be hundreds, of which two lists would say nothing; who came and went is told instead.
fn selecting(revision: &operator::Revision) -> operator::Revision {
    let mut revision = revision.clone();
    revision.targets.devices.clear();
    revision
}

/// Who came and who went among those that are named. Where devices are selected as well, before or after, who is named no longer may be
/// meant all the same, and who is named now was perhaps: then it is only told who is named.
fn moved(old: &operator::Targets, new: &operator::Targets) -> Vec<String> {
    let only_names = |targets: &operator::Targets| {
        targets.labels.is_empty() && targets.select.is_none() && targets.sites.is_empty()
    };
    let verbs = match only_names(old) && only_names(new) {
        true => ["also on", "no longer on"],
        false => ["named now:", "named no longer:"],
    };
    let [old, new] = [old, new].map(|targets| &targets.devices);
    let (old, new): (BTreeSet<&String>, BTreeSet<&String>) = (old.iter().collect(), new.iter().collect());
    let mut lines = Vec::new();
    for (verb, devices) in verbs.into_iter().zip([new.difference(&old), old.difference(&new)]) {
        let devices: Vec<&str> = devices.map(|device| device.as_str()).collect();
        if !devices.is_empty() {
            lines.push(format!("{verb} {}", listed(&devices)));
        }
    }
    lines
}

fn listed(devices: &[&str]) -> String {
    let names = devices.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    match devices.len().saturating_sub(NAMES_MAX) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// A value in one line, and not all of one that is long.
fn told(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.char_indices().nth(VALUE_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
