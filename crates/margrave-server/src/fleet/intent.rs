//! What operators want: the one way in.
//!
//! Every change of intent (packages, deployments, labels, schedules) goes through [`Fleet::change`], whoever asks and
//! however. A commit in a repository can later be put in front of it, and nothing else has to move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use margrave_core::deployment::{Deployment, Targets};
use margrave_core::id::{
    DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion, ParameterName, ProfileId,
};
use margrave_core::package::Package;
use margrave_core::parameters::{Answers, ParameterValue, ScalarType, Schema, in_force, resolve};
use margrave_core::rollback::{Rollback, When};
use margrave_core::schedule::{Choice, Reach};
use margrave_core::violation::{Violation, join};
use margrave_store::{Candidate, DeploymentRecord, Intent, NewEvent, Publication, Standing};
use margrave_wire::{Dialect, operator};
use serde_json::Value;

use super::catalog::{Entry, Pulled, all_kept, by_version};
use super::publish::{ATTEMPTS_MAX, Decision, Unpublished, Wish};
use super::rollout::read_strategy;
use super::token::label_changes;
use super::{Actor, Error, Fleet, Preview, PreviewFit};

/// One change of what is wanted.
pub(super) enum Change {
    AddPackage(Box<Pulled>),
    RemovePackage { id: PackageId, version: PackageVersion },
    PutDeployment { name: DeploymentName, want: Box<operator::PutDeployment> },
    RemoveDeployment { name: DeploymentName, seen: Option<u64> },
    RevertDeployment { name: DeploymentName, to: u64, seen: Option<u64> },
    Label { device: DeviceRef, labels: BTreeMap<String, Option<String>> },
    Move { from: DeviceRef, to: DeviceRef },
    Schedule { reach: Reach, choice: Option<Choice> },
}

/// More named devices than a person lists; beyond that, labels are the tool.
const NAMED_DEVICES_MAX: usize = 10_000;

impl Fleet {
    /// Changes what is wanted, and everything that follows from it.
    pub(super) async fn change(&self, actor: &Actor, change: Change) -> Result<(), Error> {
        match change {
            Change::AddPackage(pulled) => self.keep_package(*pulled).await,
            Change::RemovePackage { id, version } => self.drop_package(actor, &id, &version).await,
            Change::PutDeployment { name, want } => self.put(actor, &name, &want, None).await,
            Change::RevertDeployment { name, to, seen } => {
                let want = self.wish_of(&name, to, seen).await?;
                self.put(actor, &name, &want, Some(to)).await
            }
            Change::RemoveDeployment { name, seen } => self.remove(actor, &name, seen).await,
            Change::Move { from, to } => self.replace_device(actor, &from, &to).await,
            Change::Schedule { reach, choice } => self.choose(actor, reach, choice).await,
            Change::Label { device, labels } => {
                let device = self.live.addressed(&device);
                all_kept(label_changes(&labels))?;
                if !self.store.set_labels(&device, labels, self.now(), &actor.name).await? {
                    return Err(Error::not_found(format!("device {device}")));
                }
                self.settle().await
            }
        }
    }

    /// Creates or changes a deployment; the answer counts its assignments and does not list them.
    pub async fn put_deployment(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        want: operator::PutDeployment,
    ) -> Result<operator::Deployment, Error> {
        self.change(actor, Change::PutDeployment { name: name.clone(), want: Box::new(want) }).await?;
        self.deployment_counted(name).await
    }

    /// Takes a deployment away from all its devices. They are shown until each said that it is gone. `seen` is the
    /// revision that the writer saw; a change in between is then a conflict.
    pub async fn remove_deployment(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        seen: Option<u64>,
    ) -> Result<(), Error> {
        self.change(actor, Change::RemoveDeployment { name: name.clone(), seen }).await
    }

    /// Which devices a deployment would reach; nothing is written.
    pub async fn preview(
        &self,
        name: &DeploymentName,
        want: operator::PutDeployment,
    ) -> Result<Preview, Error> {
        let draft = self.draft(name, &want).await?;
        let mut fits = Vec::new();
        let mut misfits = Vec::new();
        for device in &draft.devices {
            match draft.wish.place(device, None, &self.options.registry_address) {
                Ok(placed) => fits.push(PreviewFit {
                    device: self.live.spoken(&device.device),
                    profile: placed.wanted.profile.to_string(),
                }),
                Err(unplaced) => misfits.push(operator::Misfit {
                    device: self.live.spoken(&device.device),
                    temporary: unplaced.is_temporary(),
                    reasons: unplaced.reasons(),
                }),
            }
        }
        Ok(Preview { fits, misfits })
    }

    async fn put(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        want: &operator::PutDeployment,
        back_to: Option<u64>,
    ) -> Result<(), Error> {
        let _deciding = self.deciding.write().await;
        for attempt in 1.. {
            let Draft { held, wish, devices, named } = self.draft(name, want).await?;
            tracing::debug!(deployment = %name, devices = devices.len(), "a wish was checked");
            let deployment = &wish.deployment;
            let unchanged = |held: &DeploymentRecord| {
                let mut same = deployment.clone();
                same.revision = held.deployment.revision;
                same == held.deployment
            };
            if held.as_ref().is_some_and(unchanged) {
                return Ok(());
            }
            let decision = self.decide_deployment(&wish, devices).await?;
            let refused: Vec<operator::Misfit> = decision
                .misfits
                .iter()
                .filter(|misfit| decision.unfit.contains(&misfit.device) && named.contains(&misfit.device))
                .map(|misfit| operator::Misfit {
                    device: self.live.spoken(&misfit.device),
                    reasons: misfit.reasons.clone(),
                    temporary: false,
                })
                .collect();
            if !refused.is_empty() {
                return Err(Error::Misfit(refused));
            }
            let at = self.now();
            let kind = if held.is_none() { "deployment.created" } else { "deployment.changed" };
            let verb = match (back_to, &held) {
                (Some(to), _) => format!("went back to revision {to}"),
                (None, None) => "was created".to_owned(),
                (None, Some(_)) => "was changed".to_owned(),
            };
            let Deployment { package, version, revision, .. } = deployment;
            let text = format!(
                "{name} {verb}: {package} {version}, revision {revision}, {} changed",
                counted(decision.touched.len(), "manifest")
            );
            let event = NewEvent::new(at, kind, &actor.name, text)
                .deployment(name)
                .package(format!("{package} {version}"));
            let Decision { touched, misfits, rollouts, .. } = decision;
            let publication = Publication {
                at,
                intent: Some(Intent::Put {
                    deployment: Box::new(deployment.clone()),
                    seen: held.map(|held| held.deployment.revision),
                    by: actor.name.clone(),
                }),
                misfits,
                rollouts,
                events: vec![event],
                ..Default::default()
            };
            match self.publish(publication, touched).await {
                Err(Unpublished::Moved) if attempt < ATTEMPTS_MAX => {}
                done => return Ok(done?),
            }
        }
        unreachable!("the last attempt returns")
    }

    async fn remove(&self, actor: &Actor, name: &DeploymentName, seen: Option<u64>) -> Result<(), Error> {
        let _deciding = self.deciding.write().await;
        for attempt in 1.. {
            let held = self.wanted_deployment(name).await?;
            let held = held.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
            check_seen(name, Some(&held), seen)?;
            let held = held.deployment;
            let assignments = self.store.assignments_held(held.id).await?;
            let touched = self.decide_removal(assignments).await?;
            let at = self.now();
            let text = format!("{name} was removed, {} changed", counted(touched.len(), "manifest"));
            let event = NewEvent::new(at, "deployment.removed", &actor.name, text).deployment(name);
            let publication = Publication {
                at,
                intent: Some(Intent::Remove { id: held.id, seen: held.revision, by: actor.name.clone() }),
                events: vec![event],
                ..Default::default()
            };
            match self.publish(publication, touched).await {
                Err(Unpublished::Moved) if attempt < ATTEMPTS_MAX => {}
                done => return Ok(done?),
            }
        }
        unreachable!("the last attempt returns")
    }

    async fn wanted_deployment(&self, name: &DeploymentName) -> Result<Option<DeploymentRecord>, Error> {
        Ok(self.store.deployment(name).await?.filter(|held| !held.removed))
    }

    /// Checks a wish against the catalog, the fleet and what is there already.
    async fn draft(&self, name: &DeploymentName, want: &operator::PutDeployment) -> Result<Draft, Error> {
        let held = self.wanted_deployment(name).await?;
        check_seen(name, held.as_ref(), want.revision)?;
        let entry = self.wanted_package(want).await?;
        let mut broken = Vec::new();
        let profile = read_profile(&entry.package, want.profile.as_deref(), &mut broken);
        let answers = read_answers(&entry.package, &want.parameters, &mut broken);
        let (targets, devices) = self.read_targets(&want.targets, &mut broken).await?;
        let before = held.as_ref().map(|held| held.deployment.rollback);
        let rollback = read_rollback(want.rollback.as_ref(), before, &mut broken);
        let before = held.as_ref().map(|held| &held.deployment.strategy);
        let strategy = read_strategy(want.strategy.as_ref(), before, &mut broken);
        all_kept(broken)?;
        let named = targets.devices.clone();
        // A name that is used again goes on counting: who saw an earlier life of it must not overwrite this one.
        let before = match &held {
            Some(held) => held.deployment.revision,
            None => self.store.revision_newest(name).await?.unwrap_or(0),
        };
        let deployment = Deployment {
            id: held.as_ref().map_or_else(
                || DeploymentId::from_uuid(self.options.naming.next()),
                |held| held.deployment.id,
            ),
            name: name.clone(),
            package: entry.record.id.clone(),
            version: entry.record.version.clone(),
            profile,
            answers,
            targets,
            rollback,
            strategy,
            revision: before.saturating_add(1),
        };
        let previous = match &held {
            Some(held) => self.values_in_force(&held.deployment, &entry).await?,
            None => None,
        };
        check_answers(&entry, &deployment, previous.as_ref())?;
        Ok(Draft { held, wish: Wish { deployment, entry, previous }, devices, named })
    }

    /// What installations of a deployment have, as far as a change to `entry` has to keep it: immutable values
    /// count from the first publication on (DM-059), and another package asks other questions.
    pub(super) async fn values_in_force(
        &self,
        held: &Deployment,
        entry: &Entry,
    ) -> Result<Option<Answers>, Error> {
        if held.package != entry.record.id {
            return Ok(None);
        }
        // A package that is used cannot be removed, so it is there; without it the answers alone must do.
        let before = self.entry(&held.package, &held.version).await?;
        Ok(Some(match before {
            Some(before) => in_force(&before.package, &held.answers),
            None => held.answers.clone(),
        }))
    }

    async fn wanted_package(&self, want: &operator::PutDeployment) -> Result<Arc<Entry>, Error> {
        let id = PackageId::parse(&want.package)
            .map_err(|error| Error::invalid("/package", "DM-003", error.to_string()))?;
        let version = match want.version.as_deref() {
            Some(version) => Some(
                PackageVersion::parse(version)
                    .map_err(|error| Error::invalid("/version", "PK-016", error.to_string()))?,
            ),
            None => {
                let mut known: Vec<PackageVersion> = Vec::new();
                known.extend(
                    self.store.packages().await?.into_iter().filter(|p| p.id == id).map(|p| p.version),
                );
                known.into_iter().max_by(|a, b| by_version(a.as_str(), b.as_str()))
            }
        };
        let found = match &version {
            Some(version) => self.entry(&id, version).await?,
            None => None,
        };
        found.ok_or_else(|| {
            let what = version.map_or_else(|| id.to_string(), |version| format!("{id} {version}"));
            Error::invalid(
                "/package",
                "PK-010",
                format!("{what} is not in the catalog; add the package first"),
            )
        })
    }

    async fn read_targets(
        &self,
        want: &operator::Targets,
        broken: &mut Vec<Violation>,
    ) -> Result<(Targets, Vec<Candidate>), Error> {
        if want.devices.is_empty() && want.labels.is_empty() {
            broken.push(Violation::new(
                "/targets",
                "targets",
                "name at least one device, or labels to select by",
            ));
        }
        if want.devices.len() > NAMED_DEVICES_MAX {
            let message =
                format!("at most {NAMED_DEVICES_MAX} devices can be named; select by labels instead");
            broken.push(Violation::new("/targets/devices", "targets", message));
            return Ok((Targets::default(), Vec::new()));
        }
        let mut devices = BTreeSet::new();
        let mut places = BTreeMap::new();
        for (index, text) in want.devices.iter().enumerate() {
            let place = format!("/targets/devices/{index}");
            match DeviceRef::parse(text) {
                Ok(device) => {
                    let device = self.live.addressed(&device);
                    places.insert(device.clone(), place);
                    devices.insert(device);
                }
                Err(error) => broken.push(Violation::new(place, "targets", error.to_string())),
            }
        }
        let targets = Targets { devices, labels: want.labels.clone() };
        let found = self.store.devices_targeted(&targets).await?;
        let known: BTreeSet<&DeviceRef> = found.iter().map(|record| &record.device).collect();
        let unknown: Vec<&DeviceRef> =
            targets.devices.iter().filter(|device| !known.contains(device)).collect();
        for device in unknown {
            let retired = self.standing(&device.client) == Some(Standing::Retired);
            let message = if retired {
                format!("{device} is retired; leave it out, or accept it again")
            } else {
                format!("there is no device {device}; check the name, or let it join first")
            };
            broken.push(Violation::new(places[device].clone(), "targets", message));
        }
        for record in found.iter().filter(|record| is_unnamed(record)) {
            let Some(place) = places.get(&record.device) else { continue };
            let message = format!(
                "{} has not said yet what its device is called, so it cannot be named; wait for its first report, or \
                 label it and select by label",
                record.device
            );
            broken.push(Violation::new(place.clone(), "targets", message));
        }
        Ok((targets, found))
    }
}

/// Whether the record only keeps the place of a device that will have another name: signed clients have numbers
/// that we made up, and no device calls itself so.
fn is_unnamed(record: &Candidate) -> bool {
    record.dialect == Dialect::Signed
        && record.capabilities.is_none()
        && record.device.device.as_str() == record.device.client.as_str()
}

/// A wish that has been checked, and the devices that it speaks of.
struct Draft {
    held: Option<DeploymentRecord>,
    wish: Wish,
    devices: Vec<Candidate>,
    named: BTreeSet<DeviceRef>,
}

/// Whether what is there is what the writer saw; nothing there is revision 0.
fn check_seen(
    name: &DeploymentName,
    held: Option<&DeploymentRecord>,
    seen: Option<u64>,
) -> Result<(), Error> {
    let current = held.map_or(0, |held| held.deployment.revision);
    match (seen, held) {
        (None, _) => Ok(()),
        (Some(seen), _) if seen == current => Ok(()),
        (Some(seen), Some(held)) => Err(Error::conflict(format!(
            "{name} was changed in between by {} and is at revision {current}, you saw {seen}; look at it again and \
             repeat your change",
            held.changed_by
        ))),
        (Some(seen), None) => Err(Error::conflict(format!(
            "{name} does not exist (any more), you saw revision {seen}; leave the revision out to create it"
        ))),
    }
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn read_rollback(
    want: Option<&operator::Rollback>,
    before: Option<Rollback>,
    broken: &mut Vec<Violation>,
) -> Rollback {
    let Some(operator::Rollback { when, attempts, health_grace_seconds }) = want else {
        return before.unwrap_or_default();
    };
    let when = when.as_deref().map(str::parse::<When>).transpose().map_err(|error| error.to_string());
    let grace = health_grace_seconds.map(Duration::from_secs);
    let read = when
        .and_then(|when| Rollback::new(when, *attempts, grace).map_err(|error| error.to_string()))
        .map_err(|message| broken.push(Violation::new("/rollback", "MI-G2-085", message)));
    read.unwrap_or_default()
}

fn read_profile(package: &Package, want: Option<&str>, broken: &mut Vec<Violation>) -> Option<ProfileId> {
    let want = want.filter(|want| !want.is_empty())?;
    let found = package.profiles.iter().find(|profile| profile.id.as_str() == want);
    if found.is_none() {
        let known: Vec<&str> = package.profiles.iter().map(|profile| profile.id.as_str()).take(20).collect();
        let want: String = want.chars().take(80).collect();
        let message = format!("the package has no profile {want:?}; it has {}", known.join(", "));
        broken.push(Violation::new("/profile", "DM-161", message));
    }
    found.map(|profile| profile.id.clone())
}

fn read_answers(package: &Package, want: &BTreeMap<String, Value>, broken: &mut Vec<Violation>) -> Answers {
    let mut answers = Answers::new();
    for (name, value) in want {
        let place = || join("/parameters", name);
        let parameter = match ParameterName::parse(name) {
            Ok(parameter) => parameter,
            Err(error) => {
                broken.push(Violation::new(place(), "DM-162", error.to_string()));
                continue;
            }
        };
        let settings = package.sections.iter().flat_map(|section| &section.settings);
        let schema = settings
            .filter(|setting| setting.parameter == parameter)
            .find_map(|setting| package.schemas.get(&setting.schema));
        match typed(schema, value) {
            Ok(value) => {
                answers.insert(parameter, value);
            }
            Err(message) => broken.push(Violation::new(place(), "DM-163", message)),
        }
    }
    answers
}

/// A JSON value as the schema wants it. Texts are taken for numbers where they are some: forms and command
/// lines know only texts.
fn typed(schema: Option<&Schema>, value: &Value) -> Result<ParameterValue, String> {
    let plain = || {
        serde_json::from_value::<ParameterValue>(value.clone()).map_err(|_| {
            "must be text, a number, true or false, or a list of these; leave it out for the default"
                .to_owned()
        })
    };
    let Some(schema) = schema else { return plain() };
    match value {
        Value::String(text) => ParameterValue::from_text(schema, text),
        Value::Number(_) | Value::Bool(_)
            if schema.data_type.scalar == ScalarType::Text && !schema.wants_list() =>
        {
            Ok(ParameterValue::Text(value.to_string()))
        }
        Value::Array(items) if items.iter().all(Value::is_string) && schema.wants_list() => {
            ParameterValue::from_texts(schema, items.iter().filter_map(Value::as_str))
        }
        _ => plain(),
    }
}

/// The answers must do for the profile that is asked for; where each device takes its own, for at least one.
fn check_answers(entry: &Entry, deployment: &Deployment, previous: Option<&Answers>) -> Result<(), Error> {
    let package = &entry.package;
    let mut first = None;
    for profile in package.candidates(deployment.profile.as_ref()) {
        match resolve(package, profile, &deployment.answers, previous) {
            Ok(_) => return Ok(()),
            Err(broken) => first = first.or(Some(broken)),
        }
    }
    all_kept(first.unwrap_or_default())
}
