//! What is wanted as a whole: the repository behind it, its files and its history.

use std::str::FromStr as _;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;
use margrave_core::access::Role;
use margrave_wire::resource::{self, Kind};
use margrave_wire::{intent, operator};

use super::Api;
use super::list::{self, PageParams};
use super::read::{Body, Ids, LargeBody, Params};
use crate::auth::{self, Following, Operator, Viewer};
use crate::fleet::{Error, Fetching, named, places};
use crate::http::audit::Note;
use crate::http::problem::Problem;

const LOG_DEFAULT: usize = 100;
const LOG_MAX: usize = 1000;

/// How the server stands to the repository that says what is wanted.
#[utoipa::path(get, path = "/intent", tag = "intent", operation_id = "showIntent",
    responses((status = 200, body = operator::Intent)))]
pub(super) async fn show(_: Viewer, State(api): State<Api>) -> Result<Json<operator::Intent>, Problem> {
    Ok(Json(api.fleet().intent().await?))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogParams {
    /// Begin behind this commit.
    after: Option<String>,
    /// 1 to 1000; 100 when left out.
    limit: Option<usize>,
}

/// The commits that are applied, newest first.
#[utoipa::path(get, path = "/intent/log", tag = "intent", operation_id = "listCommits", params(LogParams),
    responses((status = 200, body = operator::Page<intent::Commit>), (status = 404, body = operator::Problem)))]
pub(super) async fn log(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<LogParams>,
) -> Result<Json<operator::Page<intent::Commit>>, Problem> {
    let limit = params.limit.unwrap_or(LOG_DEFAULT);
    if !(1..=LOG_MAX).contains(&limit) {
        return Err(Problem::malformed(format!("limit: is a number from 1 to {LOG_MAX}, got {limit}")));
    }
    Ok(Json(api.fleet().intent_log(params.after.as_deref(), limit).await?))
}

/// Decides a conflict: takes what the repository says, or keeps what the server has.
#[utoipa::path(post, path = "/intent/resolve", tag = "intent", operation_id = "resolveIntent",
    request_body = intent::Resolve,
    responses((status = 200, body = operator::Intent), (status = 409, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn resolve(
    Operator(actor): Operator,
    State(api): State<Api>,
    Body(want): Body<intent::Resolve>,
) -> Result<Json<operator::Intent>, Problem> {
    api.fleet().resolve(&actor, want.take).await?;
    Ok(Json(api.fleet().intent().await?))
}

/// The files that say what is wanted.
#[utoipa::path(get, path = "/intent/files", tag = "intent", operation_id = "listIntentFiles", params(PageParams),
    responses((status = 200, body = operator::Page<intent::File>), (status = 400, body = operator::Problem)))]
pub(super) async fn files(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Result<Json<operator::Page<intent::File>>, Problem> {
    let all = api.fleet().intent_files().await?;
    Ok(Json(list::page(all, |one| one.path.clone(), params.after.as_deref(), params.limit)?))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FileParams {
    /// As it was at a moment: `2026-11-16T12:00:00Z`, `2026-11-16`, or so long ago: `2h ago`.
    at: Option<String>,
}

/// One file as it is stored.
#[utoipa::path(get, path = "/intent/files/{path}", tag = "intent", operation_id = "showIntentFile",
    params(FileParams, ("path" = String, Path, description = "Such as deployments/andon-board.yaml, with '/' written %2F")),
    // Who reads the document parses YAML before it compares: it is a document, and not a text.
    responses((status = 200, content_type = "application/yaml", body = serde_json::Value),
        (status = 404, body = operator::Problem), (status = 422, body = operator::Problem)))]
pub(super) async fn file(
    _: Viewer,
    State(api): State<Api>,
    ids: Ids,
    Params(params): Params<FileParams>,
) -> Result<Response, Problem> {
    let at = params.at.as_deref().map(|text| api.fleet().moment("/at", text)).transpose()?;
    let bytes = api.fleet().intent_file(ids.text("path"), at).await?;
    Ok(([(CONTENT_TYPE, "application/yaml")], bytes).into_response())
}

/// Makes documents what is wanted, in one commit and with the checks of a push; with `dryRun`, says what that would do. A viewer may
/// ask that of packages that are in the catalog; to have others fetched needs the role operator.
#[utoipa::path(post, path = "/intent/apply", tag = "intent", operation_id = "applyIntent",
    request_body = intent::Apply,
    responses((status = 200, body = intent::Applied), (status = 409, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn apply(
    Following(holder): Following,
    State(api): State<Api>,
    note: Note,
    LargeBody(want): LargeBody<intent::Apply>,
) -> Result<Json<intent::Applied>, Problem> {
    let actor = holder.actor;
    let may_change = holder.role.allows(Role::Operator);
    if want.dry_run {
        note.action("intent.plan");
        note.leave_out();
    } else if !may_change {
        return Err(Problem::role_needed(auth::role_needed(Role::Operator, holder.role)));
    } else {
        note.subject(named(&want.documents).join(" "));
    }
    let fetching = if may_change { Fetching::Allowed } else { Fetching::Refused };
    let applied = api.fleet().apply_files(&actor, &want, fetching).await;
    if let (false, Err(Error::Flawed(flaws))) = (want.dry_run, &applied) {
        note.detail(format!("cannot be applied: {}", places(flaws).join(", ")));
    }
    Ok(Json(applied?))
}

/// The JSON Schema of a kind's files.
#[utoipa::path(get, path = "/schemas/{kind}", tag = "intent", operation_id = "showSchema",
    params(("kind" = String, Path, description = "Fleet, Package, Deployment or Device")),
    responses((status = 200, body = Object), (status = 404, body = operator::Problem)))]
pub(super) async fn schema(_: Viewer, ids: Ids) -> Result<Json<serde_json::Value>, Problem> {
    let kind = Kind::from_str(ids.text("kind"));
    let kind = kind.map_err(|error| Error::not_found(format!("schema: {error}")))?;
    Ok(Json(resource::schema(kind)))
}
