//! A poll for the manifest: by far the most frequent request, answered from memory or held until there is news.
//!
//! A listener may ask [`poll`] before it goes through a router, which costs more than the answer.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use margrave_core::digest::Digest;
use margrave_core::id::ClientId;
use margrave_wire::g2::manifest;

use super::preconditions::{self, Tags};
use super::{Refusal, asked_path, caught, refused};
use crate::{DeviceApi, LiveManifest, Outside};

/// How long a poll is held at most. A waiting client costs nothing but its place, and the fewer answers an idle
/// day has, the less a metered line costs; but who waits says nothing, and a client that is gone has to be missed some
/// day. What is between a client and us may allow less, which only the client can find out, and then asks for less.
pub const WAIT_MAX: Duration = Duration::from_secs(300);

const PATH: &str = "/api/v1/deployments";
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// Answers differ per client, and mutual TLS alone does not tell a shared cache so (ID-123).
const CACHE_PRIVATE: HeaderValue = HeaderValue::from_static("private");
const MEDIA_TYPE: HeaderValue = HeaderValue::from_static(manifest::MEDIA_TYPE);
const WAIT: HeaderValue = HeaderValue::from_static("wait");

/// What comes of a poll.
pub enum Poll {
    Now(Response),
    /// Nothing of the request is needed any more.
    Later(Pin<Box<dyn Future<Output = Response> + Send>>),
}

/// Whether a request is a poll that can be answered; `path` is without what a listener takes off.
pub fn is_poll<B>(request: &Request<B>, path: &str) -> bool {
    request.method() == Method::GET
        && path == PATH
        && preconditions::accepts(request.headers(), manifest::MEDIA_TYPE)
}

/// Answers a poll of `client`, whose manifest is `live`.
pub fn poll<B>(
    api: &Arc<dyn DeviceApi>,
    client: &ClientId,
    live: Result<Arc<LiveManifest>, Outside>,
    request: &Request<B>,
) -> Poll {
    let asked = catch_unwind(AssertUnwindSafe(|| {
        let live = live.map_err(|outside| refused(client, outside))?;
        let asked = ask(&live, request.method(), request.headers());
        if asked.is_held() {
            api.holds(client, live.version);
        }
        Ok(asked)
    }));
    match asked.unwrap_or(Err(Refusal::Broken)) {
        Ok(Asked::Now(response, _)) => Poll::Now(response),
        Ok(Asked::Wait(waiting)) => {
            let (api, client) = (Arc::clone(api), client.clone());
            // Kept while it waits, so only where it differs from what everybody asks for.
            let path = match asked_path(request) {
                PATH => Cow::Borrowed(PATH),
                other => Cow::Owned(other.to_owned()),
            };
            Poll::Later(Box::pin(async move {
                let api = api.as_ref();
                let answer = caught(wait(api, &client, waiting)).await;
                match answer.unwrap_or(Err(Refusal::Broken)) {
                    Ok((response, _)) => response,
                    Err(refusal) => refusal.at(&path),
                }
            }))
        }
        Err(refusal) => Poll::Now(refusal.at(asked_path(request))),
    }
}

/// What a poll comes to at first sight: an answer and the version that it speaks of, or a wait.
pub(crate) enum Asked {
    Now(Response, u64),
    Wait(Waiting),
}

impl Asked {
    /// Whether whoever asks has the manifest already.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Asked::Now(response, _) => response.status() == StatusCode::NOT_MODIFIED,
            Asked::Wait(_) => true,
        }
    }
}

/// A poll that is to be held, for as long as its manifest stays the one of `digest`.
pub(crate) struct Waiting {
    digest: Digest,
    tags: Tags,
    within: Duration,
}

/// The manifest to answer a request with. Who cannot read it is not given it, and cannot hold one either (AMB-29).
pub(crate) fn asked_for(
    api: &dyn DeviceApi,
    client: &ClientId,
    headers: &HeaderMap,
) -> Result<Arc<LiveManifest>, Refusal> {
    match preconditions::accepts(headers, manifest::MEDIA_TYPE) {
        true => current(api, client),
        false => Err(Refusal::NotAcceptable(manifest::MEDIA_TYPE)),
    }
}

pub(crate) fn ask(live: &LiveManifest, method: &Method, headers: &HeaderMap) -> Asked {
    let within = preconditions::wait(headers).map(|wait| wait.min(WAIT_MAX)).filter(|wait| !wait.is_zero());
    // What nearly everybody sends need not be taken apart.
    if within.is_none() && preconditions::names(headers, &live.etag) {
        return Asked::Now(answer(live, true), live.version);
    }
    let tags = Tags::of(headers);
    let holds = tags.hold(&live.digest);
    match within {
        // A HEAD asks how things are, and nobody waits with it for how they will be.
        Some(within) if method == Method::GET && holds => {
            Asked::Wait(Waiting { digest: live.digest, tags, within })
        }
        _ => Asked::Now(answer(live, holds), live.version),
    }
}

/// Holds the poll and answers it, with the version that the answer speaks of. Much can happen in a minute, and policy
/// counts at the moment of the answer.
pub(crate) async fn wait(
    api: &dyn DeviceApi,
    client: &ClientId,
    waiting: Waiting,
) -> Result<(Response, u64), Refusal> {
    let Waiting { digest, tags, within } = waiting;
    let waited = api.manifest_changed(client, digest, within).await;
    let live = current(api, client)?;
    let version = live.version;
    let mut response = answer(&live, tags.hold(&live.digest));
    // Only where it made a difference (RFC 7240, section 3): an answer that was ready at once waited for nothing.
    if waited {
        response.headers_mut().insert(PREFERENCE_APPLIED, WAIT);
    }
    Ok((response, version))
}

fn current(api: &dyn DeviceApi, client: &ClientId) -> Result<Arc<LiveManifest>, Refusal> {
    api.manifest(client).map_err(|outside| refused(client, outside))
}

fn answer(live: &LiveManifest, holds: bool) -> Response {
    let mut response = if holds {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let mut response = Response::new(Body::from(live.body.clone()));
        response.headers_mut().insert(CONTENT_TYPE, MEDIA_TYPE);
        response
    };
    let headers = response.headers_mut();
    headers.insert(ETAG, live.etag.clone());
    headers.insert(CACHE_CONTROL, CACHE_PRIVATE);
    response
}
