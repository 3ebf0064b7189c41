//! State manifests: [`Manifest`] ↔ JSON. As in g2, except that the paths name the client.

use margrave_core::id::ClientId;
use margrave_core::manifest::Manifest;

use crate::body::BodyError;
use crate::g1::client_path;
use crate::g2::manifest;
pub use crate::g2::manifest::{Listing, MEDIA_TYPE, SIZE_MAX};

/// The manifest's bytes, canonical (MI-G1-093).
pub fn write(client: &ClientId, manifest: &Manifest) -> Vec<u8> {
    manifest::write_under(&client_path(client), manifest)
}

/// A manifest that `client` may act on, once it has judged the version.
pub fn read(client: &ClientId, bytes: &[u8]) -> Result<Listing, BodyError> {
    manifest::read_under(&client_path(client), bytes)
}
