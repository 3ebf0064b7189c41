//! What operators did and were refused.

use axum::Json;
use axum::extract::State;
use margrave_wire::operator;
use utoipa::IntoParams;

use super::Api;
use super::read::Params;
use crate::auth::Viewer;
use crate::fleet::AuditQuery;
use crate::http::problem::Problem;

#[derive(Debug, serde::Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditParams {
    /// Who: an operator's name, `unknown` or `server`.
    actor: Option<String>,
    /// What it was done to: a device, a deployment, `PACKAGE VERSION`, the id of a token.
    subject: Option<String>,
    /// Only what happened since, RFC 3339.
    since: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// 1 to 1000; 100 when left out.
    limit: Option<usize>,
}

/// Every change and every refusal, the newest first, a page at a time. Each entry's hash covers the entry before.
#[utoipa::path(get, path = "/audit", tag = "access", params(AuditParams), operation_id = "listAudit",
    responses((status = 200, body = operator::Page<operator::AuditEntry>), (status = 400, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn list(
    _: Viewer,
    State(api): State<Api>,
    Params(params): Params<AuditParams>,
) -> Result<Json<operator::Page<operator::AuditEntry>>, Problem> {
    let AuditParams { actor, subject, since, after, limit } = params;
    Ok(Json(api.fleet().audit(AuditQuery { actor, subject, since, after, limit }).await?))
}
