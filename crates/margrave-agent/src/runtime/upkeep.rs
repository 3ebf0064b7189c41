//! Looking after what is there: how components are, which jobs are done, and what is not needed any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use margrave_core::device::{Health, Observation};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};
use margrave_core::report::Failure;
use tokio::time::Instant;

use super::compose::{ComposeRuntime, disk};
use super::container::{Container, EndedBy};
use super::engine::{Engine, EngineError};
use super::health;
use super::images::{SWEEP_EVERY, Swept};
use super::model::LABEL_AGENT;
use super::pins;
use super::project::ProjectDirectory;
use super::record::{Fetched, Record, Stage};
use super::restarts;
use super::trial;

/// An engine may take minutes to remove a large image from slow flash. A look is for what runs, and who was installed is to be told so.
pub(super) const SWEEP_TIME_MAX: Duration = Duration::from_secs(5);

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
        self.restarts().note(by_project.values().flatten(), Instant::now());
        let lately = self.lately();
        let mut observations = Vec::new();
        let lost = |record: &Record| {
            record.perishable.iter().map(|part| part.remark(&record.component)).collect::<Vec<_>>()
        };
        let remarks = recorded.iter().flat_map(|(record, _)| pins::remarks(record).chain(lost(record)));
        let remarks = remarks.take(REMARKS_MAX).collect();
        *self.remarks.lock().unwrap_or_else(PoisonError::into_inner) = remarks;
        for (record, directory) in recorded {
            let containers = by_project.remove(directory.name()).unwrap_or_default();
            let record = self.note_seen(&engine, &directory, record, &containers).await?;
            let known = record.stage != Stage::Begun && health::as_recorded(&record, &containers);
            observations.push(Observation {
                assignment: record.assignment,
                component: record.component.clone(),
                fingerprint: known.then_some(record.fingerprint),
                health: health::health(Some(&record), &containers, &lately, Timestamp::now()),
                restarts: restarts::counted(&containers),
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
                    health: health::health(None, &containers, &lately, Timestamp::now()),
                    restarts: restarts::counted(&containers),
                }),
                _ => {
                    tracing::warn!(project = %first.project, "containers carry our label and say not whose they are")
                }
            }
        }
        let due = |last: Option<Instant>| last.is_none_or(|last| last.elapsed() >= SWEEP_EVERY);
        let images_due = self.images_go.load(Ordering::Relaxed) && due(*self.images_swept.lock().await);
        if self.sweep_due.swap(false, Ordering::Relaxed) || images_due {
            self.sweep(Some(SWEEP_TIME_MAX)).await;
        }
        Ok(observations)
    }

    /// Notes once what is seen: of containers that ended well whether they did by themselves, of all whether somebody stopped them,
    /// and what got well although the try that it was of is over. What cannot be found out or noted is asked again at the next look:
    /// it is one component's, and no reason to be blind to the others. An engine that is gone is: then nobody knows how anything is.
    async fn note_seen(
        &self,
        engine: &Engine,
        directory: &ProjectDirectory,
        record: Record,
        containers: &[Container],
    ) -> Result<Record, EngineError> {
        let mut seen = record.clone();
        for container in health::unexplained(&record, containers) {
            let well = health::condition(container) == health::Condition::Ended;
            let ended_by = match engine.why_it_ended(container).await {
                Ok(ended_by) => ended_by,
                Err(error) => {
                    engine.ping().await?;
                    tracing::debug!(project = directory.name(), id = container.id, %error, "why a container ended is not known");
                    EndedBy::Unknown
                }
            };
            match ended_by {
                EndedBy::Itself if well => seen.completed.insert(health::ending(container)),
                EndedBy::Somebody => seen.stopped.insert(health::ending(container)),
                EndedBy::Itself | EndedBy::Unknown => false,
            };
        }
        seen.done.extend(health::done(&seen, containers));
        trial::note_well(&mut seen, containers);
        let health = health::health(Some(&seen), containers, &self.lately(), Timestamp::now());
        let settles = seen.stage == Stage::Started
            && health == Health::Healthy
            && health::as_recorded(&seen, containers);
        if settles {
            seen.settle();
        }
        if seen == record {
            return Ok(record);
        }
        // Endings of containers that are gone are of no use, nor is that one was stopped which was started since.
        seen.completed.retain(|ending| containers.iter().any(|container| container.id == ending.container));
        seen.stopped.retain(|ending| containers.iter().any(|container| *ending == health::ending(container)));
        let lock = match directory.lock(Duration::ZERO).await {
            Ok(Some(lock)) => lock,
            // Somebody is changing it right now: then this look is out of date anyway.
            Ok(None) => return Ok(record),
            Err(error) => {
                self.noted(directory, Err(error));
                return Ok(seen);
            }
        };
        if directory.record().as_ref() != Some(&record) {
            return Ok(record);
        }
        let written = directory.write_record(&seen);
        drop(lock);
        if settles && written.is_ok() {
            // What was kept in case that it would not come up.
            self.sweep_due.store(true, Ordering::Relaxed);
        }
        self.noted(directory, written);
        Ok(seen)
    }

    /// Says that something could not be noted, and not again before it could.
    pub(super) fn noted(&self, directory: &ProjectDirectory, noted: io::Result<()>) {
        let project = directory.name();
        let mut unnoted = self.unnoted.lock().unwrap_or_else(PoisonError::into_inner);
        match noted {
            Ok(()) => {
                unnoted.remove(project);
            }
            Err(error) if unnoted.insert(project.to_owned()) => {
                tracing::warn!(project, %error, "what was seen of a component could not be noted; it is looked at again each time");
            }
            Err(_) => {}
        }
    }

    /// Removes what was fetched and no project needs, and images if the policy says so. Failing to is no reason to fail what was asked for.
    /// What takes longer than `patience` is gone on with at the next look.
    pub(super) async fn sweep(&self, patience: Option<Duration>) {
        let _one_at_a_time = self.sweeping.lock().await;
        // Somebody has an archive that nobody claims yet; the next look sweeps.
        let Ok(_nobody_fetches) = self.fetching.try_write() else {
            self.sweep_due.store(true, Ordering::Relaxed);
            return;
        };
        let (archives, images) = match self.needed().await {
            Ok(needed) => needed,
            Err(error) => return self.swept(Err(error)),
        };
        self.swept(self.components.sweep(archives).await);
        if self.images_go.load(Ordering::Relaxed) {
            *self.images_swept.lock().await = Some(Instant::now());
            let swept = match self.engine().await {
                Ok(engine) => self.images.sweep(&engine, &images, patience).await.map_err(Failure::from),
                Err(failure) => Err(failure),
            };
            match swept {
                Ok(Swept::All) => {}
                Ok(Swept::TooSlow) => self.sweep_due.store(true, Ordering::Relaxed),
                Err(failure) => {
                    tracing::warn!(%failure, "images that are not needed could not be looked for");
                }
            }
        }
    }

    /// What could not be swept away is tried again at the next look, and said once.
    fn swept(&self, swept: io::Result<()>) {
        let failed = swept.is_err();
        let said = self.unswept.swap(failed, Ordering::Relaxed);
        if let Err(error) = swept {
            self.sweep_due.store(true, Ordering::Relaxed);
            if !said {
                tracing::warn!(%error, "what is not needed any more could not be removed; it is tried again with each look");
            }
        }
    }

    /// Archives and images that some project needs, or may need to go back.
    async fn needed(&self) -> io::Result<(BTreeSet<Digest>, BTreeSet<String>)> {
        let (mut archives, mut images) = (BTreeSet::new(), BTreeSet::new());
        for directory in ProjectDirectory::all(&self.projects(), &self.written)? {
            self.tidy(&directory).await?;
            let fetched = directory.fetched().into_iter();
            let mut claims: Vec<Fetched> = fetched.filter(|fetched| self.is_wanted(fetched)).collect();
            match directory.record() {
                Some(record) => {
                    archives.insert(record.archive);
                    images.extend(record.images());
                    archives.extend(record.before.iter().map(|fetched| fetched.archive));
                    // Whether an update has proved itself is the core's to say.
                    claims.extend(record.before.into_iter().filter(|former| self.is_wanted(former)));
                }
                None => claims.extend(directory.aside()),
            }
            for claim in claims {
                archives.insert(claim.archive);
                images.extend(claim.images);
            }
        }
        Ok((archives, images))
    }

    /// The archives that stay unpacked: of what runs, and of what may be gone back to, with all that its containers wrote among the
    /// files.
    pub(super) fn archives_kept(&self, record: &Record) -> BTreeSet<Digest> {
        // Whether an update has proved itself is the core's to say; one that was not even well has not.
        let is_kept = |former: &&Fetched| record.stage != Stage::Settled || self.is_wanted(former);
        record.before.iter().filter(is_kept).map(|former| former.archive).chain([record.archive]).collect()
    }

    /// The archives that are not needed any more, nor in use: what did not come up as a whole may have left containers of any
    /// earlier version running, with its files mounted.
    async fn archives_unused(
        &self,
        directory: &ProjectDirectory,
        record: Option<&Record>,
    ) -> io::Result<Vec<PathBuf>> {
        let mut others = self.archives_unneeded(directory, record)?;
        if others.is_empty() || record.is_some_and(|record| record.stage == Stage::Settled) {
            return Ok(others);
        }
        let mounted = match self.engine().await {
            Ok(engine) => engine.mounted(directory.name()).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        match mounted {
            // By its name, which no other has: an engine in a machine of its own sees it below other directories.
            Ok(mounted) => others.retain(|archive| {
                let name = archive.file_name();
                !mounted.iter().any(|place| place.iter().any(|part| Some(part) == name))
            }),
            Err(failure) => {
                tracing::debug!(project = directory.name(), %failure, "which files are in use is not known");
                self.sweep_due.store(true, Ordering::Relaxed);
                others.clear();
            }
        }
        Ok(others)
    }

    fn archives_unneeded(
        &self,
        directory: &ProjectDirectory,
        record: Option<&Record>,
    ) -> io::Result<Vec<PathBuf>> {
        let claims = directory.fetched().into_iter();
        // Where nothing was begun with, it may be what was set aside that comes back.
        let aside = directory.aside().into_iter().filter(|_| record.is_none());
        let wanted = claims.chain(aside).filter(|claim| self.is_wanted(claim)).map(|claim| claim.archive);
        let mut kept: BTreeSet<Digest> = wanted.collect();
        kept.extend(record.into_iter().flat_map(|record| self.archives_kept(record)));
        directory.archives_but(&kept)
    }

    /// Removes what was left where unpacking was cut off. Whoever unpacks the same again does so, too, but that may never be wanted.
    async fn remove_half_unpacked(&self, directory: &ProjectDirectory) -> io::Result<()> {
        let left = directory.half_unpacked()?;
        if left.is_empty() {
            return Ok(());
        }
        let Some(_lock) = directory.lock(Duration::ZERO).await? else {
            self.sweep_due.store(true, Ordering::Relaxed);
            return Ok(());
        };
        for (place, left) in left {
            // Nobody fetches, but who was dropped while it unpacked may still be at it.
            let Some(_nobody_unpacks) = self.components.unpacks_nothing_into(&place) else {
                self.sweep_due.store(true, Ordering::Relaxed);
                continue;
            };
            directory.give_up(vec![left])?;
        }
        Ok(())
    }

    /// Removes what was given up of a project, one after the other, while the device looks, asks and mends. What comes meanwhile is seen to at a
    /// later look; so is what may be done once it is gone.
    pub(super) fn clear_beside(&self, directory: &ProjectDirectory, news: Vec<PathBuf>) {
        let Ok(turn) = Arc::clone(&self.clearing).try_lock_owned() else {
            self.sweep_due.store(true, Ordering::Relaxed);
            return;
        };
        let (directory, due) = (directory.clone(), Arc::clone(&self.sweep_due));
        tokio::task::spawn_blocking(move || {
            match directory.remove_gone(&news) {
                // Then it is looked whether anything else of it is needed.
                Ok(false) => due.store(true, Ordering::Relaxed),
                Ok(true) => {}
                Err(error) => {
                    tracing::warn!(project = directory.name(), %error, "what is not needed any more cannot be removed");
                }
            }
            drop(turn);
        });
    }

    /// Clears away what was fetched for a project and is not wanted any more: an update that another one overtook, or
    /// something that was removed before it could begin.
    async fn tidy(&self, directory: &ProjectDirectory) -> io::Result<()> {
        self.remove_half_unpacked(directory).await?;
        if directory.has_gone()? {
            self.clear_beside(directory, vec![]);
        }
        let fetched = directory.fetched();
        let is_stale = fetched.iter().any(|fetched| !self.is_wanted(fetched));
        let is_claimed = fetched.iter().any(|fetched| self.is_wanted(fetched));
        let is_begun = directory.has_record();
        // By what is wanted alone: a clock that was not set yet makes everything old.
        let is_awaited = is_claimed || directory.aside().iter().any(|kept| self.is_wanted(kept));
        let goes = if is_begun || is_awaited {
            let record = directory.record();
            let is_known = record.is_some() || !is_begun;
            is_stale || is_known && !self.archives_unneeded(directory, record.as_ref())?.is_empty()
        } else {
            // An archive that nothing is noted about may be in use: what was noted is lost.
            let is_idle = || io::Result::Ok(directory.is_only_aside() || !directory.has_archives()?);
            is_stale || fetched.is_empty() && is_idle()? && !directory.is_left_to_others()?
        };
        if !goes {
            return Ok(());
        }
        // Somebody is at work on it, and it is looked at again.
        let Some(_lock) = directory.lock(Duration::ZERO).await? else {
            self.sweep_due.store(true, Ordering::Relaxed);
            return Ok(());
        };
        let record = directory.record();
        match &record {
            // What is damaged says nothing about what runs.
            None if is_begun => return Ok(()),
            None if !is_awaited => {
                directory.discard()?;
                if directory.has_gone()? {
                    self.clear_beside(directory, vec![]);
                }
                return Ok(());
            }
            _ => {}
        }
        // First what takes room: on a full disk nothing can be noted.
        let gone = directory.give_up(self.archives_unused(directory, record.as_ref()).await?)?;
        if !gone.is_empty() {
            self.clear_beside(directory, gone);
        }
        // Of what was healthy the record says everything.
        let settled = record.filter(|record| record.stage == Stage::Settled);
        let is_told = |fetched: &Fetched| {
            settled.as_ref().is_some_and(|record| fetched.fingerprint == record.fingerprint)
        };
        directory.forget_fetched(|fetched| !is_told(fetched) && self.is_wanted(fetched))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use margrave_core::id::DeviceId;
    use margrave_http::StatusCode;
    use margrave_oci::client::{Client, Hosts};
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::components::Components;
    use crate::runtime::compose::ComposeSettings;
    use crate::runtime::engine::Places;
    use crate::runtime::pretended_engine::{Answer, PretendedEngine};
    use crate::runtime::project::ProjectName;
    use crate::runtime::record::{Service, tests};

    fn component(number: u8) -> (AssignmentId, ComponentName) {
        let assignment = AssignmentId::from_uuid(uuid::Uuid::from_bytes([number; 16]));
        (assignment, ComponentName::parse("web").unwrap())
    }

    fn project(number: u8) -> ProjectName {
        let (assignment, component) = component(number);
        ProjectName::of(assignment, &component)
    }

    /// A one-shot container that ended well.
    fn ended(number: u8) -> Value {
        let finished = "2020-01-01T00:00:00Z";
        json!({
            "Id": number.to_string(), "RestartCount": 0,
            "State": {"Status": "exited", "ExitCode": 0, "StartedAt": "s", "FinishedAt": finished},
            "HostConfig": {},
            "Config": {"Labels": {"com.docker.compose.project": project(number).as_str(),
                "com.docker.compose.service": "web", "com.docker.compose.config-hash": "abc"}},
        })
    }

    /// A device with two components, of each of which one container ended.
    fn device(pretended: &PretendedEngine, data: &std::path::Path) -> ComposeRuntime {
        let settings = ComposeSettings {
            data: data.to_owned(),
            agent: DeviceId::parse("line-1").unwrap(),
            places: Places { named: Some(pretended.address()), sockets: vec![] },
            telemetry: None,
            registry: None,
        };
        let components = Components::new(Client::new(Hosts::new()), data).unwrap();
        let runtime = ComposeRuntime::new(settings, components).unwrap();
        for number in [1, 2] {
            let (assignment, component) = component(number);
            let directory = ProjectDirectory::new(&runtime.projects(), &project(number), &runtime.written);
            directory.create().unwrap();
            let service = Service { hash: Some("abc".into()), ..tests::service() };
            let record = Record {
                assignment,
                component,
                fingerprint: Digest::of(b"order"),
                stage: Stage::Settled,
                services: [("web".to_owned(), service)].into(),
                completed: BTreeSet::new(),
                ..tests::record()
            };
            directory.write_record(&record).unwrap();
        }
        runtime
    }

    fn say(asked: &str, events: impl Fn(&str) -> Answer) -> Answer {
        match asked.strip_prefix("GET ").unwrap_or_default() {
            asked if asked.starts_with("/containers/json") => {
                let listed = |number: u8| json!({"Id": number.to_string(), "Labels": {"com.docker.compose.project": project(number).as_str()}});
                Answer::Json(json!([listed(1), listed(2)]))
            }
            "/containers/1/json" => Answer::Json(ended(1)),
            "/containers/2/json" => Answer::Json(ended(2)),
            asked if asked.starts_with("/events") => events(asked),
            asked if asked.starts_with("/volumes") => Answer::Json(json!({"Volumes": null})),
            "/_ping" => Answer::Json(json!("OK")),
            // Such as the container that the test runs in.
            _ => Answer::Refused(StatusCode::NOT_FOUND, "no such container"),
        }
    }

    /// Of which container, in the filters of the question.
    fn is_of(asked: &str, number: u8) -> bool {
        asked.contains(&format!("%5B%22{number}%22%5D"))
    }

    fn refused(message: &'static str) -> Answer {
        Answer::Refused(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    fn died() -> Answer {
        Answer::Json(json!({"Action": "die"}))
    }

    async fn healths(runtime: &ComposeRuntime) -> Vec<Health> {
        runtime.look().await.unwrap().into_iter().map(|seen| seen.health).collect()
    }

    /// Until nothing more is to be swept, as far as the runtime itself knows.
    async fn swept(runtime: &ComposeRuntime) {
        runtime.sweep_due.store(true, Ordering::Relaxed);
        for _ in 0..5 {
            if runtime.sweep_due.swap(false, Ordering::Relaxed) {
                runtime.sweep(None).await;
                drop(runtime.clearing.lock().await);
            }
        }
    }

    fn was_stopped() -> Health {
        Health::Down("service web was stopped".into())
    }

    #[tokio::test]
    async fn a_question_about_one_container_that_is_not_answered_hides_no_other() {
        let events = |asked: &str| if is_of(asked, 1) { refused("no events") } else { died() };
        let pretended = PretendedEngine::start(move |asked| say(asked, events));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        assert_eq!(healths(&runtime).await, [was_stopped(), Health::Healthy]);
    }

    #[tokio::test]
    async fn an_engine_that_goes_away_while_it_is_asked_says_nothing_about_anybody() {
        let pretended = PretendedEngine::start(|asked| match asked {
            "GET /_ping" => refused("shutting down"),
            asked => say(asked, |_| refused("shutting down")),
        });
        let data = tempfile::tempdir().unwrap();
        assert!(device(&pretended, data.path()).look().await.is_err());
    }

    #[tokio::test]
    async fn what_was_set_aside_before_the_clock_was_set_is_kept_while_it_is_wanted() {
        let pretended = PretendedEngine::start(|asked| say(asked, |_| died()));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        let directory = ProjectDirectory::new(&runtime.projects(), &project(1), &runtime.written);
        directory.set_aside(|_| false).unwrap();
        let file = runtime.projects().join(project(1).as_str()).join("aside.json");
        std::fs::File::open(&file).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        let keep = |orders: BTreeSet<Digest>| crate::runtime::Runtime::keep(&runtime, orders);
        keep([Digest::of(b"order")].into());
        swept(&runtime).await;
        assert_eq!(directory.aside().len(), 1);
        keep(BTreeSet::new());
        swept(&runtime).await;
        assert_eq!(directory.aside().len(), 0);
    }

    #[tokio::test]
    async fn promise_7_what_was_written_among_files_of_what_is_set_aside_stays_while_it_is_wanted() {
        let pretended = PretendedEngine::start(|asked| say(asked, |_| died()));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        let directory = ProjectDirectory::new(&runtime.projects(), &project(1), &runtime.written);
        let place = directory.unpacked(directory.record().unwrap().archive);
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("rows"), b"1").unwrap();
        let keep = |orders: BTreeSet<Digest>| crate::runtime::Runtime::keep(&runtime, orders);
        // An update that has no such component, and may still be given up.
        keep([Digest::of(b"order"), Digest::of(b"update")].into());
        directory.set_aside(|fetched| runtime.is_wanted(fetched)).unwrap();
        swept(&runtime).await;
        assert!(place.join("rows").exists() && !directory.has_record());
        // It has proved itself; but what was begun with meanwhile may run, though nothing is noted of it any more.
        keep([Digest::of(b"update")].into());
        std::fs::write(directory.override_file(), b"").unwrap();
        swept(&runtime).await;
        assert!(place.join("rows").exists());
        std::fs::remove_file(directory.override_file()).unwrap();
        swept(&runtime).await;
        assert!(!runtime.projects().join(project(1).as_str()).exists());
    }

    #[tokio::test]
    async fn what_was_half_unpacked_when_the_power_went_goes_although_nobody_wants_it_any_more() {
        let pretended = PretendedEngine::start(|asked| say(asked, |_| died()));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        let directory = ProjectDirectory::new(&runtime.projects(), &project(1), &runtime.written);
        let home = runtime.projects().join(project(1).as_str());
        let place = directory.unpacked(Digest::of(b"overtaken"));
        let name = place.file_name().unwrap().to_str().unwrap();
        let left = ["unpacking", "replaced"].map(|what| home.join(format!(".{name}.{what}")));
        left.iter().for_each(|left| std::fs::create_dir_all(left.join("web")).unwrap());
        let runs = directory.unpacked(directory.record().unwrap().archive);
        std::fs::create_dir(&runs).unwrap();
        let at_it = runtime.components.unpacks_nothing_into(&place);
        swept(&runtime).await;
        assert!(left.iter().all(|left| left.exists()), "somebody unpacks there right now");
        drop(at_it);
        swept(&runtime).await;
        assert!(!left.iter().any(|left| left.exists()) && runs.exists());
        assert_eq!(std::fs::read_dir(&home).unwrap().count(), 3, "the record, the lock, and what runs");
    }

    #[tokio::test]
    async fn nobody_waits_for_the_removal_of_what_an_earlier_version_left() {
        let pretended = PretendedEngine::start(|asked| say(asked, |_| died()));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        let directory = ProjectDirectory::new(&runtime.projects(), &project(1), &runtime.written);
        std::fs::create_dir(directory.unpacked(Digest::of(b"earlier"))).unwrap();
        // Files without number are being removed elsewhere.
        let others = runtime.clearing.lock().await;
        runtime.sweep_due.store(true, Ordering::Relaxed);
        assert_eq!(runtime.look().await.unwrap().len(), 2);
        assert!(directory.has_gone().unwrap() && !directory.has_archives().unwrap());
        assert!(runtime.sweep_due.load(Ordering::Relaxed), "it is seen to at the next look");
        drop(others);
        swept(&runtime).await;
        assert!(!directory.has_gone().unwrap());
    }

    #[tokio::test]
    async fn what_a_removed_component_leaves_is_not_touched_again() {
        let pretended = PretendedEngine::start(|asked| say(asked, |_| died()));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        let directory = ProjectDirectory::new(&runtime.projects(), &project(1), &runtime.written);
        directory.make_mount(&directory.mounts().join("data")).unwrap();
        std::fs::write(directory.mounts().join("data/rows"), b"1").unwrap();
        directory.discard().unwrap();
        let home = runtime.projects().join(project(1).as_str());
        std::fs::File::open(&home).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        swept(&runtime).await;
        let modified = std::fs::metadata(&home).unwrap().modified().unwrap();
        assert_eq!(modified, std::time::UNIX_EPOCH, "nothing was made or removed in it");
        // By hand.
        std::fs::remove_dir_all(directory.mounts().join("data")).unwrap();
        swept(&runtime).await;
        assert!(!home.exists());
    }

    #[tokio::test]
    async fn files_of_what_runs_stay_while_an_update_that_did_not_come_up_is_overtaken() {
        let of = |name: &str| {
            Fetched::new(Digest::of(name.as_bytes()), Digest::of(format!("{name}.tgz").as_bytes()))
        };
        let [good, mounted, device_of, failed, newest] =
            ["good", "mounted", "device", "failed", "newest"].map(of);
        let data = tempfile::tempdir().unwrap();
        // As an engine in a machine of its own tells it.
        let place = move |fetched: &Fetched| {
            let archive = format!("archive-{}", fetched.archive.short());
            format!("/host/data/compose/{}/{archive}/web/files", project(1).as_str())
        };
        let (source, device_at) = (place(&mounted), place(&device_of));
        let asleep = Arc::new(AtomicBool::new(true));
        let is_asleep = asleep.clone();
        let pretended = PretendedEngine::start(move |asked| match asked {
            "GET /containers/1/json" if is_asleep.load(Ordering::SeqCst) => refused("not now"),
            "GET /containers/1/json" => {
                let mut container = ended(1);
                container["Mounts"] = json!([{"Type": "bind", "Source": source, "Destination": "/files"}]);
                Answer::Json(container)
            }
            asked if asked.starts_with("GET /volumes") => {
                Answer::Json(json!({"Volumes": [{"Name": "p_files", "Options": {"device": device_at}}]}))
            }
            asked => say(asked, |_| died()),
        });
        let runtime = device(&pretended, data.path());
        let directory = ProjectDirectory::new(&runtime.projects(), &project(1), &runtime.written);
        let all = [&good, &mounted, &device_of, &failed, &newest];
        for each in all {
            std::fs::create_dir(directory.unpacked(each.archive)).unwrap();
        }
        // None came up as a whole, so containers may have files of any of them.
        let begun = Record {
            fingerprint: newest.fingerprint,
            archive: newest.archive,
            before: vec![good.clone()],
            stage: Stage::Begun,
            ..directory.record().unwrap()
        };
        directory.write_record(&begun).unwrap();
        for each in [&failed, &mounted, &newest] {
            directory.note_fetched(each.clone()).unwrap();
        }
        let wanted = [good.fingerprint, newest.fingerprint];
        crate::runtime::Runtime::keep(&runtime, wanted.into());
        swept(&runtime).await;
        let is_here = |fetched: &Fetched| directory.unpacked(fetched.archive).exists();
        assert!(all.into_iter().all(is_here), "nobody says what is in use");
        assert_eq!(directory.fetched(), std::slice::from_ref(&newest), "the claim is of no use any more");

        // What no container has would pile up until something is well, which nothing is on a full disk.
        asleep.store(false, Ordering::SeqCst);
        for stage in [Stage::Begun, Stage::Started] {
            directory.write_record(&Record { stage, ..begun.clone() }).unwrap();
            std::fs::create_dir_all(directory.unpacked(failed.archive)).unwrap();
            swept(&runtime).await;
            assert_eq!(all.map(is_here), [true, true, true, false, true], "{stage:?}");
        }

        // Until it has proved itself, what it replaced may be gone back to.
        directory.write_record(&Record { stage: Stage::Settled, ..begun }).unwrap();
        swept(&runtime).await;
        assert_eq!(all.map(is_here), [true, false, false, false, true]);
        crate::runtime::Runtime::keep(&runtime, [newest.fingerprint].into());
        swept(&runtime).await;
        assert!(is_here(&newest) && !is_here(&good));
    }

    #[tokio::test]
    async fn what_never_began_goes_when_it_is_overtaken_also_on_a_full_disk() {
        let pretended = PretendedEngine::start(|asked| say(asked, |_| died()));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        let directory = ProjectDirectory::new(&runtime.projects(), &project(1), &runtime.written);
        let home = runtime.projects().join(project(1).as_str());
        std::fs::remove_file(home.join("project.json")).unwrap();
        let of = |name: &str| {
            Fetched::new(Digest::of(name.as_bytes()), Digest::of(format!("{name}.tgz").as_bytes()))
        };
        // More than claims are noted of.
        let all = ["1", "2", "3", "4", "5", "6"].map(of);
        for each in &all {
            std::fs::create_dir(directory.unpacked(each.archive)).unwrap();
            directory.note_fetched(each.clone()).unwrap();
        }
        let unfinished = home.join("fetched.json.new");
        std::os::unix::fs::symlink("/dev/full", &unfinished).unwrap();
        crate::runtime::Runtime::keep(&runtime, [of("6").fingerprint].into());
        swept(&runtime).await;
        let is_here = |fetched: &Fetched| directory.unpacked(fetched.archive).exists();
        assert_eq!(all.each_ref().map(is_here), [false, false, false, false, false, true]);
        std::fs::remove_file(&unfinished).unwrap();
        swept(&runtime).await;
        assert_eq!(directory.fetched(), [of("6")]);
    }

    fn listened(pretended: &PretendedEngine) -> usize {
        pretended.asked().iter().filter(|asked| asked.contains("/events")).count()
    }

    #[tokio::test]
    async fn what_happens_to_containers_while_nobody_asks_is_not_missed() {
        let of = |agent: &str| json!({"Actor": {"Attributes": {LABEL_AGENT: agent}}});
        let died = move || vec![of("line-2"), of("line-1"), of("line-1")];
        let pretended = PretendedEngine::start(move |asked| say(asked, |_| Answer::Lines(died())));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        // First that somebody listens, then what was told since.
        for _ in 0..2 {
            runtime.changed().await.unwrap();
            assert_eq!(listened(&pretended), 1, "whoever listens anew has missed what was in between");
        }
    }

    #[tokio::test]
    async fn an_engine_that_goes_away_is_news_and_one_that_is_away_is_not() {
        let away = Arc::new(AtomicBool::new(false));
        let is_away = away.clone();
        let events = move |_: &str| match is_away.load(Ordering::SeqCst) {
            true => refused("shutting down"),
            false => Answer::Broken,
        };
        let pretended = PretendedEngine::start(move |asked| say(asked, &events));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        runtime.changed().await.unwrap();
        away.store(true, Ordering::SeqCst);
        runtime.changed().await.unwrap();
        assert!(runtime.changed().await.is_err());
        assert_eq!(listened(&pretended), 2);
        away.store(false, Ordering::SeqCst);
        runtime.changed().await.unwrap();
    }

    #[tokio::test]
    async fn what_cannot_be_noted_is_known_all_the_same_and_hides_no_other() {
        let pretended = PretendedEngine::start(|asked| say(asked, |_| died()));
        let data = tempfile::tempdir().unwrap();
        let runtime = device(&pretended, data.path());
        // Where the next record is written, the disk is full.
        let unfinished = runtime.projects().join(project(1).as_str()).join("project.json.new");
        std::os::unix::fs::symlink("/dev/full", &unfinished).unwrap();
        for _ in 0..2 {
            assert_eq!(healths(&runtime).await, [Health::Healthy, Health::Healthy]);
            assert_eq!(*runtime.unnoted.lock().unwrap(), [project(1).as_str().to_owned()].into());
        }
        let asked_about = |number: u8| {
            let asked = pretended.asked();
            asked.iter().filter(|asked| asked.contains("/events") && is_of(asked, number)).count()
        };
        assert_eq!((asked_about(1), asked_about(2)), (2, 1), "what is noted is not asked again");

        std::fs::remove_file(&unfinished).unwrap();
        assert_eq!(healths(&runtime).await, [Health::Healthy, Health::Healthy]);
        assert!(runtime.unnoted.lock().unwrap().is_empty());
        healths(&runtime).await;
        assert_eq!(asked_about(1), 3);
    }
}
