//! The catalog: packages pulled, checked and pinned once, then deployed from memory.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_core::id::{ComponentName, PackageId, PackageVersion};
use margrave_core::package::{Component, Package, Profile, ProfileKind};
use margrave_core::violation::Violation;
use margrave_oci::compose;
use margrave_oci::manifest::Descriptor;
use margrave_oci::package::{DESCRIPTION_BYTES_MAX, PackageManifest, RESOURCE_BYTES_MAX, ResourceKind};
use margrave_oci::reference::{Reference, Repository, TagOrDigest};
use margrave_registry::RegistryError;
use margrave_store::{PackageError, PackageRecord, ResourceRecord};
use margrave_wire::{description, operator};
use tokio::io::AsyncReadExt as _;

use super::intent::Change;
use super::{Actor, Error, Fleet, Resource};

/// More components than any application has; each costs a question to a registry.
const COMPONENTS_MAX: usize = 200;

/// A package as it can be deployed.
pub(super) struct Entry {
    pub(super) record: PackageRecord,
    pub(super) package: Package,
}

impl Entry {
    /// The digest behind a component's reference when the package was added.
    pub(super) fn pin(&self, component: &Component) -> Option<Digest> {
        self.record.pins.get(&pin_key(component)).copied()
    }

    pub(super) fn pins(&self, profile: &Profile) -> BTreeMap<ComponentName, Digest> {
        let pinned = |component: &Component| Some((component.name.clone(), self.pin(component)?));
        profile.components.iter().filter_map(pinned).collect()
    }
}

fn pin_key(component: &Component) -> String {
    format!("{}:{}", component.repository, component.revision.as_str())
}

/// Descriptions are parsed once; a package never changes under its id and version.
#[derive(Default)]
pub(super) struct Catalog {
    parsed: RwLock<HashMap<(PackageId, PackageVersion), Arc<Entry>>>,
}

/// Everything that adding a package brings.
pub(super) struct Pulled {
    record: PackageRecord,
    resources: Vec<ResourceRecord>,
}

impl Fleet {
    /// A package of the catalog, parsed.
    pub(super) async fn entry(
        &self,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<Option<Arc<Entry>>, Error> {
        let key = (id.clone(), version.clone());
        if let Some(entry) = self.catalog.parsed.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Some(entry.clone()));
        }
        match self.store.package(id, version).await? {
            Some(record) => self.parsed(record).map(Some),
            None => Ok(None),
        }
    }

    fn parsed(&self, record: PackageRecord) -> Result<Arc<Entry>, Error> {
        let key = (record.id.clone(), record.version.clone());
        if let Some(entry) = self.catalog.parsed.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(entry.clone());
        }
        // It was valid when it was added; a stricter reader of a later version must say so and not guess.
        let package = description::read(&record.description).map_err(Error::Invalid)?;
        let entry = Arc::new(Entry { record, package });
        self.catalog.parsed.write().unwrap_or_else(PoisonError::into_inner).insert(key, entry.clone());
        Ok(entry)
    }

    /// All packages, by id, newest version first.
    pub(super) async fn entries(&self) -> Result<Vec<Arc<Entry>>, Error> {
        let mut entries = Vec::new();
        for record in self.store.packages().await? {
            let (id, version) = (record.id.clone(), record.version.clone());
            match self.parsed(record) {
                Ok(entry) => entries.push(entry),
                Err(error) => {
                    tracing::error!(package = %id, %version, error = &error as &dyn std::error::Error, "a package of the catalog cannot be read any more and is left out")
                }
            }
        }
        entries.sort_by(|a, b| {
            let newest_first = || by_version(b.record.version.as_str(), a.record.version.as_str());
            a.record.id.cmp(&b.record.id).then_with(newest_first)
        });
        Ok(entries)
    }

    pub async fn add_package(
        &self,
        actor: &Actor,
        want: operator::AddPackage,
    ) -> Result<operator::Package, Error> {
        let pulled = self.pull(actor, &want.reference).await?;
        let (id, version) = (pulled.record.id.clone(), pulled.record.version.clone());
        self.change(actor, Change::AddPackage(Box::new(pulled))).await?;
        self.package(&id, &version).await
    }

    pub async fn remove_package(
        &self,
        actor: &Actor,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<(), Error> {
        self.change(actor, Change::RemovePackage { id: id.clone(), version: version.clone() }).await
    }

    /// A file that lies in the package beside its description.
    pub async fn package_resource(
        &self,
        id: &PackageId,
        version: &PackageVersion,
        path: &str,
    ) -> Result<Resource, Error> {
        let path = path.strip_prefix("./").unwrap_or(path);
        let found = self.store.package_resource(id, version, path).await?;
        let ResourceRecord { media_type, bytes, .. } =
            found.ok_or_else(|| Error::not_found(format!("file {path} in package {id} {version}")))?;
        Ok(Resource { media_type, bytes: Bytes::from(bytes) })
    }

    pub(super) async fn keep_package(&self, pulled: Pulled) -> Result<(), Error> {
        let Pulled { record, resources } = pulled;
        let (id, version) = (record.id.clone(), record.version.clone());
        match self.store.add_package(record, resources).await {
            Ok(_) => Ok(()),
            Err(PackageError::OtherDigest { stored }) => Err(Error::conflict(format!(
                "{id} {version} is in the catalog already with other content ({}); give the changed package a new \
                 version, or remove the old one first",
                stored.short()
            ))),
            Err(error) => Err(package_error(error, &id, &version)),
        }
    }

    pub(super) async fn drop_package(
        &self,
        actor: &Actor,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<(), Error> {
        let removed = self.store.remove_package(id, version, self.now(), &actor.name).await;
        removed.map_err(|error| package_error(error, id, version))?;
        self.catalog
            .parsed
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&(id.clone(), version.clone()));
        Ok(())
    }

    /// Pulls a package and checks everything about it; nothing is stored yet.
    async fn pull(&self, actor: &Actor, reference: &str) -> Result<Pulled, Error> {
        let reference = Reference::parse(reference)
            .map_err(|error| Error::invalid("/reference", "PK-010", error.to_string()))?;
        let what = format!("the package {reference}");
        let (digest, bytes) = self.manifest_of(&reference, &what).await?;
        let manifest = PackageManifest::read(&reference.to_string(), &bytes)
            .map_err(|error| Error::invalid("/reference", "PK-020", error.to_string()))?;
        let description =
            self.blob(&reference.repository, &manifest.description, DESCRIPTION_BYTES_MAX, &what).await?;
        let package = description::read(&description).map_err(Error::Invalid)?;
        if let TagOrDigest::Tag(tag) = &reference.version
            && tag.as_str() != package.version.as_str()
        {
            let message = format!(
                "the tag {tag} holds version {}; push the package under the tag {}, or name it by digest",
                package.version, package.version
            );
            return Err(Error::invalid("/reference", "PK-014", message));
        }
        let pins = self.resolve_components(&package).await?;
        let resources = self.resources(&reference, &manifest, &package, &what).await?;
        let record = PackageRecord {
            id: package.id.clone(),
            version: package.version.clone(),
            reference: reference.pinned(digest).to_string(),
            digest,
            description: description.to_vec(),
            pins,
            added_at: self.now(),
            added_by: actor.name.clone(),
        };
        Ok(Pulled { record, resources })
    }

    /// The files that the description shows in a catalog. One that is missing does not stop an application from
    /// running, so it is only told.
    async fn resources(
        &self,
        reference: &Reference,
        manifest: &PackageManifest,
        package: &Package,
        what: &str,
    ) -> Result<Vec<ResourceRecord>, Error> {
        let catalog = &package.catalog;
        let named = [
            (ResourceKind::Icon, &catalog.icon),
            (ResourceKind::DescriptionFile, &catalog.description_file),
            (ResourceKind::LicenseFile, &catalog.license_file),
            (ResourceKind::ReleaseNotes, &catalog.release_notes),
        ];
        let mut resources: Vec<ResourceRecord> = Vec::new();
        for (kind, path) in named {
            let Some(path) = path else { continue };
            let path = path.strip_prefix("./").unwrap_or(path);
            if resources.iter().any(|resource| resource.path == path) {
                continue;
            }
            let Some(found) = manifest.resource(kind, path) else {
                tracing::warn!(%reference, path, "the description names a file that is not in the package");
                continue;
            };
            let bytes =
                self.blob(&reference.repository, &found.layer, RESOURCE_BYTES_MAX, what).await?.to_vec();
            let media_type = found.layer.media_type.clone();
            resources.push(ResourceRecord { path: path.to_owned(), media_type, bytes });
        }
        Ok(resources)
    }

    /// The digest behind every component's tag, so that devices run what was checked here (PK-053).
    async fn resolve_components(&self, package: &Package) -> Result<BTreeMap<String, Digest>, Error> {
        let of = |profile| move |component| (profile, component);
        let components: Vec<(&Profile, &Component)> =
            package.profiles.iter().flat_map(|profile| profile.components.iter().map(of(profile))).collect();
        if components.len() > COMPONENTS_MAX {
            let message = format!("a package has at most {COMPONENTS_MAX} components");
            return Err(Error::invalid("/deploymentProfiles", "DM-022", message));
        }
        let mut pins = BTreeMap::new();
        for (profile, component) in components {
            let what = format!("component {} of profile {}", component.name, profile.id);
            let invalid = |rule, message: String| {
                Error::invalid("/deploymentProfiles", rule, format!("{what}: {message}"))
            };
            let repository = Repository::parse(&component.repository)
                .map_err(|error| invalid("DM-030", error.to_string()))?;
            let reference = repository
                .at_revision(component.revision.as_str())
                .map_err(|error| invalid("DM-031", error.to_string()))?;
            let (digest, manifest) = self.manifest_of(&reference, &what).await?;
            if profile.kind == ProfileKind::Compose {
                compose::layer_of(&reference.to_string(), &manifest)
                    .map_err(|error| invalid("PK-078", error.to_string()))?;
            }
            pins.insert(pin_key(component), digest);
        }
        Ok(pins)
    }

    /// A manifest and its digest, from our own registry or another.
    async fn manifest_of(&self, reference: &Reference, what: &str) -> Result<(Digest, Bytes), Error> {
        if !reference.repository.host.is_own_registry() {
            let found = self.upstream.manifest(reference).await.map_err(|error| upstream(what, error))?;
            return Ok((found.digest, found.bytes));
        }
        match self.registry.manifest(&reference.repository.name, &reference.version).await {
            Ok(Some(found)) => Ok((found.digest, found.bytes)),
            Ok(None) | Err(RegistryError::ManifestUnknown) => Err(Error::Upstream {
                message: format!("{what}: {reference} is not in this server's registry; push it first"),
                source: None,
            }),
            Err(error) => Err(upstream(what, error)),
        }
    }

    /// A blob whose bytes are those that the manifest promises.
    async fn blob(
        &self,
        repository: &Repository,
        layer: &Descriptor,
        max: u64,
        what: &str,
    ) -> Result<Bytes, Error> {
        if layer.size > max {
            let message = format!("{what}: a file has {} bytes, at most {max} are allowed", layer.size);
            return Err(Error::invalid("/reference", "PK-023", message));
        }
        if !repository.host.is_own_registry() {
            return self.upstream.blob(repository, layer, max).await.map_err(|error| upstream(what, error));
        }
        let broken = |how: &str| Error::Upstream {
            message: format!(
                "{what}: the file {} {how} in this server's registry; push it again",
                layer.digest.short()
            ),
            source: None,
        };
        let found = self
            .registry
            .blob(&repository.name, &layer.digest)
            .await
            .map_err(|error| upstream(what, error))?;
        let found = found.ok_or_else(|| broken("is not"))?;
        let read = async {
            let mut bytes = Vec::new();
            tokio::fs::File::open(&found.path).await?.take(max + 1).read_to_end(&mut bytes).await?;
            Ok::<_, std::io::Error>(bytes)
        };
        let bytes = read.await.map_err(|error| upstream(what, error))?;
        if Digest::of(&bytes) != layer.digest {
            return Err(broken("is damaged"));
        }
        Ok(Bytes::from(bytes))
    }
}

fn upstream(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Upstream { message: format!("{what}: {error}"), source: Some(Box::new(error)) }
}

fn package_error(error: PackageError, id: &PackageId, version: &PackageVersion) -> Error {
    match error {
        PackageError::InUse(by) => Error::InUse { what: format!("package {id} {version}"), by },
        PackageError::Unknown => Error::not_found(format!("package {id} {version}")),
        PackageError::OtherDigest { .. } => Error::conflict(error.to_string()),
        PackageError::Store(error) => error.into(),
    }
}

/// Which of two versions is newer: by their numbers, a pre-release before its release, then by their text.
/// Versions are free text by the standard (DM-011), so this must not fail on any.
pub(super) fn by_version(a: &str, b: &str) -> Ordering {
    fn parts(version: &str) -> (Vec<u64>, bool, &str) {
        let (numbers, rest) = match version.find(['-', '_']) {
            Some(at) => version.split_at(at),
            None => (version, ""),
        };
        let numbers =
            numbers.trim_start_matches('v').split('.').map(|part| part.parse().unwrap_or(0)).collect();
        (numbers, !rest.starts_with('-'), rest)
    }
    parts(a).cmp(&parts(b)).then_with(|| a.cmp(b))
}

/// Violations of a list that may be empty, as a result.
pub(super) fn all_kept(violations: Vec<Violation>) -> Result<(), Error> {
    if violations.is_empty() { Ok(()) } else { Err(Error::Invalid(violations)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pk_017_versions_are_ordered_by_number_and_not_by_letter() {
        let mut versions = ["1.10.0", "1.9.0", "2.0.0-rc.1", "2.0.0", "nightly", "1.9", "v1.9.1"];
        versions.sort_by(|a, b| by_version(a, b));
        assert_eq!(versions, ["nightly", "1.9", "1.9.0", "v1.9.1", "1.10.0", "2.0.0-rc.1", "2.0.0"]);
    }
}
