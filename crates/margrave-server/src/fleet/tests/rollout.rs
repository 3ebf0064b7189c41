//! Rollouts: a revision in steps, on a real store, with a clock that tests turn.

mod failing;
mod going_back;
mod halting;
mod joining;
mod replacing;
mod soaking;

use margrave_store::{Intent, Publication, RolloutState, RolloutUpdate};
use margrave_wire::rollout::{Rollout, RolloutCounts};

use super::super::intent::Change;
use super::*;

/// Hello with this greeting on all devices of the plant, in the steps of `strategy`.
fn greeting(text: &str, strategy: Option<serde_json::Value>) -> operator::PutDeployment {
    let mut want = labelled("plant", "a");
    want.parameters.insert("greeting".into(), json!(text));
    want.strategy = strategy.map(|strategy| serde_json::from_value(strategy).unwrap());
    want
}

impl World {
    /// The power goes when it is written down that the deployment `web` goes back, and nothing else; and comes again.
    pub(super) async fn cut_off_reverting(self) -> World {
        let id = self.fleet.store.deployment(&name("web")).await.unwrap().unwrap().deployment.id;
        let rollout = self.fleet.store.rollout(id).await.unwrap().unwrap();
        let update = RolloutUpdate {
            deployment: id,
            revision: 2,
            from: vec![RolloutState::Running],
            to: RolloutState::Reverting,
            why: Some("so".into()),
            reached: rollout.reached,
            forgiven: vec![],
            at: Moment(START),
            by: Some("server".into()),
            event: None,
        };
        assert!(self.fleet.store.update_rollout(update).await.unwrap());
        self.restarted().await
    }

    /// So many devices that run `hi`; those with even numbers are in the north.
    async fn plant(devices: usize) -> World {
        let world = World::new().await;
        for number in 0..devices {
            let site = if number % 2 == 0 { "nord" } else { "sued" };
            world.device(&format!("d{number}"), &[("plant", "a"), ("site", site)]).await;
        }
        world.put("web", greeting("hi", None)).await.unwrap();
        for number in 0..devices {
            world.report("web", &format!("d{number}"), State::Installed).await;
        }
        world
    }

    async fn greets(&self, on: &str) -> Option<String> {
        let workloads = self.workloads(on).await;
        let workload = workloads.first()?;
        let values = workload.values_for(&workload.components[0].name);
        values.filter(|(pointer, _)| *pointer == "GREETING").map(|(_, value)| value.to_string()).next()
    }

    /// What each of the plant's devices is given: `d0=hi d1=yo d2=-`.
    async fn given(&self, devices: usize) -> String {
        let mut given = Vec::new();
        for number in 0..devices {
            let greets = self.greets(&format!("d{number}")).await;
            given.push(greets.unwrap_or_else(|| "-".into()));
        }
        given.join(" ")
    }

    async fn rollout(&self) -> Rollout {
        self.fleet.rollout(&name("web")).await.unwrap()
    }

    async fn hold(&self, verb: RolloutVerb) -> Result<Rollout, Error> {
        self.fleet.hold_rollout(&ann(), &name("web"), verb).await
    }

    async fn advance(&self) {
        self.fleet.advance_rollouts().await.unwrap();
    }

    /// All devices are in contact.
    fn all_touched(&self, devices: usize) {
        (0..devices).for_each(|number| self.fleet.touched(&client(&format!("d{number}"))));
    }

    async fn rollout_kinds(&self) -> Vec<String> {
        let events = self.fleet.store.events_after(0, 1000).await.unwrap();
        events.into_iter().map(|event| event.kind).filter(|kind| kind.starts_with("rollout")).collect()
    }
}

fn counts(counts: &RolloutCounts) -> String {
    let RolloutCounts { total, done, under_way, waiting, not_yet, never, failed } = counts;
    format!(
        "{total}: {done} done {under_way} under way {waiting} waiting {not_yet} not yet {never} never {failed} failed"
    )
}

#[tokio::test]
async fn a_revision_goes_from_batch_to_batch_as_devices_report() {
    let world = World::plant(5).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["2"] })))).await.unwrap();
    assert_eq!(world.given(5).await, "yo yo hi hi hi");
    let rollout = world.rollout().await;
    assert_eq!((rollout.state.as_str(), rollout.revision, rollout.before), ("running", 2, Some(1)));
    assert_eq!(counts(&rollout.counts), "5: 0 done 2 under way 3 waiting 0 not yet 0 never 0 failed");
    assert_eq!((rollout.batch, rollout.batches_total), (1, 3));

    world.advance().await;
    world.report("web", "d0", State::Installed).await;
    world.advance().await;
    assert_eq!(world.given(5).await, "yo yo hi hi hi", "one of the batch is not there yet");
    world.report("web", "d1", State::Installed).await;
    world.advance().await;
    assert_eq!(world.given(5).await, "yo yo yo yo hi");
    let versions = [0, 4].map(|number| world.version(&format!("d{number}")));
    world.advance().await;
    assert_eq!(
        [0, 4].map(|number| world.version(&format!("d{number}"))),
        versions,
        "looking changes nothing"
    );
    for device in ["d2", "d3"] {
        world.report("web", device, State::Installed).await;
    }
    world.advance().await;
    assert_eq!(world.given(5).await, "yo yo yo yo yo");
    assert_eq!(world.rollout().await.state, "running");
    world.report("web", "d4", State::Installed).await;
    world.advance().await;
    assert_eq!(world.rollout().await.state, "done");
    assert_eq!(world.rollout_kinds().await, ["rollout.released", "rollout.released", "rollout.done"]);
    // What comes after the end gets it at once.
    world.device("late", &[("plant", "a")]).await;
    assert_eq!(world.greets("late").await.as_deref(), Some("yo"));
}

#[tokio::test]
async fn canaries_are_watched_for_as_long_as_was_said() {
    let world = World::plant(4).await;
    let strategy = json!({ "canary": { "size": "1", "labels": { "site": "sued" }, "soakSeconds": 60 } });
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    assert_eq!(world.given(4).await, "hi yo hi hi", "the first in the south");
    world.report("web", "d1", State::Installed).await;
    world.advance().await;
    let rollout = world.rollout().await;
    assert_eq!((rollout.state.as_str(), rollout.until.is_some()), ("waiting", true));
    assert!(rollout.reason.unwrap().starts_with("batch 1 is good, and is watched until 20"));
    let why = world.fleet.why("d0/web").await.unwrap();
    assert!(!why.converged);
    assert_eq!(why.chain[0].text, "web on d0 waits for its turn in batch 2, keeps revision 1");
    assert!(why.chain[1].text.starts_with("batch 1 is good, and is watched until"), "{:?}", why.chain);
    let of_device = world.fleet.why("d0").await.unwrap();
    assert_eq!(of_device.chain.last().unwrap().code, "rollout-soaking");
    world.pass(59);
    world.advance().await;
    assert_eq!(world.given(4).await, "hi yo hi hi");
    world.pass(2);
    world.all_touched(4);
    world.advance().await;
    world.pass(10);
    world.advance().await;
    assert_eq!(world.given(4).await, "yo yo yo yo");
}

#[tokio::test]
async fn silent_devices_are_not_yet_and_unfit_ones_never() {
    let world = World::plant(3).await;
    world.join("unread", &[("plant", "a")]).await;
    world.device("odd", &[("plant", "a")]).await;
    world.says("odd", "4Gi", &["none"]).await;
    world.pass(300);
    for device in ["d1", "unread", "odd"] {
        world.fleet.touched(&client(device));
    }
    world.put("web", greeting("yo", Some(json!({ "batches": ["2", "1"] })))).await.unwrap();
    assert_eq!(world.given(3).await, "hi yo hi", "who is silent is not released");
    let rollout = world.rollout().await;
    assert_eq!(
        counts(&rollout.batches[0].counts),
        "2: 0 done 1 under way 0 waiting 1 not yet 0 never 0 failed"
    );
    assert_eq!(counts(&rollout.counts), "5: 0 done 1 under way 0 waiting 3 not yet 1 never 0 failed");
    let shown = world.fleet.deployment_counted(&name("web")).await.unwrap().counts;
    assert_eq!((shown.not_yet, shown.states["NOTYET"], shown.states.values().sum()), (2, 2, shown.total));
    world.report("web", "d1", State::Installed).await;
    world.fleet.touched(&client("d2"));
    world.advance().await;
    assert_eq!(world.given(3).await, "hi yo yo", "one that is silent stops nobody");
    world.report("web", "d2", State::Installed).await;
    world.advance().await;
    let rollout = world.rollout().await;
    assert_eq!(rollout.state, "waiting");
    assert_eq!(rollout.reason.unwrap(), "1 device not in contact; each gets its turn when it is back");
    world.fleet.touched(&client("d0"));
    world.advance().await;
    assert_eq!(world.given(3).await, "yo yo yo");
    world.report("web", "d0", State::Installed).await;
    world.advance().await;
    assert_eq!(world.rollout().await.state, "done");
}

#[tokio::test]
async fn a_site_keeps_most_of_its_devices() {
    let world = World::plant(4).await;
    world.put("web", greeting("yo", Some(json!({ "maxUnavailablePerSite": "1" })))).await.unwrap();
    assert_eq!(world.given(4).await, "yo yo hi hi", "one of each site");
    world.report("web", "d1", State::Updating).await;
    world.report("web", "d0", State::Installed).await;
    world.advance().await;
    assert_eq!(world.given(4).await, "yo yo yo hi");
    assert!(world.fleet.why("d3/web").await.unwrap().chain[1].text.contains("its site has as many"));
}

#[tokio::test]
async fn a_device_that_refuses_is_never_and_no_reason_to_halt() {
    let world = World::plant(3).await;
    let strategy = json!({ "batches": ["1"], "onFailure": "halt" });
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    assert_eq!(world.given(3).await, "yo hi hi");
    let refuse = |code: &'static str| {
        move |report: &mut Report| {
            let (source, message) = ("agent".to_owned(), "no".to_owned());
            report.fault = Some(Fault { code: code.to_owned(), source, message });
        }
    };
    world.report_with("web", "d0", State::Failed, refuse("not-eligible")).await;
    world.advance().await;
    assert_eq!(world.given(3).await, "yo yo hi", "nothing broke");
    let rollout = world.rollout().await;
    assert_eq!((rollout.counts.never, rollout.counts.failed), (1, 0), "{rollout:?}");
    let shown = world.fleet.deployments().await.unwrap().remove(0).counts;
    assert_eq!((shown.never, shown.failed, shown.states["NEVER"]), (1, 1, 1), "{shown:?}");
    assert_eq!(world.fleet.status().await.unwrap().assignments["NEVER"], 1);
    // An archive that is not sound is nothing about the device.
    world.report_with("web", "d1", State::Failed, refuse("archive-invalid")).await;
    world.advance().await;
    assert_eq!(world.rollout().await.state, "halted");
}

#[tokio::test]
async fn who_waits_for_its_turn_is_not_as_wanted_and_says_so_everywhere_in_the_same_words() {
    let world = World::plant(4).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"] })))).await.unwrap();
    world.report("web", "d0", State::Installed).await;
    world.hold(RolloutVerb::Pause).await.unwrap();
    let words = "web on d2 waits for its turn in batch 3, keeps revision 1";
    // The fleet, the deployment and its list.
    let status = world.fleet.status().await.unwrap();
    assert_eq!((status.devices.converged, status.devices.pending), (1, 3));
    assert_eq!((status.assignments["INSTALLED"], status.assignments["WAITING"]), (1, 3));
    let deployment = world.fleet.deployment(&name("web")).await.unwrap();
    let counts = &deployment.counts;
    assert_eq!((counts.converged, counts.total, counts.pending, counts.waiting), (1, 4, 3, 3));
    assert_eq!(counts, &world.fleet.deployments().await.unwrap()[0].counts);
    let (glimpsed, _) = world.fleet.deployment_glimpsed(&name("web"), 200).await.unwrap();
    assert_eq!((&glimpsed.counts, glimpsed.assignments.len()), (counts, 4));
    // The assignment and the device: as rows, and when asked why.
    for shown in [&deployment, &glimpsed] {
        let row = shown.assignments.iter().find(|row| row.device == "d2").unwrap();
        let waiting = row.waiting.as_ref().unwrap();
        assert_eq!((waiting.word.as_str(), waiting.keeps, waiting.batch), ("waiting", Some(1), 3));
        assert_eq!(
            (row.state.as_str(), row.current, row.reason.as_deref()),
            ("INSTALLED", false, Some(words))
        );
        assert!(
            shown.assignments.iter().any(|row| row.device == "d0" && row.current && row.waiting.is_none())
        );
    }
    let device = world.fleet.device(&DeviceRef::parse("d2").unwrap()).await.unwrap();
    assert_eq!((device.condition.as_str(), device.reason.as_deref()), ("pending", Some(words)));
    for subject in ["d2", "d2/web"] {
        let why = world.fleet.why(subject).await.unwrap();
        let codes: Vec<&str> = why.chain.iter().map(|cause| cause.code.as_str()).collect();
        assert_eq!((why.converged, codes), (false, vec!["rollout-waiting", "rollout-paused"]), "{subject}");
        assert_eq!(why.chain[0].text, words, "{subject}");
    }
    let [glimpse] = world.fleet.rollouts_glimpsed().await.unwrap().try_into().ok().unwrap();
    assert!(glimpse.needs_a_person());
    assert_eq!((glimpse.batch, glimpse.batches_total, glimpse.counts.converged), (1, 4, 1));
    // What is aborted leaves them behind, and goes on saying so.
    world.hold(RolloutVerb::Abort).await.unwrap();
    let deployment = world.fleet.deployment(&name("web")).await.unwrap();
    assert_eq!((deployment.counts.waiting, deployment.counts.left_behind), (0, 3));
    let [glimpse] = world.fleet.rollouts_glimpsed().await.unwrap().try_into().ok().unwrap();
    assert!(glimpse.left_behind() && !glimpse.needs_a_person());
    let row = deployment.assignments.iter().find(|row| row.device == "d2").unwrap();
    assert_eq!(row.waiting.as_ref().unwrap().word, "left-behind");
    let words = "web on d2 keeps revision 1: the rollout of revision 2 was aborted";
    assert_eq!(row.reason.as_deref(), Some(words));
    let why = world.fleet.why("d2").await.unwrap();
    assert_eq!((why.converged, why.chain[0].text.as_str()), (false, words));
    assert_eq!(world.fleet.status().await.unwrap().devices.converged, 1);
    // Who was passed over twice keeps what it had at first.
    world.put("web", greeting("hej", Some(json!({ "batches": ["1"] })))).await.unwrap();
    let shown = world.fleet.deployment(&name("web")).await.unwrap();
    let keeps = |on: &str| {
        let row = shown.assignments.iter().find(|row| row.device == on).unwrap();
        row.waiting.as_ref().map(|waiting| waiting.keeps)
    };
    assert_eq!([keeps("d0"), keeps("d1"), keeps("d2")], [None, Some(Some(1)), Some(Some(1))]);
    assert!(world.fleet.deployment(&name("web")).await.unwrap().counts.left_behind == 0);
}

#[tokio::test]
async fn who_waits_for_a_first_revision_is_in_the_table_and_the_tally() {
    let world = World::plant(2).await;
    let mut want = greeting("yo", Some(json!({ "batches": ["1"] })));
    want.package = "hello".into();
    world.put("new", want).await.unwrap();
    let (shown, _) = world.fleet.deployment_glimpsed(&name("new"), 200).await.unwrap();
    assert_eq!((shown.counts.total, shown.counts.waiting, shown.assignments.len()), (2, 1, 2));
    let row = shown.assignments.iter().find(|row| row.device == "d1").unwrap();
    assert_eq!(
        (row.state.as_str(), row.reason.as_deref()),
        ("PENDING", Some("new waits for the turn of d1 in batch 2"))
    );
    let device = world.fleet.device(&DeviceRef::parse("d1").unwrap()).await.unwrap();
    assert_eq!((device.condition.as_str(), device.assignments.len()), ("pending", 2));
    let why = world.fleet.why("d1").await.unwrap();
    assert_eq!((why.converged, why.chain[0].code.as_str()), (false, "rollout-waiting"));
    // Not meant for it any more: it waits for nothing.
    let unlabel = operator::SetLabels { labels: [("plant".to_owned(), None)].into() };
    world.fleet.label(&ann(), &DeviceRef::parse("d1").unwrap(), unlabel).await.unwrap();
    let counts = world.fleet.deployment_counted(&name("new")).await.unwrap().counts;
    assert_eq!((counts.total, counts.waiting), (1, 0));
}

#[tokio::test]
async fn a_device_that_leaves_is_waited_for_no_more() {
    let world = World::plant(3).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["2"] })))).await.unwrap();
    world.report("web", "d0", State::Installed).await;
    let unlabel = operator::SetLabels { labels: [("plant".to_owned(), None)].into() };
    world.fleet.label(&ann(), &device("d1"), unlabel).await.unwrap();
    world.advance().await;
    assert_eq!(world.given(3).await, "yo - yo");
    world.fleet.retire(&ann(), &device("d2")).await.unwrap();
    world.advance().await;
    assert_eq!(world.rollout().await.state, "done");
}

/// The same story, with the server killed after every step of it, ends the same.
#[tokio::test]
async fn killed_at_any_moment_it_goes_on() {
    let mut world = World::plant(5).await;
    let strategy = json!({
        "canary": { "size": "1", "soakSeconds": 30 }, "batches": ["2"], "maxUnavailablePerSite": "1",
        "threshold": "50%",
    });
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..60 {
        world = world.restarted().await;
        world.all_touched(5);
        let given = world.given(5).await;
        if seen.last() != Some(&given) {
            seen.push(given);
        }
        if world.rollout().await.state == "done" {
            break;
        }
        // One device a step gets on with what it has.
        let deployment = world.fleet.deployment(&name("web")).await.unwrap();
        let behind = deployment.assignments.iter().find(|held| !(held.state == "INSTALLED" && held.current));
        if let Some(behind) = behind {
            let on = behind.device.clone();
            world.report("web", &on, State::Installed).await;
        }
        world.pass(7);
        world = world.restarted().await;
        world.all_touched(5);
        world.advance().await;
        world.pass(10);
        world.all_touched(5);
        world.advance().await;
    }
    assert_eq!(world.rollout().await.state, "done");
    assert_eq!(
        seen,
        ["yo hi hi hi hi", "yo yo yo hi hi", "yo yo yo yo hi", "yo yo yo yo yo"],
        "in order, and never more than one of a site at a time"
    );
    assert_eq!(
        counts(&world.rollout().await.counts),
        "5: 5 done 0 under way 0 waiting 0 not yet 0 never 0 failed"
    );
}

/// A rehearsal tells the whole order, and the real change goes by it.
#[tokio::test]
async fn a_rehearsal_tells_every_batch_and_what_it_waits_for() {
    let world = World::plant(5).await;
    world.join("d9", &[("plant", "a")]).await;
    world.says("d9", "64Gi", &["compose"]).await;
    let strategy = json!({
        "canary": { "size": "1", "labels": { "site": "sued" }, "soakSeconds": 1800 }, "batches": ["2"],
        "order": ["site"], "threshold": "90%",
    });
    world.pass(150);
    world.all_touched(5);
    let change =
        Change::PutDeployment { name: name("web"), want: greeting("yo", Some(strategy.clone())), id: None };
    let plan = world.fleet.rehearse(&ann(), &[change], Fetching::Allowed).await.unwrap();
    assert_eq!(plan.rollouts.len(), 1);
    let rollout = &plan.rollouts[0];
    assert_eq!((rollout.deployment.as_str(), rollout.devices, rollout.batches_total), ("web", 6, 4));
    let told: Vec<String> = rollout
        .batches
        .iter()
        .map(|batch| {
            let after = batch.after.as_deref().unwrap_or("at once");
            format!(
                "{} of {} now, {} not yet: {}; {after}",
                batch.now,
                batch.devices,
                batch.not_yet,
                batch.first.join(" ")
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            "1 of 1 now, 0 not yet: d1; at once",
            "0 of 2 now, 0 not yet: d3 d0; 90% of batch 1 have it installed and stayed so for 30 min",
            "0 of 2 now, 0 not yet: d2 d4; 90% of batch 2 have it installed",
            "0 of 1 now, 1 not yet: d9; 90% of batch 3 have it installed",
        ]
    );
    // Every device is among the changes, with its batch.
    let changes: Vec<(String, Option<u32>, bool)> = plan
        .changes
        .iter()
        .map(|change| (change.device.clone(), change.batch, change.from.is_some()))
        .collect();
    let batches = [2, 1, 3, 2, 3];
    for (number, batch) in (0..5).zip(batches) {
        assert_eq!(changes[number], (format!("d{number}"), Some(batch), true));
    }
    assert_eq!(changes[5], ("d9".to_owned(), Some(4), true));
    // Nothing was written.
    assert_eq!(world.given(5).await, "hi hi hi hi hi");

    // What is told is what happens.
    world.put("web", greeting("yo", Some(strategy))).await.unwrap();
    assert_eq!(world.given(5).await, "hi yo hi hi hi");
    world.report("web", "d1", State::Installed).await;
    world.advance().await;
    world.pass(1800);
    world.all_touched(5);
    world.advance().await;
    world.pass(10);
    world.advance().await;
    assert_eq!(world.given(5).await, "yo yo hi yo hi");

    // All at once has no steps to tell.
    let change = Change::PutDeployment { name: name("new"), want: greeting("yo", None), id: None };
    assert!(world.fleet.rehearse(&ann(), &[change], Fetching::Allowed).await.unwrap().rollouts.is_empty());
}

#[tokio::test]
async fn a_push_while_a_rollout_runs_supersedes_it_or_leaves_it_alone() {
    let world = World::plant(4).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"] })))).await.unwrap();
    assert_eq!(world.given(4).await, "yo hi hi hi");
    let about_a_device = "apiVersion: margrave/v1\nkind: Device\nmetadata:\n  id: d3\nspec:\n  labels: {plant: a, site: west}\n";
    let commit = world.by_hand(&[("devices/d3.yaml", Some(about_a_device))]).await;
    world.adopt(commit).await.unwrap();
    let rollout = world.rollout().await;
    assert_eq!((rollout.state.as_str(), rollout.revision, rollout.counts.total), ("running", 2, 4));
    assert_eq!(world.given(4).await, "yo hi hi hi");

    // A bad one is refused as a whole, and the rollout goes on as if nobody had said anything.
    let text = world.file("deployments/web.yaml").await.unwrap();
    let wrong = text.replace("yo", &"y".repeat(30));
    assert_ne!(text, wrong);
    let main = world.main().await;
    let commit = world.by_hand(&[("deployments/web.yaml", Some(&wrong)), ("devices/d2.yaml", None)]).await;
    let flaws = world.adopt(commit).await.unwrap_err();
    assert!(flaws[0].starts_with("deployments/web.yaml:"), "{flaws:?}");
    assert_eq!(world.main().await, main);
    world.report("web", "d0", State::Installed).await;
    world.advance().await;
    assert_eq!(world.given(4).await, "yo yo hi hi");

    // Another version of it begins anew: nobody who has not got the one before gets that any more.
    let next = text.replace("yo", "hej");
    let commit = world.by_hand(&[("deployments/web.yaml", Some(&next))]).await;
    world.adopt(commit).await.unwrap();
    let rollout = world.rollout().await;
    assert_eq!((rollout.state.as_str(), rollout.revision, rollout.before), ("running", 3, Some(1)));
    assert_eq!(world.given(4).await, "hej yo hi hi");
    for device in ["d0", "d1", "d2", "d3"] {
        world.report("web", device, State::Installed).await;
        world.advance().await;
    }
    assert_eq!(world.given(4).await, "hej hej hej hej");
    assert_eq!(world.rollout().await.state, "done");
}

#[tokio::test]
async fn looking_at_a_rollout_keeps_nobody_from_deciding() {
    let world = World::plant(4).await;
    world.put("web", greeting("yo", Some(json!({ "batches": ["1"] })))).await.unwrap();
    let deciding = world.fleet.deciding.write().await;
    // There is nothing to do as long as the first is at it, and that is found out beside whoever decides.
    tokio::time::timeout(Duration::from_secs(60), world.fleet.advance_rollouts()).await.unwrap().unwrap();
    drop(deciding);
    assert_eq!(world.given(4).await, "yo hi hi hi");
}

#[tokio::test]
async fn what_changes_while_a_rollout_is_looked_at_is_not_run_over() {
    let strategy = json!({ "batches": ["1", "100%"], "maxUnavailablePerSite": "1" });
    for happens in ["paused", "moved", "left", "nothing"] {
        let world = World::plant(4).await;
        world.put("web", greeting("yo", Some(strategy.clone()))).await.unwrap();
        world.report("web", "d0", State::Installed).await;
        let deciding = world.fleet.deciding.write().await;
        let looks = || world.fleet.readings().rollout_looks.count;
        let before = looks();
        let changed = async {
            // Whoever looked waits here for its turn to decide.
            while looks() == before {
                tokio::task::yield_now().await;
            }
            let store = &world.fleet.store;
            let label = |device: &str, labels: &[(&str, &str)]| Intent::Label {
                device: DeviceRef::parse(device).unwrap(),
                labels: Some(
                    labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
                ),
                by: "operator ann".into(),
            };
            let wanted = match happens {
                "paused" => {
                    let rollout = store.rollouts_open().await.unwrap().remove(0);
                    let update = RolloutUpdate {
                        deployment: rollout.deployment,
                        revision: rollout.revision,
                        from: vec![RolloutState::Running],
                        to: RolloutState::Paused,
                        why: None,
                        reached: rollout.reached,
                        forgiven: Vec::new(),
                        at: world.fleet.now(),
                        by: Some("operator ann".into()),
                        event: None,
                    };
                    assert!(store.update_rollout(update).await.unwrap());
                    None
                }
                // Now it is one of the first site, of which one may be unavailable.
                "moved" => Some(label("d1", &[("plant", "a"), ("site", "nord")])),
                "left" => Some(label("d1", &[("plant", "b"), ("site", "sued")])),
                _ => None,
            };
            if let Some(wanted) = wanted {
                let at = world.fleet.now();
                let publication = Publication { at, intents: vec![wanted], ..Default::default() };
                store.publish(publication).await.unwrap();
            }
            drop(deciding);
        };
        let both = async { tokio::join!(world.fleet.advance_rollouts(), changed) };
        tokio::time::timeout(Duration::from_secs(60), both).await.unwrap().0.unwrap();
        let given = world.given(4).await;
        let expected = match happens {
            "paused" => "yo hi hi hi",
            "moved" => "yo yo hi yo",
            "left" => "yo hi yo yo",
            _ => "yo yo yo hi",
        };
        assert_eq!(given, expected, "{happens}");
    }
}
