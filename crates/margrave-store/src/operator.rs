//! Operators' tokens and the page's sessions, known by their hashes only.
//!
//! A token that was revoked or has expired stays for a while, so that operators see what became of it and its holder is
//! told more than that it is not known. A session ends with its token.

use margrave_core::access::Role;
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use rusqlite::{OptionalExtension as _, Row};

use crate::column::{self, Columns as _};
use crate::error::from_database;
use crate::event::NewEvent;
use crate::sql::Sql;
use crate::writer::Tx;
use crate::{Error, Store};

/// Tokens that can be used: people, programs and wall displays of a large company.
pub const TOKENS_MAX: u32 = 1000;
/// Tokens that cannot be used any more and are still shown; the oldest give way.
const TOKENS_VOID_MAX: u32 = 1000;
/// Browsers of one token; the oldest session ends for a new one.
const SESSIONS_PER_TOKEN_MAX: u32 = 32;
/// How long a token is shown that cannot be used any more. What was done with it is in the audit log for ever.
pub const VOID_KEPT_MS: u64 = 90 * 24 * 3600 * 1000;

/// Digits of the hash that name a token.
const ID_DIGITS: usize = 12;

/// A token as it is stored: only its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOperatorToken {
    pub hash: Digest,
    pub name: String,
    pub role: Role,
    pub created_at: Moment,
    pub created_by: String,
    pub expires_at: Option<Moment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorTokenRecord {
    /// What it is called by operators, 12 hex digits.
    pub id: String,
    pub hash: Digest,
    /// Whose it is.
    pub name: String,
    pub role: Role,
    pub created_at: Moment,
    pub created_by: String,
    pub expires_at: Option<Moment>,
    /// To the hour.
    pub used_at: Option<Moment>,
    pub revoked_at: Option<Moment>,
}

impl OperatorTokenRecord {
    pub fn is_usable(&self, now: Moment) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

/// A session that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    pub hash: Digest,
    /// The id of the token that began it.
    pub token: String,
    pub expires_at: Moment,
}

/// Why a token was not made.
#[derive(Debug, thiserror::Error)]
pub enum NewTokenError {
    #[error("there are {TOKENS_MAX} tokens already")]
    TooMany,
    #[error(transparent)]
    Store(#[from] Error),
}

/// Why a token was not revoked.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    #[error("there is no such token")]
    Unknown,
    #[error("nobody else could make tokens any more")]
    LastAdmin,
    #[error(transparent)]
    Store(#[from] Error),
}
from_database!(NewTokenError, RevokeError);

const USABLE: &str = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?1)";

fn read(row: &Row<'_>) -> rusqlite::Result<OperatorTokenRecord> {
    Ok(OperatorTokenRecord {
        id: row.get("id")?,
        hash: row.digest("hash")?,
        name: row.get("name")?,
        role: column::word(row, "role", Role::parse)?,
        created_at: row.moment("created_at")?,
        created_by: row.get("created_by")?,
        expires_at: row.moment_maybe("expires_at")?,
        used_at: row.moment_maybe("used_at")?,
        revoked_at: row.moment_maybe("revoked_at")?,
    })
}

fn count_usable(sql: &Sql<'_>, now: Moment) -> rusqlite::Result<u32> {
    sql.statement(&format!("SELECT count(*) FROM operator_token WHERE {USABLE}"))?
        .query_row([column::moment(now)], |row| row.get(0))
}

fn create(tx: &Tx<'_, '_>, token: &NewOperatorToken) -> rusqlite::Result<OperatorTokenRecord> {
    let NewOperatorToken { hash, name, role, created_at, created_by, expires_at } = token;
    tx.sql
        .statement(&format!(
            "DELETE FROM operator_token WHERE id IN (SELECT id FROM operator_token WHERE NOT ({USABLE})
             ORDER BY created_at DESC, id LIMIT -1 OFFSET {TOKENS_VOID_MAX})"
        ))?
        .execute([column::moment(*created_at)])?;
    let id = hash.hex()[..ID_DIGITS].to_owned();
    tx.sql
        .statement(
            "INSERT INTO operator_token (id, hash, name, role, created_at, created_by, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute((
            &id,
            hash.as_bytes(),
            name,
            role.as_str(),
            column::moment(*created_at),
            created_by,
            expires_at.map(column::moment),
        ))?;
    let text = format!("a token was made for {name}, as {role}");
    tx.note(NewEvent::new(*created_at, "operator.token", created_by, text))?;
    Ok(OperatorTokenRecord {
        id,
        hash: *hash,
        name: name.clone(),
        role: *role,
        created_at: *created_at,
        created_by: created_by.clone(),
        expires_at: *expires_at,
        used_at: None,
        revoked_at: None,
    })
}

fn revoke(sql: &Sql<'_>, id: &str, at: Moment) -> rusqlite::Result<()> {
    sql.statement("UPDATE operator_token SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL")?
        .execute((id, column::moment(at)))?;
    sql.statement("DELETE FROM session WHERE token = ?1")?.execute([id])?;
    Ok(())
}

impl Store {
    pub async fn create_operator_token(
        &self,
        token: NewOperatorToken,
    ) -> Result<OperatorTokenRecord, NewTokenError> {
        self.write(move |tx| {
            if count_usable(tx.sql, token.created_at)? >= TOKENS_MAX {
                return Err(NewTokenError::TooMany);
            }
            Ok(create(tx, &token)?)
        })
        .await
    }

    /// Makes a token and revokes all earlier ones that the same maker made for that name, with their sessions: whoever
    /// held them is out the moment the new one counts. However many others there are: the server itself needs it.
    pub async fn replace_operator_token(
        &self,
        token: NewOperatorToken,
    ) -> Result<OperatorTokenRecord, Error> {
        self.write(move |tx| {
            let earlier: Vec<String> = tx
                .sql
                .statement(
                    "SELECT id FROM operator_token WHERE name = ?1 AND created_by = ?2 AND revoked_at IS NULL",
                )?
                .query_map((&token.name, &token.created_by), |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            for id in &earlier {
                revoke(tx.sql, id, token.created_at)?;
            }
            Ok(create(tx, &token)?)
        })
        .await
    }

    /// Voids a token and ends its sessions. One that is void already stays as it is.
    pub async fn revoke_operator_token(
        &self,
        id: &str,
        at: Moment,
        actor: &str,
    ) -> Result<OperatorTokenRecord, RevokeError> {
        let (id, actor) = (id.to_owned(), actor.to_owned());
        self.write(move |tx| {
            let mut token = tx
                .sql
                .statement("SELECT * FROM operator_token WHERE id = ?1")?
                .query_row([&id], read)
                .optional()?
                .ok_or(RevokeError::Unknown)?;
            if token.revoked_at.is_some() {
                return Ok(token);
            }
            if token.role == Role::Admin && token.is_usable(at) {
                let others: u32 = tx
                    .sql
                    .statement(&format!(
                        "SELECT count(*) FROM operator_token WHERE {USABLE} AND role = 'admin' AND id <> ?2"
                    ))?
                    .query_row((column::moment(at), &id), |row| row.get(0))?;
                if others == 0 {
                    return Err(RevokeError::LastAdmin);
                }
            }
            revoke(tx.sql, &id, at)?;
            token.revoked_at = Some(at);
            let text = format!("token {id} of operator {} was revoked", token.name);
            tx.note(NewEvent::new(at, "operator.revoked", &actor, text))?;
            Ok(token)
        })
        .await
    }

    /// All tokens, also void ones, the newest first.
    pub async fn operator_tokens(&self) -> Result<Vec<OperatorTokenRecord>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT * FROM operator_token ORDER BY created_at DESC, id")?;
            Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub async fn operator_token_used(&self, id: &str, at: Moment) -> Result<(), Error> {
        let id = id.to_owned();
        self.write_for_nobody(move |tx| {
            tx.sql
                .statement("UPDATE operator_token SET used_at = ?2 WHERE id = ?1")?
                .execute((&id, column::moment(at)))?;
            Ok(())
        })
        .await
    }

    /// Begins a session of a token. Those that had to make room are returned.
    pub async fn begin_session(&self, session: SessionRecord, at: Moment) -> Result<Vec<Digest>, Error> {
        self.write(move |tx| {
            let SessionRecord { hash, token, expires_at } = &session;
            let crowded: Vec<Digest> = tx
                .sql
                .statement(&format!(
                    "SELECT hash FROM session WHERE token = ?1 ORDER BY created_at DESC
                     LIMIT -1 OFFSET {}",
                    SESSIONS_PER_TOKEN_MAX - 1
                ))?
                .query_map([token], |row| row.digest("hash"))?
                .collect::<Result<_, _>>()?;
            for hash in &crowded {
                tx.sql.statement("DELETE FROM session WHERE hash = ?1")?.execute([hash.as_bytes()])?;
            }
            tx.sql
                .statement(
                    "INSERT INTO session (hash, token, created_at, expires_at) VALUES (?1, ?2, ?3, ?4)",
                )?
                .execute((hash.as_bytes(), token, column::moment(at), column::moment(*expires_at)))?;
            Ok(crowded)
        })
        .await
    }

    /// Every session that lasts.
    pub async fn sessions(&self, now: Moment) -> Result<Vec<SessionRecord>, Error> {
        self.read(move |sql| {
            let mut statement =
                sql.statement("SELECT hash, token, expires_at FROM session WHERE expires_at > ?1")?;
            let read = |row: &Row<'_>| {
                Ok(SessionRecord {
                    hash: row.digest("hash")?,
                    token: row.get("token")?,
                    expires_at: row.moment("expires_at")?,
                })
            };
            Ok(statement.query_map([column::moment(now)], read)?.collect::<Result<_, _>>()?)
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

    /// Ends all sessions of an operator, whichever token began them.
    pub async fn end_sessions_of(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.write(move |tx| {
            tx.sql
                .statement(
                    "DELETE FROM session WHERE token IN (SELECT id FROM operator_token WHERE name = ?1)",
                )?
                .execute([&name])?;
            Ok(())
        })
        .await
    }
}
