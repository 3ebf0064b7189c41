//! Discovery, trust bundle, join and renewal.

use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_identity::authority::Authority;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_identity::pin::Pin;
use margrave_identity::svid::Svid;
use margrave_identity::tls::pinned_client_config;
use margrave_wire::identity::{
    BUNDLE_PATH, DISCOVERY_PATH, Discovery, JOIN_PATH, JoinResponse, JwkSet, RENEW_PATH, RenewResponse,
};

use crate::line::Line;
use crate::plant::{Device, Plant, now, operator, server_name, trust_domain};

const MANIFEST: &str = "/api/v1/deployments";

#[tokio::test]
async fn id_062_130_140_141_150_151_154_156_discovery_and_bundle_are_public_and_cacheable() {
    let plant = Plant::new().await;
    let mut web = plant.web().await;
    let host = plant.server.addresses().web.to_string();
    let reply = web.send("GET", DISCOVERY_PATH, &[("host", &host)], "").await.unwrap();
    assert_eq!(reply.is(200).header("content-type"), "application/json");
    let document = Discovery::parse(&reply.body).unwrap().matching(&trust_domain()).unwrap();
    // The very origin that was asked (ID-156).
    assert_eq!(document.trust_bundle_uri, format!("https://{host}{BUNDLE_PATH}"));

    let reply = web.get(BUNDLE_PATH).await.unwrap();
    let set: JwkSet = reply.is(200).json();
    assert_eq!((set.spiffe_sequence, set.keys.len()), (Some(1), 1));
    // It says how often to look, and no cache on the way may keep anybody from it.
    assert_eq!(set.spiffe_refresh_hint, Some(4 * 3600));
    assert_eq!(reply.header("cache-control"), "no-cache");
    assert!(set.keys[0].anchor().is_ok());
    let etag = reply.header("etag").to_owned();
    assert_eq!(etag, format!("\"{}\"", Digest::of(&reply.body)));
    for held in [etag.clone(), format!("\"x\", W/{etag}")] {
        let reply = web.send("GET", BUNDLE_PATH, &[("if-none-match", &held)], "").await.unwrap();
        assert!(reply.is(304).body.is_empty());
        assert_eq!(reply.header("etag"), etag);
    }
    web.send("POST", BUNDLE_PATH, &[], "").await.unwrap().is_problem(405);
    // Identity needs TLS (ID-062).
    let mut local = plant.local().await;
    for path in [BUNDLE_PATH, DISCOVERY_PATH] {
        assert_eq!(local.get(path).await.unwrap().status, 404);
    }
}

#[tokio::test]
async fn id_166_170_a_token_and_a_csr_become_an_svid_and_a_manifest() {
    let plant = Plant::new().await;
    let token = plant.token("press.42").await;
    let key = PrivateKey::generate().unwrap();
    let reply = plant.ask_to_join(&token, &key).await;
    assert_eq!(reply.is(200).header("cache-control"), "no-store");
    let answer: JoinResponse = reply.json();
    assert_eq!(answer.client_id.as_str(), "press.42");
    assert_eq!(answer.device_url, format!("https://{}", plant.server.addresses().device));
    assert!(answer.registry.is_some());
    // What to validate others by, and what to recognise us by, comes along (ID-166).
    assert_eq!(answer.trust_bundle.keys.len(), 1);
    assert!(answer.web_authority.as_ref().is_some_and(|pem| pem.starts_with("-----BEGIN CERTIFICATE-----")));

    let device = Device::new(&answer, key);
    assert_eq!(device.svid.current().client_name(), Some(&server_name().client(device.client.clone())));
    let reply = device.line(&plant).await.get(MANIFEST).await.unwrap();
    assert_eq!(reply.is(200).header("content-type"), "application/vnd.margo.manifest.v1+json");
    assert_eq!(&reply.body[..], br#"{"bundle":null,"deployments":[],"manifestVersion":1}"#);
}

#[tokio::test]
async fn a_token_is_for_one_key_only_and_a_lost_answer_can_be_asked_for_again() {
    let plant = Plant::new().await;
    let token = plant.token("press.42").await;
    let key = PrivateKey::generate().unwrap();
    plant.ask_to_join(&token, &key).await.is(200);
    plant.ask_to_join(&token, &key).await.is(200);
    let other = PrivateKey::generate().unwrap();
    let detail = plant.ask_to_join(&token, &other).await.is_problem(403);
    assert!(detail.contains("used"), "{detail}");
    plant.ask_to_join("nonsense", &other).await.is_problem(403);
}

#[tokio::test]
async fn an_expired_token_is_refused_and_says_so() {
    let plant = Plant::new().await;
    let token = plant.token("press.42").await;
    plant.set_ahead(601);
    let detail = plant.ask_to_join(&token, &PrivateKey::generate().unwrap()).await.is_problem(403);
    assert!(detail.contains("expired"), "{detail}");
}

#[tokio::test]
async fn id_160_id_164_a_client_with_another_pin_sends_nothing() {
    let plant = Plant::new().await;
    let stranger = Plant::new().await;
    let wrong = pinned_client_config(vec![Pin::parse(&stranger.server.pin()).unwrap()]);
    assert!(Line::open(plant.server.addresses().web, wrong).await.is_err());
}

#[tokio::test]
async fn nothing_wrong_in_a_request_uses_up_a_token() {
    let plant = Plant::new().await;
    let token = plant.token("press.42").await;
    let mut web = plant.web().await;
    for (body, status) in [
        (String::new(), 400),
        ("{".to_owned(), 400),
        (format!(r#"{{"token":"{token}"}}"#), 400),
        (format!(r#"{{"token":"{token}","csr":"hello"}}"#), 422),
        (" ".repeat(40_000), 413),
    ] {
        web = plant.web().await;
        web.send("POST", JOIN_PATH, &[], body).await.unwrap().is_problem(status);
    }
    drop(web);
    let key = PrivateKey::generate().unwrap();
    plant.ask_to_join(&token, &key).await.is(200);
}

#[tokio::test]
async fn whoever_tries_tokens_is_slowed_down_and_nobody_else_at_the_same_address() {
    let plant = Plant::new().await;
    let renewing = plant.join("press.41").await;
    let token = plant.token("press.42").await;
    let key = PrivateKey::generate().unwrap();
    let guesses = async {
        let guess = |n: u32| {
            let (plant, key) = (&plant, &key);
            async move { plant.ask_to_join(&format!("guess {n}"), key).await }
        };
        let replies = futures_util::future::join_all((0..60).map(guess)).await;
        replies.iter().map(|reply| reply.status.as_u16()).collect::<Vec<_>>()
    };
    // In the middle of it, from the same address.
    let honest = async {
        plant.ask_to_join(&token, &key).await.is(200);
        renewing.renew(&plant).await.is(200);
    };
    let (statuses, ()) = tokio::join!(guesses, honest);
    assert!(statuses.iter().all(|status| matches!(status, 403 | 429)), "{statuses:?}");
    assert!(statuses.contains(&403), "{statuses:?}");
}

#[tokio::test]
async fn a_client_that_was_retired_since_it_joined_gets_no_svid_by_asking_again() {
    let plant = Plant::new().await;
    let token = plant.token("press.42").await;
    let key = PrivateKey::generate().unwrap();
    plant.ask_to_join(&token, &key).await.is(200);
    plant.server.fleet().retire(&operator(), &"press.42".parse().unwrap()).await.unwrap();
    plant.ask_to_join(&token, &key).await.is_problem(403);
}

#[tokio::test]
async fn id_172_an_svid_is_renewed_under_the_same_name() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let first = device.svid.current();
    let mut old_line = device.line(&plant).await;
    old_line.get(MANIFEST).await.unwrap().is(200);
    device.renew(&plant).await.is(200);
    let second = device.svid.current();
    assert_eq!(second.name(), first.name());
    assert_ne!(second.serial(), first.serial());
    // ID-091: the new one works at once, the old one until it expires.
    device.line(&plant).await.get(MANIFEST).await.unwrap().is(200);
    old_line.get(MANIFEST).await.unwrap().is(200);
}

#[tokio::test]
async fn a_device_that_lost_the_answer_twice_can_still_renew() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let held = device.svid.current();
    for _ in 0..3 {
        // The answer never arrives.
        plant.ask_to_renew(&held, &PrivateKey::generate().unwrap()).await.is(200);
    }
    device.renew(&plant).await.is(200);
    device.line(&plant).await.get(MANIFEST).await.unwrap().is(200);
}

#[tokio::test]
async fn an_svid_that_was_replaced_twice_renews_nothing() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let stolen = device.svid.current();
    device.renew(&plant).await.is(200);
    device.renew(&plant).await.is(200);
    plant.ask_to_renew(&stolen, &PrivateKey::generate().unwrap()).await.is_problem(403);
}

#[tokio::test]
async fn an_expired_svid_opens_no_connection_but_can_be_renewed() {
    // A server that lives yesterday issues what is expired today.
    let day = 24 * 60 * 60;
    let plant = Plant::with(Duration::from_secs(3600), -day).await;
    let device = plant.join("press.42").await;
    plant.set_ahead(0);
    let plant = plant.restart().await;
    assert!(device.svid.current().is_expired(now()));
    let refused = async { plant.device_line(device.tls()).await?.get(MANIFEST).await };
    assert!(refused.await.is_err());
    device.renew(&plant).await.is(200);
    device.line(&plant).await.get(MANIFEST).await.unwrap().is(200);
}

#[tokio::test]
async fn a_renewal_without_the_previous_key_is_refused() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let held = device.svid.current();
    let key = PrivateKey::generate().unwrap();
    // The right chain, a proof by the wrong key.
    let csr = Csr::make(&key).unwrap();
    let proof = margrave_identity::proof::prove(&key, &csr).unwrap();
    let body = serde_json::json!({
        "csr": csr.to_pem(), "previous": [held.chain_pem()],
        "proof": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, proof),
    });
    plant.web().await.send("POST", RENEW_PATH, &[], body.to_string()).await.unwrap().is_problem(403);
    // Another authority of the same name.
    let forged = foreign(&device, &key);
    plant.ask_to_renew(&forged, &key).await.is_problem(403);
    for body in ["{}", r#"{"csr":"","previous":[],"proof":""}"#] {
        let status = plant.web().await.send("POST", RENEW_PATH, &[], body).await.unwrap().status;
        assert!(status == 400 || status == 422, "{status}");
    }
}

#[tokio::test]
async fn a_retired_client_is_not_renewed() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    plant.server.fleet().retire(&operator(), &"press.42".parse().unwrap()).await.unwrap();
    device.renew(&plant).await.is_problem(403);
}

/// What another authority, which calls itself by the same name, would issue.
pub(crate) fn foreign(device: &Device, key: &PrivateKey) -> Svid {
    let authority = Authority::create(trust_domain(), now()).unwrap();
    let csr = Csr::make(key).unwrap();
    let hour = Duration::from_secs(3600);
    let issued = authority.issue_client(&server_name().wfm, &device.client, &csr, now(), hour).unwrap();
    Svid::new(issued.chain, key.clone()).unwrap()
}

#[tokio::test]
async fn id_180_the_servers_svid_is_replaced_while_connections_stay() {
    let plant = Plant::with(Duration::from_secs(5), 0).await;
    let device = plant.join("press.42").await;
    let mut first = device.line(&plant).await;
    first.get(MANIFEST).await.unwrap().is(200);
    let expires = device.svid.current().not_after();
    let replaced = async {
        loop {
            let reply: RenewResponse = device.renew(&plant).await.is(200).json();
            assert_eq!(reply.certificates.len(), 1);
            let mut line = device.line(&plant).await;
            line.get(MANIFEST).await.unwrap().is(200);
            if line.peer != first.peer {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(crate::line::DEADLINE, replaced).await.expect("renewed before half of the deadline");
    if now() < expires {
        first.get(MANIFEST).await.unwrap().is(200);
    }
    // ID-110: a connection does not outlive the SVID it was opened with.
    first.closed().await;
    assert!(now().0 + 1000 >= expires.0, "not closed early");
}
