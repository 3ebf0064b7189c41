//! What `fleet.yaml` says for deployments that say nothing of it.

use margrave_wire::intent::{Apply, Plan};
use margrave_wire::rollout::StrategyBody;

use super::super::desired::Fetching;
use super::*;

const FLEET: &str = "apiVersion: margrave/v1
kind: Fleet
spec:
  strategy:
    batches: [\"1\"]
  rollback:
    attempts: 3
";

fn greeter(more: &str) -> String {
    format!(
        "apiVersion: margrave/v1\nkind: Deployment\nmetadata:\n  name: greeter\nspec:\n  package: hello\n  \
         version: 1.0.0\n  targets:\n    labels:\n      line: \"1\"\n{more}"
    )
}

impl World {
    async fn fleet_says(&self, text: &str) -> Result<(), Vec<String>> {
        let commit = self.by_hand(&[("fleet.yaml", Some(text))]).await;
        self.adopt(commit).await
    }

    /// Three devices of line 1.
    async fn line() -> World {
        let world = World::new().await;
        for device in ["a", "b", "c"] {
            world.device(device, &[("line", "1")]).await;
        }
        world
    }

    async fn strategy(&self, deployment: &str) -> StrategyBody {
        self.fleet.deployment(&name(deployment)).await.unwrap().strategy
    }

    async fn given_to(&self, devices: &[&str]) -> usize {
        let mut given = 0;
        for device in devices {
            given += self.workloads(device).await.len();
        }
        given
    }
}

#[tokio::test]
async fn a_deployment_that_says_none_takes_the_fleets_strategy_and_rollback() {
    let world = World::line().await;
    world.fleet_says(FLEET).await.unwrap();
    world.put("web", labelled("line", "1")).await.unwrap();
    assert_eq!(world.given_to(&["a", "b", "c"]).await, 1, "one batch of one");
    let shown = world.fleet.deployment(&name("web")).await.unwrap();
    assert_eq!(shown.strategy.batches, ["1"]);
    assert_eq!(shown.rollback.attempts, Some(3));
    // What is as usual is not said again.
    let text = world.file("deployments/web.yaml").await.unwrap();
    assert!(!text.contains("strategy") && !text.contains("rollback"), "{text}");

    // Who says otherwise is not touched by it.
    let mut all = labelled("line", "1");
    all.strategy = Some(StrategyBody::default());
    world.put("all", all).await.unwrap();
    assert_eq!(world.strategy("all").await, StrategyBody::default());
    let text = world.file("deployments/all.yaml").await.unwrap();
    assert!(text.contains("strategy: {}"), "{text}");

    // Neither a restart nor a lost repository forgets it, and a schedule of the fleet does not overwrite it.
    let world = world.restarted().await;
    let every = serde_json::from_value(json!({"pollEverySeconds": 60})).unwrap();
    world.fleet.put_schedule(&ann(), "fleet", &every).await.unwrap();
    let text = world.file("fleet.yaml").await.unwrap();
    assert!(
        text.contains("batches") && text.contains("attempts: 3") && text.contains("pollEverySeconds"),
        "{text}"
    );
    std::fs::remove_dir_all(world.data.path().join("intent.git")).unwrap();
    let world = world.restarted().await;
    let again = world.file("fleet.yaml").await.unwrap();
    assert_eq!(again, text);
}

#[tokio::test]
async fn files_that_leave_it_out_follow_when_the_fleet_says_otherwise() {
    let world = World::line().await;
    let silent = world.by_hand(&[("deployments/greeter.yaml", Some(&greeter("")))]).await;
    world.adopt(silent).await.unwrap();
    assert_eq!(world.strategy("greeter").await, StrategyBody::default());
    assert_eq!(world.given_to(&["a", "b", "c"]).await, 3);
    let spoken = greeter("  strategy: {}\n  rollback: {when: never}\n").replace("greeter", "own");
    let own = world.by_hand(&[("deployments/own.yaml", Some(&spoken))]).await;
    world.adopt(own).await.unwrap();
    for device in ["a", "b", "c"] {
        world.report("greeter", device, State::Installed).await;
    }

    // The same files come to the same, whichever was there first. That the policy is another goes in steps as well.
    let before = ["a", "b", "c"].map(|device| world.version(device));
    world.fleet_says(FLEET).await.unwrap();
    assert_eq!(world.strategy("greeter").await.batches, ["1"]);
    assert_eq!(world.strategy("own").await, StrategyBody::default());
    let after = ["a", "b", "c"].map(|device| world.version(device));
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert_eq!(changed, 1, "{before:?} {after:?}");
    // The file itself is as its writer left it.
    assert_eq!(world.file("deployments/greeter.yaml").await.unwrap(), greeter(""));

    // And back, when the fleet says nothing any more.
    let gone = world.by_hand(&[("fleet.yaml", None)]).await;
    world.adopt(gone).await.unwrap();
    assert_eq!(world.strategy("greeter").await, StrategyBody::default());
    assert_eq!(world.fleet.deployment(&name("own")).await.unwrap().rollback.when.as_deref(), Some("never"));
}

#[tokio::test]
async fn a_rollout_that_was_halted_stays_so_when_the_fleet_says_otherwise() {
    let world = World::line().await;
    world.fleet_says(FLEET).await.unwrap();
    let saying = |text: &str| greeter(&format!("  parameters:\n    greeting: {text}\n"));
    for text in ["hi", "yo"] {
        let said = world.by_hand(&[("deployments/greeter.yaml", Some(&saying(text)))]).await;
        world.adopt(said).await.unwrap();
        for device in ["a", "b", "c"].iter().filter(|_| text == "hi") {
            world.report("greeter", device, State::Installed).await;
            world.fleet.advance_rollouts().await.unwrap();
        }
    }
    world.report("greeter", "a", State::Failed).await;
    world.fleet.advance_rollouts().await.unwrap();
    let rollout = async || world.fleet.rollout(&name("greeter")).await.unwrap();
    let halted = rollout().await;
    assert_eq!(halted.state, "halted");

    let before = ["a", "b", "c"].map(|device| world.version(device));
    for (from, to) in [("attempts: 3", "attempts: 5"), ("[\"1\"]", "[\"2\"]")] {
        world.fleet_says(&FLEET.replace(from, to)).await.unwrap();
        world.fleet.advance_rollouts().await.unwrap();
        let after = rollout().await;
        assert_eq!((after.state.as_str(), &after.reason), ("halted", &halted.reason), "{to}");
        assert!(after.revision > halted.revision && after.before == halted.before, "{after:?}");
        assert_eq!(["a", "b", "c"].map(|device| world.version(device)), before, "{to}");
    }
    assert_eq!(world.strategy("greeter").await.batches, ["2"]);
    let world = world.restarted().await;
    for device in ["a", "b", "c"] {
        world.fleet.touched(&client(device));
    }
    world.fleet.hold_rollout(&ann(), &name("greeter"), RolloutVerb::Resume).await.unwrap();
    world.fleet.advance_rollouts().await.unwrap();
    let after = ["a", "b", "c"].map(|device| world.version(device));
    let changed: Vec<bool> = before.iter().zip(&after).map(|(before, after)| before != after).collect();
    // The first has it already; what it does when that fails is again as it was.
    assert_eq!(changed, [false, true, false], "in the steps that count now");
}

impl World {
    /// What an apply of this text of `fleet.yaml` would do.
    async fn plan_of(&self, text: &str) -> Plan {
        let want = Apply { documents: vec![text.to_owned()], dry_run: true, ..Apply::default() };
        self.fleet.apply_files(&ann(), &want, Fetching::Allowed).await.unwrap().plan.unwrap()
    }
}

#[tokio::test]
async fn a_plan_tells_of_a_stopped_rollout_that_it_stays_so_when_the_fleet_says_otherwise() {
    let world = World::line().await;
    world.fleet_says(FLEET).await.unwrap();
    for text in ["hi", "yo"] {
        let said = greeter(&format!("  parameters:\n    greeting: {text}\n"));
        let said = world.by_hand(&[("deployments/greeter.yaml", Some(&said))]).await;
        world.adopt(said).await.unwrap();
        for device in ["a", "b", "c"].iter().filter(|_| text == "hi") {
            world.report("greeter", device, State::Installed).await;
            world.fleet.advance_rollouts().await.unwrap();
        }
    }
    let hold = async |verb| world.fleet.hold_rollout(&ann(), &name("greeter"), verb).await.unwrap();
    // As soon as it runs, the next revision goes to the first of them with the change itself.
    let running = world.plan_of(&FLEET.replace("attempts: 3", "attempts: 5")).await;
    assert_eq!((running.rollouts[0].batches[0].now, &running.rollouts[0].stopped), (1, &None));
    hold(RolloutVerb::Pause).await;
    let before = ["a", "b", "c"].map(|device| world.version(device));
    let otherwise = FLEET.replace("attempts: 3", "attempts: 5").replace("[\"1\"]", "[\"2\"]");
    let plan = world.plan_of(&otherwise).await;
    let [rollout] = &plan.rollouts[..] else { panic!("{:?}", plan.rollouts) };
    assert_eq!(
        rollout.stopped.as_deref(),
        Some("the rollout was paused by operator ann; its devices wait until it is resumed")
    );
    let batches: Vec<(u32, Vec<&str>)> = rollout
        .batches
        .iter()
        .map(|batch| (batch.now, batch.first.iter().map(String::as_str).collect()))
        .collect();
    assert_eq!(batches, [(0, vec!["a", "b"]), (0, vec!["c"])], "nobody with the change itself");
    let changes: Vec<(&str, Option<u32>)> =
        plan.changes.iter().map(|change| (change.device.as_str(), change.batch)).collect();
    assert_eq!(changes, [("a", Some(1)), ("b", Some(1)), ("c", Some(2))], "and what they wait for");
    // What is told is what happens.
    world.fleet_says(&otherwise).await.unwrap();
    world.fleet.advance_rollouts().await.unwrap();
    assert_eq!(["a", "b", "c"].map(|device| world.version(device)), before);
    hold(RolloutVerb::Resume).await;
    world.fleet.advance_rollouts().await.unwrap();
    let changed = ["a", "b", "c"].map(|device| world.version(device));
    assert_eq!([0, 1, 2].map(|at| changed[at] != before[at]), [true, true, false]);

    // Of one that was aborted nobody further gets anything.
    hold(RolloutVerb::Abort).await;
    let plan = world.plan_of(&otherwise.replace("attempts: 5", "attempts: 7")).await;
    let stopped = plan.rollouts[0].stopped.as_deref();
    assert_eq!(stopped, Some("the rollout was aborted by operator ann, nobody further gets it"));
    assert!(plan.changes.is_empty() && plan.rollouts[0].batches.is_empty(), "{plan:?}");
}

#[tokio::test]
async fn what_is_wrong_with_it_is_told_with_its_line() {
    let world = World::line().await;
    let check = async |from: &str, to: &str, told: &str| {
        let flaws = world.fleet_says(&FLEET.replace(from, to)).await.unwrap_err();
        assert!(flaws[0].starts_with(told), "{flaws:?}");
    };
    check("[\"1\"]", "[\"none\"]", "fleet.yaml:5: ").await;
    check("attempts: 3", "attempts: 0", "fleet.yaml:6: ").await;
    check("attempts: 3", "attemps: 3", "fleet.yaml:7: ").await;
    check("strategy:", "strategie:", "fleet.yaml:4: ").await;
    assert_eq!(world.strategy_usual().await, StrategyBody::default(), "nothing of it was taken");
}

impl World {
    async fn strategy_usual(&self) -> StrategyBody {
        self.fleet.usual_care().await.unwrap().0
    }
}
