//! What is wrong in a fleet, by cause, and where: read as narrowly as it is told.

use std::collections::BTreeMap;

use margrave_core::id::{ClientId, DeploymentId, DeploymentName, DeviceRef};
use rusqlite::named_params;

use crate::column::{self, Columns as _};
use crate::counting::GIVEN_UP;
use crate::finding::{SILENT, Silence};
use crate::{Error, Store};

/// Devices that failed for one cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    pub deployment: DeploymentName,
    /// As the device said it; empty where it said none.
    pub code: String,
    /// They do not try it again by themselves.
    pub given_up: bool,
    pub count: u64,
    /// The first of them, by name.
    pub first: Vec<DeviceRef>,
}

/// How many devices of a deployment failed for one cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: String,
    /// What they say, as [`likeness`] has it.
    pub likeness: String,
    pub count: u64,
}

/// A message without its numbers, by which many devices say the same.
pub fn likeness(message: &str) -> String {
    let mut alike = String::with_capacity(message.len());
    for character in message.chars() {
        match character.is_ascii_digit() {
            true if alike.ends_with('#') => {}
            true => alike.push('#'),
            false => alike.push(character),
        }
    }
    alike
}

impl Store {
    /// What the devices of a deployment that failed say of it: what a component says where one does, which is closer to the cause.
    /// The most first. Costs what failed.
    pub async fn failures(&self, deployment: DeploymentId) -> Result<Vec<Failure>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT json_extract(fault, '$.code') AS code, json_extract(fault, '$.message') AS message
                 FROM (SELECT coalesce(
                           (SELECT json_extract(value, '$.fault') FROM json_each(report, '$.components')
                            WHERE json_type(value, '$.fault') = 'object' LIMIT 1),
                           json_extract(report, '$.fault')) AS fault
                       FROM assignment INDEXED BY assignment_behind
                       WHERE deployment = ?1 AND verdict = 2 AND archived = 0 AND verdict <> 0)
                 WHERE fault IS NOT NULL",
            )?;
            let mut rows = statement.query([deployment.uuid().as_bytes()])?;
            let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
            while let Some(row) = rows.next()? {
                let message: String = row.get("message")?;
                *counts.entry((row.get("code")?, likeness(&message))).or_default() += 1;
            }
            let failure = |((code, likeness), count)| Failure { code, likeness, count };
            let mut failures: Vec<Failure> = counts.into_iter().map(failure).collect();
            failures.sort_by_key(|failure| std::cmp::Reverse(failure.count));
            Ok(failures)
        })
        .await
    }

    /// Devices that failed and are not silent, by deployment, code and whether they try again, each with the first `named` of them:
    /// those first that do not, then the most. A device counts once: for the first deployment that fails there. Costs what failed.
    pub async fn failing(&self, silence: Silence, named: usize) -> Result<Vec<Failing>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(&format!(
                "SELECT client, device, deployment_name,
                     coalesce(json_extract(report, '$.fault.code'), '') AS code, {GIVEN_UP} AS given_up
                 FROM (SELECT (SELECT assignment.id FROM assignment WHERE assignment.client = standing.client
                           AND assignment.device = standing.device AND verdict = 2 AND archived = 0
                           ORDER BY NOT ({GIVEN_UP}), json_extract(report, '$.fault.code') IS NULL, deployment_name LIMIT 1) AS worst
                       FROM device_standing AS standing WHERE standing.condition = 'failed' AND NOT {SILENT}
                       ORDER BY standing.client, standing.device)
                 CROSS JOIN assignment ON assignment.id = worst"
            ))?;
            let mut rows = statement.query(named_params! {
                ":silent_before": column::moment(silence.before),
                ":heard": column::json(&silence.heard),
            })?;
            let mut causes: BTreeMap<(String, String, bool), (u64, Vec<DeviceRef>)> = BTreeMap::new();
            while let Some(row) = rows.next()? {
                let cause = (row.get("deployment_name")?, row.get("code")?, row.get("given_up")?);
                let (count, first) = causes.entry(cause).or_default();
                *count += 1;
                if first.len() < named {
                    first.push(DeviceRef::new(row.parsed("client")?, row.parsed("device")?));
                }
            }
            let mut failing = Vec::new();
            for ((deployment, code, given_up), (count, first)) in causes {
                let deployment = DeploymentName::parse(&deployment)
                    .map_err(|_| Error::Damaged { what: "a deployment's name cannot be read" })?;
                failing.push(Failing { deployment, code, given_up, count, first });
            }
            failing.sort_by_key(|cause| std::cmp::Reverse((cause.given_up, cause.count)));
            Ok(failing)
        })
        .await
    }

    /// The devices that speak through these clients, by name, each with its site.
    pub async fn devices_through(
        &self,
        clients: Vec<ClientId>,
    ) -> Result<Vec<(DeviceRef, Option<String>)>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT standing.client, standing.device, standing.site FROM json_each(?1) AS named
                 CROSS JOIN device_standing AS standing ON standing.client = named.value ORDER BY 1, 2",
            )?;
            let rows = statement.query_map([column::json(&clients)], |row| {
                Ok((DeviceRef::new(row.parsed("client")?, row.parsed("device")?), row.get("site")?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}
