//! Archives, packages and transfers from the outside, against our registry, Debian's, and servers that lie.

mod archives;
mod components;
mod lies;
mod packages;
mod rig;
mod secure;
mod tokens;
mod transfers;
