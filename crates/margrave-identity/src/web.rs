//! The authority behind the HTTPS page, operator REST and the identity endpoints.
//!
//! Apart from the SVID authority on purpose: the trust bundle never validates this listener, and this
//! authority never validates an SVID (ID-165). Devices and the CLI know it by its pin; the chain that the
//! listener presents therefore includes the authority's certificate (ID-162).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use margrave_core::moment::Moment;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use crate::ca::Ca;
pub use crate::ca::{AuthorityError, IssueError};
use crate::certificate::{ChainError, Statements, Unreadable, chain_from_pem, pem_of};
use crate::key::{PrivateKey, PrivateKeyError};
use crate::pin::Pin;
use crate::tls::provider;

/// More names than a machine has addresses are a mistake in the configuration.
const NAMES_MAX: usize = 100;

/// Issues certificates for the web listener.
pub struct WebAuthority {
    ca: Ca,
}

impl WebAuthority {
    pub fn create(now: Moment) -> Result<WebAuthority, AuthorityError> {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, "Margrave web authority");
        Ok(WebAuthority { ca: Ca::create(subject, Vec::new(), now)? })
    }

    pub fn load(certificate_pem: &str, key_pem: &str) -> Result<WebAuthority, AuthorityError> {
        Ok(WebAuthority { ca: Ca::load(certificate_pem, key_pem)? })
    }

    pub fn certificate_pem(&self) -> String {
        self.ca.certificate_pem()
    }

    /// PKCS#8; whoever reads it can stand in for the server's page.
    pub fn key_pem(&self) -> String {
        self.ca.key_pem()
    }

    /// What a device is given to recognise this server on first contact (ID-161).
    pub fn pin(&self) -> Pin {
        Pin::of_spki(&self.ca.statements().spki)
    }

    /// A certificate with a new key for these DNS names and addresses.
    pub fn issue(&self, names: &[String], now: Moment, lifetime: Duration) -> Result<WebLeaf, IssueError> {
        let Some(first) = names.first() else { return Err(IssueError::Name(String::new())) };
        if names.len() > NAMES_MAX {
            return Err(IssueError::Name(format!("{} names, at most {NAMES_MAX}", names.len())));
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, first.as_str());
        for name in names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => {
                    let dns = rustls::pki_types::DnsName::try_from(name.as_str())
                        .map_err(|_| IssueError::Name(name.clone()))?;
                    SanType::DnsName(dns.as_ref().try_into().map_err(|_| IssueError::Name(name.clone()))?)
                }
            });
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = PrivateKey::generate().map_err(IssueError::Key)?;
        let leaf = self.ca.sign(params, &key, now, lifetime)?;
        WebLeaf::new(vec![leaf, self.ca.certificate().clone()], key)
            .map_err(|error| IssueError::Web(Box::new(error)))
    }
}

/// What the web listener presents: a chain and its key, ours or one from a public authority.
#[derive(Clone)]
pub struct WebLeaf {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKey,
    not_before: Moment,
    not_after: Moment,
    certified: Arc<CertifiedKey>,
}

/// Why a chain and a key cannot be presented.
#[derive(Debug, thiserror::Error)]
pub enum WebLeafError {
    #[error("the certificates cannot be read")]
    Chain(#[source] ChainError),
    #[error("there is no certificate")]
    Empty,
    #[error("the first certificate cannot be read")]
    Unreadable(#[source] Unreadable),
    #[error("the private key cannot be used")]
    Key(#[source] PrivateKeyError),
    #[error("the private key does not belong to the first certificate")]
    OtherKey,
    #[error("the TLS library does not take the key")]
    Tls(#[source] rustls::Error),
}

impl WebLeaf {
    pub fn from_pem(chain: &str, key: &str) -> Result<WebLeaf, WebLeafError> {
        let key = PrivateKey::from_pem(key).map_err(WebLeafError::Key)?;
        WebLeaf::new(chain_from_pem(chain).map_err(WebLeafError::Chain)?, key)
    }

    fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKey) -> Result<WebLeaf, WebLeafError> {
        let leaf =
            Statements::read(chain.first().ok_or(WebLeafError::Empty)?).map_err(WebLeafError::Unreadable)?;
        if leaf.spki != key.public().spki() {
            return Err(WebLeafError::OtherKey);
        }
        let signer = provider().key_provider.load_private_key(key.to_der()).map_err(WebLeafError::Tls)?;
        let certified = Arc::new(CertifiedKey::new(chain.clone(), signer));
        Ok(WebLeaf { chain, key, not_before: leaf.not_before, not_after: leaf.not_after, certified })
    }

    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    pub fn chain_pem(&self) -> String {
        self.chain.iter().map(pem_of).collect()
    }

    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    pub fn not_after(&self) -> Moment {
        self.not_after
    }

    /// Whether more than half of the lifetime is over, so that a replacement should be made.
    pub fn is_due(&self, now: Moment) -> bool {
        now.since(self.not_before) > self.not_after.since(self.not_before) / 2
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}

impl fmt::Debug for WebLeaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebLeaf").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forge::{NOW, moment};
    use crate::pin::pin_of;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn id_161_id_162_the_chain_includes_the_pinned_authority() {
        let authority = WebAuthority::create(NOW).unwrap();
        let names = ["localhost", "plant.example", "127.0.0.1", "::1"].map(str::to_owned);
        let leaf = authority.issue(&names, NOW, DAY).unwrap();
        assert_eq!(leaf.chain().len(), 2);
        assert_eq!(pin_of(&leaf.chain()[1]).unwrap(), authority.pin());
        assert_eq!(leaf.not_after(), NOW.after(DAY));
        assert!(!leaf.is_due(NOW) && leaf.is_due(moment(NOW, 13 * 3600)));
        let again = WebLeaf::from_pem(&leaf.chain_pem(), &leaf.key_pem()).unwrap();
        assert_eq!(again.chain(), leaf.chain());
    }

    #[test]
    fn a_web_authority_survives_its_own_files() {
        let authority = WebAuthority::create(NOW).unwrap();
        let again = WebAuthority::load(&authority.certificate_pem(), &authority.key_pem()).unwrap();
        assert_eq!(again.pin(), authority.pin());
        let other = WebAuthority::create(NOW).unwrap();
        assert_ne!(other.pin(), authority.pin());
        assert!(matches!(
            WebAuthority::load(&authority.certificate_pem(), &other.key_pem()),
            Err(AuthorityError::OtherKey)
        ));
    }

    #[test]
    fn names_that_cannot_stand_in_a_certificate_are_refused() {
        let authority = WebAuthority::create(NOW).unwrap();
        for names in [vec![], vec!["".to_owned()], vec!["a b".to_owned()], vec!["a".to_owned(); 101]] {
            assert!(matches!(authority.issue(&names, NOW, DAY), Err(IssueError::Name(_))), "{names:?}");
        }
    }
}
