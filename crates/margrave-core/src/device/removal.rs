//! What has to go: a deployment that is no longer wanted, what its documents no longer have, and what nobody knows.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

use super::{Assignment, Device, Progress, Settings, backoff};
use crate::id::{AssignmentId, ComponentName};
use crate::lifecycle::{Reported, State};
use crate::moment::Moment;
use crate::report::Failure;

impl Device {
    /// Components of this assignment that may be there, in the order they were installed in. Where nothing was begun with, there
    /// is only what was seen.
    fn known_components(&self, id: AssignmentId, assignment: &Assignment) -> Vec<ComponentName> {
        let given_up = assignment.given_up.as_ref().map(|given_up| given_up.document);
        let beneath = assignment.beneath.as_ref().and_then(|here| here.held);
        let documents = [assignment.good, beneath, assignment.held, given_up].into_iter().flatten();
        let from_documents =
            documents.flat_map(|document| self.orders(&document)).map(|order| order.component);
        let from_progress = assignment.components.iter().map(|progress| progress.name.clone());
        let begun = from_documents.chain(from_progress).filter(|_| assignment.begun);
        let from_sight =
            self.work.seen.iter().filter(|seen| seen.assignment == id).map(|seen| seen.component.clone());
        let mut known = BTreeSet::new();
        let all = begun.chain(from_sight);
        all.filter(|component| known.insert(component.clone())).collect()
    }

    /// Still to be removed; the last one goes first (DM-182).
    pub(super) fn to_remove(&self, id: AssignmentId, assignment: &Assignment) -> Vec<ComponentName> {
        let known = self.known_components(id, assignment).into_iter();
        known.filter(|component| !assignment.cleared.contains(component)).collect()
    }

    /// One that cannot be removed does not keep the others running.
    pub(super) fn next_to_remove(&self, id: AssignmentId) -> Option<ComponentName> {
        let assignment = &self.assignments[&id];
        let stuck = &assignment.stuck;
        self.to_remove(id, assignment).into_iter().rfind(|component| !stuck.contains(component))
    }

    /// Still to be removed because the document that is being applied no longer has it.
    pub(super) fn leftovers(&self, id: AssignmentId, assignment: &Assignment) -> Vec<ComponentName> {
        let current = &assignment.components;
        let gone = |component: &ComponentName| !current.iter().any(|progress| &progress.name == component);
        self.to_remove(id, assignment).into_iter().filter(gone).collect()
    }

    /// A component that runs under an installed assignment without being in its document: what an
    /// overtaken document left behind, or somebody added.
    pub(super) fn extra(&self, id: AssignmentId, assignment: &Assignment) -> Option<ComponentName> {
        let current = &assignment.components;
        let mut seen = self.work.seen.iter().filter(|seen| seen.assignment == id).map(|seen| &seen.component);
        seen.rfind(|component| !current.iter().any(|progress| &progress.name == *component)).cloned()
    }

    /// What runs of ours without being in the manifest is removed: the manifest says everything. That is a change, which
    /// waits like any other; what is still there is seen again.
    pub(super) fn remove_orphans(&mut self, settings: &Settings, now: Moment) {
        if self.barred(settings, now).is_some() {
            return;
        }
        let Some(version) = self.accepted.as_ref().map(|accepted| accepted.version) else { return };
        let orphans: BTreeSet<AssignmentId> = self.work.seen.iter().map(|seen| seen.assignment).collect();
        for id in orphans {
            if let Entry::Vacant(place) = self.assignments.entry(id) {
                let orphan = place.insert(Assignment::new(None, version, now));
                // What was seen is forgotten with the process, and no document names it: after a restart nobody would know
                // that there is anything to remove.
                orphan.begun = true;
                let seen = self.work.seen.iter().filter(|seen| seen.assignment == id);
                orphan.components = seen.map(|seen| Progress::removing(&seen.component)).collect();
                self.begin_removal(settings, id, now);
            }
        }
    }

    /// Whether what is no longer in the manifest may go now. Until then it stays as it is, and may come back.
    pub(super) fn removal_is_due(&self, settings: &Settings, assignment: &Assignment, now: Moment) -> bool {
        assignment.wanted.is_none()
            && !matches!(assignment.state, State::Deleting | State::Deleted)
            && self.barred(settings, now).is_none()
    }

    pub(super) fn begin_removal(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let accepted = self.accepted.as_ref().map(|accepted| accepted.version);
        let assignment = self.assignments.get_mut(&id).expect("only known assignments are removed");
        // That it goes is what this manifest says. It may have gone and come back in others that were never seen here, and
        // its end must not be taken for the end of that life.
        assignment.adopted_version = accepted.unwrap_or(assignment.adopted_version);
        assignment.next_try = None;
        assignment.attempt = 0;
        assignment.failure = None;
        assignment.cleared.clear();
        assignment.stuck.clear();
        for progress in &mut assignment.components {
            progress.state = Reported::Removing;
            progress.failure = None;
        }
        self.transition(settings, id, State::Deleting, now);
    }

    pub(super) fn removed(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        id: AssignmentId,
        component: ComponentName,
        result: Result<(), Failure>,
    ) {
        if self.ended_beneath(settings, id, now, |device| {
            device.removed(settings, now, roll, id, component.clone(), result.clone())
        }) {
            return;
        }
        self.work.in_flight.remove(&id);
        let tick = self.tick;
        if result.is_ok() {
            self.work.removed.insert((id, component.clone()), tick);
        }
        let Some(assignment) = self.assignments.get_mut(&id) else { return };
        assignment.worked_at = tick;
        let installed = assignment.state == State::Installed;
        match result {
            Ok(()) => {
                self.work.seen.retain(|seen| !(seen.assignment == id && seen.component == component));
                if let Some(progress) = assignment.progress(&component) {
                    progress.state = Reported::Removed;
                    progress.failure = None;
                }
                assignment.stray = installed.then(|| (component.clone(), None));
                assignment.cleared.insert(component);
                assignment.next_try = None;
                if assignment.stuck.is_empty() {
                    assignment.failure = None;
                } else {
                    self.pause_removal(settings, id, now, roll);
                }
            }
            Err(failure) if installed => {
                // What should run does run; the rest can wait, and is told.
                assignment.next_try = Some(now.after(settings.retry_delay_max));
                assignment.stray = Some((component, Some(failure)));
            }
            Err(failure) if assignment.state == State::Deleting => {
                // Still being removed; says why it takes so long, and tries again.
                if let Some(progress) = assignment.progress(&component) {
                    progress.failure = Some(failure.clone());
                }
                assignment.stuck.insert(component.clone());
                assignment.failure = Some(failure.of(&component));
                self.pause_removal(settings, id, now, roll);
                self.report(settings, id, now);
            }
            // What holds up the way back counts there, so that it comes to an end.
            Err(failure) if assignment.state == State::RollingBack => {
                self.strike(settings, id, failure.of(&component), now, roll)
            }
            Err(failure) => self.fail(settings, id, failure.of(&component), now, roll),
        }
        if installed {
            self.report(settings, id, now);
        }
    }

    /// Waits before it tries again what could not be removed, once the others were tried.
    fn pause_removal(&mut self, settings: &Settings, id: AssignmentId, now: Moment, roll: f64) {
        if self.next_to_remove(id).is_some() {
            return;
        }
        self.goes_last(id);
        let Some(assignment) = self.assignments.get_mut(&id) else { return };
        assignment.stuck.clear();
        assignment.attempt += 1;
        let pause = backoff(settings.retry_delay, settings.retry_delay_max, assignment.attempt - 1, roll);
        assignment.next_try = Some(now.after(pause));
    }
}
