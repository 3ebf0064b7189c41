//! Manifest, documents and bundles of the signed generation.

use margrave_core::digest::Digest;
use margrave_device_api::g1::SignedStanding;

use super::{Draft, World, path};
use crate::plant::{BUNDLE, DOCUMENT, ID};

const MANIFEST: &str = "application/vnd.margo.manifest.v1+json";
const FOR_EVER: &str = "private, max-age=31536000, immutable";

#[tokio::test]
async fn mi_g1_080_mi_g1_083_mi_g1_092_mi_g1_094_a_manifest_comes_with_its_headers() {
    let world = World::new();
    let reply = world.get(&path("deployments"), &[]).await;
    reply.is(200);
    assert_eq!(reply.header("content-type"), MANIFEST);
    assert_eq!(reply.header("cache-control"), "private");
    assert_eq!(reply.header("vary"), "");
    assert_eq!(reply.header("etag"), format!("\"{}\"", Digest::of(&reply.body)));
}

#[tokio::test]
async fn mi_g1_082_mi_g1_084_the_manifest_is_negotiated_and_revalidated() {
    let world = World::new();
    for accept in ["application/json", "text/plain"] {
        let reply = world.get(&path("deployments"), &[("accept", accept)]).await;
        reply.is_problem(406, "server-cannot-generate-response");
    }
    let etag = world.plant.etag();
    for held in [etag.clone(), format!("W/{etag}"), "*".to_owned()] {
        let reply = world.get(&path("deployments"), &[("accept", MANIFEST), ("if-none-match", &held)]).await;
        assert!(reply.is(304).body.is_empty());
        assert_eq!((reply.header("etag"), reply.header("cache-control")), (etag.as_str(), "private"));
    }
    world.plant.publish(2);
    world.get(&path("deployments"), &[("if-none-match", &etag)]).await.is(200);
}

#[tokio::test]
async fn rfc_7240_a_signed_poll_is_held_until_the_manifest_changes_or_the_client_is_retired() {
    for retired in [false, true] {
        let world = std::sync::Arc::new(World::new());
        let etag = world.plant.etag();
        let asking = std::sync::Arc::clone(&world);
        let held = tokio::spawn(async move {
            asking.get(&path("deployments"), &[("if-none-match", &etag), ("prefer", "wait=30")]).await
        });
        world.plant.holding().await;
        if retired {
            world.set_standing(SignedStanding::Retired);
        }
        world.plant.publish(2);
        let reply = held.await.unwrap();
        if retired {
            reply.is_problem(403, "certificate-not-trusted");
        } else {
            assert_eq!(reply.is(200).header("preference-applied"), "wait");
        }
    }
}

#[tokio::test]
async fn a_signed_head_is_answered_at_once() {
    let world = World::new();
    let mut head = Draft::get(&path("deployments"))
        .header("if-none-match", &world.plant.etag())
        .header("prefer", "wait=30");
    head.method = "HEAD".to_owned();
    let reply = world.send(head.signed(&world.signer)).await;
    assert_eq!(reply.is(304).header("preference-applied"), "");
    assert!(world.plant.waits().is_empty());
}

#[tokio::test]
async fn mi_g1_100_101_102_104_105_106_a_document_is_its_digest() {
    let world = World::new();
    let digest = Digest::of(DOCUMENT);
    let encoded = digest.to_string().replace(':', "%3A");
    for named in [digest.to_string(), encoded] {
        let path = path(&format!("deployments/{ID}/{named}"));
        let reply = world.get(&path, &[("accept-encoding", "gzip")]).await;
        assert_eq!(reply.is(200).body, DOCUMENT);
        assert_eq!(Digest::of(&reply.body), digest);
        assert_eq!(reply.header("content-type"), "application/yaml");
        // Compression is optional, and we use none: there is nothing to vary by.
        assert_eq!((reply.header("content-encoding"), reply.header("vary")), ("", ""));
        assert_eq!(reply.header("etag"), format!("\"{digest}\""));
        // `public` is only a SHOULD, and one client's documents are not another's (section 4, point 4).
        assert_eq!(reply.header("cache-control"), FOR_EVER);
        world.get(&path, &[("if-none-match", &format!("\"{digest}\""))]).await.is(304);
    }
    for missing in
        [format!("{ID}/{}", Digest::of(b"other")), format!("{ID}/sha256:12"), format!("x/{digest}")]
    {
        let reply = world.get(&path(&format!("deployments/{missing}")), &[]).await;
        reply.is_problem(404, "deployment-not-found");
    }
}

#[tokio::test]
async fn mi_g1_110_mi_g1_111_mi_g1_113_mi_g1_114_a_bundle_is_its_digest() {
    let world = World::new();
    let digest = Digest::of(BUNDLE);
    let reply = world.get(&path(&format!("bundles/{digest}")), &[("accept-encoding", "gzip, br")]).await;
    assert_eq!(reply.is(200).body, BUNDLE);
    assert_eq!(reply.header("content-type"), "application/vnd.margo.bundle.v1+tar+gzip");
    assert_eq!(reply.header("content-encoding"), "");
    assert_eq!(reply.header("etag"), format!("\"{digest}\""));
    assert_eq!(reply.header("cache-control"), FOR_EVER);
    let held = format!("\"{digest}\"");
    world.get(&path(&format!("bundles/{digest}")), &[("if-none-match", &held)]).await.is(304);
    let other = path(&format!("bundles/{}", Digest::of(b"other")));
    world.get(&other, &[]).await.is_problem(404, "invalid-bundle");
    for bad in ["sha256:12", "md5:00", &digest.to_string().to_uppercase(), "x"] {
        world.get(&path(&format!("bundles/{bad}")), &[]).await.is_problem(400, "invalid-request");
    }
}

#[tokio::test]
async fn head_is_get_without_the_body_and_signed_as_itself() {
    let world = World::new();
    let mut draft = Draft::get(&path("deployments"));
    draft.method = "HEAD".to_owned();
    let reply = world.send(draft.signed(&world.signer)).await;
    assert!(reply.is(200).body.is_empty());
    assert_ne!(reply.header("content-length"), "");
    let mut request = draft.signed(&world.signer);
    *request.method_mut() = http::Method::GET;
    world.send(request).await.is_problem(401, "signature-verification-failed");
}

#[tokio::test]
async fn paths_of_the_newer_generation_are_not_here() {
    let world = World::new();
    let digest = Digest::of(DOCUMENT);
    for newer in [
        "/api/v1/deployments".to_owned(),
        format!("/api/v1/deployments/{ID}/{digest}"),
        format!("/api/v1/bundles/{digest}"),
        "/api/v1/capabilities/line-1".to_owned(),
        "/".to_owned(),
        "/api/v1/clients/line-1".to_owned(),
    ] {
        world.get(&newer, &[]).await.is_problem(404, "about:blank");
    }
    for (method, resource, allow) in [
        ("POST", "deployments".to_owned(), "GET, HEAD"),
        ("GET", format!("deployments/{ID}/status"), "POST"),
        ("GET", "capabilities/line-1".to_owned(), "POST, PUT, DELETE"),
        ("DELETE", "capabilities".to_owned(), "POST, PUT"),
    ] {
        let mut draft = Draft::get(&path(&resource));
        draft.method = method.to_owned();
        let reply = world.send(draft.signed(&world.signer)).await;
        reply.is_problem(405, "about:blank");
        assert_eq!(reply.header("allow"), allow);
    }
}

#[tokio::test]
async fn a_download_that_was_cut_goes_on_where_it_was() {
    let world = World::new();
    let digest = Digest::of(BUNDLE);
    let (bundle, tag) = (path(&format!("bundles/{digest}")), format!("\"{digest}\""));
    let whole = world.get(&bundle, &[]).await;
    assert_eq!(whole.is(200).header("accept-ranges"), "bytes");
    let part = world.get(&bundle, &[("range", "bytes=3-"), ("if-range", &tag)]).await;
    assert_eq!(part.is(206).body, &BUNDLE[3..]);
    assert_eq!(part.header("content-range"), format!("bytes 3-{}/{}", BUNDLE.len() - 1, BUNDLE.len()));
    assert_eq!((part.header("etag"), part.header("cache-control")), (tag.as_str(), FOR_EVER));
    assert_eq!(part.header("content-type"), whole.header("content-type"));
    // Of something else, outside, or in pieces: the whole.
    for headers in [
        [("range", "bytes=3-"), ("if-range", "\"sha256:other\"")],
        [("range", "bytes=100000-"), ("if-range", &tag)],
        [("range", "bytes=0-1,3-4"), ("if-range", &tag)],
    ] {
        assert_eq!(world.get(&bundle, &headers).await.is(200).body, BUNDLE);
    }
    // A manifest is small and changes; it has no parts.
    let manifest = world.get(&path("deployments"), &[("range", "bytes=1-")]).await;
    assert_eq!(manifest.is(200).header("content-range"), "");
    let mut head = Draft::get(&bundle).header("range", "bytes=3-");
    head.method = "HEAD".to_owned();
    let head = world.send(head.signed(&world.signer)).await;
    assert_eq!(head.is(200).header("content-length"), BUNDLE.len().to_string());
}
