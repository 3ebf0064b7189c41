//! The server from outside: real sockets, real TLS, a data directory of its own per test. One binary, a
//! module per subject.

mod device;
mod forge;
mod identity;
mod line;
mod operator;
mod overload;
mod plant;
mod registry;
mod start;
mod stock;
mod web;
