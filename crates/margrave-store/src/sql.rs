//! A connection that remembers its compiled statements.
//!
//! Compiling the statements of one report takes 120 µs, running them 20: without a memory the writer would
//! spend its time on SQL text. Statements borrow from their connection, so the memory lives beside it, in
//! the scope that owns both: for ever in the writing thread, for one call in a reader.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use rusqlite::{Connection, Statement};

pub(crate) struct Sql<'c> {
    connection: &'c Connection,
    /// Those that nobody uses at the moment. As many as there are texts in this crate, so it needs no limit.
    idle: RefCell<HashMap<String, Statement<'c>>>,
}

impl<'c> Sql<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Sql { connection, idle: RefCell::default() }
    }

    /// The statement of this text, compiled now or earlier. It goes back when it is dropped.
    pub(crate) fn statement(&self, text: &str) -> rusqlite::Result<Lent<'_, 'c>> {
        let idle = self.idle.borrow_mut().remove_entry(text);
        let (text, statement) = match idle {
            Some(idle) => idle,
            None => (text.to_owned(), self.connection.prepare(text)?),
        };
        Ok(Lent { sql: self, statement: Some((text, statement)) })
    }
}

/// Everything that needs no statement.
impl Deref for Sql<'_> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        self.connection
    }
}

/// A statement in use.
pub(crate) struct Lent<'s, 'c> {
    sql: &'s Sql<'c>,
    statement: Option<(String, Statement<'c>)>,
}

const LENT: &str = "a statement is lent until it is dropped";

impl<'c> Deref for Lent<'_, 'c> {
    type Target = Statement<'c>;
    fn deref(&self) -> &Statement<'c> {
        &self.statement.as_ref().expect(LENT).1
    }
}

impl DerefMut for Lent<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.statement.as_mut().expect(LENT).1
    }
}

impl Drop for Lent<'_, '_> {
    fn drop(&mut self) {
        if let Some((text, mut statement)) = self.statement.take() {
            // What it was given may be large (a bundle), and must not stay in memory.
            statement.clear_bindings();
            self.sql.idle.borrow_mut().insert(text, statement);
        }
    }
}
