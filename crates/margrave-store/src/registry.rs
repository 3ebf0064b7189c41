//! Registries of others, and what opens them. Secrets are here and nowhere else, and no event names one.

use std::fmt;

use margrave_core::moment::Moment;
use rusqlite::Row;

use crate::column::{self, Columns as _};
use crate::event::NewEvent;
use crate::{Error, Put, Store};

/// Vendors that one plant deals with.
pub const REGISTRIES_MAX: u64 = 1000;

/// What a registry is told about us.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum RegistryCredentials {
    #[default]
    Anonymous,
    Basic {
        user: String,
        password: String,
    },
    Token(String),
}

/// A secret never reaches a log.
impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistryCredentials::Anonymous => f.write_str("Anonymous"),
            RegistryCredentials::Basic { user, .. } => write!(f, "Basic({user:?})"),
            RegistryCredentials::Token(_) => f.write_str("Token"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryRecord {
    /// `host` or `host:port`.
    pub host: String,
    /// Without TLS.
    pub plain: bool,
    /// Its own authority, PEM.
    pub authority: Option<String>,
    pub credentials: RegistryCredentials,
    pub changed_at: Moment,
    pub changed_by: String,
}

fn read(row: &Row<'_>) -> rusqlite::Result<RegistryRecord> {
    let (user, secret): (Option<String>, Option<String>) = (row.get("user")?, row.get("secret")?);
    Ok(RegistryRecord {
        host: row.get("host")?,
        plain: row.get("plain")?,
        authority: row.get("authority")?,
        credentials: match (user, secret) {
            (Some(user), Some(password)) => RegistryCredentials::Basic { user, password },
            (None, Some(token)) => RegistryCredentials::Token(token),
            (_, None) => RegistryCredentials::Anonymous,
        },
        changed_at: row.moment("changed_at")?,
        changed_by: row.get("changed_by")?,
    })
}

impl Store {
    pub async fn registries(&self) -> Result<Vec<RegistryRecord>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT * FROM registry ORDER BY host")?;
            Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Remembers a registry in place of what was known of it; `None` when there are [`REGISTRIES_MAX`] others.
    pub async fn put_registry(&self, registry: RegistryRecord) -> Result<Option<Put>, Error> {
        self.write(move |tx| {
            let RegistryRecord { host, plain, authority, credentials, changed_at, changed_by } = &registry;
            let (user, secret) = match credentials {
                RegistryCredentials::Anonymous => (None, None),
                RegistryCredentials::Basic { user, password } => (Some(user), Some(password)),
                RegistryCredentials::Token(token) => (None, Some(token)),
            };
            let known = tx.sql.statement("SELECT 1 FROM registry WHERE host = ?1")?.exists([host])?;
            let count =
                tx.sql.query_row("SELECT count(*) FROM registry", [], |row| row.unsigned("count(*)"))?;
            if !known && count >= REGISTRIES_MAX {
                return Ok(None);
            }
            tx.sql
                .statement(
                    "INSERT INTO registry (host, plain, authority, user, secret, changed_at, changed_by)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                     ON CONFLICT (host) DO UPDATE SET
                         plain = ?2, authority = ?3, user = ?4, secret = ?5, changed_at = ?6, changed_by = ?7",
                )?
                .execute((host, plain, authority, user, secret, column::moment(*changed_at), changed_by))?;
            // What could not be looked at may be able to now.
            tx.sql
                .statement(
                    "UPDATE watch SET next_at = ?2
                     WHERE trouble IS NOT NULL AND substr(repository, 1, length(?1)) = ?1",
                )?
                .execute((format!("oci://{host}/"), column::moment(*changed_at)))?;
            let verb = if known { "changed" } else { "added" };
            let text = format!("the registry {host} was {verb}");
            tx.note(NewEvent::new(*changed_at, "registry.changed", changed_by, text))?;
            Ok(Some(if known { Put::Updated } else { Put::Created }))
        })
        .await
    }

    /// Forgets a registry and what opened it; `false` where it was not known.
    pub async fn remove_registry(&self, host: &str, at: Moment, actor: &str) -> Result<bool, Error> {
        let (host, actor) = (host.to_owned(), actor.to_owned());
        self.write(move |tx| {
            if tx.sql.statement("DELETE FROM registry WHERE host = ?1")?.execute([&host])? == 0 {
                return Ok(false);
            }
            let text = format!("the registry {host} was removed");
            tx.note(NewEvent::new(at, "registry.removed", &actor, text))?;
            Ok(true)
        })
        .await
    }
}
