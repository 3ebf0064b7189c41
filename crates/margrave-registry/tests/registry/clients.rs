//! Real clients against the registry on a real socket, with and without credentials.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine as _;
use http::request::Parts;
use margrave_core::digest::Digest;
use margrave_oci::manifest::{Descriptor, IMAGE_INDEX, IMAGE_MANIFEST, ImageIndex, ImageManifest};
use margrave_registry::{Action, Credentials, Decision, Limits, RepositoryName};

use crate::rig::{Rig, on_path, present, reference};

const USER: &str = "operator";
const PASSWORD: &str = "open:sesame";

/// Strangers may pull what is in `public/`, the operator everything; strangers are asked to log in.
fn operator_only(request: &Parts, action: Action, repository: Option<&RepositoryName>) -> Decision {
    match Credentials::of(&request.headers) {
        Some(Credentials { user, password }) if user == USER && password == PASSWORD => Decision::Allow,
        None if action == Action::Pull
            && repository.is_some_and(|name| name.as_str().starts_with("public/")) =>
        {
            Decision::Allow
        }
        _ => Decision::Authenticate,
    }
}

async fn run(program: impl AsRef<OsStr>, home: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command
        .args(args)
        .env("HOME", home)
        .env("XDG_RUNTIME_DIR", home)
        .env("HELM_REGISTRY_CONFIG", home.join("helm.json"));
    command.current_dir(home);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A tiny image as an OCI layout on disk; returns its manifest's digest.
fn write_layout(dir: &Path) -> Digest {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let write = |media_type: &str, bytes: &[u8]| {
        let descriptor = Descriptor::of(media_type, bytes);
        std::fs::write(blobs.join(descriptor.digest.hex()), bytes).unwrap();
        descriptor
    };
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(5);
    header.set_mode(0o644);
    tar.append_data(&mut header, "hello", &b"hello"[..]).unwrap();
    let tar = tar.into_inner().unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gzip, &tar).unwrap();
    let layer = write("application/vnd.oci.image.layer.v1.tar+gzip", &gzip.finish().unwrap());
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [Digest::of(&tar)] },
    });
    let config = write("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let manifest = ImageManifest { config, artifact_type: None, ..ImageManifest::artifact("", vec![layer]) };
    let manifest = write(IMAGE_MANIFEST, &manifest.to_bytes());
    let digest = manifest.digest;
    let index = ImageIndex { media_type: Some(IMAGE_INDEX.into()), ..ImageIndex::of(vec![manifest]) };
    std::fs::write(dir.join("index.json"), index.to_bytes()).unwrap();
    std::fs::write(dir.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}").unwrap();
    digest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skopeo_pushes_inspects_and_pulls() {
    if !present("skopeo", on_path("skopeo")) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let digest = write_layout(&home.join("layout"));
    let policy = home.join("policy.json");
    std::fs::write(&policy, "{\"default\":[{\"type\":\"insecureAcceptAnything\"}]}").unwrap();
    let policy = format!("--policy={}", policy.display());
    let skopeo = async |args: &[&str]| run("skopeo", home, &[&[policy.as_str()], args].concat()).await;

    let rig = Rig::with(Limits::default(), operator_only);
    let address = rig.serve().await;
    let image = format!("docker://{address}/public/tiny:1");
    let credentials = format!("{USER}:{PASSWORD}");
    let layout = "oci:layout";

    let stranger = skopeo(&["copy", "--dest-tls-verify=false", layout, &image]).await;
    assert!(!stranger.status.success());
    let wrong =
        skopeo(&["copy", "--dest-tls-verify=false", "--dest-creds=operator:wrong", layout, &image]).await;
    assert!(!wrong.status.success());
    let creds = format!("--dest-creds={credentials}");
    succeeded(&skopeo(&["copy", "--dest-tls-verify=false", &creds, layout, &image]).await);

    let inspected = succeeded(&skopeo(&["inspect", "--tls-verify=false", &image]).await);
    let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(inspected["Digest"], digest.to_string());
    assert_eq!(inspected["RepoTags"], serde_json::json!(["1"]));

    succeeded(&skopeo(&["copy", "--src-tls-verify=false", &image, "oci:back"]).await);
    let back: ImageIndex =
        serde_json::from_slice(&std::fs::read(home.join("back/index.json")).unwrap()).unwrap();
    assert_eq!(back.manifests[0].digest, digest);

    // From repository to repository, which mounts; and Docker's manifest form.
    let second = image.replace("public/tiny:1", "private/tiny:2");
    let both = [format!("--src-creds={credentials}"), creds.clone()];
    let copy =
        ["copy", "--src-tls-verify=false", "--dest-tls-verify=false", &both[0], &both[1], &image, &second];
    succeeded(&skopeo(&copy).await);
    let docker = image.replace("tiny:1", "tiny:docker");
    succeeded(&skopeo(&["copy", "--dest-tls-verify=false", "--format=v2s2", &creds, layout, &docker]).await);
    let raw = succeeded(&skopeo(&["inspect", "--raw", "--tls-verify=false", &docker]).await);
    assert!(raw.contains("vnd.docker.distribution.manifest.v2+json"), "{raw}");

    let private = skopeo(&["inspect", "--tls-verify=false", &second]).await;
    assert!(!private.status.success(), "strangers cannot read what is not public");
    let creds = format!("--creds={credentials}");
    succeeded(&skopeo(&["delete", "--tls-verify=false", &creds, &image]).await);
    let name = RepositoryName::parse("public/tiny").unwrap();
    assert!(rig.registry.manifest(&name, &reference("1")).await.unwrap().is_none());
    assert_eq!(rig.incoming(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helm_pushes_and_pulls_a_chart() {
    let given = std::env::var_os("MARGRAVE_HELM").map(PathBuf::from);
    if !present("helm", given.is_some() || on_path("helm")) {
        return;
    }
    let helm_program = given.unwrap_or_else(|| PathBuf::from("helm"));
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    std::fs::create_dir_all(home.join("pump/templates")).unwrap();
    std::fs::write(home.join("pump/Chart.yaml"), "apiVersion: v2\nname: pump\nversion: 1.2.3+build.7\n")
        .unwrap();
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: pump\n";
    std::fs::write(home.join("pump/templates/map.yaml"), template).unwrap();
    let helm = async |args: &[&str]| run(&helm_program, home, args).await;

    let rig = Rig::with(Limits::default(), operator_only);
    let address = rig.serve().await.to_string();
    succeeded(&helm(&["package", "pump"]).await);
    let archive = "pump-1.2.3+build.7.tgz";
    let charts = format!("oci://{address}/charts");
    let stranger = helm(&["push", "--plain-http", archive, &charts]).await;
    assert!(!stranger.status.success());
    // `helm registry login` cannot speak plain HTTP in all versions that are in use; what it writes can be written.
    let auth = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let config = serde_json::json!({ "auths": { address: { "auth": auth } } });
    std::fs::write(home.join("helm.json"), config.to_string()).unwrap();
    succeeded(&helm(&["push", "--plain-http", archive, &charts]).await);
    let pushed = std::fs::read(home.join(archive)).unwrap();
    std::fs::remove_file(home.join(archive)).unwrap();
    succeeded(
        &helm(&["pull", "--plain-http", &format!("{charts}/pump"), "--version", "1.2.3+build.7"]).await,
    );
    assert_eq!(std::fs::read(home.join(archive)).unwrap(), pushed);
    // Helm keeps the build number behind an underscore, as the standard does (DM-031).
    let name = RepositoryName::parse("charts/pump").unwrap();
    let stored = rig.registry.manifest(&name, &reference("1.2.3_build.7")).await.unwrap().unwrap();
    let manifest = ImageManifest::from_bytes(&stored.bytes).unwrap();
    assert_eq!(manifest.layers[0].digest, Digest::of(&pushed));
}
