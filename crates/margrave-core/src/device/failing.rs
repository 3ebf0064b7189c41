//! What a failure leads to: another try, the way back to the last good document, or an end.

use super::work::FALLS_MAX;
use super::{Assignment, Device, GivenUp, Settings, backoff};
use crate::digest::Digest;
use crate::id::{AssignmentId, ComponentName};
use crate::lifecycle::{Reported, State};
use crate::moment::Moment;
use crate::report::{Failure, FailureCode, Retry};
use crate::rollback::{Rollback, When};

/// So often the way back is tried at least, whatever is said about the way there: what is gone back to is known to run, so that
/// the first failure is rather a port that is not free yet than its end, and after the last one the application stays down.
const WAY_BACK_TRIES_MIN: u32 = 2;

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
        let leads_back = self.leads_back(id);
        let assignment = self.assignments.get_mut(&id).expect("only known assignments fail");
        // Where nothing was touched, nothing is lost by waiting; nor where there is nothing to go back to, or what that needs has to
        // come from a registry that is away.
        let touched = assignment.strikes > 0 || assignment.touched && assignment.state != State::RollingBack;
        let waits = failure.code.is_pull() && !(touched && leads_back);
        // A power cut is nobody's fault, and it is counted by itself how often there was one.
        let counts = failure.code.blames_the_update() && !waits && !std::mem::take(&mut assignment.fell);
        assignment.strikes += u32::from(counts);
        self.fail(settings, id, failure, now, roll);
    }

    /// The device went down again and again while it worked on this.
    pub(super) fn fell(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let has_way_back = self.has_way_back(id);
        let assignment = self.assignments.get_mut(&id).expect("only known assignments fail");
        assignment.falls = 0;
        // That often is enough for any policy that has somewhere to go; elsewhere, and on the way there, it is one try.
        assignment.strikes = if has_way_back { u32::MAX / 2 } else { assignment.strikes.saturating_add(1) };
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
        self.goes_last(id);
        let goes_back = self.gives_up(id, &failure);
        let is_spent = !goes_back && self.is_spent(id, failure.code);
        let failure = match is_spent {
            true => self.given_up_for_good(id, failure),
            false => failure,
        };
        let retry = self.retry(id, failure.code);
        let assignment = self.assignments.get_mut(&id).expect("only known assignments fail");
        assignment.next_try = match retry {
            Retry::Later if is_spent => None,
            Retry::Later => Some(now.after(pause(settings, assignment, roll))),
            // Who reads that it failed is to know that this is not the end of it.
            Retry::NotUntilManifestChanges => goes_back.then_some(now),
        };
        (assignment.unhealthy_since, assignment.down_since) = (None, None);
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

    /// Whether trying again can help. What can never be used is something new: of what was good, and is here, the same is only
    /// what the world around said in a bad moment.
    fn retry(&self, id: AssignmentId, code: FailureCode) -> Retry {
        let Assignment { held, good, .. } = self.assignments[&id];
        let was_good = held == good && self.is_readable(held);
        if was_good { Retry::Later } else { code.retry() }
    }

    /// What is said about failing of what is held; of what is here, or was good, when that cannot be read.
    fn policy_held(&self, id: AssignmentId) -> Rollback {
        let assignment = &self.assignments[&id];
        let here = assignment.beneath().and_then(|here| here.held);
        let documents = [assignment.held, here, assignment.good].into_iter().flatten();
        documents.filter_map(|document| self.policy(&document)).next().unwrap_or_default()
    }

    /// Whether there is a last good document to go back to.
    pub(super) fn has_way_back(&self, id: AssignmentId) -> bool {
        let assignment = &self.assignments[&id];
        let (Some(held), Some(good)) = (assignment.held, assignment.good) else { return false };
        let policy = self.policy_held(id);
        // What runs while nothing of this was touched is not thrown away for it: it may be newer, and prove itself yet, unless it
        // is down and was tried often enough, by its own policy or by this one. Nor is undone what somebody did to it.
        let is_left = |here: &Assignment| self.schedule.leaves_drift && here.is_left();
        let is_down = |here: &Assignment| {
            let own = here.held.and_then(|held| self.policy(&held));
            let is_spent = own.is_some_and(|own| own.binding && here.strikes >= own.attempts);
            here.state == State::Failed
                && here.well.is_none()
                && self.is_readable(here.held)
                && (is_spent || here.strikes >= policy.attempts)
        };
        let leads_on = |here: &Assignment| is_down(here) || (here.held == Some(good) && !is_left(here));
        // Where something newer may begin, that is the way.
        policy.when == When::OnFailedUpdate
            && assignment.on_aim()
            && good != held
            && assignment.beneath().is_none_or(leads_on)
            && matches!(self.readings.get(&good), Some(Ok(_)))
    }

    /// Whether failing leads to the way back, or happens on it.
    fn leads_back(&self, id: AssignmentId) -> bool {
        self.assignments[&id].state == State::RollingBack || self.has_way_back(id)
    }

    /// Whether there is a last good document to go back to, and it is time for it.
    pub(super) fn gives_up(&self, id: AssignmentId, failure: &Failure) -> bool {
        self.has_way_back(id)
            && (failure.code.retry() == Retry::NotUntilManifestChanges
                || self.assignments[&id].strikes >= self.policy_held(id).attempts)
    }

    /// Whether it was tried as often as somebody asked for, with nothing to go back to. What the world around has to mend is
    /// waited for all the same.
    pub(super) fn is_spent(&self, id: AssignmentId, code: FailureCode) -> bool {
        let assignment = &self.assignments[&id];
        let policy = self.policy_held(id);
        let waits = code.is_pull() || !code.blames_the_update();
        policy.binding
            && code.retry() == Retry::Later
            && assignment.strikes >= policy.attempts
            && assignment.on_aim()
            // What was gone back to is looked after for as long as it takes.
            && assignment.given_up.is_none()
            && !self.leads_back(id)
            && !waits
    }

    /// The same failure, with what became of it.
    fn given_up_for_good(&self, id: AssignmentId, failure: Failure) -> Failure {
        let tries = match self.policy_held(id).attempts {
            1 => "one try".to_owned(),
            tries => format!("{tries} tries"),
        };
        let message = format!(
            "{}. Given up after {tries}, as the deployment says; tried again when the deployment changes, or when \
             somebody asks for a fresh look (margrave device look).",
            failure.message.trim_end_matches('.')
        );
        Failure { message, ..failure }
    }

    /// Somebody asks: what was given up with nothing to go back to is tried as if it were new.
    pub(super) fn try_spent_again(&mut self, id: AssignmentId, now: Moment) {
        let assignment = &self.assignments[&id];
        let code = assignment.failure.as_ref().map(|failure| failure.code);
        let ended = assignment.state == State::Failed && assignment.next_try.is_none();
        if ended && code.is_some_and(|code| self.is_spent(id, code)) {
            let assignment = self.assignments.get_mut(&id).expect("looked up above");
            assignment.strikes = 0;
            assignment.attempt = 0;
            assignment.next_try = Some(now);
        }
    }

    pub(super) fn go_back(&mut self, settings: &Settings, id: AssignmentId, failure: Failure, now: Moment) {
        let Assignment { wanted, held: Some(document), good: Some(good), adopted_version, .. } =
            self.assignments[&id]
        else {
            return;
        };
        // Of what comes next nothing was adopted yet, unless that is what is gone back to.
        let arrives = wanted == Some(good);
        let accepted = self.accepted.as_ref().filter(|_| arrives || wanted == Some(document));
        let version = accepted.map_or(adopted_version, |accepted| accepted.version);
        let components: Vec<ComponentName> =
            self.orders(&good).into_iter().map(|order| order.component).collect();
        let refused = matches!(self.readings.get(&document), Some(Err(_)));
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        // What nobody wants any more was not given up for anything.
        assignment.given_up = (!arrives).then_some(GivenUp { document, failure, refused });
        assignment.take_up(good, version, &components);
        assignment.attempt = 1;
        assignment.next_try = None;
        self.transition(settings, id, State::RollingBack, now);
    }

    /// There is something newer to do, and the way to it does not lead back. Should it have to wait once more before it begins,
    /// what was gone back to is tried on.
    pub(super) fn leave_way_back(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        let assignment = self.assignments.get_mut(&id).expect("only known assignments go back");
        let given_up = assignment.given_up.as_ref().map(|given_up| given_up.failure.clone());
        assignment.failure = given_up.or(assignment.failure.take());
        assignment.next_try = Some(now);
        self.transition(settings, id, State::Failed, now);
    }

    /// What the world has to mend first is waited for. What fails by itself ends here, after some tries: a device
    /// does not run in circles.
    fn fail_to_go_back(&mut self, settings: &Settings, id: AssignmentId, failure: Failure, now: Moment) {
        let assignment = &self.assignments[&id];
        if assignment.gave_up().is_none() {
            // Meanwhile it is the wanted one, or what to live by until something newer begins: tried for as long as any other.
            return self.transition(settings, id, State::Failed, now);
        }
        let policy = assignment.wanted.and_then(|wanted| self.policy(&wanted)).unwrap_or_default();
        let attempts = policy.attempts.max(WAY_BACK_TRIES_MIN);
        let retry = self.retry(id, failure.code);
        let assignment = self.assignments.get_mut(&id).expect("looked up above");
        if retry == Retry::Later && assignment.strikes < attempts {
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
