//! A real agent whose desired state comes from somebody's Git repository, served by git's own `http-backend`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use margrave_core::digest::Digest;
use margrave_core::id::AssignmentId;
use margrave_core::manifest::{Blob, Entry, Manifest};
use margrave_wire::g2;

use crate::foreign::patience::picture;
use crate::liar::{Heard, LIFETIME, Liar, MANIFEST, ONE, Reply, TWO, document, now, text};
use crate::stage::{installed, program, wait_for};

const SIMULATED: [&str; 2] = ["--runtime", "simulated"];

/// A repository in the form that a server of ours has, behind HTTPS and a token.
struct Repository {
    liar: Liar,
    git: PathBuf,
    token: Arc<Mutex<String>>,
}

impl Repository {
    fn start() -> Option<Self> {
        let git = installed("git")?;
        let liar = Liar::start();
        let token = Arc::new(Mutex::new("secret-one".to_owned()));
        let repository = Repository { liar, git, token };
        std::fs::create_dir(repository.tree()).expect("the test's directory is writable");
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        let (root, git, token) = (repository.liar.path(""), repository.git.clone(), repository.token.clone());
        repository.liar.twist_web(move |heard, _| {
            let wanted = format!("margrave:{}", token.lock().expect("nobody panics"));
            let shown = heard.header("authorization").and_then(|header| header.strip_prefix("Basic "));
            if shown != Some(&base64(wanted.as_bytes())) {
                return Some(Reply::status(401).with("WWW-Authenticate", "Basic realm=\"git\""));
            }
            Some(backend(&git, &root, heard))
        });
        Some(repository)
    }

    fn tree(&self) -> PathBuf {
        self.liar.path("repository")
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.git)
            .args(["-c", "user.name=test", "-c", "user.email=test@example.org"])
            .args(arguments)
            .current_dir(self.tree())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .expect("git starts");
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// One commit with a manifest of these documents; `files` are what lies in the repository.
    fn commit(&self, version: u64, listed: &[(&str, &str)], files: &[(&str, &str)]) {
        let entries = listed.iter().map(|(id, text)| Entry {
            id: AssignmentId::parse(id).expect("an id"),
            document: Blob { digest: Digest::of(text.as_bytes()), size: None },
        });
        let bundle = (!listed.is_empty()).then(|| Blob { digest: Digest::of(b"not in Git"), size: None });
        let manifest = Manifest::new(version, bundle, entries.collect()).expect("a manifest");
        let folder = self.tree().join("deployments");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).expect("the test's directory is writable");
        }
        std::fs::create_dir(&folder).expect("the test's directory is writable");
        std::fs::write(self.tree().join("manifest.json"), g2::manifest::write(&manifest))
            .expect("it is writable");
        for (id, text) in files {
            std::fs::write(folder.join(format!("{id}.yaml")), text).expect("it is writable");
        }
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", &format!("manifest {version}")]);
    }

    fn honest(&self, version: u64, documents: &[(&str, &str)]) {
        self.commit(version, documents, documents);
    }

    fn join(&self, token: &str, path: Option<&str>) -> Output {
        self.liar.issue(now(), LIFETIME);
        let bundle = self.liar.write("bundle.json", self.liar.bundle_json());
        let authority = self.liar.write("web.pem", &self.liar.web_authority);
        let mut command = Command::new(program("margrave-agent"));
        command.args(["join", &self.liar.url, "--svid"]).arg(self.liar.path("svid.pem")).arg("--key");
        command.arg(self.liar.path("key.pem")).args(["--bundle", text(&bundle), "--replace"]);
        command.args(["--git-url", &format!("{}/repository", self.liar.web_url), "--git-token", token]);
        command.args(["--git-ca", text(&authority)]).arg("--data").arg(self.liar.path("line-1"));
        if let Some(path) = path {
            command.env("PATH", path);
        }
        command.output().expect("our own program starts")
    }

    fn joined(&self) {
        let output = self.join("secret-one", None);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for piece in bytes.chunks(3) {
        let number =
            piece.iter().fold(0u32, |n, byte| (n << 8) | u32::from(*byte)) << (8 * (3 - piece.len()));
        for at in 0..4 {
            let letter = LETTERS[((number >> (18 - 6 * at)) & 63) as usize];
            out.push(if at <= piece.len() { char::from(letter) } else { '=' });
        }
    }
    out
}

/// git's own server program, spoken to as CGI.
fn backend(git: &Path, root: &Path, heard: &Heard) -> Reply {
    let (path, query) = heard.path.split_once('?').unwrap_or((&heard.path, ""));
    let mut command = Command::new(git);
    command.arg("http-backend").env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs([
        ("GIT_HTTP_EXPORT_ALL", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("REMOTE_USER", "margrave"),
    ]);
    command.env("GIT_PROJECT_ROOT", root).env("PATH_INFO", path).env("QUERY_STRING", query);
    command.env("REQUEST_METHOD", &heard.method).env("CONTENT_LENGTH", heard.body.len().to_string());
    for (header, variable) in [
        ("content-type", "CONTENT_TYPE"),
        ("git-protocol", "HTTP_GIT_PROTOCOL"),
        ("content-encoding", "HTTP_CONTENT_ENCODING"),
    ] {
        command.env(variable, heard.header(header).unwrap_or_default());
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("git starts");
    child.stdin.take().expect("a pipe").write_all(&heard.body).expect("git reads");
    let output = child.wait_with_output().expect("git ends").stdout;
    let end = output.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    let mut reply = Reply::of(output[end + 4..].to_vec());
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        match line.split_once(": ") {
            Some(("Status", status)) => reply.status = status[..3].parse().expect("a status"),
            Some(("Content-Type", value)) => reply = reply.with("Content-Type", value),
            _ => {}
        }
    }
    reply
}

#[test]
fn desired_state_comes_from_a_repository_and_is_judged_like_any_other() {
    let Some(repository) = Repository::start() else { return };
    let liar = &repository.liar;
    let (one, two) = (document(ONE, "one", "hello"), document(TWO, "two", "hello"));
    repository.honest(1, &[(ONE, &one)]);
    repository.joined();
    assert_eq!(liar.status()["form"], "git");
    let mut agent = liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));
    assert!(
        liar.heard().iter().any(|heard| heard.method == "PUT"),
        "capabilities go to the device interface"
    );
    assert!(liar.heard().iter().all(|heard| heard.path != MANIFEST), "the manifest is not polled there");

    repository.honest(2, &[(ONE, &one), (TWO, &two)]);
    wait_for("version 2 is installed", || liar.is_installed(2).then_some(()));
    let before = liar.status()["deployments"].clone();

    // Files that are not what the manifest promises, or not there.
    repository.commit(3, &[(ONE, &one), (TWO, "id: x")], &[(ONE, &one), (TWO, &two)]);
    wait_for("a wrong document is refused", || liar.trouble().contains("digest").then_some(()));
    repository.commit(4, &[(ONE, &one), (TWO, "id: y")], &[(ONE, &one)]);
    wait_for("a missing document is told", || {
        liar.trouble().contains("is not in the repository").then_some(())
    });
    // History rewritten to an older manifest.
    repository.git(&["reset", "--quiet", "--hard", "HEAD~3"]);
    wait_for("an older manifest is refused", || liar.trouble().contains("older").then_some(()));
    let status = liar.status();
    assert_eq!((&status["manifestVersion"], &status["deployments"]), (&2.into(), &before));

    // Killed, and the branch gone on meanwhile.
    agent.kill();
    repository.honest(5, &[(TWO, &two)]);
    let _agent = liar.run_agent(&SIMULATED);
    wait_for("version 5 is in force", || liar.is_installed(5).then_some(()));
}

#[test]
fn a_damaged_repository_is_fetched_anew_and_an_idle_one_writes_nothing() {
    let Some(repository) = Repository::start() else { return };
    let liar = &repository.liar;
    let one = document(ONE, "one", "hello");
    repository.honest(1, &[(ONE, &one)]);
    repository.joined();
    let _agent = liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed and told", || {
        (liar.is_installed(1) && liar.status()["reportsWaiting"] == 0).then_some(())
    });
    let before = picture(&liar.path("line-1"));
    let asked = liar.heard_web().len();
    wait_for("many looks at the branch", || (liar.heard_web().len() > asked + 30).then_some(()));
    assert_eq!(picture(&liar.path("line-1")), before, "something was written");

    // Every file of the repository, cut in half.
    let mut folders = vec![liar.path("line-1/git/desired.git")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("it is there").flatten() {
            let metadata = entry.metadata().expect("it is there");
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                let bytes = std::fs::read(entry.path()).expect("it is there");
                std::fs::remove_file(entry.path()).expect("it is ours");
                std::fs::write(entry.path(), &bytes[..bytes.len() / 2]).expect("it is ours");
            }
        }
    }
    let two = document(TWO, "two", "hello");
    repository.honest(2, &[(ONE, &one), (TWO, &two)]);
    wait_for("version 2 is installed", || liar.is_installed(2).then_some(()));
}

#[test]
fn a_token_that_is_refused_a_server_that_is_away_and_a_missing_git_are_each_told() {
    let Some(repository) = Repository::start() else { return };
    let liar = &repository.liar;
    repository.honest(1, &[(ONE, &document(ONE, "one", "hello"))]);
    let output = repository.join("secret-one", Some("/nonexistent"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("git is not installed"), "{said}");

    repository.joined();
    let agent = liar.run_agent(&SIMULATED);
    wait_for("version 1 is installed", || liar.is_installed(1).then_some(()));
    *repository.token.lock().expect("nobody panics") = "secret-two".to_owned();
    wait_for("a refused token is told", || liar.trouble().contains("token").then_some(()));
    *repository.token.lock().expect("nobody panics") = "secret-one".to_owned();
    wait_for("it works again", || liar.trouble().is_empty().then_some(()));
    assert_eq!(liar.status()["deployments"][0]["state"], "INSTALLED");
    drop(agent);
    let files = std::fs::read_to_string(liar.path("line-1.log")).expect("the agent's log");
    assert!(!files.contains("secret-one"), "a token must not be logged");
}
