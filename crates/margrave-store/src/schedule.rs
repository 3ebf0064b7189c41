//! When devices talk and change: what operators chose, and what clients were told.

use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_core::schedule::{Choice, Reach, Schedule};
use rusqlite::OptionalExtension as _;

use crate::column::{self, Columns as _};
use crate::event::NewEvent;
use crate::sql::Sql;
use crate::writer::Tx;
use crate::{Error, Store};

/// Choices that a server keeps; a fleet with more kinds of devices is described by labels.
pub const SCHEDULES_MAX: u64 = 10_000;

#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleRecord {
    pub reach: Reach,
    pub choice: Choice,
    pub changed_at: Moment,
    pub changed_by: String,
}

/// What became of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// The devices that it reaches are unsettled now.
    Changed,
    Unchanged,
    /// There are [`SCHEDULES_MAX`] already.
    TooMany,
}

impl Store {
    /// All of them; the fleet's first, then labels', then devices', each by name.
    pub async fn schedules(&self) -> Result<Vec<ScheduleRecord>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT * FROM schedule")?;
            let rows = statement.query_map([], |row| {
                Ok(ScheduleRecord {
                    reach: row.parsed("reach")?,
                    choice: row.json("choice")?,
                    changed_at: row.moment("changed_at")?,
                    changed_by: row.get("changed_by")?,
                })
            })?;
            let mut records = rows.collect::<Result<Vec<_>, _>>()?;
            records.sort_by(|a, b| a.reach.cmp(&b.reach));
            Ok(records)
        })
        .await
    }

    /// What clients were told, where it is not the usual.
    pub async fn schedules_told(&self) -> Result<Vec<(ClientId, Schedule)>, Error> {
        self.read(|sql| {
            let mut statement =
                sql.statement("SELECT client, schedule FROM manifest WHERE schedule IS NOT NULL")?;
            let rows = statement.query_map([], |row| Ok((row.parsed("client")?, row.json("schedule")?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}

/// Chooses for whom it reaches, or chooses nothing any more.
pub(crate) fn choose(
    tx: &Tx<'_, '_>,
    reach: &Reach,
    choice: Option<&Choice>,
    at: Moment,
    actor: &str,
) -> rusqlite::Result<Chosen> {
    let name = reach.to_string();
    let before: Option<String> = tx
        .sql
        .statement("SELECT choice FROM schedule WHERE reach = ?1")?
        .query_row([&name], |row| row.get(0))
        .optional()?;
    let now = choice.map(column::json);
    if before == now {
        return Ok(Chosen::Unchanged);
    }
    match &now {
        Some(now) => {
            let count =
                tx.sql.query_row("SELECT count(*) FROM schedule", [], |row| row.unsigned("count(*)"))?;
            if before.is_none() && count >= SCHEDULES_MAX {
                return Ok(Chosen::TooMany);
            }
            tx.sql
                .statement(
                    "INSERT INTO schedule (reach, choice, changed_at, changed_by) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (reach) DO UPDATE SET choice = ?2, changed_at = ?3, changed_by = ?4",
                )?
                .execute((&name, now, column::moment(at), actor))?;
        }
        None => {
            tx.sql.statement("DELETE FROM schedule WHERE reach = ?1")?.execute([&name])?;
        }
    }
    unsettle(tx.sql, reach)?;
    let of = match reach {
        Reach::Fleet => "the fleet".to_owned(),
        Reach::Label(key, value) => format!("devices with {key}={value}"),
        Reach::Device(device) => device.to_string(),
    };
    let done = if now.is_some() { "set" } else { "removed" };
    let text = format!("the schedule of {of} was {done}");
    tx.note(NewEvent::new(at, "schedule.changed", actor, text))?;
    Ok(Chosen::Changed)
}

fn unsettle(sql: &Sql<'_>, reach: &Reach) -> rusqlite::Result<usize> {
    match reach {
        Reach::Fleet => sql.statement("UPDATE device SET unsettled = unsettled + 1")?.execute([]),
        Reach::Label(key, value) => sql
            .statement(
                "UPDATE device SET unsettled = unsettled + 1 WHERE (client, device) IN
                     (SELECT client, device FROM label WHERE key = ?1 AND value = ?2)",
            )?
            .execute((key, value)),
        Reach::Device(device) => sql
            .statement("UPDATE device SET unsettled = unsettled + 1 WHERE client = ?1 AND device = ?2")?
            .execute((device.client.as_str(), device.device.as_str())),
    }
}
