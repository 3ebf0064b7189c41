//! The built-in OCI registry: content-addressed files behind the distribution API.
//!
//! So that nobody needs another product to begin, and an air-gapped site has a registry: it holds
//! packages, compose archives, charts and images. This crate owns the directory it is given, the HTTP
//! interface of OCI Distribution 1.1 under `/v2/`, and the promise that what was acknowledged is on disk.
//! It deliberately knows nothing of operators, devices and tokens: who may do what is an [`Access`] that
//! the server brings. It opens no sockets.
//!
//! Start with [`Registry`]; `route.rs` and `http.rs` translate requests into its verbs.

mod access;
mod contents;
mod disk;
mod error;
mod http;
mod manifest;
mod refusal;
mod registry;
mod route;
mod sweep;
mod upload;

pub use access::{Access, Action, Credentials, Decision};
pub use contents::{Blob, StoredManifest};
pub use error::{OpenError, RegistryError};
pub use http::router;
pub use margrave_oci::reference::{RepositoryName, Tag, TagOrDigest};
pub use registry::{Limits, Registry};
pub use sweep::Swept;
