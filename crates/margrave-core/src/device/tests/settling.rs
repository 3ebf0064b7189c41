//! A machine that was just started, and may not know yet what time it is.

use super::waiting::{HOUR, MONDAY, minutes, spans, touches};
use super::*;
use crate::schedule::Schedule;

/// In its window the power goes, and the clock stands still with it.
fn sunday() -> Moment {
    Moment(MONDAY.0 - 24 * 3_600_000)
}

/// A device that changes on Sunday mornings, has something to do then, and was started anew by a clock that stood still.
fn back_with_the_power(windows: &[&str]) -> World {
    back_with_the_power_to(windows, vec![workload(1, &["db", "web"], "b")])
}

fn back_with_the_power_to(windows: &[&str], wanted: Vec<Workload>) -> World {
    let mut world = World::scheduled(Schedule::default());
    world.absorb(Event::Booted("one".into()));
    world.set(Schedule { windows: Some(spans(windows)), ..Schedule::default() });
    world.run_until_converged();
    world.want(wanted);
    assert!(touches(&world.live_until(MONDAY.after(minutes(10)))).is_empty());
    start_at(&mut world, sunday(), "two");
    world
}

fn start_at(world: &mut World, clock: Moment, boot: &str) {
    world.commit();
    world.now = clock;
    world.boot_in(Some(boot));
    world.commit();
}

#[test]
fn after_a_boot_no_window_is_made_use_of_before_the_clock_can_have_been_set() {
    let mut world = back_with_the_power(&["sun 09:00-10:00"]);
    assert!(touches(&world.live_until(sunday().after(minutes(2)))).is_empty());
    let said = world.waiting(1).unwrap();
    assert!(said.contains("just started") && said.contains("2026-11-15T09:33:00Z"), "{said}");
    // The clock is set: it is Monday, and no window.
    world.now = MONDAY.after(HOUR);
    assert!(touches(&world.live_until(MONDAY.after(24 * HOUR))).is_empty());
    let said = world.waiting(1).unwrap();
    assert!(said.contains("opens at 2026-11-22T09:00:00Z"), "{said}");
}

#[test]
fn after_a_boot_nothing_is_taken_away_before_the_clock_can_have_been_set() {
    let mut world = World::scheduled(Schedule::default());
    world.absorb(Event::Booted("one".into()));
    world.set(Schedule { windows: Some(spans(&["mon 09:00-10:00"])), ..Schedule::default() });
    world.live_until(MONDAY.after(HOUR));
    world.want(vec![]);
    assert!(touches(&world.live_until(MONDAY.after(2 * HOUR))).is_empty());
    // It was on in the window, and its clock goes on from what was written down then.
    let back = MONDAY.after(minutes(20));
    start_at(&mut world, back, "two");
    assert!(touches(&world.live_until(back.after(minutes(2)))).is_empty());
    let said = world.waiting(1).unwrap();
    assert!(said.contains("just started"), "{said}");
    // The clock is set: there is no window.
    world.now = MONDAY.after(3 * HOUR);
    assert!(touches(&world.live_until(MONDAY.after(24 * HOUR))).is_empty());
    // Nobody sets it.
    start_at(&mut world, back, "three");
    assert_eq!(touches(&world.live_until(back.after(minutes(4)))), ["remove web", "remove db"]);
}

/// Who joins another server while the agent is stopped has read no documents, and does not know of any boot.
#[test]
fn who_has_not_read_what_is_here_only_takes_in_who_it_is() {
    let mut world = back_with_the_power_to(&["sun 09:00-10:00"], vec![]);
    world.now = sunday().after(minutes(20));
    world.device = serde_json::from_str(&world.ledger).unwrap();
    let before = world.device.assignments().clone();
    world.absorb(Event::IdentityIs("another".into()));
    assert_eq!(world.device.assignments(), &before);
}

#[test]
fn after_a_boot_that_nobody_sets_the_clock_for_a_window_is_made_use_of_a_little_later() {
    let mut world = back_with_the_power(&["sun 09:00-10:00"]);
    assert!(touches(&world.live_until(sunday().after(minutes(2)))).is_empty());
    // An agent that starts anew in this life of the machine waits no longer, and no shorter.
    start_at(&mut world, sunday().after(minutes(2)), "two");
    assert!(touches(&world.live_until(sunday().after(Duration::from_secs(170)))).is_empty());
    assert_eq!(touches(&world.live_until(sunday().after(minutes(4)))), ["apply db", "apply web"]);
    world.want(vec![workload(1, &["db", "web"], "c")]);
    start_at(&mut world, sunday().after(minutes(5)), "two");
    assert_eq!(touches(&world.live_until(sunday().after(minutes(6)))), ["apply db", "apply web"]);
}

#[test]
fn a_clock_that_is_set_back_after_a_boot_is_not_waited_for_for_long() {
    let mut world = back_with_the_power(&["sun 05:00-10:00"]);
    world.live_until(sunday().after(minutes(1)));
    let back = Moment(sunday().0 - 4 * 3_600_000);
    world.now = back;
    assert!(touches(&world.live_until(back.after(minutes(2)))).is_empty());
    assert_eq!(touches(&world.live_until(back.after(minutes(4)))), ["apply db", "apply web"]);
}

#[test]
fn a_deployments_own_window_waits_for_the_clock_too() {
    let mut world = World::scheduled(Schedule::default());
    world.absorb(Event::Booted("one".into()));
    let mut new = workload(1, &["db", "web"], "b");
    new.hints.windows = Some(spans(&["sun 09:00-10:00"]));
    world.want(vec![new]);
    world.live_until(MONDAY.after(minutes(5)));
    start_at(&mut world, sunday(), "two");
    assert!(touches(&world.live_until(sunday().after(minutes(2)))).is_empty());
    assert_eq!(touches(&world.live_until(sunday().after(minutes(4)))), ["apply db", "apply web"]);
}

#[test]
fn what_is_mended_or_has_no_window_waits_for_no_clock() {
    let mut world = back_with_the_power(&["sun 09:00-10:00"]);
    world.running.clear();
    assert_eq!(touches(&world.live_until(sunday().after(minutes(2)))), ["apply db", "apply web"]);
    let old = World::fingerprints(&workload(1, &["db", "web"], "a"));
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), old);

    let mut world = World::scheduled(Schedule::default());
    world.absorb(Event::Booted("one".into()));
    world.want(vec![workload(1, &["db", "web"], "b")]);
    start_at(&mut world, sunday(), "two");
    assert_eq!(touches(&world.live_until(sunday().after(minutes(1)))), ["apply db", "apply web"]);
}
