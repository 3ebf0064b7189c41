//! Towards the runtime: what to look at, fetch, apply and remove next.

use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Digest;
use crate::id::{AssignmentId, ComponentName};
use crate::lifecycle::{Reported, State};
use crate::moment::Moment;
use crate::report::{Failure, FailureCode};
use crate::schedule::Gate;

use super::blind::Sight;
use super::download::{Download, FETCHED_HERE_WITHIN};
use super::waiting::Waiting;
use super::{Action, Assignment, Device, Observation, Order, Progress, Settings};

/// Impressions of the runtime; a restart looks again.
#[derive(Debug, Clone, Default)]
pub(super) struct Work {
    pub(super) in_flight: BTreeMap<AssignmentId, Action>,
    /// Since when something is fetched in such a place, because it should be here.
    pub(super) fetching_since: BTreeMap<AssignmentId, Moment>,
    /// What is fetched beside that.
    pub(super) downloads: BTreeMap<AssignmentId, Download>,
    /// Where that is done for what is beneath.
    pub(super) beneath: BTreeSet<AssignmentId>,
    /// Where what is above could go on if that were not under way.
    pub(super) overruled: BTreeSet<AssignmentId>,
    /// What is beneath is in the place of what is above.
    pub(super) lifted: Option<AssignmentId>,
    /// What was begun with in a try that has not come to its end: half a switch waits for nobody.
    pub(super) amid: BTreeSet<AssignmentId>,
    /// The tick at which something last failed.
    pub(super) failed: BTreeMap<AssignmentId, u64>,
    /// The tick and the moment at which the look that is under way began.
    pub(super) observing: Option<(u64, Moment)>,
    /// The last look took longer than anybody can be called watching.
    pub(super) slow: bool,
    /// When components were removed, in ticks: a look that began earlier may still have found them.
    pub(super) removed: BTreeMap<(AssignmentId, ComponentName), u64>,
    pub(super) observe_next: Moment,
    /// The tick at which an operator asked for a look.
    pub(super) look_asked: u64,
    pub(super) observe_failures: u32,
    pub(super) seen: Vec<Observation>,
    /// The tick at which the look that saw this began.
    pub(super) seen_began: u64,
    pub(super) seen_at: Option<Moment>,
    pub(super) trouble: Option<Failure>,
    pub(super) sight: Sight,
    /// Since when the clock is known not to be set, by that clock.
    pub(super) clock_unset_since: Option<Moment>,
}

/// How often a device may go down while it starts something before that counts as failed: a power cut is nobody's fault.
pub(super) const FALLS_MAX: u32 = 4;

/// So many times the regular pause is the longest, where looking fails.
pub(super) const OBSERVE_LATER: u32 = 4;

/// When what failed may be tried again, if that is not yet.
pub(super) fn paused(settings: &Settings, assignment: &Assignment, now: Moment) -> Option<Moment> {
    // Further away than any pause we make: the clock jumped back, perhaps to 1970.
    let is_pause = |next_try: &Moment| now < *next_try && next_try.since(now) <= settings.retry_delay_max;
    assignment.next_try.filter(is_pause)
}

/// Whether something newer is to come that may have the same component, and was fetched for it.
fn awaits_newer(assignment: &Assignment) -> bool {
    assignment.goal() != assignment.held
}

/// What an assignment's next step is, if it has one now.
pub(super) enum Step {
    Do(Box<Action>),
    /// Nothing before this moment.
    Wait(Moment),
    Rest,
}

impl Device {
    pub(super) fn next_work(&self, settings: &Settings, now: Moment) -> Option<Action> {
        if self.observe_due(settings, now) {
            return Some(Action::Observe);
        }
        // Removals first: they free what others may be waiting for.
        let removals = |id: &&AssignmentId| self.assignments[*id].state == State::Deleting;
        let (mut first, mut then): (Vec<&AssignmentId>, Vec<&AssignmentId>) =
            self.assignments.keys().partition(removals);
        first.sort_by_key(|id| self.turn(id));
        then.sort_by_key(|id| self.turn(id));
        let steps = first.into_iter().chain(then).flat_map(|id| self.steps(settings, *id, now));
        steps.into_iter().find_map(|step| match step {
            Step::Do(action) => Some(*action).filter(|action| self.has_place(settings, action, now)),
            Step::Wait(_) | Step::Rest => None,
        })
    }

    /// Those that could go on if there were a place for them, once there is nothing more to begin.
    pub fn crowded_out(&self, settings: &Settings, now: Moment) -> BTreeSet<AssignmentId> {
        let waits = |id: &&AssignmentId| {
            self.steps(settings, **id, now).into_iter().any(|step| matches!(step, Step::Do(_)))
        };
        self.assignments.keys().filter(waits).copied().collect()
    }

    /// Who goes first where places are few. What failed goes behind everybody who waited meanwhile, or a few that are broken would
    /// keep the others waiting for as long as they are tried.
    fn turn(&self, id: &AssignmentId) -> (bool, u64) {
        let is_amid = self.work.amid.contains(id);
        (!is_amid, self.work.failed.get(id).copied().unwrap_or_default())
    }

    /// A try came to its end, and not well.
    pub(super) fn goes_last(&mut self, id: AssignmentId) {
        self.work.amid.remove(&id);
        self.work.failed.insert(id, self.tick);
    }

    pub(super) fn wake_work(&self, settings: &Settings, now: Moment) -> Option<Moment> {
        let observe =
            (self.work.observing.is_none() && !self.assignments.is_empty()).then_some(self.work.observe_next);
        let steps = self.assignments.keys().flat_map(|id| self.steps(settings, *id, now));
        let waits = steps.filter_map(|step| match step {
            Step::Wait(until) => Some(until),
            Step::Do(_) | Step::Rest => None,
        });
        let room = self.work.fetching_since.values().map(|since| since.after(FETCHED_HERE_WITHIN));
        observe.into_iter().chain(waits).chain(room).filter(|until| *until > now).min()
    }

    /// Nobody looks before there is a verified desired state to compare with: a device never guesses.
    fn observe_due(&self, settings: &Settings, now: Moment) -> bool {
        let due = now >= self.work.observe_next
            // A clock that jumped back must not blind the device.
            || self.work.observe_next.since(now) > settings.observe_every * OBSERVE_LATER
            // The window may be over before the next look. What is under way is heard of by itself.
            || self.assignments.iter().any(|(id, held)| {
                !self.work.in_flight.contains_key(id) && self.removal_is_due(settings, held, now)
            });
        self.accepted.is_some() && self.work.observing.is_none() && due
    }

    /// What is above goes first; what is beneath fills its pauses, and the time in which it waits for a place to download.
    fn steps(&self, settings: &Settings, id: AssignmentId, now: Moment) -> [Step; 2] {
        match self.work.in_flight.contains_key(&id) {
            // What is above is fetched while what is beneath is mended.
            true if self.work.beneath.contains(&id) => {
                [self.beside(settings, id, self.step_above(settings, id, now), now), Step::Rest]
            }
            true => [Step::Rest, Step::Rest],
            false => {
                let above = self.step_above(settings, id, now);
                let beneath = self.step_aside(settings, id, &above, now);
                [above, beneath].map(|step| self.beside(settings, id, step, now))
            }
        }
    }

    pub(super) fn step_above(&self, settings: &Settings, id: AssignmentId, now: Moment) -> Step {
        self.step_of(settings, id, &self.assignments[&id], self.waiting(settings, id, now), now)
    }

    pub(super) fn step_of(
        &self,
        settings: &Settings,
        id: AssignmentId,
        assignment: &Assignment,
        waiting: Option<Waiting>,
        now: Moment,
    ) -> Step {
        match assignment.state {
            State::Deleted => Step::Rest,
            State::Deleting => match (paused(settings, assignment, now), self.next_to_remove(id)) {
                (Some(next_try), _) => Step::Wait(next_try),
                (None, Some(component)) => {
                    Step::Do(Box::new(Action::Remove { assignment: id, component, aside: false }))
                }
                (None, None) => Step::Rest,
            },
            State::Pending | State::Installed | State::Failed => match waiting {
                Some(waiting) => self.step_waiting(settings, id, &waiting, now),
                None if assignment.goal() == assignment.held => self.step_held(settings, id, assignment, now),
                None => self.step_taking_up(assignment.goal()),
            },
            State::RollingBack
                if let Some(next_try) = paused(settings, assignment, now)
                    && (waiting.is_some() || assignment.goal() == assignment.held) =>
            {
                let opens = waiting.and_then(|waiting| waiting.until());
                Step::Wait(opens.map_or(next_try, |opens| opens.min(next_try)))
            }
            State::Installing | State::Updating | State::RollingBack => match waiting {
                // Nothing was touched yet, also of what nobody wants any more.
                Some(waiting) if assignment.goal() == assignment.held || !assignment.is_touched() => {
                    waiting.until().map_or(Step::Rest, Step::Wait)
                }
                // Something else is wanted meanwhile; the state starts over with it.
                None if assignment.goal() != assignment.held => self.step_taking_up(assignment.goal()),
                _ => self.step_applying(settings, id, assignment, now),
            },
        }
    }

    /// Taking up a document starts from its first component.
    fn step_taking_up(&self, document: Option<Digest>) -> Step {
        let first = document.and_then(|document| self.orders(&document).into_iter().next());
        first.map_or(Step::Rest, |order| Step::Do(Box::new(Action::Prefetch(order))))
    }

    /// What is here is looked after, also while something else is to come.
    fn step_held(&self, settings: &Settings, id: AssignmentId, assignment: &Assignment, now: Moment) -> Step {
        if let Some(next_try) = paused(settings, assignment, now) {
            return Step::Wait(next_try);
        }
        match assignment.state {
            State::Installed => match self.extra(id, assignment).filter(|_| self.repairs()) {
                Some(component) => {
                    // It may be what the way back needs.
                    let aside = awaits_newer(assignment) || assignment.good != assignment.held;
                    Step::Do(Box::new(Action::Remove { assignment: id, component, aside }))
                }
                None => Step::Rest,
            },
            // It looks well, and the next look decides whether that is to be believed.
            State::Failed if assignment.next_try.is_none() || assignment.well.is_some() => Step::Rest,
            State::Failed => match self.pull_waits_until(settings, assignment, now) {
                Some(opens) => Step::Wait(opens),
                None => self.step_taking_up(assignment.held),
            },
            _ => Step::Rest,
        }
    }

    /// A change waits: what is here is looked after, and what is to come is fetched.
    fn step_waiting(&self, settings: &Settings, id: AssignmentId, waiting: &Waiting, now: Moment) -> Step {
        let assignment = &self.assignments[&id];
        // What is to go and was never touched is not worth another try.
        let cares = assignment.wanted.is_some() || assignment.is_touched();
        let held = match assignment.held.filter(|_| cares) {
            Some(_) => self.step_held(settings, id, assignment, now),
            None => Step::Rest,
        };
        let own = match held {
            Step::Do(_) => return held,
            Step::Wait(until) => Some(until),
            Step::Rest => None,
        };
        match self.ahead(settings, id, now) {
            Ok(order) => Step::Do(Box::new(Action::Prefetch(order))),
            Err(next) => {
                [own, next, waiting.until()].into_iter().flatten().min().map_or(Step::Rest, Step::Wait)
            }
        }
    }

    /// Everything is fetched before anything is switched, so that the gap in service is short; then the
    /// components in order, then what the new document no longer has.
    fn step_applying(
        &self,
        settings: &Settings,
        id: AssignmentId,
        assignment: &Assignment,
        now: Moment,
    ) -> Step {
        let Some(held) = assignment.held else { return Step::Rest };
        let orders = self.orders(&held);
        if orders.is_empty() {
            // Its document is lost, and comes again or is given up; until then nobody knows what is left over.
            return Step::Rest;
        }
        let next = |wanted: &dyn Fn(&super::Progress) -> bool| {
            let component = assignment.components.iter().find(|progress| wanted(progress))?;
            orders.iter().find(|order| order.component == component.name).cloned()
        };
        if let Some(order) = next(&|progress| progress.state != Reported::Installed && !progress.fetched) {
            return match self.network(settings, now) {
                // Nothing was touched yet, and nobody can be reached.
                Gate::Closed(Some(opens)) if !assignment.is_touched() && assignment.ready != Some(held) => {
                    Step::Wait(opens)
                }
                _ => Step::Do(Box::new(Action::Prefetch(order))),
            };
        }
        // What only the failed update had may hold what the good one needs.
        let clears_first = assignment.state == State::RollingBack;
        // What that is may be known by sight alone, and a look that does not succeed is not waited for.
        let is_looking = self.work.seen_at.is_none() && self.work.observe_failures == 0;
        if clears_first && is_looking {
            return Step::Rest;
        }
        if clears_first && let Some(component) = self.leftovers(id, assignment).pop() {
            let aside = awaits_newer(assignment);
            return Step::Do(Box::new(Action::Remove { assignment: id, component, aside }));
        }
        if let Some(order) = next(&|progress| progress.state != Reported::Installed) {
            return Step::Do(Box::new(Action::Apply(order)));
        }
        match self.leftovers(id, assignment).pop() {
            Some(component) => Step::Do(Box::new(Action::Remove { assignment: id, component, aside: true })),
            None => Step::Rest,
        }
    }

    pub(super) fn orders(&self, document: &Digest) -> Vec<Order> {
        match self.readings.get(document) {
            Some(Ok(workload)) => Order::of(workload),
            _ => vec![],
        }
    }

    /// Whether an action that is under way is no longer wanted; the agent may drop it.
    pub fn obsolete(&self, action: &Action) -> bool {
        // What is to go and has to wait for that is looked after meanwhile.
        let unwanted = |order: &Order, otherwise: &dyn Fn(&Assignment) -> bool| {
            let assignment = self.assignments.get(&order.assignment);
            if matches!(action, Action::Prefetch(_)) && self.is_downloading(order)
                || !self.work.beneath.contains(&order.assignment)
            {
                return assignment.is_none_or(otherwise);
            }
            let is_overruled = self.work.overruled.contains(&order.assignment);
            is_overruled || assignment.map(Assignment::here).is_none_or(otherwise)
        };
        match action {
            Action::Apply(order) => unwanted(order, &|assignment| !assignment.on_aim()),
            // It may be fetched ahead.
            Action::Prefetch(order) => unwanted(order, &|assignment| {
                let documents = [assignment.goal(), assignment.aim()].into_iter().flatten();
                !documents.flat_map(|document| self.orders(&document)).any(|known| known == *order)
            }),
            _ => false,
        }
    }

    pub(super) fn began(&mut self, settings: &Settings, now: Moment, action: Action) {
        self.began_upstream(now, &action);
        if self.is_beneath(settings, &action, now) {
            self.began_beneath(settings, now, action);
        } else {
            self.began_work(settings, now, action);
        }
    }

    pub(super) fn began_work(&mut self, settings: &Settings, now: Moment, action: Action) {
        match &action {
            Action::Observe => self.work.observing = Some((self.tick, now)),
            Action::Prefetch(order) | Action::Apply(order) => {
                let id = order.assignment;
                let download = self.as_download(settings, &action, now);
                if let Some(document) = self.begins_with(settings, order, now) {
                    self.take_up_if_due(settings, id, document, now);
                }
                if matches!(action, Action::Apply(_)) {
                    self.work.amid.insert(id);
                    if let Some(assignment) = self.assignments.get_mut(&id) {
                        assignment.applying = true;
                        assignment.begun = true;
                        assignment.touched_first = !std::mem::replace(&mut assignment.touched, true);
                    }
                    let component = order.component.clone();
                    let progress = self.assignments.get_mut(&id).and_then(|a| a.progress(&component));
                    if let Some(progress) = progress
                        && progress.state != Reported::Installing
                    {
                        progress.state = Reported::Installing;
                        progress.failure = None;
                        self.report(settings, id, now);
                    }
                }
                match download {
                    Some(download) => drop(self.work.downloads.insert(id, download)),
                    None => {
                        if matches!(action, Action::Prefetch(_)) {
                            self.work.fetching_since.insert(id, now);
                        }
                        self.work.in_flight.insert(id, action);
                    }
                }
            }
            Action::Remove { assignment, .. } => {
                self.work.in_flight.insert(*assignment, action);
            }
            Action::SendCapabilities | Action::Poll { .. } | Action::Fetch(_) | Action::Send(_) => {}
        }
    }

    /// Moves a waiting, installed or failed assignment to work on the wanted document. The attempt is
    /// counted here, before the act, so that a device that dies in every attempt still counts them.
    fn take_up_if_due(&mut self, settings: &Settings, id: AssignmentId, aim: Digest, now: Moment) {
        let Some(assignment) = self.assignments.get(&id) else { return };
        let retries = assignment.held == Some(aim) && assignment.goal() != Some(aim);
        // What is tried again while something newer waits was adopted when it was.
        let version = match retries {
            true => assignment.adopted_version,
            false => self.accepted.as_ref().map_or(1, |accepted| accepted.version),
        };
        let next = match assignment.state {
            State::Pending => State::Installing,
            State::Installed => State::Updating,
            State::Failed if assignment.good.is_some_and(|good| good != aim) => State::Updating,
            State::Failed => State::Installing,
            _ => return,
        };
        let components: Vec<ComponentName> =
            self.orders(&aim).into_iter().map(|order| order.component).collect();
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        if assignment.state == State::Installed && assignment.well.is_some() {
            // It was well when it was replaced.
            assignment.good = assignment.held;
        }
        assignment.take_up(aim, version, &components);
        assignment.attempt += 1;
        if !retries {
            assignment.waiting = None;
            assignment.awaited = None;
            assignment.ahead = None;
        }
        self.transition(settings, id, next, now);
    }

    /// The document that fetching this begins, if it does not only fetch ahead.
    pub(super) fn begins_with(&self, settings: &Settings, order: &Order, now: Moment) -> Option<Digest> {
        let id = order.assignment;
        let assignment = self.assignments.get(&id)?;
        let is_of = |document: &Digest| self.orders(document).contains(order);
        let due = assignment.next_try.is_some() && paused(settings, assignment, now).is_none();
        let failed = assignment.state == State::Failed && assignment.well.is_none();
        let again = assignment.held.filter(|held| failed && due && is_of(held));
        match self.waiting(settings, id, now) {
            Some(_) => again,
            None => assignment.goal(),
        }
    }

    /// The process began, in this life of the machine. One that ended in the middle of something tells nothing; a
    /// machine that did may have died of it.
    pub(super) fn booted(&mut self, boot: String, now: Moment) {
        let before = self.boot.replace(boot);
        let went_down = before != self.boot;
        if went_down {
            self.settle_clock_from(now);
        }
        if went_down && before.is_some() {
            self.outbox.skip_numbers();
        }
        let fall = |assignment: &mut Assignment| {
            let applied = std::mem::take(&mut assignment.applying);
            let unproven = assignment.state == State::Installed && assignment.good != assignment.held;
            let is_under_way =
                matches!(assignment.state, State::Installing | State::Updating | State::RollingBack);
            assignment.falls += u32::from((applied || unproven) && went_down);
            if !went_down {
                return;
            }
            assignment.fell = is_under_way || assignment.state == State::Installed;
            if is_under_way {
                // What was up need not have come back with the machine; applied once more it is left as it is, or started.
                let done = |progress: &&mut Progress| progress.state == Reported::Installed;
                assignment.components.iter_mut().filter(done).for_each(|p| p.state = Reported::Pending);
            }
        };
        for assignment in self.assignments.values_mut() {
            fall(assignment);
            assignment.beneath.as_deref_mut().into_iter().for_each(fall);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "an event's fields, spelled out")]
    pub(super) fn prefetched(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        id: AssignmentId,
        component: ComponentName,
        fingerprint: Digest,
        result: Result<(), Failure>,
    ) {
        if self.downloaded(settings, now, roll, id, &component, fingerprint, &result)
            || self.ended_beneath(settings, id, now, |device| {
                device.prefetched(settings, now, roll, id, component.clone(), fingerprint, result.clone())
            })
        {
            return;
        }
        if self.worked(id) && self.is_ordered(id, &component, fingerprint) {
            self.fetched_held(settings, now, roll, id, &component, result);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "an event's fields, spelled out")]
    pub(super) fn applied(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        id: AssignmentId,
        component: ComponentName,
        fingerprint: Digest,
        result: Result<(), Failure>,
    ) {
        if self.ended_beneath(settings, id, now, |device| {
            device.applied(settings, now, roll, id, component.clone(), fingerprint, result.clone())
        }) {
            return;
        }
        if !self.worked(id) || !self.is_ordered(id, &component, fingerprint) {
            return;
        }
        self.started_anew(id, &component);
        match result {
            Ok(()) => {
                let assignment = self.assignments.get_mut(&id).expect("worked() knows it");
                if let Some(progress) = assignment.progress(&component) {
                    progress.state = Reported::Installed;
                    progress.failure = None;
                }
                let more = assignment.components.iter().any(|progress| progress.state != Reported::Installed);
                if more {
                    self.report(settings, id, now);
                }
            }
            Err(failure) => self.strike(settings, id, failure.of(&component), now, roll),
        }
    }

    /// Whether what is worked on still has this order.
    fn is_ordered(&self, id: AssignmentId, component: &ComponentName, fingerprint: Digest) -> bool {
        let held = self.assignments.get(&id).and_then(|assignment| assignment.held);
        let orders = held.map(|held| self.orders(&held)).unwrap_or_default();
        orders.iter().any(|order| order.is(component, fingerprint))
    }

    /// Notes that work on an assignment ended; false when its result no longer matters.
    pub(super) fn worked(&mut self, id: AssignmentId) -> bool {
        self.work.in_flight.remove(&id);
        let tick = self.tick;
        let Some(assignment) = self.assignments.get_mut(&id) else { return false };
        assignment.worked_at = tick;
        assignment.applying = false;
        if assignment.is_touched() {
            assignment.beneath = None;
        }
        let applying = matches!(assignment.state, State::Installing | State::Updating | State::RollingBack);
        applying && assignment.on_aim()
    }

    /// Moves that need no action, only that their condition holds; and forgetting what is over.
    pub(super) fn settle(&mut self, settings: &Settings, now: Moment) {
        for id in self.assignments.keys().copied().collect::<Vec<_>>() {
            // Whether what is to come may begin decides what is worked on, and what became of that may decide anew.
            self.note_waiting(settings, id, now);
            if self.work.beneath.contains(&id) {
                self.overtake_above(settings, id, now);
                self.note_waiting(settings, id, now);
            } else if !self.work.in_flight.contains_key(&id) {
                self.settle_assignment(settings, id, now);
                self.with_beneath(settings, id, now, |device| device.settle_assignment(settings, id, now));
                self.note_waiting(settings, id, now);
            }
            self.overrule_beneath(settings, id, now);
            // What is not needed is swept away, and would have to be fetched again.
            if let Some(assignment) = self.assignments.get_mut(&id)
                && !assignment.documents().contains(&assignment.ready)
            {
                assignment.ready = None;
            }
        }
        self.tend_holds(now);
        self.tend_settling(now);
        let needed = self.documents();
        self.readings.retain(|digest, _| needed.contains(digest));
        let fetching = |action: Option<&Action>| matches!(action, Some(Action::Prefetch(_)));
        self.work.fetching_since.retain(|id, _| fetching(self.work.in_flight.get(id)));
        self.work.failed.retain(|id, _| self.assignments.contains_key(id));
        self.work.amid.retain(|id| self.assignments.contains_key(id));
    }

    fn settle_assignment(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let assignment = &self.assignments[&id];
        match assignment.state {
            State::Deleting if self.to_remove(id, assignment).is_empty() => {
                let assignment = self.assignments.get_mut(&id).expect("looked up above");
                assignment.failure = None;
                assignment.next_try = None;
                for progress in &mut assignment.components {
                    progress.state = Reported::Removed;
                    progress.failure = None;
                }
                self.transition(settings, id, State::Deleted, now);
                self.settle_assignment(settings, id, now);
            }
            State::Deleted => match assignment.wanted {
                // It came back while it went: a new life, from the beginning.
                Some(wanted) => {
                    let version = self.accepted.as_ref().map_or(1, |accepted| accepted.version);
                    self.assignments.insert(id, Assignment::new(Some(wanted), version, now));
                    self.report(settings, id, now);
                }
                None if !self.outbox.has(id) => {
                    self.assignments.remove(&id);
                }
                None => {}
            },
            _ if self.removal_is_due(settings, assignment, now) => self.begin_removal(settings, id, now),
            _ if assignment.comes_back() => self.come_back(settings, id, now),
            State::Pending | State::Installed | State::Failed
                if let Some(wanted) = assignment.goal()
                    && assignment.held != Some(wanted)
                    && let Some(Err(failure)) = self.readings.get(&wanted) =>
            {
                let failure = failure.clone();
                self.refuse(settings, id, wanted, failure, now);
            }
            // Given up by an agent that understood less, or by a device that had less.
            State::Installed | State::Failed
                if let Some(given_up) = assignment.gave_up()
                    && given_up.refused
                    && self.is_readable(Some(given_up.document)) =>
            {
                self.assignments.get_mut(&id).expect("looked up above").given_up = None;
            }
            // An agent of another version may understand less than the one that began with this.
            State::Installed if let Some(failure) = self.misread(assignment) => {
                let message = format!("Nobody looks after what runs: {}", failure.message);
                self.leave(settings, id, Failure::new(FailureCode::Unhealthy, message), now);
            }
            State::Installing | State::Updating if let Some(failure) = self.misread(assignment) => {
                self.fail(settings, id, failure, now, 0.0);
                // It is tried by the first that understands it again.
                let assignment = self.assignments.get_mut(&id).expect("looked up above");
                if assignment.state == State::Failed {
                    assignment.next_try = Some(now);
                    self.report(settings, id, now);
                }
            }
            State::Failed
                if assignment.next_try.is_some()
                    && let Some(failure) = self.misread(assignment)
                    && (assignment.failure.as_ref() != Some(&failure) || self.has_way_back(id)) =>
            {
                if self.has_way_back(id) {
                    return self.go_back(settings, id, failure, now);
                }
                self.assignments.get_mut(&id).expect("looked up above").failure = Some(failure);
                self.report(settings, id, now);
            }
            // There is something newer to do than to go back, and the way there leads over here.
            State::RollingBack if !assignment.on_aim() => self.leave_way_back(settings, id, now),
            // It may have died of what is installed and has not proved itself yet.
            State::Installed if self.has_read && assignment.falls >= FALLS_MAX => {
                self.fell(settings, id, now);
            }
            State::RollingBack if self.has_read && !self.is_readable(assignment.held) => {
                let message = "The last good version's document is not on this device any more.";
                self.fail(settings, id, Failure::new(FailureCode::DocumentInvalid, message), now, 0.0);
            }
            State::Installing | State::Updating if self.has_read && self.is_orphaned(assignment) => {
                let message = "The document of the version that is tried is not on this device any more.";
                self.fail(settings, id, Failure::new(FailureCode::DocumentInvalid, message), now, 0.0);
            }
            State::Failed
                if self.has_read
                    && assignment.next_try.is_some()
                    && self.is_orphaned(assignment)
                    && self.has_way_back(id) =>
            {
                let message = "The document of the version that is tried is not on this device any more.";
                let failure = Failure::new(FailureCode::DocumentInvalid, message);
                self.go_back(settings, id, failure, now);
            }
            // Refused by an agent that understood less, or by a device that had less.
            State::Failed
                if assignment.next_try.is_none()
                    && assignment.held == assignment.goal()
                    && assignment.components.is_empty()
                    && assignment.failure.as_ref().is_some_and(|failure| failure.code.is_refusal())
                    && self.is_readable(assignment.held) =>
            {
                self.assignments.get_mut(&id).expect("looked up above").next_try = Some(now);
            }
            // Failed under an agent that knew no way back.
            State::Failed if self.has_read && assignment.next_try.is_none() => {
                if let Some(failure) = assignment.failure.clone()
                    && self.gives_up(id, &failure)
                {
                    self.go_back(settings, id, failure, now);
                }
            }
            State::Installing | State::Updating | State::RollingBack => {
                if !assignment.on_aim() {
                    self.restart(settings, id, now);
                } else if self.has_read && assignment.falls >= FALLS_MAX {
                    self.fell(settings, id, now);
                } else {
                    let done =
                        assignment.components.iter().all(|progress| progress.state == Reported::Installed);
                    if done && self.leftovers(id, assignment).is_empty() {
                        self.complete(settings, id, now);
                    }
                }
            }
            _ => {}
        }
    }

    /// The document changed half-way: the state starts over with the new one.
    pub(super) fn restart(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let version = self.accepted.as_ref().map_or(1, |accepted| accepted.version);
        let Some(wanted) = self.assignments[&id].goal() else { return };
        if let Some(Err(failure)) = self.readings.get(&wanted) {
            let failure = failure.clone();
            let assignment = self.assignments.get_mut(&id).expect("looked up above");
            assignment.take_up(wanted, version, &[]);
            return self.fail(settings, id, failure, now, 0.0);
        }
        let components: Vec<ComponentName> =
            self.orders(&wanted).into_iter().map(|order| order.component).collect();
        if components.is_empty() {
            // The document is not read yet (its copy was lost and is being fetched again).
            return;
        }
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        let was_touched = assignment.is_touched();
        assignment.take_up(wanted, version, &components);
        assignment.attempt = 1;
        assignment.since = now;
        // What was overtaken half-way is only finished where what is newer does not come soon.
        if let Some(here) = assignment.beneath.as_mut().filter(|_| was_touched) {
            here.next_try = Some(now.after(settings.retry_delay));
        }
        self.report(settings, id, now);
    }

    /// A document that can never be applied here fails without touching what runs.
    fn refuse(
        &mut self,
        settings: &Settings,
        id: AssignmentId,
        wanted: Digest,
        failure: Failure,
        now: Moment,
    ) {
        let version = self.accepted.as_ref().map_or(1, |accepted| accepted.version);
        let assignment = self.assignments.get_mut(&id).expect("only known assignments are refused");
        let state = assignment.state;
        let good = assignment.good;
        assignment.take_up(wanted, version, &[]);
        match state {
            State::Installed => self.transition(settings, id, State::Updating, now),
            State::Failed if good.is_some() => self.transition(settings, id, State::Updating, now),
            State::Failed => self.transition(settings, id, State::Installing, now),
            _ => {}
        }
        self.fail(settings, id, failure, now, 0.0);
    }

    fn complete(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let held = self.assignments[&id].held;
        let is_counted = held.and_then(|held| self.policy(&held)).is_some_and(|policy| policy.binding);
        let assignment = self.assignments.get_mut(&id).expect("only known assignments complete");
        if assignment.components.is_empty() {
            // Nothing was ordered, because the document is not read yet; empty is not done.
            return;
        }
        self.work.amid.remove(&id);
        // The first one has nothing better behind it; an update has to prove itself.
        assignment.good = assignment.good.or(assignment.held);
        if assignment.good == assignment.held {
            // Where tries are counted to an end, what starts and does not stay well was one.
            assignment.strikes = if is_counted { assignment.strikes } else { 0 };
            assignment.falls = 0;
        }
        assignment.fell = false;
        assignment.attempt = 0;
        assignment.failure = None;
        assignment.next_try = None;
        self.transition(settings, id, State::Installed, now);
    }

    /// Whether this document's copy is not here, and has to be fetched again.
    pub(super) fn is_lost(&self, document: &Digest) -> bool {
        self.has_read && !self.readings.contains_key(document)
    }

    /// Whether what is worked on is not on this device any more, and nobody has it: only what is wanted is fetched again.
    fn is_orphaned(&self, assignment: &Assignment) -> bool {
        // What is beneath wants itself, and whether anybody still has that is for the manifest to say.
        let is_beneath = self.work.lifted.is_some();
        let comes_again =
            assignment.held == assignment.wanted && (!is_beneath || self.is_listed(assignment.held));
        assignment.on_aim() && !comes_again && !self.is_readable(assignment.held)
    }

    /// Why nobody can work with what is worked on, though it is here.
    pub(super) fn misread(&self, assignment: &Assignment) -> Option<Failure> {
        let held = assignment.held.filter(|_| assignment.on_aim())?;
        self.readings.get(&held)?.as_ref().err().cloned()
    }

    fn is_listed(&self, document: Option<Digest>) -> bool {
        let listed = self.accepted.iter().flat_map(|accepted| &accepted.entries);
        listed.into_iter().any(|entry| Some(entry.document.digest) == document)
    }

    pub(super) fn is_readable(&self, document: Option<Digest>) -> bool {
        document.is_some_and(|document| matches!(self.readings.get(&document), Some(Ok(_))))
    }

    /// Why the runtime cannot be looked at, when it cannot.
    pub fn runtime_trouble(&self) -> Option<&Failure> {
        self.work.trouble.as_ref()
    }

    /// What was seen last.
    pub fn seen(&self) -> &[Observation] {
        &self.work.seen
    }

    /// When that was.
    pub fn seen_at(&self) -> Option<Moment> {
        self.work.seen_at
    }
}
