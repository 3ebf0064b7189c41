//! The registry as the rest of the server sees it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_oci::manifest::{Descriptor, MANIFEST_BYTES_MAX};
use margrave_oci::reference::{RepositoryName, Tag, TagOrDigest};
use uuid::Uuid;

use crate::contents::{Blob, Contents, Put, StoredManifest};
use crate::disk::Disk;
use crate::error::{OpenError, RegistryError};
use crate::sweep::Swept;
use crate::upload::{Incoming, Uploads, Writing};

/// How much the registry takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub blob_bytes_max: u64,
    pub manifest_bytes_max: u64,
    /// Uploads open at the same time, of all clients.
    pub uploads_max: usize,
    /// An upload that nobody continued for so long is discarded.
    pub upload_idle_max: Duration,
    /// A body that brings nothing for so long is given up.
    pub body_stall_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            // The largest images in factories are model servers of a few gigabytes a layer.
            blob_bytes_max: 10 * 1024 * 1024 * 1024,
            manifest_bytes_max: MANIFEST_BYTES_MAX,
            // Docker pushes five layers at once, and each upload costs one open file.
            uploads_max: 256,
            upload_idle_max: Duration::from_secs(60 * 60),
            body_stall_max: Duration::from_secs(60),
        }
    }
}

/// An OCI registry in a directory. Clones are the same registry.
#[derive(Clone)]
pub struct Registry {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) contents: Contents,
    pub(crate) uploads: Uploads,
}

impl Registry {
    /// Opens the directory, making it where it is missing, and clears what an earlier process left half-done.
    pub fn open(dir: impl AsRef<Path>) -> Result<Registry, OpenError> {
        Self::open_with(dir, Limits::default())
    }

    pub fn open_with(dir: impl AsRef<Path>, limits: Limits) -> Result<Registry, OpenError> {
        let disk = Disk::open(dir.as_ref())?;
        let uploads = Uploads::new(limits.uploads_max, limits.upload_idle_max);
        Ok(Registry { inner: Arc::new(Inner { contents: Contents::new(disk, limits), uploads }) })
    }

    /// Stores a blob in a repository and returns its digest.
    pub async fn put_blob(&self, name: &RepositoryName, bytes: Bytes) -> Result<Digest, RegistryError> {
        self.put_blob_from(name, io::Cursor::new(bytes)).await
    }

    /// Stores all that a reader has as a blob; it is read on a thread of its own.
    pub async fn put_blob_from(
        &self,
        name: &RepositoryName,
        reader: impl io::Read + Send + 'static,
    ) -> Result<Digest, RegistryError> {
        let name = name.clone();
        self.blocking(move |inner| {
            let mut incoming = inner.contents.stage()?;
            incoming.append_all(reader)?;
            let (staged, length, digest) = incoming.finish();
            inner.contents.publish_blob(&name, &digest, staged, length)?;
            Ok(digest)
        })
        .await
    }

    /// Stores a manifest whose blobs are already there, under a tag or under its own digest.
    pub async fn put_manifest(
        &self,
        name: &RepositoryName,
        reference: &TagOrDigest,
        media_type: &str,
        bytes: Bytes,
    ) -> Result<Digest, RegistryError> {
        Ok(self.put(name, reference, media_type, bytes).await?.digest)
    }

    pub(crate) async fn put(
        &self,
        name: &RepositoryName,
        reference: &TagOrDigest,
        media_type: &str,
        bytes: Bytes,
    ) -> Result<Put, RegistryError> {
        let (name, reference, media_type) = (name.clone(), reference.clone(), media_type.to_owned());
        self.blocking(move |inner| inner.contents.put_manifest(&name, &reference, &media_type, &bytes)).await
    }

    pub async fn manifest(
        &self,
        name: &RepositoryName,
        reference: &TagOrDigest,
    ) -> Result<Option<StoredManifest>, RegistryError> {
        let (name, reference) = (name.clone(), reference.clone());
        self.blocking(move |inner| inner.contents.manifest(&name, &reference)).await
    }

    /// Deletes a tag, or by digest a manifest with all its tags.
    pub async fn delete_manifest(
        &self,
        name: &RepositoryName,
        reference: &TagOrDigest,
    ) -> Result<(), RegistryError> {
        let (name, reference) = (name.clone(), reference.clone());
        self.blocking(move |inner| inner.contents.delete_manifest(&name, &reference)).await
    }

    /// Where a blob of the repository lies, and its size.
    pub async fn blob(&self, name: &RepositoryName, digest: &Digest) -> Result<Option<Blob>, RegistryError> {
        let (name, digest) = (name.clone(), *digest);
        self.blocking(move |inner| inner.contents.blob(&name, &digest)).await
    }

    /// As [`Registry::blob`], and the blob is not swept for as long as a push may take.
    pub(crate) async fn promise_blob(
        &self,
        name: &RepositoryName,
        digest: &Digest,
    ) -> Result<Option<Blob>, RegistryError> {
        let (name, digest) = (name.clone(), *digest);
        self.blocking(move |inner| inner.contents.promise_blob(&name, &digest)).await
    }

    pub async fn delete_blob(&self, name: &RepositoryName, digest: &Digest) -> Result<(), RegistryError> {
        let (name, digest) = (name.clone(), *digest);
        self.blocking(move |inner| inner.contents.delete_blob(&name, &digest)).await
    }

    /// Gives one repository a blob of another, without a copy; `false` if the other does not have it.
    pub async fn mount_blob(
        &self,
        from: &RepositoryName,
        to: &RepositoryName,
        digest: &Digest,
    ) -> Result<bool, RegistryError> {
        let (from, to, digest) = (from.clone(), to.clone(), *digest);
        self.blocking(move |inner| inner.contents.mount_blob(&from, &to, &digest)).await
    }

    /// All tags of a repository, in lexical order; `None` if there is no such repository.
    pub async fn tags(&self, name: &RepositoryName) -> Result<Option<Vec<Tag>>, RegistryError> {
        let name = name.clone();
        self.blocking(move |inner| {
            if !inner.contents.exists(&name)? {
                return Ok(None);
            }
            inner.contents.tags(&name).map(Some)
        })
        .await
    }

    pub(crate) async fn referrers(
        &self,
        name: &RepositoryName,
        subject: &Digest,
        last: Option<Digest>,
        max: usize,
    ) -> Result<(Vec<Descriptor>, bool), RegistryError> {
        let (name, subject) = (name.clone(), *subject);
        self.blocking(move |inner| inner.contents.referrers(&name, &subject, last.as_ref(), max)).await
    }

    /// All repositories, sorted.
    pub async fn repositories(&self) -> Result<Vec<RepositoryName>, RegistryError> {
        self.blocking(|inner| inner.contents.repositories()).await
    }

    /// The bytes of all blobs and manifests, each counted once. Walks the directory.
    pub async fn size_on_disk(&self) -> Result<u64, RegistryError> {
        self.blocking(|inner| inner.contents.size()).await
    }

    /// Removes blobs that no manifest of their repository refers to and that nobody pushed, mounted or
    /// asked for within `grace`, then contents that no repository has, then expired uploads.
    ///
    /// Safe while others push. A grace below [`Registry::GRACE_MIN`] is taken as that: between a client's
    /// question for a blob and the manifest that uses it, hours can pass on a bad network; give a day.
    /// Manifests are never swept, with or without a tag: devices pin them by digest.
    pub async fn sweep(&self, grace: Duration) -> Result<Swept, RegistryError> {
        let grace = grace.max(Self::GRACE_MIN);
        self.blocking(move |inner| {
            let uploads = inner.uploads.expire();
            inner.contents.sweep(grace).map(|swept| Swept { uploads, ..swept })
        })
        .await
    }

    /// The shortest age at which a blob can be swept.
    pub const GRACE_MIN: Duration = Duration::from_secs(10 * 60);

    /// Opens an upload session.
    pub(crate) async fn start_upload(&self, name: &RepositoryName) -> Result<Uuid, RegistryError> {
        let name = name.clone();
        self.blocking(move |inner| inner.uploads.start(&name, || inner.contents.stage())).await
    }

    /// Takes bytes into an upload, off the async threads.
    ///
    /// The bytes are taken even if the caller goes away meanwhile; the upload stays consistent either way.
    pub(crate) async fn append(
        &self,
        id: Uuid,
        mut writing: Writing,
        pieces: Vec<Bytes>,
    ) -> Result<Writing, RegistryError> {
        self.blocking(move |inner| {
            let incoming = writing.as_mut().ok_or(RegistryError::UploadUnknown)?;
            match incoming.append(&pieces) {
                Ok(()) => {
                    inner.uploads.used(id);
                    Ok(writing)
                }
                Err(error) => {
                    // What cannot be finished must not go on filling the disk.
                    if matches!(error, RegistryError::StorageFull(_) | RegistryError::TooLarge { .. }) {
                        *writing = None;
                        inner.uploads.forget(id);
                    }
                    Err(error)
                }
            }
        })
        .await
    }

    /// Makes an upload a blob, if it is what was announced. The upload is over either way.
    pub(crate) async fn finish_upload(
        &self,
        name: &RepositoryName,
        id: Uuid,
        mut writing: Writing,
        wanted: Digest,
    ) -> Result<(), RegistryError> {
        let name = name.clone();
        self.blocking(move |inner| {
            inner.uploads.forget(id);
            let incoming = writing.take().ok_or(RegistryError::UploadUnknown)?;
            let (staged, length, got) = incoming.finish();
            if got != wanted {
                return Err(RegistryError::DigestInvalid { wanted, got });
            }
            inner.contents.publish_blob(&name, &got, staged, length)
        })
        .await
    }

    pub(crate) async fn writing(&self, name: &RepositoryName, id: Uuid) -> Result<Writing, RegistryError> {
        self.inner.uploads.write(name, id).await
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.contents.limits
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, RegistryError> {
        let inner = self.inner.clone();
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => {
                Err(RegistryError::Io { doing: "finish while it stops", source: io::Error::other(error) })
            }
        }
    }
}

impl Contents {
    pub(crate) fn stage(&self) -> Result<Incoming, RegistryError> {
        let staged = self.disk.stage().map_err(RegistryError::io("open an upload"))?;
        Ok(Incoming::new(staged, self.limits.blob_bytes_max))
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dir: PathBuf = self.inner.contents.disk.repositories();
        f.debug_struct("Registry").field("repositories", &dir).finish_non_exhaustive()
    }
}
