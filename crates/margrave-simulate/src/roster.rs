//! Who the simulated devices are: joined once through the server's identity service, kept in a directory.
//!
//! `fleet.json` says which server they belong to; `members.jsonl` has a line for every identity, and a later
//! line for the same device replaces an earlier one, so that a renewal is one append. A line that was cut off
//! when the power went is not there; its device joins again. The files hold private keys, and only their
//! owner can read them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use margrave_core::id::ClientId;
use margrave_http::{Client, Limits, Origin, Request, Scheme, Trust};
use margrave_identity::bundle::Bundle;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::pin::Pin;
use margrave_identity::proof::prove;
use margrave_identity::svid::Svid;
use margrave_identity::tls::{device_client_config, pinned_client_config};
use margrave_wire::identity::{
    JOIN_PATH, JoinRequest, JoinResponse, JwkSet, RENEW_PATH, RenewRequest, RenewResponse,
};
use margrave_wire::problem::Problem;
use rustls::ClientConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::clock::{self, Dice};
use crate::operator::{Operator, OperatorError, TOGETHER};

/// One address has about 28,000 ports to dial one server from, and a device may need two for a while.
pub const MEMBERS_MAX: usize = 25_000;
/// What labels every member, so that operators can deploy to all of them and to nobody else.
pub const LABEL: &str = "simulation";

const HOME: &str = "fleet.json";
const MEMBERS: &str = "members.jsonl";
/// An identity takes two kilobytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
const HOME_BYTES_MAX: u64 = 1 << 20;
/// Signing one certificate takes a millisecond; the rest is for a server under load.
const TIME_MAX: Duration = Duration::from_secs(60);
/// A server under load may ask for patience, or drop a connection: one join is tried so often.
const ATTEMPTS_MAX: u32 = 5;

#[derive(Debug, thiserror::Error)]
pub enum RosterError {
    #[error("{path} could not be {doing}; check that this user may write there")]
    File {
        path: PathBuf,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{0} is in use by another simulation; stop that one, or choose another directory")]
    InUse(PathBuf),
    #[error("{0} is damaged; remove the directory to begin anew, after retiring its devices at the server")]
    Damaged(PathBuf, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{path} holds devices of {theirs}, not of {ours}; choose another directory for this server")]
    OtherServer { path: PathBuf, theirs: String, ours: String },
    #[error(
        "the server does not know {device}, which joined under its address: it is not the server that the devices in {path} belong to"
    )]
    Unknown { path: PathBuf, device: ClientId },
    #[error("{0} devices are more than one machine can simulate; {MEMBERS_MAX} is the most")]
    TooMany(usize),
    #[error("the server could not be asked for the devices that it has")]
    Ask(#[source] OperatorError),
    #[error("no devices have joined yet")]
    Empty,
    #[error("no token could be had for {0}")]
    Token(String, #[source] OperatorError),
    #[error("{0} could not be retired")]
    Retire(ClientId, #[source] OperatorError),
    #[error("{device} could not join")]
    Join {
        device: String,
        #[source]
        source: IssueError,
    },
    #[error("{0} could not renew its certificate")]
    Renew(ClientId, #[source] IssueError),
    #[error("the server's address is not usable: {0}")]
    Address(String),
}

/// Why the identity service gave no certificate.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("a key could not be made")]
    Key(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the server could not be reached")]
    Unreachable(#[source] margrave_http::Error),
    #[error("the server refused: {0}")]
    Refused(String),
    #[error("the server's answer makes no sense")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the identity could not be kept")]
    Keep(#[source] Box<RosterError>),
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Which server the members belong to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Home {
    /// The identity service, recognised by `pin`.
    url: String,
    pin: String,
    /// The device interface.
    device_url: String,
    /// Part of every member's name, so that two simulations of one server do not meet.
    tag: String,
    trust_bundle: JwkSet,
}

/// One line of `members.jsonl`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    client: ClientId,
    certificates: Vec<String>,
    key: String,
}

/// One simulated device's identity.
#[derive(Debug)]
pub struct Member {
    pub client: ClientId,
    svid: Arc<LiveSvid>,
}

/// Everybody who has joined, and how to renew them. One process at a time.
pub struct Roster {
    directory: PathBuf,
    desk: Option<Arc<Desk>>,
    tag: String,
    members: BTreeMap<ClientId, Arc<Member>>,
    _lock: File,
}

/// Where certificates come from and are kept; shared by all devices of a running fleet.
pub(crate) struct Desk {
    web: Client,
    device: Origin,
    bundle: Arc<LiveBundle>,
    path: PathBuf,
    file: Mutex<File>,
}

fn file_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> RosterError {
    let path = path.to_owned();
    move |source| RosterError::File { path, doing, source }
}

fn damaged(path: &Path, cause: impl Into<Cause>) -> RosterError {
    RosterError::Damaged(path.to_owned(), cause.into())
}

impl Roster {
    /// The members kept in `directory`, which is made if it is not there.
    pub fn open(directory: &Path) -> Result<Roster, RosterError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(file_error(directory, "made"))?;
        let lock = lock(directory)?;
        let home = Home::read(&directory.join(HOME))?;
        let mut roster = Roster {
            directory: directory.to_owned(),
            tag: home.as_ref().map_or_else(new_tag, |home| home.tag.clone()),
            desk: None,
            members: BTreeMap::new(),
            _lock: lock,
        };
        let Some(home) = home else { return Ok(roster) };
        roster.members = read_members(&directory.join(MEMBERS))?;
        if let Some(member) = roster.members.values().next() {
            roster.desk = Some(Arc::new(Desk::open(directory, &home, &member.svid.current())?));
        }
        Ok(roster)
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The value of [`LABEL`] on every member.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The first `count` members by name.
    pub fn members(&self, count: usize) -> Vec<Arc<Member>> {
        self.members.values().take(count).cloned().collect()
    }

    /// The address of the device interface.
    pub fn device_origin(&self) -> Result<Origin, RosterError> {
        Ok(self.desk()?.device.clone())
    }

    pub(crate) fn desk(&self) -> Result<&Arc<Desk>, RosterError> {
        self.desk.as_ref().ok_or(RosterError::Empty)
    }

    /// A member's TLS towards the device interface.
    pub fn tls(&self, member: &Member) -> Result<Arc<ClientConfig>, RosterError> {
        Ok(member.tls(self.desk()?))
    }

    /// Whether the members are this server's: its address may be that of another one by now.
    pub async fn check(&self, operator: &Operator) -> Result<(), RosterError> {
        let Some(member) = self.members.keys().next() else { return Ok(()) };
        match operator.knows(member.as_str()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(RosterError::Unknown { path: self.directory.clone(), device: member.clone() }),
            Err(source) => Err(RosterError::Ask(source)),
        }
    }

    /// Lets devices join until there are `count`; `progress` hears how many there are.
    pub async fn fill(
        &mut self,
        operator: &Operator,
        count: usize,
        labels: &BTreeMap<String, String>,
        progress: impl Fn(usize),
    ) -> Result<(), RosterError> {
        if count > MEMBERS_MAX {
            return Err(RosterError::TooMany(count));
        }
        let mut labels = labels.clone();
        labels.insert(LABEL.to_owned(), self.tag.clone());
        let wanted = (1..=count).map(|number| format!("sim-{}-{number:05}", self.tag));
        let present: BTreeSet<&str> = self.members.keys().map(ClientId::as_str).collect();
        let missing: Vec<String> = wanted.filter(|name| !present.contains(name.as_str())).collect();
        let Some(first) = missing.first() else { return Ok(()) };
        // The first one alone: it says where everything is.
        let (desk, member) = self.found(operator, first, &labels).await?;
        self.members.insert(member.client.clone(), Arc::new(member));
        self.desk = Some(desk.clone());
        progress(self.members.len());

        let (missing, labels, next) = (Arc::new(missing), Arc::new(labels), Arc::new(AtomicUsize::new(1)));
        let mut workers = JoinSet::new();
        let (joined, mut arrivals) = tokio::sync::mpsc::channel(TOGETHER);
        for _ in 0..TOGETHER {
            let (desk, operator, joined) = (desk.clone(), operator.clone(), joined.clone());
            let (missing, labels, next) = (missing.clone(), labels.clone(), next.clone());
            workers.spawn(async move {
                while let Some(name) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let member = desk.join(&operator, name, &labels).await?;
                    if joined.send(member).await.is_err() {
                        break;
                    }
                }
                Ok(())
            });
        }
        drop(joined);
        while let Some(member) = arrivals.recv().await {
            self.members.insert(member.client.clone(), Arc::new(member));
            progress(self.members.len());
        }
        while let Some(ended) = workers.join_next().await {
            ended.expect("joining does not panic")?;
        }
        desk.sync()
    }

    /// Retires every member at the server, and forgets them; `progress` hears of each. Those that the server does not
    /// have are forgotten as well, and not counted.
    pub async fn remove(self, operator: &Operator, progress: impl Fn(usize)) -> Result<usize, RosterError> {
        let members: Arc<Vec<ClientId>> = Arc::new(self.members.keys().cloned().collect());
        let next = Arc::new(AtomicUsize::new(0));
        let mut workers = JoinSet::new();
        let (told, mut gone) = tokio::sync::mpsc::channel(TOGETHER);
        for _ in 0..TOGETHER {
            let (operator, members, next) = (operator.clone(), members.clone(), next.clone());
            let told = told.clone();
            workers.spawn(async move {
                while let Some(client) = members.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = operator.retire(client.as_str()).await;
                    let known = result.map_err(|source| RosterError::Retire(client.clone(), source))?;
                    if told.send(known).await.is_err() {
                        break;
                    }
                }
                Ok::<(), RosterError>(())
            });
        }
        drop(told);
        let mut retired = 0;
        while let Some(known) = gone.recv().await {
            retired += usize::from(known);
            progress(retired);
        }
        while let Some(ended) = workers.join_next().await {
            ended.expect("retiring does not panic")?;
        }
        for name in [MEMBERS, HOME] {
            let path = self.directory.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(file_error(&path, "removed")(error));
                }
                _ => {}
            }
        }
        Ok(retired)
    }

    /// The first contact of a roster with its server.
    async fn found(
        &self,
        operator: &Operator,
        device: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<(Arc<Desk>, Member), RosterError> {
        if let Some(desk) = &self.desk {
            self.check_server(operator)?;
            let member = desk.join(operator, device, labels).await?;
            return Ok((desk.clone(), member));
        }
        let token = operator
            .join_token(device, labels)
            .await
            .map_err(|e| RosterError::Token(device.to_owned(), e))?;
        // By the operator's own way, because that one is known to work; the plain listener issues nothing.
        let url = match operator.context().url.starts_with("https://") {
            true => operator.context().url.clone(),
            false => token.url.clone(),
        };
        let web = web_client(&url, &token.pin)?;
        let failed = |source| RosterError::Join { device: device.to_owned(), source };
        let key = PrivateKey::generate().map_err(|e| failed(IssueError::Key(Box::new(e))))?;
        let answer = ask_to_join(&web, &token.token, &key).await.map_err(failed)?;
        let home = Home {
            url,
            pin: token.pin,
            device_url: answer.device_url.clone(),
            tag: self.tag.clone(),
            trust_bundle: answer.trust_bundle.clone(),
        };
        let svid =
            Svid::adopt(&answer.certificates, key).map_err(|e| failed(IssueError::Answer(Box::new(e))))?;
        let desk = Desk::open(&self.directory, &home, &svid)?;
        home.write(&self.directory)?;
        let member = desk.keep(answer.client_id, svid).map_err(failed)?;
        Ok((Arc::new(desk), member))
    }

    fn check_server(&self, operator: &Operator) -> Result<(), RosterError> {
        let path = self.directory.join(HOME);
        let Some(home) = Home::read(&path)? else { return Ok(()) };
        let ours = &operator.context().url;
        let is_same = home.url == *ours || !ours.starts_with("https://");
        match is_same {
            true => Ok(()),
            false => Err(RosterError::OtherServer { path, theirs: home.url, ours: ours.clone() }),
        }
    }
}

impl Member {
    pub(crate) fn tls(&self, desk: &Desk) -> Arc<ClientConfig> {
        device_client_config(self.svid.clone(), desk.bundle.clone())
    }

    /// Whether it is time to ask for the next certificate, with dice in 0..1.
    pub(crate) fn is_due(&self, roll: f64) -> bool {
        clock::now() >= self.svid.current().renew_at(roll)
    }
}

impl Desk {
    fn open(directory: &Path, home: &Home, svid: &Svid) -> Result<Desk, RosterError> {
        let trust_domain = svid.server_name().trust_domain.clone();
        let bundle = Bundle::from_wire(trust_domain, &home.trust_bundle)
            .map_err(|error| damaged(&directory.join(HOME), error))?;
        let device = Origin::parse(&home.device_url).map_err(|e| RosterError::Address(e.to_string()))?;
        if device.scheme() != Scheme::Https {
            return Err(RosterError::Address(format!("{device} is no https address")));
        }
        let path = directory.join(MEMBERS);
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .map_err(file_error(&path, "opened"))?;
        end_line(&mut file).map_err(file_error(&path, "written"))?;
        Ok(Desk {
            web: web_client(&home.url, &home.pin)?,
            device,
            bundle: LiveBundle::new(bundle),
            path,
            file: Mutex::new(file),
        })
    }

    pub(crate) fn device_origin(&self) -> &Origin {
        &self.device
    }

    async fn join(
        &self,
        operator: &Operator,
        device: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<Member, RosterError> {
        let token = operator
            .join_token(device, labels)
            .await
            .map_err(|e| RosterError::Token(device.to_owned(), e))?;
        let join = async {
            let key = PrivateKey::generate().map_err(|e| IssueError::Key(Box::new(e)))?;
            let answer = ask_to_join(&self.web, &token.token, &key).await?;
            let svid = Svid::adopt(&answer.certificates, key).map_err(|e| IssueError::Answer(Box::new(e)))?;
            self.keep(answer.client_id, svid)
        };
        join.await.map_err(|source| RosterError::Join { device: device.to_owned(), source })
    }

    fn keep(&self, client: ClientId, svid: Svid) -> Result<Member, IssueError> {
        self.append(&client, &svid).map_err(|error| IssueError::Keep(Box::new(error)))?;
        Ok(Member { client, svid: LiveSvid::new(svid) })
    }

    /// The next SVID of a member, in use from its next handshake on.
    pub(crate) async fn renew(&self, member: &Member) -> Result<(), RosterError> {
        let renew = async {
            let previous = member.svid.current();
            let key = PrivateKey::generate().map_err(|e| IssueError::Key(Box::new(e)))?;
            let csr = Csr::make(&key).map_err(|e| IssueError::Key(Box::new(e)))?;
            let proof = prove(previous.key(), &csr).map_err(|e| IssueError::Key(Box::new(e)))?;
            let request = RenewRequest::new(csr.to_pem(), previous.certificates(), &proof);
            let answer: RenewResponse = exchange(&self.web, RENEW_PATH, &request).await?;
            let svid = Svid::adopt(&answer.certificates, key).map_err(|e| IssueError::Answer(Box::new(e)))?;
            self.append(&member.client, &svid).map_err(|error| IssueError::Keep(Box::new(error)))?;
            member.svid.replace(svid).map_err(|e| IssueError::Answer(Box::new(e)))
        };
        renew.await.map_err(|source| RosterError::Renew(member.client.clone(), source))
    }

    fn append(&self, client: &ClientId, svid: &Svid) -> Result<(), RosterError> {
        let line = Line { client: client.clone(), certificates: svid.certificates(), key: svid.key_pem() };
        let mut text = serde_json::to_vec(&line).expect("texts always serialise");
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&text).map_err(file_error(&self.path, "written"))
    }

    /// Simulated devices are cheap to make anew, so one wait for the disk at the end is enough.
    fn sync(&self) -> Result<(), RosterError> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.sync_all().map_err(file_error(&self.path, "written"))
    }
}

impl Home {
    fn read(path: &Path) -> Result<Option<Home>, RosterError> {
        let mut text = Vec::new();
        match File::open(path) {
            Ok(file) => file.take(HOME_BYTES_MAX).read_to_end(&mut text).map_err(file_error(path, "read"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(file_error(path, "opened")(error)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| damaged(path, error))
    }

    fn write(&self, directory: &Path) -> Result<(), RosterError> {
        let (path, part) = (directory.join(HOME), directory.join("fleet.part"));
        let text = serde_json::to_vec_pretty(self).expect("texts always serialise");
        let write = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&part, &path)
        };
        write().map_err(file_error(&path, "written"))
    }
}

fn lock(directory: &Path) -> Result<File, RosterError> {
    let path = directory.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(file_error(&path, "opened"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(RosterError::InUse(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(file_error(&path, "locked")(error)),
    }
}

/// After a line that was cut off, what is appended must not become part of it.
fn end_line(file: &mut File) -> io::Result<()> {
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(io::SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    if last == *b"\n" { Ok(()) } else { file.write_all(b"\n") }
}

fn read_members(path: &Path) -> Result<BTreeMap<ClientId, Arc<Member>>, RosterError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(file_error(path, "opened")(error)),
    };
    let mut latest: BTreeMap<ClientId, Line> = BTreeMap::new();
    let mut reader = BufReader::new(file);
    loop {
        let mut text = Vec::new();
        reader
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut text)
            .map_err(file_error(path, "read"))?;
        if text.is_empty() {
            break;
        }
        match serde_json::from_slice::<Line>(&text) {
            Ok(line) => {
                latest.insert(line.client.clone(), line);
            }
            // Cut off by a crash; whatever comes after it was written by a later run.
            Err(error) => tracing::warn!(%error, path = %path.display(), "a line was skipped"),
        }
        if latest.len() > MEMBERS_MAX {
            return Err(RosterError::TooMany(latest.len()));
        }
    }
    let member = |line: Line| {
        let svid = Svid::from_pem(&line.certificates.concat(), &line.key).map_err(|e| damaged(path, e))?;
        let member = Member { client: line.client.clone(), svid: LiveSvid::new(svid) };
        Ok((line.client, Arc::new(member)))
    };
    latest.into_values().map(member).collect()
}

fn new_tag() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz23456789x";
    let number = Dice::thrown().next();
    (0..5).map(|place| char::from(LETTERS[(number >> (5 * place)) as usize % LETTERS.len()])).collect()
}

fn web_client(url: &str, pin: &str) -> Result<Client, RosterError> {
    let address = |error: &dyn std::fmt::Display| RosterError::Address(error.to_string());
    let origin = Origin::parse(url).map_err(|error| address(&error))?;
    let pin = Pin::parse(pin).map_err(|error| address(&error))?;
    let limits = Limits { idle_connections: TOGETHER, ..Limits::default() };
    Client::new(Trust::Tls(pinned_client_config(vec![pin])), origin, limits).map_err(|error| address(&error))
}

async fn ask_to_join(web: &Client, token: &str, key: &PrivateKey) -> Result<JoinResponse, IssueError> {
    let csr = Csr::make(key).map_err(|e| IssueError::Key(Box::new(e)))?;
    exchange(web, JOIN_PATH, &JoinRequest { token: token.to_owned(), csr: csr.to_pem() }).await
}

/// Asks, and asks again where that can help: the same key with the same token is the same device to a server.
async fn exchange<Q: Serialize, A: DeserializeOwned>(
    web: &Client,
    path: &str,
    request: &Q,
) -> Result<A, IssueError> {
    let mut pause = Duration::from_millis(200);
    for attempt in 1.. {
        let failure = match web.send(Request::post(path).json(request).timeout(TIME_MAX)).await {
            Ok(response) if response.status.is_success() => {
                return response.json().map_err(|e| IssueError::Answer(Box::new(e)));
            }
            Ok(response) => {
                pause = pause.max(response.retry_after().unwrap_or_default());
                let said = match response.json::<Problem>() {
                    Ok(problem) => problem.detail.unwrap_or(problem.title),
                    Err(_) => format!("HTTP {}", response.status),
                };
                let passing = response.status.is_server_error() || response.status.as_u16() == 429;
                if !passing {
                    return Err(IssueError::Refused(said));
                }
                IssueError::Refused(said)
            }
            Err(error) => IssueError::Unreachable(error),
        };
        if attempt >= ATTEMPTS_MAX {
            return Err(failure);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(10));
    }
    unreachable!("the loop ends by returning")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_belongs_to_one_simulation_and_to_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet");
        let roster = Roster::open(&path).unwrap();
        assert!(roster.is_empty());
        assert!(matches!(Roster::open(&path), Err(RosterError::InUse(_))));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        drop(roster);
        assert!(Roster::open(&path).is_ok());
    }

    #[test]
    fn a_line_that_was_cut_off_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(MEMBERS);
        fs::write(&path, "{\"client\":\"sim-a-00001\",\"certi").unwrap();
        assert!(read_members(&path).unwrap().is_empty());
    }

    #[test]
    fn a_damaged_home_is_an_error_that_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(HOME), "{").unwrap();
        let Err(error) = Roster::open(directory.path()) else { panic!("it was taken") };
        assert!(error.to_string().contains(HOME), "{error}");
    }
}
