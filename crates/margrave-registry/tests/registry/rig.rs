//! What the tests share: a registry in a temporary directory, and requests to it.

use std::net::SocketAddr;
use std::path::Path;

use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use margrave_core::digest::Digest;
use margrave_oci::manifest::{Descriptor, IMAGE_MANIFEST, ImageManifest};
use margrave_registry::{Access, Action, Decision, Limits, Registry, RepositoryName, TagOrDigest, router};
use tempfile::TempDir;
use tower::ServiceExt as _;

pub(crate) struct Rig {
    pub(crate) registry: Registry,
    router: axum::Router,
    pub(crate) dir: TempDir,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) fn everybody(_: &Parts, _: Action, _: Option<&RepositoryName>) -> Decision {
    Decision::Allow
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(Limits::default(), everybody)
    }

    pub(crate) fn with(limits: Limits, access: impl Access) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open_with(dir.path(), limits).unwrap();
        Rig { router: router(registry.clone(), access), registry, dir }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Body::empty()).await
    }

    /// Pushes a blob the short way and returns its digest.
    pub(crate) async fn push(&self, repository: &str, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        let path = format!("/v2/{repository}/blobs/uploads/?digest={digest}");
        self.send("POST", &path, &[], bytes.to_vec()).await.expect(201);
        digest
    }

    pub(crate) async fn put_manifest(&self, repository: &str, reference: &str, bytes: &[u8]) -> Answer {
        let path = format!("/v2/{repository}/manifests/{reference}");
        self.send("PUT", &path, &[("content-type", IMAGE_MANIFEST)], bytes.to_vec()).await
    }

    /// Pushes an artefact of one layer under a tag.
    pub(crate) async fn push_artifact(&self, repository: &str, tag: &str, layer: &[u8]) -> Digest {
        self.push(repository, b"{}").await;
        self.push(repository, layer).await;
        let bytes = artifact(layer).to_bytes();
        self.put_manifest(repository, tag, &bytes).await.expect(201);
        Digest::of(&bytes)
    }

    /// Opens an upload and returns its location.
    pub(crate) async fn start(&self, repository: &str) -> String {
        let answer = self.send("POST", &format!("/v2/{repository}/blobs/uploads/"), &[], Body::empty()).await;
        answer.expect(202);
        answer.header("location").to_owned()
    }

    pub(crate) async fn serve(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(axum::serve(listener, self.router.clone()).into_future());
        address
    }

    pub(crate) fn incoming(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("incoming")).unwrap().count()
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> &Answer {
        assert_eq!(
            self.status.as_u16(),
            status,
            "{:?} {}",
            self.headers,
            String::from_utf8_lossy(&self.body)
        );
        self
    }

    /// That it is an error of the specification's form with this status and code.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) {
        self.expect(status);
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(body["errors"][0]["code"], code, "{body}");
        assert!(body["errors"][0]["message"].as_str().is_some_and(|message| message.len() > 10), "{body}");
    }

    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers)).to_str().unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub(crate) fn artifact(layer: &[u8]) -> ImageManifest {
    ImageManifest::artifact("application/vnd.example.thing", vec![Descriptor::of("text/plain", layer)])
}

pub(crate) fn name(text: &str) -> RepositoryName {
    RepositoryName::parse(text).unwrap()
}

pub(crate) fn reference(text: &str) -> TagOrDigest {
    TagOrDigest::parse(text).unwrap()
}

/// Every file below a directory, relative to it, sorted.
pub(crate) fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(at) = pending.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                found.push(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Whether a real client is here. Missing: said aloud, and red where everything must be there.
pub(crate) fn present(tool: &str, found: bool) -> bool {
    #[allow(clippy::print_stderr)]
    if !found {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{tool} is missing, and CI must have it");
        eprintln!("SKIPPED: {tool} is not installed here");
    }
    found
}

pub(crate) fn on_path(tool: &str) -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(tool).is_file())
}
