//! Rules of the signed interface that show only in a whole server: its transport, its manifests over time, what it
//! remembers, and how much of it one client may have.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use margrave_core::digest::Digest;
use margrave_core::manifest::{Blob, Entry};
use margrave_server::fleet::Accept;
use margrave_wire::bundle;
use margrave_wire::operator::{PutDeployment, Targets};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme, SupportedProtocolVersion};
use serde_json::{Value, json};

use crate::line::{DEADLINE, Line};
use crate::plant::{Plant, operator};
use crate::signer::{Foreign, ONBOARDING, Request, line, wish};
use crate::stock;

const ROOT: &str = "/api/v1/onboarding/certificate";

async fn open() -> Plant {
    Plant::signed(|signed| signed.accept = Accept::Any).await
}

async fn deploy(plant: &Plant, name: &str, owner: &str, devices: &[&str]) {
    let want = PutDeployment {
        package: "gate".to_owned(),
        version: None,
        profile: None,
        parameters: [("owner".to_owned(), json!(owner))].into(),
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

/// Says whether a server asked for a certificate; has none.
#[derive(Debug, Default)]
struct Asked(AtomicBool);

impl ResolvesClientCert for Asked {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn mi_g1_003_004_007_the_listener_speaks_http_1_1_over_tls_1_3_and_asks_for_no_certificate() {
    let plant = open().await;
    let address = plant.server.addresses().signed.unwrap();
    let root = plant.data.path().join("identity/web-authority.crt");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(root).unwrap()).unwrap();
    let asked = Arc::new(Asked::default());
    let tls = |version: &'static SupportedProtocolVersion, protocol: &str| {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_client_cert_resolver(Arc::clone(&asked) as Arc<dyn ResolvesClientCert>);
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Arc::new(config)
    };
    let mut line = Line::open(address, tls(&rustls::version::TLS13, "http/1.1")).await.unwrap();
    line.get(ROOT).await.unwrap().is(200);
    assert!(!asked.0.load(Ordering::Relaxed), "clients show who they are in what they sign");
    assert!(!line.peer.is_empty(), "the server shows a certificate");
    assert!(Line::open(address, tls(&rustls::version::TLS12, "http/1.1")).await.is_err());
    assert!(Line::open(address, tls(&rustls::version::TLS13, "h2")).await.is_err());
}

#[tokio::test]
async fn mi_g1_009_010_every_client_gets_an_id_of_its_own_that_needs_no_escaping() {
    let plant = open().await;
    let mut ids = BTreeSet::new();
    for name in ["press", "press", "robot"] {
        let mut foreign = Foreign::new(&plant, name);
        foreign.onboard(&plant).await.is(201);
        let id = foreign.client.unwrap().to_string();
        assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)), "{id}");
        assert_eq!((id.len(), &id[14..15]), (36, "4"), "a UUIDv4, which nobody guesses");
        ids.insert(id);
    }
    assert_eq!(ids.len(), 3);
}

/// Whether a text is a digest as the prose has it.
fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[tokio::test]
async fn mi_g1_085_086_090_091_095_112_120_121_122_manifests_count_up_and_every_digest_is_of_what_is_served()
{
    let plant = open().await;
    stock::gate(&plant).await;
    let press = Foreign::known(&plant, "press").await;
    let mut version = 0;
    let mut tags = BTreeSet::new();
    let fleet = plant.server.fleet();
    for step in 0..5 {
        match step {
            0 => {}
            1 => deploy(&plant, "north", "me", &["press"]).await,
            2 => deploy(&plant, "south", "me", &["press"]).await,
            3 => deploy(&plant, "north", "you", &["press"]).await,
            _ => {
                for name in ["north", "south"] {
                    fleet.remove_deployment(&operator(), &name.parse().unwrap(), None).await.unwrap();
                }
            }
        }
        let reply = press.get(&plant, press.path("deployments")).await;
        let manifest: Value = reply.is(200).json();
        assert!(tags.insert(reply.header("etag").to_owned()), "another content, another tag");
        let next = manifest["manifestVersion"].as_u64().unwrap();
        assert!(if step == 0 { next == 1 } else { next > version }, "{version}, then {next}");
        version = next;
        let listed = manifest["deployments"].as_array().unwrap();
        assert_eq!(listed.len(), [0, 1, 2, 2, 0][step]);
        assert_eq!(manifest.as_object().unwrap().get("bundle").unwrap().is_null(), listed.is_empty());
        let mut documents = Vec::new();
        let mut entries = Vec::new();
        for entry in listed {
            let digest = entry["digest"].as_str().unwrap();
            assert!(is_digest(digest), "{digest}");
            let document = press.get(&plant, entry["url"].as_str().unwrap()).await;
            assert_eq!(Digest::of(&document.is(200).body).to_string(), digest);
            assert_eq!(entry["sizeBytes"], document.body.len());
            let id = entry["deploymentId"].as_str().unwrap().parse().unwrap();
            entries.push(Entry { id, document: Blob { digest: Digest::of(&document.body), size: None } });
            documents.push(document.body);
        }
        if !listed.is_empty() {
            let digest = manifest["bundle"]["digest"].as_str().unwrap();
            assert!(is_digest(digest), "{digest}");
            let archive = press.get(&plant, manifest["bundle"]["url"].as_str().unwrap()).await;
            assert_eq!(
                archive.is(200).header("content-type"),
                manifest["bundle"]["mediaType"].as_str().unwrap()
            );
            assert_eq!(Digest::of(&archive.body).to_string(), digest);
            assert_eq!(manifest["bundle"]["sizeBytes"], archive.body.len());
            let bundled = bundle::read(&archive.body, &entries).unwrap();
            let bundled: Vec<&[u8]> = bundled.iter().map(|document| document.bytes()).collect();
            assert_eq!(bundled, documents, "exactly what is listed");
        }
    }
}

#[tokio::test]
async fn mi_g1_181_cores_of_different_processors_are_never_added_up() {
    let plant = open().await;
    stock::gate(&plant).await;
    let says = async |foreign: &Foreign, device: &str, cpus: Value| {
        let body = json!({
            "apiVersion": "device.margo.org/v1alpha1", "kind": "DeviceCapabilitiesManifest",
            "properties": {
                "id": device, "vendor": "Foreign", "modelNumber": "F", "serialNumber": "1", "cpus": cpus,
                "memory": "8Gi", "storage": "64Gi", "peripherals": [], "interfaces": [], "otelCollector": true,
                "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose"],
            },
        });
        let path = foreign.path(&format!("capabilities/{device}"));
        foreign.send(&plant, Request::new("PUT", path, Some(body.to_string().into_bytes()))).await.is(201);
    };
    let (mut small, mut large) = (Foreign::new(&plant, "small"), Foreign::new(&plant, "large"));
    small.onboard(&plant).await.is(201);
    large.onboard(&plant).await.is(201);
    // The package wants two cores of amd64.
    let cpu = |cores: u32, architecture: &str| json!({"cores": cores, "architecture": architecture});
    says(&small, "small", json!([cpu(1, "amd64"), cpu(1, "amd64"), cpu(4, "arm64")])).await;
    says(&large, "large", json!([cpu(1, "arm64"), cpu(2, "amd64")])).await;
    let want = |devices: &[&str]| PutDeployment {
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
    let fleet = plant.server.fleet();
    let refused = fleet.put_deployment(&operator(), &"gate".parse().unwrap(), want(&["small"])).await;
    assert!(refused.is_err(), "{refused:?}");
    fleet.put_deployment(&operator(), &"gate".parse().unwrap(), want(&["large"])).await.unwrap();
    assert_eq!(large.manifest(&plant).await["deployments"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn mi_g1_200_a_device_that_was_away_for_months_goes_on_where_it_was() {
    let plant = open().await;
    stock::gate(&plant).await;
    let mut press = Foreign::known(&plant, "press").await;
    deploy(&plant, "north", "me", &["press"]).await;
    let reply = press.get(&plant, press.path("deployments")).await;
    let (before, etag) = (reply.json::<Value>(), reply.header("etag").to_owned());
    let id = before["deployments"][0]["deploymentId"].as_str().unwrap().to_owned();
    deploy(&plant, "south", "me", &["press"]).await;
    // A restart and a hundred days later; in this order, because TLS asks the machine's clock.
    const AWAY: i64 = 100 * 24 * 3600;
    let plant = plant.restart().await;
    plant.set_ahead(AWAY);
    press.url = plant.server.signed_urls()[0].clone();
    let now = |request: Request| Request { created: AWAY, ..request };
    // What it has to say of then is taken, and one request tells it everything that it missed.
    press.send(&plant, now(press.report_request(&id, "installed"))).await.is(200);
    let poll = Request::new("GET", press.path("deployments"), None).header("if-none-match", &etag);
    let manifest: Value = press.send(&plant, now(poll)).await.is(200).json();
    assert_eq!(manifest["deployments"].as_array().unwrap().len(), 2);
    assert!(manifest["manifestVersion"].as_u64() > before["manifestVersion"].as_u64());
    // Who signs by a clock that stood still hears so, and is not forgotten for it.
    press.get(&plant, press.path("deployments")).await.is(401);
}

#[tokio::test]
async fn mi_g1_065_a_request_that_was_overheard_is_worth_nothing_after_a_restart_either() {
    let plant = Plant::signed(|signed| {
        signed.accept = Accept::Any;
        // The address is the same before and after the restart, as in life.
        signed.urls = vec!["https://plant.example".to_owned()];
    })
    .await;
    stock::gate(&plant).await;
    let press = Foreign::known(&plant, "press").await;
    deploy(&plant, "north", "me", &["press"]).await;
    let manifest = press.manifest(&plant).await;
    let id = manifest["deployments"][0]["deploymentId"].as_str().unwrap();
    let failed = press.seal(&press.report_request(id, "failed"));
    failed.send(&mut line(&plant).await).await.is(200);
    press.report(&plant, id, "installed").await.is(200);
    // Not sent before, but signed: a device that tries again after the restart is no copier.
    let unsent = press.seal(&press.report_request(id, "installed"));
    let plant = plant.restart().await;
    failed.send(&mut line(&plant).await).await.is(401);
    let shown = plant.server.fleet().device(&"press".parse().unwrap()).await.unwrap();
    assert_eq!(shown.assignments[0].state, "INSTALLED");
    unsent.send(&mut line(&plant).await).await.is(200);
    unsent.send(&mut line(&plant).await).await.is(401);
}

#[tokio::test]
async fn a_client_that_asks_too_often_is_slowed_down_and_nobody_in_its_name_can_do_that_to_another() {
    let plant = open().await;
    let (press, robot) = (Foreign::known(&plant, "press").await, Foreign::known(&plant, "robot").await);
    // Wrong requests in the name of the robot, many more than a client may ask.
    let forged = press.seal(&Request::new("GET", robot.path("deployments"), None));
    for _ in 0..150 {
        forged.send(&mut line(&plant).await).await.is(401);
    }
    robot.manifest(&plant).await;
    // Right ones of the press, without a pause.
    let poll = press.seal(&Request::new("GET", press.path("deployments"), None));
    let mut lines = [line(&plant).await, line(&plant).await];
    let refused = async |open: &mut Line| {
        for answered in 0..10_000 {
            let reply = poll.send(open).await;
            if reply.status != 200 {
                return (answered, reply);
            }
        }
        panic!("ten thousand polls in a row were answered");
    };
    let (answered, slowed) = refused(&mut lines[0]).await;
    let problem: Value = slowed.is(429).json();
    assert!(slowed.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!((&problem["retryable"], &problem["status"]), (&true.into(), &429.into()));
    assert!(problem["error"].is_string() && problem["message"].is_string(), "{problem}");
    // On another connection as well, where no more pass than became free since: it is the client that is counted.
    let (more, slowed) = refused(&mut lines[1]).await;
    slowed.is(429);
    assert!(more < answered / 2, "{more} after {answered}");
    robot.manifest(&plant).await;
}

#[tokio::test]
async fn strangers_have_a_bound_of_their_own_and_known_clients_do_not_notice() {
    let plant = open().await;
    let press = Foreign::known(&plant, "press").await;
    let nobody = press.seal(&Request::new("GET", "/api/v1/clients/nobody/deployments", None));
    let newcomer = Foreign::new(&plant, "newcomer");
    let wish = newcomer.seal(&Request::new("POST", ONBOARDING, Some(wish(newcomer.certificate.pem()))));
    let mut open = line(&plant).await;
    // One more is let through every hundredth of a second, so that it takes some tries to meet the bound twice.
    let deadline = Instant::now() + DEADLINE;
    let put_off = loop {
        assert!(Instant::now() < deadline, "strangers were answered without end");
        let reply = nobody.send(&mut open).await;
        if reply.status == 404 {
            continue;
        }
        assert!(reply.is(429).header("retry-after").parse::<u64>().unwrap() >= 1);
        let reply = wish.send(&mut open).await;
        if reply.status != 201 {
            break reply;
        }
    };
    assert!(put_off.is(429).header("retry-after").parse::<u64>().unwrap() >= 1);
    press.manifest(&plant).await;
    press.capabilities(&plant, "press").await.is(201);
}

#[tokio::test]
async fn a_signed_device_gets_a_login_for_our_registry_until_it_is_put_out() {
    let plant = open().await;
    stock::gate(&plant).await;
    let press = Foreign::known(&plant, "press").await;
    let ask = || Request::new("POST", press.path("x-margrave-registry-token"), None);
    let login: Value = press.send(&plant, ask()).await.is(200).json();
    let text = |name: &str| login[name].as_str().unwrap();
    assert_eq!(text("username"), press.client.as_ref().unwrap().as_str());
    // Where it opens something, and how to know that place: a device of this form never heard of either.
    assert_eq!(text("registry"), plant.server.url().strip_prefix("https://").unwrap());
    assert!(text("webAuthority").starts_with("-----BEGIN CERTIFICATE-----"));
    let basic = {
        use base64::Engine as _;
        let pair = format!("{}:{}", text("username"), text("password"));
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
    };
    let pull = async || {
        let headers = [("authorization", basic.as_str())];
        let path = "/v2/components/gate/manifests/1.0.0";
        plant.web().await.send("GET", path, &headers, "").await.unwrap().status.as_u16()
    };
    assert_eq!(pull().await, 200);
    plant.server.fleet().retire(&operator(), &"press".parse().unwrap()).await.unwrap();
    assert_eq!(pull().await, 403);
    press.send(&plant, ask()).await.is(403);
}
