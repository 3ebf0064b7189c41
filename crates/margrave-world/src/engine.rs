//! A device's containers, volumes and what people do to them behind the agent's back.
//!
//! Keeps the runtime's promises (what runs as ordered is left alone, volumes stay) unless it is told to break them. When
//! things happen, and whether the agent hears the truth about them, is the world's.

use std::collections::BTreeMap;
use std::time::Duration;

use margrave_core::device::{Health, Observation, Order};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ComponentName};
use margrave_core::moment::Moment;
use margrave_core::parameters::ParameterValue;
use margrave_core::report::{Failure, FailureCode};

/// The variable that says how a component of this world behaves.
pub(crate) const MODE: &str = "MODE";

/// A component of that mode is well, and says so to agents that are not dated.
pub(crate) const STRANGE: &str = "strange";

/// What a component does once it is started, as its document says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Good,
    /// Exits with an error at once.
    NoStart,
    /// Runs, and its health check never passes.
    NeverHealthy,
    /// Is well for so long, and then never again until it is started anew.
    SickAfter(Duration),
}

/// What an order's document says of how its component behaves.
pub(crate) fn mode(order: &Order) -> &str {
    match order.values.iter().find(|(pointer, _)| pointer == MODE) {
        Some((_, ParameterValue::Text(text))) => text,
        _ => "",
    }
}

impl Behaviour {
    pub(crate) fn of(order: &Order) -> Behaviour {
        match mode(order) {
            text if text.starts_with("no-start") => Behaviour::NoStart,
            text if text.starts_with("never-healthy") => Behaviour::NeverHealthy,
            text if text.starts_with("sick") => Behaviour::SickAfter(Duration::from_secs(20)),
            _ => Behaviour::Good,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Container {
    pub(crate) number: u64,
    pub(crate) assignment: AssignmentId,
    pub(crate) component: ComponentName,
    pub(crate) fingerprint: Option<Digest>,
    /// What its label says that it is, where that is not true.
    label: Option<Digest>,
    /// Somebody made it, or made it another.
    pub(crate) by_hand: bool,
    behaviour: Behaviour,
    started: Moment,
    ready: Moment,
    stopped: Option<Stopped>,
    ill: bool,
    hidden: bool,
}

/// Why a container does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    ByItself,
    /// Somebody stopped it.
    ByHand,
    /// Somebody removed it. What was noted about the component is still there, so the runtime knows what it lacks.
    Removed,
}

impl Container {
    pub(crate) fn health(&self, now: Moment) -> Health {
        let name = &self.component;
        match self.stopped {
            Some(Stopped::ByItself) => return Health::Down(format!("service {name} exited with code 1")),
            Some(Stopped::ByHand) => return Health::Drifted(format!("service {name} was stopped")),
            Some(Stopped::Removed) => return Health::Drifted(format!("service {name} is missing")),
            None => {}
        }
        let sick = match self.behaviour {
            Behaviour::NeverHealthy => now >= self.ready,
            Behaviour::SickAfter(well) => now >= self.ready.after(well),
            Behaviour::NoStart | Behaviour::Good => false,
        };
        if self.ill || sick {
            return Health::Unhealthy(format!("the health check of {name} fails"));
        }
        if now < self.ready { Health::Starting } else { Health::Healthy }
    }

    pub(crate) fn runs(&self) -> bool {
        self.stopped.is_none()
    }

    fn is(&self, assignment: AssignmentId, component: &ComponentName) -> bool {
        self.assignment == assignment && &self.component == component
    }
}

/// What somebody can do to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hand {
    Kill,
    Remove,
    Change,
    Add,
    MakeIll,
}

#[derive(Debug, Default)]
pub(crate) struct Engine {
    containers: Vec<Container>,
    pub(crate) volumes: BTreeMap<(AssignmentId, ComponentName), u64>,
    number: u64,
    /// How often something was started because the agent asked for it.
    pub(crate) starts: u64,
    pub(crate) away_until: Moment,
}

/// What the deliberate bugs change here.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Vices {
    pub(crate) deletes_volumes: bool,
    pub(crate) keeps_old: bool,
    pub(crate) relabels_old: bool,
    pub(crate) hides_removed: bool,
}

impl Engine {
    pub(crate) fn containers(&self) -> &[Container] {
        &self.containers
    }

    /// Puts the ordered container into the place of what is there, and gives what had to go. What runs as ordered stays.
    pub(crate) fn switch(
        &mut self,
        order: &Order,
        now: Moment,
        warm_up: Duration,
        vices: Vices,
    ) -> Vec<(Container, bool)> {
        let fingerprint = Some(order.fingerprint());
        let as_ordered = |c: &Container| {
            c.is(order.assignment, &order.component)
                && c.fingerprint == fingerprint
                && c.health(now).complaint().is_none()
        };
        if self.containers.iter().any(as_ordered) {
            return vec![];
        }
        let is_old = |c: &&mut Container| {
            c.is(order.assignment, &order.component) && c.health(now) == Health::Healthy && !c.by_hand
        };
        if vices.relabels_old
            && let Some(old) = self.containers.iter_mut().find(is_old)
        {
            old.label = fingerprint;
            return vec![];
        }
        let gone = if vices.keeps_old { vec![] } else { self.take(order.assignment, &order.component, now) };
        let key = (order.assignment, order.component.clone());
        if vices.deletes_volumes && !gone.is_empty() {
            self.volumes.remove(&key);
        }
        self.number += 1;
        let number = self.number;
        self.volumes.entry(key).or_insert(number);
        let behaviour = Behaviour::of(order);
        self.containers.push(Container {
            number,
            assignment: order.assignment,
            component: order.component.clone(),
            fingerprint,
            label: None,
            by_hand: false,
            behaviour,
            started: now,
            ready: now.after(warm_up),
            stopped: (behaviour == Behaviour::NoStart).then_some(Stopped::ByItself),
            ill: false,
            hidden: false,
        });
        self.starts += 1;
        gone
    }

    /// When what was ordered is ready, where it runs and is not yet: somebody may have started it before who was then dropped.
    pub(crate) fn ready_at(&self, order: &Order, now: Moment) -> Option<Moment> {
        let fingerprint = Some(order.fingerprint());
        let mut of = self.containers.iter().filter(|c| c.is(order.assignment, &order.component) && !c.hidden);
        let starting = |c: &&Container| c.fingerprint == fingerprint && c.health(now) == Health::Starting;
        of.find(starting).map(|container| container.ready)
    }

    /// What became of an order, honestly.
    pub(crate) fn verdict(&self, order: &Order, now: Moment) -> Result<(), Failure> {
        let found = self.containers.iter().find(|c| c.is(order.assignment, &order.component) && !c.hidden);
        let failure = |code, message: String| Failure::new(code, message).of(&order.component);
        let Some(container) = found else {
            return Err(failure(FailureCode::StartFailed, format!("{} is not there", order.component)));
        };
        match container.health(now) {
            Health::Healthy => Ok(()),
            Health::Starting => Err(failure(FailureCode::Timeout, "It took too long.".to_owned())),
            Health::Unhealthy(why) => Err(failure(FailureCode::Unhealthy, why)),
            Health::Down(why) | Health::Drifted(why) => Err(failure(FailureCode::StartFailed, why)),
        }
    }

    pub(crate) fn remove(
        &mut self,
        assignment: AssignmentId,
        component: &ComponentName,
        now: Moment,
        vices: Vices,
    ) -> Vec<(Container, bool)> {
        if vices.hides_removed {
            let of = self.containers.iter_mut().filter(|c| c.is(assignment, component));
            of.for_each(|container| container.hidden = true);
            return vec![];
        }
        self.take(assignment, component, now)
    }

    /// Stops and starts everything, as a careless agent would.
    pub(crate) fn restart_all(&mut self, now: Moment) -> Vec<(Container, bool)> {
        let before = self.containers.iter().filter(|c| c.runs());
        let touched: Vec<_> = before.map(|c| (c.clone(), c.health(now) == Health::Healthy)).collect();
        for container in &mut self.containers {
            (container.started, container.ready) = (now, now);
        }
        touched
    }

    /// The containers of a component, each with whether it was well.
    fn take(
        &mut self,
        assignment: AssignmentId,
        component: &ComponentName,
        now: Moment,
    ) -> Vec<(Container, bool)> {
        let (gone, stay) = self.containers.drain(..).partition(|c| c.is(assignment, component) && !c.hidden);
        self.containers = stay;
        let gone: Vec<Container> = gone;
        gone.into_iter()
            .map(|c| {
                let well = c.health(now) == Health::Healthy;
                (c, well)
            })
            .collect()
    }

    pub(crate) fn look(&self, now: Moment) -> Vec<Observation> {
        let seen = |c: &Container| Observation {
            assignment: c.assignment,
            component: c.component.clone(),
            fingerprint: c.label.or(c.fingerprint),
            health: c.health(now),
            restarts: 0,
        };
        // One line per component, as the real one gives it; a hidden one is a lie of the engine's.
        let mut looked: Vec<Observation> = vec![];
        for container in self.containers.iter().filter(|c| !c.hidden) {
            let observation = seen(container);
            let same = |o: &Observation| {
                o.assignment == observation.assignment && o.component == observation.component
            };
            if !looked.iter().any(same) {
                looked.push(observation);
            }
        }
        looked
    }

    /// The machine came up again: what was not stopped by somebody is started by the engine.
    pub(crate) fn power_up(&mut self, now: Moment, warm_up: Duration) {
        for container in &mut self.containers {
            if container.stopped.is_none() || container.behaviour == Behaviour::NoStart {
                (container.started, container.ready) = (now, now.after(warm_up));
                container.ill = false;
            }
        }
    }

    /// A container's process died, and the engine started it again by itself.
    pub(crate) fn crash_and_restart(&mut self, at: usize, now: Moment) {
        if let Some(container) = self.containers.get_mut(at) {
            (container.started, container.ready) = (now, now.after(Duration::from_secs(1)));
        }
    }

    /// Somebody does something; `None` when there is nothing to do it to.
    pub(crate) fn disturb(&mut self, hand: Hand, at: usize, now: Moment) -> Option<String> {
        if self.containers.is_empty() {
            return None;
        }
        let at = at % self.containers.len();
        // There is nothing to lay hands on any more.
        if self.containers[at].stopped == Some(Stopped::Removed) {
            return None;
        }
        let name = self.containers[at].component.to_string();
        match hand {
            Hand::Kill => self.containers[at].stopped = Some(Stopped::ByHand),
            // Of what somebody made himself nothing was noted.
            Hand::Remove if self.containers[at].by_hand => drop(self.containers.remove(at)),
            Hand::Remove => self.containers[at].stopped = Some(Stopped::Removed),
            Hand::Change => {
                self.containers[at].fingerprint = Some(Digest::of(b"changed by hand"));
                self.containers[at].by_hand = true;
            }
            Hand::MakeIll => self.containers[at].ill = true,
            Hand::Add => {
                self.number += 1;
                let component = ComponentName::parse("intruder").expect("a plain word is a component's name");
                if self.containers.iter().any(|c| c.component == component) {
                    return None;
                }
                let added = Container {
                    number: self.number,
                    component,
                    fingerprint: None,
                    label: None,
                    by_hand: true,
                    behaviour: Behaviour::Good,
                    started: now,
                    ready: now,
                    stopped: None,
                    ill: false,
                    hidden: false,
                    ..self.containers[at].clone()
                };
                self.containers.push(added);
            }
        }
        Some(name)
    }
}
