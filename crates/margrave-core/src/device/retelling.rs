//! Where everything stands, said once more now and then although nothing happened. A server that was set back to an earlier day
//! without being told, or has lost what it heard, learns it so without anybody's help.
//!
//! Nothing waits for this: it is said when the server has just answered that nothing changed, and nothing else is to be said.

use std::time::Duration;

use crate::id::AssignmentId;
use crate::moment::Moment;
use crate::schedule::Gate;

use super::patience::spread;
use super::{Device, Settings};

/// How many assignments are spoken of at a time, at most. With each the whole memory is written down, which grows with their number,
/// and flash wears out: a device that has many speaks of fewer, and of the others the next times.
const TOLD_AT_ONCE: usize = 16;
/// So many of them, times how many there are, are written at a time.
const WRITTEN_AT_ONCE: usize = 512;
/// So many times as seldom where bytes are dear.
const SELDOM: u32 = 7;
/// Polls are as far apart as a server likes; who is later than this was not let speak, and nor were others.
const LATE: Duration = Duration::from_secs(15 * 60);
/// Who is late, or never spoke, does so within this part of the usual time between two tellings, also where bytes are dear: a fleet
/// whose hours begin, or whose server was away, comes back together, and many are on for half an hour a day.
const LATE_SPREAD: u32 = 24;

impl Device {
    /// A process begins. A fleet that lost its power comes back together, and a device that is on for half an hour a day has to
    /// speak as well.
    pub(super) fn await_retelling(&mut self, settings: &Settings, now: Moment, roll: f64) {
        let every = self.retell_every(settings);
        let roll = roll.clamp(0.0, 1.0);
        let pause = match self.retold_at {
            Some(at) if at <= now => {
                every.saturating_sub(now.since(at)) + late_within(settings).mul_f64(roll)
            }
            // Never, or by a clock that was set since.
            _ => late_within(settings).mul_f64(roll),
        };
        self.upstream.retell.succeeded(now, pause);
    }

    fn retell_every(&self, settings: &Settings) -> Duration {
        if self.saves(settings) {
            settings.retell_every.saturating_mul(SELDOM)
        } else {
            settings.retell_every
        }
    }

    /// The server said that nothing changed.
    pub(super) fn retell(&mut self, settings: &Settings, now: Moment, roll: f64) {
        if !self.upstream.retell.due(now) || !self.outbox.is_empty() {
            return;
        }
        let every = self.retell_every(settings);
        let until = self.upstream.retell.until;
        if now < until {
            // Its clock was set back. So may many others have been.
            let pause = late_within(settings).mul_f64(roll.clamp(0.0, 1.0));
            return self.upstream.retell.succeeded(now, pause);
        }
        if now.since(until) > LATE && !std::mem::replace(&mut self.upstream.retell_put_off, true) {
            let closes = match self.network(settings, now) {
                Gate::Open(closes) => closes.map(|at| at.since(now)),
                Gate::Closed(_) => None,
            };
            let within = closes.unwrap_or(Duration::MAX).min(late_within(settings));
            return self.upstream.retell.succeeded(now, within.mul_f64(roll.clamp(0.0, 1.0)));
        }
        self.upstream.retell_put_off = false;
        self.upstream.retell.succeeded(now, spread(every, roll));
        let Some((version, leaving)) =
            self.accepted.as_ref().map(|held| (held.version, held.leaving.clone()))
        else {
            return;
        };
        // What the server waited to hear is gone, by the manifest that both have.
        let absent = leaving.into_iter().filter(|id| !self.assignments.contains_key(id));
        let mut all: Vec<AssignmentId> = self.assignments.keys().copied().chain(absent).collect();
        all.sort();
        let first = match self.upstream.retold {
            Some(last) => all.partition_point(|id| *id <= last),
            None => (roll.clamp(0.0, 1.0) * all.len() as f64) as usize,
        };
        let bearable = WRITTEN_AT_ONCE.checked_div(all.len()).unwrap_or_default();
        let count = all.len().min(bearable.clamp(1, TOLD_AT_ONCE));
        if count > 0 {
            self.retold_at = Some(now);
            self.keep_contact();
        }
        for id in all.iter().cycle().skip(first).take(count).copied() {
            self.upstream.retold = Some(id);
            match self.assignments.contains_key(&id) {
                true => self.report(settings, id, now),
                false => self.report_absence(settings, id, version, now),
            }
        }
    }
}

fn late_within(settings: &Settings) -> Duration {
    settings.retell_every / LATE_SPREAD
}
