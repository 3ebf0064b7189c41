//! Domain values in and out of columns. What comes out is parsed again: a damaged row is an error, not a wrong value.
//!
//! SQLite integers are signed. Manifest versions and report sequences are unsigned 64-bit in the protocol;
//! they are stored as 63-bit with a checked conversion. A sequence that grows by one per publish never
//! gets there, and a device that claims such a number is refused before it can hurt (report.rs).

use std::str::FromStr;

use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use rusqlite::Row;
use rusqlite::types::Type;
use uuid::Uuid;

use crate::Error;

pub(crate) fn unsigned(what: &'static str, value: u64) -> Result<i64, Error> {
    i64::try_from(value).map_err(|_| Error::OutOfRange { what, got: value })
}

/// Times saturate: a clock in the year 292 million must not stop a report.
pub(crate) fn moment(at: Moment) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

fn unreadable(
    index: usize,
    kind: Type,
    why: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, kind, Box::new(why))
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unreadable(&'static str);

/// Typed reading of columns by name.
pub(crate) trait Columns {
    fn parsed<T>(&self, column: &str) -> rusqlite::Result<T>
    where
        T: FromStr,
        T::Err: std::error::Error + Send + Sync + 'static;
    fn unsigned(&self, column: &str) -> rusqlite::Result<u64>;
    fn moment(&self, column: &str) -> rusqlite::Result<Moment>;
    fn moment_maybe(&self, column: &str) -> rusqlite::Result<Option<Moment>>;
    fn digest(&self, column: &str) -> rusqlite::Result<Digest>;
    fn uuid(&self, column: &str) -> rusqlite::Result<Uuid>;
    fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> rusqlite::Result<T>;
}

impl Columns for Row<'_> {
    fn parsed<T>(&self, column: &str) -> rusqlite::Result<T>
    where
        T: FromStr,
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let index = self.as_ref().column_index(column)?;
        let text: String = self.get(index)?;
        text.parse().map_err(|error| unreadable(index, Type::Text, error))
    }

    fn unsigned(&self, column: &str) -> rusqlite::Result<u64> {
        let index = self.as_ref().column_index(column)?;
        let value: i64 = self.get(index)?;
        u64::try_from(value).map_err(|error| unreadable(index, Type::Integer, error))
    }

    fn moment(&self, column: &str) -> rusqlite::Result<Moment> {
        self.unsigned(column).map(Moment)
    }

    fn moment_maybe(&self, column: &str) -> rusqlite::Result<Option<Moment>> {
        let index = self.as_ref().column_index(column)?;
        let value: Option<i64> = self.get(index)?;
        value
            .map(u64::try_from)
            .transpose()
            .map(|at| at.map(Moment))
            .map_err(|e| unreadable(index, Type::Integer, e))
    }

    fn digest(&self, column: &str) -> rusqlite::Result<Digest> {
        let index = self.as_ref().column_index(column)?;
        let bytes: [u8; 32] = self.get(index)?;
        Ok(Digest::from_bytes(bytes))
    }

    fn uuid(&self, column: &str) -> rusqlite::Result<Uuid> {
        let index = self.as_ref().column_index(column)?;
        let bytes: [u8; 16] = self.get(index)?;
        Ok(Uuid::from_bytes(bytes))
    }

    fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> rusqlite::Result<T> {
        let index = self.as_ref().column_index(column)?;
        let text: String = self.get(index)?;
        serde_json::from_str(&text).map_err(|error| unreadable(index, Type::Text, error))
    }
}

pub(crate) fn word<T>(row: &Row<'_>, column: &str, parse: fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    let index = row.as_ref().column_index(column)?;
    let text: String = row.get(index)?;
    parse(&text).ok_or_else(|| unreadable(index, Type::Text, Unreadable("not a word of the list")))
}

/// Typed reading of columns by place, for what is read all the time: finding a column by name takes longer than
/// reading it.
pub(crate) fn parsed_at<T>(row: &Row<'_>, index: usize) -> rusqlite::Result<T>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    row.get_ref(index)?.as_str()?.parse().map_err(|error| unreadable(index, Type::Text, error))
}

/// Names that many rows have in common: parsed when they are first seen, and the same one in memory for all of them.
pub(crate) struct Shared<T> {
    known: Vec<T>,
    /// Where the one that comes next probably is: the rows of one client follow in the same order as those of another.
    turn: usize,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Shared { known: Vec::new(), turn: 0 }
    }
}

/// Beyond this, looking for one costs more than making it.
const SHARED_MAX: usize = 32;

impl<T> Shared<T>
where
    T: FromStr + Clone + AsRef<str>,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    pub(crate) fn at(&mut self, row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
        let text = row.get_ref(index)?.as_str()?;
        let found = self.known.iter().skip(self.turn).position(|known| known.as_ref() == text);
        let found = found
            .map(|ahead| self.turn + ahead)
            .or_else(|| self.known.iter().position(|known| known.as_ref() == text));
        if let Some(at) = found {
            self.turn = (at + 1) % self.known.len();
            return Ok(self.known[at].clone());
        }
        let new: T = parsed_at(row, index)?;
        if self.known.len() == SHARED_MAX {
            self.known.clear();
        }
        self.known.push(new.clone());
        self.turn = 0;
        Ok(new)
    }
}

pub(crate) fn unsigned_at(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(index)?;
    u64::try_from(value).map_err(|error| unreadable(index, Type::Integer, error))
}

pub(crate) fn moment_at(row: &Row<'_>, index: usize) -> rusqlite::Result<Moment> {
    unsigned_at(row, index).map(Moment)
}

pub(crate) fn word_at<T>(row: &Row<'_>, index: usize, parse: fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    parse(row.get_ref(index)?.as_str()?)
        .ok_or_else(|| unreadable(index, Type::Text, Unreadable("not a word of the list")))
}

pub(crate) fn json_at<T: serde::de::DeserializeOwned>(index: usize, text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| unreadable(index, Type::Text, error))
}

/// JSON for our own columns; these types have string keys and cannot fail.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("stored types have string keys and no failing serialisers")
}
