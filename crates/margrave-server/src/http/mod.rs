//! Everything that speaks HTTP: translate a request, call the fleet, translate the answer.
//!
//! No handler holds a business rule. Three routers are made here, one per listener, because what a
//! listener offers is a matter of trust: devices meet only `device`, strangers only what `web` shows them.

pub(crate) mod audit;
pub mod device;
mod feed;
mod git;
mod hook;
pub mod identity;
mod intent;
mod metrics;
mod northbound;
pub mod operator;
mod prefix;
pub mod problem;
pub mod registry;
mod share;
pub mod signed;
pub mod web;

pub use prefix::{InvalidPrefix, PathPrefix};

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::sync::{Mutex, watch};

use crate::auth::SignInCodes;
use crate::backup::Backups;
use crate::drill::Drills;
use crate::fleet::Fleet;
use crate::guessing::Guessing;
use crate::rotation::Rotation;

/// A body of a few kilobytes arrives in this time over any line that can be worked with; who takes longer only
/// wants to hold the connection.
pub(crate) const BODY_TIME_MAX: Duration = Duration::from_secs(15);

/// Whether a body is declared to be longer than it may be: then nobody waits for it.
fn is_declared_larger(body: &axum::body::Body, max: usize) -> bool {
    axum::body::HttpBody::size_hint(body).lower() > max as u64
}

/// What handlers share: the state of the operator and page routers.
#[derive(Clone)]
pub struct App {
    pub fleet: Arc<Fleet>,
    pub sign_in: Arc<SignInCodes>,
    pub stopping: Stopping,
    pub(crate) guessing: Arc<Guessing>,
    pub(crate) audit: audit::Audit,
    pub(crate) rotation: Rotation,
    pub(crate) backups: Arc<Backups>,
    /// Held by whoever changes something on condition over the operator interface.
    pub(crate) changing: Arc<Mutex<()>>,
    /// What people may break; only in a demo.
    pub(crate) drills: Option<Drills>,
}

/// How a request reached us; every listener puts one into each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Over HTTPS, from anywhere.
    Web,
    /// Over mutual TLS, from a verified client.
    Device,
    /// On the listener of signed requests, from anywhere.
    Signed,
    /// Over plain HTTP, from this very machine.
    Local,
}

/// Tells whether the server is going down, so that streams and held requests end by themselves.
#[derive(Clone)]
pub struct Stopping(watch::Receiver<bool>);

impl Stopping {
    /// The signal, and what sets it off: send `true`, or drop the sender.
    pub fn new() -> (watch::Sender<bool>, Stopping) {
        let (sender, receiver) = watch::channel(false);
        (sender, Stopping(receiver))
    }

    /// Ends when the server is going down; also when nobody is left who could say so.
    pub async fn wait(&self) {
        let mut receiver = self.0.clone();
        // An error means that the sender is gone: the server is no more, which is what was waited for.
        receiver.wait_for(|stopping| *stopping).await.map(drop).unwrap_or_default();
    }
}

/// What the HTTPS listener offers: page, operator REST, identity, registry, devices' Git repositories and the one of what is wanted.
pub(crate) fn web(app: &App, identity: identity::Identity, registry: registry::Mount) -> Router {
    local(app, registry)
        .merge(app.audit.around(identity::router(identity), audit::Door::Identity))
        .merge(app.audit.around(git::router(app), audit::Door::DeviceGit))
        .merge(app.audit.around(hook::router(app.clone()), audit::Door::Rest))
}

/// What the plain loopback listener offers: the same without identity and devices' Git, which need TLS (ID-062).
pub(crate) fn local(app: &App, registry: registry::Mount) -> Router {
    let audit = &app.audit;
    audit
        .around(operator::router(app.clone()), audit::Door::Rest)
        .merge(audit.around(web::router(app.clone()), audit::Door::Page))
        .merge(audit.around(registry.router(), audit::Door::Registry))
        .merge(audit.around(metrics::router(app.clone()), audit::Door::Rest))
        .merge(audit.around(northbound::router(app.clone()), audit::Door::Rest))
        .merge(intent::router(app))
}
