//! The device interface (g2) asked for anything, by a client with a good certificate.
//!
//! An input is a request as one reads it: a line with method and target, header lines, an empty line, a body.
//! Behind the router is a fleet in memory that can do everything at once, so every 5xx is the router's own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, RANGE};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::BodyExt as _;
use margrave_core::capabilities::Capabilities;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId};
use margrave_core::report::Report;
use margrave_device_api::{Answer, ApiError, Caller, DeviceApi, LiveManifest, Outside, Put, g2};
use margrave_wire::problem::{MEDIA_TYPE, Problem};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

pub(crate) const ASSIGNMENT: &str = "0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11";
pub(crate) const DOCUMENT: &[u8] = b"id: 0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11\n";
pub(crate) const BUNDLE: &[u8] = b"a bundle, as far as the interface can tell";
pub(crate) const MANIFEST: &[u8] = br#"{"bundle":null,"deployments":[],"manifestVersion":7}"#;

/// A fleet with one client, which remembers what it was told and how long it was asked to wait.
#[derive(Default)]
pub(crate) struct Fleet {
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    devices: BTreeSet<DeviceId>,
    reported: BTreeSet<AssignmentId>,
    waits: Vec<Duration>,
}

impl Fleet {
    fn told<T>(&self, with: impl FnOnce(&mut Told) -> T) -> T {
        with(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) fn now<'a, T: Send + 'a>(value: T) -> Answer<'a, T> {
    Box::pin(std::future::ready(value))
}

fn put(new: bool) -> Put {
    if new { Put::Created } else { Put::Updated }
}

impl DeviceApi for Fleet {
    fn admit(&self, _: &ClientId) -> Result<(), Outside> {
        Ok(())
    }

    fn manifest(&self, _: &ClientId) -> Result<Arc<LiveManifest>, Outside> {
        Ok(Arc::new(LiveManifest::new(7, Bytes::from_static(MANIFEST))))
    }

    fn manifest_changed<'a>(&'a self, _: &'a ClientId, than: Digest, within: Duration) -> Answer<'a, bool> {
        assert_eq!(than, Digest::of(MANIFEST), "only who holds the current manifest waits for the next");
        self.told(|told| told.waits.push(within));
        now(true)
    }

    fn document<'a>(
        &'a self,
        _: &'a ClientId,
        assignment: AssignmentId,
        digest: Digest,
    ) -> Answer<'a, Result<Option<Bytes>, ApiError>> {
        let own = assignment.to_string() == ASSIGNMENT && digest == Digest::of(DOCUMENT);
        now(Ok(own.then_some(Bytes::from_static(DOCUMENT))))
    }

    fn bundle<'a>(&'a self, _: &'a ClientId, digest: Digest) -> Answer<'a, Result<Option<Bytes>, ApiError>> {
        now(Ok((digest == Digest::of(BUNDLE)).then_some(Bytes::from_static(BUNDLE))))
    }

    fn put_capabilities<'a>(
        &'a self,
        _: &'a ClientId,
        capabilities: Capabilities,
        body: Bytes,
    ) -> Answer<'a, Result<Put, ApiError>> {
        assert!(!body.is_empty(), "capabilities come with the bytes that they were read from");
        now(Ok(put(self.told(|told| told.devices.insert(capabilities.device)))))
    }

    fn delete_capabilities<'a>(
        &'a self,
        _: &'a ClientId,
        device: &'a DeviceId,
    ) -> Answer<'a, Result<(), ApiError>> {
        let known = self.told(|told| told.devices.remove(device));
        now(if known { Ok(()) } else { Err(ApiError::DeviceNotFound(device.clone())) })
    }

    fn report<'a>(&'a self, _: &'a ClientId, report: Report) -> Answer<'a, Result<Put, ApiError>> {
        now(if report.assignment.to_string() == ASSIGNMENT {
            Ok(put(self.told(|told| told.reported.insert(report.assignment))))
        } else {
            Err(ApiError::AssignmentUnknown(report.assignment))
        })
    }
}

pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
    })
}

/// The request that an input means; `None` where it is none that hyper would pass on.
pub(crate) fn request(bytes: &[u8]) -> Option<Request<Bytes>> {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = match end {
        Some(end) => (&bytes[..end], &bytes[end + 2..]),
        None => (bytes, &b""[..]),
    };
    let mut lines = head.split(|byte| *byte == b'\n');
    let line = std::str::from_utf8(lines.next()?).ok()?;
    let (method, target) = line.split_once(' ')?;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    let mut request = Request::builder().method(method).uri(target.parse::<Uri>().ok()?);
    for line in lines.take(32) {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        request = request.header(name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?);
    }
    let mut request = request.body(Bytes::copy_from_slice(body)).ok()?;
    request.extensions_mut().insert(Caller(ClientId::parse("line-1").expect("a client id")));
    Some(request)
}

pub(crate) fn requests(bytes: &[u8]) {
    let Some(request) = request(bytes) else { return };
    let fleet = Arc::new(Fleet::default());
    let router = g2::router(Arc::clone(&fleet) as Arc<dyn DeviceApi>);
    let (asked, content) = request.into_parts();
    let (answer, body) = runtime().block_on(async {
        let request = Request::from_parts(asked.clone(), Body::from(content));
        let response = router.oneshot(request).await.expect("a router always answers");
        let (parts, body) = response.into_parts();
        (parts, body.collect().await.expect("an answer in memory").to_bytes())
    });
    let status = answer.status;
    let header = |name: HeaderName| answer.headers.get(name).and_then(|value| value.to_str().ok());
    assert!(!status.is_server_error(), "{status}: {}", String::from_utf8_lossy(&body));
    assert!(header(CACHE_CONTROL).is_some(), "every answer says how long it is good for");
    if asked.method == Method::HEAD {
        assert!(body.is_empty(), "a HEAD has no body");
    } else if status.is_client_error() {
        assert_eq!(header(CONTENT_TYPE), Some(MEDIA_TYPE));
        let problem: Problem = serde_json::from_slice(&body).expect("a refusal is a problem");
        assert_eq!(problem.status, status.as_u16());
        assert_eq!(problem.instance.as_deref(), Some(asked.uri.path()));
        assert_eq!(problem.retryable, Some(false), "the same request has the same end");
        assert!(problem.detail.is_some_and(|detail| detail.len() > 10), "refused without a reason");
    }
    let documented = match status {
        StatusCode::OK | StatusCode::CREATED => true,
        StatusCode::PARTIAL_CONTENT => {
            let part = header(CONTENT_RANGE).expect("a part says which");
            let (first, last) =
                part.strip_prefix("bytes ").and_then(|part| part.split_once('-')).expect("from and to");
            let (last, size) = last.split_once('/').expect("of all");
            let number = |text: &str| text.parse::<usize>().expect("a number");
            assert!(number(first) <= number(last) && number(last) < number(size), "{part}");
            assert_eq!(body.len(), number(last) - number(first) + 1);
            asked.method == Method::GET && asked.headers.contains_key(RANGE) && header(ETAG).is_some()
        }
        StatusCode::NO_CONTENT => asked.method == Method::DELETE && body.is_empty(),
        StatusCode::NOT_MODIFIED => {
            assert!(body.is_empty() && asked.headers.contains_key(IF_NONE_MATCH));
            header(ETAG).is_some()
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            let allowed = header(ALLOW).expect("what is allowed instead");
            !allowed.split(", ").any(|method| method == asked.method.as_str())
        }
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
            matches!(asked.method, Method::PUT | Method::POST)
        }
        StatusCode::NOT_ACCEPTABLE => header(CONTENT_TYPE) == Some(MEDIA_TYPE),
        StatusCode::NOT_FOUND | StatusCode::PAYLOAD_TOO_LARGE => true,
        _ => false,
    };
    assert!(documented, "{status} is no answer to {} {}", asked.method, asked.uri);
    // A tag is that of the bytes, and of nothing else.
    if status == StatusCode::OK && asked.method == Method::GET {
        assert_eq!(header(ETAG), Some(format!("\"{}\"", Digest::of(&body)).as_str()));
    }
    let waits = fleet.told(|told| told.waits.clone());
    let waited = header(HeaderName::from_static("preference-applied")).is_some();
    assert_eq!(waited, !waits.is_empty(), "the preference is said to be applied exactly when it was");
    assert!(waits.iter().all(|wait| *wait <= g2::WAIT_MAX && !wait.is_zero()), "{waits:?}");
}
