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

/// How people write a limit: `256 MiB`, not `268435456 bytes`.
pub fn in_binary(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_people_write_them() {
        let written = [256 << 20, 64 << 10, 1 << 20, 1000, 1025].map(in_binary);
        assert_eq!(written, ["256 MiB", "64 KiB", "1 MiB", "1000 bytes", "1025 bytes"]);
        let error = compose::BuildError::TooLarge.to_string();
        assert!(error.contains(" or 256 MiB (PK-087)"), "{error}");
        assert_eq!(InvalidTar::TooLarge(256 << 20).to_string(), "it expands to more than 256 MiB (PK-087)");
    }
}
