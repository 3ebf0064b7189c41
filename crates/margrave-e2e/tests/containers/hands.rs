//! Hands on containers, seen from the server; removals that cannot be carried out; images that nobody needs.

use serde_json::Value;

use crate::plant::{Plant, WEB};
use crate::stage::wait_for;

#[test]
fn promise_5_what_compose_would_not_see_is_noticed_repaired_and_reported() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    let names = ["paused", "bent", "joined", "alone"];
    for name in names {
        plant.json(&["deploy", "hello", "--name", name, "--to", &plant.device]);
    }
    for name in names {
        plant.wait(name, "INSTALLED");
    }
    let runs = names.map(|name| plant.run_of(name, "main", "web"));
    let container = |name: &str| plant.container(name, "main", "web");
    let project = format!("com.docker.compose.project={}", plant.project("joined", "main"));
    let image = plant.engine.inspect(&container("joined"), "{{.Config.Image}}");
    plant.engine.docker(&["pause", &container("paused")]);
    plant.engine.docker(&["update", "--restart", "always", &container("bent")]);
    let stranger = [
        ["run", "-d", "--network", "none", "--stop-signal", "SIGKILL"].as_slice(),
        &["--label", &project, "--label", "com.docker.compose.service=stranger", &image, "sleep", "1000"],
    ];
    let stranger = plant.engine.docker(&stranger.concat());

    for (name, reason) in [("paused", "is paused"), ("bent", "was changed"), ("joined", "was changed")] {
        let steps = wait_for(&format!("{name} is noticed and repaired"), || {
            let steps = plant.steps(name);
            let failed = steps.iter().position(|step| step == "FAILED")?;
            (steps[failed..].last().is_some_and(|step| step == "INSTALLED")).then_some(steps)
        });
        assert_eq!(
            steps,
            ["PENDING", "INSTALLING", "INSTALLED", "FAILED", "INSTALLING", "INSTALLED"],
            "{name}"
        );
        let history = plant.json(&["deployment", "history", name, "--device", &plant.device]).to_string();
        assert!(history.contains("unhealthy") && history.contains(reason), "{name}: {history}");
    }
    let policy = plant.engine.inspect(&container("bent"), "{{.HostConfig.RestartPolicy.Name}}");
    assert!(matches!(policy.as_str(), "no" | ""), "{policy}");
    assert!(plant.engine.refused(&["inspect", &stranger]).contains("No such"));
    let now = names.map(|name| plant.run_of(name, "main", "web"));
    for (at, touched) in [(0, false), (1, true), (2, false), (3, false)] {
        assert_eq!(runs[at] != now[at], touched, "{}", names[at]);
    }
    assert_eq!(plant.steps("alone"), ["PENDING", "INSTALLING", "INSTALLED"]);
}

#[test]
fn a_removal_that_cannot_be_finished_says_why_and_ends_by_itself_once_it_can() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    plant.deploy("hello");
    plant.wait("hello", "INSTALLED");
    let project = plant.project("hello", "main");
    let network = format!("{project}_default");
    let image = plant.engine.inspect(&plant.container("hello", "main", "web"), "{{.Config.Image}}");
    // Somebody else's container holds the network.
    let run = ["run", "-d", "--network", &network, "--stop-signal", "SIGKILL", &image, "sleep", "1000"];
    let holder = plant.engine.docker(&run);
    let _clear = Clear { plant: &plant, container: &holder };

    plant.json(&["deployment", "remove", "hello", "--yes"]);
    let text = |shown: &Value, key: &str| shown["error"][key].as_str().unwrap_or_default().to_owned();
    let told = wait_for("the server hears why it takes so long", || {
        plant.assignment(&plant.device, "hello").filter(|shown| text(shown, "code") == "remove-failed")
    });
    assert_eq!(told["state"], "DELETING", "{told}");
    assert!(text(&told, "message").contains(&network), "{told}");
    assert_eq!(plant.left_of(&project)[0], [""; 0], "what could be removed is removed");
    assert_eq!(plant.engine.inspect(&holder, "{{.State.Running}}"), "true", "others are left alone");

    plant.engine.docker(&["rm", "-f", &holder]);
    wait_for("it is gone at the server", || plant.assignment(&plant.device, "hello").is_none().then_some(()));
    assert_eq!(plant.left_of(&project)[1], [""; 0]);
    // Gone, and not forgotten.
    let steps = plant.steps("hello");
    assert_eq!(steps, ["PENDING", "INSTALLING", "INSTALLED", "DELETING", "DELETED"]);
    let history = plant.json(&["deployment", "history", "hello", "--device", &plant.device]).to_string();
    assert!(history.contains("remove-failed"), "{history}");
}

/// A container that the engine's own clearing up would not find.
struct Clear<'a> {
    plant: &'a Plant,
    container: &'a str,
}

impl Drop for Clear<'_> {
    fn drop(&mut self) {
        let _gone = self.plant.engine.command(&["rm", "-f", self.container]).output();
    }
}

#[test]
fn an_agent_that_is_told_to_removes_its_images_with_the_last_deployment() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.run_agent(&plant.device, &["--engine", &plant.engine.host, "--images", "remove"]);
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    for name in ["one", "two"] {
        plant.json(&["deploy", "hello", "--name", name, "--to", &plant.device]);
        plant.wait(name, "INSTALLED");
    }
    let images = || plant.engine.images(&plant.registry());
    for (name, left) in [("one", 1), ("two", 0)] {
        plant.json(&["deployment", "remove", name, "--yes"]);
        wait_for("it is gone", || plant.assignment(&plant.device, name).is_none().then_some(()));
        assert_eq!(images().len(), left, "{:?}", images());
    }
}
