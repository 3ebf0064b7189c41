//! A device that cannot look at its containers.

use super::*;

fn look(world: &mut World, result: Result<Vec<Observation>, Failure>) {
    world.absorb(Event::Began(Action::Observe));
    world.absorb(Event::Observed(result));
}

fn away(message: &str) -> Result<Vec<Observation>, Failure> {
    Err(Failure::new(FailureCode::RuntimeUnreachable, message))
}

/// One that runs what it should, and everything that it saw there.
fn installed() -> (World, Vec<Observation>) {
    let mut world = World::new(1);
    world.publish(vec![workload(1, &["web"], "hi")]);
    for _ in 0..200 {
        world.step();
    }
    assert!(world.device.converged());
    let seen = world.device.seen().to_vec();
    (world, seen)
}

/// Looks until it is told, a minute apart; how often that was.
fn told_after(world: &mut World) -> u32 {
    for number in 1..100 {
        world.now = world.now.after(Duration::from_secs(60));
        look(world, away("no answer"));
        if world.device.blind().is_some() {
            return number;
        }
    }
    panic!("it is never told");
}

#[test]
fn that_it_cannot_look_is_told_once_it_lasts_and_changes_nothing_else() {
    let (mut world, seen) = installed();
    let before = serde_json::to_value(world.device.assignments()).unwrap();
    let reports = world.device.outbox().next_sequence();
    let begun = world.now;
    for number in 1..=4 {
        look(&mut world, away("no answer"));
        assert_eq!(world.device.blind(), None, "{number}: an engine may be restarted");
        world.now = world.now.after(Duration::from_secs(10));
    }
    look(&mut world, away("no answer"));
    let told = world.device.blind().cloned().expect("it lasts");
    assert_eq!((told.since, told.message.as_str()), (begun, "no answer"));
    // The same words are told once, and others not at every look.
    for number in 0..60 {
        world.now = world.now.after(Duration::from_secs(10));
        look(&mut world, away(if number % 2 == 0 { "no answer" } else { "refused" }));
        assert_eq!(world.device.blind(), Some(&told));
    }
    world.now = world.now.after(Duration::from_secs(900));
    look(&mut world, away("refused"));
    assert_eq!(world.device.blind(), Some(&Blind { message: "refused".into(), ..told }));

    // A restart neither takes it back nor begins anew.
    world.commit();
    world.boot();
    assert_eq!(world.device.blind().map(|blind| blind.since), Some(begun));
    assert_eq!(serde_json::to_value(world.device.assignments()).unwrap(), before);
    assert_eq!(world.device.outbox().next_sequence(), reports, "nothing is reported of what nobody saw");
    look(&mut world, Ok(seen));
    assert_eq!(world.device.blind(), None);
}

#[test]
fn an_engine_that_comes_and_goes_is_told_less_and_less_often() {
    let (mut world, seen) = installed();
    let mut looks = vec![];
    for _ in 0..6 {
        looks.push(told_after(&mut world));
        look(&mut world, Ok(seen.clone()));
        assert_eq!(world.device.blind(), None, "that it can look is true at once");
    }
    assert_eq!(looks, [5, 6, 8, 12, 20, 20]);
    for _ in 0..60 {
        world.now = world.now.after(Duration::from_secs(15));
        look(&mut world, Ok(seen.clone()));
    }
    assert_eq!(told_after(&mut world), 5, "it was steady meanwhile");
}

#[test]
fn a_clock_that_is_set_back_does_not_keep_it_secret() {
    let (mut world, _) = installed();
    for _ in 0..5 {
        look(&mut world, away("no answer"));
        world.now = Moment(world.now.0 - 86_400_000);
    }
    let told = world.device.blind().expect("it is told");
    assert!(told.since <= world.now.after(Duration::from_secs(86_400)));
}

#[test]
fn who_has_nothing_to_look_after_misses_nothing() {
    let mut world = World::new(1);
    for _ in 0..50 {
        world.step();
    }
    for _ in 0..20 {
        look(&mut world, away("no answer"));
    }
    assert_eq!(world.device.blind(), None);
}

#[test]
fn an_engine_that_takes_minutes_to_answer_is_believed_all_the_same() {
    let mut world = World::new(11);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    world.running.clear();
    for _ in 0..5 {
        world.absorb(Event::Began(Action::Observe));
        world.now = world.now.after(Duration::from_secs(130));
        let seen = world.perform(Action::Observe);
        world.absorb(seen);
    }
    assert_eq!(world.device.assignments()[&id(1)].state, State::Failed);
}
