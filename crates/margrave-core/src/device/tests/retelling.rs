//! Where everything stands is said once a day, so that a server which forgot it hears of it.

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A device with so many applications that polls a few times an hour, and whose reports were all heard.
fn at_rest(count: u8) -> World {
    let mut world = World::new(7);
    world.settings.retell_every = DAY;
    world.boot();
    world.settings.poll_every = Duration::from_secs(600);
    world.settings.observe_every = Duration::from_secs(3600);
    world.publish((1..=count).map(|n| workload(n, &["web"], "a")).collect());
    world.run_until_converged();
    world
}

/// What it says within `time`, though nothing happens.
fn said_within(world: &mut World, time: Duration) -> Vec<Report> {
    world.reports.clear();
    let end = world.now.after(time);
    while world.now < end {
        world.step();
    }
    assert!(world.converged() && world.device.outbox().is_empty());
    std::mem::take(&mut world.reports)
}

#[test]
fn promise_9_where_it_stands_is_said_about_once_a_day_with_numbers_that_go_on() {
    let mut world = at_rest(1);
    let told = world.device.outbox().next_sequence();
    let said = said_within(&mut world, DAY * 10);
    assert!((8..=13).contains(&said.len()), "{}", said.len());
    for (report, number) in said.iter().zip(told..) {
        let detail = report.detail.as_ref().unwrap();
        assert_eq!((detail.state, detail.sequence), (State::Installed, number));
    }
    let started = world.started;
    world.boot();
    assert!(said_within(&mut world, DAY * 3).len() >= 2);
    assert_eq!(world.started, started, "nobody touches what is only spoken of");
}

#[test]
fn of_many_applications_some_are_spoken_of_each_day_and_all_in_turn() {
    let mut world = at_rest(40);
    let mut of = BTreeSet::new();
    for _ in 0..6 {
        let said = said_within(&mut world, DAY);
        assert!(said.len() <= 24, "with each of {} the whole memory is written", said.len());
        of.extend(said.iter().map(|report| report.assignment));
    }
    assert_eq!(of.len(), 40);
}

#[test]
fn that_what_was_to_go_is_not_here_is_said_again() {
    let mut world = at_rest(1);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.manifest = world.manifest.clone().with_leaving([id(9)]);
    world.run_until_converged();
    let said = said_within(&mut world, DAY * 3);
    let gone: Vec<_> = said.iter().filter(|report| report.assignment == id(9)).collect();
    assert!((2..=4).contains(&gone.len()), "{}", gone.len());
    assert!(gone.iter().all(|report| report.state == Reported::Removed));
    assert!(said.iter().any(|report| report.assignment == id(1)));
    // Until the server does not ask for it any more.
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    assert!(said_within(&mut world, DAY * 3).iter().all(|report| report.assignment == id(1)));
}

#[test]
fn a_clock_that_is_set_makes_nobody_speak_at_once() {
    let mut world = at_rest(3);
    for years in [1, 30] {
        // A whole fleet gets its time at the same moment, after a power cut.
        world.now = world.now.after(DAY * 365 * years);
        assert_eq!(said_within(&mut world, Duration::from_secs(1300)).len(), 0);
        assert!(said_within(&mut world, DAY * 3).len() >= 3);
    }
    world.now = Moment(world.now.0 - u64::try_from(DAY.as_millis() * 365).unwrap());
    assert!(said_within(&mut world, DAY * 3).len() >= 3);
}

#[test]
fn where_bytes_are_dear_it_is_said_once_a_week() {
    let mut world = at_rest(1);
    world.publish(vec![workload(1, &["web"], "a")]);
    let saving = crate::schedule::Schedule { saver: true, ..Default::default() };
    world.manifest = world.manifest.clone().with_schedule(saving);
    world.run_until_converged();
    let said = said_within(&mut world, DAY * 28).len();
    assert!((3..=6).contains(&said), "{said}");
}
