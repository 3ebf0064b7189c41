//! Publishing: a change of intent and everything that follows from it, in one transaction.
//!
//! The caller decided from a picture of the fleet; the store takes the decision only if the picture still
//! holds. The deployment's revision and every touched client's manifest version are compared and swapped:
//! if another writer was faster, nothing is changed and the caller looks again.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;

use margrave_core::asked::Asked;
use margrave_core::deployment::{Defaults, Deployment};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::{
    AssignmentId, ClientId, DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion, ProfileId,
};
use margrave_core::image::Images;
use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_core::moment::Moment;
use margrave_core::schedule::{Choice, Reach};
use margrave_wire::Dialect;
use rusqlite::OptionalExtension as _;

use crate::applied::GoneBack;
use crate::assignment::{self, AssignmentRecord, HELD, HeldAssignment, HeldReader};
use crate::basis::Basis;
use crate::begun::Begun;
use crate::column;
use crate::error::from_database;
use crate::event::NewEvent;
use crate::package::{self, PackageError, PackageRecord, ResourceRecord};
use crate::rollout::{self, RolloutChange};
use crate::schedule::{self, Chosen, SCHEDULES_MAX};
use crate::sql::Sql;
use crate::writer::Tx;
use crate::{Error, Standing, Store};
use crate::{applied, asked, deployment, device, git, revision};

/// Everything that one decision changes.
#[derive(Debug, Clone, Default)]
pub struct Publication {
    pub at: Moment,
    /// In the order in which they are to be taken: what a deployment needs comes before it.
    pub intents: Vec<Intent>,
    /// The commit that says so, and the one it follows; another writer's in between makes this one look again.
    pub head: Option<Head>,
    pub clients: Vec<ClientPublication>,
    /// For each deployment and device that was looked at: why it was left out, or `None` if it was not.
    pub misfits: Vec<MisfitRecord>,
    /// Devices on which there is more room than before: what did not fit there is looked at again.
    pub freed: Vec<DeviceRef>,
    /// Devices whose placement is settled by this, with the [`unsettled`](crate::DeviceRecord::unsettled) that was
    /// seen: what changed since then is not.
    pub settled: Vec<(DeviceRef, u64)>,
    /// What becomes of rollouts. A new revision ends the rollout of the one before by itself.
    pub rollouts: Vec<RolloutChange>,
    /// Deployments that the server takes back by itself while its commit says otherwise.
    pub gone_back: Vec<GoneBack>,
    /// Deployments of which the commit says something: they follow it again.
    pub follows: Vec<DeploymentName>,
    pub events: Vec<NewEvent>,
}

/// The commit whose intent is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub expected: Option<String>,
    pub next: String,
    /// Who brought it.
    pub by: String,
}

/// A change of what operators want.
#[derive(Debug, Clone)]
pub enum Intent {
    AddPackage {
        package: Box<PackageRecord>,
        resources: Vec<ResourceRecord>,
    },
    /// Images of a package that was added before; what is pinned already stays.
    PinImages {
        id: PackageId,
        version: PackageVersion,
        images: Box<Images>,
        by: String,
    },
    /// What Git says of a device's labels, all of them; `None` when it says nothing any more.
    Label {
        device: DeviceRef,
        labels: Option<BTreeMap<String, String>>,
        by: String,
    },
    Schedule {
        reach: Reach,
        choice: Option<Choice>,
        by: String,
    },
    /// What counts for deployments that say nothing of it.
    Defaults(Box<Defaults>),
    /// Creates it (`seen` is `None`), or changes the revision that was seen.
    Put {
        deployment: Box<Deployment>,
        seen: Option<u64>,
        by: String,
    },
    Remove {
        id: DeploymentId,
        seen: u64,
        by: String,
    },
    RemovePackage {
        id: PackageId,
        version: PackageVersion,
        by: String,
    },
}

impl Intent {
    /// Who changes a deployment.
    fn by(&self) -> Option<&str> {
        match self {
            Intent::Put { by, .. } | Intent::Remove { by, .. } => Some(by),
            _ => None,
        }
    }
}

/// What changes for one client.
#[derive(Debug, Clone)]
pub struct ClientPublication {
    pub client: ClientId,
    /// The version that the decision was made from.
    pub expected: u64,
    /// `None` when assignments change and the manifest does not.
    pub manifest: Option<NewManifest>,
    pub assignments: Vec<AssignmentChange>,
}

#[derive(Debug, Clone)]
pub struct NewManifest {
    /// What the manifest lists in whose place it comes.
    pub replaces: Vec<Entry>,
    pub manifest: Manifest,
    /// Its exact bytes.
    pub body: Vec<u8>,
    pub bundle: Option<Vec<u8>>,
    /// Those that the client did not have before.
    pub documents: Vec<Document>,
}

#[derive(Debug, Clone)]
pub enum AssignmentChange {
    Want(WantedAssignment),
    Drop(AssignmentId),
}

#[derive(Debug, Clone, PartialEq)]
pub struct WantedAssignment {
    pub id: AssignmentId,
    pub device: DeviceRef,
    pub deployment: DeploymentId,
    pub name: DeploymentName,
    pub package: PackageId,
    pub version: PackageVersion,
    pub profile: ProfileId,
    pub document: Digest,
    /// What that was made from; left out where it is the one that is there, and that is not known.
    pub basis: Option<Basis>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MisfitRecord {
    pub deployment: DeploymentId,
    pub device: DeviceRef,
    /// Empty when it fits.
    pub reasons: Vec<String>,
    /// The device has not said yet what it is; it comes in by itself if it fits.
    pub temporary: bool,
}

/// A client as a decision needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientPicture {
    pub client: ClientId,
    pub standing: Standing,
    pub dialect: Dialect,
    pub manifest: Manifest,
    /// The next version must be above this; more than the manifest's own after a restored backup.
    pub version_floor: u64,
    /// Those that are wanted or still going.
    pub assignments: Vec<HeldAssignment>,
    /// What operators ask of it now; the manifest has what it was told.
    pub asked: Asked,
}

/// Clients of a publication as they are made; `None` says that these were all.
pub type Part = Option<Vec<ClientPublication>>;

/// The clients of a publication, in the order they came, for as often as it is attempted.
struct Coming {
    here: Vec<ClientPublication>,
    more: Option<mpsc::Receiver<Part>>,
}

impl Coming {
    /// Waits for it where it is still being made.
    fn at(&mut self, index: usize) -> Result<Option<&ClientPublication>, PublishError> {
        while index >= self.here.len()
            && let Some(more) = &self.more
        {
            match more.recv() {
                Ok(Some(part)) => self.here.extend(part),
                Ok(None) => self.more = None,
                Err(_) => return Err(PublishError::Unfinished),
            }
        }
        Ok(self.here.get(index))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("the deployment was changed by someone else")]
    RevisionMoved,
    #[error("the manifest of {0} was changed by someone else")]
    ManifestMoved(ClientId),
    #[error("another commit was applied in between")]
    HeadMoved,
    #[error("the package is not in the catalog any more")]
    PackageGone,
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error("there are {SCHEDULES_MAX} schedules already")]
    TooManySchedules,
    #[error("whoever made the publication stopped before its end")]
    Unfinished,
    #[error(transparent)]
    Store(#[from] Error),
}
from_database!(PublishError);

impl Store {
    /// Makes a whole decision durable, or nothing of it.
    pub async fn publish(&self, mut publication: Publication) -> Result<(), PublishError> {
        let coming = Coming { here: std::mem::take(&mut publication.clients), more: None };
        self.publish_coming(publication, coming).await
    }

    /// The same for one that is still being made: what is here is written meanwhile, which is half of the time for
    /// thousands of clients. Others wait for as long as the making takes, so it must not wait for anything itself.
    pub async fn publish_as_made(
        &self,
        mut publication: Publication,
        more: mpsc::Receiver<Part>,
    ) -> Result<(), PublishError> {
        let coming = Coming { here: std::mem::take(&mut publication.clients), more: Some(more) };
        self.publish_coming(publication, coming).await
    }

    async fn publish_coming(&self, publication: Publication, mut coming: Coming) -> Result<(), PublishError> {
        // Whoever asked for it has the commit with the transaction that takes it up, and not without.
        let begun = Begun::present().filter(|_| publication.head.is_some());
        if let (Some(begun), Some(head)) = (&begun, &publication.head) {
            begun.takes(Some(head.next.clone()));
        }
        let published = self.write(move |tx| publish(tx, &publication, &mut coming)).await;
        if let (Some(begun), Err(_)) = (&begun, &published) {
            begun.takes(None);
        }
        published
    }

    /// The exact bytes of a document that the client's current or previous manifest lists.
    pub async fn document(
        &self,
        client: &ClientId,
        assignment: AssignmentId,
        digest: Digest,
    ) -> Result<Option<Vec<u8>>, Error> {
        let client = client.clone();
        self.read_for_device(move |sql| {
            let mut statement = sql.statement(
                "SELECT bytes FROM document WHERE client = ?1 AND assignment = ?2 AND digest = ?3",
            )?;
            let assignment = assignment.uuid();
            let key = (client.as_str(), assignment.as_bytes(), digest.as_bytes());
            Ok(statement.query_row(key, |row| row.get(0)).optional()?)
        })
        .await
    }

    /// The exact bytes of the bundle of the client's current or previous manifest.
    pub async fn bundle(&self, client: &ClientId, digest: Digest) -> Result<Option<Vec<u8>>, Error> {
        let client = client.clone();
        self.read_for_device(move |sql| {
            let mut statement =
                sql.statement("SELECT bytes FROM bundle WHERE client = ?1 AND digest = ?2")?;
            Ok(statement.query_row((client.as_str(), digest.as_bytes()), |row| row.get(0)).optional()?)
        })
        .await
    }

    /// The documents that these clients' manifests list now.
    pub async fn documents(
        &self,
        clients: Vec<ClientId>,
    ) -> Result<HashMap<ClientId, BTreeMap<AssignmentId, Vec<u8>>>, Error> {
        if clients.is_empty() {
            return Ok(HashMap::new());
        }
        self.read(move |sql| {
            let mut found = HashMap::with_capacity(clients.len());
            for client in clients {
                let documents = sql
                    .statement("SELECT assignment, bytes FROM document WHERE client = ?1 AND until IS NULL")?
                    // By their place: a large fleet's bundles are made of a hundred thousand of them.
                    .query_map([client.as_str()], |row| {
                        Ok((AssignmentId::from_uuid(uuid::Uuid::from_bytes(row.get(0)?)), row.get(1)?))
                    })?
                    .collect::<Result<_, _>>()?;
                found.insert(client, documents);
            }
            Ok(found)
        })
        .await
    }

    /// What a decision about these clients has to know, from one moment. Unknown clients are left out.
    pub async fn pictures(&self, clients: Vec<ClientId>) -> Result<Vec<ClientPicture>, Error> {
        if clients.is_empty() {
            return Ok(Vec::new());
        }
        self.read(move |sql| {
            let mut pictures = Vec::with_capacity(clients.len());
            let mut held = HeldReader::default();
            for client in &clients {
                pictures.extend(picture(sql, client, &mut held)?);
            }
            Ok(pictures)
        })
        .await
    }
}

fn picture(sql: &Sql<'_>, client: &ClientId, held: &mut HeldReader) -> Result<Option<ClientPicture>, Error> {
    let found = sql
        .statement(
            "SELECT standing, dialect, version, bundle, bundle_size, version_claimed, schedule, manifest.asked,
                 asked.hold, asked.look
             FROM client JOIN manifest ON manifest.client = client.id LEFT JOIN asked ON asked.client = client.id
             WHERE id = ?1",
        )?
        .query_row([client.as_str()], |row| {
            let size: Option<i64> = row.get(4)?;
            let size = size.and_then(|size| u64::try_from(size).ok());
            let bundle: Option<[u8; 32]> = row.get(3)?;
            let bundle = bundle.map(|digest| Blob { digest: Digest::from_bytes(digest), size });
            let standing = column::word_at(row, 0, Standing::parse)?;
            let dialect = column::word_at(row, 1, Dialect::parse)?;
            let schedule: Option<String> = row.get(6)?;
            let schedule = schedule.map(|text| column::json_at(6, &text)).transpose()?.unwrap_or_default();
            let told: Option<String> = row.get(7)?;
            let told: Asked = told.map(|text| column::json_at(7, &text)).transpose()?.unwrap_or_default();
            let asked = asked::read_at(row, 8)?;
            let versions = (column::unsigned_at(row, 2)?, column::unsigned_at(row, 5)?);
            Ok((standing, dialect, versions, bundle, (schedule, told, asked)))
        })
        .optional()?;
    let Some((standing, dialect, (version, claimed), bundle, terms)) = found else { return Ok(None) };
    let (schedule, told, asked) = terms;
    let entries = entries(sql, client)?;
    let manifest = Manifest::new(version, bundle, entries)
        .map_err(|_| Error::Damaged { what: "a client's references do not make its manifest" })?
        .with_schedule(schedule)
        .with_asked(told);
    let assignments = sql
        .statement(&format!("SELECT {HELD} FROM assignment WHERE client = ?1 AND archived = 0"))?
        .query_map([client.as_str()], |row| held.read(row))?
        .collect::<Result<_, _>>()?;
    let version_floor = version.max(claimed);
    Ok(Some(ClientPicture {
        client: client.clone(),
        standing,
        dialect,
        manifest,
        version_floor,
        assignments,
        asked,
    }))
}

fn entries(sql: &Sql<'_>, client: &ClientId) -> rusqlite::Result<Vec<Entry>> {
    sql.statement("SELECT assignment, digest, size FROM document WHERE client = ?1 AND until IS NULL")?
        .query_map([client.as_str()], |row| {
            let size: Option<i64> = row.get(2)?;
            let digest = Digest::from_bytes(row.get(1)?);
            let document = Blob { digest, size: size.and_then(|size| u64::try_from(size).ok()) };
            Ok(Entry { id: AssignmentId::from_uuid(uuid::Uuid::from_bytes(row.get(0)?)), document })
        })?
        .collect()
}

fn publish(tx: &Tx<'_, '_>, publication: &Publication, coming: &mut Coming) -> Result<(), PublishError> {
    let Publication {
        at,
        intents,
        head,
        clients: _,
        misfits,
        freed,
        settled,
        rollouts,
        gone_back,
        follows,
        events,
    } = publication;
    if let Some(head) = head {
        advance(tx.sql, head)?;
        applied::note(tx.sql, &head.next, *at, &head.by)?;
    }
    let commit = head.as_ref().map(|head| head.next.as_str());
    for intent in intents {
        take(tx, intent, commit, *at)?;
    }
    let by = intents.iter().find_map(Intent::by);
    for change in rollouts {
        rollout::change(tx.sql, change, *at, by)?;
    }
    let has_git = git::is_used(tx.sql)?;
    for index in 0.. {
        let Some(client) = coming.at(index)? else { break };
        publish_client(tx.sql, client, has_git, *at)?;
    }
    if intents.iter().any(|intent| matches!(intent, Intent::Remove { .. })) {
        deployment::forget_removed(tx.sql)?;
        revision::forget_oldest(tx.sql)?;
    }
    for MisfitRecord { deployment, device, reasons, temporary } in misfits {
        let deployment = deployment.uuid();
        let key = (deployment.as_bytes(), device.client.as_str(), device.device.as_str());
        if reasons.is_empty() {
            tx.sql
                .statement("DELETE FROM misfit WHERE deployment = ?1 AND client = ?2 AND device = ?3")?
                .execute(key)?;
        } else {
            tx.sql
                .statement(
                    "INSERT INTO misfit (deployment, client, device, reasons, temporary) SELECT ?1, ?2, ?3, ?4, ?5
                     WHERE EXISTS (SELECT 1 FROM deployment WHERE id = ?1)
                     ON CONFLICT (deployment, client, device) DO UPDATE SET reasons = ?4, temporary = ?5",
                )?
                .execute((key.0, key.1, key.2, column::json(reasons), temporary))?;
        }
    }
    // Most of the time nobody waits for room.
    let waiting = !freed.is_empty()
        && tx
            .sql
            .statement("SELECT EXISTS (SELECT 1 FROM misfit WHERE temporary = 0)")?
            .query_row([], |row| row.get::<_, bool>(0))?;
    for device in freed.iter().filter(|_| waiting) {
        tx.sql
            .statement(
                "UPDATE device SET unsettled = unsettled + 1 WHERE client = ?1 AND device = ?2
                 AND EXISTS (SELECT 1 FROM misfit WHERE client = ?1 AND device = ?2 AND temporary = 0)",
            )?
            .execute((device.client.as_str(), device.device.as_str()))?;
    }
    for (device, seen) in settled {
        tx.sql
            .statement(
                "UPDATE device SET unsettled = 0 WHERE client = ?1 AND device = ?2 AND unsettled = ?3",
            )?
            .execute((device.client.as_str(), device.device.as_str(), column::unsigned("a count", *seen)?))?;
    }
    for name in follows {
        applied::follow_again(tx.sql, name)?;
    }
    for gone in gone_back {
        applied::go_back(tx.sql, gone)?;
    }
    for event in events {
        tx.note(event.clone())?;
    }
    Ok(())
}

/// Under what the applied commit is remembered.
pub(crate) const HEAD: &str = "intent.head";
/// Under what the defaults of deployments are remembered.
pub(crate) const DEFAULTS: &str = "intent.defaults";

fn advance(sql: &Sql<'_>, head: &Head) -> Result<(), PublishError> {
    let held: Option<Vec<u8>> = sql
        .statement("SELECT value FROM meta WHERE key = ?1")?
        .query_row([HEAD], |row| row.get(0))
        .optional()?;
    if held.as_deref() != head.expected.as_deref().map(str::as_bytes) {
        return Err(PublishError::HeadMoved);
    }
    sql.statement(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2",
    )?
    .execute((HEAD, head.next.as_bytes()))?;
    Ok(())
}

fn take(tx: &Tx<'_, '_>, intent: &Intent, commit: Option<&str>, at: Moment) -> Result<(), PublishError> {
    match intent {
        Intent::AddPackage { package, resources } => package::add(tx, package, resources)?,
        Intent::PinImages { id, version, images, by } => package::pin(tx, id, version, images, at, by)?,
        Intent::RemovePackage { id, version, by } => package::remove(tx, id, version, at, by)?,
        Intent::Label { device, labels, by } => device::set(tx, device, labels.as_ref(), at, by)?,
        Intent::Schedule { reach, choice, by } => {
            if schedule::choose(tx, reach, choice.as_ref(), at, by)? == Chosen::TooMany {
                return Err(PublishError::TooManySchedules);
            }
        }
        Intent::Defaults(defaults) => {
            let sql =
                "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
            tx.sql.statement(sql)?.execute((DEFAULTS, column::json(defaults).into_bytes()))?;
        }
        Intent::Put { deployment, seen, by } => {
            deployment::put(tx.sql, deployment, *seen, by, at)?;
            deployment::mark(tx.sql, deployment.id, commit)?;
            revision::keep(tx.sql, deployment.id)?;
            rollout::end(tx.sql, deployment.id)?;
        }
        Intent::Remove { id, seen, by } => {
            let seen = column::unsigned("the revision", *seen)?;
            let removed = tx
                .sql
                .statement(
                    "UPDATE deployment SET removed = 1, revision = revision + 1, changed_at = ?3, changed_by = ?4
                     WHERE id = ?1 AND revision = ?2 AND removed = 0",
                )?
                .execute((id.uuid().as_bytes(), seen, column::moment(at), by))?;
            if removed == 0 {
                return Err(PublishError::RevisionMoved);
            }
            tx.sql.statement("DELETE FROM misfit WHERE deployment = ?1")?.execute([id.uuid().as_bytes()])?;
            deployment::mark(tx.sql, *id, commit)?;
            revision::keep(tx.sql, *id)?;
            rollout::end(tx.sql, *id)?;
        }
    }
    Ok(())
}

fn publish_client(
    sql: &Sql<'_>,
    publication: &ClientPublication,
    has_git: bool,
    at: Moment,
) -> Result<(), PublishError> {
    let ClientPublication { client, expected, manifest, assignments } = publication;
    let version = manifest.as_ref().map_or(*expected, |new| new.manifest.version());
    // A client that was put out since then gets nothing; a new look leaves it out.
    let bundle = sql
        .statement(
            "SELECT bundle FROM manifest JOIN client ON client.id = manifest.client
             WHERE client = ?1 AND version = ?2 AND standing = 'accepted'",
        )?
        .query_row((client.as_str(), column::unsigned("the manifest version", *expected)?), |row| {
            Ok(row.get::<_, Option<[u8; 32]>>(0)?.map(Digest::from_bytes))
        })
        .optional()?
        .ok_or_else(|| PublishError::ManifestMoved(client.clone()))?;
    // Before the manifest, because it matters what was in the one before.
    for change in assignments {
        match change {
            AssignmentChange::Want(wanted) => want(sql, wanted, version, at)?,
            AssignmentChange::Drop(id) => {
                if let Some(mut record) = assignment::one(sql, *id)?
                    && record.wanted
                {
                    record.wanted = false;
                    record.changed_version = version;
                    record.changed_at = at;
                    assignment::write(sql, &record, None)?;
                }
            }
        }
    }
    if let Some(new) = manifest {
        swap_manifest(sql, client, *expected, bundle, new)?;
        if has_git {
            git::record(sql, client, new, at)?;
        }
    }
    Ok(())
}

fn want(sql: &Sql<'_>, wanted: &WantedAssignment, version: u64, at: Moment) -> Result<(), PublishError> {
    let WantedAssignment {
        id,
        device,
        deployment,
        name,
        package,
        version: package_version,
        profile,
        document,
        basis,
    } = wanted.clone();
    let before = assignment::one(sql, id)?;
    let still = match before.as_ref().filter(|before| !before.archived) {
        // Nobody wanted it for a while, but its client was never told: it was retired.
        Some(before) if !before.wanted => is_listed(sql, before)?.then_some(before),
        before => before,
    };
    let (changed_version, changed_at) = match still.filter(|before| before.document == document) {
        Some(before) => (before.changed_version, before.changed_at),
        None => (version, at),
    };
    let wanted_since = still.map_or(version, |before| before.wanted_since);
    // What an archived one last said belongs to an earlier life.
    let observed = before.filter(|before| !before.archived).and_then(|before| before.observed);
    let record = AssignmentRecord {
        id,
        device,
        deployment,
        name,
        package,
        version: package_version,
        profile,
        wanted: true,
        archived: false,
        document,
        wanted_since,
        changed_version,
        changed_at,
        waits: false,
        observed,
    };
    assignment::write(sql, &record, basis.as_ref())?;
    Ok(())
}

/// Whether the client's manifest has what this assignment says.
fn is_listed(sql: &Sql<'_>, assignment: &AssignmentRecord) -> rusqlite::Result<bool> {
    sql.statement(
        "SELECT 1 FROM document WHERE client = ?1 AND assignment = ?2 AND digest = ?3 AND until IS NULL",
    )?
    .exists((
        assignment.device.client.as_str(),
        assignment.id.uuid().as_bytes(),
        assignment.document.as_bytes(),
    ))
}

/// Puts the new manifest in place of the one that was seen, with `old_bundle`, and keeps both fetchable.
fn swap_manifest(
    sql: &Sql<'_>,
    client: &ClientId,
    expected: u64,
    old_bundle: Option<Digest>,
    new: &NewManifest,
) -> Result<(), PublishError> {
    let NewManifest { replaces, manifest, body, bundle, documents } = new;
    let version = column::unsigned("the manifest version", manifest.version())?;
    let seen = column::unsigned("the manifest version", expected)?;
    if manifest.version() <= expected {
        return Err(Error::Damaged { what: "a manifest version that does not grow" }.into());
    }

    // What went out of the manifest before this one is out of reach now.
    forget_before(sql, client, seen)?;

    let before: BTreeMap<AssignmentId, Blob> =
        replaces.iter().map(|entry| (entry.id, entry.document)).collect();
    let after: BTreeMap<AssignmentId, Blob> =
        manifest.entries().iter().map(|entry| (entry.id, entry.document)).collect();
    for (id, document) in &before {
        if after.get(id).map(|after| after.digest) != Some(document.digest) {
            sql.statement(
                "UPDATE document SET until = ?4 WHERE client = ?1 AND assignment = ?2 AND digest = ?3",
            )?
            .execute((
                client.as_str(),
                id.uuid().as_bytes(),
                document.digest.as_bytes(),
                version,
            ))?;
        }
    }
    for (id, document) in &after {
        if before.get(id).map(|before| before.digest) != Some(document.digest) {
            keep_document(sql, client, *id, document, documents)?;
        }
    }

    let new_bundle = manifest.bundle();
    if old_bundle != new_bundle.map(|new| new.digest) {
        if let Some(old) = old_bundle {
            sql.statement("UPDATE bundle SET until = ?3 WHERE client = ?1 AND digest = ?2")?.execute((
                client.as_str(),
                old.as_bytes(),
                version,
            ))?;
        }
        if let Some(blob) = new_bundle {
            keep_bundle(sql, client, blob.digest, bundle.as_deref())?;
        }
    }

    let size =
        new_bundle.and_then(|blob| blob.size).map(|size| column::unsigned("a size", size)).transpose()?;
    sql.statement(
        "UPDATE manifest SET version = ?2, body = ?3, bundle = ?4, bundle_size = ?5, schedule = ?6, asked = ?7
         WHERE client = ?1",
    )?
    .execute((
        client.as_str(),
        version,
        body,
        new_bundle.as_ref().map(|blob| blob.digest.as_bytes().as_slice()),
        size,
        (!manifest.schedule().is_usual()).then(|| column::json(manifest.schedule())),
        (!manifest.asked().is_nothing()).then(|| column::json(manifest.asked())),
    ))?;
    Ok(())
}

/// A document comes into the manifest, with the bytes that were brought, or with those that it was left with.
fn keep_document(
    sql: &Sql<'_>,
    client: &ClientId,
    id: AssignmentId,
    document: &Blob,
    brought: &[Document],
) -> Result<(), PublishError> {
    let size = document.size.map(|size| column::unsigned("a size", size)).transpose()?;
    let key = (client.as_str(), id.uuid(), document.digest);
    let kept = match brought.iter().find(|brought| brought.digest() == document.digest) {
        Some(brought) => sql
            .statement(
                "INSERT INTO document (client, assignment, digest, size, bytes) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (client, assignment, digest) DO UPDATE SET until = NULL, size = ?4",
            )?
            .execute((key.0, key.1.as_bytes(), key.2.as_bytes(), size, brought.bytes()))?,
        None => sql
            .statement(
                "UPDATE document SET until = NULL, size = ?4 WHERE client = ?1 AND assignment = ?2 AND digest = ?3",
            )?
            .execute((key.0, key.1.as_bytes(), key.2.as_bytes(), size))?,
    };
    if kept == 0 {
        return Err(Error::Damaged { what: "a manifest with a document whose bytes nobody brought" }.into());
    }
    Ok(())
}

/// The same for the bundle.
fn keep_bundle(
    sql: &Sql<'_>,
    client: &ClientId,
    digest: Digest,
    brought: Option<&[u8]>,
) -> Result<(), PublishError> {
    let key = (client.as_str(), digest.as_bytes());
    let kept = match brought {
        Some(bytes) => sql
            .statement(
                "INSERT INTO bundle (client, digest, bytes) VALUES (?1, ?2, ?3)
                 ON CONFLICT (client, digest) DO UPDATE SET until = NULL",
            )?
            .execute((key.0, key.1, bytes))?,
        None => {
            sql.statement("UPDATE bundle SET until = NULL WHERE client = ?1 AND digest = ?2")?.execute(key)?
        }
    };
    if kept == 0 {
        return Err(Error::Damaged { what: "a manifest with a bundle whose bytes nobody brought" }.into());
    }
    Ok(())
}

/// Drops what went out of the manifest at or before `version`.
fn forget_before(sql: &Sql<'_>, client: &ClientId, version: i64) -> rusqlite::Result<()> {
    for table in ["document", "bundle"] {
        sql.statement(&format!("DELETE FROM {table} WHERE client = ?1 AND until <= ?2"))?
            .execute((client.as_str(), version))?;
    }
    Ok(())
}
