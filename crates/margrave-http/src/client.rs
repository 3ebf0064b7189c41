//! A client of one origin, and the few connections it keeps.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use http::header::{HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::task::JoinHandle;

use crate::content::Content;
use crate::dial::{Counters, Dialer, Stream};
use crate::error::{Error, Phase};
use crate::events::Events;
use crate::origin::{Origin, Scheme};
use crate::request::Request;
use crate::response::{Answer, Body, Response};

/// Heads of answers are small; this bounds what a server can make us hold before its body begins.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// A connection that failed has its reason at hand at once.
const REASON_WAIT: Duration = Duration::from_millis(500);
/// How long a kept connection may take to be ready before a new one is dialled instead.
const READY_WAIT: Duration = Duration::from_millis(100);

/// What makes the connection trustworthy.
pub enum Trust {
    /// TLS; whom to trust and what to present is in the configuration.
    Tls(Arc<ClientConfig>),
    /// No TLS, and therefore only to this machine.
    PlainLoopback,
    /// No TLS to anywhere: the operator asked for it in so many words.
    PlainAnywhere,
}

/// Bounds for all requests of a client. A request can override the last three for itself.
#[derive(Debug, Clone)]
pub struct Limits {
    /// For name resolution, connecting and the TLS handshake together.
    pub dial: Duration,
    /// How many connections are kept while idle.
    pub idle_connections: usize,
    /// How long one is kept while idle: middleboxes forget silently, and a request into a forgotten
    /// connection waits for its whole time-out.
    pub idle: Duration,
    /// How long one is kept while idle beside another that is in use. Not for ever: it costs the server as much as
    /// one that is needed.
    pub spare: Duration,
    /// How long a connection is used for new requests (ID-105, ID-110). Answers under way are finished.
    pub connection_age: Duration,
    /// From sending to the whole answer, dialling included; for a streamed one, to its head.
    pub request: Duration,
    /// How long a body may be silent between two pieces.
    pub body_idle: Duration,
    /// The largest body that is read.
    pub body_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            dial: Duration::from_secs(10),
            idle_connections: 2,
            idle: Duration::from_secs(90),
            spare: Duration::from_secs(90),
            connection_age: Duration::from_secs(15 * 60),
            request: Duration::from_secs(30),
            body_idle: Duration::from_secs(30),
            body_max: 4 * 1024 * 1024,
        }
    }
}

impl Limits {
    /// For a device and its server. It has time: when a whole fleet comes back at once, its server shakes hands
    /// with one after the other, and whoever gives up early has it do that twice.
    ///
    /// Connections are few and long, as a handshake costs as much as ten polls. They are kept over the usual pauses
    /// between polls; their age stays short beside the life of an SVID (ID-110), and every change of SVID or bundle
    /// ends them anyway (ID-106). One is kept: while a poll is held there, a second one takes the reports, and goes
    /// soon after the last of them.
    pub fn device() -> Limits {
        Limits {
            dial: Duration::from_secs(30),
            request: Duration::from_secs(60),
            idle_connections: 1,
            idle: Duration::from_secs(10 * 60),
            spare: Duration::from_secs(10),
            connection_age: Duration::from_secs(12 * 3600),
            ..Limits::default()
        }
    }
}

/// What a client has put on the wire so far: bytes of TCP or Unix-socket payload, TLS included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub sent: u64,
    pub received: u64,
    /// Those that came about, handshake and all.
    pub connections: u64,
}

/// Sends requests to one origin. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    dialer: Dialer,
    peer: String,
    host: HeaderValue,
    prefix: String,
    limits: Limits,
    counters: Arc<Counters>,
    idle: Mutex<Idle>,
    /// Requests that are under way, up to the end of their answers.
    under_way: AtomicUsize,
}

impl Shared {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().expect("nobody panics while holding the lock")
    }

    /// Sees to it that spare connections end, if there are any.
    fn look_after(self: &Arc<Self>, idle: &mut Idle) {
        if !idle.tended && !idle.connections.is_empty() && self.under_way.load(Ordering::Relaxed) > 0 {
            idle.tended = true;
            tokio::spawn(tend(Arc::downgrade(self)));
        }
    }
}

#[derive(Default)]
struct Idle {
    /// Grows with every reset; a connection of an older one is not kept.
    generation: u64,
    connections: Vec<Connection>,
    /// Somebody looks after spare ones.
    tended: bool,
}

impl Idle {
    /// Lets go of connections that have been spare for too long; how long until the next one has been, if there are
    /// any.
    fn end_spare(&mut self, spare: Duration) -> Option<Duration> {
        self.connections.retain(|connection| connection.idle_since.elapsed() < spare);
        let oldest = self.connections.iter().map(|connection| connection.idle_since.elapsed()).max()?;
        Some(spare.saturating_sub(oldest))
    }
}

/// Ends spare connections when their time has come, and itself when there are none.
async fn tend(shared: Weak<Shared>) {
    loop {
        let pause = {
            let Some(shared) = shared.upgrade() else { return };
            let mut idle = shared.idle();
            // Where none is in use, none is spare.
            let in_use = shared.under_way.load(Ordering::Relaxed) > 0;
            let next = if in_use { idle.end_spare(shared.limits.spare) } else { None };
            match next {
                Some(pause) => pause,
                None => {
                    idle.tended = false;
                    return;
                }
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// A request that is under way, until dropped.
struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn new(shared: &Arc<Shared>) -> UnderWay {
        shared.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(shared))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Connection {
    sender: SendRequest<Content>,
    task: JoinHandle<Result<(), hyper::Error>>,
    born: Instant,
    idle_since: Instant,
    generation: u64,
}

/// A connection that is in use by one answer.
pub(crate) struct Lease {
    under_way: UnderWay,
    connection: Connection,
}

impl Lease {
    pub(crate) fn give_back(self) {
        let Lease { under_way, mut connection } = self;
        let shared = Arc::clone(&under_way.0);
        drop(under_way);
        connection.idle_since = Instant::now();
        let mut idle = shared.idle();
        let young = connection.born.elapsed() < shared.limits.connection_age;
        if young
            && connection.generation == idle.generation
            && !connection.sender.is_closed()
            && idle.connections.len() < shared.limits.idle_connections
        {
            idle.connections.push(connection);
            shared.look_after(&mut idle);
        }
    }
}

impl Client {
    /// A client of `origin`. Nothing is dialled before the first request.
    pub fn new(trust: Trust, origin: Origin, limits: Limits) -> Result<Client, Error> {
        let host = origin.authority();
        let prefix = origin.prefix().to_owned();
        let refused = |why: &str| Err(Error::Request(format!("{origin} {why}")));
        let dialer = match (trust, origin.scheme()) {
            (Trust::Tls(config), Scheme::Https) => Dialer::Tls { origin, config },
            (Trust::PlainLoopback, Scheme::Http) if origin.is_loopback() => {
                Dialer::Plain { origin, loopback_only: true }
            }
            (Trust::PlainAnywhere, Scheme::Http) => Dialer::Plain { origin, loopback_only: false },
            (Trust::PlainLoopback, Scheme::Http) => {
                return refused("is another machine, and plain http is for this one only; use https");
            }
            (Trust::Tls(_), Scheme::Http) => return refused("is plain http, but https is needed here"),
            (Trust::PlainLoopback | Trust::PlainAnywhere, Scheme::Https) => {
                return refused("is https, but no trusted authority or pin is configured for it");
            }
        };
        Ok(Client::of(dialer, &host, prefix, limits))
    }

    /// A client of a server behind a Unix-domain socket, such as a container engine.
    pub fn unix(path: impl Into<PathBuf>, limits: Limits) -> Client {
        Client::of(Dialer::Unix { path: path.into() }, "localhost", String::new(), limits)
    }

    fn of(dialer: Dialer, host: &str, prefix: String, limits: Limits) -> Client {
        let shared = Shared {
            peer: dialer.peer(),
            host: HeaderValue::from_str(host).expect("a host that was parsed is ASCII"),
            prefix,
            dialer,
            limits,
            counters: Arc::default(),
            idle: Mutex::default(),
            under_way: AtomicUsize::new(0),
        };
        Client { shared: Arc::new(shared) }
    }

    /// Sends and reads the whole answer, whatever its status.
    pub async fn send(&self, request: Request) -> Result<Response, Error> {
        let limit = request.timeout.unwrap_or(self.shared.limits.request);
        match tokio::time::timeout(limit, async { self.start(request).await?.whole().await }).await {
            Ok(done) => done,
            Err(_) => Err(Error::Timeout { phase: Phase::Answer, after: limit }),
        }
    }

    /// Sends, and comes back when the head of the answer is there; its body is then read piece by piece.
    pub async fn open(&self, request: Request) -> Result<Answer, Error> {
        let limit = request.timeout.unwrap_or(self.shared.limits.request);
        match tokio::time::timeout(limit, self.start(request)).await {
            Ok(started) => started,
            Err(_) => Err(Error::Timeout { phase: Phase::Answer, after: limit }),
        }
    }

    /// Opens a stream of server-sent events. An answer that is no such stream is read whole and handed back.
    pub async fn events(&self, request: Request) -> Result<Result<Events, Response>, Error> {
        let request = request.header(http::header::ACCEPT, "text/event-stream");
        let answer = self.open(Request { body_max: Some(u64::MAX), ..request }).await?;
        let is_stream = answer.header(http::header::CONTENT_TYPE).is_some_and(|kind| {
            kind.split(';').next().is_some_and(|kind| kind.trim() == "text/event-stream")
        });
        if answer.status == http::StatusCode::OK && is_stream {
            return Ok(Ok(Events::new(answer.body)));
        }
        let Answer { status, headers, body } = answer;
        let body = body.limited(self.shared.limits.body_max).whole().await?;
        Ok(Err(Response { status, headers, body }))
    }

    /// Closes idle connections and keeps none that is in use now: after an SVID was renewed, the next request
    /// shakes hands with the new one (ID-106).
    pub fn reset(&self) {
        let mut idle = self.shared.idle();
        idle.generation += 1;
        idle.connections.clear();
    }

    pub fn traffic(&self) -> Traffic {
        let counters = &self.shared.counters;
        Traffic {
            sent: counters.sent.load(Ordering::Relaxed),
            received: counters.received.load(Ordering::Relaxed),
            connections: counters.connections.load(Ordering::Relaxed),
        }
    }

    /// What errors and logs call the other end: for a server, the address that all paths are relative to.
    pub fn peer(&self) -> &str {
        &self.shared.peer
    }

    /// The path that is put before every request's: empty, or without a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.shared.prefix
    }

    async fn start(&self, request: Request) -> Result<Answer, Error> {
        let shared = &self.shared;
        let (body_max, idle) = (
            request.body_max.unwrap_or(shared.limits.body_max),
            request.body_idle.unwrap_or(shared.limits.body_idle),
        );
        let under_way = UnderWay::new(shared);
        let (response, connection) = self.exchange(request).await?;
        let (head, incoming) = response.into_parts();
        let lease = Lease { under_way, connection };
        let body = Body::new(incoming, lease, body_max, idle, shared.peer.clone())?;
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    /// One request, one head of an answer. A kept connection that turns out to be closed costs one more dial,
    /// and only where sending again cannot do the thing twice.
    async fn exchange(&self, mut request: Request) -> Result<(http::Response<Incoming>, Connection), Error> {
        if let Some(fault) = request.fault.take() {
            return Err(Error::Request(fault));
        }
        let peer = &self.shared.peer;
        let uri = self.uri(&request.path)?;
        let (kept, mut content) = (self.kept().await, request.content);
        if let Some(mut connection) = kept {
            let again = content.again();
            let message = self.message(&request.method, &uri, &request.headers, request.terse, content);
            match connection.sender.try_send_request(message).await {
                Ok(response) => return Ok((response, connection)),
                Err(mut failure) => {
                    let unsent = failure.take_message().map(http::Request::into_body);
                    let error = failure.into_error();
                    let is_gone = !error.is_parse() && !error.is_user();
                    let repeatable = request.method.is_idempotent().then_some(again).flatten();
                    match unsent.or(repeatable) {
                        Some(back) if is_gone => content = back,
                        _ => return Err(Error::of_hyper(error, peer)),
                    }
                }
            }
        }
        let mut connection = self.dial().await?;
        let message = self.message(&request.method, &uri, &request.headers, request.terse, content);
        match connection.sender.try_send_request(message).await {
            Ok(response) => Ok((response, connection)),
            Err(failure) => Err(self.reason(failure.into_error(), connection).await),
        }
    }

    /// A server that refuses our certificate may have closed before the request was looked at; then the task
    /// that drove the connection knows why, and the request only knows that it was dropped.
    async fn reason(&self, error: hyper::Error, connection: Connection) -> Error {
        let told = Error::of_hyper(error, &self.shared.peer);
        if !matches!(told, Error::Closed(_)) {
            return told;
        }
        let Connection { sender, task, .. } = connection;
        drop(sender);
        match tokio::time::timeout(REASON_WAIT, task).await {
            Ok(Ok(Err(cause))) => match Error::of_hyper(cause, &self.shared.peer) {
                better @ Error::Tls { .. } => better,
                _ => told,
            },
            _ => told,
        }
    }

    fn uri(&self, path: &str) -> Result<Uri, Error> {
        let full = format!("{}{path}", self.shared.prefix);
        if !path.starts_with('/') {
            return Err(Error::Request(format!("its path {path:?} does not begin with a slash")));
        }
        match PathAndQuery::try_from(full.as_str()) {
            Ok(path) => Ok(Uri::from(path)),
            Err(_) => Err(Error::Request(format!("its path {path:?} must be percent-encoded"))),
        }
    }

    fn message(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &http::HeaderMap,
        terse: bool,
        content: Content,
    ) -> http::Request<Content> {
        let mut message = http::Request::new(content);
        *message.method_mut() = method.clone();
        *message.uri_mut() = uri.clone();
        *message.headers_mut() = headers.clone();
        let headers = message.headers_mut();
        headers.entry(HOST).or_insert_with(|| self.shared.host.clone());
        if !terse {
            let name = concat!("margrave/", env!("CARGO_PKG_VERSION"));
            headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(name));
        }
        message
    }

    /// A kept connection that still looks usable.
    async fn kept(&self) -> Option<Connection> {
        loop {
            let mut connection = {
                let mut idle = self.shared.idle();
                let connection = idle.connections.pop()?;
                self.shared.look_after(&mut idle);
                connection
            };
            let limits = &self.shared.limits;
            if connection.born.elapsed() >= limits.connection_age
                || connection.idle_since.elapsed() >= limits.idle
            {
                continue;
            }
            // Ready at once in all but odd cases, such as a server that answered without reading our content.
            if let Ok(Ok(())) = tokio::time::timeout(READY_WAIT, connection.sender.ready()).await {
                return Some(connection);
            }
        }
    }

    async fn dial(&self) -> Result<Connection, Error> {
        let shared = &self.shared;
        let generation = shared.idle().generation;
        let wait = shared.limits.dial;
        let stream = match tokio::time::timeout(wait, shared.dialer.dial(wait, &shared.counters)).await {
            Ok(stream) => stream?,
            Err(_) => return Err(Error::Timeout { phase: Phase::Dial, after: wait }),
        };
        shared.counters.connections.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(peer = %shared.peer, "connected");
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake::<_, Content>(TokioIo::new(stream as Box<dyn Stream>))
            .await
            .map_err(|error| Error::of_hyper(error, &shared.peer))?;
        // The task ends when the server closes, or when the sender and the answer's body are dropped.
        let task = tokio::spawn(connection);
        let now = Instant::now();
        Ok(Connection { sender, task, born: now, idle_since: now, generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_unless_asked_for() {
        let new = |trust, text: &str| Client::new(trust, text.parse().unwrap(), Limits::default());
        assert!(new(Trust::PlainLoopback, "http://127.0.0.1:1").is_ok());
        assert!(new(Trust::PlainLoopback, "http://localhost:1").is_ok());
        for text in ["http://10.0.0.1", "http://plant.example", "https://localhost"] {
            let Err(error) = new(Trust::PlainLoopback, text) else { panic!("{text}") };
            assert!(matches!(error, Error::Request(_)), "{error}");
        }
        assert!(new(Trust::PlainAnywhere, "http://10.0.0.1").is_ok());
        assert!(new(Trust::PlainAnywhere, "https://10.0.0.1").is_err());
    }

    #[tokio::test]
    async fn a_refusal_that_came_before_the_request_is_told_too() {
        let refusal = crate::refusal::Refusal::new();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(refusal.server);
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            assert!(acceptor.accept(stream).await.is_err());
        });
        let origin = format!("https://{address}").parse().unwrap();
        let client = Client::new(Trust::Tls(refusal.client), origin, Limits::default()).unwrap();
        let mut connection = client.dial().await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !connection.task.is_finished() {
            assert!(Instant::now() < deadline, "the alert ends the connection");
            tokio::task::yield_now().await;
        }
        let message = http::Request::new(Content::empty());
        let failure = connection.sender.try_send_request(message).await.unwrap_err();
        let error = client.reason(failure.into_error(), connection).await;
        assert!(matches!(error, Error::Tls { source: crate::TlsFault::RefusedByPeer(_), .. }), "{error:?}");
    }
}
