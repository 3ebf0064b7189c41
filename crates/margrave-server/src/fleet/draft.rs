//! From what somebody asked for to a wish that can be granted: everything about it is checked, nothing is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use margrave_core::deployment::{Deployment, Override, Targets};
use margrave_core::id::{
    DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion, ParameterName, ProfileId,
};
use margrave_core::package::Package;
use margrave_core::parameters::{
    Answer, Answers, Held, ParameterValue, ScalarType, Schema, held, in_force, resolve,
};
use margrave_core::rollback::{Rollback, When};
use margrave_core::schedule::Weekly;
use margrave_core::secret::{Referred, Secrets};
use margrave_core::selector::Selector;
use margrave_core::violation::{Violation, join};
use margrave_store::{Candidate, DeploymentRecord, Standing};
use margrave_wire::{Dialect, operator, schedule};
use serde_json::{Map, Value};

use super::catalog::{Entry, all_kept, by_version};
use super::publish::Wish;
use super::rollout::read_strategy;
use super::{Error, Fleet};

/// More named devices than a person lists; beyond that, labels are the tool.
const NAMED_DEVICES_MAX: usize = 10_000;
const SITES_MAX: usize = 1_000;
/// Each is asked of every device.
const OVERRIDES_MAX: usize = 200;
/// Of the reason for forcing, in characters: it is a sentence.
const REASON_LENGTH_MAX: usize = 500;
/// Each device takes the first profile that fits it.
const AUTO: &str = "auto";

impl Fleet {
    pub(super) async fn wanted_deployment(
        &self,
        name: &DeploymentName,
    ) -> Result<Option<DeploymentRecord>, Error> {
        Ok(self.store.deployment(name).await?.filter(|held| !held.removed))
    }

    /// Checks a wish against the catalog, the fleet and what is there already.
    pub(super) async fn draft(
        &self,
        name: &DeploymentName,
        want: &operator::PutDeployment,
        id: Option<DeploymentId>,
        overlay: &Overlay,
    ) -> Result<Draft, Error> {
        let held = self.wanted_deployment(name).await?;
        check_seen(name, held.as_ref(), want.revision)?;
        let entry = self.wanted_package(want, overlay).await?;
        let mut broken = Vec::new();
        let profile = read_profile(&entry.package, want.profile.as_deref(), &mut broken);
        let answers = read_answers(&entry.package, "", &want.parameters, &mut broken);
        let targets = self.read_targets("/targets", &want.targets, &mut broken);
        let devices = self.targeted(&targets, overlay).await?;
        self.check_named("/targets", &want.targets, &devices, overlay, &mut broken);
        let overrides = self.read_overrides(&entry.package, &want.overrides, &mut broken);
        let forced = read_force(want.force.as_deref(), &mut broken);
        if let (Some(id), Some(held)) = (id, &held)
            && held.deployment.id != id
        {
            let message = format!("{name} has the id {}; keep it, or leave it out", held.deployment.id);
            broken.push(Violation::new("/../metadata/id", "resource", message));
        }
        if held.is_none() {
            self.check_id(name, id, &mut broken).await?;
        }
        let before = held.as_ref().map(|held| held.deployment.rollback);
        let rollback = read_rollback(want.rollback.as_ref(), before, &mut broken);
        let before = held.as_ref().map(|held| &held.deployment.strategy);
        let strategy = read_strategy(want.strategy.as_ref(), before, &mut broken);
        let before = held.as_ref().map(|held| held.deployment.windows.as_slice());
        let windows = read_windows(want.windows.as_deref(), before, &mut broken);
        let named = targets.devices.clone();
        // A name that is used again goes on counting: who saw an earlier life of it must not overwrite this one.
        let before = match &held {
            Some(held) => held.deployment.revision,
            None => self.store.revision_newest(name).await?.unwrap_or(0),
        };
        let mut deployment = Deployment {
            id: held.as_ref().map_or_else(
                || id.unwrap_or_else(|| DeploymentId::from_uuid(self.options.naming.next())),
                |held| held.deployment.id,
            ),
            name: name.clone(),
            package: entry.record.id.clone(),
            version: entry.record.version.clone(),
            profile,
            answers,
            overrides,
            targets,
            forced,
            rollback,
            strategy,
            windows,
            revision: before.saturating_add(1),
        };
        let previous = match &held {
            Some(held) => self.before(&held.deployment, &entry).await?,
            None => None,
        };
        let secrets = self.options.vault.secrets(&deployment);
        // All that is wrong is told at once. What could not be read is not there, which is no second fault of it.
        broken.extend(look_at_secrets(&mut deployment, &secrets));
        let mut rules = check_answers(&entry, &deployment, previous.as_ref(), &secrets);
        rules.retain(|rule| !broken.iter().any(|told| is_within(&told.place, &rule.place)));
        broken.extend(rules);
        all_kept(broken)?;
        let wish = Wish { deployment, entry, previous, secrets: Arc::new(secrets), at_once: false };
        Ok(Draft { held, wish, devices, named, goes_back: false })
    }

    /// Who wants a deployment again by its id, as its file says it, takes its removal back: what runs goes on. An id that is
    /// another's is refused.
    async fn check_id(
        &self,
        name: &DeploymentName,
        id: Option<DeploymentId>,
        broken: &mut Vec<Violation>,
    ) -> Result<(), Error> {
        let Some(id) = id else { return Ok(()) };
        let all = self.store.deployments().await?;
        if let Some(other) =
            all.iter().find(|other| other.deployment.id == id && other.deployment.name != *name)
        {
            let message = format!("this id is that of {}; leave it out", other.deployment.name);
            broken.push(Violation::new("/../metadata/id", "resource", message));
        }
        Ok(())
    }

    /// What installations of a deployment have, as far as a change to `entry` has to keep it: immutable values
    /// count from the first publication on (DM-059), and another package asks other questions.
    pub(super) async fn before(&self, held: &Deployment, entry: &Entry) -> Result<Option<Before>, Error> {
        if held.package != entry.record.id {
            return Ok(None);
        }
        // A package that is used cannot be removed, so it is there; without it the answers alone must do.
        let entry = self.entry(&held.package, &held.version).await?;
        Ok(Some(Before { deployment: held.clone(), entry }))
    }

    pub(super) async fn wanted_package(
        &self,
        want: &operator::PutDeployment,
        overlay: &Overlay,
    ) -> Result<Arc<Entry>, Error> {
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
                known.extend(
                    overlay.packages.keys().filter(|(of, _)| *of == id).map(|(_, version)| version.clone()),
                );
                known.into_iter().max_by(|a, b| by_version(a.as_str(), b.as_str()))
            }
        };
        let found = match &version {
            Some(version) => match overlay.packages.get(&(id.clone(), version.clone())) {
                Some(entry) => Some(Arc::clone(entry)),
                None => self.entry(&id, version).await?,
            },
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

    /// Reads who is meant; that they exist is [`Fleet::check_named`]'s business.
    fn read_targets(&self, place: &str, want: &operator::Targets, broken: &mut Vec<Violation>) -> Targets {
        let operator::Targets { devices: named, labels, select, sites } = want;
        let select = select.as_deref().map(str::trim).filter(|text| !text.is_empty());
        if named.is_empty() && labels.is_empty() && select.is_none() && sites.is_empty() {
            let message = "name at least one device, or labels, an expression or sites to select by";
            broken.push(Violation::new(place, "targets", message));
        }
        if named.len() > NAMED_DEVICES_MAX {
            let message =
                format!("at most {NAMED_DEVICES_MAX} devices can be named; select by labels instead");
            broken.push(Violation::new(format!("{place}/devices"), "targets", message));
            return Targets::default();
        }
        if sites.len() > SITES_MAX {
            let message = format!("at most {SITES_MAX} sites can be named; select by other labels instead");
            broken.push(Violation::new(format!("{place}/sites"), "targets", message));
        }
        let select = match select.map(str::parse::<Selector>) {
            None => Selector::default(),
            Some(Ok(select)) => select,
            Some(Err(error)) => {
                broken.push(Violation::new(format!("{place}/select"), "targets", error.to_string()));
                Selector::default()
            }
        };
        let mut devices = BTreeSet::new();
        for (index, text) in named.iter().enumerate() {
            match DeviceRef::parse(text) {
                Ok(device) => {
                    devices.insert(self.live.addressed(&device));
                }
                Err(error) => {
                    let place = format!("{place}/devices/{index}");
                    broken.push(Violation::new(place, "targets", error.to_string()));
                }
            }
        }
        Targets { devices, labels: labels.clone(), select, sites: sites.iter().cloned().collect() }
    }

    /// The devices that are meant, with the labels that they are about to have.
    async fn targeted(&self, targets: &Targets, overlay: &Overlay) -> Result<Vec<Candidate>, Error> {
        let mut found = self.store.devices_targeted(targets).await?;
        if overlay.labels.is_empty() {
            return Ok(found);
        }
        found.retain(|candidate| !overlay.labels.contains_key(&candidate.device));
        let changed = Targets { devices: overlay.labels.keys().cloned().collect(), ..Targets::default() };
        for mut candidate in self.store.devices_targeted(&changed).await? {
            candidate.labels = overlay.labels[&candidate.device].clone();
            if targets.matches(&candidate.device, &candidate.labels) {
                found.push(candidate);
            }
        }
        found.sort_by(|a, b| a.device.cmp(&b.device));
        Ok(found)
    }

    /// Who is named must be there, and must be somebody who can be named. From a repository a device may be named that is
    /// only about to join, where the repository says something of it.
    fn check_named(
        &self,
        place: &str,
        want: &operator::Targets,
        found: &[Candidate],
        overlay: &Overlay,
        broken: &mut Vec<Violation>,
    ) {
        let known: BTreeMap<&DeviceRef, &Candidate> =
            found.iter().map(|record| (&record.device, record)).collect();
        for (index, text) in want.devices.iter().enumerate().take(NAMED_DEVICES_MAX) {
            let Ok(device) = DeviceRef::parse(text) else { continue };
            let device = self.live.addressed(&device);
            let place = format!("{place}/devices/{index}");
            match known.get(&device) {
                Some(record) if is_unnamed(record) => {
                    let message = format!(
                        "{device} has not said yet what its device is called, so it cannot be named; wait for its \
                         first report, or label it and select by label"
                    );
                    broken.push(Violation::new(place, "targets", message));
                }
                Some(_) => {}
                None if overlay.awaited.contains(&device) => {}
                None => {
                    let retired = self.standing(&device.client) == Some(Standing::Retired);
                    let message = if retired {
                        format!("{device} is retired; leave it out, or accept it again")
                    } else {
                        format!("there is no device {device}; check the name, or let it join first")
                    };
                    broken.push(Violation::new(place, "targets", message));
                }
            }
        }
    }

    fn read_overrides(
        &self,
        package: &Package,
        want: &[operator::Override],
        broken: &mut Vec<Violation>,
    ) -> Vec<Override> {
        if want.len() > OVERRIDES_MAX {
            let message = format!("at most {OVERRIDES_MAX} overrides; group devices by labels");
            broken.push(Violation::new("/overrides", "overrides", message));
            return Vec::new();
        }
        let read = |(index, other): (usize, &operator::Override)| {
            let place = format!("/overrides/{index}");
            let of = self.read_targets(&format!("{place}/targets"), &other.targets, broken);
            let answers = read_answers(package, &place, &other.parameters, broken);
            if answers.is_empty() && other.parameters.is_empty() {
                let message = "says nothing; answer something otherwise, or leave it out";
                broken.push(Violation::new(format!("{place}/parameters"), "overrides", message));
            }
            Override { of, answers }
        };
        want.iter().enumerate().map(read).collect()
    }
}

/// Whether the record only keeps the place of a device that will have another name: signed clients have numbers
/// that we made up, and no device calls itself so.
fn is_unnamed(record: &Candidate) -> bool {
    record.dialect == Dialect::Signed
        && record.capabilities.is_none()
        && record.device.device.as_str() == record.device.client.as_str()
}

/// What comes with a change besides, as far as other parts of it have to look at it.
#[derive(Default)]
pub(super) struct Overlay {
    pub(super) packages: BTreeMap<(PackageId, PackageVersion), Arc<Entry>>,
    /// The labels that devices are about to have.
    pub(super) labels: BTreeMap<DeviceRef, BTreeMap<String, String>>,
    /// Devices that need not have joined to be named.
    pub(super) awaited: BTreeSet<DeviceRef>,
}

/// A wish that has been checked, and the devices that it speaks of.
pub(super) struct Draft {
    pub(super) held: Option<DeploymentRecord>,
    pub(super) wish: Wish,
    pub(super) devices: Vec<Candidate>,
    pub(super) named: BTreeSet<DeviceRef>,
    /// It is wanted as it was before.
    pub(super) goes_back: bool,
}

/// What a deployment is until it changes.
#[derive(Clone)]
pub(super) struct Before {
    deployment: Deployment,
    /// Its package, while that is in the catalog.
    entry: Option<Arc<Entry>>,
}

impl Before {
    /// The values that a device has, if it was given all that was wanted.
    pub(super) fn values(&self, device: &DeviceRef, labels: &BTreeMap<String, String>) -> Held {
        self.in_force(&self.deployment.answers_for(device, labels))
    }

    fn in_force(&self, answers: &Answers) -> Held {
        match &self.entry {
            Some(entry) => held(&in_force(&entry.package, answers)),
            None => held(answers),
        }
    }
}

/// Whether what is there is what the writer saw; nothing there is revision 0.
pub(super) fn check_seen(
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

pub(super) fn read_rollback(
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

/// When its changes may begin; as before where nothing is said.
fn read_windows(
    want: Option<&[String]>,
    before: Option<&[Weekly]>,
    broken: &mut Vec<Violation>,
) -> Vec<Weekly> {
    let Some(want) = want else { return before.map(<[Weekly]>::to_vec).unwrap_or_default() };
    schedule::read_windows(want).unwrap_or_else(|violations| {
        broken.extend(violations);
        Vec::new()
    })
}

/// Whether a place is another, or below it.
fn is_within(place: &str, other: &str) -> bool {
    place.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn read_profile(package: &Package, want: Option<&str>, broken: &mut Vec<Violation>) -> Option<ProfileId> {
    let want = want.filter(|want| !want.is_empty() && *want != AUTO)?;
    let found = package.profiles.iter().find(|profile| profile.id.as_str() == want);
    if found.is_none() {
        let known: Vec<&str> = package.profiles.iter().map(|profile| profile.id.as_str()).take(20).collect();
        let want: String = want.chars().take(80).collect();
        let message = format!("the package has no profile {want:?}; it has {}", known.join(", "));
        broken.push(Violation::new("/profile", "DM-161", message));
    }
    found.map(|profile| profile.id.clone())
}

fn read_answers(
    package: &Package,
    within: &str,
    want: &BTreeMap<String, Value>,
    broken: &mut Vec<Violation>,
) -> Answers {
    let mut answers = Answers::new();
    for (name, value) in want {
        let place = || join(&format!("{within}/parameters"), name);
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
        let (answer, rule) = match value.as_object() {
            Some(object) => (read_reference(object), "secret"),
            None => (typed(schema, value).map(Answer::Clear), "DM-163"),
        };
        match answer {
            Ok(answer) => {
                answers.insert(parameter, answer);
            }
            Err(message) => broken.push(Violation::new(place(), rule, message)),
        }
    }
    answers
}

/// `{secret: {env: NAME}}`, and the same with `file` or `sealed`. What is wrong is told without repeating it: somebody may have
/// written the secret itself.
fn read_reference(object: &Map<String, Value>) -> Result<Answer, String> {
    let form = "must be a value, or a secret: {secret: {env: MARGRAVE_SECRET_NAME}}, {secret: {file: NAME}} or \
                {secret: {sealed: TEXT}}";
    let secret = object.get("secret").and_then(Value::as_object).filter(|_| object.len() == 1);
    let secret = secret.filter(|secret| secret.len() == 1 && secret.values().all(Value::is_string));
    let known = |key: &String| matches!(key.as_str(), "env" | "file" | "sealed");
    let secret = secret.filter(|secret| secret.keys().all(known)).ok_or_else(|| form.to_owned())?;
    let secret = serde_json::from_value(Value::Object(secret.clone())).map_err(|error| error.to_string())?;
    Ok(Answer::Secret(Referred { secret, seen: None }))
}

/// Notes what is behind each reference, so that another secret is another answer. One that is not there is told at once, with
/// where it was looked for.
fn look_at_secrets(deployment: &mut Deployment, secrets: &Secrets) -> Vec<Violation> {
    let mut broken = Vec::new();
    let mut look = |within: String, answers: &mut Answers| {
        for (parameter, answer) in answers {
            let Answer::Secret(referred) = answer else { continue };
            match secrets.get(parameter, &referred.secret) {
                Ok(secret) => referred.seen = Some(secret.fingerprint().clone()),
                Err(message) => {
                    let place = join(&format!("{within}/parameters"), parameter.as_str());
                    broken.push(Violation::new(place, "secret", message));
                }
            }
        }
    };
    look(String::new(), &mut deployment.answers);
    for (index, other) in deployment.overrides.iter_mut().enumerate() {
        look(format!("/overrides/{index}"), &mut other.answers);
    }
    broken
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

/// Why it is forced, as one line: it stands in a commit's message and in the audit log.
fn read_force(want: Option<&str>, broken: &mut Vec<Violation>) -> Option<String> {
    let reason = want?.trim();
    let wrong = if reason.is_empty() {
        "say in a sentence why devices that do not fit are to have it, or leave this out".to_owned()
    } else if reason.chars().count() > REASON_LENGTH_MAX {
        format!("a reason has at most {REASON_LENGTH_MAX} characters")
    } else if reason.chars().any(char::is_control) {
        "a reason is one line of text".to_owned()
    } else {
        return Some(reason.to_owned());
    };
    broken.push(Violation::new("/force", "force", wrong));
    None
}

/// The answers must do for the profile that is asked for; where each device takes its own, for at least one. So must they
/// with each override.
fn check_answers(
    entry: &Entry,
    deployment: &Deployment,
    previous: Option<&Before>,
    secrets: &Secrets,
) -> Vec<Violation> {
    let before = previous.map(|before| before.in_force(&before.deployment.answers));
    let mut all = broken_answers(entry, deployment, &deployment.answers, before.as_ref(), secrets);
    // What is wrong with the answers for all is no other's fault.
    let of_all: BTreeSet<String> = all.iter().map(|violation| violation.place.clone()).collect();
    for (index, other) in deployment.overrides.iter().enumerate() {
        let answers = with(&deployment.answers, &other.answers);
        // Those that an override spoke of before had its answers. What others had depends on the device; that is asked where
        // it is placed.
        let before = previous.and_then(|before| {
            let same = before.deployment.overrides.iter().find(|earlier| earlier.of == other.of)?;
            Some(before.in_force(&with(&before.deployment.answers, &same.answers)))
        });
        let mut broken = broken_answers(entry, deployment, &answers, before.as_ref(), secrets);
        let own: BTreeSet<String> =
            other.answers.keys().map(|name| join("/parameters", name.as_str())).collect();
        broken.retain(|violation| own.contains(&violation.place) || !of_all.contains(&violation.place));
        for violation in &mut broken {
            violation.place = format!("/overrides/{index}{}", violation.place);
        }
        all.extend(broken);
    }
    all
}

fn with(answers: &Answers, others: &Answers) -> Answers {
    let both = answers.iter().chain(others);
    both.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn broken_answers(
    entry: &Entry,
    deployment: &Deployment,
    answers: &Answers,
    previous: Option<&Held>,
    secrets: &Secrets,
) -> Vec<Violation> {
    let package = &entry.package;
    let mut first = None;
    for profile in package.candidates(deployment.profile.as_ref()) {
        match resolve(package, profile, answers, previous, secrets) {
            Ok(_) => return Vec::new(),
            Err(broken) => first = first.or(Some(broken)),
        }
    }
    first.unwrap_or_default()
}
