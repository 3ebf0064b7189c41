//! The pages: who gets in, what a form needs, and that a name stays a name.

use http::header::SET_COOKIE;
use margrave_core::lifecycle::Reported;
use margrave_core::report::{ComponentReport, Fault};
use serde_json::json;

use crate::browser::{Browser, cookie, deployed, gate, is_clean, location, text};
use crate::plant::{Plant, operator};
use crate::stock::{self, HOSTILE};

#[tokio::test]
async fn every_page_is_there_guarded_and_free_of_foreign_markup() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let pages = [
        "/",
        "/devices",
        "/devices?search=PRESS&condition=pending&label=note",
        "/devices?search=%3Cscript%3Ealert('x')%3C/script%3E",
        "/devices/new",
        "/devices/press-1",
        "/devices/press-1/retire",
        "/packages",
        "/packages/gate/1.0.0",
        "/packages/gate/1.0.0/remove",
        "/deploy?package=gate&version=1.0.0",
        "/deploy?package=gate",
        "/deployments",
        "/deployments/north",
        "/deployments/north/edit",
        "/deployments/north/remove",
        "/why?subject=press-1",
        "/why?subject=press-1/north",
        "/why?kind=deployment&subject=north",
        "/why?kind=rollout&subject=north",
        "/devices?site=north&state=PENDING&capability=ethernet",
        "/deployments/north/revisions/1",
        "/settings",
        "/settings/schedule?reach=device:press-1",
        "/audit",
        "/access",
        "/sign-in",
    ];
    for path in pages {
        let reply = browser.get(path).await;
        reply.is(200);
        let policy = reply.header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(reply.header("x-content-type-options"), "nosniff", "{path}");
        // Nobody shows a page of ours inside one of theirs.
        assert!(policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        assert_eq!(reply.header("x-frame-options"), "DENY", "{path}");
        assert_eq!(reply.header("cache-control"), "no-store", "{path}");
        assert!(reply.header("content-type").starts_with("text/html"), "{path}");
        let page = text(&reply);
        is_clean(&page);
        assert!(!page.contains(" style=") && !page.contains("onclick"), "{path}");
        assert_eq!(page.matches("<h1").count(), 1, "{path}");
        assert!(page.contains("<main"), "{path}");
        let without = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!without.contains("src=\"http") && !without.contains("href=\"http"), "{path}");
        // Every form that changes something carries the session's mark.
        for form in page.split("<form").skip(1).filter(|form| form.contains("method=\"post\"")) {
            assert!(form.contains("name=\"csrf\"") || path == "/sign-in", "{path}: {form}");
        }
    }
    let device = browser.page("/devices/press-1").await;
    assert!(device.contains("&#60;script&#62;alert"), "{device}");
    let gate = browser.page("/packages/gate/1.0.0").await;
    assert!(gate.contains("Gate &#60;script&#62;"), "{gate}");
    assert!(gate.contains("Needs 2 cores, amd64, 1 GiB memory"), "{gate}");
}

#[tokio::test]
async fn what_a_device_says_went_wrong_stays_text() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let fault = || Fault {
        code: format!("code {HOSTILE}"),
        source: format!("source {HOSTILE}"),
        message: format!("it broke {HOSTILE}"),
    };
    let part = ComponentReport {
        name: format!("gate {HOSTILE}"),
        state: Reported::Failed,
        fault: Some(fault()),
        restarts: 7,
    };
    // As a whole, and then closer to the cause.
    for components in [vec![], vec![part]] {
        stock::report(&plant, "press-1", |report| {
            report.state = Reported::Failed;
            report.fault = Some(fault());
            report.components = components;
        })
        .await;
        for path in [
            "/",
            "/devices",
            "/devices/press-1",
            "/deployments/north",
            "/why?subject=press-1",
            "/why?subject=press-1/north",
            "/why?kind=deployment&subject=north",
            "/why?kind=rollout&subject=north",
        ] {
            let page = browser.page(path).await;
            is_clean(&page);
            let told = "broke &#60;script&#62;alert(&#39;x&#39;)&#60;/script&#62;&#34;&#38;";
            assert!(page.contains(told), "{path}: {page}");
        }
    }
    let page = browser.page("/devices/press-1").await;
    assert!(page.contains("gate &#60;script&#62;"), "its components are named: {page}");
    let (_, health) = page.split_once("id=\"health\"").unwrap();
    assert!(health.contains("It was restarted 7 times since it was started."), "{health}");
}

#[tokio::test]
async fn a_stranger_sees_only_the_door() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut stranger = Browser::stranger(&plant).await;
    for (path, next) in [
        ("/", "%2F"),
        ("/devices/press-1", "%2Fdevices%2Fpress-1"),
        ("/why?subject=a", "%2Fwhy%3Fsubject%3Da"),
    ] {
        let reply = stranger.get(path).await;
        reply.is(303);
        assert_eq!(location(&reply), format!("/sign-in?next={next}"));
        assert!(reply.body.is_empty());
    }
    stranger.get("/packages/gate/1.0.0/icon").await.is(303);
    for stream in ["/events/stream", "/audit/stream"] {
        assert!(stranger.get(stream).await.is(401).body.is_empty(), "{stream}");
    }
    let reply = stranger.send_form("/deployments/north/remove", &[("csrf", "")], &[]).await;
    reply.is(303);
    let door = "/sign-in?next=%2Fdeployments%2Fnorth&undone=true";
    assert_eq!(location(&reply), door);
    assert!(
        text(&stranger.get(door).await).contains("<strong>Nothing was changed.</strong> You were signed out")
    );
    assert!(!text(&stranger.get("/sign-in").await).contains("Nothing was changed"));
    let reply = stranger.send_form("/sign-out", &[("csrf", "")], &[]).await;
    assert_eq!(location(&reply), "/sign-in?next=%2F", "who is signed out has nothing to do again");
    stranger.cookie = "margrave_session=guess".to_owned();
    stranger.get("/").await.is(303);
    plant.server.fleet().deployment(&"north".parse().unwrap()).await.unwrap();
}

#[tokio::test]
async fn signing_in_takes_a_token_and_leads_back_to_our_own_pages_only() {
    let plant = Plant::new().await;
    let token = plant.server.context().token;
    let mut stranger = Browser::stranger(&plant).await;
    for wrong in ["", "guess", &"x".repeat(5000)] {
        let reply = stranger.send_form("/sign-in", &[("token", wrong)], &[]).await;
        reply.is(403);
        assert!(!reply.headers.contains_key(SET_COOKIE));
        assert!(text(&reply).contains("This token is not known"));
    }
    for (next, leads) in [
        ("/devices?search=a", "/devices?search=a"),
        ("https://evil.example/", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/a\r\nset-cookie: x=y", "/"),
        ("javascript:alert(1)", "/"),
    ] {
        let reply = stranger.send_form("/sign-in", &[("token", &token), ("next", next)], &[]).await;
        reply.is(303);
        assert_eq!(location(&reply), leads, "{next:?}");
        let cookie = reply.header("set-cookie");
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
    }
    let page = text(&stranger.get("/sign-in?next=//evil.example").await);
    assert!(!page.contains("evil"), "{page}");
    let other = [("sec-fetch-site", "cross-site")];
    stranger.send_form("/sign-in", &[("token", &token)], &other).await.is(403);

    let mut secure = plant.web().await;
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let reply = secure.send("POST", "/sign-in", &headers, format!("token={token}")).await.unwrap();
    assert!(reply.is(303).header("set-cookie").contains("; Secure"));

    let mut browser = Browser::signed_in(&plant).await;
    browser.post("/sign-out", &[]).await.is(303);
    browser.get("/").await.is(303);
}

#[tokio::test]
async fn a_welcome_link_works_once_and_not_ahead_of_time() {
    let plant = Plant::new().await;
    let link = plant.server.sign_in_link();
    let path = link.splitn(4, '/').nth(3).map(|path| format!("/{path}")).unwrap();
    let mut line = plant.local().await;
    line.send("GET", &path, &[("sec-purpose", "prefetch")], "").await.unwrap().is(204);
    line.send("HEAD", &path, &[], "").await.unwrap().is(204);
    let reply = line.get(&path).await.unwrap();
    reply.is(303);
    assert_eq!(location(&reply), "/");
    let mut browser = Browser { line, cookie: cookie(&reply) };
    browser.page("/").await;
    let again = browser.get(&path).await;
    assert!(text(again.is(403)).contains("cannot be used any more"));
}

#[tokio::test]
async fn a_form_from_elsewhere_changes_nothing() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let csrf = browser.csrf().await;
    let mut other = Browser::stranger(&plant).await;
    let token = plant.operator_token("olga", "operator").await;
    other.cookie = cookie(other.send_form("/sign-in", &[("token", &token.secret)], &[]).await.is(303));
    let foreign = other.csrf().await;
    let actions = [
        "/deployments/north/remove",
        "/deployments/north/revert",
        "/devices/press-1/retire",
        "/packages/gate/1.0.0/remove",
        "/sign-out",
    ];
    for action in actions {
        for mark in ["", "wrong", &foreign, &csrf[1..]] {
            let reply = browser.send_form(action, &[("csrf", mark)], &[]).await;
            assert!(text(reply.is(403)).contains("reload the page"), "{action}");
        }
        browser.send_form(action, &[], &[]).await.is(403);
        let cross = [("sec-fetch-site", "cross-site")];
        browser.send_form(action, &[("csrf", &csrf)], &cross).await.is(403);
        let origin = [("origin", "https://evil.example")];
        browser.send_form(action, &[("csrf", &csrf)], &origin).await.is(403);
    }
    let fleet = plant.server.fleet();
    assert!(!fleet.deployment(&"north".parse().unwrap()).await.unwrap().removing);
    assert_eq!(fleet.device(&"press-1".parse().unwrap()).await.unwrap().standing, "accepted");
    // No form is sent by following a link.
    for action in ["/sign-out", "/devices/press-1/accept", "/devices/press-1/labels"] {
        assert_eq!(browser.get(action).await.status.as_u16(), 405, "{action}");
    }
    let large = "x".repeat(300 * 1024);
    browser.send_form("/packages", &[("csrf", &csrf), ("reference", &large)], &[]).await.is(413);
}

#[tokio::test]
async fn the_deploy_form_keeps_what_was_typed_and_says_what_is_wrong_where() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let form = browser.page("/deploy?package=gate&version=1.0.0").await;
    assert!(form.contains(">\nNORD</textarea>"), "the package's own values stand in the form: {form}");
    // Known before the question without a value of its own is answered.
    assert!(form.contains("data-state=\"fits\"") && form.contains("data-state=\"does not fit\""), "{form}");

    let wrong = [
        ("package", "gate"),
        ("version", "1.0.0"),
        ("name", "Not Valid"),
        ("answer.site", "lower <b>case</b>"),
        ("answer.rate", "many"),
        ("answer.shift", "late"),
    ];
    let reply = browser.post("/deploy", &wrong).await;
    let page = text(reply.is(422));
    is_clean(&page);
    assert!(page.contains("value=\"Not Valid\"") && page.contains("A deployment name is 1 to 63"), "{page}");
    assert!(page.contains(">\nlower &#60;b&#62;case&#60;/b&#62;</textarea>"), "{page}");
    assert!(page.contains("“many” is no whole number"), "{page}");
    assert!(page.contains("<option value=\"late\" selected>late</option>"), "{page}");
    assert!(page.contains("Tick at least one device"), "{page}");
    assert!(page.contains("This needs a value"), "{page}");

    // The top of the form leads to everything that is marked, however far down it stands.
    let low = [
        ("package", "gate"),
        ("version", "1.0.0"),
        ("name", "south"),
        ("answer.rate", "99999999999999999999999"),
        ("rollback", "on-failed-update"),
        ("attempts", "-1"),
        ("health-grace", "forever"),
    ];
    let page = text(browser.post("/deploy", &low).await.is(422));
    for id in ["attempts", "health-grace", "targets-title"] {
        assert!(page.contains(&format!("<li><a href=\"#{id}\">")), "{id}: {page}");
        assert!(page.contains(&format!("id=\"{id}\"")), "{id}: {page}");
    }
    assert!(page.contains("is too large"), "{page}");

    // Well-formed, but against the package's rules and the device's size: the fleet's words, at the field.
    let mut refused = vec![
        ("package", "gate"),
        ("version", "1.0.0"),
        ("name", "south"),
        ("answer.owner", "me"),
        ("answer.site", "NORD"),
        ("answer.rate", "900"),
        ("answer.shift", "late"),
        ("device", "press-1"),
    ];
    let page = text(browser.post("/deploy", &refused).await.is(422));
    let (_, field) = page.split_once("name=\"answer.rate\"").unwrap();
    assert!(field.split_once("</div>").unwrap().0.contains("class=\"wrong\""), "{page}");
    assert!(page.contains("value=\"press-1\" checked"), "{page}");
    refused[5].1 = "9";
    refused[7].1 = "small-1";
    let page = text(browser.post("/deploy", &refused).await.is(422));
    assert!(page.contains("small-1 does not fit"), "{page}");
    let fleet = plant.server.fleet();
    assert!(fleet.deployment(&"south".parse().unwrap()).await.is_err());

    refused[7].1 = "press-1";
    refused[2].1 = "north";
    let page = text(browser.post("/deploy", &refused).await.is(422));
    assert!(page.contains("There is a deployment of this name"), "{page}");
    refused[2].1 = "south";
    let reply = browser.post("/deploy", &refused).await;
    assert_eq!(location(reply.is(303)), "/deployments/south");
    let made = fleet.deployment(&"south".parse().unwrap()).await.unwrap();
    assert_eq!(made.parameters["rate"], json!(9));
    assert_eq!(made.parameters["alarm"], json!(false), "an unticked box is an answer");
    let page = browser.page("/deployments/south").await;
    assert!(page.contains("PENDING") && page.contains("--set rate=9"), "{page}");
}

#[tokio::test]
async fn a_change_on_top_of_somebody_elses_is_shown_and_refused() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let form = browser.page("/deployments/north/edit").await;
    assert!(form.contains("name=\"answer.rate\" value=\"7\""), "{form}");
    let (_, rest) = form.split_once("name=\"revision\" value=\"").unwrap();
    let revision = rest.split_once('"').unwrap().0.to_owned();
    let change = |rate: &'static str| {
        vec![
            ("version", "1.0.0"),
            ("answer.owner", "me"),
            ("answer.site", "NORD"),
            ("answer.rate", rate),
            ("answer.shift", "early"),
            ("answer.alarm", "true"),
            ("device", "press-1"),
        ]
    };
    let mut mine = change("11");
    mine.push(("revision", revision.as_str()));
    assert_eq!(location(browser.post("/deployments/north/edit", &mine).await.is(303)), "/deployments/north");
    let mut late = change("12");
    late.push(("revision", revision.as_str()));
    let page = text(browser.post("/deployments/north/edit", &late).await.is(422));
    assert!(page.contains("Nothing was changed") && page.contains("value=\"12\""), "{page}");
    let fleet = plant.server.fleet();
    assert_eq!(fleet.deployment(&"north".parse().unwrap()).await.unwrap().parameters["rate"], json!(11));
    // Who was faster is told, and who sends it once more is heard: first what it would change, then the change.
    assert!(page.contains("admin changed north while this form was open"), "{page}");
    assert!(page.contains("href=\"/deployments/north/revisions/2?against=1\""), "{page}");
    browser.page("/deployments/north/revisions/2?against=1").await;
    assert!(page.contains("name=\"revision\" value=\"2\""), "{page}");
    let page = text(browser.post("/deployments/north/edit/rehearsal", &late).await.is(422));
    assert!(page.contains("name=\"revision\" value=\"2\""), "also before anything is done: {page}");
    late.last_mut().unwrap().1 = "2";
    let page = text(browser.post("/deployments/north/edit/rehearsal", &late).await.is(200));
    assert!(page.contains("<del>11</del>") && page.contains("<ins>12</ins>"), "{page}");
    browser.post("/deployments/north/edit", &late).await.is(303);
    assert_eq!(fleet.deployment(&"north".parse().unwrap()).await.unwrap().parameters["rate"], json!(12));

    browser.post("/deployments/north/remove", &[]).await.is(303);
    let removed = fleet.deployment(&"north".parse().unwrap()).await;
    assert!(removed.is_err() || removed.unwrap().removing);
}

#[tokio::test]
async fn a_deployments_page_leads_back_to_what_it_was() {
    let plant = Plant::new().await;
    deployed(&plant).await;
    let fleet = plant.server.fleet();
    let north = "north".parse().unwrap();
    let mut want = gate(9);
    fleet.put_deployment(&operator(), &north, want.clone()).await.unwrap();
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/deployments/north").await;
    is_clean(&page);
    assert!(page.contains("<del>7</del> → <ins>9</ins>"), "{page}");
    assert!(page.contains("/deployments/north/revert?to=1\""), "{page}");
    assert!(!page.contains("revert?to=2"), "nobody goes back to where they are: {page}");
    // Asked first, with what it would change.
    let ask = browser.page("/deployments/north/revert?to=1").await;
    assert!(ask.contains(": 9 → 7"), "{ask}");
    assert!(ask.contains("name=\"to\" value=\"1\"") && ask.contains("name=\"seen\" value=\"2\""), "{ask}");
    browser.get("/deployments/north/revert?to=9").await.is(404);
    // Every commit leads to what it changed, line by line.
    let commit = fleet.deployment(&north).await.unwrap().commit.unwrap();
    let path = format!("/commits/{commit}");
    for page in [page, browser.page("/settings").await, browser.page("/deployments/north/revisions/2").await]
    {
        assert!(page.contains(&format!("href=\"{path}\"")), "{page}");
    }
    let page = browser.page(&path).await;
    assert!(
        page.contains("class=\"gone\">-    rate: 7") && page.contains("class=\"new\">+    rate: 9"),
        "{page}"
    );
    assert!(page.contains("data-copy"), "{page}");
    // A change says what becomes other before it does.
    let change = [
        ("version", "1.0.0"),
        ("revision", "2"),
        ("answer.owner", "me"),
        ("answer.site", "NORD"),
        ("answer.rate", "12"),
        ("answer.shift", "early"),
        ("answer.alarm", "true"),
        ("device", "press-1"),
    ];
    let page = text(browser.post("/deployments/north/edit/rehearsal", &change).await.is(200));
    assert!(page.contains("<del>9</del>") && page.contains("<ins>12</ins>"), "{page}");

    // Somebody changes it while the page is open: the button of that page must not undo that.
    want.parameters.insert("rate".to_owned(), json!(11));
    fleet.put_deployment(&operator(), &north, want).await.unwrap();
    let old = [("to", "1"), ("seen", "2")];
    let told = text(browser.post("/deployments/north/revert", &old).await.is(409));
    assert!(told.contains("changed in between"), "{told}");
    for bad in [&[("to", "x"), ("seen", "3")][..], &[("to", "1")]] {
        browser.post("/deployments/north/revert", bad).await.is(400);
    }
    let fresh = [("to", "1"), ("seen", "3")];
    let reply = browser.post("/deployments/north/revert", &fresh).await;
    assert_eq!(location(reply.is(303)), "/deployments/north");
    let now = fleet.deployment(&north).await.unwrap();
    assert_eq!((now.revision, now.parameters["rate"].clone()), (4, json!(7)));
}

#[tokio::test]
async fn devices_are_added_labelled_and_retired_from_their_pages() {
    let plant = Plant::new().await;
    stock::device(&plant, "press-1", 4).await;
    let mut browser = Browser::signed_in(&plant).await;
    let page =
        text(browser.post("/devices/new", &[("name", "weld-1"), ("labels", "site=north")]).await.is(200));
    assert!(page.contains("margrave-agent join") && page.contains("mgj_"), "{page}");
    assert!(!browser.page("/devices/new").await.contains("mgj_"), "the token is shown once");
    let page = text(browser.post("/devices/new", &[("name", "no good"), ("labels", "")]).await.is(422));
    assert!(page.contains("value=\"no good\""), "{page}");
    let page = text(browser.post("/devices/new", &[("name", "x"), ("labels", "oops")]).await.is(422));
    assert!(page.contains("“oops” is no label"), "{page}");

    let set = [("key", "line"), ("value", HOSTILE)];
    assert_eq!(location(browser.post("/devices/press-1/labels", &set).await.is(303)), "/devices/press-1");
    let page = browser.page("/devices/press-1").await;
    is_clean(&page);
    // Each button has its command.
    for command in ["site=north", "line-"] {
        assert!(page.contains(&format!("margrave device label press-1 {command}<")), "{command}: {page}");
    }
    let page = browser.page("/devices").await;
    assert!(page.contains("margrave device label &#34;$id&#34; line-; done"), "{page}");
    let device = "press-1".parse().unwrap();
    let fleet = plant.server.fleet();
    assert_eq!(fleet.device(&device).await.unwrap().labels["line"], HOSTILE);
    browser.post("/devices/press-1/labels", &[("remove", "line")]).await.is(303);
    assert!(fleet.device(&device).await.unwrap().labels.is_empty());
    browser.post("/devices/press-1/labels", &[("key", " ")]).await.is(400);

    browser.post("/devices/press-1/retire", &[]).await.is(303);
    assert_eq!(fleet.device(&device).await.unwrap().standing, "retired");
    assert!(browser.page("/devices/press-1").await.contains("Accept again"));
    browser.post("/devices/press-1/accept", &[]).await.is(303);
    assert_eq!(fleet.device(&device).await.unwrap().standing, "accepted");
    // A token that nobody used is listed, and made void after a question.
    browser.post("/devices/new", &[("name", "press-8"), ("labels", "line=4")]).await.is(200);
    let page = browser.page("/devices/new").await;
    assert!(page.contains("nobody has used yet") && page.contains("/devices/new/press-8/revoke"), "{page}");
    assert!(browser.page("/devices/new/press-8/revoke").await.contains("margrave device untoken press-8"));
    assert_eq!(location(browser.post("/devices/new/press-8/revoke", &[]).await.is(303)), "/devices/new#open");
    assert!(!browser.page("/devices/new").await.contains("press-8"));
    browser.post("/devices/new/press-8/revoke", &[]).await.is(404);
}

#[tokio::test]
async fn what_is_missing_says_what_to_do_next() {
    let plant = Plant::new().await;
    let mut browser = Browser::signed_in(&plant).await;
    for (path, status) in [
        ("/nowhere", 404),
        ("/devices/nobody", 404),
        ("/deployments/nothing", 404),
        ("/packages/nothing/1.0.0", 404),
        ("/devices/a%20b", 400),
        ("/deployments/UPPER", 400),
        ("/why?subject=nobody", 404),
        ("/welcome/guess", 403),
        ("/deployments/north/revisions/abc", 404),
        ("/deployments/north/revisions/1?against=zz", 400),
        ("/watches", 405),
        ("/settings/registries/check", 405),
        ("/devices/press-1/labels", 405),
    ] {
        let reply = browser.get(path).await;
        let page = text(reply.is(status));
        assert!(page.contains("class=\"next\"") && page.contains("href=\"/\""), "{path}: {page}");
        assert!(reply.header("content-security-policy").contains("default-src 'none'"), "{path}");
    }
    let page = text(browser.get("/deployments/north/revisions/1?against=zz").await.is(400));
    assert!(page.contains("“against” in this address"), "{page}");
    // What only takes a form leads to the page that has it.
    let page = text(browser.get("/devices/press-1/labels").await.is(405));
    assert!(page.contains("href=\"/devices/press-1\""), "{page}");
    for (path, form) in
        [("/deploy/rehearsal", "/deploy"), ("/deployments/north/edit/rehearsal", "/deployments/north/edit")]
    {
        assert_eq!(location(browser.get(path).await.is(303)), form);
    }
    let page = text(browser.get("/devices?condition=bogus").await.is(422));
    assert!(page.contains("A condition is one of") && !page.contains("/condition"), "{page}");
    // An empty server says how to begin.
    assert!(browser.page("/").await.contains("Begin here"));
    assert!(browser.page("/devices").await.contains("No device has joined yet"));
    assert!(browser.page("/packages").await.contains("The catalog is empty"));
    assert!(browser.page("/deployments").await.contains("Nothing is deployed"));
    // Where a page that follows a removal ends up; what is no name is not repeated.
    assert!(browser.page("/deployments?gone=north").await.contains("is gone from every device"));
    assert!(!browser.page("/deployments?gone=%3Cb%3E").await.contains("is gone"));
    // The buttons for ticked devices come with the first one; who may only look is not left with a blank page.
    assert!(browser.page("/devices").await.contains("id=\"bulk-part\" data-live"));
    let token = plant.operator_token("vera", "viewer").await;
    let mut vera = Browser::stranger(&plant).await;
    vera.cookie = cookie(vera.send_form("/sign-in", &[("token", &token.secret)], &[]).await.is(303));
    assert!(vera.page("/").await.contains("No device has joined yet. An operator adds the first one"));
    // What was refused follows as the page does that it belongs to.
    let page = text(browser.post("/watches", &[("repository", "not a repository")]).await.is(422));
    assert!(page.contains("data-here=\"/packages\""), "{page}");
    let page = text(browser.post("/packages", &[("reference", "not a reference")]).await.is(422));
    assert!(page.contains("value=\"not a reference\"") && page.contains("class=\"wrong\""), "{page}");
}

#[tokio::test]
async fn assets_may_be_kept_for_ever_and_icons_stay_pictures() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/").await;
    for (marker, media_type) in [(".css", "text/css"), (".js", "text/javascript"), (".svg", "image/svg+xml")]
    {
        let end = page.find(&format!("{marker}\"")).unwrap() + marker.len();
        let start = page[..end].rfind("/assets/").unwrap();
        let reply = browser.get(&page[start..end]).await;
        reply.is(200);
        assert!(reply.header("content-type").starts_with(media_type), "{marker}");
        assert!(reply.header("cache-control").contains("immutable"), "{marker}");
    }
    browser.get("/assets/0000000000000000/margrave.css").await.is(404);
    browser.get("/assets/0000000000000000/..%2f..%2fCargo.toml").await.is(404);

    let icon = browser.get("/packages/gate/1.0.0/icon").await;
    icon.is(200);
    assert_eq!(icon.header("content-type"), "image/svg+xml");
    assert!(icon.header("content-security-policy").contains("sandbox"));
}

#[tokio::test]
async fn who_waits_to_be_let_in_is_decided_about_on_the_page() {
    use margrave_identity::key::PrivateKey;
    use margrave_identity::message::ClientCertificate;
    use margrave_server::fleet::SignedPolicy;

    let plant = Plant::new().await;
    let fleet = plant.server.fleet();
    let mut browser = Browser::signed_in(&plant).await;
    let waiting = async |browser: &mut Browser| {
        let page = browser.page("/").await;
        is_clean(&page);
        let words = page.split_once("href=\"/devices#waiting\"><strong>").map(|(_, rest)| rest.to_owned());
        words.and_then(|rest| Some(rest.split_once("</strong>")?.0.to_owned()))
    };
    assert_eq!(waiting(&mut browser).await, None);
    let mut ids = Vec::new();
    for (name, words) in [(HOSTILE, "1 device waits"), ("second", "2 devices wait")] {
        let key = PrivateKey::generate().unwrap();
        let certificate = ClientCertificate::self_signed(&key, name, crate::plant::now()).unwrap();
        fleet.onboard(&SignedPolicy::default(), certificate, true, None).await.unwrap();
        ids = fleet.signed_clients(Some("pending")).unwrap();
        assert_eq!(waiting(&mut browser).await.as_deref(), Some(words));
    }
    assert!(!browser.page("/").await.contains("Nothing needs a person"));
    let why = format!("/why?subject={}", ids[0].client);
    assert!(browser.page("/").await.contains(&format!("href=\"{why}\"")), "{why}");
    let page = browser.page(&why).await;
    is_clean(&page);
    assert!(page.contains("waits to be let in since") && page.contains("not-accepted"), "{page}");
    let page = browser.page("/devices").await;
    is_clean(&page);
    assert!(page.contains("Waiting to be accepted") && page.contains(&ids[0].fingerprint), "{page}");
    assert!(!browser.page("/devices?search=x").await.contains("Waiting to be accepted"));
    let (first, second) = (ids[0].client.clone(), ids[1].client.clone());
    // Who waits has no page of its own.
    let reply = browser.get(&format!("/devices/{first}")).await;
    assert_eq!((reply.status.as_u16(), location(&reply)), (303, "/devices"));
    // A form from elsewhere decides nothing.
    let forged = browser.send_form(&format!("/devices/{first}/accept"), &[("csrf", "x")], &[]).await;
    forged.is(403);
    assert_eq!(fleet.signed_clients(Some("pending")).unwrap().len(), 2);
    let reply = browser.post(&format!("/devices/{first}/accept"), &[]).await;
    assert_eq!((reply.status.as_u16(), location(&reply)), (303, &*format!("/devices/{first}")));
    let page = browser.page(&format!("/devices/{first}")).await;
    assert!(page.contains("g1 (signed requests)"), "{page}");
    let reply = browser.post(&format!("/devices/{second}/reject"), &[]).await;
    assert_eq!((reply.status.as_u16(), location(&reply)), (303, "/devices"));
    let page = browser.page("/devices").await;
    assert!(!page.contains("Waiting to be accepted") && page.contains(">g1</span>"), "{page}");
    assert_eq!(fleet.signed_clients(Some("rejected")).unwrap()[0].client, second);
    assert_eq!(waiting(&mut browser).await, None);
}
