//! Updates that fail on a real engine: the device goes back by itself, and says both what runs and what failed.

use crate::engine::said;
use crate::failures::spoilt;
use crate::plant::{Plant, WEB};
use crate::stage::wait_for;

/// The same service with a health check that never passes.
pub(crate) fn sick() -> String {
    WEB.replace(
        "\"wget\", \"-q\", \"-O\", \"/dev/null\", \"http://127.0.0.1:8080/\"",
        "\"test\", \"-e\", \"/nowhere\"",
    )
    .replace("retries: 30", "retries: 2")
}

/// A plant in which 1.0.0 runs and has kept something, and 1.1.0 is in the catalog and sick.
fn plant() -> Option<Plant> {
    assert_ne!(sick(), WEB);
    let plant = Plant::start()?;
    plant.add_package("hello", "1.0.0", &[("front", WEB)]);
    plant.add_package("hello", "1.1.0", &[("front", &sick())]);
    Some(plant)
}

#[test]
fn promise_7_an_update_that_does_not_get_healthy_is_gone_back_from_and_both_facts_are_shown() {
    let Some(plant) = plant() else { return };
    let _agent = plant.agent();
    plant.deploy("hello@1.0.0");
    plant.wait("hello", "INSTALLED");
    plant.engine.exec(&plant.container("hello", "front", "web"), "echo kept > /data/file");

    plant.json(&["deployment", "update", "hello", "--version", "1.1.0"]);
    let back = wait_for("it went back", || {
        plant
            .assignment(&plant.device, "hello")
            .filter(|shown| shown["state"] == "INSTALLED" && shown["error"]["code"] == "unhealthy")
    });
    assert_eq!(back["current"], false, "{back}");
    let steps = plant.steps("hello");
    let expected = ["UPDATING", "FAILED", "UPDATING", "FAILED", "ROLLINGBACK", "INSTALLED"];
    assert_eq!(steps[3..], expected, "{steps:?}");
    let container = plant.container("hello", "front", "web");
    assert_eq!(plant.engine.inspect(&container, "{{.State.Health.Status}}"), "healthy");
    assert_eq!(plant.engine.exec(&container, "cat /data/file"), "kept", "volumes survive going back");
    let why = said(&plant.margrave(&["why", &format!("{}/hello", plant.device)]));
    assert!(why.contains("went back to its last good version"), "{why}");
    let device = plant.json(&["device", "show", &plant.device]);
    assert_eq!(device["condition"], "failed", "{device}");
    assert_eq!((&back["version"], &back["runs"]), (&"1.1.0".into(), &"1.0.0".into()), "{back}");
    let shown = said(&plant.margrave(&["deployment", "show", "hello"]));
    assert!(shown.contains("hello@1.0.0, wanted 1.1.0"), "{shown}");

    // The operator takes it back: nothing has to be touched for that.
    let before = plant.run_of("hello", "front", "web");
    plant.json(&["deployment", "revert", "hello"]);
    plant.wait("hello", "INSTALLED");
    assert_eq!(plant.run_of("hello", "front", "web"), before);
}

#[test]
fn promise_2_going_back_needs_neither_server_nor_registry() {
    let Some(mut plant) = plant() else { return };
    let _agent = plant.agent();
    plant.deploy("hello@1.0.0");
    plant.wait("hello", "INSTALLED");
    let first = plant.container("hello", "front", "web");
    plant.json(&["deployment", "update", "hello", "--version", "1.1.0", "--attempts", "1"]);
    let project = plant.project("hello", "front");
    let second = wait_for("the new container is there", || {
        plant.containers(&project, "web").into_iter().find(|container| *container != first)
    });
    plant.stage.server().kill();
    wait_for("a healthy container has taken its place", || {
        let label = format!("label=com.docker.compose.project={project}");
        let healthy = ["ps", "-q", "--no-trunc", "--filter", "health=healthy", "--filter", &label];
        plant.engine.docker(&healthy).lines().any(|found| found != second).then_some(())
    });
    plant.stage.start_server();
    let shown = wait_for("the server hears of it", || {
        plant.assignment(&plant.device, "hello").filter(|shown| shown["state"] == "INSTALLED")
    });
    assert_eq!(shown["error"]["code"], "unhealthy", "{shown}");
    assert_eq!(plant.steps("hello")[3..], ["UPDATING", "FAILED", "ROLLINGBACK", "INSTALLED"]);
}

#[test]
fn a_deployment_that_must_not_go_back_stays_failed_and_says_why() {
    let Some(plant) = plant() else { return };
    let _agent = plant.agent();
    plant.json(&["deploy", "hello@1.0.0", "--to", &plant.device, "--rollback", "never"]);
    plant.wait("hello", "INSTALLED");
    plant.json(&["deployment", "update", "hello", "--version", "1.1.0"]);
    wait_for("it was tried again", || {
        let steps = plant.steps("hello");
        (steps.iter().filter(|step| *step == "FAILED").count() >= 2).then_some(())
    });
    let steps = plant.steps("hello");
    assert!(!steps.contains(&"ROLLINGBACK".to_owned()), "{steps:?}");
    assert_eq!(plant.json(&["deployment", "show", "hello"])["rollback"]["when"], "never");
}

/// Longer than any pause between two tries of going back.
const QUIET_SECONDS: i64 = 15;

#[test]
fn going_back_to_what_cannot_start_any_more_ends_with_both_reasons_and_starts_nothing_more() {
    let Some(plant) = Plant::start() else { return };
    plant.add_package("hello", "1.0.0", &[("front", &spoilt())]);
    // It leaves something behind that the version before cannot live with.
    let spoils = sick().replace("mkdir -p /www;", "touch /data/spoilt; mkdir -p /www;");
    assert_ne!(spoils, sick());
    plant.add_package("hello", "1.1.0", &[("front", &spoils)]);
    let _agent = plant.agent();
    plant.deploy("hello@1.0.0");
    plant.wait("hello", "INSTALLED");

    plant.json(&["deployment", "update", "hello", "--version", "1.1.0"]);
    let ended = wait_for("going back has failed", || {
        plant.assignment(&plant.device, "hello").filter(|shown| shown["error"]["code"] == "rollback-failed")
    });
    assert_eq!(ended["state"], "FAILED", "{ended}");
    assert!(ended["nextTry"].is_null(), "{ended}");
    let message = ended["error"]["message"].as_str().expect("it says why");
    for words in ["The update failed (", "and going back failed too ("] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(plant.steps("hello").last_chunk(), Some(&["ROLLINGBACK", "FAILED"].map(str::to_owned)));

    let label = format!("label=com.docker.compose.project={}", plant.project("hello", "front"));
    let from = jiff::Timestamp::now().as_second() + 1;
    let until = from + QUIET_SECONDS;
    // Answers when that time is over.
    let (from, until) = (from.to_string(), until.to_string());
    let started =
        ["events", "--since", &from, "--until", &until, "--filter", &label, "--filter", "event=start"];
    assert_eq!(plant.engine.docker(&started), "", "it is left alone");
    assert!(plant.assignment(&plant.device, "hello").is_some_and(|shown| shown["nextTry"].is_null()));
}
