//! An update that fails and goes back, seen live; and the way out from the fleet page.

use serde_json::json;

use super::Demo;
use crate::chromium::Browser;
use crate::stage::wait_for;

#[test]
fn an_update_that_fails_goes_back_in_sight_and_says_why() {
    let Some(browser) = Browser::start() else { return };
    let demo = Demo::start();
    let gate = [
        "deploy",
        "quality-gate",
        "--name",
        "gate",
        "--set",
        "siteCode=NORD-01",
        "--to",
        "press-1,press-2",
        "--wait",
    ];
    demo.margrave(&gate);
    browser.open(&demo.sign_in);

    browser.open(&format!("{}/deployments/gate/edit", demo.page));
    browser.choose("Drill", "health");
    browser.press("See what will happen");
    browser.press("Change");
    browser.wait_text(".inline-facts", "revision 2");
    browser.watch();
    browser.see(
        "both devices went back",
        "const rows = [...document.querySelectorAll('#devices tbody tr')];
         return rows.length === 2 && rows.every(row => row.textContent.includes('went back')) ? 'yes' : null",
    );
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");
    // One cause for both, with the way to its explanation.
    browser.wait_text("#causes", "2 devices");
    browser.look("deployment-failed");
    browser.follow("Every cause, step by step");
    browser.wait_text("#groups", "Such as press-1");
    browser.look("why-causes");
    browser.open(&format!("{}/deployments/gate", demo.page));
    browser.follow("Why?");
    browser.wait_text("#why .next", "");
    browser.look("why-failed");

    browser.open(&format!("{}/devices/press-1", demo.page));
    browser.wait_text("#health", "the last good version runs and is healthy since");
    browser.look("device-went-back");

    browser.follow("Fleet");
    browser.wait_text("#needs", "2 devices");
    browser.look("fleet-failed");
    let buttons = browser
        .run("return [...document.querySelectorAll('#needs .actions a')].map(a => a.firstChild.textContent)");
    assert_eq!(buttons, json!(["Change gate", "Earlier revisions", "Why?"]));
    browser.follow("Earlier revisions");
    browser.press_labelled("Revert to revision 1");
    browser.wait_text("h1", "Go back to revision 1 of gate?");
    browser.look("revert");
    browser.press("Go back");
    browser.wait_text(".inline-facts", "revision 3");
    browser.wait_states("INSTALLED");
    browser.follow("Fleet");
    wait_for("nothing needs a person any more", || {
        browser.text("#calm").contains("Nothing needs").then_some(())
    });
    browser.assert_calm(&[]);
}
