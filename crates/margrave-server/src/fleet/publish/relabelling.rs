//! What devices lose by their labels, together with what they are given by the same change.
//!
//! A part of publishing. Everything else that follows from other labels is settled afterwards; but what leaves a device must not be
//! in the way of what comes with the same change.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::deployment::Targets;
use margrave_core::id::{DeploymentId, DeploymentName, DeviceRef};
use margrave_store::HeldAssignment;

use crate::fleet::{Error, Fleet};

impl Fleet {
    /// What devices have that is not meant for them any more with the labels that they are about to have. What is `decided` about
    /// by the change itself is not among it.
    pub(in crate::fleet) async fn leaving(
        &self,
        labels: &BTreeMap<DeviceRef, BTreeMap<String, String>>,
        decided: &BTreeSet<DeploymentId>,
    ) -> Result<Vec<HeldAssignment>, Error> {
        if labels.is_empty() {
            return Ok(Vec::new());
        }
        let staying = self.store.deployments().await?.into_iter().filter(|record| !record.removed);
        let staying = staying.map(|record| record.deployment).filter(|wanted| !decided.contains(&wanted.id));
        let staying: BTreeMap<DeploymentName, Targets> =
            staying.map(|wanted| (wanted.name, wanted.targets)).collect();
        let pictures = self.pictures(labels.keys().map(|device| device.client.clone()).collect()).await?;
        let held = pictures.0.into_values().flat_map(|picture| picture.assignments);
        let leaves = |held: &HeldAssignment| {
            let (Some(labels), Some(targets)) = (labels.get(&held.device), staying.get(&held.name)) else {
                return false;
            };
            held.wanted && !targets.matches(&held.device, labels)
        };
        Ok(held.filter(leaves).collect())
    }
}
