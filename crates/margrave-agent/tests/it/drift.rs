//! Hands on containers, and images that nobody needs: what is noticed, what is put right, and what is left alone.

use margrave_agent::runtime::{Runtime, compose::ComposeRuntime};
use margrave_core::device::{Health, Order};

use crate::rig::{Rig, on_engine, on_engines, until};

on_engines! {
    promise_5_one_container_too_many_is_seen_and_removed,
    promise_3_a_job_that_is_done_stays_done_when_its_container_is_tidied_away,
    what_was_fetched_and_is_not_wanted_any_more_goes,
}

// On Podman Compose recreates containers that it leaves alone on Docker, so who is left alone cannot be told. Podman 4
// cannot change a restart policy in place or commit through Docker's client, freezes only where it may use cgroups, and has
// to be told to trust a registry without TLS.
on_engine! {
    docker_alone, "MARGRAVE_TEST_DOCKER_HOST":
    promise_5_a_container_added_by_hand_is_seen_and_removed,
    promise_5_a_paused_container_goes_on,
    promise_5_another_restart_policy_or_limit_is_seen_and_undone,
    promise_5_a_network_taken_away_by_hand_comes_back,
    promise_5_a_network_taken_away_from_what_was_stopped_comes_back,
    promise_5_what_shares_with_a_container_that_is_removed_or_stopped_is_not_left_behind,
    promise_5_a_network_given_back_by_hand_without_its_names_is_seen,
    promise_3_a_job_that_is_done_is_not_done_again_when_another_service_is_mended,
    promise_3_a_repair_by_another_compose_makes_no_healthy_neighbour_anew,
    promise_3_a_repair_that_fails_again_and_again_makes_nothing_anew_that_runs,
    promise_3_an_image_that_gets_another_meaning_touches_nothing_that_runs,
    promise_5_what_is_mended_keeps_its_image_whatever_became_of_the_name,
    images_that_nobody_needs_go_and_no_others,
    an_image_is_kept_for_the_way_back,
}

/// Two services; hands are laid on the first, and the second must not notice.
const PAIR: &str = r#"
services:
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    restart: unless-stopped
    volumes: ["data:/data"]
  other: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL}
volumes: {data: {}}
"#;

/// What has to be put right is put right once, at the cost of nobody else.
async fn repair(rig: &Rig, order: &Order, complaint: Option<&str>) {
    let other = rig.started_at(&rig.container("pair", "other"));
    let seen = rig.seen().await;
    match complaint {
        Some(complaint) => assert_eq!(seen.health, Health::Drifted(complaint.into())),
        None => assert_eq!(seen.fingerprint, None, "it is not as it was ordered: {seen:?}"),
    }
    rig.runtime.apply(order).await.unwrap();
    rig.check_runs(order).await;
    assert_eq!(rig.started_at(&rig.container("pair", "other")), other, "its neighbour is left alone");
    let web = rig.started_at(&rig.container("pair", "web"));
    rig.restarted().apply(order).await.unwrap();
    assert_eq!(rig.started_at(&rig.container("pair", "web")), web, "there is nothing more to do");
}

async fn promise_5_a_container_added_by_hand_is_seen_and_removed(rig: Rig) {
    let order = rig.applied("pair", PAIR).await;
    let web = rig.started_at(&rig.container("pair", "web"));
    let project = format!("com.docker.compose.project={}", rig.project("pair"));
    let image = rig.image();
    let add = |service: &str| {
        let service = format!("com.docker.compose.service={service}");
        let run = [
            "run",
            "-d",
            "--network",
            "none",
            "--stop-signal",
            "SIGKILL",
            "--label",
            &project,
            "--label",
            &service,
            &image,
        ];
        rig.docker(&[&run[..], &["sleep", "1000"]].concat())
    };
    add("extra");
    repair(&rig, &order, None).await;
    assert_eq!(rig.left("pair")[0].lines().count(), 2);
    // What a person runs for a moment beside it is nobody's desired state, and nobody's business.
    let once = "com.docker.compose.oneoff=True";
    let service = "com.docker.compose.service=web";
    let beside = [
        "run",
        "-d",
        "--network",
        "none",
        "--stop-signal",
        "SIGKILL",
        "--label",
        &project,
        "--label",
        service,
        "--label",
        once,
        &image,
    ];
    let beside = rig.docker(&[&beside[..], &["sleep", "1000"]].concat());
    rig.check_runs(&order).await;
    assert_eq!(rig.docker(&["inspect", "--format", "{{.State.Running}}", &beside]), "true");
    rig.docker(&["rm", "-f", &beside]);
    assert_eq!(rig.started_at(&rig.container("pair", "web")), web);
    rig.finish().await;
}

async fn promise_5_one_container_too_many_is_seen_and_removed(rig: Rig) {
    let order = rig.applied("pair", PAIR).await;
    let web = rig.container("pair", "web");
    let format = "{{range $k, $v := .Config.Labels}}{{$k}}={{$v}}\n{{end}}";
    let labels = rig.docker(&["inspect", "--format", format, &web]);
    let labels: Vec<String> =
        labels.lines().map(|l| l.replace("container-number=1", "container-number=2")).collect();
    let mut arguments = vec!["run", "-d", "--network", "none", "--stop-signal", "SIGKILL"];
    for label in &labels {
        arguments.extend(["--label", label.as_str()]);
    }
    let image = rig.image();
    arguments.extend([image.as_str(), "sleep", "1000"]);
    rig.docker(&arguments);
    assert_eq!(rig.seen().await.fingerprint, None, "there is one more than was ordered");
    rig.runtime.apply(&order).await.unwrap();
    rig.check_runs(&order).await;
    assert_eq!(rig.left("pair")[0].lines().count(), 2);
    rig.finish().await;
}

async fn promise_5_a_paused_container_goes_on(rig: Rig) {
    // The engine calls a paused container unhealthy, and for a while also one that was resumed.
    let check = "restart: unless-stopped\n    healthcheck: {test: [CMD, \"true\"], interval: 2s}";
    let checked = PAIR.replace("restart: unless-stopped", check);
    let order = rig.applied("pair", &checked).await;
    let web = rig.started_at(&rig.container("pair", "web"));
    rig.docker(&["pause", &rig.container("pair", "web")]);
    repair(&rig, &order, Some("service web is paused")).await;
    assert_eq!(rig.started_at(&rig.container("pair", "web")), web, "it goes on where it was");

    // Also when something else is wanted by then.
    rig.docker(&["pause", &rig.container("pair", "web")]);
    rig.push("pair", "2.0.0", &[("compose.yaml", &checked.replace("\"1000\"", "\"2000\""))]).await;
    let update = rig.order("pair", "2.0.0");
    rig.runtime.apply(&update).await.unwrap();
    rig.check_runs(&update).await;
    rig.finish().await;
}

async fn promise_5_another_restart_policy_or_limit_is_seen_and_undone(rig: Rig) {
    let order = rig.applied("pair", PAIR).await;
    rig.exec(&rig.container("pair", "web"), "echo kept > /data/file");
    for change in [&["--restart", "no"][..], &["--cpu-shares", "2"]] {
        let web = rig.container("pair", "web");
        rig.docker(&[&["update"], change, &[&web]].concat());
        repair(&rig, &order, None).await;
        let web = rig.container("pair", "web");
        let format = "{{.HostConfig.RestartPolicy.Name}} {{.HostConfig.CpuShares}}";
        assert_eq!(rig.docker(&["inspect", "--format", format, &web]), "unless-stopped 0");
        assert_eq!(rig.exec(&web, "cat /data/file"), "kept");
    }
    rig.finish().await;
}

async fn promise_5_a_network_taken_away_by_hand_comes_back(rig: Rig) {
    let order = rig.applied("pair", PAIR).await;
    let network = format!("{}_default", rig.project("pair"));
    rig.docker(&["network", "disconnect", &network, &rig.container("pair", "web")]);
    repair(&rig, &order, None).await;
    // All of it: nobody can use what is left.
    for service in ["web", "other"] {
        rig.docker(&["network", "disconnect", "-f", &network, &rig.container("pair", service)]);
    }
    rig.docker(&["network", "rm", &network]);
    assert_eq!(rig.seen().await.fingerprint, None);
    rig.runtime.apply(&order).await.unwrap();
    rig.check_runs(&order).await;
    let format = "{{len .Containers}}";
    assert_eq!(rig.docker(&["network", "inspect", "--format", format, &network]), "2");
    rig.finish().await;
}

/// Old versions of Compose tell services that are named from those that are not.
async fn promise_3_a_repair_that_fails_again_and_again_makes_nothing_anew_that_runs(rig: Rig) {
    // None that a connection could get meanwhile.
    let mut ports = (30_000..32_000).map(|port| std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    let port = ports.find(|port| std::net::TcpListener::bind(port).is_ok()).unwrap();
    let with = |job: &str, waits: &str| {
        format!(
            r#"
services:
  {job}
  db: {{image: "{{IMAGE}}", command: [sleep, "1000"], stop_signal: SIGKILL{waits}}}
  lost: {{image: "{{IMAGE}}", command: [sleep, "1000"], stop_signal: SIGKILL, depends_on: [db]}}
  web:
    image: "{{IMAGE}}"
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    ports: ["127.0.0.1:{}:80"]
    depends_on: [db, lost]
"#,
            port.port()
        )
    };
    let job = r#"migrate: {image: "{IMAGE}", command: [sh, -c, "exit 0"]}"#;
    let waits = ", depends_on: {migrate: {condition: service_completed_successfully}}";
    for (component, compose) in [("job", with(job, waits)), ("none", with("", ""))] {
        let order = rig.applied(component, &compose).await;
        let of = |service: &str| rig.container(component, service);
        // What is made anew, and what stands still.
        rig.docker(&["rm", "-f", &of("lost")]);
        rig.docker(&["kill", &of("web")]);
        let db = rig.started_at(&of("db"));
        let taken = std::net::TcpListener::bind(port).unwrap();
        let mut lost = None;
        for _ in 0..3 {
            let failure = rig.restarted().apply(&order).await.unwrap_err();
            assert!(failure.message.contains(&port.port().to_string()), "{component}: {failure}");
            assert_eq!(rig.started_at(&of("db")), db, "{component}");
            let lost_now = rig.started_at(&of("lost"));
            assert_eq!(*lost.get_or_insert(lost_now.clone()), lost_now, "{component}");
        }
        drop(taken);
        rig.runtime.apply(&order).await.unwrap();
        // And when it is mended for something else.
        rig.docker(&["kill", &of("web")]);
        rig.runtime.apply(&order).await.unwrap();
        assert_eq!(rig.started_at(&of("db")), db, "{component}");
        assert_eq!(Some(rig.started_at(&of("lost"))), lost, "{component}");
        rig.runtime.remove(order.assignment, &order.component).await.unwrap();
    }
    rig.finish().await;
}

/// As `docker network prune` does.
async fn promise_5_a_network_taken_away_from_what_was_stopped_comes_back(rig: Rig) {
    let order = rig.applied("pair", &PAIR.replace("\"data:/data\"", "\"data:/data\", \"/rows\"")).await;
    let (web, other) = (rig.container("pair", "web"), rig.container("pair", "other"));
    rig.docker(&["exec", &web, "sh", "-c", "echo kept > /data/kept; echo kept > /rows/kept"]);
    rig.docker(&["stop", &web, &other]);
    let network = format!("{}_default", rig.project("pair"));
    rig.docker(&["network", "rm", &network]);
    rig.runtime.apply(&order).await.unwrap();
    rig.check_runs(&order).await;
    // Also what nobody gave a name.
    assert_eq!(rig.exec(&rig.container("pair", "web"), "cat /data/kept /rows/kept"), "kept\nkept");
    rig.finish().await;
}

async fn promise_5_what_shares_with_a_container_that_is_removed_or_stopped_is_not_left_behind(rig: Rig) {
    let compose = r#"
services:
  migrate: {image: "{IMAGE}", command: [sh, -c, "exit 0"]}
  vpn: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, init: true}
  web: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, network_mode: "service:vpn"}
  probe: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, volumes_from: [web]}
  other: {image: "{IMAGE}", command: [sleep, "1000"], stop_signal: SIGKILL, init: true}
"#;
    let without_job =
        compose.lines().filter(|line| !line.contains("migrate:")).collect::<Vec<_>>().join("\n");
    for (component, compose) in [("job", compose), ("none", &without_job)] {
        let order = rig.applied(component, compose).await;
        let of = |service: &str| rig.container(component, service);
        // What a container has of its network that the engine knows nothing of, such as a route.
        let network = |service: &str| rig.exec(&of(service), "busybox readlink /proc/self/ns/net");
        let other = rig.started_at(&of("other"));
        for act in [&["rm", "-f", "vpn"][..], &["stop", "vpn"], &["stop", "vpn", "web"], &["stop", "web"]] {
            let (does, services) = act.split_at(if act[1] == "-f" { 2 } else { 1 });
            let containers: Vec<String> = services.iter().map(|service| of(service)).collect();
            let containers = containers.iter().map(String::as_str);
            rig.docker(&does.iter().copied().chain(containers).collect::<Vec<_>>());
            rig.runtime.apply(&order).await.unwrap();
            rig.check_runs(&order).await;
            assert_eq!(network("web"), network("vpn"), "{component} {act:?}");
            assert_eq!(rig.started_at(&of("other")), other, "{component} {act:?}");
        }
        // Somebody makes another one of the same, and what stands still asks for the one before.
        rig.docker(&["stop", &of("web")]);
        rig.docker(&["rm", "-f", &of("vpn")]);
        rig.runtime.apply(&order).await.unwrap();
        rig.check_runs(&order).await;
        assert_eq!(network("web"), network("vpn"));
        rig.runtime.remove(order.assignment, &order.component).await.unwrap();
    }
    rig.finish().await;
}

async fn promise_5_a_network_given_back_by_hand_without_its_names_is_seen(rig: Rig) {
    let order = rig.applied("pair", PAIR).await;
    let network = format!("{}_default", rig.project("pair"));
    let found =
        |rig: &Rig| rig.docker(&["exec", &rig.container("pair", "other"), "busybox", "nslookup", "web"]);
    found(&rig);
    for act in ["disconnect", "connect"] {
        rig.docker(&["network", act, &network, &rig.container("pair", "web")]);
    }
    repair(&rig, &order, None).await;
    found(&rig);
    rig.finish().await;
}

async fn promise_3_a_repair_by_another_compose_makes_no_healthy_neighbour_anew(rig: Rig) {
    let compose = PAIR.replace(
        "  other:",
        "  crowd: {image: \"{IMAGE}\", command: [sleep, \"1000\"], stop_signal: SIGKILL, scale: 2}\n  other:",
    );
    let order = rig.applied("pair", &compose).await;
    let file = rig.data.join("compose").join(rig.project("pair")).join("project.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    record["compose"] = "2.0.0".into();
    std::fs::write(&file, record.to_string()).unwrap();
    // What Compose reckons a definition's hash from changes with its version; here it is a variable more.
    let another = rig.with_collector("http://collector:4318");
    let started = |service: &str| rig.started_at(&rig.container("pair", service));
    for lost in ["web", "other"] {
        let neighbour = if lost == "web" { "other" } else { "web" };
        let before = started(neighbour);
        rig.docker(&["rm", "-f", &rig.container("pair", lost)]);
        another.apply(&order).await.unwrap();
        rig.check_runs(&order).await;
        assert_eq!(started(neighbour), before, "{neighbour} is left alone");
    }
    let before = (started("web"), started("other"));
    let crowd = rig.container("pair", "crowd");
    rig.docker(&["rm", "-f", crowd.lines().next().unwrap()]);
    another.apply(&order).await.unwrap();
    rig.check_runs(&order).await;
    assert_eq!((started("web"), started("other")), before);
    assert_eq!(rig.container("pair", "crowd").lines().count(), 2);
    // Something that stands still.
    rig.docker(&["stop", &rig.container("pair", "web")]);
    let id = rig.container("pair", "web");
    another.apply(&order).await.unwrap();
    rig.check_runs(&order).await;
    assert_eq!((rig.container("pair", "web"), started("other")), (id, before.1));
    rig.finish().await;
}

async fn promise_3_a_job_that_is_done_stays_done_when_its_container_is_tidied_away(rig: Rig) {
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
    let web = rig.started_at(&rig.container("web", "web"));
    // As `docker container prune` does, which people run every night.
    rig.docker(&["rm", &rig.container("web", "migrate")]);
    rig.check_runs(&order).await;
    rig.restarted().apply(&order).await.unwrap();
    assert_eq!(rig.container("web", "migrate"), "", "what is done is not done again");
    assert_eq!(rig.started_at(&rig.container("web", "web")), web);
    rig.finish().await;
}

async fn promise_3_a_job_that_is_done_is_not_done_again_when_another_service_is_mended(rig: Rig) {
    let compose = r#"
services:
  migrate: {image: "{IMAGE}", command: [sh, -c, "echo once >> /data/runs"], volumes: ["data:/data"]}
  web:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    volumes: ["data:/data"]
    depends_on: {migrate: {condition: service_completed_successfully}, other: {condition: service_started}}
  other:
    image: {IMAGE}
    command: [sleep, "1000"]
    stop_signal: SIGKILL
    depends_on: {migrate: {condition: service_completed_successfully}}
volumes: {data: {}}
"#;
    let order = rig.applied("app", compose).await;
    let of = |service: &str| rig.container("app", service);
    let untouched = || ["migrate", "other"].map(|service| rig.started_at(&of(service)));
    let before = untouched();
    for lost in [&["stop"][..], &["rm", "-f"]] {
        rig.docker(&[lost, &[of("web").as_str()]].concat());
        assert_ne!(rig.health().await, Health::Healthy);
        rig.runtime.apply(&order).await.unwrap();
        rig.check_runs(&order).await;
        assert_eq!(untouched(), before, "{lost:?}");
    }
    // Tidied away, it is not even made.
    rig.docker(&["rm", &of("migrate")]);
    let other = rig.started_at(&of("other"));
    for _ in 0..2 {
        rig.docker(&["stop", &of("web")]);
        rig.restarted().apply(&order).await.unwrap();
        rig.check_runs(&order).await;
        assert_eq!((of("migrate").as_str(), rig.started_at(&of("other"))), ("", other.clone()));
    }
    assert_eq!(rig.exec(&of("web"), "cat /data/runs"), "once");
    rig.finish().await;
}

async fn promise_3_an_image_that_gets_another_meaning_touches_nothing_that_runs(rig: Rig) {
    let order = rig.applied("pair", PAIR).await;
    let before = ["web", "other"].map(|service| rig.started_at(&rig.container("pair", service)));
    let changed = rig.docker(&["commit", &rig.container("pair", "web"), &rig.image()]);
    rig.check_runs(&order).await;
    rig.restarted().apply(&order).await.unwrap();
    assert_eq!(["web", "other"].map(|service| rig.started_at(&rig.container("pair", service))), before);
    rig.runtime.remove(order.assignment, &order.component).await.unwrap();
    rig.docker(&["rmi", "-f", &changed]);
    rig.finish().await;
}

async fn promise_5_what_is_mended_keeps_its_image_whatever_became_of_the_name(rig: Rig) {
    let order = rig.applied("pair", PAIR).await;
    let image =
        |service: &str| rig.docker(&["inspect", "--format", "{{.Image}}", &rig.container("pair", service)]);
    let first = image("web");
    // Commits of it are its children, and engines remove parents without a name with the last of them.
    let kept = format!("{}/kept:1", rig.address);
    rig.docker(&["tag", &first, &kept]);
    let moved = format!("{}/moved:1", rig.address);
    let other = rig.docker(&["commit", "--change", "ENV MOVED=1", &rig.container("pair", "web"), &moved]);
    rig.docker(&["tag", &moved, &rig.image()]);
    for _ in 0..2 {
        rig.docker(&["rm", "-f", &rig.container("pair", "web")]);
        rig.restarted().apply(&order).await.unwrap();
        rig.check_runs(&order).await;
        assert_eq!(["web", "other"].map(image), [first.as_str(), first.as_str()]);
    }
    let [_, remark] = rig.runtime.remarks().try_into().expect("one for each service");
    assert!(remark.contains("web goes on with the image") && remark.contains(&rig.image()), "{remark}");
    // It is mended once more after the name went back, or away, and its neighbour is left alone.
    let neighbour = rig.started_at(&rig.container("pair", "other"));
    for undo in [&["tag", &first, &rig.image()][..], &["rmi", "-f", &rig.image()]] {
        rig.docker(undo);
        rig.docker(&["rm", "-f", &rig.container("pair", "web")]);
        rig.restarted().apply(&order).await.unwrap();
        assert_eq!(
            (image("web"), rig.started_at(&rig.container("pair", "other"))),
            (first.clone(), neighbour.clone())
        );
    }
    // What is ordered anew looks the name up anew.
    rig.docker(&["tag", &moved, &rig.image()]);
    rig.push("pair", "2.0.0", &[("compose.yaml", &PAIR.replace("\"1000\"", "\"2000\""))]).await;
    let next = rig.order("pair", "2.0.0");
    rig.runtime.apply(&next).await.unwrap();
    assert_eq!(["web", "other"].map(image), [other.as_str(), other.as_str()]);
    assert!(rig.runtime.observe().await.is_ok() && rig.runtime.remarks().is_empty());
    // And what is gone for good is replaced, and said.
    rig.docker(&["rm", "-f", &rig.container("pair", "web"), &rig.container("pair", "other")]);
    rig.docker(&["rmi", "-f", &moved, &rig.image()]);
    rig.docker(&["tag", &first, &rig.image()]);
    rig.restarted().apply(&next).await.unwrap();
    rig.check_runs(&next).await;
    assert_eq!(image("web"), first);
    let remarks = rig.runtime.remarks();
    assert!(remarks.len() == 2 && remarks[1].contains("that web was installed with is gone"), "{remarks:?}");
    rig.docker(&["rmi", "-f", &kept]);
    rig.finish().await;
}

/// An image that the device has to pull.
fn push_image(rig: &Rig, name: &str) -> String {
    let image = format!("{}/{name}", rig.address);
    // Of its own, so that no other name keeps it.
    let container = rig.docker(&["create", &rig.image(), "sleep", name]);
    rig.docker(&["commit", "--change", &format!("ENV NAME={name}"), &container, &image]);
    rig.docker(&["rm", &container]);
    rig.docker(&["push", &image]);
    rig.docker(&["rmi", &image]);
    image
}

fn has(rig: &Rig, image: &str) -> bool {
    !rig.docker(&["images", "-q", image]).is_empty()
}

async fn order(rig: &Rig, runtime: &ComposeRuntime, component: &str, revision: &str, image: &str) -> Order {
    let compose = format!(
        "services: {{web: {{image: \"{image}\", command: [sleep, \"1000\"], stop_signal: SIGKILL}}}}"
    );
    rig.push(component, revision, &[("compose.yaml", &compose)]).await;
    let order = rig.order(component, revision);
    runtime.prefetch(&order).await.unwrap();
    runtime.apply(&order).await.unwrap();
    order
}

async fn what_was_fetched_and_is_not_wanted_any_more_goes(rig: Rig) {
    let count = |directory: &str| std::fs::read_dir(rig.data.join(directory)).unwrap().count();
    let of = |component: &str| rig.data.join("compose").join(rig.project(component));
    let running = rig.applied("pair", PAIR).await;
    rig.push("pair", "2.0.0", &[("compose.yaml", &PAIR.replace("\"1000\"", "\"2000\""))]).await;
    let update = rig.order("pair", "2.0.0");
    rig.push("more", "1.0.0", &[("compose.yaml", PAIR)]).await;
    let more = rig.order("more", "1.0.0");
    for order in [&update, &more] {
        rig.runtime.prefetch(order).await.unwrap();
    }
    let before = (count("artifacts"), rig.started_at(&rig.container("pair", "web")));
    let keep = async |orders: &[&Order]| {
        rig.runtime.keep(orders.iter().map(|order| order.fingerprint()).collect());
        rig.runtime.observe().await.unwrap();
    };
    keep(&[&running, &update, &more]).await;
    assert!(of("more").join("fetched.json").exists() && count("artifacts") == before.0);
    // Somebody is at work on it.
    let lock = std::fs::File::create(of("more").join("lock")).unwrap();
    lock.lock().unwrap();
    keep(&[&running, &update]).await;
    assert!(of("more").exists());
    drop(lock);
    // Its files are removed beside the looks, and the last look takes what is left.
    until("what was never begun is gone", async || {
        rig.runtime.observe().await.unwrap();
        !of("more").exists()
    })
    .await;
    keep(&[&running]).await;
    let left = std::fs::read_dir(of("pair")).unwrap();
    let left =
        left.filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("archive-"));
    assert_eq!((left.count(), of("pair").join("fetched.json").exists()), (1, false));
    assert_eq!(count("artifacts"), 1);
    rig.check_runs(&running).await;
    assert_eq!(rig.started_at(&rig.container("pair", "web")), before.1);
    rig.finish().await;
}

async fn images_that_nobody_needs_go_and_no_others(rig: Rig) {
    let runtime = rig.removing_images();
    let [mine, shared, theirs] = ["mine:1", "shared:1", "theirs:1"].map(|name| push_image(&rig, name));
    // This one was there before the agent came: somebody put it there.
    rig.docker(&["pull", &theirs]);
    let mut orders = vec![];
    for (component, image) in [("a", &mine), ("b", &shared), ("c", &shared), ("d", &theirs)] {
        orders.push(order(&rig, &runtime, component, "1.0.0", image).await);
    }
    let remove = async |at: usize| {
        runtime.remove(orders[at].assignment, &orders[at].component).await.unwrap();
    };
    // A stranger's container, even one that does not run, keeps its image.
    let stranger = rig.docker(&["create", &mine, "true"]);
    remove(0).await;
    remove(1).await;
    assert!(has(&rig, &mine) && has(&rig, &shared), "both are in use");
    rig.docker(&["rm", &stranger]);
    remove(2).await;
    assert!(!has(&rig, &mine) && !has(&rig, &shared), "nobody needs them");
    remove(3).await;
    assert!(has(&rig, &theirs), "what the agent did not bring it does not take away");
    rig.docker(&["rmi", &theirs]);

    // Told to keep them, it does.
    let kept = push_image(&rig, "kept:1");
    let keeping = order(&rig, &rig.runtime, "e", "1.0.0", &kept).await;
    rig.runtime.remove(keeping.assignment, &keeping.component).await.unwrap();
    assert!(has(&rig, &kept));
    // Told otherwise, it looks through what it kept.
    rig.runtime.let_images_go(true);
    rig.runtime.observe().await.unwrap();
    assert!(!has(&rig, &kept));
    rig.finish().await;
}

async fn an_image_is_kept_for_the_way_back(rig: Rig) {
    let runtime = rig.removing_images();
    let [first, second] = ["app:1", "app:2"].map(|name| push_image(&rig, name));
    let good = order(&rig, &runtime, "app", "1.0.0", &first).await;
    let update = order(&rig, &runtime, "app", "2.0.0", &second).await;
    let keep = async |orders: &[&Order]| {
        runtime.keep(orders.iter().map(|order| order.fingerprint()).collect());
        runtime.observe().await.unwrap();
    };
    // However old the files are: the device may have been off for a night.
    let record = rig.data.join("compose").join(rig.project("app")).join("project.json");
    let hours_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(8 * 3600);
    std::fs::File::options().write(true).open(record).unwrap().set_modified(hours_ago).unwrap();
    keep(&[&good, &update]).await;
    assert!(has(&rig, &first), "the update has not proved itself");
    rig.cut_off().await;
    runtime.apply(&good).await.unwrap();
    rig.check_runs(&good).await;
    keep(&[&good]).await;
    assert!(has(&rig, &first) && !has(&rig, &second));
    runtime.remove(good.assignment, &good.component).await.unwrap();
    assert!(!has(&rig, &first));
    rig.finish().await;
}
