//! What must not begin yet, by what the device was told and promised, and not by what it makes of that.

use margrave_core::device::{Action, Assignment, HOLD_MAX_USUAL};
use margrave_core::id::AssignmentId;
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::schedule::{Gate, Schedule};

use super::World;
use super::shell::{name, short};
use crate::check::{Check, Violation};

/// A clock before 2020 was never set.
pub(crate) const CLOCK_SENSIBLE: Moment = Moment(1_577_836_800_000);

impl World {
    /// What the manifest says that the device holds.
    pub(super) fn told(&self, at: usize) -> &Schedule {
        let accepted = self.machines[at].device.accepted();
        accepted
            .and_then(|accepted| self.published[at].schedules.get(&accepted.body))
            .unwrap_or(Schedule::USUAL)
    }

    /// Why nothing may be changed now.
    fn barred(&self, at: usize) -> Option<String> {
        let machine = &self.machines[at];
        let local = machine.local(self.now);
        if let Some(granted) = machine.memory.granted.iter().find(|granted| self.now < granted.until) {
            return Some(format!("{} was promised that changes wait", granted.holder));
        }
        if let Some(hold) = machine.device.holds(local).first() {
            return Some(format!("{} holds changes back until {}", hold.holder, hold.until));
        }
        match self.told(at).change(local) {
            // Who was just started does not know yet whether that is so.
            Gate::Open(Some(_)) => {
                let until = machine.settles_until.filter(|until| local < *until);
                until.map(|until| format!("it is {local}, and the clock is not to be trusted until {until}"))
            }
            Gate::Open(None) => None,
            Gate::Closed(opens) => Some(format!("it is {local}, and the window opens at {opens:?}")),
        }
    }

    /// Asked of everything that is about to begin, once that is written down.
    pub(super) fn check_beginning(&mut self, at: usize, action: &Action) -> Result<(), Violation> {
        let machine = &self.machines[at];
        let local = machine.local(self.now);
        let contact = self.told(at).contact(local);
        let fails = |check, why: String| {
            Err(Violation::of(check, &machine.name, format!("{} begins: {why}", name(action))))
        };
        let quiet = format!("at {local} nobody is to be talked to: {contact:?}");
        match action {
            Action::Poll { wait, .. } if contact.is_open() => match contact {
                Gate::Open(Some(closes)) if closes < local.after(*wait) => fails(Check::QuietIsKept, quiet),
                _ => Ok(()),
            },
            Action::SendCapabilities | Action::Poll { .. } | Action::Fetch(_) | Action::Send(_) => {
                if contact.is_open() { Ok(()) } else { fails(Check::QuietIsKept, quiet) }
            }
            // What is here already is only looked at.
            Action::Prefetch(order) => {
                match contact.is_open() || machine.memory.fetched.contains(&order.fingerprint()) {
                    true => Ok(()),
                    false => fails(Check::QuietIsKept, quiet),
                }
            }
            Action::Apply(order) => {
                let assignment = machine.device.assignments().get(&order.assignment).map(Assignment::here);
                let Some((held, assignment)) = assignment.and_then(|a| Some((a.held?, a))) else {
                    return Ok(());
                };
                if machine.memory.given_up.get(&order.assignment) == Some(&held) {
                    return fails(Check::GivenUpStays, "its document was tried and given up".to_owned());
                }
                let begun = machine.memory.begun.get(&order.assignment).map_or(&[][..], Vec::as_slice);
                if begun.last() == Some(&held) {
                    return match machine.memory.left.contains(&order.assignment) {
                        true => fails(Check::DriftIsLeft, "what somebody did is to be left".to_owned()),
                        false => Ok(()),
                    };
                }
                // On its way back, also where something newer waits meanwhile.
                let is_back = assignment.state == State::RollingBack || assignment.good == Some(held);
                let goes_back = is_back && begun.contains(&held);
                if let (Some(why), false) = (self.barred(at), goes_back) {
                    return fails(Check::ChangesWait, why);
                }
                let id = order.assignment;
                let memory = &mut self.machines[at].memory;
                memory.begun.entry(id).or_default().push(held);
                memory.left.remove(&id);
                Ok(())
            }
            Action::Remove { assignment, .. } => {
                let state = machine.device.assignments().get(assignment).map(|a| a.here().state);
                if state == Some(State::Installed) && self.told(at).leaves_drift {
                    return fails(Check::DriftIsLeft, "what somebody added is to be left".to_owned());
                }
                Ok(())
            }
            Action::Observe => Ok(()),
        }
    }

    /// Asked when something begins to go.
    pub(super) fn check_removal(&self, at: usize, id: AssignmentId) -> Result<(), Violation> {
        match self.barred(at) {
            Some(why) => {
                let what = format!("{} begins to go: {why}", short(id));
                Err(Violation::of(Check::ChangesWait, &self.machines[at].name, what))
            }
            None => Ok(()),
        }
    }

    /// Asked after everything that a device took in.
    pub(super) fn check_holds(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.now;
        let max = self.told(at).hold_max.unwrap_or(HOLD_MAX_USUAL);
        let machine = &mut self.machines[at];
        let local = machine.local(now);
        let memory = &mut machine.memory;
        memory.granted.retain_mut(|granted| {
            granted.until = granted.until.min(granted.since.after(max));
            now < granted.until
        });
        // Without a clock nobody can tell how long it was, and it goes on until there is one. Nor can a device remember that it
        // began anew with a clock that was set back, while its disk takes nothing: started again, it begins anew once more.
        if machine.device.holds(local).is_empty() || local < CLOCK_SENSIBLE || machine.disk.full {
            memory.held_since = None;
            return Ok(());
        }
        let since = *memory.held_since.get_or_insert(now);
        if now.since(since) >= max {
            let what = format!("changes are held back for {:?}, and may be for {max:?}", now.since(since));
            return Err(Violation::of(Check::HoldsEnd, &machine.name, what));
        }
        Ok(())
    }
}
