use std::sync::Arc;

use super::*;
use crate::forge::{CLIENT, Forge, NOW, SERVER, moment};
use crate::live::LiveBundle;
use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};

fn own() -> ServerName {
    ServerName::parse(SERVER).unwrap()
}

fn verify(forge: &Forge) -> Result<Peer<ClientName>, Refusal> {
    verify_peer(&forge.chain().0, NOW, &own(), &forge.bundle())
}

#[track_caller]
fn check_refused(code: &str, spoil: impl FnOnce(&mut Forge)) {
    let mut forge = Forge::new();
    spoil(&mut forge);
    let refusal = verify(&forge).unwrap_err();
    assert_eq!(refusal.code(), code, "{refusal:?}");
}

#[test]
fn id_080_a_right_client_is_accepted() {
    let peer = verify(&Forge::new()).unwrap();
    assert_eq!(peer.name.to_string(), CLIENT);
    assert_eq!(peer.not_after, moment(NOW, 3600));
}

#[test]
fn id_100_a_right_server_is_accepted_and_only_as_a_server() {
    let mut forge = Forge::new();
    forge.names(&[SERVER]);
    let peer = verify_peer::<ServerName>(&forge.chain().0, NOW, &own(), &forge.bundle()).unwrap();
    assert_eq!(peer.name, own());
    assert_eq!(verify(&forge).unwrap_err().code(), "id_form");
    let client = Forge::new();
    let refusal = verify_peer::<ServerName>(&client.chain().0, NOW, &own(), &client.bundle()).unwrap_err();
    assert_eq!(refusal.code(), "id_form");
}

#[test]
fn id_030_exactly_one_uri_name() {
    check_refused("san_count", |forge| forge.names(&[]));
    check_refused("san_count", |forge| forge.names(&[CLIENT, CLIENT]));
    check_refused("san_count", |forge| forge.names(&[CLIENT, "https://plant.example"]));
}

#[test]
fn id_030_a_second_uri_name_that_is_not_text_counts_too() {
    check_refused("san_count", |forge| {
        forge.params.subject_alt_names.clear();
        let mut names = vec![0x86, u8::try_from(CLIENT.len()).unwrap()];
        names.extend_from_slice(CLIENT.as_bytes());
        names.extend_from_slice(&[0x86, 2, 0xff, 0xfe]);
        let mut content = vec![0x30, u8::try_from(names.len()).unwrap()];
        content.extend(names);
        forge.params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 17], content));
    });
}

#[test]
fn id_031_071_other_names_are_allowed_and_mean_nothing() {
    let mut forge = Forge::new();
    forge.params.subject_alt_names.push(SanType::DnsName("other.example".try_into().unwrap()));
    forge.params.subject_alt_names.push(SanType::IpAddress("10.0.0.1".parse().unwrap()));
    assert_eq!(verify(&forge).unwrap().name.to_string(), CLIENT);
}

#[test]
fn id_003_another_trust_domain_is_refused_although_the_chain_is_ours() {
    check_refused("trust_domain", |forge| {
        forge.names(&["spiffe://plant-ten.example/margo/wfm/line-7/client/c"])
    });
}

#[test]
fn id_070_the_trust_domain_is_looked_at_before_the_path() {
    let mut forge = Forge::new();
    forge.names(&["spiffe://plant-ten.example/margo/wfm/line-7/client/c"]);
    forge.valid(NOW, -7200, -3600);
    let stranger = Forge::new();
    let refusal = verify_peer::<ClientName>(&forge.chain().0, NOW, &own(), &stranger.bundle()).unwrap_err();
    assert_eq!(refusal.code(), "trust_domain");
}

#[test]
fn id_080_another_wfm_id_is_refused() {
    check_refused("wfm_id", |forge| forge.names(&["spiffe://plant.example/margo/wfm/line-8/client/c"]));
    check_refused("wfm_id", |forge| forge.names(&["spiffe://plant.example/margo/wfm/LINE-7/client/c"]));
}

#[test]
fn id_014_037_a_name_of_no_known_form_is_refused() {
    for name in
        ["spiffe://plant.example", "spiffe://plant.example/other", "https://plant.example/margo/wfm/a"]
    {
        check_refused("id_form", |forge| forge.names(&[name]));
    }
}

#[test]
fn id_070_another_authority_is_refused_even_with_the_same_name() {
    let (forge, other) = (Forge::new(), Forge::new());
    let refusal = verify_peer::<ClientName>(&forge.chain().0, NOW, &own(), &other.bundle()).unwrap_err();
    assert_eq!(refusal.code(), "chain");
}

#[test]
fn id_185_expired_and_not_yet_valid() {
    check_refused("expired", |forge| forge.valid(NOW, -7200, -1));
    check_refused("not_yet_valid", |forge| forge.valid(NOW, 1, 3600));
    let mut last_second = Forge::new();
    last_second.valid(NOW, -7200, 0);
    assert!(verify(&last_second).is_ok());
}

#[test]
fn id_237_an_anchor_outside_its_validity_anchors_nothing() {
    let mut forge = Forge::new();
    forge.root_valid(NOW, -7200, -1);
    assert!(matches!(verify(&forge), Err(Refusal::Chain(ChainFault::NoValidAnchor))));
    forge.root_valid(NOW, -7200, 60);
    assert_eq!(verify(&forge).unwrap().not_after, moment(NOW, 60));
}

#[test]
fn id_034_an_authority_is_no_principal() {
    check_refused("leaf", |forge| forge.params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    // The anchor itself, presented as a client.
    let mut forge = Forge::new();
    forge.root_params.subject_alt_names = vec![SanType::URI(CLIENT.try_into().unwrap())];
    let refusal = verify_peer::<ClientName>(&[forge.root()], NOW, &own(), &forge.bundle()).unwrap_err();
    assert!(matches!(refusal.code(), "leaf" | "chain"), "{refusal:?}");
}

#[test]
fn id_035_id_073_key_usage_must_be_there_and_right() {
    check_refused("leaf", |forge| forge.params.key_usages.clear());
    check_refused("leaf", |forge| forge.params.key_usages = vec![KeyUsagePurpose::KeyAgreement]);
    check_refused("leaf", |forge| forge.params.key_usages.push(KeyUsagePurpose::KeyCertSign));
    check_refused("leaf", |forge| forge.params.key_usages.push(KeyUsagePurpose::CrlSign));
    check_refused("leaf", |forge| {
        forge.params.key_usages.clear();
        // digitalSignature, but not critical
        let content = vec![0x03, 0x02, 0x07, 0x80];
        forge.params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 15], content));
    });
    let mut forge = Forge::new();
    forge.params.key_usages.push(KeyUsagePurpose::KeyEncipherment);
    forge.params.key_usages.push(KeyUsagePurpose::KeyAgreement);
    assert!(verify(&forge).is_ok());
}

#[test]
fn id_036_both_purposes_or_none_stated() {
    check_refused("leaf", |forge| {
        forge.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]
    });
    check_refused("leaf", |forge| {
        forge.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]
    });
    check_refused("leaf", |forge| {
        forge.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning]
    });
    let mut forge = Forge::new();
    forge.params.extended_key_usages.clear();
    assert!(verify(&forge).is_ok());
}

#[test]
fn id_050_id_051_p256_p384_and_ed25519_keys_and_authorities_are_accepted() {
    let all = [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519];
    for root in all {
        for leaf in all {
            let mut forge = Forge::at(NOW, root);
            forge.key = leaf;
            verify(&forge).unwrap();
        }
    }
}

#[test]
fn id_051_rsa_needs_3072_bits_on_leaf_and_authority() {
    let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
    let mut forge = Forge::new();
    forge.leaf_key(rsa(rcgen::RsaKeySize::_3072));
    verify(&forge).unwrap();
    forge.leaf_key(rsa(rcgen::RsaKeySize::_2048));
    assert_eq!(verify(&forge).unwrap_err().code(), "algorithm");

    verify(&Forge::with_root(NOW, rsa(rcgen::RsaKeySize::_3072))).unwrap();
    let weak = Forge::with_root(NOW, rsa(rcgen::RsaKeySize::_2048));
    assert!(crate::bundle::Anchor::new(weak.root()).is_err());
}

#[test]
fn id_051_p521_is_refused() {
    check_refused("algorithm", |forge| forge.key = &rcgen::PKCS_ECDSA_P521_SHA512);
}

/// An intermediate authority below the forge's root, and a leaf below that.
fn two_steps(
    forge: &Forge,
    intermediate_key: &KeyPair,
    spoil: impl FnOnce(&mut CertificateParams),
) -> Vec<CertificateDer<'static>> {
    let mut params = forge.root_params.clone();
    params.distinguished_name.push(DnType::CommonName, "intermediate");
    spoil(&mut params);
    let intermediate = params.signed_by(intermediate_key, &forge.issuer()).unwrap();
    let leaf = forge
        .params
        .signed_by(&KeyPair::generate().unwrap(), &Issuer::from_params(&params, intermediate_key))
        .unwrap();
    vec![leaf.into(), intermediate.into()]
}

#[test]
fn id_040_intermediates_come_with_the_leaf() {
    let forge = Forge::new();
    let key = KeyPair::generate().unwrap();
    let chain = two_steps(&forge, &key, |_| {});
    assert!(verify_peer::<ClientName>(&chain, NOW, &own(), &forge.bundle()).is_ok());
    let refusal = verify_peer::<ClientName>(&chain[..1], NOW, &own(), &forge.bundle()).unwrap_err();
    assert_eq!(refusal.code(), "chain");
}

#[test]
fn id_074_every_certificate_of_the_path_counts() {
    let forge = Forge::new();
    let key = KeyPair::generate().unwrap();
    let refuse = |key: &KeyPair, spoil: &dyn Fn(&mut CertificateParams)| {
        let chain = two_steps(&forge, key, spoil);
        verify_peer::<ClientName>(&chain, NOW, &own(), &forge.bundle()).unwrap_err().code()
    };
    let past = rcgen::date_time_ymd(2020, 1, 1);
    assert_eq!(refuse(&key, &|params| params.not_after = past), "expired");
    assert_eq!(refuse(&key, &|params| params.is_ca = IsCa::ExplicitNoCa), "chain");
    let weak = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
    assert_eq!(refuse(&weak, &|_| {}), "algorithm");
    let soon = rcgen::date_time_ymd(2026, 10, 2) + std::time::Duration::from_secs(60);
    let chain = two_steps(&forge, &key, |params| params.not_after = soon);
    let peer = verify_peer::<ClientName>(&chain, NOW, &own(), &forge.bundle()).unwrap();
    assert_eq!(peer.not_after, moment(NOW, 60));
}

#[test]
fn id_142_after_the_anchor_was_replaced_the_old_chain_is_refused() {
    let (old, new) = (Forge::new(), Forge::new());
    let chain = old.chain().0;
    assert!(verify_peer::<ClientName>(&chain, NOW, &own(), &old.bundle()).is_ok());
    let both = new.bundle().with_anchor(crate::bundle::Anchor::new(old.root()).unwrap());
    assert!(verify_peer::<ClientName>(&chain, NOW, &own(), &both).is_ok());
    assert_eq!(verify_peer::<ClientName>(&chain, NOW, &own(), &new.bundle()).unwrap_err().code(), "chain");
}

#[test]
fn id_067_a_second_look_comes_to_the_same_verdict() {
    let forge = Forge::new();
    let chain = forge.chain().0;
    let live = LiveBundle::new(forge.bundle());
    // In this order, so that later questions meet the memory of earlier ones.
    let check = |now: Moment, own: &ServerName| {
        let fresh = verify_peer::<ClientName>(&chain, now, own, &forge.bundle());
        for _ in 0..2 {
            let again = live.verify_client(&chain, now, own);
            let fresh = fresh.clone().map(Arc::new).map_err(|refusal| refusal.code());
            assert_eq!(fresh, again.map_err(|refusal| refusal.code()));
        }
        fresh.map(drop).map_err(|refusal| refusal.code())
    };
    assert_eq!(check(NOW, &own()), Ok(()));
    assert_eq!(check(moment(NOW, 3599), &own()), Ok(()));
    assert_eq!(check(moment(NOW, 3602), &own()), Err("expired"));
    assert!(check(Moment(NOW.0 - 365 * 24 * 3_600_000), &own()).is_err());
    let other = |name: &str| ServerName::parse(name).unwrap();
    assert_eq!(check(NOW, &other("spiffe://plant.example/margo/wfm/line-8")), Err("wfm_id"));
    assert_eq!(check(NOW, &other("spiffe://other.example/margo/wfm/line-7")), Err("trust_domain"));
    // One byte more or less is another chain.
    let mut changed = chain.clone();
    let mut bytes = changed[0].to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    changed[0] = bytes.into();
    assert!(live.verify_client(&changed, NOW, &own()).is_err());
    // Another bundle is another question.
    live.replace(Forge::new().bundle()).unwrap();
    assert_eq!(live.verify_client(&chain, NOW, &own()).unwrap_err().code(), "chain");
}

#[test]
fn too_many_or_no_certificates_are_refused_unread() {
    let forge = Forge::new();
    let verify =
        |chain: &[CertificateDer<'_>]| verify_peer::<ClientName>(chain, NOW, &own(), &forge.bundle());
    assert!(matches!(verify(&[]), Err(Refusal::Chain(ChainFault::Empty))));
    let leaf = forge.chain().0.remove(0);
    assert!(matches!(verify(&vec![leaf; 7]), Err(Refusal::Chain(ChainFault::TooLong))));
    assert!(matches!(
        verify(&[CertificateDer::from(vec![1, 2, 3])]),
        Err(Refusal::Chain(ChainFault::Unreadable(_)))
    ));
}

/// Appendix A of the specification digest: the verdicts it lists, with its own certificates.
#[test]
fn the_worked_example_gets_the_verdicts_it_lists() {
    let set = serde_json::from_str(crate::bundle::EXAMPLE).unwrap();
    let leaf = base64::engine::general_purpose::STANDARD.decode("MIIBuzCCAWGgAwIBAgICIAIwCgYIKoZIzj0EAwIwHTEbMBkGA1UECgwScGxhbnQtbmluZS5leGFtcGxlMB4XDTI2MTAwMTAwMDAwMFoXDTI2MTAwODAwMDAwMFowADBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABD3qt6A33XBbThuZe+PyebfzmE88gmAMj05LqWKQgqBhEbdUhDhxVDUcTT4Qp4HRJzg6/94ezXZdXEQ9lcDNewijga0wgaowDAYDVR0TAQH/BAIwADAOBgNVHQ8BAf8EBAMCB4AwHQYDVR0lBBYwFAYIKwYBBQUHAwEGCCsGAQUFBwMCMB8GA1UdIwQYMBaAFMb/Dks5jZLceA3PMIfFfTv2iwbTMEoGA1UdEQEB/wRAMD6GPHNwaWZmZTovL3BsYW50LW5pbmUuZXhhbXBsZS9tYXJnby93Zm0vbGluZS03L2NsaWVudC9wcmVzcy40MjAKBggqhkjOPQQDAgNIADBFAiEA7CaWkdxc/ZHbSFgIilK6ELAcqJki6YgJwTx1Nxr+8uwCIAmB/prsI1yFIUYP3lbcXS6AV9Tt1HysPg7vrIoqBqIS").unwrap();
    let chain = [CertificateDer::from(leaf)];
    let verdict = |own: &str, now: Moment| {
        let own = ServerName::parse(own).unwrap();
        let bundle = Bundle::from_wire(own.trust_domain.clone(), &set).unwrap();
        verify_peer::<ClientName>(&chain, now, &own, &bundle).map_err(|refusal| refusal.code())
    };
    let accepted = verdict("spiffe://plant-nine.example/margo/wfm/line-7", NOW).unwrap();
    assert_eq!(accepted.name.client.as_str(), "press.42");
    assert_eq!(accepted.serial.to_string(), "2002");
    assert_eq!(verdict("spiffe://plant-nine.example/margo/wfm/line-8", NOW), Err("wfm_id"));
    assert_eq!(verdict("spiffe://plant-ten.example/margo/wfm/line-7", NOW), Err("trust_domain"));
    let later = moment(NOW, 7 * 24 * 3600);
    assert_eq!(verdict("spiffe://plant-nine.example/margo/wfm/line-7", later), Err("expired"));
    let own = ServerName::parse("spiffe://plant-nine.example/margo/wfm/line-7").unwrap();
    let bundle = Bundle::from_wire(own.trust_domain.clone(), &set).unwrap();
    assert_eq!(verify_peer::<ServerName>(&chain, NOW, &own, &bundle).unwrap_err().code(), "id_form");
}

#[test]
fn id_033_a_subject_is_allowed_and_means_nothing() {
    let mut forge = Forge::new();
    forge.params.distinguished_name.push(DnType::OrganizationName, "plant.example");
    forge
        .params
        .distinguished_name
        .push(DnType::CommonName, "spiffe://plant.example/margo/wfm/line-7/client/x");
    assert_eq!(verify(&forge).unwrap().name.to_string(), CLIENT);
}

#[test]
fn id_041_what_a_certificate_says_to_fetch_is_not_fetched() {
    let mut forge = Forge::new();
    // Where issuers, answers and lists would be; nothing listens there, and nobody is asked.
    let at = |tag: u8, text: &str| [&[tag, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let sequence = |content: &[u8]| [&[0x30, u8::try_from(content.len()).unwrap()], content].concat();
    let url = at(0x86, "http://127.0.0.1:9/x");
    let access = |method: u8| {
        let oid = [0x06, 8, 0x2b, 6, 1, 5, 5, 7, 0x30, method];
        sequence(&[&oid[..], &url].concat())
    };
    let aia = sequence(&[access(1), access(2)].concat());
    forge.params.custom_extensions.push(CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], aia));
    forge.params.crl_distribution_points =
        vec![rcgen::CrlDistributionPoint { uris: vec!["http://127.0.0.1:9/crl".to_owned()] }];
    assert!(verify(&forge).is_ok());
    // And an issuer that would have to be fetched is missing.
    let key = KeyPair::generate().unwrap();
    let chain = two_steps(&forge, &key, |_| {});
    assert!(verify_peer::<ClientName>(&chain[..1], NOW, &own(), &forge.bundle()).is_err());
}

/// The certificate in `der`, which RSA signed with PKCS#1, signed again with PSS.
fn with_pss(der: &[u8], key: &KeyPair) -> CertificateDer<'static> {
    use aws_lc_rs::signature::{RSA_PSS_SHA256, RsaKeyPair};
    let length = |content: &[u8]| match content.len() {
        short @ 0..=127 => vec![u8::try_from(short).unwrap()],
        long => [&[0x82][..], &u16::try_from(long).unwrap().to_be_bytes()].concat(),
    };
    let tlv = |tag: u8, content: &[u8]| [&[tag][..], &length(content), content].concat();
    let pkcs1: &[u8] = &[0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 11, 5, 0];
    let sha256: &[u8] = &[0x30, 13, 6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1, 5, 0];
    let mgf1 = tlv(0x30, &[&[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 8][..], sha256].concat());
    let parameters = [tlv(0xa0, sha256), tlv(0xa1, &mgf1), tlv(0xa2, &[2, 1, 32])].concat();
    let oid: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 10];
    let pss = tlv(0x30, &[oid, &tlv(0x30, &parameters)].concat());

    let (_, read) = x509_parser::prelude::parse_x509_certificate(der).unwrap();
    let body: &[u8] = read.tbs_certificate.as_ref();
    let at = body.windows(pkcs1.len()).position(|window| window == pkcs1).unwrap();
    // The header of the sequence goes, and comes again with its new length.
    let body = tlv(0x30, &[&body[4..at], &pss, &body[at + pkcs1.len()..]].concat());
    let signer = RsaKeyPair::from_pkcs8(&key.serialize_der()).unwrap();
    let mut signature = vec![0; signer.public_modulus_len()];
    let random = aws_lc_rs::rand::SystemRandom::new();
    signer.sign(&RSA_PSS_SHA256, &random, &body, &mut signature).unwrap();
    let signature = tlv(0x03, &[&[0][..], &signature].concat());
    CertificateDer::from(tlv(0x30, &[body, pss, signature].concat()))
}

#[test]
fn id_052_rsa_signs_certificates_in_both_ways() {
    let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_3072).unwrap();
    let copy = KeyPair::try_from(key.serialized_der()).unwrap();
    let forge = Forge::with_root(NOW, key);
    let chain = forge.chain().0;
    let verify = |leaf: &CertificateDer<'_>| {
        verify_peer::<ClientName>(std::slice::from_ref(leaf), NOW, &own(), &forge.bundle())
    };
    assert!(verify(&chain[0]).is_ok());
    let pss = with_pss(&chain[0], &copy);
    assert_eq!(verify(&pss).unwrap().name.to_string(), CLIENT);
    let mut spoilt = pss.to_vec();
    *spoilt.last_mut().unwrap() ^= 1;
    assert_eq!(verify(&CertificateDer::from(spoilt)).unwrap_err().code(), "chain");
}

#[test]
fn id_072_what_is_compared_with_is_what_ones_own_svid_says() {
    let mut forge = Forge::new();
    forge.names(&[SERVER]);
    let (chain, key) = forge.leaf();
    let svid = crate::svid::Svid::new(chain, key).unwrap();
    forge.names(&[CLIENT]);
    let client = forge.chain().0;
    assert!(verify_peer::<ClientName>(&client, NOW, svid.server_name(), &forge.bundle()).is_ok());
    // Another server's bundle of the same name does not make its clients ours.
    forge.names(&["spiffe://plant.example/margo/wfm/line-8"]);
    let (chain, key) = forge.leaf();
    let other = crate::svid::Svid::new(chain, key).unwrap();
    let refusal = verify_peer::<ClientName>(&client, NOW, other.server_name(), &forge.bundle()).unwrap_err();
    assert_eq!(refusal.code(), "wfm_id");
}

/// Keeps what is logged, as text.
struct Log(std::sync::Mutex<String>);

impl tracing::field::Visit for &Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write as _;
        write!(self.0.lock().unwrap(), "{field}={value:?};").unwrap();
    }
}

impl tracing::Subscriber for &'static Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut &**self);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn id_191_a_refusal_is_logged_with_its_reason_and_without_keys() {
    let log: &'static Log = Box::leak(Box::new(Log(std::sync::Mutex::default())));
    let mut forge = Forge::new();
    forge.valid(NOW, -7200, -1);
    let (chain, key) = forge.chain();
    let refusal = verify(&forge).unwrap_err();
    tracing::subscriber::with_default(log, || log_refusal(&chain, &refusal));
    let told = log.0.lock().unwrap().clone();
    let serial = Statements::read(&chain[0]).unwrap().serial.to_string();
    for word in ["expired", CLIENT, serial.as_str(), "O=forged", "Oct  1 23:59:59 2026"] {
        assert!(told.contains(word), "{word} is not in {told}");
    }
    let secret = base64::engine::general_purpose::STANDARD.encode(key.serialized_der());
    assert!(!told.contains("PRIVATE") && !told.contains(&secret[..40]), "{told}");
}
