//! That a rollout holds a device back.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a rollout keeps what is wanted now from a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// `waiting` for its turn, or `left-behind` where the rollout was aborted before that came.
    pub word: String,
    /// The revision that it has not been given.
    pub revision: u64,
    /// The revision that it keeps meanwhile; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps: Option<u64>,
    /// The batch that it is in, counted from 1.
    pub batch: u32,
}
