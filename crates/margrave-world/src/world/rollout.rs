//! Operators who give what is new to one device after the other, and what must hold of that.
//!
//! Who got what is read from the manifests that devices are shown, by values that no two wishes share; what the server itself
//! says of its rollouts is only asked in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use margrave_core::device::Order;
use margrave_core::id::DeploymentName;
use margrave_server::fleet::{Error, RolloutVerb};
use margrave_wire::operator;
use margrave_wire::rollout::{CanaryBody, StrategyBody};

use super::{Happening, World, broken};
use crate::check::{Check, Violation};
use crate::engine::mode;
use crate::fault::Fault;
use crate::sabotage::Sabotage;
use crate::server::operator as by_operator;

/// The server looks more often; nothing here takes less than seconds.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// What an operator wanted to reach one device after the other.
#[derive(Debug)]
pub(crate) struct Careful {
    deployment: String,
    /// Values that stand in its documents, and in those of nothing else that is wanted.
    modes: Vec<String>,
    /// It shows at once that it can never be well.
    is_bad: bool,
    /// Somebody paused or aborted it.
    is_stopped: bool,
    given: BTreeSet<usize>,
}

/// Of every deployment the newest wish alone: whatever else is wanted of it begins anew.
pub(crate) type Carefully = BTreeMap<String, Careful>;

impl World {
    pub(super) fn begin_rollouts(&mut self) {
        if self.plan.careful {
            self.after(LOOK_EVERY, Happening::Rollouts);
        }
    }

    /// The server looks at its rollouts, as it does by itself.
    pub(super) async fn look_at_rollouts(&mut self) -> Result<(), Violation> {
        self.after(LOOK_EVERY.max(self.sweep_every / 10), Happening::Rollouts);
        let stands_still = self.sabotage == Some(Sabotage::RolloutsStandStill);
        let Some(server) = self.server.as_ref().filter(|_| !stands_still) else { return Ok(()) };
        server.fleet.advance_rollouts().await.map_err(broken)?;
        if self.sabotage == Some(Sabotage::ResumesAnyway) {
            for name in self.carefully.keys().cloned().collect::<Vec<_>>() {
                let name = DeploymentName::parse(&name).map_err(broken)?;
                // There may be nothing to resume.
                let _ = server.fleet.hold_rollout(&by_operator(), &name, RolloutVerb::Resume).await;
            }
        }
        self.after_server().await
    }

    /// In which steps something new is to go; `None` leaves it as it was.
    pub(super) fn strategy(&mut self) -> Option<StrategyBody> {
        if !self.plan.careful || self.dice.hit(0.3) {
            return None;
        }
        let soak = |dice: &mut crate::dice::Dice| dice.hit(0.5).then(|| dice.pick(&[20, 60, 180]));
        let canary = match self.dice.hit(0.4) {
            true => Some(CanaryBody {
                size: "1".to_owned(),
                labels: BTreeMap::new(),
                soak_seconds: soak(&mut self.dice),
            }),
            false => None,
        };
        Some(StrategyBody {
            canary,
            batches: vec!["1".to_owned()],
            soak_seconds: soak(&mut self.dice),
            max_unavailable_per_site: self.dice.hit(0.3).then(|| "1".to_owned()),
            on_failure: Some(if self.dice.hit(0.5) { "revert" } else { "halt" }.to_owned()),
            ..Default::default()
        })
    }

    /// An operator wants something else under this name, so that nothing holds any more of what was wanted before.
    pub(super) fn forget_care(&mut self, name: &str) {
        self.carefully.remove(name);
    }

    /// What was just wanted goes in steps: `fresh` are the values that only it has.
    pub(super) fn remember_care(&mut self, name: &str, fresh: Vec<String>) {
        let shows = |mode: &String| mode.starts_with("no-start") || mode.starts_with("never-healthy");
        let careful = Careful {
            deployment: name.to_owned(),
            is_bad: fresh.iter().any(shows),
            modes: fresh,
            is_stopped: false,
            given: BTreeSet::new(),
        };
        self.carefully.insert(name.to_owned(), careful);
    }

    /// An operator stops a rollout or lets it go on.
    pub(super) async fn steer(&mut self, held: &operator::Deployment) -> (String, Result<(), Error>) {
        let verb = self.dice.pick(&[
            RolloutVerb::Pause,
            RolloutVerb::Pause,
            RolloutVerb::Resume,
            RolloutVerb::Resume,
            RolloutVerb::Abort,
        ]);
        let said = format!("says {verb:?} to the rollout of {}", held.name);
        let Some(server) = &self.server else { return (said, Ok(())) };
        let name = DeploymentName::parse(&held.name).expect("it came from the server");
        let result = server.fleet.hold_rollout(&by_operator(), &name, verb).await.map(drop);
        if result.is_ok() {
            match verb {
                RolloutVerb::Pause | RolloutVerb::Abort => {
                    if let Some(careful) = self.carefully.get_mut(&held.name) {
                        careful.is_stopped = true;
                    }
                }
                // Whoever failed is forgiven.
                RolloutVerb::Resume => self.forget_care(&held.name),
            }
        }
        (said, result)
    }

    /// A device is shown a document.
    pub(super) fn check_care(&mut self, at: usize, orders: &[Order]) -> Result<(), Violation> {
        let has =
            |careful: &Careful| orders.iter().any(|order| careful.modes.iter().any(|m| m == mode(order)));
        for careful in self.carefully.values_mut().filter(|careful| has(careful)) {
            let is_new = careful.given.insert(at);
            let device = &self.machines[at].name;
            let told = |why: &str| {
                let what = format!("is given {} {why}", careful.deployment);
                Err(Violation::of(Check::RolloutsAreKept, device, what))
            };
            if is_new && careful.is_stopped {
                return told("although somebody stopped it");
            }
            // An engine that says of what is bad that it is good is believed.
            let lied = |at: &usize| self.machines[*at].memory.faults.has(Fault::SaidDoneWasNot);
            if careful.is_bad && careful.given.len() > 1 && !careful.given.iter().any(lied) {
                return told("although it failed on the device before");
            }
        }
        Ok(())
    }

    /// Whether every rollout came to its end, or stands because somebody or something stopped it.
    pub(super) async fn rollouts_settled(&self) -> Result<(), Violation> {
        // A server that was set back without being told so waits for reports that it has forgotten, and that nobody says again.
        let is_asked = self.plan.careful && !self.unknowing;
        let Some(server) = self.server.as_ref().filter(|_| is_asked) else { return Ok(()) };
        for deployment in server.fleet.deployments().await.map_err(broken)? {
            if deployment.removing {
                continue;
            }
            let name = DeploymentName::parse(&deployment.name).map_err(broken)?;
            let rollout = server.fleet.rollout(&name).await.map_err(broken)?;
            // What fails for ever, and was forgiven, takes the room of its site until a person mends it.
            let reason = rollout.reason.as_deref().unwrap_or_default();
            let is_full = reason.contains("as many devices unavailable as they may")
                && rollout.counts.failed + rollout.counts.under_way > 0;
            let is_over = matches!(rollout.state.as_str(), "done" | "halted" | "aborted" | "paused");
            if !is_over && !is_full {
                let what = format!("the rollout of {name} is {}: {:?}", rollout.state, rollout.reason);
                return Err(Violation::new(Check::RolloutsEnd, "server", what));
            }
        }
        Ok(())
    }
}
