//! When the server was last heard, for whoever asks at the device: also after it was started again without a network.
//!
//! A poll is worth no write, flash wears out. So it is written down with what is written anyway because the server was heard, or is
//! not heard any more; when the agent ends in good order; and for its own sake where nothing of that happened for longer than a
//! telling of where everything stands is away (`retelling.rs`). After a power cut it is about a day old at most.

use super::{Device, Settings};
use crate::moment::Moment;
use crate::schedule::CLOCK_SENSIBLE;

impl Device {
    /// When the server was last heard, and what went wrong since.
    pub fn contact(&self) -> (Option<Moment>, Option<&str>) {
        (self.upstream.last_contact.or(self.last_heard), self.upstream.trouble.as_deref())
    }

    pub(super) fn heard(&mut self, settings: &Settings, now: Moment) {
        self.upstream.last_contact = Some(now);
        self.upstream.trouble = None;
        // Tellings are spread by a quarter, and nobody who makes them is to write for this besides. What lies ahead was heard by a
        // clock that was set back since.
        let lasts = settings.retell_every.saturating_add(settings.retell_every / 4);
        if self.last_heard.is_none_or(|at| at > now || now.since(at) >= lasts) {
            self.keep_contact();
        }
    }

    /// Remembers beyond this process when the server was last heard.
    pub(super) fn keep_contact(&mut self) {
        let is_set = |at: &Moment| *at >= CLOCK_SENSIBLE;
        // By a clock that nobody has set yet nobody learns when that was: what was kept before says more.
        let says_less = |at: &Moment| !is_set(at) && self.last_heard.as_ref().is_some_and(is_set);
        self.last_heard = self.upstream.last_contact.filter(|at| !says_less(at)).or(self.last_heard);
    }
}
