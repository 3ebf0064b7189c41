//! Manifest, documents and bundles.

use margrave_core::digest::Digest;
use margrave_device_api::Outside;

use crate::plant::{BUNDLE, DOCUMENT, ID, Plant, client};

const PATH: &str = "/api/v1/deployments";
const MANIFEST: &str = "application/vnd.margo.manifest.v1+json";
const FOR_EVER: &str = "private, max-age=31536000, immutable";

#[tokio::test]
async fn mi_g2_040_043_044_045_053_a_manifest_comes_with_its_headers() {
    let plant = Plant::new();
    let reply = plant.get(PATH, &[]).await;
    reply.is(200);
    assert_eq!(reply.header("content-type"), MANIFEST);
    assert_eq!(reply.header("cache-control"), "private");
    assert_eq!(reply.header("etag"), format!("\"{}\"", Digest::of(&reply.body)));
    assert_eq!(reply.header("vary"), "");
    assert_eq!(reply.header("preference-applied"), "");
    assert_eq!(&reply.body[..], br#"{"bundle":null,"deployments":[],"manifestVersion":1}"#);
    plant.get("/api/v1/deployments?x=1", &[("accept", MANIFEST)]).await.is(200);
}

#[tokio::test]
async fn mi_g2_043_what_cannot_be_made_is_not_acceptable() {
    let plant = Plant::new();
    for accept in ["application/json", "text/plain", "*/*;q=0"] {
        let reply = plant.get(PATH, &[("accept", accept)]).await;
        reply.is_problem(406, "server-cannot-generate-response");
    }
    for accept in ["*/*", "application/*", "text/html, */*;q=0.1"] {
        plant.get(PATH, &[("accept", accept)]).await.is(200);
    }
    // Negotiation comes first (AMB-29).
    let etag = plant.etag();
    let reply = plant.get(PATH, &[("accept", "text/plain"), ("if-none-match", &etag)]).await;
    reply.is_problem(406, "server-cannot-generate-response");
}

#[tokio::test]
async fn mi_g2_046_an_unchanged_manifest_is_304_without_body() {
    let plant = Plant::new();
    let etag = plant.etag();
    for held in [etag.clone(), format!("W/{etag}"), format!("\"x\", {etag}"), "*".to_owned()] {
        let reply = plant.get(PATH, &[("if-none-match", &held)]).await;
        reply.is(304);
        assert!(reply.body.is_empty());
        assert_eq!(reply.header("etag"), etag);
        assert_eq!(reply.header("cache-control"), "private");
        assert_eq!(reply.header("content-type"), "");
    }
    plant.publish(2);
    let reply = plant.get(PATH, &[("if-none-match", &etag)]).await;
    reply.is(200);
    assert_ne!(reply.header("etag"), etag);
}

#[tokio::test]
async fn rfc_7240_a_poll_is_held_until_the_manifest_changes() {
    let plant = Plant::new();
    let etag = plant.etag();
    let asking = plant.clone();
    let held = tokio::spawn(async move {
        let headers = [("if-none-match", etag.as_str()), ("prefer", "wait=30")];
        asking.get(PATH, &headers).await
    });
    plant.holding().await;
    assert!(!held.is_finished());
    plant.publish(2);
    let reply = held.await.unwrap();
    reply.is(200);
    assert_eq!(reply.header("preference-applied"), "wait");
    assert_eq!(reply.header("etag"), plant.etag());
}

#[tokio::test]
async fn rfc_7240_a_poll_is_not_held_for_ever_or_for_nothing() {
    let plant = Plant::new();
    plant.hurry();
    let etag = plant.etag();
    let reply = plant.get(PATH, &[("if-none-match", &etag), ("prefer", "wait=86400")]).await;
    reply.is(304);
    assert_eq!(reply.header("preference-applied"), "wait");
    assert_eq!(plant.waits(), [margrave_device_api::g2::WAIT_MAX]);
    // Not unchanged, or not asked to wait: answered at once.
    let at_once = [
        (200, &[("if-none-match", "\"old\""), ("prefer", "wait=30")][..]),
        (200, &[("prefer", "wait=30")]),
        (304, &[("if-none-match", &etag), ("prefer", "wait=0")]),
    ];
    for (status, headers) in at_once {
        let reply = plant.get(PATH, headers).await;
        assert_eq!(reply.is(status).header("preference-applied"), "", "{headers:?}");
    }
    let reply = plant.get(PATH, &[("if-none-match", &etag), ("prefer", "wait=soon")]).await;
    assert_eq!(reply.is(304).header("preference-applied"), "");
    // A HEAD asks how things are now.
    let reply = plant.ask("HEAD", PATH, &[("if-none-match", &etag), ("prefer", "wait=30")], "").await;
    assert_eq!(reply.is(304).header("preference-applied"), "");
    assert_eq!(plant.waits().len(), 1);
    // Asked to wait, and answered at once because too many polls are held: nothing was applied.
    plant.crowd();
    let reply = plant.get(PATH, &[("if-none-match", &etag), ("prefer", "wait=30")]).await;
    assert_eq!(reply.is(304).header("preference-applied"), "");
}

#[tokio::test]
async fn mi_g2_010_a_client_retired_while_it_waits_learns_nothing_more() {
    let plant = Plant::new();
    let etag = plant.etag();
    let asking = plant.clone();
    let held = tokio::spawn(async move {
        asking.get(PATH, &[("if-none-match", etag.as_str()), ("prefer", "wait=30")]).await
    });
    plant.holding().await;
    plant.set_standing(&client(), Err(Outside::Retired));
    plant.publish(2);
    held.await.unwrap().is_problem(403, "not-authorized");
}

#[tokio::test]
async fn mi_g2_060_mi_g2_061_a_document_is_immutable_yaml() {
    let plant = Plant::new();
    let digest = Digest::of(DOCUMENT);
    for path in
        [format!("{PATH}/{ID}/{digest}"), format!("{PATH}/{ID}/{}", digest.to_string().replace(':', "%3A"))]
    {
        let reply = plant.get(&path, &[]).await;
        assert_eq!(reply.is(200).body, DOCUMENT);
        assert_eq!(reply.header("content-type"), "application/yaml");
        assert_eq!(reply.header("cache-control"), FOR_EVER);
        assert_eq!(reply.header("etag"), format!("\"{digest}\""));
        // MI-G2-065
        let reply = plant.get(&path, &[("if-none-match", &format!("\"{digest}\""))]).await;
        assert!(reply.is(304).body.is_empty());
        assert_eq!(reply.header("cache-control"), FOR_EVER);
    }
}

#[tokio::test]
async fn mi_g2_066_amb_21_a_bundle_is_its_media_type_and_not_an_encoding() {
    let plant = Plant::new();
    let digest = Digest::of(BUNDLE);
    let path = format!("/api/v1/bundles/{digest}");
    let reply = plant.get(&path, &[("accept-encoding", "gzip, br")]).await;
    assert_eq!(reply.is(200).body, BUNDLE);
    assert_eq!(reply.header("content-type"), "application/vnd.margo.bundle.v1+tar+gzip");
    assert_eq!(reply.header("content-encoding"), "");
    assert_eq!(reply.header("cache-control"), FOR_EVER);
    assert_eq!(reply.header("etag"), format!("\"{digest}\""));
    plant.get(&path, &[("if-none-match", &format!("W/\"{digest}\""))]).await.is(304);
}

#[tokio::test]
async fn mi_g2_062_mi_g2_007_what_is_not_the_callers_is_not_found() {
    let plant = Plant::new();
    let digest = Digest::of(DOCUMENT);
    let other = "99999999-6a0a-4f0e-9b57-2c1c8e0f4a11";
    for path in [
        format!("{PATH}/{ID}/{}", Digest::of(b"other")),
        format!("{PATH}/{other}/{digest}"),
        format!("{PATH}/not-a-uuid/{digest}"),
        format!("{PATH}/{ID}/sha256:1234"),
        format!("{PATH}/{ID}/md5:1234"),
    ] {
        plant.get(&path, &[]).await.is_problem(404, "deployment-not-found");
    }
    for digest in [Digest::of(b"other").to_string(), "sha256:XYZ".to_owned(), "%FF".to_owned()] {
        plant.get(&format!("/api/v1/bundles/{digest}"), &[]).await.is_problem(404, "invalid-bundle");
    }
    for path in [format!("{PATH}/{ID}/{digest}"), format!("/api/v1/bundles/{}", Digest::of(BUNDLE))] {
        let reply = plant.ask_as(Some("line-2"), "GET", &path, &[("if-none-match", "*")], "".into()).await;
        reply.is(404);
    }
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let plant = Plant::new();
    let digest = Digest::of(DOCUMENT);
    for path in
        [PATH.to_owned(), format!("{PATH}/{ID}/{digest}"), format!("/api/v1/bundles/{}", Digest::of(BUNDLE))]
    {
        let (get, head) = (plant.get(&path, &[]).await, plant.ask("HEAD", &path, &[], "").await);
        head.is(200);
        assert!(head.body.is_empty());
        assert_eq!(head.header("content-length"), get.body.len().to_string());
        for name in ["etag", "content-type", "cache-control"] {
            assert_eq!(head.header(name), get.header(name));
        }
    }
    let missing = plant.ask("HEAD", "/api/v1/bundles/x", &[], "").await;
    assert!(missing.is(404).body.is_empty());
    assert_eq!(missing.header("content-type"), "application/problem+json");
}
