//! Rollouts as operators see them.

use std::collections::{BTreeMap, HashSet};

use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_core::rollout::{
    Batch, Decision, Hold, Member, Now, Progress, Reached, Standing, Strategy, Waiting, decide,
};
use margrave_core::why::Code;
use margrave_store::{DeploymentRecord, RolloutRecord, RolloutState, Scope};
use margrave_wire::rollout::{Rollout, RolloutBatch, RolloutCounts, StrategyBody};

use crate::fleet::event::time;
use crate::fleet::why::Reason;
use crate::fleet::{Error, Fleet};

/// Batches that are listed; a page or a terminal with more helps nobody.
const BATCHES_SHOWN_MAX: usize = 200;

impl Fleet {
    /// How far what is wanted of a deployment came.
    pub async fn rollout(&self, name: &DeploymentName) -> Result<Rollout, Error> {
        let (deployment, record) = self.paced(name).await?;
        match record {
            Some(record) => {
                let looked = self.looked(record, &deployment).await?;
                self.shown_rollout(&looked, &deployment).await
            }
            None => self.shown_at_once(&deployment).await,
        }
    }

    /// The same where it goes in steps, and nothing where it does not.
    pub(in crate::fleet) async fn rollout_of(
        &self,
        deployment: &DeploymentRecord,
    ) -> Result<Option<Rollout>, Error> {
        let looked = self.rollout_looked(deployment).await?;
        self.rollout_shown(deployment, looked.as_ref()).await
    }

    /// The same of what was looked at already.
    pub(in crate::fleet) async fn rollout_shown(
        &self,
        deployment: &DeploymentRecord,
        looked: Option<&Looked>,
    ) -> Result<Option<Rollout>, Error> {
        match looked {
            Some(looked) => Ok(Some(self.shown_rollout(looked, deployment).await?)),
            None => Ok(None),
        }
    }

    /// All devices of a rollout at this moment; nothing where there is none.
    pub(in crate::fleet) async fn rollout_looked(
        &self,
        deployment: &DeploymentRecord,
    ) -> Result<Option<Looked>, Error> {
        match self.store.rollout(deployment.deployment.id).await?.filter(|_| !deployment.removed) {
            Some(record) => Ok(Some(self.looked(record, deployment).await?)),
            None => Ok(None),
        }
    }

    async fn looked(&self, record: RolloutRecord, deployment: &DeploymentRecord) -> Result<Looked, Error> {
        let progress = self.progress(&record, deployment).await?;
        let decision = decide(&deployment.deployment.strategy, &progress, self.now());
        let strategy = &deployment.deployment.strategy;
        let is_late = |member: &Member| member.heard < self.silent_before();
        let late = unheard(strategy, &decision, &progress).any(is_late);
        Ok(Looked { record, progress, decision, late })
    }

    async fn shown_rollout(
        &self,
        Looked { record, progress, decision, late }: &Looked,
        deployment: &DeploymentRecord,
    ) -> Result<Rollout, Error> {
        let (state, reason, until) = told(record, decision, progress, *late);
        let taken_back = self.taken_back(deployment).await?;
        Ok(Rollout {
            deployment: record.name.to_string(),
            revision: record.revision,
            state: state.to_owned(),
            reason: joined(taken_back, reason),
            until,
            batch: record.reached.batch + 1,
            batches_total: batches_total(decision),
            counts: sum(&decision.batches, deployment, progress),
            batches: decision.batches.iter().take(BATCHES_SHOWN_MAX).map(shown_batch).collect(),
            strategy: StrategyBody::from(&deployment.deployment.strategy),
            before: record.before,
            begun_at: time(record.begun_at),
            changed_at: time(record.changed_at),
            changed_by: record.changed_by.clone(),
        })
    }

    /// Everybody was given it with the change itself.
    async fn shown_at_once(&self, deployment: &DeploymentRecord) -> Result<Rollout, Error> {
        let wanted = &deployment.deployment;
        let lineup = self.store.assigned_lineup(wanted).await?;
        let progress = Progress {
            size: 1,
            members: self.members_now(wanted, &Default::default(), lineup).await?,
            forgiven_gone: Vec::new(),
            reached: Reached::default(),
            heard_since: None,
            hold: Hold::None,
            revertible: false,
        };
        let decision = decide(&Default::default(), &progress, self.now());
        let state = if decision.standing == Standing::Done { "done" } else { "running" };
        let at = time(deployment.changed_at);
        Ok(Rollout {
            deployment: wanted.name.to_string(),
            revision: wanted.revision,
            state: state.to_owned(),
            reason: self.taken_back(deployment).await?,
            until: None,
            batch: 1,
            batches_total: 1,
            counts: sum(&decision.batches, deployment, &progress),
            batches: decision.batches.iter().map(shown_batch).collect(),
            strategy: StrategyBody::from(&wanted.strategy),
            before: None,
            begun_at: at.clone(),
            changed_at: at,
            changed_by: deployment.changed_by.clone(),
        })
    }

    /// Why a device has not been given what a deployment wants now; nothing when that is not because of its turn.
    pub(in crate::fleet) async fn rollout_reasons(
        &self,
        device: &DeviceRef,
        name: &DeploymentName,
    ) -> Result<Vec<Reason>, Error> {
        let waiting = self.store.waiting_of(vec![device.clone()]).await?;
        let Some(waiting) = waiting.iter().find(|waiting| waiting.name == *name) else {
            return Ok(Vec::new());
        };
        let Some((deployment, record)) = self.rollout_open(name).await? else { return Ok(Vec::new()) };
        let looked = self.looked(record, &deployment).await?;
        let mut members = looked.progress.members.iter();
        let own = members.find(|member| member.device == *device && !member.released);
        let Some(own) = own.filter(|own| own.now != Now::Never) else { return Ok(Vec::new()) };
        let id = self.live.spoken(device);
        let text = self.waiting_text(waiting);
        let mut chain = vec![Reason::new(Code::RolloutWaiting, text).on(&id).of(name)];
        let stand = Stand::new(&looked, &deployment.deployment.strategy);
        let held = stand.holds(Some(own)).of(name);
        let culprit = stand.culprit(held.code, Some(own));
        chain.push(held);
        chain.extend(self.culprit_reasons(culprit, name).await?);
        Ok(chain)
    }

    /// The same for every deployment that a device waits for.
    pub(in crate::fleet) async fn rollouts_reasons(&self, device: &DeviceRef) -> Result<Vec<Reason>, Error> {
        let mut chain = Vec::new();
        for waiting in self.store.waiting_of(vec![device.clone()]).await? {
            chain.extend(self.rollout_reasons(device, &waiting.name).await?);
        }
        Ok(chain)
    }

    /// A rollout for its deployment; nothing when it is done, or was all at once.
    pub(in crate::fleet) async fn rollout_told<'a>(
        &self,
        deployment: &DeploymentRecord,
        looked: Option<&'a Looked>,
    ) -> Result<Option<RolloutTold<'a>>, Error> {
        let Some(looked) = looked.filter(|looked| looked.record.state != RolloutState::Done) else {
            return Ok(None);
        };
        let name = &deployment.deployment.name;
        let stand = Stand::new(looked, &deployment.deployment.strategy);
        let members = looked.progress.members.iter();
        let waits = members.filter(|member| !member.released && member.now != Now::Never);
        let mut held: BTreeMap<Code, (Reason, Vec<&DeviceRef>)> = BTreeMap::new();
        for member in waits {
            let of_all = held
                .entry(stand.code(Some(member)))
                .or_insert_with(|| (stand.holds(Some(member)).of(name), Vec::new()));
            of_all.1.push(&member.device);
        }
        let held = held.into_values().collect();
        let first = stand.holds(None).of(name);
        let culprit = stand.culprit(first.code, None);
        let mut chain = vec![first];
        chain.extend(self.culprit_reasons(culprit, name).await?);
        let devices = sum(&looked.decision.batches, deployment, &looked.progress).total;
        Ok(Some(RolloutTold { chain, held, devices: devices.into() }))
    }

    async fn rollout_open(
        &self,
        name: &DeploymentName,
    ) -> Result<Option<(DeploymentRecord, RolloutRecord)>, Error> {
        let Some(deployment) = self.store.deployment(name).await?.filter(|found| !found.removed) else {
            return Ok(None);
        };
        let record = self.store.rollout(deployment.deployment.id).await?;
        Ok(record.filter(|record| record.state != RolloutState::Done).map(|record| (deployment, record)))
    }

    /// What is the matter with the device that others wait for.
    async fn culprit_reasons(
        &self,
        culprit: Option<DeviceRef>,
        name: &DeploymentName,
    ) -> Result<Vec<Reason>, Error> {
        let Some(device) = culprit else { return Ok(Vec::new()) };
        let Some(record) = self.store.device(&device).await? else { return Ok(Vec::new()) };
        let record = self.fresh(record);
        let assignments = self.store.assignments(Scope::Devices(vec![device])).await?;
        let own = assignments.iter().find(|assignment| assignment.name == *name);
        let mut chain =
            own.map(|own| self.assignment_reasons(&record, own, &assignments)).unwrap_or_default();
        let mut unreachable = self.unreachable(&record);
        if chain.is_empty() && unreachable.is_empty() {
            unreachable.extend(self.quiet(&record));
        }
        if !unreachable.iter().any(|away| chain.iter().any(|reason| reason.code == away.code)) {
            chain.extend(unreachable);
        }
        Ok(chain)
    }
}

/// What there is to say of a rollout that is not done.
pub(in crate::fleet) struct RolloutTold<'a> {
    /// What it waits for as a whole, down to the device that it waits for.
    pub(in crate::fleet) chain: Vec<Reason>,
    /// Everybody whose turn has not come, by what they wait for: there may be as many as there are devices, so that nothing is
    /// said of each.
    pub(in crate::fleet) held: Vec<(Reason, Vec<&'a DeviceRef>)>,
    pub(in crate::fleet) devices: u64,
}

/// A rollout at one moment.
pub(in crate::fleet) struct Looked {
    record: RolloutRecord,
    progress: Progress,
    decision: Decision,
    /// Somebody who is to be heard of after a batch was watched should have been by now.
    late: bool,
}

/// The same, with what is asked for every one of its devices.
struct Stand<'a> {
    record: &'a RolloutRecord,
    strategy: &'a Strategy,
    decision: &'a Decision,
    progress: &'a Progress,
    state: &'static str,
    reason: Option<String>,
    release: HashSet<&'a DeviceRef>,
    late: bool,
}

impl<'a> Stand<'a> {
    fn new(Looked { record, progress, decision, late }: &'a Looked, strategy: &'a Strategy) -> Stand<'a> {
        let (state, reason, _) = told(record, decision, progress, *late);
        let release = decision.release.iter().collect();
        Stand { record, strategy, decision, progress, state, reason, release, late: *late }
    }

    /// What keeps it, or one of its devices.
    fn code(&self, own: Option<&Member>) -> Code {
        let Stand { strategy, decision, progress, state, release, .. } = self;
        match *state {
            "paused" => return Code::RolloutPaused,
            "halted" => return Code::RolloutHalted,
            "reverting" => return Code::RolloutReverting,
            "aborted" => return Code::RolloutAborted,
            _ => {}
        }
        if let Some(own) = own {
            if own.now == Now::Silent {
                return Code::RolloutNotYet;
            }
            if release.contains(&own.device) {
                return Code::RolloutTurn;
            }
            if strategy.batch_of(own.place, progress.size) <= decision.reached.batch {
                return Code::RolloutSiteFull;
            }
        }
        match &decision.standing {
            Standing::Waiting(Waiting::Soak { .. }) => Code::RolloutSoaking,
            Standing::Waiting(Waiting::Unheard { .. }) if self.late => Code::RolloutUnheard,
            Standing::Waiting(Waiting::Unheard { .. }) => Code::RolloutSoaking,
            Standing::Waiting(Waiting::Sites { .. }) => Code::RolloutSiteFull,
            Standing::Waiting(Waiting::Silent { .. }) => Code::RolloutNotYet,
            _ => Code::RolloutBatch,
        }
    }

    /// The same in words, which are alike for all devices that the same keeps.
    fn holds(&self, own: Option<&Member>) -> Reason {
        let Stand { record, decision, reason, .. } = self;
        let why = || reason.clone().unwrap_or_default();
        let by = &record.changed_by;
        let code = self.code(own);
        let text = match (code, own) {
            (Code::RolloutPaused, _) => format!("the rollout was paused by {by}"),
            (Code::RolloutHalted, _) => format!("the rollout was halted: {}", why()),
            (Code::RolloutReverting, _) => format!("the rollout is going back: {}", why()),
            (Code::RolloutAborted, _) => format!("the rollout was aborted by {by}, nobody further gets it"),
            (Code::RolloutNotYet, Some(_)) => {
                "it is not in contact, and gets its turn when it is back".to_owned()
            }
            (Code::RolloutTurn, _) => "its turn has come".to_owned(),
            (Code::RolloutSiteFull, Some(_)) => {
                "its site has as many devices unavailable as it may".to_owned()
            }
            _ => reason.clone().unwrap_or_else(|| under_way(decision)),
        };
        Reason::new(code, text)
    }

    /// The device that the others wait for, if there is one to point at.
    fn culprit(&self, code: Code, own: Option<&Member>) -> Option<DeviceRef> {
        let Stand { strategy, decision, progress, .. } = self;
        let mut members = progress.members.iter();
        let unheard = unheard(strategy, decision, progress);
        let found = match code {
            Code::RolloutHalted | Code::RolloutReverting => {
                members.find(|member| matches!(member.now, Now::Failed | Now::GoneBack) && !member.forgiven)
            }
            Code::RolloutBatch => members.find(|member| {
                let batch = strategy.batch_of(member.place, progress.size);
                member.now == Now::UnderWay && batch <= decision.reached.batch
            }),
            Code::RolloutUnheard => unheard.min_by_key(|member| member.heard),
            Code::RolloutSiteFull => members.find(|member| {
                let down = matches!(member.now, Now::UnderWay | Now::Failed | Now::Waits { down: true });
                (down || member.is_dark()) && own.is_none_or(|own| own.site == member.site)
            }),
            Code::RolloutNotYet => match own {
                Some(own) => Some(own),
                None => members.find(|member| member.now == Now::Silent),
            },
            _ => None,
        };
        found.map(|member| member.device.clone())
    }
}

/// Who has the new revision, and is to be heard of after its batch was watched.
fn unheard<'a>(
    strategy: &Strategy,
    decision: &Decision,
    progress: &'a Progress,
) -> impl Iterator<Item = &'a Member> {
    let of = match decision.standing {
        Standing::Waiting(Waiting::Unheard { batch, since, .. }) => Some((batch, since)),
        _ => None,
    };
    let members = of.map(|_| &progress.members).into_iter().flatten();
    members.filter(move |member| {
        let is_of = |batch| strategy.batch_of(member.place, progress.size) == batch;
        of.is_some_and(|(batch, since)| is_of(batch) && member.now == Now::Done && member.heard < since)
    })
}

/// The state in a word, why, and until when.
fn told(
    record: &RolloutRecord,
    decision: &Decision,
    progress: &Progress,
    late: bool,
) -> (&'static str, Option<String>, Option<String>) {
    let devices = |count: u32| if count == 1 { "1 device".to_owned() } else { format!("{count} devices") };
    match (record.state, &decision.standing) {
        (RolloutState::Done, _) => ("done", None, None),
        (RolloutState::Aborted, _) => {
            let left = progress.members.iter().filter(|m| !m.released && m.now != Now::Never).count();
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            ("aborted", Some(format!("{} keep what they had", devices(left))), None)
        }
        (RolloutState::Paused, _) => ("paused", None, None),
        (state @ (RolloutState::Halted | RolloutState::Reverting), _) => {
            (state.as_str(), record.why.clone(), None)
        }
        // What the next look finds is true already.
        (RolloutState::Running, Standing::Halted(why)) => ("halted", Some(why.clone()), None),
        (RolloutState::Running, Standing::Reverting(why)) => ("reverting", Some(why.clone()), None),
        (RolloutState::Running, Standing::Waiting(waiting)) => match *waiting {
            Waiting::Soak { batch, until } => {
                let text = format!("batch {} is good, and is watched until {}", batch + 1, time(until));
                ("waiting", Some(text), Some(time(until)))
            }
            // Nothing is the matter with who asks every minute and was to be watched for two seconds.
            Waiting::Unheard { batch, unheard, .. } if !late => {
                let is = if unheard == 1 { "is" } else { "are" };
                let text = format!(
                    "batch {} was good for its time, and {} of it {is} to be heard of once more before it goes on",
                    batch + 1,
                    devices(unheard),
                );
                ("waiting", Some(text), None)
            }
            Waiting::Unheard { batch, since, unheard } => {
                let has = if unheard == 1 { "has" } else { "have" };
                let text = format!(
                    "{} of batch {} {has} not been heard of since {}, when its time was over: nobody knows how the new \
                     revision does there",
                    devices(unheard),
                    batch + 1,
                    time(since)
                );
                ("waiting", Some(text), None)
            }
            Waiting::Sites { held } => {
                let text = format!(
                    "{} wait because their sites have as many devices unavailable as they may",
                    devices(held)
                );
                ("waiting", Some(text), None)
            }
            Waiting::Silent { not_yet } => {
                let text = format!("{} not in contact; each gets its turn when it is back", devices(not_yet));
                ("waiting", Some(text), None)
            }
        },
        (RolloutState::Running, _) => ("running", Some(under_way(decision)), None),
    }
}

fn joined(first: Option<String>, second: Option<String>) -> Option<String> {
    let both: Vec<String> = first.into_iter().chain(second).collect();
    (!both.is_empty()).then(|| both.join(". "))
}

fn under_way(decision: &Decision) -> String {
    let number = decision.reached.batch;
    let batch = decision.batches.iter().find(|batch| batch.number == number).copied().unwrap_or_default();
    format!("batch {} is under way: {} of {} done", number + 1, batch.done, batch.total() - batch.never)
}

fn batches_total(decision: &Decision) -> u32 {
    decision.batches.last().map_or(1, |last| last.number + 1)
}

fn shown_batch(batch: &Batch) -> RolloutBatch {
    RolloutBatch { number: batch.number + 1, counts: counts(batch) }
}

fn counts(batch: &Batch) -> RolloutCounts {
    let Batch { number: _, done, under_way, waiting, not_yet, never, failed } = *batch;
    RolloutCounts { total: batch.total(), done, under_way, waiting, not_yet, never, failed }
}

/// Over all batches, with those that the deployment wants and that were never part of one.
fn sum(batches: &[Batch], deployment: &DeploymentRecord, progress: &Progress) -> RolloutCounts {
    let mut sum = RolloutCounts::default();
    for batch in batches.iter().map(counts) {
        sum.total += batch.total;
        sum.done += batch.done;
        sum.under_way += batch.under_way;
        sum.waiting += batch.waiting;
        sum.not_yet += batch.not_yet;
        sum.never += batch.never;
        sum.failed += batch.failed;
    }
    if deployment.misfits.is_empty() {
        return sum;
    }
    let members: HashSet<&DeviceRef> = progress.members.iter().map(|member| &member.device).collect();
    for misfit in &deployment.misfits {
        if !members.contains(&misfit.device) {
            sum.total += 1;
            *if misfit.temporary { &mut sum.not_yet } else { &mut sum.never } += 1;
        }
    }
    sum
}
