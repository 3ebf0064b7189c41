//! Where a resource's file lies.

use std::fmt;
use std::str::FromStr;

use margrave_core::id::{DeploymentName, DeviceRef, PackageId, PackageVersion};
use margrave_core::violation::Violation;

/// Of a whole path; more than any name of ours makes.
const PATH_LENGTH_MAX: usize = 1024;
const FLEET: &str = "fleet.yaml";
/// For a dot that begins a segment: Git takes no `.git`. Names have no percent sign otherwise.
const DOT: &str = "%2E";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Fleet,
    Package,
    Deployment,
    Device,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no kind {0:?}; it is Fleet, Package, Deployment or Device")]
pub struct UnknownKind(String);

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Fleet, Kind::Package, Kind::Deployment, Kind::Device];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Fleet => "Fleet",
            Kind::Package => "Package",
            Kind::Deployment => "Deployment",
            Kind::Device => "Device",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Kind, UnknownKind> {
        let found = Kind::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| UnknownKind(text.chars().take(60).collect()))
    }
}

/// The place of one resource, in the order in which they are to be taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Fleet,
    Package(PackageId, PackageVersion),
    Device(DeviceRef),
    Deployment(DeploymentName),
}

/// What a path is to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    Resource(Place),
    /// Nothing of ours: a README, a licence, a script.
    Other,
    /// YAML where nobody looks for it, which its writer should know.
    Astray(String),
}

impl Place {
    pub fn kind(&self) -> Kind {
        match self {
            Place::Fleet => Kind::Fleet,
            Place::Package(..) => Kind::Package,
            Place::Deployment(_) => Kind::Deployment,
            Place::Device(_) => Kind::Device,
        }
    }

    pub fn package(id: &str, version: &str) -> Result<Place, Violation> {
        let id = PackageId::parse(id)
            .map_err(|error| Violation::new("/metadata/id", "DM-003", error.to_string()))?;
        let version = PackageVersion::parse(version)
            .map_err(|error| Violation::new("/metadata/version", "PK-016", error.to_string()))?;
        Ok(Place::Package(id, version))
    }

    pub fn deployment(name: &str) -> Result<Place, Violation> {
        DeploymentName::parse(name)
            .map(Place::Deployment)
            .map_err(|error| Violation::new("/metadata/name", "resource", error.to_string()))
    }

    pub fn device(id: &str) -> Result<Place, Violation> {
        DeviceRef::parse(id)
            .map(Place::Device)
            .map_err(|error| Violation::new("/metadata/id", "resource", error.to_string()))
    }
}

impl Path {
    pub fn read(path: &str) -> Path {
        if path == FLEET {
            return Path::Resource(Place::Fleet);
        }
        let Some(stem) = path.strip_suffix(".yaml") else {
            return match path.ends_with(".yml") {
                true => Path::Astray("files end in .yaml here; rename it".to_owned()),
                false => Path::Other,
            };
        };
        // Those of tools: .gitlab-ci.yaml, .github/…
        if path.starts_with('.') {
            return Path::Other;
        }
        if path.len() > PATH_LENGTH_MAX {
            return Path::Astray(format!("a path has at most {PATH_LENGTH_MAX} bytes"));
        }
        let place = match stem.split_once('/') {
            Some(("packages", rest)) => match rest.split_once('/') {
                Some((id, version)) => Place::package(id, version),
                None => return Path::Astray("packages lie at packages/<id>/<version>.yaml".to_owned()),
            },
            Some(("deployments", name)) => Place::deployment(name),
            Some(("devices", id)) => Place::device(&decoded(id)),
            _ => {
                return Path::Astray(
                    "nobody looks here; resources are fleet.yaml, packages/<id>/<version>.yaml, \
                     deployments/<name>.yaml and devices/<id>.yaml"
                        .to_owned(),
                );
            }
        };
        match place {
            // Two spellings of one place would be two truths.
            Ok(place) if place.to_string() == path => Path::Resource(place),
            Ok(place) => Path::Astray(format!("write this path as {place}")),
            Err(violation) => Path::Astray(violation.message),
        }
    }
}

fn decoded(name: &str) -> String {
    each_segment(name, |segment| match segment.strip_prefix(DOT) {
        Some(rest) => format!(".{rest}"),
        None => segment.to_owned(),
    })
}

fn encoded(name: &str) -> String {
    each_segment(name, |segment| match segment.strip_prefix('.') {
        Some(rest) => format!("{DOT}{rest}"),
        None => segment.to_owned(),
    })
}

fn each_segment(name: &str, written: impl Fn(&str) -> String) -> String {
    name.split('/').map(written).collect::<Vec<_>>().join("/")
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Fleet => f.write_str(FLEET),
            Place::Package(id, version) => {
                write!(f, "packages/{id}/{version}.yaml")
            }
            Place::Deployment(name) => write!(f, "deployments/{name}.yaml"),
            Place::Device(device) => write!(f, "devices/{}.yaml", encoded(&device.to_string())),
        }
    }
}
