//! The way to the server, as those who keep it, use it and decide about it tell each other of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use margrave_core::moment::Moment;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Way {
    /// Certificate or trust is new: what failed before may work now.
    pub(crate) renewed: Notify,
    /// The server came back, or its certificate was refused: the trust bundle may be stale (ID-148).
    pub(crate) doubtful: Notify,
    notice: Mutex<Option<String>>,
    /// Nobody is to be talked to before; milliseconds, 0 when that is not so.
    silent_until: AtomicU64,
}

impl Way {
    /// What a technician should know about this device's identity; `None` when all is well.
    pub(crate) fn notice(&self) -> Option<String> {
        self.notice.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// By its schedule the device talks to nobody until then.
    pub(crate) fn set_silent_until(&self, until: Option<Moment>) {
        self.silent_until.store(until.map_or(0, |until| until.0), Ordering::Relaxed);
    }

    pub(crate) fn is_silent(&self, now: Moment) -> bool {
        now.0 < self.silent_until.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, notice: Option<String>) {
        *self.notice.lock().unwrap_or_else(PoisonError::into_inner) = notice;
    }
}
