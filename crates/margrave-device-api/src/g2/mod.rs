//! The device interface of Margo 1.0.0-rc.3 ("MIAF") as a router for its own listener.
//!
//! Owns codes, headers, negotiation and limits of every endpoint; what the answers are is the
//! [`DeviceApi`]'s. Paths are read by `target.rs` rather than by route patterns, because device ids contain
//! slashes (AMB-23) and because a bad identifier has an answer of its own on each endpoint.
//!
//! Start with `respond`.

pub(crate) mod poll;
pub(crate) mod preconditions;
mod range;
pub(crate) mod refusal;
pub(crate) mod target;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::request::Parts;
use http::{Extensions, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId};
use margrave_core::violation::Violation;
use margrave_wire::bundle;
use margrave_wire::g2::{capabilities, document, status, validator};
use tokio::time::Instant;
use tracing::Instrument as _;

pub use poll::{Poll, WAIT_MAX, is_poll, poll};
pub use refusal::Refusal;
use target::Target;

use self::poll::Asked;
use crate::{Caller, DeviceApi, Outside, Put};

/// A device with a thousand labels and interfaces stays far below.
pub const CAPABILITIES_BYTES_MAX: usize = 256 * 1024;
/// A report with a fault for each of a hundred components stays below.
pub const STATUS_BYTES_MAX: usize = 64 * 1024;
/// For a body to arrive. The largest takes 10 seconds on a line of 256 kbit/s.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a body may be slower than [`BODY_PACE_MIN`]: a lost packet on a bad line takes seconds.
const BODY_GRACE: Duration = Duration::from_secs(10);
/// Bytes a second. Who sends slower only wants to hold the connection.
const BODY_PACE_MIN: u64 = 1024;
/// What is named by its digest never changes (MI-G2-061).
const CACHE_FOR_EVER: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");
pub(crate) const CACHE_NEVER: HeaderValue = HeaderValue::from_static("no-store");

/// The whole interface, as a router's fallback: merge further routes beside it, but no second fallback.
pub fn router(api: Arc<dyn DeviceApi>) -> Router {
    Router::new().fallback(move |request: Request| {
        let api = Arc::clone(&api);
        async move { respond(api.as_ref(), request).await }
    })
}

/// Whether a path is one of a document or a bundle: answers that are as large as what operators deploy.
pub fn is_artifact(path: &str) -> bool {
    matches!(Target::of(path), Some(Target::Document(_) | Target::Bundle(_)))
}

/// The client behind a request, if the listener named one and policy accepts it (MI-G2-005, MI-G2-010).
pub fn admit<'a>(api: &dyn DeviceApi, extensions: &'a Extensions) -> Result<&'a ClientId, Refusal> {
    let Some(Caller(client)) = extensions.get() else { return Err(Refusal::NoCaller) };
    api.admit(client).map_err(|outside| refused(client, outside)).map(|()| client)
}

fn refused(client: &ClientId, outside: Outside) -> Refusal {
    tracing::info!(%client, ?outside, "a client was refused by policy");
    Refusal::NotAccepted(outside)
}

/// The path as the caller wrote it, also where a listener took a prefix off: problems name it so.
pub fn asked_path<B>(request: &http::Request<B>) -> &str {
    let original = request.extensions().get::<OriginalUri>().map(|OriginalUri(uri)| uri.path());
    original.unwrap_or_else(|| request.uri().path())
}

async fn respond(api: &dyn DeviceApi, request: Request) -> Response {
    let path = asked_path(&request).to_owned();
    let is_head = request.method() == Method::HEAD;
    let client = request.extensions().get::<Caller>().map(|Caller(client)| client.to_string());
    let span = tracing::info_span!("device", client, method = %request.method(), path);
    let answer = caught(answer(api, request)).instrument(span.clone()).await.unwrap_or_else(|()| {
        span.in_scope(|| tracing::error!("answering a device's request panicked"));
        Err(Refusal::Broken)
    });
    let response = answer.unwrap_or_else(|refusal| refusal.at(&path));
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), "answered"));
    if is_head { headless(response) } else { response }
}

/// A panic in one request must not take the others on its connection with it.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, ()> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(task::Poll::Pending) => task::Poll::Pending,
        Ok(task::Poll::Ready(value)) => task::Poll::Ready(Ok(value)),
        Err(_) => task::Poll::Ready(Err(())),
    })
    .await
}

/// The answer to a HEAD: everything but the body, whose length is told.
pub(crate) fn headless(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = axum::body::HttpBody::size_hint(&body).exact()
        && parts.status != StatusCode::NOT_MODIFIED
    {
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(parts, Body::empty())
}

async fn answer(api: &dyn DeviceApi, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let client = admit(api, &parts.extensions)?;
    let target = Target::of(parts.uri.path()).ok_or(Refusal::NoSuchPath)?;
    if !target.allows(&parts.method) {
        return Err(Refusal::Method(target.methods()));
    }
    match target {
        Target::Manifest => {
            let live = poll::asked_for(api, client, &parts.headers)?;
            let asked = poll::ask(&live, &parts.method, &parts.headers);
            if asked.is_held() {
                api.holds(client, live.version);
            }
            match asked {
                Asked::Now(response, _) => Ok(response),
                Asked::Wait(waiting) => Ok(poll::wait(api, client, waiting).await?.0),
            }
        }
        Target::Document(Some((assignment, digest))) => {
            let content = api.document(client, assignment, digest).await.map_err(Refusal::Api)?;
            Ok(artifact(&parts, document::MEDIA_TYPE, digest, content.ok_or(Refusal::NoDocument)?))
        }
        Target::Document(None) => Err(Refusal::NoDocument),
        Target::Bundle(Some(digest)) => {
            let content = api.bundle(client, digest).await.map_err(Refusal::Api)?;
            Ok(artifact(&parts, bundle::MEDIA_TYPE, digest, content.ok_or(Refusal::NoBundle)?))
        }
        Target::Bundle(None) => Err(Refusal::NoBundle),
        Target::Status(assignment) => report(api, client, assignment, &parts, body).await,
        Target::Capabilities(device) if parts.method == Method::PUT => {
            put_capabilities(api, client, device, &parts, body).await
        }
        Target::Capabilities(Some(device)) => {
            api.delete_capabilities(client, &device).await.map_err(Refusal::Api)?;
            Ok((StatusCode::NO_CONTENT, [(CACHE_CONTROL, CACHE_NEVER)]).into_response())
        }
        Target::Capabilities(None) => Err(Refusal::NoDevice),
    }
}

/// A document or bundle: bytes that can never be others under this digest.
pub(crate) fn artifact(
    request: &Parts,
    media_type: &'static str,
    digest: Digest,
    content: Bytes,
) -> Response {
    let headers = &request.headers;
    let mut response = if preconditions::holds(headers, &digest) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let size = content.len();
        // Only a GET has parts (RFC 9110, 14.2).
        let wanted = (request.method == Method::GET).then(|| range::wanted(headers, &digest, size)).flatten();
        let mut response = match wanted {
            Some(part) => {
                let text = format!("bytes {}-{}/{size}", part.start, part.end - 1);
                let of = HeaderValue::try_from(text).expect("digits are plain text");
                (StatusCode::PARTIAL_CONTENT, [(CONTENT_RANGE, of)], content.slice(part)).into_response()
            }
            None => content.into_response(),
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        response
    };
    response.headers_mut().insert(ETAG, etag(&digest));
    response.headers_mut().insert(CACHE_CONTROL, CACHE_FOR_EVER);
    response
}

pub(crate) fn etag(digest: &Digest) -> HeaderValue {
    HeaderValue::try_from(validator::tag(digest)).expect("a digest is plain text")
}

async fn put_capabilities(
    api: &dyn DeviceApi,
    client: &ClientId,
    device: Option<DeviceId>,
    request: &Parts,
    body: Body,
) -> Result<Response, Refusal> {
    let body = json(request, body, CAPABILITIES_BYTES_MAX).await?;
    let reported = capabilities::read(&body).map_err(Refusal::Body)?;
    // A path that is no device id differs from every id there is (AMB-23).
    if device.as_ref() != Some(&reported.device) {
        let message = format!("must be the device id of the path; the body names {}", reported.device);
        return Err(Refusal::Invalid(vec![Violation::new("/properties/id", "AMB-23", message)]));
    }
    api.put_capabilities(client, reported, body).await.map(written).map_err(Refusal::Api)
}

async fn report(
    api: &dyn DeviceApi,
    client: &ClientId,
    assignment: Option<AssignmentId>,
    request: &Parts,
    body: Body,
) -> Result<Response, Refusal> {
    let body = json(request, body, STATUS_BYTES_MAX).await?;
    let report = status::read(&body).map_err(Refusal::Body)?;
    if assignment != Some(report.assignment) {
        let message = format!("must be the deployment id of the path; the body names {}", report.assignment);
        return Err(Refusal::Invalid(vec![Violation::new("/deploymentId", "AMB-13", message)]));
    }
    api.report(client, report).await.map(written).map_err(Refusal::Api)
}

fn written(put: Put) -> Response {
    let status = match put {
        Put::Created => StatusCode::CREATED,
        Put::Updated => StatusCode::OK,
    };
    (status, [(CACHE_CONTROL, CACHE_NEVER)]).into_response()
}

/// Reads a bounded body in bounded time.
async fn json(request: &Parts, body: Body, max: usize) -> Result<Bytes, Refusal> {
    if !preconditions::is_json(&request.headers) {
        return Err(Refusal::NotJson);
    }
    collected(body, max, Pace::DEVICE).await
}

/// How long a body may take.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    total: Duration,
    grace: Duration,
}

impl Pace {
    /// Of a device on a bad line.
    pub(crate) const DEVICE: Pace = Pace { total: BODY_TIME_MAX, grace: BODY_GRACE };
}

pub(crate) async fn collected(body: Body, max: usize, pace: Pace) -> Result<Bytes, Refusal> {
    // What is declared to be too much need not be waited for.
    if axum::body::HttpBody::size_hint(&body).lower() > max as u64 {
        return Err(Refusal::TooLarge { max });
    }
    let began = Instant::now();
    let mut body = Limited::new(body, max);
    // As a rule a body is one piece, and stays it.
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    loop {
        let received = u64::try_from(first.len() + rest.len()).unwrap_or(u64::MAX);
        let paced = pace.grace + Duration::from_millis(received.saturating_mul(1000) / BODY_PACE_MIN);
        let frame = tokio::time::timeout_at(began + pace.total.min(paced), body.frame()).await;
        match frame {
            Err(_) => return Err(Refusal::TooSlow),
            Ok(None) if rest.is_empty() => return Ok(first),
            Ok(None) => return Ok(rest.into()),
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => return Err(Refusal::TooLarge { max }),
            Ok(Some(Err(_))) => return Err(Refusal::Cut),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if first.is_empty() && rest.is_empty() => first = data,
                Ok(data) => {
                    if rest.is_empty() {
                        rest.extend_from_slice(&std::mem::take(&mut first));
                    }
                    rest.extend_from_slice(&data);
                }
                // Trailers say nothing to us.
                Err(_) => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    const PATIENT: Pace = Pace { total: Duration::from_secs(20), grace: Duration::from_secs(20) };
    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_body_that_does_not_end_is_408() {
        for pace in [Pace { total: SHORT, ..PATIENT }, Pace { grace: SHORT, ..PATIENT }] {
            let endless =
                Body::new(Full::new(Bytes::from_static(b"{")).with_trailers(std::future::pending()));
            let refusal = collected(endless, 100, pace).await.unwrap_err();
            let problem = refusal.problem();
            assert_eq!((problem.status, problem.retryable), (408, Some(false)));
            // It must not say what MI-G2-192 forbids.
            assert!(problem.detail.is_some_and(|detail| !detail.contains("again")));
        }
    }

    #[tokio::test]
    async fn a_body_that_is_declared_too_large_is_not_waited_for() {
        let refusal = collected(Body::new(Declared(101)), 100, PATIENT).await.unwrap_err();
        assert_eq!(refusal.at("/x").status(), StatusCode::PAYLOAD_TOO_LARGE);
        let short = Pace { total: SHORT, ..PATIENT };
        let refusal = collected(Body::new(Declared(100)), 100, short).await.unwrap_err();
        assert_eq!(refusal.at("/x").status(), StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test]
    async fn a_body_with_a_false_length_is_still_bounded() {
        let endless =
            Body::new(Full::new(Bytes::from(vec![b' '; 200])).with_trailers(std::future::pending()));
        let refusal = collected(endless, 100, PATIENT).await.unwrap_err();
        assert_eq!(refusal.at("/x").status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_put_together_and_what_has_come_buys_time() {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let pieces = tokio::spawn(async move {
            for at in 0..4u8 {
                // Longer than the grace in all, shorter than what each piece is worth.
                tokio::time::sleep(SHORT).await;
                sender.send(Bytes::from(vec![at; 1000])).await.unwrap();
            }
        });
        let body = Body::new(Pieces(receiver));
        let collected =
            collected(body, 4000, Pace { grace: Duration::from_secs(2), ..PATIENT }).await.unwrap();
        assert_eq!(collected, Bytes::from([[0u8; 1000], [1; 1000], [2; 1000], [3; 1000]].concat()));
        pieces.await.unwrap();
        assert!(super::collected(Body::empty(), 0, PATIENT).await.unwrap().is_empty());
    }

    /// A body that says how long it is, and never sends a byte.
    struct Declared(u64);

    impl axum::body::HttpBody for Declared {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut task::Context<'_>,
        ) -> task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            task::Poll::Pending
        }

        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(self.0)
        }
    }

    struct Pieces(tokio::sync::mpsc::Receiver<Bytes>);

    impl axum::body::HttpBody for Pieces {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut task::Context<'_>,
        ) -> task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(http_body::Frame::data(piece))))
        }
    }
}
