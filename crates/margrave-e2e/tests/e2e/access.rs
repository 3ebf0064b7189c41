//! Roles and the audit log by the command line, as people use them.

use std::process::Output;

use crate::stage::{PRETENDED, Stage};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_viewer_looks_an_operator_changes_and_the_log_tells_it_all() {
    let stage = Stage::start();
    stage.join("line-1");
    let viewer = stage.json(&["token", "create", "vera", "--role", "viewer", "--expires", "90d"]);
    let operator = stage.json(&["token", "create", "otto", "--role", "operator"]);
    let by = |token: &serde_json::Value, arguments: &[&str]| {
        let secret = token["secret"].as_str().expect("a new token has its secret");
        stage
            .command()
            .args(arguments)
            .args(["--operator-token", secret])
            .output()
            .expect("our own program starts")
    };
    assert!(by(&viewer, &["device", "list"]).status.success());
    let refused = by(&viewer, &["device", "label", "line-1", "site=nord"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("needs the role operator"), "{}", said(&refused));
    // Who may not deploy is not asked for answers first.
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let refused = by(&viewer, &["deploy", "hello", "--to", "line-1", "--set", "nonsense=1"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("needs the role operator"), "{}", said(&refused));
    let refused = by(&operator, &["deploy", "hello", "--to", "line-1", "--set", "nonsense=1"]);
    assert!(said(&refused).contains("nonsense"), "{}", said(&refused));
    let changed = by(&operator, &["device", "label", "line-1", "site=nord"]);
    assert!(changed.status.success(), "{}", said(&changed));
    let refused = by(&operator, &["token", "list"]);
    assert!(said(&refused).contains("needs the role admin"), "{}", said(&refused));

    let id = viewer["token"]["id"].as_str().expect("a token has an id");
    stage.json(&["token", "revoke", id, "--yes"]);
    let out = by(&viewer, &["device", "list"]);
    assert!(said(&out).contains("revoked"), "{}", said(&out));
    let listed = stage.json(&["token", "list"]);
    assert_eq!(listed.as_array().expect("a list").len(), 3);
    let own =
        listed.as_array().unwrap().iter().find(|token| token["role"] == "admin").expect("the first token");
    let kept = stage.margrave(&["token", "revoke", own["id"].as_str().unwrap(), "--yes"]);
    assert!(said(&kept).contains("make one for an admin first"), "{}", said(&kept));

    let log = stage.json(&["audit", "--subject", "line-1"]);
    let told: Vec<String> = log
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| format!("{} {} {} {}", entry["actor"], entry["way"], entry["action"], entry["outcome"]))
        .map(|line| line.replace('"', ""))
        .collect();
    assert_eq!(
        told,
        [
            "operator otto cli device.labels done",
            "operator vera cli device.labels role-needed",
            "device line-1 device device.join done",
            "operator admin cli join-token.add done",
        ]
    );
    let whole = stage.json(&["audit", "verify"]);
    assert_eq!(whole["whole"], true);
    let head = whole["head"].as_str().expect("the newest entry").to_owned();
    stage.json(&["device", "label", "line-1", "site=sued"]);
    assert_eq!(stage.json(&["audit", "verify", "--head", &head])["whole"], true);
    let (number, _) = head.split_once(':').unwrap();
    let other = format!("{number}:sha256:{}", "0".repeat(64));
    let broken = stage.margrave(&["audit", "verify", "--head", &other]);
    assert_eq!(broken.status.code(), Some(1), "{}", said(&broken));
    assert!(said(&broken).contains("written anew"), "{}", said(&broken));
}
