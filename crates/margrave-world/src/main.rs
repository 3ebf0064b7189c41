//! Lives through seeds, and replays the one that failed.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use margrave_world::{Outcome, SABOTAGES, Sabotage, Summary, live, ninety_days, run};

const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// The real server and real devices in virtual time, with every fault from one seed
///
/// Exit code 0: every promise held. 1: one was broken, and its story was printed. 2: it could not be tried.
#[derive(Debug, Parser)]
#[command(name = "margrave-world")]
struct Arguments {
    /// Lives through this seed alone
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Prints everything that happens in it, and not only how it ends badly
    #[arg(long, requires = "seed")]
    story: bool,
    /// The seeds to live through, FROM..TO
    #[arg(long, default_value = "0..10000", value_parser = range)]
    seeds: (u64, u64),
    /// Stops after so many minutes, however many seeds are left
    #[arg(long)]
    minutes: Option<f64>,
    /// Threads; as many as there are cores when left out
    #[arg(long)]
    jobs: Option<usize>,
    /// Stops after so many seeds that failed
    #[arg(long, default_value_t = 5)]
    failures: usize,
    /// Lives through ninety days without a server instead
    #[arg(long, conflicts_with_all = ["seed", "sabotage"])]
    offline: bool,
    /// Puts a deliberate bug in, by name
    #[arg(long, value_parser = sabotage)]
    sabotage: Option<Sabotage>,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let read = |number: &str| number.parse::<u64>().map_err(|error| error.to_string());
    let (from, to) = text.split_once("..").ok_or("seeds are given as FROM..TO, such as 0..1000")?;
    Ok((read(from)?, read(to)?))
}

fn sabotage(text: &str) -> Result<Sabotage, String> {
    let found = SABOTAGES.iter().copied().find(|sabotage| sabotage.name() == text);
    found.ok_or_else(|| {
        let names: Vec<String> = SABOTAGES.iter().map(|sabotage| sabotage.name()).collect();
        format!("there is no such bug; there are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match tried(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("the world could not be made: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn tried(arguments: &Arguments) -> anyhow::Result<bool> {
    if arguments.offline {
        let (outcome, figures) = ninety_days()?;
        if outcome.violation.is_some() {
            failed(&outcome);
        }
        figures.iter().for_each(|figures| println!("{figures:#?}"));
        return Ok(outcome.violation.is_none());
    }
    if let Some(seed) = arguments.seed {
        let outcome = live(seed, arguments.sabotage, arguments.story)?;
        if arguments.story || outcome.violation.is_some() {
            outcome.story.iter().for_each(|line| println!("{line}"));
        }
        println!(
            "seed {seed}, {}: story {:016x}, {}",
            outcome.weather,
            outcome.digest,
            outcome.violation.as_ref().map_or("every promise held".to_owned(), ToString::to_string)
        );
        return Ok(outcome.violation.is_none());
    }
    let jobs = arguments.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let time = arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let (from, to) = arguments.seeds;
    let began = Instant::now();
    let told = Mutex::new(began);
    // Of many seeds a person wants to hear while they are lived: what failed at once, and how far it got.
    let heard = |outcome: &Outcome, so_far: &Summary| {
        if outcome.violation.is_some() {
            failed(outcome);
        }
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= PROGRESS_EVERY {
            *told = Instant::now();
            let failed = so_far.failed.len() + usize::from(outcome.violation.is_some());
            eprintln!(
                "{} of {} seeds after {:.0} s, violations {failed}",
                so_far.seeds,
                to.saturating_sub(from),
                began.elapsed().as_secs_f64()
            );
        }
    };
    let summary = run(from..to, arguments.sabotage, jobs, time, arguments.failures, &heard)?;
    shown(&summary, began.elapsed(), jobs);
    Ok(summary.failed.is_empty())
}

fn failed(outcome: &Outcome) {
    println!("\n== seed {} ({}) broke a promise. How it came to that:", outcome.seed, outcome.weather);
    outcome.story.iter().rev().take(60).rev().for_each(|line| println!("{line}"));
    println!("replay: cargo run --release -p margrave-world -- --seed {} --story", outcome.seed);
}

fn shown(summary: &Summary, took: Duration, jobs: usize) {
    println!(
        "\nseeds {}, device-hours {:.0}, steps {}, faults {}, violations {}; {:.1} s on {jobs} threads, {:.1} ms a seed",
        summary.seeds,
        summary.device_hours(),
        summary.steps,
        summary.faults.total(),
        summary.failed.len(),
        took.as_secs_f64(),
        took.as_secs_f64() * 1000.0 * jobs as f64 / summary.seeds.max(1) as f64,
    );
    for (fault, count) in summary.faults.iter() {
        println!("{count:>9} {}", fault.name());
    }
}
