//! Something newer has come and may not begin yet: until it does, a device lives by what it has, as if nothing had come.

use super::waiting::{HOUR, MONDAY, minutes, spans, touches};
use super::*;
use crate::rollback::{Rollback, When};
use crate::schedule::Schedule;

/// The window of the evening, once the one of the morning is over.
pub(super) const OPENS: Moment = Moment(MONDAY.0 + 45_000_000);

pub(super) fn assignment(world: &World) -> &Assignment {
    &world.device.assignments()[&id(1)]
}

pub(super) fn runs(world: &World, workload: &Workload) -> bool {
    world.running.values().copied().collect::<Vec<_>>() == World::fingerprints(workload)
}

pub(super) fn versions() -> [Workload; 3] {
    ["a", "b", "c"].map(|value| workload(1, &["db", "web"], value))
}

/// Wants a version that cannot get well, until its first try failed.
fn fail_first(world: &mut World, bad: &Workload) {
    world.broken.insert(World::fingerprints(bad)[1]);
    world.want(vec![bad.clone()]);
    while assignment(world).state != State::Failed {
        world.step();
    }
}

/// Until the first try of "b" failed; "a" ran well before it. It is Monday morning, and the window is open until ten.
fn failed_once(rollback: Rollback) -> (World, [Workload; 3]) {
    let windows = Some(spans(&["mon 09:00-10:00", "mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    let [old, mut bad, new] = versions();
    bad.hints.rollback = rollback;
    fail_first(&mut world, &bad);
    assert!(assignment(&world).strikes == 1 && assignment(&world).next_try.is_some());
    (world, [old, bad, new])
}

/// "c" comes when the window is closed, and is known here.
fn overtake(world: &mut World, new: &Workload) {
    finish(world);
    world.now = world.now.max(MONDAY.after(minutes(31)));
    world.want(vec![new.clone()]);
    accept(world);
    assert!(world.waiting(1).is_some_and(|said| said.contains("22:00")), "{:?}", world.waiting(1));
}

/// What is under way comes to its end, and nothing begins.
fn finish(world: &mut World) {
    for action in std::mem::take(&mut world.doing) {
        let event = world.perform(action);
        world.absorb(event);
    }
    world.commit();
}

/// Until the newest manifest is here; nothing else is done meanwhile.
pub(super) fn accept(world: &mut World) {
    let poll = Action::Poll { held: None, wait: Duration::ZERO };
    world.absorb(Event::Began(poll.clone()));
    let event = world.perform(poll);
    world.absorb(event);
    while world.device.accepted().unwrap().version != world.manifest.version() {
        match world.device.next(&world.settings, world.now) {
            Some(action @ (Action::Fetch(_) | Action::Send(_))) => world.carry_out(action),
            action => panic!("not fetched: {action:?}"),
        }
    }
    world.commit();
}

/// What is done to containers until then, each with the version that it is of.
pub(super) fn touched(world: &mut World, end: Moment, of: &[Workload]) -> Vec<String> {
    let name = |order: &Order| {
        let is_of = |workload: &&Workload| Order::of(workload).contains(order);
        let workload = of.iter().find(is_of).expect("of a version that was published");
        format!("{} {}", order.component, workload.parameters[0].value)
    };
    let mut did = vec![];
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            match &action {
                Action::Apply(order) => did.push(name(order)),
                Action::Remove { component, .. } => did.push(format!("remove {component}")),
                _ => {}
            }
            world.carry_out(action);
            world.commit();
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
    }
    did
}

#[test]
fn an_update_that_failed_is_tried_and_gone_back_from_while_something_newer_waits() {
    for reboots in [false, true] {
        let (mut world, all) = failed_once(Rollback::default());
        overtake(&mut world, &all[2]);
        if reboots {
            world.boot();
        }
        let soon = world.now.after(minutes(2));
        let did = touched(&mut world, soon, &all);
        assert_eq!(did, ["db b", "web b", "db a", "web a"]);
        assert!(runs(&world, &all[0]));
        assert!(world.told(1).ends_with("UPDATING FAILED ROLLINGBACK INSTALLED"), "{}", world.told(1));
        // Neither has what waits been adopted, nor what was given up become well.
        let last = world.reports.last().unwrap();
        assert_eq!((last.state, last.adopted_version), (Reported::Failed, world.manifest.version() - 1));
        assert!(last.detail.as_ref().unwrap().waiting.is_some());
        // And no more of the bad one, until the window opens: then the newer one, and nothing else.
        if reboots {
            world.boot();
        }
        assert!(touched(&mut world, OPENS, &all).is_empty());
        let did = touched(&mut world, OPENS.after(minutes(2)), &all);
        assert_eq!(did, ["db c", "web c"]);
        world.run_until_converged();
        assert_eq!(assignment(&world).given_up, None);
    }
}

#[test]
fn what_may_not_go_back_is_tried_until_the_newer_one_begins_and_never_after() {
    let (mut world, all) = failed_once(Rollback { when: When::Never, ..Rollback::default() });
    overtake(&mut world, &all[2]);
    let did = touched(&mut world, OPENS, &all);
    // The usual pauses: a quarter of an hour at most, and half of that at least.
    assert!((50..=200).contains(&did.len()), "{}", did.len());
    assert!(did.iter().all(|did| did.ends_with(" b")), "{did:?}");
    let next_try = assignment(&world).next_try.unwrap();
    let started = touched(&mut world, OPENS.after(minutes(1)), &all);
    assert_eq!(started, ["db c", "web c"], "in the middle of its pause, until {next_try}");
    let more = touched(&mut world, OPENS.after(3 * HOUR), &all);
    assert!(more.is_empty() && runs(&world, &all[2]), "{more:?}");
}

#[test]
fn a_hold_lets_what_is_here_be_tried_and_gone_back_from_as_well() {
    let mut world = World::scheduled(Schedule::default());
    let all = versions();
    fail_first(&mut world, &all[1]);
    finish(&mut world);
    world.hold("mes", 2 * HOUR).unwrap();
    world.want(vec![all[2].clone()]);
    accept(&mut world);
    let end = world.now.after(HOUR);
    assert_eq!(touched(&mut world, end, &all), ["db b", "web b", "db a", "web a"]);
    world.absorb(Event::Released(None));
    world.run_until_converged();
    assert!(runs(&world, &all[2]));
}

#[test]
fn what_is_on_its_way_back_gets_there_before_something_newer_begins() {
    for reboots in [false, true] {
        let (mut world, all) = failed_once(Rollback::default());
        while assignment(&world).state != State::RollingBack {
            world.step();
        }
        overtake(&mut world, &all[2]);
        if reboots {
            world.boot();
        }
        assert_eq!(assignment(&world).state, State::RollingBack);
        let soon = world.now.after(minutes(2));
        assert_eq!(touched(&mut world, soon, &all), ["db a", "web a"]);
        assert!(world.told(1).ends_with("FAILED ROLLINGBACK INSTALLED"), "{}", world.told(1));
        assert_eq!(touched(&mut world, OPENS.after(minutes(2)), &all), ["db c", "web c"]);
    }
}

/// A reboot in the middle, so that nothing is under way when the newer one comes.
#[test]
fn what_was_begun_is_finished_before_something_newer_begins() {
    let windows = Some(spans(&["mon 09:00-10:00", "mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    let all = versions();
    world.want(vec![all[1].clone()]);
    while !world.doing.iter().any(|action| matches!(action, Action::Apply(_))) {
        world.step();
    }
    world.boot();
    overtake(&mut world, &all[2]);
    let did = touched(&mut world, MONDAY.after(HOUR), &all);
    assert_eq!(did, ["web b"], "and not again what is done");
    assert_eq!(assignment(&world).state, State::Installed);
    assert_eq!(touched(&mut world, OPENS.after(minutes(2)), &all), ["db c", "web c"]);
}

#[test]
fn an_update_that_falls_ill_while_something_newer_waits_is_gone_back_from() {
    let windows = Some(spans(&["mon 09:00-10:00", "mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    let all = versions();
    world.now = MONDAY.after(minutes(29));
    world.want(vec![all[1].clone()]);
    world.run_until_converged();
    overtake(&mut world, &all[2]);
    world.sick.insert(World::fingerprints(&all[1])[1]);
    touched(&mut world, MONDAY.after(HOUR), &all);
    assert!(
        world.told(1).ends_with("FAILED UPDATING INSTALLED FAILED ROLLINGBACK INSTALLED"),
        "{}",
        world.told(1)
    );
    assert!(runs(&world, &all[0]));
    assert_eq!(touched(&mut world, OPENS.after(minutes(2)), &all), ["db c", "web c"]);
}

#[test]
fn what_is_withdrawn_before_it_began_leaves_what_is_here_to_be_tried_at_once() {
    let (mut world, all) = failed_once(Rollback { when: When::Never, ..Rollback::default() });
    overtake(&mut world, &all[2]);
    touched(&mut world, MONDAY.after(5 * HOUR), &all);
    assert!(assignment(&world).next_try.unwrap().since(world.now) > minutes(1), "{:?}", assignment(&world));
    world.broken.clear();
    world.want(vec![all[1].clone()]);
    accept(&mut world);
    assert_eq!(world.waiting(1), None);
    let soon = world.now.after(minutes(1));
    assert_eq!(touched(&mut world, soon, &all), ["db b", "web b"]);
    world.run_until_converged();

    // What was given up meanwhile is wanted once more: a change like any other, which waits for its window.
    let (mut world, all) = failed_once(Rollback::default());
    overtake(&mut world, &all[2]);
    touched(&mut world, MONDAY.after(5 * HOUR), &all);
    world.want(vec![all[1].clone()]);
    accept(&mut world);
    assert!(touched(&mut world, OPENS, &all).is_empty() && world.waiting(1).is_some());
    world.broken.clear();
    world.run_until_converged();
    assert!(runs(&world, &all[1]));
}

#[test]
fn what_is_to_go_and_may_not_yet_is_gone_back_from_too() {
    let (mut world, all) = failed_once(Rollback::default());
    finish(&mut world);
    world.now = MONDAY.after(minutes(31));
    world.want(vec![]);
    accept(&mut world);
    let soon = world.now.after(minutes(2));
    assert_eq!(touched(&mut world, soon, &all), ["db b", "web b", "db a", "web a"]);
    assert_eq!(touched(&mut world, OPENS.after(minutes(2)), &all), ["remove web", "remove db"]);
    world.run_until_converged();
    assert!(world.device.assignments().is_empty());
}

#[test]
fn what_only_the_failed_update_had_goes_also_when_its_document_is_not_wanted_any_more() {
    let mut world = World::scheduled(Schedule::default());
    let (old, bad) = (workload(1, &["db", "web"], "a"), workload(1, &["proxy", "web"], "b"));
    let new = workload(1, &["db", "web"], "c");
    world.broken.insert(World::fingerprints(&bad)[1]);
    world.want(vec![bad.clone()]);
    while assignment(&world).state != State::RollingBack {
        world.step();
    }
    finish(&mut world);
    world.hold("mes", 2 * HOUR).unwrap();
    world.want(vec![new.clone()]);
    accept(&mut world);
    world.boot();
    let soon = world.now.after(minutes(2));
    let did = touched(&mut world, soon, &[old.clone(), bad, new]);
    assert_eq!(did, ["remove proxy", "db a", "web a"]);
    assert!(runs(&world, &old));
}

/// The disk loses the document of what is tried, and only what is wanted is fetched again.
#[test]
fn what_cannot_be_tried_any_more_because_its_document_is_lost_is_gone_back_from() {
    let (mut world, all) = failed_once(Rollback::default());
    overtake(&mut world, &all[2]);
    world.blobs.remove(&document(&all[1]).digest()).unwrap();
    world.boot();
    let soon = world.now.after(minutes(2));
    assert_eq!(touched(&mut world, soon, &all), ["db a", "web a"]);
    assert_eq!(touched(&mut world, OPENS.after(minutes(2)), &all), ["db c", "web c"]);

    // With nothing to go back to it rests, and the newer one begins all the same.
    let (mut world, all) = failed_once(Rollback::default());
    overtake(&mut world, &all[2]);
    for lost in &all[..2] {
        world.blobs.remove(&document(lost).digest()).unwrap();
    }
    world.boot();
    assert!(touched(&mut world, OPENS, &all).is_empty());
    assert_eq!(touched(&mut world, OPENS.after(minutes(2)), &all), ["db c", "web c"]);
}

#[test]
fn what_is_gone_back_to_and_wanted_again_is_adopted_as_that() {
    let (mut world, all) = failed_once(Rollback::default());
    overtake(&mut world, &all[0]);
    world.blobs.remove(&document(&all[1]).digest()).unwrap();
    world.boot();
    let soon = world.now.after(minutes(2));
    assert_eq!(touched(&mut world, soon, &all), ["db a", "web a"]);
    let assignment = assignment(&world);
    assert_eq!((assignment.state, &assignment.given_up), (State::Installed, &None));
    assert_eq!(assignment.adopted_version, world.manifest.version(), "nobody waits for it any more");
}

#[test]
fn a_newer_document_that_is_lost_lets_what_failed_be_tried_until_it_is_here_again() {
    let mut world = World::scheduled(Schedule::default());
    let all = versions();
    fail_first(&mut world, &all[1]);
    finish(&mut world);
    world.want(vec![all[2].clone()]);
    accept(&mut world);
    assert!(world.waiting(1).is_none());
    world.blobs.remove(&document(&all[2]).digest()).unwrap();
    let stored = std::mem::take(&mut world.store);
    world.boot();
    let soon = world.now.after(minutes(5));
    assert_eq!(touched(&mut world, soon, &all), ["db b", "web b", "db a", "web a"]);
    world.store = stored;
    world.run_until_converged();
    assert!(runs(&world, &all[2]));
}

#[test]
fn what_cannot_be_fetched_for_lack_of_a_network_lets_what_is_here_be_tried() {
    let mut world = World::scheduled(Schedule { hours: spans(&["mon 09:00-10:00"]), ..Schedule::default() });
    let all = versions();
    world.now = MONDAY.after(minutes(25));
    fail_first(&mut world, &all[1]);
    finish(&mut world);
    world.want(vec![all[2].clone()]);
    accept(&mut world);
    // Nobody is to be talked to for a week.
    world.now = MONDAY.after(minutes(31));
    world.boot();
    assert_eq!(touched(&mut world, MONDAY.after(HOUR), &all), ["db b", "web b", "db a", "web a"]);
    assert!(world.waiting(1).is_some_and(|said| said.contains("download")), "{:?}", world.waiting(1));
}

#[test]
fn tries_that_were_used_up_are_not_begun_anew_by_what_has_to_wait() {
    let mut world = World::scheduled(Schedule::default());
    let [_, mut bad, new] = versions();
    bad.hints.rollback = Rollback::new(Some(When::Never), Some(2), None).unwrap();
    world.broken.insert(World::fingerprints(&bad)[1]);
    world.want(vec![bad.clone()]);
    world.rest();
    finish(&mut world);
    world.hold("mes", 5 * HOUR).unwrap();
    world.want(vec![new.clone()]);
    accept(&mut world);
    let did = world.live_until(world.now.after(2 * HOUR));
    assert!(touches(&did).is_empty(), "{did:?}");
    // It may get well by hand all the same.
    world.running = World::running(&bad);
    world.live_until(world.now.after(minutes(5)));
    assert_eq!(assignment(&world).state, State::Installed);
    world.absorb(Event::Released(None));
    world.run_until_converged();
}

#[test]
fn what_was_never_touched_is_not_tried_any_more_once_something_newer_waits() {
    let mut world = World::scheduled(Schedule::default());
    let all = versions();
    world.want(vec![all[1].clone()]);
    let order = super::waiting::fetching(&mut world);
    world.hold("mes", 2 * HOUR).unwrap();
    world.absorb(Action::Prefetch(order).undone("no such line", FailureCode::PullFailed));
    assert_eq!(assignment(&world).state, State::Failed);
    world.want(vec![all[2].clone()]);
    accept(&mut world);
    let end = world.now.after(HOUR);
    while world.now < end {
        world.step_with(|_, action| match action {
            Action::Prefetch(order) => assert!(Order::of(&versions()[2]).contains(order), "{order:?}"),
            Action::Apply(order) => panic!("{order:?}"),
            _ => {}
        });
    }
    assert_eq!(assignment(&world).state, State::Failed);
    assert_eq!(assignment(&world).ready, Some(document(&all[2]).digest()));
    world.absorb(Event::Released(None));
    world.run_until_converged();
}

/// Seed 1575 of `margrave-world`.
#[test]
fn drift_that_is_left_stays_so_when_something_newer_came_and_was_withdrawn() {
    let mut world = World::scheduled(Schedule { leaves_drift: true, ..Schedule::default() });
    let all = versions();
    world.running.remove(&(id(1), name("web")));
    world.live_until(world.now.after(minutes(5)));
    assert!(assignment(&world).is_left());
    world.hold("mes", 5 * HOUR).unwrap();
    for wanted in [&all[2], &all[0]] {
        world.want(vec![wanted.clone()]);
        let did = world.live_until(world.now.after(HOUR));
        assert!(touches(&did).is_empty(), "{did:?}");
    }
    assert_eq!(assignment(&world).state, State::Failed);
    // By hand it gets well.
    world.running = World::running(&all[0]);
    world.live_until(world.now.after(minutes(5)));
    assert_eq!(assignment(&world).state, State::Installed);
}

impl World {
    /// Everything of a version, as it would run.
    fn running(workload: &Workload) -> BTreeMap<(AssignmentId, ComponentName), Digest> {
        let orders = Order::of(workload).into_iter();
        orders.map(|order| ((order.assignment, order.component.clone()), order.fingerprint())).collect()
    }
}

/// What is here was never good, and what came next was only taken up.
#[test]
fn going_back_by_hand_waits_for_the_window_though_something_else_was_taken_up_in_between() {
    for holds in [false, true] {
        let windows = Some(spans(&["mon 09:00-10:00", "mon 22:00-23:00"])).filter(|_| !holds);
        let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
        let [old, mut bad, new] = versions();
        bad.hints.rollback = Rollback { when: When::Never, ..Rollback::default() };
        fail_first(&mut world, &bad);
        finish(&mut world);
        world.want(vec![new.clone()]);
        accept(&mut world);
        let order = super::waiting::fetching(&mut world);
        assert!(Order::of(&new).contains(&order));
        assert_eq!(assignment(&world).state, State::Updating);
        // A slow line, until it is over or somebody holds.
        world.now = MONDAY.after(minutes(31));
        if holds {
            world.hold("mes", 2 * HOUR).unwrap();
        }
        world.want(vec![old.clone()]);
        accept(&mut world);
        let all = [old.clone(), bad, new];
        let until = if holds { world.now.after(HOUR) } else { OPENS };
        let did = touched(&mut world, until, &all);
        assert!(did.iter().all(|did| did.ends_with(" b")), "only what is here is tried: {did:?}");
        assert!(world.waiting(1).is_some());
        if holds {
            world.absorb(Event::Released(None));
        }
        let end = until.after(minutes(2));
        let did = touched(&mut world, end, &all);
        assert_eq!(did[did.len() - 2..], ["db a", "web a"], "{did:?}");
        assert!(runs(&world, &old));
    }
}
