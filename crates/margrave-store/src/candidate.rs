//! Devices as far as they decide what they can be given, and who is meant by targets.

use std::collections::BTreeMap;

use margrave_core::deployment::{SITE, Targets};
use margrave_core::id::{AssignmentId, DeploymentId, DeviceRef};
use margrave_core::selector::{Part, Selector};
use margrave_wire::Dialect;
use rusqlite::{OptionalExtension as _, Row};

use crate::column;
use crate::device::DeviceRecord;
use crate::sql::Sql;
use crate::{Error, Store};

/// A device as far as it decides what it can be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub device: DeviceRef,
    pub dialect: Dialect,
    /// Exactly as the device sent them.
    pub capabilities: Option<Vec<u8>>,
    /// The device whose place it took.
    pub origin: Option<DeviceRef>,
    /// Given by operators.
    pub labels: BTreeMap<String, String>,
}

impl Candidate {
    /// The id of a deployment on this device: that of the device whose place it took, if it did.
    pub fn assignment_id(&self, deployment: DeploymentId) -> AssignmentId {
        AssignmentId::derive(deployment, self.origin.as_ref().unwrap_or(&self.device))
    }
}

impl From<&DeviceRecord> for Candidate {
    fn from(record: &DeviceRecord) -> Candidate {
        Candidate {
            device: record.device.clone(),
            dialect: record.dialect,
            capabilities: record.capabilities.clone(),
            origin: record.origin.clone(),
            labels: record.labels.clone(),
        }
    }
}

/// The columns of a [`Candidate`].
const CANDIDATE: &str = "device.client, device.device, dialect, capabilities, origin,
    (SELECT json_group_object(given.key, given.value) FROM label AS given
     WHERE given.client = device.client AND given.device = device.device)";
/// Devices by a label of theirs.
const LABELLED: &str =
    "label CROSS JOIN device ON device.client = label.client AND device.device = label.device
    CROSS JOIN client ON client.id = label.client";

/// Adds what an expression matches. A condition that asks for values is looked up by index, and the others are asked of what
/// that finds; an expression of nothing but denials has to look at the whole fleet.
fn select(
    sql: &Sql<'_>,
    selector: &Selector,
    found: &mut BTreeMap<DeviceRef, Candidate>,
) -> rusqlite::Result<()> {
    let parts = selector.parts();
    let mut looked_at = Vec::new();
    let indexed = parts.iter().find(|part| matches!(part, Part::In(..)));
    let indexed = indexed.or_else(|| parts.iter().find(|part| matches!(part, Part::Present(_))));
    match indexed {
        None if parts.is_empty() => return Ok(()),
        Some(Part::In(key, values)) => {
            let text = format!(
                "SELECT {CANDIDATE} FROM {LABELLED} WHERE key = ?1 AND value = ?2 AND standing = 'accepted'"
            );
            let mut statement = sql.statement(&text)?;
            for value in values {
                for record in statement.query_map((key, value), read_candidate)? {
                    looked_at.push(record?);
                }
            }
        }
        Some(part) => {
            let text = format!("SELECT {CANDIDATE} FROM {LABELLED} WHERE key = ?1 AND standing = 'accepted'");
            let mut statement = sql.statement(&text)?;
            for record in statement.query_map([part.key()], read_candidate)? {
                looked_at.push(record?);
            }
        }
        None => {
            let text = format!(
                "SELECT {CANDIDATE} FROM device JOIN client ON client.id = device.client WHERE standing = 'accepted'"
            );
            let mut statement = sql.statement(&text)?;
            for record in statement.query_map([], read_candidate)? {
                looked_at.push(record?);
            }
        }
    }
    for record in looked_at {
        if parts.len() == 1 && indexed.is_some() || selector.matches(&record.labels) {
            found.insert(record.device.clone(), record);
        }
    }
    Ok(())
}

/// By place: a whole fleet is read in one go.
fn read_candidate(row: &Row<'_>) -> rusqlite::Result<Candidate> {
    Ok(Candidate {
        device: DeviceRef::new(column::parsed_at(row, 0)?, column::parsed_at(row, 1)?),
        dialect: column::word_at(row, 2, Dialect::parse)?,
        capabilities: row.get(3)?,
        origin: row.get::<_, Option<String>>(4)?.map(|_| column::parsed_at(row, 4)).transpose()?,
        labels: column::json_at(5, row.get_ref(5)?.as_str()?)?,
    })
}

impl Store {
    /// The devices of accepted clients that the targets name or match by label, in the order of client and name.
    pub async fn devices_targeted(&self, targets: &Targets) -> Result<Vec<Candidate>, Error> {
        let targets = targets.clone();
        self.read(move |sql| {
            let mut found = BTreeMap::new();
            let mut statement = sql.statement(&format!(
                "SELECT {CANDIDATE} FROM device JOIN client ON client.id = device.client
                 WHERE device.client = ?1 AND device.device = ?2 AND standing = 'accepted'"
            ))?;
            for device in &targets.devices {
                let key = (device.client.as_str(), device.device.as_str());
                let record = statement.query_row(key, read_candidate).optional()?;
                found.extend(record.map(|record| (record.device.clone(), record)));
            }
            select(sql, &targets.select, &mut found)?;
            if !targets.sites.is_empty() {
                let sites = Selector::any_of(SITE, targets.sites.iter().cloned());
                select(sql, &sites, &mut found)?;
            }
            // One pair by index, the others by looking: an empty selector matches nothing.
            if let Some((key, value)) = targets.labels.first_key_value() {
                let mut statement = sql.statement(&format!(
                    "SELECT {CANDIDATE} FROM {LABELLED} WHERE key = ?1 AND value = ?2 AND standing = 'accepted'"
                ))?;
                for record in statement.query_map((key, value), read_candidate)? {
                    let record = record?;
                    if targets.labels.len() == 1 || targets.matches(&record.device, &record.labels) {
                        found.insert(record.device.clone(), record);
                    }
                }
            }
            Ok(found.into_values().collect())
        })
        .await
    }
}
