//! Components from registries, by way of a cache of archives on disk.
//!
//! An archive is known by its digest, which is checked when it arrives and again before it is unpacked
//! (PK-095, PK-096). This module knows where archives come from and where they are kept; what is in them
//! is for Compose to read.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use margrave_core::device::Order;
use margrave_core::digest::Digest;
use margrave_core::report::{Failure, FailureCode};
use margrave_oci::archive::{self, ArchiveError, Listing};
use margrave_oci::client::{Client, ClientError};
use margrave_oci::compose::layer_of;
use margrave_oci::reference::{Reference, Repository, TagOrDigest};
use tokio::sync::OwnedMutexGuard;

use super::compose::disk;
use super::explain::sentence_of;
use super::own_registry::OwnRegistry;
use super::turns::Turns;
use super::written::Written;

/// A download that nobody continued for so long is for a document that nobody wants any more.
const PARTIAL_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Fetches archives and keeps them by their digest.
pub struct Components {
    client: Client,
    own: Option<OwnRegistry>,
    directory: PathBuf,
    /// One download per archive at a time.
    downloads: Turns<Digest>,
    /// One at a time unpacks into a place.
    unpacking: Turns<PathBuf>,
    written: Written,
}

impl Components {
    /// Keeps archives in `artifacts/` of the agent's data directory.
    pub fn new(client: Client, data: &Path) -> Result<Self, Failure> {
        let directory = data.join("artifacts");
        fs::create_dir_all(&directory)
            .map_err(|error| disk("The directory for artifacts could not be made", error))?;
        Ok(Components {
            client,
            own: None,
            directory,
            downloads: Turns::default(),
            unpacking: Turns::default(),
            written: Written::default(),
        })
    }

    /// The same, with a registry that wants a login.
    pub fn with_own(self, own: OwnRegistry) -> Self {
        Components { own: Some(own), ..self }
    }

    /// What is written here; whoever else writes for the same runtime counts along.
    pub(super) fn written(&self) -> &Written {
        &self.written
    }

    /// The digest of the archive that an order means, once the archive is here.
    pub(super) async fn fetch(&self, order: &Order) -> Result<Digest, Failure> {
        let invalid =
            |error: &dyn std::error::Error| Failure::new(FailureCode::DocumentInvalid, sentence_of(error));
        let repository = Repository::parse(&order.repository).map_err(|error| invalid(&error))?;
        let reference = match order.pin {
            Some(pin) => repository.at(TagOrDigest::Digest(pin)),
            None => repository.at_revision(order.revision.as_str()).map_err(|error| invalid(&error))?,
        };
        let Some(own) = self.own.as_ref().filter(|own| own.is(&repository.host)) else {
            return self.fetch_by(&self.client, &repository, &reference).await;
        };
        match self.fetch_by(&own.client().await?, &repository, &reference).await {
            // Such as after the server was restored from a backup: it does not know the token that it gave.
            Err(failure) if failure.code == FailureCode::PullDenied => {
                own.refused().await;
                self.fetch_by(&own.client().await?, &repository, &reference).await
            }
            fetched => fetched,
        }
    }

    async fn fetch_by(
        &self,
        client: &Client,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Digest, Failure> {
        let pulled = client.manifest(reference).await.map_err(|error| pull_failure(&error))?;
        let layer = layer_of(&reference.to_string(), &pulled.bytes)
            .map_err(|error| Failure::new(error.failure(), sentence_of(&error)))?;
        let _alone = self.downloads.of(layer.digest).lock_owned().await;
        if !self.has(layer.digest).await? {
            let path = self.path(layer.digest);
            client.blob_to_file(repository, &layer, &path).await.map_err(|error| pull_failure(&error))?;
            self.written.add(layer.size);
        }
        Ok(layer.digest)
    }

    /// Whether the archive is here and whole; a damaged one is removed.
    pub(super) async fn has(&self, archive: Digest) -> Result<bool, Failure> {
        let path = self.path(archive);
        let look = move || -> io::Result<bool> {
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(error) => return Err(error),
            };
            // Piece by piece: an archive may be larger than what this device has to spare.
            if margrave_oci::digest_of(file)? == archive {
                return Ok(true);
            }
            tracing::warn!(%archive, "an archive on disk is damaged and is removed");
            fs::remove_file(&path)?;
            Ok(false)
        };
        blocking(look).await.map_err(|error| disk("An archive on disk could not be read", error))
    }

    /// Unpacks an archive that is here into `place`, unless that was done before; returns the directory
    /// with `compose.yaml` (PK-082).
    pub(super) async fn unpack(&self, archive: Digest, place: PathBuf) -> Result<PathBuf, Failure> {
        // Whoever waited for this may have been dropped, and what it began works on: until that ends, it has its turn.
        let turn = self.unpacking.of(place.clone()).lock_owned().await;
        // It appears there as a whole or not at all, and containers may have files of it mounted.
        if let Some(files) = unpacked(&place) {
            return Ok(files);
        }
        let path = self.path(archive);
        let written = self.written.clone();
        let unpack = move || -> Result<PathBuf, ArchiveError> {
            let _turn = turn;
            let mut file =
                File::open(&path).map_err(|source| ArchiveError::Io { doing: "open the archive", source })?;
            let files = archive::unpack(&mut file, archive, &place)?;
            let counted = written.add_directory(&place);
            counted.map_err(|source| ArchiveError::Io { doing: "look through what was unpacked", source })?;
            Ok(files)
        };
        blocking(unpack).await.map_err(|error| Failure::new(error.failure(), sentence_of(&error)))
    }

    /// The turn to unpack into a place, unless somebody is at it: whoever has it knows that nobody is.
    pub(super) fn unpacks_nothing_into(&self, place: &Path) -> Option<OwnedMutexGuard<()>> {
        self.unpacking.of(place.to_owned()).try_lock_owned().ok()
    }

    /// What an archive that is here has in it, whatever containers made of what was unpacked.
    pub(super) async fn list(&self, archive: Digest) -> Result<Listing, Failure> {
        let path = self.path(archive);
        let list = move || -> Result<Listing, ArchiveError> {
            let mut file =
                File::open(&path).map_err(|source| ArchiveError::Io { doing: "open the archive", source })?;
            archive::list(&mut file, archive)
        };
        blocking(list).await.map_err(|error| Failure::new(error.failure(), sentence_of(&error)))
    }

    /// Removes all archives but these. One that cannot be removed keeps no other, and is the error.
    pub(super) async fn sweep(&self, needed: BTreeSet<Digest>) -> io::Result<()> {
        let directory = self.directory.clone();
        let sweep = move || -> io::Result<()> {
            let needed: BTreeSet<String> = needed.iter().map(Digest::hex).collect();
            let remove = |entry: &fs::DirEntry| -> io::Result<()> {
                let name = entry.file_name().to_string_lossy().into_owned();
                let young = || -> io::Result<bool> {
                    Ok(entry.metadata()?.modified()?.elapsed().is_ok_and(|age| age < PARTIAL_AGE_MAX))
                };
                let keep = needed.contains(&name) || (name.ends_with(".partial") && young()?);
                if keep { Ok(()) } else { fs::remove_file(entry.path()) }
            };
            let mut swept = Ok(());
            for entry in fs::read_dir(&directory)? {
                swept = swept.and(remove(&entry?));
            }
            swept
        };
        blocking(sweep).await
    }

    fn path(&self, archive: Digest) -> PathBuf {
        self.directory.join(archive.hex())
    }
}

pub(super) fn pull_failure(error: &ClientError) -> Failure {
    Failure::new(error.failure(), sentence_of(error))
}

/// The directory with `compose.yaml` of an archive that was unpacked before.
fn unpacked(place: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(place).ok()?;
    let top = entries.next()?.ok()?.path();
    (entries.next().is_none() && top.join(archive::COMPOSE_FILE).is_file()).then_some(top)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("work on files does not panic, and is never cancelled")
}

#[cfg(test)]
mod tests {
    use margrave_oci::client::Hosts;

    use super::*;

    #[tokio::test]
    async fn pk_096_a_damaged_archive_is_not_here() {
        let temp = tempfile::tempdir().unwrap();
        let components = Components::new(Client::new(Hosts::new()), temp.path()).unwrap();
        let archive = Digest::of(b"archive");
        assert!(!components.has(archive).await.unwrap());
        fs::write(components.path(archive), b"archive").unwrap();
        assert!(components.has(archive).await.unwrap());
        fs::write(components.path(archive), b"damaged").unwrap();
        assert!(!components.has(archive).await.unwrap());
        assert!(!components.path(archive).exists());
    }

    #[tokio::test]
    async fn sweeping_keeps_what_is_needed_and_downloads_under_way() {
        let temp = tempfile::tempdir().unwrap();
        let components = Components::new(Client::new(Hosts::new()), temp.path()).unwrap();
        let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
        for name in [old.hex(), new.hex(), format!(".{}.partial", old.hex())] {
            fs::write(temp.path().join("artifacts").join(name), b"x").unwrap();
        }
        components.sweep([new].into()).await.unwrap();
        assert!(!components.path(old).exists() && components.path(new).exists());
        assert!(temp.path().join("artifacts").join(format!(".{}.partial", old.hex())).exists());
    }

    #[tokio::test]
    async fn an_archive_that_cannot_be_swept_keeps_no_other_and_is_told() {
        let temp = tempfile::tempdir().unwrap();
        let components = Components::new(Client::new(Hosts::new()), temp.path()).unwrap();
        let archives = [b"1", b"2", b"3", b"4"].map(|bytes| Digest::of(bytes));
        for archive in archives {
            fs::write(components.path(archive), b"x").unwrap();
        }
        let stuck = components.path(Digest::of(b"stuck"));
        fs::create_dir(&stuck).unwrap();
        assert!(components.sweep(BTreeSet::new()).await.is_err());
        assert!(archives.iter().all(|archive| !components.path(*archive).exists()));
        fs::remove_dir(&stuck).unwrap();
        components.sweep(BTreeSet::new()).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_unpacked_for_nobody_any_more_is_not_in_the_way_of_who_comes_next() {
        let temp = tempfile::tempdir().unwrap();
        let components = Components::new(Client::new(Hosts::new()), temp.path()).unwrap();
        let folder = temp.path().join("component");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("compose.yaml"), "services: {}\n").unwrap();
        for number in 0..200 {
            fs::write(folder.join(format!("file-{number}")), number.to_string()).unwrap();
        }
        let built = margrave_oci::compose::ComposeArchive::build(&folder, "component").unwrap();
        fs::write(components.path(built.digest()), built.bytes()).unwrap();
        for round in 0..10 {
            let place = temp.path().join(format!("place-{round}"));
            // Its update was overtaken: nobody waits for it, and what it began goes on.
            tokio::select! {
                biased;
                _ = components.unpack(built.digest(), place.clone()) => panic!("it has too much to do"),
                () = std::future::ready(()) => {}
            }
            let files = components.unpack(built.digest(), place).await.unwrap();
            assert_eq!(fs::read_dir(files).unwrap().count(), 201);
        }
    }
}
