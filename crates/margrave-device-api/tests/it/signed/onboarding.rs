//! Becoming a client.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_device_api::g1::{Onboarding, Terms};
use serde_json::{Value, json};

use super::{Draft, ORIGIN, ROOT, World, certificate, fresh};

const PATH: &str = "/api/v1/onboarding";

fn request(certificate: &str) -> Draft {
    let body = json!({
        "apiVersion": "onboarding.margo.org/v1alpha1", "kind": "OnboardingRequest", "certificate": certificate,
    });
    Draft::with_body("POST", PATH, &body.to_string())
}

fn pem(der: &[u8]) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(der))
}

#[tokio::test]
async fn mi_g1_022_mi_g1_025_anybody_gets_the_root_certificate() {
    let world = World::new();
    let unsigned = Draft::get("/api/v1/onboarding/certificate").unsigned().body(Body::empty()).unwrap();
    let reply = world.send(unsigned).await;
    assert_eq!(reply.is(200).header("content-type"), "application/json");
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(STANDARD.decode(body["certificate"].as_str().unwrap()).unwrap(), ROOT.as_bytes());
}

#[tokio::test]
async fn mi_g1_028_amb_02_an_accepted_client_gets_its_id_in_every_encoding_of_its_certificate() {
    let world = World::new();
    world.yard.state.lock().unwrap().decision = Onboarding::Accepted("c-17".parse().unwrap());
    let (der, signer) = certificate();
    for text in [pem(&der), STANDARD.encode(pem(&der)), STANDARD.encode(&der)] {
        let reply = world.send(request(&text).signed(&signer)).await;
        assert_eq!(reply.is(201).header("content-type"), "application/json");
        assert_eq!(reply.header("cache-control"), "no-store");
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!((&body["clientId"], &body["client_id"]), (&json!("c-17"), &json!("c-17")));
    }
    let oldest = Draft::with_body("POST", PATH, &json!({ "public_certificate": pem(&der) }).to_string());
    world.send(oldest.signed(&signer)).await.is(201);
    let state = world.yard.state.lock().unwrap();
    assert_eq!(state.applicants.len(), 4);
    for applicant in &state.applicants {
        assert_eq!(applicant.certificate.der(), der);
        assert!(applicant.proven);
    }
}

#[tokio::test]
async fn mi_g1_030_amb_04_pending_and_rejected_are_403_in_the_declared_body() {
    let world = World::new();
    let (der, signer) = certificate();
    for (decision, word) in [
        (Onboarding::Pending, "has to accept"),
        (Onboarding::Rejected, "rejected"),
        (Onboarding::Retired, "retired"),
    ] {
        world.yard.state.lock().unwrap().decision = decision;
        let reply = world.send(request(&STANDARD.encode(&der)).signed(&signer)).await;
        let told = reply.is_problem(403, "certificate-not-trusted");
        assert_eq!(
            (&told["error"], reply.header("content-type")),
            (&json!("Client rejected"), "application/json")
        );
        assert!(told["detail"].as_str().unwrap().contains(word), "{told}");
    }
}

#[tokio::test]
async fn mi_g1_029_what_is_no_certificate_is_400_in_the_declared_body() {
    let world = World::new();
    let (der, signer) = certificate();
    let torn = STANDARD.encode(&der[..der.len() - 3]);
    for text in ["", "!", &torn, "-----BEGIN CERTIFICATE-----", &STANDARD.encode(b"hello")] {
        let reply = world.send(request(text).signed(&signer)).await;
        assert_eq!(
            reply.is_problem(400, "invalid-certificate-format")["error"],
            "Invalid certificate",
            "{text}"
        );
    }
    let many = world.send(request(&pem(&der).repeat(11)).signed(&signer)).await;
    let told = many.is_problem(400, "invalid-certificate-format");
    assert!(told["detail"].as_str().unwrap().contains("more than 10 certificates"), "{told}");
    for body in ["{}", "[]", r#"{"certificate":7}"#, r#"{"kind":"Other","certificate":"x"}"#] {
        let reply = world.send(Draft::with_body("POST", PATH, body).signed(&signer)).await;
        reply.is_problem(400, "invalid-certificate-format");
    }
    let reply = world.send(Draft::with_body("POST", PATH, "{").signed(&signer)).await;
    reply.is_problem(400, "invalid-request");
    assert!(world.yard.state.lock().unwrap().applicants.is_empty());
}

#[tokio::test]
async fn mi_g1_027_amb_03_the_request_proves_possession_of_the_key() {
    let (der, signer) = certificate();
    let text = STANDARD.encode(&der);
    let unsigned = || {
        let draft = request(&text);
        draft.unsigned().body(Body::from(draft.body.clone())).unwrap()
    };
    let world = World::new();
    world.send(unsigned()).await.is_problem(401, "signature-verification-failed");
    world.send(request(&text).signed(&fresh().1)).await.is_problem(401, "signature-verification-failed");
    let uncovered = request(&text).components(&["@method", "@target-uri"]);
    world.send(uncovered.signed(&signer)).await.is_problem(400, "invalid-request");
    let stale = request(&text).parameters(";created=1");
    world.send(stale.signed(&signer)).await.is_problem(401, "signature-verification-failed");
    assert!(world.yard.state.lock().unwrap().applicants.is_empty());

    // With the switch for old clients, none is fine, and a wrong one still is not.
    let external = vec![ORIGIN.parse().unwrap()];
    let lenient = World::with(Terms { unsigned_onboarding: true, external, ..Terms::default() });
    lenient.send(unsigned()).await.is_problem(403, "certificate-not-trusted");
    lenient.send(request(&text).signed(&signer)).await.is_problem(403, "certificate-not-trusted");
    lenient.send(request(&text).signed(&fresh().1)).await.is_problem(401, "signature-verification-failed");
    let proven: Vec<bool> =
        lenient.yard.state.lock().unwrap().applicants.iter().map(|each| each.proven).collect();
    assert_eq!(proven, [false, true]);
}

#[tokio::test]
async fn an_onboarding_request_is_bounded() {
    let world = World::new();
    let large = format!(r#"{{"certificate":"{}"}}"#, "A".repeat(300 * 1024));
    world
        .send(Draft::with_body("POST", PATH, &large).signed(&world.signer))
        .await
        .is_problem(413, "about:blank");
}
