//! What the engine is asked for: takes time, fails, hangs and lies.

use std::time::Duration;

use margrave_core::device::{Action, Event, Health, Observation, Order};
use margrave_core::id::AssignmentId;
use margrave_core::lifecycle::State;
use margrave_core::parameters::ParameterValue;
use margrave_core::report::{Failure, FailureCode};

use super::machine::{Doing, Fate};
use super::{Happening, Machine, World};
use crate::check::Violation;
use crate::engine::{Behaviour, Vices};
use crate::fault::Fault;
use crate::sabotage::Sabotage;

/// How long it takes until somebody loses patience with an act that hangs.
const HANGS_FOR: Duration = Duration::from_secs(300);
/// How long a component is downloaded, how long it takes until its container is in its place, and until that is well, where nothing
/// goes wrong.
const DOWNLOAD_MIN: Duration = Duration::from_millis(50);
pub(super) const DOWNLOAD_MAX: Duration = Duration::from_secs(10);
const SWITCH_MIN: Duration = Duration::from_millis(100);
pub(super) const SWITCH_MAX: Duration = Duration::from_secs(2);
const WARM_UP_MIN: Duration = Duration::from_millis(300);
pub(super) const WARM_UP_MAX: Duration = Duration::from_secs(20);

impl World {
    fn vices(&self) -> Vices {
        Vices {
            deletes_volumes: self.sabotage == Some(Sabotage::UpdateDeletesVolumes),
            keeps_old: self.sabotage == Some(Sabotage::StartsBesideOld),
            relabels_old: self.sabotage == Some(Sabotage::RelabelsOld),
            hides_removed: self.sabotage == Some(Sabotage::HidesRemoved),
        }
    }

    fn is_away(&self, at: usize) -> bool {
        self.machines[at].engine.away_until > self.now
    }

    fn away_code(&self, action: &Action) -> FailureCode {
        match (self.sabotage, action) {
            (Some(Sabotage::BlamesTheUpdate), Action::Apply(_)) => FailureCode::StartFailed,
            _ => FailureCode::RuntimeUnreachable,
        }
    }

    fn fate(&mut self, at: usize, action: &Action) -> Fate {
        let rates = self.rates;
        let codes: &[FailureCode] = match action {
            Action::Prefetch(_) => {
                &[FailureCode::PullFailed, FailureCode::PullNotFound, FailureCode::DiskFull]
            }
            Action::Apply(_) => {
                &[FailureCode::StartFailed, FailureCode::CreateFailed, FailureCode::RuntimeUnreachable]
            }
            Action::Remove { .. } => &[FailureCode::RemoveFailed, FailureCode::RuntimeUnreachable],
            // An engine that is stuck hangs there, too, but seldom.
            Action::Observe if self.dice.hit(rates.act_hung / 5.0) => {
                self.note(at, Fault::ActHung);
                return Fate::Hangs;
            }
            _ => return Fate::Honest,
        };
        let downloads = matches!(action, Action::Prefetch(_));
        if downloads && self.machines[at].disk.full {
            return Fate::Fails(FailureCode::DiskFull);
        }
        if downloads && self.dice.hit(rates.archive_bad) {
            self.note(at, Fault::ArchiveBad);
            return Fate::Fails(FailureCode::ArchiveInvalid);
        }
        let fate = if self.dice.hit(rates.act_failed) {
            Fate::Fails(self.dice.pick(codes))
        } else if self.dice.hit(rates.act_hung) {
            Fate::Hangs
        } else if self.dice.hit(rates.said_done) {
            Fate::SaysDone
        } else if self.dice.hit(rates.said_failed) {
            Fate::SaysFailed
        } else {
            Fate::Honest
        };
        match fate {
            Fate::Honest => {}
            // What is the device's is waited for, and excuses nobody.
            Fate::Fails(code) if !code.blames_the_update() => self.tally.note(Fault::ActFailed),
            Fate::Fails(_) => self.note(at, Fault::ActFailed),
            Fate::Hangs => self.note(at, Fault::ActHung),
            Fate::SaysDone => self.note(at, Fault::SaidDoneWasNot),
            Fate::SaysFailed => self.note(at, Fault::SaidFailedWasDone),
        }
        fate
    }

    fn download_time(&mut self, at: usize) -> Duration {
        let is_slow = self.rates.pull_slow > 0.0 && self.dice.hit(self.rates.pull_slow);
        if !is_slow {
            return self.dice.between(DOWNLOAD_MIN, DOWNLOAD_MAX);
        }
        self.note(at, Fault::PullSlow);
        self.dice.seconds(30, 900)
    }

    pub(super) fn start_act(&mut self, at: usize, ticket: u64) {
        let action = self.machines[at].under_way[&ticket].action.clone();
        if self.is_away(at) {
            let event = action.undone("the engine does not answer", self.away_code(&action));
            let life = self.machines[at].life;
            let pause = self.dice.millis(50, 500);
            let event = Box::new(event);
            return self.after(pause, Happening::Outcome { device: at, life, ticket, event });
        }
        if let (Action::Apply(order), Some(Sabotage::ClaimsInstalled)) = (&action, self.sabotage) {
            let event = applied(order, Ok(()));
            return self.end_soon(at, ticket, event);
        }
        let fate = self.fate(at, &action);
        let warm_up = self.dice.between(WARM_UP_MIN, WARM_UP_MAX);
        let (switch, end) = match &action {
            Action::Observe => (None, self.dice.millis(10, 300)),
            Action::Prefetch(_) => (None, self.download_time(at)),
            Action::Remove { .. } => (None, self.dice.millis(200, 4000)),
            _ => {
                let switch = self.dice.between(SWITCH_MIN, SWITCH_MAX);
                (Some(switch), switch + warm_up)
            }
        };
        let end = if fate == Fate::Hangs { HANGS_FOR } else { end };
        let life = self.machines[at].life;
        let doing = self.machines[at].under_way.get_mut(&ticket).expect("it is under way");
        (doing.fate, doing.warm_up) = (fate, warm_up);
        if let Some(switch) = switch {
            self.after(switch, Happening::Switch { device: at, life, ticket });
        }
        self.after(end, Happening::Acted { device: at, life, ticket });
    }

    /// The old container goes and the new one comes.
    pub(super) fn switch(&mut self, at: usize, life: u64, ticket: u64) -> Result<(), Violation> {
        if !self.machines[at].is(life) {
            return Ok(());
        }
        let Some(doing) = self.machines[at].under_way.get(&ticket).cloned() else { return Ok(()) };
        if self.is_away(at) {
            // It is not done then, and an engine that is back before the end does not say that it was.
            let code = self.away_code(&doing.action);
            let doing =
                self.machines[at].under_way.get_mut(&ticket).filter(|doing| doing.fate == Fate::Honest);
            doing.into_iter().for_each(|doing| doing.fate = Fate::Fails(code));
            return Ok(());
        }
        let reached = match doing.fate {
            Fate::Honest | Fate::SaysFailed => true,
            Fate::SaysDone => false,
            Fate::Fails(_) | Fate::Hangs => self.dice.hit(0.5),
        };
        if reached { self.put_up(at, &doing) } else { Ok(()) }
    }

    fn put_up(&mut self, at: usize, doing: &Doing) -> Result<(), Violation> {
        let Action::Apply(order) = &doing.action else { return Ok(()) };
        let mut order = order.clone();
        if self.sabotage == Some(Sabotage::RunsUnverified) {
            order.values.push(("EXTRA".to_owned(), ParameterValue::Text("unverified".to_owned())));
        }
        let (now, vices) = (self.now, self.vices());
        let machine = &mut self.machines[at];
        machine.memory.deceived.remove(&(order.assignment, order.component.clone()));
        let touched = machine.engine.switch(&order, now, doing.warm_up, vices);
        self.stir(at);
        self.check_touched(at, touched)
    }

    /// An act of the engine ends.
    pub(super) fn acted(&mut self, at: usize, life: u64, ticket: u64) -> Result<(), Violation> {
        if !self.machines[at].is(life) {
            return Ok(());
        }
        let Some(doing) = self.machines[at].under_way.get(&ticket).cloned() else { return Ok(()) };
        if let (Fate::Honest, Action::Apply(order)) = (doing.fate, &doing.action)
            && let Some(ready) = self.machines[at].engine.ready_at(order, self.now)
            && !self.is_away(at)
        {
            // An engine waits for it, whoever started it.
            let wait = ready.since(self.now);
            self.after(wait, Happening::Acted { device: at, life, ticket });
            return Ok(());
        }
        let event = if self.is_away(at) {
            doing.action.undone("the engine went away", self.away_code(&doing.action))
        } else {
            match (doing.fate, &doing.action) {
                (Fate::Honest | Fate::SaysFailed, action) => {
                    let event = self.carry_out(at, action.clone(), doing.version)?;
                    match doing.fate {
                        Fate::SaysFailed => {
                            action.undone("it is said to have failed", FailureCode::StartFailed)
                        }
                        _ => event,
                    }
                }
                (Fate::Fails(code), action) => action.undone("it failed", code),
                (Fate::Hangs, action) => action.undone("It took too long.", FailureCode::Timeout),
                (Fate::SaysDone, action) => {
                    self.deceive(at, action);
                    done(action)
                }
            }
        };
        let changed = matches!(&event, Event::Applied { .. } | Event::Removed { .. });
        if changed && self.sabotage == Some(Sabotage::LosesOutcomes) && self.dice.hit(0.3) {
            return Ok(());
        }
        self.note_words(at, &event);
        if self.loses_failure(at, &doing.action, &event) {
            return Ok(());
        }
        let event = self.imagined(at, event);
        self.finish(at, ticket, event)
    }

    /// What is done at the end of an act, honestly.
    fn carry_out(&mut self, at: usize, action: Action, version: u64) -> Result<Event, Violation> {
        let (now, vices) = (self.now, self.vices());
        let wrong = matches!(action, Action::Observe) && self.dice.hit(self.rates.looked_wrong);
        let machine = &mut self.machines[at];
        Ok(match action {
            Action::Observe => {
                let mut seen = machine.engine.look(now);
                if wrong && !seen.is_empty() {
                    self.note(at, Fault::LookedWrong);
                    let which = self.dice.below(seen.len());
                    match self.dice.below(3) {
                        0 => drop(seen.remove(which)),
                        1 => seen[which].health = Health::Unhealthy("it is said to be ill".to_owned()),
                        _ => seen[which].health = Health::Healthy,
                    }
                }
                Event::Observed(Ok(seen))
            }
            Action::Apply(order) => {
                let verdict = machine.engine.verdict(&order, now);
                applied(&order, verdict)
            }
            Action::Remove { assignment, component, .. } => {
                machine.memory.deceived.remove(&(assignment, component.clone()));
                let touched = machine.engine.remove(assignment, &component, now, vices);
                self.stir(at);
                // What is wanted again since then could not be known when it began.
                let is_current = self.machines[at].memory.version == version;
                self.check_touched(at, if is_current { touched } else { vec![] })?;
                Event::Removed { assignment, component, result: Ok(()) }
            }
            other => done(&other),
        })
    }

    /// The agent died, and what it had asked for was done all the same.
    pub(super) fn complete_unheard(&mut self, at: usize, doing: &Doing) {
        let (now, vices) = (self.now, self.vices());
        if self.is_away(at) || doing.fate != Fate::Honest {
            return;
        }
        let Machine { engine, memory, .. } = &mut self.machines[at];
        // What it stops here was asked for, and judged, while the agent lived.
        match &doing.action {
            Action::Apply(order) => {
                memory.deceived.remove(&(order.assignment, order.component.clone()));
                drop(engine.switch(order, now, doing.warm_up, vices));
            }
            Action::Remove { assignment, component, .. } => {
                memory.deceived.remove(&(*assignment, component.clone()));
                drop(engine.remove(*assignment, component, now, vices));
            }
            _ => {}
        }
    }

    /// The engine says that something is done, and it is not.
    fn deceive(&mut self, at: usize, action: &Action) {
        let about = match action {
            Action::Apply(order) => (order.assignment, order.component.clone()),
            Action::Remove { assignment, component, .. } => (*assignment, component.clone()),
            _ => return,
        };
        self.machines[at].memory.deceived.insert(about);
    }

    /// Something happened to a container; a watching agent hears of it.
    pub(super) fn stir(&mut self, at: usize) {
        if self.machines[at].is_up() && !self.is_away(at) {
            let life = self.machines[at].life;
            self.after(Duration::from_millis(100), Happening::Stir { device: at, life });
        }
    }

    /// Remembers what the runtime said, to hold the device's reports against.
    fn note_words(&mut self, at: usize, event: &Event) {
        let machine = &mut self.machines[at];
        let words = &mut machine.memory.words;
        match event {
            Event::Applied { assignment, component, fingerprint, result } => {
                words.retain(|(a, c, print)| a != assignment || c != component || print == fingerprint);
                let word = (*assignment, component.clone(), *fingerprint);
                match result {
                    Ok(()) => words.insert(word),
                    Err(_) => words.remove(&word),
                };
            }
            Event::Removed { assignment, component, result: Ok(()) } => {
                words.retain(|(a, c, _)| a != assignment || c != component);
            }
            Event::Prefetched { fingerprint, result: Ok(()), .. } => {
                machine.memory.fetched.insert(*fingerprint);
            }
            Event::Observed(Ok(seen)) => {
                // While something is worked on, what became of that counts, and not what is seen of it meanwhile.
                let device = &machine.device;
                let is_judged = |id: &AssignmentId| {
                    let state = device.assignments().get(id).map(|assignment| assignment.state);
                    matches!(state, Some(State::Installed | State::Failed))
                };
                words.retain(|(id, name, print)| {
                    let stands = |seen: &Observation| {
                        (seen.assignment, &seen.component, seen.fingerprint) == (*id, name, Some(*print))
                            && seen.health.complaint().is_none()
                    };
                    !is_judged(id) || seen.iter().any(stands)
                });
                for Observation { assignment, component, fingerprint, health, .. } in seen {
                    if matches!(health, Health::Unhealthy(_) | Health::Down(_)) {
                        machine.memory.sick.insert(*assignment);
                        machine.memory.left.remove(assignment);
                    }
                    if let (Some(fingerprint), Health::Healthy) = (fingerprint, health) {
                        words.insert((*assignment, component.clone(), *fingerprint));
                    }
                }
            }
            _ => {}
        }
    }
}

impl World {
    /// A deliberate bug: nobody hears that a first install failed which cannot succeed.
    fn loses_failure(&self, at: usize, action: &Action, event: &Event) -> bool {
        let (Action::Apply(order), Event::Applied { result: Err(_), .. }) = (action, event) else {
            return false;
        };
        let machine = &self.machines[at];
        let assignment = machine.device.assignments().get(&order.assignment);
        // One at a time, so that what can be well has room beside it.
        let applies = machine.under_way.values().filter(|doing| matches!(doing.action, Action::Apply(_)));
        self.sabotage == Some(Sabotage::LosesFailures)
            && applies.count() == 1
            && Behaviour::of(order) != Behaviour::Good
            && assignment.is_some_and(|assignment| assignment.good.is_none())
    }

    /// A deliberate bug: what fell ill, and was not tried again yet, is seen to be well; or what failed and does not run.
    fn imagined(&self, at: usize, mut event: Event) -> Event {
        let Event::Observed(Ok(all)) = &mut event else { return event };
        let assignments = self.machines[at].device.assignments();
        let is_imagined = |seen: &&mut Observation| {
            let Some(assignment) = assignments.get(&seen.assignment) else { return false };
            let of = match self.sabotage {
                Some(Sabotage::ImaginesRecovery) => {
                    assignment.attempt == 0 && matches!(seen.health, Health::Unhealthy(_))
                }
                Some(Sabotage::ImaginesRunning) => {
                    matches!(seen.health, Health::Down(_) | Health::Drifted(_))
                }
                _ => false,
            };
            of && assignment.state == State::Failed
        };
        all.iter_mut().filter(is_imagined).for_each(|seen| seen.health = Health::Healthy);
        event
    }
}

fn applied(order: &Order, result: Result<(), Failure>) -> Event {
    Event::Applied {
        assignment: order.assignment,
        component: order.component.clone(),
        fingerprint: order.fingerprint(),
        result,
    }
}

/// What an action comes to that is said to be done.
fn done(action: &Action) -> Event {
    match action {
        Action::Prefetch(order) => Event::Prefetched {
            assignment: order.assignment,
            component: order.component.clone(),
            fingerprint: order.fingerprint(),
            result: Ok(()),
        },
        Action::Apply(order) => applied(order, Ok(())),
        Action::Remove { assignment, component, .. } => {
            Event::Removed { assignment: *assignment, component: component.clone(), result: Ok(()) }
        }
        other => other.undone("not asked of an engine", FailureCode::RuntimeMissing),
    }
}
