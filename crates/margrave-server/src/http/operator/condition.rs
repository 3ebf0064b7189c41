//! Tags of what was answered, and conditions on them (RFC 9110, section 13).
//!
//! Every answer to a `GET` has a tag that is made from its very bytes; who sends it back as `If-None-Match` hears 304 as
//! long as nothing changed. A deployment's tag begins with its revision and a dot, and conditions on writes look at that
//! part only: how its devices do is no reason to refuse a change.

use std::future::Future;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use margrave_core::digest::Digest;
use serde::Serialize;
use tokio::sync::OwnedMutexGuard;

use super::Api;
use crate::fleet::{Error, Seen};
use crate::http::problem::Problem;

/// Half of a SHA-256: nobody gains anything from two answers of the same tag.
const TAG_DIGITS: usize = 32;
/// More tags than a client can hold of one resource.
const TAGS_MAX: usize = 64;

fn tag_of(bytes: &[u8]) -> String {
    Digest::of(bytes).hex()[..TAG_DIGITS].to_owned()
}

/// Puts a tag on what is read, and leaves out what the reader has.
pub(super) async fn tag(request: Request, next: Next) -> Response {
    let held = (request.method() == Method::GET).then(|| tags(request.headers(), IF_NONE_MATCH));
    let response = next.run(request).await;
    let is_whole = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind == "application/json" || kind == "application/yaml");
    match held {
        Some(held) if is_whole && response.status() == StatusCode::OK => tagged(response, &held).await,
        _ => response,
    }
}

async fn tagged(response: Response, held: &[String]) -> Response {
    let (mut parts, body) = response.into_parts();
    // Answers in JSON and YAML lie in memory whole; only streams do not, and they are none.
    let Ok(bytes) = body.collect().await.map(|body| body.to_bytes()) else {
        return Problem::internal().into_response();
    };
    let revision = parts.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).map(|tag| tag.trim_matches('"'));
    let tag = match revision {
        Some(revision) => format!("\"{revision}.{}\"", tag_of(&bytes)),
        None => format!("\"{}\"", tag_of(&bytes)),
    };
    let known = held.iter().any(|held| held == "*" || held.strip_prefix("W/").unwrap_or(held) == tag);
    let tag = HeaderValue::from_str(&tag).expect("digits in quotes are a legal header value");
    parts.headers.insert(ETAG, tag);
    if known {
        parts.status = StatusCode::NOT_MODIFIED;
        parts.headers.remove(CONTENT_TYPE);
        parts.headers.remove(CONTENT_LENGTH);
        return Response::from_parts(parts, Body::empty());
    }
    Response::from_parts(parts, Body::from(bytes))
}

fn tags(headers: &HeaderMap, name: HeaderName) -> Vec<String> {
    let lines = headers.get_all(name);
    let lines = lines.iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
    lines.map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).take(TAGS_MAX).collect()
}

/// What a writer expects to find.
struct Expected {
    found: Option<Vec<String>>,
    not_found: Option<Vec<String>>,
}

impl Expected {
    fn read(headers: &HeaderMap) -> Result<Expected, Problem> {
        let read = |name: HeaderName| -> Result<Option<Vec<String>>, Problem> {
            if !headers.contains_key(&name) {
                return Ok(None);
            }
            let tags = tags(headers, name);
            let is_tag = |tag: &str| {
                let tag = tag.strip_prefix("W/").unwrap_or(tag);
                tag.len() >= 2 && tag.starts_with('"') && tag.ends_with('"')
            };
            if tags == ["*"] || (!tags.is_empty() && tags.iter().all(|tag| is_tag(tag))) {
                return Ok(Some(tags));
            }
            Err(Problem::malformed("If-Match and If-None-Match: are tags in quotes, as in ETag, or *"))
        };
        Ok(Expected { found: read(IF_MATCH)?, not_found: read(IF_NONE_MATCH)? })
    }

    fn is_any(&self) -> bool {
        self.found.is_some() || self.not_found.is_some()
    }

    fn check<T: Serialize>(&self, is: Option<&T>) -> Result<(), Problem> {
        let tag = is.map(|is| {
            let bytes = serde_json::to_vec(is).expect("bodies of ours always serialise");
            format!("\"{}\"", tag_of(&bytes))
        });
        let among = |tags: &[String]| match &tag {
            None => false,
            Some(tag) => tags.iter().any(|one| one == "*" || one == tag),
        };
        if self.found.as_ref().is_some_and(|tags| !among(tags)) {
            let detail = if tag.is_some() {
                "it has changed since you read it; read it again and repeat your change"
            } else {
                "there is no such thing; leave out If-Match to create it"
            };
            return Err(Problem::precondition(detail));
        }
        if self.not_found.as_ref().is_some_and(|tags| among(tags)) {
            return Err(Problem::precondition("it is there already; leave out If-None-Match to change it"));
        }
        Ok(())
    }
}

/// Checks what the writer expects by what `look` finds, and says what that was, for pages and pushes can get in between: who can
/// writes on condition of it. As long as the answer is kept, nobody else who writes such things over this interface does.
pub(super) async fn hold<T: Serialize>(
    api: &Api,
    headers: &HeaderMap,
    look: impl Future<Output = Result<T, Error>>,
) -> Result<(OwnedMutexGuard<()>, Seen<T>), Problem> {
    let expected = Expected::read(headers)?;
    let turn = api.app.changing.clone().lock_owned().await;
    if !expected.is_any() {
        return Ok((turn, Seen::Any));
    }
    let found = match look.await {
        Ok(found) => Some(found),
        Err(Error::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    expected.check(found.as_ref())?;
    Ok((turn, found.map_or(Seen::Nothing, Seen::This)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(pairs: &[(HeaderName, &str)]) -> Option<Expected> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        Expected::read(&headers).ok()
    }

    #[test]
    fn a_condition_holds_by_the_bytes_that_were_read() {
        let tag = format!("\"{}\"", tag_of(b"\"is\""));
        let holds = |name: HeaderName, value: &str, is: Option<&str>| {
            expected(&[(name, value)]).unwrap().check(is.as_ref()).is_ok()
        };
        assert!(holds(IF_MATCH, &tag, Some("is")));
        assert!(holds(IF_MATCH, &format!("\"x\", {tag}"), Some("is")));
        assert!(holds(IF_MATCH, "*", Some("is")));
        assert!(!holds(IF_MATCH, &tag, Some("was")));
        assert!(!holds(IF_MATCH, &format!("W/{tag}"), Some("is")), "a weak tag is not enough to write");
        assert!(!holds(IF_MATCH, "*", None));
        assert!(holds(IF_NONE_MATCH, "*", None));
        assert!(!holds(IF_NONE_MATCH, "*", Some("is")));
        assert!(holds(IF_NONE_MATCH, "\"x\"", Some("is")));
        for bad in ["", "x", "\"", "*, \"x\"", "\"x\", y"] {
            assert!(expected(&[(IF_MATCH, bad)]).is_none(), "{bad}");
        }
        assert!(!expected(&[]).unwrap().is_any());
    }
}
