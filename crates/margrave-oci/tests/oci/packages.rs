//! Application packages: files, manifest, registry, and back.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_oci::client::{Client, ClientError};
use margrave_oci::manifest::{ANNOTATION_TITLE, Descriptor, IMAGE_INDEX, ImageManifest};
use margrave_oci::package::{
    DESCRIPTION_TYPE, PACKAGE_TYPE, PackageError, PackageFiles, PackageManifest, Resource, ResourceKind,
};

use crate::rig::{PASSWORD, Rig, USER, reference};

const NAMED: [(ResourceKind, &str); 3] = [
    (ResourceKind::Icon, "./resources/icon.PNG"),
    (ResourceKind::DescriptionFile, "resources/about.md"),
    (ResourceKind::LicenseFile, "./LICENSE"),
];

fn write(dir: &Path) {
    fs::create_dir_all(dir.join("resources/more")).unwrap();
    fs::write(dir.join("margo.yaml"), "apiVersion: margo.org/v1\n").unwrap();
    fs::write(dir.join("resources/icon.PNG"), "icon").unwrap();
    fs::write(dir.join("resources/about.md"), "# About\n").unwrap();
    fs::write(dir.join("resources/more/data.bin"), "data").unwrap();
    fs::write(dir.join("LICENSE"), "Apache-2.0\n").unwrap();
    fs::write(dir.join("not-part-of-it.txt"), "").unwrap();
}

#[test]
fn pk_020_to_pk_027_the_manifest_is_as_the_standard_wants_it() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let files = PackageFiles::read_dir(dir.path(), &NAMED).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&files.manifest().to_bytes()).unwrap();
    assert_eq!(json["schemaVersion"], 2);
    assert_eq!(json["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(json["artifactType"], "application/vnd.margo.app.v1+json");
    assert_eq!(
        json["config"]["digest"],
        "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    );
    assert_eq!(json["config"]["data"], "e30=");
    let layers: Vec<_> = json["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| {
            let title = layer["annotations"]["org.opencontainers.image.title"].as_str().unwrap();
            let resource = layer["annotations"]["org.margo.app.resource"].as_str();
            (layer["mediaType"].as_str().unwrap(), title, resource)
        })
        .collect();
    assert_eq!(
        layers,
        [
            ("application/vnd.margo.app.description.v1+yaml", "margo.yaml", None),
            ("application/vnd.margo.app.icon.v1+png", "resources/icon.PNG", Some("icon")),
            (
                "application/vnd.margo.app.descriptionFile.v1+markdown",
                "resources/about.md",
                Some("descriptionFile")
            ),
            ("application/vnd.margo.app.licenseFile.v1+plain", "LICENSE", Some("licenseFile")),
            ("application/octet-stream", "resources/more/data.bin", Some("file")),
        ]
    );
}

#[test]
fn a_directory_that_is_no_package_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let read = |named: &[(ResourceKind, &str)]| PackageFiles::read_dir(dir.path(), named).unwrap_err();
    assert!(matches!(read(&[]), PackageError::NoDescription(_)));
    write(dir.path());
    let missing = read(&[(ResourceKind::ReleaseNotes, "./notes.md")]);
    assert!(matches!(&missing, PackageError::Missing(path) if path == "./notes.md"));
    for outside in ["../x", "/etc/passwd", "resources/../../x", ""] {
        assert!(matches!(read(&[(ResourceKind::Icon, outside)]), PackageError::Title(_)), "{outside}");
    }
    assert!(matches!(read(&[(ResourceKind::Icon, "resources")]), PackageError::Read { .. }));
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("resources/link")).unwrap();
    assert!(matches!(read(&[]), PackageError::Title(_)));
    fs::remove_file(dir.path().join("resources/link")).unwrap();
    fs::write(dir.path().join("margo.yaml"), vec![b' '; 1024 * 1024 + 1]).unwrap();
    assert!(matches!(read(&[]), PackageError::TooLarge { .. }));
    fs::write(dir.path().join("margo.yaml"), "").unwrap();
    for index in 0..101 {
        fs::write(dir.path().join(format!("resources/{index}")), "").unwrap();
    }
    assert!(matches!(read(&[]), PackageError::TooMany));

    let resource = |title: &str| Resource {
        kind: None,
        title: title.into(),
        media_type: "x".into(),
        bytes: Bytes::new(),
    };
    for (resources, duplicate) in
        [(vec![resource("a"), resource("a")], "a"), (vec![resource("margo.yaml")], "margo.yaml")]
    {
        let error = PackageFiles::new(Bytes::new(), resources).unwrap_err();
        assert!(matches!(error, PackageError::Duplicate(title) if title == duplicate));
    }
    for title in ["../a", "/a", "./a", "", "a\nb"] {
        assert!(
            matches!(PackageFiles::new(Bytes::new(), vec![resource(title)]), Err(PackageError::Title(_))),
            "{title}"
        );
    }
}

fn described() -> Descriptor {
    Descriptor::of(DESCRIPTION_TYPE, b"x").annotated(ANNOTATION_TITLE, "margo.yaml")
}

fn read(manifest: &ImageManifest) -> Result<PackageManifest, PackageError> {
    PackageManifest::read("x", &manifest.to_bytes())
}

#[test]
fn pk_021_and_pk_024_what_is_no_package_is_refused() {
    let good = ImageManifest::artifact(PACKAGE_TYPE, vec![described()]);
    let package = read(&good).unwrap();
    assert_eq!(package.digest, Digest::of(&good.to_bytes()));
    for kind in [
        None,
        Some("application/vnd.org.margo.app.v1+json"),
        Some("application/vnd.oci.image.config.v1+json"),
    ] {
        let manifest = ImageManifest { artifact_type: kind.map(str::to_owned), ..good.clone() };
        assert!(matches!(read(&manifest), Err(PackageError::ArtifactType { .. })));
    }
    for layers in [vec![], vec![Descriptor::of("application/yaml", b"x")], vec![described(), described()]] {
        let manifest = ImageManifest { layers, ..good.clone() };
        assert!(matches!(read(&manifest), Err(PackageError::Descriptions { .. })));
    }
    let index = ImageManifest { media_type: Some(IMAGE_INDEX.into()), ..good.clone() };
    assert!(matches!(read(&index), Err(PackageError::MediaType { .. })));
    assert!(matches!(PackageManifest::read("x", b"# comment\n{}"), Err(PackageError::Manifest(..))));
    let huge = Descriptor { size: 1 << 40, ..described() };
    assert!(matches!(
        read(&ImageManifest { layers: vec![huge], ..good.clone() }),
        Err(PackageError::TooLarge { .. })
    ));
    for size in [1 << 40, u64::MAX] {
        let layers = vec![described(), Descriptor { size, ..Descriptor::of("image/png", b"") }];
        assert!(matches!(read(&ImageManifest { layers, ..good.clone() }), Err(PackageError::TooMany)));
    }
    for title in ["../../etc/passwd", "/etc/passwd"] {
        let layers = vec![described(), Descriptor::of("image/png", b"").annotated(ANNOTATION_TITLE, title)];
        assert!(matches!(read(&ImageManifest { layers, ..good.clone() }), Err(PackageError::Title(_))));
    }
}

#[test]
fn pk_026_to_pk_031_resources_are_found_however_they_were_pushed() {
    let titled = |media_type: &str, title: &str| {
        Descriptor::of(media_type, title.as_bytes()).annotated(ANNOTATION_TITLE, title)
    };
    let layers = vec![
        described(),
        titled("application/vnd.margo.app.icon.v1+jpeg", "resources/icon.jpg"),
        // As the sandbox pushes them.
        titled("text/markdown", "./resources/about.md"),
        titled("application/vnd.margo.app.releaseNotes.v1+", "notes.rst"),
        Descriptor::of("application/vnd.margo.app.licenseFile.v1+html", b"no title"),
    ];
    let config = Descriptor::of("application/vnd.example.config", b"{}");
    let package = read(&ImageManifest { config, ..ImageManifest::artifact(PACKAGE_TYPE, layers) }).unwrap();
    let found = |kind, path| {
        let resource = package.resource(kind, path)?;
        Some((resource.kind, resource.title.as_deref(), resource.format.as_deref()))
    };
    use ResourceKind::*;
    assert_eq!(
        found(Icon, "./resources/icon.jpg"),
        Some((Some(Icon), Some("resources/icon.jpg"), Some("jpeg")))
    );
    assert_eq!(
        found(DescriptionFile, "./resources/about.md"),
        Some((None, Some("resources/about.md"), Some("markdown")))
    );
    assert_eq!(found(ReleaseNotes, "notes.rst"), Some((Some(ReleaseNotes), Some("notes.rst"), Some("rst"))));
    assert_eq!(found(LicenseFile, "./LICENSE"), Some((Some(LicenseFile), None, Some("html"))));
    assert_eq!(found(DescriptionFile, "./other.md"), None);
    assert_eq!(found(DescriptionFile, "../about.md"), None);
}

/// Push, then import step by step (PK-044).
async fn round_trip(client: &Client) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let files = PackageFiles::read_dir(dir.path(), &NAMED).unwrap();
    let to = reference("oci://margrave/vendor/pump:1.0.0");
    let digest = client.push_package(&to, &files).await.unwrap();
    let package = client.package_manifest(&to).await.unwrap();
    assert_eq!(package.digest, digest);
    let description = client.package_description(&to.repository, &package).await.unwrap();
    assert_eq!(&description, files.description());
    let icon = package.resource(ResourceKind::Icon, "./resources/icon.PNG").unwrap();
    assert_eq!(client.package_resource(&to.repository, icon).await.unwrap(), "icon");
    client.push_package(&reference("oci://margrave/vendor/pump:1.1.0"), &files).await.unwrap();
    let tags = client.tags(&to.repository).await.unwrap();
    assert_eq!(tags.iter().map(|tag| tag.as_str()).collect::<Vec<_>>(), ["1.0.0", "1.1.0"]);
    let missing = client.package_manifest(&reference("oci://margrave/vendor/pump:2.0.0")).await.unwrap_err();
    assert!(matches!(missing, PackageError::Client(ClientError::NotFound(_))), "{missing:?}");
}

#[tokio::test]
async fn a_package_through_our_registry() {
    round_trip(&Rig::ours().await.client()).await;
    round_trip(&Rig::ours_with_password().await.client_as(USER, PASSWORD)).await;
}

#[tokio::test]
async fn a_package_through_debians_registry() {
    let Some(open) = Rig::debian(false).await else { return };
    round_trip(&open.client()).await;
    round_trip(&Rig::debian(true).await.unwrap().client_as(USER, PASSWORD)).await;
}
