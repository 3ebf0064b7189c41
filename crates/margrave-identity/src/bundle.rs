//! The trust bundle of one trust domain: the anchors, and nothing but anchors (ID-136).
//!
//! A [`Bundle`] that exists has at least one usable anchor, so code that holds one cannot validate against
//! nothing. It always replaces its predecessor whole (ID-142); when to refresh it and where the cache lies
//! is the business of whoever fetches it.

use std::time::Duration;

use margrave_core::id::TrustDomain;
use margrave_core::moment::Moment;
use margrave_wire::identity::{Jwk, JwkAnchor, JwkSet, NotAnAnchor};
use rustls::pki_types::{CertificateDer, TrustAnchor};

use crate::certificate::{Statements, Unreadable};
use crate::key::{KeyFault, PublicKey};

/// Below this a refresh hint is a mistake of the publisher (ID-146).
pub const REFRESH_MIN: Duration = Duration::from_secs(30);
/// How often to look when the publisher does not say (ID-140).
pub const REFRESH_DEFAULT: Duration = Duration::from_secs(300);

/// A certificate authority that a peer's chain may end in.
#[derive(Debug, Clone)]
pub struct Anchor {
    certificate: CertificateDer<'static>,
    trust: TrustAnchor<'static>,
    key: PublicKey,
    not_before: Moment,
    not_after: Moment,
}

/// Why a certificate, or an entry of a bundle, is not used as an anchor.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AnchorFault {
    #[error("the entry is not one for SVIDs")]
    Entry(#[source] NotAnAnchor),
    #[error("its certificate cannot be read")]
    Unreadable(#[source] Unreadable),
    #[error("its certificate is not accepted by the path validation")]
    Webpki(#[source] webpki::Error),
    #[error(
        "its certificate is not one of an authority: cA=true and keyUsage keyCertSign are needed (ID-137)"
    )]
    NotAnAuthority,
    #[error("its certificate holds another key than the entry (ID-137)")]
    OtherKey,
    #[error("its key is not acceptable")]
    Key(#[source] KeyFault),
}

impl Anchor {
    pub fn new(certificate: CertificateDer<'static>) -> Result<Anchor, AnchorFault> {
        let statements = Statements::read(&certificate).map_err(AnchorFault::Unreadable)?;
        if !statements.is_ca || !statements.key_usage.is_none_or(|usage| usage.key_cert_sign) {
            return Err(AnchorFault::NotAnAuthority);
        }
        let key = statements.key.map_err(AnchorFault::Key)?;
        let trust = webpki::anchor_from_trusted_cert(&certificate).map_err(AnchorFault::Webpki)?.to_owned();
        Ok(Anchor {
            certificate,
            trust,
            key,
            not_before: statements.not_before,
            not_after: statements.not_after,
        })
    }

    fn of_entry(entry: &Jwk) -> Result<Anchor, AnchorFault> {
        let JwkAnchor { key, certificate } = entry.anchor().map_err(AnchorFault::Entry)?;
        let anchor = Anchor::new(CertificateDer::from(certificate))?;
        if *anchor.key.shape() == key { Ok(anchor) } else { Err(AnchorFault::OtherKey) }
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub fn not_after(&self) -> Moment {
        self.not_after
    }

    pub(crate) fn trust(&self) -> &TrustAnchor<'static> {
        &self.trust
    }

    /// An anchor outside its own validity anchors nothing (ID-070, ID-237).
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        self.not_before <= now && !crate::certificate::is_expired(self.not_after, now)
    }
}

/// The anchors of one trust domain, at least one, with the publisher's number and refresh hint.
#[derive(Debug, Clone)]
pub struct Bundle {
    trust_domain: TrustDomain,
    anchors: Vec<Anchor>,
    sequence: Option<u64>,
    refresh_hint: Option<Duration>,
}

/// Why a bundle is refused as a whole. The one in use stays in use (ID-189).
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("the trust bundle is not a JWK set (ID-130)")]
    Malformed(#[source] serde_json::Error),
    #[error(
        "the trust bundle has no usable X.509 anchor among its {entries} entries, so it is not used (ID-135); \
         check what the identity service publishes"
    )]
    NoAnchor { entries: usize },
}

impl Bundle {
    /// What the server publishes while it has one authority.
    pub fn of_anchor(
        trust_domain: TrustDomain,
        anchor: Anchor,
        sequence: u64,
        refresh_hint: Duration,
    ) -> Bundle {
        Bundle {
            trust_domain,
            anchors: vec![anchor],
            sequence: Some(sequence),
            refresh_hint: Some(refresh_hint),
        }
    }

    /// What the server publishes while an authority is being replaced (ID-178): the current one and others.
    pub fn with_anchor(mut self, anchor: Anchor) -> Bundle {
        if self.anchors.iter().all(|known| known.certificate != anchor.certificate) {
            self.anchors.push(anchor);
        }
        self
    }

    /// Reads a bundle as it was fetched. It does not name its trust domain, so that is said by whoever
    /// knows where it came from (ID-130).
    pub fn parse(trust_domain: TrustDomain, bytes: &[u8]) -> Result<Bundle, BundleError> {
        let set: JwkSet = serde_json::from_slice(bytes).map_err(BundleError::Malformed)?;
        Bundle::from_wire(trust_domain, &set)
    }

    pub fn from_wire(trust_domain: TrustDomain, set: &JwkSet) -> Result<Bundle, BundleError> {
        let mut anchors = Vec::new();
        for (at, entry) in set.keys.iter().enumerate() {
            match Anchor::of_entry(entry) {
                Ok(anchor) => anchors.push(anchor),
                // Other kinds of keys are normal there (ID-134) and not worth a line in the log.
                Err(AnchorFault::Entry(NotAnAnchor::OtherUse)) => {}
                Err(fault) => tracing::warn!(
                    trust_domain = %trust_domain,
                    entry = at,
                    fault = &fault as &dyn std::error::Error,
                    "an entry of the trust bundle is not used"
                ),
            }
        }
        if anchors.is_empty() {
            return Err(BundleError::NoAnchor { entries: set.keys.len() });
        }
        let refresh_hint = set.spiffe_refresh_hint.map(Duration::from_secs);
        Ok(Bundle { trust_domain, anchors, sequence: set.spiffe_sequence, refresh_hint })
    }

    pub fn to_wire(&self) -> JwkSet {
        let entry = |anchor: &Anchor| {
            Jwk::of_anchor(&JwkAnchor {
                key: anchor.key.shape().clone(),
                certificate: anchor.certificate.to_vec(),
            })
        };
        JwkSet {
            spiffe_sequence: self.sequence,
            spiffe_refresh_hint: self.refresh_hint.map(|hint| hint.as_secs()),
            keys: self.anchors.iter().map(entry).collect(),
        }
    }

    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    pub fn anchors(&self) -> &[Anchor] {
        &self.anchors
    }

    pub fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Whether this bundle has a lower number than `current`: a security event to report (ID-145).
    pub fn is_older_than(&self, current: &Bundle) -> bool {
        matches!((self.sequence, current.sequence), (Some(new), Some(old)) if new < old)
    }

    /// After how long to look for a newer bundle (ID-140, ID-146).
    pub fn refresh_after(&self) -> Duration {
        self.refresh_hint.map_or(REFRESH_DEFAULT, |hint| hint.max(REFRESH_MIN))
    }
}

/// The worked example of the specification digest, appendix A.
#[cfg(test)]
pub(crate) const EXAMPLE: &str = r#"{ "spiffe_sequence": 4, "spiffe_refresh_hint": 3600, "keys": [
  { "kty": "EC", "crv": "P-256", "x": "Giob2RY8JqdpPSOH7Yr4ypiHE_5Vngt3PrSk81kMySY",
    "y": "-srAlcULANeLugoB7cWVNOHRE3pnPttLhWl5Yvj6WbY", "use": "x509-svid",
    "x5c": ["MIIBlzCCAT2gAwIBAgICEAEwCgYIKoZIzj0EAwIwHTEbMBkGA1UECgwScGxhbnQtbmluZS5leGFtcGxlMB4XDTI2MDEwMTAwMDAwMFoXDTM2MDEwMTAwMDAwMFowHTEbMBkGA1UECgwScGxhbnQtbmluZS5leGFtcGxlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEGiob2RY8JqdpPSOH7Yr4ypiHE/5Vngt3PrSk81kMySb6ysCVxQsA14u6CgHtxZU04dETemc+20uFaXli+PpZtqNtMGswEgYDVR0TAQH/BAgwBgEB/wIBADAOBgNVHQ8BAf8EBAMCAgQwHQYDVR0OBBYEFMb/Dks5jZLceA3PMIfFfTv2iwbTMCYGA1UdEQQfMB2GG3NwaWZmZTovL3BsYW50LW5pbmUuZXhhbXBsZTAKBggqhkjOPQQDAgNIADBFAiAyK6d+ylRLIjqACGV1KBWTlWNs+t4qENjNW5ATXFPBpgIhAK+F9nOdyOl6ebyYCUiI32CrvqC8vyRxJWoL77mjzUJK"] } ] }"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;
    use crate::forge::{Forge, NOW};

    fn domain() -> TrustDomain {
        "plant.example".parse().unwrap()
    }

    fn bundle() -> Bundle {
        let authority = Authority::create(domain(), NOW).unwrap();
        Bundle::of_anchor(domain(), authority.anchor(), 4, Duration::from_secs(3600))
    }

    #[test]
    fn id_130_131_132_a_bundle_survives_its_own_text() {
        let other = Authority::create(domain(), NOW).unwrap();
        let bundle = bundle().with_anchor(other.anchor()).with_anchor(other.anchor());
        let text = serde_json::to_vec(&bundle.to_wire()).unwrap();
        let again = Bundle::parse(domain(), &text).unwrap();
        assert_eq!(again.anchors().len(), 2);
        assert_eq!(again.anchors()[1].certificate(), bundle.anchors()[1].certificate());
        assert_eq!((again.sequence(), again.refresh_after()), (Some(4), Duration::from_secs(3600)));
    }

    #[test]
    fn id_135_230_a_bundle_without_a_usable_anchor_is_refused() {
        for text in [
            r#"{"keys":[]}"#,
            r#"{"keys":[{"use":"jwt-svid","kty":"EC"}]}"#,
            r#"{"keys":[{"use":"x509-svid","kty":"EC","crv":"P-256","x":"AA","y":"AA","x5c":["AAAA"]}]}"#,
        ] {
            assert!(
                matches!(Bundle::parse(domain(), text.as_bytes()), Err(BundleError::NoAnchor { .. })),
                "{text}"
            );
        }
        for text in ["", "[]", "{}", r#"{"keys":7}"#] {
            assert!(
                matches!(Bundle::parse(domain(), text.as_bytes()), Err(BundleError::Malformed(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn id_133_id_134_id_137_bad_entries_are_left_out_and_good_ones_stay() {
        let mut set: JwkSet = serde_json::from_str(EXAMPLE).unwrap();
        let good = set.keys[0].clone();
        let other = bundle().to_wire().keys.remove(0);
        let mut swapped = good.clone();
        swapped.x5c = other.x5c;
        let mut forge = Forge::new();
        forge.params.is_ca = rcgen::IsCa::NoCa;
        let (chain, key) = forge.leaf();
        let leaf =
            Jwk::of_anchor(&JwkAnchor { key: key.public().shape().clone(), certificate: chain[0].to_vec() });
        let jwt = Jwk { usage: Some("jwt-svid".to_owned()), ..good.clone() };
        set.keys = vec![swapped.clone(), leaf.clone(), jwt, good.clone()];
        assert_eq!(Bundle::from_wire(domain(), &set).unwrap().anchors().len(), 1);
        for bad in [swapped, leaf] {
            set.keys = vec![bad];
            assert!(Bundle::from_wire(domain(), &set).is_err());
        }
        // Of several certificates only the first counts.
        let mut two = good;
        two.x5c.as_mut().unwrap().push("AAAA".to_owned());
        set.keys = vec![two];
        assert_eq!(Bundle::from_wire(domain(), &set).unwrap().anchors().len(), 1);
    }

    #[test]
    fn id_145_146_235_numbers_and_hints() {
        let mut older = bundle().to_wire();
        older.spiffe_sequence = Some(3);
        older.spiffe_refresh_hint = Some(1);
        let older = Bundle::from_wire(domain(), &older).unwrap();
        assert!(older.is_older_than(&bundle()) && !bundle().is_older_than(&older));
        assert_eq!(older.refresh_after(), REFRESH_MIN);
        let mut silent = bundle().to_wire();
        (silent.spiffe_sequence, silent.spiffe_refresh_hint) = (None, None);
        let silent = Bundle::from_wire(domain(), &silent).unwrap();
        assert!(!silent.is_older_than(&bundle()));
        assert_eq!(silent.refresh_after(), REFRESH_DEFAULT);
    }
}
