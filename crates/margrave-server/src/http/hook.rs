//! `POST /hooks/intent`: a remote that is followed says that it has something new.
//!
//! Who calls proves to know the hook's token: by sending it, as GitLab and people do, or by signing the body with it, as GitHub
//! does. Who tries wrong ones waits, as everywhere.

use aws_lc_rs::hmac;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use margrave_core::digest::Digest;

use super::audit::Note;
use super::problem::Problem;
use super::{App, BODY_TIME_MAX};
use crate::auth;
use crate::guessing::TooMany;

const PATH: &str = "/hooks/intent";
const SIGNATURE: &str = "x-hub-signature-256";
/// What GitHub sends at most. It is signed over and thrown away piece by piece.
const BODY_BYTES_MAX: usize = 25 * 1024 * 1024;

pub(crate) fn router(app: App) -> Router {
    let no_such_method = || async { Problem::no_such_method() };
    Router::new().route(PATH, post(nudge).fallback(no_such_method)).with_state(app)
}

/// What the body says is of no interest: where the branch is, the remote is asked itself.
async fn nudge(State(app): State<App>, note: Note, request: Request) -> Response {
    let Some(wanted) = app.fleet.hook_token().await else {
        return Problem::no_such_path().at(PATH).into_response();
    };
    let (parts, body) = request.into_parts();
    let right = match parts.headers.get(SIGNATURE).and_then(|value| value.to_str().ok()) {
        Some(signature) => match is_signed(signature, &wanted, body).await {
            Ok(right) => right,
            Err(problem) => return problem.at(PATH).into_response(),
        },
        None => is_told(&parts.headers, &wanted),
    };
    if !right {
        let problem = match app.guessing.wrong(auth::source(&parts.extensions)).await {
            Ok(()) => Problem::unauthorized("the hook's token is not right"),
            Err(TooMany) => {
                let words = "too many wrong tokens come from this address; wait and try again";
                Problem::too_many_requests(words, std::time::Duration::ZERO)
            }
        };
        return problem.at(PATH).into_response();
    }
    // Nothing changes by it; what is found does, and is written down when it is taken or refused.
    note.leave_out();
    app.fleet.nudge_follow();
    StatusCode::ACCEPTED.into_response()
}

/// Whether the token itself is given.
fn is_told(headers: &HeaderMap, wanted: &str) -> bool {
    let plain = || headers.get("x-gitlab-token").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let given = auth::token(headers).flatten().or_else(plain).unwrap_or_default();
    // Digests of both, so that the time it takes tells nothing of the token.
    let (given, wanted) = (Digest::of(given.as_bytes()), Digest::of(wanted.as_bytes()));
    aws_lc_rs::constant_time::verify_slices_are_equal(given.as_bytes(), wanted.as_bytes()).is_ok()
}

/// Whether the body is signed with the token: `sha256=` and an HMAC in hex.
async fn is_signed(signature: &str, wanted: &str, body: Body) -> Result<bool, Problem> {
    let mut signing = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, wanted.as_bytes()));
    let read = async {
        let (mut body, mut size) = (body, 0);
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|_| Problem::malformed("the body did not arrive whole; send all of it"))?;
            let Ok(bytes) = frame.into_data() else { continue };
            size += bytes.len();
            if size > BODY_BYTES_MAX {
                return Err(Problem::too_large(BODY_BYTES_MAX));
            }
            signing.update(&bytes);
        }
        Ok(signing.sign())
    };
    let tag = tokio::time::timeout(BODY_TIME_MAX, read).await.map_err(|_| Problem::too_slow())??;
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let given = signature.strip_prefix("sha256=").unwrap_or_default().to_ascii_lowercase();
    Ok(aws_lc_rs::constant_time::verify_slices_are_equal(given.as_bytes(), hex.as_bytes()).is_ok())
}
