//! A number of tries that somebody asked for, where there is nothing to go back to.

use super::*;
use crate::asked::Asked;
use crate::rollback::{Rollback, When};

fn asked_for(attempts: u32, when: When) -> Rollback {
    Rollback::new(Some(when), Some(attempts), None).unwrap()
}

/// A first install that does not start.
fn failing_install(rollback: Rollback) -> (World, Workload) {
    let mut world = World::new(13);
    let mut new = workload(1, &["web"], "a");
    new.hints.rollback = rollback;
    world.broken.insert(World::fingerprints(&new)[0]);
    world.publish(vec![new.clone()]);
    (world, new)
}

fn live(world: &mut World, hours: u64) {
    let end = world.now.after(Duration::from_secs(hours * 3600));
    while world.now < end {
        world.step();
    }
}

fn assignment(world: &World) -> &Assignment {
    &world.device.assignments()[&id(1)]
}

fn tries(world: &World) -> usize {
    world.told(1).matches("INSTALLING").count() + world.told(1).matches("UPDATING").count()
}

fn given_up(world: &World, words: &str) -> bool {
    let held = assignment(world);
    let message = held.failure.as_ref().map_or("", |failure| failure.message.as_str());
    held.state == State::Failed && held.next_try.is_none() && message.contains(words)
}

#[test]
fn a_first_install_is_given_up_after_so_many_tries_and_says_what_to_do() {
    for (attempts, words) in [(1, "after one try"), (3, "after 3 tries")] {
        let (mut world, new) = failing_install(asked_for(attempts, When::OnFailedUpdate));
        live(&mut world, 4);
        assert_eq!(tries(&world), attempts as usize);
        assert!(
            given_up(&world, words) && given_up(&world, "margrave device look"),
            "{:?}",
            assignment(&world)
        );
        let last = world.reports.last().unwrap();
        assert_eq!(
            (last.state, last.fault.as_ref().unwrap().code.as_str()),
            (Reported::Failed, "start-failed")
        );
        assert_eq!(last.detail.as_ref().unwrap().next_try, None);

        // Neither time, nor a restart, nor another deployment is a reason to begin anew.
        world.commit();
        world.boot();
        world.publish(vec![new.clone(), workload(2, &["db"], "a")]);
        live(&mut world, 4);
        assert_eq!(tries(&world), attempts as usize);
        // Its own entry is.
        let mut other = workload(1, &["web"], "b");
        other.hints.rollback = new.hints.rollback;
        world.publish(vec![other, workload(2, &["db"], "a")]);
        world.run_until_converged();
    }
}

#[test]
fn a_fresh_look_that_is_asked_for_begins_anew() {
    let (mut world, new) = failing_install(asked_for(2, When::OnFailedUpdate));
    live(&mut world, 5);
    assert!(given_up(&world, "after 2 tries"));
    let look = |number: u64, world: &mut World| {
        world.publish(vec![new.clone()]);
        world.manifest = world.manifest.clone().with_asked(Asked { hold: None, look: number });
        live(world, 5);
    };
    look(1, &mut world);
    assert_eq!(tries(&world), 4);
    assert!(given_up(&world, "after 2 tries"));
    world.broken.clear();
    look(2, &mut world);
    assert_eq!(assignment(&world).state, State::Installed);
}

#[test]
fn an_update_that_may_not_go_back_is_given_up_as_well() {
    let mut world = World::new(13);
    let (old, mut new) = (workload(1, &["web"], "a"), workload(1, &["web"], "b"));
    new.hints.rollback = asked_for(3, When::Never);
    world.publish(vec![old]);
    world.run_until_converged();
    world.broken.insert(World::fingerprints(&new)[0]);
    world.publish(vec![new]);
    live(&mut world, 4);
    assert_eq!(world.told(1).matches("UPDATING").count(), 3);
    assert!(!world.told(1).contains("ROLLINGBACK") && given_up(&world, "after 3 tries"));
}

/// It starts every time, and does not stay well: that was a try, too.
#[test]
fn what_starts_and_does_not_stay_well_was_tried() {
    for first in [true, false] {
        let mut world = World::new(13);
        let mut new = workload(1, &["web"], "b");
        new.hints.rollback = asked_for(3, When::Never);
        if !first {
            world.publish(vec![workload(1, &["web"], "a")]);
            world.run_until_converged();
        }
        let before = tries(&world);
        world.sick.insert(World::fingerprints(&new)[0]);
        world.publish(vec![new]);
        live(&mut world, 4);
        assert_eq!(tries(&world) - before, 3, "{}", world.told(1));
        assert!(given_up(&world, "after 3 tries"), "{:?}", assignment(&world));
        // It gets well by itself, or by hand.
        world.sick.clear();
        live(&mut world, 1);
        assert_eq!(assignment(&world).state, State::Installed);
    }
}

#[test]
fn what_was_well_for_long_is_mended_so_many_times_anew() {
    let mut world = World::new(13);
    let mut new = workload(1, &["web"], "a");
    new.hints.rollback = asked_for(1, When::OnFailedUpdate);
    world.publish(vec![new.clone()]);
    for month in 0..3 {
        live(&mut world, 1);
        assert_eq!(assignment(&world).state, State::Installed, "{month}");
        // Somebody takes it away, and one try puts it there again.
        world.running.clear();
    }
    live(&mut world, 1);
    world.running.clear();
    world.broken.insert(World::fingerprints(&new)[0]);
    let before = tries(&world);
    live(&mut world, 4);
    assert_eq!(tries(&world) - before, 1);
    assert!(given_up(&world, "after one try"));
}

#[test]
fn what_the_world_has_to_mend_is_waited_for_whatever_the_number() {
    use FailureCode::{DiskFull, PullFailed, RuntimeUnreachable};
    for code in [PullFailed, RuntimeUnreachable, DiskFull] {
        let (mut world, _) = failing_install(asked_for(2, When::OnFailedUpdate));
        // One try fails by itself; then the world around is not as it should be for hours.
        while assignment_or_none(&world).is_none_or(|held| held.strikes == 0) {
            world.step();
        }
        world.broken.clear();
        let end = world.now.after(Duration::from_secs(4 * 3600));
        while world.now < end {
            match world.device.next(&world.settings, world.now) {
                Some(action) => {
                    let fails = matches!(
                        (&action, code),
                        (Action::Prefetch(_), PullFailed) | (Action::Apply(_), RuntimeUnreachable | DiskFull)
                    );
                    world.absorb(Event::Began(action.clone()));
                    let event = match fails {
                        true => action.undone("not now", code),
                        false => world.perform(action),
                    };
                    world.absorb(event);
                }
                None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
            }
        }
        assert!(assignment(&world).next_try.is_some(), "{code}: {:?}", assignment(&world));
        world.run_until_converged();
    }
}

fn assignment_or_none(world: &World) -> Option<&Assignment> {
    world.device.assignments().get(&id(1))
}

#[test]
fn without_a_number_it_is_tried_for_as_long_as_it_takes() {
    let (mut world, _) = failing_install(Rollback::default());
    live(&mut world, 4);
    assert!(tries(&world) > 15, "{}", tries(&world));
    assert!(assignment(&world).next_try.is_some());
    world.broken.clear();
    world.run_until_converged();
}

#[test]
fn what_was_given_up_and_gets_well_by_itself_is_installed_whatever_it_was_given_up_for() {
    for code in [FailureCode::Timeout, FailureCode::StartFailed] {
        let (mut world, new) = failing_install(asked_for(1, When::OnFailedUpdate));
        world.broken.clear();
        // It takes longer than it may: it runs, and its health check has not spoken.
        let slow = World::fingerprints(&new)[0];
        loop {
            match world.device.next(&world.settings, world.now) {
                Some(action @ Action::Apply(_)) => {
                    world.absorb(Event::Began(action.clone()));
                    world.perform(action.clone());
                    world.odd.insert(slow, Health::Starting);
                    world.absorb(action.undone("It took too long.", code));
                    break;
                }
                Some(action) => world.carry_out(action),
                None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
            }
        }
        live(&mut world, 1);
        assert!(given_up(&world, "after one try"), "{:?}", assignment(&world));
        world.odd.clear();
        live(&mut world, 1);
        assert_eq!((assignment(&world).state, tries(&world)), (State::Installed, 1));
        assert_eq!(assignment(&world).good, assignment(&world).held);
        assert_eq!(world.reports.last().unwrap().state, Reported::Installed);
        // It counts anew from there.
        world.running.clear();
        live(&mut world, 1);
        assert_eq!((assignment(&world).state, tries(&world)), (State::Installed, 2));
    }
}

#[test]
fn what_was_given_up_and_is_only_half_there_is_not_installed() {
    let mut world = World::new(13);
    let mut new = workload(1, &["db", "web"], "a");
    new.hints.rollback = asked_for(1, When::OnFailedUpdate);
    world.broken.insert(World::fingerprints(&new)[1]);
    world.publish(vec![new]);
    live(&mut world, 2);
    assert!(given_up(&world, "after one try") && world.running.len() == 1, "{:?}", assignment(&world));
}

#[test]
fn one_try_of_an_update_is_not_one_try_of_its_way_back() {
    let mut world = World::new(11);
    let (old, mut new) = (workload(1, &["web"], "a"), workload(1, &["web"], "b"));
    new.hints.rollback = Rollback::new(None, Some(1), None).unwrap();
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    world.broken.extend(World::fingerprints(&new));
    world.publish(vec![new]);
    while world.device.assignments()[&id(1)].state != State::RollingBack {
        world.step();
    }
    // The port is not free yet.
    world.broken.extend(World::fingerprints(&old));
    while world.device.assignments()[&id(1)].strikes == 0 {
        world.step();
    }
    world.broken.retain(|print| !World::fingerprints(&old).contains(print));
    world.rest();
    assert!(world.told(1).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(1));
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
}
