//! Operators' ways through the pages, in a real browser. Here the first ten minutes: sign in, deploy, watch, change, remove;
//! in `browser/` what comes later.
//!
//! Every page on the way is audited, wide and narrow, light and dark; `cargo xtask screenshots DIR` keeps pictures.

mod adding;
mod asking;
mod breaking;
mod corners;
mod crowd;
mod failing;
mod firefox;
mod form;
mod keyboard;
mod pacing;
mod people;
mod resuming;
mod silence;
mod storm;

use std::process::Command;

use serde_json::{Value, json};

use crate::chromium::Browser;
use crate::stage::{Running, program, wait_for};

#[test]
fn an_operator_deploys_watches_changes_and_removes_without_touching_reload() {
    let Some((browser, mut demo)) = signed_in() else { return };

    assert_eq!(browser.see("the fleet page", "return document.querySelector('h1').textContent"), "Fleet");
    wait_for("six devices, each labelled simulated", || {
        let shown = browser.run(
            "return [document.querySelectorAll('.tile').length, document.querySelectorAll('.tile .chip.sim').length]",
        );
        (shown == json!([6, 6])).then_some(())
    });
    assert!(browser.text("aside.banner").contains("simulated"), "{}", browser.text("aside.banner"));
    browser.look("fleet");
    browser.follow("Add a device");
    browser.look("device-new");

    browser.follow("Packages");
    browser.look("packages");
    browser.follow("Quality gate");
    browser.look("package");
    browser.follow("Deploy");

    // What is wrong is told where it is, and nothing that was typed is lost.
    browser.fill("Name", "gate");
    browser.fill("Site code", "north");
    browser.fill("Cameras", "4");
    browser.choose_device("press-1");
    browser.choose_device("gate-1");
    browser.press("See what will happen");
    browser.wait_text(".notice.bad", "Nothing was changed");
    let wrong = browser.run(
        "return [...document.querySelectorAll('.field[data-wrong]')].map(field => field.querySelector('label').textContent.trim())",
    );
    assert_eq!(wrong, json!(["Site code"]));
    assert!(!browser.text(".field[data-wrong] .wrong").is_empty());
    assert_eq!(browser.value("Site code"), "north");
    assert_eq!(browser.value("Cameras"), "4");
    let chosen = browser.run(
        "return [...document.querySelectorAll('input[name=device]:checked')].map(device => device.value)",
    );
    assert_eq!(chosen, json!(["gate-1", "press-1"]));
    browser.look("deploy-wrong");

    browser.fill("Site code", "NORD-01");
    browser.press("See what will happen");
    browser.wait_text("h1", "What will happen");
    assert!(browser.text("main").contains("2 devices get it"), "{}", browser.text("main"));
    // Nothing is pulled by what is simulated.
    assert!(!browser.text("main").contains("not pinned"), "{}", browser.text("main"));
    browser.look("rehearsal");
    browser.press("Deploy");
    browser.wait_text("h1", "gate");
    browser.watch();
    browser.wait_states("INSTALLED");
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");
    browser.look("deployment");

    browser.follow("Change");
    assert_eq!(browser.value("Cameras"), "4");
    browser.fill("Cameras", "5");
    browser.look("deployment-edit");
    browser.press("See what will happen");
    browser.wait_text("h1", "What will happen");
    assert!(browser.text("main").contains("2 devices change"), "{}", browser.text("main"));
    browser.press("Change");
    browser.wait_text(".inline-facts", "revision 2");
    browser.watch();
    browser.wait_states("INSTALLED");
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");

    browser.open(&format!("{}/deployments/gate/revisions/2", demo.page));
    browser.wait_text(".diff", "Cameras");
    browser.look("revision");
    browser.run("document.querySelector('.commit-mark a').click()");
    browser.wait_text(".lines", "+    cameras: 5");
    browser.look("commit");
    browser.open(&format!("{}/deployments/gate", demo.page));
    browser.follow("press-1");
    browser.wait_text("#timeline", "UPDATING");
    browser.look("device");
    browser.follow("Devices");
    browser.look("devices");
    browser.follow("Deployments");
    browser.look("deployments");
    browser.open(&format!("{}/why?subject=press-1", demo.page));
    browser.look("why");
    browser.open(&format!("{}/nowhere", demo.page));
    browser.look("error");
    browser.assert_calm(&[("/deploy/rehearsal", 422), ("/nowhere", 404)]);

    browser.open(&format!("{}/deployments/gate", demo.page));
    browser.follow("Remove");
    browser.look("remove");
    browser.press("Remove");
    // The page of something that is gone leads on to the list, by itself.
    browser.wait_text(".notice.ok", "is gone from every device");
    browser.look("gone");
    browser.follow("Fleet");
    wait_for("no device runs it any more", || {
        (browser.run("return document.querySelectorAll('.tile ul li').length") == json!(0)).then_some(())
    });

    browser.assert_calm(&[("/deployments/gate", 404)]);
    browser.assert_at_home(&demo.page);
    browser.press("Sign out");
    browser.wait_text("h1", "Sign in");
    browser.look("sign-in");
    assert!(demo.process.terminate().success());
    assert!(demo.process.log().contains("Nothing of the demo is left."), "{}", demo.process.log());
    let left = std::fs::read_dir(demo.directory.path()).expect("a directory can be read").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| name != "demo.log").collect();
    assert!(left.is_empty(), "the demo left {left:?}");
}

/// A demo, and a browser that is signed in to it; `None` where there is no browser, which was said aloud.
fn signed_in() -> Option<(Browser, Demo)> {
    let browser = Browser::start()?;
    let demo = Demo::start();
    browser.open(&demo.sign_in);
    browser.wait_text("h1", "Fleet");
    Some((browser, demo))
}

/// `margrave demo`, as somebody without Docker starts it.
pub(crate) struct Demo {
    process: Running,
    page: String,
    sign_in: String,
    token: String,
    context: String,
    directory: tempfile::TempDir,
}

impl Demo {
    /// What somebody does on the command line meanwhile; prints JSON.
    fn margrave(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(program("margrave"));
        let output = command.args(arguments).arg("--json").env("MARGRAVE_CONTEXT", &self.context).output();
        let output = output.expect("our own program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "margrave {} failed: {said}", arguments.join(" "));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(program("margrave"));
        command.args(["demo", "--simulated", "--json"]).env("TMPDIR", directory.path());
        for option in ["--listen", "--device-listen", "--local-listen"] {
            command.args([option, "127.0.0.1:0"]);
        }
        let process = Running::start("demo", directory.path(), &mut command);
        let greeting: Value = wait_for("the demo greets", || {
            process.log().lines().find_map(|line| serde_json::from_str(line).ok())
        });
        let text = |key: &str| greeting[key].as_str().expect("a text").to_owned();
        assert_eq!(greeting["simulated"], true);
        Demo {
            page: text("page"),
            sign_in: text("signIn"),
            token: text("token"),
            context: text("context"),
            process,
            directory,
        }
    }
}
