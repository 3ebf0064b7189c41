//! Hands on containers, seen from the server; removals that cannot be carried out; images that nobody needs.

use serde_json::Value;

use crate::plant::{Plant, WEB};
use crate::stage::wait_for;
use crate::trouble::Trouble;

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
    let trouble = ["paused", "changed", "joined by a stranger"]
        .map(|what| Trouble::begins(&format!("container {what} by hand")));
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
    for (trouble, name) in trouble.iter().zip(names) {
        trouble.tell(&plant, &plant.device, name);
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
fn promise_5_what_is_to_be_left_is_told_and_left_until_that_changes() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    let names = ["removed", "paused", "stopped"];
    for name in names {
        plant.json(&["deploy", "hello", "--name", name, "--to", &plant.device]);
    }
    for name in names {
        plant.wait(name, "INSTALLED");
    }
    let target = format!("device:{}", plant.device);
    plant.json(&["schedule", "set", &target, "--drift", "report"]);
    wait_for("the device knows", || {
        (plant.agent_status(&plant.device)["schedule"]["drift"] == "report").then_some(())
    });
    let runs = names.map(|name| plant.run_of(name, "main", "web"));
    let container = |name: &str| plant.container(name, "main", "web");
    plant.engine.docker(&["rm", "-f", &container("removed")]);
    plant.engine.docker(&["pause", &container("paused")]);
    // It ends with 137, as if it had run out of memory.
    plant.engine.docker(&["stop", &container("stopped")]);

    for (name, what) in [("removed", "is missing"), ("paused", "is paused"), ("stopped", "was stopped")] {
        let told = plant.wait(name, "FAILED");
        let message = told["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(told["error"]["code"], "unhealthy", "{name}: {told}");
        assert!(message.contains(what) && message.contains("it is left so"), "{name}: {told}");
    }
    // Also after another look.
    plant.json(&["device", "look", &plant.device]);
    wait_for("it has looked again", || {
        (plant.json(&["device", "show", &plant.device])["askedLook"]["done"] == true).then_some(())
    });
    let state = |name: &str| plant.engine.inspect(&container(name), "{{.State.Status}}");
    assert_eq!(plant.containers(&plant.project("removed", "main"), "web"), [""; 0]);
    assert_eq!((state("paused").as_str(), state("stopped").as_str()), ("paused", "exited"));

    plant.json(&["schedule", "set", &target, "--drift", "repair"]);
    for (at, name) in names.into_iter().enumerate() {
        plant.wait(name, "INSTALLED");
        let steps = plant.steps(name);
        let expected = ["PENDING", "INSTALLING", "INSTALLED", "FAILED", "INSTALLING", "INSTALLED"];
        assert_eq!(steps, expected, "{name}");
        assert_eq!(runs[at] == plant.run_of(name, "main", "web"), name == "paused", "{name}");
    }
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

    let mut trouble = Trouble::begins("removal that somebody's container is in the way of");
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
    trouble.is_cured();
    wait_for("it is gone at the server", || plant.assignment(&plant.device, "hello").is_none().then_some(()));
    trouble.tell(&plant, &plant.device, "hello");
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
    let shown = plant.json(&["device", "show", &plant.device]).to_string();
    assert!(shown.contains("removes images that no deployment needs"), "{shown}");
    let images = || plant.engine.images(&plant.registry());
    for (name, left) in [("one", 1), ("two", 0)] {
        plant.json(&["deployment", "remove", name, "--yes"]);
        wait_for("it is gone", || plant.assignment(&plant.device, name).is_none().then_some(()));
        assert_eq!(images().len(), left, "{:?}", images());
    }
}

#[test]
fn images_go_because_the_server_says_so_and_stay_where_the_device_is_told_otherwise() {
    let Some(plant) = Plant::start() else { return };
    let mut agent = plant.run_agent(&plant.device, &["--engine", &plant.engine.host]);
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    let install = |name: &str| {
        plant.json(&["deploy", "hello", "--name", name, "--to", &plant.device]);
        plant.wait(name, "INSTALLED");
    };
    let remove = |name: &str| {
        plant.json(&["deployment", "remove", name, "--yes"]);
        wait_for("it is gone", || plant.assignment(&plant.device, name).is_none().then_some(()));
    };
    let images = || plant.engine.images(&plant.registry()).len();
    install("one");
    remove("one");
    assert_eq!(images(), 1, "as a rule they stay");
    plant.json(&["schedule", "set", "fleet", "--images", "remove"]);
    // Also what was kept until now.
    wait_for("the image goes", || (images() == 0).then_some(()));
    assert_eq!(plant.agent_status(&plant.device)["schedule"]["images"], "remove");
    install("two");
    remove("two");
    assert_eq!(images(), 0);

    // A schedule is followed also by an agent that has not heard it itself.
    assert!(agent.terminate().success());
    let mut agent = plant.run_agent(&plant.device, &["--engine", &plant.engine.host]);
    install("three");
    remove("three");
    assert_eq!(images(), 0);

    assert!(agent.terminate().success());
    let _agent = plant.run_agent(&plant.device, &["--engine", &plant.engine.host, "--images", "keep"]);
    install("four");
    remove("four");
    assert_eq!(images(), 1);
    let shown = plant.json(&["device", "show", &plant.device]);
    assert_eq!(shown["schedule"]["images"], "remove", "{shown}");
    let own = &shown["capabilities"]["x-margrave-extensions"]["overrides"];
    assert_eq!(own[0], "keeps images", "{shown}");
}

#[test]
fn what_is_removed_before_it_could_begin_leaves_nothing() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.run_agent(&plant.device, &["--engine", &plant.engine.host, "--images", "remove"]);
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    plant.json(&["device", "hold", &plant.device, "--reason", "a batch runs", "--for", "1h"]);
    wait_for("changes are held back", || {
        plant.agent_status(&plant.device)["holds"].as_array().filter(|holds| !holds.is_empty()).map(drop)
    });
    plant.deploy("hello");
    let images = || plant.engine.images(&plant.registry()).len();
    let data = plant.path(&plant.device);
    let artifacts = || std::fs::read_dir(data.join("artifacts")).map_or(0, Iterator::count);
    let directory = wait_for("the server knows it", || {
        plant
            .assignment(&plant.device, "hello")
            .map(|_| data.join("compose").join(plant.project("hello", "main")))
    });
    wait_for("it is fetched ahead", || {
        (directory.join("fetched.json").exists() && artifacts() == 1 && images() == 1).then_some(())
    });
    let status = || plant.agent_status(&plant.device)["deployments"][0].clone();
    assert_eq!(status()["wanted"]["version"], "1.0.0", "{}", status());
    plant.json(&["deployment", "remove", "hello", "--yes"]);
    wait_for("the device says that it is to go", || (status()["goes"] == true).then_some(()));
    wait_for("nothing of it is left", || {
        (!directory.exists() && artifacts() == 0 && images() == 0).then_some(())
    });
    plant.json(&["device", "release", &plant.device]);
    wait_for("it is gone at the server", || plant.assignment(&plant.device, "hello").is_none().then_some(()));
    assert_eq!(plant.all_containers(), [""; 0]);
}
