//! What follows from a decision once it is published, without publishing it: what settles by itself on devices that have other
//! labels or more room, decided by the same code from the pictures as they would be.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::id::{DeploymentId, DeviceRef};
use margrave_store::{Candidate, HeldAssignment, WantedAssignment};

use super::{Decision, Pictures, Wish};
use crate::fleet::{Error, Fleet};

impl Pictures {
    /// As they are once a decision is published.
    fn after(&mut self, decision: &Decision) {
        for touched in &decision.touched {
            let Some(picture) = self.0.get_mut(&touched.picture.client) else { continue };
            for held in &mut picture.assignments {
                if touched.changes.dropped.contains(&held.id) {
                    held.wanted = false;
                }
            }
            for placed in &touched.changes.wanted {
                let WantedAssignment { id, device, name, package, version, profile, document, basis, .. } =
                    placed.wanted.clone();
                picture.assignments.retain(|held| held.id != id);
                let wanted = true;
                picture.assignments.push(HeldAssignment {
                    id,
                    device,
                    name,
                    package,
                    version,
                    profile,
                    wanted,
                    document,
                    basis,
                });
            }
        }
    }
}

impl Fleet {
    /// What settles by itself after `decision` about the deployments `decided`, where `wishes` are all that is wanted then, and
    /// `labels` those that devices are about to have. Also tells which devices were looked at.
    pub(in crate::fleet) async fn foresee_settling(
        &self,
        decision: &Decision,
        decided: &BTreeSet<DeploymentId>,
        wishes: &[Wish],
        labels: &BTreeMap<DeviceRef, BTreeMap<String, String>>,
    ) -> Result<(Decision, Vec<DeviceRef>), Error> {
        let mut devices = self.store.devices_short(decision.freed.iter().cloned().collect()).await?;
        let left_out =
            decision.misfits.iter().filter(|misfit| !misfit.temporary).map(|misfit| &misfit.device);
        devices.extend(left_out.filter(|device| decision.freed.contains(device)).cloned());
        devices.extend(labels.keys().cloned());
        let mut candidates: Vec<Candidate> = Vec::new();
        if !devices.is_empty() {
            let meant = margrave_core::deployment::Targets {
                devices: devices.into_iter().collect(),
                ..Default::default()
            };
            candidates = self.store.devices_targeted(&meant).await?;
        }
        for candidate in &mut candidates {
            if let Some(labels) = labels.get(&candidate.device) {
                candidate.labels = labels.clone();
            }
        }
        let clients = candidates.iter().map(|candidate| candidate.device.client.clone()).collect();
        let mut pictures = self.pictures(clients).await?;
        pictures.after(decision);
        let mut pacing = self.pacing(&candidates).await?;
        pacing.begin(&decision.rollouts);
        // Who is left out by the decision itself is so from then on, and whoever is not is not any more.
        let mut behind = self.behind(&candidates).await?;
        behind.retain(|(deployment, _)| !decided.contains(deployment));
        behind.extend(decision.misfits.iter().map(|misfit| (misfit.deployment, misfit.device.clone())));
        let settled = self.decide_devices(&candidates, wishes, pictures, pacing, &behind).await?;
        Ok((settled, candidates.into_iter().map(|candidate| candidate.device).collect()))
    }
}
