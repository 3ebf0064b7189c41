//! What a deployment was before.

use margrave_core::id::{DeploymentName, PackageVersion};
use margrave_store::*;

use crate::fixture::*;

fn name(text: &str) -> DeploymentName {
    DeploymentName::parse(text).unwrap()
}

async fn put(world: &World, name: &str, revision: u64, seen: Option<u64>) -> Result<(), PublishError> {
    let mut wanted = deployment(name, revision);
    wanted.targets.labels = labels(&[("revision", &revision.to_string())]);
    let intent = Intent::Put { deployment: Box::new(wanted), seen, by: format!("operator {revision}") };
    world
        .store
        .publish(Publication { at: later(revision), intents: vec![intent], ..Default::default() })
        .await
}

async fn numbers(world: &World, name: &str) -> Vec<u64> {
    let revisions = world.store.revisions(&DeploymentName::parse(name).unwrap()).await.unwrap();
    revisions.iter().map(|record| record.deployment.revision).collect()
}

#[tokio::test]
async fn every_revision_stays_as_it_was_until_after_the_removal() {
    let world = World::new();
    for version in ["1.0.0", "2.0.0"] {
        world.add_package(package("app", version), vec![]).await.unwrap();
    }
    put(&world, "hello", 1, None).await.unwrap();
    let mut second = deployment("hello", 2);
    second.version = PackageVersion::parse("2.0.0").unwrap();
    let intent =
        Intent::Put { deployment: Box::new(second.clone()), seen: Some(1), by: "operator bob".into() };
    let publication = Publication { at: later(2), intents: vec![intent], ..Default::default() };
    world.store.publish(publication).await.unwrap();
    world.remove("hello").await;
    assert_eq!(world.store.deployment(&name("hello")).await.unwrap(), None, "no device had it");

    let revisions = world.store.revisions(&name("hello")).await.unwrap();
    let [third, kept, first] = &revisions[..] else { panic!("{revisions:?}") };
    assert_eq!((third.removed, third.deployment.revision), (true, 3));
    assert_eq!(kept.deployment, second);
    let wanted = (false, later(2), "operator bob");
    assert_eq!((kept.removed, kept.changed_at, kept.changed_by.as_str()), wanted);
    assert_eq!(first.deployment.targets.labels, labels(&[("revision", "1")]));
    assert_eq!(world.store.revision(&name("hello"), 2).await.unwrap().as_ref(), Some(kept));
    for missing in [0, 4, u64::MAX] {
        assert_eq!(world.store.revision(&name("hello"), missing).await.unwrap(), None);
    }
    assert_eq!(world.store.revision_newest(&name("hello")).await.unwrap(), Some(3));
    assert_eq!(world.store.revision_newest(&name("other")).await.unwrap(), None);
}

#[tokio::test]
async fn a_revision_is_never_used_twice_under_one_name() {
    let world = World::new();
    world.add_package(package("app", "1.0.0"), vec![]).await.unwrap();
    put(&world, "hello", 1, None).await.unwrap();
    world.remove("hello").await;
    for used in [1, 2] {
        let error = put(&world, "hello", used, None).await.unwrap_err();
        assert!(matches!(error, PublishError::RevisionMoved), "{error}");
    }
    assert_eq!(world.store.deployment(&name("hello")).await.unwrap(), None, "nothing of it is kept");
    put(&world, "hello", 3, None).await.unwrap();
    assert_eq!(numbers(&world, "hello").await, [3, 2, 1]);
}

#[tokio::test]
async fn only_the_newest_hundred_are_kept() {
    let world = World::new();
    world.add_package(package("app", "1.0.0"), vec![]).await.unwrap();
    put(&world, "other", 1, None).await.unwrap();
    put(&world, "hello", 1, None).await.unwrap();
    for revision in 2..=105 {
        put(&world, "hello", revision, Some(revision - 1)).await.unwrap();
    }
    assert_eq!(numbers(&world, "hello").await, (6..=105).rev().collect::<Vec<u64>>());
    assert_eq!(numbers(&world, "other").await, [1]);
}
