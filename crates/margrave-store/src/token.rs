//! Join tokens: made by an operator, used once by a device.

use std::collections::BTreeMap;

use margrave_core::digest::Digest;
use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_wire::Dialect;
use rusqlite::OptionalExtension as _;

use crate::client::{self, own_device, set_labels};
use crate::column::{self, Columns as _};
use crate::device;
use crate::error::from_database;
use crate::event::NewEvent;
use crate::signed;
use crate::sql::Sql;
use crate::{Error, Standing, Store, VOID_KEPT_MS};

/// A token as it is stored: only its hash.
#[derive(Debug, Clone)]
pub struct NewJoinToken {
    pub hash: Digest,
    pub client: ClientId,
    pub labels: BTreeMap<String, String>,
    pub created_at: Moment,
    pub created_by: String,
    pub expires_at: Moment,
}

/// A token that nobody has used yet. What it is cannot be told any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenJoinToken {
    pub client: ClientId,
    pub labels: BTreeMap<String, String>,
    pub created_at: Moment,
    pub created_by: String,
    pub expires_at: Moment,
}

/// A token whose device has joined, and whose labels may stand in no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnotedJoin {
    pub hash: Digest,
    pub device: DeviceRef,
    pub created_by: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redeemed {
    pub client: ClientId,
    /// The manifest it starts with.
    pub manifest_version: u64,
}

/// Why a join token was not made or not taken.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("this join token is not known")]
    Unknown,
    #[error("this join token was used already")]
    Used,
    #[error("this join token has expired")]
    Expired,
    #[error("{0} has joined already")]
    Joined(ClientId),
    #[error("{0} was retired, and a retired name is not given to another device (ID-176)")]
    Retired(ClientId),
    #[error(transparent)]
    Store(#[from] Error),
}
from_database!(JoinError);

/// A client that has a certificate but never used it does not stand in the way: its join broke off half-way.
fn free_to_join(sql: &Sql<'_>, client: &ClientId) -> Result<bool, JoinError> {
    // The name of a signed client is never a name of the other kind: neither may stand in for the other.
    if signed::is_signed(sql, client)? {
        return Err(JoinError::Joined(client.clone()));
    }
    let found = sql
        .statement(
            "SELECT standing, contact.at FROM client LEFT JOIN contact ON contact.client = client.id WHERE id = ?1",
        )?
        .query_row([client.as_str()], |row| {
            Ok((column::word(row, "standing", Standing::parse)?, row.moment_maybe("at")?))
        })
        .optional()?;
    match found {
        None => Ok(true),
        Some((Standing::Retired, _)) => Err(JoinError::Retired(client.clone())),
        Some((Standing::Accepted, Some(_))) => Err(JoinError::Joined(client.clone())),
        Some((Standing::Accepted, None)) => Ok(false),
    }
}

impl Store {
    /// Makes a token for a name that is free. An older token for that name that nobody used is void from now on.
    pub async fn create_join_token(&self, token: NewJoinToken) -> Result<(), JoinError> {
        self.write(move |tx| {
            let NewJoinToken { hash, client, labels, created_at, created_by, expires_at } = &token;
            free_to_join(tx.sql, client)?;
            tx.sql
                .statement("DELETE FROM join_token WHERE client = ?1 AND used_at IS NULL")?
                .execute([client.as_str()])?;
            tx.sql
                .statement(
                    "INSERT INTO join_token (hash, client, labels, created_at, created_by, expires_at)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute((
                    hash.as_bytes(),
                    client.as_str(),
                    column::json(labels),
                    column::moment(*created_at),
                    created_by,
                    column::moment(*expires_at),
                ))?;
            let text = format!("a join token was made for {client}");
            tx.note(
                NewEvent::new(*created_at, "device.token", created_by, text).device(&own_device(client)),
            )?;
            Ok(())
        })
        .await
    }

    /// Takes the token and makes its client, with its first manifest, in one step; the token is void afterwards.
    /// `first_manifest` is the body of an empty manifest of version 1.
    pub async fn redeem_join_token(
        &self,
        hash: Digest,
        now: Moment,
        first_manifest: Vec<u8>,
    ) -> Result<Redeemed, JoinError> {
        self.write(move |tx| {
            let found = tx
                .sql
                .statement("SELECT client, labels, expires_at, used_at FROM join_token WHERE hash = ?1")?
                .query_row([hash.as_bytes()], |row| {
                    let labels: BTreeMap<String, String> = row.json("labels")?;
                    let client: ClientId = row.parsed("client")?;
                    Ok((client, labels, row.moment("expires_at")?, row.moment_maybe("used_at")?))
                })
                .optional()?;
            let (client, labels, expires_at, used_at) = found.ok_or(JoinError::Unknown)?;
            if used_at.is_some() {
                return Err(JoinError::Used);
            }
            if now >= expires_at {
                return Err(JoinError::Expired);
            }
            let new = free_to_join(tx.sql, &client)?;
            tx.sql
                .statement("UPDATE join_token SET used_at = ?2 WHERE hash = ?1")?
                .execute((hash.as_bytes(), column::moment(now)))?;
            let device = own_device(&client);
            if new {
                client::insert(tx.sql, &client, Dialect::Miaf, now, &first_manifest)?;
            }
            let labels = labels.into_iter().map(|(key, value)| (key, Some(value))).collect();
            set_labels(tx.sql, &device, &labels)?;
            device::welcome(tx.sql, &device)?;
            let manifest_version = tx
                .sql
                .statement("SELECT version FROM manifest WHERE client = ?1")?
                .query_row([client.as_str()], |row| row.unsigned("version"))?;
            let actor = format!("device {client}");
            tx.note(NewEvent::new(now, "device.joined", actor, format!("{client} joined")).device(&device))?;
            Ok(Redeemed { client, manifest_version })
        })
        .await
    }

    /// The first tokens that were used, and of which nobody has looked yet whether a file says what they say.
    pub async fn joins_unnoted(&self, limit: u32) -> Result<Vec<UnnotedJoin>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT hash, client, created_by FROM join_token WHERE noted = 0 AND used_at IS NOT NULL
                 ORDER BY used_at LIMIT ?1",
            )?;
            let rows = statement.query_map([limit], |row| {
                Ok(UnnotedJoin {
                    hash: Digest::from_bytes(row.get("hash")?),
                    device: own_device(&row.parsed("client")?),
                    created_by: row.get("created_by")?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// These were looked at.
    pub async fn joins_are_noted(&self, hashes: Vec<Digest>) -> Result<(), Error> {
        self.write(move |tx| {
            for hash in &hashes {
                tx.sql
                    .statement("UPDATE join_token SET noted = 1 WHERE hash = ?1")?
                    .execute([hash.as_bytes()])?;
            }
            Ok(())
        })
        .await
    }

    /// Whether a token of this hash was ever made and is still remembered, used or not. Costs no write, so that
    /// guessing costs nobody else one.
    pub async fn knows_join_token(&self, hash: Digest) -> Result<bool, Error> {
        self.read(move |sql| {
            Ok(sql.statement("SELECT 1 FROM join_token WHERE hash = ?1")?.exists([hash.as_bytes()])?)
        })
        .await
    }

    /// Until when someone may join, or might have joined, under this name with the token that was made for it and is not used.
    pub async fn join_awaited(&self, client: &ClientId) -> Result<Option<Moment>, Error> {
        let client = client.clone();
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT expires_at FROM join_token WHERE client = ?1 AND used_at IS NULL
                 ORDER BY expires_at DESC LIMIT 1",
            )?;
            Ok(statement.query_row([client.as_str()], |row| row.moment("expires_at")).optional()?)
        })
        .await
    }

    /// Tokens that can still be used, the newest first.
    pub async fn join_tokens_open(&self, now: Moment, limit: u32) -> Result<Vec<OpenJoinToken>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT client, labels, created_at, created_by, expires_at FROM join_token
                 WHERE used_at IS NULL AND expires_at > ?1 ORDER BY created_at DESC, client LIMIT ?2",
            )?;
            let rows = statement.query_map((column::moment(now), limit), |row| {
                Ok(OpenJoinToken {
                    client: row.parsed("client")?,
                    labels: row.json("labels")?,
                    created_at: row.moment("created_at")?,
                    created_by: row.get("created_by")?,
                    expires_at: row.moment("expires_at")?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Makes the token of a name void that nobody used; `false` where there is none.
    pub async fn revoke_join_token(
        &self,
        client: &ClientId,
        now: Moment,
        actor: &str,
    ) -> Result<bool, Error> {
        let (client, actor) = (client.clone(), actor.to_owned());
        self.write(move |tx| {
            let gone = tx
                .sql
                .statement(
                    "DELETE FROM join_token WHERE client = ?1 AND used_at IS NULL AND expires_at > ?2",
                )?
                .execute((client.as_str(), column::moment(now)))?;
            if gone > 0 {
                let text = format!("the join token of {client} was revoked");
                tx.note(NewEvent::new(now, "device.token", &actor, text).device(&own_device(&client)))?;
            }
            Ok(gone > 0)
        })
        .await
    }

    /// Forgets tokens and sessions that nobody can use any more; returns how many.
    pub async fn sweep_expired(&self, now: Moment) -> Result<usize, Error> {
        // A used or expired token is kept for a while, so that its second use is told apart from nonsense.
        const KEPT_MS: i64 = 30 * 24 * 3600 * 1000;
        self.write(move |tx| {
            let now = column::moment(now);
            let tokens =
                tx.sql.statement("DELETE FROM join_token WHERE expires_at < ?1")?.execute([now - KEPT_MS])?;
            let sessions = tx.sql.statement("DELETE FROM session WHERE expires_at < ?1")?.execute([now])?;
            let kept = i64::try_from(VOID_KEPT_MS).unwrap_or(i64::MAX);
            let void = tx
                .sql
                .statement("DELETE FROM operator_token WHERE revoked_at < ?1 OR expires_at < ?1")?
                .execute([now - kept])?;
            Ok(tokens + sessions + void)
        })
        .await
    }
}
