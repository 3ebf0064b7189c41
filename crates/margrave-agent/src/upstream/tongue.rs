//! Which generation's paths and bodies are spoken.

use margrave_core::capabilities::Capabilities;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId};
use margrave_core::report::Report;
use margrave_wire::g2::manifest::Listing;
use margrave_wire::identity::REGISTRY_TOKEN_PATH;
use margrave_wire::{BodyError, g1, g2};

/// Domain types in, paths and bytes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tongue {
    G2,
    /// With the id that the server gave this client.
    G1(ClientId),
}

impl Tongue {
    pub(crate) fn capabilities(&self, capabilities: &Capabilities) -> Vec<u8> {
        match self {
            Tongue::G2 => g2::capabilities::write(capabilities),
            Tongue::G1(_) => g1::capabilities::write(capabilities),
        }
    }

    /// Where capabilities go; of several, the next is tried where the one before is unknown (1.15).
    pub(crate) fn capabilities_paths(&self, device: &DeviceId) -> Vec<String> {
        match self {
            Tongue::G2 => vec![g2::capabilities_path(device)],
            Tongue::G1(client) => {
                vec![g1::capabilities_path(client, device), g1::capabilities_path_without_device(client)]
            }
        }
    }

    pub(crate) fn status(&self, report: &Report) -> Vec<u8> {
        match self {
            Tongue::G2 => g2::status::write(report),
            Tongue::G1(_) => g1::status::write(report),
        }
    }

    /// Where reports go; of several, the next is tried where the one before is unknown (1.15).
    pub(crate) fn status_paths(&self, assignment: AssignmentId) -> Vec<String> {
        match self {
            Tongue::G2 => vec![g2::status_path(assignment)],
            Tongue::G1(client) => {
                vec![g1::status_path(client, assignment), g1::status_path_singular(client, assignment)]
            }
        }
    }

    /// Where a server of ours gives a login for its registry.
    pub(crate) fn registry_token_path(&self) -> String {
        match self {
            Tongue::G2 => REGISTRY_TOKEN_PATH.to_owned(),
            Tongue::G1(client) => g1::registry_token_path(client),
        }
    }

    pub(crate) fn manifest_path(&self) -> String {
        match self {
            Tongue::G2 => g2::MANIFEST_PATH.to_owned(),
            Tongue::G1(client) => g1::manifest_path(client),
        }
    }

    pub(crate) fn manifest(&self, bytes: &[u8]) -> Result<Listing, BodyError> {
        match self {
            Tongue::G2 => g2::manifest::read(bytes),
            Tongue::G1(client) => g1::manifest::read(client, bytes),
        }
    }

    pub(crate) fn document_path(&self, id: AssignmentId, digest: &Digest) -> String {
        match self {
            Tongue::G2 => g2::manifest::document_path(id, digest),
            Tongue::G1(client) => g1::document_path(client, id, digest),
        }
    }

    pub(crate) fn bundle_path(&self, digest: &Digest) -> String {
        match self {
            Tongue::G2 => g2::manifest::bundle_path(digest),
            Tongue::G1(client) => g1::bundle_path(client, digest),
        }
    }
}
