//! What an operator wants: a package, with answers, on some devices.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion, ProfileId};
use crate::parameters::Answers;
use crate::rollback::Rollback;
use crate::rollout::Strategy;

#[derive(Debug, Clone, PartialEq)]
pub struct Deployment {
    pub id: DeploymentId,
    pub name: DeploymentName,
    pub package: PackageId,
    pub version: PackageVersion,
    /// `None` lets each device take the first profile that fits it.
    pub profile: Option<ProfileId>,
    pub answers: Answers,
    pub targets: Targets,
    /// What devices do about an update that fails.
    pub rollback: Rollback,
    /// In which steps a change goes through the devices.
    pub strategy: Strategy,
    /// Grows by one with every change; a writer names the revision it saw, so that changes never lose one another.
    pub revision: u64,
}

/// Which devices: those named, and those whose labels match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    pub devices: BTreeSet<DeviceRef>,
    /// All pairs must match; an empty selector matches nothing, so that nobody deploys to a whole fleet by leaving something out.
    pub labels: BTreeMap<String, String>,
}

impl Targets {
    pub fn matches(&self, device: &DeviceRef, labels: &BTreeMap<String, String>) -> bool {
        let by_label =
            !self.labels.is_empty() && self.labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        by_label || self.devices.contains(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn a_device_is_targeted_by_name_or_by_all_labels() {
        let device = DeviceRef::parse("line-1").unwrap();
        let named = Targets { devices: [device.clone()].into(), ..Default::default() };
        assert!(named.matches(&device, &labels(&[])));
        let labelled = Targets { labels: labels(&[("site", "nord"), ("line", "1")]), ..Default::default() };
        assert!(labelled.matches(&device, &labels(&[("site", "nord"), ("line", "1"), ("x", "y")])));
        assert!(!labelled.matches(&device, &labels(&[("site", "nord")])));
    }

    #[test]
    fn an_empty_selector_matches_nothing() {
        let device = DeviceRef::parse("line-1").unwrap();
        assert!(!Targets::default().matches(&device, &labels(&[("a", "b")])));
    }
}
