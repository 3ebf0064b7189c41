//! Commits that others made: pushed, followed from a remote, or found at the start.
//!
//! Everything between what is applied and the commit is read, checked as a whole, and done as a whole, or nothing is. What is
//! wrong is told with file, line and rule.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::deployment::{Defaults, SITE};
use margrave_core::digest::Digest;
use margrave_core::id::{DeploymentId, DeploymentName, DeviceRef};
use margrave_core::image::{Image, Named};
use margrave_core::schedule::{Choice, Reach};
use margrave_core::violation::Violation;
use margrave_oci::reference::{Reference, TagOrDigest};
use margrave_store::PackageRecord;
use margrave_wire::intent::Plan;
use margrave_wire::operator;
use margrave_wire::resource::{
    self, DeploymentFile, DeploymentSpec, DeviceFile, Flaw, FleetFile, FleetSpec, PackageFile, Path, Place,
    Read, Resource,
};
use margrave_wire::schedule::ScheduleBody;

use super::super::catalog::{Entry, Pulled};
use super::super::draft::read_rollback;
use super::super::git::Quarantine;
use super::super::images::{self, Asking, Uses};
use super::super::intent::{Change, Incoming, Refusals, Source};
use super::super::rollout::read_strategy;
use super::super::{Actor, Error, Fleet, Seen};
use super::{CommitId, FileChange, Repository, RepositoryError};

/// More than a person mends in one go; the rest shows once these are mended.
const FLAWS_MAX: usize = 200;

/// Why a commit does not count.
#[derive(Debug)]
pub(in crate::fleet) enum Unadopted {
    Flaws(Vec<Flaw>),
    Failed(Error),
}

impl From<Error> for Unadopted {
    fn from(error: Error) -> Unadopted {
        Unadopted::Failed(error)
    }
}

impl From<RepositoryError> for Unadopted {
    fn from(error: RepositoryError) -> Unadopted {
        match error {
            RepositoryError::Git(_) | RepositoryError::CutOff => Unadopted::Failed(error.into()),
            RepositoryError::Unreadable { path, why } => Unadopted::Flaws(vec![flaw(&path, why)]),
            other => Unadopted::Flaws(vec![flaw("", other.to_string())]),
        }
    }
}

impl From<Unadopted> for Error {
    fn from(unadopted: Unadopted) -> Error {
        match unadopted {
            Unadopted::Failed(error) => error,
            Unadopted::Flaws(flaws) => Error::Flawed(flaws),
        }
    }
}

fn flaw(file: &str, message: impl Into<String>) -> Flaw {
    Flaw { file: file.to_owned(), line: 0, rule: "resource".to_owned(), message: message.into() }
}

/// Whether packages that are not in the catalog are fetched from where their files say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fetching {
    #[default]
    Allowed,
    /// For somebody who may only look: such a file could send the server anywhere, with the credentials that it keeps.
    Refused,
}

/// For each change the file that says so.
pub(super) type Sources = Vec<(String, Option<Read>)>;

/// A deployment that is wanted again as it is, because a secret behind it changed.
pub(super) struct Renewed {
    pub(super) path: String,
    pub(super) read: Option<Read>,
    pub(super) change: Change,
}

/// The changes that a commit comes to, and for each the file that says so.
#[derive(Default)]
struct Reading {
    changes: Vec<Change>,
    sources: Sources,
    flaws: Vec<Flaw>,
    /// Devices that have a schedule of their own; asked once, for there may be a file for each of ten thousand.
    scheduled: BTreeSet<DeviceRef>,
    fetching: Fetching,
    /// What the images of all its packages mean.
    asking: Asking,
}

fn device_of(reach: Reach) -> Option<DeviceRef> {
    match reach {
        Reach::Device(device) => Some(device),
        _ => None,
    }
}

impl Reading {
    fn change(&mut self, change: Change, file: &str, read: Option<&Read>) {
        self.changes.push(change);
        self.sources.push((file.to_owned(), read.cloned()));
    }

    /// Adds what is wanted again. What is spoken of already takes its secrets as they are now by itself.
    fn renew(&mut self, renewed: Vec<Renewed>) {
        for Renewed { path, read, change } in renewed {
            if !self.sources.iter().any(|(file, _)| *file == path) {
                self.change(change, &path, read.as_ref());
            }
        }
    }

    fn broken(&mut self, file: &str, read: &Read, violations: Vec<Violation>) {
        self.flaws.extend(violations.iter().map(|violation| read.flaw(file, violation)));
    }
}

impl Fleet {
    /// Makes a commit that is in the repository what is wanted, and moves `main` there.
    pub(in crate::fleet) async fn adopt(&self, actor: &Actor, commit: CommitId) -> Result<(), Unadopted> {
        let on = self.desired.head();
        let files = self.differing(on, commit, self.desired.repository(), false).await?;
        let reading = self.read_files(actor, files, Fetching::Allowed).await?;
        self.adopt_read(actor, reading, Incoming { commit, on, quarantine: None }).await
    }

    /// Whether a commit says nothing beside what is applied but what `newest` says as well: of what it changes nothing was taken
    /// back or changed once more since.
    pub(in crate::fleet) async fn leads_to(
        &self,
        commit: CommitId,
        newest: CommitId,
    ) -> Result<bool, Unadopted> {
        let (on, repository) = (self.desired.head(), self.desired.repository());
        let is_wanted = |change: &FileChange| !matches!(Path::read(&change.path), Path::Other);
        let newest = self.differing(on, newest, repository, false).await?;
        let newest: BTreeMap<String, Option<Vec<u8>>> =
            newest.into_iter().map(|FileChange { path, bytes }| (path, bytes)).collect();
        let mut changes = self.differing(on, commit, repository, false).await?;
        changes.retain(is_wanted);
        Ok(changes.iter().all(|change| newest.get(&change.path) == Some(&change.bytes)))
    }

    /// What [`Fleet::adopt`] would do.
    pub(super) async fn rehearse_commit(&self, actor: &Actor, commit: CommitId) -> Result<Plan, Unadopted> {
        let files = self.differing(self.desired.head(), commit, self.desired.repository(), false).await?;
        self.rehearse_files(actor, files, Vec::new(), Fetching::Allowed).await
    }

    /// Makes what is wanted a commit that was made on `on`; whatever was applied since makes it one that came too late. With it, and like
    /// it done as a whole or not at all, `renewed`: what is wanted again as it is.
    pub(super) async fn adopt_made(
        &self,
        actor: &Actor,
        commit: CommitId,
        on: Option<CommitId>,
        renewed: Vec<Renewed>,
    ) -> Result<(), Unadopted> {
        let files = self.differing(on, commit, self.desired.repository(), false).await?;
        let mut reading = self.read_files(actor, files, Fetching::Allowed).await?;
        reading.renew(renewed);
        self.adopt_read(actor, reading, Incoming { commit, on, quarantine: None }).await
    }

    /// Wants again, as one commit, what says nothing new.
    pub(super) async fn adopt_renewed(&self, actor: &Actor, renewed: Vec<Renewed>) -> Result<(), Unadopted> {
        let mut reading = Reading::default();
        reading.renew(renewed);
        match self.apply(actor, &reading.changes, Source::Asked).await {
            Ok(_) => Ok(()),
            Err(refusals) => Err(Unadopted::Flaws(located(refusals, &reading.sources)?)),
        }
    }

    /// The same for a commit that waits outside; its objects come in when everything else is decided. `on` is what was applied
    /// when the push was first looked at.
    pub(in crate::fleet) async fn adopt_pushed(
        &self,
        actor: &Actor,
        commit: CommitId,
        on: Option<CommitId>,
        quarantine: &Quarantine,
    ) -> Result<(), Unadopted> {
        let files = self.differing(on, commit, quarantine.view(), true).await?;
        let reading = self.read_files(actor, files, Fetching::Allowed).await?;
        self.adopt_read(actor, reading, Incoming { commit, on, quarantine: Some(quarantine) }).await
    }

    async fn adopt_read(
        &self,
        actor: &Actor,
        reading: Reading,
        incoming: Incoming<'_>,
    ) -> Result<(), Unadopted> {
        let Reading { changes, sources, mut flaws, .. } = reading;
        if flaws.is_empty() {
            match self.apply(actor, &changes, Source::Commit(incoming)).await {
                Ok(_) => return Ok(()),
                Err(refusals) => flaws = located(refusals, &sources)?,
            }
        }
        flaws.truncate(FLAWS_MAX);
        Err(Unadopted::Flaws(flaws))
    }

    /// What files come to, with what is wanted again, and where each of it is said; nothing is done.
    pub(super) async fn read_changes(
        &self,
        actor: &Actor,
        files: Vec<FileChange>,
        renewed: Vec<Renewed>,
        fetching: Fetching,
    ) -> Result<(Vec<Change>, Sources), Unadopted> {
        let mut reading = self.read_files(actor, files, fetching).await?;
        reading.renew(renewed);
        let Reading { changes, sources, mut flaws, .. } = reading;
        flaws.truncate(FLAWS_MAX);
        if flaws.is_empty() { Ok((changes, sources)) } else { Err(Unadopted::Flaws(flaws)) }
    }

    /// What a commit says otherwise than what is applied. Where the repository does not know what is applied any more, that is
    /// written down first, for nobody to see.
    async fn differing(
        &self,
        on: Option<CommitId>,
        commit: CommitId,
        view: &Repository,
        is_pushed: bool,
    ) -> Result<Vec<FileChange>, Unadopted> {
        let repository = self.desired.repository();
        let head = match on {
            Some(head) if repository.has(head).await? => Some(head),
            Some(_) => {
                let files = self.everything().await?.into_iter();
                let files = files.map(|(path, file)| FileChange { path, bytes: Some(file.write()) });
                let signed = super::Signed {
                    by: "server".to_owned(),
                    at: self.now(),
                    message: "What is applied\n".to_owned(),
                };
                Some(repository.commit(None, files.collect(), signed).await?)
            }
            None => None,
        };
        Ok(match is_pushed {
            true => view.changes(head, commit).await?,
            false => view.changes_found(head, commit).await?,
        })
    }

    async fn read_files(
        &self,
        actor: &Actor,
        files: Vec<FileChange>,
        fetching: Fetching,
    ) -> Result<Reading, Error> {
        let mut reading = Reading { fetching, ..Reading::default() };
        let schedules = self.store.schedules().await?.into_iter();
        reading.scheduled = schedules.filter_map(|record| device_of(record.reach)).collect();
        for FileChange { path, bytes } in files {
            let place = match (Path::read(&path), &bytes) {
                (Path::Resource(place), _) => place,
                (Path::Other, _) | (Path::Astray(_), None) => continue,
                (Path::Astray(why), Some(_)) => {
                    reading.flaws.push(flaw(&path, why));
                    continue;
                }
            };
            let Some(bytes) = bytes else {
                self.read_gone(place, &path, &mut reading).await?;
                continue;
            };
            match resource::read_at(&place, &bytes) {
                Ok(read) => self.read_resource(actor, &path, &read, &mut reading).await?,
                Err(flaws) => reading.flaws.extend(flaws),
            }
            if reading.flaws.len() > FLAWS_MAX {
                break;
            }
        }
        self.follow_defaults(&mut reading).await?;
        Ok(reading)
    }

    async fn read_gone(&self, place: Place, path: &str, reading: &mut Reading) -> Result<(), Error> {
        match place {
            Place::Fleet => {
                for (reach, _) in self.choices_of_everybody().await? {
                    reading.change(Change::Schedule { reach, choice: None, seen: Seen::Any }, path, None);
                }
                reading.change(Change::Defaults(Box::default()), path, None);
            }
            Place::Package(id, version) => {
                if self.store.package(&id, &version).await?.is_some() {
                    reading.change(Change::RemovePackage { id, version }, path, None);
                }
            }
            Place::Deployment(name) => {
                if self.wanted_deployment(&name).await?.is_some() {
                    reading.change(Change::RemoveDeployment { name, seen: None }, path, None);
                }
            }
            Place::Device(device) => {
                let device = self.live.addressed(&device);
                read_device_schedule(&device, None, path, None, reading);
                reading.change(Change::SetLabels { device, labels: None }, path, None);
            }
        }
        Ok(())
    }

    async fn read_resource(
        &self,
        actor: &Actor,
        path: &str,
        read: &Read,
        reading: &mut Reading,
    ) -> Result<(), Error> {
        match &read.resource {
            Resource::Fleet(file) => self.read_fleet(file, path, read, reading).await,
            Resource::Package(file) => self.read_package(actor, file, path, read, reading).await,
            Resource::Deployment(file) => {
                read_deployment(file, path, read, false, reading);
                Ok(())
            }
            Resource::Device(file) => {
                self.read_device(file, path, read, reading);
                Ok(())
            }
        }
    }

    async fn choices_of_everybody(&self) -> Result<BTreeMap<Reach, Choice>, Error> {
        let schedules = self.store.schedules().await?.into_iter();
        let schedules = schedules.filter(|record| !matches!(record.reach, Reach::Device(_)));
        Ok(schedules.map(|record| (record.reach, record.choice)).collect())
    }

    async fn read_fleet(
        &self,
        file: &FleetFile,
        path: &str,
        read: &Read,
        reading: &mut Reading,
    ) -> Result<(), Error> {
        let mut wanted: BTreeSet<Reach> = BTreeSet::new();
        let whole =
            file.spec.schedule.iter().map(|schedule| ("fleet".to_owned(), "/schedule".to_owned(), schedule));
        let labels = file.spec.labels.iter().enumerate().map(|(index, label)| {
            (format!("label:{}", label.label), format!("/labels/{index}"), &label.schedule)
        });
        for (reach, place, schedule) in whole.chain(labels) {
            let reach: Reach = match reach.parse() {
                Ok(reach) => reach,
                Err(invalid) => {
                    let message = format!("{invalid}, here `key=value`");
                    reading.broken(
                        path,
                        read,
                        vec![Violation::new(format!("{place}/label"), "MI-G2-210", message)],
                    );
                    continue;
                }
            };
            if !wanted.insert(reach.clone()) {
                let message = format!("{reach} has a schedule already; each label is named once");
                reading.broken(path, read, vec![Violation::new(place, "MI-G2-210", message)]);
                continue;
            }
            let at = if matches!(reach, Reach::Fleet) { place } else { format!("{place}/schedule") };
            if let Some(choice) = chosen(schedule, &at, path, read, reading) {
                reading.change(
                    Change::Schedule { reach, choice: Some(choice), seen: Seen::Any },
                    path,
                    Some(read),
                );
            }
        }
        for (reach, _) in self.choices_of_everybody().await? {
            if !wanted.contains(&reach) {
                reading.change(Change::Schedule { reach, choice: None, seen: Seen::Any }, path, Some(read));
            }
        }
        let mut broken = Vec::new();
        let FleetSpec { strategy, rollback, .. } = &file.spec;
        let defaults = Defaults {
            strategy: strategy.as_ref().map(|body| read_strategy(Some(body), None, &mut broken)),
            rollback: rollback.as_ref().map(|body| read_rollback(Some(body), None, &mut broken)),
        };
        match broken.is_empty() {
            true => reading.change(Change::Defaults(Box::new(defaults)), path, Some(read)),
            false => reading.broken(path, read, broken),
        }
        Ok(())
    }

    /// Deployments whose files leave out what is as usual, when that becomes something else: the same files must come to the
    /// same, whatever was there before.
    async fn follow_defaults(&self, reading: &mut Reading) -> Result<(), Error> {
        let next = reading.changes.iter().find_map(|change| match change {
            Change::Defaults(defaults) => Some(Defaults::clone(defaults)),
            _ => None,
        });
        let Some(next) = next else { return Ok(()) };
        if next == self.store.defaults().await? {
            return Ok(());
        }
        // What went back here by itself stays so until its own file says something else.
        let gone_back = self.store.gone_back().await?.into_iter().map(|(name, _)| name);
        let gone_back: BTreeSet<DeploymentName> = gone_back.collect();
        let spoken: BTreeSet<String> = reading.sources.iter().map(|(file, _)| file.clone()).collect();
        for record in self.store.deployments().await?.into_iter().filter(|record| !record.removed) {
            if gone_back.contains(&record.deployment.name) {
                continue;
            }
            let place = Place::Deployment(record.deployment.name);
            let path = place.to_string();
            if spoken.contains(&path) {
                continue;
            }
            let Some(bytes) = self.desired.file(&path).await? else { continue };
            let Ok(read) = resource::read_at(&place, &bytes) else { continue };
            if let Resource::Deployment(file) = &read.resource
                && (file.spec.strategy.is_none() || file.spec.rollback.is_none())
            {
                read_deployment(file, &path, &read, true, reading);
            }
        }
        Ok(())
    }

    /// A package is fetched and checked before anything is said about the commit: what cannot be had cannot be wanted. The one that
    /// is in the catalog was, and never changes.
    async fn read_package(
        &self,
        actor: &Actor,
        file: &PackageFile,
        path: &str,
        read: &Read,
        reading: &mut Reading,
    ) -> Result<(), Error> {
        let place = "/reference";
        let refuse = |reading: &mut Reading, rule, message: String| {
            reading.broken(path, read, vec![Violation::new(place, rule, message)]);
        };
        let reference = match Reference::parse(&file.spec.reference) {
            Ok(reference) => reference,
            Err(error) => {
                refuse(reading, "PK-010", error.to_string());
                return Ok(());
            }
        };
        let given = match images::read_pins(&file.spec.images) {
            Ok(given) => given,
            Err(broken) => {
                reading.broken(path, read, broken);
                return Ok(());
            }
        };
        let mut what = "this is not in the catalog";
        if let Ok(Place::Package(id, version)) = read.resource.place()
            && let Some(held) = self.store.package(&id, &version).await?
            && held.reference == reference.to_string()
        {
            // What nobody read for images says nothing against a name; it is read now.
            let is_new = given.keys().any(|name| !held.images.known.contains_key(name));
            if !is_new || Entry::read(held.clone())?.unread().is_empty() {
                self.read_images(held, &given, path, read, reading).await?;
                return Ok(());
            }
            what = "which images this has is not known yet";
        }
        if reading.fetching == Fetching::Refused {
            let message = format!(
                "{what}, and to have the server fetch it needs the role operator; leave it out, or ask an operator"
            );
            refuse(reading, "PK-040", message);
            return Ok(());
        }
        let pulled = match self.pull_pinned(actor, &file.spec.reference, &given, &mut reading.asking).await {
            Ok(pulled) => pulled,
            Err(Error::Invalid(violations)) => {
                let told =
                    violations.into_iter().map(|violation| match violation.place.starts_with("/images") {
                        true => violation,
                        false => Violation::new(place, violation.rule, violation.message),
                    });
                reading.broken(path, read, told.collect());
                return Ok(());
            }
            Err(error @ Error::Upstream { .. }) => {
                refuse(reading, "PK-040", margrave_core::chain::sentence(&error));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let (id, version) = (&pulled.record.id, &pulled.record.version);
        if !matches!(reference.version, TagOrDigest::Digest(_)) {
            let message = format!("a tag can move; pin what it means now: {}", pulled.record.reference);
            refuse(reading, "PK-053", message);
        } else if id.as_str() != file.metadata.id || version.as_str() != file.metadata.version {
            refuse(
                reading,
                "PK-014",
                format!("there lies {id} {version}; mend the reference, or the file's name"),
            );
        } else {
            reading.change(Change::AddPackage(Box::new(pulled)), path, Some(read));
        }
        Ok(())
    }

    /// What a file says of the images of a package that is in the catalog: what is known already, or something that was not.
    async fn read_images(
        &self,
        mut held: PackageRecord,
        given: &BTreeMap<String, Digest>,
        path: &str,
        read: &Read,
        reading: &mut Reading,
    ) -> Result<(), Error> {
        let broken = images::misplaced(&held.images, given);
        if !broken.is_empty() {
            reading.broken(path, read, broken);
            return Ok(());
        }
        let pins = held.images.all_pins();
        let new = given.iter().filter(|(name, _)| !pins.contains_key(*name));
        let new: BTreeMap<String, Digest> = new.map(|(name, digest)| (name.clone(), *digest)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let named = new.keys().map(|name| (name.clone(), Named::ByTag)).collect();
        let found = match reading.fetching {
            Fetching::Allowed => {
                let uses = Uses::from([(String::new(), named)]);
                self.find_images(&uses, &new, &mut reading.asking).await?.known
            }
            Fetching::Refused => BTreeMap::new(),
        };
        for (name, digest) in new {
            let parts = found.get(&name).map(|image| image.parts.clone()).unwrap_or_default();
            held.images.known.insert(name, Image { digest: Some(digest), unpinned: None, parts });
        }
        let pulled = Pulled { record: held, resources: Vec::new(), pinning: true };
        reading.change(Change::AddPackage(Box::new(pulled)), path, Some(read));
        Ok(())
    }

    fn read_device(&self, file: &DeviceFile, path: &str, read: &Read, reading: &mut Reading) {
        let Ok(device) = DeviceRef::parse(&file.metadata.id) else { return };
        let device = self.live.addressed(&device);
        let spec = &file.spec;
        let mut labels = spec.labels.clone();
        if let Some(site) = &spec.site {
            let given = labels.get_or_insert_default().insert(SITE.to_owned(), site.clone());
            if given.is_some_and(|given| given != *site) {
                let message = "the label site says otherwise; say it once";
                reading.broken(path, read, vec![Violation::new("/site", "label", message)]);
            }
        }
        let choice =
            spec.schedule.as_ref().and_then(|schedule| chosen(schedule, "/schedule", path, read, reading));
        // First that somebody is expected, then what is said of them.
        reading.change(Change::SetLabels { device: device.clone(), labels }, path, Some(read));
        read_device_schedule(&device, choice, path, Some(read), reading);
    }
}

fn read_device_schedule(
    device: &DeviceRef,
    choice: Option<Choice>,
    path: &str,
    read: Option<&Read>,
    reading: &mut Reading,
) {
    if choice.is_some() || reading.scheduled.contains(device) {
        let reach = Reach::Device(device.clone());
        reading.change(Change::Schedule { reach, choice, seen: Seen::Any }, path, read);
    }
}

/// A schedule as it is chosen; what is wrong with it is noted.
fn chosen(
    body: &ScheduleBody,
    place: &str,
    path: &str,
    read: &Read,
    reading: &mut Reading,
) -> Option<Choice> {
    match body.read() {
        Ok(choice) if choice.is_empty() => {
            let message = "chooses nothing; choose something, or leave it out";
            reading.broken(path, read, vec![Violation::new(place, "MI-G2-210", message)]);
            None
        }
        Ok(choice) => Some(choice),
        Err(violations) => {
            let placed = violations
                .into_iter()
                .map(|v| Violation::new(format!("{place}{}", v.place), v.rule, v.message));
            reading.broken(path, read, placed.collect());
            None
        }
    }
}

fn read_deployment(file: &DeploymentFile, path: &str, read: &Read, follows: bool, reading: &mut Reading) {
    let id = match file.metadata.id.as_deref().map(DeploymentId::parse).transpose() {
        Ok(id) => id,
        Err(error) => {
            let (line, _) = read.node.locate("/metadata/id");
            let rule = "DM-070".to_owned();
            reading.flaws.push(Flaw { file: path.to_owned(), line, rule, message: error.to_string() });
            return;
        }
    };
    let Ok(Place::Deployment(name)) = Place::deployment(&file.metadata.name) else { return };
    let want = wish(&file.spec);
    reading.change(Change::PutFile { name, want, id, follows }, path, Some(read));
}

/// A deployment's file as the wish that it is.
pub(in crate::fleet) fn wish(spec: &DeploymentSpec) -> operator::PutDeployment {
    let DeploymentSpec {
        package,
        version,
        profile,
        parameters,
        overrides,
        targets,
        rollback,
        strategy,
        windows,
        force,
    } = spec.clone();
    operator::PutDeployment {
        package,
        version: Some(version),
        profile,
        parameters,
        overrides,
        targets,
        force,
        rollback,
        strategy,
        // What a file leaves out is as usual.
        windows: Some(windows),
        revision: None,
    }
}

/// Refusals where they are written; what is nobody's fault is no flaw.
pub(super) fn located(
    refusals: Refusals,
    sources: &[(String, Option<Read>)],
) -> Result<Vec<Flaw>, Unadopted> {
    let mut flaws = Vec::new();
    for (index, error) in refusals {
        let source = sources.get(index);
        let file = source.map(|(file, _)| file.as_str()).unwrap_or_default();
        match (error, source) {
            (Error::Invalid(violations), Some((file, Some(read)))) => {
                flaws.extend(violations.iter().map(|violation| read.flaw(file, violation)));
            }
            (Error::Invalid(violations), _) => {
                flaws.extend(violations.into_iter().map(|violation| {
                    // What is found out once everything was looked at together says itself which file it is about.
                    let (said, field) = violation.place.split_once('#').unwrap_or((&violation.place, ""));
                    let file = if file.is_empty() { said } else { file };
                    let read = sources.iter().find(|(of, _)| of == file).and_then(|(_, read)| read.as_ref());
                    let placed = Violation { place: field.to_owned(), ..violation.clone() };
                    read.map_or_else(
                        || Flaw { rule: violation.rule.to_owned(), ..flaw(file, violation.message.clone()) },
                        |read| read.flaw(file, &placed),
                    )
                }));
            }
            (
                error @ (Error::NotFound { .. }
                | Error::Conflict { .. }
                | Error::InUse { .. }
                | Error::Misfit(_)),
                _,
            ) => {
                let read = source.and_then(|(_, read)| read.as_ref());
                let whole = Violation::new("", "resource", error.to_string());
                let line = read.map_or(0, |read| read.flaw(file, &whole).line);
                flaws.push(Flaw { line, ..flaw(file, error.to_string()) });
            }
            (error, _) => return Err(Unadopted::Failed(error)),
        }
    }
    Ok(flaws)
}
