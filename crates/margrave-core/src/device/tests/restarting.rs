//! What a process that begins makes of what it finds on the disk.

use super::going_back::live_refusing;
use super::overtaken::OPENS;
use super::waiting::{MONDAY, minutes, spans, touches};
use super::*;
use crate::rollback::Rollback;
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

#[test]
fn what_comes_along_in_a_bundle_is_not_judged_again_either() {
    let mut world = World::new(11);
    let (old, other) = (workload(1, &["web"], "a"), workload(2, &["web"], "a"));
    world.publish(vec![old.clone()]);
    world.run_until_converged();
    world.publish(vec![old.clone(), other.clone()]);
    world.carry_out(Action::Poll { held: None, wait: Duration::ZERO });
    // The display of the first is unplugged by now.
    world.blobs.insert(document(&other).digest(), other.clone());
    let delivery = vec![(document(&old), not_for_here()), (document(&other), Ok(other))];
    world.absorb(Event::Fetched(Ok(delivery)));
    world.run_until_converged();
    assert!(!world.told(1).contains("FAILED"), "{}", world.told(1));
}

/// The power goes and comes back; what had no restart policy does not.
fn power_cut(world: &mut World, boot: u32) {
    world.commit();
    world.boot();
    world.absorb(Event::Booted(format!("boot {boot}")));
    for print in world.running.values() {
        world.odd.insert(*print, Health::Down("service web exited with code 137".into()));
    }
}

#[test]
fn power_cuts_are_no_tries_of_an_update_that_does_not_come_back_by_itself() {
    let mut world = World::new(11);
    let (old, mut new) = (workload(1, &["db", "web"], "a"), workload(1, &["db", "web"], "b"));
    new.hints.rollback = Rollback::new(None, Some(1), None).unwrap();
    world.absorb(Event::Booted("boot 0".into()));
    world.publish(vec![old]);
    world.run_until_converged();
    world.publish(vec![new]);
    for boot in 1..=2 {
        world.run_until_converged();
        power_cut(&mut world, boot);
        // Down, and started again after its grace.
        live_for(&mut world, 30);
    }
    world.run_until_converged();
    assert!(!world.told(1).contains("ROLLINGBACK"), "{}", world.told(1));
    assert!(world.told(1).contains("FAILED"), "{}", world.told(1));
    // One that then fails by itself is a try.
    live_for(&mut world, 20);
    for print in world.running.clone().into_values() {
        world.odd.insert(print, Health::Down("service web exited with code 1".into()));
    }
    live_for(&mut world, 60);
    assert!(world.told(1).ends_with("FAILED ROLLINGBACK INSTALLED"), "{}", world.told(1));
}

#[test]
fn a_first_installation_whose_tries_are_counted_is_not_given_up_for_a_power_cut() {
    let mut world = World::new(11);
    let mut new = workload(1, &["db", "web"], "a");
    new.hints.rollback = Rollback::new(None, Some(1), None).unwrap();
    world.absorb(Event::Booted("boot 0".into()));
    world.publish(vec![new]);
    world.run_until_converged();
    power_cut(&mut world, 1);
    live_for(&mut world, 30);
    world.run_until_converged();
}

/// The power goes in the middle of an update, and what was up already does not come back with it.
#[test]
fn what_was_started_before_the_power_went_is_looked_to_before_it_is_called_installed() {
    let mut world = World::new(11);
    let (old, new) = (workload(1, &["db", "web"], "a"), workload(1, &["db", "web"], "b"));
    world.absorb(Event::Booted("boot 0".into()));
    world.publish(vec![old]);
    world.run_until_converged();
    world.publish(vec![new]);
    half_way(&mut world);
    let told = world.reports.len();
    power_cut(&mut world, 1);
    let started = world.started;
    world.run_until_converged();
    assert!(!world.reports[told..].iter().any(|report| report.state == Reported::Failed));
    let is_down = |print: &Digest| world.odd.contains_key(print);
    assert!(!world.running.values().any(is_down), "nothing that is down is called installed");
    assert_eq!(world.started - started, 1, "what is as ordered is not made anew");
    // An agent that ended alone knows what it has done.
    world.publish(vec![workload(1, &["db", "web"], "c")]);
    half_way(&mut world);
    world.commit();
    world.boot();
    world.absorb(Event::Booted("boot 1".into()));
    let done = |progress: &Progress| progress.state == Reported::Installed;
    assert!(world.device.assignments()[&id(1)].components.iter().any(done));
}

#[test]
fn what_nobody_here_can_read_has_no_next_try_that_could_be_told() {
    let mut world = World::new(11);
    let new = workload(1, &["db", "web"], "a");
    world.publish(vec![new.clone()]);
    half_way(&mut world);
    boot_reading(&mut world, &[(&new, not_for_here())]);
    live_for(&mut world, 600);
    let last = world.reports.last().unwrap();
    assert_eq!(
        last.detail.as_ref().map(|detail| (detail.state, detail.next_try)),
        Some((State::Failed, None))
    );
    // It is tried by the first that can.
    world.boot();
    world.run_until_converged();
}

#[test]
fn retry_pauses_and_their_number_outlive_a_restart() {
    let mut world = World::new(11);
    let new = workload(1, &["web"], "a");
    world.broken.extend(World::fingerprints(&new));
    world.publish(vec![new]);
    while world.device.assignments().get(&id(1)).is_none_or(|a| a.attempt < 3 || a.state != State::Failed) {
        world.step();
    }
    world.commit();
    let before = world.device.assignments()[&id(1)].clone();
    world.boot();
    let after = world.device.assignments()[&id(1)].clone();
    assert_eq!((after.attempt, after.strikes, after.next_try), (3, before.strikes, before.next_try));
    let due = after.next_try.unwrap();
    while world.now < due {
        world.step_with(|world, action| {
            let begins = matches!(action, Action::Prefetch(_) | Action::Apply(_));
            assert!(!begins || world.now >= due, "{action:?} at {}", world.now);
        });
    }
    while world.device.assignments()[&id(1)].attempt == 3 {
        world.step();
    }
    assert_eq!(world.device.assignments()[&id(1)].attempt, 4);
}

/// What only the failed update had is known by sight alone by now.
#[test]
fn nothing_is_put_up_on_the_way_back_before_somebody_looked_what_is_in_its_way() {
    for blind in [false, true] {
        let mut world = World::new(11);
        let (old, new) = (workload(1, &["db", "web"], "a"), workload(1, &["db", "web"], "b"));
        world.publish(vec![old]);
        world.run_until_converged();
        world.broken.insert(World::fingerprints(&new)[1]);
        world.publish(vec![new]);
        while world.device.assignments()[&id(1)].state != State::RollingBack {
            world.step();
        }
        world.commit();
        world.boot();
        let mut looked = false;
        while !looked {
            match world.device.next(&world.settings, world.now) {
                Some(Action::Observe) => world.absorb(Event::Began(Action::Observe)),
                Some(action) => {
                    let touches = matches!(action, Action::Apply(_) | Action::Remove { .. });
                    assert!(!touches, "{action:?}");
                    world.carry_out(action);
                }
                None => {
                    let event = match blind {
                        false => world.perform(Action::Observe),
                        true => {
                            Event::Observed(Err(Failure::new(FailureCode::RuntimeUnreachable, "no answer")))
                        }
                    };
                    world.absorb(event);
                    looked = true;
                }
            }
        }
        while world.device.assignments()[&id(1)].state == State::RollingBack {
            world.step();
        }
        assert_eq!(world.device.assignments()[&id(1)].state, State::Installed);
    }
}
