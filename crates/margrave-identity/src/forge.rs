//! Certificates that our authority would never issue, for tests: every field can be wrong.

use std::time::Duration;

use margrave_core::id::TrustDomain;
use margrave_core::moment::Moment;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;

use crate::bundle::{Anchor, Bundle};
use crate::certificate::pem_of;
use crate::key::PrivateKey;

/// 2026-10-02T00:00:00Z: within the worked example of the specification digest.
pub(crate) const NOW: Moment = Moment(1_790_899_200_000);
pub(crate) const CLIENT: &str = "spiffe://plant.example/margo/wfm/line-7/client/press.42";
pub(crate) const SERVER: &str = "spiffe://plant.example/margo/wfm/line-7";

pub(crate) fn moment(from: Moment, seconds: u64) -> Moment {
    from.after(Duration::from_secs(seconds))
}

/// Now, as the TLS library sees it; it asks the system.
pub(crate) fn system_now() -> Moment {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Moment(u64::try_from(now.as_millis()).unwrap())
}

/// A root, and a leaf under construction that is right until a test spoils it.
pub(crate) struct Forge {
    pub(crate) params: CertificateParams,
    pub(crate) key: &'static rcgen::SignatureAlgorithm,
    pub(crate) root_params: CertificateParams,
    root_key: KeyPair,
    leaf_key: Option<KeyPair>,
}

impl Forge {
    pub(crate) fn new() -> Forge {
        Forge::at(NOW, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    pub(crate) fn at(now: Moment, root: &'static rcgen::SignatureAlgorithm) -> Forge {
        Forge::with_root(now, KeyPair::generate_for(root).unwrap())
    }

    pub(crate) fn with_root(now: Moment, root_key: KeyPair) -> Forge {
        let mut root_params = CertificateParams::default();
        root_params.distinguished_name = DistinguishedName::new();
        root_params.distinguished_name.push(DnType::OrganizationName, "forged");
        root_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root_params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let mut forge =
            Forge { params, key: &rcgen::PKCS_ECDSA_P256_SHA256, root_params, root_key, leaf_key: None };
        forge.names(&[CLIENT]);
        forge.valid(now, -3600, 3600);
        forge
    }

    pub(crate) fn names(&mut self, uris: &[&str]) {
        self.params.subject_alt_names =
            uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
    }

    /// Validity of the leaf, in seconds around `now`.
    pub(crate) fn valid(&mut self, now: Moment, from: i64, until: i64) {
        let time = |offset: i64| {
            let seconds = i64::try_from(now.0 / 1000).unwrap() + offset;
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(seconds).unwrap())
        };
        self.params.not_before = time(from);
        self.params.not_after = time(until);
    }

    pub(crate) fn root_valid(&mut self, now: Moment, from: i64, until: i64) {
        let (before, after) = (self.params.not_before, self.params.not_after);
        self.valid(now, from, until);
        (self.root_params.not_before, self.root_params.not_after) =
            (self.params.not_before, self.params.not_after);
        (self.params.not_before, self.params.not_after) = (before, after);
    }

    pub(crate) fn leaf_key(&mut self, key: KeyPair) {
        self.leaf_key = Some(key);
    }

    pub(crate) fn root(&self) -> CertificateDer<'static> {
        self.root_params.self_signed(&self.root_key).unwrap().into()
    }

    pub(crate) fn root_files(&self) -> (String, String) {
        (pem_of(&self.root()), self.root_key.serialize_pem())
    }

    pub(crate) fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.root_params, &self.root_key)
    }

    /// The chain, even with a key that we would never hold ourselves.
    pub(crate) fn chain(&self) -> (Vec<CertificateDer<'static>>, KeyPair) {
        let key = match &self.leaf_key {
            Some(key) => KeyPair::try_from(key.serialized_der()).unwrap(),
            None => KeyPair::generate_for(self.key).unwrap(),
        };
        (vec![self.params.signed_by(&key, &self.issuer()).unwrap().into()], key)
    }

    pub(crate) fn leaf(&self) -> (Vec<CertificateDer<'static>>, PrivateKey) {
        let (chain, key) = self.chain();
        (chain, PrivateKey::of(key).unwrap())
    }

    pub(crate) fn bundle(&self) -> Bundle {
        let domain: TrustDomain = "plant.example".parse().unwrap();
        Bundle::of_anchor(domain, Anchor::new(self.root()).unwrap(), 1, Duration::from_secs(60))
    }
}
