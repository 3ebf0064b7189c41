//! The first journey in the other browser. Chromium's journeys go further; this one tells that nothing is Chromium's own.

use std::path::Path;
use std::process::Command;

use super::Demo;
use crate::stage::{Running, installed, skip, wait_for};

#[test]
fn firefox_shows_the_same_live_and_narrow() {
    if installed("firefox-esr").is_none() {
        return;
    }
    let Some(node) = installed("node") else { return };
    let Some(puppeteer) = std::env::var_os("MARGRAVE_TEST_PUPPETEER") else {
        return skip("Firefox: MARGRAVE_TEST_PUPPETEER is not set, `scripts/rig` installs it");
    };
    let demo = Demo::start();
    let home = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(node);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/firefox.mjs"));
    // What the browser keeps goes with the test.
    command
        .arg(puppeteer)
        .args([&demo.sign_in, &demo.page])
        .env("HOME", home.path())
        .env("TMPDIR", home.path());
    let mut journey = Running::start("firefox", home.path(), &mut command);
    let ended = wait_for("the journey ends", || journey.ended());
    assert!(ended.success(), "{}", journey.log());
}
