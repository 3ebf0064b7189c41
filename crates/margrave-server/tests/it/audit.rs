//! The log of what operators did and were refused: that nothing is missing from it, and nothing in it that should not be.

use margrave_core::audit::Check;
use margrave_wire::operator::{self, AuditEntry, Page};
use serde_json::{Value, json};

use crate::line::Line;
use crate::plant::Plant;
use crate::stock;

const PREFIX: &str = operator::PREFIX;

async fn send(line: &mut Line, secret: &str, method: &str, path: &str, body: &Value) -> u16 {
    let authorization = format!("Bearer {secret}");
    let headers = [
        ("authorization", authorization.as_str()),
        ("content-type", "application/json"),
        ("user-agent", "curl/8"),
    ];
    line.send(method, &format!("{PREFIX}{path}"), &headers, body.to_string()).await.unwrap().status.as_u16()
}

async fn read(line: &mut Line, secret: &str, query: &str) -> Page<AuditEntry> {
    let authorization = format!("Bearer {secret}");
    let headers = [("authorization", authorization.as_str())];
    line.send("GET", &format!("{PREFIX}/audit?{query}"), &headers, "").await.unwrap().is(200).json()
}

/// Without what no operator asked for.
fn asked(page: Page<AuditEntry>) -> Vec<AuditEntry> {
    page.items.into_iter().filter(|entry| !matches!(entry.way.as_str(), "server" | "device")).collect()
}

fn brief(entry: &AuditEntry) -> String {
    let AuditEntry { actor, role, way, action, subject, outcome, .. } = entry;
    format!("{actor} ({}) by {way}: {action} {subject:?} {outcome}", role.as_deref().unwrap_or("-"))
}

#[tokio::test]
async fn every_change_and_every_refusal_is_written_down_with_who_what_and_from_where() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let admin = plant.server.context().token;
    let viewer = plant.operator_token("vera", "viewer").await.secret;
    let operator = plant.operator_token("otto", "operator").await.secret;
    let mut line = plant.local().await;
    let labels = json!({"labels": {"site": "nord"}});
    let secret = json!({"name": "x", "role": "s3cret-value"});
    for (who, method, path, body, status) in [
        (&operator, "PATCH", "/devices/press-1/labels", &labels, 200),
        (&viewer, "PATCH", "/devices/press-1/labels", &labels, 403),
        (&operator, "POST", "/tokens", &json!({"name": "x", "role": "admin"}), 403),
        (&operator, "POST", "/devices/nobody/retire", &Value::Null, 404),
        (&operator, "POST", "/devices/press-1/retire", &Value::Null, 200),
        (&operator, "POST", "/join-tokens", &json!({"device": "press-1"}), 409),
        (&operator, "POST", "/join-tokens", &json!({"device": "press-2"}), 201),
        (&admin, "POST", "/tokens", &secret, 422),
        (&admin, "POST", "/nonsense", &Value::Null, 404),
        (&"mgo_wrong".to_owned(), "DELETE", "/deployments/web", &Value::Null, 401),
    ] {
        assert_eq!(send(&mut line, who, method, path, body).await, status, "{method} {path}");
    }
    // Who only looks leaves nothing.
    assert_eq!(send(&mut line, &viewer, "GET", "/devices", &Value::Null).await, 200);
    let entries = asked(read(&mut line, &viewer, "").await);
    let found: Vec<_> = entries.iter().rev().map(brief).collect();
    assert_eq!(
        found,
        [
            "operator otto (operator) by rest: device.labels \"press-1\" done",
            "operator vera (viewer) by rest: device.labels \"press-1\" role-needed",
            "operator otto (operator) by rest: token.add \"\" role-needed",
            "operator otto (operator) by rest: device.retire \"nobody\" not-found",
            "operator otto (operator) by rest: device.retire \"press-1\" done",
            "operator otto (operator) by rest: join-token.add \"press-1\" conflict",
            "operator otto (operator) by rest: join-token.add \"press-2\" done",
            "operator admin (admin) by rest: token.add \"x\" invalid",
            // Where nothing answers, nobody is asked who they are.
            "unknown (-) by rest: unknown \"\" no-such-path",
            "unknown (-) by rest: deployment.remove \"web\" unauthorized",
        ]
    );
    assert!(entries.iter().all(|entry| entry.source == "127.0.0.1"));
    assert!(entries[8].detail.contains("the role operator"), "{:?}", entries[8]);
    let all = serde_json::to_string(&entries).unwrap();
    for hidden in ["mgo_", "mgj_", "s3cret-value", &admin, &viewer, &operator] {
        assert!(!all.contains(hidden), "{hidden} in {all}");
    }
}

#[tokio::test]
async fn wrong_tokens_are_written_down_wherever_they_are_tried() {
    let plant = Plant::new().await;
    let admin = plant.server.context().token;
    let mut line = plant.local().await;
    let right = format!("Bearer {admin}");
    let (refs, fetch) =
        ("/git/intent.git/info/refs?service=git-upload-pack", "/git/intent.git/git-upload-pack");
    let kind = ("content-type", "application/x-git-upload-pack-request");
    let at = [("GET", "/metrics"), ("GET", refs), ("POST", fetch), ("GET", "/git/intent.git/config")];
    for (method, path) in at {
        // Who shows nothing learns that something is needed, which is no refusal.
        line.send(method, path, &[kind], "").await.unwrap().is(401);
        line.send(method, path, &[kind, ("authorization", "Bearer mgo_wrong")], "").await.unwrap().is(401);
    }
    // Who may look leaves nothing; a fetch is a look, although it is a POST.
    line.send("GET", "/metrics", &[("authorization", &right)], "").await.unwrap().is(200);
    line.send("GET", refs, &[("authorization", &right)], "").await.unwrap().is(200);
    line.send("POST", fetch, &[kind, ("authorization", &right)], "0000").await.unwrap().is(200);
    let entries = asked(read(&mut line, &admin, "").await);
    let found: Vec<_> = entries.iter().rev().map(brief).collect();
    assert_eq!(
        found,
        [
            "unknown (-) by rest: metric.look \"\" unauthorized",
            "unknown (-) by git: intent.fetch \"main\" unauthorized",
            "unknown (-) by git: intent.fetch \"main\" unauthorized",
            "unknown (-) by git: intent.fetch \"main\" unauthorized",
        ]
    );
}

#[tokio::test]
async fn refusals_at_devices_own_repositories_are_written_down() {
    // What is not refused is answered by it.
    let Some(_) = crate::git::Client::new("") else { return };
    let plant = Plant::new().await;
    let admin = plant.server.context().token;
    let mut tokens = Vec::new();
    for device in ["press-1", "press-2"] {
        plant.join(device).await;
        tokens.push(crate::git::put_git(&plant, device, false, None).await.token.unwrap());
    }
    let mut line = plant.web().await;
    let at = |device: &str, part: &str| format!("/git/devices/{device}.git/{part}");
    let (fetch, push) = ("info/refs?service=git-upload-pack", "info/refs?service=git-receive-pack");
    // Who shows nothing learns that something is needed, which is no refusal.
    line.send("GET", &at("press-1", fetch), &[], "").await.unwrap().is(401);
    for (token, device, part, status) in [
        ("mgg_wrong", "press-1", fetch, 401),
        (tokens[0].as_str(), "press-2", fetch, 404),
        (tokens[0].as_str(), "press-1", push, 403),
        (tokens[0].as_str(), "nobody", fetch, 404),
        // What it may is no news.
        (tokens[0].as_str(), "press-1", fetch, 200),
    ] {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", authorization.as_str())];
        line.send("GET", &at(device, part), &headers, "").await.unwrap().is(status);
    }
    let mut local = plant.local().await;
    let entries = read(&mut local, &admin, "").await.items;
    let entries: Vec<AuditEntry> = entries.into_iter().filter(|entry| entry.way == "git").collect();
    let found: Vec<_> = entries.iter().rev().map(brief).collect();
    assert_eq!(
        found,
        [
            "unknown (-) by git: device.fetch \"press-1\" unauthorized",
            "device press-1 (-) by git: device.fetch \"press-2\" not-found",
            "device press-1 (-) by git: device.push \"press-1\" forbidden",
            "device press-1 (-) by git: device.fetch \"nobody\" not-found",
        ]
    );
    let all = serde_json::to_string(&entries).unwrap();
    assert!(!all.contains("mgg_") && !tokens.iter().any(|token| all.contains(token)), "{all}");
}

#[tokio::test]
async fn pages_the_command_line_and_the_registry_are_told_apart() {
    let plant = Plant::new().await;
    let admin = plant.server.context().token;
    let mut line = plant.local().await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let wrong = line.send("POST", "/sign-in", &form, "token=guess").await.unwrap();
    wrong.is(403);
    let reply = line.send("POST", "/sign-in", &form, format!("token={admin}")).await.unwrap();
    let cookie = reply.is(303).header("set-cookie").split(';').next().unwrap().to_owned();
    let headers = [("cookie", cookie.as_str()), form[0]];
    line.send("POST", "/devices/new", &headers, "csrf=guess&name=press-1").await.unwrap().is(403);
    line.send("POST", "/devices/new", &form, "csrf=guess&name=press-1").await.unwrap().is(303);
    let authorization = format!("Bearer {admin}");
    let agent = [("authorization", authorization.as_str()), ("user-agent", "margrave/0.1.0")];
    line.send("POST", &format!("{PREFIX}/devices/nobody/retire"), &agent, "").await.unwrap().is(404);
    line.send("PUT", "/v2/team/app/manifests/1", &agent, "{}").await.unwrap().is(400);
    line.send("DELETE", "/v2/team/app/manifests/1", &[], "").await.unwrap().is(401);
    let link = plant.server.sign_in_link();
    line.get(&format!("/welcome/{}", link.rsplit('/').next().unwrap())).await.unwrap().is(303);
    let page = read(&mut line, &admin, "").await;
    let found: Vec<_> = page.items.iter().rev().map(brief).collect();
    assert_eq!(
        found,
        [
            "unknown (-) by page: session.begin \"\" forbidden",
            "operator admin (admin) by page: session.begin \"\" done",
            "operator admin (admin) by page: join-token.add \"\" forbidden",
            "unknown (-) by page: join-token.add \"\" unauthorized",
            "operator admin (admin) by cli: device.retire \"nobody\" not-found",
            "operator admin (admin) by registry: registry.push \"team/app:1\" malformed",
            "unknown (-) by registry: registry.delete \"team/app:1\" unauthorized",
            "operator admin (admin) by page: session.begin \"\" done",
        ]
    );
    assert!(page.items[0].detail.contains("by a sign-in link for token"), "{:?}", page.items[0]);
    // And on the page itself.
    let shown = line.send("GET", "/audit?actor=admin", &[("cookie", &cookie)], "").await.unwrap();
    let text = String::from_utf8(shown.is(200).body.to_vec()).unwrap();
    assert!(text.contains("device.retire") && !text.contains("registry.delete"), "{text}");
    line.send("GET", "/audit?since=never", &[("cookie", &cookie)], "").await.unwrap().is(422);
}

#[tokio::test]
async fn a_change_names_the_commit_that_it_became_and_a_rehearsal_is_none() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let admin = plant.server.context().token;
    let mut line = plant.local().await;
    let label = |value: &str| json!({"labels": {"site": value}});
    assert_eq!(send(&mut line, &admin, "PATCH", "/devices/press-1/labels", &label("nord")).await, 200);
    let commit = plant.server.fleet().intent().await.unwrap().commit;
    let entries = asked(read(&mut line, &admin, "").await);
    assert_eq!((entries.len(), &entries[0].commit), (1, &commit));
    // The page leads from the entry to what was changed.
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let reply = line.send("POST", "/sign-in", &form, format!("token={admin}")).await.unwrap();
    let cookie = reply.is(303).header("set-cookie").split(';').next().unwrap().to_owned();
    let cookie = [("cookie", cookie.as_str())];
    let path = format!("/commits/{}", commit.unwrap());
    let shown = line.send("GET", "/audit", &cookie, "").await.unwrap();
    assert!(String::from_utf8_lossy(&shown.is(200).body).contains(&path));
    let shown = line.send("GET", &path, &cookie, "").await.unwrap();
    let text = String::from_utf8_lossy(&shown.is(200).body).into_owned();
    assert!(text.contains("Label press-1: site=nord") && text.contains("devices/press-1.yaml"), "{text}");
    line.send("GET", "/commits/none", &cookie, "").await.unwrap().is(404);
    // What changes nothing is no commit, and neither is what is no intent.
    for (path, body) in [("/devices/press-1/labels", label("nord")), ("/devices/press-1/retire", Value::Null)]
    {
        let method = if path.ends_with("labels") { "PATCH" } else { "POST" };
        assert_eq!(send(&mut line, &admin, method, path, &body).await, 200);
    }
    let entries = asked(read(&mut line, &admin, "").await);
    let bare = entries.iter().filter(|entry| entry.commit.is_none()).count();
    assert_eq!((entries.len(), bare), (4, 3), "{entries:?}");
    let want = json!({"name": "late", "role": "viewer"});
    assert_eq!(send(&mut line, &admin, "POST", "/tokens", &want).await, 201);

    // A rehearsal is nothing that was done or refused; the same for real is.
    let before = read(&mut line, &admin, "").await.items.len();
    let wrong = "apiVersion: margrave/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  package: none\n  \
                 version: 1.0.0\n  targets:\n    devices: [press-1]\n";
    let rehearsal = json!({"documents": [wrong], "dryRun": true});
    assert_eq!(send(&mut line, &admin, "POST", "/intent/apply", &rehearsal).await, 422);
    assert_eq!(read(&mut line, &admin, "").await.items.len(), before);
    let real = json!({"documents": [wrong]});
    assert_eq!(send(&mut line, &admin, "POST", "/intent/apply", &real).await, 422);
    let page = read(&mut line, &admin, "").await;
    let refused = &page.items[0];
    assert_eq!(
        brief(refused),
        "operator admin (admin) by rest: intent.apply \"deployments/web.yaml\" invalid"
    );
    assert!(refused.detail.contains("deployments/web.yaml:6 ("), "{refused:?}");
    assert!(!refused.detail.contains("none"), "no words of what was sent: {refused:?}");
    // Who may look may rehearse; who may not change is told so of a change.
    let viewer = plant.operator_token("vera", "viewer").await.secret;
    let good = json!({"documents": ["apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: press-1\nspec:\n  labels: {line: '1'}\n"]});
    let mut rehearsal = good.clone();
    rehearsal["dryRun"] = json!(true);
    assert_eq!(send(&mut line, &viewer, "POST", "/intent/apply", &rehearsal).await, 200);
    assert_eq!(send(&mut line, &viewer, "POST", "/intent/apply", &good).await, 403);
    let page = read(&mut line, &admin, "").await;
    assert_eq!(brief(&page.items[0]), "operator vera (viewer) by rest: intent.apply \"\" role-needed");
}

#[tokio::test]
async fn what_devices_and_the_server_do_by_themselves_is_written_down_and_strangers_cannot_fill_the_log() {
    let plant = Plant::new().await;
    let admin = plant.server.context().token;
    plant.join("press-1").await;
    let key = margrave_identity::key::PrivateKey::generate().unwrap();
    plant.ask_to_join("mgj_wrong", &key).await.is_problem(403);
    let mut line = plant.local().await;
    let entries = read(&mut line, &admin, "").await.items;
    let found: Vec<_> = entries.iter().rev().map(brief).collect();
    assert_eq!(
        found[found.len() - 2..],
        [
            "device press-1 (-) by device: device.join \"press-1\" done",
            "unknown (-) by device: device.join \"\" token-unknown",
        ]
    );
    assert_eq!(entries[0].source, "127.0.0.1");
    assert!(!serde_json::to_string(&entries).unwrap().contains("mgj_"));
    // A renewal changes nothing, and is no entry; a refused one is.
    let before = entries.len();
    let tries = (0..30).map(|_| plant.ask_to_join("mgj_wrong", &key));
    futures_util::future::join_all(tries).await;
    let written = read(&mut line, &admin, "").await.items.len() - before;
    assert!((1..=20).contains(&written), "{written}");
}

/// As if the power went after each change and before its entry: the database takes no entry but those that a start writes.
#[tokio::test]
async fn what_was_cut_off_between_a_change_and_its_entry_is_in_the_log_after_the_next_start() {
    let plant = Plant::new().await;
    stock::device(&plant, "press-1", 4).await;
    // It stays in its registry.
    stock::gate(&plant).await;
    let gate = ("gate".parse().unwrap(), "1.0.0".parse().unwrap());
    plant.server.fleet().remove_package(&crate::plant::operator(), &gate.0, &gate.1).await.unwrap();
    let admin = plant.server.context().token;
    let join = plant.token("press-9").await;
    let mut line = plant.local().await;
    let before = read(&mut line, &admin, "").await.items.len();
    let database = rusqlite::Connection::open(plant.data.path().join("store/margrave.db")).unwrap();
    database
        .execute_batch(
            "CREATE TRIGGER cut_off BEFORE INSERT ON audit WHEN NEW.detail NOT LIKE '%the server ended before%'
             BEGIN SELECT RAISE(ABORT, 'cut off'); END",
        )
        .unwrap();
    drop(database);

    let labels = json!({"labels": {"site": "nord"}});
    let token = json!({"name": "x", "role": "viewer"});
    let package = json!({"reference": "oci://margrave/packages/gate:1.0.0"});
    let labelled =
        "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: press-1\nspec:\n  labels: {line: '1'}\n";
    let documents = json!({"documents": [labelled]});
    for (method, path, body, status) in [
        ("PATCH", "/devices/press-1/labels", &labels, 200),
        ("POST", "/intent/apply", &documents, 200),
        ("POST", "/packages", &package, 201),
        ("POST", "/tokens", &token, 201),
        ("POST", "/authority/rotate", &json!({}), 200),
        ("POST", "/devices/nobody/retire", &Value::Null, 404),
    ] {
        assert_eq!(send(&mut line, &admin, method, path, body).await, status, "{path}");
    }
    let commit = plant.server.fleet().intent().await.unwrap().commit;
    let index =
        r#"{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}"#;
    let authorization = format!("Bearer {admin}");
    let headers = [
        ("authorization", authorization.as_str()),
        ("content-type", "application/vnd.oci.image.index.v1+json"),
    ];
    line.send("PUT", "/v2/team/app/manifests/1", &headers, index).await.unwrap().is(201);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    line.send("POST", "/sign-in", &form, format!("token={admin}")).await.unwrap().is(303);
    let key = margrave_identity::key::PrivateKey::generate().unwrap();
    assert!(plant.ask_to_join(&join, &key).await.status.is_success());
    assert_eq!(read(&mut line, &admin, "").await.items.len(), before);

    let plant = plant.restart().await;
    let mut line = plant.local().await;
    let entries = read(&mut line, &admin, "").await.items;
    let found: Vec<_> = entries[..entries.len() - before].iter().rev().map(brief).collect();
    assert_eq!(
        found,
        [
            "operator admin (admin) by rest: device.labels \"press-1\" done",
            "operator admin (admin) by rest: intent.apply \"devices/press-1.yaml\" done",
            "operator admin (admin) by rest: package.add \"gate 1.0.0\" done",
            "operator admin (admin) by rest: token.add \"x\" interrupted",
            "operator admin (admin) by rest: authority.rotate \"\" interrupted",
            "operator admin (admin) by registry: registry.push \"team/app:1\" interrupted",
            "operator admin (admin) by page: session.begin \"\" interrupted",
            "device press-9 (-) by device: device.join \"press-9\" interrupted",
        ]
    );
    let added = entries.iter().find(|entry| entry.action == "package.add").unwrap();
    assert_eq!(added.commit, commit, "{added:?}");
    assert!(entries.iter().take(8).all(|entry| entry.source == "127.0.0.1"), "{entries:?}");
    // Once.
    let plant = plant.restart().await;
    assert_eq!(read(&mut plant.local().await, &admin, "").await.items.len(), entries.len());
}

#[tokio::test]
async fn the_sandboxs_nouns_are_written_down_as_ours() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let admin = plant.server.context().token;
    let mut line = plant.local().await;
    let authorization = format!("Bearer {admin}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    let want = json!({"metadata": {"name": "north"}, "spec": {"appPackageRef": {"id": "gate"},
        "deviceRef": {"id": "press-1"}, "parameters": {"owner": {"value": "me"}}}});
    for (method, path, body, status) in [
        ("POST", "/app-deployments", want.to_string(), 202),
        ("POST", "/app-deployments", want.to_string(), 409),
        ("DELETE", "/app-deployments/north", String::new(), 202),
        ("DELETE", "/app-packages/nothing@1.0.0", String::new(), 404),
    ] {
        let path = format!("{}{path}", margrave_wire::northbound::PREFIX);
        assert_eq!(line.send(method, &path, &headers, body).await.unwrap().status.as_u16(), status, "{path}");
    }
    let entries = asked(read(&mut line, &admin, "").await);
    let found: Vec<_> = entries.iter().rev().map(brief).collect();
    assert_eq!(
        found,
        [
            "operator admin (admin) by rest: deployment.put \"north\" done",
            "operator admin (admin) by rest: deployment.put \"north\" conflict",
            "operator admin (admin) by rest: deployment.remove \"north\" done",
            "operator admin (admin) by rest: package.remove \"nothing@1.0.0\" not-found",
        ]
    );
}

#[tokio::test]
async fn the_log_is_paged_filtered_and_can_be_verified_by_whoever_reads_it() {
    let plant = Plant::new().await;
    let admin = plant.server.context().token;
    let mut line = plant.local().await;
    for number in 0..15 {
        let path = format!("/devices/line-{}/retire", number % 2);
        assert_eq!(send(&mut line, &admin, "POST", &path, &Value::Null).await, 404);
    }
    let mut check = Check::default();
    let mut after = String::new();
    let mut pages = 0;
    loop {
        let page = read(&mut line, &admin, &format!("limit=4{after}")).await;
        for entry in page.items {
            let (entry, hash) = entry.parse().unwrap();
            check.older(entry, hash).unwrap();
        }
        pages += 1;
        match page.next {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(pages, 4);
    check.end().unwrap();
    assert_eq!(read(&mut line, &admin, "subject=line-1").await.items.len(), 7);
    assert_eq!(read(&mut line, &admin, "actor=nobody").await.items.len(), 0);
    assert_eq!(read(&mut line, &admin, "since=2999-01-01T00:00:00Z").await.items.len(), 0);
    for wrong in ["limit=0", "limit=5000", "since=monday", "after=x"] {
        let path = format!("{PREFIX}/audit?{wrong}");
        let authorization = format!("Bearer {admin}");
        line.send("GET", &path, &[("authorization", &authorization)], "").await.unwrap().is_problem(422);
    }
}

#[tokio::test]
async fn refusals_beyond_a_bound_are_counted_instead_of_written_down() {
    let plant = Plant::new().await;
    let admin = plant.server.context().token;
    let mut line = plant.local().await;
    for _ in 0..60 {
        line.send("DELETE", &format!("{PREFIX}/deployments/web"), &[], "").await.unwrap().is_problem(401);
    }
    let written = read(&mut line, &admin, "actor=unknown").await.items.len();
    assert!((20..60).contains(&written), "{written}");
    // What was done is written down all the same.
    let want = json!({"device": "press-1"});
    assert_eq!(send(&mut line, &admin, "POST", "/join-tokens", &want).await, 201);
    assert_eq!(read(&mut line, &admin, "subject=press-1").await.items.len(), 1);
    // The rest is told once the minute is over, or the server stops.
    let plant = plant.restart().await;
    let mut line = plant.local().await;
    let counted = read(&mut line, &admin, "actor=server").await.items;
    let numbers =
        counted.iter().map(|entry| entry.detail.split(' ').next().unwrap().parse::<usize>().unwrap());
    assert_eq!(numbers.sum::<usize>() + written, 60, "{counted:?}");
    assert!(counted.iter().all(|entry| entry.action == "refusal.counted" && entry.source == "127.0.0.1"));
}

#[tokio::test]
async fn what_was_done_is_written_down_also_where_the_answer_failed_and_refusals_are_only_counted() {
    let plant = Plant::new().await;
    let admin = plant.server.context().token;
    let mut line = plant.local().await;
    for _ in 0..60 {
        line.send("DELETE", &format!("{PREFIX}/deployments/web"), &[], "").await.unwrap().is_problem(401);
    }
    let database = rusqlite::Connection::open(plant.data.path().join("store/margrave.db")).unwrap();
    let broken = "CREATE TRIGGER broken BEFORE INSERT ON event BEGIN SELECT RAISE(ABORT, 'broken'); END";
    database.execute_batch(broken).unwrap();
    drop(database);
    assert_eq!(send(&mut line, &admin, "POST", "/authority/rotate", &json!({})).await, 500);
    // It is done nevertheless: it cannot be done again.
    assert_eq!(send(&mut line, &admin, "POST", "/authority/rotate", &json!({})).await, 409);
    let page = read(&mut line, &admin, "actor=admin").await;
    let found: Vec<_> = page.items.iter().rev().map(brief).collect();
    assert_eq!(found.first().unwrap(), "operator admin (admin) by rest: authority.rotate \"\" storage");
}

/// What there is to know of a commit cannot be read any more once it is applied.
#[tokio::test]
async fn what_was_applied_is_done_also_where_there_is_no_telling_what_to_know_of_it() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    stock::device(&plant, "press-1", 4).await;
    let admin = plant.server.context().token;
    let mut line = plant.local().await;
    let database = rusqlite::Connection::open(plant.data.path().join("store/margrave.db")).unwrap();
    database
        .execute_batch(
            "CREATE TRIGGER broken AFTER INSERT ON applied BEGIN
             INSERT INTO package_origin (id, version, looked_at, warnings) SELECT id, version, 0, 'broken' FROM package; END",
        )
        .unwrap();
    drop(database);
    let labelled =
        "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: press-1\nspec:\n  labels: {line: '1'}\n";
    let want = json!({"documents": [labelled]});
    assert_eq!(send(&mut line, &admin, "POST", "/intent/apply", &want).await, 200);
    let page = read(&mut line, &admin, "").await;
    let found = brief(&page.items[0]);
    assert_eq!(found, "operator admin (admin) by rest: intent.apply \"devices/press-1.yaml\" done");
}

#[tokio::test]
async fn why_something_was_forced_is_written_down_and_what_was_sealed_is_not() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    // It needs two cores.
    stock::device(&plant, "small-1", 1).await;
    let operator = plant.operator_token("otto", "operator").await.secret;
    let mut line = plant.local().await;
    let mut want = json!({
        "package": "gate", "targets": {"devices": ["small-1"]}, "parameters": {"owner": "Ann"},
    });
    assert_eq!(send(&mut line, &operator, "PUT", "/deployments/web", &want).await, 422);
    want["force"] = json!("it is only a trial");
    assert_eq!(send(&mut line, &operator, "PUT", "/deployments/web", &want).await, 201);
    let seal = json!({"deployment": "web", "parameter": "owner", "value": "hunter2"});
    assert_eq!(send(&mut line, &operator, "POST", "/secrets/seal", &seal).await, 200);
    let viewer = plant.operator_token("vera", "viewer").await.secret;
    assert_eq!(send(&mut line, &viewer, "POST", "/secrets/seal", &seal).await, 403);
    let admin = plant.server.context().token;
    let entries = read(&mut line, &admin, "limit=50").await.items;
    let text = serde_json::to_string(&entries).unwrap();
    assert!(text.contains("it is only a trial") && text.contains("secret.seal"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}
