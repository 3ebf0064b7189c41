//! A server that comes back from a backup, and what it asks devices for.

use margrave_store::{Restored, mark_restored};

use super::*;

impl World {
    /// As it was when `backup` was taken; it knows that.
    async fn restored(self, backup: tempfile::TempDir) -> World {
        let World { fleet, registry, clock, data } = self;
        drop(Arc::into_inner(fleet).expect("nobody else holds the fleet"));
        drop(data);
        let now = Moment(clock.load(Ordering::Relaxed));
        let restored = Restored { made_at: now, restored_at: now };
        mark_restored(&backup.path().join("margrave.db"), restored).unwrap();
        let fleet = open(&backup, &registry, &clock).await;
        World { fleet, registry, clock, data: backup }
    }

    async fn backed_up(self) -> (World, tempfile::TempDir) {
        let backup = tempfile::tempdir().unwrap();
        let world = self.restarted().await;
        let file = backup.path().join("margrave.db");
        world.fleet.copy_database(file).await.unwrap();
        (world, backup)
    }

    fn manifest(&self, on: &str) -> margrave_core::manifest::Manifest {
        let live = self.fleet.manifest(&client(on), Dialect::Miaf).unwrap();
        g2::manifest::read(&live.body).unwrap().manifest
    }
}

#[tokio::test]
async fn a_restored_server_continues_above_every_number_and_asks_what_it_has_missed() {
    let world = World::new().await;
    for name in ["line-1", "line-2", "bare"] {
        world.device(name, &[]).await;
    }
    world.put("stays", on(&["line-1"])).await.unwrap();
    world.put("goes", on(&["line-1", "line-2"])).await.unwrap();
    world.report("goes", "line-1", State::Installed).await;
    world.fleet.remove_deployment(&ann(), &name("goes"), None).await.unwrap();
    let leaving = AssignmentId::parse(&world.assignment("goes", "line-1").await.id).unwrap();
    let (world, backup) = world.backed_up().await;

    // Heard, and lost: the removal is confirmed, what stays is installed, and somebody deploys for the first time.
    world.report("goes", "line-1", State::Deleted).await;
    world.report("stays", "line-1", State::Installed).await;
    world.put("late", on(&["bare"])).await.unwrap();
    let given: Vec<u64> = ["line-1", "line-2", "bare"].map(|device| world.version(device)).to_vec();
    let wanted = world.workloads("line-1").await;

    let world = world.restored(backup).await;
    for (device, given) in ["line-1", "line-2", "bare"].into_iter().zip(given) {
        assert!(
            world.version(device) > given + 1,
            "{device}: devices take it, and see that something was skipped"
        );
    }
    assert_eq!(world.workloads("line-1").await, wanted);
    assert!(world.manifest("line-1").leaving().contains(&leaving));
    assert!(world.manifest("bare").entries().is_empty() && world.manifest("bare").leaving().is_empty());

    // As the device answers.
    world.report("goes", "line-1", State::Deleted).await;
    let shown = world.fleet.device(&device("line-1")).await.unwrap();
    assert!(shown.assignments.iter().all(|assignment| assignment.deployment != "goes"), "{shown:?}");

    // Once for each restore.
    let version = world.version("line-1");
    let world = world.restarted().await;
    assert_eq!(world.version("line-1"), version);
}
