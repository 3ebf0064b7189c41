//! The real runtime when somebody or something interferes: containers changed by hand, files lost, acts cut off.

use std::time::Duration;

use margrave_agent::runtime::Runtime;
use margrave_core::device::{Health, Order};
use margrave_core::report::FailureCode;

use crate::rig::{Rig, WEB, on_engine, on_engines, text, until};

on_engines! {
    promise_5_a_container_removed_by_hand_is_seen_and_replaced,
    promise_2_a_repair_needs_no_registry,
    promise_2_what_was_set_aside_comes_back_without_a_registry,
    what_somebody_recreated_otherwise_is_not_ours_any_more,
    removal_needs_no_files,
    a_change_is_told_at_once,
    updates_that_are_cut_off_anywhere_end_well,
    what_is_newer_is_fetched_while_the_start_of_what_it_replaces_hangs,
    promise_2_what_was_fetched_and_failed_to_start_is_tried_again_without_a_registry,
    promise_7_what_was_written_beside_files_of_the_archive_is_there_after_going_back,
}

// Compose recreates containers on Podman that it leaves alone on Docker, and Podman 4.3 does not tell a container
// that was stopped from one that ended.
on_engine! {
    docker_alone, "MARGRAVE_TEST_DOCKER_HOST":
    promise_5_a_container_stopped_by_hand_is_seen_and_started,
    an_apply_that_was_cut_off_is_continued,
    a_lost_directory_costs_no_restart,
    a_program_that_ends_again_and_again_is_not_well_in_between,
    what_never_became_healthy_is_made_anew_by_the_next_try,
    what_got_well_after_its_try_was_over_is_left_alone_when_it_gets_sick,
    what_could_not_start_is_started_once_what_it_lacked_is_back,
    promise_7_volumes_without_a_name_are_there_again_after_going_back,
    files_of_versions_that_failed_do_not_pile_up_and_those_of_a_container_stay,
}

async fn promise_5_a_container_removed_by_hand_is_seen_and_replaced(rig: Rig) {
    let order = rig.applied("web", WEB).await;
    rig.docker(&["rm", "-f", &rig.container("web", "web")]);
    let seen = rig.seen().await;
    assert_eq!(seen.health, Health::Drifted("service web is missing".into()));
    assert_eq!(seen.fingerprint, Some(order.fingerprint()));
    rig.runtime.apply(&order).await.unwrap();
    assert_eq!(rig.health().await, Health::Healthy);
    rig.finish().await;
}

async fn promise_5_a_container_stopped_by_hand_is_seen_and_started(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
"#;
    let order = rig.applied("web", compose).await;
    assert_eq!(rig.health().await, Health::Healthy);
    let web = rig.container("web", "web");
    rig.docker(&["stop", "--time", "10", &web]);
    assert_eq!(rig.docker(&["inspect", "--format", "{{.State.ExitCode}}", &web]), "0", "as if it were a job");
    // The engine may forget who did it, and the agent does not.
    for runtime in [&rig.runtime, &rig.restarted()] {
        let seen = runtime.observe().await.unwrap();
        assert_eq!(seen[0].health, Health::Drifted("service web was stopped".into()));
    }
    rig.runtime.apply(&order).await.unwrap();
    assert_eq!(rig.health().await, Health::Healthy);
    let web = rig.container("web", "web");
    rig.docker(&["pause", &web]);
    assert_eq!(rig.health().await, Health::Drifted("service web is paused".into()));
    rig.docker(&["unpause", &web]);
    rig.finish().await;
}

async fn promise_2_a_repair_needs_no_registry(rig: Rig) {
    let order = rig.applied("web", WEB).await;
    rig.cut_off().await;
    rig.docker(&["rm", "-f", &rig.container("web", "web")]);
    let restarted = rig.restarted();
    restarted.prefetch(&order).await.unwrap();
    restarted.apply(&order).await.unwrap();
    assert_eq!(rig.health().await, Health::Healthy);
    let other = Order { values: vec![("GREETING".into(), text("x"))], ..order };
    let failure = rig.runtime.apply(&other).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::PullFailed, "{failure}");
    assert_eq!(rig.health().await, Health::Healthy, "what runs is left alone");
    rig.finish().await;
}

async fn promise_2_what_was_set_aside_comes_back_without_a_registry(rig: Rig) {
    let order = rig.applied("web", WEB).await;
    rig.runtime.set_aside(order.assignment, &order.component).await.unwrap();
    assert!(rig.runtime.observe().await.unwrap().is_empty());
    // Something else comes and goes meanwhile, and tidies up behind it.
    let other = rig.applied("other", WEB).await;
    rig.runtime.remove(other.assignment, &other.component).await.unwrap();
    rig.cut_off().await;
    let restarted = rig.restarted();
    restarted.prefetch(&order).await.unwrap();
    restarted.apply(&order).await.unwrap();
    assert_eq!(rig.health().await, Health::Healthy);
    rig.finish().await;
}

async fn an_apply_that_was_cut_off_is_continued(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sleep, "${SECONDS_TO_SLEEP:-1000}"]
    stop_signal: SIGKILL
    healthcheck: {test: ["CMD", "test", "-e", "/ready"], interval: 1s, retries: 1000}
  late: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, depends_on: {web: {condition: service_healthy}}}
"#;
    let order = rig.compose("web", compose).await;
    let running = || {
        let web = rig.container("web", "web");
        !web.is_empty() && rig.docker(&["inspect", "--format", "{{.State.Status}}", &web]) == "running"
    };
    tokio::select! {
        result = rig.runtime.apply(&order) => panic!("{result:?}"),
        () = until("the first container runs", async || running()) => {}
    }
    let seen = rig.seen().await;
    assert_eq!(seen.fingerprint, None, "half of it runs");
    rig.exec(&rig.container("web", "web"), "touch /ready");
    let web = rig.started_at(&rig.container("web", "web"));
    rig.restarted().apply(&order).await.unwrap();
    assert_eq!(rig.started_at(&rig.container("web", "web")), web, "what runs is left alone");
    rig.check_runs(&order).await;
    rig.finish().await;
}

async fn a_lost_directory_costs_no_restart(rig: Rig) {
    let order = rig.applied("web", WEB).await;
    let before = rig.started_at(&rig.container("web", "web"));
    std::fs::remove_dir_all(rig.data.join("compose")).unwrap();
    let runtime = rig.restarted();
    let seen = runtime.observe().await.unwrap().remove(0);
    assert_eq!((seen.assignment, seen.fingerprint, seen.health), (order.assignment, None, Health::Healthy));
    runtime.apply(&order).await.unwrap();
    assert_eq!(rig.started_at(&rig.container("web", "web")), before);
    assert_eq!(rig.seen().await.fingerprint, Some(order.fingerprint()));
    rig.finish().await;
}

async fn what_somebody_recreated_otherwise_is_not_ours_any_more(rig: Rig) {
    let order = rig.applied("web", WEB).await;
    let web = rig.container("web", "web");
    let labels = rig.docker(&[
        "inspect",
        "--format",
        "{{range $k, $v := .Config.Labels}}{{$k}}={{$v}}\n{{end}}",
        &web,
    ]);
    rig.docker(&["rm", "-f", &web]);
    let labels: Vec<String> = labels.lines().map(|l| l.replace("config-hash=", "config-hash=0")).collect();
    let mut arguments = vec!["run", "-d", "--network", "none"];
    for label in &labels {
        arguments.extend(["--label", label.as_str()]);
    }
    let image = rig.image();
    arguments.extend([image.as_str(), "sleep", "1000"]);
    rig.docker(&arguments);
    let seen = rig.seen().await;
    assert_eq!(seen.fingerprint, None);
    rig.runtime.apply(&order).await.unwrap();
    rig.check_runs(&order).await;
    rig.finish().await;
}

async fn removal_needs_no_files(rig: Rig) {
    let order = rig.applied("web", WEB).await;
    std::fs::remove_dir_all(rig.data.join("compose")).unwrap();
    std::fs::remove_dir_all(rig.data.join("artifacts")).unwrap();
    let runtime = rig.restarted();
    runtime.remove(order.assignment, &order.component).await.unwrap();
    let [containers, networks, volumes] = rig.left("web");
    assert_eq!((containers.as_str(), networks.as_str()), ("", ""));
    rig.docker(&["volume", "rm", &volumes]);
    rig.finish().await;
}

async fn a_change_is_told_at_once(rig: Rig) {
    rig.applied("web", WEB).await;
    let web = rig.container("web", "web");
    // That it listens is told first: whoever hears it looks at what was before.
    rig.runtime.changed().await.unwrap();
    let project =
        rig.docker(&["inspect", "--format", "{{index .Config.Labels \"com.docker.compose.project\"}}", &web]);
    let (label, image) = (format!("com.docker.compose.project={project}"), rig.image());
    let added = ["run", "-d", "--rm", "--network", "none", "--stop-signal", "SIGKILL", "--label", &label];
    let added = [&added[..], &[image.as_str(), "sleep", "1000"]].concat();
    let created: Vec<&str> = added.iter().map(|word| if *word == "run" { "create" } else { *word }).collect();
    let created: Vec<&str> = created.into_iter().filter(|word| *word != "-d").collect();
    for (stranger, only_made) in [(false, false), (true, false), (true, true)] {
        // Again and again: some engines answer before they listen themselves.
        let disturb = async {
            for _ in 0..50 {
                match stranger {
                    false => {
                        rig.docker(&["pause", &web]);
                        rig.docker(&["unpause", &web]);
                    }
                    true if only_made => {
                        rig.docker(&created);
                    }
                    true => {
                        let container = rig.docker(&added);
                        rig.docker(&["rm", "-f", &container]);
                    }
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            changed = rig.runtime.changed() => changed.unwrap(),
            () = disturb => panic!("fifty changes, and none was told"),
        }
        // The rest of the crowd.
        while tokio::time::timeout(Duration::from_secs(1), rig.runtime.changed()).await.is_ok() {}
    }
    let made =
        rig.docker(&["ps", "-aq", "--filter", &format!("label={label}"), "--filter", "status=created"]);
    for container in made.lines() {
        rig.docker(&["rm", container]);
    }
    rig.finish().await;
}

async fn updates_that_are_cut_off_anywhere_end_well(rig: Rig) {
    let compose = r#"
services:
  db: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, environment: {A: "${A:-}"}, volumes: ["data:/data"]}
  web: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, environment: {A: "${A:-}"}, depends_on: [db]}
volumes: {data: {}}
"#;
    let order = rig.applied("web", compose).await;
    rig.exec(&rig.container("web", "db"), "echo kept > /data/file");
    let with = |n: u64| Order { values: vec![("A".into(), text(&n.to_string()))], ..order.clone() };
    for n in 1..=12 {
        let update = with(n);
        let after = Duration::from_millis(80 * n);
        // Killed with everything it started, as by a power cut, and then another agent takes over.
        let runtime = rig.restarted();
        if let Ok(result) = tokio::time::timeout(after, runtime.apply(&update)).await {
            result.unwrap();
        }
        // Whatever it is said to be, that is what the containers are.
        if let Some(fingerprint) = rig.seen().await.fingerprint {
            let value = (1..=n).find(|m| with(*m).fingerprint() == fingerprint).map(|m| m.to_string());
            assert!(value.is_some() || fingerprint == order.fingerprint());
            let wanted = format!("A={}", value.unwrap_or_default());
            for service in ["db", "web"] {
                let container = rig.container("web", service);
                let environment = rig.docker(&["inspect", "--format", "{{json .Config.Env}}", &container]);
                assert!(environment.contains(&format!("\"{wanted}\"")), "{wanted}: {environment}");
            }
        }
    }
    let last = with(99);
    rig.runtime.apply(&last).await.unwrap();
    rig.check_runs(&last).await;
    let [containers, _, _] = rig.left("web");
    assert_eq!(containers.lines().count(), 2, "nothing of the attempts is left");
    assert_eq!(rig.exec(&rig.container("web", "db"), "cat /data/file; echo $A"), "kept\n99");
    rig.finish().await;
}

async fn a_program_that_ends_again_and_again_is_not_well_in_between(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sh, -c, "test -e /sick && exec sh -c 'sleep 1; exit 3'; while ! test -e /sick; do sleep 0.1; done; exit 3"]
    stop_signal: SIGKILL
    restart: always
"#;
    rig.applied("web", compose).await;
    let web = rig.container("web", "web");
    rig.exec(&web, "touch /sick");
    let inspect = |format: &str| rig.docker(&["inspect", "--format", format, &web]);
    until("it was brought back a few times", async || {
        inspect("{{.RestartCount}}").parse::<u32>().unwrap() >= 3
    })
    .await;
    // Each time it runs, and whatever it does by the time that anybody looks.
    for _ in 0..3 {
        until("it runs", async || inspect("{{.State.Running}} {{.State.Restarting}}") == "true false").await;
        let health = rig.health().await;
        assert!(
            matches!(&health, Health::Down(why) if why.contains("restart") || why.contains("code 3")),
            "{health:?}"
        );
        until("it ends", async || inspect("{{.State.Restarting}}") == "true").await;
    }
    // How often that was is seen too, and begins anew with what is started anew.
    let counted = || inspect("{{.RestartCount}}").parse::<u32>().unwrap();
    let (before, seen, after) = (counted(), rig.seen().await.restarts, counted());
    assert!(before >= 3 && (before..=after).contains(&seen), "{before} {seen} {after}");
    rig.push("web", "2.0.0", &[("compose.yaml", WEB)]).await;
    rig.runtime.apply(&rig.order("web", "2.0.0")).await.unwrap();
    assert_eq!(rig.seen().await.restarts, 0);
    rig.finish().await;
}

async fn what_never_became_healthy_is_made_anew_by_the_next_try(rig: Rig) {
    let compose = |waits: &str| {
        format!(
            r#"
services:
  web:
    image: {{IMAGE}}
    command: [sh, -c, "test -e /data/first && touch /ready; touch /data/first; sleep 1000"]
    stop_signal: SIGKILL
    volumes: ["data:/data"]
    healthcheck: {{test: [CMD, test, -e, /ready], interval: 1s, retries: 1}}
  late: {{image: "{{IMAGE}}", command: [sleep, "1000"], stop_signal: SIGKILL{waits}}}
volumes: {{data: {{}}}}
"#
        )
    };
    for (component, waits) in [("beside", ""), ("after", ", depends_on: {web: {condition: service_healthy}}")]
    {
        let order = rig.compose(component, &compose(waits)).await;
        let failure = rig.runtime.apply(&order).await.unwrap_err();
        assert_eq!(failure.code, FailureCode::Unhealthy, "{failure}");
        rig.restarted().apply(&order).await.unwrap();
        rig.check_runs(&order).await;
        // It was healthy once.
        let of = |service: &str| rig.container(component, service);
        rig.exec(&of("web"), "rm /ready");
        until("it is sick", async || matches!(rig.health().await, Health::Unhealthy(_))).await;
        let web = rig.started_at(&of("web"));
        rig.docker(&["rm", "-f", &of("late")]);
        for _ in 0..3 {
            rig.runtime.apply(&order).await.unwrap_err();
            assert_eq!(rig.started_at(&of("web")), web);
        }
        rig.runtime.remove(order.assignment, &order.component).await.unwrap();
    }
    rig.finish().await;
}

async fn what_got_well_after_its_try_was_over_is_left_alone_when_it_gets_sick(rig: Rig) {
    let compose = r#"
services:
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    healthcheck: {test: [CMD, test, -e, /ready], interval: 1s, retries: 1}
"#;
    let order = rig.compose("web", compose).await;
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::Unhealthy, "{failure}");
    let web = rig.container("web", "web");
    let made = rig.started_at(&web);
    rig.exec(&web, "touch /ready");
    until("it is well by itself", async || rig.health().await == Health::Healthy).await;
    rig.exec(&web, "rm /ready");
    until("it is sick", async || matches!(rig.health().await, Health::Unhealthy(_))).await;
    for runtime in [&rig.runtime, &rig.restarted()] {
        assert_eq!(runtime.apply(&order).await.unwrap_err().code, FailureCode::Unhealthy);
        assert_eq!(rig.started_at(&rig.container("web", "web")), made);
    }
    rig.finish().await;
}

async fn what_could_not_start_is_started_once_what_it_lacked_is_back(rig: Rig) {
    // None that a connection could get meanwhile.
    let mut ports = (20_000..30_000).map(|port| std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    let port = ports.find(|port| std::net::TcpListener::bind(port).is_ok()).unwrap();
    let compose = format!(
        r#"
services:
  web:
    image: "{{IMAGE}}"
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    ports: ["127.0.0.1:{}:80"]
    depends_on: {{db: {{condition: service_healthy}}}}
  db:
    image: "{{IMAGE}}"
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    healthcheck: {{test: [CMD, "true"], interval: 2s}}
"#,
        port.port()
    );
    let order = rig.applied("pair", &compose).await;
    let (web, db) = (rig.container("pair", "web"), rig.container("pair", "db"));
    rig.docker(&["kill", &web]);
    let taken = std::net::TcpListener::bind(port).unwrap();
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert!(failure.message.contains(&format!("port {}", port.port())), "{failure}");
    drop(taken);
    // What it waits for takes longer to become healthy than the engine says why the last try failed.
    rig.docker(&["kill", &db]);
    rig.runtime.apply(&order).await.unwrap();
    assert_eq!([rig.container("pair", "web"), rig.container("pair", "db")], [web, db]);
    rig.finish().await;
}

async fn what_is_newer_is_fetched_while_the_start_of_what_it_replaces_hangs(rig: Rig) {
    // One of its services waits for a job that takes its time.
    let hanging = r#"
services:
  web: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, depends_on: {job: {condition: service_completed_successfully}}}
  job: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
"#;
    let order = rig.compose("web", hanging).await;
    rig.push("web", "2.0.0", &[("compose.yaml", WEB)]).await;
    let newer = rig.order("web", "2.0.0");
    let start = rig.runtime.apply(&order);
    let fetched = async {
        let project = format!("label=com.docker.compose.project={}", rig.project("web"));
        until("it is being started", async || !rig.docker(&["ps", "-q", "--filter", &project]).is_empty())
            .await;
        rig.runtime.prefetch(&newer).await.unwrap();
    };
    // Whoever is done first ends it; the start would take minutes.
    tokio::select! {
        started = start => panic!("it did not hang: {started:?}"),
        () = fetched => {}
    }
    rig.runtime.apply(&newer).await.unwrap();
    rig.check_runs(&newer).await;
    rig.finish().await;
}

async fn promise_2_what_was_fetched_and_failed_to_start_is_tried_again_without_a_registry(rig: Rig) {
    rig.applied("web", WEB).await;
    // One that is overtaken leaves something that is not wanted any more.
    rig.push("web", "2.0.0", &[("compose.yaml", &WEB.replace("1000", "2000"))]).await;
    rig.runtime.prefetch(&rig.order("web", "2.0.0")).await.unwrap();
    let failing = "services: {web: {image: \"{IMAGE}\", command: [sh, -c, \"exit 4\"]}}";
    rig.push("web", "3.0.0", &[("compose.yaml", failing)]).await;
    let order = rig.order("web", "3.0.0");
    rig.runtime.prefetch(&order).await.unwrap();
    rig.runtime.apply(&order).await.unwrap_err();
    rig.runtime.keep([order.fingerprint()].into());
    rig.runtime.observe().await.unwrap();
    rig.cut_off().await;
    let failure = rig.runtime.apply(&order).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::StartFailed, "{failure}");
    rig.finish().await;
}

async fn promise_7_what_was_written_beside_files_of_the_archive_is_there_after_going_back(rig: Rig) {
    let compose = |ends: &str| {
        format!(
            r#"
services:
  web:
    image: {{IMAGE}}
    command: [sh, -c, "{ends}"]
    stop_signal: SIGKILL
    volumes: ["./seed:/seed"]
"#
        )
    };
    let versions = [("1.0.0", "sleep 1000"), ("2.0.0", "exit 3"), ("3.0.0", "sleep 2000")];
    for (version, ends) in versions {
        rig.push("web", version, &[("compose.yaml", &compose(ends)), ("seed/first", "1")]).await;
    }
    let [good, bad, unproven] = versions.map(|(version, _)| rig.order("web", version));
    rig.runtime.apply(&good).await.unwrap();
    rig.docker(&["exec", &rig.container("web", "web"), "touch", "/seed/rows"]);
    let remark = "web: what web writes to /seed";
    rig.health().await;
    assert!(rig.runtime.remarks().iter().any(|said| said.starts_with(remark)), "{:?}", rig.runtime.remarks());
    // One that does not come up, and one that is well and has not proved itself.
    for order in [&bad, &unproven] {
        // What was fetched for something else is forgotten, and with it what was fetched for this one.
        rig.runtime.prefetch(&bad).await.unwrap();
        rig.runtime.keep([good.fingerprint()].into());
        rig.health().await;
        assert!(!rig.data.join("compose").join(rig.project("web")).join("fetched.json").exists());
        let fingerprints = [good.fingerprint(), order.fingerprint()];
        rig.runtime.keep(fingerprints.into());
        assert_eq!(rig.runtime.apply(order).await.is_ok(), order == &unproven);
        rig.health().await;
        rig.runtime.apply(&good).await.unwrap();
        rig.docker(&["exec", &rig.container("web", "web"), "test", "-e", "/seed/rows"]);
    }
    // Once it has, nothing of what it replaced is left.
    rig.runtime.keep([unproven.fingerprint()].into());
    rig.runtime.apply(&unproven).await.unwrap();
    rig.health().await;
    let directory = rig.data.join("compose").join(rig.project("web"));
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let archives = names.filter(|name| name.to_string_lossy().starts_with("archive-")).count();
    assert_eq!(archives, 1);
    rig.finish().await;
}

async fn promise_7_volumes_without_a_name_are_there_again_after_going_back(rig: Rig) {
    let compose = r#"
services:
  web: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
  db: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, volumes: ["/rows"]}
"#;
    let without = compose.lines().filter(|line| !line.contains("db:")).collect::<Vec<_>>().join("\n");
    rig.push("pair", "1.0.0", &[("compose.yaml", compose)]).await;
    rig.push("pair", "2.0.0", &[("compose.yaml", &without)]).await;
    rig.push("pair", "3.0.0", &[("compose.yaml", &compose.replace("1000", "2000"))]).await;
    let broken = compose.replacen(r#"[sleep, "1000"]"#, r#"[sh, -c, "exit 3"]"#, 1);
    rig.push("pair", "4.0.0", &[("compose.yaml", &broken)]).await;
    let versions = ["1.0.0", "2.0.0", "3.0.0", "4.0.0"];
    let [good, bad, newer, broken] = versions.map(|version| rig.order("pair", version));
    rig.runtime.apply(&good).await.unwrap();
    let has_rows = || rig.docker(&["exec", &rig.container("pair", "db"), "test", "-e", "/rows/1"]);
    rig.docker(&["exec", &rig.container("pair", "db"), "touch", "/rows/1"]);

    // One that has it and is never healthy, then one that has no such service.
    rig.runtime.apply(&broken).await.unwrap_err();
    rig.runtime.apply(&bad).await.unwrap();
    rig.runtime.apply(&good).await.unwrap();
    has_rows();
    // An update that has no such service.
    rig.runtime.apply(&bad).await.unwrap();
    assert_eq!(rig.container("pair", "db"), "");
    rig.runtime.apply(&good).await.unwrap();
    has_rows();
    // One that does not have the component at all.
    rig.runtime.set_aside(good.assignment, &good.component).await.unwrap();
    rig.runtime.apply(&good).await.unwrap();
    has_rows();
    // A repair changes nothing about it.
    let before = rig.started_at(&rig.container("pair", "db"));
    rig.docker(&["rm", "-f", &rig.container("pair", "web")]);
    rig.restarted().apply(&good).await.unwrap();
    rig.check_runs(&good).await;
    assert_eq!(rig.started_at(&rig.container("pair", "db")), before);
    // An update that has the service takes it over as ever.
    for order in [&newer, &good] {
        rig.runtime.apply(order).await.unwrap();
        has_rows();
    }
    // What somebody removed is not asked for.
    let format = "{{range .Mounts}}{{.Name}}{{end}}";
    let volume = rig.docker(&["inspect", "--format", format, &rig.container("pair", "db")]);
    rig.docker(&["rm", "-f", &rig.container("pair", "db")]);
    rig.docker(&["volume", "rm", &volume]);
    rig.runtime.apply(&good).await.unwrap();
    rig.check_runs(&good).await;
    rig.finish().await;
}

async fn files_of_versions_that_failed_do_not_pile_up_and_those_of_a_container_stay(rig: Rig) {
    let compose = |last: &str| {
        format!(
            r#"
services:
  web: {{image: "{{IMAGE}}", command: [sleep, "1000"], stop_signal: SIGKILL, volumes: ["./seed:/seed"]}}
  job: {{image: "{{IMAGE}}", command: [sh, -c, "exit 3"], labels: {{last: "{last}"}}}}
"#
        )
    };
    let directory = rig.data.join("compose").join(rig.project("two"));
    for version in ["1.0.0", "2.0.0", "3.0.0", "4.0.0"] {
        rig.push("two", version, &[("compose.yaml", &compose(version)), ("seed/first", version)]).await;
        let order = rig.order("two", version);
        rig.runtime.keep([order.fingerprint()].into());
        rig.runtime.apply(&order).await.unwrap_err();
        // What is wanted is told anew with every document; here the containers of this one are there.
        rig.runtime.keep([order.fingerprint()].into());
        rig.health().await;
        let names = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
        let archives: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("archive-")).collect();
        assert_eq!(archives.len(), 1, "{version}: {archives:?}");
        rig.docker(&["exec", &rig.container("two", "web"), "test", "-e", "/seed/first"]);
    }
    rig.finish().await;
}
