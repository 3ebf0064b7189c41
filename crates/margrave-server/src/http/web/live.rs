//! The pages' own streams: each tells a page that something changed, not what; the page then fetches itself again.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Query, State};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt as _};
use http::StatusCode;
use http::request::Parts;
use margrave_wire::operator::Event;
use tokio::time::Instant;

use super::Web;
use super::error::PageError;
use super::session::Visitor;
use crate::http::feed::KEEP_ALIVE;
use crate::http::problem::Problem;

/// However much happens, a page is told of it four times a second at most: it cannot show more, and nobody can see more.
const FRAME_PAUSE: Duration = Duration::from_millis(250);
/// After how long a browser comes back by itself. Left to themselves some wait for five seconds.
const RETRY: Duration = Duration::from_secs(2);
/// More than this at once concerns every page; an empty list says so.
const CHANGES_MAX: usize = 64;

#[derive(serde::Deserialize)]
pub(super) struct After {
    after: Option<String>,
}

/// Who follows and from where. Unlike a page a stream answers 401 instead of leading to the sign-in page, which an
/// `EventSource` could not show.
pub(super) struct Reader {
    visitor: Visitor,
    after: Option<u64>,
}

impl FromRequestParts<Web> for Reader {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, Response> {
        let visitor = match Visitor::from_request_parts(parts, web).await {
            Ok(visitor) => visitor,
            Err(PageError::SignIn { .. }) => return Err(StatusCode::UNAUTHORIZED.into_response()),
            Err(error) => return Err(error.into_response()),
        };
        let Query(After { after }) =
            Query::from_request_parts(parts, web).await.map_err(IntoResponse::into_response)?;
        // What the browser saw last counts for more than the address that it first came with. A page that does not
        // know where it stands begins now: it has just been made.
        let last = parts.headers.get("last-event-id").and_then(|value| value.to_str().ok());
        let after = last.or(after.as_deref()).and_then(|text| text.parse().ok());
        Ok(Reader { visitor, after })
    }
}

/// `GET /events/stream`: something happened in the fleet.
pub(super) async fn follow(State(web): State<Web>, reader: Reader) -> Result<Response, PageError> {
    let follower = web.feed.follow(reader.after).ok_or_else(too_many)?;
    let news = stream::unfold(follower, |mut follower| async {
        let events = follower.next().await?;
        Some((frame(&events, follower.seen()), follower))
    });
    Ok(told(&web, reader.visitor, news))
}

/// `GET /audit/stream`: the audit log has grown. An entry is kept after what it tells of happened, and of a refusal nothing happens
/// at all, so that the page of the log has a stream of its own.
pub(super) async fn follow_audit(State(web): State<Web>, reader: Reader) -> Result<Response, PageError> {
    let follower = web.feed.follow_audit(reader.after).ok_or_else(too_many)?;
    let news = stream::unfold(follower, |mut follower| async {
        let newest = follower.next().await?;
        // Which entries concern a page says its filter, which the server knows: all of them.
        Some((SseEvent::default().id(newest.to_string()).data("[]"), follower))
    });
    Ok(told(&web, reader.visitor, news))
}

fn too_many() -> PageError {
    PageError::Fleet(Problem::too_many_streams())
}

/// The stream as an answer, for as long as the visitor may follow it.
fn told(web: &Web, visitor: Visitor, news: impl Stream<Item = SseEvent> + Send + 'static) -> Response {
    // Whoever is signed out, or loses the token, loses the stream.
    let fleet = Arc::clone(&web.app.fleet);
    let ended = async move { visitor.signed_out(&fleet).await };
    // A pause behind each, in which what happens meanwhile gathers for the next.
    let paced = stream::unfold((Box::pin(news), None), |(mut news, told)| async move {
        if let Some(told) = told {
            tokio::time::sleep_until(told + FRAME_PAUSE).await;
        }
        let frame = news.next().await?;
        Some((frame, (news, Some(Instant::now()))))
    });
    // Said at once: not every browser calls a stream open before something came, and a proxy may keep the head of an answer back
    // until then, which would be a keep-alive later.
    let first = SseEvent::default().retry(RETRY);
    let frames = stream::once(async { first }).chain(paced);
    let frames = frames.take_until(Box::pin(ended)).map(Ok::<_, Infallible>);
    Sse::new(frames).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

#[derive(serde::Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct Change<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deployment: Option<&'a str>,
}

fn frame(events: &[Arc<Event>], last: u64) -> SseEvent {
    let mut changes: BTreeSet<Change<'_>> = events
        .iter()
        .map(|event| Change { device: event.device.as_deref(), deployment: event.deployment.as_deref() })
        .collect();
    if changes.len() > CHANGES_MAX {
        changes.clear();
    }
    let data = serde_json::to_string(&changes).expect("a list of names always serialises");
    SseEvent::default().id(last.to_string()).data(data)
}
