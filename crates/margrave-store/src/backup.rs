//! A copy of the whole database as it was at one moment, made while others write; and what a copy is worth.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::column::{self, Columns as _};
use crate::connection;
use crate::error::{Error, OpenError};

/// Pages between two looks at whether the copy goes on; about 16 MB.
const PAGES_PER_STEP: i32 = 4096;
/// Where it is written that this database was restored.
const RESTORED: &str = "restored";

/// Why there is no copy, or why one is worth nothing.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the copy of the database cannot be written; check that the disk has room for a second one")]
    File(#[source] io::Error),
    #[error("the database cannot be copied")]
    Sqlite(#[from] rusqlite::Error),
    #[error("the database cannot be opened")]
    Open(#[from] OpenError),
    #[error("the database is damaged: {0}")]
    Damaged(String),
    #[error(
        "the database has schema {found}, this program knows up to {known}; use the newer program that wrote it"
    )]
    Newer { found: u32, known: u32 },
}

/// From when the contents of a restored database are, and when they came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    pub made_at: Moment,
    pub restored_at: Moment,
}

/// The newest schema that this program knows.
pub fn schema_known() -> u32 {
    connection::schema_known()
}

/// Copies the database of a directory that no server has open; with its schema, which stays as it is.
pub fn copy_closed(directory: &Path, to: &Path) -> Result<u32, CopyError> {
    let _lock = connection::lock(directory)?;
    copy(directory, to)
}

/// One moment's picture, whatever is written meanwhile: the transaction that is read in stays open from the first page
/// to the last, and in it SQLite's own copying never has to begin anew.
fn copy(directory: &Path, to: &Path) -> Result<u32, CopyError> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(CopyError::File)?;
    let source = connection::reading(directory)?;
    let mut target = Connection::open(to)?;
    source.execute_batch("BEGIN")?;
    // The first look decides which moment is copied.
    source.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    let schema = source.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    Backup::new(&source, &mut target)?.run_to_completion(PAGES_PER_STEP, Duration::ZERO, None)?;
    source.execute_batch("COMMIT")?;
    // One file, without a log beside it.
    target.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    target.close().map_err(|(_, error)| error)?;
    Ok(schema)
}

/// Looks at every page and every reference of a copy; with its schema.
pub fn check_copy(file: &Path) -> Result<u32, CopyError> {
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let found = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = schema_known();
    if found > known {
        return Err(CopyError::Newer { found, known });
    }
    if found == 0 {
        return Err(CopyError::Damaged("it is not one of Margrave's".to_owned()));
    }
    let verdict: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(CopyError::Damaged(verdict));
    }
    if connection.prepare("PRAGMA foreign_key_check")?.exists([])? {
        return Err(CopyError::Damaged("something refers to what is not there".to_owned()));
    }
    Ok(found)
}

/// Writes into a copy that it was restored, and from when it is.
pub fn mark_restored(file: &Path, restored: Restored) -> Result<(), CopyError> {
    let connection = Connection::open(file)?;
    connection.execute(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2",
        (RESTORED, column::json(&restored).into_bytes()),
    )?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(())
}

impl Store {
    /// Copies the database as it is now, beside everything that goes on; with its schema. Blocks for as long as it takes.
    pub fn copy_to(&self, to: &Path) -> Result<u32, CopyError> {
        copy(self.directory(), to)
    }

    /// When the newest certificate of a client expires, as far as this database knows.
    pub async fn svid_expires(&self, client: &ClientId) -> Result<Option<Moment>, Error> {
        let client = client.clone();
        self.read(move |sql| {
            let mut statement = sql.statement("SELECT svid_not_after FROM client WHERE id = ?1")?;
            let found = statement.query_row([client.as_str()], |row| row.moment_maybe("svid_not_after"));
            Ok(found.optional()?.flatten())
        })
        .await
    }

    /// When this database was restored, if it was.
    pub async fn restored(&self) -> Result<Option<Restored>, Error> {
        let written = self.recall(RESTORED).await?;
        let read = |bytes: Vec<u8>| serde_json::from_slice(&bytes);
        written.map(read).transpose().map_err(|_| Error::Damaged { what: "when it was restored" })
    }
}
