//! Registries of others, and repositories that are watched.

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use margrave_wire::operator;

use super::list::{self, PageParams};
use super::read::{Body, Ids, Params};
use super::{Api, condition};
use crate::auth::{Admin, Operator, Viewer};
use crate::http::problem::Problem;

/// Every registry that the server knows how to open. Secrets are never told.
#[utoipa::path(get, path = "/registries", tag = "registries", operation_id = "listRegistries", params(PageParams),
    responses((status = 200, body = operator::Page<operator::Registry>), (status = 400, body = operator::Problem)))]
pub(super) async fn list(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Result<Json<operator::Page<operator::Registry>>, Problem> {
    let all = api.fleet().registries().await?;
    Ok(Json(list::page(all, |one| one.host.clone(), params.after.as_deref(), params.limit)?))
}

/// One registry. Secrets are never told.
#[utoipa::path(get, path = "/registries/{host}", tag = "registries", operation_id = "showRegistry",
    params(("host" = String, Path, description = "host or host:port")),
    responses((status = 200, body = operator::Registry), (status = 404, body = operator::Problem), (status = 422, body = operator::Problem)))]
pub(super) async fn show(
    _: Viewer,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Registry>, Problem> {
    Ok(Json(api.fleet().registry(ids.text("host")).await?))
}

/// Says how a registry is reached, trusted and opened, in place of what was known.
#[utoipa::path(put, path = "/registries/{host}", tag = "registries", operation_id = "putRegistry",
    params(("host" = String, Path, description = "host or host:port"), ("If-Match" = Option<String>, Header),
        ("If-None-Match" = Option<String>, Header)), request_body = operator::PutRegistry,
    responses((status = 200, body = operator::Registry), (status = 409, body = operator::Problem),
        (status = 412, body = operator::Problem), (status = 422, body = operator::Problem)))]
pub(super) async fn put(
    Admin(actor): Admin,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
    Body(want): Body<operator::PutRegistry>,
) -> Result<Json<operator::Registry>, Problem> {
    let (_turn, _) = condition::hold(&api, &headers, api.fleet().registry(ids.text("host"))).await?;
    Ok(Json(api.fleet().put_registry(&actor, ids.text("host"), want).await?))
}

/// Forgets a registry and what opened it.
#[utoipa::path(delete, path = "/registries/{host}", tag = "registries", operation_id = "removeRegistry",
    params(("host" = String, Path, description = "host or host:port"), ("If-Match" = Option<String>, Header)),
    responses((status = 204), (status = 404, body = operator::Problem), (status = 412, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn remove(
    Admin(actor): Admin,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let (_turn, _) = condition::hold(&api, &headers, api.fleet().registry(ids.text("host"))).await?;
    api.fleet().remove_registry(&actor, ids.text("host")).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Asks a registry whether it is one and takes the credentials.
#[utoipa::path(post, path = "/registries/{host}/check", tag = "registries", operation_id = "checkRegistry",
    params(("host" = String, Path, description = "host or host:port")),
    responses((status = 200, body = operator::RegistryCheck), (status = 422, body = operator::Problem)))]
pub(super) async fn check(
    _: Admin,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::RegistryCheck>, Problem> {
    Ok(Json(api.fleet().check_registry(ids.text("host")).await?))
}

/// Every repository that is watched, and what became of its tags.
#[utoipa::path(get, path = "/watches", tag = "watches", operation_id = "listWatches", params(PageParams),
    responses((status = 200, body = operator::Page<operator::Watch>), (status = 400, body = operator::Problem)))]
pub(super) async fn watches(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Result<Json<operator::Page<operator::Watch>>, Problem> {
    let all = api.fleet().watches().await?;
    Ok(Json(list::page(all, |one| one.repository.clone(), params.after.as_deref(), params.limit)?))
}

#[utoipa::path(get, path = "/watches/{repository}", tag = "watches", operation_id = "showWatch",
    params(("repository" = String, Path, description = "host/repository, with '/' written %2F")),
    responses((status = 200, body = operator::Watch), (status = 404, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn watch(
    _: Viewer,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Watch>, Problem> {
    Ok(Json(api.fleet().watch(ids.text("repository")).await?))
}

/// Watches a repository: new tags that hold valid packages are added to the catalog by themselves.
#[utoipa::path(put, path = "/watches/{repository}", tag = "watches", operation_id = "putWatch",
    params(("repository" = String, Path, description = "host/repository, with '/' written %2F"),
        ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)),
    request_body = operator::PutWatch,
    responses((status = 200, body = operator::Watch), (status = 409, body = operator::Problem),
        (status = 412, body = operator::Problem), (status = 422, body = operator::Problem)))]
pub(super) async fn put_watch(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
    Body(want): Body<operator::PutWatch>,
) -> Result<Json<operator::Watch>, Problem> {
    let (_turn, _) = condition::hold(&api, &headers, api.fleet().watch(ids.text("repository"))).await?;
    Ok(Json(api.fleet().put_watch(&actor, ids.text("repository"), want).await?))
}

/// Watches a repository no more; its packages stay.
#[utoipa::path(delete, path = "/watches/{repository}", tag = "watches", operation_id = "removeWatch",
    params(("repository" = String, Path, description = "host/repository, with '/' written %2F"),
        ("If-Match" = Option<String>, Header)),
    responses((status = 204), (status = 404, body = operator::Problem), (status = 412, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn remove_watch(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let (_turn, _) = condition::hold(&api, &headers, api.fleet().watch(ids.text("repository"))).await?;
    api.fleet().remove_watch(&actor, ids.text("repository")).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Looks at a watched repository now, and waits for what comes of it.
#[utoipa::path(post, path = "/watches/{repository}/look", tag = "watches", operation_id = "lookAtWatch",
    params(("repository" = String, Path, description = "host/repository, with '/' written %2F")),
    responses((status = 200, body = operator::Watch), (status = 404, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn look(
    _: Operator,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Watch>, Problem> {
    Ok(Json(api.fleet().look_at_watch(ids.text("repository")).await?))
}

/// What a package brings for people to read: description, release notes, licence.
#[utoipa::path(get, path = "/packages/{package}/{version}/texts", tag = "packages", operation_id = "showPackageTexts",
    params(("package" = String, Path), ("version" = String, Path)),
    responses((status = 200, body = operator::PackageTexts), (status = 404, body = operator::Problem)))]
pub(super) async fn texts(
    _: Viewer,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::PackageTexts>, Problem> {
    let (id, version) = ids.package()?;
    Ok(Json(api.fleet().package_texts(&id, &version).await?))
}
