//! Changes that may not begin yet, and times at which nobody is asked.

use std::time::Duration;

use super::*;
use crate::schedule::{Poll, Schedule};

pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// A Monday of November 2026, half past nine in the morning.
pub(super) const MONDAY: Moment = Moment(1_794_821_400_000);

pub(super) fn spans<T: std::str::FromStr<Err: std::fmt::Debug>>(texts: &[&str]) -> Vec<T> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

impl World {
    pub(super) fn scheduled(schedule: Schedule) -> World {
        let mut world = World::new(11);
        world.now = MONDAY;
        world.publish(vec![workload(1, &["db", "web"], "a")]);
        world.run_until_converged();
        world.set(schedule);
        world.run_until_converged();
        world
    }

    pub(super) fn set(&mut self, schedule: Schedule) {
        let entries = self.manifest.entries().to_vec();
        let next = Manifest::new(self.manifest.version() + 1, self.manifest.bundle(), entries).unwrap();
        self.manifest = next.with_schedule(schedule);
    }

    /// What operators want now, by the same schedule.
    pub(super) fn want(&mut self, workloads: Vec<Workload>) {
        let schedule = self.manifest.schedule().clone();
        self.publish(workloads);
        self.manifest = self.manifest.clone().with_schedule(schedule);
    }

    /// Lives until then, and says what it did to the runtime and the server, in order.
    pub(super) fn live_until(&mut self, end: Moment) -> Vec<String> {
        let mut did = vec![];
        while self.now < end {
            while let Some(action) = self.device.next(&self.settings, self.now) {
                did.push(match &action {
                    Action::Prefetch(order) => format!("fetch {}", order.component),
                    Action::Apply(order) => format!("apply {}", order.component),
                    Action::Remove { component, .. } => format!("remove {component}"),
                    Action::Poll { .. } => "poll".to_owned(),
                    Action::Send(report) => format!("tell {}", report.detail.as_ref().unwrap().state),
                    Action::Observe => "look".to_owned(),
                    other => format!("{other:?}"),
                });
                self.carry_out(action);
                self.commit();
            }
            self.now = self.device.wake(&self.settings, self.now).unwrap().min(end);
        }
        did
    }

    pub(super) fn hold(&mut self, holder: &str, length: Duration) -> Result<(), HoldRefused> {
        let hold = self.device.hold(holder, "a batch runs", length, self.now)?;
        self.absorb(Event::Held(hold));
        self.commit();
        Ok(())
    }

    pub(super) fn waiting(&self, n: u8) -> Option<&str> {
        self.device.assignments()[&id(n)].waiting.as_deref()
    }
}

pub(super) fn touches(did: &[String]) -> Vec<&str> {
    did.iter()
        .map(String::as_str)
        .filter(|did| did.starts_with("apply") || did.starts_with("remove"))
        .collect()
}

pub(super) fn talks(did: &[String]) -> Vec<&str> {
    did.iter().map(String::as_str).filter(|did| *did != "look").collect()
}

#[test]
fn a_held_update_is_fetched_and_waits_and_says_why() {
    let mut world = World::scheduled(Schedule::default());
    world.hold("mes", 2 * HOUR).unwrap();
    world.want(vec![workload(1, &["db", "web"], "b")]);
    let did = world.live_until(world.now.after(HOUR));
    assert_eq!(touches(&did), [] as [&str; 0]);
    assert_eq!(did.iter().filter(|did| did.starts_with("fetch")).count(), 2, "once each: {did:?}");
    let told = world.reports.last().unwrap();
    let detail = told.detail.as_ref().unwrap();
    assert_eq!((detail.state, told.adopted_version), (State::Installed, 3), "what runs is what ran");
    let said = detail.waiting.as_deref().unwrap();
    assert!(
        said.starts_with("held back by mes until 2026-11-16T11:3") && said.ends_with(": a batch runs"),
        "{said}"
    );
    // A restart forgets neither the hold nor that it is fetched.
    world.boot();
    let did = world.live_until(world.now.after(minutes(30)));
    assert!(touches(&did).is_empty() && !did.iter().any(|did| did.starts_with("fetch")), "{did:?}");
    world.absorb(Event::Released(Some("mes".into())));
    world.run_until_converged();
    assert_eq!(world.waiting(1), None);
    assert_eq!(world.told(1), "PENDING INSTALLING INSTALLED UPDATING INSTALLED");
    assert_eq!(world.reports.last().unwrap().detail.as_ref().unwrap().waiting, None);
}

#[test]
fn installs_and_removals_wait_too_and_a_hold_ends_by_itself() {
    let mut world = World::scheduled(Schedule::default());
    world.hold("technician", HOUR).unwrap();
    world.want(vec![workload(2, &["new"], "a")]);
    let until = world.now.after(minutes(59));
    assert!(touches(&world.live_until(until)).is_empty());
    assert_eq!(world.device.assignments()[&id(2)].state, State::Pending);
    assert_eq!(world.device.assignments()[&id(1)].state, State::Installed, "it may come back");
    assert!(world.waiting(1).is_some() && world.waiting(2).is_some());
    world.run_until_converged();
    assert!(world.now < until.after(minutes(2)));
}

#[test]
fn what_is_broken_is_mended_and_what_began_is_finished_while_held() {
    let mut world = World::scheduled(Schedule::default());
    world.hold("technician", 2 * HOUR).unwrap();
    world.running.clear();
    let did = world.live_until(world.now.after(minutes(5)));
    assert_eq!(touches(&did), ["apply db", "apply web"]);
    world.absorb(Event::Released(None));

    let bad = workload(1, &["db", "web"], "b");
    world.broken.extend(World::fingerprints(&bad));
    world.want(vec![bad]);
    while world.device.assignments()[&id(1)].state != State::Updating
        || !world.device.assignments()[&id(1)].touched
    {
        world.step();
    }
    world.hold("technician", 2 * HOUR).unwrap();
    world.rest();
    assert!(
        world.told(1).ends_with("UPDATING FAILED UPDATING FAILED ROLLINGBACK INSTALLED"),
        "{}",
        world.told(1)
    );
}

#[test]
fn a_removal_makes_use_of_a_window_that_is_shorter_than_the_time_between_two_looks() {
    let windows = Some(spans(&["mon 22:00-22:02"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    world.settings.observe_every = HOUR;
    // It asks seldom, too, so that nothing but the window wakes it.
    world.settings.poll_every = 6 * HOUR;
    world.want(vec![]);
    world.live_until(MONDAY.after(12 * HOUR));
    assert!(world.running.len() == 2 && world.waiting(1).is_some(), "{:?}", world.waiting(1));
    let did = world.live_until(MONDAY.after(12 * HOUR + minutes(33)));
    assert_eq!(touches(&did), ["remove web", "remove db"]);
    assert!(world.running.is_empty());
}

#[test]
fn a_hold_is_bounded_in_every_way() {
    let mut world = World::scheduled(Schedule::default());
    let refused = |world: &World, holder: &str, reason: &str, length| {
        world.device.hold(holder, reason, length, world.now).unwrap_err()
    };
    assert_eq!(refused(&world, "", "x", HOUR), HoldRefused::Holder);
    assert_eq!(refused(&world, "a\nb", "x", HOUR), HoldRefused::Holder);
    assert_eq!(refused(&world, "a", &"x".repeat(201), HOUR), HoldRefused::Reason);
    assert_eq!(refused(&world, "a", "x", Duration::ZERO), HoldRefused::NoTime);
    assert_eq!(refused(&world, "a", "x", 25 * HOUR), HoldRefused::TooLong(24 * HOUR));
    assert_eq!(
        HoldRefused::TooLong(24 * HOUR).to_string(),
        "changes on this device may be held back for 24h at most"
    );
    // Prolonged again and again, it ends when the longest would have.
    world.hold("mes", 20 * HOUR).unwrap();
    let began = world.now;
    for _ in 0..30 {
        world.now = world.now.after(HOUR);
        match world.hold("mes", 20 * HOUR) {
            Ok(()) => assert!(world.device.holds(world.now)[0].until <= began.after(24 * HOUR)),
            Err(refused) => {
                assert!(matches!(refused, HoldRefused::Spent { .. }), "{refused}");
                break;
            }
        }
    }
    assert_eq!(world.now.since(began), 24 * HOUR);
    assert!(world.device.holds(world.now).is_empty());
    world.now = world.now.after(minutes(15));
    world.hold("mes", HOUR).unwrap();
    for number in 1..16 {
        world.hold(&format!("app-{number}"), HOUR).unwrap();
    }
    assert_eq!(world.hold("one-more", HOUR), Err(HoldRefused::TooMany));
    world.hold("mes", HOUR).unwrap();
    // The server's word.
    world.absorb(Event::Released(None));
    world.set(Schedule { hold_max: Some(Duration::ZERO), ..Schedule::default() });
    world.run_until_converged();
    assert_eq!(world.hold("mes", HOUR), Err(HoldRefused::NotAllowed));
}

#[test]
fn a_clock_that_jumps_neither_loses_a_hold_nor_keeps_it_for_ever() {
    let held = |clock: Moment| {
        let mut world = World::scheduled(Schedule::default());
        world.hold("mes", HOUR).unwrap();
        world.want(vec![workload(1, &["db", "web"], "b")]);
        world.live_until(world.now.after(minutes(5)));
        world.now = clock;
        world.boot();
        world
    };
    // Set back by three days: at most its own length again.
    let back = Moment(MONDAY.0 - 3 * 24 * 3_600_000);
    let mut world = held(back);
    assert!(touches(&world.live_until(back.after(minutes(50)))).is_empty());
    assert_eq!(touches(&world.live_until(back.after(minutes(70)))), ["apply db", "apply web"]);
    // Not set at all: nobody knows, until it is.
    let mut world = held(Moment(1000));
    assert!(touches(&world.live_until(Moment(1000).after(2 * HOUR))).is_empty());
    world.now = MONDAY.after(minutes(20));
    assert!(touches(&world.live_until(MONDAY.after(minutes(40)))).is_empty());
    assert_eq!(touches(&world.live_until(MONDAY.after(minutes(70)))), ["apply db", "apply web"]);
    // Held before the clock was set.
    let mut world = World::scheduled(Schedule::default());
    world.now = Moment(1000);
    world.hold("mes", HOUR).unwrap();
    world.now = MONDAY.after(HOUR);
    world.want(vec![workload(1, &["db", "web"], "b")]);
    assert!(touches(&world.live_until(MONDAY.after(minutes(110)))).is_empty());
    assert_eq!(touches(&world.live_until(MONDAY.after(minutes(130)))), ["apply db", "apply web"]);
}

#[test]
fn an_update_waits_for_its_window_and_is_fetched_before() {
    let windows = Some(spans(&["mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    world.want(vec![workload(1, &["db", "web"], "b")]);
    let opens = Moment(MONDAY.0 + 45_000_000);
    let did = world.live_until(Moment(opens.0 - 1000));
    assert!(touches(&did).is_empty() && did.iter().any(|did| did == "fetch web"), "{did:?}");
    assert_eq!(
        world.waiting(1),
        Some("waits for the maintenance window, which opens at 2026-11-16T22:00:00Z")
    );
    let did = world.live_until(opens.after(minutes(2)));
    assert_eq!(touches(&did), ["apply db", "apply web"]);
    // Who stands at the device may decide otherwise.
    world.want(vec![workload(1, &["db", "web"], "c")]);
    world.now = opens.after(3 * HOUR);
    assert!(touches(&world.live_until(opens.after(4 * HOUR))).is_empty());
    world.settings.overrides.schedule = true;
    world.run_until_converged();
}

#[test]
fn a_deployment_waits_for_times_of_its_own_besides_those_of_the_device() {
    let opens = Moment(MONDAY.0 + 45_000_000);
    let within = |text: &str| {
        let mut new = workload(1, &["db", "web"], "b");
        new.hints.windows = Some(spans(&[text]));
        vec![new, workload(2, &["free"], "a")]
    };
    // A device that may change at any time: what has no times of its own goes on, what has them is fetched and waits.
    let mut world = World::scheduled(Schedule::default());
    world.want(within("mon 22:00-23:00"));
    let did = world.live_until(Moment(opens.0 - 1000));
    assert_eq!(touches(&did), ["apply free"]);
    assert!(did.iter().any(|did| did == "fetch web"), "{did:?}");
    assert_eq!(
        world.waiting(1),
        Some("waits for the maintenance window, which opens at 2026-11-16T22:00:00Z")
    );
    assert_eq!(touches(&world.live_until(opens.after(minutes(2)))), ["apply db", "apply web"]);

    // Both have to be open.
    let windows = Some(spans(&["mon 22:30-23:30"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    world.want(within("mon 22:00-23:00"));
    assert!(touches(&world.live_until(opens.after(minutes(29)))).is_empty());
    assert!(touches(&world.live_until(opens.after(minutes(35)))).contains(&"apply web"));

    // What nobody understands is no time at all, and who stands at the device may decide otherwise.
    let mut world = World::scheduled(Schedule::default());
    let mut new = workload(1, &["db", "web"], "b");
    new.hints.windows = Some(vec![]);
    world.want(vec![new]);
    assert!(touches(&world.live_until(opens.after(24 * HOUR))).is_empty());
    world.settings.overrides.schedule = true;
    world.run_until_converged();
}

#[test]
fn what_cannot_be_fetched_ahead_fails_nothing() {
    let windows = Some(spans(&["mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    world.want(vec![workload(1, &["db", "web"], "b")]);
    let poll = |world: &mut World| {
        while world.waiting(1).is_none() {
            world.step()
        }
    };
    poll(&mut world);
    let denied = Failure::new(FailureCode::PullDenied, "no entry");
    for _ in 0..5 {
        let order = loop {
            match world.device.next(&world.settings, world.now) {
                Some(Action::Prefetch(order)) => break order,
                Some(action) => world.carry_out(action),
                None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
            }
        };
        assert!(!world.device.obsolete(&Action::Prefetch(order.clone())));
        let action = Action::Prefetch(order);
        world.absorb(Event::Began(action.clone()));
        world.absorb(action.undone(&denied.message, denied.code));
    }
    assert_eq!(world.device.assignments()[&id(1)].state, State::Installed);
    assert!(world.waiting(1).unwrap().ends_with("; fetching it ahead failed so far: no entry"));
    world.now = Moment(MONDAY.0 + 45_000_000);
    world.run_until_converged();
}

#[test]
fn mi_g2_210_outside_its_hours_a_device_talks_to_nobody_and_misses_nothing() {
    let mut world =
        World::scheduled(Schedule { hours: spans(&["daily 06:00-10:00"]), ..Schedule::default() });
    let closes = MONDAY.after(minutes(30));
    world.live_until(closes);
    world.running.clear();
    let opens = Moment(MONDAY.0 + 73_800_000);
    let did = world.live_until(opens);
    assert_eq!(talks(&did), ["fetch db", "fetch web", "apply db", "apply web"], "mended without a word");
    assert!(world.device.outbox().len() > 1);
    // It begins a little later than the hours do, so that not all do at once.
    let first = world.device.wake(&world.settings, world.now).unwrap();
    assert!(first <= opens.after(Duration::from_secs(30)));
    world.run_until_converged();
    assert!(world.now < opens.after(minutes(2)));
    assert!(world.told(1).ends_with("INSTALLED FAILED INSTALLING INSTALLED"), "{}", world.told(1));
}

#[test]
fn mi_g2_210_in_a_known_downtime_nobody_is_tried_and_errors_are_no_news() {
    let downtime = spans(&["2026-11-16T10:00Z/2026-11-18T10:00Z"]);
    let mut world = World::scheduled(Schedule { downtime, ..Schedule::default() });
    let begins = MONDAY.after(minutes(30));
    world.live_until(begins.after(Duration::ZERO));
    // A poll that was under way when it began.
    world.now = begins.after(minutes(1));
    world.absorb(Event::Began(Action::Poll { held: None, wait: Duration::ZERO }));
    world.absorb(Event::Polled(Err(Trouble::passing("the line is down"))));
    assert_eq!(world.device.contact().1, None);
    let did = world.live_until(begins.after(48 * HOUR));
    assert_eq!(talks(&did), [] as [&str; 0]);
    let did = world.live_until(begins.after(48 * HOUR + minutes(1)));
    assert!(did.contains(&"poll".to_owned()), "{did:?}");
}

#[test]
fn an_update_that_is_not_here_waits_for_the_end_of_the_downtime_and_one_that_is_does_not() {
    let schedule = |windows: &[&str], downtime: &[&str]| Schedule {
        windows: Some(spans(windows)),
        downtime: spans(downtime),
        ..Schedule::default()
    };
    // By day it is fetched, at night the line is down and the window open.
    let mut world = World::scheduled(schedule(&["daily 22:00-02:00"], &["daily 20:00-06:00"]));
    world.want(vec![workload(1, &["db", "web"], "b")]);
    world.live_until(MONDAY.after(HOUR));
    world.boot();
    let did = world.live_until(Moment(MONDAY.0 + 45_000_000).after(minutes(5)));
    assert_eq!(touches(&did), ["apply db", "apply web"]);
    // Nobody could fetch this one: it came in the last minute.
    let mut world = World::scheduled(schedule(&["daily 00:00-24:00"], &["daily 10:00-12:00"]));
    world.faults = 0.0;
    world.now = MONDAY.after(minutes(29));
    let poll = Action::Poll { held: None, wait: Duration::ZERO };
    world.want(vec![workload(1, &["db", "web"], "b")]);
    world.absorb(Event::Began(poll.clone()));
    let polled = world.perform(poll);
    world.absorb(polled);
    let fetch = world.device.next(&world.settings, world.now).unwrap();
    world.absorb(Event::Began(fetch.clone()));
    world.now = MONDAY.after(minutes(31));
    let fetched = world.perform(fetch);
    world.absorb(fetched);
    let did = world.live_until(MONDAY.after(minutes(149)));
    assert_eq!(talks(&did), [] as [&str; 0]);
    assert!(world.waiting(1).unwrap().starts_with("waits for its download until 2026-11-16T12:00:"));
    world.run_until_converged();
}

#[test]
fn data_saver_tells_only_where_things_stand_and_only_when_it_asks() {
    // As the server says, or as the device says otherwise.
    for (saver, own) in [(true, None), (false, Some(true)), (true, Some(false)), (false, None)] {
        let poll = Some(Poll { every: HOUR, wait: false });
        let mut world = World::scheduled(Schedule { saver, poll, ..Schedule::default() });
        world.settings.overrides.saver = own;
        world.want(vec![workload(1, &["db", "web"], "b")]);
        let did = world.live_until(world.now.after(3 * HOUR));
        let talks: Vec<&str> =
            talks(&did).into_iter().filter(|did| !did.contains(' ') || did.starts_with("tell")).collect();
        let tells: Vec<&str> = talks.iter().copied().filter(|did| did.starts_with("tell")).collect();
        if own.unwrap_or(saver) {
            assert_eq!(tells, ["tell INSTALLED"]);
            assert_eq!(talks.iter().filter(|did| **did == "poll").count(), talks.len() - 1, "{talks:?}");
        } else {
            assert!(tells.contains(&"tell UPDATING"), "{saver} {own:?} {tells:?}");
        }
    }
}

#[test]
fn mi_g2_210_the_server_says_how_often_to_ask_and_the_device_may_say_otherwise() {
    let polls = |world: &mut World| {
        let did = world.live_until(world.now.after(10 * HOUR));
        did.iter().filter(|did| *did == "poll").count()
    };
    let rate = Schedule { poll: Some(Poll { every: HOUR, wait: false }), ..Schedule::default() };
    let mut world = World::scheduled(rate);
    world.settings.poll_wait = Duration::from_secs(300);
    let count = polls(&mut world);
    assert!((8..=14).contains(&count), "{count}");
    world.settings.overrides.poll = true;
    world.settings.poll_every = 5 * HOUR;
    let count = polls(&mut world);
    assert!((1..=3).contains(&count), "{count}");
}

#[test]
fn another_server_does_not_have_to_keep_the_hours_of_the_last() {
    let schedule = Schedule {
        windows: Some(spans(&["sun 01:00-02:00"])),
        hours: spans(&["sun 01:00-02:00"]),
        ..Schedule::default()
    };
    let mut world = World::scheduled(schedule.clone());
    assert!(!world.device.network(&world.settings, world.now).is_open());
    world.absorb(Event::IdentityIs("one".into()));
    world.absorb(Event::IdentityIs("two".into()));
    assert!(world.device.network(&world.settings, world.now).is_open());
    assert_eq!(world.device.schedule().windows, schedule.windows, "what runs is as dear as before");
}

#[test]
fn drift_is_told_and_left_where_the_policy_says_so() {
    let mut world = World::scheduled(Schedule { leaves_drift: true, ..Schedule::default() });
    world.running.remove(&(id(1), name("web")));
    let did = world.live_until(world.now.after(HOUR));
    assert_eq!(touches(&did), [] as [&str; 0]);
    let told = world.reports.last().unwrap();
    assert_eq!(told.detail.as_ref().unwrap().state, State::Failed);
    let message = &told.fault.as_ref().unwrap().message;
    assert_eq!(message, "component web is gone; it is left so, because this device is not to repair it");
    // Somebody puts it back.
    let order = &Order::of(&workload(1, &["db", "web"], "a"))[1];
    world.running.insert((id(1), name("web")), order.fingerprint());
    world.run_until_converged();
    assert!(world.told(1).ends_with("INSTALLED FAILED INSTALLED"), "{}", world.told(1));
    // One that cannot be told apart from an illness is treated as one.
    world.sick.insert(order.fingerprint());
    let did = world.live_until(world.now.after(HOUR));
    assert!(touches(&did).contains(&"apply web"), "{did:?}");
}

#[test]
fn images_go_where_the_server_says_so_also_after_a_restart_and_not_where_the_device_says_otherwise() {
    let removes = Schedule { removes_images: true, ..Schedule::default() };
    let mut world = World::scheduled(Schedule::default());
    let goes = |world: &World| world.device.removes_images(&world.settings);
    assert!(!goes(&world));
    world.set(removes.clone());
    world.run_until_converged();
    assert!(goes(&world));
    world.boot();
    assert!(goes(&world), "it is followed without the server");
    world.settings.overrides.removes_images = Some(false);
    assert!(!goes(&world));
    world.settings.overrides.removes_images = Some(true);
    world.set(Schedule::default());
    world.run_until_converged();
    assert!(goes(&world));
    // What cannot be followed besides is no reason to forget it.
    let unlivable = Schedule { hold_max: Some(Duration::MAX), ..removes.clone() };
    assert_eq!(unlivable.livable(), removes);
}

#[test]
fn what_flaps_is_believed_later_each_time_and_told_seldom() {
    // How many seconds it is well, also for longer than an update needs to prove itself.
    for well in [30, 100, 200] {
        let mut world = World::scheduled(Schedule::default());
        let sickness = World::fingerprints(&workload(1, &["db", "web"], "a"))[1];
        let told = world.reports.len();
        let end = world.now.after(24 * HOUR);
        let mut changes = 0;
        while world.now < end {
            world.sick.insert(sickness);
            world.live_until(world.now.after(Duration::from_secs(30)));
            world.sick.remove(&sickness);
            world.live_until(world.now.after(Duration::from_secs(well)));
            changes += 2;
        }
        let told = world.reports.len() - told;
        // Once in eleven minutes, give or take: failed, tried with two components, installed.
        assert!((10..=7 * 128).contains(&told), "{told} reports a day, of {changes} changes");
        // Once it stays well, it is well.
        let calm = world.now;
        world.run_until_converged();
        assert!(world.now.since(calm) <= minutes(16), "{:?}", world.now.since(calm));
        world.live_until(world.now.after(minutes(6)));
        assert_eq!(world.device.assignments()[&id(1)].relapses, 0);
    }
}

#[test]
fn what_runs_is_mended_while_something_newer_waits() {
    let windows = Some(spans(&["mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    world.want(vec![workload(1, &["db", "web"], "b")]);
    world.live_until(world.now.after(minutes(5)));
    assert!(world.waiting(1).is_some());
    let old = World::fingerprints(&workload(1, &["db", "web"], "a"));
    world.running.clear();
    let did = world.live_until(world.now.after(minutes(5)));
    assert_eq!(touches(&did), ["apply db", "apply web"]);
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), old, "and not with what waits");
    let told = world.reports.last().unwrap();
    assert_eq!(told.adopted_version, 3);
    assert!(told.detail.as_ref().unwrap().waiting.is_some());
    // What does not get well is tried again and again.
    world.sick.insert(old[1]);
    let did = world.live_until(world.now.after(HOUR));
    assert!(touches(&did).len() > 4, "{did:?}");
    world.sick.clear();
    world.now = Moment(MONDAY.0 + 45_000_000);
    world.run_until_converged();
}

/// Until the first component of an update is asked for.
pub(super) fn fetching(world: &mut World) -> Order {
    loop {
        match world.device.next(&world.settings, world.now) {
            Some(Action::Prefetch(order)) => {
                world.absorb(Event::Began(Action::Prefetch(order.clone())));
                return order;
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
}

#[test]
fn what_is_not_touched_yet_waits_though_it_was_begun() {
    for holds in [true, false] {
        let windows = if holds { None } else { Some(spans(&["mon 09:00-10:00", "mon 22:00-23:00"])) };
        let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
        world.want(vec![workload(1, &["db", "web"], "b")]);
        let order = fetching(&mut world);
        assert_eq!(world.device.assignments()[&id(1)].state, State::Updating);
        // A slow line; meanwhile the window closes, or somebody holds.
        world.now = MONDAY.after(minutes(45));
        if holds {
            world.hold("mes", HOUR).unwrap();
        }
        let event = world.perform(Action::Prefetch(order));
        world.absorb(event);
        let did = world.live_until(MONDAY.after(minutes(100)));
        assert!(touches(&did).is_empty(), "{did:?}");
        assert!(world.waiting(1).is_some());
        world.boot();
        let did = world.live_until(MONDAY.after(minutes(104)));
        assert!(touches(&did).is_empty(), "{did:?}");
        world.now = Moment(MONDAY.0 + 45_000_000);
        world.run_until_converged();
    }
}

#[test]
fn what_was_touched_is_finished_before_something_newer_waits() {
    let windows = Some(spans(&["mon 09:00-10:00", "mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    world.want(vec![workload(1, &["db", "web"], "b")]);
    let apply = loop {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Apply(_)) => break action,
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    };
    world.absorb(Event::Began(apply.clone()));
    world.now = MONDAY.after(minutes(45));
    world.want(vec![workload(1, &["db", "web"], "c")]);
    world.live_until(MONDAY.after(minutes(50)));
    assert!(!world.device.obsolete(&apply));
    let event = world.perform(apply);
    world.absorb(event);
    let did = world.live_until(MONDAY.after(minutes(60)));
    assert_eq!(touches(&did), ["apply web"]);
    let now: Vec<_> = world.running.values().copied().collect();
    assert_eq!(now, World::fingerprints(&workload(1, &["db", "web"], "b")));
    assert!(world.waiting(1).is_some());
    world.now = Moment(MONDAY.0 + 45_000_000);
    world.run_until_converged();
}

#[test]
fn what_comes_back_before_it_could_go_was_never_away() {
    let mut world = World::scheduled(Schedule::default());
    let started = world.started;
    world.hold("mes", HOUR).unwrap();
    world.want(vec![]);
    world.live_until(world.now.after(minutes(5)));
    assert!(world.waiting(1).is_some());
    world.want(vec![workload(1, &["db", "web"], "a")]);
    world.live_until(world.now.after(minutes(5)));
    world.absorb(Event::Released(None));
    world.run_until_converged();
    assert_eq!((world.started, world.told(1).as_str()), (started, "PENDING INSTALLING INSTALLED"));
}

#[test]
fn drift_that_was_left_is_repaired_once_that_is_wanted() {
    let mut world = World::scheduled(Schedule { leaves_drift: true, ..Schedule::default() });
    world.running.clear();
    world.live_until(world.now.after(minutes(5)));
    assert_eq!(world.device.assignments()[&id(1)].state, State::Failed);
    assert_eq!(world.reports.last().unwrap().detail.as_ref().unwrap().next_try, None);
    world.set(Schedule::default());
    world.run_until_converged();
}

#[test]
fn data_saver_tells_everything_at_one_poll() {
    let saver =
        Schedule { saver: true, poll: Some(Poll { every: HOUR, wait: false }), ..Schedule::default() };
    let mut world = World::scheduled(saver);
    world.want((1..6).map(|n| workload(n, &["web"], "b")).collect());
    world.live_until(world.now.after(2 * HOUR));
    world.running.clear();
    world.live_until(world.now.after(minutes(10)));
    assert!(world.device.outbox().len() >= 5);
    // An answer takes its time, and a poll must not overtake what is to be told.
    let mut doing: Vec<Action> = vec![];
    let end = world.now.after(HOUR + minutes(20));
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            assert!(!matches!(action, Action::Poll { .. }) || world.device.outbox().is_empty());
            world.absorb(Event::Began(action.clone()));
            doing.push(action);
        }
        world.now = match doing.pop() {
            Some(action) => {
                let event = world.perform(action);
                world.absorb(event);
                world.now.after(Duration::from_millis(100))
            }
            None => world.device.wake(&world.settings, world.now).unwrap(),
        };
    }
    assert!(world.device.outbox().is_empty());
}

impl World {
    /// A step in which nothing may begin that must not.
    fn wary_step(&mut self) {
        self.step_with(|world, action| match action {
            Action::Apply(order) => {
                let assignment = &world.device.assignments()[&order.assignment];
                // What is beneath was begun long ago, and is only mended.
                let mends = assignment
                    .beneath()
                    .and_then(|here| here.held)
                    .is_some_and(|held| world.device.orders(&held).contains(order));
                let begins = !assignment.is_touched() && !mends && assignment.state != State::RollingBack;
                let barred = world.device.barred(&world.settings, world.now);
                assert!(!begins || barred.is_none(), "{barred:?}: {assignment:#?}");
            }
            Action::Poll { .. } | Action::Fetch(_) | Action::Send(_) | Action::SendCapabilities => {
                assert!(world.device.network(&world.settings, world.now).is_open(), "{action:?}");
            }
            _ => {}
        });
    }

    fn any_schedule(&mut self) -> Schedule {
        let mut pick = |texts: &[&'static str]| match (self.dice.roll() * (texts.len() + 1) as f64) as usize {
            0 => vec![],
            n => vec![texts[n - 1]],
        };
        let hours = pick(&["daily 09:00-12:00", "daily 22:00-03:00 Europe/Berlin", "mon-fri 08:00-18:00"]);
        let windows =
            pick(&["daily 10:00-10:30", "daily 02:00-02:20", "mon 09:40-09:41", "daily 23:00-04:00"]);
        let downtime = pick(&["daily 09:45-10:15", "2026-11-16T09:31Z/2026-11-16T21:00Z"]);
        let poll = self.dice.hit(0.3).then_some(Poll { every: minutes(30), wait: false });
        Schedule {
            poll,
            hours: spans(&hours),
            downtime: spans(&downtime),
            windows: (!windows.is_empty()).then(|| spans(&windows)),
            saver: self.dice.hit(0.3),
            leaves_drift: self.dice.hit(0.2),
            removes_images: self.dice.hit(0.2),
            hold_max: None,
        }
        .livable()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever hours, windows and holds there were, and whatever failed, crashed or was moved by hand meanwhile: nothing begins when
    /// it may not, and once it may, everything that is wanted runs, and the server knows.
    #[test]
    fn nothing_begins_when_it_may_not_and_everything_does_in_the_end(seed in any::<u64>(), rounds in 1usize..6) {
        let mut world = World::new(seed);
        world.now = MONDAY;
        // Days pass here.
        world.settings.observe_every = minutes(5);
        let sets: [&[&str]; 3] = [&["web"], &["db", "web"], &["db"]];
        for _ in 0..rounds {
            let mut wanted = vec![];
            for n in 1..4 {
                if world.dice.hit(0.6) {
                    let set = sets[(world.dice.roll() * 3.0) as usize];
                    wanted.push(workload(n, set, if world.dice.hit(0.5) { "a" } else { "b" }));
                }
            }
            world.publish(wanted);
            let schedule = world.any_schedule();
            world.manifest = world.manifest.clone().with_schedule(schedule);
            world.faults = world.dice.roll() * 0.4;
            if world.dice.hit(0.5) {
                let length = HOUR.mul_f64(0.1 + world.dice.roll() * 5.0);
                // A holder that is refused has to live with it.
                world.hold("mes", length).ok();
            }
            if world.dice.hit(0.3) {
                world.running.clear();
            }
            if world.dice.hit(0.2) {
                let back = Duration::from_secs(3600 * (world.dice.roll() * 100.0) as u64);
                world.now = Moment(world.now.0 - u64::try_from(back.as_millis()).unwrap());
            }
            for _ in 0..(world.dice.roll() * 400.0) as usize {
                world.wary_step();
            }
        }
        world.faults = 0.0;
        world.absorb(Event::Released(None));
        let newest = ["web", "db", "cache"].iter().zip(1..).map(|(c, n)| workload(n, &[*c], "newest")).collect();
        world.publish(newest);
        for _ in 0..60_000 {
            if world.converged() {
                break;
            }
            world.wary_step();
        }
        prop_assert!(world.converged(), "{:#?}", world.device);
        for entry in world.manifest.entries() {
            let last = world.reports.iter().rfind(|report| report.assignment == entry.id).unwrap();
            let detail = last.detail.as_ref().unwrap();
            prop_assert_eq!((detail.state, detail.document, &detail.waiting),
                (State::Installed, Some(entry.document.digest), &None));
        }
    }
}

#[test]
fn what_is_fetched_ahead_and_then_not_wanted_is_not_needed_any_more() {
    let mut world = World::scheduled(Schedule::default());
    let (old, new) = (workload(1, &["db", "web"], "a"), workload(1, &["db", "more", "web"], "b"));
    let needed = |workloads: &[&Workload]| {
        Some(workloads.iter().flat_map(|workload| World::fingerprints(workload)).collect())
    };
    assert_eq!(world.device.needed(), needed(&[&old]));
    world.hold("mes", 10 * HOUR).unwrap();
    let other = workload(2, &["web"], "a");
    world.want(vec![new.clone(), other.clone()]);
    world.live_until(world.now.after(HOUR));
    assert_eq!(world.device.needed(), needed(&[&old, &new, &other]));
    assert!(world.device.assignments().values().all(|assignment| assignment.ready == assignment.wanted));
    world.want(vec![old.clone()]);
    world.live_until(world.now.after(HOUR));
    assert_eq!(world.device.needed(), needed(&[&old]));
    assert_eq!(world.device.assignments()[&id(1)].ready, None, "it would have to be fetched again");
    // Nobody knows what a document says that is not here.
    world.blobs.clear();
    world.boot();
    assert_eq!(world.device.needed(), None);
}

/// No server of ours says so. A device that is told it all the same asks at its pace, and not all the time.
#[test]
fn a_downtime_without_an_end_is_no_reason_to_ask_without_a_pause() {
    let mut world = World::scheduled(Schedule::default());
    world.set(Schedule {
        downtime: spans(&["daily 00:00-12:00", "daily 12:00-00:00"]),
        ..Schedule::default()
    });
    world.live_until(world.now.after(minutes(5)));
    world.faults = 1.0;
    let (end, mut polls) = (world.now.after(HOUR), 0);
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            polls += u32::from(matches!(action, Action::Poll { .. }));
            assert!(polls < 200, "asks without a pause");
            world.carry_out(action);
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
    }
    assert!(polls > 1, "{polls}");
}
