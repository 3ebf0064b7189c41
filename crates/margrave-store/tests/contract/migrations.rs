//! Databases of every earlier schema, made as the programs of their time made them, and opened by this one.

use std::fs;
use std::path::{Path, PathBuf};

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeploymentName};
use margrave_core::lifecycle::State;
use margrave_store::*;
use rusqlite::Connection;

use crate::fixture::*;

/// Every migration, with the digest of its text. One that has run somewhere never runs there again, so nothing in it can be
/// mended once it was released: what is wrong is put right by another one. A new one is listed here as it is made, and may
/// change together with its line until it is released; the test says what to write.
const LISTED: [(&str, &str); 31] = [
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
    ("0013_room.sql", "46c2f3c1824ed0271cba048146f9bfc1408db184096292d5f4534931f4cd992b"),
    ("0014_behind.sql", "ed195aed47f1d1b6091d76fb44b7503e1cb80f6281a74ca5c82a852db2fb85df"),
    ("0015_asked.sql", "7c19e4ad737dce4242a1d5af9b2cc30bf5179522eef6646fe9909a3880636031"),
    ("0016_documents.sql", "c929490965553a18dd0a436e8d1909295cfc9cacd33ac5fa7a566b79c43ede0a"),
    ("0017_deployment_windows.sql", "f037330a1cdd60b08b4ddd163efef96146e88d859e444078558cd2e9eaece8f0"),
    ("0018_applied.sql", "398b82358e423aab513591125dc4bb5d024f2b615306755844de2b4624ba724b"),
    ("0019_blind.sql", "6b88e60cc24cef26084a3a2a2085fc32cd14c381b932ea136dde8c2798e9bde4"),
    ("0020_waiting.sql", "327ad424774610e5cbd125ac3f17c955ffe77590d8954e930ddffca1ebb4a315"),
    ("0021_attempts.sql", "3c8d421751d0fa790924420c42d7b1cc87ec89feb7078e7b48b4e25a7cccf312"),
    ("0022_finding.sql", "03ecbcc4bfb7c519f853938b253fc379f23a6685ea9f8d5318c9f704be586d1e"),
    ("0023_unfinished.sql", "f600760ca67b9c33a2d8d93116a04cbfd9918e92135ebd3a34ec8c341068b5dd"),
    ("0024_begun.sql", "1fd8e07a278936d5be92bf99b2de15d3d8ff756a8f5bdfc74bfec90b29a34e92"),
    ("0025_images.sql", "9583f525498b8cc2c37644a061e0a27878a11bf5a8effbce1fd64fffca524c73"),
    ("0026_named.sql", "7d4c48594f69eedbe548fd28532c0cec0d13df1539228feee856a243787d61b2"),
    ("0027_sizes.sql", "8c0c96d0ed5c299e550e756c5260a13f951cc9d83a403dba218c4d6d0695e97a"),
    ("0028_refused.sql", "91670084331131391fffb81d27ec725d3dfefc2b4c823d03062c7d32b22ed1e7"),
    ("0029_given_up.sql", "1c0b092fa7ccfc046da9e6936fa3e2a76bee8b943bd8893ede56c68e99784c1c"),
    ("0030_made.sql", "63d8b07458693490588eb2aa8f79b2712f48577171f331b64ebe04f980919306"),
    ("0031_noted.sql", "8f295fbdcbad09878576a1d9fe4492fbcb4dff4d097f877dfb3c48c96e0b13f9"),
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
    let lines: Vec<String> = all
        .iter()
        .map(|(name, text)| format!("(\"{name}\", \"{}\"),", Digest::of(text.as_bytes()).hex()))
        .collect();
    let listed: Vec<String> =
        LISTED.iter().map(|(name, digest)| format!("(\"{name}\", \"{digest}\"),")).collect();
    let differing: Vec<&str> =
        lines.iter().filter(|line| !listed.contains(line)).map(String::as_str).collect();
    assert!(
        differing.is_empty(),
        "new, or changed since it was listed. One that was released stays as it was; of any other write in LISTED:\n{}",
        differing.join("\n")
    );
    assert_eq!(listed, lines, "each is listed once and in order, and what is listed is there");
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
        ..16 => rows.extend([
            format!("INSERT INTO blob (digest, bytes) VALUES ({}, {})", digest("one"), hex(b"one")),
            format!("INSERT INTO document_reference (client, assignment, digest, size) VALUES ('line-1', {id}, {}, 3)", digest("one")),
            format!("INSERT INTO bundle_reference (client, digest) VALUES ('line-1', {})", digest("one")),
        ]),
        _ => rows.extend([
            format!("INSERT INTO document (client, assignment, digest, size, bytes)
                 VALUES ('line-1', {id}, {}, 3, {})", digest("one"), hex(b"one")),
            format!("INSERT INTO bundle (client, digest, bytes) VALUES ('line-1', {}, {})", digest("one"), hex(b"one")),
        ]),
    }
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
        let (column, bytes) =
            if schema < 16 { ("", String::new()) } else { (", bytes", format!(", {}", hex(b"one"))) };
        rows.push(format!(
            "INSERT INTO git_document (client, assignment, since, digest{column}) VALUES ('line-1', {id}, 2, {}{bytes})",
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
    if schema >= 9 {
        let entry = entry();
        rows.push(format!(
            "INSERT INTO audit (sequence, at, actor, source, way, action, subject, outcome, detail, hash)
             VALUES (1, {at}, 'operator ann', '', 'rest', 'deployment.put', 'hello', 'done', '', {})",
            hex(entry.hash(&margrave_core::audit::BEGINNING).as_bytes())
        ));
    }
    if schema >= 10 {
        rows.push(format!("INSERT INTO registry (host, plain, user, secret, changed_at, changed_by) VALUES ('registry.example', 0, 'ann', 'hidden', {at}, 'operator ann')"));
        rows.push(format!("INSERT INTO watch (repository, pattern, every_ms, added_at, added_by, next_at) VALUES ('registry.example/app', '*', 900000, {at}, 'operator ann', {at})"));
        rows.push(format!(
            "INSERT INTO watched_tag (repository, tag, digest, state, looked_at) VALUES ('registry.example/app', '1', {}, 'added', {at})",
            digest("one")
        ));
    }
    if schema >= 11 {
        rows.push(format!(
            "INSERT INTO rollout (deployment, revision, before, size, batch, state, begun_at, changed_at, changed_by)
             VALUES ({deployment}, 2, 1, 2, 0, 'running', {at}, {at}, 'operator ann')"
        ));
        rows.push(format!(
            "INSERT INTO rollout_member (deployment, client, device, place, released_at)
             VALUES ({deployment}, 'line-1', 'line-1', 0, {at}), ({deployment}, 'line-9', 'line-9', 1, NULL)"
        ));
    }
    if schema >= 15 {
        let hold = r#"{"holder":"operator ann","reason":"batch 17 runs","since":1,"until":2}"#;
        rows.push(format!("INSERT INTO asked (client, hold) VALUES ('line-1', '{hold}')"));
    }
    rows
}

/// The first of the audit log.
fn entry() -> margrave_core::audit::Entry {
    margrave_core::audit::Entry {
        sequence: 1,
        at: NOW,
        actor: "operator ann".to_owned(),
        role: None,
        token: None,
        source: String::new(),
        way: "rest".to_owned(),
        action: "deployment.put".to_owned(),
        subject: "hello".to_owned(),
        outcome: "done".to_owned(),
        detail: String::new(),
        commit: None,
    }
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
    for (text, count) in [("ine-", 2), ("INE-9", 1), ("ine-2", 0)] {
        let filter = DeviceFilter { search: Some(text.to_owned()), limit: 10, ..DeviceFilter::default() };
        assert_eq!(store.devices(filter).await.unwrap().len(), count, "{schema}: {text}");
    }

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

    let packages = store.packages().await.unwrap();
    assert_eq!((packages.len(), packages[0].sizes.len()), (1, 0), "nobody asked how large it was");
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
    let versions = store.git_versions_after(&client("line-1"), None, 10).await.unwrap();
    let put: Vec<_> = versions.into_iter().flat_map(|version| version.put).collect();
    assert_eq!(put, if schema >= 3 { vec![(assignment(), b"one".to_vec())] } else { vec![] });
    assert_eq!(store.git_allowed(&client("line-2")).await.unwrap(), schema >= 3);
    assert_eq!(store.used_signatures(NOW).await.unwrap().len(), usize::from(schema >= 4));
    assert_eq!(store.schedules().await.unwrap().len(), usize::from(schema >= 7));

    // What was said in the log is what is said there now, and the chain goes on from it.
    let log = store.audit_entries(AuditFilter::default(), 10).await.unwrap();
    assert_eq!(log.len(), usize::from(schema >= 9));
    if let Some(kept) = log.first() {
        assert_eq!((&kept.entry, kept.hash), (&entry(), entry().hash(&margrave_core::audit::BEGINNING)));
        let next = store.audit(margrave_core::audit::Entry { sequence: 0, ..entry() }).await.unwrap();
        assert_eq!((next.entry.sequence, next.hash), (2, next.entry.hash(&kept.hash)));
    }
    let registries = store.registries().await.unwrap();
    assert_eq!(registries.len(), usize::from(schema >= 10));
    assert_eq!(store.watches().await.unwrap().len(), usize::from(schema >= 10));
    let tags = store.watched_tags("registry.example/app").await.unwrap();
    assert_eq!(tags.len(), usize::from(schema >= 10));
    // A rollout that was half-way is half-way.
    let rollout = store.rollout(deployment.deployment.id).await.unwrap();
    assert_eq!(
        rollout.as_ref().map(|rollout| (rollout.revision, rollout.before)),
        (schema >= 11).then_some((2, Some(1)))
    );
    let members = store.rollout_members(deployment.deployment.id).await.unwrap();
    let released = members.iter().filter(|member| member.released_at.is_some()).count();
    assert_eq!((members.len(), released), if schema >= 11 { (2, 1) } else { (0, 0) });
    let asked = store.asked(vec![client("line-1")]).await.unwrap();
    let held = asked.get(&client("line-1")).and_then(|asked| asked.asked.hold.as_ref());
    assert_eq!(held.is_some(), schema >= 15);
    assert_eq!(store.gone_back().await.unwrap(), []);
    assert_eq!(store.applied_at(later(60)).await.unwrap(), None);
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
