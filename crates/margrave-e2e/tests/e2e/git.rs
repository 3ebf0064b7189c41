//! A device's Git repository with real processes: switched on at the command line, and a server killed at bad moments.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::stage::{PRETENDED, Stage, installed, wait_for};

/// A person with the ordinary client, who was given an address, a token and an authority.
struct Person {
    home: PathBuf,
    url: String,
}

impl Person {
    /// What `margrave device git` said, as a URL with the token in it.
    fn new(stage: &Stage, shown: &Value) -> Person {
        let text = |key: &str| shown[key].as_str().expect("a text").to_owned();
        let url = text("url").replace("https://", &format!("https://x:{}@", text("token")));
        Person { home: stage.path(""), url }
    }

    fn run(&self, directory: &Path, arguments: &[&str]) -> Output {
        Command::new("git")
            .env("HOME", &self.home)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_SSL_CAINFO", self.home.join("authority.pem"))
            .current_dir(directory)
            .args(arguments)
            .output()
            .expect("git starts")
    }

    fn git(&self, directory: &Path, arguments: &[&str]) -> String {
        let output = self.run(directory, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {arguments:?}: {said}");
        String::from_utf8(output.stdout).expect("plain text").trim_end().to_owned()
    }

    fn clone(&self, name: &str) -> PathBuf {
        self.git(&self.home, &["clone", "-q", &self.url, name]);
        self.home.join(name)
    }

    fn subjects(&self, tree: &Path) -> Vec<String> {
        self.git(tree, &["log", "--reverse", "--format=%s"]).lines().map(str::to_owned).collect()
    }
}

fn version(stage: &Stage) -> u64 {
    stage.json(&["device", "show", "line-1"])["manifestVersion"].as_u64().expect("a number")
}

/// A device with something to run and a repository.
fn prepared(stage: &Stage) -> (crate::stage::Running, Person) {
    stage.join("line-1");
    let agent = stage.simulated("line-1", "10ms");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let authority = stage.path("authority.pem");
    let shown =
        stage.json(&["device", "git", "line-1", "--authority", authority.to_str().expect("a plain path")]);
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    (agent, Person::new(stage, &shown))
}

fn greet(stage: &Stage, greeting: &str) {
    stage.json(&["deployment", "update", "hello", "--set", &format!("greeting={greeting}")]);
}

#[test]
fn an_operator_gives_a_device_a_repository_and_takes_it_away() {
    if installed("git").is_none() {
        return;
    }
    let stage = Stage::start();
    let (_agent, person) = prepared(&stage);
    let tree = person.clone("tree");
    greet(&stage, "two");
    person.git(&tree, &["pull", "-q", "--ff-only"]);
    assert_eq!(person.subjects(&tree).last(), Some(&format!("manifest {}", version(&stage))));
    // The device itself is served as before, and the two never differ.
    stage.wait_state("line-1", "hello", "INSTALLED");

    let words = |arguments: &[&str]| {
        let output = stage.margrave(arguments);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let (code, said) = words(&["device", "git", "line-1"]);
    assert!(code == Some(0) && said.contains("--rotate") && !said.contains("mgg_"), "{said}");
    let (code, said) = words(&["device", "git", "line-1", "--show"]);
    assert!(code == Some(0) && said.contains("a token of the operator"), "{said}");
    let (code, said) = words(&["device", "git", "line-1", "--rotate", "--grace", "1h"]);
    assert!(code == Some(0) && said.contains("mgg_"), "{said}");
    person.git(&tree, &["pull", "-q", "--ff-only"]);
    words(&["device", "git", "line-1", "--rotate"]);
    assert!(!person.run(&tree, &["pull", "-q"]).status.success());
    let (code, said) = words(&["device", "git", "line-1", "--off"]);
    assert!(code == Some(0) && said.contains("closed"), "{said}");
    assert_eq!(words(&["device", "git", "line-1", "--show"]).0, Some(1));
    assert_eq!(words(&["device", "git", "line-1", "--off"]).0, Some(1));
}

/// A `git` that waits before it makes commits, for as long as the file `hold` is there.
fn held_git(programs: &Path, real: &Path) {
    let script = format!(
        "#!/bin/sh\nfor word in \"$@\"; do\n  if [ \"$word\" = fast-import ]; then\n    \
         while [ -e '{0}/hold' ]; do : > '{0}/waits'; /bin/sleep 0.05; done\n  fi\ndone\nexec '{1}' \"$@\"\n",
        programs.display(),
        real.display()
    );
    let file = programs.join("git");
    std::fs::write(&file, script).expect("the stage's directory is writable");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("our own file");
}

#[test]
fn a_server_killed_between_publication_and_commit_commits_after_all_and_once() {
    let Some(real) = installed("git") else { return };
    let mut stage = Stage::start_with_programs("programs", |programs| held_git(programs, &real));
    let (_agent, person) = prepared(&stage);
    let tree = person.clone("tree");
    let (hold, waits) = (stage.path("programs/hold"), stage.path("programs/waits"));
    for round in ["one", "two", "three"] {
        std::fs::write(&hold, "").expect("the stage's directory is writable");
        // Acknowledged, and more than one of them.
        greet(&stage, round);
        greet(&stage, &format!("{round} again"));
        wait_for("git was told to commit", || waits.exists().then_some(()));
        stage.server().kill();
        std::fs::remove_file(&hold).expect("our own file");
        std::fs::remove_file(&waits).expect("our own file");
        stage.start_server();
        person.git(&tree, &["pull", "-q", "--ff-only"]);
        let wanted: Vec<String> =
            (1..=version(&stage)).map(|version| format!("manifest {version}")).collect();
        let subjects = person.subjects(&tree);
        assert!(wanted.ends_with(&subjects), "{subjects:?}");
        assert_eq!(subjects.last(), wanted.last());
    }
    // Killed at any moment, while many are published: whatever was acknowledged is there, in order, once.
    for round in 0..3 {
        greet(&stage, &format!("greeting {round}"));
        stage.server().kill();
        stage.start_server();
    }
    person.git(&tree, &["pull", "-q", "--ff-only"]);
    let newest = version(&stage);
    let subjects = person.subjects(&tree);
    let oldest = newest + 1 - subjects.len() as u64;
    assert_eq!(subjects, (oldest..=newest).map(|version| format!("manifest {version}")).collect::<Vec<_>>());
    let fresh = person.clone("fresh");
    assert_eq!(person.git(&fresh, &["rev-parse", "HEAD"]), person.git(&tree, &["rev-parse", "HEAD"]));
    let events = stage.margrave(&["events", "--last", "1000", "--json"]);
    let events = String::from_utf8_lossy(&events.stdout).into_owned();
    assert!(events.contains("device.git") && !events.contains("device.git-rebuilt"), "{events}");
}

#[test]
fn a_machine_without_git_says_so_and_nothing_else_suffers() {
    let stage = Stage::start_with_programs("no-programs", |_| {});
    stage.join("line-1");
    let _agent = stage.simulated("line-1", "10ms");
    let output = stage.margrave(&["device", "git", "line-1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("install the package git"), "{said}");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    stage.json(&["deploy", "hello", "--to", "line-1"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
}
