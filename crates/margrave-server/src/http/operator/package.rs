//! The catalog.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use margrave_wire::operator;

use super::Api;
use super::read::{Body, Ids};
use crate::auth::{Operator, Viewer};
use crate::http::audit::Note;
use crate::http::problem::Problem;

/// Every package at every version.
#[utoipa::path(get, path = "/packages", tag = "packages", operation_id = "listPackages",
    responses((status = 200, body = Vec<operator::Package>)))]
pub(super) async fn list(_: Viewer, State(api): State<Api>) -> Result<Json<Vec<operator::Package>>, Problem> {
    Ok(Json(api.fleet().packages().await?))
}

/// Adds a package from a registry; it is fetched, checked and pinned by digest.
#[utoipa::path(post, path = "/packages", tag = "packages", operation_id = "addPackage",
    request_body = operator::AddPackage,
    responses((status = 201, body = operator::Package), (status = 409, body = operator::Problem),
        (status = 422, body = operator::Problem), (status = 502, body = operator::Problem)))]
pub(super) async fn add(
    Operator(actor): Operator,
    State(api): State<Api>,
    note: Note,
    Body(want): Body<operator::AddPackage>,
) -> Result<(StatusCode, Json<operator::Package>), Problem> {
    let package = api.fleet().add_package(&actor, want).await?;
    note.subject(format!("{} {}", package.id, package.version));
    Ok((StatusCode::CREATED, Json(package)))
}

#[utoipa::path(get, path = "/packages/{package}/{version}", tag = "packages", operation_id = "showPackage",
    params(("package" = String, Path), ("version" = String, Path)),
    responses((status = 200, body = operator::Package), (status = 404, body = operator::Problem)))]
pub(super) async fn show(
    _: Viewer,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Package>, Problem> {
    let (id, version) = ids.package()?;
    Ok(Json(api.fleet().package(&id, &version).await?))
}

/// Takes a package out of the catalog; refused while a deployment uses it.
#[utoipa::path(delete, path = "/packages/{package}/{version}", tag = "packages", operation_id = "removePackage",
    params(("package" = String, Path), ("version" = String, Path)),
    responses((status = 204), (status = 404, body = operator::Problem), (status = 409, body = operator::Problem)))]
pub(super) async fn remove(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
) -> Result<StatusCode, Problem> {
    let (id, version) = ids.package()?;
    api.fleet().remove_package(&actor, &id, &version).await?;
    Ok(StatusCode::NO_CONTENT)
}
