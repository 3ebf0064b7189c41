//! What operators ask of a device itself.

use super::waiting::{HOUR, MONDAY, minutes, touches};
use super::*;
use crate::asked::Asked;
use crate::schedule::Schedule;

const ANN: &str = "operator ann";

impl World {
    fn ask(&mut self, asked: Asked) {
        let entries = self.manifest.entries().to_vec();
        let next = Manifest::new(self.manifest.version() + 1, self.manifest.bundle(), entries).unwrap();
        self.manifest = next.with_schedule(self.manifest.schedule().clone()).with_asked(asked);
    }

    /// New documents, with all that was said before.
    fn want_as_asked(&mut self, workloads: Vec<Workload>) {
        let asked = self.manifest.asked().clone();
        self.want(workloads);
        self.manifest = self.manifest.clone().with_asked(asked);
    }

    /// Until the device has taken up the manifest that is there now.
    fn hear(&mut self) {
        let version = self.manifest.version();
        while self.device.accepted().unwrap().version < version {
            self.step();
        }
    }
}

fn hold_by(holder: &str, since: Moment, length: Duration) -> Asked {
    let hold = Hold::told(holder, "batch 17 runs", since, since.after(length)).unwrap();
    Asked { hold: Some(hold), look: 0 }
}

#[test]
fn an_operator_holds_changes_back_until_it_is_over() {
    let mut world = World::scheduled(Schedule::default());
    world.ask(hold_by(ANN, world.now, HOUR));
    world.want_as_asked(vec![workload(1, &["db", "web"], "b")]);
    let began = world.now;
    assert!(touches(&world.live_until(began.after(minutes(55)))).is_empty());
    let said = world.waiting(1).unwrap();
    assert!(
        said.starts_with("held back by operator ann until ") && said.ends_with(": batch 17 runs"),
        "{said}"
    );
    // A restart does not forget it, and the end comes by itself.
    world.boot();
    assert!(touches(&world.live_until(began.after(minutes(59)))).is_empty());
    assert_eq!(touches(&world.live_until(began.after(minutes(70)))), ["apply db", "apply web"]);
    // What the manifest still says is over, also for who reads it again.
    world.boot();
    world.want_as_asked(vec![workload(1, &["db", "web"], "c")]);
    world.run_until_converged();
    assert!(world.now < began.after(minutes(75)));
}

#[test]
fn what_an_operator_takes_back_goes_on_and_others_hold_on() {
    let mut world = World::scheduled(Schedule::default());
    world.ask(hold_by(ANN, world.now, HOUR));
    world.hear();
    world.hold("mes", minutes(10)).unwrap();
    world.want_as_asked(vec![workload(1, &["db", "web"], "b")]);
    world.hear();
    world.ask(Asked::default());
    world.hear();
    let holders: Vec<&str> = world.device.holds(world.now).iter().map(|hold| hold.holder.as_str()).collect();
    assert_eq!(holders, ["mes"]);
    world.absorb(Event::Released(None));
    world.run_until_converged();
    assert!(world.now < MONDAY.after(minutes(10)));
}

#[test]
fn what_somebody_at_the_device_let_go_does_not_begin_anew_with_the_next_manifest() {
    let mut world = World::scheduled(Schedule::default());
    world.ask(hold_by(ANN, world.now, HOUR));
    world.hear();
    world.absorb(Event::Released(None));
    world.want_as_asked(vec![workload(1, &["db", "web"], "b")]);
    world.run_until_converged();
    assert!(world.now < MONDAY.after(minutes(30)));
    // Asked for anew it is another one.
    world.ask(hold_by(ANN, world.now, HOUR));
    world.hear();
    assert_eq!(world.device.holds(world.now).len(), 1);
}

#[test]
fn operators_who_take_turns_hold_no_longer_than_one_may() {
    let hold_max = Some(2 * HOUR);
    let mut world = World::scheduled(Schedule { hold_max, ..Schedule::default() });
    let began = world.now;
    world.want(vec![workload(1, &["db", "web"], "b")]);
    let mut applied = None;
    for round in 0..12u32 {
        let by = ["operator ann", "operator bob"][round as usize % 2];
        world.ask(hold_by(by, world.now, 2 * HOUR));
        let did = world.live_until(began.after(minutes(30) * (round + 1)));
        if !touches(&did).is_empty() {
            applied = Some(round);
            break;
        }
    }
    assert_eq!(applied, Some(4), "after two hours, and not never");
}

#[test]
fn more_than_is_allowed_here_is_cut_and_where_nothing_is_allowed_nothing_waits() {
    let mut world = World::scheduled(Schedule { hold_max: Some(minutes(10)), ..Schedule::default() });
    world.ask(hold_by(ANN, world.now, HOUR));
    world.hear();
    assert!(world.device.holds(world.now)[0].until <= world.now.after(minutes(10)));
    let mut world = World::scheduled(Schedule { hold_max: Some(Duration::ZERO), ..Schedule::default() });
    world.ask(hold_by(ANN, world.now, HOUR));
    world.hear();
    assert!(world.device.holds(world.now).is_empty());
}

#[test]
fn a_clock_behind_the_servers_holds_for_as_long_as_was_meant() {
    for behind in [minutes(20), 24 * HOUR * 365 * 30] {
        let mut world = World::scheduled(Schedule::default());
        world.ask(hold_by(ANN, world.now.after(behind), HOUR));
        world.hear();
        let held = world.now;
        let until = world.device.holds(held)[0].until;
        assert!(until > held.after(minutes(59)) && until <= held.after(HOUR), "{until}");
        // The server says the same again and again, and it ends all the same.
        world.want_as_asked(vec![workload(1, &["db", "web"], "b")]);
        assert!(touches(&world.live_until(held.after(minutes(50)))).is_empty());
        world.run_until_converged();
        assert!(world.now < held.after(minutes(75)));
    }
}

#[test]
fn a_look_that_is_asked_for_is_taken_at_once_and_told_once() {
    let mut world = World::scheduled(Schedule::default());
    world.settings.observe_every = HOUR;
    world.live_until(world.now.after(minutes(5)));
    let (told, started) = (world.reports.len(), world.started);
    world.ask(Asked { hold: None, look: 77 });
    world.hear();
    assert_eq!(world.device.looked(), 0, "not before it has looked");
    let did = world.live_until(world.now.after(minutes(1)));
    assert_eq!(did.iter().filter(|did| *did == "look").count(), 1, "{did:?}");
    assert_eq!((world.device.looked(), world.reports.len()), (77, told + 1));
    assert_eq!(world.reports.last().unwrap().state, Reported::Installed);
    // Nor the same number, nor a restart asks again.
    world.boot();
    world.want_as_asked(vec![workload(1, &["db", "web"], "a")]);
    world.live_until(world.now.after(minutes(5)));
    assert_eq!((world.device.looked(), world.started), (77, started));
    world.ask(Asked { hold: None, look: 78 });
    world.live_until(world.now.after(minutes(5)));
    assert_eq!(world.device.looked(), 78);
}

#[test]
fn a_look_that_was_under_way_before_it_was_asked_for_is_no_answer() {
    let mut world = World::scheduled(Schedule::default());
    world.absorb(Event::Stirred);
    world.now = world.now.after(minutes(1));
    let mut observe = None;
    while let Some(action) = world.device.next(&world.settings, world.now) {
        match action {
            Action::Observe => {
                world.absorb(Event::Began(Action::Observe));
                observe = Some(Action::Observe);
            }
            other => world.carry_out(other),
        }
    }
    world.ask(Asked { hold: None, look: 5 });
    while world.device.asked().look != 5 {
        match world.device.next(&world.settings, world.now) {
            Some(action) => world.carry_out(action),
            None => world.now = world.device.wake(&world.settings, world.now).unwrap(),
        }
    }
    let event = world.perform(observe.expect("a look was due"));
    world.absorb(event);
    assert_eq!(world.device.looked(), 0);
    let now = world.now;
    while world.device.looked() != 5 {
        let next = world.device.next(&world.settings, now).expect("it looks once more, and at once");
        world.carry_out(next);
    }
}

#[test]
fn a_clock_ahead_of_the_servers_holds_for_as_long_as_was_meant() {
    for ahead in [minutes(20), HOUR, 8 * HOUR, 24 * HOUR * 365] {
        let mut world = World::scheduled(Schedule::default());
        let since = Moment(world.now.0 - u64::try_from(ahead.as_millis()).unwrap());
        world.ask(hold_by(ANN, since, HOUR));
        world.want_as_asked(vec![workload(1, &["db", "web"], "b")]);
        world.hear();
        let held = world.now;
        let until = world.device.holds(held)[0].until;
        assert!(until > held.after(minutes(59)) && until <= held.after(HOUR), "{until}");
        assert!(touches(&world.live_until(held.after(minutes(30)))).is_empty());
        // It is over at the server, which lists it no more.
        world.ask(Asked::default());
        assert_eq!(touches(&world.live_until(held.after(minutes(35)))), ["apply db", "apply web"]);
    }
    // Heard soon it ends when it was said to.
    let mut world = World::scheduled(Schedule::default());
    let until = world.now.after(HOUR);
    world.ask(hold_by(ANN, world.now, HOUR));
    world.hear();
    assert_eq!(world.device.holds(world.now)[0].until, until);
}

#[test]
fn a_hold_that_was_over_before_it_was_heard_of_is_none_and_one_that_may_not_be_is_refused_aloud() {
    let mut world = World::scheduled(Schedule::default());
    // The device was off when it was asked, and until it was over.
    world.now = world.now.after(3 * HOUR);
    world.ask(hold_by(ANN, Moment(world.now.0 - 2 * 3_600_000), HOUR));
    world.hear();
    assert!(world.device.holds(world.now).is_empty());
    assert_eq!(world.device.hold_refused(), None);
    // Half of one is left.
    world.now = world.now.after(3 * HOUR);
    let until = world.now.after(minutes(30));
    world.ask(hold_by(ANN, Moment(until.0 - 3_600_000), HOUR));
    world.hear();
    assert_eq!(world.device.holds(world.now)[0].until, until);

    let mut world = World::scheduled(Schedule { hold_max: Some(Duration::ZERO), ..Schedule::default() });
    world.ask(hold_by(ANN, world.now, HOUR));
    world.hear();
    let refused = HoldRefused::NotAllowed.to_string();
    assert_eq!(world.device.hold_refused(), Some(refused.as_str()));
    world.commit();
    world.boot();
    assert_eq!(world.device.hold_refused(), Some(refused.as_str()), "an agent that starts anew knows it");
    world.ask(Asked::default());
    world.hear();
    assert_eq!(world.device.hold_refused(), None);
}
