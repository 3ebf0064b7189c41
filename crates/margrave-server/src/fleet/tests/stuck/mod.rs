//! The catalogue of stuck states: each is brought about, and `why` has to name its true cause, the last of the chain.
//!
//! Where a device has a part in it, it is the real core of the agent (`machine.rs`); where a registry, a remote or a repository
//! has one, those are real as well.

mod machine;
mod reaching;
mod rolling;
mod running;
mod sources;

use margrave_core::why::Code;
use margrave_wire::operator::WhyKind;
use margrave_wire::schedule::ScheduleBody;

use super::*;
use machine::Machine;

/// The states that were brought about, and what was said of each.
#[derive(Default)]
struct Catalogue {
    states: Vec<(&'static str, Code)>,
    /// All that is wrong is told at once.
    wrong: Vec<String>,
}

impl Catalogue {
    /// The last cause of the chain is `code`, which tells its meaning, and what to do.
    async fn expect(
        &mut self,
        world: &World,
        state: &'static str,
        (kind, subject): (WhyKind, &str),
        code: Code,
    ) -> operator::Why {
        let why = world.fleet.why_of(kind, subject).await.unwrap();
        let last = why.chain.last().unwrap();
        if last.code != code.as_str() || last.hint.is_none() || last.text.is_empty() {
            self.wrong.push(format!("{state}: {code} expected, and not {why:#?}"));
        }
        assert!(self.states.iter().all(|(known, _)| *known != state), "{state} is there twice");
        self.states.push((state, code));
        why
    }

    /// The same of a device, or of a deployment on it.
    async fn device(
        &mut self,
        world: &World,
        state: &'static str,
        subject: &str,
        code: Code,
    ) -> operator::Why {
        self.expect(world, state, (WhyKind::Device, subject), code).await
    }

    async fn deployment(
        &mut self,
        world: &World,
        state: &'static str,
        name: &str,
        code: Code,
    ) -> operator::Why {
        self.expect(world, state, (WhyKind::Deployment, name), code).await
    }

    async fn rollout(&mut self, world: &World, state: &'static str, name: &str, code: Code) -> operator::Why {
        self.expect(world, state, (WhyKind::Rollout, name), code).await
    }
}

fn codes(why: &operator::Why) -> Vec<&str> {
    why.chain.iter().map(|cause| cause.code.as_str()).collect()
}

/// Hello with this greeting on every device of line 1.
fn greeting(text: &str) -> operator::PutDeployment {
    let mut want = labelled("line", "1");
    want.parameters.insert("greeting".into(), json!(text));
    want
}

const LINE: &[(&str, &str)] = &[("line", "1")];

impl World {
    async fn choose_for(&self, reach: &str, body: serde_json::Value) {
        let body: ScheduleBody = serde_json::from_value(body).unwrap();
        self.fleet.put_schedule(&ann(), reach, &body).await.unwrap();
    }

    /// A real device that runs `web` with the greeting `hi`.
    async fn runs_web(&self) -> Machine<'_> {
        let mut line = self.machine("line-1", LINE).await;
        self.put("web", greeting("hi")).await.unwrap();
        line.live(120).await;
        assert!(self.fleet.why("line-1/web").await.unwrap().converged);
        line
    }
}

#[tokio::test]
async fn the_true_cause_of_every_stuck_state_is_named() {
    let mut catalogue = Catalogue::default();
    reaching::provoke(&mut catalogue).await;
    running::provoke(&mut catalogue).await;
    rolling::provoke(&mut catalogue).await;
    sources::provoke(&mut catalogue).await;
    let Catalogue { states, wrong } = catalogue;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let told: std::collections::BTreeSet<Code> = states.iter().map(|(_, code)| *code).collect();
    #[allow(clippy::print_stdout, reason = "the catalogue says how long it is")]
    {
        for (state, code) in &states {
            println!("{code:<24} {state}");
        }
        println!("{} stuck states, {} different causes", states.len(), told.len());
    }
    assert!(states.len() >= 40, "only {} states", states.len());
    assert!(told.len() >= 40, "only {} causes", told.len());
}

#[tokio::test]
async fn a_deployment_on_many_devices_is_told_in_a_few_lines() {
    let world = World::new().await;
    for number in 0..60 {
        world.device(&format!("d{number:02}"), LINE).await;
    }
    world.device("odd", LINE).await;
    world.says("odd", "128Mi", &["compose"]).await;
    world.put("web", greeting("hi")).await.unwrap();
    for number in 0..60 {
        let on = format!("d{number:02}");
        world.version(&on);
        match number {
            0..10 => world.report("web", &on, State::Failed).await,
            10..30 => world.report("web", &on, State::Installing).await,
            _ => world.report("web", &on, State::Installed).await,
        }
    }
    let why = world.fleet.why_of(WhyKind::Deployment, "web").await.unwrap();
    assert_eq!(why.chain[0].text, "web is not as wanted on 31 of 61 devices");
    assert_eq!(codes(&why), ["devices-behind", "given-up", "pull-failed"]);
    let groups: Vec<(&str, u64, &str)> =
        why.groups.iter().map(|group| (group.code.as_str(), group.count, group.needs.as_str())).collect();
    // Those that a person has to see to first, then the largest.
    assert_eq!(
        groups,
        [("pull-failed", 10, "person"), ("misfit", 1, "person"), ("installing", 20, "patience")]
    );
    assert_eq!(why.groups[0].example, "d00");
    assert!(why.groups.iter().all(|group| !group.text.is_empty() && !group.hint.is_empty()));
}

/// Devices are not asked one by one: what is read is bounded, and what is said is true all the same.
#[tokio::test]
async fn of_very_many_devices_some_are_looked_at_and_all_are_counted() {
    let world = World::new().await;
    for number in 0..130 {
        world.device(&format!("d{number:03}"), LINE).await;
    }
    world.put("web", greeting("hi")).await.unwrap();
    for number in 0..124 {
        let on = format!("d{number:03}");
        match number {
            0..110 => world.report("web", &on, State::Failed).await,
            110..115 => world.report("web", &on, State::Installing).await,
            _ => world.report("web", &on, State::Installed).await,
        }
    }
    (0..130).for_each(|number| world.fleet.touched(&client(&format!("d{number:03}"))));
    let deployment = world.fleet.deployment_counted(&name("web")).await.unwrap();
    let id = margrave_core::id::DeploymentId::parse(&deployment.id).unwrap();
    let behind = world.fleet.store.assignments_behind(id, 100).await.unwrap();
    assert_eq!((behind.found.len(), behind.total), (100 + 5 + 6, 110 + 5 + 6));

    let why = world.fleet.why_of(WhyKind::Deployment, "web").await.unwrap();
    assert_eq!(why.chain[0].text, "web is not as wanted on 121 of 130 devices");
    assert_eq!(why.looked_at, Some(111));
    let groups: Vec<(&str, u64, bool)> =
        why.groups.iter().map(|group| (group.code.as_str(), group.count, group.at_least)).collect();
    let expected = [("pull-failed", 100, true), ("manifest-not-fetched", 6, false), ("installing", 5, false)];
    assert_eq!(groups, expected);
    assert_eq!(why.groups[0].example, "d000");
    assert_eq!(why.groups[0].others, ["d001", "d002", "d003", "d004"]);

    // The page shows the first of each state, and counts the rest.
    let (shown, _) = world.fleet.deployment_glimpsed(&name("web"), 10).await.unwrap();
    assert_eq!(shown.counts.failed, 110);
    assert_eq!(shown.assignments.iter().filter(|shown| shown.state == "FAILED").count(), 10);
    let (shown, _) = world.fleet.deployment_glimpsed(&name("web"), 200).await.unwrap();
    assert_eq!(shown.assignments.iter().filter(|shown| shown.state == "INSTALLED").count(), 9);

    // Of those that were not looked at, any may be one of those that do not fit.
    world.join("odd", LINE).await;
    world.says("odd", "128Mi", &["compose"]).await;
    world.put("web", greeting("hello")).await.unwrap();
    let why = world.fleet.why_of(WhyKind::Deployment, "web").await.unwrap();
    assert_eq!(why.chain[0].text, "web is not as wanted on at least 130 of 131 devices");
    // One that keeps what it has because the newer does not fit is one device.
    world.device("once", LINE).await;
    world.says("once", "128Mi", &["compose"]).await;
    world.put("web", greeting("hej")).await.unwrap();
    let why = world.fleet.why_of(WhyKind::Deployment, "web").await.unwrap();
    assert_eq!(why.chain[0].text, "web is not as wanted on at least 131 of 132 devices");
}

/// Whatever a device takes the time for, it gets what is wanted, and its history stands in the server's time.
#[tokio::test]
async fn a_device_whose_clock_is_wrong_gets_what_is_wanted_all_the_same() {
    for ahead in [-3 * 86_400, -300, 300, 3 * 86_400, -50 * 365 * 86_400] {
        let world = World::new().await;
        let mut line = world.machine_with("line-1", LINE, ahead).await;
        let begun = world.clock.load(Ordering::Relaxed);
        for text in ["hi", "yo"] {
            world.put("web", greeting(text)).await.unwrap();
            line.live(300).await;
            let why = world.fleet.why("line-1/web").await.unwrap();
            assert!(why.converged, "{ahead}: {why:#?}");
        }
        let ended = world.clock.load(Ordering::Relaxed);
        let name = super::name("web");
        let told = world.fleet.store.transitions(&name, &device("line-1")).await.unwrap();
        assert!(!told.is_empty());
        // Later than a few minutes ahead is not believed; earlier may be a report that was late.
        assert!(told.iter().all(|told| told.at.0 <= ended + 300_000), "{ahead}: {told:?}");
        if ahead.unsigned_abs() > 10 * 365 * 86_400 || ahead > 300 {
            assert!(told.iter().all(|told| (begun..=ended).contains(&told.at.0)), "{ahead}: {told:?}");
        }
    }
}
