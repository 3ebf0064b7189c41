//! What a deployment was before: every revision of it, also after it has gone.
//!
//! Written with the change itself (publication.rs), in the same transaction. Nothing reads this to decide
//! what runs; it is for looking back, and for going back.

use margrave_core::deployment::Deployment;
use margrave_core::id::{DeploymentId, DeploymentName};
use margrave_core::moment::Moment;
use rusqlite::{OptionalExtension as _, Row};

use crate::column::Columns as _;
use crate::deployment;
use crate::publication::PublishError;
use crate::sql::Sql;
use crate::{Error, Store};

/// Of one deployment. Nobody goes back further than this, and a program that changes one every minute must not
/// fill the disk.
const REVISIONS_KEPT: i64 = 100;
/// Of all deployments that are gone, together.
const REVISIONS_OF_GONE_KEPT: i64 = 10_000;

/// One revision of a deployment.
#[derive(Debug, Clone, PartialEq)]
pub struct RevisionRecord {
    /// What was wanted; for a removal, what was wanted until then.
    pub deployment: Deployment,
    pub removed: bool,
    pub changed_at: Moment,
    pub changed_by: String,
    /// That made it; none before Git was the truth.
    pub commit: Option<String>,
    /// How its rollout ended, where it was replaced before everybody had it.
    pub unfinished: Option<String>,
}

impl Store {
    /// What the deployments of this name were, newest first. Empty when there never was one, or long ago.
    pub async fn revisions(&self, name: &DeploymentName) -> Result<Vec<RevisionRecord>, Error> {
        let name = name.clone();
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT *, deployment AS id FROM deployment_revision WHERE name = ?1 ORDER BY revision DESC",
            )?;
            Ok(statement.query_map([name.as_str()], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub async fn revision(
        &self,
        name: &DeploymentName,
        revision: u64,
    ) -> Result<Option<RevisionRecord>, Error> {
        let name = name.clone();
        // A number that does not fit names none of ours.
        let Ok(revision) = i64::try_from(revision) else { return Ok(None) };
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT *, deployment AS id FROM deployment_revision WHERE name = ?1 AND revision = ?2",
            )?;
            Ok(statement.query_row((name.as_str(), revision), read).optional()?)
        })
        .await
    }

    /// The newest revision that any deployment of this name had.
    pub async fn revision_newest(&self, name: &DeploymentName) -> Result<Option<u64>, Error> {
        let name = name.clone();
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT revision FROM deployment_revision WHERE name = ?1 ORDER BY revision DESC LIMIT 1",
            )?;
            Ok(statement.query_row([name.as_str()], |row| row.unsigned("revision")).optional()?)
        })
        .await
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<RevisionRecord> {
    Ok(RevisionRecord {
        deployment: deployment::wanted(row)?,
        removed: row.get("removed")?,
        changed_at: row.moment("changed_at")?,
        changed_by: row.get("changed_by")?,
        commit: row.get("commit_id")?,
        unfinished: row.get("unfinished")?,
    })
}

/// Keeps a deployment as it is now. Its revision must be a new one for its name.
pub(crate) fn keep(sql: &Sql<'_>, id: DeploymentId) -> Result<(), PublishError> {
    let kept = sql
        .statement(
            "INSERT INTO deployment_revision (name, revision, deployment, removed, package, version, profile,
                 answers, targets, changed_at, changed_by, rollback_when, rollback_attempts, health_grace,
                 overrides, forced, commit_id, strategy, windows, attempts_bind)
             SELECT name, revision, id, removed, package, version, profile, answers, targets, changed_at, changed_by,
                 rollback_when, rollback_attempts, health_grace, overrides, forced, commit_id, strategy, windows,
                 attempts_bind
             FROM deployment WHERE id = ?1
             ON CONFLICT (name, revision) DO NOTHING",
        )?
        .execute([id.uuid().as_bytes()])?;
    if kept == 0 {
        return Err(PublishError::RevisionMoved);
    }
    sql.statement(
        "DELETE FROM deployment_revision
         WHERE name = (SELECT name FROM deployment WHERE id = ?1)
           AND revision <= (SELECT revision FROM deployment WHERE id = ?1) - ?2",
    )?
    .execute((id.uuid().as_bytes(), REVISIONS_KEPT))?;
    Ok(())
}

/// Forgets the oldest revisions of deployments that are gone.
pub(crate) fn forget_oldest(sql: &Sql<'_>) -> rusqlite::Result<()> {
    sql.statement(
        "DELETE FROM deployment_revision WHERE rowid IN (
             SELECT rowid FROM deployment_revision
             WHERE NOT EXISTS (SELECT 1 FROM deployment WHERE deployment.name = deployment_revision.name)
             ORDER BY rowid DESC LIMIT -1 OFFSET ?1)",
    )?
    .execute([REVISIONS_OF_GONE_KEPT])?;
    Ok(())
}
