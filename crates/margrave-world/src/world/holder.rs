//! Those who want changes on a device later: technicians and applications there, and operators from afar.

use std::time::Duration;

use margrave_core::device::{Event, Hold};
use margrave_core::id::DeviceRef;
use margrave_core::moment::Moment;
use margrave_server::fleet::{Error, Fleet};
use margrave_wire::operator::HoldDevice;

use super::machine::Granted;
use super::shell::Written;
use super::{World, broken};
use crate::check::Violation;
use crate::sabotage::Sabotage;
use crate::server::{client, operator};

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

const HOLDERS: [&str; 3] = ["technician", "app/mes", "app/batch"];

impl World {
    /// Somebody asks the agent to hold changes back, or to let them go on.
    pub(super) fn hold_or_release(&mut self, at: usize) -> Result<(), Violation> {
        if !self.machines[at].is_up() {
            return Ok(());
        }
        let holder = self.dice.pick(&HOLDERS);
        if self.dice.hit(0.3) {
            // A technician may end what everybody holds.
            let whose = (holder != HOLDERS[0] || self.dice.hit(0.5)).then(|| holder.to_owned());
            self.tell(
                Some(at),
                format_args!("{} lets changes go on", whose.as_deref().unwrap_or("a technician")),
            );
            let ends = |granted: &Granted| whose.as_ref().is_none_or(|holder| granted.holder == *holder);
            self.machines[at].memory.granted.retain(|granted| !ends(granted));
            self.absorb(at, Event::Released(whose))?;
            self.commit(at)?;
        } else {
            let longest = self.dice.pick(&[600, 7200]);
            let length = self.dice.seconds(20, longest);
            let machine = &self.machines[at];
            let local = machine.local(self.now);
            match machine.device.hold(holder, "a batch runs", length, local) {
                Err(refused) => self.tell(Some(at), format_args!("{holder} may not hold: {refused}")),
                Ok(hold) => self.grant(at, hold)?,
            }
        }
        if self.machines[at].is_up() { self.turn(at) } else { Ok(()) }
    }

    /// An operator asks a device to hold changes back, to let them go on, or to look again.
    pub(super) async fn ask_a_device(&mut self, fleet: &Fleet) -> Result<(), Violation> {
        let name = client(self.dice.below(self.machines.len()));
        let device = DeviceRef::parse(name.as_str()).map_err(broken)?;
        let (said, result) = match self.dice.below(5) {
            0 => ("look again".to_owned(), fleet.look_again(&operator(), &device).await),
            1 => ("let changes go on".to_owned(), fleet.release_device(&operator(), &device).await),
            _ => {
                let longest = self.dice.pick(&[600, 7200]);
                let seconds = self.dice.seconds(20, longest).as_secs();
                let want = HoldDevice { reason: "a batch runs".to_owned(), seconds };
                let said = format!("hold changes back for {seconds} s");
                (said, fleet.hold_device(&operator(), &device, &want).await)
            }
        };
        self.story.tell(self.now, "operator", format_args!("asks {name} to {said}"));
        match result {
            Ok(_) => {}
            // Longer than is allowed there, or nothing to take back.
            Err(error @ (Error::Invalid(_) | Error::Conflict { .. } | Error::NotFound { .. })) => {
                self.story.tell(self.now, "operator", format_args!("was refused: {error}"));
            }
            Err(error) => return Err(broken(format!("the operator asks {name} to {said}: {error}"))),
        }
        self.after_server().await
    }

    fn grant(&mut self, at: usize, hold: Hold) -> Result<(), Violation> {
        let now = self.now;
        let machine = &self.machines[at];
        let local = machine.local(now);
        let granted = Granted {
            holder: hold.holder.clone(),
            asked_at: local,
            since: Moment(now.0.saturating_sub(millis(local.since(hold.since)))),
            until: now.after(hold.until.since(local)),
        };
        let in_force = machine.device.holds(local);
        let (known, first) = (in_force.contains(&&hold), in_force.is_empty());
        if first {
            self.machines[at].memory.held_since = None;
        }
        self.tell(Some(at), format_args!("{} holds changes back until {}", hold.holder, hold.until));
        if !known {
            self.absorb(at, Event::Held(hold))?;
        }
        // It is promised once it is written down.
        let written = matches!(self.commit(at)?, Written::Done);
        let memory = &mut self.machines[at].memory;
        memory.granted.retain(|before| before.holder != granted.holder);
        memory.granted.extend(written.then_some(granted));
        Ok(())
    }

    /// A deliberate bug: what is about to end begins anew.
    pub(super) fn prolong(&mut self, at: usize) {
        if self.sabotage != Some(Sabotage::HoldsForEver) {
            return;
        }
        let machine = &mut self.machines[at];
        let local = machine.local(self.now);
        let longest = machine.device.schedule().hold_max;
        let Some(hold) = machine.device.holds(local).first().map(|hold| (*hold).clone()) else { return };
        // A day, where nothing was chosen, is longer than a world lives.
        let Some(longest) = longest else { return };
        let longer = Hold { since: local, until: local.after(longest), ..hold };
        machine.device.absorb(&machine.settings, local, 0.5, Event::Held(longer));
    }
}
