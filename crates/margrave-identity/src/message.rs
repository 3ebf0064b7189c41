//! Keys of signed requests (generation g1): what a client's certificate can verify, and what its key signs.
//!
//! Owns the cryptography of RFC 9421 as Margo uses it: which algorithms, which key goes with which, and
//! what makes two signatures the same one. What is signed (the signature base) is `margrave-wire`'s, which
//! requests must be signed is `margrave-device-api`'s, and whose certificate is trusted is the server's.
//!
//! Start with [`VerificationKey::verify`]; certificates are in [`certificate`].

pub mod certificate;
mod pss;
mod signer;

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use aws_lc_rs::digest;
use aws_lc_rs::signature::{
    self as lc, ParsedPublicKey, RsaParameters, RsaPssSaltLength, VerificationAlgorithm as _,
};
use margrave_core::digest::Digest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as ParsedKey;
use x509_parser::x509::SubjectPublicKeyInfo;

pub use certificate::{CertificateFault, ClientCertificate, Roots, RootsError, Untrusted};
pub use signer::{Signer, SignerError};

/// The generation's own baseline names no size; below this no library of today signs (MI-G1-046).
const RSA_BITS_MIN: usize = 2048;
/// A verification is work that a stranger can ask for; larger keys are not seen and cost ever more.
const RSA_BITS_MAX: usize = 8192;

/// A way to sign a message, by its name in `alg`. `rsa-pss-sha256` is Margo's own; RFC 9421 does not have it
/// (AMB-05).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    EcdsaP256Sha256,
    EcdsaP384Sha384,
    Ed25519,
    RsaV15Sha256,
    RsaPssSha256,
    RsaPssSha512,
}

use Algorithm::*;

impl Algorithm {
    pub const ALL: [Algorithm; 6] =
        [EcdsaP256Sha256, EcdsaP384Sha384, Ed25519, RsaV15Sha256, RsaPssSha256, RsaPssSha512];

    pub fn as_str(self) -> &'static str {
        match self {
            EcdsaP256Sha256 => "ecdsa-p256-sha256",
            EcdsaP384Sha384 => "ecdsa-p384-sha384",
            Ed25519 => "ed25519",
            RsaV15Sha256 => "rsa-v1_5-sha256",
            RsaPssSha256 => "rsa-pss-sha256",
            RsaPssSha512 => "rsa-pss-sha512",
        }
    }

    pub fn parse(text: &str) -> Option<Algorithm> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == text)
    }

    /// Whether signing the same bytes twice gives the same signature, so that two equal signatures need
    /// not be copies of one.
    pub fn is_deterministic(self) -> bool {
        matches!(self, Ed25519 | RsaV15Sha256)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why a public key cannot verify messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    #[error(
        "the key is of kind {0}; usable are ECDSA P-256, ECDSA P-384, Ed25519 and RSA of 2048 to 8192 bits"
    )]
    Kind(String),
    #[error("the RSA key has {0} bits; usable are 2048 to 8192")]
    RsaSize(usize),
    #[error("the key cannot be read")]
    Malformed,
}

/// Why a signature does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureFault {
    #[error("the algorithm {0:?} is not known; known are {known}", known = known())]
    UnknownAlgorithm(String),
    #[error("the algorithm {alg} does not go with the {key} key of the client's certificate")]
    OtherAlgorithm { alg: Algorithm, key: &'static str },
    #[error("the signature was not made by this key over this request")]
    Mismatch,
}

fn known() -> String {
    Algorithm::ALL.map(Algorithm::as_str).join(", ")
}

/// The public key of a client's certificate, parsed once and used for every request.
pub struct VerificationKey {
    material: Material,
    /// Of the DER SubjectPublicKeyInfo.
    fingerprint: Digest,
}

enum Material {
    P256(ParsedPublicKey),
    P384(ParsedPublicKey),
    Ed25519(ParsedPublicKey),
    Rsa(RsaKey),
}

/// RSA says nothing about how it signs, and clients leave `alg` away (AMB-05): the way that worked last is
/// tried first.
struct RsaKey {
    pkcs1: Box<[u8]>,
    opener: pss::Opener,
    last: AtomicU8,
}

type Way = (Algorithm, &'static RsaParameters);

/// The ways in which RSA clients sign by the book: a PSS salt is as long as the hash (RFC 9421, 3.3.1). For salts of
/// another length see `pss.rs`.
static RSA_WAYS: [Way; 3] = [
    (RsaV15Sha256, &lc::RSA_PKCS1_2048_8192_SHA256),
    (RsaPssSha512, &lc::RSA_PSS_2048_8192_SHA512),
    (RsaPssSha256, &lc::RSA_PSS_2048_8192_SHA256),
];

/// A signature that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    pub algorithm: Algorithm,
    /// The same for every spelling of one signature, and different for two signatures: what a memory of
    /// used signatures keeps.
    pub mark: Digest,
}

impl VerificationKey {
    /// The key in a DER SubjectPublicKeyInfo.
    pub fn from_spki(der: &[u8]) -> Result<VerificationKey, KeyFault> {
        match SubjectPublicKeyInfo::from_der(der) {
            Ok(([], spki)) => VerificationKey::of(&spki),
            _ => Err(KeyFault::Malformed),
        }
    }

    pub(crate) fn of(spki: &SubjectPublicKeyInfo<'_>) -> Result<VerificationKey, KeyFault> {
        let bits: &[u8] = &spki.subject_public_key.data;
        let parsed = |algorithm: &'static dyn lc::VerificationAlgorithm| {
            ParsedPublicKey::new(algorithm, bits).map_err(|_| KeyFault::Malformed)
        };
        let algorithm = &spki.algorithm.algorithm;
        let material = if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
            let curve = spki.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
            let curve = curve.ok_or(KeyFault::Malformed)?;
            // Uncompressed points only (RFC 5480, 2.2), so that a key has one spelling.
            let point = |length: usize| match bits.split_first() {
                Some((4, point)) if point.len() == 2 * length => Ok(()),
                _ => Err(KeyFault::Malformed),
            };
            if curve == OID_EC_P256 {
                point(32)?;
                Material::P256(parsed(&lc::ECDSA_P256_SHA256_FIXED)?)
            } else if curve == OID_NIST_EC_P384 {
                point(48)?;
                Material::P384(parsed(&lc::ECDSA_P384_SHA384_FIXED)?)
            } else {
                return Err(KeyFault::Kind(format!("EC {curve}")));
            }
        } else if *algorithm == OID_SIG_ED25519 {
            if bits.len() != 32 {
                return Err(KeyFault::Malformed);
            }
            Material::Ed25519(parsed(&lc::ED25519)?)
        } else if *algorithm == OID_PKCS1_RSAENCRYPTION {
            let Ok(ParsedKey::RSA(rsa)) = spki.parsed() else { return Err(KeyFault::Malformed) };
            let significant: &[u8] = match rsa.modulus.iter().position(|byte| *byte != 0) {
                Some(first) => &rsa.modulus[first..],
                None => return Err(KeyFault::Malformed),
            };
            let size = significant.len() * 8 - significant[0].leading_zeros() as usize;
            if !(RSA_BITS_MIN..=RSA_BITS_MAX).contains(&size) {
                return Err(KeyFault::RsaSize(size));
            }
            parsed(&lc::RSA_PKCS1_2048_8192_SHA256)?;
            let opener = pss::Opener::new(significant, rsa.exponent).ok_or(KeyFault::Malformed)?;
            Material::Rsa(RsaKey { pkcs1: bits.into(), opener, last: AtomicU8::new(0) })
        } else {
            return Err(KeyFault::Kind(algorithm.to_id_string()));
        };
        Ok(VerificationKey { material, fingerprint: Digest::of(spki.raw) })
    }

    /// SHA-256 of the DER SubjectPublicKeyInfo: who this key is, whatever certificate it comes in.
    pub fn fingerprint(&self) -> Digest {
        self.fingerprint
    }

    /// What clients write into `keyid` (AMB-39): the fingerprint in lower-case hexadecimal.
    pub fn keyid(&self) -> String {
        self.fingerprint.hex()
    }

    /// Checks that `signature` was made with this key over `base`, in the way `alg` names, or in any way that
    /// goes with the key where the client named none.
    pub fn verify(
        &self,
        alg: Option<&str>,
        base: &[u8],
        signature: &[u8],
    ) -> Result<Verified, SignatureFault> {
        let alg = match alg {
            None => None,
            Some(text) => Some(
                Algorithm::parse(text)
                    .ok_or_else(|| SignatureFault::UnknownAlgorithm(text.chars().take(60).collect()))?,
            ),
        };
        if let Some(alg) = alg.filter(|alg| !self.goes_with(*alg)) {
            return Err(SignatureFault::OtherAlgorithm { alg, key: self.kind() });
        }
        let (algorithm, significant) = match &self.material {
            Material::P256(key) => checked(key, EcdsaP256Sha256, base, signature)?,
            Material::P384(key) => checked(key, EcdsaP384Sha384, base, signature)?,
            Material::Ed25519(key) => checked(key, Ed25519, base, signature)?,
            Material::Rsa(key) => (key.verify(alg, base, signature)?, signature),
        };
        Ok(Verified { algorithm, mark: Digest::of(significant) })
    }

    fn goes_with(&self, alg: Algorithm) -> bool {
        match &self.material {
            Material::P256(_) => alg == EcdsaP256Sha256,
            Material::P384(_) => alg == EcdsaP384Sha384,
            Material::Ed25519(_) => alg == Ed25519,
            Material::Rsa(_) => matches!(alg, RsaV15Sha256 | RsaPssSha256 | RsaPssSha512),
        }
    }

    /// What kind of key it is, for people.
    pub fn kind(&self) -> &'static str {
        match &self.material {
            Material::P256(_) => "ECDSA P-256",
            Material::P384(_) => "ECDSA P-384",
            Material::Ed25519(_) => "Ed25519",
            Material::Rsa(_) => "RSA",
        }
    }
}

/// The algorithm, and the part of the signature that says which one it is. Anybody can turn an ECDSA
/// signature (r, s) into the equally good (r, −s); both have the same r, and no other signature has.
fn checked<'s>(
    key: &ParsedPublicKey,
    algorithm: Algorithm,
    base: &[u8],
    signature: &'s [u8],
) -> Result<(Algorithm, &'s [u8]), SignatureFault> {
    key.verify_sig(base, signature).map_err(|_| SignatureFault::Mismatch)?;
    let significant = match algorithm {
        EcdsaP256Sha256 | EcdsaP384Sha384 => &signature[..signature.len() / 2],
        _ => signature,
    };
    Ok((algorithm, significant))
}

impl RsaKey {
    fn verify(
        &self,
        alg: Option<Algorithm>,
        base: &[u8],
        signature: &[u8],
    ) -> Result<Algorithm, SignatureFault> {
        let last = usize::from(self.last.load(Ordering::Relaxed));
        let first = RSA_WAYS.get(last).map(|way| (last, way));
        let others = RSA_WAYS.iter().enumerate().filter(|(at, _)| *at != last);
        for (at, (algorithm, parameters)) in first.into_iter().chain(others) {
            if alg.is_some_and(|alg| alg != *algorithm) {
                continue;
            }
            if parameters.verify_sig(&self.pkcs1, base, signature).is_ok() {
                if at != last {
                    self.last.store(u8::try_from(at).unwrap_or(0), Ordering::Relaxed);
                }
                return Ok(*algorithm);
            }
        }
        self.verify_salted(alg, base, signature).ok_or(SignatureFault::Mismatch)
    }

    /// PSS with a salt of any length.
    fn verify_salted(&self, alg: Option<Algorithm>, base: &[u8], signature: &[u8]) -> Option<Algorithm> {
        if alg == Some(RsaV15Sha256) {
            return None;
        }
        let opened = self.opener.open(signature)?;
        let ways = [
            (RsaPssSha256, &digest::SHA256, lc::RSA_PSS_2048_8192_SHA256),
            (RsaPssSha512, &digest::SHA512, lc::RSA_PSS_2048_8192_SHA512),
        ];
        ways.into_iter().find_map(|(algorithm, hash, parameters)| {
            if alg.is_some_and(|alg| alg != algorithm) {
                return None;
            }
            let salt = RsaPssSaltLength::Custom(opened.salt_length(hash)?);
            let parameters = parameters.with_pss_salt_length(salt);
            parameters.verify_sig(&self.pkcs1, base, signature).is_ok().then_some(algorithm)
        })
    }
}

impl fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerificationKey({}, {})", self.kind(), self.fingerprint.short())
    }
}

#[cfg(test)]
mod tests;
