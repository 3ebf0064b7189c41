//! What is counted while the server runs, for whoever watches it. Nothing is decided by these numbers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use margrave_store::{Distribution, Histogram, StoreLoad};

use super::Fleet;

#[derive(Default)]
pub(super) struct Meters {
    polls: AtomicU64,
    waiting: AtomicU64,
    reports_kept: AtomicU64,
    reports_refused: AtomicU64,
    manifests: AtomicU64,
    publications: Histogram,
    /// Looking at all devices of a rollout.
    pub(super) rollout_looks: Histogram,
}

/// The numbers at one moment.
pub(crate) struct Readings {
    pub(crate) polls: u64,
    pub(crate) waiting: u64,
    pub(crate) reports_kept: u64,
    pub(crate) reports_refused: u64,
    pub(crate) manifests: u64,
    pub(crate) publications: Distribution,
    pub(crate) rollout_looks: Distribution,
    pub(crate) store: StoreLoad,
}

impl Meters {
    pub(super) fn poll(&self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody waits until what is returned is dropped.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.waiting)
    }

    pub(super) fn report(&self, kept: bool) {
        let meter = if kept { &self.reports_kept } else { &self.reports_refused };
        meter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn published(&self, manifests: usize, took: Duration) {
        self.manifests.fetch_add(manifests as u64, Ordering::Relaxed);
        self.publications.observe(took);
    }
}

pub(super) struct Waiting<'a>(&'a AtomicU64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Fleet {
    pub(crate) fn readings(&self) -> Readings {
        let read = |meter: &AtomicU64| meter.load(Ordering::Relaxed);
        let meters = &self.meters;
        Readings {
            polls: read(&meters.polls),
            waiting: read(&meters.waiting),
            reports_kept: read(&meters.reports_kept),
            reports_refused: read(&meters.reports_refused),
            manifests: read(&meters.manifests),
            publications: meters.publications.distribution(),
            rollout_looks: meters.rollout_looks.distribution(),
            store: self.store.load(),
        }
    }
}
