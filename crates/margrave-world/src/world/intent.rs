//! What operators want: deploy, update well and badly, aim elsewhere, remove, go back.

use std::time::Duration;

use margrave_core::id::DeploymentName;
use margrave_server::fleet::Error;
use margrave_wire::operator::{self, PutDeployment, Targets};
use serde_json::json;

use super::{Happening, World, broken};
use crate::check::Violation;
use crate::server::{VERSIONS, client, operator};

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
const BAD: [&str; 3] = ["no-start", "never-healthy", "sick"];

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
            let want = self.wish(None);
            let said = format!("deploys {name}: {}", spoken(&want));
            (said, fleet.put_deployment(&operator(), &parsed(name), want).await.map(drop))
        } else {
            let held = &present[self.dice.below(present.len())];
            let name = parsed(&held.name);
            match self.dice.below(10) {
                0 => (format!("removes {name}"), fleet.remove_deployment(&operator(), &name, None).await),
                1 if held.revision > 1 => {
                    let to = held.revision - 1;
                    let said = format!("reverts {name} to revision {to}");
                    (said, fleet.revert(&operator(), &name, to, None).await.map(drop))
                }
                2 => {
                    let mut want = same(held);
                    want.targets = self.targets();
                    let said = format!("aims {name} at {:?}", want.targets.devices);
                    (said, fleet.put_deployment(&operator(), &name, want).await.map(drop))
                }
                _ => {
                    let want = self.wish(Some(held));
                    let said = format!("updates {name}: {}", spoken(&want));
                    (said, fleet.put_deployment(&operator(), &name, want).await.map(drop))
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

    /// Something new, good as a rule.
    fn wish(&mut self, held: Option<&operator::Deployment>) -> PutDeployment {
        let bad = self.dice.hit(0.35);
        let culprit = self.dice.below(2);
        let mut mode = |at: usize| match bad && at == culprit {
            true => format!("{}-{}", self.dice.pick(&BAD), self.dice.below(1000)),
            false => format!("good-{}", self.dice.below(1000)),
        };
        let (first, second) = (mode(0), mode(1));
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
        if self.dice.hit(0.6) || (bad && culprit == 0) {
            want.parameters.insert("first".to_owned(), json!(first));
        }
        if self.dice.hit(0.6) || (bad && culprit == 1) {
            want.parameters.insert("second".to_owned(), json!(second));
        }
        if self.dice.hit(0.2) {
            let when = if self.dice.hit(0.5) { "never" } else { "on-failed-update" };
            let attempts = 1 + u32::try_from(self.dice.below(3)).unwrap_or(0);
            want.rollback = Some(operator::Rollback {
                when: Some(when.to_owned()),
                attempts: Some(attempts),
                health_grace_seconds: None,
            });
        }
        want
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
