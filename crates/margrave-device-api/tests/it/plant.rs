//! A server in memory, simulated just as far as the wire can tell, and a way to ask it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use margrave_core::capabilities::Capabilities;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId};
use margrave_core::report::Report;
use margrave_device_api::{Answer, ApiError, Caller, DeviceApi, LiveManifest, Outside, Put, g2};
use tokio::sync::watch;
use tower::ServiceExt as _;

pub(crate) const ID: &str = "0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11";
pub(crate) const DOCUMENT: &[u8] = b"id: 0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11\n";
pub(crate) const BUNDLE: &[u8] = b"\x1f\x8b not really a bundle";

#[derive(Default)]
struct State {
    standings: BTreeMap<ClientId, Result<(), Outside>>,
    devices: BTreeSet<(ClientId, DeviceId)>,
    reported: BTreeSet<(ClientId, AssignmentId)>,
    bodies: Vec<Bytes>,
    reports: Vec<Report>,
    /// What the next write answers instead.
    trouble: Option<ApiError>,
    waits: Vec<Duration>,
    /// Waits end at once, as when a server stops.
    hurried: bool,
    /// Nothing more is held.
    crowded: bool,
}

pub(crate) struct Plant {
    state: Mutex<State>,
    manifest: watch::Sender<LiveManifest>,
}

impl Plant {
    /// One accepted client, `line-1`, with one deployment.
    pub(crate) fn new() -> Arc<Plant> {
        let mut state = State::default();
        state.standings.insert(client(), Ok(()));
        state.standings.insert("gone".parse().unwrap(), Err(Outside::Retired));
        state.standings.insert("line-2".parse().unwrap(), Ok(()));
        Arc::new(Plant { state: Mutex::new(state), manifest: watch::channel(live(1)).0 })
    }

    pub(crate) fn publish(&self, version: u64) {
        self.manifest.send_replace(live(version));
    }

    pub(crate) fn etag(&self) -> String {
        format!("\"{}\"", self.manifest.borrow().digest)
    }

    pub(crate) fn set_standing(&self, client: &ClientId, standing: Result<(), Outside>) {
        self.state.lock().unwrap().standings.insert(client.clone(), standing);
    }

    pub(crate) fn fail_next(&self, trouble: ApiError) {
        self.state.lock().unwrap().trouble = Some(trouble);
    }

    pub(crate) fn bodies(&self) -> Vec<Bytes> {
        self.state.lock().unwrap().bodies.clone()
    }

    pub(crate) fn reports(&self) -> Vec<Report> {
        self.state.lock().unwrap().reports.clone()
    }

    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.state.lock().unwrap().waits.clone()
    }

    pub(crate) fn hurry(&self) {
        self.state.lock().unwrap().hurried = true;
    }

    pub(crate) fn crowd(&self) {
        self.state.lock().unwrap().crowded = true;
    }

    /// Ends when a request is being held.
    pub(crate) async fn holding(&self) {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while self.manifest.receiver_count() == 0 {
            assert!(std::time::Instant::now() < deadline, "nothing is held");
            tokio::task::yield_now().await;
        }
    }

    fn trouble(&self) -> Result<(), ApiError> {
        self.state.lock().unwrap().trouble.take().map_or(Ok(()), Err)
    }

    pub(crate) fn router(self: &Arc<Self>) -> Router {
        g2::router(Arc::clone(self) as Arc<dyn DeviceApi>)
    }

    /// Asks as `line-1`.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        self.ask_as(Some("line-1"), method, path, headers, Body::from(body.to_owned())).await
    }

    pub(crate) async fn get(self: &Arc<Self>, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.ask("GET", path, headers, "").await
    }

    pub(crate) async fn ask_as(
        self: &Arc<Self>,
        client: Option<&str>,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(body).unwrap();
        if let Some(client) = client {
            request.extensions_mut().insert(Caller(client.parse().unwrap()));
        }
        let response = self.router().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { path: path.to_owned(), status: parts.status, headers: parts.headers, body }
    }
}

pub(crate) fn client() -> ClientId {
    "line-1".parse().unwrap()
}

fn live(version: u64) -> LiveManifest {
    let body = format!(r#"{{"bundle":null,"deployments":[],"manifestVersion":{version}}}"#);
    LiveManifest::new(version, body.into())
}

impl DeviceApi for Plant {
    fn admit(&self, client: &ClientId) -> Result<(), Outside> {
        self.state.lock().unwrap().standings.get(client).copied().unwrap_or(Err(Outside::Unknown))
    }

    fn manifest(&self, client: &ClientId) -> Result<Arc<LiveManifest>, Outside> {
        self.admit(client).map(|()| Arc::new(self.manifest.borrow().clone()))
    }

    fn manifest_changed<'a>(&'a self, _: &'a ClientId, than: Digest, within: Duration) -> Answer<'a, bool> {
        let mut state = self.state.lock().unwrap();
        state.waits.push(within);
        let (hurried, crowded) = (state.hurried || state.crowded, state.crowded);
        Box::pin(async move {
            if hurried {
                return !crowded;
            }
            let mut manifest = self.manifest.subscribe();
            let changed = manifest.wait_for(|live| live.digest != than);
            // Time running out is one of the two ways in which this ends.
            drop(tokio::time::timeout(within, changed).await);
            true
        })
    }

    fn document<'a>(
        &'a self,
        client: &'a ClientId,
        assignment: AssignmentId,
        digest: Digest,
    ) -> Answer<'a, Result<Option<Bytes>, ApiError>> {
        Box::pin(async move {
            self.trouble()?;
            let mine =
                client.as_str() == "line-1" && assignment.to_string() == ID && digest == Digest::of(DOCUMENT);
            Ok(mine.then_some(Bytes::from_static(DOCUMENT)))
        })
    }

    fn bundle<'a>(
        &'a self,
        client: &'a ClientId,
        digest: Digest,
    ) -> Answer<'a, Result<Option<Bytes>, ApiError>> {
        Box::pin(async move {
            assert_ne!(digest, Digest::of(b"panic"), "on purpose");
            let mine = client.as_str() == "line-1" && digest == Digest::of(BUNDLE);
            Ok(mine.then_some(Bytes::from_static(BUNDLE)))
        })
    }

    fn put_capabilities<'a>(
        &'a self,
        client: &'a ClientId,
        capabilities: Capabilities,
        body: Bytes,
    ) -> Answer<'a, Result<Put, ApiError>> {
        Box::pin(async move {
            self.trouble()?;
            let mut state = self.state.lock().unwrap();
            let device = capabilities.device;
            if device.is_child() && !state.devices.contains(&(client.clone(), device.gateway())) {
                return Err(ApiError::GatewayNotFound(device.gateway()));
            }
            state.bodies.push(body);
            let new = state.devices.insert((client.clone(), device));
            Ok(if new { Put::Created } else { Put::Updated })
        })
    }

    fn delete_capabilities<'a>(
        &'a self,
        client: &'a ClientId,
        device: &'a DeviceId,
    ) -> Answer<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let known = self.state.lock().unwrap().devices.remove(&(client.clone(), device.clone()));
            if known { Ok(()) } else { Err(ApiError::DeviceNotFound(device.clone())) }
        })
    }

    fn report<'a>(&'a self, client: &'a ClientId, report: Report) -> Answer<'a, Result<Put, ApiError>> {
        Box::pin(async move {
            self.trouble()?;
            if report.assignment.to_string() != ID {
                return Err(ApiError::AssignmentUnknown(report.assignment));
            }
            let mut state = self.state.lock().unwrap();
            let new = state.reported.insert((client.clone(), report.assignment));
            state.reports.push(report);
            Ok(if new { Put::Created } else { Put::Updated })
        })
    }
}

pub(crate) struct Reply {
    path: String,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    /// Checks everything that every error has (MI-G2-200, MI-G2-201, AMB-30), and its type's last part.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, kind: &str) -> serde_json::Value {
        self.is(status);
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        let wanted = match kind {
            "about:blank" => kind.to_owned(),
            name => format!("https://docs.margo.org/specification/problem-types#{name}"),
        };
        assert_eq!(problem["type"], wanted);
        assert_eq!(problem["status"], status);
        assert_eq!(problem["instance"], self.path);
        for text in ["title", "detail"] {
            assert!(problem[text].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        let retryable = matches!(status, 429 | 500 | 503);
        assert_eq!(problem["retryable"], retryable);
        assert_eq!(problem["backoffStrategy"], if retryable { "exponential" } else { "none" });
        assert_eq!(self.headers.contains_key("retry-after"), retryable);
        if status == 422 {
            assert!(!problem["errors"].as_array().unwrap().is_empty(), "{problem}");
        }
        problem
    }
}
