//! What people and devices did, in one numbered line.

use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_core::moment::Moment;
use rusqlite::Row;

use crate::client::{own_device, speaker};
use crate::column::{self, Columns as _};
use crate::sql::Sql;
use crate::{Error, Store};

/// Enough to look back weeks in a busy fleet, and some 20 MB on disk.
const EVENTS_KEPT: i64 = 100_000;
const PAGE_MAX: u32 = 1000;

fn page(limit: usize) -> u32 {
    u32::try_from(limit).unwrap_or(PAGE_MAX).min(PAGE_MAX)
}

/// Something that happened, not yet numbered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    pub at: Moment,
    pub kind: &'static str,
    pub actor: String,
    pub device: Option<DeviceRef>,
    pub deployment: Option<DeploymentName>,
    /// `id version`.
    pub package: Option<String>,
    pub text: String,
}

impl NewEvent {
    pub fn new(at: Moment, kind: &'static str, actor: impl Into<String>, text: impl Into<String>) -> Self {
        NewEvent {
            at,
            kind,
            actor: actor.into(),
            device: None,
            deployment: None,
            package: None,
            text: text.into(),
        }
    }

    pub fn device(mut self, device: &DeviceRef) -> Self {
        self.device = Some(device.clone());
        self
    }

    pub fn deployment(mut self, deployment: &DeploymentName) -> Self {
        self.deployment = Some(deployment.clone());
        self
    }

    pub fn package(mut self, package: impl Into<String>) -> Self {
        self.package = Some(package.into());
        self
    }
}

/// Something that happened and is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Grows, is never used twice, may have gaps.
    pub sequence: u64,
    pub at: Moment,
    pub kind: String,
    pub actor: String,
    pub device: Option<DeviceRef>,
    pub deployment: Option<DeploymentName>,
    pub package: Option<String>,
    pub text: String,
}

pub(crate) fn append(sql: &Sql<'_>, event: NewEvent) -> rusqlite::Result<Event> {
    sql.statement(
        "INSERT INTO event (at, kind, actor, client, device, deployment, package, text)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute((
        column::moment(event.at),
        event.kind,
        &event.actor,
        event.device.as_ref().map(|device| device.client.as_str()),
        event.device.as_ref().map(|device| device.device.as_str()),
        event.deployment.as_ref().map(|name| name.as_str()),
        &event.package,
        &event.text,
    ))?;
    let sequence = u64::try_from(sql.last_insert_rowid()).unwrap_or_default();
    let NewEvent { at, kind, actor, device, deployment, package, text } = event;
    Ok(Event { sequence, at, kind: kind.to_owned(), actor, device, deployment, package, text })
}

pub(crate) fn forget_oldest(sql: &Sql<'_>) -> rusqlite::Result<()> {
    sql.statement("DELETE FROM event WHERE sequence <= (SELECT max(sequence) FROM event) - ?1")?
        .execute([EVENTS_KEPT])?;
    Ok(())
}

fn read(row: &Row<'_>) -> rusqlite::Result<Event> {
    let client: Option<String> = row.get("client")?;
    let device = match client {
        Some(_) => Some(DeviceRef::new(row.parsed("client")?, row.parsed("device")?)),
        None => None,
    };
    let deployment: Option<String> = row.get("deployment")?;
    Ok(Event {
        sequence: row.unsigned("sequence")?,
        at: row.moment("at")?,
        kind: row.get("kind")?,
        actor: row.get("actor")?,
        device,
        deployment: deployment.map(|_| row.parsed("deployment")).transpose()?,
        package: row.get("package")?,
        text: row.get("text")?,
    })
}

impl Store {
    /// Something that happened and changed nothing else.
    pub async fn note(&self, event: NewEvent) -> Result<(), Error> {
        self.write(move |tx| Ok(tx.note(event.clone())?)).await
    }

    /// What happened after `sequence`, oldest first.
    pub async fn events_after(&self, sequence: u64, limit: usize) -> Result<Vec<Event>, Error> {
        let after = i64::try_from(sequence).unwrap_or(i64::MAX);
        self.read(move |sql| {
            let mut statement =
                sql.statement("SELECT * FROM event WHERE sequence > ?1 ORDER BY sequence LIMIT ?2")?;
            Ok(statement.query_map((after, page(limit)), read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// What happened last, newest first.
    pub async fn events_newest(&self, limit: usize) -> Result<Vec<Event>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement("SELECT * FROM event ORDER BY sequence DESC LIMIT ?1")?;
            Ok(statement.query_map([page(limit)], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// What happened last to one device, newest first. To the one that stands for a signed client belongs as well what
    /// happened before it had said its name, and was written down under the client's.
    pub async fn events_of_device(&self, device: &DeviceRef, limit: usize) -> Result<Vec<Event>, Error> {
        let device = device.clone();
        self.read(move |sql| {
            let mut events = of_device(sql, &device, limit)?;
            let nameless = own_device(&device.client);
            if device != nameless && speaker(sql, &device.client)? == device {
                events.extend(of_device(sql, &nameless, limit)?);
                events.sort_unstable_by_key(|event| std::cmp::Reverse(event.sequence));
                events.truncate(limit);
            }
            Ok(events)
        })
        .await
    }
}

fn of_device(sql: &Sql<'_>, device: &DeviceRef, limit: usize) -> rusqlite::Result<Vec<Event>> {
    sql.statement(
        "SELECT * FROM event WHERE client IS NOT NULL AND client = ?1 AND device = ?2
         ORDER BY sequence DESC LIMIT ?3",
    )?
    .query_map((device.client.as_str(), device.device.as_str(), page(limit)), read)?
    .collect()
}
