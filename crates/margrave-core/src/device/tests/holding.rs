//! What must not begin, or be tried, while it may not: found by the simulation of `margrave-world`.

use super::waiting::{HOUR, MONDAY, fetching, minutes, spans, talks, touches};
use super::*;
use crate::schedule::Schedule;

#[test]
fn what_nobody_knows_any_more_waits_for_the_window_too() {
    let windows = Some(spans(&["mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    let unknown = (id(9), "web".parse().unwrap());
    world.running.insert(unknown.clone(), Digest::of(b"of a memory that was lost"));
    assert!(touches(&world.live_until(MONDAY.after(HOUR))).is_empty());
    world.now = Moment(MONDAY.0 + 45_000_000);
    world.run_until_converged();
    world.live_until(world.now.after(minutes(5)));
    assert!(!world.running.contains_key(&unknown));
}

#[test]
fn what_is_not_touched_yet_and_not_wanted_any_more_is_never_begun() {
    let mut world = World::scheduled(Schedule::default());
    world.want(vec![workload(1, &["db", "web"], "b")]);
    let order = fetching(&mut world);
    world.hold("mes", HOUR).unwrap();
    let event = world.perform(Action::Prefetch(order));
    world.absorb(event);
    world.live_until(world.now.after(minutes(5)));
    assert_eq!(world.device.assignments()[&id(1)].state, State::Updating);
    world.want(vec![]);
    let did = world.live_until(world.now.after(minutes(30)));
    assert!(touches(&did).is_empty(), "{did:?}");
    world.absorb(Event::Released(None));
    world.run_until_converged();
    assert!(world.running.is_empty());
}

#[test]
fn a_hold_without_a_clock_holds_on_when_the_clock_is_set() {
    let mut world = World::scheduled(Schedule::default());
    let set = world.now;
    world.now = Moment(10_000);
    world.boot();
    world.want(vec![workload(1, &["db", "web"], "b")]);
    world.hold("mes", HOUR).unwrap();
    world.live_until(world.now.after(minutes(5)));
    assert!(world.waiting(1).is_some());
    world.now = set;
    // Asked before anything else was noticed.
    world.hold("other", minutes(10)).unwrap();
    let did = world.live_until(set.after(minutes(50)));
    assert!(touches(&did).is_empty(), "{did:?}");
    assert_eq!(touches(&world.live_until(set.after(minutes(70)))), ["apply db", "apply web"]);

    // It may be lost twice: what another holds since a time to come does not shorten this.
    world.now = Moment(1_800_000);
    world.hold("mes", HOUR).unwrap();
    world.now = Moment(10_000);
    let hold = world.device.hold("other", "a batch runs", minutes(30), world.now).unwrap();
    assert_eq!(hold.until.since(hold.since), minutes(30));
    let longer = world.device.hold("mes", "a batch runs", minutes(100), world.now).unwrap();
    assert_eq!(longer.until.since(longer.since), minutes(100), "nor what it holds itself since then");
}

#[test]
fn a_hold_ends_without_a_clock_once_it_has_lasted_for_as_long_as_any_may() {
    let mut world = World::scheduled(Schedule::default());
    world.hold("mes", HOUR).unwrap();
    world.want(vec![workload(1, &["db", "web"], "b")]);
    world.live_until(world.now.after(minutes(5)));
    // The power fails, and nothing sets the clock any more.
    world.now = Moment(10_000);
    world.boot();
    assert!(touches(&world.live_until(Moment(10_000).after(23 * HOUR))).is_empty());
    assert_eq!(touches(&world.live_until(Moment(10_000).after(25 * HOUR))), ["apply db", "apply web"]);
}

#[test]
fn what_the_engine_could_not_fetch_is_not_fetched_when_nobody_may_be_talked_to() {
    let hours = spans(&["daily 09:00-10:00"]);
    let mut world = World::scheduled(Schedule { hours, ..Schedule::default() });
    world.want(vec![workload(1, &["db", "web"], "b")]);
    let order = fetching(&mut world);
    world.now = MONDAY.after(minutes(29));
    world.absorb(Action::Prefetch(order).undone("it does not answer", FailureCode::RuntimeUnreachable));
    world.live_until(MONDAY.after(minutes(30)));
    let did = world.live_until(MONDAY.after(10 * HOUR));
    assert!(talks(&did).is_empty(), "{did:?}");
    world.now = MONDAY.after(24 * HOUR);
    world.run_until_converged();
}

#[test]
fn what_has_to_wait_before_it_goes_is_mended_and_not_dropped_again_and_again() {
    let mut world = World::scheduled(Schedule::default());
    world.hold("mes", HOUR).unwrap();
    world.want(vec![]);
    world.live_until(world.now.after(minutes(5)));
    world.running.clear();
    let apply = loop {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Apply(_)) => break action,
            Some(action) => {
                assert!(!world.device.obsolete(&action), "{action:?}");
                world.carry_out(action);
            }
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    };
    world.absorb(Event::Began(apply.clone()));
    assert!(!world.device.obsolete(&apply));
    world.absorb(Event::Released(None));
    assert!(world.device.obsolete(&apply), "it may go now");
}

#[test]
fn what_failed_to_be_fetched_and_is_to_go_is_not_tried_again() {
    let mut world = World::scheduled(Schedule::default());
    world.want(vec![workload(1, &["db", "web"], "a"), workload(2, &["new"], "a")]);
    let order = fetching(&mut world);
    world.hold("mes", HOUR).unwrap();
    world.absorb(Action::Prefetch(order).undone("no such line", FailureCode::PullFailed));
    assert_eq!(world.device.assignments()[&id(2)].state, State::Failed);
    world.want(vec![workload(1, &["db", "web"], "a")]);
    world.live_until(world.now.after(minutes(1)));
    let did = world.live_until(world.now.after(minutes(45)));
    assert!(!did.iter().any(|did| did.starts_with("fetch")), "{did:?}");
    world.absorb(Event::Released(None));
    world.run_until_converged();
    assert_eq!(world.device.assignments().len(), 1);
}

#[test]
fn what_could_not_be_written_down_was_not_begun_and_waits_while_held() {
    let mut world = World::scheduled(Schedule::default());
    world.want(vec![workload(1, &["db", "web"], "b")]);
    let apply = loop {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Apply(_)) => break action,
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    };
    world.absorb(Event::Began(apply.clone()));
    // The disk is full.
    world.absorb(Event::Unbegun(apply.clone()));
    world.absorb(apply.undone("not begun: the disk is full", FailureCode::DiskFull));
    world.hold("mes", HOUR).unwrap();
    let did = world.live_until(world.now.after(minutes(50)));
    assert!(!did.iter().any(|did| did.starts_with("apply")), "{did:?}");
    world.absorb(Event::Released(None));
    world.run_until_converged();
}

#[test]
fn a_second_hold_by_the_same_holder_ends_no_longer_one_early() {
    let mut world = World::scheduled(Schedule::default());
    // Whoever types the command in a plant is root.
    world.hold("root", 4 * HOUR).unwrap();
    let until = world.now.after(4 * HOUR);
    world.now = world.now.after(minutes(5));
    let second = world.device.hold("root", "a cable is changed", minutes(30), world.now).unwrap();
    assert_eq!((second.until, second.reason.as_str()), (until, "a batch runs"), "what stands is told");
    world.absorb(Event::Held(second));
    assert_eq!(world.device.holds(world.now)[0].until, until);
    let shorter = world.device.hold("root", "a batch runs", HOUR, world.now).unwrap();
    assert_eq!(shorter.until, until);
    // A later end counts, with the reason that belongs to it.
    let later = world.device.hold("root", "a cable is changed", 6 * HOUR, world.now).unwrap();
    assert_eq!(later.reason, "a cable is changed");
    assert_eq!(later.until, world.now.after(6 * HOUR));
    world.absorb(Event::Held(later));
    // Shorter it is after a release.
    world.absorb(Event::Released(Some("root".into())));
    world.hold("root", minutes(10)).unwrap();
    assert_eq!(world.device.holds(world.now)[0].until, world.now.after(minutes(10)));
}
