//! Pins: how a device recognises the server before it has any trust bundle (ID-160, ID-161).

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_core::digest::Digest;
use rustls::pki_types::CertificateDer;

use crate::certificate::{Statements, Unreadable};

/// SHA-256 over the DER SubjectPublicKeyInfo of an authority's or a server's certificate, written in base64.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

/// The text is not a pin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a pin is the base64 of a SHA-256 digest, 44 characters; copy it from the server's start message (ID-161)"
)]
pub struct InvalidPin;

impl Pin {
    pub fn parse(text: &str) -> Result<Pin, InvalidPin> {
        let bytes = STANDARD.decode(text.trim()).map_err(|_| InvalidPin)?;
        bytes.try_into().map(Pin).map_err(|_| InvalidPin)
    }

    pub(crate) fn of_spki(spki: &[u8]) -> Pin {
        Pin(*Digest::of(spki).as_bytes())
    }
}

/// The pin of a certificate's key.
pub fn pin_of(certificate: &CertificateDer<'_>) -> Result<Pin, Unreadable> {
    Ok(Pin::of_spki(&Statements::read(certificate)?.spki))
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Pin {
    type Err = InvalidPin;
    fn from_str(text: &str) -> Result<Self, InvalidPin> {
        Pin::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_161_the_pin_of_the_worked_example() {
        let set: margrave_wire::identity::JwkSet = serde_json::from_str(crate::bundle::EXAMPLE).unwrap();
        let certificate = CertificateDer::from(set.keys[0].anchor().unwrap().certificate);
        let pin = pin_of(&certificate).unwrap();
        assert_eq!(pin.to_string(), "fu/kiX4txATRM0i+zQoBjoRWl19+qEyOVrB9l2muKUE=");
        assert_eq!(Pin::parse(&format!(" {pin}\n")), Ok(pin));
    }

    #[test]
    fn id_161_anything_else_is_no_pin() {
        for bad in [
            "",
            "AAAA",
            "fu/kiX4txATRM0i+zQoBjoRWl19+qEyOVrB9l2muKUE",
            "sha256//fu/kiX4txATRM0i+zQoBjoRWl19=",
        ] {
            assert_eq!(Pin::parse(bad), Err(InvalidPin), "{bad}");
        }
    }
}
