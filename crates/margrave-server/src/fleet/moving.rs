//! Moving a device from signed requests (g1) to mutual TLS (g2).
//!
//! To the server these are two clients, and nothing about them says that they are one device: an operator does
//! (migration, section 6). What the old one was labelled and named in goes to the new one, with the ids of its
//! assignments, because on the device containers and volumes are called by them; the old credential is refused from
//! then on. Numbers of manifests do not go along: they belong to the client, and the new one has its own, from 1.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::deployment::Deployment;
use margrave_core::id::{DeploymentId, DeviceId, DeviceRef};
use margrave_store::{
    Candidate, DeploymentRecord, DeviceRecord, Intent, MOVE_UNWRITTEN, NewEvent, Publication, RolloutState,
    Standing,
};
use margrave_wire::{Dialect, operator};

use super::device::speaks_for_itself;
use super::publish::{ATTEMPTS_MAX, Decision, Unplaced, Unpublished, Wish};
use super::signed::admission_error;
use super::{Actor, Error, Fleet};

/// Which device takes the place of which.
type Places = BTreeMap<DeviceRef, DeviceRef>;

/// For each device of a family the one in its place: the gateway's name is exchanged.
fn places(family: &[DeviceRecord], to: &DeviceRef) -> Result<Places, Error> {
    let place = |record: &DeviceRecord| {
        let old = &record.device.device;
        let below = old.as_str().strip_prefix(old.gateway().as_str()).unwrap_or_default();
        let new = DeviceId::parse(&format!("{}{below}", to.device))
            .map_err(|error| Error::conflict(error.to_string()))?;
        Ok((record.device.clone(), DeviceRef::new(to.client.clone(), new)))
    };
    family.iter().map(place).collect()
}

impl Fleet {
    /// Puts the device `to` in the place of the signed device `from`, children with it.
    pub async fn move_device(
        &self,
        actor: &Actor,
        from: &DeviceRef,
        to: &DeviceRef,
    ) -> Result<operator::Device, Error> {
        self.replace_device(actor, from, to).await?;
        self.device(to).await
    }

    async fn replace_device(&self, actor: &Actor, from: &DeviceRef, to: &DeviceRef) -> Result<(), Error> {
        let (from, to) = (self.live.addressed(from), self.live.addressed(to));
        self.may_move(&from, &to)?;
        speaks_for_itself(&from, "move", "moved")?;
        speaks_for_itself(&to, "move to", "moved to")?;
        let old = self.existing(&from).await?;
        let new = self.existing(&to).await?;
        if old.dialect != Dialect::Signed {
            return Err(Error::conflict(format!(
                "{from} does not sign its requests; only a device of the signed interface (g1) is moved"
            )));
        }
        if new.dialect != Dialect::Miaf || new.standing != Standing::Accepted {
            return Err(Error::conflict(format!(
                "{to} is no accepted device of the interface by mutual TLS (g2); let the device join first, with \
                 `margrave device token`"
            )));
        }
        let client = old.device.client.clone();
        let family = self.family(&from).await?;
        let places = places(&family, &to)?;
        self.check_move(&family, &new, &places).await?;
        self.check_turns(&family, &places).await?;
        let before = self.standing(&client);
        // Out first, written down second, as with every client that is retired.
        self.live.set_standing(&client, Standing::Retired);
        // The device that was named stands first, and in the log.
        let pairs = std::iter::once((from.clone(), to.clone()))
            .chain(places.into_iter().filter(|(old, _)| *old != from))
            .collect();
        let moved = self.store.move_signed(&client, pairs, &to, self.now(), &actor.name).await;
        if let (Err(_), Some(before)) = (&moved, before) {
            self.live.set_standing(&client, before);
        }
        moved.map_err(admission_error)?;
        self.signed.set_moved(&client, to.clone());
        // From here on a crash loses nothing: the rest is done again at the next start.
        self.finish_moves(&actor.name).await?;
        self.settle().await?;
        // Whoever moved another at the same time may have written before this one was done, and forgotten that it is to be: each
        // writes for itself, and forgets only its own.
        if self.desired.may_change().is_ok() {
            let message = format!("Move {from} to {to}");
            self.write_down(&actor.name, &message).await?;
            self.store.forget_only(MOVE_UNWRITTEN, message.into_bytes()).await?;
        }
        Ok(())
    }

    /// Files name devices, and a move changes them: whoever else has the say over them has to.
    fn may_move(&self, from: &DeviceRef, to: &DeviceRef) -> Result<(), Error> {
        let Some(following) = self.desired.following() else { return self.desired.may_change() };
        let (url, from, to) = (&following.follow.url, self.live.spoken(from), self.live.spoken(to));
        Err(Error::conflict(format!(
            "what is wanted follows a remote, {url}, and this server cannot change its files; name {to} there instead of {from}, \
             in deployments and as devices/{to}.yaml, and retire {from}"
        )))
    }

    /// Makes a commit of moves that the database has and the repository has not. Safe to call at any time.
    pub(super) async fn write_moves_down(&self, by: &str) -> Result<(), Error> {
        let Some(message) = self.store.recall(MOVE_UNWRITTEN).await? else { return Ok(()) };
        // While a person has to decide what counts, nothing is written; what counts then is written as a whole.
        if self.desired.may_change().is_err() {
            return Ok(());
        }
        self.write_down(by, &String::from_utf8_lossy(&message)).await?;
        Ok(self.store.forget_only(MOVE_UNWRITTEN, message).await?)
    }

    /// Names the new devices wherever a deployment still names those that were moved. Safe to call at any time.
    pub(super) async fn finish_moves(&self, by: &str) -> Result<(), Error> {
        if !self.signed.any_moved() {
            return Ok(());
        }
        let places: Places = self.store.places_taken().await?.into_iter().collect();
        let _deciding = self.deciding.write().await;
        for record in self.naming(&places).await? {
            self.rename_targets(record, &places, by).await?;
        }
        Ok(())
    }

    async fn existing(&self, device: &DeviceRef) -> Result<DeviceRecord, Error> {
        let found = self.store.device(device).await?;
        found.ok_or_else(|| Error::not_found(format!("device {}", self.live.spoken(device))))
    }

    /// The device with its children. A client that speaks for others as well cannot go: they would be left without.
    async fn family(&self, gateway: &DeviceRef) -> Result<Vec<DeviceRecord>, Error> {
        let all = self.store.devices_of(&gateway.client).await?.into_iter();
        let (family, others): (Vec<_>, Vec<_>) =
            all.partition(|record| record.device.device.gateway() == gateway.device);
        let left: Vec<String> = others
            .iter()
            .filter(|record| record.capabilities.is_some())
            .map(|record| self.live.spoken(&record.device))
            .collect();
        if left.is_empty() {
            return Ok(family);
        }
        Err(Error::conflict(format!(
            "the client of {} speaks for {} as well, which cannot go along because they are no children of it; let it \
             withdraw them first",
            self.live.spoken(gateway),
            left.join(", ")
        )))
    }

    /// The deployments that name one of the old devices, as those they are for or to say something else to.
    async fn naming(&self, places: &Places) -> Result<Vec<DeploymentRecord>, Error> {
        let names = |record: &DeploymentRecord| {
            let deployment = &record.deployment;
            let of = deployment.overrides.iter().map(|other| &other.of);
            let mut named = of.chain([&deployment.targets]).flat_map(|targets| &targets.devices);
            named.any(|device| places.contains_key(device))
        };
        let deployments = self.store.deployments().await?.into_iter();
        Ok(deployments.filter(|record| !record.removed && names(record)).collect())
    }

    /// Whoever takes the place of a device in a rollout stands at the end of the line, and has nothing until then: what runs would be
    /// removed meanwhile.
    async fn check_turns(&self, family: &[DeviceRecord], places: &Places) -> Result<(), Error> {
        let mut meant: BTreeSet<DeploymentId> = BTreeSet::new();
        for record in family {
            meant.extend(self.store.rollouts_of(&record.device).await?.into_iter().map(|(of, _)| of));
        }
        // A revision that changed nothing for it has it in no line; the one that names it anew has.
        for DeploymentRecord { deployment, .. } in self.naming(places).await? {
            if deployment.targets.devices.iter().any(|device| places.contains_key(device)) {
                meant.insert(deployment.id);
            }
        }
        let open = self.store.rollouts_open().await?;
        let Some(rollout) = open.iter().find(|rollout| meant.contains(&rollout.deployment)) else {
            return Ok(());
        };
        let (name, state) = (&rollout.name, rollout.state.as_str());
        let way = match rollout.state {
            RolloutState::Aborted => format!("make another change of {name} first, or remove it, then move"),
            _ => format!(
                "let the rollout come to its end, or take it back with `margrave deployment revert {name}`, then move"
            ),
        };
        Err(Error::conflict(format!(
            "the rollout of {name} is {state}, and the device in the place of the other would have nothing of {name} until its turn \
             comes; {way}"
        )))
    }

    async fn is_under_way(&self, deployment: DeploymentId) -> Result<bool, Error> {
        let rollout = self.store.rollout(deployment).await?;
        Ok(rollout.is_some_and(|rollout| rollout.state != RolloutState::Done))
    }

    /// Everything can move, or nothing does. A device that has not said anything yet is believed to be the same; one
    /// that has is known, and so are its children.
    async fn check_move(
        &self,
        family: &[DeviceRecord],
        gateway: &DeviceRecord,
        places: &Places,
    ) -> Result<(), Error> {
        let new = self.store.devices_named(places.values().cloned().collect()).await?;
        let known: BTreeSet<&DeviceRef> = new.iter().map(|record| &record.device).collect();
        let missing: Vec<String> = family
            .iter()
            .filter(|old| gateway.capabilities.is_some() && old.capabilities.is_some())
            .filter_map(|old| places.get(&old.device))
            .filter(|device| !known.contains(device))
            .map(|device| self.live.spoken(device))
            .collect();
        if !missing.is_empty() {
            return Err(Error::conflict(format!(
                "{} would take the place of a child and has not been reported yet; let the new gateway report its \
                 children first",
                missing.join(", ")
            )));
        }
        let mut misfits = Vec::new();
        for record in self.naming(places).await? {
            let Some(wish) = self.renamed(&record, places).await? else { continue };
            let (pictures, mut promises) =
                self.promised(new.iter().map(|record| &record.device), [&wish.entry]).await?;
            let named: Vec<&DeviceRef> =
                record.deployment.targets.devices.iter().filter_map(|device| places.get(device)).collect();
            for device in new.iter().filter(|record| named.contains(&&record.device)) {
                let candidate = Candidate::from(device);
                let (_, stand) = promises.stand(&pictures, &candidate, &wish);
                if let Err(Unplaced::Misfit(reasons)) =
                    wish.place(&candidate, &stand, &self.options.registry_address)
                {
                    let device = self.live.spoken(&device.device);
                    misfits.push(operator::Misfit { device, reasons, temporary: false });
                }
            }
        }
        if misfits.is_empty() { Ok(()) } else { Err(Error::Misfit(misfits)) }
    }

    /// What is wanted once the new devices are named. `None` when its package is gone, which the log says elsewhere.
    async fn renamed(&self, record: &DeploymentRecord, places: &Places) -> Result<Option<Wish>, Error> {
        let held = &record.deployment;
        let Some(entry) = self.entry(&held.package, &held.version).await? else { return Ok(None) };
        let mut deployment: Deployment = held.clone();
        let overrides = deployment.overrides.iter_mut().map(|other| &mut other.of);
        for targets in overrides.chain([&mut deployment.targets]) {
            let renamed = targets.devices.iter().map(|device| places.get(device).unwrap_or(device).clone());
            targets.devices = renamed.collect();
        }
        deployment.revision = held.revision.saturating_add(1);
        let previous = self.before(held, &entry).await?;
        Ok(Some(self.wish(deployment, entry, previous)))
    }

    async fn rename_targets(
        &self,
        mut record: DeploymentRecord,
        places: &Places,
        by: &str,
    ) -> Result<(), Error> {
        for attempt in 1.. {
            let Some(wish) = self.renamed(&record, places).await? else { return Ok(()) };
            let devices = self.store.devices_targeted(&wish.deployment.targets).await?;
            let (touched, misfits, rollouts) = match self.stopped_rollout(wish.deployment.id).await? {
                // Another name is no reason to set it going.
                Some(stopped) => (
                    Vec::new(),
                    Vec::new(),
                    vec![self.carry_over(stopped, &wish.deployment, &devices).await?],
                ),
                None => {
                    // Whoever takes a place goes on with what ran there, and all others keep what they have.
                    let is_open = self.is_under_way(wish.deployment.id).await?;
                    let wish = Wish { at_once: !is_open, ..wish.clone() };
                    let Decision { touched, misfits, rollouts, .. } =
                        self.decide(vec![(wish, devices)], &[], Vec::new()).await?;
                    (touched, misfits, rollouts)
                }
            };
            let name = wish.deployment.name.clone();
            let at = self.now();
            let text = format!("{name} names the devices that were moved by their new names");
            let publication = Publication {
                at,
                intents: vec![Intent::Put {
                    deployment: Box::new(wish.deployment),
                    seen: Some(record.deployment.revision),
                    by: by.to_owned(),
                }],
                misfits,
                rollouts,
                events: vec![NewEvent::new(at, "deployment.changed", by, text).deployment(&name)],
                ..Default::default()
            };
            match self.publish(publication, touched).await {
                Err(Unpublished::Moved) if attempt < ATTEMPTS_MAX => {
                    match self.store.deployment(&name).await?.filter(|found| !found.removed) {
                        Some(found) => record = found,
                        None => return Ok(()),
                    }
                }
                done => return Ok(done?),
            }
        }
        unreachable!("the last attempt returns")
    }
}
