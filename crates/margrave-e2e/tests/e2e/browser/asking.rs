//! What is asked of a device itself: to hold changes back, to let them go on, and to look again.

use serde_json::json;

use super::signed_in;
use crate::stage::wait_for;

#[test]
fn an_operator_holds_changes_back_and_has_a_device_look_again() {
    let Some((browser, demo)) = signed_in() else { return };
    browser.open(&format!("{}/devices/press-1", demo.page));
    browser.fill("Why changes should wait", "batch 17 runs");
    browser.choose("For", "2 hours");
    browser.press("Hold changes back");
    browser.wait_text("#asked", "batch 17 runs");
    // The device says so itself, and what is wanted of it waits with that reason.
    browser.wait_text("#times", "by operator ");
    demo.margrave(&["deploy", "andon-board", "--to", "press-1"]);
    browser.wait_text("#runs", "held back by operator ");
    browser.look("device-held");
    browser.press("Let changes go on");
    browser.wait_text("#asked", "No hold is set on this device");
    wait_for("it goes on", || {
        let shown = demo.margrave(&["device", "show", "press-1"]);
        (shown["assignments"][0]["state"] == json!("INSTALLED") && shown["holds"].is_null()).then_some(())
    });

    browser.press("Take a fresh look");
    browser.wait_text("#asked", "it looked");
    browser.wait_text("#timeline", "looked again and said how everything stands");
    let shown = demo.margrave(&["device", "look", "press-2"]);
    assert_eq!(shown["askedLook"]["done"], json!(false));
    wait_for("the other looked, too", || {
        let shown = demo.margrave(&["device", "show", "press-2"]);
        (shown["askedLook"]["done"] == json!(true)).then_some(())
    });
    demo.margrave(&["device", "hold", "press-2", "--reason", "batch 18 runs", "--for", "1h"]);
    let released = demo.margrave(&["device", "release", "press-2"]);
    assert!(released["askedHold"].is_null(), "{released}");
    browser.assert_calm(&[]);
}
