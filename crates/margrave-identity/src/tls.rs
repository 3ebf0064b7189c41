//! rustls configurations: who presents what, and who verifies how.
//!
//! All of them speak TLS 1.3 only (ID-060) and HTTP/1.1 only (ID-063), with aws-lc-rs and no provider
//! installed for the process. Refusals happen in the handshake, as TLS alerts (ID-190), and each is logged.

mod authority;
mod device;
mod sessions;
mod tickets;
mod web;

use std::sync::{Arc, LazyLock};

pub use authority::{AuthorityFileError, authority_client_config};
pub use device::{device_client_config, device_server_config};
use rustls::CipherSuite;
use rustls::crypto::CryptoProvider;
pub use tickets::{CONNECTION_AGE_MAX, Session, begin_session};
pub use web::{PinRefusal, pinned_client_config, web_server_config};

const HTTP_1_1: &[u8] = b"http/1.1";
static TLS_1_3: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // SHA-384 has no help from the processor, and a handshake hashes a lot (ID-061).
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
        Arc::new(provider)
    });
    PROVIDER.clone()
}

/// TLS 1.2 is not offered, so rustls never asks for such a signature.
fn no_tls12() -> rustls::Error {
    rustls::Error::General("TLS 1.2 is not offered".to_owned())
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> rustls::Error {
    rustls::CertificateError::Other(rustls::OtherError(Arc::new(error))).into()
}

#[cfg(test)]
mod tests;
