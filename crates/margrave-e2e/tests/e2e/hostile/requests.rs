//! What operators' programs, strangers and registry clients may send.

use margrave_core::digest::Digest;
use serde_json::{Value, json};

use super::{Answer, Ask, Door, Plant};
use crate::stage::Stage;

const PREFIX: &str = "/api/operator/v1";

/// Path segments that are no identifier of anything, percent-encoded where they have to be.
fn identifiers() -> Vec<String> {
    let mut identifiers: Vec<String> = [
        "..",
        "..%2F..%2F..%2Fetc%2Fpasswd",
        "%2e%2e%2f%2e%2e",
        "%00",
        "%ff%fe",
        "%F0%9F%92%A3",
        "Hello%20World",
        "%27%3BDROP%20TABLE%20device%3B--",
        "%3Cscript%3E",
        "-",
    ]
    .map(str::to_owned)
    .into();
    identifiers.push("a".repeat(3000));
    identifiers
}

/// Bodies that are no JSON, or never what was asked for.
fn bodies() -> Vec<Vec<u8>> {
    let mut bodies: Vec<Vec<u8>> = [
        &b""[..],
        b"{",
        b"nul",
        b"null",
        b"[]",
        b"[1, 2",
        b"7",
        b"true",
        b"\"text\"",
        b"{\"reference\": \"\xff\xfe\"}",
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"\0\0\0\0",
        b"<?xml version=\"1.0\"?>",
        b"{\"surprise\": true}",
    ]
    .map(<[u8]>::to_vec)
    .into();
    bodies.push(b"[".repeat(100_000));
    bodies.push(b"{\"a\":".repeat(40_000));
    bodies
}

#[test]
fn every_operation_of_the_operator_interface_says_what_is_wrong() {
    let plant = Plant::start();
    let door = plant.local();
    let document = door.ask(&Ask::new("GET", &format!("{PREFIX}/openapi.json"))).json();
    let mut operations = 0;
    for (pattern, methods) in document["paths"].as_object().expect("a document has paths") {
        let methods = methods.as_object().expect("a path has operations");
        let existing = pattern
            .replace("{device}", "line-1")
            .replace("{deployment}", "hello")
            .replace("{package}", "hello")
            .replace("{version}", "1.0.0");
        for (method, operation) in methods {
            operations += 1;
            let method = method.to_uppercase();
            let takes_body = operation.get("requestBody").is_some();
            let ask = |path: &str, body: &[u8]| {
                let ask = Ask::new(&method, path).with(plant.bearer());
                door.ask(&if takes_body { ask.json(body) } else { ask })
            };
            if pattern.contains('{') {
                for identifier in identifiers() {
                    let path: String = pattern
                        .split('/')
                        .map(|part| if part.starts_with('{') { identifier.as_str() } else { part })
                        .collect::<Vec<_>>()
                        .join("/");
                    ask(&path, b"{}").refused(&format!("{method} {path}"));
                }
            }
            if takes_body {
                for body in bodies() {
                    let shown = String::from_utf8_lossy(&body).chars().take(40).collect::<String>();
                    ask(&existing, &body).refused(&format!("{method} {existing} with {shown}"));
                }
                let mut other = Ask::new(&method, &existing).with(plant.bearer());
                other = other.with(("Content-Type", "text/plain".to_owned()));
                other.body = Some(b"{}".to_vec());
                assert_eq!(door.ask(&other).status, 415);
                // A whole tree of files may be larger.
                if !pattern.ends_with("/intent/apply") {
                    let large = ask(&existing, &[b' '; 300 * 1024]);
                    assert_eq!(large.status, 413);
                    large.refused("a large body");
                }
            }
            for token in ["", "Bearer ", "Bearer mgo_wrong", "Basic !!!", "Bearer \u{ff}\u{fe}", "Digest x"] {
                // Whoever goes on guessing waits longer every time.
                if token == "Bearer mgo_wrong" && operations > 3 {
                    continue;
                }
                let stranger = Ask::new(&method, &existing).with(("Authorization", token.to_owned()));
                let stranger = if takes_body { stranger.json("{}") } else { stranger };
                let answer = door.ask(&stranger);
                assert_eq!(answer.status, 401, "{method} {existing} by a stranger");
                answer.refused("a stranger");
            }
        }
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "BREW"] {
            if !methods.contains_key(&method.to_lowercase()) {
                let answer = door.ask(&Ask::new(method, &existing).with(plant.bearer()));
                assert_eq!(answer.status, 405, "{method} {existing}");
                answer.refused(method);
            }
        }
    }
    assert!(operations >= 15, "only {operations} operations are described");
    door.ask(&Ask::new("GET", &format!("{PREFIX}/nothing")).with(plant.bearer())).refused("an unknown path");
    plant.assert_unharmed();
}

#[test]
fn wrong_types_and_values_name_their_place() {
    let plant = Plant::start();
    let door = plant.local();
    let deployment = |change: Value| {
        let mut body = json!({
            "package": "hello", "version": "1.0.0", "parameters": {}, "targets": { "devices": ["line-1"] }
        });
        for (key, value) in change.as_object().expect("a change is an object") {
            body[key] = value.clone();
        }
        body
    };
    let long = "x".repeat(5000);
    let cases: Vec<(&str, &str, Value)> = vec![
        ("POST", "/join-tokens", json!({ "device": 5 })),
        ("POST", "/join-tokens", json!({ "device": "../x" })),
        ("POST", "/join-tokens", json!({ "device": long })),
        ("POST", "/join-tokens", json!({ "device": "line-1" })),
        ("POST", "/join-tokens", json!({ "labels": [] })),
        ("POST", "/join-tokens", json!({ "labels": { "a": 1 } })),
        ("POST", "/join-tokens", json!({ "labels": { "": "x" } })),
        ("POST", "/join-tokens", json!({ "validSeconds": -1 })),
        ("POST", "/join-tokens", json!({ "validSeconds": 0 })),
        ("POST", "/join-tokens", json!({ "validSeconds": 1e30 })),
        ("POST", "/join-tokens", json!({ "validSeconds": u64::MAX })),
        ("PATCH", "/devices/line-1/labels", json!({ "set": 5 })),
        ("PATCH", "/devices/line-1/labels", json!({ "set": { "a": long } })),
        ("PATCH", "/devices/line-1/labels", json!({ "remove": "a" })),
        ("POST", "/packages", json!({ "reference": 5 })),
        ("POST", "/packages", json!({ "reference": "" })),
        ("POST", "/packages", json!({ "reference": "file:///etc/passwd" })),
        ("POST", "/packages", json!({ "reference": "oci://margrave/../../etc:1" })),
        ("POST", "/packages", json!({ "reference": "oci://margrave/hello:1.0.0@sha256:00" })),
        ("POST", "/packages", json!({ "reference": "oci://margrave/packages/hello:9.9.9" })),
        ("POST", "/packages", json!({ "reference": long })),
        ("PUT", "/deployments/hello", deployment(json!({ "package": "nothing" }))),
        ("PUT", "/deployments/hello", deployment(json!({ "package": "../hello" }))),
        ("PUT", "/deployments/hello", deployment(json!({ "version": 1.0 }))),
        ("PUT", "/deployments/hello", deployment(json!({ "version": "9.9.9" }))),
        ("PUT", "/deployments/hello", deployment(json!({ "profile": "nothing" }))),
        ("PUT", "/deployments/hello", deployment(json!({ "parameters": [] }))),
        ("PUT", "/deployments/hello", deployment(json!({ "parameters": { "greeting": long } }))),
        ("PUT", "/deployments/hello", deployment(json!({ "parameters": { "greeting": { "a": 1 } } }))),
        ("PUT", "/deployments/hello", deployment(json!({ "parameters": { "unknown": 1 } }))),
        ("PUT", "/deployments/hello", deployment(json!({ "targets": "line-1" }))),
        ("PUT", "/deployments/hello", deployment(json!({ "targets": { "devices": ["../../etc"] } }))),
        ("PUT", "/deployments/hello", deployment(json!({ "targets": { "devices": ["ghost"] } }))),
        ("PUT", "/deployments/hello", deployment(json!({ "targets": {} }))),
        ("PUT", "/deployments/hello", deployment(json!({ "revision": 99 }))),
        ("PUT", "/deployments/hello", deployment(json!({ "revision": -1 }))),
        ("PUT", "/deployments/Hello", deployment(json!({}))),
        ("POST", "/deployments/hello/preview", deployment(json!({ "package": "nothing" }))),
    ];
    for (method, path, body) in cases {
        let path = format!("{PREFIX}{path}");
        let answer = door.ask(&Ask::new(method, &path).with(plant.bearer()).json(body.to_string()));
        answer.refused(&format!("{method} {path} with {body}"));
    }
    for query in [
        "/devices?condition=sideways",
        "/devices?limit=many",
        "/devices?limit=-1",
        "/devices?surprise=1",
        "/devices?after=%ff%fe",
        "/why",
        "/why?subject=..%2F..",
        "/why?subject=ghost",
        "/events?after=yesterday",
        "/events?after=-1",
    ] {
        let path = format!("{PREFIX}{query}");
        door.ask(&Ask::new("GET", &path).with(plant.bearer())).refused(query);
    }
    for condition in ["7", "\"x\"", "\"99\"", "W/\"1\""] {
        let path = format!("{PREFIX}/deployments/hello");
        let ask = Ask::new("DELETE", &path).with(plant.bearer()).with(("If-Match", condition.to_owned()));
        door.ask(&ask).refused(condition);
    }
    plant.assert_unharmed();
}

#[test]
fn nonsense_instead_of_http_is_refused_or_cut_off_on_every_listener() {
    let plant = Plant::start();
    let doors = [plant.local(), plant.web(), super::device::member(&plant.stage, "line-2").0];
    let long_header = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "y".repeat(70_000));
    let long_line = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "y".repeat(70_000));
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(5_000));
    let nonsense: Vec<&[u8]> = vec![
        b"this is not HTTP\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n",
        b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /sign-in HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /sign-in HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: unheard-of\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        long_header.as_bytes(),
        long_line.as_bytes(),
        many.as_bytes(),
    ];
    for door in &doors {
        for bytes in &nonsense {
            let shown = String::from_utf8_lossy(bytes).chars().take(60).collect::<String>();
            // Where TLS begins anew inside of TLS, the first read already fails; both are a no.
            if let Some(answer) = Answer::read(&door.exchange(bytes)) {
                assert!((400..500).contains(&answer.status), "{shown:?} was answered {}", answer.status);
            }
        }
    }
    plant.assert_unharmed();
}

#[test]
fn a_request_without_a_host_or_with_two_is_400_on_every_listener() {
    let plant = Plant::start();
    let device = super::device::member(&plant.stage, "line-2").0;
    for (door, path) in
        [(plant.local(), "/sign-in"), (plant.web(), "/sign-in"), (device, "/api/v1/deployments")]
    {
        for hosts in ["", "Host: a\r\nHost: b\r\n"] {
            let text = format!("GET {path} HTTP/1.1\r\n{hosts}\r\n");
            let answer = Answer::read(&door.exchange(text.as_bytes())).expect("an answer");
            assert_eq!(answer.status, 400, "{path} with {hosts:?}");
            answer.refused(hosts);
        }
        // The version before knew of no Host, and is answered in its own.
        let old = door.exchange(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
        let old = String::from_utf8_lossy(&old);
        assert!(old.starts_with("HTTP/1.0 200 "), "{path}: {old}");
    }
    plant.assert_unharmed();
}

#[test]
fn a_body_that_is_declared_too_large_is_413_without_a_byte_of_it() {
    let plant = Plant::start();
    let device = super::device::member(&plant.stage, "line-2").0;
    let json = "Host: x\r\nContent-Type: application/json\r\n";
    let form = "Host: x\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    let bearer = format!("Authorization: {}\r\n", plant.bearer().1);
    for (door, head) in [
        (device, format!("PUT /api/v1/capabilities/line-2 HTTP/1.1\r\n{json}")),
        (plant.local(), format!("POST {PREFIX}/packages HTTP/1.1\r\n{json}{bearer}")),
        (plant.local(), format!("POST /sign-in HTTP/1.1\r\n{form}")),
        (plant.web(), format!("POST /api/identity/v1/join HTTP/1.1\r\n{json}")),
    ] {
        // Whoever waits for it says 408 in the end.
        let text = format!("{head}Content-Length: 99999999\r\n\r\n");
        let answer = Answer::read(&door.exchange(text.as_bytes())).expect("an answer");
        assert_eq!(answer.status, 413, "{head}");
    }
    plant.assert_unharmed();
}

#[test]
fn half_a_request_does_not_hold_the_server_for_ever() {
    let plant = Plant::start();
    let device = super::device::member(&plant.stage, "line-2").0;
    let half = |head: String| format!("{head}Content-Length: 1000\r\n\r\n{{\"half\":");
    let bearer = format!("Authorization: {}\r\n", plant.bearer().1);
    let json = "Host: x\r\nContent-Type: application/json\r\n";
    let form = "Host: x\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    let mut halves: Vec<(Door, String)> = vec![
        (plant.local(), "GET / HT".to_owned()),
        (plant.web(), "GET / HTTP/1.1\r\nHost: x\r\n".to_owned()),
        (plant.local(), half(format!("POST /sign-in HTTP/1.1\r\n{form}"))),
        (plant.local(), half(format!("POST {PREFIX}/packages HTTP/1.1\r\n{json}{bearer}"))),
        (plant.web(), half(format!("POST /api/identity/v1/join HTTP/1.1\r\n{json}"))),
        (device.clone(), half(format!("PUT /api/v1/capabilities/line-2 HTTP/1.1\r\n{json}"))),
    ];
    // A stranger who says nothing at all, where a handshake is expected.
    halves.push((Door { port: plant.stage.web, tls: None }, String::new()));
    halves.push((Door { port: plant.stage.device, tls: None }, "\u{16}\u{3}".to_owned()));
    std::thread::scope(|scope| {
        let waiting: Vec<_> = halves
            .iter()
            .map(|(door, text)| (text, scope.spawn(|| door.exchange(text.as_bytes()))))
            .collect();
        // Meanwhile everybody else is served.
        assert_eq!(plant.local().ask(&Ask::new("GET", "/sign-in")).status, 200);
        for (text, waiting) in waiting {
            let answer = waiting.join().unwrap_or_else(|_| panic!("nobody ended this: {text}"));
            if let Some(answer) = Answer::read(&answer) {
                assert!((400..500).contains(&answer.status), "{text:?} was answered {}", answer.status);
            }
        }
    });
    plant.assert_unharmed();
}

#[test]
fn the_identity_service_spends_no_token_on_nonsense_and_issues_nothing_to_strangers() {
    let plant = Plant::start();
    let door = plant.web();
    let (join, renew) = ("/api/identity/v1/join", "/api/identity/v1/renew");
    let token = plant.stage.json(&["device", "token", "--name", "line-2"]);
    let token = token["token"].as_str().expect("a token");
    for path in [join, renew] {
        for body in bodies() {
            door.ask(&Ask::new("POST", path).json(body)).refused(path);
        }
        assert_eq!(door.ask(&Ask::new("POST", path).json(vec![b' '; 64 * 1024])).status, 413);
        for method in ["GET", "PUT", "DELETE"] {
            let answer = door.ask(&Ask::new(method, path));
            assert_eq!(answer.status, 405, "{method} {path}");
            answer.refused(method);
        }
    }
    for csr in ["", "x", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"] {
        let body = json!({ "token": token, "csr": csr }).to_string();
        door.ask(&Ask::new("POST", join).json(body)).refused("a broken certificate request");
    }
    let (_, svid) = super::device::join(&door, token).expect("nonsense did not spend the token");
    let csr = {
        let key = margrave_identity::key::PrivateKey::generate().expect("a key");
        margrave_identity::csr::Csr::make(&key).expect("a request").to_pem()
    };
    for previous in
        [json!([]), json!(["x"]), json!([svid.chain_pem()]), json!([svid.chain_pem(), "x"]), json!("x")]
    {
        for proof in ["", "AAAA", "!!"] {
            let body = json!({ "csr": csr, "previous": previous, "proof": proof }).to_string();
            door.ask(&Ask::new("POST", renew).json(body)).refused("a renewal without proof");
        }
    }
    for wrong in [token, "mgj_wrong", "", "../../etc/passwd"] {
        let body = json!({ "token": wrong, "csr": csr }).to_string();
        let answer = door.ask(&Ask::new("POST", join).json(body));
        assert!(matches!(answer.status, 400 | 403 | 422 | 429), "{}", answer.status);
        answer.refused("a token that is none");
    }
    for path in ["/.well-known/margo", "/.well-known/spiffe/bundle.json"] {
        assert_eq!(door.ask(&Ask::new("GET", path)).status, 200);
        door.ask(&Ask::new("POST", path)).refused(path);
    }
    let devices = plant.stage.json(&["device", "list"]).to_string();
    assert!(devices.contains("line-2") && !devices.contains("etc"), "{devices}");
    plant.assert_unharmed();
}

#[test]
fn the_registry_takes_nothing_under_a_false_name_or_digest() {
    let plant = Plant::start();
    let door = plant.local();
    let credentials = plant.bearer();
    let ask = |method: &str, path: &str, body: Option<&[u8]>| {
        let mut ask = Ask::new(method, path).with(credentials.clone());
        ask.body = body.map(<[u8]>::to_vec);
        door.ask(&ask)
    };
    let refused = |answer: Answer, what: &str| {
        assert!((400..500).contains(&answer.status), "{what} was answered {}", answer.status);
        let told = answer.json();
        let message = told["errors"][0]["message"].as_str().unwrap_or_default();
        assert!(message.len() > 10, "{what} was refused without a reason: {told}");
    };
    let digest = Digest::of(b"something");
    for name in ["..", "../../etc", "%2e%2e/x", "UPPER", "a//b", "a%2Fb", "-a", "_blobs", "a b", "%ff", "%00"]
        .into_iter()
        .map(str::to_owned)
        .chain(["x/".repeat(200) + "x"])
    {
        let name = name.replace(' ', "%20");
        for (method, rest) in [
            ("GET", "tags/list".to_owned()),
            ("GET", format!("blobs/{digest}")),
            ("POST", "blobs/uploads/".to_owned()),
            ("PUT", "manifests/1.0.0".to_owned()),
            ("DELETE", "manifests/1.0.0".to_owned()),
        ] {
            let path = format!("/v2/{name}/{rest}");
            refused(ask(method, &path, Some(b"{}")), &format!("{method} {path}"));
        }
    }
    for (method, path) in [
        ("GET", "/v2/a/blobs/sha256:short".to_owned()),
        ("GET", format!("/v2/a/blobs/sha512:{}", "0".repeat(128))),
        ("GET", format!("/v2/a/blobs/{digest}")),
        ("GET", "/v2/a/manifests/..".to_owned()),
        ("GET", format!("/v2/a/manifests/{}", "t".repeat(200))),
        ("GET", "/v2/a/manifests/none".to_owned()),
        ("PUT", "/v2/a/blobs/uploads/../../x".to_owned()),
        ("PATCH", "/v2/a/blobs/uploads/00000000-0000-4000-8000-000000000000".to_owned()),
        ("BREW", "/v2/a/tags/list".to_owned()),
        ("POST", format!("/v2/a/blobs/uploads/?mount={digest}x&from=b")),
        ("POST", "/v2/a/blobs/uploads/?digest=sha256:short".to_owned()),
    ] {
        refused(ask(method, &path, Some(b"")), &format!("{method} {path}"));
    }
    // The bytes are not what they are said to be.
    let wrong = format!("/v2/a/blobs/uploads/?digest={digest}");
    refused(ask("POST", &wrong, Some(b"something else")), "a blob with another's digest");
    assert_eq!(ask("GET", &format!("/v2/a/blobs/{digest}"), None).status, 404);
    assert_eq!(ask("GET", &format!("/v2/a/blobs/{}", Digest::of(b"something else")), None).status, 404);
    let manifests = [
        &b""[..],
        b"{",
        b"[]",
        b"{\"schemaVersion\":1}",
        b"{\"schemaVersion\":\"two\"}",
        b"{\"schemaVersion\":2,\"config\":{},\"layers\":[]}",
    ];
    let missing = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": digest, "size": 9 }, "layers": [],
    })
    .to_string();
    let deep = b"[".repeat(50_000);
    for manifest in manifests.into_iter().chain([missing.as_bytes(), &deep]) {
        let mut put = Ask::new("PUT", "/v2/a/manifests/1.0.0").with(credentials.clone());
        put = put.with(("Content-Type", "application/vnd.oci.image.manifest.v1+json".to_owned()));
        put.body = Some(manifest.to_vec());
        refused(door.ask(&put), "a manifest that is none");
    }
    let mut large = Ask::new("PUT", "/v2/a/manifests/1.0.0").with(credentials.clone());
    large.body = Some(vec![b' '; 5 << 20]);
    refused(door.ask(&large), "a manifest of five megabytes");
    refused(
        ask("PUT", "/v2/hello/main/manifests/2.0.0", Some(missing.as_bytes())),
        "a manifest without its blobs",
    );
    for token in ["Bearer mgo_wrong", "Basic b3BlcmF0b3I6d3Jvbmc=", "Basic", "Bearer mrt1.AAAA.BBBB"] {
        let stranger = Ask::new("POST", "/v2/a/blobs/uploads/").with(("Authorization", token.to_owned()));
        let answer = door.ask(&stranger);
        assert_eq!(answer.status, 401, "{token}");
        refused(answer, token);
    }
    assert_nothing_named(&plant.stage, "passwd");
    plant.assert_unharmed();
}

fn assert_nothing_named(stage: &Stage, part: &str) {
    let mut folders = vec![stage.path("server")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the server's folder can be read") {
            let entry = entry.expect("the server's folder can be read");
            let name = entry.file_name();
            assert!(!name.to_string_lossy().contains(part), "{}", entry.path().display());
            if entry.file_type().expect("a kind").is_dir() {
                folders.push(entry.path());
            }
        }
    }
}
