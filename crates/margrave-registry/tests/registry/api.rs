//! Pull, push, list and delete, and everything a client can get wrong.

use axum::body::Body;
use margrave_core::digest::Digest;
use margrave_oci::manifest::{
    DOCKER_MANIFEST, Descriptor, IMAGE_INDEX, IMAGE_MANIFEST, ImageIndex, ImageManifest,
};
use margrave_registry::{Action, Decision, Limits};

use crate::rig::{Rig, artifact, files, name, reference};

#[tokio::test]
async fn the_base_says_what_we_speak() {
    let rig = Rig::new();
    for path in ["/v2", "/v2/"] {
        let answer = rig.get(path).await;
        assert_eq!(answer.expect(200).header("docker-distribution-api-version"), "registry/2.0");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    rig.send("POST", "/v2/", &[], Body::empty()).await.refused(405, "UNSUPPORTED");
    rig.get("/v2/_catalog").await.refused(404, "UNSUPPORTED");
}

#[tokio::test]
async fn a_blob_pushed_in_one_request_comes_back() {
    let rig = Rig::new();
    let digest = rig.push("a/b", b"hello").await;
    let path = format!("/v2/a/b/blobs/{digest}");
    let answer = rig.get(&path).await;
    assert_eq!(answer.expect(200).body, "hello");
    assert_eq!(answer.header("docker-content-digest"), digest.to_string());
    assert_eq!(answer.header("content-length"), "5");
    let head = rig.send("HEAD", &path, &[], Body::empty()).await;
    assert_eq!(head.expect(200).header("content-length"), "5");
    assert!(head.body.is_empty());
    let etag = answer.header("etag").to_owned();
    rig.send("GET", &path, &[("if-none-match", &etag)], Body::empty()).await.expect(304);
    // The same again is fine and changes nothing.
    rig.push("a/b", b"hello").await;
    assert_eq!(rig.get(&path).await.expect(200).body, "hello");
    assert_eq!(rig.incoming(), 0);
}

#[tokio::test]
async fn a_blob_is_seen_only_in_its_repository() {
    let rig = Rig::new();
    let digest = rig.push("mine", b"secret").await;
    rig.get(&format!("/v2/yours/blobs/{digest}")).await.refused(404, "BLOB_UNKNOWN");
    rig.get(&format!("/v2/yours/manifests/{digest}")).await.refused(404, "MANIFEST_UNKNOWN");
    rig.get(&format!("/v2/mine/manifests/{digest}")).await.refused(404, "MANIFEST_UNKNOWN");
}

#[tokio::test]
async fn an_empty_blob_is_a_blob() {
    let rig = Rig::new();
    let digest = rig.push("a", b"").await;
    let answer = rig.get(&format!("/v2/a/blobs/{digest}")).await;
    assert!(answer.expect(200).body.is_empty());
}

#[tokio::test]
async fn ranges_of_a_blob() {
    let rig = Rig::new();
    let digest = rig.push("a", b"0123456789").await;
    let path = format!("/v2/a/blobs/{digest}");
    for (range, wanted, content_range) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=8-999", "89", "bytes 8-9/10"),
        ("bytes=-4", "6789", "bytes 6-9/10"),
        ("bytes=-999", "0123456789", "bytes 0-9/10"),
    ] {
        let answer = rig.send("GET", &path, &[("range", range)], Body::empty()).await;
        assert_eq!(answer.expect(206).body, wanted, "{range}");
        assert_eq!(answer.header("content-range"), content_range);
    }
    for whole in ["bytes=1-2,4-5", "lines=1-2", "bytes=x-", "bytes=5-2"] {
        let answer = rig.send("GET", &path, &[("range", whole)], Body::empty()).await;
        assert_eq!(answer.expect(200).body, "0123456789", "{whole}");
    }
    for outside in ["bytes=10-", "bytes=10-20", "bytes=-0"] {
        let answer = rig.send("GET", &path, &[("range", outside)], Body::empty()).await;
        answer.refused(416, "SIZE_INVALID");
        assert_eq!(answer.header("content-range"), "bytes */10");
    }
    let other = [("range", "bytes=0-3"), ("if-range", "\"sha256:other\"")];
    assert_eq!(rig.send("GET", &path, &other, Body::empty()).await.expect(200).body.len(), 10);
}

#[tokio::test]
async fn an_upload_in_chunks() {
    let rig = Rig::new();
    let location = rig.start("a").await;
    let answer = rig.send("PATCH", &location, &[("content-range", "0-4")], "01234").await;
    assert_eq!(answer.expect(202).header("range"), "0-4");
    assert_eq!(answer.header("location"), location);
    let status = rig.get(&location).await;
    assert_eq!(status.expect(204).header("range"), "0-4");
    // Without a range a chunk simply continues.
    assert_eq!(rig.send("PATCH", &location, &[], "567").await.expect(202).header("range"), "0-7");
    let digest = Digest::of(b"0123456789");
    let last = [("content-range", "8-9")];
    let answer = rig.send("PUT", &format!("{location}?digest={digest}"), &last, "89").await;
    assert_eq!(answer.expect(201).header("location"), format!("/v2/a/blobs/{digest}"));
    assert_eq!(rig.get(&format!("/v2/a/blobs/{digest}")).await.expect(200).body, "0123456789");
    rig.get(&location).await.refused(404, "BLOB_UPLOAD_UNKNOWN");
    assert_eq!(rig.incoming(), 0);
}

#[tokio::test]
async fn chunks_out_of_order_are_refused_and_told_where_to_go_on() {
    let rig = Rig::new();
    let location = rig.start("a").await;
    rig.send("PATCH", &location, &[("content-range", "0-4")], "01234").await.expect(202);
    for range in ["0-4", "6-10", "4-8"] {
        let answer = rig.send("PATCH", &location, &[("content-range", range)], "xxxxx").await;
        answer.refused(416, "BLOB_UPLOAD_INVALID");
        assert_eq!(answer.header("range"), "0-4");
        assert_eq!(answer.header("location"), location);
    }
    for bad in ["x", "5", "9-5", "5-18446744073709551615", "-5"] {
        let answer = rig.send("PATCH", &location, &[("content-range", bad)], "x").await;
        answer.refused(400, "BLOB_UPLOAD_INVALID");
    }
    rig.send("PATCH", &location, &[("content-range", "5-6"), ("content-length", "3")], "567")
        .await
        .refused(400, "SIZE_INVALID");
    let digest = Digest::of(b"01234567");
    rig.send("PUT", &format!("{location}?digest={digest}"), &[("content-range", "5-7")], "567")
        .await
        .expect(201);
}

#[tokio::test]
async fn a_wrong_digest_at_the_end_leaves_nothing() {
    let rig = Rig::new();
    let wrong = Digest::of(b"something else");
    let location = rig.start("a").await;
    rig.send("PATCH", &location, &[], "hello").await.expect(202);
    rig.send("PUT", &format!("{location}?digest={wrong}"), &[], Body::empty())
        .await
        .refused(400, "DIGEST_INVALID");
    rig.get(&location).await.refused(404, "BLOB_UPLOAD_UNKNOWN");
    rig.send("POST", &format!("/v2/a/blobs/uploads/?digest={wrong}"), &[], "hello")
        .await
        .refused(400, "DIGEST_INVALID");
    for digest in [wrong, Digest::of(b"hello")] {
        rig.get(&format!("/v2/a/blobs/{digest}")).await.refused(404, "BLOB_UNKNOWN");
    }
    assert_eq!(files(rig.dir.path()), ["lock"]);
}

#[tokio::test]
async fn a_digest_that_cannot_be_checked_is_refused_but_the_upload_stays() {
    let rig = Rig::new();
    let location = rig.start("a").await;
    for query in ["", "?digest=", "?digest=md5:00", "?digest=sha512:00", "?digest=sha256:ABC"] {
        rig.send("PUT", &format!("{location}{query}"), &[], "x").await.refused(400, "DIGEST_INVALID");
    }
    rig.send("PUT", &format!("{location}?digest=a&digest=b"), &[], "x").await.refused(400, "UNSUPPORTED");
    let digest = Digest::of(b"x");
    rig.send("PUT", &format!("{location}?digest={digest}"), &[], "x").await.expect(201);
}

#[tokio::test]
async fn an_upload_belongs_to_its_repository_and_ends_when_told() {
    let rig = Rig::new();
    let location = rig.start("a").await;
    let elsewhere = location.replace("/v2/a/", "/v2/b/");
    for path in [
        &elsewhere,
        "/v2/a/blobs/uploads/0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11",
        "/v2/a/blobs/uploads/..%2f..%2flock",
    ] {
        for method in ["GET", "PATCH", "PUT", "DELETE"] {
            let path = format!("{path}?digest={}", Digest::of(b"x"));
            rig.send(method, &path, &[], "x").await.refused(404, "BLOB_UPLOAD_UNKNOWN");
        }
    }
    assert_eq!(rig.incoming(), 1);
    rig.send("DELETE", &location, &[], Body::empty()).await.expect(204);
    rig.get(&location).await.refused(404, "BLOB_UPLOAD_UNKNOWN");
    assert_eq!(rig.incoming(), 0);
}

#[tokio::test]
async fn a_blob_is_mounted_from_another_repository() {
    let rig = Rig::new();
    let digest = rig.push("from", b"shared").await;
    let path = format!("/v2/to/blobs/uploads/?mount={digest}&from=from");
    let answer = rig.send("POST", &path, &[], Body::empty()).await;
    assert_eq!(answer.expect(201).header("location"), format!("/v2/to/blobs/{digest}"));
    assert_eq!(rig.get(&format!("/v2/to/blobs/{digest}")).await.expect(200).body, "shared");
    assert_eq!(rig.registry.size_on_disk().await.unwrap(), 6);
    // What is not there to mount is pushed instead.
    let other = Digest::of(b"other");
    for query in [
        format!("mount={other}&from=from"),
        format!("mount={digest}"),
        format!("mount={digest}&from=nowhere"),
    ] {
        let answer = rig.send("POST", &format!("/v2/to2/blobs/uploads/?{query}"), &[], Body::empty()).await;
        assert!(answer.expect(202).header("location").starts_with("/v2/to2/blobs/uploads/"));
    }
    rig.send("POST", &format!("/v2/to/blobs/uploads/?mount={digest}&from=../from"), &[], Body::empty())
        .await
        .refused(400, "NAME_INVALID");
}

#[tokio::test]
async fn a_manifest_comes_back_as_it_was_pushed() {
    let rig = Rig::new();
    rig.push("a", b"{}").await;
    rig.push("a", b"layer").await;
    // Odd spacing: the bytes count, not what they mean.
    let mut manifest = artifact(b"layer");
    manifest.media_type = Some(DOCKER_MANIFEST.to_owned());
    let bytes = [b"  ".as_slice(), &manifest.to_bytes(), b"\n"].concat();
    let digest = Digest::of(&bytes);
    let typed = [("content-type", DOCKER_MANIFEST)];
    let answer = rig.send("PUT", "/v2/a/manifests/1.0", &typed, bytes.clone()).await;
    assert_eq!(answer.expect(201).header("docker-content-digest"), digest.to_string());
    assert_eq!(answer.header("location"), format!("/v2/a/manifests/{digest}"));
    for reference in ["1.0".to_owned(), digest.to_string()] {
        let path = format!("/v2/a/manifests/{reference}");
        let answer = rig.send("GET", &path, &[("accept", IMAGE_INDEX)], Body::empty()).await;
        assert_eq!(answer.expect(200).body, bytes);
        assert_eq!(answer.header("content-type"), DOCKER_MANIFEST);
        assert_eq!(answer.header("docker-content-digest"), digest.to_string());
        let head = rig.send("HEAD", &path, &[], Body::empty()).await;
        assert_eq!(head.expect(200).header("content-length"), bytes.len().to_string());
        assert!(head.body.is_empty());
        let etag = answer.header("etag").to_owned();
        rig.send("GET", &path, &[("if-none-match", &etag)], Body::empty()).await.expect(304);
    }
    // Pushing the same again, by tag and by digest, is fine.
    rig.send("PUT", "/v2/a/manifests/1.0", &typed, bytes.clone()).await.expect(201);
    rig.send("PUT", &format!("/v2/a/manifests/{digest}"), &typed, bytes).await.expect(201);
}

#[tokio::test]
async fn a_tag_moves_and_the_old_manifest_stays_by_digest() {
    let rig = Rig::new();
    let first = rig.push_artifact("a", "latest", b"one").await;
    let second = rig.push_artifact("a", "latest", b"two").await;
    assert_eq!(rig.get("/v2/a/manifests/latest").await.header("docker-content-digest"), second.to_string());
    rig.get(&format!("/v2/a/manifests/{first}")).await.expect(200);
}

#[tokio::test]
async fn a_manifest_whose_parts_are_missing_is_refused() {
    let rig = Rig::new();
    let bytes = artifact(b"layer").to_bytes();
    rig.put_manifest("a", "1", &bytes).await.refused(404, "MANIFEST_BLOB_UNKNOWN");
    rig.push("a", b"{}").await;
    rig.push("elsewhere", b"layer").await;
    let answer = rig.put_manifest("a", "1", &bytes).await;
    answer.refused(404, "MANIFEST_BLOB_UNKNOWN");
    assert_eq!(answer.json()["errors"][0]["detail"]["digest"], Digest::of(b"layer").to_string());
    rig.get("/v2/a/manifests/1").await.refused(404, "MANIFEST_UNKNOWN");
    rig.push("a", b"layer").await;
    rig.put_manifest("a", "1", &bytes).await.expect(201);

    let mut lying = artifact(b"layer");
    lying.layers[0].size = 6;
    rig.put_manifest("a", "2", &lying.to_bytes()).await.refused(400, "MANIFEST_INVALID");
    // A layer that may not be redistributed lives elsewhere.
    let mut foreign = artifact(b"layer");
    foreign
        .layers
        .push(Descriptor { urls: vec!["https://example.com/x".into()], ..Descriptor::of("x", b"foreign") });
    rig.put_manifest("a", "3", &foreign.to_bytes()).await.expect(201);
}

#[tokio::test]
async fn an_index_needs_its_children() {
    let rig = Rig::new();
    let child = rig.push_artifact("a", "child", b"layer").await;
    let size = rig.get("/v2/a/manifests/child").await.body.len() as u64;
    let typed = [("content-type", IMAGE_INDEX)];
    let index = ImageIndex::of(vec![Descriptor::new(IMAGE_MANIFEST, child, size)]).to_bytes();
    rig.send("PUT", "/v2/a/manifests/1", &typed, index.clone()).await.expect(201);
    assert_eq!(rig.get("/v2/a/manifests/1").await.expect(200).header("content-type"), IMAGE_INDEX);
    rig.send("PUT", "/v2/b/manifests/1", &typed, index).await.refused(404, "MANIFEST_BLOB_UNKNOWN");
    let index = ImageIndex::of(vec![Descriptor::new(IMAGE_MANIFEST, child, size + 1)]).to_bytes();
    rig.send("PUT", "/v2/a/manifests/2", &typed, index).await.refused(400, "MANIFEST_INVALID");
}

#[tokio::test]
async fn what_is_not_a_manifest_is_refused() {
    let rig = Rig::new();
    rig.push("a", b"{}").await;
    rig.push("a", b"layer").await;
    let good = artifact(b"layer");
    for bad in [&b""[..], b"{", b"[]", b"{}", b"\xff\xfe", &b"[".repeat(100_000)] {
        rig.put_manifest("a", "1", bad).await.refused(400, "MANIFEST_INVALID");
    }
    let old = ImageManifest { schema_version: 1, ..good.clone() };
    rig.put_manifest("a", "1", &old.to_bytes()).await.refused(400, "MANIFEST_INVALID");
    let other = ImageManifest { media_type: Some(DOCKER_MANIFEST.into()), ..good.clone() };
    rig.put_manifest("a", "1", &other.to_bytes()).await.refused(400, "MANIFEST_INVALID");
    let unknown = [("content-type", "text/html")];
    rig.send("PUT", "/v2/a/manifests/1", &unknown, good.to_bytes()).await.refused(400, "MANIFEST_INVALID");
    rig.send("PUT", "/v2/a/manifests/1", &[], good.to_bytes()).await.refused(400, "MANIFEST_INVALID");
    let huge = vec![b' '; 4 * 1024 * 1024 + 1];
    rig.put_manifest("a", "1", &huge).await.refused(413, "SIZE_INVALID");
    let length = [("content-type", IMAGE_MANIFEST), ("content-length", "4194305")];
    rig.send("PUT", "/v2/a/manifests/1", &length, "{}").await.refused(413, "SIZE_INVALID");
    rig.get("/v2/a/manifests/1").await.refused(404, "MANIFEST_UNKNOWN");
}

#[tokio::test]
async fn a_manifest_is_not_stored_under_the_digest_of_another() {
    let rig = Rig::new();
    rig.push("a", b"{}").await;
    rig.push("a", b"layer").await;
    let bytes = artifact(b"layer").to_bytes();
    let other = Digest::of(b"something else");
    rig.put_manifest("a", &other.to_string(), &bytes).await.refused(400, "DIGEST_INVALID");
    rig.get(&format!("/v2/a/manifests/{other}")).await.refused(404, "MANIFEST_UNKNOWN");
    for bad in ["sha256:12", "md5:00", ".x", "-x", "a+b", "%2e%2e"] {
        let answer = rig.put_manifest("a", bad, &bytes).await;
        answer.expect(400);
        rig.get(&format!("/v2/a/manifests/{bad}")).await.refused(404, "MANIFEST_UNKNOWN");
    }
}

#[tokio::test]
async fn tags_come_in_pages_in_lexical_order() {
    let rig = Rig::new();
    rig.get("/v2/a/tags/list").await.refused(404, "NAME_UNKNOWN");
    for tag in ["1.10", "1.9", "2.0", "A", "latest"] {
        rig.push_artifact("a", tag, b"x").await;
    }
    let answer = rig.get("/v2/a/tags/list").await;
    assert_eq!(
        answer.expect(200).json(),
        serde_json::json!({"name": "a", "tags": ["1.10", "1.9", "2.0", "A", "latest"]})
    );
    assert!(!answer.headers.contains_key("link"));
    let answer = rig.get("/v2/a/tags/list?n=2").await;
    assert_eq!(answer.json()["tags"], serde_json::json!(["1.10", "1.9"]));
    assert_eq!(answer.header("link"), "</v2/a/tags/list?n=2&last=1.9>; rel=\"next\"");
    let answer = rig.get("/v2/a/tags/list?n=2&last=1.9").await;
    assert_eq!(answer.json()["tags"], serde_json::json!(["2.0", "A"]));
    let answer = rig.get("/v2/a/tags/list?n=2&last=A").await;
    assert_eq!(answer.json()["tags"], serde_json::json!(["latest"]));
    assert!(!answer.headers.contains_key("link"));
    assert_eq!(
        rig.get("/v2/a/tags/list?last=1.91").await.json()["tags"],
        serde_json::json!(["2.0", "A", "latest"])
    );
    assert_eq!(rig.get("/v2/a/tags/list?n=0").await.json()["tags"], serde_json::json!([]));
    rig.get("/v2/a/tags/list?n=-1").await.refused(400, "PAGINATION_NUMBER_INVALID");
}

#[tokio::test]
async fn referrers_of_a_manifest() {
    let rig = Rig::new();
    let subject = rig.push_artifact("a", "1", b"layer").await;
    let about = |kind: &str| {
        let mut manifest = artifact(b"layer");
        manifest.artifact_type = Some(kind.to_owned());
        manifest.subject = Some(Descriptor::new(IMAGE_MANIFEST, subject, 1));
        manifest.annotations.insert("who".to_owned(), kind.to_owned());
        manifest.to_bytes()
    };
    let empty = rig.get(&format!("/v2/a/referrers/{subject}")).await;
    assert_eq!(empty.expect(200).header("content-type"), IMAGE_INDEX);
    assert_eq!(empty.json()["manifests"], serde_json::json!([]));
    for kind in ["example/sbom+json", "example/signature"] {
        let answer = rig.put_manifest("a", &Digest::of(&about(kind)).to_string(), &about(kind)).await;
        assert_eq!(answer.expect(201).header("oci-subject"), subject.to_string());
    }
    let all = rig.get(&format!("/v2/a/referrers/{subject}")).await;
    assert_eq!(all.expect(200).json()["manifests"].as_array().unwrap().len(), 2);
    for filter in ["example%2Fsbom%2Bjson", "example/sbom+json"] {
        let one = rig.get(&format!("/v2/a/referrers/{subject}?artifactType={filter}")).await;
        assert_eq!(one.expect(200).header("oci-filters-applied"), "artifactType");
        let found = &one.json()["manifests"];
        assert_eq!(found.as_array().unwrap().len(), 1);
        assert_eq!(found[0]["artifactType"], "example/sbom+json");
        assert_eq!(found[0]["annotations"]["who"], "example/sbom+json");
        assert_eq!(found[0]["digest"], Digest::of(&about("example/sbom+json")).to_string());
    }
    let signature = Digest::of(&about("example/signature"));
    rig.send("DELETE", &format!("/v2/a/manifests/{signature}"), &[], Body::empty()).await.expect(202);
    let left = rig.get(&format!("/v2/a/referrers/{subject}")).await;
    assert_eq!(left.json()["manifests"].as_array().unwrap().len(), 1);
    rig.get("/v2/a/referrers/sha256:12").await.refused(400, "DIGEST_INVALID");
}

#[tokio::test]
async fn deleting_a_tag_a_manifest_and_a_blob() {
    let rig = Rig::new();
    let digest = rig.push_artifact("a", "1", b"layer").await;
    rig.push_artifact("a", "2", b"layer").await;
    let other = rig.push_artifact("a", "3", b"other").await;
    let layer = Digest::of(b"layer");
    let delete = async |path: &str| rig.send("DELETE", path, &[], Body::empty()).await;

    delete("/v2/a/manifests/1").await.expect(202);
    delete("/v2/a/manifests/1").await.refused(404, "MANIFEST_UNKNOWN");
    rig.get(&format!("/v2/a/manifests/{digest}")).await.expect(200);
    delete(&format!("/v2/a/blobs/{layer}")).await.refused(405, "DENIED");

    delete(&format!("/v2/a/manifests/{digest}")).await.expect(202);
    delete(&format!("/v2/a/manifests/{digest}")).await.refused(404, "MANIFEST_UNKNOWN");
    rig.get("/v2/a/manifests/2").await.refused(404, "MANIFEST_UNKNOWN");
    assert_eq!(rig.get("/v2/a/tags/list").await.json()["tags"], serde_json::json!(["3"]));
    rig.get(&format!("/v2/a/manifests/{other}")).await.expect(200);

    delete(&format!("/v2/a/blobs/{layer}")).await.expect(202);
    delete(&format!("/v2/a/blobs/{layer}")).await.refused(404, "BLOB_UNKNOWN");
    rig.get(&format!("/v2/a/blobs/{layer}")).await.refused(404, "BLOB_UNKNOWN");
}

#[tokio::test]
async fn names_cannot_leave_the_directory() {
    let rig = Rig::new();
    let digest = Digest::of(b"x");
    for bad in [
        "..",
        "../..",
        "%2e%2e",
        "%2e%2e%2f%2e%2e",
        "a/../../b",
        "a%2f..%2fb",
        "//etc",
        "a/_tags",
        "A",
        "a%00",
        "%c3%a9",
    ] {
        let path = format!("/v2/{bad}/blobs/uploads/?digest={digest}");
        rig.send("POST", &path, &[], "x").await.refused(400, "NAME_INVALID");
        rig.put_manifest(bad, "1", b"{}").await.refused(400, "NAME_INVALID");
        rig.get(&format!("/v2/{bad}/tags/list")).await.refused(400, "NAME_INVALID");
    }
    let long = "a".repeat(256);
    rig.get(&format!("/v2/{long}/tags/list")).await.refused(400, "NAME_INVALID");
    rig.get(&format!("/v2/a/blobs/sha256:{}", "../".repeat(10))).await.refused(404, "UNSUPPORTED");
    rig.get(&format!("/v2/a/blobs/sha256:{}", "..%2f".repeat(10))).await.refused(400, "DIGEST_INVALID");
    assert_eq!(files(rig.dir.path()), ["lock"]);
}

#[tokio::test]
async fn access_is_asked_before_anything_is_looked_up() {
    let rig = Rig::with(
        Limits::default(),
        |request: &http::request::Parts, action, repository: Option<&margrave_registry::RepositoryName>| {
            let who = request.headers.get("authorization").map(|value| value.to_str().unwrap());
            match (who, action, repository.map(|name| name.as_str())) {
                (None, _, _) => Decision::Authenticate,
                (Some("pusher"), _, Some("closed")) => Decision::Deny,
                (Some("pusher"), Action::Delete, _) => Decision::Deny,
                (Some("pusher" | "admin"), _, _) => Decision::Allow,
                (Some(_), Action::Pull | Action::Connect, Some("open") | None) => Decision::Allow,
                (Some(_), _, _) => Decision::Deny,
            }
        },
    );
    let digest = Digest::of(b"x");
    let blob = format!("/v2/open/blobs/{digest}");
    let answer = rig.get("/v2/").await;
    answer.refused(401, "UNAUTHORIZED");
    assert_eq!(answer.header("www-authenticate"), "Basic realm=\"margrave\"");
    rig.get(&blob).await.refused(401, "UNAUTHORIZED");
    let as_ = |who: &'static str| [("authorization", who)];
    rig.send("GET", "/v2/", &as_("reader"), Body::empty()).await.expect(200);
    let push = format!("/v2/open/blobs/uploads/?digest={digest}");
    rig.send("POST", &push, &as_("reader"), "x").await.refused(403, "DENIED");
    rig.send("POST", &push, &as_("pusher"), "x").await.expect(201);
    rig.send("GET", &blob, &as_("reader"), Body::empty()).await.expect(200);
    rig.send("DELETE", &blob, &as_("pusher"), Body::empty()).await.refused(403, "DENIED");
    rig.send("PUT", "/v2/open/manifests/1", &as_("reader"), "{}").await.refused(403, "DENIED");
    rig.send("DELETE", "/v2/open/manifests/1", &as_("pusher"), Body::empty()).await.refused(403, "DENIED");
    rig.send("GET", "/v2/closed/tags/list", &as_("reader"), Body::empty()).await.refused(403, "DENIED");

    // Mounting does not open what one may not read, and does not even say whether it is there.
    rig.send("POST", &push.replace("open", "closed"), &as_("admin"), "x").await.expect(201);
    let mount = format!("/v2/mine/blobs/uploads/?mount={digest}&from=closed");
    rig.send("POST", &mount, &as_("pusher"), Body::empty()).await.expect(202);
    rig.send("POST", &mount, &as_("admin"), Body::empty()).await.expect(201);
}

#[tokio::test]
async fn the_same_verbs_in_process() {
    let rig = Rig::new();
    let (here, tag) = (name("apps/press"), reference("1.0"));
    let registry = &rig.registry;
    let layer = registry.put_blob_from(&here, std::io::Cursor::new(b"layer".to_vec())).await.unwrap();
    registry.put_blob(&here, bytes::Bytes::from_static(b"{}")).await.unwrap();
    let bytes = artifact(b"layer").to_bytes();
    let digest = registry.put_manifest(&here, &tag, IMAGE_MANIFEST, bytes.clone().into()).await.unwrap();
    let stored = registry.manifest(&here, &tag).await.unwrap().unwrap();
    assert_eq!((stored.digest, &stored.bytes[..]), (digest, &bytes[..]));
    assert!(registry.manifest(&here, &reference("2.0")).await.unwrap().is_none());
    let blob = registry.blob(&here, &layer).await.unwrap().unwrap();
    assert_eq!(std::fs::read(&blob.path).unwrap(), b"layer");
    assert_eq!(registry.tags(&here).await.unwrap().unwrap()[0].as_str(), "1.0");
    assert!(registry.tags(&name("apps")).await.unwrap().is_none());
    assert_eq!(registry.repositories().await.unwrap(), std::slice::from_ref(&here));
    assert_eq!(registry.size_on_disk().await.unwrap(), 5 + 2 + bytes.len() as u64);
    assert_eq!(rig.get("/v2/apps/press/manifests/1.0").await.expect(200).body, bytes);
    registry.delete_manifest(&here, &tag).await.unwrap();
    assert!(registry.manifest(&here, &tag).await.unwrap().is_none());
}
