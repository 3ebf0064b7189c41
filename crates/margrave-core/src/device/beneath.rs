//! What is here while nothing of something newer was touched: it goes on living as if that had never come.
//!
//! A change that was taken up and only fetched so far has replaced nothing: its window closed over it, its registry is away, or
//! it cannot be used here at all. The assignment's state speaks of that change. What runs is of the document before: it keeps a
//! state of its own beneath, and is looked after by the very code that looks after everything else, which is shown the one
//! beneath in place of the other for that moment. It fills the pauses of what is above and the time of its downloads, and ends
//! with its first touch.

use super::work::{Step, paused};
use super::{Action, Assignment, Device, Order, Settings};
use crate::id::AssignmentId;
use crate::lifecycle::State;
use crate::moment::Moment;

impl Assignment {
    /// What is here, where nothing of `held` was touched.
    pub fn beneath(&self) -> Option<&Assignment> {
        let lives = matches!(self.state, State::Installing | State::Updating | State::Failed);
        self.beneath.as_deref().filter(|_| lives && !self.is_touched())
    }

    /// Whether what is here is what is wanted, while something else was taken up in between.
    pub(super) fn comes_back(&self) -> bool {
        // That it is installed is only said when somebody saw that it is well.
        let rests = |here: &Assignment| match here.state {
            State::Installed => here.well.is_some(),
            state => state == State::Failed,
        };
        self.beneath().is_some_and(|here| rests(here) && here.held.is_some() && here.held == self.wanted)
    }

    /// What to look at and to mend: what is here.
    pub fn here(&self) -> &Assignment {
        self.beneath().unwrap_or(self)
    }

    /// What is here before something newer is taken up. What was taken up before that and never touched leaves nothing behind.
    pub(super) fn put_beneath(&mut self) -> Option<Box<Assignment>> {
        let before = self.beneath.take();
        if !self.is_touched() {
            return before;
        }
        self.ailment = None;
        let mut here = self.clone();
        // Nothing newer came.
        here.wanted = here.held;
        (here.waiting, here.awaited) = (None, None);
        (here.ahead, here.ready) = (None, None);
        Some(Box::new(here))
    }
}

impl Step {
    fn applies(&self) -> bool {
        matches!(self, Step::Do(action) if matches!(**action, Action::Apply(_)))
    }
}

impl Device {
    /// Does something with what is here in the place of what was taken up and never touched, where there is such a thing.
    pub(super) fn with_beneath(
        &mut self,
        settings: &Settings,
        id: AssignmentId,
        now: Moment,
        act: impl FnOnce(&mut Device),
    ) -> bool {
        let Some(place) = self.assignments.get_mut(&id).filter(|above| above.beneath().is_some()) else {
            return false;
        };
        let Some(here) = place.beneath.take() else { return false };
        let mut above = std::mem::replace(place, *here);
        self.work.lifted = Some(id);
        act(self);
        self.work.lifted = None;
        let place = self.assignments.get_mut(&id).expect("what is wanted does not go");
        // What proved itself meanwhile is what to go back to.
        above.good = place.good;
        // Nobody else tells that what runs is not well, or is again; that it is tried again is neither.
        let ailment = match place.state {
            State::Installed => None,
            _ => place.failure.clone().or(above.ailment.clone()),
        };
        let changed = above.ailment != ailment;
        above.ailment = ailment;
        let here = std::mem::replace(place, above);
        place.beneath = Some(Box::new(here));
        if changed {
            self.report(settings, id, now);
        }
        true
    }

    /// What runs is wanted again, and what was taken up meanwhile has changed nothing: it is as if that had never come.
    pub(super) fn come_back(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let leaves_drift = self.schedule.leaves_drift;
        let version = self.accepted.as_ref().map(|accepted| accepted.version);
        let Some(place) = self.assignments.get_mut(&id) else { return };
        let Some(here) = place.beneath.take() else { return };
        let (state, since, wanted) = (place.state, place.since, place.wanted);
        *place = *here;
        place.adopted_version = version.unwrap_or(place.adopted_version);
        place.want(wanted, leaves_drift, now);
        let next = std::mem::replace(&mut place.state, state);
        if next != state {
            return self.transition(settings, id, next, now);
        }
        place.since = since;
        self.report(settings, id, now);
    }

    /// Whether this is done for what is beneath. The same order may be of both: then it is for what is above as soon as that may
    /// do it.
    pub(super) fn is_beneath(&self, settings: &Settings, action: &Action, now: Moment) -> bool {
        let id = match action {
            Action::Prefetch(order) | Action::Apply(order) => order.assignment,
            Action::Remove { assignment, .. } => *assignment,
            _ => return false,
        };
        let is_it = |step: Step| matches!(step, Step::Do(next) if *next == *action);
        self.assignments.contains_key(&id)
            && is_it(self.step_beneath(settings, id, now))
            && !is_it(self.step_above(settings, id, now))
    }

    pub(super) fn began_beneath(&mut self, settings: &Settings, now: Moment, action: Action) {
        let (Action::Prefetch(Order { assignment: id, .. })
        | Action::Apply(Order { assignment: id, .. })
        | Action::Remove { assignment: id, .. }) = action
        else {
            return;
        };
        self.with_beneath(settings, id, now, |device| device.began_work(settings, now, action));
        self.work.beneath.insert(id);
    }

    /// Takes in what became of something, if it was done for what is beneath.
    pub(super) fn ended_beneath(
        &mut self,
        settings: &Settings,
        id: AssignmentId,
        now: Moment,
        act: impl FnOnce(&mut Device),
    ) -> bool {
        let was = self.work.beneath.remove(&id);
        if was && self.work.overruled.remove(&id) {
            // Dropped for what is newer: that says nothing about what is here.
            let ended = self.with_beneath(settings, id, now, |device| {
                device.worked(id);
            });
            if ended {
                return true;
            }
        }
        if was && !self.with_beneath(settings, id, now, act) {
            // What is above cannot be used here, as its download told, and is gone back from; nothing may stay under way for ever.
            self.work.in_flight.remove(&id);
        }
        was
    }

    /// Nothing of what is beneath is begun that would be overruled in the same moment.
    pub(super) fn step_aside(
        &self,
        settings: &Settings,
        id: AssignmentId,
        above: &Step,
        now: Moment,
    ) -> Step {
        if above.applies() { Step::Rest } else { self.step_beneath(settings, id, now) }
    }

    pub(super) fn step_beneath(&self, settings: &Settings, id: AssignmentId, now: Moment) -> Step {
        match self.assignments[&id].beneath() {
            None => Step::Rest,
            Some(here) => match paused(settings, here, now) {
                Some(next_try) => Step::Wait(next_try),
                None => set_aside(self.step_of(settings, id, here, None, now)),
            },
        }
    }

    /// Something newer still came while what is here is being mended: what is above starts over with it.
    pub(super) fn overtake_above(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let Some(above) = self.assignments.get(&id) else { return };
        let Some(here) = above.beneath().filter(|_| above.state != State::Failed) else { return };
        // What is here is wanted again, or is to go, once it is mended.
        if !above.on_aim() && above.goal().is_some_and(|goal| here.held != Some(goal)) {
            self.restart(settings, id, now);
        }
    }

    /// What is newer and has everything it needs does not wait until what it replaces is mended; nor does its removal.
    pub(super) fn overrule_beneath(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let above = self.assignments.get(&id).filter(|_| self.work.beneath.contains(&id));
        let goes_on = above.is_some_and(|above| {
            self.removal_is_due(settings, above, now) || self.step_above(settings, id, now).applies()
        });
        match goes_on {
            true => self.work.overruled.insert(id),
            false => self.work.overruled.remove(&id),
        };
    }
}

/// What is above may have the same component, and was fetched for it.
fn set_aside(step: Step) -> Step {
    match step {
        Step::Do(action) => Step::Do(Box::new(match *action {
            Action::Remove { assignment, component, .. } => {
                Action::Remove { assignment, component, aside: true }
            }
            action => action,
        })),
        step => step,
    }
}
