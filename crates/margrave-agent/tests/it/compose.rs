//! The real runtime: Compose on a real engine, components from a real registry.

use std::time::{Duration, Instant};

use margrave_agent::runtime::Runtime;
use margrave_core::device::{Health, Order};
use margrave_core::id::AssignmentId;
use margrave_core::package::{ProfileKind, Timeout};
use margrave_core::report::FailureCode;

use crate::rig::{self, Rig, WEB, on_engine, on_engines, text, until};

on_engines! {
    it_is_installed_left_alone_updated_and_removed,
    an_image_that_does_not_exist_is_named,
    pk_101_a_container_that_exits_with_an_error_fails_at_once,
    pk_101_a_failing_service_is_not_waited_for_behind_a_slow_one,
    pk_101_a_service_that_keeps_restarting_is_not_waited_for,
    pk_101_a_one_shot_container_is_done,
    a_job_that_ends_later_by_itself_is_done,
    dm_191_values_arrive_verbatim,
    promise_7_relative_mounts_survive_an_update,
    prefetching_changes_nothing_that_runs,
    two_devices_and_two_assignments_do_not_meet,
    a_port_that_is_taken_is_named,
    what_is_no_component_is_refused,
    a_compose_file_that_is_wrong_is_refused,
    two_replicas_are_both_wanted,
    ob_093_every_container_is_told_the_collector,
    what_it_writes_is_counted,
}

// Podman runs health checks by systemd timers, which a test machine need not have; Compose recreates
// containers on Podman that it leaves alone on Docker; and Podman 4.3 does not tell a container that was
// stopped from one that ended.
on_engine! {
    docker_alone, "MARGRAVE_TEST_DOCKER_HOST":
    pk_102_a_failing_health_check_is_told_with_its_words,
    dm_033_what_takes_longer_than_its_timeout_fails,
    dm_032_without_waiting_it_comes_back_at_once,
    services_start_in_the_order_of_their_dependencies,
    a_value_for_one_service_leaves_the_others_running,
    a_changed_file_in_the_archive_reaches_its_service,
    a_changed_value_in_configs_and_secrets_reaches_its_service,
}

/// Bytes in files under a directory.
fn size(path: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let of = |entry: std::fs::DirEntry| match entry.metadata().unwrap() {
        directory if directory.is_dir() => size(&entry.path()),
        file => file.len(),
    };
    entries.map(of).sum()
}

async fn what_it_writes_is_counted(rig: Rig) {
    rig.applied("web", WEB).await;
    // More than is there, because records are written again and again.
    let (counted, there) = (rig.runtime.bytes_written(), size(&rig.data));
    assert!(there > 0 && counted >= there && counted < there * 5, "{counted} of {there}");
    rig.runtime.observe().await.unwrap();
    assert_eq!(rig.runtime.bytes_written(), counted, "a look writes nothing");
    rig.finish().await;
}

async fn it_is_installed_left_alone_updated_and_removed(rig: Rig) {
    let order = rig.compose("web", WEB).await;
    rig.runtime.prefetch(&order).await.unwrap();
    assert_eq!(rig.runtime.observe().await.unwrap(), []);
    rig.runtime.apply(&order).await.unwrap();
    let seen = rig.seen().await;
    assert_eq!((seen.assignment, &seen.component), (order.assignment, &order.component));
    assert_eq!((seen.fingerprint, seen.health), (Some(order.fingerprint()), Health::Healthy));

    let web = rig.container("web", "web");
    rig.exec(&web, "echo kept > /data/file");
    let started = rig.started_at(&web);
    let began = Instant::now();
    rig.runtime.apply(&order).await.unwrap();
    rig.restarted().apply(&order).await.unwrap();
    assert_eq!(
        rig.started_at(&web),
        started,
        "the same order touches nothing, also after a restart of the agent"
    );
    assert!(began.elapsed() < Duration::from_secs(5));

    let update = Order { values: vec![("GREETING".into(), text("good evening"))], ..order.clone() };
    rig.runtime.apply(&update).await.unwrap();
    let updated = rig.container("web", "web");
    assert_ne!(updated, web);
    assert_eq!(rig.exec(&updated, "cat /data/file"), "kept", "volumes survive an update");
    assert_eq!(rig.exec(&updated, "echo $GREETING"), "good evening");
    assert_eq!(rig.seen().await.fingerprint, Some(update.fingerprint()));

    rig.runtime.remove(order.assignment, &order.component).await.unwrap();
    let [containers, networks, volumes] = rig.left("web");
    assert_eq!((containers.as_str(), networks.as_str()), ("", ""));
    assert!(!volumes.is_empty(), "only an explicit policy removes data");
    assert_eq!(rig.runtime.observe().await.unwrap(), []);
    assert_eq!(std::fs::read_dir(rig.data.join("artifacts")).unwrap().count(), 0);
    rig.runtime.remove(order.assignment, &order.component).await.unwrap();

    rig.runtime.apply(&order).await.unwrap();
    assert_eq!(rig.exec(&rig.container("web", "web"), "cat /data/file"), "kept");
    rig.finish().await;
}

async fn an_image_that_does_not_exist_is_named(rig: Rig) {
    let compose = "services: {web: {image: \"${MARGRAVE_REGISTRY}/nonesuch:1\"}}";
    let order = rig.compose("web", compose).await;
    for result in [rig.runtime.prefetch(&order).await, rig.runtime.apply(&order).await] {
        let failure = result.unwrap_err();
        // Podman does not speak plain HTTP to a registry unless it is told to.
        let codes = [FailureCode::PullNotFound, FailureCode::PullFailed];
        assert!(codes[..if rig.is_podman() { 2 } else { 1 }].contains(&failure.code), "{failure}");
        assert!(failure.message.contains("/nonesuch:1 could not be pulled"), "{failure}");
        assert_eq!(failure.component.as_ref(), Some(&order.component));
    }
    assert_eq!(rig.runtime.observe().await.unwrap(), [], "nothing was started");
    rig.finish().await;
}

async fn pk_101_a_container_that_exits_with_an_error_fails_at_once(rig: Rig) {
    let compose = r#"
services:
  web: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
  job: {image: "{IMAGE}", command: [sh, -c, "sleep 0.3; exit 3"]}
"#;
    let order = rig.compose("web", compose).await;
    let began = Instant::now();
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.message.as_str()),
        (FailureCode::StartFailed, "Service job exited with code 3.")
    );
    assert!(began.elapsed() < Duration::from_secs(30), "it is not waited until the timeout");
    let seen = rig.seen().await;
    assert_eq!(seen.health, Health::Down("service job exited with code 3".into()));
    assert_eq!(seen.fingerprint, Some(order.fingerprint()), "what was applied stays");
    rig.finish().await;
}

async fn pk_101_a_failing_service_is_not_waited_for_behind_a_slow_one(rig: Rig) {
    let compose = r#"
services:
  db:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    healthcheck: {test: ["CMD", "false"], interval: 1s, retries: 1000}
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    depends_on: {db: {condition: service_healthy}}
  job: {image: "{IMAGE}", command: [sh, -c, "exit 4"]}
"#;
    let order = rig.compose("web", compose).await;
    let began = Instant::now();
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.message.as_str()),
        (FailureCode::StartFailed, "Service job exited with code 4.")
    );
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    rig.finish().await;
}

async fn pk_101_a_service_that_keeps_restarting_is_not_waited_for(rig: Rig) {
    let compose = r#"
services:
  web: {image: "{IMAGE}", command: [sh, -c, "exit 5"], restart: always}
"#;
    let order = rig.compose("web", compose).await;
    let began = Instant::now();
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::StartFailed, "{failure}");
    assert!(failure.message.starts_with("Service web ") && failure.message.contains("code 5"), "{failure}");
    assert!(began.elapsed() < Duration::from_secs(30), "its timeout is a minute");
    assert!(matches!(rig.health().await, Health::Down(why) if why.contains("web")));
    rig.finish().await;
}

async fn pk_101_a_one_shot_container_is_done(rig: Rig) {
    let compose = r#"
services:
  migrate: {image: "{IMAGE}", command: [sh, -c, "exit 0"]}
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    depends_on: {migrate: {condition: service_completed_successfully}}
"#;
    let order = rig.applied("web", compose).await;
    assert_eq!(rig.health().await, Health::Healthy);
    let job = rig.started_at(&rig.container("web", "migrate"));
    rig.runtime.apply(&order).await.unwrap();
    assert_eq!(rig.started_at(&rig.container("web", "migrate")), job, "a job that is done is not done again");
    rig.finish().await;
}

async fn pk_102_a_failing_health_check_is_told_with_its_words(rig: Rig) {
    let compose = r#"
services:
  db: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    healthcheck: {test: ["CMD-SHELL", "echo no route to plc; exit 1"], interval: 1s, retries: 2}
"#;
    let order = rig.compose("web", compose).await;
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.message.as_str()),
        (FailureCode::Unhealthy, "The health check of web fails: no route to plc.")
    );
    let why = "the health check of web fails: no route to plc".to_owned();
    assert_eq!(rig.health().await, Health::Unhealthy(why));
    rig.finish().await;
}

async fn dm_033_what_takes_longer_than_its_timeout_fails(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    healthcheck: {test: ["CMD-SHELL", "echo warming up; exit 1"], interval: 1s, retries: 1000}
"#;
    let mut order = rig.compose("web", compose).await;
    order.timeout = Some(Timeout { minutes: 0, seconds: 4 });
    let began = Instant::now();
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    let message = "It took too long: the health check of web has not passed yet: warming up.";
    assert_eq!((failure.code, failure.message.as_str()), (FailureCode::Timeout, message));
    assert!((4..20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(rig.health().await, Health::Starting);

    // The same while Compose itself waits for a dependency.
    let dependent = format!(
        "{compose}\n  late: {{image: \"{{IMAGE}}\", command: [sleep, \"9\"], depends_on: {{web: {{condition: service_healthy}}}}}}\n"
    );
    rig.push("web", "1.0.1", &[("compose.yaml", &dependent)]).await;
    let mut order = rig.order("web", "1.0.1");
    order.timeout = Some(Timeout { minutes: 0, seconds: 4 });
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::Timeout, "{failure}");
    rig.finish().await;
}

async fn dm_032_without_waiting_it_comes_back_at_once(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    healthcheck: {test: ["CMD", "test", "-e", "/ready"], interval: 1s, retries: 1000}
"#;
    let order = Order { wait: false, ..rig.compose("web", compose).await };
    rig.runtime.apply(&order).await.unwrap();
    let seen = rig.seen().await;
    assert_eq!((seen.fingerprint, seen.health), (Some(order.fingerprint()), Health::Starting));
    rig.exec(&rig.container("web", "web"), "touch /ready");
    until("it is healthy", async || rig.health().await == Health::Healthy).await;
    rig.finish().await;
}

async fn services_start_in_the_order_of_their_dependencies(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    depends_on: {db: {condition: service_healthy}}
    healthcheck: {test: ["CMD", "true"], interval: 1s}
  db:
    image: {IMAGE}
    command: [sh, -c, "sleep 1; touch /ready; sleep 1000"]
    stop_signal: SIGKILL
    healthcheck: {test: ["CMD", "test", "-e", "/ready"], interval: 1s, retries: 30}
"#;
    rig.applied("web", compose).await;
    assert_eq!(rig.health().await, Health::Healthy);
    let started = |service| {
        rig.docker(&["inspect", "--format", "{{.State.StartedAt}}", &rig.container("web", service)])
    };
    assert!(started("db") < started("web"));
    rig.finish().await;
}

async fn a_job_that_ends_later_by_itself_is_done(rig: Rig) {
    let compose = r#"
services:
  job: {image: "{IMAGE}", command: [sh, -c, "while ! test -e /end; do sleep 0.1; done"]}
"#;
    let order = rig.applied("job", compose).await;
    let job = rig.container("job", "job");
    rig.exec(&job, "touch /end");
    let status = || rig.docker(&["inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", &job]);
    until("the job has ended", async || status() == "exited 0").await;
    assert_eq!(rig.health().await, Health::Healthy);
    let started = rig.started_at(&job);
    rig.runtime.apply(&order).await.unwrap();
    assert_eq!(rig.started_at(&job), started);
    rig.finish().await;
}

async fn dm_191_values_arrive_verbatim(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    environment:
      A: "${A}"
      mixed_Case: ${mixed_Case}
      E: "${E-unset}"
      L: ${L}
"#;
    let nasty = "a \"b\" 'c' $HOME ${X} $$ \\ # : {y}\n second line\tü";
    let mut order = rig.compose("web", compose).await;
    order.values = vec![
        ("A".into(), text(nasty)),
        ("mixed_Case".into(), text(" spaces ")),
        ("E".into(), text("")),
        ("L".into(), margrave_core::parameters::ParameterValue::List(vec![text("x y"), text("z")])),
    ];
    rig.runtime.apply(&order).await.unwrap();
    let web = rig.container("web", "web");
    let of = |name: &str| rig.exec(&web, &format!("echo \"[${name}]\""));
    assert_eq!(of("A"), format!("[{nasty}]"));
    assert_eq!(of("mixed_Case"), "[ spaces ]");
    assert_eq!(of("E"), "[]");
    assert_eq!(of("L"), "[[\"x y\",\"z\"]]");
    order.values = vec![("DOCKER_HOST".into(), text("tcp://10.0.0.1:1"))];
    assert_eq!(rig.runtime.apply(&order).await.unwrap_err().code, FailureCode::DocumentInvalid);
    rig.finish().await;
}

async fn a_value_for_one_service_leaves_the_others_running(rig: Rig) {
    let compose = r#"
services:
  db: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
  web: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, environment: {A: "${A:-}"}}
"#;
    let order = rig.applied("web", compose).await;
    let (db, web) = (rig.started_at(&rig.container("web", "db")), rig.container("web", "web"));
    let update = Order { values: vec![("A".into(), text("b"))], ..order };
    rig.runtime.apply(&update).await.unwrap();
    assert_ne!(rig.container("web", "web"), web);
    assert_eq!(rig.started_at(&rig.container("web", "db")), db);
    assert_eq!(rig.seen().await.fingerprint, Some(update.fingerprint()));
    rig.finish().await;
}

async fn a_changed_file_in_the_archive_reaches_its_service(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    configs: [{source: site, target: /etc/site}]
    volumes: ["./mounted.conf:/etc/mounted:ro"]
    env_file: [web.env]
  db: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
configs: {site: {file: ./conf/site}}
"#;
    let files = |content| {
        [("compose.yaml", compose), ("conf/site", content), ("mounted.conf", content), ("web.env", "X=1\n")]
    };
    rig.push("web", "1.0.0", &files("old")).await;
    rig.push("web", "1.0.1", &files("new")).await;
    rig.runtime.apply(&rig.order("web", "1.0.0")).await.unwrap();
    let read = || rig.exec(&rig.container("web", "web"), "echo $(cat /etc/site) $(cat /etc/mounted) $X");
    assert_eq!(read(), "old old 1");
    let db = rig.started_at(&rig.container("web", "db"));
    rig.runtime.apply(&rig.order("web", "1.0.1")).await.unwrap();
    assert_eq!(read(), "new new 1");
    assert_eq!(rig.started_at(&rig.container("web", "db")), db);
    // Going back needs no registry: the archive before is still here.
    rig.runtime.apply(&rig.order("web", "1.0.0")).await.unwrap();
    assert_eq!(read(), "old old 1");
    rig.finish().await;
}

async fn a_changed_value_in_configs_and_secrets_reaches_its_service(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    configs: [{source: site, target: /etc/site}]
    secrets: [pw]
  db: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
configs: {site: {content: "port=${PORT}"}}
secrets: {pw: {environment: PW}}
"#;
    rig.push("web", "1.0.0", &[("compose.yaml", compose)]).await;
    let order = |port: &str, pw: &str| Order {
        values: vec![("PORT".into(), text(port)), ("PW".into(), text(pw))],
        ..rig.order("web", "1.0.0")
    };
    rig.runtime.apply(&order("1", "old")).await.unwrap();
    let read = || rig.exec(&rig.container("web", "web"), "echo $(cat /etc/site) $(cat /run/secrets/pw)");
    assert_eq!(read(), "port=1 old");
    let db = rig.started_at(&rig.container("web", "db"));
    rig.runtime.apply(&order("1", "new")).await.unwrap();
    assert_eq!(read(), "port=1 new");
    rig.runtime.apply(&order("2", "new")).await.unwrap();
    assert_eq!(read(), "port=2 new");
    let web = rig.started_at(&rig.container("web", "web"));
    rig.restarted().apply(&order("2", "new")).await.unwrap();
    assert_eq!(rig.started_at(&rig.container("web", "web")), web, "nothing changed");
    assert_eq!(rig.started_at(&rig.container("web", "db")), db, "it has no part in that");
    rig.finish().await;
}

async fn promise_7_relative_mounts_survive_an_update(rig: Rig) {
    let compose = |n: u32| {
        format!(
            r#"
services:
  db:
    image: {{IMAGE}}
    command: [sleep, "{n}"]
    stop_signal: SIGKILL
    volumes: ["./rows:/rows"]
"#
        )
    };
    rig.push("db", "1.0.0", &[("compose.yaml", &compose(1000))]).await;
    rig.push("db", "1.0.1", &[("compose.yaml", &compose(1001))]).await;
    rig.runtime.apply(&rig.order("db", "1.0.0")).await.unwrap();
    rig.exec(&rig.container("db", "db"), "echo 42 > /rows/answer");
    rig.runtime.apply(&rig.order("db", "1.0.1")).await.unwrap();
    assert_eq!(rig.exec(&rig.container("db", "db"), "cat /rows/answer"), "42");
    let order = rig.order("db", "1.0.1");
    rig.runtime.remove(order.assignment, &order.component).await.unwrap();
    assert_eq!(rig.runtime.observe().await.unwrap(), []);
    rig.runtime.apply(&order).await.unwrap();
    assert_eq!(rig.exec(&rig.container("db", "db"), "cat /rows/answer"), "42", "removal keeps data too");
    rig.finish().await;
}

async fn prefetching_changes_nothing_that_runs(rig: Rig) {
    let order = rig.applied("web", WEB).await;
    let before = rig.started_at(&rig.container("web", "web"));
    let pin = rig.push("web", "2.0.0", &[("compose.yaml", &WEB.replace("1000", "1001"))]).await;
    let update = Order { pin: Some(pin), ..rig.order("web", "2.0.0") };
    rig.runtime.prefetch(&update).await.unwrap();
    assert_eq!(rig.started_at(&rig.container("web", "web")), before);
    assert_eq!(rig.seen().await.fingerprint, Some(order.fingerprint()));
    // What was fetched is enough.
    rig.cut_off().await;
    rig.runtime.apply(&update).await.unwrap();
    assert_eq!(rig.seen().await.fingerprint, Some(update.fingerprint()));
    rig.finish().await;
}

async fn two_devices_and_two_assignments_do_not_meet(rig: Rig) {
    let order = rig.compose("web", WEB).await;
    let other = Order { assignment: AssignmentId::from_uuid(uuid::Uuid::new_v4()), ..order.clone() };
    let neighbour = rig.other_device();
    let third = Order { assignment: AssignmentId::from_uuid(uuid::Uuid::new_v4()), ..order.clone() };
    let (a, b, c) =
        tokio::join!(rig.runtime.apply(&order), rig.runtime.apply(&other), neighbour.apply(&third));
    for result in [a, b, c] {
        result.unwrap();
    }
    assert_eq!(rig.runtime.observe().await.unwrap().len(), 2);
    let seen = neighbour.observe().await.unwrap();
    assert_eq!(seen.iter().map(|seen| seen.assignment).collect::<Vec<_>>(), [third.assignment]);
    rig.runtime.remove(order.assignment, &order.component).await.unwrap();
    assert_eq!(rig.seen().await.assignment, other.assignment);
    assert_eq!(neighbour.observe().await.unwrap()[0].health, Health::Healthy);
    for (runtime, order) in [(&rig.runtime, &other), (&neighbour, &third)] {
        runtime.remove(order.assignment, &order.component).await.unwrap();
    }
    for assignment in [order.assignment, other.assignment, third.assignment] {
        rig.docker(&["volume", "rm", &format!("mg-{}-web_data", assignment.uuid().simple())]);
    }
    rig.finish().await;
}

async fn a_port_that_is_taken_is_named(rig: Rig) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let compose = format!(
        "services: {{web: {{image: \"{{IMAGE}}\", command: [sleep, \"1000\"], stop_signal: SIGKILL, \
         ports: [\"127.0.0.1:{port}:80\"]}}}}"
    );
    let order = rig.compose("web", &compose).await;
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::CreateFailed, "{failure}");
    assert!(failure.message.contains("web") && failure.message.contains(&port.to_string()), "{failure}");
    drop(taken);
    rig.runtime.apply(&order).await.unwrap();
    rig.finish().await;
}

async fn what_is_no_component_is_refused(rig: Rig) {
    rig.push("bad", "1.0.0", &[("docker-compose.yml", "services: {}")]).await;
    let failure = rig.runtime.apply(&rig.order("bad", "1.0.0")).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::ArchiveInvalid);
    assert!(failure.message.contains("PK-082"), "{failure}");

    let missing = rig.runtime.apply(&rig.order("nonesuch", "1.0.0")).await.unwrap_err();
    assert_eq!(missing.code, FailureCode::PullNotFound, "{missing}");

    let mut nowhere = rig.order("bad", "1.0.0");
    nowhere.repository = "oci://nowhere".into();
    assert_eq!(rig.runtime.apply(&nowhere).await.unwrap_err().code, FailureCode::DocumentInvalid);

    let helm = Order { kind: ProfileKind::Helm, ..rig.order("bad", "1.0.0") };
    assert_eq!(rig.runtime.apply(&helm).await.unwrap_err().code, FailureCode::RuntimeMissing);
    assert_eq!(rig.runtime.observe().await.unwrap(), []);
    rig.finish().await;
}

async fn a_compose_file_that_is_wrong_is_refused(rig: Rig) {
    for (compose, code, word) in [
        ("services: {web: {imag: x}}", FailureCode::ArchiveInvalid, "imag"),
        ("services: [", FailureCode::ArchiveInvalid, "compose.yaml"),
        ("services: {web: {image: \"${TAG:?say which}\"}}", FailureCode::DocumentInvalid, "say which"),
        ("services: {web: {build: .}}", FailureCode::ArchiveInvalid, "web has no image"),
        ("services: {web: {image: x, env_file: [missing.env]}}", FailureCode::ArchiveInvalid, "missing.env"),
    ] {
        let order = rig.compose("web", compose).await;
        let failure = rig.runtime.prefetch(&order).await.unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
        assert!(failure.message.contains(word), "{failure}");
    }
    let limits = "services: {web: {image: \"{IMAGE}\", command: [sleep, \"1000\"], ulimits: {nofile: -5}}}";
    let order = rig.compose("web", limits).await;
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert!(matches!(
        failure.code,
        FailureCode::CreateFailed | FailureCode::StartFailed | FailureCode::ArchiveInvalid
    ));
    assert!(failure.message.contains("web"), "{failure}");
    rig.finish().await;
}

async fn two_replicas_are_both_wanted(rig: Rig) {
    let compose = r#"
services:
  web: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, deploy: {replicas: 2}}
"#;
    rig.applied("web", compose).await;
    assert_eq!(rig.health().await, Health::Healthy);
    let containers = rig.container("web", "web");
    rig.docker(&["rm", "-f", containers.lines().next().unwrap()]);
    assert_eq!(rig.health().await, Health::Drifted("service web has only 1 of its containers".into()));
    rig.finish().await;
}

async fn ob_093_every_container_is_told_the_collector(rig: Rig) {
    let compose = r#"
services:
  web: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
  db: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
"#;
    let order = rig.compose("web", compose).await;
    rig.with_collector("http://collector:4318/$x").apply(&order).await.unwrap();
    for service in ["web", "db"] {
        let told = rig.exec(&rig.container("web", service), "echo $HTTP_OTEL_EXPORTER_OTLP_ENDPOINT");
        assert_eq!(told, "http://collector:4318/$x");
    }
    rig.finish().await;
}

/// Podman wants to be told to trust a registry without TLS, so real pulls are tried on Docker alone.
#[tokio::test(flavor = "multi_thread")]
async fn images_come_from_the_servers_registry() {
    rig::on("MARGRAVE_TEST_DOCKER_HOST", async |rig: Rig| {
        let image = format!("{}/pulled:1", rig.address);
        rig.docker(&["tag", &rig.image(), &image]);
        rig.docker(&["push", &image]);
        rig.docker(&["rmi", &image]);
        let compose = "services: {web: {image: \"${MARGRAVE_REGISTRY}/pulled:1\", command: [sleep, \"1000\"], stop_signal: SIGKILL, pull_policy: always}}";
        let order = rig.compose("web", compose).await;
        rig.runtime.prefetch(&order).await.unwrap();
        rig.docker(&["image", "inspect", &image]);
        // An image that is here will do when there is no newer one to be had.
        rig.cut_off().await;
        rig.runtime.apply(&order).await.unwrap();
        assert_eq!(rig.health().await, Health::Healthy);
        let Rig { host, .. } = &rig;
        let host = host.clone();
        rig.finish().await;
        let removed = std::process::Command::new("docker").args(["-H", &host, "rmi", &image]).output().unwrap();
        assert!(removed.status.success(), "{removed:?}");
    })
    .await;
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_a_failure_of_its_own() {
    use margrave_agent::runtime::components::Components;
    use margrave_agent::runtime::compose::{ComposeRuntime, ComposeSettings};
    use margrave_agent::runtime::engine::Places;
    use margrave_oci::client::{Client, Hosts};

    let temp = tempfile::tempdir().unwrap();
    let socket = temp.path().join("engine.sock");
    let settings = ComposeSettings {
        data: temp.path().join("data"),
        agent: margrave_core::id::DeviceId::parse("line-1").unwrap(),
        places: Places { named: Some(format!("unix://{}", socket.display())), sockets: vec![] },
        telemetry: None,
        registry: None,
    };
    let components = Components::new(Client::new(Hosts::new()), &settings.data).unwrap();
    let runtime = ComposeRuntime::new(settings, components).unwrap();
    assert_eq!(runtime.observe().await.unwrap_err().code, FailureCode::RuntimeMissing);
    // A socket that an engine left behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert_eq!(runtime.observe().await.unwrap_err().code, FailureCode::RuntimeUnreachable);
    assert_eq!(runtime.find().await.unwrap_err().code, FailureCode::RuntimeUnreachable);
}
