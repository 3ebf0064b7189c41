//! What happens to rollouts by themselves: the next devices, a halt, the way back, the end.

use std::collections::HashMap;

use margrave_core::deployment::{Deployment, SITE};
use margrave_core::id::{DeploymentId, DeviceRef};
use margrave_core::rollout::{Decision, Now, Progress, Standing, Waiting, decide};
use margrave_core::secret::is_wanting;
use margrave_store::{
    Candidate, DeploymentRecord, DeviceRecord, NewEvent, Publication, RolloutChange, RolloutRecord,
    RolloutState, RolloutUpdate, Standing as Retirement,
};

use crate::fleet::audit::Unasked;
use crate::fleet::intent::{Change, Failed};
use crate::fleet::publish::{ATTEMPTS_MAX, Unpublished};
use crate::fleet::{Actor, Error, Fleet};

/// What is to follow once nobody else decides anything.
enum Then {
    Nothing,
    GoBack(Box<RolloutRecord>),
}

type Turn = (RolloutState, Option<String>, &'static str, String);

fn halted(about: &str, why: String) -> Turn {
    let text = format!("{about}, was halted: {why}");
    (RolloutState::Halted, Some(why), "rollout.halted", text)
}

impl Fleet {
    /// Takes every rollout as far as it may go. Safe to call at any time, twice, or not at all for a while.
    pub async fn advance_rollouts(&self) -> Result<(), Error> {
        if self.desired.is_returning() {
            return Ok(());
        }
        let mut failed = None;
        for rollout in self.store.rollouts_open().await? {
            if !matches!(rollout.state, RolloutState::Running | RolloutState::Reverting) {
                continue;
            }
            // One that cannot be moved must not stop the others.
            if let Err(error) = self.advance(rollout.deployment).await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn advance(&self, deployment: DeploymentId) -> Result<(), Error> {
        match self.advance_alone(deployment).await? {
            Then::Nothing => Ok(()),
            Then::GoBack(rollout) => self.go_back(&rollout).await,
        }
    }

    async fn advance_alone(&self, deployment: DeploymentId) -> Result<Then, Error> {
        let _stepping = self.rollouts.stepping.lock().await;
        for attempt in 1.. {
            let Some(rollout) = self.store.rollout(deployment).await? else { return Ok(Then::Nothing) };
            match rollout.state {
                RolloutState::Running => {}
                RolloutState::Reverting => return Ok(Then::GoBack(Box::new(rollout))),
                _ => return Ok(Then::Nothing),
            }
            let held = self.store.deployment(&rollout.name).await?.filter(|held| !held.removed);
            let Some(held) = held.filter(|held| held.deployment.revision == rollout.revision) else {
                return Ok(Then::Nothing);
            };
            let progress = self.progress(&rollout, &held).await?;
            let decision = decide(&held.deployment.strategy, &progress, self.now());
            let rests = |decision: &Decision| {
                let moves = !decision.release.is_empty() || decision.reached != rollout.reached;
                !moves && matches!(decision.standing, Standing::Running | Standing::Waiting(_))
            };
            if rests(&decision) {
                self.rollouts.remember_heard(&rollout, &decision);
                self.ask_for_a_word(&progress, &decision);
                return Ok(Then::Nothing);
            }
            // Until here nobody was kept from deciding anything: looking at all devices takes as long as there are many.
            let _deciding = self.deciding.write().await;
            if !self.is_as_seen(&rollout, &held).await? {
                match attempt < ATTEMPTS_MAX {
                    true => continue,
                    // The next look is not far.
                    false => return Ok(Then::Nothing),
                }
            }
            // Devices may have reported while this waited for its turn: nobody else is to get what failed meanwhile.
            let progress = self.progress(&rollout, &held).await?;
            let decision = decide(&held.deployment.strategy, &progress, self.now());
            if rests(&decision) {
                self.rollouts.remember_heard(&rollout, &decision);
                self.ask_for_a_word(&progress, &decision);
                return Ok(Then::Nothing);
            }
            let name = &rollout.name;
            let about = format!("the rollout of {name}, revision {}", rollout.revision);
            let (to, why, kind, text): Turn = match &decision.standing {
                Standing::Done => (RolloutState::Done, None, "rollout.done", format!("{about}, is done")),
                Standing::Halted(why) => halted(&about, why.clone()),
                Standing::Reverting(why) => (
                    RolloutState::Reverting,
                    Some(why.clone()),
                    "rollout.reverting",
                    format!("{about}, goes back: {why}"),
                ),
                _ if decision.release.is_empty() => {
                    self.store.update_rollout(update(&rollout, &decision, RolloutState::Running)).await?;
                    return Ok(Then::Nothing);
                }
                _ => match self.release(&rollout, &held, &progress, &decision).await {
                    Err(Unpublished::Moved) if attempt < ATTEMPTS_MAX => continue,
                    Err(unpublished) => return Err(unpublished.into()),
                    Ok(None) => return Ok(Then::Nothing),
                    Ok(Some(why)) => halted(&about, why),
                },
            };
            let at = self.now();
            let changed = RolloutUpdate {
                why,
                at,
                by: Some("server".to_owned()),
                event: Some(NewEvent::new(at, kind, "server", text).deployment(name)),
                ..update(&rollout, &decision, to)
            };
            self.store.update_rollout(changed).await?;
            if to != RolloutState::Reverting {
                return Ok(Then::Nothing);
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Who is to be heard of after a soak may have a poll held for minutes more; it is answered now, and asks again at once if it
    /// is still there.
    fn ask_for_a_word(&self, progress: &Progress, decision: &Decision) {
        let Standing::Waiting(Waiting::Unheard { since, .. }) = decision.standing else { return };
        let unheard =
            progress.members.iter().filter(|member| member.now == Now::Done && member.heard < since);
        for member in unheard {
            self.release_held(&member.device.client);
        }
    }

    /// Whether nobody changed a rollout, or what it takes to the devices, since it was looked at.
    async fn is_as_seen(&self, rollout: &RolloutRecord, held: &DeploymentRecord) -> Result<bool, Error> {
        let same = self.store.rollout(rollout.deployment).await?.as_ref() == Some(rollout);
        Ok(same && self.store.deployment(&rollout.name).await?.as_ref() == Some(held))
    }

    /// Gives the devices of a decision what the deployment wants now; says why that cannot be made, if it cannot.
    async fn release(
        &self,
        rollout: &RolloutRecord,
        held: &DeploymentRecord,
        progress: &Progress,
        decision: &Decision,
    ) -> Result<Option<String>, Unpublished> {
        let deployment = &held.deployment;
        let entry =
            self.entry(&deployment.package, &deployment.version).await.map_err(Unpublished::Failed)?;
        let entry = entry.ok_or_else(|| {
            let what = format!("package {} {}", deployment.package, deployment.version);
            Unpublished::Failed(Error::not_found(what))
        })?;
        let wish = self.wish(deployment.clone(), entry, None);
        let devices = self.candidates(deployment, progress, decision).await?;
        let released = self.decide_release(&wish, devices).await.map_err(Unpublished::Failed)?;
        // It would be wanting for everybody after these, too, and none of them is to blame.
        let reasons = released.misfits.iter().flat_map(|misfit| &misfit.reasons);
        if let Some(reason) = reasons.into_iter().find(|reason| is_wanting(reason)) {
            return Ok(Some(format!("{reason}; put it there, then resume the rollout")));
        }
        let at = self.now();
        let text = format!(
            "{}, revision {}, batch {}: released for {}",
            rollout.name,
            rollout.revision,
            decision.reached.batch + 1,
            match released.devices.as_slice() {
                [one] => self.live.spoken(one),
                several => format!("{} devices", several.len()),
            }
        );
        let event = NewEvent::new(at, "rollout.released", "server", text).deployment(&rollout.name);
        let publication = Publication {
            at,
            misfits: released.misfits,
            freed: released.freed,
            events: if released.devices.is_empty() { Vec::new() } else { vec![event] },
            rollouts: vec![RolloutChange::Release {
                deployment: rollout.deployment,
                revision: rollout.revision,
                reached: decision.reached,
                devices: released.devices,
            }],
            ..Default::default()
        };
        self.publish(publication, released.touched).await.map(|()| None)
    }

    /// Those whose turn has come. Who left, or is at another site now, since all were looked at changes whose turn it is.
    async fn candidates(
        &self,
        deployment: &Deployment,
        progress: &Progress,
        decision: &Decision,
    ) -> Result<Vec<Candidate>, Unpublished> {
        let devices = self.store.devices_named(decision.release.clone()).await;
        let devices = devices.map_err(|error| Unpublished::Failed(error.into()))?;
        let sites: HashMap<&DeviceRef, &str> =
            progress.members.iter().map(|member| (&member.device, member.site.as_str())).collect();
        let is_as_seen = |device: &DeviceRecord| {
            let site = device.labels.get(SITE).map(String::as_str).unwrap_or_default();
            device.standing != Retirement::Retired
                && deployment.targets.matches(&device.device, &device.labels)
                && sites.get(&device.device) == Some(&site)
        };
        if devices.len() != decision.release.len() || !devices.iter().all(is_as_seen) {
            return Err(Unpublished::Moved);
        }
        Ok(devices.iter().map(Candidate::from).collect())
    }

    /// Wants again what was wanted before. Whoever got the new revision goes back at once.
    pub(in crate::fleet) async fn go_back(&self, rollout: &RolloutRecord) -> Result<(), Error> {
        let server = Actor { name: "server".into() };
        let Some(to) = rollout.before else { return Ok(()) };
        let why = rollout.why.as_deref().unwrap_or("it failed");
        let reason = Some(format!("The rollout of revision {} was halted: {why}", rollout.revision));
        let seen = Some(rollout.revision);
        let change = Change::RevertDeployment { name: rollout.name.clone(), to, seen, reason };
        let unasked = Unasked::new("deployment.revert", rollout.name.to_string());
        let failed = Failed { revision: rollout.revision, why };
        let error = match self.take_back(&server, change, failed).await {
            Ok(true) => return Ok(()),
            // Only a secret changed between the two, and what it was before nobody here has.
            Ok(false) => Error::conflict(format!(
                "revision {to} refers to the same secrets, which are as they are now; put the earlier value back, then apply"
            )),
            // Tried again with the next look.
            Err(error @ (Error::Storage(_) | Error::Overloaded)) => return Err(error),
            Err(error) => error,
        };
        // Somebody ended it, or changed the deployment, in that moment: then nothing is refused, and nothing left to halt.
        let now = self.store.rollout(rollout.deployment).await?;
        if now.is_none_or(|now| (now.revision, now.state) != (rollout.revision, RolloutState::Reverting)) {
            return Ok(());
        }
        let why = format!("{why}; it could not go back to revision {to}: {error}");
        let refused = Unasked { outcome: "conflict", detail: why.clone(), ..unasked };
        self.record_unasked(refused).await;
        let at = self.now();
        let text =
            format!("the rollout of {}, revision {}, was halted: {why}", rollout.name, rollout.revision);
        let update = RolloutUpdate {
            deployment: rollout.deployment,
            revision: rollout.revision,
            from: vec![RolloutState::Reverting],
            to: RolloutState::Halted,
            why: Some(why),
            reached: rollout.reached,
            forgiven: Vec::new(),
            at,
            by: Some(server.name.clone()),
            event: Some(NewEvent::new(at, "rollout.halted", "server", text).deployment(&rollout.name)),
        };
        // Somebody changed the deployment meanwhile: then there is nothing left to halt.
        self.store.update_rollout(update).await.map(drop)?;
        Ok(())
    }
}

/// A running rollout, moved without anybody's doing.
fn update(rollout: &RolloutRecord, decision: &Decision, to: RolloutState) -> RolloutUpdate {
    RolloutUpdate {
        deployment: rollout.deployment,
        revision: rollout.revision,
        from: vec![RolloutState::Running],
        to,
        why: None,
        reached: decision.reached,
        forgiven: Vec::new(),
        at: rollout.changed_at,
        by: None,
        event: None,
    }
}
