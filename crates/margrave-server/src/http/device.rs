//! The device listener's inside: the fleet as a [`DeviceApi`], and what our own agent asks beyond the standard.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST};
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use margrave_core::capabilities::Capabilities;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId};
use margrave_core::report::Report;
use margrave_device_api::g2::{self, Poll, Refusal};
use margrave_device_api::{Answer, ApiError, Caller, DeviceApi, LiveManifest, Outside, Put};
use margrave_wire::Dialect;
use margrave_wire::identity::{GIT_TOKEN_PATH, REGISTRY_TOKEN_PATH};

use super::identity::host_part;
use super::prefix::PathPrefix;
use super::problem::Problem;
use super::registry::Mount;
use super::share;
use crate::admission::{Account, Admission, busy_retry};
use crate::fleet::{self, Fleet};
use crate::listener::{Calm, Guest, Inside, Reply, Seat};

/// What the mutual-TLS listener offers: the standard's interface, the registry to pull from, and our extras.
pub(crate) struct Interface {
    fleet: Arc<Fleet>,
    api: Arc<dyn DeviceApi>,
    router: Router,
    admission: Arc<Admission>,
    prefix: Option<PathPrefix>,
}

impl Interface {
    pub(crate) fn new(
        fleet: Arc<Fleet>,
        registry: Mount,
        admission: Arc<Admission>,
        prefix: Option<PathPrefix>,
    ) -> Interface {
        let api = api(Arc::clone(&fleet));
        let router = router(&api, registry);
        Interface { fleet, api, router, admission, prefix }
    }

    fn charge(&self, client: &ClientId, account: &Account) -> Result<(), Refusal> {
        self.admission.charge(account).map_err(|retry_after| {
            tracing::debug!(%client, "a client asks too often");
            Refusal::TooMany { retry_after }
        })
    }
}

impl Inside for Interface {
    fn answer(&self, guest: &Guest, mut request: Request<Incoming>) -> Reply {
        let (Some(Caller(client)), Some(seat)) = (&guest.caller, &guest.seat) else {
            return Reply::Now(Refusal::NoCaller.at(request.uri().path()));
        };
        // Every request is a sign of life, whatever comes of it.
        self.fleet.touched(client);
        if let Err(refusal) = self.charge(client, &seat.account) {
            return Reply::Now(refusal.at(request.uri().path()));
        }
        if let Some(prefix) = &self.prefix {
            prefix.take_off(&mut request);
        }
        let is_artifact = g2::is_artifact(request.uri().path());
        share::answer(&self.admission, &self.router, guest, request, is_artifact, self.calm(), |path| {
            busy().at(path)
        })
    }

    /// Polls, which are by far the most.
    fn glance(&self, guest: &Guest, request: &Request<Incoming>) -> Option<Reply> {
        let (Some(Caller(client)), Some(seat)) = (&guest.caller, &guest.seat) else { return None };
        // Who is not known, or asks for something else, takes the long way.
        let found = seat.client.as_ref()?;
        let path = request.uri().path();
        let below = self.prefix.as_ref().map_or(path, |prefix| prefix.below(path));
        if !g2::is_poll(request, below) {
            return None;
        }
        self.fleet.touched_at(found);
        if let Err(refusal) = self.charge(client, &seat.account) {
            return Some(Reply::Now(refusal.at(path)));
        }
        let live = self.fleet.manifest_at(found, Dialect::Miaf);
        Some(match g2::poll(&self.api, client, live, request) {
            Poll::Now(response) => Reply::Now(response),
            Poll::Later(answer) => Reply::Later(answer),
        })
    }

    fn turn_away(&self, request: &Request<Incoming>) -> Response {
        busy().at(request.uri().path())
    }

    fn ending(&self, guest: &Guest) {
        if let Some(Caller(client)) = &guest.caller {
            self.fleet.release_held(client);
        }
    }

    fn calm(&self) -> Calm {
        let fleet = Arc::clone(&self.fleet);
        Box::pin(async move { fleet.everybody_told().await })
    }

    fn misaddressed(&self, request: &Request<Incoming>) -> Response {
        Refusal::Misaddressed.at(request.uri().path())
    }

    fn seat(&self, Caller(client): &Caller) -> Option<Seat> {
        Some(Seat { account: self.admission.account(client), client: self.fleet.find(client) })
    }
}

fn busy() -> Refusal {
    Refusal::Api(ApiError::Busy { retry_after: busy_retry() })
}

fn router(api: &Arc<dyn DeviceApi>, registry: Mount) -> Router {
    let extras = Extras { api: Arc::clone(api), registry: registry.clone() };
    let no_such_method =
        |request: axum::extract::Request| async move { Refusal::Method("POST").at(g2::asked_path(&request)) };
    Router::new()
        .route(REGISTRY_TOKEN_PATH, post(registry_token).fallback(no_such_method))
        .route(GIT_TOKEN_PATH, post(git_token).fallback(no_such_method))
        .with_state(extras)
        .merge(registry.router())
        .merge(g2::router(Arc::clone(api)))
}

#[derive(Clone)]
struct Extras {
    api: Arc<dyn DeviceApi>,
    registry: Mount,
}

/// Lets the device's container engine pull what the device may pull.
async fn registry_token(State(extras): State<Extras>, request: axum::extract::Request) -> Response {
    let path = g2::asked_path(&request);
    let client = match g2::admit(extras.api.as_ref(), request.extensions()) {
        Ok(client) => client,
        Err(refusal) => return refusal.at(path),
    };
    let token = extras.registry.tokens.login(client, extras.registry.clock.now());
    secret_json(&token)
}

/// Lets the device pull its desired state from a Git repository of its own, if an operator wants that.
async fn git_token(State(extras): State<Extras>, request: axum::extract::Request) -> Response {
    let path = g2::asked_path(&request);
    let client = match g2::admit(extras.api.as_ref(), request.extensions()) {
        Ok(client) => client,
        Err(refusal) => return refusal.at(path),
    };
    let host = request.headers().get(HOST).and_then(|value| value.to_str().ok()).and_then(host_part);
    match extras.registry.fleet.git_token(client, host).await {
        Ok(Some(token)) => secret_json(&token),
        Ok(None) => {
            let hint =
                format!("{client} is not set to Git; ask an operator for `margrave device git {client}`");
            Problem::not_allowed(hint).at(path).into_response()
        }
        Err(error) => Problem::from(error).at(path).into_response(),
    }
}

fn secret_json(value: &impl serde::Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("texts always serialise");
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, body).into_response()
}

/// The fleet, as devices see it that speak in one of the forms. To others it does not exist: a client of one form
/// never acts for one of the other, whatever it is called (migration, section 7).
pub(super) struct Devices {
    fleet: Arc<Fleet>,
    dialect: Dialect,
}

/// The fleet as devices with SPIFFE identities see it, for whoever does without our listener.
pub fn api(fleet: Arc<Fleet>) -> Arc<dyn DeviceApi> {
    Arc::new(Devices::new(fleet, Dialect::Miaf))
}

impl Devices {
    pub(super) fn new(fleet: Arc<Fleet>, dialect: Dialect) -> Self {
        Devices { fleet, dialect }
    }
}

impl DeviceApi for Devices {
    fn admit(&self, client: &ClientId) -> Result<(), Outside> {
        self.fleet.admits(client, self.dialect)
    }

    fn manifest(&self, client: &ClientId) -> Result<Arc<LiveManifest>, Outside> {
        self.fleet.manifest(client, self.dialect)
    }

    fn holds(&self, client: &ClientId, version: u64) {
        self.fleet.client_holds(client, version);
    }

    fn manifest_changed<'a>(
        &'a self,
        client: &'a ClientId,
        than: Digest,
        within: Duration,
    ) -> Answer<'a, bool> {
        Box::pin(self.fleet.manifest_changed(client, than, within))
    }

    fn document<'a>(
        &'a self,
        client: &'a ClientId,
        assignment: AssignmentId,
        digest: Digest,
    ) -> Answer<'a, Result<Option<Bytes>, ApiError>> {
        Box::pin(async move { self.fleet.document(client, assignment, digest).await.map_err(api_error) })
    }

    fn bundle<'a>(
        &'a self,
        client: &'a ClientId,
        digest: Digest,
    ) -> Answer<'a, Result<Option<Bytes>, ApiError>> {
        Box::pin(async move { self.fleet.bundle(client, digest).await.map_err(api_error) })
    }

    fn put_capabilities<'a>(
        &'a self,
        client: &'a ClientId,
        capabilities: Capabilities,
        body: Bytes,
    ) -> Answer<'a, Result<Put, ApiError>> {
        Box::pin(async move {
            self.fleet.put_capabilities(client, capabilities, body).await.map(put).map_err(api_error)
        })
    }

    fn delete_capabilities<'a>(
        &'a self,
        client: &'a ClientId,
        device: &'a DeviceId,
    ) -> Answer<'a, Result<(), ApiError>> {
        Box::pin(async move { self.fleet.delete_capabilities(client, device).await.map_err(api_error) })
    }

    fn report<'a>(&'a self, client: &'a ClientId, report: Report) -> Answer<'a, Result<Put, ApiError>> {
        Box::pin(async move { self.fleet.report(client, report).await.map(put).map_err(api_error) })
    }
}

fn put(put: fleet::Put) -> Put {
    match put {
        fleet::Put::Created => Put::Created,
        fleet::Put::Updated => Put::Updated,
    }
}

pub(super) fn api_error(error: fleet::Error) -> ApiError {
    match error {
        fleet::Error::GatewayNotFound(device) => ApiError::GatewayNotFound(device),
        fleet::Error::DeviceNotFound(device) => ApiError::DeviceNotFound(device),
        fleet::Error::AssignmentUnknown(assignment) => ApiError::AssignmentUnknown(assignment),
        fleet::Error::Invalid(violations) => ApiError::Invalid(violations),
        fleet::Error::Overloaded => ApiError::Busy { retry_after: busy_retry() },
        other => ApiError::Failed(Box::new(other)),
    }
}
