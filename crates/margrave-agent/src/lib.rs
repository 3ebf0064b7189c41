//! The device: pulls what it should run, verifies every byte, applies it, and says what happened.
//!
//! Decisions are made in `margrave_core::device`; this crate is the thin shell that performs them.
//! `run.rs` is the loop, `upstream/` the server's side of it, `runtime/` the engine's, `identity.rs`
//! and `keeper.rs` who this device is, `status.rs` what a technician sees,
//! `hold.rs` how somebody says "not now", `supervisor.rs` what the service manager hears, `damage.rs` how a demo spoils a download.
//! `unwritten.rs` says what goes on while nothing can be written down, `socket.rs` where a technician and applications are heard,
//! and `stranded.rs` when only a new start leads back to the engine.

pub mod clock;
pub mod damage;
pub mod hold;
pub mod identity;
mod keeper;
pub mod launch;
pub mod machine;
mod process;
pub mod registry_login;
mod run;
pub mod runtime;
mod socket;
pub mod status;
mod stranded;
pub mod supervisor;
mod unwritten;
mod upstream;
mod way;

pub use run::{AgentConfig, RunError, run};
pub use upstream::{GitError, check_program as check_git};
