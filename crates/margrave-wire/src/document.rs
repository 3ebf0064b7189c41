//! A document of whatever generation: what an agent that speaks to any server reads.

use margrave_core::id::DeviceId;
use margrave_core::violation::Violation;
use margrave_core::workload::Workload;

use crate::tree::Node;
use crate::{g1, g2};

/// What a document says, in the current shape or in one of the older ones; each is judged by the rules of the
/// shape it looks like. `reader` is the device that an older document without a `deviceId` is for.
///
/// # Errors
/// Every broken rule; never empty.
pub fn read_any(bytes: &[u8], reader: &DeviceId) -> Result<Workload, Vec<Violation>> {
    let node = g2::document::read_tree(bytes)?;
    if looks_older(&node) {
        g1::document::read_node(&node, reader)
    } else {
        g2::document::read_node(&node, crate::description::profile::Source::Document, None)
    }
}

/// Everything that the current shape dropped (DM-073).
fn looks_older(node: &Node) -> bool {
    let annotated = node.get("metadata").is_some_and(|metadata| metadata.get("annotations").is_some());
    annotated || node.get("apiVersion").is_some() || node.get("kind").is_some()
}
