//! How containers are: pure reading of what an engine said, for one project at a time.
//!
//! Two questions are asked of the same facts. While a component starts: is it up, may it still come up,
//! or has it failed (PK-100…PK-102)? Later: is it still as it should be? Nothing here waits or asks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use margrave_core::device::Health;
use margrave_core::report::{Failure, FailureCode};

use super::container::{Container, RestartPolicy, Status};
use super::explain;
use super::prepared::STEADY_AFTER_RESTART;
use super::record::{Ending, Record, Service};
use super::restarts::{Lately, RESTARTS_MAX};

/// Health checks may print pages; the last words are what counts.
const OUTPUT_SHOWN_MAX: usize = 300;

/// What was brought back often in its life has to stay up for longer before it is called well: also right after the agent
/// was started, when nobody knows yet how long ago that was.
const STEADY_AFTER_RESTARTS: Duration = Duration::from_secs(120);

/// How one container is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Condition {
    /// Runs, and its health check passes if it has one.
    Running {
        checked: bool,
    },
    /// Ended with code 0, and nothing is set to start it again.
    Ended,
    /// Not yet; in words what is missing.
    Starting(String),
    /// Went down, and the engine is bringing it back.
    Restarting(Failure),
    Failed(Failure),
}

/// Whether a starting component is up.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Progress {
    /// Everything is up. `checked` says that every running container has a health check that passes, so
    /// there is nothing to wait for to be sure.
    Up {
        checked: bool,
    },
    /// May still come up; what is to be said if it does not do so in time.
    Coming(Failure),
    Failed(Failure),
}

/// How a container that does not run ended the last time: `exited with code 3`.
pub(super) fn last_exit(container: &Container) -> String {
    match container.exit_code {
        code if container.out_of_memory => format!("ran out of memory and exited with code {code}"),
        code => format!("exited with code {code}"),
    }
}

/// Looks at one container.
pub(super) fn condition(container: &Container) -> Condition {
    let service = &container.service;
    let exit = || last_exit(container);
    match container.status {
        Status::Running => match &container.health {
            Some(health) if health.unhealthy() => Condition::Failed(Failure::new(
                FailureCode::Unhealthy,
                format!("The health check of {service} fails{}.", output(health.last_output.as_deref())),
            )),
            Some(health) if health.starting() => Condition::Starting(format!(
                "the health check of {service} has not passed yet{}",
                output(health.last_output.as_deref())
            )),
            Some(_) => Condition::Running { checked: true },
            None => Condition::Running { checked: false },
        },
        Status::Created | Status::Exited if !container.error.is_empty() => {
            Condition::Failed(explain::not_started(service, &container.error))
        }
        Status::Created => Condition::Starting(format!("service {service} has not been started")),
        Status::Restarting => brought_back(
            container,
            Failure::new(
                FailureCode::StartFailed,
                format!("Service {service} keeps restarting; it last {}.", exit()),
            ),
        ),
        Status::Exited => {
            let failure = || Failure::new(FailureCode::StartFailed, format!("Service {service} {}.", exit()));
            match (container.exit_code, container.restart_policy) {
                (0, RestartPolicy::No | RestartPolicy::OnFailure { .. }) => Condition::Ended,
                (_, RestartPolicy::No) => Condition::Failed(failure()),
                (_, RestartPolicy::OnFailure { tries_max: Some(max) }) if container.restart_count >= max => {
                    Condition::Failed(failure())
                }
                // An engine may show a container as exited for a moment before it restarts it.
                _ => brought_back(container, failure()),
            }
        }
        Status::Paused => {
            Condition::Failed(Failure::new(FailureCode::StartFailed, format!("Service {service} is paused.")))
        }
        Status::Dead | Status::Removing | Status::Other => Condition::Failed(Failure::new(
            FailureCode::StartFailed,
            format!("The container of {service} is being removed or could not be removed."),
        )),
    }
}

/// A container that the engine restarts: for a while that may help.
fn brought_back(container: &Container, failure: Failure) -> Condition {
    if container.exit_code != 0 && container.restart_count >= RESTARTS_MAX {
        Condition::Failed(failure)
    } else {
        Condition::Restarting(failure)
    }
}

/// Looks at a component that is being started.
pub(super) fn progress(expected: &BTreeMap<String, Service>, containers: &[Container]) -> Progress {
    let mut coming = missing(expected, &BTreeSet::new(), containers).map(|(service, _)| {
        Failure::new(
            FailureCode::Timeout,
            format!("It took too long: service {service} has no container yet."),
        )
    });
    let mut all_checked = true;
    for container in containers.iter().filter(|c| expected.contains_key(&c.service)) {
        match condition(container) {
            Condition::Failed(failure) => return Progress::Failed(failure),
            // What keeps restarting says more than what merely needs more time.
            Condition::Restarting(failure) => coming = Some(failure),
            Condition::Starting(what) => {
                coming
                    .get_or_insert(Failure::new(FailureCode::Timeout, format!("It took too long: {what}.")));
            }
            Condition::Running { checked } => all_checked &= checked && container.restart_count == 0,
            Condition::Ended => {}
        }
    }
    match coming {
        Some(failure) => Progress::Coming(failure),
        None => Progress::Up { checked: all_checked },
    }
}

/// Looks at a component that was started some time ago.
///
/// A container without a restart policy that ended with code 0 is done only if the record says that it
/// ended by itself: a container that somebody stopped, or that went down with the machine, ends just so. What went down with
/// the machine is down; what the record says that somebody stopped is drift.
///
/// One that the engine had to bring back is not well before it has stayed up for a while: a program that ends every few
/// seconds is found running more often than not. `lately` has those that it brings back again and again.
pub(super) fn health(
    record: Option<&Record>,
    containers: &[Container],
    lately: &Lately,
    now: Timestamp,
) -> Health {
    let lacking = record.and_then(|record| missing(&record.services, &record.done, containers));
    if let Some((service, have)) = lacking {
        return Health::Drifted(match have {
            0 => format!("service {service} is missing"),
            _ => format!("service {service} has only {have} of its containers"),
        });
    }
    let mut starting = false;
    for container in containers {
        let service = &container.service;
        match condition(container) {
            _ if container.status == Status::Exited
                && record.is_some_and(|record| record.stopped.contains(&ending(container))) =>
            {
                return Health::Drifted(format!("service {service} was stopped"));
            }
            Condition::Failed(failure) | Condition::Restarting(failure) => {
                let words = as_clause(&failure.message);
                return match container.status {
                    Status::Running => Health::Unhealthy(words),
                    Status::Created | Status::Exited | Status::Restarting => Health::Down(words),
                    Status::Paused | Status::Removing | Status::Dead | Status::Other => {
                        Health::Drifted(words)
                    }
                };
            }
            Condition::Starting(_) if container.status == Status::Created => {
                return Health::Drifted(format!("service {service} was never started"));
            }
            Condition::Ended
                if !record.is_some_and(|record| record.completed.contains(&ending(container))) =>
            {
                return Health::Down(format!("service {service} was stopped"));
            }
            Condition::Running { .. } | Condition::Starting(_) if lately.loops(container) => {
                return Health::Down(as_clause(&lately.keeps_restarting(container)));
            }
            Condition::Running { .. } if brought_back_within(container, STEADY_AFTER_RESTART, now) => {
                if container.restart_count >= RESTARTS_MAX {
                    return Health::Down(as_clause(&lately.keeps_restarting(container)));
                }
                starting = true;
            }
            Condition::Running { .. }
                if container.restart_count >= RESTARTS_MAX
                    && brought_back_within(container, STEADY_AFTER_RESTARTS, now) =>
            {
                starting = true;
            }
            Condition::Starting(_) => starting = true,
            Condition::Running { .. } | Condition::Ended => {}
        }
    }
    if starting { Health::Starting } else { Health::Healthy }
}

/// Whether the engine brought it back so lately. A clock that was set back since then tells nothing.
pub(super) fn brought_back_within(container: &Container, time: Duration, now: Timestamp) -> bool {
    let up = || Duration::try_from(now.duration_since(container.started_at.parse().ok()?)).ok();
    container.restart_count > 0 && up().is_some_and(|up| up < time)
}

/// Containers that ended and of which the record does not say yet why.
pub(super) fn unexplained<'a>(
    record: &'a Record,
    containers: &'a [Container],
) -> impl Iterator<Item = &'a Container> {
    let known = |ending: &Ending| record.completed.contains(ending) || record.stopped.contains(ending);
    containers.iter().filter(move |c| c.status == Status::Exited && !known(&ending(c)))
}

pub(super) fn ending(container: &Container) -> Ending {
    Ending { container: container.id.clone(), finished_at: container.finished_at.clone() }
}

/// Whether the containers are those that the record's fingerprint was started with, no more of them, and as they were.
pub(super) fn as_recorded(record: &Record, containers: &[Container]) -> bool {
    let known = |container: &Container| {
        let service = record.services.get(&container.service);
        service.is_some_and(|s| s.hash.is_some() && s.hash == container.config_hash && !bent(s, container))
    };
    let crowded = |(name, service): (&String, &Service)| {
        containers.iter().filter(|c| &c.service == name).count() > service.replicas as usize
    };
    containers.iter().all(known) && !record.services.iter().any(crowded)
}

/// Whether somebody changed the container in a way that Compose does not see.
pub(super) fn bent(service: &Service, container: &Container) -> bool {
    service.adjustable.as_ref().is_some_and(|started| !started.is_like(&container.adjustable))
}

/// Services that are done: all their containers are here, and ended by themselves with code 0.
pub(super) fn done(record: &Record, containers: &[Container]) -> BTreeSet<String> {
    let is_done = |(name, service): &(&String, &Service)| {
        let mut of_service = containers.iter().filter(|c| &c.service == *name).peekable();
        of_service.peek().is_some()
            && of_service.clone().count() >= service.replicas as usize
            && of_service.all(|c| record.completed.contains(&ending(c)))
    };
    record.services.iter().filter(is_done).map(|(name, _)| name.clone()).collect()
}

fn missing<'a>(
    expected: &'a BTreeMap<String, Service>,
    done: &BTreeSet<String>,
    containers: &[Container],
) -> Option<(&'a str, usize)> {
    expected.iter().filter(|(name, _)| !done.contains(*name)).find_map(|(name, service)| {
        let have = containers.iter().filter(|c| &c.service == name).count();
        (have < service.replicas as usize).then_some((name.as_str(), have))
    })
}

/// `Service web exited with code 1.` → `service web exited with code 1`: a reason inside a sentence.
fn as_clause(sentence: &str) -> String {
    let clause = sentence.trim_end_matches('.');
    let mut characters = clause.chars();
    characters.next().map_or_else(String::new, |first| first.to_lowercase().chain(characters).collect())
}

fn output(text: Option<&str>) -> String {
    let text = text.unwrap_or_default().trim();
    if text.is_empty() {
        return String::new();
    }
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skip = line.chars().count().saturating_sub(OUTPUT_SHOWN_MAX);
    let shown: String = line.chars().skip(skip).collect();
    format!(": {}{}", if skip > 0 { "…" } else { "" }, shown.trim_end_matches('.'))
}

#[cfg(test)]
pub(super) mod tests {
    use margrave_core::digest::Digest;
    use margrave_core::id::{AssignmentId, ComponentName};

    use serde_json::json;

    use super::*;
    use crate::runtime::adjustable::{Adjustable, Called};
    use crate::runtime::container::HealthState;
    use crate::runtime::record::Stage;
    use crate::runtime::record::tests::{self, service};

    const NOW: &str = "2026-11-16T12:00:00Z";

    pub(crate) fn container(service: &str, status: Status) -> Container {
        Container {
            id: format!("id-{service}"),
            service: service.into(),
            project: "p".into(),
            assignment: None,
            component: None,
            config_hash: Some(format!("hash-{service}")),
            status,
            exit_code: 0,
            error: String::new(),
            out_of_memory: false,
            started_at: "s".into(),
            finished_at: "f".into(),
            health: None,
            restart_count: 0,
            restart_policy: RestartPolicy::No,
            stop_signal: None,
            adjustable: Default::default(),
            volumes: BTreeMap::new(),
        }
    }

    fn exited(service: &str, code: i64, restart_policy: RestartPolicy) -> Container {
        Container { exit_code: code, restart_policy, ..container(service, Status::Exited) }
    }

    fn checked(service: &str, status: &str, said: &str) -> Container {
        let health = HealthState { status: status.into(), last_output: Some(said.into()) };
        Container { health: Some(health), ..container(service, Status::Running) }
    }

    fn expected(names: &[&str]) -> BTreeMap<String, Service> {
        names
            .iter()
            .map(|n| {
                (
                    n.to_string(),
                    Service {
                        replicas: 1,
                        hash: Some(format!("hash-{n}")),
                        adjustable: Some(Default::default()),
                        ..service()
                    },
                )
            })
            .collect()
    }

    fn record(names: &[&str], completed: &[&Container]) -> Record {
        Record {
            assignment: AssignmentId::parse("0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11").unwrap(),
            component: ComponentName::parse("c").unwrap(),
            fingerprint: Digest::of(b"f"),
            stage: Stage::Settled,
            services: expected(names),
            completed: completed.iter().map(|c| ending(c)).collect::<BTreeSet<_>>(),
            ..tests::record()
        }
    }

    fn check_start(containers: &[Container], want: &str) {
        let names: Vec<&str> = containers.iter().map(|c| c.service.as_str()).collect();
        let got = match progress(&expected(&names), containers) {
            Progress::Up { checked } => format!("up{}", if checked { ", checked" } else { "" }),
            Progress::Coming(failure) => format!("coming; {}: {failure}", failure.code),
            Progress::Failed(failure) => format!("{}: {failure}", failure.code),
        };
        assert_eq!(got, want);
    }

    fn check_health(record: &Record, containers: &[Container], want: &str) {
        check_loops(record, containers, &[], want);
    }

    /// The same with containers of these services in a loop.
    fn check_loops(record: &Record, containers: &[Container], looping: &[&str], want: &str) {
        let lately = Lately {
            looping: looping.iter().map(|service| format!("id-{service}")).collect(),
            exits: BTreeMap::from([("id-known".to_owned(), "exited with code 3".to_owned())]),
        };
        let got = match health(Some(record), containers, &lately, NOW.parse().unwrap()) {
            Health::Healthy => "healthy".to_owned(),
            Health::Starting => "starting".to_owned(),
            Health::Unhealthy(why) => format!("sick: {why}"),
            Health::Down(why) => format!("down: {why}"),
            Health::Drifted(why) => format!("drift: {why}"),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn pk_100_all_containers_run_before_it_is_up() {
        let web = container("web", Status::Running);
        check_start(&[web.clone(), container("db", Status::Running)], "up");
        check_start(
            &[web, container("db", Status::Created)],
            "coming; timeout: It took too long: service db has not been started.",
        );
        let none = progress(&expected(&["web"]), &[]);
        assert!(matches!(none, Progress::Coming(f) if f.message.contains("web has no container")));
    }

    #[test]
    fn pk_101_a_container_that_exits_with_an_error_fails_at_once() {
        let failed = exited("job", 3, RestartPolicy::No);
        check_start(
            &[container("web", Status::Created), failed],
            "start-failed: Service job exited with code 3.",
        );
        check_start(&[exited("job", 0, RestartPolicy::No)], "up, checked");
        check_start(
            &[
                exited("job", 0, RestartPolicy::OnFailure { tries_max: None }),
                container("web", Status::Running),
            ],
            "up",
        );
        let killed = Container { out_of_memory: true, ..exited("job", 137, RestartPolicy::No) };
        check_start(&[killed], "start-failed: Service job ran out of memory and exited with code 137.");
    }

    #[test]
    fn pk_101_what_the_engine_brings_back_has_three_tries() {
        let web = Container { exit_code: 3, restart_count: 2, ..container("web", Status::Restarting) };
        check_start(
            &[container("db", Status::Created), web.clone()],
            "coming; start-failed: Service web keeps restarting; it last exited with code 3.",
        );
        check_start(
            &[exited("web", 3, RestartPolicy::Always)],
            "coming; start-failed: Service web exited with code 3.",
        );
        check_start(
            &[Container { restart_count: 3, ..web.clone() }],
            "start-failed: Service web keeps restarting; it last exited with code 3.",
        );
        check_start(
            &[Container { restart_count: 3, ..exited("web", 3, RestartPolicy::Always) }],
            "start-failed: Service web exited with code 3.",
        );
        // Ending well is not failing, however often.
        check_start(
            &[Container { restart_count: 9, exit_code: 0, ..web }],
            "coming; start-failed: Service web keeps restarting; it last exited with code 0.",
        );
        let given_up = exited("web", 3, RestartPolicy::OnFailure { tries_max: Some(2) });
        check_start(
            &[Container { restart_count: 2, ..given_up }],
            "start-failed: Service web exited with code 3.",
        );
        // Running just now after a restart is not yet proof of anything.
        check_start(&[Container { restart_count: 2, ..checked("web", "healthy", "") }], "up");
    }

    #[test]
    fn pk_102_health_checks_are_waited_for() {
        check_start(
            &[checked("web", "starting", "connection\nrefused")],
            "coming; timeout: It took too long: the health check of web has not passed yet: connection refused.",
        );
        check_start(&[checked("web", "healthy", "ok"), exited("job", 0, RestartPolicy::No)], "up, checked");
        check_start(
            &[checked("web", "unhealthy", " no  db\n")],
            "unhealthy: The health check of web fails: no db.",
        );
    }

    #[test]
    fn a_container_that_could_not_start_says_why() {
        let web = Container { error: "no such device".into(), ..container("web", Status::Created) };
        check_start(&[web], "start-failed: Service web could not start: no such device.");
        let error = "Bind for 0.0.0.0:8080 failed: port is already allocated";
        for status in [Status::Created, Status::Exited] {
            let web = Container { error: error.into(), exit_code: 128, ..container("web", status) };
            let taken = format!(
                "create-failed: Service web cannot have port 8080 of the device, which is taken: {error}."
            );
            check_start(&[web], &taken);
        }
    }

    #[test]
    fn promise_5_what_people_did_to_containers_is_seen() {
        let web = container("web", Status::Running);
        let record = record(&["web", "db"], &[]);
        let with = |db: Container| vec![web.clone(), db];
        check_health(&record, &with(checked("db", "healthy", "")), "healthy");
        check_health(&record, &with(checked("db", "starting", "")), "starting");
        check_health(&record, std::slice::from_ref(&web), "drift: service db is missing");
        check_health(&record, &[], "drift: service db is missing");
        check_health(
            &record,
            &with(exited("db", 1, RestartPolicy::No)),
            "down: service db exited with code 1",
        );
        // Nobody knows why: as after a shutdown of the machine.
        check_health(&record, &with(exited("db", 0, RestartPolicy::No)), "down: service db was stopped");
        let ended = exited("db", 0, RestartPolicy::Always);
        check_health(&record, &with(ended), "down: service db exited with code 0");
        check_health(&record, &with(container("db", Status::Paused)), "drift: service db is paused");
        check_health(&record, &with(container("db", Status::Created)), "drift: service db was never started");
        check_health(
            &record,
            &with(checked("db", "unhealthy", "x")),
            "sick: the health check of db fails: x",
        );
    }

    #[test]
    fn a_one_shot_container_that_ended_by_itself_is_done() {
        let job = exited("job", 0, RestartPolicy::No);
        check_health(&record(&["job"], &[&job]), std::slice::from_ref(&job), "healthy");
        // The same container, run once more and stopped, is not.
        let again = Container { finished_at: "later".into(), ..job.clone() };
        let remembered = record(&["job"], &[&job]);
        check_health(&remembered, std::slice::from_ref(&again), "down: service job was stopped");
        assert_eq!(unexplained(&remembered, &[job, again]).count(), 1);
    }

    #[test]
    fn promise_5_what_somebody_stopped_is_drift_whatever_it_said_in_the_end() {
        for (code, policy) in [(0, RestartPolicy::No), (137, RestartPolicy::No), (143, RestartPolicy::Always)]
        {
            let web = exited("web", code, policy);
            let mut known = record(&["web"], &[]);
            assert_eq!(unexplained(&known, std::slice::from_ref(&web)).count(), 1);
            known.stopped.insert(ending(&web));
            assert_eq!(unexplained(&known, std::slice::from_ref(&web)).count(), 0);
            check_health(&known, std::slice::from_ref(&web), "drift: service web was stopped");
            // Started again, and down for another reason.
            let again = Container { finished_at: "later".into(), exit_code: 3, ..web };
            check_health(&known, &[again], "down: service web exited with code 3");
        }
    }

    #[test]
    fn all_replicas_are_wanted() {
        let mut record = record(&["web"], &[]);
        record.services.get_mut("web").unwrap().replicas = 2;
        let web = container("web", Status::Running);
        check_health(&record, std::slice::from_ref(&web), "drift: service web has only 1 of its containers");
        check_health(&record, &[web.clone(), web], "healthy");
    }

    #[test]
    fn a_container_that_was_started_otherwise_is_not_the_recorded_one() {
        let record = record(&["web"], &[]);
        let web = container("web", Status::Running);
        assert!(as_recorded(&record, std::slice::from_ref(&web)));
        assert!(!as_recorded(&record, &[Container { config_hash: Some("other".into()), ..web.clone() }]));
        assert!(!as_recorded(&record, &[web, container("stranger", Status::Running)]));
    }

    #[test]
    fn long_output_of_a_health_check_is_cut_from_the_front() {
        let failure = match condition(&checked("web", "unhealthy", &format!("{}the end", "é".repeat(5000))))
        {
            Condition::Failed(failure) => failure.message,
            other => panic!("{other:?}"),
        };
        assert!(failure.ends_with("the end.") && failure.chars().count() < 400, "{failure}");
    }

    #[test]
    fn promise_5_what_compose_does_not_see_is_seen() {
        let web = container("web", Status::Running);
        let as_started = record(&["web"], &[]);
        assert!(as_recorded(&as_started, std::slice::from_ref(&web)));
        let changed = Adjustable::read(
            &json!({"RestartPolicy": {"Name": "always"}}),
            &json!({}),
            true,
            Called::default(),
        );
        let bent = Container { adjustable: changed, ..web.clone() };
        assert!(!as_recorded(&as_started, std::slice::from_ref(&bent)));
        let second = Container { id: "second".into(), ..web.clone() };
        assert!(!as_recorded(&as_started, &[web.clone(), second]), "one more than was ordered");
        assert!(!as_recorded(&as_started, &[web, container("extra", Status::Running)]));
        // An older agent noted less.
        let mut older = record(&["web"], &[]);
        older.services.get_mut("web").unwrap().adjustable = None;
        assert!(as_recorded(&older, &[bent]));
    }

    #[test]
    fn promise_3_a_job_that_is_done_stays_done_without_its_container() {
        let job = exited("job", 0, RestartPolicy::No);
        let web = container("web", Status::Running);
        let mut known = record(&["job", "web"], &[&job]);
        assert_eq!(done(&known, &[job.clone(), web.clone()]), ["job".to_owned()].into());
        assert!(
            done(&record(&["job", "web"], &[]), &[job, web.clone()]).is_empty(),
            "it may have been stopped"
        );
        check_health(&known, std::slice::from_ref(&web), "drift: service job is missing");
        known.done = ["job".to_owned()].into();
        check_health(&known, &[web], "healthy");
        check_health(&known, &[], "drift: service web is missing");
    }

    #[test]
    fn what_was_brought_back_is_well_once_it_stays_up() {
        let known = record(&["web"], &[]);
        let brought_back = |restart_count, started_at: &str| Container {
            restart_count,
            started_at: started_at.into(),
            ..container("web", Status::Running)
        };
        check_health(&known, &[brought_back(1, "2026-11-16T11:59:55Z")], "starting");
        check_health(
            &known,
            &[brought_back(3, "2026-11-16T11:59:55Z")],
            "down: service web keeps restarting",
        );
        check_health(&known, &[brought_back(2, "2026-11-16T11:59:49Z")], "healthy");
        // It may be in a loop that nobody has followed yet.
        check_health(&known, &[brought_back(3, "2026-11-16T11:59:49Z")], "starting");
        check_health(&known, &[brought_back(3, "2026-11-16T11:57:59Z")], "healthy");
        check_health(&known, &[brought_back(0, "2026-11-16T11:59:59Z")], "healthy");
        // By a clock that was set back, or in words that nobody knows.
        for started_at in ["2026-11-16T13:00:00Z", "", "yesterday"] {
            check_health(&known, &[brought_back(3, started_at)], "healthy");
        }
    }
    #[test]
    fn what_is_in_a_loop_is_not_well_however_long_it_runs_and_a_job_that_came_to_its_end_is() {
        let known = record(&["web"], &[]);
        let looping = "down: service web keeps restarting";
        check_loops(&known, &[container("web", Status::Running)], &["web"], looping);
        check_loops(&known, &[checked("web", "healthy", "")], &["web"], looping);
        check_loops(&known, &[checked("web", "starting", "")], &["web"], looping);
        let seen_before = Container { id: "id-known".into(), ..container("web", Status::Running) };
        check_loops(
            &known,
            &[seen_before],
            &["known"],
            "down: service web keeps restarting; it last exited with code 3",
        );
        check_loops(
            &known,
            &[checked("web", "unhealthy", "x")],
            &["web"],
            "sick: the health check of web fails: x",
        );
        check_loops(&known, &[container("web", Status::Running)], &["other"], "healthy");
        let job = exited("web", 0, RestartPolicy::OnFailure { tries_max: None });
        check_loops(&record(&["web"], &[&job]), std::slice::from_ref(&job), &["web"], "healthy");
    }
}
