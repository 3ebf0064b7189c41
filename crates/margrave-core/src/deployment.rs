//! What an operator wants: a package, with answers, on some devices.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion, ProfileId};
use crate::parameters::Answers;
use crate::rollback::Rollback;
use crate::rollout::Strategy;
use crate::schedule::Weekly;
use crate::selector::{Part, Selector};

#[derive(Debug, Clone, PartialEq)]
pub struct Deployment {
    pub id: DeploymentId,
    pub name: DeploymentName,
    pub package: PackageId,
    pub version: PackageVersion,
    /// `None` lets each device take the first profile that fits it.
    pub profile: Option<ProfileId>,
    pub answers: Answers,
    /// Other answers for some of the devices; of each parameter the last that applies counts.
    pub overrides: Vec<Override>,
    pub targets: Targets,
    /// Why it is given also to devices that it does not fit, by whoever decided so.
    pub forced: Option<String>,
    /// What devices do about an update that fails.
    pub rollback: Rollback,
    /// In which steps a change goes through the devices.
    pub strategy: Strategy,
    /// When its changes may begin, where that is not at any time; the windows of each device count besides.
    pub windows: Vec<Weekly>,
    /// Grows by one with every change; a writer names the revision it saw, so that changes never lose one another.
    pub revision: u64,
}

/// What counts for deployments that say nothing of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Defaults {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
}

impl Defaults {
    /// All at once where nothing is chosen.
    pub fn strategy(&self) -> Strategy {
        self.strategy.clone().unwrap_or_default()
    }

    pub fn rollback(&self) -> Rollback {
        self.rollback.unwrap_or_default()
    }
}

/// Which devices: those named, and those whose labels match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    pub devices: BTreeSet<DeviceRef>,
    /// All pairs must match; an empty selector matches nothing, so that nobody deploys to a whole fleet by leaving something out.
    pub labels: BTreeMap<String, String>,
    /// An expression that matches as well.
    pub select: Selector,
    /// Everything at these sites: devices whose label [`SITE`] is one of them.
    pub sites: BTreeSet<String>,
}

/// The label that says at which site a device is.
pub const SITE: &str = "site";

impl Targets {
    pub fn matches(&self, device: &DeviceRef, labels: &BTreeMap<String, String>) -> bool {
        let by_label =
            !self.labels.is_empty() && self.labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        let by_site = || labels.get(SITE).is_some_and(|site| self.sites.contains(site));
        by_label || self.select.matches(labels) || by_site() || self.devices.contains(device)
    }

    /// Whether labels say nothing of who is meant.
    pub fn is_by_name(&self) -> bool {
        self.labels.is_empty() && self.select.is_empty() && self.sites.is_empty()
    }

    /// The labels that decide whether a device matches; of the others nothing has to be known.
    pub fn keys(&self) -> BTreeSet<&str> {
        let selected = self.select.parts().iter().map(Part::key);
        let site = (!self.sites.is_empty()).then_some(SITE);
        self.labels.keys().map(String::as_str).chain(selected).chain(site).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.is_by_name()
    }
}

/// Other answers for some of a deployment's devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    pub of: Targets,
    pub answers: Answers,
}

/// An override that says something of devices which the deployment does not reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idle {
    /// Which one, from 0.
    pub index: usize,
    /// Devices that it names, and that are no targets.
    pub devices: Vec<DeviceRef>,
    /// Nobody at all is answered by it.
    pub is_nobodys: bool,
}

impl Deployment {
    /// Overrides that have something to say to nobody, or to devices that are not among those that are `reached`.
    pub fn idle_overrides<'a>(
        &self,
        reached: impl IntoIterator<Item = (&'a DeviceRef, &'a BTreeMap<String, String>)>,
    ) -> Vec<Idle> {
        // Of each override the devices that are named and were not met yet, and whether anybody is answered by it.
        let mut unmet: Vec<(BTreeSet<&DeviceRef>, bool)> =
            self.overrides.iter().map(|other| (other.of.devices.iter().collect(), true)).collect();
        for (device, labels) in reached {
            for ((named, is_nobodys), other) in unmet.iter_mut().zip(&self.overrides) {
                if named.remove(device) {
                    *is_nobodys = false;
                } else if *is_nobodys {
                    *is_nobodys = !other.of.matches(device, labels);
                }
            }
        }
        let idle = (0..).zip(unmet).map(|(index, (named, is_nobodys))| Idle {
            index,
            devices: named.into_iter().cloned().collect(),
            is_nobodys,
        });
        idle.filter(|idle| idle.is_nobodys || !idle.devices.is_empty()).collect()
    }

    /// Whether a device's labels say what is answered for it.
    pub fn has_answers_by_label(&self) -> bool {
        self.overrides.iter().any(|other| !other.of.is_by_name())
    }

    /// The answers for one device: the deployment's own, and what was answered otherwise for it.
    pub fn answers_for(&self, device: &DeviceRef, labels: &BTreeMap<String, String>) -> Cow<'_, Answers> {
        let mut answers = Cow::Borrowed(&self.answers);
        for other in self.overrides.iter().filter(|other| other.of.matches(device, labels)) {
            let others = other.answers.iter().map(|(name, value)| (name.clone(), value.clone()));
            answers.to_mut().extend(others);
        }
        answers
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
    fn a_device_is_targeted_by_expression_or_by_site_and_may_be_answered_otherwise() {
        let device = DeviceRef::parse("line-1").unwrap();
        let given = labels(&[("site", "nord"), ("line", "1")]);
        let by_site = Targets { sites: ["nord".to_owned()].into(), ..Default::default() };
        assert!(by_site.matches(&device, &given) && !by_site.matches(&device, &labels(&[("line", "1")])));
        let by_expression = Targets { select: "line in (1, 2)".parse().unwrap(), ..Default::default() };
        assert!(by_expression.matches(&device, &given));
        let answer = |text: &str| {
            let name = crate::id::ParameterName::parse("greeting").unwrap();
            Answers::from([(name, crate::parameters::ParameterValue::Text(text.to_owned()).into())])
        };
        let deployment = Deployment {
            id: DeploymentId::from_uuid(uuid::Uuid::nil()),
            name: DeploymentName::parse("web").unwrap(),
            package: PackageId::parse("web").unwrap(),
            version: PackageVersion::parse("1").unwrap(),
            profile: None,
            answers: answer("all"),
            overrides: vec![
                Override { of: by_site, answers: answer("nord") },
                Override { of: by_expression, answers: answer("line") },
            ],
            targets: Targets::default(),
            forced: None,
            rollback: Rollback::default(),
            strategy: Strategy::default(),
            windows: Vec::new(),
            revision: 1,
        };
        assert_eq!(*deployment.answers_for(&device, &given), answer("line"), "the last counts");
        assert_eq!(*deployment.answers_for(&device, &labels(&[("site", "nord")])), answer("nord"));
        assert_eq!(*deployment.answers_for(&device, &labels(&[])), answer("all"));

        let other = DeviceRef::parse("line-2").unwrap();
        let named = Targets { devices: [device.clone(), other.clone()].into(), ..Default::default() };
        let overrides =
            [deployment.overrides.clone(), vec![Override { of: named, answers: answer("x") }]].concat();
        let deployment = Deployment { overrides, ..deployment };
        let idle = |index, devices: &[&DeviceRef], is_nobodys| Idle {
            index,
            devices: devices.iter().copied().cloned().collect(),
            is_nobodys,
        };
        assert_eq!(deployment.idle_overrides([(&device, &given)]), [idle(2, &[&other], false)]);
        let south = labels(&[("site", "sued"), ("line", "2")]);
        assert_eq!(
            deployment.idle_overrides([(&other, &south)]),
            [idle(0, &[], true), idle(2, &[&device], false)]
        );
        assert_eq!(deployment.idle_overrides([]).len(), 3);
    }

    #[test]
    fn an_empty_selector_matches_nothing() {
        let device = DeviceRef::parse("line-1").unwrap();
        assert!(!Targets::default().matches(&device, &labels(&[("a", "b")])));
    }
}
