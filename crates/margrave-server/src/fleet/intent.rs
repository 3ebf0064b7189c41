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
use margrave_store::{GoneBack, Head, MisfitRecord, Publication, RolloutRecord};
use margrave_wire::operator;
use margrave_wire::resource::Place;

use super::audit::Unasked;
use super::catalog::Pulled;
use super::desired::{CommitId, Signed};
use super::draft::{Draft, Overlay};
use super::git::Quarantine;
use super::made::{is_asked_about, made};
use super::prospect::Prospect;
use super::publish::{ATTEMPTS_MAX, Decision, Unpublished};
use super::warning::Coming;
use super::{Actor, Error, Fleet, Preview, PreviewFit, Seen};

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
        /// Nobody said anything of the deployment: what is as usual became something else.
        follows: bool,
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
        seen: Seen<BTreeMap<String, String>>,
    },
    /// All labels that a device is to have; `None` leaves it those that it has.
    SetLabels {
        device: DeviceRef,
        labels: Option<BTreeMap<String, String>>,
    },
    /// The labels that a device has count as said, if nobody says anything else: found out when it is its turn, because somebody
    /// may have said so meanwhile.
    NoteLabels {
        device: DeviceRef,
    },
    Schedule {
        reach: Reach,
        choice: Option<Choice>,
        seen: Seen<operator::Schedule>,
    },
}

impl Change {
    /// What the audit log calls it, and what it is about: the same as when a request asks for it.
    fn named(&self) -> (&'static str, String) {
        match self {
            Change::AddPackage(pulled) => ("package.add", pulled.name()),
            Change::RemovePackage { id, version } => ("package.remove", format!("{id} {version}")),
            Change::PutDeployment { name, .. } | Change::PutFile { name, .. } => {
                ("deployment.put", name.to_string())
            }
            Change::Defaults(_) => ("intent.change", String::new()),
            Change::RemoveDeployment { name, .. } => ("deployment.remove", name.to_string()),
            Change::RevertDeployment { name, .. } => ("deployment.revert", name.to_string()),
            Change::Label { device, .. }
            | Change::SetLabels { device, .. }
            | Change::NoteLabels { device } => ("device.labels", device.to_string()),
            Change::Schedule { reach, choice: Some(_), .. } => ("schedule.put", reach.to_string()),
            Change::Schedule { reach, choice: None, .. } => ("schedule.remove", reach.to_string()),
        }
    }

    /// The deployment that changes only because what is as usual does.
    fn follows(&self) -> Option<&DeploymentName> {
        match self {
            Change::PutFile { name, follows: true, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether the server goes back by itself, so that nobody is there to be told what is wrong with it.
    fn is_by_itself(&self) -> bool {
        matches!(self, Change::RevertDeployment { reason: Some(_), .. })
    }
}

/// Where a change comes from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// An operator asks; a commit is made of it.
    Asked,
    /// It is the difference to a commit that somebody made already.
    Commit(Incoming<'a>),
    /// The server goes back by itself while a remote is followed, where it cannot commit: it is so here, until the remote says
    /// something else about it.
    Here(Failed<'a>),
}

/// The revision that the server goes back from, and why.
#[derive(Clone, Copy)]
pub(super) struct Failed<'a> {
    pub(super) revision: u64,
    pub(super) why: &'a str,
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

/// A deployment of which nobody said anything, and whose rollout was stopped.
pub(super) struct Stopped {
    pub(super) drafted: Draft,
    pub(super) rollout: RolloutRecord,
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
        self.apply(actor, changes, Source::Asked).await.map(drop).map_err(first)
    }

    /// Wants a deployment as it was before a revision that failed; says whether that is anything else. While a remote is followed
    /// it is so without a commit.
    pub(super) async fn take_back(
        &self,
        actor: &Actor,
        change: Change,
        failed: Failed<'_>,
    ) -> Result<bool, Error> {
        let source = if self.desired.following().is_some() { Source::Here(failed) } else { Source::Asked };
        self.apply(actor, &[change], source).await.map_err(first)
    }

    /// Does all of these changes, or none; says whether there was anything to do.
    pub(super) async fn apply(
        &self,
        actor: &Actor,
        changes: &[Change],
        source: Source<'_>,
    ) -> Result<bool, Refusals> {
        let whole = |error: Error| vec![(usize::MAX, error)];
        Box::pin(self.look_again_for(changes)).await;
        let pins = Box::pin(self.pins_for(changes)).await;
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
            let prospect = self.prospect(actor, changes, &pins).await?;
            if prospect.is_nothing() && !matches!(source, Source::Commit(_)) {
                return Ok(false);
            }
            let written = self.written(actor, changes, &prospect.words, source);
            // Handed on as it is it would lie on the stack more than once.
            let change = Box::pin(self.carry_out(actor, prospect, changes, source));
            // What is so only here is no commit that a request could tell of.
            let carried = if is_asked_about() && !matches!(source, Source::Here(_)) {
                change.await
            } else {
                self.unasked(written, change).await
            };
            match carried {
                Err(Unpublished::Moved) if attempt < ATTEMPTS_MAX => {}
                Err(unpublished) => return Err(whole(unpublished.into())),
                Ok(commit) => {
                    commit.into_iter().for_each(made);
                    break;
                }
            }
        }
        drop(deciding);
        // Devices whose labels or schedule changed. What was asked is done whether this can be now or not: contacts are flushed
        // every few seconds, and that settles who is left.
        self.settle_or_log().await;
        Ok(true)
    }

    /// Who brings a commit here; of one that is followed from a remote that is the server, whoever wrote it.
    fn brings(&self, actor: &Actor, source: Source<'_>) -> String {
        match (source, self.desired.following()) {
            (Source::Commit(_), Some(_)) => "server".to_owned(),
            _ => actor.name.clone(),
        }
    }

    /// What is written down of a change that no request asked for.
    fn written(&self, actor: &Actor, changes: &[Change], words: &[String], source: Source<'_>) -> Unasked {
        let said = message(words);
        let first = said.lines().next().unwrap_or_default();
        match (source, changes) {
            (Source::Asked | Source::Here(_), [one]) => {
                let (action, subject) = one.named();
                let (actor, detail) = (actor.name.clone(), first.to_owned());
                Unasked { actor, detail, ..Unasked::new(action, subject) }
            }
            (Source::Asked | Source::Here(_), _) => {
                let (actor, detail) = (actor.name.clone(), first.to_owned());
                Unasked { actor, detail, ..Unasked::new("intent.change", "") }
            }
            // Whom a commit names as its author nobody vouched for here.
            (Source::Commit(_), _) => {
                let detail = format!("{first}; by {}", actor.name);
                let adopted = match self.desired.following() {
                    Some(following) => following.unasked(),
                    None => Unasked::new("intent.adopt", "main"),
                };
                Unasked { detail, ..adopted }
            }
        }
    }

    async fn carry_out(
        &self,
        actor: &Actor,
        prospect: Prospect,
        changes: &[Change],
        source: Source<'_>,
    ) -> Result<Option<CommitId>, Unpublished> {
        let failed = |error: Error| Unpublished::Failed(error);
        let at = self.now();
        let Prospect { wanted, removed, intents, files, events, words, going, overlay, known_anew, .. } =
            prospect;
        let names: BTreeMap<DeploymentId, DeploymentName> = wanted
            .iter()
            .map(|drafted| (drafted.wish.deployment.id, drafted.wish.deployment.name.clone()))
            .collect();
        let gone_back = match source {
            Source::Here(Failed { revision, why }) => wanted
                .iter()
                .map(|drafted| GoneBack {
                    deployment: drafted.wish.deployment.id,
                    revision: drafted.wish.deployment.revision,
                    failed: revision,
                    at,
                    why: why.to_owned(),
                })
                .collect(),
            Source::Asked | Source::Commit(_) => Vec::new(),
        };
        let (wanted, stopped) = self.stopped_among(wanted, changes).await.map_err(failed)?;
        let mut carried = Vec::new();
        for Stopped { drafted, rollout } in stopped {
            let change = self.carry_over(rollout, &drafted.wish.deployment, &drafted.devices).await;
            carried.push(change.map_err(failed)?);
        }
        let refusable: BTreeSet<(DeploymentId, DeviceRef)> = wanted
            .iter()
            .flat_map(|drafted| {
                let id = drafted.wish.deployment.id;
                drafted.named.iter().map(move |device| (id, device.clone()))
            })
            .collect();
        let decided =
            wanted.iter().map(|drafted| drafted.wish.deployment.id).chain(removed.clone()).collect();
        let leaving = self.leaving(&overlay.labels, &decided).await.map_err(failed)?;
        let comings: Vec<Coming> = wanted.iter().map(Coming::of).collect();
        let wishes = wanted.into_iter().map(|drafted| (drafted.wish, drafted.devices)).collect();
        let Decision { touched, misfits, unfit, rollouts, freed, later, .. } =
            Box::pin(self.decide(wishes, &removed, leaving)).await.map_err(failed)?;
        // A device that was named on purpose and does not fit is a mistake; one that only matches is left out. Nobody is asked
        // when the server itself goes back: whoever cannot keeps what it has, and all others are not held up for it.
        let by_itself = changes.iter().any(Change::is_by_itself);
        let mistaken = |misfit: &&MisfitRecord| {
            let key = (misfit.deployment, misfit.device.clone());
            !by_itself && unfit.contains(&key) && refusable.contains(&key)
        };
        let refused: Vec<&MisfitRecord> = misfits.iter().filter(mistaken).collect();
        if !refused.is_empty() {
            return Err(failed(self.misplaced(&refused, &names, source)));
        }
        if !by_itself {
            let differences =
                || touched.iter().flat_map(|touched| touched.differences()).chain(later).collect();
            let place = |name: &DeploymentName| match source.is_asked() {
                true => "/version".to_owned(),
                false => format!("{}#/version", Place::Deployment(name.clone())),
            };
            let origins = self.known_origins().await.map_err(failed)?;
            self.check_fetchable(&comings, &origins, differences, place).map_err(failed)?;
            self.check_pinned(&comings, place).await.map_err(failed)?;
        }
        let head = self.desired.head();
        let next = match source {
            Source::Commit(Incoming { commit, quarantine, .. }) => {
                if let Some(quarantine) = quarantine {
                    let admitted = quarantine.admit().await;
                    admitted.map_err(|error| failed(Error::Storage(Box::new(error))))?;
                }
                Some(commit)
            }
            Source::Asked => {
                let message = message(&words);
                let signed = Signed { by: actor.name.clone(), at, message };
                let commit = self.desired.commit(head, files, signed).await;
                Some(commit.map_err(|error| failed(error.into()))?)
            }
            Source::Here(_) => None,
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
            head: next.map(|next| Head {
                expected: head.map(|head| head.to_string()),
                next: next.to_string(),
                by: self.brings(actor, source),
            }),
            misfits,
            freed: freed.into_iter().collect(),
            rollouts: rollouts.into_iter().chain(carried).collect(),
            gone_back,
            follows: said(changes),
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
                self.catalog.forget(&known_anew);
                if let Some(next) = next {
                    self.desired.applied(next).await;
                }
                Ok(next)
            }
        }
    }

    /// Takes out those that only follow what is as usual, and whose rollout was stopped: whoever changes a default does not mean to
    /// set it going.
    pub(super) async fn stopped_among(
        &self,
        wanted: Vec<Draft>,
        changes: &[Change],
    ) -> Result<(Vec<Draft>, Vec<Stopped>), Error> {
        let following: BTreeSet<&DeploymentName> = changes.iter().filter_map(Change::follows).collect();
        let (mut others, mut stopped) = (Vec::new(), Vec::new());
        for drafted in wanted {
            let deployment = &drafted.wish.deployment;
            let rollout = match following.contains(&deployment.name) {
                true => self.stopped_rollout(deployment.id).await?,
                false => None,
            };
            match rollout {
                Some(rollout) => stopped.push(Stopped { drafted, rollout }),
                None => others.push(drafted),
            }
        }
        Ok((others, stopped))
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
            let place = names.get(&misfit.deployment);
            let place = place.map(|name| format!("{}#/targets", Place::Deployment(name.clone())));
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
        self.deployment_changed(name).await
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

/// The deployments of which files say something.
fn said(changes: &[Change]) -> Vec<DeploymentName> {
    let name = |change: &Change| match change {
        Change::PutFile { name, .. } => Some(name.clone()),
        _ => None,
    };
    changes.iter().filter_map(name).collect()
}

/// The first that is refused says why.
fn first(refusals: Refusals) -> Error {
    let first = refusals.into_iter().next().map(|(_, error)| error);
    first.unwrap_or_else(|| Error::conflict("the change was refused"))
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
