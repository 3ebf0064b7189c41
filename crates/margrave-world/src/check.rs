//! What must always hold, by name, and how a broken promise is told.

use margrave_core::id::DeviceId;

/// One promise. The first group is asked after every step, the second once the faults have stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// What runs was in a document whose digest stood in a manifest that the server published for this device.
    NothingUnverifiedRuns,
    /// What a device takes for desired is a manifest that the server published for it, byte for byte.
    AcceptedWasPublished,
    /// A device never accepts an older manifest than it had, also not after a crash.
    VersionNeverGoesBack,
    /// Every change of state is in the table, and is reported.
    OnlyLegalTransitions,
    /// Nothing is done to containers whose intent is not on disk.
    IntentFirst,
    /// Never two containers of one component.
    NeverTwoVersions,
    /// No volume ever goes: today's policy keeps them, also on removal.
    VolumesSurvive,
    /// INSTALLED is said of a document of which the runtime said that every component is up.
    InstalledIsBacked,
    /// What was well and as desired is not stopped, replaced or restarted by the agent.
    AsDesiredIsLeftAlone,
    /// The server's picture of an assignment never moves to an earlier report.
    PictureNeverMovesBack,
    /// The server's picture is something that the device said.
    PictureIsTheDevices,
    /// The core does not panic, and the server answers no request with 500.
    NothingBreaks,

    /// Everything wanted is installed, or has honestly failed.
    Converges,
    /// Exactly that runs, and nothing else.
    RunsWhatIsWanted,
    /// A bad update ends on the last good document.
    FailedUpdateGoesBack,
    /// Nothing waits in an outbox, and the server has the newest report of each assignment.
    LatestReportArrives,
    /// The server's picture is how it is on the device, and nothing that is gone is waited for.
    ServerAgrees,
}

impl Check {
    pub fn name(self) -> &'static str {
        match self {
            Check::NothingUnverifiedRuns => "nothing-unverified-runs",
            Check::AcceptedWasPublished => "accepted-was-published",
            Check::VersionNeverGoesBack => "version-never-goes-back",
            Check::OnlyLegalTransitions => "only-legal-transitions",
            Check::IntentFirst => "intent-first",
            Check::NeverTwoVersions => "never-two-versions",
            Check::VolumesSurvive => "volumes-survive",
            Check::InstalledIsBacked => "installed-is-backed",
            Check::AsDesiredIsLeftAlone => "as-desired-is-left-alone",
            Check::PictureNeverMovesBack => "picture-never-moves-back",
            Check::PictureIsTheDevices => "picture-is-the-devices",
            Check::NothingBreaks => "nothing-breaks",
            Check::Converges => "converges",
            Check::RunsWhatIsWanted => "runs-what-is-wanted",
            Check::FailedUpdateGoesBack => "failed-update-goes-back",
            Check::LatestReportArrives => "latest-report-arrives",
            Check::ServerAgrees => "server-agrees",
        }
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} ({who}): {what}", check.name())]
pub struct Violation {
    pub check: Check,
    pub who: String,
    pub what: String,
}

impl Violation {
    pub fn new(check: Check, who: impl Into<String>, what: impl Into<String>) -> Violation {
        Violation { check, who: who.into(), what: what.into() }
    }

    pub fn of(check: Check, device: &DeviceId, what: impl Into<String>) -> Violation {
        Violation::new(check, device.as_str(), what)
    }
}
