//! How long the simulation takes for many seeds: what is slow is not run often, and finds nothing.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::table::{Table, millis};

/// What the goal is about.
const SEEDS: u32 = 10_000;
const WITHIN: Duration = Duration::from_secs(600);
const CORES: usize = 2;

/// Lives through some seeds, always the same, and says what so many more would take.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let seeds: u32 = if lab.quick { 100 } else { 600 };
    let program = &lab.programs.world;
    let mut command = match &lab.cores {
        Some(cores) => cores.command(program),
        None => Command::new(program),
    };
    command.args(["--seeds", &format!("0..{seeds}"), "--jobs", &CORES.to_string()]);
    let begun = Instant::now();
    let output = command.stderr(Stdio::inherit()).output().context("the simulation does not start")?;
    let took = begun.elapsed();
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "a promise was broken, or could not be asked for:\n{said}");
    let (what, value, met) = figure(seeds, took);
    match std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= CORES) {
        true => table.judged(what, value, &format!("≤ {} s", WITHIN.as_secs()), met),
        false => table.row(what, value, "one core here"),
    }
    Ok(())
}

fn figure(seeds: u32, took: Duration) -> (String, String, bool) {
    let each = took / seeds;
    let all = each * SEEDS;
    let value = format!(
        "{:.0} s ({seeds} seeds in {:.1} s, {} a seed by the clock)",
        all.as_secs_f64(),
        took.as_secs_f64(),
        millis(each)
    );
    (format!("simulation, {SEEDS} seeds on {CORES} cores"), value, all <= WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_some_seeds_took_says_what_ten_thousand_take() {
        let (what, value, met) = figure(600, Duration::from_millis(36_000));
        assert_eq!(what, "simulation, 10000 seeds on 2 cores");
        assert_eq!(value, "600 s (600 seeds in 36.0 s, 60 ms a seed by the clock)");
        assert!(met && !figure(600, Duration::from_millis(36_600)).2);
    }
}
