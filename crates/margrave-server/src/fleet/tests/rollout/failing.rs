//! What comes of devices that fail in a rollout.

use super::*;

#[tokio::test]
async fn a_rollout_that_is_to_go_back_says_so_before_it_does() {
    let world = World::plant(3).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"], "onFailure": "revert" })))).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    // Nobody has looked yet; what the next look finds is true already.
    let rollout = world.rollout().await;
    assert_eq!(rollout.state, "reverting", "halted would wait for a person");
    let why = world.fleet.why("d2/web").await.unwrap();
    let codes: Vec<&str> = why.chain.iter().map(|cause| cause.code.as_str()).collect();
    assert_eq!(codes[..2], ["rollout-waiting", "rollout-reverting"]);
    assert!(why.chain[1].text.starts_with("the rollout is going back: 1 device of batch 1"), "{why:?}");
    world.advance().await;
    assert_eq!(world.given(3).await, "hi hi hi");
}

/// As our agent says it: what is wanted failed, and what was good before comes back, or is.
fn back(report: &mut Report) {
    report.detail.as_mut().unwrap().document = Some(Digest::of(b"what was good"));
    let message = "it does not start".to_owned();
    report.fault = Some(Fault { code: "start-failed".into(), source: "web".into(), message });
}

#[tokio::test]
async fn a_failure_that_was_let_go_is_not_counted_again_when_the_device_is_back() {
    let world = World::plant(3).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"], "failures": 1 })))).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    world.report_with("web", "d0", State::RollingBack, back).await;
    assert_eq!(world.hold(RolloutVerb::Resume).await.unwrap().state, "running");
    world.advance().await;
    world.report_with("web", "d0", State::Installed, back).await;
    world.advance().await;
    let rollout = world.rollout().await;
    assert_eq!((rollout.state.as_str(), rollout.counts.failed), ("running", 1), "{rollout:?}");
    assert_eq!(world.given(3).await, "yo yo hi", "the same failure halts it once");
    // Another device is another failure.
    world.report("web", "d1", State::Failed).await;
    world.advance().await;
    assert_eq!(world.rollout().await.state, "halted");
}

#[tokio::test]
async fn a_failure_that_was_let_go_is_not_counted_again_when_the_device_tries_once_more() {
    let world = World::plant(2).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"] })))).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    world.report("web", "d0", State::Updating).await;
    assert_eq!(world.hold(RolloutVerb::Resume).await.unwrap().state, "running");
    world.advance().await;
    assert_eq!(world.given(2).await, "yo hi", "it may still come to its end");
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    assert_eq!((world.given(2).await.as_str(), world.rollout().await.state.as_str()), ("yo yo", "running"));
    // Who failed with an earlier revision has not failed with this one.
    world.put("web", greeting("hej", None)).await.unwrap();
    world.report("web", "d0", State::Updating).await;
    world.hold(RolloutVerb::Pause).await.unwrap();
    world.hold(RolloutVerb::Resume).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    assert_eq!(world.rollout().await.state, "halted");
}

#[tokio::test]
async fn a_device_on_its_way_back_has_failed() {
    let world = World::plant(2).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"] })))).await.unwrap();
    // That it failed was not heard: a newer report took its place on the device.
    world.report_with("web", "d0", State::RollingBack, back).await;
    world.advance().await;
    let rollout = world.rollout().await;
    assert_eq!((rollout.state.as_str(), rollout.counts.failed), ("halted", 1), "{rollout:?}");
}

impl World {
    /// Newest first: the number, where the server went back to with it, and whether it never came to its end.
    async fn told_revisions(&self) -> Vec<(u64, Option<u64>, bool)> {
        let revisions = self.fleet.revisions(&name("web")).await.unwrap();
        revisions.into_iter().map(|it| (it.revision, it.back_to, it.unfinished)).collect()
    }
}

#[tokio::test]
async fn what_never_came_to_its_end_is_told_from_what_can_be_gone_back_to() {
    let world = World::plant(2).await;
    let reverts = || Some(json!({ "batches": ["1"], "onFailure": "revert" }));
    world.put("web", greeting("yo", reverts())).await.unwrap();
    assert_eq!(world.told_revisions().await, [(2, None, false), (1, None, false)], "it may yet");
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    assert_eq!(world.told_revisions().await, [(3, Some(1), false), (2, None, true), (1, None, false)]);
    let told = world.rollout().await.reason.unwrap();
    assert!(told.starts_with("revision 2 failed: 1 device of batch 1"), "{told}");
    assert!(told.contains("the server went back to what it was at revision 1"), "{told}");

    // Another takes its place half-way, and is halted.
    world.put("web", greeting("hej", Some(json!({ "batches": ["1"] })))).await.unwrap();
    world.put("web", greeting("hola", None)).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    let told = world.told_revisions().await;
    let unfinished: Vec<u64> = told.iter().filter(|(_, _, it)| *it).map(|(number, _, _)| *number).collect();
    assert_eq!(unfinished, [4, 2], "{told:?}");
    assert_eq!(world.rollout().await.before, Some(3), "as the server itself would choose");
}

#[tokio::test]
async fn how_earlier_rollouts_ended_is_known_when_later_ones_came_to_their_end() {
    let world = World::plant(2).await;
    let steps = || Some(json!({ "batches": ["1"] }));
    world.put("web", greeting("aborted", steps())).await.unwrap();
    world.hold(RolloutVerb::Abort).await.unwrap();
    world.put("web", greeting("replaced", steps())).await.unwrap();
    world.put("web", greeting("halted", steps())).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    for text in ["good", "better"] {
        world.put("web", greeting(text, steps())).await.unwrap();
        for device in ["d0", "d1"] {
            world.report("web", device, State::Installed).await;
            world.advance().await;
        }
        assert_eq!(world.rollout().await.state, "done");
    }
    let revisions = world.fleet.revisions(&name("web")).await.unwrap();
    let ended: Vec<&str> = revisions.iter().map(|it| it.ended.as_deref().unwrap_or("")).collect();
    assert_eq!((ended[0], ended[1], ended[5]), ("", "", ""));
    assert!(ended[2].starts_with("1 device of batch 1"), "{ended:?}");
    assert_eq!(ended[3], "replaced before every device had it");
    assert!(ended[4].starts_with("aborted by "), "{ended:?}");
    assert!(revisions.iter().all(|it| it.unfinished == it.ended.is_some()), "{revisions:?}");
}

#[tokio::test]
async fn of_first_revisions_that_never_came_to_their_end_none_can_be_gone_back_to() {
    let world = World::new().await;
    for device in ["d0", "d1"] {
        world.device(device, &[("plant", "a")]).await;
    }
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"] })))).await.unwrap();
    world.put("web", greeting("hej", None)).await.unwrap();
    assert_eq!(world.told_revisions().await, [(2, None, false), (1, None, true)]);
    for device in ["d0", "d1"] {
        world.report("web", device, State::Installed).await;
        world.advance().await;
    }
    assert_eq!(world.rollout().await.state, "done");
}

impl World {
    /// Takes `d0` out of the deployment, in one way or another.
    async fn put_out(&self, way: &str) {
        if way == "retired" {
            self.fleet.retire(&ann(), &device("d0")).await.unwrap();
        } else {
            let unlabel = operator::SetLabels { labels: [("plant".to_owned(), None)].into() };
            self.fleet.label(&ann(), &device("d0"), unlabel).await.unwrap();
        }
    }

    async fn others_greet(&self) -> [String; 2] {
        [self.greets("d1").await, self.greets("d2").await].map(Option::unwrap)
    }
}

#[tokio::test]
async fn who_failed_and_was_put_out_does_not_halt_a_rollout_again_that_a_person_resumed() {
    let strategy = json!({ "canary": { "size": "1", "soakSeconds": 60 }, "onFailure": "halt" });
    for way in ["retired", "unlabelled"] {
        for state in [State::Failed, State::RollingBack] {
            let world = World::plant(3).await;
            world.put("web", greeting("yo", Some(strategy.clone()))).await.unwrap();
            world.report_with("web", "d0", state, back).await;
            world.advance().await;
            assert_eq!(world.rollout().await.state, "halted", "{way} {state:?}");
            world.put_out(way).await;
            assert_eq!(world.hold(RolloutVerb::Resume).await.unwrap().state, "running", "{way} {state:?}");
            world.advance().await;
            assert_eq!(world.rollout().await.state, "running", "{way} {state:?}");
            assert_eq!(world.others_greet().await, ["yo", "yo"], "{way} {state:?}");
            assert_eq!(world.rollout().await.counts.failed, 0, "{way} {state:?}");
        }
        // The other way round it is the same.
        let world = World::plant(3).await;
        world.put("web", greeting("yo", Some(strategy.clone()))).await.unwrap();
        world.report_with("web", "d0", State::Failed, back).await;
        world.advance().await;
        world.hold(RolloutVerb::Resume).await.unwrap();
        world.put_out(way).await;
        world.advance().await;
        assert_eq!(
            (world.rollout().await.state.as_str(), world.others_greet().await),
            ("running", ["yo", "yo"].map(String::from)),
            "{way}"
        );
    }
}

#[tokio::test]
async fn who_failed_and_was_put_out_before_anybody_looked_has_proven_nothing() {
    let world = World::plant(3).await;
    world.put("web", greeting("yo", Some(json!({ "canary": { "size": "1" } })))).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    world.put_out("retired").await;
    world.advance().await;
    let rollout = world.rollout().await;
    let why = "nobody is left in batch 1 who could prove it; resume to go on without";
    assert_eq!((rollout.state.as_str(), rollout.reason.as_deref()), ("halted", Some(why)));
    assert_eq!(world.others_greet().await, ["hi", "hi"]);
    world.hold(RolloutVerb::Resume).await.unwrap();
    world.advance().await;
    assert_eq!(world.others_greet().await, ["yo", "yo"]);
}
