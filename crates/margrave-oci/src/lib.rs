//! OCI client with digest-checked pulls, and the archives inside.
//!
//! Owns the names, manifests and media types of the OCI world, the exchange with any registry (ours or another),
//! and the two shapes that Margo puts into registries: application packages and compose archives. Server,
//! agent and command line use the same code, so that what one accepts the other does too. It runs nothing, and
//! reads neither descriptions nor compose files.
//!
//! Start with [`client::Client`]; what it pulls goes through [`package`] or [`compose`], then [`archive`].

pub mod archive;
pub mod client;
pub mod compose;
mod hashing;
pub mod image_name;
pub mod manifest;
pub mod package;
pub mod package_archive;
pub mod reference;
pub mod tarball;

pub use hashing::digest_of;
pub use tarball::InvalidTar;
