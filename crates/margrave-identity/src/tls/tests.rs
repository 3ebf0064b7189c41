//! Real handshakes between the two ends, in memory.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use margrave_core::moment::Moment;
use rcgen::{BasicConstraints, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName as TlsName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use super::*;
use crate::authority::Authority;
use crate::bundle::Bundle;
use crate::csr::Csr;
use crate::forge::{CLIENT, Forge, SERVER, system_now};
use crate::key::PrivateKey;
use crate::live::{LiveBundle, LiveSvid, LiveWebLeaf};
use crate::pin::Pin;
use crate::svid::Svid;
use crate::web::{WebAuthority, WebLeaf};

const HOUR: Duration = Duration::from_secs(3600);

/// Shakes hands and exchanges one byte each way; in TLS 1.3 a client learns only by reading whether its
/// certificate was taken.
fn shake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: &str,
) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let mut client = ClientConnection::new(client, TlsName::try_from(name.to_owned()).unwrap())?;
    let mut server = ServerConnection::new(server)?;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
        if !client.is_handshaking() && !server.is_handshaking() {
            break;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking(), "a handshake takes few turns");
    client.writer().write_all(b"?").unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    server.read_tls(&mut bytes.as_slice()).unwrap();
    server.process_new_packets()?;
    let mut got = [0];
    server.reader().read_exact(&mut got).unwrap();
    assert_eq!(&got, b"?");
    Ok((client, server))
}

/// A server and one of its clients, as they are after joining.
struct Plant {
    authority: Authority,
    server: Arc<LiveSvid>,
    client: Arc<LiveSvid>,
    bundle: Arc<LiveBundle>,
}

impl Plant {
    fn new() -> Plant {
        let now = system_now();
        let authority = Authority::create("plant.example".parse().unwrap(), now).unwrap();
        let server = authority.issue_server(&"line-7".parse().unwrap(), now, HOUR).unwrap();
        let bundle = Bundle::of_anchor(authority.trust_domain().clone(), authority.anchor(), 1, HOUR);
        let client = Plant::client_of(&authority, now);
        Plant {
            authority,
            server: LiveSvid::new(server),
            client: LiveSvid::new(client),
            bundle: LiveBundle::new(bundle),
        }
    }

    fn client_of(authority: &Authority, now: Moment) -> Svid {
        let key = PrivateKey::generate().unwrap();
        let csr = Csr::make(&key).unwrap();
        let (wfm, client) = ("line-7".parse().unwrap(), "press.42".parse().unwrap());
        let issued = authority.issue_client(&wfm, &client, &csr, now, HOUR).unwrap();
        Svid::new(issued.chain, key).unwrap()
    }

    fn server_config(&self) -> Arc<ServerConfig> {
        device_server_config(self.server.clone(), self.bundle.clone())
    }

    fn client_config(&self) -> Arc<ClientConfig> {
        device_client_config(self.client.clone(), self.bundle.clone())
    }
}

/// A client that presents any chain whatever and trusts any server: what an attacker would use.
fn rogue_client(chain: Vec<CertificateDer<'static>>, key: &KeyPair, server_pin: Pin) -> Arc<ClientConfig> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let trusting = pinned_client_config(vec![server_pin]);
    let certified =
        rustls::sign::CertifiedKey::new(chain, provider().key_provider.load_private_key(key).unwrap());
    let mut config = ClientConfig::clone(&trusting);
    config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    Arc::new(config)
}

/// What the device listener of `line-7` says to the client that `spoil` makes of a right one.
fn check_client(spoil: impl FnOnce(&mut Forge)) -> Result<(), rustls::Error> {
    let mut forge = Forge::at(system_now(), &rcgen::PKCS_ECDSA_P256_SHA256);
    forge.names(&[SERVER]);
    let (chain, key) = forge.leaf();
    let pin = crate::pin::pin_of(&chain[0]).unwrap();
    let server =
        device_server_config(LiveSvid::new(Svid::new(chain, key).unwrap()), LiveBundle::new(forge.bundle()));
    forge.names(&[CLIENT]);
    spoil(&mut forge);
    let (chain, key) = forge.chain();
    shake(rogue_client(chain, &key, pin), server, "127.0.0.1").map(|_| ())
}

#[track_caller]
fn check_refused(word: &str, spoil: impl FnOnce(&mut Forge)) {
    let error = check_client(spoil).unwrap_err();
    let text = format!("{error:?} {error}");
    assert!(text.contains(word), "{text}");
}

#[test]
fn id_064_id_100_both_ends_accept_each_other_by_any_address() {
    let plant = Plant::new();
    for name in ["127.0.0.1", "whatever.example"] {
        let (client, server) = shake(plant.client_config(), plant.server_config(), name).unwrap();
        assert_eq!(client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        assert_eq!(server.alpn_protocol(), Some(HTTP_1_1));
        let chain = server.peer_certificates().unwrap();
        let own = plant.server.current().server_name().clone();
        let peer = crate::verify::verify_peer::<margrave_core::identity::ClientName>(
            chain,
            system_now(),
            &own,
            &plant.bundle.current(),
        );
        assert_eq!(peer.unwrap().name.client.as_str(), "press.42");
    }
}

/// A connection as the device listener makes it, with its age when the machine's clock says `now`; afterwards the
/// client has its ticket.
fn join(
    plant: &Plant,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    now: u64,
) -> (ClientConnection, ServerConnection, Duration) {
    let mut client = ClientConnection::new(client, TlsName::try_from("a.example").unwrap()).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let mut acceptor = rustls::server::Acceptor::default();
    acceptor.read_tls(&mut hello.as_slice()).unwrap();
    let accepted = acceptor.accept().map_err(|(error, _)| error).unwrap().expect("it is all there");
    let mut server = accepted.into_connection(server).map_err(|(error, _)| error).unwrap();
    let age = tickets::begin_session_at(&mut server, &plant.bundle, now).age;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets().unwrap();
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets().unwrap();
    }
    assert!(!client.is_handshaking() && !server.is_handshaking(), "a handshake takes few turns");
    (client, server, age)
}

fn is_resumed(server: &ServerConnection) -> bool {
    server.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
}

#[test]
fn id_067_a_resumed_session_shows_whose_it_is_and_has_no_early_data() {
    let plant = Plant::new();
    let (client, server) = (plant.client_config(), plant.server_config());
    let now = tickets::machine_now();
    let (first, at_server, _) = join(&plant, client.clone(), server.clone(), now);
    assert!(!is_resumed(&at_server));
    assert_eq!(first.tls13_tickets_received(), 1);
    for _ in 0..3 {
        let (mut again, at_server, _) = join(&plant, client.clone(), server.clone(), now);
        assert!(is_resumed(&at_server));
        // The chain is there, for the listener to verify.
        assert_eq!(at_server.peer_certificates().unwrap(), plant.client.current().chain());
        assert!(again.early_data().is_none());
    }
}

#[test]
fn id_112_resuming_makes_no_session_younger() {
    let plant = Plant::new();
    let (client, server) = (plant.client_config(), plant.server_config());
    let now = tickets::machine_now();
    let minute = 60_000;
    let (_, _, age) = join(&plant, client.clone(), server.clone(), now - 29 * minute);
    assert_eq!(age, Duration::ZERO);
    for _ in 0..3 {
        let (_, at_server, age) = join(&plant, client.clone(), server.clone(), now);
        assert!(is_resumed(&at_server));
        assert_eq!(age, Duration::from_secs(29 * 60));
    }
    // What is too old is no error: it is a full handshake, and so it is after a clock was set back.
    for then in [now - 31 * minute, now + 31 * minute] {
        let (client, server) = (plant.client_config(), plant.server_config());
        join(&plant, client.clone(), server.clone(), then);
        let (_, at_server, age) = join(&plant, client, server, now);
        assert!(!is_resumed(&at_server));
        assert_eq!(age, Duration::ZERO);
    }
}

#[test]
fn id_112_a_listener_that_does_not_count_gives_no_tickets() {
    let plant = Plant::new();
    let (client, server) = (plant.client_config(), plant.server_config());
    for _ in 0..2 {
        let (_, at_server) = shake(client.clone(), server.clone(), "a.example").unwrap();
        assert!(!is_resumed(&at_server));
    }
}

#[test]
fn id_113_nothing_is_resumed_across_a_new_bundle_or_a_new_svid() {
    let plant = Plant::new();
    let now = tickets::machine_now();
    let resumes = |client: &Arc<ClientConfig>, server: &Arc<ServerConfig>, change: &dyn Fn()| {
        let (_, at_server, _) = join(&plant, client.clone(), server.clone(), now);
        assert!(!is_resumed(&at_server));
        let (_, at_server, _) = join(&plant, client.clone(), server.clone(), now);
        assert!(is_resumed(&at_server));
        change();
        let (_, at_server, _) = join(&plant, client.clone(), server.clone(), now);
        is_resumed(&at_server)
    };
    let same = || Bundle::clone(&plant.bundle.current());
    // The server's bundle, with a client that did not hear of it.
    let server = plant.server_config();
    let client = device_client_config(plant.client.clone(), LiveBundle::new(same()));
    assert!(!resumes(&client, &server, &|| plant.bundle.replace(same()).unwrap()));
    // The client's bundle, with a server that did not hear of it.
    let own = LiveBundle::new(same());
    let client = device_client_config(plant.client.clone(), own.clone());
    assert!(!resumes(&client, &server, &|| own.replace(same()).unwrap()));
    // The client's SVID: what it is from now on is what it shows (ID-091).
    let client = device_client_config(plant.client.clone(), LiveBundle::new(same()));
    let renew = || plant.client.replace(Plant::client_of(&plant.authority, system_now())).unwrap();
    assert!(!resumes(&client, &server, &renew));
    let (_, at_server, _) = join(&plant, client, server, now);
    assert_eq!(at_server.peer_certificates().unwrap(), plant.client.current().chain());
}

#[test]
fn id_112_another_server_or_another_start_opens_no_tickets() {
    let plant = Plant::new();
    let now = tickets::machine_now();
    let client = plant.client_config();
    join(&plant, client.clone(), plant.server_config(), now);
    let (_, at_server, _) = join(&plant, client, plant.server_config(), now);
    assert!(!is_resumed(&at_server));
}

#[test]
fn id_060_tls_1_2_is_refused() {
    let plant = Plant::new();
    let roots = rustls::RootCertStore::empty();
    let old = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let error = shake(Arc::new(old), plant.server_config(), "a.example").unwrap_err();
    assert!(matches!(error, rustls::Error::PeerIncompatible(_)), "{error:?}");
}

#[test]
fn id_063_h2_alone_is_refused() {
    let plant = Plant::new();
    let mut config = ClientConfig::clone(&plant.client_config());
    config.alpn_protocols = vec![b"h2".to_vec()];
    let error = shake(Arc::new(config), plant.server_config(), "a.example").unwrap_err();
    assert!(matches!(error, rustls::Error::NoApplicationProtocol), "{error:?}");
}

#[test]
fn id_064_a_client_without_certificate_is_refused_in_the_handshake() {
    let plant = Plant::new();
    let pin = crate::pin::pin_of(&plant.server.current().chain()[0]).unwrap();
    let error = shake(pinned_client_config(vec![pin]), plant.server_config(), "127.0.0.1").unwrap_err();
    assert!(matches!(error, rustls::Error::NoCertificatesPresented), "{error:?}");
}

#[test]
fn id_224_what_a_client_may_not_be() {
    let now = system_now();
    assert_eq!(check_client(|_| {}), Ok(()));
    check_refused("Expired", |forge| forge.valid(now, -7200, -60));
    check_refused("NotValidYet", |forge| forge.valid(now, 600, 3600));
    check_refused("SanCount(2)", |forge| forge.names(&[CLIENT, CLIENT]));
    check_refused("SanCount(0)", |forge| forge.names(&[]));
    check_refused("TrustDomain", |forge| forge.names(&["spiffe://other.example/margo/wfm/line-7/client/c"]));
    check_refused("WfmId", |forge| forge.names(&["spiffe://plant.example/margo/wfm/line-8/client/c"]));
    check_refused("IdForm", |forge| forge.names(&[SERVER]));
    check_refused("Leaf", |forge| forge.params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    check_refused("Leaf", |forge| forge.params.key_usages.clear());
    check_refused("Leaf", |forge| forge.params.key_usages = vec![KeyUsagePurpose::KeyCertSign]);
    check_refused("Chain", |forge| {
        let params = forge.params.clone();
        *forge = Forge::at(now, &rcgen::PKCS_ECDSA_P256_SHA256);
        forge.params = params;
    });
}

#[test]
fn id_051_other_kinds_of_keys_in_the_handshake() {
    assert_eq!(check_client(|forge| forge.key = &rcgen::PKCS_ECDSA_P384_SHA384), Ok(()));
    assert_eq!(check_client(|forge| forge.key = &rcgen::PKCS_ED25519), Ok(()));
    let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
    assert_eq!(check_client(|forge| forge.leaf_key(rsa(rcgen::RsaKeySize::_3072))), Ok(()));
    check_refused("RsaTooShort", |forge| forge.leaf_key(rsa(rcgen::RsaKeySize::_2048)));
    // Refused either as a key, or because no common signature scheme is left to present it with.
    assert!(check_client(|forge| forge.key = &rcgen::PKCS_ECDSA_P521_SHA512).is_err());
}

#[test]
fn id_100_the_client_takes_only_the_server_its_own_svid_names() {
    let plant = Plant::new();
    let code = |wfm: &str, authority: &Authority| {
        let other = authority.issue_server(&wfm.parse().unwrap(), system_now(), HOUR).unwrap();
        let config = device_server_config(LiveSvid::new(other), plant.bundle.clone());
        format!("{:?}", shake(plant.client_config(), config, "a.example").unwrap_err())
    };
    assert!(code("line-8", &plant.authority).contains("WfmId"));
    let stranger = Authority::create("plant.example".parse().unwrap(), system_now()).unwrap();
    assert!(code("line-7", &stranger).contains("Chain"));
    // A client in the place of the server.
    let config = device_server_config(plant.client.clone(), plant.bundle.clone());
    let error = format!("{:?}", shake(plant.client_config(), config, "a.example").unwrap_err());
    assert!(error.contains("IdForm"), "{error}");
}

#[test]
fn id_180_id_091_a_renewed_svid_is_presented_from_the_next_handshake_on() {
    let plant = Plant::new();
    let (client, server) = (plant.client_config(), plant.server_config());
    shake(client.clone(), server.clone(), "a.example").unwrap();
    let renewed = Plant::client_of(&plant.authority, system_now());
    let leaf = renewed.chain()[0].clone();
    plant.client.replace(renewed).unwrap();
    let other = plant.authority.issue_server(&"line-7".parse().unwrap(), system_now(), HOUR).unwrap();
    let server_leaf = other.chain()[0].clone();
    plant.server.replace(other).unwrap();
    let (at_client, at_server) = shake(client, server, "a.example").unwrap();
    assert_eq!(at_server.peer_certificates().unwrap()[0], leaf);
    assert_eq!(at_client.peer_certificates().unwrap()[0], server_leaf);
}

#[test]
fn id_172_a_renewal_keeps_the_name() {
    let plant = Plant::new();
    let other = plant.authority.issue_server(&"line-8".parse().unwrap(), system_now(), HOUR).unwrap();
    assert!(plant.server.replace(other).is_err());
    assert_eq!(plant.server.current().server_name().wfm.as_str(), "line-7");
}

#[test]
fn id_142_a_replaced_bundle_counts_from_the_next_handshake_on() {
    let plant = Plant::new();
    let server = plant.server_config();
    // The client keeps trusting the old anchor, the server no longer does.
    let client =
        device_client_config(plant.client.clone(), LiveBundle::new((*plant.bundle.current()).clone()));
    shake(client.clone(), server.clone(), "a.example").unwrap();
    let new = Authority::create("plant.example".parse().unwrap(), system_now()).unwrap();
    plant.bundle.replace(Bundle::of_anchor(new.trust_domain().clone(), new.anchor(), 2, HOUR)).unwrap();
    let error = format!("{:?}", shake(client, server, "a.example").unwrap_err());
    assert!(error.contains("Chain"), "{error}");
    let foreign = Authority::create("other.example".parse().unwrap(), system_now()).unwrap();
    let bundle = Bundle::of_anchor(foreign.trust_domain().clone(), foreign.anchor(), 3, HOUR);
    assert!(plant.bundle.replace(bundle).is_err());
}

fn web() -> (WebAuthority, Arc<LiveWebLeaf>) {
    let authority = WebAuthority::create(system_now()).unwrap();
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let leaf = authority.issue(&names, system_now(), HOUR).unwrap();
    (authority, LiveWebLeaf::new(leaf))
}

#[test]
fn id_161_a_pinned_authority_is_accepted_and_names_count_only_as_names() {
    let (authority, leaf) = web();
    let client = pinned_client_config(vec![authority.pin()]);
    for name in ["localhost", "127.0.0.1", "10.1.2.3"] {
        shake(client.clone(), web_server_config(leaf.clone()), name).unwrap();
    }
    let error = shake(client, web_server_config(leaf), "other.example").unwrap_err();
    assert!(matches!(error, rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidForName)));
}

#[test]
fn id_162_a_pin_of_the_leaf_itself_is_accepted() {
    let (_, leaf) = web();
    let pin = crate::pin::pin_of(&leaf.current().chain()[0]).unwrap();
    shake(pinned_client_config(vec![pin]), web_server_config(leaf), "localhost").unwrap();
}

#[test]
fn id_161_a_wrong_pin_and_no_pin_are_refused() {
    let (_, leaf) = web();
    for pins in [vec![WebAuthority::create(system_now()).unwrap().pin()], Vec::new()] {
        let error =
            shake(pinned_client_config(pins), web_server_config(leaf.clone()), "localhost").unwrap_err();
        assert!(format!("{error:?}").contains("NoMatch"), "{error:?}");
    }
}

#[test]
fn id_161_presenting_the_pinned_certificate_without_its_signature_is_not_enough() {
    let (real, _) = web();
    let (_, fake) = web();
    let mut chain = fake.current().chain().to_vec();
    let real_leaf = real.issue(&["localhost".to_owned()], system_now(), HOUR).unwrap();
    chain[1] = real_leaf.chain()[1].clone();
    let pem: String = chain.iter().map(crate::certificate::pem_of).collect();
    let forged = WebLeaf::from_pem(&pem, &fake.current().key_pem()).unwrap();
    let server = web_server_config(LiveWebLeaf::new(forged));
    let error = shake(pinned_client_config(vec![real.pin()]), server, "localhost").unwrap_err();
    assert!(format!("{error:?}").contains("Chain"), "{error:?}");
}

#[test]
fn id_161_validity_applies_to_pinned_servers_too() {
    let long_ago = Moment(system_now().0 - 48 * 3_600_000);
    let authority = WebAuthority::create(long_ago).unwrap();
    let leaf = authority.issue(&["localhost".to_owned()], long_ago, HOUR).unwrap();
    for pin in [authority.pin(), crate::pin::pin_of(&leaf.chain()[0]).unwrap()] {
        let server = web_server_config(LiveWebLeaf::new(leaf.clone()));
        let error = shake(pinned_client_config(vec![pin]), server, "localhost").unwrap_err();
        assert!(format!("{error:?}").contains("Expired"), "{error:?}");
    }
}

#[test]
fn the_web_certificate_is_replaced_while_the_listener_runs() {
    let (authority, leaf) = web();
    let (client, server) = (pinned_client_config(vec![authority.pin()]), web_server_config(leaf.clone()));
    shake(client.clone(), server.clone(), "localhost").unwrap();
    let next = authority.issue(&["localhost".to_owned()], system_now(), HOUR).unwrap();
    let expected = next.chain()[0].clone();
    leaf.replace(next);
    // A new client, so that nothing is resumed.
    let client = pinned_client_config(vec![authority.pin()]);
    let (at_client, _) = shake(client, server, "localhost").unwrap();
    assert_eq!(at_client.peer_certificates().unwrap()[0], expected);
}

#[test]
fn id_165_the_two_trust_stores_never_stand_in_for_each_other() {
    let plant = Plant::new();
    let (web_authority, leaf) = web();
    // The device interface with a web certificate.
    assert!(shake(plant.client_config(), web_server_config(leaf), "localhost").is_err());
    // The web pin against the device listener.
    let error = shake(pinned_client_config(vec![web_authority.pin()]), plant.server_config(), "127.0.0.1")
        .unwrap_err();
    assert!(format!("{error:?}").contains("NoMatch"), "{error:?}");
}
