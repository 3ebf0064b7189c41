//! Sockets: bind, accept, shake hands, say who it is, drain.
//!
//! One accept loop serves all three listeners; they differ in their [`Door`]. Here lie all limits that a
//! connection can run into, and here a verified certificate becomes the [`Caller`] of every request on its
//! connection (ID-081). What a caller may do is asked per request, behind the door.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse as _;
use futures_util::FutureExt as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use margrave_core::id::ClientId;
use margrave_core::identity::ClientName;
use margrave_device_api::Caller;
use margrave_identity::verify::{Peer, Refusal};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::http::problem::Problem;
use crate::http::{Arrival, Stopping};

/// Header lines of a request; ours need a dozen.
const HEADER_COUNT_MAX: usize = 64;
/// Request line and headers together; also what one connection may make us buffer at once.
const HEADER_BYTES_MAX: usize = 32 * 1024;
/// A peer that takes nothing for this long is gone, whatever its socket says.
const WRITE_STALL_MAX: Duration = Duration::from_secs(60);
/// How long, and for how much, a closed connection is still listened to. What a peer is sending while we have
/// answered already (a body that is too large) would otherwise make the kernel throw away our answer.
const LINGER_TIME_MAX: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// After its time has come, a connection may finish the request it is in; the longest is a held poll.
const LAST_REQUEST_MAX: Duration = Duration::from_secs(90);
/// A client needs one connection, and two while it renews. What lies beyond is left over from a bad network, so
/// a new one closes the oldest instead of being refused: a device must always be able to come back.
const CONNECTIONS_PER_CLIENT_MAX: usize = 8;

/// What one listener lets happen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Open connections; more wait in the kernel's queue until one closes.
    pub(crate) connections: usize,
    /// Handshakes at the same time. Each costs about half a millisecond of a core, and a fleet that comes
    /// back after an outage must not take the cores from requests that are already here.
    pub(crate) handshakes: usize,
    /// For a handshake, including its wait for a free place.
    pub(crate) handshake_time: Duration,
    /// From the end of one request to the end of the next one's headers.
    pub(crate) quiet_time: Duration,
    /// How old a connection may become before it is asked to reconnect (ID-110).
    pub(crate) age: Option<Duration>,
    /// When stopping: how long requests may take to finish.
    pub(crate) drain: Duration,
}

impl Limits {
    /// Strangers: who says nothing goes soon. Event streams stay, they are answers and not silence.
    pub(crate) const WEB: Limits = Limits {
        connections: 4_096,
        handshakes: 64,
        handshake_time: Duration::from_secs(10),
        quiet_time: Duration::from_secs(20),
        age: None,
        drain: Duration::from_secs(5),
    };

    /// Devices are known by now and poll at their own pace, so silence is cheaper than another handshake.
    /// 32 kB each, so the cap is about 1 GB; bigger fleets poll without keeping connections.
    pub(crate) const DEVICE: Limits = Limits {
        connections: 32_768,
        handshakes: 64,
        handshake_time: Duration::from_secs(20),
        quiet_time: Duration::from_secs(10 * 60),
        age: Some(Duration::from_secs(60 * 60)),
        drain: Duration::from_secs(5),
    };

    /// Devices again, but nobody knows so before a signature was checked. A poll a minute keeps its connection.
    pub(crate) const SIGNED: Limits =
        Limits { connections: 16_384, quiet_time: Duration::from_secs(90), ..Limits::DEVICE };

    pub(crate) const LOCAL: Limits = Limits { connections: 1_024, ..Limits::WEB };
}

/// Verifies the chain that a client presented; it is asked after the handshake, which asked the same.
pub(crate) type Recognise = dyn Fn(&[CertificateDer<'_>]) -> Result<Peer<ClientName>, Refusal> + Send + Sync;

/// Who may come in, and how.
pub(crate) enum Door {
    Local,
    Web(Arc<ServerConfig>),
    /// Signed requests; without TLS where a proxy in front of us has ended it.
    Signed(Option<Arc<ServerConfig>>),
    Device {
        tls: Arc<ServerConfig>,
        recognise: Box<Recognise>,
        /// How long until a moment in a certificate, by the server's clock.
        remaining: Box<dyn Fn(margrave_core::moment::Moment) -> Duration + Send + Sync>,
    },
}

impl Door {
    fn arrival(&self) -> Arrival {
        match self {
            Door::Local => Arrival::Local,
            Door::Web(_) => Arrival::Web,
            Door::Signed(_) => Arrival::Signed,
            Door::Device { .. } => Arrival::Device,
        }
    }
}

struct House {
    door: Door,
    router: Router,
    limits: Limits,
    stopping: Stopping,
    handshakes: Semaphore,
    open: AtomicUsize,
    crowd: Arc<Crowd>,
}

/// Accepts connections until the server stops, then lets the open ones finish.
pub(crate) async fn serve(
    listener: TcpListener,
    door: Door,
    router: Router,
    limits: Limits,
    stopping: Stopping,
) {
    let handshakes = Semaphore::new(limits.handshakes);
    let places = Arc::new(Semaphore::new(limits.connections));
    let house = Arc::new(House {
        door,
        router,
        limits,
        stopping: stopping.clone(),
        handshakes,
        open: AtomicUsize::new(0),
        crowd: Arc::new(Crowd::default()),
    });
    let mut connections = JoinSet::new();
    let mut stop = pin!(stopping.wait());
    loop {
        if places.available_permits() == 0 {
            tracing::warn!(listener = ?house.door.arrival(), max = limits.connections, "no place for more connections");
        }
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes the semaphore");
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        while let Some(ended) = connections.try_join_next() {
            report_panic(ended);
        }
        match accepted {
            Ok((stream, address)) => {
                let house = Arc::clone(&house);
                connections.spawn(async move {
                    receive(&house, stream, address).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, or the peer left before we looked. Neither gets better by asking again at once.
                tracing::warn!(listener = ?house.door.arrival(), error = &error as &dyn std::error::Error, "accept failed");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            report_panic(ended);
        }
    };
    if timeout(limits.drain, all_ended).await.is_err() {
        tracing::info!(listener = ?house.door.arrival(), left = connections.len(), "connections did not end in time");
        connections.shutdown().await;
    }
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(error = &error as &dyn std::error::Error, "a connection's task panicked");
    }
}

/// Takes one connection from its first byte to its last.
async fn receive(house: &Arc<House>, stream: TcpStream, address: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%address, error = &error as &dyn std::error::Error, "the connection was gone at once");
        return;
    }
    let open = house.open.fetch_add(1, Ordering::Relaxed) + 1;
    let arrival = house.door.arrival();
    tracing::debug!(listener = ?arrival, %address, open, "connection opened");
    match &house.door {
        Door::Local | Door::Signed(None) => converse(house, stream, address, None).await,
        Door::Web(tls) | Door::Signed(Some(tls)) => {
            if let Some(stream) = shake_hands(house, tls, stream, address).await {
                converse(house, stream, address, None).await;
            }
        }
        Door::Device { tls, recognise, remaining } => {
            if let Some(stream) = shake_hands(house, tls, stream, address).await {
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                match recognise(chain) {
                    Ok(peer) => {
                        let caller = Known { client: peer.name.client, valid: remaining(peer.not_after) };
                        converse(house, stream, address, Some(caller)).await;
                    }
                    // The handshake accepted it a moment ago: it expired in between, or was never checked.
                    Err(refusal) => tracing::warn!(
                        %address,
                        reason = refusal.code(),
                        refusal = &refusal as &dyn std::error::Error,
                        "a client was refused after its handshake"
                    ),
                }
            }
        }
    }
    let open = house.open.fetch_sub(1, Ordering::Relaxed) - 1;
    tracing::debug!(listener = ?arrival, %address, open, "connection closed");
}

async fn shake_hands(
    house: &House,
    tls: &Arc<ServerConfig>,
    stream: TcpStream,
    address: SocketAddr,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    let shake = async {
        let _place = house.handshakes.acquire().await.expect("nobody closes the semaphore");
        TlsAcceptor::from(Arc::clone(tls)).accept(stream).await
    };
    let arrival = house.door.arrival();
    match timeout(house.limits.handshake_time, shake).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(listener = ?arrival, %address, error = &error as &dyn std::error::Error, "handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!(listener = ?arrival, %address, "handshake took too long");
            None
        }
    }
}

/// A client as its handshake showed it.
struct Known {
    client: ClientId,
    valid: Duration,
}

async fn converse<S>(house: &Arc<House>, stream: S, address: SocketAddr, known: Option<Known>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = house.limits;
    let arrival = house.door.arrival();
    let age = limits.age.map(spread);
    let valid = known.as_ref().map(|known| known.valid);
    let lifetime = [age, valid].into_iter().flatten().min();
    let place = known.as_ref().map(|known| house.crowd.enter(known.client.clone()));
    let (_presence, mut displaced) = place.unzip();
    let caller = known.map(|known| Caller(known.client));

    let router = house.router.clone();
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        let path = request.uri().path().to_owned();
        let extensions = request.extensions_mut();
        extensions.insert(arrival);
        extensions.insert(ConnectInfo(address));
        if let Some(caller) = &caller {
            extensions.insert(caller.clone());
        }
        let answer = AssertUnwindSafe(router.clone().oneshot(request)).catch_unwind();
        async move {
            match answer.await {
                Ok(response) => response,
                Err(_) => {
                    tracing::error!(path, "a handler panicked");
                    Ok(Problem::internal().at(&path).into_response())
                }
            }
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.quiet_time)
        .max_headers(HEADER_COUNT_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(HEADER_BYTES_MAX.max(64 * 1024));
    let mut connection =
        pin!(builder.serve_connection(TokioIo::new(Paced::new(stream, WRITE_STALL_MAX)), service));

    // Far away rather than absent, so that one sleep serves both the life and, later, the last request.
    let mut until = pin!(sleep(lifetime.unwrap_or(Duration::from_secs(365 * 24 * 60 * 60))));
    let mut stop = pin!(house.stopping.wait());
    let mut ending = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(listener = ?arrival, %address, error = &error as &dyn std::error::Error, "connection ended");
                }
                return;
            }
            () = &mut stop, if !ending => {}
            () = displacement(&mut displaced), if !ending => {}
            () = until.as_mut() => {
                if ending {
                    return;
                }
            }
        }
        ending = true;
        connection.as_mut().graceful_shutdown();
        until.as_mut().reset(Instant::now() + LAST_REQUEST_MAX);
    }
}

/// Ends when a newer connection of the same client took this one's place; never, for strangers.
async fn displacement(displaced: &mut Option<oneshot::Receiver<()>>) {
    match displaced {
        Some(receiver) => drop(receiver.await),
        None => std::future::pending().await,
    }
}

/// Between three quarters and all of `full`: connections that began together must not end together.
fn spread(full: Duration) -> Duration {
    full.mul_f64(0.75 + 0.25 * crate::tasks::chance())
}

/// Which connections each client has, oldest first.
#[derive(Default)]
struct Crowd {
    next: AtomicU64,
    clients: Mutex<HashMap<ClientId, VecDeque<Place>>>,
}

/// One connection, and how to ask it to end.
struct Place {
    number: u64,
    displace: oneshot::Sender<()>,
}

/// One connection's place in the crowd, given up when dropped.
struct Presence {
    crowd: Arc<Crowd>,
    client: ClientId,
    number: u64,
}

impl Crowd {
    fn enter(self: &Arc<Self>, client: ClientId) -> (Presence, oneshot::Receiver<()>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (displace, displaced) = oneshot::channel();
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let places = clients.entry(client.clone()).or_default();
        if places.len() >= CONNECTIONS_PER_CLIENT_MAX
            && let Some(oldest) = places.pop_front()
        {
            tracing::debug!(%client, "closing the oldest of too many connections");
            // An error means that it is just ending by itself, which is as good.
            oldest.displace.send(()).unwrap_or_default();
        }
        places.push_back(Place { number, displace });
        (Presence { crowd: Arc::clone(self), client, number }, displaced)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut clients = self.crowd.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = clients.get_mut(&self.client) {
            places.retain(|place| place.number != self.number);
            if places.is_empty() {
                clients.remove(&self.client);
            }
        }
    }
}

/// A stream whose peer has to keep taking what we send, and which does not close on its peer's last words.
struct Paced<S> {
    inner: S,
    stall_max: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    linger: Option<Linger>,
}

/// Our side is closed; what still comes is thrown away.
struct Linger {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl<S> Paced<S> {
    fn new(inner: S, stall_max: Duration) -> Self {
        Paced { inner, stall_max, stalled: None, linger: None }
    }

    fn pace<T>(&mut self, context: &mut Context<'_>, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.stalled = None;
            return progress;
        }
        let stall_max = self.stall_max;
        let deadline = || Box::pin(sleep_until(Instant::now() + stall_max));
        ready!(self.stalled.get_or_insert_with(deadline).as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer stopped reading")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + Unpin> Paced<S> {
    /// Ready once the peer has closed as well, or has had its time. Nothing that happens here is an error: all
    /// that had to be said was said.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Linger {
            until: Box::pin(sleep(LINGER_TIME_MAX)),
            bytes_left: LINGER_BYTES_MAX,
        });
        let mut scratch = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.inner).poll_read(context, &mut buffer) {
                Poll::Pending => return linger.until.as_mut().poll(context),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => match linger.bytes_left.checked_sub(buffer.filled().len()) {
                    Some(left) if !buffer.filled().is_empty() => linger.bytes_left = left,
                    _ => return Poll::Ready(()),
                },
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.pace(context, progress)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.inner).poll_flush(context);
        self.pace(context, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            let progress = Pin::new(&mut self.inner).poll_shutdown(context);
            ready!(self.pace(context, progress))?;
        }
        self.poll_linger(context).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.pace(context, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const SHORT: Limits = Limits {
        connections: 2,
        handshakes: 1,
        handshake_time: Duration::from_millis(200),
        quiet_time: Duration::from_millis(200),
        age: None,
        drain: Duration::from_millis(500),
    };
    const DEADLINE: Duration = Duration::from_secs(20);

    struct Running {
        address: SocketAddr,
        stop: tokio::sync::watch::Sender<bool>,
        task: tokio::task::JoinHandle<()>,
    }

    async fn running(limits: Limits) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopping) = Stopping::new();
        let wait = stopping.clone();
        let router = Router::new()
            .route("/", get(|| async { "hello" }))
            .route(
                "/held",
                get(move || async move {
                    wait.wait().await;
                    "released"
                }),
            )
            .route("/stuck", get(|| async { std::future::pending::<()>().await }))
            .route(
                "/panic",
                post(|| async {
                    if true {
                        panic!("on purpose")
                    }
                }),
            );
        let task = tokio::spawn(serve(listener, Door::Local, router, limits, stopping));
        Running { address, stop, task }
    }

    /// Sends `text` and reads to the end of the connection.
    async fn exchange(address: SocketAddr, text: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("the server closes").unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn headers_that_never_end_are_cut_off() {
        let running = running(SHORT).await;
        let answer = exchange(running.address, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ").await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(exchange(running.address, "").await.is_empty());
    }

    #[tokio::test]
    async fn a_handshake_that_never_ends_is_cut_off() {
        use margrave_core::moment::Moment;
        use margrave_identity::live::LiveWebLeaf;
        use margrave_identity::web::WebAuthority;
        let now = Moment(1_800_000_000_000);
        let authority = WebAuthority::create(now).unwrap();
        let leaf = authority.issue(&["localhost".to_owned()], now, Duration::from_secs(60)).unwrap();
        let tls = margrave_identity::tls::web_server_config(LiveWebLeaf::new(leaf));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopping) = Stopping::new();
        // One place for handshakes: the second one gets its turn only because the first is given up.
        tokio::spawn(serve(listener, Door::Web(tls), Router::new(), SHORT, stopping));
        for hello in ["", "\u{16}\u{3}\u{1}\u{2}"] {
            assert!(exchange(address, hello).await.is_empty());
        }
    }

    #[tokio::test]
    async fn headers_without_measure_are_refused() {
        let running = running(SHORT).await;
        let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "y".repeat(HEADER_BYTES_MAX));
        assert!(exchange(running.address, &long).await.starts_with("HTTP/1.1 431"));
        let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(HEADER_COUNT_MAX));
        assert!(exchange(running.address, &many).await.starts_with("HTTP/1.1 431"));
    }

    #[tokio::test]
    async fn a_panic_is_one_failed_request_and_a_problem() {
        let running = running(SHORT).await;
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let both = "POST /panic HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(both.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(DEADLINE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 500") && answer.contains("application/problem+json"),
            "{answer}"
        );
        assert!(answer.ends_with("hello"), "{answer}");
    }

    #[tokio::test]
    async fn stopping_releases_held_requests_and_gives_up_on_stuck_ones() {
        let running = running(Limits { quiet_time: DEADLINE, ..SHORT }).await;
        let ask = |path: &'static str| {
            let address = running.address;
            tokio::spawn(async move {
                exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
            })
        };
        let (held, stuck) = (ask("/held"), ask("/stuck"));
        // Both places are taken once a third connection is not answered any more.
        let third = async {
            loop {
                let mut stream = TcpStream::connect(running.address).await.unwrap();
                stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
                let mut answer = Vec::new();
                if timeout(Duration::from_millis(300), stream.read_to_end(&mut answer)).await.is_err() {
                    return;
                }
            }
        };
        timeout(DEADLINE, third).await.expect("places run out");
        running.stop.send(true).unwrap();
        assert!(held.await.unwrap().ends_with("released"));
        assert_eq!(stuck.await.unwrap(), "");
        timeout(DEADLINE, running.task).await.unwrap().unwrap();
        assert!(TcpStream::connect(running.address).await.is_err());
    }

    #[tokio::test]
    async fn a_connection_of_age_is_closed_after_its_request() {
        let limits = Limits { age: Some(Duration::from_millis(300)), quiet_time: DEADLINE, ..SHORT };
        let running = running(limits).await;
        let answer = exchange(running.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.ends_with("hello"), "{answer}");
    }

    #[tokio::test]
    async fn the_newest_connections_of_a_client_stay() {
        let crowd = Arc::new(Crowd::default());
        let client: ClientId = "line-1".parse().unwrap();
        let mut all: Vec<_> =
            (0..CONNECTIONS_PER_CLIENT_MAX + 2).map(|_| crowd.enter(client.clone())).collect();
        let displaced: Vec<bool> = all.iter_mut().map(|(_, receiver)| receiver.try_recv().is_ok()).collect();
        assert_eq!(displaced.iter().filter(|was| **was).count(), 2);
        assert!(displaced[0] && displaced[1]);
        drop(all);
        assert!(crowd.clients.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn an_answer_is_heard_by_a_peer_that_is_still_sending() {
        let running = running(Limits { quiet_time: DEADLINE, ..SHORT }).await;
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let head = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // More than the kernel takes in at once, for a handler that never looks at it.
        let body = vec![b'x'; 2_000_000];
        timeout(DEADLINE, stream.write_all(&body)).await.expect("somebody takes it").unwrap();
        let mut answer = String::new();
        timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("the server closes").unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
    }

    #[tokio::test]
    async fn a_peer_that_stops_reading_is_given_up() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let mut paced = Paced::new(ours, Duration::from_millis(20));
        let error = paced.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
