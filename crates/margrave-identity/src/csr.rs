//! Certificate signing requests: made by a device, read by the authority.
//!
//! A [`Csr`] that exists has proven that its sender holds the private key. Nothing else in it is
//! believed: names and extensions are the issuer's to decide (ID-175), so they are not even parsed.

use rcgen::{CertificateParams, DistinguishedName};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use crate::key::{KeyFault, PrivateKey, PublicKey, SignatureFault};

/// An RSA-8192 request with a generous list of names is below 4 KiB.
const CSR_BYTES_MAX: usize = 16 * 1024;

/// A request whose signature was checked against the key inside it.
#[derive(Debug, Clone)]
pub struct Csr {
    key: PublicKey,
    der: Vec<u8>,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsrError {
    #[error("the certificate request has {0} bytes, at most {CSR_BYTES_MAX} are read")]
    TooLarge(usize),
    #[error(
        "the text is not a PEM certificate request; it begins with \"-----BEGIN CERTIFICATE REQUEST-----\""
    )]
    NotPem,
    #[error("the certificate request is not PKCS#10")]
    Malformed,
    #[error("the key in the certificate request is not acceptable; generate a P-256 key")]
    Key(#[source] KeyFault),
    #[error("the certificate request is not signed by the key inside it")]
    Signature(#[source] SignatureFault),
}

/// A request could not be made.
#[derive(Debug, thiserror::Error)]
#[error("no certificate request could be made with this key")]
pub struct CsrNotMade(#[source] rcgen::Error);

impl Csr {
    /// A request for `key`, with nothing in it but the key.
    pub fn make(key: &PrivateKey) -> Result<Csr, CsrNotMade> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(key).map_err(CsrNotMade)?;
        Ok(Csr { key: key.public().clone(), der: request.der().to_vec() })
    }

    pub fn from_pem(text: &str) -> Result<Csr, CsrError> {
        // PEM is a third longer than what it carries.
        if text.len() > CSR_BYTES_MAX * 2 {
            return Err(CsrError::TooLarge(text.len()));
        }
        let der =
            CertificateSigningRequestDer::from_pem_slice(text.as_bytes()).map_err(|_| CsrError::NotPem)?;
        Csr::from_der(&der)
    }

    pub fn from_der(der: &[u8]) -> Result<Csr, CsrError> {
        if der.len() > CSR_BYTES_MAX {
            return Err(CsrError::TooLarge(der.len()));
        }
        let Ok(([], request)) = X509CertificationRequest::from_der(der) else {
            return Err(CsrError::Malformed);
        };
        let info = &request.certification_request_info;
        let key = PublicKey::of(&info.subject_pki).map_err(CsrError::Key)?;
        key.check(&request.signature_algorithm, info.raw, &request.signature_value.data)
            .map_err(CsrError::Signature)?;
        Ok(Csr { key, der: der.to_vec() })
    }

    pub fn der(&self) -> &[u8] {
        &self.der
    }

    pub fn to_pem(&self) -> String {
        use base64::Engine as _;
        let encoded = base64::engine::general_purpose::STANDARD.encode(&self.der);
        let mut pem = String::from("-----BEGIN CERTIFICATE REQUEST-----\n");
        for line in encoded.as_bytes().chunks(64) {
            pem.extend(line.iter().map(|byte| char::from(*byte)));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE REQUEST-----\n");
        pem
    }

    pub fn key(&self) -> &PublicKey {
        &self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::KeyPair;

    #[test]
    fn id_175_a_request_survives_pem_and_says_only_its_key() {
        for algorithm in
            [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
        {
            let key = PrivateKey::of(KeyPair::generate_for(algorithm).unwrap()).unwrap();
            let made = Csr::make(&key).unwrap();
            let read = Csr::from_pem(&made.to_pem()).unwrap();
            assert_eq!(read.key(), key.public());
            assert_eq!(read.der(), made.der());
        }
        let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_3072).unwrap();
        let made = Csr::make(&PrivateKey::of(rsa).unwrap()).unwrap();
        assert!(Csr::from_der(made.der()).is_ok());
    }

    #[test]
    fn id_175_names_and_extensions_of_a_request_do_not_matter() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["anything.example".to_owned()]).unwrap();
        params.custom_extensions.push(rcgen::CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]));
        let request = params.serialize_request(&key).unwrap();
        assert!(Csr::from_der(request.der()).is_ok());
    }

    #[test]
    fn id_051_a_request_for_a_weak_key_is_refused() {
        let params = CertificateParams::default();
        let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
        let refused = Csr::from_der(params.serialize_request(&rsa).unwrap().der()).unwrap_err();
        assert_eq!(refused, CsrError::Key(KeyFault::RsaTooShort(2048)));
        let p521 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap();
        let refused = Csr::from_der(params.serialize_request(&p521).unwrap().der()).unwrap_err();
        assert!(matches!(refused, CsrError::Key(KeyFault::Kind(_))), "{refused:?}");
    }

    #[test]
    fn a_request_that_its_key_did_not_sign_is_refused() {
        let made = Csr::make(&PrivateKey::generate().unwrap()).unwrap();
        let mut broken = made.der().to_vec();
        let last = broken.len() - 1;
        broken[last] ^= 1;
        assert!(matches!(Csr::from_der(&broken), Err(CsrError::Signature(SignatureFault::Mismatch))));
        for length in 0..made.der().len() {
            assert!(Csr::from_der(&made.der()[..length]).is_err());
        }
        assert_eq!(Csr::from_pem("hello").unwrap_err(), CsrError::NotPem);
        assert!(matches!(Csr::from_der(&vec![0x30; CSR_BYTES_MAX + 1]), Err(CsrError::TooLarge(_))));
    }
}
