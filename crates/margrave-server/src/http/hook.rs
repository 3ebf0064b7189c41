//! `POST /hooks/intent`: a remote that is followed says that it has something new.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use margrave_core::digest::Digest;

use super::audit::Note;
use super::problem::Problem;
use crate::auth;
use crate::fleet::Fleet;

const PATH: &str = "/hooks/intent";

pub(crate) fn router(fleet: Arc<Fleet>) -> Router {
    let no_such_method = || async { Problem::no_such_method() };
    Router::new().route(PATH, post(nudge).fallback(no_such_method)).with_state(fleet)
}

/// The body is of no interest: where the branch is, the remote is asked itself.
async fn nudge(State(fleet): State<Arc<Fleet>>, note: Note, headers: HeaderMap) -> Response {
    let Some(wanted) = fleet.hook_token().await else {
        return Problem::no_such_path().at(PATH).into_response();
    };
    let plain = || headers.get("x-gitlab-token").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let given = auth::token(&headers).flatten().or_else(plain).unwrap_or_default();
    // Digests of both, so that the time it takes tells nothing of the token.
    let (given, wanted) = (Digest::of(given.as_bytes()), Digest::of(wanted.as_bytes()));
    if aws_lc_rs::constant_time::verify_slices_are_equal(given.as_bytes(), wanted.as_bytes()).is_err() {
        return Problem::unauthorized("the hook's token is not right").at(PATH).into_response();
    }
    // Nothing changes by it; what is found does, and is written down then.
    note.leave_out();
    fleet.nudge_follow();
    StatusCode::ACCEPTED.into_response()
}
