//! Sealing secrets.

use axum::Json;
use axum::extract::State;
use margrave_wire::operator;

use super::Api;
use super::read::Body;
use crate::auth::Operator;
use crate::http::audit::Note;
use crate::http::problem::Problem;

/// Seals a value for a parameter of a deployment: what is answered may stand in a file, and only this server opens it. Nothing
/// is kept.
#[utoipa::path(post, path = "/secrets/seal", tag = "deployments", operation_id = "sealSecret",
    request_body = operator::SealSecret,
    responses((status = 200, body = operator::SealedSecret), (status = 422, body = operator::Problem)))]
pub(super) async fn seal(
    _: Operator,
    State(api): State<Api>,
    note: Note,
    Body(want): Body<operator::SealSecret>,
) -> Result<Json<operator::SealedSecret>, Problem> {
    let sealed = api.fleet().seal_for(&want).await?;
    note.subject(&want.deployment);
    note.detail(format!("for {}", want.parameter));
    Ok(Json(sealed))
}
