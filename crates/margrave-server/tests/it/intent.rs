//! What is wanted as a Git repository, with the ordinary client: clone, change, push, and what is not taken.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_server::fleet::AuditQuery;
use margrave_wire::g2;

use crate::git::{Client, put_git};
use crate::plant::{Device, Plant};
use crate::stock;

pub(crate) fn deployment(owner: &str) -> String {
    format!(
        "# The crew of line 7.\napiVersion: margrave/v1\nkind: Deployment\nmetadata:\n  name: gate\nspec:\n  package: gate\n  \
         version: 1.0.0\n  parameters:\n    owner: {owner}\n  targets:\n    devices: [press.42]\n"
    )
}

/// A server with a device, the ordinary client, and the address with an operator's token in it.
pub(crate) async fn plant() -> Option<(Plant, Device, Client, String)> {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    stock::gate(&plant).await;
    stock::capabilities(&plant, &device.client, "press.42", 4).await;
    let client = Client::new("")?;
    let authority = put_git(&plant, "press.42", false, None).await.authority;
    std::fs::write(client.path("authority.pem"), authority).unwrap();
    for (key, value) in [("user.name", "Ann"), ("user.email", "ann@plant.example")] {
        client.git(client.home.path(), &["config", "--global", key, value]).await;
    }
    let url = address(&plant, &plant.server.context().token);
    Some((plant, device, client, url))
}

pub(crate) fn address(plant: &Plant, token: &str) -> String {
    format!("https://anybody:{token}@{}/git/intent.git", plant.server.addresses().web)
}

pub(crate) async fn write(client: &Client, tree: &Path, file: &str, text: &str) {
    let path = tree.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    client.git(tree, &["add", "-A"]).await;
    client.git(tree, &["commit", "-q", "-m", &format!("Change {file}")]).await;
}

/// What the client says when a push is refused.
pub(crate) async fn refused(client: &Client, tree: &Path, what: &[&str]) -> String {
    let mut arguments = vec!["push", "-q", "origin"];
    arguments.extend(what);
    let output = client.run(tree, &arguments).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{what:?} was not refused: {said}");
    said
}

pub(crate) async fn entries(plant: &Plant, device: &Device) -> usize {
    let reply = device.line(plant).await.get("/api/v1/deployments").await.unwrap();
    g2::manifest::read(&reply.is(200).body).unwrap().manifest.entries().len()
}

pub(crate) async fn main(plant: &Plant) -> String {
    plant.server.fleet().intent().await.unwrap().commit.unwrap()
}

/// Everything below the repository's objects, by name.
pub(crate) fn objects(plant: &Plant) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(&plant.data.path().join("intent.git"), &mut found);
    found.retain(|path| !path.ends_with("config"));
    found.sort();
    found
}

#[tokio::test]
async fn what_is_pushed_is_what_the_device_gets_and_what_is_wanted_otherwise_is_pulled() {
    let Some((plant, device, client, url)) = plant().await else { return };
    let tree = client.clone(&url, "tree", &[]).await;
    assert!(std::fs::read_to_string(tree.join("README.md")).unwrap().contains("main"));
    write(&client, &tree, "deployments/gate.yaml", &deployment("ann")).await;
    client.git(&tree, &["push", "-q", "origin", "main"]).await;
    assert_eq!(main(&plant).await, client.git(&tree, &["rev-parse", "HEAD"]).await);
    assert_eq!(entries(&plant, &device).await, 1);
    let shown = plant.server.fleet().deployment(&"gate".parse().unwrap()).await.unwrap();
    assert_eq!(shown.changed_by, "operator admin", "who pushed counts, whoever wrote it");
    // Another commit, on the page, is the next that is pulled.
    let labels = [("site".to_owned(), Some("nord".to_owned()))].into();
    let want = margrave_wire::operator::SetLabels { labels };
    let actor = crate::plant::operator();
    plant.server.fleet().label(&actor, &"press.42".parse().unwrap(), want).await.unwrap();
    client.git(&tree, &["pull", "-q", "--ff-only"]).await;
    assert!(std::fs::read_to_string(tree.join("devices/press.42.yaml")).unwrap().contains("site: nord"));
    // By the other listener, in every version of the protocol, and cut off.
    let local = format!(
        "http://x:{}@{}/git/intent.git",
        plant.server.context().token,
        plant.server.addresses().local.unwrap()
    );
    for version in ["0", "1", "2"] {
        let option = format!("protocol.version={version}");
        let tree = client.clone(&local, &format!("v{version}"), &["-c", &option, "--depth", "1"]).await;
        write(&client, &tree, "deployments/gate.yaml", &deployment(&format!("v{version}"))).await;
        client.git(&tree, &["push", "-q", "origin", "main"]).await;
    }
    client.git(&tree, &["pull", "-q", "--ff-only"]).await;
    client.git(&tree, &["rm", "-q", "deployments/gate.yaml"]).await;
    client.git(&tree, &["commit", "-q", "-m", "Away"]).await;
    client.git(&tree, &["push", "-q", "origin", "main"]).await;
    assert_eq!(entries(&plant, &device).await, 0);
    // The repository is sound, and so it is after a restart.
    let plant = plant.restart().await;
    let intent = plant.data.path().join("intent.git");
    client.git(&intent, &["fsck", "--strict", "--no-dangling"]).await;
    assert!(plant.server.fleet().intent().await.unwrap().conflict.is_none());
}

#[tokio::test]
async fn a_push_that_is_wrong_says_where_and_leaves_nothing() {
    let Some((plant, device, client, url)) = plant().await else { return };
    let tree = client.clone(&url, "tree", &[]).await;
    let (before, objects_before) = (main(&plant).await, objects(&plant));
    let wrong = deployment("ann").replace("version: 1.0.0", "version: 9.9.9");
    write(&client, &tree, "deployments/gate.yaml", &wrong).await;
    let said = refused(&client, &tree, &["main"]).await;
    assert!(said.contains("remote: deployments/gate.yaml:7: gate 9.9.9 is not in the catalog"), "{said}");
    assert!(said.contains("[remote rejected] main -> main (cannot be applied; see above)"), "{said}");
    assert_eq!((main(&plant).await, objects(&plant)), (before, objects_before));
    let logged = async || plant.server.fleet().audit(AuditQuery::default()).await.unwrap().items.remove(0);
    let entry = logged().await;
    assert_eq!((entry.action.as_str(), entry.outcome.as_str()), ("intent.push", "push-refused"));
    assert!(entry.detail.starts_with("cannot be applied: deployments/gate.yaml:7 ("), "{entry:?}");
    assert_eq!(entry.commit, None);
    // Mended by one more commit, it is taken; the wrong one in between is history.
    write(&client, &tree, "deployments/gate.yaml", &deployment("ann")).await;
    client.git(&tree, &["push", "-q", "origin", "main"]).await;
    let entry = logged().await;
    assert_eq!((entry.action.as_str(), entry.outcome.as_str()), ("intent.push", "done"));
    assert_eq!(entry.commit, Some(client.git(&tree, &["rev-parse", "HEAD"]).await));
    assert_eq!(entries(&plant, &device).await, 1);
}

#[tokio::test]
async fn only_main_is_taken_and_only_forward() {
    let Some((plant, device, client, url)) = plant().await else { return };
    let tree = client.clone(&url, "tree", &[]).await;
    let other = client.clone(&url, "other", &[]).await;
    write(&client, &tree, "deployments/gate.yaml", &deployment("ann")).await;
    for what in [&["main:refs/heads/side"][..], &["main", "main:side"], &["main:refs/tags/v1"]] {
        let said = refused(&client, &tree, what).await;
        assert!(said.contains("only main is taken here"), "{what:?}: {said}");
    }
    assert_eq!(entries(&plant, &device).await, 0, "also not the part that would do");
    refused(&client, &tree, &["--delete", "main"]).await;
    client.git(&tree, &["push", "-q", "origin", "main"]).await;
    let head = main(&plant).await;
    // The other did not see that.
    write(&client, &other, "deployments/gate.yaml", &deployment("bob")).await;
    let said = refused(&client, &other, &["main"]).await;
    assert!(said.contains("fetch first"), "{said}");
    let said = refused(&client, &other, &["--force", "main"]).await;
    assert!(said.contains("history is not rewritten here"), "{said}");
    let said = refused(&client, &tree, &["--force", "HEAD~1:main"]).await;
    assert!(said.contains("non-fast-forward"), "{said}");
    assert_eq!(main(&plant).await, head);
    let listed = client.git(&tree, &["ls-remote", "origin"]).await;
    assert_eq!(listed.lines().count(), 2, "{listed}");
}

#[tokio::test]
async fn of_two_pushes_at_once_one_is_taken_and_the_other_told_to_fetch() {
    let Some((plant, device, client, url)) = plant().await else { return };
    let mut trees = Vec::new();
    for name in ["a", "b"] {
        let tree = client.clone(&url, name, &[]).await;
        write(&client, &tree, "deployments/gate.yaml", &deployment(name)).await;
        trees.push(tree);
    }
    let push = async |tree: &Path| client.run(tree, &["push", "-q", "origin", "main"]).await;
    let (a, b) = tokio::join!(push(&trees[0]), push(&trees[1]));
    assert!(a.status.success() != b.status.success(), "{a:?} {b:?}");
    let loser = if a.status.success() { b } else { a };
    let said = String::from_utf8_lossy(&loser.stderr).into_owned();
    assert!(said.contains("fetch first"), "{said}");
    assert_eq!(entries(&plant, &device).await, 1);
    client.git(&plant.data.path().join("intent.git"), &["fsck", "--strict", "--no-dangling"]).await;
}

#[tokio::test]
async fn only_operators_are_let_in_and_rubbish_is_told_so() {
    let Some((plant, _, client, _)) = plant().await else { return };
    let output = client.run(client.home.path(), &["ls-remote", &address(&plant, "mgo_wrong")]).await;
    assert!(String::from_utf8_lossy(&output.stderr).contains("Authentication failed"), "{output:?}");
    // A device's token is for its own repository.
    let device = put_git(&plant, "press.42", true, None).await.token.unwrap();
    let mut line = plant.web().await;
    let header = |token: &str| format!("Basic {}", STANDARD.encode(format!("x:{token}")));
    let right = header(&plant.server.context().token);
    let refs = "/git/intent.git/info/refs?service=git-receive-pack";
    let path = "/git/intent.git/git-receive-pack";
    let kind = ("content-type", "application/x-git-receive-pack-request");
    for token in [&header(&device), &header("")] {
        line.send("GET", refs, &[("authorization", token)], "").await.unwrap().is(401);
        line.send("POST", path, &[("authorization", token), kind], "0000").await.unwrap().is(401);
    }
    let auth = ("authorization", right.as_str());
    line.send("GET", refs, &[auth], "").await.unwrap().is(200);
    for rubbish in [&b"\x00\x01\x02\xff\xfe"[..], b"", b"zzzz", b"0005", b"fff0short"] {
        line.send("POST", path, &[auth, kind], rubbish.to_vec()).await.unwrap().is(400);
    }
    line.send("POST", path, &[auth, kind], "0000").await.unwrap().is(200);
    line.send("POST", path, &[auth, ("content-type", "text/plain")], "0000").await.unwrap().is(415);
    line.send("GET", path, &[auth], "").await.unwrap().is(405);
    line.send("GET", "/git/intent.git/config", &[auth], "").await.unwrap().is(403);
    // Commands that are well-formed, with a pack that is none, or that lacks what it promises.
    let head = main(&plant).await;
    let objects_before = objects(&plant);
    let new = "2222222222222222222222222222222222222222";
    let command = format!("{head} {new} refs/heads/main\0 report-status");
    let empty = b"PACK\x00\x00\x00\x02\x00\x00\x00\x00\x02\x9d\x08\x82\x3b\xd8\xa8\xea\xb5\x10\xad\x6a\xc7\x5c\x82\x3c\xfd\x3e\xd3\x1e";
    for pack in [&b"PACK and nothing like one"[..], b"", empty] {
        let mut body = format!("{:04x}{command}0000", command.len() + 4).into_bytes();
        body.extend_from_slice(pack);
        let reply = line.send("POST", path, &[auth, kind], body).await.unwrap();
        let text = String::from_utf8_lossy(&reply.is(200).body).into_owned();
        assert!(text.contains("ng refs/heads/main not sound"), "{text}");
    }
    assert_eq!((main(&plant).await, objects(&plant)), (head, objects_before));
}

#[tokio::test]
async fn a_push_of_too_many_files_is_told_so() {
    let Some((plant, _, client, url)) = plant().await else { return };
    let tree = client.clone(&url, "tree", &[]).await;
    std::fs::create_dir(tree.join("devices")).unwrap();
    for number in 0..10_001 {
        std::fs::write(tree.join(format!("devices/d{number}.yaml")), "x").unwrap();
    }
    client.git(&tree, &["add", "-A"]).await;
    client.git(&tree, &["commit", "-q", "-m", "Many"]).await;
    let said = refused(&client, &tree, &["main"]).await;
    assert!(said.contains("remote: a commit changes at most 10000 files; make several of it"), "{said}");
    assert!(plant.server.fleet().intent().await.unwrap().conflict.is_none());
}

#[tokio::test]
async fn a_viewer_plans_with_what_is_in_the_catalog_and_has_nothing_fetched() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let elsewhere = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = elsewhere.local_addr().unwrap();
    let viewer = plant.operator_token("vera", "viewer").await.secret;
    let mut line = plant.web().await;
    let package = async |line: &mut crate::line::Line, id: &str, reference: &str| {
        let document = format!(
            "# Seen by vera.\napiVersion: margrave/v1\nkind: Package\nmetadata:\n  id: {id}\n  version: 1.0.0\nspec:\n  \
             reference: {reference}\n"
        );
        let body = serde_json::json!({"documents": [document], "dryRun": true}).to_string();
        let token = format!("Bearer {viewer}");
        let headers = [("authorization", token.as_str()), ("content-type", "application/json")];
        line.send("POST", "/api/operator/v1/intent/apply", &headers, body).await.unwrap()
    };
    let file = plant.server.fleet().intent_file("packages/gate/1.0.0.yaml", None).await.unwrap();
    let file = String::from_utf8(file).unwrap();
    let held = file.lines().find_map(|line| line.trim().strip_prefix("reference: ")).unwrap();
    let held = held.trim_matches('"').to_owned();
    let (_, digest) = held.split_once('@').unwrap();
    let planned: margrave_wire::intent::Applied = package(&mut line, "gate", &held).await.is(200).json();
    assert_eq!(planned.plan.unwrap().changes, []);
    for (id, reference) in [
        ("gate", format!("oci://{address}/gate@{digest}")),
        ("gate", format!("oci://{address}/gate:1.0.0")),
        ("other", held.clone()),
    ] {
        let said = package(&mut line, id, &reference).await.is_problem(422);
        assert!(said.contains("the role operator"), "{reference}: {said}");
    }
    let asked = tokio::time::timeout(std::time::Duration::from_millis(50), elsewhere.accept()).await;
    assert!(asked.is_err(), "nobody was asked for anything");
}

#[tokio::test]
async fn files_are_applied_rehearsed_and_looked_back_at_over_rest() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    stock::gate(&plant).await;
    stock::capabilities(&plant, &device.client, "press.42", 4).await;
    stock::device(&plant, "small", 1).await;
    let mut line = plant.web().await;
    let token = format!("Bearer {}", plant.server.context().token);
    let headers = [("authorization", token.as_str()), ("content-type", "application/json")];
    let api = |path: &str| format!("/api/operator/v1{path}");
    let get = async |line: &mut crate::line::Line, path: &str| {
        line.send("GET", &api(path), &headers, "").await.unwrap()
    };
    let before = main(&plant).await;

    // A rehearsal tells what would come, and writes nothing.
    let both = deployment("ann").replace("devices: [press.42]", "select: 'line in (7)'");
    let label = |name: &str| {
        format!(
            "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: {name}\nspec:\n  site: nord\n  labels: {{line: '7'}}\n"
        )
    };
    let documents = vec![both, label("press.42"), label("small")];
    let body = serde_json::json!({"documents": documents, "dryRun": true});
    let reply = line.send("POST", &api("/intent/apply"), &headers, body.to_string()).await.unwrap();
    let plan: margrave_wire::intent::Applied = reply.is(200).json();
    assert_eq!(plan.files.len(), 3);
    let plan = plan.plan.unwrap();
    let [change] = &plan.changes[..] else { panic!("{plan:?}") };
    assert_eq!(
        (change.device.as_str(), change.from.as_ref(), change.site.as_deref()),
        ("press.42", None, Some("nord"))
    );
    assert_eq!(change.to.as_ref().unwrap().version, "1.0.0");
    assert_eq!((plan.misfits[0].device.as_str(), plan.misfits[0].refused), ("small", false));
    assert!(plan.fetches[0].bytes > 0 && plan.fetches[0].unknown.is_empty(), "{:?}", plan.fetches);
    assert_eq!(main(&plant).await, before);

    // Then it is done in one commit.
    let body = serde_json::json!({"documents": documents, "base": before, "message": "Line 7"});
    let reply = line.send("POST", &api("/intent/apply"), &headers, body.to_string()).await.unwrap();
    let applied: margrave_wire::intent::Applied = reply.is(200).json();
    assert_eq!(applied.commit, Some(main(&plant).await));
    assert_eq!(entries(&plant, &device).await, 1);
    line.send("POST", &api("/intent/apply"), &headers, body.to_string()).await.unwrap().is(409);
    let log: margrave_wire::operator::Page<margrave_wire::intent::Commit> =
        get(&mut line, "/intent/log?limit=1").await.is(200).json();
    assert_eq!((log.items[0].message.as_str(), log.items[0].by.as_str()), ("Line 7", "operator admin"));
    let next = log.next.unwrap();
    let log: margrave_wire::operator::Page<margrave_wire::intent::Commit> =
        get(&mut line, &format!("/intent/log?after={next}&limit=1")).await.is(200).json();
    assert_eq!(log.items[0].commit, before);
    get(&mut line, "/intent/log?after=0000000000000000000000000000000000000001").await.is(404);
    let file = get(&mut line, "/intent/files/deployments%2Fgate.yaml").await;
    assert!(String::from_utf8_lossy(&file.is(200).body).starts_with("# The crew of line 7.\n"));
    get(&mut line, "/intent/files/deployments%2Fgate.yaml?at=2001-01-01T00:00:00Z").await.is(404);
    for (at, status) in
        [("2001-01-01", 404), ("2h%20ago", 404), ("now", 200), ("soon", 422), ("2999-01-01", 422)]
    {
        get(&mut line, &format!("/intent/files/deployments%2Fgate.yaml?at={at}")).await.is(status);
    }
    for path in ["/intent/files/README.md", "/intent/files/..%2Fconfig", "/schemas/Nonsense"] {
        get(&mut line, path).await.is(404);
    }
    get(&mut line, "/schemas/Deployment").await.is(200);
    let files: margrave_wire::operator::Page<margrave_wire::intent::File> =
        get(&mut line, "/intent/files").await.is(200).json();
    let files = files.items;
    assert!(files.iter().any(|file| file.path == "deployments/gate.yaml" && file.kind == "Deployment"));

    // A change of labels alone is seen for what it does.
    let body = serde_json::json!({"documents": [label("press.42").replace("'7'", "'8'")], "dryRun": true});
    let reply = line.send("POST", &api("/intent/apply"), &headers, body.to_string()).await.unwrap();
    let plan = reply.is(200).json::<margrave_wire::intent::Applied>().plan.unwrap();
    assert_eq!((plan.changes.len(), plan.changes[0].to.as_ref()), (1, None), "{plan:?}");

    // What is wrong says where.
    let body = serde_json::json!({"documents": [deployment("ann").replace("1.0.0", "9.9.9")]});
    let reply = line.send("POST", &api("/intent/apply"), &headers, body.to_string()).await.unwrap();
    let said = String::from_utf8_lossy(&reply.is(422).body).into_owned();
    assert!(said.contains("deployments/gate.yaml:7: gate 9.9.9 is not in the catalog"), "{said}");
    let resolve = line.send("POST", &api("/intent/resolve"), &headers, "{\"take\": true}").await.unwrap();
    resolve.is(409);
}

/// The file of a device that may join one day.
fn device_file(number: usize) -> String {
    format!(
        "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: d-{number}\nspec:\n  labels: {{line: \"{number}\"}}\n"
    )
}

#[tokio::test]
async fn ten_thousand_files_in_one_push_are_taken_as_a_whole_and_one_more_is_refused_as_a_whole() {
    const FILES: usize = 10_000;
    let Some((plant, _, client, url)) = plant().await else { return };
    let tree = client.clone(&url, "tree", &[]).await;
    let before = plant.server.fleet().intent_files().await.unwrap().len();
    let folder = tree.join("devices");
    std::fs::create_dir_all(&folder).unwrap();
    let commit = async |message: &str| {
        client.git(&tree, &["add", "-A"]).await;
        client.git(&tree, &["commit", "-q", "-m", message]).await;
    };
    for number in 0..=FILES {
        std::fs::write(folder.join(format!("d-{number}.yaml")), device_file(number)).unwrap();
    }
    commit("One too many").await;
    let head = main(&plant).await;
    let said = refused(&client, &tree, &["main"]).await;
    assert!(said.contains("10000") || said.contains("10,000"), "{said}");
    assert_eq!(main(&plant).await, head, "nothing was taken");

    client.git(&tree, &["reset", "-q", "--soft", "HEAD~1"]).await;
    std::fs::remove_file(folder.join(format!("d-{FILES}.yaml"))).unwrap();
    commit("All of them").await;
    client.git(&tree, &["push", "-q", "origin", "main"]).await;
    let pushed = client.git(&tree, &["rev-parse", "HEAD"]).await;
    assert_eq!(main(&plant).await, pushed.trim());
    let files = plant.server.fleet().intent_files().await.unwrap();
    assert_eq!(files.len(), before + FILES);
    // Whoever joins has what was said of it.
    let joined = plant.join("d-9999").await;
    let shown =
        plant.server.fleet().device(&margrave_core::id::DeviceRef::parse("d-9999").unwrap()).await.unwrap();
    assert_eq!(shown.labels["line"], "9999", "{}", joined.client);
    client.git(&plant.data.path().join("intent.git"), &["fsck", "--strict", "--no-dangling"]).await;
}
