//! The device interface of Margo 1.0.0-rc.3 ("MIAF") as a router for its own listener.
//!
//! Owns codes, headers, negotiation and limits of every endpoint; what the answers are is the
//! [`DeviceApi`]'s. Paths are read by `target.rs` rather than by route patterns, because device ids contain
//! slashes (AMB-23) and because a bad identifier has an answer of its own on each endpoint.
//!
//! Start with `respond`.

pub(crate) mod preconditions;
mod refusal;
pub(crate) mod target;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, VARY};
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId};
use margrave_core::violation::Violation;
use margrave_wire::bundle;
use margrave_wire::g2::{capabilities, document, manifest, status};
use tracing::Instrument as _;

pub use refusal::Refusal;
use target::Target;

use crate::{Caller, DeviceApi, Put, Standing};

/// A device with a thousand labels and interfaces stays far below.
pub const CAPABILITIES_BYTES_MAX: usize = 256 * 1024;
/// A report with a fault for each of a hundred components stays below.
pub const STATUS_BYTES_MAX: usize = 64 * 1024;
/// For a body to arrive. The largest takes 10 seconds on a line of 256 kbit/s.
pub(crate) const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a poll is held. Proxies and NAT gateways on the way forget silent connections after a minute, some
/// a little earlier; below that, nobody between us and the device notices that nothing is being said.
pub const WAIT_MAX: Duration = Duration::from_secs(50);

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// Answers differ per client, and mutual TLS alone does not tell a shared cache so (ID-123).
const CACHE_PRIVATE: HeaderValue = HeaderValue::from_static("private");
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

/// The client behind a request, if the listener named one and policy accepts it (MI-G2-005, MI-G2-010).
pub fn admit<'a>(api: &dyn DeviceApi, extensions: &'a Extensions) -> Result<&'a ClientId, Refusal> {
    let Some(Caller(client)) = extensions.get() else { return Err(Refusal::NoCaller) };
    match api.standing(client) {
        Standing::Accepted => Ok(client),
        standing => {
            tracing::info!(%client, ?standing, "a client was refused by policy");
            Err(Refusal::NotAccepted(standing))
        }
    }
}

async fn respond(api: &dyn DeviceApi, request: Request) -> Response {
    let path = request.uri().path().to_owned();
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
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(_) => Poll::Ready(Err(())),
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
            let still = || match api.standing(client) {
                Standing::Accepted => Ok(()),
                standing => Err(Refusal::NotAccepted(standing)),
            };
            Ok(state_manifest(api, client, &parts.headers, still).await?.0)
        }
        Target::Document(Some((assignment, digest))) => {
            let content = api.document(client, assignment, digest).await.map_err(Refusal::Api)?;
            Ok(artifact(&parts.headers, document::MEDIA_TYPE, digest, content.ok_or(Refusal::NoDocument)?))
        }
        Target::Document(None) => Err(Refusal::NoDocument),
        Target::Bundle(Some(digest)) => {
            let content = api.bundle(client, digest).await.map_err(Refusal::Api)?;
            Ok(artifact(&parts.headers, bundle::MEDIA_TYPE, digest, content.ok_or(Refusal::NoBundle)?))
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

/// The manifest or that it is unchanged, and its version. `still` asks whether the client may have it: much can
/// happen in a minute, and policy counts at the moment of the answer.
pub(crate) async fn state_manifest<E: From<Refusal>>(
    api: &dyn DeviceApi,
    client: &ClientId,
    headers: &HeaderMap,
    still: impl Fn() -> Result<(), E>,
) -> Result<(Response, u64), E> {
    // Before If-None-Match: who cannot read a manifest cannot hold one either (AMB-29).
    if !preconditions::accepts(headers, manifest::MEDIA_TYPE) {
        return Err(Refusal::NotAcceptable(manifest::MEDIA_TYPE).into());
    }
    let current = || {
        api.manifest(client).ok_or_else(|| {
            tracing::error!(%client, "an accepted client has no manifest");
            Refusal::Broken
        })
    };
    let mut live = current()?;
    let wait = preconditions::wait(headers).map(|wait| wait.min(WAIT_MAX));
    let mut waited = false;
    if let Some(wait) = wait.filter(|wait| !wait.is_zero())
        && preconditions::holds(headers, &live.digest)
    {
        waited = true;
        api.manifest_changed(client, live.digest, wait).await;
        still()?;
        live = current()?;
    }
    let mut response = if preconditions::holds(headers, &live.digest) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(CONTENT_TYPE, HeaderValue::from_static(manifest::MEDIA_TYPE))], live.body).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(ETAG, etag(&live.digest));
    headers.insert(CACHE_CONTROL, CACHE_PRIVATE);
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    // Only where it made a difference (RFC 7240, section 3): an answer that was ready at once waited for nothing.
    if waited {
        headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static("wait"));
    }
    Ok((response, live.version))
}

/// A document or bundle: bytes that can never be others under this digest.
pub(crate) fn artifact(
    headers: &HeaderMap,
    media_type: &'static str,
    digest: Digest,
    content: Bytes,
) -> Response {
    let mut response = if preconditions::holds(headers, &digest) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(CONTENT_TYPE, HeaderValue::from_static(media_type))], content).into_response()
    };
    response.headers_mut().insert(ETAG, etag(&digest));
    response.headers_mut().insert(CACHE_CONTROL, CACHE_FOR_EVER);
    response
}

fn etag(digest: &Digest) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{digest}\"")).expect("a digest is plain text")
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
    collected(body, max, BODY_TIME_MAX).await
}

pub(crate) async fn collected(body: Body, max: usize, within: Duration) -> Result<Bytes, Refusal> {
    match tokio::time::timeout(within, Limited::new(body, max).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::TooLarge { max }),
        Ok(Err(_)) => Err(Refusal::Cut),
        Err(_) => Err(Refusal::TooSlow),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    #[tokio::test]
    async fn a_body_that_does_not_end_is_408() {
        let endless = Body::new(Full::new(Bytes::from_static(b"{")).with_trailers(std::future::pending()));
        let refusal = collected(endless, 100, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(refusal.at("/x").status(), StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test]
    async fn a_body_with_a_false_length_is_still_bounded() {
        let endless =
            Body::new(Full::new(Bytes::from(vec![b' '; 200])).with_trailers(std::future::pending()));
        let refusal = collected(endless, 100, Duration::from_secs(20)).await.unwrap_err();
        assert_eq!(refusal.at("/x").status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
