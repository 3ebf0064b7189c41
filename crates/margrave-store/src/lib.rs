//! The server's memory, in domain verbs, on SQLite.
//!
//! This crate owns what must survive a restart: clients and their manifests, documents and bundles,
//! deployments, reports, events, tokens. Every verb that changes something answers only after the change
//! is on disk; many callers share one commit. It deliberately decides nothing about *what* should run:
//! callers bring finished documents and manifests, and the store refuses those that were made from an
//! outdated picture (compare-and-swap on revision and manifest version).
//!
//! Start with [`Store`]; `publication.rs` is the heart, `assignment.rs` the meaning of a row, `writer.rs`
//! the group commit. The verbs know no SQLite-specific type in their signatures, so that PostgreSQL can
//! stand beside it; `tests/` is the contract that both must keep.

mod applied;
mod archive;
mod asked;
mod assignment;
mod audit;
mod backup;
mod basis;
mod begun;
mod candidate;
mod capabilities;
mod client;
mod column;
mod connection;
mod counting;
mod deployment;
mod device;
mod error;
mod event;
mod finding;
mod git;
mod histogram;
mod lineup;
mod named;
mod operator;
mod origin;
mod package;
mod publication;
mod registry;
mod report;
mod revision;
mod rollout;
mod schedule;
mod signature;
mod signed;
mod sql;
mod store;
mod token;
mod trouble;
mod watch;
mod writer;

pub use applied::{AppliedRecord, GoneBack};
pub use archive::{DepartedRecord, TransitionRecord};
pub use asked::AskedRecord;
pub use assignment::{
    Apart, AssignmentCount, AssignmentRecord, Behind, HeldAssignment, HeldBack, Scope, Standpoint,
    UnspokenRemoval,
};
pub use audit::{AuditFilter, AuditRecord};
pub use backup::{CopyError, Restored, check_copy, copy_closed, mark_restored, schema_known};
pub use basis::Basis;
pub use begun::Begun;
pub use candidate::Candidate;
pub use capabilities::{CapabilitiesError, NewCapabilities};
pub use client::{ClientRecord, Standing};
pub use counting::{Counted, FleetCounts, SiteCounts};
pub use deployment::DeploymentRecord;
pub use device::{Condition, DeviceRecord};
pub use error::{Error, OpenError};
pub use event::{Event, NewEvent};
pub use finding::{DeviceFilter, Silence};
pub use git::{GitError, GitHolder, GitRecord, GitTokenRecord, GitVersion, NewGitToken};
pub use histogram::{Distribution, Histogram};
pub use lineup::LinedRecord;
pub use margrave_core::observed::{Observed, Outlook, Verdict};
pub use operator::{
    NewOperatorToken, NewTokenError, OperatorTokenRecord, RevokeError, SessionRecord, TOKENS_MAX,
    VOID_KEPT_MS,
};
pub use origin::OriginRecord;
pub use package::{PackageError, PackageRecord, ResourceRecord};
pub use publication::{
    AssignmentChange, ClientPicture, ClientPublication, Head, Intent, MisfitRecord, NewManifest, Part,
    Publication, PublishError, WantedAssignment,
};
pub use registry::{REGISTRIES_MAX, RegistryCredentials, RegistryRecord};
pub use report::{Recorded, ReportError, VERSION_LEAP_MAX};
pub use revision::RevisionRecord;
pub use rollout::{
    MemberRecord, NewMember, RolloutChange, RolloutRecord, RolloutState, RolloutUpdate, WaitingRecord,
};
pub use schedule::{SCHEDULES_MAX, ScheduleRecord};
pub use signature::UsedSignature;
pub use signed::{
    Admission, AdmissionError, MOVE_UNWRITTEN, NewSigned, Onboarded, PENDING_MAX, SignedRecord,
};
pub use store::{Options, Store, StoreLoad};
pub use token::{JoinError, NewJoinToken, OpenJoinToken, Redeemed, UnnotedJoin};
pub use trouble::{Failing, Failure, likeness};
pub use watch::{TagRecord, WATCHES_MAX, WatchRecord, WatchTurn};

/// Whether something is new or was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    Created,
    Updated,
}
