//! Changes as they happen, as a stream or as a list.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::sse::{Event as Frame, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt as _};
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue};
use margrave_wire::operator;

use super::Api;
use super::read::Params;
use crate::auth::Following;
use crate::http::feed::KEEP_ALIVE;
use crate::http::problem::Problem;

const LIST_MAX: usize = 1000;
const LIST_DEFAULT: usize = 100;

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
    /// Begin after this sequence number; the `next` of a page is the one that the next page begins after. Without it, a stream begins now and a list with the oldest event.
    after: Option<u64>,
    /// For a list: 1 to 1000; 100 when left out.
    limit: Option<usize>,
    /// For a list: so many of the newest instead, 1 to 1000.
    last: Option<usize>,
}

/// Changes. With `Accept: application/json` a list, a page at a time; otherwise a stream of server-sent events whose `id` is the
/// sequence number. A stream ends after a quarter of an hour at the latest; come back with `Last-Event-ID`.
#[utoipa::path(get, path = "/events", tag = "fleet", params(EventParams,
        ("Last-Event-ID" = Option<u64>, Header, description = "As a browser sends it when it reconnects")),
    responses((status = 200, content((operator::Page<operator::Event> = "application/json"), (String = "text/event-stream"))),
        (status = 503, body = operator::Problem)))]
pub(super) async fn events(
    Following(holder): Following,
    State(api): State<Api>,
    headers: HeaderMap,
    Params(params): Params<EventParams>,
) -> Result<Response, Problem> {
    let last = headers.get("last-event-id").map(sequence).transpose()?;
    if wants_json(&headers) {
        return Ok(Json(list(&api, params).await?).into_response());
    }
    // What the browser saw last counts for more than the address that it first came with.
    let follower = api.feed.follow(last.or(params.after)).ok_or_else(Problem::too_many_streams)?;
    // Whoever loses the token loses the stream.
    let fleet = Arc::clone(&api.app.fleet);
    let ended = async move { fleet.token_ended(&holder.token).await };
    let frames = follower.into_stream().take_until(Box::pin(ended)).flat_map(stream::iter).map(|event| {
        let frame = Frame::default().id(event.sequence.to_string()).event(&event.kind).json_data(&*event);
        Ok::<_, Infallible>(frame.expect("an event is text and numbers, which always serialise"))
    });
    Ok(Sse::new(frames).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// Oldest first, either way.
async fn list(api: &Api, params: EventParams) -> Result<operator::Page<operator::Event>, Problem> {
    let within = |name: &str, number: usize| match number {
        1..=LIST_MAX => Ok(number),
        _ => Err(Problem::malformed(format!("{name}: is a number from 1 to {LIST_MAX}, got {number}"))),
    };
    match params {
        EventParams { last: Some(last), after: None, limit: None } => {
            let mut events = api.fleet().recent_events(within("last", last)?).await?;
            events.reverse();
            Ok(operator::Page { items: events, next: None })
        }
        EventParams { last: Some(_), .. } => {
            Err(Problem::malformed("last: goes with neither after nor limit"))
        }
        EventParams { last: None, after, limit } => {
            let limit = within("limit", limit.unwrap_or(LIST_DEFAULT))?;
            let mut items = api.fleet().events(after.unwrap_or(0), limit + 1).await?;
            let more = items.len() > limit;
            items.truncate(limit);
            let next = items.last().filter(|_| more).map(|last| last.sequence.to_string());
            Ok(operator::Page { items, next })
        }
    }
}

fn sequence(value: &HeaderValue) -> Result<u64, Problem> {
    let text = value.to_str().unwrap_or_default();
    text.parse()
        .map_err(|_| Problem::malformed("Last-Event-ID: is a sequence number, as in the id of an event"))
}

fn wants_json(headers: &HeaderMap) -> bool {
    let accepts = |media_type: &str| {
        headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .any(|value| value.contains(media_type))
    };
    accepts("application/json") && !accepts("text/event-stream")
}
