//! The device interface of a real server on real connections: what it serves, to whom, and under which headers.

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_core::manifest::Manifest;
use margrave_core::workload::Placement;
use margrave_wire::g2;
use margrave_wire::operator::{PutDeployment, Targets};
use serde_json::{Value, json};

use crate::line::{Line, Reply};
use crate::plant::{Device, Plant, operator};
use crate::stock;

const MANIFEST: &str = "/api/v1/deployments";
const MANIFEST_TYPE: &str = "application/vnd.margo.manifest.v1+json";
const BUNDLE_TYPE: &str = "application/vnd.margo.bundle.v1+tar+gzip";
const FOR_EVER: &str = "private, max-age=31536000, immutable";
const JSON: (&str, &str) = ("content-type", "application/json");

/// A device and its connection.
struct Unit {
    device: Device,
    line: Line,
}

impl Unit {
    async fn join(plant: &Plant, name: &str) -> Unit {
        let mut unit = Unit::join_silently(plant, name).await;
        unit.put_capabilities(name).await.is(201);
        unit
    }

    /// One that has not said yet what it is.
    async fn join_silently(plant: &Plant, name: &str) -> Unit {
        let device = plant.join(name).await;
        let line = device.line(plant).await;
        Unit { device, line }
    }

    async fn put_capabilities(&mut self, device: &str) -> Reply {
        let body = stock::capabilities_body(device, 4);
        self.line.send("PUT", &format!("/api/v1/capabilities/{device}"), &[JSON], body).await.unwrap()
    }

    async fn get(&mut self, path: &str) -> Reply {
        self.line.get(path).await.unwrap()
    }

    async fn manifest(&mut self) -> Manifest {
        g2::manifest::read(&self.get(MANIFEST).await.is(200).body).unwrap().manifest
    }

    /// The manifest as it stands there, for its very fields.
    async fn raw_manifest(&mut self) -> Value {
        self.get(MANIFEST).await.is(200).json()
    }

    async fn report(&mut self, id: &str, body: Value) -> Reply {
        let path = format!("/api/v1/deployments/{id}/status");
        self.line.send("POST", &path, &[JSON], body.to_string()).await.unwrap()
    }
}

fn status(id: &str, version: u64, state: &str) -> Value {
    json!({"deploymentId": id, "adoptedManifestVersion": version, "status": {"state": state},
        "components": [{"name": "gate", "state": state}]})
}

/// The gate, with this rate, on these devices.
async fn deploy(plant: &Plant, devices: &[&str], rate: u32) {
    let want = PutDeployment {
        package: "gate".to_owned(),
        version: None,
        profile: None,
        parameters: [("owner".to_owned(), json!("Ann")), ("rate".to_owned(), json!(rate))].into(),
        targets: Targets {
            devices: devices.iter().map(|device| (*device).to_owned()).collect(),
            labels: Default::default(),
            ..Default::default()
        },
        rollback: None,
        strategy: None,
        revision: None,
        ..Default::default()
    };
    plant.server.fleet().put_deployment(&operator(), &"north".parse().unwrap(), want).await.unwrap();
}

/// A problem with this status and registered type, and all of it.
#[track_caller]
fn problem(reply: &Reply, status: u16, kind: &str) -> Value {
    reply.is_problem(status);
    let problem: Value = reply.json();
    assert_eq!(problem["type"], format!("https://docs.margo.org/specification/problem-types#{kind}"));
    problem
}

#[tokio::test]
async fn mi_g2_044_045_053_064_071_id_123_a_manifest_is_sent_as_it_is_and_to_one_client() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut press = Unit::join(&plant, "press.42").await;
    deploy(&plant, &["press.42"], 5).await;
    let plain = press.get(MANIFEST).await;
    // We compress nothing, so that no byte is ever another one on the way.
    let packed =
        press.line.send("GET", MANIFEST, &[("accept-encoding", "gzip, br, zstd")], "").await.unwrap();
    for reply in [plain, packed] {
        assert_eq!(reply.is(200).header("content-type"), MANIFEST_TYPE);
        assert_eq!(reply.header("cache-control"), "private");
        assert_eq!(reply.header("etag"), format!("\"{}\"", Digest::of(&reply.body)));
        assert_eq!(reply.header("content-encoding"), "");
        // There is one representation, so nothing varies (MI-G2-064 asks for Vary where something is compressed).
        assert_eq!(reply.header("vary"), "");
        assert_eq!(reply.header("content-length"), reply.body.len().to_string());
    }
    let etag = format!("\"{}\"", Digest::of(&press.get(MANIFEST).await.body));
    let short = margrave_wire::g2::validator::short_tag(&Digest::parse(etag.trim_matches('"')).unwrap());
    for held in [etag.clone(), short, format!("W/{etag}"), format!("\"x\", {etag}"), "*".to_owned()] {
        let reply = press.line.send("GET", MANIFEST, &[("if-none-match", &held)], "").await.unwrap();
        assert!(reply.is(304).body.is_empty(), "{held}");
        assert_eq!((reply.header("etag"), reply.header("cache-control")), (etag.as_str(), "private"));
        assert_eq!((reply.header("vary"), reply.header("content-type")), ("", ""));
    }
}

#[tokio::test]
async fn mi_g2_048_049_050_060_061_066_170_all_that_a_manifest_names_is_there() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut press = Unit::join(&plant, "press.42").await;
    let empty = press.raw_manifest().await;
    assert_eq!(empty, json!({"bundle": null, "deployments": [], "manifestVersion": 1}));

    deploy(&plant, &["press.42"], 5).await;
    let manifest = press.raw_manifest().await;
    let (bundle, listed) = (&manifest["bundle"], &manifest["deployments"][0]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (id, digest) = (text(&listed["deploymentId"]), text(&listed["digest"]));
    assert_eq!(manifest["deployments"].as_array().unwrap().len(), 1);
    assert_eq!(listed["url"], format!("/api/v1/deployments/{id}/{digest}"));
    assert_eq!(bundle["url"], format!("/api/v1/bundles/{}", text(&bundle["digest"])));
    assert_eq!(bundle["mediaType"], BUNDLE_TYPE);

    let document = press.get(&text(&listed["url"])).await;
    let archive = press
        .line
        .send("GET", &text(&bundle["url"]), &[("accept-encoding", "gzip, deflate, br")], "")
        .await
        .unwrap();
    for (reply, entry, media_type) in
        [(&document, listed, "application/yaml"), (&archive, bundle, BUNDLE_TYPE)]
    {
        assert_eq!(reply.is(200).header("content-type"), media_type);
        assert_eq!(Digest::of(&reply.body).to_string(), text(&entry["digest"]));
        assert_eq!(reply.header("etag"), format!("\"{}\"", text(&entry["digest"])));
        assert_eq!(reply.header("cache-control"), FOR_EVER);
        // The bundle's gzip is its type and no encoding (AMB-21).
        assert_eq!((reply.header("content-encoding"), reply.header("vary")), ("", ""));
        assert_eq!(entry["sizeBytes"], reply.body.len());
        let held = reply.header("etag").to_owned();
        let again =
            press.line.send("GET", &text(&entry["url"]), &[("if-none-match", &held)], "").await.unwrap();
        assert!(again.is(304).body.is_empty());
        assert_eq!(again.header("cache-control"), FOR_EVER);
    }
    let entries = press.manifest().await.entries().to_vec();
    let unpacked = margrave_wire::bundle::read(&archive.body, &entries).unwrap();
    assert_eq!(unpacked.len(), 1);
    assert_eq!(unpacked[0].bytes(), &document.body[..]);
    let workload = g2::document::read(&document.body).unwrap();
    assert_eq!((workload.id, workload.application.as_str()), (id.parse().unwrap(), "gate"));
    assert_eq!(workload.placement, Placement::Device("press.42".parse().unwrap()));
}

#[tokio::test]
async fn mi_g2_007_062_id_087_what_belongs_to_another_client_does_not_exist() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let (mut press, mut other) = (Unit::join(&plant, "press.42").await, Unit::join(&plant, "press.43").await);
    deploy(&plant, &["press.42"], 5).await;
    let manifest = press.raw_manifest().await;
    let document = manifest["deployments"][0]["url"].as_str().unwrap();
    let bundle = manifest["bundle"]["url"].as_str().unwrap();
    press.get(document).await.is(200);
    press.get(bundle).await.is(200);
    // Also not as something that it might already hold.
    for headers in [&[][..], &[("if-none-match", "*")]] {
        let reply = other.line.send("GET", document, headers, "").await.unwrap();
        problem(&reply, 404, "deployment-not-found");
        let reply = other.line.send("GET", bundle, headers, "").await.unwrap();
        problem(&reply, 404, "invalid-bundle");
    }
    let id = manifest["deployments"][0]["deploymentId"].as_str().unwrap();
    let told = problem(&other.report(id, status(id, 1, "installed")).await, 422, "semantic-error");
    assert_eq!(told["errors"][0]["field"], "deploymentId");
    let reply = other.line.send("DELETE", "/api/v1/capabilities/press.42", &[], "").await.unwrap();
    problem(&reply, 404, "device-not-found");
    let fleet = plant.server.fleet();
    assert!(fleet.device(&"press.42".parse().unwrap()).await.unwrap().capabilities.is_some());
    assert_eq!(other.raw_manifest().await["manifestVersion"], 1);
}

#[tokio::test]
async fn mi_g2_008_id_019_088_a_device_id_is_local_to_the_client_that_reports_it() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    // A client's name says nothing about its devices: both call theirs the same, and neither like itself.
    let mut units = Vec::new();
    for name in ["press.42", "press.43"] {
        let mut unit = Unit::join_silently(&plant, name).await;
        unit.put_capabilities("arm").await.is(201);
        units.push(unit);
    }
    deploy(&plant, &["press.42:arm"], 5).await;
    let [press, other] = &mut units[..] else { panic!("two") };
    assert_eq!(press.manifest().await.entries().len(), 1);
    assert!(other.manifest().await.entries().is_empty());
    other.line.send("DELETE", "/api/v1/capabilities/arm", &[], "").await.unwrap().is(204);
    assert_eq!(press.manifest().await.entries().len(), 1, "the other one's is another one");
    press.put_capabilities("arm").await.is(200);
    other.put_capabilities("arm").await.is(201);
    assert_eq!(press.device.client.as_str(), "press.42");
}

#[tokio::test]
async fn mi_g2_041_151_153_amb_23_26_a_gateway_has_one_manifest_for_itself_and_its_children() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut gateway = Unit::join_silently(&plant, "gw").await;
    // Before the gateway itself, no child.
    for early in ["gw/a", "gw/path1/b", "gw%2Fa"] {
        let body = stock::capabilities_body(&early.replace("%2F", "/"), 4);
        let path = format!("/api/v1/capabilities/{early}");
        let reply = gateway.line.send("PUT", &path, &[JSON], body).await.unwrap();
        problem(&reply, 404, "gateway-not-found");
    }
    // Only the first segment has to be known; the slash travels raw or encoded.
    gateway.put_capabilities("gw").await.is(201);
    gateway.put_capabilities("gw/path1/b").await.is(201);
    let body = stock::capabilities_body("gw/a", 4);
    let encoded = "/api/v1/capabilities/gw%2Fa";
    gateway.line.send("PUT", encoded, &[JSON], body.clone()).await.unwrap().is(201);
    gateway.line.send("PUT", "/api/v1/capabilities/gw/a", &[JSON], body).await.unwrap().is(200);

    deploy(&plant, &["gw", "gw/a", "gw/path1/b"], 5).await;
    let manifest = gateway.manifest().await;
    let mut placements = Vec::new();
    for entry in manifest.entries() {
        let path = format!("/api/v1/deployments/{}/{}", entry.id, entry.document.digest);
        let reply = gateway.get(&path).await;
        placements.push(match g2::document::read(&reply.is(200).body).unwrap().placement {
            Placement::Device(device) => device.to_string(),
            other => panic!("{other:?}"),
        });
    }
    placements.sort();
    assert_eq!(placements, ["gw", "gw/a", "gw/path1/b"]);

    // A child that goes takes what is under it along, and a gateway all (open point 6).
    gateway.put_capabilities("gw/path1").await.is(201);
    gateway.line.send("DELETE", "/api/v1/capabilities/gw%2Fpath1", &[], "").await.unwrap().is(204);
    let reply = gateway.line.send("DELETE", "/api/v1/capabilities/gw/path1/b", &[], "").await.unwrap();
    problem(&reply, 404, "device-not-found");
    assert_eq!(gateway.manifest().await.entries().len(), 2);
    gateway.line.send("DELETE", "/api/v1/capabilities/gw", &[], "").await.unwrap().is(204);
    let last = gateway.manifest().await;
    assert!(last.entries().is_empty() && last.bundle().is_none());
    assert!(last.version() > manifest.version());
    let reply = gateway.put_capabilities("gw/a").await;
    problem(&reply, 404, "gateway-not-found");
}

#[tokio::test]
async fn mi_g2_047_051_id_089_091_versions_start_at_1_and_only_grow_whatever_happens() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut press = Unit::join(&plant, "press.42").await;
    let mut versions = vec![press.manifest().await.version()];
    deploy(&plant, &["press.42"], 5).await;
    let first = press.manifest().await;
    versions.push(first.version());
    deploy(&plant, &["press.42"], 6).await;
    let second = press.manifest().await;
    versions.push(second.version());
    // Changed content is another digest of the same deployment (MI-G2-051).
    assert_eq!(first.entries()[0].id, second.entries()[0].id);
    assert_ne!(first.entries()[0].document.digest, second.entries()[0].document.digest);

    // Going back is going on.
    deploy(&plant, &["press.42"], 5).await;
    let third = press.manifest().await;
    versions.push(third.version());
    assert_eq!(third.entries(), first.entries(), "the same content has the same digest");
    plant.server.fleet().remove_deployment(&operator(), &"north".parse().unwrap(), None).await.unwrap();
    versions.push(press.manifest().await.version());

    // One sequence by the SPIFFE ID: a new certificate and a new server process go on with it.
    press.device.renew(&plant).await.is(200);
    press.line = press.device.line(&plant).await;
    assert_eq!(press.manifest().await.version(), versions[4]);
    let plant = plant.restart().await;
    press.line = press.device.line(&plant).await;
    assert_eq!(press.manifest().await.version(), versions[4]);
    deploy(&plant, &["press.42"], 5).await;
    let again = press.manifest().await;
    versions.push(again.version());
    assert_eq!(versions[0], 1);
    assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
    assert_ne!(
        again.entries()[0].id,
        first.entries()[0].id,
        "what was removed and wished anew is another one"
    );
}

#[tokio::test]
async fn mi_g2_110_amb_13_36_37_reports_are_taken_while_and_after_a_deployment_is_wanted() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut press = Unit::join(&plant, "press.42").await;
    deploy(&plant, &["press.42"], 5).await;
    let manifest = press.manifest().await;
    let (id, version) = (manifest.entries()[0].id.to_string(), manifest.version());
    let first = press.report(&id, status(&id, version, "installing")).await;
    assert_eq!(first.is(201).header("cache-control"), "no-store");
    for _ in 0..2 {
        let again = press.report(&id, status(&id, version, "installed")).await;
        assert_eq!(again.is(200).header("cache-control"), "no-store");
    }
    // An older version than the newest is what a device says that has not come further yet (MI-G2-106).
    press.report(&id, status(&id, 1, "installing")).await.is(200);

    plant.server.fleet().remove_deployment(&operator(), &"north".parse().unwrap(), None).await.unwrap();
    assert!(press.manifest().await.entries().is_empty());
    // It speaks of the last version that listed it (AMB-37).
    press.report(&id, status(&id, version, "removing")).await.is(200);
    press.report(&id, status(&id, version, "removed")).await.is(200);
    // And says so again, because the answer was lost.
    press.report(&id, status(&id, version, "removed")).await.is(200);
    let plant = plant.restart().await;
    press.line = press.device.line(&plant).await;
    press.report(&id, status(&id, version, "removed")).await.is(200);
}

#[tokio::test]
async fn rfc_9112_who_names_two_hosts_is_refused_as_this_interface_refuses() {
    let plant = Plant::new().await;
    let mut press = Unit::join(&plant, "press.42").await;
    let hosts = [("host", "127.0.0.1"), ("host", "elsewhere.example")];
    let reply = press.line.send("GET", "/api/v1/deployments", &hosts, "").await.unwrap();
    problem(&reply, 400, "invalid-request");
    assert_eq!(reply.header("connection"), "close");
}

#[tokio::test]
async fn mi_g2_102_amb_38_a_gateway_reports_for_its_children_by_name_or_without() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut gateway = Unit::join(&plant, "gw").await;
    for child in ["gw/a", "gw/b"] {
        gateway.put_capabilities(child).await.is(201);
    }
    deploy(&plant, &["gw/a"], 5).await;
    let manifest = gateway.manifest().await;
    let id = manifest.entries()[0].id.to_string();
    let of = |device: &str, state: &str| {
        let mut body = status(&id, manifest.version(), state);
        body["deviceId"] = json!(device);
        body
    };
    gateway.report(&id, of("gw/a", "installing")).await.is(201);
    gateway.report(&id, status(&id, manifest.version(), "installed")).await.is(200);
    // Neither another child nor the gateway itself speaks for this one, and a pattern is no device.
    for other in ["gw/b", "gw", "gw/*"] {
        let told = problem(&gateway.report(&id, of(other, "failed")).await, 422, "semantic-error");
        assert_eq!(told["errors"][0]["field"], "deviceId");
        let message = told["errors"][0]["message"].as_str().unwrap();
        assert!(other.contains('*') || message.contains("is for gw/a"), "{message}");
    }
    let child = plant.server.fleet().device(&"gw/a".parse().unwrap()).await.unwrap();
    assert_eq!(child.assignments[0].state, "INSTALLED");
}

#[tokio::test]
async fn mi_g2_104_108_205_amb_27_a_wrong_report_is_told_which_field_and_changes_nothing() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut press = Unit::join(&plant, "press.42").await;
    deploy(&plant, &["press.42"], 5).await;
    let manifest = press.manifest().await;
    let (id, version) = (manifest.entries()[0].id.to_string(), manifest.version());
    let right = status(&id, version, "installed");
    let without = |key: &str| {
        let mut body = right.clone();
        body.as_object_mut().unwrap().remove(key);
        body
    };
    let with = |key: &str, value: Value| {
        let mut body = right.clone();
        body[key] = value;
        body
    };
    let nobody = "99999999-6a0a-4f0e-9b57-2c1c8e0f4a11";
    for (body, field) in [
        (without("adoptedManifestVersion"), "adoptedManifestVersion"),
        (with("adoptedManifestVersion", json!(0)), "adoptedManifestVersion"),
        (with("adoptedManifestVersion", json!(-1)), "adoptedManifestVersion"),
        (with("adoptedManifestVersion", json!(1.5)), "adoptedManifestVersion"),
        (with("adoptedManifestVersion", json!("2")), "adoptedManifestVersion"),
        (with("adoptedManifestVersion", json!(null)), "adoptedManifestVersion"),
        // More than a restored backup can explain.
        (with("adoptedManifestVersion", json!(u64::MAX)), "adoptedManifestVersion"),
        (without("deploymentId"), "deploymentId"),
        (with("deploymentId", json!(nobody)), "deploymentId"),
        (without("status"), "status"),
        (with("status", json!({"state": "exploded"})), "status.state"),
        (without("components"), "components"),
        (with("deviceId", json!("gw/*")), "deviceId"),
        // A device that this deployment is not on.
        (with("deviceId", json!("press.43")), "deviceId"),
    ] {
        let told = problem(&press.report(&id, body.clone()).await, 422, "semantic-error");
        let errors = told["errors"].as_array().unwrap();
        assert!(errors.iter().any(|error| error["field"] == field), "{body}: {told}");
        assert!(errors.iter().all(|error| error["message"].as_str().is_some_and(|text| !text.is_empty())));
    }
    problem(&press.report(nobody, status(nobody, 1, "installed")).await, 422, "semantic-error");
    for (kind, body) in [("application/json", "{"), ("application/json", ""), ("text/plain", "{}")] {
        let path = format!("/api/v1/deployments/{id}/status");
        let reply = press.line.send("POST", &path, &[("content-type", kind)], body).await.unwrap();
        problem(&reply, 400, "invalid-request");
    }
    let device = plant.server.fleet().device(&"press.42".parse().unwrap()).await.unwrap();
    assert_eq!(device.assignments[0].state, "PENDING");
    // The first right one is the first.
    press.report(&id, right).await.is(201);
    assert_eq!(press.manifest().await.version(), version);
}

#[tokio::test]
async fn mi_g2_104_a_device_that_is_ahead_of_a_restored_server_is_believed() {
    let plant = Plant::new().await;
    stock::gate(&plant).await;
    let mut press = Unit::join(&plant, "press.42").await;
    deploy(&plant, &["press.42"], 5).await;
    let manifest = press.manifest().await;
    let id = manifest.entries()[0].id.to_string();
    press.report(&id, status(&id, manifest.version() + 40, "installed")).await.is(201);
    let above = press.manifest().await;
    assert!(above.version() > manifest.version() + 40, "{}", above.version());
    assert_eq!(above.entries(), manifest.entries());
}

#[tokio::test]
async fn mi_g2_132_137_amb_14_33_34_capabilities_are_taken_with_what_we_do_not_know() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let mut line = device.line(&plant).await;
    let path = "/api/v1/capabilities/press.42";
    let mut body: Value = serde_json::from_str(&stock::capabilities_body("press.42", 4)).unwrap();
    body["apiVersion"] = json!("device.margo.org/v1alpha1");
    body["kind"] = json!("DeviceCapabilitiesManifest");
    body["x-acme-extensions"] = json!({"shelf": {"deep": [1, null, "x"]}});
    body["properties"]["supportedRuntimes"] = json!(["oci", "wasi"]);
    body["properties"]["supportedDeploymentTypes"] = json!(["compose", "wasm"]);
    body["properties"]["cpus"] = json!([{"cores": 0.5, "architecture": "riscv64"}]);
    body["labels"] = json!({"acme.example/slots": [1, 2]});
    line.send("PUT", path, &[JSON], body.to_string()).await.unwrap().is(201);
    let kept = plant.server.fleet().device(&"press.42".parse().unwrap()).await.unwrap().capabilities.unwrap();
    assert_eq!(kept["properties"]["supportedDeploymentTypes"], json!(["compose", "wasm"]), "as it came");

    // Anything else that we do not know is a mistake that somebody wants to hear of.
    body["spec"] = json!({});
    let reply = line.send("PUT", path, &[JSON], body.to_string()).await.unwrap();
    assert_eq!(problem(&reply, 422, "semantic-error")["errors"][0]["field"], "spec");
}

#[tokio::test]
async fn mi_g2_070_200_202_id_200_203_every_error_is_a_whole_problem() {
    let plant = Plant::new().await;
    let mut press = Unit::join(&plant, "press.42").await;
    let digest = Digest::of(b"nothing").to_string();
    let id = "0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11";
    let margo = |name: &str| format!("https://docs.margo.org/specification/problem-types#{name}");
    for (method, path, status, kind) in [
        ("GET", format!("/api/v1/deployments/{id}/{digest}"), 404, margo("deployment-not-found")),
        ("GET", format!("/api/v1/deployments/{id}/SHA256:00"), 404, margo("deployment-not-found")),
        ("GET", format!("/api/v1/bundles/{digest}"), 404, margo("invalid-bundle")),
        // A digest in capitals, of another algorithm or with decoration is none.
        ("GET", format!("/api/v1/bundles/{}", digest.to_uppercase()), 404, margo("invalid-bundle")),
        ("GET", "/api/v1/bundles/sha512:00".to_owned(), 404, margo("invalid-bundle")),
        ("GET", format!("/api/v1/bundles/%22{digest}%22"), 404, margo("invalid-bundle")),
        ("DELETE", "/api/v1/capabilities/press.42/arm".to_owned(), 404, margo("device-not-found")),
        ("PUT", "/api/v1/capabilities/press.42".to_owned(), 400, margo("invalid-request")),
        ("GET", "/api/v1/nothing".to_owned(), 404, "about:blank".to_owned()),
        ("PATCH", "/api/v1/deployments".to_owned(), 405, "about:blank".to_owned()),
    ] {
        let reply = press.line.send(method, &path, &[], Bytes::new()).await.unwrap();
        assert_eq!(reply.is(status).header("content-type"), "application/problem+json", "{path}");
        let told: Value = reply.json();
        assert_eq!((&told["type"], &told["status"]), (&json!(kind), &json!(status)), "{path}");
        assert_eq!((&told["retryable"], &told["backoffStrategy"]), (&json!(false), &json!("none")), "{path}");
        assert_eq!(told["instance"], path);
        for member in ["title", "detail"] {
            assert!(told[member].as_str().is_some_and(|text| !text.is_empty()), "{told}");
        }
        assert!(!reply.headers.contains_key("retry-after"), "{path}");
        assert_eq!(reply.header("cache-control"), "no-store");
    }
}
