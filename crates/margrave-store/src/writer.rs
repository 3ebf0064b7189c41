//! One thread writes, and many callers share one commit.
//!
//! A durable commit costs one wait for the disk, whatever it contains. So whatever has queued up while the
//! last commit ran goes into the next one together. One that is refused does not undo the others: as a rule it is
//! refused before it wrote anything, and otherwise all are done again, each in a savepoint of its own (which costs
//! as much as a small piece of work, so not from the start). A caller is answered after the commit that holds its
//! work, never before.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{mpsc as queue, oneshot};

use crate::error::{Error, OpenError};
use crate::event::Event;
use crate::histogram::Histogram;
use crate::sql::Sql;
use crate::store::{Options, StoreLoad};
use crate::{connection, event};

/// At 20 µs of work each this keeps a commit below some ten milliseconds, and the wait for the disk is long paid off.
const BATCH_MAX: usize = 512;
/// A commit that takes longer is worth a line for whoever looks for the reason.
const SLOW: Duration = Duration::from_millis(50);
/// Pages that a commit may add before a checkpoint is worth it (about 4 MB).
const COMMITS_PER_CHECKPOINT: u32 = 200;
const CHECKPOINT_EVERY: Duration = Duration::from_secs(2);
/// Under writes without a pause a passive checkpoint never catches up; beyond this (128 MB) the writer stops once and
/// lets it.
const LOG_PAGES_MAX: i64 = 32 * 1024;
/// The writer must not stop for long, so before it does, checkpoints follow each other until so little is left, each
/// having less to do than the one before.
const LEFT_PAGES_MAX: i64 = 256;
const CHECKPOINTS_IN_A_ROW_MAX: usize = 8;
/// As long as SQLite lets it grow by itself.
const PAGES_IN_PLACE: i64 = 1000;
/// How long writers wait for those who read from the log.
const READERS_WAIT_MAX: Duration = Duration::from_millis(20);

/// One piece of work inside a transaction.
pub(crate) struct Tx<'a, 'c> {
    pub(crate) sql: &'a Sql<'c>,
    noted: RefCell<Vec<Event>>,
}

impl Tx<'_, '_> {
    /// Writes an event in this transaction and announces it once that is durable.
    pub(crate) fn note(&self, event: event::NewEvent) -> rusqlite::Result<()> {
        let event = event::append(self.sql, event)?;
        self.noted.borrow_mut().push(event);
        Ok(())
    }
}

type Listener = Box<dyn Fn(&Event) + Send>;

/// The queue in front of the writing thread.
pub(crate) struct Writer {
    way: Way,
    listener: Arc<Mutex<Option<Listener>>>,
    commits: Arc<Histogram>,
}

/// Who writes.
enum Way {
    Thread {
        queue: Option<queue::Sender<Box<dyn Job>>>,
        thread: Option<JoinHandle<()>>,
        checkpoints: Option<JoinHandle<()>>,
    },
    /// Whoever asks, one after the other; SQLite itself keeps the log short.
    Here(Mutex<Connection>),
}

impl Writer {
    pub(crate) fn start(directory: PathBuf, options: &Options) -> Result<Self, OpenError> {
        let &Options { queue_length, page_count_max, in_place } = options;
        let connection = connection::writing(&directory, page_count_max)?;
        if in_place {
            let keeps_short = format!("PRAGMA wal_autocheckpoint = {PAGES_IN_PLACE}");
            connection.query_row(&keeps_short, [], |_| Ok(())).map_err(OpenError::Sqlite)?;
            return Ok(Writer {
                way: Way::Here(Mutex::new(connection)),
                listener: Arc::default(),
                commits: Arc::default(),
            });
        }
        let checkpointing = connection::checkpointing(&directory).map_err(OpenError::Sqlite)?;
        let (sender, receiver) = queue::channel(queue_length);
        let listener = Arc::new(Mutex::new(None));
        let commits = Arc::new(Histogram::default());
        let log_full = Arc::new(AtomicBool::new(false));
        let (nudge, nudged) = mpsc::sync_channel(1);
        let thread = {
            let (listener, log_full, commits) = (listener.clone(), log_full.clone(), commits.clone());
            thread::Builder::new()
                .name("store-writer".into())
                .spawn(move || write(connection, receiver, &listener, &nudge, &log_full, &commits))
                .map_err(OpenError::Thread)?
        };
        let checkpoints = thread::Builder::new()
            .name("store-checkpoint".into())
            .spawn(move || checkpoint(&checkpointing, &nudged, &log_full))
            .map_err(OpenError::Thread)?;
        let way = Way::Thread { queue: Some(sender), thread: Some(thread), checkpoints: Some(checkpoints) };
        Ok(Writer { way, listener, commits })
    }

    pub(crate) fn announce_to(&self, listener: Listener) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    pub(crate) fn load(&self) -> StoreLoad {
        let queue = match &self.way {
            Way::Thread { queue, .. } => queue.as_ref(),
            Way::Here(_) => None,
        };
        let waiting = queue.map_or(0, |queue| queue.max_capacity() - queue.capacity());
        StoreLoad { waiting, commits: self.commits.distribution() }
    }

    /// Does `work` in a transaction and answers once it is durable. Work may be attempted twice (never
    /// committed twice), so it must only depend on what it captured.
    pub(crate) async fn write<T, E>(
        &self,
        work: impl FnMut(&Tx<'_, '_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: Box<dyn Job> = Box::new(Pending { work, outcome: None, reply });
        match &self.way {
            Way::Thread { queue, .. } => {
                let queue = queue.as_ref().ok_or(Error::Closed)?;
                queue.try_send(job).map_err(|refused| match refused {
                    queue::error::TrySendError::Full(_) => Error::Overloaded,
                    queue::error::TrySendError::Closed(_) => Error::Closed,
                })?;
            }
            Way::Here(connection) => {
                let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
                commit_and_answer(&Sql::new(&connection), vec![job], &self.listener, &self.commits);
            }
        }
        answer.await.map_err(|_| Error::Closed)?
    }
}

impl Drop for Writer {
    /// Waits for what is queued: whoever drops the store and opens it again sees everything.
    fn drop(&mut self) {
        let (queue, thread, checkpoints) = match &mut self.way {
            Way::Thread { queue, thread, checkpoints } => (queue, thread, checkpoints),
            Way::Here(connection) => {
                return empty_log(connection.get_mut().unwrap_or_else(PoisonError::into_inner));
            }
        };
        *queue = None;
        for thread in [thread.take(), checkpoints.take()].into_iter().flatten() {
            if thread.join().is_err() {
                tracing::error!("a thread of the store had panicked");
            }
        }
    }
}

trait Job: Send {
    /// `false` when the work was refused and must be undone.
    fn attempt(&mut self, tx: &Tx<'_, '_>) -> bool;
    /// The work itself was fine, but it could not be made durable.
    fn fail(&mut self, error: Error);
    fn answer(self: Box<Self>);
}

struct Pending<T, E, F> {
    work: F,
    outcome: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<T, E, F> Job for Pending<T, E, F>
where
    T: Send,
    E: From<Error> + Send,
    F: FnMut(&Tx<'_, '_>) -> Result<T, E> + Send,
{
    fn attempt(&mut self, tx: &Tx<'_, '_>) -> bool {
        let outcome = (self.work)(tx);
        let kept = outcome.is_ok();
        self.outcome = Some(outcome);
        kept
    }

    fn fail(&mut self, error: Error) {
        if !matches!(self.outcome, Some(Err(_))) {
            self.outcome = Some(Err(error.into()));
        }
    }

    fn answer(self: Box<Self>) {
        // A caller that went away needs no answer; its work is durable all the same.
        if let Some(outcome) = self.outcome {
            drop(self.reply.send(outcome));
        }
    }
}

fn write(
    connection: Connection,
    mut receiver: queue::Receiver<Box<dyn Job>>,
    listener: &Mutex<Option<Listener>>,
    nudge: &mpsc::SyncSender<()>,
    log_full: &AtomicBool,
    durations: &Histogram,
) {
    let connection = Sql::new(&connection);
    let mut commits = 0;
    while let Some(first) = receiver.blocking_recv() {
        let mut batch = vec![first];
        while batch.len() < BATCH_MAX {
            match receiver.try_recv() {
                Ok(job) => batch.push(job),
                Err(_) => break,
            }
        }
        commit_and_answer(&connection, batch, listener, durations);

        commits += 1;
        if commits >= COMMITS_PER_CHECKPOINT {
            commits = 0;
            let _wanted_already = nudge.try_send(());
        }
        if log_full.load(Ordering::Relaxed) {
            let began = Instant::now();
            match begin_anew(&connection) {
                Ok(true) => tracing::debug!(took = ?began.elapsed(), "the log begins anew"),
                Ok(false) => {
                    tracing::debug!("somebody still reads from the log; it begins anew another time")
                }
                Err(error) => {
                    tracing::warn!(%error, "the log could not be brought into the database; will try again");
                }
            }
            log_full.store(false, Ordering::Relaxed);
        }
    }
    empty_log(&connection);
}

/// The last thing that is done.
fn empty_log(connection: &Connection) {
    if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
        tracing::warn!(%error, "the log could not be brought into the database; the next start will do it");
    }
}

fn commit_and_answer(
    connection: &Sql<'_>,
    mut batch: Vec<Box<dyn Job>>,
    listener: &Mutex<Option<Listener>>,
    durations: &Histogram,
) {
    let began = Instant::now();
    let events = commit(connection, &mut batch);
    let took = began.elapsed();
    durations.observe(took);
    if took >= SLOW {
        tracing::debug!(pieces = batch.len(), ?took, "a commit took long");
    }
    if let Some(listener) = listener.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        events.iter().for_each(listener);
    }
    batch.into_iter().for_each(Job::answer);
}

/// Lets the log begin anew, unless somebody reads from it for longer than others can be kept waiting for.
fn begin_anew(connection: &Sql<'_>) -> rusqlite::Result<bool> {
    connection.busy_timeout(READERS_WAIT_MAX)?;
    let blocked = connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get::<_, bool>(0));
    connection.busy_timeout(connection::BUSY_WAIT_MAX)?;
    blocked.map(|blocked| !blocked)
}

/// Makes the whole batch durable, or, if that fails, each piece alone: one piece that is too large for the
/// disk must not take others with it.
fn commit(connection: &Sql<'_>, batch: &mut [Box<dyn Job>]) -> Vec<Event> {
    let together = commit_together(connection, batch, Undo::Nothing)
        .or_else(|_| commit_together(connection, batch, Undo::Piece));
    match together {
        Ok(events) => events,
        Err(failed) if batch.len() == 1 => {
            batch[0].fail(failed.into());
            Vec::new()
        }
        Err(_) => {
            let mut events = Vec::new();
            for job in batch {
                match commit_together(connection, std::slice::from_mut(job), Undo::Piece) {
                    Ok(more) => events.extend(more),
                    Err(failed) => job.fail(failed.into()),
                }
            }
            events
        }
    }
}

/// What can be undone within a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undo {
    Nothing,
    Piece,
}

/// Why a batch is not durable.
#[derive(Debug, thiserror::Error)]
enum CommitError {
    #[error("a piece of work was refused after it had written")]
    HalfDone,
    #[error("the database refused")]
    Database(#[from] rusqlite::Error),
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Database(error) => error.into(),
            // Only what can be undone is tried last.
            CommitError::HalfDone => Error::Damaged { what: "a piece of work could not be undone" },
        }
    }
}

fn commit_together(
    connection: &Sql<'_>,
    batch: &mut [Box<dyn Job>],
    undo: Undo,
) -> Result<Vec<Event>, CommitError> {
    let committed = (|| {
        let mut events = Vec::new();
        connection.statement("BEGIN IMMEDIATE")?.execute([])?;
        for job in batch {
            if undo == Undo::Piece {
                connection.statement("SAVEPOINT piece")?.execute([])?;
            }
            let changes = connection.total_changes();
            let tx = Tx { sql: connection, noted: RefCell::default() };
            if job.attempt(&tx) {
                events.append(&mut tx.noted.into_inner());
            } else if undo == Undo::Piece {
                // A full disk or a broken one makes SQLite undo the whole transaction; this then fails too.
                connection.statement("ROLLBACK TO piece")?.execute([])?;
            } else if connection.is_autocommit() || connection.total_changes() != changes {
                return Err(CommitError::HalfDone);
            }
            if undo == Undo::Piece {
                connection.statement("RELEASE piece")?.execute([])?;
            }
        }
        if !events.is_empty() {
            event::forget_oldest(connection)?;
        }
        connection.statement("COMMIT")?.execute([])?;
        Ok(events)
    })();
    if committed.is_err()
        && !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "a transaction could not be rolled back");
    }
    committed
}

/// Moves the log into the database file beside the writer, now and then.
fn checkpoint(connection: &Connection, nudged: &mpsc::Receiver<()>, log_full: &AtomicBool) {
    loop {
        match nudged.recv_timeout(CHECKPOINT_EVERY) {
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Ok(()) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        // Two at once would wait for each other.
        if log_full.load(Ordering::Relaxed) {
            continue;
        }
        match catch_up(connection) {
            Ok(pages) => log_full.store(pages > LOG_PAGES_MAX, Ordering::Relaxed),
            Err(error) => {
                tracing::warn!(%error, "the log could not be brought into the database; will try again")
            }
        }
    }
}

/// Moves the log into the database file; how long it is. Where it has grown too long, does so again until hardly
/// anything was added while the last one ran.
fn catch_up(connection: &Connection) -> rusqlite::Result<i64> {
    let mut length = 0;
    for _ in 0..CHECKPOINTS_IN_A_ROW_MAX {
        let before = length;
        length = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1))?;
        if length <= LOG_PAGES_MAX || length - before <= LEFT_PAGES_MAX {
            break;
        }
    }
    Ok(length)
}
