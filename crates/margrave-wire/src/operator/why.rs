//! Why something is not as wanted, in the operator's REST.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why something is not as wanted: the last line of the chain is the one to act on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    pub subject: String,
    pub converged: bool,
    pub chain: Vec<Cause>,
    /// The devices that are not as wanted, by cause, those that a person has to see to first; of a deployment or a rollout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<CauseGroup>,
    /// How many devices were looked at for the groups, where those were not all that are not as wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<u64>,
}

impl Why {
    /// What is true of what was asked about: a device that a deployment is not meant for is not behind.
    pub fn verdict(&self) -> &'static str {
        match self.chain.last() {
            _ if self.converged => "as wanted",
            Some(cause) if cause.code == "not-targeted" => "no target",
            _ => "not as wanted",
        }
    }
}

/// What [`Why`] can be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhyKind {
    /// A device, or one deployment on it: `line-1`, `line-1/web`.
    #[default]
    Device,
    Deployment,
    Rollout,
    /// What is wanted as a whole: whether the server does what its repository says. It has no name.
    Intent,
}

impl WhyKind {
    pub fn as_str(self) -> &'static str {
        match self {
            WhyKind::Device => "device",
            WhyKind::Deployment => "deployment",
            WhyKind::Rollout => "rollout",
            WhyKind::Intent => "intent",
        }
    }
}

/// Devices that are not as wanted for the same cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CauseGroup {
    /// The last code of their chains.
    pub code: String,
    pub count: u64,
    /// There may be more of them: not all devices were looked at.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    /// One of them.
    pub example: String,
    /// A few others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// What is true of the first.
    pub text: String,
    /// Who has to do something: `patience` and `event` go on by themselves, `person` does not.
    pub needs: String,
    pub hint: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// Stable, for programs.
    pub code: String,
    pub text: String,
    /// What a person can do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
