//! Where everything stands is said once a day, so that a server which forgot it hears of it.

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A device with so many applications that polls a few times an hour, and whose reports were all heard.
fn at_rest(count: u8) -> World {
    at_rest_with(7, count)
}

fn at_rest_with(seed: u64, count: u8) -> World {
    let mut world = World::new(seed);
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

/// How many of so many devices speak within each third of an hour after `event`, which is the same moment for all of them.
fn thirds(event: impl Fn(&mut World)) -> [usize; 3] {
    let mut thirds = [0; 3];
    for seed in 0..24 {
        let mut world = at_rest_with(seed, 3);
        world.settings.poll_every = Duration::from_secs(60);
        event(&mut world);
        for third in &mut thirds {
            *third += usize::from(!said_within(&mut world, Duration::from_secs(1230)).is_empty());
        }
    }
    thirds
}

#[test]
fn who_is_late_speaks_within_the_hour_and_not_together_with_all_others() {
    let back = |world: &mut World| {
        // Its server was away for as long, or its hours begin: the machine was on meanwhile.
        world.now = world.now.after(DAY * 2);
    };
    let set = |world: &mut World| world.now = world.now.after(DAY * 365 * 30);
    let on = |world: &mut World| {
        said_within(world, DAY * 2);
        world.now = world.now.after(DAY * 6);
        world.boot();
    };
    for event in [&back as &dyn Fn(&mut World), &set, &on] {
        let thirds = thirds(event);
        assert!(thirds.iter().all(|third| (3..=14).contains(third)), "{thirds:?}");
        assert_eq!(thirds.iter().sum::<usize>(), 24, "{thirds:?}");
    }
}

#[test]
fn a_clock_that_is_set_back_keeps_nobody_from_speaking() {
    let mut world = at_rest(3);
    said_within(&mut world, DAY * 2);
    world.now = Moment(world.now.0 - u64::try_from(DAY.as_millis() * 365).unwrap());
    assert!(said_within(&mut world, DAY * 3).len() >= 3);
    world.now = Moment(world.now.0 - u64::try_from(DAY.as_millis() * 365).unwrap());
    world.boot();
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

/// On which day somebody who is on for half an hour a day, and never spoke, does.
fn spoke_on_day(seed: u64, saver: bool) -> u32 {
    let mut world = at_rest_with(seed, 1);
    world.settings.poll_every = Duration::from_secs(60);
    world.publish(vec![workload(1, &["web"], "a")]);
    let schedule = crate::schedule::Schedule { saver, ..Default::default() };
    world.manifest = world.manifest.clone().with_schedule(schedule);
    world.run_until_converged();
    for day in 1..=60 {
        world.reports.clear();
        world.now = world.now.after(DAY - Duration::from_secs(1800));
        world.commit();
        world.boot();
        let end = world.now.after(Duration::from_secs(1800));
        while world.now < end {
            world.step();
        }
        if !world.reports.is_empty() {
            return day;
        }
    }
    u32::MAX
}

#[test]
fn who_is_on_for_half_an_hour_a_day_speaks_within_a_few_days() {
    for saver in [false, true] {
        let days: Vec<u32> = (0..24).map(|seed| spoke_on_day(seed, saver)).collect();
        assert!(days.iter().all(|day| *day <= 10), "{days:?}");
        assert!(days.iter().filter(|day| **day <= 3).count() >= 18, "{days:?}");
    }
}

#[test]
fn where_bytes_are_dear_who_is_late_speaks_within_the_hour_too() {
    for seed in 0..12 {
        let mut world = at_rest_with(seed, 1);
        world.settings.poll_every = Duration::from_secs(60);
        world.publish(vec![workload(1, &["web"], "a")]);
        let saving = crate::schedule::Schedule { saver: true, ..Default::default() };
        world.manifest = world.manifest.clone().with_schedule(saving);
        world.run_until_converged();
        let end = world.now.after(DAY * 15);
        while world.now < end {
            world.step();
        }
        // Its server was away for weeks.
        world.now = world.now.after(DAY * 20);
        world.reports.clear();
        let end = world.now.after(Duration::from_secs(3700));
        while world.now < end {
            world.step();
        }
        assert!(!world.reports.is_empty(), "{seed}");
    }
}
