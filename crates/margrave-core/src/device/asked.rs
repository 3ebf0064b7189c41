//! What operators ask of this device, as its manifest says.

use std::time::Duration;

use super::{Device, Hold, HoldRefused, Settings};
use crate::asked::Asked;
use crate::moment::Moment;

/// So long after somebody asked a device may still be told that nothing is new: a server writes down before it says.
const SAID_WITHIN: Duration = Duration::from_secs(60);

impl Device {
    /// Takes up what is asked. The same again is nothing new: a hold that is over here, or that somebody at the device let
    /// go, does not begin anew with every manifest.
    pub(super) fn take_up(&mut self, settings: &Settings, asked: &Asked, now: Moment) {
        if asked.hold != self.asked.hold {
            // Judged while the one before still stands: one after the other they hold no longer than one may.
            let next = asked.hold.as_ref().and_then(|hold| self.operators_hold(hold, now)).transpose();
            if let Some(before) = self.asked.hold.take() {
                self.released(Some(before.holder));
            }
            self.hold_refused = next.as_ref().err().map(HoldRefused::to_string);
            if let Ok(Some(hold)) = next {
                self.held(hold);
            }
        }
        if asked.look != self.asked.look {
            self.work.observe_next = now;
            self.work.look_asked = self.tick;
            for id in self.assignments.keys().copied().collect::<Vec<_>>() {
                self.try_spent_again(id, now);
                self.with_beneath(settings, id, now, |device| device.try_spent_again(id, now));
            }
        }
        if asked.look == 0 {
            // Another server, or one that forgot: nothing is waited for.
            self.looked = 0;
        }
        self.asked = asked.clone();
    }

    /// An operator's hold as it counts here, unless it was heard of too late: it gives way like any other when changes were held
    /// back for long enough.
    fn operators_hold(&self, hold: &Hold, now: Moment) -> Option<Result<Hold, HoldRefused>> {
        // It began after the server had last said that there is nothing new. Where that was later, by this clock, than it began by
        // the server's, this clock is ahead.
        let is_ahead = |heard: Moment| heard <= now && hold.since.after(SAID_WITHIN) < heard;
        let since = match self.newest_at().is_some_and(is_ahead) {
            true => hold.since,
            // Nor does a clock that is behind, or was never set, say how much of it is over.
            false => now.max(hold.since),
        };
        let (length, max) = (hold.until.since(since), self.hold_max());
        let is_over = length < Duration::from_secs(1);
        // Where none is allowed, that is the answer, and not that it is too short.
        let length = if max.is_zero() { length } else { length.min(max) };
        (!is_over).then(|| self.new_hold(&hold.holder, &hold.reason, length, now))
    }

    /// Says how everything stands, once a look that was asked for is done.
    pub(super) fn answer_look(&mut self, settings: &Settings, began: u64, now: Moment) {
        if self.looked == self.asked.look {
            return;
        }
        if began <= self.work.look_asked {
            // It was under way before anybody asked.
            self.work.observe_next = now;
            return;
        }
        self.looked = self.asked.look;
        for id in self.assignments.keys().copied().collect::<Vec<_>>() {
            self.report(settings, id, now);
        }
    }

    /// Why changes are not held back though an operator asks for it; one who asked for a time that is over is not refused.
    pub fn hold_refused(&self) -> Option<&str> {
        self.hold_refused.as_deref()
    }

    /// What operators ask of this device.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// The number of the last look that was asked for and done; 0 where there was none.
    pub fn looked(&self) -> u64 {
        self.looked
    }
}
