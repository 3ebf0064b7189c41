//! What somebody should know of a deployment, and that is no reason to refuse it: its package or an image of it is not in its registry any
//! more as it was pinned, an image never was, a secret lies where others may read it, or an override speaks of devices that do not get it.
//! And what is one: nobody could fetch it. (`pinning.rs` has the other: an image could be pinned and is not.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use margrave_core::deployment::{Deployment, Idle, Override, Targets};
use margrave_core::id::{DeploymentName, DeviceRef, PackageId, PackageVersion, ProfileId};
use margrave_core::image::Image;
use margrave_core::package::ProfileKind;
use margrave_core::parameters::Answer;
use margrave_core::rollout::Strategy;
use margrave_core::violation::Violation;
use margrave_core::watch;
use margrave_oci::reference::Reference;
use margrave_store::{Candidate, PackageRecord};
use margrave_wire::operator::{self, Warning};

use super::catalog::{Entry, all_kept};
use super::draft::{Draft, Overlay};
use super::intent::Change;
use super::origin::pinned_at;
use super::publish::{Difference, Wish};
use super::{Error, Fleet};

/// Of all that a change says; beyond that it is counted.
const WARNINGS_MAX: usize = 50;
/// Devices that one of them names.
const NAMED_MAX: usize = 5;
/// For all registries that are asked again for a change: somebody waits for its answer.
const LOOK_TIME_MAX: Duration = Duration::from_secs(10);

/// Devices that are looked at for whether all are simulated: nobody simulates more by hand, and an answer is waited for.
const SIMULATED_MAX: usize = 50;

/// Registries that are asked at the same time.
const SIDE_BY_SIDE: usize = 8;

/// A deployment that is about to change, as far as devices have to fetch something for it.
pub(super) struct Coming {
    pub(super) name: DeploymentName,
    pub(super) entry: Arc<Entry>,
    pub(super) profile: Option<ProfileId>,
    /// Somebody said why it is to be so all the same, or it goes back.
    pub(super) is_excused: bool,
}

impl Coming {
    pub(super) fn of(draft: &Draft) -> Coming {
        let Wish { deployment, entry, .. } = &draft.wish;
        Coming {
            name: deployment.name.clone(),
            entry: Arc::clone(entry),
            profile: deployment.profile.clone(),
            is_excused: draft.goes_back || deployment.forced.is_some(),
        }
    }
}

/// The first, and how many there are besides.
pub(super) fn named(all: &[String]) -> String {
    let first = all[..all.len().min(NAMED_MAX)].join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// At most so many warnings; of the others how many they are.
pub(super) fn bounded(mut warnings: Vec<Warning>) -> Vec<Warning> {
    let cut = warnings.split_off(warnings.len().min(WARNINGS_MAX));
    if let Some(first) = cut.first() {
        warnings.push(Warning {
            deployment: first.deployment.clone(),
            kind: "more".to_owned(),
            text: format!("and {} more, from this deployment on; look at each by itself", cut.len()),
        });
    }
    warnings
}

/// That all devices get a change at once although batches are to be watched: who says for how long thinks of steps.
pub(super) fn watched_after_all(deployment: &Deployment) -> Option<Warning> {
    let Strategy { canary, batches, soak, .. } = &deployment.strategy;
    (canary.is_none() && batches.is_empty() && !soak.is_zero()).then(|| Warning {
        deployment: deployment.name.to_string(),
        kind: "soakAfterAll".to_owned(),
        text: "this goes to all devices at once, and is watched after that: the strategy has a soak time and neither batches nor \
               a canary; say --batch or --canary to have steps"
            .to_owned(),
    })
}

/// Whether any of its answers is a secret, for whomever it is.
fn has_secrets(deployment: &Deployment) -> bool {
    let overrides = deployment.overrides.iter().flat_map(|held| held.answers.values());
    deployment.answers.values().chain(overrides).any(|answer| matches!(answer, Answer::Secret(_)))
}

/// The images that a deployment may bring to devices and that are not pinned, each with why; `now` knows it better of some.
fn unpinned(entry: &Entry, deployment: &Deployment, now: &BTreeMap<String, String>) -> Vec<String> {
    let profiles = entry.package.profiles.iter().filter(|profile| {
        profile.kind == ProfileKind::Compose && deployment.profile.as_ref().is_none_or(|id| *id == profile.id)
    });
    let mut told = BTreeSet::new();
    for component in profiles.flat_map(|profile| &profile.components) {
        let Some(images) = entry.images(component) else {
            told.insert(format!("the images of component {} (nobody looked at them)", component.name));
            continue;
        };
        let why = |name: &str, image: Option<&Image>| {
            let kept = image?.unpinned.as_ref()?;
            Some(now.get(name).cloned().unwrap_or_else(|| kept.to_string()))
        };
        told.extend(images.filter_map(|(name, image)| Some(format!("{name} ({})", why(name, image)?))));
    }
    told.into_iter().collect()
}

/// Who is asked about a package.
fn hosts(entry: &Entry) -> BTreeSet<String> {
    let components = entry.package.profiles.iter().flat_map(|profile| &profile.components);
    let pinned = components.filter_map(|component| pinned_at(entry, component));
    let all = Reference::parse(&entry.record.reference).into_iter().chain(pinned);
    all.map(|reference| reference.repository.host)
        .filter(|host| !host.is_own_registry())
        .map(|host| host.to_string())
        .collect()
}

/// What registries said of packages.
pub(super) type Origins = BTreeMap<(PackageId, PackageVersion), Vec<watch::Warning>>;

impl Fleet {
    pub(super) async fn known_origins(&self) -> Result<Origins, Error> {
        let origins = self.store.origins().await?.into_iter().filter(|origin| !origin.warnings.is_empty());
        Ok(origins.map(|origin| ((origin.id, origin.version), origin.warnings)).collect())
    }

    /// What a change of a deployment is answered with: its assignments counted, and what there is to know of it.
    pub(super) async fn deployment_changed(
        &self,
        name: &DeploymentName,
    ) -> Result<operator::Deployment, Error> {
        let warnings = match self.wanted_deployment(name).await? {
            Some(held) => {
                let mut warnings = self.warnings(&held.deployment).await?;
                warnings.extend(self.without_steps(&held.deployment).await?);
                warnings.extend(watched_after_all(&held.deployment));
                warnings
            }
            None => Vec::new(),
        };
        Ok(operator::Deployment { warnings, ..self.deployment_counted(name).await? })
    }

    /// That a change goes to all devices at once because the server went back from one that went in steps, to one that did not:
    /// who said once that it goes in steps does not expect that.
    pub(super) async fn without_steps(&self, deployment: &Deployment) -> Result<Option<Warning>, Error> {
        if deployment.strategy != Strategy::default() {
            return Ok(None);
        }
        let failed =
            self.failed_before(deployment).await?.filter(|failed| failed.strategy != deployment.strategy);
        Ok(failed.map(|failed| Warning {
            deployment: deployment.name.to_string(),
            kind: "allAtOnce".to_owned(),
            text: format!(
                "this goes to all devices at once: revision {}, which failed, went in steps, and what the server went back to \
                 had none; say --batch or --strategy again to have steps",
                failed.revision
            ),
        }))
    }

    /// What there is to know of one deployment, as it is.
    pub(super) async fn warnings(&self, deployment: &Deployment) -> Result<Vec<Warning>, Error> {
        let reached = self.reached(deployment).await?;
        let entry = self.entry(&deployment.package, &deployment.version).await?;
        let origins = self.known_origins().await?;
        self.warnings_among(deployment, entry.as_deref(), &reached, &origins).await
    }

    /// The devices that it reaches, where there may be something to say of them.
    async fn reached(&self, deployment: &Deployment) -> Result<Vec<Candidate>, Error> {
        match has_secrets(deployment) && self.git.is_used() {
            true => Ok(self.store.devices_targeted(&deployment.targets).await?),
            false => self.reached_by_overrides(deployment).await,
        }
    }

    /// Of the devices that a deployment reaches as many as say which overrides speak of nobody: those that are named, and one for each
    /// that means some by label. All of them would be a whole fleet.
    async fn reached_by_overrides(&self, deployment: &Deployment) -> Result<Vec<Candidate>, Error> {
        let named = |other: &Override| other.of.devices.clone();
        let named =
            Targets { devices: deployment.overrides.iter().flat_map(named).collect(), ..Targets::default() };
        let mut reached = match named.devices.is_empty() {
            true => Vec::new(),
            false => self.store.devices_targeted(&named).await?,
        };
        reached.retain(|candidate| deployment.targets.matches(&candidate.device, &candidate.labels));
        for Override { of, .. } in &deployment.overrides {
            if !reached.iter().any(|candidate| of.matches(&candidate.device, &candidate.labels)) {
                // Few are named, and a label may be everybody's.
                let (one, other) = match deployment.targets.is_by_name() {
                    true => (&deployment.targets, of),
                    false => (of, &deployment.targets),
                };
                reached.extend(self.store.device_in_both(one, other).await?);
            }
        }
        Ok(reached)
    }

    /// The same, for the devices that it reaches with a package, if that is in the catalog.
    pub(super) async fn warnings_among(
        &self,
        deployment: &Deployment,
        entry: Option<&Entry>,
        reached: &[Candidate],
        origins: &Origins,
    ) -> Result<Vec<Warning>, Error> {
        let warning = |kind: &str, text: String| Warning {
            deployment: deployment.name.to_string(),
            kind: kind.to_owned(),
            text,
        };
        let package = (deployment.package.clone(), deployment.version.clone());
        let told = origins.get(&package).into_iter().flatten();
        let mut warnings: Vec<Warning> =
            told.map(|told| warning(told.kind(), format!("{} {}: {told}", package.0, package.1))).collect();
        let unpinned = match entry {
            Some(entry) => self.unpinned(entry, deployment).await?,
            None => Vec::new(),
        };
        // Nobody fetches an image that only simulated devices run.
        let may_be_fetched =
            !unpinned.is_empty() && !self.store.are_simulated(&deployment.targets, SIMULATED_MAX).await?;
        if may_be_fetched {
            let text = format!(
                "what is not pinned is whatever its name means to each device: {}; name an image by digest to have the same \
                 bytes everywhere",
                named(&unpinned)
            );
            warnings.push(warning("imageUnpinned", text));
        }
        let in_git = |candidate: &&Candidate| self.git.is_kept(&candidate.device.client);
        let in_git: Vec<DeviceRef> =
            reached.iter().filter(in_git).map(|candidate| candidate.device.clone()).collect();
        if has_secrets(deployment) && !in_git.is_empty() {
            let text = format!(
                "its secret answers lie in the clear in the Git repositories of {}, for everybody who may fetch there, and stay in \
                 their history; let these devices fetch without Git, or change the secret once they do",
                self.listed(&in_git)
            );
            warnings.push(warning("secretInGit", text));
        }
        let idle =
            deployment.idle_overrides(reached.iter().map(|candidate| (&candidate.device, &candidate.labels)));
        for Idle { index, devices, is_nobodys } in idle {
            let number = index + 1;
            let known = self.joined(&devices).await?;
            let (others, unknown): (Vec<DeviceRef>, Vec<DeviceRef>) =
                devices.into_iter().partition(|device| known.contains(device));
            if !unknown.is_empty() {
                let text = format!(
                    "override {number} names {}, which has not joined; check the name, or let it join",
                    self.listed(&unknown)
                );
                warnings.push(warning("deviceUnknown", text));
            }
            if !others.is_empty() {
                let text = format!(
                    "override {number} names {}, which is no target of the deployment; add it to the targets, or leave it out",
                    self.listed(&others)
                );
                warnings.push(warning("noTarget", text));
            }
            if is_nobodys && others.is_empty() && unknown.is_empty() {
                let text = format!(
                    "override {number} matches none of the deployment's devices; it counts once one does"
                );
                warnings.push(warning("noDevice", text));
            }
        }
        Ok(warnings)
    }

    /// The images that it may bring to devices and that are not pinned, each with why.
    async fn unpinned(&self, entry: &Entry, deployment: &Deployment) -> Result<Vec<String>, Error> {
        let PackageRecord { id, version, images, .. } = &entry.record;
        let now = match images.unpinned().next() {
            Some(_) => {
                let is_used = !self.store.package_keepers(id, version).await?.is_empty();
                self.why_unpinned(images, is_used).await
            }
            None => BTreeMap::new(),
        };
        Ok(unpinned(entry, deployment, &now))
    }

    async fn joined(&self, devices: &[DeviceRef]) -> Result<BTreeSet<DeviceRef>, Error> {
        if devices.is_empty() {
            return Ok(BTreeSet::new());
        }
        let named = Targets { devices: devices.iter().cloned().collect(), ..Targets::default() };
        let found = self.store.devices_targeted(&named).await?;
        Ok(found.into_iter().map(|candidate| candidate.device).collect())
    }

    fn listed(&self, devices: &[DeviceRef]) -> String {
        let names: Vec<String> = devices.iter().map(|device| self.live.spoken(device)).collect();
        named(&names)
    }

    /// What there is to know of the deployments that a commit changed.
    pub(super) async fn warnings_of_commit(&self, commit: &str) -> Result<Vec<Warning>, Error> {
        let origins = self.known_origins().await?;
        let mut warnings = Vec::new();
        for record in self.store.deployments().await? {
            let deployment = &record.deployment;
            if record.removed || record.commit.as_deref() != Some(commit) {
                continue;
            }
            let reached = self.reached(deployment).await?;
            let entry = self.entry(&deployment.package, &deployment.version).await?;
            warnings.extend(self.warnings_among(deployment, entry.as_deref(), &reached, &origins).await?);
        }
        Ok(bounded(warnings))
    }

    /// Refuses what devices would have to fetch where it is gone: from their registries, each by itself. Who has it already goes
    /// on, and who goes back may have it still.
    pub(super) fn check_fetchable(
        &self,
        comings: &[Coming],
        origins: &Origins,
        differences: impl FnOnce() -> Vec<Difference>,
        place: impl Fn(&DeploymentName) -> String,
    ) -> Result<(), Error> {
        let mut lacking: BTreeMap<DeploymentName, (BTreeSet<String>, usize)> = BTreeMap::new();
        let told = |coming: &Coming| -> &[watch::Warning] {
            let record = &coming.entry.record;
            origins.get(&(record.id.clone(), record.version.clone())).map_or(&[], Vec::as_slice)
        };
        let comings: BTreeMap<&DeploymentName, (&Coming, &[watch::Warning])> = comings
            .iter()
            .map(|coming| (&coming.name, (coming, told(coming))))
            .filter(|(_, (coming, told))| !told.is_empty() && !coming.is_excused)
            .collect();
        if comings.is_empty() {
            return Ok(());
        }
        // Most of the time nobody has to look.
        for difference in differences().into_iter().filter(Difference::is_fetched) {
            let (Some((coming, told)), Some((_, to))) = (comings.get(&difference.name), &difference.to)
            else {
                continue;
            };
            let profile = coming.entry.package.profiles.iter().find(|profile| profile.id == to.1);
            let components = profile.into_iter().flat_map(|profile| &profile.components);
            let missing = components.filter(|component| {
                let at = pinned_at(&coming.entry, component).map(|at| at.to_string()).unwrap_or_default();
                told.iter().any(|told| told.is_of(component.name.as_str(), &at))
            });
            let missing: BTreeSet<String> = missing.map(|component| component.name.to_string()).collect();
            if !missing.is_empty() {
                let (components, devices) = lacking.entry(difference.name.clone()).or_default();
                components.extend(missing);
                *devices += 1;
            }
        }
        let violation = |(name, (components, devices)): (DeploymentName, (BTreeSet<String>, usize))| {
            let record = &comings[&name].0.entry.record;
            let devices = if devices == 1 { "1 device".to_owned() } else { format!("{devices} devices") };
            let message = format!(
                "the registry no longer has {} of {} {}, and {devices} would have to fetch it there; push the same bytes there \
                 again, choose another version, or say under `force` why it is to be wanted all the same",
                components.into_iter().collect::<Vec<_>>().join(", "),
                record.id,
                record.version
            );
            Violation::new(place(&name), "package", message)
        };
        all_kept(lacking.into_iter().map(violation).collect())
    }

    /// Asks registries once more for what they did not have the last time, where somebody wants it now: it may be there again. Tells
    /// what they say, and writes nothing.
    pub(super) async fn ask_again_for(
        &self,
        changes: &[Change],
    ) -> Vec<(PackageRecord, Vec<watch::Warning>)> {
        let answers = Vec::new();
        let Ok(origins) = self.known_origins().await else { return answers };
        if origins.is_empty() {
            return answers;
        }
        // Each package once, behind others of the same registries: where one does not answer, nobody else is asked.
        let mut known = BTreeSet::new();
        let mut queues: BTreeMap<BTreeSet<String>, Vec<PackageRecord>> = BTreeMap::new();
        for change in changes {
            let want: &operator::PutDeployment = match change {
                Change::PutDeployment { want, .. } | Change::PutFile { want, .. } => want,
                _ => continue,
            };
            let Ok(entry) = self.wanted_package(want, &Overlay::default()).await else { continue };
            let key = (entry.record.id.clone(), entry.record.version.clone());
            if origins.contains_key(&key) && known.insert(key) {
                queues.entry(hosts(&entry)).or_default().push(entry.record.clone());
            }
        }
        let heard = Mutex::new(answers);
        let ask = async |queue: Vec<PackageRecord>| {
            for package in queue {
                // Whoever does not answer is taken at its last word.
                let Ok(Ok(warnings)) = self.ask_origin(&package, true).await else {
                    tracing::debug!(package = %package.id, "a registry could not be asked again");
                    break;
                };
                heard.lock().unwrap_or_else(PoisonError::into_inner).push((package, warnings));
            }
        };
        let asking = stream::iter(queues.into_values().map(ask)).buffer_unordered(SIDE_BY_SIDE);
        if tokio::time::timeout(LOOK_TIME_MAX, asking.collect::<()>()).await.is_err() {
            tracing::debug!("registries took too long to be asked again");
        }
        heard.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, and what they say is known from now on.
    pub(super) async fn look_again_for(&self, changes: &[Change]) {
        for (package, warnings) in self.ask_again_for(changes).await {
            if let Err(error) = self.note_origin(&package, warnings).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, package = %package.id, "what a registry said could not be written down");
            }
        }
    }
}
