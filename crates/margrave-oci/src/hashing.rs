//! SHA-256 of what passes by.

use std::io::{self, Read};

use aws_lc_rs::digest::{Context, SHA256};
use margrave_core::digest::Digest;

/// A digest in the making.
#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Hasher {
    pub(crate) fn new() -> Self {
        Hasher(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn digest(self) -> Digest {
        let hash = self.0.finish();
        Digest::from_bytes(hash.as_ref().try_into().expect("SHA-256 gives 32 bytes"))
    }
}

/// The digest of everything a reader has, without holding more than a piece of it.
pub fn digest_of(reader: impl Read) -> io::Result<Digest> {
    let mut hashing = Hashing::new(reader);
    io::copy(&mut hashing, &mut io::sink())?;
    Ok(hashing.digest())
}

/// A reader that knows the digest of all that was read through it.
pub(crate) struct Hashing<R> {
    inner: R,
    hasher: Hasher,
}

impl<R: Read> Hashing<R> {
    pub(crate) fn new(inner: R) -> Self {
        Hashing { inner, hasher: Hasher::new() }
    }

    pub(crate) fn digest(self) -> Digest {
        self.hasher.digest()
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
