//! The device listener: who gets in, and how long.

use std::time::Duration;

use margrave_device_api::g2::CAPABILITIES_BYTES_MAX;
use margrave_identity::key::PrivateKey;
use margrave_wire::identity::{REGISTRY_TOKEN_PATH, RegistryToken};

use crate::forge;
use crate::identity::foreign;
use crate::line::{DEADLINE, Line};
use crate::plant::{Plant, operator};

const MANIFEST: &str = "/api/v1/deployments";

/// Whether a client gets any HTTP answer at all. In TLS 1.3 a client learns by reading that it was refused.
async fn is_answered(plant: &Plant, tls: std::sync::Arc<rustls::ClientConfig>) -> bool {
    match plant.device_line(tls).await {
        Ok(mut line) => line.get(MANIFEST).await.is_ok(),
        Err(_) => false,
    }
}

fn capabilities(id: &str) -> String {
    format!(
        r#"{{"properties":{{"id":"{id}","vendor":"Acme","modelNumber":"C4","serialNumber":"0007",
        "cpus":[{{"cores":4,"architecture":"arm64"}}],"memory":"8Gi","storage":"64Gi","peripherals":[],
        "interfaces":[{{"type":"ethernet"}}],"otelCollector":true,"supportedRuntimes":["oci"],
        "supportedDeploymentTypes":["compose"]}}}}"#
    )
}

#[tokio::test]
async fn id_220_without_a_client_certificate_there_is_no_http_answer() {
    let plant = Plant::new().await;
    assert!(!is_answered(&plant, forge::rogue(None)).await);
    // And a plain text request is not answered either.
    let mut plain = Line::plain(plant.server.addresses().device).await;
    assert!(plain.get(MANIFEST).await.is_err());
}

#[tokio::test]
async fn id_224_a_foreign_authority_of_the_same_name_is_refused() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let key = PrivateKey::generate().unwrap();
    let svid = foreign(&device, &key);
    assert!(!is_answered(&plant, forge::rogue(Some((svid.chain().to_vec(), &key)))).await);
}

#[tokio::test]
async fn id_030_two_uri_names_are_refused_where_one_is_taken() {
    let plant = Plant::new().await;
    plant.join("press.42").await;
    let right = "spiffe://plant.example/margo/wfm/line-7/client/press.42";
    let check = async |uris: &[&str]| {
        let key = PrivateKey::generate().unwrap();
        let chain = vec![forge::certificate(plant.data.path(), uris, &key)];
        is_answered(&plant, forge::rogue(Some((chain, &key)))).await
    };
    assert!(check(&[right]).await);
    for wrong in [
        &[right, "spiffe://plant.example/margo/wfm/line-7/client/press.43"][..],
        &[right, "https://elsewhere.example/"],
        &[],
        &["spiffe://plant.example/margo/wfm/line-8/client/press.42"],
        &["spiffe://plant-ten.example/margo/wfm/line-7/client/press.42"],
        &["spiffe://plant.example/margo/wfm/line-7"],
        &["spiffe://plant.example/other"],
    ] {
        assert!(!check(wrong).await, "{wrong:?}");
    }
}

#[tokio::test]
async fn mi_g2_025_a_valid_svid_that_nobody_accepted_is_403() {
    let plant = Plant::new().await;
    let key = PrivateKey::generate().unwrap();
    let name = "spiffe://plant.example/margo/wfm/line-7/client/never-joined";
    let chain = vec![forge::certificate(plant.data.path(), &[name], &key)];
    let mut line = plant.device_line(forge::rogue(Some((chain, &key)))).await.unwrap();
    line.get(MANIFEST).await.unwrap().is_problem(403);
    line.send("POST", REGISTRY_TOKEN_PATH, &[], "").await.unwrap().is_problem(403);
}

#[tokio::test]
async fn id_086_a_retired_client_is_out_on_the_next_request_of_its_open_connection() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let mut line = device.line(&plant).await;
    line.get(MANIFEST).await.unwrap().is(200);
    plant.server.fleet().retire(&operator(), &"press.42".parse().unwrap()).await.unwrap();
    let reply = line.get(MANIFEST).await.unwrap();
    reply.is_problem(403);
    let problem: serde_json::Value = reply.json();
    assert_eq!(problem["type"], "https://docs.margo.org/specification/problem-types#not-authorized");
    line.send("POST", REGISTRY_TOKEN_PATH, &[], "").await.unwrap().is_problem(403);
}

#[tokio::test]
async fn capabilities_travel_the_whole_way_and_oversized_ones_do_not() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let mut line = device.line(&plant).await;
    let path = "/api/v1/capabilities/press.42";
    for status in [201, 200] {
        line.send("PUT", path, &[("content-type", "application/json")], capabilities("press.42"))
            .await
            .unwrap()
            .is(status);
    }
    let child = capabilities("press.42/arm");
    line.send("PUT", "/api/v1/capabilities/press.42%2Farm", &[], child).await.unwrap().is(201);
    let large = " ".repeat(CAPABILITIES_BYTES_MAX + 1);
    line.send("PUT", path, &[], large).await.unwrap().is_problem(413);
    let mut line = device.line(&plant).await;
    line.get("/no/such/path").await.unwrap().is_problem(404);
    line.send("DELETE", "/api/v1/capabilities/press.42/arm", &[], "").await.unwrap().is(204);
    line.send("DELETE", "/api/v1/capabilities/press.42/arm", &[], "").await.unwrap().is_problem(404);
}

#[tokio::test]
async fn our_agent_gets_a_registry_token_and_only_by_post() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let mut line = device.line(&plant).await;
    let reply = line.send("POST", REGISTRY_TOKEN_PATH, &[], "").await.unwrap();
    assert_eq!(reply.is(200).header("cache-control"), "no-store");
    let token: RegistryToken = reply.json();
    assert_eq!(token.username, "press.42");
    assert!(token.expires.ends_with('Z'), "{}", token.expires);
    let reply = line.get(REGISTRY_TOKEN_PATH).await.unwrap();
    reply.is_problem(405);
    assert_eq!(reply.header("allow"), "POST");
}

#[tokio::test]
async fn a_held_poll_does_not_hold_up_a_stop() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let mut line = device.line(&plant).await;
    let etag = line.get(MANIFEST).await.unwrap().header("etag").to_owned();
    // An hour later another request comes, and is held.
    plant.set_ahead(3600);
    let before = last_contact(&plant).await;
    let held = tokio::spawn(async move {
        line.send("GET", MANIFEST, &[("if-none-match", &etag), ("prefer", "wait=50")], "").await
    });
    let arrived = async {
        while last_contact(&plant).await == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, arrived).await.expect("the request arrives");
    assert!(!held.is_finished());
    let stopping = std::time::Instant::now();
    plant.server.stop().await;
    held.await.unwrap().unwrap().is(304);
    assert!(stopping.elapsed() < Duration::from_secs(20), "{:?}", stopping.elapsed());
}

async fn last_contact(plant: &Plant) -> Option<String> {
    plant.server.fleet().device(&"press.42".parse().unwrap()).await.unwrap().last_contact
}
