//! Clients of the signed interface: those who wait, and what is decided about them.

use axum::Json;
use axum::extract::State;
use margrave_core::id::DeviceRef;
use margrave_wire::operator;
use utoipa::IntoParams;

use super::Api;
use super::list;
use super::read::{Body, Ids, Params};
use crate::auth::{Operator, Viewer};
use crate::fleet::Error;
use crate::http::audit::Note;
use crate::http::problem::Problem;

#[derive(Debug, serde::Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// `pending`, `accepted` or `rejected`; all when left out.
    decision: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// 1 to 1000; 100 when left out.
    limit: Option<usize>,
}

/// Those who sign their requests (g1), or asked to be let in, the oldest first.
#[utoipa::path(get, path = "/signed-clients", tag = "devices", params(ListParams), operation_id = "listSignedClients",
    responses((status = 200, body = operator::Page<operator::SignedClient>), (status = 400, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn list(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<ListParams>,
) -> Result<Json<operator::Page<operator::SignedClient>>, Problem> {
    let all = api.fleet().signed_clients(params.decision.as_deref())?;
    let key = |one: &operator::SignedClient| one.fingerprint.clone();
    Ok(Json(list::in_order(all, key, params.after.as_deref(), params.limit)?))
}

/// Accepts a device by its certificate, also before it first asks.
#[utoipa::path(post, path = "/signed-clients", tag = "devices", operation_id = "acceptCertificate",
    request_body = operator::AcceptCertificate,
    responses((status = 200, body = operator::SignedClient), (status = 409, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn bring(
    Operator(actor): Operator,
    State(api): State<Api>,
    note: Note,
    Body(want): Body<operator::AcceptCertificate>,
) -> Result<Json<operator::SignedClient>, Problem> {
    let client = api.fleet().accept_certificate(&actor, want).await?;
    note.subject(&client.client);
    Ok(Json(client))
}

/// Turns away a device that waits to be accepted.
#[utoipa::path(post, path = "/devices/{device}/reject", tag = "devices", operation_id = "rejectDevice",
    params(("device" = String, Path, description = "The id or fingerprint, or the beginning of either")),
    responses((status = 200, body = operator::SignedClient), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem)))]
pub(super) async fn reject(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
) -> Result<Json<operator::SignedClient>, Problem> {
    Ok(Json(api.fleet().reject(&actor, &ids.device()?).await?))
}

/// Puts a device that joined by mutual TLS in the place of one that signs: labels and assignments go there, and the
/// old credential is refused.
#[utoipa::path(post, path = "/devices/{device}/move", tag = "devices", operation_id = "moveDevice",
    params(("device" = String, Path, description = "The device that signs, with '/' written %2F")),
    request_body = operator::MoveDevice,
    responses((status = 200, body = operator::Device), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem), (status = 422, body = operator::Problem)))]
pub(super) async fn relocate(
    Operator(actor): Operator,
    State(api): State<Api>,
    ids: Ids,
    Body(want): Body<operator::MoveDevice>,
) -> Result<Json<operator::Device>, Problem> {
    let to =
        DeviceRef::parse(&want.to).map_err(|error| Error::invalid("/to", "device", error.to_string()))?;
    Ok(Json(api.fleet().move_device(&actor, &ids.device()?, &to).await?))
}
