//! The agent as a container: made of files of this machine, and run as docs/devices.md says.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::engine::run;
use crate::plant::{Plant, WEB};
use crate::stage::{program, wait_for};

/// A service with a page that comes from its archive, and a directory that outlives updates.
const FILES: &str = r#"services:
  web:
    image: ${MARGRAVE_REGISTRY}/e2e/busybox:1
    command: ["httpd", "-f", "-p", "8080", "-h", "/www"]
    environment:
      GREETING: ${GREETING}
    volumes: ["./site:/www:ro", "./state:/state"]
    stop_signal: SIGKILL
    healthcheck:
      test: ["CMD", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/"]
      interval: 1s
      timeout: 10s
      retries: 30
"#;

/// An agent in a container of the engine that it drives.
struct Packaged<'a> {
    plant: &'a Plant,
    container: String,
    /// The device's data, on the machine and in the container.
    data: PathBuf,
    inside: PathBuf,
}

impl<'a> Packaged<'a> {
    /// Builds the image, joins with it, and runs it; `inside` is where the container has the data directory.
    fn start(plant: &'a Plant, inside: Option<&Path>) -> Self {
        // Called as if it came from the server's registry, because such images are cleared away after the test.
        let image = format!("{}/e2e/agent:1", plant.registry());
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/container/build");
        run(Command::new(build)
            .arg(&image)
            .arg(program("margrave-agent"))
            .env("DOCKER_HOST", &plant.engine.host));
        let data = plant.path(&plant.device);
        std::fs::create_dir(&data).expect("the stage's directory is writable");
        let inside = inside.unwrap_or(&data).to_owned();
        let socket = plant.engine.host.strip_prefix("unix://").expect("the engine has a socket");
        let data_mount = format!("{}:{}", data.display(), inside.display());
        let socket_mount = format!("{socket}:/var/run/docker.sock");
        let inside_text = inside.display().to_string();
        let common = ["--network", "host", "-v", &data_mount];

        let token = plant.json(&["device", "token", "--name", &plant.device]);
        let text = |key: &str| token[key].as_str().expect("a text").to_owned();
        let (url, secret, pin) = (text("url"), text("token"), text("pin"));
        let join = [&image, "--data", &inside_text, "join", &url, "--token", &secret, "--pin", &pin];
        plant.engine.docker(&[&["run", "--rm"], &common[..], &join].concat());
        let options = ["-v", &socket_mount, "--restart", "unless-stopped"];
        let agent =
            [&["run", "-d"], &common[..], &options, &[&image, "run", "--data", &inside_text]].concat();
        let container = plant.engine.docker(&agent);
        Packaged { plant, container, data, inside }
    }

    fn said(&self) -> String {
        let logs = self.plant.engine.command(&["logs", &self.container]).output().expect("docker starts");
        String::from_utf8_lossy(&logs.stderr).into_owned()
    }

    /// `status` as a technician asks for it.
    fn status(&self) -> serde_json::Value {
        let inside = self.inside.display().to_string();
        let status = ["exec", &self.container, "margrave-agent", "status", "--json", "--data", &inside];
        let output = self.plant.engine.command(&status).output().expect("docker starts");
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Packaged<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.said();
            let tail: Vec<&str> = said.lines().rev().take(25).collect();
            #[allow(clippy::print_stderr, reason = "a failed test tells its story")]
            {
                eprintln!("--- the agent in its container said last, newest first:\n{}", tail.join("\n"));
            }
        }
        // What it started is cleared away with the plant.
        let _gone = self.plant.engine.command(&["rm", "-f", &self.container]).output();
    }
}

fn plant() -> Option<Plant> {
    let plant = Plant::start_with(&["--registry-address", "127.0.0.1:{local}"])?;
    let site = plant.path("package-files-1.0.0/components/main/site");
    std::fs::create_dir_all(&site).expect("the stage's directory is writable");
    std::fs::write(site.join("index.html"), "from the archive\n").expect("the stage's directory is writable");
    plant.add_package("files", "1.0.0", &[("main", FILES)]);
    plant.add_package("hello", "1.0.0", &[("main", WEB)]);
    Some(plant)
}

#[test]
fn an_agent_in_a_container_installs_survives_its_own_restart_updates_and_removes() {
    let Some(plant) = plant() else { return };
    let agent = Packaged::start(&plant, None);
    plant.deploy("files");
    plant.wait("files", "INSTALLED");
    let web = plant.container("files", "main", "web");
    assert_eq!(plant.engine.exec(&web, "wget -q -O - http://127.0.0.1:8080/"), "from the archive");
    plant.engine.exec(&web, "echo kept > /state/file");
    let project = plant.project("files", "main");
    let kept = agent.data.join("compose").join(&project).join("mounts/state/file");
    assert_eq!(std::fs::read_to_string(kept).expect("both sides have one path"), "kept\n");

    // What it started is no part of it: it comes and goes alone.
    let before = plant.run_of("files", "main", "web");
    plant.engine.docker(&["restart", &agent.container]);
    wait_for("the agent has looked at everything", || {
        let status = agent.status();
        (status["running"] == true && status["lastContact"].is_string()).then_some(())
    });
    plant.deploy("hello");
    plant.wait("hello", "INSTALLED");
    assert_eq!(plant.run_of("files", "main", "web"), before);
    assert_eq!(plant.steps("files"), ["PENDING", "INSTALLING", "INSTALLED"]);

    plant.update("files", "changed");
    wait_for("the update is done", || (plant.steps("files").len() == 5).then_some(()));
    plant.wait("files", "INSTALLED");
    let web = plant.container("files", "main", "web");
    assert_eq!(plant.engine.exec(&web, "echo $GREETING; cat /state/file"), "changed\nkept");

    plant.json(&["deployment", "remove", "files", "--yes"]);
    wait_for("it is gone at the server", || plant.assignment(&plant.device, "files").is_none().then_some(()));
    assert_eq!(plant.left_of(&project)[0], [""; 0]);
    assert!(!agent.said().contains("same path"), "{}", agent.said());
}

#[test]
fn an_agent_whose_files_the_engine_cannot_see_runs_what_needs_none_and_says_why_not_the_rest() {
    let Some(plant) = plant() else { return };
    let agent = Packaged::start(&plant, Some(Path::new("/var/lib/margrave-agent")));
    plant.deploy("files");
    plant.deploy("hello");
    let failed = plant.wait("files", "FAILED");
    let message = failed["error"]["message"].as_str().unwrap_or_default();
    let outside = agent.data.display().to_string();
    assert_eq!(failed["error"]["code"], "create-failed", "{message}");
    assert!(message.contains("same path") && message.contains(&outside), "{message}");
    plant.wait("hello", "INSTALLED");
    let said = agent.said();
    assert!(said.contains("WARN") && said.contains("same path of the machine"), "{said}");
}
