//! The signed generation: a yard of clients around the same plant, and requests signed by hand.

mod accounts;
mod authentication;
mod desired_state;
mod onboarding;
mod tampering;
mod vectors;
mod writes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use margrave_core::digest::Digest;
use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_device_api::g1::{
    self, Applicant, Onboarding, Sender, SignedApi, SignedClient, SignedStanding, Terms, UsedSignature,
};
use margrave_device_api::{Answer, ApiError, DeviceApi};
use margrave_identity::message::{Signer, VerificationKey};
use margrave_wire::identity::RegistryToken;
use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};
use tower::ServiceExt as _;

use crate::plant::{ID, Plant};

pub(crate) const NOW: u64 = 1_766_000_000;
const ORIGIN: &str = "https://wfm.example.com";
const ROOT: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

/// Who may speak for which client, and what they were given; simulated just as far as the wire can tell.
struct Yard {
    plant: Arc<Plant>,
    terms: Terms,
    state: Mutex<State>,
}

struct State {
    clients: BTreeMap<ClientId, SignedClient>,
    given: BTreeMap<ClientId, u64>,
    now: u64,
    decision: Onboarding,
    applicants: Vec<Applicant>,
    /// On whose account requests went.
    charged: Vec<String>,
    /// The account on which nothing is left.
    full: Option<String>,
    kept: Vec<UsedSignature>,
}

impl SignedApi for Yard {
    fn client(&self, client: &ClientId) -> Option<SignedClient> {
        self.state.lock().unwrap().clients.get(client).cloned()
    }

    fn onboard<'a>(&'a self, applicant: Applicant) -> Answer<'a, Result<Onboarding, ApiError>> {
        Box::pin(async move {
            let mut state = self.state.lock().unwrap();
            state.applicants.push(applicant);
            Ok(state.decision.clone())
        })
    }

    fn root_certificate(&self) -> String {
        ROOT.to_owned()
    }

    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn now(&self) -> Moment {
        Moment(self.state.lock().unwrap().now * 1000)
    }

    fn manifest_given<'a>(&'a self, client: &'a ClientId, version: u64) -> Answer<'a, Result<(), ApiError>> {
        Box::pin(async move {
            self.state.lock().unwrap().given.insert(client.clone(), version);
            Ok(())
        })
    }

    fn manifest_last_given(&self, client: &ClientId) -> Option<u64> {
        self.state.lock().unwrap().given.get(client).copied()
    }

    fn registry_token(&self, client: &ClientId) -> RegistryToken {
        RegistryToken {
            username: client.to_string(),
            password: "secret".to_owned(),
            expires: "later".to_owned(),
            registry: None,
            web_authority: None,
        }
    }

    fn charge(&self, sender: Sender<'_>) -> Result<(), Duration> {
        let mut state = self.state.lock().unwrap();
        let sender = match sender {
            Sender::Stranger => "stranger".to_owned(),
            Sender::Claims(client) => format!("claims {client}"),
            Sender::Proven(client) => format!("proven {client}"),
        };
        let full = state.full.as_ref() == Some(&sender);
        state.charged.push(sender);
        if full { Err(Duration::from_millis(2500)) } else { Ok(()) }
    }

    fn forged(&self, client: &ClientId) {
        self.state.lock().unwrap().charged.push(format!("forged {client}"));
    }

    fn signatures_kept(&self) -> Vec<UsedSignature> {
        self.state.lock().unwrap().kept.clone()
    }

    fn keep_signatures<'a>(&'a self, used: Vec<UsedSignature>) -> Answer<'a, Result<(), ApiError>> {
        Box::pin(async move {
            self.state.lock().unwrap().kept.extend(used);
            Ok(())
        })
    }
}

/// A server with one accepted client, `line-1`, and that client's key.
struct World {
    plant: Arc<Plant>,
    yard: Arc<Yard>,
    router: Router,
    signer: Signer,
}

impl World {
    fn new() -> World {
        World::with(Terms { external: vec![ORIGIN.parse().unwrap()], ..Terms::default() })
    }

    fn with(terms: Terms) -> World {
        let plant = Plant::new();
        let state = State {
            clients: BTreeMap::new(),
            given: BTreeMap::new(),
            now: NOW,
            decision: Onboarding::Pending,
            applicants: Vec::new(),
            charged: Vec::new(),
            full: None,
            kept: Vec::new(),
        };
        let yard = Arc::new(Yard { plant: Arc::clone(&plant), terms, state: Mutex::new(state) });
        let api = Arc::clone(&yard.plant) as Arc<dyn DeviceApi>;
        let router = g1::router(api, Arc::clone(&yard) as Arc<dyn SignedApi>);
        let (key, signer) = fresh();
        let world = World { plant, yard, router, signer };
        world.accept("line-1", key);
        world
    }

    /// The same server after a restart: what was kept is all that is left.
    fn restarted(self) -> World {
        let api = Arc::clone(&self.yard.plant) as Arc<dyn DeviceApi>;
        let router = g1::router(api, Arc::clone(&self.yard) as Arc<dyn SignedApi>);
        World { router, ..self }
    }

    /// On whose account requests went since the last time.
    fn charged(&self) -> Vec<String> {
        std::mem::take(&mut self.yard.state.lock().unwrap().charged)
    }

    fn set_full(&self, sender: &str) {
        self.yard.state.lock().unwrap().full = Some(sender.to_owned());
    }

    fn accept(&self, client: &str, key: VerificationKey) {
        self.accept_key(client, Arc::new(key));
    }

    fn accept_key(&self, client: &str, key: Arc<VerificationKey>) {
        let known = SignedClient { standing: SignedStanding::Accepted, key };
        self.plant.set_standing(&client.parse().unwrap(), Ok(()));
        self.yard.state.lock().unwrap().clients.insert(client.parse().unwrap(), known);
    }

    fn set_standing(&self, standing: SignedStanding) {
        let mut state = self.yard.state.lock().unwrap();
        state.clients.get_mut(&"line-1".parse().unwrap()).unwrap().standing = standing;
    }

    fn set_now(&self, now: u64) {
        self.yard.state.lock().unwrap().now = now;
    }

    async fn send(&self, request: Request<Body>) -> Reply {
        let path = request.uri().path().to_owned();
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { path, status: parts.status, headers: parts.headers, body }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut draft = Draft::get(path);
        draft.headers.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        self.send(draft.signed(&self.signer)).await
    }

    async fn write(&self, method: &str, path: &str, body: &str) -> Reply {
        self.send(Draft::with_body(method, path, body).signed(&self.signer)).await
    }
}

fn fresh() -> (VerificationKey, Signer) {
    let pair = KeyPair::generate().unwrap();
    (
        VerificationKey::from_spki(&pair.subject_public_key_info()).unwrap(),
        Signer::from_pem(&pair.serialize_pem()).unwrap(),
    )
}

/// A certificate in DER, and who signs with its key.
fn certificate() -> (Vec<u8>, Signer) {
    let pair = KeyPair::generate().unwrap();
    let certificate = CertificateParams::default().self_signed(&pair).unwrap();
    (certificate.der().to_vec(), Signer::from_pem(&pair.serialize_pem()).unwrap())
}

fn path(rest: &str) -> String {
    format!("/api/v1/clients/line-1/{rest}")
}

fn status_body() -> String {
    format!(
        r#"{{"apiVersion":"deployment.margo.org/v1alpha1","kind":"DeploymentStatusManifest","deploymentId":"{ID}",
        "status":{{"state":"installed"}},"components":[{{"name":"hmi","state":"installed"}}]}}"#
    )
}

/// A request in the making, signed by code of its own: what `margrave-wire` rebuilds must be the same.
#[derive(Clone)]
struct Draft {
    method: String,
    path: String,
    body: String,
    headers: Vec<(String, String)>,
    label: &'static str,
    components: Vec<&'static str>,
    /// What follows the list of components.
    parameters: String,
    /// What the client believes to ask.
    origin: String,
}

impl Draft {
    fn get(path: &str) -> Draft {
        Draft {
            method: "GET".to_owned(),
            path: path.to_owned(),
            body: String::new(),
            headers: vec![("host".to_owned(), "wfm.example.com".to_owned())],
            label: "sig1",
            components: vec!["@method", "@target-uri"],
            parameters: format!(";created={NOW};keyid=\"k\""),
            origin: ORIGIN.to_owned(),
        }
    }

    fn with_body(method: &str, path: &str, body: &str) -> Draft {
        let mut draft = Draft::get(path);
        draft.method = method.to_owned();
        draft.body = body.to_owned();
        draft.components.push("content-digest");
        draft.headers.push(("content-type".to_owned(), "application/json".to_owned()));
        draft.headers.push(("content-digest".to_owned(), digest_of(body)));
        draft
    }

    fn parameters(mut self, parameters: &str) -> Draft {
        self.parameters = parameters.to_owned();
        self
    }

    fn components(mut self, components: &[&'static str]) -> Draft {
        self.components = components.to_vec();
        self
    }

    /// Another value for a header, after the others were decided on.
    fn header(mut self, name: &str, value: &str) -> Draft {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn input(&self) -> String {
        let list: Vec<String> = self.components.iter().map(|name| format!("\"{name}\"")).collect();
        format!("({}){}", list.join(" "), self.parameters)
    }

    fn base(&self) -> String {
        let value = |name: &str| match name {
            "@method" => self.method.clone(),
            "@target-uri" => format!("{}{}", self.origin, self.path),
            "@authority" => self.origin.split_once("://").unwrap().1.split('/').next().unwrap().to_owned(),
            "@path" => self.path.split('?').next().unwrap().to_owned(),
            name => {
                let found = self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.clone()).unwrap_or_default()
            }
        };
        let mut lines: Vec<String> =
            self.components.iter().map(|name| format!("\"{name}\": {}", value(name))).collect();
        lines.push(format!("\"@signature-params\": {}", self.input()));
        lines.join("\n")
    }

    fn unsigned(&self) -> http::request::Builder {
        let mut request = Request::builder().method(self.method.as_str()).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request
    }

    fn signed(&self, signer: &Signer) -> Request<Body> {
        let signature = STANDARD.encode(signer.sign(self.base().as_bytes()).unwrap());
        self.unsigned()
            .header("signature-input", format!("{}={}", self.label, self.input()))
            .header("signature", format!("{}=:{signature}:", self.label))
            .body(Body::from(self.body.clone()))
            .unwrap()
    }
}

fn digest_of(body: &str) -> String {
    format!("sha-256=:{}:", STANDARD.encode(Digest::of(body.as_bytes()).as_bytes()))
}

struct Reply {
    path: String,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status.as_u16(), status, "{} {}", self.path, String::from_utf8_lossy(&self.body));
        self
    }

    /// Checks everything that every error of this generation has (1.13), and its type's last part.
    #[track_caller]
    fn is_problem(&self, status: u16, kind: &str) -> serde_json::Value {
        self.is(status);
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        let wanted = match kind {
            "about:blank" => kind.to_owned(),
            name => format!("https://docs.margo.org/specification/problems/{name}"),
        };
        assert_eq!(problem["type"], wanted, "{problem}");
        assert_eq!((&problem["status"], &problem["instance"]), (&status.into(), &self.path.as_str().into()));
        for text in ["title", "detail", "error", "message"] {
            assert!(problem[text].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        let onboarding = self.path == "/api/v1/onboarding" && kind.contains("certificate");
        let json = status == 401 || onboarding;
        let media_type = if json { "application/json" } else { "application/problem+json" };
        assert_eq!(self.header("content-type"), media_type);
        assert_eq!(self.header("cache-control"), "no-store");
        // "End the session" (MI-G1-064).
        assert_eq!(self.header("connection"), if status == 401 { "close" } else { "" });
        problem
    }
}
