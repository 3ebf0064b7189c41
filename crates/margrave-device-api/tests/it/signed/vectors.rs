//! Whole requests that another implementation signed (Python's `cryptography`, bases written out by hand), in
//! both styles, with every algorithm of the generation, with and without `alg`.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use margrave_identity::message::ClientCertificate;
use serde_json::Value;

use super::World;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../vectors/signed_requests.json")).unwrap()
}

fn world(vectors: &Value) -> World {
    let world = World::new();
    for (name, der) in vectors["certificates"].as_object().unwrap() {
        let der = STANDARD.decode(der.as_str().unwrap()).unwrap();
        world.accept_key(name, ClientCertificate::read(vec![der]).unwrap().key().clone());
    }
    world
}

fn request(vector: &Value) -> Request<Body> {
    let text = |key: &str| vector[key].as_str().unwrap();
    let mut request = Request::builder().method(text("method")).uri(text("path"));
    for (name, value) in vector["headers"].as_object().unwrap() {
        request = request.header(name, value.as_str().unwrap());
    }
    request.body(Body::from(text("body").to_owned())).unwrap()
}

#[tokio::test]
async fn mi_g1_047_every_request_of_another_implementation_is_taken() {
    let vectors = vectors();
    let requests = vectors["requests"].as_array().unwrap();
    assert_eq!(requests.len(), 31);
    let world = world(&vectors);
    for vector in requests {
        let reply = world.send(request(vector)).await;
        assert_eq!(reply.status.as_u16(), 200, "{}: {:?}", vector["name"], reply.body);
    }
}

#[tokio::test]
async fn mi_g1_063_no_request_of_another_implementation_is_taken_for_another_client() {
    let vectors = vectors();
    let world = world(&vectors);
    for vector in vectors["requests"].as_array().unwrap() {
        let key = vector["key"].as_str().unwrap();
        let other = if key == "p256" { "ed25519" } else { "p256" };
        let mut request = request(vector);
        *request.uri_mut() = vector["path"].as_str().unwrap().replace(key, other).parse().unwrap();
        world.send(request).await.is_problem(401, "signature-verification-failed");
    }
}
