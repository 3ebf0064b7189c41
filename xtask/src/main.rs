//! The project's own automation: `cargo xtask figures` measures the release programs, `cargo xtask screenshots` takes
//! pictures of every page.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

mod figures;
mod responder;
#[cfg(test)]
mod rules;
mod screenshots;
#[cfg(test)]
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask figures [NAME…] [--quick] [--out FILE]
       cargo xtask screenshots DIR

screenshots walks through every page with a real browser, as the tests do, and writes pictures to DIR: as on a desk, on
a telephone and on a wall, light and dark, as it comes and with everything unfolded. Needs what `scripts/rig install` installs.

figures measures the release programs on this machine, each figure beside its baseline in the same run, and prints a table.
Exit code: 0 every goal is met, 1 one is missed, 2 something broke.

  NAME       only these; all of them when none is named:
             programs     sizes, start-up times, memory when idle
             deploy       deploy to INSTALLED, beside bare docker compose
             gap          service gap of updates and rollbacks, change to INSTALLED, beside plain docker compose;
                          the agent's memory and writes meanwhile
             304          answers to unchanged polls, beside a bare hyper and rustls responder
             connections  new connections, full and resumed, beside the same responder
             reports      durable reports, beside a bare loop of SQLite commits
             waiting      9,000 clients waiting: memory, one publish to all, a restart of the server
             fleet        10,000 devices × 10 deployments beside 1,000: publishing, a start, lists and pages, memory
             page         first paint of the fleet page with 10,000 devices in Chromium; a storm of 1,000 events a second
             agent        bytes on the wire and on the disk of an idle agent
             simulation   what 10,000 seeds of the simulation take on two cores
  --quick    smaller and shorter; shows that it works, not how fast it is
  --out FILE write the table there too";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let ended = match arguments.next().as_deref() {
        Some("figures") => figures::Wanted::parse(arguments).and_then(|wanted| figures::run(&wanted)),
        Some("screenshots") => screenshots::run(arguments),
        // Processes that `figures` starts.
        Some("measure") => figures::Wanted::parse(arguments).and_then(|wanted| figures::measure(&wanted)),
        Some("respond") => responder::run(arguments).map(|()| true),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
