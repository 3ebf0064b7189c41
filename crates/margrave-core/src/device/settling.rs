//! The first minutes of a machine's life, in which its clock may still be set.
//!
//! A machine without a battery for its clock begins with the time at which it was last on (systemd and fake-hwclock write that down),
//! so that one whose power went in its window comes back in it, whatever the time is. It learns better once it reaches a time server.

use std::time::Duration;

use super::Device;
use super::waiting::Waiting;
use crate::moment::Moment;
use crate::schedule::Gate;

/// So long after the machine was started nothing is begun that has a time of its own. A link that dials in and the first answer of a
/// time server take a minute or two; a window is seldom shorter than half an hour.
const SETTLING: Duration = Duration::from_secs(180);

impl Device {
    /// The machine was started.
    pub(super) fn settle_clock_from(&mut self, now: Moment) {
        self.booted_at = Some(now);
    }

    /// The clock was set back meanwhile: it may have been set for the first time, and no more than once more is waited for.
    pub(super) fn tend_settling(&mut self, now: Moment) {
        if self.booted_at.is_some_and(|at| at > now) {
            self.booted_at = Some(now);
        }
    }

    /// Why a window that is closed, or only seems to be open, keeps a change from beginning.
    pub(super) fn kept_by(&self, window: Gate, now: Moment) -> Option<Waiting> {
        match window {
            Gate::Closed(opens) => Some(Waiting::Window { opens, late: self.late() }),
            Gate::Open(Some(_)) => self.settles_until(now).map(Waiting::Settling),
            // At any time.
            Gate::Open(None) => None,
        }
    }

    fn settles_until(&self, now: Moment) -> Option<Moment> {
        let until = self.booted_at?.min(now).after(SETTLING);
        Some(until).filter(|until| now < *until)
    }
}
