//! Programs killed in the middle, and hands on containers: everything ends as it should, once.

use crate::plant::{Plant, SLOW, WEB};
use crate::stage::wait_for;
use crate::trouble::Trouble;

#[test]
fn promise_8_an_agent_killed_while_it_installs_and_updates_continues_and_repeats_nothing() {
    let Some(plant) = Plant::start() else { return };
    plant.add_package("slow", "1.0.0", &[("main", SLOW)]);
    let mut agent = plant.agent();

    // Once before anything runs, once while the container is on its way to being healthy.
    let trouble = Trouble::begins("agent killed twice in an install");
    plant.deploy("slow");
    plant.wait("slow", "INSTALLING");
    agent.kill();
    let mut agent = plant.agent();
    plant.wait_container("slow", "main", "main");
    agent.kill();
    let mut agent = plant.agent();
    plant.wait("slow", "INSTALLED");
    let installed = plant.container("slow", "main", "main");
    assert_eq!(plant.all_containers(), [installed.as_str()]);
    trouble.tell(&plant, &plant.device, "slow");

    let trouble = Trouble::begins("agent killed twice in an update");
    plant.update("slow", "changed");
    plant.wait("slow", "UPDATING");
    agent.kill();
    let mut agent = plant.agent();
    let project = plant.project("slow", "main");
    wait_for("the new container is there", || {
        plant.containers(&project, "main").into_iter().find(|container| *container != installed)
    });
    agent.kill();
    let mut agent = plant.agent();
    plant.wait("slow", "INSTALLED");
    let updated = plant.container("slow", "main", "main");
    assert_eq!(plant.engine.exec(&updated, "echo $GREETING"), "changed");
    assert_eq!(plant.all_containers(), [updated.as_str()]);
    trouble.tell(&plant, &plant.device, "slow");

    // A restart alone touches nothing. Whoever has installed something new since then has looked at the old.
    let before = plant.run_of("slow", "main", "main");
    let steps = plant.steps("slow");
    agent.kill();
    let _agent = plant.agent();
    plant.add_package("next", "1.0.0", &[("main", WEB)]);
    plant.deploy("next");
    plant.wait("next", "INSTALLED");
    assert_eq!(plant.run_of("slow", "main", "main"), before);
    assert_eq!(plant.steps("slow"), steps);
    assert_eq!(plant.all_containers().len(), 2);
}

#[test]
fn a_server_killed_during_an_update_loses_nothing() {
    let Some(mut plant) = Plant::start() else { return };
    plant.add_package("slow", "1.0.0", &[("main", SLOW)]);
    let _agent = plant.agent();
    plant.deploy("slow");
    plant.wait("slow", "INSTALLED");

    let trouble = Trouble::begins("server killed in an update");
    plant.update("slow", "second");
    plant.wait("slow", "UPDATING");
    plant.stage.server().kill();
    wait_for("the device finishes on its own", || {
        (plant.agent_status(&plant.device)["deployments"][0]["state"] == "INSTALLED").then_some(())
    });
    plant.stage.start_server();
    plant.wait("slow", "INSTALLED");
    let greeting = || plant.engine.exec(&plant.container("slow", "main", "main"), "echo $GREETING");
    assert_eq!(greeting(), "second");
    let steps = ["PENDING", "INSTALLING", "INSTALLED", "UPDATING", "INSTALLED"];
    assert_eq!(plant.steps("slow"), steps, "what happened meanwhile is told afterwards");
    trouble.tell(&plant, &plant.device, "slow");

    // At the worst moment: the wish is written down and perhaps nobody has heard of it. The new version needs
    // an image from the very registry that is gone.
    plant.push("e2e/busybox:2");
    let newer = SLOW.replace("e2e/busybox:1", "e2e/busybox:2");
    plant.add_package("slow", "2.0.0", &[("main", &newer)]);
    plant.json(&["deployment", "update", "slow", "--version", "2.0.0", "--set", "greeting=third"]);
    plant.stage.server().kill();
    plant.stage.start_server();
    plant.wait("slow", "INSTALLED");
    let container = plant.container("slow", "main", "main");
    assert_eq!(plant.engine.exec(&container, "echo $GREETING"), "third");
    let image = plant.engine.inspect(&container, "{{.Config.Image}}");
    assert!(image.ends_with(&plant.exact_image("slow@2.0.0")), "{image}");
    assert_eq!(plant.all_containers().len(), 1);
}

#[test]
fn promise_5_what_hands_do_to_containers_is_noticed_repaired_and_reported() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    for name in ["stopped", "killed", "removed", "alone"] {
        plant.json(&["deploy", "hello", "--name", name, "--to", &plant.device]);
    }
    for name in ["stopped", "killed", "removed", "alone"] {
        plant.wait(name, "INSTALLED");
    }
    let alone = plant.run_of("alone", "main", "web");
    let removed = plant.container("removed", "main", "web");
    plant.engine.exec(&removed, "echo kept > /data/file");
    let stopped = Trouble::begins("container stopped by hand");
    plant.engine.docker(&["stop", &plant.container("stopped", "main", "web")]);
    let killed = Trouble::begins("container killed by hand");
    plant.engine.docker(&["kill", &plant.container("killed", "main", "web")]);
    let gone = Trouble::begins("container removed by hand");
    plant.engine.docker(&["rm", "-f", &removed]);

    let reasons = [
        ("stopped", "service web was stopped"),
        ("killed", "service web"),
        ("removed", "service web is missing"),
    ];
    for (name, reason) in reasons {
        let steps = wait_for(&format!("{name} is noticed and repaired"), || {
            let steps = plant.steps(name);
            let failed = steps.iter().position(|step| step == "FAILED")?;
            (steps[failed..].last().is_some_and(|step| step == "INSTALLED")).then_some(steps)
        });
        assert_eq!(steps, ["PENDING", "INSTALLING", "INSTALLED", "FAILED", "INSTALLING", "INSTALLED"]);
        let history = plant.json(&["deployment", "history", name, "--device", &plant.device]).to_string();
        assert!(history.contains("unhealthy") && history.contains(reason), "{history}");
        let container = plant.container(name, "main", "web");
        assert_eq!(plant.engine.inspect(&container, "{{.State.Health.Status}}"), "healthy");
    }
    for (name, trouble) in [("stopped", stopped), ("killed", killed), ("removed", gone)] {
        trouble.tell(&plant, &plant.device, name);
    }
    let repaired = plant.container("removed", "main", "web");
    assert_eq!(plant.engine.exec(&repaired, "cat /data/file"), "kept");
    assert_eq!(plant.run_of("alone", "main", "web"), alone);
}
