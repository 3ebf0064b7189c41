//! Rollouts: a new revision goes to its devices in steps.
//!
//! What moves next is decided in `margrave_core::rollout`; this looks at the devices for it and does what it says, through
//! the same path as everything else that is published. Begun in the transaction of the change itself, moved in those that
//! publish: a server that is killed at any moment looks again and goes on. `step.rs` is what happens by itself,
//! `shown.rs` what operators see, `waiting.rs` whom it holds back, `carrying.rs` what stays stopped; here is what both look at, and what a person can do.

mod carrying;
mod shown;
mod step;
mod waiting;

pub(super) use carrying::is_resumable;
pub(super) use shown::{Looked, RolloutTold};
pub use waiting::RolloutGlimpse;
pub(super) use waiting::shown_waiting;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex as Lock, PoisonError};
use std::time::Instant;

use margrave_core::deployment::Deployment;
use margrave_core::id::{DeploymentId, DeploymentName, DeviceRef};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::report::FAILURE_CODES;
use margrave_core::rollout::{Decision, Hold, Member, Now, Progress, Strategy};
use margrave_core::violation::Violation;
use margrave_store::{
    DeploymentRecord, LinedRecord, MemberRecord, NewEvent, RolloutRecord, RolloutState, RolloutUpdate,
    Standpoint, Verdict,
};
use margrave_wire::operator;
use margrave_wire::rollout::{Rollout, StrategyBody};
use tokio::sync::{Mutex, Notify};

use super::view::shown_rollback;
use super::{Actor, Error, Fleet};

/// Wakes whoever takes rollouts forward.
#[derive(Default)]
pub(super) struct Rollouts {
    news: Notify,
    /// Held while one is looked at and moved: two that look at the same would both move what one of them should.
    stepping: Mutex<()>,
    /// Since when enough of a batch were heard of after its soak: of which revision, and which batch. Not written down, for a
    /// server that starts has to hear of them anew.
    heard: Lock<HashMap<DeploymentId, (u64, u32, Moment)>>,
}

impl Rollouts {
    fn heard_since(&self, record: &RolloutRecord) -> Option<Moment> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let found = heard.get(&record.deployment).copied();
        found
            .filter(|found| (found.0, found.1) == (record.revision, record.reached.batch))
            .map(|found| found.2)
    }

    fn remember_heard(&self, record: &RolloutRecord, decision: &Decision) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match decision.heard_since {
            Some(since) => heard.insert(record.deployment, (record.revision, decision.reached.batch, since)),
            None => heard.remove(&record.deployment),
        };
    }
}

/// What a person does to a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutVerb {
    /// Nobody further until it is resumed.
    Pause,
    /// Goes on, also after it was halted: those that failed until now are not counted any more.
    Resume,
    /// Nobody further; what is released stays.
    Abort,
}

impl RolloutVerb {
    fn as_str(self) -> &'static str {
        match self {
            RolloutVerb::Pause => "pause",
            RolloutVerb::Resume => "resume",
            RolloutVerb::Abort => "abort",
        }
    }

    fn from(self) -> &'static [RolloutState] {
        match self {
            RolloutVerb::Pause => &[RolloutState::Running],
            RolloutVerb::Resume => &[RolloutState::Paused, RolloutState::Halted],
            RolloutVerb::Abort => {
                &[RolloutState::Running, RolloutState::Paused, RolloutState::Halted, RolloutState::Reverting]
            }
        }
    }

    fn to(self) -> RolloutState {
        match self {
            RolloutVerb::Pause => RolloutState::Paused,
            RolloutVerb::Resume => RolloutState::Running,
            RolloutVerb::Abort => RolloutState::Aborted,
        }
    }

    /// The kind of the event, and what it tells.
    fn done(self) -> (&'static str, &'static str) {
        match self {
            RolloutVerb::Pause => ("rollout.paused", "paused"),
            RolloutVerb::Resume => ("rollout.resumed", "resumed"),
            RolloutVerb::Abort => ("rollout.aborted", "aborted"),
        }
    }
}

/// The strategy that is wished for; the one before where nothing is said.
pub(super) fn read_strategy(
    want: Option<&StrategyBody>,
    before: Option<&Strategy>,
    broken: &mut Vec<Violation>,
) -> Strategy {
    let Some(want) = want else { return before.cloned().unwrap_or_default() };
    want.read().unwrap_or_else(|violations| {
        broken.extend(violations);
        Strategy::default()
    })
}

impl Fleet {
    /// Something happened that a rollout may wait for.
    pub(super) fn rollouts_may_move(&self) {
        self.rollouts.news.notify_one();
    }

    /// Ends when something happened that a rollout may wait for.
    pub async fn rollouts_nudged(&self) {
        self.rollouts.news.notified().await;
    }

    /// In which steps a new deployment goes, and what devices do when it fails, where nothing is said of it.
    pub async fn usual_care(&self) -> Result<(StrategyBody, operator::Rollback), Error> {
        let defaults = self.store.defaults().await?;
        Ok((StrategyBody::from(&defaults.strategy()), shown_rollback(defaults.rollback())))
    }

    /// Pauses, resumes or aborts; doing it twice is as good as once.
    pub async fn hold_rollout(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        verb: RolloutVerb,
    ) -> Result<Rollout, Error> {
        self.hold_rollout_seen(actor, name, verb, None).await
    }

    /// The same if the rollout is still that of the revision that was seen: who wanted to end one must not end the next.
    pub async fn hold_rollout_seen(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        verb: RolloutVerb,
        seen: Option<u64>,
    ) -> Result<Rollout, Error> {
        let deciding = self.deciding.write().await;
        let (deployment, record) = self.paced(name).await?;
        let now = record.as_ref().map_or(deployment.deployment.revision, |record| record.revision);
        if let Some(seen) = seen.filter(|seen| *seen != now) {
            return Err(Error::conflict(format!(
                "{name} was changed in between by {} and is at revision {now}, you saw the rollout of revision {seen}; \
                 look at it again and decide anew",
                deployment.changed_by
            )));
        }
        let record = record.ok_or_else(|| {
            Error::conflict(format!(
                "{name} went to all its devices at once; there is nothing to {}",
                verb.as_str()
            ))
        })?;
        if record.state != verb.to() {
            if !verb.from().contains(&record.state) {
                return Err(Error::conflict(format!(
                    "the rollout of {name} is {}; there is nothing to {}",
                    record.state.as_str(),
                    verb.as_str()
                )));
            }
            let forgiven = match verb {
                RolloutVerb::Resume => self.failed_now(&record, &deployment).await?,
                RolloutVerb::Pause | RolloutVerb::Abort => Vec::new(),
            };
            let at = self.now();
            let (kind, done) = verb.done();
            let text = format!("the rollout of {name}, revision {}, was {done}", record.revision);
            let update = RolloutUpdate {
                deployment: record.deployment,
                revision: record.revision,
                from: verb.from().to_vec(),
                to: verb.to(),
                why: None,
                reached: record.reached,
                forgiven,
                at,
                by: Some(actor.name.clone()),
                event: Some(NewEvent::new(at, kind, &actor.name, text).deployment(name)),
            };
            if !self.store.update_rollout(update).await? {
                return Err(Error::conflict("others change the same rollout at this moment; try again"));
            }
        }
        drop(deciding);
        self.rollouts_may_move();
        self.rollout(name).await
    }

    /// Whether the rollout of what is wanted now is to go back.
    pub(super) async fn is_reverting(&self, name: &DeploymentName) -> Result<bool, Error> {
        let (_, record) = self.paced(name).await?;
        Ok(record.is_some_and(|record| record.state == RolloutState::Reverting))
    }

    /// The deployment that is wanted under a name, and its rollout if it goes in steps.
    async fn paced(&self, name: &DeploymentName) -> Result<(DeploymentRecord, Option<RolloutRecord>), Error> {
        let deployment = self.store.deployment(name).await?.filter(|found| !found.removed);
        let deployment = deployment.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
        let record = self.store.rollout(deployment.deployment.id).await?;
        Ok((deployment, record))
    }

    /// Those that failed by now. Who tries once more, or goes back, failed as well: what comes of that is not another failure.
    async fn failed_now(
        &self,
        record: &RolloutRecord,
        deployment: &DeploymentRecord,
    ) -> Result<Vec<DeviceRef>, Error> {
        let once = self.store.failed_once(record.deployment).await?;
        let failed = |member: &Member| match member.now {
            Now::Failed | Now::GoneBack => true,
            Now::UnderWay | Now::Silent => member.released && once.contains(&member.device),
            Now::Waits { .. } | Now::Never | Now::Done => false,
        };
        let members = self.progress(record, deployment).await?.members;
        let here: BTreeSet<&DeviceRef> = members.iter().map(|member| &member.device).collect();
        // Who was put out because it failed did so, too.
        let mut gone = self.store.failed_in_rollout(record.deployment).await?;
        gone.retain(|device| !here.contains(device));
        gone.extend(members.iter().filter(|member| failed(member)).map(|member| member.device.clone()));
        Ok(gone)
    }

    /// A rollout as it stands: all of its devices are looked at.
    async fn progress(
        &self,
        record: &RolloutRecord,
        deployment: &DeploymentRecord,
    ) -> Result<Progress, Error> {
        let begun = Instant::now();
        let lineup = self.store.rollout_lineup(&deployment.deployment).await?;
        let never = deployment.misfits.iter().filter(|misfit| !misfit.temporary);
        let never = never.map(|misfit| misfit.device.clone()).collect();
        let is_forgiven =
            |lined: &&LinedRecord| lined.member.forgiven && !is_meant(&deployment.deployment, lined);
        let forgiven_gone = lineup.iter().filter(is_forgiven).map(|lined| lined.member.place).collect();
        let members = self.members_now(&deployment.deployment, &never, lineup).await?;
        self.meters.rollout_looks.observe(begun.elapsed());
        Ok(Progress {
            size: record.size,
            members,
            forgiven_gone,
            reached: record.reached,
            heard_since: self.rollouts.heard_since(record),
            hold: hold_of(record),
            revertible: record.before.is_some(),
        })
    }

    /// What the devices of a rollout are at the moment; those that it is not meant for any more are left out.
    pub(super) async fn members_now(
        &self,
        deployment: &Deployment,
        never: &BTreeSet<DeviceRef>,
        lineup: Vec<LinedRecord>,
    ) -> Result<Vec<Member>, Error> {
        let verdicts = self.store.assignment_verdicts(deployment.id).await?;
        let member = |lined: LinedRecord| {
            if !is_meant(deployment, &lined) {
                return None;
            }
            let now = match never.contains(&lined.member.device) {
                true => Now::Never,
                false => self.now_of(&lined, verdicts.get(&lined.member.device)),
            };
            let heard = self.heard_last(&lined.member.device.client, lined.heard);
            let MemberRecord { device, place, released_at, forgiven, keeps: _ } = lined.member;
            let site = lined.site.unwrap_or_default();
            let released = released_at.is_some();
            let half_way = !released && is_half_way(verdicts.get(&device));
            Some(Member { device, place, site, released, forgiven, heard, half_way, now })
        };
        Ok(lineup.into_iter().filter_map(member).collect())
    }

    fn now_of(&self, lined: &LinedRecord, assignment: Option<&Standpoint>) -> Now {
        let silent = self.is_silent_since(&lined.member.device.client, lined.heard) || !lined.speaks;
        let down = assignment.is_some_and(|is| (is.state, is.verdict) == (State::Failed, Verdict::Failed));
        let fault = assignment.and_then(|is| is.fault.as_deref());
        let refuses = FAILURE_CODES.iter().any(|code| code.is_refusal() && fault == Some(code.as_str()));
        if lined.member.released_at.is_none() {
            return if silent { Now::Silent } else { Now::Waits { down: down || is_half_way(assignment) } };
        }
        match assignment.map(|is| is.verdict) {
            // What it said it said, whether it is heard of or not.
            Some(Verdict::Converged) => Now::Done,
            // It says no by itself, whatever the server thought of it, or was told to force.
            Some(Verdict::Failed) if refuses => Now::Never,
            Some(Verdict::Failed) if down => Now::Failed,
            Some(Verdict::Failed) => Now::GoneBack,
            // The report that it failed may have been left out for this newer one.
            Some(Verdict::Pending) if assignment.is_some_and(|is| is.goes_back) => Now::Failed,
            Some(Verdict::Pending) | None if silent => Now::Silent,
            Some(Verdict::Pending) | None => Now::UnderWay,
        }
    }
}

/// Whether somebody stopped it.
fn hold_of(record: &RolloutRecord) -> Hold {
    match record.state {
        RolloutState::Running | RolloutState::Reverting | RolloutState::Done => Hold::None,
        RolloutState::Paused => Hold::Paused,
        RolloutState::Halted => Hold::Halted(record.why.clone().unwrap_or_default()),
        RolloutState::Aborted => Hold::Aborted,
    }
}

/// Whether a device is still one that a deployment is meant for.
fn is_meant(deployment: &Deployment, lined: &LinedRecord) -> bool {
    !lined.retired && deployment.targets.matches(&lined.member.device, &lined.labels)
}

/// Whether a device is on its way to what it was given, or is to set out: what ran before may be down, or will be.
fn is_half_way(assignment: Option<&Standpoint>) -> bool {
    assignment.is_some_and(|is| is.verdict == Verdict::Pending)
}
