//! Registries, watched repositories, and what registries still have.

use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::watch::{TagPattern, TagState, Warning};
use margrave_store::*;

use crate::fixture::*;

const REPOSITORY: &str = "oci://registry.example/packages/app";

fn registry(credentials: RegistryCredentials) -> RegistryRecord {
    RegistryRecord {
        host: "registry.example".into(),
        plain: false,
        authority: Some("PEM".into()),
        credentials,
        changed_at: NOW,
        changed_by: "operator ann".into(),
    }
}

#[tokio::test]
async fn a_registry_is_remembered_with_its_secret_and_no_event_tells_it() {
    let mut world = World::new();
    for credentials in [
        RegistryCredentials::Token("opensesame".into()),
        RegistryCredentials::Anonymous,
        RegistryCredentials::Basic { user: "ann".into(), password: "opensesame".into() },
    ] {
        let record = registry(credentials);
        assert!(!format!("{record:?}").contains("opensesame"));
        assert!(world.store.put_registry(record.clone()).await.unwrap().is_some());
        world = world.reopened();
        assert_eq!(world.store.registries().await.unwrap(), [record]);
    }
    assert!(world.store.remove_registry("registry.example", NOW, "operator ann").await.unwrap());
    assert!(!world.store.remove_registry("registry.example", NOW, "operator ann").await.unwrap());
    assert_eq!(world.store.registries().await.unwrap(), []);
    let events = world.store.events_after(0, 100).await.unwrap();
    assert_eq!(events.len(), 4, "{events:?}");
    assert!(events.iter().all(|event| !event.text.contains("opensesame")), "{events:?}");
}

#[tokio::test]
async fn a_watch_remembers_its_tags_until_it_ends() {
    let world = World::new();
    let put = |pattern: &'static str| {
        let pattern = TagPattern::parse(pattern).unwrap();
        world.store.put_watch(REPOSITORY, pattern, Duration::from_secs(900), NOW, "operator ann")
    };
    assert_eq!(put("1.*").await.unwrap(), Some(Put::Created));
    let tag = |tag: &str, state| TagRecord {
        tag: tag.into(),
        digest: Digest::of(tag.as_bytes()),
        state,
        package: None,
        reason: Some("why".into()),
        looked_at: NOW,
    };
    let (first, second) = (tag("1.0", TagState::Broken), tag("1.1", TagState::Incomplete));
    let turn = WatchTurn {
        at: NOW,
        next_at: later(900),
        failures: 2,
        trouble: Some("it is away".into()),
        tags: vec![first.clone(), second.clone()],
        ..WatchTurn::default()
    };
    world.store.note_watch(REPOSITORY, turn.clone()).await.unwrap();
    let world = world.reopened();
    assert_eq!(world.store.watched_tags(REPOSITORY).await.unwrap(), [first.clone(), second]);
    let watch = &world.store.watches().await.unwrap()[0];
    assert_eq!((watch.next_at, watch.failures, watch.looked_at), (later(900), 2, Some(NOW)));

    // A registry that is known better is worth another look; others are not.
    let other =
        RegistryRecord { host: "registry.example:5000".into(), ..registry(RegistryCredentials::Anonymous) };
    world.store.put_registry(other).await.unwrap();
    assert_eq!(world.store.watches().await.unwrap()[0].next_at, later(900));
    world.store.put_registry(registry(RegistryCredentials::Anonymous)).await.unwrap();
    assert_eq!(world.store.watches().await.unwrap()[0].next_at, NOW);

    let forgetting = WatchTurn { forgotten: vec!["1.1".into()], ..WatchTurn::default() };
    world.store.note_watch(REPOSITORY, forgetting).await.unwrap();
    assert_eq!(world.store.watched_tags(REPOSITORY).await.unwrap(), [first]);
    assert!(world.store.remove_watch(REPOSITORY, NOW, "operator ann").await.unwrap());
    assert_eq!(world.store.watched_tags(REPOSITORY).await.unwrap(), []);
    // A turn that ends after its watch did leaves nothing behind.
    world.store.note_watch(REPOSITORY, turn).await.unwrap();
    assert_eq!(world.store.watched_tags(REPOSITORY).await.unwrap(), []);
    assert!(!world.store.remove_watch(REPOSITORY, NOW, "operator ann").await.unwrap());
}

#[tokio::test]
async fn what_a_registry_has_is_kept_with_the_package_and_goes_with_it() {
    let world = World::new();
    let record = package("app", "1.0.0");
    let (id, version) = (record.id.clone(), record.version.clone());
    let warnings = vec![
        Warning::Gone,
        Warning::ComponentGone { component: "web".into(), at: Some("there@sha256:1".into()) },
    ];
    let origin = OriginRecord { id: id.clone(), version: version.clone(), looked_at: NOW, warnings };
    world.store.note_origin(origin.clone(), vec![]).await.unwrap();
    assert_eq!(world.store.origins().await.unwrap(), [], "there is no such package");
    world.add_package(record.clone(), vec![]).await.unwrap();
    world.store.note_origin(origin.clone(), vec![]).await.unwrap();
    assert_eq!(world.store.origins().await.unwrap(), [origin]);
    world.remove_package(&record).await.unwrap();
    assert_eq!(world.store.origins().await.unwrap(), []);
}
