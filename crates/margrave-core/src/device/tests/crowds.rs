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

/// Lives so many minutes in which whatever `slow` says of takes five minutes and fails; tells what else was applied, and in which minute.
fn live_with_slow_failures(
    world: &mut World,
    minutes: u64,
    failing: &mut Vec<(Moment, Action)>,
    slow: impl Fn(&Action) -> bool,
) -> Vec<(u64, AssignmentId)> {
    let began = world.now;
    let end = began.after(Duration::from_secs(60 * minutes));
    let mut applied = vec![];
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            if slow(&action) {
                world.absorb(Event::Began(action.clone()));
                failing.push((world.now.after(Duration::from_secs(300)), action));
                continue;
            }
            if let Action::Apply(order) = &action {
                applied.push((world.now.since(began).as_secs() / 60, order.assignment));
            }
            world.carry_out(action);
        }
        let ends = failing.iter().map(|(at, _)| *at).min();
        let wake = world.device.wake(&world.settings, world.now).unwrap();
        world.now = ends.into_iter().chain([wake, end]).min().unwrap();
        let now = world.now;
        for (_, action) in failing.extract_if(.., |(at, _)| *at <= now) {
            world.absorb(action.undone("took too long", FailureCode::Timeout));
        }
    }
    applied
}

#[test]
fn what_fails_slowly_and_is_tried_again_takes_no_turn_of_what_waits() {
    let mut world = World::new(3);
    let broken = [1, 2, 3, 4];
    world.publish((1..=5).map(|n| workload(n, &["web"], "a")).collect());
    let is_slow = |action: &Action| matches!(action, Action::Apply(order) if order.assignment != id(5));
    let applied = live_with_slow_failures(&mut world, 30, &mut vec![], is_slow);
    assert_eq!(applied, [(10, id(5))], "each of the others had one try");
    let tries = |n: u8| world.device.assignments()[&id(n)].attempt;
    assert!(broken.iter().all(|n| tries(*n) >= 2), "{:?}", broken.map(tries));
}

#[test]
fn what_cannot_be_fetched_and_is_tried_again_keeps_nobody_from_fetching() {
    let mut world = World::new(3);
    world.publish((1..=5).map(|n| workload(n, &["web"], "a")).collect());
    let is_slow = |action: &Action| matches!(action, Action::Prefetch(order) if order.assignment != id(5));
    assert_eq!(live_with_slow_failures(&mut world, 30, &mut vec![], is_slow), [(10, id(5))]);
}

#[test]
fn what_somebody_stopped_is_mended_before_what_cannot_be_mended_is_tried_again() {
    let mut world = World::new(3);
    world.publish((1..=7).map(|n| workload(n, &["web"], "a")).collect());
    world.run_until_converged();
    // Six lose the data base that they share; then somebody removes what is well.
    (1..=6).for_each(|n| assert!(world.running.remove(&(id(n), name("web"))).is_some()));
    let is_slow = |action: &Action| matches!(action, Action::Apply(order) if order.assignment != id(7));
    let mut failing = vec![];
    live_with_slow_failures(&mut world, 20, &mut failing, is_slow);
    world.running.remove(&(id(7), name("web")));
    let mended = live_with_slow_failures(&mut world, 20, &mut failing, is_slow);
    assert!(mended.iter().all(|(minute, _)| *minute <= 6) && mended.len() == 1, "{mended:?}");
}

#[test]
fn images_that_somebody_cleared_away_keep_nobody_else_from_being_mended_or_removed() {
    let mut world = World::new(3);
    let all: Vec<Workload> = (1..=9).map(|n| workload(n, &["web"], "a")).collect();
    world.publish(all.clone());
    world.run_until_converged();
    // Eight ended, and their images are gone: they come over a link that takes hours.
    (1..=8).for_each(|n| assert!(world.running.remove(&(id(n), name("web"))).is_some()));
    let is_slow = |action: &Action| matches!(action, Action::Prefetch(order) if order.assignment != id(9));
    let hang = |world: &mut World, minutes: u64| {
        let end = world.now.after(Duration::from_secs(60 * minutes));
        let mut did = vec![];
        while world.now < end {
            while let Some(action) = world.device.next(&world.settings, world.now) {
                match &action {
                    Action::Prefetch(_) if is_slow(&action) => {
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
    assert_eq!(hang(&mut world, 2), [""; 0]);
    assert!(world.running.remove(&(id(9), name("web"))).is_some());
    assert_eq!(hang(&mut world, 3), [format!("apply {}", id(9))]);
    world.publish(all[..8].to_vec());
    assert_eq!(hang(&mut world, 2), [format!("remove {}", id(9))]);
}

#[test]
fn a_switch_that_has_begun_comes_to_its_end_before_others_begin() {
    let mut world = World::new(3);
    let both = |n: u8, revision: &str| workload(n, &["one", "two"], revision);
    world.settings.work_count_max = 1;
    world.publish(vec![both(1, "a"), both(2, "a")]);
    world.run_until_converged();
    // It fails once, and goes behind the other one from then on.
    world.broken.extend(World::fingerprints(&both(1, "b")));
    world.publish(vec![both(1, "b"), both(2, "a")]);
    live_with_slow_failures(&mut world, 10, &mut vec![], |_| false);
    world.publish(vec![both(1, "c"), both(2, "a")]);
    let half = loop {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Apply(_)) => break action,
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    };
    world.absorb(Event::Began(half.clone()));
    world.publish(vec![both(1, "c"), both(2, "c")]);
    assert_eq!(live_with_slow_failures(&mut world, 5, &mut vec![], |_| false), []);
    let done = world.perform(half);
    world.absorb(done);
    let applied = live_with_slow_failures(&mut world, 5, &mut vec![], |_| false);
    assert_eq!(applied, [(0, id(1)), (0, id(2)), (0, id(2))]);
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

/// Lives so many minutes in which what `hangs` says of never comes to its end; tells what else was touched.
fn live_with_what_hangs(world: &mut World, minutes: u64, hangs: impl Fn(&Action) -> bool) -> Vec<String> {
    let end = world.now.after(Duration::from_secs(60 * minutes));
    let mut did = vec![];
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            if hangs(&action) {
                world.absorb(Event::Began(action));
                continue;
            }
            match &action {
                Action::Apply(order) => did.push(format!("apply {}", order.assignment)),
                Action::Remove { assignment, .. } => did.push(format!("remove {assignment}")),
                _ => {}
            }
            world.carry_out(action);
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
    }
    did
}

#[test]
fn images_that_are_gone_and_starts_that_hang_keep_nobody_together_from_being_mended_or_gone_back_from() {
    let mut world = World::new(3);
    let mut here: Vec<Workload> = (1..=6).map(|n| workload(n, &["web"], "a")).collect();
    let new = [8, 9].map(|n| workload(n, &["web"], "a"));
    world.publish(here.clone());
    world.run_until_converged();
    // The images of four have to come over a link that takes hours, and two new ones never come to the end of their start.
    let hangs = |action: &Action| match action {
        Action::Prefetch(order) => (1..=4u8).any(|n| order.assignment == id(n)),
        Action::Apply(order) => order.assignment == id(8) || order.assignment == id(9),
        _ => false,
    };
    (1..=4).for_each(|n| assert!(world.running.remove(&(id(n), name("web"))).is_some()));
    assert_eq!(live_with_what_hangs(&mut world, 5, hangs), [""; 0]);
    assert_eq!(downloads(&world), [id(1), id(2), id(3), id(4)]);
    world.publish([here.clone(), new.to_vec()].concat());
    assert_eq!(live_with_what_hangs(&mut world, 5, hangs), [""; 0]);
    assert!(world.running.remove(&(id(5), name("web"))).is_some());
    assert_eq!(live_with_what_hangs(&mut world, 3, hangs), [format!("apply {}", id(5))]);
    // Nor from going back.
    here[5] = workload(6, &["web"], "b");
    here[5].hints.rollback = crate::rollback::Rollback::new(None, Some(1), None).unwrap();
    world.sick.extend(World::fingerprints(&here[5]));
    world.settings.work_count_max = 3;
    world.publish([here.clone(), new.to_vec()].concat());
    live_with_what_hangs(&mut world, 10, hangs);
    assert!(world.told(6).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(6));
}

#[test]
fn a_clock_that_is_set_back_keeps_no_place_taken_by_images_that_are_gone() {
    let mut world = World::new(3);
    world.publish((1..=4).map(|n| workload(n, &["web"], "a")).collect());
    world.run_until_converged();
    let hangs = |action: &Action| matches!(action, Action::Prefetch(order) if order.assignment != id(4));
    (1..=3).for_each(|n| assert!(world.running.remove(&(id(n), name("web"))).is_some()));
    while downloads(&world).len() < 3 {
        live_with_what_hangs(&mut world, 1, hangs);
    }
    world.now = Moment(world.now.0 - 8 * 3_600_000);
    assert!(world.running.remove(&(id(4), name("web"))).is_some());
    assert_eq!(live_with_what_hangs(&mut world, 3, hangs), [format!("apply {}", id(4))]);
}
