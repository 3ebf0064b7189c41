//! A package of the catalog: what it is, what it needs and what it asks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::PackageWarning;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Package {
    pub id: String,
    pub version: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tagline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub organization: String,
    /// Path of the icon inside the package, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icon: Option<String>,
    /// Where it lives, as an OCI reference by digest.
    pub reference: String,
    pub added_at: String,
    pub added_by: String,
    pub profiles: Vec<PackageProfile>,
    /// The questions to answer before deploying, in the package's own sections.
    pub sections: Vec<PackageSection>,
    /// The images that its components name, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<PackageImage>,
    /// Why there may be images that are not in the list, and what to do about it; absent where all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images_unknown: Option<String>,
    /// Names of the deployments that use it.
    pub deployments: Vec<String>,
    /// What its registry no longer has as it was pinned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<PackageWarning>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageProfile {
    pub id: String,
    /// `compose`, `helm` or `custom`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What a device must have, a phrase each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    pub components: Vec<PackageComponent>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageComponent {
    pub name: String,
    pub repository: String,
    pub revision: String,
    /// The digest behind the revision when the package was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// An image that devices run by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageImage {
    /// As the Compose file says it; `${MARGRAVE_REGISTRY}` is the server's own registry.
    pub name: String,
    /// What every device runs under this name; absent where each runs what the name means there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Why it is not pinned, and what to do about it where something can be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpinned: Option<String>,
    /// Bytes to fetch by processor (`amd64`, `arm64`, `arm`), or for `any`; empty where they are not known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bytes: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageSection {
    pub name: String,
    pub settings: Vec<PackageSetting>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageSetting {
    pub parameter: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub data_type: String,
    pub required: bool,
    pub immutable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub default: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    pub multiselect: bool,
}

/// Adds a package that lies in a registry the server can reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddPackage {
    /// An OCI reference, `oci://host/path:tag` or `…@sha256:…`. The host `margrave` is the server's own registry.
    pub reference: String,
}
