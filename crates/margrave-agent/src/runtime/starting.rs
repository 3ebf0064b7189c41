//! Starting what is ordered: what is noted before and after, and how Compose is told.
//!
//! The intent is on disk before anything is touched, and a try that was cut off is gone on with by the next one.

use std::collections::BTreeSet;

use jiff::Timestamp;
use margrave_core::device::{Health, Order};
use margrave_core::report::{Failure, FailureCode};
use tokio::time::Instant;

use super::compose::{ComposeRuntime, disk, run_failure};
use super::container::LABEL_PROJECT;
use super::drift;
use super::explain;
use super::health;
use super::jobs;
use super::model::{self, Ownership};
use super::prepared::{Prepared, first_failure, is_new, so_far, wait_until_up};
use super::program::RunError;
use super::project::{ProjectDirectory, ProjectName};
use super::record::{Record, Service, Stage};
use super::removal::podman_grace;
use super::trial::{self, Trial};
use super::unnamed::{Volumes, still_here, unnamed};
use super::upkeep::SWEEP_TIME_MAX;
use super::{sharing, start_time_max, stuck};

impl ComposeRuntime {
    pub(super) async fn apply_order(&self, order: &Order) -> Result<(), Failure> {
        if self.runs_as_ordered(order).await? {
            return Ok(());
        }
        let mut prepared = self.prepare(order).await?;
        let before = prepared.directory.record();
        let cut_off = before.as_ref().is_some_and(|record| record.stage == Stage::Begun);
        let mut anew = drift::straighten(&prepared, before.as_ref()).await?;
        let here_before = prepared.containers().await?;
        let services = &prepared.model.services;
        let (mut finished, mut remade) = (BTreeSet::new(), 0);
        let same = before.as_ref().filter(|record| record.fingerprint == order.fingerprint());
        if let Some(record) = same {
            remade = record.remade;
            let jobs = jobs::finished(record, &here_before);
            finished = sharing::unneeded(jobs, services, &here_before);
            let sick = trial::sick(record, &here_before);
            if !sick.is_empty() {
                tracing::info!(project = %prepared.project, ?sick, "what never became healthy is made anew");
                remade += 1;
            }
            anew.extend(sick.into_iter().filter(|service| services.contains_key(service)));
        }
        // What is here was started in this way once, however the tries since then ended.
        let noted = same.filter(|record| drift::is_noted(record, &here_before));
        let made_by = noted.filter(|record| record.is_mended_by_another(prepared.compose.version()));
        let made_by = made_by.and_then(|record| record.compose.clone());
        let hashes_otherwise = made_by.is_some() || prepared.compose.hashes_named_otherwise();
        let compared = noted.filter(|_| hashes_otherwise || !finished.is_empty());
        let (is_noted, is_compared_here) = (noted.is_some(), compared.is_some());
        if let Some(record) = compared {
            anew.extend(drift::strayed(record, &here_before, hashes_otherwise));
            anew.retain(|service| !finished.contains(service));
            anew = sharing::with_sharers(anew, services, &finished, &here_before);
        }
        let rest = rest(services.keys(), &finished, is_compared_here);
        let mut given_back = prepared.directory.volumes_of(order.fingerprint());
        given_back.retain(|service, _| services.contains_key(service));
        let mut left_behind = Volumes::new();
        if before.as_ref().is_some_and(|record| record.fingerprint != order.fingerprint()) {
            // What failed only after it was up is replaced now, and its log goes with it.
            self.keep_last_output(&prepared.engine, order.assignment, &prepared.project, true).await;
            // Nobody hands on what belongs to a service that goes.
            left_behind = unnamed(&here_before);
            left_behind.retain(|service, _| !services.contains_key(service));
        }
        prepared.model.given_back = still_here(&prepared.engine, given_back).await?;
        let trial = Trial { proven: trial::proven(before.as_ref(), &here_before), remade };
        let mut record = self.begin(order, &prepared, before, left_behind, &finished, trial)?;
        record.compose = made_by.or(record.compose);
        prepared.write(&record)?;
        let deadline = Instant::now() + start_time_max(order);
        let brought_up = async {
            if !anew.is_empty() {
                self.make_anew(&prepared, &record, deadline, &anew).await?;
            }
            if let Some(rest) = rest {
                let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
                self.up_with_patience(&prepared, &record, deadline, &rest, cut_off).await?;
            }
            let containers = prepared.containers().await?;
            let left_alone = sharing::left_alone(&prepared.model.services, &here_before, &containers);
            if left_alone.is_empty() {
                return Ok(containers);
            }
            tracing::warn!(project = %prepared.project, ?left_alone, "what these share is not what it was; they are made anew");
            let anew = sharing::with_sharers(left_alone, &prepared.model.services, &finished, &containers);
            self.make_anew(&prepared, &record, deadline, &anew).await?;
            prepared.containers().await
        };
        let brought_up = brought_up.await;
        if brought_up.is_err()
            && is_noted
            && let Ok(containers) = prepared.containers().await
        {
            // What could be made is not made anew by the next try.
            let known = record.services.clone();
            record.note_made(&containers);
            if record.services != known {
                self.noted(&prepared.directory, prepared.directory.write_record(&record));
            }
        }
        let containers = brought_up?;
        self.restarts().note_exits(containers.iter());
        let lately = self.lately();
        for (name, service) in &mut record.services {
            let container = containers.iter().find(|container| &container.service == name);
            if container.is_none() && finished.contains(name) {
                continue;
            }
            service.hash = container.and_then(|container| container.config_hash.clone());
            service.adjustable = container.map(|container| container.adjustable.clone());
        }
        record.stage = Stage::Started;
        prepared.write(&record)?;
        // Compose left it as it was, and that it runs for some seconds is nothing new. It is watched from here on.
        if let Some(container) = containers.iter().find(|container| lately.loops(container)) {
            return Err(Failure::new(FailureCode::Unhealthy, lately.keeps_restarting(container)));
        }
        if order.wait {
            let known = record.proven.clone();
            let waited = wait_until_up(self, &prepared, &mut record, deadline).await;
            if waited.is_err() && record.proven != known {
                self.noted(&prepared.directory, prepared.directory.write_record(&record));
            }
            let containers = waited?;
            let ended = containers.iter().filter(|c| health::condition(c) == health::Condition::Ended);
            record.completed = ended.map(health::ending).collect();
            record.done = health::done(&record, &containers);
            record.done.extend(finished);
        }
        record.settle();
        prepared.write(&record)?;
        let nobody_reads = self.reading.of(prepared.project.as_str()).lock_owned().await;
        let discarded = prepared.directory.discard_archives(&self.archives_kept(&record));
        drop(nobody_reads);
        let gone = discarded
            .map_err(|error| disk("The archive of the earlier version could not be removed", error))?;
        if !gone.is_empty() {
            self.clear_beside(&prepared.directory, gone);
        }
        self.sweep(Some(SWEEP_TIME_MAX)).await;
        Ok(())
    }

    /// Whether there is nothing to do; asks nobody but the engine.
    async fn runs_as_ordered(&self, order: &Order) -> Result<bool, Failure> {
        let project = ProjectName::of(order.assignment, &order.component);
        let Some(record) = ProjectDirectory::new(&self.projects(), &project, &self.written).record() else {
            return Ok(false);
        };
        if record.fingerprint != order.fingerprint() || record.stage != Stage::Settled {
            return Ok(false);
        }
        let containers = self.engine().await?.containers(&[(LABEL_PROJECT, project.as_str())]).await?;
        let health = health::health(Some(&record), &containers, &self.lately(), Timestamp::now());
        Ok(health::as_recorded(&record, &containers)
            && (health == Health::Healthy || (health == Health::Starting && !order.wait)))
    }

    /// What is to be noted of what is about to be started, and of what services that go leave behind. What Compose is given for it is on
    /// disk then.
    fn begin(
        &self,
        order: &Order,
        prepared: &Prepared,
        before: Option<Record>,
        left_behind: Volumes,
        finished: &BTreeSet<String>,
        trial: Trial,
    ) -> Result<Record, Failure> {
        self.settle_on(&prepared.engine)?;
        let owner = Ownership {
            agent: self.settings.agent.as_str(),
            assignment: order.assignment,
            component: &order.component,
        };
        let same = before.as_ref().filter(|record| record.fingerprint == order.fingerprint());
        let mut model = prepared.model.clone();
        // What an older agent started and is only mended now has no such label; for that alone it is not made anew.
        let mut unlabelled = BTreeSet::new();
        for (name, service) in &mut model.services {
            if same.is_some_and(|record| record.is_unlabelled(name)) && service.values.take().is_some() {
                unlabelled.insert(name.clone());
            }
        }
        let overlay = model.overlay(owner, prepared.archive, self.settings.telemetry.as_ref());
        let write = || {
            for mount in prepared.model.moved_mounts() {
                prepared.directory.make_mount(mount)?;
            }
            self.written.durably(&prepared.directory.override_file(), &overlay)
        };
        write().map_err(|error| disk("The component's override file could not be written", error))?;
        // What was noted of the same order still tells what hands did, should this try be cut off.
        let service = |name: &String, service: &model::Service| Service {
            replicas: service.replicas,
            hash: same.and_then(|record| record.services.get(name)?.hash.clone()),
            adjustable: same.and_then(|record| record.services.get(name)?.adjustable.clone()),
            image: Some(service.needed().to_owned()),
            image_id: service.image_id.clone(),
            image_note: service.note,
            values: service.values,
            unlabelled: unlabelled.contains(name),
        };
        let services = &model.services;
        let services = services.iter().map(|(name, s)| (name.clone(), service(name, s))).collect();
        let completed = same.filter(|_| !finished.is_empty()).map(|record| record.completed.clone());
        let before = before.map(|record| record.kept_with(left_behind, |former| self.is_wanted(former)));
        let before = before.unwrap_or_else(|| prepared.directory.aside());
        let record = Record {
            assignment: order.assignment,
            component: order.component.clone(),
            fingerprint: order.fingerprint(),
            archive: prepared.archive,
            before,
            stage: Stage::Begun,
            compose: Some(prepared.compose.version().to_owned()),
            services,
            volumes: model.given_back.clone(),
            perishable: model.perishable.clone(),
            completed: completed.unwrap_or_default(),
            done: finished.clone(),
            stopped: BTreeSet::new(),
            proven: trial.proven,
            remade: trial.remade,
        };
        Ok(record)
    }

    /// Once more where what is in the way is of an earlier try, and goes by itself or can be cleared away.
    async fn up_with_patience(
        &self,
        prepared: &Prepared,
        record: &Record,
        deadline: Instant,
        rest: &[&str],
        cut_off: bool,
    ) -> Result<(), Failure> {
        let mut up = self.up(prepared, record, deadline, rest).await;
        // A Compose that was killed while it replaced a container leaves two of them. The next one tidies up,
        // and may trip over its own tidying: it renames the one while it still removes the other.
        if let Err(failure) = &up
            && (failure.code, cut_off) == (FailureCode::CreateFailed, true)
        {
            tracing::info!(project = %prepared.project, %failure, "an earlier try was cut off; trying once more");
            up = self.up(prepared, record, deadline, rest).await;
        }
        // Made anew by Compose, containers have the volumes of those whose place they take, also the ones without a name.
        for hopeless in [stuck::lost, stuck::stopped] {
            let Err(failure) = &up else { break };
            let containers = prepared.containers().await?;
            let mut anew = hopeless(failure, &containers);
            let services = &prepared.model.services;
            anew.retain(|service| services.contains_key(service) && !record.done.contains(service));
            if anew.is_empty() {
                continue;
            }
            tracing::warn!(project = %prepared.project, %failure, ?anew, "these containers cannot be started any more; they are made anew");
            let anew = sharing::with_sharers(anew, services, &record.done, &containers);
            self.make_anew(prepared, record, deadline, &anew).await?;
            up = self.up(prepared, record, deadline, rest).await;
        }
        up
    }

    /// Has Compose put new containers in the place of what services have, and nothing else.
    async fn make_anew(
        &self,
        prepared: &Prepared,
        record: &Record,
        deadline: Instant,
        services: &BTreeSet<String>,
    ) -> Result<(), Failure> {
        let anew = ["--no-deps", "--force-recreate"].into_iter();
        let anew: Vec<&str> = anew.chain(services.iter().map(String::as_str)).collect();
        self.up(prepared, record, deadline, &anew).await
    }

    /// Has Compose create and start everything, or what is named. Compose may wait for one service before it starts another;
    /// meanwhile a container that fails is seen at once (PK-101).
    async fn up(
        &self,
        prepared: &Prepared,
        record: &Record,
        deadline: Instant,
        more: &[&str],
    ) -> Result<(), Failure> {
        let before = prepared.containers().await?;
        let time_max = deadline.saturating_duration_since(Instant::now());
        let grace = podman_grace(&prepared.engine, &prepared.project).await?;
        let grace: Vec<&str> = grace.iter().map(String::as_str).collect();
        let arguments = [&["up", "--detach", "--no-build"], grace.as_slice(), more].concat();
        let up = self.run(prepared, &arguments, true, time_max);
        let failing = first_failure(self, prepared, &before);
        let result = tokio::select! {
            result = up => result,
            failure = failing => return Err(failure),
        };
        let finished = match result {
            Ok(finished) => finished,
            Err(RunError::TooLong { .. }) => {
                let containers = so_far(prepared.containers().await?, &before);
                return Err(explain::too_long(&record.awaited(), &containers));
            }
            Err(error) => {
                *self.compose.lock().await = None;
                return Err(run_failure(&error));
            }
        };
        if finished.success {
            return Ok(());
        }
        // The engine's own facts say more than Compose's words.
        prepared.engine.ping().await?;
        let containers = prepared.containers().await?;
        let (new, others): (Vec<_>, Vec<_>) = containers.into_iter().partition(|c| is_new(c, &before));
        Err(explain::up(prepared.project.as_str(), &new, &others, finished.code, &finished.errors))
    }
}

/// What Compose is told to bring up, beside what is made anew: all, or what is not done, one by one. It would do a job again that
/// others depend on; and without names it takes all, so nothing at all is told where all is done.
fn rest<'a>(
    services: impl Iterator<Item = &'a String>,
    finished: &BTreeSet<String>,
    is_compared_here: bool,
) -> Option<Vec<String>> {
    // What nobody ordered is gone already where it is the same order.
    let first = if finished.is_empty() { "--remove-orphans" } else { "--no-deps" };
    let mut rest = vec![first.to_owned()];
    rest.extend(is_compared_here.then(|| "--no-recreate".to_owned()));
    if finished.is_empty() {
        return Some(rest);
    }
    let named: Vec<String> = services.filter(|name| !finished.contains(*name)).cloned().collect();
    if named.is_empty() {
        return None;
    }
    rest.extend(named);
    Some(rest)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::pretended_compose::{PretendedDevice, exited, running};

    /// A component that runs well: a service that joins another one, both healthy, one beside them, and a job that is done.
    async fn plant() -> PretendedDevice {
        let job = json!({"image": "a"});
        let web = json!({"image": "a", "network_mode": "service:vpn"});
        let device = PretendedDevice::with(
            json!({"job": job, "other": {"image": "a"}, "vpn": {"image": "a"}, "web": web}),
        )
        .await;
        for service in ["other", "vpn", "web"] {
            device.put_next(&format!("{service}1"), service, &running("healthy"));
        }
        device.put_next("job1", "job", &exited(0, ""));
        device.brings_up("mv next/* containers/ || true");
        let (applied, told) = device.apply().await;
        applied.unwrap();
        assert_eq!(told, ["--remove-orphans"]);
        device
    }

    const EVERY_OTHER: &str = "--no-deps --no-recreate other vpn web";

    #[tokio::test]
    async fn what_shares_with_a_container_that_is_gone_is_made_anew_with_it_and_the_job_stays_done() {
        let device = plant().await;
        device.brings_up(
            r#"case "$all" in *--force-recreate*) rm containers/web*; mv next/* containers/ ;; esac"#,
        );
        for (gone, here, next, web) in [
            ("vpn1", "web1", ["vpn2", "web2"], running("healthy")),
            ("vpn2", "web2", ["vpn3", "web3"], exited(1, "")),
        ] {
            device.put(here, "web", &web);
            device.take_away(gone);
            for (id, service) in next.into_iter().zip(["vpn", "web"]) {
                device.put_next(id, service, &running("healthy"));
            }
            let (applied, told) = device.apply().await;
            applied.unwrap();
            assert_eq!(told, ["--no-deps --force-recreate vpn web", EVERY_OTHER]);
        }
    }

    #[tokio::test]
    async fn what_ran_on_while_what_it_shares_was_started_again_is_made_anew() {
        let device = plant().await;
        device.put("vpn1", "vpn", &exited(137, ""));
        let mut again = running("healthy");
        again["StartedAt"] = json!("2026-11-16T13:00:00Z");
        device.put_next("vpn1", "vpn", &again);
        let (applied, told) = device.apply().await;
        applied.unwrap();
        assert_eq!(told, [EVERY_OTHER, "--no-deps --force-recreate web"]);
    }

    #[tokio::test]
    async fn promise_3_what_runs_is_left_alone_by_every_try_of_a_repair() {
        for version in ["2.40.3", "2.41.0"] {
            let device = plant().await;
            device.has_compose(version).await;
            device.put("web1", "web", &exited(137, ""));
            device.brings_up("echo no such device >&2; exit 1");
            for _ in 0..3 {
                let (applied, told) = device.apply().await;
                applied.unwrap_err();
                assert!(told.iter().all(|told| told == EVERY_OTHER), "{version} {told:?}");
            }
            device.put_next("web1", "web", &running("healthy"));
            device.brings_up("mv next/* containers/");
            let (applied, told) = device.apply().await;
            applied.unwrap();
            assert_eq!(told, [EVERY_OTHER], "{version}");
        }
    }

    /// Hashes are of another kind where Compose is told names.
    #[tokio::test]
    async fn promise_3_what_an_old_compose_made_by_name_is_not_made_anew_because_of_that() {
        let services = json!({"db": {"image": "a"}, "other": {"image": "a"}, "web": {"image": "a"}});
        let device = PretendedDevice::with(services).await;
        device.has_compose("2.27.1").await;
        for service in ["db", "other", "web"] {
            device.put_next(&format!("{service}1"), service, &running("healthy"));
        }
        device.brings_up("mv next/* containers/");
        device.apply().await.0.unwrap();
        device.take_away("other1");
        device.put("web1", "web", &exited(137, ""));
        device.put_next("other2", "other", &running("healthy"));
        let made = r#"test ! -e next/other2 || { sed 's/"hash"/"by name"/' next/other2 > containers/other2; rm next/other2; }"#;
        device.brings_up(&format!("{made}; echo no such device >&2; exit 1"));
        for _ in 0..3 {
            let (applied, told) = device.apply().await;
            applied.unwrap_err();
            assert!(told.iter().all(|told| told == "--remove-orphans --no-recreate"), "{told:?}");
        }
    }

    async fn one(state: &Value) -> PretendedDevice {
        let device = PretendedDevice::with(json!({"db": {"image": "a"}})).await;
        device.put_next("db1", "db", state);
        device.brings_up("mv next/* containers/ || true");
        device
    }

    #[tokio::test]
    async fn promise_7_compose_itself_replaces_what_an_engine_lost_track_of_and_hands_on_its_volumes() {
        let device = one(&running("healthy")).await;
        device.apply().await.0.unwrap();
        device.put("db1", "db", &exited(0, "task 4f: already exists"));
        device.put_next("db2", "db", &running("healthy"));
        device.brings_up(
            r#"
            case "$all" in
            *--force-recreate*) mv containers/db1 gone; mv next/db2 containers/ ;;
            *) test -e containers/db2 ;;
            esac
            "#,
        );
        let (applied, told) = device.apply().await;
        applied.unwrap();
        assert_eq!(told, ["--remove-orphans", "--no-deps --force-recreate db", "--remove-orphans"]);
        let asked = device.engine.asked();
        assert!(
            !asked.iter().any(|asked| asked.starts_with("DELETE")),
            "its volumes would be lost: {asked:?}"
        );
    }

    #[tokio::test]
    async fn why_it_did_not_start_the_last_time_is_no_reason_to_end_the_next_try() {
        let device = one(&exited(128, "no such device")).await;
        let failure = device.apply().await.0.unwrap_err();
        assert!(failure.message.contains("no such device"), "{failure}");
        // It is there again, and Compose takes its time.
        device.put_next("db1", "db", &running("healthy"));
        device.brings_up("until test -e go; do sleep 0.01; done; mv next/* containers/");
        let mut apply = std::pin::pin!(device.apply());
        tokio::select! {
            biased;
            (applied, _) = &mut apply => panic!("{applied:?}"),
            () = device.looked_at("db1", 2) => {}
        }
        apply.await.0.unwrap();
    }

    #[tokio::test]
    async fn what_never_became_healthy_is_made_anew_when_it_is_tried_again_and_what_was_healthy_is_not() {
        let device = one(&running("unhealthy")).await;
        assert_eq!(device.apply().await.0.unwrap_err().code, FailureCode::Unhealthy);
        device.put_next("db2", "db", &running("healthy"));
        device.brings_up("test ! -e next/db2 || { mv containers/db1 gone; mv next/db2 containers/; }");
        let (applied, told) = device.apply().await;
        applied.unwrap();
        assert_eq!(told, ["--no-deps --force-recreate db", "--remove-orphans"]);
        assert_eq!(device.record().proven, None);
        // However often it is tried.
        device.put("db2", "db", &running("unhealthy"));
        for _ in 0..3 {
            let (applied, told) = device.apply().await;
            assert_eq!(applied.unwrap_err().code, FailureCode::Unhealthy);
            assert_eq!(told, ["--remove-orphans"]);
        }
    }

    #[tokio::test]
    async fn what_got_well_after_its_try_was_over_was_well_once() {
        let device = one(&running("unhealthy")).await;
        assert_eq!(device.apply().await.0.unwrap_err().code, FailureCode::Unhealthy);
        device.put("db1", "db", &running("healthy"));
        assert_eq!(device.look().await, Health::Healthy);
        assert_eq!(device.record().stage, Stage::Settled, "it may be gone back to");
        device.put("db1", "db", &running("unhealthy"));
        for _ in 0..2 {
            let (applied, told) = device.apply().await;
            assert_eq!(applied.unwrap_err().code, FailureCode::Unhealthy);
            assert_eq!(told, ["--remove-orphans"]);
        }
    }

    #[tokio::test]
    async fn what_was_well_once_is_left_alone_whatever_never_was_beside_it() {
        for is_looked_at in [false, true] {
            let device = PretendedDevice::with(json!({"db": {"image": "a"}, "web": {"image": "a"}})).await;
            let at_first = if is_looked_at { "unhealthy" } else { "healthy" };
            device.put_next("db1", "db", &running(at_first));
            device.put_next("web1", "web", &running("unhealthy"));
            device.brings_up("mv next/* containers/ || true");
            assert_eq!(device.apply().await.0.unwrap_err().code, FailureCode::Unhealthy);
            if is_looked_at {
                device.put("db1", "db", &running("healthy"));
                assert!(matches!(device.look().await, Health::Unhealthy(_)));
            }
            device.put("db1", "db", &running("unhealthy"));
            let (applied, told) = device.apply().await;
            assert_eq!(applied.unwrap_err().code, FailureCode::Unhealthy);
            assert_eq!(told, ["--no-deps --force-recreate web", "--remove-orphans"], "{is_looked_at}");
        }
    }

    #[test]
    fn compose_is_told_nothing_about_what_is_done() {
        let services = ["job", "web"].map(str::to_owned);
        let check = |finished: &[&str], is_compared_here: bool, want: Option<&str>| {
            let finished = finished.iter().map(|name| (*name).to_owned()).collect();
            let told = rest(services.iter(), &finished, is_compared_here);
            assert_eq!(told.map(|told| told.join(" ")).as_deref(), want);
        };
        check(&[], false, Some("--remove-orphans"));
        check(&[], true, Some("--remove-orphans --no-recreate"));
        check(&["job"], false, Some("--no-deps web"));
        check(&["job"], true, Some("--no-deps --no-recreate web"));
        check(&["job", "web"], true, None);
    }
}
