//! From a vendor's directory to a watched repository: Debian's registry behind TLS of a private authority and a password.

use std::path::{Path, PathBuf};
use std::process::Output;

use margrave_oci::client::{Endpoint, Hosts};
use margrave_oci::reference::Host;
use serde_json::Value;

use crate::local_registry::Registry;
use crate::stage::Stage;
use crate::vendor::Vendor;

const USER: &str = "plant";
const PASSWORD: &str = "opensesame";
/// The password above, as `htpasswd -B` writes it.
const HTPASSWD: &str = "plant:$2b$05$HZ0Tdm.Krnz8bSlF6JLMWeqczzBhhBCczw9PUpoE0LWJadP8EvGey\n";

/// A registry that only its customers can open, and what opens it.
struct Private {
    registry: Registry,
    host: String,
    authority: PathBuf,
    directory: tempfile::TempDir,
}

impl Private {
    fn start() -> Option<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let authority = directory.path().join("authority.pem");
        std::fs::write(&authority, made.cert.pem()).expect("the directory is writable");
        let registry = Registry::start_with(|own| {
            std::fs::write(own.join("tls.pem"), made.cert.pem()).expect("the directory is writable");
            std::fs::write(own.join("tls.key"), made.signing_key.serialize_pem())
                .expect("the directory is writable");
            std::fs::write(own.join("htpasswd"), HTPASSWD).expect("the directory is writable");
            let own = own.display();
            format!(
                "  tls:\n    certificate: {own}/tls.pem\n    key: {own}/tls.key\nauth:\n  htpasswd:\n    realm: test\n    path: {own}/htpasswd\n"
            )
        })?;
        let host = format!("localhost:{}", registry.port);
        Some(Private { registry, host, authority, directory })
    }

    /// A client that pushes what our own program would not.
    fn vendor(&self) -> Vendor {
        let pem = std::fs::read_to_string(&self.authority).expect("it was written");
        let host = Host::parse(&self.host).expect("a host");
        let endpoint =
            Endpoint::of(&host, false, Some(pem)).expect("an endpoint").with_credentials(USER, PASSWORD);
        Vendor::new(&self.host, Hosts::new().with(host, endpoint))
    }

    /// A sample package whose component belongs into this registry.
    fn package(&self, version: &str, message: &str) -> PathBuf {
        let to = self.directory.path().join(format!("{version}-{}", message.len()));
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../margrave/samples/andon-board");
        copy(&from, &to);
        let file = to.join("margo.yaml");
        let text = std::fs::read_to_string(&file).expect("the sample has a description");
        let text = text
            .replace("oci://margrave/", &format!("oci://{}/", self.host))
            .replace("version: \"1.0.0\"", &format!("version: \"{version}\""))
            .replace("revision: 1.0.0", &format!("revision: {version}"))
            .replace("All lines are running", message);
        std::fs::write(file, text).expect("the directory is writable");
        to
    }

    /// Runs our program as somebody who knows the password, or thinks so.
    fn run(&self, stage: &Stage, password: &str, arguments: &[&str]) -> Output {
        let mut command = stage.command();
        command.args(arguments).args(["--user", USER, "--ca"]).arg(&self.authority);
        command.env("MARGRAVE_REGISTRY_PASSWORD", password).env("DOCKER_CONFIG", self.directory.path());
        command.output().expect("our own program starts")
    }

    fn push(&self, stage: &Stage, package: &Path, more: &[&str]) -> Output {
        let target = format!("oci://{}/packages/andon-board", self.host);
        let package = package.display().to_string();
        self.run(stage, PASSWORD, &[&["package", "push", &package, &target], more].concat())
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the directory is writable");
    for entry in std::fs::read_dir(from).expect("the sample is there").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).map(drop).expect("the directory is writable");
        }
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    said(output)
}

#[track_caller]
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", said(output));
    said(output)
}

/// What became of a tag: its state, and why or what.
fn tag(watch: &Value, name: &str) -> (String, String) {
    let tags = watch["tags"].as_array().expect("tags");
    let tag =
        tags.iter().find(|tag| tag["tag"] == name).unwrap_or_else(|| panic!("no tag {name} in {watch}"));
    let text = |key: &str| tag[key].as_str().unwrap_or_default().to_owned();
    (text("state"), format!("{}{}", text("reason"), text("package")))
}

fn warnings(stage: &Stage, version: &str) -> Vec<String> {
    let shown = stage.json(&["package", "show", &format!("andon-board@{version}")]);
    let kinds = shown["warnings"].as_array().cloned().unwrap_or_default();
    kinds.iter().map(|warning| warning["kind"].as_str().expect("a kind").to_owned()).collect()
}

#[test]
fn a_vendor_pushes_and_a_plant_watches() {
    let Some(mut private) = Private::start() else { return };
    let mut stage = Stage::start();
    let repository = format!("oci://{}/packages/andon-board", private.host);
    let first = private.package("1.0.0", "All lines are running");

    // Whoever has no right pushes nothing, and is told what is missing.
    let target = format!("{repository}:1.0.0");
    let path = first.display().to_string();
    let text = refused(&private.run(&stage, "wrong", &["package", "push", &path, &target]));
    assert!(text.contains("credentials") && text.contains("--user") && !text.contains("wrong"), "{text}");
    let text =
        refused(&private.run(&stage, PASSWORD, &["package", "push", &path, &format!("{repository}:2.0.0")]));
    assert!(text.contains("version 1.0.0") && text.contains("PK-014"), "{text}");

    // From an archive as from a directory, with one result.
    let archive = private.directory.path().join("andon-board.tgz");
    let packed =
        std::process::Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&first).arg(".").status();
    assert!(packed.expect("tar is everywhere").success());
    succeeded(&stage.margrave(&["package", "check", &archive.display().to_string()]));
    succeeded(&private.push(&stage, &archive, &[]));
    let text = succeeded(&private.push(&stage, &first, &[]));
    assert!(text.contains("already, with the same content"), "{text}");
    succeeded(&private.run(&stage, PASSWORD, &["package", "check", &target]));
    let other = private.package("1.0.0", "Something else");
    let text = refused(&private.push(&stage, &other, &[]));
    assert!(text.contains("other content") && text.contains("--replace"), "{text}");

    // The server does not know the authority, nor the password.
    let text = refused(&stage.margrave(&["registry", "check", &private.host]));
    assert!(!text.is_empty());
    let text = stage.margrave(&["registry", "add", "registry.example", "--plain-http"]);
    assert!(said(&text).contains("on this machine only"), "{}", said(&text));
    let text = refused(&private.run(&stage, "wrong", &["registry", "add", &private.host]));
    assert!(text.contains("credentials"), "{text}");
    succeeded(&private.run(&stage, PASSWORD, &["registry", "add", &private.host]));
    succeeded(&stage.margrave(&["registry", "check", &private.host]));

    let watched = stage.json(&["package", "watch", &repository, "--match", "*"]);
    assert_eq!(tag(&watched, "1.0.0"), ("added".to_owned(), "andon-board 1.0.0".to_owned()));
    let pinned = stage.json(&["package", "show", "andon-board@1.0.0"]);
    assert!(pinned["texts"]["license"]["text"].as_str().is_some_and(|text| !text.is_empty()), "{pinned}");
    assert!(pinned["texts"]["releaseNotes"]["text"].is_string(), "{pinned}");

    // A second version, another name of it, and a tag that is not what it says.
    succeeded(&private.push(&stage, &private.package("1.1.0", "All lines are running"), &[]));
    let vendor = private.vendor();
    let latest =
        std::fs::read_to_string(private.package("1.1.0", "All lines are running").join("margo.yaml"))
            .expect("it is there");
    vendor.push_package("packages/andon-board", "9.9.9", &latest);
    vendor.push_package("packages/andon-board", "broken", "apiVersion: v9\n");
    let again = || {
        let output =
            stage.command().args(["package", "watch", &repository, "--json"]).output().expect("it starts");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)))
    };
    let watched = again();
    assert_eq!(tag(&watched, "1.1.0").0, "added");
    let (state, reason) = tag(&watched, "9.9.9");
    assert!(state == "broken" && reason.contains("the tag 9.9.9 holds version 1.1.0"), "{state} {reason}");
    let (state, reason) = tag(&watched, "broken");
    assert!(state == "broken" && reason.contains("DM-"), "{state} {reason}");
    assert_eq!(stage.json(&["package", "list"]).as_array().map(Vec::len), Some(2));

    // A tag that moves is told, and what was pinned stays.
    succeeded(&private.push(&stage, &other, &["--replace"]));
    again();
    assert_eq!(warnings(&stage, "1.0.0"), ["moved"]);
    assert_eq!(stage.json(&["package", "show", "andon-board@1.0.0"])["reference"], pinned["reference"]);

    // A version that is gone is told, too.
    let second = stage.json(&["package", "show", "andon-board@1.1.0"]);
    let digest =
        second["reference"].as_str().and_then(|text| text.split_once('@')).expect("pinned").1.to_owned();
    private.registry.lose("packages/andon-board", "1.1.0", &digest);
    again();
    assert_eq!(warnings(&stage, "1.1.0"), ["gone"]);
    let component = second["profiles"][0]["components"][0]["digest"].as_str().expect("a digest").to_owned();
    private.registry.lose("samples/components/andon-board", "1.1.0", &component);
    again();
    assert_eq!(warnings(&stage, "1.1.0"), ["gone", "componentGone"]);

    // A registry that is away is told and waited for; nothing else happens.
    private.registry.stop();
    let text = refused(&stage.margrave(&["package", "watch", &repository]));
    assert!(text.contains("Trouble"), "{text}");
    assert_eq!(stage.json(&["package", "list"]).as_array().map(Vec::len), Some(2));
    private.registry.start_again();
    let watched = again();
    assert!(watched.get("trouble").is_none(), "{watched}");
    assert_eq!(tag(&watched, "1.0.0").0, "added");

    let events = stage.margrave(&["events", "--last", "1000", "--json"]);
    succeeded(&events);
    let events = String::from_utf8_lossy(&events.stdout).into_owned();
    for kind in [
        "registry.changed",
        "watch.changed",
        "watch.refused",
        "package.moved",
        "package.gone",
        "watch.failed",
    ] {
        assert!(events.contains(kind), "no event {kind} in {events}");
    }
    // Nobody is ever told the password again.
    let listed = stage.json(&["registry", "list"]).to_string();
    assert!(listed.contains(USER), "{listed}");
    for place in [&events, &listed, &stage.server().log()] {
        assert!(!place.contains(PASSWORD), "the password is in {place}");
    }

    // What the server knows survives it; what it forgets is gone.
    stage.server().kill();
    stage.start_server();
    succeeded(&stage.margrave(&["registry", "check", &private.host]));
    succeeded(&stage.margrave(&["registry", "remove", &private.host]));
    refused(&stage.margrave(&["registry", "check", &private.host]));
    succeeded(&stage.margrave(&["package", "unwatch", &repository]));
    assert_eq!(stage.json(&["package", "watches"]).as_array().map(Vec::len), Some(0));
    assert_eq!(stage.json(&["package", "list"]).as_array().map(Vec::len), Some(2));
}

#[test]
fn what_is_wrong_in_a_registry_is_told_with_its_place() {
    let Some(private) = Private::start() else { return };
    let stage = Stage::start();
    let vendor = private.vendor();
    let text =
        std::fs::read_to_string(private.package("1.0.0", "x").join("margo.yaml")).expect("it is there");
    vendor.push_package("packages/lonely", "2.0.0", &text);
    let reference = format!("oci://{}/packages/lonely:2.0.0", private.host);
    let output = private.run(&stage, PASSWORD, &["package", "check", "--json", &reference]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let findings: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rules: Vec<&str> =
        findings.as_array().expect("a list").iter().filter_map(|finding| finding["rule"].as_str()).collect();
    assert_eq!(rules, ["PK-014", "PK-002", "PK-002", "PK-002", "PK-002", "PK-040"], "{findings}");
    assert!(findings[0]["line"].as_u64().is_some_and(|line| line > 1), "{findings}");
    let text = refused(&private.run(&stage, "wrong", &["package", "check", &reference]));
    assert!(text.contains("credentials"), "{text}");
}
