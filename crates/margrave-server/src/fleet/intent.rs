//! What operators want: the one way in.
//!
//! Every change of intent (packages, deployments, labels, schedules) goes through [`Fleet::change`], whoever asks and however:
//! a page, a command, a push, a remote that is followed. Everything about it is checked first (`draft.rs`, `prospect.rs`). Then it
//! becomes a commit, and with the commit, in one transaction, what follows from it for every device. `main` moves last: if the
//! power goes before, the next start moves it (`desired/`).

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::deployment::Defaults;
use margrave_core::id::{DeploymentId, DeploymentName, DeviceRef, PackageId, PackageVersion};
use margrave_core::schedule::{Choice, Reach};
use margrave_core::violation::Violation;
use margrave_store::{Head, MisfitRecord, Publication};
use margrave_wire::operator;
use margrave_wire::resource::Place;

use super::catalog::Pulled;
use super::desired::{CommitId, Signed};
use super::draft::Overlay;
use super::git::Quarantine;
use super::made::made;
use super::prospect::Prospect;
use super::publish::{ATTEMPTS_MAX, Decision, Unpublished};
use super::{Actor, Error, Fleet, Preview, PreviewFit};

/// One change of what is wanted.
pub(super) enum Change {
    AddPackage(Box<Pulled>),
    RemovePackage {
        id: PackageId,
        version: PackageVersion,
    },
    PutDeployment {
        name: DeploymentName,
        want: operator::PutDeployment,
        id: Option<DeploymentId>,
    },
    /// The same as its file says it: what is left out is as usual, and not as it was before.
    PutFile {
        name: DeploymentName,
        want: operator::PutDeployment,
        id: Option<DeploymentId>,
    },
    /// What counts for deployments that say nothing of it.
    Defaults(Box<Defaults>),
    RemoveDeployment {
        name: DeploymentName,
        seen: Option<u64>,
    },
    RevertDeployment {
        name: DeploymentName,
        to: u64,
        seen: Option<u64>,
        /// Why, where the server does so by itself.
        reason: Option<String>,
    },
    /// Gives and takes some labels.
    Label {
        device: DeviceRef,
        labels: BTreeMap<String, Option<String>>,
    },
    /// All labels that a device is to have; `None` leaves it those that it has.
    SetLabels {
        device: DeviceRef,
        labels: Option<BTreeMap<String, String>>,
    },
    Schedule {
        reach: Reach,
        choice: Option<Choice>,
    },
}

/// Where a change comes from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// An operator asks; a commit is made of it.
    Asked,
    /// It is the difference to a commit that somebody made already.
    Commit(Incoming<'a>),
}

#[derive(Clone, Copy)]
pub(super) struct Incoming<'a> {
    pub(super) commit: CommitId,
    /// What was applied when the difference was looked at.
    pub(super) on: Option<CommitId>,
    /// Where its objects are, if they are not in the repository.
    pub(super) quarantine: Option<&'a Quarantine>,
}

impl Source<'_> {
    fn is_asked(&self) -> bool {
        matches!(self, Source::Asked)
    }
}

/// Why a change was refused: which of several, and why.
pub(super) type Refusals = Vec<(usize, Error)>;

impl Fleet {
    /// Changes what is wanted, and everything that follows from it.
    pub(super) async fn change(&self, actor: &Actor, change: Change) -> Result<(), Error> {
        self.change_all(actor, &[change]).await
    }

    /// Several in one commit, or none of them; the first that is refused says why.
    pub(super) async fn change_all(&self, actor: &Actor, changes: &[Change]) -> Result<(), Error> {
        let refused = |refusals: Refusals| {
            let first = refusals.into_iter().next().map(|(_, error)| error);
            first.unwrap_or_else(|| Error::conflict("the change was refused"))
        };
        self.apply(actor, changes, Source::Asked).await.map_err(refused)
    }

    /// Does all of these changes, or none.
    pub(super) async fn apply(
        &self,
        actor: &Actor,
        changes: &[Change],
        source: Source<'_>,
    ) -> Result<(), Refusals> {
        let whole = |error: Error| vec![(usize::MAX, error)];
        let deciding = self.deciding.write().await;
        if source.is_asked() {
            self.desired.may_change().map_err(whole)?;
        }
        for attempt in 1.. {
            // The difference would take back what came in between.
            if let Source::Commit(incoming) = source
                && incoming.on != self.desired.head()
            {
                return Err(whole(Error::conflict("something was changed at the same moment; try again")));
            }
            let prospect = self.prospect(actor, changes).await?;
            if prospect.is_nothing() && source.is_asked() {
                return Ok(());
            }
            match self.carry_out(actor, prospect, source).await {
                Err(Unpublished::Moved) if attempt < ATTEMPTS_MAX => {}
                Err(unpublished) => return Err(whole(unpublished.into())),
                Ok(()) => break,
            }
        }
        drop(deciding);
        // Devices whose labels or schedule changed; what is done is durable, and the rest follows by itself.
        self.settle().await.map_err(whole)
    }

    async fn carry_out(
        &self,
        actor: &Actor,
        prospect: Prospect,
        source: Source<'_>,
    ) -> Result<(), Unpublished> {
        let failed = |error: Error| Unpublished::Failed(error);
        let at = self.now();
        let Prospect { wanted, removed, intents, files, events, words, going, .. } = prospect;
        let names: BTreeMap<DeploymentId, DeploymentName> = wanted
            .iter()
            .map(|drafted| (drafted.wish.deployment.id, drafted.wish.deployment.name.clone()))
            .collect();
        let refusable: BTreeSet<(DeploymentId, DeviceRef)> = wanted
            .iter()
            .flat_map(|drafted| {
                let id = drafted.wish.deployment.id;
                drafted.named.iter().map(move |device| (id, device.clone()))
            })
            .collect();
        let wishes = wanted.into_iter().map(|drafted| (drafted.wish, drafted.devices)).collect();
        let Decision { touched, misfits, unfit, rollouts, freed, .. } =
            self.decide(wishes, &removed).await.map_err(failed)?;
        // A device that was named on purpose and does not fit is a mistake; one that only matches is left out.
        let mistaken = |misfit: &&MisfitRecord| {
            let key = (misfit.deployment, misfit.device.clone());
            unfit.contains(&key) && refusable.contains(&key)
        };
        let refused: Vec<&MisfitRecord> = misfits.iter().filter(mistaken).collect();
        if !refused.is_empty() {
            return Err(failed(self.misplaced(&refused, &names, source)));
        }
        let head = self.desired.head();
        let next = match source {
            Source::Commit(Incoming { commit, quarantine, .. }) => {
                if let Some(quarantine) = quarantine {
                    let admitted = quarantine.admit().await;
                    admitted.map_err(|error| failed(Error::Storage(Box::new(error))))?;
                }
                commit
            }
            Source::Asked => {
                let message = message(&words);
                let signed = Signed { by: actor.name.clone(), at, message };
                let commit = self.desired.commit(head, files, signed).await;
                commit.map_err(|error| failed(error.into()))?
            }
        };
        let counts = names.len() == 1;
        let events = events.into_iter().map(|mut event| {
            if counts && event.deployment.is_some() {
                event.text = format!("{}, {} changed", event.text, counted(touched.len(), "manifest"));
            }
            event.at = at;
            event
        });
        let publication = Publication {
            at,
            intents,
            head: Some(Head { expected: head.map(|head| head.to_string()), next: next.to_string() }),
            misfits,
            freed: freed.into_iter().collect(),
            rollouts,
            events: events.collect(),
            ..Default::default()
        };
        match self.publish(publication, touched).await {
            // Not another commit's doing in this process, where one decides at a time: what the database has is what counts.
            Err(Unpublished::Moved) => {
                self.desired.look_again(&self.store).await.map_err(failed)?;
                Err(Unpublished::Moved)
            }
            Err(failed) => Err(failed),
            Ok(()) => {
                self.catalog.forget(&going);
                self.desired.applied(next).await;
                made(next);
                Ok(())
            }
        }
    }

    /// Why devices that were named cannot be given what they were named for.
    fn misplaced(
        &self,
        refused: &[&MisfitRecord],
        names: &BTreeMap<DeploymentId, DeploymentName>,
        source: Source<'_>,
    ) -> Error {
        if source.is_asked() {
            let shown = |misfit: &&MisfitRecord| operator::Misfit {
                device: self.live.spoken(&misfit.device),
                reasons: misfit.reasons.clone(),
                temporary: false,
            };
            return Error::Misfit(refused.iter().map(shown).collect());
        }
        let flaw = |misfit: &&MisfitRecord| {
            let place = names.get(&misfit.deployment).map(|name| Place::Deployment(name.clone()).to_string());
            let message = format!(
                "{} does not fit: {}; leave it out, or say under `force` why it is to have it all the same",
                self.live.spoken(&misfit.device),
                misfit.reasons.join("; ")
            );
            Violation::new(place.unwrap_or_default(), "DM-022", message)
        };
        Error::Invalid(refused.iter().map(flaw).collect())
    }

    /// Creates or changes a deployment; the answer counts its assignments and does not list them.
    pub async fn put_deployment(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        want: operator::PutDeployment,
    ) -> Result<operator::Deployment, Error> {
        self.change(actor, Change::PutDeployment { name: name.clone(), want, id: None }).await?;
        self.deployment_counted(name).await
    }

    /// Takes a deployment away from all its devices. They are shown until each said that it is gone. `seen` is the
    /// revision that the writer saw; a change in between is then a conflict.
    pub async fn remove_deployment(
        &self,
        actor: &Actor,
        name: &DeploymentName,
        seen: Option<u64>,
    ) -> Result<(), Error> {
        self.change(actor, Change::RemoveDeployment { name: name.clone(), seen }).await
    }

    /// Which devices a deployment would reach; nothing is written.
    pub async fn preview(
        &self,
        name: &DeploymentName,
        want: operator::PutDeployment,
    ) -> Result<Preview, Error> {
        let draft = self.draft(name, &want, None, &Overlay::default()).await?;
        let mut fits = Vec::new();
        let mut misfits = Vec::new();
        let devices = draft.devices.iter().map(|device| &device.device);
        let (pictures, mut promises) = self.promised(devices, [&draft.wish.entry]).await?;
        for device in &draft.devices {
            let (_, stand) = promises.stand(&pictures, device, &draft.wish);
            match draft.wish.place(device, &stand, &self.options.registry_address) {
                Ok(placed) => fits.push(PreviewFit {
                    device: self.live.spoken(&device.device),
                    profile: placed.wanted.profile.to_string(),
                    despite: placed.despite,
                }),
                Err(unplaced) => misfits.push(operator::Misfit {
                    device: self.live.spoken(&device.device),
                    temporary: unplaced.is_temporary(),
                    reasons: unplaced.reasons(),
                }),
            }
        }
        Ok(Preview { fits, misfits })
    }
}

/// What a commit says of itself: one change in a line, several in a list below one.
fn message(words: &[String]) -> String {
    match words {
        [] => "Change nothing that is wanted\n".to_owned(),
        [one] => format!("{one}\n"),
        several => {
            let lines: Vec<String> = several.iter().map(|line| format!("- {line}")).collect();
            format!("Change {} things\n\n{}\n", several.len(), lines.join("\n"))
        }
    }
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
