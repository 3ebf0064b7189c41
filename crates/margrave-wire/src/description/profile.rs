//! Deployment profiles and components; components look the same in a deployment document.

use margrave_core::id::{ComponentName, ProfileId};
use margrave_core::package::{Component, Extensions, Profile, ProfileKind, Revision, Timeout};
use serde_json::Value;

use super::constraints;
use crate::tree::{At, Content, Findings, is_extension};

/// More than any application has; a longer list is refused before it costs memory.
const PROFILE_COUNT_MAX: usize = 100;
pub(crate) const COMPONENT_COUNT_MAX: usize = 200;

/// Who wrote what is being read. Descriptions are checked for their vendor's sake; documents come from a
/// server that may know more than we do, so that unknown fields are no error there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Description,
    Document,
    /// A document of the older generation, in any of the shapes it had.
    OlderDocument,
}

/// All profiles that could be read; what could not is in the findings.
pub(super) fn read_all(root: &At<'_>, findings: &mut Findings) -> Vec<Profile> {
    let Some(items) = findings.required_items(root, "deploymentProfiles", "DM-020") else {
        return Vec::new();
    };
    if items.is_empty() || items.len() > PROFILE_COUNT_MAX {
        let message = format!("needs 1 to {PROFILE_COUNT_MAX} profiles, has {}", items.len());
        findings.add("/deploymentProfiles", "DM-020", message);
        return Vec::new();
    }
    items.iter().filter_map(|at| read_one(at, findings)).collect()
}

fn read_one(at: &At<'_>, findings: &mut Findings) -> Option<Profile> {
    if !findings.is_map(at, "DM-020") {
        return None;
    }
    let id =
        findings.required(at, "id", "DM-020").and_then(|at| findings.parsed(&at, "DM-020", ProfileId::parse));
    let kind = read_kind(at, Source::Description, findings);
    let description = findings.optional_text(at, "description", "DM-020");
    let components = read_components(at, Source::Description, findings);
    let constraints = match (at.field("deviceConstraints"), at.field("requiredResources")) {
        (Some(at), None) => constraints::read(&at, Source::Description, findings),
        (None, Some(older)) => constraints::read_older(&older, findings),
        (Some(now), Some(_)) => {
            let constraints = constraints::read(&now, Source::Description, findings);
            let message = "requiredResources is the older form of deviceConstraints; keep one of them";
            findings.add(at.place_of("requiredResources"), "DM-074", message);
            constraints
        }
        (None, None) => None,
    };
    let known = ["id", "type", "description", "components", "deviceConstraints", "requiredResources"];
    let extensions = read_extensions(at, &known, Source::Description, findings);
    Some(Profile { id: id?, kind: kind?, description, components: components?, constraints, extensions })
}

pub(crate) fn read_kind(at: &At<'_>, source: Source, findings: &mut Findings) -> Option<ProfileKind> {
    let text = findings.required_text(at, "type", "DM-020")?;
    let kind = match (source, text) {
        (Source::OlderDocument, "helm.v3") => Some(ProfileKind::Helm),
        _ => ProfileKind::parse(text),
    };
    if kind.is_none() {
        let shown: String = text.chars().take(60).collect();
        let hint = if text.starts_with("helm") { "; write helm" } else { "" };
        findings.add(
            at.place_of("type"),
            "DM-020",
            format!("must be helm, compose or custom, got {shown:?}{hint}"),
        );
    }
    kind
}

/// The components in their order; `None` when one of them could not be read.
pub(crate) fn read_components(
    at: &At<'_>,
    source: Source,
    findings: &mut Findings,
) -> Option<Vec<Component>> {
    let items = findings.required_items(at, "components", "DM-020")?;
    if items.is_empty() || items.len() > COMPONENT_COUNT_MAX {
        let message = format!("needs 1 to {COMPONENT_COUNT_MAX} components, has {}", items.len());
        findings.add(at.place_of("components"), "DM-020", message);
        return None;
    }
    let components: Vec<_> = items.iter().filter_map(|at| read_component(at, source, findings)).collect();
    (components.len() == items.len()).then_some(components)
}

fn read_component(at: &At<'_>, source: Source, findings: &mut Findings) -> Option<Component> {
    if !findings.is_map(at, "DM-030") {
        return None;
    }
    let before = findings.len();
    let name = findings
        .required(at, "name", "DM-030")
        .and_then(|at| findings.parsed(&at, "DM-030", ComponentName::parse));
    let extensions = read_extensions(at, &["name", "properties"], source, findings);
    let properties = findings.required_map(at, "properties", "DM-030")?;
    for gone in ["packageLocation", "keyLocation"] {
        if properties.has(gone) && source != Source::OlderDocument {
            let message = format!(
                "{gone} is gone; push the component to an OCI registry and give repository and revision"
            );
            findings.add(properties.place_of(gone), "DM-030", message);
        }
    }
    if source == Source::Description {
        let known = ["repository", "revision", "wait", "timeout", "packageLocation", "keyLocation"];
        for (key, at) in properties.entries().filter(|(key, _)| !known.contains(key)) {
            findings.add(at.place, "DM-074", unknown(key, &known[..4]));
        }
    }
    let (repository, revision) = match properties.field("packageLocation") {
        Some(at) if source == Source::OlderDocument && !properties.has("repository") => {
            if properties.has("keyLocation") {
                let message = "the package is to be checked with a key, which this agent cannot do; \
                               give repository and revision of an OCI registry instead";
                findings.add(properties.place_of("keyLocation"), "MI-G1-210", message);
            }
            findings.parsed(&at, "MI-G1-210", read_location).unzip()
        }
        _ => {
            let repository = findings
                .required(&properties, "repository", "DM-030")
                .and_then(|at| findings.parsed(&at, "DM-030", read_repository));
            let revision = findings
                .required(&properties, "revision", "DM-031")
                .and_then(|at| findings.parsed(&at, "DM-031", read_revision));
            (repository, revision)
        }
    };
    let wait = match properties.field("wait") {
        // Some samples of the older generation put it in quotes.
        Some(at) if source == Source::OlderDocument && matches!(at.node.content, Content::Text(_)) => {
            findings.parsed(&at, "DM-034", |text| text.parse::<bool>().map_err(|_| "must be true or false"))
        }
        _ => findings.optional_boolean(&properties, "wait", "DM-034"),
    };
    let timeout = properties.field("timeout").and_then(|at| findings.parsed(&at, "DM-033", read_timeout));
    if findings.len() > before {
        return None;
    }
    Some(Component { name: name?, repository: repository?, revision: revision?, wait, timeout, extensions })
}

fn read_revision(text: &str) -> Result<Revision, &'static str> {
    Revision::parse(text).ok_or(
        "must be a semantic version such as 1.0.9: three numbers, no leading v, and _ instead of + before build \
         metadata",
    )
}

fn read_timeout(text: &str) -> Result<Timeout, &'static str> {
    Timeout::parse(text).ok_or("must be minutes and seconds, both present, such as 8m30s or 5m0s")
}

/// `packageLocation` as we write it: an OCI reference with its tag.
fn read_location(text: &str) -> Result<(String, Revision), &'static str> {
    const SHAPE: &str = "must be an OCI reference with a tag, such as oci://registry.example.com/team/app:1.0.9; \
                         packages at plain URLs cannot be fetched";
    let (repository, tag) = text.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).ok_or(SHAPE)?;
    Ok((read_repository(repository).map_err(|_| SHAPE)?, Revision::parse(tag).ok_or(SHAPE)?))
}

/// `oci://host[:port]/path`, without tag or digest.
fn read_repository(text: &str) -> Result<String, &'static str> {
    const SHAPE: &str =
        "must be oci://, a registry host, and a lower-case path, such as oci://registry.example.com/team/app";
    if text.len() > 512 {
        return Err("is longer than the 512 characters that registries take");
    }
    let rest = text.strip_prefix("oci://").ok_or(SHAPE)?;
    let (host, path) = rest.split_once('/').ok_or(SHAPE)?;
    if path.contains('@') || path.contains(':') {
        return Err("must not carry a tag or digest; the tag is the revision");
    }
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    let host_name = !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'))
        && !name.starts_with(['.', '-']);
    let port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    let path = path.split('/').all(is_path_component);
    if host_name && port && path { Ok(text.to_owned()) } else { Err(SHAPE) }
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`, as the distribution specification has it.
fn is_path_component(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = |b: Option<u8>| b.is_some_and(alphanumeric);
    let separators: Vec<&str> = text
        .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        .filter(|part| !part.is_empty())
        .collect();
    ends(text.bytes().next())
        && ends(text.bytes().last())
        && separators.iter().all(|s| matches!(*s, "." | "_" | "__") || s.bytes().all(|b| b == b'-'))
}

/// The extensions among an object's fields (DM-200); in a description every other field must be `known`,
/// because what a deployment has no place for would be lost (DM-074).
pub(crate) fn read_extensions(
    at: &At<'_>,
    known: &[&str],
    source: Source,
    findings: &mut Findings,
) -> Extensions {
    let mut extensions = Extensions::new();
    for (key, entry) in at.entries() {
        if known.contains(&key) {
            continue;
        }
        if !is_extension(key) {
            if source == Source::Description {
                findings.add(entry.place, "DM-074", unknown(key, known));
            }
            continue;
        }
        match (&entry.node.content, source) {
            (Content::Map(_), _) => {
                if source == Source::Description {
                    findings.unambiguous(&entry, "DM-200");
                }
                extensions.insert(key.to_owned(), Value::Object(entry.node.to_object()));
            }
            (_, Source::Description) => {
                findings.add(entry.place, "DM-200", format!("the value of {key} must be an object"));
            }
            // Never a reason to fail on a device (DM-183).
            (_, Source::Document | Source::OlderDocument) => {}
        }
    }
    extensions
}

pub(super) fn unknown(key: &str, known: &[&str]) -> String {
    let shown: String = key.chars().take(60).collect();
    format!(
        "{shown} is not known here and would be lost; known are {}, and extensions named x-…-extensions",
        known.join(", ")
    )
}
