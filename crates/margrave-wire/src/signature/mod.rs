//! HTTP message signatures (RFC 9421) and content digests (RFC 9530) as formats; no cryptography.

mod external;

pub use external::{ExternalUrl, InvalidExternalUrl};
