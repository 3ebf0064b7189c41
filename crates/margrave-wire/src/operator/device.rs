//! What is asked of a device itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Somebody at a device, an application on it, or an operator holds changes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    pub holder: String,
    pub reason: String,
    pub since: String,
    pub until: String,
}

/// A device that cannot look at its containers, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CannotLook {
    pub since: String,
    pub message: String,
}

/// Changes on a device are to wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HoldDevice {
    /// Why, on one line; the device and everybody who waits for it are told.
    #[schema(min_length = 1, max_length = 200)]
    pub reason: String,
    /// For how long; the device's schedule may allow less than a day.
    #[schema(minimum = 1)]
    pub seconds: u64,
}

/// A fresh look that an operator asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Look {
    pub at: String,
    pub by: String,
    /// Whether the device has looked and said how everything stands.
    pub done: bool,
}
