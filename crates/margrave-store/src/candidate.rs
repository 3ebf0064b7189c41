//! Devices as far as they decide what they can be given, and who is meant by targets.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use margrave_core::deployment::{SITE, Targets};
use margrave_core::id::{AssignmentId, DeploymentId, DeviceRef};
use margrave_core::selector::{Part, Selector};
use margrave_wire::Dialect;
use rusqlite::Row;

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
    /// It says that nothing really runs there.
    pub simulated: bool,
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
            simulated: record.simulated,
        }
    }
}

/// The columns of a [`Candidate`].
const CANDIDATE: &str = "device.client, device.device, dialect, capabilities, origin,
    (SELECT json_group_object(given.key, given.value) FROM label AS given
     WHERE given.client = device.client AND given.device = device.device), simulated";
/// Devices by a label of theirs.
const LABELLED: &str =
    "label CROSS JOIN device ON device.client = label.client AND device.device = label.device
    CROSS JOIN client ON client.id = label.client";

/// Whether to go on with the next device.
type Visit<'v> = dyn FnMut(Candidate) -> ControlFlow<()> + 'v;

/// Shows `visit` the devices that a statement finds, until it has seen enough.
fn shown(
    sql: &Sql<'_>,
    from: &str,
    given: impl rusqlite::Params,
    visit: &mut Visit<'_>,
) -> rusqlite::Result<ControlFlow<()>> {
    let mut statement =
        sql.statement(&format!("SELECT {CANDIDATE} FROM {from} AND standing = 'accepted'"))?;
    for record in statement.query_map(given, read_candidate)? {
        if visit(record?).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Shows `visit` what an expression matches. A condition that asks for values is looked up by index, and the others are asked of what
/// that finds; an expression of nothing but denials has to look at the whole fleet.
fn select(sql: &Sql<'_>, selector: &Selector, visit: &mut Visit<'_>) -> rusqlite::Result<ControlFlow<()>> {
    let parts = selector.parts();
    let indexed = parts.iter().find(|part| matches!(part, Part::In(..)));
    let indexed = indexed.or_else(|| parts.iter().find(|part| matches!(part, Part::Present(_))));
    let is_sure = parts.len() == 1 && indexed.is_some();
    let mut matching = |record: Candidate| match is_sure || selector.matches(&record.labels) {
        true => visit(record),
        false => ControlFlow::Continue(()),
    };
    match indexed {
        None if parts.is_empty() => {}
        Some(Part::In(key, values)) => {
            for value in values {
                let by_value = format!("{LABELLED} WHERE key = ?1 AND value = ?2");
                if shown(sql, &by_value, (key, value), &mut matching)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Some(part) => {
            return shown(sql, &format!("{LABELLED} WHERE key = ?1"), [part.key()], &mut matching);
        }
        None => {
            let all = "device JOIN client ON client.id = device.client WHERE 1";
            return shown(sql, all, [], &mut matching);
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Shows `visit` the devices of accepted clients that the targets name or match by label; those that they mean in several ways more
/// than once.
fn each(sql: &Sql<'_>, targets: &Targets, visit: &mut Visit<'_>) -> rusqlite::Result<ControlFlow<()>> {
    let Targets { devices, labels, select: selector, sites } = targets;
    let one =
        "device JOIN client ON client.id = device.client WHERE device.client = ?1 AND device.device = ?2";
    for device in devices {
        if shown(sql, one, (device.client.as_str(), device.device.as_str()), visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    let sites = match sites.is_empty() {
        true => Selector::default(),
        false => Selector::any_of(SITE, sites.iter().cloned()),
    };
    for selector in [selector, &sites] {
        if select(sql, selector, visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    // One pair by index, the others by looking: an empty selector matches nothing.
    let Some((key, value)) = labels.first_key_value() else { return Ok(ControlFlow::Continue(())) };
    let mut matching =
        |record: Candidate| match labels.len() == 1 || targets.matches(&record.device, &record.labels) {
            true => visit(record),
            false => ControlFlow::Continue(()),
        };
    shown(sql, &format!("{LABELLED} WHERE key = ?1 AND value = ?2"), (key, value), &mut matching)
}

/// By place: a whole fleet is read in one go.
fn read_candidate(row: &Row<'_>) -> rusqlite::Result<Candidate> {
    Ok(Candidate {
        device: DeviceRef::new(column::parsed_at(row, 0)?, column::parsed_at(row, 1)?),
        dialect: column::word_at(row, 2, Dialect::parse)?,
        capabilities: row.get(3)?,
        origin: row.get::<_, Option<String>>(4)?.map(|_| column::parsed_at(row, 4)).transpose()?,
        labels: column::json_at(5, row.get_ref(5)?.as_str()?)?,
        simulated: row.get(6)?,
    })
}

impl Store {
    /// The devices of accepted clients that the targets name or match by label, in the order of client and name.
    pub async fn devices_targeted(&self, targets: &Targets) -> Result<Vec<Candidate>, Error> {
        let targets = targets.clone();
        self.read(move |sql| {
            let mut found = BTreeMap::new();
            let _whole = each(sql, &targets, &mut |record| {
                found.insert(record.device.clone(), record);
                ControlFlow::Continue(())
            })?;
            Ok(found.into_values().collect())
        })
        .await
    }

    /// Whether the targets mean some devices and only simulated ones, as far as that are no more than `max`.
    pub async fn are_simulated(&self, targets: &Targets, max: usize) -> Result<bool, Error> {
        let targets = targets.clone();
        self.read(move |sql| {
            let mut found = BTreeSet::new();
            let seen = each(sql, &targets, &mut |record| {
                let goes_on = record.simulated && found.len() < max;
                found.insert(record.device);
                if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            Ok(seen.is_continue() && !found.is_empty())
        })
        .await
    }

    /// One of the devices that both mean, if there is any. Those of `one` are looked at until one of them is among the others.
    pub async fn device_in_both(&self, one: &Targets, other: &Targets) -> Result<Option<Candidate>, Error> {
        let (one, other) = (one.clone(), other.clone());
        self.read(move |sql| {
            let mut found = None;
            let _first =
                each(sql, &one, &mut |record| match other.matches(&record.device, &record.labels) {
                    true => {
                        found = Some(record);
                        ControlFlow::Break(())
                    }
                    false => ControlFlow::Continue(()),
                })?;
            Ok(found)
        })
        .await
    }
}
