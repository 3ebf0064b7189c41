//! Why one deployment on one device is not as wanted.

use std::sync::Arc;
use std::time::Duration;

use margrave_core::deployment::{Deployment, Targets};
use margrave_core::id::{ClientId, DeploymentName, PackageId, PackageVersion};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::report::{Awaited, Detail, FAILURE_CODES, FailureCode, Report, Retry};
use margrave_core::schedule::{Gate, Schedule, meet};
use margrave_core::secret::is_wanting;
use margrave_core::watch::Warning;
use margrave_core::why::Code;
use margrave_store::{AssignmentRecord, Candidate, DeploymentRecord, DeviceRecord, Standing, Verdict};
use margrave_wire::operator;

use super::{Reason, sentence, told};
use crate::fleet::event::time;
use crate::fleet::publish::is_kept;
use crate::fleet::view::shown_windows;
use crate::fleet::{Error, Fleet, REMOVAL_UNSPOKEN_MS};

/// So far ahead of ours a device's clock may run; one that is behind may only have been cut off.
const CLOCK_AHEAD_MAX_MS: u64 = 5 * 60 * 1000;
/// No clock before 2020 is right.
const CLOCK_SENSIBLE: Moment = Moment(1_577_836_800_000);
/// A try begins at its time, and is told soon after.
const TRY_LATE: Duration = Duration::from_secs(60);
/// Of the devices or sites that are targets.
const TARGETS_TOLD_MAX: usize = 10;
/// Who asks so seldom is waited for, and not missed.
const SELDOM_SECONDS: u64 = 60;

/// What a device does next about something that failed and is not given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Try,
    Back,
    /// It tries as often as the deployment says, and goes back then; how often it has is not told.
    Either,
}

/// A device says that it failed at the moment in which it goes back, and before it says that it does.
fn expected(record: &AssignmentRecord) -> Next {
    let Some(observed) = record.observed.as_ref().filter(|_| record.wanted) else { return Next::Try };
    let fault = observed.report.fault.as_ref();
    let code = FAILURE_CODES.into_iter().find(|code| fault.is_some_and(|fault| fault.code == code.as_str()));
    match code {
        // That is not tried again by itself: what comes next is the way back.
        Some(code) if code.retry() == Retry::NotUntilManifestChanges => Next::Back,
        // It would be so with any version.
        Some(code) if !code.blames_the_update() => Next::Try,
        // What never ran has nothing behind it.
        _ if !observed.was_installed => Next::Try,
        _ => Next::Either,
    }
}

impl Fleet {
    /// Why an assignment is not as wanted, in one line; `None` if it is.
    pub(in crate::fleet) fn assignment_reason(
        &self,
        device: &DeviceRecord,
        record: &AssignmentRecord,
    ) -> Option<String> {
        let chain = self.assignment_reasons(device, record, &[]);
        (!chain.is_empty()).then(|| sentence(&chain))
    }

    /// From what is seen of an assignment to what causes it; nothing if it is as wanted. `others` are on the same device.
    pub(in crate::fleet) fn assignment_reasons(
        &self,
        device: &DeviceRecord,
        record: &AssignmentRecord,
        others: &[AssignmentRecord],
    ) -> Vec<Reason> {
        let outlook = record.outlook();
        if outlook.verdict == Verdict::Converged {
            return Vec::new();
        }
        let id = self.live.spoken(&record.device);
        let about = format!("{} on {id}", record.name);
        let report = record.observed.as_ref().map(|observed| &observed.report);
        // Who removes something speaks of the version in which it had it.
        let removes = !record.wanted
            && record.observed.as_ref().is_some_and(|observed| observed.state == State::Deleting);
        let adopted = report.is_some_and(|report| report.adopted_version >= record.changed_version);
        if !adopted && !removes {
            return self.not_adopted(device, record, others);
        }
        let said = |code, text: String| Reason::new(code, text).on(&id).of(&record.name);
        let fault = report.and_then(|report| report.fault.as_ref());
        if outlook.verdict == Verdict::Failed || (removes && fault.is_some()) {
            return self.failed(record, &about, others);
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
        if detail(record).is_some_and(|detail| detail.waiting.is_some()) {
            return self.waiting(record, format!("{about} {doing}"));
        }
        let reason = detail(record).and_then(|detail| detail.reason.as_ref());
        let text = match reason.or(fault.map(|fault| &fault.message)) {
            Some(reason) => format!("{about} {doing}: {reason}"),
            None => format!("{about} {doing}"),
        };
        let code = match outlook.state {
            State::Pending => Code::Pending,
            State::Installing => Code::Installing,
            State::Updating => Code::Updating,
            State::RollingBack => Code::RollingBack,
            State::Deleting | State::Deleted => Code::Deleting,
            State::Installed => Code::NotBegun,
            State::Failed => Code::Failed,
        };
        let client = &device.device.client;
        let version = self.live.version(client);
        if code == Code::NotBegun && self.live.fetched(client) < version {
            // It has what it was given by a server that knew more, or that it was given long ago.
            let text = format!("{id} has not fetched manifest version {version} yet");
            return vec![said(Code::ManifestNotFetched, text)];
        }
        let mut chain = vec![said(code, text)];
        if code == Code::Pending {
            chain.extend(self.behind_others(record, others));
        }
        chain
    }

    /// That the device has its hands full.
    fn behind_others(&self, record: &AssignmentRecord, others: &[AssignmentRecord]) -> Option<Reason> {
        let busy = others.iter().find(|other| other.id != record.id && is_at_work(other))?;
        let id = self.live.spoken(&record.device);
        let text = format!("{id} is busy with {}", busy.name);
        Some(Reason::new(Code::BehindOthers, text).on(&id).of(&busy.name))
    }

    /// The device says that it failed: whether it tries again, and what went wrong.
    fn failed(&self, record: &AssignmentRecord, about: &str, others: &[AssignmentRecord]) -> Vec<Reason> {
        let report = record.observed.as_ref().map(|observed| &observed.report);
        let fault = report.and_then(|report| report.fault.as_ref());
        let detail = detail(record);
        let code = fault.map_or(Code::Failed, |fault| Code::of_failure(&fault.code));
        let tried = if record.wanted { "failed" } else { "could not be removed" };
        let (seen, text) = match (record.outlook().state, detail) {
            (State::Installed, _) => {
                (Code::RolledBack, format!("{about} went back to its last good version"))
            }
            (_, None) => (Code::Failed, format!("{about} {tried}")),
            (_, Some(Detail { next_try: Some(at), .. })) => match expected(record) {
                Next::Back => {
                    (Code::RollingBack, format!("{about} {tried}, and goes back to its last good version"))
                }
                Next::Try => {
                    (Code::Retrying, format!("{about} {tried}, and is tried again at {}", time(*at)))
                }
                Next::Either => {
                    let text = format!(
                        "{about} {tried}; it goes back to its last good version, or is tried again at {}",
                        time(*at)
                    );
                    (Code::Retrying, text)
                }
            },
            (_, Some(_)) => (Code::GivenUp, format!("{about} {tried}, and is not tried again as it is")),
        };
        let message = fault.map(|fault| fault.message.clone());
        let message = message.or_else(|| detail.and_then(|detail| detail.reason.clone()));
        let message = match (message, fault) {
            (Some(message), Some(fault)) if code == Code::Failed => format!("{message} ({})", fault.code),
            (Some(message), _) => message,
            (None, _) => "the device gave no reason".to_owned(),
        };
        let id = self.live.spoken(&record.device);
        let named = |code, text: String| Reason::new(code, text).on(&id).of(&record.name);
        let cause = named(code, message);
        // What would be tried again by itself, were there tries left.
        let failure =
            FAILURE_CODES.into_iter().find(|known| fault.is_some_and(|fault| fault.code == known.as_str()));
        let is_spent = seen == Code::GivenUp && failure.is_some_and(|known| known.retry() == Retry::Later);
        let mut chain = vec![named(seen, text)];
        // What failed goes behind what waits.
        let is_overdue = seen == Code::Retrying
            && record
                .observed
                .as_ref()
                .is_some_and(|observed| tried_late(&observed.report, observed.received_at, self.now()));
        chain.extend(is_overdue.then(|| self.behind_others(record, others)).flatten());
        chain.push(if is_spent { cause.spent() } else { cause });
        chain
    }

    /// The device says what it waits for.
    fn waiting(&self, record: &AssignmentRecord, seen: String) -> Vec<Reason> {
        let id = self.live.spoken(&record.device);
        let named = |code, text: String| Reason::new(code, text).on(&id).of(&record.name);
        let Some(detail) = detail(record) else { return vec![named(Code::Waiting, seen)] };
        let text = detail.waiting.clone().unwrap_or_default();
        let code = match detail.awaited {
            None => return vec![named(Code::Waiting, format!("{seen}: {text}"))],
            Some(Awaited::Holder) => Code::Held,
            Some(Awaited::Window) => Code::WindowClosed,
            Some(Awaited::Clock) => Code::WindowUnknown,
            Some(Awaited::Network) => Code::DownloadWaits,
        };
        let mut chain = vec![named(Code::Waiting, seen), named(code, text)];
        if code != Code::Held
            && let Some(observed) = &record.observed
            && is_wrong(detail.at, observed.received_at)
        {
            let text =
                format!("by the clock of {id} it was {} at {}", time(detail.at), time(observed.received_at));
            chain.push(named(Code::ClockWrong, text));
        }
        chain
    }

    /// The device has not begun with what is wanted now.
    fn not_adopted(
        &self,
        device: &DeviceRecord,
        record: &AssignmentRecord,
        others: &[AssignmentRecord],
    ) -> Vec<Reason> {
        let (id, version) = (self.live.spoken(&record.device), record.changed_version);
        let named = |code, text: String| Reason::new(code, text).on(&id).of(&record.name);
        let unreachable = self.unreachable(device);
        if !unreachable.is_empty() {
            return unreachable;
        }
        let client = &device.device.client;
        if self.live.fetched(client) < version {
            let text = format!("{id} has not fetched manifest version {version} yet");
            let (code, text) =
                self.by_schedule(client, text).unwrap_or_else(|text| (Code::ManifestNotFetched, text));
            return vec![named(code, text)];
        }
        if detail(record).is_some_and(|detail| detail.waiting.is_some()) {
            let seen = match record.wanted {
                true => format!("{} on {id} has a newer version waiting", record.name),
                false => format!("{} on {id} is to go", record.name),
            };
            return self.waiting(record, seen);
        }
        let now = self.now();
        let held = self.live.held(client).filter(|held| *held < version);
        if let Some(held) = held.filter(|_| now.0.saturating_sub(record.changed_at.0) > REMOVAL_UNSPOKEN_MS) {
            let text = format!("{id} was given manifest version {version}, and stays with {held}");
            return vec![named(Code::ManifestNotAdopted, text)];
        }
        if let Some(behind) = self.behind_others(record, others) {
            // A device does not tell of turns: they change by the minute, and each telling would be a write to its flash.
            let text = format!("{} on {id} has a newer version that was not begun yet", record.name);
            return vec![named(Code::NotBegun, text), behind];
        }
        let text = format!("{id} has manifest version {version} and has not reported on {} yet", record.name);
        vec![named(Code::NotReported, text)]
    }

    /// Why something was not heard of a client, where its schedule says so; as it was told where that says nothing.
    fn by_schedule(&self, client: &ClientId, text: String) -> Result<(Code, String), String> {
        let Some(schedule) = self.live.told.of(client) else { return Err(text) };
        let seldom = schedule.poll.filter(|poll| !poll.wait && poll.every.as_secs() >= SELDOM_SECONDS);
        match (schedule.contact(self.now()), seldom) {
            (Gate::Closed(Some(opens)), _) => {
                let text = format!("{text}; by its schedule it may talk again at {}", time(opens));
                match schedule.down_until(self.now()) {
                    Some(_) => Ok((Code::InDowntime, text)),
                    None => Ok((Code::OutOfHours, text)),
                }
            }
            (_, Some(poll)) => {
                let text = format!("{text}; by its schedule it asks every {} s", poll.every.as_secs());
                Ok((Code::PollsSeldom, text))
            }
            _ => Err(text),
        }
    }

    /// That a device is quiet as it was told to be.
    pub(in crate::fleet) fn quiet(&self, device: &DeviceRecord) -> Option<Reason> {
        let id = self.live.spoken(&device.device);
        let text = format!("{id} was last heard of at {}", time(device.last_contact?));
        let (code, text) = self.by_schedule(&device.device.client, text).ok()?;
        Some(Reason::new(code, text).on(&id))
    }

    /// The deployment is not on the device: left out, not meant for it, or not there at all.
    pub(super) async fn not_assigned(
        &self,
        subject: &str,
        device: &DeviceRecord,
        name: &DeploymentName,
    ) -> Result<operator::Why, Error> {
        let found = self.store.deployment(name).await?.filter(|found| !found.removed);
        let found =
            found.ok_or_else(|| Error::not_found(format!("deployment {name} on {}", device.device)))?;
        let misfit = found.misfits.iter().find(|misfit| misfit.device == device.device);
        let id = self.live.spoken(&device.device);
        let chain = match misfit {
            _ if device.standing == Standing::Retired => self.unreachable(device),
            Some(misfit) => self.misfit(device, name, &misfit.reasons),
            None => {
                let targets = self.spoken_targets(&found.deployment.targets);
                let labels: Vec<String> =
                    device.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                let has = if labels.is_empty() { "no labels".to_owned() } else { labels.join(", ") };
                let text =
                    format!("{name} is not meant for {id}: its targets are {targets}, and {id} has {has}");
                vec![Reason::new(Code::NotTargeted, text).on(&id).of(name)]
            }
        };
        Ok(told(subject, false, &chain))
    }

    /// Who is meant, in words.
    fn spoken_targets(&self, targets: &Targets) -> String {
        let Targets { devices, labels, select, sites } = targets;
        let mut parts = Vec::new();
        if !devices.is_empty() {
            let mut names: Vec<String> =
                devices.iter().take(TARGETS_TOLD_MAX).map(|device| self.live.spoken(device)).collect();
            if devices.len() > TARGETS_TOLD_MAX {
                names.push(format!("{} more", devices.len() - TARGETS_TOLD_MAX));
            }
            parts.push(format!("the devices {}", names.join(", ")));
        }
        if !labels.is_empty() {
            let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            parts.push(format!("those with {}", pairs.join(" and ")));
        }
        if !select.is_empty() {
            parts.push(format!("those that match `{select}`"));
        }
        if !sites.is_empty() {
            let sites: Vec<&str> = sites.iter().take(TARGETS_TOLD_MAX).map(String::as_str).collect();
            parts.push(format!("those at the sites {}", sites.join(", ")));
        }
        if parts.is_empty() { "nobody".to_owned() } else { parts.join(", ") }
    }

    /// What a device has of a deployment is as it was given, and what is wanted now does not fit there.
    pub(super) async fn left_behind(
        &self,
        device: &DeviceRecord,
        name: &DeploymentName,
    ) -> Result<Vec<Reason>, Error> {
        let left_out = self.store.left_out_of(&device.device).await?;
        let left_out = left_out.iter().filter(|(left_out, _)| left_out == name);
        Ok(left_out.flat_map(|(name, reasons)| self.misfit(device, name, reasons)).collect())
    }

    /// The device is wanted for a deployment that it cannot have.
    pub(super) fn misfit(
        &self,
        device: &DeviceRecord,
        name: &DeploymentName,
        reasons: &[String],
    ) -> Vec<Reason> {
        let id = self.live.spoken(&device.device);
        let text = match is_kept(reasons) {
            true => format!("{id} was left out of the last change of {name}: {}", reasons.join("; ")),
            false => format!("{id} was left out of {name}: {}", reasons.join("; ")),
        };
        let Some(body) = device.capabilities.as_ref() else {
            let mut chain = vec![Reason::new(Code::CapabilitiesMissing, text).on(&id).of(name)];
            chain.extend(self.unreachable(device));
            return chain;
        };
        if reasons.iter().any(|reason| is_wanting(reason)) {
            return vec![Reason::new(Code::SecretMissing, text).on(&id).of(name)];
        }
        let hosts = device.dialect.capabilities(body).ok().is_none_or(|said| said.hosting.is_some());
        let code = if hosts { Code::Misfit } else { Code::RuntimeAbsent };
        vec![Reason::new(code, text).on(&id).of(name)]
    }

    /// Goes on from what fails on a device to that it does not fit there and was forced.
    pub(super) async fn look_behind_force(
        &self,
        chain: &mut Vec<Reason>,
        device: &DeviceRecord,
        name: &DeploymentName,
    ) -> Result<(), Error> {
        // What fails in another way would fail where it fits, too.
        let of_fit = |code: Code| {
            use FailureCode::{CreateFailed, DiskFull, NotEligible, StartFailed, Timeout, Unhealthy};
            matches!(
                code,
                Code::Failure(CreateFailed | DiskFull | NotEligible | StartFailed | Timeout | Unhealthy)
            )
        };
        if !chain.last().is_some_and(|last| of_fit(last.code)) {
            return Ok(());
        }
        let Some(DeploymentRecord { deployment, .. }) = self.wanted_deployment(name).await? else {
            return Ok(());
        };
        let Some(reason) = deployment.forced.clone() else { return Ok(()) };
        let Some(entry) = self.entry(&deployment.package, &deployment.version).await? else { return Ok(()) };
        let wish = self.wish(deployment, entry, None);
        let (pictures, mut promises) = self.promised([&device.device], [&wish.entry]).await?;
        let candidate = Candidate::from(device);
        let (_, stand) = promises.stand(&pictures, &candidate, &wish);
        let placed = wish.place(&candidate, &stand.anew(), &self.options.registry_address);
        let Some(placed) = placed.ok().filter(|placed| !placed.despite.is_empty()) else { return Ok(()) };
        let id = self.live.spoken(&device.device);
        let despite = placed.despite.join("; ");
        let text = format!("{name} does not fit {id} and was forced there ({reason}): {despite}");
        chain.push(Reason::new(Code::ForcedMisfit, text).on(&id).of(name));
        Ok(())
    }

    /// Goes on from a window that is closed to that it never opens, because those of the deployment and of the device have no
    /// time together.
    pub(super) async fn look_behind_window(
        &self,
        chain: &mut Vec<Reason>,
        device: &DeviceRecord,
        name: &DeploymentName,
    ) -> Result<(), Error> {
        if !waits_for_window(chain) {
            return Ok(());
        }
        if let Some(DeploymentRecord { deployment, .. }) = self.wanted_deployment(name).await? {
            let mut known = Vec::new();
            chain.extend(self.windows_apart(device, &deployment, &mut known));
        }
        Ok(())
    }

    /// That the windows of a deployment and of a device have no time together. `known` is what was found out about other
    /// devices, of which most have the same windows.
    pub(super) fn windows_apart(
        &self,
        device: &DeviceRecord,
        deployment: &Deployment,
        known: &mut Vec<(Arc<Schedule>, bool)>,
    ) -> Option<Reason> {
        let schedule = self.live.told.of(&device.device.client)?;
        let own = schedule.windows.as_deref()?;
        if deployment.windows.is_empty() {
            return None;
        }
        let same = known.iter().find(|(other, _)| other.windows == schedule.windows);
        let meets = match same {
            Some((_, meets)) => *meets,
            None => {
                let meets = meet(&deployment.windows, own, self.now());
                known.push((Arc::clone(&schedule), meets));
                meets
            }
        };
        let (id, name) = (self.live.spoken(&device.device), &deployment.name);
        let text = format!(
            "changes of {name} may begin {}, and {id} may change {}; these times never meet",
            shown_windows(&deployment.windows).join(" and "),
            shown_windows(own).join(" and "),
        );
        (!meets).then(|| Reason::new(Code::WindowsApart, text).on(&id).of(name))
    }

    /// Goes on from what a device cannot fetch to what its registry does not have any more.
    pub(super) async fn look_behind(
        &self,
        chain: &mut Vec<Reason>,
        package: (&PackageId, &PackageVersion),
    ) -> Result<(), Error> {
        if !chain.last().is_some_and(|last| last.code.is_pull()) {
            return Ok(());
        }
        let (id, version) = package;
        let gone = self.origin_warnings(id, version).await?.into_iter();
        let gone = gone.filter(|warning| !matches!(warning, Warning::Moved { .. }));
        chain.extend(
            gone.take(1)
                .map(|warning| Reason::new(Code::PackageGone, format!("package {id} {version}: {warning}"))),
        );
        Ok(())
    }
}

/// Whether what is left to wait for is a window.
pub(super) fn waits_for_window(chain: &[Reason]) -> bool {
    chain.last().is_some_and(|last| last.code == Code::WindowClosed)
}

fn detail(record: &AssignmentRecord) -> Option<&Detail> {
    record.observed.as_ref()?.report.detail.as_ref()
}

fn is_at_work(record: &AssignmentRecord) -> bool {
    matches!(
        record.outlook().state,
        State::Installing | State::Updating | State::RollingBack | State::Deleting
    )
}

/// Whether the time of the next try that was told is over, and nothing was heard of it. Both times are the device's.
fn tried_late(report: &Report, received: Moment, now: Moment) -> bool {
    let Some(detail) = &report.detail else { return false };
    let due_in = detail.next_try.map(|next| next.since(detail.at));
    due_in.is_some_and(|due_in| now.since(received) > due_in + TRY_LATE)
}

/// Whether a device's clock says what cannot be.
fn is_wrong(said: Moment, received: Moment) -> bool {
    said < CLOCK_SENSIBLE || said.0 > received.0.saturating_add(CLOCK_AHEAD_MAX_MS)
}
