//! Devices' Git repositories, with the ordinary client: who gets in, what is in it, and what is not taken.

use std::path::{Path, PathBuf};
use std::process::Output;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_core::digest::Digest;
use margrave_wire::g2;
use margrave_wire::identity::{GIT_TOKEN_PATH, GitToken};
use margrave_wire::operator::{GitRepository, PutDeployment, PutGit, Targets};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::line::{DEADLINE, Line, Reply};
use crate::plant::{Device, Plant, operator};
use crate::stock;

/// The ordinary client, in a home of its own.
pub(crate) struct Client {
    pub(crate) home: TempDir,
}

impl Client {
    /// `None` after saying aloud that the test is skipped.
    pub(crate) fn new(plant_authority: &str) -> Option<Client> {
        let here = std::process::Command::new("git").arg("--version").output();
        if !here.is_ok_and(|output| output.status.success()) {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "in CI nothing may be missing: git");
            #[allow(clippy::print_stderr, reason = "a skipped test says so")]
            {
                eprintln!("skipped: git is not installed");
            }
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("authority.pem"), plant_authority).unwrap();
        Some(Client { home })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) async fn run(&self, directory: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new("git");
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.home.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_SSL_CAINFO", self.path("authority.pem"))
            .env("LC_ALL", "C")
            .current_dir(directory)
            .args(arguments)
            .kill_on_drop(true);
        timeout(DEADLINE, command.output()).await.expect("git ends in time").unwrap()
    }

    pub(crate) async fn git(&self, directory: &Path, arguments: &[&str]) -> String {
        let output = self.run(directory, arguments).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// What the client says when it is refused.
    async fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(self.home.path(), arguments).await;
        assert!(!output.status.success(), "git {arguments:?} was not refused");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub(crate) async fn clone(&self, url: &str, name: &str, options: &[&str]) -> PathBuf {
        let mut arguments = vec!["clone", "-q"];
        arguments.extend(options);
        arguments.extend([url, name]);
        self.git(self.home.path(), &arguments).await;
        self.path(name)
    }
}

/// The address with a token in it, as a person would rather not write it.
fn with_token(repository: &GitRepository, token: &str) -> String {
    repository.url.replace("https://", &format!("https://anybody:{token}@"))
}

pub(crate) async fn put_git(
    plant: &Plant,
    device: &str,
    rotate: bool,
    grace_seconds: Option<u64>,
) -> GitRepository {
    let want = PutGit { rotate, grace_seconds };
    plant.server.fleet().put_git(&operator(), &device.parse().unwrap(), want).await.unwrap()
}

async fn deploy(plant: &Plant, owner: &str, devices: &[&str]) {
    let want = PutDeployment {
        package: "gate".to_owned(),
        version: None,
        profile: None,
        parameters: [("owner".to_owned(), json!(owner))].into(),
        targets: Targets {
            devices: devices.iter().map(|d| d.to_string()).collect(),
            labels: Default::default(),
            ..Default::default()
        },
        rollback: None,
        strategy: None,
        revision: None,
        ..Default::default()
    };
    plant.server.fleet().put_deployment(&operator(), &"gate".parse().unwrap(), want).await.unwrap();
}

/// A server with a device that joined, told what it is, and has a repository with two versions.
async fn plant() -> Option<(Plant, Device, GitRepository, Client)> {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    stock::gate(&plant).await;
    stock::capabilities(&plant, &device.client, "press.42", 4).await;
    let client = Client::new("")?;
    let repository = put_git(&plant, "press.42", false, None).await;
    std::fs::write(client.path("authority.pem"), &repository.authority).unwrap();
    deploy(&plant, "first", &["press.42"]).await;
    Some((plant, device, repository, client))
}

/// The work tree has what the device interface serves, byte for byte, and nothing else.
async fn check_tree(plant: &Plant, device: &Device, client: &Client, tree: &Path) {
    let mut line = device.line(plant).await;
    let manifest = line.get("/api/v1/deployments").await.unwrap();
    assert_eq!(std::fs::read(tree.join("manifest.json")).unwrap(), manifest.is(200).body);
    let listing = g2::manifest::read(&manifest.body).unwrap();
    for entry in listing.manifest.entries() {
        let path = format!("/api/v1/deployments/{}/{}", entry.id, entry.document.digest);
        let document = line.get(&path).await.unwrap();
        let file = std::fs::read(tree.join(format!("deployments/{}.yaml", entry.id))).unwrap();
        assert_eq!(file, document.is(200).body);
        assert_eq!(Digest::of(&file), entry.document.digest);
    }
    let files = client.git(tree, &["ls-files"]).await;
    assert_eq!(files.lines().count(), 2 + listing.manifest.entries().len(), "{files}");
    let version = listing.manifest.version();
    assert_eq!(client.git(tree, &["log", "-1", "--format=%s"]).await, format!("manifest {version}"));
    assert_eq!(client.git(tree, &["status", "--porcelain"]).await, "");
}

#[tokio::test]
async fn an_ordinary_clone_has_what_the_device_is_given_and_a_pull_follows() {
    let Some((plant, device, repository, client)) = plant().await else { return };
    let url = with_token(&repository, repository.token.as_ref().unwrap());
    let tree = client.clone(&url, "tree", &[]).await;
    check_tree(&plant, &device, &client, &tree).await;
    // Somebody whose Git rewrites line ends gets the same bytes.
    let other = client.clone(&url, "other", &["-c", "core.autocrlf=true", "-c", "core.eol=crlf"]).await;
    check_tree(&plant, &device, &client, &other).await;

    for owner in ["second", "third\r\nwith a line end of another system"] {
        deploy(&plant, owner, &["press.42"]).await;
        client.git(&tree, &["pull", "-q", "--ff-only"]).await;
        check_tree(&plant, &device, &client, &tree).await;
    }
    client.git(&other, &["pull", "-q", "--ff-only"]).await;
    check_tree(&plant, &device, &client, &other).await;
    let subjects = client.git(&tree, &["log", "--reverse", "--format=%s"]).await;
    assert_eq!(subjects, "manifest 1\nmanifest 2\nmanifest 3\nmanifest 4");
    // The server knows that the device was here, and what it was given.
    assert!(plant.server.fleet().device(&"press.42".parse().unwrap()).await.unwrap().last_contact.is_some());

    // Nothing is lost or doubled over a restart; the port is another one.
    let plant = plant.restart().await;
    deploy(&plant, "fourth", &["press.42"]).await;
    let moved = put_git(&plant, "press.42", true, None).await;
    let url = with_token(&moved, moved.token.as_ref().unwrap());
    client.git(&tree, &["pull", "-q", "--ff-only", &url, "main"]).await;
    check_tree(&plant, &device, &client, &tree).await;
    assert_eq!(client.git(&tree, &["rev-list", "--count", "HEAD"]).await, "5");
}

#[tokio::test]
async fn every_protocol_and_a_shallow_clone_work() {
    let Some((plant, device, repository, client)) = plant().await else { return };
    let url = with_token(&repository, repository.token.as_ref().unwrap());
    let mut trees = Vec::new();
    for version in ["0", "1", "2"] {
        let option = format!("protocol.version={version}");
        trees.push(client.clone(&url, &format!("v{version}"), &["-c", &option]).await);
        trees.push(client.clone(&url, &format!("s{version}"), &["-c", &option, "--depth", "1"]).await);
    }
    for owner in ["second", "third"] {
        deploy(&plant, owner, &["press.42"]).await;
        for tree in &trees {
            client.git(tree, &["pull", "-q", "--ff-only"]).await;
            check_tree(&plant, &device, &client, tree).await;
        }
    }
    let shallow = client.git(&trees[5], &["rev-list", "--count", "HEAD"]).await;
    assert_eq!(shallow, "3");
    // One branch, and nothing else to see.
    let listed = client.git(client.home.path(), &["ls-remote", &url]).await;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split('\t').nth(1)).collect();
    assert_eq!(names, ["HEAD", "refs/heads/main"]);
}

fn basic(token: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("press.42:{token}")))
}

fn refs(device: &str) -> String {
    format!("/git/devices/{device}.git/info/refs?service=git-upload-pack")
}

async fn ask(line: &mut Line, token: &str, path: &str) -> Reply {
    line.send("GET", path, &[("authorization", &basic(token))], "").await.unwrap()
}

#[tokio::test]
async fn a_token_opens_its_own_repository_and_no_other() {
    let Some((plant, _, repository, client)) = plant().await else { return };
    let token = repository.token.clone().unwrap();
    assert!(token.starts_with("mgg_"), "{token}");
    plant.join("press.43").await;
    let other = put_git(&plant, "press.43", false, None).await.token.unwrap();
    let mut line = plant.web().await;
    ask(&mut line, &token, &refs("press.42")).await.is(200);
    ask(&mut line, &other, &refs("press.43")).await.is(200);

    // Strangers are asked for a token, whatever they look for.
    for path in [refs("press.42"), refs("nobody")] {
        let reply = line.get(&path).await.unwrap();
        assert!(reply.is(401).header("www-authenticate").starts_with("Basic "), "{:?}", reply.headers);
        ask(&mut line, "mgg_guess", &path).await.is(401);
        // An operator's token is for operators.
        ask(&mut line, &plant.server.context().token, &path).await.is(401);
    }
    // Another device's repository looks like none.
    let there = ask(&mut line, &other, &refs("press.42")).await;
    let nowhere = ask(&mut line, &other, &refs("nobody")).await;
    assert_eq!(
        (there.is(404).body.clone(), there.headers.len()),
        (nowhere.is(404).body.clone(), nowhere.headers.len())
    );
    assert_eq!(there.header("content-type"), "text/plain; charset=utf-8");
    let said = client.refused(&["ls-remote", &with_token(&repository, &other)]).await;
    assert!(said.contains("not found"), "{said}");

    // Rotated with a grace period, both work until it is over.
    let second = put_git(&plant, "press.42", true, Some(600)).await.token.unwrap();
    for token in [&token, &second] {
        ask(&mut line, token, &refs("press.42")).await.is(200);
    }
    plant.set_ahead(601);
    ask(&mut line, &token, &refs("press.42")).await.is(401);
    ask(&mut line, &second, &refs("press.42")).await.is(200);
    // Without one, the old one is void at once.
    let third = put_git(&plant, "press.42", true, None).await.token.unwrap();
    ask(&mut line, &second, &refs("press.42")).await.is(401);
    let said = client.refused(&["ls-remote", &with_token(&repository, &second)]).await;
    assert!(said.contains("Authentication failed"), "{said}");

    // Retired is out at once, and in again when accepted.
    let fleet = plant.server.fleet();
    fleet.retire(&operator(), &"press.42".parse().unwrap()).await.unwrap();
    let reply = ask(&mut line, &third, &refs("press.42")).await;
    assert!(String::from_utf8_lossy(&reply.is(403).body).contains("retired"), "{:?}", reply.body);
    ask(&mut line, &third, &refs("press.43")).await.is(404);
    fleet.accept(&operator(), &"press.42".parse().unwrap()).await.unwrap();
    ask(&mut line, &third, &refs("press.42")).await.is(200);

    // Off is off, for this one only.
    fleet.end_git(&operator(), &"press.42".parse().unwrap()).await.unwrap();
    ask(&mut line, &third, &refs("press.42")).await.is(401);
    ask(&mut line, &other, &refs("press.43")).await.is(200);
    assert!(!plant.data.path().join("git/press.42.git").exists());
    let kinds = fleet.device_events(&"press.42".parse().unwrap(), 100).await.unwrap();
    assert_eq!(kinds.iter().filter(|event| event.kind == "device.git").count(), 4);
}

#[tokio::test]
async fn nothing_can_be_written_and_nothing_else_be_read() {
    let Some((plant, _, repository, client)) = plant().await else { return };
    let token = repository.token.clone().unwrap();
    let url = with_token(&repository, &token);
    let tree = client.clone(&url, "tree", &[]).await;
    std::fs::write(tree.join("manifest.json"), "{}").unwrap();
    let identity = ["-c", "user.name=x", "-c", "user.email=x@x"];
    client.git(&tree, &[&identity[..], &["commit", "-aqm", "mine"]].concat()).await;
    let output = client.run(&tree, &["push", "origin", "HEAD:main"]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("read-only"), "{said}");

    let mut line = plant.web().await;
    let own = "/git/devices/press.42.git";
    for (path, status) in [
        // Writing.
        (format!("{own}/info/refs?service=git-receive-pack"), 403),
        (format!("{own}/git-receive-pack"), 403),
        // The older protocol, and the files beneath.
        (format!("{own}/info/refs"), 403),
        (format!("{own}/HEAD"), 403),
        (format!("{own}/config"), 403),
        (format!("{own}/objects/info/packs"), 403),
        (format!("{own}/info/refs?service=git-upload-archive"), 400),
        (format!("{own}/info/refs?service=git-upload-pack&x=1"), 400),
        // Ways around.
        (format!("{own}/../press.43.git/info/refs?service=git-upload-pack"), 403),
        ("/git/devices/../press.42.git/info/refs?service=git-upload-pack".to_owned(), 404),
        ("/git/devices/%2e%2e/store/margrave.db".to_owned(), 404),
        ("/git/devices/press%2E42.git/info/refs?service=git-upload-pack".to_owned(), 404),
        ("/git/devices//press.42.git/info/refs?service=git-upload-pack".to_owned(), 404),
        ("/git/devices/press.42/info/refs?service=git-upload-pack".to_owned(), 404),
        ("/git/devices/~press.42.git/info/refs?service=git-upload-pack".to_owned(), 404),
        ("/git/press.42.git/info/refs?service=git-upload-pack".to_owned(), 404),
        ("/git/".to_owned(), 404),
    ] {
        let reply = ask(&mut line, &token, &path).await;
        assert_eq!(reply.status.as_u16(), status, "{path}: {:?}", reply.body);
    }
    for method in ["HEAD", "PUT", "DELETE", "OPTIONS", "PROPFIND"] {
        let reply =
            line.send(method, &refs("press.42"), &[("authorization", &basic(&token))], "").await.unwrap();
        assert_eq!(reply.is(405).header("allow"), "GET");
    }
    ask(&mut line, &token, &format!("{own}/git-upload-pack")).await.is(405);
    // Not on the other listeners: one has no TLS, the other is for certificates.
    let mut local = plant.local().await;
    ask(&mut local, &token, &refs("press.42")).await.is(404);
    assert_eq!(
        client.git(&tree, &["ls-remote", "origin", "main"]).await.len(),
        40 + 1 + "refs/heads/main".len()
    );
}

#[tokio::test]
async fn requests_are_bounded_and_may_be_packed() {
    let Some((plant, _, repository, client)) = plant().await else { return };
    let token = basic(repository.token.as_ref().unwrap());
    let path = "/git/devices/press.42.git/git-upload-pack";
    let kind = ("content-type", "application/x-git-upload-pack-request");
    let auth = ("authorization", token.as_str());
    let newest = ("git-protocol", "version=2");
    let pack = |bytes: &[u8]| {
        use std::io::Write as _;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    };
    let list = b"0014command=ls-refs\n00010000".to_vec();
    let mut line = plant.web().await;
    let plain = line.send("POST", path, &[auth, kind, newest], list.clone()).await.unwrap();
    assert!(plain.is(200).body.ends_with(b"refs/heads/main\n0000"), "{:?}", plain.body);
    assert_eq!(plain.header("content-type"), "application/x-git-upload-pack-result");
    for name in ["gzip", "x-gzip"] {
        let packed = [auth, kind, newest, ("content-encoding", name)];
        assert_eq!(line.send("POST", path, &packed, pack(&list)).await.unwrap().is(200).body, plain.body);
    }
    // What is not understood.
    let gzip = ("content-encoding", "gzip");
    line.send("POST", path, &[auth, kind, gzip], list.clone()).await.unwrap().is(400);
    line.send("POST", path, &[auth, kind, ("content-encoding", "br")], list.clone()).await.unwrap().is(415);
    line.send("POST", path, &[auth, ("content-type", "application/json")], list.clone())
        .await
        .unwrap()
        .is(415);
    // Nonsense is answered by Git itself, in its own words or with none, and harms nobody.
    for nonsense in
        [&b"zzzz"[..], b"", b"0000", b"0032want 0123456789012345678901234567890123456789\n00000009done\n"]
    {
        line.send("POST", path, &[auth, kind], nonsense.to_vec()).await.unwrap().is(200);
    }
    // Too much, also when it is packed small.
    let large = vec![b'0'; 5 * 1024 * 1024];
    line.send("POST", path, &[auth, kind, gzip], pack(&large)).await.unwrap().is(413);
    let mut line = plant.web().await;
    let reply = line.send("POST", path, &[auth, kind], large.clone()).await;
    assert!(reply.is_err() || reply.is_ok_and(|reply| reply.status.as_u16() == 413));
    // Without a token nothing of it is read.
    let mut line = plant.web().await;
    let reply = line.send("POST", path, &[kind], large).await;
    assert!(reply.is_err() || reply.is_ok_and(|reply| reply.status.as_u16() == 401));
    // A request that is cut off.
    let cut = axum::body::Body::from_stream(futures_util::stream::iter([
        Ok(bytes::Bytes::from_static(b"0014comm")),
        Err(std::io::Error::other("the line is cut")),
    ]));
    let mut line = plant.web().await;
    assert!(line.send("POST", path, &[auth, kind, newest], cut).await.is_err());
    let url = with_token(&repository, repository.token.as_ref().unwrap());
    client.clone(&url, "tree", &[]).await;
}

#[tokio::test]
async fn fetches_during_publications_see_one_version_or_the_next_whole() {
    let Some((plant, _, repository, client)) = plant().await else { return };
    let url = with_token(&repository, repository.token.as_ref().unwrap());
    let publish = async {
        for number in 0..12 {
            deploy(&plant, &format!("owner {number}"), &["press.42"]).await;
        }
    };
    let fetch = async |name: &str| {
        for round in 0..4 {
            let tree = client.clone(&url, &format!("{name}-{round}"), &["--depth", "2"]).await;
            let manifest = std::fs::read(tree.join("manifest.json")).unwrap();
            let listing = g2::manifest::read(&manifest).unwrap();
            for entry in listing.manifest.entries() {
                let file = std::fs::read(tree.join(format!("deployments/{}.yaml", entry.id))).unwrap();
                assert_eq!(Digest::of(&file), entry.document.digest);
            }
            let subject = client.git(&tree, &["log", "-1", "--format=%s"]).await;
            assert_eq!(subject, format!("manifest {}", listing.manifest.version()));
        }
    };
    tokio::join!(publish, fetch("one"), fetch("two"));
    let tree = client.clone(&url, "all", &[]).await;
    let subjects = client.git(&tree, &["log", "--reverse", "--format=%s"]).await;
    let wanted: Vec<String> = (1..=14).map(|version| format!("manifest {version}")).collect();
    assert_eq!(subjects.lines().collect::<Vec<_>>(), wanted);
}

#[tokio::test]
async fn a_repository_that_somebody_broke_is_whole_again_at_the_next_fetch() {
    let Some((plant, device, repository, client)) = plant().await else { return };
    let url = with_token(&repository, repository.token.as_ref().unwrap());
    let tree = client.clone(&url, "tree", &[]).await;
    let place = plant.data.path().join("git/press.42.git");
    // Gone altogether: the next fetch does not even notice.
    std::fs::remove_dir_all(&place).unwrap();
    deploy(&plant, "second", &["press.42"]).await;
    client.git(&tree, &["pull", "-q", "--ff-only"]).await;
    check_tree(&plant, &device, &client, &tree).await;
    // An old document is spoilt. Git finds out in the middle of a clone, and the one after that is whole.
    for entry in std::fs::read_dir(place.join("objects/pack")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() == Some("pack".as_ref()) {
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle..middle + 40].fill(0);
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let broken = client.run(client.home.path(), &["clone", "-q", &url, "broken"]).await;
    assert!(!broken.status.success());
    let rebuilt = async {
        while !client.run(client.home.path(), &["clone", "-q", &url, "whole"]).await.status.success() {}
    };
    timeout(DEADLINE, rebuilt).await.expect("the repository is made anew");
    check_tree(&plant, &device, &client, &client.path("whole")).await;
    assert_eq!(
        client.git(&tree, &["rev-parse", "HEAD"]).await,
        client.git(&client.path("whole"), &["rev-parse", "HEAD"]).await
    );
    let events = plant.server.fleet().device_events(&"press.42".parse().unwrap(), 100).await.unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == "device.git-rebuilt").count(), 2);
}

#[tokio::test]
async fn a_device_gets_its_own_token_by_its_certificate() {
    let Some((plant, device, _, client)) = plant().await else { return };
    let stranger = plant.join("press.43").await;
    let mut line = stranger.line(&plant).await;
    let reply = line.send("POST", GIT_TOKEN_PATH, &[], "").await.unwrap();
    let detail = reply.is_problem(403);
    assert!(detail.contains("margrave device git press.43"), "{detail}");
    let told: serde_json::Value = reply.json();
    assert_eq!((&told["retryable"], &told["backoffStrategy"]), (&json!(false), &json!("none")));

    let mut line = device.line(&plant).await;
    let reply = line.send("POST", GIT_TOKEN_PATH, &[], "").await.unwrap();
    assert_eq!(reply.is(200).header("cache-control"), "no-store");
    let token: GitToken = reply.json();
    assert_eq!(token.url, format!("{}/git/devices/press.42.git", plant.server.url()));
    assert!(!format!("{token:?}").contains(&token.token));
    std::fs::write(client.path("authority.pem"), &token.authority).unwrap();
    let url = token.url.replace("https://", &format!("https://{}:{}@", token.username, token.token));
    let tree = client.clone(&url, "tree", &[]).await;
    check_tree(&plant, &device, &client, &tree).await;
    let reply = line.get(GIT_TOKEN_PATH).await.unwrap();
    reply.is_problem(405);
    // Soon after it is asked to wait; a stolen certificate must not fill the store.
    let reply = line.send("POST", GIT_TOKEN_PATH, &[], "").await.unwrap();
    assert!(reply.is_problem(429).contains("after a pause"), "{:?}", reply.body);
    let told: serde_json::Value = reply.json();
    assert_eq!((&told["retryable"], &told["backoffStrategy"]), (&json!(true), &json!("exponential")));
    assert_eq!(told["retryAfterSeconds"], reply.header("retry-after").parse::<u64>().unwrap());
    plant.server.fleet().retire(&operator(), &"press.42".parse().unwrap()).await.unwrap();
    line.send("POST", GIT_TOKEN_PATH, &[], "").await.unwrap().is_problem(403);
}

#[tokio::test]
async fn operators_switch_it_on_and_off_over_rest() {
    let Some((plant, ..)) = plant().await else { return };
    plant.join("press.43").await;
    let admin = format!("Bearer {}", plant.server.context().token);
    let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
    let path = "/api/operator/v1/devices/press.43/git";
    let mut line = plant.web().await;
    line.send("GET", path, &headers, "").await.unwrap().is_problem(404);
    line.send("DELETE", path, &headers, "").await.unwrap().is_problem(404);
    line.send("PUT", path, &headers, r#"{"nonsense":1}"#).await.unwrap().is_problem(400);
    line.send("PUT", path, &headers, r#"{"rotate":true,"graceSeconds":0}"#).await.unwrap().is_problem(422);
    let made: GitRepository = line.send("PUT", path, &headers, "{}").await.unwrap().is(200).json();
    assert_eq!((made.branch.as_str(), made.version, made.tokens.len()), ("main", 1, 1));
    assert!(made.authority.starts_with("-----BEGIN CERTIFICATE-----"));
    let again: GitRepository = line.send("PUT", path, &headers, "{}").await.unwrap().is(200).json();
    assert_eq!(again.token, None);
    let shown = line.send("GET", path, &headers, "").await.unwrap();
    assert!(!String::from_utf8_lossy(&shown.is(200).body).contains("mgg_"), "{:?}", shown.body);
    let token = made.token.unwrap();
    ask(&mut line, &token, &refs("press.43")).await.is(200);
    line.send("DELETE", path, &headers, "").await.unwrap().is(204);
    ask(&mut line, &token, &refs("press.43")).await.is(401);
}
