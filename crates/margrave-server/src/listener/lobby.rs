//! Who is not in yet: handshakes that are going on.
//!
//! Strangers can hold a place here and nothing else, and not for long. Nothing is computed or allocated for who
//! says nothing. When all places are taken the oldest gives way, first among those who have not said anything
//! whole: a real device needs a fraction of a second, whoever is still here is slow or does not mean it. Who has been
//! here for less than a fleet that comes back at once may need is not sent away; newcomers wait instead. What a
//! handshake costs in time of a core is done in turns, so that a flood of them leaves cores for the connections that
//! are open; while many wait for their turn, no more are accepted and the kernel holds them. That wait ends by our
//! own work alone: nobody outside can prolong it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustls::server::Acceptor;
use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

/// What a peer may send before it is known. A certificate chain of four takes 5 kB; a ticket adds one.
const HANDSHAKE_BYTES_MAX: usize = 32 * 1024;
/// Handshakes that wait for their turn before no more are accepted: some seconds of work, and less than a peer has
/// patience for. Not fewer, because the kernel keeps 4,096 for us as a rule and drops what comes beyond.
const QUEUED_MAX: usize = 8_192;
/// How often to look for a place when all are taken.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) struct Lobby {
    places_max: usize,
    /// Who has been here for less does not give way.
    time_min: Duration,
    places: Mutex<Places>,
    turns: Semaphore,
    /// Handshakes that wait for their turn.
    queued: AtomicUsize,
    moved: Notify,
}

#[derive(Default)]
struct Places {
    next: u64,
    /// In the order in which they give way.
    taken: BTreeMap<(Stage, u64), Taken>,
}

struct Taken {
    since: Instant,
    leave: oneshot::Sender<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Has not sent a whole first message.
    Silent,
    Speaking,
}

/// One place in the lobby, given up when dropped.
pub(super) struct Place {
    lobby: Arc<Lobby>,
    stage: Stage,
    number: u64,
}

impl Lobby {
    /// All but one core may be busy with handshakes at a time.
    pub(super) fn new(places_max: usize, time_min: Duration) -> Arc<Lobby> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Lobby {
            places_max,
            time_min,
            places: Mutex::default(),
            turns: Semaphore::new(cores.saturating_sub(1).max(1)),
            queued: AtomicUsize::new(0),
            moved: Notify::new(),
        })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, and the signal that somebody else has it now.
    pub(super) fn enter(self: &Arc<Self>) -> (Place, oneshot::Receiver<()>) {
        let (leave, left) = oneshot::channel();
        let mut places = self.places();
        places.next += 1;
        let (stage, number) = (Stage::Silent, places.next);
        places.taken.insert((stage, number), Taken { since: Instant::now(), leave });
        (Place { lobby: Arc::clone(self), stage, number }, left)
    }

    /// Makes the oldest leave; false when nobody is here.
    pub(super) fn give_way(&self) -> bool {
        self.places().give_way()
    }

    /// Ends when another connection may be accepted. `room` is how many there may be here for now.
    pub(super) async fn ready(&self, room: impl Fn() -> usize) {
        loop {
            let moved = self.moved.notified();
            if self.queued.load(Ordering::Relaxed) >= QUEUED_MAX {
                moved.await;
                continue;
            }
            match self.make_place(self.places_max.min(room())) {
                None => return,
                // Somebody may leave by itself before.
                Some(pause) => drop(timeout(pause.min(LOOK_EVERY), moved).await),
            }
        }
    }

    /// Sees to it that one more than there are now is at most `max`; how long to wait if that cannot be yet.
    fn make_place(&self, max: usize) -> Option<Duration> {
        let mut places = self.places();
        while places.taken.len() >= max {
            let Some((_, oldest)) = places.taken.first_key_value() else { return Some(LOOK_EVERY) };
            let stayed = oldest.since.elapsed();
            if stayed < self.time_min {
                return Some(self.time_min - stayed);
            }
            places.give_way();
        }
        None
    }

    /// A turn to compute; held while computing and never while waiting for a peer.
    pub(super) async fn turn(&self) -> SemaphorePermit<'_> {
        if let Ok(turn) = self.turns.try_acquire() {
            return turn;
        }
        let _queued = Queued::in_front_of(self);
        self.turns.acquire().await.expect("nobody closes the semaphore")
    }
}

impl Places {
    fn give_way(&mut self) -> bool {
        match self.taken.pop_first() {
            Some((_, taken)) => {
                // An error means that it left by itself just now.
                taken.leave.send(()).unwrap_or_default();
                true
            }
            None => false,
        }
    }
}

struct Queued<'a>(&'a Lobby);

impl<'a> Queued<'a> {
    fn in_front_of(lobby: &'a Lobby) -> Self {
        lobby.queued.fetch_add(1, Ordering::Relaxed);
        Queued(lobby)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.0.queued.fetch_sub(1, Ordering::Relaxed) == QUEUED_MAX {
            self.0.moved.notify_one();
        }
    }
}

impl Place {
    /// Whoever sent a whole message gives way after those who have not.
    fn speaks(&mut self) {
        let mut places = self.lobby.places();
        if let Some(taken) = places.taken.remove(&(self.stage, self.number)) {
            self.stage = Stage::Speaking;
            places.taken.insert((self.stage, self.number), taken);
        }
    }

    /// Shakes hands. `begin` sees the connection once its first message is in.
    pub(super) async fn shake_hands(
        &mut self,
        tls: &Arc<ServerConfig>,
        stream: TcpStream,
        begin: impl FnOnce(&mut ServerConnection),
    ) -> io::Result<TlsStream<Metered>> {
        stream.readable().await?;
        let hello = LazyConfigAcceptor::new(Acceptor::default(), Metered::new(stream)).await?;
        self.speaks();
        let mut turn = self.lobby.turn().await;
        let mut shaking = Box::new(hello.into_stream_with(Arc::clone(tls), begin));
        loop {
            let step = poll_fn(|context| Poll::Ready(Pin::new(&mut *shaking).poll(context))).await;
            if let Poll::Ready(shaken) = step {
                let mut stream = shaken?;
                stream.get_mut().0.left = usize::MAX;
                return Ok(stream);
            }
            drop(turn);
            shaking.get_ref().ok_or(io::ErrorKind::NotConnected)?.progress().await?;
            turn = self.lobby.turn().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lobby.places().taken.remove(&(self.stage, self.number));
    }
}

/// A socket from which only so much is read until its peer is known.
pub(super) struct Metered {
    inner: TcpStream,
    left: usize,
    write_blocked: bool,
}

impl Metered {
    fn new(inner: TcpStream) -> Metered {
        Metered { inner, left: HANDSHAKE_BYTES_MAX, write_blocked: false }
    }

    /// Ends when there is something new to do with it.
    async fn progress(&self) -> io::Result<()> {
        if self.write_blocked { self.inner.writable().await } else { self.inner.readable().await }
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if self.left != usize::MAX {
            let count = buffer.filled().len() - before;
            match self.left.checked_sub(count) {
                Some(left) => self.left = left,
                None => {
                    let error = io::Error::new(io::ErrorKind::InvalidData, "the handshake is too long");
                    return Poll::Ready(Err(error));
                }
            }
        }
        read
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.write_blocked = written.is_pending();
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.write_blocked = written.is_pending();
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One more, where there are three places.
    fn come(lobby: &Arc<Lobby>) -> (Place, oneshot::Receiver<()>) {
        assert_eq!(lobby.make_place(3), None);
        lobby.enter()
    }

    #[test]
    fn the_oldest_gives_way_and_the_silent_before_all() {
        let lobby = Lobby::new(3, Duration::ZERO);
        let (mut first, mut first_left) = come(&lobby);
        first.speaks();
        let (_second, mut second_left) = come(&lobby);
        let (third, mut third_left) = come(&lobby);
        let (_fourth, mut fourth_left) = come(&lobby);
        assert!(second_left.try_recv().is_ok());
        assert!(first_left.try_recv().is_err() && third_left.try_recv().is_err());
        drop(third);
        let (_fifth, _) = come(&lobby);
        assert!(fourth_left.try_recv().is_err());
        let (_sixth, _) = come(&lobby);
        assert!(fourth_left.try_recv().is_ok());
        assert!(first_left.try_recv().is_err());
        while lobby.give_way() {}
        assert!(first_left.try_recv().is_ok());
        assert!(lobby.places().taken.is_empty());
    }

    #[test]
    fn who_has_just_come_does_not_give_way() {
        let lobby = Lobby::new(3, Duration::from_secs(3600));
        let mut here: Vec<_> = (0..3).map(|_| come(&lobby)).collect();
        assert!(lobby.make_place(3).is_some_and(|pause| pause > Duration::from_secs(3000)));
        assert!(here.iter_mut().all(|(_, left)| left.try_recv().is_err()));
        drop(here.pop());
        assert_eq!(lobby.make_place(3), None);
        // Without any room at all nobody is sent away for nothing.
        drop(here);
        assert_eq!(lobby.make_place(0), Some(LOOK_EVERY));
    }

    #[tokio::test]
    async fn nothing_is_accepted_while_many_wait_for_their_turn() {
        let lobby = Lobby::new(10, Duration::ZERO);
        lobby.ready(|| 10).await;
        let queued: Vec<_> = (0..QUEUED_MAX).map(|_| Queued::in_front_of(&lobby)).collect();
        let mut ready = Box::pin(lobby.ready(|| 10));
        let looked = poll_fn(|context| Poll::Ready(ready.as_mut().poll(context))).await;
        assert!(looked.is_pending());
        drop(queued);
        timeout(Duration::from_secs(20), ready).await.unwrap();
    }
}
