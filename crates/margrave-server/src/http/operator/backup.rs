//! A backup, as a download.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use margrave_wire::operator;

use super::Api;
use crate::auth::Admin;
use crate::http::problem::Problem;

/// Everything that this server keeps, as one archive for `margrave restore`. It holds every key: whoever has it is this
/// server. One that ends early has no list at its end, and is refused by `restore`.
#[utoipa::path(post, path = "/backup", tag = "fleet", operation_id = "makeBackup",
    responses((status = 200, body = Vec<u8>, content_type = "application/x-tar"), (status = 409, body = operator::Problem)))]
pub(super) async fn make(Admin(actor): Admin, State(api): State<Api>) -> Result<Response, Problem> {
    let pieces = api.app.backups.begin(api.fleet(), &actor).await?;
    let headers = [
        (CONTENT_TYPE, "application/x-tar"),
        (CONTENT_DISPOSITION, "attachment; filename=\"margrave-backup.tar\""),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}
