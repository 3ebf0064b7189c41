//! Rollouts as operators see them.

use std::collections::HashSet;

use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_core::rollout::{Batch, Decision, Hold, Now, Progress, Reached, Standing, Waiting, decide};
use margrave_store::{DeploymentRecord, MemberRecord, RolloutRecord, RolloutState, Scope};
use margrave_wire::operator::Cause;
use margrave_wire::rollout::{Rollout, RolloutBatch, RolloutCounts, StrategyBody};

use crate::fleet::event::time;
use crate::fleet::{Error, Fleet};

/// Batches that are listed; a page or a terminal with more helps nobody.
const BATCHES_SHOWN_MAX: usize = 200;

impl Fleet {
    /// How far what is wanted of a deployment came.
    pub async fn rollout(&self, name: &DeploymentName) -> Result<Rollout, Error> {
        let (deployment, record) = self.paced(name).await?;
        match record {
            Some(record) => self.shown_rollout(&record, &deployment).await,
            None => self.shown_at_once(&deployment).await,
        }
    }

    /// Those that go on only when a person says so: paused, or halted because too much failed.
    pub async fn rollouts_stopped(&self) -> Result<Vec<Rollout>, Error> {
        let mut stopped = Vec::new();
        for record in self.store.rollouts_open().await? {
            if !matches!(record.state, RolloutState::Paused | RolloutState::Halted) {
                continue;
            }
            if let Some(deployment) = self.store.deployment(&record.name).await? {
                stopped.push(self.shown_rollout(&record, &deployment).await?);
            }
        }
        Ok(stopped)
    }

    /// The same where it goes in steps, and nothing where it does not.
    pub(in crate::fleet) async fn rollout_of(
        &self,
        deployment: &DeploymentRecord,
    ) -> Result<Option<Rollout>, Error> {
        match self.store.rollout(deployment.deployment.id).await?.filter(|_| !deployment.removed) {
            Some(record) => Ok(Some(self.shown_rollout(&record, deployment).await?)),
            None => Ok(None),
        }
    }

    async fn shown_rollout(
        &self,
        record: &RolloutRecord,
        deployment: &DeploymentRecord,
    ) -> Result<Rollout, Error> {
        let progress = self.progress(record, deployment).await?;
        let decision = decide(&deployment.deployment.strategy, &progress, self.now());
        let (state, reason, until) = told(record, &decision, &progress);
        Ok(Rollout {
            deployment: record.name.to_string(),
            revision: record.revision,
            state: state.to_owned(),
            reason,
            until,
            batch: record.reached.batch + 1,
            batches_total: batches_total(&decision),
            counts: sum(&decision.batches, deployment, &progress),
            batches: decision.batches.iter().take(BATCHES_SHOWN_MAX).map(shown_batch).collect(),
            strategy: StrategyBody::from(&deployment.deployment.strategy),
            before: record.before,
            begun_at: time(record.begun_at),
            changed_at: time(record.changed_at),
            changed_by: record.changed_by.clone(),
        })
    }

    /// Everybody was given it with the change itself.
    async fn shown_at_once(&self, deployment: &DeploymentRecord) -> Result<Rollout, Error> {
        let wanted = &deployment.deployment;
        let assignments = self.store.assignments(Scope::Deployment(wanted.id)).await?;
        let devices: Vec<DeviceRef> =
            assignments.iter().filter(|held| held.wanted).map(|held| held.device.clone()).collect();
        let records = self.store.devices_named(devices.clone()).await?;
        let members = devices.into_iter().map(|device| MemberRecord {
            device,
            place: 0,
            released_at: Some(deployment.changed_at),
            forgiven: true,
        });
        let progress = Progress {
            size: 1,
            members: self.members_now(wanted, &Default::default(), members.collect(), records).await?,
            reached: Reached::default(),
            hold: Hold::None,
            revertible: false,
        };
        let decision = decide(&Default::default(), &progress, self.now());
        let state = if decision.standing == Standing::Done { "done" } else { "running" };
        let at = time(deployment.changed_at);
        Ok(Rollout {
            deployment: wanted.name.to_string(),
            revision: wanted.revision,
            state: state.to_owned(),
            reason: None,
            until: None,
            batch: 1,
            batches_total: 1,
            counts: sum(&decision.batches, deployment, &progress),
            batches: decision.batches.iter().map(shown_batch).collect(),
            strategy: StrategyBody::from(&wanted.strategy),
            before: None,
            begun_at: at.clone(),
            changed_at: at,
            changed_by: deployment.changed_by.clone(),
        })
    }

    /// Why a device has not been given what a deployment wants now; `None` when that is not because of its turn.
    pub(in crate::fleet) async fn rollout_cause(
        &self,
        device: &DeviceRef,
        name: &DeploymentName,
    ) -> Result<Option<Cause>, Error> {
        let Some(deployment) = self.store.deployment(name).await?.filter(|found| !found.removed) else {
            return Ok(None);
        };
        let record = self.store.rollout(deployment.deployment.id).await?;
        let Some(record) = record.filter(|record| record.state != RolloutState::Done) else {
            return Ok(None);
        };
        let progress = self.progress(&record, &deployment).await?;
        let own = progress.members.iter().find(|member| member.device == *device && !member.released);
        let Some(own) = own.filter(|own| own.now != Now::Never) else { return Ok(None) };
        let strategy = &deployment.deployment.strategy;
        let decision = decide(strategy, &progress, self.now());
        let batch = strategy.batch_of(own.place, progress.size);
        let (state, reason, _) = told(&record, &decision, &progress);
        let waits = match (state, own.now) {
            ("paused", _) => format!("the rollout was paused by {}", record.changed_by),
            ("halted" | "reverting", _) => {
                format!("the rollout was halted: {}", reason.unwrap_or_default())
            }
            ("aborted", _) => {
                format!("the rollout was aborted by {}, nobody further gets it", record.changed_by)
            }
            (_, Now::Silent) => "it is not in contact, and gets its turn when it is back".to_owned(),
            _ if batch <= decision.reached.batch && decision.release.contains(device) => {
                "its turn has come".to_owned()
            }
            _ if batch <= decision.reached.batch => {
                "its site has as many devices unavailable as it may".to_owned()
            }
            _ => reason.unwrap_or_else(|| under_way(&decision)),
        };
        let text = format!(
            "{name}, revision {}: {} waits for its turn in batch {} of {}; {waits}",
            record.revision,
            self.live.spoken(device),
            batch + 1,
            batches_total(&decision)
        );
        let hint = match state {
            "paused" => format!("Let it go on with `margrave rollout resume {name}`."),
            "halted" => format!(
                "Mend what failed, then `margrave rollout resume {name}`, or go back with `margrave deployment revert {name}`."
            ),
            "aborted" => "Change the deployment; that begins a new rollout.".to_owned(),
            _ => format!("See how far it is with `margrave rollout show {name}`."),
        };
        Ok(Some(Cause { code: "rollout-waiting".to_owned(), text, hint: Some(hint) }))
    }

    /// The same for every deployment that a device waits for.
    pub(in crate::fleet) async fn rollout_causes(&self, device: &DeviceRef) -> Result<Vec<Cause>, Error> {
        let waiting = self.store.rollouts_of(device).await?;
        if waiting.iter().all(|(_, released)| *released) {
            return Ok(Vec::new());
        }
        let mut causes = Vec::new();
        for rollout in self.store.rollouts_open().await? {
            if waiting.contains(&(rollout.deployment, false)) {
                causes.extend(self.rollout_cause(device, &rollout.name).await?);
            }
        }
        Ok(causes)
    }
}

/// The state in a word, why, and until when.
fn told(
    record: &RolloutRecord,
    decision: &Decision,
    progress: &Progress,
) -> (&'static str, Option<String>, Option<String>) {
    let devices = |count: u32| if count == 1 { "1 device".to_owned() } else { format!("{count} devices") };
    match (record.state, &decision.standing) {
        (RolloutState::Done, _) => ("done", None, None),
        (RolloutState::Aborted, _) => {
            let left = progress.members.iter().filter(|m| !m.released && m.now != Now::Never).count();
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            ("aborted", Some(format!("{} keep what they had", devices(left))), None)
        }
        (RolloutState::Paused, _) => ("paused", None, None),
        (state @ (RolloutState::Halted | RolloutState::Reverting), _) => {
            (state.as_str(), record.why.clone(), None)
        }
        // What the next look finds is true already.
        (RolloutState::Running, Standing::Halted(why) | Standing::Reverting(why)) => {
            ("halted", Some(why.clone()), None)
        }
        (RolloutState::Running, Standing::Waiting(waiting)) => match *waiting {
            Waiting::Soak { batch, until } => {
                let text = format!("batch {} is good, and is watched until {}", batch + 1, time(until));
                ("waiting", Some(text), Some(time(until)))
            }
            Waiting::Sites { held } => {
                let text = format!(
                    "{} wait because their sites have as many devices unavailable as they may",
                    devices(held)
                );
                ("waiting", Some(text), None)
            }
            Waiting::Silent { not_yet } => {
                let text = format!("{} not in contact; each gets its turn when it is back", devices(not_yet));
                ("waiting", Some(text), None)
            }
        },
        (RolloutState::Running, _) => ("running", Some(under_way(decision)), None),
    }
}

fn under_way(decision: &Decision) -> String {
    let number = decision.reached.batch;
    let batch = decision.batches.iter().find(|batch| batch.number == number).copied().unwrap_or_default();
    format!("batch {} is under way: {} of {} done", number + 1, batch.done, batch.total() - batch.never)
}

fn batches_total(decision: &Decision) -> u32 {
    decision.batches.last().map_or(1, |last| last.number + 1)
}

fn shown_batch(batch: &Batch) -> RolloutBatch {
    RolloutBatch { number: batch.number + 1, counts: counts(batch) }
}

fn counts(batch: &Batch) -> RolloutCounts {
    let Batch { number: _, done, under_way, waiting, not_yet, never, failed } = *batch;
    RolloutCounts { total: batch.total(), done, under_way, waiting, not_yet, never, failed }
}

/// Over all batches, with those that the deployment wants and that were never part of one.
fn sum(batches: &[Batch], deployment: &DeploymentRecord, progress: &Progress) -> RolloutCounts {
    let mut sum = RolloutCounts::default();
    for batch in batches.iter().map(counts) {
        sum.total += batch.total;
        sum.done += batch.done;
        sum.under_way += batch.under_way;
        sum.waiting += batch.waiting;
        sum.not_yet += batch.not_yet;
        sum.never += batch.never;
        sum.failed += batch.failed;
    }
    let members: HashSet<&DeviceRef> = progress.members.iter().map(|member| &member.device).collect();
    for misfit in &deployment.misfits {
        if !members.contains(&misfit.device) {
            sum.total += 1;
            *if misfit.temporary { &mut sum.not_yet } else { &mut sum.never } += 1;
        }
    }
    sum
}
