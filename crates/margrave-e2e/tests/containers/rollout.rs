//! A change in steps on a real engine: what never gets healthy on the first device comes to nobody else, and is taken back if that was
//! asked for.

use serde_json::Value;

use crate::plant::{Plant, WEB};
use crate::rollback::sick;
use crate::stage::{Running, wait_for};

/// Three devices on one engine. The first by name is the canary.
struct Line {
    agents: Vec<Running>,
    devices: [String; 3],
    plant: Plant,
}

impl Drop for Line {
    fn drop(&mut self) {
        // They would repair what is being cleared away.
        self.agents.clear();
        for device in &self.devices {
            self.plant.engine.clear_agent(device);
        }
    }
}

impl Line {
    /// 1.0.0 runs everywhere and has kept something; 1.1.0 is in the catalog, and sick.
    fn start() -> Option<Line> {
        let plant = Plant::start()?;
        plant.add_package("hello", "1.0.0", &[("front", WEB)]);
        plant.add_package("hello", "1.1.0", &[("front", &sick())]);
        let devices = ["", "-b", "-c"].map(|behind| format!("{}{behind}", plant.device));
        for device in &devices[1..] {
            plant.join(device);
        }
        let agent = |device: &String| plant.run_agent(device, &["--engine", &plant.engine.host]);
        let line = Line { agents: devices.iter().map(agent).collect(), devices, plant };
        line.plant.json(&["deploy", "hello@1.0.0", "--to", &line.devices.join(",")]);
        for device in &line.devices {
            line.plant.wait_state(device, "hello", "INSTALLED");
            let file = format!("echo {device} > /data/file");
            line.plant.engine.exec(&line.container(device), &file);
        }
        Some(line)
    }

    /// The one container of a device; there must be no second.
    fn container(&self, device: &str) -> String {
        let assignment = self.plant.assignment(device, "hello").expect("it is deployed");
        let id = assignment["id"].as_str().expect("an id").replace('-', "");
        let mut found = self.plant.containers(&format!("mg-{id}-front"), "web");
        assert_eq!(found.len(), 1, "containers of {device}: {found:?}");
        found.remove(0)
    }

    /// Which container of a device runs, and since when.
    fn run_of(&self, device: &str) -> String {
        let running = "{{.Id}} {{.State.StartedAt}} {{.State.Running}}";
        self.plant.engine.inspect(&self.container(device), running)
    }

    fn others(&self) -> [String; 2] {
        [&self.devices[1], &self.devices[2]].map(|device| self.run_of(device))
    }

    fn update(&self, on_failure: &str) {
        let how = ["--version", "1.1.0", "--canary", "1", "--on-failure", on_failure];
        self.plant.json(&[&["deployment", "update", "hello"][..], &how].concat());
    }

    /// The rollout as it stands; the command says by its exit code whether that is well.
    fn rollout(&self) -> Option<Value> {
        let shown = self.plant.margrave(&["rollout", "show", "hello", "--json"]);
        serde_json::from_slice(&shown.stdout).ok()
    }

    fn check_kept(&self) {
        for device in &self.devices {
            let container = self.container(device);
            assert_eq!(self.plant.engine.exec(&container, "cat /data/file"), *device, "volumes are kept");
            assert_eq!(self.plant.engine.inspect(&container, "{{.State.Health.Status}}"), "healthy");
        }
    }
}

#[test]
fn what_does_not_get_healthy_on_the_canary_halts_and_comes_to_nobody_else() {
    let Some(line) = Line::start() else { return };
    let before = line.others();
    line.update("halt");
    let halted =
        wait_for("the rollout is halted", || line.rollout().filter(|rollout| rollout["state"] == "halted"));
    let reason = halted["reason"].as_str().unwrap_or_default();
    assert_eq!(reason, "1 device of batch 1 failed, and 1 of 1 must have it installed", "{halted}");
    // The device helps itself meanwhile; halted stays halted.
    wait_for("the canary went back", || {
        let shown = line.plant.assignment(&line.devices[0], "hello")?;
        (shown["state"] == "INSTALLED" && shown["error"]["code"] == "unhealthy").then_some(())
    });
    let rollout = line.rollout().expect("it is shown");
    assert_eq!(
        (&rollout["state"], &rollout["counts"]["waiting"]),
        (&"halted".into(), &2.into()),
        "{rollout}"
    );
    assert_eq!(line.others(), before, "nobody touched them");
    line.check_kept();
}

#[test]
fn what_does_not_get_healthy_on_the_canary_is_taken_back_by_the_server_itself() {
    let Some(line) = Line::start() else { return };
    let before = line.others();
    line.update("revert");
    let back: Value = wait_for("the server took it back", || {
        let shown = line.plant.json(&["deployment", "show", "hello"]);
        (shown["revision"] == 3).then_some(shown)
    });
    assert_eq!((&back["version"], &back["changedBy"]), (&"1.0.0".into(), &"server".into()), "{back}");
    for device in &line.devices {
        wait_for("everybody is where they were", || {
            let shown = line.plant.assignment(device, "hello")?;
            let is_back = shown["state"] == "INSTALLED" && shown["current"] == true;
            (is_back && shown["version"] == "1.0.0").then_some(())
        });
    }
    assert_eq!(line.others(), before, "who never had it has nothing to go back from");
    line.check_kept();
}
