//! The device protocol of Margo 1.0.0-rc.3 ("MIAF"): bodies, media types, problem types.

pub mod capabilities;
pub mod document;
pub mod manifest;
pub mod status;
pub mod validator;

/// Where our own additions live in every body; others ignore it (DM-202).
pub const EXTENSION: &str = "x-margrave-extensions";

/// Where a client polls its manifest.
pub const MANIFEST_PATH: &str = "/api/v1/deployments";

/// Where a client says what one of its devices is.
pub fn capabilities_path(device: &margrave_core::id::DeviceId) -> String {
    format!("/api/v1/capabilities/{device}")
}

/// Where a client says how one of its deployments fares.
pub fn status_path(assignment: margrave_core::id::AssignmentId) -> String {
    format!("/api/v1/deployments/{assignment}/status")
}
