//! What deployments were, and the way back.
//!
//! Looking back reads what the store kept with every change. Going back is a change like any other: it takes
//! the one way in (`intent.rs`), gets a revision of its own and is refused by the same rules, but for devices that are
//! not there any more: those are left out. Where revisions
//! are kept is nobody else's business, so that a repository can hold them later.

use margrave_core::deployment::{Deployment, Targets};
use margrave_core::id::{DeploymentName, DeviceRef, ProfileId};
use margrave_core::parameters::Answer;
use margrave_core::rollback::{Rollback, When};
use margrave_store::{DeploymentRecord, RevisionRecord, RolloutState};
use margrave_wire::operator;
use margrave_wire::rollout::StrategyBody;
use serde_json::Value;

use super::client::Clients;
use super::event::time;
use super::intent::Change;
use super::secret::unseen;
use super::view::{shown_answers, shown_overrides, shown_rollback, shown_targets, shown_windows};
use super::warning::named;
use super::{Actor, Error, Fleet};

/// Of a list of devices in one line; the rest is counted.
const NAMES_MAX: usize = 5;
/// Of an answer in one line, in characters.
const VALUE_MAX: usize = 60;

impl Fleet {
    /// Every revision that is kept of the deployments of this name, newest first, also after they have gone.
    pub async fn revisions(&self, name: &DeploymentName) -> Result<Vec<operator::Revision>, Error> {
        let records = self.store.revisions(name).await?;
        if records.is_empty() {
            return Err(Error::not_found(format!("deployment {name}")));
        }
        let older = records.iter().skip(1).map(Some).chain([None]);
        let shown = records.iter().zip(older).enumerate();
        let mut shown: Vec<operator::Revision> = shown
            .map(|(age, (record, before))| shown_revision(&self.live, record, before, age == 0))
            .collect();
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

fn shown_revision(
    names: &Clients,
    record: &RevisionRecord,
    before: Option<&RevisionRecord>,
    newest: bool,
) -> operator::Revision {
    let RevisionRecord { deployment, removed, changed_at, changed_by, commit, unfinished } = record.clone();
    operator::Revision {
        revision: deployment.revision,
        current: newest && !removed,
        removed,
        back_to: None,
        unfinished: unfinished.is_some() && !removed,
        ended: unfinished,
        changes: changes(names, record, before),
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

/// What a revision changed, a phrase each; nothing when the one before is not kept any more.
fn changes(names: &Clients, record: &RevisionRecord, before: Option<&RevisionRecord>) -> Vec<String> {
    let now = &record.deployment;
    if record.removed {
        return vec!["removed".to_owned()];
    }
    let Some(before) = before else {
        return if now.revision == 1 { vec!["created".to_owned()] } else { Vec::new() };
    };
    let mut changes = Vec::new();
    if before.removed {
        changes.push("created again".to_owned());
    }
    let before = &before.deployment;
    if before.package != now.package {
        changes.push(format!("package {} → {}", before.package, now.package));
    }
    if before.version != now.version {
        changes.push(format!("version {} → {}", before.version, now.version));
    }
    if before.profile != now.profile {
        let profile = |profile: &Option<ProfileId>| {
            profile.as_ref().map_or_else(|| "the first that fits".to_owned(), ProfileId::to_string)
        };
        changes.push(format!("profile {} → {}", profile(&before.profile), profile(&now.profile)));
    }
    for (name, answer) in &now.answers {
        match before.answers.get(name) {
            Some(same) if same == answer => {}
            Some(other) => changes.push(format!("{name} {} → {}", told(other), told(answer))),
            None => changes.push(format!("{name} → {}", told(answer))),
        }
    }
    for (name, answer) in &before.answers {
        if !now.answers.contains_key(name) {
            changes.push(format!("{name} {} → the package's own value", told(answer)));
        }
    }
    if before.rollback != now.rollback {
        changes.push(format!(
            "failed updates: {} → {}",
            going_back(before.rollback),
            going_back(now.rollback)
        ));
    }
    if before.strategy != now.strategy {
        let words = |deployment: &Deployment| StrategyBody::from(&deployment.strategy).words().join(", ");
        changes.push(format!("rollout: {} → {}", words(before), words(now)));
    }
    if before.windows != now.windows {
        let words = |deployment: &Deployment| match deployment.windows.is_empty() {
            true => "at any time".to_owned(),
            false => shown_windows(&deployment.windows).join(" and "),
        };
        changes.push(format!("changes: {} → {}", words(before), words(now)));
    }
    let (old, new) = (&before.targets, &now.targets);
    for (verb, devices) in [
        ("also on", new.devices.difference(&old.devices)),
        ("no longer on", old.devices.difference(&new.devices)),
    ] {
        let devices: Vec<&DeviceRef> = devices.collect();
        if !devices.is_empty() {
            changes.push(format!("{verb} {}", listed(names, &devices)));
        }
    }
    if (&old.select, &old.sites) != (&new.select, &new.sites) {
        let words = |targets: &Targets| {
            let sites = targets.sites.iter().map(|site| format!("site {site}"));
            let select = (!targets.select.is_empty()).then(|| targets.select.to_string());
            let words: Vec<String> = select.into_iter().chain(sites).collect();
            if words.is_empty() { "nothing".to_owned() } else { words.join(" or ") }
        };
        changes.push(format!("selects {} → {}", words(old), words(new)));
    }
    if before.overrides != now.overrides {
        changes.push(format!("overrides: {} → {}", before.overrides.len(), now.overrides.len()));
    }
    if before.forced != now.forced {
        changes.push(match &now.forced {
            Some(reason) => format!("forced on devices that it does not fit: {reason}"),
            None => "no longer forced".to_owned(),
        });
    }
    if old.labels != new.labels {
        let labels = |targets: &Targets| match targets.labels.is_empty() {
            true => "none".to_owned(),
            false => targets
                .labels
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(" "),
        };
        changes.push(format!("labels {} → {}", labels(old), labels(new)));
    }
    changes
}

/// A policy in a phrase.
fn going_back(rollback: Rollback) -> String {
    let Rollback { when, attempts, binding, health_grace } = rollback;
    let mut words = match when {
        When::Never if binding => format!("never back, given up after {attempts} tries"),
        When::Never => "never back".to_owned(),
        When::OnFailedUpdate if binding => format!("back or given up after {attempts} tries"),
        When::OnFailedUpdate => format!("back after {attempts} tries"),
    };
    if let Some(grace) = health_grace {
        words.push_str(&format!(", {} s of grace", grace.as_secs()));
    }
    words
}

fn listed(names: &Clients, devices: &[&DeviceRef]) -> String {
    let names: Vec<String> = devices.iter().take(NAMES_MAX).map(|device| names.spoken(device)).collect();
    match devices.len().saturating_sub(NAMES_MAX) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// A value in one line, as an operator would type it.
fn told(answer: &Answer) -> String {
    let value = match answer {
        Answer::Secret(referred) => return format!("a secret ({})", referred.secret),
        Answer::Clear(value) => value,
    };
    let text = match serde_json::to_value(value).unwrap_or_default() {
        Value::String(text) if text.is_empty() || text.trim() != text => format!("{text:?}"),
        Value::String(text) => text,
        other => other.to_string(),
    };
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.char_indices().nth(VALUE_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
