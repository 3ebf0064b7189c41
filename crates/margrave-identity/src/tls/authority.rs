//! HTTPS of somebody else's server, authenticated by the authorities that an operator named and by the server's
//! DNS name (ID-160). No SVID is ever validated with these (ID-165).

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

use super::{HTTP_1_1, TLS_1_3, provider};

/// A file of a whole operating system has about 150.
const AUTHORITIES_MAX: usize = 500;

/// Why a PEM file names no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityFileError {
    #[error("the certificates of the authority cannot be read; they must be PEM")]
    NotPem(#[source] pem::Error),
    #[error("a certificate in it cannot be used as an authority")]
    Unusable(#[source] rustls::Error),
    #[error("there is no certificate in it; it must be PEM, beginning with BEGIN CERTIFICATE")]
    Empty,
    #[error("there are more than {AUTHORITIES_MAX} certificates in it")]
    TooMany,
}

/// Connections to a server whose certificate chains to one of the authorities in `pem` and bears its name.
pub fn authority_client_config(pem: &str) -> Result<Arc<ClientConfig>, AuthorityFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.map_err(AuthorityFileError::NotPem)?).map_err(AuthorityFileError::Unusable)?;
        if roots.len() > AUTHORITIES_MAX {
            return Err(AuthorityFileError::TooMany);
        }
    }
    if roots.is_empty() {
        return Err(AuthorityFileError::Empty);
    }
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_1_3)
        .expect("the provider has TLS 1.3 cipher suites")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}
