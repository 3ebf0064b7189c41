//! The authority behind the fleet's certificates.

use axum::Json;
use axum::extract::State;
use margrave_wire::operator;

use super::Api;
use super::read::Body;
use crate::auth::{Admin, Viewer};
use crate::http::problem::Problem;

/// Which authority issues, and how far a rotation is.
#[utoipa::path(get, path = "/authority", tag = "authority", operation_id = "showAuthority",
    responses((status = 200, body = operator::AuthorityStatus), (status = 401, body = operator::Problem)))]
pub(super) async fn show(
    _: Viewer,
    State(api): State<Api>,
) -> Result<Json<operator::AuthorityStatus>, Problem> {
    Ok(Json(api.app.rotation.status().await?))
}

/// Makes the next authority and tells devices to trust it; it issues after a wait.
#[utoipa::path(post, path = "/authority/rotate", tag = "authority", operation_id = "rotateAuthority",
    request_body = operator::RotateAuthority,
    responses((status = 200, body = operator::AuthorityStatus), (status = 409, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn rotate(
    Admin(actor): Admin,
    State(api): State<Api>,
    Body(want): Body<operator::RotateAuthority>,
) -> Result<Json<operator::AuthorityStatus>, Problem> {
    Ok(Json(api.app.rotation.rotate(&actor, want).await?))
}

/// Ends the trust in the former authority. Devices that still have a certificate of it are out.
#[utoipa::path(post, path = "/authority/retire", tag = "authority", operation_id = "retireAuthority",
    request_body = operator::RetireAuthority,
    responses((status = 200, body = operator::AuthorityStatus), (status = 409, body = operator::Problem)))]
pub(super) async fn retire(
    Admin(actor): Admin,
    State(api): State<Api>,
    Body(want): Body<operator::RetireAuthority>,
) -> Result<Json<operator::AuthorityStatus>, Problem> {
    Ok(Json(api.app.rotation.retire(&actor, want).await?))
}
