//! Our server and our agent in each form of the device interface: installed, updated, killed, away and back again.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::stage::{PRETENDED, Running, Stage, free_port, installed, program, wait_for};

/// A plant whose server also takes signed requests.
pub(crate) fn signed_plant() -> (Stage, String) {
    let listen = format!("127.0.0.1:{}", free_port());
    (Stage::start_with(&["--signed-listen", &listen]), format!("https://{listen}"))
}

/// A device that wants to be let in to sign its requests, and waits for somebody to decide.
pub(crate) fn ask_signed(stage: &Stage, url: &str, name: &str) -> Running {
    let authority = stage.path("server/identity/web-authority.crt");
    let mut command = Command::new(program("margrave-agent"));
    command.args(["join", url, "--signed", "--device", name, "--ca"]).arg(authority);
    command.arg("--data").arg(stage.path(name));
    Running::start("join", &stage.path(""), &mut command)
}

/// Joins `line-1` by signed requests, with an operator who accepts it meanwhile.
fn join_signed(stage: &Stage, url: &str) -> PathBuf {
    let data = stage.path("line-1");
    let mut joining = ask_signed(stage, url, "line-1");
    let waiting = wait_for("the operator sees the device", || {
        let list = stage.json(&["device", "list", "--waiting"]);
        list.as_array()?.first().cloned()
    });
    let id = waiting["id"].as_str().or(waiting["fingerprint"].as_str()).expect("an id").to_owned();
    // What the device shows is what the operator sees.
    let fingerprint = waiting["fingerprint"].as_str().expect("a fingerprint").to_owned();
    wait_for("the device shows its fingerprint", || {
        joining.log().contains(fingerprint.trim_start_matches("sha256:")).then_some(())
    });
    stage.json(&["device", "accept", &id]);
    wait_for("the device has joined", || (!joining.is_running()).then_some(()));
    assert!(data.join("identity.json").exists(), "{}", joining.log());
    data
}

/// The whole story of one deployment, with both ends killed on the way.
fn live_through(stage: &mut Stage, form: &str, start: impl Fn(&Stage) -> Running) {
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let mut agent = start(stage);
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
    assert_eq!(stage.agent_status("line-1")["form"], form);

    // The agent dies in the middle of an update.
    stage.json(&["deployment", "update", "hello", "--set", "greeting=two"]);
    agent.kill();
    let _agent = start(stage);
    wait_for("the update arrives", || {
        stage.history("line-1", "hello").contains(&"UPDATING".to_owned()).then_some(())
    });
    stage.wait_state("line-1", "hello", "INSTALLED");
    let since = stage.agent_status("line-1")["deployments"][0]["since"].clone();

    // The server dies; what runs keeps running, and the device comes back by itself.
    stage.server().kill();
    wait_for("the device notices", || stage.agent_status("line-1")["trouble"].is_string().then_some(()));
    stage.start_server();
    wait_for("the device is back", || stage.agent_status("line-1")["trouble"].is_null().then_some(()));
    assert_eq!(stage.agent_status("line-1")["deployments"][0]["since"], since);

    stage.json(&["deployment", "remove", "hello", "--yes"]);
    wait_for("it is gone", || stage.assignment("line-1", "hello").is_none().then_some(()));
    wait_for("the device has forgotten it and said so", || {
        let status = stage.agent_status("line-1");
        (status["deployments"] == serde_json::json!([]) && status["reportsWaiting"] == 0).then_some(())
    });
}

/// An agent that polls often. Its name is unknown to the server until it has said what it is.
fn eager(stage: &Stage) -> Running {
    let file = stage.path("line-1.simulation.json");
    std::fs::write(&file, r#"{"start": {"leastMillis": 300}, "pull": {"leastMillis": 50}}"#)
        .expect("the stage's directory is writable");
    let mut command = Command::new(program("margrave-agent"));
    command.args(["run", "--runtime", "simulated", "--poll", "500ms", "--simulation"]).arg(file);
    // By a relative path, as people type it who are in that directory.
    command.current_dir(stage.path("")).args(["--data", "line-1"]);
    let running = Running::start("line-1", &stage.path(""), &mut command);
    wait_for("the device says what it is", || {
        stage.margrave(&["device", "show", "line-1"]).status.success().then_some(())
    });
    running
}

#[test]
fn a_device_that_signs_its_requests_lives_through_everything() {
    let (mut stage, url) = signed_plant();
    join_signed(&stage, &url);
    live_through(&mut stage, "g1", eager);
}

#[test]
fn a_device_with_a_repository_lives_through_everything() {
    if installed("git").is_none() {
        return;
    }
    let mut stage = Stage::start();
    let token = stage.json(&["device", "token", "--name", "line-1", "--git"]);
    let text = |key: &str| token[key].as_str().expect("a text").to_owned();
    let joined = Command::new(program("margrave-agent"))
        .args(["join", &text("url"), "--token", &text("token"), "--pin", &text("pin"), "--git", "--data"])
        .arg(stage.path("line-1"))
        .output()
        .expect("our own program starts");
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    live_through(&mut stage, "git", eager);

    // The operator closes the repository: the device says so, and nothing else happens.
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    let agent = eager(&stage);
    stage.wait_state("line-1", "hello", "INSTALLED");
    stage.json(&["device", "git", "line-1", "--rotate"]);
    stage.json(&["deployment", "update", "hello", "--set", "greeting=rotated"]);
    wait_for("a device gets itself another token", || {
        stage.history("line-1", "hello").contains(&"UPDATING".to_owned()).then_some(())
    });
    stage.wait_state("line-1", "hello", "INSTALLED");
    drop(agent);
}

#[test]
fn a_device_moves_from_signed_requests_to_mutual_tls_and_accepts_versions_from_1() {
    let (stage, url) = signed_plant();
    join_signed(&stage, &url);
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let agent = eager(&stage);
    for greeting in ["one", "two", "three"] {
        match greeting {
            "one" => stage.json(&["deploy", "hello", "--to", "line-1"]),
            other => stage.json(&["deployment", "update", "hello", "--set", &format!("greeting={other}")]),
        };
        stage.wait_state("line-1", "hello", "INSTALLED");
    }
    let before = stage.agent_status("line-1");
    assert!(before["manifestVersion"].as_u64().is_some_and(|version| version >= 3), "{before}");
    let id = stage.assignment("line-1", "hello").expect("it is installed")["id"].clone();
    drop(agent);

    // The operator's steps of the migration: a new identity, and all that was the old one's.
    let token = stage.json(&["device", "token", "--name", "line-1-new"]);
    let text = |key: &str| token[key].as_str().expect("a text").to_owned();
    let joined = Command::new(program("margrave-agent"))
        .args(["join", &text("url"), "--token", &text("token"), "--pin", &text("pin"), "--replace", "--data"])
        .arg(stage.path("line-1"))
        .output()
        .expect("our own program starts");
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    stage.json(&["device", "move", "line-1", "line-1-new", "--yes"]);
    let mut command = Command::new(program("margrave-agent"));
    command.args(["run", "--runtime", "simulated", "--poll", "500ms", "--data"]).arg(stage.path("line-1"));
    let _agent = Running::start("moved", &stage.path(""), &mut command);
    let moved = wait_for("it is installed under the new name", || {
        stage.assignment("line-1-new", "hello").filter(|assignment| assignment["state"] == "INSTALLED")
    });
    // What ran went on: the same id, to which containers and volumes belong, and nothing was ever removed.
    assert_eq!(moved["id"], id);
    let history = stage.history("line-1-new", "hello");
    assert!(!history.iter().any(|state| state.starts_with("DELET")), "{history:?}");
    // The new identity's manifests count from 1: lower than what this device had accepted under its old one.
    let after = stage.agent_status("line-1");
    let version = |status: &Value| status["manifestVersion"].as_u64().expect("a number");
    assert_eq!((&after["form"], &after["device"]), (&"g2".into(), &"line-1-new".into()));
    assert!(version(&after) < version(&before), "{after}");
}
