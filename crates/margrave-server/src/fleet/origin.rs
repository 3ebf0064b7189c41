//! What registries still have of the packages in the catalog. It is asked now and then, told when it changes, and changes
//! nothing that runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::id::{PackageId, PackageVersion};
use margrave_core::package::Component;
use margrave_core::watch::{Found, Missing, Warning, warnings};
use margrave_oci::client::{Client, ClientError};
use margrave_oci::reference::{Reference, Repository, Tag, TagOrDigest};
use margrave_store::{NewEvent, OriginRecord, PackageRecord};
use margrave_wire::operator;

use super::catalog::Entry;
use super::{Error, Fleet};

/// Packages that come from a watched repository are looked at with it; all others at this pace.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(6 * 60 * 60);
/// In one go; the rest comes with the next.
const LOOKS_MAX: usize = 50;

impl Fleet {
    /// Asks the registries of packages that were not asked for long. One that does not answer is asked again with the
    /// next go: nothing is concluded from silence.
    pub(crate) async fn look_at_origins(&self) -> Result<(), Error> {
        let now = self.now();
        let asked: Vec<OriginRecord> = self.store.origins().await?;
        let mut away = BTreeSet::new();
        let due = self.store.packages().await?.into_iter().filter(|package| {
            let last =
                asked.iter().find(|origin| (&origin.id, &origin.version) == (&package.id, &package.version));
            let last = last.map_or(package.added_at, |origin| origin.looked_at);
            now >= last.after(LOOK_EVERY)
        });
        for package in due.take(LOOKS_MAX) {
            let Ok(reference) = Reference::parse(&package.reference) else { continue };
            let host = reference.repository.host;
            if away.contains(&host) {
                continue;
            }
            if let Err(error) = self.look_at_origin(package).await? {
                tracing::debug!(%host, error = &error as &dyn std::error::Error, "a registry could not be asked");
                away.insert(host);
            }
        }
        Ok(())
    }

    /// Asks one package's registries and writes down what they have; the inner error is theirs.
    pub(super) async fn look_at_origin(
        &self,
        package: PackageRecord,
    ) -> Result<Result<(), ClientError>, Error> {
        match self.ask_origin(&package, false).await? {
            Ok(warnings) => {
                self.note_origin(&package, warnings).await?;
                self.fill_in_sizes(&package.id, &package.version).await.map(Ok)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// What there is to tell of one package now; nothing is written. What was said of its images a while ago counts, but for those
    /// that were gone where it is asked `anew`.
    pub(super) async fn ask_origin(
        &self,
        package: &PackageRecord,
        anew: bool,
    ) -> Result<Result<Vec<Warning>, ClientError>, Error> {
        let mut told = match self.found(package).await? {
            Ok(found) => warnings(package.digest, &found),
            Err(error) => return Ok(Err(error)),
        };
        if let Some(entry) = self.entry(&package.id, &package.version).await? {
            let before = self.origin_warnings(&package.id, &package.version).await?;
            told.extend(self.images_gone(&entry, &before, anew).await?);
        }
        Ok(Ok(told))
    }

    /// Writes down what registries said of a package, and tells what is new in it.
    pub(super) async fn note_origin(
        &self,
        package: &PackageRecord,
        warnings: Vec<Warning>,
    ) -> Result<(), Error> {
        let (id, version) = (package.id.clone(), package.version.clone());
        let now = self.now();
        let before = self.origin_warnings(&id, &version).await?;
        let name = format!("{id} {version}");
        let told = warnings.iter().filter(|warning| !before.contains(warning));
        let mut events: Vec<NewEvent> = told
            .map(|warning| {
                let kind = match warning {
                    Warning::Moved { .. } => "package.moved",
                    Warning::Gone | Warning::ComponentGone { .. } | Warning::ImageGone { .. } => {
                        "package.gone"
                    }
                };
                NewEvent::new(now, kind, "server", format!("package {name}: {warning}")).package(name.clone())
            })
            .collect();
        if warnings.is_empty() && !before.is_empty() {
            let text = format!("package {name}: the registry has it as it was pinned again");
            events.push(NewEvent::new(now, "package.back", "server", text).package(name.clone()));
        }
        let origin = OriginRecord { id, version, looked_at: now, warnings };
        Ok(self.store.note_origin(origin, events).await?)
    }

    async fn found(&self, package: &PackageRecord) -> Result<Result<Found, ClientError>, Error> {
        let client = self.upstream();
        let entry = self.entry(&package.id, &package.version).await?;
        let ask = async {
            let mut found = Found { tag: None, pinned: true, components_missing: Vec::new() };
            if let Ok(pinned) = Reference::parse(&package.reference)
                && !pinned.repository.host.is_own_registry()
            {
                if let Ok(tag) = Tag::parse(package.version.as_str()) {
                    found.tag = there(&client, &pinned.repository.at(TagOrDigest::Tag(tag))).await?;
                }
                found.pinned = found.tag == Some(package.digest) || there(&client, &pinned).await?.is_some();
            }
            // The same bytes are asked for once, whatever they are called.
            let mut meant: BTreeMap<String, (Reference, Vec<String>)> = BTreeMap::new();
            let components =
                entry.iter().flat_map(|entry| &entry.package.profiles).flat_map(|p| &p.components);
            for component in components {
                let Some(pinned) = entry.as_ref().and_then(|entry| pinned_at(entry, component)) else {
                    continue;
                };
                if pinned.repository.host.is_own_registry() {
                    continue;
                }
                let (_, names) = meant.entry(pinned.to_string()).or_insert_with(|| (pinned, Vec::new()));
                if !names.iter().any(|name| name == component.name.as_str()) {
                    names.push(component.name.to_string());
                }
            }
            for (at, (pinned, components)) in meant {
                if there(&client, &pinned).await?.is_none() {
                    found.components_missing.push(Missing { at, components });
                }
            }
            Ok(found)
        };
        Ok(ask.await)
    }

    pub(super) async fn origin_warnings(
        &self,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<Vec<Warning>, Error> {
        let origins = self.store.origins().await?;
        let found = origins.into_iter().find(|origin| (&origin.id, &origin.version) == (id, version));
        Ok(found.map(|origin| origin.warnings).unwrap_or_default())
    }

    /// What there is to know about where a package came from.
    pub(super) async fn shown_warnings(
        &self,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<Vec<operator::PackageWarning>, Error> {
        Ok(self.origin_warnings(id, version).await?.iter().map(shown).collect())
    }
}

pub(super) fn shown(warning: &Warning) -> operator::PackageWarning {
    operator::PackageWarning { kind: warning.kind().to_owned(), text: warning.to_string() }
}

/// Where devices fetch a component, by digest.
pub(super) fn pinned_at(entry: &Entry, component: &Component) -> Option<Reference> {
    let repository = Repository::parse(&component.repository).ok()?;
    Some(repository.at(TagOrDigest::Digest(entry.pin(component)?)))
}

/// The digest behind a reference, or that it is not there; whoever does not answer says neither.
pub(super) async fn there(client: &Client, reference: &Reference) -> Result<Option<Digest>, ClientError> {
    match client.digest(reference).await {
        Ok(digest) => Ok(Some(digest)),
        Err(ClientError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
