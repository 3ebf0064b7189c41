//! When commits began to count, and deployments that do not follow theirs any more.

use std::collections::HashMap;

use margrave_core::id::{DeploymentId, DeploymentName};
use margrave_core::moment::Moment;
use rusqlite::{OptionalExtension as _, Row};

use crate::column::{self, Columns as _};
use crate::sql::Sql;
use crate::{Error, Store};

/// A commit that was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedRecord {
    pub commit: String,
    pub at: Moment,
    /// Who brought it: pushed it, or asked for the change that it is.
    pub by: String,
}

/// A deployment that the server took back by itself, without a commit that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoneBack {
    pub deployment: DeploymentId,
    /// What it is since then.
    pub revision: u64,
    /// What failed.
    pub failed: u64,
    pub at: Moment,
    pub why: String,
}

fn read(row: &Row<'_>) -> rusqlite::Result<AppliedRecord> {
    Ok(AppliedRecord { commit: row.get("commit_id")?, at: row.moment("at")?, by: row.get("actor")? })
}

pub(crate) fn note(sql: &Sql<'_>, commit: &str, at: Moment, by: &str) -> rusqlite::Result<()> {
    sql.statement("INSERT INTO applied (commit_id, at, actor) VALUES (?1, ?2, ?3)")?.execute((
        commit,
        column::moment(at),
        by,
    ))?;
    Ok(())
}

pub(crate) fn go_back(sql: &Sql<'_>, gone: &GoneBack) -> Result<(), Error> {
    let GoneBack { deployment, revision, failed, at, why } = gone;
    sql.statement(
        "INSERT INTO gone_back (deployment, revision, failed, at, why) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (deployment) DO UPDATE SET revision = ?2, failed = ?3, at = ?4, why = ?5",
    )?
    .execute((
        deployment.uuid().as_bytes(),
        column::unsigned("a revision", *revision)?,
        column::unsigned("a revision", *failed)?,
        column::moment(*at),
        why,
    ))?;
    Ok(())
}

/// A commit says something about this deployment: it counts again.
pub(crate) fn follow_again(sql: &Sql<'_>, name: &DeploymentName) -> rusqlite::Result<()> {
    sql.statement("DELETE FROM gone_back WHERE deployment IN (SELECT id FROM deployment WHERE name = ?1)")?
        .execute([name.as_str()])?;
    Ok(())
}

impl Store {
    /// The commit that counted at a moment; nothing if that was before it was written down.
    pub async fn applied_at(&self, at: Moment) -> Result<Option<AppliedRecord>, Error> {
        self.read(move |sql| {
            let mut statement =
                sql.statement("SELECT * FROM applied WHERE at <= ?1 ORDER BY sequence DESC LIMIT 1")?;
            Ok(statement.query_row([column::moment(at)], read).optional()?)
        })
        .await
    }

    /// The first commit of which it was written down when it began to count.
    pub async fn applied_first(&self) -> Result<Option<AppliedRecord>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT * FROM applied ORDER BY sequence LIMIT 1")?;
            Ok(statement.query_row([], read).optional()?)
        })
        .await
    }

    /// When each of these commits last began to count.
    pub async fn applied(&self, commits: Vec<String>) -> Result<HashMap<String, AppliedRecord>, Error> {
        self.read(move |sql| {
            let mut found = HashMap::new();
            for commit in &commits {
                let mut statement = sql
                    .statement("SELECT * FROM applied WHERE commit_id = ?1 ORDER BY sequence DESC LIMIT 1")?;
                if let Some(record) = statement.query_row([commit], read).optional()? {
                    found.insert(commit.clone(), record);
                }
            }
            Ok(found)
        })
        .await
    }

    /// Deployments that the server took back and that no commit spoke of since.
    pub async fn gone_back(&self) -> Result<Vec<(DeploymentName, GoneBack)>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement(
                "SELECT d.name, g.* FROM gone_back g JOIN deployment d ON d.id = g.deployment AND d.revision = g.revision
                 ORDER BY d.name",
            )?;
            let rows = statement.query_map([], |row| {
                let gone = GoneBack {
                    deployment: DeploymentId::from_uuid(uuid::Uuid::from_bytes(row.get("deployment")?)),
                    revision: row.unsigned("revision")?,
                    failed: row.unsigned("failed")?,
                    at: row.moment("at")?,
                    why: row.get("why")?,
                };
                Ok((row.parsed("name")?, gone))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}
