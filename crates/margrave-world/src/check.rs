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
    /// Never two containers of one component; and once a document is said to be installed, nothing runs of another one, as far as
    /// the device can know of it.
    NeverTwoVersions,
    /// No volume ever goes: today's policy keeps them, also on removal.
    VolumesSurvive,
    /// INSTALLED is reached with a document of which the runtime said that every component is up, and of none that it last
    /// said is ill or gone.
    InstalledIsBacked,
    /// What was well and as desired is not stopped, replaced or restarted by the agent.
    AsDesiredIsLeftAlone,
    /// The server's picture of an assignment never moves to an earlier report.
    PictureNeverMovesBack,
    /// The server's picture is something that the device said.
    PictureIsTheDevices,
    /// The core does not panic, and the server answers no request with 500.
    NothingBreaks,
    /// What was tried and given up is not begun with again before the manifest's entry changes.
    GivenUpStays,
    /// Nothing is installed, updated or removed outside the windows that the device was told, where it has any in the first minutes
    /// of its machine, or while somebody holds changes back. What was begun is finished, what runs is mended, and a failed update
    /// is gone back from at any time.
    ChangesWait,
    /// Nobody is talked to outside the hours that the device was told, or in a downtime, as its own clock sees it.
    QuietIsKept,
    /// Changes are never held back for longer than the longest that the device was told.
    HoldsEnd,
    /// Where drift is to be left, what somebody added to what runs is not taken away, and what somebody stopped, removed or
    /// changed is not started again.
    DriftIsLeft,
    /// What goes to one device after the other reaches nobody while somebody holds it up, and nobody further once it failed.
    RolloutsAreKept,

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
    /// Every rollout is done, or stands because somebody or something stopped it.
    RolloutsEnd,
}

/// All of them: each has a deliberate bug that it catches.
pub const CHECKS: &[Check] = &[
    Check::NothingUnverifiedRuns,
    Check::AcceptedWasPublished,
    Check::VersionNeverGoesBack,
    Check::OnlyLegalTransitions,
    Check::IntentFirst,
    Check::NeverTwoVersions,
    Check::VolumesSurvive,
    Check::InstalledIsBacked,
    Check::AsDesiredIsLeftAlone,
    Check::PictureNeverMovesBack,
    Check::PictureIsTheDevices,
    Check::NothingBreaks,
    Check::GivenUpStays,
    Check::ChangesWait,
    Check::QuietIsKept,
    Check::HoldsEnd,
    Check::DriftIsLeft,
    Check::RolloutsAreKept,
    Check::Converges,
    Check::RunsWhatIsWanted,
    Check::FailedUpdateGoesBack,
    Check::LatestReportArrives,
    Check::ServerAgrees,
    Check::RolloutsEnd,
];

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
            Check::GivenUpStays => "given-up-stays",
            Check::ChangesWait => "changes-wait",
            Check::QuietIsKept => "quiet-is-kept",
            Check::HoldsEnd => "holds-end",
            Check::DriftIsLeft => "drift-is-left",
            Check::RolloutsAreKept => "rollouts-are-kept",
            Check::Converges => "converges",
            Check::RunsWhatIsWanted => "runs-what-is-wanted",
            Check::FailedUpdateGoesBack => "failed-update-goes-back",
            Check::LatestReportArrives => "latest-report-arrives",
            Check::ServerAgrees => "server-agrees",
            Check::RolloutsEnd => "rollouts-end",
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
