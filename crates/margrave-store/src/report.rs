//! Reports: durable before they are answered, in the order in which the device lived them.
//!
//! A report can come twice, late, or after the deployment is gone. Whether it changes the picture is decided in
//! `margrave-core` (`observed.rs`); it is kept in the history all the same.

use margrave_core::digest::Digest;
use margrave_core::id::{ClientId, DeploymentName, DeviceId, DeviceRef};
use margrave_core::lifecycle::{Reported, State};
use margrave_core::moment::Moment;
use margrave_core::observed::{Observed, Verdict, clock_words, reported_state};
use margrave_core::report::{Report, restarted};
use rusqlite::OptionalExtension as _;

use crate::assignment::{self, Picture};
use crate::column::{self, Columns as _};
use crate::deployment::forget_removed;
use crate::error::from_database;
use crate::event::NewEvent;
use crate::sql::Sql;
use crate::{Error, Put, Store};

/// A device may claim a version above ours only after a backup was restored, so by no more than was ever
/// published since. Without a limit one device could use up its numbers with one report.
pub const VERSION_LEAP_MAX: u64 = 1 << 32;

/// Per assignment: weeks of a restless one, and little on disk.
pub(crate) const TRANSITIONS_KEPT: u32 = 200;
/// Looking for what is too many costs as much as writing; done for one report of so many, by chance.
const TRANSITIONS_SWEPT_EVERY: u64 = 16;

/// How far a device's clock may run ahead of ours and still be believed in the history.
const CLOCK_AHEAD_MAX_MS: u64 = 5 * 60 * 1000;
/// No device clock before 2020 is right: it has no battery and no time server yet.
const CLOCK_SENSIBLE: Moment = Moment(1_577_836_800_000);

/// An event is a line.
const RESTARTS_NAMED: usize = 5;

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
    /// It is the client's, but of another of its devices than the report says.
    #[error("this deployment is for {device}; name that device, or none")]
    OtherDevice { device: DeviceId, ahead: Option<u64> },
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
        let told = Told::new(client.clone(), report)?;
        // Refused after the commit, because the claim of a higher version had to be kept.
        self.write(move |tx| record(tx, &told, now)).await?.map_err(
            |Misplaced { device, ahead }| match device {
                None => ReportError::AssignmentUnknown { ahead },
                Some(device) => ReportError::OtherDevice { device, ahead },
            },
        )
    }

    /// How many devices had last said which state of a deployment by a moment, as far as their reports are kept.
    pub async fn reported_at(&self, at: Moment) -> Result<Vec<(DeploymentName, State, u64)>, Error> {
        self.read(move |sql| {
            // Of each assignment the newest that was not late; looked for from the newest on, in few steps.
            let mut statement = sql.statement(
                "SELECT deployment_name, transition.state AS state, count(*) AS count FROM assignment
                 JOIN transition ON transition.id =
                     (SELECT id FROM transition WHERE transition.assignment = assignment.id
                      AND received_at <= ?1 AND late = 0 ORDER BY id DESC LIMIT 1)
                 GROUP BY 1, 2 ORDER BY 1, 2",
            )?;
            let rows = statement.query_map([column::moment(at)], |row| {
                Ok((
                    row.parsed("deployment_name")?,
                    column::word(row, "state", State::parse)?,
                    row.unsigned("count")?,
                ))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// When the oldest report came that is kept.
    pub async fn reports_since(&self) -> Result<Option<Moment>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT received_at FROM transition ORDER BY id LIMIT 1")?;
            Ok(statement.query_row([], |row| row.moment("received_at")).optional()?)
        })
        .await
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

type Answer = Result<Recorded, Misplaced>;

/// A report about nothing that is the client's, or about what is another device's of the same client.
struct Misplaced {
    device: Option<DeviceId>,
    ahead: Option<u64>,
}

/// A report, and all that can be made of it before it is the writer's turn.
struct Told {
    client: ClientId,
    report: Report,
    text: String,
    adopted: i64,
    sequence: Option<i64>,
}

impl Told {
    fn new(client: ClientId, report: Report) -> Result<Told, Error> {
        let detail = report.detail.as_ref();
        Ok(Told {
            client,
            text: column::json(&report),
            // One that does not fit is refused before it is kept, with what is published.
            adopted: i64::try_from(report.adopted_version).unwrap_or(i64::MAX),
            sequence: detail
                .map(|detail| column::unsigned("the report's sequence", detail.sequence))
                .transpose()?,
            report,
        })
    }
}

fn record(tx: &crate::writer::Tx<'_, '_>, told: &Told, now: Moment) -> Result<Answer, ReportError> {
    let Told { client, report, text, .. } = told;
    let (published, mut ahead) = note_version(tx.sql, told)?;
    let found = assignment::picture(tx.sql, report.assignment)?;
    let Some((mut picture, newest)) = found.filter(|(picture, _)| picture.device.client == *client) else {
        // Nobody adopts a version of ours and finds something in it that is not there.
        let is_there = !matches!(report.state, Reported::Removing | Reported::Removed);
        if report.adopted_version == published && report.detail.is_some() && is_there {
            ahead = Some(claim_above(tx.sql, told, report.adopted_version)?);
        }
        return Ok(Err(Misplaced { device: None, ahead }));
    };
    if report.device.as_ref().is_some_and(|device| *device != picture.device.device) {
        return Ok(Err(Misplaced { device: Some(picture.device.device), ahead }));
    }
    let put =
        if picture.observed.is_some() || told_before(tx.sql, report)? { Put::Updated } else { Put::Created };
    let mut recorded = Recorded { put, ahead };
    if newest.as_ref() == Some(text) || repeated(tx.sql, picture.observed.as_ref(), told)? {
        return Ok(Ok(recorded));
    }
    if report.signed_at.is_some()
        && picture.observed.as_ref().is_some_and(|said| report.repeats(&said.report))
    {
        return again(tx.sql, told, picture, now).map(|()| Ok(recorded));
    }
    let state = reported_state(picture.observed.as_ref(), report);
    let late = picture.aim.is_late(picture.observed.as_ref(), report);
    if picture.aim.archived && state == State::Deleted && report.detail.is_some() {
        // Said once more of what is known to be gone; it is as old as it was.
        return Ok(Ok(recorded));
    }
    let same = picture.observed.as_ref().filter(|before| report.is_no_step(&before.report));
    let restarts_before = same.map(|before| before.report.restarts());
    // The history is of steps; a count that grows for weeks would push them out of it, and so would what is said every day.
    if late || restarts_before.is_none() {
        append(tx.sql, told, state, now, late)?;
    }
    if late {
        return Ok(Ok(recorded));
    }
    if ahead.is_none() && picture.aim.is_of_another_past(report) {
        recorded.ahead = Some(claim_above(tx.sql, told, report.adopted_version)?);
    }
    let before = picture.outlook();
    let clock_before = picture.observed.as_ref().and_then(Observed::clock_ahead);
    picture.observed = Some(Observed::next(picture.observed.take(), report, now));
    let clock = picture.observed.as_ref().and_then(Observed::clock_ahead);
    if clock.is_some() || clock_before.is_some() {
        note_clock(tx, &picture.device, clock, now)?;
    }
    picture.aim.archived = picture.aim.ends_with(state);
    let after = picture.outlook();
    assignment::observe(tx.sql, report.assignment, &picture, text, told.adopted)?;
    if picture.aim.archived {
        forget_removed(tx.sql)?;
    }
    if before.state != after.state || before.verdict != after.verdict {
        let Picture { device, name, .. } = &picture;
        let text = match (&report.fault, report.detail.as_ref().and_then(|detail| detail.reason.as_ref())) {
            // Installed it is, but not with what is wanted.
            (Some(fault), _) if state == State::Installed && after.verdict == Verdict::Failed => {
                format!("{name} on {device} went back to its last good version: {}", fault.message)
            }
            (Some(fault), _) => format!("{name} on {device} is {state}: {}", fault.message),
            (None, Some(reason)) => format!("{name} on {device} is {state}: {reason}"),
            (None, None) => format!("{name} on {device} is {state}"),
        };
        let event = NewEvent::new(now, "assignment.state", format!("device {device}"), text);
        tx.note(event.device(device).deployment(name))?;
    // Not each of them: what is restarted for months must not push everything else out.
    } else if restarts_before.is_some_and(|before| magnitude(report.restarts()) > magnitude(before)) {
        let Picture { device, name, .. } = &picture;
        let text = format!("{name} on {device}: {} since it was started", restarts_words(report));
        let event = NewEvent::new(now, "assignment.restarts", format!("device {device}"), text);
        tx.note(event.device(device).deployment(name))?;
    }
    Ok(Ok(recorded))
}

/// How often a number was doubled to come there: one more at 1, 2, 4, 8 and so on.
fn magnitude(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// Which components were brought back how often; of many the first few.
fn restarts_words(report: &Report) -> String {
    let again = report.components.iter().filter(|component| component.restarts > 0);
    let words = again.take(RESTARTS_NAMED).map(|of| format!("{} was {}", of.name, restarted(of.restarts)));
    words.collect::<Vec<_>>().join(", ")
}

/// Tells that a device's clock went wrong, or is right again, once for all that it reports about. Before the report is written.
fn note_clock(
    tx: &crate::writer::Tx<'_, '_>,
    device: &DeviceRef,
    ahead: Option<i64>,
    now: Moment,
) -> Result<(), ReportError> {
    let mut statement = tx.sql.statement(
        "SELECT * FROM assignment WHERE client = ?1 AND device = ?2 AND archived = 0 AND received_at IS NOT NULL
         ORDER BY received_at DESC LIMIT 1",
    )?;
    let last = statement
        .query_row((device.client.as_str(), device.device.as_str()), assignment::read)
        .optional()?
        .and_then(|last| last.observed?.clock_ahead());
    let text = match (last, ahead) {
        (None, Some(ahead)) => format!("the clock of {device} is {}", clock_words(ahead)),
        (Some(_), None) => format!("the clock of {device} is right again"),
        _ => return Ok(()),
    };
    let event = NewEvent::new(now, "device.clock", format!("device {device}"), text);
    Ok(tx.note(event.device(device))?)
}

/// What was said before, signed anew: no news, but what was signed in between is late from now on.
fn again(sql: &Sql<'_>, told: &Told, mut picture: Picture, now: Moment) -> Result<(), ReportError> {
    let Told { report, text, .. } = told;
    if picture.aim.is_late(picture.observed.as_ref(), report) {
        return Ok(());
    }
    picture.observed = Some(Observed::next(picture.observed.take(), report, now));
    Ok(assignment::observe(sql, report.assignment, &picture, text, told.adopted)?)
}

/// Remembers a claim of a version above ours; refuses what cannot be true. With the version that is published.
fn note_version(sql: &Sql<'_>, told: &Told) -> Result<(u64, Option<u64>), ReportError> {
    let client = told.client.as_str();
    let published = sql
        .statement("SELECT version FROM manifest WHERE client = ?1")?
        .query_row([client], |row| row.unsigned("version"))
        .optional()?
        .ok_or(ReportError::ClientUnknown)?;
    let holds = told.report.detail.as_ref().and_then(|detail| detail.holds);
    let adopted = holds.map_or(0, |holds| holds.version).max(told.report.adopted_version);
    if adopted > published {
        if adopted - published > VERSION_LEAP_MAX {
            return Err(ReportError::VersionUnknown { adopted, published });
        }
        claim(sql, told, adopted)?;
        return Ok((published, Some(adopted)));
    }
    // The same number, and other bytes.
    let is_other = match holds.filter(|holds| holds.version == published) {
        Some(holds) => {
            let body: Vec<u8> = sql
                .statement("SELECT body FROM manifest WHERE client = ?1")?
                .query_row([client], |row| row.get("body"))?;
            Digest::of(&body) != holds.manifest
        }
        None => false,
    };
    let ahead = is_other.then(|| claim_above(sql, told, published)).transpose()?;
    Ok((published, ahead))
}

/// The device holds the published version with other content. It takes only what is above that, so it counts as if it
/// held the next one.
fn claim_above(sql: &Sql<'_>, told: &Told, held: u64) -> Result<u64, ReportError> {
    let above = held.saturating_add(1);
    claim(sql, told, above)?;
    Ok(above)
}

fn claim(sql: &Sql<'_>, told: &Told, version: u64) -> Result<(), ReportError> {
    let claimed = column::unsigned("the adopted version", version)?;
    sql.statement("UPDATE client SET version_claimed = max(version_claimed, ?2) WHERE id = ?1")?
        .execute((told.client.as_str(), claimed))?;
    Ok(())
}

fn told_before(sql: &Sql<'_>, report: &Report) -> rusqlite::Result<bool> {
    sql.statement("SELECT 1 FROM transition WHERE assignment = ?1")?
        .exists([report.assignment.uuid().as_bytes()])
}

/// The very same report again, because its answer was lost, and not the newest. Without a number it cannot be told:
/// `installed`, `failed`, `installed` are three reports and no repetition.
fn repeated(sql: &Sql<'_>, before: Option<&Observed>, told: &Told) -> Result<bool, Error> {
    let Told { report, text, sequence, .. } = told;
    let (Some(detail), Some(sequence)) = (&report.detail, sequence) else { return Ok(false) };
    // As a rule a report goes on from the newest in every respect, and then it is none of those before.
    let goes_on = before.is_some_and(|before| {
        let newest = &before.report;
        report.adopted_version >= newest.adopted_version
            && newest.detail.as_ref().is_some_and(|old| detail.sequence > old.sequence && detail.at >= old.at)
    });
    if goes_on {
        return Ok(false);
    }
    let found = sql
        .statement("SELECT 1 FROM transition WHERE assignment = ?1 AND sequence = ?2 AND report = ?3")?
        .exists((report.assignment.uuid().as_bytes(), sequence, text))?;
    Ok(found)
}

fn append(sql: &Sql<'_>, told: &Told, state: State, now: Moment, late: bool) -> Result<(), Error> {
    let Told { report, text, adopted, sequence, .. } = told;
    let assignment = report.assignment.uuid();
    let believed = |at: &Moment| *at >= CLOCK_SENSIBLE && at.0 <= now.0.saturating_add(CLOCK_AHEAD_MAX_MS);
    let at = report.detail.as_ref().map(|detail| detail.at).filter(believed).unwrap_or(now);
    sql.statement(
        "INSERT INTO transition (assignment, adopted, sequence, state, at, received_at, late, report)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute((
        assignment.as_bytes(),
        adopted,
        sequence,
        state.as_str(),
        column::moment(at),
        column::moment(now),
        late,
        text,
    ))?;
    // A number without a pattern, so that nobody whose reports come at regular intervals is left out for ever.
    let chance = sql.last_insert_rowid().cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    if chance.is_multiple_of(TRANSITIONS_SWEPT_EVERY) {
        sql.statement(
            "DELETE FROM transition WHERE assignment = ?1 AND id <=
                 (SELECT id FROM transition WHERE assignment = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        )?
        .execute((assignment.as_bytes(), TRANSITIONS_KEPT))?;
    }
    Ok(())
}
