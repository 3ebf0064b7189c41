//! The device listener's inside: the fleet as a [`DeviceApi`], and what our own agent asks beyond the standard.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use margrave_core::capabilities::Capabilities;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId};
use margrave_core::report::Report;
use margrave_device_api::g2::{self, Refusal};
use margrave_device_api::{Answer, ApiError, Caller, DeviceApi, LiveManifest, Put, Standing};
use margrave_wire::Dialect;
use margrave_wire::identity::{REGISTRY_TOKEN_PATH, RegistryToken};

use super::Stopping;
use super::registry::Mount;
use crate::fleet::{self, Fleet};

/// When the store is behind, devices come back within this time, each at its own moment.
const BUSY_RETRY: Duration = Duration::from_secs(30);

/// What the mutual-TLS listener offers: the standard's interface, the registry to pull from, and our extras.
pub(crate) fn router(fleet: Arc<Fleet>, registry: Mount, stopping: Stopping) -> Router {
    let api = Arc::new(Devices::new(Arc::clone(&fleet), stopping, Dialect::Miaf));
    let extras = Extras { api: Arc::clone(&api), registry: registry.clone() };
    let no_such_method = |request: Request| async move { Refusal::Method("POST").at(request.uri().path()) };
    Router::new()
        .route(REGISTRY_TOKEN_PATH, post(registry_token).fallback(no_such_method))
        .with_state(extras)
        .merge(registry.router())
        .merge(g2::router(api))
        .layer(middleware::from_fn_with_state(fleet, contact))
}

/// Every request is a sign of life, whatever comes of it.
async fn contact(State(fleet): State<Arc<Fleet>>, request: Request, next: Next) -> Response {
    if let Some(Caller(client)) = request.extensions().get() {
        fleet.touched(client);
    }
    next.run(request).await
}

#[derive(Clone)]
struct Extras {
    api: Arc<Devices>,
    registry: Mount,
}

/// Lets the device's container engine pull what the device may pull.
async fn registry_token(State(extras): State<Extras>, request: Request) -> Response {
    let path = request.uri().path();
    let client = match g2::admit(extras.api.as_ref(), request.extensions()) {
        Ok(client) => client,
        Err(refusal) => return refusal.at(path),
    };
    let issued = extras.registry.tokens.issue(client, extras.registry.clock.now());
    let expires = jiff::Timestamp::from_millisecond(i64::try_from(issued.expires.0).unwrap_or(i64::MAX))
        .map_or_else(|_| jiff::Timestamp::MAX.to_string(), |expires| expires.to_string());
    let token = RegistryToken { username: client.to_string(), password: issued.token, expires };
    let body = serde_json::to_vec(&token).expect("three texts always serialise");
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
    stopping: Stopping,
    dialect: Dialect,
}

impl Devices {
    pub(super) fn new(fleet: Arc<Fleet>, stopping: Stopping, dialect: Dialect) -> Self {
        Devices { fleet, stopping, dialect }
    }
}

impl DeviceApi for Devices {
    fn standing(&self, client: &ClientId) -> Standing {
        let standing = self.fleet.standing(client);
        match standing.filter(|_| self.fleet.dialect(client) == Some(self.dialect)) {
            Some(fleet::Standing::Accepted) => Standing::Accepted,
            Some(fleet::Standing::Retired) => Standing::Retired,
            None => Standing::Unknown,
        }
    }

    fn manifest(&self, client: &ClientId) -> Option<LiveManifest> {
        let fleet::LiveManifest { version, etag, body } = self.fleet.manifest(client)?;
        Some(LiveManifest { version, digest: etag, body })
    }

    fn manifest_changed<'a>(
        &'a self,
        client: &'a ClientId,
        than: Digest,
        within: Duration,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            tokio::select! {
                () = self.fleet.manifest_changed(client, than, within) => {}
                // Held requests must not hold up a restart; the devices come back to the next process.
                () = self.stopping.wait() => {}
            }
        })
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
        fleet::Error::Overloaded => {
            ApiError::Busy { retry_after: BUSY_RETRY.mul_f64(0.1 + 0.9 * crate::tasks::chance()) }
        }
        other => ApiError::Failed(Box::new(other)),
    }
}
