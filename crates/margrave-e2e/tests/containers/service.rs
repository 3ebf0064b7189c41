//! The agent as a service of a real systemd, with the unit of this repository: what it forbids the agent, the agent does not
//! need, and what it promises happens.
//!
//! systemd is the first process of a machine of its own (`machine.sh`), which sees this one's files through an overlay and shares
//! its network and the engine.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::engine::{Engine, on_path, run, said, skip};
use crate::plant::{Plant, WEB};
use crate::stage::{Running, program, wait_for};

const SERVICE: &str = "margrave-agent";

/// The unit's times are those of a factory. Nothing else of it is changed.
const SHORTER: &str = "[Service]\nWatchdogSec=6\nTimeoutAbortSec=1\nRestartSec=1\n";

struct Machine {
    systemd: Running,
    /// The number of systemd's process out here.
    first: String,
    cgroup: PathBuf,
}

impl Machine {
    /// `None`, said aloud, where there cannot be one.
    fn possible() -> Option<PathBuf> {
        let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0");
        let cgroups = cgroups();
        let programs = ["unshare", "nsenter", "pivot_root", "systemctl"];
        let missing = programs.iter().find(|name| on_path(name).is_none());
        if !root || missing.is_some() || cgroups.is_none() || !Path::new("/lib/systemd/systemd").exists() {
            skip("a machine of its own needs root, systemd, util-linux and cgroups of the second version");
            return None;
        }
        cgroups
    }

    /// Boots with the service as the only one that is wanted.
    fn boot(plant: &Plant, cgroups: &Path) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let cgroup = cgroups.join(format!("margrave-test-{}-{}", std::process::id(), plant.local));
        std::fs::create_dir(&cgroup).expect("root may make cgroups");
        let directory = plant.path("machine");
        std::fs::create_dir(&directory).expect("the stage's directory is writable");
        let shorter = plant.path("shorter.conf");
        std::fs::write(&shorter, SHORTER).expect("the stage's directory is writable");
        let mut command = Command::new("sh");
        // A shell moves itself, so that everything that follows is in the cgroup from its first moment on.
        command.args(["-c", "echo $$ >\"$1/cgroup.procs\"; shift; exec \"$@\"", "machine"]).arg(&cgroup);
        command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--cgroup", "--ipc", "sh"]);
        command.arg(here.join("tests/containers/machine.sh")).arg(&directory);
        command.arg(program("margrave-agent")).arg(plant.path(&plant.device));
        command.arg(plant.engine.host.strip_prefix("unix://").expect("the engine has a socket"));
        command.arg(here.join("../../packaging/systemd/margrave-agent.service")).arg(&shorter);
        let systemd = Running::start("systemd", &plant.path(""), &mut command);
        let mut machine = Machine { systemd, first: String::new(), cgroup };
        machine.first = wait_for("systemd is the first process of its machine", || {
            assert!(machine.systemd.is_running(), "the machine ended: {}", machine.systemd.log());
            machine.find_first()
        });
        wait_for("systemd answers", || machine.inside(&["systemctl", "list-units"]).is_some().then_some(()));
        machine
    }

    /// Of all processes in the cgroup and below it, the one that is number one in its own world.
    fn find_first(&self) -> Option<String> {
        directories(&self.cgroup)
            .iter()
            .filter_map(|directory| std::fs::read_to_string(directory.join("cgroup.procs")).ok())
            .flat_map(|numbers| numbers.lines().map(str::to_owned).collect::<Vec<_>>())
            .find(|number| {
                let status = std::fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
                field(&status, "Name") == "systemd" && field(&status, "NSpid").ends_with("\t1")
            })
    }

    /// What a command says that succeeds on the machine.
    fn inside(&self, arguments: &[&str]) -> Option<String> {
        let output = self.command(arguments).output().expect("nsenter starts");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first, "--mount", "--pid"]).args(arguments);
        command
    }

    fn systemctl(&self, verb: &str) {
        run(&mut self.command(&["systemctl", verb, SERVICE]));
    }

    fn property(&self, name: &str) -> String {
        run(&mut self.command(&["systemctl", "show", "--value", "--property", name, SERVICE]))
    }

    /// The agent's process, as the machine numbers it.
    fn agent(&self) -> String {
        wait_for("the service runs", || {
            let (state, process) = (self.property("ActiveState"), self.property("MainPID"));
            (state == "active" && process != "0").then_some(process)
        })
    }

    /// Does something to the agent, and waits for the one that follows it.
    fn succeeded_after(&self, before: &str, signal: &str) -> String {
        run(&mut self.command(&["kill", "-s", signal, before]));
        wait_for(&format!("another agent runs after SIG{signal}"), || {
            Some(self.agent()).filter(|process| process != before)
        })
    }

    fn journal(&self) -> String {
        let journal = self.inside(&["journalctl", "--no-pager", "--lines", "40", "--unit", SERVICE]);
        journal.unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.first.is_empty() {
            #[allow(clippy::print_stderr, reason = "a failed test tells its story")]
            {
                eprintln!("--- the service's journal ends:\n{}", self.journal());
            }
        }
        self.systemd.kill();
        // All its processes go with the first one, and may take a moment.
        let mut left = directories(&self.cgroup);
        for _ in 0..100 {
            left.retain(|directory| directory.exists() && std::fs::remove_dir(directory).is_err());
            if left.is_empty() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// Where the cgroups of the second version are, if they are.
fn cgroups() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    mount.split(' ').nth(1).map(PathBuf::from)
}

/// A directory and all below it, the deepest first.
fn directories(top: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(top)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .flat_map(|entry| directories(&entry.path()))
        .collect();
    found.push(top.to_owned());
    found
}

/// One line of a process's status.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim()
}

#[test]
fn under_systemd_it_works_with_everything_that_the_unit_forbids_and_comes_back_from_everything() {
    let Some(host) = Engine::named() else { return };
    let Some(cgroups) = Machine::possible() else { return };
    let plant = Plant::on(host, &["--registry-address", "127.0.0.1:{local}"]);
    plant.join(&plant.device);
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    let machine = Machine::boot(&plant, &cgroups);
    // Active means that it said so itself: the unit is of the kind that notifies.
    let agent = machine.agent();

    // It fetches, starts and watches with the real Compose, from within.
    plant.deploy("hello");
    plant.wait("hello", "INSTALLED");
    wait_for("systemd shows how it goes", || {
        machine.property("StatusText").contains("1 of 1 deployments as wanted").then_some(())
    });
    let before = plant.run_of("hello", "main", "web");

    // What is forbidden is forbidden.
    let status = machine.inside(&["cat", &format!("/proc/{agent}/status")]).expect("it runs");
    for name in ["CapEff", "CapPrm", "CapBnd", "CapAmb"] {
        assert_eq!(field(&status, name), "0000000000000000", "{name}: {status}");
    }
    assert_eq!((field(&status, "NoNewPrivs"), field(&status, "Seccomp")), ("1", "2"), "{status}");
    let write = |file: &str| {
        let world = ["nsenter", "--target", &agent, "--mount", "touch", file];
        machine.command(&world).output().expect("nsenter starts")
    };
    for file in ["/etc/margrave-was-here", "/usr/margrave-was-here", "/home/margrave-was-here"] {
        let output = write(file);
        assert!(!output.status.success() && said(&output).contains("Read-only"), "{file}: {}", said(&output));
    }
    let output = write("/var/lib/margrave-agent/touched");
    assert!(output.status.success(), "{}", said(&output));

    // Killed, or hanging so that the watchdog bites: another one goes on, and nothing of what runs is touched.
    let killed = machine.succeeded_after(&agent, "KILL");
    let hung = machine.succeeded_after(&killed, "STOP");
    assert_eq!(machine.property("NRestarts"), "2", "{}", machine.journal());
    plant.add_package("second", "1.0.0", &[("main", WEB)]);
    plant.deploy("second");
    plant.wait("second", "INSTALLED");
    assert_eq!(plant.run_of("hello", "main", "web"), before);
    assert_eq!(machine.agent(), hung, "one that works is left alone by the watchdog");

    // Stopped, it ends in time and of its own accord; containers run on.
    machine.systemctl("stop");
    assert_eq!(
        (machine.property("ActiveState"), machine.property("Result")),
        ("inactive".to_owned(), "success".to_owned()),
        "{}",
        machine.journal()
    );
    assert_eq!(plant.run_of("hello", "main", "web"), before);
    // The next one is told more, without another unit.
    let options = r#"MARGRAVE_AGENT_OPTIONS="--poll 2s --any-time""#;
    let write = format!("mkdir -p /etc/default && echo '{options}' >/etc/default/margrave-agent");
    machine.inside(&["sh", "-c", &write]).expect("the machine's own files are writable");
    machine.systemctl("start");
    wait_for("the server shows what the service's agent was told", || {
        let shown = plant.json(&["device", "show", &plant.device]);
        let own = shown.pointer("/capabilities/x-margrave-extensions/overrides")?;
        (*own == json!(["polls every 2s", "talks and changes at any time"])).then_some(())
    });
    plant.update("second", "changed");
    wait_for("the update is there", || {
        let web = plant.containers(&plant.project("second", "main"), "web").pop()?;
        let output = plant.engine.command(&["exec", &web, "sh", "-c", "echo $GREETING"]).output().ok()?;
        (said(&output) == "changed").then_some(())
    });
    plant.wait("second", "INSTALLED");
    assert_eq!(plant.run_of("hello", "main", "web"), before);
}
