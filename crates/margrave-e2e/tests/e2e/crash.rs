//! Promise 8: killed before and after everything that lasts, a device continues correctly, without help.
//!
//! One life of a device is a row of [`SCENARIOS`]. A first device lives it untouched and tells which calls there are in
//! each (`trap.rs` says how). Then each further device is killed once in every scenario, each at another call: on the
//! ledger, on documents, on the simulated engine's file (a start or a stop of containers each), and when it talks to the
//! server. It is started again, and must come to the same end as the untouched one. The next scenario begins from there,
//! so a device that only looks well does not get far.
//!
//! Where a device did not die as was meant, another one is tried (`aims.rs`).
//!
//! `containers/crash.rs` does the same on a real engine.

pub(crate) mod aims;
mod life;
mod operator;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aims::{Aims, ROUNDS_MAX};
use life::{Line, SCENARIOS};

use crate::stage::{PRETENDED, Stage, tell};
use crate::trap::{Fate, Point, Side, Trap};

/// Devices that live at the same time. They wait for the disk and the server more than they work.
const AT_ONCE: usize = 4;
/// What the issue that this answers asks for.
const POINTS_MIN: usize = 300;
/// After so many failures the rest tells nothing new.
const FAILURES_MAX: usize = 5;
/// All that a device does to these is tried, whatever the network does.
const MUST: &[&str] = &["ledger", "documents", "runtime", "directory"];
/// How often a device speaks with the server is for the network to say.
const NEVER_PERCENT_MAX: usize = 3;
/// Names one point, such as `update: after fsync 2 of ledger at ledger/state.0`, to try only that one.
const ONLY: &str = "MARGRAVE_CRASH";

struct Tally {
    aims: Aims,
    restarts: u64,
    recoveries: Vec<Duration>,
    failures: Vec<String>,
}

#[test]
fn promise_8_a_device_killed_before_and_after_everything_that_lasts_continues_correctly() {
    let Some(trap) = Trap::set() else { return };
    let stage = Stage::start();
    stage.add_package("hello", "1.0.0", &[("one", PRETENDED), ("two", PRETENDED)]);
    stage.add_package("hello", "2.0.0", &[("one", PRETENDED)]);
    let begun = Instant::now();
    let aims = Aims::at(points(&stage, &trap));
    let tally = Mutex::new(Tally { aims, restarts: 0, recoveries: Vec::new(), failures: Vec::new() });
    for round in 0..ROUNDS_MAX {
        let lives = tally.lock().expect("nobody panics with it").aims.lives(SCENARIOS.len());
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(points) = lives.get(number) else { return };
                        if tally.lock().expect("nobody panics with it").failures.len() >= FAILURES_MAX {
                            return;
                        }
                        live(&stage, &trap, &format!("line-{round}-{number}"), points, &tally);
                    }
                });
            }
        });
    }
    let tally = tally.into_inner().expect("nobody panicked with it");
    tell_of(&tally, begun.elapsed());
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n\n"));
    assert_eq!(tally.aims.complaint(MUST, NEVER_PERCENT_MAX), None);
    let points = tally.aims.hit().count();
    assert!(points >= POINTS_MIN || std::env::var_os(ONLY).is_some(), "only {points} points");
}

/// Where devices are to die, for each scenario: wherever one that nobody kills could have.
fn points(stage: &Stage, trap: &Trap) -> Vec<Vec<Point>> {
    if let Ok(only) = std::env::var(ONLY) {
        let (name, point) = only.split_once(": ").expect("SCENARIO: POINT");
        let point: Point = point.parse().expect("a point");
        return SCENARIOS.iter().map(|s| Vec::from_iter((s.name == name).then(|| point.clone()))).collect();
    }
    let mut line = Line::join(stage, "untouched");
    SCENARIOS
        .iter()
        .map(|scenario| {
            line.wish(scenario);
            let found = line.watch(trap, scenario);
            found.unwrap_or_else(|complaint| panic!("{} without a crash: {complaint}", scenario.name))
        })
        .collect()
}

fn live(stage: &Stage, trap: &Trap, name: &str, points: &[Option<Point>], tally: &Mutex<Tally>) {
    let mut line = Line::join(stage, name);
    let last = points.iter().rposition(Option::is_some).unwrap_or_default();
    for (number, (scenario, point)) in SCENARIOS.iter().zip(points).enumerate().take(last + 1) {
        line.wish(scenario);
        let outcome = match point {
            Some(point) => line.die(trap, scenario, point),
            None => line.go_on(scenario).map(|_| Fate::Survived),
        };
        let outcome = outcome.and_then(|fate| match &fate {
            Fate::Died(_) => Ok((fate, Some(line.go_on(scenario)?))),
            Fate::Survived => line.assert_kept(scenario).map(|()| (fate, None)),
        });
        let mut tally = tally.lock().expect("nobody panics with it");
        match (outcome, point) {
            (Ok((Fate::Died(call), Some(recovery))), Some(point)) => {
                tally.aims.died(number, point, line.about(&call).as_ref());
                tally.recoveries.push(recovery.took);
                tally.restarts += recovery.restarts;
            }
            (Ok(_), Some(point)) => tally.aims.survived(number, point),
            (Ok(_), None) => {}
            (Err(complaint), point) => {
                let point = point.as_ref().map_or("no point".to_owned(), Point::to_string);
                let failure = format!(
                    "{}: {point}: {complaint}\n{}\nagain: {ONLY}='{}: {point}' cargo nextest run -p margrave-e2e -E 'test(promise_8_a_device_killed)'",
                    scenario.name,
                    line.story(scenario),
                    scenario.name,
                );
                tally.failures.push(failure);
                return;
            }
        }
    }
}

fn tell_of(tally: &Tally, took: Duration) {
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        let of = |side| tally.aims.hit().filter(|(n, point)| *n == number && point.side == side).count();
        let (name, before, after) = (scenario.name, of(Side::Before), of(Side::After));
        tell(&format!("{name}: killed {before} before and {after} after, and recovered"));
    }
    let mut times = tally.recoveries.clone();
    times.sort();
    let at =
        |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)));
    tell(&format!("in {} s: {}", took.as_secs(), tally.aims.sum()));
    for (number, point, why) in tally.aims.never() {
        tell(&format!("never hit: {}: {point}: {why}", SCENARIOS[number].name));
    }
    let (median, longest) = (at(0.5).unwrap_or(&Duration::ZERO), at(1.0).unwrap_or(&Duration::ZERO));
    tell(&format!("recovery: median {median:?}, longest {longest:?}"));
    tell(&format!("components started once more because their start was cut off: {}", tally.restarts));
}
