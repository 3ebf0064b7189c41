//! An SVID of our own: the chain we present and the key behind it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use margrave_core::identity::{ClientName, InvalidName, ServerName};
use margrave_core::moment::Moment;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use crate::certificate::{ChainError, Serial, Statements, Unreadable, chain_from_pem, pem_of};
use crate::key::{PrivateKey, PrivateKeyError};
use crate::tls::provider;

/// The shortest lifetime that makes sense to give. A certificate begins five minutes before it is issued, because clocks
/// differ, and is renewed from 40 % of the whole on: with less than seven and a half minutes that is over at once, and devices
/// would do nothing but renew. With this they have a minute, and some more to be late.
pub const LIFETIME_MIN: Duration = Duration::from_secs(10 * 60);

/// Whose SVID it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SvidName {
    Server(ServerName),
    Client(ClientName),
}

impl fmt::Display for SvidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SvidName::Server(name) => name.fmt(f),
            SvidName::Client(name) => name.fmt(f),
        }
    }
}

/// A chain and the private key of its leaf, known to belong together.
#[derive(Clone)]
pub struct Svid {
    name: SvidName,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKey,
    not_before: Moment,
    not_after: Moment,
    serial: Serial,
    certified: Arc<CertifiedKey>,
}

/// Why a chain and a key are not an SVID.
#[derive(Debug, thiserror::Error)]
pub enum SvidError {
    #[error("the certificates cannot be read")]
    Chain(#[source] ChainError),
    #[error("there is no certificate")]
    Empty,
    #[error("the private key cannot be used")]
    Key(#[source] PrivateKeyError),
    #[error("a certificate of the chain cannot be read")]
    Unreadable(#[source] Unreadable),
    #[error(
        "the private key does not belong to the first certificate; install the pair that was issued together"
    )]
    OtherKey,
    #[error("the certificate has {0} URI names, an SVID has exactly one (ID-030)")]
    NameCount(usize),
    #[error("the certificate is not one of a server or a client")]
    Name(#[source] InvalidName),
    #[error("the certificate is one of an authority, not of a principal (ID-034)")]
    Authority,
    #[error("the TLS library does not take the key")]
    Tls(#[source] rustls::Error),
    #[error("the new SVID is of {new}, the one in use is of {current}; a renewal keeps the name (ID-172)")]
    OtherName { current: Box<SvidName>, new: Box<SvidName> },
}

impl Svid {
    pub fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKey) -> Result<Svid, SvidError> {
        let leaf = Statements::read(chain.first().ok_or(SvidError::Empty)?).map_err(SvidError::Unreadable)?;
        if leaf.key.as_ref().ok() != Some(key.public()) {
            return Err(SvidError::OtherKey);
        }
        if leaf.is_ca {
            return Err(SvidError::Authority);
        }
        let [uri] = leaf.uris.as_slice() else { return Err(SvidError::NameCount(leaf.uris.len())) };
        let name = match ClientName::parse(uri) {
            Ok(name) => SvidName::Client(name),
            Err(_) => SvidName::Server(ServerName::parse(uri).map_err(SvidError::Name)?),
        };
        let (mut not_before, mut not_after) = (leaf.not_before, leaf.not_after);
        for issuer in &chain[1..] {
            let issuer = Statements::read(issuer).map_err(SvidError::Unreadable)?;
            not_before = not_before.max(issuer.not_before);
            not_after = not_after.min(issuer.not_after);
        }
        let signer = provider().key_provider.load_private_key(key.to_der()).map_err(SvidError::Tls)?;
        let certified = Arc::new(CertifiedKey::new(chain.clone(), signer));
        Ok(Svid { name, chain, key, not_before, not_after, serial: leaf.serial, certified })
    }

    /// An SVID from its two files: certificates leaf first, and a PKCS#8 key.
    pub fn from_pem(chain: &str, key: &str) -> Result<Svid, SvidError> {
        let key = PrivateKey::from_pem(key).map_err(SvidError::Key)?;
        Svid::new(chain_from_pem(chain).map_err(SvidError::Chain)?, key)
    }

    /// An SVID as the server answered a join or renewal: one PEM text per certificate.
    pub fn adopt(certificates: &[String], key: PrivateKey) -> Result<Svid, SvidError> {
        Svid::new(chain_from_pem(&certificates.concat()).map_err(SvidError::Chain)?, key)
    }

    pub fn chain_pem(&self) -> String {
        self.chain.iter().map(pem_of).collect()
    }

    /// One PEM text per certificate, as the renewal body carries them.
    pub fn certificates(&self) -> Vec<String> {
        self.chain.iter().map(pem_of).collect()
    }

    /// PKCS#8, for a file that only we may read.
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    pub fn name(&self) -> &SvidName {
        &self.name
    }

    /// The server this SVID belongs to: itself, or the one its client talks to (ID-072, ID-100).
    pub fn server_name(&self) -> &ServerName {
        match &self.name {
            SvidName::Server(name) => name,
            SvidName::Client(name) => &name.server,
        }
    }

    pub fn client_name(&self) -> Option<&ClientName> {
        match &self.name {
            SvidName::Server(_) => None,
            SvidName::Client(name) => Some(name),
        }
    }

    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    pub fn not_before(&self) -> Moment {
        self.not_before
    }

    /// When the first certificate of the chain expires.
    pub fn not_after(&self) -> Moment {
        self.not_after
    }

    pub fn serial(&self) -> &Serial {
        &self.serial
    }

    pub fn is_expired(&self, now: Moment) -> bool {
        crate::certificate::is_expired(self.not_after, now)
    }

    /// When to ask for the next SVID: somewhere between 40 % and 60 % of the lifetime (ID-251), chosen by
    /// `jitter` from 0 to 1, so that devices that joined together do not renew together.
    pub fn renew_at(&self, jitter: f64) -> Moment {
        let jitter = if jitter.is_finite() { jitter.clamp(0.0, 1.0) } else { 0.5 };
        self.not_before.after(self.not_after.since(self.not_before).mul_f64(0.4 + 0.2 * jitter))
    }

    /// The part of the lifetime that is over, from 0 to 1, for warnings before expiry (ID-187).
    pub fn elapsed(&self, now: Moment) -> f64 {
        let lifetime = self.not_after.since(self.not_before).as_secs_f64();
        if lifetime == 0.0 {
            1.0
        } else {
            (now.since(self.not_before).as_secs_f64() / lifetime).clamp(0.0, 1.0)
        }
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}

impl fmt::Debug for Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Svid")
            .field("name", &self.name)
            .field("serial", &self.serial)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;
    use crate::csr::Csr;
    use crate::forge::{Forge, NOW, moment};

    fn client(lifetime: Duration) -> Svid {
        let authority = Authority::create("plant.example".parse().unwrap(), NOW).unwrap();
        let key = PrivateKey::generate().unwrap();
        let csr = Csr::make(&key).unwrap();
        let issued = authority
            .issue_client(&"line-7".parse().unwrap(), &"press.42".parse().unwrap(), &csr, NOW, lifetime)
            .unwrap();
        Svid::adopt(&issued.pem(), key).unwrap()
    }

    #[test]
    fn an_svid_survives_its_own_files() {
        let svid = client(Duration::from_secs(3600));
        let again = Svid::from_pem(&svid.chain_pem(), &svid.key_pem()).unwrap();
        assert_eq!(again.name().to_string(), "spiffe://plant.example/margo/wfm/line-7/client/press.42");
        assert_eq!(again.chain(), svid.chain());
        assert_eq!(again.not_after(), moment(NOW, 3600));
        assert_eq!(again.serial(), svid.serial());
        assert_eq!(svid.certificates().concat(), svid.chain_pem());
        assert!(!format!("{svid:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_key_of_another_svid_is_refused() {
        let (svid, other) = (client(Duration::from_secs(60)), client(Duration::from_secs(60)));
        assert!(matches!(Svid::from_pem(&svid.chain_pem(), &other.key_pem()), Err(SvidError::OtherKey)));
        assert!(matches!(Svid::from_pem("", &other.key_pem()), Err(SvidError::Chain(_))));
        assert!(matches!(Svid::new(Vec::new(), other.key().clone()), Err(SvidError::Empty)));
    }

    #[test]
    fn id_030_an_svid_of_ours_has_one_name_of_a_known_form() {
        let with = |uris: &[&str]| {
            let mut forge = Forge::new();
            forge.names(uris);
            let (chain, key) = forge.leaf();
            Svid::new(chain, key)
        };
        assert!(matches!(with(&[]), Err(SvidError::NameCount(0))));
        let server = "spiffe://plant.example/margo/wfm/line-7";
        assert!(matches!(with(&[server, server]), Err(SvidError::NameCount(2))));
        assert!(matches!(with(&["https://plant.example"]), Err(SvidError::Name(_))));
        assert!(with(&[server]).unwrap().client_name().is_none());
    }

    #[test]
    fn id_251_renewal_is_due_between_40_and_60_percent() {
        let svid = client(Duration::from_secs(1000));
        let lifetime = svid.not_after().since(svid.not_before()).as_secs_f64();
        let share = |jitter: f64| svid.renew_at(jitter).since(svid.not_before()).as_secs_f64() / lifetime;
        for (jitter, expected) in
            [(0.0, 0.4), (0.5, 0.5), (1.0, 0.6), (7.0, 0.6), (-1.0, 0.4), (f64::NAN, 0.5)]
        {
            assert!((share(jitter) - expected).abs() < 0.001, "{jitter}: {}", share(jitter));
        }
        assert!((svid.elapsed(svid.renew_at(0.5)) - 0.5).abs() < 0.001);
        assert_eq!(svid.elapsed(moment(NOW, 5000)), 1.0);
        assert_eq!(svid.elapsed(Moment(0)), 0.0);
    }

    #[test]
    fn the_shortest_lifetime_leaves_a_device_something_else_to_do_than_to_renew() {
        let pause = |lifetime| client(lifetime).renew_at(0.0).since(NOW);
        assert!(pause(LIFETIME_MIN) >= Duration::from_secs(60), "{:?}", pause(LIFETIME_MIN));
        assert_eq!(pause(Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn the_last_second_is_still_valid() {
        let svid = client(Duration::from_secs(1000));
        assert!(!svid.is_expired(Moment(svid.not_after().0 + 999)));
        assert!(svid.is_expired(Moment(svid.not_after().0 + 1000)));
    }
}
