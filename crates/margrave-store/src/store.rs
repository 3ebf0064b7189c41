//! The handle that everything goes through: one writer, a few readers, one directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use margrave_core::deployment::Defaults;
use rusqlite::Connection;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use crate::begun::Begun;
use crate::connection;
use crate::error::{Error, OpenError};
use crate::event::Event;
use crate::histogram::Distribution;
use crate::sql::Sql;
use crate::writer::{Tx, Writer};

/// More readers than cores only wait for one another.
const READERS: usize = 4;
/// Of these, as many may serve devices: thousands of them that fetch at once must not keep operators waiting.
const READERS_FOR_DEVICES: usize = READERS - 1;

#[derive(Debug, Clone)]
pub struct Options {
    /// How many writes may wait; beyond that callers hear [`Error::Overloaded`].
    pub queue_length: usize,
    /// The database may not grow beyond so many pages of 4 KiB; no limit when absent.
    pub page_count_max: Option<u32>,
    /// Whoever writes does so itself, and shares no commit: for worlds of one thread, where handing over costs more than writing.
    pub in_place: bool,
}

impl Default for Options {
    fn default() -> Self {
        // A burst of a whole fleet's reports: some 10 MB of memory, drained in less than a second.
        Options { queue_length: 8192, page_count_max: None, in_place: false }
    }
}

/// How much the database has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreLoad {
    /// Writes that wait for their commit.
    pub waiting: usize,
    /// How long commits took since it was opened.
    pub commits: Distribution,
}

/// The server's memory; cheap to clone. The last handle to go waits for queued writes.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    // Dropped in this order: the writer finishes before others may open the directory.
    writer: Writer,
    readers: Mutex<Vec<Connection>>,
    turns: Semaphore,
    device_turns: Semaphore,
    directory: PathBuf,
    _lock: File,
}

impl Inner {
    fn read<T>(&self, work: impl FnOnce(&Sql<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connection::reading(&self.directory)?,
        };
        let result = (|| {
            let sql = Sql::new(&connection);
            sql.statement("BEGIN")?.execute([])?;
            let result = work(&sql);
            sql.statement("COMMIT")?.execute([])?;
            result
        })();
        if connection.is_autocommit() {
            self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        result
    }
}

impl Store {
    /// Opens the database in `directory`, makes it if there is none, and brings its schema up to date.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(directory, Options::default())
    }

    pub fn open_with(directory: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let directory = directory.as_ref().to_owned();
        let lock = connection::lock(&directory)?;
        let writer = Writer::start(directory.clone(), &options)?;
        let inner = Inner {
            writer,
            readers: Mutex::default(),
            turns: Semaphore::new(READERS),
            device_turns: Semaphore::new(READERS_FOR_DEVICES),
            directory,
            _lock: lock,
        };
        Ok(Store { inner: Arc::new(inner) })
    }

    /// Calls `listener` for every event once it is durable, in order. It runs on the writing thread: be brief.
    pub fn announce_to(&self, listener: impl Fn(&Event) + Send + 'static) {
        self.inner.writer.announce_to(Box::new(listener));
    }

    /// Does `work` in a transaction, and answers once it is durable. What it changes it changes on behalf of what this task
    /// does, and the same transaction keeps that ([`Begun`]).
    pub(crate) async fn write<T, E>(
        &self,
        mut work: impl FnMut(&Tx<'_, '_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let Some(begun) = Begun::present() else { return self.inner.writer.write(work).await };
        let on_behalf = move |tx: &Tx<'_, '_>| {
            let changes = tx.sql.total_changes();
            let done = work(tx)?;
            if tx.sql.total_changes() != changes {
                begun.keep(tx.sql)?;
            }
            Ok(done)
        };
        self.inner.writer.write(on_behalf).await
    }

    /// As [`Store::write`], for what is nobody's change: that a token was used, or the log itself.
    pub(crate) async fn write_for_nobody<T, E>(
        &self,
        work: impl FnMut(&Tx<'_, '_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.inner.writer.write(work).await
    }

    /// As [`Store::read`], for what whole fleets ask for at the same time.
    pub(crate) async fn read_for_device<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Sql<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let _turn = self.inner.device_turns.acquire().await.map_err(|_| Error::Closed)?;
        self.read(work).await
    }

    /// Reads from one consistent picture, off the async threads.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Sql<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let _turn = self.inner.turns.acquire().await.map_err(|_| Error::Closed)?;
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            // Whoever has one thread waits for the answer either way, and handing over twice costs as much as asking.
            return self.inner.read(work);
        }
        let inner = self.inner.clone();
        let reading = tokio::task::spawn_blocking(move || inner.read(work));
        reading.await.map_err(|_| Error::Closed)?
    }

    pub fn load(&self) -> StoreLoad {
        self.inner.writer.load()
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// Keeps a small value of the server's own under a name.
    pub async fn remember(&self, key: &str, value: Vec<u8>) -> Result<(), Error> {
        let key = key.to_owned();
        self.write(move |tx| {
            let sql =
                "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
            tx.sql.statement(sql)?.execute((&key, &value))?;
            Ok(())
        })
        .await
    }

    /// Forgets something only if it is still this.
    pub async fn forget_only(&self, key: &str, value: Vec<u8>) -> Result<(), Error> {
        let key = key.to_owned();
        self.write(move |tx| {
            tx.sql.statement("DELETE FROM meta WHERE key = ?1 AND value = ?2")?.execute((&key, &value))?;
            Ok(())
        })
        .await
    }

    /// The commit whose intent is applied.
    pub async fn head(&self) -> Result<Option<String>, Error> {
        let head = self.recall(crate::publication::HEAD).await?;
        head.map(String::from_utf8)
            .transpose()
            .map_err(|_| Error::Damaged { what: "the applied commit is no text" })
    }

    /// What counts for deployments that say nothing of it.
    pub async fn defaults(&self) -> Result<Defaults, Error> {
        let Some(text) = self.recall(crate::publication::DEFAULTS).await? else {
            return Ok(Defaults::default());
        };
        serde_json::from_slice(&text)
            .map_err(|_| Error::Damaged { what: "the defaults of deployments cannot be read" })
    }

    /// No commit is applied any more: the repository that had it is gone.
    pub async fn forget_head(&self) -> Result<(), Error> {
        self.write(|tx| {
            tx.sql.statement("DELETE FROM meta WHERE key = ?1")?.execute([crate::publication::HEAD])?;
            Ok(())
        })
        .await
    }

    pub async fn recall(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        use rusqlite::OptionalExtension as _;
        let key = key.to_owned();
        self.read(move |sql| {
            let mut statement = sql.statement("SELECT value FROM meta WHERE key = ?1")?;
            Ok(statement.query_row([&key], |row| row.get(0)).optional()?)
        })
        .await
    }
}
