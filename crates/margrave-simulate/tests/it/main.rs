//! Simulated devices against a real server, in one process: real sockets, real TLS, a data directory each.

mod fleet;
mod plant;
