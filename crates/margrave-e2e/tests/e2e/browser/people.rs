//! People: a token is made, its holder looks and cannot change, the token is revoked. And the pages about the server itself.

use serde_json::json;

use super::Demo;
use crate::chromium::Browser;
use crate::stage::Stage;

#[test]
fn a_viewer_looks_and_cannot_change_and_is_out_when_the_token_is_revoked() {
    let Some(browser) = Browser::start() else { return };
    let demo = Demo::start();
    let board = ["deploy", "andon-board", "--name", "board", "--to", "press-1,press-2", "--batch", "1"];
    demo.margrave(&board);
    demo.margrave(&["rollout", "pause", "board"]);
    browser.open(&demo.sign_in);
    browser.follow("Access");
    browser.look("access");
    // What is wrong with a name says nothing about what else was chosen.
    browser.fill("Whose it is", "eve!");
    browser.choose("Role", "operator");
    browser.choose("Can be used", "for a day");
    browser.press("Make a token");
    browser.wait_text(".field[data-wrong] .wrong", "");
    assert_eq!((browser.value("Role"), browser.value("Can be used")), ("operator".into(), "1".into()));
    browser.look("access-wrong");
    browser.choose("Role", "viewer");
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
    browser.fill("Reach", "fleet");
    browser.fill("Windows in which they may change what runs", "whenever");
    browser.press("Set");
    browser.wait_text(".field[data-wrong] .wrong", "");
    browser.look("schedule-wrong");
    browser.fill("Windows in which they may change what runs", "sun 02:00-05:00 Europe/Berlin");
    browser.look("schedule");
    browser.press("Set");
    browser.wait_text("#schedules", "sun 02:00-05:00");
    browser.look("settings-schedule");
    browser.press_labelled("Take back what is set for fleet");
    browser.look("schedule-remove");
    browser.press("Take back");
    browser.wait_text("#schedules", "As usual everywhere");

    browser.press("Sign out");
    browser.sign_in(&demo.page, "mgo_guess");
    browser.wait_text(".wrong", "not known");
    browser.look("sign-in-wrong");
    browser.sign_in(&demo.page, &secret);
    browser.wait_text(".who", "viewer");
    browser.look("fleet-viewer");
    let forms = "return String([...document.forms].filter(form => form.method === 'post' && !form.action.includes('/sign-out')).length)";
    for path in
        ["/", "/devices", "/packages", "/deployments", "/deployments/board", "/settings", "/devices/press-1"]
    {
        browser.open(&format!("{}{path}", demo.page));
        assert_eq!(browser.see("a page", forms), "0", "{path}");
    }
    browser.open(&format!("{}/deployments/board", demo.page));
    browser.wait_text("#rollout header", "paused");
    browser.look("rollout-viewer");
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
    // The log follows by itself, also when it is filtered, and leaves alone what somebody types.
    browser.fill("What", "press-1");
    browser.press("Show");
    browser.wait_text("#entries", "device.join");
    assert!(!browser.text("#entries").contains("device.look"));
    browser.wait_text("#link", "Live");
    browser.watch();
    browser.fill("Who", "half a na");
    demo.margrave(&["device", "look", "press-1"]);
    browser.wait_text("#entries", "device.look");
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");
    assert_eq!(browser.value("Who"), "half a na");
    browser.follow("Sign out everywhere");
    browser.wait_text("h1", "Sign admin out everywhere?");
    browser.look("sign-out-everywhere");
    browser.press("Sign out everywhere");
    browser.wait_text("h1", "Sign in");
    // As a command, a page that is open leads to the door by itself.
    browser.sign_in(&demo.page, &demo.token);
    browser.wait_text("#link", "Live");
    assert_eq!(demo.margrave(&["session", "end-all"])["ended"], 1);
    browser.wait_text("h1", "Sign in");
    browser.sign_in(&demo.page, &secret);
    browser.wait_text(".wrong", "revoked");

    // A page that is open when its token is revoked leads to the door by itself.
    let made = demo.margrave(&["token", "create", "zoe", "--role", "viewer", "--expires", "1d"]);
    let text = |value: &serde_json::Value| value.as_str().expect("a token has it").to_owned();
    browser.sign_in(&demo.page, &text(&made["secret"]));
    browser.wait_text("#link", "Live");
    demo.margrave(&["token", "revoke", &text(&made["token"]["id"]), "--yes"]);
    browser.wait_text("h1", "Sign in");
    let streams = ("/events/stream", 401);
    browser.assert_calm(&[
        ("/sign-in", 403),
        ("/devices/new", 403),
        ("/access", 422),
        ("/settings/schedule", 422),
        streams,
    ]);
}

#[test]
fn what_is_being_typed_stays_when_the_session_ends_and_is_sent_after_signing_in_again() {
    let Some(browser) = Browser::start() else { return };
    let stage = Stage::start();
    stage.join("line-1");
    let _agent = stage.simulated("line-1", "100ms");
    browser.sign_in(&stage.page(), &stage.token());
    browser.open(&format!("{}/devices/line-1", stage.page()));
    browser.wait_text("#link", "Live");
    browser.watch();
    browser.fill_by_id("key", "line");
    browser.fill_by_id("value", "4");
    let ended = stage.margrave(&["session", "end-all"]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    browser.wait_text("#link", "Signed out");
    assert!(browser.is_still_here() && browser.value("Value") == "4", "what is typed stays");
    browser.press("Set");
    browser.wait_text("h1", "You were signed out");
    browser.look("signed-out");
    // In another tab, which shares the cookie.
    browser.run_with(
        "fetch('/sign-in', { method: 'POST', body: new URLSearchParams({ token: arguments[0] }) })
            .then(() => { document.body.dataset.in = 'yes'; })",
        vec![json!(stage.token())],
    );
    browser.see("the sign-in", "return document.body.dataset.in || null");
    browser.press("Send it again");
    browser.wait_text("h1", "Send it as admin?");
    browser.look("signed-in-again");
    browser.press("Send it again");
    browser.wait_text("#labels", "line=4");
}
