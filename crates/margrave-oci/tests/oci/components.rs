//! Compose components: from a directory to a registry and back.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use margrave_core::digest::Digest;
use margrave_core::report::{FailureCode, Retry};
use margrave_oci::archive;
use margrave_oci::client::Client;
use margrave_oci::compose::{
    BuildError, COMPOSE_LAYER_TYPE, COMPOSE_TYPE, ComposeArchive, ComposeError, layer_of,
};
use margrave_oci::manifest::{Descriptor, IMAGE_MANIFEST, ImageManifest};

use crate::rig::{PASSWORD, Rig, USER, reference};

fn project(dir: &Path) {
    fs::create_dir_all(dir.join("config/empty")).unwrap();
    fs::write(dir.join("compose.yaml"), "services: {}\n").unwrap();
    fs::write(dir.join("config/app.conf"), "x=1\n").unwrap();
    fs::write(dir.join("start.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(dir.join("start.sh"), fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink("config/app.conf", dir.join("app.conf")).unwrap();
}

#[test]
fn the_same_content_makes_the_same_bytes() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    project(one.path());
    project(two.path());
    // Other times, other masks: nothing of it is content.
    fs::set_permissions(two.path().join("config/app.conf"), fs::Permissions::from_mode(0o600)).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::open(two.path().join("compose.yaml")).unwrap().set_modified(time).unwrap();
    let build = |dir: &Path| ComposeArchive::build(dir, "press").unwrap();
    assert_eq!(build(one.path()).bytes(), build(two.path()).bytes());
    assert_eq!(build(one.path()).checked().top, "press");
    // Written down, so that a new compiler or library cannot change what devices have already fetched.
    let golden = "sha256:7cbcb68b41a28f615eb84f6e688b12fee9ec21730912a5cc4b0b6261464f32c5";
    assert_eq!(build(one.path()).digest().to_string(), golden);
    fs::write(two.path().join("compose.yaml"), "services: {x: {}}\n").unwrap();
    assert_ne!(build(one.path()).digest(), build(two.path()).digest());
}

#[test]
fn what_we_build_we_accept() {
    let dir = tempfile::tempdir().unwrap();
    project(dir.path());
    let built = ComposeArchive::build(dir.path(), "press").unwrap();
    let to = tempfile::tempdir().unwrap();
    let bytes = &mut std::io::Cursor::new(built.bytes());
    let path = archive::unpack(bytes, built.digest(), &to.path().join("x")).unwrap();
    assert_eq!(fs::read_to_string(path.join("app.conf")).unwrap(), "x=1\n");
    assert!(path.join("config/empty").is_dir());
    assert_eq!(fs::metadata(path.join("start.sh")).unwrap().permissions().mode() & 0o777, 0o755);
}

#[test]
fn a_directory_that_makes_no_archive_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let build = || ComposeArchive::build(dir.path(), "press").unwrap_err();
    assert!(matches!(build(), BuildError::Invalid(archive::ArchiveError::NoComposeFile { .. })));
    fs::write(dir.path().join("docker-compose.yml"), "").unwrap();
    let error = build();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("rename docker-compose.yml"), "{cause}");
    fs::write(dir.path().join("compose.yaml"), "").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("passwd")).unwrap();
    assert!(matches!(build(), BuildError::Invalid(archive::ArchiveError::Entry { .. })));
    fs::remove_file(dir.path().join("passwd")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    assert!(matches!(build(), BuildError::Special(_)));
    drop(socket);
    fs::remove_file(dir.path().join("socket")).unwrap();
    fs::write(dir.path().join("n".repeat(200)), "").unwrap();
    assert!(matches!(build(), BuildError::Path(_)));
    let error = ComposeArchive::build(&dir.path().join("missing"), "press").unwrap_err();
    assert!(matches!(error, BuildError::Read { .. }));
}

#[test]
fn pk_071_to_pk_075_the_manifest_is_as_the_standard_wants_it() {
    let dir = tempfile::tempdir().unwrap();
    project(dir.path());
    let manifest = ComposeArchive::build(dir.path(), "press").unwrap().manifest("press", "1.2.3_build.7");
    let json: serde_json::Value = serde_json::from_slice(&manifest.to_bytes()).unwrap();
    assert_eq!(json["artifactType"], "application/vnd.org.margo.component.compose+json");
    assert_eq!(json["config"]["mediaType"], "application/vnd.oci.empty.v1+json");
    assert_eq!(json["layers"].as_array().unwrap().len(), 1);
    assert_eq!(json["layers"][0]["mediaType"], "application/vnd.org.margo.component.compose.tar+gzip");
    for annotations in [&json["annotations"], &json["layers"][0]["annotations"]] {
        assert_eq!(annotations["org.margo.component.type"], "compose");
        assert_eq!(annotations["org.margo.component.version"], "1.2.3+build.7");
        assert_eq!(annotations["org.opencontainers.image.version"], "1.2.3+build.7");
        assert_eq!(annotations["org.opencontainers.image.title"], "press");
    }
}

#[test]
fn pk_078_what_is_no_compose_component_is_refused() {
    let layer = Descriptor::of(COMPOSE_LAYER_TYPE, b"x");
    let good = ImageManifest::artifact(COMPOSE_TYPE, vec![layer.clone()]);
    assert_eq!(layer_of("x", &good.to_bytes()).unwrap(), layer);
    let refused = |manifest: &ImageManifest| {
        let error = layer_of("x", &manifest.to_bytes()).unwrap_err();
        assert_eq!(
            (error.failure(), error.retry()),
            (FailureCode::ArchiveInvalid, Retry::NotUntilManifestChanges)
        );
        error
    };
    for kind in [
        None,
        Some("application/vnd.docker.compose.project"),
        Some("application/vnd.margo.component.compose+json"),
    ] {
        let manifest = ImageManifest { artifact_type: kind.map(str::to_owned), ..good.clone() };
        assert!(matches!(refused(&manifest), ComposeError::ArtifactType { .. }));
    }
    for layers in [vec![], vec![layer.clone(), layer.clone()]] {
        assert!(matches!(refused(&ImageManifest { layers, ..good.clone() }), ComposeError::Layers { .. }));
    }
    let zip = Descriptor { media_type: "application/zip".into(), ..layer.clone() };
    assert!(matches!(
        refused(&ImageManifest { layers: vec![zip], ..good.clone() }),
        ComposeError::LayerType { .. }
    ));
    let huge = Descriptor { size: u64::MAX, ..layer };
    assert!(matches!(refused(&ImageManifest { layers: vec![huge], ..good }), ComposeError::TooLarge { .. }));
    assert!(matches!(layer_of("x", b"{}"), Err(ComposeError::Manifest(..))));
}

/// Push, resolve, pull, unpack.
async fn round_trip(client: &Client) {
    let dir = tempfile::tempdir().unwrap();
    project(dir.path());
    let built = ComposeArchive::build(dir.path(), "press").unwrap();
    let to = reference("oci://margrave/components/press:1.0.0");
    let digest = client.push_compose(&to, "press", &built).await.unwrap();
    // Pushing again is fine.
    assert_eq!(client.push_compose(&to, "press", &built).await.unwrap(), digest);

    let component = client.resolve_compose(&to).await.unwrap();
    assert_eq!((component.manifest, component.layer.digest), (digest, built.digest()));
    assert_eq!(client.resolve_compose(&to.pinned(digest)).await.unwrap(), component);
    let there = tempfile::tempdir().unwrap();
    let file = there.path().join("press.tgz");
    client.pull_compose(&to, &component, &file).await.unwrap();
    assert_eq!(&fs::read(&file).unwrap(), built.bytes());
    let mut file = fs::File::open(file).unwrap();
    let path = archive::unpack(&mut file, component.layer.digest, &there.path().join("press")).unwrap();
    assert_eq!(fs::read_to_string(path.join("compose.yaml")).unwrap(), "services: {}\n");

    let missing =
        client.resolve_compose(&reference("oci://margrave/components/press:9.9.9")).await.unwrap_err();
    assert_eq!(missing.failure(), FailureCode::PullNotFound);
    let image = ImageManifest {
        config: Descriptor::of("x", b"{}"),
        artifact_type: None,
        ..ImageManifest::artifact("", vec![])
    };
    let to = reference("oci://margrave/components/press:image");
    client.push_manifest(&to, IMAGE_MANIFEST, image.to_bytes().into()).await.unwrap();
    assert!(matches!(client.resolve_compose(&to).await.unwrap_err(), ComposeError::ArtifactType { .. }));
}

#[tokio::test]
async fn a_component_through_our_registry() {
    round_trip(&Rig::ours().await.client()).await;
    round_trip(&Rig::ours_with_password().await.client_as(USER, PASSWORD)).await;
}

#[tokio::test]
async fn a_component_through_debians_registry() {
    let Some(open) = Rig::debian(false).await else { return };
    round_trip(&open.client()).await;
    let closed = Rig::debian(true).await.unwrap();
    round_trip(&closed.client_as(USER, PASSWORD)).await;
    for client in [closed.client(), closed.client_as(USER, "wrong")] {
        let error =
            client.resolve_compose(&reference("oci://margrave/components/press:1.0.0")).await.unwrap_err();
        assert_eq!(error.failure(), FailureCode::PullDenied);
    }
}

#[tokio::test]
async fn an_archive_of_somebody_else_is_checked_before_it_is_pushed() {
    let good = crate::archives::Tar::default().file("app/compose.yaml", b"").gzip();
    let archive = ComposeArchive::from_bytes(good.clone().into()).unwrap();
    assert_eq!(archive.digest(), Digest::of(&good));
    let bad = crate::archives::Tar::default().file("../compose.yaml", b"").gzip();
    assert!(ComposeArchive::from_bytes(bad.into()).is_err());
}
