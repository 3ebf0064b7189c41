//! What can go wrong, by name, and how often it did.

use std::collections::BTreeMap;

/// Everything that the world does to server and devices; counted, so that a run can say what it tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    RequestLost,
    AnswerLost,
    Delayed,
    Duplicated,
    Late,
    Cut,
    Corrupted,
    Replayed,
    Outage,
    ServerRestarted,
    ServerRestored,
    CertificateExpired,
    ClockJumped,
    AgentKilled,
    WriteLost,
    WriteTorn,
    DocumentDamaged,
    DiskFull,
    PowerCut,
    EngineAway,
    ActFailed,
    ActHung,
    ArchiveBad,
    PullSlow,
    SaidDoneWasNot,
    SaidFailedWasDone,
    LookedWrong,
    ContainerKilled,
    ContainerRemoved,
    ContainerChanged,
    ContainerAdded,
    ContainerIll,
    AgentReplaced,
}

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Fault::RequestLost => "request lost",
            Fault::AnswerLost => "answer lost",
            Fault::Delayed => "message delayed",
            Fault::Duplicated => "request duplicated",
            Fault::Late => "old request arrived late",
            Fault::Cut => "body cut",
            Fault::Corrupted => "bytes corrupted",
            Fault::Replayed => "old manifest replayed",
            Fault::Outage => "network outage",
            Fault::ServerRestarted => "server restarted",
            Fault::ServerRestored => "server restored from a backup",
            Fault::CertificateExpired => "certificate expired",
            Fault::ClockJumped => "clock jumped",
            Fault::AgentKilled => "agent killed",
            Fault::WriteLost => "ledger write lost",
            Fault::WriteTorn => "ledger write torn",
            Fault::DocumentDamaged => "document damaged on disk",
            Fault::DiskFull => "disk full",
            Fault::PowerCut => "power cut",
            Fault::EngineAway => "engine away",
            Fault::ActFailed => "act failed",
            Fault::ActHung => "act hung",
            Fault::ArchiveBad => "archive not sound",
            Fault::PullSlow => "download took minutes",
            Fault::SaidDoneWasNot => "said done, was not",
            Fault::SaidFailedWasDone => "said failed, was done",
            Fault::LookedWrong => "look was wrong",
            Fault::ContainerKilled => "container killed by hand",
            Fault::ContainerRemoved => "container removed by hand",
            Fault::ContainerChanged => "container changed by hand",
            Fault::ContainerAdded => "container added by hand",
            Fault::ContainerIll => "container fell ill",
            Fault::AgentReplaced => "agent replaced by a newer one",
        }
    }

    /// Whether it makes honest work on a component fail, so that giving an update up may be right. An engine that is away, a disk
    /// that is full and power that goes make it fail, too, and are waited for.
    pub fn hurts_work(self) -> bool {
        matches!(
            self,
            Fault::ActFailed
                | Fault::ActHung
                | Fault::ArchiveBad
                | Fault::SaidDoneWasNot
                | Fault::SaidFailedWasDone
                | Fault::LookedWrong
                | Fault::ContainerKilled
                | Fault::ContainerRemoved
                | Fault::ContainerChanged
                | Fault::ContainerIll
        )
    }
}

#[derive(Debug, Clone, Default)]
pub struct Tally(BTreeMap<Fault, u64>);

impl Tally {
    pub fn note(&mut self, fault: Fault) {
        *self.0.entry(fault).or_default() += 1;
    }

    pub fn add(&mut self, other: &Tally) {
        for (fault, count) in &other.0 {
            *self.0.entry(*fault).or_default() += count;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        self.0.iter().map(|(fault, count)| (*fault, *count))
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.0.contains_key(&fault)
    }
}
