//! What a change would do to the fleet as it is, without doing it: the same checks and decisions as for a real one, and then
//! nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::deployment::{SITE, Targets};
use margrave_core::digest::Digest;
use margrave_core::id::{DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion, ProfileId};
use margrave_core::image::Unsized;
use margrave_core::package::{Profile, ProfileKind};
use margrave_core::rollout::{Batch, Member};
use margrave_oci::reference::Reference;
use margrave_store::{Candidate, MisfitRecord, RolloutChange};
use margrave_wire::intent::{
    Fetch, Plan, Planned, PlannedBatch, PlannedForce, PlannedMisfit, PlannedRollout, PlannedState,
};
use margrave_wire::operator;
use margrave_wire::resource::Place;
use margrave_wire::rollout::{StrategyBody, after};

use super::catalog::{Entry, size_of};
use super::desired::Fetching;
use super::draft::Draft;
use super::intent::{Change, Refusals, Stopped};
use super::origin::pinned_at;
use super::prospect::Prospect;
use super::publish::{Decision, Difference, Paced, Wish};
use super::rollout::is_resumable;
use super::warning::{Coming, Origins, bounded, watched_after_all};
use super::{Actor, Error, Fleet};

/// Batches of a rollout that a plan lists, and devices that it names of each.
const PLANNED_BATCHES_MAX: usize = 200;
const PLANNED_NAMES_MAX: usize = 10;

/// Where a device is, and what it runs on.
#[derive(Default)]
struct Whereabouts {
    site: Option<String>,
    processor: Option<String>,
}

/// As the device reported it.
fn processor(candidate: &Candidate) -> Option<String> {
    let capabilities = candidate.dialect.capabilities(candidate.capabilities.as_ref()?).ok()?;
    capabilities.hosting?.cpus.into_iter().find_map(|cpu| cpu.architecture)
}

fn found<'a>(
    packages: &'a Packages,
    package: &PackageId,
    version: &PackageVersion,
    profile: &ProfileId,
) -> Option<(&'a Entry, &'a Profile)> {
    let entry = packages.get(&(package.clone(), version.clone()))?;
    Some((entry, entry.package.profiles.iter().find(|found| found.id == *profile)?))
}

/// What the devices of one site would fetch.
#[derive(Default)]
struct Load {
    devices: BTreeSet<DeviceRef>,
    bytes: u64,
    unknown: BTreeSet<String>,
    unknown_images: BTreeSet<String>,
}

impl Load {
    /// Adds what an engine fetches for the images of one profile, but for what it has by the one before.
    fn add_images(
        &mut self,
        (entry, profile): (&Entry, &Profile),
        before: Option<(&Entry, &Profile)>,
        processor: Option<&str>,
    ) {
        let mut here: BTreeSet<Digest> = BTreeSet::new();
        if let Some((entry, profile)) = before {
            let images = profile.components.iter().filter_map(|component| entry.images(component)).flatten();
            let parts = images.filter_map(|(_, image)| image?.parts_for(processor).ok()).flatten();
            here.extend(parts.map(|part| part.digest));
        }
        for component in profile.components.iter().filter(|_| profile.kind == ProfileKind::Compose) {
            let Some(images) = entry.images(component) else {
                self.unknown_images.insert(format!("those of component {}", component.name));
                continue;
            };
            for (name, image) in images {
                match image.map_or(Err(Unsized::Unknown), |image| image.parts_for(processor)) {
                    Ok(parts) => {
                        let new = parts.iter().filter(|part| here.insert(part.digest));
                        let new = new.fold(0u64, |sum, part| sum.saturating_add(part.size));
                        self.bytes = self.bytes.saturating_add(new);
                    }
                    Err(Unsized::Unknown) => drop(self.unknown_images.insert(name.to_owned())),
                    Err(Unsized::Unfit) => {
                        let processor = processor.unwrap_or_default();
                        self.unknown_images.insert(format!("{name} (not made for {processor})"));
                    }
                }
            }
        }
    }

    fn shown(self, site: Option<String>) -> Fetch {
        let Load { devices, bytes, unknown, unknown_images } = self;
        Fetch {
            site,
            devices: devices.len() as u64,
            bytes,
            unknown: unknown.into_iter().collect(),
            unknown_images: unknown_images.into_iter().collect(),
        }
    }
}

type Packages = BTreeMap<(PackageId, PackageVersion), std::sync::Arc<Entry>>;

impl Fleet {
    /// What putting a deployment would do, with everything checked as if it were put.
    pub async fn rehearse_deployment(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        want: operator::PutDeployment,
    ) -> Result<Plan, Error> {
        self.foreseen(actor, name, want, Fetching::Allowed).await
    }

    /// The same, and no registry is asked for it: what it says of a wish that is wrong in any case comes at once.
    pub async fn check_deployment(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        want: operator::PutDeployment,
    ) -> Result<Plan, Error> {
        self.foreseen(actor, name, want, Fetching::Refused).await
    }

    async fn foreseen(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        want: operator::PutDeployment,
        fetching: Fetching,
    ) -> Result<Plan, Error> {
        let change = Change::PutDeployment { name: name.clone(), want, id: None };
        let refused = |refusals: Refusals| {
            let first = refusals.into_iter().next().map(|(_, error)| error);
            first.unwrap_or_else(|| Error::conflict("the change would be refused"))
        };
        self.rehearse(actor, &[change], fetching).await.map_err(refused)
    }

    /// Only who reads may be beside it: it is made from one picture. What registries have again counts, and is not written down; for
    /// somebody who may only look nobody is asked.
    pub(super) async fn rehearse(
        &self,
        actor: &Actor,
        changes: &[Change],
        fetching: Fetching,
    ) -> Result<Plan, Refusals> {
        let (answers, pins) = match fetching {
            Fetching::Allowed => {
                (Box::pin(self.ask_again_for(changes)).await, Box::pin(self.pins_for(changes)).await)
            }
            Fetching::Refused => (Vec::new(), Vec::new()),
        };
        let _deciding = self.deciding.write().await;
        let prospect = self.prospect(actor, changes, &pins).await?;
        let by_file = changes.iter().any(|change| matches!(change, Change::PutFile { .. }));
        let whole = |error: Error| vec![(usize::MAX, error)];
        let mut origins = self.known_origins().await.map_err(whole)?;
        for (package, warnings) in answers {
            origins.insert((package.id, package.version), warnings);
        }
        Box::pin(self.foresee(prospect, changes, origins, by_file, fetching)).await.map_err(whole)
    }

    async fn foresee(
        &self,
        prospect: Prospect,
        changes: &[Change],
        origins: Origins,
        by_file: bool,
        fetching: Fetching,
    ) -> Result<Plan, Error> {
        let Prospect { wanted, removed, overlay, .. } = prospect;
        let mut names: BTreeMap<DeploymentId, String> = BTreeMap::new();
        let mut packages = Packages::new();
        let mut named: BTreeSet<(DeploymentId, DeviceRef)> = BTreeSet::new();
        for drafted in &wanted {
            let deployment = &drafted.wish.deployment;
            names.insert(deployment.id, deployment.name.to_string());
            let key = (deployment.package.clone(), deployment.version.clone());
            packages.insert(key, std::sync::Arc::clone(&drafted.wish.entry));
            named.extend(drafted.named.iter().map(|device| (deployment.id, device.clone())));
        }
        let mut plan = Plan::default();
        for drafted in &wanted {
            let Wish { deployment, entry, .. } = &drafted.wish;
            let mut warnings =
                self.warnings_among(deployment, Some(entry), &drafted.devices, &origins).await?;
            warnings.extend(self.without_steps(deployment).await?);
            warnings.extend(watched_after_all(deployment));
            plan.warnings.extend(warnings);
        }
        plan.warnings = bounded(plan.warnings);
        // Deployments that say nothing new reach others, too: where labels change, and where there is more room.
        let mut wishes = self.wishes().await?;
        wishes.retain(|wish| {
            !names.contains_key(&wish.deployment.id) && !removed.contains(&wish.deployment.id)
        });
        for wish in &wishes {
            let deployment = &wish.deployment;
            names.insert(deployment.id, deployment.name.to_string());
            let key = (deployment.package.clone(), deployment.version.clone());
            packages.insert(key, std::sync::Arc::clone(&wish.entry));
        }
        wishes.extend(wanted.iter().map(|drafted| drafted.wish.clone()));
        // In the order in which they are settled: who comes first has the room.
        wishes.sort_by(|a, b| a.deployment.name.cmp(&b.deployment.name));
        let (wanted, stopped) = self.stopped_among(wanted, changes).await?;
        let comings: Vec<Coming> = wanted.iter().map(Coming::of).collect();
        let decided: BTreeSet<DeploymentId> =
            wanted.iter().map(|drafted| drafted.wish.deployment.id).chain(removed.clone()).collect();
        let leaving = self.leaving(&overlay.labels, &decided).await?;
        let wanted = wanted.into_iter().map(|drafted| (drafted.wish, drafted.devices)).collect();
        let mut decision = Box::pin(self.decide(wanted, &removed, leaving)).await?;
        let mut once_resumed = Vec::new();
        for stopped in stopped {
            once_resumed.extend(Box::pin(self.foresee_stopped(stopped, &mut decision)).await?);
        }
        let settling = Box::pin(self.foresee_settling(&decision, &decided, &wishes, &overlay.labels));
        let (settled, looked_at) = settling.await?;
        let Decision { touched, misfits, unfit, forced, paced, later, .. } = decision;
        let place = |name: &DeploymentName| match by_file {
            true => format!("{}#/version", Place::Deployment(name.clone())),
            false => "/version".to_owned(),
        };
        // As when it is done: what settles by itself afterwards is refused to nobody.
        let asked =
            || touched.iter().flat_map(|touched| touched.differences()).chain(later.clone()).collect();
        self.check_fetchable(&comings, &origins, asked, place)?;
        // Where nobody may be asked, what they would have said is not known; it is warned of.
        if matches!(fetching, Fetching::Allowed) {
            self.check_pinned(&comings, place).await?;
        }
        let mut differences: BTreeMap<(DeviceRef, DeploymentName), Difference> = BTreeMap::new();
        let first = touched.iter().chain(&settled.touched).flat_map(|touched| touched.differences());
        for next in first.chain(later).chain(once_resumed) {
            let key = (next.device.clone(), next.name.clone());
            let next = match differences.remove(&key) {
                Some(before) => before.then(next),
                None => next,
            };
            if !next.is_nothing() {
                differences.insert(key, next);
            }
        }
        let differences: Vec<Difference> = differences.into_values().collect();
        let looked_at: BTreeSet<DeviceRef> = looked_at.into_iter().collect();
        // What is named and does not fit is refused as it is. Of others it counts what is in the end.
        let is_refused = |misfit: &MisfitRecord| {
            let key = (misfit.deployment, misfit.device.clone());
            unfit.contains(&key) && named.contains(&key)
        };
        let refused: BTreeSet<(DeploymentId, DeviceRef)> = misfits
            .iter()
            .filter(|misfit| is_refused(misfit))
            .map(|misfit| (misfit.deployment, misfit.device.clone()))
            .collect();
        let stays = |misfit: &MisfitRecord| is_refused(misfit) || !looked_at.contains(&misfit.device);
        let in_the_end = |misfit: &MisfitRecord| {
            let key = (misfit.deployment, misfit.device.clone());
            // Where nobody is labelled, what did not fit before and does not now is no news.
            let is_news = overlay.labels.contains_key(&misfit.device) || decided.contains(&misfit.deployment);
            is_news && !misfit.reasons.is_empty() && !refused.contains(&key)
        };
        let misfits = misfits.into_iter().filter(stays).chain(settled.misfits.into_iter().filter(in_the_end));
        for misfit in misfits {
            let refused = refused.contains(&(misfit.deployment, misfit.device.clone()));
            plan.misfits.push(PlannedMisfit {
                deployment: names.get(&misfit.deployment).cloned().unwrap_or_default(),
                device: self.live.spoken(&misfit.device),
                reasons: misfit.reasons,
                temporary: misfit.temporary,
                refused,
            });
        }
        plan.forced = forced
            .into_iter()
            .map(|misfit| PlannedForce {
                deployment: names.get(&misfit.deployment).cloned().unwrap_or_default(),
                device: self.live.spoken(&misfit.device),
                despite: misfit.reasons,
            })
            .collect();
        let meant = Targets {
            devices: differences.iter().map(|difference| difference.device.clone()).collect(),
            ..Targets::default()
        };
        let mut whereabouts: BTreeMap<DeviceRef, Whereabouts> = BTreeMap::new();
        if !meant.devices.is_empty() {
            for candidate in self.store.devices_targeted(&meant).await? {
                let labels = overlay.labels.get(&candidate.device).unwrap_or(&candidate.labels);
                let (site, processor) = (labels.get(SITE).cloned(), processor(&candidate));
                whereabouts.insert(candidate.device.clone(), Whereabouts { site, processor });
            }
        }
        let site = |device: &DeviceRef| whereabouts.get(device)?.site.clone();
        let mut batches: BTreeMap<(&DeploymentName, &DeviceRef), u32> = BTreeMap::new();
        for rollout in &paced {
            let size = rollout.progress.size;
            let members = rollout.progress.members.iter();
            let batch = |member: &Member| rollout.strategy.batch_of(member.place, size) + 1;
            batches.extend(members.map(|member| ((&rollout.name, &member.device), batch(member))));
        }
        plan.rollouts = paced.iter().map(|rollout| self.planned_rollout(rollout)).collect();
        plan.fetches = self.fetches(&differences, packages, &whereabouts).await?;
        plan.changes = differences
            .into_iter()
            .map(|difference| {
                let state = |(version, profile, document): (PackageVersion, ProfileId, _)| PlannedState {
                    version: version.to_string(),
                    profile: profile.to_string(),
                    document: Digest::to_string(&document),
                };
                Planned {
                    batch: batches.get(&(&difference.name, &difference.device)).copied(),
                    site: site(&difference.device),
                    device: self.live.spoken(&difference.device),
                    deployment: difference.name.to_string(),
                    from: difference.from.map(|(_, from)| state(from)),
                    to: difference.to.map(|(_, to)| state(to)),
                }
            })
            .collect();
        Ok(plan)
    }

    /// Adds a rollout that goes on being stopped to what is decided; says what changes once it is resumed.
    async fn foresee_stopped(
        &self,
        Stopped { drafted, rollout }: Stopped,
        decision: &mut Decision,
    ) -> Result<Vec<Difference>, Error> {
        let Draft { wish, devices, .. } = drafted;
        let carried = self.carry_over(rollout.clone(), &wish.deployment, &devices).await?;
        if let RolloutChange::CarryOver { members, .. } = &carried {
            decision.paced.push(self.paced_once_resumed(&rollout, &wish.deployment, members).await?);
        }
        decision.rollouts.push(carried);
        if !is_resumable(&rollout) {
            return Ok(Vec::new());
        }
        let Decision { touched, later, .. } = self.decide(vec![(wish, devices)], &[], Vec::new()).await?;
        Ok(touched.iter().flat_map(|touched| touched.differences()).chain(later).collect())
    }

    /// The batches of a rollout that would begin, in their order.
    fn planned_rollout(&self, rollout: &Paced) -> PlannedRollout {
        let Paced { name, strategy, progress, batches, released, stopped } = rollout;
        let mut members: BTreeMap<u32, Vec<&Member>> = BTreeMap::new();
        for member in &progress.members {
            members.entry(strategy.batch_of(member.place, progress.size)).or_default().push(member);
        }
        let planned = |batch: &Batch| {
            let mut inside = members.get(&batch.number).cloned().unwrap_or_default();
            inside.sort_by_key(|member| member.place);
            let first = inside.iter().take(PLANNED_NAMES_MAX).map(|member| self.live.spoken(&member.device));
            let now = inside.iter().filter(|member| released.contains(&member.device)).count();
            PlannedBatch {
                number: batch.number + 1,
                devices: batch.total(),
                now: u32::try_from(now).unwrap_or(u32::MAX),
                not_yet: batch.not_yet,
                first: first.collect(),
                after: after(strategy, batch.number),
            }
        };
        PlannedRollout {
            deployment: name.to_string(),
            devices: progress.size,
            batches_total: batches.last().map_or(0, |last| last.number + 1),
            batches: batches.iter().take(PLANNED_BATCHES_MAX).map(planned).collect(),
            strategy: StrategyBody::from(strategy),
            stopped: stopped.clone(),
        }
    }

    /// What devices that get another version would fetch.
    async fn fetches(
        &self,
        differences: &[Difference],
        mut packages: Packages,
        whereabouts: &BTreeMap<DeviceRef, Whereabouts>,
    ) -> Result<Vec<Fetch>, Error> {
        let mut sizes: BTreeMap<String, Option<u64>> = BTreeMap::new();
        let mut fetches: BTreeMap<Option<String>, Load> = BTreeMap::new();
        let unknown = Whereabouts::default();
        for difference in differences.iter().filter(|difference| difference.is_fetched()) {
            let Some((package, (version, profile, _))) = &difference.to else { continue };
            if let Some((package, (version, _, _))) = &difference.from {
                let key = (package.clone(), version.clone());
                // What it has by a package that is not there any more is not known.
                if !packages.contains_key(&key)
                    && let Some(entry) = self.entry(package, version).await?
                {
                    packages.insert(key, entry);
                }
            }
            let Some((entry, profile)) = found(&packages, package, version, profile) else { continue };
            let device = whereabouts.get(&difference.device).unwrap_or(&unknown);
            let load = fetches.entry(device.site.clone()).or_default();
            load.devices.insert(difference.device.clone());
            for component in &profile.components {
                let what = format!("{}:{}", component.repository, component.revision.as_str());
                let size = match (entry.size(component), pinned_at(entry, component)) {
                    (Some(size), _) => Some(size),
                    (None, None) => None,
                    (None, Some(pinned)) => match sizes.get(&pinned.to_string()) {
                        Some(size) => *size,
                        None => {
                            let size = self.size_in_own_registry(&pinned).await;
                            sizes.insert(pinned.to_string(), size);
                            size
                        }
                    },
                };
                match size {
                    Some(size) => load.bytes = load.bytes.saturating_add(size),
                    None => drop(load.unknown.insert(what)),
                }
            }
            let before = difference
                .from
                .as_ref()
                .and_then(|(package, (version, profile, _))| found(&packages, package, version, profile));
            load.add_images((entry, profile), before, device.processor.as_deref());
        }
        Ok(fetches.into_iter().map(|(site, load)| load.shown(site)).collect())
    }

    /// Of a component that was pinned before sizes were kept. What lies elsewhere is not asked for.
    async fn size_in_own_registry(&self, pinned: &Reference) -> Option<u64> {
        let repository = Some(&pinned.repository).filter(|repository| repository.host.is_own_registry())?;
        let found = self.registry.manifest(&repository.name, &pinned.version).await;
        size_of(&found.ok().flatten()?.bytes)
    }
}
