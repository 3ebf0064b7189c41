//! What is wanted, as files.

use std::collections::BTreeMap;

use margrave_core::deployment::{Defaults, Deployment, SITE, Targets};
use margrave_core::id::DeviceRef;
use margrave_core::schedule::{Choice, Reach};
use margrave_store::PackageRecord;
use margrave_wire::operator;
use margrave_wire::resource::{
    DeploymentFile, DeploymentSpec, DeviceFile, DeviceSpec, FleetFile, FleetSpec, LabelSchedule, PackageFile,
    Resource,
};
use margrave_wire::rollout::StrategyBody;
use margrave_wire::schedule::ScheduleBody;

use super::super::view::{shown_answers, shown_rollback, shown_windows};

/// Devices by their whole names: what they are called in short may change with who else is there.
fn targets(targets: &Targets) -> operator::Targets {
    let Targets { devices, labels, select, sites } = targets.clone();
    operator::Targets {
        devices: devices.iter().map(DeviceRef::to_string).collect(),
        labels,
        select: (!select.is_empty()).then(|| select.to_string()),
        sites: sites.into_iter().collect(),
    }
}

/// What is as usual for the whole fleet is not said again, so that it follows when that changes.
pub(in crate::fleet) fn deployment(deployment: &Deployment, defaults: &Defaults) -> Resource {
    let overrides = deployment.overrides.iter().map(|other| operator::Override {
        targets: targets(&other.of),
        parameters: shown_answers(other.answers.clone()),
    });
    let spec = DeploymentSpec {
        package: deployment.package.to_string(),
        version: deployment.version.to_string(),
        profile: deployment.profile.as_ref().map(ToString::to_string),
        parameters: shown_answers(deployment.answers.clone()),
        overrides: overrides.collect(),
        targets: targets(&deployment.targets),
        rollback: (deployment.rollback != defaults.rollback()).then(|| shown_rollback(deployment.rollback)),
        strategy: (deployment.strategy != defaults.strategy())
            .then(|| StrategyBody::from(&deployment.strategy)),
        windows: shown_windows(&deployment.windows),
        force: deployment.forced.clone(),
    };
    let id = deployment.id.to_string();
    Resource::Deployment(DeploymentFile::new(deployment.name.to_string(), Some(id), spec))
}

pub(in crate::fleet) fn package(record: &PackageRecord) -> Resource {
    let PackageRecord { id, version, reference, images, .. } = record;
    let images = images.all_pins().into_iter().map(|(name, digest)| (name, digest.to_string())).collect();
    Resource::Package(PackageFile::new(id.to_string(), version.to_string(), reference.clone(), images))
}

/// Nothing when there is nothing to say.
pub(in crate::fleet) fn device(
    device: &DeviceRef,
    labels: Option<&BTreeMap<String, String>>,
    choice: Option<&Choice>,
) -> Option<Resource> {
    if labels.is_none() && choice.is_none() {
        return None;
    }
    let mut labels = labels.cloned();
    let site = labels.as_mut().and_then(|labels| labels.remove(SITE));
    let spec = DeviceSpec { site, labels, schedule: choice.map(ScheduleBody::from) };
    Some(Resource::Device(DeviceFile::new(device.to_string(), spec)))
}

/// Everybody's file, always there: whoever looks for what can be set finds where.
pub(in crate::fleet) fn fleet(choices: &BTreeMap<Reach, Choice>, defaults: &Defaults) -> Resource {
    let mut spec = FleetSpec {
        strategy: defaults.strategy.as_ref().map(StrategyBody::from),
        rollback: defaults.rollback.map(shown_rollback),
        ..FleetSpec::default()
    };
    for (reach, choice) in choices {
        let schedule = ScheduleBody::from(choice);
        match reach {
            Reach::Fleet => spec.schedule = Some(schedule),
            Reach::Label(key, value) => {
                spec.labels.push(LabelSchedule { label: format!("{key}={value}"), schedule })
            }
            Reach::Device(_) => {}
        }
    }
    Resource::Fleet(FleetFile::new(spec))
}

/// The comment that a person put at the head of a file stays when a change rewrites the rest.
pub(in crate::fleet) fn under_comment(before: Option<&[u8]>, resource: &Resource) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in before.unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
        if !line.starts_with(b"#") {
            break;
        }
        bytes.extend_from_slice(line);
    }
    if bytes.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
    }
    bytes.extend_from_slice(&resource.write());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_at_the_head_outlives_a_change() {
        let resource = fleet(&BTreeMap::new(), &Defaults::default());
        let before = b"# Ours.\n# Ask Ann.\nkind: Fleet\n# inside\n";
        let after = under_comment(Some(before), &resource);
        assert!(
            after.starts_with(b"# Ours.\n# Ask Ann.\napiVersion: margrave/v1\n"),
            "{}",
            String::from_utf8_lossy(&after)
        );
        assert!(margrave_wire::resource::read("fleet.yaml", &after).is_ok());
        assert_eq!(under_comment(None, &resource), resource.write());
    }
}
