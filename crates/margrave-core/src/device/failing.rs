//! What a failure leads to: another try, the way back to the last good document, or an end.

use super::work::FALLS_MAX;
use super::{Assignment, Device, GivenUp, Settings, backoff};
use crate::digest::Digest;
use crate::id::{AssignmentId, ComponentName};
use crate::lifecycle::{Reported, State};
use crate::moment::Moment;
use crate::report::{Failure, FailureCode, Retry};
use crate::rollback::{Rollback, When};

impl Device {
    /// What a document says about failing; one that cannot be read says nothing.
    pub(super) fn policy(&self, document: &Digest) -> Option<Rollback> {
        let workload = self.readings.get(document)?.as_ref().ok()?;
        Some(workload.hints.rollback)
    }

    /// A failure after containers were touched, or may have been.
    pub(super) fn strike(
        &mut self,
        settings: &Settings,
        id: AssignmentId,
        failure: Failure,
        now: Moment,
        roll: f64,
    ) {
        let assignment = self.assignments.get_mut(&id).expect("only known assignments fail");
        // Containers are only touched once everything is here, so what cannot be fetched was not touched either.
        let untouched = assignment.strikes == 0 && failure.code.is_pull();
        assignment.strikes += u32::from(failure.code.blames_the_update() && !untouched);
        self.fail(settings, id, failure, now, roll);
    }

    /// The device went down again and again while it worked on this.
    pub(super) fn fell(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let assignment = self.assignments.get_mut(&id).expect("only known assignments fail");
        assignment.falls = 0;
        // That often is enough for any policy.
        assignment.strikes = u32::MAX / 2;
        let message = format!("The device went down {FALLS_MAX} times while it started this.");
        self.fail(settings, id, Failure::new(FailureCode::StartFailed, message), now, 0.0);
    }

    pub(super) fn fail(
        &mut self,
        settings: &Settings,
        id: AssignmentId,
        failure: Failure,
        now: Moment,
        roll: f64,
    ) {
        let goes_back = self.gives_up(id, &failure);
        let assignment = self.assignments.get_mut(&id).expect("only known assignments fail");
        assignment.next_try = match failure.code.retry() {
            Retry::Later => Some(now.after(pause(settings, assignment, roll))),
            // Who reads that it failed is to know that this is not the end of it.
            Retry::NotUntilManifestChanges => goes_back.then_some(now),
        };
        assignment.unhealthy_since = None;
        if let Some(component) = failure.component.clone()
            && let Some(progress) = assignment.progress(&component)
        {
            progress.state = Reported::Failed;
            progress.failure = Some(failure.clone());
        }
        assignment.failure = Some(failure.clone());
        if assignment.state == State::RollingBack {
            return self.fail_to_go_back(settings, id, failure, now);
        }
        self.transition(settings, id, State::Failed, now);
        if goes_back {
            self.go_back(settings, id, failure, now);
        }
    }

    /// Whether there is a last good document to go back to, and it is time for it.
    pub(super) fn gives_up(&self, id: AssignmentId, failure: &Failure) -> bool {
        let assignment = &self.assignments[&id];
        let (Some(held), Some(good)) = (assignment.held, assignment.good) else { return false };
        let policy = self.policy(&held).or_else(|| self.policy(&good)).unwrap_or_default();
        policy.when == When::OnFailedUpdate
            && assignment.wanted == Some(held)
            && good != held
            && matches!(self.readings.get(&good), Some(Ok(_)))
            && (failure.code.retry() == Retry::NotUntilManifestChanges
                || assignment.strikes >= policy.attempts)
    }

    pub(super) fn go_back(&mut self, settings: &Settings, id: AssignmentId, failure: Failure, now: Moment) {
        let version = self.accepted.as_ref().map_or(1, |accepted| accepted.version);
        let Assignment { wanted: Some(document), good: Some(good), .. } = self.assignments[&id] else {
            return;
        };
        let components: Vec<ComponentName> =
            self.orders(&good).into_iter().map(|order| order.component).collect();
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        assignment.given_up = Some(GivenUp { document, failure });
        assignment.take_up(good, version, &components);
        assignment.attempt = 1;
        assignment.next_try = None;
        self.transition(settings, id, State::RollingBack, now);
    }

    /// What the world has to mend first is waited for. What fails by itself ends here, after some tries: a device
    /// does not run in circles.
    fn fail_to_go_back(&mut self, settings: &Settings, id: AssignmentId, failure: Failure, now: Moment) {
        let assignment = &self.assignments[&id];
        if assignment.gave_up().is_none() {
            // Meanwhile it is the wanted one, and tried for as long as any other.
            return self.transition(settings, id, State::Failed, now);
        }
        let policy = assignment.wanted.and_then(|wanted| self.policy(&wanted)).unwrap_or_default();
        let attempts = policy.attempts;
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        if failure.code.retry() == Retry::Later && assignment.strikes < attempts {
            assignment.attempt += 1;
            return self.report(settings, id, now);
        }
        let reason = assignment.given_up.as_ref().map(|given_up| given_up.failure.message.clone());
        let message = format!(
            "The update failed ({}), and going back failed too ({}).",
            reason.unwrap_or_default().trim_end_matches('.'),
            failure.message.trim_end_matches('.')
        );
        let both =
            Failure { component: failure.component, ..Failure::new(FailureCode::RollbackFailed, message) };
        assignment.failure = Some(both);
        assignment.next_try = None;
        self.transition(settings, id, State::Failed, now);
    }
}

fn pause(settings: &Settings, assignment: &Assignment, roll: f64) -> std::time::Duration {
    let tries = assignment.attempt.max(assignment.relapses).saturating_sub(1);
    backoff(settings.retry_delay, settings.retry_delay_max, tries, roll)
}
