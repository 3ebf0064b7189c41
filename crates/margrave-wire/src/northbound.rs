//! Bodies of the northbound interface of the Margo project's sandbox, as far as they mean something here.
//!
//! The standard does not define that interface, and its members that we have no use for are passed over. Everything is
//! translated into `operator` and back; nothing is kept in these words.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where the sandbox has it.
pub const PREFIX: &str = "/non-margo/wfm-nbi/api/v0";
const API_VERSION: &str = "non-margo.org";

#[derive(Debug, Clone, Deserialize)]
pub struct AppPackageRequest {
    pub spec: AppPackageSpec,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppPackageSpec {
    /// `OCI_REPO`.
    pub source_type: String,
    pub source: OciRepo,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OciRepo {
    pub registry_url: String,
    pub repository: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, skip_serializing)]
    pub authentication: Option<Authentication>,
}

/// Only whether there is any: what it says is never read.
#[derive(Debug, Clone, Deserialize)]
pub struct Authentication {
    #[serde(rename = "type")]
    pub kind: String,
}

impl OciRepo {
    /// As an OCI reference.
    pub fn reference(&self) -> String {
        let host = ["oci://", "https://"].iter().find_map(|scheme| self.registry_url.strip_prefix(scheme));
        let host = host.unwrap_or(&self.registry_url).trim_end_matches('/');
        let place = format!("oci://{host}/{}", self.repository.trim_matches('/'));
        match (&self.digest, &self.tag) {
            (Some(digest), _) => format!("{place}@{digest}"),
            (None, Some(tag)) => format!("{place}:{tag}"),
            (None, None) => format!("{place}:latest"),
        }
    }

    /// From a reference by digest.
    pub fn of(reference: &str) -> OciRepo {
        let place = reference.strip_prefix("oci://").unwrap_or(reference);
        let (place, digest) = place.split_once('@').unwrap_or((place, ""));
        let (host, repository) = place.split_once('/').unwrap_or((place, ""));
        // A tag may stand between the two.
        let repository = repository.split_once(':').map_or(repository, |(repository, _)| repository);
        OciRepo {
            registry_url: format!("oci://{host}"),
            repository: repository.to_owned(),
            tag: None,
            digest: (!digest.is_empty()).then(|| digest.to_owned()),
            authentication: None,
        }
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppPackage {
    pub api_version: &'static str,
    pub id: String,
    pub metadata: Metadata,
    pub spec: AppPackageSpec,
    pub status: Status,
    pub recent_operation: Operation,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contextual_info: Option<ContextualInfo>,
    pub last_update_time: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct ContextualInfo {
    pub message: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct Operation {
    pub op: &'static str,
    pub status: &'static str,
}

impl AppPackage {
    pub fn new(id: String, name: String, reference: &str, added_at: &str) -> AppPackage {
        AppPackage {
            api_version: API_VERSION,
            id,
            metadata: Metadata { name, creation_timestamp: Some(added_at.to_owned()), ..Metadata::default() },
            spec: AppPackageSpec { source_type: "OCI_REPO".to_owned(), source: OciRepo::of(reference) },
            status: Status {
                state: "ONBOARDED",
                contextual_info: None,
                last_update_time: added_at.to_owned(),
            },
            recent_operation: Operation { op: "ONBOARD", status: "COMPLETED" },
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct AppDeploymentRequest {
    pub metadata: Named,
    pub spec: AppDeploymentSpec,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Named {
    pub name: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppDeploymentSpec {
    pub app_package_ref: PackageRef,
    #[serde(default)]
    pub device_ref: DeviceRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_profile: Option<Profile>,
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PackageRef {
    pub id: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeviceRef {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Profile {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub components: Vec<Component>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Component {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub properties: Option<Properties>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Properties {
    pub repository: String,
    pub revision: String,
}

/// Where a value goes is the package's to say, so targets are not read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Parameter {
    pub value: Value,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppDeployment {
    pub id: String,
    pub metadata: Metadata,
    pub spec: AppDeploymentSpec,
    pub status: Status,
    pub recent_operation: Operation,
}

#[derive(Debug, Clone, Serialize)]
pub struct Device {
    pub id: String,
    pub metadata: Metadata,
    /// `true`, `false` or `unknown`.
    pub eligible: &'static str,
    pub spec: DeviceSpec,
    pub state: DeviceState,
}

#[derive(Debug, Clone, Serialize)]
pub struct DeviceSpec {
    pub signature: String,
    pub capabilities: Value,
}

#[derive(Debug, Clone, Serialize)]
pub struct DeviceState {
    pub onboard: &'static str,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    pub api_version: &'static str,
    pub metadata: Pagination,
    pub items: Vec<T>,
}

/// Where there is more, the id of the last item goes on as `continue`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pagination {
    #[serde(rename = "continue")]
    pub more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_item_count: Option<usize>,
}

impl<T> List<T> {
    pub fn new(items: Vec<T>, more: bool, remaining_item_count: Option<usize>) -> List<T> {
        List { api_version: API_VERSION, metadata: Pagination { more, remaining_item_count }, items }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_becomes_a_reference_and_back() {
        let repo = |registry: &str, tag: Option<&str>, digest: Option<&str>| OciRepo {
            registry_url: registry.to_owned(),
            repository: "library/app".to_owned(),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
            authentication: None,
        };
        assert_eq!(
            repo("oci://10.0.0.5:8081", Some("1.0"), None).reference(),
            "oci://10.0.0.5:8081/library/app:1.0"
        );
        assert_eq!(repo("docker.io/", None, None).reference(), "oci://docker.io/library/app:latest");
        let pinned = repo("https://plant.example", Some("1"), Some("sha256:00")).reference();
        assert_eq!(pinned, "oci://plant.example/library/app@sha256:00");
        let back = OciRepo::of("oci://plant.example:5000/library/app@sha256:00");
        assert_eq!(back.registry_url, "oci://plant.example:5000");
        assert_eq!((back.repository.as_str(), back.digest.as_deref()), ("library/app", Some("sha256:00")));
    }
}
