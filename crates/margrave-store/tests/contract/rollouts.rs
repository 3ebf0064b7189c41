//! How far a revision came.

use margrave_core::deployment::Targets;
use margrave_core::rollout::Reached;
use margrave_store::*;

use crate::fixture::*;

/// Devices, and whether they get it at once; those that do not keep the revision before, if there is one.
pub(crate) fn begin(revision: u64, members: &[(&str, bool)]) -> RolloutChange {
    let before = revision.checked_sub(1).filter(|before| *before > 0);
    let member = |(name, released): &(&str, bool)| NewMember {
        device: device(name),
        released: *released,
        keeps: before.filter(|_| !released),
    };
    RolloutChange::Begin {
        deployment: deployment_id("hello"),
        revision,
        before,
        reached: Reached::default(),
        members: members.iter().map(member).collect(),
    }
}

pub(crate) fn release(revision: u64, batch: u32, devices: &[&str]) -> RolloutChange {
    RolloutChange::Release {
        deployment: deployment_id("hello"),
        revision,
        reached: Reached { batch, good_since: Some(later(5)) },
        devices: devices.iter().map(|name| device(name)).collect(),
    }
}

pub(crate) async fn put(world: &World, revision: u64, rollouts: Vec<RolloutChange>) {
    let intent = Intent::Put {
        deployment: Box::new(deployment("hello", revision)),
        seen: revision.checked_sub(1).filter(|seen| *seen > 0),
        by: "operator ann".into(),
    };
    let publication =
        Publication { at: later(revision), intents: vec![intent], rollouts, ..Default::default() };
    world.store.publish(publication).await.unwrap();
}

pub(crate) async fn change(world: &World, change: RolloutChange) -> Result<(), PublishError> {
    world.store.publish(Publication { at: later(9), rollouts: vec![change], ..Default::default() }).await
}

pub(crate) fn update(from: RolloutState, to: RolloutState) -> RolloutUpdate {
    RolloutUpdate {
        deployment: deployment_id("hello"),
        revision: 1,
        from: vec![from],
        to,
        why: Some("so".into()),
        reached: Reached::default(),
        forgiven: vec![device("line-1")],
        at: later(20),
        by: Some("operator bob".into()),
        event: None,
    }
}

async fn members(world: &World) -> String {
    let members = world.store.rollout_members(deployment_id("hello")).await.unwrap();
    let word = |member: MemberRecord| {
        let released = if member.released_at.is_some() { "+" } else { "-" };
        let forgiven = if member.forgiven { "*" } else { "" };
        format!("{}{released}{}{forgiven}", member.place, member.device)
    };
    members.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

async fn begun() -> World {
    let world = World::new();
    for name in ["line-1", "line-2", "line-3"] {
        world.join(name).await;
    }
    world.add_package(package("app", "1.0.0"), vec![]).await.unwrap();
    put(&world, 1, vec![begin(1, &[("line-2", true), ("line-1", false)])]).await;
    world
}

#[tokio::test]
async fn a_rollout_is_made_with_its_revision_and_outlives_a_restart() {
    let world = begun().await.reopened();
    let [rollout] = &world.store.rollouts_open().await.unwrap()[..] else { panic!("there is one") };
    assert_eq!((rollout.revision, rollout.before, rollout.size), (1, None, 2));
    assert_eq!((rollout.state, rollout.changed_by.as_str()), (RolloutState::Running, "operator ann"));
    assert_eq!(members(&world).await, "0+line-2 1-line-1");
    change(&world, release(1, 1, &["line-1"])).await.unwrap();
    let world = world.reopened();
    assert_eq!(members(&world).await, "0+line-2 1+line-1");
    let rollout = world.store.rollout(deployment_id("hello")).await.unwrap().unwrap();
    assert_eq!(rollout.reached, Reached { batch: 1, good_since: Some(later(5)) });
}

#[tokio::test]
async fn only_what_was_looked_at_is_moved() {
    let world = begun().await;
    let other = change(&world, release(2, 1, &["line-1"])).await.unwrap_err();
    assert!(matches!(other, PublishError::RevisionMoved), "{other}");
    assert!(!world.store.update_rollout(update(RolloutState::Paused, RolloutState::Running)).await.unwrap());
    assert!(world.store.update_rollout(update(RolloutState::Running, RolloutState::Paused)).await.unwrap());
    let paused = change(&world, release(1, 1, &["line-1"])).await.unwrap_err();
    assert!(matches!(paused, PublishError::RevisionMoved), "{paused}");
    assert_eq!(members(&world).await, "0+line-2 1-line-1*");
    let rollout = world.store.rollout(deployment_id("hello")).await.unwrap().unwrap();
    assert_eq!((rollout.why.as_deref(), rollout.changed_by.as_str()), (Some("so"), "operator bob"));
}

#[tokio::test]
async fn who_comes_later_stands_at_the_end_and_nobody_comes_to_what_is_done() {
    let world = begun().await;
    let join = || RolloutChange::Join {
        deployment: deployment_id("hello"),
        revision: 1,
        devices: vec![(device("line-3"), Some(1)), (device("line-1"), None)],
    };
    change(&world, join()).await.unwrap();
    assert_eq!(members(&world).await, "0+line-2 1-line-1 2-line-3");
    let kept = world.store.rollout_members(deployment_id("hello")).await.unwrap();
    assert_eq!(kept.iter().map(|member| member.keeps).collect::<Vec<_>>(), [None, None, Some(1)]);
    let of = world.store.rollouts_of(&device("line-3")).await.unwrap();
    assert_eq!(of, [(deployment_id("hello"), false)]);
    assert!(world.store.update_rollout(update(RolloutState::Running, RolloutState::Done)).await.unwrap());
    assert!(matches!(change(&world, join()).await, Err(PublishError::RevisionMoved)));
    assert!(world.store.rollouts_open().await.unwrap().is_empty());
    assert!(world.store.rollouts_of(&device("line-3")).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_new_revision_or_the_removal_ends_it() {
    let world = begun().await;
    put(&world, 2, vec![begin(2, &[("line-3", true)])]).await;
    assert_eq!(members(&world).await, "0+line-3");
    put(&world, 3, vec![]).await;
    assert_eq!(world.store.rollout(deployment_id("hello")).await.unwrap(), None);
    put(&world, 4, vec![begin(4, &[("line-1", false)])]).await;
    world.remove("hello").await;
    assert!(world.store.rollouts_open().await.unwrap().is_empty());
    assert_eq!(members(&world).await, "");
}

#[tokio::test]
async fn the_lineup_says_of_every_device_what_its_record_says() {
    let world = begun().await;
    world.join("line-4").await;
    world.label(&device("line-1"), &[("site", "nord"), ("line", "1"), ("colour", "red")]).await;
    world.label(&device("line-4"), &[("line", "4")]).await;
    world.store.touch_contacts(vec![(client("line-1"), later(7))]).await.unwrap();
    change(&world, release(1, 1, &["line-1"])).await.unwrap();
    let join = RolloutChange::Join {
        deployment: deployment_id("hello"),
        revision: 1,
        devices: vec![(device("line-4"), None), (device("line-3"), None)],
    };
    change(&world, join).await.unwrap();
    world.store.retire_clients(vec![client("line-3")], later(8), "operator ann").await.unwrap();
    let mut wanted = deployment("hello", 1);
    for targets in [
        Targets::default(),
        Targets { labels: labels(&[("line", "1")]), ..Default::default() },
        Targets { select: "colour in (red), !spare".parse().unwrap(), ..Default::default() },
        Targets { sites: ["nord".to_owned()].into(), ..Default::default() },
    ] {
        wanted.targets = targets;
        let members = world.store.rollout_members(wanted.id).await.unwrap();
        let mut expected = Vec::new();
        for member in members {
            let record = world.store.device(&member.device).await.unwrap().unwrap();
            let mut lined = LinedRecord::new(member, &record);
            lined.labels.retain(|key, _| wanted.targets.keys().contains(key.as_str()));
            let matches = |labels| wanted.targets.matches(&record.device, labels);
            assert_eq!(matches(&lined.labels), matches(&record.labels), "the other labels decide nothing");
            expected.push(lined);
        }
        assert_eq!(world.store.rollout_lineup(&wanted).await.unwrap(), expected);
    }
    let lineup = world.store.rollout_lineup(&wanted).await.unwrap();
    let told = |lined: &LinedRecord| (lined.member.device.to_string(), lined.retired, lined.speaks);
    let told: Vec<_> = lineup.iter().map(told).collect();
    assert_eq!(told.iter().filter(|(_, retired, _)| *retired).count(), 1, "{told:?}");
    assert_eq!(told.len(), 4);
}
