//! Images by digest: what was published is what runs, on every device, whatever became of a tag since.

use std::path::Path;

use serde_json::Value;

use crate::plant::Plant;
use crate::stage::wait_for;

const COMPOSE: &str = r#"services:
  web:
    image: ${MARGRAVE_REGISTRY}/e2e/moving:1
    command: ["sh", "-c", "exec sleep 1000"]
    environment: {GREETING: "${GREETING}"}
    stop_signal: SIGKILL
"#;

/// Gives the tag to an image that says this of itself.
fn push(plant: &Plant, word: &str) {
    plant.push_with("e2e/moving:1", |root: &Path| {
        std::fs::write(root.join("which"), word).expect("the stage's directory is writable");
    });
}

fn image(plant: &Plant, package: &str) -> Value {
    plant.json(&["package", "show", package])["images"][0].clone()
}

#[test]
fn pk_053_devices_run_what_was_published_whatever_the_tag_means_by_then() {
    let Some(plant) = Plant::start() else { return };
    push(&plant, "first");
    plant.add_package("hello", "1.0.0", &[("main", COMPOSE)]);
    let pinned = image(&plant, "hello");
    let digest = pinned["digest"].as_str().unwrap_or_else(|| panic!("it is pinned: {pinned}")).to_owned();
    push(&plant, "second");
    // On the device, too, somebody pulled what the tag means now.
    let tag = format!("{}/e2e/moving:1", plant.registry());
    plant.engine.docker(&["pull", &tag]);

    let other = format!("{}-b", plant.device);
    plant.join(&other);
    let _agents = [plant.agent(), plant.run_agent(&other, &["--engine", &plant.engine.host])];
    wait_for("both said what they are", || {
        let said = |device: &str| plant.json(&["device", "show", device])["capabilities"].is_object();
        (said(&plant.device) && said(&other)).then_some(())
    });
    let directory = plant.path("change.yaml");
    let change = format!(
        "apiVersion: margrave/v1\nkind: Deployment\nmetadata: {{name: hello}}\nspec:\n  package: hello\n  version: 1.0.0\n  \
         targets: {{devices: [{}, {other}]}}\n",
        plant.device
    );
    std::fs::write(&directory, change).expect("the stage's directory is writable");
    let plan = plant.json(&["plan", "-f", directory.to_str().expect("a plain path")]);
    let plan = if plan["plan"].is_object() { plan["plan"].clone() } else { plan };
    let bytes = plan["fetches"][0]["bytes"].as_u64().unwrap_or_else(|| panic!("bytes in {plan}"));
    let layers = pinned["bytes"]["any"].as_u64().unwrap_or_else(|| panic!("sizes in {pinned}"));
    assert!(bytes > layers * 2, "{bytes} for two devices with an image of {layers}");

    plant.json(&["deploy", "hello", "--to", &plant.device, "--to", &other]);
    for device in [&plant.device, &other] {
        plant.wait_state(device, "hello", "INSTALLED");
    }
    let containers = |device: &str| plant.engine.containers(&[(crate::plant::LABEL_AGENT, device)]);
    let which = |device: &str| {
        let found = containers(device);
        assert_eq!(found.len(), 1, "{found:?}");
        plant.engine.exec(&found[0], "cat /which")
    };
    assert_eq!((which(&plant.device), which(&other)), ("first".to_owned(), "first".to_owned()));
    let run = plant.engine.inspect(&containers(&plant.device)[0], "{{.Config.Image}}");
    assert_eq!(run, format!("{}/{}", plant.registry(), plant.exact_image("hello")));

    // Mended with the same, too.
    let before = containers(&plant.device);
    plant.engine.docker(&["rm", "-f", &before[0]]);
    wait_for("it is mended", || {
        containers(&plant.device).iter().any(|now| !before.contains(now)).then_some(())
    });
    plant.wait("hello", "INSTALLED");
    assert_eq!(which(&plant.device), "first");

    // A new version means what the tag means when it is published.
    plant.add_package("hello", "2.0.0", &[("main", COMPOSE)]);
    assert_ne!(image(&plant, "hello@2.0.0")["digest"], digest);
    plant.json(&["deployment", "update", "hello", "--version", "2.0.0"]);
    for device in [&plant.device, &other] {
        wait_for("it runs the second", || {
            let shown = plant.assignment(device, "hello")?;
            (shown["state"] == "INSTALLED" && shown["version"] == "2.0.0" && shown["current"] == true)
                .then_some(())
        });
    }
    assert_eq!((which(&plant.device), which(&other)), ("second".to_owned(), "second".to_owned()));
    plant.engine.clear_agent(&other);
}

#[test]
fn a_digest_that_is_nowhere_is_a_clear_failure_and_the_tag_does_not_step_in() {
    let Some(plant) = Plant::start() else { return };
    let _agent = plant.agent();
    plant.add_package("hello", "1.0.0", &[("main", COMPOSE)]);
    let unpinned = image(&plant, "hello");
    assert!(
        unpinned["unpinned"].as_str().is_some_and(|why| why.contains("push it there first")),
        "{unpinned}"
    );
    push(&plant, "here");
    let gone = format!("sha256:{}", "0".repeat(64));
    let reference =
        plant.json(&["package", "show", "hello"])["reference"].as_str().expect("a text").to_owned();
    let file = plant.path("package.yaml");
    let text = format!(
        "apiVersion: margrave/v1\nkind: Package\nmetadata: {{id: hello, version: 1.0.0}}\nspec:\n  reference: {reference}\n  \
         images:\n    ${{MARGRAVE_REGISTRY}}/e2e/moving:1: {gone}\n"
    );
    std::fs::write(&file, text).expect("the stage's directory is writable");
    let applied = plant.margrave(&["apply", "-f", file.to_str().expect("a plain path")]);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    plant.deploy("hello");
    let failed = wait_for("the device tells why", || {
        plant.assignment(&plant.device, "hello").filter(|shown| shown["error"].is_object())
    });
    assert_eq!(failed["error"]["code"], "pull-not-found", "{failed}");
    assert!(failed["error"]["message"].as_str().is_some_and(|text| text.contains(&gone)), "{failed}");
    assert_eq!(plant.all_containers(), [""; 0]);
}
