//! The server from outside: real sockets, real TLS, a data directory of its own per test. One binary, a
//! module per subject.

mod access;
mod audit;
mod backup;
mod bad_input;
mod browser;
mod conformance;
mod described;
mod device;
mod follow;
mod follow_ssh;
mod forge;
mod git;
mod identity;
mod intent;
mod interface;
mod leaf;
mod line;
mod live;
mod metrics;
mod northbound;
mod operator;
mod overload;
mod pages;
mod plant;
mod recognition;
mod registry;
mod rollout;
mod rotation;
mod sealed;
mod signed;
mod signed_rules;
mod signer;
mod start;
mod stock;
mod web;
