//! One device of the world: its process, its disk, its engine, and what the checks remember of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use margrave_core::device::{Action, Assignment, Device, Settings};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, ComponentName, DeviceId};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::report::{FailureCode, Report};

use super::waiting::CLOCK_SENSIBLE;
use crate::disk::Disk;
use crate::engine::Engine;
use crate::fault::Tally;
use crate::server::client;
use crate::upstream::{Fetch, Own, Reply, Urls};

/// What an act of the engine comes to, and whether the agent hears the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Honest,
    Fails(FailureCode),
    Hangs,
    SaysDone,
    SaysFailed,
}

/// Something that a process has begun.
#[derive(Debug, Clone)]
pub(crate) struct Doing {
    pub(crate) action: Action,
    pub(crate) exchange: u64,
    pub(crate) fetch: Option<Fetch>,
    pub(crate) fate: Fate,
    pub(crate) warm_up: Duration,
    /// The manifest that was accepted when it began.
    pub(crate) version: u64,
}

/// What the checks know of a device beside what it says of itself.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The state that was last told of each assignment.
    pub(crate) told: BTreeMap<AssignmentId, State>,
    /// The numbers of the reports of each, ascending.
    pub(crate) newest: BTreeMap<AssignmentId, Vec<u64>>,
    pub(crate) sequence: u64,
    /// Every report that was ever made, by its bytes.
    pub(crate) made: BTreeSet<Digest>,
    /// What the runtime said is up, and was not said to be down since.
    pub(crate) words: BTreeSet<(AssignmentId, ComponentName, Digest)>,
    pub(crate) version: u64,
    /// Volumes that there ever were.
    pub(crate) volumes: BTreeMap<(AssignmentId, ComponentName), u64>,
    /// The report that the server's picture shows, by assignment.
    pub(crate) pictured: BTreeMap<AssignmentId, (u64, u64, u64)>,
    pub(crate) pictured_past: u64,
    /// Reports that the server took, and polls that it answered, in their order.
    pub(crate) heard: Vec<u64>,
    pub(crate) polls: u64,
    /// How many it had answered when the newest manifest was accepted.
    pub(crate) polls_to_accept: u64,
    /// The documents whose containers were begun with, in their order, by assignment.
    pub(crate) begun: BTreeMap<AssignmentId, Vec<Digest>>,
    /// The fingerprints of everything that was fetched.
    pub(crate) fetched: BTreeSet<Digest>,
    /// What a look found sick since it was told to be installed: then it may be tried again.
    pub(crate) sick: BTreeSet<AssignmentId>,
    /// What failed by somebody's hand alone, where that is to be left.
    pub(crate) left: BTreeSet<AssignmentId>,
    /// What was tried and given up while its entry stands in the manifest, by assignment.
    pub(crate) given_up: BTreeMap<AssignmentId, Digest>,
    /// Components of which the engine said that something was done to them which was not.
    pub(crate) deceived: BTreeSet<(AssignmentId, ComponentName)>,
    /// What lives beneath something newer that has touched nothing yet.
    pub(crate) beneath: BTreeSet<AssignmentId>,
    /// The document that was last said to be installed.
    pub(crate) installed: BTreeMap<AssignmentId, Digest>,
    /// What was to be told of as installed, each document once: only kept where a deliberate bug loses it.
    good_news: BTreeSet<(AssignmentId, Digest)>,
    /// What is wanted, and since when.
    pub(crate) wanted: BTreeMap<AssignmentId, (Option<Digest>, Moment)>,
    /// When something went wrong last that may make honest work fail.
    pub(crate) hurt_until: Moment,
    /// When the power went, the last times.
    falls: VecDeque<Moment>,
    /// Who was promised that changes are held back.
    pub(crate) granted: Vec<Granted>,
    /// Since when they are without a break, as far as the device's clock can tell.
    pub(crate) held_since: Option<Moment>,
    /// What went wrong on this device: others have no excuse in it.
    pub(crate) faults: Tally,
}

/// So long after a machine was started nothing begins that has a window.
const SETTLES: Duration = Duration::from_secs(180);
/// Who went down so often while something was started may have died of it.
const FALLS: usize = 4;

impl Memory {
    /// The power goes. That is nobody's fault until it has happened again and again: then it excuses what is older.
    pub(crate) fn went_down(&mut self, now: Moment) {
        self.falls.push_back(now);
        if self.falls.len() >= FALLS {
            self.hurt_until = self.hurt_until.max(self.falls.pop_front().unwrap_or_default());
        }
    }

    /// Whether this is the first time that a document is told to be installed.
    pub(crate) fn is_good_news(&mut self, report: &Report) -> bool {
        let detail = report.detail.as_ref().filter(|detail| detail.state == State::Installed);
        let document = detail.and_then(|detail| detail.document);
        document.is_some_and(|document| self.good_news.insert((report.assignment, document)))
    }

    /// A process begins, with what is on disk.
    pub(crate) fn remember(&mut self, device: Option<&Device>) {
        (self.given_up, self.installed, self.beneath) = Default::default();
        for (id, assignment) in device.into_iter().flat_map(Device::assignments) {
            self.beneath.extend(assignment.beneath().map(|_| *id));
            self.given_up.extend(given_up(assignment).map(|document| (*id, document)));
            let said = assignment.held.filter(|_| assignment.state == State::Installed);
            self.installed.extend(said.map(|document| (*id, document)));
        }
    }
}

/// What was tried and given up. What an agent could not even read is tried by the first that can.
pub(crate) fn given_up(assignment: &Assignment) -> Option<Digest> {
    assignment.gave_up().filter(|given_up| !given_up.refused).map(|given_up| given_up.document)
}

/// Somebody at the device was promised that changes are held back.
#[derive(Debug, Clone)]
pub(crate) struct Granted {
    pub(crate) holder: String,
    /// By the device's clock.
    pub(crate) asked_at: Moment,
    /// By the world's clock.
    pub(crate) since: Moment,
    pub(crate) until: Moment,
}

pub(crate) struct Machine {
    pub(crate) client: ClientId,
    pub(crate) name: DeviceId,
    pub(crate) settings: Settings,
    pub(crate) own: Own,
    pub(crate) disk: Disk,
    pub(crate) engine: Engine,
    /// The agent's memory, while it runs.
    pub(crate) device: Device,
    up: bool,
    /// Which process of the agent this is.
    pub(crate) life: u64,
    /// Which life of the machine this is.
    pub(crate) boots: u64,
    /// The last of them in which an agent was started.
    begun_in: u64,
    /// Until when nobody is to trust its clock after that, by that clock; it is known better once it was set.
    pub(crate) settles_until: Option<Moment>,
    /// How far its clock is off, in milliseconds.
    pub(crate) offset: i64,
    pub(crate) under_way: BTreeMap<u64, Doing>,
    pub(crate) ticket: u64,
    pub(crate) exchange: u64,
    pub(crate) wake_number: u64,
    pub(crate) urls: Urls,
    pub(crate) outage_until: Moment,
    pub(crate) expired: bool,
    pub(crate) stirring: bool,
    /// Manifests that it was ever answered with.
    pub(crate) history: Vec<Reply>,
    pub(crate) memory: Memory,
}

impl Machine {
    pub(crate) fn new(at: usize, scratch: &Path, patient: bool) -> anyhow::Result<Machine> {
        let client = client(at);
        let name = DeviceId::parse(client.as_str())?;
        let mut settings = Settings::new(name.clone());
        if !patient {
            settings.poll_wait = Duration::ZERO;
        }
        let (disk, _) = Disk::open(&scratch.join(client.as_str()))?;
        Ok(Machine {
            own: Own::new(&name),
            client,
            name,
            settings,
            disk,
            engine: Engine::default(),
            device: Device::blank(),
            up: false,
            life: 0,
            boots: 1,
            begun_in: 0,
            settles_until: None,
            offset: 0,
            under_way: BTreeMap::new(),
            ticket: 0,
            exchange: 0,
            wake_number: 0,
            urls: Urls::new(),
            outage_until: Moment(0),
            expired: false,
            stirring: false,
            history: vec![],
            memory: Memory::default(),
        })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up
    }

    /// Whether this process is the one that runs.
    pub(crate) fn is(&self, life: u64) -> bool {
        self.up && self.life == life
    }

    pub(crate) fn started(&mut self, device: Device, now: Moment) {
        self.device = device;
        self.up = true;
        if self.begun_in != self.boots {
            self.begun_in = self.boots;
            self.settles_until = Some(self.local(now).after(SETTLES));
        }
    }

    /// The process is gone, and all that it was doing with it.
    pub(crate) fn ended(&mut self) -> Vec<Doing> {
        self.up = false;
        self.life += 1;
        self.device = Device::blank();
        self.urls.clear();
        self.stirring = false;
        std::mem::take(&mut self.under_way).into_values().collect()
    }

    /// Its clock jumps. What was promised until a time is only promised as long as that can be told.
    pub(crate) fn set_clock(&mut self, now: Moment, offset: i64) {
        let before = self.local(now);
        self.offset = offset;
        self.memory.held_since = None;
        self.settles_until = None;
        let after = self.local(now);
        let is_set = before < CLOCK_SENSIBLE && after >= CLOCK_SENSIBLE;
        if after > before {
            // Only what was asked for without a clock is known not to be over.
            self.memory.granted.retain(|granted| is_set && granted.asked_at < CLOCK_SENSIBLE);
        }
    }

    /// What its clock says.
    pub(crate) fn local(&self, now: Moment) -> Moment {
        Moment(now.0.saturating_add_signed(self.offset))
    }

    pub(crate) fn open(&mut self, ticket: u64, exchange: u64) -> Option<&mut Doing> {
        self.under_way.get_mut(&ticket).filter(|doing| doing.exchange == exchange)
    }
}
