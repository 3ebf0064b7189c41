//! What can go wrong, in the words of the registry rather than of HTTP.

use std::io;
use std::path::PathBuf;

use margrave_core::digest::Digest;

/// Why a registry directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the registry directory {0} is in use by another process; stop that one or give another directory"
    )]
    InUse(PathBuf),
    #[error("the registry directory {path} cannot be prepared; check that it is writable")]
    Io { path: PathBuf, source: io::Error },
}

/// Why the registry did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("the blob {0} is not in this repository")]
    BlobUnknown(Digest),
    #[error("the blob {blob} is still part of manifest {manifest}; delete that manifest first")]
    BlobInUse { blob: Digest, manifest: Digest },
    #[error("there is no such manifest in this repository")]
    ManifestUnknown,
    #[error("the manifest is not valid: {0}")]
    ManifestInvalid(String),
    #[error("the manifest refers to {0}, which is not in this repository; push that first")]
    ManifestBlobUnknown(Digest),
    #[error("the content has digest {got}, announced was {wanted}")]
    DigestInvalid { wanted: Digest, got: Digest },
    #[error("the content is larger than the {max} bytes allowed here")]
    TooLarge { max: u64 },
    #[error("there is no such upload; it may have expired, start a new one")]
    UploadUnknown,
    #[error("another request is still writing to this upload; ask for its status and continue from there")]
    UploadBusy,
    #[error("too many uploads are open at once; try again in a moment")]
    TooManyUploads,
    #[error(
        "the disk of the registry is full; free some space or delete what is not needed, then push again"
    )]
    StorageFull(#[source] io::Error),
    #[error("the stored manifest {0} is damaged on disk; push it again")]
    Damaged(Digest),
    #[error("the registry cannot {doing}")]
    Io { doing: &'static str, source: io::Error },
}

impl RegistryError {
    /// Sorts an IO error: a full disk is something the operator can act on, the rest is ours to log.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> RegistryError {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => RegistryError::StorageFull(source),
            _ => RegistryError::Io { doing, source },
        }
    }
}
