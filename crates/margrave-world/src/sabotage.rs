//! Deliberate bugs, told by the simulated parts and the shell around the core: they prove that the checks bite.

use crate::check::Check;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sabotage {
    /// The shell acts before the intent is on disk.
    ActsBeforeWriting,
    /// The shell hands another order to the runtime than the one that was verified.
    RunsUnverified,
    /// The engine throws volumes away when it replaces a container.
    UpdateDeletesVolumes,
    /// The shell restarts every container when the server answers again.
    RestartsOnReconnect,
    /// The engine starts the new container and leaves the old one running.
    StartsBesideOld,
    /// The engine gives the old container the new label, and lets it run on.
    RelabelsOld,
    /// The shell tells the core that a component is up without asking the runtime.
    ClaimsInstalled,
    /// The ledger comes back from a crash as it was some writes ago.
    LedgerForgets,
    /// Somebody on the way gives an old manifest a new number.
    ReplayRenumbered,
    /// The shell says that reports were sent, and sends none of some.
    DropsReports,
    /// The shell says of the first report that something newer is installed that it was sent, and does not send it.
    LosesGoodNews,
    /// Somebody on the way gives an old report a new number.
    LateReportRenumbered,
    /// The ledger comes back from a crash with an assignment in another state.
    StateSkips,
    /// The engine says that something is removed, hides it, and lets it run.
    HidesRemoved,
    /// The shell takes a refusal for an empty manifest.
    RefusalDeletes,
    /// The shell stops what runs when its certificate expires.
    StopsOnExpiry,
    /// The shell loses what became of some of what it asked the engine for.
    LosesOutcomes,
    /// The server goes back to an older database, and nobody says so.
    ServerForgets,
    /// The shell says that it told that something is gone, and did not.
    DropsDeaths,
    /// The shell reads every document as if it forbade to go back.
    NeverGoesBack,
    /// The server answers with 500 now and then.
    ServerFails,
    /// The shell takes no notice of windows.
    ChangesAnyway,
    /// The ledger comes back from a crash without what holds changes back.
    HoldsForgotten,
    /// The ledger comes back from a crash without what was given up.
    GivenUpForgotten,
    /// The shell talks to the server when it may not.
    TalksAnyway,
    /// The shell prolongs what holds changes back whenever it is about to end.
    HoldsForEver,
    /// The shell does not understand that drift is to be left.
    RepairsAnyway,
    /// The shell never hears that a first install failed which cannot succeed.
    LosesFailures,
    /// The shell takes every look at what fell ill, and was not tried again yet, for a good one.
    ImaginesRecovery,
    /// The shell takes every look at what failed and does not run for a good one.
    ImaginesRunning,
    /// Somebody lets every rollout go on that was stopped.
    ResumesAnyway,
    /// The server never looks at its rollouts.
    RolloutsStandStill,
    /// The shell reads documents as an older agent did, after it was replaced by a newer one.
    ReplacedUnderstandsNoMore,
    /// The shell tells an engine that is away as a component that does not start.
    BlamesTheUpdate,
    /// The shell reports without the document that is installed.
    KeepsTheDocumentBack,
}

pub const SABOTAGES: &[Sabotage] = &[
    Sabotage::ActsBeforeWriting,
    Sabotage::RunsUnverified,
    Sabotage::UpdateDeletesVolumes,
    Sabotage::RestartsOnReconnect,
    Sabotage::StartsBesideOld,
    Sabotage::RelabelsOld,
    Sabotage::ClaimsInstalled,
    Sabotage::LedgerForgets,
    Sabotage::ReplayRenumbered,
    Sabotage::DropsReports,
    Sabotage::LosesGoodNews,
    Sabotage::LateReportRenumbered,
    Sabotage::StateSkips,
    Sabotage::HidesRemoved,
    Sabotage::RefusalDeletes,
    Sabotage::StopsOnExpiry,
    Sabotage::LosesOutcomes,
    Sabotage::ServerForgets,
    Sabotage::DropsDeaths,
    Sabotage::NeverGoesBack,
    Sabotage::ServerFails,
    Sabotage::ChangesAnyway,
    Sabotage::HoldsForgotten,
    Sabotage::GivenUpForgotten,
    Sabotage::TalksAnyway,
    Sabotage::HoldsForEver,
    Sabotage::RepairsAnyway,
    Sabotage::LosesFailures,
    Sabotage::ImaginesRecovery,
    Sabotage::ImaginesRunning,
    Sabotage::ResumesAnyway,
    Sabotage::RolloutsStandStill,
    Sabotage::ReplacedUnderstandsNoMore,
    Sabotage::BlamesTheUpdate,
    Sabotage::KeepsTheDocumentBack,
];

impl Sabotage {
    /// The check that has to catch it.
    pub fn caught_by(self) -> Check {
        match self {
            Sabotage::ActsBeforeWriting => Check::IntentFirst,
            Sabotage::RunsUnverified => Check::NothingUnverifiedRuns,
            Sabotage::UpdateDeletesVolumes => Check::VolumesSurvive,
            Sabotage::RestartsOnReconnect | Sabotage::StopsOnExpiry => Check::AsDesiredIsLeftAlone,
            Sabotage::StartsBesideOld | Sabotage::RelabelsOld => Check::NeverTwoVersions,
            Sabotage::ClaimsInstalled
            | Sabotage::ImaginesRecovery
            | Sabotage::ImaginesRunning
            | Sabotage::KeepsTheDocumentBack => Check::InstalledIsBacked,
            Sabotage::LedgerForgets => Check::VersionNeverGoesBack,
            Sabotage::ReplayRenumbered | Sabotage::RefusalDeletes => Check::AcceptedWasPublished,
            Sabotage::DropsReports | Sabotage::LosesGoodNews => Check::LatestReportArrives,
            Sabotage::LateReportRenumbered => Check::PictureIsTheDevices,
            Sabotage::StateSkips => Check::OnlyLegalTransitions,
            Sabotage::HidesRemoved => Check::RunsWhatIsWanted,
            Sabotage::LosesOutcomes
            | Sabotage::LosesFailures
            | Sabotage::ReplacedUnderstandsNoMore
            | Sabotage::BlamesTheUpdate => Check::Converges,
            Sabotage::ServerForgets => Check::PictureNeverMovesBack,
            Sabotage::DropsDeaths => Check::ServerAgrees,
            Sabotage::NeverGoesBack => Check::FailedUpdateGoesBack,
            Sabotage::ServerFails => Check::NothingBreaks,
            Sabotage::ChangesAnyway | Sabotage::HoldsForgotten => Check::ChangesWait,
            Sabotage::GivenUpForgotten => Check::GivenUpStays,
            Sabotage::TalksAnyway => Check::QuietIsKept,
            Sabotage::HoldsForEver => Check::HoldsEnd,
            Sabotage::RepairsAnyway => Check::DriftIsLeft,
            Sabotage::ResumesAnyway => Check::RolloutsAreKept,
            Sabotage::RolloutsStandStill => Check::RolloutsEnd,
        }
    }

    pub fn name(self) -> String {
        format!("{self:?}")
    }
}
