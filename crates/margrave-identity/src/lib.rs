//! SVIDs: issue, hold, verify, renew; and TLS configurations that know SPIFFE.
//!
//! Owns every cryptographic decision about who is who: the server's two small authorities ([`authority`]
//! for SVIDs, [`web`] for the HTTPS page; separate trust stores by ID-165), the trust bundle
//! ([`bundle`]), what we hold ourselves ([`svid`]), what we accept from a peer ([`verify`]), the keys of
//! signed requests ([`message`], the older generation), and the rustls configurations made of these
//! ([`tls`]). It opens no socket, reads no file and no clock of its own: `now` is an argument everywhere,
//! except inside rustls, which asks its time provider. Whether a verified client is *wanted* (ID-083) is
//! the server's policy and not decided here.
//!
//! Start with [`verify::verify_peer`]; everything else prepares its input or uses its answer.

pub mod authority;
pub mod bundle;
mod ca;
pub mod certificate;
pub mod csr;
pub mod key;
pub mod live;
pub mod message;
pub mod pin;
pub mod proof;
pub mod svid;
pub mod tls;
pub mod verify;
pub mod web;

#[cfg(test)]
mod forge;
