//! A storm of events: the page keeps up by telling less often, and somebody who types into it is not disturbed.
//!
//! The devices try a thousand a second. How many of those arrive depends on the build and the machine, so nothing is said about that:
//! what the page is told and asks for must not grow with them.

use serde_json::json;

use crate::chromium::Browser;
use crate::stage::{Running, Stage, figure, wait_for};

/// Counts what the page asks for and what it is told, from now on.
const COUNT: &str = "
    window.storm = { began: performance.now(), frames: [] };
    performance.setResourceTimingBufferSize(100000);
    performance.clearResourceTimings();
    const source = new EventSource('/events/stream?after=' + document.body.dataset.after);
    source.onmessage = (event) => {
        storm.frames.push({ event: Number(event.lastEventId), at: performance.now() });
    };
";
/// How fast they come is told of the second half: a device has something to tell again and again only once it runs what it was given.
const COUNTED: &str = "
    const asked = performance.getEntriesByType('resource').filter(entry => entry.initiatorType === 'fetch').length;
    const [first, last] = [storm.frames.at(0), storm.frames.at(-1)];
    const half = storm.frames.find(({ event }) => 2 * event >= first.event + last.event);
    return {
        seconds: (performance.now() - storm.began) / 1000, frames: storm.frames.length, asked,
        events: first ? last.event - first.event : 0,
        later: half ? last.event - half.event : 0, within: half ? (last.at - half.at) / 1000 : 0,
    };
";
/// So many events have to come while the page is looked at.
const EVENTS: u64 = 5_000;

#[test]
fn a_storm_of_events_is_told_a_few_times_a_second() {
    let Some(browser) = Browser::start() else { return };
    let stage = Stage::start();
    stage.add_package("pulse", "1.0.0", &[("web", "services:\n  web:\n    image: pulse\n")]);
    let fleet = stage.path("simulated");
    let directory = stage.path("");
    let mut command = stage.command();
    command.args(["simulate", "--devices", "200", "--report-rate", "1000", "--install-time", "1s"]);
    command.args(["--ramp", "2s", "--label", "line=storm", "--data", fleet.to_str().expect("a plain path")]);
    let mut simulated = Running::start("simulate", &directory, &mut command);
    wait_for("everybody has said what it is", || {
        let devices = stage.json(&["device", "list", "--condition", "converged"]);
        (devices.as_array().map(Vec::len) == Some(200)).then_some(())
    });
    stage.json(&["deploy", "pulse", "--label", "line=storm"]);

    browser.sign_in(&stage.page(), &stage.token());
    browser.wait_text("#tiers", "200 devices");
    browser.follow("Devices");
    browser.watch();
    browser.run(COUNT);
    browser.fill("Name contains", "half a na");
    let counted = wait_for("thousands of events came", || {
        let counted = browser.run(COUNTED);
        (counted["events"].as_u64() >= Some(EVENTS)).then_some(counted)
    });
    let number = |name: &str| counted[name].as_f64().expect("a number");
    figure("storm", &["later", "within", "frames", "asked", "seconds"].map(number));
    // Four times a second at most, and a little for what was under way; whatever happens there.
    let most = 4.0 * number("seconds") + 4.0;
    assert!(number("frames") <= most && number("asked") <= most, "{counted}");
    assert!(number("asked") > 0.0, "it follows all the same: {counted}");
    assert!(number("events") > 20.0 * number("frames"), "{counted}");
    // What somebody types stays, in a page that was never loaded anew; and it leads on.
    assert!(browser.is_still_here());
    assert_eq!(browser.value("Name contains"), "half a na");
    browser.fill("Name contains", "00199");
    browser.press("Show");
    wait_for("the one that was looked for", || {
        let rows = browser.run("return document.querySelectorAll('#devices tbody tr').length");
        (rows == json!(1)).then_some(())
    });
    browser.follow("Fleet");
    browser.wait_text("#tiers", "200 devices");
    assert!(simulated.is_running(), "it went on all the time: {}", simulated.log());
    // A server that is given more than its build can do may leave some without an answer, which the simulator says at its end.
    let ended = simulated.end_with("INT");
    assert!(matches!(ended.code(), Some(0 | 1)), "{ended}: {}", simulated.log());
    browser.assert_calm(&[]);
}
