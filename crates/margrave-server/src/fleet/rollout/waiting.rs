//! Whom rollouts hold back, and how far they are at a glance: told from what is counted, so that it costs the same for ten
//! devices and for ten thousand.

use std::collections::HashMap;

use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_store::{DeviceRecord, HeldBack, RolloutRecord, RolloutState, WaitingRecord};
use margrave_wire::operator::{self, AssignmentCounts};

use crate::fleet::{Error, Fleet};

/// A rollout that is not done, at a glance.
pub struct RolloutGlimpse {
    pub name: DeploymentName,
    pub revision: u64,
    pub state: RolloutState,
    /// Why it goes no further, where it does not.
    pub stopped: Option<String>,
    /// The batch that is under way, counted from 1, and how many there are.
    pub batch: u32,
    pub batches_total: u32,
    pub counts: AssignmentCounts,
}

impl RolloutGlimpse {
    /// It goes on only when a person says so.
    pub fn needs_a_person(&self) -> bool {
        matches!(self.state, RolloutState::Paused | RolloutState::Halted)
    }

    /// It goes on no more, and left somebody behind.
    pub fn left_behind(&self) -> bool {
        self.state == RolloutState::Aborted
    }
}

impl Fleet {
    /// The rollouts that are not done, and those that were aborted and left somebody behind.
    pub async fn rollouts_glimpsed(&self) -> Result<Vec<RolloutGlimpse>, Error> {
        let mut found = Vec::new();
        for record in self.store.rollouts_open().await? {
            let counts = self.counts_of(record.deployment).await?;
            if record.state == RolloutState::Aborted && counts.left_behind == 0 {
                continue;
            }
            let RolloutRecord { name, revision, size, strategy, reached, state, why, changed_by, .. } =
                record;
            found.push(RolloutGlimpse {
                name,
                revision,
                stopped: match state {
                    RolloutState::Paused => Some(format!("paused by {changed_by}")),
                    RolloutState::Aborted => Some(format!("aborted by {changed_by}")),
                    RolloutState::Halted | RolloutState::Reverting => why,
                    RolloutState::Running | RolloutState::Done => None,
                },
                state,
                batch: reached.batch + 1,
                batches_total: strategy.batch_of(size.saturating_sub(1), size) + 1,
                counts,
            });
        }
        Ok(found)
    }

    /// How many rollouts are not done, by state.
    pub async fn rollouts_open(&self) -> Result<Vec<(&'static str, usize)>, Error> {
        let open = self.store.rollouts_open().await?;
        let states = [
            RolloutState::Running,
            RolloutState::Paused,
            RolloutState::Halted,
            RolloutState::Reverting,
            RolloutState::Aborted,
        ];
        let count = |state| open.iter().filter(|rollout| rollout.state == state).count();
        Ok(states.map(|state| (state.as_str(), count(state))).into())
    }

    /// What those of these devices wait for that a rollout holds back.
    pub(in crate::fleet) async fn waiting_among(
        &self,
        devices: &[DeviceRecord],
    ) -> Result<HashMap<DeviceRef, Vec<WaitingRecord>>, Error> {
        let held: Vec<DeviceRef> =
            devices.iter().filter(|device| device.waits).map(|device| device.device.clone()).collect();
        let mut waiting: HashMap<DeviceRef, Vec<WaitingRecord>> = HashMap::new();
        if held.is_empty() {
            return Ok(waiting);
        }
        for record in self.store.waiting_of(held).await? {
            waiting.entry(record.device.clone()).or_default().push(record);
        }
        Ok(waiting)
    }

    /// That a device is held back, as it is said everywhere.
    pub(in crate::fleet) fn waiting_text(&self, waiting: &WaitingRecord) -> String {
        let WaitingRecord { name, revision, keeps, state, .. } = waiting;
        let id = self.live.spoken(&waiting.device);
        let batch = waiting.batch();
        match (HeldBack::in_rollout(*state), keeps) {
            // Its batch does not wait for it.
            (HeldBack::Waiting, keeps) if self.is_silent(&waiting.device.client) => {
                let turn =
                    format!("{id} is not in contact, and gets its turn in batch {batch} when it is back");
                match keeps {
                    Some(keeps) => {
                        format!("{name} on {id} is not changed yet: {turn}, keeps revision {keeps}")
                    }
                    None => format!("{name} is not yet on {id}: {turn}"),
                }
            }
            (HeldBack::Waiting, Some(keeps)) => {
                format!("{name} on {id} waits for its turn in batch {batch}, keeps revision {keeps}")
            }
            (HeldBack::Waiting, None) => {
                format!("{name} waits for the turn of {id} in batch {batch}")
            }
            (HeldBack::LeftBehind, Some(keeps)) => {
                format!(
                    "{name} on {id} keeps revision {keeps}: the rollout of revision {revision} was aborted"
                )
            }
            (HeldBack::LeftBehind, None) => {
                format!("{name} did not come to {id}: the rollout of revision {revision} was aborted")
            }
        }
    }
}

/// The same for programs.
pub(in crate::fleet) fn shown_waiting(waiting: &WaitingRecord) -> operator::Waiting {
    let word = match HeldBack::in_rollout(waiting.state) {
        HeldBack::Waiting => "waiting",
        HeldBack::LeftBehind => "left-behind",
    };
    operator::Waiting {
        word: word.to_owned(),
        revision: waiting.revision,
        keeps: waiting.keeps,
        batch: waiting.batch(),
    }
}
