//! `Content-Digest` (RFC 9530), in the one algorithm that Margo uses.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_core::digest::Digest;
use sfv::ListEntry;

use super::received::dictionary;

/// Why the header says nothing about a body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentDigestError {
    #[error("the body has no Content-Digest; send its SHA-256 as sha-256=:<base64>:")]
    Missing,
    #[error("Content-Digest is not sha-256=:<base64 of 32 bytes>:")]
    Malformed,
}

/// The header's value for a body (MI-G1-041).
pub fn content_digest(body: &[u8]) -> String {
    format!("sha-256=:{}:", STANDARD.encode(Digest::of(body).as_bytes()))
}

/// What the lines of the header say that the body's SHA-256 is. Other algorithms beside it say nothing more.
pub fn read_content_digest<'h>(lines: impl Iterator<Item = &'h [u8]>) -> Result<Digest, ContentDigestError> {
    let found = dictionary("Content-Digest", lines).map_err(|_| ContentDigestError::Malformed)?;
    let found = found.ok_or(ContentDigestError::Missing)?;
    match found.get("sha-256") {
        None => Err(ContentDigestError::Missing),
        Some(ListEntry::Item(item)) => {
            let bytes = item.bare_item.as_byte_sequence().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
            bytes.map(Digest::from_bytes).ok_or(ContentDigestError::Malformed)
        }
        Some(ListEntry::InnerList(_)) => Err(ContentDigestError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mi_g1_041_a_digest_is_of_the_raw_body() {
        let value = content_digest(br#"{"hello":"margo"}"#);
        assert_eq!(value, "sha-256=:nNJq5zW0+putPWB2BahIzotx94+BNBwrEcq9xthT1u0=:");
        let check = |lines: &[&str]| read_content_digest(lines.iter().map(|line| line.as_bytes()));
        assert_eq!(check(&[&value]), Ok(Digest::of(br#"{"hello":"margo"}"#)));
        assert_eq!(check(&["sha-512=:AA==:", &value]), Ok(Digest::of(br#"{"hello":"margo"}"#)));
        assert_eq!(check(&[]), Err(ContentDigestError::Missing));
        assert_eq!(check(&["sha-512=:AA==:"]), Err(ContentDigestError::Missing));
        for bad in ["sha-256=:AA==:", "sha-256=x", "sha-256=(:AA==:)", "SHA-256=:AA==:", "sha-256=:!:", "é"]
        {
            assert_eq!(check(&[bad]), Err(ContentDigestError::Malformed), "{bad}");
        }
    }
}
