//! Pulling and pushing against honest registries.

use margrave_core::digest::Digest;
use margrave_core::report::FailureCode;
use margrave_oci::client::{Client, ClientError, Hosts};
use margrave_oci::manifest::{Descriptor, IMAGE_MANIFEST, ImageManifest};
use margrave_oci::reference::TagOrDigest;

use crate::rig::{PASSWORD, Rig, USER, reference, repository};

async fn blobs(client: &Client) {
    let here = repository("oci://margrave/a/b");
    let large: Vec<u8> = (0..5_000_000u32).map(|n| (n >> 5) as u8).collect();
    let digest = Digest::of(&large);
    assert!(!client.has_blob(&here, &digest).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    std::fs::write(&from, &large).unwrap();
    client.push_blob_file(&here, digest, large.len() as u64, &from).await.unwrap();
    assert!(client.has_blob(&here, &digest).await.unwrap());
    client.push_blob_file(&here, digest, large.len() as u64, &from).await.unwrap();
    assert_eq!(client.push_blob(&here, large.clone().into()).await.unwrap(), digest);

    let descriptor = Descriptor::of("x", &large);
    let to = dir.path().join("to");
    client.blob_to_file(&here, &descriptor, &to).await.unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), large);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);

    let empty = client.push_blob(&here, bytes::Bytes::new()).await.unwrap();
    assert_eq!(empty, Digest::of(b""));
    client.blob_to_file(&here, &Descriptor::of("x", b""), &to).await.unwrap();
    assert!(std::fs::read(&to).unwrap().is_empty());

    let small = client.push_blob(&here, "{}".into()).await.unwrap();
    assert_eq!(client.blob(&here, &Descriptor::new("x", small, 2), 10).await.unwrap(), "{}");
    let error = client.blob(&here, &descriptor, 10).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { max: 10, .. }));
    for wrong in [1, 3] {
        let error = client.blob(&here, &Descriptor::new("x", small, wrong), 10).await.unwrap_err();
        assert!(matches!(error, ClientError::SizeMismatch { .. }), "{error:?}");
        let error = client.blob_to_file(&here, &Descriptor::new("x", small, wrong), &to).await.unwrap_err();
        assert!(matches!(error, ClientError::SizeMismatch { .. }), "{error:?}");
    }
    // An error body is longer than the blob would be, and still says what is wrong.
    let error = client.blob(&here, &Descriptor::of("x", b"no"), 10).await.unwrap_err();
    assert!(matches!(error, ClientError::NotFound(_)), "{error:?}");
    assert_eq!(error.failure(), FailureCode::PullNotFound);
    let error = client.blob_to_file(&here, &Descriptor::of("x", b"no"), &to).await.unwrap_err();
    assert!(matches!(error, ClientError::NotFound(_)), "{error:?}");
}

async fn manifests(client: &Client) {
    let to = reference("oci://margrave/a/b:1");
    let layer = client.push_blob(&to.repository, "layer".into()).await.unwrap();
    let manifest = ImageManifest::artifact("x/y", vec![Descriptor::new("x", layer, 5)]).to_bytes();
    let other = reference("oci://margrave/other:1");
    let error = client.push_manifest(&other, IMAGE_MANIFEST, manifest.clone().into()).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error:?}");
    client.push_blob(&to.repository, "{}".into()).await.unwrap();
    let digest = client.push_manifest(&to, IMAGE_MANIFEST, manifest.clone().into()).await.unwrap();
    for reference in [to.clone(), to.pinned(digest)] {
        let pulled = client.manifest(&reference).await.unwrap();
        assert_eq!(
            (pulled.digest, &pulled.bytes[..], pulled.media_type.as_str()),
            (digest, &manifest[..], IMAGE_MANIFEST)
        );
    }
    let error = client.manifest(&reference("oci://margrave/a/b:2")).await.unwrap_err();
    assert!(matches!(error, ClientError::NotFound(what) if what == "oci://margrave/a/b:2"));
    let wrong = to.repository.at(TagOrDigest::Digest(Digest::of(b"other")));
    let error = client.push_manifest(&wrong, IMAGE_MANIFEST, manifest.into()).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error:?}");
    let error = client.tags(&repository("oci://margrave/nothing/here")).await.unwrap_err();
    assert!(matches!(error, ClientError::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn blobs_and_manifests_through_our_registry() {
    let open = Rig::ours().await;
    manifests(&open.client()).await;
    blobs(&open.client()).await;
    let closed = Rig::ours_with_password().await;
    manifests(&closed.client_as(USER, PASSWORD)).await;
    blobs(&closed.client_as(USER, PASSWORD)).await;
}

#[tokio::test]
async fn blobs_and_manifests_through_debians_registry() {
    let Some(open) = Rig::debian(false).await else { return };
    manifests(&open.client()).await;
    blobs(&open.client()).await;
    let closed = Rig::debian(true).await.unwrap();
    manifests(&closed.client_as(USER, PASSWORD)).await;
    blobs(&closed.client_as(USER, PASSWORD)).await;
}

#[tokio::test]
async fn wrong_or_no_credentials_are_told_apart_from_the_rest() {
    let rig = Rig::ours_with_password().await;
    for client in [rig.client(), rig.client_as(USER, "wrong")] {
        let error = client.manifest(&reference("oci://margrave/a:1")).await.unwrap_err();
        assert!(matches!(error, ClientError::Unauthorized(_)), "{error:?}");
        assert_eq!(error.failure(), FailureCode::PullDenied);
        let error = client.push_blob(&repository("oci://margrave/a"), "x".into()).await.unwrap_err();
        assert!(matches!(error, ClientError::Unauthorized(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_registry_nobody_told_us_about_and_one_that_is_not_there() {
    let client = Client::new(Hosts::new());
    let error = client.manifest(&reference("oci://margrave/a:1")).await.unwrap_err();
    assert!(matches!(error, ClientError::UnknownHost(_)), "{error:?}");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = client.manifest(&reference(&format!("127.0.0.1:{port}/a:1"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Network { .. }), "{error:?}");
    assert_eq!(error.failure(), FailureCode::PullFailed);
}
