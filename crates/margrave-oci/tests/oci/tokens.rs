//! Debian's registry behind a token service and behind TLS of a private authority, and whom credentials reach.

use std::sync::{Arc, Mutex};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{StatusCode, header};
use margrave_core::digest::Digest;
use margrave_oci::client::{Client, ClientError, Credentials, Endpoint, Hosts};
use margrave_oci::manifest::{Descriptor, IMAGE_MANIFEST, ImageManifest};
use margrave_oci::reference::Host;
use percent_encoding::percent_decode_str;

use crate::rig::{PASSWORD, Rig, USER, hosts, reference, repository, serve};

/// A token service as the distribution specification wants it: who knows the password gets what it asks for, others
/// may look at what is public.
struct Service {
    key: EcdsaKeyPair,
    certificate: Vec<u8>,
    asked: Mutex<Vec<String>>,
}

fn service() -> (Arc<Service>, String) {
    let made = rcgen::generate_simple_self_signed(["tokens".to_owned()]).unwrap();
    let pkcs8 = made.signing_key.serialize_der();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pkcs8).unwrap();
    let certificate = made.cert.der().to_vec();
    (Arc::new(Service { key, certificate, asked: Mutex::default() }), made.cert.pem())
}

impl Service {
    fn token(&self, access: &serde_json::Value) -> String {
        let encode = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = serde_json::json!({
            "typ": "JWT", "alg": "ES256", "x5c": [STANDARD.encode(&self.certificate)],
        });
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let claims = serde_json::json!({
            "iss": "tests", "aud": "registry", "sub": USER, "jti": "1",
            "nbf": now - 60, "iat": now, "exp": now + 300, "access": access,
        });
        let signed = format!("{}.{}", encode(header), encode(claims));
        let random = aws_lc_rs::rand::SystemRandom::new();
        let signature = self.key.sign(&random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn answer(&self, request: &Request) -> Response {
        let query = request.uri().query().unwrap_or_default().to_owned();
        self.asked.lock().unwrap().push(query.clone());
        let said =
            request.headers().get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        let known = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
        if said.as_ref().is_some_and(|said| *said != known) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        let scope = query.split('&').find_map(|pair| pair.strip_prefix("scope="));
        let access = scope.map_or_else(
            || serde_json::json!([]),
            |scope| {
                let scope = percent_decode_str(scope).decode_utf8().unwrap().into_owned();
                let [kind, name, actions] = scope.split(':').collect::<Vec<_>>()[..] else {
                    panic!("{scope} is no scope")
                };
                let actions: Vec<&str> =
                    if said.is_some() { actions.split(',').collect() } else { vec!["pull"] };
                serde_json::json!([{ "type": kind, "name": name, "actions": actions }])
            },
        );
        axum::Json(serde_json::json!({ "token": self.token(&access), "expires_in": 300 })).into_response()
    }
}

async fn push_and_pull(client: &Client) -> Digest {
    let to = reference("oci://margrave/a/b:1");
    let layer = client.push_blob(&to.repository, "layer".into()).await.unwrap();
    client.push_blob(&to.repository, "{}".into()).await.unwrap();
    let manifest = ImageManifest::artifact("x/y", vec![Descriptor::new("x", layer, 5)]).to_bytes();
    let digest = client.push_manifest(&to, IMAGE_MANIFEST, manifest.into()).await.unwrap();
    assert_eq!(client.digest(&to).await.unwrap(), digest);
    assert_eq!(client.manifest(&to.pinned(digest)).await.unwrap().digest, digest);
    let error = client.digest(&reference("oci://margrave/a/b:2")).await.unwrap_err();
    assert!(matches!(error, ClientError::NotFound(_)), "{error:?}");
    digest
}

#[tokio::test]
async fn pk_050_debians_registry_behind_a_token_service() {
    let (service, certificate) = service();
    let answer =
        |State(service): State<Arc<Service>>, request: Request| async move { service.answer(&request) };
    let tokens = serve(Router::new().fallback(answer).with_state(Arc::clone(&service))).await;
    let rig = Rig::debian_with(|directory| {
        std::fs::write(directory.join("tokens.pem"), &certificate).unwrap();
        format!(
            "auth:\n  token:\n    realm: http://{tokens}/token\n    service: registry\n    issuer: tests\n    rootcertbundle: {}/tokens.pem\n",
            directory.display()
        )
    })
    .await;
    let Some(rig) = rig else { return };
    let host = Host::parse("margrave").unwrap();
    let client = rig.client_as(USER, PASSWORD);
    client.greet(&host).await.unwrap();
    let digest = push_and_pull(&client).await;
    let asked = service.asked.lock().unwrap().clone();
    assert_eq!(asked[0], "service=registry");
    assert!(
        asked.iter().any(|query| query == "scope=repository%3Aa%2Fb%3Apull%2Cpush&service=registry"),
        "{asked:?}"
    );

    // What is public is for everybody, and pushing is not.
    let stranger = rig.client();
    assert_eq!(stranger.digest(&reference("oci://margrave/a/b:1")).await.unwrap(), digest);
    let error = stranger.push_blob(&repository("oci://margrave/a/b"), "more".into()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unauthorized(_)), "{error:?}");
    let wrong = rig.client_as(USER, "wrong");
    let error = wrong.greet(&host).await.unwrap_err();
    assert!(matches!(error, ClientError::Unauthorized(_)), "{error:?}");

    // A token that was made for us goes to the registry and to nobody else.
    let access = serde_json::json!([{ "type": "repository", "name": "a/b", "actions": ["pull"] }]);
    let before = service.asked.lock().unwrap().len();
    let holder = |token: String| {
        let mut endpoint = hosts(rig.address, None).endpoint(&host).unwrap();
        endpoint.credentials = Credentials::Token(token);
        Client::new(Hosts::new().with(host.clone(), endpoint))
    };
    let client = holder(service.token(&access));
    assert_eq!(client.digest(&reference("oci://margrave/a/b:1")).await.unwrap(), digest);
    let error = holder("wrong".to_owned()).digest(&reference("oci://margrave/a/b:1")).await.unwrap_err();
    assert!(matches!(error, ClientError::Unauthorized(_)), "{error:?}");
    assert_eq!(service.asked.lock().unwrap().len(), before);
}

#[tokio::test]
async fn debians_registry_by_tls_of_a_private_authority() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let rig = Rig::debian_with(|directory| {
        std::fs::write(directory.join("tls.pem"), &certificate).unwrap();
        std::fs::write(directory.join("tls.key"), &key).unwrap();
        let path = directory.display();
        format!("  tls:\n    certificate: {path}/tls.pem\n    key: {path}/tls.key\n")
    })
    .await;
    let Some(rig) = rig else { return };
    let host = Host::parse(&format!("localhost:{}", rig.address.port())).unwrap();
    let trusting = Endpoint::of(&host, false, Some(certificate)).unwrap();
    let known = Hosts::new().with(Host::parse("margrave").unwrap(), trusting);
    push_and_pull(&Client::new(known)).await;

    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = Endpoint::of(&host, false, Some(other.cert.pem())).unwrap();
    let error = Client::new(Hosts::new().with(host.clone(), other)).greet(&host).await.unwrap_err();
    assert!(
        matches!(error, ClientError::Network { source: margrave_http::Error::Tls { .. }, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn who_is_not_known_by_tls_does_not_choose_who_gets_the_password() {
    let answer = |_: Request| async {
        let challenge = "Bearer realm=\"https://tokens.example/token\"";
        (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)])
    };
    let address = serve(Router::new().fallback(answer)).await;
    let client = Client::new(hosts(address, Some((USER, PASSWORD))));
    let error = client.digest(&reference("oci://margrave/a:1")).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Protocol { why, .. } if why.contains("another machine")),
        "{error:?}"
    );
}

#[tokio::test]
async fn what_is_no_registry_is_told_when_it_is_greeted() {
    let address = serve(Router::new()).await;
    let error = Client::new(hosts(address, None)).greet(&Host::parse("margrave").unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("/v2/"), "{error}");
}
