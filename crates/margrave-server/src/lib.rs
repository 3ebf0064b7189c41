//! The central orchestrator: what should run where, and what devices said about it.
//!
//! `fleet/` is what can be done, free of HTTP; `http/` translates requests and calls it; `listener.rs`
//! owns sockets and handshakes, `identity.rs` the keys on disk, `tasks/` what happens by itself.
//! [`Server`] puts them together; start there.

pub mod auth;
pub mod config;
pub mod fleet;
pub mod http;
mod identity;
mod listener;
mod server;
mod tasks;

pub use config::{Config, SignedConfig};
pub use server::{Addresses, Server, StartError};
