//! What was installed and is starting, and does not get any further.

use std::time::Duration;

use super::*;
use crate::schedule::Schedule;

const MINUTE: Duration = Duration::from_secs(60);

/// Everything runs, and the data base is starting again.
fn starting(timeout: Option<&str>) -> (World, Digest) {
    let mut world = World::new(3);
    let mut workload = workload(1, &["db", "web"], "a");
    workload.components[0].timeout = timeout.and_then(crate::package::Timeout::parse);
    let db = World::fingerprints(&workload)[0];
    world.publish(vec![workload]);
    world.run_until_converged();
    world.odd.insert(db, Health::Starting);
    (world, db)
}

fn state(world: &World) -> State {
    world.device.assignments()[&id(1)].state
}

#[test]
fn what_starts_for_ever_is_told_after_twice_the_time_it_may_take() {
    for (timeout, minutes) in [(None, 10), (Some("0m30s"), 10), (Some("20m0s"), 40), (Some("90m0s"), 120)] {
        let (mut world, _) = starting(timeout);
        world.live_until(world.now.after(MINUTE * (minutes - 1)));
        assert_eq!(state(&world), State::Installed, "{timeout:?}");
        world.live_until(world.now.after(MINUTE * 2));
        let failed = world.reports.iter().rev().find_map(|report| report.components[0].fault.as_ref());
        let fault = failed.unwrap_or_else(|| panic!("{timeout:?}: nothing was told of it"));
        assert_eq!((fault.code.as_str(), fault.source.as_str()), ("unhealthy", "db"));
        assert!(fault.message.contains(&format!("starting for {minutes} minutes")), "{}", fault.message);
    }
}

#[test]
fn what_is_well_in_between_begins_anew_and_a_clock_that_is_set_says_nothing() {
    let (mut world, db) = starting(None);
    for _ in 0..5 {
        world.live_until(world.now.after(MINUTE * 8));
        world.odd.clear();
        world.live_until(world.now.after(MINUTE / 2));
        world.odd.insert(db, Health::Starting);
    }
    world.live_until(world.now.after(MINUTE));
    // It was 1970 until now.
    world.now = world.now.after(MINUTE * 60 * 24 * 365 * 50);
    world.live_until(world.now.after(MINUTE * 8));
    world.now = Moment(world.now.0 - 1_000_000_000);
    world.live_until(world.now.after(MINUTE * 8));
    assert_eq!(world.told(1).matches("FAILED").count(), 0, "{}", world.told(1));
}

#[test]
fn what_gets_well_after_it_was_told_is_installed() {
    let (mut world, _) = starting(None);
    world.live_until(world.now.after(MINUTE * 11));
    assert!(world.told(1).contains("INSTALLED FAILED"), "{}", world.told(1));
    world.odd.clear();
    world.live_until(world.now.after(MINUTE * 2));
    assert_eq!(state(&world), State::Installed);
}

#[test]
fn an_update_that_only_just_came_up_has_its_own_time() {
    let mut world = World::scheduled(Schedule::default());
    let fresh = |revision: &str| workload(1, &["db", "web"], revision);
    world.odd.insert(World::fingerprints(&fresh("a"))[0], Health::Starting);
    world.live_until(world.now.after(MINUTE * 9));
    world.publish(vec![fresh("b")]);
    world.run_until_converged();
    world.odd.insert(World::fingerprints(&fresh("b"))[0], Health::Starting);
    world.live_until(world.now.after(MINUTE * 9));
    assert!(!world.told(1).contains("FAILED"), "{}", world.told(1));
}
