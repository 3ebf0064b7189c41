//! A package: what an application description says, once it has been checked.
//!
//! `margrave-wire` reads the YAML and collects broken rules; what reaches this type is valid by its own
//! rules, and [`Package::check`] finds what is wrong between its parts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::constraints::Constraints;
use crate::id::{ComponentName, PackageId, PackageVersion, ParameterName, ProfileId};
use crate::parameters::{Parameter, Schema, Section};
use crate::violation::{Violation, join};

/// Extension objects by their full key, `x-<name>-extensions`, passed on exactly as they came (DM-201).
pub type Extensions = Map<String, Value>;

#[derive(Debug, Clone, PartialEq)]
pub struct Package {
    pub id: PackageId,
    pub version: PackageVersion,
    pub name: String,
    pub description: Option<String>,
    pub catalog: Catalog,
    pub profiles: Vec<Profile>,
    pub parameters: BTreeMap<ParameterName, Parameter>,
    pub sections: Vec<Section>,
    pub schemas: BTreeMap<String, Schema>,
}

/// What a person sees in the catalog.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Catalog {
    pub tagline: Option<String>,
    pub site: Option<String>,
    pub tags: Vec<String>,
    /// Paths inside the package, `./` already removed (DM-012).
    pub icon: Option<String>,
    pub description_file: Option<String>,
    pub license_file: Option<String>,
    pub release_notes: Option<String>,
    pub authors: Vec<Author>,
    pub organizations: Vec<Organization>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Author {
    pub name: Option<String>,
    pub email: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Organization {
    pub name: String,
    pub site: Option<String>,
}

/// What kind of runtime a profile needs (DM-020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProfileKind {
    Helm,
    Compose,
    Custom,
}

impl ProfileKind {
    pub fn as_str(self) -> &'static str {
        match self {
            ProfileKind::Helm => "helm",
            ProfileKind::Compose => "compose",
            ProfileKind::Custom => "custom",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [ProfileKind::Helm, ProfileKind::Compose, ProfileKind::Custom]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub id: ProfileId,
    pub kind: ProfileKind,
    pub description: Option<String>,
    /// Installed in this order (DM-022); never empty.
    pub components: Vec<Component>,
    pub constraints: Option<Constraints>,
    pub extensions: Extensions,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    pub name: ComponentName,
    /// Starts with `oci://` and carries no tag (DM-030).
    pub repository: String,
    pub revision: Revision,
    /// Whether the next component waits for this one (DM-032); `None` was not written and means yes.
    pub wait: Option<bool>,
    pub timeout: Option<Timeout>,
    pub extensions: Extensions,
}

/// SemVer without `v`, with build metadata behind `_` because `+` is no legal tag character (DM-031).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(String);

impl Revision {
    pub fn parse(text: &str) -> Option<Self> {
        let bounded = text.len() <= 128;
        // One `_` at most: SemVer's own grammar has none, so the first one is the separator.
        let semver = text.replacen('_', "+", 1);
        let valid = !text.contains('+') && semver::Version::parse(&semver).is_ok();
        (bounded && valid).then(|| Revision(text.to_owned()))
    }

    /// As written in documents and used as OCI tag.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The longest that a device waits for one component to come up, whatever its `timeout` says. A database that mends itself after
/// a power cut may need most of it; what takes longer holds up everything else that there is to do on the device.
pub const START_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(60 * 60);

/// Minutes and seconds, written `8m30s` (DM-033).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeout {
    pub minutes: u32,
    pub seconds: u32,
}

impl Timeout {
    pub fn parse(text: &str) -> Option<Self> {
        let (minutes, rest) = text.split_once('m')?;
        let seconds = rest.strip_suffix('s')?;
        let number = |t: &str| {
            let digits = !t.is_empty() && t.len() <= 9 && t.bytes().all(|b| b.is_ascii_digit());
            if digits { t.parse::<u32>().ok() } else { None }
        };
        Some(Timeout { minutes: number(minutes)?, seconds: number(seconds)? })
    }

    pub fn duration(self) -> std::time::Duration {
        std::time::Duration::from_secs(u64::from(self.minutes) * 60 + u64::from(self.seconds))
    }
}

impl std::fmt::Display for Timeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}m{}s", self.minutes, self.seconds)
    }
}

impl Package {
    pub fn profile(&self, id: &ProfileId) -> Option<&Profile> {
        self.profiles.iter().find(|profile| &profile.id == id)
    }

    /// The profiles that a device may take: the named one, or any, in the package's order.
    pub fn candidates<'a>(&'a self, named: Option<&'a ProfileId>) -> impl Iterator<Item = &'a Profile> {
        self.profiles.iter().filter(move |profile| named.is_none_or(|id| profile.id == *id))
    }

    /// What is wrong between the parts; empty for a package that can be deployed.
    pub fn check(&self) -> Vec<Violation> {
        check_parts(&self.profiles, &self.parameters, &self.sections, &self.schemas)
    }
}

/// [`Package::check`] for a description whose other parts could not be read, so that a vendor hears
/// everything in one go.
pub fn check_parts(
    profiles: &[Profile],
    parameters: &BTreeMap<ParameterName, Parameter>,
    sections: &[Section],
    schemas: &BTreeMap<String, Schema>,
) -> Vec<Violation> {
    let mut broken = Vec::new();
    check_profiles(profiles, &mut broken);
    check_targets(profiles, parameters, &mut broken);
    check_settings(parameters, sections, schemas, &mut broken);
    broken
}

/// What profiles alone tell. Places are by number, so that a list with gaps must not be asked about.
pub fn check_profiles(profiles: &[Profile], broken: &mut Vec<Violation>) {
    let mut ids = BTreeSet::new();
    for (at, profile) in profiles.iter().enumerate() {
        let place = format!("/deploymentProfiles/{at}");
        if !ids.insert(&profile.id) {
            let message =
                format!("another profile already has the id {}; choose a different one", profile.id);
            broken.push(Violation::new(format!("{place}/id"), "DM-020", message));
        }
        let mut names = BTreeSet::new();
        for (at, component) in profile.components.iter().enumerate() {
            if !names.insert(&component.name) {
                let message =
                    format!("another component of this profile is already named {}", component.name);
                broken.push(Violation::new(format!("{place}/components/{at}/name"), "DM-036", message));
            }
        }
        let labelled = |constraints: &Constraints| constraints.rules.iter().any(|rule| rule.label.is_some());
        if profile.kind == ProfileKind::Custom && !profile.constraints.as_ref().is_some_and(labelled) {
            let message = "a custom profile needs eligibilityRules with a labelSelector, \
                           so that it only goes to devices that know its format";
            broken.push(Violation::new(format!("{place}/deviceConstraints"), "DM-024", message));
        }
    }
}

/// Whether parameters go to components that there are; of profiles that are all there.
pub fn check_targets(
    profiles: &[Profile],
    parameters: &BTreeMap<ParameterName, Parameter>,
    broken: &mut Vec<Violation>,
) {
    let mut kinds: BTreeMap<&ComponentName, BTreeSet<ProfileKind>> = BTreeMap::new();
    for profile in profiles {
        for component in &profile.components {
            kinds.entry(&component.name).or_default().insert(profile.kind);
        }
    }
    for (name, parameter) in parameters {
        let place = join("/parameters", name.as_str());
        for (at, target) in parameter.targets.iter().enumerate() {
            for (item, component) in target.components.iter().enumerate() {
                if !kinds.contains_key(component) {
                    let known: Vec<_> = kinds.keys().take(20).map(|name| name.as_str()).collect();
                    let message = format!(
                        "no profile has a component {component}; the components are {}",
                        known.join(", ")
                    );
                    let place = format!("{place}/targets/{at}/components/{item}");
                    broken.push(Violation::new(place, "DM-040", message));
                }
            }
            let compose = |name| kinds.get(name).is_some_and(|kinds| kinds.contains(&ProfileKind::Compose));
            if target.components.iter().any(compose) && !is_variable(&target.pointer) {
                let message = format!(
                    "for a Compose component the pointer is the name of an environment variable, such as \
                     SITE_ID; {:?} is none",
                    target.pointer
                );
                broken.push(Violation::new(format!("{place}/targets/{at}/pointer"), "DM-043", message));
            }
        }
    }
}

/// Whether Compose can interpolate it.
fn is_variable(text: &str) -> bool {
    let first = text.bytes().next();
    first.is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether settings ask for what there is; of parameters and schemas that are all there.
pub fn check_settings(
    parameters: &BTreeMap<ParameterName, Parameter>,
    sections: &[Section],
    schemas: &BTreeMap<String, Schema>,
    broken: &mut Vec<Violation>,
) {
    let mut asked = BTreeSet::new();
    for (section, parts) in sections.iter().enumerate() {
        for (at, setting) in parts.settings.iter().enumerate() {
            let place = format!("/configuration/sections/{section}/settings/{at}");
            let parameter = parameters.get(&setting.parameter);
            if parameter.is_none() {
                let message = format!("there is no parameter {}; name one of parameters", setting.parameter);
                broken.push(Violation::new(format!("{place}/parameter"), "DM-060", message));
            }
            if !asked.insert(&setting.parameter) {
                let message =
                    format!("another setting already asks for {}; remove one of them", setting.parameter);
                broken.push(Violation::new(format!("{place}/parameter"), "DM-060", message));
            }
            let Some(schema) = schemas.get(&setting.schema) else {
                let message =
                    format!("there is no schema {}; name one of configuration.schema", setting.schema);
                broken.push(Violation::new(format!("{place}/schema"), "DM-060", message));
                continue;
            };
            let default = parameter.and_then(|parameter| parameter.default.as_ref());
            if let Some(Err(reason)) = default.map(|default| schema.check(default)) {
                let place = join(&join("/parameters", setting.parameter.as_str()), "value");
                let message = format!("the default does not pass its schema {}: it {reason}", setting.schema);
                broken.push(Violation::new(place, "DM-060", message));
            }
        }
    }
}
