//! What is fetched from afar while other things are done.
//!
//! Fetching touches nothing that runs, and may take hours over a slow link. So it keeps nobody from mending what is here: an
//! assignment has one place for what is done to its containers, and this one beside it. What became of a download is told by
//! its order, because what is mended meanwhile may have a component of the same name.

use std::time::Duration;

use super::waiting::AHEAD_COUNT_MAX;
use super::work::Step;
use super::{Action, Assignment, Device, Order, Settings};
use crate::digest::Digest;
use crate::id::{AssignmentId, ComponentName};
use crate::lifecycle::State;
use crate::moment::Moment;
use crate::report::Failure;

/// How much of what was good is mended, gone back to or taken away beside the rest. What is new may hang for as long as its timeout
/// says, up to an hour, and must not keep an application down that ran well.
const RESCUE_COUNT_MAX: usize = 1;

/// What was good, touched or fetched ahead is on this device, unless somebody cleared the images away. Looking takes no longer
/// than this; what does is a download that nobody foresaw, and takes no place of anything else from then on.
pub(super) const FETCHED_HERE_WITHIN: Duration = Duration::from_secs(60);

/// Where there are so many of those, what else may have to be fetched is looked for one after the other.
const UNFORESEEN_MANY: usize = 4;

/// Something that is under way.
#[derive(Debug, Clone)]
pub(super) struct Download {
    order: Order,
    /// For a change that may not begin yet.
    ahead: bool,
}

impl Download {
    /// What is told of it is told by component and fingerprint: how to start it is left out there.
    fn is(&self, order: &Order) -> bool {
        self.order.is(&order.component, order.fingerprint())
    }
}

impl Device {
    /// Whether there is a place for one more. What takes hours takes no place of a repair, a removal or a way back.
    pub(super) fn has_place(&self, settings: &Settings, action: &Action, now: Moment) -> bool {
        // It began in a time to come: the clock was set back, and nobody knows how long ago that was.
        let is_unforeseen = |since: &&Moment| **since > now || now.since(**since) >= FETCHED_HERE_WITHIN;
        let unforeseen = self.work.fetching_since.values().filter(is_unforeseen).count();
        let looks = self.work.fetching_since.len() - unforeseen;
        let work = self.work.in_flight.len() - unforeseen;
        let ahead = self.work.downloads.values().filter(|download| download.ahead).count();
        let downloads = self.work.downloads.len() - ahead;
        match self.as_download(settings, action, now) {
            Some(Download { ahead: true, .. }) => {
                ahead < AHEAD_COUNT_MAX && work + downloads < settings.work_count_max
            }
            Some(_) => downloads < settings.work_count_max,
            None if matches!(action, Action::Prefetch(_)) && unforeseen >= UNFORESEEN_MANY && looks > 0 => {
                false
            }
            None => work < settings.work_count_max + usize::from(self.rescues(action)) * RESCUE_COUNT_MAX,
        }
    }

    /// Whether this mends what was good, goes back to it or replaces it while it is broken, or takes something away.
    fn rescues(&self, action: &Action) -> bool {
        let (Action::Prefetch(order) | Action::Apply(order)) = action else {
            return matches!(action, Action::Remove { .. });
        };
        let Some(assignment) = self.assignments.get(&order.assignment) else { return false };
        let is_good = assignment.good.is_some_and(|good| self.orders(&good).contains(order));
        is_good || assignment.beneath().is_some_and(|here| here.state != State::Installed)
    }

    /// Whether this fetches what may have to come from afar. What was touched, is good or was fetched ahead is here.
    fn is_download(&self, action: &Action) -> bool {
        let Action::Prefetch(order) = action else { return false };
        let Some(assignment) = self.assignments.get(&order.assignment) else { return false };
        let touched = assignment.held.filter(|_| assignment.is_touched());
        let beneath = assignment.beneath().and_then(|here| here.held);
        let here = [assignment.good, assignment.ready, touched, beneath].into_iter().flatten();
        !here.into_iter().any(|document| self.orders(&document).contains(order))
    }

    fn would_fetch_ahead(&self, settings: &Settings, action: &Action, now: Moment) -> bool {
        let Action::Prefetch(order) = action else { return false };
        let assignment = self.assignments.get(&order.assignment);
        assignment.is_some_and(|a| matches!(a.state, State::Pending | State::Installed | State::Failed))
            && self.begins_with(settings, order, now).is_none()
            && !self.is_beneath(settings, action, now)
    }

    /// What this would be under way as, if it is fetched while other things are done.
    pub(super) fn as_download(&self, settings: &Settings, action: &Action, now: Moment) -> Option<Download> {
        let Action::Prefetch(order) = action else { return None };
        // What is beneath is here.
        if self.work.lifted.is_some() {
            return None;
        }
        let ahead = self.would_fetch_ahead(settings, action, now);
        // While that is mended, what is above has no other place, also for what both have.
        let is_one = ahead || self.is_download(action) || self.work.beneath.contains(&order.assignment);
        is_one.then(|| Download { order: order.clone(), ahead })
    }

    /// The same step, if it may begin beside what is under way of this assignment: one download at a time, and while what is
    /// here is mended nothing but that.
    pub(super) fn beside(&self, settings: &Settings, id: AssignmentId, step: Step, now: Moment) -> Step {
        let Step::Do(action) = &step else { return step };
        let is_one = self.as_download(settings, action, now).is_some();
        let waits = self.work.downloads.get(&id).is_some_and(|download| {
            is_one || matches!(&**action, Action::Prefetch(order) if download.is(order))
        });
        let begins = match self.work.in_flight.contains_key(&id) {
            // What is not taken up yet is so once what is here is mended, or is that itself.
            true => is_one && self.assignments[&id].goal() == self.assignments[&id].held,
            false => true,
        };
        if begins && !waits { step } else { Step::Rest }
    }

    /// Whether something of this document is being fetched before it may begin.
    pub(super) fn is_coming(&self, id: AssignmentId, document: &Digest) -> bool {
        let download = self.work.downloads.get(&id).filter(|download| download.ahead);
        download.is_some_and(|download| self.orders(document).contains(&download.order))
    }

    pub(super) fn is_downloading(&self, order: &Order) -> bool {
        self.work.downloads.get(&order.assignment).is_some_and(|download| download.is(order))
    }

    /// Takes in what became of a download, if it was one.
    #[allow(clippy::too_many_arguments, reason = "an event's fields, spelled out")]
    pub(super) fn downloaded(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        id: AssignmentId,
        component: &ComponentName,
        fingerprint: Digest,
        result: &Result<(), Failure>,
    ) -> bool {
        let under_way = self.work.downloads.get(&id).map(|download| download.order.clone());
        let Some(order) = under_way.filter(|order| order.is(component, fingerprint)) else { return false };
        self.work.downloads.remove(&id);
        let Some(assignment) = self.assignments.get(&id) else { return true };
        let applying = matches!(assignment.state, State::Installing | State::Updating | State::RollingBack);
        let ordered = assignment.held.is_some_and(|held| self.orders(&held).contains(&order));
        let is_here = assignment.goal() == assignment.held && assignment.is_touched();
        if applying && ordered && assignment.on_aim() {
            self.fetched_held(settings, now, roll, id, component, result.clone());
        } else if !is_here {
            self.fetched_ahead(settings, now, roll, &order, result.clone());
        }
        true
    }

    /// Something of what is being applied is here, or could not be had.
    pub(super) fn fetched_held(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        id: AssignmentId,
        component: &ComponentName,
        result: Result<(), Failure>,
    ) {
        let Err(failure) = result else {
            if let Some(progress) = self.assignments.get_mut(&id).and_then(|a| a.progress(component)) {
                progress.fetched = true;
            }
            return;
        };
        let Assignment { state, strikes, touched, .. } = self.assignments[&id];
        // Something was touched in an earlier try, or before the device was started again: this one did not help either. Nor does
        // it lead anywhere where what is gone back to cannot be made use of, and everything of it is here: that must not go on
        // for ever.
        let counts = match state {
            State::RollingBack => strikes > 0 || !failure.code.is_pull(),
            _ => strikes > 0 || touched,
        };
        match counts {
            true => self.strike(settings, id, failure.of(component), now, roll),
            false => self.fail(settings, id, failure.of(component), now, roll),
        }
    }
}
