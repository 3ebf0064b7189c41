//! When devices talk and change: for the fleet, for a label, for a device.

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use margrave_wire::operator;
use margrave_wire::schedule::ScheduleBody;

use super::Api;
use super::condition;
use super::list::{self, PageParams};
use super::read::{Body, Ids, Params};
use crate::auth::{Operator, Viewer};
use crate::http::problem::Problem;

/// Every schedule that was set; of each part, a device follows the closest: its own, its labels', the fleet's.
#[utoipa::path(get, path = "/schedules", tag = "schedules", operation_id = "listSchedules", params(PageParams),
    responses((status = 200, body = operator::Page<operator::Schedule>), (status = 400, body = operator::Problem),
        (status = 401, body = operator::Problem)))]
pub(super) async fn list(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Result<Json<operator::Page<operator::Schedule>>, Problem> {
    let all = api.fleet().schedules().await?;
    Ok(Json(list::in_order(all, |one| one.reach.clone(), params.after.as_deref(), params.limit)?))
}

/// What was set for the fleet, a label or a device.
#[utoipa::path(get, path = "/schedules/{reach}", tag = "schedules", operation_id = "showSchedule",
    params(("reach" = String, Path, description = "fleet, label:KEY=VALUE or device:NAME, with '/' written %2F")),
    responses((status = 200, body = operator::Schedule), (status = 404, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn show(
    _: Viewer,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::Schedule>, Problem> {
    Ok(Json(api.fleet().schedule(ids.reach()).await?))
}

/// Sets it, in place of what was set there before. The devices hear of it with their next manifest.
#[utoipa::path(put, path = "/schedules/{reach}", tag = "schedules", operation_id = "putSchedule",
    params(("reach" = String, Path, description = "fleet, label:KEY=VALUE or device:NAME, with '/' written %2F"),
        ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)),
    request_body = ScheduleBody,
    responses((status = 200, body = operator::Schedule), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 412, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn put(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
    Body(want): Body<ScheduleBody>,
) -> Result<Json<operator::Schedule>, Problem> {
    let (_turn, seen) = condition::hold(&api, &headers, api.fleet().schedule(ids.reach())).await?;
    Ok(Json(api.fleet().put_schedule_seen(&actor, ids.reach(), &want, seen).await?))
}

/// Takes it back; what is set elsewhere counts, or the usual.
#[utoipa::path(delete, path = "/schedules/{reach}", tag = "schedules", operation_id = "removeSchedule",
    params(("reach" = String, Path, description = "fleet, label:KEY=VALUE or device:NAME, with '/' written %2F"),
        ("If-Match" = Option<String>, Header)),
    responses((status = 204), (status = 404, body = operator::Problem), (status = 412, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn remove(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let (_turn, seen) = condition::hold(&api, &headers, api.fleet().schedule(ids.reach())).await?;
    api.fleet().remove_schedule_seen(&actor, ids.reach(), seen).await?;
    Ok(StatusCode::NO_CONTENT)
}
