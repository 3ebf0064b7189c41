//! Reports: durable before they are answered, in the order in which the device lived them.
//!
//! A report can come twice, late, or after the deployment is gone. Whether it changes the picture is decided in
//! `margrave-core` (`observed.rs`); it is kept in the history all the same.

use margrave_core::id::ClientId;
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::observed::{Observed, reported_state};
use margrave_core::report::Report;
use rusqlite::OptionalExtension as _;

use crate::assignment::{self, AssignmentRecord};
use crate::column::{self, Columns as _};
use crate::error::from_database;
use crate::event::NewEvent;
use crate::publication::forget_removed;
use crate::sql::Sql;
use crate::{Error, Put, Store};

/// A device may claim a version above ours only after a backup was restored, so by no more than was ever
/// published since. Without a limit one device could use up its numbers with one report.
pub const VERSION_LEAP_MAX: u64 = 1 << 32;

/// Per assignment: weeks of a restless one, and little on disk.
const TRANSITIONS_KEPT: i64 = 200;

/// How far a device's clock may run ahead of ours and still be believed in the history.
const CLOCK_AHEAD_MAX_MS: u64 = 5 * 60 * 1000;
/// No device clock before 2020 is right: it has no battery and no time server yet.
const CLOCK_SENSIBLE: Moment = Moment(1_577_836_800_000);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    pub put: Put,
    /// The device holds a manifest above the published one: publish above this version.
    pub ahead: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("there is no such client")]
    ClientUnknown,
    /// With the version that the device claims if that is above ours.
    #[error("there is no such deployment for this client")]
    AssignmentUnknown { ahead: Option<u64> },
    #[error(
        "the report says manifest version {adopted}, which this server never published; it is at {published}"
    )]
    VersionUnknown { adopted: u64, published: u64 },
    #[error(transparent)]
    Store(#[from] Error),
}
from_database!(ReportError);

impl Store {
    /// Keeps what a device said, and what follows from it.
    pub async fn record_report(
        &self,
        client: &ClientId,
        report: Report,
        now: Moment,
    ) -> Result<Recorded, ReportError> {
        let client = client.clone();
        self.write(move |tx| record(tx, &client, &report, now)).await?.map_err(|ahead| {
            // Answered after the commit, because the claim of a higher version had to be kept.
            ReportError::AssignmentUnknown { ahead }
        })
    }

    /// Clients that hold a manifest above the published one, and the version they hold.
    pub async fn clients_ahead(&self) -> Result<Vec<(ClientId, u64)>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement(
                "SELECT id, version_claimed FROM client JOIN manifest ON manifest.client = client.id
                 WHERE version_claimed > manifest.version",
            )?;
            let rows =
                statement.query_map([], |row| Ok((row.parsed("id")?, row.unsigned("version_claimed")?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}

type Answer = Result<Recorded, Option<u64>>;

fn record(
    tx: &crate::writer::Tx<'_, '_>,
    client: &ClientId,
    report: &Report,
    now: Moment,
) -> Result<Answer, ReportError> {
    let ahead = note_version(tx.sql, client, report.adopted_version)?;
    let Some(mut record) = assignment::one(tx.sql, report.assignment)? else { return Ok(Err(ahead)) };
    let same_device = report.device.as_ref().is_none_or(|device| *device == record.device.device);
    if record.device.client != *client || !same_device {
        return Ok(Err(ahead));
    }
    let put =
        if record.observed.is_some() || told_before(tx.sql, report)? { Put::Updated } else { Put::Created };
    let recorded = Recorded { put, ahead };
    if repeated(tx.sql, &record, report)? {
        return Ok(Ok(recorded));
    }
    let state = reported_state(record.observed.as_ref(), report);
    let late = record.aim().is_late(record.observed.as_ref(), report);
    append(tx.sql, report, state, now, late)?;
    if late {
        return Ok(Ok(recorded));
    }
    let before = record.outlook();
    record.observed = Some(Observed::next(record.observed.take(), report, now));
    record.archived = record.aim().ends_with(state);
    assignment::write(tx.sql, &record)?;
    if record.archived {
        forget_removed(tx.sql)?;
    }
    let after = record.outlook();
    if before.state != after.state || before.verdict != after.verdict {
        let text = match (&report.fault, report.detail.as_ref().and_then(|detail| detail.reason.as_ref())) {
            (Some(fault), _) => format!("{} on {} is {state}: {}", record.name, record.device, fault.message),
            (None, Some(reason)) => format!("{} on {} is {state}: {reason}", record.name, record.device),
            (None, None) => format!("{} on {} is {state}", record.name, record.device),
        };
        let event = NewEvent::new(now, "assignment.state", format!("device {}", record.device), text);
        tx.note(event.device(&record.device).deployment(&record.name))?;
    }
    Ok(Ok(recorded))
}

/// Remembers a claim of a version above ours; refuses what cannot be true.
fn note_version(sql: &Sql<'_>, client: &ClientId, adopted: u64) -> Result<Option<u64>, ReportError> {
    let published = sql
        .statement("SELECT version FROM manifest WHERE client = ?1")?
        .query_row([client.as_str()], |row| row.unsigned("version"))
        .optional()?
        .ok_or(ReportError::ClientUnknown)?;
    if adopted <= published {
        return Ok(None);
    }
    if adopted - published > VERSION_LEAP_MAX {
        return Err(ReportError::VersionUnknown { adopted, published });
    }
    let claimed = column::unsigned("the adopted version", adopted)?;
    sql.statement("UPDATE client SET version_claimed = max(version_claimed, ?2) WHERE id = ?1")?
        .execute((client.as_str(), claimed))?;
    Ok(Some(adopted))
}

fn told_before(sql: &Sql<'_>, report: &Report) -> rusqlite::Result<bool> {
    sql.statement("SELECT 1 FROM transition WHERE assignment = ?1")?
        .exists([report.assignment.uuid().as_bytes()])
}

/// The very same report again, because its answer was lost. Without a number only the newest can be compared:
/// `installed`, `failed`, `installed` are three reports and no repetition.
fn repeated(sql: &Sql<'_>, record: &AssignmentRecord, report: &Report) -> Result<bool, Error> {
    if record.observed.as_ref().is_some_and(|observed| observed.report == *report) {
        return Ok(true);
    }
    let Some(detail) = &report.detail else { return Ok(false) };
    let sequence = column::unsigned("the report's sequence", detail.sequence)?;
    let found = sql
        .statement("SELECT 1 FROM transition WHERE assignment = ?1 AND sequence = ?2 AND report = ?3")?
        .exists((report.assignment.uuid().as_bytes(), sequence, column::json(report)))?;
    Ok(found)
}

fn append(sql: &Sql<'_>, report: &Report, state: State, now: Moment, late: bool) -> Result<(), Error> {
    let assignment = report.assignment.uuid();
    let detail = report.detail.as_ref();
    let sequence =
        detail.map(|detail| column::unsigned("the report's sequence", detail.sequence)).transpose()?;
    let believed = |at: &Moment| *at >= CLOCK_SENSIBLE && at.0 <= now.0.saturating_add(CLOCK_AHEAD_MAX_MS);
    let at = detail.map(|detail| detail.at).filter(believed).unwrap_or(now);
    sql.statement(
        "INSERT INTO transition (assignment, adopted, sequence, state, at, received_at, late, report)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute((
        assignment.as_bytes(),
        column::unsigned("the adopted version", report.adopted_version)?,
        sequence,
        state.as_str(),
        column::moment(at),
        column::moment(now),
        late,
        column::json(report),
    ))?;
    sql.statement(
        "DELETE FROM transition WHERE assignment = ?1 AND id <=
             (SELECT id FROM transition WHERE assignment = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute((assignment.as_bytes(), TRANSITIONS_KEPT))?;
    Ok(())
}
