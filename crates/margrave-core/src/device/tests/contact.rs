//! When the server was last heard is known also after a restart without a network, and no poll is a write.

use super::*;
use crate::schedule::Schedule;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// A telling that is as late as it may be, and the poll that it waits for.
const OLD_MAX: Duration = Duration::from_secs(31 * 3600);

/// A device that polls six times an hour, and has so many applications.
fn calm(applications: u8, schedule: Schedule) -> World {
    let mut world = World::new(11);
    world.settings.retell_every = DAY;
    world.boot();
    world.settings.poll_every = Duration::from_secs(600);
    world.settings.observe_every = HOUR;
    world.publish((1..=applications).map(|n| workload(n, &["web"], "a")).collect());
    world.manifest = world.manifest.clone().with_schedule(schedule);
    world.run_until_converged();
    world
}

/// Lives for so long; gives how often its memory was written.
fn lives(world: &mut World, time: Duration) -> usize {
    let end = world.now.after(time);
    let mut writes = 0;
    while world.now < end {
        let before = world.ledger.clone();
        world.step();
        writes += usize::from(world.ledger != before);
    }
    writes
}

/// What somebody reads who asks a device that was started again and has no network.
fn read_offline(world: &World) -> Moment {
    let device: Device = serde_json::from_str(&world.ledger).unwrap();
    device.contact().0.expect("the server was heard")
}

#[test]
fn after_a_power_cut_the_last_contact_is_about_a_day_old_at_most() {
    let saving = || Schedule { saver: true, ..Schedule::default() };
    for (applications, schedule) in [(1, Schedule::default()), (3, saving()), (0, Schedule::default())] {
        let mut world = calm(applications, schedule);
        let adopted = world.now;
        for day in 1..=20 {
            lives(&mut world, DAY);
            let heard = world.device.contact().0.unwrap();
            let old = heard.since(read_offline(&world));
            assert!(old < OLD_MAX, "{applications} applications, day {day}: {old:?}");
        }
        assert!(read_offline(&world) > adopted.after(DAY * 18));
        world.boot();
        assert_eq!(world.device.contact(), (Some(read_offline(&world)), None));
    }
}

#[test]
fn polls_are_no_writes() {
    for applications in [0, 1] {
        let mut world = calm(applications, Schedule::default());
        lives(&mut world, DAY * 2);
        // With what is said once a day: that it is to be said, that it is being sent, and that it was.
        let writes = lives(&mut world, DAY * 20);
        let most = if applications == 0 { 16 } else { 20 * 4 };
        assert!((10..=most).contains(&writes), "{applications} applications: {writes}");
    }
}

#[test]
fn who_stops_in_good_order_knows_to_the_minute() {
    let mut world = calm(1, Schedule::default());
    lives(&mut world, HOUR * 7);
    let heard = world.device.contact().0.unwrap();
    assert!(read_offline(&world) < heard, "else this shows nothing");
    world.absorb(Event::Stopping);
    world.commit();
    assert_eq!(read_offline(&world), heard);
    // Who heard nobody since has nothing to add.
    world.boot();
    world.absorb(Event::Stopping);
    world.commit();
    assert_eq!(read_offline(&world), heard);
}

#[test]
fn a_clock_that_nobody_has_set_makes_the_last_contact_no_older() {
    let mut world = calm(1, Schedule::default());
    lives(&mut world, DAY * 3);
    let kept = read_offline(&world);
    // The machine has no battery for its clock, and no time server is found.
    world.boot();
    world.now = Moment(60_000);
    lives(&mut world, DAY * 3);
    assert_eq!(read_offline(&world), kept);
    world.absorb(Event::Stopping);
    world.commit();
    assert_eq!(read_offline(&world), kept);
    // One is found.
    world.now = kept.after(DAY * 7);
    lives(&mut world, HOUR);
    assert!(read_offline(&world) >= kept.after(DAY * 7));
}

#[test]
fn a_contact_in_the_future_is_believed_no_longer_than_to_the_next() {
    for applications in [0, 1] {
        let mut world = calm(applications, Schedule::default());
        let right = world.now;
        world.now = right.after(DAY * 3650);
        lives(&mut world, DAY * 2);
        assert!(read_offline(&world) > right.after(DAY * 3000));
        world.now = right.after(DAY * 2);
        lives(&mut world, HOUR);
        let read = read_offline(&world);
        assert!(read >= right.after(DAY * 2) && read <= world.now, "{applications} applications: {read}");
    }
}
