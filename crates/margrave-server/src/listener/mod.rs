//! Sockets: bind, accept, shake hands, say who it is, drain.
//!
//! One accept loop serves all listeners; they differ in their [`Door`]. Here lie all limits that a connection can
//! run into, and here a verified certificate becomes the [`Caller`] of every request on its connection (ID-081).
//! What a caller may do is asked per request, behind the door ([`Inside`]).
//!
//! A connection is first in the `lobby`, where strangers are, then in the `crowd`; `line.rs` is what others see of it,
//! `answer.rs` one request on it.

mod answer;
mod crowd;
mod line;
mod lobby;
mod paced;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::response::{IntoResponse as _, Response};
use futures_util::future::Either;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use margrave_device_api::Caller;
use margrave_identity::tls::{CONNECTION_AGE_MAX, Session, begin_session};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::server::TlsStream;
use tower::ServiceExt as _;

use self::answer::Answering;
use self::crowd::{Crowd, Known, Presence};
use self::line::{Line, Stage};
use self::lobby::{Lobby, Metered, Place};
use self::paced::{Paced, WRITE_STALL_MAX};
use crate::admission::Account;
use crate::fleet::{Clock, Found};
use crate::http::problem::Problem;
use crate::http::{Arrival, Stopping};
use crate::identity::Identity;

pub(crate) use self::answer::Reply;

/// Header lines of a request; ours need a dozen. This many is what hyper has a place for without asking for memory.
#[cfg(test)]
const HEADER_COUNT_MAX: usize = 100;
/// Request line and headers together; also what one connection may make us buffer at once.
const HEADER_BYTES_MAX: usize = 32 * 1024;
/// How often to look which connections are quiet for too long or of age.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Connections that the kernel keeps for us while we are busy; it takes less where `net.core.somaxconn` says so.
pub(crate) const BACKLOG: u32 = 16 * 1024;

/// What one listener lets happen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Open connections. Whoever comes then takes the place of an older one of its own, or is told to come back later.
    pub(crate) connections: usize,
    /// Connections beside those that have not shaken hands yet; the oldest of them gives way.
    pub(crate) strangers: usize,
    /// Both together. More than the connections, so that somebody can be told that there is no place.
    pub(crate) sockets: usize,
    /// Who came in later than this does not give way to others, who wait in the kernel instead: when a whole fleet
    /// comes back at once, everybody is new.
    pub(crate) stranger_time_min: Duration,
    /// For a handshake.
    pub(crate) handshake_time: Duration,
    /// From the end of one answer to the end of the next request's headers.
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
        strangers: 1_024,
        sockets: 5_120,
        // A flood of them must not keep an operator waiting, who asks again by hand.
        stranger_time_min: Duration::ZERO,
        handshake_time: Duration::from_secs(10),
        quiet_time: Duration::from_secs(20),
        age: None,
        drain: Duration::from_secs(5),
    };

    /// Devices are known by now and poll at their own pace, so silence is cheaper than another handshake.
    /// 40 kB each at most, so the cap is about 1.3 GB; bigger fleets poll without keeping connections.
    pub(crate) const DEVICE: Limits = Limits {
        connections: 32_768,
        // A fleet that comes back at once consists of strangers.
        strangers: 16_384,
        sockets: 49_152,
        // A few round trips on a bad line. More than there are places for in that time are a flood.
        stranger_time_min: Duration::from_secs(5),
        // As long as a device of ours has patience: a fleet of thousands that comes back at once is served one after
        // the other.
        handshake_time: Duration::from_secs(30),
        quiet_time: Duration::from_secs(10 * 60),
        age: Some(CONNECTION_AGE_MAX),
        drain: Duration::from_secs(5),
    };

    /// Devices again, but nobody knows so before a signature was checked. A poll a minute keeps its connection.
    pub(crate) const SIGNED: Limits = Limits {
        connections: 16_384,
        sockets: 24_576,
        quiet_time: Duration::from_secs(90),
        ..Limits::DEVICE
    };

    pub(crate) const LOCAL: Limits = Limits { connections: 1_024, sockets: 2_048, ..Limits::WEB };

    /// These limits where so many `files` may be open. Devices take nearly all of them, two connections each while
    /// they have something to tell; a sixteenth is left for everything else.
    pub(crate) fn within(self, files: u64) -> Limits {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let sockets = match self.age {
            Some(_) => self.sockets.min(files - files / 16),
            None => self.sockets.min(files / 32 + files / 64),
        };
        // There is always a place to shake hands, if only to be told that there is no other.
        let connections = self.connections.min(sockets - sockets / 32).max(1);
        let strangers = match self.age {
            Some(_) => self.strangers.min(sockets),
            None => self.strangers.min(files / 64),
        };
        Limits { connections, strangers: strangers.max(1), sockets: sockets.max(connections + 1), ..self }
    }
}

/// Who may come in, and how.
pub(crate) enum Door {
    Local,
    Web(Arc<ServerConfig>),
    /// Signed requests; without TLS where a proxy in front of us has ended it.
    Signed(Option<Arc<ServerConfig>>),
    Device {
        tls: Arc<ServerConfig>,
        identity: Arc<Identity>,
        clock: Clock,
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

/// Where a request comes from.
pub(crate) struct Guest {
    pub(crate) arrival: Arrival,
    pub(crate) address: SocketAddr,
    pub(crate) caller: Option<Caller>,
    pub(crate) seat: Option<Seat>,
}

/// What is kept for a caller while its connection lasts, so that no request has to look for it.
pub(crate) struct Seat {
    /// What it has used up of its rate.
    pub(crate) account: Arc<Account>,
    /// None for one that was not known when it came in.
    pub(crate) client: Option<Found>,
}

/// A wait for others.
pub(crate) type Calm = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is behind a door.
pub(crate) trait Inside: Send + Sync + 'static {
    fn answer(&self, guest: &Guest, request: http::Request<Incoming>) -> Reply;

    /// The answer to what needs no more than a look; asked first.
    fn glance(&self, _guest: &Guest, _request: &http::Request<Incoming>) -> Option<Reply> {
        None
    }

    /// The answer to everything while there is no place for more connections.
    fn turn_away(&self, request: &http::Request<Incoming>) -> Response;

    /// The guest's connection is to end after its request: what is only being held is to be answered now.
    fn ending(&self, _guest: &Guest) {}

    /// Everybody was asked to end: nothing is to be held any longer, also not for guests that are not known.
    fn over(&self) {}

    /// Ends when there is time for newcomers; soon, whatever happens.
    fn calm(&self) -> Calm {
        Box::pin(std::future::ready(()))
    }

    /// The answer to a request that does not say which host it is for.
    fn misaddressed(&self, request: &http::Request<Incoming>) -> Response;

    fn seat(&self, _caller: &Caller) -> Option<Seat> {
        None
    }
}

impl Inside for Router {
    fn answer(&self, guest: &Guest, mut request: http::Request<Incoming>) -> Reply {
        let extensions = request.extensions_mut();
        extensions.insert(guest.arrival);
        extensions.insert(ConnectInfo(guest.address));
        if let Some(caller) = &guest.caller {
            extensions.insert(caller.clone());
        }
        let answer = self.clone().oneshot(request);
        Reply::Later(Box::pin(async move {
            match answer.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        }))
    }

    fn turn_away(&self, request: &http::Request<Incoming>) -> Response {
        Problem::too_many_connections().at(request.uri().path()).into_response()
    }

    fn misaddressed(&self, request: &http::Request<Incoming>) -> Response {
        Problem::misaddressed().at(request.uri().path()).into_response()
    }
}

struct House {
    door: Door,
    inside: Box<dyn Inside>,
    limits: Limits,
    lobby: Arc<Lobby>,
    crowd: Arc<Crowd>,
}

impl House {
    /// Ends when another connection may be accepted.
    async fn room(&self) {
        self.lobby.ready(|| self.limits.sockets.saturating_sub(self.crowd.len())).await;
    }
}

/// Accepts connections until the server stops, then lets the open ones finish.
pub(crate) async fn serve(
    listener: TcpListener,
    door: Door,
    inside: impl Inside,
    limits: Limits,
    stopping: Stopping,
) {
    let house = Arc::new(House {
        door,
        inside: Box::new(inside),
        limits,
        lobby: Lobby::new(limits.strangers, limits.stranger_time_min),
        crowd: Crowd::new(limits.connections),
    });
    let arrival = house.door.arrival();
    let mut connections = JoinSet::new();
    let mut stop = pin!(stopping.wait());
    let mut watch = pin!(watch_bundle(&house));
    let mut look = pin!(look_after(&house));
    loop {
        let next = async {
            house.room().await;
            listener.accept().await
        };
        let accepted = tokio::select! {
            next = next => next,
            () = &mut stop => break,
            never = &mut watch => match never {},
            never = &mut look => match never {},
        };
        while let Some(ended) = connections.try_join_next() {
            report_panic(ended);
        }
        match accepted {
            Ok((stream, address)) => {
                connections.spawn(receive(Arc::clone(&house), stream, address));
            }
            Err(error) => {
                // Out of file descriptors: one that is not in yet makes room. Or the peer left before we looked.
                // Neither gets better by asking again at once.
                let made_room = house.lobby.give_way();
                tracing::warn!(listener = ?arrival, made_room, error = &error as &dyn std::error::Error, "accept failed");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    // In this order, so that whoever held a poll hears with its answer that the connection ends.
    house.crowd.end_all();
    house.inside.over();
    while house.lobby.give_way() {}
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            report_panic(ended);
        }
    };
    if timeout(limits.drain, all_ended).await.is_err() {
        tracing::info!(listener = ?arrival, left = connections.len(), "connections did not end in time");
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

/// Ends connections when their time has come.
async fn look_after(house: &House) -> std::convert::Infallible {
    let quiet_time = house.limits.quiet_time;
    loop {
        sleep(LOOK_EVERY.min(quiet_time)).await;
        house.crowd.look_after(quiet_time);
    }
}

/// Ends open connections whose chain does not hold against a new bundle (ID-113).
async fn watch_bundle(house: &House) -> std::convert::Infallible {
    let Door::Device { identity, clock, .. } = &house.door else { return std::future::pending().await };
    let replaced = Arc::new(Notify::new());
    let tell = Arc::clone(&replaced);
    identity.bundle.on_replace(move || tell.notify_one());
    loop {
        replaced.notified().await;
        let ended = house
            .crowd
            .end_unless(|client, chain| match identity.recognise(chain, clock.now()) {
                Ok(_) => true,
                Err(refusal) => {
                    tracing::info!(
                        %client,
                        reason = refusal.code(),
                        "an open connection does not hold against the new trust bundle"
                    );
                    false
                }
            })
            .await;
        tracing::info!(ended, open = house.crowd.len(), "open connections were verified again");
    }
}

/// Takes one connection from its first byte to its last.
///
/// A future keeps the place of everything that ever went through it, for as long as it lasts, and a place in a task is
/// dearer than one in a box. So all of a connection's life is in one box, the conversation where the handshake was, and
/// what goes from the one to the other goes through no `await`.
async fn receive(house: Arc<House>, stream: TcpStream, address: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%address, error = &error as &dyn std::error::Error, "the connection was gone at once");
        return;
    }
    let tls = match &house.door {
        Door::Web(tls) | Door::Device { tls, .. } => tls,
        Door::Signed(Some(tls)) => tls,
        Door::Local | Door::Signed(None) => {
            let conversation = converse(&house, stream, address, None, house.lobby.enter().0).map(Box::pin);
            return if let Some(conversation) = conversation {
                conversation.await
            };
        }
    };
    in_one_place(shake_hands(&house, tls, stream, address), |shaken| shaken.go_on(&house, address)).await;
}

/// `first`, and then in the same box what `second` makes of its outcome.
fn in_one_place<A, B, T>(first: A, second: impl Fn(T) -> Option<B> + Unpin) -> impl Future<Output = ()>
where
    A: Future<Output = Option<T>>,
    B: Future<Output = ()>,
{
    let mut place = Box::pin(Either::<A, B>::Left(first));
    poll_fn(move |context| {
        loop {
            let outcome = match place.as_mut().as_pin_mut() {
                Either::Left(first) => ready!(first.poll(context)),
                Either::Right(second) => return second.poll(context),
            };
            let Some(next) = outcome.and_then(&second) else { return Poll::Ready(()) };
            place.as_mut().set(Either::Right(next));
        }
    })
}

/// A handshake that came about.
struct Shaken {
    stream: TlsStream<Metered>,
    /// What the connection goes on with, where it may be resumed.
    session: Option<Session>,
    place: Place,
}

impl Shaken {
    /// The rest of the connection, if it may go on.
    fn go_on(
        self,
        house: &Arc<House>,
        address: SocketAddr,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let Shaken { stream, session, place } = self;
        let admitted = match &house.door {
            Door::Device { identity, clock, .. } => {
                Some(recognise(identity, clock, &stream, session, address)?)
            }
            Door::Local | Door::Web(_) | Door::Signed(_) => None,
        };
        converse(house, stream, address, admitted, place)
    }
}

/// Nothing if the handshake did not come about.
async fn shake_hands(
    house: &House,
    tls: &Arc<ServerConfig>,
    stream: TcpStream,
    address: SocketAddr,
) -> Option<Shaken> {
    let (mut place, left) = house.lobby.enter();
    let mut session = None;
    let begin = |connection: &mut rustls::ServerConnection| {
        if let Door::Device { identity, .. } = &house.door {
            session = Some(begin_session(connection, &identity.bundle));
        }
    };
    let shake = timeout(house.limits.handshake_time, async {
        house.inside.calm().await;
        place.shake_hands(tls, stream, begin).await
    });
    let shaken = tokio::select! {
        biased;
        shaken = shake => shaken,
        _ = left => Ok(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "others needed the place"))),
    };
    let arrival = house.door.arrival();
    match shaken {
        Ok(Ok(stream)) => Some(Shaken { stream, session, place }),
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

/// A client that may come in, and until when it may stay.
struct Admitted {
    known: Known,
    /// Of the full handshake behind the connection.
    age: Duration,
    valid: Duration,
    /// Of the bundle that it was verified against.
    generation: u64,
}

/// Who it is that has shaken hands. Asked of every connection, and of a resumed one for the first time (ID-067).
fn recognise(
    identity: &Identity,
    clock: &Clock,
    stream: &TlsStream<Metered>,
    session: Option<Session>,
    address: SocketAddr,
) -> Option<Admitted> {
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let session = session?;
    let now = clock.now();
    let generation = identity.bundle.generation();
    match identity.recognise(chain, now) {
        Ok(peer) => Some(Admitted {
            known: Known { client: peer.name.client.clone(), chain: chain.into() },
            age: session.age,
            generation,
            valid: peer.not_after.since(now),
        }),
        Err(refusal) => {
            tracing::warn!(
                %address,
                reason = refusal.code(),
                refusal = &refusal as &dyn std::error::Error,
                "a client was refused after its handshake"
            );
            None
        }
    }
}

/// What is left of a connection once it is known who is there: serves its requests until it ends.
fn converse<S>(
    house: &Arc<House>,
    stream: S,
    address: SocketAddr,
    admitted: Option<Admitted>,
    place: Place,
) -> Option<impl Future<Output = ()> + Send + use<S>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &house.limits;
    let arrival = house.door.arrival();
    let age = limits.age.map(|age| {
        spread(age).saturating_sub(admitted.as_ref().map_or(Duration::ZERO, |admitted| admitted.age))
    });
    let valid = admitted.as_ref().map(|admitted| admitted.valid);
    let lifetime = [age, valid].into_iter().flatten().min();
    let generation = admitted.as_ref().map(|admitted| admitted.generation);
    let known = admitted.map(|admitted| admitted.known);
    let chain = known.as_ref().map(|known| Arc::clone(&known.chain));
    let caller = known.as_ref().map(|known| Caller(known.client.clone()));
    let line = Line::new(lifetime);
    let Some(presence) = house.crowd.enter(known, &line) else {
        tracing::warn!(listener = ?arrival, max = limits.connections, "no place for more connections");
        return Some(Either::Right(turn_away(Arc::clone(house), stream, place)));
    };
    drop(place);
    // Whoever came in while the bundle was replaced was perhaps missed by those who looked at everybody (ID-113).
    if let (Door::Device { identity, clock, .. }, Some(chain)) = (&house.door, chain)
        && generation != Some(identity.bundle.generation())
        && identity.recognise(&chain, clock.now()).is_err()
    {
        return None;
    }
    let seat = caller.as_ref().and_then(|caller| house.inside.seat(caller));
    let guest = Guest { arrival, address, caller, seat };
    tracing::debug!(listener = ?arrival, %address, open = house.crowd.len(), "connection opened");
    Some(Either::Left(exchange(Arc::clone(house), stream, guest, line, presence)))
}

/// The requests of one connection, one after the other.
async fn exchange<S>(house: Arc<House>, stream: S, guest: Guest, line: Arc<Line>, presence: Presence)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (inside, guest) = (&house.inside, &guest);
    let service = service_fn(|request: http::Request<Incoming>| {
        let misaddressed = !answer::names_its_host(&request);
        let glance = |request: &http::Request<Incoming>| match misaddressed {
            true => Some(answer::last(inside.misaddressed(request))),
            false => inside.glance(guest, request),
        };
        Answering::new(line.beat(), request, glance, |request| inside.answer(guest, request))
    });
    let stream = TokioIo::new(Paced::new(stream, WRITE_STALL_MAX));
    let mut connection = pin!(builder().serve_connection(stream, service));
    let mut is_ending = false;
    let ended = poll_fn(|context| {
        loop {
            // In the middle of an answer, first, so that the answer says that it is the last. Otherwise afterwards:
            // a request that is here already is answered.
            let mut end = line.is_busy() && line.stage() == Stage::Ending && !is_ending;
            if !end {
                if let Poll::Ready(result) = connection.as_mut().poll(context) {
                    return Poll::Ready(result);
                }
                match line.watched(context) {
                    Stage::Over => return Poll::Ready(Ok(())),
                    stage => end = stage == Stage::Ending && !is_ending,
                }
            }
            if !end {
                return Poll::Pending;
            }
            is_ending = true;
            connection.as_mut().graceful_shutdown();
            inside.ending(guest);
        }
    });
    let Guest { arrival, address, .. } = guest;
    match ended.await {
        Ok(()) => tracing::debug!(listener = ?arrival, %address, "connection closed"),
        Err(error) => {
            tracing::debug!(listener = ?arrival, %address, error = &error as &dyn std::error::Error, "connection ended");
        }
    }
    drop(presence);
}

/// Answers one request with when to come back. Whoever gets it is still among the strangers, so that there is a bound
/// for these as well.
async fn turn_away<S>(house: Arc<House>, stream: S, _place: Place)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let deadline = Instant::now() + house.limits.handshake_time;
    let line = Line::new(None);
    let inside = &house.inside;
    let service = service_fn(|request: http::Request<Incoming>| {
        Answering::new(line.beat(), request, |_| None, |request| Reply::Now(inside.turn_away(&request)))
    });
    let stream = TokioIo::new(Paced::new(stream, WRITE_STALL_MAX));
    let turned = timeout_at(deadline, builder().keep_alive(false).serve_connection(stream, service)).await;
    if let Ok(Err(error)) = turned {
        tracing::debug!(error = &error as &dyn std::error::Error, "connection ended");
    }
}

fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_header_size(HEADER_BYTES_MAX).max_buf_size(HEADER_BYTES_MAX.max(64 * 1024));
    builder
}

/// Between three quarters and all of `full`: connections that began together must not end together.
fn spread(full: Duration) -> Duration {
    full.mul_f64(0.75 + 0.25 * crate::tasks::chance())
}
