//! ApplicationDeployment documents: [`Workload`] ↔ YAML (data-model.md, section 3).
//!
//! Written once by the server, whose bytes and digest then stay for ever; read by every device, ours and
//! others'. Scalar values are written as text, because one artefact of the standard types them so and the
//! other does not mind; lists stay lists (DM-077). Reading takes any scalar.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName, DeploymentName, DeviceId, PackageId, ParameterName};
use margrave_core::package::{Component, Extensions};
use margrave_core::parameters::{ParameterValue, ResolvedParameter, Target};
use margrave_core::violation::Violation;
use margrave_core::workload::{Hints, Placement, Workload};

use crate::description::profile::{self, Source};
use crate::description::{configuration, constraints};
use crate::g2::EXTENSION;
use crate::tree::{At, Content, Findings, Node};
use crate::yaml;

/// The media type of a document (MI-G2-060).
pub const MEDIA_TYPE: &str = "application/yaml";

/// The document's bytes: the same workload gives the same bytes, always.
pub fn write(workload: &Workload) -> Vec<u8> {
    let placement = match &workload.placement {
        Placement::Device(device) => device.to_string(),
        Placement::AnyChildOf(gateway) => format!("{gateway}/*"),
    };
    let metadata = Node::map([
        ("name", Node::text(&workload.name)),
        ("namespace", Node::text(&workload.namespace)),
        ("deviceId", Node::text(placement)),
    ]);
    // The profile's id and description stay behind: the standard closes this object (DM-074).
    let mut profile = vec![
        ("type".to_owned(), Node::text(workload.kind.as_str())),
        ("components".to_owned(), Node::list(workload.components.iter().map(component))),
    ];
    if let Some(constraints) = &workload.constraints {
        profile.push(("deviceConstraints".to_owned(), Node::from(&constraints.as_written)));
    }
    profile.extend(extensions(&workload.extensions));
    let parameters =
        workload.parameters.iter().map(|parameter| (parameter.name.as_str(), resolved(parameter)));
    let mut spec = vec![
        ("applicationId", Node::text(workload.application.as_str())),
        ("deploymentProfile", Node::map(profile)),
        ("parameters", Node::map(parameters)),
    ];
    spec.extend(hints(&workload.hints).map(|hints| (EXTENSION, hints)));
    let root = Node::map([
        ("id", Node::text(workload.id.to_string())),
        ("metadata", metadata),
        ("spec", Node::map(spec)),
    ]);
    yaml::write(&root).into_bytes()
}

fn component(component: &Component) -> Node {
    let mut properties = vec![
        ("repository", Node::text(&component.repository)),
        ("revision", Node::text(component.revision.as_str())),
    ];
    properties.extend(component.wait.map(|wait| ("wait", Node::new(Content::Boolean(wait)))));
    properties.extend(component.timeout.map(|timeout| ("timeout", Node::text(timeout.to_string()))));
    let fields = [
        ("name".to_owned(), Node::text(component.name.as_str())),
        ("properties".to_owned(), Node::map(properties)),
    ];
    Node::map(fields.into_iter().chain(extensions(&component.extensions)))
}

fn extensions(extensions: &Extensions) -> impl Iterator<Item = (String, Node)> + '_ {
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
    (!fields.is_empty()).then(|| Node::map(fields))
}

/// What a document says.
///
/// Unknown extensions and fields are ignored (MI-G2-085); everything that decides what runs must be right.
///
/// # Errors
/// Every broken rule; never empty.
pub fn read(bytes: &[u8]) -> Result<Workload, Vec<Violation>> {
    let node = yaml::read(bytes).map_err(|error| vec![Violation::new("", "YAML", error.to_string())])?;
    let mut findings = Findings::default();
    let workload = read_root(&At::root(&node), &mut findings);
    match workload {
        Some(workload) if findings.is_empty() => Ok(workload),
        _ => Err(findings.into_vec()),
    }
}

fn read_root(root: &At<'_>, findings: &mut Findings) -> Option<Workload> {
    if !findings.is_map(root, "DM-070") {
        return None;
    }
    let id = findings
        .required(root, "id", "DM-070")
        .and_then(|at| findings.parsed(&at, "DM-070", AssignmentId::parse));
    let metadata = findings.required_map(root, "metadata", "DM-072");
    let (name, namespace, placement) = match &metadata {
        Some(at) => (
            read_name(at, "name", findings),
            read_name(at, "namespace", findings),
            findings
                .required(at, "deviceId", "DM-072")
                .and_then(|at| findings.parsed(&at, "DM-072", read_placement)),
        ),
        None => (None, None, None),
    };
    // Where an older shape keeps the application's id, so that its message points at what is there.
    let older = metadata.as_ref().and_then(|at| at.field("annotations"));
    if let Some(older) = &older {
        let message = "annotations belong to an older shape of the document; applicationId moved to spec";
        findings.add(older.place.clone(), "DM-073", message);
        if let Some(at) = older.field("applicationId") {
            findings.parsed(&at, "DM-071", PackageId::parse);
        }
    }
    let spec = findings.required_map(root, "spec", "DM-071")?;
    let application = match spec.field("applicationId") {
        None if older.is_some() => None,
        _ => findings.required(&spec, "applicationId", "DM-071"),
    };
    let application = application.and_then(|at| findings.parsed(&at, "DM-071", PackageId::parse));
    let parameters = read_parameters(&spec, findings);
    let hints = read_hints(&spec, findings);
    let profile = findings.required_map(&spec, "deploymentProfile", "DM-079")?;
    let kind = profile::read_kind(&profile, findings);
    let components = profile::read_components(&profile, Source::Document, findings);
    let mut names = BTreeSet::new();
    for (at, component) in components.iter().flatten().enumerate() {
        if !names.insert(&component.name) {
            let message = format!("another component is already named {}", component.name);
            findings.add(format!("{}/components/{at}/name", profile.place), "DM-036", message);
        }
    }
    let constraints =
        profile.field("deviceConstraints").and_then(|at| constraints::read(&at, Source::Document, findings));
    let known = ["type", "components", "deviceConstraints"];
    let extensions = profile::read_extensions(&profile, &known, Source::Document, findings);
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
                parameters.insert(name.clone(), ResolvedParameter { name, value, targets });
            }
            (Err(error), _) => findings.add(at.place, "DM-077", error.to_string()),
            (Ok(_), None) => {}
        }
    }
    parameters.into_values().collect()
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
    Hints {
        deployment: text("deployment").and_then(|name| DeploymentName::parse(&name).ok()),
        package_version: text("packageVersion"),
        pins,
    }
}
