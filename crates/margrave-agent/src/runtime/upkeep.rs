//! Looking after what is there: how components are, which jobs are done, and what is not needed any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use margrave_core::device::Observation;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};
use margrave_core::report::Failure;
use tokio::time::Instant;

use super::compose::{ComposeRuntime, disk};
use super::container::Container;
use super::engine::Engine;
use super::health;
use super::images::{FORMER_KEPT_FOR, ImagePolicy, SWEEP_EVERY};
use super::model::LABEL_AGENT;
use super::pins;
use super::project::{Fetched, ProjectDirectory, Record, Stage};

/// More than a person reads.
const REMARKS_MAX: usize = 100;

impl ComposeRuntime {
    /// Everything of ours that is there.
    pub(super) async fn look(&self) -> Result<Vec<Observation>, Failure> {
        let engine = self.engine().await?;
        let directories = ProjectDirectory::all(&self.projects(), &self.written);
        let directories =
            directories.map_err(|error| disk("The components' directories could not be read", error))?;
        // One without a record was fetched and never started.
        let recorded: Vec<_> =
            directories.into_iter().filter_map(|directory| Some((directory.record()?, directory))).collect();
        let projects = recorded.iter().map(|(_, directory)| directory.name().to_owned()).collect();
        let label = (LABEL_AGENT, self.settings.agent.as_str());
        let mut by_project: BTreeMap<String, Vec<Container>> = BTreeMap::new();
        for container in engine.containers_among(label, &projects).await? {
            by_project.entry(container.project.clone()).or_default().push(container);
        }
        let mut observations = Vec::new();
        let remarks =
            recorded.iter().flat_map(|(record, _)| pins::remarks(record)).take(REMARKS_MAX).collect();
        *self.remarks.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = remarks;
        for (record, directory) in recorded {
            let containers = by_project.remove(directory.name()).unwrap_or_default();
            let record = self.explain_endings(&engine, &directory, record, &containers).await?;
            let known = record.stage != Stage::Begun && health::as_recorded(&record, &containers);
            observations.push(Observation {
                assignment: record.assignment,
                component: record.component.clone(),
                fingerprint: known.then_some(record.fingerprint),
                health: health::health(Some(&record), &containers, Timestamp::now()),
            });
        }
        // What runs without a record: its directory was lost. It is as good as its labels.
        for containers in by_project.into_values() {
            let Some(first) = containers.first() else { continue };
            let assignment = first.assignment.as_deref().and_then(|text| AssignmentId::parse(text).ok());
            let component = first.component.as_deref().and_then(|text| ComponentName::parse(text).ok());
            match (assignment, component) {
                (Some(assignment), Some(component)) => observations.push(Observation {
                    assignment,
                    component,
                    fingerprint: None,
                    health: health::health(None, &containers, Timestamp::now()),
                }),
                _ => {
                    tracing::warn!(project = %first.project, "containers carry our label and say not whose they are")
                }
            }
        }
        let due = |last: Option<Instant>| last.is_none_or(|last| last.elapsed() >= SWEEP_EVERY);
        if self.settings.images == ImagePolicy::Remove && due(*self.images_swept.lock().await) {
            self.sweep().await;
        }
        Ok(observations)
    }

    /// Finds out, once for each container that ended well, whether it ended by itself, and notes it.
    async fn explain_endings(
        &self,
        engine: &Engine,
        directory: &ProjectDirectory,
        record: Record,
        containers: &[Container],
    ) -> Result<Record, Failure> {
        let mut by_themselves = Vec::new();
        for container in health::unexplained(&record, containers) {
            if engine.ended_by_itself(container).await? {
                by_themselves.push(health::ending(container));
            }
        }
        let mut explained = record.clone();
        explained.completed.extend(by_themselves.iter().cloned());
        let done = health::done(&explained, containers);
        if by_themselves.is_empty() && done.is_subset(&record.done) {
            return Ok(record);
        }
        // Somebody is changing it right now: then this look is out of date anyway.
        let lock = directory.lock(Duration::ZERO).await;
        let lock = lock.map_err(|error| disk("The component's lock could not be taken", error))?;
        let (Some(_lock), Some(mut current)) = (lock, directory.record()) else { return Ok(record) };
        current.completed.extend(by_themselves);
        current.done.extend(done);
        // Endings of containers that are gone are of no use.
        current
            .completed
            .retain(|ending| containers.iter().any(|container| container.id == ending.container));
        let written = directory.write_record(&current);
        written.map_err(|error| disk("What was seen could not be noted", error))?;
        Ok(current)
    }

    /// Removes archives that no project needs, and images if the policy says so. Failing to is no reason to fail what was asked for.
    pub(super) async fn sweep(&self) {
        // Somebody fetches, perhaps for an hour; the next one to finish sweeps.
        let Ok(_nobody_fetches) = self.fetching.try_write() else { return };
        let (archives, images) = match self.needed() {
            Ok(needed) => needed,
            Err(error) => {
                tracing::warn!(%error, "the components' directories could not be read");
                return;
            }
        };
        self.components.sweep(archives).await;
        if self.settings.images == ImagePolicy::Remove {
            *self.images_swept.lock().await = Some(Instant::now());
            let swept = match self.engine().await {
                Ok(engine) => self.images.sweep(&engine, &images).await.map_err(Failure::from),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = swept {
                tracing::warn!(%failure, "images that are not needed could not be looked for");
            }
        }
    }

    /// Archives and images that some project needs, or may need to go back.
    fn needed(&self) -> io::Result<(BTreeSet<Digest>, BTreeSet<String>)> {
        let (mut archives, mut images) = (BTreeSet::new(), BTreeSet::new());
        for directory in ProjectDirectory::all(&self.projects(), &self.written)? {
            let mut claims: Vec<Fetched> = directory.fetched().into_iter().collect();
            match directory.record() {
                Some(record) => {
                    archives.insert(record.archive);
                    images.extend(record.images());
                    let proven = record.stage == Stage::Settled
                        && directory.record_age().is_some_and(|age| age >= FORMER_KEPT_FOR);
                    archives.extend(record.before.iter().map(|fetched| fetched.archive));
                    if !proven {
                        claims.extend(record.before);
                    }
                }
                None if directory.is_forgotten() => drop(directory.discard()?),
                None => claims.extend(directory.aside()),
            }
            for claim in claims {
                archives.insert(claim.archive);
                images.extend(claim.images);
            }
        }
        Ok((archives, images))
    }
}
