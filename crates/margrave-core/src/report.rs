//! What a device says about an assignment.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::id::{AssignmentId, ComponentName, DeviceId};
use crate::lifecycle::{Reported, State};
use crate::moment::Moment;

/// One report, as any Margo device can make it, plus what only our agent adds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub assignment: AssignmentId,
    /// Always given by our agent; optional on the wire unless it is a child device (MI-G2-102).
    pub device: Option<DeviceId>,
    pub adopted_version: u64,
    pub state: Reported,
    pub fault: Option<Fault>,
    pub components: Vec<ComponentReport>,
    pub detail: Option<Detail>,
    /// When its sender signed it, where the interface proves that. Never on the wire: it orders the reports of
    /// devices that number nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_at: Option<Moment>,
}

impl Report {
    /// Whether it says nothing new, though it was signed another time.
    pub fn repeats(&self, before: &Report) -> bool {
        let Report { assignment, device, adopted_version, state, fault, components, detail, signed_at: _ } =
            self;
        *assignment == before.assignment
            && *device == before.device
            && *adopted_version == before.adopted_version
            && *state == before.state
            && *fault == before.fault
            && *components == before.components
            && *detail == before.detail
    }

    /// Whether it is no step in anybody's life since `before`: the same is said once more, or only that the engine brought
    /// something back another number of times.
    pub fn is_no_step(&self, before: &Report) -> bool {
        let (Some(detail), Some(detail_before)) = (&self.detail, &before.detail) else { return false };
        let mut same = self.clone();
        same.signed_at = before.signed_at;
        same.detail =
            Some(Detail { sequence: detail_before.sequence, at: detail_before.at, ..detail.clone() });
        for (component, before) in same.components.iter_mut().zip(&before.components) {
            component.restarts = before.restarts;
        }
        same == *before
    }

    /// How often everything of it was brought back.
    pub fn restarts(&self) -> u64 {
        self.components.iter().map(|component| u64::from(component.restarts)).sum()
    }
}

/// "restarted 3 times": how often the engine brought something back, in words.
pub fn restarted(times: u32) -> String {
    match times {
        1 => "restarted once".to_owned(),
        2 => "restarted twice".to_owned(),
        more => format!("restarted {more} times"),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentReport {
    pub name: String,
    pub state: Reported,
    pub fault: Option<Fault>,
    /// How often the engine brought its containers back since they were started, as far as the device said; only our agent does.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub restarts: u32,
}

fn is_none_yet(number: &u32) -> bool {
    *number == 0
}

/// The standard's error object: who failed, how, and in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub code: String,
    pub source: String,
    pub message: String,
}

/// The finer truth that our agent adds in its extension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    pub state: State,
    /// Counts every report this device ever made; a server orders reports by it.
    pub sequence: u64,
    /// When the device saw it, by the device's clock.
    pub at: Moment,
    /// The document that the state speaks of.
    pub document: Option<Digest>,
    pub attempt: u32,
    pub next_try: Option<Moment>,
    /// Why it failed, as one sentence.
    pub reason: Option<String>,
    /// Why what is wanted has not begun, as one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// The same for programs; none from older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaited: Option<Awaited>,
    /// Which life of the device's memory this is: the manifest version that it began with. `None` from older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<u64>,
    /// A number that this memory drew when it began: two reports with the same one are of one memory, and their own numbers tell
    /// which is later. `None` from older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u32>,
    /// The manifest that the device lives by, while the server shows it another one that it may not follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<Holding>,
}

/// A manifest, by its number and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    pub version: u64,
    pub manifest: Digest,
}

/// What a change on a device waits for before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Awaited {
    /// Somebody at the device who holds changes back.
    Holder,
    /// The maintenance window.
    Window,
    /// A clock that says when the window is.
    Clock,
    /// A time at which the device may use the network.
    Network,
}

impl Awaited {
    const ALL: [Awaited; 4] = [Awaited::Holder, Awaited::Window, Awaited::Clock, Awaited::Network];

    pub fn as_str(self) -> &'static str {
        match self {
            Awaited::Holder => "holder",
            Awaited::Window => "window",
            Awaited::Clock => "clock",
            Awaited::Network => "network",
        }
    }

    /// A word of a newer agent is none.
    pub fn parse(text: &str) -> Option<Awaited> {
        Self::ALL.into_iter().find(|awaited| awaited.as_str() == text)
    }
}

/// Why a device could not do what was wanted. Closed: each code has a page in `docs/failures.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureCode {
    /// The document could not be read, or asks for what this agent does not understand.
    DocumentInvalid,
    /// The device does not meet the document's own eligibility rules.
    NotEligible,
    /// No container engine, or no Compose that is new enough, for this kind of profile on this device.
    RuntimeMissing,
    /// The engine did not answer, or there was not enough memory to work with it.
    RuntimeUnreachable,
    /// The component or an image could not be fetched, and trying again may help.
    PullFailed,
    /// The registry knows no such component or image.
    PullNotFound,
    /// The registry refused this device.
    PullDenied,
    /// What was fetched is not what was promised, or is no valid component.
    ArchiveInvalid,
    /// The engine refused to create the containers.
    CreateFailed,
    /// A container could not start, or exited with an error while starting.
    StartFailed,
    /// Containers run, but their health checks fail.
    Unhealthy,
    /// It took longer than the component's timeout.
    Timeout,
    /// The device's disk is full, or cannot be written.
    DiskFull,
    /// Containers, networks or volumes could not be removed.
    RemoveFailed,
    /// An update failed, and going back to what ran before failed as well.
    RollbackFailed,
}

/// Every code, for the documentation's completeness check.
pub const FAILURE_CODES: [FailureCode; 15] = [
    FailureCode::DocumentInvalid,
    FailureCode::NotEligible,
    FailureCode::RuntimeMissing,
    FailureCode::RuntimeUnreachable,
    FailureCode::PullFailed,
    FailureCode::PullNotFound,
    FailureCode::PullDenied,
    FailureCode::ArchiveInvalid,
    FailureCode::CreateFailed,
    FailureCode::StartFailed,
    FailureCode::Unhealthy,
    FailureCode::Timeout,
    FailureCode::DiskFull,
    FailureCode::RemoveFailed,
    FailureCode::RollbackFailed,
];

/// Whether trying the same thing again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    Later,
    NotUntilManifestChanges,
}

impl FailureCode {
    pub fn as_str(self) -> &'static str {
        match self {
            FailureCode::DocumentInvalid => "document-invalid",
            FailureCode::NotEligible => "not-eligible",
            FailureCode::RuntimeMissing => "runtime-missing",
            FailureCode::RuntimeUnreachable => "runtime-unreachable",
            FailureCode::PullFailed => "pull-failed",
            FailureCode::PullNotFound => "pull-not-found",
            FailureCode::PullDenied => "pull-denied",
            FailureCode::ArchiveInvalid => "archive-invalid",
            FailureCode::CreateFailed => "create-failed",
            FailureCode::StartFailed => "start-failed",
            FailureCode::Unhealthy => "unhealthy",
            FailureCode::Timeout => "timeout",
            FailureCode::DiskFull => "disk-full",
            FailureCode::RemoveFailed => "remove-failed",
            FailureCode::RollbackFailed => "rollback-failed",
        }
    }

    pub fn is_pull(self) -> bool {
        matches!(self, FailureCode::PullFailed | FailureCode::PullNotFound | FailureCode::PullDenied)
    }

    /// Whether it may lie in what was applied. An engine that is away or a full disk would be so for any version.
    pub fn blames_the_update(self) -> bool {
        !matches!(self, FailureCode::RuntimeMissing | FailureCode::RuntimeUnreachable | FailureCode::DiskFull)
    }

    /// Whether the device says no by itself, before anything is touched: it will never have this, and nothing broke. That an archive
    /// is not sound, in contrast, is nothing about the device.
    pub fn is_refusal(self) -> bool {
        matches!(self, FailureCode::DocumentInvalid | FailureCode::NotEligible)
    }

    /// Everything that the world around the device can mend is worth another try: a technician plugs in a
    /// cable, installs an engine, or pushes the missing image, and the device must find out by itself.
    pub fn retry(self) -> Retry {
        match self {
            FailureCode::DocumentInvalid
            | FailureCode::NotEligible
            | FailureCode::ArchiveInvalid
            | FailureCode::RollbackFailed => Retry::NotUntilManifestChanges,
            _ => Retry::Later,
        }
    }
}

impl std::fmt::Display for FailureCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// One thing that went wrong on the device: for which component, how, and in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: FailureCode,
    pub message: String,
    pub component: Option<ComponentName>,
}

/// A message must fit a report, whatever a runtime printed.
const MESSAGE_LENGTH_MAX: usize = 1000;

impl Failure {
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.len() > MESSAGE_LENGTH_MAX {
            // The end of what a program printed says more than its beginning.
            let cut = (message.len() - MESSAGE_LENGTH_MAX..message.len())
                .find(|&at| message.is_char_boundary(at))
                .unwrap_or(message.len());
            message = format!("…{}", &message[cut..]);
        }
        Failure { code, message, component: None }
    }

    pub fn of(mut self, component: &ComponentName) -> Self {
        self.component = Some(component.clone());
        self
    }
}
