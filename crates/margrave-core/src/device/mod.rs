//! A device's decisions: desired state in, what to do next out.
//!
//! [`Device`] holds everything that must survive a power cut. It absorbs facts ([`Event`]) and says what
//! to do next ([`Device::next`]); it never asks what just happened, so first boot, restart and retry take
//! the same path. The agent performs the actions and owns clock, disk and network.
//!
//! `upstream.rs` decides about the server (capabilities, polling, fetching, reporting), `look.rs`, `work.rs` and `removal.rs` about
//! the runtime (observe, apply, remove). All only read and write this one state.

mod action;
mod asked;
mod assignment;
mod beneath;
mod blind;
mod contact;
mod download;
mod failing;
mod health;
mod hold;
mod hush;
mod look;
mod order;
mod outbox;
mod patience;
mod removal;
mod restarts;
mod retelling;
mod settling;
mod upstream;
mod verify;
mod waiting;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::asked::Asked;
use crate::digest::Digest;
use crate::id::{AssignmentId, ComponentName, DeviceId};
use crate::lifecycle::{Reported, State};
use crate::manifest::Accepted;
use crate::moment::Moment;
use crate::report::{ComponentReport, Detail, Failure, Fault, Report};
use crate::schedule::Schedule;
use crate::workload::Workload;

pub use action::{Action, Backoff, Delivery, Event, FetchPlan, Polled, Trouble};
pub use assignment::{Ahead, Assignment, GivenUp, Progress};
pub use blind::{BLIND_MESSAGE_LENGTH_MAX, Blind};
pub use hold::{HOLD_MAX_USUAL, HOLDER_LENGTH_MAX, HOLDS_MAX, Hold, HoldRefused};
pub use order::{Health, Observation, Order};
pub use outbox::Outbox;
pub use verify::{Missing, Verified};

/// What an operator can set, and what a test wants shorter.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub device: DeviceId,
    /// Between two polls, when the server does not hold them open.
    pub poll_every: Duration,
    /// How long a server may hold a poll open; zero asks it not to.
    pub poll_wait: Duration,
    /// The longest pause after failures to reach the server.
    pub poll_backoff_max: Duration,
    /// How often the server is told where everything stands although nothing happened.
    pub retell_every: Duration,
    /// Between two looks at what runs.
    pub observe_every: Duration,
    /// How long something may be down, drifted or unhealthy before it counts as failed. A deployment's own policy may give
    /// failing health checks longer.
    pub health_grace: Duration,
    /// How long an update has to stay healthy before there is no way back from it.
    pub proven_after: Duration,
    /// The pause after a first failed try; doubles with every further one.
    pub retry_delay: Duration,
    pub retry_delay_max: Duration,
    /// How many assignments are downloaded at once, and how many are worked on that are here; beside one that is fetched ahead,
    /// and one that is mended, gone back to or removed.
    pub work_count_max: usize,
    pub overrides: Overrides,
}

/// What was set on the device itself, and goes before what the server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// `poll_every`.
    pub poll: bool,
    /// `poll_wait`.
    pub wait: bool,
    /// Hours, downtimes and windows do not count.
    pub schedule: bool,
    /// Whether bytes are dear.
    pub saver: Option<bool>,
    /// Whether images go that no deployment needs any more.
    pub removes_images: Option<bool>,
}

impl Settings {
    pub fn new(device: DeviceId) -> Self {
        Settings {
            device,
            poll_every: Duration::from_secs(30),
            // As long as a server likes; it answers earlier when it does not like to.
            poll_wait: Duration::from_secs(300),
            poll_backoff_max: Duration::from_secs(300),
            // A server that forgot something is rare, and every telling is a write to flash.
            retell_every: Duration::from_secs(24 * 3600),
            observe_every: Duration::from_secs(15),
            health_grace: Duration::from_secs(10),
            // Most of what does not survive its start does not survive its first minute.
            proven_after: Duration::from_secs(60),
            retry_delay: Duration::from_secs(5),
            // Long enough to leave a broken registry in peace, short enough that nobody drives out to the device.
            retry_delay_max: Duration::from_secs(900),
            // A slow image on one assignment must not keep another one waiting.
            work_count_max: 2,
            overrides: Overrides::default(),
        }
    }
}

/// How many reports may wait of assignments that are not here. Whoever shows manifests full of others again and again, be it by
/// mistake, must not fill the disk with answers. One that goes on asking is told of the rest once it has heard these.
const ABSENCES_MAX: usize = 1_000;

/// What a document turned out to say.
pub type Reading = Result<Workload, Failure>;

/// The device's whole memory. Serialised, it is the ledger's content; fields marked `skip` are the
/// impressions of one process and are gathered anew after a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Device {
    accepted: Option<Accepted>,
    assignments: BTreeMap<AssignmentId, Assignment>,
    outbox: Outbox,
    /// The capabilities body that the server last acknowledged.
    capabilities_known: Option<Digest>,
    /// Whom the server that `accepted` came from takes this device for; `None` in ledgers of older agents.
    #[serde(default)]
    principal: Option<String>,
    /// The version of the first manifest that this memory accepted: after a loss it begins with a later one, so that a server
    /// can tell what was said before from what was said since. `None` in ledgers of older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    life: Option<u64>,
    /// Drawn when `life` began, so that what one memory said is never taken for the first words of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<u32>,
    /// The device has another identity now, and nothing was accepted under it yet: what is desired stays
    /// desired, but the number of its manifest belongs to another sequence.
    #[serde(default)]
    moved: bool,
    /// Which life of the machine this is, as its system names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    /// When the agent noticed that, by a clock that may not have been set yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    booted_at: Option<Moment>,
    /// The server asked for quiet, for so long that a restart must not forget it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quiet_until: Option<Moment>,
    /// Since when it does; `None` in ledgers of older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quiet_since: Option<Moment>,
    /// When to talk and to change, as the server said last.
    #[serde(default, deserialize_with = "understood", skip_serializing_if = "Schedule::is_usual")]
    schedule: Schedule,
    /// When the server was heard for the last time, as far as that was written down (`contact.rs`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_heard: Option<Moment>,
    /// When it last said where everything stands although nothing happened; written down with what was said then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retold_at: Option<Moment>,
    /// Those who hold changes back, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    holds: Vec<Hold>,
    /// Changes were held back for as long as they may be; until then nobody may do so again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rest_until: Option<Moment>,
    /// What operators asked of this device last.
    #[serde(default, skip_serializing_if = "Asked::is_nothing")]
    asked: Asked,
    /// Why the hold among that does not count here, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold_refused: Option<String>,
    /// The last look that they asked for and that was done.
    #[serde(default, skip_serializing_if = "is_never")]
    looked: u64,
    /// It cannot look at its containers; kept, so that a restart neither takes it back nor tells it anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blind: Option<Blind>,

    #[serde(skip)]
    readings: BTreeMap<Digest, Reading>,
    /// The disk was asked for documents; what is not among the readings is not there.
    #[serde(skip)]
    has_read: bool,
    #[serde(skip)]
    upstream: upstream::Upstream,
    #[serde(skip)]
    work: work::Work,
    /// Counts what this process has absorbed, to tell older news from newer.
    #[serde(skip)]
    tick: u64,
}

impl Device {
    /// A device that has never heard from a server.
    pub fn blank() -> Self {
        Device {
            accepted: None,
            assignments: BTreeMap::new(),
            outbox: Outbox::default(),
            capabilities_known: None,
            principal: None,
            life: None,
            memory: None,
            moved: false,
            boot: None,
            booted_at: None,
            quiet_until: None,
            quiet_since: None,
            schedule: Schedule::default(),
            last_heard: None,
            retold_at: None,
            holds: vec![],
            rest_until: None,
            asked: Asked::default(),
            hold_refused: None,
            looked: 0,
            blind: None,
            readings: BTreeMap::new(),
            has_read: false,
            upstream: Default::default(),
            work: Default::default(),
            tick: 0,
        }
    }

    /// What to do next, or `None` until something happens or [`Device::wake`] comes.
    ///
    /// Absorb [`Event::Began`] with the answer and write the ledger before performing it.
    pub fn next(&self, settings: &Settings, now: Moment) -> Option<Action> {
        self.next_upstream(settings, now).or_else(|| self.next_work(settings, now))
    }

    /// When [`Device::next`] may have another answer without anything happening.
    pub fn wake(&self, settings: &Settings, now: Moment) -> Option<Moment> {
        [self.wake_upstream(settings, now), self.wake_work(settings, now)].into_iter().flatten().min()
    }

    /// Takes in one fact. `roll` is a number in 0..1 from the caller's dice, for jitter.
    pub fn absorb(&mut self, settings: &Settings, now: Moment, roll: f64, event: Event) {
        self.tick += 1;
        if self.tick == 1 {
            self.upstream.dice = roll.clamp(0.0, 1.0);
            self.await_retelling(settings, now, roll);
        }
        let begins = matches!(event, Event::Read(_) | Event::Booted(_) | Event::IdentityIs(_));
        match self.hushed(event) {
            Event::Began(action) => self.began(settings, now, action),
            Event::Unbegun(action) => self.unbegun(&action),
            Event::Read(readings) => {
                self.readings.extend(readings);
                self.has_read = true;
            }
            Event::Booted(boot) => self.booted(boot, now),
            Event::IdentityIs(principal) => self.identity_is(principal),
            Event::WayRenewed => self.way_renewed(now),
            Event::CapabilitiesAre(digest) => self.capabilities_are(digest, now),
            Event::CapabilitiesSent(result) => self.capabilities_sent(settings, now, roll, result),
            Event::Polled(result) => self.polled(settings, now, roll, result),
            Event::Fetched(result) => self.fetched(settings, now, roll, result),
            Event::Sent { sequence, result } => self.sent(settings, now, roll, sequence, result),
            Event::Rebuffed { sequence, trouble } => self.rebuffed(settings, now, roll, sequence, trouble),
            Event::Held(hold) => self.held(hold),
            Event::Released(holder) => self.released(holder),
            Event::Stirred => self.stirred(now),
            Event::Stopping => self.keep_contact(),
            Event::Observed(result) => self.observed(settings, now, roll, result),
            Event::Prefetched { assignment, component, fingerprint, result } => {
                self.prefetched(settings, now, roll, assignment, component, fingerprint, result)
            }
            Event::Applied { assignment, component, fingerprint, result } => {
                self.applied(settings, now, roll, assignment, component, fingerprint, result)
            }
            Event::Removed { assignment, component, result } => {
                self.removed(settings, now, roll, assignment, component, result)
            }
        }
        // What a process is told when it begins is judged when all of it is known: what runs without its documents, or a clock of which
        // nobody has said yet that the machine was just started, would be judged wrongly.
        if !begins {
            self.settle(settings, now);
        }
    }

    /// Documents that the ledger must keep: everything wanted, held, known to be good, or given up, and what is here already of a
    /// manifest that still waits for the rest.
    pub fn documents(&self) -> BTreeSet<Digest> {
        // What was given up says what it left behind.
        let both = self.assignments.values().flat_map(|a| [Some(a), a.beneath.as_deref()]).flatten();
        let given_up = both.filter_map(|a| Some(a.given_up.as_ref()?.document));
        let staged = self.upstream.staged.iter().flat_map(|(manifest, _)| manifest.entries());
        let staged = staged.map(|entry| entry.document.digest).filter(|d| self.readings.contains_key(d));
        self.appliable().chain(given_up).chain(staged).collect()
    }

    /// What is read at a start: every document that is kept, whose it is, and whether it is in force. Of one that is, only what it
    /// says matters: whether this device is one for it was judged when it came, and a cable that is out today is no reason to
    /// leave what runs to itself.
    pub fn kept(&self) -> BTreeMap<Digest, (AssignmentId, bool)> {
        let mut kept = BTreeMap::new();
        for (id, above) in &self.assignments {
            for assignment in [Some(above), above.beneath.as_deref()].into_iter().flatten() {
                // One that was refused has none.
                let held = assignment.held.filter(|_| !assignment.components.is_empty());
                let given_up = assignment.given_up.as_ref().map(|given_up| given_up.document);
                let in_force = [held, assignment.good];
                let others = [assignment.wanted, assignment.held, given_up];
                for digest in others.into_iter().flatten() {
                    kept.entry(digest).or_insert((*id, false));
                }
                kept.extend(in_force.into_iter().flatten().map(|digest| (digest, (*id, true))));
            }
        }
        kept
    }

    fn appliable(&self) -> impl Iterator<Item = Digest> {
        self.assignments.values().flat_map(Assignment::documents).flatten()
    }

    /// The fingerprints of all orders that may be carried out: what was fetched for any other is not needed any more. `None`
    /// while nobody can tell, because a document is not read or not here.
    pub fn needed(&self) -> Option<BTreeSet<Digest>> {
        let mut needed = BTreeSet::new();
        for document in self.appliable() {
            if let Ok(workload) = self.readings.get(&document)? {
                needed.extend(Order::of(workload).iter().map(Order::fingerprint));
            }
        }
        self.has_read.then_some(needed)
    }

    /// When to talk and to change, as the server said last.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Whether images that the device pulled itself go once no deployment needs them any more.
    pub fn removes_images(&self, settings: &Settings) -> bool {
        settings.overrides.removes_images.unwrap_or(self.schedule.removes_images)
    }

    pub fn accepted(&self) -> Option<&Accepted> {
        self.accepted.as_ref()
    }

    pub fn assignments(&self) -> &BTreeMap<AssignmentId, Assignment> {
        &self.assignments
    }

    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub fn reading(&self, document: &Digest) -> Option<&Reading> {
        self.readings.get(document)
    }

    /// Whether everything wanted is installed and the server has heard of it.
    pub fn converged(&self) -> bool {
        let as_wanted =
            |a: &Assignment| a.state == State::Installed && a.wanted == a.held && a.wanted.is_some();
        self.accepted.is_some() && self.outbox.is_empty() && self.assignments.values().all(as_wanted)
    }

    /// Moves an assignment and tells the server. Every change of state in the device goes through here.
    fn transition(&mut self, settings: &Settings, id: AssignmentId, next: State, now: Moment) {
        let assignment = self.assignments.get_mut(&id).expect("only known assignments move");
        assert!(
            assignment.state.may_become(next),
            "{} -> {next} is not in the table of the design page",
            assignment.state
        );
        assignment.state = next;
        assignment.since = now;
        assignment.starting_since = None;
        self.report(settings, id, now);
    }

    /// Queues a report of where `id` stands now.
    fn report(&mut self, settings: &Settings, id: AssignmentId, now: Moment) {
        if self.work.lifted == Some(id) {
            // What is above is what is spoken of.
            return;
        }
        self.count_restarts(id);
        let assignment = self.assignments.get(&id).expect("only known assignments are reported");
        let workload =
            assignment.held.or(assignment.wanted).and_then(|d| self.readings.get(&d)?.as_ref().ok());
        let fault = |failure: &Failure, source: &str| Fault {
            code: failure.code.to_string(),
            source: source.to_owned(),
            message: failure.message.clone(),
        };
        let name = workload.map_or("margrave-agent", |workload| workload.name.as_str());
        let mut components: Vec<ComponentReport> = assignment
            .components
            .iter()
            .map(|progress| ComponentReport {
                name: progress.name.to_string(),
                state: progress.state,
                fault: progress.failure.as_ref().map(|failure| fault(failure, progress.name.as_str())),
                restarts: progress.restarts,
            })
            .collect();
        if components.is_empty() {
            // One entry per component in every report, also before any is touched (DM-090).
            let state = assignment.state.reported();
            let names = workload.into_iter().flat_map(|workload| &workload.components);
            components.extend(names.map(|c| ComponentReport {
                name: c.name.to_string(),
                state,
                fault: None,
                restarts: 0,
            }));
        }
        if let Some(ailment) = assignment.ailment.as_ref().filter(|_| assignment.beneath().is_some()) {
            // What the state speaks of has replaced nothing yet, and what runs in its place is not well.
            let of = ailment.component.as_ref().map_or(name, ComponentName::as_str);
            let fault = Some(fault(ailment, of));
            match components.iter_mut().find(|component| component.name == of) {
                Some(component) => component.fault = fault,
                None => {
                    let state = Reported::Failed;
                    components.push(ComponentReport { name: of.to_owned(), state, fault, restarts: 0 });
                }
            }
        }
        if let Some((name, failure)) = &assignment.stray {
            let state = if failure.is_some() { Reported::Removing } else { Reported::Removed };
            let fault = failure.as_ref().map(|failure| fault(failure, name.as_str()));
            components.push(ComponentReport { name: name.to_string(), state, fault, restarts: 0 });
        }
        let mut state = assignment.state.reported();
        let mut failure = assignment.failure.as_ref();
        // Also while something newer waits: until that is adopted, the report speaks of what was given up. Of what goes it says how
        // that goes.
        let goes = matches!(assignment.state, State::Deleting | State::Deleted);
        if let Some(given_up) = assignment.given_up.as_ref().filter(|_| !goes) {
            // What runs and that the update failed are both true. Any server understands the second, and it is the one
            // to act on; ours reads the first in the detail.
            failure = failure.or(Some(&given_up.failure));
            if assignment.state == State::Installed {
                state = Reported::Failed;
                let culprit = given_up.failure.component.as_ref().map_or(name, ComponentName::as_str);
                let fault = Some(fault(&given_up.failure, culprit));
                match components.iter_mut().find(|component| component.name == culprit) {
                    Some(component) => (component.state, component.fault) = (state, fault),
                    None => components.push(ComponentReport {
                        name: culprit.to_owned(),
                        state,
                        fault,
                        restarts: 0,
                    }),
                }
            }
        }
        let report = Report {
            assignment: id,
            device: Some(settings.device.clone()),
            adopted_version: assignment.adopted_version,
            state,
            fault: failure.map(|failure| fault(failure, name)),
            components,
            detail: Some(Detail {
                state: assignment.state,
                sequence: self.outbox.next_sequence(),
                at: now,
                document: assignment.held.or(assignment.wanted),
                attempt: assignment.attempt,
                // What nobody here can read is tried by another agent, and nobody knows when.
                next_try: assignment.next_try.filter(|_| self.misread(assignment).is_none()),
                reason: failure.map(|failure| failure.message.clone()),
                waiting: assignment.waiting.clone(),
                awaited: assignment.awaited,
                life: self.life,
                memory: self.memory,
                holds: self.disputed(),
            }),
            signed_at: None,
        };
        let alone = self.saves(settings);
        self.outbox.push(report, alone);
    }

    /// Queues reports that what a manifest of another past lists is not here.
    fn report_absences(&mut self, settings: &Settings, absent: Vec<AssignmentId>, held: u64, now: Moment) {
        let unknown = |report: &&Report| !self.assignments.contains_key(&report.assignment);
        let waiting = self.outbox.waiting().filter(unknown).count();
        for id in absent.into_iter().take(ABSENCES_MAX.saturating_sub(waiting)) {
            self.report_absence(settings, id, held, now);
        }
    }

    fn report_absence(&mut self, settings: &Settings, id: AssignmentId, held: u64, now: Moment) {
        let state = State::Deleted;
        let report = Report {
            assignment: id,
            device: Some(settings.device.clone()),
            adopted_version: held,
            state: state.reported(),
            fault: None,
            components: vec![],
            detail: Some(Detail {
                state,
                sequence: self.outbox.next_sequence(),
                at: now,
                document: None,
                attempt: 0,
                next_try: None,
                reason: None,
                waiting: None,
                awaited: None,
                life: self.life,
                memory: self.memory,
                holds: self.disputed(),
            }),
            signed_at: None,
        };
        let alone = self.saves(settings);
        self.outbox.push(report, alone);
    }
}

fn is_never(number: &u64) -> bool {
    *number == 0
}

/// A schedule that an agent of another version wrote and this one cannot read is as good as none: memory must not be lost for it.
fn understood<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Schedule, D::Error> {
    let written = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(written).unwrap_or_default())
}

/// `base` doubled `times` times, at most `max`, shortened by up to half so that a fleet does not come back together.
fn backoff(base: Duration, max: Duration, times: u32, roll: f64) -> Duration {
    let full = base.saturating_mul(2u32.saturating_pow(times.min(20))).min(max);
    full.mul_f64(1.0 - roll.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests;
