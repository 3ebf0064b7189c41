//! What operators want of a fleet, in the operator's REST: deployments, what they were, and how they do.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::Assignment;
use crate::rollout::{Rollout, StrategyBody};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deployment {
    pub id: String,
    pub name: String,
    pub package: String,
    pub version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[schema(value_type = Object)]
    pub parameters: BTreeMap<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    pub targets: Targets,
    /// Why it is given also to devices that it does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<String>,
    #[serde(default)]
    pub rollback: Rollback,
    /// In which steps a change goes through the devices.
    #[serde(default)]
    pub strategy: StrategyBody,
    /// When its changes may begin on a device, like `sun 02:00-05:00 Europe/Berlin`, besides when the device may change at all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<String>,
    /// How far the newest revision came, where it goes in steps; only with the assignments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    pub revision: u64,
    /// The commit that made it so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    pub changed_at: String,
    pub changed_by: String,
    /// It was removed, and is shown until every device has said that it is gone.
    #[serde(default)]
    pub removing: bool,
    /// The devices that it is on, the first hundred; a list of deployments and the answer to a change leave them out and only
    /// count.
    #[serde(default)]
    pub assignments: Vec<Assignment>,
    /// Where `…/assignments` goes on, if there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    #[serde(default)]
    pub counts: AssignmentCounts,
    /// Targets that do not fit, and why; they were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub misfits: Vec<Misfit>,
    /// What somebody should know of it, and that is no reason to refuse it. A list of deployments leaves it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

/// What somebody should know of a deployment, and that is no reason to refuse it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Warning {
    pub deployment: String,
    /// Of its package `moved`, `gone`, `componentGone` or `imageGone`, as the catalog says it, or `imageUnpinned`; `secretInGit`; of an
    /// override `deviceUnknown`, `noTarget` or `noDevice`; of its strategy `allAtOnce` or `soakAfterAll`; of a way
    /// back `leftOut`; `more` counts those that are left out.
    pub kind: String,
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.deployment, self.text)
    }
}

/// On how many devices a deployment is, and how it does there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AssignmentCounts {
    pub total: u64,
    /// As wanted.
    pub converged: u64,
    pub pending: u64,
    pub failed: u64,
    /// Of those that failed, how many run their last good version again; their state is `INSTALLED`.
    #[serde(default)]
    pub went_back: u64,
    /// Of those that failed, how many their devices refuse: they will never have it, and nothing broke.
    #[serde(default)]
    pub never: u64,
    /// Of those that are pending, how many wait for their turn in a rollout.
    #[serde(default)]
    pub waiting: u64,
    /// Of those that are pending, how many are on devices that are not heard of, also where their turn has not come.
    #[serde(default)]
    pub not_yet: u64,
    /// Of those that are pending, how many a rollout left behind that was aborted.
    #[serde(default)]
    pub left_behind: u64,
    /// By state, such as `INSTALLED`; states that no device is in are left out. Those that wait for their turn are under `WAITING`, those
    /// that were left behind under `LEFT`, `never` under `NEVER` and `notYet` under `NOTYET`, whatever their state.
    pub states: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Targets {
    #[serde(default)]
    pub devices: Vec<String>,
    /// All pairs must match.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// An expression on labels, such as `site=nord, line in (1, 2), role!=spare, !retired`: all parts must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<String>,
    /// Devices whose label `site` is one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<String>,
}

/// Other answers for some of a deployment's devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Override {
    pub targets: Targets,
    #[schema(value_type = Object)]
    pub parameters: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Misfit {
    pub device: String,
    pub reasons: Vec<String>,
    /// It has not said yet what it is, and comes in by itself if it fits.
    #[serde(default)]
    pub temporary: bool,
}

/// Wanted: this package on those devices. A `PUT` to the deployment's name creates or changes it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutDeployment {
    pub package: String,
    /// The newest in the catalog when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Values, or where a secret is: an object `secret` with `env`, `file` or `sealed`.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Other answers for some of the devices; of each parameter the last that applies counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 200)]
    pub overrides: Vec<Override>,
    pub targets: Targets,
    /// Why it is to be given also to devices that it does not fit. Without a reason such devices are left out, and naming one is
    /// refused. What a device cannot run at all is never forced. It also lets through a package that is gone from its registry, and
    /// images that could be pinned and are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 500)]
    pub force: Option<String>,
    /// What devices do about an update that fails; stays as it is when left out.
    #[serde(default, deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// In which steps the change goes through the devices; stays as it is when left out, and `{}` is all at once.
    #[serde(default, deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub strategy: Option<StrategyBody>,
    /// When its changes may begin on a device, like `sun 02:00-05:00 Europe/Berlin`, besides when the device may change at all.
    /// Stays as it is when left out; an empty list is at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 32)]
    pub windows: Option<Vec<String>>,
    /// The revision that the writer saw; a change in between is answered 409. Left out, the last writer wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// An object, and no list of its members: serde would take both, and where every member may be missing the second says
/// nothing at all.
fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    let members: Option<serde_json::Map<String, serde_json::Value>> = Deserialize::deserialize(from)?;
    members.map(|members| serde_json::from_value(members.into()).map_err(D::Error::custom)).transpose()
}

/// What devices do about an update that fails. What is left out is as usual.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollback {
    /// `on-failed-update`, the usual: back to the last version that was healthy. Or `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// How often something is tried before it is given up: then devices go back or, where there is nothing to go back to, try
    /// nothing more. Without it an update is tried twice, and what has no way back for as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub attempts: Option<u32>,
    /// How long it may look unhealthy before it counts as failed; as a rule each device's own 10 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 86400)]
    pub health_grace_seconds: Option<u64>,
}

/// What a deployment was, from one change to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    pub revision: u64,
    pub changed_at: String,
    pub changed_by: String,
    /// What it changed, in a phrase each; empty when the revision before is not kept any more.
    pub changes: Vec<String>,
    /// It is what is wanted now.
    pub current: bool,
    /// The deployment was removed; the rest says what was wanted until then.
    pub removed: bool,
    /// The server made it by itself, and went back to this earlier one with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_to: Option<u64>,
    /// It never came to its end: the server went back from it, or another took its place half-way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
    /// How its rollout ended, where that never came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    pub package: String,
    pub version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[schema(value_type = Object)]
    pub parameters: BTreeMap<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    pub targets: Targets,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<String>,
    #[serde(default)]
    pub rollback: Rollback,
    /// The commit that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(default)]
    pub strategy: StrategyBody,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<String>,
}

/// Wanted: what a deployment was at an earlier revision. It becomes a new revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevertDeployment {
    /// The one to go back to.
    pub revision: u64,
}

/// Which devices a deployment would reach; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    pub fits: Vec<PreviewFit>,
    pub misfits: Vec<Misfit>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviewFit {
    pub device: String,
    /// The profile that this device would run.
    pub profile: String,
    /// It does not fit, and would get it because that is forced: what is in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub despite: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_an_object_or_left_out() {
        let read = |rollback: &str| {
            let body = format!(r#"{{"package":"p","targets":{{}}{rollback}}}"#);
            serde_json::from_str::<PutDeployment>(&body).map(|want| want.rollback)
        };
        for nothing in ["", r#","rollback":null"#] {
            assert_eq!(read(nothing).unwrap(), None);
        }
        assert_eq!(read(r#","rollback":{}"#).unwrap(), Some(Rollback::default()));
        assert_eq!(read(r#","rollback":{"attempts":3}"#).unwrap().unwrap().attempts, Some(3));
        for wrong in ["[]", "[null,null]", r#""never""#, "3", r#"{"attempts":-1}"#, r#"{"tries":3}"#] {
            assert!(read(&format!(r#","rollback":{wrong}"#)).is_err(), "{wrong}");
        }
    }
}
