//! What a device asks of its server, how often, and how patiently.

use std::time::Duration;

use super::*;
use crate::report::Holding;
use crate::schedule::{Poll, Schedule};

/// A world whose device has told what it is and polls.
fn polling() -> World {
    let mut world = World::new(1);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    world
}

/// Lets the next poll fail with `trouble`, and says when the server is asked again.
fn asked_again_after(world: &mut World, trouble: Trouble) -> Duration {
    let polls = |world: &mut World| loop {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Poll { .. }) => return action,
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    };
    let poll = polls(world);
    world.absorb(Event::Began(poll));
    world.absorb(Event::Polled(Err(trouble)));
    world.commit();
    let before = world.now;
    polls(world);
    world.now.since(before)
}

/// Looks at its runtime meanwhile, and at nothing else.
fn leaves_alone_until(world: &mut World, end: Moment) {
    while world.now < end {
        match world.device.next(&world.settings, world.now) {
            Some(Action::Observe) => world.carry_out(Action::Observe),
            Some(action) => panic!("{action:?} at {:?}", end.since(world.now)),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
}

#[test]
fn mi_g2_193_a_server_that_asked_for_quiet_is_left_alone_also_after_a_restart() {
    let seconds = Duration::from_secs;
    let asks = |after| Trouble { retry_after: Some(after), ..Trouble::passing("busy") };
    let mut world = polling();
    assert!(asked_again_after(&mut world, asks(seconds(40))) >= seconds(40));

    let mut world = polling();
    let poll = Action::Poll { held: None, wait: Duration::ZERO };
    world.absorb(Event::Began(poll));
    world.absorb(Event::Polled(Err(asks(seconds(600)))));
    world.commit();
    world.boot();
    // Other things to tell wait too: it is the server that is busy, not the manifest.
    world.device.report(&world.settings.clone(), id(1), world.now);
    let end = world.now.after(seconds(600));
    leaves_alone_until(&mut world, end);
    assert!(matches!(
        world.device.next(&world.settings, world.now.after(seconds(60))),
        Some(Action::Send(_) | Action::Poll { .. })
    ));
}

#[test]
fn mi_g2_193_a_shorter_wish_for_quiet_does_not_end_a_longer_one() {
    let seconds = Duration::from_secs;
    let asks = |after| Trouble { retry_after: Some(after), ..Trouble::passing("busy") };
    // Only what is asked for a minute or more outlives a restart.
    for (first, second, restart) in [(50, 2, false), (600, 60, false), (600, 60, true)] {
        let mut world = polling();
        world.device.report(&world.settings.clone(), id(1), world.now);
        let send = loop {
            match world.device.next(&world.settings, world.now) {
                Some(action @ Action::Send(_)) => break action,
                Some(action) => world.carry_out(action),
                None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
            }
        };
        let Action::Send(report) = &send else { unreachable!("found above") };
        let sequence = report.detail.as_ref().unwrap().sequence;
        world.absorb(Event::Began(send));
        world.absorb(Event::Began(Action::Poll { held: None, wait: Duration::ZERO }));
        let quiet = world.now.after(seconds(first));
        world.absorb(Event::Polled(Err(asks(seconds(first)))));
        world.absorb(Event::Sent { sequence, result: Err(asks(seconds(second))) });
        if restart {
            world.commit();
            world.boot();
        }
        leaves_alone_until(&mut world, quiet);
    }
}

#[test]
fn mi_g2_192_an_answer_that_is_not_worth_a_retry_leaves_the_rhythm_as_it_is() {
    let refused = Trouble { backoff: Backoff::None, ..Trouble::permanent("refused") };
    let mut world = polling();
    for _ in 0..10 {
        let pause = asked_again_after(&mut world, refused.clone()).as_secs_f64();
        assert!((22.0..=38.0).contains(&pause), "{pause}");
    }
}

#[test]
fn id_187_a_renewed_way_is_tried_at_once_but_quiet_is_kept() {
    let mut world = polling();
    for _ in 0..8 {
        asked_again_after(&mut world, Trouble::passing("expired"));
    }
    world.absorb(Event::Began(Action::Poll { held: None, wait: Duration::ZERO }));
    world.absorb(Event::Polled(Err(Trouble::passing("expired"))));
    assert!(!matches!(world.device.next(&world.settings, world.now), Some(Action::Poll { .. })));
    world.absorb(Event::WayRenewed);
    assert!(matches!(world.device.next(&world.settings, world.now), Some(Action::Poll { .. })));

    world.absorb(Event::Began(Action::Poll { held: None, wait: Duration::ZERO }));
    let busy = Trouble { retry_after: Some(Duration::from_secs(30)), ..Trouble::passing("busy") };
    world.absorb(Event::Polled(Err(busy)));
    world.absorb(Event::WayRenewed);
    assert!(!matches!(world.device.next(&world.settings, world.now), Some(Action::Poll { .. })));
}

#[test]
fn a_lost_document_that_no_server_has_any_more_does_not_keep_a_newer_manifest_away() {
    let mut world = polling();
    world.blobs.clear();
    world.boot();
    let mut fetches = 0;
    loop {
        match world.device.next(&world.settings, world.now) {
            Some(Action::Poll { .. }) => break,
            Some(action @ Action::Fetch(_)) => {
                fetches += 1;
                world.absorb(Event::Began(action));
                world.absorb(Event::Fetched(Err(Trouble::permanent("404"))));
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
        assert!(fetches < 3, "the manifest is asked for in between");
    }
    assert_eq!(fetches, 1);
}

#[test]
fn a_poll_that_something_on_the_way_cuts_is_asked_to_be_held_shorter() {
    let seconds = Duration::from_secs;
    let mut world = polling();
    world.settings.poll_wait = seconds(600);
    let mut polled = |after: Duration, result: Result<Polled, Trouble>| loop {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Poll { wait, .. }) => {
                world.absorb(Event::Began(action));
                world.now = world.now.after(after);
                world.absorb(Event::Polled(result));
                return wait;
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    };
    let fine = || Ok(Polled::Unchanged { held_open: true });
    polled(seconds(1), fine());
    assert_eq!(polled(seconds(60), Err(Trouble::passing("504"))), seconds(600));
    // First a quick question, whether anybody is there at all; then less time.
    assert_eq!(polled(seconds(1), fine()), seconds(0));
    assert_eq!(polled(seconds(45), fine()), seconds(45));
    // A server that is away says nothing about waiting.
    polled(seconds(1), Err(Trouble::passing("no connection")));
    polled(seconds(1), fine());
    assert_eq!(polled(seconds(45), fine()), seconds(45));
    // It may have been a line that broke.
    let again = (0..3_000).take_while(|_| polled(seconds(45), fine()) == seconds(45)).count();
    assert!((1800..2000).contains(&again), "a day of polls, and not {again}");
    assert_eq!(polled(seconds(60), Err(Trouble::passing("504"))), seconds(600), "there is a firewall");
    polled(seconds(1), fine());
    assert_eq!(polled(seconds(45), fine()), seconds(45));
}

#[test]
fn a_server_that_only_says_that_it_held_a_poll_is_asked_no_more_often_than_any() {
    let mut world = polling();
    world.settings.poll_wait = Duration::from_secs(600);
    let begun = world.now;
    let mut polls = 0;
    while world.now.since(begun) < Duration::from_secs(600) {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Poll { .. }) => {
                polls += 1;
                world.absorb(Event::Began(action));
                world.absorb(Event::Polled(Ok(Polled::Unchanged { held_open: true })));
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    assert!((10..=30).contains(&polls), "{polls}");
}

#[test]
fn a_poll_that_a_stopping_server_let_go_of_at_once_is_followed_by_the_next_one_soon() {
    let mut world = polling();
    world.settings.poll_wait = Duration::from_secs(300);
    let mut pause_after = |held: Duration| loop {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Poll { .. }) => {
                world.absorb(Event::Began(action));
                world.now = world.now.after(held);
                world.absorb(Event::Polled(Ok(Polled::Unchanged { held_open: true })));
                break world.device.wake(&world.settings, world.now).unwrap().since(world.now);
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    };
    let (held, at_once) = (Duration::from_secs(300), Duration::from_millis(5));
    pause_after(held);
    assert!(pause_after(held) < Duration::from_secs(1));
    // Once for each restart; a server that does nothing else is asked as rarely as any.
    for _ in 0..2 {
        let soon = pause_after(at_once);
        assert!((1..5).contains(&soon.as_secs()), "{soon:?}");
        assert!(pause_after(at_once) > Duration::from_secs(10));
        assert!(pause_after(held) < Duration::from_secs(1));
    }
}

#[test]
fn a_server_that_makes_manifests_all_the_time_does_not_wear_the_disk_out() {
    let mut world = polling();
    let begun = world.now;
    let mut version = 100;
    while world.now.since(begun) < Duration::from_secs(600) {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Poll { .. }) => {
                version += 1;
                let manifest = Manifest::new(version, None, vec![]).unwrap();
                let body = Digest::of(&version.to_be_bytes());
                world.absorb(Event::Began(action));
                world.absorb(Event::Polled(Ok(Polled::Manifest { manifest, body, held_open: false })));
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    // Eight at once, then one every ten seconds.
    assert!((60..=70).contains(&(version - 100)), "{}", version - 100);
}

/// A server that was restored from a backup shows less than this device holds, and cannot know it.
#[test]
fn a_server_of_an_older_past_hears_now_and_then_what_is_held() {
    let mut world = polling();
    world.publish(vec![workload(1, &["web"], "b")]);
    world.run_until_converged();
    let held = world.device.accepted().unwrap().version;
    let (known, lost) = (workload(1, &["web"], "a"), workload(2, &["db"], "a"));
    let entries = [&known, &lost]
        .map(|w| Entry { id: w.id, document: Blob { digest: document(w).digest(), size: None } });
    let bundle = Some(Blob { digest: Digest::of(b"bundle"), size: None });
    for version in [held - 1, held, held] {
        world.now = world.now.after(Duration::from_secs(601));
        let manifest = Manifest::new(version, bundle, entries.to_vec()).unwrap();
        let polled =
            Polled::Manifest { manifest, body: Digest::of(&version.to_le_bytes()), held_open: false };
        world.absorb(Event::Polled(Ok(polled.clone())));
        let told: Vec<_> = world
            .device
            .outbox()
            .waiting()
            .map(|report| (report.assignment, report.adopted_version, report.detail.as_ref().unwrap().state))
            .collect();
        assert_eq!(told, [(id(1), held, State::Installed), (id(2), held, State::Deleted)]);
        let holding = Holding { version: held, manifest: world.device.accepted().unwrap().body };
        let says = |report: &Report| report.detail.as_ref().unwrap().holds == Some(holding);
        assert!(world.device.outbox().waiting().all(says));
        world.absorb(Event::Polled(Ok(polled)));
        assert_eq!(world.device.outbox().len(), 2, "a replayed manifest does not fill the outbox");
        assert_eq!(world.device.accepted().unwrap().version, held);
        while let Some(report) = world.device.outbox().first().cloned() {
            let sequence = report.detail.unwrap().sequence;
            world.absorb(Event::Sent { sequence, result: Ok(()) });
        }
    }
    // The server goes on above, and there is nothing to dispute any more.
    world.publish(vec![workload(1, &["web"], "c")]);
    world.run_until_converged();
    assert_eq!(world.reports.last().unwrap().detail.as_ref().unwrap().holds, None);
}

#[test]
fn what_changes_about_a_device_is_told_soon_and_not_all_the_time() {
    let mut world = polling();
    let say = |world: &mut World, what: &[u8]| world.absorb(Event::CapabilitiesAre(Digest::of(what)));
    let told = |world: &mut World, what: &[u8]| {
        assert_eq!(world.device.next(&world.settings, world.now), Some(Action::SendCapabilities));
        world.absorb(Event::Began(Action::SendCapabilities));
        world.absorb(Event::CapabilitiesSent(Ok(Digest::of(what))));
    };
    world.now = world.now.after(Duration::from_secs(60));
    say(&mut world, b"held back");
    told(&mut world, b"held back");
    let before = world.now;
    say(&mut world, b"held back by another");
    loop {
        match world.device.next(&world.settings, world.now) {
            Some(Action::SendCapabilities) => break,
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    assert_eq!(world.now.since(before), Duration::from_secs(5));
    told(&mut world, b"held back by another");

    // Who saves data says it when it asks anyway.
    let (poll, saver) = (Some(Poll { every: Duration::from_secs(3600), wait: false }), true);
    world.manifest = Manifest::new(world.manifest.version() + 1, None, vec![])
        .unwrap()
        .with_schedule(Schedule { poll, saver, ..Schedule::default() });
    world.run_until_converged();
    // It asks once more, and then has nothing to say for an hour.
    while let Some(action) = world.device.next(&world.settings, world.now) {
        world.carry_out(action);
    }
    world.now = world.now.after(Duration::from_secs(60));
    say(&mut world, b"held back again");
    let before = world.now;
    loop {
        match world.device.next(&world.settings, world.now) {
            Some(Action::SendCapabilities) => break,
            Some(action @ (Action::Poll { .. } | Action::Send(_))) => panic!("{action:?} came first"),
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    assert!(world.now.since(before) > Duration::from_secs(1800), "{:?}", world.now.since(before));
}

#[test]
fn a_restored_server_is_told_again_how_things_stand_and_what_is_long_gone() {
    let mut world = World::new(5);
    world.publish(vec![workload(1, &["web"], "a"), workload(2, &["web"], "b")]);
    world.run_until_converged();
    // One of them is not as it was when the server heard of it last.
    world.sick.extend(World::fingerprints(&workload(2, &["web"], "b")));
    while world.device.assignments()[&id(2)].state != State::Failed {
        world.step();
    }
    world.device.outbox.clear();
    world.reports.clear();
    let started = world.started;
    // Restored: the same, far above, and it waits to hear that something went which this device knows nothing of.
    let entries = world.manifest.entries().to_vec();
    let version = world.manifest.version() + 1_000_000;
    let again = Manifest::new(version, world.manifest.bundle(), entries).unwrap();
    world.manifest = again.with_leaving([id(1), id(9)]);
    while world.reports.len() < 3 {
        world.step();
    }
    let told: Vec<_> =
        world.reports.iter().map(|r| (r.assignment, r.detail.as_ref().unwrap().state)).collect();
    assert_eq!(told, [(id(1), State::Installed), (id(2), State::Failed), (id(9), State::Deleted)]);
    assert!(world.reports.iter().all(|report| report.adopted_version == version));
    assert_eq!(world.started, started, "nothing was touched for that");
}

/// Ids that no device ever had, a thousand of them.
fn strangers(batch: u32) -> impl Iterator<Item = AssignmentId> {
    (0..1_000)
        .map(move |n| AssignmentId::parse(&format!("00000000-0000-4000-8000-{batch:04x}{n:08x}")).unwrap())
}

#[test]
fn a_server_that_was_set_back_is_told_of_the_end_of_what_it_waits_for() {
    let mut world = World::new(5);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    let entries = world.manifest.entries().to_vec();
    world.publish(vec![]);
    world.run_until_converged();
    let held = world.device.accepted().unwrap().version;
    let older = Manifest::new(held - 1, world.manifest.bundle(), vec![]).unwrap();
    let older = older.with_leaving([entries[0].id]);
    let body = Digest::of(b"of another past");
    world.absorb(Event::Began(Action::Poll { held: None, wait: Duration::ZERO }));
    world.absorb(Event::Polled(Ok(Polled::Manifest { manifest: older, body, held_open: false })));
    let told: Vec<_> =
        world.device.outbox.waiting().map(|report| (report.assignment, report.state)).collect();
    assert_eq!(told, [(entries[0].id, Reported::Removed)]);
    let told = world.device.outbox.waiting().next().unwrap();
    assert_eq!(told.adopted_version, held);
}

#[test]
fn a_server_that_asks_for_ever_others_does_not_fill_the_disk_with_answers() {
    let mut world = World::new(5);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    let entries = world.manifest.entries().to_vec();
    let (version, bundle) = (world.manifest.version(), world.manifest.bundle());
    let polled = |world: &mut World, manifest: Manifest| {
        world.now = world.now.after(Duration::from_secs(700));
        let body = Digest::of(format!("{manifest:?}").as_bytes());
        world.absorb(Event::Began(Action::Poll { held: None, wait: Duration::ZERO }));
        world.absorb(Event::Polled(Ok(Polled::Manifest { manifest, body, held_open: false })));
    };
    // Nothing can be sent, and every poll brings others: of a past that is over, or ones that it waits for.
    for batch in 1..20 {
        let document = entries[0].document;
        let older = strangers(batch).map(|id| Entry { id, document }).collect();
        polled(&mut world, Manifest::new(version - 1, bundle, older).unwrap());
        let newer = Manifest::new(version + u64::from(batch), bundle, entries.clone()).unwrap();
        polled(&mut world, newer.with_leaving(strangers(100 + batch)));
    }
    assert!(world.device.accepted().unwrap().version > version);
    let waiting = world.device.outbox().len();
    assert!((1_000..1_100).contains(&waiting), "{waiting}");
    // Of what is here it still says everything.
    world.device.outbox.clear();
    world.manifest = Manifest::new(version + 1_000, bundle, entries).unwrap();
    world.running.clear();
    world.run_until_converged();
    assert!(world.told(1).ends_with("FAILED INSTALLING INSTALLED"), "{}", world.told(1));
}

#[test]
fn documents_that_do_not_come_one_by_one_are_asked_for_in_one_piece() {
    let mut world = polling();
    let all = |value: &str| (1..=9).map(|n| workload(n, &["web"], if n > 6 { value } else { "a" })).collect();
    world.publish(all("a"));
    world.run_until_converged();
    world.publish(all("b"));
    // The bundle is larger than the three that are new.
    let bundle = Some(Blob { digest: Digest::of(b"bundle"), size: Some(50_000) });
    let entries = world.manifest.entries().to_vec();
    world.manifest = Manifest::new(world.manifest.version(), bundle, entries).unwrap();
    let mut singly = 0;
    while world.device.accepted().unwrap().version < world.manifest.version() {
        match world.device.next(&world.settings, world.now) {
            Some(action @ Action::Fetch(FetchPlan::Documents(_))) => {
                singly += 1;
                assert!(singly < 20, "it will never have all of them");
                world.absorb(Event::Began(action));
                world.absorb(Event::Fetched(Err(Trouble::passing("429, after two of them"))));
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    assert_eq!(singly, 1);
    world.run_until_converged();
}

/// What is sent next, once it is time for it.
fn sent_next(world: &mut World) -> u64 {
    loop {
        match world.device.next(&world.settings, world.now) {
            Some(Action::Send(report)) => {
                world.absorb(Event::Began(Action::Send(report.clone())));
                return report.detail.unwrap().sequence;
            }
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
}

#[test]
fn promise_9_a_report_that_was_refused_in_no_words_is_sent_again_while_nothing_else_is_answered() {
    let mut world = polling();
    world.publish(vec![workload(1, &["web"], "b")]);
    let first = sent_next(&mut world);
    let waiting = world.device.outbox().len();
    for _ in 0..20 {
        world.absorb(Event::Rebuffed { sequence: first, trouble: Trouble::passing("<html>") });
        world.absorb(Event::Polled(Err(Trouble::passing("<html>"))));
        // Nobody is reached but whoever stands on the way.
        while !matches!(world.device.next(&world.settings, world.now), Some(Action::Send(_))) {
            match world.device.next(&world.settings, world.now) {
                Some(poll @ Action::Poll { .. }) => {
                    world.absorb(Event::Began(poll));
                    world.absorb(Event::Polled(Err(Trouble::passing("<html>"))));
                }
                Some(action) => world.carry_out(action),
                None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
            }
        }
        assert_eq!(sent_next(&mut world), first);
    }
    assert!(world.device.outbox().len() >= waiting);
    world.absorb(Event::Sent { sequence: first, result: Ok(()) });
    world.run_until_converged();
}

#[test]
fn a_report_that_no_server_takes_keeps_no_other_back_for_ever() {
    let mut world = polling();
    world.publish(vec![workload(1, &["web"], "b")]);
    let first = sent_next(&mut world);
    let (mut tries, mut second) = (0, first);
    while second == first {
        // Polls are answered meanwhile, so it is the server who does not want this one.
        world.absorb(Event::Rebuffed { sequence: first, trouble: Trouble::passing("no") });
        tries += 1;
        second = sent_next(&mut world);
    }
    assert!((3..20).contains(&tries) && second > first, "{tries}");
    // The next one is not judged by what was said of another.
    world.absorb(Event::Rebuffed { sequence: second, trouble: Trouble::passing("no") });
    assert_eq!(sent_next(&mut world), second);
    world.absorb(Event::Sent { sequence: second, result: Ok(()) });
    world.run_until_converged();
}

/// A document says itself which deployment it is of.
#[test]
fn a_manifest_that_lists_a_document_under_another_deployment_is_refused_and_nothing_is_touched() {
    let entry = |n: u8, of: &Workload| Entry {
        id: id(n),
        document: Blob { digest: document(of).digest(), size: Some(100) },
    };
    let (one, new) = (workload(1, &["web"], "a"), workload(2, &["web"], "a"));
    let bundle = Some(Blob { digest: Digest::of(b"bundle"), size: Some(150) });
    // One that is here, and one that nobody has seen yet.
    for entries in
        [vec![entry(1, &one), entry(2, &one)], vec![entry(2, &one)], vec![entry(2, &new), entry(3, &new)]]
    {
        let mut world = World::new(1);
        world.publish(vec![one.clone()]);
        world.run_until_converged();
        world.store.insert(document(&new).digest(), new.clone());
        let accepted = world.device.accepted().unwrap().version;
        world.manifest = Manifest::new(world.manifest.version() + 1, bundle, entries).unwrap();
        let started = world.started;
        let end = world.now.after(Duration::from_secs(600));
        while world.now < end {
            world.step();
        }
        assert_eq!(world.device.accepted().unwrap().version, accepted);
        assert_eq!((world.started, world.device.assignments()[&id(1)].state), (started, State::Installed));
        let trouble = world.device.contact().1.unwrap();
        assert!(trouble.contains("lists the document of deployment"), "{trouble}");
        // It goes on with the next that makes sense.
        world.publish(vec![one.clone(), new.clone()]);
        world.run_until_converged();
    }
}

#[test]
fn a_clock_that_is_set_back_makes_no_quiet_longer() {
    let seconds = Duration::from_secs;
    // What is asked for a minute or more outlives a restart.
    for (asked, restart) in [(30, false), (600, false), (600, true)] {
        let mut world = polling();
        let right = world.now;
        // The power comes back, and the clock is hours ahead until it is set.
        world.now = right.after(seconds(8 * 3600));
        let busy = Trouble { retry_after: Some(seconds(asked)), ..Trouble::passing("busy") };
        world.absorb(Event::Began(Action::Poll { held: None, wait: Duration::ZERO }));
        world.absorb(Event::Polled(Err(busy)));
        world.commit();
        world.now = right;
        if restart {
            world.boot();
        }
        loop {
            assert!(world.now.since(right) <= seconds(660), "{asked} {restart}");
            match world.device.next(&world.settings, world.now) {
                Some(Action::Poll { .. }) => break,
                Some(action) => world.carry_out(action),
                None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
            }
        }
    }
}

#[test]
fn a_quiet_that_an_older_agent_wrote_down_is_kept() {
    let mut world = polling();
    world.absorb(Event::Began(Action::Poll { held: None, wait: Duration::ZERO }));
    let busy = Trouble { retry_after: Some(Duration::from_secs(600)), ..Trouble::passing("busy") };
    world.absorb(Event::Polled(Err(busy)));
    world.commit();
    let mut written: serde_json::Value = serde_json::from_str(&world.ledger).unwrap();
    written.as_object_mut().unwrap().remove("quiet_since");
    world.ledger = written.to_string();
    world.boot();
    let end = world.now.after(Duration::from_secs(600));
    leaves_alone_until(&mut world, end);
}

#[test]
fn trouble_with_a_server_that_chose_the_pace_brings_no_fleet_back_in_step() {
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let pauses = |poll: Poll| {
        let mut world = polling();
        world.settings.poll_wait = minutes(5);
        world.set(Schedule { poll: Some(poll), ..Schedule::default() });
        world.run_until_converged();
        (0..16).map(|_: u8| asked_again_after(&mut world, Trouble::passing("no connection"))).collect()
    };
    // One that asks seldom does so in trouble, too.
    let seldom: BTreeSet<Duration> = pauses(Poll { every: minutes(60), wait: false });
    assert!(seldom.len() > 8, "{seldom:?}");
    assert!(*seldom.first().unwrap() >= minutes(11) && *seldom.last().unwrap() <= minutes(19), "{seldom:?}");
    // One whose polls are held open is back as soon as any other.
    let held: BTreeSet<Duration> = pauses(Poll { every: minutes(60), wait: true });
    assert!(held.len() > 8, "{held:?}");
    assert!(*held.last().unwrap() <= minutes(5), "{held:?}");
}

#[test]
fn what_a_server_never_takes_is_not_told_again_by_all_at_once() {
    let mut pauses = BTreeSet::new();
    let mut world = polling();
    for n in 0..8u8 {
        world.now = world.now.after(Duration::from_secs(60));
        world.absorb(Event::CapabilitiesAre(Digest::of(&[n])));
        world.absorb(Event::Began(Action::SendCapabilities));
        world.absorb(Event::CapabilitiesSent(Err(Trouble::permanent("422"))));
        let before = world.now;
        loop {
            match world.device.next(&world.settings, world.now) {
                Some(Action::SendCapabilities) => break,
                Some(action) => world.carry_out(action),
                None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
            }
        }
        pauses.insert(world.now.since(before).as_secs());
    }
    assert!(pauses.len() > 4 && *pauses.first().unwrap() >= 1300, "{pauses:?}");
}
