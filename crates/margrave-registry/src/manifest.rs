//! What a pushed manifest says that the registry has to act on.

use margrave_core::digest::Digest;
use margrave_oci::manifest::{
    Annotations, DOCKER_MANIFEST, DOCKER_MANIFEST_LIST, Descriptor, IMAGE_INDEX, IMAGE_MANIFEST, ImageIndex,
    ImageManifest,
};

use crate::error::RegistryError;

/// How many things one manifest may refer to: far beyond real images, far below what would hurt.
const REFERENCES_MAX: usize = 10_000;

/// A manifest, reduced to its relations.
#[derive(Debug)]
pub(crate) struct Relations {
    /// Blobs that must be in the same repository.
    pub(crate) blobs: Vec<Descriptor>,
    /// Manifests that must be in the same repository.
    pub(crate) manifests: Vec<Descriptor>,
    /// The manifest this one is about; it may come later or never.
    pub(crate) subject: Option<Digest>,
    /// What the referrers list tells about this manifest.
    pub(crate) artifact_type: Option<String>,
    pub(crate) annotations: Annotations,
}

/// Reads a manifest of one of the four media types that clients push.
pub(crate) fn read(media_type: &str, bytes: &[u8]) -> Result<Relations, RegistryError> {
    let invalid = |error: serde_json::Error| RegistryError::ManifestInvalid(error.to_string());
    let (version, inner_type, relations) = match media_type {
        IMAGE_MANIFEST | DOCKER_MANIFEST => {
            let manifest = ImageManifest::from_bytes(bytes).map_err(invalid)?;
            let artifact_type = manifest.artifact_type.or_else(|| Some(manifest.config.media_type.clone()));
            let mut blobs = vec![manifest.config];
            // Layers that may not be redistributed name their source instead of being pushed.
            blobs.extend(manifest.layers.into_iter().filter(|layer| layer.urls.is_empty()));
            let relations = Relations {
                blobs,
                manifests: Vec::new(),
                subject: manifest.subject.map(|subject| subject.digest),
                artifact_type,
                annotations: manifest.annotations,
            };
            (manifest.schema_version, manifest.media_type, relations)
        }
        IMAGE_INDEX | DOCKER_MANIFEST_LIST => {
            let index = ImageIndex::from_bytes(bytes).map_err(invalid)?;
            let relations = Relations {
                blobs: Vec::new(),
                manifests: index.manifests,
                subject: index.subject.map(|subject| subject.digest),
                artifact_type: index.artifact_type,
                annotations: index.annotations,
            };
            (index.schema_version, index.media_type, relations)
        }
        other => {
            let other: String = other.chars().take(120).collect();
            return Err(RegistryError::ManifestInvalid(format!(
                "the media type {other:?} is not supported; push an OCI image manifest or index, or a Docker \
                 schema 2 manifest or list"
            )));
        }
    };
    if version != 2 {
        return Err(RegistryError::ManifestInvalid(format!("schemaVersion is {version}, it must be 2")));
    }
    if inner_type.as_deref().is_some_and(|inner| inner != media_type) {
        return Err(RegistryError::ManifestInvalid(
            "mediaType inside the manifest differs from the Content-Type it was pushed with".to_owned(),
        ));
    }
    if relations.blobs.len() + relations.manifests.len() > REFERENCES_MAX {
        return Err(RegistryError::ManifestInvalid(format!(
            "it refers to more than {REFERENCES_MAX} things"
        )));
    }
    Ok(relations)
}
