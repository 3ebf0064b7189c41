//! One world: a server, its devices, and everything that goes wrong between them, in virtual time.
//!
//! One clock and one queue of happenings; nothing else decides what comes next. The parts: `shell.rs` is a device's
//! loop around the core, `network.rs` carries requests and answers, `act.rs` what the engine is asked for,
//! `incident.rs` what breaks at a time, `intent.rs`, `rollout.rs` and `timetable.rs` what operators want, `holder.rs` those at the device
//! who want it later, `promise.rs`, `waiting.rs` and `ending.rs` what must hold.

mod act;
mod ending;
mod holder;
mod incident;
mod intent;
mod machine;
mod network;
mod offline;
mod promise;
mod rollout;
mod shell;
mod timetable;
mod waiting;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use margrave_core::device::Event;
use margrave_core::moment::Moment;
use tempfile::TempDir;

use crate::check::{Check, Violation};
use crate::dice::Dice;
use crate::engine::Hand;
use crate::fault::{Fault, Tally};
use crate::plan::{Incident, Plan, Rates};
use crate::sabotage::Sabotage;
use crate::server::{BEGINNING, Down, Held, Server, scratch};
use crate::story::Story;
use crate::upstream::{Ask, Reply};

pub(crate) use machine::Machine;
pub use offline::Offline;
use promise::Published;
use rollout::Carefully;

/// How long a world may take to come to rest once nothing goes wrong any more.
const REST_WITHIN: Duration = Duration::from_secs(2 * 3600);
/// Having come to rest, it has to stay so.
const REST_LASTS: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// The same where times were chosen or changes held back: until somebody lets go, then until a window opens, then until
/// the device may tell of it.
const REST_WITHIN_SCHEDULED: Duration = Duration::from_secs(16 * 3600);
/// Who waits for longer is not looked at as often, and does not look as often.
const LOOK_CLOSELY_FOR: Duration = Duration::from_secs(1200);
const LOOK_LATER_EVERY: Duration = Duration::from_secs(300);
const OBSERVE_LATER_EVERY: Duration = Duration::from_secs(600);
/// How often devices say where they stand where the server is set back without a word. Elsewhere they never do, also who never
/// did or whose clock jumps over decades, so that nothing is told twice which must not be lost once.
const RETELL_EVERY: Duration = Duration::from_secs(40 * 60);
const RETELL_NEVER: Duration = Duration::from_secs(1_000_000 * 365 * 24 * 3600);
const SWEEP_EVERY: Duration = Duration::from_secs(300);
const SWEEP_LATER_EVERY: Duration = Duration::from_secs(900);

/// What comes next, at a time.
pub(crate) enum Happening {
    Wake { device: usize, number: u64 },
    Boot { device: usize },
    Arrive { leg: Leg, ask: Ask, echo: bool },
    Answer { leg: Leg, answer: Result<Reply, String> },
    GiveUp { leg: Leg },
    HoldOver { leg: Leg },
    Switch { device: usize, life: u64, ticket: u64 },
    Acted { device: usize, life: u64, ticket: u64 },
    Outcome { device: usize, life: u64, ticket: u64, event: Box<Event> },
    Stir { device: usize, life: u64 },
    Renewed { device: usize },
    SpaceFreed { device: usize },
    Incident { device: usize, incident: Incident },
    ServerUp,
    Resolve,
    Intent,
    Timetable,
    Holder { device: usize },
    Rollouts,
    Sweep,
}

/// One exchange of one process of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leg {
    pub(crate) device: usize,
    pub(crate) life: u64,
    pub(crate) ticket: u64,
    pub(crate) exchange: u64,
}

struct Scheduled {
    at: Moment,
    number: u64,
    what: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A poll that the server holds.
struct Hold {
    leg: Leg,
    held: Held,
}

/// What became of a seed.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub weather: &'static str,
    pub violation: Option<Violation>,
    pub story: Vec<String>,
    /// Of every line of the story; the same for the same seed.
    pub digest: u64,
    /// Lines of the story.
    pub steps: u64,
    pub device_time: Duration,
    pub faults: Tally,
}

pub struct World {
    pub(crate) now: Moment,
    queue: BinaryHeap<Reverse<Scheduled>>,
    number: u64,
    pub(crate) dice: Dice,
    pub(crate) rates: Rates,
    pub(crate) story: Story,
    pub(crate) tally: Tally,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) server: Option<Server>,
    down: Option<Down>,
    backups: usize,
    restore: bool,
    /// How often the server's memory was replaced by an older one.
    pub(crate) pasts: u64,
    /// Whether nobody told it so, the last time.
    pub(crate) unknowing: bool,
    pub(crate) machines: Vec<Machine>,
    holds: Vec<Hold>,
    pub(crate) published: Vec<Published>,
    pub(crate) carefully: Carefully,
    /// How many values operators have thought of.
    pub(crate) values: u64,
    sweep_every: Duration,
    plan: Plan,
    _scratch: TempDir,
}

impl World {
    /// Lives through a seed.
    pub async fn live(seed: u64, sabotage: Option<Sabotage>, whole_story: bool) -> anyhow::Result<Outcome> {
        let mut dice = Dice::new(seed);
        let plan = Plan::of(&mut dice.fork());
        let mut world = World::new(seed, plan, dice, sabotage, whole_story).await?;
        let lived = world.run().await;
        Ok(world.end(seed, lived))
    }

    pub(crate) async fn new(
        seed: u64,
        plan: Plan,
        dice: Dice,
        sabotage: Option<Sabotage>,
        whole_story: bool,
    ) -> anyhow::Result<World> {
        let scratch = scratch()?;
        let server = Down::fresh(scratch.path(), seed)?.start(BEGINNING).await?;
        let mut machines = vec![];
        for at in 0..plan.devices {
            let mut machine = Machine::new(at, scratch.path(), plan.patient[at])?;
            machine.own.is_dated = plan.dated[at];
            machine.settings.overrides.schedule = sabotage == Some(Sabotage::ChangesAnyway);
            machine.settings.retell_every = if plan.goes_back_unsaid() { RETELL_EVERY } else { RETELL_NEVER };
            machines.push(machine);
        }
        Ok(World {
            now: BEGINNING,
            queue: BinaryHeap::new(),
            number: 0,
            dice,
            rates: plan.rates,
            story: Story::new(BEGINNING, whole_story),
            tally: Tally::default(),
            sabotage,
            server: Some(server),
            down: None,
            backups: 0,
            restore: false,
            pasts: 0,
            unknowing: false,
            published: (0..plan.devices).map(|_| Published::default()).collect(),
            machines,
            holds: vec![],
            carefully: Carefully::new(),
            values: 0,
            sweep_every: SWEEP_EVERY,
            plan,
            _scratch: scratch,
        })
    }

    pub(crate) fn end(self, seed: u64, lived: Result<(), Violation>) -> Outcome {
        let mut story: Vec<String> = self.story.lines().map(str::to_owned).collect();
        let violation = lived.err();
        if let Some(violation) = &violation {
            story.push(format!("VIOLATION {violation}"));
        }
        Outcome {
            seed,
            weather: self.plan.weather,
            violation,
            story,
            digest: self.story.digest(),
            steps: self.story.count(),
            device_time: self.now.since(BEGINNING) * u32::try_from(self.machines.len()).unwrap_or(1),
            faults: self.tally,
        }
    }

    async fn run(&mut self) -> Result<(), Violation> {
        let weather = self.plan.weather;
        self.tell(None, format_args!("{} devices, weather: {weather}", self.machines.len()));
        self.begin().await?;
        let end = self.now.after(self.plan.life);
        self.run_until(end).await?;
        self.calm().await?;
        self.rest().await
    }

    /// Puts the plan into the queue.
    pub(crate) async fn begin(&mut self) -> Result<(), Violation> {
        self.note_published().await?;
        for device in 0..self.machines.len() {
            let after = self.dice.millis(10, 3000);
            self.after(after, Happening::Boot { device });
        }
        let Plan { acts, timetables, holders, incidents, .. } = self.plan.clone();
        for at in acts {
            self.after(at, Happening::Intent);
        }
        for at in timetables {
            self.after(at, Happening::Timetable);
        }
        for (at, device) in holders {
            self.after(at, Happening::Holder { device });
        }
        for (at, device, incident) in incidents {
            self.after(at, Happening::Incident { device, incident });
        }
        if self.sabotage == Some(Sabotage::RepairsAnyway) {
            // So that it shows soon.
            for minute in (2..20).step_by(2) {
                let incident = Incident::Hand(Hand::Add, 0);
                self.after(Duration::from_secs(minute * 60), Happening::Incident { device: 0, incident });
            }
        }
        self.after(self.sweep_every, Happening::Sweep);
        self.begin_rollouts();
        Ok(())
    }

    pub(crate) async fn run_until(&mut self, end: Moment) -> Result<(), Violation> {
        while let Some(Reverse(next)) = self.queue.peek() {
            if next.at > end {
                break;
            }
            let Some(Reverse(Scheduled { at, what, .. })) = self.queue.pop() else { break };
            self.now = self.now.max(at);
            if let Some(server) = &self.server {
                server.set_clock(self.now);
            }
            self.happen(what).await?;
        }
        self.now = self.now.max(end);
        Ok(())
    }

    /// Nothing goes wrong from here on.
    pub(crate) async fn calm(&mut self) -> Result<(), Violation> {
        self.tell(None, "faults stop");
        self.rates = Rates::default();
        for device in 0..self.machines.len() {
            self.relieve(device);
        }
        let is_bad = |what: &Happening| {
            let people = matches!(what, Happening::Intent | Happening::Timetable | Happening::Holder { .. });
            people || matches!(what, Happening::Incident { .. })
        };
        let rest: Vec<_> = self.queue.drain().filter(|Reverse(next)| !is_bad(&next.what)).collect();
        self.queue = rest.into();
        if self.server.is_none() {
            self.server_up().await?;
        }
        self.find_time();
        self.let_repair().await
    }

    /// Waits for everything to be as it should, and to stay so.
    pub(crate) async fn rest(&mut self) -> Result<(), Violation> {
        let began = self.now;
        let is_timeless = self.plan.timetables.is_empty() && self.plan.holders.is_empty();
        let deadline = began.after(if is_timeless { REST_WITHIN } else { REST_WITHIN_SCHEDULED });
        // Each for itself: what can never be well is tried again and again, and hours differ.
        let mut settled_since: Vec<Option<Moment>> = vec![None; self.machines.len()];
        let mut rested = vec![false; self.machines.len()];
        loop {
            let closely = self.now.since(began) < LOOK_CLOSELY_FOR;
            if !closely {
                // Hours pass here; what happens to containers is heard of at once all the same.
                self.sweep_every = SWEEP_LATER_EVERY;
                self.machines
                    .iter_mut()
                    .for_each(|machine| machine.settings.observe_every = OBSERVE_LATER_EVERY);
            }
            let next = self.now.after(if closely { LOOK_EVERY } else { LOOK_LATER_EVERY });
            self.run_until(next).await?;
            let mut all_settled = true;
            for at in 0..self.machines.len() {
                match self.one_settled(at).await {
                    Ok(()) => {
                        let since = *settled_since[at].get_or_insert(self.now);
                        rested[at] |= self.now.since(since) >= REST_LASTS;
                    }
                    Err(violation) if self.now >= deadline && (!rested[at] || is_timeless) => {
                        return Err(violation);
                    }
                    Err(_) => all_settled = false,
                }
            }
            if rested.iter().all(|rested| *rested) && (all_settled || !is_timeless) {
                // Where devices keep hours, a rollout may wait for the next day.
                match self.rollouts_settled().await {
                    Err(violation) if is_timeless && self.now >= deadline => return Err(violation),
                    Err(_) if is_timeless => continue,
                    _ => {}
                }
                self.tell(None, "at rest");
                return Ok(());
            }
        }
    }

    pub(crate) fn after(&mut self, pause: Duration, what: Happening) {
        self.number += 1;
        self.queue.push(Reverse(Scheduled { at: self.now.after(pause), number: self.number, what }));
    }

    /// Something goes wrong on one device.
    pub(crate) fn note(&mut self, at: usize, fault: Fault) {
        self.tally.note(fault);
        let memory = &mut self.machines[at].memory;
        memory.faults.note(fault);
        if fault.hurts_work() {
            memory.hurt_until = memory.hurt_until.max(self.now);
        }
    }

    pub(crate) fn tell(&mut self, device: Option<usize>, what: impl std::fmt::Display) {
        let who = device.map_or("world", |at| self.machines[at].client.as_str());
        self.story.tell(self.now, who, what);
    }

    async fn happen(&mut self, what: Happening) -> Result<(), Violation> {
        match what {
            Happening::Wake { device, number } => {
                if self.machines[device].is_up() && self.machines[device].wake_number == number {
                    self.turn(device)?;
                }
                Ok(())
            }
            Happening::Boot { device } => self.boot(device),
            Happening::Arrive { leg, ask, echo } => self.arrive(leg, ask, echo).await,
            Happening::Answer { leg, answer } => self.answered(leg, answer),
            Happening::GiveUp { leg } => self.give_up(leg),
            Happening::HoldOver { leg } => self.hold_over(leg).await,
            Happening::Switch { device, life, ticket } => self.switch(device, life, ticket),
            Happening::Acted { device, life, ticket } => self.acted(device, life, ticket),
            Happening::Outcome { device, life, ticket, event } => {
                if self.machines[device].is(life) && self.machines[device].under_way.contains_key(&ticket) {
                    self.finish(device, ticket, *event)?;
                }
                Ok(())
            }
            Happening::Stir { device, life } => {
                if self.machines[device].is(life) {
                    self.absorb(device, Event::Stirred)?;
                    self.turn(device)?;
                }
                Ok(())
            }
            Happening::Renewed { device } => self.renewed(device),
            Happening::SpaceFreed { device } => {
                self.machines[device].disk.full = false;
                Ok(())
            }
            Happening::Incident { device, incident } => self.incident(device, incident).await,
            Happening::ServerUp => {
                if self.server.is_none() {
                    self.server_up().await?;
                }
                Ok(())
            }
            Happening::Resolve => self.resolve().await,
            Happening::Intent => self.intend().await,
            Happening::Timetable => self.choose_times().await,
            Happening::Holder { device } => self.hold_or_release(device),
            Happening::Rollouts => self.look_at_rollouts().await,
            Happening::Sweep => {
                if let Some(server) = &self.server {
                    server.fleet.flush_contacts().await.map_err(broken)?;
                    server.fleet.sweep().await.map_err(broken)?;
                    self.after_server().await?;
                    self.check_gone().await?;
                    self.forget().await?;
                }
                self.after(self.sweep_every, Happening::Sweep);
                Ok(())
            }
        }
    }
}

/// The server or the machinery around it did what it must never do.
pub(crate) fn broken(error: impl std::fmt::Display) -> Violation {
    Violation::new(Check::NothingBreaks, "server", error.to_string())
}
