//! Changes that wait, for somebody at the device or for their hour, with real processes.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;

use serde_json::{Value, json};

use crate::stage::{PRETENDED, Stage, program, wait_for};

/// What `margrave-agent` says, and whether it did it.
fn agent(stage: &Stage, name: &str, arguments: &[&str]) -> (bool, String) {
    let (code, text) = answered(stage, name, arguments);
    (code == 0, text)
}

/// With its exit code.
fn answered(stage: &Stage, name: &str, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(program("margrave-agent"));
    let output = command.arg("--data").arg(stage.path(name)).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().expect("it ended by itself"), String::from_utf8(text).unwrap())
}

/// As an application would, over the socket that is mounted into its container.
fn application(stage: &Stage, name: &str, line: &str) -> Value {
    let mut socket = UnixStream::connect(stage.path(name).join("apps/hold.sock")).unwrap();
    socket.write_all(line.as_bytes()).unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

fn installed() -> (Stage, crate::stage::Running) {
    let stage = Stage::start();
    stage.join("line-1");
    let running = stage.simulated("line-1", "10ms");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
    (stage, running)
}

fn waits_at_the_server(stage: &Stage, words: &str) -> Value {
    wait_for("the server hears why it waits", || {
        let output = stage.margrave(&["why", "line-1/hello", "--json"]);
        let why: Value = serde_json::from_slice(&output.stdout).ok()?;
        why["chain"].as_array()?.last()?["text"].as_str()?.contains(words).then_some(why)
    })
}

#[test]
fn a_technician_holds_changes_back_and_everybody_sees_why() {
    let (stage, mut running) = installed();
    let (done, text) =
        agent(&stage, "line-1", &["hold", "--reason", "batch 17 runs", "--for", "2h", "--holder", "ann"]);
    assert!(done && text.contains("held back until"), "{text}");
    // Also while nothing waits for it.
    wait_for("the server shows the hold", || {
        let shown = stage.json(&["device", "show", "line-1"]);
        let hold = shown["holds"].get(0)?;
        let is_right =
            hold["holder"] == "ann" && hold["reason"] == "batch 17 runs" && hold["until"].is_string();
        (is_right && shown["condition"] == "converged").then_some(())
    });
    let shown = String::from_utf8(stage.margrave(&["device", "show", "line-1"]).stdout).unwrap();
    assert!(shown.contains("Held back") && shown.contains("by ann until"), "{shown}");
    stage.json(&["deployment", "update", "hello", "--set", "greeting=later"]);
    let why = waits_at_the_server(&stage, "held back by ann until");
    assert_eq!(why["chain"][0]["code"], "waiting");
    assert_eq!(stage.history("line-1", "hello").last().unwrap(), "INSTALLED", "what runs is what ran");
    // Neither a restart nor a crash lets it go on.
    running.kill();
    let _running = stage.simulated("line-1", "10ms");
    let status = wait_for("the agent is back", || {
        let status = stage.agent_status("line-1");
        status["lastContact"].is_string().then_some(status)
    });
    assert_eq!(
        (&status["holds"][0]["holder"], &status["holds"][0]["reason"]),
        (&json!("ann"), &json!("batch 17 runs"))
    );
    assert!(status["deployments"][0]["waiting"].as_str().unwrap().starts_with("held back by ann until"));
    let (_, shown) = agent(&stage, "line-1", &["status"]);
    assert!(
        shown.contains("held back     by ann until") && shown.contains("the change: held back"),
        "{shown}"
    );
    assert!(!stage.history("line-1", "hello").contains(&"UPDATING".to_owned()));

    // What it said last is from before the crash, perhaps; it listens a moment after it has begun.
    let text = wait_for("the agent hears", || {
        let (done, text) = agent(&stage, "line-1", &["release"]);
        done.then_some(text)
    });
    assert!(text.contains("Changes go on"), "{text}");
    wait_for("the update goes on", || {
        stage.history("line-1", "hello").contains(&"UPDATING".to_owned()).then_some(())
    });
    stage.wait_state("line-1", "hello", "INSTALLED");
    let (code, text) = answered(&stage, "line-1", &["release"]);
    assert!(code == 1 && text.contains("Nothing was held back"), "{code} {text}");
    let (code, text) = answered(&stage, "line-1", &["hold", "--reason", "x", "--for", "48h"]);
    assert!(code == 1 && text.contains("24h at most"), "{code} {text}");
    wait_for("the server shows no hold", || {
        stage.json(&["device", "show", "line-1"])["holds"].is_null().then_some(())
    });
}

#[test]
fn applications_hold_within_bounds_and_nonsense_is_answered() {
    let (stage, mut running) = installed();
    let asks = |line: &str| application(&stage, "line-1", line);
    let hold = |holder: &str, seconds: u64| {
        asks(&format!("{{\"hold\":{{\"holder\":\"{holder}\",\"reason\":\"runs\",\"seconds\":{seconds}}}}}\n"))
    };
    assert!(hold("mes", 600)["until"].is_string());
    assert!(hold("mes", 700)["until"].is_string(), "prolonged");
    let refused = |answer: Value, words: &str| {
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(words)), "{answer}");
    };
    refused(hold("mes", 0), "a second at least");
    refused(hold("mes", u64::MAX), "24h at most");
    refused(hold("", 60), "say who holds");
    refused(hold(&"x".repeat(57), 60), "say who holds");
    refused(asks("{\"release\":{}}\n"), "name the holder");
    for nonsense in
        ["", "\n", "hold\n", "[]", "{\"hold\":{}}\n", "{\"hold\":{\"holder\":1}}\n", &"x".repeat(10_000)]
    {
        refused(asks(nonsense), "write one line such as");
    }
    // Somebody who connects and says nothing keeps nobody else waiting.
    let _silent: Vec<UnixStream> =
        (0..4).map(|_| UnixStream::connect(stage.path("line-1").join("apps/hold.sock")).unwrap()).collect();
    assert_eq!(asks("{\"release\":{\"holder\":\"mes\"}}\n"), json!({"released": 1}));
    assert_eq!(asks("{\"release\":{\"holder\":\"mes\"}}\n"), json!({"released": 0}));
    // The server may forbid it.
    stage.json(&["schedule", "set", "device:line-1", "--hold-max", "none"]);
    wait_for("the device hears of it", || {
        hold("mes", 60)["error"].as_str()?.contains("may not").then_some(())
    });
    assert!(running.terminate().success());
    let (code, text) = answered(&stage, "line-1", &["hold", "--reason", "x", "--for", "1m"]);
    assert!(code == 2 && text.contains("no agent runs"), "{code} {text}");
}

#[test]
fn mi_g2_210_a_schedule_is_set_seen_and_followed() {
    let (stage, _running) = installed();
    // A window of one minute, twelve hours from now: it does not open while this runs.
    let hour = (jiff::Timestamp::now() + jiff::Span::new().hours(12)).strftime("%H").to_string();
    let window = format!("daily {hour}:00-{hour}:01 UTC");
    let set = stage.json(&["schedule", "set", "fleet", "--window", &window]);
    assert_eq!(set["schedule"]["windows"], json!([window]));
    wait_for("the device hears of it", || {
        (stage.agent_status("line-1")["schedule"]["windows"] == json!([window])).then_some(())
    });
    stage.json(&["deployment", "update", "hello", "--set", "greeting=at night"]);
    waits_at_the_server(&stage, "waits for the maintenance window, which opens at");
    let shown = stage.json(&["device", "show", "line-1"]);
    assert_eq!((&shown["condition"], &shown["schedule"]["windows"]), (&json!("pending"), &json!([window])));
    let text = String::from_utf8(stage.margrave(&["schedule", "list"]).stdout).unwrap();
    assert!(text.contains("fleet") && text.contains(&format!("changes {window}")), "{text}");
    // This one may at any time.
    stage.json(&["schedule", "set", "device:line-1", "--window", "any"]);
    wait_for("the update begins", || {
        stage.history("line-1", "hello").contains(&"UPDATING".to_owned()).then_some(())
    });
    stage.wait_state("line-1", "hello", "INSTALLED");
    stage.json(&["schedule", "remove", "device:line-1"]);
    for (arguments, words) in [
        (&["schedule", "set", "fleet", "--window", "sometimes"][..], "mon-fri 06:00-22:00"),
        (&["schedule", "set", "fleet", "--downtime", "daily 00:00-24:00"], "never be reached again"),
        (&["schedule", "set", "nobody", "--poll", "5m"], "`fleet`, for `label:KEY=VALUE`"),
        (&["schedule", "set", "fleet", "--poll", "1s"], "every 5 seconds at most"),
        (&["schedule", "show", "label:a=b"], "nothing is set"),
        (&["schedule", "remove", "label:a=b"], "no schedule of label:a=b"),
    ] {
        let output = stage.margrave(arguments);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
}

#[test]
fn what_is_set_on_the_device_goes_before_its_schedule_and_is_shown_on_both_sides() {
    let (stage, mut running) = installed();
    assert!(running.terminate().success());
    let simulation = stage.path("line-1.simulation.json");
    let simulation = simulation.to_str().expect("a plain path");
    let simulated = ["--runtime", "simulated", "--simulation", simulation];
    let _running = stage.run_agent(
        "line-1",
        &[&simulated[..], &["--any-time", "--poll", "60s", "--data-saver", "off"]].concat(),
    );
    let words = ["polls every 60s", "talks and changes at any time", "does not save data"];
    let shown = wait_for("the server shows what is set on the device", || {
        let shown = String::from_utf8(stage.margrave(&["device", "show", "line-1"]).stdout).ok()?;
        words.iter().all(|words| shown.contains(words)).then_some(shown)
    });
    assert!(shown.contains("Set on it"), "{shown}");
    let (_, status) = agent(&stage, "line-1", &["status"]);
    for words in words {
        assert!(status.contains(&format!("set here      {words}")), "{words} in\n{status}");
    }
    // Twelve hours from now: it does not open while this runs.
    let hour = (jiff::Timestamp::now() + jiff::Span::new().hours(12)).strftime("%H").to_string();
    let window = format!("daily {hour}:00-{hour}:01 UTC");
    stage.json(&["schedule", "set", "fleet", "--window", &window, "--data-saver", "on"]);
    wait_for("the device hears of it", || {
        (stage.agent_status("line-1")["schedule"]["windows"] == json!([window])).then_some(())
    });
    stage.json(&["deployment", "update", "hello", "--set", "greeting=now"]);
    wait_for("the update went through the closed window", || {
        let current = stage.assignment("line-1", "hello")?["current"] == true;
        let began = stage.history("line-1", "hello").contains(&"UPDATING".to_owned());
        (current && began).then_some(())
    });
    // Each step is told, as by a device that does not save data.
    stage.wait_state("line-1", "hello", "INSTALLED");
}

#[test]
fn a_technician_reads_of_what_waits_for_its_turn_whose_turn_it_is() {
    let stage = Stage::start();
    stage.join("line-1");
    let simulation = stage.path("slow.json");
    std::fs::write(&simulation, r#"{"pull": {"leastMillis": 600000}}"#).unwrap();
    let simulation = simulation.to_str().expect("a plain path");
    let _running = stage.run_agent("line-1", &["--runtime", "simulated", "--simulation", simulation]);
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let deploy = |name: &str, state: &str| {
        stage.json(&["deploy", "hello", "--name", name, "--to", "line-1"]);
        wait_for(&format!("{name} is {state}"), || {
            let status = stage.agent_status("line-1");
            let deployments = status["deployments"].as_array()?;
            deployments.iter().find(|one| one["name"] == name && one["state"] == state).cloned()
        })
    };
    assert!(deploy("first", "INSTALLING")["waiting"].is_null());
    assert!(deploy("second", "INSTALLING")["waiting"].is_null());
    let third = deploy("third", "PENDING");
    let words = third["waiting"].as_str().unwrap_or_else(|| panic!("{third}"));
    assert!(words.starts_with("waits for its turn: ") && words.ends_with(" are worked on"), "{words}");
    assert!(words.contains("first") && words.contains("second"), "{words}");
}

#[test]
fn mi_g2_210_in_a_known_downtime_a_device_is_quiet_and_not_in_trouble() {
    let (mut stage, _running) = installed();
    let from = jiff::Timestamp::now() - jiff::Span::new().hours(1);
    let downtime = format!("{from:.0}/{:.0}", from + jiff::Span::new().hours(48));
    stage.json(&["schedule", "set", "device:line-1", "--downtime", &downtime]);
    let status = wait_for("the device is quiet", || {
        let status = stage.agent_status("line-1");
        status["silentUntil"].is_string().then_some(status)
    });
    assert!(status["trouble"].is_null(), "{status}");
    stage.server().kill();
    // A change on the device is kept for later, and being alone is no trouble.
    stage.start_server();
    stage.json(&["deployment", "update", "hello", "--set", "greeting=later"]);
    let why = waits_at_the_server(&stage, "by its schedule it may talk again at");
    assert_eq!(why["chain"][0]["code"], "in-downtime");
    assert!(stage.agent_status("line-1")["trouble"].is_null());
    let (_, shown) = agent(&stage, "line-1", &["status"]);
    assert!(shown.contains("silent        by its schedule until"), "{shown}");
}
