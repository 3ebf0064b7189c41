//! Clients that pull from a Git repository: what each commit holds, and the tokens that open it.
//!
//! Every manifest version of such a client is written down in the transaction that publishes it, and its documents
//! are kept for as long as it is. The repository on disk follows from this and from nothing else, so it can lag,
//! break or go without anything being lost. Making commits is not done here.

use std::collections::BTreeMap;

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId};
use margrave_core::moment::Moment;
use rusqlite::{OptionalExtension as _, Row};

use crate::client::speaker;
use crate::column::{self, Columns as _};
use crate::error::from_database;
use crate::event::NewEvent;
use crate::publication::NewManifest;
use crate::sql::Sql;
use crate::{Error, Standing, Store};

/// Versions that can be made into commits again when the repository is lost: years of a busy device, and some ten
/// megabytes. Older ones are still in the repository itself.
const VERSIONS_KEPT: i64 = 10_000;
/// So many more before the oldest are dropped, so that not every publication has to look for them.
const VERSIONS_SLACK: i64 = 1_000;
/// Tokens of one client: more than any rotation with a grace period leaves behind. The oldest give way.
const TOKENS_MAX: u32 = 8;

/// Whose hands a token was given into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitHolder {
    Operator,
    Device,
}

impl GitHolder {
    pub fn as_str(self) -> &'static str {
        match self {
            GitHolder::Operator => "operator",
            GitHolder::Device => "device",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [GitHolder::Operator, GitHolder::Device].into_iter().find(|holder| holder.as_str() == text)
    }
}

/// A token as it is stored: only its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGitToken {
    pub hash: Digest,
    pub holder: GitHolder,
    /// `None`: until it is replaced.
    pub expires_at: Option<Moment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitTokenRecord {
    pub holder: GitHolder,
    pub created_at: Moment,
    pub expires_at: Option<Moment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitRecord {
    pub since: Moment,
    /// The newest version that has to be in the repository.
    pub version: u64,
    /// The oldest that can be made anew.
    pub oldest: u64,
    pub made: bool,
    /// Oldest first; those that have expired are left out.
    pub tokens: Vec<GitTokenRecord>,
}

/// What one commit changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitVersion {
    pub version: u64,
    pub at: Moment,
    pub body: Vec<u8>,
    /// Documents that are new or changed; all there are, for the first commit.
    pub put: Vec<(AssignmentId, Vec<u8>)>,
    pub dropped: Vec<AssignmentId>,
}

#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("{0} is not an accepted client")]
    NotAccepted(ClientId),
    #[error("{0} has no Git repository")]
    NotOn(ClientId),
    #[error(transparent)]
    Store(#[from] Error),
}
from_database!(GitError);

impl Store {
    /// Gives a client a repository that begins with its current manifest, and a token; `false`, and nothing is
    /// changed, if it has one.
    pub async fn begin_git(
        &self,
        client: &ClientId,
        token: NewGitToken,
        at: Moment,
        actor: &str,
    ) -> Result<bool, GitError> {
        let (client, actor) = (client.clone(), actor.to_owned());
        self.write(move |tx| {
            let sql = tx.sql;
            if is_on(sql, &client)? {
                return Ok(false);
            }
            let standing = sql
                .statement("SELECT standing FROM client WHERE id = ?1")?
                .query_row([client.as_str()], |row| column::word(row, "standing", Standing::parse))
                .optional()?;
            if standing != Some(Standing::Accepted) {
                return Err(GitError::NotAccepted(client.clone()));
            }
            sql.statement("INSERT INTO git_repository (client, since, kept) VALUES (?1, ?2, 1)")?
                .execute((client.as_str(), column::moment(at)))?;
            sql.statement(
                "INSERT INTO git_version (client, version, at, body)
                 SELECT client, version, ?2, body FROM manifest WHERE client = ?1",
            )?
            .execute((client.as_str(), column::moment(at)))?;
            sql.statement(
                "INSERT INTO git_document (client, assignment, since, digest, bytes)
                 SELECT manifest.client, assignment, version, digest, bytes FROM manifest
                 JOIN document ON document.client = manifest.client AND until IS NULL
                 WHERE manifest.client = ?1",
            )?
            .execute([client.as_str()])?;
            insert_token(sql, &client, &token, at)?;
            let device = speaker(sql, &client)?;
            let text = format!("{device} has a Git repository of its own from now on");
            tx.note(NewEvent::new(at, "device.git", &actor, text).device(&device))?;
            Ok(true)
        })
        .await
    }

    /// Puts a new token in the place of all others, which end at `until`, or at once.
    pub async fn replace_git_tokens(
        &self,
        client: &ClientId,
        token: NewGitToken,
        until: Option<Moment>,
        at: Moment,
        actor: &str,
    ) -> Result<(), GitError> {
        let (client, actor) = (client.clone(), actor.to_owned());
        self.write(move |tx| {
            let sql = tx.sql;
            if !is_on(sql, &client)? {
                return Err(GitError::NotOn(client.clone()));
            }
            match until {
                // Never longer than it would have worked anyway.
                Some(until) => sql.statement(
                    "UPDATE git_token SET expires_at = min(coalesce(expires_at, ?2), ?2) WHERE client = ?1",
                )?
                .execute((client.as_str(), column::moment(until)))?,
                None => sql.statement("DELETE FROM git_token WHERE client = ?1")?.execute([client.as_str()])?,
            };
            insert_token(sql, &client, &token, at)?;
            let before = match until {
                Some(_) => "those of before work for a while yet",
                None => "those of before are void",
            };
            let device = speaker(sql, &client)?;
            let text = format!("the Git token of {device} was replaced; {before}");
            tx.note(NewEvent::new(at, "device.git", &actor, text).device(&device))?;
            Ok(())
        })
        .await
    }

    /// Makes one more token; those that are there stay.
    pub async fn add_git_token(
        &self,
        client: &ClientId,
        token: NewGitToken,
        at: Moment,
    ) -> Result<(), GitError> {
        let client = client.clone();
        self.write(move |tx| {
            if !is_on(tx.sql, &client)? {
                return Err(GitError::NotOn(client.clone()));
            }
            insert_token(tx.sql, &client, &token, at)?;
            let device = speaker(tx.sql, &client)?;
            let text = format!("{device} asked for a token for its Git repository");
            let actor = format!("device {client}");
            tx.note(NewEvent::new(at, "device.git", actor, text).device(&device))?;
            Ok(())
        })
        .await
    }

    /// Closes the repository for good, with all tokens and whatever permission there was; `false` if there was none.
    pub async fn end_git(&self, client: &ClientId, at: Moment, actor: &str) -> Result<bool, Error> {
        let (client, actor) = (client.clone(), actor.to_owned());
        self.write(move |tx| {
            let sql = tx.sql;
            sql.statement("DELETE FROM git_grant WHERE client = ?1")?.execute([client.as_str()])?;
            let ended =
                sql.statement("DELETE FROM git_repository WHERE client = ?1")?.execute([client.as_str()])?;
            if ended == 0 {
                return Ok(false);
            }
            let device = speaker(sql, &client)?;
            let text = format!("the Git repository of {device} was closed");
            tx.note(NewEvent::new(at, "device.git", &actor, text).device(&device))?;
            Ok(true)
        })
        .await
    }

    /// Whether the device of this name may set itself to Git.
    pub async fn allow_git(&self, client: &ClientId, allowed: bool) -> Result<(), Error> {
        let client = client.clone();
        self.write(move |tx| {
            let statement = match allowed {
                true => "INSERT INTO git_grant (client) VALUES (?1) ON CONFLICT (client) DO NOTHING",
                false => "DELETE FROM git_grant WHERE client = ?1",
            };
            tx.sql.statement(statement)?.execute([client.as_str()])?;
            Ok(())
        })
        .await
    }

    pub async fn git_allowed(&self, client: &ClientId) -> Result<bool, Error> {
        let client = client.clone();
        self.read(move |sql| {
            Ok(sql.statement("SELECT 1 FROM git_grant WHERE client = ?1")?.exists([client.as_str()])?)
        })
        .await
    }

    /// Everybody who has a repository.
    pub async fn git_clients(&self) -> Result<Vec<ClientId>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT client FROM git_repository")?;
            Ok(statement.query_map([], |row| row.parsed("client"))?.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub async fn git_repository(&self, client: &ClientId, now: Moment) -> Result<Option<GitRecord>, Error> {
        let client = client.clone();
        self.read(move |sql| {
            let found = sql
                .statement(
                    "SELECT since, made, (SELECT max(version) FROM git_version WHERE client = ?1) AS version,
                         (SELECT min(version) FROM git_version WHERE client = ?1) AS oldest
                     FROM git_repository WHERE client = ?1",
                )?
                .query_row([client.as_str()], |row| {
                    Ok(GitRecord {
                        since: row.moment("since")?,
                        version: row.unsigned("version")?,
                        oldest: row.unsigned("oldest")?,
                        made: row.get("made")?,
                        tokens: Vec::new(),
                    })
                })
                .optional()?;
            let Some(mut record) = found else { return Ok(None) };
            record.tokens = sql
                .statement(
                    "SELECT holder, created_at, expires_at FROM git_token
                     WHERE client = ?1 AND (expires_at IS NULL OR expires_at > ?2) ORDER BY created_at, hash",
                )?
                .query_map((client.as_str(), column::moment(now)), read_token)?
                .collect::<Result<_, _>>()?;
            Ok(Some(record))
        })
        .await
    }

    /// Whose repository a token opens.
    pub async fn git_owner(&self, hash: Digest, now: Moment) -> Result<Option<ClientId>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT client FROM git_token WHERE hash = ?1 AND (expires_at IS NULL OR expires_at > ?2)",
            )?;
            let key = (hash.as_bytes(), column::moment(now));
            Ok(statement.query_row(key, |row| row.parsed("client")).optional()?)
        })
        .await
    }

    /// What the next commits after a version hold, oldest first; from the oldest that is known without one.
    pub async fn git_versions_after(
        &self,
        client: &ClientId,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Vec<GitVersion>, Error> {
        let client = client.clone();
        self.read(move |sql| {
            let above = column::unsigned("the manifest version", after.unwrap_or(0))?;
            let mut versions: Vec<GitVersion> = sql
                .statement(
                    "SELECT version, at, body FROM git_version WHERE client = ?1 AND version > ?2
                     ORDER BY version LIMIT ?3",
                )?
                .query_map((client.as_str(), above, limit), |row| {
                    Ok(GitVersion {
                        version: row.unsigned("version")?,
                        at: row.moment("at")?,
                        body: row.get("body")?,
                        put: Vec::new(),
                        dropped: Vec::new(),
                    })
                })?
                .collect::<Result<_, _>>()?;
            for (index, version) in versions.iter_mut().enumerate() {
                let key = (client.as_str(), column::unsigned("the manifest version", version.version)?);
                let whole = after.is_none() && index == 0;
                let put = if whole { "since <= ?2 AND (until IS NULL OR until > ?2)" } else { "since = ?2" };
                version.put = sql
                    .statement(&format!(
                        "SELECT assignment, bytes FROM git_document WHERE client = ?1 AND {put} ORDER BY assignment"
                    ))?
                    .query_map(key, |row| {
                        Ok((AssignmentId::from_uuid(row.uuid("assignment")?), row.get("bytes")?))
                    })?
                    .collect::<Result<_, _>>()?;
                if whole {
                    continue;
                }
                version.dropped = sql
                    .statement(
                        "SELECT assignment FROM git_document AS gone WHERE client = ?1 AND until = ?2
                         AND NOT EXISTS (SELECT 1 FROM git_document AS next WHERE next.client = ?1
                             AND next.assignment = gone.assignment AND next.since = ?2) ORDER BY assignment",
                    )?
                    .query_map(key, |row| Ok(AssignmentId::from_uuid(row.uuid("assignment")?)))?
                    .collect::<Result<_, _>>()?;
            }
            Ok(versions)
        })
        .await
    }

    /// The exact manifest that one commit holds.
    pub async fn git_manifest(&self, client: &ClientId, version: u64) -> Result<Option<Vec<u8>>, Error> {
        let client = client.clone();
        self.read(move |sql| {
            let Ok(version) = i64::try_from(version) else { return Ok(None) };
            let mut statement =
                sql.statement("SELECT body FROM git_version WHERE client = ?1 AND version = ?2")?;
            Ok(statement.query_row((client.as_str(), version), |row| row.get(0)).optional()?)
        })
        .await
    }

    /// The repository is on disk. What had to be `rebuilt`, and why, is told, with its time.
    pub async fn git_is_made(
        &self,
        client: &ClientId,
        rebuilt: Option<(Moment, String)>,
    ) -> Result<(), Error> {
        let client = client.clone();
        self.write(move |tx| {
            tx.sql
                .statement("UPDATE git_repository SET made = 1 WHERE client = ?1")?
                .execute([client.as_str()])?;
            if let Some((at, what)) = &rebuilt {
                let device = speaker(tx.sql, &client)?;
                let text = format!("the Git repository of {device} was made anew from the store, {what}");
                tx.note(NewEvent::new(*at, "device.git-rebuilt", "server", text).device(&device))?;
            }
            Ok(())
        })
        .await
    }

    /// Forgets tokens that nobody can use any more; returns how many.
    pub async fn sweep_git_tokens(&self, now: Moment) -> Result<usize, Error> {
        self.write(move |tx| {
            Ok(tx
                .sql
                .statement("DELETE FROM git_token WHERE expires_at <= ?1")?
                .execute([column::moment(now)])?)
        })
        .await
    }
}

fn is_on(sql: &Sql<'_>, client: &ClientId) -> rusqlite::Result<bool> {
    sql.statement("SELECT 1 FROM git_repository WHERE client = ?1")?.exists([client.as_str()])
}

fn read_token(row: &Row<'_>) -> rusqlite::Result<GitTokenRecord> {
    Ok(GitTokenRecord {
        holder: column::word(row, "holder", GitHolder::parse)?,
        created_at: row.moment("created_at")?,
        expires_at: row.moment_maybe("expires_at")?,
    })
}

fn insert_token(sql: &Sql<'_>, client: &ClientId, token: &NewGitToken, at: Moment) -> rusqlite::Result<()> {
    let NewGitToken { hash, holder, expires_at } = token;
    sql.statement("DELETE FROM git_token WHERE client = ?1 AND expires_at <= ?2")?
        .execute((client.as_str(), column::moment(at)))?;
    // A device that asks again and again must not push out what an operator was shown.
    sql.statement(
        "DELETE FROM git_token WHERE hash IN (SELECT hash FROM git_token WHERE client = ?1 AND holder = ?2
             ORDER BY created_at DESC, hash LIMIT -1 OFFSET ?3)",
    )?
    .execute((client.as_str(), holder.as_str(), TOKENS_MAX - 1))?;
    sql.statement(
        "INSERT INTO git_token (hash, client, holder, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute((
        hash.as_bytes(),
        client.as_str(),
        holder.as_str(),
        column::moment(at),
        expires_at.map(column::moment),
    ))?;
    Ok(())
}

/// Whether any client has a repository.
pub(crate) fn is_used(sql: &Sql<'_>) -> rusqlite::Result<bool> {
    sql.statement("SELECT 1 FROM git_repository")?.exists([])
}

/// Writes down what the commit of a new manifest has to hold, if its client has a repository. The manifest's documents are
/// there already.
pub(crate) fn record(sql: &Sql<'_>, client: &ClientId, new: &NewManifest, at: Moment) -> Result<(), Error> {
    let kept: Option<i64> = sql
        .statement("UPDATE git_repository SET kept = kept + 1 WHERE client = ?1 RETURNING kept")?
        .query_row([client.as_str()], |row| row.get(0))
        .optional()?;
    let Some(kept) = kept else { return Ok(()) };
    let version = column::unsigned("the manifest version", new.manifest.version())?;
    sql.statement("INSERT INTO git_version (client, version, at, body) VALUES (?1, ?2, ?3, ?4)")?
        .execute((client.as_str(), version, column::moment(at), &new.body))?;
    let before: BTreeMap<AssignmentId, Digest> = sql
        .statement("SELECT assignment, digest FROM git_document WHERE client = ?1 AND until IS NULL")?
        .query_map([client.as_str()], |row| {
            Ok((AssignmentId::from_uuid(row.uuid("assignment")?), row.digest("digest")?))
        })?
        .collect::<Result<_, _>>()?;
    let after: BTreeMap<AssignmentId, Digest> =
        new.manifest.entries().iter().map(|entry| (entry.id, entry.document.digest)).collect();
    for (id, _) in before.iter().filter(|(id, digest)| after.get(id) != Some(digest)) {
        sql.statement(
            "UPDATE git_document SET until = ?3 WHERE client = ?1 AND assignment = ?2 AND until IS NULL",
        )?
        .execute((client.as_str(), id.uuid().as_bytes(), version))?;
    }
    for (id, digest) in after.iter().filter(|(id, digest)| before.get(id) != Some(digest)) {
        let written = sql
            .statement(
                "INSERT INTO git_document (client, assignment, since, digest, bytes)
                 SELECT client, assignment, ?3, digest, bytes FROM document
                 WHERE client = ?1 AND assignment = ?2 AND digest = ?4",
            )?
            .execute((client.as_str(), id.uuid().as_bytes(), version, digest.as_bytes()))?;
        if written == 0 {
            return Err(Error::Damaged { what: "a commit with a document whose bytes are not there" });
        }
    }
    if kept > VERSIONS_KEPT + VERSIONS_SLACK {
        forget_oldest(sql, client, VERSIONS_KEPT)?;
    }
    Ok(())
}

/// Keeps the newest versions, and every document that one of them has.
fn forget_oldest(sql: &Sql<'_>, client: &ClientId, keep: i64) -> rusqlite::Result<()> {
    let oldest: i64 = sql
        .statement(
            "SELECT version FROM git_version WHERE client = ?1 ORDER BY version DESC LIMIT 1 OFFSET ?2",
        )?
        .query_row((client.as_str(), keep - 1), |row| row.get(0))?;
    sql.statement("DELETE FROM git_version WHERE client = ?1 AND version < ?2")?
        .execute((client.as_str(), oldest))?;
    sql.statement("DELETE FROM git_document WHERE client = ?1 AND until <= ?2")?
        .execute((client.as_str(), oldest))?;
    sql.statement("UPDATE git_repository SET kept = ?2 WHERE client = ?1")?
        .execute((client.as_str(), keep))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_core::manifest::{Blob, Entry, Manifest};
    use uuid::Uuid;

    const NOW: Moment = Moment(1_790_000_000_000);

    fn count(sql: &Sql<'_>, table: &str) -> i64 {
        sql.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn the_oldest_versions_go_with_the_documents_that_only_they_had() {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::connection::writing(directory.path(), None).unwrap();
        let sql = Sql::new(&connection);
        let client: ClientId = "line-1".parse().unwrap();
        sql.execute("INSERT INTO client (id, standing, joined_at) VALUES ('line-1', 'accepted', 0)", [])
            .unwrap();
        sql.execute("INSERT INTO git_repository (client, since, kept) VALUES ('line-1', 0, 0)", []).unwrap();
        let id = |number| AssignmentId::from_uuid(Uuid::from_u128(number));
        // One document that never changes, and one that is new in every version.
        for version in 1..=6u64 {
            let entries = [(id(1), b"steady".to_vec()), (id(2), format!("moving {version}").into_bytes())]
                .map(|(id, bytes)| {
                    let digest = Digest::of(&bytes);
                    sql.execute(
                        "INSERT INTO document (client, assignment, digest, bytes) VALUES ('line-1', ?1, ?2, ?3)
                         ON CONFLICT DO NOTHING",
                        (id.uuid().as_bytes(), digest.as_bytes(), &bytes),
                    )
                    .unwrap();
                    Entry { id, document: Blob { digest, size: None } }
                });
            let bundle = Blob { digest: Digest::of(b"bundle"), size: None };
            let manifest = Manifest::new(version, Some(bundle), entries.to_vec()).unwrap();
            let new =
                NewManifest { replaces: vec![], manifest, body: vec![], bundle: None, documents: vec![] };
            record(&sql, &client, &new, NOW).unwrap();
        }
        assert_eq!((count(&sql, "git_version"), count(&sql, "git_document")), (6, 7));
        forget_oldest(&sql, &client, 2).unwrap();
        // Version 5 is the oldest now: it has the steady one, and its own.
        assert_eq!((count(&sql, "git_version"), count(&sql, "git_document")), (2, 3));
        let kept: i64 = sql.query_row("SELECT kept FROM git_repository", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, 2);
    }
}
