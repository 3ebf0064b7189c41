//! Whatever is changed about a signed request on its way, it is refused and does nothing.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Request};
use margrave_device_api::g1::Terms;
use margrave_identity::message::{Algorithm, Signer, VerificationKey};
use proptest::prelude::*;
use rcgen::{KeyPair, PublicKeyData as _, RsaKeySize};

use super::{Draft, ORIGIN, World, digest_of, path};
use crate::signed::writes::capabilities;

const ELSEWHERE: &str = "other.example.com";

struct Pair {
    signer: Signer,
    key: Arc<VerificationKey>,
}

/// One key of each kind, with every way to sign that goes with it.
static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let pair = |pair: &KeyPair, algorithm: Algorithm| Pair {
        signer: Signer::from_pem(&pair.serialize_pem()).unwrap().with_algorithm(algorithm).unwrap(),
        key: Arc::new(VerificationKey::from_spki(&pair.subject_public_key_info()).unwrap()),
    };
    let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    vec![
        pair(&KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap(), Algorithm::EcdsaP256Sha256),
        pair(&KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap(), Algorithm::EcdsaP384Sha384),
        pair(&KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap(), Algorithm::Ed25519),
        pair(&rsa, Algorithm::RsaV15Sha256),
        pair(&rsa, Algorithm::RsaPssSha256),
        pair(&rsa, Algorithm::RsaPssSha512),
    ]
});

/// What somebody on the way changes. Numbers choose the place; they are taken modulo what there is.
#[derive(Debug, Clone)]
enum Change {
    Method,
    Path(usize),
    Query(String),
    NoQuery,
    Authority,
    Body(usize, u8),
    Digest(usize, u8),
    BodyAndDigest(usize, u8),
    Created(i64),
    KeyId(String),
    Algorithm,
    Fewer(usize),
    Order,
    Signature(usize, u8),
    Cut(usize),
}

fn changes() -> impl Strategy<Value = Change> {
    let bit = || (0u8..8).prop_map(|bit| 1 << bit);
    prop_oneof![
        1 => Just(Change::Method),
        1 => any::<usize>().prop_map(Change::Path),
        1 => "[a-z0-9=&]{1,12}".prop_map(Change::Query),
        1 => Just(Change::NoQuery),
        1 => Just(Change::Authority),
        1 => (any::<usize>(), bit()).prop_map(|(at, bit)| Change::Body(at, bit)),
        1 => (any::<usize>(), bit()).prop_map(|(at, bit)| Change::Digest(at, bit)),
        1 => (any::<usize>(), bit()).prop_map(|(at, bit)| Change::BodyAndDigest(at, bit)),
        1 => prop_oneof![-250i64..0, 1i64..50].prop_map(Change::Created),
        1 => "[a-z0-9]{1,20}".prop_filter("another", |id| id != "k").prop_map(Change::KeyId),
        1 => Just(Change::Algorithm),
        1 => any::<usize>().prop_map(Change::Fewer),
        1 => Just(Change::Order),
        // Most of all, because there are most places.
        4 => (any::<usize>(), bit()).prop_map(|(at, bit)| Change::Signature(at, bit)),
        1 => (1usize..40).prop_map(Change::Cut),
    ]
}

/// The request as it was signed: everything is covered that can be.
fn original(created: u64) -> Draft {
    let body = capabilities("line-1");
    Draft::with_body("PUT", &format!("{}?from=press&to=hall", path("capabilities/line-1")), &body)
        .components(&["@method", "@target-uri", "@authority", "content-digest"])
        .parameters(&format!(";created={created};keyid=\"k\""))
}

fn header(request: &Request<Body>, name: &str) -> String {
    request.headers()[name].to_str().unwrap().to_owned()
}

fn set(request: &mut Request<Body>, name: &'static str, value: &str) {
    request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
}

/// One bit of what is written in base64 between colons.
fn flipped(text: &str, at: usize, bit: u8) -> String {
    let (before, rest) = text.split_once(':').unwrap();
    let mut bytes = STANDARD.decode(rest.trim_end_matches(':')).unwrap();
    let at = at % bytes.len();
    bytes[at] ^= bit;
    format!("{before}:{}:", STANDARD.encode(bytes))
}

/// `None` where the change would not be one.
fn changed(draft: &Draft, signer: &Signer, change: &Change) -> Option<Request<Body>> {
    let mut request = draft.signed(signer);
    let input = header(&request, "signature-input");
    let flip_body = |at: usize, bit: u8| {
        let mut body = draft.body.clone().into_bytes();
        let at = at % body.len();
        body[at] ^= bit;
        body
    };
    match change {
        Change::Method => *request.method_mut() = http::Method::POST,
        Change::Path(at) => {
            let mut path = draft.path.clone().into_bytes();
            // Letters only, of the device's name: what lies before is another client's or nobody's path.
            let name = draft.path.find("line-1?").unwrap();
            let at = name + at % 4;
            path[at] = if path[at] == b'x' { b'y' } else { b'x' };
            *request.uri_mut() = String::from_utf8(path).unwrap().parse().unwrap();
        }
        Change::Query(query) => {
            let (path, before) = draft.path.split_once('?').unwrap();
            if before == query {
                return None;
            }
            *request.uri_mut() = format!("{path}?{query}").parse().unwrap();
        }
        Change::NoQuery => *request.uri_mut() = draft.path.split_once('?').unwrap().0.parse().unwrap(),
        Change::Authority => set(&mut request, "host", ELSEWHERE),
        Change::Body(at, bit) => *request.body_mut() = Body::from(flip_body(*at, *bit)),
        Change::Digest(at, bit) => {
            let digest = flipped(&header(&request, "content-digest"), *at, *bit);
            set(&mut request, "content-digest", &digest);
        }
        Change::BodyAndDigest(at, bit) => {
            // What is not text any more has no digest here; the other kinds of change have it.
            let body = String::from_utf8(flip_body(*at, *bit)).ok()?;
            set(&mut request, "content-digest", &digest_of(&body));
            *request.body_mut() = Body::from(body);
        }
        Change::Created(by) => {
            let other = super::NOW.checked_add_signed(*by).unwrap();
            set(&mut request, "signature-input", &input.replace(&super::NOW.to_string(), &other.to_string()));
        }
        Change::KeyId(id) => {
            set(&mut request, "signature-input", &input.replace("\"k\"", &format!("\"{id}\"")))
        }
        Change::Algorithm => {
            set(&mut request, "signature-input", &format!("{input};alg=\"{}\"", signer.algorithm()))
        }
        Change::Fewer(at) => {
            let gone = ["\"@method\" ", "\"@target-uri\" ", "\"@authority\" ", " \"content-digest\""];
            set(&mut request, "signature-input", &input.replace(gone[at % gone.len()], ""));
        }
        Change::Order => {
            let turned = input.replace("\"@method\" \"@target-uri\"", "\"@target-uri\" \"@method\"");
            set(&mut request, "signature-input", &turned);
        }
        Change::Signature(at, bit) => {
            let signature = flipped(&header(&request, "signature"), *at, *bit);
            set(&mut request, "signature", &signature);
        }
        Change::Cut(bytes) => {
            let text = header(&request, "signature");
            let signature = STANDARD.decode(text.trim_start_matches("sig1=:").trim_end_matches(':')).unwrap();
            let kept = &signature[..signature.len() - bytes];
            set(&mut request, "signature", &format!("sig1=:{}:", STANDARD.encode(kept)));
        }
    }
    Some(request)
}

fn check(pair: &Pair, change: &Change) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let external = vec![ORIGIN.parse().unwrap(), format!("https://{ELSEWHERE}").parse().unwrap()];
        let world = World::with(Terms { external, ..Terms::default() });
        world.accept_key("line-1", Arc::clone(&pair.key));
        let draft = original(super::NOW);
        let Some(request) = changed(&draft, &pair.signer, change) else { return };
        let reply = world.send(request).await;
        let status = reply.status.as_u16();
        assert!(matches!(status, 400 | 401), "{change:?} by {:?}: {status} {:?}", pair.signer, reply.body);
        assert!(world.plant.bodies().is_empty(), "{change:?} did something");
        // And it is the change that was refused: the request as it was signed is taken.
        world.send(draft.signed(&pair.signer)).await.is(201);
        let done = world.plant.bodies();
        assert!(done.len() == 1 && done[0] == draft.body, "{done:?}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mi_g1_062_063_any_change_to_what_is_covered_breaks_the_signature(change in changes()) {
        for pair in PAIRS.iter() {
            check(pair, &change);
        }
    }
}

#[test]
fn mi_g1_063_no_byte_of_a_signature_can_be_another() {
    for pair in PAIRS.iter() {
        let length = pair.signer.sign(b"x").unwrap().len();
        for at in 0..length {
            check(pair, &Change::Signature(at, 1 << (at % 8)));
        }
    }
}
