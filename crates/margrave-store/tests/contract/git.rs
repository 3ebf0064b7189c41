//! What a Git repository has to hold, and who may open it.

use margrave_core::digest::Digest;
use margrave_core::id::AssignmentId;
use margrave_store::*;

use crate::fixture::*;

fn token(secret: &[u8], holder: GitHolder, seconds: Option<u64>) -> NewGitToken {
    NewGitToken { hash: Digest::of(secret), holder, expires_at: seconds.map(later) }
}

fn shown(secret: &[u8]) -> NewGitToken {
    token(secret, GitHolder::Operator, None)
}

fn id(name: &str) -> AssignmentId {
    AssignmentId::derive(deployment_id(name), &device("line-1"))
}

async fn begin(world: &World) {
    assert!(world.store.begin_git(&client("line-1"), shown(b"t"), NOW, "operator ann").await.unwrap());
}

async fn versions(world: &World, after: Option<u64>) -> Vec<GitVersion> {
    world.store.git_versions_after(&client("line-1"), after, 100).await.unwrap()
}

#[tokio::test]
async fn history_begins_with_the_current_manifest_and_grows_with_every_publication() {
    let world = World::new();
    world.join("line-1").await;
    world.run("line-1", &[("a", b"a1"), ("b", b"b1")]).await;
    assert_eq!(world.store.git_clients().await.unwrap(), []);
    begin(&world).await;
    // Once is enough, and the second token opens nothing.
    assert!(!world.store.begin_git(&client("line-1"), shown(b"u"), NOW, "operator ann").await.unwrap());
    assert_eq!(world.store.git_owner(Digest::of(b"u"), NOW).await.unwrap(), None);
    world.run("line-1", &[("a", b"a2"), ("b", b"b1"), ("c", b"c1")]).await;
    world.run("line-1", &[("a", b"a1"), ("c", b"c1")]).await;
    world.run("line-1", &[]).await;

    let sorted = |mut put: Vec<(AssignmentId, Vec<u8>)>| {
        put.sort();
        put
    };
    let all = versions(&world, None).await;
    assert_eq!(all.iter().map(|version| version.version).collect::<Vec<_>>(), [2, 3, 4, 5]);
    assert_eq!(all[0].body, b"manifest 2");
    assert_eq!(all[0].put, sorted(vec![(id("a"), b"a1".to_vec()), (id("b"), b"b1".to_vec())]));
    assert_eq!(all[1].put, sorted(vec![(id("a"), b"a2".to_vec()), (id("c"), b"c1".to_vec())]));
    assert_eq!((&all[1].dropped, &all[2].dropped), (&vec![], &vec![id("b")]));
    assert_eq!(all[2].put, [(id("a"), b"a1".to_vec())]);
    let mut last = all[3].dropped.clone();
    last.sort();
    let mut both = vec![id("a"), id("c")];
    both.sort();
    assert_eq!((all[3].put.len(), last), (0, both));
    // From the middle it is the same.
    assert_eq!(versions(&world, Some(3)).await, all[2..]);
    assert_eq!(
        world.store.git_manifest(&client("line-1"), 3).await.unwrap().as_deref(),
        Some(&b"manifest 3"[..])
    );
    assert_eq!(world.store.git_manifest(&client("line-1"), 1).await.unwrap(), None);
    let record = world.store.git_repository(&client("line-1"), NOW).await.unwrap().unwrap();
    assert_eq!((record.oldest, record.version, record.made), (2, 5, false));
    // It survives a restart, and goes on.
    let world = world.reopened();
    world.run("line-1", &[("a", b"a3")]).await;
    assert_eq!(versions(&world, Some(5)).await[0].put, [(id("a"), b"a3".to_vec())]);
}

#[tokio::test]
async fn a_refused_publication_leaves_no_version_behind() {
    let world = World::new();
    world.join("line-1").await;
    begin(&world).await;
    let stale = world.publication("line-1", &[("a", b"a1")]).await;
    world.run("line-1", &[("b", b"b1")]).await;
    let publication = Publication { at: NOW, clients: vec![stale], ..Default::default() };
    assert!(world.store.publish(publication).await.is_err());
    assert_eq!(versions(&world, None).await.len(), 2);
}

#[tokio::test]
async fn documents_are_kept_while_a_commit_needs_them_and_no_longer() {
    let world = World::new();
    world.join("line-1").await;
    begin(&world).await;
    for text in [b"a1", b"a2", b"a3", b"a4"] {
        world.run("line-1", &[("a", text)]).await;
    }
    // The device interface let go of the first long ago.
    let digest = Digest::of(b"a1");
    assert_eq!(world.store.document(&client("line-1"), id("a"), digest).await.unwrap(), None);
    assert_eq!(versions(&world, Some(1)).await[0].put, [(id("a"), b"a1".to_vec())]);
    assert!(world.store.end_git(&client("line-1"), NOW, "operator ann").await.unwrap());
    assert!(!world.store.end_git(&client("line-1"), NOW, "operator ann").await.unwrap());
    assert_eq!(versions(&world, None).await, []);
    // What the manifest lists is still there; a new beginning has nothing of before.
    assert!(world.store.document(&client("line-1"), id("a"), Digest::of(b"a4")).await.unwrap().is_some());
    begin(&world).await;
    let all = versions(&world, None).await;
    assert_eq!((all.len(), all[0].version), (1, 5));
    let kinds: Vec<String> =
        world.store.events_newest(3).await.unwrap().into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, ["device.git", "device.git", "device.git"]);
}

#[tokio::test]
async fn tokens_open_their_own_repository_until_they_are_replaced_or_expire() {
    let world = World::new();
    for name in ["line-1", "line-2"] {
        world.join(name).await;
    }
    begin(&world).await;
    world.store.begin_git(&client("line-2"), shown(b"other"), NOW, "operator ann").await.unwrap();
    let owner = async |secret: &[u8], seconds| {
        world.store.git_owner(Digest::of(secret), later(seconds)).await.unwrap().map(|c| c.to_string())
    };
    assert_eq!(owner(b"t", 0).await.as_deref(), Some("line-1"));
    assert_eq!(owner(b"other", 0).await.as_deref(), Some("line-2"));
    assert_eq!(owner(b"guess", 0).await, None);

    // A device's own token ends by itself; asking for it takes nothing from others.
    let own = token(b"own", GitHolder::Device, Some(100));
    world.store.add_git_token(&client("line-1"), own, NOW).await.unwrap();
    assert_eq!((owner(b"own", 99).await.is_some(), owner(b"own", 100).await.is_some()), (true, false));
    assert!(owner(b"t", 1000).await.is_some());

    // With a grace period the old ones work for a while, but never longer than they would have.
    let replace = async |secret: &[u8], until| {
        world.store.replace_git_tokens(&client("line-1"), shown(secret), until, NOW, "operator ann").await
    };
    replace(b"u", Some(later(200))).await.unwrap();
    assert!(owner(b"u", 10_000).await.is_some());
    assert_eq!((owner(b"t", 199).await.is_some(), owner(b"t", 200).await.is_some()), (true, false));
    assert!(owner(b"own", 100).await.is_none());
    // Without one they end at once.
    replace(b"v", None).await.unwrap();
    for gone in [b"t", b"u"] {
        assert_eq!(owner(gone, 0).await, None);
    }
    let record = world.store.git_repository(&client("line-1"), NOW).await.unwrap().unwrap();
    assert_eq!(record.tokens.len(), 1);
    assert_eq!(owner(b"other", 0).await.as_deref(), Some("line-2"));
}

#[tokio::test]
async fn a_device_that_keeps_asking_pushes_out_its_own_tokens_only() {
    let world = World::new();
    world.join("line-1").await;
    begin(&world).await;
    for number in 0..20u8 {
        let own = token(&[number], GitHolder::Device, Some(1000));
        world.store.add_git_token(&client("line-1"), own, later(u64::from(number))).await.unwrap();
    }
    let record = world.store.git_repository(&client("line-1"), later(20)).await.unwrap().unwrap();
    assert_eq!(record.tokens.len(), 9);
    assert!(world.store.git_owner(Digest::of(b"t"), later(20)).await.unwrap().is_some());
    assert!(world.store.git_owner(Digest::of(&[19]), later(20)).await.unwrap().is_some());
    assert!(world.store.git_owner(Digest::of(&[0]), later(20)).await.unwrap().is_none());
    assert_eq!(world.store.sweep_git_tokens(later(2000)).await.unwrap(), 8);
}

#[tokio::test]
async fn only_accepted_clients_get_a_repository_and_permission_goes_with_it() {
    let world = World::new();
    let nobody = world.store.begin_git(&client("nobody"), shown(b"t"), NOW, "operator ann").await;
    assert!(matches!(nobody, Err(GitError::NotAccepted(_))), "{nobody:?}");
    let nothing = world.store.add_git_token(&client("nobody"), shown(b"t"), NOW).await;
    assert!(matches!(nothing, Err(GitError::NotOn(_))), "{nothing:?}");
    world.join("line-1").await;
    world.store.retire_clients(vec![client("line-1")], NOW, "operator ann").await.unwrap();
    let retired = world.store.begin_git(&client("line-1"), shown(b"t"), NOW, "operator ann").await;
    assert!(matches!(retired, Err(GitError::NotAccepted(_))), "{retired:?}");

    let allowed = async || world.store.git_allowed(&client("line-1")).await.unwrap();
    assert!(!allowed().await);
    world.store.allow_git(&client("line-1"), true).await.unwrap();
    world.store.allow_git(&client("line-1"), true).await.unwrap();
    assert!(allowed().await);
    assert!(!world.store.end_git(&client("line-1"), NOW, "operator ann").await.unwrap());
    assert!(!allowed().await);
}
