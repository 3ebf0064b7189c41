//! People: a token is made, its holder looks and cannot change, the token is revoked. And the pages about the server itself.

use super::Demo;
use crate::chromium::Browser;

#[test]
fn a_viewer_looks_and_cannot_change_and_is_out_when_the_token_is_revoked() {
    let Some(browser) = Browser::start() else { return };
    let demo = Demo::start();
    browser.open(&demo.sign_in);
    browser.follow("Access");
    browser.look("access");
    browser.fill("Whose it is", "eve");
    browser.press("Make a token");
    browser.wait_text("#created-title", "eve");
    let secret = browser.text("section[aria-labelledby=created-title] pre");
    assert!(secret.starts_with("mgo_"), "{secret}");
    browser.look("access-created");
    browser.follow("Settings");
    browser.wait_text("#certificates", "This page");
    browser.look("settings");
    browser.follow("Set polling, hours, windows or downtime");
    browser.fill("Windows in which they may change what runs", "sun 02:00-05:00 Europe/Berlin");
    browser.look("schedule");
    browser.press("Set");
    browser.wait_text("#schedules", "changes sun 02:00-05:00");
    browser.look("settings-schedule");
    browser.press_labelled("Take back what is set for fleet");

    browser.press("Sign out");
    browser.sign_in(&demo.page, "mgo_guess");
    browser.wait_text(".wrong", "not known");
    browser.look("sign-in-wrong");
    browser.sign_in(&demo.page, &secret);
    browser.wait_text(".who", "viewer");
    browser.look("fleet-viewer");
    let forms = "return String([...document.forms].filter(form => form.method === 'post' && !form.action.includes('/sign-out')).length)";
    for path in ["/", "/devices", "/packages", "/deployments", "/settings", "/devices/press-1"] {
        browser.open(&format!("{}{path}", demo.page));
        assert_eq!(browser.see("a page", forms), "0", "{path}");
    }
    browser.open(&format!("{}/devices/new", demo.page));
    browser.wait_text("h1", "Your role does not allow this");
    browser.look("forbidden");

    browser.open(&demo.page);
    browser.press("Sign out");
    browser.sign_in(&demo.page, &demo.token);
    browser.follow("Access");
    browser.run("document.querySelector('tr:has(.name) a.danger').dataset.first = 'yes'");
    let revoke = browser.run(
        "return [...document.querySelectorAll('tbody tr')].find(row => row.textContent.includes('eve')).querySelector('a.danger').href",
    );
    browser.open(revoke.as_str().expect("an address"));
    browser.look("revoke");
    browser.press("Revoke");
    browser.follow("Audit");
    browser.wait_text("table", "token.revoke");
    browser.look("audit");
    browser.press("Sign out");
    browser.sign_in(&demo.page, &secret);
    browser.wait_text(".wrong", "revoked");
    browser.assert_calm(&[("/sign-in", 403), ("/devices/new", 403)]);
}
