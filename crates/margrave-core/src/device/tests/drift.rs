//! What somebody else did to what runs, told apart from what fails by itself.

use std::time::Duration;

use super::going_back::live_refusing;
use super::waiting::touches;
use super::*;
use crate::schedule::Schedule;

const HOUR: Duration = Duration::from_secs(3600);

/// The second component of what [`World::scheduled`] runs.
fn web() -> Digest {
    World::fingerprints(&workload(1, &["db", "web"], "a"))[1]
}

#[test]
fn what_the_runtime_calls_drift_is_left_where_the_policy_says_so() {
    for words in ["service web is missing", "service web is paused", "service web was stopped"] {
        let mut world = World::scheduled(Schedule { leaves_drift: true, ..Schedule::default() });
        world.odd.insert(web(), Health::Drifted(words.into()));
        let did = world.live_until(world.now.after(HOUR));
        assert_eq!(touches(&did), [] as [&str; 0]);
        let told = world.reports.last().unwrap();
        assert_eq!(
            (told.detail.as_ref().unwrap().state, told.components[1].state),
            (State::Failed, Reported::Failed)
        );
        let message = &told.fault.as_ref().unwrap().message;
        assert!(message.starts_with(words) && message.contains("it is left so"), "{message}");
        // Also beside something that would be tried again: that would undo both.
        world.odd.insert(
            World::fingerprints(&workload(1, &["db", "web"], "a"))[0],
            Health::Down("db ended".into()),
        );
        let did = world.live_until(world.now.after(HOUR));
        assert_eq!(touches(&did), [] as [&str; 0]);
        // What is left is not forgotten: what somebody did is undone, and it does not run.
        world.odd.insert(web(), Health::Down("service web exited with code 1".into()));
        world.run_until_converged();
        assert!(
            world.odd.is_empty() && world.told(1).ends_with("FAILED INSTALLING INSTALLED"),
            "{}",
            world.told(1)
        );
    }
}

#[test]
fn promise_5_what_the_runtime_calls_drift_is_repaired_otherwise() {
    let mut world = World::scheduled(Schedule::default());
    world.odd.insert(web(), Health::Drifted("service web is missing".into()));
    let did = world.live_until(world.now.after(Duration::from_secs(60)));
    assert!(touches(&did).contains(&"apply web"), "{did:?}");
    assert!(world.told(1).ends_with("INSTALLED FAILED INSTALLING INSTALLED"), "{}", world.told(1));
}

#[test]
fn drift_of_what_was_gone_back_to_is_repaired_once_that_is_wanted() {
    let mut world = World::scheduled(Schedule { leaves_drift: true, ..Schedule::default() });
    let bad = workload(1, &["db", "web"], "b");
    world.broken.extend(World::fingerprints(&bad));
    world.want(vec![bad]);
    world.live_until(world.now.after(HOUR));
    assert!(world.told(1).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(1));
    world.odd.insert(web(), Health::Drifted("service web was stopped".into()));
    let did = world.live_until(world.now.after(HOUR));
    assert_eq!(touches(&did), [] as [&str; 0]);
    assert!(world.told(1).ends_with("FAILED"), "{}", world.told(1));
    world.set(Schedule::default());
    let did = world.live_until(world.now.after(HOUR));
    assert_eq!(touches(&did), ["apply db", "apply web"]);
    assert!(world.told(1).ends_with("FAILED INSTALLING INSTALLED"), "{}", world.told(1));
    assert!(world.device.assignments()[&id(1)].gave_up().is_some(), "what is wanted stays given up");
}

/// A world in which a document is installed that lets its health checks fail for a day.
fn patient() -> (World, Digest) {
    let mut world = World::new(11);
    let mut patient = workload(1, &["web"], "a");
    patient.hints.rollback.health_grace = Some(24 * HOUR);
    let fingerprint = World::fingerprints(&patient)[0];
    world.publish(vec![patient]);
    world.run_until_converged();
    (world, fingerprint)
}

#[test]
fn promise_5_drift_and_endings_do_not_wait_for_the_grace_of_health_checks() {
    let odd = [
        Some(Health::Drifted("service web is missing".into())),
        Some(Health::Down("service web exited with code 1".into())),
        None,
    ];
    for health in odd {
        let (mut world, web) = patient();
        match health {
            Some(health) => drop(world.odd.insert(web, health)),
            None => world.running.clear(),
        }
        let did = world.live_until(world.now.after(Duration::from_secs(60)));
        assert_eq!(touches(&did), ["apply web"]);
    }
    let (mut world, web) = patient();
    world.odd.insert(web, Health::Unhealthy("the health check of web fails".into()));
    let did = world.live_until(world.now.after(23 * HOUR));
    assert_eq!(touches(&did), [] as [&str; 0]);
    // One look that finds it being restarted is no reason to lose patience; that it stays down is.
    world.odd.insert(web, Health::Down("service web exited with code 1".into()));
    world.carry_out(Action::Observe);
    world.odd.insert(web, Health::Unhealthy("the health check of web fails".into()));
    let did = world.live_until(world.now.after(Duration::from_secs(600)));
    assert_eq!(touches(&did), [] as [&str; 0]);
    let did = world.live_until(world.now.after(HOUR));
    assert_eq!(touches(&did), ["apply web"]);
}

#[test]
fn devices_that_lose_the_same_thing_at_the_same_moment_do_not_try_again_at_the_same_moment() {
    let pause = |roll: f64| {
        let (mut world, web) = patient();
        world.odd.insert(web, Health::Down("service web exited with code 1".into()));
        for _ in 0..2 {
            world.now = world.now.after(Duration::from_secs(30));
            world.absorb(Event::Began(Action::Observe));
            let seen = world.perform(Action::Observe);
            world.device.absorb(&world.settings, world.now, roll, seen);
        }
        let assignment = &world.device.assignments()[&id(1)];
        assert_eq!(assignment.state, State::Failed);
        assignment.next_try.unwrap().since(world.now)
    };
    assert!(pause(0.1) > pause(0.9), "{:?} {:?}", pause(0.1), pause(0.9));
}

#[test]
fn what_somebody_did_is_left_though_something_is_wanted_that_cannot_be_used_here() {
    let mut world = World::scheduled(Schedule { leaves_drift: true, ..Schedule::default() });
    world.running.remove(&(id(1), name("web")));
    world.live_until(world.now.after(HOUR));
    assert!(world.device.assignments()[&id(1)].is_left());
    world.want(vec![workload(1, &["db", "web"], "b")]);
    let did = live_refusing(&mut world, HOUR);
    assert!(did.is_empty(), "{did:?}");
    let assignment = &world.device.assignments()[&id(1)];
    assert_eq!(assignment.failure.as_ref().unwrap().code, FailureCode::NotEligible);
    // Until it is to be repaired.
    world.set(Schedule::default());
    live_refusing(&mut world, HOUR);
    assert_eq!(world.running.len(), 2);
    let assignment = &world.device.assignments()[&id(1)];
    assert!(assignment.state == State::Installed && assignment.gave_up().is_some(), "{assignment:?}");
}

/// Seed 3003575 of `margrave-world`.
#[test]
fn what_cannot_be_used_is_gone_back_from_though_it_was_wanted_anew_while_somebodys_doing_was_left() {
    let mut world = World::scheduled(Schedule { leaves_drift: true, ..Schedule::default() });
    world.running.remove(&(id(1), name("web")));
    world.live_until(world.now.after(HOUR));
    let refused = workload(1, &["db", "web"], "b");
    world.want(vec![refused.clone()]);
    live_refusing(&mut world, HOUR);
    world.hold("mes", 2 * HOUR).unwrap();
    world.want(vec![workload(1, &["db", "web"], "c")]);
    super::overtaken::accept(&mut world);
    world.want(vec![refused]);
    super::overtaken::accept(&mut world);
    world.absorb(Event::Released(None));
    world.set(Schedule::default());
    live_refusing(&mut world, HOUR);
    let assignment = &world.device.assignments()[&id(1)];
    assert!(assignment.state == State::Installed && assignment.gave_up().is_some(), "{assignment:?}");
}
