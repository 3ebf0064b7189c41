//! What must stay in our own registry because packages of the catalog go by it. Other registries do as they like, which is
//! noticed afterwards (`origin.rs`); here it is known beforehand.

use std::collections::BTreeSet;

use margrave_core::digest::Digest;
use margrave_core::image::Image;
use margrave_core::package::Component;
use margrave_oci::manifest::ImageIndex;
use margrave_oci::reference::{Reference, Repository, RepositoryName, TagOrDigest};

use super::catalog::Entry;
use super::{Error, Fleet};

impl Fleet {
    /// The packages that go by a manifest of our own registry, as what they are, as a component or as an image; `id version`.
    pub async fn kept_for(&self, name: &RepositoryName, digest: &Digest) -> Result<Vec<String>, Error> {
        let mut kept = Vec::new();
        for entry in self.entries().await? {
            if goes_by(&entry, name, digest) || self.has_image(&entry, name, digest).await {
                kept.push(format!("{} {}", entry.record.id, entry.record.version));
            }
        }
        Ok(kept)
    }

    async fn has_image(&self, entry: &Entry, name: &RepositoryName, digest: &Digest) -> bool {
        let here = |(image, known): (&String, &Image)| {
            let reference = self.image_reference(image).ok()?;
            known.digest.filter(|_| is_here(&reference.repository, name))
        };
        let pinned: BTreeSet<Digest> = entry.record.images.known.iter().filter_map(here).collect();
        if pinned.contains(digest) {
            return true;
        }
        // One of several images, by processor, is as needed as the list that says which.
        for list in pinned {
            // A list that is damaged names nothing any more.
            let found = self.registry.manifest(name, &TagOrDigest::Digest(list)).await.ok().flatten();
            let index = found.and_then(|found| ImageIndex::from_bytes(&found.bytes).ok());
            if index.is_some_and(|index| index.manifests.iter().any(|one| one.digest == *digest)) {
                return true;
            }
        }
        false
    }
}

/// Whether a package or one of its components is this.
fn goes_by(entry: &Entry, name: &RepositoryName, digest: &Digest) -> bool {
    let package = Reference::parse(&entry.record.reference);
    let is_package =
        entry.record.digest == *digest && package.is_ok_and(|package| is_here(&package.repository, name));
    let is_component = |component: &Component| {
        entry.pin(component) == Some(*digest)
            && Repository::parse(&component.repository).is_ok_and(|repository| is_here(&repository, name))
    };
    is_package || entry.package.profiles.iter().flat_map(|profile| &profile.components).any(is_component)
}

fn is_here(repository: &Repository, name: &RepositoryName) -> bool {
    repository.host.is_own_registry() && repository.name == *name
}
