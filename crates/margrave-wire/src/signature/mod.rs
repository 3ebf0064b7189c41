//! HTTP message signatures (RFC 9421) and content digests (RFC 9530) as formats; no cryptography.
//!
//! Owns how `Signature-Input`, `Signature` and `Content-Digest` are read and written, and how a request
//! becomes the bytes that are signed. Who signs and verifies those bytes is `margrave-identity`'s; which
//! components must be covered, and when a signature is too old, is its caller's.
//!
//! A server starts with [`read`], a client with [`Unsigned`].

mod base;
mod content_digest;
mod external;
mod outgoing;
mod received;

pub use base::{BaseError, Message};
pub use content_digest::{ContentDigestError, content_digest, read_content_digest};
pub use external::{ExternalUrl, InvalidExternalUrl};
pub use outgoing::{Style, Unsigned};
pub use received::{Expires, HeaderError, Signature, read};

/// Names of the fields, in lower case.
pub const SIGNATURE_INPUT: &str = "signature-input";
pub const SIGNATURE: &str = "signature";
pub const CONTENT_DIGEST: &str = "content-digest";

/// More than three long signatures take; a longer header is refused before it is parsed.
const HEADER_BYTES_MAX: usize = 8 * 1024;
