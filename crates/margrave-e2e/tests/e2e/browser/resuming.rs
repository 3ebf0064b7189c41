//! The server is stopped and started again under an open page: the page says so, takes up where it was, and follows on.

use crate::chromium::Browser;
use crate::stage::Stage;

#[test]
fn an_open_page_takes_up_again_when_the_server_is_back() {
    let Some(browser) = Browser::start() else { return };
    let mut stage = Stage::start();
    browser.sign_in(&stage.page(), &stage.token());
    browser.wait_text("#link", "Live");
    browser.watch();
    stage.server().kill();
    browser.wait_text("#link", "Offline");
    stage.start_server();
    browser.wait_text("#link", "Live");
    // What happens from now on is seen, in the page that was open all the time.
    stage.join("line-1");
    browser.wait_text("#activity", "line-1");
    assert!(browser.is_still_here(), "the page was loaded anew instead of following by itself");
    // And once more, with something happening while nobody could be told.
    stage.server().kill();
    browser.wait_text("#link", "Offline");
    stage.start_server();
    stage.join("line-2");
    browser.wait_text("#activity", "line-2");
    assert!(browser.is_still_here());
}
