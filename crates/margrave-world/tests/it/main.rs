//! The simulation itself: some seeds, the same story twice, and that the checks bite.

#![allow(clippy::print_stderr, reason = "figures for whoever looks at a test")]

mod determinism;
mod offline;
mod sabotage;
mod seeds;
