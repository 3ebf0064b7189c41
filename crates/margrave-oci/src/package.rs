//! Application packages in a registry (PK-001 to PK-031): one blob per file, described by a manifest.
//!
//! What the description says is not read here (`margrave-wire` does), so neither is "the tag is the version"
//! (PK-014): the caller pulls the manifest, then the description, decides, and only then pulls the rest (PK-044).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_core::package::Catalog;

use crate::client::{Client, ClientError};
use crate::manifest::{ANNOTATION_TITLE, Descriptor, EMPTY_CONFIG, IMAGE_MANIFEST, ImageManifest};
use crate::reference::{Reference, Repository};

/// Beware: `vnd.margo` here, `vnd.org.margo` for compose components (PK-029).
pub const PACKAGE_TYPE: &str = "application/vnd.margo.app.v1+json";
pub const DESCRIPTION_TYPE: &str = "application/vnd.margo.app.description.v1+yaml";
pub const ANNOTATION_RESOURCE: &str = "org.margo.app.resource";

/// The name of the description on disk, by custom (PK-001).
pub const DESCRIPTION_FILE: &str = "margo.yaml";

/// Descriptions are text that people write.
pub const DESCRIPTION_BYTES_MAX: u64 = 1024 * 1024;
/// Icons and texts for a catalog page.
pub const RESOURCE_BYTES_MAX: u64 = 16 * 1024 * 1024;
pub const RESOURCES_MAX: usize = 100;
const RESOURCES_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What a resource is for (PK-002).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    Icon,
    DescriptionFile,
    LicenseFile,
    ReleaseNotes,
}

const KINDS: [ResourceKind; 4] = [
    ResourceKind::Icon,
    ResourceKind::DescriptionFile,
    ResourceKind::LicenseFile,
    ResourceKind::ReleaseNotes,
];

impl ResourceKind {
    pub fn as_str(self) -> &'static str {
        match self {
            ResourceKind::Icon => "icon",
            ResourceKind::DescriptionFile => "descriptionFile",
            ResourceKind::LicenseFile => "licenseFile",
            ResourceKind::ReleaseNotes => "releaseNotes",
        }
    }

    /// The files that a description names, by what they are for.
    pub fn named_in(catalog: &Catalog) -> Vec<(ResourceKind, &str)> {
        let path = |kind| match kind {
            ResourceKind::Icon => &catalog.icon,
            ResourceKind::DescriptionFile => &catalog.description_file,
            ResourceKind::LicenseFile => &catalog.license_file,
            ResourceKind::ReleaseNotes => &catalog.release_notes,
        };
        KINDS.into_iter().filter_map(|kind| Some((kind, path(kind).as_deref()?))).collect()
    }

    /// `application/vnd.margo.app.icon.v1+png` (PK-025).
    fn media_type(self, format: &str) -> String {
        format!("application/vnd.margo.app.{}.v1+{format}", self.as_str())
    }

    /// The kind and format that a media type names, if it is one of ours.
    fn of_media_type(media_type: &str) -> Option<(ResourceKind, &str)> {
        let rest = media_type.strip_prefix("application/vnd.margo.app.")?;
        KINDS.into_iter().find_map(|kind| {
            let format = rest.strip_prefix(kind.as_str())?.strip_prefix(".v1+")?;
            Some((kind, format))
        })
    }
}

/// Why something is not a package.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("the package could not be transferred")]
    Client(#[from] ClientError),
    #[error("{0} is not an OCI image manifest (PK-020)")]
    Manifest(String, #[source] serde_json::Error),
    #[error("{what} is not an OCI image manifest but {got:?} (PK-020)")]
    MediaType { what: String, got: String },
    #[error("{what} has artifactType {got:?}, a package has {PACKAGE_TYPE} (PK-021)")]
    ArtifactType { what: String, got: String },
    #[error(
        "{what} has {got} descriptions, a package has exactly one layer of type {DESCRIPTION_TYPE} (PK-024)"
    )]
    Descriptions { what: String, got: usize },
    #[error("the file name {0:?} is not a relative path inside the package (PK-026)")]
    Title(String),
    #[error("the package has two files named {0:?}")]
    Duplicate(String),
    #[error(
        "the package has more than {RESOURCES_MAX} resources or more than {} of them",
        crate::in_binary(RESOURCES_BYTES_MAX)
    )]
    TooMany,
    #[error("the file {what:?} is larger than {}", crate::in_binary(*max))]
    TooLarge { what: String, max: u64 },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has no {DESCRIPTION_FILE}; a package has its description there (PK-001)", .0.display())]
    NoDescription(PathBuf),
    #[error("the description refers to {0:?}, which is not in the package")]
    Missing(String),
}

/// One file of a package beside its description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// `None` for files of which the standard knows no use.
    pub kind: Option<ResourceKind>,
    /// The path inside the package, such as `resources/icon.png`.
    pub title: String,
    pub media_type: String,
    pub bytes: Bytes,
}

/// A package as files, to be pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageFiles {
    description: Bytes,
    resources: Vec<Resource>,
}

impl PackageFiles {
    pub fn new(description: Bytes, resources: Vec<Resource>) -> Result<Self, PackageError> {
        if description.len() as u64 > DESCRIPTION_BYTES_MAX {
            return Err(PackageError::TooLarge {
                what: DESCRIPTION_FILE.to_owned(),
                max: DESCRIPTION_BYTES_MAX,
            });
        }
        let mut titles = BTreeSet::from([DESCRIPTION_FILE]);
        let mut bytes = 0;
        for resource in &resources {
            if normal(&resource.title).as_deref() != Some(resource.title.as_str()) {
                return Err(PackageError::Title(resource.title.clone()));
            }
            if !titles.insert(&resource.title) {
                return Err(PackageError::Duplicate(resource.title.clone()));
            }
            if resource.bytes.len() as u64 > RESOURCE_BYTES_MAX {
                return Err(PackageError::TooLarge { what: resource.title.clone(), max: RESOURCE_BYTES_MAX });
            }
            bytes += resource.bytes.len() as u64;
        }
        if resources.len() > RESOURCES_MAX || bytes > RESOURCES_BYTES_MAX {
            return Err(PackageError::TooMany);
        }
        Ok(PackageFiles { description, resources })
    }

    /// The description of a package on disk; read it first, to know what it refers to.
    pub fn read_description(dir: &Path) -> Result<Bytes, PackageError> {
        match read_file(dir, DESCRIPTION_FILE, DESCRIPTION_BYTES_MAX) {
            Err(PackageError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(PackageError::NoDescription(dir.to_owned()))
            }
            other => other,
        }
    }

    /// Reads a package from disk: the description, the files it names, and all else in `resources/` (PK-003).
    ///
    /// `named` is what the description says in `metadata.catalog.application`, as it is written there. Blocks.
    pub fn read_dir(dir: &Path, named: &[(ResourceKind, &str)]) -> Result<Self, PackageError> {
        let description = Self::read_description(dir)?;
        let mut resources = Vec::new();
        for (kind, path) in named {
            let title = normal(path).ok_or_else(|| PackageError::Title((*path).to_owned()))?;
            if resources.iter().any(|known: &Resource| known.title == title && known.kind == Some(*kind)) {
                continue;
            }
            let bytes = match read_file(dir, &title, RESOURCE_BYTES_MAX) {
                Err(PackageError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    return Err(PackageError::Missing((*path).to_owned()));
                }
                other => other?,
            };
            resources.push(Resource {
                kind: Some(*kind),
                media_type: kind.media_type(&format_of(&title)),
                title,
                bytes,
            });
        }
        let mut others = Vec::new();
        list_files(&dir.join("resources"), "resources", &mut others)?;
        for title in others {
            if resources.iter().any(|known: &Resource| known.title == title) {
                continue;
            }
            if resources.len() >= RESOURCES_MAX {
                return Err(PackageError::TooMany);
            }
            let bytes = read_file(dir, &title, RESOURCE_BYTES_MAX)?;
            resources.push(Resource {
                kind: None,
                media_type: plain_media_type(&title).to_owned(),
                title,
                bytes,
            });
        }
        Self::new(description, resources)
    }

    pub fn description(&self) -> &Bytes {
        &self.description
    }

    pub fn resources(&self) -> &[Resource] {
        &self.resources
    }

    /// The manifest under which the files are pushed.
    pub fn manifest(&self) -> ImageManifest {
        let mut layers = vec![
            Descriptor::of(DESCRIPTION_TYPE, &self.description).annotated(ANNOTATION_TITLE, DESCRIPTION_FILE),
        ];
        for resource in &self.resources {
            let layer = Descriptor::of(&resource.media_type, &resource.bytes)
                .annotated(ANNOTATION_TITLE, &resource.title)
                // The key is required, its value is not defined (PK-027): the kind says most.
                .annotated(ANNOTATION_RESOURCE, resource.kind.map_or("file", ResourceKind::as_str));
            layers.push(layer);
        }
        ImageManifest::artifact(PACKAGE_TYPE, layers)
    }
}

/// A package's manifest, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageManifest {
    /// Of the manifest's exact bytes: what a version is pinned by (PK-042).
    pub digest: Digest,
    pub description: Descriptor,
    pub resources: Vec<ResourceLayer>,
}

/// One layer beside the description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceLayer {
    pub kind: Option<ResourceKind>,
    pub title: Option<String>,
    /// The file format, from the media type or else the file name (PK-028).
    pub format: Option<String>,
    pub layer: Descriptor,
}

impl PackageManifest {
    /// Reads a manifest as tolerantly as the standard wants and no more; `what` is for messages.
    pub fn read(what: &str, bytes: &[u8]) -> Result<Self, PackageError> {
        let manifest = ImageManifest::from_bytes(bytes)
            .map_err(|error| PackageError::Manifest(what.to_owned(), error))?;
        let what = || what.to_owned();
        if let Some(got) = manifest.media_type.filter(|media_type| media_type != IMAGE_MANIFEST) {
            return Err(PackageError::MediaType { what: what(), got });
        }
        if manifest.artifact_type.as_deref() != Some(PACKAGE_TYPE) {
            return Err(PackageError::ArtifactType {
                what: what(),
                got: manifest.artifact_type.unwrap_or_default(),
            });
        }
        let (mut descriptions, others): (Vec<_>, Vec<_>) =
            manifest.layers.into_iter().partition(|layer| layer.media_type == DESCRIPTION_TYPE);
        let count = descriptions.len();
        let (Some(description), true) = (descriptions.pop(), count == 1) else {
            return Err(PackageError::Descriptions { what: what(), got: count });
        };
        if description.size > DESCRIPTION_BYTES_MAX {
            return Err(PackageError::TooLarge {
                what: DESCRIPTION_FILE.to_owned(),
                max: DESCRIPTION_BYTES_MAX,
            });
        }
        let total = others.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
        if others.len() > RESOURCES_MAX || total > RESOURCES_BYTES_MAX {
            return Err(PackageError::TooMany);
        }
        let mut titles = BTreeSet::new();
        let mut resources = Vec::new();
        for layer in others {
            let title = match layer.title() {
                Some(title) => Some(
                    normal(title).ok_or_else(|| PackageError::Title(title.chars().take(200).collect()))?,
                ),
                None => None,
            };
            if let Some(title) = &title
                && !titles.insert(title.clone())
            {
                return Err(PackageError::Duplicate(title.clone()));
            }
            let of_type = ResourceKind::of_media_type(&layer.media_type);
            let format = of_type.map(|(_, format)| format.to_owned()).filter(|format| !format.is_empty());
            let format = format.or_else(|| title.as_deref().map(format_of));
            resources.push(ResourceLayer { kind: of_type.map(|(kind, _)| kind), title, format, layer });
        }
        Ok(PackageManifest { digest: Digest::of(bytes), description, resources })
    }

    /// The layer of a file that the description names, such as `./resources/icon.png` (PK-026).
    ///
    /// By its title first; else, where just one layer is of the kind, that one; packages whose media types say
    /// nothing are found by title alone (PK-031).
    pub fn resource(&self, kind: ResourceKind, path: &str) -> Option<&ResourceLayer> {
        let title = normal(path)?;
        let by_title =
            self.resources.iter().find(|resource| resource.title.as_deref() == Some(title.as_str()));
        by_title.or_else(|| {
            let mut of_kind = self.resources.iter().filter(|resource| resource.kind == Some(kind));
            of_kind.next().filter(|_| of_kind.next().is_none())
        })
    }
}

impl Client {
    /// Pushes a package: its files, then the manifest under the version's tag (PK-040).
    pub async fn push_package(
        &self,
        reference: &Reference,
        files: &PackageFiles,
    ) -> Result<Digest, ClientError> {
        let repository = &reference.repository;
        self.push_blob(repository, Bytes::from_static(EMPTY_CONFIG)).await?;
        self.push_blob(repository, files.description.clone()).await?;
        for resource in &files.resources {
            self.push_blob(repository, resource.bytes.clone()).await?;
        }
        self.push_manifest(reference, IMAGE_MANIFEST, files.manifest().to_bytes().into()).await
    }

    /// First step of an import: the manifest, refused if it is no package's (PK-044).
    pub async fn package_manifest(&self, reference: &Reference) -> Result<PackageManifest, PackageError> {
        let pulled = self.manifest(reference).await?;
        PackageManifest::read(&reference.to_string(), &pulled.bytes)
    }

    /// Second step: the exact bytes of the description.
    pub async fn package_description(
        &self,
        repository: &Repository,
        manifest: &PackageManifest,
    ) -> Result<Bytes, PackageError> {
        Ok(self.blob(repository, &manifest.description, DESCRIPTION_BYTES_MAX).await?)
    }

    /// Last step: one resource.
    pub async fn package_resource(
        &self,
        repository: &Repository,
        resource: &ResourceLayer,
    ) -> Result<Bytes, PackageError> {
        Ok(self.blob(repository, &resource.layer, RESOURCE_BYTES_MAX).await?)
    }
}

/// `./resources/x` and `resources/x` are the same file; what leads elsewhere is none.
fn normal(path: &str) -> Option<String> {
    let valid = !path.is_empty()
        && path.len() <= 255
        && !path.starts_with('/')
        && !path.chars().any(char::is_control);
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (valid && !parts.is_empty() && !parts.contains(&"..")).then(|| parts.join("/"))
}

/// The format as the standard's examples write it.
fn format_of(title: &str) -> String {
    let extension = Path::new(title).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let extension: String =
        extension.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).take(20).collect();
    match extension.as_str() {
        "jpg" => "jpeg".to_owned(),
        "md" => "markdown".to_owned(),
        "txt" | "" => "plain".to_owned(),
        "htm" => "html".to_owned(),
        _ => extension,
    }
}

/// What a file without a kind is called.
fn plain_media_type(title: &str) -> &'static str {
    match format_of(title).as_str() {
        "png" => "image/png",
        "jpeg" => "image/jpeg",
        "svg" => "image/svg+xml",
        "markdown" => "text/markdown",
        "plain" => "text/plain",
        "html" => "text/html",
        "json" => "application/json",
        "yaml" | "yml" => "application/yaml",
        "pdf" => "application/pdf",
        _ => "application/octet-stream",
    }
}

fn read_file(dir: &Path, title: &str, max: u64) -> Result<Bytes, PackageError> {
    let path = dir.join(title);
    let unreadable = |source| PackageError::Read { path: path.clone(), source };
    // A link may lead out of the package, and then the file is somebody else's.
    let real = fs::canonicalize(&path).map_err(unreadable)?;
    if !real.starts_with(fs::canonicalize(dir).map_err(unreadable)?) {
        return Err(PackageError::Title(title.to_owned()));
    }
    let file = fs::File::open(&real).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")));
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, max + 1), &mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > max {
        return Err(PackageError::TooLarge { what: title.to_owned(), max });
    }
    Ok(bytes.into())
}

/// All files below a directory, by their titles, sorted.
fn list_files(dir: &Path, title: &str, found: &mut Vec<String>) -> Result<(), PackageError> {
    let unreadable = |source| PackageError::Read { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let name = entry
            .file_name()
            .into_string()
            .map_err(|name| PackageError::Title(name.to_string_lossy().into()))?;
        names.push((name, entry.file_type().map_err(unreadable)?.is_dir()));
    }
    names.sort();
    for (name, is_dir) in names {
        let (path, title) = (dir.join(&name), format!("{title}/{name}"));
        if found.len() > RESOURCES_MAX || title.len() > 255 {
            return Err(PackageError::TooMany);
        }
        if is_dir {
            list_files(&path, &title, found)?;
        } else {
            found.push(title);
        }
    }
    Ok(())
}
