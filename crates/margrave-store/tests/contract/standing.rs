//! What is kept so that fleets can be counted is what counting them anew would give, whatever happens to devices.

use margrave_core::lifecycle::Reported;
use margrave_store::*;
use rusqlite::Connection;

use crate::body;
use crate::fixture::*;

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
    let standing =
        differences("SELECT * FROM device_standing", "SELECT client, device, condition FROM device_now");
    assert_eq!(standing, 0, "{after}: how devices do");
    let devices = differences(
        "SELECT * FROM device_tally WHERE count <> 0",
        "SELECT condition, count(*) FROM device_now GROUP BY 1",
    );
    assert_eq!(devices, 0, "{after}: devices by how they do");
    let assignments = differences(
        "SELECT * FROM assignment_tally",
        "SELECT deployment, state, verdict, count(*) FROM assignment WHERE archived = 0 GROUP BY 1, 2, 3",
    );
    assert_eq!(assignments, 0, "{after}: assignments");
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
