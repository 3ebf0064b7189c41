//! The registry from the outside: its API in process and on sockets, its directory across crashes, and real
//! clients.

mod api;
mod clients;
mod durability;
mod limits;
mod rig;
mod sockets;
mod sweeping;
