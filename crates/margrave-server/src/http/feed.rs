//! Events, from where a reader left off and then as they happen; and that the audit log has grown.
//!
//! Shared by the operator interface and the pages, which frame them differently. The store is the truth and
//! the live channel only quickens it: whoever missed something, however it came about, reads it from the store.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use margrave_wire::operator::Event;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::Stopping;
use crate::fleet::{Error, Fleet};

/// Streams per listener. Each costs a connection and a few kilobytes; a wallboard needs one.
const STREAMS_MAX: usize = 256;
/// A stream ends after this time and its reader comes back where it left off, so that a session that was
/// ended, or a token that was withdrawn, is noticed.
const STREAM_AGE_MAX: Duration = Duration::from_secs(15 * 60);
/// Events read from the store at a time.
const READ_MAX: usize = 500;
/// Sent when nothing else was, so that proxies keep the connection and readers notice when it is gone.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Clone)]
pub(crate) struct Feed {
    fleet: Arc<Fleet>,
    stopping: Stopping,
    places: Arc<Semaphore>,
}

impl Feed {
    pub(crate) fn new(fleet: Arc<Fleet>, stopping: Stopping) -> Self {
        Feed { fleet, stopping, places: Arc::new(Semaphore::new(STREAMS_MAX)) }
    }

    /// A place to follow the fleet from, or `None` when all are taken. Without `after` it begins now.
    pub(crate) fn follow(&self, after: Option<u64>) -> Option<Follower> {
        Some(Follower {
            place: self.place()?,
            // Subscribed before anything is read, so that nothing falls in between.
            live: self.fleet.subscribe(),
            fleet: self.fleet.clone(),
            behind: after.is_some(),
            seen: after,
        })
    }

    /// A place to follow the audit log from, or `None` when all are taken. Without `after` it begins now.
    pub(crate) fn follow_audit(&self, after: Option<u64>) -> Option<AuditFollower> {
        Some(AuditFollower {
            place: self.place()?,
            grown: self.fleet.audit_grown(),
            fleet: self.fleet.clone(),
            seen: after,
        })
    }

    fn place(&self) -> Option<Place> {
        let taken = self.places.clone().try_acquire_owned().ok()?;
        Some(Place { stopping: self.stopping.clone(), ends: Instant::now() + STREAM_AGE_MAX, _taken: taken })
    }
}

/// One of the places of a listener, for as long as its reader has it.
struct Place {
    stopping: Stopping,
    ends: Instant,
    _taken: OwnedSemaphorePermit,
}

impl Place {
    /// Ends when the stream has to.
    async fn over(&self) {
        tokio::select! {
            () = self.stopping.wait() => {}
            () = tokio::time::sleep_until(self.ends) => {}
        }
    }
}

/// One reader's place in the events.
pub(crate) struct Follower {
    fleet: Arc<Fleet>,
    live: Receiver<Arc<Event>>,
    /// The last event given out.
    seen: Option<u64>,
    /// Whether the store may hold events that were not given out yet.
    behind: bool,
    place: Place,
}

impl Follower {
    /// The next events, in order and without gaps; `None` when the stream is over. None at all where everything may be other than
    /// the reader knows, because the events that it saw are none of this server's.
    pub(crate) async fn next(&mut self) -> Option<Vec<Arc<Event>>> {
        loop {
            if self.behind {
                match self.read().await {
                    Ok(events) if events.is_empty() => {
                        self.behind = false;
                        match self.is_ahead().await {
                            Ok(false) => {}
                            Ok(true) => return Some(Vec::new()),
                            Err(error) => {
                                tracing::warn!(%error, "an event stream ends early");
                                return None;
                            }
                        }
                    }
                    Ok(events) => return Some(events),
                    Err(error) => {
                        // The reader comes back by itself, after what it has seen.
                        tracing::warn!(%error, "an event stream ends early");
                        return None;
                    }
                }
            }
            let received = tokio::select! {
                () = self.place.over() => return None,
                received = self.live.recv() => received,
            };
            match received {
                Ok(event) => match self.seen {
                    Some(seen) if event.sequence <= seen => {}
                    Some(seen) if event.sequence > seen + 1 => self.behind = true,
                    _ => {
                        self.seen = Some(event.sequence);
                        let mut events = vec![event];
                        self.drain(&mut events);
                        return Some(events);
                    }
                },
                Err(RecvError::Lagged(_)) => self.behind = self.seen.is_some(),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Adds what has come meanwhile, for as long as nothing is missing in between.
    fn drain(&mut self, events: &mut Vec<Arc<Event>>) {
        while events.len() < READ_MAX && !self.behind {
            match self.live.try_recv() {
                Ok(event) if self.seen.is_some_and(|seen| event.sequence == seen + 1) => {
                    self.seen = Some(event.sequence);
                    events.push(event);
                }
                Ok(event) => self.behind = self.seen.is_some_and(|seen| event.sequence > seen + 1),
                Err(TryRecvError::Lagged(_)) => self.behind = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    /// Whether the reader saw more than there is: the server was restored from a backup since, and counts from there. It goes on
    /// with what is newest now.
    async fn is_ahead(&mut self) -> Result<bool, Error> {
        let newest = self.fleet.recent_events(1).await?.first().map_or(0, |event| event.sequence);
        let is_ahead = self.seen.is_some_and(|seen| seen > newest);
        if is_ahead {
            self.seen = Some(newest);
        }
        Ok(is_ahead)
    }

    /// The number of the last event that was given out.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.unwrap_or(0)
    }

    async fn read(&mut self) -> Result<Vec<Arc<Event>>, Error> {
        let Some(seen) = self.seen else { return Ok(Vec::new()) };
        let events = self.fleet.events(seen, READ_MAX).await?;
        if let Some(last) = events.last() {
            self.seen = Some(last.sequence);
        }
        Ok(events.into_iter().map(Arc::new).collect())
    }

    pub(crate) fn into_stream(self) -> impl Stream<Item = Vec<Arc<Event>>> {
        stream::unfold(self, |mut follower| async move { Some((follower.next().await?, follower)) })
    }
}

/// One reader's place in the audit log. It is told the newest entry's number and none of the entries: however many there were
/// since it last looked, they are one piece of news.
pub(crate) struct AuditFollower {
    fleet: Arc<Fleet>,
    grown: watch::Receiver<()>,
    /// The newest entry when it was last told.
    seen: Option<u64>,
    place: Place,
}

impl AuditFollower {
    /// The newest entry's number, once it is another than was told before; `None` when the stream is over.
    pub(crate) async fn next(&mut self) -> Option<u64> {
        loop {
            // What is kept while the log is read is seen in the next round.
            self.grown.mark_unchanged();
            let newest = match self.fleet.newest_audit().await {
                Ok(newest) => newest,
                Err(error) => {
                    // The reader comes back by itself, after what it has seen.
                    tracing::warn!(%error, "a stream of the audit log ends early");
                    return None;
                }
            };
            // A log that was restored from a backup may end earlier than before.
            if self.seen.replace(newest).is_some_and(|seen| seen != newest) {
                return Some(newest);
            }
            tokio::select! {
                () = self.place.over() => return None,
                // The sender is the fleet's own, and we hold the fleet.
                grown = self.grown.changed() => grown.ok()?,
            }
        }
    }
}
