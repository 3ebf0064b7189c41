//! The registry's answers to whatever a client asks of one blob: ranges, conditions, methods.

use std::sync::OnceLock;

use axum::body::Body;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use margrave_core::digest::Digest;
use margrave_registry::{Action, Decision, Registry, RepositoryName, router};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

const BLOB: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

struct Rig {
    runtime: Runtime,
    router: axum::Router,
    _directory: tempfile::TempDir,
}

fn everybody(_: &Parts, _: Action, _: Option<&RepositoryName>) -> Decision {
    Decision::Allow
}

fn rig() -> &'static Rig {
    static RIG: OnceLock<Rig> = OnceLock::new();
    RIG.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let registry = Registry::open(directory.path()).expect("a new registry");
        let router = router(registry, everybody);
        let path = format!("/v2/a/blobs/uploads/?digest={}", Digest::of(BLOB));
        let push = Request::post(path).body(Body::from(BLOB)).expect("a request");
        let pushed = runtime.block_on(router.clone().oneshot(push)).expect("a router always answers");
        assert_eq!(pushed.status(), StatusCode::CREATED);
        Rig { runtime, router, _directory: directory }
    })
}

/// Each line of the input is the value of a header, in this order.
const HEADERS: [HeaderName; 5] =
    [header::RANGE, header::IF_RANGE, header::IF_NONE_MATCH, header::ACCEPT, header::CONTENT_RANGE];

pub(crate) fn ranges(bytes: &[u8]) {
    let rig = rig();
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let method = match lines.next() {
        Some(b"HEAD") => Method::HEAD,
        _ => Method::GET,
    };
    let path = format!("/v2/a/blobs/{}", Digest::of(BLOB));
    let mut request = Request::builder().method(method.clone()).uri(path);
    for (name, line) in HEADERS.into_iter().zip(lines) {
        let Ok(value) = HeaderValue::from_bytes(line) else { return };
        request = request.header(name, value);
    }
    let request = request.body(Body::empty()).expect("every part was checked");
    let (parts, body) = rig.runtime.block_on(async {
        let response = rig.router.clone().oneshot(request).await.expect("a router always answers");
        let (parts, body) = response.into_parts();
        (parts, body.collect().await.expect("a blob can be read").to_bytes())
    });
    let text = |name| parts.headers.get(name).map(|value: &HeaderValue| value.to_str().expect("plain text"));
    let length = text(header::CONTENT_LENGTH).map(|length| length.parse::<usize>().expect("a number"));
    if method == Method::HEAD {
        assert!(body.is_empty(), "a HEAD has no body");
    }
    match parts.status {
        StatusCode::OK => {
            assert_eq!(length, Some(BLOB.len()));
            assert!(method == Method::HEAD || body == BLOB);
        }
        StatusCode::PARTIAL_CONTENT => {
            let range = text(header::CONTENT_RANGE).expect("a part says which");
            let (range, size) =
                range.strip_prefix("bytes ").expect("in bytes").split_once('/').expect("of all");
            let (first, last) = range.split_once('-').expect("from and to");
            let (first, last) =
                (first.parse::<usize>().expect("a place"), last.parse::<usize>().expect("a place"));
            assert_eq!(size.parse(), Ok(BLOB.len()));
            assert!(first <= last && last < BLOB.len(), "{first}-{last}");
            assert_eq!(length, Some(last - first + 1));
            assert!(method == Method::HEAD || body == BLOB[first..=last]);
        }
        StatusCode::NOT_MODIFIED => assert!(body.is_empty()),
        StatusCode::RANGE_NOT_SATISFIABLE => {
            let wanted = format!("bytes */{}", BLOB.len());
            assert_eq!(text(header::CONTENT_RANGE), Some(wanted.as_str()));
        }
        other => panic!("{other} for a blob that is there"),
    }
}
