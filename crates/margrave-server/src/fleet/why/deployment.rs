//! Why a deployment, or the rollout of its newest revision, is not as wanted: its devices by cause.
//!
//! What is read is some of what is not as wanted, so that the answer costs the same for a hundred devices and for ten thousand;
//! what is told is one line a cause. How many are not as wanted is kept by the store. How many have which cause is
//! counted among those that were looked at, and said to be at least so many where others were not.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_core::watch::Warning;
use margrave_core::why::{Code, Needs};
use margrave_store::{DeploymentRecord, DeviceRecord, MisfitRecord};
use margrave_wire::operator::{self, CauseGroup};

use super::assignment::waits_for_window;
use super::{Reason, extend, told};
use crate::fleet::publish::is_kept;
use crate::fleet::rollout::{Looked, RolloutTold};
use crate::fleet::{Error, Fleet};

/// So many devices are looked at of each state that is not as wanted, and of those that do not fit: enough to find the causes
/// that there are, and soon read.
const LOOKED_AT_EACH: u32 = 100;
/// Devices that are named for a cause, besides the first.
const OTHERS_MAX: usize = 4;

/// Devices by the last code of their chains, and by whether they have stopped trying; of each the first one's chain.
#[derive(Default)]
struct Groups {
    by_cause: BTreeMap<(Code, bool), Group>,
    devices: HashSet<DeviceRef>,
    /// Besides those: who waits for a turn in a rollout.
    held: u64,
    /// How many there are that were not looked at, at least.
    unseen: u64,
    /// Whether there may be more of those.
    blurred: bool,
    /// Those that do not fit any more and still have it.
    both: u64,
}

struct Group {
    /// The first one.
    device: DeviceRef,
    count: u64,
    at_least: bool,
    example: String,
    others: Vec<String>,
    chain: Vec<Reason>,
}

impl Groups {
    /// Takes a device that was not taken before. `cut`: there are others like it that are not looked at.
    fn add(&mut self, device: &DeviceRef, spoken: impl FnOnce() -> String, chain: &[Reason], cut: bool) {
        if !chain.is_empty() && self.devices.insert(device.clone()) {
            self.count(device, spoken, chain, cut);
        }
    }

    /// Takes one that waits for its turn in a rollout, unless it was taken before. Each comes once.
    fn add_held(&mut self, device: &DeviceRef, spoken: impl FnOnce() -> String, reason: &Reason) {
        if !self.devices.contains(device) {
            self.held += 1;
            self.count(device, spoken, std::slice::from_ref(reason), false);
        }
    }

    fn count(&mut self, device: &DeviceRef, spoken: impl FnOnce() -> String, chain: &[Reason], cut: bool) {
        let Some(cause) = chain.last().map(|last| (last.code, last.is_spent)) else { return };
        match self.by_cause.entry(cause) {
            Entry::Vacant(free) => {
                free.insert(Group {
                    device: device.clone(),
                    count: 1,
                    at_least: cut,
                    example: spoken(),
                    others: Vec::new(),
                    chain: chain.to_vec(),
                });
            }
            Entry::Occupied(mut held) => {
                let group = held.get_mut();
                group.count += 1;
                group.at_least |= cut;
                if group.others.len() < OTHERS_MAX {
                    group.others.push(spoken());
                }
            }
        }
    }

    fn seen(&self) -> u64 {
        self.devices.len() as u64 + self.held
    }

    /// How many devices are not as wanted.
    fn behind(&self) -> Behindness {
        Behindness { devices: self.seen() + self.unseen, at_least: self.blurred }
    }

    fn looked_at(&self) -> Option<u64> {
        (self.unseen > 0 || self.blurred).then_some(self.seen())
    }

    /// Those that a person has to see to first, then the largest.
    fn sorted(self) -> Vec<(Code, Group)> {
        let mut groups: Vec<((Code, bool), Group)> = self.by_cause.into_iter().collect();
        groups.sort_by_key(|((code, is_spent), group)| {
            (Reverse(needs(*code, *is_spent)), Reverse(*is_spent), Reverse(group.count), *code)
        });
        groups.into_iter().map(|((code, _), group)| (code, group)).collect()
    }
}

/// What is not tried again by itself waits for a person, whatever its cause.
fn needs(code: Code, is_spent: bool) -> Needs {
    if is_spent { Needs::Person } else { code.needs() }
}

#[derive(Clone, Copy)]
struct Behindness {
    devices: u64,
    at_least: bool,
}

impl fmt::Display for Behindness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Behindness { devices, at_least } = self;
        write!(f, "{}{devices}", if *at_least { "at least " } else { "" })
    }
}

fn shown((code, group): &(Code, Group)) -> CauseGroup {
    let last = group.chain.last();
    let is_spent = last.is_some_and(|last| last.is_spent);
    let text = last.map(|last| last.text.clone()).unwrap_or_default();
    CauseGroup {
        code: code.as_str().to_owned(),
        count: group.count,
        at_least: group.at_least,
        example: group.example.clone(),
        others: group.others.clone(),
        text: if is_spent {
            format!("{} (not tried again by itself)", text.trim_end_matches('.'))
        } else {
            text
        },
        needs: needs(*code, is_spent).as_str().to_owned(),
        hint: last.map(Reason::hint).unwrap_or_default(),
    }
}

impl Fleet {
    pub(super) async fn why_deployment(&self, name: &DeploymentName) -> Result<operator::Why, Error> {
        let record = self.store.deployment(name).await?;
        let record = record.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
        let looked = self.rollout_looked(&record).await?;
        self.why_deployment_looked(&record, looked.as_ref()).await
    }

    /// The same of a deployment whose rollout was looked at.
    pub(in crate::fleet) async fn why_deployment_looked(
        &self,
        record: &DeploymentRecord,
        looked: Option<&Looked>,
    ) -> Result<operator::Why, Error> {
        let name = &record.deployment.name;
        let rollout = self.rollout_told(record, looked).await?;
        let groups = self.groups(record, rollout.as_ref()).await?;
        let (behind, looked_at, both) = (groups.behind(), groups.looked_at(), groups.both);
        let groups = groups.sorted();
        let total = match &rollout {
            Some(rollout) => rollout.devices.max(behind.devices),
            None => self.devices_of(record).await?.saturating_sub(both).max(behind.devices),
        };
        let (package, version) = (&record.deployment.package, &record.deployment.version);
        let mut chain = Vec::new();
        if record.removed {
            let text = format!("{name} is being removed; {} still have it", counted(behind.devices));
            chain.push(Reason::new(Code::BeingRemoved, text).of(name));
        } else if total == 0 {
            let text = format!("no device is among the targets of {name}");
            chain.push(Reason::new(Code::NoDevice, text).of(name));
        } else if behind.devices > 0 {
            let text = format!("{name} is not as wanted on {behind} of {}", counted(total));
            chain.push(Reason::new(Code::DevicesBehind, text).of(name));
        }
        if let Some((_, group)) = groups.first() {
            chain.extend(group.chain.iter().cloned());
            // A chain that ends with what the rollout as a whole waits for goes on with the device that it waits for.
            let stand = rollout.iter().flat_map(|rollout| &rollout.chain);
            if stand.clone().next().map(|first| first.code) == chain.last().map(|last| last.code) {
                chain.extend(stand.skip(1).cloned());
            }
            self.look_behind(&mut chain, (package, version)).await?;
            if let Some(device) = self.store.device(&group.device).await? {
                self.look_behind_force(&mut chain, &device, name).await?;
                self.look_behind_window(&mut chain, &device, name).await?;
            }
        }
        let mut converged = chain.is_empty();
        if converged {
            let text = format!("{name} is as wanted on {}", counted(total));
            chain.push(Reason::new(Code::Converged, text));
            let mut moved = self.origin_warnings(package, version).await?.into_iter();
            let moved = moved.find(|warning| matches!(warning, Warning::Moved { .. }));
            chain.extend(moved.map(|warning| {
                Reason::new(Code::PackageMoved, format!("package {package} {version}: {warning}"))
            }));
        }
        let mut intent = self.intent_reasons();
        intent.extend(self.reverted_here(name).await?);
        // What the repository says is not what the server has: being as the server wants it is not enough then.
        let blocked =
            intent.iter().any(|reason| matches!(reason.code, Code::IntentFlawed | Code::IntentHeld));
        if self.look_behind_restore(&mut chain) {
            intent.retain(|reason| reason.code != Code::IntentHeld);
            chain.splice(0..0, intent);
            converged = false;
        } else if converged && !blocked {
            chain.extend(intent);
        } else if converged {
            // It is as the server wants it, which is not why it is not as wanted.
            chain.retain(|reason| reason.code != Code::Converged);
            chain.extend(intent);
            converged = false;
        } else {
            chain.splice(0..0, intent);
        }
        let groups = groups.iter().map(shown).collect();
        Ok(operator::Why { groups, looked_at, ..told(name.as_str(), converged, &chain) })
    }

    pub(super) async fn why_rollout(&self, name: &DeploymentName) -> Result<operator::Why, Error> {
        let record = self.store.deployment(name).await?.filter(|found| !found.removed);
        let record = record.ok_or_else(|| Error::not_found(format!("deployment {name}")))?;
        let looked = self.rollout_looked(&record).await?;
        let rollout = self.rollout_told(&record, looked.as_ref()).await?;
        let groups = self.groups(&record, rollout.as_ref()).await?;
        let looked_at = groups.looked_at();
        let groups = groups.sorted();
        let mut chain = rollout.map(|rollout| rollout.chain).unwrap_or_default();
        // All at once: what keeps it is what keeps its devices.
        if chain.is_empty()
            && let Some((_, group)) = groups.first()
        {
            chain.extend(group.chain.iter().cloned());
        }
        self.look_behind(&mut chain, (&record.deployment.package, &record.deployment.version)).await?;
        let mut converged = chain.is_empty();
        if converged {
            let text = format!("revision {} of {name} is with all its devices", record.deployment.revision);
            chain.push(Reason::new(Code::Converged, text));
        }
        converged &= !self.look_behind_restore(&mut chain);
        let groups = groups.iter().map(shown).collect();
        Ok(operator::Why { groups, looked_at, ..told(name.as_str(), converged, &chain) })
    }

    /// The devices that are not as wanted, by cause.
    async fn groups(
        &self,
        record: &DeploymentRecord,
        rollout: Option<&RolloutTold<'_>>,
    ) -> Result<Groups, Error> {
        let mut groups = Groups::default();
        let behind = self.store.assignments_behind(record.deployment.id, LOOKED_AT_EACH).await?;
        let misfits = if record.removed { &[][..] } else { &record.misfits };
        let looked_at = misfits.len().min(LOOKED_AT_EACH as usize);
        let (blind, blind_total) =
            self.store.assignments_unseen(record.deployment.id, LOOKED_AT_EACH).await?;
        let names = behind.found.iter().map(|assignment| assignment.device.clone());
        let names = names.chain(blind.iter().cloned());
        let names = names.chain(misfits[..looked_at].iter().map(|misfit| misfit.device.clone())).collect();
        let devices = self.store.devices_named(names).await?.into_iter();
        let devices: HashMap<DeviceRef, DeviceRecord> =
            devices.map(|device| (device.device.clone(), self.fresh(device))).collect();
        let mut known = Vec::new();
        for assignment in &behind.found {
            let Some(device) = devices.get(&assignment.device) else { continue };
            let mut chain = self.assignment_reasons(device, assignment, &[]);
            if waits_for_window(&chain) {
                chain.extend(self.windows_apart(device, &record.deployment, &mut known));
            }
            chain.extend(self.cannot_look(device));
            extend(&mut chain, self.unreachable(device));
            let cut = behind.is_cut(assignment.outlook());
            groups.add(&assignment.device, || self.live.spoken(&assignment.device), &chain, cut);
        }
        for blind in &blind {
            let Some(device) = devices.get(blind) else { continue };
            let mut chain: Vec<Reason> = self.cannot_look(device).into_iter().collect();
            if !chain.is_empty() {
                extend(&mut chain, self.unreachable(device));
            }
            let cut = blind_total > u64::from(LOOKED_AT_EACH);
            groups.add(&device.device, || self.live.spoken(&device.device), &chain, cut);
        }
        let unseen = behind.total.saturating_sub(behind.found.len() as u64)
            + blind_total.saturating_sub(LOOKED_AT_EACH.into());
        let before = groups.seen();
        let has_it =
            |misfit: &&MisfitRecord| is_kept(&misfit.reasons) || groups.devices.contains(&misfit.device);
        let both = misfits.iter().filter(has_it).count();
        groups.both = both as u64;
        let cut = looked_at < misfits.len();
        for misfit in &misfits[..looked_at] {
            let Some(device) = devices.get(&misfit.device) else { continue };
            let chain = self.misfit(device, &record.deployment.name, &misfit.reasons);
            groups.add(&misfit.device, || self.live.spoken(&misfit.device), &chain, cut);
        }
        let held = rollout.filter(|_| !record.removed).map_or(&[][..], |rollout| &rollout.held);
        for (reason, devices) in held {
            devices.iter().for_each(|device| groups.add_held(device, || self.live.spoken(device), reason));
        }
        let others = groups.seen() - before;
        let waits: HashSet<&DeviceRef> = match cut {
            true => held.iter().flat_map(|(_, devices)| devices).copied().collect(),
            false => HashSet::new(),
        };
        let is_counted = |device: &DeviceRef| groups.devices.contains(device) || waits.contains(device);
        let left = misfits[looked_at..].iter().filter(|misfit| !is_counted(&misfit.device));
        let others_all = others + left.count() as u64;
        // Who was not looked at may be one of those that do not fit, or that wait for their turn, as well.
        groups.unseen = unseen.max(others_all) - others;
        groups.blurred = unseen > 0 && others_all > 0;
        Ok(groups)
    }

    /// How many devices a deployment is meant for, or is still going from.
    async fn devices_of(&self, record: &DeploymentRecord) -> Result<u64, Error> {
        let counts = self.store.assignment_counts_of(record.deployment.id, self.silence()).await?;
        let held: u64 = counts.iter().map(|count| count.count).sum();
        Ok(held + if record.removed { 0 } else { record.misfits.len() as u64 })
    }
}

fn counted(devices: u64) -> String {
    if devices == 1 { "1 device".to_owned() } else { format!("{devices} devices") }
}
