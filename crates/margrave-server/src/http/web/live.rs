//! The pages' own stream: tells a page that something changed, not what; the page then fetches itself again.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt as _};
use http::{HeaderMap, StatusCode};
use margrave_wire::operator::Event;
use tokio::time::Instant;

use super::Web;
use super::error::PageError;
use super::session::Visitor;
use crate::http::feed::KEEP_ALIVE;
use crate::http::problem::Problem;

/// However much happens, a page is told of it four times a second at most: it cannot show more, and nobody can see more.
const FRAME_PAUSE: Duration = Duration::from_millis(250);
/// More than this at once concerns every page; an empty list says so.
const CHANGES_MAX: usize = 64;

#[derive(serde::Deserialize)]
pub(super) struct After {
    after: Option<String>,
}

/// `GET /events/stream`. Unlike a page it answers 401 instead of leading to the sign-in page, which an
/// `EventSource` could not show.
pub(super) async fn follow(
    State(web): State<Web>,
    visitor: Result<Visitor, PageError>,
    headers: HeaderMap,
    Query(After { after }): Query<After>,
) -> Result<Response, PageError> {
    let visitor = match visitor {
        Ok(visitor) => visitor,
        Err(PageError::SignIn { .. }) => return Ok(StatusCode::UNAUTHORIZED.into_response()),
        Err(error) => return Err(error),
    };
    // What the browser saw last counts for more than the address that it first came with. A page that does not
    // know where it stands begins now: it has just been made.
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let after = last.or(after.as_deref()).and_then(|text| text.parse().ok());
    let follower = web.feed.follow(after).ok_or_else(|| PageError::Fleet(Problem::too_many_streams()))?;
    // Whoever loses the token loses the stream.
    let fleet = Arc::clone(&web.app.fleet);
    let ended = async move { fleet.token_ended(&visitor.token).await };
    // A pause behind each, in which what happens meanwhile gathers for the next.
    let paced = stream::unfold((follower, None), |(mut follower, told)| async move {
        if let Some(told) = told {
            tokio::time::sleep_until(told + FRAME_PAUSE).await;
        }
        let events = follower.next().await?;
        Some((events, (follower, Some(Instant::now()))))
    });
    let frames = paced.take_until(Box::pin(ended)).map(|events| Ok::<_, Infallible>(frame(&events)));
    Ok(Sse::new(frames).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

#[derive(serde::Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct Change<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deployment: Option<&'a str>,
}

fn frame(events: &[Arc<Event>]) -> SseEvent {
    let mut changes: BTreeSet<Change<'_>> = events
        .iter()
        .map(|event| Change { device: event.device.as_deref(), deployment: event.deployment.as_deref() })
        .collect();
    if changes.len() > CHANGES_MAX {
        changes.clear();
    }
    let last = events.last().map_or(0, |event| event.sequence);
    let data = serde_json::to_string(&changes).expect("a list of names always serialises");
    SseEvent::default().id(last.to_string()).data(data)
}
