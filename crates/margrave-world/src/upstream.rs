//! What a device asks, and what it makes of the answers: the real formats, without a socket.
//!
//! Follows `margrave-agent/src/upstream`, whose client cannot be had without a connection.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use margrave_core::capabilities::Capabilities;
use margrave_core::constraints;
use margrave_core::device::{Backoff, FetchPlan, Order, Polled, Reading, Trouble};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::manifest::Entry;
use margrave_core::report::{Failure, FailureCode, Report};
use margrave_core::workload::{Placement, Workload};
use margrave_wire::refusal::Refusal;
use margrave_wire::{bundle, g2, problem};
use serde_json::json;

use crate::engine::{STRANGE, mode};

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
    /// How long the server may hold it.
    pub(crate) wait: Duration,
}

impl Ask {
    fn new(method: Method, path: String) -> Ask {
        Ask { method, path, headers: vec![], body: Bytes::new(), wait: Duration::ZERO }
    }

    fn json(mut self, body: Vec<u8>) -> Ask {
        self.headers.push(("content-type", "application/json".to_owned()));
        self.body = body.into();
        self
    }

    pub(crate) fn capabilities(device: &DeviceId, body: Vec<u8>) -> Ask {
        Ask::new(Method::PUT, g2::capabilities_path(device)).json(body)
    }

    pub(crate) fn report(report: &Report) -> Ask {
        Ask::new(Method::POST, g2::status_path(report.assignment)).json(g2::status::write(report))
    }

    pub(crate) fn poll(held: Option<Digest>, wait: Duration) -> Ask {
        let mut ask = Ask::new(Method::GET, g2::MANIFEST_PATH.to_owned());
        if let Some(held) = held {
            ask.headers.push(("if-none-match", g2::validator::short_tag(&held)));
        }
        if !wait.is_zero() {
            ask.headers.push(("prefer", format!("wait={}", wait.as_secs())));
            ask.wait = wait;
        }
        ask
    }

    fn content(path: String, media_type: &str) -> Ask {
        let mut ask = Ask::new(Method::GET, path);
        ask.headers.push(("accept", media_type.to_owned()));
        ask
    }

    pub(crate) fn is_poll(&self) -> bool {
        self.path == g2::MANIFEST_PATH
    }

    pub(crate) fn is_report(&self) -> bool {
        self.method == Method::POST
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    fn header(&self, name: impl header::AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Where the newest manifest said that its content is.
pub(crate) type Urls = BTreeMap<Digest, String>;

pub(crate) fn read_poll(reply: &Reply, held: Option<Digest>, urls: &mut Urls) -> Result<Polled, Trouble> {
    let held_open = reply.header("preference-applied").is_some_and(|applied| applied.contains("wait"));
    if reply.status == StatusCode::NOT_MODIFIED {
        return match held {
            Some(_) => Ok(Polled::Unchanged { held_open }),
            None => Err(Trouble::passing("nothing changed, although nothing is held")),
        };
    }
    accepted(reply)?;
    let body = Digest::of(&reply.body);
    let tag = reply.header(header::ETAG);
    let promised = tag.and_then(|tag| Digest::parse(tag.trim_start_matches("W/").trim_matches('"')).ok());
    if promised.is_some_and(|promised| promised != body) {
        return Err(Trouble::passing("the manifest's bytes are not what its ETag promised (MI-G2-072)"));
    }
    let listing = g2::manifest::read(&reply.body)
        .map_err(|error| Trouble::passing(format!("the server's manifest is not usable: {error}")))?;
    urls.clear();
    for (entry, url) in listing.manifest.entries().iter().zip(listing.document_urls) {
        urls.insert(entry.document.digest, url);
    }
    if let (Some(bundle), Some(url)) = (listing.manifest.bundle(), listing.bundle_url) {
        urls.insert(bundle.digest, url);
    }
    Ok(Polled::Manifest { manifest: listing.manifest, body, held_open })
}

/// The documents of a plan, one request after the other.
#[derive(Debug, Clone)]
pub(crate) struct Fetch {
    plan: FetchPlan,
    got: Vec<(AssignmentId, Document)>,
}

impl Fetch {
    pub(crate) fn new(plan: FetchPlan) -> Fetch {
        Fetch { plan, got: vec![] }
    }

    /// What to ask next; `None` when everything is here.
    pub(crate) fn next(&self, urls: &Urls) -> Option<Ask> {
        match &self.plan {
            FetchPlan::Bundle { bundle, .. } if self.got.is_empty() => {
                let standard = || g2::manifest::bundle_path(&bundle.digest);
                let path = urls.get(&bundle.digest).cloned().unwrap_or_else(standard);
                Some(Ask::content(path, bundle::MEDIA_TYPE))
            }
            FetchPlan::Bundle { .. } => None,
            FetchPlan::Documents(entries) => {
                let Entry { id, document } = entries.get(self.got.len())?;
                let standard = || g2::manifest::document_path(*id, &document.digest);
                let path = urls.get(&document.digest).cloned().unwrap_or_else(standard);
                Some(Ask::content(path, g2::document::MEDIA_TYPE))
            }
        }
    }

    pub(crate) fn take(&mut self, reply: &Reply) -> Result<(), Trouble> {
        accepted(reply)?;
        let bytes = reply.body.to_vec();
        let refused = |why: String| Trouble::passing(format!("content was refused: {why}"));
        match &self.plan {
            FetchPlan::Bundle { bundle, entries } => {
                let archive =
                    Document::verified(bytes, bundle.digest).map_err(|error| refused(error.to_string()))?;
                let documents =
                    bundle::read(archive.bytes(), entries).map_err(|error| refused(error.to_string()))?;
                self.got = entries.iter().map(|entry| entry.id).zip(documents).collect();
            }
            FetchPlan::Documents(entries) => {
                let entry = entries[self.got.len()];
                let document = Document::verified(bytes, entry.document.digest)
                    .map_err(|error| refused(error.to_string()))?;
                self.got.push((entry.id, document));
            }
        }
        Ok(())
    }

    pub(crate) fn got(self) -> Vec<(AssignmentId, Document)> {
        self.got
    }
}

/// Any success will do; everything else says whether and when asking again can help.
pub(crate) fn accepted(reply: &Reply) -> Result<(), Trouble> {
    if reply.status.is_success() {
        return Ok(());
    }
    let status = reply.status;
    let said = Refusal::read(&reply.body);
    let curable = !status.is_client_error()
        || matches!(
            status,
            StatusCode::FORBIDDEN
                | StatusCode::UNAUTHORIZED
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::TOO_EARLY
                | StatusCode::TOO_MANY_REQUESTS
        );
    let busy = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    let backoff = match said.backoff {
        _ if !said.retryable.unwrap_or(busy) => Backoff::None,
        Some(problem::Backoff::None) => Backoff::None,
        Some(problem::Backoff::Fixed) => Backoff::Fixed,
        Some(problem::Backoff::Exponential) | None => Backoff::Exponential,
    };
    // What does not explain itself is something on the way there (MI-G2-200).
    let explained = said.words().is_some();
    Err(Trouble {
        message: format!("the server answered {status}: {}", said.words().unwrap_or_default()),
        retry_after: reply
            .header(header::RETRY_AFTER)
            .and_then(|seconds| seconds.parse().ok())
            .map(Duration::from_secs),
        advice: said.retry_after,
        backoff,
        permanent: explained && !(curable || said.retryable == Some(true)),
        answered: true,
    })
}

/// Whether it takes an agent that is not dated.
pub(crate) fn is_strange(workload: &Workload) -> bool {
    Order::of(workload).iter().any(|order| mode(order).starts_with(STRANGE))
}

/// What this device is, as it tells the server and as documents are held against.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    device: DeviceId,
    capabilities: Capabilities,
    pub(crate) body: Vec<u8>,
    /// Whether the agent is too old for what this world calls strange.
    pub(crate) is_dated: bool,
}

impl Own {
    pub(crate) fn new(device: &DeviceId) -> Own {
        let properties = json!({
            "id": device.as_str(),
            "vendor": "Margrave",
            "modelNumber": "world",
            "serialNumber": device.as_str(),
            "cpus": [{"cores": 4, "architecture": "amd64"}],
            "memory": "8192Mi",
            "storage": "65536Mi",
            "peripherals": [],
            "interfaces": [{"type": "ethernet"}],
            "otelCollector": true,
            "supportedRuntimes": ["oci"],
            "supportedDeploymentTypes": ["compose"],
        });
        let serde_json::Value::Object(properties) = properties else { unreachable!("written as an object") };
        let capabilities = Capabilities {
            device: device.clone(),
            vendor: "Margrave".to_owned(),
            model_number: "world".to_owned(),
            serial_number: device.to_string(),
            // The writer looks at the properties; the checked reading is the server's.
            hosting: None,
            properties,
            labels: Default::default(),
            simulated: true,
            agent_version: None,
            overrides: vec![],
            holds: vec![],
            looked: 0,
            blind: None,
        };
        let body = g2::capabilities::write(&capabilities);
        Own { device: device.clone(), capabilities, body, is_dated: false }
    }

    /// The same device with another agent.
    pub(crate) fn with_agent(&self, is_dated: bool) -> Own {
        Own { is_dated, ..self.clone() }
    }

    /// What a document says to this device: a workload that can run here, or why it cannot.
    pub(crate) fn read(&self, id: AssignmentId, document: &Document) -> Reading {
        let invalid = |message: String| Failure::new(FailureCode::DocumentInvalid, message);
        let not_eligible = |message: String| Failure::new(FailureCode::NotEligible, message);
        let workload =
            margrave_wire::document::read_any(document.bytes(), &self.device).map_err(|broken| {
                let said: Vec<String> = broken.iter().take(5).map(ToString::to_string).collect();
                invalid(format!("the document is not usable: {}", said.join("; ")))
            })?;
        if id != workload.id {
            return Err(invalid(format!("the document of {id} calls itself {}", workload.id)));
        }
        if workload.placement != Placement::Device(self.device.clone()) {
            return Err(not_eligible("the document is for another device".to_owned()));
        }
        if let Some(constraints) = &workload.constraints {
            let Capabilities { properties, labels, .. } = &self.capabilities;
            constraints::eligible(constraints, properties, labels)
                .map_err(|misfit| not_eligible(misfit.message))?;
        }
        if self.is_dated && is_strange(&workload) {
            return Err(invalid("the document asks for what only a newer agent understands".to_owned()));
        }
        Ok(workload)
    }
}
