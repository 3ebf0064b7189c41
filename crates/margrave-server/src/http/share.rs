//! Requests that take a share of what the server can do at once, and wait for nobody: the rest is told to come back.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::response::Response;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use margrave_device_api::g2;

use crate::admission::{Admission, Full};
use crate::listener::{Calm, Guest, Inside as _, Reply};

/// Has a router answer, if there is room for the request's body and, where it is an artifact, for the answer; once
/// everybody is `calm`. `busy` says that there is no room, to a request for this path.
pub(super) fn answer(
    admission: &Arc<Admission>,
    router: &Router,
    guest: &Guest,
    request: Request<Incoming>,
    is_artifact: bool,
    calm: Calm,
    busy: fn(&str) -> Response,
) -> Reply {
    let path = g2::asked_path(&request);
    // One that does not say how long it is may be as long as any.
    let most = g2::CAPABILITIES_BYTES_MAX as u64;
    let body = request.body().size_hint().exact().unwrap_or(most).min(most);
    let Ok(share) = admission.share(body) else {
        tracing::debug!(path, "a request was turned away, there is too much to do");
        return Reply::Now(busy(path));
    };
    let path = is_artifact.then(|| path.to_owned());
    let answer = match router.answer(guest, request) {
        Reply::Now(response) => return Reply::Now(response),
        Reply::Later(answer) => answer,
    };
    let admission = Arc::clone(admission);
    Reply::Later(Box::pin(async move {
        calm.await;
        let response = answer.await;
        drop(share);
        match path {
            Some(path) => weighed(&admission, response, || busy(&path)),
            None => response,
        }
    }))
}

/// An answer from memory takes room there until its device has it; slow ones must not take all.
fn weighed(admission: &Admission, response: Response, busy: impl FnOnce() -> Response) -> Response {
    let Some(bytes) = response.body().size_hint().exact().filter(|bytes| *bytes > 0) else { return response };
    match admission.artifact(bytes) {
        Ok(room) => response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                // Held for as long as the body is.
                let _ = &room;
                frame
            }))
        }),
        Err(Full) => busy(),
    }
}
