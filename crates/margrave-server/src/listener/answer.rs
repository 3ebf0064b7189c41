//! One answer on a connection: being found, being sent, and what is known of it from outside.
//!
//! Whether a connection is in the middle of something, and since when it is not, is looked at by the connection's
//! one timer, now and then: a timer for each request would cost more than most requests do.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Request, Uri, Version};
use tokio::time::Instant;

use crate::http::problem::Problem;

pub(super) struct Pulse {
    born: Instant,
    busy: AtomicBool,
    /// Milliseconds after `born`: when the last answer ended.
    quiet_since: AtomicU64,
}

impl Pulse {
    pub(super) fn new() -> Arc<Pulse> {
        Arc::new(Pulse { born: Instant::now(), busy: AtomicBool::new(false), quiet_since: AtomicU64::new(0) })
    }

    /// From the end of a request's headers to the end of its answer.
    pub(super) fn beat(self: &Arc<Self>) -> Busy {
        self.busy.store(true, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// When it was quiet for `max`, as far as can be said now.
    pub(super) fn quiet_until(&self, max: Duration) -> Instant {
        if self.busy.load(Ordering::Relaxed) {
            return Instant::now() + max;
        }
        self.born + Duration::from_millis(self.quiet_since.load(Ordering::Relaxed)) + max
    }
}

/// One request that is being answered.
pub(super) struct Busy(Arc<Pulse>);

impl Drop for Busy {
    fn drop(&mut self) {
        let now = u64::try_from(self.0.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.quiet_since.store(now, Ordering::Relaxed);
        self.0.busy.store(false, Ordering::Relaxed);
    }
}

impl Busy {
    fn speak(self, response: Response) -> Response<Spoken> {
        response.map(|body| Spoken { body, _busy: self })
    }
}

/// The body of an answer; when it is gone, the answer is given.
pub(super) struct Spoken {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Spoken {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// What comes of a request: an answer at once, or in a while.
pub(crate) enum Reply {
    Now(Response),
    Later(Pin<Box<dyn Future<Output = Response> + Send>>),
}

/// Whether a request says once which host it is for, or is too old to know of that (RFC 9112, 3.2).
pub(super) fn names_its_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), None) => true,
        (Some(_), Some(_)) => false,
        (None, _) => request.version() < Version::HTTP_11,
    }
}

/// An answer after which the connection ends: who does not speak properly is not listened to any longer.
pub(super) fn last(mut response: Response) -> Reply {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    Reply::Now(response)
}

/// A request that is being answered. A panic in it is one failed request and not the end of its connection.
pub(super) enum Answering {
    Now(Option<Response<Spoken>>),
    Later { answer: Pin<Box<dyn Future<Output = Response> + Send>>, busy: Option<Busy>, path: Box<str> },
}

impl Answering {
    /// `find` makes the answer, for a request of `uri`.
    pub(super) fn new(busy: Busy, uri: &Uri, find: impl FnOnce() -> Reply) -> Answering {
        match catch_unwind(AssertUnwindSafe(find)) {
            Ok(Reply::Now(response)) => Answering::Now(Some(busy.speak(response))),
            // Of a request that takes long, only this is kept: headers and address share a buffer of kilobytes.
            Ok(Reply::Later(answer)) => {
                Answering::Later { answer, busy: Some(busy), path: uri.path().into() }
            }
            Err(_) => Answering::Now(Some(busy.speak(broken(uri.path())))),
        }
    }
}

impl Future for Answering {
    type Output = Result<Response<Spoken>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (response, busy) = match self.get_mut() {
            Answering::Now(response) => {
                return Poll::Ready(Ok(response.take().expect("nobody asks for an answer twice")));
            }
            Answering::Later { answer, busy, path } => {
                let response = match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context))) {
                    Ok(Poll::Pending) => return Poll::Pending,
                    Ok(Poll::Ready(response)) => response,
                    Err(_) => broken(path),
                };
                (response, busy.take().expect("nobody asks for an answer twice"))
            }
        };
        Poll::Ready(Ok(busy.speak(response)))
    }
}

fn broken(path: &str) -> Response {
    tracing::error!(path, "a handler panicked");
    Problem::internal().at(path).into_response()
}
