//! The catalog: packages pulled, checked and pinned once, then deployed from memory.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use margrave_core::chain::sentence;
use margrave_core::constraints::{Claims, Need};
use margrave_core::digest::Digest;
use margrave_core::id::{ComponentName, PackageId, PackageVersion, ProfileId};
use margrave_core::image::{Image, Named};
use margrave_core::package::{Component, Package, Profile, ProfileKind};
use margrave_core::violation::Violation;
use margrave_oci::archive::{self, ArchiveError};
use margrave_oci::client::ClientError;
use margrave_oci::compose;
use margrave_oci::manifest::{Descriptor, ImageManifest};
use margrave_oci::package::{DESCRIPTION_BYTES_MAX, PackageManifest, RESOURCE_BYTES_MAX, ResourceKind};
use margrave_oci::reference::{Reference, Repository, TagOrDigest};
use margrave_registry::RegistryError;
use margrave_store::{PackageRecord, ResourceRecord};
use margrave_wire::{description, operator};
use tokio::io::AsyncReadExt as _;

use super::images::{self, Asking, Uses};
use super::intent::Change;
use super::{Actor, Error, Fleet, Resource};

/// More components than any application has; each costs a question to a registry.
const COMPONENTS_MAX: usize = 200;
/// More is not read of a Compose file, only checked.
const COMPOSE_BYTES_MAX: u64 = margrave_wire::yaml::SIZE_MAX as u64 + 1;
/// All archives of one package together. Each is fetched and read to its end, which somebody waits for.
const ARCHIVES_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// A package as it can be deployed.
pub(super) struct Entry {
    pub(super) record: PackageRecord,
    pub(super) package: Package,
    /// What each profile takes of a device.
    pub(super) needs: BTreeMap<ProfileId, Arc<Need>>,
}

impl Entry {
    /// It was valid when it was added; a stricter reader of a later version must say so and not guess.
    pub(super) fn read(record: PackageRecord) -> Result<Entry, Error> {
        let package = description::read(&record.description).map_err(Error::Invalid)?;
        let need = |profile: &Profile| {
            let mut claims = Claims::default();
            for Claims { ports, volumes } in
                profile.components.iter().filter_map(|component| record.claims.get(&pin_key(component)))
            {
                claims.ports.extend(ports.iter().cloned());
                claims.volumes.extend(volumes.iter().cloned());
            }
            (profile.id.clone(), Arc::new(Need::of(profile, claims)))
        };
        let needs = package.profiles.iter().map(need).collect();
        Ok(Entry { record, package, needs })
    }

    /// The digest behind a component's reference when the package was added.
    pub(super) fn pin(&self, component: &Component) -> Option<Digest> {
        self.record.pins.get(&pin_key(component)).copied()
    }

    /// What a device fetches for a component, in bytes, where that was told when the package was added.
    pub(super) fn size(&self, component: &Component) -> Option<u64> {
        self.record.sizes.get(&pin_key(component)).copied()
    }

    pub(super) fn pins(&self, profile: &Profile) -> BTreeMap<ComponentName, Digest> {
        let pinned = |component: &Component| Some((component.name.clone(), self.pin(component)?));
        profile.components.iter().filter_map(pinned).collect()
    }

    /// The images that a component names, and what is known of each; `None` where the component was not looked at.
    pub(super) fn images<'a>(
        &'a self,
        component: &Component,
    ) -> Option<impl Iterator<Item = (&'a str, Option<&'a Image>)> + use<'a>> {
        let images = &self.record.images;
        let named = images.named.get(&pin_key(component))?;
        Some(named.iter().map(|name| (name.as_str(), images.known.get(name))))
    }

    /// The components whose Compose files were not read for images: from before that was done, or because they cannot be read here.
    pub(super) fn unread(&self) -> BTreeSet<&ComponentName> {
        let compose = self.package.profiles.iter().filter(|profile| profile.kind == ProfileKind::Compose);
        let components = compose.flat_map(|profile| &profile.components);
        let unread =
            components.filter(|component| !self.record.images.named.contains_key(&pin_key(component)));
        unread.map(|component| &component.name).collect()
    }

    /// What the names of the components' images mean, where that was found out.
    pub(super) fn image_pins(&self, profile: &Profile) -> BTreeMap<ComponentName, BTreeMap<String, Digest>> {
        let pinned =
            |component: &Component| (component.name.clone(), self.record.images.pins(&pin_key(component)));
        profile.components.iter().map(pinned).filter(|(_, images)| !images.is_empty()).collect()
    }
}

fn pin_key(component: &Component) -> String {
    format!("{}:{}", component.repository, component.revision.as_str())
}

type Key = (PackageId, PackageVersion);

/// Descriptions are parsed once; what changes of a package under its id and version is forgotten here.
#[derive(Default)]
pub(super) struct Catalog {
    parsed: RwLock<Parsed>,
}

#[derive(Default)]
struct Parsed {
    entries: HashMap<Key, Arc<Entry>>,
    generation: Generation,
}

/// How often something was forgotten. What was read from the store before may be what was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Generation(u64);

impl Catalog {
    /// These are not there any more, or not as they were.
    pub(super) fn forget(&self, gone: &BTreeSet<Key>) {
        if !gone.is_empty() {
            let mut parsed = self.parsed.write().unwrap_or_else(PoisonError::into_inner);
            parsed.entries.retain(|key, _| !gone.contains(key));
            parsed.generation.0 += 1;
        }
    }

    /// To be asked before the store is.
    pub(super) fn generation(&self) -> Generation {
        self.parsed.read().unwrap_or_else(PoisonError::into_inner).generation
    }

    fn held(&self, key: &Key) -> Option<Arc<Entry>> {
        self.parsed.read().unwrap_or_else(PoisonError::into_inner).entries.get(key).cloned()
    }

    /// Keeps what was read in this generation, unless it ended meanwhile.
    fn keep(&self, key: Key, entry: Arc<Entry>, read: Generation) {
        let mut parsed = self.parsed.write().unwrap_or_else(PoisonError::into_inner);
        if parsed.generation == read {
            parsed.entries.insert(key, entry);
        }
    }
}

/// Under what it is remembered that no package is from before claims were read.
const CLAIMS_READ: &str = "packages.claims-read";

/// Everything that adding a package brings.
pub(super) struct Pulled {
    pub(super) record: PackageRecord,
    pub(super) resources: Vec<ResourceRecord>,
    /// Somebody says what images mean, and is told when that cannot be.
    pub(super) pinning: bool,
}

/// What a component's archive says of itself.
struct Looked {
    claims: Claims,
    /// `None` where its Compose file cannot be read here.
    images: Option<BTreeMap<String, Named>>,
}

#[derive(Default)]
struct Resolved {
    pins: BTreeMap<String, Digest>,
    sizes: BTreeMap<String, u64>,
    claims: BTreeMap<String, Claims>,
    images: Uses,
}

impl Pulled {
    /// `id version`.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.record.id, self.record.version)
    }
}

impl Fleet {
    /// A package of the catalog, parsed.
    pub(super) async fn entry(
        &self,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<Option<Arc<Entry>>, Error> {
        if let Some(entry) = self.catalog.held(&(id.clone(), version.clone())) {
            return Ok(Some(entry));
        }
        let read = self.catalog.generation();
        match self.store.package(id, version).await? {
            Some(record) => self.parsed(record, read).map(Some),
            None => Ok(None),
        }
    }

    /// A row of the store that was read in this generation.
    pub(super) fn parsed(&self, record: PackageRecord, read: Generation) -> Result<Arc<Entry>, Error> {
        let key = (record.id.clone(), record.version.clone());
        if let Some(entry) = self.catalog.held(&key) {
            return Ok(entry);
        }
        let entry = Arc::new(Entry::read(record)?);
        self.catalog.keep(key, entry.clone(), read);
        Ok(entry)
    }

    /// All packages, by id, newest version first.
    pub(super) async fn entries(&self) -> Result<Vec<Arc<Entry>>, Error> {
        let mut entries = Vec::new();
        let read = self.catalog.generation();
        for record in self.store.packages().await? {
            let (id, version) = (record.id.clone(), record.version.clone());
            match self.parsed(record, read) {
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

    /// Adds what lies at a reference. Which package that is, `id version`, is told to `named` once it is known and before anything
    /// is written: who is cut off then has left its name.
    pub async fn add_package(
        &self,
        actor: &Actor,
        want: operator::AddPackage,
        named: impl FnOnce(String) + Send,
    ) -> Result<operator::Package, Error> {
        let pulled = self.pull(actor, &want.reference).await?;
        named(pulled.name());
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

    /// Pulls a package and checks everything about it; nothing is stored yet.
    pub(super) async fn pull(&self, actor: &Actor, reference: &str) -> Result<Pulled, Error> {
        self.pull_pinned(actor, reference, &BTreeMap::new(), &mut Asking::default()).await
    }

    /// The same with images that mean what `given` says, as one of several packages that come in together.
    pub(super) async fn pull_pinned(
        &self,
        actor: &Actor,
        reference: &str,
        given: &BTreeMap<String, Digest>,
        asking: &mut Asking,
    ) -> Result<Pulled, Error> {
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
        let Resolved { pins, sizes, claims, images } = self.resolve_components(&package).await?;
        let images = self.find_images(&images, given, asking).await?;
        all_kept(images::misplaced(&images, given))?;
        let resources = self.resources(&reference, &manifest, &package, &what).await?;
        let record = PackageRecord {
            id: package.id.clone(),
            version: package.version.clone(),
            reference: reference.pinned(digest).to_string(),
            digest,
            description: description.to_vec(),
            pins,
            sizes,
            claims,
            images,
            added_at: self.now(),
            added_by: actor.name.clone(),
        };
        Ok(Pulled { record, resources, pinning: !given.is_empty() })
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
        let mut resources: Vec<ResourceRecord> = Vec::new();
        for (kind, path) in ResourceKind::named_in(&package.catalog) {
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

    /// The digest behind every component's tag, so that devices run what was checked here (PK-053), what each takes of a device for
    /// itself, and which images it names.
    async fn resolve_components(&self, package: &Package) -> Result<Resolved, Error> {
        let of = |profile| move |component| (profile, component);
        let components: Vec<(&Profile, &Component)> =
            package.profiles.iter().flat_map(|profile| profile.components.iter().map(of(profile))).collect();
        if components.len() > COMPONENTS_MAX {
            let message = format!("a package has at most {COMPONENTS_MAX} components");
            return Err(Error::invalid("/deploymentProfiles", "DM-022", message));
        }
        let mut resolved = Resolved::default();
        let mut archives_left = ARCHIVES_BYTES_MAX;
        for (profile, component) in components {
            if resolved.pins.contains_key(&pin_key(component)) {
                continue;
            }
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
                let layer = compose::layer_of(&reference.to_string(), &manifest)
                    .map_err(|error| invalid("PK-078", error.to_string()))?;
                archives_left = archives_left.checked_sub(layer.size).ok_or_else(|| {
                    let message = format!(
                        "the archives of one package have at most {ARCHIVES_BYTES_MAX} bytes together"
                    );
                    invalid("PK-087", message)
                })?;
                let Looked { claims, images } = self.check_archive(&repository, &layer, &what).await?;
                if claims != Claims::default() {
                    resolved.claims.insert(pin_key(component), claims);
                }
                resolved.images.extend(images.map(|images| (pin_key(component), images)));
            }
            resolved.sizes.extend(size_of(&manifest).map(|size| (pin_key(component), size)));
            resolved.pins.insert(pin_key(component), digest);
        }
        Ok(resolved)
    }

    /// Packages that were added before it was known what of a device they take for themselves are read once more, from what was
    /// pinned. What cannot be had now is tried again at the next start.
    pub(crate) async fn read_claims_again(&self) -> Result<(), Error> {
        if self.store.recall(CLAIMS_READ).await?.is_some() {
            return Ok(());
        }
        let mut all = true;
        for record in self.store.packages().await?.into_iter().filter(|record| record.claims.is_empty()) {
            let (id, version) = (record.id.clone(), record.version.clone());
            let Ok(package) = description::read(&record.description) else { continue };
            match self.claims_of(&record, &package).await {
                Ok(claims) if claims.is_empty() => {}
                Ok(claims) => {
                    self.store.put_claims(&id, &version, claims).await?;
                    self.catalog.forget(&BTreeSet::from([(id, version)]));
                }
                Err(error) => {
                    tracing::warn!(%id, %version, error = sentence(&error), "what a package claims is not known");
                    all = false;
                }
            }
        }
        if all {
            self.store.remember(CLAIMS_READ, vec![1]).await?;
        }
        Ok(())
    }

    async fn claims_of(
        &self,
        record: &PackageRecord,
        package: &Package,
    ) -> Result<BTreeMap<String, Claims>, Error> {
        let mut claims = BTreeMap::new();
        let compose = package.profiles.iter().filter(|profile| profile.kind == ProfileKind::Compose);
        for component in compose.flat_map(|profile| &profile.components) {
            let key = pin_key(component);
            let Some(pin) = record.pins.get(&key).filter(|_| !claims.contains_key(&key)) else { continue };
            let what = format!("component {} of {} {}", component.name, record.id, record.version);
            let invalid = |message: String| Error::invalid("/deploymentProfiles", "PK-078", message);
            let repository =
                Repository::parse(&component.repository).map_err(|error| invalid(error.to_string()))?;
            let reference = repository.at(TagOrDigest::Digest(*pin));
            let (_, manifest) = self.manifest_of(&reference, &what).await?;
            let layer = compose::layer_of(&reference.to_string(), &manifest)
                .map_err(|error| invalid(error.to_string()))?;
            let claimed = self.check_archive(&repository, &layer, &what).await?.claims;
            if claimed != Claims::default() {
                claims.insert(key, claimed);
            }
        }
        Ok(claims)
    }

    /// Looks at every entry of a component's archive, as each device will before it unpacks it (PK-095): what
    /// no device may unpack is not offered to any. Says what its Compose file claims, and which images it names.
    async fn check_archive(
        &self,
        repository: &Repository,
        layer: &Descriptor,
        what: &str,
    ) -> Result<Looked, Error> {
        let (path, scratch) = if repository.host.is_own_registry() {
            (self.own_blob(repository, layer, what).await?, None)
        } else {
            // On disk and not in memory: an archive may be large, and several may be added at once.
            let scratch = tempfile::tempdir().map_err(|error| Error::Storage(Box::new(error)))?;
            let path = scratch.path().join("archive");
            let pulled = self.upstream().blob_to_file(repository, layer, &path).await;
            pulled.map_err(|error| from_registry(what, error))?;
            (path, Some(scratch))
        };
        let digest = layer.digest;
        let check = move || {
            let open = std::fs::File::open(&path);
            let mut file = open.map_err(|source| ArchiveError::Io { doing: "open the archive", source })?;
            let checked = archive::check_reading(&mut file, digest, COMPOSE_BYTES_MAX);
            drop(scratch);
            checked
        };
        let checked = tokio::task::spawn_blocking(check).await;
        match checked.map_err(|error| Error::Storage(Box::new(error)))? {
            Ok((_, compose)) => Ok(Looked {
                images: margrave_wire::compose::images(&compose).ok(),
                claims: margrave_wire::compose::claims(&compose).unwrap_or_else(|error| {
                    // The engine may well take it; only what it takes of a device is not known then.
                    tracing::warn!(component = what, %error, "the ports, volumes and images of a Compose file are not known");
                    Claims::default()
                }),
            }),
            Err(ArchiveError::Io { source, .. }) => Err(Error::Storage(Box::new(source))),
            Err(ArchiveError::Digest { .. }) => Err(broken(what, layer, "is damaged")),
            Err(error) => {
                let message = format!("{what}: {}", sentence(&error));
                Err(Error::invalid("/deploymentProfiles", "PK-095", message))
            }
        }
    }

    /// A manifest and its digest, from our own registry or another.
    async fn manifest_of(&self, reference: &Reference, what: &str) -> Result<(Digest, Bytes), Error> {
        if !reference.repository.host.is_own_registry() {
            let found =
                self.upstream().manifest(reference).await.map_err(|error| from_registry(what, error))?;
            return Ok((found.digest, found.bytes));
        }
        match self.registry.manifest(&reference.repository.name, &reference.version).await {
            Ok(Some(found)) => Ok((found.digest, found.bytes)),
            Ok(None) | Err(RegistryError::ManifestUnknown) => {
                let message = format!("{what}: {reference} is not in this server's registry; push it first");
                Err(Error::invalid("/reference", "PK-040", message))
            }
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
            let pulled = self.upstream().blob(repository, layer, max).await;
            return pulled.map_err(|error| from_registry(what, error));
        }
        let path = self.own_blob(repository, layer, what).await?;
        let read = async {
            let mut bytes = Vec::new();
            tokio::fs::File::open(&path).await?.take(max + 1).read_to_end(&mut bytes).await?;
            Ok::<_, std::io::Error>(bytes)
        };
        let bytes = read.await.map_err(|error| upstream(what, error))?;
        if Digest::of(&bytes) != layer.digest {
            return Err(broken(what, layer, "is damaged"));
        }
        Ok(Bytes::from(bytes))
    }

    /// Where a blob of our own registry lies; its bytes are not looked at yet.
    async fn own_blob(
        &self,
        repository: &Repository,
        layer: &Descriptor,
        what: &str,
    ) -> Result<PathBuf, Error> {
        let found = self.registry.blob(&repository.name, &layer.digest).await;
        let found = found.map_err(|error| upstream(what, error))?;
        found.map(|blob| blob.path).ok_or_else(|| broken(what, layer, "is not"))
    }
}

/// What is fetched for a component with this manifest, itself included. An index for several architectures has no layers of its own.
pub(super) fn size_of(manifest: &[u8]) -> Option<u64> {
    let ImageManifest { layers, config, .. } = ImageManifest::from_bytes(manifest).ok()?;
    let layers = layers.iter().map(|layer| layer.size).fold(0u64, u64::saturating_add);
    Some(layers.saturating_add(config.size).saturating_add(manifest.len() as u64))
}

fn broken(what: &str, layer: &Descriptor, how: &str) -> Error {
    let message = format!("{what}: the file {} {how} in its registry; push it again", layer.digest.short());
    Error::Upstream { message, source: None }
}

/// What another registry said. That it does not have something, or too much of it, is the reference's fault
/// and not the registry's.
fn from_registry(what: &str, error: ClientError) -> Error {
    match error {
        ClientError::NotFound(_) => Error::invalid("/reference", "PK-040", format!("{what}: {error}")),
        ClientError::TooLarge { .. } => Error::invalid("/reference", "PK-087", format!("{what}: {error}")),
        error => upstream(what, error),
    }
}

fn upstream(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Upstream { message: format!("{what} could not be fetched"), source: Some(Box::new(error)) }
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
