//! Rollouts that do not go on.

use margrave_core::report::FailureCode;

use super::*;

async fn plant(strategy: serde_json::Value) -> World {
    let world = World::new().await;
    for number in 0..4 {
        let site = if number % 2 == 0 { "nord" } else { "sued" };
        world.device(&format!("d{number}"), &[("line", "1"), ("site", site)]).await;
    }
    world.put("web", greeting("hi")).await.unwrap();
    for number in 0..4 {
        world.report("web", &format!("d{number}"), State::Installed).await;
    }
    let mut want = greeting("yo");
    want.strategy = Some(serde_json::from_value(strategy).unwrap());
    world.put("web", want).await.unwrap();
    world
}

impl World {
    async fn hold_web(&self, verb: RolloutVerb) {
        self.fleet.hold_rollout(&ann(), &name("web"), verb).await.unwrap();
    }

    async fn step(&self) {
        self.fleet.advance_rollouts().await.unwrap();
    }
}

pub(super) async fn provoke(catalogue: &mut Catalogue) {
    batches(catalogue).await;
    stops(catalogue).await;
    absences(catalogue).await;
}

async fn batches(catalogue: &mut Catalogue) {
    let pull = Code::Failure(FailureCode::PullFailed);
    let world = plant(json!({ "batches": ["1"], "onFailure": "halt" })).await;
    world.version("d0");
    world.report("web", "d0", State::Updating).await;
    let why = catalogue.rollout(&world, "a batch that is at it", "web", Code::Updating).await;
    assert_eq!(codes(&why), ["rollout-batch", "updating"]);
    let why = catalogue.device(&world, "its batch has not come", "d3/web", Code::Updating).await;
    assert_eq!(codes(&why), ["rollout-waiting", "rollout-batch", "updating"]);
    world.report("web", "d0", State::Failed).await;
    world.step().await;
    let why = catalogue.rollout(&world, "halted by a failure", "web", pull).await;
    assert_eq!(codes(&why), ["rollout-halted", "given-up", "pull-failed"]);
    catalogue.deployment(&world, "a deployment whose rollout halted", "web", pull).await;
    catalogue.device(&world, "waits behind a halted rollout", "d2/web", pull).await;
    world.report("web", "d0", State::Installed).await;
    catalogue.rollout(&world, "halted, and the culprit is well again", "web", Code::RolloutHalted).await;

    let world = plant(json!({ "canary": { "size": "1", "soakSeconds": 3600 } })).await;
    world.report("web", "d0", State::Installed).await;
    world.step().await;
    catalogue.rollout(&world, "the canary is watched", "web", Code::RolloutSoaking).await;
    catalogue.device(&world, "waits for the canary", "d1", Code::RolloutSoaking).await;
    catalogue.deployment(&world, "a deployment in its soak", "web", Code::RolloutSoaking).await;
    world.pass(7200);
    for on in ["d1", "d2", "d3"] {
        world.fleet.touched(&client(on));
    }
    world.step().await;
    let why = catalogue.rollout(&world, "the canary was not heard of again", "web", Code::Silent).await;
    assert_eq!(codes(&why), ["rollout-unheard", "silent"]);
    catalogue.device(&world, "waits for a canary that is gone", "d1/web", Code::Silent).await;
    world.fleet.touched(&client("d0"));
    world.step().await;
    catalogue.rollout(&world, "the canary is heard out", "web", Code::RolloutSoaking).await;

    let world = plant(json!({ "batches": ["1"] })).await;
    world.report("web", "d0", State::Installed).await;
    // Nobody has looked yet.
    catalogue.device(&world, "about to be released", "d1/web", Code::RolloutTurn).await;
}

async fn stops(catalogue: &mut Catalogue) {
    let world = plant(json!({ "batches": ["1"] })).await;
    world.hold_web(RolloutVerb::Pause).await;
    catalogue.rollout(&world, "paused by a person", "web", Code::RolloutPaused).await;
    let why = catalogue.device(&world, "waits in a paused rollout", "d2/web", Code::RolloutPaused).await;
    assert!(why.chain[1].hint.as_ref().unwrap().contains("margrave rollout resume web"), "{why:?}");
    world.hold_web(RolloutVerb::Abort).await;
    catalogue.rollout(&world, "aborted by a person", "web", Code::RolloutAborted).await;

    let world = plant(json!({ "batches": ["1"], "onFailure": "revert" })).await.cut_off_reverting().await;
    catalogue.rollout(&world, "about to be reverted", "web", Code::RolloutReverting).await;
}

async fn absences(catalogue: &mut Catalogue) {
    let world = plant(json!({ "maxUnavailablePerSite": "1" })).await;
    world.version("d1");
    world.report("web", "d1", State::Updating).await;
    world.report("web", "d0", State::Installed).await;
    world.step().await;
    let why = catalogue.device(&world, "its site has enough devices down", "d3/web", Code::Updating).await;
    assert_eq!(codes(&why), ["rollout-waiting", "rollout-site-full", "updating"]);

    let world = plant(json!({ "batches": ["3"] })).await;
    world.pass(600);
    for on in ["d0", "d1", "d2"] {
        world.report("web", on, State::Installed).await;
    }
    world.step().await;
    let why = catalogue.rollout(&world, "only a device that is away is left", "web", Code::Silent).await;
    assert_eq!(codes(&why), ["rollout-not-yet", "silent"]);
    catalogue.device(&world, "not yet, because it is away", "d3/web", Code::Silent).await;
    world.join("odd", LINE).await;
    world.says("odd", "128Mi", &["compose"]).await;
    world.step().await;
    let why = catalogue.deployment(&world, "never, because it does not fit", "web", Code::Misfit).await;
    let groups: Vec<(&str, &str)> =
        why.groups.iter().map(|group| (group.code.as_str(), group.example.as_str())).collect();
    assert_eq!(groups, [("misfit", "odd"), ("rollout-not-yet", "d3")], "two words for two things");
}
