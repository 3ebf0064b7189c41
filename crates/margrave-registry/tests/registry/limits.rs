//! Everything is bounded.

use std::time::Duration;

use axum::body::Body;
use margrave_core::digest::Digest;
use margrave_registry::{Limits, RegistryError};

use crate::rig::{Rig, everybody, files, name};

#[tokio::test]
async fn a_blob_beyond_the_limit_is_refused_as_soon_as_that_is_known() {
    let limits = Limits { blob_bytes_max: 10, ..Limits::default() };
    let rig = Rig::with(limits, everybody);
    rig.push("a", b"0123456789").await;
    let digest = Digest::of(b"0123456789x");
    rig.send("POST", &format!("/v2/a/blobs/uploads/?digest={digest}"), &[], "0123456789x")
        .await
        .refused(413, "SIZE_INVALID");
    let location = rig.start("a").await;
    rig.send("PATCH", &location, &[], "012345").await.expect(202);
    // Announced too long: not even begun, and the upload can go on.
    rig.send("PATCH", &location, &[("content-length", "5")], "67890").await.refused(413, "SIZE_INVALID");
    // Not announced: seen when it comes, and the upload is over.
    rig.send("PATCH", &location, &[], "67890").await.refused(413, "SIZE_INVALID");
    rig.get(&location).await.refused(404, "BLOB_UPLOAD_UNKNOWN");
    let error = rig.registry.put_blob(&name("a"), vec![0; 11].into()).await.unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { max: 10 }));
    assert_eq!(rig.incoming(), 0);
}

#[tokio::test]
async fn open_uploads_are_counted() {
    let limits = Limits { uploads_max: 3, ..Limits::default() };
    let rig = Rig::with(limits, everybody);
    let mut locations = Vec::new();
    for _ in 0..3 {
        locations.push(rig.start("a").await);
    }
    let answer = rig.send("POST", "/v2/a/blobs/uploads/", &[], Body::empty()).await;
    answer.refused(429, "TOOMANYREQUESTS");
    assert!(answer.header("retry-after").parse::<u32>().unwrap() > 0);
    rig.send("DELETE", &locations[0], &[], Body::empty()).await.expect(204);
    rig.start("a").await;
    assert_eq!(rig.incoming(), 3);
}

#[tokio::test]
async fn an_upload_that_nobody_continues_makes_room() {
    let limits = Limits { uploads_max: 2, upload_idle_max: Duration::ZERO, ..Limits::default() };
    let rig = Rig::with(limits, everybody);
    let first = rig.start("a").await;
    rig.start("a").await;
    rig.start("a").await;
    rig.get(&first).await.refused(404, "BLOB_UPLOAD_UNKNOWN");
    let swept = rig.registry.sweep(Duration::ZERO).await.unwrap();
    assert_eq!(swept.uploads, 1);
    assert_eq!(files(rig.dir.path()), ["lock"]);
}

#[tokio::test]
async fn many_pushes_of_the_same_blob_at_once() {
    let rig = Rig::new();
    let bytes = vec![7u8; 3 * 1024 * 1024];
    let digest = Digest::of(&bytes);
    let path = format!("/v2/a/blobs/uploads/?digest={digest}");
    let pushes = (0..8).map(|_| rig.send("POST", &path, &[], bytes.clone()));
    for answer in futures_util::future::join_all(pushes).await {
        answer.expect(201);
    }
    assert_eq!(rig.get(&format!("/v2/a/blobs/{digest}")).await.expect(200).body, bytes);
    assert_eq!(rig.incoming(), 0);
}
