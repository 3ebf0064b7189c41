//! The form that a package's own rules make: every kind of question, every rule, told at the field.

use serde_json::json;

use super::Demo;
use crate::chromium::Browser;

#[test]
fn every_kind_of_question_is_asked_and_every_rule_is_told_at_its_field() {
    let Some(browser) = Browser::start() else { return };
    let demo = Demo::start();
    browser.open(&demo.sign_in);
    browser.open(&format!("{}/deploy?package=quality-gate", demo.page));
    browser.fill("Name", "gate");
    browser.choose_device("press-1");
    browser.fill("Site code", "NORD-01");
    // Each alone, so that each message is the field's own.
    for (label, wrong, right, told) in [
        ("Site code", "", "NORD-01", "needs a value"),
        ("Site code", "NO-1", "NORD-01", "at least 6"),
        ("Site code", "NORDNORD-01", "NORD-01", "at most 9"),
        ("Site code", "nord-01", "NORD-01", "match"),
        ("Contact", "nobody", "a@b", "match"),
        ("Cameras", "two", "2", "no whole number"),
        ("Cameras", "0", "2", "at least 1"),
        ("Cameras", "9", "2", "at most 8"),
        ("Threshold", "much", "0.9", "no number"),
        ("Threshold", "1.5", "0.9", "at most 1"),
        ("Threshold", "0.123", "0.9", "2"),
        ("Lanes", "1\nx", "1\n2", "no whole number"),
        ("Lanes", "17", "1\n2", "at most 16"),
        ("Recipes", "", "standard\nfine", "at least one"),
    ] {
        browser.fill(label, wrong);
        browser.press("See what will happen");
        browser.wait_text(".notice.bad", "Nothing was changed");
        let marked = browser.run(
            "return [...document.querySelectorAll('.field[data-wrong]')].map(field => [field.querySelector('label').firstChild.textContent.trim(), field.querySelector('.wrong').textContent])",
        );
        assert_eq!(marked[0][0], label, "{wrong:?}: {marked}");
        assert!(marked[1].is_null(), "{wrong:?} is wrong at one field: {marked}");
        assert!(
            marked[0][1].as_str().is_some_and(|message| message.contains(told)),
            "{wrong:?} is told {told:?}: {marked}"
        );
        assert_eq!(browser.value(label), wrong, "what was typed stays");
        browser.fill(label, right);
    }
    // One of several, any of several, yes or no; and a group with answers of its own.
    browser.choose("Mode", "enforce");
    browser.tick("Reject bad parts");
    browser.tick("night");
    browser.press("Add a group");
    browser.fill("Devices with these labels", "site=nord");
    browser.fill_by_id("group-0-question-2", "5");
    browser.look("deploy-group");
    browser.press("See what will happen");
    browser.wait_text("h1", "What will happen");
    browser.press("Deploy");
    browser.wait_text("h1", "gate");
    let made = demo.margrave(&["deployment", "show", "gate"]);
    assert_eq!(
        made["parameters"],
        json!({
            "siteCode": "NORD-01", "contact": "a@b", "cameras": 2, "threshold": 0.9, "lanes": [1, 2],
            "recipes": ["standard", "fine"], "mode": "enforce", "reject": true,
            "shifts": ["early", "late", "night"], "drill": "none",
        })
    );
    assert_eq!(made["overrides"][0]["parameters"], json!({ "cameras": 5 }));
    // What may not change any more is not asked again.
    browser.open(&format!("{}/deployments/gate/edit", demo.page));
    assert_eq!(browser.run("return document.getElementById('question-0')"), json!(null));
    assert_eq!(browser.value("Cameras"), "2");
    browser.assert_calm(&[("/deploy/rehearsal", 422)]);
}
