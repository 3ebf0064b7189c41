//! What a set of changes comes to, before any of it is done: each is checked in the light of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use margrave_core::deployment::{Defaults, Deployment};
use margrave_core::id::{DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion};
use margrave_core::moment::Moment;
use margrave_core::schedule::{Choice, Reach};
use margrave_core::violation::Violation;
use margrave_store::{DeploymentRecord, Intent, NewEvent, PackageRecord, Standing};
use margrave_wire::operator;
use margrave_wire::resource::Place;
use margrave_wire::rollout::StrategyBody;

use super::catalog::{Entry, Pulled, all_kept};
use super::desired::{FileChange, rendering};
use super::draft::{Draft, Overlay, check_seen};
use super::intent::{Change, Refusals};
use super::revision::left_out;
use super::secret::unseen;
use super::token::check_labels;
use super::view::shown_rollback;
use super::{Actor, Error, Fleet};

/// What is to be done, and how it is told.
#[derive(Default)]
pub(super) struct Prospect {
    pub(super) wanted: Vec<Draft>,
    pub(super) removed: Vec<DeploymentId>,
    pub(super) intents: Vec<Intent>,
    pub(super) files: Vec<FileChange>,
    pub(super) events: Vec<NewEvent>,
    /// A line each, for the commit.
    pub(super) words: Vec<String>,
    pub(super) overlay: Overlay,
    /// Packages that go; nothing that stays may use them.
    pub(super) going: BTreeSet<(PackageId, PackageVersion)>,
    /// Packages that stay, of which something else is known than before.
    pub(super) known_anew: BTreeSet<(PackageId, PackageVersion)>,
    /// What Git is to say of devices' labels.
    labels: BTreeMap<DeviceRef, Option<BTreeMap<String, String>>>,
    /// For whom something else is chosen than before.
    schedules: BTreeSet<Reach>,
    /// Every choice of a schedule as it is after all this. Read once, for there may be one for each of ten thousand devices, and
    /// only where files of devices or of the fleet are written.
    choices: BTreeMap<Reach, Choice>,
    /// Devices that something is chosen for, with the labels that they will have.
    chosen_for: BTreeMap<DeviceRef, BTreeMap<String, String>>,
    /// What counts for deployments that say nothing of it, after all this.
    defaults: Defaults,
    defaults_change: bool,
}

impl Prospect {
    pub(super) fn is_nothing(&self) -> bool {
        self.intents.is_empty()
    }
}

/// In which order changes are looked at: what others need comes first, whatever order they were named in.
fn turn(change: &Change) -> u8 {
    match change {
        Change::AddPackage(_) => 0,
        Change::Label { .. } | Change::SetLabels { .. } | Change::NoteLabels { .. } => 1,
        Change::Schedule { .. } | Change::Defaults(_) => 2,
        Change::RemoveDeployment { .. } => 3,
        Change::PutDeployment { .. } | Change::PutFile { .. } | Change::RevertDeployment { .. } => 4,
        Change::RemovePackage { .. } => 5,
    }
}

impl Fleet {
    /// Looks at all changes together, with what was found out for them meanwhile. Everything that is wrong is told, not only the first.
    pub(super) async fn prospect(
        &self,
        actor: &Actor,
        changes: &[Change],
        found: &[Change],
    ) -> Result<Prospect, Refusals> {
        let whole = |error: Error| vec![(usize::MAX, error)];
        let defaults = self.store.defaults().await.map_err(|error| whole(error.into()))?;
        let choices = match changes.iter().any(|change| matches!(turn(change), 1 | 2)) {
            true => self.choices().await.map_err(whole)?.into_iter().collect(),
            false => BTreeMap::new(),
        };
        let mut prospect = Prospect { defaults, choices, ..Prospect::default() };
        let mut refusals = Refusals::new();
        for change in changes {
            if let Change::RemovePackage { id, version } = change {
                prospect.going.insert((id.clone(), version.clone()));
            }
            if let Change::SetLabels { device, .. } = change {
                prospect.overlay.awaited.insert(self.live.addressed(device));
            }
        }
        for change in found {
            self.look_at(actor, change, &mut prospect).await.map_err(whole)?;
        }
        let mut order: Vec<(usize, &Change)> = changes.iter().enumerate().collect();
        order.sort_by_key(|(_, change)| turn(change));
        for (index, change) in order {
            if let Err(error) = self.look_at(actor, change, &mut prospect).await {
                refusals.push((index, error));
            }
        }
        // What is chosen elsewhere by the same changes counts, whatever order they were named in.
        for (index, change) in changes.iter().enumerate() {
            if let Change::Schedule { reach: Reach::Device(device), choice: Some(choice), .. } = change
                && let Some(labels) = prospect.chosen_for.get(device)
                && let Err(error) = Fleet::check_choice(device, labels, &prospect.choices, choice)
            {
                refusals.push((index, error));
            }
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let rendered = self.render(&mut prospect).await;
        rendered.map_err(whole)?;
        Ok(prospect)
    }

    async fn look_at(&self, actor: &Actor, change: &Change, prospect: &mut Prospect) -> Result<(), Error> {
        match change {
            Change::AddPackage(pulled) => self.look_at_package(actor, pulled, prospect).await,
            Change::RemovePackage { id, version } => {
                self.look_at_removed_package(actor, id, version, prospect).await
            }
            Change::Label { device, labels, seen } => {
                let device = self.live.addressed(device);
                let found = self.store.device(&device).await?;
                let found = found.ok_or_else(|| Error::not_found(format!("device {device}")))?;
                seen.check(Some(&found.labels))?;
                all_kept(check_labels(labels.iter().map(|(key, value)| (key, value.as_ref()))))?;
                let mut all = found.labels.clone();
                for (key, value) in labels {
                    match value {
                        Some(value) => all.insert(key.clone(), value.clone()),
                        None => all.remove(key),
                    };
                }
                if all == found.labels {
                    return Ok(());
                }
                self.look_at_labels(actor, device, Some(all), prospect).await
            }
            Change::SetLabels { device, labels } => {
                let device = self.live.addressed(device);
                self.look_at_labels(actor, device, labels.clone(), prospect).await
            }
            Change::NoteLabels { device } => {
                let device = self.live.addressed(device);
                let known = self.store.device(&device).await?;
                let known =
                    known.filter(|known| known.standing != Standing::Retired && !known.labels.is_empty());
                match known {
                    // Whatever was said meanwhile is in force as well, so that it is not said otherwise.
                    Some(known) => self.look_at_labels(actor, device, Some(known.labels), prospect).await,
                    None => Ok(()),
                }
            }
            Change::Schedule { reach, choice, seen } => {
                self.check_schedule_seen(reach, seen).await?;
                self.look_at_schedule(actor, reach, choice.as_ref(), prospect).await
            }
            Change::PutDeployment { name, want, id } => {
                let mut want = want.clone();
                // What is there stays as it is in what is not spoken of.
                if self.wanted_deployment(name).await?.is_none() {
                    as_usual(&mut want, &prospect.defaults);
                }
                self.look_at_deployment(actor, name, &want, *id, None, prospect).await
            }
            Change::PutFile { name, want, id, .. } => {
                let mut want = want.clone();
                as_usual(&mut want, &prospect.defaults);
                self.look_at_deployment(actor, name, &want, *id, None, prospect).await
            }
            Change::Defaults(defaults) => {
                if **defaults != prospect.defaults {
                    prospect.defaults = Defaults::clone(defaults);
                    prospect.defaults_change = true;
                    prospect.words.push("Set the defaults of deployments".to_owned());
                    prospect.intents.push(Intent::Defaults(defaults.clone()));
                }
                Ok(())
            }
            Change::RevertDeployment { name, to, seen, reason } => {
                // Somebody may have ended the rollout since the server saw that it has to go back.
                if reason.is_some() && !self.is_reverting(name).await? {
                    return Err(Error::conflict(format!("the rollout of {name} does not go back any more")));
                }
                let mut want = self.wish_of(name, *to, *seen).await?;
                let gone = self.leave_out_gone(&mut want, *to).await?;
                let now = self.wanted_deployment(name).await?.map(|held| held.deployment.revision);
                // What is wanted now is wanted again when only a secret changed.
                let back_to = Some(*to).filter(|to| now != Some(*to));
                let before = prospect.words.len();
                self.look_at_deployment(actor, name, &want, None, back_to, prospect).await?;
                let Some(words) = prospect.words.get_mut(before) else { return Ok(()) };
                if let Some(left_out) = left_out(&gone) {
                    words.push_str(&format!(", {left_out}"));
                    if let Some(event) = prospect.events.last_mut() {
                        event.text.push_str(&format!(", {left_out}"));
                    }
                }
                if let Some(reason) = reason {
                    words.push_str(&format!("\n\n{reason}"));
                }
                Ok(())
            }
            Change::RemoveDeployment { name, seen } => {
                let held = self.wanted_deployment(name).await?;
                let held = held.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
                check_seen(name, Some(&held), *seen)?;
                let DeploymentRecord { deployment, .. } = held;
                prospect.removed.push(deployment.id);
                prospect.intents.push(Intent::Remove {
                    id: deployment.id,
                    seen: deployment.revision,
                    by: actor.name.clone(),
                });
                let text = format!("{name} was removed");
                let event = NewEvent::new(Moment(0), "deployment.removed", &actor.name, text);
                prospect.events.push(event.deployment(name));
                prospect.words.push(format!("Remove {name}"));
                prospect.files.push(gone(&Place::Deployment(name.clone())));
                Ok(())
            }
        }
    }

    async fn look_at_package(
        &self,
        actor: &Actor,
        pulled: &Pulled,
        prospect: &mut Prospect,
    ) -> Result<(), Error> {
        let record = &pulled.record;
        let (id, version) = (record.id.clone(), record.version.clone());
        if let Some(stored) = self.store.package(&id, &version).await? {
            if stored.digest != record.digest {
                return Err(Error::conflict(format!(
                    "{id} {version} is in the catalog already with other content ({}); give the changed package a new \
                     version, or remove the old one first",
                    stored.digest.short()
                )));
            }
            return self.look_at_images(actor, stored, pulled, prospect).await;
        }
        let mut record = record.clone();
        record.added_by = actor.name.clone();
        let entry = Entry::read(record.clone())?;
        let file = rendering::package(&record);
        prospect.overlay.packages.insert((id.clone(), version.clone()), Arc::new(entry));
        prospect.words.push(format!("Add package {id} {version}"));
        prospect
            .files
            .push(FileChange { path: Place::Package(id, version).to_string(), bytes: Some(file.write()) });
        prospect
            .intents
            .push(Intent::AddPackage { package: Box::new(record), resources: pulled.resources.clone() });
        Ok(())
    }

    /// Images of a package that is there already, of which something is known now that was not then. What runs without these pins
    /// goes on so: its documents must not change because somebody asked again.
    async fn look_at_images(
        &self,
        actor: &Actor,
        mut stored: PackageRecord,
        pulled: &Pulled,
        prospect: &mut Prospect,
    ) -> Result<(), Error> {
        let before = stored.images.all_pins();
        let images = stored.images.clone().with_later(&pulled.record.images);
        let are_pinned = images.all_pins() != before;
        if !are_pinned && images.named == stored.images.named {
            return Ok(());
        }
        let (id, version) = (stored.id.clone(), stored.version.clone());
        let by = self.store.package_keepers(&id, &version).await?;
        if !by.is_empty() {
            let message = format!(
                "deployments use {id} {version}, or can go back to it ({}), with images that are not pinned, and what they run \
                 does not change behind their backs; give the package a new version",
                by.join(", ")
            );
            return if pulled.pinning && are_pinned { Err(Error::conflict(message)) } else { Ok(()) };
        }
        stored.images = images.clone();
        let file = rendering::package(&stored);
        prospect.overlay.packages.insert((id.clone(), version.clone()), Arc::new(Entry::read(stored)?));
        prospect.known_anew.insert((id.clone(), version.clone()));
        let done = if are_pinned { "Pin" } else { "Look at" };
        prospect.words.push(format!("{done} images of package {id} {version}"));
        let path = Place::Package(id.clone(), version.clone()).to_string();
        let before = self.desired.file(&path).await?;
        let bytes = rendering::under_comment(before.as_deref(), &file);
        prospect.files.push(FileChange { path, bytes: Some(bytes) });
        prospect.intents.push(Intent::PinImages {
            id,
            version,
            images: Box::new(images),
            by: actor.name.clone(),
        });
        Ok(())
    }

    async fn look_at_removed_package(
        &self,
        actor: &Actor,
        id: &PackageId,
        version: &PackageVersion,
        prospect: &mut Prospect,
    ) -> Result<(), Error> {
        if self.store.package(id, version).await?.is_none() {
            return Err(Error::not_found(format!("package {id} {version}")));
        }
        let going = |deployment: &Deployment| {
            prospect.removed.contains(&deployment.id)
                || prospect.wanted.iter().any(|draft| draft.wish.deployment.id == deployment.id)
        };
        // Devices that wait for another version have this one, and are given it again if the other fails.
        let holders = self.store.package_holders(id, version).await?;
        let uses = |deployment: &Deployment| {
            (&deployment.package, &deployment.version) == (id, version)
                || (holders.contains(deployment.name.as_str()) && !going(deployment))
        };
        let held = self.store.deployments().await?.into_iter().filter(|record| !record.removed);
        let held = held.map(|record| record.deployment).filter(|deployment| !going(deployment));
        let wanted = prospect.wanted.iter().map(|draft| draft.wish.deployment.clone());
        let by: Vec<String> =
            held.chain(wanted).filter(uses).map(|deployment| deployment.name.to_string()).collect();
        if !by.is_empty() {
            return Err(Error::InUse { what: format!("package {id} {version}"), by });
        }
        prospect.words.push(format!("Remove package {id} {version}"));
        prospect.files.push(gone(&Place::Package(id.clone(), version.clone())));
        prospect.intents.push(Intent::RemovePackage {
            id: id.clone(),
            version: version.clone(),
            by: actor.name.clone(),
        });
        Ok(())
    }

    async fn look_at_labels(
        &self,
        actor: &Actor,
        device: DeviceRef,
        labels: Option<BTreeMap<String, String>>,
        prospect: &mut Prospect,
    ) -> Result<(), Error> {
        if let Some(labels) = &labels {
            all_kept(check_labels(labels.iter().map(|(key, value)| (key, Some(value)))))?;
        }
        if self.store.device_setting(&device).await? == labels {
            return Ok(());
        }
        if let Some(labels) = &labels {
            prospect.overlay.labels.insert(device.clone(), labels.clone());
        }
        let words = match &labels {
            Some(labels) => {
                let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!(
                    "Label {device}: {}",
                    if pairs.is_empty() { "none".to_owned() } else { pairs.join(", ") }
                )
            }
            None => format!("Say nothing of {device} any more"),
        };
        prospect.words.push(words);
        prospect.intents.push(Intent::Label {
            device: device.clone(),
            labels: labels.clone(),
            by: actor.name.clone(),
        });
        prospect.labels.insert(device, labels);
        Ok(())
    }

    async fn look_at_schedule(
        &self,
        actor: &Actor,
        reach: &Reach,
        choice: Option<&Choice>,
        prospect: &mut Prospect,
    ) -> Result<(), Error> {
        let held = prospect.choices.get(reach).cloned();
        if choice.is_none() && held.is_none() {
            return Err(super::schedule::no_schedule(reach));
        }
        if let (Reach::Device(device), Some(_)) = (reach, choice) {
            let awaited = prospect.overlay.awaited.contains(device);
            let known = self.store.device(device).await?;
            if !awaited && known.is_none() {
                return Err(Error::not_found(format!("device {device}")));
            }
            if device.device.is_child() {
                return Err(Error::conflict(format!(
                    "{device} speaks through its gateway; set the schedule of {}",
                    device.device.gateway()
                )));
            }
            let labels = prospect.overlay.labels.get(device).cloned();
            let labels = labels.or(known.map(|known| known.labels)).unwrap_or_default();
            prospect.chosen_for.insert(device.clone(), labels);
        }
        if held.as_ref() == choice {
            return Ok(());
        }
        match choice {
            Some(choice) => prospect.choices.insert(reach.clone(), choice.clone()),
            None => prospect.choices.remove(reach),
        };
        let verb = if choice.is_some() { "Set" } else { "Remove" };
        prospect.words.push(format!("{verb} the schedule of {reach}"));
        prospect.intents.push(Intent::Schedule {
            reach: reach.clone(),
            choice: choice.cloned(),
            by: actor.name.clone(),
        });
        prospect.schedules.insert(reach.clone());
        Ok(())
    }

    async fn look_at_deployment(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        want: &operator::PutDeployment,
        id: Option<DeploymentId>,
        back_to: Option<u64>,
        prospect: &mut Prospect,
    ) -> Result<(), Error> {
        let mut draft = self.draft(name, want, id, &prospect.overlay).await?;
        draft.goes_back = back_to.is_some();
        let deployment = &draft.wish.deployment;
        tracing::debug!(deployment = %name, devices = draft.devices.len(), "a wish was checked");
        let key = (deployment.package.clone(), deployment.version.clone());
        if prospect.going.contains(&key) {
            let message = format!("{} {} is removed by the same change; keep it", key.0, key.1);
            return Err(Error::Invalid(vec![Violation::new("/package", "PK-010", message)]));
        }
        // A file that was copied with the id of another that is as new as itself.
        let twins = prospect.wanted.iter().map(|other| &other.wish.deployment);
        if let Some(twin) = twins.into_iter().find(|other| other.id == deployment.id && other.name != *name) {
            let message = format!("this id is that of {}; leave it out", twin.name);
            return Err(Error::Invalid(vec![Violation::new("/../metadata/id", "resource", message)]));
        }
        let unchanged = |held: &DeploymentRecord| {
            let mut same = deployment.clone();
            same.revision = held.deployment.revision;
            same == held.deployment
        };
        // Asked for again, it is decided again about those who were left out for want of a secret that is there now.
        let is_answered = |held: &DeploymentRecord| !self.has_secrets_again(held);
        if draft.held.as_ref().is_some_and(|held| unchanged(held) && is_answered(held)) {
            return Ok(());
        }
        let kind = if draft.held.is_none() { "deployment.created" } else { "deployment.changed" };
        let (verb, subject) = match (back_to, &draft.held) {
            (Some(to), _) => {
                (format!("went back to revision {to}"), format!("Revert {name} to revision {to}"))
            }
            (None, None) => ("was created".to_owned(), format!("Deploy {name}")),
            (None, Some(held)) if is_same_but_for_secrets(&held.deployment, deployment) => {
                ("takes secrets that changed".to_owned(), format!("Take the changed secrets of {name}"))
            }
            (None, Some(_)) => ("was changed".to_owned(), format!("Change {name}")),
        };
        let Deployment { package, version, revision, .. } = deployment;
        let forced =
            deployment.forced.as_ref().map(|reason| format!(", forced ({reason})")).unwrap_or_default();
        let text = format!("{name} {verb}: {package} {version}, revision {revision}{forced}");
        let event = NewEvent::new(Moment(0), kind, &actor.name, text).deployment(name);
        prospect.events.push(event.package(format!("{package} {version}")));
        prospect.words.push(format!("{subject}: {package} {version}{forced}"));
        let place = Place::Deployment(name.clone()).to_string();
        let before = self.desired.file(&place).await?;
        let bytes = rendering::under_comment(
            before.as_deref(),
            &rendering::deployment(deployment, &prospect.defaults),
        );
        prospect.files.push(FileChange { path: place, bytes: Some(bytes) });
        prospect.intents.push(Intent::Put {
            deployment: Box::new(deployment.clone()),
            seen: draft.held.as_ref().map(|held| held.deployment.revision),
            by: actor.name.clone(),
        });
        prospect.wanted.push(draft);
        Ok(())
    }

    /// The files of devices and of the fleet, which several changes may have touched.
    async fn render(&self, prospect: &mut Prospect) -> Result<(), Error> {
        let of_device = |reach: &Reach| match reach {
            Reach::Device(device) => Some(device.clone()),
            _ => None,
        };
        let mut devices: BTreeSet<DeviceRef> = prospect.labels.keys().cloned().collect();
        devices.extend(prospect.schedules.iter().filter_map(of_device));
        let everybody =
            prospect.defaults_change || prospect.schedules.iter().any(|reach| of_device(reach).is_none());
        if devices.is_empty() && !everybody {
            return Ok(());
        }
        for device in devices {
            let labels = match prospect.labels.get(&device) {
                Some(labels) => labels.clone(),
                None => self.store.device_setting(&device).await?,
            };
            let choice = prospect.choices.get(&Reach::Device(device.clone()));
            let place = Place::Device(device.clone()).to_string();
            let bytes = match rendering::device(&device, labels.as_ref(), choice) {
                Some(file) => {
                    Some(rendering::under_comment(self.desired.file(&place).await?.as_deref(), &file))
                }
                None => None,
            };
            prospect.files.push(FileChange { path: place, bytes });
        }
        if everybody {
            let place = Place::Fleet.to_string();
            let before = self.desired.file(&place).await?;
            let file = rendering::fleet(&prospect.choices, &prospect.defaults);
            let bytes = rendering::under_comment(before.as_deref(), &file);
            prospect.files.push(FileChange { path: place, bytes: Some(bytes) });
        }
        Ok(())
    }
}

/// What a wish leaves out, as it is for the whole fleet.
fn as_usual(want: &mut operator::PutDeployment, defaults: &Defaults) {
    want.strategy.get_or_insert_with(|| StrategyBody::from(&defaults.strategy()));
    want.rollback.get_or_insert_with(|| shown_rollback(defaults.rollback()));
}

fn is_same_but_for_secrets(held: &Deployment, wanted: &Deployment) -> bool {
    let (mut held, wanted) = (unseen(held), unseen(wanted));
    held.revision = wanted.revision;
    held == wanted
}

fn gone(place: &Place) -> FileChange {
    FileChange { path: place.to_string(), bytes: None }
}
