//! What is here while nothing of something newer was touched: kept running in its place.
//!
//! A change that was taken up and only fetched so far has replaced nothing: its window closed over it, its registry is away, or
//! it cannot be used here at all. The assignment's state speaks of that change; what runs is of the document before, and is mended
//! all the same, by the usual graces and pauses. What is held goes first: this only fills its pauses, and ends with its first touch.

use std::collections::BTreeSet;

use super::work::{Step, paused_until};
use super::{Action, Assignment, Device, Health, Order, Settings, backoff};
use crate::digest::Digest;
use crate::id::{AssignmentId, ComponentName};
use crate::lifecycle::State;
use crate::moment::Moment;
use crate::report::Failure;
use crate::rollback::When;

/// How that goes. Impressions: a restart looks again, and tries again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mending {
    /// What was seen to be wrong, for longer than it may be.
    pub ailment: Option<Failure>,
    /// What is under way is for this, and not for what is held.
    pub under_way: bool,
    fetched: BTreeSet<ComponentName>,
    applied: BTreeSet<ComponentName>,
    tries: u32,
    /// How many of them count against it.
    strikes: u32,
    next: Option<Moment>,
    well_since: Option<Moment>,
}

impl Device {
    /// One more look at it.
    pub(super) fn judge_beneath(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let Some(here) = self.beneath(id) else { return };
        let orders = self.orders(&here);
        if orders.is_empty() {
            // Its document is lost, so nobody knows what it should be.
            return;
        }
        let ailment = self.ailment(settings, id, &here, now);
        let all_healthy =
            orders.iter().all(|order| self.sight(order).is_some_and(|seen| seen.health == Health::Healthy));
        let mending = &mut self.assignments.get_mut(&id).expect("looked up above").mending;
        let since = mending.well_since.filter(|since| *since <= now).unwrap_or(now);
        mending.well_since = all_healthy.then_some(since);
        if all_healthy && now.since(since) >= settings.proven_after {
            (mending.tries, mending.strikes, mending.next) = (0, 0, None);
        }
        let changed = mending.ailment != ailment;
        mending.ailment = ailment;
        if changed {
            self.report(settings, id, now);
        }
    }

    /// The document of what is here, where that is not the one held.
    fn beneath(&self, id: AssignmentId) -> Option<Digest> {
        let assignment = &self.assignments[&id];
        let lives = matches!(assignment.state, State::Installing | State::Updating | State::Failed);
        assignment.beneath().filter(|_| lives)
    }

    /// What is done for it while there is nothing to do for what is held.
    pub(super) fn step_beneath(&self, settings: &Settings, id: AssignmentId, now: Moment) -> Step {
        let mending = &self.assignments[&id].mending;
        let Some(here) = self.beneath(id).filter(|_| mending.ailment.is_some()) else { return Step::Rest };
        if let Some(next) = paused_until(settings, mending.next, now) {
            return Step::Wait(next);
        }
        let orders = self.orders(&here);
        let next = |done: &BTreeSet<ComponentName>| {
            orders.iter().find(|order| !done.contains(&order.component)).cloned()
        };
        match (next(&mending.fetched), next(&mending.applied)) {
            (Some(order), _) => Step::Do(Box::new(Action::Prefetch(order))),
            (None, Some(order)) => Step::Do(Box::new(Action::Apply(order))),
            (None, None) => Step::Rest,
        }
    }

    /// Whether this is done for what is here. The same order may be of both: then it is for what is held as soon as that may be
    /// worked on.
    pub(super) fn is_beneath(&self, settings: &Settings, order: &Order, now: Moment) -> bool {
        let id = order.assignment;
        let Some(assignment) = self.assignments.get(&id) else { return false };
        let is_of = |document: Option<Digest>| document.is_some_and(|d| self.orders(&d).contains(order));
        let others = [assignment.held, assignment.goal()].into_iter().any(is_of);
        is_of(self.beneath(id))
            && (!others || !matches!(self.step_held_or_new(settings, id, now), Step::Do(_)))
    }

    /// Takes in what became of something, if it was done for what is here.
    pub(super) fn mended(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        (id, component): (AssignmentId, &ComponentName),
        result: &Result<(), Failure>,
    ) -> bool {
        let Some(assignment) = self.assignments.get_mut(&id) else { return false };
        if !std::mem::take(&mut assignment.mending.under_way) {
            return false;
        }
        assignment.worked_at = self.tick;
        let was = self.work.in_flight.remove(&id);
        let here = self.beneath(id);
        let count = here.map_or(0, |here| self.orders(&here).len());
        let mending = &mut self.assignments.get_mut(&id).expect("looked up above").mending;
        match (result, was) {
            (Ok(()), Some(Action::Apply(_))) => drop(mending.applied.insert(component.clone())),
            (Ok(()), _) => drop(mending.fetched.insert(component.clone())),
            (Err(_), _) => {}
        }
        if result.is_ok() && mending.applied.len() < count {
            return true;
        }
        // The next look says whether that helped.
        let pause = backoff(settings.retry_delay, settings.retry_delay_max, mending.tries, roll);
        mending.next = Some(now.after(pause));
        mending.tries = mending.tries.saturating_add(1);
        let counts = |failure: &Failure| failure.code.blames_the_update() && !failure.code.is_pull();
        mending.strikes += u32::from(result.as_ref().err().is_none_or(counts));
        (mending.fetched, mending.applied) = Default::default();
        if let Some(here) = here {
            self.mend_with_good(id, here);
        }
        true
    }

    /// A version that was never well for long is not tried for ever where there is a better one behind it.
    fn mend_with_good(&mut self, id: AssignmentId, here: Digest) {
        let policy = self.policy(&here).unwrap_or_default();
        let Some(assignment) = self.assignments.get_mut(&id) else { return };
        let Some(good) = assignment.good.filter(|good| *good != here) else { return };
        let is_readable = matches!(self.readings.get(&good), Some(Ok(_)));
        if policy.when == When::OnFailedUpdate && assignment.mending.strikes >= policy.attempts && is_readable
        {
            assignment.former = Some(good);
            let ailment = assignment.mending.ailment.take();
            assignment.mending = Mending { ailment, ..Mending::default() };
        }
    }
}

impl Assignment {
    /// The document of what is here, while nothing of `held` was touched.
    pub fn beneath(&self) -> Option<Digest> {
        self.former.filter(|former| !self.is_touched() && self.held != Some(*former))
    }
}
