//! Another authority takes the place of the first, while everybody is served.

use margrave_identity::bundle::Bundle;
use margrave_identity::key::PrivateKey;
use margrave_wire::identity::{BUNDLE_PATH, JoinResponse, JwkSet};
use margrave_wire::operator::{AuthorityStatus, PREFIX};
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::line::Reply;
use crate::plant::{Device, Plant, now, trust_domain};

const MANIFEST: &str = "/api/v1/deployments";

async fn ask(plant: &Plant, method: &str, verb: &str, body: Value) -> Reply {
    let bearer = format!("Bearer {}", plant.server.context().token);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = if method == "GET" { String::new() } else { body.to_string() };
    plant.local().await.send(method, &format!("{PREFIX}/authority{verb}"), &headers, body).await.unwrap()
}

async fn status(plant: &Plant) -> AuthorityStatus {
    ask(plant, "GET", "", Value::Null).await.is(200).json()
}

async fn published(plant: &Plant) -> JwkSet {
    plant.web().await.get(BUNDLE_PATH).await.unwrap().is(200).json()
}

impl Device {
    /// Looks for a changed bundle, as devices do every hour.
    async fn refresh(&self, plant: &Plant) {
        let bundle = Bundle::from_wire(trust_domain(), &published(plant).await).unwrap();
        assert!(!bundle.is_older_than(&self.bundle.current()), "numbers only grow");
        self.bundle.replace(bundle).unwrap();
    }

    async fn is_served(&self, plant: &Plant) -> bool {
        match plant.device_line(self.tls()).await {
            Ok(mut line) => line.get(MANIFEST).await.is_ok_and(|reply| reply.status == 200),
            Err(_) => false,
        }
    }
}

#[tokio::test]
async fn id_136_147_178_the_next_authority_is_announced_first_and_nothing_else_changes() {
    let plant = Plant::new().await;
    let press = plant.join("press.42").await;
    let before = status(&plant).await;
    assert_eq!((before.phase.as_str(), before.sequence, before.devices_left), ("settled", 1, 0));

    let announced: AuthorityStatus = ask(&plant, "POST", "/rotate", json!({})).await.is(200).json();
    assert_eq!((announced.phase.as_str(), announced.sequence), ("announced", 2));
    assert_eq!(announced.issuing, before.issuing);
    assert!(announced.next.is_some() && announced.switch_at.is_some());
    let detail = ask(&plant, "POST", "/rotate", json!({})).await.is_problem(409);
    assert!(detail.contains("under way"), "{detail}");
    ask(&plant, "POST", "/retire", json!({})).await.is_problem(409);
    ask(&plant, "POST", "/rotate", json!({"switchAfterSeconds": u64::MAX})).await.is_problem(422);

    // Whoever joins now trusts both at once, and gets a certificate of the old one, that everybody knows.
    let token = plant.token("press.43").await;
    let key = PrivateKey::generate().unwrap();
    let answer: JoinResponse = plant.ask_to_join(&token, &key).await.is(200).json();
    assert_eq!((answer.trust_bundle.keys.len(), answer.trust_bundle.spiffe_sequence), (2, Some(2)));
    assert_eq!(answer.trust_bundle, published(&plant).await);
    let other = Device::new(&answer, key);
    assert!(press.is_served(&plant).await && other.is_served(&plant).await);

    let plant = plant.restart().await;
    assert_eq!(status(&plant).await, announced);
    assert!(press.is_served(&plant).await && other.is_served(&plant).await);
}

#[tokio::test]
async fn id_142_145_173_178_devices_of_both_authorities_are_served_until_the_old_one_is_retired() {
    let plant = Plant::new().await;
    let (press, slow) = (plant.join("press.42").await, plant.join("press.43").await);
    let mut open = press.line(&plant).await;
    open.get(MANIFEST).await.unwrap().is(200);
    let old = status(&plant).await.issuing;
    let now_issuing = json!({"switchAfterSeconds": 0});
    let switched: AuthorityStatus = ask(&plant, "POST", "/rotate", now_issuing).await.is(200).json();
    assert_eq!((switched.phase.as_str(), switched.sequence), ("switched", 3));
    assert_eq!((switched.former.as_ref(), switched.devices_left), (Some(&old), 2));
    assert_ne!(switched.issuing, old);

    // The server presents an SVID of the new one: a device that was not told yet does not take it, and is told by
    // the bundle, which it recognises by other means (ID-165).
    assert!(!press.is_served(&plant).await);
    for device in [&press, &slow] {
        device.refresh(&plant).await;
        assert_eq!(device.bundle.current().anchors().len(), 2);
        assert!(device.is_served(&plant).await);
    }
    open.get(MANIFEST).await.unwrap().is(200);

    let detail = ask(&plant, "POST", "/retire", json!({})).await.is_problem(409);
    assert!(detail.contains("2 devices"), "{detail}");
    press.renew(&plant).await.is(200);
    assert!(press.is_served(&plant).await);
    assert_eq!(status(&plant).await.devices_left, 1);
    let plant = plant.restart().await;
    assert!(press.is_served(&plant).await && slow.is_served(&plant).await);
    let stale = slow.svid.current();
    slow.renew(&plant).await.is(200);
    assert_eq!(status(&plant).await.devices_left, 0);

    let retired: AuthorityStatus = ask(&plant, "POST", "/retire", json!({})).await.is(200).json();
    assert_eq!((retired.phase.as_str(), retired.sequence, retired.former), ("settled", 4, None));
    let set = published(&plant).await;
    assert_eq!((set.keys.len(), set.spiffe_sequence), (1, Some(4)));
    let newest = slow.svid.current();
    slow.svid.replace((*stale).clone()).unwrap();
    assert!(!slow.is_served(&plant).await, "what the old one issued opens nothing any more");
    plant.ask_to_renew(&stale, &PrivateKey::generate().unwrap()).await.is_problem(403);
    slow.svid.replace((*newest).clone()).unwrap();
    for device in [&press, &slow] {
        device.refresh(&plant).await;
        assert_eq!(device.bundle.current().anchors().len(), 1, "replaced and not merged");
    }
    let plant = plant.restart().await;
    assert_eq!(status(&plant).await, AuthorityStatus { former: None, ..retired });
    assert!(press.is_served(&plant).await && slow.is_served(&plant).await);
    let events = plant.server.fleet().recent_events(50).await.unwrap();
    for kind in ["authority.announced", "authority.retired"] {
        let event = events.iter().find(|event| event.kind == kind).unwrap();
        assert_eq!(event.actor, "operator admin", "{event:?}");
    }
}

#[tokio::test]
async fn id_173_211_an_authority_whose_key_was_seen_is_out_at_once_with_all_that_it_issued() {
    let plant = Plant::new().await;
    let press = plant.join("press.42").await;
    ask(&plant, "POST", "/rotate", json!({"switchAfterSeconds": 0})).await.is(200);
    press.refresh(&plant).await;
    ask(&plant, "POST", "/retire", json!({"force": true})).await.is(200);
    press.refresh(&plant).await;
    assert!(!press.svid.current().is_expired(now()));
    assert!(!press.is_served(&plant).await);
    press.renew(&plant).await.is_problem(403);
    // Who comes now comes by the new one.
    let other = plant.join("press.44").await;
    assert!(other.is_served(&plant).await);
}

#[tokio::test]
async fn an_authority_that_ends_soon_needs_a_person_until_the_next_is_announced() {
    let plant = Plant::new().await;
    assert!(!Browser::signed_in(&plant).await.page("/").await.contains("need-certificate"));
    // A month before its twenty years are over.
    plant.set_ahead((20 * 365 - 30) * 24 * 3600);
    let plant = plant.restart().await;
    let mut browser = Browser::signed_in(&plant).await;
    let page = browser.page("/").await;
    assert!(page.contains("id=\"need-certificate-authority\"") && page.contains("ends soon"), "{page}");
    assert!(page.contains("<code>margrave authority rotate</code>"), "{page}");
    assert!(page.contains("href=\"/settings#certificates\""), "{page}");
    assert!(!page.contains("need-certificate-server"), "what renews itself did: {page}");
    assert!(browser.page("/settings").await.contains("<span class=\"chip bad\">ends soon</span>"));
    ask(&plant, "POST", "/rotate", json!({})).await.is(200);
    assert!(!browser.page("/").await.contains("need-certificate"));
}
