//! How far the newest revision of a deployment came, where it goes in steps.
//!
//! Made in the transaction of the change itself (publication.rs), and moved in those that publish the next steps, so a
//! device is released exactly when its manifest says so. What moves next is decided elsewhere (`margrave_core::rollout`).

use std::collections::HashSet;

use margrave_core::id::{DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion};
use margrave_core::moment::Moment;
use margrave_core::rollout::{Reached, Strategy};
use rusqlite::{OptionalExtension as _, Row};

use crate::column::{self, Columns as _};
use crate::event::NewEvent;
use crate::publication::PublishError;
use crate::sql::Sql;
use crate::{Error, Store};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutRecord {
    pub deployment: DeploymentId,
    pub name: DeploymentName,
    /// The one that it takes to the devices.
    pub revision: u64,
    /// The one to go back to.
    pub before: Option<u64>,
    pub size: u32,
    pub strategy: Strategy,
    pub reached: Reached,
    pub state: RolloutState,
    /// Why it was halted.
    pub why: Option<String>,
    pub begun_at: Moment,
    pub changed_at: Moment,
    pub changed_by: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutState {
    Running,
    Paused,
    Halted,
    /// The deployment is about to go back.
    Reverting,
    Aborted,
    Done,
}

impl RolloutState {
    const ALL: [RolloutState; 6] = [
        RolloutState::Running,
        RolloutState::Paused,
        RolloutState::Halted,
        RolloutState::Reverting,
        RolloutState::Aborted,
        RolloutState::Done,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RolloutState::Running => "running",
            RolloutState::Paused => "paused",
            RolloutState::Halted => "halted",
            RolloutState::Reverting => "reverting",
            RolloutState::Aborted => "aborted",
            RolloutState::Done => "done",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<RolloutState> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// A device of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRecord {
    pub device: DeviceRef,
    pub place: u32,
    pub released_at: Option<Moment>,
    pub forgiven: bool,
    /// The revision that it has until its turn comes; none where it has none.
    pub keeps: Option<u64>,
}

impl MemberRecord {
    /// From a row that begins with the name, and the place.
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<MemberRecord> {
        Ok(MemberRecord {
            device: DeviceRef::new(column::parsed_at(row, 0)?, column::parsed_at(row, 1)?),
            place: row.get(2)?,
            released_at: row.moment_maybe("released_at")?,
            forgiven: row.get(4)?,
            keeps: unsigned_maybe(row, "keeps")?,
        })
    }
}

/// A device of a rollout that begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMember {
    pub device: DeviceRef,
    /// It gets the new revision at once.
    pub released: bool,
    /// The revision that it has until its turn comes; none where it has none.
    pub keeps: Option<u64>,
}

/// A device that a rollout holds back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingRecord {
    pub device: DeviceRef,
    pub deployment: DeploymentId,
    pub name: DeploymentName,
    pub package: PackageId,
    pub version: PackageVersion,
    /// The one that it has not been given.
    pub revision: u64,
    /// The one that it has meanwhile, if it has one.
    pub keeps: Option<u64>,
    pub state: RolloutState,
    pub place: u32,
    /// How many devices the rollout began with.
    pub size: u32,
    pub strategy: Strategy,
    /// Since when it waits.
    pub since: Moment,
}

impl WaitingRecord {
    /// The batch in which its turn comes, counted from 1.
    pub fn batch(&self) -> u32 {
        self.strategy.batch_of(self.place, self.size) + 1
    }
}

/// What a publication does to a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutChange {
    /// Begins with the revision that is put; `members` in their order.
    Begin {
        deployment: DeploymentId,
        revision: u64,
        before: Option<u64>,
        reached: Reached,
        members: Vec<NewMember>,
    },
    /// The same in the place of one that was stopped, and stopped as that was; nobody is released.
    CarryOver { revision: u64, members: Vec<NewMember>, stopped: Box<RolloutRecord> },
    /// These get it now.
    Release { deployment: DeploymentId, revision: u64, reached: Reached, devices: Vec<DeviceRef> },
    /// These came to it, and stand at its end; each with the revision that it has until its turn comes, if it has one.
    Join { deployment: DeploymentId, revision: u64, devices: Vec<(DeviceRef, Option<u64>)> },
    /// These wait no more, because it is not meant for them any more.
    Leave { deployment: DeploymentId, devices: Vec<DeviceRef> },
}

/// A change of a rollout that publishes nothing.
#[derive(Debug, Clone)]
pub struct RolloutUpdate {
    pub deployment: DeploymentId,
    pub revision: u64,
    /// Only from one of these.
    pub from: Vec<RolloutState>,
    pub to: RolloutState,
    pub why: Option<String>,
    pub reached: Reached,
    /// Those whose failure is let go.
    pub forgiven: Vec<DeviceRef>,
    pub at: Moment,
    /// Who changed the state; nobody when it stays.
    pub by: Option<String>,
    pub event: Option<NewEvent>,
}

impl Store {
    /// The rollouts that are not done, by name.
    pub async fn rollouts_open(&self) -> Result<Vec<RolloutRecord>, Error> {
        self.read(|sql| {
            let mut statement =
                sql.statement(&format!("{ROLLOUTS} WHERE state <> 'done' AND removed = 0 ORDER BY name"))?;
            Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// The rollout of what is wanted now; none when it was all at once.
    pub async fn rollout(&self, deployment: DeploymentId) -> Result<Option<RolloutRecord>, Error> {
        self.read(move |sql| {
            let mut statement =
                sql.statement(&format!("{ROLLOUTS} WHERE deployment = ?1 AND removed = 0"))?;
            Ok(statement.query_row([deployment.uuid().as_bytes()], read).optional()?)
        })
        .await
    }

    /// Its devices, in their order.
    pub async fn rollout_members(&self, deployment: DeploymentId) -> Result<Vec<MemberRecord>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT client, device, place, released_at, forgiven, keeps FROM rollout_member
                 WHERE deployment = ?1 ORDER BY place",
            )?;
            let rows = statement.query_map([deployment.uuid().as_bytes()], MemberRecord::read)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Devices that said of what they are given now that it failed, whatever they have said since.
    pub async fn failed_once(&self, deployment: DeploymentId) -> Result<HashSet<DeviceRef>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT client, device FROM assignment
                 WHERE deployment = ?1 AND archived = 0 AND wanted = 1 AND EXISTS (SELECT 1 FROM transition
                     WHERE transition.assignment = assignment.id AND transition.state = 'FAILED'
                     AND transition.adopted >= assignment.changed_version)",
            )?;
            let rows = statement.query_map([deployment.uuid().as_bytes()], client_and_device)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Devices that were released and said since that what they were given failed, also those that nobody wants it on any more.
    pub async fn failed_in_rollout(&self, deployment: DeploymentId) -> Result<Vec<DeviceRef>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT member.client, member.device FROM deployment
                 CROSS JOIN rollout_member AS member ON member.deployment = deployment.id
                 CROSS JOIN assignment ON assignment.deployment_name = deployment.name
                     AND assignment.client = member.client AND assignment.device = member.device
                     AND assignment.deployment = deployment.id
                 WHERE deployment.id = ?1 AND released_at IS NOT NULL AND EXISTS (SELECT 1 FROM transition
                     WHERE transition.assignment = assignment.id AND transition.state IN ('FAILED', 'ROLLINGBACK')
                     AND late = 0 AND transition.received_at >= released_at)",
            )?;
            let rows = statement.query_map([deployment.uuid().as_bytes()], client_and_device)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// What each of these devices waits for, by name.
    pub async fn waiting_of(&self, devices: Vec<DeviceRef>) -> Result<Vec<WaitingRecord>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(&format!(
                "{WAITING} WHERE member.client = ?1 AND member.device = ?2 AND member.waits = 1 ORDER BY name"
            ))?;
            let mut found = Vec::new();
            for device in &devices {
                for record in
                    statement.query_map([device.client.as_str(), device.device.as_str()], read_waiting)?
                {
                    found.push(record?);
                }
            }
            Ok(found)
        })
        .await
    }

    /// The first that a rollout holds back, in their order.
    pub async fn waiting_in(
        &self,
        deployment: DeploymentId,
        limit: u32,
    ) -> Result<Vec<WaitingRecord>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(&format!(
                "{WAITING} WHERE member.deployment = ?1 AND member.waits = 1 ORDER BY place LIMIT ?2"
            ))?;
            let rows = statement.query_map((deployment.uuid().as_bytes(), limit), read_waiting)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// The rollouts that are not done and that a device is part of, and whether it was released in them.
    pub async fn rollouts_of(&self, device: &DeviceRef) -> Result<Vec<(DeploymentId, bool)>, Error> {
        let device = device.clone();
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT deployment, released_at IS NOT NULL AS released FROM rollout_member
                 JOIN rollout USING (deployment) WHERE client = ?1 AND device = ?2 AND state <> 'done'",
            )?;
            let rows = statement.query_map([device.client.as_str(), device.device.as_str()], |row| {
                Ok((DeploymentId::from_uuid(row.uuid("deployment")?), row.get("released")?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Changes a rollout without publishing anything; `false` if it is not any more what was looked at.
    pub async fn update_rollout(&self, update: RolloutUpdate) -> Result<bool, Error> {
        self.write(move |tx| {
            let RolloutUpdate { deployment, revision, from, to, why, reached, forgiven, at, by, event } = &update;
            let key = (deployment.uuid(), column::unsigned("the revision", *revision)?);
            let state: Option<String> = tx
                .sql
                .statement("SELECT state FROM rollout WHERE deployment = ?1 AND revision = ?2")?
                .query_row((key.0.as_bytes(), key.1), |row| row.get(0))
                .optional()?;
            let state = state.and_then(|state| RolloutState::parse(&state));
            if !state.is_some_and(|state| from.contains(&state)) {
                return Ok(false);
            }
            tx.sql
                .statement(
                    "UPDATE rollout SET state = ?2, why = ?3, batch = ?4, good_since = ?5,
                         changed_at = CASE WHEN ?7 IS NULL THEN changed_at ELSE ?6 END,
                         changed_by = coalesce(?7, changed_by) WHERE deployment = ?1",
                )?
                .execute((
                    key.0.as_bytes(),
                    to.as_str(),
                    why,
                    reached.batch,
                    reached.good_since.map(column::moment),
                    column::moment(*at),
                    by,
                ))?;
            for device in forgiven {
                tx.sql
                    .statement(
                        "UPDATE rollout_member SET forgiven = 1 WHERE deployment = ?1 AND client = ?2 AND device = ?3",
                    )?
                    .execute((key.0.as_bytes(), device.client.as_str(), device.device.as_str()))?;
            }
            if let Some(event) = event {
                tx.note(event.clone())?;
            }
            Ok(true)
        })
        .await
    }
}

const ROLLOUTS: &str =
    "SELECT rollout.*, name, strategy FROM rollout JOIN deployment ON deployment.id = rollout.deployment
    AND deployment.revision = rollout.revision";

const WAITING: &str = "SELECT member.client, member.device, member.deployment, member.keeps, place, name,
        package, version, rollout.revision, rollout.state, size, strategy, begun_at
    FROM rollout_member AS member CROSS JOIN rollout ON rollout.deployment = member.deployment
    CROSS JOIN deployment ON deployment.id = member.deployment";

fn read_waiting(row: &Row<'_>) -> rusqlite::Result<WaitingRecord> {
    Ok(WaitingRecord {
        device: DeviceRef::new(row.parsed("client")?, row.parsed("device")?),
        deployment: DeploymentId::from_uuid(row.uuid("deployment")?),
        name: row.parsed("name")?,
        package: row.parsed("package")?,
        version: row.parsed("version")?,
        revision: row.unsigned("revision")?,
        keeps: unsigned_maybe(row, "keeps")?,
        state: column::word(row, "state", RolloutState::parse)?,
        place: row.get("place")?,
        size: row.get("size")?,
        strategy: strategy(row)?,
        since: row.moment("begun_at")?,
    })
}

fn unsigned_maybe(row: &Row<'_>, name: &'static str) -> rusqlite::Result<Option<u64>> {
    row.get::<_, Option<i64>>(name)?.map(|_| row.unsigned(name)).transpose()
}

fn read(row: &Row<'_>) -> rusqlite::Result<RolloutRecord> {
    Ok(RolloutRecord {
        deployment: DeploymentId::from_uuid(row.uuid("deployment")?),
        name: row.parsed("name")?,
        revision: row.unsigned("revision")?,
        before: unsigned_maybe(row, "before")?,
        size: row.get("size")?,
        strategy: strategy(row)?,
        reached: Reached { batch: row.get("batch")?, good_since: row.moment_maybe("good_since")? },
        state: column::word(row, "state", RolloutState::parse)?,
        why: row.get("why")?,
        begun_at: row.moment("begun_at")?,
        changed_at: row.moment("changed_at")?,
        changed_by: row.get("changed_by")?,
    })
}

/// The strategy in a row of `deployment` or of its revisions.
pub(crate) fn strategy(row: &Row<'_>) -> rusqlite::Result<Strategy> {
    match row.get::<_, Option<String>>("strategy")? {
        Some(_) => row.json("strategy"),
        None => Ok(Strategy::default()),
    }
}

/// Ends the rollout of an earlier revision; if it did not come to its end, the revision says why.
pub(crate) fn end(sql: &Sql<'_>, deployment: DeploymentId) -> rusqlite::Result<()> {
    sql.statement(
        "UPDATE deployment_revision SET unfinished = (SELECT CASE
                 WHEN state IN ('halted', 'reverting') THEN coalesce(why, 'halted')
                 WHEN state = 'aborted' THEN 'aborted by ' || changed_by
                 ELSE 'replaced before every device had it' END
             FROM rollout WHERE deployment = ?1)
         WHERE name = (SELECT name FROM deployment WHERE id = ?1)
           AND revision = (SELECT revision FROM rollout WHERE deployment = ?1 AND state <> 'done')",
    )?
    .execute([deployment.uuid().as_bytes()])?;
    sql.statement("DELETE FROM rollout WHERE deployment = ?1")?.execute([deployment.uuid().as_bytes()])?;
    Ok(())
}

pub(crate) fn change(
    sql: &Sql<'_>,
    change: &RolloutChange,
    at: Moment,
    by: Option<&str>,
) -> Result<(), PublishError> {
    match change {
        RolloutChange::Begin { deployment, revision, before, reached, members } => {
            begin(sql, *deployment, (*revision, *before), *reached, members, at, by)?;
        }
        RolloutChange::CarryOver { revision, members, stopped } => {
            let RolloutRecord { deployment, before, state, why, changed_at, changed_by, .. } = &**stopped;
            begin(sql, *deployment, (*revision, *before), Reached::default(), members, at, by)?;
            sql.statement(
                "UPDATE rollout SET state = ?2, why = ?3, changed_at = ?4, changed_by = ?5 WHERE deployment = ?1",
            )?
            .execute((
                deployment.uuid().as_bytes(),
                state.as_str(),
                why,
                column::moment(*changed_at),
                changed_by,
            ))?;
        }
        RolloutChange::Release { deployment, revision, reached, devices } => {
            expect(sql, *deployment, *revision, "state = 'running'")?;
            sql.statement("UPDATE rollout SET batch = ?2, good_since = ?3 WHERE deployment = ?1")?.execute(
                (deployment.uuid().as_bytes(), reached.batch, reached.good_since.map(column::moment)),
            )?;
            for device in devices {
                sql.statement(
                    "UPDATE rollout_member SET released_at = ?4 WHERE deployment = ?1 AND client = ?2 AND device = ?3",
                )?
                .execute((
                    deployment.uuid().as_bytes(),
                    device.client.as_str(),
                    device.device.as_str(),
                    column::moment(at),
                ))?;
            }
        }
        RolloutChange::Join { deployment, revision, devices } => {
            expect(sql, *deployment, *revision, "state <> 'done'")?;
            for (device, keeps) in devices {
                let keeps = keeps.map(|keeps| column::unsigned("the revision", keeps)).transpose()?;
                join(sql, *deployment, device, keeps)?;
            }
        }
        RolloutChange::Leave { deployment, devices } => {
            for device in devices {
                sql.statement(
                    "DELETE FROM rollout_member
                     WHERE deployment = ?1 AND client = ?2 AND device = ?3 AND released_at IS NULL",
                )?
                .execute((
                    deployment.uuid().as_bytes(),
                    device.client.as_str(),
                    device.device.as_str(),
                ))?;
            }
        }
    }
    Ok(())
}

/// Begins the rollout of a revision, which is not the one to go back to.
fn begin(
    sql: &Sql<'_>,
    deployment: DeploymentId,
    (revision, before): (u64, Option<u64>),
    reached: Reached,
    members: &[NewMember],
    at: Moment,
    by: Option<&str>,
) -> Result<(), PublishError> {
    let size = u32::try_from(members.len()).unwrap_or(u32::MAX);
    sql.statement(
        "INSERT INTO rollout (deployment, revision, before, size, batch, good_since, state, begun_at,
             changed_at, changed_by) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'running', ?7, ?7, ?8)",
    )?
    .execute((
        deployment.uuid().as_bytes(),
        column::unsigned("the revision", revision)?,
        before.map(|before| column::unsigned("the revision", before)).transpose()?,
        size,
        reached.batch,
        reached.good_since.map(column::moment),
        column::moment(at),
        by.unwrap_or("server"),
    ))?;
    for (place, NewMember { device, released, keeps }) in (0u32..).zip(members) {
        sql.statement(
            "INSERT INTO rollout_member (deployment, client, device, place, released_at, keeps)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute((
            deployment.uuid().as_bytes(),
            device.client.as_str(),
            device.device.as_str(),
            place,
            released.then(|| column::moment(at)),
            keeps.map(|keeps| column::unsigned("the revision", keeps)).transpose()?,
        ))?;
    }
    Ok(())
}

/// The rollout must be what the decision was made from.
fn expect(
    sql: &Sql<'_>,
    deployment: DeploymentId,
    revision: u64,
    state: &'static str,
) -> Result<(), PublishError> {
    let found = sql
        .statement(&format!(
            "SELECT 1 FROM rollout JOIN deployment ON deployment.id = rollout.deployment
             WHERE deployment = ?1 AND rollout.revision = ?2 AND deployment.revision = ?2 AND removed = 0 AND {state}"
        ))?
        .exists((deployment.uuid().as_bytes(), column::unsigned("the revision", revision)?))?;
    if found { Ok(()) } else { Err(PublishError::RevisionMoved) }
}

/// Puts a device at the end, unless it is there.
fn join(
    sql: &Sql<'_>,
    deployment: DeploymentId,
    device: &DeviceRef,
    keeps: Option<i64>,
) -> rusqlite::Result<()> {
    sql.statement(
        "INSERT INTO rollout_member (deployment, client, device, place, keeps)
         SELECT ?1, ?2, ?3, coalesce(max(place) + 1, 0), ?4 FROM rollout_member WHERE deployment = ?1
         ON CONFLICT (deployment, client, device) DO NOTHING",
    )?
    .execute((deployment.uuid().as_bytes(), device.client.as_str(), device.device.as_str(), keeps))?;
    Ok(())
}

/// Who a row begins with.
fn client_and_device(row: &rusqlite::Row<'_>) -> rusqlite::Result<DeviceRef> {
    Ok(DeviceRef::new(column::parsed_at(row, 0)?, column::parsed_at(row, 1)?))
}
