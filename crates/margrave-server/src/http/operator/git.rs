//! Devices' Git repositories, and the tokens that open them.

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use margrave_wire::operator;

use super::Api;
use super::condition;
use super::read::{Body, Ids};
use crate::auth::{Operator, Viewer};
use crate::http::problem::Problem;

/// A device's Git repository; its tokens are not shown.
#[utoipa::path(get, path = "/devices/{device}/git", tag = "devices", operation_id = "showGit",
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    responses((status = 200, body = operator::GitRepository), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem)))]
pub(super) async fn show(
    _: Viewer,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::GitRepository>, Problem> {
    Ok(Json(api.fleet().git(&ids.device()?).await?))
}

/// Gives a device a read-only Git repository of its own documents, or a new token for the one it has. The token is
/// shown this once.
#[utoipa::path(put, path = "/devices/{device}/git", tag = "devices", operation_id = "putGit",
    params(("device" = String, Path, description = "The device, with '/' written %2F"),
        ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)),
    request_body = operator::PutGit,
    responses((status = 200, body = operator::GitRepository), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 412, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn put(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
    Body(want): Body<operator::PutGit>,
) -> Result<Json<operator::GitRepository>, Problem> {
    let device = ids.device()?;
    let (_turn, _) = condition::hold(&api, &headers, api.fleet().git(&device)).await?;
    Ok(Json(api.fleet().put_git(&actor, &device, want).await?))
}

/// Closes a device's Git repository, at once and for good.
#[utoipa::path(delete, path = "/devices/{device}/git", tag = "devices", operation_id = "endGit",
    params(("device" = String, Path, description = "The device, with '/' written %2F"),
        ("If-Match" = Option<String>, Header)),
    responses((status = 204), (status = 404, body = operator::Problem), (status = 409, body = operator::Problem),
        (status = 412, body = operator::Problem)))]
pub(super) async fn remove(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let device = ids.device()?;
    let (_turn, _) = condition::hold(&api, &headers, api.fleet().git(&device)).await?;
    api.fleet().end_git(&actor, &device).await?;
    Ok(StatusCode::NO_CONTENT)
}
