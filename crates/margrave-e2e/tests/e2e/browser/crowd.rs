//! Ten thousand devices: what a page shows stays small, and everybody can be found.

use std::process::Command;

use serde_json::json;

use crate::chromium::Browser;
use crate::stage::{PRETENDED, Stage, figure, installed};

/// Writes devices beside the one that joined, each like it in everything but its name and site: joining them one by one would take
/// longer than all other tests.
const MULTIPLY: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
def row(table, key):
    cursor = database.execute(f"SELECT * FROM {table} WHERE {key} = 'model'")
    return [column[0] for column in cursor.description], list(cursor.fetchone())
models = {table: row(table, key) for table, key in
    [("client", "id"), ("contact", "client"), ("manifest", "client"), ("device", "client")]}
for number in range(10000):
    name = f"dev-{number:05}"
    for table, (columns, values) in models.items():
        new = [name if value == "model" else value for value in values]
        database.execute(f"INSERT INTO {table} ({','.join(columns)}) VALUES ({','.join('?' * len(new))})", new)
    for key, value in [("site", f"site-{number % 40:02}"), ("crowd", "all")]:
        database.execute("INSERT INTO label (client, device, key, value) VALUES (?, ?, ?, ?)", (name, name, key, value))
# Some were last heard of an hour ago: a few of two sites, and everybody of four others.
database.execute("UPDATE contact SET at = at - 3600000 WHERE client LIKE 'dev-%' AND substr(client, -3) IN ('011', '500')")
database.execute("UPDATE contact SET at = at - 3600000 WHERE client IN (SELECT client FROM label WHERE value BETWEEN 'site-31' AND 'site-34')")
database.commit()
"#;

/// Three in ten say that it failed: most for one reason, some for another, and some for the same with other numbers in it.
const FAIL: &str = r#"
import json, sqlite3, sys, uuid
database = sqlite3.connect(sys.argv[1])
now, = database.execute("SELECT max(at) FROM contact").fetchone()
for id, device, adopted in database.execute("SELECT id, device, wanted_since FROM assignment WHERE device LIKE 'dev-%'").fetchall():
    number = int(device[4:])
    code, message = {
        5: ("pull-failed", "the registry registry.example did not answer within 30 s"),
        6: ("unhealthy", "main was restarted 5 times within 60 s"),
        7: ("disk-full", f"{number} MiB are free, and 12000 MiB are needed"),
    }.get(number % 10, (None, None))
    if not code:
        continue
    report = {"assignment": str(uuid.UUID(bytes=id)), "device": device, "adopted_version": adopted, "state": "failed",
        "fault": {"code": code, "source": "device", "message": message}, "components": [], "detail": None}
    database.execute("UPDATE assignment SET observed = 'FAILED', adopted = ?, report = ?, received_at = ?, observed_at = ?, state = 'FAILED', "
        "verdict = 2 WHERE id = ?", (adopted, json.dumps(report), now, now, id))
database.commit()
"#;

/// Elements of a page that stays small.
const MOST: u64 = 6_000;

#[test]
fn ten_thousand_devices_are_read_at_a_glance_and_found_again() {
    let Some(python) = installed("python3") else { return };
    let Some(browser) = Browser::start() else { return };
    let mut stage = Stage::start();
    stage.join("model");
    let mut agent = stage.simulated("model", "300ms");
    agent.kill();
    let database = stage.path("server/store/margrave.db");
    let write = |stage: &mut Stage, script: &str| {
        stage.server().kill();
        let written = Command::new(&python).args(["-c", script]).arg(&database).output();
        let written = written.expect("python starts");
        assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
        stage.start_server();
    };
    write(&mut stage, MULTIPLY);
    // All have something to run, as in a fleet that somebody looks at; nobody has it yet, and with some it fails.
    stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
    let deployed = stage.json(&["deploy", "hello", "--label", "crowd=all"]);
    assert_eq!(deployed["counts"]["total"], 10_000, "{}", deployed["counts"]);
    write(&mut stage, FAIL);
    let page = stage.page();
    browser.sign_in(&page, &stage.token());

    browser.wait_text("#tiers", "10,001 devices in 40 sites");
    // How soon it is there is no matter of a test on a busy machine; `cargo xtask figures page` measures it.
    let painted = |page: &str| -> u64 {
        browser.open(page);
        let painted = browser.see(
            "the first paint",
            "const found = performance.getEntriesByType('paint').find(entry => entry.name === 'first-contentful-paint');
             return found ? String(Math.round(found.startTime)) : null",
        );
        painted.parse().expect("a number")
    };
    let seen = |name: &str, page: &str| {
        let mut times: Vec<u64> = (0..5).map(|_| painted(page)).collect();
        times.sort_unstable();
        figure(name, &[times[2] as f64]);
        let nodes = browser.run("return document.querySelectorAll('*').length").as_u64();
        assert!(nodes < Some(MOST), "{page} has {nodes:?} elements");
    };
    // What fails is told by its cause, and who is silent by site.
    seen("first paint of causes", &format!("{page}/deployments/hello"));
    let causes = browser
        .run("return [...document.querySelectorAll('#causes > li strong')].map(cause => cause.textContent)");
    assert_eq!(causes, json!(["1,000 devices", "1,000 devices", "1,000 devices"]));
    browser.look("deployment-10000");
    browser.open(&format!("{page}/why?kind=deployment&subject=hello"));
    browser.look("why-10000");
    seen("first paint", &page);
    let needs = browser
        .run("return [...document.querySelectorAll('#needs .badge')].map(badge => badge.textContent.trim())");
    assert_eq!(needs, json!(["failed", "failed", "failed", "silent", "silent", "silent", "silent"]));
    for told in ["1,000 devices", "250 devices at site-31", "250 devices at site-33", "270 devices"] {
        browser.wait_text("#needs", told);
    }
    browser.look("fleet-10000");
    browser.follow("site-07");
    browser.wait_text("#devices", "dev-00007");
    let shown = "return document.querySelectorAll('#devices tbody tr').length";
    assert_eq!(browser.run(shown), json!(50));
    browser.follow("Next page");
    browser.wait_text("#devices", "dev-02007");
    browser.fill("Name contains", "09967");
    browser.press("Show");
    assert_eq!(browser.run(shown), json!(1));
    browser.look("devices-found");
    browser.follow("Clear");
    browser.look("devices-10000");
    // One box for the whole page, and what can be done with it.
    browser.run("document.querySelector('[data-all]').click()");
    browser.wait_text("#bulk", "With 50 ticked");
    browser.fill_by_id("key", "line");
    browser.fill_by_id("value", "4");
    browser.press("Set the label");
    browser.wait_text(".notice.ok", "50 devices now carry the label line");

    // Every filter narrows, and the address can be kept.
    for (filter, number) in [
        ("condition=pending", 50),
        ("condition=failed", 50),
        ("condition=failed&search=00005", 1),
        ("condition=failed&search=00009", 0),
        ("condition=silent&site=site-31&search=00031", 1),
        ("state=PENDING&capability=amd64&deployment=hello&search=00031", 1),
        ("site=site-39&search=00039", 1),
        ("label=line%3D4", 50),
        ("label=line%3D4&site=site-00", 2),
        ("capability=no-such-thing", 0),
    ] {
        browser.open(&format!("{page}/devices?{filter}"));
        assert_eq!(browser.run(shown), json!(number), "{filter}");
    }
    // All of a site, on however many pages they are: asked back with their number, and done to the last.
    browser.open(&format!("{page}/devices?site=site-07"));
    browser.run("document.querySelector('[data-all]').click()");
    browser.tick("All that match, also on other pages");
    browser.fill_by_id("key", "shift");
    browser.fill_by_id("value", "night");
    browser.press("Set the label");
    browser.wait_text("h1", "Label 250 devices with shift=night?");
    browser.look("devices-all");
    browser.press("Set the label");
    browser.wait_text(".notice.ok", "250 devices now carry the label shift");
    browser.open(&format!("{page}/devices?label=shift%3Dnight&search=dev-09967"));
    assert_eq!(browser.run(shown), json!(1), "also on the last page");
    browser.open(&format!("{page}/devices?label=shift%3Dnight"));
    browser.run("document.querySelector('[data-all]').click()");
    browser.tick("All that match, also on other pages");
    browser.press("Retire…");
    browser.wait_text("h1", "Retire 250 devices?");
    browser.press("Retire");
    browser.wait_text(".notice.ok", "250 devices were retired");
    browser.open(&page);
    browser.wait_text("#tiers", "9,751 devices");
    browser.assert_calm(&[]);
}
