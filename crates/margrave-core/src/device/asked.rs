//! What operators ask of this device, as its manifest says.

use super::{Device, Hold, Settings};
use crate::asked::Asked;
use crate::moment::Moment;

impl Device {
    /// Takes up what is asked. The same again is nothing new: a hold that is over here, or that somebody at the device let
    /// go, does not begin anew with every manifest.
    pub(super) fn take_up(&mut self, settings: &Settings, asked: &Asked, now: Moment) {
        if asked.hold != self.asked.hold {
            // Judged while the one before still stands: one after the other they hold no longer than one may.
            let next = asked.hold.as_ref().and_then(|hold| self.operators_hold(hold, now));
            if let Some(before) = self.asked.hold.take() {
                self.released(Some(before.holder));
            }
            if let Some(hold) = next {
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

    /// An operator's hold as it counts here, if it does: it gives way like any other when changes were held back for long enough.
    fn operators_hold(&self, hold: &Hold, now: Moment) -> Option<Hold> {
        // Where this clock is behind the server's, or was never set, for as long as was meant.
        let length = hold.until.since(now.max(hold.since)).min(self.hold_max());
        self.new_hold(&hold.holder, &hold.reason, length, now).ok()
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

    /// What operators ask of this device.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// The number of the last look that was asked for and done; 0 where there was none.
    pub fn looked(&self) -> u64 {
        self.looked
    }
}
