//! Where the deployments of a change have a place: one after the other, each in the light of those before it.
//!
//! A part of publishing. What a deployment is about to leave on a device others of the same change may have. If it turns out that it
//! stays, because what is new does not fit there, nobody else may: then all are placed once more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use margrave_core::constraints::Need;
use margrave_core::id::{AssignmentId, DeploymentId, DeviceRef};
use margrave_store::{Candidate, HeldAssignment};

use super::promising::Promises;
use super::{Pictures, Placed, Unplaced, WORTH_A_THREAD, Wish};
use crate::cores;
use crate::fleet::Fleet;

/// Who is meant by each wish.
pub(super) type Wanted = Vec<(Wish, Vec<Candidate>)>;

/// What became of one deployment on one device.
pub(super) struct Landed {
    pub(super) id: AssignmentId,
    pub(super) device: Candidate,
    pub(super) placed: Result<Placed, Unplaced>,
    /// It does not fit, and keeps what it has.
    pub(super) stays: bool,
    /// There is more room on the device than before.
    pub(super) frees: bool,
    /// Others could have had what it is about to leave.
    lessened: bool,
}

impl Fleet {
    /// `promises` are those of what stays as it is, and `held_by` what each deployment has.
    pub(super) async fn place(
        &self,
        mut wanted: Wanted,
        held_by: &BTreeMap<DeploymentId, Vec<HeldAssignment>>,
        pictures: &Pictures,
        mut promises: Promises,
    ) -> Vec<(Wish, Vec<Landed>)> {
        let mut staying: BTreeSet<(DeploymentId, DeviceRef)> = BTreeSet::new();
        // With each look at least one more stays on a device, so there are no more looks than wishes.
        for _ in 1..wanted.len() {
            let untouched = promises.clone();
            let landed = self.place_once(wanted, held_by, pictures, promises, &staying).await;
            let known = staying.len();
            for (wish, landed) in &landed {
                let stays = landed.iter().filter(|landed| landed.stays && landed.lessened);
                staying.extend(stays.map(|landed| (wish.deployment.id, landed.device.device.clone())));
            }
            if staying.len() == known {
                return landed;
            }
            promises = untouched;
            let devices = |landed: Vec<Landed>| landed.into_iter().map(|landed| landed.device).collect();
            wanted = landed.into_iter().map(|(wish, landed)| (wish, devices(landed))).collect();
        }
        self.place_once(wanted, held_by, pictures, promises, &staying).await
    }

    async fn place_once(
        &self,
        wanted: Wanted,
        held_by: &BTreeMap<DeploymentId, Vec<HeldAssignment>>,
        pictures: &Pictures,
        mut promises: Promises,
        staying: &BTreeSet<(DeploymentId, DeviceRef)>,
    ) -> Vec<(Wish, Vec<Landed>)> {
        let mut lessened: BTreeSet<AssignmentId> = BTreeSet::new();
        for (wish, devices) in &wanted {
            let meant: BTreeSet<&DeviceRef> = devices.iter().map(|device| &device.device).collect();
            for held in held_by.get(&wish.deployment.id).into_iter().flatten() {
                if !meant.contains(&held.device) {
                    promises.free(&held.device, &held.name);
                } else if !staying.contains(&(wish.deployment.id, held.device.clone()))
                    && promises.lessen(held, wish)
                {
                    lessened.insert(held.id);
                }
            }
        }
        let mut all = Vec::with_capacity(wanted.len());
        for (wish, devices) in wanted {
            let placing = devices.into_iter().map(|device| {
                let (id, stand) = promises.stand(pictures, &device, &wish);
                (id, device, stand)
            });
            let (of, address) = (wish.clone(), self.options.registry_address.clone());
            let placed = cores::spread(placing.collect(), WORTH_A_THREAD, move |(id, device, stand)| {
                let placed = of.place(&device, &stand, &address);
                (id, device, stand, placed)
            });
            let mut here = Vec::new();
            for (id, device, stand, placed) in placed.await {
                let held = pictures.held(&device.device, id);
                let stays =
                    matches!(placed, Err(Unplaced::Misfit(_))) && held.is_some_and(|held| held.wanted);
                let profile = placed.as_ref().ok().map(|placed| &placed.wanted.profile);
                let next = profile.and_then(|profile| wish.entry.needs.get(profile));
                let lessens = |own: &Arc<Need>| !stays && next.is_none_or(|next| own.exceeds(next));
                let frees = stand.own.as_ref().is_some_and(lessens);
                match stays {
                    true => promises.keep_as_it_is(&device.device, stand, &wish),
                    false => promises.keep(&device.device, stand, &wish, profile),
                }
                here.push(Landed { id, device, placed, stays, frees, lessened: lessened.contains(&id) });
            }
            all.push((wish, here));
        }
        all
    }
}
