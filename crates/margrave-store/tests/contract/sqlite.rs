//! What is special to a database that is a file: crashes, copies, locks, full disks, many per commit.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use margrave_core::digest::Digest;
use margrave_core::id::DeploymentName;
use margrave_core::lifecycle::State;
use margrave_store::*;

use crate::fixture::*;

#[tokio::test]
async fn everything_is_there_after_reopening() {
    let world = World::new();
    world.join("line-1").await;
    let id = world.deploy("hello", "line-1", b"one").await;
    world.store.record_report(&client("line-1"), numbered(id, 2, State::Installed, 1), NOW).await.unwrap();
    let before = (
        world.store.clients().await.unwrap(),
        world.assignment(id).await,
        world.store.deployments().await.unwrap(),
        world.store.events_after(0, 100).await.unwrap(),
    );
    let world = world.reopened();
    let after = (
        world.store.clients().await.unwrap(),
        world.assignment(id).await,
        world.store.deployments().await.unwrap(),
        world.store.events_after(0, 100).await.unwrap(),
    );
    assert_eq!(before, after);
    let document = world.store.document(&client("line-1"), id, Digest::of(b"one")).await.unwrap();
    assert_eq!(document.as_deref(), Some(&b"one"[..]));
}

#[tokio::test]
async fn a_second_process_is_kept_out() {
    let world = World::new();
    let second = Store::open(world.directory.path()).err().unwrap();
    assert!(matches!(second, OpenError::InUse(_)), "{second}");
}

#[test]
fn a_database_of_a_newer_program_is_refused() {
    let world = World::new();
    let World { store, directory } = world;
    drop(store);
    let file = rusqlite::Connection::open(directory.path().join("margrave.db")).unwrap();
    file.pragma_update(None, "user_version", 99).unwrap();
    drop(file);
    let error = Store::open(directory.path()).err().unwrap();
    assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("newer version"), "{error}");
}

#[test]
fn a_directory_that_cannot_be_made_is_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let error = Store::open(file.join("below")).err().unwrap();
    assert!(matches!(error, OpenError::Directory { .. }), "{error}");
}

const CHILD: &str = "MARGRAVE_STORE_TEST_DIRECTORY";

/// The test starts itself as a process that reports without end, kills it in the middle, and counts.
#[test]
fn what_was_acknowledged_survives_kill_9() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Some(directory) = std::env::var_os(CHILD) {
        return runtime.block_on(report_without_end(directory.as_ref()));
    }
    let world = World::new();
    let id = runtime.block_on(async {
        world.join("line-1").await;
        world.deploy("hello", "line-1", b"one").await
    });
    let World { store, directory } = world;
    drop(store);
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sqlite::what_was_acknowledged_survives_kill_9", "--nocapture"])
            .env(CHILD, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            if let Some(sequence) = line.unwrap().strip_prefix("acknowledged ") {
                acknowledged = sequence.parse().unwrap();
                if acknowledged % 50 == 0 {
                    child.kill().unwrap();
                    break;
                }
            }
        }
        child.wait().unwrap();
        assert!(acknowledged > 0, "the child did nothing");
        let store = Store::open(directory.path()).unwrap();
        runtime.block_on(async {
            let name = DeploymentName::parse("hello").unwrap();
            let history = store.transitions(&name, &device("line-1")).await.unwrap();
            let last = history.last().unwrap().report.detail.as_ref().unwrap().sequence;
            assert!(last >= acknowledged, "{acknowledged} was acknowledged, {last} is there");
            let all = store.assignments(Scope::All).await.unwrap();
            let observed = all[0].observed.as_ref().unwrap();
            assert_eq!(observed.report.detail.as_ref().unwrap().sequence, last, "picture and history agree");
            assert_eq!(all[0].id, id);
        });
    }
}

async fn report_without_end(directory: &std::path::Path) {
    let store = Store::open(directory).unwrap();
    let id = store.assignments(Scope::All).await.unwrap()[0].id;
    let name = DeploymentName::parse("hello").unwrap();
    let history = store.transitions(&name, &device("line-1")).await.unwrap();
    let start = history.last().map_or(0, |step| step.report.detail.as_ref().unwrap().sequence);
    for sequence in start + 1.. {
        let state = if sequence % 2 == 0 { State::Installed } else { State::Failed };
        store.record_report(&client("line-1"), numbered(id, 2, state, sequence), NOW).await.unwrap();
        // A parent that has seen enough closes the pipe just before it kills.
        if writeln!(std::io::stdout(), "acknowledged {sequence}").is_err() {
            return;
        }
    }
}

/// A power cut leaves what the disk had: the files as they lie, without any closing.
#[tokio::test]
async fn files_copied_in_the_middle_hold_everything_acknowledged_until_then() {
    let world = World::new();
    world.join("line-1").await;
    let id = world.deploy("hello", "line-1", b"one").await;
    for sequence in 1..=100 {
        let state = if sequence % 2 == 0 { State::Installed } else { State::Failed };
        world.store.record_report(&client("line-1"), numbered(id, 2, state, sequence), NOW).await.unwrap();
        if sequence % 25 == 0 {
            let copy = tempfile::tempdir().unwrap();
            for file in ["margrave.db", "margrave.db-wal"] {
                std::fs::copy(world.directory.path().join(file), copy.path().join(file)).unwrap();
            }
            let restored = Store::open(copy.path()).unwrap();
            let all = restored.assignments(Scope::All).await.unwrap();
            let report = &all[0].observed.as_ref().unwrap().report;
            assert_eq!(report.detail.as_ref().unwrap().sequence, sequence);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_reports_share_commits() {
    let world = World::new();
    const DEVICES: u64 = 200;
    const EACH: u64 = 50;
    let mut ids = Vec::new();
    for n in 0..DEVICES {
        let name = format!("d-{n}");
        world.join(&name).await;
        world.run(&name, &[("hello", name.as_bytes())]).await;
        let id = margrave_core::id::AssignmentId::derive(deployment_id("hello"), &device(&name));
        ids.push((client(&name), id));
    }
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (client, id) in ids {
        let store = world.store.clone();
        tasks.spawn(async move {
            for sequence in 1..=EACH {
                let state = if sequence == EACH { State::Installed } else { State::Installing };
                store.record_report(&client, numbered(id, 2, state, sequence), NOW).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let took = start.elapsed();
    let line = format!("{} reports, each durable before its answer, in {took:?}\n", DEVICES * EACH);
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    // One commit each would cost 10 000 waits for the disk; the bound only catches that.
    assert!(took < Duration::from_secs(60), "{took:?}");
    let all = world.store.assignments(Scope::All).await.unwrap();
    assert_eq!(all.len() as u64, DEVICES);
    for record in all {
        let report = record.observed.unwrap().report;
        assert_eq!(report.detail.unwrap().sequence, EACH);
    }
}

#[tokio::test]
async fn a_refused_write_does_not_undo_its_neighbours() {
    let world = World::new();
    world.join("line-1").await;
    let id = world.deploy("hello", "line-1", b"one").await;
    let mut tasks = tokio::task::JoinSet::new();
    for sequence in 1..=100u64 {
        let store = world.store.clone();
        tasks.spawn(async move {
            // Every third claims a version that is refused after something was written for it.
            let version = if sequence % 3 == 0 { u64::MAX } else { 2 };
            let mut report = numbered(id, version, State::Failed, sequence);
            // The same once more would be no step.
            report.detail.as_mut().unwrap().attempt = u32::try_from(sequence).unwrap();
            store.record_report(&client("line-1"), report, NOW).await.is_ok()
        });
    }
    let accepted = tasks.join_all().await.into_iter().filter(|accepted| *accepted).count();
    assert_eq!(accepted, 67);
    let name = DeploymentName::parse("hello").unwrap();
    assert_eq!(world.store.transitions(&name, &device("line-1")).await.unwrap().len(), 67);
}

#[tokio::test]
async fn a_full_disk_is_a_clear_error_and_loses_nothing() {
    let world = World::with(Options { page_count_max: Some(120), ..Options::default() });
    world.join("line-1").await;
    let mut kept = 0;
    let error = loop {
        let event = NewEvent::new(NOW, "test", "server", "x".repeat(2000));
        match world.store.note(event).await {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 10_000, "the limit never struck");
    };
    assert!(matches!(error, Error::Full(_)), "{error}");
    assert!(error.to_string().contains("disk") && error.to_string().contains("free"), "{error}");
    // Reading goes on, and a small write may still find room; what was acknowledged is there after reopening too.
    let events = async |store: &Store| {
        store.events_after(0, 1000).await.unwrap().iter().filter(|event| event.kind == "test").count()
    };
    assert_eq!(events(&world.store).await, kept);
    let world = world.reopened();
    assert_eq!(events(&world.store).await, kept);
    world.store.note(NewEvent::new(NOW, "test", "server", "room again")).await.unwrap();
    assert_eq!(events(&world.store).await, kept + 1);
}

#[tokio::test]
async fn one_write_too_large_for_the_disk_does_not_take_others_with_it() {
    let world = World::with(Options { page_count_max: Some(120), ..Options::default() });
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..30 {
        let store = world.store.clone();
        tasks.spawn(async move {
            let size = if n == 15 { 4_000_000 } else { 10 };
            (n, store.note(NewEvent::new(NOW, "test", "server", "x".repeat(size))).await.is_ok())
        });
    }
    let mut results = tasks.join_all().await;
    results.sort();
    for (n, accepted) in results {
        assert_eq!(accepted, n != 15, "{n}");
    }
    assert_eq!(world.store.events_after(0, 1000).await.unwrap().len(), 29);
}

#[tokio::test]
async fn what_is_written_in_place_is_announced_kept_and_found_by_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), Options { in_place: true, ..Options::default() }).unwrap();
    let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let ears = heard.clone();
    store.announce_to(move |event| ears.lock().unwrap().push(event.text.clone()));
    for n in 0..300 {
        store.note(NewEvent::new(NOW, "test", "server", n.to_string())).await.unwrap();
    }
    assert_eq!(heard.lock().unwrap().len(), 300);
    assert_eq!(store.events_after(0, 1000).await.unwrap().len(), 300);
    assert_eq!(store.load().waiting, 0);
    drop(store);
    let again = Store::open(directory.path()).unwrap();
    assert_eq!(again.events_after(0, 1000).await.unwrap().len(), 300);
}

#[tokio::test]
async fn more_writes_than_can_wait_are_refused_and_none_is_lost_silently() {
    let world = World::with(Options { queue_length: 4, ..Options::default() });
    // On one thread nothing is taken from the queue's answers until all have asked.
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..2000 {
        let store = world.store.clone();
        tasks.spawn(async move { store.note(NewEvent::new(NOW, "test", "server", n.to_string())).await });
    }
    let results = tasks.join_all().await;
    let accepted = results.iter().filter(|result| result.is_ok()).count();
    assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(Error::Overloaded))));
    assert!((4..2000).contains(&accepted), "{accepted}");
    let mut stored = 0;
    let mut after = 0;
    while let Some(last) =
        world.store.events_after(after, 1000).await.unwrap().last().map(|event| event.sequence)
    {
        stored += world.store.events_after(after, 1000).await.unwrap().len();
        after = last;
    }
    assert_eq!(stored, accepted);
}
