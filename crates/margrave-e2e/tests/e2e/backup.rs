//! A server that is lost and comes back from a backup, with a device that went on meanwhile.

use std::os::unix::fs::PermissionsExt as _;

use crate::stage::{PRETENDED, Stage, wait_for};

#[test]
fn a_server_restored_from_an_old_backup_converges_with_a_device_that_went_on() {
    let mut stage = Stage::start();
    stage.join("line-1");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let _agent = stage.simulated("line-1", "10ms");
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");

    let archive = stage.path("plant.tar");
    let file = archive.to_str().expect("a plain path");
    let made = stage.json(&["backup", "--to", file]);
    assert!(made["files"].as_u64() > Some(5), "{made}");
    assert_eq!(std::fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    let again = stage.margrave(&["backup", "--to", file]);
    assert_eq!(again.status.code(), Some(1), "what is there stays");

    // Two changes that the backup knows nothing of, both adopted.
    for greeting in ["second", "third"] {
        stage.json(&["deployment", "update", "hello", "--set", &format!("greeting={greeting}")]);
        stage.wait_state("line-1", "hello", "INSTALLED");
    }
    let version =
        |stage: &Stage| stage.json(&["device", "show", "line-1"])["manifestVersion"].as_u64().unwrap();
    let newest = version(&stage);

    let data = stage.path("server");
    let data = data.to_str().expect("a plain path");
    let online =
        stage.margrave(&["backup", "--to", stage.path("other.tar").to_str().unwrap(), "--data", data]);
    let said = String::from_utf8_lossy(&online.stderr);
    assert!(!online.status.success() && said.contains("a server runs on"), "{said}");
    stage.server().kill();
    let full = stage.margrave(&["restore", file, "--data", data]);
    assert_eq!(full.status.code(), Some(1), "{}", String::from_utf8_lossy(&full.stderr));
    std::fs::rename(data, stage.path("lost")).unwrap();
    stage.json(&["restore", file, "--data", data]);
    stage.start_server();

    // The device polls, is shown less than it has, and keeps it; nobody changes anything before somebody decides.
    wait_for("the device was heard", || {
        let shown = stage.json(&["device", "show", "line-1"]);
        shown["lastContact"].as_str().map(|_| ())
    });
    let refused = stage.margrave(&["deployment", "update", "hello", "--set", "greeting=early"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("intent resolve --keep"), "{said}");
    assert!(version(&stage) < newest);
    stage.json(&["intent", "resolve", "--keep"]);

    wait_for("the server goes on above what the device holds", || (version(&stage) > newest).then_some(()));
    stage.wait_state("line-1", "hello", "INSTALLED");
    let shown = stage.json(&["deployment", "show", "hello"]);
    assert_eq!(shown["revision"], 1, "the server wants what it wanted at the time of the backup");
    wait_for("the device has adopted it", || {
        let status = stage.json(&["status"]);
        (status["devices"]["converged"] == 1).then_some(())
    });
    // And it is a server like any other.
    stage.json(&["deployment", "update", "hello", "--set", "greeting=fourth"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
}
