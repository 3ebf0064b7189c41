//! A small HTTP/1.1 client over our own trust rules.
//!
//! Owns connections to one origin: dialling over TLS, plain TCP or a Unix socket, keeping a few open,
//! bounding every wait and every byte. Whom to trust is in the rustls configuration it is given
//! (`margrave-identity` makes those). It follows no redirects, keeps no cookies, decodes no compression
//! and knows nothing of Margo; when to try again is the caller's decision, for which [`Error::retry`] has the hint.
//!
//! Start with [`Client`].

mod client;
mod content;
pub mod date;
mod dial;
mod error;
mod events;
mod origin;
#[cfg(test)]
mod refusal;
mod request;
mod response;

pub use client::{Client, Limits, Traffic, Trust};
pub use error::{Error, Phase, Retry, TlsFault};
pub use events::{Event, Events};
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
pub use origin::{InvalidOrigin, Origin, Scheme};
pub use request::Request;
pub use response::{Answer, Body, Response};
