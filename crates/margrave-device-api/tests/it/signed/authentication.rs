//! Which signatures count, and what is said about those that do not.

use std::time::Duration;

use axum::body::Body;
use margrave_device_api::ApiError;
use margrave_device_api::g1::{SignedStanding, Terms};

use super::{Draft, NOW, ORIGIN, World, digest_of, fresh, path, status_body};
use crate::plant::ID;

fn manifest() -> Draft {
    Draft::get(&path("deployments"))
}

fn report() -> Draft {
    Draft::with_body("POST", &path(&format!("deployments/{ID}/status")), &status_body())
}

#[tokio::test]
async fn mi_g1_060_the_key_is_the_path_clients_and_never_the_keyids() {
    let world = World::new();
    let (key, other) = fresh();
    let keyid = key.keyid();
    world.accept("line-2", key);
    world.send(manifest().signed(&world.signer)).await.is(200);
    let claims = manifest().parameters(&format!(";created={NOW};keyid=\"{keyid}\""));
    world.send(claims.signed(&other)).await.is_problem(401, "signature-verification-failed");
    world.send(claims.signed(&world.signer)).await.is(200);
    // Another client's path, with one's own key.
    let other_path = Draft::get("/api/v1/clients/line-2/deployments");
    world.send(other_path.signed(&world.signer)).await.is_problem(401, "signature-verification-failed");
    world.send(other_path.signed(&other)).await.is(200);
}

#[tokio::test]
async fn mi_g1_066_mi_g1_067_unknown_and_unwanted_clients_hear_so_before_anything_else() {
    let world = World::new();
    let unsigned = |path: &str| Draft::get(path).unsigned().body(Body::empty()).unwrap();
    for nobody in ["nobody", "a:b", "..", "%2e%2e", "a~b"] {
        let path = format!("/api/v1/clients/{nobody}/deployments");
        world.send(unsigned(&path)).await.is_problem(404, "invalid-client");
    }
    for standing in [SignedStanding::Pending, SignedStanding::Rejected, SignedStanding::Retired] {
        world.set_standing(standing);
        world.send(unsigned(&path("deployments"))).await.is_problem(403, "certificate-not-trusted");
        world.send(manifest().signed(&world.signer)).await.is_problem(403, "certificate-not-trusted");
        world.send(report().signed(&world.signer)).await.is_problem(403, "certificate-not-trusted");
    }
    world.set_standing(SignedStanding::Accepted);
    world.send(manifest().signed(&world.signer)).await.is(200);
}

#[tokio::test]
async fn mi_g1_063_mi_g1_064_a_signature_that_does_not_verify_is_401_and_ends_the_session() {
    let world = World::new();
    world
        .send(manifest().unsigned().body(Body::empty()).unwrap())
        .await
        .is_problem(401, "signature-verification-failed");
    let reply = world.send(manifest().signed(&fresh().1)).await;
    let problem = reply.is_problem(401, "signature-verification-failed");
    assert_eq!(problem["error"], "Invalid signature");
    // Bodies are believed only afterwards.
    let mut bad = report();
    bad.body = "not even JSON".to_owned();
    let bad = bad.clone().header("content-digest", &digest_of(&bad.body));
    world.send(bad.signed(&fresh().1)).await.is_problem(401, "signature-verification-failed");
    world.send(bad.signed(&world.signer)).await.is_problem(400, "invalid-request");
    assert!(world.plant.reports().is_empty());
}

#[tokio::test]
async fn mi_g1_061_headers_that_cannot_be_read_are_400() {
    let world = World::new();
    for (input, signature) in [
        ("sig1=(", "sig1=:AA==:"),
        ("sig1=()", "sig1=:!:"),
        ("sig1=()", "other=:AA==:"),
        ("sig1=1", "sig1=:AA==:"),
        ("sig1=(\"a\" \"a\")", "sig1=:AA==:"),
        ("sig1=(\"@method\" \"@target-uri\" \"@status\");created=1766000000", "sig1=:AA==:"),
        ("sig1=(\"@method\" \"@target-uri\" \"x-none\");created=1766000000", "sig1=:AA==:"),
        ("sig1=(\"@method\" \"@target-uri\" \"host\";sf);created=1766000000", "sig1=:AA==:"),
    ] {
        let request = manifest().unsigned().header("signature-input", input).header("signature", signature);
        world.send(request.body(Body::empty()).unwrap()).await.is_problem(400, "invalid-request");
    }
}

#[tokio::test]
async fn mi_g1_066_amb_28_the_digest_is_required_and_compared_where_there_is_a_body() {
    let world = World::new();
    let mut without = report();
    without.headers.retain(|(name, _)| name != "content-digest");
    let wrong = report().header("content-digest", &digest_of("something else"));
    for draft in [without, wrong.clone(), report().header("content-digest", "sha-256=:AA==:")] {
        world.send(draft.signed(&world.signer)).await.is_problem(400, "invalid-digest-header");
    }
    // Right when signed, changed on the way.
    let mut changed = report();
    changed.body = changed.body.replace("installed", "removed");
    world.send(changed.signed(&world.signer)).await.is_problem(400, "invalid-digest-header");
    // Nothing to compare, nothing demanded; but what is covered is compared.
    let delete = |components: &[&'static str]| {
        let mut draft = Draft::get(&path("capabilities/line-1")).components(components);
        draft.method = "DELETE".to_owned();
        draft
    };
    world
        .send(delete(&["@method", "@target-uri"]).signed(&world.signer))
        .await
        .is_problem(404, "about:blank");
    let covered =
        delete(&["@method", "@target-uri", "content-digest"]).header("content-digest", &digest_of("x"));
    world.send(covered.signed(&world.signer)).await.is_problem(400, "invalid-digest-header");
    assert!(world.plant.reports().is_empty());
}

#[tokio::test]
async fn mi_g1_068_what_must_be_covered_and_what_may_be() {
    let world = World::new();
    for lacking in [&["@method"][..], &["@target-uri"], &[], &["@method", "@path"]] {
        let draft = manifest().components(lacking);
        world.send(draft.signed(&world.signer)).await.is_problem(400, "invalid-request");
    }
    // Older reference clients send the digest without covering it.
    let uncovered = report().components(&["@method", "@target-uri"]);
    let problem = world.send(uncovered.signed(&world.signer)).await.is_problem(400, "invalid-request");
    assert!(problem["detail"].as_str().unwrap().contains("content-digest"), "{problem}");
    let more = manifest().components(&["@authority", "@path", "@target-uri", "host", "@method"]);
    world.send(more.signed(&world.signer)).await.is(200);
    let mut labelled = manifest();
    labelled.label = "my-own";
    world.send(labelled.signed(&world.signer)).await.is(200);
    let odd = manifest().parameters(&format!(";x=?0;keyid=\"k\";created={NOW};tag=\"t\""));
    world.send(odd.signed(&world.signer)).await.is(200);
    // A proxy's signature beside the client's does not get in the way.
    let mut request = manifest().signed(&world.signer);
    request.headers_mut().append("signature-input", "proxy=(\"@path\");created=1".parse().unwrap());
    request.headers_mut().append("signature", "proxy=:AAAA:".parse().unwrap());
    world.send(request).await.is(200);
}

#[tokio::test]
async fn amb_06_a_capital_field_name_is_verified_in_both_readings() {
    let world = World::new();
    let spelled = report().components(&["@method", "@target-uri", "Content-Digest"]);
    world.send(spelled.signed(&world.signer)).await.is(200);
    // RFC 9421: named in lower case in the base, whatever the list says.
    let strict = spelled.base().replace("\"Content-Digest\": ", "\"content-digest\": ");
    let signature = world.signer.sign(strict.as_bytes()).unwrap();
    let mut request = spelled.signed(&world.signer);
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, signature);
    request.headers_mut().insert("signature", format!("sig1=:{encoded}:").parse().unwrap());
    world.send(request).await.is(200);
}

#[tokio::test]
async fn mi_g1_065_created_must_lie_within_the_window() {
    let world = World::with(Terms {
        external: vec![ORIGIN.parse().unwrap()],
        window: Duration::from_secs(100),
        skew: Duration::from_secs(20),
        unsigned_onboarding: false,
    });
    let now = i64::try_from(NOW).unwrap();
    for (offset, fine) in [(0, true), (-100, true), (-101, false), (20, true), (21, false), (-100_000, false)]
    {
        let draft = manifest().parameters(&format!(";created={}", now + offset));
        let reply = world.send(draft.signed(&world.signer)).await;
        if fine {
            reply.is(200);
        } else {
            reply.is_problem(401, "signature-verification-failed");
        }
    }
    for bad in ["", ";created=-5", ";created=1.5", ";created=\"1766000000\"", ";created=999999999999999"] {
        let reply = world.send(manifest().parameters(bad).signed(&world.signer)).await;
        reply.is_problem(401, "signature-verification-failed");
    }
}

#[tokio::test]
async fn expires_is_honoured_where_it_is_given() {
    let world = World::new();
    for (expires, status) in [(NOW, 200), (NOW + 60, 200), (NOW - 1, 401)] {
        let draft = manifest().parameters(&format!(";created={};expires={expires}", NOW - 10));
        world.send(draft.signed(&world.signer)).await.is(status);
    }
    let unreadable = manifest().parameters(&format!(";created={NOW};expires=\"later\""));
    world.send(unreadable.signed(&world.signer)).await.is_problem(401, "signature-verification-failed");
}

#[tokio::test]
async fn amb_05_an_algorithm_that_is_named_must_be_the_keys() {
    let world = World::new();
    for (alg, status) in
        [("ecdsa-p256-sha256", 200), ("ed25519", 401), ("rsa-pss-sha512", 401), ("none", 401)]
    {
        let draft = manifest().parameters(&format!(";created={NOW};alg=\"{alg}\""));
        world.send(draft.signed(&world.signer)).await.is(status);
    }
}

#[tokio::test]
async fn mi_g1_069_the_target_is_rebuilt_as_the_client_wrote_it() {
    let external = vec![ORIGIN.parse().unwrap(), "https://10.0.0.7:8445/v1alpha2/margo".parse().unwrap()];
    let world = World::with(Terms { external, ..Terms::default() });
    let check = async |host: &str, origin: &str, path: &str, received: &str, status: u16| {
        let mut draft = Draft::get(path).header("host", host);
        draft.origin = origin.to_owned();
        let mut request = draft.signed(&world.signer);
        *request.uri_mut() = received.parse().unwrap();
        world.send(request).await.is(status);
    };
    let plain = path("deployments");
    let prefixed = format!("/v1alpha2/margo{plain}");
    check("wfm.example.com", ORIGIN, &plain, &plain, 200).await;
    // The client's own spelling of the host, and one that a proxy put in its place.
    check("WFM.example.com:443", "https://WFM.example.com:443", &plain, &plain, 200).await;
    check("backend.internal:8080", ORIGIN, &plain, &plain, 200).await;
    check("evil.example", "https://evil.example", &plain, &plain, 401).await;
    // A prefix that the proxy strips, or passes on.
    check("10.0.0.7:8445", "https://10.0.0.7:8445", &prefixed, &plain, 200).await;
    check("10.0.0.7:8445", "https://10.0.0.7:8445", &prefixed, &prefixed, 200).await;
    check("10.0.0.7:8445", "https://10.0.0.7:8445", &plain, &plain, 401).await;
    check("10.0.0.7:8445", "http://10.0.0.7:8445", &prefixed, &plain, 401).await;
    // No normalisation and no decoding; the query counts.
    let encoded = plain.replace("line-1", "line%2D1");
    check("wfm.example.com", ORIGIN, &encoded, &encoded, 200).await;
    check("wfm.example.com", ORIGIN, &plain, &encoded, 401).await;
    let query = format!("{plain}?a=%41&b");
    check("wfm.example.com", ORIGIN, &query, &query, 200).await;
    check("wfm.example.com", ORIGIN, &plain, &query, 401).await;
}

#[tokio::test]
async fn mi_g1_069_without_a_configured_address_the_host_counts() {
    let world = World::with(Terms::default());
    let mut draft = manifest().header("host", "plant.local:8445");
    draft.origin = "https://plant.local:8445".to_owned();
    world.send(draft.signed(&world.signer)).await.is(200);
    draft.headers.clear();
    world.send(draft.signed(&world.signer)).await.is_problem(400, "invalid-request");
}

#[tokio::test]
async fn mi_g1_065_a_copied_request_that_changes_something_is_refused() {
    let world = World::new();
    let copy = |signer| {
        let request = report().signed(signer);
        let headers = request.headers().clone();
        move || {
            let mut request = report().unsigned().body(Body::from(status_body())).unwrap();
            *request.headers_mut() = headers.clone();
            request
        }
    };
    let request = copy(&world.signer);
    world.send(request()).await.is(200);
    let problem = world.send(request()).await.is_problem(401, "signature-verification-failed");
    assert!(problem["message"].as_str().unwrap().contains("used before"), "{problem}");
    world.set_now(NOW + 300);
    world.send(request()).await.is_problem(401, "signature-verification-failed");
    assert_eq!(world.plant.reports().len(), 1);
    // The same thing, signed anew, is fine.
    world.set_now(NOW);
    world.send(report().signed(&world.signer)).await.is(200);
    // What failed was not used up.
    let request = copy(&world.signer);
    world.plant.fail_next(ApiError::Busy { retry_after: Duration::from_secs(3) });
    let busy = world.send(request()).await;
    assert_eq!(busy.is(503).header("retry-after"), "3");
    world.send(request()).await.is(200);
    world.send(request()).await.is_problem(401, "signature-verification-failed");
    // One's nonce is one's word that it is used once.
    let nonce = || report().parameters(&format!(";created={NOW};nonce=\"n\"")).signed(&world.signer);
    world.send(nonce()).await.is(200);
    world.send(nonce()).await.is_problem(401, "signature-verification-failed");
}

#[tokio::test]
async fn reading_twice_within_a_second_is_no_replay() {
    let world = World::new();
    let pem = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let signer = margrave_identity::message::Signer::from_pem(&pem.serialize_pem()).unwrap();
    let spki = rcgen::PublicKeyData::subject_public_key_info(&pem);
    world.accept("line-1", margrave_identity::message::VerificationKey::from_spki(&spki).unwrap());
    for _ in 0..3 {
        world.send(manifest().signed(&signer)).await.is(200);
    }
    // A retry of the latest change, which such a client cannot sign differently.
    for _ in 0..2 {
        world.send(report().signed(&signer)).await.is(200);
    }
    let mut removed = report();
    removed.body = removed.body.replace("installed", "removed");
    let removed = removed.clone().header("content-digest", &digest_of(&removed.body));
    world.send(removed.signed(&signer)).await.is(200);
    // Going back to what was said before it is not.
    world.send(report().signed(&signer)).await.is_problem(401, "signature-verification-failed");
}
