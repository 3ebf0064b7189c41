//! The real server and real devices in one process, in virtual time, with every fault from one seed.
//!
//! Real: the core's decisions, the wire formats, the device interface's router, the fleet, SQLite, the ledger.
//! Simulated: network, disk failures, containers, clocks, people. After every step the promises of the design page
//! are checked ([`Check`]); once the faults stop, everything has to come to rest. The same seed lives the same life to
//! the byte, so a failure is replayed with one command. [`Sabotage`] proves that the checks bite.
//!
//! It deliberately has no sockets, TLS or real containers; those are in `margrave-e2e`. Start with [`World`].

mod check;
mod dice;
mod disk;
mod engine;
mod fault;
mod plan;
mod run;
mod sabotage;
mod server;
mod story;
mod upstream;
mod world;

pub use check::{CHECKS, Check, Violation};
pub use fault::{Fault, Tally};
pub use run::{Summary, live, ninety_days, run};
pub use sabotage::{SABOTAGES, Sabotage};
pub use world::{Offline, Outcome, World};
