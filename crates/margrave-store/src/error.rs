//! Why the store could not do its work, apart from what each verb can refuse.

use std::io;
use std::path::PathBuf;

/// Why a database directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data directory {path} cannot be prepared; check that it exists and is writable")]
    Directory { path: PathBuf, source: io::Error },
    #[error("the database in {0} is in use by another process; stop that one or give another directory")]
    InUse(PathBuf),
    #[error(
        "the database has schema {found}, this program knows up to {known}; it was written by a newer version, \
         run that one"
    )]
    Newer { found: u32, known: u32 },
    #[error("the database cannot be brought to schema {to}")]
    Migration { to: u32, source: rusqlite::Error },
    #[error(
        "the database cannot be opened; if its file was damaged, `margrave restore` brings a backup back"
    )]
    Sqlite(#[source] rusqlite::Error),
    #[error("the database's threads cannot be started")]
    Thread(#[source] io::Error),
}

/// What can go wrong in every verb.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the disk of the database is full; free some space, nothing that was acknowledged is lost")]
    Full(#[source] rusqlite::Error),
    #[error("the database refused")]
    Sqlite(#[source] rusqlite::Error),
    #[error("the database holds something that this program cannot have written: {what}")]
    Damaged { what: &'static str },
    #[error("{what} {got} is beyond the {max} that the database holds", max = i64::MAX)]
    OutOfRange { what: &'static str, got: u64 },
    #[error("more writes are waiting than the database can take; try again shortly")]
    Overloaded,
    #[error("the database is closed")]
    Closed,
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Error::Full(error),
            _ => Error::Sqlite(error),
        }
    }
}

/// Lets a verb's own error enum be made from database trouble with `?`.
macro_rules! from_database {
    ($($error:ty),+) => {
        $(impl From<rusqlite::Error> for $error {
            fn from(error: rusqlite::Error) -> Self {
                Self::from($crate::Error::from(error))
            }
        })+
    };
}
pub(crate) use from_database;
