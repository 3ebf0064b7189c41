//! The way to the server, as those who keep it, use it and decide about it tell each other of it.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Way {
    /// Certificate or trust is new: what failed before may work now.
    pub(crate) renewed: Notify,
    /// The server came back, or its certificate was refused: the trust bundle may be stale (ID-148).
    pub(crate) doubtful: Notify,
    notice: Mutex<Option<String>>,
}

impl Way {
    /// What a technician should know about this device's identity; `None` when all is well.
    pub(crate) fn notice(&self) -> Option<String> {
        self.notice.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn note(&self, notice: Option<String>) {
        *self.notice.lock().unwrap_or_else(PoisonError::into_inner) = notice;
    }
}
