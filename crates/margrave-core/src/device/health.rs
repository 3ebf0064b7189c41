//! Whether what runs is well, and is what should run.

use std::time::Duration;

use super::{Assignment, Device, Health, Observation, Order, Settings};
use crate::id::{AssignmentId, ComponentName};
use crate::lifecycle::{Reported, State};
use crate::moment::Moment;
use crate::package::START_TIME_MAX;
use crate::report::{Failure, FailureCode};

/// Looks that must have found an update well before there is no way back from it, however the clock jumps.
const WELL_LOOKS_MIN: u32 = 3;
/// How long something has to be well before it is forgotten that it got sick: what runs for a minute or two between its
/// failures is flapping. One that runs for longer is of use to somebody, as the runtime counts it too (`restarts.rs` of the agent).
const FORGIVEN_AFTER: Duration = Duration::from_secs(5 * 60);
/// The longest that something which got sick again and again has to be well before that is believed.
const WATCHED_MAX: Duration = Duration::from_secs(600);

/// How long something may be starting where its document says nothing or less; after five minutes, a person wants to know.
const START_TIME_USUAL: Duration = Duration::from_secs(5 * 60);
/// So many times as long after a power cut, when everything starts at once and a data base replays its log.
const STARTS_SLOWER: u32 = 2;

/// What is wrong with a component.
struct Complaint {
    component: ComponentName,
    message: String,
    nature: Nature,
}

/// Where several things are wrong, the first of these counts: what may be not to be touched is not touched for anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Nature {
    /// It is not what was ordered: somebody else did something to it.
    Drift,
    /// It ended, or ends again and again.
    Ending,
    /// A health check fails.
    Check,
}

impl Device {
    pub(super) fn judge_health(&mut self, settings: &Settings, id: AssignmentId, now: Moment, roll: f64) {
        let assignment = &self.assignments[&id];
        if !assignment.on_aim() {
            return;
        }
        // What was gone back to may become well by itself, too; and so may what was given up for whatever reason: nothing else
        // would ever find out. An older agent saw an end in what is said of what was good.
        let ended = assignment.next_try.is_none() && assignment.good == assignment.held;
        let is_curable = |code| {
            matches!(code, FailureCode::Unhealthy | FailureCode::RollbackFailed)
                || self.is_spent(id, code)
                || ended
        };
        let may_recover = assignment.failure.as_ref().is_some_and(|failure| is_curable(failure.code));
        let Some(held) = assignment.held else { return };
        let state = assignment.state;
        if state != State::Installed && !(state == State::Failed && may_recover) {
            return;
        }
        let orders = self.orders(&held);
        if orders.is_empty() {
            // Its document is lost, so nobody knows what it should be.
            return;
        }
        let complaints = orders.iter().filter_map(|order| self.complaint(order));
        let complaint = complaints.min_by_key(|complaint| complaint.nature);
        let all_healthy =
            orders.iter().all(|order| self.sight(order).is_some_and(|s| s.health == Health::Healthy));
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        match (state, complaint) {
            (State::Installed, None) => {
                (assignment.unhealthy_since, assignment.down_since) = (None, None);
                if !all_healthy {
                    assignment.well = None;
                    return self.judge_start(settings, id, &orders, now, roll);
                }
                assignment.starting_since = None;
                let (since, looks) = assignment.found_well(now);
                if looks >= WELL_LOOKS_MIN && now.since(since) >= settings.proven_after {
                    assignment.good = assignment.held;
                    assignment.strikes = 0;
                    assignment.falls = 0;
                    assignment.fell = false;
                    if now.since(since) >= FORGIVEN_AFTER {
                        assignment.relapses = 0;
                    }
                    let is_counted = self.policy(&held).is_some_and(|policy| policy.binding);
                    let assignment = self.assignments.get_mut(&id).expect("looked up above");
                    assignment.proven |= is_counted;
                }
            }
            (State::Installed, Some(complaint)) => {
                assignment.well = None;
                assignment.starting_since = None;
                // A beginning in the future: the clock was set back, and would not come there for years.
                let begun = |since: Option<Moment>| since.filter(|since| *since <= now).unwrap_or(now);
                let sick_since = begun(assignment.unhealthy_since);
                assignment.unhealthy_since = Some(sick_since);
                let (since, patience) = match complaint.nature {
                    // How long a check may fail is the application's to say.
                    Nature::Check => {
                        assignment.down_since = None;
                        (sick_since, self.policy(&held).and_then(|policy| policy.health_grace))
                    }
                    // What is not there does not get well with time.
                    Nature::Drift | Nature::Ending => {
                        let down_since = begun(assignment.down_since);
                        assignment.down_since = Some(down_since);
                        (down_since, None)
                    }
                };
                if now.since(since) < patience.unwrap_or(settings.health_grace) {
                    return;
                }
                let left = complaint.nature == Nature::Drift && !self.repairs();
                let message = match left {
                    true => format!(
                        "{}; it is left so, because this device is not to repair it",
                        complaint.message
                    ),
                    false => complaint.message,
                };
                let failure = Failure::new(FailureCode::Unhealthy, message).of(&complaint.component);
                match left {
                    true => self.leave(settings, id, failure, now),
                    false => self.fall_sick(settings, id, failure, now, roll),
                }
            }
            (State::Failed, None) if all_healthy => {
                let (since, _) = assignment.found_well(now);
                if now.since(since) < watched(settings, assignment) {
                    return;
                }
                for progress in &mut assignment.components {
                    progress.state = Reported::Installed;
                    progress.failure = None;
                }
                // A first install has nothing better behind it.
                assignment.good = assignment.good.or(assignment.held);
                assignment.failure = None;
                assignment.next_try = None;
                assignment.attempt = 0;
                assignment.well = None;
                self.transition(settings, id, State::Installed, now);
            }
            (State::Failed, Some(complaint)) => {
                assignment.well = None;
                // Where going back failed too, that is an end; what was gone back to is looked after like anything else.
                let left =
                    assignment.is_left() || (assignment.next_try.is_none() && assignment.gave_up().is_none());
                let code = assignment.failure.as_ref().map(|failure| failure.code);
                let is_spent = code.is_some_and(|code| self.is_spent(id, code));
                if left && !is_spent && (complaint.nature != Nature::Drift || !self.schedule.leaves_drift) {
                    // It was left as it was, and is not to be any more; or what somebody did is undone, and it is sick.
                    let assignment = self.assignments.get_mut(&id).expect("looked up above");
                    assignment.next_try = Some(now);
                }
            }
            (State::Failed, None) => assignment.well = None,
            _ => {}
        }
    }

    /// What was installed is starting, for as long as every look says so: the engine brings it back before its health check has ever
    /// passed, or that never passes and never fails.
    fn judge_start(
        &mut self,
        settings: &Settings,
        id: AssignmentId,
        orders: &[Order],
        now: Moment,
        roll: f64,
    ) {
        let Some(assignment) = self.assignments.get_mut(&id) else { return };
        // A beginning in the future: the clock was set back.
        let since = assignment.starting_since.filter(|since| *since <= now).unwrap_or(now);
        assignment.starting_since = Some(since);
        let starts = |order: &&Order| self.sight(order).is_some_and(|seen| seen.health == Health::Starting);
        let patience = |order: &Order| {
            let once = match order.wait {
                true => order.timeout.map_or(START_TIME_USUAL, |timeout| timeout.duration()),
                // Who is not to wait writes no time down either.
                false => START_TIME_MAX,
            };
            once.clamp(START_TIME_USUAL, START_TIME_MAX) * STARTS_SLOWER
        };
        let slow = orders.iter().filter(starts).filter(|order| now.since(since) >= patience(order));
        let Some(order) = slow.min_by_key(|order| !order.wait) else { return };
        let component = &order.component;
        let minutes = now.since(since).as_secs() / 60;
        let message = format!(
            "component {component} has been starting for {minutes} minutes and did not become healthy"
        );
        if order.wait {
            let failure = Failure::new(FailureCode::Unhealthy, message).of(component);
            return self.fall_sick(settings, id, failure, now, roll);
        }
        // That it becomes healthy was never part of a try; and started once more it would be called installed at once.
        let message =
            format!("{message}; nothing is done about it, because its package says not to wait for it");
        self.leave(settings, id, Failure::new(FailureCode::Unhealthy, message).of(component), now);
    }

    fn fall_sick(&mut self, settings: &Settings, id: AssignmentId, failure: Failure, now: Moment, roll: f64) {
        let Some(assignment) = self.assignments.get_mut(&id) else { return };
        assignment.relapses = assignment.relapses.saturating_add(1);
        // A fleet that lost something it shares is not to come back in step.
        match assignment.proven {
            // It was well for long: that it is not any more was not a try.
            true => self.fail(settings, id, failure, now, roll),
            false => self.strike(settings, id, failure, now, roll),
        }
    }

    /// Whether what somebody else did to what runs is undone.
    pub(super) fn repairs(&self) -> bool {
        !self.schedule.leaves_drift
    }

    /// Failed, and nothing is tried: it is told, and gets well by itself or by hand.
    pub(super) fn leave(&mut self, settings: &Settings, id: AssignmentId, failure: Failure, now: Moment) {
        let Some(assignment) = self.assignments.get_mut(&id) else { return };
        (assignment.unhealthy_since, assignment.down_since) = (None, None);
        assignment.next_try = None;
        if let Some(progress) =
            failure.component.as_ref().and_then(|component| assignment.progress(component))
        {
            progress.state = Reported::Failed;
            progress.failure = Some(failure.clone());
        }
        assignment.failure = Some(failure);
        self.transition(settings, id, State::Failed, now);
    }

    fn sight(&self, order: &Order) -> Option<&Observation> {
        let same =
            |seen: &&Observation| seen.assignment == order.assignment && seen.component == order.component;
        self.work.seen.iter().find(same)
    }

    /// What is wrong with a component that should run as ordered.
    fn complaint(&self, order: &Order) -> Option<Complaint> {
        let name = &order.component;
        let (nature, message) = match self.sight(order) {
            None => (Nature::Drift, format!("component {name} is gone")),
            Some(seen) if seen.fingerprint != Some(order.fingerprint()) => {
                (Nature::Drift, format!("component {name} was changed by something other than this agent"))
            }
            Some(seen) => {
                let nature = match seen.health {
                    Health::Drifted(_) => Nature::Drift,
                    Health::Down(_) => Nature::Ending,
                    _ => Nature::Check,
                };
                (nature, seen.health.complaint()?.to_owned())
            }
        };
        Some(Complaint { component: name.clone(), message, nature })
    }
}

/// How long it has to be well before it counts as recovered: not at all the first time, then longer each time.
fn watched(settings: &Settings, assignment: &Assignment) -> Duration {
    match assignment.relapses {
        0 | 1 => Duration::ZERO,
        more => {
            settings.health_grace.saturating_mul(2u32.saturating_pow((more - 2).min(16))).min(WATCHED_MAX)
        }
    }
}
