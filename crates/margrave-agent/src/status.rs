//! What a technician wants to know on the spot, with or without a network, with or without a running agent.
//!
//! The ledger tells what should run and how it went; a running agent adds what it has not written down because it changes
//! all the time, and gives the whole to whoever connects to a socket in its data directory: one JSON object, the same
//! that `margrave-agent status --json` prints.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use margrave_core::device::{Assignment, Device, Health, Observation};
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::report::restarted;
use margrave_ledger::{Blobs, LedgerError, Recovery, StateFile};
use margrave_wire::document;
use margrave_wire::schedule::ScheduleBody;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::clock;
use crate::identity::{Form, Identity, IdentityError};
use crate::runtime::last_output;
use crate::socket;

/// What only a running agent knows.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub last_contact: Option<Moment>,
    pub trouble: Option<String>,
    pub runtime_trouble: Option<String>,
    /// Why what it knows is not on disk, and what that is.
    pub unwritten: Option<(String, Box<Device>)>,
    pub identity_notice: Option<String>,
    /// Until when this device talks to nobody, by its schedule.
    pub silent_until: Option<Moment>,
    pub overrides: Vec<String>,
    pub remarks: Vec<String>,
    /// What the last look saw, and when that was.
    pub seen: Vec<Observation>,
    pub seen_at: Option<Moment>,
    /// What only waits for others to be done.
    pub crowded_out: BTreeSet<AssignmentId>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// To its own memory, and for what runs: documents, archives, records.
    pub bytes_written: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub device: String,
    pub server: String,
    pub form: Form,
    pub certificate_expires: String,
    pub running: bool,
    /// It runs and could not be asked, so that what only it knows is missing here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unheard: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_contact: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_trouble: Option<String>,
    /// Why the device's memory cannot be written, while it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_trouble: Option<String>,
    /// What is wrong with this device's own identity, or will be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity_notice: Option<String>,
    pub manifest_version: u64,
    pub reports_waiting: usize,
    /// Who holds changes back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldStatus>,
    /// Why changes are not held back though an operator asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_refused: Option<String>,
    /// When it talks and changes, as the server said last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleBody>,
    /// Until when it talks to nobody, by that schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_until: Option<String>,
    /// What was set on the device itself, and goes before what the server says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<String>,
    /// What a person should know about what runs, though nothing is wrong with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// When it last looked at what runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked: Option<String>,
    pub deployments: Vec<DeploymentStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_received: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_written: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldStatus {
    pub holder: String,
    pub reason: String,
    pub since: String,
    pub until: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentStatus {
    pub id: String,
    pub name: String,
    pub state: String,
    pub since: String,
    /// What should run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<DocumentStatus>,
    /// What is here, or is being brought here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<DocumentStatus>,
    /// It is not wanted any more, and is to be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes: bool,
    pub attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The file that keeps what the container that failed last said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_output: Option<PathBuf>,
    /// What is wrong with what is here, while what is wanted has touched nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ailment: Option<String>,
    /// Why what is wanted has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// It runs in its former version, because the wanted one failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub went_back: bool,
    pub components: Vec<(String, String)>,
    /// How the last look found each component that is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seen: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentStatus {
    /// The first digits, as logs and the server's page have them.
    pub digest: String,
    /// The package's version, where the server says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl std::fmt::Display for DocumentStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.version {
            Some(version) => write!(f, "version {version}, document {}", self.digest),
            None => write!(f, "document {}", self.digest),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("the device's memory cannot be read")]
    Ledger(#[from] LedgerError),
    #[error(
        "the device's memory is damaged, so that nobody can tell what should run here. What runs is left alone; start the agent \
         (margrave-agent run), which asks the server anew"
    )]
    MemoryLost,
    #[error(
        "the agent was just started and starts over, because the device's memory is damaged; ask again in a moment"
    )]
    Starting,
}

/// What the agent on `data` says, or what it wrote down last if none runs.
pub async fn status(data: &Path) -> Result<Status, StatusError> {
    if let Some(status) = ask(data).await {
        return Ok(status);
    }
    let running = socket::is_running(data);
    match read(data, None) {
        // One that just started has not written down yet that it starts over.
        Err(StatusError::MemoryLost) if running => Err(StatusError::Starting),
        read => Ok(Status { running, unheard: running, ..read? }),
    }
}

/// What is on disk under `data`, with what a running agent knows besides.
fn read(data: &Path, live: Option<&Live>) -> Result<Status, StatusError> {
    let identity = Identity::load(data)?;
    let expires = identity.expires()?;
    let unwritten = live.and_then(|live| live.unwritten.as_ref());
    let device = match unwritten {
        Some((_, known)) => (**known).clone(),
        None => match StateFile::<Device>::open(&data.join("ledger"))? {
            // A running agent has started over, and knows what it was told since.
            (_, None, Recovery::StartedOver) if live.is_none() => return Err(StatusError::MemoryLost),
            (_, device, _) => device.unwrap_or_else(Device::blank),
        },
    };
    let blobs = Blobs::open(&data.join("documents"))?;

    let name_of = |assignment: &Assignment| {
        let documents = [assignment.wanted, assignment.here().held].into_iter().flatten();
        documents.filter_map(|document| told(&blobs, &identity.device_id, document).1).next()
    };
    let is_worked_on = |assignment: &Assignment| {
        matches!(assignment.state, State::Installing | State::Updating | State::RollingBack | State::Deleting)
    };
    // While it cannot look, nobody's turn comes.
    let looking = live.filter(|live| live.runtime_trouble.is_none());
    let is_crowded_out = |id: &AssignmentId| looking.is_some_and(|live| live.crowded_out.contains(id));
    let under_way = device
        .assignments()
        .iter()
        .filter(|(id, one)| !is_crowded_out(id) && is_worked_on(one))
        .filter_map(|(_, one)| name_of(one))
        .collect::<Vec<_>>();
    let mut deployments = vec![];
    for (id, assignment) in device.assignments() {
        let of = |document: Option<Digest>| document.map(|digest| told(&blobs, &identity.device_id, digest));
        // What was taken up and has touched nothing yet is not here.
        let here = assignment.here();
        let (wanted, held) = (of(assignment.wanted), of(here.held));
        let goes = assignment.wanted.is_none();
        let name = wanted.iter().chain(&held).find_map(|(_, name)| name.clone());
        let nameless = if goes { "(its document is not kept)" } else { "(document not here)" };
        let seen = live.iter().flat_map(|live| &live.seen).filter(|seen| seen.assignment == *id);
        let components = &assignment.components;
        // Of what it went back from, where that is so: it runs, and yet it is not as wanted.
        let failure = assignment.failure.as_ref().or(assignment.gave_up().map(|given_up| &given_up.failure));
        let said_in = last_output::file_in(data, *id);
        deployments.push(DeploymentStatus {
            last_output: failure
                .filter(|failure| last_output::tells_of(failure.code) && said_in.exists())
                .map(|_| said_in.clone()),
            id: id.to_string(),
            name: name.unwrap_or_else(|| nameless.to_owned()),
            state: assignment.state.to_string(),
            since: timestamp(assignment.since),
            wanted: wanted.map(|(document, _)| document),
            held: held.map(|(document, _)| document),
            goes,
            seen: seen.map(|seen| (seen.component.to_string(), words(seen))).collect(),
            attempt: assignment.attempt,
            next_try: assignment.next_try.map(timestamp),
            code: failure.map(|failure| failure.code.to_string()),
            reason: failure.map(|failure| failure.message.clone()),
            ailment: assignment.beneath().and_then(|here| Some(here.failure.as_ref()?.message.clone())),
            waiting: assignment
                .waiting
                .clone()
                .or_else(|| is_crowded_out(id).then(|| turn(&under_way)).flatten()),
            went_back: assignment.gave_up().is_some(),
            components: components
                .iter()
                .map(|c| (c.name.to_string(), c.state.as_str().to_owned()))
                .collect(),
        });
    }
    Ok(Status {
        device: identity.client_id.to_string(),
        server: identity.url.clone(),
        form: identity.form(),
        certificate_expires: timestamp(expires),
        running: live.is_some(),
        unheard: false,
        last_contact: live.and_then(|live| live.last_contact).or(device.contact().0).map(timestamp),
        trouble: live.and_then(|live| live.trouble.clone()),
        runtime_trouble: live.and_then(|live| live.runtime_trouble.clone()),
        memory_trouble: unwritten.map(|(why, _)| why.clone()),
        identity_notice: live.and_then(|live| live.identity_notice.clone()),
        manifest_version: device.accepted().map_or(0, |accepted| accepted.version),
        reports_waiting: device.outbox().len(),
        holds: device
            .holds(clock::now())
            .into_iter()
            .map(|hold| HoldStatus {
                holder: hold.holder.clone(),
                reason: hold.reason.clone(),
                since: timestamp(hold.since),
                until: timestamp(hold.until),
            })
            .collect(),
        hold_refused: device.hold_refused().map(str::to_owned),
        schedule: (!device.schedule().is_usual()).then(|| ScheduleBody::from(device.schedule())),
        silent_until: live.and_then(|live| live.silent_until).map(timestamp),
        overrides: live.map(|live| live.overrides.clone()).unwrap_or_default(),
        remarks: live.map(|live| live.remarks.clone()).unwrap_or_default(),
        looked: live.and_then(|live| live.seen_at).map(timestamp),
        deployments,
        bytes_sent: live.map(|live| live.bytes_sent),
        bytes_received: live.map(|live| live.bytes_received),
        bytes_written: live.map(|live| live.bytes_written),
    })
}

/// That nothing keeps it from going on but what is worked on now. The device says this to nobody else: it changes by the minute, and
/// each telling would be a write to flash.
fn turn(under_way: &[String]) -> Option<String> {
    let is = if under_way.len() == 1 { "is" } else { "are" };
    (!under_way.is_empty()).then(|| format!("waits for its turn: {} {is} worked on", under_way.join(", ")))
}

/// Which document that is, and the name of what it is about.
fn told(blobs: &Blobs, device: &DeviceId, digest: Digest) -> (DocumentStatus, Option<String>) {
    let document = blobs.read(&digest);
    let workload = document.and_then(|document| document::read_any(document.bytes(), device).ok());
    let version = workload.as_ref().and_then(|workload| workload.hints.package_version.clone());
    let name = workload.map(|workload| workload.name);
    (DocumentStatus { digest: digest.short(), version }, name)
}

fn words(seen: &Observation) -> String {
    let words = match &seen.health {
        Health::Healthy => "healthy",
        Health::Starting => "starting",
        other => other.complaint().unwrap_or_default(),
    };
    match seen.restarts {
        0 => words.to_owned(),
        times => format!("{words}; {}", restarted(times)),
    }
}

impl Status {
    /// Whether everything wanted is installed, as far as the device sees and remembers anything.
    pub fn converged(&self) -> bool {
        let as_wanted = |deployment: &DeploymentStatus| {
            deployment.state == "INSTALLED"
                && deployment.wanted == deployment.held
                && !deployment.went_back
                && deployment.waiting.is_none()
        };
        let sees = self.runtime_trouble.is_none() && self.memory_trouble.is_none();
        sees && self.deployments.iter().all(as_wanted)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "device        {}", self.device)?;
        writeln!(f, "server        {}", self.server)?;
        writeln!(f, "form          {}", self.form)?;
        writeln!(f, "certificate   until {}", self.certificate_expires)?;
        if let Some(notice) = &self.identity_notice {
            writeln!(f, "identity      {notice}")?;
        }
        let agent = match (self.running, self.unheard) {
            (true, false) => "running",
            (true, true) => "running, and does not answer (shown is what it wrote down last)",
            (false, _) => "not running (shown is what it wrote down last)",
        };
        writeln!(f, "agent         {agent}")?;
        if let Some(contact) = &self.last_contact {
            writeln!(f, "last contact  {contact}")?;
        }
        if let Some(trouble) = &self.trouble {
            writeln!(f, "trouble       {trouble}")?;
        }
        if let Some(trouble) = &self.runtime_trouble {
            writeln!(f, "runtime       {trouble}")?;
        }
        if let Some(trouble) = &self.memory_trouble {
            writeln!(f, "memory        {trouble}")?;
        }
        if let Some(looked) = &self.looked {
            writeln!(f, "last look     {looked}")?;
        }
        writeln!(f, "manifest      version {}", self.manifest_version)?;
        writeln!(f, "reports       {} waiting to be sent", self.reports_waiting)?;
        if let Some(until) = &self.silent_until {
            writeln!(f, "silent        by its schedule until {until}")?;
        }
        if let Some(windows) = self.schedule.as_ref().and_then(|schedule| schedule.windows.as_ref()) {
            writeln!(f, "changes       only {}", windows.join(" and "))?;
        }
        for words in &self.overrides {
            writeln!(f, "set here      {words}")?;
        }
        for remark in &self.remarks {
            writeln!(f, "remark        {remark}")?;
        }
        for HoldStatus { holder, reason, until, .. } in &self.holds {
            writeln!(f, "held back     by {holder} until {until}: {reason}")?;
        }
        if let Some(why) = &self.hold_refused {
            writeln!(f, "not held back though an operator asks for it: {why}")?;
        }
        if self.deployments.is_empty() {
            return writeln!(f, "\nNothing should run here.");
        }
        for deployment in &self.deployments {
            writeln!(f, "\n{:<12} {}  since {}", deployment.state, deployment.name, deployment.since)?;
            match (&deployment.wanted, &deployment.held) {
                (Some(wanted), Some(held)) if wanted == held => {
                    writeln!(f, "  should run, and is here: {wanted}")?
                }
                (wanted, held) => {
                    if let Some(wanted) = wanted {
                        writeln!(f, "  should run: {wanted}")?;
                    }
                    if deployment.goes {
                        writeln!(f, "  should not run any more: it is to be removed")?;
                    }
                    if let Some(held) = held {
                        writeln!(f, "  is here: {held}")?;
                    }
                }
            }
            for (name, state) in &deployment.components {
                writeln!(f, "  {state:<11} {name}")?;
            }
            for (name, health) in &deployment.seen {
                writeln!(f, "  seen: {name} {health}")?;
            }
            if deployment.went_back {
                writeln!(f, "             runs in its former version: the update failed and was given up")?;
            }
            if let Some(ailment) = &deployment.ailment {
                writeln!(f, "  what is here: {ailment}")?;
            }
            if let Some(waiting) = &deployment.waiting {
                writeln!(f, "  the change: {waiting}")?;
            }
            if let Some(reason) = &deployment.reason {
                let code = deployment.code.as_deref().unwrap_or("failed");
                writeln!(f, "  why: {reason} [{code}]")?;
            }
            if let Some(file) = &deployment.last_output {
                writeln!(f, "  what it last said: {}", file.display())?;
            }
            if let Some(next_try) = &deployment.next_try {
                writeln!(f, "  next try: {next_try} (attempt {} failed)", deployment.attempt)?;
            }
        }
        Ok(())
    }
}

pub fn timestamp(moment: Moment) -> String {
    let millis = i64::try_from(moment.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| "unknown".to_owned(), |t| format!("{t:.0}"))
}

/// Hundreds of deployments.
const STATUS_BYTES_MAX: u64 = 4 << 20;

fn door(data: &Path) -> PathBuf {
    data.join("agent.sock")
}

/// Answers every connection with one JSON object, for as long as the agent runs.
pub async fn serve(data: PathBuf, live: Arc<Mutex<Live>>) {
    // Until there is one, status works from the ledger.
    let listener = socket::listen(&door(&data), 0o600, None, socket::AGAIN_AFTER).await;
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let known = live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = match read(&data, Some(&known)).map(|status| serde_json::to_vec(&status)) {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the status could not be written");
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "the status could not be read");
                continue;
            }
        };
        // Who does not read is not waited for.
        let written = tokio::time::timeout(Duration::from_secs(1), stream.write_all(&text)).await;
        if !matches!(written, Ok(Ok(()))) {
            tracing::debug!("a status reader went away");
        }
    }
}

async fn ask(data: &Path) -> Option<Status> {
    let exchange = async {
        let stream = UnixStream::connect(door(data)).await.ok()?;
        let mut text = vec![];
        stream.take(STATUS_BYTES_MAX).read_to_end(&mut text).await.ok()?;
        serde_json::from_slice(&text).ok()
    };
    tokio::time::timeout(Duration::from_secs(2), exchange).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_technician_reads_what_should_run_what_is_here_and_what_was_seen() {
        let deployment = |more: serde_json::Value| {
            let mut one = json!({"id": "1", "name": "hello", "state": "INSTALLED", "since": "noon", "attempt": 0,
                "components": [["web", "installed"]]});
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            one
        };
        let (old, new) =
            (json!({"digest": "aaaa", "version": "1.0.0"}), json!({"digest": "bbbb", "version": "1.1.0"}));
        let status: Status = serde_json::from_value(json!({
            "device": "line-1", "server": "https://server", "form": "g2", "certificateExpires": "later", "running": true,
            "manifestVersion": 7, "reportsWaiting": 0, "looked": "just now",
            "deployments": [
                deployment(json!({"wanted": old, "held": old, "seen": [["web", "healthy"]]})),
                deployment(json!({"wanted": new, "held": old, "waiting": "held back",
                    "seen": [["web", "service web is paused"]]})),
                deployment(json!({"state": "PENDING", "goes": true, "components": []})),
                deployment(json!({"wanted": new, "held": old, "wentBack": true, "code": "start-failed",
                    "reason": "Service web exited with code 7.", "lastOutput": "/data/output/1.txt"})),
            ],
        }))
        .unwrap();
        let text = status.to_string();
        for line in [
            "last look     just now",
            "  should run, and is here: version 1.0.0, document aaaa",
            "  seen: web healthy",
            "  should run: version 1.1.0, document bbbb",
            "  is here: version 1.0.0, document aaaa",
            "  seen: web service web is paused",
            "  should not run any more: it is to be removed",
            "  what it last said: /data/output/1.txt",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn one_that_runs_and_could_not_be_asked_is_told_from_one_that_does_not_run() {
        let shown = |more: serde_json::Value| {
            let mut one = json!({"device": "line-1", "server": "https://server", "form": "g2", "certificateExpires": "later",
                "manifestVersion": 7, "reportsWaiting": 0, "deployments": []});
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<Status>(one).unwrap().to_string()
        };
        assert!(shown(json!({"running": true})).contains("agent         running\n"));
        assert!(
            shown(json!({"running": true, "unheard": true})).contains("running, and does not answer (shown")
        );
        assert!(shown(json!({"running": false})).contains("agent         not running (shown"));
    }
}
