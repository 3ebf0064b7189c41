//! The central orchestrator: what should run where, and what devices said about it.
//!
//! `fleet/` is what can be done, free of HTTP; `http/` translates requests and calls it; `listener/`
//! owns sockets and handshakes, `admission.rs` how much of the server one device may have, `identity.rs` the keys on disk, `tasks/` what happens by itself.
//! [`Server`] puts them together; start there.

mod admission;
pub mod auth;
mod authority;
pub mod backup;
pub mod config;
mod cores;
pub mod drill;
mod files;
pub mod fleet;
mod guessing;
pub mod http;
mod identity;
mod listener;
mod rotation;
mod server;
mod tasks;
mod vault;

pub use config::{Config, SignedConfig};
pub use server::{Addresses, Server, StartError};
pub use vault::Vault;
