//! Every format that crosses a process boundary.
//!
//! Domain types come in and go out; field names, media types and generations stay here. Nothing opens a
//! socket. Start with [`g2`] for the device protocol ([`g1`] for the older one) and
//! [`description`] for packages.

pub mod backup;
mod body;
pub mod bundle;
pub mod compose;
pub mod description;
mod dialect;
pub mod document;
pub mod g1;
pub mod g2;
pub mod history;
pub mod identity;
pub mod intent;
pub mod label;
pub mod located;
pub mod northbound;
pub mod operator;
pub mod problem;
pub mod refusal;
pub mod resource;
pub mod rollout;
pub mod schedule;
pub mod signature;
pub mod tree;
pub mod yaml;

pub use body::BodyError;
pub use dialect::Dialect;
