//! What is wanted, as files at the command line: got, changed, applied and looked back at, with secrets in them.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::stage::{PRETENDED, Running, Stage, installed, program};

const SECRET: &str = "hunter2-and-more";

/// A device that runs `hello` with a greeting of its own.
fn running() -> (Stage, Running) {
    let stage = Stage::start();
    stage.join("line-1");
    let agent = stage.simulated("line-1", "10ms");
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    stage.json(&["deploy", "hello", "--to", "line-1", "--set", "greeting=morning"]);
    stage.wait_state("line-1", "hello", "INSTALLED");
    (stage, agent)
}

/// What a command says, data and words, when it ends with `code`.
#[track_caller]
fn ends(stage: &Stage, code: i32, arguments: &[&str]) -> (String, String) {
    let output = stage.margrave(arguments);
    let data = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "margrave {}:\n{data}{words}", arguments.join(" "));
    (data, words)
}

/// The file of `hello`, as somebody gets it who wants to change it.
#[track_caller]
fn got(stage: &Stage) -> String {
    ends(stage, 0, &["get", "deployment", "hello", "-o", "yaml"]).0
}

/// A file of somebody at the command line.
fn saved(stage: &Stage, name: &str, text: &str) -> String {
    let path = stage.path(name);
    std::fs::write(&path, text).expect("the stage's directory is writable");
    path.to_str().expect("a plain path").to_owned()
}

/// The commit that is applied.
fn head(stage: &Stage) -> Value {
    let commit = stage.json(&["intent", "show"])["commit"].clone();
    assert!(commit.is_string(), "{commit}");
    commit
}

fn greeting(stage: &Stage) -> Value {
    stage.json(&["get", "deployment", "hello"])["spec"]["parameters"]["greeting"].clone()
}

fn manifest(stage: &Stage) -> Value {
    stage.json(&["device", "show", "line-1"])["manifestVersion"].clone()
}

/// A deployment's file as people write it.
fn deployment(name: &str, package: &str, greeting: &str) -> String {
    format!(
        "apiVersion: margrave/v1\nkind: Deployment\nmetadata:\n  name: {name}\nspec:\n  package: {package}\n  version: \"1.0.0\"\n  parameters:\n    greeting: {greeting}\n  targets:\n    devices: [line-1]\n"
    )
}

#[test]
fn a_file_is_got_changed_compared_rehearsed_and_applied() {
    let (stage, _agent) = running();
    assert!(ends(&stage, 0, &["get", "deployment"]).0.contains("deployments/hello.yaml"));
    let (_, words) = ends(&stage, 1, &["get", "deployment", "nobody", "-o", "yaml"]);
    assert!(words.contains("nothing is said in deployments/nobody.yaml"), "{words}");
    let missing = stage.path("missing.yaml");
    let (_, words) = ends(&stage, 2, &["apply", "-f", missing.to_str().expect("a plain path")]);
    assert!(words.contains("missing.yaml cannot be read"), "{words}");

    let before = got(&stage);
    assert!(before.contains("    greeting: morning\n") && before.contains("\n# margrave-seen: sha256:"));
    let file = saved(&stage, "hello.yaml", &before);
    assert_eq!(ends(&stage, 0, &["diff", "-f", &file]).0, "");

    saved(&stage, "hello.yaml", &before.replace("morning", "noon"));
    let (data, _) = ends(&stage, 1, &["diff", "-f", &file]);
    for line in ["--- a/deployments/hello.yaml", "-    greeting: morning", "+    greeting: noon"] {
        assert!(data.lines().any(|found| found == line), "no {line} in {data}");
    }

    // A rehearsal says what would happen, and nothing does.
    let stood = (head(&stage), manifest(&stage));
    let (data, words) = ends(&stage, 0, &["plan", "-f", &file]);
    assert!(words.contains("1 file would change: deployments/hello.yaml"), "{words}");
    assert!(data.contains("line-1") && data.contains("1.0.0 ("), "{data}");
    let planned = stage.json(&["plan", "-f", &file]);
    assert_eq!(planned["files"], json!(["deployments/hello.yaml"]), "{planned}");
    let changes = planned["plan"]["changes"].as_array().expect("a list");
    assert_eq!((changes.len(), &changes[0]["device"]), (1, &json!("line-1")), "{planned}");
    assert_ne!(changes[0]["from"]["document"], changes[0]["to"]["document"], "{planned}");
    assert_eq!((head(&stage), manifest(&stage)), stood);
    assert_eq!(got(&stage), before);

    let (data, words) = ends(&stage, 0, &["apply", "-f", &file, "--message", "Greet at noon"]);
    assert_eq!(data, "deployments/hello.yaml\n");
    let applied = head(&stage);
    assert!(words.contains(applied.as_str().expect("a commit")), "{words}");
    assert_ne!(applied, stood.0);
    assert_eq!(stage.json(&["intent", "show"])["message"], "Greet at noon");
    assert_eq!(greeting(&stage), "noon");
    stage.wait_state("line-1", "hello", "INSTALLED");
    assert!(manifest(&stage).as_u64() > stood.1.as_u64());

    // From then on it is as it is wanted, and saying so again changes nothing.
    assert_eq!(ends(&stage, 0, &["diff", "-f", &file]).0, "");
    for command in ["apply", "plan"] {
        let (data, words) = ends(&stage, 0, &[command, "-f", &file]);
        assert!(data.is_empty() && words.contains("Everything is wanted so already"), "{data}{words}");
    }
    assert_eq!(head(&stage), applied);
}

#[test]
fn a_file_that_somebody_else_changed_meanwhile_is_not_applied() {
    let (stage, _agent) = running();
    let mine = got(&stage).replace("morning", "night");
    let file = saved(&stage, "hello.yaml", &mine);
    stage.json(&["deployment", "update", "hello", "--set", "greeting=evening"]);
    let (theirs, commit) = (got(&stage), head(&stage));

    let (data, words) = ends(&stage, 1, &["apply", "-f", &file]);
    assert!(data.is_empty(), "{data}");
    assert!(words.contains("deployments/hello.yaml was changed since you got it"), "{words}");
    assert_eq!((got(&stage), head(&stage)), (theirs.clone(), commit));
    assert_eq!(greeting(&stage), "evening");

    // Got anew, it is taken.
    saved(&stage, "hello.yaml", &theirs.replace("evening", "dusk"));
    ends(&stage, 0, &["apply", "-f", &file]);
    assert_eq!(greeting(&stage), "dusk");
    // So is one that does not say which one it was, as those in a clone.
    let unmarked: Vec<&str> = mine.lines().filter(|line| !line.starts_with("# margrave-seen: ")).collect();
    saved(&stage, "hello.yaml", &unmarked.join("\n"));
    ends(&stage, 0, &["apply", "-f", &file]);
    assert_eq!(greeting(&stage), "night");
    // What is not there any more cannot be what was seen.
    let last = got(&stage).replace("night", "dawn");
    stage.json(&["deployment", "remove", "hello", "--yes"]);
    saved(&stage, "hello.yaml", &last);
    let (_, words) = ends(&stage, 1, &["apply", "-f", &file]);
    assert!(words.contains("was changed since you got it"), "{words}");
    ends(&stage, 1, &["get", "deployment", "hello"]);
}

#[test]
fn a_mistake_in_the_second_document_keeps_the_first_back() {
    let (stage, _agent) = running();
    let (before, commit, version) = (got(&stage), head(&stage), manifest(&stage));
    let first = before.replace("morning", "noon");
    let device = |spec: &str| {
        format!("apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: line-1\nspec:\n  {spec}\n")
    };
    let mistakes = [
        (device("colour: red"), ["two.yaml:", "unknown field `colour`", "(resource)"]),
        (first.clone(), ["two.yaml:", "deployments/hello.yaml is said twice", "(resource)"]),
        (
            deployment("other", "nothing", "hi"),
            ["two.yaml:", "nothing 1.0.0 is not in the catalog", "(PK-010)"],
        ),
    ];
    for (second, says) in mistakes {
        let file = saved(&stage, "two.yaml", &format!("{first}---\n{second}"));
        for command in ["plan", "apply"] {
            let (data, words) = ends(&stage, 1, &[command, "-f", &file]);
            assert!(data.is_empty(), "{data}");
            for part in says {
                assert!(words.contains(part), "{command} does not say {part}: {words}");
            }
        }
        assert_eq!((got(&stage), head(&stage)), (before.clone(), commit.clone()));
    }
    assert_eq!(manifest(&stage), version);

    // Mended, both are taken, in one commit.
    let file = saved(&stage, "two.yaml", &format!("{first}---\n{}", device("labels: {line: press}")));
    let (data, _) = ends(&stage, 0, &["apply", "-f", &file]);
    assert_eq!(data, "deployments/hello.yaml\ndevices/line-1.yaml\n");
    assert_eq!(greeting(&stage), "noon");
    assert_eq!(stage.json(&["device", "show", "line-1"])["labels"]["line"], "press");
    assert_eq!(stage.json(&["intent", "log"])[1]["commit"], commit);
    assert_eq!(ends(&stage, 0, &["diff", "-f", &file]).0, "");
}

#[test]
fn every_kind_of_file_has_a_schema_without_a_server() {
    for kind in ["fleet", "package", "deployment", "device"] {
        let output = Command::new(program("margrave")).args(["schema", kind]).output();
        let output = output.expect("our own program starts");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let word = printed["properties"]["kind"]["const"].as_str().unwrap_or_default();
        assert!(word.eq_ignore_ascii_case(kind), "{kind}: {printed}");
        let published = format!("../../docs/schemas/{kind}.schema.json");
        let published = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(published));
        let published: Value =
            serde_json::from_slice(&published.expect("it is published")).expect("it is JSON");
        assert_eq!(printed, published, "{kind}");
    }
}

#[test]
fn an_earlier_moment_is_shown_as_it_was_and_what_came_since() {
    let (stage, _agent) = running();
    stage.add_package("hello", "1.1.0", &[("main", PRETENDED)]);
    let (then, commit) = (jiff::Timestamp::now().to_string(), head(&stage));
    stage.json(&["deployment", "update", "hello", "--version", "1.1.0"]);
    stage.wait_state("line-1", "hello", "INSTALLED");

    let installed = json!({ "INSTALLED": 1 });
    for (moment, version) in [(then.as_str(), "1.0.0"), ("now", "1.1.0")] {
        let shown = stage.json(&["status", "--at", moment]);
        assert_eq!(shown["deployments"].as_array().map(Vec::len), Some(1), "{shown}");
        let hello = &shown["deployments"][0];
        assert_eq!((&hello["name"], &hello["reported"]), (&json!("hello"), &installed), "{shown}");
        assert_eq!(hello["wanted"]["version"], version, "{shown}");
        assert_eq!(shown["commit"]["commit"] == commit, moment == then, "{shown}");
        let (data, words) = ends(&stage, 0, &["status", "--at", moment]);
        assert!(data.contains(&format!("hello {version}")) && data.contains("1 INSTALLED"), "{data}");
        assert!(words.contains("by commit"), "{words}");
    }

    let (data, words) = ends(&stage, 1, &["diff", "--from", &then]);
    for line in ["--- a/deployments/hello.yaml", "-  version: \"1.0.0\"", "+  version: \"1.1.0\""] {
        assert!(data.lines().any(|found| found == line), "no {line} in {data}");
    }
    assert_eq!(data.matches("--- a/").count(), 1, "{data}");
    let short = &commit.as_str().expect("a commit")[..10];
    assert!(words.contains(&format!("from {short}")), "{words}");
    assert_eq!(ends(&stage, 1, &["diff", "--from", &then, "--to", "now"]).0, data);
    assert_eq!(ends(&stage, 0, &["diff", "--from", &then, "--to", &then]).0, "");

    for (moment, says) in
        [("monday", "is no moment"), ("2999-01-01", "lies ahead"), ("2001-01-01", "known since later")]
    {
        for command in [["status", "--at"], ["diff", "--from"]] {
            let (data, words) = ends(&stage, 1, &[command[0], command[1], moment]);
            assert!(data.is_empty() && words.contains(says), "{moment}: {data}{words}");
        }
    }
    let (_, words) = ends(&stage, 1, &["diff", "--from", "now", "--to", &then]);
    assert!(words.contains("say the earlier one first"), "{words}");
    ends(&stage, 2, &["diff"]);
}

#[test]
fn a_sealed_secret_reaches_its_device_and_is_clear_nowhere_else() {
    if installed("git").is_none() {
        return;
    }
    let (mut stage, agent) = running();
    let clear = saved(&stage, "password.txt", &format!("{SECRET}\n"));
    let (printed, _) = ends(&stage, 0, &["secret", "seal", "hello", "greeting", "--file", &clear]);
    let sealed = printed.strip_prefix("secret:\n  sealed: ").expect("as it goes into a file").trim_end();
    assert!(sealed.starts_with("mgs1."), "{printed}");

    let value = format!("greeting:\n      {}", printed.trim_end().replace('\n', "\n      "));
    let file = saved(&stage, "hello.yaml", &got(&stage).replace("greeting: morning", &value));
    let then = jiff::Timestamp::now().to_string();
    let mut said = vec![
        ends(&stage, 0, &["plan", "-f", &file]),
        ends(&stage, 1, &["diff", "-f", &file]),
        ends(&stage, 0, &["apply", "-f", &file]),
    ];
    stage.wait_state("line-1", "hello", "INSTALLED");
    assert_eq!(greeting(&stage), json!({ "secret": { "sealed": sealed } }));
    let documents = std::fs::read_dir(stage.path("line-1/documents")).expect("the agent keeps documents");
    let documents = documents.flatten().map(|entry| std::fs::read(entry.path()).unwrap_or_default());
    let documents: Vec<String> =
        documents.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect();
    assert!(documents.iter().any(|text| text.contains(SECRET)), "the device has no document with it");

    // Elsewhere it does not open.
    let moved = deployment("other", "hello", &format!("{{secret: {{sealed: {sealed}}}}}"));
    let moved = ends(&stage, 1, &["apply", "-f", &saved(&stage, "other.yaml", &moved)]);
    assert!(moved.1.contains("does not open") && moved.1.contains("(secret)"), "{}", moved.1);
    said.push(moved);

    let objects = Command::new("git")
        .env("HOME", stage.path(""))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .arg("--git-dir")
        .arg(stage.path("server/intent.git"))
        .args(["cat-file", "--batch-all-objects", "--batch"])
        .output()
        .expect("git starts");
    assert!(objects.status.success(), "{}", String::from_utf8_lossy(&objects.stderr));
    let repository = String::from_utf8_lossy(&objects.stdout).into_owned();
    assert!(repository.contains(sealed), "the repository holds what is wanted");

    for arguments in [
        &["get", "deployment", "hello", "-o", "yaml"][..],
        &["deployment", "show", "hello"],
        &["deployment", "show", "hello", "--json"],
        &["device", "show", "line-1", "--json"],
        &["diff", "--from", &then, "--json"],
        &["audit", "--json"],
        &["events", "--last", "1000", "--json"],
    ] {
        let output = stage.margrave(arguments);
        assert!(!output.stdout.is_empty(), "{arguments:?}: {output:?}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        said.push((text(&output.stdout), text(&output.stderr)));
    }
    said.extend([(repository, String::new()), (stage.server().log(), agent.log())]);
    for (data, words) in &said {
        assert!(!data.contains(SECRET) && !words.contains(SECRET), "the secret is in {data}{words}");
    }
}
