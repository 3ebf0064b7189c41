//! On whose account a request goes, and what is kept of it over a restart.

use axum::body::Body;
use margrave_device_api::g1::SignedStanding;

use super::{Draft, NOW, World, certificate, fresh, path, status_body};
use crate::plant::ID;

fn manifest() -> Draft {
    Draft::get(&path("deployments"))
}

fn report() -> Draft {
    Draft::with_body("POST", &path(&format!("deployments/{ID}/status")), &status_body())
}

fn onboarding(der: &[u8]) -> Draft {
    let certificate = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
    let body = serde_json::json!({"kind": "OnboardingRequest", "certificate": certificate});
    Draft::with_body("POST", "/api/v1/onboarding", &body.to_string())
}

#[tokio::test]
async fn a_request_goes_on_the_account_of_who_proved_to_send_it() {
    let world = World::new();
    world.send(manifest().signed(&world.signer)).await.is(200);
    world.send(report().signed(&world.signer)).await.is(200);
    let proven = ["claims line-1", "proven line-1"];
    assert_eq!(world.charged(), [proven, proven].concat());
    // What is signed by somebody else, or not at all, is not charged to the client that it names.
    world.send(manifest().signed(&fresh().1)).await.is(401);
    world.send(manifest().unsigned().body(Body::empty()).unwrap()).await.is(401);
    world.send(report().header("content-digest", "x").signed(&world.signer)).await.is(400);
    let forged = ["claims line-1", "forged line-1"];
    assert_eq!(world.charged(), [forged, forged, forged].concat());
    // Who is no client is a stranger, with whatever signature.
    world.send(Draft::get("/api/v1/clients/nobody/deployments").signed(&world.signer)).await.is(404);
    world.send(Draft::get("/api/v1/clients/a:b/deployments").signed(&world.signer)).await.is(404);
    let (der, signer) = certificate();
    world.send(onboarding(&der).signed(&signer)).await.is(403);
    world.set_standing(SignedStanding::Retired);
    world.send(manifest().signed(&world.signer)).await.is(403);
    assert_eq!(world.charged(), ["stranger"; 4]);
    // The root certificate is a constant.
    world
        .send(Draft::get("/api/v1/onboarding/certificate").unsigned().body(Body::empty()).unwrap())
        .await
        .is(200);
    assert!(world.charged().is_empty());
}

#[tokio::test]
async fn who_asks_too_often_hears_when_to_come_back_and_nobody_else_does() {
    let (der, signer) = certificate();
    for full in ["stranger", "claims line-1", "proven line-1"] {
        let world = World::new();
        let (key, other) = fresh();
        world.accept("line-2", key);
        world.set_full(full);
        let own = world.send(report().signed(&world.signer)).await;
        let strangers = [
            world.send(Draft::get("/api/v1/clients/nobody/deployments").signed(&other)).await,
            world.send(onboarding(&der).signed(&signer)).await,
        ];
        let away = |reply: &super::Reply| {
            let problem = reply.is_problem(429, "about:blank");
            assert_eq!((reply.header("retry-after"), &problem["retryAfterSeconds"]), ("3", &3.into()));
            assert_eq!(problem["retryable"], true);
        };
        if full == "stranger" {
            strangers.iter().for_each(away);
            own.is(200);
        } else {
            away(&own);
            assert!(world.plant.reports().is_empty());
            strangers[0].is(404);
            strangers[1].is(403);
        }
        world.send(Draft::get("/api/v1/clients/line-2/deployments").signed(&other)).await.is(200);
    }
}

#[tokio::test]
async fn mi_g1_065_a_copied_request_is_refused_after_a_restart_as_well() {
    let world = World::new();
    let copied = report();
    let signature = copied.signed(&world.signer).headers()["signature"].clone();
    let again = || {
        let mut request = copied.signed(&world.signer);
        request.headers_mut().insert("signature", signature.clone());
        request
    };
    world.send(again()).await.is(200);
    let copies = [again(), again()];
    let world = world.restarted();
    let [first, late] = copies;
    world.send(first).await.is_problem(401, "signature-verification-failed");
    // A device whose clock is behind ours, and was so before: its requests count as ever.
    let behind = report().parameters(&format!(";created={};keyid=\"k\"", NOW - 200));
    world.send(behind.signed(&world.signer)).await.is(200);
    world.set_now(NOW + 301);
    world.send(late).await.is_problem(401, "signature-verification-failed");
    assert_eq!(world.plant.reports().len(), 2);
}
