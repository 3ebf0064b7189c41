//! Pulling from and pushing to OCI registries, every byte checked.
//!
//! What is pulled is verified against the digest it was asked by before anybody sees it (PK-041, PK-096);
//! a registry's own word for a digest is only compared. When to try again is the caller's decision, with
//! [`ClientError::retry`] for a hint; only a download that was cut off is continued here, because only here
//! the bytes that came are known.

mod challenge;
mod download;
mod error;
mod hosts;
mod session;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_http::{Limits, Request, StatusCode, header};

pub use error::ClientError;
pub use hosts::{Credentials, Endpoint, Hosts, Tls, system_roots};

use crate::manifest::{
    DOCKER_MANIFEST, DOCKER_MANIFEST_LIST, Descriptor, IMAGE_INDEX, IMAGE_MANIFEST, MANIFEST_BYTES_MAX,
};
use crate::reference::{Host, Reference, Repository, Tag, TagOrDigest};
use session::{Intent, Session, Shared, network, protocol, refused};

const ACCEPTED: [&str; 4] = [IMAGE_MANIFEST, IMAGE_INDEX, DOCKER_MANIFEST, DOCKER_MANIFEST_LIST];

/// Far beyond any catalog; a registry that pages on and on must not hold us.
const TAG_PAGES_MAX: usize = 100;
const TAGS_MAX: usize = 100_000;

/// The slowest upload that is still waited for, in bytes a second: a bad mobile line.
const UPLOAD_RATE_MIN: u64 = 8 * 1024;

/// A refusal with its reason can be longer than the small blob that was asked for.
const REFUSAL_BYTES_MAX: u64 = 64 * 1024;

/// A client of registries. Cheap to clone; clones share connections and tokens.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// A manifest and the digest of its exact bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledManifest {
    pub digest: Digest,
    pub media_type: String,
    pub bytes: Bytes,
}

impl Client {
    pub fn new(hosts: Hosts) -> Self {
        let limits = Limits { request: Duration::from_secs(60), ..Limits::default() };
        Self::with_limits(hosts, limits)
    }

    pub fn with_limits(hosts: Hosts, limits: Limits) -> Self {
        Client { shared: Arc::new(Shared::new(hosts, limits)) }
    }

    async fn session(&self, repository: &Repository, intent: Intent) -> Result<Session, ClientError> {
        Session::open(&self.shared, &repository.host, Some(&repository.name), intent).await
    }

    /// Pulls a manifest. By digest it is that one or an error; by tag it is what the tag points to now, so
    /// remember the digest (PK-042).
    pub async fn manifest(&self, reference: &Reference) -> Result<PulledManifest, ClientError> {
        let what = reference.to_string();
        let session = self.session(&reference.repository, Intent::Pull).await?;
        let path = session.path(&format!("manifests/{}", reference.version));
        let request = |path: &str| {
            Request::get(path).header(header::ACCEPT, ACCEPTED.join(", ")).body_max(MANIFEST_BYTES_MAX)
        };
        let answer = session.open_answer(&what, || request(&path)).await?;
        let answer = session.follow(&what, answer, request).await?;
        let response = answer.whole().await.map_err(network(&what))?;
        if response.status != StatusCode::OK {
            return Err(refused(&what, &response));
        }
        let digest = Digest::of(&response.body);
        if let TagOrDigest::Digest(wanted) = &reference.version
            && *wanted != digest
        {
            return Err(ClientError::DigestMismatch { what, wanted: *wanted, got: digest });
        }
        // A proxy that changed the bytes of a tag's manifest is seen here, if the registry says the digest.
        if let Some(said) = response.header("docker-content-digest").and_then(|text| Digest::parse(text).ok())
            && said != digest
        {
            return Err(ClientError::DigestMismatch { what, wanted: said, got: digest });
        }
        let media_type = response.header(header::CONTENT_TYPE).unwrap_or(IMAGE_MANIFEST);
        let media_type = media_type.split(';').next().unwrap_or(media_type).trim().to_owned();
        Ok(PulledManifest { digest, media_type, bytes: response.body })
    }

    /// The digest behind a reference now, by the registry's own word where it gives one: enough to see that something
    /// moved or is gone, and nothing is fetched for it.
    pub async fn digest(&self, reference: &Reference) -> Result<Digest, ClientError> {
        let what = reference.to_string();
        let session = self.session(&reference.repository, Intent::Pull).await?;
        let path = session.path(&format!("manifests/{}", reference.version));
        let request = |path: &str| Request::head(path).header(header::ACCEPT, ACCEPTED.join(", "));
        let answer = session.open_answer(&what, || request(&path)).await?;
        let answer = session.follow(&what, answer, request).await?;
        let response = answer.whole().await.map_err(network(&what))?;
        match response.status {
            StatusCode::OK => match response.header("docker-content-digest").map(Digest::parse) {
                Some(Ok(digest)) => Ok(digest),
                _ => Ok(self.manifest(reference).await?.digest),
            },
            _ => Err(refused(&what, &response)),
        }
    }

    /// Asks a registry whether it is one, and whether it takes our credentials.
    pub async fn greet(&self, host: &Host) -> Result<(), ClientError> {
        let what = format!("the registry {host}");
        let session = Session::open(&self.shared, host, None, Intent::Pull).await?;
        let response = session.send(&what, || Request::get("/v2/")).await?;
        match response.status {
            StatusCode::OK => Ok(()),
            StatusCode::NOT_FOUND => Err(protocol(&what, "it has no /v2/, which every OCI registry has")),
            _ => Err(refused(&what, &response)),
        }
    }

    /// Pulls a blob into memory, if it is not larger than `max`.
    pub async fn blob(
        &self,
        repository: &Repository,
        descriptor: &Descriptor,
        max: u64,
    ) -> Result<Bytes, ClientError> {
        let what = format!("{repository}@{}", descriptor.digest);
        if descriptor.size > max {
            return Err(ClientError::TooLarge { what, max });
        }
        let session = self.session(repository, Intent::Pull).await?;
        let path = session.path(&format!("blobs/{}", descriptor.digest));
        let request = |path: &str| Request::get(path).body_max(descriptor.size.max(REFUSAL_BYTES_MAX));
        let pull = async {
            let answer = session.open_answer(&what, || request(&path)).await?;
            let answer = session.follow(&what, answer, request).await?;
            answer.whole().await.map_err(network(&what))
        };
        let response = pull.await.map_err(|error| broken_promise(error, descriptor))?;
        if response.status != StatusCode::OK {
            return Err(refused(&what, &response));
        }
        let (got, digest) = (response.body.len() as u64, Digest::of(&response.body));
        if got != descriptor.size {
            return Err(ClientError::SizeMismatch { what, wanted: descriptor.size, got });
        }
        if digest != descriptor.digest {
            return Err(ClientError::DigestMismatch { what, wanted: descriptor.digest, got: digest });
        }
        Ok(response.body)
    }

    /// Pulls a blob into a file, which is there only when all of it is there and right.
    ///
    /// A download that was cut off is continued, now and by a later call: what came is kept beside the file
    /// as `.<digest>.partial`. Two calls for one file must not run at once.
    pub async fn blob_to_file(
        &self,
        repository: &Repository,
        descriptor: &Descriptor,
        path: &Path,
    ) -> Result<(), ClientError> {
        let session = self.session(repository, Intent::Pull).await?;
        download::to_file(&session, repository, descriptor, path).await
    }

    /// All tags of a repository, in lexical order; which is the newest, only versions can tell (PK-017).
    ///
    /// Sorted here, because not every registry does. Tags that break the specification are left out.
    pub async fn tags(&self, repository: &Repository) -> Result<Vec<Tag>, ClientError> {
        #[derive(serde::Deserialize)]
        struct Page {
            tags: Option<Vec<String>>,
        }
        let what = format!("the tags of {repository}");
        let session = self.session(repository, Intent::Pull).await?;
        let mut path = session.path("tags/list?n=1000");
        let mut tags: Vec<Tag> = Vec::new();
        for _ in 0..TAG_PAGES_MAX {
            let response = session.send(&what, || Request::get(path.as_str())).await?;
            if response.status != StatusCode::OK {
                return Err(refused(&what, &response));
            }
            let page: Page = response.json().map_err(|error| protocol(&what, &error.to_string()))?;
            tags.extend(page.tags.unwrap_or_default().iter().filter_map(|tag| Tag::parse(tag).ok()));
            if tags.len() > TAGS_MAX {
                return Err(ClientError::TooLarge { what, max: TAGS_MAX as u64 });
            }
            match response.header(header::LINK).and_then(next_link) {
                Some(next) => path = session.own_path(&what, &next)?,
                None => {
                    tags.sort();
                    tags.dedup();
                    return Ok(tags);
                }
            }
        }
        Err(protocol(&what, "it goes on for too many pages"))
    }

    /// Whether the repository has a blob of this digest.
    pub async fn has_blob(&self, repository: &Repository, digest: &Digest) -> Result<bool, ClientError> {
        let session = self.session(repository, Intent::Pull).await?;
        self.has(&session, repository, digest).await
    }

    async fn has(
        &self,
        session: &Session,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<bool, ClientError> {
        let what = format!("{repository}@{digest}");
        let path = session.path(&format!("blobs/{digest}"));
        let answer = session.open_answer(&what, || Request::head(path.as_str())).await?;
        let answer = session.follow(&what, answer, |path| Request::head(path)).await?;
        let response = answer.whole().await.map_err(network(&what))?;
        match response.status {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(refused(&what, &response)),
        }
    }

    /// Pushes a blob unless the repository has it, and returns its digest.
    pub async fn push_blob(&self, repository: &Repository, bytes: Bytes) -> Result<Digest, ClientError> {
        let digest = Digest::of(&bytes);
        let length = bytes.len() as u64;
        self.upload(repository, digest, length, |request| {
            Ok(request.bytes("application/octet-stream", bytes.clone()))
        })
        .await?;
        Ok(digest)
    }

    /// Pushes a file of known digest and size unless the repository has it.
    pub async fn push_blob_file(
        &self,
        repository: &Repository,
        digest: Digest,
        size: u64,
        path: &Path,
    ) -> Result<(), ClientError> {
        self.upload(repository, digest, size, |request| {
            let file = std::fs::File::open(path).map_err(|source| ClientError::Disk {
                doing: "read",
                path: path.to_owned(),
                source,
            })?;
            Ok(request.reader("application/octet-stream", size, tokio::fs::File::from_std(file)))
        })
        .await
    }

    async fn upload(
        &self,
        repository: &Repository,
        digest: Digest,
        size: u64,
        with_content: impl Fn(Request) -> Result<Request, ClientError>,
    ) -> Result<(), ClientError> {
        let session = self.session(repository, Intent::Push).await?;
        if self.has(&session, repository, &digest).await? {
            return Ok(());
        }
        let what = format!("{repository}@{digest}");
        let path = session.path("blobs/uploads/");
        let started = session.send(&what, || Request::post(path.as_str())).await?;
        if started.status != StatusCode::ACCEPTED {
            return Err(refused(&what, &started));
        }
        let location = started
            .header(header::LOCATION)
            .ok_or_else(|| protocol(&what, "an upload without a location"))?;
        let path = session.own_path(&what, location)?;
        let path = format!("{path}{}digest={digest}", if path.contains('?') { '&' } else { '?' });
        let patience = Duration::from_secs(60 + size / UPLOAD_RATE_MIN);
        let request = with_content(Request::put(path))?.timeout(patience);
        let finished = session.send_once(&what, request).await?;
        if finished.status == StatusCode::CREATED { Ok(()) } else { Err(refused(&what, &finished)) }
    }

    /// Pushes a manifest whose blobs are there, and returns its digest (PK-040).
    pub async fn push_manifest(
        &self,
        reference: &Reference,
        media_type: &str,
        bytes: Bytes,
    ) -> Result<Digest, ClientError> {
        let what = reference.to_string();
        let digest = Digest::of(&bytes);
        let session = self.session(&reference.repository, Intent::Push).await?;
        let path = session.path(&format!("manifests/{}", reference.version));
        let request = || {
            Request::put(path.as_str())
                .bytes(IMAGE_MANIFEST, bytes.clone())
                .header(header::CONTENT_TYPE, media_type)
        };
        let response = session.send(&what, request).await?;
        if response.status != StatusCode::CREATED {
            return Err(match refused(&what, &response) {
                // "Not found" of a push means that something the manifest needs is missing.
                ClientError::NotFound(what) => {
                    let told = error::told(&response.body);
                    ClientError::Refused { what, status: response.status, told }
                }
                other => other,
            });
        }
        match response.header("docker-content-digest").and_then(|text| Digest::parse(text).ok()) {
            Some(said) if said != digest => {
                Err(ClientError::DigestMismatch { what, wanted: digest, got: said })
            }
            _ => Ok(digest),
        }
    }
}

/// More than a descriptor promised is not "too large" but wrong.
fn broken_promise(error: ClientError, descriptor: &Descriptor) -> ClientError {
    match error {
        ClientError::TooLarge { what, .. } => ClientError::SizeMismatch {
            what,
            wanted: descriptor.size,
            got: descriptor.size.saturating_add(1),
        },
        other => other,
    }
}

/// The target of `<…>; rel="next"`.
fn next_link(value: &str) -> Option<String> {
    value.split(',').find_map(|link| {
        let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        let next = parameters.split(';').any(|one| matches!(one.trim(), "rel=\"next\"" | "rel=next"));
        next.then(|| target.to_owned())
    })
}
