//! YAML: as such, as a document for a device, as a vendor's description, as a Compose file.

use std::collections::BTreeMap;

use margrave_core::id::{AssignmentId, DeploymentName, DeviceRef};
use margrave_core::parameters::{Answers, ParameterValue, resolve};
use margrave_core::workload::Workload;
use margrave_oci::reference::Reference;
use margrave_wire::yaml::{Content, Node};
use margrave_wire::{description, g2, yaml as wire};

use crate::bodies::explained;

pub(crate) fn yaml(bytes: &[u8]) {
    let node = match wire::read(bytes) {
        Ok(node) => node,
        Err(error) => {
            assert!(error.line >= 1 && error.column >= 1, "{error}");
            assert!(!error.message.is_empty() && error.message.len() <= 500, "{error}");
            return;
        }
    };
    let written = wire::write(&node);
    let again = wire::read(written.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(plain(&again), plain(&node), "a tree survives the wire:\n{written}");
    assert_eq!(wire::write(&again), written, "the same tree has the same bytes");
    // Another reader sees the same texts; numbers it may type as it likes.
    if let Content::List(items) = &node.content
        && items.iter().all(|item| matches!(item.content, Content::Text(_)))
    {
        let theirs: Vec<String> = serde_saphyr::from_str(&written)
            .unwrap_or_else(|error| panic!("another reader refuses what we write: {error}\n{written}"));
        let ours: Vec<&str> = items.iter().map(text).collect();
        assert_eq!(theirs, ours, "another reader sees other texts:\n{written}");
    }
}

fn text(node: &Node) -> &str {
    match &node.content {
        Content::Text(text) => text,
        other => panic!("{other:?} is no text"),
    }
}

/// Without places; what readers disagree about is written as the text it was.
fn plain(node: &Node) -> Node {
    Node::new(match &node.content {
        Content::Ambiguous(text) => Content::Text(text.clone()),
        Content::List(items) => Content::List(items.iter().map(plain).collect()),
        Content::Map(entries) => {
            Content::Map(entries.iter().map(|(key, node)| (key.clone(), plain(node))).collect())
        }
        other => other.clone(),
    })
}

pub(crate) fn document(bytes: &[u8]) {
    match g2::document::read(bytes) {
        Ok(workload) => rewritten(&workload),
        Err(violations) => explained(bytes, &violations),
    }
}

/// A document of this workload can be read, says the same, and is written the same for ever.
fn rewritten(workload: &Workload) {
    let written = g2::document::write(workload);
    let shown = || String::from_utf8_lossy(&written).into_owned();
    let again = g2::document::read(&written)
        .unwrap_or_else(|violations| panic!("our own document is refused: {violations:?}\n{}", shown()));
    let mut wanted = workload.clone();
    for parameter in &mut wanted.parameters {
        // Scalars travel as text (DM-077).
        if !matches!(parameter.value, ParameterValue::List(_)) {
            parameter.value = ParameterValue::Text(parameter.value.to_string());
        }
    }
    wanted.parameters.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(again, wanted, "a workload survives the wire:\n{}", shown());
    assert_eq!(g2::document::write(&again), written, "the same workload has the same bytes");
}

/// Whatever package we accept, the documents that we make of it are accepted by devices.
/// Whatever a Compose file says, few things are claimed, and a description of them is stored and read again.
pub(crate) fn compose(bytes: &[u8]) {
    match margrave_wire::compose::claims(bytes) {
        Ok(claims) => {
            assert!(claims.ports.len() <= 2_000 && claims.volumes.len() <= 2_000);
            assert!(claims.ports.iter().all(|port| port.number > 0));
            let written = serde_json::to_string(&claims).expect("claims are JSON");
            let again: margrave_core::constraints::Claims =
                serde_json::from_str(&written).expect("what was stored is read");
            assert_eq!(again, claims);
            let images = margrave_wire::compose::images(bytes).expect("the same file is read again");
            for name in images.keys() {
                assert!(!name.is_empty() && name.len() <= 1024 && !name.chars().any(char::is_control));
                // Whatever a registry is asked for stays within it.
                if let Ok(reference) = margrave_oci::image_name::parse(name) {
                    let again =
                        Reference::parse(&reference.to_string()).expect("what was read is read again");
                    assert_eq!(again, reference);
                }
            }
        }
        Err(error) => assert!(!error.message.is_empty() && error.message.len() <= 500, "{error}"),
    }
}

pub(crate) fn description(bytes: &[u8]) {
    let package = match description::read(bytes) {
        Ok(package) => package,
        Err(violations) => {
            explained(bytes, &violations);
            let lines =
                bytes.split(|byte| *byte == b'\n').count() + bytes.iter().filter(|b| **b == b'\r').count();
            // Looked up one by one, so a few stand for all.
            for violation in violations.iter().take(3) {
                let place = description::locate(bytes, violation);
                assert!(place.is_none_or(|(line, _)| (line as usize) <= lines), "{violation:?} at {place:?}");
            }
            return;
        }
    };
    let deployment = DeploymentName::parse("deployment").expect("a name");
    let id = AssignmentId::parse("0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11").expect("an id");
    let device = DeviceRef::parse("line-1").expect("a device");
    for profile in &package.profiles {
        match resolve(&package, profile, &Answers::new(), None, &Default::default()) {
            Ok(parameters) => {
                let workload = Workload::compose(
                    &deployment,
                    id,
                    &device,
                    &package,
                    profile,
                    parameters,
                    BTreeMap::new(),
                );
                rewritten(&workload);
            }
            Err(violations) => explained(bytes, &violations),
        }
    }
}
