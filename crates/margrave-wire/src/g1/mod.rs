//! The device protocol of Margo's preview ("signed"): paths, bodies, problem types.
//!
//! Five snapshots of it are in the field (management-interface.md, 1.15). Readers take all of them, writers
//! produce the one of S1-OAS. What is signed and how is in [`crate::signature`].

pub mod capabilities;
pub mod document;
pub mod manifest;
pub mod onboarding;
pub mod problem;
pub mod status;

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId};

use crate::g2::manifest::{bundle_under, document_under};
use crate::tree::{At, Findings};

/// Where a client hands in its certificate.
pub const ONBOARDING_PATH: &str = "/api/v1/onboarding";
/// Where anybody gets the root of the server's own certificate.
pub const ROOT_CERTIFICATE_PATH: &str = "/api/v1/onboarding/certificate";

/// The last part of [`registry_token_path`].
pub const REGISTRY_TOKEN: &str = "x-margrave-registry-token";

fn client_path(client: &ClientId) -> String {
    format!("/api/v1/clients/{client}")
}

/// Where a client polls its manifest.
pub fn manifest_path(client: &ClientId) -> String {
    format!("/api/v1/clients/{client}/deployments")
}

/// Where a document is served (MI-G1-088).
pub fn document_path(client: &ClientId, id: AssignmentId, digest: &Digest) -> String {
    document_under(&client_path(client), id, digest)
}

/// Where a bundle is served (MI-G1-087).
pub fn bundle_path(client: &ClientId, digest: &Digest) -> String {
    bundle_under(&client_path(client), digest)
}

/// Where a client says what one of its devices is.
pub fn capabilities_path(client: &ClientId, device: &DeviceId) -> String {
    format!("/api/v1/clients/{client}/capabilities/{device}")
}

/// Where a client says how one of its deployments fares.
pub fn status_path(client: &ClientId, assignment: AssignmentId) -> String {
    format!("/api/v1/clients/{client}/deployments/{assignment}/status")
}

/// Where capabilities go at servers of the oldest snapshots, which know one device per client (1.15).
pub fn capabilities_path_without_device(client: &ClientId) -> String {
    format!("/api/v1/clients/{client}/capabilities")
}

/// Where a client gets what its container engine needs to pull from our own registry; no other server has it.
pub fn registry_token_path(client: &ClientId) -> String {
    format!("/api/v1/clients/{client}/{REGISTRY_TOKEN}")
}

/// Where reports go at servers of the oldest snapshot (1.15).
pub fn status_path_singular(client: &ClientId, assignment: AssignmentId) -> String {
    format!("/api/v1/clients/{client}/deployment/{assignment}/status")
}

/// Refuses a body of another kind. Several snapshots leave `kind` and `apiVersion` away, and none says
/// which versions there are, so that only a wrong `kind` is wrong.
fn check_kind(root: &At<'_>, wanted: &str, rule: &'static str, findings: &mut Findings) {
    if let Some(at) = root.field("kind")
        && let Some(kind) = findings.text(&at, rule)
        && kind != wanted
    {
        let shown: String = kind.chars().take(60).collect();
        findings.add(at.place, rule, format!("must be {wanted}, got {shown:?}"));
    }
}
