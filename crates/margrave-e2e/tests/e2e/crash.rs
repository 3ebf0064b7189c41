//! Promise 8: killed before and after everything that lasts, a device continues correctly, without help.
//!
//! One life of a device is a row of [`SCENARIOS`]. A first device lives it untouched and tells which calls there are in
//! each (`trap.rs` says how). Then each further device is killed once in every scenario, each at another call: on the
//! ledger, on documents, on the simulated engine's file (a start or a stop of containers each), and when it talks to the
//! server. It is started again, and must come to the same end as the untouched one. The next scenario begins from there,
//! so a device that only looks well does not get far.
//!
//! `containers/crash.rs` does the same on a real engine.

mod life;
mod operator;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use life::{Line, SCENARIOS};

use crate::stage::{PRETENDED, Stage, tell};
use crate::trap::{Fate, Point, Side, Trap};

/// Devices that live at the same time. They wait for the disk and the server more than they work.
const AT_ONCE: usize = 4;
/// What the issue that this answers asks for.
const POINTS_MIN: usize = 300;
/// After so many failures the rest tells nothing new.
const FAILURES_MAX: usize = 5;
/// Names one point, such as `update: after fsync 7`, to try only that one.
const ONLY: &str = "MARGRAVE_CRASH";

#[derive(Default)]
struct Tally {
    killed: BTreeMap<(&'static str, Side), usize>,
    by_target: BTreeMap<&'static str, usize>,
    /// Died at a call that does not count: threads wake each other when they please.
    elsewhere: usize,
    survived: usize,
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
    let lives = lives(&stage, &trap);
    let tally = Mutex::new(Tally::default());
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
                    live(&stage, &trap, number, points, &tally);
                }
            });
        }
    });
    let tally = tally.into_inner().expect("nobody panicked with it");
    tell_of(&tally, begun.elapsed());
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n\n"));
    let points: usize = tally.killed.values().sum();
    assert!(points >= POINTS_MIN || std::env::var_os(ONLY).is_some(), "only {points} points");
}

/// One device for each list, which has at most one point for each scenario.
fn lives(stage: &Stage, trap: &Trap) -> Vec<Vec<Option<Point>>> {
    if let Ok(only) = std::env::var(ONLY) {
        let (name, point) = only.split_once(": ").expect("SCENARIO: POINT");
        let point: Point = point.parse().expect("a point");
        return vec![SCENARIOS.iter().map(|s| (s.name == name).then(|| point.clone())).collect()];
    }
    let mut line = Line::join(stage, "untouched");
    let points: Vec<Vec<Point>> = SCENARIOS
        .iter()
        .map(|scenario| {
            line.wish(scenario);
            let found = line.watch(trap, scenario);
            found.unwrap_or_else(|complaint| panic!("{} without a crash: {complaint}", scenario.name))
        })
        .collect();
    let count = points.iter().map(Vec::len).max().unwrap_or_default();
    (0..count).map(|number| points.iter().map(|points| points.get(number).cloned()).collect()).collect()
}

fn live(stage: &Stage, trap: &Trap, number: usize, points: &[Option<Point>], tally: &Mutex<Tally>) {
    let mut line = Line::join(stage, &format!("line-{number}"));
    let last = points.iter().rposition(Option::is_some).unwrap_or_default();
    for (scenario, point) in SCENARIOS.iter().zip(points).take(last + 1) {
        line.wish(scenario);
        let outcome = match point {
            Some(point) => line.die(trap, scenario, point),
            None => line.go_on(scenario).map(|_| Fate::Survived),
        };
        let outcome = outcome.and_then(|fate| match &fate {
            Fate::Died(_) => Ok((fate, Some(line.go_on(scenario)?))),
            Fate::Survived => Ok((fate, None)),
        });
        let mut tally = tally.lock().expect("nobody panics with it");
        match (outcome, point) {
            (Ok((Fate::Died(call), Some(recovery))), Some(point)) => {
                match line.kind(&call) {
                    Some(kind) => {
                        *tally.killed.entry((scenario.name, point.side)).or_default() += 1;
                        *tally.by_target.entry(kind).or_default() += 1;
                    }
                    None => tally.elsewhere += 1,
                }
                tally.recoveries.push(recovery.took);
                tally.restarts += recovery.restarts;
            }
            (Ok(_), Some(_)) => tally.survived += 1,
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
    for scenario in SCENARIOS {
        let of = |side| tally.killed.get(&(scenario.name, side)).copied().unwrap_or_default();
        let (name, before, after) = (scenario.name, of(Side::Before), of(Side::After));
        tell(&format!("{name}: killed {before} before and {after} after, and recovered"));
    }
    let mut times = tally.recoveries.clone();
    times.sort();
    let at =
        |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)));
    let (points, took): (usize, u64) = (tally.killed.values().sum(), took.as_secs());
    let Tally { by_target, elsewhere, survived, .. } = tally;
    tell(&format!(
        "{points} points in {took} s, on {by_target:?}; {elsewhere} died elsewhere, {survived} not at all"
    ));
    let (median, longest) = (at(0.5).unwrap_or(&Duration::ZERO), at(1.0).unwrap_or(&Duration::ZERO));
    tell(&format!("recovery: median {median:?}, longest {longest:?}"));
    tell(&format!("components started once more because their start was cut off: {}", tally.restarts));
}
