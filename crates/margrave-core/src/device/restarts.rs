//! How often the engine brings back what runs. The count goes along with every report that is made anyway; a report is made for
//! it alone only where nothing else waits to be told, and seldom: what ends every few seconds must fill neither the network nor
//! the disk.

use std::time::Duration;

use super::{Assignment, Device, Observation, Settings};
use crate::id::{AssignmentId, ComponentName};
use crate::lifecycle::State;
use crate::moment::Moment;

/// Between two reports of one assignment that are made for nothing else. The first restart after a quiet time is told at once; what
/// goes on restarting becomes a failure before this is over, and that is told.
const TOLD_EVERY: Duration = Duration::from_secs(3600);

impl Device {
    /// Takes into what is told of an assignment what the last look saw, where that is not older than what was last done to it.
    pub(super) fn count_restarts(&mut self, id: AssignmentId) {
        let Some(assignment) = self.assignments.get(&id) else { return };
        let counted = self.restarts_untold(id, assignment);
        let Some(assignment) = self.assignments.get_mut(&id) else { return };
        for (component, restarts) in counted {
            if let Some(progress) = assignment.progress(&component) {
                progress.restarts = restarts;
            }
        }
    }

    /// A component was applied, so its containers are counted from the beginning; where they were left alone the next look says so.
    pub(super) fn started_anew(&mut self, id: AssignmentId, component: &ComponentName) {
        let progress = self.assignments.get_mut(&id).and_then(|assignment| assignment.progress(component));
        if let Some(progress) = progress {
            progress.restarts = 0;
        }
    }

    /// Makes reports where the last look saw other counts than were told, and it is time.
    pub(super) fn tell_restarts(&mut self, settings: &Settings, now: Moment) {
        for id in self.assignments.keys().copied().collect::<Vec<_>>() {
            if !self.work.in_flight.contains_key(&id) {
                self.tell_restarts_of(settings, id, now);
            }
        }
    }

    fn tell_restarts_of(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let assignment = &self.assignments[&id];
        let at_rest = matches!(assignment.state, State::Installed | State::Failed);
        // A time in the future: the clock was set back.
        let told_lately =
            assignment.restarts_told.is_some_and(|told| told <= now && now.since(told) < TOLD_EVERY);
        // What waits already would be overtaken by one more of the same; this count is told when that is.
        if !at_rest || told_lately || self.outbox.has(id) || self.restarts_untold(id, assignment).is_empty() {
            return;
        }
        self.report(settings, id, now);
        if let Some(assignment) = self.assignments.get_mut(&id) {
            assignment.restarts_told = Some(now);
        }
    }

    /// The components of what is held whose count is another than was told.
    fn restarts_untold(&self, id: AssignmentId, assignment: &Assignment) -> Vec<(ComponentName, u32)> {
        if assignment.worked_at >= self.work.seen_began {
            // It may have been started anew since it was seen.
            return vec![];
        }
        let told = |seen: &Observation| {
            let of = assignment.components.iter().find(|progress| progress.name == seen.component);
            of.map(|progress| progress.restarts)
        };
        let seen = self.work.seen.iter().filter(|seen| seen.assignment == id);
        let mut others = seen.filter(|seen| told(seen).is_some_and(|told| told != seen.restarts)).peekable();
        let Some(held) = assignment.held.filter(|_| others.peek().is_some()) else { return vec![] };
        // Of what ran before, or was changed by somebody, the count says nothing about what is held.
        let orders = self.orders(&held);
        let is_held = |seen: &&Observation| {
            orders.iter().any(|order| seen.fingerprint.is_some_and(|print| order.is(&seen.component, print)))
        };
        others.filter(is_held).map(|seen| (seen.component.clone(), seen.restarts)).collect()
    }
}
