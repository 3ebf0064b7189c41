//! Desired state as files in a Git repository: one resource a file, YAML, in a fixed layout.
//!
//! Owns the files' names ([`Place`]), their shape and how a broken one is told: file, line, rule. What a resource means, and
//! whether it can be done, is the fleet's business.

mod place;
mod schema;

use std::collections::BTreeMap;
use std::fmt;

use margrave_core::violation::Violation;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use place::{Kind, Path, Place};
pub use schema::schema;

use crate::operator::{Override, Rollback, Targets};
use crate::rollout::StrategyBody;
use crate::schedule::ScheduleBody;
use crate::tree::Node;
use crate::{located, yaml};

/// What every file begins with.
pub const API_VERSION: &str = "margrave/v1";
/// The shape of a file.
const SHAPE: &str = "resource";

/// One broken rule in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Flaw {
    pub file: String,
    /// From 1; 0 when it is about the whole file.
    pub line: u32,
    pub rule: String,
    pub message: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            // About a commit as a whole.
            0 if self.file.is_empty() => write!(f, "{} ({})", self.message, self.rule),
            0 => write!(f, "{}: {} ({})", self.file, self.message, self.rule),
            line => write!(f, "{}:{line}: {} ({})", self.file, self.message, self.rule),
        }
    }
}

/// A file that was read, and where in it everything stands.
#[derive(Debug, Clone)]
pub struct Read {
    pub resource: Resource,
    pub node: Node,
}

impl Read {
    /// Where in `file` a rule of the resource's `spec`, or of what stands beside it (`/../metadata/id`), is broken.
    pub fn flaw(&self, file: &str, violation: &Violation) -> Flaw {
        let place = match violation.place.strip_prefix("/..") {
            Some(beside) => beside.to_owned(),
            None => format!("/spec{}", violation.place),
        };
        let (line, _) = self.node.locate(&place);
        Flaw {
            file: file.to_owned(),
            line,
            rule: violation.rule.to_owned(),
            message: violation.message.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Resource {
    Fleet(FleetFile),
    Package(PackageFile),
    Deployment(DeploymentFile),
    Device(DeviceFile),
}

/// `fleet.yaml`: what counts for everybody, unless something closer says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(title = "Fleet")]
pub struct FleetFile {
    #[schema(pattern = "^margrave/v1$")]
    pub api_version: String,
    #[schema(pattern = "^Fleet$")]
    pub kind: String,
    #[serde(default)]
    pub spec: FleetSpec,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FleetSpec {
    /// When devices talk and change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleBody>,
    /// The same for devices with a label; the first that matches counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelSchedule>,
    /// In which steps changes go through devices for deployments that say nothing of it; all at once where nothing is said here
    /// either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<StrategyBody>,
    /// What devices do about an update that fails, for deployments that say nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelSchedule {
    /// `key=value`.
    pub label: String,
    pub schedule: ScheduleBody,
}

/// `packages/<id>/<version>.yaml`: where a package lies, by digest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(title = "Package")]
pub struct PackageFile {
    #[schema(pattern = "^margrave/v1$")]
    pub api_version: String,
    #[schema(pattern = "^Package$")]
    pub kind: String,
    pub metadata: PackageMetadata,
    pub spec: PackageSpec,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PackageMetadata {
    pub id: String,
    pub version: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PackageSpec {
    /// `oci://host/path@sha256:…`; the host `margrave` is the server's own registry.
    pub reference: String,
    /// What the names of images in its Compose files mean, as `sha256:…`; asked of their registries when the package comes into the
    /// catalog where nothing is said. A pin that was made stays.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
}

/// `deployments/<name>.yaml`: what runs where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(title = "Deployment", as = DeploymentFile)]
pub struct DeploymentFile {
    #[schema(pattern = "^margrave/v1$")]
    pub api_version: String,
    #[schema(pattern = "^Deployment$")]
    pub kind: String,
    pub metadata: DeploymentMetadata,
    pub spec: DeploymentSpec,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeploymentMetadata {
    pub name: String,
    /// Made by the server where it is left out. With it, a deployment keeps its identity on devices wherever its file goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeploymentSpec {
    pub package: String,
    pub version: String,
    /// `auto`, or left out: each device takes the first that fits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Values, or where a secret is: `{secret: {env: MARGRAVE_SECRET_NAME}}`, `{secret: {file: NAME}}`, `{secret: {sealed: TEXT}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Other answers for some of the devices; of each parameter the last that applies counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    pub targets: Targets,
    /// What devices do about an update that fails; as `fleet.yaml` says where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// In which steps a change goes through the devices; as `fleet.yaml` says where nothing is said, and all at once where that says
    /// nothing either. `{}` is all at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<StrategyBody>,
    /// When its changes may begin on a device, like `sun 02:00-05:00 Europe/Berlin`, besides when the device may change at all; at
    /// any time where nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 32)]
    pub windows: Vec<String>,
    /// Why it is to be given also to devices that it does not fit. Without a reason such devices are left out, and naming one is
    /// refused. What a device cannot run at all is never forced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<String>,
}

/// `devices/<id>.yaml`: what operators say of a device, also before it joins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(title = "Device", as = DeviceFile)]
pub struct DeviceFile {
    #[schema(pattern = "^margrave/v1$")]
    pub api_version: String,
    #[schema(pattern = "^Device$")]
    pub kind: String,
    pub metadata: DeviceMetadata,
    #[serde(default)]
    pub spec: DeviceSpec,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceMetadata {
    pub id: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceSpec {
    /// The label `site`, which deployments may be targeted at and rollouts count by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// All that operators gave it. Left out, the labels that it joined with stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleBody>,
}

impl FleetFile {
    pub fn new(spec: FleetSpec) -> FleetFile {
        FleetFile { api_version: API_VERSION.to_owned(), kind: Kind::Fleet.to_string(), spec }
    }
}

impl PackageFile {
    pub fn new(
        id: String,
        version: String,
        reference: String,
        images: BTreeMap<String, String>,
    ) -> PackageFile {
        PackageFile {
            api_version: API_VERSION.to_owned(),
            kind: Kind::Package.to_string(),
            metadata: PackageMetadata { id, version },
            spec: PackageSpec { reference, images },
        }
    }
}

impl DeploymentFile {
    pub fn new(name: String, id: Option<String>, spec: DeploymentSpec) -> DeploymentFile {
        DeploymentFile {
            api_version: API_VERSION.to_owned(),
            kind: Kind::Deployment.to_string(),
            metadata: DeploymentMetadata { name, id },
            spec,
        }
    }
}

impl DeviceFile {
    pub fn new(id: String, spec: DeviceSpec) -> DeviceFile {
        DeviceFile {
            api_version: API_VERSION.to_owned(),
            kind: Kind::Device.to_string(),
            metadata: DeviceMetadata { id },
            spec,
        }
    }
}

impl Resource {
    /// Where it belongs, by what it says of itself.
    ///
    /// # Errors
    /// Why it cannot have such a name, at its place in the file.
    pub fn place(&self) -> Result<Place, Violation> {
        match self {
            Resource::Fleet(_) => Ok(Place::Fleet),
            Resource::Package(file) => Place::package(&file.metadata.id, &file.metadata.version),
            Resource::Deployment(file) => Place::deployment(&file.metadata.name),
            Resource::Device(file) => Place::device(&file.metadata.id),
        }
    }

    /// As a file, always the same for the same resource.
    pub fn write(&self) -> Vec<u8> {
        let value = match self {
            Resource::Fleet(file) => serde_json::to_value(file),
            Resource::Package(file) => serde_json::to_value(file),
            Resource::Deployment(file) => serde_json::to_value(file),
            Resource::Device(file) => serde_json::to_value(file),
        };
        let value = value.expect("resources have text keys and no failing serialisers");
        yaml::write(&Node::from(&value)).into_bytes()
    }
}

/// Reads a resource, whatever its kind.
///
/// # Errors
/// What is wrong, with its line in `file`.
pub fn read(file: &str, bytes: &[u8]) -> Result<Read, Vec<Flaw>> {
    let flaw =
        |line, message: String| vec![Flaw { file: file.to_owned(), line, rule: SHAPE.to_owned(), message }];
    let node = yaml::read(bytes).map_err(|error| flaw(error.line, error.message))?;
    let text = |key: &str| match node.get(key).map(|node| (&node.content, node.line)) {
        Some((crate::tree::Content::Text(text), line)) => Ok((text.clone(), line)),
        Some((_, line)) => Err(flaw(line, format!("{key} must be text"))),
        None => Err(flaw(
            1,
            format!("{key} is missing; every file begins with `apiVersion: {API_VERSION}` and its `kind`"),
        )),
    };
    let (version, line) = text("apiVersion")?;
    if version != API_VERSION {
        return Err(flaw(line, format!("apiVersion {version:?} is not known here; write {API_VERSION}")));
    }
    let (kind, line) = text("kind")?;
    let kind: Kind = kind.parse().map_err(|error: place::UnknownKind| flaw(line, error.to_string()))?;
    let unfit = |unfit: located::Unfit| flaw(unfit.line, unfit.message);
    let resource = match kind {
        Kind::Fleet => Resource::Fleet(located::read(&node).map_err(unfit)?),
        Kind::Package => Resource::Package(located::read(&node).map_err(unfit)?),
        Kind::Deployment => Resource::Deployment(located::read(&node).map_err(unfit)?),
        Kind::Device => Resource::Device(located::read(&node).map_err(unfit)?),
    };
    Ok(Read { resource, node })
}

/// Reads the file at a place of the repository; what is in it must belong there.
///
/// # Errors
/// What is wrong, with its line.
pub fn read_at(place: &Place, bytes: &[u8]) -> Result<Read, Vec<Flaw>> {
    let file = place.to_string();
    let read = read(&file, bytes)?;
    let named = |violation: Violation| {
        let (line, _) = read.node.locate(&violation.place);
        vec![Flaw { file: file.clone(), line, rule: violation.rule.to_owned(), message: violation.message }]
    };
    let own = read.resource.place().map_err(named)?;
    if own != *place {
        let (line, _) = read.node.locate("/metadata");
        let message = format!("what is in this file belongs to {own}; move it there, or mend its metadata");
        return Err(vec![Flaw { file, line, rule: SHAPE.to_owned(), message }]);
    }
    Ok(read)
}

#[cfg(test)]
mod tests;
