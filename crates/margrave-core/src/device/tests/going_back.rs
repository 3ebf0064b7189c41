//! Updates that fail, and the way back from them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::work::FALLS_MAX;
use super::*;
use crate::rollback::{Rollback, When};

/// A world in which `web` runs as "a" and an update to "b" that does not start was published.
fn failing_update(rollback: Rollback) -> (World, Workload, Workload) {
    let mut world = World::new(11);
    let (old, mut new) = (workload(1, &["db", "web"], "a"), workload(1, &["db", "web"], "b"));
    new.hints.rollback = rollback;
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    world.broken.insert(World::fingerprints(&new)[1]);
    world.publish(vec![new.clone()]);
    (world, old, new)
}

#[test]
fn an_update_that_fails_twice_goes_back_and_both_facts_are_told() {
    let (mut world, old, new) = failing_update(Rollback::default());
    world.rest();
    assert_eq!(
        world.told(1),
        "PENDING INSTALLING INSTALLED UPDATING FAILED UPDATING FAILED ROLLINGBACK INSTALLED"
    );
    let running: Vec<Digest> = world.running.values().copied().collect();
    assert_eq!(running, World::fingerprints(&old));
    let last = world.reports.last().unwrap();
    let detail = last.detail.as_ref().unwrap();
    assert_eq!((last.state, detail.state), (Reported::Failed, State::Installed));
    assert_eq!(detail.document, Some(document(&old).digest()));
    assert_eq!(last.fault.as_ref().unwrap().code, "start-failed");
    let states: Vec<(&str, Reported)> = last.components.iter().map(|c| (c.name.as_str(), c.state)).collect();
    assert_eq!(states, [("db", Reported::Installed), ("web", Reported::Failed)]);
    assert_eq!(last.adopted_version, world.manifest.version());
    // Neither time nor a restart nor another deployment makes it try the bad one again.
    let started = world.started;
    world.boot();
    world.publish(vec![new.clone(), workload(2, &["db"], "a")]);
    world.rest();
    assert_eq!(world.started, started + 1);
    assert_eq!(world.device.assignments()[&id(1)].gave_up().unwrap().document, document(&new).digest());
    let last = world.reports.iter().rfind(|report| report.assignment == id(1)).unwrap();
    assert_eq!(last.state, Reported::Failed);
    // Back to what it was, by the operator: nothing is restarted, and all is well.
    world.publish(vec![old, workload(2, &["db"], "a")]);
    world.run_until_converged();
    assert_eq!(world.started, started + 1);
    let last = world.reports.iter().rfind(|report| report.assignment == id(1)).unwrap();
    assert_eq!((last.state, &last.fault), (Reported::Installed, &None));
}

#[test]
fn the_policy_says_whether_and_after_how_many_tries() {
    let policy = |when, attempts| Rollback { when, attempts, binding: false, health_grace: None };
    let (mut world, ..) = failing_update(policy(When::OnFailedUpdate, 1));
    world.rest();
    assert!(world.told(1).ends_with("UPDATING FAILED ROLLINGBACK INSTALLED"), "{}", world.told(1));
    assert_eq!(world.told(1).matches("UPDATING").count(), 1);

    let (mut world, _, new) = failing_update(policy(When::Never, 1));
    for _ in 0..300 {
        world.step();
    }
    assert!(!world.told(1).contains("ROLLINGBACK"));
    // Never stuck: it goes on trying, and comes up once it can.
    world.broken.clear();
    world.run_until_converged();
    let running: Vec<Digest> = world.running.values().copied().collect();
    assert_eq!(running, World::fingerprints(&new));
}

#[test]
fn what_cannot_be_fetched_is_waited_for_and_not_gone_back_from() {
    let (mut world, old, _) = failing_update(Rollback::default());
    world.broken.clear();
    let begun = world.now;
    while world.now.since(begun) < Duration::from_secs(3 * 3600) {
        match world.device.next(&world.settings, world.now) {
            Some(action) => {
                world.absorb(Event::Began(action.clone()));
                let event = match world.perform(action) {
                    Event::Prefetched { assignment, component, fingerprint, .. } => {
                        let failure = Failure::new(FailureCode::PullFailed, "the registry is away");
                        Event::Prefetched { assignment, component, fingerprint, result: Err(failure) }
                    }
                    event => event,
                };
                world.absorb(event);
            }
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    assert!(!world.told(1).contains("ROLLINGBACK"));
    let running: Vec<Digest> = world.running.values().copied().collect();
    assert_eq!(running, World::fingerprints(&old), "what ran before runs on");
    world.run_until_converged();
}

#[test]
fn a_document_that_cannot_be_used_at_all_is_gone_back_from_without_touching_anything() {
    let (mut world, old, new) = failing_update(Rollback::default());
    let (started, bad) = (world.started, document(&new).digest());
    for _ in 0..200 {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            let event = match world.perform(action) {
                Event::Fetched(Ok(delivery)) => {
                    let refused = Failure::new(FailureCode::DocumentInvalid, "makes no sense");
                    Event::Fetched(Ok(delivery.into_iter().map(|(d, _)| (d, Err(refused.clone()))).collect()))
                }
                event => event,
            };
            world.absorb(event);
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap();
    }
    assert!(world.told(1).ends_with("UPDATING FAILED ROLLINGBACK INSTALLED"), "{}", world.told(1));
    assert_eq!((world.started, world.device.assignments()[&id(1)].wanted), (started, Some(bad)));
    let running: Vec<Digest> = world.running.values().copied().collect();
    assert_eq!(running, World::fingerprints(&old));
}

#[test]
fn a_way_back_that_fails_too_is_an_end_until_the_manifest_changes_or_it_gets_well() {
    let (mut world, old, _) = failing_update(Rollback::default());
    world.broken.extend(World::fingerprints(&old));
    world.rest();
    assert!(world.told(1).ends_with("ROLLINGBACK FAILED"), "{}", world.told(1));
    let last = world.reports.last().unwrap().clone();
    let fault = last.fault.as_ref().unwrap();
    assert_eq!((last.state, fault.code.as_str()), (Reported::Failed, "rollback-failed"));
    assert!(fault.message.contains("going back failed too"), "{}", fault.message);
    assert_eq!(last.detail.as_ref().unwrap().next_try, None);
    // The same one again, by way of another: it is tried anew, although it is the one held.
    world.broken.clear();
    world.publish(vec![old]);
    world.run_until_converged();
}

#[test]
fn an_update_that_gets_sick_in_its_first_minute_is_gone_back_from_and_a_later_one_is_not() {
    for (well_for, back) in [(Duration::from_secs(20), true), (Duration::from_secs(600), false)] {
        let mut world = World::new(11);
        let (old, new) = (workload(1, &["web"], "a"), workload(1, &["web"], "b"));
        world.publish(vec![old.clone()]);
        world.run_until_converged();
        world.publish(vec![new.clone()]);
        world.run_until_converged();
        let installed = world.now;
        while world.now.since(installed) < well_for {
            world.step();
        }
        world.sick.extend(World::fingerprints(&new));
        for _ in 0..400 {
            world.step();
        }
        assert_eq!(world.told(1).contains("ROLLINGBACK"), back, "{}", world.told(1));
        let expected = if back { &old } else { &new };
        assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(expected));
    }
}

#[test]
fn a_device_that_dies_of_an_update_again_and_again_goes_back() {
    let (mut world, old, new) = failing_update(Rollback::default());
    let bad: BTreeSet<Digest> = World::fingerprints(&new).into_iter().collect();
    let mut deaths = 0;
    for _ in 0..3_000 {
        let kills = |a: &Action| matches!(a, Action::Apply(order) if bad.contains(&order.fingerprint()));
        while let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            world.commit();
            world.doing.push(action);
        }
        if world.doing.iter().any(kills) {
            deaths += 1;
            world.boot();
            world.absorb(Event::Booted(format!("boot {deaths}")));
            world.commit();
            continue;
        }
        world.step();
    }
    assert_eq!(deaths, FALLS_MAX);
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
    assert!(world.told(1).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(1));
}

#[test]
fn power_that_goes_again_and_again_on_the_way_back_is_one_try_and_no_end() {
    let (mut world, old, _) = failing_update(Rollback::default());
    world.absorb(Event::Booted("the first".into()));
    let good: BTreeSet<Digest> = World::fingerprints(&old).into_iter().collect();
    let mut cuts = 0;
    for _ in 0..5_000 {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            world.commit();
            world.doing.push(action);
        }
        let is_going_back =
            |action: &Action| matches!(action, Action::Apply(order) if good.contains(&order.fingerprint()));
        let state = world.device.assignments()[&id(1)].state;
        if cuts < FALLS_MAX && state == State::RollingBack && world.doing.iter().any(is_going_back) {
            cuts += 1;
            world.boot();
            world.absorb(Event::Booted(format!("boot {cuts}")));
            world.commit();
            continue;
        }
        world.step();
    }
    assert_eq!(cuts, FALLS_MAX);
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
    assert!(world.told(1).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(1));
}

#[test]
fn an_agent_that_is_killed_again_and_again_only_goes_on() {
    let (mut world, _, new) = failing_update(Rollback::default());
    world.broken.clear();
    world.absorb(Event::Booted("the same".into()));
    let mut kills = 0;
    for _ in 0..1_000 {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            world.commit();
            world.doing.push(action);
        }
        if kills < 20 && world.doing.iter().any(|action| matches!(action, Action::Apply(_))) {
            kills += 1;
            world.boot();
            world.absorb(Event::Booted("the same".into()));
            continue;
        }
        world.step();
    }
    assert_eq!(kills, 20);
    world.run_until_converged();
    assert!(!world.told(1).contains("FAILED"), "{}", world.told(1));
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&new));
}

#[test]
fn an_engine_that_is_away_or_a_full_disk_is_not_the_updates_fault() {
    for code in [FailureCode::RuntimeUnreachable, FailureCode::DiskFull] {
        let (mut world, _, new) = failing_update(Rollback::default());
        world.broken.clear();
        let begun = world.now;
        while world.now.since(begun) < Duration::from_secs(3600) {
            match world.device.next(&world.settings, world.now) {
                Some(action) => {
                    world.absorb(Event::Began(action.clone()));
                    let event = match action {
                        Action::Apply(order) => Event::Applied {
                            assignment: order.assignment,
                            fingerprint: order.fingerprint(),
                            component: order.component,
                            result: Err(Failure::new(code, "not now")),
                        },
                        action => world.perform(action),
                    };
                    world.absorb(event);
                }
                None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
            }
        }
        assert!(!world.told(1).contains("ROLLINGBACK"), "{}", world.told(1));
        world.run_until_converged();
        assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&new));
    }
}

#[test]
fn a_way_back_that_has_to_wait_for_the_world_is_tried_with_patience() {
    let (mut world, old, _) = failing_update(Rollback::default());
    let is_back = |world: &World| world.device.assignments()[&id(1)].state == State::RollingBack;
    while !is_back(&world) {
        world.step();
    }
    // Nothing can be written for an hour, neither what is fetched nor what is begun.
    world.doing.clear();
    world.commit();
    world.boot();
    let (end, mut tries) = (world.now.after(Duration::from_secs(3600)), 0);
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            tries += u32::from(matches!(action, Action::Prefetch(_) | Action::Apply(_)));
            assert!(tries < 100, "it runs in circles");
            world.absorb(Event::Began(action.clone()));
            world.absorb(Event::Unbegun(action.clone()));
            world.absorb(action.undone("the disk is full", FailureCode::DiskFull));
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap();
    }
    assert!((3..40).contains(&tries), "{tries}");
    assert!(is_back(&world));
    world.rest();
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
}

#[test]
fn a_way_back_on_which_something_cannot_be_removed_comes_to_an_end() {
    let mut world = World::new(11);
    let (old, new) = (workload(1, &["web"], "a"), workload(1, &["more", "web"], "b"));
    world.publish(vec![old]);
    world.run_until_converged();
    world.broken.insert(World::fingerprints(&new)[1]);
    world.publish(vec![new]);
    let (end, mut removals) = (world.now.after(Duration::from_secs(3600)), 0);
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            if !matches!(action, Action::Remove { .. }) {
                world.carry_out(action);
                continue;
            }
            removals += 1;
            world.absorb(Event::Began(action.clone()));
            world.absorb(action.undone("still in use", FailureCode::RemoveFailed));
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap();
    }
    let assignment = &world.device.assignments()[&id(1)];
    assert_eq!(assignment.state, State::Failed);
    assert_eq!(assignment.failure.as_ref().unwrap().code, FailureCode::RollbackFailed);
    assert_eq!(removals, Rollback::default().attempts);
}

#[test]
fn a_newer_document_overtakes_the_way_back() {
    let (mut world, ..) = failing_update(Rollback::default());
    while world.device.assignments()[&id(1)].state != State::RollingBack {
        world.step();
    }
    world.publish(vec![workload(1, &["db", "web"], "c")]);
    world.run_until_converged();
    let told = world.told(1);
    assert!(told.ends_with("INSTALLED") && told.contains("ROLLINGBACK"), "{told}");
}

fn live_for(world: &mut World, time: Duration) {
    let until = world.now.after(time);
    while world.now < until {
        world.step();
    }
}

#[test]
fn what_nobody_saw_well_for_a_while_is_not_good() {
    let (old, new) = (workload(1, &["web"], "a"), workload(1, &["web"], "b"));
    let updated = || {
        let mut world = World::new(11);
        world.publish(vec![old.clone()]);
        world.run_until_converged();
        world.publish(vec![new.clone()]);
        world.run_until_converged();
        assert_eq!(world.device.assignments()[&id(1)].good, Some(document(&old).digest()));
        world
    };
    let seconds = Duration::from_secs;
    // The power was away, and nobody looked since.
    let mut world = updated();
    world.now = world.now.after(seconds(3600));
    world.boot();
    world.sick.extend(World::fingerprints(&new));
    live_for(&mut world, seconds(300));
    assert!(world.told(1).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(1));
    // Sick all the time, with a grace that is longer than an update takes to prove itself.
    let mut world = World::new(11);
    let mut patient = new.clone();
    patient.hints.rollback.health_grace = Some(seconds(120));
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    world.sick.extend(World::fingerprints(&patient));
    world.publish(vec![patient]);
    live_for(&mut world, seconds(900));
    assert!(world.told(1).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(1));
    // A clock that jumps proves nothing either.
    let mut world = updated();
    world.now = world.now.after(seconds(50 * 365 * 24 * 3600));
    world.absorb(Event::Stirred);
    world.sick.extend(World::fingerprints(&new));
    live_for(&mut world, seconds(300));
    assert!(world.told(1).contains("ROLLINGBACK"), "{}", world.told(1));
}

/// A board without a clock of its own: it boots in 1970, and finds a time server between two looks.
#[test]
fn a_clock_that_is_set_forward_ends_no_grace() {
    let mut world = World::new(11);
    let (old, mut new) = (workload(1, &["web"], "a"), workload(1, &["web"], "b"));
    new.hints.rollback.health_grace = Some(Duration::from_secs(600));
    world.publish(vec![old]);
    world.run_until_converged();
    world.publish(vec![new.clone()]);
    world.run_until_converged();
    let set = world.now;
    world.now = Moment(20_000);
    world.boot();
    world.sick.extend(World::fingerprints(&new));
    while world.device.assignments()[&id(1)].unhealthy_since.is_none() {
        world.step();
    }
    world.now = set;
    live_for(&mut world, Duration::from_secs(300));
    assert!(world.told(1).ends_with("UPDATING INSTALLED"), "{}", world.told(1));
    // It gets well within its grace, and is nothing to go back from.
    world.sick.clear();
    live_for(&mut world, Duration::from_secs(1200));
    assert!(world.told(1).ends_with("UPDATING INSTALLED"), "{}", world.told(1));
    assert_eq!(world.device.assignments()[&id(1)].good, Some(document(&new).digest()));
}

#[test]
fn what_is_reverted_on_its_way_back_is_tried_like_anything_that_is_wanted() {
    let (mut world, old, _) = failing_update(Rollback::default());
    while world.device.assignments()[&id(1)].state != State::RollingBack {
        world.step();
    }
    world.broken.extend(World::fingerprints(&old));
    world.publish(vec![old.clone()]);
    let poll = Action::Poll { held: None, wait: Duration::ZERO };
    world.absorb(Event::Began(poll.clone()));
    let polled = world.perform(poll);
    world.absorb(polled);
    let assignment = &world.device.assignments()[&id(1)];
    assert_eq!((assignment.state, assignment.wanted), (State::RollingBack, assignment.held));
    live_for(&mut world, Duration::from_secs(3600));
    let assignment = &world.device.assignments()[&id(1)];
    assert!(assignment.next_try.is_some() || assignment.state != State::Failed, "{assignment:?}");
    assert!(!world.reports.iter().any(|r| r.fault.as_ref().is_some_and(|f| f.code == "rollback-failed")));
    world.broken.clear();
    world.run_until_converged();
}

#[test]
fn a_good_version_whose_document_is_lost_is_an_end_and_no_lie() {
    let (mut world, old, new) = failing_update(Rollback::default());
    while world.device.assignments()[&id(1)].state != State::RollingBack {
        world.step();
    }
    world.blobs.remove(&document(&old).digest());
    world.boot();
    world.rest();
    let last = world.reports.last().unwrap();
    assert_eq!(last.fault.as_ref().unwrap().code, "rollback-failed");
    assert_eq!(last.detail.as_ref().unwrap().state, State::Failed);
    // It stays so over a restart, and a newer version is tried.
    world.boot();
    world.rest();
    assert_eq!(world.device.assignments()[&id(1)].state, State::Failed);
    assert!(new.id == id(1));
    world.publish(vec![workload(1, &["web"], "c")]);
    world.run_until_converged();
}

#[test]
fn what_only_the_failed_update_had_goes_before_the_good_version_comes() {
    let mut world = World::new(11);
    let (old, new) = (workload(1, &["web"], "a"), workload(1, &["web", "proxy"], "b"));
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    world.publish(vec![new.clone()]);
    world.run_until_converged();
    world.sick.extend(World::fingerprints(&new));
    let mut order = vec![];
    for _ in 0..2_000 {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            let back = world.device.assignments()[&id(1)].state == State::RollingBack;
            match &action {
                Action::Remove { component, .. } if back => order.push(format!("remove {component}")),
                Action::Apply(applied) if back => order.push(format!("apply {}", applied.component)),
                _ => {}
            }
            world.absorb(Event::Began(action.clone()));
            world.doing.push(action);
        }
        world.step();
    }
    assert_eq!(order, ["remove proxy", "apply web"]);
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
}

#[test]
fn an_update_that_was_begun_and_cannot_be_fetched_any_more_is_gone_back_from() {
    let (mut world, old, _) = failing_update(Rollback::default());
    let mut gone = false;
    for _ in 0..2_000 {
        match world.device.next(&world.settings, world.now) {
            Some(action) => {
                world.absorb(Event::Began(action.clone()));
                let back = world.device.assignments()[&id(1)].state == State::RollingBack;
                let event = match world.perform(action) {
                    Event::Prefetched { assignment, component, fingerprint, .. } if gone && !back => {
                        let failure = Failure::new(FailureCode::PullNotFound, "somebody removed it");
                        Event::Prefetched { assignment, component, fingerprint, result: Err(failure) }
                    }
                    event @ Event::Applied { result: Err(_), .. } => {
                        gone = true;
                        event
                    }
                    event => event,
                };
                world.absorb(event);
            }
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    assert!(gone && world.told(1).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(1));
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
}

#[test]
fn a_device_that_dies_of_what_it_has_just_installed_goes_back() {
    let mut world = World::new(11);
    let (old, new) = (workload(1, &["web"], "a"), workload(1, &["web"], "b"));
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    world.absorb(Event::Booted("boot 0".into()));
    world.publish(vec![new]);
    let mut deaths = 0;
    for _ in 0..5_000 {
        world.step();
        let assignment = &world.device.assignments()[&id(1)];
        if assignment.state == State::Installed && assignment.good != assignment.held {
            deaths += 1;
            world.boot();
            world.absorb(Event::Booted(format!("boot {deaths}")));
            world.commit();
        }
    }
    assert_eq!(deaths, FALLS_MAX);
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
}

#[test]
fn what_failed_under_an_agent_that_knew_no_way_back_goes_back_after_all() {
    let (mut world, old, _) = failing_update(Rollback { when: When::Never, ..Rollback::default() });
    while world.device.assignments()[&id(1)].state != State::Failed {
        world.step();
    }
    // As such an agent left it: nothing more to try, and no policy.
    let mut ledger: serde_json::Value = serde_json::from_str(&world.ledger).unwrap();
    let assignment = ledger["assignments"].as_object_mut().unwrap().values_mut().next().unwrap();
    assignment["next_try"] = serde_json::Value::Null;
    assignment["failure"]["code"] = "archive-invalid".into();
    for key in ["strikes", "falls", "applying"] {
        assignment.as_object_mut().unwrap().remove(key);
    }
    world.ledger = ledger.to_string();
    for workload in world.blobs.values_mut() {
        workload.hints.rollback = Rollback::default();
    }
    world.boot();
    world.rest();
    assert!(world.told(1).ends_with("ROLLINGBACK INSTALLED"), "{}", world.told(1));
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
}

#[test]
fn a_good_document_that_the_disk_lost_while_it_is_tried_again_is_an_end_and_not_a_standstill() {
    let mut world = World::new(3);
    let (good, bad) = (workload(1, &["web"], "a"), workload(1, &["web"], "b"));
    world.publish(vec![good.clone()]);
    world.run_until_converged();
    world.broken.extend(World::fingerprints(&bad));
    world.publish(vec![bad]);
    world.rest();
    assert!(world.device.assignments()[&id(1)].gave_up().is_some());
    // What was gone back to falls ill and is tried again; then the disk loses its document.
    world.sick.extend(World::fingerprints(&good));
    while world.device.assignments()[&id(1)].state != State::Installing {
        world.step();
    }
    world.blobs.remove(&document(&good).digest());
    world.commit();
    world.boot();
    world.rest();
    assert_eq!(world.device.assignments()[&id(1)].state, State::Failed);
    world.publish(vec![workload(1, &["web"], "c")]);
    world.run_until_converged();
}

/// Lives for so long, while nothing that is delivered can be used here; what is done to containers meanwhile.
pub(super) fn live_refusing(world: &mut World, time: Duration) -> Vec<Action> {
    for action in std::mem::take(&mut world.doing) {
        let event = world.perform(action);
        world.absorb(event);
    }
    let (end, mut touched) = (world.now.after(time), vec![]);
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            if matches!(action, Action::Apply(_) | Action::Remove { .. }) {
                touched.push(action.clone());
            }
            let event = match world.perform(action) {
                Event::Fetched(Ok(delivery)) => {
                    let refused = Failure::new(FailureCode::NotEligible, "needs a gpu");
                    Event::Fetched(Ok(delivery.into_iter().map(|(d, _)| (d, Err(refused.clone()))).collect()))
                }
                event => event,
            };
            world.absorb(event);
            world.commit();
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
    }
    touched
}

#[test]
fn what_has_not_proved_itself_yet_is_not_given_up_for_what_cannot_be_used_here() {
    for held in [false, true] {
        let mut world = World::new(11);
        let [old, new, bad] = ["a", "b", "c"].map(|value| workload(1, &["db", "web"], value));
        world.publish(vec![old.clone()]);
        world.run_until_converged();
        world.publish(vec![new.clone()]);
        world.run_until_converged();
        live_for(&mut world, Duration::from_secs(20));
        assert_eq!(world.device.assignments()[&id(1)].good, Some(document(&old).digest()));
        if held {
            world.hold("mes", Duration::from_secs(3600)).unwrap();
        }
        let started = world.started;
        world.publish(vec![bad.clone()]);
        while world.device.assignments()[&id(1)].wanted != Some(document(&bad).digest()) {
            live_refusing(&mut world, Duration::from_secs(1));
        }
        let touched = live_refusing(&mut world, Duration::from_secs(1));
        assert!(touched.is_empty(), "{touched:?}");
        assert_eq!(world.device.assignments()[&id(1)].state, State::Failed);
        // It goes on proving itself, and is gone back to once it has.
        live_refusing(&mut world, Duration::from_secs(120));
        let running: Vec<Digest> = world.running.values().copied().collect();
        assert_eq!((running, world.started), (World::fingerprints(&new), started));
        let assignment = &world.device.assignments()[&id(1)];
        assert_eq!((assignment.state, assignment.held), (State::Installed, Some(document(&new).digest())));
        assert_eq!(assignment.gave_up().unwrap().document, document(&bad).digest());
    }
}

/// Lives for so long, while nothing can be made of any archive; how often that was tried.
fn live_unsound(world: &mut World, time: Duration) -> u32 {
    live_unprepared(world, time, FailureCode::ArchiveInvalid)
}

/// Lives for so long, while nothing can be prepared; how often that was tried.
fn live_unprepared(world: &mut World, time: Duration, code: FailureCode) -> u32 {
    let (end, mut tries) = (world.now.after(time), 0);
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            let event = match action {
                Action::Prefetch(_) => {
                    tries += 1;
                    action.undone("config was killed", code)
                }
                action => world.perform(action),
            };
            world.absorb(event);
            world.commit();
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
    }
    tries
}

/// Lives for so long, while these cannot be prepared.
fn live_without(world: &mut World, time: Duration, gone: &[Digest], code: FailureCode) {
    let end = world.now.after(time);
    while world.now < end {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            let event = match &action {
                Action::Prefetch(order) if gone.contains(&order.fingerprint()) => {
                    action.undone("nobody has it like that", code)
                }
                _ => world.perform(action),
            };
            world.absorb(event);
            world.commit();
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap().min(end);
    }
}

/// What is down and came to its end, by a policy of its own, is nothing to keep for an update that says otherwise.
#[test]
fn an_update_that_cannot_be_used_here_leads_back_over_one_that_is_down_for_good() {
    let never = |binding| Rollback { when: When::Never, attempts: 1, binding, health_grace: None };
    for (down, refused) in [(never(true), false), (never(false), false), (never(true), true)] {
        let (mut world, old, _) = failing_update(down);
        live_for(&mut world, Duration::from_secs(600));
        assert!(world.told(1).ends_with("FAILED"), "{}", world.told(1));
        let next = workload(1, &["db", "web"], "c");
        world.publish(vec![next.clone()]);
        if refused {
            live_refusing(&mut world, Duration::from_secs(3600));
        } else {
            // Of what was good everything is here.
            let unsound = World::fingerprints(&next);
            live_without(&mut world, Duration::from_secs(3600), &unsound, FailureCode::ArchiveInvalid);
        }
        let assignment = &world.device.assignments()[&id(1)];
        if refused {
            // Nobody can read what it says; what is here says that it is not gone back from.
            assert_eq!((assignment.state, assignment.gave_up()), (State::Failed, None));
            continue;
        }
        assert!(world.told(1).ends_with("FAILED ROLLINGBACK INSTALLED"), "{}", world.told(1));
        assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
        assert_eq!(assignment.gave_up().unwrap().document, document(&next).digest());
    }
}

/// That an archive is not sound is for ever where it is new. Of one that ran well it is only what somebody said in a bad moment.
#[test]
fn what_was_good_is_mended_for_as_long_as_it_takes_whatever_is_said_of_its_archive() {
    let old = workload(1, &["db", "web"], "a");
    for by_an_older_agent in [false, true] {
        let mut world = World::new(11);
        world.publish(vec![old.clone()]);
        world.run_until_converged();
        world.running.clear();
        let tries = live_unsound(&mut world, Duration::from_secs(600));
        assert_eq!(world.device.assignments()[&id(1)].state, State::Failed);
        if by_an_older_agent {
            // It saw an end in that.
            let mut ledger: serde_json::Value = serde_json::from_str(&world.ledger).unwrap();
            let assignment = ledger["assignments"].as_object_mut().unwrap().values_mut().next().unwrap();
            assignment["next_try"] = serde_json::Value::Null;
            world.ledger = ledger.to_string();
            world.boot();
        } else {
            assert!((3..20).contains(&tries), "{tries}");
        }
        world.run_until_converged();
    }
}

/// A world that is about to go back to "a".
fn going_back() -> (World, Workload) {
    let (mut world, old, _) = failing_update(Rollback::default());
    while world.device.assignments()[&id(1)].state != State::RollingBack {
        world.step();
    }
    world.doing.clear();
    world.commit();
    world.boot();
    (world, old)
}

#[test]
fn a_way_back_that_cannot_be_prepared_comes_to_its_end_too() {
    let (mut world, _) = going_back();
    let tries = live_unsound(&mut world, Duration::from_secs(3600));
    assert_eq!(tries, Rollback::default().attempts);
    let assignment = &world.device.assignments()[&id(1)];
    assert_eq!((assignment.state, assignment.next_try), (State::Failed, None));
    assert_eq!(assignment.failure.as_ref().unwrap().code, FailureCode::RollbackFailed);
    // Nothing more is tried until the manifest changes.
    let started = world.started;
    world.rest();
    assert_eq!(world.started, started);
    let newer = workload(1, &["db", "web"], "c");
    world.publish(vec![newer.clone()]);
    world.run_until_converged();
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&newer));
}

#[test]
fn a_way_back_waits_for_what_the_world_around_has_to_mend() {
    use FailureCode::{DiskFull, PullDenied, PullFailed, RuntimeMissing, RuntimeUnreachable};
    for code in [DiskFull, PullDenied, PullFailed, RuntimeMissing, RuntimeUnreachable] {
        let (mut world, old) = going_back();
        let tries = live_unprepared(&mut world, Duration::from_secs(3600), code);
        assert!((3..60).contains(&tries), "{code}: {tries}");
        assert_eq!(world.device.assignments()[&id(1)].state, State::RollingBack, "{code}");
        world.rest();
        assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
    }
}

/// The images of what is half there were removed while the device was off.
#[test]
fn an_update_that_is_half_there_and_cannot_be_fetched_any_more_is_gone_back_from() {
    let mut world = World::new(11);
    let (old, new) = (workload(1, &["db", "web"], "a"), workload(1, &["db", "web"], "b"));
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    world.publish(vec![new.clone()]);
    let is_half = |a: &Assignment| a.components.iter().any(|progress| progress.state == Reported::Installed);
    while world.device.assignments()[&id(1)].state != State::Updating
        || !is_half(&world.device.assignments()[&id(1)])
    {
        world.step();
    }
    world.doing.clear();
    world.commit();
    world.boot();
    let gone = World::fingerprints(&new);
    live_without(&mut world, Duration::from_secs(600), &gone, FailureCode::PullNotFound);
    assert!(world.told(1).ends_with("FAILED ROLLINGBACK INSTALLED"), "{}", world.told(1));
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&old));
}

/// It fell ill twice, and is well again by itself: that is being watched, and is nothing to throw away.
#[test]
fn what_got_well_again_is_not_gone_back_over_for_an_update_that_cannot_be_used() {
    let mut world = World::new(11);
    let [old, mut here, next] = ["a", "b", "c"].map(|value| workload(1, &["db", "web"], value));
    here.hints.rollback = Rollback { when: When::Never, ..Rollback::default() };
    world.publish(vec![old]);
    world.run_until_converged();
    world.publish(vec![here.clone()]);
    world.run_until_converged();
    let sick = World::fingerprints(&here)[1];
    let is_watched = |a: &Assignment| a.state == State::Failed && a.strikes >= 2 && a.well.is_some();
    for _ in 0..5_000 {
        let assignment = &world.device.assignments()[&id(1)];
        if is_watched(assignment) {
            break;
        }
        match assignment.state == State::Installed {
            true => drop(world.sick.insert(sick)),
            false => world.sick.clear(),
        }
        world.step();
    }
    assert!(is_watched(&world.device.assignments()[&id(1)]), "{:?}", world.device.assignments()[&id(1)]);
    world.sick.clear();
    let (unsound, started) = (World::fingerprints(&next), world.started);
    world.publish(vec![next]);
    live_without(&mut world, Duration::from_secs(3600), &unsound, FailureCode::ArchiveInvalid);
    assert_eq!(world.started, started, "{}", world.told(1));
    assert_eq!(world.running.values().copied().collect::<Vec<_>>(), World::fingerprints(&here));
}
