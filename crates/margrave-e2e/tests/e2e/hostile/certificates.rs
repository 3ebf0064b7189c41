//! Who is let in on the device listener: certificates that the server's authority would never issue, some of
//! them signed with its very key.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SignatureAlgorithm,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::Value;

use super::{Answer, Ask, Door, Plant};

/// The server's own authority, with its key as it lies on disk.
struct Forge {
    authority: Issuer<'static, KeyPair>,
    trust_domain: String,
    wfm: String,
}

/// A certificate under construction: right, until a test spoils it.
struct Leaf {
    params: CertificateParams,
    algorithm: &'static SignatureAlgorithm,
}

impl Forge {
    fn of(plant: &Plant) -> Self {
        let read = |name: &str| {
            std::fs::read_to_string(plant.stage.path("server/identity").join(name))
                .expect("the server's keys")
        };
        let names: Value = serde_json::from_str(&read("names.json")).expect("the names are JSON");
        let key = KeyPair::from_pem(&read("authority.key")).expect("a key");
        Forge {
            authority: Issuer::from_ca_cert_pem(&read("authority.crt"), key).expect("an authority"),
            trust_domain: names["trustDomain"].as_str().expect("a name").to_owned(),
            wfm: names["wfm"].as_str().expect("a name").to_owned(),
        }
    }

    fn client(&self, name: &str) -> String {
        format!("spiffe://{}/margo/wfm/{}/client/{name}", self.trust_domain, self.wfm)
    }

    fn leaf(&self, uris: &[&str]) -> Leaf {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names =
            uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("a URI is ASCII"))).collect();
        let mut leaf = Leaf { params, algorithm: &rcgen::PKCS_ECDSA_P256_SHA256 };
        leaf.valid(-3600, 3600);
        leaf
    }

    fn knock(&self, plant: &Plant, leaf: &Leaf) -> Knocked {
        knock(plant, Some(leaf.signed(&self.authority)))
    }
}

impl Leaf {
    /// In seconds from now.
    fn valid(&mut self, from: i64, until: i64) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let now = i64::try_from(now.as_secs()).expect("before the end of time");
        let at = |offset: i64| {
            let seconds = u64::try_from(now + offset).expect("after 1970");
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
        };
        (self.params.not_before, self.params.not_after) = (at(from), at(until));
    }

    fn signed(&self, by: &Issuer<'_, KeyPair>) -> (CertificateDer<'static>, KeyPair) {
        let key = KeyPair::generate_for(self.algorithm).expect("a key");
        let certificate = self.params.signed_by(&key, by).expect("a certificate");
        (certificate.der().clone(), key)
    }
}

/// What came of it.
#[derive(Debug)]
enum Knocked {
    /// Not a byte of HTTP came back.
    Refused,
    Answered(Answer),
}

fn knock(plant: &Plant, identity: Option<(CertificateDer<'static>, KeyPair)>) -> Knocked {
    knock_with(plant, identity, &[&rustls::version::TLS13])
}

fn knock_with(
    plant: &Plant,
    identity: Option<(CertificateDer<'static>, KeyPair)>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Knocked {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("the provider has it")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody));
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
            builder.with_client_auth_cert(vec![certificate], key).expect("the key fits")
        }
    };
    let door = Door { port: plant.stage.device, tls: Some(Arc::new(config)) };
    let bytes = door.exchange(&Ask::new("GET", "/api/v1/deployments").bytes());
    Answer::read(&bytes).map_or(Knocked::Refused, Knocked::Answered)
}

/// A client that does not care whom it speaks to; it is the server that is tried here.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[test]
fn only_a_certificate_of_the_profile_gets_through_the_handshake() {
    let plant = Plant::start();
    let forge = Forge::of(&plant);
    let own = forge.client("line-1");

    // The forgery itself is good: what is refused below is refused for what is wrong with it.
    let good = forge.knock(&plant, &forge.leaf(&[&own]));
    assert!(matches!(&good, Knocked::Answered(answer) if answer.status == 200), "{good:?}");

    let refused = |what: &str, knocked: Knocked| {
        assert!(matches!(knocked, Knocked::Refused), "{what} got through: {knocked:?}");
    };
    refused("no certificate", knock(&plant, None));

    let foreign = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let foreign = Issuer::new(authority, foreign);
    refused("a foreign authority", knock(&plant, Some(forge.leaf(&[&own]).signed(&foreign))));

    let mut expired = forge.leaf(&[&own]);
    expired.valid(-7200, -3600);
    refused("an expired certificate", forge.knock(&plant, &expired));
    let mut early = forge.leaf(&[&own]);
    early.valid(3600, 7200);
    refused("a certificate of tomorrow", forge.knock(&plant, &early));

    let elsewhere = own.replace(&forge.trust_domain, "elsewhere.example");
    let other_server = own.replace(&format!("/wfm/{}/", forge.wfm), "/wfm/another/");
    let server = format!("spiffe://{}/margo/wfm/{}", forge.trust_domain, forge.wfm);
    for (what, uris) in [
        ("two URI SANs", vec![own.as_str(), &elsewhere]),
        ("the same URI SAN twice", vec![&own, &own]),
        ("no SAN", vec![]),
        ("another trust domain", vec![&elsewhere]),
        ("a client of another server", vec![&other_server]),
        ("the server's own name", vec![&server]),
        ("a name that is no SPIFFE ID", vec!["https://line-1.example"]),
        ("a path that goes up", vec![&format!("{own}/../line-2")]),
    ] {
        refused(what, forge.knock(&plant, &forge.leaf(&uris)));
    }
    let mut authority = forge.leaf(&[&own]);
    authority.params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    refused("an authority as a client", forge.knock(&plant, &authority));
    let mut signer = forge.leaf(&[&own]);
    signer.params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    refused("a client that may sign certificates", forge.knock(&plant, &signer));
    let mut old = forge.leaf(&[&own]).signed(&forge.authority);
    refused("TLS 1.2", knock_with(&plant, Some(old), &[&rustls::version::TLS12]));
    old = forge.leaf(&[&own]).signed(&forge.authority);
    old.1 = KeyPair::generate().expect("a key");
    // A certificate that somebody saw, without its key.
    let stolen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| knock(&plant, Some(old))));
    assert!(!matches!(stolen, Ok(Knocked::Answered(_))), "a certificate without its key got through");
    plant.assert_unharmed();
}

#[test]
fn a_good_certificate_of_somebody_unknown_or_retired_is_refused_with_a_reason() {
    let plant = Plant::start();
    let forge = Forge::of(&plant);
    let refused = |name: &str| match forge.knock(&plant, &forge.leaf(&[&forge.client(name)])) {
        Knocked::Answered(answer) => {
            assert_eq!(answer.status, 403, "{name}: {answer:?}");
            answer.refused(name)
        }
        Knocked::Refused => panic!("{name} is refused without a reason"),
    };
    assert!(refused("ghost").contains("not among the accepted"));

    let (door, _) = super::device::member(&plant.stage, "line-2");
    assert_eq!(door.ask(&Ask::new("GET", "/api/v1/deployments")).status, 200);
    plant.stage.json(&["device", "retire", "line-2", "--yes"]);
    assert!(refused("line-2").contains("retired"));
    // The SVID it really has is refused as well, everywhere, at once.
    for (method, path) in [
        ("GET", "/api/v1/deployments"),
        ("PUT", "/api/v1/capabilities/line-2"),
        ("POST", "/x-margrave/v1/registry-token"),
    ] {
        let answer = door.ask(&Ask::new(method, path));
        assert_eq!(answer.status, 403, "{method} {path}");
        answer.refused(path);
    }
    assert_eq!(door.ask(&Ask::new("GET", "/v2/hello/main/tags/list")).status, 403);
    plant.assert_unharmed();
}
