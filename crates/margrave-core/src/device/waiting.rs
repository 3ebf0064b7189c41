//! What keeps a change from beginning: somebody at the device, the maintenance window, or the network.
//!
//! Only beginnings are kept back. What was begun is brought to its end, what is broken is mended, and an update that failed is
//! gone back from at any time: half a change is worse than one at the wrong hour.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Action, Ahead, Assignment, Device, Hold, Order, Settings, backoff};
use crate::digest::Digest;
use crate::id::AssignmentId;
use crate::lifecycle::State;
use crate::moment::Moment;
use crate::report::{Awaited, Failure};
use crate::schedule::{Gate, within};

/// Why a change waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Waiting {
    Held(Hold),
    /// It opens then, and so much later for this device.
    Window {
        opens: Option<Moment>,
        late: Duration,
    },
    /// The machine was just started, so nobody knows yet whether its window is really open.
    Settling(Moment),
    /// It is not here yet, and nothing may be fetched.
    Network(Option<Moment>),
}

/// So far apart devices begin when their hours or windows do.
const SPREAD: Duration = Duration::from_secs(30);

/// How much is fetched at once for changes that may not begin yet. It takes no place of what may: neither a repair nor the
/// opening of the window waits for the end of a download.
pub(super) const AHEAD_COUNT_MAX: usize = 1;

impl Waiting {
    pub(super) fn until(&self) -> Option<Moment> {
        match self {
            Waiting::Held(hold) => Some(hold.until),
            Waiting::Window { opens, late } => opens.map(|at| at.after(*late)),
            Waiting::Settling(until) => Some(*until),
            Waiting::Network(opens) => *opens,
        }
    }
}

impl Waiting {
    /// What somebody can do something about; a download that is under way comes to its end by itself, and so do minutes.
    fn awaited(&self) -> Option<Awaited> {
        match self {
            Waiting::Held(_) => Some(Awaited::Holder),
            Waiting::Window { opens: Some(_), .. } => Some(Awaited::Window),
            Waiting::Window { opens: None, .. } => Some(Awaited::Clock),
            Waiting::Network(Some(_)) => Some(Awaited::Network),
            Waiting::Network(None) | Waiting::Settling(_) => None,
        }
    }
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Waiting::Held(hold) => write!(f, "held back {hold}"),
            Waiting::Window { opens: Some(opens), .. } => {
                write!(f, "waits for the maintenance window, which opens at {opens}")
            }
            Waiting::Window { opens: None, .. } => f.write_str(
                "waits for the maintenance window, and cannot tell when that is: set the device's clock, or update its agent",
            ),
            Waiting::Settling(until) => write!(
                f,
                "waits until {until}, because the device was just started and its clock may not be set yet: who changes in windows has to know the time"
            ),
            Waiting::Network(Some(opens)) => {
                write!(f, "waits for its download until {opens}, when this device may use the network again")
            }
            Waiting::Network(None) => f.write_str("waits for its download"),
        }
    }
}

impl Device {
    /// When what could not be fetched may be tried again, if nobody can be reached before: a known downtime is no failure.
    pub(super) fn pull_waits_until(
        &self,
        settings: &Settings,
        assignment: &Assignment,
        now: Moment,
    ) -> Option<Moment> {
        // Containers are only touched once everything is here.
        let pulls = assignment.failure.as_ref().is_some_and(|failure| failure.code.is_pull());
        let not_here = pulls || !assignment.is_touched();
        match self.network(settings, now) {
            Gate::Closed(opens) if not_here && assignment.ready != assignment.held => opens,
            _ => None,
        }
    }

    /// What could not even be written down was not begun with, and waits like anything else that was not.
    pub(super) fn unbegun(&mut self, action: &Action) {
        let Action::Apply(order) = action else { return };
        if self.work.beneath.contains(&order.assignment) {
            // It was begun with before that.
            return;
        }
        if let Some(assignment) = self.assignments.get_mut(&order.assignment) {
            assignment.touched &= !std::mem::take(&mut assignment.touched_first);
        }
    }

    /// Why the change to this document may not begin at the moment: because nothing may, or because it has times of its own.
    fn barred_from(&self, settings: &Settings, goal: &Digest, now: Moment) -> Option<Waiting> {
        let own = || match settings.overrides.schedule {
            true => None,
            false => self.kept_by(self.own_window(goal, now), now),
        };
        self.barred(settings, now).or_else(own)
    }

    /// Whether it is time by what the document itself says.
    fn own_window(&self, goal: &Digest, now: Moment) -> Gate {
        let reading = self.reading(goal).and_then(|reading| reading.as_ref().ok());
        let windows = reading.and_then(|workload| workload.hints.windows.as_deref());
        self.a_little_later(now, |at| within(windows, at))
    }

    /// Why nothing may be begun at the moment.
    pub(super) fn barred(&self, settings: &Settings, now: Moment) -> Option<Waiting> {
        if let Some(hold) = self.holds(now).first() {
            return Some(Waiting::Held((*hold).clone()));
        }
        if settings.overrides.schedule {
            return None;
        }
        self.kept_by(self.change(now), now)
    }

    /// How late this device is where many may begin at the same moment: the same for as long as it runs.
    pub(super) fn late(&self) -> Duration {
        SPREAD.mul_f64(self.upstream.dice)
    }

    /// So much earlier as this device is late.
    fn shifted(&self, now: Moment) -> Moment {
        Moment(now.0.saturating_sub(u64::try_from(self.late().as_millis()).unwrap_or_default()))
    }

    /// Whether a change may begin. The opening is the window's: this device makes use of it a little later.
    fn change(&self, now: Moment) -> Gate {
        self.a_little_later(now, |at| self.schedule.change(at))
    }

    fn a_little_later(&self, now: Moment, gate: impl Fn(Moment) -> Gate) -> Gate {
        match gate(now) {
            Gate::Open(Some(closes)) => match gate(self.shifted(now)) {
                Gate::Open(_) => Gate::Open(Some(closes)),
                closed => closed,
            },
            always_or_closed => always_or_closed,
        }
    }

    /// Whether this device may talk to anybody. Devices with the same hours do not begin at the same moment.
    pub fn network(&self, settings: &Settings, now: Moment) -> Gate {
        if settings.overrides.schedule || self.schedule.is_usual() {
            return Gate::Open(None);
        }
        let late = self.late();
        let shut = |opens: Option<Moment>| Gate::Closed(opens.map(|at| at.after(late)));
        match self.schedule.contact(now) {
            Gate::Closed(opens) => shut(opens),
            Gate::Open(closes) => match self.schedule.contact(self.shifted(now)) {
                Gate::Closed(opens) => shut(opens),
                Gate::Open(_) => Gate::Open(closes),
            },
        }
    }

    /// What keeps this assignment from its next change.
    pub(super) fn waiting(&self, settings: &Settings, id: AssignmentId, now: Moment) -> Option<Waiting> {
        let assignment = &self.assignments[&id];
        if assignment.wanted.is_none() {
            let stays = !matches!(assignment.state, State::Deleting | State::Deleted);
            return self.barred(settings, now).filter(|_| stays);
        }
        let goal = assignment.goal()?;
        let is_here = assignment.held == Some(goal);
        let unreachable = || match self.network(settings, now) {
            Gate::Closed(opens) if assignment.ready != Some(goal) => Some(Waiting::Network(opens)),
            _ => None,
        };
        // It takes no longer than if it began now, and what is here is looked after until then.
        let coming = || self.is_coming(id, &goal).then_some(Waiting::Network(None));
        // Nobody knows what it says until it is fetched again.
        let lost = || self.is_lost(&goal).then_some(Waiting::Network(None));
        match assignment.state {
            State::Pending | State::Installed | State::Failed if !is_here => {
                // One that can never be applied waits for nothing.
                if matches!(self.reading(&goal), Some(Err(_))) {
                    return None;
                }
                self.barred_from(settings, &goal, now).or_else(unreachable).or_else(coming).or_else(lost)
            }
            // Everything is here, and nothing was touched.
            State::Installing | State::Updating if is_here && !assignment.is_touched() => {
                let fetched = assignment.components.iter().all(|progress| progress.fetched);
                self.barred_from(settings, &goal, now).filter(|_| fetched)
            }
            // What was begun is finished first, also while what is to come cannot be had.
            State::Installing | State::Updating | State::RollingBack if !is_here => {
                let barred = || self.barred_from(settings, &goal, now).or_else(unreachable).or_else(coming);
                // What was good is begun with anew, unless it is what is here.
                let here = assignment.beneath().and_then(|here| here.held);
                let is_anew = assignment.good == Some(goal) && here.is_some_and(|here| here != goal);
                let begun = (assignment.is_touched() || is_anew).then(barred).flatten();
                begun.or_else(lost)
            }
            _ => None,
        }
    }

    /// What can be fetched of a change that waits, or when that may be tried again.
    pub(super) fn ahead(
        &self,
        settings: &Settings,
        id: AssignmentId,
        now: Moment,
    ) -> Result<Order, Option<Moment>> {
        let assignment = &self.assignments[&id];
        let Some(goal) = assignment.goal().filter(|goal| assignment.ready != Some(*goal)) else {
            return Err(None);
        };
        if self.work.downloads.contains_key(&id) {
            return Err(None);
        }
        if let Gate::Closed(opens) = self.network(settings, now) {
            return Err(opens);
        }
        // Whoever saves data downloads in the window, unless nobody can be reached then.
        let later = match self.change(now) {
            Gate::Closed(Some(opens)) => self.schedule.contact(opens).is_open(),
            _ => false,
        };
        if self.saves(settings) && later {
            return Err(None);
        }
        let tried = assignment.ahead.as_ref().filter(|ahead| ahead.document == goal);
        if let Some(ahead) = tried
            && now < ahead.next
            // The clock jumped back.
            && ahead.next.since(now) <= settings.retry_delay_max
        {
            return Err(Some(ahead.next));
        }
        let fetched = |order: &Order| tried.is_some_and(|ahead| ahead.fetched.contains(&order.component));
        self.orders(&goal).into_iter().find(|order| !fetched(order)).ok_or(None)
    }

    /// Something of a change that may not begin yet.
    pub(super) fn fetched_ahead(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        order: &Order,
        result: Result<(), Failure>,
    ) {
        let id = order.assignment;
        let Some(goal) = self.assignments.get(&id).and_then(Assignment::goal) else { return };
        let orders = self.orders(&goal);
        // Of something that is not wanted any more.
        if !orders.contains(order) {
            return;
        }
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        let before = assignment.ahead.take().filter(|ahead| ahead.document == goal);
        let mut ahead = before.unwrap_or_else(|| Ahead {
            document: goal,
            fetched: BTreeSet::new(),
            failures: 0,
            next: now,
            trouble: None,
        });
        match result {
            Ok(()) => {
                ahead.fetched.insert(order.component.clone());
                (ahead.failures, ahead.trouble) = (0, None);
                if orders.iter().all(|order| ahead.fetched.contains(&order.component)) {
                    assignment.ready = Some(goal);
                }
            }
            Err(failure) => {
                let pause = backoff(settings.retry_delay, settings.retry_delay_max, ahead.failures, roll);
                ahead.next = now.after(pause);
                ahead.failures = ahead.failures.saturating_add(1);
                ahead.trouble = Some(failure.message);
                // Others are fetched first now; what is here is no worse off for it.
                self.work.failed.insert(id, self.tick);
            }
        }
        assignment.ahead = Some(ahead);
    }

    /// Says so when an assignment begins to wait, or waits for something else.
    pub(super) fn note_waiting(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let Some(assignment) = self.assignments.get(&id) else { return };
        let found = self.waiting(settings, id, now);
        let waiting = found.as_ref().map(|waiting| said(waiting, assignment));
        if assignment.waiting == waiting {
            return;
        }
        let begins = waiting.is_some();
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        assignment.waiting = waiting;
        assignment.awaited = found.and_then(|waiting| waiting.awaited());
        // That it waits no more shows by what follows.
        if begins {
            self.report(settings, id, now);
        }
    }
}

fn said(waiting: &Waiting, assignment: &Assignment) -> String {
    let trouble = assignment.ahead.as_ref().and_then(|ahead| ahead.trouble.as_ref());
    match trouble {
        Some(trouble) => format!("{waiting}; fetching it ahead failed so far: {trouble}"),
        None => waiting.to_string(),
    }
}
