//! One answer on a connection: being found, and being sent.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Request, Uri, Version};

use super::line::Busy;
use crate::http::problem::Problem;

fn spoken(busy: Busy, response: Response) -> Response<Spoken> {
    response.map(|body| Spoken { body, _busy: busy })
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
    /// `find` makes the answer. What can be answered by a look at the request is not taken apart before.
    pub(super) fn new<B>(
        busy: Busy,
        request: Request<B>,
        glance: impl FnOnce(&Request<B>) -> Option<Reply>,
        find: impl FnOnce(Request<B>) -> Reply,
    ) -> Answering {
        match catch_unwind(AssertUnwindSafe(|| glance(&request))) {
            Ok(Some(reply)) => Answering::of(busy, reply, request.uri()),
            Err(_) => Answering::of(busy, Reply::Now(broken(request.uri().path())), request.uri()),
            Ok(None) => {
                let uri = request.uri().clone();
                let found = catch_unwind(AssertUnwindSafe(|| find(request)));
                Answering::of(busy, found.unwrap_or_else(|_| Reply::Now(broken(uri.path()))), &uri)
            }
        }
    }

    fn of(busy: Busy, reply: Reply, uri: &Uri) -> Answering {
        match reply {
            Reply::Now(response) => Answering::Now(Some(spoken(busy, response))),
            // Of a request that takes long, only this is kept: headers and address share a buffer of kilobytes.
            Reply::Later(answer) => Answering::Later { answer, busy: Some(busy), path: uri.path().into() },
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
        Poll::Ready(Ok(spoken(busy, response)))
    }
}

fn broken(path: &str) -> Response {
    tracing::error!(path, "a handler panicked");
    Problem::internal().at(path).into_response()
}
