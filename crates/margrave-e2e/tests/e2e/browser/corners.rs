//! Pages that are seldom seen: what a new server shows before there is anything, and what stands at the end of side ways.

use std::path::Path;
use std::process::Command;

use crate::chromium::Browser;
use crate::forms::{ask_signed, signed_plant};
use crate::stage::{Stage, wait_for};

#[test]
fn a_new_server_says_what_to_do_first_on_every_page() {
    let Some(browser) = Browser::start() else { return };
    let stage = Stage::start();
    let page = stage.page();
    browser.sign_in(&page, &stage.token());
    for (path, name, says) in [
        ("/", "empty-fleet", "Begin here"),
        ("/devices", "empty-devices", "device"),
        ("/packages", "empty-packages", "The catalog is empty"),
        ("/deployments", "empty-deployments", "Nothing is deployed"),
        ("/settings", "empty-settings", "As usual everywhere"),
        ("/audit", "empty-audit", "Audit"),
        ("/access", "empty-access", "Access"),
    ] {
        browser.open(&format!("{page}{path}"));
        browser.wait_text("main", says);
        browser.look(name);
    }
    browser.assert_calm(&[]);
}

/// A device that signs its requests proves nothing but a key: a person compares it, and lets the device in or not.
#[test]
fn who_asks_to_be_let_in_is_seen_at_once_and_accepted_or_rejected() {
    let Some(browser) = Browser::start() else { return };
    let (stage, url) = signed_plant();
    let page = stage.page();
    browser.sign_in(&page, &stage.token());
    browser.wait_text("#link", "Live");
    browser.watch();
    let mut first = ask_signed(&stage, &url, "line-1");
    browser.wait_text("main", "1 device waits");
    assert!(browser.is_still_here(), "the fleet page says so by itself");
    browser.look("fleet-waiting");
    browser.open(&format!("{page}/devices"));
    browser.wait_text("#waiting", "Compare the fingerprint");
    let shown = browser.text("#waiting .hash code");
    wait_for("the device shows the same fingerprint", || {
        first.log().contains(shown.trim_start_matches("sha256:")).then_some(())
    });
    browser.look("devices-waiting");
    browser.press("Accept");
    wait_for("the device has joined", || (!first.is_running()).then_some(()));
    assert!(stage.path("line-1/identity.json").exists(), "{}", first.log());

    let mut second = ask_signed(&stage, &url, "line-2");
    browser.open(&format!("{page}/devices"));
    browser.wait_text("#waiting", "Compare the fingerprint");
    browser.press("Reject");
    wait_for("nobody waits any more", || {
        (browser.run("return document.querySelector('#waiting') === null") == true).then_some(())
    });
    let waiting = stage.json(&["device", "list", "--waiting"]);
    assert_eq!(waiting.as_array().map(Vec::len), Some(0), "{waiting}");
    // The protocol has no word for it, so the device asks on; it is not let in.
    assert!(second.is_running() && !stage.path("line-2/identity.json").exists(), "{}", second.log());
    second.kill();
    browser.assert_calm(&[]);
}

#[test]
fn side_ways_end_at_pages_that_can_be_read() {
    let Some(browser) = Browser::start() else { return };
    let mut stage = Stage::start();
    let page = stage.page();
    browser.sign_in(&page, &stage.token());

    browser.open(&format!("{page}/devices/new"));
    browser.fill("Name", "line-1");
    browser.press("Make a token");
    browser.wait_text("main", "margrave-agent join");
    browser.look("device-token");
    browser.open(&format!("{page}/devices/new/line-1/revoke"));
    browser.look("device-token-revoke");

    stage.join("line-2");
    browser.open(&format!("{page}/devices/line-2"));
    browser.wait_text("#runs", "Nothing is deployed here");
    browser.look("empty-device");
    stage.add_package("pulse", "1.0.0", &[("web", "services:\n  web:\n    image: pulse\n")]);
    let mut agent = stage.simulated("line-2", "300ms");
    let deployed = stage.json(&["deploy", "pulse", "--name", "web", "--to", "line-2", "--wait"]);
    agent.kill();
    // The same for larger machines than there are: the form says of each device why it does not fit.
    let place = stage.path("package-pulse-1.0.0");
    let description = std::fs::read_to_string(place.join("margo.yaml")).expect("what was added");
    let description =
        description.replacen("id: pulse\n", "id: heavy\n", 1).replacen("name: pulse\n", "name: heavy\n", 1);
    let needs = "    requiredResources:\n      memory: 9000Gi\n    components:\n";
    std::fs::write(place.join("margo.yaml"), description.replacen("    components:\n", needs, 1))
        .expect("writable");
    let added = stage.margrave(&["package", "add", place.to_str().expect("a plain path")]);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    browser.open(&format!("{page}/packages"));
    browser.follow("heavy");
    browser.follow("Deploy");
    browser.wait_text("main", "does not fit");
    browser.look("deploy-misfits");
    browser.open(&format!("{page}/packages"));
    browser.follow("pulse");
    browser.follow("Deploy");
    browser.wait_text("h1", "pulse");
    browser.look("deploy-fresh");
    let commit = deployed["commit"].as_str().expect("every change is a commit");
    browser.open(&format!("{page}/commits/{commit}"));
    browser.wait_text("main", "web");
    browser.look("commit");
    browser.open(&format!("{page}/devices/line-2/retire"));
    browser.wait_text("h1", "Retire line-2");
    browser.look("retire");

    browser.open(&format!("{page}/packages/heavy/1.0.0/remove"));
    browser.wait_text("h1", "heavy");
    browser.look("package-remove");
    // What was ticked and typed stays when it is refused, and so does the list that it was ticked in.
    browser.open(&format!("{page}/devices?search=line"));
    browser.run("document.querySelector('input[name=device]').click()");
    browser.fill("Value", "4");
    browser.press("Set the label");
    browser.wait_text(".notice.bad", "A label needs a name");
    assert_eq!(browser.value("Value"), "4");
    assert_eq!(browser.run("return document.querySelectorAll('input[name=device]:checked').length"), 1);
    assert_eq!(browser.run("return document.body.dataset.here"), "/devices?search=line");
    browser.look("devices-wrong");
    browser.open(&format!("{page}/packages"));
    browser.fill("Reference", "not a reference");
    browser.press("Add");
    browser.wait_text(".field[data-wrong] .wrong", "");
    browser.look("packages-wrong");
    browser.open(&format!("{page}/packages"));
    browser.fill("Repository", "oci://127.0.0.1:9/packages/pulse");
    browser.press("Watch");
    browser.wait_text("#watches", "packages/pulse");
    browser.look("packages-watched");
    browser.open(&format!("{page}/settings"));
    browser.fill("Registry", "registry.example:5000");
    browser.press("Remember");
    browser.wait_text("#registries", "registry.example:5000");
    browser.look("settings-registry");
    browser.fill("Registry", "no registry");
    browser.press("Remember");
    browser.wait_text("#host-wrong", "");
    browser.look("settings-wrong");
    // What others change comes by itself, also to a form that was refused, and what is typed there stays.
    stage.json(&["schedule", "set", "device:line-2", "--hold-max", "2h"]);
    browser.wait_text("#schedules", "device:line-2");
    assert_eq!(browser.value("Registry"), "no registry");

    // Somebody restored the repository from a backup: a person decides.
    let (repository, backup) = (stage.path("server/intent.git"), stage.path("intent-backup.git"));
    let copy = |from: &Path, to: &Path| {
        let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
        assert!(copied.expect("cp starts").success());
    };
    stage.json(&["device", "label", "line-2", "line=7"]);
    copy(&repository, &backup);
    let restore = |stage: &mut Stage| {
        stage.server().kill();
        std::fs::remove_dir_all(&repository).expect("the repository can go");
        copy(&backup, &repository);
        stage.start_server();
    };
    let line = |stage: &Stage| stage.json(&["device", "show", "line-2"])["labels"]["line"].clone();
    for line in ["8", "9"] {
        stage.json(&["device", "label", "line-2", &format!("line={line}")]);
    }
    restore(&mut stage);
    browser.open(&page);
    browser.wait_text("#needs", "The repository of what is wanted");
    browser.look("fleet-conflict");
    browser.follow("Decide");
    browser.wait_text("#git .notice", "restored from a backup");
    browser.look("settings-conflict");
    browser.press("Keep what the server has");
    browser.wait_text("#git", "Commit");
    assert_eq!(browser.text("#git .notice.bad"), "", "it is decided");
    assert_eq!(line(&stage), "9", "what the server had stays");
    browser.open(&page);
    browser.wait_text("#counts", "device");
    assert_eq!(browser.text("#needs"), "");
    // Once more, and the other way.
    restore(&mut stage);
    browser.open(&format!("{page}/settings"));
    browser.wait_text("#git .notice", "restored from a backup");
    browser.follow("Take what the repository says");
    browser.look("settings-take");
    browser.press("Take it");
    browser.wait_text("#git", "Commit");
    assert_eq!(browser.text("#git .notice.bad"), "", "it is decided");
    assert_eq!(line(&stage), "7", "as it was in the repository");
}
