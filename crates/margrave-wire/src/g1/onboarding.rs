//! Becoming a client: the request with a certificate, its answer, and the root certificate.

use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use margrave_core::id::ClientId;
use serde_json::{Value, json};

use crate::body::{BodyError, read_json};
use crate::g1::check_kind;
use crate::tree::{At, Content, Findings};

const API_VERSION: &str = "onboarding.margo.org/v1alpha1";
const KIND: &str = "OnboardingRequest";

/// A chain of the largest certificates, twice encoded, stays below.
pub const REQUEST_BYTES_MAX: usize = 256 * 1024;
/// More certificates than a chain has are refused where chains are judged; here they only cost memory.
const CERTIFICATE_COUNT_MAX: usize = 10;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Forgiving about padding, as the clients of the field are not of one mind.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a text holds no certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotACertificate {
    #[error("it is neither PEM, nor Base64 of PEM, nor Base64 of DER")]
    Unreadable,
    #[error(
        "it has more than {CERTIFICATE_COUNT_MAX} certificates; send the client's own and those that vouch for it"
    )]
    TooMany,
}

/// The request of a client with this certificate, in DER (AMB-02).
pub fn write_request(certificate: &[u8]) -> Vec<u8> {
    let certificate = STANDARD.encode(certificate);
    json!({ "apiVersion": API_VERSION, "kind": KIND, "certificate": certificate }).to_string().into_bytes()
}

/// The same as the oldest servers want it: the public reference server knows no other (1.15).
pub fn write_oldest_request(certificate: &[u8]) -> Vec<u8> {
    json!({ "public_certificate": STANDARD.encode(certificate) }).to_string().into_bytes()
}

/// The text that a request hands in as its certificate, under either of its names (1.15).
pub fn read_request(bytes: &[u8]) -> Result<String, BodyError> {
    let node = read_json(bytes)?;
    let root = At::root(&node);
    let mut findings = Findings::default();
    let mut certificate = None;
    if findings.is_map(&root, "MI-G1-026") {
        check_kind(&root, KIND, "MI-G1-026", &mut findings);
        certificate = match root.field("public_certificate").filter(|_| root.field("certificate").is_none()) {
            Some(at) => findings.text(&at, "MI-G1-026"),
            None => findings.required_text(&root, "certificate", "MI-G1-026"),
        };
    }
    match certificate {
        Some(certificate) if findings.is_empty() => Ok(certificate.to_owned()),
        _ => Err(BodyError::Invalid(findings.into_vec())),
    }
}

/// The certificates in a text, in DER and in its order: PEM, Base64 of PEM, or Base64 of DER (AMB-02).
pub fn read_certificates(text: &str) -> Result<Vec<Vec<u8>>, NotACertificate> {
    if text.contains(BEGIN) {
        return read_pem(text);
    }
    let decoded = decode(text)?;
    match std::str::from_utf8(&decoded) {
        Ok(inner) if inner.contains(BEGIN) => read_pem(inner),
        _ if decoded.is_empty() => Err(NotACertificate::Unreadable),
        _ => Ok(vec![decoded]),
    }
}

fn read_pem(text: &str) -> Result<Vec<Vec<u8>>, NotACertificate> {
    let mut certificates = Vec::new();
    for part in text.split(BEGIN).skip(1) {
        let (inner, _) = part.split_once(END).ok_or(NotACertificate::Unreadable)?;
        certificates.push(decode(inner)?);
        if certificates.len() > CERTIFICATE_COUNT_MAX {
            return Err(NotACertificate::TooMany);
        }
    }
    Ok(certificates)
}

fn decode(text: &str) -> Result<Vec<u8>, NotACertificate> {
    // Some put the PEM's line breaks into JSON as the two characters \n.
    let text = text.replace("\\n", "").replace("\\r", "");
    let dense: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    BASE64.decode(dense).map_err(|_| NotACertificate::Unreadable)
}

/// The answer to an accepted client, with the id under both of its names.
pub fn write_answer(client: &ClientId) -> Vec<u8> {
    json!({ "clientId": client.as_str(), "client_id": client.as_str() }).to_string().into_bytes()
}

/// The id that a server gave, under either of its names.
pub fn read_answer(bytes: &[u8]) -> Result<ClientId, BodyError> {
    let node = read_json(bytes)?;
    let root = At::root(&node);
    let mut findings = Findings::default();
    let client = match root.field("client_id").filter(|_| root.field("clientId").is_none()) {
        Some(at) => Some(at),
        None => findings.required(&root, "clientId", "MI-G1-028"),
    };
    let client = client.and_then(|at| findings.parsed(&at, "MI-G1-009", ClientId::parse));
    client.ok_or_else(|| BodyError::Invalid(findings.into_vec()))
}

/// The root certificate, given in PEM, as clients download it: the PEM text in Base64 (MI-G1-025, AMB-02).
pub fn write_root(pem: &str) -> Vec<u8> {
    json!({ "certificate": STANDARD.encode(pem) }).to_string().into_bytes()
}

/// The root certificate that a server offers, in DER; in any of the three encodings.
pub fn read_root(bytes: &[u8]) -> Result<Vec<Vec<u8>>, BodyError> {
    let node = read_json(bytes)?;
    let text = match At::root(&node).field("certificate").map(|at| &at.node.content) {
        Some(Content::Text(text)) => text.clone(),
        _ => return Err(BodyError::Malformed("certificate is missing".into())),
    };
    read_certificates(&text).map_err(|error| BodyError::Malformed(format!("certificate: {error}")))
}

/// What G1 answers a declined onboarding with; see [`crate::g1::problem`] for the rest of the body.
pub const REJECTED: &str = "Client rejected";
/// What G1 answers a certificate with that is none.
pub const INVALID_CERTIFICATE: &str = "Invalid certificate";

/// The `error` member of an answer, if it is JSON that has one.
pub fn read_error(bytes: &[u8]) -> Option<String> {
    match serde_json::from_slice::<Value>(bytes).ok()?.get("error")? {
        Value::String(text) => Some(text.chars().take(200).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DER: &[u8] = b"\x30\x82 not really DER";

    fn pem() -> String {
        format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(DER))
    }

    #[test]
    fn amb_02_a_certificate_comes_in_three_encodings() {
        let unpadded = STANDARD.encode(DER).trim_end_matches('=').to_owned();
        let wrapped = format!("{}\n{}", &STANDARD.encode(DER)[..8], &STANDARD.encode(DER)[8..]);
        for text in [
            pem(),
            pem().replace('\n', "\r\n"),
            pem().replace('\n', "\\n"),
            STANDARD.encode(pem()),
            STANDARD.encode(DER),
            unpadded,
            wrapped,
        ] {
            assert_eq!(read_certificates(&text), Ok(vec![DER.to_vec()]), "{text}");
        }
        assert_eq!(read_certificates(&pem().repeat(2)), Ok(vec![DER.to_vec(); 2]));
        for bad in ["", "!", BEGIN, &format!("{BEGIN}\n!\n{END}"), "AAA*"] {
            assert_eq!(read_certificates(bad), Err(NotACertificate::Unreadable), "{bad}");
        }
        let chain = |length| read_certificates(&pem().repeat(length));
        assert_eq!(chain(CERTIFICATE_COUNT_MAX).unwrap().len(), CERTIFICATE_COUNT_MAX);
        assert_eq!(chain(CERTIFICATE_COUNT_MAX + 1), Err(NotACertificate::TooMany));
    }

    #[test]
    fn mi_g1_026_the_request_is_read_in_both_spellings() {
        assert_eq!(read_request(&write_request(DER)).unwrap(), STANDARD.encode(DER));
        let check = |body: &str| read_request(body.as_bytes());
        assert_eq!(check(r#"{"public_certificate":"x"}"#).unwrap(), "x");
        assert_eq!(
            check(r#"{"certificate":"y","public_certificate":"x","kind":"OnboardingRequest"}"#).unwrap(),
            "y"
        );
        assert!(matches!(check("{"), Err(BodyError::Malformed(_))));
        for bad in [
            "{}",
            "[]",
            r#"{"certificate":7}"#,
            r#"{"certificate":"x","kind":"Other"}"#,
            r#"{"certificate":null}"#,
        ] {
            assert!(matches!(check(bad), Err(BodyError::Invalid(broken)) if !broken.is_empty()), "{bad}");
        }
    }

    #[test]
    fn mi_g1_028_the_answer_has_both_names() {
        let client = ClientId::parse("c-17").unwrap();
        let answer = write_answer(&client);
        assert_eq!(answer, br#"{"clientId":"c-17","client_id":"c-17"}"#);
        for text in [answer, br#"{"client_id":"c-17"}"#.to_vec(), br#"{"clientId":"c-17","x":1}"#.to_vec()] {
            assert_eq!(read_answer(&text).unwrap(), client);
        }
        for bad in ["{}", "", r#"{"clientId":"a/b"}"#, r#"{"clientId":"a:b"}"#, r#"{"clientId":7}"#] {
            assert!(read_answer(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn mi_g1_022_mi_g1_025_the_root_is_base64_of_pem_without_line_breaks() {
        let body: Value = serde_json::from_slice(&write_root(&pem())).unwrap();
        let text = body["certificate"].as_str().unwrap();
        assert_eq!(STANDARD.decode(text).unwrap(), pem().as_bytes());
        assert!(!text.contains('\n'));
        for text in [write_root(&pem()), json!({ "certificate": pem() }).to_string().into_bytes()] {
            assert_eq!(read_root(&text).unwrap(), [DER]);
        }
        assert!(read_root(b"{}").is_err());
    }
}
