//! Why something is not as wanted: the one true reason, and what to do about it.
//!
//! A chain goes from what was asked about to what is to be done; its last line is the one to act on. Codes
//! are stable: programs match on them. A failed assignment's code is the device's own.

use margrave_core::id::{ClientId, DeploymentName, DeviceRef};
use margrave_core::lifecycle::State;
use margrave_core::report::{FAILURE_CODES, FailureCode};
use margrave_core::schedule::Gate;
use margrave_store::{AssignmentRecord, Condition, DeviceRecord, Scope, Standing, Verdict};
use margrave_wire::operator::{self, Cause};

use super::event::time;
use super::{Error, Fleet};

fn cause(code: &str, text: impl Into<String>, hint: Option<&str>) -> Cause {
    Cause { code: code.to_owned(), text: text.into(), hint: hint.map(str::to_owned) }
}

impl Fleet {
    /// Why a device, or one deployment on it (`DEVICE/DEPLOYMENT`), is not as wanted.
    pub async fn why(&self, subject: &str) -> Result<operator::Why, Error> {
        // Device names have slashes, too: the whole is tried first.
        let found = |text: &str| DeviceRef::parse(text).map(|device| self.live.addressed(&device));
        if let Ok(device) = found(subject) {
            if let Some(record) = self.store.device(&device).await? {
                let record = self.fresh(record);
                let left_out = self.store.left_out_of(&device).await?;
                let waiting = self.rollout_causes(&device).await?;
                let assignments = self.store.assignments(Scope::Devices(vec![device])).await?;
                let converged = record.condition(self.silent_before()) == Condition::Converged;
                let mut chain = self.device_causes(&record, &assignments);
                let conflict = self.schedule_conflict(&record).await?;
                let hint = "`margrave schedule list` shows what is chosen where; of each part a device follows the closest.";
                chain.splice(0..0, conflict.map(|text| cause("schedule-conflict", text, Some(hint))));
                if converged {
                    let misfits = left_out.iter().map(|(name, reasons)| self.misfit(&record, name, reasons));
                    chain.extend(misfits);
                    chain.extend(waiting);
                }
                return Ok(operator::Why { subject: subject.to_owned(), converged, chain });
            }
            if let Some(why) = self.never_joined(subject, &device.client).await? {
                return Ok(why);
            }
        }
        let parts = subject.rsplit_once('/').and_then(|(device, deployment)| {
            Some((found(device).ok()?, DeploymentName::parse(deployment).ok()?))
        });
        let unknown =
            || Error::not_found(format!("device {}", subject.chars().take(200).collect::<String>()));
        let (device, deployment) = parts.ok_or_else(unknown)?;
        let record = self.fresh(self.store.device(&device).await?.ok_or_else(unknown)?);
        let assignments = self.store.assignments(Scope::Devices(vec![device.clone()])).await?;
        let waiting = self.rollout_cause(&device, &deployment).await?;
        match assignments.iter().find(|assignment| assignment.name == deployment) {
            Some(assignment) => {
                let mut chain = Vec::new();
                chain.extend(self.unreachable_cause(&record));
                let about = self.assignment_cause(&record, assignment);
                let converged = about.is_none() && waiting.is_none();
                chain.splice(0..0, about.into_iter().chain(waiting));
                if converged {
                    chain.push(cause(
                        "converged",
                        format!("{deployment} on {} is as wanted", self.live.spoken(&device)),
                        None,
                    ));
                }
                Ok(operator::Why { subject: subject.to_owned(), converged, chain })
            }
            None => match waiting {
                Some(waiting) => {
                    let chain = [waiting].into_iter().chain(self.unreachable_cause(&record)).collect();
                    Ok(operator::Why { subject: subject.to_owned(), converged: false, chain })
                }
                None => self.not_assigned(subject, &record, &deployment).await,
            },
        }
    }

    async fn never_joined(&self, subject: &str, client: &ClientId) -> Result<Option<operator::Why>, Error> {
        if self.standing(client).is_some() {
            return Ok(None);
        }
        let awaited = self.store.join_awaited(client, self.now()).await?;
        Ok(awaited.map(|until| {
            let text = format!("{client} has not joined yet; its token may be used until {}", time(until));
            let hint = "Run the join command on the device, or make a new token if it was lost.";
            let chain = vec![cause("never-joined", text, Some(hint))];
            operator::Why { subject: subject.to_owned(), converged: false, chain }
        }))
    }

    /// The deployment is not on the device: left out, not meant for it, or not there at all.
    async fn not_assigned(
        &self,
        subject: &str,
        device: &DeviceRecord,
        name: &DeploymentName,
    ) -> Result<operator::Why, Error> {
        let found = self.store.deployment(name).await?.filter(|found| !found.removed);
        let found =
            found.ok_or_else(|| Error::not_found(format!("deployment {name} on {}", device.device)))?;
        let misfit = found.misfits.into_iter().find(|misfit| misfit.device == device.device);
        let id = self.live.spoken(&device.device);
        let chain = match misfit {
            _ if device.standing == Standing::Retired => self.unreachable_cause(device).into_iter().collect(),
            Some(misfit) => vec![self.misfit(device, name, &misfit.reasons)],
            None => {
                let text = format!(
                    "{name} is not meant for {id}: neither its name nor its labels are among the targets"
                );
                vec![cause(
                    "not-targeted",
                    text,
                    Some("Name the device in the deployment's targets, or label it."),
                )]
            }
        };
        Ok(operator::Why { subject: subject.to_owned(), converged: false, chain })
    }

    /// The device is wanted for a deployment that it cannot have.
    fn misfit(&self, device: &DeviceRecord, name: &DeploymentName, reasons: &[String]) -> Cause {
        let id = self.live.spoken(&device.device);
        let text = format!("{id} was left out of {name}: {}", reasons.join("; "));
        let said = device.capabilities.as_ref().and_then(|body| device.dialect.capabilities(body).ok());
        let hosts = said.is_none_or(|said| said.hosting.is_some());
        let hint = match hosts {
            true => "Choose another profile or device, or change what the device offers.",
            false => {
                "Start a container engine with Compose v2 on the device; its agent says so by itself, and the device comes in."
            }
        };
        cause("misfit", text, Some(hint))
    }

    /// From the device to the reason why it is not converged; one line that says so if it is.
    pub(super) fn device_causes(
        &self,
        device: &DeviceRecord,
        assignments: &[AssignmentRecord],
    ) -> Vec<Cause> {
        let id = self.live.spoken(&device.device);
        // The worst assignment speaks; among equals the one that waits longest.
        let worst = assignments
            .iter()
            .filter(|assignment| assignment.outlook().verdict != Verdict::Converged)
            .max_by_key(|assignment| {
                (assignment.outlook().verdict, std::cmp::Reverse(assignment.changed_at))
            });
        let mut chain = Vec::new();
        if let Some(worst) = worst {
            chain.extend(self.assignment_cause(device, worst));
        }
        if let Some(unreachable) = self.unreachable_cause(device) {
            // Nothing about an assignment can be acted on before the device is back.
            chain.push(unreachable);
        } else if device.capabilities.is_none() {
            let text = format!("{id} has not reported its capabilities yet");
            let hint = "It does so right after it starts; look at the agent's log on the device.";
            chain.push(cause("capabilities-missing", text, Some(hint)));
        }
        if chain.is_empty() {
            chain.push(cause("converged", format!("{id} runs everything that is wanted"), None));
        }
        chain
    }

    /// Why nothing can be expected of the device at the moment.
    fn unreachable_cause(&self, device: &DeviceRecord) -> Option<Cause> {
        let id = self.live.spoken(&device.device);
        match device.condition(self.silent_before()) {
            Condition::Retired => {
                let hint = "Accept it again if that was a mistake; a replacement joins under a new name.";
                Some(cause(
                    "device-retired",
                    format!("{id} is retired and refused by this server"),
                    Some(hint),
                ))
            }
            Condition::Silent => Some(match device.last_contact {
                None => {
                    let text = format!(
                        "{id} joined at {} and has not been in contact since",
                        time(device.joined_at)
                    );
                    cause("never-seen", text, Some("Start the agent on the device: margrave-agent run."))
                }
                Some(at) => {
                    let text = format!("{id} was last seen at {}", time(at));
                    let hint = "Check its power and network; it catches up by itself when it is back.";
                    cause("silent", text, Some(hint))
                }
            }),
            _ => None,
        }
    }

    /// Why an assignment is not as wanted; `None` if it is.
    pub(super) fn assignment_cause(&self, device: &DeviceRecord, record: &AssignmentRecord) -> Option<Cause> {
        let outlook = record.outlook();
        if outlook.verdict == Verdict::Converged {
            return None;
        }
        let about = format!("{} on {}", record.name, self.live.spoken(&record.device));
        let report = record.observed.as_ref().map(|observed| &observed.report);
        let adopted = report.is_some_and(|report| report.adopted_version >= record.changed_version);
        if !adopted {
            return Some(self.not_adopted(device, record));
        }
        let fault = report.and_then(|report| report.fault.as_ref());
        let reason =
            report.and_then(|report| report.detail.as_ref()).and_then(|detail| detail.reason.as_ref());
        if outlook.verdict == Verdict::Failed {
            let code = fault.map_or("failed", |fault| fault.code.as_str());
            let message = fault.map(|fault| fault.message.clone()).or_else(|| reason.cloned());
            let message = message.unwrap_or_else(|| "the device gave no reason".into());
            let text = match outlook.state {
                State::Installed => format!("{about} went back to its last good version: {message}"),
                _ => format!("{about} failed: {message}"),
            };
            return Some(cause(code, text, Some(hint(code))));
        }
        let doing = match outlook.state {
            State::Pending => "waits to be started",
            State::Installing => "is being installed",
            State::Updating => "is being updated",
            State::RollingBack => "goes back to its last good version",
            State::Deleting | State::Deleted => "is being removed",
            State::Installed => "still runs its last version",
            State::Failed => "failed",
        };
        if let Some(waiting) = waiting(record) {
            return Some(cause("waiting", format!("{about} {doing}: {waiting}"), Some(WAITING_HINT)));
        }
        let text = match reason.or(fault.map(|fault| &fault.message)) {
            Some(reason) => format!("{about} {doing}: {reason}"),
            None => format!("{about} {doing}"),
        };
        Some(cause(&outlook.state.as_str().to_lowercase(), text, None))
    }

    /// The device has not begun with what is wanted now.
    fn not_adopted(&self, device: &DeviceRecord, record: &AssignmentRecord) -> Cause {
        let (id, version) = (self.live.spoken(&record.device), record.changed_version);
        if let Some(unreachable) = self.unreachable_cause(device) {
            return unreachable;
        }
        if self.live.fetched(&device.device.client) < version {
            let text = format!("{id} has not fetched manifest version {version} yet");
            let told = self.live.told.of(&device.device.client);
            return match told.map(|schedule| schedule.contact(self.now())) {
                Some(Gate::Closed(Some(opens))) => {
                    let text = format!("{text}; by its schedule it may talk again at {}", time(opens));
                    cause(
                        "out-of-hours",
                        text,
                        Some("Change its schedule if it has to be sooner: margrave schedule."),
                    )
                }
                _ => cause("manifest-not-fetched", text, Some("It asks again at its next poll.")),
            };
        }
        if let Some(waiting) = waiting(record) {
            let text = match record.wanted {
                true => format!("{} on {id} has a newer version waiting: {waiting}", record.name),
                false => format!("{} on {id} is to go: {waiting}", record.name),
            };
            return cause("waiting", text, Some(WAITING_HINT));
        }
        let text = format!("{id} has manifest version {version} and has not reported on {} yet", record.name);
        cause("not-reported", text, None)
    }
}

const WAITING_HINT: &str = "It begins by itself. To have it sooner, change the schedule (margrave schedule), or let the device go on \
     (margrave-agent release).";

/// Why the device has not begun with what is wanted.
fn waiting(record: &AssignmentRecord) -> Option<&String> {
    record.observed.as_ref()?.report.detail.as_ref()?.waiting.as_ref()
}

/// What a person can do about a failure; codes that are not ours get the general word.
fn hint(code: &str) -> &'static str {
    match FAILURE_CODES.into_iter().find(|known| known.as_str() == code) {
        Some(code) => hint_of(code),
        None => "Look at the device's own log; it retries by itself where that can help.",
    }
}

fn hint_of(code: FailureCode) -> &'static str {
    match code {
        FailureCode::DocumentInvalid => {
            "Update the agent on the device, or deploy a profile that it understands."
        }
        FailureCode::NotEligible => {
            "Deploy to a device that has what the package asks for, or choose another profile."
        }
        FailureCode::RuntimeMissing => {
            "Install a container engine and Compose v2 on the device, or start them if they are there."
        }
        FailureCode::RuntimeUnreachable => {
            "Start the container engine on the device, and let the agent use its socket."
        }
        FailureCode::PullFailed => "Check that the device reaches the registry; it tries again by itself.",
        FailureCode::PullNotFound => {
            "Push the missing component or image to the registry; the device tries again by itself."
        }
        FailureCode::PullDenied => {
            "Give the device access to the registry, or move the image to one that it may read."
        }
        FailureCode::ArchiveInvalid => "Push a valid component under a new revision and deploy that.",
        FailureCode::CreateFailed => {
            "Mend the compose file: a port, a mount or an option is refused by the engine."
        }
        FailureCode::StartFailed => "Look at the container's log on the device: it ended while it started.",
        FailureCode::Unhealthy => {
            "Look at the application's log: a container of it is down, or its health check fails. The device tries again by itself."
        }
        FailureCode::Timeout => "Give the component a longer timeout, or find out what it waits for.",
        FailureCode::DiskFull => "Free some space on the device's disk; it tries again by itself.",
        FailureCode::RollbackFailed => {
            "Neither the new version nor the one before runs. Deploy a version that does: the device tries nothing more until the deployment changes."
        }
        FailureCode::RemoveFailed => "Remove the containers on the device by hand; it tries again by itself.",
    }
}
