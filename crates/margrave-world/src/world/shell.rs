//! A device's loop around the core, as `margrave-agent/src/run.rs` has it, with death possible at every step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use margrave_core::device::{Action, Device, Event, Trouble};
use margrave_core::digest::{Digest, Document};
use margrave_core::lifecycle::Reported;
use margrave_core::moment::Moment;
use margrave_core::report::FailureCode;
use margrave_core::rollback::When;
use margrave_core::workload::Workload;

use super::machine::{Doing, Fate};
use super::{Happening, World, broken};
use crate::check::{Check, Violation};
use crate::disk::Torn;
use crate::fault::Fault;
use crate::sabotage::Sabotage;
use crate::upstream::{Ask, Fetch};

/// Never sleep longer than this: clocks jump, and a device must notice.
const NAP_MAX: Duration = Duration::from_secs(60);
/// What a device begins at one moment, at most; some documents have many components.
const ROUNDS_MAX: u32 = 2_000;

/// How a write of the ledger went.
pub(super) enum Written {
    Done,
    Refused(String),
    Died,
}

impl World {
    /// The agent starts, with nothing but what is on disk.
    pub(super) fn boot(&mut self, at: usize) -> Result<(), Violation> {
        let sabotage = self.sabotage;
        let machine = &mut self.machines[at];
        if machine.is_up() {
            return Ok(());
        }
        let durable = machine.disk.durable.clone();
        let mut device = machine.disk.reopen().map_err(broken)?;
        // What was not written down is not known any more.
        machine.memory.remember(device.as_ref());
        match sabotage {
            Some(Sabotage::LedgerForgets) => device = machine.disk.earlier().or(device),
            Some(Sabotage::StateSkips) => device = device.map(skipped),
            Some(Sabotage::HoldsForgotten) => device = device.map(|device| without(device, "holds")),
            Some(Sabotage::GivenUpForgotten) => device = device.map(forgiving),
            _ => {}
        }
        let device = device.unwrap_or_else(Device::blank);
        let version = device.accepted().map(|accepted| accepted.version);
        let states = device.assignments().iter().map(|(id, a)| (*id, a.state)).collect();
        if version < durable.version {
            let what = format!("had {:?} on disk and came back with {version:?}", durable.version);
            return Err(Violation::of(Check::VersionNeverGoesBack, &machine.name, what));
        }
        if states != durable.states {
            let what = format!("had {:?} on disk and came back with {states:?}", durable.states);
            return Err(Violation::of(Check::OnlyLegalTransitions, &machine.name, what));
        }
        machine.memory.told = states;
        machine.memory.sequence = device.outbox().next_sequence() - 1;
        machine.memory.version = version.unwrap_or(0);
        let newest = machine.memory.sequence;
        // What was not written down was never said.
        machine.memory.newest.values_mut().for_each(|numbers| numbers.retain(|number| *number <= newest));
        let mut readings = vec![];
        // What a machine of this world is only ever becomes more, so it does not matter what is in force.
        let unlearns = sabotage == Some(Sabotage::ReplacedUnderstandsNoMore);
        let reader = machine.own.with_agent(machine.own.is_dated || unlearns);
        for (digest, (id, _)) in device.kept() {
            if let Some(document) = machine.disk.read(&digest) {
                let reading = reader.read(id, &document);
                readings.push((digest, reading.map(|said| misread(sabotage, said))));
            }
        }
        let capabilities = Digest::of(&machine.own.body);
        let boot = format!("boot-{}", machine.boots);
        let principal = format!("spiffe://plant.example/margo/wfm/main/client/{}", machine.client);
        machine.started(device, self.now);
        self.tell(Some(at), format_args!("agent starts, {} documents", readings.len()));
        self.absorb(at, Event::Read(readings))?;
        self.absorb(at, Event::IdentityIs(principal))?;
        self.absorb(at, Event::Booted(boot))?;
        self.absorb(at, Event::CapabilitiesAre(capabilities))?;
        self.turn(at)
    }

    /// Asks the core what to do until it has nothing more, then waits.
    pub(super) fn turn(&mut self, at: usize) -> Result<(), Violation> {
        for round in 1.. {
            if round > ROUNDS_MAX {
                let what = "it begins and drops without end, at one moment".to_owned();
                return Err(Violation::of(Check::NothingBreaks, &self.machines[at].name, what));
            }
            let now = self.machines[at].local(self.now);
            let machine = &self.machines[at];
            let next = catch_unwind(AssertUnwindSafe(|| {
                self.talk_anyway(at, now).or_else(|| machine.device.next(&machine.settings, now))
            }))
            .map_err(|panic| panicked(&machine.name, &panic))?;
            let Some(action) = next else {
                match self.cancel_obsolete(at)? {
                    true if self.machines[at].is_up() => continue,
                    _ => break,
                }
            };
            self.absorb(at, Event::Began(action.clone()))?;
            if self.machines[at].device.obsolete(&action) {
                let what = format!("{} is begun, and nobody wants it", name(&action));
                return Err(Violation::of(Check::NothingBreaks, &self.machines[at].name, what));
            }
            if self.sabotage != Some(Sabotage::ActsBeforeWriting) {
                match self.commit(at)? {
                    Written::Done => {}
                    Written::Refused(why) => {
                        self.absorb(at, Event::Unbegun(action.clone()))?;
                        let event = action.undone(&format!("not begun: {why}"), FailureCode::DiskFull);
                        self.absorb(at, event)?;
                        continue;
                    }
                    Written::Died => return Ok(()),
                }
            }
            self.check_beginning(at, &action)?;
            if self.dies(at) {
                self.kill(at, "before it acted");
                return Ok(());
            }
            self.start(at, action)?;
        }
        if !self.machines[at].is_up() {
            return Ok(());
        }
        let machine = &mut self.machines[at];
        let now = machine.local(self.now);
        let wake = machine.device.wake(&machine.settings, now);
        let nap = wake.map_or(NAP_MAX, |wake| wake.since(now).min(NAP_MAX)).max(Duration::from_millis(1));
        machine.wake_number += 1;
        let number = machine.wake_number;
        self.after(nap, Happening::Wake { device: at, number });
        Ok(())
    }

    /// Drops what nobody wants any more; whether there was anything.
    fn cancel_obsolete(&mut self, at: usize) -> Result<bool, Violation> {
        let machine = &self.machines[at];
        let obsolete = machine.under_way.iter().find(|(_, doing)| machine.device.obsolete(&doing.action));
        let Some(ticket) = obsolete.map(|(ticket, _)| *ticket) else { return Ok(false) };
        let doing = self.machines[at].under_way.remove(&ticket).expect("found just above");
        self.tell(Some(at), format_args!("drops {}", name(&doing.action)));
        let event =
            doing.action.undone("stopped, because something else is wanted now", FailureCode::StartFailed);
        self.take_in(at, event)?;
        Ok(true)
    }

    fn start(&mut self, at: usize, action: Action) -> Result<(), Violation> {
        let machine = &mut self.machines[at];
        let touches = matches!(action, Action::Prefetch(_) | Action::Apply(_) | Action::Remove { .. });
        if (touches || matches!(action, Action::Send(_))) && !machine.disk.is_up_to_date() {
            let what = format!("{} began, and the disk does not know", name(&action));
            return Err(Violation::of(Check::IntentFirst, &machine.name, what));
        }
        machine.ticket += 1;
        let ticket = machine.ticket;
        let doing = Doing {
            action: action.clone(),
            exchange: 0,
            fetch: None,
            fate: Fate::Honest,
            warm_up: Duration::ZERO,
            version: machine.memory.version,
        };
        machine.under_way.insert(ticket, doing);
        let line = format!("begins {}", name(&action));
        let who = self.machines[at].client.as_str();
        match action {
            Action::Observe | Action::Poll { .. } => self.story.murmur(self.now, who, line),
            _ => self.story.tell(self.now, who, line),
        }
        match action {
            Action::SendCapabilities => {
                let machine = &self.machines[at];
                let ask = Ask::capabilities(&machine.name, machine.own.body.clone());
                self.send(at, ticket, ask);
            }
            Action::Poll { held, wait } => self.send(at, ticket, Ask::poll(held, wait)),
            Action::Fetch(plan) => {
                let fetch = Fetch::new(plan);
                let machine = &mut self.machines[at];
                let ask = fetch.next(&machine.urls);
                machine.under_way.get_mut(&ticket).expect("inserted just above").fetch = Some(fetch);
                match ask {
                    Some(ask) => self.send(at, ticket, ask),
                    None => self.end_soon(at, ticket, Event::Fetched(Ok(vec![]))),
                }
            }
            Action::Send(report) => {
                let sequence = report.detail.as_ref().map_or(0, |detail| detail.sequence);
                let drops = match self.sabotage {
                    Some(Sabotage::DropsReports) => self.dice.hit(0.3),
                    Some(Sabotage::LosesGoodNews) => self.machines[at].memory.is_good_news(&report),
                    Some(Sabotage::DropsDeaths) => report.state == Reported::Removed,
                    _ => false,
                };
                if drops {
                    self.end_soon(at, ticket, Event::Sent { sequence, result: Ok(()) });
                } else {
                    self.send(at, ticket, Ask::report(&report));
                }
            }
            Action::Observe | Action::Prefetch(_) | Action::Apply(_) | Action::Remove { .. } => {
                self.start_act(at, ticket)
            }
        }
        Ok(())
    }

    /// The outcome of what took no time.
    pub(super) fn end_soon(&mut self, at: usize, ticket: u64, event: Event) {
        let life = self.machines[at].life;
        let outcome = Happening::Outcome { device: at, life, ticket, event: Box::new(event) };
        self.after(Duration::from_millis(1), outcome);
    }

    /// Something that was under way came to its end.
    pub(super) fn finish(&mut self, at: usize, ticket: u64, event: Event) -> Result<(), Violation> {
        self.machines[at].under_way.remove(&ticket);
        if self.dies(at) {
            self.kill(at, "before it knew how that went");
            return Ok(());
        }
        self.take_in(at, event)?;
        if self.machines[at].is_up() { self.turn(at) } else { Ok(()) }
    }

    /// A fact: remembered at once, and written down as soon as the disk allows.
    fn take_in(&mut self, at: usize, event: Event) -> Result<(), Violation> {
        let event = match event {
            Event::Fetched(Ok(delivery)) => {
                let machine = &mut self.machines[at];
                let kept: Result<(), _> =
                    delivery.iter().try_for_each(|(document, _): &(Document, _)| machine.disk.keep(document));
                match kept {
                    Ok(()) => Event::Fetched(Ok(delivery)),
                    Err(error) => Event::Fetched(Err(Trouble::passing(error.to_string()))),
                }
            }
            event => event,
        };
        self.absorb(at, event)?;
        // What could not be written is written with the next one.
        self.commit(at).map(drop)
    }

    pub(super) fn absorb(&mut self, at: usize, event: Event) -> Result<(), Violation> {
        let roll = self.dice.roll();
        let machine = &mut self.machines[at];
        let now = machine.local(self.now);
        let shown = shown(&event);
        machine.disk.falls_behind();
        catch_unwind(AssertUnwindSafe(|| machine.device.absorb(&machine.settings, now, roll, event)))
            .map_err(|panic| panicked(&machine.name, &panic))?;
        if let Some(shown) = shown {
            self.tell(Some(at), shown);
        }
        self.prolong(at);
        self.after_absorbing(at)
    }

    /// A deliberate bug: whether it may talk is not asked.
    fn talk_anyway(&self, at: usize, now: Moment) -> Option<Action> {
        if self.sabotage != Some(Sabotage::TalksAnyway) {
            return None;
        }
        let machine = &self.machines[at];
        let mut settings = machine.settings.clone();
        settings.overrides.schedule = true;
        machine.device.next(&settings, now).filter(|action| matches!(action, Action::Poll { .. }))
    }

    pub(super) fn commit(&mut self, at: usize) -> Result<Written, Violation> {
        let dies = self.dies(at);
        let machine = &mut self.machines[at];
        let device = &machine.device;
        if dies && !machine.disk.is_up_to_date() {
            let how = if self.dice.hit(0.5) { Torn::Lost } else { Torn::Half };
            self.tally.note(if how == Torn::Lost { Fault::WriteLost } else { Fault::WriteTorn });
            machine.disk.tear(device, how, &mut self.dice).map_err(broken)?;
            self.kill(at, if how == Torn::Lost { "before it wrote" } else { "while it wrote" });
            return Ok(Written::Died);
        }
        let keeps = device.documents();
        match machine.disk.commit(device, &keeps) {
            Ok(()) => Ok(Written::Done),
            Err(error) if error.is_disk_full() => Ok(Written::Refused(error.to_string())),
            Err(error) => Err(broken(error)),
        }
    }

    fn dies(&mut self, at: usize) -> bool {
        self.machines[at].is_up() && self.dice.hit(self.rates.killed)
    }

    /// The agent's process ends, wherever it is.
    pub(super) fn kill(&mut self, at: usize, when: &str) {
        self.tally.note(Fault::AgentKilled);
        self.tell(Some(at), format_args!("agent dies {when}"));
        self.end_process(at);
        let pause = self.dice.millis(500, 30_000);
        self.after(pause, Happening::Boot { device: at });
    }

    pub(super) fn end_process(&mut self, at: usize) {
        let doing = self.machines[at].ended();
        self.holds.retain(|hold| hold.leg.device != at);
        for doing in doing {
            // What the engine was asked for may be done all the same.
            if self.dice.hit(0.3) {
                self.complete_unheard(at, &doing);
            }
        }
    }
}

/// A device whose first installed assignment is said to go back.
fn skipped(device: Device) -> Device {
    let Ok(text) = serde_json::to_string(&device) else { return device };
    let text = text.replacen(r#""state":"INSTALLED""#, r#""state":"ROLLINGBACK""#, 1);
    serde_json::from_str(&text).unwrap_or(device)
}

/// A deliberate bug: what a document says, without any way back.
pub(super) fn misread(sabotage: Option<Sabotage>, mut said: Workload) -> Workload {
    if sabotage == Some(Sabotage::NeverGoesBack) {
        said.hints.rollback.when = When::Never;
    }
    said
}

/// A device whose memory lacks something.
fn without(device: Device, field: &str) -> Device {
    let Ok(mut memory) = serde_json::to_value(&device) else { return device };
    if let Some(fields) = memory.as_object_mut() {
        fields.remove(field);
    }
    serde_json::from_value(memory).unwrap_or(device)
}

/// A device that gave nothing up.
fn forgiving(device: Device) -> Device {
    let Ok(mut memory) = serde_json::to_value(&device) else { return device };
    let assignments = memory.get_mut("assignments").and_then(serde_json::Value::as_object_mut);
    for assignment in assignments.into_iter().flatten().filter_map(|(_, of)| of.as_object_mut()) {
        assignment.remove("given_up");
    }
    serde_json::from_value(memory).unwrap_or(device)
}

fn panicked(device: &margrave_core::id::DeviceId, panic: &Box<dyn std::any::Any + Send>) -> Violation {
    let text = panic.downcast_ref::<String>().cloned();
    let text =
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
    let check =
        if text.contains("not in the table") { Check::OnlyLegalTransitions } else { Check::NothingBreaks };
    Violation::of(check, device, format!("the core panicked: {text}"))
}

pub(super) fn name(action: &Action) -> String {
    match action {
        Action::SendCapabilities => "telling capabilities".to_owned(),
        Action::Poll { wait, .. } => format!("poll, wait {} s", wait.as_secs()),
        Action::Fetch(_) => "fetch".to_owned(),
        Action::Send(report) => {
            let sequence = report.detail.as_ref().map_or(0, |detail| detail.sequence);
            let state = report.detail.as_ref().map_or("?", |detail| detail.state.as_str());
            format!(
                "report #{sequence} {} {state} of version {}",
                short(report.assignment),
                report.adopted_version
            )
        }
        Action::Observe => "look".to_owned(),
        Action::Prefetch(order) => format!("prefetch {}/{}", short(order.assignment), order.component),
        Action::Apply(order) => format!("apply {}/{}", short(order.assignment), order.component),
        Action::Remove { assignment, component, aside } => {
            format!("remove {}/{component}{}", short(*assignment), if *aside { " aside" } else { "" })
        }
    }
}

/// Enough of an id to tell a world's few apart.
pub(super) fn short(id: margrave_core::id::AssignmentId) -> String {
    id.to_string().chars().take(4).collect()
}

fn shown(event: &Event) -> Option<String> {
    match event {
        Event::CapabilitiesSent(Err(trouble))
        | Event::Polled(Err(trouble))
        | Event::Fetched(Err(trouble))
        | Event::Sent { result: Err(trouble), .. } => Some(format!("trouble: {}", trouble.message)),
        Event::Observed(Err(failure)) => Some(format!("cannot look: {}", failure.message)),
        Event::Prefetched { component, result: Err(failure), .. } => {
            Some(format!("prefetch of {component} failed: {}", failure.message))
        }
        Event::Applied { component, result: Err(failure), .. } => {
            Some(format!("apply of {component} failed: {}", failure.message))
        }
        Event::Applied { component, result: Ok(()), .. } => Some(format!("{component} is up")),
        Event::Removed { component, result: Err(failure), .. } => {
            Some(format!("removal of {component} failed: {}", failure.message))
        }
        Event::Removed { component, result: Ok(()), .. } => Some(format!("{component} is gone")),
        _ => None,
    }
}
