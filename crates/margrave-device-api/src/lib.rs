//! What a server is to its devices: one trait in domain types, one router per wire generation.
//!
//! Owns the meaning of every request a device can make ([`DeviceApi`]), and the exact codes, headers and
//! problem types in which the answers travel ([`g2`]). It holds no state, opens no socket and
//! authenticates nobody: a listener does the handshake and puts a [`Caller`] into each request; a request
//! without one is refused. Server, site and simulator implement the trait.
//!
//! Start with [`DeviceApi`], then `g2/mod.rs`.

pub mod g1;
pub mod g2;

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use margrave_core::capabilities::Capabilities;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId};
use margrave_core::report::Report;
use margrave_core::violation::Violation;

/// Who sent a request, as the listener learned it in the handshake. Nothing in the request itself can
/// say or change it (MI-G2-006).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(pub ClientId);

/// Why local policy does not want a client that proved who it is (MI-G2-010).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// Was accepted once; an operator ended the relationship.
    Retired,
    /// Has a valid credential of ours, but nobody ever accepted it.
    Unknown,
}

/// A client's current manifest as it goes over the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveManifest {
    pub version: u64,
    /// Of exactly `body`; also its ETag (MI-G2-053).
    pub digest: Digest,
    /// Ready for the header: most answers are nothing but this.
    pub etag: HeaderValue,
    pub body: Bytes,
}

impl LiveManifest {
    pub fn new(version: u64, body: Bytes) -> LiveManifest {
        let digest = Digest::of(&body);
        LiveManifest { version, digest, etag: g2::etag(&digest), body }
    }
}

/// Whether something was stored for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    Created,
    Updated,
}

/// An answer that takes a while. Boxed, so that the routers are compiled once and not per implementor.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Everything a device can ask of its server. Each method is scoped to the client it is given: what
/// belongs to another client does not exist for it (MI-G2-007).
pub trait DeviceApi: Send + Sync + 'static {
    /// Asked at the beginning of every request and again after a long wait; answered from memory.
    fn admit(&self, client: &ClientId) -> Result<(), Outside>;

    /// The manifest to serve now, from memory. An accepted client always has one, from version 1.
    fn manifest(&self, client: &ClientId) -> Result<Arc<LiveManifest>, Outside>;

    /// The client showed that it holds the manifest of this version. Said on nearly every poll: be quick.
    fn holds(&self, _client: &ClientId, _version: u64) {}

    /// Ends when the client's manifest is no longer `than`, when `within` has passed, or early for a reason
    /// of the implementor's own (it is stopping). The caller looks again in every case. `false` when nothing was
    /// waited for at all, because the client has too many polls held already.
    fn manifest_changed<'a>(
        &'a self,
        client: &'a ClientId,
        than: Digest,
        within: Duration,
    ) -> Answer<'a, bool>;

    fn document<'a>(
        &'a self,
        client: &'a ClientId,
        assignment: AssignmentId,
        digest: Digest,
    ) -> Answer<'a, Result<Option<Bytes>, ApiError>>;

    fn bundle<'a>(
        &'a self,
        client: &'a ClientId,
        digest: Digest,
    ) -> Answer<'a, Result<Option<Bytes>, ApiError>>;

    /// `body` is what the device sent, to be kept as it came.
    fn put_capabilities<'a>(
        &'a self,
        client: &'a ClientId,
        capabilities: Capabilities,
        body: Bytes,
    ) -> Answer<'a, Result<Put, ApiError>>;

    fn delete_capabilities<'a>(
        &'a self,
        client: &'a ClientId,
        device: &'a DeviceId,
    ) -> Answer<'a, Result<(), ApiError>>;

    /// Answers only once the report is durable.
    fn report<'a>(&'a self, client: &'a ClientId, report: Report) -> Answer<'a, Result<Put, ApiError>>;
}

/// Why a request of a device was not done.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the gateway {0} has not reported its capabilities; report those first")]
    GatewayNotFound(DeviceId),
    #[error("this client never reported a device {0}")]
    DeviceNotFound(DeviceId),
    #[error("deployment {0} was never assigned to this client")]
    AssignmentUnknown(AssignmentId),
    #[error("the request breaks {} of the server's rules", .0.len())]
    Invalid(Vec<Violation>),
    /// Too much to do at the moment; the implementor spreads `retry_after` over its clients.
    #[error("the server is busy")]
    Busy { retry_after: Duration },
    /// The caller learns only that it was not their fault; the cause goes to the log.
    #[error("the server could not do it")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}
