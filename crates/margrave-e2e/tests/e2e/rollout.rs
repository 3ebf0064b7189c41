//! A change in steps, on real processes, with the server killed on the way.

use crate::stage::{PRETENDED, Stage, wait_for};

#[test]
fn a_rollout_goes_on_after_its_server_was_killed_and_every_device_has_its_turn() {
    let mut stage = Stage::start();
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let devices = ["line-1", "line-2", "line-3"];
    let _agents = devices.map(|device| {
        stage.join(device);
        stage.simulated(device, "300ms")
    });
    stage.json(&["deploy", "hello", "--to", "line-1,line-2,line-3", "--wait"]);
    stage.json(&["deployment", "update", "hello", "--set", "greeting=good evening", "--batch", "1"]);
    for batch in [2, 3] {
        wait_for("the next batch begins", || {
            (stage.json(&["rollout", "show", "hello"])["batch"].as_u64()? >= batch).then_some(())
        });
        stage.server().kill();
        stage.start_server();
    }
    let done = wait_for("the rollout is done", || {
        let rollout = stage.json(&["rollout", "show", "hello"]);
        (rollout["state"] == "done").then_some(rollout)
    });
    assert_eq!(done["counts"]["done"], 3, "{done}");
    for device in devices {
        assert!(stage.history(device, "hello").contains(&"UPDATING".to_owned()), "{device}");
    }

    // Paused, nobody gets the next one; the command that waits for it says so.
    stage.json(&["deployment", "update", "hello", "--set", "greeting=good night", "--soak", "1h"]);
    stage.json(&["rollout", "pause", "hello"]);
    let why = wait_for("the last device waits for its turn", || {
        let why = stage.margrave(&["why", "line-3/hello", "--json"]);
        let why: serde_json::Value = serde_json::from_slice(&why.stdout).ok()?;
        (why["chain"][0]["code"] == "rollout-waiting").then_some(why)
    });
    assert_eq!(why["chain"][1]["code"], "rollout-paused", "{why}");
    assert!(why["chain"][1]["text"].as_str().unwrap().contains("the rollout was paused by"), "{why}");
    let waiting = stage.margrave(&["deployment", "update", "hello", "--wait", "--timeout", "1s"]);
    assert_eq!(waiting.status.code(), Some(1), "{waiting:?}");
    assert_ne!(stage.json(&["rollout", "resume", "hello"])["state"], "paused");
    assert_eq!(stage.json(&["rollout", "abort", "hello"])["state"], "aborted");
    // Who was not reached goes directly to the newest.
    stage.json(&["deployment", "update", "hello", "--all-at-once", "--wait"]);
    assert_eq!(stage.json(&["rollout", "show", "hello"])["state"], "done");
}
