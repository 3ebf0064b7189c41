//! Removals that have nothing to remove, or cannot.

use std::time::Duration;

use super::*;

/// Lives for a time in which what `fails` names does, with this code; gives what was tried to be removed, in order.
fn live(
    world: &mut World,
    time: Duration,
    code: FailureCode,
    fails: impl Fn(&Action) -> bool,
) -> Vec<String> {
    let (end, mut tried) = (world.now.after(time), vec![]);
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            if let Action::Remove { component, .. } = &action {
                tried.push(component.to_string());
            }
            match fails(&action) {
                true => {
                    world.absorb(Event::Began(action.clone()));
                    world.absorb(action.undone("it cannot be done", code));
                }
                false => world.carry_out(action),
            }
            world.commit();
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap();
    }
    tried
}

#[test]
fn what_was_never_begun_is_gone_without_an_engine() {
    let mut world = World::new(11);
    world.publish(vec![workload(1, &["db", "web"], "a")]);
    let engine = |action: &Action| {
        matches!(action, Action::Observe | Action::Prefetch(_) | Action::Apply(_) | Action::Remove { .. })
    };
    let minute = Duration::from_secs(60);
    live(&mut world, minute, FailureCode::RuntimeMissing, engine);
    assert_eq!(world.device.assignments()[&id(1)].state, State::Failed);
    world.publish(vec![]);
    // Also over a restart.
    world.boot();
    let tried = live(&mut world, minute, FailureCode::RuntimeMissing, engine);
    assert_eq!((tried, world.device.assignments().len()), (vec![], 0));
    assert!(world.told(1).ends_with("FAILED DELETING DELETED"), "{}", world.told(1));

    // What was begun may be there, whatever became of the engine since, and of whatever document it was.
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    world.publish(vec![workload(1, &["web"], "b")]);
    live(&mut world, minute, FailureCode::RuntimeMissing, engine);
    world.publish(vec![]);
    world.boot();
    live(&mut world, minute, FailureCode::RuntimeMissing, engine);
    assert_eq!(world.device.assignments()[&id(1)].state, State::Deleting);
    world.run_until_converged();
    assert!(world.running.is_empty());
}

#[test]
fn dm_182_one_that_cannot_be_removed_does_not_keep_the_others_running() {
    let mut world = World::new(11);
    world.publish(vec![workload(1, &["db", "web", "proxy"], "a")]);
    world.run_until_converged();
    world.publish(vec![]);
    let stuck =
        |action: &Action| matches!(action, Action::Remove { component, .. } if component.as_str() == "proxy");
    let tried = live(&mut world, Duration::from_secs(3600), FailureCode::RemoveFailed, stuck);
    assert_eq!(tried[..4], ["proxy", "web", "db", "proxy"], "the last goes first, and then the others");
    assert!((5..20).contains(&tried.len()), "pauses grow: {tried:?}");
    let assignment = &world.device.assignments()[&id(1)];
    let failure = assignment.failure.as_ref().unwrap();
    assert_eq!((assignment.state, failure.component.as_ref()), (State::Deleting, Some(&name("proxy"))));
    assert_eq!(world.running.len(), 1);
    world.run_until_converged();
    assert!(world.running.is_empty() && world.told(1).ends_with("DELETING DELETED"), "{}", world.told(1));
}

#[test]
fn what_is_in_no_document_is_told_when_it_goes_and_when_it_does_not() {
    let mut world = World::new(11);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    world.running.insert((id(1), name("stranger")), Digest::of(b"somebody's"));
    let stranger = |action: &Action| matches!(action, Action::Remove { .. });
    live(&mut world, Duration::from_secs(60), FailureCode::RemoveFailed, stranger);
    let told = world.reports.last().unwrap().clone();
    assert_eq!((told.state, &told.fault, told.components.len()), (Reported::Installed, &None, 2));
    let of_stranger = &told.components[1];
    assert_eq!((of_stranger.name.as_str(), of_stranger.state), ("stranger", Reported::Removing));
    assert_eq!(of_stranger.fault.as_ref().unwrap().code, "remove-failed");
    live(&mut world, Duration::from_secs(3600), FailureCode::RemoveFailed, |_| false);
    let told = world.reports.last().unwrap();
    let told: Vec<_> =
        told.components.iter().map(|c| (c.name.as_str(), c.state, c.fault.is_some())).collect();
    assert_eq!(told, [("web", Reported::Installed, false), ("stranger", Reported::Removed, false)]);
    assert_eq!(world.running.len(), 1);
}

#[test]
fn a_restart_does_not_confirm_the_removal_of_what_only_was_seen() {
    let mut world = World::new(11);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    // Of a memory that was lost.
    for component in ["old-db", "old-web"] {
        world.running.insert((id(9), name(component)), Digest::of(component.as_bytes()));
    }
    while !world.device.assignments().contains_key(&id(9)) {
        world.step();
    }
    world.commit();
    world.boot();
    let orphan = &world.device.assignments()[&id(9)];
    assert_eq!(orphan.state, State::Deleting);
    let names: Vec<&str> = orphan.components.iter().map(|progress| progress.name.as_str()).collect();
    assert_eq!(names, ["old-db", "old-web"]);
    // Whoever cannot look confirms nothing either.
    let engine = |action: &Action| matches!(action, Action::Observe | Action::Remove { .. });
    live(&mut world, Duration::from_secs(60), FailureCode::RuntimeMissing, engine);
    assert_eq!(world.device.assignments()[&id(9)].state, State::Deleting);
    assert!(!world.told(9).contains("DELETED"), "{}", world.told(9));
    live(&mut world, Duration::from_secs(3600), FailureCode::RuntimeMissing, |_| false);
    assert!(world.running.len() == 1 && world.told(9).ends_with("DELETED"), "{}", world.told(9));
}

#[test]
fn a_look_that_is_older_than_a_removal_finds_nothing_to_remove() {
    let mut world = World::new(11);
    world.publish(vec![workload(1, &["db", "web"], "a")]);
    world.run_until_converged();
    world.publish(vec![workload(1, &["web"], "b")]);
    let removal = |action: &Action| matches!(action, Action::Remove { .. });
    while !world.doing.iter().any(removal) {
        world.step();
    }
    world.doing.retain(removal);
    let removal = world.doing.pop().unwrap();
    assert!(matches!(&removal, Action::Remove { aside: true, .. }), "the way back needs it: {removal:?}");
    // Somebody looks while it is removed, and is slow to tell.
    world.absorb(Event::Began(Action::Observe));
    let stale = world.perform(Action::Observe);
    let removed = world.perform(removal);
    world.absorb(removed);
    assert_eq!(world.device.assignments()[&id(1)].state, State::Installed);
    world.absorb(stale);
    while let Some(action) = world.device.next(&world.settings, world.now) {
        assert!(!matches!(action, Action::Remove { .. }), "{action:?}");
        world.carry_out(action);
    }
    // What comes there after that is seen, and the way back does without nothing that it needs.
    world.running.insert((id(1), name("db")), Digest::of(b"by hand"));
    world.carry_out(Action::Observe);
    let next = world.device.next(&world.settings, world.now);
    assert!(matches!(next, Some(Action::Remove { aside: true, .. })), "{next:?}");
}

#[test]
fn what_is_gone_is_not_removed_again_because_an_older_look_had_seen_it() {
    let mut world = World::new(11);
    world.publish(vec![workload(1, &["web"], "a"), workload(2, &["web"], "a")]);
    world.run_until_converged();
    world.publish(vec![workload(1, &["web"], "a")]);
    let removal = |action: &Action| matches!(action, Action::Remove { .. });
    while !world.doing.iter().any(removal) {
        world.step();
    }
    world.doing.retain(removal);
    let removal = world.doing.pop().unwrap();
    world.absorb(Event::Began(Action::Observe));
    let stale = world.perform(Action::Observe);
    let removed = world.perform(removal);
    world.absorb(removed);
    while let Some(report) = world.device.outbox().first().cloned() {
        world.carry_out(Action::Send(report));
    }
    assert!(!world.device.assignments().contains_key(&id(2)));
    world.absorb(stale);
    assert!(!world.device.assignments().contains_key(&id(2)), "it went once");
    assert!(world.told(2).ends_with("DELETING DELETED"), "{}", world.told(2));
}

#[test]
fn what_came_back_and_went_again_unseen_is_told_to_be_gone_for_that_too() {
    let mut world = World::new(11);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    world.publish(vec![]);
    // It goes while nobody hears of it.
    let unheard = |action: &Action| matches!(action, Action::Send(_));
    live(&mut world, Duration::from_secs(60), FailureCode::PullFailed, unheard);
    assert_eq!(world.device.assignments()[&id(1)].state, State::Deleted);
    // Meanwhile it is wanted again, and not any more.
    world.publish(vec![workload(1, &["web"], "b")]);
    world.publish(vec![]);
    world.manifest = world.manifest.clone().with_leaving([id(1)]);
    world.run_until_converged();
    let told = world.reports.iter().rfind(|report| report.assignment == id(1)).unwrap();
    assert_eq!((told.state, told.adopted_version), (Reported::Removed, world.manifest.version()));
}

#[test]
fn the_removal_of_what_was_gone_back_from_does_not_look_like_one_that_failed() {
    let mut world = World::new(11);
    let new = workload(1, &["db", "web"], "b");
    world.publish(vec![workload(1, &["db", "web"], "a")]);
    world.run_until_converged();
    world.broken.insert(World::fingerprints(&new)[1]);
    world.publish(vec![new]);
    world.rest();
    assert!(world.device.assignments()[&id(1)].gave_up().is_some());
    world.reports.clear();
    world.publish(vec![]);
    world.run_until_converged();
    assert_eq!(world.told(1), "DELETING DELETED");
    for report in &world.reports {
        assert_eq!((&report.fault, &report.detail.as_ref().unwrap().reason), (&None, &None));
    }
}
