//! A device that signs its requests. It builds every line of a signature by hand, so that what it proves is not that
//! our own code agrees with itself.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use margrave_core::digest::Digest;
use margrave_core::id::ClientId;
use margrave_identity::key::PrivateKey;
use margrave_identity::message::{ClientCertificate, Signer};
use margrave_identity::pin::Pin;
use margrave_identity::tls::pinned_client_config;
use serde_json::{Value, json};

use crate::line::{Line, Reply};
use crate::plant::{Plant, now};

pub(crate) const ONBOARDING: &str = "/api/v1/onboarding";

/// What a test may get wrong about a request, or leave away.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, String)>,
    /// Seconds from now.
    pub(crate) created: i64,
    pub(crate) label: &'static str,
    pub(crate) covered: Vec<&'static str>,
    /// What is signed as the target, if not what is asked.
    pub(crate) target: Option<String>,
    /// What the digest is of, if not the body.
    pub(crate) digest_of: Option<Vec<u8>>,
}

impl Request {
    /// As the public reference client signs.
    pub(crate) fn new(method: &'static str, path: impl Into<String>, body: Option<Vec<u8>>) -> Request {
        let mut covered = vec!["@method", "@target-uri", "@authority"];
        covered.extend(body.as_ref().map(|_| "content-digest"));
        Request {
            method,
            path: path.into(),
            body,
            headers: Vec::new(),
            created: 0,
            label: "sig",
            covered,
            target: None,
            digest_of: None,
        }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Request {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

/// A request as it goes over the wire; can be sent again.
#[derive(Clone)]
pub(crate) struct Sealed {
    method: &'static str,
    path: String,
    pub(crate) body: Vec<u8>,
    pub(crate) headers: Vec<(String, String)>,
}

impl Sealed {
    pub(crate) async fn send(&self, line: &mut Line) -> Reply {
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        line.send(self.method, &self.path, &headers, self.body.clone()).await.unwrap()
    }
}

pub(crate) struct Foreign {
    pub(crate) certificate: ClientCertificate,
    signer: Signer,
    /// `https://host:port`, as the server says that it is reached.
    pub(crate) url: String,
    pub(crate) client: Option<ClientId>,
}

impl Foreign {
    pub(crate) fn new(plant: &Plant, name: &str) -> Foreign {
        Foreign::with_key(plant, name, &PrivateKey::generate().unwrap())
    }

    pub(crate) fn with_key(plant: &Plant, name: &str, key: &PrivateKey) -> Foreign {
        Foreign {
            certificate: ClientCertificate::self_signed(key, name, now()).unwrap(),
            signer: Signer::from_pem(&key.to_pem()).unwrap(),
            url: plant.server.signed_urls()[0].clone(),
            client: None,
        }
    }

    /// One that was let in and said what it is.
    pub(crate) async fn known(plant: &Plant, device: &str) -> Foreign {
        let mut foreign = Foreign::new(plant, device);
        foreign.onboard(plant).await.is(201);
        foreign.capabilities(plant, device).await.is(201);
        foreign
    }

    fn authority(&self) -> &str {
        self.url.split("://").nth(1).unwrap()
    }

    pub(crate) fn seal(&self, request: &Request) -> Sealed {
        let Request { method, path, body, headers, created, label, covered, target, digest_of } = request;
        let mut headers = headers.clone();
        if !headers.iter().any(|(name, _)| name == "host") {
            headers.push(("host".to_owned(), self.authority().to_owned()));
        }
        let digest = digest_of
            .as_ref()
            .or(body.as_ref())
            .map(|content| format!("sha-256=:{}:", STANDARD.encode(Digest::of(content).as_bytes())));
        if let Some(digest) = &digest {
            headers.push(("content-type".to_owned(), "application/json".to_owned()));
            headers.push(("content-digest".to_owned(), digest.clone()));
        }
        let created = now().0 as i64 / 1000 + created;
        let names: Vec<String> = covered.iter().map(|name| format!("\"{name}\"")).collect();
        let parameters = format!("({});created={created};keyid=\"{}\"", names.join(" "), self.signer.keyid());
        let mut base = String::new();
        for name in covered {
            let value = match *name {
                "@method" => (*method).to_owned(),
                "@target-uri" => target.clone().unwrap_or_else(|| format!("{}{path}", self.url)),
                "@authority" => self.authority().to_owned(),
                "content-digest" => digest.clone().unwrap(),
                other => panic!("{other}"),
            };
            base.push_str(&format!("\"{name}\": {value}\n"));
        }
        base.push_str(&format!("\"@signature-params\": {parameters}"));
        let signature = STANDARD.encode(self.signer.sign(base.as_bytes()).unwrap());
        headers.push(("signature-input".to_owned(), format!("{label}={parameters}")));
        headers.push(("signature".to_owned(), format!("{label}=:{signature}:")));
        Sealed { method, path: path.clone(), body: body.clone().unwrap_or_default(), headers }
    }

    pub(crate) async fn send(&self, plant: &Plant, request: Request) -> Reply {
        self.seal(&request).send(&mut line(plant).await).await
    }

    pub(crate) async fn onboard(&mut self, plant: &Plant) -> Reply {
        let reply = self.onboard_as(plant, STANDARD.encode(self.certificate.der())).await;
        if reply.status == 201 {
            let answer: Value = reply.json();
            self.client = Some(answer["clientId"].as_str().unwrap().parse().unwrap());
        }
        reply
    }

    /// With the certificate in this text.
    pub(crate) async fn onboard_as(&self, plant: &Plant, certificate: String) -> Reply {
        self.send(plant, Request::new("POST", ONBOARDING, Some(wish(certificate)))).await
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/api/v1/clients/{}/{rest}", self.client.as_ref().expect("it was let in"))
    }

    pub(crate) fn capabilities_request(&self, device: &str) -> Request {
        let body = json!({
            "apiVersion": "device.margo.org/v1alpha1", "kind": "DeviceCapabilitiesManifest",
            "properties": {
                "id": device, "vendor": "Foreign", "modelNumber": "F", "serialNumber": "1",
                "roles": ["Standalone Device"],
                "resources": {
                    "cpu": {"cores": 4, "architectures": ["amd64"]}, "memory": "8Gi", "storage": "64Gi",
                    "peripherals": [], "interfaces": [],
                },
            },
        });
        Request::new("PUT", self.path(&format!("capabilities/{device}")), Some(body.to_string().into_bytes()))
    }

    pub(crate) async fn capabilities(&self, plant: &Plant, device: &str) -> Reply {
        self.send(plant, self.capabilities_request(device)).await
    }

    pub(crate) async fn get(&self, plant: &Plant, path: impl Into<String>) -> Reply {
        self.send(plant, Request::new("GET", path, None)).await
    }

    pub(crate) async fn manifest(&self, plant: &Plant) -> Value {
        self.get(plant, self.path("deployments")).await.is(200).json()
    }

    pub(crate) fn report_request(&self, deployment: &str, state: &str) -> Request {
        let body = json!({
            "apiVersion": "deployment.margo.org/v1alpha1", "kind": "DeploymentStatusManifest",
            "deploymentId": deployment, "status": {"state": state},
            "components": [{"name": "gate", "state": state}],
        });
        let path = self.path(&format!("deployments/{deployment}/status"));
        Request::new("POST", path, Some(body.to_string().into_bytes()))
    }

    pub(crate) async fn report(&self, plant: &Plant, deployment: &str, state: &str) -> Reply {
        self.send(plant, self.report_request(deployment, state)).await
    }
}

pub(crate) fn wish(certificate: String) -> Vec<u8> {
    let wish = json!({
        "apiVersion": "onboarding.margo.org/v1alpha1", "kind": "OnboardingRequest", "certificate": certificate,
    });
    wish.to_string().into_bytes()
}

/// A connection to the signed listener, over TLS.
pub(crate) async fn line(plant: &Plant) -> Line {
    let address = plant.server.addresses().signed.expect("the signed interface is on");
    let tls = pinned_client_config(vec![Pin::parse(&plant.server.pin()).unwrap()]);
    Line::open(address, tls).await.unwrap()
}
