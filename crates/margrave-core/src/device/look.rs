//! What is seen of the runtime, and how far it is to be believed.

use std::time::Duration;

use super::work::{OBSERVE_LATER, Work};
use super::{Assignment, Device, Health, Observation, Settings, backoff};
use crate::lifecycle::State;
use crate::moment::Moment;
use crate::report::Failure;

/// How soon to look again while something is starting or looks wrong.
const OBSERVE_SOON: Duration = Duration::from_secs(2);

/// So many regular looks missing between two: nobody watched, or the clock was set forward. The longest pause that a device makes
/// by itself is half of that.
const UNWATCHED_LOOKS: u32 = 8;

/// How long to wait for more after something stirred.
const STIRRED_PAUSE: Duration = Duration::from_millis(500);

impl Device {
    /// Containers come in crowds: one look after the first few moments sees all of them.
    pub(super) fn stirred(&mut self, now: Moment) {
        let soon = now.after(STIRRED_PAUSE);
        if self.work.observe_next > soon {
            self.work.observe_next = soon;
        }
    }

    pub(super) fn observed(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        result: Result<Vec<Observation>, Failure>,
    ) {
        let (began, began_at) = self.work.observing.take().unwrap_or((self.tick, now));
        let seen = match result {
            Ok(seen) => seen,
            Err(failure) => {
                // Not being able to look is no verdict about what runs.
                let pause = backoff(
                    OBSERVE_SOON,
                    settings.observe_every * OBSERVE_LATER,
                    self.work.observe_failures,
                    0.0,
                );
                self.work.observe_failures = self.work.observe_failures.saturating_add(1);
                self.work.observe_next = now.after(pause);
                self.could_not_look(&failure, now);
                self.work.trouble = Some(failure);
                return;
            }
        };
        self.could_look();
        self.work.observe_failures = 0;
        self.work.trouble = None;
        self.work.seen = seen;
        self.forget_removed(began);
        self.work.seen_began = began;
        let before = self.work.seen_at.replace(now);
        let is_long = |time: Duration| time > settings.observe_every * UNWATCHED_LOOKS;
        // One long look is the clock's, or everything stood still. Where every look is, the engine is slow, and what it shows
        // is all that there is to judge by.
        let was_slow = std::mem::replace(&mut self.work.slow, is_long(now.since(began_at)));
        if before.is_some_and(|before| is_long(began_at.since(before))) || (self.work.slow && !was_slow) {
            self.forget_impressions();
        }

        for id in self.assignments.keys().copied().collect::<Vec<_>>() {
            let at_rest = !self.work.in_flight.contains_key(&id);
            let is_fresh = |assignment: &Assignment| assignment.worked_at < began && at_rest;
            if is_fresh(&self.assignments[&id]) {
                self.judge_health(settings, id, now, roll);
            }
            // What was fetched for what is above touched nothing of it.
            if self.assignments[&id].beneath().is_some_and(is_fresh) {
                let judge = |device: &mut Device| device.judge_health(settings, id, now, roll);
                self.with_beneath(settings, id, now, judge);
            }
        }
        self.remove_orphans(settings, now);
        self.tell_restarts(settings, now);

        // What has been starting for too long is told, and no reason to hurry any more.
        let is_failed = |seen: &Observation| {
            self.assignments.get(&seen.assignment).is_some_and(|a| a.here().state == State::Failed)
        };
        let unsettled = self.assignments.values().any(|a| a.here().unhealthy_since.is_some())
            || self.work.seen.iter().any(|seen| seen.health == Health::Starting && !is_failed(seen));
        self.work.observe_next = now.after(if unsettled {
            OBSERVE_SOON.min(settings.observe_every)
        } else {
            settings.observe_every
        });
        self.answer_look(settings, began, now);
    }

    /// A look that began before something was removed may have found it still.
    fn forget_removed(&mut self, began: u64) {
        let Work { seen, removed, .. } = &mut self.work;
        removed.retain(|_, at| *at >= began);
        seen.retain(|seen| !removed.contains_key(&(seen.assignment, seen.component.clone())));
    }

    /// What was well or sick before says nothing about how long it has been so.
    fn forget_impressions(&mut self) {
        let forget = |assignment: &mut Assignment| {
            (assignment.unhealthy_since, assignment.down_since) = (None, None);
            assignment.starting_since = None;
            assignment.well = None;
        };
        for assignment in self.assignments.values_mut() {
            forget(assignment);
            assignment.beneath.as_deref_mut().into_iter().for_each(forget);
        }
    }
}
