//! A device loses its power under an open page in a fleet where nothing else happens: nobody sends that, and the page says it all the
//! same.

use crate::chromium::Browser;
use crate::stage::Stage;

#[test]
fn an_open_page_says_that_a_device_fell_silent_and_that_it_is_back() {
    let Some(browser) = Browser::start() else { return };
    let stage = Stage::start_with(&["--silent-after", "20s"]);
    stage.join("line-1");
    let mut agent = stage.simulated("line-1", "300ms");
    browser.sign_in(&stage.page(), &stage.token());
    browser.wait_text("#link", "Live");
    browser.wait_text("#counts a[href*='converged']", "1");
    browser.watch();
    agent.kill();
    browser.wait_text("#activity", "line-1 fell silent");
    browser.wait_text("#needs", "line-1");
    browser.wait_text("#counts a[href*='silent']", "1");
    let _agent = stage.simulated("line-1", "300ms");
    browser.wait_text("#activity", "line-1 is heard of again");
    browser.wait_text("#counts a[href*='converged']", "1");
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");
}
