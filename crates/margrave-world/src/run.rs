//! Many seeds, on several threads.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::fault::Tally;
use crate::sabotage::Sabotage;
use crate::world::{Offline, Outcome, World};

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Summary {
    pub seeds: u64,
    pub device_time: Duration,
    pub steps: u64,
    pub faults: Tally,
    /// Those that broke a promise.
    pub failed: Vec<Outcome>,
}

impl Summary {
    pub fn device_hours(&self) -> f64 {
        self.device_time.as_secs_f64() / 3600.0
    }

    fn add(&mut self, outcome: Outcome, heard: &(dyn Fn(&Outcome, &Summary) + Sync)) {
        self.seeds += 1;
        self.device_time += outcome.device_time;
        self.steps += outcome.steps;
        self.faults.add(&outcome.faults);
        heard(&outcome, self);
        if outcome.violation.is_some() {
            self.failed.push(outcome);
        }
    }
}

/// Lives through one seed.
pub fn live(seed: u64, sabotage: Option<Sabotage>, whole_story: bool) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(World::live(seed, sabotage, whole_story))
}

/// Lives through ninety days without a server.
pub fn ninety_days() -> anyhow::Result<(Outcome, Option<Offline>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(World::ninety_days())
}

/// Lives through seeds on `jobs` threads, until all are done, time is up, or `failures_max` of them failed. `heard` is told what
/// came of each, and of all so far.
pub fn run(
    seeds: Range<u64>,
    sabotage: Option<Sabotage>,
    jobs: usize,
    time: Option<Duration>,
    failures_max: usize,
    heard: &(dyn Fn(&Outcome, &Summary) + Sync),
) -> anyhow::Result<Summary> {
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::default());
    let until = time.map(|time| Instant::now() + time);
    let work = || -> anyhow::Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            // With a runtime of its own: what a server left behind that was killed would pile up in one for all.
            let outcome = live(seed, sabotage, false)?;
            let mut summary = summary.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            summary.add(outcome, heard);
            if summary.failed.len() >= failures_max {
                next.store(seeds.end, Ordering::Relaxed);
                return Ok(());
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a seed panicked outside of the core"))??;
        }
        anyhow::Ok(())
    })?;
    let mut summary = summary.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    summary.failed.sort_by_key(|outcome| outcome.seed);
    Ok(summary)
}
