//! SHA-256 over exact bytes.
//!
//! Bytes are hashed and kept as they came; nothing here serialises (DM-081).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A SHA-256 digest, written `sha256:` and 64 lower-case hex digits (MI-G2-070).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// Why a text is not a digest we can check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDigest {
    #[error("the digest algorithm {0:?} is not supported, only sha256 is (MI-G2-073)")]
    UnsupportedAlgorithm(String),
    #[error("a digest is \"sha256:\" and 64 lower-case hex digits (MI-G2-070), got {0:?}")]
    Malformed(String),
}

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        Digest(hash.as_ref().try_into().expect("SHA-256 gives 32 bytes"))
    }

    /// A digest from its 32 bytes, for whoever hashed a stream piece by piece.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Digest(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub fn parse(text: &str) -> Result<Self, InvalidDigest> {
        let shown = || text.chars().take(80).collect::<String>();
        let Some((algorithm, hex)) = text.split_once(':') else {
            return Err(InvalidDigest::Malformed(shown()));
        };
        if algorithm != "sha256" {
            return Err(InvalidDigest::UnsupportedAlgorithm(algorithm.chars().take(40).collect()));
        }
        let hex = hex.as_bytes();
        if hex.len() != 64 {
            return Err(InvalidDigest::Malformed(shown()));
        }
        let nibble = |b: u8| match b {
            b'0'..=b'9' => Ok(b - b'0'),
            b'a'..=b'f' => Ok(b - b'a' + 10),
            _ => Err(InvalidDigest::Malformed(shown())),
        };
        let mut bytes = [0u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Digest(bytes))
    }

    /// The 64 hex digits without the algorithm: a safe file name.
    pub fn hex(&self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
    }

    /// Twelve hex digits, enough for a person to tell two digests apart.
    pub fn short(&self) -> String {
        self.hex()[..12].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;
    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;
    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

/// The exact bytes of one ApplicationDeployment, together with their digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    bytes: Arc<[u8]>,
    digest: Digest,
}

/// The bytes that arrived are not the bytes that were promised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the bytes have digest {got}, promised was {wanted} (MI-G2-072)")]
pub struct DigestMismatch {
    pub wanted: Digest,
    pub got: Digest,
}

impl Document {
    pub fn of(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        let digest = Digest::of(&bytes);
        Document { bytes, digest }
    }

    /// The document with the promised digest, or the proof that these bytes are another one.
    pub fn verified(bytes: impl Into<Arc<[u8]>>, wanted: Digest) -> Result<Self, DigestMismatch> {
        let document = Document::of(bytes);
        if document.digest == wanted {
            Ok(document)
        } else {
            Err(DigestMismatch { wanted, got: document.digest })
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn shared_bytes(&self) -> Arc<[u8]> {
        self.bytes.clone()
    }

    pub fn digest(&self) -> Digest {
        self.digest
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Document({} bytes, {})", self.bytes.len(), self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mi_g2_070_a_digest_is_sha256_and_64_lower_case_hex() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(Digest::parse(empty), Ok(Digest::of(b"")));
        for bad in
            ["", "sha256", "sha256:", &empty[..70], &empty.to_uppercase(), &format!("{empty}0"), &empty[7..]]
        {
            assert!(Digest::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mi_g2_073_another_algorithm_is_named_in_the_refusal() {
        let error = Digest::parse(&format!("md5:{}", "0".repeat(32))).unwrap_err();
        assert_eq!(error, InvalidDigest::UnsupportedAlgorithm("md5".into()));
    }

    proptest! {
        #[test]
        fn a_digest_survives_its_own_text(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let digest = Digest::of(&bytes);
            prop_assert_eq!(Digest::parse(&digest.to_string()), Ok(digest));
        }

        #[test]
        fn mi_g2_072_one_changed_bit_is_seen(
            bytes in proptest::collection::vec(any::<u8>(), 1..256), at in any::<prop::sample::Index>(), bit in 0u8..8
        ) {
            let wanted = Digest::of(&bytes);
            let mut changed = bytes.clone();
            let at = at.index(changed.len());
            changed[at] ^= 1 << bit;
            prop_assert!(Document::verified(bytes, wanted).is_ok());
            prop_assert!(Document::verified(changed, wanted).is_err());
        }
    }
}
