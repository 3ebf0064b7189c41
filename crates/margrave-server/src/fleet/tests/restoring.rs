//! A server that comes back from a backup, and what it asks devices for.

use margrave_store::{Restored, mark_restored};

use super::following::{commit, file};
use super::git::git_is_here;
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
    world.fleet.resolve(&ann(), false).await.unwrap();
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

#[tokio::test]
async fn devices_keep_what_they_run_until_somebody_decides_what_a_restored_server_wants() {
    let world = World::new().await;
    for name in ["line-1", "line-2"] {
        world.device(name, &[]).await;
    }
    world.put("app", on(&["line-1", "line-2"])).await.unwrap();
    let (world, backup) = world.backed_up().await;
    let before: Vec<_> = ["line-1", "line-2"].map(|device| world.manifest(device)).to_vec();
    world.fleet.remove_deployment(&ann(), &name("app"), None).await.unwrap();
    let newest = world.version("line-1");

    // Whatever devices say and operators try, and however often it starts: nobody is given anything.
    let world = world.restored(backup).await;
    let world = world.restarted().await;
    world.fleet.flush_contacts().await.unwrap();
    let unchanged = |world: &World| {
        let shown: Vec<_> = ["line-1", "line-2"].map(|device| world.manifest(device)).to_vec();
        assert_eq!(shown, before);
    };
    unchanged(&world);
    world.fleet.leap(&client("line-1")).await.unwrap();
    world.fleet.advance_rollouts().await.unwrap();
    let refused = world.put("other", on(&["line-2"])).await.unwrap_err().to_string();
    assert!(
        refused.contains("restored from a backup") && refused.contains("intent resolve --keep"),
        "{refused}"
    );
    let told = world.fleet.intent().await.unwrap().conflict.unwrap();
    assert!(told.contains("Devices keep what they run"), "{told}");
    world.device("line-3", &[]).await;
    unchanged(&world);

    // Decided once, it goes on above everything, with what was wanted then.
    world.fleet.resolve(&ann(), false).await.unwrap();
    assert_eq!(world.fleet.intent().await.unwrap().conflict, None);
    for (device, before) in ["line-1", "line-2"].iter().zip(&before) {
        let shown = world.manifest(device);
        assert!(shown.version() > newest && shown.entries() == before.entries(), "{shown:?}");
    }
    world.put("other", on(&["line-2"])).await.unwrap();
    let version = world.version("line-1");
    let world = world.restarted().await;
    assert_eq!(world.version("line-1"), version, "it is not asked again");
}

#[tokio::test]
async fn until_somebody_decides_that_is_why_and_never_that_all_is_well() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("well", on(&["line-1"])).await.unwrap();
    world.report("well", "line-1", State::Installed).await;
    let mut failing = on(&["line-1"]);
    failing.parameters.insert("greeting".into(), "no".into());
    world.put("ill", failing).await.unwrap();
    world.report("ill", "line-1", State::Failed).await;
    let (world, backup) = world.backed_up().await;
    let world = world.restored(backup).await;
    for (kind, subject) in [
        (operator::WhyKind::Deployment, "well"),
        (operator::WhyKind::Rollout, "well"),
        (operator::WhyKind::Device, "line-1/well"),
        (operator::WhyKind::Deployment, "ill"),
        (operator::WhyKind::Rollout, "ill"),
        (operator::WhyKind::Device, "line-1"),
    ] {
        let why = world.fleet.why_of(kind, subject).await.unwrap();
        let codes: Vec<&str> = why.chain.iter().map(|cause| cause.code.as_str()).collect();
        assert!(!why.converged && !codes.contains(&"converged"), "{kind:?} {subject}: {codes:?}");
        assert_eq!(codes.last(), Some(&"intent-held"), "{kind:?} {subject}: {codes:?}");
        assert_eq!(codes.iter().filter(|code| **code == "intent-held").count(), 1, "{codes:?}");
    }
    world.fleet.resolve(&ann(), false).await.unwrap();
    let why = world.fleet.why_of(operator::WhyKind::Deployment, "well").await.unwrap();
    assert!(why.chain.iter().all(|cause| cause.code != "intent-held"), "{why:?}");
}

#[tokio::test]
async fn a_restored_server_whose_remote_is_wrong_can_still_be_told_to_go_on() {
    if !git_is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let remote = folder.path().join("remote.git");
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("app", on(&["line-1"])).await.unwrap();
    let (world, backup) = world.backed_up().await;
    copy(&world.data.path().join("intent.git"), &backup.path().join("intent.git"));
    copy(&world.data.path().join("intent.git"), &remote);
    let given = world.version("line-1");
    // What was added since the backup the restored server does not have.
    let said = file(&remote, "deployments/app.yaml").replace("1.0.0", "2.0.0");
    commit(&remote, "deployments/app.yaml", &said, false);

    let world = world.restored(backup).await;
    world.follows(&remote);
    world.fleet.follow_once().await.unwrap();
    let world = world.restarted().await;
    world.follows(&remote);
    world.fleet.follow_once().await.unwrap();
    let intent = world.fleet.intent().await.unwrap();
    let told = intent.conflict.unwrap();
    assert!(told.contains("restored from a backup") && told.contains("intent resolve --keep"), "{told}");
    assert!(told.contains("of the remote") && !told.contains("Push"), "{told}");
    assert!(intent.flaws[0].message.contains("2.0.0"), "{:?}", intent.flaws);
    assert_eq!(world.version("line-1"), given, "nobody is given anything");

    world.fleet.resolve(&ann(), false).await.unwrap();
    assert_eq!(world.fleet.intent().await.unwrap().conflict, None);
    assert!(world.version("line-1") > given);
    // It follows from there.
    commit(&remote, "deployments/app.yaml", &said.replace("2.0.0", "1.0.0"), false);
    world.fleet.follow_once().await.unwrap();
    let intent = world.fleet.intent().await.unwrap();
    assert_eq!((intent.conflict, intent.flaws), (None, vec![]));
}
