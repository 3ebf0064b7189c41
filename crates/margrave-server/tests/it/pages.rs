//! Whole ways through the pages: finding and changing devices together, seeing what a deployment would do, settings.

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_core::lifecycle::{Reported, State};
use margrave_core::report::{Awaited, Detail, Fault};
use margrave_oci::manifest::{Descriptor, ImageManifest};
use margrave_wire::operator::{PutDeployment, SetLabels, Targets};
use serde_json::json;

use crate::browser::{Browser, deployed, gate, is_clean, location, text};
use crate::plant::{Plant, now, operator};
use crate::stock::{self, HOSTILE, OWN_IMAGE};

/// The fields that are told to be wrong, each described by what is wrong with it.
fn wrong_fields(page: &str) -> Vec<&str> {
    let described = page.split("aria-invalid=\"true\" aria-describedby=\"").skip(1);
    let fields: Vec<&str> = described.map(|rest| rest.split("-wrong").next().unwrap()).collect();
    for field in &fields {
        assert!(
            page.contains(&format!("<div id=\"{field}-wrong\"><p class=\"wrong\" role=\"alert\">")),
            "{page}"
        );
    }
    fields
}

#[tokio::test]
async fn devices_are_found_by_site_capability_and_state_and_changed_together() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    stock::device(&plant, "press-2", 4).await;
    let mut browser = Browser::signed_in(&plant).await;
    let both = [("device", "press-1"), ("device", "press-2"), ("do", "label")];
    let mut set = both.to_vec();
    set.extend([("key", "site"), ("value", HOSTILE)]);
    // Led back to the list that was looked at, with what came of it.
    set.extend([("where-search", "press"), ("where-after", "a")]);
    let reply = browser.post("/devices", &set).await;
    let back = location(reply.is(303)).to_owned();
    assert_eq!(back, "/devices?search=press&after=a&done=label&number=2&key=site");
    let page = browser.page(&back).await;
    assert!(page.contains("2 devices now carry the label site") && page.contains(">2 devices<"), "{page}");
    assert!(page.contains("Previous page") && page.contains("value=\"press\""), "{page}");
    is_clean(&page);
    let rows = async |browser: &mut Browser, query: &str| {
        let page = browser.page(&format!("/devices?{query}")).await;
        is_clean(&page);
        page.matches("<tr id=\"device-").count()
    };
    let site = "site=%3Cscript%3Ealert%28%27x%27%29%3C%2Fscript%3E%22%26";
    assert_eq!(rows(&mut browser, "").await, 3);
    assert_eq!(rows(&mut browser, site).await, 2);
    assert_eq!(rows(&mut browser, &format!("{site}&search=press-1")).await, 1);
    assert_eq!(rows(&mut browser, "capability=Ethernet").await, 3);
    assert_eq!(rows(&mut browser, "capability=gpu").await, 0);
    assert_eq!(rows(&mut browser, "state=PENDING").await, 1);
    assert_eq!(rows(&mut browser, "state=FAILED").await, 0);
    assert!(text(browser.get("/devices?state=happy").await.is(422)).contains("“happy” is no state"));
    assert!(text(browser.get("/devices?condition=happy").await.is(422)).contains("class=\"notice bad\""));
    // The fleet page groups by the same label.
    let fleet = browser.page("/").await;
    is_clean(&fleet);
    assert!(fleet.contains("Without a site") && fleet.contains("3 devices in 1 site"), "{fleet}");

    for (fields, wrong) in [
        (&[("do", "label"), ("key", "a")][..], "Tick the devices first"),
        (&[("device", "press-1"), ("do", "label")], "A label needs a name"),
        (&[("device", "press-1"), ("device", "nobody"), ("do", "label"), ("key", "a b")], "label"),
    ] {
        let page = text(browser.post("/devices", fields).await.is(422));
        assert!(page.contains("role=\"alert\"") && page.contains(wrong), "{page}");
    }
    browser.post("/devices", &[("device", "press-1"), ("do", "explode")]).await.is(400);
    let fleet = plant.server.fleet();
    assert!(!fleet.device(&"press-1".parse().unwrap()).await.unwrap().labels.contains_key("a"));

    // Retiring asks first.
    let retire = [("device", "press-2"), ("device", "small-1"), ("do", "retire")];
    let ask = text(browser.post("/devices", &retire).await.is(200));
    assert!(ask.contains("Retire 2 devices?") && ask.contains("name=\"sure\" value=\"2\""), "{ask}");
    assert!(ask.contains("for id in press-2 small-1; do margrave device retire"), "{ask}");
    assert!(ask.contains("class=\"danger\""), "what cannot be undone at once looks like it: {ask}");
    let standing = async |name: &str| fleet.device(&name.parse().unwrap()).await.unwrap().standing;
    assert_eq!(standing("press-2").await, "accepted");
    let retire = [("device", "press-2"), ("device", "small-1"), ("do", "retire"), ("sure", "2")];
    let back = location(browser.post("/devices", &retire).await.is(303)).to_owned();
    assert!(browser.page(&back).await.contains("2 devices were retired"), "{back}");
    assert_eq!((standing("press-2").await, standing("press-1").await), ("retired".into(), "accepted".into()));

    // All that match: asked back with the number, and once more when it is another number by then.
    let label = |sure: &'static str| {
        [
            ("all", "true"),
            ("where-search", "press"),
            ("do", "label"),
            ("key", "shift"),
            ("value", "night"),
            ("sure", sure),
        ]
    };
    for sure in ["", "1", "nonsense"] {
        let ask = text(browser.post("/devices", &label(sure)).await.is(200));
        assert!(ask.contains("Label 2 devices with shift=night?"), "{ask}");
        assert!(ask.contains("name=\"where-search\" value=\"press\""), "{ask}");
    }
    let labels = async |name: &str| fleet.device(&name.parse().unwrap()).await.unwrap().labels;
    assert!(!labels("press-1").await.contains_key("shift"), "nothing was done yet");
    let back = location(browser.post("/devices", &label("2")).await.is(303)).to_owned();
    assert_eq!(back, "/devices?search=press&done=label&number=2&key=shift");
    assert!(labels("press-1").await.contains_key("shift") && labels("press-2").await.contains_key("shift"));
    // Who is out already is left out, and said to be.
    let retire = [("all", "true"), ("where-search", "press"), ("do", "retire")];
    let ask = text(browser.post("/devices", &retire).await.is(200));
    assert!(ask.contains("Retire 1 device?") && ask.contains("1 more device matches"), "{ask}");
    let nobody = [("all", "true"), ("where-search", "no such name"), ("do", "retire")];
    browser.post("/devices", &nobody).await.is(422);
    // Asked of each; whose agent is somebody else's is counted as left out.
    plant.join("press-9").await;
    let hold =
        [("device", "press-1"), ("device", "press-9"), ("do", "hold"), ("reason", ""), ("seconds", "3600")];
    browser.post("/devices", &hold).await.is(422);
    let mut hold = hold.to_vec();
    hold[3].1 = "a batch runs";
    assert_eq!(location(browser.post("/devices", &hold).await.is(303)), "/devices?done=hold&number=1&left=1");
    assert!(fleet.device(&"press-9".parse().unwrap()).await.unwrap().asked_hold.is_some());
    // By deployment, and without a site.
    assert_eq!(rows(&mut browser, "deployment=north").await, 1);
    assert_eq!(rows(&mut browser, "deployment=south").await, 0);
    assert_eq!(rows(&mut browser, "site=:none").await, 2);
}

#[tokio::test]
async fn who_waits_for_a_person_is_told_on_the_fleet_page_although_it_is_only_pending() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/").await;
    assert!(page.contains("Nothing needs a person"), "who has not asked yet asks by itself: {page}");
    let detail = Detail {
        state: State::Pending,
        sequence: 1,
        at: now(),
        document: None,
        attempt: 0,
        next_try: None,
        reason: None,
        waiting: Some(format!("its clock is not set {HOSTILE}")),
        awaited: Some(Awaited::Clock),
        life: None,
        memory: None,
        holds: None,
    };
    stock::report(&plant, "press-1", |report| {
        (report.state, report.detail) = (Reported::Pending, Some(detail));
    })
    .await;
    let page = browser.page("/").await;
    is_clean(&page);
    let (_, need) = page.split_once("id=\"need-pending--window-unknown\"").unwrap();
    let need = need.split_once("</li>").unwrap().0;
    assert!(need.contains("its clock is not set &#60;script&#62;"), "{need}");
    assert!(need.contains("Set the clock on the device"), "{need}");
    assert!(need.contains("href=\"/why?subject=press-1\""), "{need}");
    assert!(need.contains("href=\"/devices/press-1\""), "{need}");
}

#[tokio::test]
async fn what_is_asked_of_a_device_stands_on_its_page() {
    let plant = Plant::new().await;
    stock::device(&plant, "press-1", 4).await;
    plant.join("press-9").await;
    let mut browser = Browser::signed_in(&plant).await;
    // Somebody else's agent is not asked in vain.
    let page = text(browser.get("/devices/press-1").await.is(200));
    assert!(
        page.contains("does not run Margrave's agent") || page.contains("does not run Margrave&#39;s agent"),
        "{page}"
    );
    assert!(!page.contains("Take a fresh look"), "{page}");
    browser.post("/devices/press-1/look", &[]).await.is(409);
    // One that has not said what it is may be ours.
    let hold = [("reason", "batch <17> runs"), ("seconds", "7200")];
    browser.post("/devices/press-9/hold", &hold).await.is(303);
    let page = text(browser.get("/devices/press-9").await.is(200));
    assert!(
        page.contains("batch &#60;17&#62; runs") && page.contains("The device has not said yet"),
        "{page}"
    );
    browser.post("/devices/press-9/hold", &[("reason", ""), ("seconds", "60")]).await.is(422);
    browser.post("/devices/press-9/hold", &[("reason", "x"), ("seconds", "soon")]).await.is(400);
    browser.post("/devices/press-9/release", &[]).await.is(303);
    browser.post("/devices/press-9/release", &[]).await.is(409);
    browser.post("/devices/press-9/look", &[]).await.is(303);
    let page = text(browser.get("/devices/press-9").await.is(200));
    assert!(
        page.contains("No hold is set on this device") && page.contains("it has not answered yet"),
        "{page}"
    );
}

#[tokio::test]
async fn what_a_deployment_will_do_is_shown_before_it_is_done() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    stock::device(&plant, "press-2", 4).await;
    let mut browser = Browser::signed_in(&plant).await;
    let form = [
        ("package", "gate"),
        ("version", "1.0.0"),
        ("name", "south"),
        ("answer.owner", "me <b>tag"),
        ("answer.site", "NORD"),
        ("answer.rate", "9"),
        ("answer.shift", "late"),
        ("device", "press-1"),
        ("device", "press-2"),
        ("labels", ""),
        ("sites", ""),
        ("select", ""),
        ("groups", "0"),
        ("pace", "steps"),
        ("pace-canary", "1"),
        ("pace-canary-soak", "10m"),
    ];
    let page = text(browser.post("/deploy/rehearsal", &form).await.is(200));
    is_clean(&page);
    assert!(page.contains("2 devices get it, in 2 steps"), "{page}");
    assert!(page.contains("watched for 10 min"), "{page}");
    let fleet = plant.server.fleet();
    let south = "south".parse().unwrap();
    assert!(fleet.deployment(&south).await.is_err(), "a rehearsal changes nothing");
    // Back in the form, nothing is lost; another group is asked for there.
    let mut back = form.to_vec();
    back.push(("do", "edit"));
    let page = text(browser.post("/deploy/rehearsal", &back).await.is(200));
    assert!(page.contains("value=\"10m\"") && page.contains("value=\"press-2\" checked"), "{page}");
    *back.last_mut().unwrap() = ("do", "group");
    let page = text(browser.post("/deploy/rehearsal", &back).await.is(200));
    assert!(
        page.contains("name=\"group.0.answer.rate\"") && page.contains("name=\"groups\" value=\"1\""),
        "{page}"
    );

    // What is wrong in a step or a group is told there.
    let mut wrong = form.to_vec();
    wrong[12] = ("groups", "2");
    wrong[15] = ("pace-canary-soak", "soon");
    wrong.extend([
        ("group.0.labels", "line=4"),
        ("group.0.answer.rate", "900"),
        ("group.1.answer.rate", "8"),
    ]);
    let page = text(browser.post("/deploy/rehearsal", &wrong).await.is(422));
    assert!(page.contains("“soon” is no time") && page.contains("Say which devices"), "{page}");
    wrong[15].1 = "10m";
    wrong.pop();
    let page = text(browser.post("/deploy/rehearsal", &wrong).await.is(422));
    let (_, field) = page.split_once("name=\"group.0.answer.rate\"").unwrap();
    assert!(field.split_once("</div>").unwrap().0.contains("class=\"wrong\""), "{page}");
    let mut broken = form.to_vec();
    broken[14].1 = "many";
    let page = text(browser.post("/deploy/rehearsal", &broken).await.is(422));
    let (_, field) = page.split_once("name=\"pace-canary\"").unwrap();
    assert!(field.split_once("</div>").unwrap().0.contains("class=\"wrong\""), "{page}");

    // So is what is wrong about when it may begin, and about failures.
    let mut careless = form.to_vec();
    careless.extend([
        ("windows", "sun 02:00-05:00 Europe/Berlin\nwhenever <i>you</i> like"),
        ("rollback", "never"),
        ("attempts", "3"),
        ("health-grace", "90s"),
    ]);
    let page = text(browser.post("/deploy/rehearsal", &careless).await.is(422));
    is_clean(&page);
    let (_, field) = page.split_once("name=\"windows\"").unwrap();
    let field = field.split_once("</div>").unwrap().0;
    assert!(field.contains("class=\"wrong\"") && field.contains("Line 2: "), "{page}");
    careless[16].1 = "";
    careless[18].1 = "often";
    let page = text(browser.post("/deploy/rehearsal", &careless).await.is(422));
    assert!(page.contains("“often” is no number of attempts"), "{page}");
    careless[18].1 = "1000";
    let page = text(browser.post("/deploy/rehearsal", &careless).await.is(422));
    assert!(page.contains("at most 100 times"), "{page}");

    // With all of it right it is what was seen.
    let mut right = form.to_vec();
    right[12] = ("groups", "1");
    right.extend([
        ("group.0.labels", "line=4"),
        ("group.0.answer.rate", "8"),
        ("group.0.answer.alarm", "false"),
        ("windows", "sun 02:00-05:00 Europe/Berlin\r\n\r\nsat 02:00-03:00"),
        ("rollback", "never"),
        ("attempts", "3"),
        ("health-grace", "90s"),
    ]);
    assert!(text(browser.post("/deploy/rehearsal", &right).await.is(200)).contains("1 with other answers"));
    assert_eq!(location(browser.post("/deploy", &right).await.is(303)), "/deployments/south");
    let made = fleet.deployment(&south).await.unwrap();
    assert_eq!(
        made.overrides[0].parameters,
        [("rate".into(), json!(8)), ("alarm".into(), json!(false))].into()
    );
    assert_eq!(made.strategy.canary.unwrap().soak_seconds, Some(600));
    assert_eq!(made.windows, ["sun 02:00-05:00 Europe/Berlin", "sat 02:00-03:00 UTC"]);
    assert_eq!((made.rollback.when.as_deref(), made.rollback.attempts), (Some("never"), Some(3)));
    assert_eq!(made.rollback.health_grace_seconds, Some(90));
    let page = browser.page("/deployments/south").await;
    assert!(page.contains("stay with it and try again; give up after 3 attempts"), "{page}");

    // The form of a change has all of it; a change that says nothing of it leaves it.
    let page = browser.page("/deployments/south/edit").await;
    for held in [
        "value=\"line=4\"",
        "value=\"10m\"",
        "value=\"steps\" checked",
        "value=\"never\" selected",
        "value=\"90s\"",
        "sat 02:00-03:00",
    ] {
        assert!(page.contains(held), "{held}: {page}");
    }
    let revision = made.revision.to_string();
    let change = [
        ("version", "1.0.0"),
        ("revision", revision.as_str()),
        ("answer.owner", "me"),
        ("answer.site", "NORD"),
        ("answer.rate", "9"),
        ("answer.shift", "late"),
        ("device", "press-1"),
    ];
    let page = text(browser.post("/deployments/south/edit/rehearsal", &change).await.is(200));
    // The other one has had no turn yet, and loses nothing.
    assert!(page.contains("1 device changes") && !page.contains("loses it"), "{page}");
    browser.post("/deployments/south/edit", &change).await.is(303);
    let kept = fleet.deployment(&south).await.unwrap();
    assert_eq!((kept.overrides.len(), kept.strategy.canary.is_some()), (1, true));
    assert_eq!((kept.windows.len(), kept.rollback.attempts), (2, Some(3)));
    let page = browser.page("/deployments/south/revisions/2").await;
    assert!(page.contains("What differs from revision 1") && page.contains("<ins>me</ins>"), "{page}");
    is_clean(&page);
    browser.get("/deployments/south/revisions/9").await.is(404);
}

#[tokio::test]
async fn a_label_that_takes_an_application_with_it_is_asked_for() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let mut browser = Browser::signed_in(&plant).await;
    let (fleet, id) = (plant.server.fleet(), "press-1".parse().unwrap());
    let line = async || fleet.device(&id).await.unwrap().labels.get("line").cloned();
    browser.post("/devices/press-1/labels", &[("key", "line"), ("value", "4")]).await.is(303);
    let targets = Targets { labels: [("line".to_owned(), "4".to_owned())].into(), ..Default::default() };
    let want = PutDeployment { targets, ..gate(7) };
    fleet.put_deployment(&operator(), &"fourth".parse().unwrap(), want).await.unwrap();

    for (fields, question) in [
        (&[("remove", "line")][..], "Remove the label line from press-1?"),
        (&[("key", "line"), ("value", "5")], "Set line=5 on press-1?"),
    ] {
        let ask = text(browser.post("/devices/press-1/labels", fields).await.is(200));
        is_clean(&ask);
        assert!(ask.contains(question) && ask.contains("This takes fourth off press-1"), "{ask}");
        assert_eq!(line().await.as_deref(), Some("4"), "nothing was done yet");
    }
    let many = [("device", "press-1"), ("do", "label"), ("key", "line"), ("value", "5")];
    let ask = text(browser.post("/devices", &many).await.is(200));
    assert!(ask.contains("This takes fourth off press-1"), "{ask}");
    assert_eq!(line().await.as_deref(), Some("4"), "nothing was done yet");
    // What takes nothing away is not asked for.
    browser.post("/devices/press-1/labels", &[("key", "shift"), ("value", "2")]).await.is(303);
    browser.post("/devices/press-1/labels", &[("remove", "line"), ("sure", "1")]).await.is(303);
    assert_eq!(line().await, None);
}

#[tokio::test]
async fn a_group_of_devices_is_chosen_by_label_in_the_form() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    for (name, cores) in [("press-1", 4), ("press-2", 4), ("small-1", 1)] {
        stock::device(&plant, name, cores).await;
    }
    let mut browser = Browser::signed_in(&plant).await;
    let label =
        [("device", "press-1"), ("device", "small-1"), ("do", "label"), ("key", "line"), ("value", "4")];
    browser.post("/devices", &label).await.is(303);
    let mut form = vec![
        ("package", "gate"),
        ("version", "1.0.0"),
        ("name", "fourth"),
        ("answer.owner", "me"),
        ("answer.site", "NORD"),
        ("answer.rate", "9"),
        ("answer.shift", "late"),
        ("labels", "line"),
    ];
    let page = text(browser.post("/deploy/rehearsal", &form).await.is(422));
    assert!(page.contains("“line” is no label"), "{page}");
    form[7].1 = "line=4";
    // Who carries the label gets it, and who does not fit is left out instead of being in the way.
    let page = text(browser.post("/deploy/rehearsal", &form).await.is(200));
    is_clean(&page);
    assert!(page.contains("1 device gets it") && !page.contains("press-2"), "{page}");
    let (_, left_out) = page.split_once("Left out, because they do not fit").unwrap();
    assert!(left_out.contains("small-1"), "{page}");
    assert_eq!(location(browser.post("/deploy", &form).await.is(303)), "/deployments/fourth");
    let (fleet, fourth) = (plant.server.fleet(), "fourth".parse().unwrap());
    let reached = async || {
        let made = fleet.deployment(&fourth).await.unwrap();
        made.assignments.into_iter().map(|assignment| assignment.device).collect::<Vec<_>>()
    };
    assert_eq!(reached().await, ["press-1"]);
    let made = fleet.deployment(&fourth).await.unwrap();
    assert_eq!(made.targets.labels, [("line".to_owned(), "4".to_owned())].into());
    assert!(made.targets.devices.is_empty(), "{:?}", made.targets);
    assert_eq!(made.misfits[0].device, "small-1");
    let page = browser.page("/deployments/fourth").await;
    assert!(page.contains("<span class=\"chip\">line=4</span>") && page.contains("--label line=4"), "{page}");
    let page = browser.page("/deployments/fourth/edit").await;
    assert!(page.contains("name=\"labels\" value=\"line=4\""), "{page}");
    // Who gets the label later is included.
    browser.post("/devices/press-2/labels", &[("key", "line"), ("value", "4")]).await.is(303);
    assert_eq!(reached().await, ["press-1", "press-2"]);
}

#[tokio::test]
async fn another_version_of_the_package_comes_to_devices_by_the_form_of_a_change() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    stock::report(&plant, "press-1", |_| {}).await;
    let mut browser = Browser::signed_in(&plant).await;
    assert!(!browser.page("/deployments/north/edit").await.contains("Use this version"));
    stock::gate_at(&plant, "1.1.0").await;
    let form = browser.page("/deployments/north/edit").await;
    assert!(form.contains("Use this version"), "{form}");
    assert!(form.contains("<option selected>1.0.0</option>"), "what runs is chosen: {form}");
    let mut change = vec![
        ("version", "1.1.0"),
        ("asked-version", "1.0.0"),
        ("revision", "1"),
        ("answer.owner", "me"),
        ("answer.site", "NORD"),
        ("answer.rate", "12"),
        ("answer.shift", "early"),
        ("answer.alarm", "true"),
        ("device", "press-1"),
    ];
    // The form once more, as the other version asks, with what was typed.
    let form = text(browser.post("/deployments/north/edit/rehearsal", &change).await.is(200));
    assert!(form.contains("<option selected>1.1.0</option>") && form.contains("value=\"12\""), "{form}");
    assert!(form.contains("name=\"asked-version\" value=\"1.1.0\""), "{form}");
    change[1].1 = "1.1.0";
    let page = text(browser.post("/deployments/north/edit/rehearsal", &change).await.is(200));
    is_clean(&page);
    assert!(page.contains("goes from version 1.0.0 to 1.1.0"), "{page}");
    assert!(page.contains("<del>1.0.0</del>") && page.contains("<ins>1.1.0</ins>"), "{page}");
    let (fleet, north) = (plant.server.fleet(), "north".parse().unwrap());
    assert_eq!(fleet.deployment(&north).await.unwrap().version, "1.0.0", "nothing was changed yet");
    let reply = browser.post("/deployments/north/edit", &change).await;
    assert_eq!(location(reply.is(303)), "/deployments/north");
    let changed = fleet.deployment(&north).await.unwrap();
    assert_eq!((changed.version.as_str(), changed.revision), ("1.1.0", 2));
    assert_eq!(changed.assignments[0].version, "1.1.0");
    let page = browser.page("/deployments/north").await;
    assert!(page.contains("gate 1.1.0") && page.contains("<del>1.0.0</del> → <ins>1.1.0</ins>"), "{page}");
    assert!(page.contains("of an older revision"), "the device has not begun: {page}");
}

#[tokio::test]
async fn a_package_says_what_every_device_runs_and_which_images_are_not_pinned() {
    let plant = Plant::new().await;
    let image = ImageManifest::artifact("application/vnd.test", vec![Descriptor::of("x", &[7; 3000])]);
    stock::push(&plant, "plant/gate", "1", &image, vec![Bytes::from_static(&[7; 3000])]).await;
    stock::gate(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/packages/gate/1.0.0").await;
    assert!(
        page.contains("id=\"package\" data-live") && page.contains("id=\"package-side\" data-live"),
        "{page}"
    );
    is_clean(&page);
    let digest = Digest::of(&image.to_bytes()).to_string();
    let pinned = page.split(OWN_IMAGE).nth(1).unwrap_or_else(|| panic!("{page}"));
    assert!(pinned.contains("2.9 KiB") && pinned.contains(&digest), "{page}");
    assert_eq!(page.matches("Not pinned, so that each device runs").count(), 2, "{page}");
    assert!(page.contains("this server asks no registries elsewhere"), "{page}");
    assert!(!page.contains("are not known and not pinned"), "{page}");
    let database = rusqlite::Connection::open(plant.data.path().join("store/margrave.db")).unwrap();
    database.execute(r#"UPDATE package SET images = '{"named":{},"known":{}}'"#, ()).unwrap();
    drop(database);
    // As it was before images were looked at.
    let plant = plant.restart().await;
    let page = Browser::signed_in(&plant).await.page("/packages/gate/1.0.0").await;
    is_clean(&page);
    assert!(page.contains("The images of component gate are not known and not pinned"), "{page}");
}

#[tokio::test]
async fn calendars_registries_and_watches_are_set_from_the_page() {
    let plant = Plant::new().await;
    stock::device(&plant, "press-1", 4).await;
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/settings").await;
    for there in ["Trust domain", "git/intent.git", "Download a backup", "margrave schedule set"] {
        assert!(page.contains(there), "{there}: {page}");
    }
    for live in ["schedules", "registry-list", "git", "certificates"] {
        assert!(page.contains(&format!("id=\"{live}\" data-live")), "{live}: {page}");
    }
    assert!(browser.page("/access").await.contains("id=\"tokens\" data-live"));
    let window = [("reach", "device:press-1"), ("windows", "sun 02:00-05:00 Europe/Berlin"), ("poll", "15m")];
    assert_eq!(location(browser.post("/settings/schedule", &window).await.is(303)), "/settings#schedules");
    let page = browser.page("/settings").await;
    let changes = "<dt>Changes</dt><dd>sun 02:00-05:00 Europe/Berlin</dd>";
    assert!(page.contains(changes) && page.contains("class=\"week\""), "it is listed: {page}");
    assert!(page.contains("margrave schedule remove device:press-1"), "{page}");
    assert!(browser.page("/settings/schedule?reach=device:press-1").await.contains("value=\"15m\""));
    let page = browser.page("/devices/press-1").await;
    assert!(page.contains(changes) && page.contains("<dt>Polls</dt><dd>every 15m</dd>"), "{page}");
    for (field, value, told) in [
        ("windows", "<b>tag", "</textarea><div id=\"windows-wrong\"><p class=\"wrong\""),
        ("poll", "often", "often"),
        ("reach", "<b>tag", "Nothing was changed"),
    ] {
        let mut wrong = window.to_vec();
        wrong.retain(|(name, _)| *name != field);
        wrong.push((field, value));
        let page = text(browser.post("/settings/schedule", &wrong).await.is(422));
        is_clean(&page);
        assert!(page.contains(told), "{field}: {page}");
    }
    // Two who have it open at once do not undo each other's change without knowing.
    let seen = |page: &str| {
        let from = page.split_once("name=\"seen\" value=\"").unwrap().1;
        from.split_once('"').unwrap().0.to_owned()
    };
    let old = seen(&browser.page("/settings/schedule?reach=device:press-1").await);
    let ask = seen(&browser.page("/settings/schedule/remove?reach=device:press-1").await);
    let other = [("reach", "device:press-1"), ("poll", "20m"), ("seen", &old)];
    browser.post("/settings/schedule", &other).await.is(303);
    let mine = [("reach", "device:press-1"), ("poll", "30m"), ("seen", &old)];
    let page = text(browser.post("/settings/schedule", &mine).await.is(422));
    assert!(page.contains("Somebody else changed what is set for device:press-1"), "{page}");
    browser.post("/settings/schedule/remove", &[("reach", "device:press-1"), ("seen", &ask)]).await.is(412);
    let now = seen(&page);
    assert_eq!(plant.server.fleet().schedules().await.unwrap()[0].schedule.poll_every_seconds, Some(1200));
    let mine = [("reach", "device:press-1"), ("poll", "30m"), ("windows", window[1].1), ("seen", &now)];
    browser.post("/settings/schedule", &mine).await.is(303);

    let ask = browser.page("/settings/schedule/remove?reach=device:press-1").await;
    assert!(ask.contains("Take back what is set for press-1?") && ask.contains("sun 02:00"), "{ask}");
    browser.post("/settings/schedule/remove", &[("reach", "device:press-1")]).await.is(303);
    let fleet = plant.server.fleet();
    assert!(fleet.schedules().await.unwrap().is_empty());

    let registry = [("host", "registry.example"), ("user", "plant"), ("password", "secret <b>tag")];
    assert_eq!(
        location(browser.post("/settings/registries", &registry).await.is(303)),
        "/settings#registries"
    );
    let page = browser.page("/settings").await;
    assert!(page.contains("registry.example") && !page.contains("secret"), "{page}");
    for verb in ["check", "remove"] {
        assert!(page.contains(&format!("margrave registry {verb} registry.example")), "{page}");
    }
    let wrong = [("host", "registry.example"), ("user", "plant"), ("password", "")];
    let page = text(browser.post("/settings/registries", &wrong).await.is(422));
    assert!(page.contains("value=\"plant\"") && page.contains("role=\"alert\""), "{page}");
    assert_eq!(wrong_fields(&page), ["password"], "{page}");
    assert!(page.contains("data-here=\"/settings\""), "a refused form goes on following the page: {page}");
    // What is folded away is not while something is wrong with it.
    let wrong = [("host", "registry.example"), ("token", "two words")];
    let page = text(browser.post("/settings/registries", &wrong).await.is(422));
    assert_eq!(wrong_fields(&page), ["token"], "{page}");
    assert!(page.contains("<details open><summary>Token, authority"), "{page}");
    for (name, labels, field) in [("a b", "", "name"), ("press-1", "", "name"), ("new-1", "site", "labels")] {
        let page = text(browser.post("/devices/new", &[("name", name), ("labels", labels)]).await.is(422));
        assert_eq!(wrong_fields(&page), [field], "{page}");
    }
    browser.post("/settings/registries/remove", &[("host", "registry.example")]).await.is(303);
    assert!(fleet.registries().await.unwrap().is_empty());

    let watch = [("repository", "oci://127.0.0.1:9/packages/gate"), ("match", "1.*"), ("every", "1h")];
    assert_eq!(location(browser.post("/watches", &watch).await.is(303)), "/packages#watches");
    assert_eq!(fleet.watches().await.unwrap()[0].every_seconds, 3600);
    let page = browser.page("/packages").await;
    for command in ["package look", "package unwatch"] {
        let command = format!("margrave {command} oci://127.0.0.1:9/packages/gate");
        assert!(page.contains("Watch no more") && page.contains(&command), "{command}: {page}");
    }
    assert!(page.contains("margrave package add oci://registry.example"), "{page}");
    for (field, value) in [("every", "1s"), ("every", "often"), ("repository", "<b>tag")] {
        let mut wrong = watch.to_vec();
        wrong.retain(|(name, _)| *name != field);
        wrong.push((field, value));
        let page = text(browser.post("/watches", &wrong).await.is(422));
        is_clean(&page);
        assert!(page.contains("class=\"wrong\""), "{value}: {page}");
    }
    browser.post("/watches/remove", &[("repository", "oci://127.0.0.1:9/packages/gate")]).await.is(303);
    assert!(fleet.watches().await.unwrap().is_empty());
    // There is nothing to decide.
    browser.post("/settings/repository", &[("do", "take")]).await.is(409);
    browser.post("/settings/repository", &[]).await.is(400);
    let backup = browser.post("/settings/backup", &[]).await;
    assert_eq!(backup.is(200).header("content-type"), "application/x-tar");
}

#[tokio::test]
async fn one_look_at_a_form_tells_everything_that_is_wrong_with_it() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let form = [
        ("package", "gate"),
        ("version", "1.0.0"),
        // No name, no number, no site code, nobody that is known, no size, no window, too much for a group.
        ("name", "Not Valid"),
        ("answer.owner", "me"),
        ("answer.site", "lower"),
        ("answer.rate", "many"),
        ("answer.shift", "late"),
        ("device", "press-404"),
        ("labels", ""),
        ("sites", ""),
        ("select", ""),
        ("groups", "1"),
        ("group.0.labels", "line=4"),
        ("group.0.answer.rate", "900"),
        ("pace", "steps"),
        ("pace-canary", "some"),
        ("windows", "whenever"),
        ("rollback", "never"),
        ("attempts", "often"),
        ("health-grace", ""),
    ];
    for path in ["/deploy/rehearsal", "/deploy"] {
        let page = text(browser.post(path, &form).await.is(422));
        let marked = page.split("<ul class=\"marked\">").nth(1).unwrap_or_else(|| panic!("{page}"));
        let marked = marked.split("</ul>").next().unwrap();
        let ids: Vec<&str> =
            marked.split("href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        let others: Vec<&&str> = ids.iter().filter(|id| !id.ends_with("-field")).collect();
        assert_eq!(
            others,
            [&"name", &"groups-title", &"targets-title", &"pace-canary", &"windows", &"attempts"],
            "{marked}"
        );
        assert_eq!(ids.len() - others.len(), 2, "two questions: {marked}");
        for id in ids {
            assert!(page.contains(&format!("id=\"{id}\"")), "{id}: {page}");
        }
        assert!(
            page.contains("there is no device press-404") || page.contains("There is no device press-404"),
            "{page}"
        );
        assert_eq!(page.matches("must be answered").count(), 0, "what cannot be read is not missing: {page}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_reference_is_told_in_sentences() {
    let plant = Plant::new().await;
    let mut browser = Browser::signed_in(&plant).await;
    let page = text(browser.post("/packages", &[("reference", "no reference")]).await.is(422));
    let told = page.split("class=\"wrong\"").nth(1).unwrap_or_else(|| panic!("{page}"));
    let told = told.split("</p>").next().unwrap();
    assert!(!told.contains("/reference"), "{told}");
    // And of a repository to watch, each at its field.
    let watch = [("repository", "oci://registry.example/packages/gate"), ("match", ""), ("every", "often")];
    let page = text(browser.post("/watches", &watch).await.is(422));
    assert_eq!(wrong_fields(&page), ["every"], "{page}");
    let watch = [("repository", "no repository"), ("match", ""), ("every", "")];
    let page = text(browser.post("/watches", &watch).await.is(422));
    assert_eq!(wrong_fields(&page), ["repository"], "{page}");
}

#[tokio::test]
async fn a_viewer_sees_everything_and_changes_nothing() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let fleet = plant.server.fleet();
    let want =
        serde_json::from_value(json!({ "name": "eve", "role": "viewer", "validSeconds": 3600 })).unwrap();
    let token = fleet.create_operator_token(&operator(), want).await.unwrap();
    let mut operator = Browser::signed_in(&plant).await;
    let csrf = operator.csrf().await;
    let mut viewer = Browser::stranger(&plant).await;
    let reply = viewer.send_form("/sign-in", &[("token", &token.secret)], &[]).await;
    viewer.cookie = crate::browser::cookie(reply.is(303));
    for path in
        ["/", "/devices", "/devices/press-1", "/packages", "/deployments/north", "/settings", "/audit"]
    {
        let page = viewer.page(path).await;
        let forms = page.matches("method=\"post\"").count();
        assert_eq!(forms, 1, "{path} has forms besides signing out: {page}");
        // Nor is anybody led to a page that says no.
        for link in ["/devices/new", "/deploy?", "/edit\"", "/retire\"", "/remove\"", "/revert?", "/access"] {
            assert!(!page.contains(link), "{path} leads a viewer to {link}: {page}");
        }
    }
    stock::device(&plant, "press-7", 4).await;
    let page = viewer.page("/devices/press-7").await;
    assert!(page.contains("An operator can deploy") && !page.contains("deploy it to this device"), "{page}");
    let page = viewer.page("/settings").await;
    assert!(page.contains("An admin can download it") && !page.contains("margrave backup"), "{page}");
    for path in ["/devices/new", "/deploy?package=gate", "/settings/schedule?reach=fleet", "/access"] {
        assert!(text(viewer.get(path).await.is(403)).contains("Your role"), "{path}");
    }
    for path in [
        "/devices",
        "/deploy",
        "/deploy/rehearsal",
        "/deployments/north/edit/rehearsal",
        "/settings/schedule",
        "/settings/schedule/remove",
        "/settings/registries",
        "/settings/registries/check",
        "/settings/registries/remove",
        "/settings/repository",
        "/settings/backup",
        "/watches",
        "/watches/look",
        "/watches/remove",
    ] {
        viewer.send_form(path, &[("csrf", &csrf), ("device", "press-1")], &[]).await.is(403);
        // Nor does a form of somebody who may, sent from elsewhere.
        let cross = [("sec-fetch-site", "cross-site")];
        operator.send_form(path, &[("csrf", &csrf)], &cross).await.is(403);
        operator.send_form(path, &[("csrf", "guess")], &[]).await.is(403);
    }
    assert_eq!(fleet.device(&"press-1".parse().unwrap()).await.unwrap().standing, "accepted");
    // Only a demo can be broken from its page.
    let drill = [("device", "press-1"), ("fault", "cut-network")];
    operator.post("/demo", &drill).await.is(404);
    assert!(!operator.page("/").await.contains("Break something"));
}

#[tokio::test]
async fn devices_of_a_large_fleet_are_looked_for_in_the_form() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    for number in 0..22 {
        stock::device(&plant, &format!("press-{number:02}"), if number < 20 { 4 } else { 1 }).await;
    }
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/deploy?package=gate").await;
    assert!(page.contains("20 fit; 2 do not: ") && page.contains("name=\"find-search\""), "{page}");
    // Found by name, with what was ticked and typed before.
    let form = [
        ("package", "gate"),
        ("version", "1.0.0"),
        ("name", "south"),
        ("answer.owner", "typed before"),
        ("device", "press-03"),
        ("found-search", ""),
        ("find-search", "press-2"),
    ];
    let mut find = form.to_vec();
    find.push(("do", "find"));
    for fields in [find, form.to_vec()] {
        let page = text(browser.post("/deploy/rehearsal", &fields).await.is(200));
        assert!(page.contains("value=\"press-03\" checked") && page.contains("typed before"), "{page}");
        assert!(page.contains("value=\"press-21\"") && !page.contains("value=\"press-04\""), "{page}");
    }
}

#[tokio::test]
async fn what_taking_the_repository_would_change_is_shown_before_it_is_taken() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let (intent, old) = (plant.data.path().join("intent.git"), plant.data.path().join("old.git"));
    assert!(std::process::Command::new("cp").arg("-r").args([&intent, &old]).status().unwrap().success());
    let south = "south".parse().unwrap();
    plant.server.fleet().put_deployment(&operator(), &south, gate(8)).await.unwrap();
    let mut browser = Browser::signed_in(&plant).await;
    browser.get("/settings/repository/take").await.is(409);
    std::fs::remove_dir_all(&intent).unwrap();
    std::fs::rename(&old, &intent).unwrap();

    let plant = plant.restart().await;
    let mut browser = Browser::signed_in(&plant).await;
    assert!(browser.page("/settings").await.contains("href=\"/settings/repository/take\""));
    let page = browser.page("/settings/repository/take").await;
    is_clean(&page);
    for told in ["This changes 1 device, by 1 deployment.", "It takes 1 application away from them."] {
        assert!(page.contains(told), "{told}: {page}");
    }
    assert!(plant.server.fleet().intent().await.unwrap().conflict.is_some(), "nothing is decided yet");
    browser.post("/settings/repository", &[("do", "take")]).await.is(303);
    assert!(plant.server.fleet().intent().await.unwrap().conflict.is_none());
}

#[tokio::test]
async fn no_list_makes_its_page_grow_for_ever() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let fleet = plant.server.fleet();
    let mut browser = Browser::signed_in(&plant).await;
    for minor in 1..=14 {
        stock::gate_at(&plant, &format!("1.{minor}.0")).await;
    }
    for number in 0..105 {
        let mut want = gate(7);
        want.targets =
            Targets { labels: [("line".to_owned(), number.to_string())].into(), ..Default::default() };
        fleet.put_deployment(&operator(), &format!("line-{number:03}").parse().unwrap(), want).await.unwrap();
    }
    let rows = |page: &str, id: &str| page.matches(&format!("<tr id=\"{id}")).count();
    let page = browser.page("/deployments").await;
    assert_eq!(rows(&page, "deployment-"), 100);
    assert!(page.contains("href=\"/deployments?page=2\"") && page.contains("Page 1 of 2"), "{page}");
    let page = browser.page("/deployments?page=2").await;
    assert_eq!(rows(&page, "deployment-"), 6);
    assert!(page.contains("href=\"/deployments?page=1\"") && !page.contains("Next page"), "{page}");
    let page = browser.page("/deployments?search=line-10&package=gate").await;
    assert_eq!(rows(&page, "deployment-"), 5, "{page}");
    assert!(browser.page("/deployments?search=nobody").await.contains("No deployment matches"));
    browser.get("/deployments?page=x").await.is(400);

    let page = browser.page("/packages/gate/1.0.0").await;
    assert!(page.contains("And <a href=\"/deployments?package=gate\">56 more</a>"), "{page}");
    assert!(page.contains("and <a href=\"/packages?only=gate\">2 more</a>"), "{page}");
    let page = browser.page("/packages").await;
    assert!(page.contains("and <a href=\"/packages?only=gate\">2 more</a>"), "{page}");
    let page = browser.page("/packages?only=gate").await;
    assert_eq!(page.matches("class=\"card package\"").count(), 15);
    assert!(browser.page("/packages?only=none").await.contains("There is no such application"));

    for number in 0..104 {
        plant.operator_token(&format!("ann-{number}"), "viewer").await;
        plant.token(&format!("new-{number}")).await;
    }
    let (one, two) = (browser.page("/access").await, browser.page("/access?page=2").await);
    let both = rows(&one, "token-") + rows(&two, "token-");
    assert!(rows(&one, "token-") == 100 && both >= 104 && one.contains("href=\"/access?page=2\""), "{both}");
    let page = browser.page("/devices/new?page=2").await;
    let open = |page: &str| page.matches("the token of ").count();
    assert!((1..100).contains(&open(&page)) && open(&browser.page("/devices/new").await) == 100, "{page}");

    for number in 0..27 {
        let reach = format!("label:line={number}");
        let window = [("reach", &*reach), ("windows", "sun 02:00-05:00 Europe/Berlin")];
        browser.post("/settings/schedule", &window).await.is(303);
    }
    let weeks = |page: &str| page.matches("Take back what is set for").count();
    let page = browser.page("/settings").await;
    assert!(weeks(&page) == 25 && page.contains("href=\"/settings?schedules=2#schedules\""), "{page}");
    assert_eq!(weeks(&browser.page("/settings?schedules=2").await), 2);

    for number in 0..27 {
        let name = format!("press-{}", number + 2);
        stock::device(&plant, &name, 4).await;
        let labels = SetLabels { labels: [("site".to_owned(), Some(format!("s{number:02}")))].into() };
        fleet.label(&operator(), &name.parse().unwrap(), labels).await.unwrap();
    }
    let typed = [("name", "south"), ("answer.owner", "me"), ("answer.site", "ABC"), ("select", "site")];
    let mut wish = browser.fill_in("/deploy?package=gate&version=1.0.0", &typed).await;
    wish.push(("version".to_owned(), "1.0.0".to_owned()));
    // In steps, but in which? To all at once is what was not chosen.
    wish.iter_mut().find(|(name, _)| name == "pace").unwrap().1 = "steps".to_owned();
    let page = text(browser.send("/deploy/rehearsal", &wish).await.is(422));
    assert!(page.contains("Say in which steps"), "{page}");
    wish.iter_mut().find(|(name, _)| name == "pace").unwrap().1 = "once".to_owned();
    let page = text(browser.send("/deploy/rehearsal", &wish).await.is(200));
    assert_eq!(page.matches("<dt>s").count(), 24, "{page}");
    assert!(page.contains("<dt>Other sites</dt><dd>3 more</dd>"), "{page}");
}

#[tokio::test]
async fn failures_that_differ_in_numbers_only_are_one_cause() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let names: Vec<String> = (1..=210).map(|number| format!("press-{number}")).collect();
    futures_util::future::join_all(names[1..].iter().map(|name| stock::device(&plant, name, 4))).await;
    let mut want = gate(7);
    want.targets.devices = names.clone();
    plant.server.fleet().put_deployment(&operator(), &"north".parse().unwrap(), want).await.unwrap();
    for (number, name) in names.iter().enumerate() {
        let message = format!("{} MiB are free", 3 * number);
        let fault = Some(Fault { code: "disk-full".into(), source: "device".into(), message });
        stock::report(&plant, name, |report| (report.state, report.fault) = (Reported::Failed, fault)).await;
    }
    let page = Browser::signed_in(&plant).await.page("/deployments/north").await;
    let (_, causes) = page.split_once("id=\"causes\"").unwrap();
    assert!(causes.contains("<strong>210 devices</strong>: 0 MiB are free"), "{page}");
    assert_eq!(causes.split_once("</section>").unwrap().0.matches("<strong>").count(), 1, "{page}");
}
