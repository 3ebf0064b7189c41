//! The fleet as operators see it: records turned into the words of the operator interface.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use margrave_core::constraints::{Capacity, Constraints};
use margrave_core::deployment::{Override, Targets};
use margrave_core::id::{DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion};
use margrave_core::lifecycle::{STATES, State};
use margrave_core::observed::Observed;
use margrave_core::parameters::{Answer, Answers};
use margrave_core::report::{Fault, Report};
use margrave_core::rollback::Rollback;
use margrave_core::schedule::Weekly;
use margrave_core::secret::Referred;
use margrave_store::{
    Apart, AskedRecord, AssignmentCount, AssignmentRecord, Candidate, Condition, Counted, DeploymentRecord,
    DeviceFilter, DeviceRecord, Failure, HeldBack, Scope, Standing, Verdict, WaitingRecord,
};
use margrave_wire::rollout::StrategyBody;
use margrave_wire::schedule::ScheduleBody;
use margrave_wire::{g2, operator};
use serde_json::Value;

use super::asking::{self, shown_hold};
use super::catalog::Entry;
use super::client::Clients;
use super::event::time;
use super::images::{shown_images, shown_unread};
use super::rollout::shown_waiting;
use super::{DeviceQuery, Error, Fleet, SiteCounts, origin, why};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;
/// Devices that are read at once where all that match are meant.
const MATCHING_PAGE: u32 = 1000;
/// Counting stops there where devices have to be looked for: nobody pages so far, and it costs as much as what it counts.
const COUNTED_MAX: u32 = 1000;
/// Asked for as a site: devices that have none. Whoever calls a site so finds it by its label.
pub const WITHOUT_SITE: &str = ":none";

/// Which page of a list of devices is asked for: behind which one it begins, and how many it has.
pub(super) fn devices_page(
    after: Option<&str>,
    limit: Option<usize>,
) -> Result<(Option<DeviceRef>, usize), Error> {
    let limit = limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        let message = format!("is a number from 1 to {PAGE_MAX}, got {limit}");
        return Err(Error::invalid("/limit", "query", message));
    }
    let after = after.filter(|text| !text.is_empty()).map(DeviceRef::parse).transpose();
    Ok((after.map_err(|error| Error::invalid("/after", "query", error.to_string()))?, limit))
}

impl Fleet {
    /// The fleet at a glance.
    pub async fn status(&self) -> Result<operator::FleetStatus, Error> {
        let counts = self.store.fleet_counts(self.silence()).await?;
        let devices = |condition: Condition| counts.devices.get(condition.as_str()).copied().unwrap_or(0);
        let total = counts.devices.values().sum::<u64>() - devices(Condition::Retired);
        let state = |state: &str| (state.to_owned(), counts.assignments.get(state).copied().unwrap_or(0));
        Ok(operator::FleetStatus {
            devices: operator::DeviceCounts {
                total,
                converged: devices(Condition::Converged),
                pending: devices(Condition::Pending),
                failed: devices(Condition::Failed),
                silent: devices(Condition::Silent),
            },
            assignments: STATES.iter().map(|known| known.as_str()).chain(COUNTED_APART).map(state).collect(),
            given_up: counts.given_up,
            packages: counts.packages,
            deployments: counts.deployments,
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            demo: self.options.demo.clone(),
        })
    }

    /// How many devices of each site are in which condition.
    pub async fn sites(&self) -> Result<SiteCounts, Error> {
        Ok(self.store.site_counts(self.silence()).await?)
    }

    /// One page of devices, by name.
    pub async fn devices(&self, query: DeviceQuery) -> Result<operator::Page<operator::Device>, Error> {
        let limit = query.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
        // One more than asked for tells whether there is another page.
        let filter =
            DeviceFilter { limit: u32::try_from(limit + 1).unwrap_or(u32::MAX), ..self.filter(query)? };
        let mut records = self.store.devices(filter).await?;
        let more = records.len() > limit;
        records.truncate(limit);
        let next = records.last().filter(|_| more).map(|last| last.device.to_string());
        Ok(operator::Page { items: self.shown_devices(records).await?, next })
    }

    /// Devices that cannot look at their containers, at most so many, and how many there are.
    pub async fn devices_blind(&self, most: usize) -> Result<(Vec<operator::Device>, u64), Error> {
        let (records, total) = self.store.devices_blind(u32::try_from(most).unwrap_or(u32::MAX)).await?;
        Ok((self.shown_devices(records).await?, total))
    }

    /// The sites that devices have, by name, up to so many.
    pub async fn sites_named(&self, most: usize) -> Result<Vec<String>, Error> {
        Ok(self.store.sites(u32::try_from(most).unwrap_or(u32::MAX)).await?)
    }

    /// How many devices match, whatever page they are on.
    pub async fn devices_counted(&self, query: DeviceQuery) -> Result<Counted, Error> {
        let filter = DeviceFilter { limit: COUNTED_MAX, ..self.filter(query)? };
        Ok(self.store.devices_counted(filter).await?)
    }

    /// The `after` of the page before the one that the query asks for; `None` where that is the first.
    pub async fn devices_before(&self, query: DeviceQuery) -> Result<Option<String>, Error> {
        let limit = query.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
        let filter = DeviceFilter { limit: u32::try_from(limit).unwrap_or(u32::MAX), ..self.filter(query)? };
        Ok(self.store.page_before(filter).await?.map(|device| device.to_string()))
    }

    /// The names of all devices that match, on whatever page, each with its standing.
    ///
    /// # Errors
    /// More than `max` match: that is no change that anybody looks over.
    pub async fn matching(
        &self,
        query: DeviceQuery,
        max: usize,
    ) -> Result<Vec<(DeviceRef, Standing)>, Error> {
        let mut filter = DeviceFilter { after: None, limit: MATCHING_PAGE, ..self.filter(query)? };
        let mut found: Vec<(DeviceRef, Standing)> = Vec::new();
        loop {
            let records = self.store.devices(filter.clone()).await?;
            let last = records.len() < MATCHING_PAGE as usize;
            filter.after = records.last().map(|record| record.device.clone());
            found.extend(records.into_iter().map(|record| (record.device, record.standing)));
            if found.len() > max {
                return Err(Error::conflict(format!(
                    "more than {max} devices match; narrow the search, by site or label for example"
                )));
            }
            if last {
                return Ok(found);
            }
        }
    }

    fn filter(&self, query: DeviceQuery) -> Result<DeviceFilter, Error> {
        let DeviceQuery { search, label, condition, state, site, deployment, capability, after, limit: _ } =
            query;
        let deployment = match deployment.as_deref().filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(
                DeploymentName::parse(text)
                    .map_err(|error| Error::invalid("/deployment", "query", error.to_string()))?,
            ),
        };
        let condition = match condition.as_deref().filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(Condition::parse(text).ok_or_else(|| {
                let known: Vec<&str> = Condition::ALL.iter().map(|condition| condition.as_str()).collect();
                Error::invalid("/condition", "query", format!("a condition is one of {}", known.join(", ")))
            })?),
        };
        let after = match after.as_deref().filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(
                DeviceRef::parse(text)
                    .map_err(|error| Error::invalid("/after", "query", error.to_string()))?,
            ),
        };
        Ok(DeviceFilter {
            search: search.filter(|text| !text.is_empty()),
            label,
            condition,
            state,
            without_site: site.as_deref() == Some(WITHOUT_SITE),
            site: site.filter(|text| !text.is_empty() && text != WITHOUT_SITE),
            deployment,
            capability: capability.filter(|text| !text.is_empty()),
            silence: self.silence(),
            after,
            limit: 0,
        })
    }

    pub async fn device(&self, device: &DeviceRef) -> Result<operator::Device, Error> {
        let record = self.store.device(&self.live.addressed(device)).await?;
        let record = record.ok_or_else(|| Error::not_found(format!("device {device}")))?;
        let conflict = self.schedule_conflict(&record).await?;
        let mut shown = self.shown_devices(vec![record]).await?;
        Ok(operator::Device { schedule_conflict: conflict, ..shown.remove(0) })
    }

    pub(super) async fn shown_devices(
        &self,
        records: Vec<DeviceRecord>,
    ) -> Result<Vec<operator::Device>, Error> {
        let names = records.iter().map(|record| record.device.clone()).collect();
        let mut assignments: HashMap<DeviceRef, Vec<AssignmentRecord>> = HashMap::new();
        for assignment in self.store.assignments(Scope::Devices(names)).await? {
            assignments.entry(assignment.device.clone()).or_default().push(assignment);
        }
        let clients = records.iter().map(|record| record.device.client.clone()).collect();
        let asked = self.store.asked(clients).await?;
        let mut waiting = self.waiting_among(&records).await?;
        let is_alone = records.len() == 1;
        let mut shown = Vec::new();
        for record in records {
            let of_device = assignments.remove(&record.device).unwrap_or_default();
            let waiting = waiting.remove(&record.device).unwrap_or_default();
            let asked = asked.get(&record.device.client);
            let mut device = self.shown_device(self.fresh(record), &of_device, &waiting, asked);
            if is_alone {
                self.tell_what_runs(&of_device, &mut device.assignments).await?;
            }
            shown.push(device);
        }
        Ok(shown)
    }

    /// The record, with the contact that may not be in the store yet.
    pub(super) fn fresh(&self, mut record: DeviceRecord) -> DeviceRecord {
        let client = &record.device.client;
        record.last_contact = record.last_contact.max(self.live.contact(client));
        let told = self.live.told.of(client);
        record.excused = told.is_some_and(|schedule| {
            let heard = record.last_contact.unwrap_or(record.joined_at);
            self.is_excused(&schedule, heard)
        });
        record
    }

    fn shown_device(
        &self,
        record: DeviceRecord,
        assignments: &[AssignmentRecord],
        waiting: &[WaitingRecord],
        asked: Option<&AskedRecord>,
    ) -> operator::Device {
        let condition = record.condition(self.silent_before());
        let reason = (condition != Condition::Converged)
            .then(|| self.device_reason(&record, assignments, waiting))
            .flatten();
        let shown = |assignment: &AssignmentRecord| {
            let waiting = waiting.iter().find(|waiting| waiting.deployment == assignment.deployment);
            self.shown_assignment(&record, assignment, waiting)
        };
        let has = |waiting: &&WaitingRecord| {
            assignments.iter().any(|assignment| assignment.deployment == waiting.deployment)
        };
        let coming = waiting.iter().filter(|waiting| !has(waiting));
        let coming = coming.map(|waiting| self.shown_coming(&record, waiting));
        let capabilities: Option<Value> =
            record.capabilities.as_deref().and_then(|body| serde_json::from_slice(body).ok());
        let asked = asking::shown(&record, capabilities.as_ref(), asked, self.now());
        operator::Device {
            id: self.live.spoken(&record.device),
            client: record.device.client.to_string(),
            form: record.dialect.as_str().to_owned(),
            standing: record.standing.as_str().to_owned(),
            clock_ahead_seconds: assignments
                .iter()
                .filter_map(|assignment| assignment.observed.as_ref())
                .max_by_key(|observed| observed.received_at)
                .and_then(Observed::clock_ahead),
            condition: condition.as_str().to_owned(),
            reason,
            simulated: record.simulated,
            holds: capabilities.as_ref().map(|body| self.holds(body)).unwrap_or_default(),
            cannot_look: why::shown_blind(&record),
            capabilities,
            last_contact: record.last_contact.map(time),
            manifest_version: record.manifest_version,
            certificate_expires: record.certificate_expires.map(time),
            schedule: self.live.told.of(&record.device.client).map(|told| ScheduleBody::from(&*told)),
            schedule_conflict: None,
            asked_hold: asked.hold,
            asked_look: asked.look,
            own_agent: asked.own_agent,
            assignments: assignments.iter().map(shown).chain(coming).collect(),
            labels: record.labels.clone(),
        }
    }

    /// Who holds changes back there, as far as this server was told, and by its own clock.
    fn holds(&self, capabilities: &Value) -> Vec<operator::Hold> {
        let now = self.now();
        let in_force = g2::capabilities::holds(capabilities).into_iter().filter(|hold| hold.in_force(now));
        in_force.map(shown_hold).collect()
    }

    /// One assignment, with the reason why it is not as wanted.
    pub(super) fn shown_assignment(
        &self,
        device: &DeviceRecord,
        record: &AssignmentRecord,
        waiting: Option<&WaitingRecord>,
    ) -> operator::Assignment {
        let outlook = record.outlook();
        let report = record.observed.as_ref().map(|observed| &observed.report);
        let detail = report.and_then(|report| report.detail.as_ref());
        let changed_at = match &record.observed {
            Some(observed) => observed.since.max(record.changed_at),
            None => record.changed_at,
        };
        operator::Assignment {
            id: record.id.to_string(),
            deployment: record.name.to_string(),
            device: self.live.spoken(&record.device),
            package: record.package.to_string(),
            version: record.version.to_string(),
            runs: None,
            state: outlook.state.to_string(),
            current: outlook.current && waiting.is_none(),
            // What it was given is told first where something is the matter with it.
            reason: self
                .assignment_reason(device, record)
                .or_else(|| waiting.map(|waiting| self.waiting_text(waiting))),
            // What went wrong with another revision, and was gone back from, is nothing against this one.
            error: report
                .filter(|report| {
                    outlook.state != State::Installed || report.adopted_version >= record.changed_version
                })
                .and_then(|report| report.fault.as_ref())
                .map(shown_fault),
            components: report.map(shown_components).unwrap_or_default(),
            attempt: detail.map_or(0, |detail| detail.attempt),
            next_try: detail.and_then(|detail| detail.next_try).map(time),
            changed_at: Some(time(changed_at)),
            waiting: waiting.map(shown_waiting),
            leaving: !record.wanted,
        }
    }

    /// What a device waits for that it has in no revision.
    fn shown_coming(&self, device: &DeviceRecord, waiting: &WaitingRecord) -> operator::Assignment {
        operator::Assignment {
            id: Candidate::from(device).assignment_id(waiting.deployment).to_string(),
            deployment: waiting.name.to_string(),
            device: self.live.spoken(&device.device),
            package: waiting.package.to_string(),
            version: waiting.version.to_string(),
            runs: None,
            state: State::Pending.to_string(),
            current: false,
            reason: Some(self.waiting_text(waiting)),
            error: None,
            components: Vec::new(),
            attempt: 0,
            next_try: None,
            changed_at: Some(time(waiting.since)),
            waiting: Some(shown_waiting(waiting)),
            leaving: false,
        }
    }

    pub async fn packages(&self) -> Result<Vec<operator::Package>, Error> {
        let mut users: BTreeMap<(PackageId, PackageVersion), Vec<String>> = BTreeMap::new();
        for record in self.store.deployments().await?.into_iter().filter(|record| !record.removed) {
            let deployment = record.deployment;
            users
                .entry((deployment.package, deployment.version))
                .or_default()
                .push(deployment.name.to_string());
        }
        let warnings: BTreeMap<(PackageId, PackageVersion), Vec<operator::PackageWarning>> = self
            .store
            .origins()
            .await?
            .into_iter()
            .map(|origin| ((origin.id, origin.version), origin.warnings.iter().map(origin::shown).collect()))
            .collect();
        let mut shown = Vec::new();
        for entry in self.entries().await? {
            let key = (entry.record.id.clone(), entry.record.version.clone());
            let deployments = users.get(&key).cloned().unwrap_or_default();
            let warnings = warnings.get(&key).cloned().unwrap_or_default();
            let (keepers, why) = self.keepers(&entry).await?;
            shown.push(operator::Package { warnings, ..shown_package(&entry, deployments, &keepers, &why) });
        }
        Ok(shown)
    }

    /// The deployments because of which images cannot be pinned any more, and why these are not; of packages without such images
    /// nobody asks.
    async fn keepers(&self, entry: &Entry) -> Result<(Vec<String>, BTreeMap<String, String>), Error> {
        let record = &entry.record;
        let can_be_pinned = record.images.unpinned().any(|(_, unpinned)| unpinned.is_passing());
        if !can_be_pinned && entry.unread().is_empty() {
            return Ok(Default::default());
        }
        let keepers = self.store.package_keepers(&record.id, &record.version).await?;
        let why = self.why_unpinned(&record.images, !keepers.is_empty()).await;
        Ok((keepers, why))
    }

    pub async fn package(
        &self,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<operator::Package, Error> {
        let entry = self.entry(id, version).await?;
        let entry = entry.ok_or_else(|| Error::not_found(format!("package {id} {version}")))?;
        let deployments = self.store.deployments().await?;
        let users = deployments.iter().filter(|record| {
            !record.removed && record.deployment.package == *id && record.deployment.version == *version
        });
        let users = users.map(|record| record.deployment.name.to_string()).collect();
        let warnings = self.shown_warnings(id, version).await?;
        let (keepers, why) = self.keepers(&entry).await?;
        Ok(operator::Package { warnings, ..shown_package(&entry, users, &keepers, &why) })
    }

    /// All deployments that are wanted, and those that are still going; their assignments are counted only, so
    /// that the cost follows the deployments and not the fleet.
    pub async fn deployments(&self) -> Result<Vec<operator::Deployment>, Error> {
        let mut counts: HashMap<_, operator::AssignmentCounts> = HashMap::new();
        for count in self.store.assignment_counts(self.silence()).await? {
            add(counts.entry(count.deployment).or_default(), &count);
        }
        let records = self.store.deployments().await?.into_iter();
        let shown = records.map(|record| {
            let counts = counts.remove(&record.deployment.id).unwrap_or_default();
            shown_deployment(&self.live, record, Vec::new(), counts)
        });
        Ok(shown.collect())
    }

    /// One deployment, with its assignments only counted, whatever its size. What it says to devices that do not get it is left out:
    /// for that devices have to be looked at.
    pub async fn deployment_counted(&self, name: &DeploymentName) -> Result<operator::Deployment, Error> {
        let record = self.store.deployment(name).await?;
        let record = record.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
        let counts = self.counts_of(record.deployment.id).await?;
        Ok(shown_deployment(&self.live, record, Vec::new(), counts))
    }

    /// Of what goes there is nothing to say.
    async fn warnings_shown(&self, record: &DeploymentRecord) -> Result<Vec<operator::Warning>, Error> {
        if record.removed { Ok(Vec::new()) } else { self.warnings(&record.deployment).await }
    }

    /// One deployment as far as a page shows it: its assignments counted, and of them `limit`; what is not as wanted comes
    /// first, and of each state there are some. With why it is not as wanted, for which its rollout is looked at only once.
    pub async fn deployment_glimpsed(
        &self,
        name: &DeploymentName,
        limit: u32,
    ) -> Result<(operator::Deployment, operator::Why), Error> {
        let record = self.store.deployment(name).await?;
        let record = record.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
        let id = record.deployment.id;
        let mut assignments = self.store.assignments_behind(id, limit).await?.found;
        let waiting = self.store.waiting_in(id, limit).await?;
        let known: HashSet<DeviceRef> = assignments.iter().map(|found| found.device.clone()).collect();
        let others = waiting.iter().map(|waiting| waiting.device.clone());
        let others = others.filter(|device| !known.contains(device)).collect();
        let others = self.store.assignments(Scope::Devices(others)).await?.into_iter();
        assignments.extend(others.filter(|found| found.deployment == id));
        let shown = assignments.len().max(waiting.len());
        let room = limit.saturating_sub(u32::try_from(shown).unwrap_or(u32::MAX));
        if room > 0 {
            assignments.extend(self.store.assignments_as_wanted(&record.deployment, room).await?);
        }
        let shown = self.shown_assignments(&assignments, waiting).await?;
        let looked = self.rollout_looked(&record).await?;
        let why = self.why_deployment_looked(&record, looked.as_ref()).await?;
        let rollout = self.rollout_shown(&record, looked.as_ref()).await?;
        let counts = self.counts_of(id).await?;
        let warnings = self.warnings_shown(&record).await?;
        let deployment = shown_deployment(&self.live, record, shown, counts);
        Ok((operator::Deployment { rollout, warnings, ..deployment }, why))
    }

    /// What the devices that a deployment failed on say of it, the most first.
    pub async fn failures(&self, name: &DeploymentName) -> Result<Vec<Failure>, Error> {
        match self.store.deployment(name).await? {
            Some(record) => Ok(self.store.failures(record.deployment.id).await?),
            None => Ok(Vec::new()),
        }
    }

    /// One deployment, with each of its assignments.
    pub async fn deployment(&self, name: &DeploymentName) -> Result<operator::Deployment, Error> {
        let record = self.store.deployment(name).await?;
        let record = record.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
        let assignments = self.store.assignments(Scope::Deployment(record.deployment.id)).await?;
        let waiting = self.store.waiting_in(record.deployment.id, u32::MAX).await?;
        let counts = self.counts_of(record.deployment.id).await?;
        let rollout = self.rollout_of(&record).await?;
        let shown = self.shown_assignments(&assignments, waiting).await?;
        let warnings = self.warnings_shown(&record).await?;
        Ok(operator::Deployment { rollout, warnings, ..shown_deployment(&self.live, record, shown, counts) })
    }

    /// One deployment, with the first of its assignments.
    pub async fn deployment_begun(&self, name: &DeploymentName) -> Result<operator::Deployment, Error> {
        let record = self.store.deployment(name).await?;
        let record = record.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
        let operator::Page { items, next } = self.assignments_of(name, None, None, None).await?;
        let counts = self.counts_of(record.deployment.id).await?;
        let rollout = self.rollout_of(&record).await?;
        let warnings = self.warnings_shown(&record).await?;
        Ok(operator::Deployment {
            rollout,
            next,
            warnings,
            ..shown_deployment(&self.live, record, items, counts)
        })
    }

    /// Devices that a deployment is on, by name, a page at a time; only those in a state, if one is given.
    pub async fn assignments_of(
        &self,
        name: &DeploymentName,
        state: Option<State>,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<operator::Page<operator::Assignment>, Error> {
        let record = self.store.deployment(name).await?;
        let record = record.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
        let (after, limit) = devices_page(after, limit)?;
        // One more than asked for tells whether there is another page.
        let more = u32::try_from(limit + 1).unwrap_or(u32::MAX);
        let mut found = self.store.assignments_after(record.deployment.id, state, after, more).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|last| last.device.to_string());
        let mut waiting =
            self.store.waiting_of(found.iter().map(|found| found.device.clone()).collect()).await?;
        waiting.retain(|waiting| waiting.deployment == record.deployment.id);
        Ok(operator::Page { items: self.shown_assignments(&found, waiting).await?, next })
    }

    /// The assignments of one deployment, and those of `waiting` that have none yet.
    async fn shown_assignments(
        &self,
        assignments: &[AssignmentRecord],
        waiting: Vec<WaitingRecord>,
    ) -> Result<Vec<operator::Assignment>, Error> {
        let mut waiting: BTreeMap<DeviceRef, WaitingRecord> =
            waiting.into_iter().map(|waiting| (waiting.device.clone(), waiting)).collect();
        let names = assignments.iter().map(|assignment| assignment.device.clone());
        let names: BTreeSet<DeviceRef> = names.chain(waiting.keys().cloned()).collect();
        let names = names.into_iter().collect();
        let devices = self.store.devices_named(names).await?;
        let devices: HashMap<DeviceRef, DeviceRecord> =
            devices.into_iter().map(|device| (device.device.clone(), self.fresh(device))).collect();
        let shown = assignments.iter().filter_map(|assignment| {
            let waiting = waiting.remove(&assignment.device);
            let device = devices.get(&assignment.device)?;
            Some(self.shown_assignment(device, assignment, waiting.as_ref()))
        });
        let mut shown: Vec<operator::Assignment> = shown.collect();
        let coming = waiting.values().filter_map(|waiting| {
            let device = devices.get(&waiting.device)?;
            Some(self.shown_coming(device, waiting))
        });
        shown.extend(coming);
        // A document is read for each; whoever asks for a whole fleet gets along without.
        if assignments.len() <= PAGE_DEFAULT {
            self.tell_what_runs(assignments, &mut shown).await?;
        }
        Ok(shown)
    }

    pub(super) async fn counts_of(&self, id: DeploymentId) -> Result<operator::AssignmentCounts, Error> {
        let mut counts = operator::AssignmentCounts::default();
        for count in self.store.assignment_counts_of(id, self.silence()).await? {
            add(&mut counts, &count);
        }
        Ok(counts)
    }
}

/// Among the states, as `AssignmentCount::word` says them.
const COUNTED_APART: [&str; 4] = ["WAITING", "LEFT", "NEVER", "NOTYET"];

fn add(counts: &mut operator::AssignmentCounts, found: &AssignmentCount) {
    let AssignmentCount { deployment: _, state, verdict, held_back, apart, count } = *found;
    counts.total += count;
    *counts.states.entry(found.word().to_owned()).or_default() += count;
    match (apart, held_back.filter(|_| verdict != Verdict::Failed)) {
        (Some(Apart::Never), _) => counts.never += count,
        (Some(Apart::NotYet), _) => counts.not_yet += count,
        (None, Some(HeldBack::Waiting)) => counts.waiting += count,
        (None, Some(HeldBack::LeftBehind)) => counts.left_behind += count,
        (None, None) if (state, verdict) == (State::Installed, Verdict::Failed) => counts.went_back += count,
        (None, None) => {}
    }
    *match (verdict, held_back) {
        (Verdict::Failed, _) => &mut counts.failed,
        (Verdict::Pending, _) | (Verdict::Converged, Some(_)) => &mut counts.pending,
        (Verdict::Converged, None) => &mut counts.converged,
    } += count;
}

fn shown_deployment(
    names: &Clients,
    record: DeploymentRecord,
    assignments: Vec<operator::Assignment>,
    counts: operator::AssignmentCounts,
) -> operator::Deployment {
    let DeploymentRecord { deployment, changed_at, changed_by, misfits, removed, commit } = record;
    // What is removed is meant for nobody any more; who still has it is in the assignments.
    let targets = if removed { Default::default() } else { deployment.targets };
    let misfits = misfits.into_iter().map(|misfit| operator::Misfit {
        device: names.spoken(&misfit.device),
        reasons: misfit.reasons,
        temporary: misfit.temporary,
    });
    operator::Deployment {
        id: deployment.id.to_string(),
        name: deployment.name.to_string(),
        package: deployment.package.to_string(),
        version: deployment.version.to_string(),
        profile: deployment.profile.map(|profile| profile.to_string()),
        parameters: shown_answers(deployment.answers),
        overrides: shown_overrides(names, deployment.overrides),
        targets: shown_targets(names, targets),
        force: deployment.forced,
        rollback: shown_rollback(deployment.rollback),
        strategy: StrategyBody::from(&deployment.strategy),
        windows: shown_windows(&deployment.windows),
        rollout: None,
        revision: deployment.revision,
        commit,
        removing: removed,
        changed_at: time(changed_at),
        changed_by,
        assignments,
        next: None,
        counts,
        misfits: misfits.collect(),
        warnings: Vec::new(),
    }
}

pub(super) fn shown_answers(answers: Answers) -> BTreeMap<String, Value> {
    let value = |answer| {
        let answer = match answer {
            // When it was last looked at is nobody's business outside.
            Answer::Secret(Referred { secret, .. }) => Answer::Secret(Referred { secret, seen: None }),
            clear => clear,
        };
        serde_json::to_value(answer).unwrap_or_default()
    };
    answers.into_iter().map(|(name, answer)| (name.to_string(), value(answer))).collect()
}

pub(super) fn shown_rollback(rollback: Rollback) -> operator::Rollback {
    operator::Rollback {
        when: Some(rollback.when.as_str().to_owned()),
        attempts: rollback.attempts_said(),
        health_grace_seconds: rollback.health_grace.map(|grace| grace.as_secs()),
    }
}

pub(super) fn shown_windows(windows: &[Weekly]) -> Vec<String> {
    windows.iter().map(ToString::to_string).collect()
}

pub(super) fn shown_targets(names: &Clients, targets: Targets) -> operator::Targets {
    let Targets { devices, labels, select, sites } = targets;
    operator::Targets {
        devices: devices.iter().map(|device| names.spoken(device)).collect(),
        labels,
        select: (!select.is_empty()).then(|| select.to_string()),
        sites: sites.into_iter().collect(),
    }
}

pub(super) fn shown_overrides(names: &Clients, overrides: Vec<Override>) -> Vec<operator::Override> {
    let shown = |Override { of, answers }| operator::Override {
        targets: shown_targets(names, of),
        parameters: shown_answers(answers),
    };
    overrides.into_iter().map(shown).collect()
}

pub(super) fn shown_fault(fault: &Fault) -> operator::ErrorDetail {
    operator::ErrorDetail {
        code: fault.code.clone(),
        source: fault.source.clone(),
        message: fault.message.clone(),
    }
}

fn shown_components(report: &Report) -> Vec<operator::ComponentStatus> {
    let components = report.components.iter().map(|component| operator::ComponentStatus {
        name: component.name.clone(),
        state: component.state.as_str().to_owned(),
        error: component.fault.as_ref().map(shown_fault),
        restarts: Some(component.restarts).filter(|restarts| *restarts > 0),
    });
    components.collect()
}

/// What a device must have, a phrase each.
fn needs(constraints: &Constraints) -> Vec<String> {
    let Constraints { capacity, rules, .. } = constraints;
    let mut needs = Vec::new();
    if let Some(Capacity { cores, architectures, memory_bytes, storage_bytes }) = capacity {
        needs.extend(cores.map(|cores| format!("{cores} {}", if cores == 1.0 { "core" } else { "cores" })));
        if !architectures.is_empty() {
            needs.push(architectures.join(" or "));
        }
        needs.extend(memory_bytes.map(|bytes| format!("{} memory", amount(bytes))));
        needs.extend(storage_bytes.map(|bytes| format!("{} storage", amount(bytes))));
    }
    match rules.len() {
        0 => {}
        1 => needs.push("certain properties".to_owned()),
        more => needs.push(format!("one of {more} sets of properties")),
    }
    needs
}

/// Bytes in the largest unit that they fill.
fn amount(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >= 1 << shift);
    let Some((unit, shift)) = unit else { return format!("{bytes} bytes") };
    let number = format!("{:.1}", bytes as f64 / (1u64 << shift) as f64);
    format!("{} {unit}", number.strip_suffix(".0").unwrap_or(&number))
}

fn shown_package(
    entry: &Entry,
    deployments: Vec<String>,
    keepers: &[String],
    why: &BTreeMap<String, String>,
) -> operator::Package {
    let Entry { record, package, .. } = entry;
    let profiles = package.profiles.iter().map(|profile| operator::PackageProfile {
        id: profile.id.to_string(),
        kind: profile.kind.as_str().to_owned(),
        description: profile.description.clone(),
        needs: profile.constraints.as_ref().map(needs).unwrap_or_default(),
        components: profile
            .components
            .iter()
            .map(|component| operator::PackageComponent {
                name: component.name.to_string(),
                repository: component.repository.clone(),
                revision: component.revision.as_str().to_owned(),
                digest: entry.pin(component).map(|digest| digest.to_string()),
            })
            .collect(),
    });
    let sections = package.sections.iter().map(|section| operator::PackageSection {
        name: section.name.clone(),
        settings: section
            .settings
            .iter()
            .filter_map(|setting| {
                let schema = package.schemas.get(&setting.schema)?;
                let default = package.parameters.get(&setting.parameter)?.default.as_ref();
                Some(operator::PackageSetting {
                    parameter: setting.parameter.to_string(),
                    name: setting.name.clone(),
                    description: setting.description.clone(),
                    data_type: schema.data_type.as_str().to_owned(),
                    required: !schema.allow_empty,
                    immutable: setting.immutable,
                    default: default.and_then(|value| serde_json::to_value(value).ok()),
                    options: schema.options.clone().unwrap_or_default(),
                    multiselect: schema.multiselect,
                })
            })
            .collect(),
    });
    operator::Package {
        id: record.id.to_string(),
        version: record.version.to_string(),
        name: package.name.clone(),
        tagline: package.catalog.tagline.clone(),
        description: package.description.clone(),
        organization: package.catalog.organizations.first().map(|org| org.name.clone()).unwrap_or_default(),
        icon: package.catalog.icon.clone(),
        reference: record.reference.clone(),
        added_at: time(record.added_at),
        added_by: record.added_by.clone(),
        profiles: profiles.collect(),
        sections: sections.collect(),
        images: shown_images(&record.images, why, keepers),
        images_unknown: shown_unread(entry, keepers),
        deployments,
        warnings: Vec::new(),
    }
}
