//! How long the salt of an RSA-PSS signature is.
//!
//! RFC 9421 fixes it to the length of the hash, but Margo's own `rsa-pss-sha256` does not say, and programs differ: Go
//! and OpenSSL take the longest that fits, Java 20, others what they like (AMB-05). The library wants to be told. So
//! the length is read out of the signature, which anybody can who has the public key (RFC 8017, 9.1.2); whether the
//! signature is right is then the library's answer alone. Nothing here is secret, and nothing here accepts anything.

use aws_lc_rs::digest;
use x509_parser::num_bigint::BigUint;

/// The library takes no larger exponents either (33 bits).
const EXPONENT_BITS_MAX: u64 = 33;

/// The parts of a public key that open its signatures.
pub(super) struct Opener {
    modulus: BigUint,
    exponent: BigUint,
}

/// The padded message inside a signature.
pub(super) struct Opened {
    bytes: Vec<u8>,
    /// Bits at its beginning that are not used.
    spare_bits: u32,
}

impl Opener {
    /// `None` for numbers that no key has.
    pub(super) fn new(modulus: &[u8], exponent: &[u8]) -> Option<Opener> {
        let (modulus, exponent) = (BigUint::from_bytes_be(modulus), BigUint::from_bytes_be(exponent));
        let fits = exponent.bits() <= EXPONENT_BITS_MAX && modulus.bit(0);
        fits.then_some(Opener { modulus, exponent })
    }

    /// `None` where no signature of this key looks like that.
    pub(super) fn open(&self, signature: &[u8]) -> Option<Opened> {
        let bits = self.modulus.bits() - 1;
        let length = usize::try_from(bits.div_ceil(8)).ok()?;
        let signature = BigUint::from_bytes_be(signature);
        if signature >= self.modulus {
            return None;
        }
        let message = signature.modpow(&self.exponent, &self.modulus).to_bytes_be();
        let padding = length.checked_sub(message.len())?;
        let mut bytes = vec![0; padding];
        bytes.extend(message);
        let spare_bits = u32::try_from(length as u64 * 8 - bits).ok()?;
        (bytes.last() == Some(&0xbc)).then_some(Opened { bytes, spare_bits })
    }
}

impl Opened {
    /// The length of the salt, if the message was padded with this hash.
    pub(super) fn salt_length(&self, algorithm: &'static digest::Algorithm) -> Option<u16> {
        let hash_length = algorithm.output_len();
        let block_length = self.bytes.len().checked_sub(hash_length + 1)?;
        let (masked, hash) = self.bytes[..self.bytes.len() - 1].split_at(block_length);
        let mut block = mask(algorithm, hash, block_length);
        block.iter_mut().zip(masked).for_each(|(byte, masked)| *byte ^= masked);
        *block.first_mut()? &= 0xff >> self.spare_bits;
        let one = block.iter().position(|byte| *byte != 0)?;
        if block[one] != 1 {
            return None;
        }
        u16::try_from(block.len() - one - 1).ok()
    }
}

/// MGF1 (RFC 8017, B.2.1).
fn mask(algorithm: &'static digest::Algorithm, seed: &[u8], length: usize) -> Vec<u8> {
    let mut mask = Vec::with_capacity(length + algorithm.output_len());
    for counter in 0u32.. {
        if mask.len() >= length {
            break;
        }
        let mut context = digest::Context::new(algorithm);
        context.update(seed);
        context.update(&counter.to_be_bytes());
        mask.extend_from_slice(context.finish().as_ref());
    }
    mask.truncate(length);
    mask
}
