//! Without a mouse: from the fleet page to a running deployment with the keyboard alone. And what pages do for hands and eyes
//! besides: copying, and times where the viewer is.

use serde_json::json;
use thirtyfour::Key;

use super::Demo;
use crate::chromium::Browser;
use crate::stage::wait_for;

#[test]
fn an_operator_deploys_with_the_keyboard_alone() {
    let Some(browser) = Browser::start() else { return };
    let demo = Demo::start();
    browser.open(&demo.sign_in);
    browser.wait_text("h1", "Fleet");
    browser.tab_to("Skip to content");
    browser.tab_to("Packages");
    browser.key(Key::Enter);
    browser.wait_text("h1", "Packages");
    browser.tab_to("Deploy Andon board");
    browser.key(Key::Enter);
    browser.wait_text("h1", "Deploy Andon board");
    for device in ["press-1", "press-2"] {
        browser.tab_to(device);
        browser.key(Key::Space);
    }
    browser.tab_to("See what will happen");
    browser.key(Key::Enter);
    browser.wait_text("h1", "What will happen");
    browser.tab_to("Deploy");
    browser.key(Key::Enter);
    browser.wait_text("h1", "andon-board");
    browser.wait_states("INSTALLED");
    // What opens and closes does so without a mouse, too.
    browser.tab_to("Change");
    browser.key(Key::Enter);
    browser.wait_text("h1", "Change andon-board");
    browser.tab_to("By site or expression");
    browser.key(Key::Enter);
    browser.tab_to("Also every device of these sites");
    browser.assert_calm(&[]);
}

#[test]
fn commands_are_copied_and_times_are_the_viewers() {
    let Some(browser) = Browser::start() else { return };
    let demo = Demo::start();
    browser.open(&demo.sign_in);
    browser.allow_copying();
    browser.open(&format!("{}/devices/press-1", demo.page));
    let client = browser.text("#identity code");
    browser.run("document.querySelector('#identity [data-copy]').click()");
    browser.wait_text("#identity [data-copy]", "Copied");
    let copied = wait_for("the clipboard", || {
        let read = browser.run("return navigator.clipboard.readText()");
        read.as_str().map(str::to_owned)
    });
    assert_eq!(copied, client);

    // The same moment is another time elsewhere, and the same in UTC.
    let mut seen = Vec::new();
    for zone in ["Pacific/Kiritimati", "America/Lima"] {
        browser.travel_to(zone);
        browser.open(&format!("{}/settings", demo.page));
        browser.wait_text("#certificates", "This page");
        let time = browser.run(
            "const time = document.querySelector('#certificates time'); return [time.textContent, time.title, time.dateTime]",
        );
        seen.push(time);
    }
    assert_ne!(seen[0][0], seen[1][0], "{seen:?}");
    assert_eq!((&seen[0][1], &seen[0][2]), (&seen[1][1], &seen[1][2]), "{seen:?}");
    assert!(seen[0][1].as_str().is_some_and(|title| title.contains("UTC")), "{seen:?}");
    assert_ne!(seen[0][0], json!(""));
    browser.assert_calm(&[]);
}
