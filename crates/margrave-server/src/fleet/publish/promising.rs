//! What is promised on the devices of a decision: read from what is wanted there, and kept up while it is made.
//!
//! A part of publishing. What a need is and when there is room for it is the core's (`constraints/room.rs`). A device that waits
//! for its turn in a rollout was promised nothing yet; it is asked again when its turn has come. Until then it has what it had, so
//! a change that goes in steps makes no room for others of the same commit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use margrave_core::constraints::{Need, Promise, Room};
use margrave_core::id::{AssignmentId, DeploymentName, DeviceRef, PackageId, PackageVersion, ProfileId};
use margrave_core::parameters::Held;
use margrave_store::{Candidate, HeldAssignment};

use super::{Pictures, Wish};
use crate::fleet::catalog::Entry;
use crate::fleet::{Error, Fleet};

/// A device, from where one deployment looks at it.
#[derive(Default)]
pub(in crate::fleet) struct Stand {
    /// The profile it has there, which it keeps where it may choose.
    pub(in crate::fleet) held: Option<ProfileId>,
    pub(super) own: Option<Arc<Need>>,
    /// What cannot be changed any more of what it has there, where that is known.
    pub(super) fixed: Option<Arc<Held>>,
    /// To others.
    pub(super) promised: Vec<Promise>,
}

impl Stand {
    pub(in crate::fleet) fn room(&self) -> Room<'_> {
        Room { promised: &self.promised, own: self.own.as_deref() }
    }

    /// As if it were not there yet.
    pub(in crate::fleet) fn anew(self) -> Stand {
        Stand { own: None, ..self }
    }
}

impl Wish {
    /// What cannot be changed any more on a device that has the deployment. Another package asks other questions.
    pub(super) fn fixed(&self, held: &HeldAssignment) -> Option<Arc<Held>> {
        let basis = held.basis.as_ref().filter(|_| held.package == self.deployment.package)?;
        Some(Arc::clone(&basis.fixed))
    }
}

/// What is promised on some devices.
#[derive(Default, Clone)]
pub(in crate::fleet) struct Promises {
    /// The packages of what is held, while they are in the catalog.
    packages: HashMap<(PackageId, PackageVersion), Arc<Entry>>,
    on: HashMap<DeviceRef, Vec<Promise>>,
}

impl Promises {
    /// What an assignment takes.
    pub(super) fn need(&self, held: &HeldAssignment) -> Option<&Arc<Need>> {
        self.packages.get(&(held.package.clone(), held.version.clone()))?.needs.get(&held.profile)
    }

    /// Takes what is promised on a device out, as `wish` looks at it; [`Promises::keep`] puts it back.
    pub(in crate::fleet) fn stand(
        &mut self,
        pictures: &Pictures,
        device: &Candidate,
        wish: &Wish,
    ) -> (AssignmentId, Stand) {
        let id = device.assignment_id(wish.deployment.id);
        let held = pictures.held(&device.device, id);
        let own = held.filter(|held| held.wanted).and_then(|held| self.need(held).cloned());
        let mut promised = self.on.remove(&device.device).unwrap_or_default();
        promised.retain(|promise| promise.to != wish.deployment.name);
        let fixed = held.filter(|held| held.wanted).and_then(|held| wish.fixed(held));
        (id, Stand { held: held.map(|held| held.profile.clone()), own, fixed, promised })
    }

    /// How a device looks to a deployment of this name, if there is one yet.
    pub(in crate::fleet) fn look(
        &self,
        pictures: &Pictures,
        device: &DeviceRef,
        name: Option<&DeploymentName>,
    ) -> Stand {
        let assignments = pictures.0.get(&device.client).into_iter().flat_map(|picture| &picture.assignments);
        let own = |held: &&HeldAssignment| held.wanted && held.device == *device && Some(&held.name) == name;
        let held = assignments.into_iter().find(own);
        let mut promised = self.on(device);
        promised.retain(|promise| Some(&promise.to) != name);
        let own = held.and_then(|held| self.need(held).cloned());
        Stand { held: held.map(|held| held.profile.clone()), own, promised, ..Stand::default() }
    }

    /// Puts back what was promised to others, and what `wish` was promised now, if it has a place: beside what it has, where it
    /// may have to wait for its turn.
    pub(in crate::fleet) fn keep(
        &mut self,
        device: &DeviceRef,
        stand: Stand,
        wish: &Wish,
        profile: Option<&ProfileId>,
    ) {
        let mut promised = stand.promised;
        if let Some(need) = profile.and_then(|profile| wish.entry.needs.get(profile)) {
            let need = match &stand.own {
                Some(own) if !wish.deployment.strategy.is_all_at_once() => Arc::new(own.most(need)),
                _ => Arc::clone(need),
            };
            promised.push(Promise { to: wish.deployment.name.clone(), need });
        }
        self.on.insert(device.clone(), promised);
    }

    /// Puts back what was promised to others, and to `wish` what it has already.
    pub(super) fn keep_as_it_is(&mut self, device: &DeviceRef, stand: Stand, wish: &Wish) {
        let mut promised = stand.promised;
        promised.extend(stand.own.map(|need| Promise { to: wish.deployment.name.clone(), need }));
        self.on.insert(device.clone(), promised);
    }

    /// What a deployment had on a device is free.
    pub(in crate::fleet) fn free(&mut self, device: &DeviceRef, name: &DeploymentName) {
        if let Some(promised) = self.on.get_mut(device) {
            promised.retain(|promise| promise.to != *name);
        }
    }

    /// Of what a deployment has on a device only that stays promised which it has also after the change: others of the same
    /// change may have the rest, if there is any. Not where it goes in steps: who waits for their turn has all of it until then.
    pub(super) fn lessen(&mut self, held: &HeldAssignment, wish: &Wish) -> bool {
        if !wish.deployment.strategy.is_all_at_once() {
            return false;
        }
        let Some(need) = self.need(held).cloned() else { return false };
        let next = wish.entry.needs.get(&held.profile);
        let next = next.map_or_else(Need::default, |next| need.least(next));
        let promised = self.on.get_mut(&held.device).into_iter().flatten();
        for promise in promised.filter(|promise| promise.to == held.name) {
            promise.need = Arc::new(next.clone());
        }
        need.exceeds(&next)
    }

    /// What is promised on a device, to be judged by one deployment after the other.
    pub(super) fn on(&self, device: &DeviceRef) -> Vec<Promise> {
        self.on.get(device).cloned().unwrap_or_default()
    }
}

impl Fleet {
    /// What is wanted on the devices of `pictures` now. Where no entry takes anything of a device, nobody has to know what is left.
    pub(in crate::fleet) async fn promises<'a>(
        &self,
        pictures: &Pictures,
        entries: impl IntoIterator<Item = &'a Arc<Entry>>,
    ) -> Result<Promises, Error> {
        let mut promises = Promises::default();
        let assignments = || pictures.0.values().flat_map(|picture| &picture.assignments);
        let wanted = || assignments().filter(|held| held.wanted);
        let keys: HashSet<(&PackageId, &PackageVersion)> =
            wanted().map(|held| (&held.package, &held.version)).collect();
        for (package, version) in keys {
            match self.entry(package, version).await {
                Ok(Some(entry)) => {
                    promises.packages.insert((package.clone(), version.clone()), entry);
                }
                // Told where wishes are read; what nobody can read takes nothing.
                Ok(None) | Err(Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let takes = |entry: &Arc<Entry>| entry.needs.values().any(|need| !need.is_nothing());
        if !entries.into_iter().any(takes) {
            return Ok(promises);
        }
        for held in wanted() {
            let Some(need) = promises.need(held).filter(|need| !need.is_nothing()).cloned() else { continue };
            let promise = Promise { to: held.name.clone(), need };
            promises.on.entry(held.device.clone()).or_default().push(promise);
        }
        Ok(promises)
    }

    /// What is promised on these devices, for a look that changes nothing.
    pub(in crate::fleet) async fn promised<'a>(
        &self,
        devices: impl IntoIterator<Item = &'a DeviceRef>,
        entries: impl IntoIterator<Item = &'a Arc<Entry>>,
    ) -> Result<(Pictures, Promises), Error> {
        let clients = devices.into_iter().map(|device| device.client.clone()).collect();
        let pictures = self.pictures(clients).await?;
        let promises = self.promises(&pictures, entries).await?;
        Ok((pictures, promises))
    }
}
