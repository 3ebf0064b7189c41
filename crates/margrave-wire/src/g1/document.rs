//! ApplicationDeployment documents: [`Workload`] ↔ YAML in the older shape (MI-G1-210).
//!
//! Both ids and the application's id stand in both of the places where clients of the field look for them
//! (AMB-07, MI-G1-211). What the shape has no words for, device constraints, is left out: the server has
//! judged the device already.

use margrave_core::id::DeviceId;
use margrave_core::package::{Component, ProfileKind};
use margrave_core::violation::Violation;
use margrave_core::workload::Workload;

use crate::description::profile::Source;
use crate::g2::document;
pub use crate::g2::document::MEDIA_TYPE;
use crate::tree::Node;
use crate::yaml;

const API_VERSION: &str = "application.margo.org/v1alpha1";
const KIND: &str = "ApplicationDeployment";

/// The document's bytes: the same workload gives the same bytes, always.
pub fn write(workload: &Workload) -> Vec<u8> {
    let id = workload.id.to_string();
    let annotations =
        Node::map([("applicationId", Node::text(workload.application.as_str())), ("id", Node::text(&id))]);
    let metadata = [("annotations", annotations)].into_iter().chain(document::metadata(workload));
    let kind = match workload.kind {
        ProfileKind::Helm => "helm.v3",
        other => other.as_str(),
    };
    let component =
        |component: &Component| document::component(component, location(workload.kind, component));
    let mut profile = vec![
        ("type".to_owned(), Node::text(kind)),
        ("components".to_owned(), Node::list(workload.components.iter().map(component))),
    ];
    profile.extend(document::extensions(&workload.extensions));
    let root = Node::map([
        ("apiVersion", Node::text(API_VERSION)),
        ("kind", Node::text(KIND)),
        ("id", Node::text(&id)),
        ("metadata", Node::map(metadata)),
        ("spec", document::spec(workload, profile)),
    ]);
    yaml::write(&root).into_bytes()
}

/// Compose components of this generation have one location instead of repository and revision. We keep
/// packages in registries only, so it is the reference that a registry client takes.
fn location(kind: ProfileKind, component: &Component) -> Option<String> {
    (kind == ProfileKind::Compose)
        .then(|| format!("{}:{}", component.repository, component.revision.as_str()))
}

/// What a document says, in any of this generation's shapes. `reader` is the device that a document without
/// a `deviceId` is for (MI-G1-212).
///
/// # Errors
/// Every broken rule; never empty.
pub fn read(bytes: &[u8], reader: &DeviceId) -> Result<Workload, Vec<Violation>> {
    read_node(&document::read_tree(bytes)?, reader)
}

pub(crate) fn read_node(node: &Node, reader: &DeviceId) -> Result<Workload, Vec<Violation>> {
    document::read_node(node, Source::OlderDocument, Some(reader))
}
