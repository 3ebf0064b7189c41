//! ApplicationDeployment documents: [`Workload`] ↔ YAML (data-model.md, section 3).
//!
//! Written once by the server, whose bytes and digest then stay for ever; read by every device, ours and
//! others'. Scalar values are written as text, because one artefact of the standard types them so and the
//! other does not mind; lists stay lists (DM-077). Reading takes any scalar.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName, DeploymentName, DeviceId, PackageId, ParameterName};
use margrave_core::package::{Component, Extensions, ProfileKind};
use margrave_core::parameters::{ParameterValue, ResolvedParameter, Target};
use margrave_core::rollback::{Rollback, When};
use margrave_core::violation::Violation;
use margrave_core::workload::{Hints, Placement, Workload};

use crate::description::profile::{self, Source};
use crate::description::{configuration, constraints};
use crate::g2::EXTENSION;
use crate::schedule;
use crate::tree::{At, Content, Findings, Node};
use crate::yaml;

/// The media type of a document (MI-G2-060).
pub const MEDIA_TYPE: &str = "application/yaml";

/// The document's bytes: the same workload gives the same bytes, always.
pub fn write(workload: &Workload) -> Vec<u8> {
    let metadata = Node::map(metadata(workload));
    // The profile's id and description stay behind: the standard closes this object (DM-074).
    let mut profile = vec![
        ("type".to_owned(), Node::text(workload.kind.as_str())),
        ("components".to_owned(), Node::list(workload.components.iter().map(|each| component(each, None)))),
    ];
    if let Some(constraints) = &workload.constraints {
        profile.push(("deviceConstraints".to_owned(), Node::from(&constraints.as_written)));
    }
    profile.extend(extensions(&workload.extensions));
    let root = Node::map([
        ("id", Node::text(workload.id.to_string())),
        ("metadata", metadata),
        ("spec", spec(workload, profile)),
    ]);
    yaml::write(&root).into_bytes()
}

pub(crate) fn metadata(workload: &Workload) -> [(&'static str, Node); 3] {
    let placement = match &workload.placement {
        Placement::Device(device) => device.to_string(),
        Placement::AnyChildOf(gateway) => format!("{gateway}/*"),
    };
    [
        ("name", Node::text(&workload.name)),
        ("namespace", Node::text(&workload.namespace)),
        ("deviceId", Node::text(placement)),
    ]
}

pub(crate) fn spec(workload: &Workload, profile: Vec<(String, Node)>) -> Node {
    let parameters =
        workload.parameters.iter().map(|parameter| (parameter.name.as_str(), resolved(parameter)));
    let mut spec = vec![
        ("applicationId", Node::text(workload.application.as_str())),
        ("deploymentProfile", Node::map(profile)),
        ("parameters", Node::map(parameters)),
    ];
    spec.extend(hints(&workload.hints).map(|hints| (EXTENSION, hints)));
    Node::map(spec)
}

/// A component, with the location that an older generation wants besides.
pub(crate) fn component(component: &Component, package_location: Option<String>) -> Node {
    let mut properties = vec![
        ("repository", Node::text(&component.repository)),
        ("revision", Node::text(component.revision.as_str())),
    ];
    properties.extend(component.wait.map(|wait| ("wait", Node::new(Content::Boolean(wait)))));
    properties.extend(component.timeout.map(|timeout| ("timeout", Node::text(timeout.to_string()))));
    properties.extend(package_location.map(|location| ("packageLocation", Node::text(location))));
    let fields = [
        ("name".to_owned(), Node::text(component.name.as_str())),
        ("properties".to_owned(), Node::map(properties)),
    ];
    Node::map(fields.into_iter().chain(extensions(&component.extensions)))
}

pub(crate) fn extensions(extensions: &Extensions) -> impl Iterator<Item = (String, Node)> + '_ {
    extensions.iter().map(|(key, value)| (key.clone(), Node::from(value)))
}

fn resolved(parameter: &ResolvedParameter) -> Node {
    let target = |target: &Target| {
        let components = target.components.iter().map(|name| Node::text(name.as_str()));
        Node::map([("pointer", Node::text(&target.pointer)), ("components", Node::list(components))])
    };
    let value = match &parameter.value {
        ParameterValue::List(items) => Node::list(items.iter().map(element)),
        scalar => Node::text(scalar.to_string()),
    };
    Node::map([("value", value), ("targets", Node::list(parameter.targets.iter().map(target)))])
}

/// Inside a list a number stays a number: nothing in the standard asks for text there, and a device that
/// passes the list on as JSON needs the difference (DM-191).
fn element(value: &ParameterValue) -> Node {
    match value {
        ParameterValue::Boolean(value) => Node::new(Content::Boolean(*value)),
        ParameterValue::Integer(value) => Node::new(Content::Number((*value).into())),
        ParameterValue::Double(value) => match serde_json::Number::from_f64(*value) {
            Some(number) => Node::new(Content::Number(number)),
            None => Node::text(value.to_string()),
        },
        ParameterValue::Text(text) => Node::text(text),
        ParameterValue::List(items) => Node::list(items.iter().map(element)),
    }
}

fn hints(hints: &Hints) -> Option<Node> {
    let mut fields = Vec::new();
    fields.extend(hints.deployment.as_ref().map(|name| ("deployment", Node::text(name.as_str()))));
    fields.extend(hints.package_version.as_ref().map(|version| ("packageVersion", Node::text(version))));
    if !hints.pins.is_empty() {
        let pins = hints.pins.iter().map(|(name, digest)| (name.as_str(), Node::text(digest.to_string())));
        fields.push(("pins", Node::map(pins)));
    }
    // The same: documents whose images are not pinned are as they were before any were.
    if !hints.images.is_empty() {
        let digests = |images: &BTreeMap<String, Digest>| {
            Node::map(images.iter().map(|(image, digest)| (image.as_str(), Node::text(digest.to_string()))))
        };
        let images = hints.images.iter().map(|(name, images)| (name.as_str(), digests(images)));
        fields.push(("images", Node::map(images)));
    }
    // Said only where it is not what every device does anyway, so that documents of before keep their digests.
    if hints.rollback != Rollback::default() {
        let Rollback { when, attempts, binding, health_grace } = hints.rollback;
        let number = |number: u64| Node::new(Content::Number(number.into()));
        let mut said = vec![("when", Node::text(when.as_str())), ("attempts", number(attempts.into()))];
        if binding {
            said.push(("binding", Node::new(Content::Boolean(true))));
        }
        said.extend(health_grace.map(|grace| ("healthGraceSeconds", number(grace.as_secs()))));
        fields.push(("rollback", Node::map(said)));
    }
    if let Some(windows) = &hints.windows {
        fields.push(("windows", Node::list(windows.iter().map(|window| Node::text(window.to_string())))));
    }
    fields.extend(hints.salt.as_ref().map(|salt| ("salt", Node::text(salt))));
    (!fields.is_empty()).then(|| Node::map(fields))
}

/// What a document says.
///
/// Unknown extensions and fields are ignored (MI-G2-085); everything that decides what runs must be right.
///
/// # Errors
/// Every broken rule; never empty.
pub fn read(bytes: &[u8]) -> Result<Workload, Vec<Violation>> {
    read_node(&read_tree(bytes)?, Source::Document, None)
}

/// As [`read`], from a tree, in the shapes that `source` may have; `reader` is the device that a document
/// without a `deviceId` is for.
pub(crate) fn read_node(
    node: &Node,
    source: Source,
    reader: Option<&DeviceId>,
) -> Result<Workload, Vec<Violation>> {
    let mut findings = Findings::default();
    let workload = read_root(&At::root(node), source, reader, &mut findings);
    match workload {
        Some(mut workload) if findings.is_empty() => {
            if workload.kind == ProfileKind::Compose {
                for target in workload.parameters.iter_mut().flat_map(|parameter| &mut parameter.targets) {
                    target.pointer = configuration::bare_variable(&target.pointer).to_owned();
                }
            }
            Ok(workload)
        }
        _ => Err(findings.into_vec()),
    }
}

/// The tree of a document's bytes.
pub(crate) fn read_tree(bytes: &[u8]) -> Result<Node, Vec<Violation>> {
    yaml::read(bytes).map_err(|error| vec![Violation::new("", "YAML", error.to_string())])
}

fn read_root(
    root: &At<'_>,
    source: Source,
    reader: Option<&DeviceId>,
    findings: &mut Findings,
) -> Option<Workload> {
    if !findings.is_map(root, "DM-070") {
        return None;
    }
    let metadata = findings.required_map(root, "metadata", "DM-072");
    let older = metadata.as_ref().and_then(|at| at.field("annotations"));
    if let (Source::Document, Some(older)) = (source, &older) {
        let message = "annotations belong to an older shape of the document; applicationId moved to spec";
        findings.add(older.place.clone(), "DM-073", message);
    }
    let id = read_either(root, "id", older.as_ref(), source, "DM-070", AssignmentId::parse, findings);
    let (name, namespace, placement) = match &metadata {
        Some(at) => {
            let (name, namespace) = (read_name(at, "name", findings), read_name(at, "namespace", findings));
            let placement = match (at.field("deviceId"), reader) {
                (None, Some(reader)) => Some(Placement::Device(reader.clone())),
                _ => findings
                    .required(at, "deviceId", "DM-072")
                    .and_then(|at| findings.parsed(&at, "DM-072", read_placement)),
            };
            (name, namespace, placement)
        }
        None => (None, None, None),
    };
    let spec = findings.required_map(root, "spec", "DM-071")?;
    let application =
        read_either(&spec, "applicationId", older.as_ref(), source, "DM-071", PackageId::parse, findings);
    let parameters = read_parameters(&spec, findings);
    let hints = read_hints(&spec, findings);
    let profile = findings.required_map(&spec, "deploymentProfile", "DM-079")?;
    let kind = profile::read_kind(&profile, source, findings);
    let components = profile::read_components(&profile, source, findings);
    let mut names = BTreeSet::new();
    for (at, component) in components.iter().flatten().enumerate() {
        if !names.insert(&component.name) {
            let message = format!("another component is already named {}", component.name);
            findings.add(format!("{}/components/{at}/name", profile.place), "DM-036", message);
        }
    }
    let constraints =
        profile.field("deviceConstraints").and_then(|at| constraints::read(&at, source, findings));
    let known = ["type", "components", "deviceConstraints"];
    let extensions = profile::read_extensions(&profile, &known, source, findings);
    Some(Workload {
        id: id?,
        name: name?,
        namespace: namespace?,
        placement: placement?,
        application: application?,
        kind: kind?,
        components: components?,
        constraints,
        parameters,
        extensions,
        hints,
    })
}

/// A value that older shapes keep under `metadata.annotations`. Written in both places, it must be the same
/// (AMB-07); in the current shape the other place is no place at all.
fn read_either<T: PartialEq, E: std::fmt::Display>(
    at: &At<'_>,
    key: &str,
    older: Option<&At<'_>>,
    source: Source,
    rule: &'static str,
    parse: impl Fn(&str) -> Result<T, E>,
    findings: &mut Findings,
) -> Option<T> {
    let elsewhere = older.and_then(|older| older.field(key));
    let other = elsewhere.as_ref().and_then(|at| findings.parsed(at, rule, &parse));
    let here = match (at.field(key), &elsewhere) {
        (None, Some(_)) => None,
        // The complaint about the shape says it already.
        (None, None) if older.is_some() && source == Source::Document && key != "id" => None,
        _ => findings.required(at, key, rule).and_then(|at| findings.parsed(&at, rule, &parse)),
    };
    if let (Some(here), Some(other), Some(elsewhere)) = (&here, &other, &elsewhere)
        && here != other
    {
        let message = format!("must be the same as {}", at.place_of(key));
        findings.add(elsewhere.place.clone(), "AMB-07", message);
    }
    here.or(other)
}

fn read_name(at: &At<'_>, key: &str, findings: &mut Findings) -> Option<String> {
    let name = findings.required_text(at, key, "DM-072")?;
    if name.is_empty() || name.len() > 253 || name.chars().any(char::is_control) {
        findings.add(at.place_of(key), "DM-072", "must be 1 to 253 characters without control characters");
        return None;
    }
    Some(name.to_owned())
}

fn read_placement(text: &str) -> Result<Placement, margrave_core::id::InvalidId> {
    match text.strip_suffix("/*") {
        Some(gateway) => DeviceId::parse(gateway).map(Placement::AnyChildOf),
        None => DeviceId::parse(text).map(Placement::Device),
    }
}

/// In the order of their names, whatever order they were written in: they are a map.
fn read_parameters(spec: &At<'_>, findings: &mut Findings) -> Vec<ResolvedParameter> {
    let mut parameters = BTreeMap::new();
    let Some(at) = spec.field("parameters").filter(|at| findings.is_map(at, "DM-077")) else {
        return Vec::new();
    };
    for (name, at) in at.entries() {
        if !findings.is_map(&at, "DM-077") {
            continue;
        }
        let value = findings.required(&at, "value", "DM-077");
        let value = value.and_then(|at| findings.parameter_value(&at, "DM-077"));
        let targets = configuration::read_targets(&at, findings);
        match (ParameterName::parse(name), value) {
            (Ok(name), Some(value)) => {
                parameters.insert(name.clone(), ResolvedParameter { name, value, targets, secret: false });
            }
            (Err(error), _) => findings.add(at.place, "DM-077", error.to_string()),
            (Ok(_), None) => {}
        }
    }
    parameters.into_values().collect()
}

/// What a newer server says and this agent does not understand is as if it had not been said: a document must not
/// fail for it.
fn read_rollback(at: &At<'_>) -> Rollback {
    let when = at.field("when").and_then(|at| match &at.node.content {
        Content::Text(text) => When::parse(text),
        _ => None,
    });
    let number = |key: &str| at.field(key).and_then(|at| at.unsigned());
    let attempts = number("attempts").and_then(|attempts| u32::try_from(attempts).ok());
    let grace = number("healthGraceSeconds").map(Duration::from_secs);
    let usual = || Rollback { when: when.unwrap_or_default(), ..Rollback::default() };
    // Servers of before wrote the usual number as well, and nobody had asked for that.
    let binding = at.field("binding").is_some_and(|at| at.node.content == Content::Boolean(true));
    let read = Rollback::new(when, attempts, grace)
        .map(|read| Rollback { binding: binding && read.binding, ..read });
    read.unwrap_or_else(|_| usual())
}

/// Our own additions. A name that cannot be read is only missed; a pin that cannot be read would mean
/// running something else than was meant.
fn read_hints(spec: &At<'_>, findings: &mut Findings) -> Hints {
    let Some(at) = spec.field(EXTENSION) else { return Hints::default() };
    let text = |key: &str| match at.field(key).map(|at| &at.node.content) {
        Some(Content::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let mut pins = BTreeMap::new();
    if let Some(at) = at.field("pins").filter(|at| findings.is_map(at, "PK-053")) {
        for (name, at) in at.entries() {
            let digest = findings.parsed(&at, "PK-053", Digest::parse);
            match (ComponentName::parse(name), digest) {
                (Ok(name), Some(digest)) => {
                    pins.insert(name, digest);
                }
                (Err(error), _) => findings.add(at.place, "PK-053", error.to_string()),
                (Ok(_), None) => {}
            }
        }
    }
    let mut images = BTreeMap::new();
    if let Some(at) = at.field("images").filter(|at| findings.is_map(at, "PK-053")) {
        for (name, at) in at.entries() {
            if !findings.is_map(&at, "PK-053") {
                continue;
            }
            let digests = at.entries().filter_map(|(image, at)| {
                Some((image.to_owned(), findings.parsed(&at, "PK-053", Digest::parse)?))
            });
            let digests: BTreeMap<String, Digest> = digests.collect();
            match ComponentName::parse(name) {
                Ok(name) => drop(images.insert(name, digests)),
                Err(error) => findings.add(at.place, "PK-053", error.to_string()),
            }
        }
    }
    Hints {
        deployment: text("deployment").and_then(|name| DeploymentName::parse(&name).ok()),
        package_version: text("packageVersion"),
        pins,
        images,
        rollback: at.field("rollback").map(|at| read_rollback(&at)).unwrap_or_default(),
        // Where none of them is understood, no time is the right one.
        windows: schedule::understood(&at, "windows"),
        salt: text("salt"),
    }
}
