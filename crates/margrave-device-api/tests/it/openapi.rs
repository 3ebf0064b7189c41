//! The standard's OpenAPI document, read where it lies, beside what the router really answers.
//!
//! Every operation exists, every declared code is given for a reason, and no other is given for these reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use margrave_core::digest::Digest;
use serde_json::{Value, json};

use crate::plant::{BUNDLE, DOCUMENT, ID, Plant, Reply};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Beside the repository and not in it. Missing locally, a test that needs it says so and passes; in CI it must be
/// there.
fn document() -> Option<Value> {
    let folder = match std::env::var_os("MARGRAVE_SPEC") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/spec"),
    };
    let path = folder.join("openapi/workload-management-api-1.0.0-rc.3.yaml");
    let Ok(bytes) = std::fs::read(&path) else {
        let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!ci, "{} is missing; set MARGRAVE_SPEC to the directory above openapi", path.display());
        #[expect(clippy::print_stderr, reason = "a skipped test says so aloud")]
        {
            eprintln!("skipped: {} is not there; set MARGRAVE_SPEC", path.display());
        }
        return None;
    };
    Some(margrave_wire::yaml::read(&bytes).unwrap().to_value())
}

fn capabilities(id: &str) -> Value {
    json!({"properties": {"id": id, "vendor": "Acme", "modelNumber": "C4", "serialNumber": "0007",
        "cpus": [{"cores": 4, "architecture": "arm64"}], "memory": "8Gi", "storage": "64Gi", "peripherals": [],
        "interfaces": [], "otelCollector": true, "supportedRuntimes": ["oci"],
        "supportedDeploymentTypes": ["compose"]}, "labels": {"acme.example/line": "B"}})
}

fn status(state: &str) -> Value {
    json!({"deploymentId": ID, "adoptedManifestVersion": 12, "status": {"state": state},
        "components": [{"name": "hmi", "state": state}]})
}

/// An operation as the document names it, such as `get /api/v1/deployments`.
type Operation = (&'static str, &'static str);

const PUT: Operation = ("put", "/api/v1/capabilities/{deviceId}");
const DELETE: Operation = ("delete", "/api/v1/capabilities/{deviceId}");
const MANIFEST: Operation = ("get", "/api/v1/deployments");
const YAML: Operation = ("get", "/api/v1/deployments/{deploymentId}/{digest}");
const ARCHIVE: Operation = ("get", "/api/v1/bundles/{digest}");
const STATUS: Operation = ("post", "/api/v1/deployments/{deploymentId}/status");

/// One request for every reason that the document gives for an answer.
async fn every_answer(plant: &std::sync::Arc<Plant>) -> Vec<(Operation, Reply)> {
    let (document, bundle) = (Digest::of(DOCUMENT), Digest::of(BUNDLE));
    let device = |id: &str| format!("/api/v1/capabilities/{id}");
    let yaml = |digest: &Digest| format!("/api/v1/deployments/{ID}/{digest}");
    let archive = |digest: &Digest| format!("/api/v1/bundles/{digest}");
    let reporting = format!("/api/v1/deployments/{ID}/status");
    let any = ("if-none-match", "*");
    let mut replies = Vec::new();
    for (operation, path, headers, body) in [
        (PUT, device("gw"), vec![JSON], capabilities("gw").to_string()),
        (PUT, device("gw"), vec![JSON], capabilities("gw").to_string()),
        (PUT, device("gw"), vec![JSON], "{".to_owned()),
        (PUT, device("none/child"), vec![JSON], capabilities("none/child").to_string()),
        (PUT, device("gw"), vec![JSON], "{}".to_owned()),
        (DELETE, device("gw"), vec![], String::new()),
        (DELETE, device("gw"), vec![], String::new()),
        (MANIFEST, MANIFEST.1.to_owned(), vec![], String::new()),
        (MANIFEST, MANIFEST.1.to_owned(), vec![any], String::new()),
        (MANIFEST, MANIFEST.1.to_owned(), vec![("accept", "text/plain")], String::new()),
        (YAML, yaml(&document), vec![], String::new()),
        (YAML, yaml(&document), vec![any], String::new()),
        (YAML, yaml(&bundle), vec![], String::new()),
        (ARCHIVE, archive(&bundle), vec![], String::new()),
        (ARCHIVE, archive(&bundle), vec![any], String::new()),
        (ARCHIVE, archive(&document), vec![], String::new()),
        (STATUS, reporting.clone(), vec![JSON], status("installing").to_string()),
        (STATUS, reporting.clone(), vec![JSON], status("installed").to_string()),
        (STATUS, reporting.clone(), vec![JSON], "{".to_owned()),
        (STATUS, reporting.clone(), vec![JSON], "{}".to_owned()),
    ] {
        replies.push((operation, plant.ask(&operation.0.to_uppercase(), &path, &headers, &body).await));
        let (method, retired) = (operation.0.to_uppercase(), Some("gone"));
        replies.push((operation, plant.ask_as(retired, &method, &path, &headers, body.into()).await));
    }
    replies
}

#[tokio::test]
async fn amb_16_amb_19_every_operation_gives_exactly_the_codes_that_are_declared() {
    let Some(document) = document() else { return };
    let mut declared: BTreeMap<(String, String), BTreeSet<u16>> = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let codes = operation["responses"].as_object().unwrap().keys();
            let codes = codes.map(|code| code.parse().unwrap()).collect();
            declared.insert((method.clone(), path.clone()), codes);
        }
    }
    // By the prose a document can be revalidated; the table forgot it.
    declared.get_mut(&(YAML.0.to_owned(), YAML.1.to_owned())).unwrap().insert(304);

    let mut given: BTreeMap<(String, String), BTreeSet<u16>> = BTreeMap::new();
    for ((method, path), reply) in every_answer(&Plant::new()).await {
        let operation = (method.to_owned(), path.to_owned());
        given.entry(operation).or_default().insert(reply.status.as_u16());
    }
    assert_eq!(given, declared);
}

#[tokio::test]
async fn mi_g2_044_061_200_201_every_answer_has_the_declared_headers_types_and_fields() {
    let Some(document) = document() else { return };
    let required = document["components"]["schemas"]["ProblemDetail"]["required"].as_array().unwrap();
    for ((method, path), reply) in every_answer(&Plant::new()).await {
        let code = reply.status.as_u16().to_string();
        let declared = &document["paths"][path][method]["responses"][&code];
        for (name, header) in declared["headers"].as_object().into_iter().flatten() {
            let ours = reply.header(&name.to_lowercase());
            match name.as_str() {
                // Of what we never do: nothing is compressed (MI-G2-064).
                "Vary" => {}
                "Cache-Control" => assert_eq!(ours, header["description"], "{method} {path}"),
                "ETag" => assert_eq!(ours, format!("\"{}\"", Digest::of(&reply.body)), "{method} {path}"),
                _ => assert!(!ours.is_empty(), "{method} {path} {code} lacks {name}"),
            }
        }
        if let Some(content) = declared["content"].as_object() {
            assert!(content.contains_key(reply.header("content-type")), "{method} {path} {code}");
        } else {
            assert!(reply.body.is_empty(), "{method} {path} {code} has a body that nobody expects");
        }
        if reply.header("content-type") == "application/problem+json" {
            let problem: Value = serde_json::from_slice(&reply.body).unwrap();
            for field in required {
                assert!(!problem[field.as_str().unwrap()].is_null(), "{problem}");
            }
        }
    }
}

#[tokio::test]
async fn mi_g2_103_128_129_130_131_every_value_of_every_declared_choice_is_taken() {
    let Some(document) = document() else { return };
    let schemas = &document["components"]["schemas"];
    let choices = |pointer: &str| {
        let choices = schemas.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not there"));
        choices.as_array().unwrap().clone()
    };
    let plant = Plant::new();
    let of_device = "/DeviceCapabilitiesManifest/properties/properties/properties";
    for (choice, put) in [
        (format!("{of_device}/cpus/items/properties/architecture/enum"), "/properties/cpus/0/architecture"),
        (format!("{of_device}/supportedRuntimes/items/enum"), "/properties/supportedRuntimes/0"),
        (
            format!("{of_device}/supportedDeploymentTypes/items/enum"),
            "/properties/supportedDeploymentTypes/0",
        ),
        ("/DevicePeripheral/properties/type/enum".to_owned(), "/properties/peripherals/0/type"),
        ("/DeviceCommunicationInterface/properties/type/enum".to_owned(), "/properties/interfaces/0/type"),
    ] {
        for value in choices(&choice) {
            let mut body = capabilities("gw");
            body["properties"]["peripherals"] = json!([{"type": "gpu"}]);
            body["properties"]["interfaces"] = json!([{"type": "usb"}]);
            *body.pointer_mut(put).unwrap() = value.clone();
            let reply = plant.ask("PUT", "/api/v1/capabilities/gw", &[JSON], &body.to_string()).await;
            assert!(reply.status.is_success(), "{value} at {put}: {}", String::from_utf8_lossy(&reply.body));
        }
    }
    for state in choices("/DeploymentStatusManifest/properties/status/properties/state/enum") {
        let body = status(state.as_str().unwrap()).to_string();
        let reply = plant.ask("POST", &format!("/api/v1/deployments/{ID}/status"), &[JSON], &body).await;
        assert!(reply.status.is_success(), "{state}: {}", String::from_utf8_lossy(&reply.body));
    }
    // And what is required is missed when it is not there.
    let fields = |of: &str| choices(&format!("{of}/required"));
    for field in fields("/DeploymentStatusManifest") {
        let mut body = status("installed");
        body.as_object_mut().unwrap().remove(field.as_str().unwrap());
        let path = format!("/api/v1/deployments/{ID}/status");
        let problem =
            plant.ask("POST", &path, &[JSON], &body.to_string()).await.is_problem(422, "semantic-error");
        assert_eq!(problem["errors"][0]["field"], field);
    }
    for field in fields("/DeviceCapabilitiesManifest/properties/properties") {
        let mut body = capabilities("gw");
        body["properties"].as_object_mut().unwrap().remove(field.as_str().unwrap());
        let reply = plant.ask("PUT", "/api/v1/capabilities/gw", &[JSON], &body.to_string()).await;
        let problem = reply.is_problem(422, "semantic-error");
        assert_eq!(problem["errors"][0]["field"], format!("properties.{}", field.as_str().unwrap()));
    }
}
