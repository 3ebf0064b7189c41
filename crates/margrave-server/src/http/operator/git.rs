//! Devices' Git repositories, and the tokens that open them.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use margrave_wire::operator;

use super::Api;
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
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    request_body = operator::PutGit,
    responses((status = 200, body = operator::GitRepository), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 422, body = operator::Problem)))]
pub(super) async fn put(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    Body(want): Body<operator::PutGit>,
) -> Result<Json<operator::GitRepository>, Problem> {
    Ok(Json(api.fleet().put_git(&actor, &ids.device()?, want).await?))
}

/// Closes a device's Git repository, at once and for good.
#[utoipa::path(delete, path = "/devices/{device}/git", tag = "devices", operation_id = "endGit",
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    responses((status = 204), (status = 404, body = operator::Problem), (status = 409, body = operator::Problem)))]
pub(super) async fn remove(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
) -> Result<StatusCode, Problem> {
    api.fleet().end_git(&actor, &ids.device()?).await?;
    Ok(StatusCode::NO_CONTENT)
}
