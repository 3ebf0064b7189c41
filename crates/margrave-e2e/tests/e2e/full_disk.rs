//! A disk that an application filled, or that turned read-only: the device is still told, tells and is helped from afar.

use std::process::Command;

use serde_json::{Value, json};

use crate::small_disk::SmallDisk;
use crate::stage::{PRETENDED, Stage, wait_for};

/// Enough of them that what the device remembers of their end takes a block more than what it had written down before.
const DEPLOYMENTS: usize = 16;

#[test]
fn on_a_full_disk_a_crash_is_told_and_what_crashed_is_removed_from_afar() {
    let stage = Stage::start();
    let Some(disk) = SmallDisk::mount(&stage.path("line-1")) else { return };
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let mut agent = stage.simulated("line-1", "10ms");
    let names: Vec<String> = (0..DEPLOYMENTS).map(|number| format!("hello-{number}")).collect();
    for name in &names {
        stage.json(&["deploy", "hello", "--name", name, "--to", "line-1"]);
    }
    for name in &names {
        stage.wait_state("line-1", name, "INSTALLED");
    }
    assert!(agent.terminate().success());

    // All that runs ends, does not come up again, and has filled the disk.
    let file = stage.path("line-1/simulated.json");
    let text = std::fs::read(&file).expect("the device wrote it");
    let mut containers: Value = serde_json::from_slice(&text).expect("it is JSON");
    for container in containers["components"].as_array_mut().expect("there are some") {
        container["trouble"] = json!(format!("service {} exited with code 1", container["component"]));
        container["nature"] = json!("ending");
    }
    std::fs::write(&file, containers.to_string()).expect("the device's directory is writable");
    let simulation = stage.path("crashes.json");
    let faults = json!({"faults": [{"act": "apply", "effect": {"fail": "start-failed"}}]});
    std::fs::write(&simulation, faults.to_string()).expect("the stage's directory is writable");
    disk.fill();
    let simulation = simulation.to_str().expect("a plain path");
    let agent = stage.run_agent("line-1", &["--runtime", "simulated", "--simulation", simulation]);
    for name in &names {
        stage.wait_state("line-1", name, "FAILED");
    }
    // Whoever filled the disk takes what became free meanwhile.
    disk.fill();

    for name in &names {
        stage.json(&["deployment", "remove", name, "--yes"]);
    }
    for name in &names {
        wait_for("it is gone", || stage.assignment("line-1", name).is_none().then_some(()));
        assert_eq!(stage.history("line-1", name).last().map(String::as_str), Some("DELETED"));
    }
    let log = agent.log();
    assert!(log.contains("room that was kept for the state is used"), "it was not needed: {log}");
}

/// Read-only, as a file system does that found an error in itself, or whole again.
fn remount(disk: &SmallDisk, how: &str) {
    let mut mount = Command::new("mount");
    let done = mount.args(["-o", &format!("remount,{how}")]).arg(disk.path()).status();
    assert!(done.is_ok_and(|status| status.success()), "{} is not {how}", disk.path().display());
}

#[test]
fn on_a_disk_that_turned_read_only_a_device_asks_on_says_why_it_does_nothing_and_goes_on_when_it_can() {
    let stage = Stage::start();
    let data = stage.join("line-1");
    let Some(disk) = SmallDisk::mount(&data.join("ledger")) else { return };
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let agent = stage.run_agent("line-1", &["--runtime", "simulated", "--poll", "5s", "--wait", "0s"]);
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");

    remount(&disk, "ro");
    stage.json(&["deploy", "hello", "--name", "second", "--to", "line-1"]);
    let shown = wait_for("the server hears why nothing happens", || {
        let shown = stage.json(&["device", "show", "line-1"]);
        shown["cannotLook"].is_object().then_some(shown)
    });
    let message = shown["cannotLook"]["message"].as_str().expect("it says why");
    assert!(message.contains("cannot be written down") && message.contains("Read-only"), "{message}");
    assert_eq!(shown["condition"], "pending", "{shown}");
    let status = stage.agent_status("line-1");
    assert!(status["memoryTrouble"].as_str().is_some_and(|why| why.contains("Read-only")), "{status}");
    let heard = shown["lastContact"].clone();
    wait_for("it is heard of again", || {
        (stage.json(&["device", "show", "line-1"])["lastContact"] != heard).then_some(())
    });
    assert_eq!(
        stage.history("line-1", "second"),
        Vec::<String>::new(),
        "nothing is told that is not on disk"
    );

    remount(&disk, "rw");
    stage.wait_state("line-1", "second", "INSTALLED");
    assert!(stage.agent_status("line-1")["memoryTrouble"].is_null());
    wait_for("the server hears that it is well", || {
        stage.json(&["device", "show", "line-1"])["cannotLook"].is_null().then_some(())
    });
    let log = agent.log();
    let tries = log.matches("the intent could not be written down").count();
    assert!(tries < 100, "it tries again all the time: {tries}");
}

#[test]
fn an_agent_that_starts_on_a_disk_that_is_read_only_is_heard_of_and_says_why() {
    let stage = Stage::start();
    let Some(disk) = SmallDisk::mount(&stage.path("line-1")) else { return };
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let arguments = ["--runtime", "simulated", "--poll", "1s", "--wait", "0s"];
    let mut agent = stage.run_agent("line-1", &arguments);
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");

    agent.kill();
    remount(&disk, "ro");
    stage.json(&["deploy", "hello", "--name", "second", "--to", "line-1"]);
    let agent = stage.run_agent("line-1", &arguments);
    wait_for("the server hears why nothing happens", || {
        let shown = stage.json(&["device", "show", "line-1"]);
        let message = shown["cannotLook"]["message"].as_str()?.to_owned();
        message.contains("cannot be written down").then_some(())
    });
    let status = stage.agent_status("line-1");
    assert_eq!(status["running"], true, "a technician is told that it runs: {status}");

    remount(&disk, "rw");
    stage.wait_state("line-1", "second", "INSTALLED");
    drop(agent);
}
