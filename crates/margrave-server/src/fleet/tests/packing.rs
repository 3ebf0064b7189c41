//! The repository of what is wanted does not grow by loose objects for ever, and loses nothing by being packed.

use super::super::desired::{Clutter, FileChange, Signed};
use super::*;

impl World {
    /// Commits so many files that are none of ours, on top of what is wanted.
    async fn clutter(&self, files: usize) -> super::super::desired::CommitId {
        let repository = self.fleet.desired.repository().clone();
        let files = (0..files).map(|number| FileChange {
            path: format!("notes/{number}.txt"),
            bytes: Some(format!("Note {number}\n").into_bytes()),
        });
        let signed = Signed { by: "bob".into(), at: Moment(START), message: "Notes\n".into() };
        let main = repository.main().await.unwrap();
        repository.commit(main, files.collect(), signed).await.unwrap()
    }

    async fn lies_about(&self) -> Clutter {
        self.fleet.desired.repository().clutter().await.unwrap()
    }

    /// Git's own opinion of every object.
    fn is_sound(&self) -> String {
        let path = self.data.path().join("intent.git");
        let said = std::process::Command::new("git")
            .args(["-c", "safe.directory=*", "fsck", "--full", "--strict"])
            .current_dir(path)
            .output()
            .unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    }
}

#[tokio::test]
async fn what_lies_about_is_packed_when_it_is_quiet_and_nothing_is_lost() {
    if !super::git::git_is_here() {
        return;
    }
    let world = World::new().await;
    world.device("line-1", &[]).await;
    // Not on main: it is written, and nobody took it yet.
    let unseen = world.clutter(1_200).await;
    let before = world.lies_about().await;
    assert!(before.loose > 1_200, "{before:?}");

    // Somebody is at work.
    world.fleet.tidy_intent().await.unwrap();
    world.put("greeter", on(&["line-1"])).await.unwrap();
    world.fleet.tidy_intent().await.unwrap();
    assert!(world.lies_about().await.loose > 1_200, "it waits until nobody changes anything");
    // A backup reads the files.
    let still = world.fleet.intent_still().await;
    world.fleet.tidy_intent().await.unwrap();
    assert!(world.lies_about().await.loose > 1_200, "files stay while somebody needs them");
    drop(still);
    world.fleet.tidy_intent().await.unwrap();
    assert_eq!(world.lies_about().await, Clutter { loose: 0, packs: 1 });
    world.is_sound();

    // Nothing went, and everything goes on.
    let repository = world.intent_repository();
    assert_eq!(repository.file(unseen, "notes/7.txt").await.unwrap().unwrap(), b"Note 7\n");
    assert!(world.file("deployments/greeter.yaml").await.is_some());
    world.put("second", on(&["line-1"])).await.unwrap();
    let world = world.restarted().await;
    assert!(world.file("deployments/second.yaml").await.is_some());
    assert_eq!(world.intent_repository().file(unseen, "notes/7.txt").await.unwrap().unwrap(), b"Note 7\n");
    // A little is not worth it.
    world.fleet.tidy_intent().await.unwrap();
    world.fleet.tidy_intent().await.unwrap();
    assert!(world.lies_about().await.loose > 0);
}

#[tokio::test]
async fn killed_at_any_moment_packing_loses_nothing_and_leaves_nothing() {
    if !super::git::git_is_here() {
        return;
    }
    let mut world = World::new().await;
    world.device("line-1", &[]).await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    let unseen = world.clutter(3_000).await;
    let mut killed = 0;
    for milliseconds in [1, 3, 6, 10, 15, 20, 30, 45, 60, 90, 130, 200] {
        let packed = world.fleet.pack_intent(Duration::from_millis(milliseconds)).await;
        killed += u32::from(packed.is_err());
        world = world.restarted().await;
        let objects = world.data.path().join("intent.git/objects/pack");
        let left = std::fs::read_dir(&objects).into_iter().flatten().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left
            .filter(|name| [".tmp-", "tmp_"].iter().any(|tmp| name.to_string_lossy().starts_with(tmp)))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        world.is_sound();
        let note = world.intent_repository().file(unseen, "notes/2999.txt").await.unwrap();
        assert_eq!(note.unwrap(), b"Note 2999\n");
        assert!(world.file("deployments/greeter.yaml").await.is_some());
    }
    assert!(killed > 0, "it was never killed");
    world.fleet.pack_intent(Duration::from_secs(120)).await.unwrap();
    assert_eq!(world.lies_about().await, Clutter { loose: 0, packs: 1 });
    world.is_sound();
}
