//! The way back has to be open for as long as a rollout may need it, and nobody is led back who was told to stay.

use margrave_core::id::{PackageId, PackageVersion};

use super::*;

fn revert() -> Option<serde_json::Value> {
    Some(json!({ "batches": ["1"], "onFailure": "revert" }))
}

#[tokio::test]
async fn the_package_to_go_back_to_is_in_use_until_a_rollout_has_ended() {
    let world = World::plant(2).await;
    world.push("1.1.0", &description("1.1.0")).await;
    world.add("oci://margrave/packages/hello:1.1.0").await.unwrap();
    let newer = |text: &str| {
        let mut want =
            greeting(text, Some(json!({ "batches": ["1"], "soakSeconds": 60, "onFailure": "revert" })));
        want.version = Some("1.1.0".into());
        want
    };
    world.put("web", newer("hi")).await.unwrap();
    let settle = async || {
        world.pass(61);
        world.all_touched(2);
        world.advance().await;
        world.pass(10);
        world.advance().await;
    };
    for device in ["d0", "d1"] {
        world.report("web", device, State::Installed).await;
        world.advance().await;
        if device == "d0" {
            settle().await;
        }
    }
    // Everybody has the newer one, which is still watched.
    assert_eq!(world.rollout().await.state, "waiting");
    let remove = async || {
        let (id, version) = (PackageId::parse("hello").unwrap(), PackageVersion::parse("1.0.0").unwrap());
        world.fleet.remove_package(&ann(), &id, &version).await
    };
    let refused = remove().await.unwrap_err();
    assert!(matches!(&refused, Error::InUse { by, .. } if *by == ["web"]), "{refused}");
    settle().await;
    assert_eq!(world.rollout().await.state, "done");
    remove().await.unwrap();
}

#[tokio::test]
async fn a_rollout_that_was_ended_is_not_gone_back_from_however_far_that_was() {
    let world = World::plant(2).await;
    world.put("web", greeting("yo", revert())).await.unwrap();
    let world = world.cut_off_reverting().await;
    let id = world.fleet.store.deployment(&name("web")).await.unwrap().unwrap().deployment.id;
    // It was looked at, and is about to go back; somebody ends it before anything is changed.
    let seen = world.fleet.store.rollout(id).await.unwrap().unwrap();
    assert_eq!(world.hold(RolloutVerb::Abort).await.unwrap().state, "aborted");
    world.fleet.go_back(&seen).await.unwrap();
    let rollout = world.rollout().await;
    assert_eq!((rollout.state.as_str(), rollout.revision), ("aborted", 2));
    assert_eq!(world.given(2).await, "yo hi");
}
