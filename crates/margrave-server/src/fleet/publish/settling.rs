//! What follows for devices about which something changed: what they reported, how they are labelled, what room there is.
//!
//! A part of publishing. Nobody asked for anything here; what is wanted is as it was, and devices come to have it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use margrave_core::constraints::{Need, Promise};
use margrave_core::deployment::Deployment;
use margrave_core::id::{ClientId, DeploymentId, DeploymentName, DeviceRef};
use margrave_core::schedule::{Choice, Reach, effective};
use margrave_store::{Candidate, HeldAssignment, MisfitRecord, Publication, WantedAssignment};

use super::pacing::Pacing;
use super::{
    ATTEMPTS_MAX, Changes, Decision, KEEPS, Pictures, Placed, Stand, Unplaced, Unpublished, Wish, needs,
};
use crate::fleet::{Error, Fleet};

/// Devices that are settled in one transaction.
const SETTLED_TOGETHER_MAX: u32 = 500;

/// Which deployments devices were left out of.
pub(super) type Behind = BTreeSet<(DeploymentId, DeviceRef)>;

impl Fleet {
    /// Gives every device about which something changed what follows from that. Safe to call at any time.
    pub(in crate::fleet) async fn settle(&self) -> Result<(), Error> {
        if self.desired.is_returning() || self.store.devices_unsettled(1).await?.is_empty() {
            return Ok(());
        }
        let _deciding = self.deciding.write().await;
        let mut attempt = 0;
        loop {
            let devices = self.store.devices_unsettled(SETTLED_TOGETHER_MAX).await?;
            if devices.is_empty() {
                return Ok(());
            }
            let candidates: Vec<Candidate> = devices.iter().map(Candidate::from).collect();
            let (wishes, pacing) = (self.wishes().await?, self.pacing(&candidates).await?);
            let clients = candidates.iter().map(|candidate| candidate.device.client.clone()).collect();
            let pictures = self.pictures(clients).await?;
            let behind = self.behind(&candidates).await?;
            let Decision { touched, misfits, rollouts, .. } =
                Box::pin(self.decide_devices(&candidates, &wishes, pictures, pacing, &behind)).await?;
            let settled = devices.into_iter().map(|record| (record.device, record.unsettled)).collect();
            let publication =
                Publication { at: self.now(), misfits, settled, rollouts, ..Default::default() };
            match self.publish(publication, touched).await {
                Ok(()) => {
                    attempt = 0;
                    self.rollouts_may_move();
                }
                Err(Unpublished::Moved) if attempt < ATTEMPTS_MAX => attempt += 1,
                Err(unpublished) => return Err(unpublished.into()),
            }
        }
    }

    /// What was asked is done and durable; that the rest follows later is no reason to refuse it.
    pub(in crate::fleet) async fn settle_or_log(&self) {
        if let Err(error) = self.settle().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "devices could not be settled; will try again"
            );
        }
    }

    /// What these devices were left out of so far.
    pub(super) async fn behind(&self, devices: &[Candidate]) -> Result<Behind, Error> {
        let devices = devices.iter().map(|device| device.device.clone()).collect();
        Ok(self.store.left_out(devices).await?)
    }

    /// What a deployment wanted at an earlier revision, if it can still be had; kept in `wished`, once it was looked up.
    async fn earlier<'a>(
        &self,
        wished: &'a mut BTreeMap<DeploymentId, Option<Wish>>,
        deployment: &Deployment,
        revision: u64,
    ) -> Result<Option<&'a Wish>, Error> {
        if let Entry::Vacant(vacant) = wished.entry(deployment.id) {
            let found = self.store.revision(&deployment.name, revision).await?;
            let wish = match found.filter(|found| !found.removed).map(|found| found.deployment) {
                Some(earlier) => match self.entry(&earlier.package, &earlier.version).await {
                    Ok(entry) => entry.map(|entry| self.wish(earlier, entry, None)),
                    Err(Error::Invalid(_)) => None,
                    Err(error) => return Err(error),
                },
                None => None,
            };
            vacant.insert(wish);
        }
        Ok(wished.get(&deployment.id).and_then(Option::as_ref))
    }

    /// What an assignment takes of its device that nobody wants at the moment. What nobody can read takes nothing.
    async fn need_of(&self, held: &HeldAssignment) -> Result<Option<Arc<Need>>, Error> {
        match self.entry(&held.package, &held.version).await {
            Ok(entry) => Ok(entry.and_then(|entry| entry.needs.get(&held.profile).cloned())),
            Err(Error::Invalid(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What all deployments mean for devices about which something changed.
    ///
    /// What a device has already it keeps for as long as it is meant to have it: a device that reports less than
    /// before (its engine is down, its disk nearly full) must not lose what it runs because of that. What it was left out of
    /// while it kept an earlier form (`behind`), it gets once it fits.
    pub(super) async fn decide_devices(
        &self,
        devices: &[Candidate],
        wishes: &[Wish],
        pictures: Pictures,
        mut pacing: Pacing,
        behind: &Behind,
    ) -> Result<Decision, Error> {
        let choices: Vec<(Reach, Choice)> =
            self.store.schedules().await?.into_iter().map(|record| (record.reach, record.choice)).collect();
        let promises = self.promises(&pictures, wishes.iter().map(|wish| &wish.entry)).await?;
        let mut changes: BTreeMap<ClientId, Changes> = BTreeMap::new();
        let mut misfits = Vec::new();
        let mut wished = BTreeMap::new();
        for device in devices {
            // Also without any wish: what its manifest still lists may be meant for nobody any more.
            let changed = changes.entry(device.device.client.clone()).or_default();
            // A child speaks through its gateway, whose schedule counts.
            if !device.device.device.is_child()
                && let Some(picture) = pictures.0.get(&device.device.client)
            {
                let schedule = effective(&choices, &device.device, &device.labels);
                changed.schedule = (schedule != *picture.manifest.schedule()).then_some(schedule);
            }
            let keeps = |wish: &Wish| {
                let id = device.assignment_id(wish.deployment.id);
                let held = pictures.held(&device.device, id).is_some_and(|held| held.wanted);
                let targeted = wish.deployment.targets.matches(&device.device, &device.labels);
                held && targeted && device.capabilities.is_some()
            };
            // Of what it has only that counts which it keeps; each that comes in counts for those after it.
            let mut stand = Stand { promised: promises.on(&device.device), ..Stand::default() };
            let kept: BTreeSet<&DeploymentName> =
                wishes.iter().filter(|wish| keeps(wish)).map(|wish| &wish.deployment.name).collect();
            stand.promised.retain(|promise| kept.contains(&promise.to));
            for wish in wishes {
                let deployment = &wish.deployment;
                let id = device.assignment_id(deployment.id);
                let held = pictures.held(&device.device, id).filter(|held| held.wanted);
                let targeted = deployment.targets.matches(&device.device, &device.labels);
                // What it has from before it was retired.
                let had = pictures.left_behind(&device.device, id).filter(|_| targeted);
                let mut reasons = Vec::new();
                let mut temporary = false;
                if kept.contains(&deployment.name) {
                    let is_behind = behind.contains(&(deployment.id, device.device.clone()));
                    // Other labels may mean other answers, and what did not fit may fit by now. Nothing else is a reason to make
                    // a document anew: a secret or an address of ours that changed would go out without anybody's asking.
                    let own = held.and_then(|held| promises.need(held).cloned());
                    let profile = held.map(|held| held.profile.clone());
                    let mut promised = stand.promised.clone();
                    promised.retain(|promise| promise.to != deployment.name);
                    let fixed = held.and_then(|held| wish.fixed(held));
                    let others = Stand { held: profile, own, fixed, promised };
                    let is_other = held.is_some_and(|held| wish.answers_otherwise(device, held));
                    if is_behind || is_other {
                        let made = held.and_then(revision_of);
                        match wish.place(device, &others, &self.options.registry_address) {
                            Ok(placed) if !needs(held, &placed) => {}
                            Ok(_) if is_behind && pacing.joins(deployment.id, &device.device, made) => {}
                            Ok(_) if pacing.waits(deployment.id, &device.device) => {}
                            Ok(placed) => {
                                changes.entry(device.device.client.clone()).or_default().wanted.push(placed)
                            }
                            // Of what was made before its answers were remembered nobody knows whether they are others.
                            Err(_) if !is_behind && held.is_some_and(|held| held.basis.is_none()) => {}
                            Err(unplaced) => {
                                reasons = unplaced.reasons();
                                reasons.push(KEEPS.to_owned());
                            }
                        }
                    }
                } else if let Some(had) = had
                    && pacing.joins(deployment.id, &device.device, revision_of(had))
                {
                    // It was retired meanwhile: like others that wait it goes on with what it had.
                    let need = self.need_of(had).await?;
                    stand.promised.extend(need.map(|need| Promise { to: deployment.name.clone(), need }));
                    let again = wanted_again(deployment.id, had);
                    changes.entry(device.device.client.clone()).or_default().again.push(again);
                } else {
                    stand.fixed = had.and_then(|had| wish.fixed(had));
                    let placed = targeted
                        .then(|| wish.place(device, &stand, &self.options.registry_address))
                        .transpose();
                    stand.fixed = None;
                    let changes = changes.entry(device.device.client.clone()).or_default();
                    // What others have that wait for their turn, it has as well if that was meant for it.
                    let (mut earlier, mut until_then) = (None, None);
                    if matches!(placed, Ok(Some(_)))
                        && let Some(before) = pacing.before(deployment.id)
                        && let Some(wish) = self.earlier(&mut wished, deployment, before).await?
                        && wish.deployment.targets.matches(&device.device, &device.labels)
                    {
                        earlier = wish.place(device, &stand, &self.options.registry_address).ok();
                        let profile = earlier.as_ref().map(|placed| &placed.wanted.profile);
                        until_then = profile.and_then(|profile| wish.entry.needs.get(profile).cloned());
                    }
                    if let Ok(Some(Placed { wanted, .. })) = &placed
                        && let Some(need) = wish.entry.needs.get(&wanted.profile)
                    {
                        let need =
                            until_then.map_or_else(|| Arc::clone(need), |own| Arc::new(own.most(need)));
                        stand.promised.push(Promise { to: deployment.name.clone(), need });
                    }
                    let before = earlier.as_ref().and(pacing.before(deployment.id));
                    match (placed, had) {
                        (Ok(Some(_)), _) if pacing.joins(deployment.id, &device.device, before) => {
                            changes.wanted.extend(earlier);
                        }
                        (Ok(Some(placed)), _) => changes.wanted.push(placed),
                        (Err(Unplaced::Misfit(told)), Some(had)) => {
                            let need = self.need_of(had).await?;
                            stand
                                .promised
                                .extend(need.map(|need| Promise { to: deployment.name.clone(), need }));
                            changes.again.push(wanted_again(deployment.id, had));
                            reasons = told;
                            reasons.push(KEEPS.to_owned());
                        }
                        (Ok(None), _) => {
                            changes.dropped.extend(held.map(|held| held.id));
                            pacing.leave(deployment.id, &device.device);
                        }
                        (Err(unplaced), _) => {
                            changes.dropped.extend(held.map(|held| held.id));
                            temporary = unplaced.is_temporary();
                            reasons = unplaced.reasons();
                        }
                    }
                }
                misfits.push(MisfitRecord {
                    deployment: deployment.id,
                    device: device.device.clone(),
                    reasons,
                    temporary,
                });
            }
        }
        let touched = self.consider(pictures, changes).await?;
        let rollouts = pacing.changes();
        let (unfit, freed) = (BTreeSet::new(), BTreeSet::new());
        Ok(Decision {
            touched,
            misfits,
            unfit,
            forced: Vec::new(),
            freed,
            rollouts,
            paced: Vec::new(),
            later: Vec::new(),
        })
    }
}

/// The revision that an assignment's document was made of, where that is known.
fn revision_of(held: &HeldAssignment) -> Option<u64> {
    held.basis.as_ref().map(|basis| basis.revision)
}

/// The same document, for a device that has it.
fn wanted_again(deployment: DeploymentId, held: &HeldAssignment) -> WantedAssignment {
    let HeldAssignment { id, device, name, package, version, profile, wanted: _, document, basis } =
        held.clone();
    WantedAssignment { id, device, deployment, name, package, version, profile, document, basis }
}
