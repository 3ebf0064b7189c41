//! News that is not taken: by the server, or by something that stands before it and lets only some requests pass.

use std::time::Duration;

use super::*;

/// What whoever stands there answers to a report, if it does not pass.
type Gate = fn(&Report) -> Option<Event>;

fn sequence(report: &Report) -> u64 {
    report.detail.as_ref().unwrap().sequence
}

/// A page of its own, with a code that would be an end if a server had said why.
fn rebuffed(report: &Report) -> Option<Event> {
    Some(Event::Rebuffed { sequence: sequence(report), trouble: Trouble::passing("<html>") })
}

/// A page of its own, with a code that may be another one tomorrow.
fn forbidden(report: &Report) -> Option<Event> {
    let trouble = Trouble { answered: true, ..Trouble::passing("<html>") };
    Some(Event::Sent { sequence: sequence(report), result: Err(trouble) })
}

/// Lives for a while behind the gate. Everything but reports passes. How often reports were sent.
fn live(world: &mut World, time: Duration, gate: Gate) -> u32 {
    let (end, mut sent) = (world.now.after(time), 0);
    while world.now < end {
        match world.device.next(&world.settings, world.now) {
            Some(Action::Send(report)) => {
                sent += 1;
                match gate(&report) {
                    Some(event) => {
                        world.absorb(Event::Began(Action::Send(report)));
                        world.absorb(event);
                    }
                    None => world.carry_out(Action::Send(report)),
                }
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    sent
}

/// The last that the server heard of it.
fn newest(world: &World, n: u8) -> Option<(State, u64)> {
    let of = world.reports.iter().rfind(|report| report.assignment == id(n))?;
    Some((of.detail.as_ref().unwrap().state, of.adopted_version))
}

#[test]
fn promise_9_where_deployments_stand_is_told_once_reports_pass_again_however_long_that_took() {
    for gate in [rebuffed as Gate, forbidden] {
        let mut world = World::new(3);
        world.publish(vec![
            workload(1, &["web"], "a"),
            workload(2, &["db"], "a"),
            workload(3, &["log"], "a"),
        ]);
        world.run_until_converged();
        world.publish(vec![workload(1, &["web"], "b"), workload(2, &["db"], "a")]);
        let day = Duration::from_secs(24 * 3600);
        let sent = live(&mut world, day, gate);
        assert!(sent < 1_000, "{sent} in a day");
        world.publish(vec![workload(1, &["web"], "b"), workload(2, &["db"], "c")]);
        live(&mut world, day, gate);
        world.run_until_converged();
        let version = world.manifest.version();
        let told = [newest(&world, 1), newest(&world, 2), newest(&world, 3)];
        let before = |state| Some((state, version - 1));
        assert_eq!(
            told,
            [before(State::Installed), Some((State::Installed, version)), before(State::Deleted)]
        );
    }
}

#[test]
fn promise_9_a_report_that_does_not_pass_keeps_back_no_other_deployment() {
    let gate: Gate = |report| [id(1), id(2)].contains(&report.assignment).then(|| forbidden(report))?;
    let mut world = World::new(4);
    let all = |value: &str| (1..=5).map(|n| workload(n, &["web"], value)).collect::<Vec<_>>();
    world.publish(all("a"));
    world.run_until_converged();
    world.publish(all("b"));
    live(&mut world, Duration::from_secs(1800), gate);
    let version = world.manifest.version();
    for n in [3, 4, 5] {
        assert_eq!(newest(&world, n), Some((State::Installed, version)), "{n}");
    }
    assert_eq!(newest(&world, 1), Some((State::Installed, version - 1)));
    world.run_until_converged();
    assert_eq!(newest(&world, 1), Some((State::Installed, version)));
    // Of each in the order in which it happened.
    for n in 1..=5 {
        let told = world.reports.iter().filter(|report| report.assignment == id(n)).map(sequence);
        assert!(told.is_sorted(), "{n}");
    }
}

#[test]
fn a_report_that_the_server_refuses_in_no_words_is_given_up_while_it_takes_others() {
    let gate: Gate = |report| (report.assignment == id(1)).then(|| rebuffed(report))?;
    let mut world = World::new(5);
    world.publish(vec![workload(1, &["web"], "a"), workload(2, &["db"], "a")]);
    world.run_until_converged();
    for n in 0..40 {
        world.publish(vec![workload(2, &["db"], &format!("{n}"))]);
        live(&mut world, Duration::from_secs(1800), gate);
    }
    assert!(!world.device.outbox().has(id(1)), "the server forgot it, and does not say so");
    assert!(world.converged());
}

#[test]
fn mi_g2_120_capabilities_that_were_refused_for_good_keep_nothing_back_and_are_told_again() {
    let mut world = World::new(6);
    world.publish(vec![workload(1, &["web"], "a")]);
    let begun = world.now;
    let mut refused = vec![];
    while world.now.since(begun) < Duration::from_secs(2 * 3600) {
        match world.device.next(&world.settings, world.now) {
            Some(Action::SendCapabilities) => {
                refused.push(world.now.since(begun).as_secs());
                world.absorb(Event::Began(Action::SendCapabilities));
                world.absorb(Event::CapabilitiesSent(Err(Trouble::permanent("<html>"))));
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    assert_eq!(newest(&world, 1), Some((State::Installed, world.manifest.version())));
    let apart: Vec<u64> = refused.windows(2).map(|two| two[1] - two[0]).collect();
    let is_now_and_then = |apart: &u64| (22 * 60..=38 * 60).contains(apart);
    assert!(apart.len() >= 3 && apart.iter().all(is_now_and_then), "now and then: {refused:?}");
    // What is something else was not refused.
    world.absorb(Event::CapabilitiesAre(Digest::of(b"more memory")));
    let changed = world.now;
    while world.device.next(&world.settings, world.now) != Some(Action::SendCapabilities) {
        match world.device.next(&world.settings, world.now) {
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    assert!(world.now.since(changed) <= Duration::from_secs(5));
}
