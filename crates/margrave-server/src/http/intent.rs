//! What is wanted as a Git repository, to clone and to push to: `/git/intent.git`, with an operator's token.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::{Extensions, HeaderMap, Method, Uri};
use margrave_core::access::Role;

use super::App;
use super::audit::{self, Door, Note};
use super::git::{Refusal, always, body, protocol, read};
use crate::auth;
use crate::fleet::git::{Ask, PACK_BYTES_MAX, PUSH_TIME_MAX, Protocol, Push, Pushed};
use crate::fleet::{Actor, Fleet};

const PATH: &str = "/git/intent.git";
const REFS_PATH: &str = "/info/refs";
const PUSH_PATH: &str = "/git-receive-pack";
const PUSH_QUERY: &str = "service=git-receive-pack";
const PUSH_TYPE: &str = "application/x-git-receive-pack-request";
/// The lines before the pack.
const COMMANDS_BYTES_MAX: usize = 64 * 1024;

/// Fetching is looking, which is only written down when it is refused; pushing is, also one that is refused when it begins.
pub(crate) fn router(app: &App) -> Router {
    let all = Router::new()
        .route(&format!("{PATH}{REFS_PATH}"), any(refs))
        .route(&format!("{PATH}{PUSH_PATH}"), any(push))
        .route(&format!("{PATH}/git-upload-pack"), any(fetch))
        .route(&format!("{PATH}/{{*path}}"), any(other))
        .with_state(app.clone());
    app.audit.around(all, Door::Git)
}

/// Whether a request to this repository is a push, or the look that one begins with.
pub(crate) fn is_push(address: &Uri) -> bool {
    let path = address.path();
    path.ends_with(PUSH_PATH) || (path.ends_with(REFS_PATH) && address.query() == Some(PUSH_QUERY))
}

/// Who is asking, if they have the role.
async fn operator(
    app: &App,
    (headers, extensions): (&HeaderMap, &Extensions),
    needed: Role,
) -> Result<Actor, Refusal> {
    let token = auth::token(headers).flatten().ok_or(Refusal::NoOperator)?;
    let holder = auth::by_token(&app.fleet, &app.guessing, &token, extensions).await;
    let holder = holder.map_err(|_| Refusal::NoOperator)?;
    Note::of(extensions).by(&holder);
    if !holder.role.allows(needed) {
        return Err(Refusal::Role(auth::role_needed(needed, holder.role)));
    }
    Ok(holder.actor)
}

async fn refs(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    let role = if is_push(request.uri()) { Role::Operator } else { Role::Viewer };
    operator(&app, (request.headers(), request.extensions()), role).await?;
    let fleet = Arc::clone(&app.fleet);
    if request.method() != Method::GET {
        return Err(Refusal::Method("GET"));
    }
    match request.uri().query() {
        Some("service=git-upload-pack") => {
            let protocol = protocol(request.headers());
            // The newest protocol has no such heading.
            let heading: &'static [u8] =
                if protocol == Protocol::V2 { b"" } else { b"001e# service=git-upload-pack\n0000" };
            let answer = upload(&fleet, protocol, Ask::Advertisement, heading).await?;
            Ok((always("application/x-git-upload-pack-advertisement"), answer).into_response())
        }
        Some(PUSH_QUERY) => {
            let answer = fleet.intent_advertisement().await.map_err(Refusal::Fetch)?;
            Ok((always("application/x-git-receive-pack-advertisement"), answer).into_response())
        }
        None | Some("") => Err(Refusal::Dumb),
        Some(_) => Err(Refusal::Malformed("the service is git-upload-pack or git-receive-pack")),
    }
}

async fn fetch(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    operator(&app, (request.headers(), request.extensions()), Role::Viewer).await?;
    let fleet = Arc::clone(&app.fleet);
    if request.method() != Method::POST {
        return Err(Refusal::Method("POST"));
    }
    let protocol = protocol(request.headers());
    let ask = Ask::Request(body(request).await?);
    let answer = upload(&fleet, protocol, ask, b"").await?;
    Ok((always("application/x-git-upload-pack-result"), answer).into_response())
}

async fn push(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    let actor = operator(&app, (request.headers(), request.extensions()), Role::Operator).await?;
    let note = Note::of(request.extensions());
    let fleet = Arc::clone(&app.fleet);
    if request.method() != Method::POST {
        return Err(Refusal::Method("POST"));
    }
    let (bytes, packed) =
        read(request, PUSH_TYPE, PACK_BYTES_MAX + COMMANDS_BYTES_MAX, PUSH_TIME_MAX).await?;
    if packed {
        return Err(Refusal::NotUnderstood("a push is sent as it is, not packed once more"));
    }
    let push = Push::read(bytes).map_err(|malformed| Refusal::Malformed(malformed.why()))?;
    // Somebody who hangs up half-way has pushed all the same: what is written down is finished (`audit.rs`).
    let Pushed { answer, refused } = fleet.intent_push(&actor, &push).await.map_err(Refusal::Fetch)?;
    let mut response = (always("application/x-git-receive-pack-result"), answer).into_response();
    // Git is answered 200 either way; the log has to know all the same.
    if let Some(detail) = refused {
        note.detail(&detail);
        response.extensions_mut().insert(audit::Refusal { name: "push-refused".to_owned(), detail });
    }
    Ok(response)
}

async fn other(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    operator(&app, (request.headers(), request.extensions()), Role::Viewer).await?;
    Err(Refusal::Dumb)
}

async fn upload(
    fleet: &Fleet,
    protocol: Protocol,
    ask: Ask,
    heading: &'static [u8],
) -> Result<Body, Refusal> {
    let pieces = fleet.intent_fetch(protocol, ask).await.map_err(Refusal::Fetch)?;
    let heading = (!heading.is_empty()).then(|| Ok(Bytes::from_static(heading)));
    let pieces = stream::unfold(pieces, |mut pieces| async move { Some((pieces.recv().await?, pieces)) });
    Ok(Body::from_stream(stream::iter(heading).chain(pieces)))
}
