//! What was stopped stays stopped.
//!
//! A revision that nobody asked for, because a device has another name now or a default is another, takes the place of the one
//! before, and its rollout. If that was stopped, the one in its place is as well, by whom and why it was: nobody gets anything, and
//! everybody keeps what they have until a person lets it go on.

use std::collections::BTreeMap;

use margrave_core::deployment::Deployment;
use margrave_core::id::{DeploymentId, DeviceRef};
use margrave_store::{Candidate, MemberRecord, NewMember, RolloutChange, RolloutRecord, RolloutState};

use crate::fleet::{Error, Fleet};

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
        mut devices: Vec<Candidate>,
    ) -> Result<RolloutChange, Error> {
        let holders = self.store.assignment_verdicts(deployment.id).await?;
        let keeps = |member: MemberRecord| match member.released_at {
            Some(_) => (member.device, Some(stopped.revision)),
            None => (member.device, member.keeps),
        };
        let members = self.store.rollout_members(deployment.id).await?.into_iter();
        let kept: BTreeMap<DeviceRef, Option<u64>> = members.map(keeps).collect();
        let strategy = &deployment.strategy;
        devices.sort_by_cached_key(|device| (strategy.rank(&device.labels), device.device.clone()));
        let member = |Candidate { device, .. }: Candidate| {
            let held = holders.contains_key(&device);
            let keeps = kept.get(&device).copied().unwrap_or(Some(stopped.revision)).filter(|_| held);
            NewMember { device, released: false, keeps }
        };
        let members = devices.into_iter().map(member).collect();
        Ok(RolloutChange::CarryOver { revision: deployment.revision, members, stopped: Box::new(stopped) })
    }
}
