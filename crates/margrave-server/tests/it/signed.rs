//! The signed device interface (g1) over real sockets, and that it and the other one (g2) never meet.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_core::digest::Digest;
use margrave_identity::key::PrivateKey;
use margrave_server::fleet::Accept;
use margrave_server::{Config, Server, SignedConfig, StartError};
use margrave_wire::Dialect;
use margrave_wire::operator::{AcceptCertificate, PutDeployment, Targets};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::line::Line;
use crate::plant::{Plant, config, operator};
use crate::signer::{Foreign, ONBOARDING, Request, line, wish};
use crate::stock;

const MANIFEST: &str = "/api/v1/deployments";

/// A server that lets everybody in.
async fn open() -> Plant {
    Plant::signed(|signed| signed.accept = Accept::Any).await
}

async fn deploy(plant: &Plant, name: &str, devices: &[&str]) {
    let want = PutDeployment {
        package: "gate".to_owned(),
        version: None,
        profile: None,
        parameters: [("owner".to_owned(), json!("me"))].into(),
        targets: Targets {
            devices: devices.iter().map(ToString::to_string).collect(),
            labels: Default::default(),
            ..Default::default()
        },
        rollback: None,
        strategy: None,
        revision: None,
        ..Default::default()
    };
    plant.server.fleet().put_deployment(&operator(), &name.parse().unwrap(), want).await.unwrap();
}

fn first<'a>(manifest: &'a Value, member: &str) -> &'a str {
    manifest["deployments"][0][member].as_str().unwrap()
}

/// The state of a deployment on a device, if it speaks of what is wanted now.
async fn state(plant: &Plant, device: &str, deployment: &str) -> Option<String> {
    let shown = plant.server.fleet().device(&device.parse().unwrap()).await.unwrap();
    let found = shown.assignments.into_iter().find(|found| found.deployment == deployment)?;
    found.current.then_some(found.state)
}

#[tokio::test]
async fn mi_g1_020_from_onboarding_to_a_report() {
    let plant = open().await;
    stock::gate(&plant).await;
    let press = Foreign::known(&plant, "press-7").await;
    let empty = press.manifest(&plant).await;
    assert_eq!(empty, json!({"bundle": null, "deployments": [], "manifestVersion": 1}));
    deploy(&plant, "north", &["press-7"]).await;

    let reply = press.get(&plant, press.path("deployments")).await;
    assert_eq!(reply.header("content-type"), "application/vnd.margo.manifest.v1+json");
    assert_eq!(reply.header("etag"), format!("\"{}\"", Digest::of(&reply.body)));
    assert!(!reply.header("cache-control").contains("immutable"), "MI-G1-094");
    let etag = reply.header("etag").to_owned();
    let unchanged = Request::new("GET", press.path("deployments"), None).header("if-none-match", &etag);
    press.send(&plant, unchanged).await.is(304);
    let manifest: Value = reply.json();
    let digest = first(&manifest, "digest");
    assert_eq!(
        first(&manifest, "url"),
        press.path(&format!("deployments/{}/{digest}", first(&manifest, "deploymentId")))
    );
    let document = press.get(&plant, first(&manifest, "url")).await;
    assert_eq!(document.is(200).header("content-type"), "application/yaml");
    assert_eq!(Digest::of(&document.body).to_string(), digest, "MI-G1-090");
    let text = String::from_utf8(document.body.to_vec()).unwrap();
    assert!(text.contains("annotations:") && text.contains(first(&manifest, "deploymentId")), "{text}");
    let bundle = press.get(&plant, manifest["bundle"]["url"].as_str().unwrap()).await;
    assert_eq!(Digest::of(&bundle.is(200).body).to_string(), manifest["bundle"]["digest"]);

    let id = first(&manifest, "deploymentId");
    press.report(&plant, id, "installing").await.is(200);
    press.report(&plant, id, "installed").await.is(200);
    assert_eq!(state(&plant, "press-7", "north").await.as_deref(), Some("INSTALLED"));
    let shown = plant.server.fleet().device(&"press-7".parse().unwrap()).await.unwrap();
    assert_eq!((shown.form.as_str(), shown.condition.as_str()), ("g1", "converged"));
}

#[tokio::test]
async fn amb_02_a_certificate_is_taken_in_every_encoding_and_is_the_same_client() {
    let plant = open().await;
    let mut press = Foreign::new(&plant, "press");
    press.onboard(&plant).await.is(201);
    let (pem, der) = (press.certificate.pem(), press.certificate.der().to_vec());
    for text in [pem.clone(), STANDARD.encode(&pem), STANDARD.encode(&der)] {
        let answer: Value = press.onboard_as(&plant, text).await.is(201).json();
        assert_eq!(answer["clientId"], press.client.as_ref().unwrap().as_str());
        assert_eq!(answer["client_id"], answer["clientId"], "the oldest clients read this one");
    }
    // The oldest clients write it otherwise, too.
    let oldest = json!({"public_certificate": STANDARD.encode(&pem)}).to_string().into_bytes();
    press.send(&plant, Request::new("POST", ONBOARDING, Some(oldest))).await.is(201);
    let shown = plant.server.fleet().signed_clients(None).unwrap();
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].address.as_deref(), Some("127.0.0.1"));
    for bad in ["", "x", "-----BEGIN CERTIFICATE-----", "AAAA"] {
        let reply = press.onboard_as(&plant, bad.to_owned()).await;
        let answer: Value = reply.is(400).json();
        assert_eq!(answer["error"], "Invalid certificate", "{bad}");
    }
}

#[tokio::test]
async fn mi_g1_030_who_waits_or_was_rejected_is_403_and_who_is_accepted_gets_the_id_of_the_first_time() {
    let plant = Plant::signed(|_| {}).await;
    let fleet = plant.server.fleet();
    let mut press = Foreign::new(&plant, "press");
    for _ in 0..2 {
        let answer: Value = press.onboard(&plant).await.is(403).json();
        assert_eq!(answer["error"], "Client rejected");
    }
    let waiting = fleet.signed_clients(Some("pending")).unwrap().remove(0);
    // An id that somebody guesses or overhears is no way in before the decision.
    press.client = Some(waiting.client.parse().unwrap());
    press.get(&plant, press.path("deployments")).await.is(403);
    let id = waiting.client.parse().unwrap();
    fleet.reject(&operator(), &id).await.unwrap();
    press.onboard(&plant).await.is(403);
    press.get(&plant, press.path("deployments")).await.is(403);
    fleet.accept(&operator(), &id).await.unwrap();
    let answer: Value = press.onboard(&plant).await.is(201).json();
    assert_eq!(answer["clientId"], waiting.client);
    press.manifest(&plant).await;

    // A certificate that an operator brought is let in when it first asks (MI-G1-031).
    let mut other = Foreign::new(&plant, "other");
    let brought = AcceptCertificate { certificate: other.certificate.pem() };
    let brought = fleet.accept_certificate(&operator(), brought).await.unwrap();
    let answer: Value = other.onboard(&plant).await.is(201).json();
    assert_eq!(answer["clientId"], brought.client);
}

#[tokio::test]
async fn mi_g1_011_certificates_of_a_trusted_maker_are_let_in_at_once() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let maker_key = KeyPair::generate().unwrap();
    let mut maker = CertificateParams::new(Vec::new()).unwrap();
    maker.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    maker.distinguished_name.push(rcgen::DnType::CommonName, "Maker of presses");
    let root = maker.self_signed(&maker_key).unwrap();
    let issuer = Issuer::new(maker, maker_key);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("makers.pem");
    std::fs::write(&file, root.pem()).unwrap();
    let plant = Plant::signed(|signed| signed.trust = Some(file)).await;

    let key = PrivateKey::generate().unwrap();
    let pair = KeyPair::from_pem(&key.to_pem()).unwrap();
    let made = CertificateParams::new(Vec::new()).unwrap().signed_by(&pair, &issuer).unwrap();
    let press = Foreign::with_key(&plant, "press", &key);
    press.onboard_as(&plant, made.pem()).await.is(201);
    Foreign::new(&plant, "stranger").onboard(&plant).await.is(403);
    assert_eq!(plant.server.fleet().signed_clients(Some("pending")).unwrap().len(), 1);
}

#[tokio::test]
async fn amb_03_onboarding_without_a_signature_is_taken_only_where_it_was_allowed() {
    for allowed in [false, true] {
        let plant = Plant::signed(|signed| {
            signed.accept = Accept::Any;
            signed.unsigned_onboarding = allowed;
        })
        .await;
        let mut press = Foreign::new(&plant, "press");
        let body = wish(press.certificate.pem());
        let headers = [("content-type", "application/json")];
        let reply = line(&plant).await.send("POST", ONBOARDING, &headers, body).await.unwrap();
        assert_eq!(reply.status == 201, allowed, "{}", reply.status);
        assert!(allowed || matches!(reply.status.as_u16(), 400 | 401), "{}", reply.status);
        press.onboard(&plant).await.is(201);
        // Nothing else is ever done without one.
        let path = press.path("deployments");
        let reply = line(&plant).await.get(&path).await.unwrap();
        assert!(matches!(reply.status.as_u16(), 400 | 401), "{}", reply.status);
    }
}

#[tokio::test]
async fn mi_g1_064_what_was_not_signed_so_by_this_client_is_refused() {
    let plant = open().await;
    let press = Foreign::known(&plant, "press").await;
    let other = Foreign::known(&plant, "other").await;
    let poll = || Request::new("GET", press.path("deployments"), None);
    press.send(&plant, poll()).await.is(200);
    // As the standard's text signs.
    let mut standard = poll();
    (standard.label, standard.covered) = ("sig1", vec!["@method", "@target-uri"]);
    press.send(&plant, standard).await.is(200);

    // Somebody else's key for this client's path; a path of nobody.
    other.send(&plant, poll()).await.is(401);
    let nobody = "/api/v1/clients/0b3f6f0e-58a5-4a0e-9a0b-0f6f2f9f4a11/deployments";
    other.send(&plant, Request::new("GET", nobody, None)).await.is(404);
    // Signed for another path, another host, another scheme.
    for target in [
        format!("{}{}", press.url, other.path("deployments")),
        format!("https://elsewhere.example{}", press.path("deployments")),
        format!("http{}{}", press.url.strip_prefix("https").unwrap(), press.path("deployments")),
    ] {
        press.send(&plant, Request { target: Some(target), ..poll() }).await.is(401);
    }
    // Too old, too new, nearly (MI-G1-065).
    for (created, status) in [(-3600, 401), (-310, 401), (3600, 401), (-240, 200), (30, 200)] {
        press.send(&plant, Request { created, ..poll() }).await.is(status);
    }
    // Not everything covered that has to be (MI-G1-068).
    for covered in [vec!["@method"], vec!["@target-uri"], vec![]] {
        press.send(&plant, Request { covered, ..poll() }).await.is(400);
    }
    let sealed = press.seal(&poll());
    for missing in ["signature", "signature-input"] {
        let mut cut = sealed.clone();
        cut.headers.retain(|(name, _)| name != missing);
        let status = cut.send(&mut line(&plant).await).await.status.as_u16();
        assert!(matches!(status, 400 | 401), "{missing}: {status}");
    }
}

#[tokio::test]
async fn mi_g1_066_a_body_is_what_its_digest_says_or_400() {
    let plant = open().await;
    let press = Foreign::known(&plant, "press").await;
    let fleet = plant.server.fleet();
    let known = || async { fleet.device(&"press".parse().unwrap()).await.unwrap().capabilities };
    let before = known().await;
    let right = press.capabilities_request("press");
    let mut changed = right.body.clone().unwrap();
    let at = changed.windows(7).position(|part| part == b"Foreign").unwrap();
    changed[at] = b'f';
    // Another body under the digest and signature of the first; the digest of another body.
    let mut sealed = press.seal(&right);
    sealed.body = changed.clone();
    sealed.send(&mut line(&plant).await).await.is(400);
    press.send(&plant, Request { digest_of: Some(changed), ..right.clone() }).await.is(400);
    // No digest at all; a digest that the signature does not cover.
    let mut sealed = press.seal(&right);
    sealed.headers.retain(|(name, _)| name != "content-digest");
    sealed.send(&mut line(&plant).await).await.is(400);
    let covered = vec!["@method", "@target-uri", "@authority"];
    press.send(&plant, Request { covered, ..right.clone() }).await.is(400);
    // Right in every way, and not what can be: 422.
    let mut body: Value = serde_json::from_slice(right.body.as_ref().unwrap()).unwrap();
    body["properties"]["id"] = "other".into();
    let wrong = Request { body: Some(body.to_string().into_bytes()), ..right.clone() };
    press.send(&plant, wrong).await.is(422);
    // Larger than anything a device has to say.
    let huge = Request { body: Some(vec![b' '; 300 * 1024]), ..right };
    press.send(&plant, huge).await.is(413);
    assert_eq!(known().await, before);
}

#[tokio::test]
async fn a_body_that_is_cut_off_changes_nothing() {
    let plant = Plant::signed(|signed| {
        (signed.accept, signed.plain) = (Accept::Any, true);
    })
    .await;
    let address = plant.server.addresses().signed.unwrap();
    let mut press = Foreign::new(&plant, "press");
    let sealed = press.seal(&Request::new("POST", ONBOARDING, Some(wish(press.certificate.pem()))));
    let reply = sealed.send(&mut Line::plain(address).await).await;
    let answer: Value = reply.is(201).json();
    press.client = Some(answer["clientId"].as_str().unwrap().parse().unwrap());
    let sealed = press.seal(&press.capabilities_request("press"));
    let mut head = format!(
        "PUT {} HTTP/1.1\r\ncontent-length: {}\r\n",
        press.path("capabilities/press"),
        sealed.body.len()
    );
    for (name, value) in &sealed.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    stream.write_all(&sealed.body[..sealed.body.len() / 2]).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    let missing = plant.server.fleet().device(&"press".parse().unwrap()).await;
    assert!(missing.is_err(), "nobody of that name was heard of");
    sealed.send(&mut Line::plain(address).await).await.is(201);
}

#[tokio::test]
async fn a_request_that_was_overheard_is_worth_nothing() {
    let plant = open().await;
    stock::gate(&plant).await;
    let press = Foreign::known(&plant, "press").await;
    deploy(&plant, "north", &["press"]).await;
    let manifest = press.manifest(&plant).await;
    let id = first(&manifest, "deploymentId");
    let installing = press.seal(&press.report_request(id, "installing"));
    installing.send(&mut line(&plant).await).await.is(200);
    press.report(&plant, id, "installed").await.is(200);
    // Sent again by somebody on the way, it would move the state back.
    installing.send(&mut line(&plant).await).await.is(401);
    assert_eq!(state(&plant, "press", "north").await.as_deref(), Some("INSTALLED"));
    // Said again by the device itself, it is a report like any other, and answered alike.
    press.report(&plant, id, "installed").await.is(200);
    assert_eq!(state(&plant, "press", "north").await.as_deref(), Some("INSTALLED"));
}

#[tokio::test]
async fn a_report_counts_for_the_manifest_that_was_given_before_it_also_after_a_restart() {
    let plant = open().await;
    stock::gate(&plant).await;
    let mut press = Foreign::known(&plant, "press").await;
    deploy(&plant, "north", &["press"]).await;
    let manifest = press.manifest(&plant).await;
    let id = first(&manifest, "deploymentId").to_owned();
    // The port is another one after the restart, and so is what is signed.
    let plant = plant.restart().await;
    press.url = plant.server.signed_urls()[0].clone();
    press.report(&plant, &id, "installed").await.is(200);
    assert_eq!(state(&plant, "press", "north").await.as_deref(), Some("INSTALLED"));
    // A change that it has not fetched yet is not what it speaks of.
    let want = PutDeployment {
        package: "gate".to_owned(),
        version: None,
        profile: None,
        parameters: [("owner".to_owned(), json!("you"))].into(),
        targets: Targets {
            devices: vec!["press".to_owned()],
            labels: Default::default(),
            ..Default::default()
        },
        rollback: None,
        strategy: None,
        revision: None,
        ..Default::default()
    };
    plant.server.fleet().put_deployment(&operator(), &"north".parse().unwrap(), want).await.unwrap();
    press.report(&plant, &id, "installed").await.is(200);
    assert_eq!(state(&plant, "press", "north").await, None);
    press.manifest(&plant).await;
    press.report(&plant, &id, "installed").await.is(200);
    assert_eq!(state(&plant, "press", "north").await.as_deref(), Some("INSTALLED"));
}

#[tokio::test]
async fn mi_g1_065_a_report_that_was_signed_earlier_moves_nothing_back() {
    let plant = open().await;
    stock::gate(&plant).await;
    let press = Foreign::known(&plant, "press").await;
    deploy(&plant, "north", &["press"]).await;
    let manifest = press.manifest(&plant).await;
    let id = first(&manifest, "deploymentId");
    let installing = press.report_request(id, "installing");
    press.report(&plant, id, "installed").await.is(200);
    press.send(&plant, Request { created: -30, ..installing }).await.is(200);
    assert_eq!(state(&plant, "press", "north").await.as_deref(), Some("INSTALLED"));
}

#[tokio::test]
async fn a_late_word_about_what_is_gone_is_taken() {
    let plant = open().await;
    stock::gate(&plant).await;
    let press = Foreign::known(&plant, "press").await;
    deploy(&plant, "north", &["press"]).await;
    let manifest = press.manifest(&plant).await;
    let id = first(&manifest, "deploymentId");
    press.report(&plant, id, "installed").await.is(200);
    plant.server.fleet().remove_deployment(&operator(), &"north".parse().unwrap(), None).await.unwrap();
    assert_eq!(press.manifest(&plant).await["deployments"], json!([]));
    press.report(&plant, id, "removing").await.is(200);
    press.report(&plant, id, "removed").await.is(200);
    press.report(&plant, id, "removed").await.is(200);
    let shown = plant.server.fleet().device(&"press".parse().unwrap()).await.unwrap();
    assert!(shown.assignments.is_empty());
}

#[tokio::test]
async fn prefer_wait_is_answered_when_the_manifest_changes() {
    let plant = Arc::new(open().await);
    stock::gate(&plant).await;
    let press = Arc::new(Foreign::known(&plant, "press").await);
    let reply = press.get(&plant, press.path("deployments")).await;
    let etag = reply.header("etag").to_owned();
    let (holding, device) = (Arc::clone(&plant), Arc::clone(&press));
    let held = tokio::spawn(async move {
        let poll = Request::new("GET", device.path("deployments"), None);
        let poll = poll.header("if-none-match", &etag).header("prefer", "wait=30");
        device.send(&holding, poll).await
    });
    deploy(&plant, "north", &["press"]).await;
    let reply = held.await.unwrap();
    assert_eq!(reply.is(200).json::<Value>()["manifestVersion"], 2);
}

#[tokio::test]
async fn the_two_interfaces_never_meet() {
    let plant = open().await;
    stock::gate(&plant).await;
    let press = Foreign::known(&plant, "press").await;
    let device = plant.join("line-1").await;
    let mut mutual = device.line(&plant).await;
    // Mutual TLS, old paths: there is no such thing.
    for (method, path) in [
        ("GET", "/api/v1/onboarding/certificate".to_owned()),
        ("POST", ONBOARDING.to_owned()),
        ("GET", press.path("deployments")),
        ("PUT", press.path("capabilities/press")),
        ("GET", "/api/v1/clients/line-1/deployments".to_owned()),
    ] {
        let reply = mutual.send(method, &path, &[], "").await.unwrap();
        assert_eq!(reply.is(404).json::<Value>()["type"], "about:blank", "{path}");
    }
    // Mutual TLS and garbage that looks like signatures: served as ever.
    let garbage = [("signature", "sig1=:AAAA:"), ("signature-input", "((("), ("content-digest", "x")];
    mutual.send("GET", MANIFEST, &garbage, "").await.unwrap().is(200);
    // The signed listener, new paths, rightly signed: there is no such thing.
    for path in [MANIFEST, "/api/v1/capabilities/press", "/api/v1/bundles/sha256:0", "/", "/devices"] {
        press.get(&plant, path).await.is(404);
    }
    // And what the page's listener has is not here either.
    let mut signed = line(&plant).await;
    for path in ["/api/operator/v1/status", "/.well-known/margo", "/v2/"] {
        signed.get(path).await.unwrap().is(404);
    }
    // Headers by which a proxy would name a client mean nothing.
    let headers =
        [("client-cert", ":AAAA:"), ("client-cert-chain", ":AAAA:"), ("x-forwarded-client-cert", "x")];
    let reply = signed.send("GET", &press.path("deployments"), &headers, "").await.unwrap();
    assert!(matches!(reply.status.as_u16(), 400 | 401), "{}", reply.status);
}

#[tokio::test]
async fn a_key_that_is_also_an_svid_key_has_no_rights_of_the_svid() {
    let plant = open().await;
    stock::gate(&plant).await;
    let device = plant.join("line-1").await;
    device.line(&plant).await.get(MANIFEST).await.unwrap().is(200);
    let mut both = Foreign::with_key(&plant, "line-1", device.svid.current().key());
    both.onboard(&plant).await.is(201);
    let own = both.client.clone().unwrap();
    assert_ne!(own.as_str(), "line-1");
    both.capabilities(&plant, "line-1").await.is(201);
    // Its SPIFFE name in the path is nobody here.
    both.client = Some("line-1".parse().unwrap());
    both.get(&plant, both.path("deployments")).await.is(404);
    // Two devices of one name, of two clients; what is done to one is not done to the other.
    let fleet = plant.server.fleet();
    let shown = fleet.device(&"line-1".parse().unwrap()).await.unwrap();
    assert_eq!((shown.client.as_str(), shown.form.as_str()), ("line-1", "g2"));
    let shown = fleet.device(&format!("{own}:line-1").parse().unwrap()).await.unwrap();
    assert_eq!(shown.form, "g1");
    fleet.retire(&operator(), &format!("{own}:line-1").parse().unwrap()).await.unwrap();
    device.line(&plant).await.get(MANIFEST).await.unwrap().is(200);
}

#[tokio::test]
async fn an_svid_with_the_name_of_a_signed_client_is_nobody() {
    let plant = open().await;
    let press = Foreign::known(&plant, "press").await;
    let id = press.client.as_ref().unwrap();
    let key = PrivateKey::generate().unwrap();
    let name = format!("spiffe://plant.example/margo/wfm/line-7/client/{id}");
    let chain = vec![crate::forge::certificate(plant.data.path(), &[&name], &key)];
    let mut line = plant.device_line(crate::forge::rogue(Some((chain, &key)))).await.unwrap();
    line.get(MANIFEST).await.unwrap().is_problem(403);
    let token = margrave_wire::operator::CreateJoinToken {
        git: false,
        device: Some(id.to_string()),
        labels: Default::default(),
        valid_seconds: None,
    };
    assert!(plant.server.fleet().create_join_token(&operator(), token).await.is_err());
}

#[tokio::test]
async fn clients_see_only_what_is_theirs() {
    let plant = open().await;
    stock::gate(&plant).await;
    // The same name twice: two records, each of its own client.
    let one = Foreign::known(&plant, "press").await;
    let two = Foreign::known(&plant, "press").await;
    let name = |foreign: &Foreign| format!("{}:press", foreign.client.as_ref().unwrap());
    stock::device(&plant, "line-1", 4).await;
    deploy(&plant, "north", &[&name(&one), "line-1"]).await;
    let manifest = one.manifest(&plant).await;
    assert_eq!(two.manifest(&plant).await["deployments"], json!([]));
    let bundle = manifest["bundle"]["digest"].as_str().unwrap();
    one.get(&plant, one.path(&format!("bundles/{bundle}"))).await.is(200);
    let reply = two.get(&plant, two.path(&format!("bundles/{bundle}"))).await;
    let problem: Value = reply.is(404).json();
    assert!(problem["type"].as_str().unwrap().ends_with("invalid-bundle"), "{problem}");
    let (id, digest) = (first(&manifest, "deploymentId"), first(&manifest, "digest"));
    two.get(&plant, two.path(&format!("deployments/{id}/{digest}"))).await.is(404);
    two.report(&plant, id, "installed").await.is(422);
    // The same deployment in the other form: digests of what that one is served, and another manifest.
    let other = plant.server.fleet().manifest(&"line-1".parse().unwrap(), Dialect::Miaf).unwrap();
    let own = plant.server.fleet().manifest(one.client.as_ref().unwrap(), Dialect::Signed).unwrap();
    assert_ne!(other.etag, own.etag);
    assert!(!String::from_utf8_lossy(&other.body).contains("clients"));
}

#[tokio::test]
async fn a_client_that_is_put_out_is_out_on_an_open_connection_too() {
    let plant = open().await;
    let press = Foreign::known(&plant, "press").await;
    let poll = || press.seal(&Request::new("GET", press.path("deployments"), None));
    let mut open = line(&plant).await;
    poll().send(&mut open).await.is(200);
    plant.server.fleet().retire(&operator(), &"press".parse().unwrap()).await.unwrap();
    poll().send(&mut open).await.is(403);
    press.capabilities(&plant, "press").await.is(403);
    plant.server.fleet().accept(&operator(), &"press".parse().unwrap()).await.unwrap();
    poll().send(&mut open).await.is(200);
}

#[tokio::test]
async fn a_moved_device_goes_on_under_its_new_name_and_the_old_credential_is_refused() {
    let plant = open().await;
    stock::gate(&plant).await;
    let press = Foreign::known(&plant, "press").await;
    deploy(&plant, "north", &["press"]).await;
    press.manifest(&plant).await;
    let device = plant.join("press-new").await;
    stock::capabilities(&plant, &device.client, "press-new", 4).await;
    let (from, to) = ("press".parse().unwrap(), "press-new".parse().unwrap());
    let moved = plant.server.fleet().move_device(&operator(), &from, &to).await.unwrap();
    assert_eq!(moved.assignments.len(), 1);
    press.get(&plant, press.path("deployments")).await.is(403);
    let manifest: Value = device.line(&plant).await.get(MANIFEST).await.unwrap().is(200).json();
    assert_eq!(manifest["deployments"].as_array().unwrap().len(), 1);
    assert_eq!(manifest["manifestVersion"], 2, "a sequence of its own, from 1");
}

#[tokio::test]
async fn mi_g1_025_the_root_that_is_handed_out_is_the_root_of_the_listener() {
    let plant = open().await;
    let answer: Value =
        line(&plant).await.get("/api/v1/onboarding/certificate").await.unwrap().is(200).json();
    let pem = STANDARD.decode(answer["certificate"].as_str().unwrap()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut line = Line::open(plant.server.addresses().signed.unwrap(), Arc::new(tls)).await.unwrap();
    line.get("/api/v1/onboarding/certificate").await.unwrap().is(200);
}

#[tokio::test]
async fn mi_g1_069_behind_a_proxy_the_address_that_clients_sign_is_the_configured_one() {
    let plant = Plant::signed(|signed| {
        (signed.accept, signed.plain) = (Accept::Any, true);
        signed.urls = vec!["https://fleet.example/margo".to_owned(), "https://10.1.2.3:8446".to_owned()];
    })
    .await;
    let address = plant.server.addresses().signed.unwrap();
    assert_eq!(plant.server.signed_urls(), ["https://fleet.example/margo", "https://10.1.2.3:8446"]);
    // The proxy may hand on the host that it was asked for, or its own idea of one.
    for (url, host) in [
        ("https://fleet.example/margo", "fleet.example"),
        ("https://fleet.example/margo", "backend:8080"),
        ("https://10.1.2.3:8446", "10.1.2.3:8446"),
    ] {
        let mut press = Foreign::new(&plant, "press");
        press.url = url.to_owned();
        let mut request = Request::new("POST", ONBOARDING, Some(wish(press.certificate.pem())));
        request.covered = vec!["@method", "@target-uri", "content-digest"];
        let request = request.header("host", host);
        press.seal(&request).send(&mut Line::plain(address).await).await.is(201);
        let elsewhere = Request { target: Some(format!("https://elsewhere.example{ONBOARDING}")), ..request };
        press.seal(&elsewhere).send(&mut Line::plain(address).await).await.is(401);
    }
}

#[tokio::test]
async fn what_is_configured_wrongly_keeps_the_server_from_starting() {
    let start = async |change: &dyn Fn(&mut SignedConfig)| {
        let data = tempfile::tempdir().unwrap();
        let mut signed = SignedConfig::new("127.0.0.1:0".parse().unwrap());
        change(&mut signed);
        let config = Config { signed: Some(signed), ..config(data.path()) };
        match Server::start(config).await {
            Ok(server) => {
                server.stop().await;
                None
            }
            Err(error) => Some(error),
        }
    };
    let anywhere = "0.0.0.0:0".parse().unwrap();
    let plain = start(&|signed| (signed.listen, signed.plain) = (anywhere, true)).await;
    assert!(matches!(plain, Some(StartError::SignedPlain(_))), "{plain:?}");
    let url = start(&|signed| signed.urls = vec!["fleet.example".to_owned()]).await;
    assert!(matches!(url, Some(StartError::SignedUrl(_))), "{url:?}");
    let missing = start(&|signed| signed.trust = Some("/nowhere/makers.pem".into())).await;
    assert!(matches!(missing, Some(StartError::Data { .. })), "{missing:?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "no certificate").unwrap();
    let empty = start(&|signed| signed.trust = Some(file.path().to_owned())).await;
    assert!(matches!(empty, Some(StartError::SignedTrust { .. })), "{empty:?}");
    let behind_a_proxy = start(&|signed| {
        (signed.listen, signed.plain) = (anywhere, true);
        signed.urls = vec!["https://fleet.example".to_owned()];
    })
    .await;
    assert!(behind_a_proxy.is_none(), "{behind_a_proxy:?}");
}

#[tokio::test]
async fn the_window_is_what_was_configured() {
    let plant = Plant::signed(|signed| {
        (signed.accept, signed.window) = (Accept::Any, Duration::from_secs(20));
    })
    .await;
    let press = Foreign::known(&plant, "press").await;
    for (created, status) in [(-5, 200), (-40, 401)] {
        let poll = Request { created, ..Request::new("GET", press.path("deployments"), None) };
        press.send(&plant, poll).await.is(status);
    }
}

#[tokio::test]
async fn without_the_switch_there_is_no_signed_listener() {
    let plant = Plant::new().await;
    assert_eq!(plant.server.addresses().signed, None);
    assert!(plant.server.signed_urls().is_empty());
}
