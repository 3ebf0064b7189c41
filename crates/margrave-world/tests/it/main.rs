//! The simulation itself: some seeds, the same story twice, and that the checks bite.

mod determinism;
mod offline;
mod sabotage;
mod seeds;
