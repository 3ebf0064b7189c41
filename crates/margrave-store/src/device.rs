//! Devices as operators look at them: found, filtered, counted.

use std::collections::BTreeMap;

use margrave_core::deployment::SITE;
use margrave_core::id::{ClientId, DeploymentName, DeviceRef};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_wire::Dialect;
use rusqlite::{OptionalExtension as _, Row, named_params};

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
    /// How it does at a time when silence began at `silent_before`. [`CONDITION`] says the same in SQL.
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

const CONDITION: &str = "CASE WHEN standing = 'retired' THEN 'retired'
    WHEN coalesce(last_contact, joined_at) < :silent_before
        AND client NOT IN (SELECT value FROM json_each(:heard)) THEN 'silent'
    WHEN verdict = 2 THEN 'failed'
    WHEN verdict = 1 OR capabilities IS NULL OR blind_since IS NOT NULL OR waits THEN 'pending'
    ELSE 'converged' END";

/// Whether a value among the capabilities has the text. Most devices do not have it anywhere, which is quick to see.
const CAPABLE: &str =
    "CASE WHEN capabilities IS NULL OR instr(lower(CAST(capabilities AS TEXT)), :capability) = 0
        OR NOT json_valid(CAST(capabilities AS TEXT)) THEN 0
    ELSE EXISTS (SELECT 1 FROM json_tree(CAST(capabilities AS TEXT)) AS told
        WHERE told.atom IS NOT NULL AND instr(lower(told.atom), :capability) > 0) END";

/// What is told of a device besides its name.
macro_rules! told {
    () => {
        "standing, dialect, joined_at, contact.at AS last_contact, svid_not_after,
        manifest.version AS manifest_version, capabilities, simulated, unsettled, origin, blind_since,
        (SELECT coalesce(max(assignment.verdict), 0) FROM assignment
         WHERE assignment.client = device.client AND assignment.device = device.device
         AND archived = 0) AS verdict,
        EXISTS (SELECT 1 FROM rollout_member AS member WHERE member.client = device.client
         AND member.device = device.device AND member.waits = 1) AS waits"
    };
}
/// Where that comes from. In this order: the device first, or what leads to it.
macro_rules! beside {
    () => {
        "CROSS JOIN client ON client.id = device.client
        CROSS JOIN manifest ON manifest.client = device.client
        LEFT JOIN contact ON contact.client = device.client"
    };
}
const DEVICES: &str = concat!("SELECT device.client, device.device, ", told!(), " FROM device ", beside!());
/// The same for those that another table `among` has, in its order.
const DEVICES_AMONG: [&str; 2] = [
    concat!("SELECT among.client, among.device, ", told!(), " FROM "),
    concat!(
        " AS among CROSS JOIN device ON device.client = among.client AND device.device = among.device ",
        beside!()
    ),
];

/// Clients that may be silent; `:heard` tells which of them are not. Who was never heard of has told nothing either.
const QUIET: &str = "SELECT contact.client FROM contact WHERE contact.at < :silent_before
    UNION SELECT device.client FROM device INDEXED BY device_unheard WHERE capabilities IS NULL";

/// Who counts as silent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Silence {
    /// Clients that were not heard of since.
    pub before: Moment,
    /// Except these: they were, and it is not written down yet.
    pub heard: Vec<ClientId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceFilter {
    /// Part of the name, in any case.
    pub search: Option<String>,
    /// A label that must be there; with a value, it must be that.
    pub label: Option<(String, Option<String>)>,
    pub condition: Option<Condition>,
    /// With an assignment in this state.
    pub state: Option<State>,
    /// With this value of the label `site`.
    pub site: Option<String>,
    /// Without that label.
    pub without_site: bool,
    /// With something of the deployment of this name.
    pub deployment: Option<DeploymentName>,
    /// A text, in any case, that is in one of the values of its capabilities: `arm64`, `helm`, `camera`.
    pub capability: Option<String>,
    pub silence: Silence,
    pub after: Option<DeviceRef>,
    pub limit: u32,
}

impl DeviceFilter {
    /// Where to look at all: by an index and in its order, so that the cost follows what is shown and not the fleet. Whoever is
    /// found is asked everything once more.
    fn found(&self) -> String {
        let [told, beside] = DEVICES_AMONG;
        match (&self.label, self.condition) {
            (Some((_, Some(_))), _) => {
                format!("{told}label{beside} WHERE among.key = :key AND among.value = :value")
            }
            _ if self.deployment.is_some() => {
                // One that is being removed may be there beside its successor of the same name.
                format!(
                    "{told}(SELECT DISTINCT client, device FROM assignment
                     WHERE deployment_name = :deployment AND archived = 0){beside}"
                )
            }
            _ if self.site.is_some() => {
                format!("{told}label{beside} WHERE among.key = '{SITE}' AND among.value = :site")
            }
            (_, Some(Condition::Silent)) => format!("{DEVICES} WHERE device.client IN ({QUIET})"),
            (_, Some(_)) => format!("{told}device_standing{beside} WHERE among.condition = :condition"),
            (_, None) => DEVICES.to_owned(),
        }
    }
}

/// What comes after where the page before ended.
const BEHIND: &str = "(client, device) > (:client, :device)";

impl DeviceFilter {
    /// The rows that match, from one side of where the page before ended. Only what is asked for is computed.
    fn matching(&self, columns: &str, side: &str, order: &str) -> String {
        format!(
            "SELECT {columns} FROM ({}) AS found
             WHERE {side}
             AND (:search IS NULL OR instr(lower(client || ':' || device), lower(:search)) > 0)
             AND (:key IS NULL OR EXISTS (SELECT 1 FROM label WHERE label.client = found.client
                 AND label.device = found.device AND key = :key AND (:value IS NULL OR value = :value)))
             AND (:site IS NULL OR EXISTS (SELECT 1 FROM label WHERE label.client = found.client
                 AND label.device = found.device AND key = '{SITE}' AND value = :site))
             AND NOT (:without_site AND EXISTS (SELECT 1 FROM label WHERE label.client = found.client
                 AND label.device = found.device AND key = '{SITE}'))
             AND (:deployment IS NULL OR EXISTS (SELECT 1 FROM assignment WHERE assignment.client = found.client
                 AND assignment.device = found.device AND archived = 0 AND deployment_name = :deployment
                 AND (:state IS NULL OR state = :state)))
             AND (:capability IS NULL OR {CAPABLE})
             AND (:condition IS NULL OR {CONDITION} = :condition)
             AND (:state IS NULL OR :deployment IS NOT NULL OR EXISTS (SELECT 1 FROM assignment
                 WHERE assignment.client = found.client AND assignment.device = found.device
                 AND archived = 0 AND state = :state))
             {order} LIMIT :limit",
            self.found()
        )
    }

    fn rows<T>(
        &self,
        sql: &Sql<'_>,
        text: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let DeviceFilter {
            search,
            label,
            condition,
            state,
            site,
            without_site,
            deployment,
            capability,
            silence,
            after,
            limit,
        } = self;
        let (key, value) = match label {
            Some((key, value)) => (Some(key.as_str()), value.as_deref()),
            None => (None, None),
        };
        let mut statement = sql.statement(text)?;
        let rows = statement.query_map(
            named_params! {
                ":client": after.as_ref().map_or("", |after| after.client.as_str()),
                ":device": after.as_ref().map_or("", |after| after.device.as_str()),
                ":search": search,
                ":key": key,
                ":value": value,
                ":condition": condition.map(Condition::as_str),
                ":state": state.map(|state| state.as_str()),
                ":site": site,
                ":without_site": without_site,
                ":deployment": deployment.as_ref().map(|name| name.as_str()),
                ":capability": capability.as_ref().map(|text| text.to_lowercase()),
                ":silent_before": column::moment(silence.before),
                ":heard": column::json(&silence.heard),
                ":limit": limit,
            },
            read,
        )?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

/// How many devices are in which condition, by the value of their label `site`.
pub type SiteCounts = BTreeMap<Option<String>, BTreeMap<String, u64>>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetCounts {
    /// Devices by condition.
    pub devices: BTreeMap<String, u64>,
    /// Assignments by state, of clients that are not retired; those that a rollout holds back are under `WAITING` and `LEFT`.
    pub assignments: BTreeMap<String, u64>,
    pub packages: u64,
    pub deployments: u64,
}

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

    /// One page of devices, in the order of client and name.
    pub async fn devices(&self, filter: DeviceFilter) -> Result<Vec<DeviceRecord>, Error> {
        self.read(move |sql| {
            let text = filter.matching("*", BEHIND, "ORDER BY client, device");
            filter.rows(sql, &text, |row| read(sql, row))
        })
        .await
    }

    /// How many devices match on all pages together, up to the filter's limit.
    pub async fn devices_counted(&self, filter: DeviceFilter) -> Result<u64, Error> {
        self.read(move |sql| {
            let filter = DeviceFilter { after: None, ..filter };
            let text = format!("SELECT count(*) FROM ({})", filter.matching("1", BEHIND, ""));
            let counted = filter.rows(sql, &text, |row| row.get::<_, i64>(0))?;
            Ok(counted.first().map_or(0, |count| count.unsigned_abs()))
        })
        .await
    }

    /// The device that the page before begins after, on pages of the filter's limit; `None` where that is the first page.
    pub async fn page_before(&self, mut filter: DeviceFilter) -> Result<Option<DeviceRef>, Error> {
        let size = filter.limit;
        filter.limit = size + 1;
        self.read(move |sql| {
            let text = filter.matching(
                "client, device",
                "(client, device) <= (:client, :device)",
                "ORDER BY client DESC, device DESC",
            );
            let back = filter
                .rows(sql, &text, |row| Ok(DeviceRef::new(row.parsed("client")?, row.parsed("device")?)))?;
            Ok(back.into_iter().nth(size as usize))
        })
        .await
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

    /// How many devices of each site are in which condition; those without a site are under `None`. Retired ones are not counted.
    pub async fn site_counts(&self, silence: Silence) -> Result<SiteCounts, Error> {
        self.read(move |sql| {
            let mut sites = SiteCounts::new();
            let mut everywhere: BTreeMap<String, u64> = BTreeMap::new();
            let mut statement = sql.statement("SELECT condition, count FROM device_tally WHERE count > 0")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                everywhere.insert(row.get(0)?, row.unsigned("count")?);
            }
            let mut statement = sql.statement(&format!(
                "SELECT label.value, device_standing.condition, count(*) FROM label
                 CROSS JOIN device_standing USING (client, device) WHERE label.key = '{SITE}' GROUP BY 1, 2"
            ))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (site, condition) = (row.get::<_, String>(0)?, row.get::<_, String>(1)?);
                let count = row.unsigned("count(*)")?;
                if let Some(left) = everywhere.get_mut(&condition) {
                    *left = left.saturating_sub(count);
                }
                sites.entry(Some(site)).or_default().insert(condition, count);
            }
            sites.insert(None, everywhere);
            // Silent ones were counted as what they would be otherwise.
            let mut statement = sql.statement(&format!(
                "SELECT (SELECT value FROM label WHERE label.client = found.client AND label.device = found.device
                     AND key = '{SITE}') AS site, device_standing.condition AS otherwise, count(*)
                 FROM ({DEVICES} WHERE device.client IN ({QUIET})) AS found
                 CROSS JOIN device_standing USING (client, device)
                 WHERE {CONDITION} = 'silent' GROUP BY 1, 2"
            ))?;
            let mut rows = statement.query(named_params! {
                ":silent_before": column::moment(silence.before),
                ":heard": column::json(&silence.heard),
            })?;
            while let Some(row) = rows.next()? {
                let (site, otherwise) = (row.get::<_, Option<String>>(0)?, row.get::<_, String>(1)?);
                let silent = row.unsigned("count(*)")?;
                let counts = sites.entry(site).or_default();
                if let Some(count) = counts.get_mut(&otherwise) {
                    *count = count.saturating_sub(silent);
                }
                *counts.entry(Condition::Silent.as_str().to_owned()).or_default() += silent;
            }
            for counts in sites.values_mut() {
                counts.retain(|condition, count| *count > 0 && condition != Condition::Retired.as_str());
            }
            sites.retain(|_, counts| !counts.is_empty());
            Ok(sites)
        })
        .await
    }

    /// The whole fleet in numbers.
    pub async fn fleet_counts(&self, silence: Silence) -> Result<FleetCounts, Error> {
        self.read(move |sql| {
            let mut counts = FleetCounts::default();
            let mut statement = sql.statement("SELECT condition, count FROM device_tally WHERE count > 0")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                counts.devices.insert(row.get(0)?, row.unsigned("count")?);
            }
            // Silent ones are counted as what they would be otherwise.
            let mut statement = sql.statement(&format!(
                "SELECT device_standing.condition AS otherwise, count(*)
                 FROM ({DEVICES} WHERE device.client IN ({QUIET})) AS found
                 CROSS JOIN device_standing USING (client, device)
                 WHERE {CONDITION} = 'silent' GROUP BY 1"
            ))?;
            let mut rows = statement.query(named_params! {
                ":silent_before": column::moment(silence.before),
                ":heard": column::json(&silence.heard),
            })?;
            while let Some(row) = rows.next()? {
                let (otherwise, silent) = (row.get::<_, String>(0)?, row.unsigned("count(*)")?);
                if let Some(count) = counts.devices.get_mut(&otherwise) {
                    *count = count.saturating_sub(silent);
                }
                *counts.devices.entry(Condition::Silent.as_str().to_owned()).or_default() += silent;
            }
            counts.devices.retain(|_, count| *count > 0);
            let mut statement = sql.statement(
                "SELECT CASE WHEN waits = 0 OR verdict = 2 THEN assignment_tally.state
                     WHEN rollout.state = 'aborted' THEN 'LEFT' ELSE 'WAITING' END AS word, sum(count) AS count
                 FROM assignment_tally LEFT JOIN rollout USING (deployment) GROUP BY word",
            )?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                counts.assignments.insert(row.get(0)?, row.unsigned("count")?);
            }
            let count = |rows: &str| {
                sql.query_row(&format!("SELECT count(*) FROM {rows}"), [], |row| row.unsigned("count(*)"))
            };
            counts.packages = count("package")?;
            counts.deployments = count("deployment WHERE removed = 0")?;
            Ok(counts)
        })
        .await
    }
}
