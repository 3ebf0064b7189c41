//! The catalog.

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use margrave_wire::operator;

use super::Api;
use super::read::{Body, Ids, Params};
use super::{condition, list};
use crate::auth::{Operator, Viewer};
use crate::http::audit::Note;
use crate::http::problem::Problem;

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Part of the id or name, in any case.
    search: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// 1 to 1000; 100 when left out.
    limit: Option<usize>,
}

/// Every package at every version, a page at a time.
#[utoipa::path(get, path = "/packages", tag = "packages", params(ListParams), operation_id = "listPackages",
    responses((status = 200, body = operator::Page<operator::Package>)))]
pub(super) async fn list(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<ListParams>,
) -> Result<Json<operator::Page<operator::Package>>, Problem> {
    let mut all = api.fleet().packages().await?;
    if let Some(part) = params.search.as_deref().map(str::to_lowercase) {
        all.retain(|package| package.id.contains(&part) || package.name.to_lowercase().contains(&part));
    }
    let key = |package: &operator::Package| format!("{}@{}", package.id, package.version);
    Ok(Json(list::page(all, key, params.after.as_deref(), params.limit)?))
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
    let package = api.fleet().add_package(&actor, want, |name| note.subject(name)).await?;
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
    params(("package" = String, Path), ("version" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204), (status = 404, body = operator::Problem), (status = 409, body = operator::Problem),
        (status = 412, body = operator::Problem)))]
pub(super) async fn remove(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let (id, version) = ids.package()?;
    let (_turn, _) = condition::hold(&api, &headers, api.fleet().package(&id, &version)).await?;
    api.fleet().remove_package(&actor, &id, &version).await?;
    Ok(StatusCode::NO_CONTENT)
}
