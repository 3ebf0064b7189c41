//! Sizes, start-up times, memory when idle, and deploying beside bare Compose.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::stage::{Stage, pss};
use super::table::{Table, median, mib, millis};

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

/// Sizes, start-up and idle memory.
pub(super) fn idle(lab: &Lab, table: &mut Table) -> Result<()> {
    let agent_size = size(&lab.programs.agent)?;
    table.judged("margrave-agent, size on disk", mib(agent_size), "≤ 8 MB", agent_size <= 8_000_000);
    table.row("margrave, size on disk", mib(size(&lab.programs.margrave)?), "");

    let stage = Stage::new(&lab.programs, &lab.scratch)?;
    let engine = engine(&lab.root)?;
    let host = engine.as_ref().map(|engine| engine.host.as_str());
    let (server, listening) = stage.serve(None)?;
    table.row("server, exec to listening", millis(listening), "");
    let data = stage.add_device("idle")?;
    let arguments: Vec<&str> = host.iter().flat_map(|host| ["--engine", host]).collect();
    let (agent, polled) = stage.start_agent(&data, &arguments)?;
    table.row("agent, exec to first poll", millis(polled), "");
    // How long programs are left alone before their memory is read.
    let idle = Duration::from_secs(if lab.quick { 10 } else { 60 });
    eprintln!("leaving both idle for {idle:?} …");
    std::thread::sleep(idle);
    let (agent_memory, server_memory) = (pss(agent.id())?, pss(server.id())?);
    table.judged("agent, PSS idle", mib(agent_memory), "≤ 8 MiB", agent_memory <= 8 << 20);
    table.judged("server, PSS idle", mib(server_memory), "≤ 40 MiB", server_memory <= 40 << 20);
    Ok(())
}

/// The median of deploying with us, and of Compose alone, taking turns on the same engine.
pub(super) fn deploy(lab: &Lab, table: &mut Table) -> Result<()> {
    let Some(engine) = engine(&lab.root)? else {
        table.row("deploy → INSTALLED", "no Docker engine here", "");
        return Ok(());
    };
    let stage = Stage::new(&lab.programs, &lab.scratch)?;
    let (_server, _) = stage.serve(None)?;
    let registry = format!("127.0.0.1:{}", stage.local);
    engine.push_busybox(&registry, &stage.context_file())?;
    stage.add_package(COMPOSE)?;
    let data = stage.add_device("docker")?;
    let (_agent, _) = stage.start_agent(&data, &["--engine", &engine.host])?;
    let bare_directory = stage.path("bare");
    std::fs::create_dir_all(&bare_directory)?;
    std::fs::write(bare_directory.join("compose.yaml"), COMPOSE)?;

    let (mut ours, mut bare) = (vec![], vec![]);
    for round in 0..=(if lab.quick { 1 } else { ROUNDS }) {
        let begun = Instant::now();
        stage.margrave(&["deploy", "figures", "--to", "docker", "--wait"])?;
        let took = begun.elapsed();
        stage.margrave(&["deployment", "remove", "figures", "--yes", "--wait"])?;

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
    let (ours, bare) = (median(&ours).context("rounds")?, median(&bare).context("rounds")?);
    table.row("bare docker compose up -d --wait", millis(bare), "baseline");
    table.row("deploy → INSTALLED, same file, image present", millis(ours), "");
    table.row("ratio", format!("{:.2}", ours.as_secs_f64() / bare.as_secs_f64()), "");
    Ok(())
}

fn size(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).with_context(|| path.display().to_string())?.len())
}

/// A Docker engine: the one given, or a private one that ends with the figures.
pub(super) struct Engine {
    pub(super) host: String,
    rig: Option<(PathBuf, PathBuf)>,
}

pub(super) fn engine(root: &Path) -> Result<Option<Engine>> {
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

    pub(super) fn compose(&self, directory: &Path, registry: &str, arguments: &[&str]) -> Result<()> {
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
    pub(super) fn push_busybox(&self, registry: &str, context: &Path) -> Result<()> {
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
