//! Without a mouse: from the fleet page to a running deployment with the keyboard alone, every question of it, many devices
//! together, tokens and calendars. And what pages do for hands and eyes besides: copying, and times where the viewer is.

use serde_json::json;
use thirtyfour::Key;

use super::signed_in;
use crate::chromium::Browser;
use crate::stage::wait_for;

#[test]
fn an_operator_deploys_with_the_keyboard_alone() {
    let Some((browser, _demo)) = signed_in() else { return };
    browser.tab_to("Skip to content");
    browser.enter("Packages");
    browser.wait_text("h1", "Packages");
    browser.enter("Deploy Andon board");
    browser.wait_text("h1", "Deploy Andon board");
    for device in ["press-1", "press-2"] {
        browser.space(device);
    }
    browser.enter("See what will happen");
    browser.wait_text("h1", "What will happen");
    browser.enter("Deploy");
    browser.wait_text("h1", "andon-board");
    browser.wait_states("INSTALLED");
    // What opens and closes does so without a mouse, too.
    browser.enter("Change");
    browser.wait_text("h1", "Change andon-board");
    browser.enter("By site or expression");
    browser.tab_to("Also every device of these sites");
    browser.assert_calm(&[]);
}

/// Where the tabulator leads upwards without leading to the next column, or where a page wants it to.
const OUT_OF_ORDER: &str = "
    const stops = [...document.querySelectorAll('main :is(a[href], button, input, select, textarea, summary)')].filter(stop =>
        stop.type !== 'hidden' && !stop.disabled && stop.tabIndex >= 0 && stop.checkVisibility());
    const called = stop => (stop.labels && stop.labels[0] || stop).textContent.trim().replace(/\\s+/g, ' ') || stop.name;
    const asked = stops.filter(stop => stop.tabIndex > 0).map(called);
    const upwards = stops.slice(1).flatMap((stop, before) => {
        const [was, is] = [stops[before].getBoundingClientRect(), stop.getBoundingClientRect()];
        return is.bottom <= was.top && is.left < was.right ? [called(stops[before]) + ' → ' + called(stop)] : [];
    });
    return [stops.length, ...asked, ...upwards]";

/// The tabulator goes through the page as eyes do.
#[track_caller]
fn assert_in_order(browser: &Browser) {
    let found = browser.run(OUT_OF_ORDER);
    let found = found.as_array().expect("a list");
    assert!(found[0].as_u64() > Some(2), "nothing to go to: {found:?}");
    assert_eq!(found.len(), 1, "out of order: {found:?}");
}

#[test]
fn every_question_of_a_deployment_is_answered_with_the_keyboard_alone() {
    let Some((browser, demo)) = signed_in() else { return };
    browser.open(&format!("{}/deploy?package=quality-gate", demo.page));
    browser.wait_text("h1", "Deploy Quality gate");
    assert_in_order(&browser);
    // Enter in a line sends what is there; what is wrong with it is reached from the top.
    browser.type_at("Site code", "nord");
    browser.key(Key::Enter);
    browser.wait_text(".notice.bad", "Nothing was changed");
    assert_in_order(&browser);
    browser.enter("Site code");
    assert!(browser.tab_to("Site code") <= 2, "the message leads to its field");
    browser.key(Key::Control + "a");
    browser.key("NORD-01");
    browser.type_at("Cameras", "3");
    // One of several, yes or no, any of several.
    browser.type_at("Mode", "enforce");
    browser.space("Reject bad parts");
    browser.space("night");
    browser.enter("Add a group");
    browser.see("a group", "return document.getElementById('group-0') ? 'yes' : null");
    assert_in_order(&browser);
    browser.type_at("Devices with these labels", "site=nord");
    browser.type_at("Cameras", "5");
    for device in ["press-1", "press-2"] {
        browser.space(device);
    }
    // Arrows choose among what excludes each other.
    browser.tab_to("To all devices at once");
    browser.key(Key::Down);
    browser.type_at("First on this many", "1");
    browser.enter("See what will happen");
    browser.wait_text("h1", "What will happen");
    assert_in_order(&browser);
    browser.enter("Back to the form");
    browser.wait_text("h1", "Deploy Quality gate");
    assert_eq!((browser.value("Site code"), browser.value("Cameras")), ("NORD-01".into(), "3".into()));
    browser.enter("See what will happen");
    browser.wait_text("h1", "What will happen");
    browser.enter("Deploy");
    browser.wait_text("h1", "quality-gate");
    let made = demo.margrave(&["deployment", "show", "quality-gate"]);
    let parameters = &made["parameters"];
    assert_eq!((&parameters["siteCode"], &parameters["mode"]), (&json!("NORD-01"), &json!("enforce")));
    assert_eq!((&parameters["cameras"], &parameters["reject"]), (&json!(3), &json!(true)));
    assert_eq!(parameters["shifts"], json!(["early", "late", "night"]));
    assert_eq!(made["overrides"][0]["parameters"], json!({ "cameras": 5 }));
    assert_eq!(made["targets"]["devices"], json!(["press-1", "press-2"]));
    assert_eq!(made["strategy"], json!({ "canary": { "size": "1" } }));
    browser.assert_calm(&[("/deploy/rehearsal", 422)]);
}

#[test]
fn many_devices_are_changed_together_with_the_keyboard_alone() {
    let Some((browser, demo)) = signed_in() else { return };
    browser.enter("Devices");
    browser.wait_text("h1", "Devices");
    assert_in_order(&browser);
    for device in ["press-1", "press-2"] {
        browser.space(&format!("Tick {device}"));
    }
    browser.wait_text("#bulk", "With 2 ticked");
    browser.tab_back_to("Label");
    browser.key("shift");
    browser.type_at("Value", "night");
    browser.enter("Set the label");
    browser.wait_text(".notice.ok", "2 devices now carry the label shift");
    // One box for all, and what is folded away.
    browser.space("Tick all on this page");
    browser.wait_text("#bulk", "With 6 ticked");
    browser.tab_back_to("Hold changes back, let go, look");
    browser.key(Key::Enter);
    assert_in_order(&browser);
    browser.type_at("Why changes should wait", "a batch runs");
    browser.type_at("For", "2 hours");
    browser.enter("Hold changes back");
    browser.wait_text(".notice.ok", "6 devices");
    // What cannot be taken back lightly is asked back.
    browser.space("Tick press-2");
    browser.tab_back_to("Retire…");
    browser.key(Key::Enter);
    browser.wait_text("h1", "Retire ");
    assert_in_order(&browser);
    browser.enter("Retire");
    browser.wait_text(".notice.ok", "retired");
    assert_eq!(demo.margrave(&["device", "show", "press-2"])["standing"], "retired");
    assert_eq!(demo.margrave(&["device", "show", "press-1"])["labels"]["shift"], "night");
    browser.assert_calm(&[]);
}

#[test]
fn tokens_and_calendars_are_made_and_taken_back_with_the_keyboard_alone() {
    let Some((browser, _demo)) = signed_in() else { return };
    browser.enter("Access");
    browser.wait_text("h1", "Access");
    assert_in_order(&browser);
    browser.type_at("Whose it is", "ann");
    browser.type_at("Role", "operator");
    browser.type_at("Can be used", "for a day");
    browser.enter("Make a token");
    browser.wait_text("#created-title", "ann");
    browser.enter("Done");
    browser.wait_text("#tokens", "ann");
    let id = browser.see(
        "the token",
        "const row = [...document.querySelectorAll('#tokens tbody tr')].find(row => row.querySelector('.name').textContent === 'ann');
         return row && row.textContent.includes('operator') ? row.querySelector('code').textContent : null",
    );
    browser.enter(&format!("Revoke {id}"));
    browser.wait_text("h1", "Revoke");
    assert_in_order(&browser);
    browser.enter("Revoke");
    browser.wait_text("#tokens", "revoked");

    browser.enter("Settings");
    browser.wait_text("h1", "Settings");
    assert_in_order(&browser);
    browser.enter("Set polling, hours, windows or downtime");
    browser.wait_text("label[for=reach]", "Reach");
    assert_in_order(&browser);
    browser.type_at("Reach", "fleet");
    browser.type_at("Windows in which they may change what runs", "sun 02:00-05:00 Europe/Berlin");
    browser.enter("Set");
    browser.wait_text("#schedules", "sun 02:00-05:00");
    browser.enter("Take back what is set for fleet");
    browser.wait_text("h1", "Take back");
    browser.enter("Take back");
    browser.wait_text("#schedules", "As usual everywhere");
    browser.assert_calm(&[]);
}

#[test]
fn commands_are_copied_and_times_are_the_viewers() {
    let Some((browser, demo)) = signed_in() else { return };
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
