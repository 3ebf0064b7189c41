//! A remote that says what is wanted, in the operator's REST.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a remote is followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Following {
    pub branch: String,
    /// About how often it is asked; less often while it gives no answer.
    pub every_seconds: u64,
    /// When it was last asked, whatever came of it; not since the server was started if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<String>,
    /// Whether it may be called for another look at once, by `POST /hooks/intent`.
    pub hook: bool,
}
