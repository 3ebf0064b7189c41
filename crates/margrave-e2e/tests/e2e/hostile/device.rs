//! What a device with a good certificate may send, and what it may not.

use margrave_core::digest::Digest;
use margrave_identity::bundle::Bundle;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::svid::Svid;
use margrave_identity::tls::{device_client_config, pinned_client_config};
use margrave_wire::identity::JoinResponse;
use serde_json::{Value, json};

use super::{Ask, Door, Plant};
use crate::stage::Stage;

/// Exchanges a token for an identity, as an agent does; `None` when the server says no.
pub(super) fn join(web: &Door, token: &str) -> Option<(JoinResponse, Svid)> {
    let key = PrivateKey::generate().expect("a key");
    let csr = Csr::make(&key).expect("a request").to_pem();
    let body = json!({ "token": token, "csr": csr }).to_string();
    let answer = web.ask(&Ask::new("POST", "/api/identity/v1/join").json(body));
    if answer.status >= 300 {
        return None;
    }
    let joined: JoinResponse = serde_json::from_slice(&answer.body).expect("the answer is an identity");
    let svid = Svid::adopt(&joined.certificates, key).expect("the certificate is for our key");
    Some((joined, svid))
}

/// A new member of the fleet, and its way to the device interface.
pub(super) fn member(stage: &Stage, name: &str) -> (Door, JoinResponse) {
    let token = stage.json(&["device", "token", "--name", name]);
    let text = |key: &str| token[key].as_str().expect("a text");
    let pin = text("pin").parse().expect("the pin is a pin");
    let web = Door { port: stage.web, tls: Some(pinned_client_config(vec![pin])) };
    let (joined, svid) = join(&web, text("token")).expect("the token is good");
    let domain = svid.server_name().trust_domain.clone();
    let bundle = Bundle::from_wire(domain, &joined.trust_bundle).expect("the bundle is good");
    let tls = device_client_config(LiveSvid::new(svid), LiveBundle::new(bundle));
    (Door { port: stage.device, tls: Some(tls) }, joined)
}

fn capabilities(device: &str) -> Value {
    json!({
        "properties": {
            "id": device, "vendor": "Acme", "modelNumber": "M", "serialNumber": "1",
            "cpus": [{ "cores": 4, "architecture": "amd64" }], "memory": "4Gi", "storage": "10Gi",
            "peripherals": [], "interfaces": [], "otelCollector": true,
            "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose"],
        },
    })
}

#[test]
fn the_device_interface_says_what_is_wrong_and_lets_nobody_speak_for_another() {
    let plant = Plant::start();
    let (door, _) = member(&plant.stage, "line-2");
    let put = |path: &str, body: &Value| door.ask(&Ask::new("PUT", path).json(body.to_string()));
    // The way in is right, so that every no below is for its own reason.
    assert_eq!(put("/api/v1/capabilities/line-2", &capabilities("line-2")).status, 201);
    assert_eq!(door.ask(&Ask::new("GET", "/api/v1/deployments")).status, 200);

    let others = plant.stage.assignment("line-1", "hello").expect("it is installed");
    let others = others["id"].as_str().expect("an id");
    let digest = Digest::of(b"something");
    let report = json!({
        "deploymentId": others, "adoptedManifestVersion": 1, "status": { "state": "removed" }, "components": [],
    });
    let status = format!("/api/v1/deployments/{others}/status");
    let own = "/api/v1/capabilities/line-2";
    let mut asks: Vec<(String, Ask<'_>)> = Vec::new();
    let mut add = |what: &str, ask: Ask<'static>| asks.push((what.to_owned(), ask));

    // Bodies.
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let status = leak(status);
    let mut bodies: Vec<Vec<u8>> = [
        &b""[..],
        b"{",
        b"null",
        b"[]",
        b"7",
        b"\"x\"",
        b"{}",
        b"{\"a\":\"\xff\"}",
        b"\xef\xbb\xbf{}",
        b"{}{}",
        b"{\"properties\":{},\"properties\":{}}",
        b"{\"deploymentId\":\"x\",\"deploymentId\":\"y\"}",
    ]
    .map(<[u8]>::to_vec)
    .into();
    bodies.push(b"[".repeat(30_000));
    bodies.push(b"{\"a\":".repeat(10_000));
    for body in &bodies {
        let shown = String::from_utf8_lossy(body).chars().take(40).collect::<String>();
        add(&format!("a report of {shown}"), Ask::new("POST", status).json(body.clone()));
        add(&format!("capabilities of {shown}"), Ask::new("PUT", own).json(body.clone()));
    }
    let mut reports = vec![report.clone()];
    for (key, value) in [
        ("deploymentId", json!("not-an-id")),
        ("deploymentId", json!("00000000-0000-4000-8000-000000000000")),
        ("status", json!({ "state": "EXPLODED" })),
        ("status", json!({ "state": 5 })),
        ("status", json!("installed")),
        ("adoptedManifestVersion", json!(-1)),
        ("adoptedManifestVersion", json!("1")),
        ("adoptedManifestVersion", json!(1e300)),
        ("components", json!("x")),
        ("components", json!([{ "name": "../x", "state": "installed" }])),
        ("components", json!([{ "name": "main", "state": "sideways" }])),
    ] {
        let mut wrong = report.clone();
        wrong[key] = value;
        reports.push(wrong);
    }
    for wrong in reports {
        add(&format!("the report {wrong}"), Ask::new("POST", status).json(wrong.to_string()));
    }
    for (pointer, value) in [
        ("id", json!("line-1")),
        ("id", json!("../line-2")),
        ("id", json!(7)),
        ("cpus", json!("four")),
        ("cpus", json!([{ "cores": "four", "architecture": "amd64" }])),
        ("memory", json!(4)),
        ("peripherals", json!({})),
        ("interfaces", json!([{ "type": 5 }])),
        ("supportedRuntimes", json!([])),
        ("supportedDeploymentTypes", json!("compose")),
        ("otelCollector", json!("yes")),
    ] {
        let mut wrong = capabilities("line-2");
        wrong["properties"][pointer] = value;
        add(
            &format!("capabilities with {pointer} {}", wrong["properties"][pointer]),
            Ask::new("PUT", own).json(wrong.to_string()),
        );
    }
    add("a large report", Ask::new("POST", status).json(vec![b' '; 100 * 1024]));
    add("large capabilities", Ask::new("PUT", own).json(vec![b' '; 300 * 1024]));
    let mut untyped = Ask::new("PUT", own).with(("Content-Type", "text/yaml".to_owned()));
    untyped.body = Some(capabilities("line-2").to_string().into_bytes());
    add("capabilities that are no JSON", untyped);

    // Names.
    for path in [
        "/api/v1/capabilities/..",
        "/api/v1/capabilities/..%2F..%2Fetc",
        "/api/v1/capabilities/%00",
        "/api/v1/capabilities/%ff%fe",
        "/api/v1/capabilities/",
        "/api/v1/capabilities/line-2/../line-1",
    ] {
        add(path, Ask::new("PUT", path).json(capabilities("line-1").to_string()));
        add(path, Ask::new("DELETE", path));
    }
    add("another's capabilities withdrawn", Ask::new("DELETE", "/api/v1/capabilities/line-1"));
    for path in [
        format!("/api/v1/deployments/{others}/{digest}"),
        format!("/api/v1/deployments/..%2F..%2Fetc/{digest}"),
        format!("/api/v1/deployments/{others}/sha512:{}", "0".repeat(128)),
        format!("/api/v1/deployments/{others}/sha256:short"),
        format!("/api/v1/deployments/{others}"),
        format!("/api/v1/bundles/{digest}"),
        "/api/v1/bundles/..".to_owned(),
        "/api/v1/bundles/%ff".to_owned(),
        "/api/v2/deployments".to_owned(),
        "/api/v1".to_owned(),
        "/".to_owned(),
        "/api/operator/v1/status".to_owned(),
    ] {
        let path = leak(path);
        add(path, Ask::new("GET", path));
    }
    // Methods and preferences.
    for (method, path) in [
        ("POST", "/api/v1/deployments"),
        ("DELETE", "/api/v1/deployments"),
        ("GET", own),
        ("PATCH", own),
        ("GET", status),
        ("DELETE", status),
        ("BREW", "/api/v1/deployments"),
        ("GET", "/x-margrave/v1/registry-token"),
    ] {
        add(&format!("{method} {path}"), Ask::new(method, path));
    }
    add(
        "a manifest as a picture",
        Ask::new("GET", "/api/v1/deployments").with(("Accept", "image/png".to_owned())),
    );

    for (what, ask) in &asks {
        door.ask(ask).refused(what);
    }
    // Odd, but harmless: nothing asked for changes the answer.
    for header in
        [("If-None-Match", "\"sha256:nonsense\""), ("Prefer", "wait=eternity"), ("Prefer", "wait=-1")]
    {
        let ask = Ask::new("GET", "/api/v1/deployments").with((header.0, header.1.to_owned()));
        assert_eq!(door.ask(&ask).status, 200, "{header:?}");
    }
    plant.assert_unharmed();
}

#[test]
fn a_device_pulls_but_never_pushes() {
    let plant = Plant::start();
    let (door, _) = member(&plant.stage, "line-2");
    let token = door.ask(&Ask::new("POST", "/x-margrave/v1/registry-token")).json();
    let password = token["password"].as_str().expect("a password");
    assert_eq!(door.ask(&Ask::new("GET", "/v2/hello/main/tags/list")).status, 200);
    for (method, path) in [
        ("POST", "/v2/hello/main/blobs/uploads/"),
        ("PUT", "/v2/hello/main/manifests/1.0.0"),
        ("DELETE", "/v2/hello/main/manifests/1.0.0"),
    ] {
        assert_eq!(door.ask(&Ask::new(method, path)).status, 403, "{method} by certificate");
        let by_token = Ask::new(method, path).with(("Authorization", format!("Bearer {password}")));
        assert_eq!(plant.local().ask(&by_token).status, 403, "{method} by token");
    }
    // A registry token is no operator's.
    let status =
        Ask::new("GET", "/api/operator/v1/status").with(("Authorization", format!("Bearer {password}")));
    assert_eq!(plant.local().ask(&status).status, 401);
    plant.assert_unharmed();
}
