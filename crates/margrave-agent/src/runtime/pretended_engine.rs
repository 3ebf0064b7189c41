//! An engine that says what a test wants to hear: what no real one does when it is asked to.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use serde_json::{Value, json};

use super::engine::{Address, Engine};

pub(super) enum Answer {
    Json(Value),
    Bytes(Vec<u8>),
    Refused(StatusCode, &'static str),
    /// Never.
    Silence,
    /// Line by line, and then no end.
    Lines(Vec<Value>),
    /// Begins, and breaks off.
    Broken,
}

/// An answer that goes on, with the pauses in which what was said before is sent.
struct Told(VecDeque<Poll<std::io::Result<Bytes>>>);

impl hyper::body::Body for Told {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        match self.0.pop_front() {
            Some(Poll::Ready(piece)) => Poll::Ready(Some(piece.map(Frame::data))),
            Some(Poll::Pending) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }
}

fn going_on(pieces: impl IntoIterator<Item = Poll<std::io::Result<Bytes>>>) -> Response {
    Response::new(axum::body::Body::new(Told(pieces.into_iter().collect())))
}

pub(super) struct PretendedEngine {
    directory: tempfile::TempDir,
    asked: Arc<Mutex<Vec<String>>>,
    server: tokio::task::JoinHandle<()>,
}

impl PretendedEngine {
    /// Answers `METHOD /path` without the version of the interface, which it agrees on by itself.
    pub(super) fn start(answer: impl Fn(&str) -> Answer + Clone + Send + Sync + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let listener = tokio::net::UnixListener::bind(directory.path().join("engine.sock")).unwrap();
        let noted = asked.clone();
        let respond = move |method: Method, uri: Uri| {
            let (answer, noted) = (answer.clone(), noted.clone());
            async move { respond(&answer, &noted, &method, &uri).await }
        };
        let serve = async move { axum::serve(listener, Router::new().fallback(respond)).await.unwrap() };
        PretendedEngine { directory, asked, server: tokio::spawn(serve) }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("engine.sock")
    }

    pub(super) fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// From here on nobody listens; its socket stays, as engines leave it.
    pub(super) async fn stop(&self) {
        self.server.abort();
        while !self.server.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    pub(super) async fn engine(&self) -> Engine {
        Engine::connect(Address::parse(&self.address()).unwrap()).await.unwrap()
    }

    /// What it was asked so far.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn respond(
    answer: &impl Fn(&str) -> Answer,
    noted: &Mutex<Vec<String>>,
    method: &Method,
    uri: &Uri,
) -> Response {
    if uri.path() == "/version" {
        return axum::Json(json!({"Version": "28.0.0", "ApiVersion": "1.48"})).into_response();
    }
    let asked = uri.to_string();
    let asked = format!("{method} {}", asked.strip_prefix("/v1.48").unwrap());
    noted.lock().unwrap().push(asked.clone());
    match answer(&asked) {
        Answer::Json(value) => axum::Json(value).into_response(),
        Answer::Bytes(bytes) => bytes.into_response(),
        Answer::Refused(status, message) => (status, axum::Json(json!({"message": message}))).into_response(),
        Answer::Silence => std::future::pending().await,
        Answer::Lines(lines) => {
            going_on(lines.into_iter().map(|line| Poll::Ready(Ok(format!("{line}\n").into()))))
        }
        Answer::Broken => {
            let killed = std::io::Error::other("killed");
            going_on([Poll::Ready(Ok("\n".into())), Poll::Pending, Poll::Ready(Err(killed))])
        }
    }
}
