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

/// Two components, of which nobody is to wait for the data base.
fn unwaited(revision: &str) -> (Workload, Digest) {
    let mut workload = workload(1, &["db", "web"], revision);
    workload.components[0].wait = Some(false);
    let db = World::fingerprints(&workload)[0];
    (workload, db)
}

#[test]
fn dm_032_an_update_that_nobody_waits_for_may_need_an_hour_to_become_healthy() {
    let mut world = World::scheduled(Schedule::default());
    let (new, db) = unwaited("b");
    world.publish(vec![new.clone()]);
    world.run_until_converged();
    world.odd.insert(db, Health::Starting);
    world.live_until(world.now.after(MINUTE * 119));
    world.odd.clear();
    world.live_until(world.now.after(MINUTE * 5));
    assert!(!world.told(1).contains("FAILED"), "{}", world.told(1));
    let assignment = &world.device.assignments()[&id(1)];
    assert_eq!(assignment.good, Some(document(&new).digest()), "there is no way back from it any more");
}

#[test]
fn dm_032_what_nobody_waits_for_and_starts_for_ever_is_told_once_and_left() {
    let mut world = World::scheduled(Schedule::default());
    let (new, db) = unwaited("b");
    world.publish(vec![new]);
    world.run_until_converged();
    world.reports.clear();
    let started = world.started;
    // Whatever is done to it, it goes on starting.
    for _ in 0..24 * 60 {
        world.odd.insert(db, Health::Starting);
        world.live_until(world.now.after(MINUTE));
    }
    assert_eq!((world.told(1).as_str(), world.started), ("FAILED", started));
    let assignment = &world.device.assignments()[&id(1)];
    let failure = assignment.failure.as_ref().unwrap();
    assert_eq!((assignment.strikes, failure.code), (0, FailureCode::Unhealthy));
    assert!(failure.message.contains("starting for 120 minutes"), "{}", failure.message);
    // It becomes healthy after all.
    world.odd.clear();
    world.live_until(world.now.after(MINUTE));
    assert_eq!(state(&world), State::Installed);
}

#[test]
fn what_was_left_starting_is_mended_where_more_than_that_is_wrong() {
    let mut world = World::scheduled(Schedule::default());
    let (new, db) = unwaited("b");
    world.publish(vec![new]);
    world.run_until_converged();
    world.odd.insert(db, Health::Starting);
    world.live_until(world.now.after(MINUTE * 121));
    assert_eq!(state(&world), State::Failed);
    world.running.retain(|(_, component), _| component.as_str() != "web");
    world.live_until(world.now.after(MINUTE * 5));
    assert!(world.converged(), "{}", world.told(1));
}

#[test]
fn what_is_waited_for_is_not_waited_for_longer_beside_what_is_not() {
    let mut world = World::scheduled(Schedule::default());
    let (new, db) = unwaited("b");
    let web = World::fingerprints(&new)[1];
    world.publish(vec![new]);
    world.run_until_converged();
    world.odd.extend([(db, Health::Starting), (web, Health::Starting)]);
    world.live_until(world.now.after(MINUTE * 11));
    let fault = world.reports.iter().rev().find_map(|report| report.components[1].fault.as_ref());
    assert_eq!(fault.map(|fault| fault.source.as_str()), Some("web"));
}
