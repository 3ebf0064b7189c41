//! What a device works with goes away in the middle of something: its engine, or the registry. It says so in words, does
//! no harm, and goes on by itself when it is back.
//!
//! The engine here is the test's own: others use the one that is named to them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::engine::{Engine, on_path, skip};
use crate::plant::{Plant, WEB};
use crate::stage::{Running, wait_for};

/// A Docker engine that nobody else uses, so that it may be killed.
struct OwnEngine {
    daemon: Option<Running>,
    directory: tempfile::TempDir,
}

impl OwnEngine {
    /// `None`, said aloud, where none can be started.
    fn start() -> Option<OwnEngine> {
        // Whoever names an engine has what else is needed.
        Engine::named()?;
        let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0");
        if !root || on_path("dockerd").is_none() {
            skip("an engine of its own needs dockerd and root");
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut engine = OwnEngine { daemon: None, directory };
        engine.run();
        Some(engine)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn host(&self) -> String {
        format!("unix://{}", self.path("docker.sock").display())
    }

    fn run(&mut self) {
        let mut command = Command::new("dockerd");
        command.arg("--data-root").arg(self.path("data")).arg("--exec-root").arg(self.path("exec"));
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
        for mount in mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|m| m.starts_with(&own))
        {
            let _best = Command::new("umount").args(["-l", mount]).status();
        }
    }
}

#[allow(clippy::print_stderr, reason = "the figures of this test are part of its result")]
fn tell(words: &str) {
    eprintln!("{words}");
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
    engine.kill();
    let trouble = wait_for("the device says that its engine is away", || {
        plant.agent_status(&plant.device)["runtimeTrouble"].as_str().map(str::to_owned)
    });
    assert!(trouble.to_lowercase().contains("engine"), "{trouble}");
    assert_eq!(plant.assignment(&plant.device, "hello").expect("it is known")["state"], "INSTALLED");
    // Nor does the server go on saying that all is as wanted: what it was told last nobody can see any more.
    let shown = || plant.json(&["device", "show", &plant.device]);
    let blind = wait_for("the server hears that it cannot look", || {
        Some(shown()).filter(|shown| shown["cannotLook"].is_object())
    });
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
    let begun = Instant::now();
    engine.run();
    let installed = plant.wait("hello", "INSTALLED");
    assert_eq!(installed["error"], Value::Null, "{installed}");
    wait_for("the server hears that it can look again", || shown()["cannotLook"].is_null().then_some(()));
    assert_eq!(shown()["condition"], "converged");
    tell(&format!("engine killed at rest: as wanted {:?} after it was started again", begun.elapsed()));
    assert_eq!(greeting(), "second");

    // In the middle of an update, at several moments of it.
    for number in 0..3 {
        let wanted = format!("third {number}");
        let before = plant.container("hello", "main", "web");
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
        let begun = Instant::now();
        engine.run();
        plant.wait("hello", "INSTALLED");
        tell(&format!("engine killed in an update: as wanted {:?} later", begun.elapsed()));
        assert_eq!(greeting(), wanted);
        assert_eq!(plant.all_containers().len(), 1);
        let kept = plant.engine.exec(&plant.container("hello", "main", "web"), "cat /data/file");
        assert_eq!(kept, "kept", "volumes survive an engine that was killed");
    }
}

/// A way to the registry that can be cut: after so many bytes of answers nothing comes through any more, or not for now.
struct Way {
    port: u16,
    cut: Arc<AtomicBool>,
    /// Then everything waits instead, until there is room again.
    patient: Arc<AtomicBool>,
    left: Arc<AtomicU64>,
}

impl Way {
    /// The registry's port is not known before the server runs, and the server has to be told this one.
    fn reserve() -> (Way, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("it listens").port();
        (
            Way {
                port,
                cut: Arc::default(),
                patient: Arc::default(),
                left: Arc::new(AtomicU64::new(u64::MAX)),
            },
            listener,
        )
    }

    fn lead(&self, listener: TcpListener, to: u16) {
        let (cut, patient, left) = (self.cut.clone(), self.patient.clone(), self.left.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { return };
                if cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (cut, patient, left) = (cut.clone(), patient.clone(), left.clone());
                let (mut asks, mut asked) =
                    (near.try_clone().expect("a socket"), far.try_clone().expect("a socket"));
                std::thread::spawn(move || {
                    // Whichever side ends it, both ends are told.
                    let _ended = std::io::copy(&mut asks, &mut asked);
                    let _told = asked.shutdown(Shutdown::Write);
                });
                std::thread::spawn(move || carry(far, near, &cut, &patient, &left));
            }
        });
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool, patient: &AtomicBool, left: &AtomicU64) {
    let mut piece = [0; 16 * 1024];
    while let Ok(length) = from.read(&mut piece) {
        if patient.load(Ordering::SeqCst) {
            wait_for("there is room again", || (left.load(Ordering::SeqCst) >= length as u64).then_some(()));
        }
        let room = left.load(Ordering::SeqCst);
        if room < length as u64 {
            cut.store(true, Ordering::SeqCst);
        } else if room != u64::MAX {
            left.fetch_sub(length as u64, Ordering::SeqCst);
        }
        if length == 0 || cut.load(Ordering::SeqCst) || to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    for end in [&from, &to] {
        let _told = end.shutdown(Shutdown::Both);
    }
}

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

#[test]
fn a_registry_that_goes_away_in_the_middle_of_a_pull_is_told_and_what_runs_runs_on() {
    let Some(engine) = OwnEngine::start() else { return };
    let (way, listener) = Way::reserve();
    let plant = Plant::on(engine.host(), &["--registry-address", &format!("127.0.0.1:{}", way.port)]);
    way.lead(listener, plant.local);
    plant.join(&plant.device);
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    plant.add_package("hello", "2.0.0", &[("main", &WEB.replace("e2e/busybox:1", "e2e/large:2"))]);
    plant.push_with("e2e/large:2", |root| {
        std::fs::write(root.join("large"), noise(8 << 20)).expect("the stage's directory is writable");
    });
    plant.deploy("hello@1.0.0");
    plant.wait("hello", "INSTALLED");
    let before = plant.run_of("hello", "main", "web");

    // The manifest comes through, and a part of the layer.
    way.left.store(2 << 20, Ordering::SeqCst);
    plant.json(&["deployment", "update", "hello", "--version", "2.0.0", "--set", "greeting=large"]);
    wait_for("the way was cut in the middle", || way.cut.load(Ordering::SeqCst).then_some(()));
    let failed = plant.wait("hello", "FAILED");
    assert_eq!(failed["error"]["code"], "pull-failed", "{failed}");
    let message = failed["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("e2e/large:2"), "{message}");
    assert!(failed["nextTry"].is_string(), "it says when it tries again: {failed}");
    assert_eq!(plant.run_of("hello", "main", "web"), before, "what cannot be fetched changes nothing");

    // Gone back is not gone: with a network that is away, there is nothing to go back from.
    assert!(!plant.steps("hello").contains(&"ROLLINGBACK".to_owned()));
    way.left.store(u64::MAX, Ordering::SeqCst);
    way.cut.store(false, Ordering::SeqCst);
    let begun = Instant::now();
    plant.wait("hello", "INSTALLED");
    tell(&format!("registry cut in a pull: installed {:?} after it was back", begun.elapsed()));
    let container = plant.container("hello", "main", "web");
    assert_eq!(plant.engine.exec(&container, "echo $GREETING; ls -l /large | cat").lines().count(), 2);
}

#[test]
fn what_runs_is_mended_while_a_pull_takes_for_ever() {
    let Some(engine) = OwnEngine::start() else { return };
    let (way, listener) = Way::reserve();
    let plant = Plant::on(engine.host(), &["--registry-address", &format!("127.0.0.1:{}", way.port)]);
    way.lead(listener, plant.local);
    plant.join(&plant.device);
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    plant.add_package("hello", "2.0.0", &[("main", &WEB.replace("e2e/busybox:1", "e2e/large:2"))]);
    plant.push_with("e2e/large:2", |root| {
        std::fs::write(root.join("large"), noise(8 << 20)).expect("the stage's directory is writable");
    });
    plant.deploy("hello@1.0.0");
    plant.wait("hello", "INSTALLED");
    let before = plant.container("hello", "main", "web");

    way.patient.store(true, Ordering::SeqCst);
    way.left.store(2 << 20, Ordering::SeqCst);
    plant.json(&["deployment", "update", "hello", "--version", "2.0.0", "--set", "greeting=large"]);
    wait_for("the pull stands still", || (way.left.load(Ordering::SeqCst) < 64 * 1024).then_some(()));
    // Somebody removes what runs. Nobody waits for the end of a download before it is mended.
    assert!(engine.docker(&["rm", "--force", &before]));
    let begun = Instant::now();
    let mended = wait_for("what ran runs again", || {
        let found = plant.containers(&plant.project("hello", "main"), "web");
        found.into_iter().find(|container| *container != before)
    });
    tell(&format!("removed by hand during a pull: runs again {:?} later", begun.elapsed()));
    assert_eq!(plant.engine.exec(&mended, "echo $GREETING; ls /large 2>/dev/null | cat").lines().count(), 1);
    assert!(way.left.load(Ordering::SeqCst) < 64 * 1024, "the pull still stands");
    assert_eq!(plant.assignment(&plant.device, "hello").expect("it is known")["state"], "UPDATING");

    way.left.store(u64::MAX, Ordering::SeqCst);
    plant.wait("hello", "INSTALLED");
    let container = plant.container("hello", "main", "web");
    assert_eq!(plant.engine.exec(&container, "echo $GREETING; ls -l /large | cat").lines().count(), 2);
    assert!(!plant.steps("hello").contains(&"FAILED".to_owned()), "{:?}", plant.steps("hello"));
}
