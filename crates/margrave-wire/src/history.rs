//! Bodies of the operator interface about earlier moments: what was wanted, what devices said, and what lies between two of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::intent::Commit;

/// The fleet as it was wanted at a moment, and as it was reported by then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetThen {
    pub at: String,
    /// The commit that was wanted then.
    pub commit: Commit,
    pub packages: u64,
    pub deployments: Vec<DeploymentThen>,
    /// Reports from before this are not kept; absent when there are none at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports_since: Option<String>,
}

/// One deployment at that moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentThen {
    pub name: String,
    /// Package and version; absent for one that was not wanted any more, and that devices still had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Wanted>,
    /// How many devices had last said which state: `{"INSTALLED": 3}`. Those that said nothing are in none of them.
    pub reported: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    pub package: String,
    pub version: String,
}

/// What lies between two moments of what was wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    pub from: Commit,
    pub to: Commit,
    /// Files that differ, by path.
    pub files: Vec<FileDifference>,
    /// So many more differ and are not listed.
    pub more: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileDifference {
    pub path: String,
    /// Absent when there was no such file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Absent when the file went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// One commit and what it changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommitDetail {
    pub commit: Commit,
    pub files: Vec<FileDifference>,
    /// So many more were changed and are not listed.
    pub more: u64,
}
