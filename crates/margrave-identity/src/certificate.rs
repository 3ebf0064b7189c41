//! What a certificate says, read out once and judged elsewhere.

use std::fmt;

use margrave_core::moment::Moment;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::FromDer;

use crate::key::{KeyFault, PublicKey};

/// How many certificates a chain may have. Deeper hierarchies than leaf, two issuers and a root are not
/// seen in practice; a peer does not get to make us parse more.
pub(crate) const CHAIN_LENGTH_MAX: usize = 6;
/// The tag of a uniformResourceIdentifier among general names (RFC 5280, 4.2.1.6).
const URI_TAG: u32 = 6;

/// A certificate's serial number, written in hexadecimal.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Serial(Box<[u8]>);

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The statements of one certificate that any decision of ours depends on.
#[derive(Debug, Clone)]
pub struct Statements {
    /// The URI names, raw as they stand there; one that is not text is empty.
    pub uris: Vec<String>,
    pub serial: Serial,
    pub issuer: String,
    pub not_before: Moment,
    pub not_after: Moment,
    pub is_ca: bool,
    pub key_usage: Option<KeyUsage>,
    pub extended_key_usage: Option<ExtendedKeyUsage>,
    pub key: Result<PublicKey, KeyFault>,
    /// The DER of the SubjectPublicKeyInfo, whatever kind of key it is.
    pub(crate) spki: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUsage {
    pub critical: bool,
    pub digital_signature: bool,
    pub key_cert_sign: bool,
    pub crl_sign: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtendedKeyUsage {
    pub server_auth: bool,
    pub client_auth: bool,
}

/// The bytes are not one X.509 certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the certificate cannot be read: {0}")]
pub struct Unreadable(pub(crate) &'static str);

impl Statements {
    pub fn read(der: &CertificateDer<'_>) -> Result<Statements, Unreadable> {
        let (rest, certificate) = x509_parser::certificate::X509Certificate::from_der(der)
            .map_err(|_| Unreadable("it is not a DER-encoded X.509 certificate"))?;
        if !rest.is_empty() {
            return Err(Unreadable("there are bytes after it"));
        }
        let twice = |_| Unreadable("an extension is malformed or there twice");
        let mut uris = Vec::new();
        if let Some(extension) =
            certificate.get_extension_unique(&OID_X509_EXT_SUBJECT_ALT_NAME).map_err(twice)?
        {
            let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
                return Err(Unreadable("its subject alternative name is malformed"));
            };
            for name in &names.general_names {
                match name {
                    GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                    // Not readable, but there: it counts, or a second identity could hide in it (ID-030).
                    GeneralName::Invalid(tag, _) if tag.0 == URI_TAG => uris.push(String::new()),
                    _ => {}
                }
            }
        }
        let key_usage = certificate.key_usage().map_err(twice)?.map(|usage| KeyUsage {
            critical: usage.critical,
            digital_signature: usage.value.digital_signature(),
            key_cert_sign: usage.value.key_cert_sign(),
            crl_sign: usage.value.crl_sign(),
        });
        let extended_key_usage = certificate.extended_key_usage().map_err(twice)?.map(|usage| {
            ExtendedKeyUsage { server_auth: usage.value.server_auth, client_auth: usage.value.client_auth }
        });
        let is_ca = certificate.basic_constraints().map_err(twice)?.is_some_and(|basic| basic.value.ca);
        let moment = |time: x509_parser::time::ASN1Time| {
            Moment(u64::try_from(time.timestamp()).unwrap_or(0).saturating_mul(1000))
        };
        Ok(Statements {
            uris,
            serial: Serial(certificate.raw_serial().into()),
            issuer: certificate.issuer().to_string(),
            not_before: moment(certificate.validity().not_before),
            not_after: moment(certificate.validity().not_after),
            is_ca,
            key_usage,
            extended_key_usage,
            key: PublicKey::of(certificate.public_key()),
            spki: certificate.public_key().raw.to_vec(),
        })
    }

    /// Whether `now` is after the last second of validity.
    pub fn is_expired(&self, now: Moment) -> bool {
        is_expired(self.not_after, now)
    }

    pub fn is_not_yet_valid(&self, now: Moment) -> bool {
        now < self.not_before
    }
}

/// Certificates count whole seconds, and the last one is still valid (RFC 5280, 4.1.2.5).
pub(crate) fn is_expired(not_after: Moment, now: Moment) -> bool {
    now.0 / 1000 > not_after.0 / 1000
}

/// A moment as a person reads it.
pub(crate) fn shown(moment: Moment) -> String {
    let seconds = i64::try_from(moment.0 / 1000).unwrap_or(i64::MAX);
    let time = x509_parser::time::ASN1Time::from_timestamp(seconds);
    time.map_or_else(|_| format!("second {seconds} after 1970"), |time| time.to_string())
}

/// Why a text is not a chain of certificates.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error("the text holds no certificate; it begins with \"-----BEGIN CERTIFICATE-----\"")]
    Empty,
    #[error("the text is not PEM")]
    NotPem(#[source] pem::Error),
    #[error("the chain has more than {CHAIN_LENGTH_MAX} certificates")]
    TooLong,
}

/// The certificates of a PEM text, in its order.
pub fn chain_from_pem(text: &str) -> Result<Vec<CertificateDer<'static>>, ChainError> {
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        chain.push(certificate.map_err(ChainError::NotPem)?);
        if chain.len() > CHAIN_LENGTH_MAX {
            return Err(ChainError::TooLong);
        }
    }
    if chain.is_empty() { Err(ChainError::Empty) } else { Ok(chain) }
}

/// One PEM text per certificate, as the join and renewal bodies carry them.
pub fn pem_of(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut pem = String::with_capacity(encoded.len() + encoded.len() / 64 + 60);
    pem.push_str("-----BEGIN CERTIFICATE-----\n");
    for line in encoded.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forge::Forge;

    #[test]
    fn pem_and_back() {
        let forge = Forge::new();
        let chain = vec![forge.leaf().0.remove(0), forge.root()];
        let text: String = chain.iter().map(pem_of).collect();
        assert_eq!(chain_from_pem(&text).unwrap(), chain);
        assert!(matches!(chain_from_pem("nothing"), Err(ChainError::Empty)));
        let torn = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
        assert!(matches!(chain_from_pem(torn), Err(ChainError::NotPem(_))));
        assert!(matches!(chain_from_pem(&text.repeat(4)), Err(ChainError::TooLong)));
    }

    #[test]
    fn moments_are_shown_for_people() {
        assert_eq!(shown(crate::forge::NOW), "Oct  2 00:00:00 2026 +00:00");
        assert_eq!(shown(Moment(u64::MAX)), "second 18446744073709551 after 1970");
    }

    #[test]
    fn every_prefix_of_a_certificate_is_unreadable_and_none_panics() {
        let der = Forge::new().root();
        for length in 0..der.len() {
            assert!(Statements::read(&CertificateDer::from(der[..length].to_vec())).is_err(), "{length}");
        }
        let mut longer = der.to_vec();
        longer.push(0);
        assert!(Statements::read(&CertificateDer::from(longer)).is_err());
    }
}
