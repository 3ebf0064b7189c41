//! The keys of section 4: P-256, P-384, Ed25519 and RSA of at least 3072 bits, and nothing else.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::signature::{self as lc, VerificationAlgorithm};
use margrave_wire::identity::JwkKey;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION,
    OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256,
    OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ECDSA_WITH_SHA512, OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as ParsedKey;
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo};

/// The smallest RSA modulus of the profile (ID-051).
const RSA_BITS_MIN: usize = 3072;

/// A public key of an acceptable kind and size (ID-050, ID-051).
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    shape: JwkKey,
    /// The content of the BIT STRING: what signature verification wants.
    material: Vec<u8>,
    spki: Vec<u8>,
}

/// Why a public key is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    #[error(
        "the key is of kind {0}; acceptable are P-256, P-384, Ed25519 and RSA of at least 3072 bits (ID-051)"
    )]
    Kind(String),
    #[error("the RSA key has {0} bits, at least 3072 are needed (ID-051)")]
    RsaTooShort(usize),
    #[error("the key cannot be read")]
    Malformed,
}

/// Why a signature does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureFault {
    #[error("the signature algorithm {0} does not go with the key")]
    Algorithm(String),
    #[error("the signature was not made by this key over these bytes")]
    Mismatch,
}

impl PublicKey {
    pub(crate) fn of(spki: &SubjectPublicKeyInfo<'_>) -> Result<PublicKey, KeyFault> {
        let material = spki.subject_public_key.data.to_vec();
        let point = |length: usize| match material.split_first() {
            Some((4, point)) if point.len() == 2 * length => {
                let (x, y) = point.split_at(length);
                Ok((x.to_vec(), y.to_vec()))
            }
            _ => Err(KeyFault::Malformed),
        };
        let algorithm = &spki.algorithm.algorithm;
        let shape = if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
            let curve = spki.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
            let curve = curve.ok_or(KeyFault::Malformed)?;
            if curve == OID_EC_P256 {
                let (x, y) = point(32)?;
                JwkKey::P256 { x, y }
            } else if curve == OID_NIST_EC_P384 {
                let (x, y) = point(48)?;
                JwkKey::P384 { x, y }
            } else {
                return Err(KeyFault::Kind(format!("EC {curve}")));
            }
        } else if *algorithm == OID_SIG_ED25519 {
            if material.len() != 32 {
                return Err(KeyFault::Malformed);
            }
            JwkKey::Ed25519 { x: material.clone() }
        } else if *algorithm == OID_PKCS1_RSAENCRYPTION {
            let Ok(ParsedKey::RSA(rsa)) = spki.parsed() else { return Err(KeyFault::Malformed) };
            let n = unsigned(rsa.modulus);
            let bits = n.len() * 8 - n.first().map_or(0, |byte| byte.leading_zeros() as usize);
            if bits < RSA_BITS_MIN {
                return Err(KeyFault::RsaTooShort(bits));
            }
            JwkKey::Rsa { n, e: unsigned(rsa.exponent) }
        } else {
            return Err(KeyFault::Kind(algorithm.to_id_string()));
        };
        Ok(PublicKey { shape, material, spki: spki.raw.to_vec() })
    }

    pub(crate) fn from_spki(der: &[u8]) -> Result<PublicKey, KeyFault> {
        match SubjectPublicKeyInfo::from_der(der) {
            Ok(([], spki)) => PublicKey::of(&spki),
            _ => Err(KeyFault::Malformed),
        }
    }

    /// The DER of the SubjectPublicKeyInfo, as it was received.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }

    pub(crate) fn shape(&self) -> &JwkKey {
        &self.shape
    }

    /// Checks a signature whose algorithm stands beside it, as in a CSR. Any SHA-2 is taken there: tools
    /// sign P-384 requests with SHA-256, and what is proven is only possession.
    pub(crate) fn check(
        &self,
        algorithm: &AlgorithmIdentifier<'_>,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), SignatureFault> {
        let oid = &algorithm.algorithm;
        let is = |other: &x509_parser::der_parser::oid::Oid<'_>| oid == other;
        let verification: Option<&'static dyn VerificationAlgorithm> = match &self.shape {
            JwkKey::P256 { .. } if is(&OID_SIG_ECDSA_WITH_SHA256) => Some(&lc::ECDSA_P256_SHA256_ASN1),
            JwkKey::P256 { .. } if is(&OID_SIG_ECDSA_WITH_SHA384) => Some(&lc::ECDSA_P256_SHA384_ASN1),
            JwkKey::P256 { .. } if is(&OID_SIG_ECDSA_WITH_SHA512) => Some(&lc::ECDSA_P256_SHA512_ASN1),
            JwkKey::P384 { .. } if is(&OID_SIG_ECDSA_WITH_SHA256) => Some(&lc::ECDSA_P384_SHA256_ASN1),
            JwkKey::P384 { .. } if is(&OID_SIG_ECDSA_WITH_SHA384) => Some(&lc::ECDSA_P384_SHA384_ASN1),
            JwkKey::P384 { .. } if is(&OID_SIG_ECDSA_WITH_SHA512) => Some(&lc::ECDSA_P384_SHA512_ASN1),
            JwkKey::Ed25519 { .. } if is(&OID_SIG_ED25519) => Some(&lc::ED25519),
            JwkKey::Rsa { .. } if is(&OID_PKCS1_SHA256WITHRSA) => Some(&lc::RSA_PKCS1_2048_8192_SHA256),
            JwkKey::Rsa { .. } if is(&OID_PKCS1_SHA384WITHRSA) => Some(&lc::RSA_PKCS1_2048_8192_SHA384),
            JwkKey::Rsa { .. } if is(&OID_PKCS1_SHA512WITHRSA) => Some(&lc::RSA_PKCS1_2048_8192_SHA512),
            _ => None,
        };
        let verification = verification.ok_or_else(|| SignatureFault::Algorithm(oid.to_id_string()))?;
        self.check_by(verification, message, signature)
    }

    /// Checks a signature made by [`PrivateKey::sign`].
    pub(crate) fn check_own(&self, message: &[u8], signature: &[u8]) -> Result<(), SignatureFault> {
        let verification: &'static dyn VerificationAlgorithm = match &self.shape {
            JwkKey::P256 { .. } => &lc::ECDSA_P256_SHA256_ASN1,
            JwkKey::P384 { .. } => &lc::ECDSA_P384_SHA384_ASN1,
            JwkKey::Ed25519 { .. } => &lc::ED25519,
            JwkKey::Rsa { .. } => &lc::RSA_PKCS1_2048_8192_SHA256,
        };
        self.check_by(verification, message, signature)
    }

    fn check_by(
        &self,
        verification: &'static dyn VerificationAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), SignatureFault> {
        lc::UnparsedPublicKey::new(verification, &self.material)
            .verify(message, signature)
            .map_err(|_| SignatureFault::Mismatch)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.shape {
            JwkKey::P256 { .. } => "P-256",
            JwkKey::P384 { .. } => "P-384",
            JwkKey::Ed25519 { .. } => "Ed25519",
            JwkKey::Rsa { .. } => "RSA",
        };
        write!(f, "PublicKey({kind})")
    }
}

/// DER integers are signed, so a positive one may start with a zero; a JWK has none.
fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes[zeros..].to_vec()
}

/// A private key of ours. Never shown, never logged; leaves the process only as PKCS#8 for our own disk.
#[derive(Clone)]
pub struct PrivateKey {
    pair: Arc<KeyPair>,
    public: PublicKey,
}

/// Why a private key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateKeyError {
    #[error(
        "the private key is not PKCS#8 in PEM (\"BEGIN PRIVATE KEY\"); convert it with: openssl pkcs8 -topk8 -nocrypt"
    )]
    NotPkcs8,
    #[error("the private key cannot be read")]
    Unreadable(#[source] rcgen::Error),
    #[error("the private key is not of an acceptable kind")]
    Unacceptable(#[source] KeyFault),
    #[error("no private key could be generated")]
    Generate(#[source] rcgen::Error),
}

impl PrivateKey {
    /// A fresh P-256 key: the one kind every peer understands (ID-050).
    pub fn generate() -> Result<PrivateKey, PrivateKeyError> {
        PrivateKey::of(KeyPair::generate().map_err(PrivateKeyError::Generate)?)
    }

    pub fn from_pem(pem: &str) -> Result<PrivateKey, PrivateKeyError> {
        let der =
            PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| PrivateKeyError::NotPkcs8)?;
        PrivateKey::of(KeyPair::try_from(&der).map_err(PrivateKeyError::Unreadable)?)
    }

    pub(crate) fn of(pair: KeyPair) -> Result<PrivateKey, PrivateKeyError> {
        let public =
            PublicKey::from_spki(&pair.subject_public_key_info()).map_err(PrivateKeyError::Unacceptable)?;
        Ok(PrivateKey { pair: Arc::new(pair), public })
    }

    /// PKCS#8 in PEM, for a file that only we may read.
    pub fn to_pem(&self) -> String {
        self.pair.serialize_pem()
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    pub(crate) fn to_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.pair.serialize_der()))
    }
}

impl PublicKeyData for PrivateKey {
    fn der_bytes(&self) -> &[u8] {
        self.pair.der_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        self.pair.algorithm()
    }
}

impl SigningKey for PrivateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.pair.sign(message)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey of {:?}", self.public)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_050_id_051_only_the_kinds_of_the_profile_are_keys() {
        for algorithm in
            [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
        {
            let key = PrivateKey::of(KeyPair::generate_for(algorithm).unwrap()).unwrap();
            let signature = key.sign(b"message").unwrap();
            assert_eq!(key.public().check_own(b"message", &signature), Ok(()));
            assert_eq!(key.public().check_own(b"other", &signature), Err(SignatureFault::Mismatch));
            let again = PrivateKey::from_pem(&key.to_pem()).unwrap();
            assert_eq!(again.public(), key.public());
        }
        let p521 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap();
        assert!(matches!(PrivateKey::of(p521), Err(PrivateKeyError::Unacceptable(KeyFault::Kind(_)))));
        let rsa = |size| PrivateKey::of(KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap());
        let short = rsa(rcgen::RsaKeySize::_2048);
        assert!(
            matches!(short, Err(PrivateKeyError::Unacceptable(KeyFault::RsaTooShort(2048)))),
            "{short:?}"
        );
        let long = rsa(rcgen::RsaKeySize::_3072).unwrap();
        let signature = long.sign(b"message").unwrap();
        assert_eq!(long.public().check_own(b"message", &signature), Ok(()));
    }

    #[test]
    fn a_key_that_is_not_pkcs8_says_how_to_convert_it() {
        for bad in ["", "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"] {
            let error = PrivateKey::from_pem(bad).unwrap_err();
            assert!(error.to_string().contains("openssl pkcs8"), "{error}");
        }
    }

    #[test]
    fn a_private_key_is_never_shown() {
        let key = PrivateKey::generate().unwrap();
        assert_eq!(format!("{key:?}"), "PrivateKey of PublicKey(P-256)");
    }
}
