//! Bodies of the operator interface, `/api/operator/v1`, shared by server, command line and tests.
//!
//! Identifiers travel as text here and are parsed into domain types at the edge, so that a bad one gets
//! an answer that names the field.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod catalog;

use crate::problem::Backoff;
use crate::schedule::ScheduleBody;

mod access;
mod deployment;
mod device;
mod following;
mod package;
mod secret;
mod waiting;
mod why;

pub use access::{AuditEntry, CreateToken, CreatedToken, EndedSessions, Token};
pub use catalog::*;
pub use deployment::{
    AssignmentCounts, Deployment, Misfit, Override, Preview, PreviewFit, PutDeployment, RevertDeployment,
    Revision, Rollback, Targets, Warning,
};
pub use device::{CannotLook, Hold, HoldDevice, Look};
pub use following::Following;
pub use package::{
    AddPackage, Package, PackageComponent, PackageImage, PackageProfile, PackageSection, PackageSetting,
};
pub use secret::{SealSecret, SealedSecret, SealedText};
pub use waiting::Waiting;
pub use why::{Cause, CauseGroup, Why, WhyKind};

/// Where the operator interface lives.
pub const PREFIX: &str = "/api/operator/v1";

/// The fleet at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetStatus {
    pub devices: DeviceCounts,
    /// Assignments by state, every state present: `{"PENDING": 0, …}`. Those that wait for their turn in a rollout are under
    /// `WAITING`, those that an aborted one left behind under `LEFT`, those that their devices refuse under `NEVER`, and those that are
    /// pending on devices that are not heard of under `NOTYET`.
    pub assignments: BTreeMap<String, u64>,
    /// Of those under `FAILED`, how many their devices do not try again by themselves: each waits for a person.
    #[serde(default)]
    pub given_up: u64,
    pub packages: u64,
    pub deployments: u64,
    pub server_version: String,
    /// Set when this is `margrave demo`: what is real and what is simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demo: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceCounts {
    pub total: u64,
    /// Everything wanted is installed at the wanted revision.
    pub converged: u64,
    pub pending: u64,
    pub failed: u64,
    /// No contact for longer than expected.
    pub silent: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// How commands address it, such as `line-1`, `gw/child` or `client:device`.
    pub id: String,
    pub client: String,
    /// How its client speaks: `g2` (mutual TLS) or `g1` (signed requests).
    pub form: String,
    /// `accepted` or `retired`.
    pub standing: String,
    /// By how much its clock was ahead of the server's when it last reported (behind, if less than nothing); absent where it
    /// was about right, or where a report that was under way for long says nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ahead_seconds: Option<i64>,
    /// `converged`, `pending`, `failed`, `silent` or `retired`; the worst that applies.
    pub condition: String,
    /// The one true reason that it is not converged, when it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub simulated: bool,
    /// Labels that operators gave; devices report their own in `capabilities`.
    pub labels: BTreeMap<String, String>,
    /// Capabilities as the device reported them; absent until it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub capabilities: Option<serde_json::Value>,
    /// RFC 3339, as all times here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_contact: Option<String>,
    pub manifest_version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_expires: Option<String>,
    /// When it talks and changes, where that is not as usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleBody>,
    /// What is wrong with what was chosen about that in several places; only where one device is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_conflict: Option<String>,
    /// Who holds changes back at the device, the longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<Hold>,
    /// It is in contact and cannot look at its containers, so what it said of them last may not hold any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cannot_look: Option<CannotLook>,
    /// What operators asked of it; whether it does so, `holds` and `done` say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_hold: Option<Hold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_look: Option<Look>,
    /// Whether it runs our own agent, which alone understands what is asked so; absent until it has said what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_agent: Option<bool>,
    pub assignments: Vec<Assignment>,
}

/// One deployment on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    /// The id that the device sees.
    pub id: String,
    pub deployment: String,
    pub device: String,
    pub package: String,
    /// The version that is wanted there.
    pub version: String,
    /// The version that runs, where it is another one and the server knows which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<String>,
    /// One of the eight states, such as `INSTALLED`.
    pub state: String,
    /// Whether `state` speaks of the revision that is wanted now, or still of an older one.
    pub current: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
    pub components: Vec<ComponentStatus>,
    pub attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<String>,
    /// A rollout holds the device back; the state is that of what it keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// It is no longer wanted on this device, which has not said yet that it is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentStatus {
    pub name: String,
    /// One of the standard's six states, such as `installed`.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
    /// How often the engine brought its containers back since they were started; left out where the device said of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorDetail {
    pub code: String,
    pub source: String,
    pub message: String,
}

/// One step in an assignment's life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transition {
    pub at: String,
    pub state: String,
    pub manifest_version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
}

/// A device that had a deployment and does not have it any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Departed {
    pub device: String,
    /// When that was over: the device said that it is gone, or was retired.
    pub ended_at: String,
}

/// How the server stands to the repository that says what is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// The commit that is applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    /// Who brought the commit here, where that is not its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The remote that is followed; changes are made there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
    /// How that is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub following: Option<Following>,
    /// Since when that remote gives no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_since: Option<String>,
    /// Why not, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_because: Option<String>,
    /// Why the repository is not followed until somebody decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
    /// Deployments that the server took back after a rollout failed, and that are so until a newer commit of the remote says
    /// something else about them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone_back: Vec<crate::intent::GoneBack>,
    /// What is wrong with a commit that is not applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flaws: Vec<crate::resource::Flaw>,
    /// How many commits of the remote are not applied because of that, the newest among them; 0 where there are none, or more than
    /// are counted.
    #[serde(default)]
    pub commits_waiting: u64,
}

/// What was chosen for the fleet, a label or a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ScheduleChoice)]
pub struct Schedule {
    /// For whom: `fleet`, `label:KEY=VALUE` or `device:NAME`.
    pub reach: String,
    pub schedule: ScheduleBody,
    pub changed_at: String,
    pub changed_by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateJoinToken {
    /// The device's name; made up by the server when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How long it may be used; one day when left out, 30 days at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_seconds: Option<u64>,
    /// The device may set itself to Git: it then has a repository of its own to pull from.
    #[serde(default)]
    pub git: bool,
}

/// The token itself is shown this once and stored only as a hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinToken {
    pub device: String,
    pub token: String,
    pub expires: String,
    /// The server's address and pin, as `margrave-agent join` wants them.
    pub url: String,
    pub pin: String,
    /// Ready to paste on the device.
    pub command: String,
}

/// A join token that nobody has used yet. What it is was shown once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenJoinToken {
    /// What the device will be called.
    pub device: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub created: String,
    pub created_by: String,
    pub expires: String,
}

/// Wanted: a Git repository for a device, and with `rotate` a new token for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutGit {
    /// Makes a new token where there is one; without it, what is there stays.
    #[serde(default)]
    pub rotate: bool,
    /// How long the tokens of before still work; they end at once when left out, and after 30 days at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
}

/// A device's read-only Git repository.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitRepository {
    pub device: String,
    /// What to clone.
    pub url: String,
    pub branch: String,
    /// For Basic; any other name does as well.
    pub username: String,
    /// Shown this once, when it is made; stored only as a hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    pub since: String,
    /// The newest manifest version; each has a commit.
    pub version: u64,
    /// What opens it at this moment.
    pub tokens: Vec<GitTokenUse>,
    /// The authority behind this address, PEM: for `http.sslCAInfo`.
    pub authority: String,
}

impl std::fmt::Debug for GitRepository {
    /// A token in a log is a token lost.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GitRepository")
            .field("device", &self.device)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// A token that opens a Git repository, without the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitTokenUse {
    /// `operator` when it was shown to one, `device` when the device asked for it itself.
    pub holder: String,
    pub created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SetLabels {
    /// A value of `null` removes the label.
    pub labels: BTreeMap<String, Option<String>>,
}

/// Somebody who signs requests (g1), or asked to be let in to do so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SignedClient {
    /// The id that the client was given, or will be when it is accepted.
    pub client: String,
    /// `pending`, `accepted` or `rejected`.
    pub decision: String,
    /// SHA-256 of the public key, in hexadecimal: to be compared with what the device shows.
    pub fingerprint: String,
    /// The kind of key, such as `ECDSA P-256`.
    pub key: String,
    /// Whom the certificate speaks of. Anybody can write anything there; only the fingerprint counts.
    pub subject: String,
    pub certificate_expires: String,
    pub first_seen: String,
    pub last_seen: String,
    /// Where it last asked from; absent when an operator brought the certificate and it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The device that took its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<String>,
}

/// Lets a device in by its certificate, also before it first asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcceptCertificate {
    /// In PEM.
    pub certificate: String,
}

/// Moves a device of the signed interface (g1) to one that joined by mutual TLS (g2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MoveDevice {
    /// The device that takes its place.
    pub to: String,
}

/// A change, as streamed by `GET /events` and kept for the timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    pub sequence: u64,
    pub at: String,
    /// Such as `assignment.state`, `device.joined`, `deployment.changed`.
    pub kind: String,
    pub actor: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    pub text: String,
}

/// The authority behind the fleet's certificates, and how far its rotation is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityStatus {
    pub trust_domain: String,
    /// The number of the published trust bundle; every change has a higher one.
    pub sequence: u64,
    /// `settled`; `announced` while devices learn of the next authority; `switched` while the former one is still
    /// trusted.
    pub phase: String,
    pub issuing: AuthorityCertificate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<AuthorityCertificate>,
    /// When the next one begins to issue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<AuthorityCertificate>,
    /// Accepted devices whose newest certificate is still one of the former authority.
    pub devices_left: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityCertificate {
    /// SHA-256 of the certificate.
    pub fingerprint: String,
    pub expires: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RotateAuthority {
    /// How long devices have to learn of the next authority before it issues; a day when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch_after_seconds: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetireAuthority {
    /// Also while devices depend on it; they are out until they join again.
    #[serde(default)]
    pub force: bool,
}

/// An error, sent as `application/problem+json` (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Stable, for programs: `urn:margrave:problem:` and a name such as `not-found`.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    /// What is wrong and what to do about it.
    pub detail: String,
    /// The path that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Whether the same request may succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// As the `Retry-After` header says; other times for others, so that not all come back together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_strategy: Option<Backoff>,
    /// Every broken rule, when the request was understood but may not be carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// The devices that do not fit, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub misfits: Vec<Misfit>,
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    /// A JSON Pointer such as `/parameters/greeting`; empty for the whole.
    pub place: String,
    pub rule: String,
    pub message: String,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Pass as `after` to read on; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Where a command line finds its server: written by `serve`, `demo` and `login`, read by every command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Context {
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    pub token: String,
}
