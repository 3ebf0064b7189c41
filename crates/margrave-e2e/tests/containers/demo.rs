//! `margrave demo` on a real engine: real containers while it runs, and nothing of it afterwards.

use std::process::Command;

use margrave_http::{Client, Limits, Origin, Request, Trust};
use serde_json::Value;

use crate::chromium::Browser;
use crate::engine::{Engine, run};
use crate::stage::{Running, program, wait_for};

fn label(project: &str) -> (&str, &str) {
    ("com.docker.compose.project", project)
}

#[test]
fn a_demo_runs_real_containers_and_leaves_nothing_behind() {
    let Some(host) = Engine::named() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let engine = Engine::new(host, directory.path().join("docker"));
    let temporary = directory.path().join("tmp");
    std::fs::create_dir(&temporary).expect("a fresh directory");
    let anywhere = "127.0.0.1:0";
    let mut command = Command::new(program("margrave"));
    command
        .args([
            "demo",
            "--json",
            "--listen",
            anywhere,
            "--device-listen",
            anywhere,
            "--local-listen",
            anywhere,
        ])
        .env("DOCKER_HOST", &engine.host)
        .env("TMPDIR", &temporary);
    let mut demo = Running::start("demo", directory.path(), &mut command);
    let told: Value = wait_for("the demo says where it is", || {
        demo.log().lines().find_map(|line| serde_json::from_str(line).ok())
    });
    let text = |key: &str| told[key].as_str().unwrap_or_else(|| panic!("no {key} in {told}")).to_owned();
    assert_eq!(told["simulated"], false, "{told}");
    assert!(text("text").contains("real containers"), "{told}");
    assert!(told["devices"].as_array().is_some_and(|devices| devices.len() >= 6), "{told}");

    let page = text("page");
    let origin = Origin::parse(&page).expect("a URL");
    let client = Client::new(Trust::PlainLoopback, origin, Limits::default()).expect("loopback");
    let link = text("signIn");
    let path = link.strip_prefix(&page).expect("the link is on the page").to_owned();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let answer = runtime.block_on(client.send(Request::get(path))).expect("the page answers");
    let good = answer.status.is_success() || answer.status.is_redirection();
    assert!(good, "{answer:?}");

    let context = text("context");
    let margrave = |arguments: &[&str]| -> Value {
        let mut command = Command::new(program("margrave"));
        let printed = run(command.args(arguments).arg("--json").env("MARGRAVE_CONTEXT", &context));
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    };
    // One without and one with a volume and a network of its own.
    match Browser::start() {
        // From the catalog to running, as a person does it.
        Some(browser) => {
            browser.open(&format!("{page}/sign-in?next=/packages"));
            browser.fill("Operator token", &text("token"));
            browser.press("Sign in");
            browser.follow("Andon board");
            browser.follow("Deploy");
            browser.choose_device("press-1");
            browser.press("See what will happen");
            browser.wait_text("h1", "What will happen");
            browser.press("Deploy");
            browser.watch();
            browser.wait_text("#devices", "INSTALLED");
            assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");
            browser.assert_calm(&[]);
        }
        None => drop(margrave(&["deploy", "andon-board", "--to", "press-1", "--wait"])),
    }
    margrave(&["deploy", "line-monitor", "--to", "press-2", "--wait"]);
    let mut projects = vec![];
    for (device, count) in [("press-1", 1), ("press-2", 2)] {
        let shown = margrave(&["device", "show", device]);
        let assignment = &shown["assignments"][0];
        assert_eq!(assignment["state"], "INSTALLED", "{shown}");
        let components = assignment["components"].as_array().expect("a list");
        assert_eq!(components.len(), count);
        let id = assignment["id"].as_str().expect("an id").replace('-', "");
        for component in components {
            projects.push(format!("mg-{id}-{}", component["name"].as_str().expect("a name")));
        }
    }
    for project in &projects {
        let containers = engine.containers(&[label(project)]);
        assert_eq!(containers.len(), 1, "{project}");
        assert_eq!(engine.inspect(&containers[0], "{{.State.Health.Status}}"), "healthy");
    }
    let volumes: usize = projects.iter().map(|project| engine.volumes(label(project)).len()).sum();
    assert!(volumes > 0, "a sample keeps data");
    let registry = page.strip_prefix("http://").expect("the page is on loopback").to_owned();
    assert_eq!(engine.images(&registry).len(), 1);

    let status = demo.end_with("INT");
    assert_eq!(status.code(), Some(0), "{}", demo.log());
    for project in &projects {
        assert_eq!(engine.containers(&[label(project)]), [""; 0]);
        assert_eq!(engine.networks(label(project)), [""; 0]);
        assert_eq!(engine.volumes(label(project)), [""; 0]);
    }
    assert_eq!(engine.images(&registry), [""; 0]);
    let left: Vec<_> = std::fs::read_dir(&temporary).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
}
