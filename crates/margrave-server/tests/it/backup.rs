//! Backups of a running server, and what comes of restoring one.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_oci::reference::RepositoryName;
use margrave_server::backup::{BackupError, Made, RestoreError, back_up_closed, check, restore};
use margrave_server::fleet::AuditQuery;
use margrave_server::{Server, StartError};
use margrave_wire::backup::{DATABASE, HEAD, Head, LIST, List};
use margrave_wire::g2;
use margrave_wire::operator::{Event, PREFIX, PutDeployment, Targets};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::intent;
use crate::line::DEADLINE;
use crate::plant::{Plant, config, now, operator};
use crate::stock;

const MANIFEST: &str = "/api/v1/deployments";

fn bearer(plant: &Plant) -> String {
    format!("Bearer {}", plant.server.context().token)
}

async fn backup(plant: &Plant) -> Bytes {
    let mut line = plant.local().await;
    let headers = [("authorization", bearer(plant))];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    let reply = line.send("POST", &format!("{PREFIX}/backup"), &headers, "").await.unwrap();
    assert_eq!(reply.is(200).header("content-type"), "application/x-tar");
    reply.body
}

async fn deploy(plant: &Plant, rate: u32) {
    let want = PutDeployment {
        package: "gate".to_owned(),
        version: None,
        profile: None,
        parameters: [("owner".to_owned(), json!("Ann")), ("rate".to_owned(), json!(rate))].into(),
        targets: Targets { devices: vec!["press.42".to_owned()], ..Default::default() },
        rollback: None,
        revision: None,
        ..Default::default()
    };
    plant.server.fleet().put_deployment(&operator(), &"north".parse().unwrap(), want).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_that_are_ahead_of_a_restored_server_converge_and_never_go_back() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let press = plant.join("press.42").await;
    let mut line = press.line(&plant).await;
    let capabilities = stock::capabilities_body("press.42", 4);
    let json = ("content-type", "application/json");
    line.send("PUT", "/api/v1/capabilities/press.42", &[json], capabilities).await.unwrap().is(201);
    deploy(&plant, 5).await;
    let archive = backup(&plant).await;
    let held = g2::manifest::read(&line.get(MANIFEST).await.unwrap().is(200).body).unwrap().manifest;

    // Time goes on: two changes, and certificates that the backup knows nothing of.
    deploy(&plant, 7).await;
    deploy(&plant, 9).await;
    for ahead in [5, 10, 15] {
        plant.set_ahead(ahead);
        press.renew(&plant).await.is(200);
    }
    let mut line = press.line(&plant).await;
    let newest = g2::manifest::read(&line.get(MANIFEST).await.unwrap().is(200).body).unwrap().manifest;
    assert!(newest.version() > held.version());

    let plant = plant.restored(&archive).await;
    let mut line = press.line(&plant).await;
    let undecided = g2::manifest::read(&line.get(MANIFEST).await.unwrap().is(200).body).unwrap().manifest;
    assert_eq!(undecided, held, "devices are given nothing until somebody decides");
    plant.server.fleet().resolve(&operator(), false).await.unwrap();
    let shown = g2::manifest::read(&line.get(MANIFEST).await.unwrap().is(200).body).unwrap().manifest;
    assert_eq!(shown.entries(), held.entries(), "the server wants what it wanted");
    assert!(shown.version() > newest.version(), "{} is not above {}", shown.version(), newest.version());
    // Also a device that still tells of the past that was lost gets what is wanted now, and never goes back.
    let id = newest.entries()[0].id.to_string();
    let report = json!({"deploymentId": id, "adoptedManifestVersion": newest.version(),
        "status": {"state": "installed"}, "components": [{"name": "gate", "state": "installed"}]});
    let path = format!("{MANIFEST}/{id}/status");
    line.send("POST", &path, &[json], report.to_string()).await.unwrap().is(201);
    let above = g2::manifest::read(&line.get(MANIFEST).await.unwrap().is(200).body).unwrap().manifest;
    assert_eq!(above, shown);
    // Everything that the manifest names is there.
    let document = format!("{MANIFEST}/{id}/{}", above.entries()[0].document.digest);
    line.get(&document).await.unwrap().is(200);
    press.renew(&plant).await.is(200);
    press.renew(&plant).await.is(200);

    let events: Vec<Event> = plant.server.fleet().recent_events(50).await.unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == "server.restored").count(), 1);
    let plant = plant.restart().await;
    let events: Vec<Event> = plant.server.fleet().recent_events(50).await.unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == "server.restored").count(), 1, "told once");
}

#[tokio::test]
async fn a_restored_log_says_who_took_the_backup_and_not_that_it_was_cut_off() {
    let plant = Plant::new().await;
    let taken = async |plant: &Plant| {
        let log = plant.server.fleet().audit(AuditQuery::default()).await.unwrap().items;
        let taken = log.into_iter().filter(|entry| entry.action.starts_with("backup."));
        taken.map(|entry| (entry.sequence, entry.actor, entry.outcome)).collect::<Vec<_>>()
    };
    let archive = backup(&plant).await;
    let before = taken(&plant).await;
    let [(_, actor, outcome)] = &before[..] else { panic!("one entry for one backup: {before:?}") };
    assert_eq!((actor.as_str(), outcome.as_str()), ("operator admin", "done"));
    let plant = plant.restored(&archive).await;
    assert_eq!(taken(&plant).await, before);
}

#[tokio::test]
async fn commits_that_a_clone_has_bring_a_restored_server_to_what_devices_run() {
    let Some((plant, device, client, url)) = intent::plant().await else { return };
    let tree = client.clone(&url, "tree", &[]).await;
    intent::write(&client, &tree, "deployments/gate.yaml", &intent::deployment("ann")).await;
    client.git(&tree, &["push", "-q", "origin", "main"]).await;
    let archive = backup(&plant).await;
    intent::write(&client, &tree, "deployments/gate.yaml", &intent::deployment("bea")).await;
    client.git(&tree, &["push", "-q", "origin", "main"]).await;
    let shown = async |plant: &Plant| {
        let body = device.line(plant).await.get(MANIFEST).await.unwrap().is(200).body.clone();
        g2::manifest::read(&body).unwrap().manifest
    };
    let newest = shown(&plant).await;

    let plant = plant.restored(&archive).await;
    assert!(plant.server.fleet().intent().await.unwrap().conflict.is_some());
    assert!(shown(&plant).await.version() < newest.version());
    let url = intent::address(&plant, &plant.server.context().token);
    client.git(&tree, &["push", "-q", &url, "main"]).await;
    assert_eq!(plant.server.fleet().intent().await.unwrap().conflict, None);
    let decided = shown(&plant).await;
    assert!(decided.version() > newest.version());
    // What was wanted since, and nothing older; on another port, so that its bytes differ.
    let (entry, was) = (decided.entries()[0], newest.entries()[0]);
    assert_eq!((decided.entries().len(), entry.id), (1, was.id));
    let document = format!("{MANIFEST}/{}/{}", entry.id, entry.document.digest);
    let document = device.line(&plant).await.get(&document).await.unwrap().is(200).body.clone();
    assert!(String::from_utf8_lossy(&document).contains("bea"));
}

#[tokio::test]
async fn a_replaced_certificate_does_not_renew_unless_it_is_of_lost_time() {
    let plant = Plant::new().await;
    let press = plant.join("press.42").await;
    let first = press.svid.current();
    for ahead in [5, 10] {
        plant.set_ahead(ahead);
        press.renew(&plant).await.is(200);
    }
    let archive = backup(&plant).await;
    let plant = plant.restored(&archive).await;
    let key = margrave_identity::key::PrivateKey::generate().unwrap();
    plant.ask_to_renew(&first, &key).await.is_problem(403);
    press.renew(&plant).await.is(200);
}

#[tokio::test]
async fn a_backup_holds_everything_and_a_restored_server_is_the_same_one() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    // A repository of what operators want, as far as a backup is concerned.
    let intent = plant.data.path().join("intent.git");
    for directory in ["refs/heads", "objects/pack", "objects/ab", "incoming-x/pack"] {
        std::fs::create_dir_all(intent.join(directory)).unwrap();
    }
    for (file, text) in [
        ("HEAD", "ref: refs/heads/main\n"),
        ("packed-refs", "x"),
        ("objects/ab/cd", "object"),
        ("objects/ab/tmp_obj_x", "half"),
        ("incoming-x/pack/pack-1.pack", "unchecked"),
        ("refs/heads/main.lock", "half"),
    ] {
        std::fs::write(intent.join(file), text).unwrap();
    }
    let secrets = plant.data.path().join("secrets");
    std::fs::create_dir_all(secrets.join("db")).unwrap();
    std::fs::write(secrets.join("db/password"), "hunter2").unwrap();
    std::os::unix::fs::symlink("db/password", secrets.join("link")).unwrap();
    let want = margrave_wire::operator::SealSecret {
        deployment: "web".into(),
        parameter: "password".into(),
        value: "hunter2".into(),
    };
    plant.server.fleet().seal(&want).unwrap();
    let key = std::fs::read(plant.data.path().join("secrets.key")).unwrap();
    let archive = backup(&plant).await;
    let made = check(&archive[..]).unwrap();
    assert!(made.files > 10 && made.bytes > 10_000, "{made:?}");
    let names = names(&archive);
    assert_eq!(names[..2], [HEAD, DATABASE].map(str::to_owned), "the database comes first");
    assert_eq!(names.last().unwrap(), LIST);
    for wanted in [
        "context.json",
        "identity/authority.key",
        "identity/names.json",
        "intent.git/objects/ab/cd",
        "secrets.key",
        "secrets/db/password",
    ] {
        assert!(names.iter().any(|name| name == wanted), "{wanted} is not in {names:?}");
    }
    for unwanted in ["tmp_obj", ".lock", "incoming", "registry/lock", "margrave.lock", "-wal"] {
        assert!(!names.iter().any(|name| name.contains(unwanted)), "{unwanted} is in {names:?}");
    }
    assert!(
        std::fs::read_dir(plant.data.path())
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_str().unwrap().starts_with("backup-") })
    );

    let (pin, token) = (plant.server.pin(), plant.server.context().token);
    let plant = plant.restored(&archive).await;
    assert_eq!((plant.server.pin(), plant.server.context().token), (pin, token));
    assert_eq!(plant.server.fleet().packages().await.unwrap().len(), 1);
    let repository = RepositoryName::parse("components/gate").unwrap();
    assert_eq!(plant.server.registry().tags(&repository).await.unwrap().unwrap().len(), 1);
    let intent = plant.data.path().join("intent.git");
    assert!(intent.join("refs/heads").is_dir() && intent.join("objects/pack").is_dir());
    assert_eq!(std::fs::read(plant.data.path().join("secrets.key")).unwrap(), key);
    assert_eq!(std::fs::read(plant.data.path().join("secrets/db/password")).unwrap(), b"hunter2");
    let events = plant.server.fleet().recent_events(50).await.unwrap();
    assert!(events.iter().any(|event| event.kind == "server.backup"), "who took it is known");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_backup_at_a_time_and_one_that_is_given_up_leaves_nothing() {
    let plant = Plant::new().await;
    let repository = RepositoryName::parse("large").unwrap();
    // More than any socket takes unread.
    plant.server.registry().put_blob(&repository, Bytes::from(vec![7; 48 << 20])).await.unwrap();
    let mut reader = TcpStream::connect(plant.server.addresses().local.unwrap()).await.unwrap();
    let ask = format!(
        "POST {PREFIX}/backup HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {}\r\ncontent-length: 0\r\n\r\n",
        bearer(&plant)
    );
    reader.write_all(ask.as_bytes()).await.unwrap();
    reader.readable().await.unwrap();
    let again = || async {
        let mut line = plant.local().await;
        let bearer = bearer(&plant);
        line.send("POST", &format!("{PREFIX}/backup"), &[("authorization", &bearer)], "").await.unwrap()
    };
    assert!(again().await.is_problem(409).contains("being made"));
    drop(reader);
    let done = async {
        loop {
            let reply = again().await;
            if reply.status == 200 {
                return reply.body;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let archive = tokio::time::timeout(DEADLINE, done).await.unwrap();
    assert!(check(&archive[..]).unwrap().bytes > 48 << 20);
    let gone = async {
        while std::fs::read_dir(plant.data.path())
            .unwrap()
            .any(|entry| entry.unwrap().file_name().to_str().unwrap().starts_with("backup-"))
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.unwrap();
}

#[tokio::test]
async fn a_stopped_server_is_backed_up_from_its_directory_and_a_running_one_is_not() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let running = back_up_closed(plant.data.path(), Vec::new(), now()).unwrap_err();
    assert!(matches!(running, BackupError::InUse(_)), "{running}");
    let Plant { data, server, .. } = plant;
    server.stop().await;
    let mut archive = Vec::new();
    let made = back_up_closed(data.path(), &mut archive, now()).unwrap();
    assert_eq!(check(&archive[..]).unwrap(), made);
    let elsewhere = tempfile::tempdir().unwrap();
    let missing = back_up_closed(elsewhere.path(), Vec::new(), now()).unwrap_err();
    assert!(matches!(missing, BackupError::NoServer(_)), "{missing}");
    let target = elsewhere.path().join("new");
    restore(&archive[..], &target, now()).unwrap();
    let server = Server::start(config(&target)).await.unwrap();
    assert_eq!(server.fleet().packages().await.unwrap().len(), 1);
    server.stop().await;
    let full = restore(&archive[..], &target, now()).unwrap_err();
    assert!(matches!(full, RestoreError::NotEmpty(_)), "{full}");
}

/// What is in a small archive, to be changed and put together again.
struct Opened {
    entries: Vec<(String, tar::EntryType, Vec<u8>)>,
}

fn names(archive: &[u8]) -> Vec<String> {
    Opened::open(archive).entries.into_iter().map(|(name, ..)| name).collect()
}

impl Opened {
    fn open(archive: &[u8]) -> Opened {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            let name = entry.path().unwrap().to_str().unwrap().trim_end_matches('/').to_owned();
            (name, entry.header().entry_type(), bytes)
        });
        Opened { entries: entries.collect() }
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.entries.iter_mut().find(|(own, ..)| own == name).unwrap().2);
    }

    fn remove(&mut self, name: &str) {
        self.entries.retain(|(own, ..)| own != name);
    }

    /// Before the list, and in it, unless told otherwise.
    fn insert(&mut self, name: &str, kind: tar::EntryType, bytes: &[u8]) {
        let at = self.entries.len() - 1;
        self.entries.insert(at, (name.to_owned(), kind, bytes.to_vec()));
    }

    fn list(&mut self, change: impl FnOnce(&mut List)) {
        self.change(LIST, |bytes| {
            let mut list: List = serde_json::from_slice(bytes).unwrap();
            change(&mut list);
            *bytes = serde_json::to_vec(&list).unwrap();
        });
    }

    fn head(&mut self, change: impl FnOnce(&mut Head)) {
        self.change(HEAD, |bytes| {
            let mut head: Head = serde_json::from_slice(bytes).unwrap();
            change(&mut head);
            *bytes = serde_json::to_vec(&head).unwrap();
        });
    }

    /// A new database, with its size and digest in the list.
    fn database(&mut self, change: impl FnOnce(&Path)) {
        let file = tempfile::NamedTempFile::new().unwrap();
        self.change(DATABASE, |bytes| {
            file.as_file().write_all(bytes).unwrap();
            change(file.path());
            *bytes = std::fs::read(file.path()).unwrap();
        });
        let bytes = std::fs::read(file.path()).unwrap();
        self.list(|list| {
            let listed = list.files.iter_mut().find(|listed| listed.path.as_str() == DATABASE).unwrap();
            (listed.size, listed.digest) = (bytes.len() as u64, Digest::of(&bytes));
        });
    }

    fn close(&self) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, bytes) in &self.entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            // By hand, because a builder that is kind to people writes no bad names.
            let field = &mut header.as_old_mut().name;
            field[..name.len()].copy_from_slice(name.as_bytes());
            if matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link) {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            builder.append(&header, &bytes[..]).unwrap();
        }
        builder.into_inner().unwrap()
    }
}

/// Tries to restore, and sees to it that a refusal leaves nothing.
fn refused(archive: &[u8]) -> RestoreError {
    let parent = tempfile::tempdir().unwrap();
    let (new, empty) = (parent.path().join("new"), parent.path().join("empty"));
    std::fs::create_dir(&empty).unwrap();
    let error = restore(archive, &new, now()).expect_err("it should be refused");
    restore(archive, &empty, now()).expect_err("it should be refused");
    assert!(!new.exists(), "{error}");
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "{error}");
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1, "nothing lies beside it: {error}");
    error
}

#[tokio::test]
async fn damaged_cut_foreign_and_newer_archives_are_refused_in_a_sentence() {
    let plant = Plant::new().await;
    let archive = backup(&plant).await;
    let opened = || Opened::open(&archive);
    let changed = |change: &dyn Fn(&mut Opened)| {
        let mut opened = opened();
        change(&mut opened);
        refused(&opened.close())
    };
    let Made { .. } = check(&opened().close()[..]).expect("only what is changed is refused");

    // Cut: anywhere at all.
    for part in 0..40 {
        let end = archive.len() * part / 40;
        let error = check(&archive[..end]).unwrap_err();
        let honest =
            matches!(error, RestoreError::CutOff) || (end < 1024 && matches!(error, RestoreError::Foreign));
        assert!(honest, "{end} of {}: {error}", archive.len());
    }
    assert!(matches!(refused(&archive[..archive.len() / 2]), RestoreError::CutOff));

    // Foreign.
    for foreign in [&b""[..], b"PK\x03\x04 something else", &[0; 4096]] {
        assert!(matches!(refused(foreign), RestoreError::Foreign));
    }
    assert!(matches!(changed(&|opened| opened.remove(HEAD)), RestoreError::Foreign));

    // Newer.
    let newer = changed(&|opened| opened.head(|head| head.format = 2));
    assert!(matches!(newer, RestoreError::NewerFormat(2)) && newer.to_string().contains("newer"), "{newer}");
    let newer = changed(&|opened| {
        opened.database(|file| {
            // The schema stands at byte 60 of the header.
            let mut bytes = std::fs::read(file).unwrap();
            bytes[60..64].copy_from_slice(&999u32.to_be_bytes());
            std::fs::write(file, bytes).unwrap();
        })
    });
    assert!(matches!(newer, RestoreError::NewerSchema { found: 999, .. }), "{newer}");

    // Damaged, and each says what.
    let damaged = |change: &dyn Fn(&mut Opened), words: &str| {
        let error = changed(change);
        assert!(matches!(error, RestoreError::Damaged(_)) && error.to_string().contains(words), "{error}");
    };
    let file = tar::EntryType::Regular;
    damaged(
        &|opened| opened.change("identity/authority.key", |bytes| bytes[40] ^= 1),
        "authority.key is not what",
    );
    damaged(&|opened| opened.remove("identity/authority.key"), "authority.key is missing");
    damaged(&|opened| opened.insert("identity/more.key", file, b"x"), "more.key is not in its list");
    damaged(&|opened| opened.insert("context.json", file, b"x"), "twice");
    damaged(&|opened| opened.change(LIST, |bytes| bytes.truncate(20)), "list cannot be read");
    damaged(&|opened| opened.entries.push(("context.json".into(), file, vec![])), "behind its list");
    for path in ["../outside", "/etc/margrave", "store/../../outside", "elsewhere", "store/a/../../../b"] {
        damaged(&|opened| opened.insert(path, file, b"x"), "is not a path");
        damaged(&|opened| opened.insert(path, tar::EntryType::Directory, b""), "is not a path");
    }
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link, tar::EntryType::Fifo, tar::EntryType::Char] {
        damaged(&|opened| opened.insert("registry/x", kind, b""), "neither a file nor a directory");
    }
    // Where the list agrees with the damage, the database and the keys do not.
    let broken =
        changed(&|opened| opened.database(|file| std::fs::write(file, b"not SQLite at all").unwrap()));
    assert!(matches!(broken, RestoreError::Database(_)), "{broken}");
    let broken = changed(&|opened| {
        opened.change("identity/authority.key", |bytes| *bytes = b"no key".to_vec());
        opened.list(|list| {
            let key = list
                .files
                .iter_mut()
                .find(|listed| listed.path.as_str() == "identity/authority.key")
                .unwrap();
            (key.size, key.digest) = (6, Digest::of(b"no key"));
        });
    });
    assert!(matches!(broken, RestoreError::Keys(_)), "{broken}");
}

#[tokio::test]
async fn a_restore_that_was_killed_is_no_server() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("restore.unfinished"), "").unwrap();
    let error = Server::start(config(data.path())).await.err().unwrap();
    assert!(matches!(error, StartError::Unrestored(_)), "{error}");
    assert!(restore(&b""[..], data.path(), Moment(0)).is_err());
    assert!(data.path().join("restore.unfinished").exists());
}
