//! OCI image manifests and indexes as they are written, and what to read out of them.
//!
//! A manifest is known by the digest of its exact bytes. So there are two sides here that never meet:
//! [`ImageManifest`] is read from bytes that somebody else wrote and that are kept beside it, or it is
//! written once by [`ImageManifest::to_bytes`]. Nothing is parsed and written back.

use std::collections::BTreeMap;

use margrave_core::digest::Digest;
use serde::{Deserialize, Serialize};

pub const IMAGE_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const IMAGE_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_MANIFEST_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// Registries commonly refuse manifests beyond this, so reading more would only help an attacker.
pub const MANIFEST_BYTES_MAX: u64 = 4 * 1024 * 1024;

pub const ANNOTATION_TITLE: &str = "org.opencontainers.image.title";
pub const ANNOTATION_VERSION: &str = "org.opencontainers.image.version";

/// The content of the config blob of artefacts that have none.
pub const EMPTY_CONFIG: &[u8] = b"{}";
pub const EMPTY_CONFIG_TYPE: &str = "application/vnd.oci.empty.v1+json";

pub type Annotations = BTreeMap<String, String>;

/// What a manifest says about one blob or one other manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    /// The content itself, base64, for tiny blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Where else the content may be; only such layers may be missing from a registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    #[serde(default, skip_serializing_if = "Annotations::is_empty", deserialize_with = "null_is_empty")]
    pub annotations: Annotations,
    /// In an index: which machines the image is made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

/// What an image is made for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Platform {
    #[serde(default)]
    pub os: String,
    /// As in `amd64`, `arm64`, `arm`.
    #[serde(default)]
    pub architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Descriptor {
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Descriptor::new(media_type, Digest::of(bytes), bytes.len() as u64)
    }

    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Descriptor {
            media_type: media_type.to_owned(),
            digest,
            size,
            data: None,
            artifact_type: None,
            urls: Vec::new(),
            annotations: Annotations::new(),
            platform: None,
        }
    }

    /// The OCI empty descriptor (PK-022).
    pub fn empty_config() -> Self {
        Descriptor { data: Some("e30=".to_owned()), ..Descriptor::of(EMPTY_CONFIG_TYPE, EMPTY_CONFIG) }
    }

    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn title(&self) -> Option<&str> {
        self.annotations.get(ANNOTATION_TITLE).map(String::as_str)
    }
}

/// An OCI image manifest (also Docker's schema 2, which has the same shape).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageManifest {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    pub config: Descriptor,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    #[serde(default, skip_serializing_if = "Annotations::is_empty", deserialize_with = "null_is_empty")]
    pub annotations: Annotations,
}

impl ImageManifest {
    /// A manifest of an artefact without a config of its own.
    pub fn artifact(artifact_type: &str, layers: Vec<Descriptor>) -> Self {
        ImageManifest {
            schema_version: 2,
            media_type: Some(IMAGE_MANIFEST.to_owned()),
            artifact_type: Some(artifact_type.to_owned()),
            config: Descriptor::empty_config(),
            layers,
            subject: None,
            annotations: Annotations::new(),
        }
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a manifest has string keys and no failing serialisers")
    }
}

/// An OCI image index (also Docker's manifest list).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageIndex {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub manifests: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    #[serde(default, skip_serializing_if = "Annotations::is_empty", deserialize_with = "null_is_empty")]
    pub annotations: Annotations,
}

impl ImageIndex {
    pub fn of(manifests: Vec<Descriptor>) -> Self {
        ImageIndex {
            schema_version: 2,
            media_type: Some(IMAGE_INDEX.to_owned()),
            artifact_type: None,
            manifests,
            subject: None,
            annotations: Annotations::new(),
        }
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an index has string keys and no failing serialisers")
    }
}

/// Go programs write `null` where they mean an empty list or map.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pk_022_the_empty_config_is_the_one_of_the_standard() {
        let text = serde_json::to_string(&Descriptor::empty_config()).unwrap();
        assert_eq!(
            text,
            "{\"mediaType\":\"application/vnd.oci.empty.v1+json\",\
             \"digest\":\"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\",\
             \"size\":2,\"data\":\"e30=\"}"
        );
    }

    #[test]
    fn null_lists_of_go_programs_are_empty() {
        let text = format!(
            "{{\"schemaVersion\":2,\"config\":{},\"layers\":null,\"annotations\":null}}",
            serde_json::to_string(&Descriptor::empty_config()).unwrap()
        );
        let manifest = ImageManifest::from_bytes(text.as_bytes()).unwrap();
        assert!(manifest.layers.is_empty() && manifest.annotations.is_empty());
    }

    #[test]
    fn what_is_not_a_manifest_is_an_error() {
        for bad in ["", "[]", "null", "{}", "{\"schemaVersion\":2}", "{\"schemaVersion\":2,\"config\":1}"] {
            assert!(ImageManifest::from_bytes(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
