//! Operators' tokens and the page's sessions, known by their hashes only.

use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use rusqlite::OptionalExtension as _;

use crate::column;
use crate::event::NewEvent;
use crate::writer::Tx;
use crate::{Error, Store};

fn create(tx: &Tx<'_, '_>, hash: Digest, name: &str, at: Moment) -> rusqlite::Result<()> {
    tx.sql
        .statement("INSERT INTO operator_token (hash, name, created_at) VALUES (?1, ?2, ?3)")?
        .execute((hash.as_bytes(), name, column::moment(at)))?;
    Ok(())
}

impl Store {
    pub async fn create_operator_token(&self, hash: Digest, name: &str, at: Moment) -> Result<(), Error> {
        let name = name.to_owned();
        self.write(move |tx| {
            create(tx, hash, &name, at)?;
            let text = format!("a token was made for operator {name}");
            tx.note(NewEvent::new(at, "operator.token", "server", text))?;
            Ok(())
        })
        .await
    }

    /// Makes a token for an operator and voids all earlier ones of that name, with the sessions of `actor`:
    /// whoever held them is out the moment the new one counts.
    pub async fn replace_operator_token(
        &self,
        hash: Digest,
        name: &str,
        actor: &str,
        at: Moment,
    ) -> Result<(), Error> {
        let (name, actor) = (name.to_owned(), actor.to_owned());
        self.write(move |tx| {
            let voided = tx.sql.statement("DELETE FROM operator_token WHERE name = ?1")?.execute([&name])?;
            tx.sql.statement("DELETE FROM session WHERE actor = ?1")?.execute([&actor])?;
            create(tx, hash, &name, at)?;
            let text = match voided {
                0 => format!("a token was made for operator {name}"),
                _ => format!("a new token was made for operator {name}; earlier ones are void"),
            };
            tx.note(NewEvent::new(at, "operator.token", "server", text))?;
            Ok(())
        })
        .await
    }

    /// The name of the operator whose token has this hash.
    pub async fn operator_by_token(&self, hash: Digest) -> Result<Option<String>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement("SELECT name FROM operator_token WHERE hash = ?1")?;
            Ok(statement.query_row([hash.as_bytes()], |row| row.get(0)).optional()?)
        })
        .await
    }

    pub async fn begin_session(
        &self,
        hash: Digest,
        actor: &str,
        at: Moment,
        expires_at: Moment,
    ) -> Result<(), Error> {
        let actor = actor.to_owned();
        self.write(move |tx| {
            tx.sql
                .statement(
                    "INSERT INTO session (hash, actor, created_at, expires_at) VALUES (?1, ?2, ?3, ?4)",
                )?
                .execute((hash.as_bytes(), &actor, column::moment(at), column::moment(expires_at)))?;
            Ok(())
        })
        .await
    }

    /// Whose session it is, while it lasts.
    pub async fn session(&self, hash: Digest, now: Moment) -> Result<Option<String>, Error> {
        self.read(move |sql| {
            let mut statement =
                sql.statement("SELECT actor FROM session WHERE hash = ?1 AND expires_at > ?2")?;
            Ok(statement.query_row((hash.as_bytes(), column::moment(now)), |row| row.get(0)).optional()?)
        })
        .await
    }

    pub async fn end_session(&self, hash: Digest) -> Result<(), Error> {
        self.write(move |tx| {
            tx.sql.statement("DELETE FROM session WHERE hash = ?1")?.execute([hash.as_bytes()])?;
            Ok(())
        })
        .await
    }
}
