//! Earlier moments: what was wanted, what was reported, and what lies between.

use axum::Json;
use axum::extract::State;
use margrave_wire::{history, operator};

use super::Api;
use super::read::{Ids, Params};
use crate::auth::Viewer;
use crate::http::problem::Problem;

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ThenParams {
    /// A moment: `2026-11-16T12:00:00Z`, `2026-11-16`, or so long ago: `2h ago`.
    at: String,
}

/// The fleet as it was wanted at a moment, and what devices had reported by then, as far as that is kept.
#[utoipa::path(get, path = "/history", tag = "fleet", operation_id = "showHistory", params(ThenParams),
    responses((status = 200, body = history::FleetThen), (status = 404, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn then(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<ThenParams>,
) -> Result<Json<history::FleetThen>, Problem> {
    Ok(Json(api.fleet().status_at(&params.at).await?))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DiffParams {
    /// A moment: `2026-11-16T12:00:00Z`, `2026-11-16`, or so long ago: `2h ago`.
    from: String,
    /// The later one; now when left out.
    to: Option<String>,
}

/// What lies between what was wanted at two moments, file by file.
#[utoipa::path(get, path = "/intent/diff", tag = "intent", operation_id = "diffIntent", params(DiffParams),
    responses((status = 200, body = history::Difference), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 422, body = operator::Problem)))]
pub(super) async fn diff(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<DiffParams>,
) -> Result<Json<history::Difference>, Problem> {
    Ok(Json(api.fleet().intent_between(&params.from, params.to.as_deref()).await?))
}

/// One commit of what is or was wanted, and what it changed.
#[utoipa::path(get, path = "/intent/commits/{commit}", tag = "intent", operation_id = "showCommit",
    params(("commit" = String, Path, description = "40 hexadecimal digits")),
    responses((status = 200, body = history::CommitDetail), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem)))]
pub(super) async fn commit(
    _: Viewer,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<history::CommitDetail>, Problem> {
    Ok(Json(api.fleet().intent_commit(ids.text("commit")).await?))
}
