//! A runtime that only pretends: for demos and tests, never chosen by itself on a real device.
//!
//! The same interface and the same promises as the real one: intent before the act, the same fingerprint
//! is left alone, volumes survive. Latencies follow from a seed, failures from the configuration, and time
//! passes only in `tokio::time`, so a test with paused time is deterministic. With a file, a restarted agent
//! finds what it had "started"; without one, nothing outlives the process.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use margrave_core::device::{Health, Observation, Order};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};
use margrave_core::package::ProfileKind;
use margrave_core::report::{Failure, FailureCode};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::written::Written;
use super::{Pending, Runtime, environment, start_time_max};

/// How the simulated device behaves; what a description leaves out is quick and without faults.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Simulation {
    pub seed: u64,
    pub pull: Latency,
    pub start: Latency,
    pub stop: Latency,
    pub faults: Vec<Fault>,
    pub drills: Vec<Drill>,
}

/// A duration between `least` and `least + spread`, by the dice of the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    #[serde(rename = "leastMillis", deserialize_with = "millis", default)]
    pub least: Duration,
    #[serde(rename = "spreadMillis", deserialize_with = "millis", default)]
    pub spread: Duration,
}

fn millis<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

impl Latency {
    pub const NONE: Latency = Latency { least: Duration::ZERO, spread: Duration::ZERO };

    pub fn millis(least: u64, spread: u64) -> Self {
        Latency { least: Duration::from_millis(least), spread: Duration::from_millis(spread) }
    }
}

/// Something that goes wrong on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// `None` for every component.
    #[serde(default)]
    pub component: Option<ComponentName>,
    pub act: Act,
    pub effect: Effect,
    /// How often; `None` for always.
    #[serde(default)]
    pub times: Option<u32>,
}

/// A component that goes wrong when it starts with a certain value: how a package that can fail on purpose
/// behaves where nothing really runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drill {
    /// Where the value goes, such as `GATE_DRILL`.
    pub pointer: String,
    pub value: String,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    Prefetch,
    Apply,
    Remove,
    Observe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Fails with this code after the usual time.
    Fail(FailureCode),
    /// Starts, and its health check never passes. Only for [`Act::Apply`].
    NeverHealthy,
    /// Does not come back before the component's timeout. For other acts than applying, not at all.
    Hang,
}

impl Default for Simulation {
    fn default() -> Self {
        Simulation::new(1)
    }
}

impl Simulation {
    /// Quick and without faults; what a demo shows.
    pub fn new(seed: u64) -> Self {
        Simulation {
            seed,
            pull: Latency::millis(400, 1200),
            start: Latency::millis(300, 900),
            stop: Latency::millis(200, 400),
            faults: vec![],
            drills: vec![],
        }
    }

    /// Everything at once, for tests that care about order and not about time.
    pub fn instant(seed: u64) -> Self {
        let none = Latency::NONE;
        Simulation { pull: none, start: none, stop: none, ..Simulation::new(seed) }
    }
}

/// What somebody can do to a simulated component behind the agent's back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disturbance {
    Stop,
    Crash {
        exit_code: i32,
    },
    /// The containers are gone; volumes stay.
    Remove,
    FailHealthCheck(String),
}

/// What survives updates and removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The first order that used it.
    pub made_by: Digest,
    /// How often something was started on it.
    pub uses: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Running {
    assignment: AssignmentId,
    component: ComponentName,
    /// `None` while it is being started: then it cannot be told what of it runs.
    fingerprint: Option<Digest>,
    /// What is wrong with it, if anything.
    trouble: Option<String>,
    #[serde(default)]
    nature: Nature,
    /// When it will be up; an agent that was restarted finds it up.
    #[serde(skip)]
    up_at: Option<Instant>,
}

/// Of what kind the trouble of a component is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Nature {
    #[default]
    Check,
    Ending,
    Drift,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct World {
    components: Vec<Running>,
    /// By assignment and component, as text: JSON wants text for keys.
    volumes: BTreeMap<String, Volume>,
    fetched: Vec<Digest>,
    /// Containers started so far.
    starts: u64,
    #[serde(skip)]
    faults_seen: Vec<u32>,
    #[serde(skip)]
    rolls: u64,
}

/// A fetched order takes no room here; this only bounds the file.
const FETCHED_MAX: usize = 256;

pub struct SimulatedRuntime {
    simulation: Simulation,
    file: Option<PathBuf>,
    world: Mutex<World>,
    written: Written,
}

impl SimulatedRuntime {
    pub fn new(simulation: Simulation) -> Self {
        SimulatedRuntime { simulation, file: None, world: Mutex::default(), written: Written::default() }
    }

    /// One whose containers are still there after a restart of the agent.
    pub fn open(simulation: Simulation, file: PathBuf) -> io::Result<Self> {
        let world = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => World::default(),
            Err(error) => return Err(error),
        };
        Ok(SimulatedRuntime {
            simulation,
            file: Some(file),
            world: Mutex::new(world),
            written: Written::default(),
        })
    }

    /// How often containers were started so far; unchanged means that nothing was touched.
    pub fn starts(&self) -> u64 {
        self.world().starts
    }

    pub fn volume(&self, assignment: AssignmentId, component: &ComponentName) -> Option<Volume> {
        self.world().volumes.get(&volume_name(assignment, component)).cloned()
    }

    /// Does something to a component that the agent did not ask for; `false` when it is not there.
    pub fn disturb(
        &self,
        assignment: AssignmentId,
        component: &ComponentName,
        what: Disturbance,
    ) -> Result<bool, Failure> {
        self.change(|world| {
            let Some(at) = world.position(assignment, component) else { return false };
            let (trouble, nature) = match what {
                Disturbance::Stop => (format!("service {component} was stopped"), Nature::Drift),
                Disturbance::Crash { exit_code } => {
                    (format!("service {component} exited with code {exit_code}"), Nature::Ending)
                }
                Disturbance::Remove => (format!("service {component} is missing"), Nature::Drift),
                Disturbance::FailHealthCheck(said) => {
                    (format!("the health check of {component} fails: {said}"), Nature::Check)
                }
            };
            (world.components[at].trouble, world.components[at].nature) = (Some(trouble), nature);
            true
        })
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nobody panics while holding the simulated world")
    }

    /// Changes the world, and writes it down before anybody can see the change.
    fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> Result<T, Failure> {
        let mut world = self.world();
        let result = change(&mut world);
        if let Some(file) = &self.file {
            let bytes = serde_json::to_vec(&*world).map_err(io::Error::other);
            let written = bytes.and_then(|bytes| self.written.durably(file, &bytes));
            written.map_err(|error| {
                let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
                let code = if full { FailureCode::DiskFull } else { FailureCode::RuntimeUnreachable };
                Failure::new(code, format!("The simulated containers could not be written down: {error}."))
            })?;
        }
        Ok(result)
    }

    async fn pass(&self, latency: Latency) {
        let roll = {
            let mut world = self.world();
            world.rolls += 1;
            dice(self.simulation.seed, world.rolls)
        };
        let duration = latency.least + latency.spread.mul_f64(roll);
        if !duration.is_zero() {
            tokio::time::sleep(duration).await;
        }
    }

    /// The first fault that applies and has not happened often enough.
    fn fault(&self, component: Option<&ComponentName>, act: Act) -> Option<Effect> {
        let mut world = self.world();
        world.faults_seen.resize(self.simulation.faults.len(), 0);
        for (fault, seen) in self.simulation.faults.iter().zip(&mut world.faults_seen) {
            let meant =
                fault.act == act && (fault.component.is_none() || fault.component.as_ref() == component);
            if meant && fault.times.is_none_or(|times| *seen < times) {
                *seen += 1;
                return Some(fault.effect);
            }
        }
        None
    }

    fn drill(&self, order: &Order) -> Option<Effect> {
        let meant = |drill: &&Drill| {
            let values = &mut order.values.iter();
            values.any(|(pointer, value)| *pointer == drill.pointer && value.to_string() == drill.value)
        };
        self.simulation.drills.iter().find(meant).map(|drill| drill.effect)
    }

    async fn prefetch_order(&self, order: &Order) -> Result<(), Failure> {
        check(order)?;
        let fingerprint = order.fingerprint();
        if self.world().fetched.contains(&fingerprint) {
            return Ok(());
        }
        match self.fault(Some(&order.component), Act::Prefetch) {
            Some(Effect::Hang) => std::future::pending::<()>().await,
            Some(Effect::Fail(code)) => {
                self.pass(self.simulation.pull).await;
                return Err(simulated(code).of(&order.component));
            }
            Some(Effect::NeverHealthy) | None => self.pass(self.simulation.pull).await,
        }
        self.change(|world| {
            let excess = (world.fetched.len() + 1).saturating_sub(FETCHED_MAX);
            world.fetched.drain(..excess);
            world.fetched.push(fingerprint);
        })
    }

    async fn apply_order(&self, order: &Order) -> Result<(), Failure> {
        check(order)?;
        let (assignment, component, fingerprint) = (order.assignment, &order.component, order.fingerprint());
        let as_ordered = |running: &Running| {
            running.is(assignment, component)
                && running.fingerprint == Some(fingerprint)
                && running.health() == Health::Healthy
        };
        if self.world().components.iter().any(as_ordered) {
            return Ok(());
        }
        self.prefetch_order(order).await?;
        let effect = self.drill(order).or_else(|| self.fault(Some(component), Act::Apply));
        if let Some(Effect::Fail(code)) = effect
            && code != FailureCode::Unhealthy
        {
            self.pass(self.simulation.start).await;
            return Err(simulated(code).of(component));
        }
        self.change(|world| {
            let at = world.position(assignment, component).unwrap_or(world.components.len());
            let running = Running {
                assignment,
                component: component.clone(),
                fingerprint: None,
                trouble: None,
                nature: Nature::Check,
                up_at: None,
            };
            match world.components.get_mut(at) {
                Some(place) => *place = running,
                None => world.components.push(running),
            }
            world.starts += 1;
            let volume = Volume { made_by: fingerprint, uses: 0 };
            world.volumes.entry(volume_name(assignment, component)).or_insert(volume).uses += 1;
        })?;
        if effect == Some(Effect::Hang) {
            let limit = start_time_max(order);
            tokio::time::sleep(limit).await;
            let message = format!(
                "It took too long: the simulated component did not start within {} s.",
                limit.as_secs()
            );
            return Err(Failure::new(FailureCode::Timeout, message).of(component));
        }
        if !order.wait {
            let up_at = Instant::now() + self.simulation.start.least;
            return self.settle(order, None, Some(up_at));
        }
        self.pass(self.simulation.start).await;
        match effect {
            Some(Effect::NeverHealthy | Effect::Fail(_)) => {
                let trouble = format!("the health check of {component} fails: simulated");
                self.settle(order, Some(trouble), None)?;
                Err(simulated(FailureCode::Unhealthy).of(component))
            }
            Some(Effect::Hang) | None => self.settle(order, None, None),
        }
    }

    fn settle(&self, order: &Order, trouble: Option<String>, up_at: Option<Instant>) -> Result<(), Failure> {
        self.change(|world| {
            // Removed in the meantime: then there is nothing to settle.
            if let Some(at) = world.position(order.assignment, &order.component) {
                let running = &mut world.components[at];
                (running.fingerprint, running.trouble, running.up_at) =
                    (Some(order.fingerprint()), trouble, up_at);
                running.nature = Nature::Check;
            }
        })
    }

    async fn remove_component(
        &self,
        assignment: AssignmentId,
        component: &ComponentName,
    ) -> Result<(), Failure> {
        if self.world().position(assignment, component).is_none() {
            return Ok(());
        }
        match self.fault(Some(component), Act::Remove) {
            Some(Effect::Hang) => std::future::pending::<()>().await,
            Some(Effect::Fail(code)) => {
                self.pass(self.simulation.stop).await;
                return Err(simulated(code).of(component));
            }
            Some(Effect::NeverHealthy) | None => self.pass(self.simulation.stop).await,
        }
        self.change(|world| {
            if let Some(at) = world.position(assignment, component) {
                world.components.remove(at);
            }
        })
    }

    async fn look(&self) -> Result<Vec<Observation>, Failure> {
        match self.fault(None, Act::Observe) {
            Some(Effect::Hang) => std::future::pending::<()>().await,
            Some(Effect::Fail(code)) => return Err(simulated(code)),
            Some(Effect::NeverHealthy) | None => {}
        }
        let observe = |running: &Running| Observation {
            assignment: running.assignment,
            component: running.component.clone(),
            fingerprint: running.fingerprint,
            health: running.health(),
            restarts: 0,
        };
        Ok(self.world().components.iter().map(observe).collect())
    }
}

impl World {
    fn position(&self, assignment: AssignmentId, component: &ComponentName) -> Option<usize> {
        self.components.iter().position(|running| running.is(assignment, component))
    }
}

impl Running {
    fn is(&self, assignment: AssignmentId, component: &ComponentName) -> bool {
        self.assignment == assignment && &self.component == component
    }

    fn health(&self) -> Health {
        match &self.trouble {
            Some(trouble) => match self.nature {
                Nature::Check => Health::Unhealthy(trouble.clone()),
                Nature::Ending => Health::Down(trouble.clone()),
                Nature::Drift => Health::Drifted(trouble.clone()),
            },
            None if self.fingerprint.is_none() => Health::Starting,
            None if self.up_at.is_some_and(|up_at| Instant::now() < up_at) => Health::Starting,
            None => Health::Healthy,
        }
    }
}

impl Runtime for SimulatedRuntime {
    fn bytes_written(&self) -> u64 {
        self.written.bytes()
    }

    fn prefetch<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<(), Failure>> {
        Box::pin(self.prefetch_order(order))
    }

    fn apply<'a>(&'a self, order: &'a Order) -> Pending<'a, Result<(), Failure>> {
        Box::pin(self.apply_order(order))
    }

    fn remove<'a>(
        &'a self,
        assignment: AssignmentId,
        component: &'a ComponentName,
    ) -> Pending<'a, Result<(), Failure>> {
        Box::pin(self.remove_component(assignment, component))
    }

    fn observe(&self) -> Pending<'_, Result<Vec<Observation>, Failure>> {
        Box::pin(self.look())
    }

    /// Nothing happens here that the agent did not do itself, apart from what tests do on purpose.
    fn changed(&self) -> Pending<'_, Result<(), Failure>> {
        Box::pin(std::future::pending())
    }

    fn reached(&self) -> Pending<'_, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// What the real runtime would refuse before it touches anything is refused here too.
fn check(order: &Order) -> Result<(), Failure> {
    match order.kind {
        ProfileKind::Compose => {
            environment::values(order).map(drop).map_err(|failure| failure.of(&order.component))
        }
        ProfileKind::Helm => Ok(()),
        ProfileKind::Custom => {
            let message = "This device has no runtime for custom components.";
            Err(Failure::new(FailureCode::RuntimeMissing, message).of(&order.component))
        }
    }
}

fn simulated(code: FailureCode) -> Failure {
    Failure::new(code, format!("The simulation was told to fail with {code}."))
}

fn volume_name(assignment: AssignmentId, component: &ComponentName) -> String {
    format!("{assignment}/{component}")
}

/// A number in 0..1 that follows from the seed and a counter alone (SplitMix64).
fn dice(seed: u64, count: u64) -> f64 {
    let mut x = seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    (x >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulation_is_described_in_json_and_a_slip_in_it_is_named() {
        let text = r#"{ "seed": 7, "pull": {"leastMillis": 500, "spreadMillis": 2000},
            "faults": [ { "component": "web", "act": "apply", "effect": {"fail": "start-failed"}, "times": 2 },
                        { "act": "apply", "effect": "never-healthy" } ] }"#;
        let simulation: Simulation = serde_json::from_str(text).unwrap();
        assert_eq!((simulation.seed, simulation.pull), (7, Latency::millis(500, 2000)));
        assert_eq!(simulation.start, Simulation::default().start);
        assert_eq!(simulation.faults[0].effect, Effect::Fail(FailureCode::StartFailed));
        assert_eq!((simulation.faults[1].effect, simulation.faults[1].times), (Effect::NeverHealthy, None));
        for (bad, named) in
            [(r#"{"sed": 1}"#, "sed"), (r#"{"faults":[{"act":"fly","effect":"hang"}]}"#, "fly")]
        {
            let error = serde_json::from_str::<Simulation>(bad).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
