//! What Margrave means and how it decides.
//!
//! This crate owns the domain types and every decision that can be made from data alone. It never reads
//! a clock, a file, a socket or a random number: time and randomness come in as arguments, so a whole
//! fleet can be simulated from a seed. It knows no wire format; `margrave-wire` translates.
//!
//! Start with [`package`] and [`workload`] for the server's side (package → deployment → document →
//! manifest), and with [`device`] for the device's (manifest → verified → plan → outcome → report).

pub mod access;
pub mod asked;
pub mod audit;
pub mod capabilities;
pub mod chain;
pub mod complaint;
pub mod constraints;
pub mod deployment;
pub mod device;
pub mod difference;
pub mod digest;
pub mod id;
pub mod identity;
pub mod image;
pub mod lifecycle;
pub mod manifest;
pub mod moment;
pub mod observed;
pub mod package;
pub mod parameters;
pub mod publish;
pub mod report;
pub mod rollback;
pub mod rollout;
pub mod schedule;
pub mod secret;
pub mod selector;
pub mod silence;
pub mod violation;
pub mod watch;
pub mod why;
pub mod workload;
