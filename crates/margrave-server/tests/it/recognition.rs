//! Who is recognised as a client, on real connections: each refusal in the layer that the rules prescribe.
//! What is wrong with a certificate is a TLS alert without HTTP; what policy says is a 403 (ID-190).

use std::sync::Arc;

use margrave_core::identity::ServerName;
use margrave_identity::bundle::Bundle;
use margrave_identity::certificate::Statements;
use margrave_identity::verify::verify_peer;
use margrave_wire::identity::{BUNDLE_PATH, DISCOVERY_PATH, JOIN_PATH, RENEW_PATH};
use margrave_wire::operator::PREFIX;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, RsaKeySize, SanType,
};
use rustls::AlertDescription as Alert;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::pki_types::ServerName as TlsName;
use rustls::pki_types::pem::PemObject as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::forge;
use crate::leaf::{Knocked, Leaf, PRESS, authority, knock, presenting, presenting_with};
use crate::line::Line;
use crate::plant::{Plant, now, operator, server_name, trust_domain};

const MANIFEST: &str = "/api/v1/deployments";
const NOT_AUTHORIZED: &str = "https://docs.margo.org/specification/problem-types#not-authorized";

/// Every call of the interface, none of which would succeed for want of a body or a match.
const CALLS: [(&str, &str); 6] = [
    ("GET", MANIFEST),
    ("GET", "/api/v1/deployments/0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11/sha256:00"),
    ("GET", "/api/v1/bundles/sha256:00"),
    ("POST", "/api/v1/deployments/0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11/status"),
    ("PUT", "/api/v1/capabilities/press.42"),
    ("DELETE", "/api/v1/capabilities/press.42"),
];

async fn plant_with_press() -> Plant {
    let plant = Plant::new().await;
    plant.join("press.42").await;
    plant
}

async fn shown(plant: &Plant, leaf: &Leaf) -> Knocked {
    knock(plant.server.addresses().device, leaf.tls(plant.data.path()), "GET", MANIFEST).await
}

#[tokio::test]
async fn mi_g2_005_id_002_005_064_190_no_call_is_answered_without_a_client_certificate() {
    let plant = plant_with_press().await;
    for (method, path) in CALLS {
        let knocked = knock(plant.server.addresses().device, forge::rogue(None), method, path).await;
        knocked.is_alert(path, Alert::CertificateRequired);
    }
    let mut plain = Line::plain(plant.server.addresses().device).await;
    assert!(plain.get(MANIFEST).await.is_err(), "nor is plain text");
    shown(&plant, &Leaf::press()).await.is_answered("200 OK");
}

#[tokio::test]
async fn mi_g2_023_026_id_030_037_080_214_232_only_our_clients_names_get_through_the_handshake() {
    let plant = plant_with_press().await;
    let long = format!("{PRESS}{}", "x".repeat(2048));
    for (what, uris) in [
        ("two clients", &[PRESS, "spiffe://plant.example/margo/wfm/line-7/client/press.43"][..]),
        ("a second URI that is no SPIFFE ID", &[PRESS, "https://elsewhere.example/"]),
        ("the same name twice", &[PRESS, PRESS]),
        ("no name", &[]),
        ("a client of another server", &["spiffe://plant.example/margo/wfm/line-8/client/press.42"]),
        ("another case of the server's id", &["spiffe://plant.example/margo/wfm/LINE-7/client/press.42"]),
        ("another trust domain", &["spiffe://plant-ten.example/margo/wfm/line-7/client/press.42"]),
        ("a trust domain in capitals", &["spiffe://Plant.Example/margo/wfm/line-7/client/press.42"]),
        ("the server itself", &["spiffe://plant.example/margo/wfm/line-7"]),
        ("another profile", &["spiffe://plant.example/other"]),
        ("a root path", &["spiffe://plant.example"]),
        ("another scheme", &["https://plant.example/margo/wfm/line-7/client/press.42"]),
        ("a longer path", &["spiffe://plant.example/margo/wfm/line-7/client/press.42/x"]),
        ("a slash at the end", &["spiffe://plant.example/margo/wfm/line-7/client/press.42/"]),
        ("dots for a name", &["spiffe://plant.example/margo/wfm/line-7/client/.."]),
        ("a tilde", &["spiffe://plant.example/margo/wfm/line-7/client/press~42"]),
        ("percent encoding", &["spiffe://plant.example/margo/wfm/line-7/client/press%2E42"]),
        ("a query", &["spiffe://plant.example/margo/wfm/line-7/client/press.42?x"]),
        ("more than 2048 bytes", &[&long]),
    ] {
        shown(&plant, &Leaf::of(uris)).await.is_alert(what, Alert::CertificateUnknown);
    }
    // Names of other kinds mean nothing, beside the right one and without it (ID-031, ID-071).
    let dns = |leaf: &mut Leaf| {
        leaf.params.subject_alt_names.push(SanType::DnsName("press.43".try_into().unwrap()));
    };
    shown(&plant, &Leaf::press().with(dns)).await.is_answered("200 OK");
    shown(&plant, &Leaf::of(&[]).with(dns)).await.is_alert("a DNS name alone", Alert::CertificateUnknown);
}

#[tokio::test]
async fn mi_g2_026_id_034_035_036_073_a_certificate_for_other_uses_is_refused_in_the_handshake() {
    let plant = plant_with_press().await;
    let key_usage = |usages: &[KeyUsagePurpose]| {
        let usages = usages.to_vec();
        Leaf::press().with(|leaf| leaf.params.key_usages = usages)
    };
    let purposes = |purposes: &[ExtendedKeyUsagePurpose]| {
        let purposes = purposes.to_vec();
        Leaf::press().with(|leaf| leaf.params.extended_key_usages = purposes)
    };
    use KeyUsagePurpose::{CrlSign, DigitalSignature, KeyAgreement, KeyCertSign, KeyEncipherment};
    for (what, leaf) in [
        ("cA", Leaf::press().with(|leaf| leaf.params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained))),
        ("no keyUsage", key_usage(&[])),
        ("no digitalSignature", key_usage(&[KeyAgreement])),
        ("keyCertSign", key_usage(&[DigitalSignature, KeyCertSign])),
        ("cRLSign", key_usage(&[DigitalSignature, CrlSign])),
        (
            "a keyUsage that is not critical",
            key_usage(&[]).with(|leaf| {
                let usage = CustomExtension::from_oid_content(&[2, 5, 29, 15], vec![0x03, 0x02, 0x07, 0x80]);
                leaf.params.custom_extensions.push(usage);
            }),
        ),
        ("serverAuth alone", purposes(&[ExtendedKeyUsagePurpose::ServerAuth])),
        ("clientAuth alone", purposes(&[ExtendedKeyUsagePurpose::ClientAuth])),
        ("another purpose", purposes(&[ExtendedKeyUsagePurpose::CodeSigning])),
    ] {
        shown(&plant, &leaf).await.is_alert(what, Alert::CertificateUnknown);
    }
    // What is only more than needed, or left open, is allowed.
    shown(&plant, &key_usage(&[DigitalSignature, KeyEncipherment, KeyAgreement])).await.is_answered("200 OK");
    shown(&plant, &purposes(&[])).await.is_answered("200 OK");
}

#[tokio::test]
async fn mi_g2_026_id_066_185_what_is_expired_or_not_yet_valid_is_refused_in_the_handshake() {
    let plant = plant_with_press().await;
    let valid = |from, until| Leaf::press().with(|leaf| leaf.valid(from, until));
    shown(&plant, &valid(-7200, -60)).await.is_alert("expired", Alert::CertificateExpired);
    shown(&plant, &valid(60, 7200)).await.is_alert("not yet valid", Alert::CertificateExpired);
    shown(&plant, &valid(-60, 60)).await.is_answered("200 OK");
}

#[tokio::test]
async fn mi_g2_026_id_039_070_224_a_foreign_authority_and_our_own_are_no_clients() {
    let plant = plant_with_press().await;
    let data = plant.data.path();
    let device = plant.server.addresses().device;

    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    // By name the very same authority.
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "plant.example");
    let foreign = Issuer::new(params, KeyPair::generate().unwrap());
    let leaf = Leaf::press();
    let tls = Arc::new(presenting(vec![leaf.signed_by(&foreign)], &leaf.key));
    knock(device, tls, "GET", MANIFEST).await.is_alert("a foreign authority", Alert::CertificateUnknown);

    let (own, own_key) = authority(data);
    let own = rustls::pki_types::CertificateDer::from_pem_slice(own.as_bytes()).unwrap();
    let tls = Arc::new(presenting(vec![own], &own_key));
    knock(device, tls, "GET", MANIFEST).await.is_alert("the authority itself", Alert::CertificateUnknown);

    // A certificate that somebody saw, without its key.
    let (seen, other) = (leaf.signed(data), KeyPair::generate().unwrap());
    let mut tls = presenting(vec![leaf.signed(data)], &leaf.key);
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(other.serialize_der()).into();
    let signer = default_provider().key_provider.load_private_key(key).unwrap();
    let certified = rustls::sign::CertifiedKey::new(vec![seen], signer);
    tls.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    let knocked = knock(device, Arc::new(tls), "GET", MANIFEST).await;
    knocked.is_alert("another key", Alert::DecryptError);
}

#[tokio::test]
async fn mi_g2_027_id_050_051_053_the_keys_of_the_profile_are_taken_and_no_others() {
    let plant = plant_with_press().await;
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        shown(&plant, &Leaf::press().key_of(algorithm)).await.is_answered("200 OK");
    }
    let rsa = |size| {
        let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
        Leaf::press().with(|leaf| leaf.key = key)
    };
    shown(&plant, &rsa(RsaKeySize::_3072)).await.is_answered("200 OK");
    shown(&plant, &rsa(RsaKeySize::_2048)).await.is_alert("RSA of 2048 bits", Alert::CertificateUnknown);
    // The server does not even offer the scheme, so an honest client has nothing to sign with.
    let p521 = Leaf::press().key_of(&rcgen::PKCS_ECDSA_P521_SHA512);
    shown(&plant, &p521).await.is_alert("P-521", Alert::CertificateRequired);
}

#[tokio::test]
async fn mi_g2_028_id_060_061_tls_is_1_3_with_its_common_ciphers_and_groups() {
    let plant = plant_with_press().await;
    let leaf = Leaf::press();
    let device = plant.server.addresses().device;
    let with = |provider, versions: &[&'static rustls::SupportedProtocolVersion]| {
        let chain = vec![leaf.signed(plant.data.path())];
        Arc::new(presenting_with(chain, &leaf.key, provider, versions))
    };
    let old = with(default_provider(), &[&rustls::version::TLS12]);
    knock(device, old, "GET", MANIFEST).await.is_alert("TLS 1.2", Alert::ProtocolVersion);
    for suite in [
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ] {
        let provider = rustls::crypto::CryptoProvider { cipher_suites: vec![suite], ..default_provider() };
        let tls = with(provider, &[&rustls::version::TLS13]);
        knock(device, tls, "GET", MANIFEST).await.is_answered("200 OK");
    }
    for group in [kx_group::SECP256R1, kx_group::X25519] {
        let provider = rustls::crypto::CryptoProvider { kx_groups: vec![group], ..default_provider() };
        let tls = with(provider, &[&rustls::version::TLS13]);
        knock(device, tls, "GET", MANIFEST).await.is_answered("200 OK");
    }
}

#[tokio::test]
async fn mi_g2_002_id_063_the_interface_is_http_1_1_and_offers_nothing_else() {
    let plant = plant_with_press().await;
    let (leaf, device) = (Leaf::press(), plant.server.addresses().device);
    let offering = |protocols: &[&[u8]]| {
        let mut tls = presenting(vec![leaf.signed(plant.data.path())], &leaf.key);
        tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(tls)
    };
    let chosen = async |protocols: &[&[u8]]| {
        let stream = TcpStream::connect(device).await.unwrap();
        let connector = TlsConnector::from(offering(protocols));
        let stream = connector.connect(TlsName::from(device.ip()), stream).await.unwrap();
        stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec)
    };
    assert_eq!(chosen(&[b"h2", b"http/1.1"]).await.as_deref(), Some(&b"http/1.1"[..]));
    assert_eq!(chosen(&[]).await, None, "a client that names no protocol is served too");
    knock(device, offering(&[b"h2"]), "GET", MANIFEST)
        .await
        .is_alert("h2 alone", Alert::NoApplicationProtocol);
    knock(device, offering(&[]), "GET", MANIFEST).await.is_answered("200 OK");
}

#[tokio::test]
async fn id_065_nothing_is_accepted_before_the_handshake_is_over() {
    let plant = plant_with_press().await;
    let (leaf, device) = (Leaf::press(), plant.server.addresses().device);
    let mut tls = presenting(vec![leaf.signed(plant.data.path())], &leaf.key);
    tls.enable_early_data = true;
    let tls = Arc::new(tls);
    knock(device, Arc::clone(&tls), "GET", MANIFEST).await.is_answered("200 OK");
    // Whatever it got to come back with, a client that would like to may not say anything before it is known.
    let mut again = rustls::ClientConnection::new(tls, TlsName::from(device.ip())).unwrap();
    assert!(again.early_data().is_none());
}

#[tokio::test]
async fn mi_g2_004_020_id_010_016_038_090_171_215_the_server_holds_an_svid_of_its_own() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let line = device.line(&plant).await;
    let bundle = Bundle::clone(&device.bundle.current());
    let peer = verify_peer::<ServerName>(&line.peer, now(), &server_name(), &bundle).unwrap();
    assert_eq!(peer.name.to_string(), "spiffe://plant.example/margo/wfm/line-7");
    // No longer than what it issues, so that it need not be revoked (ID-215).
    assert!(peer.not_after.since(now()) <= std::time::Duration::from_secs(3600));
    let leaf = Statements::read(&line.peer[0]).unwrap();
    assert_eq!(leaf.uris, [server_name().to_string()]);
    // The same server id stands in its clients' names, all under /margo/ and none meant for two.
    let own = Statements::read(&device.svid.current().chain()[0]).unwrap();
    assert_eq!(own.uris, [PRESS]);
    let other = plant.join("press.43").await;
    assert_eq!(other.svid.current().name().to_string(), PRESS.replace("42", "43"));
}

#[tokio::test]
async fn mi_g2_029_id_110_111_113_186_a_connection_ends_with_its_svid_and_not_before() {
    let plant = Plant::with(std::time::Duration::from_secs(3), 0).await;
    let device = plant.join("press.42").await;
    let expires = device.svid.current().not_after();
    let mut line = device.line(&plant).await;
    line.get(MANIFEST).await.unwrap().is(200);
    line.closed().await;
    assert!(now().0 + 1000 >= expires.0, "closed early");
    // The last second of an SVID counts as a whole (RFC 5280), so another one would still be welcome in it.
    while now().0 / 1000 <= expires.0 / 1000 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let expired = async { plant.device_line(device.tls()).await?.get(MANIFEST).await };
    assert!(expired.await.is_err(), "and no other is opened with it");
    device.renew(&plant).await.is(200);
    device.line(&plant).await.get(MANIFEST).await.unwrap().is(200);
}

#[tokio::test]
async fn id_174_after_a_restart_the_server_has_another_svid_of_the_same_name() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let before = device.line(&plant).await.peer;
    let plant = plant.restart().await;
    let line = device.line(&plant).await;
    assert_ne!(line.peer, before);
    let uris = |chain: &[rustls::pki_types::CertificateDer<'_>]| Statements::read(&chain[0]).unwrap().uris;
    assert_eq!(uris(&line.peer), uris(&before));
}

#[tokio::test]
async fn mi_g2_010_011_025_067_id_082_083_084_085_233_policy_answers_403_to_every_call() {
    let plant = plant_with_press().await;
    let stranger = Leaf::of(&["spiffe://plant.example/margo/wfm/line-7/client/never-joined"]);
    // Nobody is accepted for being in the namespace; the list of accepted clients begins empty.
    let mut line = plant.device_line(stranger.tls(plant.data.path())).await.unwrap();
    for (method, path) in CALLS {
        let reply = line.send(method, path, &[], "").await.unwrap();
        reply.is_problem(403);
        let problem: serde_json::Value = reply.json();
        assert_eq!(problem["type"], NOT_AUTHORIZED, "{method} {path}");
        assert_eq!((&problem["retryable"], &problem["backoffStrategy"]), (&false.into(), &"none".into()));
        assert_eq!(problem["instance"], path);
    }
}

#[tokio::test]
async fn mi_g2_010_id_086_173_a_change_of_policy_counts_from_the_next_request_of_an_open_connection() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let press = "press.42".parse().unwrap();
    let mut line = device.line(&plant).await;
    for _ in 0..2 {
        line.get(MANIFEST).await.unwrap().is(200);
        plant.server.fleet().retire(&operator(), &press).await.unwrap();
        line.get(MANIFEST).await.unwrap().is_problem(403);
        plant.server.fleet().accept(&operator(), &press).await.unwrap();
    }
    line.get(MANIFEST).await.unwrap().is(200);
}

#[tokio::test]
async fn mi_g2_006_030_id_081_120_121_238_nothing_in_a_request_says_who_asks() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    plant.join("press.43").await;
    let own = device.line(&plant).await.get(MANIFEST).await.unwrap();
    let other =
        Leaf::of(&["spiffe://plant.example/margo/wfm/line-7/client/press.43"]).signed(plant.data.path());
    let other = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &other);
    // What a proxy would say is believed from no one: there is no mode in which a header names the client.
    let claims = format!(":{other}:");
    let headers = [
        ("client-cert", claims.as_str()),
        ("client-cert-chain", &claims),
        ("x-forwarded-client-cert", "URI=spiffe://plant.example/margo/wfm/line-7/client/press.43"),
        ("x-client-id", "press.43"),
        ("authorization", "Bearer press.43"),
    ];
    let mut line = device.line(&plant).await;
    let reply = line.send("GET", MANIFEST, &headers, "").await.unwrap();
    assert_eq!(reply.is(200).body, own.body);
    let body = crate::stock::capabilities_body("press.42", 4);
    line.send("PUT", "/api/v1/capabilities/press.42", &headers, body.clone()).await.unwrap().is(201);
    let fleet = plant.server.fleet();
    assert!(fleet.device(&"press.42".parse().unwrap()).await.unwrap().capabilities.is_some());
    assert!(fleet.device(&"press.43".parse().unwrap()).await.unwrap().capabilities.is_none());
    // Without a certificate they open nothing either.
    let mut alone = plant.web().await;
    let reply = alone.send("PUT", "/api/v1/capabilities/press.43", &headers, body).await.unwrap();
    reply.is(404);
}

#[tokio::test]
async fn mi_g2_004_id_216_239_there_is_no_second_door_and_old_requests_are_not_understood() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let mut line = device.line(&plant).await;
    let signed = [
        ("signature-input", r#"sig1=("@method" "@target-uri");created=1;keyid="x""#),
        ("signature", "sig1=:AAAA:"),
        ("content-digest", "sha-256=:AAAA:"),
        ("x-body-signature", "garbage"),
    ];
    for (method, path) in [
        ("POST", "/api/v1/onboarding"),
        ("GET", "/api/v1/onboarding/certificate"),
        ("GET", "/api/v1/clients/press.42/deployments"),
        ("PUT", "/api/v1/clients/press.42/capabilities/press.42"),
        ("POST", JOIN_PATH),
        ("POST", RENEW_PATH),
        ("GET", DISCOVERY_PATH),
        ("GET", BUNDLE_PATH),
        ("GET", "/"),
        ("GET", &format!("{PREFIX}/status")),
    ] {
        let reply = line.send(method, path, &signed, "{}").await.unwrap();
        reply.is_problem(404);
        let problem: serde_json::Value = reply.json();
        assert_eq!(
            (&problem["type"], &problem["title"]),
            (&"about:blank".into(), &"Not Found".into()),
            "{path}"
        );
    }
    // Where the SVID is right, stray signatures are not looked at.
    line.send("GET", MANIFEST, &signed, "").await.unwrap().is(200);
    // And where the interface is not, it does not answer: neither page nor identity service are a way in.
    let mut web = plant.web().await;
    for (method, path) in CALLS {
        web.send(method, path, &signed, "").await.unwrap().is(404);
    }
}

#[tokio::test]
async fn id_072_136_040_043_the_bundle_has_the_anchor_and_the_chain_has_the_rest() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let svid = device.svid.current();
    assert_eq!(svid.chain().len(), 1, "directly below the anchor");
    let bundle = device.bundle.current();
    let [anchor] = bundle.anchors() else { panic!("one anchor") };
    assert!(Statements::read(anchor.certificate()).unwrap().is_ca);
    assert!(!device.line(&plant).await.peer.contains(anchor.certificate()));
    // What both compare with is what they hold themselves.
    assert_eq!(svid.server_name().trust_domain, trust_domain());
}
