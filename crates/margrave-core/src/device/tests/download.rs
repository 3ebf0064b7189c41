//! A download that takes hours: what runs is looked after meanwhile.

use super::overtaken::{OPENS, accept, assignment, runs, touched, versions};
use super::waiting::{HOUR, MONDAY, fetching, minutes, spans};
use super::*;
use crate::schedule::Schedule;

/// "a" runs, "c" is wanted, and something of it is under way; with the window closed it is fetched ahead.
fn downloading(windows: Option<&str>) -> (World, [Workload; 3], Order) {
    let windows = windows.map(|window| spans(&[window]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    let all = versions();
    world.want(vec![all[2].clone()]);
    let order = fetching(&mut world);
    assert!(Order::of(&all[2]).contains(&order));
    (world, all, order)
}

fn end(world: &mut World, order: &Order) {
    let event = world.perform(Action::Prefetch(order.clone()));
    world.absorb(event);
    world.commit();
}

#[test]
fn what_runs_is_mended_while_an_update_is_downloaded() {
    let (mut world, all, order) = downloading(None);
    assert_eq!(assignment(&world).state, State::Updating);
    for _ in 0..3 {
        world.running.remove(&(id(1), name("web")));
        let soon = world.now.after(minutes(30));
        assert_eq!(touched(&mut world, soon, &all), ["db a", "web a"]);
        assert!(runs(&world, &all[0]) && !world.device.obsolete(&Action::Prefetch(order.clone())));
    }
    assert_eq!(assignment(&world).state, State::Updating);
    end(&mut world, &order);
    world.run_until_converged();
    assert!(runs(&world, &all[2]));
}

#[test]
fn what_runs_is_mended_while_an_update_is_downloaded_ahead_and_when_its_window_opens_over_that() {
    let (mut world, all, order) = downloading(Some("mon 22:00-23:00"));
    assert_eq!(assignment(&world).state, State::Installed);
    for moment in [MONDAY.after(HOUR), OPENS.after(minutes(5))] {
        let began = moment.max(world.now);
        assert!(touched(&mut world, began, &all).is_empty());
        world.running.remove(&(id(1), name("web")));
        assert_eq!(touched(&mut world, began.after(minutes(10)), &all), ["db a", "web a"]);
        assert!(runs(&world, &all[0]) && !world.device.obsolete(&Action::Prefetch(order.clone())));
        assert_eq!(assignment(&world).state, State::Installed);
    }
    assert_eq!(world.waiting(1), Some("waits for its download"));
    end(&mut world, &order);
    world.run_until_converged();
    assert!(runs(&world, &all[2]) && world.now < OPENS.after(minutes(20)));
}

#[test]
fn one_download_at_a_time_is_under_way_for_a_deployment() {
    for windows in [None, Some("mon 22:00-23:00")] {
        let (mut world, _, order) = downloading(windows);
        let end = world.now.after(HOUR);
        while world.now < end {
            while let Some(action) = world.device.next(&world.settings, world.now) {
                assert!(!matches!(action, Action::Prefetch(_)), "{action:?} beside {order:?}");
                world.carry_out(action);
            }
            world.now = world.device.wake(&world.settings, world.now).unwrap();
        }
    }
}

#[test]
fn a_download_that_nobody_wants_any_more_is_dropped_and_the_next_one_begins() {
    for windows in [None, Some("mon 22:00-23:00")] {
        for removed in [false, true] {
            let (mut world, all, order) = downloading(windows);
            let action = Action::Prefetch(order);
            world.want(if removed { vec![] } else { vec![all[1].clone()] });
            accept(&mut world);
            assert!(world.device.obsolete(&action));
            world.absorb(action.undone("something else is wanted", FailureCode::StartFailed));
            world.now = windows.map_or(world.now, |_| OPENS);
            world.run_until_converged();
            assert!(if removed { world.running.is_empty() } else { runs(&world, &all[1]) });
            assert!(
                world.reports.iter().all(|report| report.state != Reported::Failed),
                "{:?}",
                world.reports
            );
        }
    }
}

/// The download says in the end that it can never be used here, while what runs is being mended.
#[test]
fn what_is_mended_is_brought_to_its_end_when_the_download_beside_it_fails_for_good() {
    let (mut world, all, order) = downloading(None);
    world.running.remove(&(id(1), name("web")));
    let mending = loop {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Apply(_)) => break action,
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    };
    world.absorb(Event::Began(mending.clone()));
    let wrong = FailureCode::ArchiveInvalid;
    assert_eq!(wrong.retry(), crate::report::Retry::NotUntilManifestChanges);
    world.absorb(Action::Prefetch(order).undone("not an archive", wrong));
    assert!(!world.device.obsolete(&mending));
    let event = world.perform(mending);
    world.absorb(event);
    let soon = world.now.after(minutes(10));
    touched(&mut world, soon, &all);
    assert!(runs(&world, &all[0]));
    let held = assignment(&world);
    assert!(held.state == State::Installed && held.gave_up().is_some(), "{held:?}");
}

/// The same order is in both versions: it is fetched once, and counts for whoever needs it.
#[test]
fn what_is_mended_waits_for_nothing_but_what_it_needs_itself() {
    let mut world = World::scheduled(Schedule::default());
    let [old, ..] = versions();
    let new = workload(1, &["db", "web", "zip"], "a");
    let all = [old.clone(), new.clone()];
    world.want(vec![new.clone()]);
    let order = loop {
        let order = fetching(&mut world);
        if order.component == name("zip") {
            break order;
        }
        end(&mut world, &order);
    };
    world.running.remove(&(id(1), name("db")));
    let soon = world.now.after(minutes(5));
    assert_eq!(touched(&mut world, soon, &all), ["db a", "web a"]);
    end(&mut world, &order);
    world.run_until_converged();
    assert!(runs(&world, &new));
}

/// "b" is being applied over "a" when "c" comes; what is done next, with that of "b" dropped.
fn overtaken_half_way() -> (World, [Workload; 3]) {
    let mut world = World::scheduled(Schedule::default());
    let all = versions();
    world.want(vec![all[1].clone()]);
    let applying = begun(&mut world, |action| matches!(action, Action::Apply(_)));
    world.want(vec![all[2].clone()]);
    accept(&mut world);
    assert!(world.device.obsolete(&applying));
    world.absorb(applying.undone("something else is wanted", FailureCode::StartFailed));
    (world, all)
}

/// Lives until something like this is to be done, and begins with it.
fn begun(world: &mut World, is_it: impl Fn(&Action) -> bool) -> Action {
    loop {
        match world.device.next(&world.settings, world.now) {
            Some(action) if is_it(&action) => {
                world.absorb(Event::Began(action.clone()));
                return action;
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
}

fn is_of(workload: &Workload, action: &Action) -> bool {
    matches!(action, Action::Apply(order) | Action::Prefetch(order) if Order::of(workload).contains(order))
}

#[test]
fn what_was_overtaken_half_way_is_not_tried_again_before_what_is_newer_had_the_time_to_come() {
    let (mut world, all) = overtaken_half_way();
    let soon = world.now.after(world.settings.retry_delay / 2);
    let mut under_way = vec![];
    while let Some(action) = world.device.next(&world.settings, world.now) {
        assert!(!is_of(&all[1], &action), "{action:?}");
        match action {
            Action::Prefetch(_) => {
                world.absorb(Event::Began(action.clone()));
                under_way.push(action);
            }
            action => world.carry_out(action),
        }
    }
    world.now = soon;
    for action in under_way {
        let event = world.perform(action);
        world.absorb(event);
    }
    let end = world.now.after(minutes(1));
    assert_eq!(touched(&mut world, end, &all), ["db c", "web c"]);
    assert!(runs(&world, &all[2]));
}

#[test]
fn what_is_newer_and_here_does_not_wait_until_what_it_replaces_is_mended() {
    let (mut world, all, order) = downloading(None);
    world.running.remove(&(id(1), name("web")));
    // Its start hangs.
    let mending = begun(&mut world, |action| matches!(action, Action::Apply(_)));
    assert!(is_of(&all[0], &mending));
    end(&mut world, &order);
    // What is still missing is fetched meanwhile.
    let next = begun(&mut world, |action| is_of(&all[2], action));
    assert!(matches!(next, Action::Prefetch(_)) && !world.device.obsolete(&mending));
    let event = world.perform(next);
    world.absorb(event);
    assert!(world.device.obsolete(&mending));
    world.absorb(mending.undone("something else is wanted", FailureCode::StartFailed));
    let soon = world.now.after(minutes(1));
    assert_eq!(touched(&mut world, soon, &all), ["db c", "web c"]);
    assert!(world.reports.iter().all(|report| report.state != Reported::Failed), "{:?}", world.reports);
}

/// How long a start may take is no part of what runs: told by its fingerprint it is the same.
#[test]
fn what_is_fetched_for_the_newer_one_is_not_fetched_once_more_for_what_runs() {
    let (mut world, _, order) = {
        let mut world = World::scheduled(Schedule::default());
        let all = versions();
        let mut new = all[0].clone();
        for component in &mut new.components {
            component.wait = Some(false);
        }
        new.hints.windows = None;
        world.want(vec![new]);
        let order = fetching(&mut world);
        (world, all, order)
    };
    world.running.clear();
    let end = world.now.after(minutes(5));
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            let again = matches!(&action, Action::Prefetch(other) if other.component == order.component);
            assert!(!again, "{action:?}");
            world.carry_out(action);
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap();
    }
}

/// What comes while the repair of what runs hangs is taken up and fetched beside it, in its hours only.
#[test]
fn what_is_newer_still_is_fetched_while_what_runs_is_mended_and_only_when_it_may_be() {
    for quiet in [false, true] {
        let (mut world, all, order) = downloading(None);
        world.running.remove(&(id(1), name("web")));
        let mending = begun(&mut world, |action| matches!(action, Action::Apply(_)));
        let hours = if quiet { spans(&["mon 22:00-23:00"]) } else { vec![] };
        world.publish(vec![all[1].clone()]);
        world.manifest = world.manifest.clone().with_schedule(Schedule { hours, ..Schedule::default() });
        accept(&mut world);
        let download = Action::Prefetch(order);
        assert!(world.device.obsolete(&download) && !world.device.obsolete(&mending));
        world.absorb(download.undone("something else is wanted", FailureCode::StartFailed));
        let mut fetched = 0;
        while let Some(action) = world.device.next(&world.settings, world.now) {
            fetched += usize::from(is_of(&all[1], &action));
            world.carry_out(action);
        }
        assert_eq!(fetched, if quiet { 0 } else { 2 });
        // Then it has everything, and goes first.
        assert_eq!(world.device.obsolete(&mending), !quiet);
    }
}

/// What both versions have is fetched, or found to be here, while what runs is mended.
#[test]
fn what_is_newer_goes_first_also_where_both_have_something_in_common() {
    let value = |n: usize, value: &str| {
        let mut workload = workload(1, &["db", "web"], "a");
        workload.components[n].revision = crate::package::Revision::parse(value).unwrap();
        workload
    };
    for differs in [0, 1] {
        let mut world = World::scheduled(Schedule::default());
        let old = versions()[0].clone();
        let (new, newer) = (value(differs, "2.0.0"), value(differs, "3.0.0"));
        world.want(vec![new.clone()]);
        let common = Order::of(&old);
        let order = loop {
            let order = fetching(&mut world);
            if !common.contains(&order) {
                break order;
            }
            end(&mut world, &order);
        };
        world.running.remove(&(id(1), name("web")));
        let mending = begun(&mut world, |action| matches!(action, Action::Apply(_)));
        assert!(is_of(&old, &mending));
        world.want(vec![newer.clone()]);
        accept(&mut world);
        let download = Action::Prefetch(order);
        assert!(world.device.obsolete(&download));
        world.absorb(download.undone("something else is wanted", FailureCode::StartFailed));
        while let Some(action) = world.device.next(&world.settings, world.now) {
            assert!(!matches!(action, Action::Apply(_)), "{action:?}");
            world.carry_out(action);
        }
        assert!(world.device.obsolete(&mending), "{differs}");
        world.absorb(mending.undone("something else is wanted", FailureCode::StartFailed));
        world.run_until_converged();
        assert!(runs(&world, &newer));
    }
}

#[test]
fn what_is_to_go_does_not_wait_until_it_is_mended_unless_it_has_to_wait_anyway() {
    for held in [false, true] {
        let (mut world, _, order) = downloading(None);
        world.running.remove(&(id(1), name("web")));
        let mending = begun(&mut world, |action| matches!(action, Action::Apply(_)));
        if held {
            world.hold("mes", HOUR).unwrap();
        }
        world.want(vec![]);
        accept(&mut world);
        assert_eq!(world.device.obsolete(&mending), !held);
        if !held {
            let download = Action::Prefetch(order);
            assert!(world.device.obsolete(&download));
            world.absorb(download.undone("something else is wanted", FailureCode::StartFailed));
            world.absorb(mending.undone("something else is wanted", FailureCode::StartFailed));
            assert_eq!(assignment(&world).state, State::Deleting);
        }
    }
}

/// What runs is wanted again while it is mended: mending it is all that there is to do.
#[test]
fn what_is_wanted_again_while_it_is_mended_is_not_fetched_beside_that() {
    let (mut world, all, order) = downloading(None);
    world.running.remove(&(id(1), name("web")));
    let mending = begun(&mut world, |action| is_of(&all[0], action));
    world.want(vec![all[0].clone()]);
    accept(&mut world);
    let download = Action::Prefetch(order);
    assert!(world.device.obsolete(&download));
    world.absorb(download.undone("something else is wanted", FailureCode::StartFailed));
    while let Some(action) = world.device.next(&world.settings, world.now) {
        assert!(!matches!(action, Action::Prefetch(_) | Action::Apply(_)), "{action:?} beside {mending:?}");
        world.carry_out(action);
    }
    let event = world.perform(mending);
    world.absorb(event);
    world.run_until_converged();
    assert!(runs(&world, &all[0]));
}

/// The download that is under way fails, and that is written down; until when the next one waits.
fn fail_ahead(world: &mut World, order: &Order) -> Moment {
    world.absorb(Action::Prefetch(order.clone()).undone("the registry is away", FailureCode::PullFailed));
    world.commit();
    assignment(world).ahead.as_ref().unwrap().next
}

/// Somebody restarts the agent, or the power goes, again and again: no reason to ask a registry that is away as often.
#[test]
fn what_could_not_be_fetched_ahead_keeps_its_pause_over_restarts() {
    let (mut world, _, mut order) = downloading(Some("mon 22:00-23:00"));
    let mut pauses = vec![];
    for _ in 0..5 {
        let next = fail_ahead(&mut world, &order);
        pauses.push(next.since(world.now));
        let told = (world.waiting(1).map(str::to_owned), world.device.outbox().next_sequence());
        assert!(told.0.as_ref().is_some_and(|waiting| waiting.ends_with("the registry is away")), "{told:?}");
        world.boot();
        order = fetching(&mut world);
        assert!(world.now >= next, "{:?} too early", next.since(world.now));
        // Nor is a restart news.
        assert_eq!((world.waiting(1).map(str::to_owned), world.device.outbox().next_sequence()), told);
    }
    assert!(pauses.is_sorted() && pauses[4] > world.settings.retry_delay * 4, "{pauses:?}");
    end(&mut world, &order);
    world.now = OPENS;
    world.run_until_converged();
}

/// A device without a battery for its clock starts in 1970: a pause that ends in half a century is none.
#[test]
fn what_could_not_be_fetched_ahead_is_tried_by_a_clock_that_starts_anew() {
    let (mut world, _, order) = downloading(Some("mon 22:00-23:00"));
    fail_ahead(&mut world, &order);
    world.now = Moment(0);
    world.boot();
    fetching(&mut world);
    assert!(world.now < Moment(0).after(minutes(1)), "{}", world.now);
}

#[test]
fn what_could_not_be_fetched_of_one_version_is_not_said_of_another() {
    let (mut world, all, order) = downloading(Some("mon 22:00-23:00"));
    fail_ahead(&mut world, &order);
    world.want(vec![all[1].clone()]);
    accept(&mut world);
    assert!(
        world.waiting(1).is_some_and(|waiting| !waiting.contains("failed so far")),
        "{:?}",
        world.waiting(1)
    );
    let begun = world.now;
    fetching(&mut world);
    assert!(world.now < begun.after(world.settings.retry_delay / 2), "a changed manifest starts anew");
}
