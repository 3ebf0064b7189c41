//! What is over: assignments that ended, and what was said of them, for as long as that is kept.

use std::collections::HashMap;

use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::report::Report;

use crate::column::{self, Columns as _};
use crate::report::TRANSITIONS_KEPT;
use crate::sql::Sql;
use crate::{Error, Store};

/// One report in an assignment's history.
#[derive(Debug, Clone, PartialEq)]
pub struct TransitionRecord {
    pub state: State,
    /// By the device's clock where it has one that can be believed, otherwise by ours.
    pub at: Moment,
    /// It came after newer ones and changed nothing.
    pub late: bool,
    pub report: Report,
}

/// A device that had a deployment and does not have it any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepartedRecord {
    pub device: DeviceRef,
    pub ended: Moment,
}

/// Forgotten in one transaction; with two hundred reports each, others wait some tens of milliseconds.
const FORGOTTEN_TOGETHER_MAX: usize = 100;

/// What was last heard of one that is gone is that it is gone. The index assignment_archived says the same.
const ENDED: &str = "max(changed_at, coalesce(received_at, 0))";

impl Store {
    /// Forgets assignments that ended before this, with their history, and the oldest of those that are more than
    /// `kept_max`; returns how many. In small steps, so that devices do not wait.
    pub async fn sweep_archived(&self, ended_before: Moment, kept_max: u32) -> Result<usize, Error> {
        let mut swept = 0;
        loop {
            let step = self.write(move |tx| forget_archived(tx.sql, ended_before, kept_max)).await?;
            swept += step;
            if step < FORGOTTEN_TOGETHER_MAX {
                return Ok(swept);
            }
        }
    }

    /// What a device said about a deployment of this name, in all its lives, oldest first.
    pub async fn transitions(
        &self,
        deployment: &DeploymentName,
        device: &DeviceRef,
    ) -> Result<Vec<TransitionRecord>, Error> {
        let (deployment, device) = (deployment.clone(), device.clone());
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT transition.assignment, transition.state, transition.at, late, transition.report
                 FROM assignment JOIN transition ON transition.assignment = assignment.id
                 WHERE deployment_name = ?1 AND client = ?2 AND device = ?3 ORDER BY transition.id DESC",
            )?;
            let key = (deployment.as_str(), device.client.as_str(), device.device.as_str());
            let mut rows = statement.query(key)?;
            let mut kept: HashMap<[u8; 16], u32> = HashMap::new();
            let mut history = Vec::new();
            while let Some(row) = rows.next()? {
                // There may be a few more than are kept, until somebody looks (report.rs).
                let count = kept.entry(row.get("assignment")?).or_default();
                *count += 1;
                if *count > TRANSITIONS_KEPT {
                    continue;
                }
                history.push(TransitionRecord {
                    state: column::word(row, "state", State::parse)?,
                    at: row.moment("at")?,
                    late: row.get("late")?,
                    report: row.json("report")?,
                });
            }
            history.reverse();
            Ok(history)
        })
        .await
    }

    /// Devices that had a deployment of this name and do not have it any more, behind one, in their order.
    pub async fn departed(
        &self,
        deployment: &DeploymentName,
        after: Option<DeviceRef>,
        limit: u32,
    ) -> Result<Vec<DepartedRecord>, Error> {
        let deployment = deployment.clone();
        self.read(move |sql| {
            let mut statement = sql.statement(&format!(
                "SELECT client, device, max({ENDED}) AS ended FROM assignment AS gone
                 WHERE deployment_name = ?1 AND archived = 1 AND (client, device) > (?2, ?3)
                 AND NOT EXISTS (SELECT 1 FROM assignment WHERE deployment_name = ?1 AND client = gone.client
                     AND device = gone.device AND archived = 0)
                 GROUP BY client, device ORDER BY client, device LIMIT ?4"
            ))?;
            let (client, device) = match &after {
                Some(after) => (after.client.as_str(), after.device.as_str()),
                None => ("", ""),
            };
            let rows = statement.query_map((deployment.as_str(), client, device, limit), |row| {
                Ok(DepartedRecord {
                    device: DeviceRef::new(row.parsed("client")?, row.parsed("device")?),
                    ended: row.moment("ended")?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}

fn forget_archived(sql: &Sql<'_>, ended_before: Moment, kept_max: u32) -> Result<usize, Error> {
    let count: i64 = sql
        .statement("SELECT count(*) FROM assignment WHERE archived = 1")?
        .query_row([], |row| row.get(0))?;
    let surplus = (count - i64::from(kept_max)).max(0);
    let found: Vec<[u8; 16]> = sql
        .statement(&format!(
            "SELECT id FROM (SELECT id, {ENDED} AS ended, row_number() OVER (ORDER BY {ENDED}) AS place
                 FROM assignment WHERE archived = 1 ORDER BY {ENDED} LIMIT {FORGOTTEN_TOGETHER_MAX})
             WHERE ended < ?1 OR place <= ?2"
        ))?
        .query_map((column::moment(ended_before), surplus), |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for id in &found {
        sql.statement("DELETE FROM transition WHERE assignment = ?1")?.execute([id])?;
        sql.statement("DELETE FROM assignment WHERE id = ?1")?.execute([id])?;
    }
    Ok(found.len())
}
