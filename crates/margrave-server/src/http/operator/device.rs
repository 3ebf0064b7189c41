//! Devices, and the tokens they join with.

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use margrave_wire::label::Labels;
use margrave_wire::operator;
use utoipa::IntoParams;

use super::deployment::known_state;
use super::list::{PageParams, in_order};
use super::read::{Body, Ids, Params};
use super::{Api, condition};
use crate::auth::{Operator, Viewer};
use crate::fleet::DeviceQuery;
use crate::http::audit::Note;
use crate::http::problem::Problem;

#[derive(Debug, serde::Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Part of the id, in any case.
    search: Option<String>,
    /// `key=value`, or `key` alone for any value.
    label: Option<String>,
    /// `converged`, `pending`, `failed`, `silent` or `retired`.
    condition: Option<String>,
    /// Only those with something in this state, such as `FAILED`.
    state: Option<String>,
    /// Only those with this value of the label `site`; `:none` are those without one.
    site: Option<String>,
    /// Only those that have something of the deployment of this name; with `state`, in that state.
    deployment: Option<String>,
    /// Only those with this text in a value of their capabilities, in any case, such as `arm64`.
    capability: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// 1 to 1000; 100 when left out.
    limit: Option<usize>,
}

/// Devices by id, a page at a time.
#[utoipa::path(get, path = "/devices", tag = "devices", params(ListParams), operation_id = "listDevices",
    responses((status = 200, body = operator::Page<operator::Device>), (status = 400, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn list(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<ListParams>,
) -> Result<Json<operator::Page<operator::Device>>, Problem> {
    let ListParams { search, label, condition, state, site, deployment, capability, after, limit } = params;
    let state = state.as_deref().map(known_state).transpose()?;
    let label = label.map(|label| match label.split_once('=') {
        Some((key, value)) => (key.to_owned(), value.to_owned()),
        None => (label, String::new()),
    });
    let query = DeviceQuery { search, label, condition, state, site, deployment, capability, after, limit };
    Ok(Json(api.fleet().devices(query).await?))
}

/// One device with everything that is assigned to it.
#[utoipa::path(get, path = "/devices/{device}", tag = "devices", operation_id = "showDevice",
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    responses((status = 200, body = operator::Device), (status = 404, body = operator::Problem)))]
pub(super) async fn show(
    _: Viewer,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Device>, Problem> {
    Ok(Json(api.fleet().device(&ids.device()?).await?))
}

/// Sets and removes labels; those not named stay. `If-Match` is compared with the device's labels as `GET …/labels` tells them: what
/// else a device does is no reason to refuse.
#[utoipa::path(patch, path = "/devices/{device}/labels", tag = "devices", operation_id = "labelDevice",
    params(("device" = String, Path, description = "The device, with '/' written %2F"),
        ("If-Match" = Option<String>, Header)),
    request_body = operator::SetLabels,
    responses((status = 200, body = operator::Device), (status = 404, body = operator::Problem),
        (status = 412, body = operator::Problem), (status = 422, body = operator::Problem)))]
pub(super) async fn label(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
    Body(want): Body<operator::SetLabels>,
) -> Result<Json<operator::Device>, Problem> {
    let device = ids.device()?;
    let labels = async { Ok(Labels { labels: api.fleet().device(&device).await?.labels }) };
    let (_turn, seen) = condition::hold(&api, &headers, labels).await?;
    let seen = seen.map(|seen| seen.labels);
    Ok(Json(api.fleet().label_seen(&actor, &device, want, seen).await?))
}

/// A device's labels; the tag of this answer is what `If-Match` on a change of them is compared with.
#[utoipa::path(get, path = "/devices/{device}/labels", tag = "devices", operation_id = "showLabels",
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    responses((status = 200, body = Labels), (status = 404, body = operator::Problem)))]
pub(super) async fn labels(_: Viewer, State(api): State<Api>, ids: Ids) -> Result<Json<Labels>, Problem> {
    Ok(Json(Labels { labels: api.fleet().device(&ids.device()?).await?.labels }))
}

/// Lets a device in: one that waits to be accepted (by its id or fingerprint, or the beginning of either), or a
/// retired one again.
#[utoipa::path(post, path = "/devices/{device}/accept", tag = "devices", operation_id = "acceptDevice",
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    responses((status = 200, body = operator::Device), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem)))]
pub(super) async fn accept(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Device>, Problem> {
    Ok(Json(api.fleet().accept(&actor, &ids.device()?).await?))
}

/// Shuts a device out, at once. What runs on it keeps running.
#[utoipa::path(post, path = "/devices/{device}/retire", tag = "devices", operation_id = "retireDevice",
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    responses((status = 200, body = operator::Device), (status = 404, body = operator::Problem)))]
pub(super) async fn retire(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Device>, Problem> {
    Ok(Json(api.fleet().retire(&actor, &ids.device()?).await?))
}

/// Has changes on a device wait, as if somebody there held them back: a device with our own agent hears of it with its next
/// manifest, and goes on by itself when the time is over. In place of what an operator asked before.
#[utoipa::path(post, path = "/devices/{device}/hold", tag = "devices", operation_id = "holdDevice",
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    request_body = operator::HoldDevice,
    responses((status = 200, body = operator::Device), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 422, body = operator::Problem)))]
pub(super) async fn hold(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    note: Note,
    Body(want): Body<operator::HoldDevice>,
) -> Result<Json<operator::Device>, Problem> {
    note.detail(format!("for {} s: {}", want.seconds, want.reason));
    Ok(Json(api.fleet().hold_device(&actor, &ids.device()?, &want).await?))
}

/// Lets changes go on that an operator holds back.
#[utoipa::path(post, path = "/devices/{device}/release", tag = "devices", operation_id = "releaseDevice",
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    responses((status = 200, body = operator::Device), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem)))]
pub(super) async fn release(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Device>, Problem> {
    Ok(Json(api.fleet().release_device(&actor, &ids.device()?).await?))
}

/// Has a device with our own agent look at what runs there at once, and say again how everything stands.
#[utoipa::path(post, path = "/devices/{device}/look", tag = "devices", operation_id = "lookDevice",
    params(("device" = String, Path, description = "The device, with '/' written %2F")),
    responses((status = 200, body = operator::Device), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem)))]
pub(super) async fn look(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Device>, Problem> {
    Ok(Json(api.fleet().look_again(&actor, &ids.device()?).await?))
}

/// A token for one device to join with. It is shown this once.
#[utoipa::path(post, path = "/join-tokens", tag = "devices", operation_id = "createJoinToken",
    request_body = operator::CreateJoinToken,
    responses((status = 201, body = operator::JoinToken), (status = 409, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn token(
    Operator(actor): Operator,
    State(api): State<Api>,
    note: Note,
    Body(want): Body<operator::CreateJoinToken>,
) -> Result<(StatusCode, Json<operator::JoinToken>), Problem> {
    note.subject(want.device.clone().unwrap_or_default());
    let token = api.fleet().create_join_token(&actor, want).await?;
    note.subject(&token.device);
    Ok((StatusCode::CREATED, Json(token)))
}

/// The join tokens that can still be used, the newest first, a page at a time. The tokens themselves are not shown.
#[utoipa::path(get, path = "/join-tokens", tag = "devices", operation_id = "listJoinTokens", params(PageParams),
    responses((status = 200, body = operator::Page<operator::OpenJoinToken>), (status = 400, body = operator::Problem)))]
pub(super) async fn tokens(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Result<Json<operator::Page<operator::OpenJoinToken>>, Problem> {
    let all = api.fleet().join_tokens().await?;
    Ok(Json(in_order(all, |one| one.device.clone(), params.after.as_deref(), params.limit)?))
}

/// Makes the token of a device void that has not joined yet.
#[utoipa::path(delete, path = "/join-tokens/{device}", tag = "devices", operation_id = "revokeJoinToken",
    params(("device" = String, Path, description = "What the device was to be called")),
    responses((status = 204), (status = 404, body = operator::Problem)))]
pub(super) async fn revoke_token(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
) -> Result<StatusCode, Problem> {
    api.fleet().revoke_join_token(&actor, ids.text("device")).await?;
    Ok(StatusCode::NO_CONTENT)
}
