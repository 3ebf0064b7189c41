//! The built-in registry with the clients that people have: docker, skopeo and helm.

use std::path::PathBuf;
use std::process::Command;

use margrave_core::id::ClientId;
use margrave_http::{Client, Limits, Origin, Request, Trust};
use margrave_identity::bundle::Bundle;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::svid::Svid;
use margrave_identity::tls::device_client_config;
use margrave_wire::identity::{JwkSet, REGISTRY_TOKEN_PATH, RegistryToken};
use serde_json::Value;

use crate::engine::{on_path, run, said, skip};
use crate::plant::{BUSYBOX, Plant};
use crate::stage::Stage;

/// The token that a device gets with its identity, for its container engine.
fn device_token(plant: &Plant) -> RegistryToken {
    let text = std::fs::read(plant.path(&plant.device).join("identity.json")).expect("it has joined");
    let identity: Value = serde_json::from_slice(&text).expect("an identity is JSON");
    let certificates: Vec<String> =
        serde_json::from_value(identity["certificates"].clone()).expect("a list of PEM");
    let keys: JwkSet = serde_json::from_value(identity["trustBundle"].clone()).expect("a key set");
    let svid = Svid::from_pem(&certificates.concat(), identity["key"].as_str().expect("a key"));
    let svid = svid.expect("the identity is valid");
    let domain = svid.server_name().trust_domain.clone();
    let bundle = Bundle::from_wire(domain, &keys).expect("the bundle is valid");
    let trust = Trust::Tls(device_client_config(LiveSvid::new(svid), LiveBundle::new(bundle)));
    let origin = Origin::parse(identity["deviceUrl"].as_str().expect("a URL")).expect("a URL");
    let client = Client::new(trust, origin, Limits::default()).expect("the configuration is valid");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let answer = runtime.block_on(client.send(Request::post(REGISTRY_TOKEN_PATH))).expect("an answer");
    assert!(answer.status.is_success(), "{answer:?}");
    let token: RegistryToken = answer.json().expect("a token");
    assert_eq!(ClientId::parse(&token.username).expect("a name").as_str(), plant.device);
    token
}

/// What clients say when the registry does not know them, or does not let them.
fn refused(said: &str) {
    let said = said.to_lowercase();
    let words = ["unauthorized", "denied", "no basic auth", "authentication required", "forbidden"];
    assert!(words.iter().any(|word| said.contains(word)), "{said}");
}

#[test]
fn docker_and_skopeo_push_and_pull_with_a_token_and_not_without() {
    let Some(plant) = Plant::start() else { return };
    let registry = plant.registry();
    let image = format!("{registry}/{BUSYBOX}");

    // `Plant::start` has pushed it as an operator and removed it from the engine.
    plant.engine.docker(&["pull", &image]);
    let id = plant.engine.docker(&["image", "inspect", "--format", "{{.Id}}", &image]);
    let echo = ["run", "--rm", "--network", "none", &image, "sh", "-c", "echo it runs"];
    assert_eq!(plant.engine.docker(&echo), "it runs");
    plant.engine.docker(&["rmi", &image]);

    let nobody = plant.engine.visitor(plant.path("nobody"));
    refused(&nobody.refused(&["pull", &image]));
    let device = plant.engine.visitor(plant.path("as-device"));
    let token = device_token(&plant);
    device.login(&registry, &token.username, &token.password);
    device.docker(&["pull", &image]);
    assert_eq!(device.docker(&["image", "inspect", "--format", "{{.Id}}", &image]), id);
    let own = format!("{registry}/e2e/smuggled:1");
    device.docker(&["tag", &image, &own]);
    refused(&device.refused(&["push", &own]));
    refused(&nobody.refused(&["push", &own]));
    plant.engine.docker(&["rmi", &own, &image]);

    if on_path("skopeo").is_none() {
        return skip("skopeo is not installed");
    }
    let operator = format!("operator:{}", plant.token());
    let skopeo = |arguments: &[&str]| {
        let mut command = Command::new("skopeo");
        command.arg("--insecure-policy").args(arguments);
        // Nobody's logins but those given.
        command.env("REGISTRY_AUTH_FILE", plant.path("no-logins.json"));
        command
    };
    let from = format!("docker://{image}");
    let copy = format!("docker://{registry}/e2e/copy:1");
    let folder = format!("dir:{}", plant.path("copied").display());
    let taken = ["copy", "--src-tls-verify=false", "--src-creds", &operator, &from, &folder];
    run(&mut skopeo(&taken));
    run(&mut skopeo(&["copy", "--dest-tls-verify=false", "--dest-creds", &operator, &folder, &copy]));
    let digest = |image: &str| {
        let arguments = ["inspect", "--tls-verify=false", "--creds", &operator, "--format", "{{.Digest}}"];
        run(&mut skopeo(&[&arguments[..], &[image]].concat()))
    };
    assert_eq!(digest(&copy), digest(&from), "byte for byte the same");
    let without = skopeo(&["inspect", "--tls-verify=false", &copy]).output().expect("skopeo starts");
    assert!(!without.status.success());
    refused(&said(&without));
    let as_device = format!("{}:{}", token.username, token.password);
    let smuggled = format!("docker://{registry}/e2e/smuggled:1");
    let pushed = ["copy", "--dest-tls-verify=false", "--dest-creds", &as_device, &folder, &smuggled];
    let pushed = skopeo(&pushed).output().expect("skopeo starts");
    assert!(!pushed.status.success(), "a device may only read");
    refused(&said(&pushed));
}

fn helm() -> Option<PathBuf> {
    let named = std::env::var_os("MARGRAVE_HELM").map(PathBuf::from).filter(|file| file.is_file());
    let kept = || {
        let home = std::env::var_os("HOME").map(PathBuf::from)?;
        Some(home.join(".cache/margrave/tools/helm/bin/helm")).filter(|file| file.is_file())
    };
    named.or_else(|| on_path("helm")).or_else(kept)
}

#[test]
fn helm_pushes_and_pulls_a_chart_with_a_token_and_not_without() {
    let Some(program) = helm() else { return skip("helm is not installed, and MARGRAVE_HELM names none") };
    let stage = Stage::start();
    let context = std::fs::read(stage.path("server/context.json")).expect("the server wrote its context");
    let context: Value = serde_json::from_slice(&context).expect("the context is JSON");
    let token = context["token"].as_str().expect("a token");
    let chart = stage.path("probe");
    std::fs::create_dir_all(chart.join("templates")).expect("the stage's directory is writable");
    let files = [
        ("Chart.yaml", "apiVersion: v2\nname: probe\nversion: 1.2.3\ndescription: Smallest of charts.\n"),
        ("values.yaml", "greeting: hello\n"),
        (
            "templates/map.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: probe\ndata:\n  greeting: {{ .Values.greeting }}\n",
        ),
    ];
    for (name, text) in files {
        std::fs::write(chart.join(name), text).expect("the stage's directory is writable");
    }
    let helm = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        // Nobody's settings but the test's own.
        command.args(arguments).current_dir(stage.path("")).env("HELM_CACHE_HOME", stage.path("helm/cache"));
        command.env("HELM_CONFIG_HOME", stage.path("helm/config"));
        command.env("HELM_DATA_HOME", stage.path("helm/data"));
        command
    };
    run(&mut helm(&["package", "probe"]));
    let repository = format!("oci://127.0.0.1:{}/charts", stage.local);
    let logged_in = ["--plain-http", "--username", "operator", "--password", token];
    run(&mut helm(&[&["push", "probe-1.2.3.tgz", &repository], &logged_in[..]].concat()));

    let reference = format!("{repository}/probe");
    let pull = ["pull", &reference, "--version", "1.2.3", "--destination", "pulled"];
    std::fs::create_dir_all(stage.path("pulled")).expect("the stage's directory is writable");
    run(&mut helm(&[&pull[..], &logged_in[..]].concat()));
    let read = |path: &str| std::fs::read(stage.path(path)).expect("helm wrote it");
    assert_eq!(read("pulled/probe-1.2.3.tgz"), read("probe-1.2.3.tgz"), "byte for byte the same");

    for arguments in [&["push", "probe-1.2.3.tgz", &repository][..], &pull[..]] {
        let output = helm(&[arguments, &["--plain-http"]].concat()).output().expect("helm starts");
        assert!(!output.status.success(), "{}", said(&output));
        refused(&said(&output));
    }
}
