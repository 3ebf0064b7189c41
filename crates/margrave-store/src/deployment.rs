//! Deployments as they are wanted, and those that are still going.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use margrave_core::deployment::{Deployment, Override, Targets};
use margrave_core::id::{DeploymentId, DeploymentName, DeviceRef};
use margrave_core::moment::Moment;
use margrave_core::parameters::Answers;
use margrave_core::rollback::Rollback;
use margrave_core::schedule::Weekly;
use margrave_core::selector::Selector;
use rusqlite::{OptionalExtension as _, Row};

use crate::column::{self, Columns as _};
use crate::publication::{MisfitRecord, PublishError};
use crate::rollout;
use crate::sql::Sql;
use crate::{Error, Store};

#[derive(Debug, Clone, PartialEq)]
pub struct DeploymentRecord {
    pub deployment: Deployment,
    pub changed_at: Moment,
    pub changed_by: String,
    pub misfits: Vec<MisfitRecord>,
    /// No longer wanted anywhere; shown until every device said that it is gone.
    pub removed: bool,
    /// That made it so; none before Git was the truth.
    pub commit: Option<String>,
}

impl Store {
    /// All that are wanted, and those that are still going.
    pub async fn deployments(&self) -> Result<Vec<DeploymentRecord>, Error> {
        self.read(|sql| {
            let mut statement =
                sql.statement("SELECT * FROM deployment ORDER BY name, removed, changed_at DESC")?;
            let rows = statement.query_map([], |row| read_deployment(sql, row))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// The deployments that want a device and were refused by what it is, by name, and why.
    pub async fn left_out_of(&self, device: &DeviceRef) -> Result<Vec<(DeploymentName, Vec<String>)>, Error> {
        let device = device.clone();
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT name, reasons FROM misfit JOIN deployment ON deployment.id = misfit.deployment
                 WHERE client = ?1 AND device = ?2 AND removed = 0 ORDER BY name",
            )?;
            let rows = statement.query_map([device.client.as_str(), device.device.as_str()], |row| {
                Ok((row.parsed("name")?, row.json("reasons")?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Which deployments these devices were refused by what they are.
    pub async fn left_out(
        &self,
        devices: Vec<DeviceRef>,
    ) -> Result<BTreeSet<(DeploymentId, DeviceRef)>, Error> {
        self.read(move |sql| {
            let mut statement =
                sql.statement("SELECT deployment FROM misfit WHERE client = ?1 AND device = ?2")?;
            let mut found = BTreeSet::new();
            for device in devices {
                let rows = statement.query_map([device.client.as_str(), device.device.as_str()], |row| {
                    row.uuid("deployment")
                })?;
                for deployment in rows {
                    found.insert((DeploymentId::from_uuid(deployment?), device.clone()));
                }
            }
            Ok(found)
        })
        .await
    }

    /// The deployment of that name that is wanted, or the last one that is still going.
    pub async fn deployment(&self, name: &DeploymentName) -> Result<Option<DeploymentRecord>, Error> {
        let name = name.clone();
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT * FROM deployment WHERE name = ?1 ORDER BY removed, changed_at DESC LIMIT 1",
            )?;
            Ok(statement.query_row([name.as_str()], |row| read_deployment(sql, row)).optional()?)
        })
        .await
    }

    /// Those of these devices that something does not fit now, although it is meant for them.
    pub async fn devices_short(&self, devices: Vec<DeviceRef>) -> Result<Vec<DeviceRef>, Error> {
        self.read(move |sql| {
            let mut statement =
                sql.statement("SELECT 1 FROM misfit WHERE client = ?1 AND device = ?2 AND temporary = 0")?;
            let mut found = Vec::new();
            for device in devices {
                if statement.exists((device.client.as_str(), device.device.as_str()))? {
                    found.push(device);
                }
            }
            Ok(found)
        })
        .await
    }
}

fn read_deployment(sql: &Sql<'_>, row: &Row<'_>) -> rusqlite::Result<DeploymentRecord> {
    let deployment = wanted(row)?;
    let id = deployment.id;
    let misfits = sql
        .statement("SELECT client, device, reasons, temporary FROM misfit WHERE deployment = ?1")?
        .query_map([id.uuid().as_bytes()], |row| {
            let device = DeviceRef::new(row.parsed("client")?, row.parsed("device")?);
            let reasons = row.json("reasons")?;
            Ok(MisfitRecord { deployment: id, device, reasons, temporary: row.get("temporary")? })
        })?
        .collect::<Result<_, _>>()?;
    Ok(DeploymentRecord {
        deployment,
        changed_at: row.moment("changed_at")?,
        changed_by: row.get("changed_by")?,
        removed: row.get("removed")?,
        commit: row.get("commit_id")?,
        misfits,
    })
}

/// What is wanted, from a row of `deployment` or of its revisions.
pub(crate) fn wanted(row: &Row<'_>) -> rusqlite::Result<Deployment> {
    let profile: Option<String> = row.get("profile")?;
    let targets: StoredTargets = row.json("targets")?;
    let overrides: Vec<StoredOverride> = row.json("overrides")?;
    let read = |StoredOverride { of, answers }| Override { of: of.into(), answers };
    Ok(Deployment {
        id: DeploymentId::from_uuid(row.uuid("id")?),
        name: row.parsed("name")?,
        package: row.parsed("package")?,
        version: row.parsed("version")?,
        profile: profile.map(|_| row.parsed("profile")).transpose()?,
        answers: row.json("answers")?,
        overrides: overrides.into_iter().map(read).collect(),
        targets: targets.into(),
        forced: row.get("forced")?,
        rollback: rollback(row)?,
        strategy: rollout::strategy(row)?,
        windows: windows(row)?,
        revision: row.unsigned("revision")?,
    })
}

fn windows(row: &Row<'_>) -> rusqlite::Result<Vec<Weekly>> {
    let text: Option<String> = row.get("windows")?;
    text.map_or(Ok(Vec::new()), |_| row.json("windows"))
}

fn rollback(row: &Row<'_>) -> rusqlite::Result<Rollback> {
    let grace: Option<u32> = row.get("health_grace")?;
    Ok(Rollback {
        when: row.parsed("rollback_when")?,
        attempts: row.get("rollback_attempts")?,
        binding: row.get("attempts_bind")?,
        health_grace: grace.map(|seconds| Duration::from_secs(seconds.into())),
    })
}

/// Targets in their column.
#[derive(serde::Serialize, serde::Deserialize)]
struct StoredTargets {
    devices: Vec<DeviceRef>,
    labels: BTreeMap<String, String>,
    #[serde(default)]
    select: Selector,
    #[serde(default)]
    sites: BTreeSet<String>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct StoredOverride {
    of: StoredTargets,
    answers: Answers,
}

impl From<&Targets> for StoredTargets {
    fn from(targets: &Targets) -> StoredTargets {
        let Targets { devices, labels, select, sites } = targets.clone();
        StoredTargets { devices: devices.into_iter().collect(), labels, select, sites }
    }
}

impl From<StoredTargets> for Targets {
    fn from(StoredTargets { devices, labels, select, sites }: StoredTargets) -> Targets {
        Targets { devices: devices.into_iter().collect(), labels, select, sites }
    }
}

/// Notes which commit made a deployment what it is.
pub(crate) fn mark(sql: &Sql<'_>, id: DeploymentId, commit: Option<&str>) -> rusqlite::Result<()> {
    sql.statement("UPDATE deployment SET commit_id = ?2 WHERE id = ?1")?
        .execute((id.uuid().as_bytes(), commit))?;
    Ok(())
}

/// Forgets removed deployments that no device has any more.
pub(crate) fn forget_removed(sql: &Sql<'_>) -> rusqlite::Result<()> {
    sql.statement(
        "DELETE FROM deployment WHERE removed = 1 AND NOT EXISTS
             (SELECT 1 FROM assignment WHERE assignment.deployment = deployment.id AND archived = 0)",
    )?
    .execute([])?;
    Ok(())
}

pub(crate) fn put(
    sql: &Sql<'_>,
    deployment: &Deployment,
    seen: Option<u64>,
    by: &str,
    at: Moment,
) -> Result<(), PublishError> {
    let Deployment {
        id,
        name,
        package,
        version,
        profile,
        answers,
        overrides,
        targets,
        forced,
        rollback,
        strategy,
        windows,
        revision,
    } = deployment;
    let known = sql
        .statement("SELECT 1 FROM package WHERE id = ?1 AND version = ?2")?
        .exists((package.as_str(), version.as_str()))?;
    if !known {
        return Err(PublishError::PackageGone);
    }
    let held = sql
        .statement("SELECT id, revision FROM deployment WHERE name = ?1 AND removed = 0")?
        .query_row([name.as_str()], |row| {
            Ok((DeploymentId::from_uuid(row.uuid("id")?), row.unsigned("revision")?))
        })
        .optional()?;
    if held != seen.map(|seen| (*id, seen)) {
        return Err(PublishError::RevisionMoved);
    }
    let overrides: Vec<StoredOverride> = overrides
        .iter()
        .map(|other| StoredOverride { of: StoredTargets::from(&other.of), answers: other.answers.clone() })
        .collect();
    sql.statement(
        "INSERT INTO deployment (id, name, package, version, profile, answers, targets, revision, changed_at,
             changed_by, rollback_when, rollback_attempts, health_grace, overrides, forced, strategy, windows,
             attempts_bind)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
         ON CONFLICT (id) DO UPDATE SET removed = 0, package = ?3, version = ?4, profile = ?5, answers = ?6, targets = ?7,
             revision = ?8, changed_at = ?9, changed_by = ?10, rollback_when = ?11, rollback_attempts = ?12,
             health_grace = ?13, overrides = ?14, forced = ?15, strategy = ?16, windows = ?17, attempts_bind = ?18",
    )?
    .execute(rusqlite::params![
        id.uuid().as_bytes(),
        name.as_str(),
        package.as_str(),
        version.as_str(),
        profile.as_ref().map(|profile| profile.as_str()),
        column::json(answers),
        column::json(&StoredTargets::from(targets)),
        column::unsigned("the revision", *revision)?,
        column::moment(at),
        by,
        rollback.when.as_str(),
        rollback.attempts,
        rollback.health_grace.map(|grace| column::unsigned("the grace", grace.as_secs())).transpose()?,
        column::json(&overrides),
        forced,
        (!strategy.is_all_at_once()).then(|| column::json(strategy)),
        (!windows.is_empty()).then(|| column::json(windows)),
        rollback.binding,
    ])?;
    // The decision that comes with this says anew who was left out.
    sql.statement("DELETE FROM misfit WHERE deployment = ?1")?.execute([id.uuid().as_bytes()])?;
    Ok(())
}
