//! What a device works with goes away in the middle of something: its engine, or the registry. It says so in words, does
//! no harm, and goes on by itself when it is back.
//!
//! The engine here is the test's own: others use the one that is named to them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::{Value, json};

use crate::engine::{Engine, on_path, skip};
use crate::plant::{Plant, WEB};
use crate::small_disk::SmallDisk;
use crate::stage::{Running, tell, wait_for};
use crate::trouble::Trouble;
use crate::way::Way;

/// The device is on its own: no server, so no registry either.
#[test]
fn promise_2_a_device_that_starts_without_a_server_restores_what_is_missing_and_touches_nothing_else() {
    let Some(mut plant) = Plant::start() else { return };
    plant.add_package("hello", "1.0.0", &[("front", WEB), ("back", WEB)]);
    let mut agent = plant.agent();
    plant.deploy("hello@1.0.0");
    plant.wait("hello", "INSTALLED");
    let gone = plant.container("hello", "front", "web");
    plant.engine.exec(&gone, "echo kept > /data/file");
    let (project, untouched) = (plant.project("hello", "front"), plant.run_of("hello", "back", "web"));
    assert!(agent.terminate().success());
    plant.stage.lose_server();
    let trouble = Trouble::begins("started without a server, with a container gone");
    plant.engine.docker(&["rm", "-f", &gone]);
    let _agent = plant.agent();
    let restored = wait_for("it runs again", || {
        let found = plant.containers(&project, "web").pop()?;
        (plant.engine.inspect(&found, "{{.State.Health.Status}}") == "healthy").then_some(found)
    });
    assert_eq!(plant.engine.exec(&restored, "cat /data/file"), "kept");
    wait_for("the device says so on the spot", || {
        let status = plant.agent_status(&plant.device);
        (status["deployments"][0]["state"] == "INSTALLED").then_some(())
    });

    // Once the server is back, nothing is done again.
    let run = plant.engine.inspect(&restored, "{{.Id}} {{.State.StartedAt}}");
    plant.stage.start_server();
    wait_for("the server hears what happened meanwhile", || {
        let steps = plant.steps("hello");
        steps.ends_with(&["INSTALLED", "FAILED", "INSTALLING", "INSTALLED"].map(str::to_owned)).then_some(())
    });
    assert_eq!(plant.engine.inspect(&restored, "{{.Id}} {{.State.StartedAt}}"), run);
    assert_eq!(plant.run_of("hello", "back", "web"), untouched);
    trouble.tell(&plant, &plant.device, "hello");
}

/// A Docker engine that nobody else uses, so that it may be killed.
struct OwnEngine {
    daemon: Option<Running>,
    /// What it has is on a disk of its own.
    disk: Option<SmallDisk>,
    directory: tempfile::TempDir,
}

impl OwnEngine {
    /// `None`, said aloud, where none can be started.
    fn start() -> Option<OwnEngine> {
        let mut engine = OwnEngine::set()?;
        engine.run();
        Some(engine)
    }

    /// The same on a disk that can be filled.
    fn start_on_small_disk(megabytes: u32) -> Option<OwnEngine> {
        let mut engine = OwnEngine::set()?;
        engine.disk = Some(SmallDisk::mount_of(&engine.path("disk"), megabytes)?);
        engine.run();
        Some(engine)
    }

    fn set() -> Option<OwnEngine> {
        // Whoever names an engine has what else is needed.
        Engine::named()?;
        let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0");
        if !root || on_path("dockerd").is_none() {
            skip("an engine of its own needs dockerd and root");
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        Some(OwnEngine { daemon: None, disk: None, directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn host(&self) -> String {
        format!("unix://{}", self.path("docker.sock").display())
    }

    fn run(&mut self) {
        let mut command = Command::new("dockerd");
        let data = self.disk.as_ref().map_or_else(|| self.path("data"), |disk| disk.path().join("data"));
        command.arg("--data-root").arg(data).arg("--exec-root").arg(self.path("exec"));
        command.arg("--pidfile").arg(self.path("pid")).args(["-H", &self.host()]);
        // Nothing that two engines could both want, and one try at each layer: tests have no time for five.
        command.args(["--bridge", "none", "--iptables=false", "--ip6tables=false"]);
        command.args(["--default-address-pool", "base=10.213.0.0/16,size=24"]);
        command.args(["--max-download-attempts", "1"]);
        // The one that was killed could not tidy up, and another process may have its number by now.
        for name in ["pid", "exec/containerd/containerd.pid"] {
            if let Err(error) = std::fs::remove_file(self.path(name)) {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
            }
        }
        self.daemon = Some(Running::start("dockerd", self.directory.path(), &mut command));
        wait_for("the engine answers", || self.docker(&["info"]).then_some(()));
    }

    fn docker(&self, arguments: &[&str]) -> bool {
        let output = Command::new("docker").args(["-H", &self.host()]).args(arguments).output();
        output.expect("docker starts").status.success()
    }

    fn kill(&mut self) {
        self.daemon.as_mut().expect("it runs").kill();
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon
            && daemon.is_running()
        {
            // Polite, so that it takes down what it has mounted.
            daemon.terminate();
        }
        let own = self.directory.path().display().to_string();
        // Those that stood between a killed engine and its containers know nobody any more.
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.contains("containerd-shim") && line.contains(&own) {
                let _best = Command::new("kill").arg("-9").arg(process.file_name()).status();
            }
        }
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let disk = self.disk.as_ref().map(|disk| disk.path().display().to_string());
        let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for mount in mounts.filter(|mount| mount.starts_with(&own) && Some(*mount) != disk.as_deref()) {
            let _best = Command::new("umount").args(["-l", mount]).status();
        }
    }
}

#[test]
fn an_engine_that_is_killed_is_told_and_everything_is_as_wanted_once_it_is_back() {
    let Some(mut engine) = OwnEngine::start() else { return };
    let plant = Plant::on(engine.host(), &["--registry-address", "127.0.0.1:{local}"]);
    plant.join(&plant.device);
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    plant.deploy("hello");
    plant.wait("hello", "INSTALLED");
    let greeting = || plant.engine.exec(&plant.container("hello", "main", "web"), "echo $GREETING");
    plant.engine.exec(&plant.container("hello", "main", "web"), "echo kept > /data/file");

    // At rest. Not being able to look is no verdict about what runs.
    let mut at_rest = Trouble::begins("engine killed at rest");
    engine.kill();
    let begun = Instant::now();
    let trouble = wait_for("the device says that its engine is away", || {
        plant.agent_status(&plant.device)["runtimeTrouble"].as_str().map(str::to_owned)
    });
    tell(&format!("engine killed at rest: said on the device {:?} later", begun.elapsed()));
    assert!(trouble.to_lowercase().contains("engine"), "{trouble}");
    assert_eq!(plant.assignment(&plant.device, "hello").expect("it is known")["state"], "INSTALLED");
    // Nor does the server go on saying that all is as wanted: what it was told last nobody can see any more.
    let shown = || plant.json(&["device", "show", &plant.device]);
    let blind = wait_for("the server hears that it cannot look", || {
        Some(shown()).filter(|shown| shown["cannotLook"].is_object())
    });
    tell(&format!("engine killed at rest: known at the server {:?} later", begun.elapsed()));
    assert_eq!(
        (&blind["condition"], &blind["assignments"][0]["state"]),
        (&json!("pending"), &json!("INSTALLED"))
    );
    assert!(
        blind["cannotLook"]["message"].as_str().is_some_and(|message| trouble.contains(message)),
        "{blind}"
    );
    assert!(blind["reason"].as_str().is_some_and(|reason| reason.contains("cannot look")), "{blind}");
    // What is wanted meanwhile waits, and says for what.
    plant.update("hello", "second");
    let failed = wait_for("the server hears why", || {
        plant.assignment(&plant.device, "hello").filter(|shown| shown["error"]["code"].is_string())
    });
    assert_eq!(failed["error"]["code"], "runtime-unreachable", "{failed}");
    engine.run();
    at_rest.is_cured();
    let installed = plant.wait("hello", "INSTALLED");
    assert_eq!(installed["error"], Value::Null, "{installed}");
    wait_for("the server hears that it can look again", || shown()["cannotLook"].is_null().then_some(()));
    assert_eq!(shown()["condition"], "converged");
    at_rest.tell(&plant, &plant.device, "hello");
    assert_eq!(greeting(), "second");

    // In the middle of an update, at several moments of it.
    for number in 0..3 {
        let wanted = format!("third {number}");
        let before = plant.container("hello", "main", "web");
        let mut trouble = Trouble::begins("engine killed in an update");
        plant.update("hello", &wanted);
        wait_for("the update begins", || {
            let project = plant.project("hello", "main");
            let found = plant.containers(&project, "web");
            let begun = match number {
                0 => {
                    plant.assignment(&plant.device, "hello").is_some_and(|shown| shown["state"] == "UPDATING")
                }
                1 => found.len() == 2 || !found.contains(&before),
                _ => !found.is_empty() && !found.contains(&before),
            };
            begun.then_some(())
        });
        engine.kill();
        engine.run();
        trouble.is_cured();
        plant.wait("hello", "INSTALLED");
        trouble.tell(&plant, &plant.device, "hello");
        assert_eq!(greeting(), wanted);
        assert_eq!(plant.all_containers().len(), 1);
        let kept = plant.engine.exec(&plant.container("hello", "main", "web"), "cat /data/file");
        assert_eq!(kept, "kept", "volumes survive an engine that was killed");
    }
}

/// Both versions, each once packed and once laid out, and an engine that has just begun.
const DISK_MEGABYTES: u32 = 96;

/// Does not get smaller when it is packed.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(length).collect()
}

/// A device that runs a small version and will be given a large one, by a way that can be cut.
struct Pull {
    _agent: Running,
    plant: Plant,
    way: Way,
}

impl Pull {
    fn to_come(engine: &OwnEngine) -> Pull {
        Pull::to_come_with(engine, &[])
    }

    /// The same with further arguments of the agent.
    fn to_come_with(engine: &OwnEngine, arguments: &[&str]) -> Pull {
        let (way, listener) = Way::reserve();
        let plant = Plant::on(engine.host(), &["--registry-address", &format!("127.0.0.1:{}", way.port)]);
        way.lead(listener, plant.local);
        if let Some(disk) = &engine.disk {
            // One disk for everything, as devices have it.
            let data = disk.path().join("agent");
            std::fs::create_dir(&data).expect("the disk is empty yet");
            std::os::unix::fs::symlink(&data, plant.path(&plant.device)).expect("the name is free");
        }
        plant.join(&plant.device);
        let agent = [&["--engine", &plant.engine.host], arguments].concat();
        let agent = plant.run_agent(&plant.device, &agent);
        plant.add_package("hello", "1.0.0", &[("main", WEB)]);
        plant.add_package("hello", "2.0.0", &[("main", &WEB.replace("e2e/busybox:1", "e2e/large:2"))]);
        plant.push_with("e2e/large:2", |root| {
            std::fs::write(root.join("large"), noise(8 << 20)).expect("the stage's directory is writable");
        });
        plant.deploy("hello@1.0.0");
        plant.wait("hello", "INSTALLED");
        Pull { _agent: agent, plant, way }
    }

    /// The large one is wanted: its manifest comes through, and a part of the layer.
    fn begins(&self, patient: bool) {
        self.way.patient.store(patient, Ordering::SeqCst);
        self.way.left.store(2 << 20, Ordering::SeqCst);
        let large = ["deployment", "update", "hello", "--version", "2.0.0", "--set", "greeting=large"];
        self.plant.json(&large);
        wait_for("the pull stands still", || match patient {
            true => self.stands().then_some(()),
            false => self.way.cut.load(Ordering::SeqCst).then_some(()),
        });
    }

    fn stands(&self) -> bool {
        self.way.left.load(Ordering::SeqCst) < 64 * 1024
    }

    /// Everything comes through again.
    fn goes_on(&self) {
        self.way.left.store(u64::MAX, Ordering::SeqCst);
        self.way.cut.store(false, Ordering::SeqCst);
    }

    fn assert_large(&self) {
        let container = self.plant.container("hello", "main", "web");
        let said = self.plant.engine.exec(&container, "echo $GREETING; ls -l /large | cat");
        assert_eq!(said.lines().count(), 2, "{said}");
    }
}

#[test]
fn a_registry_that_goes_away_in_the_middle_of_a_pull_is_told_and_what_runs_runs_on() {
    let Some(engine) = OwnEngine::start() else { return };
    let pull = Pull::to_come(&engine);
    let plant = &pull.plant;
    let before = plant.run_of("hello", "main", "web");

    let mut trouble = Trouble::begins("registry gone in the middle of a pull");
    pull.begins(false);
    let failed = plant.wait("hello", "FAILED");
    assert_eq!(failed["error"]["code"], "pull-failed", "{failed}");
    let message = failed["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("e2e/large"), "{message}");
    assert!(failed["nextTry"].is_string(), "it says when it tries again: {failed}");
    assert_eq!(plant.run_of("hello", "main", "web"), before, "what cannot be fetched changes nothing");

    // Gone back is not gone: with a network that is away, there is nothing to go back from.
    assert!(!plant.steps("hello").contains(&"ROLLINGBACK".to_owned()));
    pull.goes_on();
    trouble.is_cured();
    plant.wait("hello", "INSTALLED");
    trouble.tell(plant, &plant.device, "hello");
    pull.assert_large();
}

#[test]
fn what_runs_is_mended_while_a_pull_takes_for_ever() {
    let Some(engine) = OwnEngine::start() else { return };
    let pull = Pull::to_come(&engine);
    let plant = &pull.plant;
    let before = plant.container("hello", "main", "web");

    pull.begins(true);
    // Somebody removes what runs. Nobody waits for the end of a download before it is mended.
    assert!(engine.docker(&["rm", "--force", &before]));
    let begun = Instant::now();
    let mended = wait_for("what ran runs again", || {
        let found = plant.containers(&plant.project("hello", "main"), "web");
        found.into_iter().find(|container| *container != before)
    });
    tell(&format!("removed by hand during a pull: runs again {:?} later", begun.elapsed()));
    assert_eq!(plant.engine.exec(&mended, "echo $GREETING; ls /large 2>/dev/null | cat").lines().count(), 1);
    assert!(pull.stands());
    assert_eq!(plant.assignment(&plant.device, "hello").expect("it is known")["state"], "UPDATING");

    pull.goes_on();
    plant.wait("hello", "INSTALLED");
    pull.assert_large();
    assert!(!plant.steps("hello").contains(&"FAILED".to_owned()), "{:?}", plant.steps("hello"));
}

#[test]
fn what_is_removed_while_a_pull_takes_for_ever_leaves_nothing() {
    let Some(engine) = OwnEngine::start() else { return };
    let pull = Pull::to_come_with(&engine, &["--images", "remove"]);
    let plant = &pull.plant;
    plant.push_with("e2e/other:1", |root| {
        std::fs::write(root.join("other"), noise(1)).expect("the stage's directory is writable");
    });
    plant.add_package("other", "1.0.0", &[("main", &WEB.replace("e2e/busybox:1", "e2e/other:1"))]);
    plant.deploy("other");
    plant.wait("other", "INSTALLED");
    let artifacts =
        || std::fs::read_dir(plant.path(&plant.device).join("artifacts")).map_or(0, Iterator::count);
    let images = || plant.engine.list(&["images", "-q", "--filter", "reference=*/e2e/other"]).len();
    pull.begins(true);
    assert_eq!((artifacts(), images()), (3, 1));

    let begun = Instant::now();
    plant.json(&["deployment", "remove", "other", "--yes"]);
    wait_for("nothing of it is left", || (artifacts() == 2 && images() == 0).then_some(()));
    tell(&format!("removed during a pull: nothing is left {:?} later", begun.elapsed()));
    assert!(pull.stands());
    pull.goes_on();
    plant.wait("hello", "INSTALLED");
    pull.assert_large();
}

/// The device has one disk, for its engine and for what it remembers itself.
#[test]
fn a_disk_that_fills_during_a_pull_and_beside_a_repair_is_told_and_space_is_all_it_takes() {
    let Some(engine) = OwnEngine::start_on_small_disk(DISK_MEGABYTES) else { return };
    let Some(disk) = &engine.disk else { return };
    let pull = Pull::to_come(&engine);
    let plant = &pull.plant;
    let before = plant.container("hello", "main", "web");
    plant.engine.exec(&before, "echo kept > /data/file");

    pull.begins(true);
    let mut trouble = Trouble::begins("disk full in a pull and a repair");
    disk.fill();
    assert!(engine.docker(&["rm", "--force", &before]));
    // Whoever filled the disk takes what became free meanwhile.
    disk.fill();
    let begun = Instant::now();
    let said = || plant.assignment(&plant.device, "hello").unwrap_or_default();
    wait_for("the server hears why what ran is not mended", || {
        (said()["state"] == "UPDATING" && said()["components"][0]["error"]["code"] == "disk-full")
            .then_some(())
    });
    tell(&format!("disk full in a repair: known at the server {:?} later", begun.elapsed()));
    assert!(pull.stands());
    let begun = Instant::now();
    pull.goes_on();
    let failed = plant.wait("hello", "FAILED");
    assert_eq!(failed["error"]["code"], "disk-full", "{failed}");
    assert!(failed["nextTry"].is_string(), "it says when it tries again: {failed}");
    tell(&format!("disk full in a pull: known at the server {:?} later", begun.elapsed()));

    disk.free();
    trouble.is_cured();
    plant.wait("hello", "INSTALLED");
    trouble.tell(plant, &plant.device, "hello");
    pull.assert_large();
    assert_eq!(plant.all_containers().len(), 1);
    let kept = plant.engine.exec(&plant.container("hello", "main", "web"), "cat /data/file");
    assert_eq!(kept, "kept", "volumes survive a full disk");
    assert!(!plant.steps("hello").contains(&"ROLLINGBACK".to_owned()), "there was nothing to go back from");
}
