//! Sizes, memory and times of the release programs, each measured here and now.
//!
//! Machines are noisy: what can be compared with a baseline is, in the same run, and the ratio is printed.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

const PATIENCE: Duration = Duration::from_secs(120);
/// How long programs are left alone before their memory is read.
const IDLE: Duration = Duration::from_secs(60);
const ROUNDS: usize = 5;

const COMPOSE: &str = "services:
  web:
    image: ${MARGRAVE_REGISTRY}/figures/busybox:1
    command: [\"sh\", \"-c\", \"echo up > /index.html; exec httpd -f -p 8080 -h /\"]
    environment:
      GREETING: ${GREETING:-none}
    healthcheck:
      test: [\"CMD\", \"wget\", \"-q\", \"-O\", \"/dev/null\", \"http://127.0.0.1:8080/index.html\"]
      interval: 1s
      retries: 10
";

pub(crate) fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
    eprintln!("building the release programs …");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "-p", "margrave", "-p", "margrave-agent"])
        .current_dir(root)
        .status()?;
    ensure!(built.success(), "the release build failed");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| target_of_this_program(root), PathBuf::from);
    let programs =
        Programs { margrave: target.join("release/margrave"), agent: target.join("release/margrave-agent") };

    let mut table = Table::default();
    let agent_size = size(&programs.agent)?;
    table.judged("margrave-agent, size on disk", mib(agent_size), "≤ 8 MB", agent_size <= 8_000_000);
    table.row("margrave, size on disk", mib(size(&programs.margrave)?), "");

    let stage = tempfile::tempdir()?;
    let engine = engine(root)?;
    let host = engine.as_ref().map(|engine| engine.host.as_str());
    let (server, listening) = Server::start(&programs, stage.path())?;
    table.row("server, exec to listening", millis(listening), "");
    server.add_device("idle", stage.path())?;
    let (agent, polled) = start_agent(&programs, &stage.path().join("idle"), &[], host)?;
    table.row("agent, exec to first poll", millis(polled), "");
    eprintln!("leaving both idle for {IDLE:?} …");
    std::thread::sleep(IDLE);
    let (agent_memory, server_memory) = (pss(agent.0.id())?, pss(server.process.0.id())?);
    table.judged("agent, PSS idle", mib(agent_memory), "≤ 8 MiB", agent_memory <= 8 << 20);
    table.judged("server, PSS idle", mib(server_memory), "≤ 40 MiB", server_memory <= 40 << 20);
    drop(agent);

    match &engine {
        Some(engine) => {
            let (ours, bare) = deploy_times(&programs, &server, stage.path(), engine)?;
            table.row("bare docker compose up -d --wait", millis(bare), "baseline");
            table.row("deploy → INSTALLED, same file, image present", millis(ours), "");
            table.row("ratio", format!("{:.2}", ours.as_secs_f64() / bare.as_secs_f64()), "");
        }
        None => table.row("deploy → INSTALLED", "no Docker engine here".to_owned(), ""),
    }
    table.print();
    Ok(())
}

struct Programs {
    margrave: PathBuf,
    agent: PathBuf,
}

fn target_of_this_program(root: &Path) -> PathBuf {
    let own = std::env::current_exe().ok();
    let target = own.as_deref().and_then(Path::parent).and_then(Path::parent);
    target.map_or_else(|| root.join("target"), Path::to_owned)
}

/// A process that ends with its figure.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) && self.0.kill().is_ok() {
            drop(self.0.wait());
        }
    }
}

struct Server<'a> {
    programs: &'a Programs,
    process: Process,
    context: PathBuf,
    local: u16,
}

impl<'a> Server<'a> {
    fn start(programs: &'a Programs, stage: &Path) -> Result<(Server<'a>, Duration)> {
        let (web, device, local) = (free_port()?, free_port()?, free_port()?);
        let data = stage.join("server");
        let log = std::fs::File::create(stage.join("server.log"))?;
        let begun = Instant::now();
        let process = Command::new(&programs.margrave)
            .args(["serve", "--name", "127.0.0.1", "--data"])
            .arg(&data)
            .args(["--listen", &format!("127.0.0.1:{web}")])
            .args(["--device-listen", &format!("127.0.0.1:{device}")])
            .args(["--local-listen", &format!("127.0.0.1:{local}")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let process = Process(process);
        let listening = wait_for("the server listens", || {
            let up = [web, device, local].iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok());
            Ok(up.then(|| begun.elapsed()))
        })?;
        let context = data.join("context.json");
        wait_for("the server says how to reach it", || Ok(context.exists().then_some(())))?;
        Ok((Server { programs, process, context, local }, listening))
    }

    fn margrave(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        let output = Command::new(&self.programs.margrave)
            .env("MARGRAVE_CONTEXT", &self.context)
            .args(arguments)
            .arg("--json")
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "margrave {} failed: {said}", arguments.join(" "));
        serde_json::from_slice(&output.stdout).context("no JSON")
    }

    fn add_device(&self, name: &str, stage: &Path) -> Result<()> {
        let token = self.margrave(&["device", "token", "--name", name])?;
        let text = |key: &str| {
            token[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in the token"))
        };
        let joined = Command::new(&self.programs.agent)
            .args(["join", &text("url")?, "--token", &text("token")?, "--pin", &text("pin")?, "--data"])
            .arg(stage.join(name))
            .stdout(Stdio::null())
            .status()?;
        ensure!(joined.success(), "the device could not join");
        Ok(())
    }
}

/// Starts an agent and returns once it says that its first poll was answered.
fn start_agent(
    programs: &Programs,
    data: &Path,
    arguments: &[&str],
    engine: Option<&str>,
) -> Result<(Process, Duration)> {
    let begun = Instant::now();
    let mut command = Command::new(&programs.agent);
    command.args(["run", "--data"]).arg(data).args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
    if let Some(engine) = engine {
        command.args(["--engine", engine]);
    }
    let mut process = Process(command.spawn()?);
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

/// The median of deploying with us, and of Compose alone, taking turns on the same engine.
fn deploy_times(
    programs: &Programs,
    server: &Server<'_>,
    stage: &Path,
    engine: &Engine,
) -> Result<(Duration, Duration)> {
    let registry = format!("127.0.0.1:{}", server.local);
    engine.push_busybox(&registry, &server.context)?;
    let package = write_package(stage)?;
    server.margrave(&["package", "add", package.to_str().context("a plain path")?])?;
    server.add_device("docker", stage)?;
    let (_agent, _) = start_agent(programs, &stage.join("docker"), &[], Some(&engine.host))?;
    let bare_directory = stage.join("bare");
    std::fs::create_dir_all(&bare_directory)?;
    std::fs::write(bare_directory.join("compose.yaml"), COMPOSE)?;

    let (mut ours, mut bare) = (vec![], vec![]);
    for round in 0..=ROUNDS {
        let begun = Instant::now();
        server.margrave(&["deploy", "figures", "--to", "docker", "--wait"])?;
        let took = begun.elapsed();
        server.margrave(&["deployment", "remove", "figures", "--yes", "--wait"])?;

        let begun = Instant::now();
        engine.compose(&bare_directory, &registry, &["up", "-d", "--wait"])?;
        let alone = begun.elapsed();
        engine.compose(&bare_directory, &registry, &["down"])?;
        // The first round pays for what is cached afterwards.
        if round > 0 {
            eprintln!("round {round}: ours {}, bare {}", millis(took), millis(alone));
            ours.push(took);
            bare.push(alone);
        }
    }
    Ok((median(ours), median(bare)))
}

fn write_package(stage: &Path) -> Result<PathBuf> {
    let root = stage.join("package");
    let component = root.join("components/web");
    std::fs::create_dir_all(&component)?;
    std::fs::write(component.join("compose.yaml"), COMPOSE)?;
    std::fs::write(
        root.join("margo.yaml"),
        "apiVersion: v1
id: figures
metadata:
  name: Figures
  version: 1.0.0
  catalog:
    organization:
      - name: Margrave
deploymentProfiles:
  - type: compose
    id: compose
    components:
      - name: web
        properties:
          repository: oci://margrave/figures/web
          revision: 1.0.0
",
    )?;
    Ok(root)
}

/// A Docker engine: the one given, or a private one that ends with the figures.
struct Engine {
    host: String,
    rig: Option<(PathBuf, PathBuf)>,
}

fn engine(root: &Path) -> Result<Option<Engine>> {
    let given = std::env::var("MARGRAVE_TEST_DOCKER_HOST").or_else(|_| std::env::var("DOCKER_HOST"));
    let host = given.unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned());
    let answers = Command::new("docker")
        .args(["-H", &host, "info"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if answers.is_ok_and(|status| status.success()) {
        return Ok(Some(Engine { host, rig: None }));
    }
    let script = root.join("scripts/rig");
    let directory = tempfile::tempdir()?.keep();
    let output = Command::new(&script).arg("up").arg(&directory).stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let host = said.lines().find_map(|line| line.strip_prefix("MARGRAVE_TEST_DOCKER_HOST="));
    Ok(host.map(|host| Engine { host: host.to_owned(), rig: Some((script, directory)) }))
}

impl Engine {
    fn docker(&self) -> Command {
        let mut command = Command::new("docker");
        command.args(["-H", &self.host]);
        command
    }

    fn compose(&self, directory: &Path, registry: &str, arguments: &[&str]) -> Result<()> {
        let output = self
            .docker()
            .args(["compose", "-p", "margrave-figures-bare"])
            .args(arguments)
            .current_dir(directory)
            .env("MARGRAVE_REGISTRY", registry)
            .output()?;
        ensure!(output.status.success(), "docker compose: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// One static busybox as an image, in the engine and in the server's registry.
    fn push_busybox(&self, registry: &str, context: &Path) -> Result<()> {
        let context: serde_json::Value = serde_json::from_slice(&std::fs::read(context)?)?;
        let token = context["token"].as_str().context("a token")?;
        let image = format!("{registry}/figures/busybox:1");
        let script = format!(
            "set -e; d=$(mktemp -d); mkdir $d/bin; cp \"$(command -v busybox)\" $d/bin/busybox; \
             for a in sh httpd wget sleep true; do ln -s busybox $d/bin/$a; done; \
             tar -C $d -c . | docker -H '{host}' import --change 'ENV PATH=/bin' - {image} >/dev/null; \
             export DOCKER_CONFIG=$d; echo \"$TOKEN\" | docker -H '{host}' login -u operator --password-stdin {registry} >/dev/null 2>&1; \
             docker -H '{host}' push -q {image} >/dev/null; rm -rf $d",
            host = self.host
        );
        let status = Command::new("bash").args(["-c", &script]).env("TOKEN", token).status()?;
        ensure!(status.success(), "the sample image could not be pushed");
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some((script, directory)) = &self.rig {
            let down = Command::new(script).arg("down").arg(directory).status();
            if !down.is_ok_and(|status| status.success()) {
                eprintln!("the rig in {} could not be stopped", directory.display());
            }
        }
    }
}

#[derive(Default)]
struct Table(Vec<(&'static str, String, String)>);

impl Table {
    fn row(&mut self, what: &'static str, value: String, goal: &str) {
        eprintln!("{what}: {value}");
        self.0.push((what, value, goal.to_owned()));
    }

    fn judged(&mut self, what: &'static str, value: String, goal: &str, met: bool) {
        let verdict = if met { "met" } else { "MISSED" };
        self.row(what, value, &format!("{goal}: {verdict}"));
    }

    fn print(&self) {
        println!("\n| figure | measured | goal |\n|---|---|---|");
        for (what, value, goal) in &self.0 {
            println!("| {what} | {value} | {goal} |");
        }
    }
}

fn size(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).with_context(|| path.display().to_string())?.len())
}

/// Proportional set size: shared pages are counted by how many share them.
fn pss(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("the kernel tells no PSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}

fn mib(bytes: u64) -> String {
    format!("{:.2} MiB ({:.2} MB)", bytes as f64 / (1 << 20) as f64, bytes as f64 / 1e6)
}

fn millis(duration: Duration) -> String {
    format!("{:.0} ms", duration.as_secs_f64() * 1000.0)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
