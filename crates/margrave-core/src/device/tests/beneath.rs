//! A change that was taken up and has touched nothing yet: what runs meanwhile is kept running.

use super::overtaken::{OPENS, accept, assignment, runs, touched, versions};
use super::waiting::{HOUR, MONDAY, fetching, minutes, spans, touches};
use super::*;
use crate::rollback::When;
use crate::schedule::Schedule;

/// "a" runs, and the window closes over the download of what is to come.
fn closed_over(new: &Workload, leaves_drift: bool) -> World {
    let windows = Some(spans(&["mon 09:00-10:00", "mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, leaves_drift, ..Schedule::default() });
    world.want(vec![new.clone()]);
    let order = fetching(&mut world);
    world.now = MONDAY.after(minutes(31));
    let event = world.perform(Action::Prefetch(order));
    world.absorb(event);
    world.live_until(MONDAY.after(minutes(35)));
    assert!(assignment(&world).state == State::Updating && world.waiting(1).is_some());
    world
}

/// Lives until then, while nothing of this can be fetched.
fn live_without(world: &mut World, end: Moment, away: &Workload) -> usize {
    let mut tries = 0;
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            assert!(!world.device.obsolete(&action), "{action:?}");
            let is_away = matches!(&action, Action::Prefetch(order) if Order::of(away).contains(order));
            tries += usize::from(is_away);
            let event = match is_away {
                true => action.undone("the registry is away", FailureCode::PullFailed),
                false => world.perform(action),
            };
            world.absorb(event);
            world.commit();
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
    }
    tries
}

#[test]
fn what_runs_is_mended_while_the_window_is_closed_over_an_update() {
    let [old, _, other] = versions();
    // Of the second one everything that runs is the same; what is mended is not its beginning.
    for new in [other, workload(1, &["db", "web", "more"], "a")] {
        for reboots in [false, true] {
            let mut world = closed_over(&new, false);
            world.running.remove(&(id(1), name("web")));
            if reboots {
                world.boot();
            }
            let all = [old.clone(), new.clone()];
            let soon = world.now.after(minutes(5));
            assert_eq!(touched(&mut world, soon, &all), ["db a", "web a"]);
            assert!(runs(&world, &old));
            // It is told what was wrong, and that it is not any more; and what waits was not touched.
            let faults = |report: &Report| report.components.iter().filter(|c| c.fault.is_some()).count();
            assert!(
                world
                    .reports
                    .iter()
                    .any(|report| faults(report) == 1 && report.state == Reported::Installing)
            );
            assert_eq!(faults(world.reports.last().unwrap()), 0);
            let held = assignment(&world);
            assert!(
                held.state == State::Updating && !held.is_touched() && held.waiting.is_some(),
                "{held:?}"
            );
            assert!(touched(&mut world, OPENS, &all).is_empty());
            world.run_until_converged();
            assert!(world.now < OPENS.after(minutes(2)));
        }
    }
}

#[test]
fn what_somebody_did_is_left_there_too() {
    let mut world = closed_over(&versions()[2], true);
    world.running.remove(&(id(1), name("web")));
    let did = world.live_until(OPENS);
    assert!(touches(&did).is_empty(), "{did:?}");
}

#[test]
fn what_runs_is_mended_while_an_update_cannot_be_fetched() {
    let [old, _, new] = versions();
    let mut world = World::scheduled(Schedule::default());
    world.want(vec![new.clone()]);
    live_without(&mut world, MONDAY.after(HOUR), &new);
    assert!(assignment(&world).state == State::Failed && runs(&world, &old));
    for reboots in [false, true] {
        world.running.clear();
        if reboots {
            world.boot();
        }
        let soon = world.now.after(minutes(2));
        live_without(&mut world, soon, &new);
        assert!(runs(&world, &old));
    }
    // What never gets well is tried at the usual pace, and so is what is wanted.
    let started = world.started;
    world.sick.extend(World::fingerprints(&old));
    let end = world.now.after(10 * HOUR);
    let tries = live_without(&mut world, end, &new);
    assert!((35..=130).contains(&tries), "{tries}");
    assert!(world.started - started <= 2 * 100, "{}", world.started - started);
    assert!(assignment(&world).beneath().unwrap().failure.is_some());
    world.run_until_converged();
    assert!(runs(&world, &new));
    let told = &world.reports.last().unwrap().components;
    assert!(told.iter().all(|component| component.fault.is_none()), "{told:?}");
}

#[test]
fn an_update_that_failed_is_tried_and_gone_back_from_while_what_is_newer_cannot_be_fetched() {
    let all = versions();
    let mut world = World::scheduled(Schedule::default());
    world.broken.insert(World::fingerprints(&all[1])[1]);
    world.want(vec![all[1].clone()]);
    while assignment(&world).state != State::Failed {
        world.step();
    }
    for action in std::mem::take(&mut world.doing) {
        let event = world.perform(action);
        world.absorb(event);
    }
    world.want(vec![all[2].clone()]);
    accept(&mut world);
    let soon = world.now.after(minutes(5));
    live_without(&mut world, soon, &all[2]);
    assert!(runs(&world, &all[0]), "{:?}", assignment(&world));
    assert_eq!(assignment(&world).held, Some(document(&all[2]).digest()));
    world.run_until_converged();
    assert!(runs(&world, &all[2]));
}

#[test]
fn what_runs_is_mended_while_something_is_wanted_that_can_never_be_used_here() {
    let mut world = World::new(11);
    let mut old = workload(1, &["db", "web"], "a");
    old.hints.rollback.when = When::Never;
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    let new = workload(1, &["db", "web"], "b");
    world.publish(vec![new.clone()]);
    let live = |world: &mut World, time: Duration| {
        let end = world.now.after(time);
        while world.now < end {
            while let Some(action) = world.device.next(&world.settings, world.now) {
                world.absorb(Event::Began(action.clone()));
                let event = match world.perform(action) {
                    Event::Fetched(Ok(delivery)) => {
                        let refused = Failure::new(FailureCode::NotEligible, "needs a gpu");
                        let delivery = delivery.into_iter().map(|(d, _)| (d, Err(refused.clone())));
                        Event::Fetched(Ok(delivery.collect()))
                    }
                    event => event,
                };
                world.absorb(event);
            }
            world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
        }
    };
    live(&mut world, minutes(5));
    assert_eq!(assignment(&world).held, Some(document(&new).digest()));
    world.running.clear();
    let told = world.reports.len();
    live(&mut world, minutes(5));
    assert!(runs(&world, &old));
    assert_eq!(assignment(&world).state, State::Failed);
    // What is wrong with what runs is told once, and that it is mended.
    let faults: Vec<usize> = world.reports[told..]
        .iter()
        .map(|r| r.components.iter().filter(|c| c.fault.is_some()).count())
        .collect();
    assert_eq!(faults, [1, 0], "{:?}", &world.reports[told..]);
}

#[test]
fn what_proved_itself_beneath_is_what_is_gone_back_to() {
    let all = versions();
    let mut world = World::scheduled(Schedule::default());
    world.want(vec![all[1].clone()]);
    while assignment(&world).held != Some(document(&all[1]).digest())
        || assignment(&world).state != State::Installed
    {
        world.step();
    }
    world.want(vec![all[2].clone()]);
    accept(&mut world);
    let end = world.now.after(HOUR);
    live_without(&mut world, end, &all[2]);
    assert_eq!(assignment(&world).good, Some(document(&all[1]).digest()));
    world.broken.insert(World::fingerprints(&all[2])[1]);
    let end = world.now.after(HOUR);
    touched(&mut world, end, &all);
    assert!(runs(&world, &all[1]), "{:?}", assignment(&world));
}

#[test]
fn what_runs_and_is_wanted_again_is_as_if_nothing_had_come() {
    let all = versions();
    for reboots in [false, true] {
        let mut world = closed_over(&all[2], false);
        if reboots {
            world.boot();
        }
        world.want(vec![all[0].clone()]);
        accept(&mut world);
        // Who was just started has seen nothing yet, and says nothing before it has.
        assert_eq!(assignment(&world).state == State::Installed, !reboots);
        let soon = world.now.after(minutes(2));
        let did = touched(&mut world, soon, &all);
        assert_eq!(did.is_empty(), !reboots, "{did:?}");
        let held = assignment(&world);
        assert!(held.state == State::Installed && held.wanted == held.held && held.waiting.is_none());
        assert!(touched(&mut world, OPENS.after(HOUR), &all).is_empty());
        assert!(runs(&world, &all[0]) && world.device.converged());
        let last = world.reports.last().unwrap();
        let version = world.device.accepted().unwrap().version;
        assert_eq!((last.state, last.adopted_version), (Reported::Installed, version));
    }
}

#[test]
fn what_somebody_did_is_left_when_what_runs_is_wanted_again() {
    let all = versions();
    let mut world = closed_over(&all[2], true);
    world.running.remove(&(id(1), name("web")));
    let soon = world.now.after(minutes(5));
    assert!(touched(&mut world, soon, &all).is_empty());
    world.want(vec![all[0].clone()]);
    accept(&mut world);
    assert!(touched(&mut world, OPENS.after(HOUR), &all).is_empty());
    let held = assignment(&world);
    assert!(held.state == State::Failed && held.is_left(), "{held:?}");
}

/// Nobody knows what an update leaves over while its document is lost.
#[test]
fn nothing_is_cleared_away_for_an_update_whose_document_is_lost() {
    let new = workload(1, &["db"], "c");
    let all = [versions()[0].clone(), new.clone()];
    let mut world = closed_over(&new, false);
    world.blobs.remove(&document(&new).digest()).unwrap();
    let stored = std::mem::take(&mut world.store);
    world.boot();
    let soon = world.now.after(minutes(5));
    assert!(touched(&mut world, soon, &all).is_empty());
    assert!(runs(&world, &all[0]));
    world.store = stored;
    assert!(touched(&mut world, OPENS, &all).is_empty());
    assert_eq!(touched(&mut world, OPENS.after(minutes(5)), &all), ["db c", "remove web"]);
    assert!(runs(&world, &new));
}

/// Somebody started what the update brings before it may: what was fetched for it stays.
#[test]
fn what_somebody_added_is_set_aside_where_something_newer_may_have_it() {
    let mut world = closed_over(&workload(1, &["db", "web", "more"], "a"), false);
    world.running.insert((id(1), name("more")), Digest::of(b"somebody's"));
    let (end, mut removals) = (world.now.after(minutes(5)), vec![]);
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            if let Action::Remove { component, aside, .. } = &action {
                removals.push((component.to_string(), *aside));
            }
            world.carry_out(action);
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
    }
    assert_eq!(removals, [("more".to_owned(), true)]);
}
