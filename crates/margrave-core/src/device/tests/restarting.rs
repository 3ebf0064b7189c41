//! What a process that begins makes of what it finds on the disk.

use super::going_back::live_refusing;
use super::overtaken::OPENS;
use super::waiting::{MONDAY, minutes, spans, touches};
use super::*;
use crate::schedule::Schedule;

fn not_for_here() -> Reading {
    Err(Failure::new(FailureCode::NotEligible, "it wants a display"))
}

/// The power comes back, and these documents are read so.
fn boot_reading(world: &mut World, otherwise: &[(&Workload, Reading)]) {
    world.device = serde_json::from_str(&world.ledger).unwrap();
    world.doing.clear();
    let blobs = world.blobs.iter().map(|(digest, workload)| (*digest, Ok(workload.clone())));
    let mut readings: BTreeMap<Digest, Reading> = blobs.collect();
    readings
        .extend(otherwise.iter().map(|(workload, reading)| (document(workload).digest(), reading.clone())));
    world.absorb(Event::Read(readings.into_iter().collect()));
    world.absorb(Event::CapabilitiesAre(Digest::of(b"capabilities")));
}

/// Until one component of two is as wanted.
fn half_way(world: &mut World) {
    let is_half = |a: &Assignment| a.components.iter().any(|progress| progress.state == Reported::Installed);
    while !world.device.assignments().get(&id(1)).is_some_and(|a| a.state != State::Installed && is_half(a)) {
        world.step();
    }
}

fn live_for(world: &mut World, seconds: u64) {
    let until = world.now.after(Duration::from_secs(seconds));
    while world.now < until {
        world.step();
    }
}

#[test]
fn what_is_in_force_is_not_judged_again() {
    let mut world = World::new(11);
    let (old, new, refused) =
        (workload(1, &["web"], "a"), workload(1, &["web"], "b"), workload(2, &["web"], "a"));
    let digest = |workload: &Workload| document(workload).digest();
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    assert_eq!(world.device.kept(), [(digest(&old), (id(1), true))].into());
    world.publish(vec![new.clone()]);
    while world.device.assignments()[&id(1)].state != State::Updating {
        assert_eq!(world.device.kept().get(&digest(&old)), Some(&(id(1), true)));
        world.step();
    }
    assert_eq!(
        world.device.kept(),
        [(digest(&old), (id(1), true)), (digest(&new), (id(1), true))].into(),
        "both what is tried and what can be gone back to"
    );
    world.run_until_converged();
    // One that was refused when it came is refused by whoever reads it next.
    world.publish(vec![new, refused.clone()]);
    let poll = Action::Poll { held: None, wait: Duration::ZERO };
    world.carry_out(poll);
    world.absorb(Event::Fetched(Ok(vec![(document(&refused), not_for_here())])));
    assert_eq!(world.device.assignments()[&id(2)].state, State::Failed);
    assert_eq!(world.device.kept()[&digest(&refused)], (id(2), false));
    let (all, kept) = (world.device.documents(), world.device.kept());
    assert_eq!(all, kept.into_keys().collect());
}

#[test]
fn an_update_that_nobody_understands_any_more_is_gone_back_from() {
    let mut world = World::new(11);
    let (old, new) = (workload(1, &["db", "web"], "a"), workload(1, &["db", "web"], "b"));
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    world.publish(vec![new.clone()]);
    half_way(&mut world);
    boot_reading(&mut world, &[(&new, not_for_here())]);
    live_for(&mut world, 600);
    assert!(world.told(1).ends_with("UPDATING FAILED ROLLINGBACK INSTALLED"), "{}", world.told(1));
    let running: Vec<Digest> = world.running.values().copied().collect();
    assert_eq!(running, World::fingerprints(&old));
    // With nothing behind it there is nothing to go back to, and it does not stay half-way for ever either.
    let mut world = World::new(11);
    world.publish(vec![old.clone()]);
    half_way(&mut world);
    boot_reading(&mut world, &[(&old, not_for_here())]);
    live_for(&mut world, 600);
    assert!(world.told(1).ends_with("INSTALLING FAILED"), "{}", world.told(1));
    world.boot();
    world.run_until_converged();
    assert!(world.told(1).ends_with("FAILED INSTALLING INSTALLED"), "{}", world.told(1));
    // One that failed and was to be tried again says what keeps it from that.
    let mut world = World::new(11);
    world.broken.extend(World::fingerprints(&old));
    world.publish(vec![old.clone()]);
    while world.device.assignments().get(&id(1)).is_none_or(|a| a.next_try.is_none()) {
        world.step();
    }
    boot_reading(&mut world, &[(&old, not_for_here())]);
    live_for(&mut world, 600);
    let failure = world.device.assignments()[&id(1)].failure.as_ref().unwrap();
    assert_eq!((failure.code, failure.message.as_str()), (FailureCode::NotEligible, "it wants a display"));
    assert_eq!(world.reports.last().unwrap().fault.as_ref().unwrap().code, "not-eligible");
    let told = world.reports.len();
    live_for(&mut world, 600);
    assert_eq!(world.reports.len(), told, "said once");
    world.broken.clear();
    world.boot();
    world.run_until_converged();
}

#[test]
fn what_runs_and_nobody_understands_any_more_is_not_called_installed() {
    let mut world = World::new(11);
    let old = workload(1, &["web"], "a");
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    boot_reading(&mut world, &[(&old, not_for_here())]);
    live_for(&mut world, 600);
    assert!(world.told(1).ends_with("INSTALLED FAILED"), "{}", world.told(1));
    let failure = world.device.assignments()[&id(1)].failure.as_ref().unwrap();
    assert!(failure.message.contains("it wants a display"), "{}", failure.message);
    assert_eq!(world.running.len(), 1, "it runs on");
    // Over further starts it is said once, and by one that understands it is looked after again.
    let told = world.reports.len();
    boot_reading(&mut world, &[(&old, not_for_here())]);
    live_for(&mut world, 600);
    assert_eq!(world.reports.len(), told);
    world.boot();
    live_for(&mut world, 600);
    assert!(world.told(1).ends_with("FAILED INSTALLED"), "{}", world.told(1));
    assert_eq!(world.started, 1, "nothing was started anew");
}

#[test]
fn what_is_here_of_a_manifest_that_waits_for_the_rest_is_kept_meanwhile() {
    let mut world = World::new(11);
    let (old, new) = (workload(1, &["web"], "a"), workload(1, &["web"], "b"));
    let old_digest = document(&old).digest();
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    world.publish(vec![new]);
    world.run_until_converged();
    assert_eq!(world.device.assignments()[&id(1)].good, Some(old_digest));
    // The old one is wanted again beside something else, which takes long to come.
    world.publish(vec![old, workload(2, &["web"], "a")]);
    world.carry_out(Action::Poll { held: None, wait: Duration::ZERO });
    let fetch = world.device.next(&world.settings, world.now).unwrap();
    assert!(matches!(&fetch, Action::Fetch(_)), "{fetch:?}");
    world.absorb(Event::Began(fetch.clone()));
    // Meanwhile the new one proves itself.
    for _ in 0..12 {
        world.now = world.now.after(Duration::from_secs(15));
        world.carry_out(Action::Observe);
    }
    assert_ne!(world.device.assignments()[&id(1)].good, Some(old_digest));
    assert!(world.device.documents().contains(&old_digest), "nobody fetches it again");
}

#[test]
fn what_was_refused_is_tried_by_the_first_that_can_use_it() {
    let mut world = World::new(11);
    let new = workload(1, &["web"], "a");
    world.publish(vec![new.clone()]);
    live_refusing(&mut world, minutes(5));
    assert!(world.told(1).ends_with("FAILED"), "{}", world.told(1));
    let told = world.reports.len();
    boot_reading(&mut world, &[(&new, not_for_here())]);
    live_for(&mut world, 600);
    assert_eq!(world.reports.len(), told, "said once");
    world.commit();
    world.boot();
    world.run_until_converged();
    assert!(world.told(1).ends_with("FAILED INSTALLING INSTALLED"), "{}", world.told(1));
}

/// The cable of the display is out when the power comes back, and is in the next time.
#[test]
fn an_update_that_waits_and_was_refused_meanwhile_is_wanted_again_by_who_can_use_it() {
    let windows = Some(spans(&["mon 09:00-10:00", "mon 22:00-23:00"]));
    let mut world = World::scheduled(Schedule { windows, ..Schedule::default() });
    world.now = MONDAY.after(minutes(40));
    let new = workload(1, &["db", "web"], "b");
    world.want(vec![new.clone()]);
    world.live_until(world.now.after(minutes(5)));
    assert!(world.waiting(1).is_some());
    for _ in 0..2 {
        boot_reading(&mut world, &[(&new, not_for_here())]);
        world.live_until(world.now.after(minutes(5)));
        let assignment = &world.device.assignments()[&id(1)];
        assert!(assignment.state == State::Installed && assignment.gave_up().is_some(), "{assignment:?}");
    }
    world.boot();
    let did = world.live_until(OPENS);
    assert!(touches(&did).is_empty() && world.waiting(1).is_some(), "{did:?}");
    assert_eq!(world.device.assignments()[&id(1)].given_up, None);
    world.run_until_converged();
}

/// What a runtime says of a document that this device can read was tried, and is not tried again.
#[test]
fn what_was_tried_and_given_up_is_not_tried_again_by_who_can_read_it() {
    let mut world = World::scheduled(Schedule::default());
    let new = workload(1, &["db", "web"], "b");
    world.want(vec![new.clone()]);
    while world.device.assignments()[&id(1)].given_up.is_none() {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            let event = match &action {
                Action::Prefetch(order) if Order::of(&new).contains(order) => {
                    action.undone("a value is missing", FailureCode::DocumentInvalid)
                }
                _ => world.perform(action),
            };
            world.absorb(event);
            world.commit();
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap();
    }
    world.live_until(world.now.after(minutes(5)));
    world.boot();
    let did = world.live_until(world.now.after(minutes(60)));
    assert!(touches(&did).is_empty(), "{did:?}");
    assert!(world.device.assignments()[&id(1)].gave_up().is_some());
}

#[test]
fn promise_9_what_is_said_once_the_power_is_back_is_newer_than_all_that_was_said_before() {
    let mut world = World::new(1);
    world.absorb(Event::Booted("one".into()));
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    let on_disk = world.ledger.clone();
    world.publish(vec![workload(1, &["web"], "b")]);
    world.run_until_converged();
    let said = world.reports.len();
    let newest = world.reports.last().unwrap().detail.as_ref().unwrap().sequence;
    // The disk had only said that it wrote that down.
    world.ledger = on_disk;
    world.boot();
    world.absorb(Event::Booted("two".into()));
    world.broken.insert(Order::of(&workload(1, &["web"], "b"))[0].fingerprint());
    for _ in 0..200 {
        world.step();
    }
    assert!(world.reports.len() > said);
    let again: Vec<u64> =
        world.reports[said..].iter().map(|report| report.detail.as_ref().unwrap().sequence).collect();
    assert!(again.iter().all(|sequence| *sequence > newest), "{newest} {again:?}");
    // A process that ended alone knows all that it said.
    let before = world.device.outbox().next_sequence();
    world.commit();
    world.boot();
    world.absorb(Event::Booted("two".into()));
    assert_eq!(world.device.outbox().next_sequence(), before);
}
