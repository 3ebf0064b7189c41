//! The way back has to be open for as long as a rollout may need it, and nobody is led back who was told to stay.

use margrave_core::id::{PackageId, PackageVersion};

use super::*;

fn revert() -> Option<serde_json::Value> {
    Some(json!({ "batches": ["1"], "onFailure": "revert" }))
}

/// Revision 1 names three devices. One of them is retired, and revision 2 leaves it out.
async fn without_the_third() -> World {
    let world = World::new().await;
    let named = |devices: &[&str], text: &str| {
        let mut want = on(devices);
        want.parameters.insert("greeting".into(), json!(text));
        want.strategy = revert().map(|strategy| serde_json::from_value(strategy).unwrap());
        want
    };
    for device in ["d0", "d1", "d2"] {
        world.device(device, &[]).await;
    }
    world.put("web", named(&["d0", "d1", "d2"], "hi")).await.unwrap();
    for device in ["d0", "d1", "d2"] {
        world.report("web", device, State::Installed).await;
        world.advance().await;
    }
    assert_eq!(world.rollout().await.state, "done");
    world.fleet.retire(&ann(), &device("d2")).await.unwrap();
    world.put("web", named(&["d0", "d1"], "yo")).await.unwrap();
    assert_eq!(world.given(2).await, "yo hi");
    world
}

#[tokio::test]
async fn who_is_not_there_any_more_keeps_nobody_from_going_back() {
    let world = without_the_third().await;
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    assert_eq!(world.given(2).await, "hi hi", "{:?}", world.rollout().await.reason);
    let shown = world.fleet.deployment(&name("web")).await.unwrap();
    assert_eq!((shown.revision, shown.changed_by.as_str()), (3, "server"));
    assert_eq!(shown.targets.devices, ["d0", "d1"]);
    assert!(shown.rollout.is_none(), "the way back is not made in steps");
    let revisions = world.fleet.revisions(&name("web")).await.unwrap();
    assert_eq!((revisions[0].back_to, revisions[1].unfinished), (Some(1), true));
    let events = world.fleet.store.events_after(0, 1000).await.unwrap();
    let told = events.iter().find(|event| event.text.contains("went back to revision 1")).unwrap();
    assert!(told.text.contains("without d2, which is not there any more"), "{}", told.text);
}

#[tokio::test]
async fn who_goes_back_by_hand_is_told_who_was_left_out() {
    let world = without_the_third().await;
    let shown = world.fleet.revert(&ann(), &name("web"), 1, None).await.unwrap();
    assert_eq!(world.given(2).await, "hi hi");
    let warning = shown.warnings.iter().find(|warning| warning.kind == "leftOut").unwrap();
    assert!(warning.text.contains("d2"), "{}", warning.text);
    // Who is left is nobody: that is no way back.
    for on in ["d0", "d1"] {
        world.fleet.retire(&ann(), &device(on)).await.unwrap();
    }
    world.device("d3", &[]).await;
    world.put("web", on(&["d3"])).await.unwrap();
    let refused = world.fleet.revert(&ann(), &name("web"), 1, None).await.unwrap_err().to_string();
    assert!(refused.contains("none of the devices of revision 1 is there any more"), "{refused}");
}

#[tokio::test]
async fn who_does_not_fit_any_more_keeps_nobody_else_from_going_back() {
    let world = World::of_two_ports().await;
    let of = |version: &str, devices: &[&str], strategy: Option<serde_json::Value>| {
        let strategy = strategy.map(|strategy| serde_json::from_value(strategy).unwrap());
        operator::PutDeployment { version: Some(version.into()), strategy, ..on(devices) }
    };
    for device in ["d0", "d1"] {
        world.roomy(device, "2Gi", &[]).await;
    }
    world.put("web", of("1.0.0", &["d0", "d1"], None)).await.unwrap();
    for device in ["d0", "d1"] {
        world.report("web", device, State::Installed).await;
    }
    world.put("web", of("2.0.0", &["d0", "d1"], revert())).await.unwrap();
    world.report("web", "d0", State::Installed).await;
    world.advance().await;
    // Another takes the port that the newer version left there.
    world.put("other", of("1.0.0", &["d0"], None)).await.unwrap();
    world.report("web", "d1", State::Failed).await;
    world.advance().await;
    let shown = world.fleet.deployment(&name("web")).await.unwrap();
    assert_eq!((shown.revision, shown.changed_by.as_str()), (3, "server"), "{:?}", shown.rollout);
    let given = [world.assignment("web", "d0").await.version, world.assignment("web", "d1").await.version];
    assert_eq!(given, ["2.0.0", "1.0.0"]);
    assert_eq!((shown.misfits.len(), shown.misfits[0].device.as_str()), (1, "d0"));
    let file = world.file("deployments/web.yaml").await.unwrap();
    assert!(file.contains("version: \"1.0.0\"") && file.contains("d0"), "{file}");
    // Who asks for the same by hand is told.
    world.put("web", of("2.0.0", &["d0", "d1"], Some(json!({})))).await.unwrap();
    let refused = world.fleet.revert(&ann(), &name("web"), 3, None).await.unwrap_err();
    assert!(matches!(&refused, Error::Misfit(misfits) if misfits[0].device == "d0"), "{refused}");
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

#[tokio::test]
async fn the_way_back_is_not_made_in_steps_where_a_secret_changed_meanwhile() {
    let world = World::new().await;
    for on in ["d0", "d1", "d2"] {
        world.device(on, &[("plant", "a")]).await;
    }
    world.set("secrets/seconds", "30");
    let secretly = |text: &str, strategy| {
        let mut want = greeting(text, strategy);
        want.parameters.insert("interval".into(), json!({ "secret": { "file": "seconds" } }));
        want
    };
    world.put("web", secretly("hi", revert())).await.unwrap();
    for on in ["d0", "d1", "d2"] {
        world.report("web", on, State::Installed).await;
        world.advance().await;
    }
    world.set("secrets/seconds", "60");
    world.put("web", secretly("yo", revert())).await.unwrap();
    world.report("web", "d0", State::Installed).await;
    world.advance().await;
    assert_eq!(world.given(3).await, "yo yo hi");
    world.report("web", "d1", State::Failed).await;
    world.advance().await;
    assert_eq!(world.given(3).await, "hi hi hi", "everybody is back at once");
    // A secret that changes twice is no way back, and goes in steps.
    let steps = || Some(json!({ "batches": ["1"] }));
    world.put("web", secretly("hi", steps())).await.unwrap();
    for number in ["61", "62"] {
        world.set("secrets/seconds", number);
        world.put("web", secretly("hi", steps())).await.unwrap();
        assert_eq!(world.rollout().await.counts.total, 3, "{number}");
        assert!(world.rollout().await.counts.waiting > 0, "{number}");
    }
}
