//! Why a device is not as wanted, and whether it can be reached at all.

use std::cmp::Reverse;
use std::collections::HashMap;

use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::why::{Code, Needs};
use margrave_store::{
    AssignmentRecord, Condition, DeviceFilter, DeviceRecord, Failing, Scope, Standing, Verdict, WaitingRecord,
};
use margrave_wire::{g2, operator};

use super::{Reason, extend, sentence, told};
use crate::fleet::event::time;
use crate::fleet::{Error, Fleet};

/// Devices that failed for one cause.
pub struct FailedFor {
    pub deployment: String,
    /// As devices say it; empty where they said none. `given-up-` is before it where they do not try it again by themselves.
    pub code: String,
    pub count: u64,
    /// The first of them.
    pub names: Vec<String>,
}

impl Fleet {
    pub(super) async fn why_device(
        &self,
        subject: &str,
        record: DeviceRecord,
    ) -> Result<operator::Why, Error> {
        let device = record.device.clone();
        let left_out = self.store.left_out_of(&device).await?;
        let assignments = self.store.assignments(Scope::Devices(vec![device.clone()])).await?;
        let converged = record.condition(self.silent_before()) == Condition::Converged;
        let mut chain = self.device_reasons(&record, &assignments);
        // Nothing is the matter with what it was given; what it was not given yet is.
        if record.waits && chain.iter().all(|reason| reason.code == Code::Converged) {
            chain = self.rollouts_reasons(&device).await?;
        }
        if let Some(worst) = worst(&assignments) {
            self.look_behind(&mut chain, (&worst.package, &worst.version)).await?;
            self.look_behind_force(&mut chain, &record, &worst.name).await?;
            self.look_behind_window(&mut chain, &record, &worst.name).await?;
        }
        if let Some(text) = self.schedule_conflict(&record).await? {
            // Where nothing else is the matter, it is.
            let at = if converged { chain.len() } else { 0 };
            chain.insert(at, Reason::new(Code::ScheduleConflict, text));
        }
        if converged {
            for (name, reasons) in &left_out {
                chain.extend(self.misfit(&record, name, reasons));
            }
        }
        let converged = !self.look_behind_restore(&mut chain) && converged;
        Ok(told(subject, converged, &chain))
    }

    /// Devices that failed, by deployment and code, each with its number and the names of the first so many: those first that do not
    /// try again by themselves, then the most.
    pub async fn devices_failing(&self, named: usize) -> Result<Vec<FailedFor>, Error> {
        let failing = self.store.failing(self.silence(), named).await?.into_iter();
        let shown = failing.map(|Failing { deployment, code, given_up, count, first }| FailedFor {
            deployment: deployment.to_string(),
            code: if given_up { format!("given-up-{code}") } else { code },
            count,
            names: first.iter().map(|device| self.live.spoken(device)).collect(),
        });
        Ok(shown.collect())
    }

    /// Of the first so many pending devices those that stay so until a person does something, each with the cause. Whoever
    /// cannot look at its containers is told of by [`Fleet::devices_blind`], and whoever a rollout holds back with that.
    pub async fn devices_stuck(&self, looked_at: usize) -> Result<Vec<(Code, operator::Device)>, Error> {
        let filter = DeviceFilter {
            condition: Some(Condition::Pending),
            silence: self.silence(),
            limit: u32::try_from(looked_at).unwrap_or(u32::MAX),
            ..DeviceFilter::default()
        };
        let pending = self.store.devices(filter).await?;
        let names = pending.iter().map(|device| device.device.clone()).collect();
        let mut assignments: HashMap<DeviceRef, Vec<AssignmentRecord>> = HashMap::new();
        for assignment in self.store.assignments(Scope::Devices(names)).await? {
            assignments.entry(assignment.device.clone()).or_default().push(assignment);
        }
        let (mut codes, mut stuck) = (Vec::new(), Vec::new());
        for device in pending {
            let device = self.fresh(device);
            let own = assignments.remove(&device.device).unwrap_or_default();
            let code = self.device_reasons(&device, &own).last().map(|last| last.code);
            let code = code.filter(|code| code.needs() == Needs::Person && *code != Code::CannotLook);
            if let Some(code) = code {
                codes.push(code);
                stuck.push(device);
            }
        }
        Ok(codes.into_iter().zip(self.shown_devices(stuck).await?).collect())
    }

    /// Why a device that nobody knows as one is none yet.
    pub(super) async fn outside(&self, client: &ClientId) -> Result<Option<Reason>, Error> {
        if self.standing(client).is_some() {
            return Ok(None);
        }
        let asks = self.signed_clients(None)?.into_iter().find(|asks| asks.client == client.as_str());
        if let Some(asks) = asks {
            let operator::SignedClient { decision, fingerprint, first_seen, .. } = asks;
            let reason = match decision.as_str() {
                "rejected" => {
                    Reason::new(Code::DeviceRejected, format!("{client} was turned away ({fingerprint})"))
                }
                _ => {
                    let text =
                        format!("{client} waits to be let in since {first_seen}; its key is {fingerprint}");
                    Reason::new(Code::NotAccepted, text)
                }
            };
            return Ok(Some(reason.on(client.to_string())));
        }
        let awaited = self.store.join_awaited(client).await?;
        Ok(awaited.map(|until| {
            let reason = match until > self.now() {
                true => {
                    let text =
                        format!("{client} has not joined yet; its token may be used until {}", time(until));
                    Reason::new(Code::NeverJoined, text)
                }
                false => {
                    let text = format!("{client} has not joined, and its token expired at {}", time(until));
                    Reason::new(Code::TokenExpired, text)
                }
            };
            reason.on(client.to_string())
        }))
    }

    /// From the device to the reason why it is not converged; one line that says so if it is.
    fn device_reasons(&self, device: &DeviceRecord, assignments: &[AssignmentRecord]) -> Vec<Reason> {
        let id = self.live.spoken(&device.device);
        let mut chain = match worst(assignments) {
            Some(worst) => self.assignment_reasons(device, worst, assignments),
            None => Vec::new(),
        };
        let unreachable = self.unreachable(device);
        if unreachable.is_empty() && device.capabilities.is_none() {
            let text = format!("{id} has not reported its capabilities yet");
            chain.push(Reason::new(Code::CapabilitiesMissing, text).on(&id));
        }
        chain.extend(self.cannot_look(device));
        // Nothing about an assignment can be acted on before the device is back.
        extend(&mut chain, unreachable);
        if chain.is_empty() {
            chain.push(Reason::new(Code::Converged, format!("{id} runs everything that is wanted")));
        }
        chain
    }

    /// The device cannot look at its containers: whatever it said of them before, nobody knows whether it still is so.
    pub(super) fn cannot_look(&self, device: &DeviceRecord) -> Option<Reason> {
        let operator::CannotLook { since, message } = shown_blind(device)?;
        let id = self.live.spoken(&device.device);
        let text = format!("{id} cannot look at its containers since {since}: {message}");
        Some(Reason::new(Code::CannotLook, text).on(id))
    }

    /// Why a device is not converged, in one line.
    pub(in crate::fleet) fn device_reason(
        &self,
        device: &DeviceRecord,
        assignments: &[AssignmentRecord],
        waiting: &[WaitingRecord],
    ) -> Option<String> {
        let unreachable = self.unreachable(device);
        if let Some(last) = unreachable.last() {
            return Some(last.text.clone());
        }
        let chain = self.device_reasons(device, assignments);
        match waiting.first() {
            Some(waiting) if chain.iter().all(|reason| reason.code == Code::Converged) => {
                Some(self.waiting_text(waiting))
            }
            _ => Some(sentence(&chain)),
        }
    }

    /// Why nothing can be expected of the device at the moment; nothing if something can.
    pub(in crate::fleet) fn unreachable(&self, device: &DeviceRecord) -> Vec<Reason> {
        let id = self.live.spoken(&device.device);
        let named = |code, text: String| Reason::new(code, text).on(&id);
        match device.condition(self.silent_before()) {
            Condition::Retired => {
                vec![named(Code::DeviceRetired, format!("{id} is retired and refused by this server"))]
            }
            Condition::Silent => {
                let mut chain = vec![match device.last_contact {
                    None => {
                        let at = time(device.joined_at);
                        named(
                            Code::NeverSeen,
                            format!("{id} joined at {at} and has not been in contact since"),
                        )
                    }
                    Some(at) => named(Code::Silent, format!("{id} was last seen at {}", time(at))),
                }];
                if let Some(ended) = device.certificate_expires.filter(|ended| *ended <= self.now()) {
                    let text = format!("the certificate of {id} expired at {}", time(ended));
                    chain.push(named(Code::IdentityExpired, text));
                }
                chain
            }
            _ => Vec::new(),
        }
    }
}

/// That a device cannot look at its containers, as it said last.
pub(in crate::fleet) fn shown_blind(device: &DeviceRecord) -> Option<operator::CannotLook> {
    let since = device.blind_since.filter(|_| device.standing != Standing::Retired)?;
    let body = serde_json::from_slice(device.capabilities.as_deref()?).ok()?;
    let message = g2::capabilities::blind(&body)?.message;
    Some(operator::CannotLook { since: time(since), message })
}

/// The one that speaks for its device; among equals the one that waits longest.
fn worst(assignments: &[AssignmentRecord]) -> Option<&AssignmentRecord> {
    let behind = assignments.iter().filter(|assignment| assignment.outlook().verdict != Verdict::Converged);
    behind.max_by_key(|assignment| (assignment.outlook().verdict, Reverse(assignment.changed_at)))
}
