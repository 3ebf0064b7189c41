//! Another authority takes the place of the first, with real programs on both ends.

use serde_json::Value;

use crate::stage::{PRETENDED, Stage, wait_for};

#[test]
fn id_178_a_device_goes_through_a_rotation_without_noticing() {
    // Certificates of seconds, so that the device renews several times while the test looks.
    let mut stage = Stage::start_with(&["--svid-lifetime", "10s", "--svid-lifetime-any"]);
    stage.join("line-1");
    let _agent = stage.simulated("line-1", "10ms");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");

    let show = |stage: &Stage| stage.json(&["authority", "show"]);
    let first = show(&stage)["issuing"].clone();
    assert_eq!(show(&stage)["phase"], "settled");
    // Twice as long as a certificate lives: the device hears of the next authority when it renews.
    let announced = stage.json(&["authority", "rotate", "--switch-after", "20s", "--yes"]);
    assert_eq!((&announced["phase"], &announced["issuing"]), (&Value::from("announced"), &first));
    let refused = stage.margrave(&["authority", "rotate", "--yes"]);
    assert_eq!(refused.status.code(), Some(1), "one rotation at a time");
    let refused = stage.margrave(&["authority", "retire", "--yes"]);
    assert_eq!(refused.status.code(), Some(1), "nothing to retire yet");

    // A crash in the middle forgets nothing.
    stage.server().kill();
    stage.start_server();
    assert_eq!(show(&stage)["next"], announced["next"]);

    wait_for("the next authority issues", || (show(&stage)["phase"] == "switched").then_some(()));
    assert_eq!(show(&stage)["former"], first);
    wait_for("the device has a certificate of it", || (show(&stage)["devicesLeft"] == 0).then_some(()));
    let settled = stage.json(&["authority", "retire", "--yes"]);
    assert_eq!(settled["phase"], "settled");
    assert_eq!(settled["issuing"], announced["next"]);

    // It is still managed.
    stage.json(&["deployment", "update", "hello", "--set", "greeting=good evening"]);
    wait_for("the update is seen", || {
        stage.history("line-1", "hello").contains(&"UPDATING".to_owned()).then_some(())
    });
    stage.wait_state("line-1", "hello", "INSTALLED");
}
