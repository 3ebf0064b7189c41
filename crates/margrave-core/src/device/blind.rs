//! A device that cannot look at its containers says so: what it said of them last may not hold any more.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Device;
use crate::moment::Moment;
use crate::report::Failure;

/// Since when a device cannot look at its containers, and why. That is no verdict about what runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blind {
    pub since: Moment,
    pub message: String,
}

pub const BLIND_MESSAGE_LENGTH_MAX: usize = 500;
/// Looks that fail one after the other before anybody is told: half a minute, in which an engine that is restarted is back.
const LOOKS_MIN: u32 = 5;
/// So many more at most, each a minute, of an engine that comes and goes.
const LOOKS_MORE_MAX: u32 = 15;
/// Looks that have to work one after the other before it counts as steady again: a quarter of an hour.
const LOOKS_STEADY: u32 = 60;
/// How often other words for the same trouble are told.
const WORDS_EVERY: Duration = Duration::from_secs(15 * 60);

/// Impressions of how looking goes.
#[derive(Debug, Clone, Default)]
pub(super) struct Sight {
    failed_since: Option<Moment>,
    failures: u32,
    successes: u32,
    /// How often it was told and taken back since looking was steady.
    lapses: u32,
    worded_at: Option<Moment>,
}

impl Blind {
    /// As another device says it. Text is text; one without a word says nothing.
    pub fn told(since: Moment, message: &str) -> Option<Blind> {
        let message: String = message.trim().chars().take(BLIND_MESSAGE_LENGTH_MAX).collect();
        (!message.is_empty()).then_some(Blind { since, message })
    }
}

impl Sight {
    /// Looks that have to fail before it is told: more of them where that was so again and again.
    fn patience(&self) -> u32 {
        LOOKS_MIN + 2u32.saturating_pow(self.lapses).saturating_sub(1).min(LOOKS_MORE_MAX)
    }
}

impl Device {
    /// Since when it cannot look, if what it said of its containers may therefore not hold any more.
    pub fn blind(&self) -> Option<&Blind> {
        // Who has nothing to look after misses nothing.
        self.blind.as_ref().filter(|_| !self.assignments.is_empty())
    }

    pub(super) fn could_not_look(&mut self, failure: &Failure, now: Moment) {
        let sight = &mut self.work.sight;
        sight.successes = 0;
        sight.failures = sight.failures.saturating_add(1);
        // A beginning in the future: the clock was set back.
        let since = sight.failed_since.filter(|since| *since <= now).unwrap_or(now);
        sight.failed_since = Some(since);
        match &mut self.blind {
            None if sight.failures >= sight.patience() => {
                self.blind = Blind::told(since, &failure.message);
                sight.worded_at = Some(now);
            }
            None => {}
            Some(blind) => {
                let is_old = |at: Moment| at > now || now.since(at) >= WORDS_EVERY;
                if let Some(told) = Blind::told(blind.since, &failure.message)
                    && sight.worded_at.is_none_or(is_old)
                    && *blind != told
                {
                    *blind = told;
                    sight.worded_at = Some(now);
                }
            }
        }
    }

    pub(super) fn could_look(&mut self) {
        let sight = &mut self.work.sight;
        sight.failed_since = None;
        sight.failures = 0;
        sight.successes = sight.successes.saturating_add(1);
        if sight.successes >= LOOKS_STEADY {
            sight.lapses = 0;
        }
        if self.blind.take().is_some() {
            sight.lapses = sight.lapses.saturating_add(1);
        }
    }
}
