//! `cargo xtask figures`: builds the release programs, measures them on this machine, prints the table.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

mod figures;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("figures") => match figures::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("xtask: {error:#}");
                ExitCode::from(2)
            }
        },
        _ => {
            eprintln!("Usage: cargo xtask figures   measure sizes, memory and times of the release programs");
            ExitCode::from(2)
        }
    }
}
