//! Where many want the same at once: places of work on a device, and devices whose window opens.

use std::time::Duration;

use super::*;
use crate::schedule::Schedule;

/// A Monday of November 2026, half past nine in the morning.
const MONDAY: Moment = Moment(1_794_821_400_000);
/// Ten o'clock on that day.
const OPENS: Moment = Moment(1_794_823_200_000);

fn window() -> Schedule {
    Schedule { windows: Some(vec!["mon 10:00-10:05".parse().unwrap()]), ..Schedule::default() }
}

fn all(revision: &str) -> Vec<Workload> {
    (1..=4).map(|n| workload(n, &["web"], revision)).collect()
}

/// Four applications, and a window that opens at ten.
fn installed(seed: u64) -> World {
    let mut world = World::new(seed);
    world.now = MONDAY;
    world.publish(all("a"));
    world.run_until_converged();
    world
}

fn want(world: &mut World, workloads: Vec<Workload>, schedule: Schedule) {
    world.publish(workloads);
    world.manifest = world.manifest.clone().with_schedule(schedule);
}

/// Does everything there is to do now but to end downloads, and says for whom something was touched.
fn without_ends_of_downloads(world: &mut World) -> Vec<AssignmentId> {
    let mut touched = vec![];
    while let Some(action) = world.device.next(&world.settings, world.now) {
        match &action {
            Action::Prefetch(_) => world.absorb(Event::Began(action)),
            Action::Apply(order) => {
                touched.push(order.assignment);
                world.carry_out(action);
            }
            _ => world.carry_out(action),
        }
    }
    touched
}

fn downloads(world: &World) -> Vec<AssignmentId> {
    let prefetches =
        |(id, action): (&AssignmentId, &Action)| matches!(action, Action::Prefetch(_)).then_some(*id);
    let work = &world.device.work;
    let all: BTreeSet<AssignmentId> =
        work.in_flight.iter().filter_map(prefetches).chain(work.downloads.keys().copied()).collect();
    all.into_iter().collect()
}

#[test]
fn downloads_for_later_take_no_place_from_what_may_begin() {
    let mut world = installed(3);
    let mut wanted = all("b");
    wanted[3] = workload(4, &["web"], "a");
    want(&mut world, wanted, window());
    world.now = world.now.after(Duration::from_secs(120));
    without_ends_of_downloads(&mut world);
    assert_eq!(downloads(&world), [id(1)], "one after the other");
    // Somebody removes what should run. It is mended, though downloads that take for ever are under way.
    world.running.remove(&(id(4), name("web")));
    let patience = world.now.after(Duration::from_secs(300));
    while !downloads(&world).contains(&id(4)) {
        assert!(world.now < patience, "never mended: {:#?}", world.device);
        world.now = world.device.wake(&world.settings, world.now).unwrap();
        without_ends_of_downloads(&mut world);
    }
    assert_eq!(downloads(&world), [id(1), id(4)]);
    // In the window everything may begin, and both places of downloads are for that.
    world.now = OPENS.after(Duration::from_secs(30));
    without_ends_of_downloads(&mut world);
    assert_eq!(downloads(&world), [id(1), id(2), id(3), id(4)]);
}

#[test]
fn downloads_that_take_for_ever_keep_nobody_from_being_mended_removed_or_gone_back_from() {
    let mut world = World::new(3);
    let (mut here, new) = (all("a"), [workload(8, &["web"], "a"), workload(9, &["web"], "a")]);
    world.publish(here.clone());
    world.run_until_converged();
    // An update that does not start; two first installs that never arrive, and a third behind them.
    here[1] = workload(2, &["web"], "b");
    world.broken.extend(World::fingerprints(&here[1]));
    world.publish([here.clone(), new.to_vec(), vec![workload(10, &["web"], "a")]].concat());
    let live = |world: &mut World, seconds: u64| {
        let (end, mut did) = (world.now.after(Duration::from_secs(seconds)), vec![]);
        while world.now < end {
            while let Some(action) = world.device.next(&world.settings, world.now) {
                match &action {
                    Action::Prefetch(order) if new.iter().any(|new| new.id == order.assignment) => {
                        world.absorb(Event::Began(action));
                        continue;
                    }
                    Action::Prefetch(order) => did.push(format!("fetch {}", order.assignment)),
                    Action::Apply(order) => did.push(format!("apply {}", order.assignment)),
                    Action::Remove { assignment, .. } => did.push(format!("remove {assignment}")),
                    _ => {}
                }
                world.carry_out(action);
            }
            world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
        }
        did
    };
    live(&mut world, 300);
    assert_eq!(downloads(&world), [id(8), id(9)]);
    assert_eq!(world.device.assignments()[&id(10)].state, State::Pending, "two at once");
    assert!(world.told(2).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(2));
    world.running.remove(&(id(1), name("web")));
    let did = live(&mut world, 300);
    assert!(did.contains(&format!("apply {}", id(1))), "{did:?}");
    here.remove(0);
    world.publish([here, new.to_vec()].concat());
    let did = live(&mut world, 300);
    assert!(did.contains(&format!("remove {}", id(1))), "{did:?}");
}

#[test]
fn starts_that_hang_keep_nobody_from_being_mended_or_removed() {
    let mut world = World::new(3);
    let (mut here, new) = (all("a"), [8, 9, 10].map(|n| workload(n, &["web"], "a")));
    world.publish(here.clone());
    world.run_until_converged();
    world.publish([here.clone(), new.to_vec()].concat());
    // Nothing that is new ever comes to the end of its start.
    let mut hanging = vec![];
    let mut live = |world: &mut World| {
        let (end, mut did) = (world.now.after(Duration::from_secs(120)), vec![]);
        while world.now < end {
            while let Some(action) = world.device.next(&world.settings, world.now) {
                match &action {
                    Action::Apply(order) if new.iter().any(|new| new.id == order.assignment) => {
                        hanging.push(order.assignment);
                        world.absorb(Event::Began(action));
                        continue;
                    }
                    Action::Apply(order) => did.push(format!("apply {}", order.assignment)),
                    Action::Remove { assignment, .. } => did.push(format!("remove {assignment}")),
                    _ => {}
                }
                world.carry_out(action);
            }
            world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
        }
        did
    };
    assert_eq!(live(&mut world), [""; 0]);
    world.running.remove(&(id(1), name("web")));
    world.running.remove(&(id(2), name("web")));
    assert_eq!(live(&mut world), [format!("apply {}", id(1)), format!("apply {}", id(2))]);
    here.remove(0);
    world.publish([here, new.to_vec()].concat());
    assert_eq!(live(&mut world), [format!("remove {}", id(1))]);
    assert_eq!(hanging, [id(8), id(9)], "two at once");
}

#[test]
fn what_is_to_go_before_it_was_begun_is_not_begun_outside_of_the_window() {
    let mut world = installed(5);
    let schedule =
        Schedule { windows: Some(vec!["mon 09:25-09:40".parse().unwrap()]), ..Schedule::default() };
    want(&mut world, [all("a"), vec![workload(5, &["web"], "a")]].concat(), schedule.clone());
    let fetch = loop {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Prefetch(_)) => break action,
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    };
    world.absorb(Event::Began(fetch.clone()));
    // The window closes while it is fetched, and then it is not wanted any more.
    world.now = MONDAY.after(Duration::from_secs(15 * 60));
    let fetched = world.perform(fetch);
    world.absorb(fetched);
    want(&mut world, all("a"), schedule);
    let end = world.now.after(Duration::from_secs(3600));
    while world.now < end {
        assert_eq!(without_ends_of_downloads(&mut world), []);
        world.now = world.device.wake(&world.settings, world.now).unwrap();
    }
    assert_eq!(world.device.assignments()[&id(5)].wanted, None);
}

#[test]
fn devices_do_not_begin_in_the_moment_in_which_their_window_opens() {
    let mut begins = BTreeSet::new();
    for seed in 0..16 {
        let mut world = installed(seed);
        want(&mut world, all("b"), window());
        let mut told = 0;
        while world.reports.iter().all(|report| report.detail.as_ref().unwrap().state != State::Updating) {
            if world.now < OPENS {
                told = world.reports.len();
            }
            world.step_with(|world, action| {
                if let Action::Apply(_) = action {
                    assert!(world.now >= OPENS, "{} is too early", world.now);
                }
            });
        }
        assert!(world.now.since(OPENS) <= Duration::from_secs(31), "{}", world.now);
        begins.insert(world.now.since(OPENS).as_secs());
        let since: Vec<_> =
            world.reports[told..].iter().map(|report| report.detail.as_ref().unwrap()).collect();
        assert!(since.iter().all(|detail| detail.waiting.is_none()), "nothing new to say: {since:?}");
        world.run_until_converged();
        assert!(world.now < OPENS.after(Duration::from_secs(60)), "all of it in the window");
    }
    assert!(begins.len() >= 8 && *begins.last().unwrap() >= 20, "spread: {begins:?}");
}
