//! `margrave simulate` as an operator uses it: programs of their own, and an end by Ctrl-C.

use serde_json::{Value, json};

use crate::stage::{Running, Stage, wait_for};

#[test]
fn an_operator_sizes_a_server_with_simulated_devices_and_removes_them_again() {
    let stage = Stage::start();
    let fleet = stage.path("simulated");
    let fleet = fleet.to_str().expect("a plain path");
    let output = stage
        .command()
        .args(["simulate", "--devices", "20", "--for", "4s", "--ramp", "1s", "--json", "--data", fleet])
        .output()
        .expect("our own program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("simulated devices"), "{said}");
    let lines: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object a line"))
        .collect();
    let last = lines.last().expect("there is a last line");
    assert_eq!(last["simulated"], true);
    assert_eq!((&last["connected"], &last["manifests"]), (&json!(20), &json!(20)), "{last}");
    assert_eq!(last["errors"], json!({}), "{last}");
    assert!(last["traffic"]["connections"].as_u64().is_some_and(|count| count >= 20), "{last}");
    let listed = stage.json(&["device", "list"]);
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), 20);
    assert!(listed.iter().all(|device| device["simulated"] == true));

    // The same devices again, until somebody has seen enough.
    let directory = stage.path("");
    let mut command = stage.command();
    command.args(["simulate", "--devices", "20", "--ramp", "1s", "--data", fleet]);
    let mut running = Running::start("simulate", &directory, &mut command);
    wait_for("all wait", || running.log().contains("       20       20").then_some(()));
    assert!(running.end_with("INT").success(), "{}", running.log());
    let log = running.log();
    assert!(log.contains("No errors.") && log.contains("New manifests (200)"), "{log}");
    assert!(!log.contains("joined in"), "nobody had to join again: {log}");

    assert_eq!(stage.json(&["simulate", "--remove", "--data", fleet]), json!({ "retired": 20 }));
    let listed = stage.json(&["device", "list", "--condition", "retired"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(20));
}
