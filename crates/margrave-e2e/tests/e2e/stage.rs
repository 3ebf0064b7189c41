//! A server and its devices, each a process of its own, in one temporary directory.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Long enough for a loaded machine with two cores; a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One of our programs, as built beside this test; figures are taken of those in `MARGRAVE_TEST_PROGRAMS`.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own file");
    let beside = test.parent().and_then(Path::parent).expect("tests are built into target/<profile>/deps");
    let given = std::env::var_os("MARGRAVE_TEST_PROGRAMS").map(PathBuf::from);
    let directory = given.unwrap_or_else(|| beside.to_owned());
    let path = directory.join(name);
    assert!(
        path.exists(),
        "{} is not built; run ./test, or cargo build --workspace --bins first",
        path.display()
    );
    path
}

/// Waits until `look` finds something, and says what was awaited when it does not.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A port that was free a moment ago, and that the system gives to nobody who asks for any: those begin at 32768. Restarted
/// servers must come back on the same one.
pub(crate) fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    // Tests are processes beside each other, each with a number of its own.
    let mut ports = std::iter::repeat_with(|| {
        let asked = ASKED.fetch_add(1, Ordering::Relaxed);
        let number = std::process::id().wrapping_mul(127).wrapping_add(asked.wrapping_mul(31));
        u16::try_from(12_000 + number % 20_000).expect("below 32000")
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.by_ref().take(1_000).find(is_free).expect("loopback has free ports")
}

/// Prints what was measured on the way, for `cargo xtask figures page`; a test judges no time.
#[allow(clippy::print_stderr, reason = "for whoever runs the tests")]
pub(crate) fn figure(name: &str, numbers: &[f64]) {
    let numbers: Vec<String> = numbers.iter().map(f64::to_string).collect();
    eprintln!("figure {name}: {}", numbers.join(" "));
}

/// Prints what came of a test, in numbers. `.config/nextest.toml` says of which tests it is shown although they are green.
#[allow(clippy::print_stderr, reason = "the figures of a test are part of its result")]
pub(crate) fn tell(words: &str) {
    eprintln!("{words}");
}

/// Says aloud that a test does not run here, and why; in CI nothing may be missing.
pub(crate) fn skip(why: &str) {
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "in CI nothing may be missing: {why}");
    #[allow(clippy::print_stderr, reason = "a skipped test says so")]
    {
        eprintln!("skipped: {why}");
    }
}

/// Where a program of this machine is; `None` after saying aloud that the test is skipped.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|path| path.join(name)).find(|path| path.is_file());
    if found.is_none() {
        skip(&format!("{name} is not installed"));
    }
    found
}

/// A process that dies with the test.
pub(crate) struct Running {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts it; what it says goes to `name`.log in `directory`.
    pub(crate) fn start(name: &str, directory: &Path, command: &mut Command) -> Self {
        let log = directory.join(format!("{name}.log"));
        let open = || {
            File::options().create(true).append(true).open(&log).expect("the stage's directory is writable")
        };
        let child = command.stdin(Stdio::null()).stdout(open()).stderr(open()).spawn();
        Running { name: name.to_owned(), child: child.expect("our own program starts"), log }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// How it ended, once it has.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("our own child")
    }

    /// As when the power goes.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("our own child can be killed");
        self.child.wait().expect("our own child can be waited for");
    }

    /// As when somebody stops the service.
    pub(crate) fn terminate(&mut self) -> std::process::ExitStatus {
        self.end_with("TERM")
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn end_with(&mut self, signal: &str) -> std::process::ExitStatus {
        let status = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(status.expect("kill is everywhere").success());
        let name = self.name.clone();
        wait_for(&format!("{name} ends after SIG{signal}"), || self.ended())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(25).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            #[allow(clippy::print_stderr, reason = "a failed test tells its story")]
            {
                eprintln!("--- {} said last:\n{}", self.name, tail.join("\n"));
            }
        }
    }
}

/// Where a server runs, and everything around it.
pub(crate) struct Stage {
    pub(crate) server: Option<Running>,
    /// After the server, which still tells from its log here how a failed test went.
    directory: tempfile::TempDir,
    pub(crate) web: u16,
    pub(crate) device: u16,
    pub(crate) local: u16,
    extra: Vec<String>,
    /// Where the server looks for programs, if not where we do.
    programs: Option<PathBuf>,
}

impl Stage {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with further arguments, on ports of its own; `{local}` stands for the plain one.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let mut stage = Stage::set(arguments);
        stage.start_server();
        stage
    }

    /// A server that finds programs in the stage's directory `name` only, which `fill` makes.
    pub(crate) fn start_with_programs(name: &str, fill: impl FnOnce(&Path)) -> Self {
        let mut stage = Stage::set(&[]);
        let programs = stage.path(name);
        std::fs::create_dir(&programs).expect("the stage's directory is writable");
        fill(&programs);
        stage.programs = Some(programs);
        stage.start_server();
        stage
    }

    fn set(arguments: &[&str]) -> Self {
        let local = free_port();
        Stage {
            directory: tempfile::tempdir().expect("a temporary directory"),
            web: free_port(),
            device: free_port(),
            local,
            extra: arguments.iter().map(|argument| argument.replace("{local}", &local.to_string())).collect(),
            programs: None,
            server: None,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn start_server(&mut self) {
        let mut command = Command::new(program("margrave"));
        command
            .args(["serve", "--air-gapped", "--data"])
            .arg(self.path("server"))
            .args(["--listen", &format!("127.0.0.1:{}", self.web)])
            .args(["--device-listen", &format!("127.0.0.1:{}", self.device)])
            .args(["--local-listen", &format!("127.0.0.1:{}", self.local)])
            .args(["--name", "127.0.0.1"])
            .args(&self.extra);
        if let Some(programs) = &self.programs {
            command.env("PATH", programs);
        }
        self.server = Some(Running::start("server", self.directory.path(), &mut command));
        wait_for("the server answers", || {
            self.margrave(&["status", "--json"]).status.success().then_some(())
        });
    }

    /// The page, without TLS, so that a browser trusts it.
    pub(crate) fn page(&self) -> String {
        format!("http://127.0.0.1:{}", self.local)
    }

    /// The first operator's.
    pub(crate) fn token(&self) -> String {
        let context = std::fs::read(self.path("server/context.json")).expect("the server wrote it");
        let context: Value = serde_json::from_slice(&context).expect("it is JSON");
        context["token"].as_str().expect("it has a token").to_owned()
    }

    pub(crate) fn server(&mut self) -> &mut Running {
        self.server.as_mut().expect("the server was started")
    }

    /// Kills the server, and expects of devices that start from now on that none is there.
    pub(crate) fn lose_server(&mut self) {
        self.server.take().expect("the server was started").kill();
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(program("margrave"));
        command.env("MARGRAVE_CONTEXT", self.path("server/context.json")).stdin(Stdio::null());
        command
    }

    pub(crate) fn margrave(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().expect("our own program starts")
    }

    /// Runs a command that must succeed, and returns its JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command().args(arguments).arg("--json").output().expect("our own program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "margrave {} failed: {said}", arguments.join(" "));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("margrave {} --json printed no JSON: {error}", arguments.join(" "))
        })
    }

    /// Makes `name` a member of the fleet, without starting it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        let token = self.json(&["device", "token", "--name", name]);
        let data = self.path(name);
        let output = Command::new(program("margrave-agent"))
            .args([
                "join",
                token["url"].as_str().expect("a url"),
                "--token",
                token["token"].as_str().expect("a token"),
            ])
            .args(["--pin", token["pin"].as_str().expect("a pin"), "--data"])
            .arg(&data)
            .output()
            .expect("our own program starts");
        assert!(output.status.success(), "join: {}", String::from_utf8_lossy(&output.stderr));
        data
    }

    pub(crate) fn run_agent(&self, name: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new(program("margrave-agent"));
        command.args(["run", "--data"]).arg(self.path(name)).args(arguments);
        let running = Running::start(name, self.directory.path(), &mut command);
        if self.server.is_some() {
            wait_for("the device says what it is", || {
                // One of the signed interface is not known by its name before.
                let shown = self.margrave(&["device", "show", name, "--json"]);
                let shown: Value = serde_json::from_slice(&shown.stdout).ok()?;
                shown["capabilities"].is_object().then_some(())
            });
        }
        running
    }

    /// A device whose runtime only pretends, but remembers what it pretends across restarts.
    pub(crate) fn simulated(&self, name: &str, start: &str) -> Running {
        let millis: u64 = start.trim_end_matches("ms").parse().unwrap_or_else(|_| {
            1000 * start.trim_end_matches('s').parse::<u64>().expect("a time such as 300ms or 2s")
        });
        let file = self.path(&format!("{name}.simulation.json"));
        let text = format!(r#"{{"start": {{"leastMillis": {millis}}}, "pull": {{"leastMillis": 50}}}}"#);
        std::fs::write(&file, text).expect("the stage's directory is writable");
        self.run_agent(
            name,
            &["--runtime", "simulated", "--simulation", file.to_str().expect("a plain path")],
        )
    }

    pub(crate) fn agent_status(&self, name: &str) -> Value {
        let output = Command::new(program("margrave-agent"))
            .args(["status", "--json", "--data"])
            .arg(self.path(name))
            .output()
            .expect("our own program starts");
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Writes a package with one Compose component per name into a directory, and adds it to the catalog.
    pub(crate) fn add_package(&self, id: &str, version: &str, components: &[(&str, &str)]) {
        let root = self.path(&format!("package-{id}-{version}"));
        let mut description = format!(
            "apiVersion: v1\nid: {id}\nmetadata:\n  name: {id}\n  version: \"{version}\"\n  catalog:\n    organization:\n      - name: Margrave tests\ndeploymentProfiles:\n  - type: compose\n    id: {id}-compose\n    components:\n"
        );
        for (name, compose) in components {
            description.push_str(&format!(
                "      - name: {name}\n        properties:\n          repository: oci://margrave/{id}/{name}\n          revision: {version}\n          timeout: 1m0s\n"
            ));
            let folder = root.join("components").join(name);
            std::fs::create_dir_all(&folder).expect("the stage's directory is writable");
            std::fs::write(folder.join("compose.yaml"), compose).expect("the stage's directory is writable");
        }
        let names: Vec<&str> = components.iter().map(|(name, _)| *name).collect();
        description.push_str(&format!(
            "parameters:\n  greeting:\n    value: hello\n    targets:\n      - pointer: GREETING\n        components: [{}]\nconfiguration:\n  sections:\n    - name: General\n      settings:\n        - parameter: greeting\n          name: Greeting\n          schema: text\n  schema:\n    - name: text\n      dataType: string\n      maxLength: 200\n",
            names.join(", ")
        ));
        std::fs::write(root.join("margo.yaml"), description).expect("the stage's directory is writable");
        let output = self.margrave(&["package", "add", root.to_str().expect("a plain path")]);
        assert!(output.status.success(), "package add: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The state of `deployment` on `device`, as the server sees it; `None` when there is no such assignment.
    pub(crate) fn assignment(&self, device: &str, deployment: &str) -> Option<Value> {
        let shown = self.json(&["device", "show", device]);
        let found = shown["assignments"].as_array()?.iter().find(|a| a["deployment"] == deployment);
        found.cloned()
    }

    pub(crate) fn wait_state(&self, device: &str, deployment: &str, state: &str) -> Value {
        wait_for(&format!("{deployment} on {device} is {state}"), || {
            self.assignment(device, deployment).filter(|a| a["state"] == state && a["current"] == true)
        })
    }

    /// What the server was told of `deployment` on `device`, oldest first.
    pub(crate) fn reports(&self, device: &str, deployment: &str) -> Vec<Value> {
        transitions(&self.json(&["deployment", "history", deployment, "--device", device]))
    }

    /// States that `deployment` went through on `device`, oldest first, repeats left out.
    pub(crate) fn history(&self, device: &str, deployment: &str) -> Vec<String> {
        let reports = self.reports(device, deployment);
        let mut states: Vec<String> =
            reports.iter().map(|report| report["state"].as_str().unwrap_or("?").to_owned()).collect();
        states.dedup();
        states
    }
}

fn transitions(shown: &Value) -> Vec<Value> {
    match shown {
        Value::Array(items) => items.iter().flat_map(transitions).collect(),
        Value::Object(map) if map.contains_key("state") => vec![shown.clone()],
        Value::Object(map) => map.values().flat_map(transitions).collect(),
        _ => vec![],
    }
}

/// A Compose file for tests that run nothing real.
pub(crate) const PRETENDED: &str = "services:\n  main:\n    image: ${MARGRAVE_REGISTRY}/pretended:1\n    environment:\n      GREETING: ${GREETING}\n";
