//! What operators want: deploy, update well and badly, aim elsewhere, remove, go back.

use std::time::Duration;

use margrave_core::id::{DeploymentId, DeploymentName};
use margrave_server::fleet::Error;
use margrave_wire::operator::{self, PutDeployment, Targets};
use serde_json::json;

use super::{Happening, World, broken};
use crate::check::Violation;
use crate::engine::STRANGE;
use crate::server::{VERSIONS, client, operator};

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
const BAD: [&str; 3] = ["no-start", "never-healthy", "sick"];
/// One in so many wishes takes an agent that is not dated, where there are dated ones.
const STRANGE_IN: f64 = 0.3;

impl World {
    /// An operator changes something, if the server is there to be told.
    pub(super) async fn intend(&mut self) -> Result<(), Violation> {
        let Some(server) = &self.server else {
            self.after(Duration::from_secs(60), Happening::Intent);
            return Ok(());
        };
        let fleet = server.fleet.clone();
        let present = fleet.deployments().await.map_err(broken)?;
        let present: Vec<operator::Deployment> = present.into_iter().filter(|d| !d.removing).collect();
        let free: Vec<&str> =
            NAMES.into_iter().filter(|name| present.iter().all(|d| d.name != *name)).collect();
        let fresh = !free.is_empty() && (present.is_empty() || self.dice.hit(0.3));
        let (said, result) = if fresh {
            let name = self.dice.pick(&free);
            let (want, fresh) = self.wish(None);
            let said = format!("deploys {name}: {}", spoken(&want));
            (said, self.put(name, want, fresh).await)
        } else {
            let held = &present[self.dice.below(present.len())];
            let name = parsed(&held.name);
            match self.dice.below(10) {
                0 => {
                    self.forget_care(&held.name);
                    (format!("removes {name}"), fleet.remove_deployment(&operator(), &name, None).await)
                }
                1 if held.revision > 1 => {
                    let to = held.revision - 1;
                    let said = format!("reverts {name} to revision {to}");
                    self.forget_care(&held.name);
                    (said, fleet.revert(&operator(), &name, to, None).await.map(drop))
                }
                2 => {
                    let mut want = same(held);
                    want.targets = self.targets();
                    let said = format!("aims {name} at {:?}", want.targets.devices);
                    (said, self.put(&held.name, want, vec![]).await)
                }
                3 | 4 if self.plan.careful => self.steer(held).await,
                _ => {
                    let (want, fresh) = self.wish(Some(held));
                    let said = format!("updates {name}: {}", spoken(&want));
                    (said, self.put(&held.name, want, fresh).await)
                }
            }
        };
        self.story.tell(self.now, "operator", &said);
        match result {
            Ok(()) => {}
            // A revision that the restored server has never seen, or that asks for what is gone.
            Err(
                error @ (Error::NotFound { .. }
                | Error::Conflict { .. }
                | Error::Invalid(_)
                | Error::Misfit(_)),
            ) => {
                self.story.tell(self.now, "operator", format_args!("was refused: {error}"));
            }
            Err(error) => return Err(broken(format!("the operator {said}: {error}"))),
        }
        self.after_server().await
    }

    /// Somebody decides that a server goes on with what was wanted when it was backed up.
    pub(super) async fn resolve(&mut self) -> Result<(), Violation> {
        let Some(server) = &self.server else {
            self.after(Duration::from_secs(60), Happening::Resolve);
            return Ok(());
        };
        let fleet = server.fleet.clone();
        // Started twice, it is decided once.
        if self.is_undecided().await? {
            self.story.tell(self.now, "operator", "goes on with what was wanted at the time of the backup");
            fleet.resolve(&operator(), false).await.map_err(broken)?;
        }
        self.after_server().await
    }

    /// Whether the server waits for somebody to decide what is wanted.
    pub(super) async fn is_undecided(&self) -> Result<bool, Violation> {
        let Some(server) = &self.server else { return Ok(false) };
        Ok(server.fleet.intent().await.map_err(broken)?.conflict.is_some())
    }

    fn targets(&mut self) -> Targets {
        let count = self.machines.len();
        let mut devices: Vec<String> = vec![];
        for at in 0..count {
            if self.dice.hit(0.7) {
                devices.push(client(at).to_string());
            }
        }
        if devices.is_empty() {
            devices.push(client(self.dice.below(count)).to_string());
        }
        Targets { devices, labels: Default::default(), ..Default::default() }
    }

    /// Wants something; `fresh` are the values that nothing has which was wanted before.
    async fn put(&mut self, name: &str, want: PutDeployment, fresh: Vec<String>) -> Result<(), Error> {
        let Some(server) = &self.server else { return Ok(()) };
        let (fleet, store) = (server.fleet.clone(), server.store.clone());
        // Only what says so goes in steps, for certain.
        let in_steps = want.strategy.is_some() && !fresh.is_empty();
        self.forget_care(name);
        let put = fleet.put_deployment(&operator(), &parsed(name), want).await?;
        // Where nobody can have it yet there are no steps: whoever can later gets it then.
        let id = DeploymentId::parse(&put.id).expect("it came from the server");
        let rollout = store.rollout(id).await?;
        if in_steps && rollout.is_some_and(|rollout| rollout.revision == put.revision) {
            self.remember_care(name, fresh);
        }
        Ok(())
    }

    /// Something new, good as a rule, and its values.
    fn wish(&mut self, held: Option<&operator::Deployment>) -> (PutDeployment, Vec<String>) {
        let bad = self.dice.hit(0.35);
        let culprit = self.dice.below(2);
        let is_strange = self.plan.dated.contains(&true) && self.dice.hit(STRANGE_IN);
        let (first, second) =
            (self.mode(bad && culprit == 0, is_strange), self.mode(bad && culprit == 1, false));
        let mut want = match held {
            Some(held) => same(held),
            None => PutDeployment {
                package: "app".to_owned(),
                version: Some(VERSIONS[self.dice.below(2)].0.to_owned()),
                profile: None,
                parameters: Default::default(),
                targets: self.targets(),
                rollback: None,
                strategy: None,
                revision: None,
                ..Default::default()
            },
        };
        if self.dice.hit(0.2) {
            want.version = Some(VERSIONS[self.dice.below(2)].0.to_owned());
        }
        // As a rule only one of the two changes.
        let mut fresh = vec![];
        if self.dice.hit(0.6) || is_strange || (bad && culprit == 0) {
            want.parameters.insert("first".to_owned(), json!(first));
            fresh.push(first);
        }
        if self.dice.hit(0.6) || (bad && culprit == 1) {
            want.parameters.insert("second".to_owned(), json!(second));
            fresh.push(second);
        }
        want.strategy = self.strategy();
        if self.dice.hit(0.2) {
            let when = if self.dice.hit(0.5) { "never" } else { "on-failed-update" };
            let attempts = 1 + u32::try_from(self.dice.below(3)).unwrap_or(0);
            want.rollback = Some(operator::Rollback {
                when: Some(when.to_owned()),
                attempts: Some(attempts),
                health_grace_seconds: None,
            });
        }
        // Who does not understand something refuses it, and holds nobody up behind it; what was wanted before may be such.
        let is_refused =
            |value: &serde_json::Value| value.as_str().is_some_and(|mode| mode.starts_with(STRANGE));
        if want.parameters.values().any(is_refused) {
            fresh.clear();
        }
        (want, fresh)
    }

    /// How a component is to behave; no two are the same.
    fn mode(&mut self, bad: bool, strange: bool) -> String {
        self.values += 1;
        let kind = match (bad, strange) {
            (true, _) => self.dice.pick(&BAD),
            (false, true) => STRANGE,
            (false, false) => "good",
        };
        format!("{kind}-{}", self.values)
    }
}

fn parsed(name: &str) -> DeploymentName {
    DeploymentName::parse(name).expect("a plain word is a deployment's name")
}

fn same(held: &operator::Deployment) -> PutDeployment {
    PutDeployment {
        package: held.package.clone(),
        version: Some(held.version.clone()),
        profile: held.profile.clone(),
        parameters: held.parameters.clone(),
        targets: held.targets.clone(),
        rollback: Some(held.rollback.clone()),
        strategy: None,
        revision: None,
        ..Default::default()
    }
}

fn spoken(want: &PutDeployment) -> String {
    let version = want.version.as_deref().unwrap_or("newest");
    let parameters: Vec<String> =
        want.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let rollback = want.rollback.as_ref().and_then(|rollback| rollback.when.as_deref()).unwrap_or("as it is");
    format!("{version} {} on {:?}, back {rollback}", parameters.join(" "), want.targets.devices)
}
