//! Operators' tokens, and their sessions of the page.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use margrave_wire::operator;

use super::Api;
use super::list::{self, PageParams};
use super::read::{Body, Ids, Params};
use crate::auth::{Admin, Following};
use crate::http::audit::Note;
use crate::http::problem::Problem;

/// Every token, also those that expired or were revoked within a quarter year, the newest first. Secrets are not shown.
#[utoipa::path(get, path = "/tokens", tag = "access", operation_id = "listTokens", params(PageParams),
    responses((status = 200, body = operator::Page<operator::Token>), (status = 400, body = operator::Problem),
        (status = 401, body = operator::Problem)))]
pub(super) async fn list(
    _: Admin,
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Result<Json<operator::Page<operator::Token>>, Problem> {
    let all = api.fleet().operator_tokens().await?;
    Ok(Json(list::in_order(all, |one| one.id.clone(), params.after.as_deref(), params.limit)?))
}

/// The token that this is asked with, and so who asks and what is allowed.
#[utoipa::path(get, path = "/tokens/mine", tag = "access", operation_id = "showOwnToken",
    responses((status = 200, body = operator::Token), (status = 401, body = operator::Problem)))]
pub(super) async fn mine(
    Following(holder): Following,
    State(api): State<Api>,
) -> Result<Json<operator::Token>, Problem> {
    Ok(Json(api.fleet().operator_token(&holder.token).await?))
}

/// A token for a person or a program. Its secret is shown this once.
#[utoipa::path(post, path = "/tokens", tag = "access", operation_id = "createToken",
    request_body = operator::CreateToken,
    responses((status = 201, body = operator::CreatedToken), (status = 409, body = operator::Problem),
        (status = 422, body = operator::Problem)))]
pub(super) async fn create(
    Admin(actor): Admin,
    State(api): State<Api>,
    note: Note,
    Body(want): Body<operator::CreateToken>,
) -> Result<(StatusCode, Json<operator::CreatedToken>), Problem> {
    note.new_token(&want);
    let created = api.fleet().create_operator_token(&actor, want).await?;
    note.token(&created.token);
    Ok((StatusCode::CREATED, Json(created)))
}

/// Voids a token at once, with every page that was signed in to with it.
#[utoipa::path(post, path = "/tokens/{token}/revoke", tag = "access", operation_id = "revokeToken",
    params(("token" = String, Path, description = "The token's id, as the list shows it")),
    responses((status = 200, body = operator::Token), (status = 404, body = operator::Problem),
        (status = 409, body = operator::Problem)))]
pub(super) async fn revoke(
    Admin(actor): Admin,
    State(api): State<Api>,
    note: Note,
    ids: Ids,
) -> Result<Json<operator::Token>, Problem> {
    let revoked = api.fleet().revoke_operator_token(&actor, ids.token()).await?;
    note.token(&revoked);
    Ok(Json(revoked))
}

/// Signs whoever asks out of the page, in every browser and whichever token was signed in with. Tokens stay as they are.
#[utoipa::path(post, path = "/sessions/end-all", tag = "access", operation_id = "endAllSessions",
    responses((status = 200, body = operator::EndedSessions), (status = 401, body = operator::Problem)))]
pub(super) async fn end_all_sessions(
    Following(holder): Following,
    State(api): State<Api>,
    note: Note,
) -> Result<Json<operator::EndedSessions>, Problem> {
    let ended = api.fleet().end_sessions_of(&holder.token).await?;
    note.sessions(&ended);
    Ok(Json(ended))
}
