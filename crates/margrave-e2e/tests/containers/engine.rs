//! The Docker engine that tests may use, driven as a person would: with the real `docker`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use margrave_core::digest::Digest;
use serde_json::json;

/// Says aloud that a test does not run here, and why. Where `CI=true` promises everything, that is a failure.
pub(crate) fn skip(why: &str) {
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "in CI nothing may be missing: {why}");
    #[allow(clippy::print_stderr, reason = "a skipped test says so, aloud")]
    {
        eprintln!("skipped: {why}");
    }
}

/// A program on the search path.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

pub(crate) fn said(output: &Output) -> String {
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    text.trim().to_owned()
}

/// Runs a command that must succeed, and returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// An engine, and a configuration directory with nobody's logins but the test's own.
pub(crate) struct Engine {
    pub(crate) host: String,
    config: PathBuf,
}

impl Engine {
    /// The engine's address, unless there is none to use.
    pub(crate) fn named() -> Option<String> {
        let host = std::env::var("MARGRAVE_TEST_DOCKER_HOST").ok().filter(|host| !host.is_empty());
        if host.is_none() {
            skip("MARGRAVE_TEST_DOCKER_HOST names no Docker engine");
        }
        for program in ["docker", "busybox"] {
            if on_path(program).is_none() {
                skip(&format!("{program} is not installed"));
                return None;
            }
        }
        host
    }

    pub(crate) fn new(host: String, config: PathBuf) -> Self {
        std::fs::create_dir_all(&config).expect("the stage's directory is writable");
        Engine { host, config }
    }

    /// The same engine for somebody with logins of their own.
    pub(crate) fn visitor(&self, config: PathBuf) -> Engine {
        Engine::new(self.host.clone(), config)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command
            .arg("-H")
            .arg(&self.host)
            .args(arguments)
            .env("DOCKER_CONFIG", &self.config)
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn docker(&self, arguments: &[&str]) -> String {
        run(&mut self.command(arguments))
    }

    /// What it says when it must not succeed.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("docker starts");
        assert!(!output.status.success(), "docker {} succeeded: {}", arguments.join(" "), said(&output));
        said(&output)
    }

    pub(crate) fn login(&self, registry: &str, user: &str, password: &str) {
        use std::io::Write as _;
        let mut login = self.command(&["login", "--username", user, "--password-stdin", registry]);
        let login = login.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = login.spawn().expect("docker starts");
        let mut input = child.stdin.take().expect("its input is a pipe");
        input.write_all(password.as_bytes()).expect("docker reads the password");
        drop(input);
        let output = child.wait_with_output().expect("docker ends");
        assert!(output.status.success(), "docker login: {}", said(&output));
    }

    /// An image without a download: one static busybox, and whatever `change` does to its root. `scratch` is a directory
    /// of the image's own.
    pub(crate) fn import_busybox(&self, scratch: &Path, image: &str, change: impl FnOnce(&Path)) {
        let mut tar = Command::new("tar");
        let tar = tar.arg("-C").arg(busybox(scratch, change)).args(["-c", "."]).stdout(Stdio::piped());
        let mut tar = tar.spawn().expect("tar is everywhere");
        let archive = tar.stdout.take().expect("its output is a pipe");
        run(self.command(&["import", "--change", "ENV PATH=/bin", "-", image]).stdin(archive));
        assert!(tar.wait().expect("tar ends").success());
    }

    /// The same for a kind of machine that is not the engine's own: importing does not let one choose.
    pub(crate) fn load_busybox(
        &self,
        scratch: &Path,
        image: &str,
        architecture: &str,
        change: impl FnOnce(&Path),
    ) {
        let root = busybox(scratch, change);
        let packed = scratch.join("packed");
        std::fs::create_dir_all(&packed).expect("the stage's directory is writable");
        let layer = packed.join("layer.tar");
        run(Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&layer).arg("."));
        let digest = Digest::of(&std::fs::read(&layer).expect("tar wrote it"));
        let config = json!({
            "architecture": architecture, "os": "linux", "config": { "Env": ["PATH=/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [digest.to_string()] },
        });
        let manifest = json!([{ "Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"] }]);
        for (name, content) in [("config.json", config), ("manifest.json", manifest)] {
            std::fs::write(packed.join(name), content.to_string())
                .expect("the stage's directory is writable");
        }
        let whole = scratch.join("image.tar");
        run(Command::new("tar").arg("-C").arg(&packed).arg("-cf").arg(&whole).arg("."));
        self.docker(&["load", "--input", whole.to_str().expect("a plain path")]);
    }

    /// One field of a container, as a Go template.
    pub(crate) fn inspect(&self, container: &str, format: &str) -> String {
        self.docker(&["inspect", "--format", format, container])
    }

    pub(crate) fn exec(&self, container: &str, command: &str) -> String {
        self.docker(&["exec", container, "sh", "-c", command])
    }

    /// Containers, running or not, with all of these labels.
    pub(crate) fn containers(&self, labels: &[(&str, &str)]) -> Vec<String> {
        let mut arguments = vec!["ps".to_owned(), "-aq".to_owned(), "--no-trunc".to_owned()];
        for (name, value) in labels {
            arguments.extend(["--filter".to_owned(), format!("label={name}={value}")]);
        }
        self.list(&arguments)
    }

    pub(crate) fn networks(&self, label: (&str, &str)) -> Vec<String> {
        self.list(&["network", "ls", "-q", "--filter", &format!("label={}={}", label.0, label.1)])
    }

    pub(crate) fn volumes(&self, label: (&str, &str)) -> Vec<String> {
        self.list(&["volume", "ls", "-q", "--filter", &format!("label={}={}", label.0, label.1)])
    }

    /// Names of the images from a registry.
    pub(crate) fn images(&self, registry: &str) -> Vec<String> {
        self.list(&[
            "images",
            "--format",
            "{{.Repository}}:{{.Tag}}",
            "--filter",
            &format!("reference={registry}/*/*"),
        ])
    }

    /// The lines of what it says.
    pub(crate) fn list(&self, arguments: &[impl AsRef<str>]) -> Vec<String> {
        let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        self.docker(&arguments).lines().map(str::to_owned).collect()
    }

    /// Takes away all that carries an agent's label. A test that failed may leave anything in any state, so
    /// this looks several times, and complains about nothing.
    pub(crate) fn clear(&self, agent: &str, registry: &str) {
        self.clear_agent(agent);
        for _ in 0..3 {
            self.take_away(
                &["images", "-q", "--filter", &format!("reference={registry}/*/*")],
                &["rmi", "-f"],
            );
        }
    }

    /// The same, with images left for others.
    pub(crate) fn clear_agent(&self, agent: &str) {
        let label = format!("label=io.margrave.agent={agent}");
        for _ in 0..3 {
            self.take_away(&["ps", "-aq", "--filter", &label], &["rm", "-f"]);
            self.take_away(&["network", "ls", "-q", "--filter", &label], &["network", "rm"]);
            self.take_away(&["volume", "ls", "-q", "--filter", &label], &["volume", "rm"]);
        }
    }

    fn take_away(&self, list: &[&str], remove: &[&str]) {
        let Ok(found) = self.command(list).output() else { return };
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        let found: Vec<&str> = found.lines().collect();
        if !found.is_empty() {
            let _next_time = self.command(&[remove, &found].concat()).output();
        }
    }
}

/// The root of an image with busybox in it.
fn busybox(scratch: &Path, change: impl FnOnce(&Path)) -> PathBuf {
    let root = scratch.join("busybox");
    let bin = root.join("bin");
    if !bin.exists() {
        std::fs::create_dir_all(&bin).expect("the stage's directory is writable");
        let busybox = on_path("busybox").expect("looked for when the engine was");
        std::fs::copy(busybox, bin.join("busybox")).expect("busybox can be copied");
        for applet in ["sh", "cat", "env", "httpd", "ls", "mkdir", "sleep", "test", "touch", "true", "wget"] {
            std::os::unix::fs::symlink("busybox", bin.join(applet)).expect("a fresh directory");
        }
    }
    change(&root);
    root
}
