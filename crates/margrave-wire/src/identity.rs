//! What crosses the wire about identity: the trust bundle, the discovery document, and the bodies with
//! which our own agent joins and renews.
//!
//! Owns names, encodings and tolerance for what others send. Whether a certificate deserves trust is
//! decided in `margrave-identity`; this module never looks inside one.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use margrave_core::id::{ClientId, TrustDomain};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// Where an origin with one trust domain offers its discovery document (ID-150).
pub const DISCOVERY_PATH: &str = "/.well-known/margo";
/// Where trust bundles are customarily served (ID-153).
pub const BUNDLE_PATH: &str = "/.well-known/spiffe/bundle.json";
/// Where our agent exchanges a join token and a CSR for its first SVID.
pub const JOIN_PATH: &str = "/api/identity/v1/join";
/// Where our agent exchanges its previous SVID and a CSR for the next one.
pub const RENEW_PATH: &str = "/api/identity/v1/renew";
/// Where our agent, over mutual TLS, gets what its container engine needs to pull from the built-in registry.
pub const REGISTRY_TOKEN_PATH: &str = "/x-margrave/v1/registry-token";
/// Where our agent, over mutual TLS, gets the address of its own Git repository and a token for it. Refused with
/// 403 unless an operator set the device to Git or its join token allowed that; 409 when the server has no Git.
pub const GIT_TOKEN_PATH: &str = "/x-margrave/v1/git-token";

/// How many entries of a bundle are looked at. Rotation needs two; the rest is someone's mistake.
const BUNDLE_KEYS_MAX: usize = 64;
const USE_X509_SVID: &str = "x509-svid";

/// A SPIFFE trust bundle: a JWK Set with two more members (ID-130, ID-131).
///
/// Reading is tolerant where the standard says so: an entry that cannot be read becomes an entry without
/// meaning, and [`Jwk::anchor`] then answers why it is not one (ID-133).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JwkSet {
    /// Strictly growing with every change of content; never required from others (ID-145).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spiffe_sequence: Option<u64>,
    /// After how many seconds to look again (ID-140).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spiffe_refresh_hint: Option<u64>,
    #[serde(deserialize_with = "tolerant_keys")]
    pub keys: Vec<Jwk>,
}

/// One entry of a trust bundle, as it is on the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Jwk {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kty: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crv: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e: Option<String>,
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x5c: Option<Vec<String>>,
}

/// The public key inside a JWK, decoded; integers without leading zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JwkKey {
    P256 { x: Vec<u8>, y: Vec<u8> },
    P384 { x: Vec<u8>, y: Vec<u8> },
    Ed25519 { x: Vec<u8> },
    Rsa { n: Vec<u8>, e: Vec<u8> },
}

/// A readable anchor entry: the key it names, and the DER of the certificate that should hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwkAnchor {
    pub key: JwkKey,
    pub certificate: Vec<u8>,
}

/// Why an entry of a bundle is not an anchor. None of these spoils the rest of the bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAnAnchor {
    #[error("its use is not x509-svid (ID-133, ID-134)")]
    OtherUse,
    #[error("its key type is missing or not one of EC P-256, EC P-384, OKP Ed25519, RSA (ID-051)")]
    KeyType,
    #[error("its key member {0:?} is missing or not base64url")]
    KeyMember(&'static str),
    #[error("it has no x5c certificate (ID-133)")]
    NoCertificate,
    #[error("its x5c certificate is not base64 (ID-132)")]
    CertificateEncoding,
}

impl Jwk {
    /// The entry for one anchor: `use` x509-svid, one certificate, no `kid` (ID-132).
    pub fn of_anchor(anchor: &JwkAnchor) -> Jwk {
        let text = |bytes: &[u8]| Some(URL_SAFE_NO_PAD.encode(bytes));
        let mut jwk = Jwk {
            usage: Some(USE_X509_SVID.to_owned()),
            x5c: Some(vec![STANDARD.encode(&anchor.certificate)]),
            ..Jwk::default()
        };
        let (kty, crv) = match &anchor.key {
            JwkKey::P256 { x, y } => {
                (jwk.x, jwk.y) = (text(x), text(y));
                ("EC", Some("P-256"))
            }
            JwkKey::P384 { x, y } => {
                (jwk.x, jwk.y) = (text(x), text(y));
                ("EC", Some("P-384"))
            }
            JwkKey::Ed25519 { x } => {
                jwk.x = text(x);
                ("OKP", Some("Ed25519"))
            }
            JwkKey::Rsa { n, e } => {
                (jwk.n, jwk.e) = (text(n), text(e));
                ("RSA", None)
            }
        };
        jwk.kty = Some(kty.to_owned());
        jwk.crv = crv.map(str::to_owned);
        jwk
    }

    /// The anchor in this entry; of several certificates only the first counts (ID-133).
    pub fn anchor(&self) -> Result<JwkAnchor, NotAnAnchor> {
        if self.usage.as_deref() != Some(USE_X509_SVID) {
            return Err(NotAnAnchor::OtherUse);
        }
        let member = |name: &'static str, value: &Option<String>| {
            let text = value.as_deref().ok_or(NotAnAnchor::KeyMember(name))?;
            URL_SAFE_NO_PAD.decode(text).map_err(|_| NotAnAnchor::KeyMember(name))
        };
        let key = match (self.kty.as_deref(), self.crv.as_deref()) {
            (Some("EC"), Some("P-256")) => {
                JwkKey::P256 { x: member("x", &self.x)?, y: member("y", &self.y)? }
            }
            (Some("EC"), Some("P-384")) => {
                JwkKey::P384 { x: member("x", &self.x)?, y: member("y", &self.y)? }
            }
            (Some("OKP"), Some("Ed25519")) => JwkKey::Ed25519 { x: member("x", &self.x)? },
            (Some("RSA"), _) => {
                JwkKey::Rsa { n: unsigned(member("n", &self.n)?), e: unsigned(member("e", &self.e)?) }
            }
            _ => return Err(NotAnAnchor::KeyType),
        };
        let first = self.x5c.as_deref().and_then(|x5c| x5c.first()).ok_or(NotAnAnchor::NoCertificate)?;
        let certificate = STANDARD.decode(first).map_err(|_| NotAnAnchor::CertificateEncoding)?;
        Ok(JwkAnchor { key, certificate })
    }
}

fn unsigned(mut bytes: Vec<u8>) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.drain(..zeros);
    bytes
}

/// One unreadable entry must not take a whole trust domain down, so it is read as an entry without `use`.
fn tolerant_keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Jwk>, D::Error> {
    let entries = Vec::<serde_json::Value>::deserialize(deserializer)?;
    if entries.len() > BUNDLE_KEYS_MAX {
        return Err(serde::de::Error::custom(format!(
            "a bundle has at most {BUNDLE_KEYS_MAX} keys, this one has {}",
            entries.len()
        )));
    }
    Ok(entries.into_iter().map(|entry| serde_json::from_value(entry).unwrap_or_default()).collect())
}

/// Points a client to the trust bundle of one trust domain (ID-151).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Discovery {
    #[schema(value_type = String)]
    pub trust_domain: TrustDomain,
    /// An absolute `https` URL.
    pub trust_bundle_uri: String,
}

/// Why a discovery document is refused.
#[derive(Debug, thiserror::Error)]
pub enum InvalidDiscovery {
    #[error(
        "the discovery document cannot be read; it is a JSON object with trustDomain and trustBundleUri (ID-151)"
    )]
    Malformed(#[source] serde_json::Error),
    #[error(
        "trustBundleUri is {0:?}, but only an absolute https URL is acceptable (ID-151); correct it at the identity service"
    )]
    NotHttps(String),
    #[error(
        "the discovery document is for trust domain {got}, but this device belongs to {own} (ID-152); check the configured address"
    )]
    OtherTrustDomain { own: TrustDomain, got: TrustDomain },
}

impl Discovery {
    /// Reads a document of someone else; members we do not know are left alone.
    pub fn parse(bytes: &[u8]) -> Result<Discovery, InvalidDiscovery> {
        let document: Discovery = serde_json::from_slice(bytes).map_err(InvalidDiscovery::Malformed)?;
        let host = document.trust_bundle_uri.strip_prefix("https://");
        if host.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
            return Err(InvalidDiscovery::NotHttps(document.trust_bundle_uri.chars().take(200).collect()));
        }
        Ok(document)
    }

    /// The same document, known to be for the trust domain of one's own SVID (ID-152).
    pub fn matching(self, own: &TrustDomain) -> Result<Discovery, InvalidDiscovery> {
        if self.trust_domain == *own {
            Ok(self)
        } else {
            Err(InvalidDiscovery::OtherTrustDomain { own: own.clone(), got: self.trust_domain })
        }
    }
}

/// A device asks for its first SVID, against a one-time token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    pub token: String,
    /// PKCS#10, PEM. Only its key is used; the server decides every name (ID-175).
    pub csr: String,
}

impl fmt::Debug for JoinRequest {
    /// A token in a log is a token lost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest").field("csr", &self.csr).finish_non_exhaustive()
    }
}

/// Everything a device needs from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinResponse {
    #[schema(value_type = String)]
    pub client_id: ClientId,
    /// The new SVID, leaf first, one PEM certificate per element.
    pub certificates: Vec<String>,
    pub trust_bundle: JwkSet,
    /// Where to fetch the trust bundle again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_bundle_uri: Option<String>,
    /// The device interface: mutual TLS, an absolute `https` URL.
    pub device_url: String,
    /// The server's built-in registry, if it has one, as `host:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// The authority behind the server's page and registry, PEM: for a container engine that has to trust it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_authority: Option<String>,
}

/// A device asks for its next SVID, proving that it holds the key of the previous one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RenewRequest {
    /// PKCS#10, PEM.
    pub csr: String,
    /// The previous SVID, leaf first, one PEM certificate per element; it may have expired.
    pub previous: Vec<String>,
    /// Base64 of the signature by the previous key over the new CSR.
    pub proof: String,
}

/// The proof of a renewal is not base64.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("proof is the base64 of a signature by the previous key over the new certificate request")]
pub struct InvalidProof;

impl RenewRequest {
    pub fn new(csr: String, previous: Vec<String>, signature: &[u8]) -> RenewRequest {
        RenewRequest { csr, previous, proof: STANDARD.encode(signature) }
    }

    /// The bytes of the proof.
    pub fn signature(&self) -> Result<Vec<u8>, InvalidProof> {
        STANDARD.decode(&self.proof).map_err(|_| InvalidProof)
    }
}

/// The next SVID, and the trust bundle as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RenewResponse {
    pub certificates: Vec<String>,
    pub trust_bundle: JwkSet,
}

/// What a container engine shows to the built-in registry: it cannot present an SVID, but knows Basic.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistryToken {
    pub username: String,
    pub password: String,
    /// RFC 3339.
    pub expires: String,
    /// The registry that it opens, as `host:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// The authority behind that registry, PEM; none where it is plain HTTP on the server's own machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_authority: Option<String>,
}

impl fmt::Debug for RegistryToken {
    /// A password in a log is a password lost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryToken").field("username", &self.username).finish_non_exhaustive()
    }
}

/// What a device needs to clone and pull its desired state: one commit per manifest version on branch `main`, with
/// `manifest.json` and `deployments/<deploymentId>.yaml` byte for byte as the device interface serves them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitToken {
    /// The repository, an absolute `https` URL on the server's web listener.
    pub url: String,
    /// For Basic; the server looks at the token only.
    pub username: String,
    pub token: String,
    /// RFC 3339. Ask again before, or whenever the repository answers 401.
    pub expires: String,
    /// The authority behind the web listener, PEM: for `http.sslCAInfo`.
    pub authority: String,
}

impl fmt::Debug for GitToken {
    /// A token in a log is a token lost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitToken")
            .field("url", &self.url)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of our identity digest, appendix A, with the certificate shortened: nothing here reads it.
    const BUNDLE: &str = r#"{ "spiffe_sequence": 4, "spiffe_refresh_hint": 3600, "vendor": {"x": 1},
      "keys": [ { "kty": "EC", "crv": "P-256",
        "x": "Giob2RY8JqdpPSOH7Yr4ypiHE_5Vngt3PrSk81kMySY", "y": "-srAlcULANeLugoB7cWVNOHRE3pnPttLhWl5Yvj6WbY",
        "use": "x509-svid", "x5c": ["AQID+/8="] } ] }"#;

    #[test]
    fn id_131_id_132_an_anchor_survives_its_own_text() {
        let set: JwkSet = serde_json::from_str(BUNDLE).unwrap();
        assert_eq!((set.spiffe_sequence, set.spiffe_refresh_hint), (Some(4), Some(3600)));
        let anchor = set.keys[0].anchor().unwrap();
        assert_eq!(anchor.certificate, [1, 2, 3, 0xfb, 0xff]);
        assert_eq!(Jwk::of_anchor(&anchor), set.keys[0]);
        let text = serde_json::to_string(&set).unwrap();
        assert!(!text.contains("kid") && text.contains(r#""use":"x509-svid""#), "{text}");
        for key in [
            JwkKey::P384 { x: vec![1; 48], y: vec![2; 48] },
            JwkKey::Ed25519 { x: vec![3; 32] },
            JwkKey::Rsa { n: vec![9; 384], e: vec![1, 0, 1] },
        ] {
            let anchor = JwkAnchor { key, certificate: vec![1] };
            let text = serde_json::to_string(&Jwk::of_anchor(&anchor)).unwrap();
            assert_eq!(serde_json::from_str::<Jwk>(&text).unwrap().anchor().unwrap(), anchor);
        }
    }

    #[test]
    fn id_133_id_134_entries_without_meaning_for_us_are_told_apart() {
        let why = |entry: &str| {
            let set: JwkSet = serde_json::from_str(&format!(r#"{{"keys":[{entry}]}}"#)).unwrap();
            set.keys[0].anchor().unwrap_err()
        };
        assert_eq!(why(r#"{"use":"jwt-svid","kty":"EC","kid":"k"}"#), NotAnAnchor::OtherUse);
        assert_eq!(why(r#"{"kty":"EC"}"#), NotAnAnchor::OtherUse);
        assert_eq!(why("7"), NotAnAnchor::OtherUse);
        assert_eq!(why(r#"{"use":"x509-svid","kty":["EC"]}"#), NotAnAnchor::OtherUse);
        assert_eq!(why(r#"{"use":"x509-svid"}"#), NotAnAnchor::KeyType);
        assert_eq!(why(r#"{"use":"x509-svid","kty":"EC","crv":"P-521"}"#), NotAnAnchor::KeyType);
        assert_eq!(
            why(r#"{"use":"x509-svid","kty":"EC","crv":"P-256","x":"AQ"}"#),
            NotAnAnchor::KeyMember("y")
        );
        assert_eq!(
            why(r#"{"use":"x509-svid","kty":"OKP","crv":"Ed25519","x":"AQ"}"#),
            NotAnAnchor::NoCertificate
        );
        assert_eq!(
            why(r#"{"use":"x509-svid","kty":"OKP","crv":"Ed25519","x":"AQ","x5c":[]}"#),
            NotAnAnchor::NoCertificate
        );
        assert_eq!(
            why(r#"{"use":"x509-svid","kty":"OKP","crv":"Ed25519","x":"AQ","x5c":["_-8"]}"#),
            NotAnAnchor::CertificateEncoding
        );
    }

    #[test]
    fn id_131_a_bundle_without_keys_or_with_very_many_is_refused() {
        assert!(serde_json::from_str::<JwkSet>(r#"{"spiffe_sequence":1}"#).is_err());
        assert!(serde_json::from_str::<JwkSet>(&format!(r#"{{"keys":[{}1]}}"#, "1,".repeat(64))).is_err());
    }

    #[test]
    fn id_151_discovery_wants_both_members_and_https() {
        let good = br#"{"trustDomain":"plant.example","trustBundleUri":"https://mis.plant.example/b.json","crlUris":[]}"#;
        let document = Discovery::parse(good).unwrap();
        assert_eq!(document.trust_domain.as_str(), "plant.example");
        for bad in [
            r#"{"trustDomain":"plant.example"}"#,
            r#"{"trustBundleUri":"https://a/b"}"#,
            r#"{"trustDomain":"Plant","trustBundleUri":"https://a/b"}"#,
            "[]",
        ] {
            assert!(matches!(Discovery::parse(bad.as_bytes()), Err(InvalidDiscovery::Malformed(_))), "{bad}");
        }
        for uri in ["http://a/b", "https://", "https:///b", "/b", "ftp://a", "HTTPS//a"] {
            let text = format!(r#"{{"trustDomain":"p","trustBundleUri":"{uri}"}}"#);
            assert!(matches!(Discovery::parse(text.as_bytes()), Err(InvalidDiscovery::NotHttps(_))), "{uri}");
        }
    }

    #[test]
    fn id_152_a_discovery_document_of_another_domain_is_a_mistake() {
        let document = Discovery {
            trust_domain: "a.example".parse().unwrap(),
            trust_bundle_uri: "https://a/b".to_owned(),
        };
        assert!(document.clone().matching(&"a.example".parse().unwrap()).is_ok());
        assert!(document.matching(&"b.example".parse().unwrap()).is_err());
    }

    #[test]
    fn a_join_token_is_never_shown() {
        let request = JoinRequest { token: "s3cret".to_owned(), csr: "PEM".to_owned() };
        assert!(!format!("{request:?}").contains("s3cret"));
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"token":"s3cret","csr":"PEM"}"#);
    }

    #[test]
    fn a_proof_travels_as_base64() {
        let request = RenewRequest::new("CSR".to_owned(), vec!["PEM".to_owned()], &[0xfb, 0xff, 0]);
        assert_eq!(
            serde_json::to_string(&request).unwrap(),
            r#"{"csr":"CSR","previous":["PEM"],"proof":"+/8A"}"#
        );
        assert_eq!(request.signature().unwrap(), [0xfb, 0xff, 0]);
        assert_eq!(RenewRequest { proof: "_-8".to_owned(), ..request }.signature(), Err(InvalidProof));
    }

    #[test]
    fn join_and_renew_bodies_are_camel_case() {
        let trust_bundle = JwkSet { spiffe_sequence: None, spiffe_refresh_hint: None, keys: Vec::new() };
        let response = JoinResponse {
            client_id: "press.42".parse().unwrap(),
            certificates: vec!["PEM".to_owned()],
            trust_bundle,
            trust_bundle_uri: None,
            device_url: "https://s:8444".to_owned(),
            registry: None,
            web_authority: None,
        };
        let text = serde_json::to_string(&response).unwrap();
        assert_eq!(
            text,
            r#"{"clientId":"press.42","certificates":["PEM"],"trustBundle":{"keys":[]},"deviceUrl":"https://s:8444"}"#
        );
        assert_eq!(serde_json::from_str::<JoinResponse>(&text).unwrap(), response);
    }
}
