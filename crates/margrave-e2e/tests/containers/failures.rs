//! What cannot work: told quickly and in words, cured by itself where it can be, and nobody else's trouble.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::engine::said;
use crate::plant::{LABEL_AGENT, Plant, WEB};
use crate::small_disk::SmallDisk;
use crate::stage::{tell, wait_for};
use crate::trouble::Trouble;

fn error_of(assignment: &Value) -> (String, String) {
    let text = |key: &str| assignment["error"][key].as_str().unwrap_or_default().to_owned();
    (text("code"), text("message"))
}

#[test]
fn an_image_that_is_not_there_is_named_and_pushing_it_is_all_it_takes() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    let late = WEB.replace("e2e/busybox:1", "e2e/late:7");
    plant.add_package("late", "1.0.0", &[("main", &late)]);
    let mut trouble = Trouble::begins("image that is not there");
    plant.deploy("late");
    let (code, message) = error_of(&plant.wait("late", "FAILED"));
    assert_eq!(code, "pull-not-found", "{message}");
    let image = format!("{}/e2e/late:7", plant.registry());
    assert!(message.contains(&image), "{message}");
    assert_eq!(plant.all_containers(), [""; 0], "nothing is begun that cannot be finished");
    let why = plant.margrave(&["why", &format!("{}/late", plant.device)]);
    assert!(said(&why).contains(&image), "{}", said(&why));

    plant.push("e2e/late:7");
    trouble.is_cured();
    plant.wait("late", "INSTALLED");
    trouble.tell(&plant, &plant.device, "late");
    plant.container("late", "main", "web");
}

/// Long before the component's timeout of a minute, and late enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(45);

#[test]
fn pk_101_what_does_not_start_or_is_not_healthy_is_told_and_others_are_left_alone() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    let service = |rest: &str| {
        format!(
            "services:\n  main:\n    image: ${{MARGRAVE_REGISTRY}}/e2e/busybox:1\n    stop_signal: SIGKILL\n    environment: {{GREETING: \"${{GREETING}}\"}}\n{rest}"
        )
    };
    plant.add_package("steady", "1.0.0", &[("main", WEB)]);
    plant.add_package("once", "1.0.0", &[("main", &service("    command: [sh, -c, \"exit 3\"]\n"))]);
    let again = service("    command: [sh, -c, \"exit 3\"]\n    restart: unless-stopped\n");
    plant.add_package("again", "1.0.0", &[("main", &again)]);
    let sick = "    command: [sleep, \"1000\"]\n    healthcheck: {test: [CMD-SHELL, \"echo no route to plc; exit 1\"], interval: 1s, timeout: 10s, retries: 2}\n";
    // The first version is well; the second has a component more, and that one never gets healthy.
    plant.add_package("worse", "1.0.0", &[("main", WEB)]);
    plant.add_package("worse", "1.1.0", &[("main", WEB), ("extra", &service(sick))]);

    plant.deploy("steady");
    plant.deploy("worse@1.0.0");
    plant.wait("steady", "INSTALLED");
    plant.wait("worse", "INSTALLED");
    let steady = plant.run_of("steady", "main", "web");
    let well = plant.run_of("worse", "main", "web");

    let begun = Instant::now();
    let once = Trouble::begins("a service that ends at once");
    plant.deploy("once");
    let (code, message) = error_of(&plant.wait("once", "FAILED"));
    assert_eq!((code.as_str(), message.as_str()), ("start-failed", "Service main exited with code 3."));
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    once.tell(&plant, &plant.device, "once");
    plant.json(&["deployment", "remove", "once", "--yes"]);

    let begun = Instant::now();
    plant.deploy("again");
    let (code, message) = error_of(&plant.wait("again", "FAILED"));
    assert_eq!(code, "start-failed", "{message}");
    assert!(message.contains("main") && message.contains("code 3"), "{message}");
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    plant.json(&["deployment", "remove", "again", "--yes"]);

    plant.json(&["deployment", "update", "worse", "--version", "1.1.0"]);
    let failed = plant.wait("worse", "FAILED");
    let (code, message) = error_of(&failed);
    assert_eq!(
        (code.as_str(), message.as_str()),
        ("unhealthy", "The health check of main fails: no route to plc.")
    );
    let component = |name: &str| {
        let components = failed["components"].as_array().expect("a list");
        components.iter().find(|c| c["name"] == name).expect("every component is told").clone()
    };
    assert_eq!(component("main")["state"], "installed");
    assert_eq!(component("extra")["state"], "failed");
    assert_eq!(component("extra")["error"]["code"], "unhealthy");

    assert_eq!(plant.run_of("steady", "main", "web"), steady, "another deployment's trouble is not its own");
    assert_eq!(plant.run_of("worse", "main", "web"), well, "what the update did not change runs on");
    assert_eq!(plant.steps("steady"), ["PENDING", "INSTALLING", "INSTALLED"]);
    for gone in ["once", "again"] {
        wait_for("a failed deployment can be removed", || {
            plant.assignment(&plant.device, gone).is_none().then_some(())
        });
    }
    // Back to what was good: the failed component goes, the good one has never stopped.
    plant.json(&["deployment", "update", "worse", "--version", "1.0.0"]);
    plant.wait("worse", "INSTALLED");
    assert_eq!(plant.run_of("worse", "main", "web"), well);
    wait_for("the failed component is gone", || (plant.all_containers().len() == 2).then_some(()));
}

#[test]
fn a_port_that_somebody_has_is_named_and_freeing_it_is_all_it_takes() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let port = taken.local_addr().expect("it listens").port();
    let ports = format!("    ports: [\"127.0.0.1:{port}:8080\"]\n    stop_signal");
    plant.add_package("hello", "1.0.0", &[("main", &WEB.replace("    stop_signal", &ports))]);
    let mut trouble = Trouble::begins("port taken");
    plant.deploy("hello");
    let failed = plant.wait("hello", "FAILED");
    let (code, message) = error_of(&failed);
    assert_eq!(code, "create-failed", "{message}");
    assert!(message.contains("web") && message.contains(&port.to_string()), "{message}");
    assert!(failed["nextTry"].is_string(), "it says when it tries again: {failed}");

    drop(taken);
    trouble.is_cured();
    plant.wait("hello", "INSTALLED");
    trouble.tell(&plant, &plant.device, "hello");
    assert_eq!(plant.all_containers().len(), 1);
    std::net::TcpStream::connect(("127.0.0.1", port)).expect("the service is there");
}

/// Makes a program of a machine that does not exist of the one in an image.
fn for_another_machine(root: &Path) {
    let file = root.join("bin/busybox");
    let mut program = std::fs::read(&file).expect("it was just copied");
    // Where an ELF file says for which machine it is.
    program[18..20].copy_from_slice(&[0x34, 0x12]);
    std::fs::write(&file, program).expect("the stage's directory is writable");
}

#[test]
fn an_image_for_another_machine_is_called_that_and_what_ran_before_runs_again() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    let other = if cfg!(target_arch = "s390x") { "amd64" } else { "s390x" };
    plant.push_for("e2e/foreign:2", other, for_another_machine);
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    plant.add_package("hello", "2.0.0", &[("main", &WEB.replace("e2e/busybox:1", "e2e/foreign:2"))]);
    plant.deploy("hello@1.0.0");
    plant.wait("hello", "INSTALLED");
    plant.engine.exec(&plant.container("hello", "main", "web"), "echo kept > /data/file");

    let trouble = Trouble::begins("image of the wrong architecture");
    plant.json(&["deployment", "update", "hello", "--version", "2.0.0", "--attempts", "1"]);
    let back = wait_for("it went back", || {
        let shown = plant.assignment(&plant.device, "hello")?;
        (shown["state"] == "INSTALLED" && shown["current"] == false && shown["error"].is_object())
            .then_some(shown)
    });
    let (code, message) = error_of(&back);
    assert_eq!(code, "start-failed", "{message}");
    let image = format!("{}/e2e/foreign@sha256:", plant.registry());
    assert!(message.contains(&image) && message.contains(other), "{message}");
    let container = plant.container("hello", "main", "web");
    assert_eq!(plant.engine.exec(&container, "cat /data/file"), "kept");
    assert_eq!(plant.steps("hello").last().map(String::as_str), Some("INSTALLED"));
    trouble.tell(&plant, &plant.device, "hello");
}

#[test]
fn a_full_disk_is_told_nothing_is_begun_and_space_is_all_it_takes() {
    let Some(plant) = Plant::start() else { return };
    let device = format!("{}-full", plant.device);
    let Some(disk) = SmallDisk::mount(&plant.path(&device)) else { return };
    plant.join(&device);
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    let agent = || plant.run_agent(&device, &["--engine", &plant.engine.host]);
    let mut first = agent();
    wait_for("the device has been told that there is nothing to do", || {
        plant.agent_status(&device)["lastContact"].is_string().then_some(())
    });
    // Also what the device keeps for its memory: for as long as that lasts, it goes on.
    disk.take("ledger/reserve");
    disk.fill();
    let mut trouble = Trouble::begins("disk full before anything was begun");
    plant.json(&["deploy", "hello", "--to", &device]);
    let mine = || plant.engine.containers(&[(LABEL_AGENT, &device)]);
    let tells = |when: &str| {
        let begun = Instant::now();
        let trouble = wait_for("the device tells its trouble", || {
            plant.agent_status(&device)["trouble"].as_str().map(str::to_owned)
        });
        tell(&format!("disk full: said on the device {:?} after {when}", begun.elapsed()));
        assert!(trouble.contains("disk is full"), "{trouble}");
        assert_eq!(mine(), [""; 0], "what cannot be written down is not begun");
    };
    tells("something was wanted");
    // Nor does a restart make it worse.
    first.kill();
    let _second = agent();
    tells("it was started again");

    disk.free();
    trouble.is_cured();
    plant.wait_state(&device, "hello", "INSTALLED");
    trouble.tell(&plant, &device, "hello");
    assert_eq!(mine().len(), 1);
    plant.engine.clear(&device, &plant.registry());
}

/// The same service, which does not come up again once it has been told not to.
pub(crate) fn spoilt() -> String {
    let spoilt = WEB.replace("mkdir -p /www;", "test ! -e /data/spoilt || exit 1; mkdir -p /www;");
    assert_ne!(spoilt, WEB);
    spoilt
}

#[test]
fn on_a_full_disk_a_crash_is_told_and_what_crashed_is_removed_from_afar() {
    let Some(plant) = Plant::start() else { return };
    let device = format!("{}-full", plant.device);
    let Some(disk) = SmallDisk::mount(&plant.path(&device)) else { return };
    plant.join(&device);
    plant.add_package("hello", "1.0.0", &[("main", &spoilt())]);
    let _agent = plant.run_agent(&device, &["--engine", &plant.engine.host]);
    plant.json(&["deploy", "hello", "--to", &device]);
    plant.wait_state(&device, "hello", "INSTALLED");
    let mine = || plant.engine.containers(&[(LABEL_AGENT, &device)]);
    let containers = mine();
    let [container] = &containers[..] else { panic!("{containers:?}") };

    disk.fill();
    let trouble = Trouble::begins("crash on a full disk, then removed");
    plant.engine.exec(container, "touch /data/spoilt");
    plant.engine.docker(&["kill", container]);
    plant.wait_state(&device, "hello", "FAILED");
    // Whoever filled the disk takes what became free meanwhile.
    disk.fill();
    plant.json(&["deployment", "remove", "hello", "--yes"]);
    wait_for("it is gone", || plant.assignment(&device, "hello").is_none().then_some(()));
    assert_eq!(mine(), [""; 0]);
    trouble.tell(&plant, &device, "hello");
    plant.engine.clear(&device, &plant.registry());
}
