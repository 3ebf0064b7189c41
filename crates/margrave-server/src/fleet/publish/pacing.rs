//! Holding back: which devices of a decision get it now, and which when their turn has come.
//!
//! A part of publishing: what is held back here is released later through the same path (`fleet/rollout`).

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::deployment::Targets;
use margrave_core::id::{ClientId, DeploymentId, DeploymentName, DeviceRef};
use margrave_core::rollout::{Batch, Decision, Hold, Member, Progress, Reached, Strategy, decide};
use margrave_store::{
    Candidate, LinedRecord, MemberRecord, MisfitRecord, NewMember, RolloutChange, RolloutState,
    WantedAssignment,
};

use super::{Changes, KEEPS, Pictures, Touched, Wish, needs};
use crate::fleet::revision::{is_again, is_exactly_again};
use crate::fleet::{Error, Fleet};

/// What releasing some devices means.
pub(in crate::fleet) struct Released {
    pub(in crate::fleet) touched: Vec<Touched>,
    /// Those who get it.
    pub(in crate::fleet) devices: Vec<DeviceRef>,
    /// Those for whom it turned out not to be; what they have they keep.
    pub(in crate::fleet) misfits: Vec<MisfitRecord>,
    /// Devices on which there is more room than before.
    pub(in crate::fleet) freed: Vec<DeviceRef>,
}

/// A rollout that begins: in which order its devices get what is new.
pub(in crate::fleet) struct Paced {
    pub(in crate::fleet) name: DeploymentName,
    pub(in crate::fleet) strategy: Strategy,
    pub(in crate::fleet) progress: Progress,
    pub(in crate::fleet) batches: Vec<Batch>,
    /// Those that get it with the change itself.
    pub(in crate::fleet) released: BTreeSet<DeviceRef>,
    /// Why nobody gets anything for now, where it is not begun but goes on being stopped.
    pub(in crate::fleet) stopped: Option<String>,
}

/// A rollout that begins, and what it holds back.
pub(super) struct Begun {
    pub(super) change: RolloutChange,
    pub(super) paced: Paced,
    pub(super) waiting: Vec<WantedAssignment>,
}

/// A rollout that is not done.
#[derive(Clone, Copy)]
struct Open {
    revision: u64,
    /// What those who wait have, if there is such a revision.
    before: Option<u64>,
}

/// The rollouts that are not done, as far as some devices are concerned.
#[derive(Default)]
pub(super) struct Pacing {
    open: BTreeMap<DeploymentId, Open>,
    /// Whether each device was released.
    members: BTreeMap<(DeploymentId, DeviceRef), bool>,
    /// With the revision that each has meanwhile.
    joining: BTreeMap<DeploymentId, Vec<(DeviceRef, Option<u64>)>>,
    leaving: BTreeMap<DeploymentId, Vec<DeviceRef>>,
}

impl Pacing {
    /// The revision that a device has while it waits for its turn, where a deployment came to reach it meanwhile.
    pub(super) fn before(&self, deployment: DeploymentId) -> Option<u64> {
        self.open.get(&deployment)?.before
    }

    /// Whether a device that has an earlier revision waits for its turn.
    pub(super) fn waits(&self, deployment: DeploymentId, device: &DeviceRef) -> bool {
        let released = || self.members.get(&(deployment, device.clone())).copied().unwrap_or_default();
        self.open.contains_key(&deployment) && !released()
    }

    /// Whether a device that could not have this revision so far, or was not meant to, waits for its turn; it is put at the end if
    /// it is new, and `keeps` that revision until then.
    pub(super) fn joins(&mut self, deployment: DeploymentId, device: &DeviceRef, keeps: Option<u64>) -> bool {
        if self.open.contains_key(&deployment) && !self.members.contains_key(&(deployment, device.clone())) {
            self.joining.entry(deployment).or_default().push((device.clone(), keeps));
        }
        self.waits(deployment, device)
    }

    /// A deployment is not meant for a device any more: if that waits for it, it does so no longer.
    pub(super) fn leave(&mut self, deployment: DeploymentId, device: &DeviceRef) {
        if self.members.get(&(deployment, device.clone())) == Some(&false) {
            self.leaving.entry(deployment).or_default().push(device.clone());
        }
    }

    /// As if these rollouts had begun.
    pub(super) fn begin(&mut self, changes: &[RolloutChange]) {
        for change in changes {
            let (deployment, revision, before, members) = match change {
                RolloutChange::Begin { deployment, revision, before, members, .. } => {
                    (deployment, revision, before, members)
                }
                RolloutChange::CarryOver { revision, members, stopped } => {
                    (&stopped.deployment, revision, &stopped.before, members)
                }
                _ => continue,
            };
            self.members.retain(|(of, _), _| of != deployment);
            self.open.insert(*deployment, Open { revision: *revision, before: *before });
            let members =
                members.iter().map(|member| ((*deployment, member.device.clone()), member.released));
            self.members.extend(members);
        }
    }

    pub(super) fn changes(self) -> Vec<RolloutChange> {
        let revision = |deployment| self.open.get(deployment).map_or(0, |open| open.revision);
        let left = self.leaving.iter().map(|(deployment, devices)| RolloutChange::Leave {
            deployment: *deployment,
            devices: devices.clone(),
        });
        let joined = self.joining.iter().map(|(deployment, devices)| RolloutChange::Join {
            deployment: *deployment,
            revision: revision(deployment),
            devices: devices.clone(),
        });
        joined.chain(left).collect()
    }
}

impl Fleet {
    pub(super) async fn pacing(&self, devices: &[Candidate]) -> Result<Pacing, Error> {
        let mut pacing = Pacing::default();
        let open = self.store.rollouts_open().await?;
        pacing.open.extend(open.into_iter().map(|rollout| {
            (rollout.deployment, Open { revision: rollout.revision, before: rollout.before })
        }));
        if pacing.open.is_empty() {
            return Ok(pacing);
        }
        for record in devices {
            for (deployment, released) in self.store.rollouts_of(&record.device).await? {
                pacing.members.insert((deployment, record.device.clone()), released);
            }
        }
        Ok(pacing)
    }

    /// Begins the rollout of a revision: leaves in `changes` those who get it first, and takes out the others. Those
    /// that are to lose the deployment do so at once. `holders` have it in whatever revision: the one that theirs was made of is
    /// known of most.
    pub(super) async fn begin_rollout(
        &self,
        wish: &Wish,
        holders: &BTreeMap<DeviceRef, Option<u64>>,
        changes: &mut BTreeMap<ClientId, Changes>,
    ) -> Result<Option<Begun>, Error> {
        let deployment = &wish.deployment;
        let strategy = &deployment.strategy;
        if strategy.is_all_at_once() || wish.at_once {
            return Ok(None);
        }
        let superseded = self.store.rollout(deployment.id).await?;
        let unfinished = superseded.filter(|rollout| rollout.state != RolloutState::Done);
        // What never came to its end is nothing to go back to.
        let before = match &unfinished {
            Some(rollout) => rollout.before,
            None => deployment.revision.checked_sub(1),
        };
        let before = match before {
            Some(before) => {
                self.store.revision(&deployment.name, before).await?.filter(|found| !found.removed)
            }
            None => None,
        };
        // The way back from what did not go well is not made in steps.
        if let (Some(rollout), Some(before)) = (&unfinished, &before) {
            let left = before.deployment.targets.devices.difference(&deployment.targets.devices);
            let left: BTreeSet<DeviceRef> = left.cloned().collect();
            // Who is not there any more cannot be named, and makes it no other.
            let are_gone = left.is_empty() || {
                let left = Targets { devices: left, ..Targets::default() };
                self.store.devices_targeted(&left).await?.is_empty()
            };
            if are_gone && is_again(deployment, &before.deployment) {
                // Where it is only about a secret all three look the same, and only the earlier value is a way back.
                let failed = self.store.revision(&deployment.name, rollout.revision).await?;
                let is_other = failed.is_none_or(|failed| !is_again(deployment, &failed.deployment));
                if is_other || is_exactly_again(deployment, &before.deployment) {
                    return Ok(None);
                }
            }
        }
        let devices: Vec<DeviceRef> = changes
            .values()
            .flat_map(|changes| changes.wanted.iter().map(|placed| placed.wanted.device.clone()))
            .collect();
        let mut ordered = self.store.devices_named(devices).await?;
        ordered.sort_by_cached_key(|device| (strategy.rank(&device.labels), device.device.clone()));
        let places = (0..).zip(&ordered);
        let lineup = places.map(|(place, device)| {
            let member = MemberRecord {
                device: device.device.clone(),
                place,
                released_at: None,
                forgiven: false,
                keeps: None,
            };
            LinedRecord::new(member, device)
        });
        let members: Vec<Member> = self.members_now(deployment, &BTreeSet::new(), lineup.collect()).await?;
        let progress = Progress {
            size: u32::try_from(members.len()).unwrap_or(u32::MAX),
            members,
            forgiven_gone: Vec::new(),
            reached: Reached::default(),
            heard_since: None,
            hold: Hold::None,
            revertible: before.is_some(),
        };
        if progress.members.is_empty() {
            return Ok(None);
        }
        let Decision { release, reached, batches, .. } = decide(strategy, &progress, self.now());
        let released: BTreeSet<DeviceRef> = release.into_iter().collect();
        let mut waiting = Vec::new();
        for changes in changes.values_mut() {
            let later = changes.wanted.extract_if(.., |placed| !released.contains(&placed.wanted.device));
            waiting.extend(later.map(|placed| placed.wanted));
        }
        // Who was not given what went before keeps what it had then.
        let mut kept: BTreeMap<DeviceRef, Option<u64>> = BTreeMap::new();
        if let Some(rollout) = &unfinished {
            let earlier = self.store.rollout_members(deployment.id).await?.into_iter();
            let keeps = |member: &MemberRecord| match member.released_at {
                Some(_) => Some(rollout.revision),
                None => member.keeps,
            };
            kept.extend(earlier.map(|member| (member.device.clone(), keeps(&member))));
        }
        // Who was left out of the last has what it was given then. Of the others the last may have changed nothing.
        let left_out =
            self.store.left_out(ordered.iter().map(|device| device.device.clone()).collect()).await?;
        let keeps = |device: &DeviceRef| {
            let made = holders.get(device)?;
            let last = || deployment.revision.checked_sub(1);
            kept.get(device).copied().unwrap_or_else(|| {
                made.filter(|_| left_out.contains(&(deployment.id, device.clone()))).or_else(last)
            })
        };
        let members = ordered.iter().map(|device| NewMember {
            device: device.device.clone(),
            released: released.contains(&device.device),
            keeps: keeps(&device.device),
        });
        let change = RolloutChange::Begin {
            deployment: deployment.id,
            revision: deployment.revision,
            before: before.map(|before| before.deployment.revision),
            reached,
            members: members.collect(),
        };
        let (name, strategy) = (deployment.name.clone(), strategy.clone());
        let paced = Paced { name, strategy, progress, batches, released, stopped: None };
        Ok(Some(Begun { change, paced, waiting }))
    }

    /// What it means that these devices get what a deployment wants now.
    pub(in crate::fleet) async fn decide_release(
        &self,
        wish: &Wish,
        devices: Vec<Candidate>,
    ) -> Result<Released, Error> {
        let clients = devices.iter().map(|device| device.device.client.clone()).collect();
        let pictures: Pictures = self.pictures(clients).await?;
        let mut promises = self.promises(&pictures, [&wish.entry]).await?;
        let mut changes: BTreeMap<ClientId, Changes> = BTreeMap::new();
        let (mut released, mut misfits, mut freed) = (Vec::new(), Vec::new(), Vec::new());
        for device in devices {
            let (id, stand) = promises.stand(&pictures, &device, wish);
            let held = pictures.held(&device.device, id);
            match wish.place(&device, &stand, &self.options.registry_address) {
                Ok(placed) => {
                    let next = wish.entry.needs.get(&placed.wanted.profile);
                    if stand.own.as_ref().is_some_and(|own| next.is_none_or(|next| own.exceeds(next))) {
                        freed.push(device.device.clone());
                    }
                    if needs(held, &placed) {
                        changes.entry(device.device.client.clone()).or_default().wanted.push(placed);
                    }
                    released.push(device.device);
                }
                Err(unplaced) => {
                    let temporary = unplaced.is_temporary();
                    let mut reasons = unplaced.reasons();
                    if held.is_some_and(|held| held.wanted) {
                        reasons.push(KEEPS.to_owned());
                    }
                    let (deployment, device) = (wish.deployment.id, device.device);
                    misfits.push(MisfitRecord { deployment, device, temporary, reasons });
                }
            }
        }
        let touched = self.consider(pictures, changes).await?;
        Ok(Released { touched, devices: released, misfits, freed })
    }
}
