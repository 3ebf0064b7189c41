//! Journeys in the other browser, each anew, on one demo. Chromium's go further; these tell that nothing is Chromium's own.

use std::path::Path;
use std::process::Command;

use super::Demo;
use crate::stage::{Running, installed, skip, wait_for};

/// As `firefox.mjs` calls them, in the order in which they follow from each other.
const JOURNEYS: [&str; 4] = ["deploy", "roles", "failing", "pacing"];

#[test]
fn firefox_deploys_follows_keeps_viewers_out_and_paces() {
    if installed("firefox-esr").is_none() {
        return;
    }
    let Some(node) = installed("node") else { return };
    let Some(puppeteer) = std::env::var_os("MARGRAVE_TEST_PUPPETEER") else {
        return skip("Firefox: MARGRAVE_TEST_PUPPETEER is not set, `scripts/rig` installs it");
    };
    let demo = Demo::start();
    for name in JOURNEYS {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(&node);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/firefox.mjs"));
        command.arg(&puppeteer).args([name, &demo.page, &demo.sign_in, &demo.token]);
        // What the browser keeps goes with the journey.
        command.env("HOME", home.path()).env("TMPDIR", home.path());
        let mut journey = Running::start(name, home.path(), &mut command);
        let ended = wait_for(&format!("the journey {name} ends"), || journey.ended());
        assert!(ended.success(), "{name}: {}", journey.log());
    }
}
