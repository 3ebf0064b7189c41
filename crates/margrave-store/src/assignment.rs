//! One deployment on one device: what is wanted, what was observed, and what follows from both.

use std::collections::HashMap;

use margrave_core::deployment::Deployment;
use margrave_core::digest::Digest;
use margrave_core::id::{
    AssignmentId, ClientId, DeploymentId, DeploymentName, DeviceId, DeviceRef, PackageId, PackageVersion,
    ProfileId,
};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::observed::{Aim, Observed, Outlook, Verdict};
use rusqlite::{OptionalExtension as _, Row, ToSql};

use crate::basis::{Basis, BasisReader};
use crate::column::{self, Columns as _, Shared};
use crate::deployment::forget_removed;
use crate::event::NewEvent;
use crate::rollout::RolloutState;
use crate::sql::Sql;
use crate::{Error, Store};

#[derive(Debug, Clone, PartialEq)]
pub struct AssignmentRecord {
    pub id: AssignmentId,
    pub device: DeviceRef,
    pub deployment: DeploymentId,
    pub name: DeploymentName,
    pub package: PackageId,
    pub version: PackageVersion,
    pub profile: ProfileId,
    /// In the manifest; otherwise it waits for the device to say that it is gone.
    pub wanted: bool,
    /// Gone, kept for its history.
    pub archived: bool,
    /// The document that is wanted, or was last.
    pub document: Digest,
    /// The manifest version in which it last came in.
    pub wanted_since: u64,
    /// The manifest version in which it last came in, changed or went.
    pub changed_version: u64,
    pub changed_at: Moment,
    /// A rollout holds its device back. Kept by the store; what is written back of it does not count.
    pub waits: bool,
    pub observed: Option<Observed>,
}

pub(crate) fn verdict_from_column(value: i64) -> Verdict {
    match value {
        0 => Verdict::Converged,
        1 => Verdict::Pending,
        _ => Verdict::Failed,
    }
}

fn verdict_column(verdict: Verdict) -> i64 {
    match verdict {
        Verdict::Converged => 0,
        Verdict::Pending => 1,
        Verdict::Failed => 2,
    }
}

impl AssignmentRecord {
    pub(crate) fn aim(&self) -> Aim {
        Aim {
            wanted: self.wanted,
            archived: self.archived,
            document: self.document,
            wanted_since: self.wanted_since,
            changed_version: self.changed_version,
        }
    }

    pub fn outlook(&self) -> Outlook {
        self.aim().outlook(self.observed.as_ref())
    }
}

/// An assignment as far as a decision looks at it, whatever the device said about it.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldAssignment {
    pub id: AssignmentId,
    pub device: DeviceRef,
    pub name: DeploymentName,
    pub package: PackageId,
    pub version: PackageVersion,
    pub profile: ProfileId,
    /// In the manifest; otherwise it waits for the device to say that it is gone.
    pub wanted: bool,
    /// The document that is wanted, or was last.
    pub document: Digest,
    /// What that was made from, where it is known.
    pub basis: Option<Basis>,
}

/// The columns of [`HeldReader::read`], in their order.
pub(crate) const HELD: &str = "id, client, device, deployment_name, version, profile, wanted, document, package, made_revision, made_answers, made_fixed";

/// Reads a whole fleet's assignments in one go: by place, and what one has in common with others before is not made again.
#[derive(Default)]
pub(crate) struct HeldReader {
    clients: Shared<ClientId>,
    devices: Shared<DeviceId>,
    names: Shared<DeploymentName>,
    versions: Shared<PackageVersion>,
    profiles: Shared<ProfileId>,
    packages: Shared<PackageId>,
    bases: BasisReader,
}

impl HeldReader {
    pub(crate) fn read(&mut self, row: &Row<'_>) -> rusqlite::Result<HeldAssignment> {
        Ok(HeldAssignment {
            id: AssignmentId::from_uuid(uuid::Uuid::from_bytes(row.get(0)?)),
            device: DeviceRef::new(self.clients.at(row, 1)?, self.devices.at(row, 2)?),
            name: self.names.at(row, 3)?,
            version: self.versions.at(row, 4)?,
            profile: self.profiles.at(row, 5)?,
            wanted: row.get(6)?,
            document: Digest::from_bytes(row.get(7)?),
            package: self.packages.at(row, 8)?,
            basis: self.bases.read(row, 9)?,
        })
    }
}

/// Which assignments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    Deployment(DeploymentId),
    Devices(Vec<DeviceRef>),
    All,
}

/// How many assignments of a deployment are in one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignmentCount {
    pub deployment: DeploymentId,
    pub state: State,
    pub verdict: Verdict,
    /// Their rollout holds them back. Who waits for its first revision is among those that are pending.
    pub held_back: Option<HeldBack>,
    /// They are counted apart from the others in that state.
    pub apart: Option<Apart>,
    pub count: u64,
}

/// Why what is not as wanted is neither at work nor broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Apart {
    /// The device refuses it: it failed, and nothing broke.
    Never,
    /// It is pending, or waits for its turn, on a device that is not heard of.
    NotYet,
}

impl AssignmentCount {
    /// Under which word they are counted.
    pub fn word(&self) -> &'static str {
        // What failed has failed, whether its device waits for something else or not.
        match (self.apart, self.held_back.filter(|_| self.verdict != Verdict::Failed)) {
            (Some(Apart::Never), _) => "NEVER",
            (Some(Apart::NotYet), _) => "NOTYET",
            (None, Some(HeldBack::Waiting)) => "WAITING",
            (None, Some(HeldBack::LeftBehind)) => "LEFT",
            (None, None) => self.state.as_str(),
        }
    }
}

/// What an assignment is, as far as a rollout looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standpoint {
    pub state: State,
    pub verdict: Verdict,
    /// Why it failed, by its code; where it did.
    pub fault: Option<String>,
    /// What is wanted failed, and the device is on its way back.
    pub goes_back: bool,
}

/// How a rollout keeps what is wanted now from a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBack {
    /// Its turn has not come.
    Waiting,
    /// The rollout was aborted before its turn came.
    LeftBehind,
}

impl HeldBack {
    pub fn in_rollout(state: RolloutState) -> HeldBack {
        match state {
            RolloutState::Aborted => HeldBack::LeftBehind,
            _ => HeldBack::Waiting,
        }
    }
}

/// Some of what is not as wanted, and how much that is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Behind {
    /// By device.
    pub found: Vec<AssignmentRecord>,
    /// How many there are.
    pub total: u64,
    /// Of these there are more than were read.
    pub cut: Vec<(State, Verdict)>,
}

impl Behind {
    /// Whether there are more like this one that were not read.
    pub fn is_cut(&self, outlook: Outlook) -> bool {
        self.cut.contains(&(outlook.state, outlook.verdict))
    }
}

pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<AssignmentRecord> {
    let observed = match row.get::<_, Option<String>>("observed")? {
        None => None,
        Some(_) => Some(Observed {
            state: column::word(row, "observed", State::parse)?,
            report: row.json("report")?,
            received_at: row.moment("received_at")?,
            since: row.moment("observed_at")?,
            was_installed: row.get("was_installed")?,
        }),
    };
    Ok(AssignmentRecord {
        id: AssignmentId::from_uuid(row.uuid("id")?),
        device: DeviceRef::new(row.parsed("client")?, row.parsed("device")?),
        deployment: DeploymentId::from_uuid(row.uuid("deployment")?),
        name: row.parsed("deployment_name")?,
        package: row.parsed("package")?,
        version: row.parsed("version")?,
        profile: row.parsed("profile")?,
        wanted: row.get("wanted")?,
        archived: row.get("archived")?,
        document: row.digest("document")?,
        wanted_since: row.unsigned("wanted_since")?,
        changed_version: row.unsigned("changed_version")?,
        changed_at: row.moment("changed_at")?,
        waits: row.get("waits")?,
        observed,
    })
}

/// What [`read_count`] reads.
pub(crate) const COUNTS: &str =
    "SELECT assignment_tally.deployment, assignment_tally.state, verdict, waits, rollout.state AS rollout, count
    FROM assignment_tally LEFT JOIN rollout ON rollout.deployment = assignment_tally.deployment";

pub(crate) fn read_count(row: &Row<'_>) -> rusqlite::Result<AssignmentCount> {
    let held_back = match row.get("waits")? {
        true => Some(HeldBack::in_rollout(column::word(row, "rollout", RolloutState::parse)?)),
        false => None,
    };
    Ok(AssignmentCount {
        held_back,
        deployment: DeploymentId::from_uuid(row.uuid("deployment")?),
        state: column::word(row, "state", State::parse)?,
        verdict: verdict_from_column(row.get("verdict")?),
        apart: None,
        count: row.unsigned("count")?,
    })
}

pub(crate) fn one(sql: &Sql<'_>, id: AssignmentId) -> rusqlite::Result<Option<AssignmentRecord>> {
    sql.statement("SELECT * FROM assignment WHERE id = ?1")?
        .query_row([id.uuid().as_bytes()], read)
        .optional()
}

/// Takes a client's assignments back from the archive for as far as it was the retirement that put them there: the device
/// was not asked to remove anything, and does not say again what it said before. Whether they are wanted is decided
/// anew.
pub(crate) fn revive(sql: &Sql<'_>, client: &ClientId) -> Result<(), Error> {
    let retired: Vec<AssignmentRecord> = sql
        .statement(
            "SELECT * FROM assignment WHERE client = ?1 AND archived = 1 AND observed <> ?2
             AND EXISTS (SELECT 1 FROM deployment WHERE deployment.id = assignment.deployment AND removed = 0)",
        )?
        .query_map((client.as_str(), State::Deleted.as_str()), read)?
        .collect::<Result<_, _>>()?;
    for mut record in retired {
        record.archived = false;
        write(sql, &record, None)?;
    }
    Ok(())
}

/// An assignment as far as a report can change it.
pub(crate) struct Picture {
    pub(crate) device: DeviceRef,
    pub(crate) name: DeploymentName,
    pub(crate) aim: Aim,
    pub(crate) observed: Option<Observed>,
}

impl Picture {
    pub(crate) fn outlook(&self) -> Outlook {
        self.aim.outlook(self.observed.as_ref())
    }
}

/// What a report is held against, and the text of the newest one. Asked for every report, so columns are read by
/// their place.
pub(crate) fn picture(
    sql: &Sql<'_>,
    id: AssignmentId,
) -> rusqlite::Result<Option<(Picture, Option<String>)>> {
    sql.statement(
        "SELECT client, device, deployment_name, wanted, archived, document, wanted_since, changed_version,
             observed, report, received_at, observed_at, was_installed FROM assignment WHERE id = ?1",
    )?
    .query_row([id.uuid().as_bytes()], |row| {
        let newest: Option<String> = row.get(9)?;
        let observed = match &newest {
            None => None,
            Some(text) => Some(Observed {
                state: column::word_at(row, 8, State::parse)?,
                report: column::json_at(9, text)?,
                received_at: column::moment_at(row, 10)?,
                since: column::moment_at(row, 11)?,
                was_installed: row.get(12)?,
            }),
        };
        let picture = Picture {
            device: DeviceRef::new(column::parsed_at(row, 0)?, column::parsed_at(row, 1)?),
            name: column::parsed_at(row, 2)?,
            aim: Aim {
                wanted: row.get(3)?,
                archived: row.get(4)?,
                document: Digest::from_bytes(row.get(5)?),
                wanted_since: column::unsigned_at(row, 6)?,
                changed_version: column::unsigned_at(row, 7)?,
            },
            observed,
        };
        Ok((picture, newest))
    })
    .optional()
}

/// Writes what a report changed, with what follows from it. `report` and `adopted` are those of the newest one.
pub(crate) fn observe(
    sql: &Sql<'_>,
    id: AssignmentId,
    picture: &Picture,
    report: &str,
    adopted: i64,
) -> rusqlite::Result<()> {
    let Some(observed) = &picture.observed else { return Ok(()) };
    let outlook = picture.outlook();
    sql.statement(
        "UPDATE assignment SET archived = ?2, observed = ?3, adopted = ?4, report = ?5, received_at = ?6,
             observed_at = ?7, was_installed = ?8, state = ?9, verdict = ?10 WHERE id = ?1",
    )?
    .execute((
        id.uuid().as_bytes(),
        picture.aim.archived,
        observed.state.as_str(),
        adopted,
        report,
        column::moment(observed.received_at),
        column::moment(observed.since),
        observed.was_installed,
        outlook.state.as_str(),
        verdict_column(outlook.verdict),
    ))?;
    Ok(())
}

/// Writes the whole row, with what follows from it. What its document was made from stays what it was without a `basis`.
pub(crate) fn write(sql: &Sql<'_>, record: &AssignmentRecord, basis: Option<&Basis>) -> Result<(), Error> {
    let outlook = record.outlook();
    let observed = record.observed.as_ref();
    let (id, deployment, state) = (record.id.uuid(), record.deployment.uuid(), outlook.state.as_str());
    let verdict = verdict_column(outlook.verdict);
    let fixed = basis.map(|basis| &*basis.fixed).filter(|fixed| !fixed.is_empty());
    let changes: [(&str, &dyn ToSql); 20] = [
        (":id", id.as_bytes()),
        (":package", &record.package.as_str()),
        (":version", &record.version.as_str()),
        (":profile", &record.profile.as_str()),
        (":wanted", &record.wanted),
        (":document", record.document.as_bytes()),
        (":wanted_since", &column::unsigned("the manifest version", record.wanted_since)?),
        (":changed_version", &column::unsigned("the manifest version", record.changed_version)?),
        (":changed_at", &column::moment(record.changed_at)),
        (":observed", &observed.map(|observed| observed.state.as_str())),
        (
            ":adopted",
            &observed
                .map(|observed| column::unsigned("the adopted version", observed.report.adopted_version))
                .transpose()?,
        ),
        (":report", &observed.map(|observed| column::json(&observed.report))),
        (":received_at", &observed.map(|observed| column::moment(observed.received_at))),
        (":observed_at", &observed.map(|observed| column::moment(observed.since))),
        (":was_installed", &observed.is_some_and(|observed| observed.was_installed)),
        (":state", &state),
        (":verdict", &verdict),
        (":made_revision", &basis.map(|basis| column::unsigned("the revision", basis.revision)).transpose()?),
        (":made_answers", &basis.map(|basis| basis.answers.as_bytes().as_slice())),
        (":made_fixed", &fixed.map(column::json)),
    ];
    // What lists and numbers go by is mostly as it was, and then no index has to be touched.
    if !record.archived {
        let same = sql
            .statement(
                "UPDATE assignment SET package = :package, version = :version, profile = :profile,
                     wanted = :wanted, document = :document, wanted_since = :wanted_since,
                     changed_version = :changed_version, changed_at = :changed_at, observed = :observed,
                     adopted = :adopted, report = :report, received_at = :received_at,
                     observed_at = :observed_at, was_installed = :was_installed,
                     made_revision = coalesce(:made_revision, made_revision),
                     made_answers = coalesce(:made_answers, made_answers),
                     made_fixed = iif(:made_revision IS NULL, made_fixed, :made_fixed)
                 WHERE id = :id AND archived = 0 AND state = :state AND verdict = :verdict",
            )?
            .execute(&changes[..])?;
        if same > 0 {
            return Ok(());
        }
    }
    let place: [(&str, &dyn ToSql); 5] = [
        (":client", &record.device.client.as_str()),
        (":device", &record.device.device.as_str()),
        (":deployment", deployment.as_bytes()),
        (":deployment_name", &record.name.as_str()),
        (":archived", &record.archived),
    ];
    sql.statement(
        "INSERT INTO assignment (id, client, device, deployment, deployment_name, package, version,
             profile, wanted, archived, document, wanted_since, changed_version, changed_at, observed, adopted,
             report, received_at, observed_at, was_installed, state, verdict, made_revision, made_answers,
             made_fixed)
         VALUES (:id, :client, :device, :deployment, :deployment_name, :package, :version, :profile, :wanted,
             :archived, :document, :wanted_since, :changed_version, :changed_at, :observed, :adopted, :report,
             :received_at, :observed_at, :was_installed, :state, :verdict, :made_revision, :made_answers,
             :made_fixed)
         ON CONFLICT (id) DO UPDATE SET package = :package, version = :version, profile = :profile,
             wanted = :wanted, archived = :archived, document = :document, wanted_since = :wanted_since,
             changed_version = :changed_version, changed_at = :changed_at, observed = :observed,
             adopted = :adopted, report = :report, received_at = :received_at, observed_at = :observed_at,
             was_installed = :was_installed, state = :state, verdict = :verdict,
             made_revision = coalesce(:made_revision, made_revision),
             made_answers = coalesce(:made_answers, made_answers),
             made_fixed = iif(:made_revision IS NULL, made_fixed, :made_fixed)",
    )?
    .execute([changes.as_slice(), place.as_slice()].concat().as_slice())?;
    Ok(())
}

/// No longer wanted, and the device never said that it removes it, or that this has to wait. Such are shown as going; what
/// could not be removed is shown as failed, so one that failed here did so before that was wanted. One that was said to be gone
/// already while it was still wanted (the server had been restored, and wanted it again) may have come back since. What is said
/// to go since before it came back says nothing of that, either.
const UNSPOKEN: &str = "state = 'DELETING' AND archived = 0 AND wanted = 0
    AND (observed IS NULL OR observed NOT IN ('DELETING', 'DELETED')
        OR (observed = 'DELETED' AND adopted < changed_version)
        OR (observed = 'DELETING' AND adopted < wanted_since))
    AND (json_extract(report, '$.detail.waiting') IS NULL OR (observed = 'DELETING' AND adopted < wanted_since))";

/// A removal that a device has not said anything about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnspokenRemoval {
    pub id: AssignmentId,
    pub client: ClientId,
    /// The manifest that no longer has it.
    pub version: u64,
    /// The last that the device said before was that it has it.
    pub was_there: bool,
}

impl Store {
    /// Removals that devices have not said anything about, wanted before `before`.
    pub async fn removals_unspoken(&self, before: Moment) -> Result<Vec<UnspokenRemoval>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(&format!(
                "SELECT id, client, changed_version,
                     observed IS NOT NULL AND observed <> 'DELETED'
                         AND (adopted >= wanted_since OR observed = 'DELETING') AS was_there
                 FROM assignment WHERE {UNSPOKEN} AND changed_at <= ?1"
            ))?;
            let rows = statement.query_map([column::moment(before)], |row| {
                Ok(UnspokenRemoval {
                    id: AssignmentId::from_uuid(row.uuid("id")?),
                    client: row.parsed("client")?,
                    version: row.unsigned("changed_version")?,
                    was_there: row.get("was_there")?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Archives those of them about which still nothing was said: their devices do not have them.
    pub async fn archive_unspoken(&self, ids: Vec<AssignmentId>, now: Moment) -> Result<(), Error> {
        self.write(move |tx| {
            for id in &ids {
                let still = tx
                    .sql
                    .statement(&format!("SELECT * FROM assignment WHERE id = ?1 AND {UNSPOKEN}"))?
                    .query_row([id.uuid().as_bytes()], read)
                    .optional()?;
                let Some(mut record) = still else { continue };
                record.archived = true;
                write(tx.sql, &record, None)?;
                let AssignmentRecord { device, name, .. } = &record;
                let text = format!("{name} is not on {device}");
                let event = NewEvent::new(now, "assignment.state", "server", text);
                tx.note(event.device(device).deployment(name))?;
            }
            forget_removed(tx.sql)?;
            Ok(())
        })
        .await
    }

    /// Assignments that are wanted or still going; never archived ones. In the order of device and name.
    pub async fn assignments(&self, scope: Scope) -> Result<Vec<AssignmentRecord>, Error> {
        self.read(move |sql| {
            let mut found = Vec::new();
            match &scope {
                Scope::Deployment(id) => {
                    let mut statement = sql.statement(
                        "SELECT * FROM assignment WHERE deployment = ?1 AND archived = 0 ORDER BY client, device",
                    )?;
                    for record in statement.query_map([id.uuid().as_bytes()], read)? {
                        found.push(record?);
                    }
                }
                Scope::Devices(devices) => {
                    let mut statement = sql.statement(
                        "SELECT * FROM assignment WHERE client = ?1 AND device = ?2 AND archived = 0
                         ORDER BY deployment_name, wanted DESC",
                    )?;
                    for device in devices {
                        let key = (device.client.as_str(), device.device.as_str());
                        for record in statement.query_map(key, read)? {
                            found.push(record?);
                        }
                    }
                }
                Scope::All => {
                    let mut statement = sql.statement(
                        "SELECT * FROM assignment WHERE archived = 0 ORDER BY deployment_name, client, device",
                    )?;
                    for record in statement.query_map([], read)? {
                        found.push(record?);
                    }
                }
            }
            Ok(found)
        })
        .await
    }

    /// Assignments of a deployment that are wanted or still going, behind a device, in the order of devices; only those in a
    /// state, if one is given.
    pub async fn assignments_after(
        &self,
        deployment: DeploymentId,
        state: Option<State>,
        after: Option<DeviceRef>,
        limit: u32,
    ) -> Result<Vec<AssignmentRecord>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT * FROM assignment WHERE deployment = ?1 AND archived = 0 AND (?2 IS NULL OR state = ?2)
                 AND (client, device) > (?3, ?4) ORDER BY client, device LIMIT ?5",
            )?;
            let (client, device) = match &after {
                Some(after) => (after.client.as_str(), after.device.as_str()),
                None => ("", ""),
            };
            let state = state.map(|state| state.as_str());
            let rows =
                statement.query_map((deployment.uuid().as_bytes(), state, client, device, limit), read)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Those of a deployment that are not as their manifests want them, also those that are still going: of each state and
    /// verdict the first `each` by name, so that the cost does not follow the fleet. Who waits for its turn is among them
    /// only if it failed ([`Store::waiting_in`]).
    pub async fn assignments_behind(&self, deployment: DeploymentId, each: u32) -> Result<Behind, Error> {
        self.read(move |sql| {
            let id = deployment.uuid();
            let counts: Vec<AssignmentCount> = sql
                .statement(
                    "SELECT deployment, state, verdict, 0 AS waits, sum(count) AS count FROM assignment_tally
                     WHERE deployment = ?1 AND (verdict = 1 AND waits = 0 OR verdict = 2) AND count > 0 GROUP BY 2, 3",
                )?
                .query_map([id.as_bytes()], read_count)?
                .collect::<Result<_, _>>()?;
            // Without the name of the index all of a deployment would be read, and then sorted.
            let mut statement = sql.statement(
                "SELECT * FROM assignment INDEXED BY assignment_behind WHERE deployment = ?1 AND state = ?2
                 AND verdict = ?3 AND archived = 0 AND verdict <> 0 AND (waits = 0 OR verdict = 2)
                 ORDER BY client, device LIMIT ?4",
            )?;
            let mut behind = Behind::default();
            for AssignmentCount { state, verdict, count, .. } in counts {
                let before = behind.found.len();
                let key = (id.as_bytes(), state.as_str(), verdict_column(verdict), each);
                for record in statement.query_map(key, read)? {
                    behind.found.push(record?);
                }
                behind.total += count;
                if count > (behind.found.len() - before) as u64 {
                    behind.cut.push((state, verdict));
                }
            }
            behind.found.sort_by(|a, b| a.device.cmp(&b.device));
            Ok(behind)
        })
        .await
    }

    /// Some of the devices that said a deployment is as wanted and cannot look any more, and how many there are.
    pub async fn assignments_unseen(
        &self,
        deployment: DeploymentId,
        most: u32,
    ) -> Result<(Vec<DeviceRef>, u64), Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT device.client, device.device, count(*) OVER ()
                 FROM device INDEXED BY device_blind CROSS JOIN assignment
                 ON assignment.client = device.client AND assignment.device = device.device
                 WHERE blind_since IS NOT NULL AND deployment = ?1 AND archived = 0 AND verdict = 0
                 ORDER BY 1, 2 LIMIT ?2",
            )?;
            let mut total = 0;
            let rows = statement.query_map((deployment.uuid().as_bytes(), most), |row| {
                total = row.get::<_, u32>(2)?;
                Ok(DeviceRef::new(column::parsed_at(row, 0)?, column::parsed_at(row, 1)?))
            })?;
            let found = rows.collect::<Result<Vec<_>, _>>()?;
            Ok((found, total.into()))
        })
        .await
    }

    /// What is wanted of a deployment, device by device, as far as a rollout looks at it.
    pub async fn assignment_verdicts(
        &self,
        deployment: DeploymentId,
    ) -> Result<HashMap<DeviceRef, Standpoint>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT client, device, state, verdict, CASE verdict WHEN 2 THEN json_extract(report, '$.fault.code') END,
                     coalesce(observed = 'ROLLINGBACK' AND adopted >= changed_version, 0)
                 FROM assignment WHERE deployment = ?1 AND archived = 0 AND wanted = 1",
            )?;
            let rows = statement.query_map([deployment.uuid().as_bytes()], |row| {
                let device = DeviceRef::new(column::parsed_at(row, 0)?, column::parsed_at(row, 1)?);
                let standpoint = Standpoint {
                    state: column::word_at(row, 2, State::parse)?,
                    verdict: verdict_from_column(row.get(3)?),
                    fault: row.get(4)?,
                    goes_back: row.get(5)?,
                };
                Ok((device, standpoint))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// The first of a deployment that are as wanted, by name.
    pub async fn assignments_as_wanted(
        &self,
        deployment: &Deployment,
        limit: u32,
    ) -> Result<Vec<AssignmentRecord>, Error> {
        let (id, name) = (deployment.id, deployment.name.clone());
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT * FROM assignment INDEXED BY assignment_name WHERE deployment_name = ?1
                 AND deployment = ?2 AND archived = 0 AND verdict = 0 AND waits = 0
                 ORDER BY client, device LIMIT ?3",
            )?;
            let rows = statement.query_map((name.as_str(), id.uuid().as_bytes(), limit), read)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// The assignments of a deployment that are wanted or still going, as a decision needs them.
    pub async fn assignments_held(&self, deployment: DeploymentId) -> Result<Vec<HeldAssignment>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(&format!(
                "SELECT {HELD} FROM assignment WHERE deployment = ?1 AND archived = 0"
            ))?;
            let mut held = HeldReader::default();
            let rows = statement.query_map([deployment.uuid().as_bytes()], |row| held.read(row))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}
