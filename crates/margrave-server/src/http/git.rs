//! Git's smart protocol over HTTP, read-only: `/git/devices/<client>.git`.
//!
//! Reads paths, credentials and bodies as `git` sends them and answers as it understands: errors are plain text, which
//! it shows to its user. Who may fetch what is asked of the fleet; the answer itself is made by `git upload-pack`.
//!
//! A token that is not known is 401, everywhere. A token that is known opens one repository; at any other path it
//! finds nothing, whether something is there or not.

use std::io::Read as _;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use margrave_core::chain::sentence;
use margrave_core::id::ClientId;

use super::audit::Note;
use super::{App, is_declared_larger};
use crate::auth;
use crate::fleet::git::{Ask, FetchError, GIT_PATH, Protocol, Upload};

/// What a client has, in 50 bytes each; a clone of ten thousand versions does not send all of them.
const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The same over a line of 1 Mbit/s.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(40);
/// Seconds; everybody who is turned away comes back at another moment.
const RETRY_AFTER_MAX: u32 = 20;

const REQUEST_TYPE: &str = "application/x-git-upload-pack-request";

pub(crate) fn router(app: &App) -> Router {
    Router::new().route("/git/{*path}", any(respond)).with_state(app.clone())
}

/// What a path asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    client: ClientId,
    part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Refs,
    UploadPack,
    ReceivePack,
    /// A file of the older protocol, or nothing.
    Other,
}

impl Target {
    /// Names are taken as they stand: no client's name needs an escape, so whoever escapes has something else in mind.
    fn of(path: &str) -> Option<Target> {
        let (name, part) = path.strip_prefix(GIT_PATH)?.split_once(".git/")?;
        let part = match part {
            "info/refs" => Part::Refs,
            "git-upload-pack" => Part::UploadPack,
            "git-receive-pack" => Part::ReceivePack,
            _ => Part::Other,
        };
        Some(Target { client: ClientId::parse(name).ok()?, part })
    }
}

/// An answer that says no, in words that `git` shows.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The path is not one of a repository, or not one that the token opens.
    NoRepository,
    NoToken,
    /// So many wrong tokens are being tried that this one is not looked at.
    TooMany,
    /// Where operators' tokens are for.
    NoOperator,
    /// The token is right, and its role does not suffice.
    Role(String),
    ReadOnly,
    Dumb,
    Method(&'static str),
    Malformed(&'static str),
    NotUnderstood(&'static str),
    TooLarge(usize),
    TooSlow,
    Fetch(FetchError),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        let (status, words) = match self {
            Refusal::NoRepository => {
                (StatusCode::NOT_FOUND, "there is no such repository, or not for this token".to_owned())
            }
            Refusal::TooMany => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
                (StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens; come back later".to_owned())
            }
            Refusal::NoToken | Refusal::Fetch(FetchError::Void) => {
                let challenge = HeaderValue::from_static("Basic realm=\"Margrave Git\", charset=\"UTF-8\"");
                headers.insert(WWW_AUTHENTICATE, challenge);
                let words = "give the repository's token as the password; `margrave device git DEVICE --rotate` makes a new one";
                (StatusCode::UNAUTHORIZED, words.to_owned())
            }
            Refusal::Role(words) => (StatusCode::FORBIDDEN, words),
            Refusal::NoOperator => {
                let challenge =
                    HeaderValue::from_static("Basic realm=\"Margrave intent\", charset=\"UTF-8\"");
                headers.insert(WWW_AUTHENTICATE, challenge);
                (
                    StatusCode::UNAUTHORIZED,
                    "give an operator's token as the password, with any user name".to_owned(),
                )
            }
            Refusal::ReadOnly => (
                StatusCode::FORBIDDEN,
                "this repository is read-only: it shows what the server published".to_owned(),
            ),
            Refusal::Dumb => (
                StatusCode::FORBIDDEN,
                "only the smart protocol is spoken here; use git 1.6.6 or newer".to_owned(),
            ),
            Refusal::Method(allow) => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
                (StatusCode::METHOD_NOT_ALLOWED, format!("this address takes only {allow}"))
            }
            Refusal::Malformed(words) => (StatusCode::BAD_REQUEST, words.to_owned()),
            Refusal::NotUnderstood(words) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, words.to_owned()),
            Refusal::TooLarge(max) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("a request is at most {max} bytes; make several of it"),
            ),
            Refusal::TooSlow => {
                (StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time".to_owned())
            }
            Refusal::Fetch(error) => {
                let status = match &error {
                    FetchError::Retired => StatusCode::FORBIDDEN,
                    FetchError::Busy | FetchError::NoGit(_) => StatusCode::SERVICE_UNAVAILABLE,
                    _ => StatusCode::INTERNAL_SERVER_ERROR,
                };
                if status.is_server_error() {
                    tracing::warn!(error = sentence(&error), "a fetch could not be answered");
                    let seconds = f64::from(RETRY_AFTER_MAX) * (0.25 + 0.75 * crate::tasks::chance());
                    headers.insert(RETRY_AFTER, HeaderValue::from(seconds.ceil() as u32));
                }
                (status, error.to_string())
            }
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        (status, headers, format!("{words}\n")).into_response()
    }
}

/// What is never kept by a cache, and never taken for anything else.
pub(super) fn always(kind: &'static str) -> [(http::HeaderName, HeaderValue); 3] {
    [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache, max-age=0, must-revalidate")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ]
}

/// Whose repository the audit log says that a request was about; what is no name may be anything.
pub(super) fn subject(path: &str) -> String {
    Target::of(path).map(|target| target.client.to_string()).unwrap_or_default()
}

async fn respond(State(app): State<App>, note: Note, request: Request) -> Result<Response, Refusal> {
    let fleet = &app.fleet;
    let Target { client, part } = Target::of(request.uri().path()).ok_or(Refusal::NoRepository)?;
    let token = auth::token(request.headers()).flatten().ok_or(Refusal::NoToken)?;
    let pass = fleet.git_pass(&token).await.map_err(|error| Refusal::Fetch(FetchError::Storage(error)))?;
    let Some(pass) = pass else {
        // Who guesses waits, as everywhere.
        let waited = app.guessing.wrong(auth::source(request.extensions())).await;
        return Err(waited.map_or(Refusal::TooMany, |()| Refusal::NoToken));
    };
    note.device(&pass.client);
    if pass.client != client {
        // To whoever asks it is not there; that somebody tried is written down all the same.
        note.subject(client.to_string());
        note.keep();
        return Err(Refusal::NoRepository);
    }
    let protocol = protocol(request.headers());
    let (kind, before, ask) = match part {
        Part::Refs => {
            if request.method() != Method::GET {
                return Err(Refusal::Method("GET"));
            }
            match request.uri().query() {
                Some("service=git-upload-pack") => {}
                Some("service=git-receive-pack") => return Err(read_only(&note)),
                None | Some("") => return Err(Refusal::Dumb),
                Some(_) => {
                    return Err(Refusal::Malformed("the service is git-upload-pack, and nothing else"));
                }
            }
            // The newest protocol has no such heading.
            let heading: &[u8] =
                if protocol == Protocol::V2 { b"" } else { b"001e# service=git-upload-pack\n0000" };
            ("application/x-git-upload-pack-advertisement", heading, Ask::Advertisement)
        }
        Part::UploadPack => {
            if request.method() != Method::POST {
                return Err(Refusal::Method("POST"));
            }
            ("application/x-git-upload-pack-result", &b""[..], Ask::Request(body(request).await?))
        }
        Part::ReceivePack => return Err(read_only(&note)),
        Part::Other => return Err(Refusal::Dumb),
    };
    let upload = fleet.git_fetch(pass, protocol, ask).await.map_err(Refusal::Fetch)?;
    Ok((always(kind), Body::from_stream(pieces(Bytes::from_static(before), upload))).into_response())
}

/// What a push comes to.
fn read_only(note: &Note) -> Refusal {
    note.action("device.push");
    Refusal::ReadOnly
}

/// The answer as a body; an error in the middle breaks the connection, so that nobody takes a part for the whole.
fn pieces(
    before: Bytes,
    upload: Upload,
) -> impl stream::Stream<Item = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>> {
    let first = (!before.is_empty()).then_some(before);
    stream::unfold((first, upload), |(first, mut upload)| async move {
        match first {
            Some(first) => Some((Ok(first), (None, upload))),
            None => {
                let piece = upload.next().await?;
                Some((piece.map_err(Into::into), (None, upload)))
            }
        }
    })
}

/// The highest version in `Git-Protocol: version=2`; what is not well-formed asks for nothing.
pub(super) fn protocol(headers: &HeaderMap) -> Protocol {
    let asked = headers.get("git-protocol").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let versions = asked.split(':').filter_map(|part| match part {
        "version=1" => Some(Protocol::V1),
        "version=2" => Some(Protocol::V2),
        _ => None,
    });
    versions.max().unwrap_or(Protocol::V0)
}

/// The request, whole and unpacked.
pub(super) async fn body(request: Request) -> Result<Bytes, Refusal> {
    let (bytes, packed) = read(request, REQUEST_TYPE, REQUEST_BYTES_MAX, REQUEST_TIME_MAX).await?;
    if !packed {
        return Ok(bytes);
    }
    let unpacked = tokio::task::spawn_blocking(move || unpack(&bytes)).await;
    unpacked.unwrap_or(Err(Refusal::Malformed("the request could not be unpacked")))
}

/// A request of a type, and whether it is packed.
pub(super) async fn read(
    request: Request,
    kind: &str,
    max: usize,
    within: Duration,
) -> Result<(Bytes, bool), Refusal> {
    let (parts, body) = request.into_parts();
    let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if header(CONTENT_TYPE) != kind {
        return Err(Refusal::NotUnderstood("this is not the type that git sends its requests with"));
    }
    let packed = match header(CONTENT_ENCODING) {
        "" | "identity" => false,
        "gzip" | "x-gzip" => true,
        _ => return Err(Refusal::NotUnderstood("a request is plain, or packed with gzip")),
    };
    if is_declared_larger(&body, max) {
        return Err(Refusal::TooLarge(max));
    }
    let read = Limited::new(body, max).collect();
    match tokio::time::timeout(within, read).await {
        Ok(Ok(body)) => Ok((body.to_bytes(), packed)),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::TooLarge(max)),
        Ok(Err(_)) => Err(Refusal::Malformed("the request did not arrive whole")),
        Err(_) => Err(Refusal::TooSlow),
    }
}

fn unpack(bytes: &[u8]) -> Result<Bytes, Refusal> {
    let mut whole = Vec::new();
    let mut bounded = flate2::read::GzDecoder::new(bytes).take(REQUEST_BYTES_MAX as u64 + 1);
    bounded.read_to_end(&mut whole).map_err(|_| Refusal::Malformed("the request is not whole gzip"))?;
    if whole.len() > REQUEST_BYTES_MAX {
        return Err(Refusal::TooLarge(REQUEST_BYTES_MAX));
    }
    Ok(whole.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn only_a_repositorys_own_paths_are_taken_for_one() {
        let target = |path: &str| Target::of(path).map(|target| (target.client.to_string(), target.part));
        let line = |part| Some(("line.7-press_42".to_owned(), part));
        assert_eq!(target("/git/devices/line.7-press_42.git/info/refs"), line(Part::Refs));
        assert_eq!(target("/git/devices/line.7-press_42.git/git-upload-pack"), line(Part::UploadPack));
        assert_eq!(target("/git/devices/line.7-press_42.git/git-receive-pack"), line(Part::ReceivePack));
        for other in ["HEAD", "objects/info/packs", "../line-2.git/info/refs", "info/refs/", "", "info//refs"]
        {
            assert_eq!(target(&format!("/git/devices/line.7-press_42.git/{other}")), line(Part::Other));
        }
        assert_eq!(target("/git/devices/a.git.git/info/refs").unwrap().0, "a.git");
        for bad in [
            "/git/devices/line-1/info/refs",
            "/git/devices/../line-1.git/info/refs",
            "/git/devices/..git/info/refs",
            "/git/devices/...git/info/refs",
            "/git/devices/%2e%2e.git/info/refs",
            "/git/devices/line%2D1.git/info/refs",
            "/git/devices//line-1.git/info/refs",
            "/git//devices/line-1.git/info/refs",
            "/git/devices/a/b.git/info/refs",
            "/git/devices/.git/info/refs",
            "/git/line-1.git/info/refs",
        ] {
            assert_eq!(target(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_protocol_is_the_highest_that_is_well_formed() {
        let check = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("git-protocol", HeaderValue::from_str(value).unwrap());
            protocol(&headers)
        };
        assert_eq!(protocol(&HeaderMap::new()), Protocol::V0);
        assert_eq!(check("version=1"), Protocol::V1);
        assert_eq!(check("version=2"), Protocol::V2);
        assert_eq!(check("version=1:version=2:extra"), Protocol::V2);
        for bad in ["version=3", "version=2 ", "version=2;rm", "2", ""] {
            assert_eq!(check(bad), Protocol::V0, "{bad:?}");
        }
    }

    #[test]
    fn a_busy_server_says_when_to_come_back_and_a_refusal_is_text_for_git() {
        let response = Refusal::Fetch(FetchError::Busy).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let seconds: u32 = response.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
        assert!((1..=RETRY_AFTER_MAX).contains(&seconds));
        let response = Refusal::Fetch(FetchError::Void).into_response();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
    }

    #[test]
    fn a_packed_request_is_bounded_by_what_it_unpacks_to() {
        let pack = |bytes: &[u8]| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            packer.write_all(bytes).unwrap();
            packer.finish().unwrap()
        };
        assert_eq!(unpack(&pack(b"0000")).unwrap(), "0000");
        assert_eq!(unpack(&pack(&vec![0; REQUEST_BYTES_MAX])).unwrap().len(), REQUEST_BYTES_MAX);
        let bomb = pack(&vec![0; 64 * 1024 * 1024]);
        assert!(bomb.len() < 100_000);
        assert!(matches!(unpack(&bomb), Err(Refusal::TooLarge(_))));
        let whole = pack(b"0000");
        assert!(matches!(unpack(&whole[..whole.len() - 3]), Err(Refusal::Malformed(_))));
        assert!(matches!(unpack(b"plain"), Err(Refusal::Malformed(_))));
    }
}
