//! Real programs on real ports, killed at bad moments, looked at from outside.
//!
//! Start with `stage.rs`: a server and its devices in a directory of their own.

mod access;
mod authority;
mod backup;
mod browser;
mod catalog;
mod chromium;
mod crash;
mod files;
mod foreign;
mod forms;
mod full_disk;
mod git;
mod hostile;
mod liar;
mod local_registry;
mod processes;
mod rollout;
mod signed;
mod simulate;
#[allow(dead_code, reason = "shared with the container tests, which use the rest")]
mod small_disk;
mod stage;
mod trap;
mod vendor;
mod waiting;
mod why;
