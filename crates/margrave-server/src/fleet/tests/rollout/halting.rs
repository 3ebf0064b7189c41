//! Rollouts that stop: halted, held and ended by people, or taken back by the server.

use super::*;

#[tokio::test]
async fn a_secret_that_goes_away_halts_a_rollout_and_leaves_nobody_out() {
    let world = World::plant(3).await;
    world.set("secrets/greeting", "yo");
    let mut want = greeting("", Some(json!({ "batches": ["1"] })));
    want.parameters.insert("greeting".into(), json!({ "secret": { "file": "greeting" } }));
    world.put("web", want).await.unwrap();
    assert_eq!(world.given(3).await, "yo hi hi");
    world.report("web", "d0", State::Installed).await;
    std::fs::remove_file(world.data.path().join("secrets/greeting")).unwrap();
    world.advance().await;
    world.advance().await;
    let rollout = world.rollout().await;
    assert_eq!(rollout.state, "halted");
    assert!(rollout.reason.as_deref().is_some_and(|why| why.contains("greeting")), "{rollout:?}");
    assert_eq!(counts(&rollout.counts), "3: 1 done 0 under way 2 waiting 0 not yet 0 never 0 failed");
    assert_eq!(world.given(3).await, "yo hi hi");
    world.set("secrets/greeting", "yo");
    world.hold(RolloutVerb::Resume).await.unwrap();
    for number in 1..3 {
        world.advance().await;
        world.report("web", &format!("d{number}"), State::Installed).await;
    }
    world.advance().await;
    assert_eq!((world.given(3).await.as_str(), world.rollout().await.state.as_str()), ("yo yo yo", "done"));
}

#[tokio::test]
async fn a_rollout_of_a_wrong_secret_halts_where_there_is_nothing_to_go_back_to() {
    let world = World::plant(2).await;
    let apply = async |secret: &str| {
        world.set("secrets/greeting", secret);
        let mut want = greeting("", Some(json!({ "batches": ["1"], "onFailure": "revert" })));
        want.parameters.insert("greeting".into(), json!({ "secret": { "file": "greeting" } }));
        world.put("web", want).await.unwrap();
    };
    apply("good").await;
    for number in 0..2 {
        world.report("web", &format!("d{number}"), State::Installed).await;
        world.advance().await;
    }
    assert_eq!(world.rollout().await.state, "done");
    apply("bad").await;
    world.report("web", "d0", State::Failed).await;
    for _ in 0..2 {
        world.advance().await;
        let rollout = world.rollout().await;
        assert_eq!((rollout.state.as_str(), rollout.revision), ("halted", 3));
        let why = rollout.reason.unwrap();
        let told = "could not go back to revision 2: revision 2 refers to the same secrets";
        assert!(why.contains(told) && why.contains("put the earlier value back"), "{why}");
    }
    assert_eq!(world.given(2).await, "bad good");
    // Once it is back, whoever got the wrong one goes back at once.
    apply("good").await;
    assert_eq!(world.given(2).await, "good good");
}

#[tokio::test]
async fn a_rollout_that_is_about_to_go_back_can_be_ended() {
    let world = World::plant(2).await;
    let strategy = json!({ "batches": ["1"], "onFailure": "revert" });
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    let world = world.cut_off_reverting().await;
    for verb in [RolloutVerb::Pause, RolloutVerb::Resume] {
        assert!(matches!(world.hold(verb).await.unwrap_err(), Error::Conflict { .. }));
    }
    assert_eq!(world.hold(RolloutVerb::Abort).await.unwrap().state, "aborted");
    world.advance().await;
    assert_eq!((world.given(2).await.as_str(), world.rollout().await.revision), ("yo hi", 2));
}

#[tokio::test]
async fn failures_halt_and_a_person_lets_it_go_on() {
    let world = World::plant(4).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["2"] })))).await.unwrap();
    world.report("web", "d0", State::Installed).await;
    world.report("web", "d1", State::Failed).await;
    world.advance().await;
    let rollout = world.rollout().await;
    assert_eq!(rollout.state, "halted");
    let why = "1 device of batch 1 failed, and 2 of 2 must have it installed";
    assert_eq!(rollout.reason.as_deref(), Some(why));
    // It stays halted, also when the device gets well: a person has to look.
    world.report("web", "d1", State::Installed).await;
    world.report("web", "d1", State::Failed).await;
    world.advance().await;
    assert_eq!(world.given(4).await, "yo yo hi hi");
    assert!(world.hold(RolloutVerb::Pause).await.is_err(), "it is not running");
    assert_eq!(world.hold(RolloutVerb::Resume).await.unwrap().state, "running");
    world.advance().await;
    assert_eq!(world.given(4).await, "yo yo yo yo", "that one is forgiven");
    world.report("web", "d2", State::Failed).await;
    world.advance().await;
    assert_eq!(world.rollout().await.state, "halted", "and another one is not");
}

#[tokio::test]
async fn failures_revert_at_once_by_the_server_and_a_crash_in_between_changes_nothing() {
    let world = World::plant(4).await;
    let strategy = json!({ "batches": ["2"], "onFailure": "revert" });
    world.put("web", greeting("yo", Some(strategy.clone()))).await.unwrap();
    world.report("web", "d0", State::Installed).await;
    world.report("web", "d1", State::Failed).await;
    let world = world.cut_off_reverting().await;
    assert_eq!(world.rollout().await.state, "reverting");
    world.advance().await;
    assert_eq!(world.given(4).await, "hi hi hi hi");
    let deployment = world.fleet.deployment(&name("web")).await.unwrap();
    assert_eq!((deployment.revision, deployment.changed_by.as_str()), (3, "server"));
    assert!(deployment.rollout.is_none(), "the way back is not made in steps");
    // Once is enough.
    world.advance().await;
    assert_eq!(world.fleet.revisions(&name("web")).await.unwrap().len(), 3);
}

#[tokio::test]
async fn the_whole_way_back_happens_by_itself() {
    let world = World::plant(3).await;
    let paced = json!({ "batches": ["1"] });
    world.put("web", greeting("hi", Some(paced.clone()))).await.unwrap();
    assert!(world.fleet.deployment(&name("web")).await.unwrap().rollout.is_none(), "nobody needs anything");
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"], "onFailure": "revert" })))).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    assert_eq!(world.given(3).await, "hi hi hi");
    assert_eq!(world.rollout_kinds().await, ["rollout.reverting"]);
    let message = world.fleet.intent().await.unwrap().message.unwrap();
    let (subject, reason) = message.split_once("\n\n").unwrap();
    assert!(subject.starts_with("Revert web"), "{message}");
    assert!(reason.contains("revision 3 was halted: 1 device of batch 1 failed"), "{message}");
    let deployment = world.fleet.deployment(&name("web")).await.unwrap();
    assert_eq!(serde_json::to_value(&deployment.strategy).unwrap(), paced, "that of the revision before");
    // The next change goes in steps again.
    world.report("web", "d0", State::Installed).await;
    world.put("web", greeting("hej", None)).await.unwrap();
    assert_eq!(world.given(3).await, "hej hi hi");
    // It fails as well, and there is a revision before it; by hand this time, and at once.
    world.put("web", greeting("hola", None)).await.unwrap();
    assert_eq!(world.given(3).await, "hola hi hi", "who was not reached goes directly to the newest");
    world.fleet.revert(&ann(), &name("web"), 4, None).await.unwrap();
    assert_eq!(world.given(3).await, "hi hi hi");
    assert_eq!(world.rollout().await.state, "running", "d0 has not said so yet");
}

#[tokio::test]
async fn the_next_change_after_the_server_went_back_says_that_it_goes_to_all_at_once() {
    let world = World::plant(3).await;
    let steps = json!({ "batches": ["1"], "onFailure": "revert" });
    world.put("web", greeting("yo", Some(steps.clone()))).await.unwrap();
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    world.advance().await;
    let back = world.fleet.deployment(&name("web")).await.unwrap();
    assert_eq!((back.changed_by.as_str(), &back.strategy), ("server", &Default::default()));
    let kinds = |told: &[operator::Warning]| told.iter().filter(|told| told.kind == "allAtOnce").count();
    for (strategy, told) in [(None, 1), (Some(steps), 0)] {
        let want = greeting("fix", strategy);
        let plan = world.fleet.rehearse_deployment(&ann(), &name("web"), want).await.unwrap();
        assert_eq!(kinds(&plan.warnings), told, "{:?}", plan.warnings);
    }
    let fixed = world.put("web", greeting("fix", None)).await.unwrap();
    assert_eq!(kinds(&fixed.warnings), 1, "{:?}", fixed.warnings);
    // Whoever was told once knows.
    let again = world.put("web", greeting("more", None)).await.unwrap();
    assert_eq!(kinds(&again.warnings), 0, "{:?}", again.warnings);
}

#[tokio::test]
async fn a_first_revision_has_nothing_to_go_back_to() {
    let world = World::new().await;
    for device in ["d0", "d1"] {
        world.device(device, &[("plant", "a")]).await;
    }
    let strategy = json!({ "batches": ["1"], "onFailure": "revert" });
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    assert_eq!(world.given(2).await, "yo -");
    world.report("web", "d0", State::Failed).await;
    world.advance().await;
    let rollout = world.rollout().await;
    assert_eq!(rollout.state, "halted");
    assert!(rollout.reason.unwrap().ends_with("there is no revision before to go back to"));
}

#[tokio::test]
async fn while_it_is_held_nobody_new_is_released_and_who_comes_stands_at_the_end() {
    let world = World::plant(3).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"] })))).await.unwrap();
    assert_eq!(world.hold(RolloutVerb::Pause).await.unwrap().state, "paused");
    assert_eq!(world.hold(RolloutVerb::Pause).await.unwrap().state, "paused", "twice is as good as once");
    world.report("web", "d0", State::Installed).await;
    // It sorts before all others, and comes last all the same.
    world.device("a-new", &[("plant", "a")]).await;
    world.advance().await;
    assert_eq!(world.given(3).await, "yo hi hi");
    assert_eq!(
        world.greets("a-new").await.as_deref(),
        Some("hi"),
        "meanwhile it has what others have that wait"
    );
    world.report("web", "a-new", State::Installed).await;
    let why = world.fleet.why("a-new/web").await.unwrap();
    assert_eq!(why.chain[0].text, "web on a-new waits for its turn in batch 4, keeps revision 1");
    assert_eq!(why.chain[1].text, "the rollout was paused by operator ann");
    // What a device has it keeps, whatever else changes about it.
    world.says("d2", "8Gi", &["compose"]).await;
    assert_eq!(world.given(3).await, "yo hi hi");
    world.hold(RolloutVerb::Resume).await.unwrap();
    for device in ["d1", "d2"] {
        world.advance().await;
        assert_eq!(world.greets(device).await.as_deref(), Some("yo"));
        world.report("web", device, State::Installed).await;
    }
    assert_eq!(world.greets("a-new").await.as_deref(), Some("hi"));
    world.advance().await;
    assert_eq!(world.greets("a-new").await.as_deref(), Some("yo"));
    world.report("web", "a-new", State::Installed).await;
    world.advance().await;
    assert_eq!(world.rollout().await.state, "done");
    assert!(world.hold(RolloutVerb::Abort).await.is_err());
}

#[tokio::test]
async fn aborted_means_nobody_further_and_a_new_revision_begins_anew() {
    let world = World::plant(3).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"] })))).await.unwrap();
    let aborted = world.hold(RolloutVerb::Abort).await.unwrap();
    assert_eq!(
        (aborted.state.as_str(), aborted.reason.as_deref()),
        ("aborted", Some("2 devices keep what they had"))
    );
    world.report("web", "d0", State::Installed).await;
    world.advance().await;
    assert_eq!(world.given(3).await, "yo hi hi");
    assert!(world.hold(RolloutVerb::Resume).await.is_err());
    world.put("web", greeting("hej", Some(json!({})))).await.unwrap();
    assert_eq!(world.given(3).await, "hej hej hej", "all at once, as was said");
    assert!(world.hold(RolloutVerb::Pause).await.is_err(), "there is nothing to pause");
    world.fleet.remove_deployment(&ann(), &name("web"), None).await.unwrap();
    assert!(matches!(world.fleet.rollout(&name("web")).await, Err(Error::NotFound { .. })));
    assert!(world.fleet.store.rollouts_open().await.unwrap().is_empty());
}

#[tokio::test]
async fn who_is_retired_and_accepted_again_waits_for_its_turn_with_what_it_had() {
    for was_retired_before in [false, true] {
        let world = World::plant(3).await;
        let retire = async || world.fleet.retire(&ann(), &device("d2")).await.unwrap();
        if was_retired_before {
            retire().await;
        }
        world.put("web", greeting("yo", Some(json!({ "batches": ["1"] })))).await.unwrap();
        world.hold(RolloutVerb::Pause).await.unwrap();
        if !was_retired_before {
            retire().await;
        }
        world.fleet.accept(&ann(), &device("d2")).await.unwrap();
        world.fleet.touched(&client("d2"));
        assert_eq!(world.given(3).await, "yo hi hi", "{was_retired_before}");
        let why = world.fleet.why("d2/web").await.unwrap();
        assert_eq!(why.chain[0].text, "web on d2 waits for its turn in batch 3, keeps revision 1");
        // It is still what the device has, and counts so.
        assert_eq!(world.assignment("web", "d2").await.state, "INSTALLED");
        world.hold(RolloutVerb::Resume).await.unwrap();
        for on in ["d0", "d1", "d2"] {
            world.advance().await;
            assert_eq!(world.greets(on).await.as_deref(), Some("yo"), "{on}");
            world.report("web", on, State::Installed).await;
        }
        world.advance().await;
        assert_eq!(world.rollout().await.state, "done");
    }
}

#[tokio::test]
async fn who_comes_while_a_rollout_is_open_has_the_revision_before_if_that_was_meant_for_it() {
    let world = World::plant(2).await;
    let mut wider = greeting("yo", Some(json!({ "batches": ["1"] })));
    wider.targets.sites = vec!["west".into()];
    world.put("web", wider).await.unwrap();
    world.device("in-west", &[("site", "west")]).await;
    assert_eq!(world.greets("in-west").await, None, "revision 1 was never meant for it");
    world.device("new", &[("plant", "a")]).await;
    assert_eq!(world.greets("new").await.as_deref(), Some("hi"));
    world.hold(RolloutVerb::Abort).await.unwrap();
    world.device("newer", &[("plant", "a")]).await;
    assert_eq!(world.greets("newer").await.as_deref(), Some("hi"));
    world.report("web", "new", State::Installed).await;
    world.says("new", "32Gi", &["compose"]).await;
    world.advance().await;
    assert_eq!(
        (world.greets("new").await.as_deref(), world.greets("d1").await.as_deref()),
        (Some("hi"), Some("hi"))
    );
    let why = world.fleet.why("new/web").await.unwrap();
    assert_eq!(why.chain[0].text, "web on new keeps revision 1: the rollout of revision 2 was aborted");
    // It is as much a device of the deployment as any other.
    world.put("web", greeting("hej", Some(json!({})))).await.unwrap();
    for on in ["d0", "d1", "new", "newer"] {
        assert_eq!(world.greets(on).await.as_deref(), Some("hej"), "{on}");
    }
}
