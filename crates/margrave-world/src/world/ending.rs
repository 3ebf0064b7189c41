//! What must hold once nothing goes wrong any more.

use std::collections::BTreeMap;

use margrave_core::device::{Assignment, Health, Order};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::observed::Verdict;
use margrave_core::report::FailureCode;
use margrave_wire::g2;

use super::shell::short;
use super::{Machine, World, broken};
use crate::check::{Check, Violation};
use crate::fault::Fault;

impl World {
    /// The first thing that is not yet as it should be.
    pub(super) async fn settled(&self) -> Result<(), Violation> {
        for at in 0..self.machines.len() {
            self.one_settled(at).await?;
        }
        Ok(())
    }

    pub(super) async fn one_settled(&self, at: usize) -> Result<(), Violation> {
        self.device_settled(at)?;
        self.server_agrees(at).await
    }

    fn facts(&self, at: usize, document: Option<Digest>) -> (bool, bool) {
        let facts = document.and_then(|document| self.published[at].documents.get(&document));
        let dated = self.machines[at].own.is_dated;
        facts.map_or((false, true), |facts| (facts.bad || (facts.strange && dated), facts.goes_back))
    }

    fn device_settled(&self, at: usize) -> Result<(), Violation> {
        let machine = &self.machines[at];
        let fails = |check, what: String| Err(Violation::of(check, &machine.name, what));
        let wanted = self.server.as_ref().and_then(|server| server.manifest(&machine.client));
        let Some(wanted) = wanted else {
            return fails(Check::Converges, "the server is not there".to_owned());
        };
        let held = machine.device.accepted();
        // Who has nothing to report on cannot tell a server that was restored which version it holds; the next deployment does.
        let behind = held.is_some_and(|held| held.version >= wanted.version && held.body != wanted.digest);
        let nothing =
            g2::manifest::read(&wanted.body).is_ok_and(|listing| listing.manifest.entries().is_empty());
        if self.unknowing && behind && nothing && machine.device.assignments().is_empty() {
            return Ok(());
        }
        if held.is_none_or(|held| held.body != wanted.digest) {
            let what = format!(
                "the server shows version {}, the device holds {:?}; {:?}",
                wanted.version,
                held.map(|held| held.version),
                machine.device.contact()
            );
            return fails(Check::Converges, what);
        }
        for (id, assignment) in machine.device.assignments() {
            self.assignment_settled(at, *id, assignment)?;
        }
        self.runs_what_is_wanted(at)?;
        if !machine.device.outbox().is_empty() {
            return fails(
                Check::LatestReportArrives,
                format!("{} reports wait", machine.device.outbox().len()),
            );
        }
        Ok(())
    }

    fn assignment_settled(
        &self,
        at: usize,
        id: AssignmentId,
        assignment: &Assignment,
    ) -> Result<(), Violation> {
        let machine = &self.machines[at];
        let state = assignment.state;
        let told = || format!("{} is {state}: {:?}", short(id), assignment.failure);
        let fails = |check, what: String| Err(Violation::of(check, &machine.name, what));
        let Some(wanted) = assignment.wanted else { return fails(Check::Converges, told()) };
        let (bad, goes_back) = self.facts(at, Some(wanted));
        // Of a document that it does not understand it does not know either what to do when that fails: what it has says so,
        // which need not be what was good last.
        let is_refused = matches!(machine.device.reading(&wanted), Some(Err(_)));
        let here = assignment.beneath().and_then(|here| here.held).or(assignment.good);
        let goes_back = if is_refused { self.facts(at, here).1 } else { goes_back };
        // Work failed without being to blame since this was wanted, so that giving up can be right.
        let faults = &machine.memory.faults;
        let since = machine.memory.wanted.get(&id).map_or(Moment(0), |(_, since)| *since);
        let excused = machine.memory.hurt_until >= since;
        let gave_up = assignment.gave_up().is_some();
        let ended_by = |code| assignment.failure.as_ref().is_some_and(|failure| failure.code == code);
        let is_bound = self.published[at].documents.get(&wanted).is_some_and(|facts| facts.binding);
        if bad {
            let good = assignment.good.filter(|good| *good != wanted && !self.facts(at, Some(*good)).0);
            let back = state == State::Installed && gave_up;
            // Whose disk lost the document that it was to go back to has come to its end, or goes on trying.
            let is_end = ended_by(FailureCode::RollbackFailed);
            let no_way = good.is_some_and(|good| machine.device.reading(&good).is_none());
            let lost = (is_end || no_way) && faults.has(Fault::DocumentDamaged);
            // What went wrong meanwhile may have spoilt the way back, which then came to its end; it is no reason not to have
            // gone, because there was time enough for that since.
            let spoilt = is_end && excused;
            if goes_back && good.is_some() && !back && !lost && !spoilt {
                return fails(Check::FailedUpdateGoesBack, told());
            }
            // What can never be well comes to rest all the same: on what it went back to, or until the next try.
            return match state {
                State::Installed if gave_up => Ok(()),
                State::Failed if gave_up || assignment.held == Some(wanted) => Ok(()),
                // Tried again because it was found ill, with nothing to go back to: it is well until that shows once more, which
                // may be whenever a device that seldom talks has told all it knows.
                State::Installed if good.is_none() && assignment.relapses > 0 => Ok(()),
                _ => fails(Check::Converges, told()),
            };
        }
        match state {
            State::Installed if assignment.held == Some(wanted) => Ok(()),
            State::Installed | State::Failed if gave_up && excused => Ok(()),
            // Tried as often as somebody asked for, with nothing to go back to.
            State::Failed if is_bound && assignment.next_try.is_none() && excused => Ok(()),
            // What came was not sound, and there is nothing to go back to.
            State::Failed if faults.has(Fault::ArchiveBad) && ended_by(FailureCode::ArchiveInvalid) => Ok(()),
            _ => fails(Check::Converges, told()),
        }
    }

    fn runs_what_is_wanted(&self, at: usize) -> Result<(), Violation> {
        let machine = &self.machines[at];
        let fails = |what: String| Err(Violation::of(Check::RunsWhatIsWanted, &machine.name, what));
        let mut wanted: BTreeMap<(AssignmentId, ComponentName), (Digest, bool)> = BTreeMap::new();
        for (id, assignment) in machine.device.assignments() {
            let (bad, _) = self.facts(at, assignment.held);
            match assignment.held.and_then(|held| machine.device.reading(&held)) {
                Some(Ok(workload)) if assignment.state == State::Installed => {
                    for order in Order::of(workload) {
                        wanted.insert((*id, order.component.clone()), (order.fingerprint(), bad));
                    }
                }
                _ => {}
            }
        }
        for container in machine.engine.containers() {
            let key = (container.assignment, container.component.clone());
            let name = format!("{}/{}", short(container.assignment), container.component);
            let of = machine.device.assignments().get(&container.assignment);
            match (of, wanted.remove(&key)) {
                (None, _) => return fails(format!("{name} runs, and nobody wants it")),
                // What was gone back to is in no manifest: if the disk loses its document, nobody knows any more what it is.
                (Some(assignment), None)
                    if assignment.held.is_none_or(|held| machine.device.reading(&held).is_none()) => {}
                (Some(assignment), None) if assignment.state == State::Installed => {
                    return fails(format!("{name} is in no document"));
                }
                // What failed leaves what it had got to.
                (Some(_), None) => {}
                (Some(_), Some((print, bad))) => {
                    let well = container.health(self.now) == Health::Healthy;
                    if container.fingerprint != Some(print) || !(well || bad) {
                        return fails(format!("{name} is {:?}", container.health(self.now)));
                    }
                }
            }
        }
        match wanted.into_iter().next() {
            Some(((id, component), _)) => fails(format!("{}/{component} does not run", short(id))),
            None => Ok(()),
        }
    }

    async fn server_agrees(&self, at: usize) -> Result<(), Violation> {
        let machine = &self.machines[at];
        let Some(server) = &self.server else { return Ok(()) };
        let records = server.picture(&machine.client).await.map_err(broken)?;
        let fails = |check, what: String| Err(Violation::of(check, &machine.name, what));
        for (id, assignment) in machine.device.assignments() {
            let id = *id;
            let Some(record) = records.iter().find(|record| record.id == id) else {
                return fails(Check::ServerAgrees, format!("the server does not know {}", short(id)));
            };
            let newest = newest(machine, id);
            let observed = record.observed.as_ref();
            let detail = observed.and_then(|observed| observed.report.detail.as_ref());
            if detail.map(|detail| detail.sequence) != newest {
                let shown = detail.map(|detail| (detail.sequence, detail.state));
                let what = format!("{}: newest is #{newest:?}, the server shows {shown:?}", short(id));
                return fails(Check::LatestReportArrives, what);
            }
            let outlook = record.outlook();
            let as_wanted = assignment.state == State::Installed && assignment.wanted == assignment.held;
            let gave_up = assignment.gave_up().is_some();
            let verdict_fits = match (as_wanted, gave_up) {
                (true, _) => outlook.verdict == Verdict::Converged,
                (false, true) => outlook.verdict == Verdict::Failed,
                (false, false) => outlook.verdict != Verdict::Converged,
            };
            if outlook.state != assignment.state || !verdict_fits {
                let what = format!("{} is {}, the server says {outlook:?}", short(id), assignment.state);
                return fails(Check::ServerAgrees, what);
            }
        }
        let lost = records.iter().find(|record| !machine.device.assignments().contains_key(&record.id));
        match lost {
            Some(record) => {
                let what = format!(
                    "the server waits for {} ({:?}), which the device does not have",
                    short(record.id),
                    record.outlook()
                );
                fails(Check::ServerAgrees, what)
            }
            None => Ok(()),
        }
    }
}

fn newest(machine: &Machine, id: AssignmentId) -> Option<u64> {
    machine.memory.newest.get(&id)?.last().copied()
}
