//! Whether what runs is well, and is what should run.

use std::time::Duration;

use super::{Assignment, Device, Health, Observation, Order, Settings};
use crate::id::AssignmentId;
use crate::lifecycle::{Reported, State};
use crate::moment::Moment;
use crate::report::{Failure, FailureCode};

/// Looks that must have found an update well before there is no way back from it, however the clock jumps.
const WELL_LOOKS_MIN: u32 = 3;
/// The longest that something which got sick again and again has to be well before that is believed.
const WATCHED_MAX: Duration = Duration::from_secs(600);

/// What is wrong with a component.
struct Complaint {
    message: String,
    /// It is not what was ordered: somebody else did something to it.
    drift: bool,
}

impl Device {
    pub(super) fn judge_health(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let assignment = &self.assignments[&id];
        if !assignment.on_aim() {
            return;
        }
        // What was gone back to may become well by itself, too.
        let curable = [FailureCode::Unhealthy, FailureCode::RollbackFailed];
        let was_unhealthy =
            assignment.failure.as_ref().is_some_and(|failure| curable.contains(&failure.code));
        let Some(held) = assignment.held else { return };
        let state = assignment.state;
        if state != State::Installed && !(state == State::Failed && was_unhealthy) {
            return;
        }
        let orders = self.orders(&held);
        if orders.is_empty() {
            // Its document is lost, so nobody knows what it should be.
            return;
        }
        let complaint =
            orders.iter().find_map(|order| Some((order.component.clone(), self.complaint(order)?)));
        let all_healthy =
            orders.iter().all(|order| self.sight(order).is_some_and(|s| s.health == Health::Healthy));
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        match (state, complaint) {
            (State::Installed, None) => {
                assignment.unhealthy_since = None;
                if !all_healthy {
                    assignment.well = None;
                    return;
                }
                let (since, looks) = assignment.found_well(now);
                if looks >= WELL_LOOKS_MIN && now.since(since) >= settings.proven_after {
                    assignment.good = assignment.held;
                    assignment.strikes = 0;
                    assignment.falls = 0;
                    assignment.relapses = 0;
                }
            }
            (State::Installed, Some((component, complaint))) => {
                assignment.well = None;
                let since = *assignment.unhealthy_since.get_or_insert(now);
                let policy = self.policy(&held).unwrap_or_default();
                let grace = policy.health_grace.unwrap_or(settings.health_grace);
                if now.since(since) < grace {
                    return;
                }
                let left = complaint.drift && !self.repairs();
                let message = match left {
                    true => format!(
                        "{}; it is left so, because this device is not to repair it",
                        complaint.message
                    ),
                    false => complaint.message,
                };
                let failure = Failure::new(FailureCode::Unhealthy, message).of(&component);
                let assignment = self.assignments.get_mut(&id).expect("looked up above");
                if left {
                    self.leave(settings, id, failure, now);
                } else {
                    assignment.relapses = assignment.relapses.saturating_add(1);
                    self.strike(settings, id, failure, now, 0.0);
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
                assignment.failure = None;
                assignment.next_try = None;
                assignment.attempt = 0;
                assignment.well = None;
                self.transition(settings, id, State::Installed, now);
            }
            (State::Failed, Some(_)) => {
                assignment.well = None;
                let left = assignment.next_try.is_none() && assignment.gave_up().is_none();
                if left && !self.schedule.leaves_drift {
                    // It was left as it was, and is not to be any more.
                    assignment.next_try = Some(now);
                }
            }
            (State::Failed, None) => assignment.well = None,
            _ => {}
        }
    }

    /// Whether what somebody else did to what runs is undone.
    pub(super) fn repairs(&self) -> bool {
        !self.schedule.leaves_drift
    }

    /// Failed, and nothing is tried: it is told, and gets well by itself or by hand.
    fn leave(&mut self, settings: &Settings, id: AssignmentId, failure: Failure, now: Moment) {
        let Some(assignment) = self.assignments.get_mut(&id) else { return };
        assignment.unhealthy_since = None;
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
        let drift = |message: String| Some(Complaint { message, drift: true });
        match self.sight(order) {
            None => drift(format!("component {name} is gone")),
            Some(seen) if seen.fingerprint != Some(order.fingerprint()) => {
                drift(format!("component {name} was changed by something other than this agent"))
            }
            Some(Observation { health: Health::Unhealthy(message), .. }) => {
                Some(Complaint { message: message.clone(), drift: false })
            }
            Some(_) => None,
        }
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
