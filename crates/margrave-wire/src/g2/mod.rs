//! The device protocol of Margo 1.0.0-rc.3 ("MIAF"): bodies, media types, problem types.

pub mod capabilities;
pub mod document;
pub mod manifest;
pub mod status;

/// Where our own additions live in every body; others ignore it (DM-202).
pub const EXTENSION: &str = "x-margrave-extensions";
