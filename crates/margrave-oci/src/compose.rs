//! Compose components in a registry (PK-070 to PK-078): made from a directory, pushed, pulled, checked.
//!
//! What is inside of the archive is `archive`'s business; what runs from it is nobody's here.

use std::fs;
use std::io::{self, Cursor, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::{Compression, GzBuilder};
use margrave_core::digest::Digest;
use margrave_core::report::{FailureCode, Retry};

use crate::archive::{self, ArchiveError, CheckedArchive, ENTRIES_MAX, EXPANDED_BYTES_MAX};
use crate::client::{Client, ClientError};
use crate::in_binary;
use crate::manifest::{
    ANNOTATION_TITLE, ANNOTATION_VERSION, Annotations, Descriptor, EMPTY_CONFIG, IMAGE_MANIFEST,
    ImageManifest,
};
use crate::reference::{Reference, Tag, TagOrDigest};

/// Beware: `vnd.org.margo` here, `vnd.margo` for packages (PK-029).
pub const COMPOSE_TYPE: &str = "application/vnd.org.margo.component.compose+json";
pub const COMPOSE_LAYER_TYPE: &str = "application/vnd.org.margo.component.compose.tar+gzip";
pub const ANNOTATION_COMPONENT_TYPE: &str = "org.margo.component.type";
pub const ANNOTATION_COMPONENT_VERSION: &str = "org.margo.component.version";

/// What it may expand to, it may also weigh.
pub const ARCHIVE_BYTES_MAX: u64 = EXPANDED_BYTES_MAX;

/// Why a directory cannot become a compose archive.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a file, directory or symbolic link, and cannot be in an archive (PK-097)", .0.display())]
    Special(PathBuf),
    #[error("the path {0:?} is too long or not UTF-8, and cannot be in an archive")]
    Path(String),
    #[error(
        "the directory has more than {ENTRIES_MAX} entries or {} (PK-087)",
        in_binary(EXPANDED_BYTES_MAX)
    )]
    TooLarge,
    #[error("the directory does not make a valid compose archive")]
    Invalid(#[from] ArchiveError),
}

/// Why a pulled manifest is no compose component, or could not be pulled at all.
#[derive(Debug, thiserror::Error)]
pub enum ComposeError {
    #[error("the component could not be pulled")]
    Client(#[from] ClientError),
    #[error("{0} is not an OCI image manifest")]
    Manifest(String, #[source] serde_json::Error),
    #[error(
        "{what} has artifactType {got:?}, a compose component has {COMPOSE_TYPE} (PK-071); push it with margrave or oras"
    )]
    ArtifactType { what: String, got: String },
    #[error(
        "{what} has {got} layers, a compose component has one (PK-072); do not use docker compose publish (PK-077)"
    )]
    Layers { what: String, got: usize },
    #[error("the layer of {what} has media type {got:?}, it must be {COMPOSE_LAYER_TYPE} (PK-072)")]
    LayerType { what: String, got: String },
    #[error("the archive of {what} is larger than {} (PK-087)", in_binary(ARCHIVE_BYTES_MAX))]
    TooLarge { what: String },
}

impl ComposeError {
    /// What a device reports.
    pub fn failure(&self) -> FailureCode {
        match self {
            ComposeError::Client(error) => error.failure(),
            _ => FailureCode::ArchiveInvalid,
        }
    }

    pub fn retry(&self) -> Retry {
        self.failure().retry()
    }
}

/// A compose archive that passed all checks, ready to be pushed.
#[derive(Debug, Clone)]
pub struct ComposeArchive {
    bytes: Bytes,
    digest: Digest,
    checked: CheckedArchive,
}

impl ComposeArchive {
    /// Makes the archive of a directory: always the same bytes for the same content.
    ///
    /// Names are sorted, times and owners are zero, permissions are normalised. Blocks.
    pub fn build(dir: &Path, component: &str) -> Result<Self, BuildError> {
        let mut tar = tar::Builder::new(Vec::new());
        tar.mode(tar::HeaderMode::Deterministic);
        append(&mut tar, Path::new(component), 0o755, tar::EntryType::Directory, &[], None)?;
        let mut budget = Budget { entries: ENTRIES_MAX, bytes: EXPANDED_BYTES_MAX };
        append_dir(&mut tar, dir, Path::new(component), &mut budget)?;
        let tar = tar.into_inner().map_err(|source| BuildError::Read { path: dir.to_owned(), source })?;
        // The gzip header has neither time nor name, and always the same (unknown) system.
        let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
        let bytes = gzip
            .write_all(&tar)
            .and_then(|()| gzip.finish())
            .map_err(|source| BuildError::Read { path: dir.to_owned(), source })?;
        Ok(Self::from_bytes(bytes.into())?)
    }

    /// Takes an archive that somebody else made, if it passes all checks (PK-095). Blocks.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, ArchiveError> {
        let digest = Digest::of(&bytes);
        let checked = archive::check(&mut Cursor::new(&bytes), digest)?;
        Ok(ComposeArchive { bytes, digest, checked })
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn digest(&self) -> Digest {
        self.digest
    }

    pub fn checked(&self) -> &CheckedArchive {
        &self.checked
    }

    /// What is in it. Blocks.
    pub fn listing(&self) -> archive::Listing {
        archive::list(&mut Cursor::new(&self.bytes), self.digest).expect("it passed all checks")
    }

    /// The manifest under which the archive is pushed. Annotations are on the layer, as the standard says, and
    /// on the manifest, as its example does (PK-074).
    pub fn manifest(&self, component: &str, revision: &str) -> ImageManifest {
        // In a tag the plus sign of a version is an underscore; here it is itself (PK-075).
        let version = revision.replace('_', "+");
        let annotations = Annotations::from([
            (ANNOTATION_COMPONENT_TYPE.to_owned(), "compose".to_owned()),
            (ANNOTATION_COMPONENT_VERSION.to_owned(), version.clone()),
            (ANNOTATION_TITLE.to_owned(), component.to_owned()),
            (ANNOTATION_VERSION.to_owned(), version),
        ]);
        let layer = Descriptor {
            annotations: annotations.clone(),
            ..Descriptor::new(COMPOSE_LAYER_TYPE, self.digest, self.bytes.len() as u64)
        };
        ImageManifest { annotations, ..ImageManifest::artifact(COMPOSE_TYPE, vec![layer]) }
    }
}

struct Budget {
    entries: usize,
    bytes: u64,
}

impl Budget {
    fn take(&mut self, bytes: u64) -> Result<(), BuildError> {
        self.entries = self.entries.checked_sub(1).ok_or(BuildError::TooLarge)?;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(BuildError::TooLarge)?;
        Ok(())
    }
}

fn append_dir(
    tar: &mut tar::Builder<Vec<u8>>,
    dir: &Path,
    inside: &Path,
    budget: &mut Budget,
) -> Result<(), BuildError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| BuildError::Read { path, source }
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable(dir))? {
        names.push(entry.map_err(unreadable(dir))?.file_name());
    }
    names.sort();
    for name in names {
        let (path, inside) = (dir.join(&name), inside.join(&name));
        let meta = fs::symlink_metadata(&path).map_err(unreadable(&path))?;
        let kind = meta.file_type();
        if kind.is_dir() {
            budget.take(0)?;
            append(tar, &inside, 0o755, tar::EntryType::Directory, &[], None)?;
            append_dir(tar, &path, &inside, budget)?;
        } else if kind.is_file() {
            budget.take(meta.len())?;
            let mode = if meta.permissions().mode() & 0o100 != 0 { 0o755 } else { 0o644 };
            let content = fs::read(&path).map_err(unreadable(&path))?;
            append(tar, &inside, mode, tar::EntryType::Regular, &content, None)?;
        } else if kind.is_symlink() {
            budget.take(0)?;
            let target = fs::read_link(&path).map_err(unreadable(&path))?;
            append(tar, &inside, 0o777, tar::EntryType::Symlink, &[], Some(&target))?;
        } else {
            return Err(BuildError::Special(path));
        }
    }
    Ok(())
}

fn append(
    tar: &mut tar::Builder<Vec<u8>>,
    path: &Path,
    mode: u32,
    kind: tar::EntryType,
    content: &[u8],
    target: Option<&Path>,
) -> Result<(), BuildError> {
    // Plain ustar, which every reader reads the same way; it ends at 255 bytes of path and 100 of target.
    let unusable = |_| BuildError::Path(path.to_string_lossy().chars().take(300).collect());
    let mut header = tar::Header::new_ustar();
    header.set_path(path).map_err(unusable)?;
    if let Some(target) = target {
        header.set_link_name(target).map_err(unusable)?;
    }
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(content.len() as u64);
    header.set_cksum();
    tar.append(&header, content).map_err(|source| BuildError::Read { path: path.to_owned(), source })
}

/// The one layer of a compose component, if the manifest is one (PK-078).
pub fn layer_of(what: &str, manifest: &[u8]) -> Result<Descriptor, ComposeError> {
    let manifest = ImageManifest::from_bytes(manifest)
        .map_err(|error| ComposeError::Manifest(what.to_owned(), error))?;
    let what = || what.to_owned();
    if manifest.artifact_type.as_deref() != Some(COMPOSE_TYPE) {
        let got = manifest.artifact_type.unwrap_or_default();
        return Err(ComposeError::ArtifactType { what: what(), got });
    }
    let count = manifest.layers.len();
    let Ok([layer]) = <[Descriptor; 1]>::try_from(manifest.layers) else {
        return Err(ComposeError::Layers { what: what(), got: count });
    };
    if layer.media_type != COMPOSE_LAYER_TYPE {
        return Err(ComposeError::LayerType { what: what(), got: layer.media_type });
    }
    if layer.size > ARCHIVE_BYTES_MAX {
        return Err(ComposeError::TooLarge { what: what() });
    }
    Ok(layer)
}

/// A compose component as it was resolved: what to remember, because its tag may move (PK-053).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComposeComponent {
    pub manifest: Digest,
    pub layer: Descriptor,
}

impl Client {
    /// Pushes an archive: its parts, then the manifest under the revision's tag (PK-040, PK-070).
    pub async fn push_compose(
        &self,
        reference: &Reference,
        component: &str,
        archive: &ComposeArchive,
    ) -> Result<Digest, ClientError> {
        let revision = match &reference.version {
            TagOrDigest::Tag(tag) => Tag::as_str(tag).to_owned(),
            TagOrDigest::Digest(digest) => digest.short(),
        };
        self.push_blob(&reference.repository, Bytes::from_static(EMPTY_CONFIG)).await?;
        self.push_blob(&reference.repository, archive.bytes.clone()).await?;
        let manifest = archive.manifest(component, &revision).to_bytes();
        self.push_manifest(reference, IMAGE_MANIFEST, manifest.into()).await
    }

    /// Finds out what a compose component's reference means now, without fetching its archive.
    pub async fn resolve_compose(&self, reference: &Reference) -> Result<ComposeComponent, ComposeError> {
        let pulled = self.manifest(reference).await?;
        let layer = layer_of(&reference.to_string(), &pulled.bytes)?;
        Ok(ComposeComponent { manifest: pulled.digest, layer })
    }

    /// Fetches the archive of a resolved component into a file; [`archive::unpack`] takes it from there.
    pub async fn pull_compose(
        &self,
        reference: &Reference,
        component: &ComposeComponent,
        path: &Path,
    ) -> Result<(), ComposeError> {
        Ok(self.blob_to_file(&reference.repository, &component.layer, path).await?)
    }
}
