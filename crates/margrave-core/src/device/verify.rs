//! Nothing unverified is ever applied: the one way from a manifest to desired state.

use std::collections::BTreeMap;

use crate::digest::{Digest, Document};
use crate::manifest::{Accepted, Entry, Manifest};

/// A manifest of which every document is here with the right digest. There is no other constructor.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified {
    manifest: Manifest,
    body: Digest,
}

/// Documents that a manifest lists and nobody has seen yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} of the manifest's documents are missing", .0.len())]
pub struct Missing(pub Vec<Entry>);

impl Verified {
    /// `arrived` and `held` are documents whose digests were computed from their bytes here.
    pub fn new(
        manifest: Manifest,
        body: Digest,
        arrived: &[Document],
        held: impl Fn(&Digest) -> bool,
    ) -> Result<Self, Missing> {
        let arrived: BTreeMap<Digest, ()> = arrived.iter().map(|document| (document.digest(), ())).collect();
        let here = |entry: &&Entry| {
            let digest = &entry.document.digest;
            !arrived.contains_key(digest) && !held(digest)
        };
        let missing: Vec<Entry> = manifest.entries().iter().filter(here).copied().collect();
        if missing.is_empty() { Ok(Verified { manifest, body }) } else { Err(Missing(missing)) }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub fn accepted(&self) -> Accepted {
        Accepted {
            version: self.manifest.version(),
            body: self.body,
            bundle: self.manifest.bundle(),
            entries: self.manifest.entries().to_vec(),
            leaving: self.manifest.leaving().to_vec(),
        }
    }
}
