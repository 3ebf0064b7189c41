//! Sealing a secret, so that it can stand in a file.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A value to seal for one parameter of one deployment.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SealSecret {
    /// The deployment that it is for; there need not be one yet. Elsewhere it does not open.
    pub deployment: String,
    pub parameter: String,
    #[schema(min_length = 1, max_length = 65536)]
    pub value: String,
}

impl fmt::Debug for SealSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SealSecret { deployment, parameter, value: _ } = self;
        let mut shown = f.debug_struct("SealSecret");
        shown.field("deployment", deployment).field("parameter", parameter).finish_non_exhaustive()
    }
}

/// What stands in a file instead of the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SealedSecret {
    pub secret: SealedText,
    /// Why it may open nowhere: nothing is called so yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SealedText {
    pub sealed: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_sealed_is_not_printed() {
        let want =
            SealSecret { deployment: "web".into(), parameter: "password".into(), value: "hunter2".into() };
        assert!(!format!("{want:?} {want:#?}").contains("hunter2"));
    }
}
