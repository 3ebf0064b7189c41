//! Blobs, manifests, tags and referrers on disk. Everything here blocks; `registry.rs` keeps it off the
//! async threads.
//!
//! One gate keeps adding and removing apart. Whoever adds, or promises that something is there, passes it
//! shared; whoever removes, alone. So a manifest whose blobs were just checked cannot lose one of them
//! before it is written.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_oci::manifest::Descriptor;
use margrave_oci::reference::{RepositoryName, Tag, TagOrDigest};

use crate::disk::{Disk, Staged, digests, found, names, renew};
use crate::error::RegistryError;
use crate::manifest;
use crate::registry::Limits;

/// Within this age a file is not renewed again: asking for a blob must not cost a write each time. It is
/// far below the shortest grace of a sweep.
const RENEW_AFTER: Duration = Duration::from_secs(60);

/// How deep repository names may nest when the directory is walked; a name of 255 characters cannot nest deeper.
const DEPTH_MAX: usize = 128;

pub(crate) struct Contents {
    pub(crate) disk: Disk,
    pub(crate) limits: Limits,
    gate: RwLock<()>,
}

/// A blob of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    pub digest: Digest,
    pub size: u64,
    /// Where it lies. Read it soon: a sweep may remove it once no repository has it.
    pub path: PathBuf,
}

/// A manifest as it was pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredManifest {
    pub digest: Digest,
    pub media_type: String,
    pub bytes: Bytes,
}

/// What putting a manifest led to.
#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) digest: Digest,
    pub(crate) subject: Option<Digest>,
}

impl Contents {
    pub(crate) fn new(disk: Disk, limits: Limits) -> Self {
        Contents { disk, limits, gate: RwLock::new(()) }
    }

    // The gate guards no data of its own, so a panic of another thread leaves nothing to be afraid of.
    fn adding(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn removing(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes staged content of known digest a blob of the repository.
    pub(crate) fn publish_blob(
        &self,
        name: &RepositoryName,
        digest: &Digest,
        staged: Staged,
        length: u64,
    ) -> Result<(), RegistryError> {
        // The long wait for the disk comes before the gate.
        staged.finish(length).map_err(RegistryError::io("write the blob"))?;
        let _adding = self.adding();
        // Also when we have it already: that heals a file that went bad on disk, and makes it new to the sweep.
        self.disk.publish(staged, &self.disk.blob(digest)).map_err(RegistryError::io("store the blob"))?;
        self.disk.mark(&self.disk.blob_link(name, digest)).map_err(RegistryError::io("link the blob"))
    }

    /// Gives `to` a blob that `from` has; `false` if `from` does not have it.
    pub(crate) fn mount_blob(
        &self,
        from: &RepositoryName,
        to: &RepositoryName,
        digest: &Digest,
    ) -> Result<bool, RegistryError> {
        let _adding = self.adding();
        let failed = RegistryError::io("mount the blob");
        (|| {
            let content = self.disk.blob(digest);
            if !self.disk.blob_link(from, digest).try_exists()? || found(renew(&content))?.is_none() {
                return Ok(false);
            }
            self.disk.mark(&self.disk.blob_link(to, digest)).map(|()| true)
        })()
        .map_err(failed)
    }

    pub(crate) fn blob(&self, name: &RepositoryName, digest: &Digest) -> Result<Option<Blob>, RegistryError> {
        (|| {
            let path = self.disk.blob(digest);
            if !self.disk.blob_link(name, digest).try_exists()? {
                return Ok(None);
            }
            Ok(found(fs::metadata(&path))?.map(|meta| Blob { digest: *digest, size: meta.len(), path }))
        })()
        .map_err(RegistryError::io("look up the blob"))
    }

    /// The blob, and the promise that it stays for a while: its pusher will rely on it in a manifest.
    pub(crate) fn promise_blob(
        &self,
        name: &RepositoryName,
        digest: &Digest,
    ) -> Result<Option<Blob>, RegistryError> {
        let _adding = self.adding();
        let Some(blob) = self.blob(name, digest)? else { return Ok(None) };
        (|| {
            for path in [&blob.path, &self.disk.blob_link(name, digest)] {
                // A clock that was set back makes files of the future: renew those too.
                if fs::metadata(path)?.modified()?.elapsed().is_ok_and(|age| age < RENEW_AFTER) {
                    continue;
                }
                renew(path)?;
            }
            Ok(())
        })()
        .map_err(RegistryError::io("renew the blob"))?;
        Ok(Some(blob))
    }

    pub(crate) fn delete_blob(&self, name: &RepositoryName, digest: &Digest) -> Result<(), RegistryError> {
        let _removing = self.removing();
        if self.blob(name, digest)?.is_none() {
            return Err(RegistryError::BlobUnknown(*digest));
        }
        for manifest in self.manifests(name)? {
            let stored = self.stored_manifest(name, &manifest)?.ok_or(RegistryError::Damaged(manifest))?;
            let relations = manifest::read(&stored.media_type, &stored.bytes)?;
            if relations.blobs.iter().any(|blob| blob.digest == *digest) {
                return Err(RegistryError::BlobInUse { blob: *digest, manifest });
            }
        }
        self.disk
            .remove(&self.disk.blob_link(name, digest))
            .map_err(RegistryError::io("delete the blob"))
            .map(|_| ())
    }

    pub(crate) fn put_manifest(
        &self,
        name: &RepositoryName,
        reference: &TagOrDigest,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Put, RegistryError> {
        if bytes.len() as u64 > self.limits.manifest_bytes_max {
            return Err(RegistryError::TooLarge { max: self.limits.manifest_bytes_max });
        }
        let digest = Digest::of(bytes);
        if let TagOrDigest::Digest(wanted) = reference
            && *wanted != digest
        {
            return Err(RegistryError::DigestInvalid { wanted: *wanted, got: digest });
        }
        let relations = manifest::read(media_type, bytes)?;

        let _adding = self.adding();
        self.check_relations(name, &relations)?;
        (|| {
            self.disk.write(&self.disk.blob(&digest), bytes)?;
            if let Some(subject) = &relations.subject {
                self.disk.mark(&self.disk.referrers(name, subject).join(digest.hex()))?;
            }
            self.disk.write(&self.disk.manifest_link(name, &digest), media_type.as_bytes())?;
            if let TagOrDigest::Tag(tag) = reference {
                self.disk.write(&self.disk.tag(name, tag), digest.to_string().as_bytes())?;
            }
            Ok(())
        })()
        .map_err(RegistryError::io("store the manifest"))?;
        Ok(Put { digest, subject: relations.subject })
    }

    /// That everything a manifest refers to is here, has the stated size, and is not about to be swept.
    fn check_relations(
        &self,
        name: &RepositoryName,
        relations: &manifest::Relations,
    ) -> Result<(), RegistryError> {
        let check_size = |descriptor: &Descriptor, size: u64| {
            if descriptor.size == size {
                return Ok(());
            }
            Err(RegistryError::ManifestInvalid(format!(
                "it says that {} has {} bytes, it has {size}",
                descriptor.digest, descriptor.size
            )))
        };
        for blob in &relations.blobs {
            let stored =
                self.blob(name, &blob.digest)?.ok_or(RegistryError::ManifestBlobUnknown(blob.digest))?;
            check_size(blob, stored.size)?;
            renew(&stored.path)
                .and_then(|()| renew(&self.disk.blob_link(name, &blob.digest)))
                .map_err(RegistryError::io("renew the blob"))?;
        }
        for child in &relations.manifests {
            let stored = self
                .stored_manifest(name, &child.digest)?
                .ok_or(RegistryError::ManifestBlobUnknown(child.digest))?;
            check_size(child, stored.bytes.len() as u64)?;
        }
        Ok(())
    }

    pub(crate) fn manifest(
        &self,
        name: &RepositoryName,
        reference: &TagOrDigest,
    ) -> Result<Option<StoredManifest>, RegistryError> {
        let digest = match reference {
            TagOrDigest::Digest(digest) => *digest,
            TagOrDigest::Tag(tag) => match self.tagged(name, tag)? {
                Some(digest) => digest,
                None => return Ok(None),
            },
        };
        self.stored_manifest(name, &digest)
    }

    fn tagged(&self, name: &RepositoryName, tag: &Tag) -> Result<Option<Digest>, RegistryError> {
        (|| {
            let Some(text) = found(fs::read_to_string(self.disk.tag(name, tag)))? else { return Ok(None) };
            Digest::parse(&text).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        })()
        .map_err(RegistryError::io("read the tag"))
    }

    pub(crate) fn stored_manifest(
        &self,
        name: &RepositoryName,
        digest: &Digest,
    ) -> Result<Option<StoredManifest>, RegistryError> {
        let read = || {
            let Some(media_type) = found(fs::read_to_string(self.disk.manifest_link(name, digest)))? else {
                return Ok(None);
            };
            let Some(file) = found(File::open(self.disk.blob(digest)))? else { return Ok(None) };
            // Its size was checked when it came; the bound is for a file that was tampered with.
            let mut bytes = Vec::new();
            file.take(self.limits.manifest_bytes_max + 1).read_to_end(&mut bytes)?;
            Ok(Some((media_type, bytes)))
        };
        let Some((media_type, bytes)) = read().map_err(RegistryError::io("read the manifest"))? else {
            return Ok(None);
        };
        if Digest::of(&bytes) != *digest {
            return Err(RegistryError::Damaged(*digest));
        }
        Ok(Some(StoredManifest { digest: *digest, media_type, bytes: Bytes::from(bytes) }))
    }

    /// Deletes a tag, or a manifest together with the tags that point to it.
    pub(crate) fn delete_manifest(
        &self,
        name: &RepositoryName,
        reference: &TagOrDigest,
    ) -> Result<(), RegistryError> {
        let _removing = self.removing();
        let failed = || RegistryError::io("delete the manifest");
        let digest = match reference {
            TagOrDigest::Tag(tag) => {
                let removed = self.disk.remove(&self.disk.tag(name, tag)).map_err(failed())?;
                return if removed { Ok(()) } else { Err(RegistryError::ManifestUnknown) };
            }
            TagOrDigest::Digest(digest) => digest,
        };
        let link = self.disk.manifest_link(name, digest);
        if !link.try_exists().map_err(failed())? {
            return Err(RegistryError::ManifestUnknown);
        }
        // Also a damaged manifest can be deleted; then only its entry as a referrer stays, which is harmless:
        // the list shows manifests that exist.
        let subject = match self.stored_manifest(name, digest) {
            Ok(Some(stored)) => manifest::read(&stored.media_type, &stored.bytes)?.subject,
            Ok(None) | Err(RegistryError::Damaged(_)) => None,
            Err(error) => return Err(error),
        };
        for tag in self.tags(name)? {
            if self.tagged(name, &tag)? == Some(*digest) {
                self.disk.remove(&self.disk.tag(name, &tag)).map_err(failed())?;
            }
        }
        self.disk.remove(&link).map_err(failed())?;
        if let Some(subject) = subject {
            self.disk.remove(&self.disk.referrers(name, &subject).join(digest.hex())).map_err(failed())?;
        }
        Ok(())
    }

    /// All tags, in the lexical order of the specification (PK-017).
    pub(crate) fn tags(&self, name: &RepositoryName) -> Result<Vec<Tag>, RegistryError> {
        let names = names(&self.disk.tags(name)).map_err(RegistryError::io("list the tags"))?;
        let mut tags: Vec<Tag> = names.iter().filter_map(|name| Tag::parse(name).ok()).collect();
        tags.sort();
        Ok(tags)
    }

    pub(crate) fn manifests(&self, name: &RepositoryName) -> Result<Vec<Digest>, RegistryError> {
        digests(&self.disk.manifest_links(name)).map_err(RegistryError::io("list the manifests"))
    }

    /// Whether anything was ever pushed to the repository and is still there.
    pub(crate) fn exists(&self, name: &RepositoryName) -> Result<bool, RegistryError> {
        let dirs = [self.disk.manifest_links(name), self.disk.blob_links(name)];
        for dir in dirs {
            if dir.try_exists().map_err(RegistryError::io("look up the repository"))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Up to `max` manifests that refer to a subject, after `last`, in the order of their digests.
    pub(crate) fn referrers(
        &self,
        name: &RepositoryName,
        subject: &Digest,
        last: Option<&Digest>,
        max: usize,
    ) -> Result<(Vec<Descriptor>, bool), RegistryError> {
        let mut all =
            digests(&self.disk.referrers(name, subject)).map_err(RegistryError::io("list the referrers"))?;
        all.sort();
        let mut after = all.into_iter().filter(|digest| last.is_none_or(|last| digest > last));
        let mut descriptors = Vec::new();
        for digest in after.by_ref().take(max) {
            let Some(stored) = self.stored_manifest(name, &digest)? else { continue };
            let relations = manifest::read(&stored.media_type, &stored.bytes)?;
            if relations.subject != Some(*subject) {
                continue;
            }
            descriptors.push(Descriptor {
                artifact_type: relations.artifact_type,
                annotations: relations.annotations,
                ..Descriptor::new(&stored.media_type, digest, stored.bytes.len() as u64)
            });
        }
        Ok((descriptors, after.next().is_some()))
    }

    /// All repositories that hold or held anything, sorted.
    pub(crate) fn repositories(&self) -> Result<Vec<RepositoryName>, RegistryError> {
        let mut found = Vec::new();
        let mut pending = vec![(String::new(), 0)];
        while let Some((prefix, depth)) = pending.pop() {
            let dir = self.disk.repositories().join(&prefix);
            for name in names(&dir).map_err(RegistryError::io("list the repositories"))? {
                if name == "_manifests" || name == "_blobs" {
                    found.extend(RepositoryName::parse(&prefix));
                } else if !name.starts_with('_') && depth < DEPTH_MAX {
                    let below = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
                    pending.push((below, depth + 1));
                }
            }
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// The bytes of all contents, each counted once.
    pub(crate) fn size(&self) -> Result<u64, RegistryError> {
        let mut total = 0;
        let sum = |total: &mut u64| {
            for shard in names(&self.disk.blobs())? {
                let dir = self.disk.blobs().join(shard);
                for name in names(&dir)? {
                    *total += found(fs::metadata(dir.join(name)))?.map_or(0, |meta| meta.len());
                }
            }
            Ok(())
        };
        sum(&mut total).map_err(RegistryError::io("measure the registry"))?;
        Ok(total)
    }
}
