//! An order that is ready to be carried out, and waiting until what it starts is up.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::report::{Failure, FailureCode};
use tokio::time::Instant;

use super::compose::{ComposeRuntime, disk};
use super::container::{Container, LABEL_PROJECT, Status};
use super::engine::Engine;
use super::health::{self, Progress};
use super::model::Model;
use super::program::Compose;
use super::project::{ProjectDirectory, ProjectLock, ProjectName};
use super::record::Record;
use super::trial;

/// How often to look while something starts: at first often, because most things are up within a second.
pub(super) const LOOK_FIRST: Duration = Duration::from_millis(100);
const LOOK_LATER: Duration = Duration::from_millis(500);
const LOOK_OFTEN_FOR: Duration = Duration::from_secs(5);

/// A container without a health check counts as up when it has run for this long: programs that cannot find
/// their configuration end within milliseconds, and PK-101 wants that seen.
const STEADY_AFTER: Duration = Duration::from_secs(1);
/// The same for one that the engine has already had to restart; Docker uses the same measure for its backoff.
pub(super) const STEADY_AFTER_RESTART: Duration = Duration::from_secs(10);

/// An order with everything it needs on the device.
pub(super) struct Prepared {
    pub(super) project: ProjectName,
    pub(super) directory: ProjectDirectory,
    /// Where something is to be changed; whoever only fetches has none.
    pub(super) lock: Option<ProjectLock>,
    pub(super) archive: Digest,
    /// The directory with `compose.yaml`.
    pub(super) files: PathBuf,
    pub(super) model: Model,
    pub(super) variables: BTreeMap<OsString, OsString>,
    pub(super) compose: Compose,
    pub(super) engine: Engine,
}

impl Prepared {
    pub(super) async fn containers(&self) -> Result<Vec<Container>, Failure> {
        Ok(self.engine.containers(&[(LABEL_PROJECT, self.project.as_str())]).await?)
    }

    pub(super) fn write(&self, record: &Record) -> Result<(), Failure> {
        self.directory
            .write_record(record)
            .map_err(|error| disk("What was started could not be noted", error))
    }
}

/// Looks again and again until everything is up and stays so, or something has failed, or time is up. Who is well meanwhile is taken
/// down, and not written: mostly all are in the end.
pub(super) async fn wait_until_up(
    runtime: &ComposeRuntime,
    prepared: &Prepared,
    record: &mut Record,
    deadline: Instant,
) -> Result<Vec<Container>, Failure> {
    let began = Instant::now();
    let awaited = record.awaited();
    let mut steady: Option<(Instant, Vec<(String, String)>)> = None;
    loop {
        let containers = prepared.containers().await?;
        runtime.restarts().note_exits(containers.iter());
        trial::note_well(record, &containers);
        let late = Instant::now() >= deadline;
        match health::progress(&awaited, &containers) {
            Progress::Failed(failure) => return Err(failure),
            Progress::Coming(failure) if late => return Err(failure),
            Progress::Coming(_) => steady = None,
            Progress::Up { checked: true } => return Ok(containers),
            Progress::Up { checked: false } => {
                let runs: Vec<_> = containers.iter().map(|c| (c.id.clone(), c.started_at.clone())).collect();
                let restarted = containers.iter().find(|container| container.restart_count > 0);
                let enough = if restarted.is_some() { STEADY_AFTER_RESTART } else { STEADY_AFTER };
                let since = match steady.take() {
                    Some((since, same)) if same == runs => since,
                    _ => Instant::now(),
                };
                if since.elapsed() >= enough || (late && restarted.is_none()) {
                    return Ok(containers);
                }
                if let (true, Some(container)) = (late, restarted) {
                    let message = runtime.lately().keeps_restarting(container);
                    return Err(Failure::new(FailureCode::StartFailed, message));
                }
                steady = Some((since, runs));
            }
        }
        tokio::time::sleep(if began.elapsed() < LOOK_OFTEN_FOR { LOOK_FIRST } else { LOOK_LATER }).await;
    }
}

/// Comes back when a container that was not there before, or runs anew, has failed for good.
pub(super) async fn first_failure(
    runtime: &ComposeRuntime,
    prepared: &Prepared,
    before: &[Container],
) -> Failure {
    loop {
        tokio::time::sleep(LOOK_LATER).await;
        // Compose runs into the same trouble with the engine, and it is told then.
        let Ok(containers) = prepared.containers().await else { continue };
        runtime.restarts().note_exits(containers.iter());
        for container in containers.into_iter().filter(|container| is_new(container, before)) {
            // Compose sees what it cannot start and what does not get healthy by itself.
            if let health::Condition::Failed(failure) = health::condition(&container)
                && matches!(container.status, Status::Exited | Status::Restarting)
            {
                return failure;
            }
        }
    }
}

/// Whether a container is not as it was before. One that ran before and has ended is none, nor one that the engine kept bringing back:
/// Compose stopped it, to replace it, or it goes on failing until it is replaced. Nor is one that could not start for the same reason:
/// engines keep that until it runs, and nobody knows whether it was tried again. Compose does, and says it in the end.
pub(super) fn is_new(container: &Container, before: &[Container]) -> bool {
    let had_its_turn = |earlier: &Container| {
        earlier.id == container.id
            && matches!(earlier.status, Status::Running | Status::Restarting)
            && matches!(container.status, Status::Exited | Status::Restarting)
            && container.error.is_empty()
    };
    let same = |earlier: &Container| {
        (&earlier.id, &earlier.started_at, &earlier.error)
            == (&container.id, &container.started_at, &container.error)
            && (earlier.health == container.health || container.status == Status::Exited)
    };
    !before.iter().any(|earlier| same(earlier) || had_its_turn(earlier))
}

/// What has become of containers in this try, while it goes on: first those that it made or started. What stood still before and is
/// as it was it has not come to yet, whatever that ended with.
pub(super) fn so_far(now: Vec<Container>, before: &[Container]) -> Vec<Container> {
    let (mut containers, mut others): (Vec<_>, Vec<_>) =
        now.into_iter().partition(|container| is_new(container, before));
    for container in &mut others {
        if matches!(container.status, Status::Created | Status::Exited) {
            container.status = Status::Created;
            container.error.clear();
        }
    }
    containers.extend(others);
    containers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::container::{HealthState, RestartPolicy};
    use crate::runtime::explain;
    use crate::runtime::health::tests::container;
    use crate::runtime::record::tests::service;

    #[test]
    fn what_compose_stops_to_replace_it_has_not_failed() {
        let health = |status: &str| Some(HealthState { status: status.into(), last_output: None });
        let old = Container {
            id: "old".into(),
            project: "p".into(),
            service: "web".into(),
            assignment: None,
            component: None,
            config_hash: None,
            status: Status::Running,
            exit_code: 0,
            error: String::new(),
            out_of_memory: false,
            started_at: "1".into(),
            finished_at: String::new(),
            health: health("healthy"),
            restart_count: 0,
            restart_policy: RestartPolicy::No,
            stop_signal: None,
            adjustable: Default::default(),
            volumes: Default::default(),
        };
        let check = |now: Container, new: bool| {
            assert_eq!(is_new(&now, std::slice::from_ref(&old)), new, "{now:?}");
        };
        check(old.clone(), false);
        let stopped =
            Container { status: Status::Exited, exit_code: 137, health: health("unhealthy"), ..old.clone() };
        check(stopped.clone(), false);
        // The engine brought it back once more, in vain.
        check(Container { started_at: "2".into(), ..stopped.clone() }, false);
        check(Container { started_at: "2".into(), status: Status::Restarting, ..stopped.clone() }, false);
        check(Container { id: "new".into(), ..stopped.clone() }, true);
        let failed = |why: &str| Container { error: why.into(), ..stopped.clone() };
        check(failed("port is taken"), true);
        check(Container { health: health("unhealthy"), ..old.clone() }, true);
        let again = |now: &Container| is_new(now, &[failed("port is taken")]);
        assert!(!again(&failed("port is taken")), "nobody knows whether it was tried");
        assert!(again(&failed("no such device")));
        assert!(
            again(&Container { started_at: "2".into(), ..stopped.clone() }),
            "it could be started this time"
        );
    }
    #[test]
    fn what_a_try_has_not_come_to_yet_is_not_why_it_takes_too_long() {
        let of = |service: &str, status| Container {
            error: if status == Status::Exited { "no such device".into() } else { String::new() },
            ..container(service, status)
        };
        let stuck = of("web", Status::Exited);
        let health = Some(HealthState { status: "starting".into(), last_output: None });
        let db = Container { health, ..of("db", Status::Running) };
        let expected = ["db", "web"].map(|name| (name.to_owned(), service())).into();
        let said = |now: &[Container], before: &[Container]| {
            explain::too_long(&expected, &so_far(now.to_vec(), before)).message
        };
        let now = [stuck.clone(), db.clone()];
        assert_eq!(
            said(&now, std::slice::from_ref(&stuck)),
            "It took too long: the health check of db has not passed yet."
        );
        assert_eq!(said(&now, &[db]), "Service web could not start: no such device.");
        assert_eq!(
            said(std::slice::from_ref(&stuck), std::slice::from_ref(&stuck)),
            "It took too long: service db has no container yet."
        );
    }
}
