//! From what is wanted to what each client is given.
//!
//! A decision is made from one picture of the clients it touches, and from nothing else: the same picture
//! gives the same documents, bundles and manifests, byte for byte. Only clients for which something changes
//! get a new manifest, so the cost follows the change and not the fleet.

mod difference;
mod foreseeing;
mod pacing;
mod placing;
mod promising;
mod relabelling;
mod renumbering;
mod settling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Instant;

use bytes::Bytes;
use margrave_core::deployment::Deployment;
use margrave_core::digest::{Digest, Document};
use margrave_core::id::{AssignmentId, ClientId, DeploymentId, DeviceRef};
use margrave_core::manifest::{Blob, Entry as ManifestEntry, Manifest};
use margrave_core::package::Profile;
use margrave_core::parameters::{Answers, fixed, held, reaches, resolve};
use margrave_core::publish::{Chosen, Circumstances, choose_profile, next_manifest};
use margrave_core::schedule::Schedule;
use margrave_core::secret::Secrets;
use margrave_core::workload::Workload;
use margrave_oci::reference::Repository;
use margrave_store::{
    AssignmentChange, Basis, Candidate, ClientPicture, ClientPublication, HeldAssignment, MisfitRecord,
    NewManifest, PackageError, Part, Publication, PublishError, RolloutChange, SCHEDULES_MAX, Standing,
    Store, WantedAssignment,
};
use margrave_wire::bundle;

use super::catalog::Entry;
use super::client::Clients;
use super::draft::Before;
use super::{Error, Fleet};
use crate::cores;

pub(super) use difference::Difference;
use pacing::Begun;
pub(super) use pacing::Paced;
use placing::Landed;
pub(super) use promising::Stand;

/// Losing so often against other writers means that something else is wrong.
pub(super) const ATTEMPTS_MAX: u32 = 5;
/// Below this, starting threads costs more than it gains.
const WORTH_A_THREAD: usize = 64;
/// Clients whose documents are read and whose manifests are made in one go: enough to be worth a thread, little enough that
/// the store has something to write at once.
const MADE_TOGETHER: usize = 128;
/// Said with the reasons of a device that has the deployment already, in a form that fits.
const KEEPS: &str = "what it has of it, it keeps until then";

/// A deployment and its package.
#[derive(Clone)]
pub(super) struct Wish {
    pub(super) deployment: Deployment,
    pub(super) entry: Arc<Entry>,
    /// What installations have already, where the deployment is about to change: what is immutable stays what it
    /// was on every device, whichever profile it runs (DM-059).
    pub(super) previous: Option<Before>,
    /// What the answers refer to, as it is now.
    pub(super) secrets: Arc<Secrets>,
    /// Nothing is new in it for anybody, so that nobody waits for a turn, whatever its strategy says.
    pub(super) at_once: bool,
}

/// One document for one device.
pub(super) struct Placed {
    pub(super) wanted: WantedAssignment,
    document: Document,
    /// Why it does not fit there, where it was forced.
    pub(super) despite: Vec<String>,
}

/// Why a device gets no document.
pub(super) enum Unplaced {
    /// It has not said what it can do; it comes in by itself once it has.
    NotReported,
    Misfit(Vec<String>),
}

/// Whether a device that does not fit has the deployment in an earlier form.
pub(super) fn is_kept(reasons: &[String]) -> bool {
    reasons.iter().any(|reason| reason == KEEPS)
}

impl Unplaced {
    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, Unplaced::NotReported)
    }

    pub(super) fn reasons(self) -> Vec<String> {
        match self {
            Unplaced::NotReported => {
                vec!["has not reported its capabilities yet; it follows by itself once it has".into()]
            }
            Unplaced::Misfit(reasons) => reasons,
        }
    }
}

/// What is to change for one client, and what it is now.
pub(super) struct Touched {
    picture: ClientPicture,
    changes: Changes,
}

/// Why a decision was not published.
pub(super) enum Unpublished {
    /// Something is not any more what the decision was made from; look again.
    Moved,
    Failed(Error),
}

impl From<PublishError> for Unpublished {
    fn from(error: PublishError) -> Unpublished {
        match error {
            PublishError::RevisionMoved | PublishError::ManifestMoved(_) | PublishError::HeadMoved => {
                Unpublished::Moved
            }
            PublishError::Package(error) => Unpublished::Failed(package_error(error)),
            PublishError::TooManySchedules => Unpublished::Failed(Error::conflict(format!(
                "there are {SCHEDULES_MAX} schedules; choose by label instead"
            ))),
            PublishError::PackageGone => Unpublished::Failed(Error::conflict(
                "the package was removed from the catalog in between; add it again first",
            )),
            // Who made it says why, before this is looked at.
            PublishError::Unfinished => Unpublished::Failed(Error::conflict(error.to_string())),
            PublishError::Store(error) => Unpublished::Failed(error.into()),
        }
    }
}

impl From<Unpublished> for Error {
    fn from(unpublished: Unpublished) -> Error {
        match unpublished {
            Unpublished::Moved => Error::conflict("others change the same things at this moment; try again"),
            Unpublished::Failed(error) => error,
        }
    }
}

/// What is to change, and who was left out.
pub(super) struct Decision {
    pub(super) touched: Vec<Touched>,
    pub(super) misfits: Vec<MisfitRecord>,
    /// Those among the misfits that are known not to fit.
    pub(super) unfit: BTreeSet<(DeploymentId, DeviceRef)>,
    /// Who gets it although it does not fit, and why it does not.
    pub(super) forced: Vec<MisfitRecord>,
    /// Devices on which there is more room than before.
    pub(super) freed: BTreeSet<DeviceRef>,
    /// What becomes of rollouts: who has to wait.
    pub(super) rollouts: Vec<RolloutChange>,
    /// Rollouts that begin, and what changes for those who have to wait.
    pub(super) paced: Vec<Paced>,
    pub(super) later: Vec<Difference>,
}

impl Wish {
    /// The document for a device, or every reason why it gets none.
    pub(super) fn place(
        &self,
        device: &Candidate,
        stand: &Stand,
        registry_address: &str,
    ) -> Result<Placed, Unplaced> {
        let body = device.capabilities.as_ref().ok_or(Unplaced::NotReported)?;
        let capabilities = device
            .dialect
            .capabilities(body)
            .map_err(|error| Unplaced::Misfit(vec![format!("its capabilities cannot be read: {error}")]))?;
        let package = &self.entry.package;
        let deployment = &self.deployment;
        let answers = deployment.answers_for(&device.device, &device.labels);
        let mut previous = self.previous.as_ref().map(|before| before.values(&device.device, &device.labels));
        // What the device was given counts, and not what was wanted for it meanwhile.
        if let Some(fixed) = &stand.fixed {
            let fixed = fixed.iter().map(|(name, value)| (name.clone(), value.clone()));
            previous.get_or_insert_default().extend(fixed);
        }
        let values =
            |profile: &Profile| resolve(package, profile, &answers, previous.as_ref(), &self.secrets);
        let circumstances = Circumstances {
            capabilities: &capabilities,
            needs: &self.entry.needs,
            room: stand.room(),
            forced: deployment.forced.is_some(),
        };
        let chosen =
            choose_profile(package, deployment.profile.as_ref(), stand.held.as_ref(), &circumstances, values);
        let Chosen { profile, prepared: parameters, despite } = chosen.map_err(Unplaced::Misfit)?;
        let id = device.assignment_id(deployment.id);
        let pins = self.entry.pins(profile);
        let mut workload =
            Workload::compose(&deployment.name, id, &device.device, package, profile, parameters, pins)
                .with_images(self.entry.image_pins(profile))
                .with_rollback(deployment.rollback)
                .with_windows(&deployment.windows);
        if workload.parameters.iter().any(|parameter| parameter.secret) {
            workload.hints.salt = self.secrets.salt.clone();
        }
        for component in &mut workload.components {
            component.repository = reachable(&component.repository, registry_address);
        }
        let document = Document::of(device.dialect.document(&workload));
        let wanted = WantedAssignment {
            id,
            device: device.device.clone(),
            deployment: deployment.id,
            name: deployment.name.clone(),
            package: deployment.package.clone(),
            version: deployment.version.clone(),
            profile: profile.id.clone(),
            document: document.digest(),
            basis: Some(Basis {
                revision: deployment.revision,
                answers: self.digest_of(&answers, profile),
                fixed: Arc::new(fixed(package, &answers, &self.secrets)),
            }),
        };
        Ok(Placed { wanted, document, despite })
    }
}

impl Wish {
    /// Whether a device is answered otherwise than when the document that it has was made.
    fn answers_otherwise(&self, device: &Candidate, held: &HeldAssignment) -> bool {
        if !self.deployment.has_answers_by_label() {
            return false;
        }
        let profile = self.entry.package.profiles.iter().find(|profile| profile.id == held.profile);
        let (Some(profile), Some(basis)) = (profile, &held.basis) else { return true };
        let answers = self.deployment.answers_for(&device.device, &device.labels);
        basis.answers != self.digest_of(&answers, profile)
    }

    /// Tells the answers that a profile asks for from others. Where a secret is does not matter, only that it is the same.
    fn digest_of(&self, answers: &Answers, profile: &Profile) -> Digest {
        let mut answers = held(answers);
        answers.retain(|name, _| reaches(&self.entry.package, profile, name));
        let text = serde_json::to_vec(&answers).expect("answers have texts for keys");
        Digest::of(&text)
    }
}

/// A component in our own registry, as any device can reach it.
fn reachable(repository: &str, registry_address: &str) -> String {
    match Repository::parse(repository) {
        Ok(own) if own.host.is_own_registry() => format!("oci://{registry_address}/{}", own.name),
        _ => repository.to_owned(),
    }
}

/// What changes for one client.
#[derive(Default)]
struct Changes {
    wanted: Vec<Placed>,
    /// What its manifest lists already and nobody wanted while it was retired.
    again: Vec<WantedAssignment>,
    dropped: Vec<AssignmentId>,
    /// When it is to talk and to change, where that is another time than before.
    schedule: Option<Schedule>,
}

/// The clients that a decision touches, as they are.
pub(super) struct Pictures(BTreeMap<ClientId, ClientPicture>);

impl Pictures {
    fn held(&self, device: &DeviceRef, id: AssignmentId) -> Option<&HeldAssignment> {
        self.0.get(&device.client)?.assignments.iter().find(|held| held.id == id)
    }

    /// What a device was given before it was retired, and has as far as anybody knows.
    fn left_behind(&self, device: &DeviceRef, id: AssignmentId) -> Option<&HeldAssignment> {
        let held = self.held(device, id).filter(|held| !held.wanted)?;
        let mut listed = self.0.get(&device.client)?.manifest.entries().iter();
        listed.any(|entry| entry.id == id && entry.document.digest == held.document).then_some(held)
    }
}

impl Fleet {
    async fn pictures(&self, clients: BTreeSet<ClientId>) -> Result<Pictures, Error> {
        let clients: Vec<ClientId> = clients.into_iter().collect();
        // Two readers at once, where it is worth it. A picture has to be true of its own client only: what changed
        // since it was taken is found out when the decision is published.
        let (first, second) = clients.split_at(clients.len() / 2);
        let (first, second) =
            tokio::try_join!(self.store.pictures(first.to_vec()), self.store.pictures(second.to_vec()))?;
        let pictures = first.into_iter().chain(second);
        let accepted = pictures.filter(|picture| picture.standing == Standing::Accepted);
        let now = self.now();
        let as_of_now = |mut picture: ClientPicture| {
            picture.asked = picture.asked.at(now);
            (picture.client.clone(), picture)
        };
        Ok(Pictures(accepted.map(as_of_now).collect()))
    }

    /// What new, changed and removed deployments mean together: for those they reach, and for those they reach no more. What is
    /// `leaving` goes because of other labels.
    pub(super) async fn decide(
        &self,
        mut wanted: Vec<(Wish, Vec<Candidate>)>,
        removed: &[DeploymentId],
        leaving: Vec<HeldAssignment>,
    ) -> Result<Decision, Error> {
        let mut clients: BTreeSet<ClientId> = BTreeSet::new();
        let mut held_by: BTreeMap<DeploymentId, Vec<HeldAssignment>> = BTreeMap::new();
        for id in wanted.iter().map(|(wish, _)| wish.deployment.id).chain(removed.iter().copied()) {
            let mut held = self.store.assignments_held(id).await?;
            held.retain(|held| held.wanted);
            clients.extend(held.iter().map(|held| held.device.client.clone()));
            held_by.insert(id, held);
        }
        clients
            .extend(wanted.iter().flat_map(|(_, devices)| devices).map(|found| found.device.client.clone()));
        clients.extend(leaving.iter().map(|held| held.device.client.clone()));
        let pictures = self.pictures(clients).await?;
        tracing::debug!(clients = pictures.0.len(), "the clients were looked at");
        let mut promises = self.promises(&pictures, wanted.iter().map(|(wish, _)| &wish.entry)).await?;
        let going = || removed.iter().filter_map(|id| held_by.get(id)).flatten().chain(&leaving);
        for held in going() {
            promises.free(&held.device, &held.name);
        }
        // Who has something comes before who only wants something.
        wanted.sort_by_key(|(wish, _)| held_by.get(&wish.deployment.id).is_none_or(Vec::is_empty));
        let mut changes: BTreeMap<ClientId, Changes> = BTreeMap::new();
        let mut misfits = Vec::new();
        let mut unfit = BTreeSet::new();
        let mut forced = Vec::new();
        let mut freed: BTreeSet<DeviceRef> = going().map(|held| held.device.clone()).collect();
        let (mut rollouts, mut paced, mut later) = (Vec::new(), Vec::new(), Vec::new());
        for (wish, landed) in self.place(wanted, &held_by, &pictures, promises).await {
            let deployment = wish.deployment.id;
            let mut own: BTreeMap<ClientId, Changes> = BTreeMap::new();
            let mut reached = BTreeSet::new();
            for Landed { id, device, placed, stays, frees, .. } in landed {
                let held = pictures.held(&device.device, id);
                if frees {
                    freed.insert(device.device.clone());
                }
                match placed {
                    Ok(placed) => {
                        reached.insert(id);
                        if !placed.despite.is_empty() {
                            forced.push(MisfitRecord {
                                deployment,
                                device: device.device.clone(),
                                reasons: placed.despite.clone(),
                                temporary: false,
                            });
                        }
                        if needs(held, &placed) {
                            own.entry(device.device.client.clone()).or_default().wanted.push(placed);
                        }
                    }
                    Err(unplaced) => {
                        if matches!(unplaced, Unplaced::Misfit(_)) {
                            unfit.insert((deployment, device.device.clone()));
                        }
                        let temporary = unplaced.is_temporary();
                        let mut reasons = unplaced.reasons();
                        // What runs is not taken away because something newer does not fit: nobody asked for that.
                        if stays {
                            reached.insert(id);
                            reasons.push(KEEPS.to_owned());
                        }
                        misfits.push(MisfitRecord {
                            deployment,
                            device: device.device.clone(),
                            temporary,
                            reasons,
                        });
                    }
                }
            }
            let held = held_by.remove(&deployment).unwrap_or_default();
            let made = |held: &HeldAssignment| held.basis.as_ref().map(|basis| basis.revision);
            let holders: BTreeMap<DeviceRef, Option<u64>> =
                held.iter().map(|held| (held.device.clone(), made(held))).collect();
            for held in held.into_iter().filter(|held| !reached.contains(&held.id)) {
                freed.insert(held.device.clone());
                own.entry(held.device.client).or_default().dropped.push(held.id);
            }
            if let Some(Begun { change, paced: begun, waiting }) =
                self.begin_rollout(&wish, &holders, &mut own).await?
            {
                rollouts.push(change);
                paced.push(begun);
                later.extend(waiting.iter().map(|wanted| {
                    let held = pictures.held(&wanted.device, wanted.id).filter(|held| held.wanted);
                    Difference::new(held, wanted)
                }));
            }
            for (client, own) in own {
                let all = changes.entry(client).or_default();
                all.wanted.extend(own.wanted);
                all.dropped.extend(own.dropped);
            }
        }
        for held in held_by.into_values().flatten().chain(leaving) {
            changes.entry(held.device.client).or_default().dropped.push(held.id);
        }
        tracing::debug!(clients = changes.len(), "the devices were placed");
        let touched = self.consider(pictures, changes).await?;
        Ok(Decision { touched, misfits, unfit, forced, freed, rollouts, paced, later })
    }

    /// What a deployment wants, with its secrets as they are now.
    pub(super) fn wish(&self, deployment: Deployment, entry: Arc<Entry>, previous: Option<Before>) -> Wish {
        let secrets = Arc::new(self.options.vault.secrets(&deployment));
        Wish { deployment, entry, previous, secrets, at_once: false }
    }

    pub(super) async fn wishes(&self) -> Result<Vec<Wish>, Error> {
        let mut wishes = Vec::new();
        for record in self.store.deployments().await?.into_iter().filter(|record| !record.removed) {
            let deployment = record.deployment;
            match self.entry(&deployment.package, &deployment.version).await {
                Ok(Some(entry)) => wishes.push(self.wish(deployment, entry, None)),
                Ok(None) => {
                    tracing::error!(deployment = %deployment.name, "the package of a deployment is not in the catalog")
                }
                Err(Error::Invalid(_)) => {
                    tracing::error!(deployment = %deployment.name, "the package of a deployment cannot be read")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(wishes)
    }

    /// Those for whom something changes, with what they keep.
    async fn consider(
        &self,
        mut pictures: Pictures,
        changes: BTreeMap<ClientId, Changes>,
    ) -> Result<Vec<Touched>, Error> {
        let now = self.now();
        let mut touched = Vec::new();
        for (client, changes) in changes {
            let Some(picture) = pictures.0.remove(&client) else { continue };
            // That a hold is over the device knows by itself.
            let asked = picture.asked != picture.manifest.asked().at(now);
            let same = changes.wanted.is_empty()
                && changes.again.is_empty()
                && changes.dropped.is_empty()
                && changes.schedule.is_none()
                && !asked;
            if same && !lists_unwanted(&picture) {
                continue;
            }
            touched.push(Touched { picture, changes });
        }
        Ok(touched)
    }

    /// Makes a decision durable, then shows it to the clients. Once begun it goes on to its end, also when whoever
    /// asked for it went away: what is durable must be shown.
    pub(super) async fn publish(
        &self,
        publication: Publication,
        touched: Vec<Touched>,
    ) -> Result<(), Unpublished> {
        let (store, live) = (self.store.clone(), Arc::clone(&self.live));
        let began = Instant::now();
        let clients = cores::finished(tokio::spawn(margrave_store::Begun::carried(publish(
            store,
            live,
            publication,
            touched,
        ))))
        .await?;
        self.meters.published(clients.len(), began.elapsed());
        self.git.published(clients.iter());
        Ok(())
    }

    /// Finishes what a crash left between two steps.
    pub(super) async fn catch_up(&self) -> Result<(), Error> {
        for (client, _) in self.store.clients_ahead().await? {
            self.leap(&client).await?;
        }
        if !self.desired.is_returning() {
            self.finish_moves("server").await?;
        }
        self.agree().await?;
        self.settle().await
    }
}

fn package_error(error: PackageError) -> Error {
    match error {
        PackageError::InUse(by) => Error::InUse { what: "the package".to_owned(), by },
        PackageError::Unknown => Error::not_found("package of that version in the catalog"),
        PackageError::OtherDigest { stored } => Error::conflict(format!(
            "this version is in the catalog already with other content ({}); give the changed package a new version, or \
             remove the old one first",
            stored.short()
        )),
        PackageError::Store(error) => error.into(),
    }
}

/// Publishes, and says for whom.
async fn publish(
    store: Store,
    live: Arc<Clients>,
    publication: Publication,
    touched: Vec<Touched>,
) -> Result<Vec<ClientId>, Unpublished> {
    let mut manifests: Vec<Shown> = publication.clients.iter().filter_map(shown).collect();
    let (sender, parts) = mpsc::channel();
    let (made, stored) =
        tokio::join!(make(&store, touched, sender), store.publish_as_made(publication, parts));
    manifests.extend(made.map_err(Unpublished::Failed)?);
    stored?;
    tracing::debug!(manifests = manifests.len(), "manifests are durable");
    let clients = manifests.iter().map(|(client, ..)| client.clone()).collect();
    live.show(manifests);
    Ok(clients)
}

/// Makes what the clients get next and hands it to the store, part by part, on all cores: while one part is written, the
/// documents of others are read and their bundles made.
async fn make(store: &Store, touched: Vec<Touched>, parts: mpsc::Sender<Part>) -> Result<Vec<Shown>, Error> {
    let rest = Mutex::new(touched.into_iter());
    let lane = async || {
        let mut manifests = Vec::new();
        loop {
            let part: Vec<Touched> = {
                let mut rest = rest.lock().unwrap_or_else(PoisonError::into_inner);
                rest.by_ref().take(MADE_TOGETHER).collect()
            };
            if part.is_empty() {
                return Ok::<_, Error>(manifests);
            }
            let staying = part.iter().filter(|touched| stays(&touched.picture, &touched.changes));
            let staying = staying.map(|touched| touched.picture.client.clone()).collect();
            let mut documents = store.documents(staying).await?;
            let made = cores::aside(move || {
                let with_documents = |touched: Touched| {
                    let kept = documents.remove(&touched.picture.client).unwrap_or_default();
                    next(touched, kept)
                };
                part.into_iter().map(with_documents).collect::<Result<Vec<_>, Error>>()
            });
            let part = made.await?;
            manifests.extend(part.iter().filter_map(shown));
            // A store that refused already takes no more, and says itself why.
            parts.send(Some(part)).ok();
        }
    };
    let lanes = std::iter::repeat_with(lane).take(cores::count());
    let made = futures_util::future::try_join_all(lanes).await?;
    parts.send(None).ok();
    Ok(made.into_iter().flatten().collect())
}

/// A manifest as its client is to see it.
type Shown = (ClientId, Manifest, Bytes);

fn shown(client: &ClientPublication) -> Option<Shown> {
    let new = client.manifest.as_ref()?;
    Some((client.client.clone(), new.manifest.clone(), Bytes::copy_from_slice(&new.body)))
}

/// The next manifest of one client, with the documents and the bundle that it needs. `documents` are those that the present
/// one lists, where any of them stays.
fn next(
    touched: Touched,
    mut documents: BTreeMap<AssignmentId, Vec<u8>>,
) -> Result<ClientPublication, Error> {
    let Touched { picture, changes: Changes { wanted, again, dropped, schedule } } = touched;
    let picture = &picture;
    let mut entries: BTreeMap<AssignmentId, ManifestEntry> =
        picture.manifest.entries().iter().map(|entry| (entry.id, *entry)).collect();
    // What stays is what is wanted now, not what happens to be listed: while a client was retired, deployments
    // went or changed without its manifest.
    let is_again = |id: AssignmentId| again.iter().any(|wanted| wanted.id == id);
    let kept = |id: &AssignmentId| !dropped.contains(id) && (is_wanted(picture, *id) || is_again(*id));
    entries.retain(|id, _| kept(id));
    for Placed { wanted, document, .. } in &wanted {
        let size = u64::try_from(document.bytes().len()).ok();
        let document = Blob { digest: document.digest(), size };
        entries.insert(wanted.id, ManifestEntry { id: wanted.id, document });
    }
    documents.retain(|id, _| entries.contains_key(id));

    let mut bundled = None;
    let above = renumbering::floor(picture)?;
    let schedule = schedule.as_ref().unwrap_or(picture.manifest.schedule());
    let manifest =
        next_manifest(Some(&above), entries.into_values().collect(), schedule, &picture.asked, |_| {
            let mut all: BTreeMap<AssignmentId, &[u8]> =
                documents.iter().map(|(id, bytes)| (*id, bytes.as_slice())).collect();
            all.extend(wanted.iter().map(|placed| (placed.wanted.id, placed.document.bytes())));
            let bytes = bundle::write(&Vec::from_iter(all));
            let blob = Blob { digest: Digest::of(&bytes), size: u64::try_from(bytes.len()).ok() };
            bundled = Some(bytes);
            blob
        });
    let manifest = manifest.map_err(|error| {
        Error::conflict(format!("{} cannot be given another manifest: {error}", picture.client))
    })?;
    let mut assignments: Vec<AssignmentChange> = dropped.into_iter().map(AssignmentChange::Drop).collect();
    assignments.extend(again.into_iter().map(AssignmentChange::Want));
    let mut fresh = Vec::with_capacity(wanted.len());
    for Placed { wanted, document, .. } in wanted {
        assignments.push(AssignmentChange::Want(wanted));
        fresh.push(document);
    }
    Ok(ClientPublication {
        client: picture.client.clone(),
        expected: picture.manifest.version(),
        manifest: manifest.map(|manifest| NewManifest {
            replaces: picture.manifest.entries().to_vec(),
            body: picture.dialect.manifest(&picture.client, &manifest),
            manifest,
            bundle: bundled,
            documents: fresh,
        }),
        assignments,
    })
}

/// Whether something of the present manifest stays as it is.
fn stays(picture: &ClientPicture, changes: &Changes) -> bool {
    picture.manifest.entries().iter().any(|entry| {
        !changes.dropped.contains(&entry.id)
            && changes.wanted.iter().all(|placed| placed.wanted.id != entry.id)
    })
}

fn is_wanted(picture: &ClientPicture, id: AssignmentId) -> bool {
    picture.assignments.iter().any(|held| held.id == id && held.wanted)
}

/// Whether the manifest has something that nobody wants there any more.
fn lists_unwanted(picture: &ClientPicture) -> bool {
    picture.manifest.entries().iter().any(|entry| !is_wanted(picture, entry.id))
}

/// Whether the device has to be told.
fn needs(held: Option<&HeldAssignment>, placed: &Placed) -> bool {
    let same = |held: &HeldAssignment| {
        held.wanted
            && held.document == placed.wanted.document
            && held.version == placed.wanted.version
            && held.profile == placed.wanted.profile
    };
    !held.is_some_and(same)
}
