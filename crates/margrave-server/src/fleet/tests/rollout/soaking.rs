//! A batch is watched, and what nobody saw is not good.

use margrave_wire::schedule::ScheduleBody;

use super::*;
use crate::fleet::tests::waiting::is_waiting;

const SOAK: u64 = 1800;

/// The canary has it since now, and is watched.
async fn soaking() -> World {
    let world = World::plant(3).await;
    let strategy = json!({ "canary": { "size": "1", "soakSeconds": SOAK }, "onFailure": "halt" });
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    world.report("web", "d0", State::Installed).await;
    world.advance().await;
    world
}

impl World {
    async fn codes(&self) -> Vec<String> {
        let why = self.fleet.why("d1/web").await.unwrap();
        why.chain.into_iter().map(|cause| cause.code).collect()
    }
}

#[tokio::test]
async fn a_canary_that_is_not_heard_of_any_more_has_proven_nothing() {
    let world = soaking().await;
    world.pass(SOAK + 3600);
    for device in ["d1", "d2"] {
        world.fleet.touched(&client(device));
    }
    world.advance().await;
    assert_eq!(world.given(3).await, "yo hi hi", "the new version may have taken its network down");
    let rollout = world.rollout().await;
    assert_eq!((rollout.state.as_str(), rollout.until), ("waiting", None));
    let reason = rollout.reason.unwrap();
    assert!(reason.starts_with("1 device of batch 1 has not been heard of since 20"), "{reason}");
    assert_eq!(world.codes().await, ["rollout-waiting", "rollout-unheard", "silent"]);
    // It is back, and well.
    world.fleet.touched(&client("d0"));
    world.advance().await;
    assert_eq!(world.given(3).await, "yo hi hi", "what it has to tell may come a moment later");
    world.pass(10);
    world.advance().await;
    assert_eq!(world.given(3).await, "yo yo yo");
}

#[tokio::test]
async fn nothing_is_said_to_be_wrong_with_who_is_not_late() {
    let world = soaking().await;
    world.pass(SOAK - 1);
    world.all_touched(3);
    world.pass(2);
    world.advance().await;
    assert_eq!(world.given(3).await, "yo hi hi");
    let rollout = world.rollout().await;
    let why =
        "batch 1 was good for its time, and 1 device of it is to be heard of once more before it goes on";
    assert_eq!((rollout.state.as_str(), rollout.reason.as_deref()), ("waiting", Some(why)));
    assert_eq!(world.codes().await, ["rollout-waiting", "rollout-soaking"]);
    // From then on it is.
    world.pass(3600);
    for device in ["d1", "d2"] {
        world.fleet.touched(&client(device));
    }
    world.advance().await;
    assert!(world.codes().await.contains(&"rollout-unheard".to_owned()));
}

#[tokio::test]
async fn a_canary_that_is_retired_has_proven_nothing_either() {
    let world = soaking().await;
    world.pass(SOAK + 3600);
    let others_speak = || ["d1", "d2"].iter().for_each(|device| world.fleet.touched(&client(device)));
    others_speak();
    world.advance().await;
    // As the documentation says of one that is gone for good.
    world.fleet.retire(&ann(), &device("d0")).await.unwrap();
    world.advance().await;
    let rest = async || [world.greets("d1").await, world.greets("d2").await].map(Option::unwrap);
    assert_eq!(rest().await, ["hi", "hi"], "nobody knows what it does to a device");
    let rollout = world.rollout().await;
    let why = "nobody is left in batch 1 who could prove it; resume to go on without";
    assert_eq!((rollout.state.as_str(), rollout.reason.as_deref()), ("halted", Some(why)));
    world.advance().await;
    assert_eq!(rest().await, ["hi", "hi"]);
    world.hold(RolloutVerb::Resume).await.unwrap();
    world.advance().await;
    assert_eq!(rest().await, ["yo", "yo"]);
}

#[tokio::test]
async fn a_held_poll_is_answered_when_its_device_is_to_be_heard_of() {
    let world = soaking().await;
    let canary = client("d0");
    let than = world.fleet.manifest(&canary, Dialect::Miaf).unwrap().digest;
    let mut held = Box::pin(world.fleet.manifest_changed(&canary, than, Duration::from_secs(300)));
    assert!(is_waiting(&mut held));
    world.advance().await;
    assert!(is_waiting(&mut held), "it is still watched");
    world.pass(SOAK + 1);
    world.advance().await;
    assert!(!is_waiting(&mut held), "a rollout does not wait for minutes for who is there");
}

#[tokio::test]
async fn what_a_canary_has_to_tell_is_heard_before_others_get_what_failed() {
    let world = soaking().await;
    // The server is off when the time ends; the canary failed meanwhile, and keeps its report.
    world.fleet.flush_contacts().await.unwrap();
    let world = world.restarted().await;
    world.pass(SOAK + 600);
    world.advance().await;
    assert_eq!(world.given(3).await, "yo hi hi");
    // It asks what is wanted, and tells what happened.
    world.all_touched(3);
    world.advance().await;
    world.report("web", "d0", State::Failed).await;
    world.pass(60);
    world.all_touched(3);
    world.advance().await;
    assert_eq!((world.given(3).await.as_str(), world.rollout().await.state.as_str()), ("yo hi hi", "halted"));
}

#[tokio::test]
async fn a_canary_that_asks_seldom_is_waited_for() {
    let world = soaking().await;
    let seldom: ScheduleBody = serde_json::from_value(json!({ "pollEverySeconds": 36_000 })).unwrap();
    world.fleet.put_schedule(&ann(), "device:d0", &seldom).await.unwrap();
    world.version("d0");
    world.fleet.touched(&client("d0"));
    world.pass(SOAK + 60);
    for device in ["d1", "d2"] {
        world.fleet.touched(&client(device));
    }
    world.advance().await;
    assert_eq!(world.given(3).await, "yo hi hi");
    assert_eq!(world.codes().await, ["rollout-waiting", "rollout-unheard", "polls-seldom"]);
    world.pass(36_000);
    world.all_touched(3);
    world.advance().await;
    world.pass(10);
    world.advance().await;
    assert_eq!(world.given(3).await, "yo yo yo");
}

#[tokio::test]
async fn the_last_batch_is_watched_as_well_and_taken_back_if_it_fails() {
    let world = World::plant(2).await;
    let strategy = json!({ "batches": ["1"], "soakSeconds": 60, "onFailure": "revert" });
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    for device in ["d0", "d1"] {
        world.report("web", device, State::Installed).await;
        world.advance().await;
        assert_eq!(world.rollout().await.state, "waiting", "{device} is watched");
        if device == "d0" {
            world.pass(61);
            world.all_touched(2);
            world.advance().await;
            world.pass(10);
            world.advance().await;
        }
    }
    assert_eq!(world.given(2).await, "yo yo");
    world.report("web", "d1", State::Failed).await;
    world.advance().await;
    assert_eq!(world.given(2).await, "hi hi", "it failed while it was watched");
}

#[tokio::test]
async fn a_soak_that_nobody_waits_for_is_warned_of() {
    let world = World::plant(2).await;
    let kinds = |shown: operator::Deployment| -> Vec<String> {
        shown.warnings.into_iter().map(|warning| warning.kind).collect()
    };
    let at_once = world.put("web", greeting("yo", Some(json!({ "soakSeconds": 600 })))).await.unwrap();
    assert_eq!(kinds(at_once), ["soakAfterAll"]);
    let in_steps = json!({ "soakSeconds": 600, "batches": ["1"] });
    assert!(kinds(world.put("web", greeting("hej", Some(in_steps))).await.unwrap()).is_empty());
}
