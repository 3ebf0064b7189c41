//! Where things are measured: programs, one server on fixed ports in a temporary directory, and its processes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use margrave_http::Trust;
use margrave_identity::pin::Pin;
use margrave_identity::tls::pinned_client_config;
use margrave_simulate::operator::Operator;
use margrave_wire::operator::Context;

const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone)]
pub(super) struct Programs {
    pub(super) margrave: PathBuf,
    pub(super) agent: PathBuf,
    pub(super) xtask: PathBuf,
    pub(super) world: PathBuf,
}

impl Programs {
    pub(super) fn beside(target: &Path) -> Programs {
        let release = target.join("release");
        let device = target.join("device");
        Programs {
            margrave: release.join("margrave"),
            agent: device.join("margrave-agent"),
            xtask: release.join("xtask"),
            world: release.join("margrave-world"),
        }
    }
}

/// A process that ends with its figure.
pub(super) struct Process(pub(super) Child);

impl Process {
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn stop(mut self) -> Result<()> {
        let asked = Command::new("kill").args(["-s", "TERM", &self.id().to_string()]).status()?;
        ensure!(asked.success(), "the process could not be asked to end");
        wait_for("the process ends", || Ok(self.0.try_wait()?.map(drop)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) && self.0.kill().is_ok() {
            drop(self.0.wait());
        }
    }
}

/// One data directory and the ports of its server; the server itself comes and goes.
pub(super) struct Stage {
    pub(super) programs: Programs,
    directory: tempfile::TempDir,
    pub(super) web: u16,
    pub(super) device: u16,
    pub(super) local: u16,
}

impl Stage {
    /// Below `scratch`, which must be on a real disk: some figures are about waiting for it.
    pub(super) fn new(programs: &Programs, scratch: &Path) -> Result<Stage> {
        Ok(Stage {
            programs: programs.clone(),
            directory: tempfile::Builder::new().prefix("figures-").tempdir_in(scratch)?,
            web: free_port()?,
            device: free_port()?,
            local: free_port()?,
        })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn data(&self) -> PathBuf {
        self.path("server")
    }

    pub(super) fn device_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.device))
    }

    /// Starts the server, on one core only if one is named, and says how long it took to listen.
    pub(super) fn serve(&self, core: Option<usize>) -> Result<(Process, Duration)> {
        let log = File::options().create(true).append(true).open(self.path("server.log"))?;
        let begun = Instant::now();
        let process = on_core(core, &self.programs.margrave)
            .args(["serve", "--air-gapped", "--name", "127.0.0.1", "--data"])
            .arg(self.data())
            .args(["--listen", &format!("127.0.0.1:{}", self.web)])
            .args(["--device-listen", &format!("127.0.0.1:{}", self.device)])
            .args(["--local-listen", &format!("127.0.0.1:{}", self.local)])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let mut process = Process(process);
        let listening = wait_for("the server listens", || {
            ensure!(process.0.try_wait()?.is_none(), "the server ended; see {}", self.log().display());
            let ports = [self.web, self.device, self.local];
            let up = ports.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok());
            Ok(up.then(|| begun.elapsed()))
        })?;
        let context = self.context_file();
        wait_for("the server says how to reach it", || Ok(context.exists().then_some(())))?;
        Ok((process, listening))
    }

    fn log(&self) -> PathBuf {
        self.path("server.log")
    }

    pub(super) fn context_file(&self) -> PathBuf {
        self.data().join("context.json")
    }

    /// The administrator, for questions that need no program.
    pub(super) fn operator(&self) -> Result<Operator> {
        let context: Context = serde_json::from_slice(&std::fs::read(self.context_file())?)?;
        let pin = context.pin.as_deref().context("a pin")?;
        let trust = Trust::Tls(pinned_client_config(vec![Pin::parse(pin)?]));
        Ok(Operator::new(context, trust)?)
    }

    pub(super) fn margrave(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        let output = Command::new(&self.programs.margrave)
            .env("MARGRAVE_CONTEXT", self.context_file())
            .args(arguments)
            .arg("--json")
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "margrave {} failed: {said}", arguments.join(" "));
        serde_json::from_slice(&output.stdout).context("no JSON")
    }

    /// A real agent joins; its data directory is returned.
    pub(super) fn add_device(&self, name: &str) -> Result<PathBuf> {
        let token = self.margrave(&["device", "token", "--name", name])?;
        let text = |key: &str| {
            token[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in the token"))
        };
        let data = self.path(name);
        let joined = Command::new(&self.programs.agent)
            .args(["join", &text("url")?, "--token", &text("token")?, "--pin", &text("pin")?, "--data"])
            .arg(&data)
            .stdout(Stdio::null())
            .status()?;
        ensure!(joined.success(), "the device could not join");
        Ok(data)
    }

    /// Starts an agent and returns once it says that its first poll was answered.
    pub(super) fn start_agent(&self, data: &Path, arguments: &[&str]) -> Result<(Process, Duration)> {
        let begun = Instant::now();
        let mut command = Command::new(&self.programs.agent);
        command.args(["run", "--data"]).arg(data).args(arguments);
        let mut process = Process(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?);
        let mut lines = BufReader::new(process.0.stderr.take().context("stderr is piped")?).lines();
        let mut seen = String::new();
        while let Some(line) = lines.next().transpose()? {
            if line.contains("first poll answered") {
                let took = begun.elapsed();
                // Somebody has to read on, or the agent would one day wait for its log.
                std::thread::spawn(move || lines.count());
                return Ok((process, took));
            }
            seen.push_str(&line);
            seen.push('\n');
        }
        bail!("the agent ended before its first poll:\n{seen}")
    }

    /// A package with one small component, in the server's catalog; returns its name.
    pub(super) fn add_package(&self, compose: &str) -> Result<&'static str> {
        self.add_package_version("figures", "1.0.0", compose)?;
        Ok("figures")
    }

    /// One version of a package with one component.
    pub(super) fn add_package_version(&self, id: &str, version: &str, compose: &str) -> Result<()> {
        self.add_package_with(id, version, compose, &[])
    }

    /// The same, with a file beside its compose file.
    pub(super) fn add_package_with(&self, id: &str, version: &str, compose: &str, file: &[u8]) -> Result<()> {
        let root = self.path(&format!("package-{id}-{version}"));
        let component = root.join("components/main");
        std::fs::create_dir_all(&component)?;
        std::fs::write(component.join("compose.yaml"), compose)?;
        if !file.is_empty() {
            std::fs::write(component.join("file"), file)?;
        }
        std::fs::write(
            root.join("margo.yaml"),
            format!(
                "apiVersion: v1
id: {id}
metadata:
  name: Figures
  version: {version}
  catalog:
    organization:
      - name: Margrave
deploymentProfiles:
  - type: compose
    id: compose
    components:
      - name: main
        properties:
          repository: oci://margrave/{id}/main
          revision: {version}
"
            ),
        )?;
        self.margrave(&["package", "add", root.to_str().context("a plain path")?])?;
        Ok(())
    }

    /// What a running agent says it has written.
    pub(super) fn agent_bytes_written(&self, data: &Path) -> Result<u64> {
        // The exit code says whether everything is as wanted, which is not the question.
        let output =
            Command::new(&self.programs.agent).args(["status", "--json", "--data"]).arg(data).output()?;
        let status: serde_json::Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        status["bytesWritten"].as_u64().context("the agent does not tell what it has written")
    }
}

/// A program on one core only, where `taskset` is there to say so.
pub(super) fn on_core(core: Option<usize>, program: &Path) -> Command {
    match core {
        Some(core) => {
            let mut command = Command::new("taskset");
            command.args(["-c", &core.to_string()]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// Two cores to keep apart what measures and what is measured; `None` where that cannot be done.
pub(super) struct Cores {
    pub(super) server: usize,
    generator: usize,
}

impl Cores {
    pub(super) fn find() -> Option<Cores> {
        let there = Command::new("taskset").arg("--version").stdout(Stdio::null()).status();
        let enough = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
        (enough && there.is_ok_and(|status| status.success())).then_some(Cores { server: 0, generator: 1 })
    }

    /// A program on both, and on no others.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &format!("{},{}", self.server, self.generator)]).arg(program);
        command
    }

    /// Keeps this process, which generates the load, on its own core until the answer is dropped.
    pub(super) fn keep_to_generator(&self) -> Result<Kept> {
        set_own_cores(&self.generator.to_string())?;
        Ok(Kept(()))
    }
}

pub(super) struct Kept(());

impl Drop for Kept {
    fn drop(&mut self) {
        if let Err(error) = set_own_cores("0-1023") {
            eprintln!("this process stays on one core: {error:#}");
        }
    }
}

fn set_own_cores(list: &str) -> Result<()> {
    let own = std::process::id().to_string();
    let status =
        Command::new("taskset").args(["-a", "-c", "-p", list, &own]).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "taskset refused cores {list}");
    Ok(())
}

/// Proportional set size: shared pages are counted by how many share them.
pub(super) fn pss(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("the kernel tells no PSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}

/// Processor time that a process has used so far.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    /// What the kernel counts in on every Linux that we run on (USER_HZ).
    const TICKS_PER_SECOND: u64 = 100;
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in the second field may contain blanks and brackets; what follows the last bracket is numbers.
    let (_, rest) = text.rsplit_once(')').context("the kernel's line about a process")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).context("a number");
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / TICKS_PER_SECOND))
}

/// Bytes that a process had written to disk.
pub(super) fn bytes_written(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes:"));
    Ok(line.context("the kernel tells no write_bytes")?.trim().parse()?)
}

pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

pub(super) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
