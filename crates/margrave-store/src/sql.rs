//! A connection that remembers its compiled statements.
//!
//! Compiling the statements of one report takes some 120 µs (measured, optimised): without a memory the writer
//! would spend its time on SQL text. The memory is the connection's own; this only makes sure that everybody uses
//! it, and that it is large enough.

use std::ops::Deref;

use rusqlite::{CachedStatement, Connection};

/// More than there are texts in this crate: none is ever compiled twice on one connection.
const STATEMENTS_KEPT: usize = 256;

pub(crate) struct Sql<'c>(&'c Connection);

impl<'c> Sql<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        Sql(connection)
    }

    /// The statement of this text, compiled now or earlier. It goes back when it is dropped.
    pub(crate) fn statement(&self, text: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.0.prepare_cached(text)
    }
}

/// Everything that needs no statement.
impl Deref for Sql<'_> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        self.0
    }
}
