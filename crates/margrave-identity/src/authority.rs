//! The server's own identity authority: it issues SVIDs for one trust domain.
//!
//! Owns the certificate profile of section 3. Who may have a certificate is decided by the caller, from
//! a join token or a renewal proof; nothing that a request says about names is looked at (ID-175).

use std::time::Duration;

use margrave_core::id::{TrustDomain, WfmId};
use margrave_core::identity::{ClientName, ServerName};
use margrave_core::moment::Moment;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    PublicKeyData, SanType, SubjectPublicKeyInfo,
};
use rustls::pki_types::CertificateDer;

use crate::bundle::{Anchor, Bundle};
use crate::ca::Ca;
pub use crate::ca::{AuthorityError, IssueError};
use crate::certificate::{Serial, Statements, pem_of};
use crate::csr::Csr;
use crate::key::PrivateKey;
use crate::svid::Svid;
use crate::verify::verify_peer;

/// Issues SVIDs that chain directly to the one anchor of its trust domain (ID-043).
pub struct Authority {
    trust_domain: TrustDomain,
    ca: Ca,
}

/// A certificate for someone else's key.
#[derive(Debug, Clone)]
pub struct Issued {
    /// Leaf first. The anchor is not part of it (ID-040).
    pub chain: Vec<CertificateDer<'static>>,
    pub serial: Serial,
    pub not_after: Moment,
}

impl Issued {
    /// One PEM text per certificate, for the join and renewal answers.
    pub fn pem(&self) -> Vec<String> {
        self.chain.iter().map(pem_of).collect()
    }
}

impl Authority {
    /// A new authority with a new key, valid for about twenty years.
    pub fn create(trust_domain: TrustDomain, now: Moment) -> Result<Authority, AuthorityError> {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, trust_domain.as_str());
        // The SPIFFE ID of an authority has no path (ID-039).
        let name = uri(&format!("spiffe://{trust_domain}")).map_err(AuthorityError::Issue)?;
        Ok(Authority { trust_domain, ca: Ca::create(subject, vec![name], now)? })
    }

    /// An authority from its files; also one that another tool made, as long as it can issue our profile.
    pub fn load(
        trust_domain: TrustDomain,
        certificate_pem: &str,
        key_pem: &str,
        now: Moment,
    ) -> Result<Authority, AuthorityError> {
        let ca = Ca::load(certificate_pem, key_pem)?;
        let named = ca.statements().uris.iter().find_map(|uri| uri.strip_prefix("spiffe://"));
        if let Some(other) = named.filter(|named| *named != trust_domain.as_str()) {
            return Err(AuthorityError::TrustDomain(other.to_owned()));
        }
        let authority = Authority { trust_domain, ca };
        authority.try_out(now)?;
        Ok(authority)
    }

    /// Issues to itself and verifies: better refused at start than by every device later.
    fn try_out(&self, now: Moment) -> Result<(), AuthorityError> {
        let wfm = WfmId::parse("self-test").expect("a valid segment");
        let svid = self.issue_server(&wfm, now, Duration::from_secs(60)).map_err(AuthorityError::Issue)?;
        let bundle = Bundle::of_anchor(self.trust_domain.clone(), self.anchor(), 1, Duration::from_secs(60));
        verify_peer::<ServerName>(svid.chain(), now, svid.server_name(), &bundle)
            .map(|_| ())
            .map_err(|refusal| AuthorityError::Unusable(Box::new(refusal)))
    }

    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    pub fn certificate_pem(&self) -> String {
        self.ca.certificate_pem()
    }

    /// PKCS#8; whoever reads it is the authority (ID-211).
    pub fn key_pem(&self) -> String {
        self.ca.key_pem()
    }

    /// How every serial begins that this authority gives out, in hexadecimal.
    pub fn serial_prefix(&self) -> String {
        self.ca.mark().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn not_after(&self) -> Moment {
        self.ca.statements().not_after
    }

    /// What devices have to trust.
    pub fn anchor(&self) -> Anchor {
        Anchor::new(self.ca.certificate().clone()).expect("an authority's certificate was checked to be one")
    }

    /// A new SVID with a new key, for the server itself.
    pub fn issue_server(&self, wfm: &WfmId, now: Moment, lifetime: Duration) -> Result<Svid, IssueError> {
        let name = ServerName { trust_domain: self.trust_domain.clone(), wfm: wfm.clone() };
        let key = PrivateKey::generate().map_err(IssueError::Key)?;
        let leaf = self.leaf(&name.to_string(), &key, now, lifetime)?;
        Svid::new(vec![leaf], key).map_err(|error| IssueError::Svid(Box::new(error)))
    }

    /// An SVID for a client, for the key of its request.
    pub fn issue_client(
        &self,
        wfm: &WfmId,
        client: &margrave_core::id::ClientId,
        csr: &Csr,
        now: Moment,
        lifetime: Duration,
    ) -> Result<Issued, IssueError> {
        let server = ServerName { trust_domain: self.trust_domain.clone(), wfm: wfm.clone() };
        let name = ClientName { server, client: client.clone() };
        let key = SubjectPublicKeyInfo::from_der(csr.key().spki()).map_err(IssueError::Sign)?;
        let leaf = self.leaf(&name.to_string(), &key, now, lifetime)?;
        let statements = Statements::read(&leaf).map_err(IssueError::Unreadable)?;
        Ok(Issued { chain: vec![leaf], serial: statements.serial, not_after: statements.not_after })
    }

    fn leaf(
        &self,
        name: &str,
        key: &impl PublicKeyData,
        now: Moment,
        lifetime: Duration,
    ) -> Result<CertificateDer<'static>, IssueError> {
        let mut params = CertificateParams::default();
        // An empty subject makes the alternative name critical (ID-032).
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![uri(name)?];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.ca.sign(params, key, now, lifetime)
    }
}

fn uri(text: &str) -> Result<SanType, IssueError> {
    text.try_into().map(SanType::URI).map_err(|_| IssueError::Name(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forge::{NOW, moment};
    use rcgen::KeyPair;
    use x509_parser::oid_registry::{OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_SUBJECT_ALT_NAME};
    use x509_parser::prelude::FromDer;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn authority() -> Authority {
        Authority::create("plant.example".parse().unwrap(), NOW).unwrap()
    }

    #[test]
    fn id_030_032_034_035_036_043_an_issued_client_has_exactly_the_profile() {
        let authority = authority();
        for algorithm in
            [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
        {
            let key = PrivateKey::of(KeyPair::generate_for(algorithm).unwrap()).unwrap();
            let csr = Csr::make(&key).unwrap();
            let issued = authority
                .issue_client(&"line-7".parse().unwrap(), &"press.42".parse().unwrap(), &csr, NOW, DAY)
                .unwrap();
            assert_eq!(issued.chain.len(), 1);
            let (_, leaf) = x509_parser::certificate::X509Certificate::from_der(&issued.chain[0]).unwrap();
            assert_eq!(leaf.subject().iter().count(), 0);
            let names = leaf.get_extension_unique(&OID_X509_EXT_SUBJECT_ALT_NAME).unwrap().unwrap();
            assert!(names.critical);
            assert_eq!(leaf.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 1);
            let basic = leaf.get_extension_unique(&OID_X509_EXT_BASIC_CONSTRAINTS).unwrap().unwrap();
            assert!(basic.critical);
            let statements = Statements::read(&issued.chain[0]).unwrap();
            assert_eq!(statements.uris, ["spiffe://plant.example/margo/wfm/line-7/client/press.42"]);
            assert!(!statements.is_ca);
            let usage = statements.key_usage.unwrap();
            assert!(usage.critical && usage.digital_signature && !usage.key_cert_sign && !usage.crl_sign);
            let extended = statements.extended_key_usage.unwrap();
            assert!(extended.server_auth && extended.client_auth);
            assert_eq!(statements.key.as_ref().unwrap(), key.public());
            assert_eq!(statements.not_after, NOW.after(DAY));
            assert_eq!(NOW.since(statements.not_before), crate::ca::CLOCK_SKEW);
            assert_eq!(statements.serial.to_string().len(), 32);
            let again = Svid::new(issued.chain, key).unwrap();
            assert_eq!(again.client_name().unwrap().client.as_str(), "press.42");
        }
    }

    #[test]
    fn id_039_the_authority_is_a_ca_without_a_path() {
        let statements = Statements::read(authority().ca.certificate()).unwrap();
        assert_eq!(statements.uris, ["spiffe://plant.example"]);
        assert!(statements.is_ca);
        let usage = statements.key_usage.unwrap();
        assert!(usage.critical && usage.key_cert_sign && !usage.digital_signature);
        assert!(statements.not_after > moment(NOW, 19 * 365 * 24 * 3600));
    }

    #[test]
    fn no_two_serials_are_the_same() {
        let authority = authority();
        let csr = Csr::make(&PrivateKey::generate().unwrap()).unwrap();
        let serial = || {
            authority
                .issue_client(&"w".parse().unwrap(), &"c".parse().unwrap(), &csr, NOW, DAY)
                .unwrap()
                .serial
        };
        assert_ne!(serial(), serial());
        // But whose they are can be told.
        assert!(serial().to_string().starts_with(&authority.serial_prefix()));
        assert_ne!(super::tests::authority().serial_prefix(), authority.serial_prefix());
    }

    #[test]
    fn an_authority_survives_its_own_files() {
        let authority = authority();
        let (certificate, key) = (authority.certificate_pem(), authority.key_pem());
        let domain = authority.trust_domain().clone();
        let again = Authority::load(domain.clone(), &certificate, &key, NOW).unwrap();
        assert_eq!(again.anchor().certificate(), authority.anchor().certificate());

        let other = super::tests::authority();
        assert!(matches!(
            Authority::load(domain.clone(), &certificate, &other.key_pem(), NOW),
            Err(AuthorityError::OtherKey)
        ));
        assert!(matches!(
            Authority::load("other.example".parse().unwrap(), &certificate, &key, NOW),
            Err(AuthorityError::TrustDomain(_))
        ));
        assert!(matches!(
            Authority::load(domain.clone(), "", &key, NOW),
            Err(AuthorityError::Certificate(_))
        ));
        let svid = authority.issue_server(&"w".parse().unwrap(), NOW, DAY).unwrap();
        assert!(matches!(
            Authority::load(domain, &svid.chain_pem(), &svid.key_pem(), NOW),
            Err(AuthorityError::TrustDomain(_) | AuthorityError::NotAnAuthority)
        ));
    }

    #[test]
    fn an_authority_made_elsewhere_can_be_taken_over() {
        let forge = crate::forge::Forge::new();
        let (certificate, key) = forge.root_files();
        let authority = Authority::load("plant.example".parse().unwrap(), &certificate, &key, NOW).unwrap();
        assert!(authority.issue_server(&"w".parse().unwrap(), NOW, DAY).is_ok());
    }

    #[test]
    fn an_svid_never_outlives_its_authority_and_an_expired_authority_issues_nothing() {
        let authority = authority();
        let late = Moment(authority.not_after().0 - 3_600_000);
        let svid = authority.issue_server(&"w".parse().unwrap(), late, DAY).unwrap();
        assert_eq!(svid.not_after(), authority.not_after());
        let too_late = Moment(authority.not_after().0 + 1_000);
        let refused = authority.issue_server(&"w".parse().unwrap(), too_late, DAY);
        assert!(matches!(refused, Err(IssueError::AuthorityExpired)));
    }

    #[test]
    fn an_absurd_clock_does_not_panic() {
        assert!(Authority::create("plant.example".parse().unwrap(), Moment(0)).is_ok());
        assert!(Authority::create("plant.example".parse().unwrap(), Moment(u64::MAX)).is_ok());
    }
}
