//! A client's certificate as it is handed in at onboarding, and the one our own agent hands in.
//!
//! The certificate carries a key and says who made it; its dates and names decide nothing by themselves.
//! Self-signed ones are usual: trust comes from an operator or from [`Roots`].

use std::sync::Arc;
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{ALL_VERIFICATION_ALGS, anchor_from_trusted_cert};
use x509_parser::prelude::FromDer;

use super::{KeyFault, VerificationKey};
use crate::ca::{self, IssueError};
use crate::certificate::{CHAIN_LENGTH_MAX, ChainError, chain_from_pem, is_expired, pem_of};
use crate::key::PrivateKey;

/// RSA 8192 with every extension in use stays below; a device certificate has about one kilobyte.
pub const CERTIFICATE_BYTES_MAX: usize = 16 * 1024;
/// Names are shown in lists and logs; what is longer is cut.
const NAME_LENGTH_MAX: usize = 200;
/// Our agent's certificate is pinned by the server, not validated by date; renewing it would mean a new
/// onboarding, for which the generation has no words (section 6, point 8).
const SELF_SIGNED_LIFETIME: Duration = Duration::from_secs(20 * 365 * 24 * 60 * 60);

/// A client's certificate that was read and found sound: its key can verify requests.
#[derive(Debug, Clone)]
pub struct ClientCertificate {
    leaf: CertificateDer<'static>,
    intermediates: Vec<CertificateDer<'static>>,
    key: Arc<VerificationKey>,
    subject: String,
    not_before: Moment,
    not_after: Moment,
}

/// Why bytes are not a client's certificate (MI-G1-008, MI-G1-029).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    #[error("there is no certificate")]
    Empty,
    #[error("there are more than {CHAIN_LENGTH_MAX} certificates")]
    TooMany,
    #[error("a certificate has {0} bytes, at most {CERTIFICATE_BYTES_MAX} are taken")]
    TooLarge(usize),
    #[error("it is not one DER-encoded X.509 certificate")]
    Unreadable,
    #[error("an extension is malformed or there twice")]
    Extension,
    #[error("its end lies before its beginning")]
    Validity,
    #[error("its keyUsage forbids signing; it needs digitalSignature (RFC 5280, 4.2.1.3)")]
    KeyUsage,
    #[error("its key cannot verify requests")]
    Key(#[source] KeyFault),
}

impl ClientCertificate {
    /// Reads the client's certificate and the ones that vouch for it, all in DER, its own first.
    pub fn read(chain: Vec<Vec<u8>>) -> Result<ClientCertificate, CertificateFault> {
        if chain.len() > CHAIN_LENGTH_MAX {
            return Err(CertificateFault::TooMany);
        }
        if let Some(large) = chain.iter().find(|der| der.len() > CERTIFICATE_BYTES_MAX) {
            return Err(CertificateFault::TooLarge(large.len()));
        }
        let mut chain = chain.into_iter().map(CertificateDer::from);
        let leaf = chain.next().ok_or(CertificateFault::Empty)?;
        let (rest, certificate) = x509_parser::certificate::X509Certificate::from_der(&leaf)
            .map_err(|_| CertificateFault::Unreadable)?;
        if !rest.is_empty() {
            return Err(CertificateFault::Unreadable);
        }
        certificate.extensions_map().map_err(|_| CertificateFault::Extension)?;
        let usage = certificate.key_usage().map_err(|_| CertificateFault::Extension)?;
        // Certificates that a device made for itself often have no keyUsage, and often say cA: neither
        // takes anything away from what the key can do.
        if usage.is_some_and(|usage| !usage.value.digital_signature() && !usage.value.non_repudiation()) {
            return Err(CertificateFault::KeyUsage);
        }
        let moment = |time: x509_parser::time::ASN1Time| {
            Moment(u64::try_from(time.timestamp()).unwrap_or(0).saturating_mul(1000))
        };
        let (not_before, not_after) =
            (moment(certificate.validity().not_before), moment(certificate.validity().not_after));
        if not_after < not_before {
            return Err(CertificateFault::Validity);
        }
        let key = VerificationKey::of(certificate.public_key()).map_err(CertificateFault::Key)?;
        let subject = certificate.subject().to_string();
        let subject = subject.chars().filter(|c| !c.is_control()).take(NAME_LENGTH_MAX).collect();
        Ok(ClientCertificate {
            key: Arc::new(key),
            subject,
            not_before,
            not_after,
            intermediates: chain.collect(),
            leaf,
        })
    }

    /// As [`ClientCertificate::read`], from a PEM text such as a file that an operator uploads.
    pub fn from_pem(text: &str) -> Result<ClientCertificate, CertificateFault> {
        match chain_from_pem(text) {
            Ok(chain) => ClientCertificate::read(chain.iter().map(|der| der.to_vec()).collect()),
            Err(ChainError::Empty) => Err(CertificateFault::Empty),
            Err(ChainError::TooLong) => Err(CertificateFault::TooMany),
            Err(ChainError::NotPem(_)) => Err(CertificateFault::Unreadable),
        }
    }

    /// The exact bytes, to be kept.
    pub fn der(&self) -> &[u8] {
        &self.leaf
    }

    pub fn pem(&self) -> String {
        pem_of(&self.leaf)
    }

    pub fn key(&self) -> &Arc<VerificationKey> {
        &self.key
    }

    /// SHA-256 of the SubjectPublicKeyInfo: the same for a renewed certificate of the same key.
    pub fn fingerprint(&self) -> Digest {
        self.key.fingerprint()
    }

    /// The subject as text, for people; a client may claim any name.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    pub fn not_before(&self) -> Moment {
        self.not_before
    }

    pub fn not_after(&self) -> Moment {
        self.not_after
    }

    pub fn is_valid(&self, now: Moment) -> bool {
        now >= self.not_before && !is_expired(self.not_after, now)
    }

    /// A certificate of one's own for one's own key, as an agent hands it in.
    pub fn self_signed(key: &PrivateKey, name: &str, now: Moment) -> Result<ClientCertificate, IssueError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let der = ca::self_signed(params, key, now, SELF_SIGNED_LIFETIME)?;
        ClientCertificate::read(vec![der.to_vec()]).map_err(IssueError::Client)
    }
}

/// Certificates of makers and plants whose devices are welcome without being asked about one by one
/// (MI-G1-011).
pub struct Roots(Vec<CertificateDer<'static>>);

/// Why a file cannot serve as roots.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    #[error("the file holds no usable certificates")]
    Pem(#[source] ChainError),
    #[error("certificate {0} of the file cannot be a root")]
    Unusable(usize, #[source] webpki::Error),
}

/// Nobody known vouches for a client's certificate.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the certificate does not chain to a trusted root")]
pub struct Untrusted(#[source] webpki::Error);

impl Roots {
    pub fn from_pem(text: &str) -> Result<Roots, RootsError> {
        let roots = chain_from_pem(text).map_err(RootsError::Pem)?;
        for (at, root) in roots.iter().enumerate() {
            anchor_from_trusted_cert(root).map_err(|error| RootsError::Unusable(at + 1, error))?;
        }
        Ok(Roots(roots))
    }

    /// Whether one of the roots vouches for the certificate at this moment.
    pub fn vouch_for(&self, certificate: &ClientCertificate, now: Moment) -> Result<(), Untrusted> {
        let anchors: Vec<TrustAnchor<'_>> =
            self.0.iter().filter_map(|root| anchor_from_trusted_cert(root).ok()).collect();
        let leaf = webpki::EndEntityCert::try_from(&certificate.leaf).map_err(Untrusted)?;
        let time = UnixTime::since_unix_epoch(Duration::from_millis(now.0));
        leaf.verify_for_usage(
            ALL_VERIFICATION_ALGS,
            &anchors,
            &certificate.intermediates,
            time,
            webpki::KeyUsage::client_auth(),
            None,
            None,
        )
        .map(drop)
        .map_err(Untrusted)
    }
}
