//! Devices as operators look at them. How they are found is `finding.rs`, how they are counted `counting.rs`.

use std::collections::BTreeMap;

use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_wire::Dialect;
use rusqlite::{OptionalExtension as _, Row};

use crate::assignment::verdict_from_column;
use crate::client::set_labels;
use crate::column::{self, Columns as _};
use crate::event::NewEvent;
use crate::sql::Sql;
use crate::writer::Tx;
use crate::{Error, Standing, Store, Verdict};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRecord {
    pub device: DeviceRef,
    pub standing: Standing,
    /// In which form its client is given documents, and has sent the capabilities.
    pub dialect: Dialect,
    pub joined_at: Moment,
    pub last_contact: Option<Moment>,
    pub certificate_expires: Option<Moment>,
    pub manifest_version: u64,
    /// Exactly as the device sent them.
    pub capabilities: Option<Vec<u8>>,
    pub simulated: bool,
    /// Given by operators.
    pub labels: BTreeMap<String, String>,
    /// The worst of its assignments.
    pub verdict: Verdict,
    /// A rollout holds it back.
    pub waits: bool,
    /// How often something changed that decides what it runs, since that was last decided.
    pub unsettled: u64,
    /// The signed device whose place it took.
    pub origin: Option<DeviceRef>,
    /// Since when it cannot look at its containers, as it says itself; why is among its capabilities.
    pub blind_since: Option<Moment>,
    /// It is quiet as it was told to be; not the store's to know.
    pub excused: bool,
}

/// How a device does, the worst first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Retired,
    Silent,
    Failed,
    Pending,
    Converged,
}

impl Condition {
    pub const ALL: [Condition; 5] =
        [Condition::Retired, Condition::Silent, Condition::Failed, Condition::Pending, Condition::Converged];

    pub fn as_str(self) -> &'static str {
        match self {
            Condition::Retired => "retired",
            Condition::Silent => "silent",
            Condition::Failed => "failed",
            Condition::Pending => "pending",
            Condition::Converged => "converged",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|condition| condition.as_str() == text)
    }
}

impl DeviceRecord {
    /// How it does at a time when silence began at `silent_before`. The table `device_standing` says the same, but for silence.
    pub fn condition(&self, silent_before: Moment) -> Condition {
        if self.standing == Standing::Retired {
            Condition::Retired
        } else if self.last_contact.unwrap_or(self.joined_at) < silent_before && !self.excused {
            Condition::Silent
        } else if self.verdict == Verdict::Failed {
            Condition::Failed
        } else if self.verdict == Verdict::Pending
            || self.capabilities.is_none()
            || self.blind_since.is_some()
            || self.waits
        {
            Condition::Pending
        } else {
            Condition::Converged
        }
    }
}

const DEVICES: &str = "SELECT device.client, device.device, standing, dialect, joined_at, contact.at AS last_contact,
        svid_not_after, manifest.version AS manifest_version, capabilities, simulated, unsettled, origin, blind_since,
        (SELECT coalesce(max(assignment.verdict), 0) FROM assignment
         WHERE assignment.client = device.client AND assignment.device = device.device
         AND archived = 0) AS verdict,
        EXISTS (SELECT 1 FROM rollout_member AS member WHERE member.client = device.client
         AND member.device = device.device AND member.waits = 1) AS waits
    FROM device
    CROSS JOIN client ON client.id = device.client
    CROSS JOIN manifest ON manifest.client = device.client
    LEFT JOIN contact ON contact.client = device.client";

fn read(sql: &Sql<'_>, row: &Row<'_>) -> rusqlite::Result<DeviceRecord> {
    let device = DeviceRef::new(row.parsed("client")?, row.parsed("device")?);
    let labels = labels(sql, &device)?;
    Ok(DeviceRecord {
        standing: column::word(row, "standing", Standing::parse)?,
        dialect: column::word(row, "dialect", Dialect::parse)?,
        joined_at: row.moment("joined_at")?,
        last_contact: row.moment_maybe("last_contact")?,
        certificate_expires: row.moment_maybe("svid_not_after")?,
        manifest_version: row.unsigned("manifest_version")?,
        capabilities: row.get("capabilities")?,
        simulated: row.get("simulated")?,
        labels,
        verdict: verdict_from_column(row.get("verdict")?),
        waits: row.get("waits")?,
        unsettled: row.unsigned("unsettled")?,
        origin: row.get::<_, Option<String>>("origin")?.map(|_| row.parsed("origin")).transpose()?,
        blind_since: row.moment_maybe("blind_since")?,
        excused: false,
        device,
    })
}

fn labels(sql: &Sql<'_>, device: &DeviceRef) -> rusqlite::Result<BTreeMap<String, String>> {
    sql.statement("SELECT key, value FROM label WHERE client = ?1 AND device = ?2")?
        .query_map((device.client.as_str(), device.device.as_str()), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

pub(crate) fn one(sql: &Sql<'_>, device: &DeviceRef) -> rusqlite::Result<Option<DeviceRecord>> {
    sql.statement(&format!("{DEVICES} WHERE device.client = ?1 AND device.device = ?2"))?
        .query_row((device.client.as_str(), device.device.as_str()), |row| read(sql, row))
        .optional()
}

/// Gives a device the labels and the schedule of another, as far as it has none of that name; it becomes unsettled.
pub(crate) fn lend_labels(sql: &Sql<'_>, from: &DeviceRef, to: &DeviceRef) -> rusqlite::Result<()> {
    sql.statement(
        "INSERT INTO label (client, device, key, value)
         SELECT ?3, ?4, key, value FROM label WHERE client = ?1 AND device = ?2
         ON CONFLICT (client, device, key) DO NOTHING",
    )?
    .execute((from.client.as_str(), from.device.as_str(), to.client.as_str(), to.device.as_str()))?;
    // Its schedule, too, where the other has none of its own.
    sql.statement(
        "INSERT INTO schedule (reach, choice, changed_at, changed_by)
         SELECT ?2, choice, changed_at, changed_by FROM schedule WHERE reach = ?1
         ON CONFLICT (reach) DO NOTHING",
    )?
    .execute((format!("device:{from}"), format!("device:{to}")))?;
    sql.statement("UPDATE device SET unsettled = unsettled + 1 WHERE client = ?1 AND device = ?2")?
        .execute((to.client.as_str(), to.device.as_str()))?;
    Ok(())
}

fn setting(sql: &Sql<'_>, device: &DeviceRef) -> rusqlite::Result<Option<BTreeMap<String, String>>> {
    sql.statement("SELECT labels FROM device_setting WHERE client = ?1 AND device = ?2")?
        .query_row((device.client.as_str(), device.device.as_str()), |row| row.json("labels"))
        .optional()
}

/// Writes down what Git says of a device's labels, and gives it those if it is there; it becomes unsettled if something
/// changed. Where Git says nothing any more the device keeps what it has: nobody said that it should lose it.
pub(crate) fn set(
    tx: &Tx<'_, '_>,
    device: &DeviceRef,
    labels: Option<&BTreeMap<String, String>>,
    at: Moment,
    actor: &str,
) -> rusqlite::Result<()> {
    let key = (device.client.as_str(), device.device.as_str());
    let Some(labels) = labels else {
        tx.sql.statement("DELETE FROM device_setting WHERE client = ?1 AND device = ?2")?.execute(key)?;
        return Ok(());
    };
    tx.sql
        .statement(
            "INSERT INTO device_setting (client, device, labels) VALUES (?1, ?2, ?3)
             ON CONFLICT (client, device) DO UPDATE SET labels = ?3",
        )?
        .execute((key.0, key.1, column::json(labels)))?;
    let known = tx.sql.statement("SELECT 1 FROM device WHERE client = ?1 AND device = ?2")?.exists(key)?;
    if !known {
        return Ok(());
    }
    let words = follow(tx.sql, device, labels)?;
    if !words.is_empty() {
        tx.sql
            .statement("UPDATE device SET unsettled = unsettled + 1 WHERE client = ?1 AND device = ?2")?
            .execute(key)?;
        let text = format!("{device} was labelled: {}", words.join(", "));
        tx.note(NewEvent::new(at, "device.labelled", actor, text).device(device))?;
    }
    Ok(())
}

/// Makes a device's labels exactly these; says what changed.
fn follow(
    sql: &Sql<'_>,
    device: &DeviceRef,
    wanted: &BTreeMap<String, String>,
) -> rusqlite::Result<Vec<String>> {
    let held = labels(sql, device)?;
    let mut changes = BTreeMap::new();
    let mut words = Vec::new();
    for (key, value) in wanted.iter().filter(|(key, value)| held.get(*key) != Some(value)) {
        changes.insert(key.clone(), Some(value.clone()));
        words.push(format!("{key}={value}"));
    }
    for key in held.keys().filter(|key| !wanted.contains_key(*key)) {
        changes.insert(key.clone(), None);
        words.push(format!("{key} removed"));
    }
    set_labels(sql, device, &changes)?;
    Ok(words)
}

/// A device that came just now gets the labels that Git has for it.
pub(crate) fn welcome(sql: &Sql<'_>, device: &DeviceRef) -> rusqlite::Result<()> {
    if let Some(wanted) = setting(sql, device)? {
        follow(sql, device, &wanted)?;
    }
    Ok(())
}

/// Makes a device known that has not reported yet.
pub(crate) fn expect(sql: &Sql<'_>, device: &DeviceRef, at: Moment) -> rusqlite::Result<()> {
    sql.statement(
        "INSERT INTO device (client, device, created_at) VALUES (?1, ?2, ?3)
         ON CONFLICT (client, device) DO NOTHING",
    )?
    .execute((device.client.as_str(), device.device.as_str(), column::moment(at)))?;
    Ok(())
}

/// Puts a device in the place of another one, whose assignments are over: their ids go along.
pub(crate) fn take_place(sql: &Sql<'_>, from: &DeviceRef, to: &DeviceRef) -> rusqlite::Result<()> {
    let (old, new) = ((from.client.as_str(), from.device.as_str()), (to.client.as_str(), to.device.as_str()));
    sql.statement("UPDATE device SET origin = ?3 WHERE client = ?1 AND device = ?2")?.execute((
        new.0,
        new.1,
        from.to_string(),
    ))?;
    sql.statement(
        "UPDATE assignment SET client = ?3, device = ?4, waits = EXISTS (SELECT 1 FROM rollout_member AS member
             WHERE member.deployment = assignment.deployment AND member.client = ?3 AND member.device = ?4
             AND member.waits = 1)
         WHERE client = ?1 AND device = ?2 AND archived = 1",
    )?
    .execute((old.0, old.1, new.0, new.1))?;
    Ok(())
}

impl Store {
    /// All devices of one client, as far as they are known.
    pub async fn devices_of(&self, client: &ClientId) -> Result<Vec<DeviceRecord>, Error> {
        let client = client.clone();
        self.read(move |sql| {
            let mut statement =
                sql.statement(&format!("{DEVICES} WHERE device.client = ?1 ORDER BY device.device"))?;
            let rows = statement.query_map([client.as_str()], |row| read(sql, row))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Every device that was moved, and the one that has its place.
    pub async fn places_taken(&self) -> Result<Vec<(DeviceRef, DeviceRef)>, Error> {
        self.read(|sql| {
            let mut statement =
                sql.statement("SELECT origin, client, device FROM device WHERE origin IS NOT NULL")?;
            let rows = statement.query_map([], |row| {
                let place = DeviceRef::new(row.parsed("client")?, row.parsed("device")?);
                Ok((row.parsed("origin")?, place))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// The names of all devices whose client is of this form.
    pub async fn devices_in(&self, dialect: Dialect) -> Result<Vec<DeviceRef>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT device.client, device.device FROM device JOIN client ON client.id = device.client
                 WHERE client.dialect = ?1",
            )?;
            let rows = statement.query_map([dialect.as_str()], |row| {
                Ok(DeviceRef::new(row.parsed("client")?, row.parsed("device")?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub async fn device(&self, device: &DeviceRef) -> Result<Option<DeviceRecord>, Error> {
        let device = device.clone();
        self.read(move |sql| Ok(one(sql, &device)?)).await
    }

    /// These devices, as far as they exist.
    pub async fn devices_named(&self, devices: Vec<DeviceRef>) -> Result<Vec<DeviceRecord>, Error> {
        self.read(move |sql| {
            let mut found = Vec::with_capacity(devices.len());
            for device in &devices {
                found.extend(one(sql, device)?);
            }
            Ok(found)
        })
        .await
    }

    /// Devices of accepted clients about which something changed that decides what they run.
    pub async fn devices_unsettled(&self, limit: u32) -> Result<Vec<DeviceRecord>, Error> {
        self.read(move |sql| {
            let mut statement =
                sql.statement(&format!("{DEVICES} WHERE unsettled > 0 AND standing = 'accepted' LIMIT ?1"))?;
            let rows = statement.query_map([limit], |row| read(sql, row))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// The devices that Git says something of, and their labels as it has them.
    pub async fn device_settings(&self) -> Result<Vec<(DeviceRef, BTreeMap<String, String>)>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT * FROM device_setting ORDER BY client, device")?;
            let rows = statement.query_map([], |row| {
                let device = DeviceRef::new(row.parsed("client")?, row.parsed("device")?);
                Ok((device, row.json("labels")?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// What Git says of a device's labels.
    pub async fn device_setting(
        &self,
        device: &DeviceRef,
    ) -> Result<Option<BTreeMap<String, String>>, Error> {
        let device = device.clone();
        self.read(move |sql| Ok(setting(sql, &device)?)).await
    }
}
