//! What was stopped stays stopped.
//!
//! A revision that nobody asked for, because a device has another name now or a default is another, takes the place of the one
//! before, and its rollout. If that was stopped, the one in its place is as well, by whom and why it was: nobody gets anything, and
//! everybody keeps what they have until a person lets it go on.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::deployment::Deployment;
use margrave_core::id::{DeploymentId, DeviceRef};
use margrave_core::rollout::{Progress, Reached, decide};
use margrave_store::{
    Candidate, DeviceRecord, LinedRecord, MemberRecord, NewMember, RolloutChange, RolloutRecord, RolloutState,
};

use super::hold_of;
use crate::fleet::publish::Paced;
use crate::fleet::{Error, Fleet};

/// Why nobody gets anything, for whoever plans a change.
fn told(RolloutRecord { state, why, changed_by, .. }: &RolloutRecord) -> String {
    let why = why.as_deref().unwrap_or("it failed");
    match state {
        RolloutState::Halted => {
            format!("the rollout was halted: {why}; its devices wait until it is resumed")
        }
        RolloutState::Reverting => format!("the rollout is going back: {why}"),
        RolloutState::Aborted => format!("the rollout was aborted by {changed_by}, nobody further gets it"),
        RolloutState::Paused | RolloutState::Running | RolloutState::Done => {
            format!("the rollout was paused by {changed_by}; its devices wait until it is resumed")
        }
    }
}

/// Whether those who wait get it once a person says so.
pub(in crate::fleet) fn is_resumable(stopped: &RolloutRecord) -> bool {
    matches!(stopped.state, RolloutState::Paused | RolloutState::Halted)
}

impl Fleet {
    /// The rollout of a deployment, if it was stopped.
    pub(in crate::fleet) async fn stopped_rollout(
        &self,
        deployment: DeploymentId,
    ) -> Result<Option<RolloutRecord>, Error> {
        let record = self.store.rollout(deployment).await?;
        Ok(record.filter(|record| !matches!(record.state, RolloutState::Running | RolloutState::Done)))
    }

    /// The rollout of a revision in the place of one that was stopped. All its devices are part of it, for nobody has looked whom
    /// the revision changes anything for; whom it changes nothing for is done when its turn comes.
    pub(in crate::fleet) async fn carry_over(
        &self,
        stopped: RolloutRecord,
        deployment: &Deployment,
        devices: &[Candidate],
    ) -> Result<RolloutChange, Error> {
        let holders = self.store.assignment_verdicts(deployment.id).await?;
        let keeps = |member: MemberRecord| match member.released_at {
            Some(_) => (member.device, Some(stopped.revision)),
            None => (member.device, member.keeps),
        };
        let members = self.store.rollout_members(deployment.id).await?.into_iter();
        let kept: BTreeMap<DeviceRef, Option<u64>> = members.map(keeps).collect();
        let strategy = &deployment.strategy;
        let mut devices: Vec<&Candidate> = devices.iter().collect();
        devices.sort_by_cached_key(|device| (strategy.rank(&device.labels), device.device.clone()));
        let member = |Candidate { device, .. }: &Candidate| {
            let held = holders.contains_key(device);
            let keeps = kept.get(device).copied().unwrap_or(Some(stopped.revision)).filter(|_| held);
            NewMember { device: device.clone(), released: false, keeps }
        };
        let members = devices.into_iter().map(member).collect();
        Ok(RolloutChange::CarryOver { revision: deployment.revision, members, stopped: Box::new(stopped) })
    }

    /// The steps of such a rollout, of which nobody gets anything before it goes on.
    pub(in crate::fleet) async fn paced_once_resumed(
        &self,
        stopped: &RolloutRecord,
        deployment: &Deployment,
        members: &[NewMember],
    ) -> Result<Paced, Error> {
        let devices = members.iter().map(|member| member.device.clone()).collect();
        let devices = self.store.devices_named(devices).await?;
        let records: BTreeMap<&DeviceRef, &DeviceRecord> =
            devices.iter().map(|record| (&record.device, record)).collect();
        let lined = |(place, NewMember { device, keeps, .. }): (u32, &NewMember)| {
            let (device, keeps) = (device.clone(), *keeps);
            let record = records.get(&device)?;
            let member = MemberRecord { device, place, released_at: None, forgiven: false, keeps };
            Some(LinedRecord::new(member, record))
        };
        let lineup = (0..).zip(members).filter_map(lined).collect();
        let progress = Progress {
            size: u32::try_from(members.len()).unwrap_or(u32::MAX),
            members: self.members_now(deployment, &BTreeSet::new(), lineup).await?,
            forgiven_gone: Vec::new(),
            reached: Reached::default(),
            heard_since: None,
            hold: hold_of(stopped),
            revertible: stopped.before.is_some(),
        };
        let batches = match is_resumable(stopped) {
            true => decide(&deployment.strategy, &progress, self.now()).batches,
            false => Vec::new(),
        };
        Ok(Paced {
            name: deployment.name.clone(),
            strategy: deployment.strategy.clone(),
            progress,
            batches,
            released: BTreeSet::new(),
            stopped: Some(told(stopped)),
        })
    }
}
