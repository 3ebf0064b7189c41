//! What can be done with a fleet, free of HTTP.
//!
//! Browser page, REST call and device request all end here. This module owns the live picture that every
//! device request is answered from (standing, manifest) and the verbs that change it; `margrave-store`
//! owns durability. It deliberately knows nothing of requests, cookies, certificates and templates.
//!
//! Start with [`Fleet`]; `intent.rs` is the one way in for what operators want.

mod access;
mod archive;
mod asking;
mod audit;
mod authority;
mod backup;
mod breaking;
mod catalog;
mod client;
pub(crate) mod desired;
mod device;
pub(crate) mod difference;
mod draft;
mod error;
mod event;
mod fit;
pub(crate) mod git;
mod hearing;
mod images;
mod intent;
mod keeping;
mod lost_images;
mod made;
mod meters;
mod moving;
mod noting;
mod origin;
mod pinning;
mod prospect;
mod publish;
mod registries;
mod rehearsal;
mod report;
mod revision;
mod rollout;
mod running;
mod schedule;
mod secret;
mod seen;
mod signed;
mod sizes;
mod telling;
#[cfg(test)]
mod tests;
mod texts;
mod token;
mod view;

pub use view::WITHOUT_SITE;
mod warning;
mod watches;
mod why;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::silence::Up;
use margrave_oci::client::Client;
use margrave_registry::Registry;
use margrave_store::Store;
use margrave_wire::operator;
use tokio::sync::{Mutex, RwLock, broadcast, watch};

use crate::vault::Vault;

pub(crate) use access::SESSION_LIFETIME;
pub use access::{Holder, Refused};
pub use audit::AuditQuery;
pub(crate) use audit::{DONE, blank, line};
pub use client::Found;
pub use desired::Fetching;
pub(crate) use desired::named;
pub use error::Error;
pub(crate) use event::time;
pub(crate) use git::places;
pub use git::{FETCH_BYTES_MAX, Follow};
pub(crate) use made::noting;
pub use margrave_store::{Counted, Failure, Put, SiteCounts, Standing, UsedSignature, likeness};
pub use rollout::{RolloutGlimpse, RolloutVerb};
pub use seen::Seen;
pub use signed::{Accept, Onboarding, SignedKey, SignedPolicy};
pub use why::FailedFor;

/// Who did something: `operator admin`, `device line-1` or `server`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    pub name: String,
}

/// Tells the time; given from outside so that tests can steer it.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Moment + Send + Sync>);

impl Clock {
    pub fn new(now: impl Fn() -> Moment + Send + Sync + 'static) -> Self {
        Clock(Arc::new(now))
    }

    /// The machine's own clock.
    pub fn system() -> Self {
        Clock::new(|| {
            let since =
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            Moment(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
        })
    }

    pub fn now(&self) -> Moment {
        (self.0)()
    }
}

/// Makes names that nobody had before; given from outside so that a simulation can repeat itself.
#[derive(Clone)]
pub struct Naming(Arc<dyn Fn() -> uuid::Uuid + Send + Sync>);

impl Naming {
    pub fn new(next: impl Fn() -> uuid::Uuid + Send + Sync + 'static) -> Self {
        Naming(Arc::new(next))
    }

    pub fn random() -> Self {
        Naming::new(uuid::Uuid::new_v4)
    }

    fn next(&self) -> uuid::Uuid {
        (self.0)()
    }
}

pub struct FleetOptions {
    /// As devices and operators reach this server, `https://host:port`.
    pub server_url: String,
    /// The pin that a joining device checks this server by.
    pub pin: String,
    /// `host:port` under which devices reach this server's registry; put into documents for the host `margrave`.
    pub registry_address: String,
    /// Ask no registry elsewhere what images mean, but those that an operator told of.
    pub air_gapped: bool,
    /// Without contact for longer than this, a device is called silent.
    pub silent_after: Duration,
    /// What `margrave demo` says about what is real; shown in the status.
    pub demo: Option<String>,
    /// Where devices' Git repositories lie.
    pub git_directory: PathBuf,
    /// The repository of what is wanted.
    pub intent_directory: PathBuf,
    /// Whether it must outlive a loss of power; a simulation has no such thing.
    pub intent_durable: bool,
    /// Names that the certificate behind `server_url` is for.
    pub web_names: Vec<String>,
    /// The authority of that certificate, PEM.
    pub web_authority: String,
    /// What new deployments are called inside.
    pub naming: Naming,
    /// Where secrets are looked up.
    pub vault: Vault,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceQuery {
    /// Part of the id, in any case.
    pub search: Option<String>,
    /// One label that must be there; with a value, also an empty one, it must be that.
    pub label: Option<(String, Option<String>)>,
    /// `converged`, `pending`, `failed`, `silent` or `retired`.
    pub condition: Option<String>,
    /// With something in this state.
    pub state: Option<State>,
    /// With this value of the label `site`; [`WITHOUT_SITE`] are those that have none.
    pub site: Option<String>,
    /// With something of the deployment of this name.
    pub deployment: Option<String>,
    /// A text that a value among its capabilities has, in any case.
    pub capability: Option<String>,
    /// The `next` of the page before.
    pub after: Option<String>,
    /// 1 to 1000; 100 when left out.
    pub limit: Option<usize>,
}

/// Which devices a deployment would reach, without writing anything.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    /// Devices that fit, and the profile that each would run.
    pub fits: Vec<PreviewFit>,
    pub misfits: Vec<operator::Misfit>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PreviewFit {
    pub device: String,
    pub profile: String,
    /// Why it does not fit, where it is forced.
    pub despite: Vec<String>,
}

/// A file that lies in a package beside its description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub media_type: String,
    pub bytes: Bytes,
}

/// A device says at once what it begins to remove. One that is heard from so long after it took up a manifest, and said no word about
/// what is no longer in it, never had that. Where it said that it has it, its word may be on the way; in an hour it had the time
/// to say it, and must have lost its memory, or we ours.
const REMOVAL_UNSPOKEN_MS: u64 = 10 * 60 * 1000;
const REMOVAL_LOST_MS: u64 = 3600 * 1000;

/// How many events a slow subscriber may be behind before it has to read the log instead.
const EVENTS_BEHIND_MAX: usize = 1024;

/// How long it can be seen what a device said about something that it does not have any more: a quarter year.
const HISTORY_KEPT_MS: u64 = 90 * 24 * 3600 * 1000;
/// Of those at most this many: ten thousand devices that lost ten applications each.
const HISTORY_MAX: u32 = 100_000;

pub struct Fleet {
    store: Store,
    registry: Arc<Registry>,
    /// For packages and components that lie elsewhere; another one when a registry is known better.
    upstream: ArcSwap<Client>,
    watching: watches::Watching,
    clock: Clock,
    options: FleetOptions,
    live: Arc<client::Clients>,
    signed: signed::SignedClients,
    catalog: catalog::Catalog,
    silent: images::Silent,
    image_looks: lost_images::ImageLooks,
    size_looks: lost_images::ImageLooks,
    /// One decision at a time: what is published is made from what was read. Several servers on one database
    /// are kept apart by compare-and-swap; this only spares one server from losing to itself. Devices that join
    /// decide nothing and do so side by side, but not beside a decision.
    deciding: RwLock<()>,
    git: git::Git,
    desired: desired::Desired,
    access: access::Access,
    rollouts: rollout::Rollouts,
    meters: meters::Meters,
    up: Up,
    heard: Mutex<hearing::Heard>,
    events: broadcast::Sender<Arc<operator::Event>>,
    /// Says that the audit log has an entry more.
    audited: watch::Sender<()>,
}

impl Fleet {
    /// As devices and operators reach this server.
    pub fn url(&self) -> &str {
        &self.options.server_url
    }

    /// Brings the live picture up from the store, and finishes what a crash left half-done.
    pub async fn open(
        store: Store,
        registry: Arc<Registry>,
        clock: Clock,
        options: FleetOptions,
    ) -> Result<Arc<Fleet>, Error> {
        let (events, _) = broadcast::channel(EVENTS_BEHIND_MAX);
        let announce = events.clone();
        let live = Arc::new(client::Clients::load(&store).await?);
        let signed = signed::SignedClients::load(&store).await?;
        let names = Arc::clone(&live);
        // No subscriber is no error: the log has it.
        store.announce_to(move |event| drop(announce.send(Arc::new(event::shown(&names, event)))));
        let git = git::Git::new(options.git_directory.clone(), store.git_clients().await?);
        let desired =
            desired::Desired::open(&options.intent_directory, options.intent_durable, &store).await?;
        let access = access::Access::load(&store, clock.now()).await?;
        let upstream = ArcSwap::from_pointee(registries::client_of(&store.registries().await?));
        let up = hearing::up(&store, &live, clock.now()).await?;
        let mut fleet = Fleet {
            store,
            registry,
            upstream,
            watching: watches::Watching::default(),
            clock,
            options,
            live,
            signed,
            catalog: catalog::Catalog::default(),
            silent: images::Silent::default(),
            image_looks: lost_images::ImageLooks::default(),
            size_looks: lost_images::ImageLooks::default(),
            deciding: RwLock::default(),
            git,
            desired,
            access,
            rollouts: rollout::Rollouts::default(),
            meters: meters::Meters::default(),
            up,
            heard: Mutex::new(hearing::Heard::new(BTreeSet::new())),
            events,
            audited: watch::Sender::new(()),
        };
        fleet.heard = Mutex::new(hearing::Heard::new(fleet.silent()));
        fleet.conclude_cut_off().await?;
        fleet.tell_restored().await?;
        fleet.come_back().await?;
        fleet.catch_up().await?;
        fleet.hold_what_was_restored().await?;
        Ok(Arc::new(fleet))
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Ends removals of what devices never had: it went again before they saw a manifest with it, and what they do not know
    /// they cannot confirm.
    async fn end_unknown_removals(&self) -> Result<(), Error> {
        let now = self.now();
        let ago = |time: u64| Moment(now.0.saturating_sub(time));
        let unspoken = self.store.removals_unspoken(ago(REMOVAL_UNSPOKEN_MS)).await?;
        let unknown = unspoken.into_iter().filter(|removal| {
            let time = if removal.was_there { REMOVAL_LOST_MS } else { REMOVAL_UNSPOKEN_MS };
            self.live.held_for(&removal.client, time).is_some_and(|held| held >= removal.version)
        });
        let unknown: Vec<_> = unknown.map(|removal| removal.id).collect();
        if !unknown.is_empty() {
            self.store.archive_unspoken(unknown, now).await?;
        }
        Ok(())
    }

    /// Forgets what nobody can use any more; called on a timer.
    pub async fn sweep(&self) -> Result<(), Error> {
        let now = self.now();
        let swept = self.store.sweep_expired(now).await?;
        let history_from = Moment(now.0.saturating_sub(HISTORY_KEPT_MS));
        let ended = self.store.sweep_archived(history_from, HISTORY_MAX).await?;
        self.end_unknown_removals().await?;
        self.sweep_git().await?;
        self.access.sweep(now);
        tracing::debug!(swept, ended, "expired tokens and sessions, and old history, were forgotten");
        Ok(())
    }
}
