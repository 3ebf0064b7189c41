//! Services that end again and again and are brought back by the engine: found running by almost every look, and not well.

use crate::engine::said;
use crate::plant::{Plant, WEB};
use crate::stage::wait_for;
use crate::trouble::Trouble;

/// The same service, which ends every twelve seconds: longer than what counts as steady after a restart.
fn looping() -> String {
    let looping = WEB
        .replace("exec httpd -f -p 8080 -h /www", "httpd -p 8080 -h /www; sleep 12; exit 1")
        .replace("    stop_signal: SIGKILL\n", "    stop_signal: SIGKILL\n    restart: always\n");
    assert!(looping.contains("sleep 12") && looping.contains("restart: always"));
    looping
}

#[test]
fn a_slow_crash_loop_is_found_and_an_update_that_loops_is_gone_back_from() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    plant.add_package("hello", "1.1.0", &[("main", &looping())]);
    let first = Trouble::begins("crash loop of a first install");
    plant.json(&["deploy", "hello@1.1.0", "--name", "first", "--to", &plant.device]);
    plant.json(&["deploy", "hello@1.0.0", "--name", "updated", "--to", &plant.device]);
    plant.wait("updated", "INSTALLED");
    let updated = Trouble::begins("crash loop of an update");
    plant.json(&["deployment", "update", "updated", "--version", "1.1.0"]);

    plant.wait("first", "INSTALLED");
    let looping = plant.container("first", "main", "web");
    wait_for("the engine brought it back three times", || {
        plant.engine.inspect(&looping, "{{.RestartCount}}").parse::<u32>().ok().filter(|count| *count >= 3)
    });
    let failed = plant.wait("first", "FAILED");
    assert_eq!(failed["error"]["code"], "unhealthy", "{failed}");
    assert!(failed["error"]["message"].as_str().is_some_and(|m| m.contains("keeps restarting")), "{failed}");

    let back = wait_for("the update is gone back from", || {
        plant
            .assignment(&plant.device, "updated")
            .filter(|shown| shown["state"] == "INSTALLED" && shown["error"]["code"] == "unhealthy")
    });
    assert_eq!(back["current"], false, "{back}");
    let steps = plant.steps("updated");
    let expected = ["UPDATING", "INSTALLED", "FAILED", "UPDATING", "FAILED", "ROLLINGBACK", "INSTALLED"];
    assert_eq!(steps[3..], expected, "{steps:?}");
    let why = said(&plant.margrave(&["why", &format!("{}/updated", plant.device)]));
    assert!(why.contains("went back to its last good version") && why.contains("keeps restarting"), "{why}");

    // Trying again does not make it look well for a moment, and the engine's own tries are left alone.
    let steps = plant.steps("first");
    assert_eq!(steps[..4], ["PENDING", "INSTALLING", "INSTALLED", "FAILED"], "{steps:?}");
    assert!(!steps[4..].contains(&"INSTALLED".to_owned()), "{steps:?}");
    assert_eq!(plant.container("first", "main", "web"), looping);
    first.tell(&plant, &plant.device, "first");
    updated.tell(&plant, &plant.device, "updated");
}
