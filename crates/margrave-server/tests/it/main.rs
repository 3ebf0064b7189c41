//! The server from outside: real sockets, real TLS, a data directory of its own per test. One binary, a
//! module per subject.

mod conformance;
mod device;
mod follow;
mod forge;
mod git;
mod identity;
mod intent;
mod interface;
mod leaf;
mod line;
mod operator;
mod overload;
mod plant;
mod recognition;
mod registry;
mod rotation;
mod signed;
mod signed_rules;
mod signer;
mod start;
mod stock;
mod web;
