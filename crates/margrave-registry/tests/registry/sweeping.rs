//! Garbage collection: what goes, what stays, and that pushes may go on meanwhile.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use margrave_core::digest::Digest;
use margrave_registry::Swept;

use crate::rig::{Rig, artifact, files, name, reference};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Makes everything in the registry look two days old.
fn age(dir: &Path) {
    for file in files(dir) {
        File::open(dir.join(file)).unwrap().set_modified(SystemTime::now() - 2 * DAY).unwrap();
    }
}

#[tokio::test]
async fn only_what_nobody_refers_to_goes() {
    let rig = Rig::new();
    let kept = rig.push_artifact("keep/this", "1", b"layer").await;
    let gone = rig.push_artifact("drop/this", "1", b"dropped").await;
    rig.push("keep/this", b"never used").await;
    rig.send("DELETE", &format!("/v2/drop/this/manifests/{gone}"), &[], Body::empty()).await.expect(202);

    assert_eq!(rig.registry.sweep(Duration::ZERO).await.unwrap(), Swept::default());
    age(rig.dir.path());
    let swept = rig.registry.sweep(DAY).await.unwrap();
    // "never used", and of drop/this: the config, the layer.
    assert_eq!(swept.unlinked, 3);
    // "never used", "dropped", and the manifest of drop/this; the config is also in keep/this.
    assert_eq!(swept.removed, 3);
    assert!(swept.bytes > 17 && swept.skipped.is_empty(), "{swept:?}");
    assert_eq!(rig.registry.repositories().await.unwrap(), [name("keep/this")]);
    rig.get(&format!("/v2/keep/this/manifests/{kept}")).await.expect(200);
    rig.get(&format!("/v2/keep/this/blobs/{}", Digest::of(b"layer"))).await.expect(200);
    rig.get(&format!("/v2/keep/this/blobs/{}", Digest::of(b"never used"))).await.refused(404, "BLOB_UNKNOWN");
    assert_eq!(rig.registry.sweep(DAY).await.unwrap(), Swept::default());
    // And the swept repository can be pushed to again.
    rig.push_artifact("drop/this", "1", b"dropped").await;
}

#[tokio::test]
async fn a_manifest_without_a_tag_stays_with_its_blobs() {
    let rig = Rig::new();
    let old = rig.push_artifact("a", "1", b"old").await;
    rig.push_artifact("a", "1", b"new").await;
    age(rig.dir.path());
    assert_eq!(rig.registry.sweep(DAY).await.unwrap(), Swept::default());
    rig.get(&format!("/v2/a/manifests/{old}")).await.expect(200);
    rig.get(&format!("/v2/a/blobs/{}", Digest::of(b"old"))).await.expect(200);
}

#[tokio::test]
async fn a_blob_that_a_pusher_asked_for_stays_for_its_manifest() {
    let rig = Rig::new();
    let asked = rig.push("a", b"asked").await;
    let pushed = rig.push("a", b"pushed").await;
    let mounted = rig.push("from", b"mounted").await;
    let ignored = rig.push("a", b"ignored").await;
    age(rig.dir.path());
    rig.send("HEAD", &format!("/v2/a/blobs/{asked}"), &[], Body::empty()).await.expect(200);
    rig.push("a", b"pushed").await;
    rig.send("POST", &format!("/v2/a/blobs/uploads/?mount={mounted}&from=from"), &[], Body::empty())
        .await
        .expect(201);
    rig.registry.sweep(DAY).await.unwrap();
    for digest in [asked, pushed, mounted] {
        rig.get(&format!("/v2/a/blobs/{digest}")).await.expect(200);
    }
    rig.get(&format!("/v2/a/blobs/{ignored}")).await.refused(404, "BLOB_UNKNOWN");
}

#[tokio::test]
async fn a_damaged_manifest_stops_the_sweep_of_its_repository_and_heals_by_a_push() {
    let rig = Rig::new();
    let digest = rig.push_artifact("a", "1", b"layer").await;
    rig.push("a", b"unused").await;
    let path = rig.dir.path().join(format!("blobs/sha256/{}/{}", &digest.hex()[..2], digest.hex()));
    std::fs::write(&path, b"{}").unwrap();
    age(rig.dir.path());
    rig.get("/v2/a/manifests/1").await.refused(500, "MANIFEST_INVALID");
    let swept = rig.registry.sweep(DAY).await.unwrap();
    assert_eq!(swept, Swept { skipped: vec![name("a")], ..Swept::default() });
    rig.push_artifact("a", "1", b"layer").await;
    assert_eq!(
        rig.get("/v2/a/manifests/1").await.expect(200).header("docker-content-digest"),
        digest.to_string()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pushes_go_on_while_it_sweeps() {
    let rig = Rig::new();
    let registry = rig.registry.clone();
    let dir = rig.dir.path().to_owned();
    // Blobs in place, all old: each push below asks for them first, as clients do, and relies on the answer.
    for index in 0..40u32 {
        rig.push("a", &index.to_be_bytes()).await;
    }
    rig.push("a", b"{}").await;
    age(&dir);
    let sweeping = tokio::spawn(async move {
        let mut count = 0;
        for _ in 0..30 {
            count += registry.sweep(DAY).await.unwrap().unlinked;
        }
        count
    });
    let mut relied = 0;
    for index in 0..40u32 {
        let layer = index.to_be_bytes();
        let config =
            rig.send("HEAD", &format!("/v2/a/blobs/{}", Digest::of(b"{}")), &[], Body::empty()).await;
        if config.status == 404 {
            rig.push("a", b"{}").await;
        }
        let head = rig.send("HEAD", &format!("/v2/a/blobs/{}", Digest::of(&layer)), &[], Body::empty()).await;
        if head.status == 404 {
            rig.push("a", &layer).await;
        } else {
            head.expect(200);
            relied += 1;
        }
        rig.put_manifest("a", &format!("t{index}"), &artifact(&layer).to_bytes()).await.expect(201);
    }
    let unlinked = sweeping.await.unwrap();
    for index in 0..40u32 {
        let stored = rig.registry.manifest(&name("a"), &reference(&format!("t{index}"))).await.unwrap();
        assert!(stored.is_some());
        rig.get(&format!("/v2/a/blobs/{}", Digest::of(&index.to_be_bytes()))).await.expect(200);
    }
    assert!(unlinked + relied >= 40, "every blob was either swept or relied on: {unlinked} + {relied}");
}
