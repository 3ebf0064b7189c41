//! The private half: signs the bytes of a signature base as RFC 9421 wants signatures.

use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self as lc, EcdsaKeyPair, Ed25519KeyPair, RsaKeyPair};
use rcgen::PublicKeyData as _;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;

use super::{Algorithm, KeyFault, VerificationKey};

/// A client's private key, ready to sign. Never shown, never logged.
pub struct Signer {
    key: Key,
    algorithm: Algorithm,
    keyid: String,
}

enum Key {
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

/// Why a private key cannot sign requests.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    #[error(
        "the private key is not PKCS#8 in PEM (\"BEGIN PRIVATE KEY\"); convert it with: openssl pkcs8 -topk8 -nocrypt"
    )]
    NotPkcs8,
    #[error("the private key cannot be read")]
    Unreadable(#[source] rcgen::Error),
    #[error("the private key is not of a usable kind")]
    Kind(#[source] KeyFault),
    #[error("the algorithm {0} does not go with the private key")]
    OtherAlgorithm(Algorithm),
    #[error("the private key refused to sign")]
    Sign,
}

impl Signer {
    /// A signer in the way that goes with the key; RSA signs `rsa-v1_5-sha256`, which every server has to know
    /// (MI-G1-047) and which needs no guess about salts.
    pub fn from_pem(pem: &str) -> Result<Signer, SignerError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| SignerError::NotPkcs8)?;
        let pair = rcgen::KeyPair::try_from(&der).map_err(SignerError::Unreadable)?;
        let public =
            VerificationKey::from_spki(&pair.subject_public_key_info()).map_err(SignerError::Kind)?;
        let pkcs8 = der.secret_pkcs8_der();
        let refused = |_| SignerError::Kind(KeyFault::Malformed);
        let ecdsa = |algorithm| EcdsaKeyPair::from_pkcs8(algorithm, pkcs8).map_err(refused).map(Key::Ecdsa);
        let (key, algorithm) = if public.goes_with(Algorithm::EcdsaP256Sha256) {
            (ecdsa(&lc::ECDSA_P256_SHA256_FIXED_SIGNING)?, Algorithm::EcdsaP256Sha256)
        } else if public.goes_with(Algorithm::EcdsaP384Sha384) {
            (ecdsa(&lc::ECDSA_P384_SHA384_FIXED_SIGNING)?, Algorithm::EcdsaP384Sha384)
        } else if public.goes_with(Algorithm::Ed25519) {
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).map_err(refused)?;
            (Key::Ed25519(pair), Algorithm::Ed25519)
        } else {
            (Key::Rsa(RsaKeyPair::from_pkcs8(pkcs8).map_err(refused)?), Algorithm::RsaV15Sha256)
        };
        Ok(Signer { key, algorithm, keyid: public.keyid() })
    }

    /// The same key, signing in another of the ways that go with it.
    pub fn with_algorithm(mut self, algorithm: Algorithm) -> Result<Signer, SignerError> {
        let rsa =
            matches!(algorithm, Algorithm::RsaV15Sha256 | Algorithm::RsaPssSha256 | Algorithm::RsaPssSha512);
        match self.key {
            Key::Rsa(_) if rsa => self.algorithm = algorithm,
            _ if algorithm == self.algorithm => {}
            _ => return Err(SignerError::OtherAlgorithm(algorithm)),
        }
        Ok(self)
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Lower-case hex SHA-256 of the SubjectPublicKeyInfo (AMB-39).
    pub fn keyid(&self) -> &str {
        &self.keyid
    }

    /// The signature over `base`: r‖s for ECDSA, never ASN.1.
    pub fn sign(&self, base: &[u8]) -> Result<Vec<u8>, SignerError> {
        match &self.key {
            Key::Ecdsa(pair) => {
                let signature = pair.sign(&SystemRandom::new(), base).map_err(|_| SignerError::Sign)?;
                Ok(signature.as_ref().to_vec())
            }
            Key::Ed25519(pair) => Ok(pair.sign(base).as_ref().to_vec()),
            Key::Rsa(pair) => {
                let encoding: &'static dyn lc::RsaEncoding = match self.algorithm {
                    Algorithm::RsaPssSha256 => &lc::RSA_PSS_SHA256,
                    Algorithm::RsaPssSha512 => &lc::RSA_PSS_SHA512,
                    _ => &lc::RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &SystemRandom::new(), base, &mut signature)
                    .map_err(|_| SignerError::Sign)?;
                Ok(signature)
            }
        }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({}, {})", self.algorithm, &self.keyid[..12])
    }
}
