//! Databases of every earlier schema, made as the programs of their time made them, and opened by this one.

use std::fs;
use std::path::{Path, PathBuf};

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeploymentName};
use margrave_core::lifecycle::State;
use margrave_store::*;
use rusqlite::Connection;

use crate::fixture::*;

/// Those that were released. A migration that has run somewhere never runs there again, so nothing in it can be mended:
/// what is wrong is put right by another one.
const RELEASED: [(&str, &str); 12] = [
    ("0001_first.sql", "86c4346ddbe7680607ef1c7c221e92567361478540ff4fbdc01286d31aaadf85"),
    ("0002_signed.sql", "53dc24077e514d7e432620c87405c42cf9d3f72fab150e685029e3a6addfa0cb"),
    ("0003_git.sql", "b738a74920e5e27cec18cbad52b8b20b1688d6b1701b20edf38d0ae9c2fd48a5"),
    ("0004_used_signatures.sql", "ec1957809bccab1962e1f49df885d726778594c691e028e8be7dc1752640894d"),
    ("0005_device_origin.sql", "c0d27074432b1a0be0bcb5d0b447d982baf3b9d07681def3bd53cbed54cdf0b9"),
    ("0006_rollback.sql", "a90a06d481b5051b8d30760c2c58cd3cd260dbee3a1330bda0254429c91dfdc2"),
    ("0007_schedule.sql", "147797f76ffdf294f77424b0d064900b200a6dc1993545b4c7aace7b52679f09"),
    ("0008_intent.sql", "48adccddca509f0dfe47610dffd6d6656dc177dccfc6c14164fcb05500a78b9d"),
    ("0009_access.sql", "b5010ab3438c10a136a3762dcdaf4232c779d8be4678825edcf3b5b216d920de"),
    ("0010_catalog.sql", "02c556156065b55a05d7b7010723655b812d5a8b7d2253a11ef4c9d5183d2714"),
    ("0011_rollout.sql", "13f257d33daeca0d51a6e1664bef1ff80dd6dcb3bd53069b2541218f8c3c6db1"),
    ("0012_standing.sql", "dfb5a9098915d3c403793e3dde8565be3e7200b0a1b9ac38df45825d3112cc6a"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/migrations")
}

/// Every migration there is, in order.
fn migrations() -> Vec<(String, String)> {
    let mut files: Vec<_> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn what_was_released_never_changes() {
    let all = migrations();
    for ((name, digest), (found, text)) in RELEASED.iter().zip(&all) {
        assert_eq!((found.as_str(), Digest::of(text.as_bytes()).hex().as_str()), (*name, *digest));
    }
    assert_eq!(schema_known() as usize, all.len(), "every file in src/migrations is a step");
}

/// What a program of the first schema had written, and what each later one added. The columns are named, so that rows
/// of one time go into the tables of a later one, as they would have been written there.
fn rows(schema: usize) -> Vec<String> {
    let mut report = numbered(assignment(), 2, State::Installed, 3);
    report.components.clear();
    let report = serde_json::to_string(&report).unwrap();
    let hex =
        |bytes: &[u8]| format!("x'{}'", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let digest = |text: &str| hex(Digest::of(text.as_bytes()).as_bytes());
    let deployment = hex(deployment_id("hello").uuid().as_bytes());
    let id = hex(assignment().uuid().as_bytes());
    let at = NOW.0;
    let mut rows = vec![
        format!("INSERT INTO meta (key, value) VALUES ('kept', {})", hex(b"value")),
        format!("INSERT INTO client (id, standing, joined_at, svid_serial, svid_not_after, version_claimed)
             VALUES ('line-1', 'accepted', {at}, 'aa', {at}, 2), ('line-9', 'retired', {at}, NULL, NULL, 0)"),
        format!("INSERT INTO contact (client, at) VALUES ('line-1', {at})"),
        format!("INSERT INTO manifest (client, version, body, bundle, bundle_size)
             VALUES ('line-1', 2, {}, {}, 3), ('line-9', 1, {}, NULL, NULL)", hex(b"manifest 2"), digest("one"), hex(b"empty")),
        format!("INSERT INTO blob (digest, bytes) VALUES ({}, {})", digest("one"), hex(b"one")),
        format!("INSERT INTO document_reference (client, assignment, digest, size) VALUES ('line-1', {id}, {}, 3)", digest("one")),
        format!("INSERT INTO bundle_reference (client, digest) VALUES ('line-1', {})", digest("one")),
        format!("INSERT INTO join_token (hash, client, labels, created_at, created_by, expires_at)
             VALUES ({}, 'line-2', '{{\"site\":\"nord\"}}', {at}, 'operator ann', {})", digest("join"), at + 60_000),
        format!("INSERT INTO device (client, device, created_at, capabilities, capabilities_at)
             VALUES ('line-1', 'line-1', {at}, {}, {at}), ('line-9', 'line-9', {at}, NULL, NULL)", hex(b"{}")),
        "INSERT INTO label (client, device, key, value) VALUES ('line-1', 'line-1', 'site', 'nord')".to_owned(),
        format!("INSERT INTO package (id, version, reference, digest, description, pins, added_at, added_by)
             VALUES ('app', '1.0.0', 'oci://margrave/app@sha256:0', {}, {}, '{{}}', {at}, 'operator ann')", digest("app"), hex(b"text")),
        format!("INSERT INTO package_resource (id, version, path, media_type, bytes)
             VALUES ('app', '1.0.0', 'icon.svg', 'image/svg+xml', {})", hex(b"<svg/>")),
        format!("INSERT INTO deployment (id, name, package, version, answers, targets, revision, changed_at, changed_by)
             VALUES ({deployment}, 'hello', 'app', '1.0.0', '{{}}', '{{\"devices\":[\"line-1\"],\"labels\":{{\"site\":\"nord\"}}}}', 2, {at}, 'operator ann')"),
        format!("INSERT INTO deployment_revision (name, revision, deployment, removed, package, version, answers, targets, changed_at, changed_by)
             VALUES ('hello', 1, {deployment}, 0, 'app', '1.0.0', '{{}}', '{{\"devices\":[],\"labels\":{{}}}}', {at}, 'operator ann'),
             ('hello', 2, {deployment}, 0, 'app', '1.0.0', '{{}}', '{{\"devices\":[\"line-1\"],\"labels\":{{}}}}', {at}, 'operator ann')"),
        format!("INSERT INTO misfit (deployment, client, device, reasons, temporary)
             VALUES ({deployment}, 'line-9', 'line-9', '[\"too small\"]', 0)"),
        format!("INSERT INTO assignment (id, client, device, deployment, deployment_name, package, version, profile, wanted,
             document, wanted_since, changed_version, changed_at, observed, adopted, report, received_at, observed_at,
             was_installed, state, verdict)
             VALUES ({id}, 'line-1', 'line-1', {deployment}, 'hello', 'app', '1.0.0', 'compose', 1, {}, 2, 2, {at},
             'INSTALLED', 2, '{report}', {at}, {at}, 1, 'INSTALLED', 0)", digest("one")),
        format!("INSERT INTO transition (assignment, adopted, sequence, state, at, received_at, late, report)
             VALUES ({id}, 2, 3, 'INSTALLED', {at}, {at}, 0, '{report}')"),
        format!("INSERT INTO event (at, kind, actor, client, device, text)
             VALUES ({at}, 'device.joined', 'device line-1', 'line-1', 'line-1', 'line-1 joined')"),
    ];
    match schema {
        ..9 => {
            rows.push(format!(
                "INSERT INTO operator_token (hash, name, created_at) VALUES ({}, 'admin', {at})",
                digest("token")
            ));
            rows.push(format!(
                "INSERT INTO session (hash, actor, created_at, expires_at) VALUES ({}, 'operator admin', {at}, {})",
                digest("session"),
                at + 60_000
            ));
        }
        _ => rows.push(format!(
            "INSERT INTO operator_token (id, hash, name, role, created_at, created_by)
             VALUES ('0123456789ab', {}, 'admin', 'admin', {at}, 'server')",
            digest("token")
        )),
    }
    if schema >= 2 {
        rows.push(format!(
            "INSERT INTO client (id, standing, joined_at, dialect) VALUES ('s-1', 'accepted', {at}, 'g1')"
        ));
        rows.push(format!(
            "INSERT INTO manifest (client, version, body) VALUES ('s-1', 1, {})",
            hex(b"empty")
        ));
        rows.push(format!(
            "INSERT INTO signed_client (id, certificate, fingerprint, decision, first_seen, last_seen)
             VALUES ('s-1', {}, {}, 'accepted', {at}, {at})",
            hex(b"der"),
            digest("key")
        ));
    }
    if schema >= 3 {
        rows.push(format!("INSERT INTO git_repository (client, since, kept) VALUES ('line-1', {at}, 1)"));
        rows.push("INSERT INTO git_grant (client) VALUES ('line-2')".to_owned());
        rows.push(format!("INSERT INTO git_token (hash, client, holder, created_at) VALUES ({}, 'line-1', 'operator', {at})", digest("git")));
        rows.push(format!(
            "INSERT INTO git_version (client, version, at, body) VALUES ('line-1', 2, {at}, {})",
            hex(b"manifest 2")
        ));
        rows.push(format!(
            "INSERT INTO git_document (client, assignment, since, digest) VALUES ('line-1', {id}, 2, {})",
            digest("one")
        ));
    }
    if schema >= 4 {
        rows.push(format!(
            "INSERT INTO used_signature (client, mark, until) VALUES ('s-1', {}, {})",
            hex(&[7; 16]),
            at + 60_000
        ));
    }
    if schema >= 5 {
        rows.push("UPDATE device SET origin = 's-1:old' WHERE client = 'line-1'".to_owned());
    }
    if schema >= 6 {
        rows.push(
            "UPDATE deployment SET rollback_when = 'never', rollback_attempts = 5, health_grace = 9"
                .to_owned(),
        );
    }
    if schema >= 7 {
        rows.push(format!("INSERT INTO schedule (reach, choice, changed_at, changed_by) VALUES ('fleet', '{{}}', {at}, 'operator ann')"));
    }
    rows
}

fn assignment() -> AssignmentId {
    AssignmentId::derive(deployment_id("hello"), &device("line-1"))
}

/// A database as a program of that schema left it.
fn of_schema(schema: usize, directory: &Path) {
    let connection = Connection::open(directory.join("margrave.db")).unwrap();
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    connection.execute_batch("PRAGMA foreign_keys = ON").unwrap();
    for (name, sql) in &migrations()[..schema] {
        connection.execute_batch(sql).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    connection.pragma_update(None, "user_version", schema as u32).unwrap();
    for row in rows(schema) {
        connection.execute_batch(&row).unwrap_or_else(|error| panic!("{row}: {error}"));
    }
}

#[tokio::test]
async fn every_earlier_schema_is_brought_forward_with_all_that_was_in_it() {
    for schema in 1..=migrations().len() {
        let directory = tempfile::tempdir().unwrap();
        of_schema(schema, directory.path());
        let store = Store::open(directory.path()).unwrap_or_else(|error| panic!("{schema}: {error:?}"));
        check(&store, schema).await;
        // And it goes on: what is new is written beside what was there.
        store.note(NewEvent::new(NOW, "test", "server", "one more")).await.unwrap();
        let report = numbered(assignment(), 2, State::Failed, 4);
        store.record_report(&client("line-1"), report, NOW).await.unwrap();
        drop(store);
        let file = directory.path().join("margrave.db");
        assert_eq!(check_copy(&file).unwrap(), schema_known(), "{schema}");
        let store = Store::open(directory.path()).unwrap();
        assert_eq!(store.events_after(0, 100).await.unwrap().last().unwrap().kind, "assignment.state");
    }
}

async fn check(store: &Store, schema: usize) {
    let clients = store.clients().await.unwrap();
    let line = clients.iter().find(|record| record.id == client("line-1")).unwrap();
    assert_eq!((line.manifest_version, &line.manifest_body[..]), (2, &b"manifest 2"[..]), "{schema}");
    assert_eq!(clients.len(), if schema >= 2 { 3 } else { 2 });
    assert_eq!(store.recall("kept").await.unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(store.svid_serials(&client("line-1")).await.unwrap(), ["aa"]);

    let found = store.device(&device("line-1")).await.unwrap().unwrap();
    assert_eq!((found.labels, found.last_contact), (labels(&[("site", "nord")]), Some(NOW)));
    assert_eq!(found.capabilities.as_deref(), Some(&b"{}"[..]));
    assert_eq!(found.origin, (schema >= 5).then(|| device("s-1:old")));
    let retired = store.device(&device("line-9")).await.unwrap().unwrap();
    assert_eq!(retired.standing, Standing::Retired);

    let name = DeploymentName::parse("hello").unwrap();
    let deployment = store.deployment(&name).await.unwrap().unwrap();
    assert_eq!((deployment.deployment.revision, deployment.misfits.len()), (2, 1));
    assert_eq!(deployment.deployment.targets.devices, [device("line-1")].into());
    // Where nobody had chosen, it is as usual.
    let rollback = deployment.deployment.rollback;
    let (attempts, grace) = if schema >= 6 { (5, Some(9)) } else { (2, None) };
    assert_eq!((rollback.attempts, rollback.health_grace.map(|grace| grace.as_secs())), (attempts, grace));
    assert_eq!(store.revisions(&name).await.unwrap().len(), 2);

    let assignments = store.assignments(Scope::All).await.unwrap();
    let observed = assignments[0].observed.as_ref().unwrap();
    assert_eq!((assignments[0].id, observed.state), (assignment(), State::Installed));
    assert_eq!(observed.report.detail.as_ref().unwrap().sequence, 3);
    assert_eq!(store.transitions(&name, &device("line-1")).await.unwrap().len(), 1);
    let document = store.document(&client("line-1"), assignment(), Digest::of(b"one")).await.unwrap();
    assert_eq!(document.as_deref(), Some(&b"one"[..]));
    assert_eq!(
        store.bundle(&client("line-1"), Digest::of(b"one")).await.unwrap().as_deref(),
        Some(&b"one"[..])
    );

    assert_eq!(store.packages().await.unwrap().len(), 1);
    assert_eq!(store.events_after(0, 10).await.unwrap()[0].text, "line-1 joined");
    let tokens = store.operator_tokens().await.unwrap();
    assert_eq!((tokens.len(), tokens[0].hash), (1, Digest::of(b"token")), "who had a token has it still");
    assert!(
        store.sessions(NOW).await.unwrap().is_empty(),
        "whose they were was not known, so they signed in again"
    );
    assert!(store.knows_join_token(Digest::of(b"join")).await.unwrap());

    assert_eq!(store.signed_clients().await.unwrap().len(), usize::from(schema >= 2));
    let git = store.git_owner(Digest::of(b"git"), NOW).await.unwrap();
    assert_eq!(git, (schema >= 3).then(|| client("line-1")));
    assert_eq!(store.git_allowed(&client("line-2")).await.unwrap(), schema >= 3);
    assert_eq!(store.used_signatures(NOW).await.unwrap().len(), usize::from(schema >= 4));
    assert_eq!(store.schedules().await.unwrap().len(), usize::from(schema >= 7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_made_while_others_write_is_one_moment_and_whole() {
    let world = World::new();
    world.join("line-1").await;
    let id = world.deploy("hello", "line-1", b"one").await;
    let writer = world.store.clone();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let writing = tokio::spawn(async move {
        let mut sequence = 0;
        while stopped.try_recv().is_err() {
            sequence += 1;
            let state = if sequence % 2 == 0 { State::Installed } else { State::Failed };
            writer.record_report(&client("line-1"), numbered(id, 2, state, sequence), NOW).await.unwrap();
        }
        sequence
    });
    let name = DeploymentName::parse("hello").unwrap();
    for _ in 0..10 {
        let before = world.store.transitions(&name, &device("line-1")).await.unwrap().len();
        let copies = tempfile::tempdir().unwrap();
        let file = copies.path().join("margrave.db");
        let (store, to) = (world.store.clone(), file.clone());
        assert_eq!(
            tokio::task::spawn_blocking(move || store.copy_to(&to)).await.unwrap().unwrap(),
            schema_known()
        );
        assert_eq!(check_copy(&file).unwrap(), schema_known());
        let restored = Restored { made_at: NOW, restored_at: later(60) };
        mark_restored(&file, restored).unwrap();
        let copy = Store::open(copies.path()).unwrap();
        let history = copy.transitions(&name, &device("line-1")).await.unwrap();
        assert!(
            history.len() >= before,
            "{} are in the copy, {before} were acknowledged before it",
            history.len()
        );
        let observed = copy.assignments(Scope::All).await.unwrap()[0].observed.clone();
        let newest = history.last().map(|step| step.report.detail.as_ref().unwrap().sequence);
        let shown = observed.map(|observed| observed.report.detail.unwrap().sequence);
        assert_eq!(shown, newest, "picture and history are of one moment");
        assert_eq!(copy.restored().await.unwrap(), Some(restored));
        assert_eq!(world.store.restored().await.unwrap(), None);
    }
    stop.send(()).unwrap();
    assert!(writing.await.unwrap() > 0);
}

#[test]
fn a_copy_that_is_damaged_or_newer_is_told() {
    let World { store, directory } = World::new();
    drop(store);
    let copies = tempfile::tempdir().unwrap();
    let file = copies.path().join("copy.db");
    copy_closed(directory.path(), &file).unwrap();
    check_copy(&file).unwrap();
    let newer = copies.path().join("newer.db");
    fs::copy(&file, &newer).unwrap();
    Connection::open(&newer).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(check_copy(&newer), Err(CopyError::Newer { found: 99, .. })));
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..].fill(0x55);
    fs::write(&file, bytes).unwrap();
    assert!(check_copy(&file).is_err());
}
