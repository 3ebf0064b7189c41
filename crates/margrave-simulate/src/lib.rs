//! Many devices in one process, for sizing a server: real protocol, real TLS, simulated containers.
//!
//! Each device has its own key and SVID, joined through the server's identity service ([`roster`]), and decides
//! with the very code that decides on a real device (`margrave_core::device`); only its runtime pretends, and
//! its capabilities say so. [`fleet`] runs them, [`tally`] counts what came of it. [`barrage`] is for measuring:
//! it asks one kind of question as fast as a server answers, or at a given rate.
//!
//! Nothing here knows how a server works inside; what holds for a foreign Margo server holds here too, except
//! for joining and retiring, which are our own interface.
//!
//! Start with [`fleet::Fleet`].

pub mod barrage;
mod clock;
mod device;
pub mod fleet;
pub mod operator;
pub mod resources;
pub mod roster;
pub mod tally;
mod upstream;
mod world;
