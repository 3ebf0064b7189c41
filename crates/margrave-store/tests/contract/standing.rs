//! What is kept so that fleets can be counted is what counting them anew would give, whatever happens to devices.

use margrave_core::device::Blind;
use margrave_core::id::AssignmentId;
use margrave_core::lifecycle::Reported;
use margrave_core::moment::Moment;
use margrave_store::*;
use rusqlite::Connection;
use serde_json::json;

use crate::body;
use crate::fixture::*;
use crate::rollouts::{begin, change, put, release, update};

/// Asserts that everything that triggers keep is true.
fn assert_kept(world: &World, after: &str) {
    let database = Connection::open(world.directory.path().join("margrave.db")).unwrap();
    let differences = |left: &str, right: &str| -> i64 {
        let text = format!(
            "SELECT (SELECT count(*) FROM (SELECT * FROM ({left}) EXCEPT SELECT * FROM ({right})))
                  + (SELECT count(*) FROM (SELECT * FROM ({right}) EXCEPT SELECT * FROM ({left})))"
        );
        database.query_row(&text, [], |row| row.get(0)).unwrap()
    };
    let standing = differences(
        "SELECT client, device, condition, site, own, words FROM device_standing
         LEFT JOIN capability_set ON capability_set.id = capability_set",
        "SELECT client, device, condition, (SELECT value FROM label WHERE key = 'site'
             AND label.client = now.client AND label.device = now.device), own, words
         FROM device_now AS now LEFT JOIN device_told USING (client, device)",
    );
    assert_eq!(standing, 0, "{after}: how devices do, and what they are found by");
    let named = differences(
        "SELECT client, device, text FROM device_named",
        "SELECT client, device, client || ':' || device || coalesce(char(10) || own, '')
         FROM device LEFT JOIN device_told USING (client, device)",
    );
    assert_eq!(named, 0, "{after}: what names devices");
    database
        .execute("INSERT INTO device_trigram (device_trigram, rank) VALUES ('integrity-check', 1)", [])
        .unwrap_or_else(|error| panic!("{after}: the trigrams of what names devices: {error}"));
    let sites = differences(
        "SELECT * FROM site_tally",
        "SELECT site, condition, count(*) FROM device_standing WHERE site IS NOT NULL GROUP BY 1, 2",
    );
    assert_eq!(sites, 0, "{after}: devices by site");
    let sets = differences(
        "SELECT id, devices FROM capability_set",
        "SELECT capability_set, count(*) FROM device_standing WHERE capability_set IS NOT NULL GROUP BY 1",
    );
    assert_eq!(sets, 0, "{after}: devices by what they told");
    let devices = differences(
        "SELECT * FROM device_tally WHERE count <> 0",
        "SELECT condition, count(*) FROM device_now GROUP BY 1",
    );
    assert_eq!(devices, 0, "{after}: devices by how they do");
    let assignments = differences(
        "SELECT * FROM assignment_tally",
        "SELECT deployment, state, verdict, waits, count(*) FROM assignment_now GROUP BY 1, 2, 3, 4",
    );
    assert_eq!(assignments, 0, "{after}: assignments");
    let members = differences(
        "SELECT deployment, client, device FROM rollout_member WHERE waits = 1",
        "SELECT deployment, client, device FROM rollout_member_now WHERE waits = 1",
    );
    assert_eq!(members, 0, "{after}: who waits");
    let waiting = differences(
        "SELECT deployment, client, device FROM assignment WHERE waits = 1 AND archived = 0",
        "SELECT deployment, client, device FROM rollout_member JOIN assignment USING (deployment, client, device)
         WHERE rollout_member.waits = 1 AND archived = 0",
    );
    assert_eq!(waiting, 0, "{after}: assignments that wait");
}

#[tokio::test]
async fn what_is_counted_follows_every_turn_of_a_device() {
    let world = World::new();
    for name in ["line-1", "line-2"] {
        world.join(name).await;
        assert_kept(&world, "joining");
        world.store.put_capabilities(&client(name), body(name, b"x"), NOW).await.unwrap();
        assert_kept(&world, "capabilities");
    }
    let first = world.deploy("hello", "line-1", b"one").await;
    let second = world.deploy("hello", "line-2", b"one").await;
    assert_kept(&world, "deploying");
    for (state, after) in [
        (Reported::Failed, "failing"),
        (Reported::Installing, "trying again"),
        (Reported::Installed, "installing"),
    ] {
        world.store.record_report(&client("line-1"), report(first, 2, state), NOW).await.unwrap();
        assert_kept(&world, after);
    }
    let counts = world.store.fleet_counts(Silence::default()).await.unwrap();
    assert_eq!(counts.devices, [("converged".to_owned(), 1), ("pending".to_owned(), 1)].into());
    assert_eq!(counts.assignments.values().sum::<u64>(), 2);
    world.deploy("hello", "line-1", b"two").await;
    assert_kept(&world, "changing");
    world.run("line-1", &[]).await;
    assert_kept(&world, "dropping");
    world.store.record_report(&client("line-1"), report(first, 4, Reported::Removed), NOW).await.unwrap();
    assert_kept(&world, "removing");
    world.store.retire_clients(vec![client("line-2")], NOW, "operator ann").await.unwrap();
    assert_kept(&world, "retiring");
    world.store.accept_client(&client("line-2"), NOW, "operator ann").await.unwrap();
    assert_kept(&world, "accepting again");
    world.store.delete_capabilities(&client("line-2"), &device("line-2").device, NOW).await.unwrap();
    assert_kept(&world, "forgetting a device");
    world.store.sweep_archived(later(1_000_000), 0).await.unwrap();
    assert_kept(&world, "forgetting history");
    assert!(world.store.assignments(Scope::All).await.unwrap().iter().all(|left| left.id == second));
}

/// Whatever it said of its containers before, nobody knows whether it still is so; nothing is decided anew for that.
#[tokio::test]
async fn a_device_that_cannot_look_is_not_converged_for_as_long() {
    let world = World::new();
    world.join("line-1").await;
    let line = client("line-1");
    let id = world.deploy("hello", "line-1", b"one").await;
    let said = |blind: Option<Blind>| {
        let told = blind.as_ref().map(|blind| json!({ "since": blind.since.0, "message": blind.message }));
        let json = json!({ "properties": {}, "x-margrave-extensions": { "cannotLook": told } });
        NewCapabilities { blind, ..body("line-1", json.to_string().as_bytes()) }
    };
    world.store.put_capabilities(&line, said(None), NOW).await.unwrap();
    world.store.record_report(&line, report(id, 2, Reported::Installed), NOW).await.unwrap();
    world.settle("line-1").await;
    let stands = async |condition: Condition, since: Option<Moment>| {
        let record = world.store.device(&device("line-1")).await.unwrap().unwrap();
        assert_eq!((record.condition(NOW), record.blind_since), (condition, since));
        let counts = world.store.fleet_counts(Silence::default()).await.unwrap();
        assert_eq!(counts.devices, [(condition.as_str().to_owned(), 1)].into());
        let filter = DeviceFilter { condition: Some(condition), limit: 10, ..DeviceFilter::default() };
        assert_eq!(world.store.devices(filter).await.unwrap().len(), 1);
        assert!(world.store.devices_unsettled(10).await.unwrap().is_empty());
        assert_kept(&world, condition.as_str());
    };
    let newest = async || world.store.events_newest(1).await.unwrap().remove(0).kind;
    stands(Condition::Converged, None).await;
    let since = NOW;
    world.store.put_capabilities(&line, said(Blind::told(since, "no answer")), later(60)).await.unwrap();
    stands(Condition::Pending, Some(since)).await;
    assert_eq!(newest().await, "device.cannot-look");
    // A clock that was never set says nothing about when; and a device that failed is no better for not seeing it.
    world.store.put_capabilities(&line, said(Blind::told(Moment(7), "still none")), later(90)).await.unwrap();
    stands(Condition::Pending, Some(since)).await;
    world.store.record_report(&line, report(id, 2, Reported::Failed), NOW).await.unwrap();
    stands(Condition::Failed, Some(since)).await;
    world.store.record_report(&line, report(id, 2, Reported::Installed), NOW).await.unwrap();
    world.store.put_capabilities(&line, said(None), later(120)).await.unwrap();
    stands(Condition::Converged, None).await;
    assert_eq!(newest().await, "device.can-look");
    world.store.put_capabilities(&line, said(Blind::told(Moment(7), "no clock")), later(150)).await.unwrap();
    stands(Condition::Pending, Some(later(150))).await;
    world.store.delete_capabilities(&line, &device("line-1").device, later(180)).await.unwrap();
    let record = world.store.device(&device("line-1")).await.unwrap().unwrap();
    assert_eq!(record.blind_since, None);
    assert_kept(&world, "forgetting a device");
}

#[tokio::test]
async fn who_waits_for_its_turn_in_a_rollout_is_pending_and_counted_as_waiting() {
    let world = World::new();
    let names = ["line-1", "line-2", "line-3"];
    for name in names {
        world.join(name).await;
        world.store.put_capabilities(&client(name), body(name, b"x"), NOW).await.unwrap();
    }
    world.add_package(package("app", "1.0.0"), vec![]).await.unwrap();
    let counted = async || {
        let counts =
            world.store.assignment_counts_of(deployment_id("hello"), Silence::default()).await.unwrap();
        let mut words: Vec<String> = counts
            .iter()
            .map(|count| format!("{} {:?} {:?} {}", count.state, count.verdict, count.held_back, count.count))
            .collect();
        words.sort();
        words.join(", ")
    };
    let converged = async || {
        let counts = world.store.fleet_counts(Silence::default()).await.unwrap();
        (counts.devices.get("converged").copied().unwrap_or(0), counts.assignments.get("WAITING").copied())
    };
    // Nobody has it: those whose turn has not come have no assignment, and are counted.
    put(&world, 1, vec![begin(1, &[("line-1", true), ("line-2", false), ("line-3", false)])]).await;
    assert_kept(&world, "beginning");
    assert_eq!(counted().await, "PENDING Pending Some(Waiting) 2");
    assert_eq!(converged().await, (1, Some(2)));
    let waiting = world.store.waiting_of(vec![device("line-2"), device("line-1")]).await.unwrap();
    let [waiting] = waiting.as_slice() else { panic!("{waiting:?}") };
    assert_eq!((&waiting.device, waiting.keeps, waiting.revision), (&device("line-2"), None, 1));
    change(&world, release(1, 1, &["line-2"])).await.unwrap();
    assert_kept(&world, "releasing");
    for name in names {
        world.run(name, &[("hello", b"one")]).await;
        assert_kept(&world, "an assignment");
        let id = AssignmentId::derive(deployment_id("hello"), &device(name));
        world.store.record_report(&client(name), report(id, 2, Reported::Installed), NOW).await.unwrap();
        assert_kept(&world, "a report");
    }
    assert_eq!(counted().await, "INSTALLED Converged None 2, INSTALLED Converged Some(Waiting) 1");
    assert_eq!(converged().await, (2, Some(1)), "line-3 has one, and was not given what is wanted");
    // A new revision, and who has the one before.
    put(&world, 2, vec![begin(2, &[("line-1", true), ("line-2", false), ("line-3", false)])]).await;
    assert_kept(&world, "the next revision");
    assert_eq!(converged().await, (1, Some(2)));
    let waiting = world.store.waiting_in(deployment_id("hello"), 1).await.unwrap();
    assert_eq!(
        waiting.iter().map(|found| (&found.device, found.keeps)).collect::<Vec<_>>(),
        [(&device("line-2"), Some(1))]
    );
    let found = world.store.device(&device("line-2")).await.unwrap().unwrap();
    assert_eq!(found.condition(Moment(0)), Condition::Pending);
    let pending = DeviceFilter { condition: Some(Condition::Pending), limit: 10, ..DeviceFilter::default() };
    assert_eq!(world.store.devices(pending).await.unwrap().len(), 2);
    // Whoever does not fit, is retired or leaves the targets waits no more.
    let misfit = |reasons: &[&str]| Publication {
        misfits: vec![MisfitRecord {
            deployment: deployment_id("hello"),
            device: device("line-2"),
            reasons: reasons.iter().map(|reason| reason.to_string()).collect(),
            temporary: false,
        }],
        ..Default::default()
    };
    world.store.publish(misfit(&["too small"])).await.unwrap();
    assert_kept(&world, "not fitting");
    assert_eq!(converged().await, (2, Some(1)));
    world.store.publish(misfit(&[])).await.unwrap();
    assert_kept(&world, "fitting again");
    world.store.retire_clients(vec![client("line-3")], NOW, "operator ann").await.unwrap();
    assert_kept(&world, "retiring");
    assert_eq!(converged().await, (1, Some(1)));
    world.store.accept_client(&client("line-3"), NOW, "operator ann").await.unwrap();
    assert_kept(&world, "accepting again");
    let leave = RolloutChange::Leave {
        deployment: deployment_id("hello"),
        devices: vec![device("line-3"), device("line-1")],
    };
    change(&world, leave).await.unwrap();
    assert_kept(&world, "leaving");
    // What an aborted rollout left is told apart.
    let aborted = RolloutUpdate { revision: 2, ..update(RolloutState::Running, RolloutState::Aborted) };
    assert!(world.store.update_rollout(aborted).await.unwrap());
    assert_kept(&world, "aborting");
    assert!(counted().await.contains("INSTALLED Converged Some(LeftBehind) 1"), "{}", counted().await);
    let left = world.store.fleet_counts(Silence::default()).await.unwrap().assignments;
    assert_eq!((left.get("LEFT"), left.get("WAITING")), (Some(&1), None));
    put(&world, 3, vec![]).await;
    assert_kept(&world, "the end of the rollout");
    assert!(!world.store.device(&device("line-2")).await.unwrap().unwrap().waits);
}

#[tokio::test]
async fn who_never_came_becomes_silent_and_who_spoke_was_heard() {
    let world = World::new();
    for name in ["never", "spoke"] {
        world.join(name).await;
    }
    world.store.put_capabilities(&client("spoke"), body("spoke", b"x"), later(100)).await.unwrap();
    let silence = Silence { before: later(50), heard: vec![] };
    let counts = world.store.fleet_counts(silence.clone()).await.unwrap();
    assert_eq!(counts.devices, [("converged".to_owned(), 1), ("silent".to_owned(), 1)].into());
    let silent =
        DeviceFilter { condition: Some(Condition::Silent), silence, limit: 10, ..DeviceFilter::default() };
    let found = world.store.devices(silent).await.unwrap();
    assert_eq!(found.iter().map(|found| found.device.to_string()).collect::<Vec<_>>(), ["never"]);
}
