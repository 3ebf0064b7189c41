//! Packages that lie in a real registry: added, watched and looked at from the page.

use super::super::local_registry::Registry;
use super::super::vendor::{COMPOSE, Vendor, archive, description};
use crate::chromium::Browser;
use crate::stage::Stage;

#[test]
fn packages_of_a_registry_are_added_watched_and_looked_for_now() {
    let Some(registry) = Registry::start() else { return };
    let Some(browser) = Browser::start() else { return };
    let vendor = Vendor::of_registry(registry.port);
    let push = |tag: &str, version: &str| {
        vendor.push_component("plant/hello/main", version, &archive(&[COMPOSE]));
        let text = description("hello", version, &vendor.repository("plant/hello/main"), version);
        vendor.push_package("plant/hello", tag, &text)
    };
    let digest = push("1.0.0", "1.0.0");
    let repository = vendor.repository("plant/hello");
    let stage = Stage::start();
    let page = stage.page();
    browser.sign_in(&page, &stage.token());

    // The registry is made known, and answers.
    browser.open(&format!("{page}/settings"));
    browser.fill("Registry", &format!("127.0.0.1:{}", registry.port));
    browser.run("const plain = document.querySelector('[name=plain]'); plain.closest('details').open = true; plain.click()");
    browser.press("Remember");
    browser.wait_text("#registries", "without TLS");
    browser.press("Ask it");
    browser.wait_text("#registries .notice.ok", "answers");
    browser.look("settings-registry-asked");

    browser.open(&format!("{page}/packages"));
    browser.fill("Reference", &format!("{repository}:1.0.0"));
    browser.press("Add");
    browser.wait_text("h1", "hello");
    browser.wait_text("main", &digest.to_string());
    browser.look("package-added");

    // A second version comes by itself, once somebody looks; a tag that is not what it holds says so.
    browser.open(&format!("{page}/packages"));
    browser.fill("Repository", &repository);
    browser.fill("Look every", "1d");
    browser.press("Watch");
    browser.wait_text("#watches", "Looked at");
    push("1.1.0", "1.1.0");
    push("2.0.0", "1.0.1");
    browser.press_labelled(&format!("Look now at {repository}"));
    browser.wait_text("#watches", "the tag 2.0.0 holds version 1.0.1");
    browser.wait_text("#packages", "1.1.0");
    browser.look("packages-looked");
    browser.press_labelled(&format!("Watch no more: {repository}"));
    browser.see("nothing is watched", "return document.querySelector('#watches') ? null : 'yes'");
    browser.assert_calm(&[]);
}
