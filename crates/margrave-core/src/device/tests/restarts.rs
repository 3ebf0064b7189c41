//! How often the engine brought something back: told, and not too often.

use super::*;
use crate::schedule::Schedule;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The second component of what [`World::scheduled`] runs.
fn web() -> Digest {
    World::fingerprints(&workload(1, &["db", "web"], "a"))[1]
}

/// What was told of both components, each time.
fn told(world: &World, from: usize) -> Vec<[u32; 2]> {
    world.reports[from..].iter().map(|report| [0, 1].map(|n| report.components[n].restarts)).collect()
}

#[test]
fn the_first_restart_is_told_at_once_and_a_loop_once_an_hour() {
    let mut world = World::scheduled(Schedule::default());
    let before = world.reports.len();
    world.restarts.insert(web(), 1);
    world.live_until(world.now.after(MINUTE));
    assert_eq!(told(&world, before), [[0, 1]]);
    let last = world.reports.last().unwrap();
    assert_eq!((last.state, last.fault.is_none()), (Reported::Installed, true));
    // It comes back every minute for three hours, and stays well enough not to fail.
    for count in 2..182 {
        world.restarts.insert(web(), count);
        world.live_until(world.now.after(MINUTE));
    }
    let numbers: Vec<u32> = told(&world, before).iter().map(|told| told[1]).collect();
    assert!((3..=4).contains(&numbers.len()) && numbers.is_sorted(), "{numbers:?}");
    // Then it stays up, and what it came to is told in the end.
    world.live_until(world.now.after(HOUR));
    assert_eq!(told(&world, before).last(), Some(&[0, 181]));
    let all = world.reports.len();
    world.live_until(world.now.after(6 * HOUR));
    assert_eq!(world.reports.len(), all, "the same again is no news");
}

#[test]
fn the_count_goes_along_with_what_is_told_anyway() {
    let mut world = World::scheduled(Schedule::default());
    let before = world.reports.len();
    world.restarts.insert(web(), 4);
    world.odd.insert(web(), Health::Down("service web keeps restarting".into()));
    world.live_until(world.now.after(HOUR));
    assert!(world.told(1).ends_with("FAILED INSTALLING INSTALLED"), "{}", world.told(1));
    let failed = world.reports[before..].iter().find(|report| report.state == Reported::Failed).unwrap();
    assert_eq!(failed.components[1].restarts, 4);
    // It was started anew, and nobody has to look first to know that.
    let last = world.reports.iter().rfind(|report| report.state == Reported::Installed).unwrap();
    assert_eq!(last.components[1].restarts, 0);
    let all = world.reports.len();
    world.live_until(world.now.after(2 * HOUR));
    assert_eq!(world.reports.len(), all);
}

#[test]
fn what_ran_before_says_nothing_about_what_runs_now() {
    let mut world = World::scheduled(Schedule::default());
    world.restarts.insert(web(), 57);
    world.live_until(world.now.after(MINUTE));
    let before = world.reports.len();
    world.want(vec![workload(1, &["db", "web"], "b")]);
    world.run_until_converged();
    assert!(told(&world, before).iter().all(|told| *told == [0, 0]), "{:?}", told(&world, before));
}

#[test]
fn a_loop_fills_neither_the_outbox_nor_what_a_restart_tells() {
    let mut world = World::scheduled(Schedule::default());
    let observation = |component: &str, fingerprint: Digest, restarts: u32| Observation {
        assignment: id(1),
        component: ComponentName::parse(component).unwrap(),
        fingerprint: Some(fingerprint),
        health: Health::Healthy,
        restarts,
    };
    let db = World::fingerprints(&workload(1, &["db", "web"], "a"))[0];
    let look = |world: &mut World, restarts: u32| {
        world.absorb(Event::Began(Action::Observe));
        let seen = vec![observation("db", db, 0), observation("web", web(), restarts)];
        world.absorb(Event::Observed(Ok(seen)));
    };
    // Nobody can be reached for a month: what waits is not pushed out by more of the same.
    for hours in 1..=720 {
        world.now = world.now.after(HOUR);
        look(&mut world, hours);
    }
    assert_eq!(world.device.outbox().len(), 1);
    assert_eq!(world.device.outbox().first().unwrap().components[1].restarts, 1);
    // Once that is told, the next look tells what it came to; a start of the agent tells nothing anew.
    let sequence = world.device.outbox().first().unwrap().detail.as_ref().unwrap().sequence;
    world.absorb(Event::Sent { sequence, result: Ok(()) });
    look(&mut world, 720);
    assert_eq!(world.device.outbox().first().unwrap().components[1].restarts, 720);
    let sequence = world.device.outbox().first().unwrap().detail.as_ref().unwrap().sequence;
    world.absorb(Event::Sent { sequence, result: Ok(()) });
    world.commit();
    world.boot();
    look(&mut world, 720);
    assert!(world.device.outbox().is_empty());

    // A ledger of an agent that did not count is read, and what is seen is told.
    assert!(world.ledger.contains(",\"restarts\":720"), "{}", world.ledger);
    world.ledger = world.ledger.replace(",\"restarts\":720", "");
    world.boot();
    look(&mut world, 720);
    assert_eq!(world.device.outbox().first().unwrap().components[1].restarts, 720);
}
