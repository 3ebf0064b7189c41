//! A read-only Git repository per client: the oldest form in which Margo devices get their desired state.
//!
//! The store keeps what every commit holds ([`margrave_store::Store::begin_git`]); `repository.rs` keeps the
//! directory on disk up with it; `upload.rs` answers fetches. Here is who has one, who may open it, and when it is
//! brought up to date: after every publication, at start, and before a fetch is answered, whichever comes first.
//! Nothing here speaks HTTP.

mod commit;
mod following;
mod intent;
mod packing;
mod program;
mod push;
mod quarantine;
mod repository;
mod upload;
mod way;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use margrave_core::chain::sentence;
use margrave_core::digest::Digest;
use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_store::{GitError, GitHolder, GitRecord, NewGitToken, Standing};
use margrave_wire::{Dialect, identity, operator};
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore, watch};

pub(super) use self::following::Following;
pub use self::following::{FETCH_BYTES_MAX, Follow};
pub(crate) use self::intent::{PUSH_TIME_MAX, Pushed, places};
use self::program::{NoGit, Program, Running};
pub(crate) use self::push::Push;
pub(crate) use self::quarantine::{PACK_BYTES_MAX, QUARANTINE, Quarantine};
use self::repository::{Repository, RepositoryError};
pub(crate) use self::upload::Upload;
use super::event::time;
use super::token::{hash, secret};
use super::{Actor, Error, Fleet};
use crate::config::authority;

/// Where repositories are found below the server's address.
pub(crate) const GIT_PATH: &str = "/git/devices/";

/// A token that a device asked for itself lives this long: it asks again with its certificate, so it need not live
/// long, and one that is away for a month finds it expired and asks again.
const DEVICE_TOKEN_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// A device that lost the answer asks again after so long, and not more often: every token is written down.
const DEVICE_TOKEN_PAUSE: Duration = Duration::from_secs(5);
const GRACE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Processes that answer fetches at the same time. Each takes some 5 ms and 10 MB, more for a whole clone.
const FETCHES_MAX: usize = 16;
/// Fetches that wait for a place. The ordinary client gives up when it is turned away, so waiting is kinder.
const WAITING_MAX: usize = 512;
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The repositories of one server.
pub(super) struct Git {
    program: Program,
    /// `DATA/git`.
    directory: PathBuf,
    repositories: RwLock<HashMap<ClientId, Arc<Repository>>>,
    /// On and off are one at a time, so that one never removes what the other makes.
    switching: Mutex<()>,
    published: Notify,
    /// Counts up whenever somebody may have lost a right; fetches that are going on look again.
    revoked: watch::Sender<u64>,
    places: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    pushes: Arc<Semaphore>,
}

impl Git {
    pub(super) fn new(directory: PathBuf, clients: Vec<ClientId>) -> Self {
        let repositories = clients.into_iter().map(|client| {
            let repository = Arc::new(Repository::new(&directory, &client));
            (client, repository)
        });
        Git {
            repositories: RwLock::new(repositories.collect()),
            program: Program::default(),
            directory,
            switching: Mutex::default(),
            published: Notify::new(),
            revoked: watch::Sender::new(0),
            places: Arc::new(Semaphore::new(FETCHES_MAX)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            pushes: Arc::new(Semaphore::new(intent::PUSHES_MAX)),
        }
    }

    fn of(&self, client: &ClientId) -> Option<Arc<Repository>> {
        self.repositories.read().unwrap_or_else(PoisonError::into_inner).get(client).cloned()
    }

    fn all(&self) -> Vec<(ClientId, Arc<Repository>)> {
        let repositories = self.repositories.read().unwrap_or_else(PoisonError::into_inner);
        repositories.iter().map(|(client, repository)| (client.clone(), Arc::clone(repository))).collect()
    }

    fn admit(&self, client: &ClientId) -> Arc<Repository> {
        let mut repositories = self.repositories.write().unwrap_or_else(PoisonError::into_inner);
        let made = || Arc::new(Repository::new(&self.directory, client));
        Arc::clone(repositories.entry(client.clone()).or_insert_with(made))
    }

    fn forget(&self, client: &ClientId) -> Option<Arc<Repository>> {
        self.repositories.write().unwrap_or_else(PoisonError::into_inner).remove(client)
    }

    /// Whether documents of this client lie in a repository of its own.
    pub(super) fn is_kept(&self, client: &ClientId) -> bool {
        self.of(client).is_some()
    }

    /// Whether any client's do.
    pub(super) fn is_used(&self) -> bool {
        !self.repositories.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// These clients have a new manifest.
    pub(super) fn published<'a>(&self, mut clients: impl Iterator<Item = &'a ClientId>) {
        if clients.any(|client| self.of(client).is_some()) {
            self.published.notify_one();
        }
    }

    /// Somebody may have lost a right.
    pub(super) fn revoked(&self) {
        self.revoked.send_modify(|count| *count += 1);
    }
}

/// A right to one repository, as it was when it was looked up; it notices when it may have ended since.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    pub(crate) client: ClientId,
    token: Digest,
    revoked: watch::Receiver<u64>,
}

/// The version of Git's protocol that a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    V0,
    V1,
    V2,
}

impl Protocol {
    /// As the program is told of it; it knows the oldest by itself.
    fn named(self) -> Option<&'static str> {
        match self {
            Protocol::V0 => None,
            Protocol::V1 => Some("version=1"),
            Protocol::V2 => Some("version=2"),
        }
    }
}

/// What a client wants of `git upload-pack`.
#[derive(Debug)]
pub(crate) enum Ask {
    /// What there is.
    Advertisement,
    Request(Bytes),
}

/// Why a fetch is not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("this device was retired; an operator can accept it again")]
    Retired,
    #[error("this token is not valid any more; ask for a new one")]
    Void,
    #[error("as many fetches are going on as this server allows; try again shortly")]
    Busy,
    #[error("{0}")]
    NoGit(#[source] NoGit),
    #[error("the repository cannot be brought up to date; the server's log says why")]
    Behind(#[source] RepositoryError),
    #[error("the server could not use its database; its log says why")]
    Storage(#[source] Error),
}

impl Fleet {
    /// Gives a device a repository, or a new token for the one it has. The token is shown this once.
    pub async fn put_git(
        &self,
        actor: &Actor,
        device: &DeviceRef,
        want: operator::PutGit,
    ) -> Result<operator::GitRepository, Error> {
        let operator::PutGit { rotate, grace_seconds } = want;
        let device = &self.git_device(device).await?;
        let (client, called) = (&device.client, self.live.spoken(device));
        let grace = grace_seconds.map(Duration::from_secs);
        if grace.is_some_and(|grace| grace.is_zero() || grace > GRACE_MAX) {
            let message = format!("a grace period is 1 to {} seconds (30 days)", GRACE_MAX.as_secs());
            return Err(Error::invalid("/graceSeconds", "token", message));
        }
        if grace.is_some() && !rotate {
            let message = "a grace period is for the tokens that a new one replaces; add \"rotate\": true";
            return Err(Error::invalid("/graceSeconds", "token", message));
        }
        self.git.program.locate().await.map_err(no_git)?;
        let (token, key) = new_token(GitHolder::Operator, None)?;
        let now = self.now();
        let switching = self.git.switching.lock().await;
        let begun = self.store.begin_git(client, key.clone(), now, &actor.name).await;
        let begun = begun.map_err(|error| git_error(error, &called))?;
        if !begun && rotate {
            let until = grace.map(|grace| now.after(grace));
            let replaced = self.store.replace_git_tokens(client, key, until, now, &actor.name).await;
            replaced.map_err(|error| git_error(error, &called))?;
            self.git.revoked();
        }
        self.git.admit(client);
        drop(switching);
        self.git.published.notify_one();
        self.shown_git(device, (begun || rotate).then_some(token)).await
    }

    /// A device's repository, without its tokens.
    pub async fn git(&self, device: &DeviceRef) -> Result<operator::GitRepository, Error> {
        self.shown_git(&self.git_device(device).await?, None).await
    }

    /// Closes a device's repository at once and for good; no token opens it again.
    pub async fn end_git(&self, actor: &Actor, device: &DeviceRef) -> Result<(), Error> {
        let device = self.git_device(device).await?;
        let client = &device.client;
        let _switching = self.git.switching.lock().await;
        if !self.store.end_git(client, self.now(), &actor.name).await? {
            return Err(not_on(&self.live.spoken(&device)));
        }
        self.git.revoked();
        if let Some(repository) = self.git.forget(client)
            && let Err(error) = repository.remove().await
        {
            // It is closed; what is left of it goes at the next start.
            tracing::warn!(%client, error = sentence(&error), "a Git repository could not be removed from disk");
        }
        Ok(())
    }

    /// A token for the device itself, which proved by its certificate who it is; `None` unless an operator wants it on
    /// Git. `host` is by what name the device reaches this server.
    pub async fn git_token(
        &self,
        client: &ClientId,
        host: Option<&str>,
    ) -> Result<Option<identity::GitToken>, Error> {
        let now = self.now();
        let record = self.store.git_repository(client, now).await?;
        if record.is_none() && !self.store.git_allowed(client).await? {
            return Ok(None);
        }
        self.git.program.locate().await.map_err(no_git)?;
        let tokens = record.iter().flat_map(|record| &record.tokens);
        let newest =
            tokens.filter(|token| token.holder == GitHolder::Device).map(|token| token.created_at).max();
        let pause = newest
            .filter(|newest| *newest <= now)
            .and_then(|newest| DEVICE_TOKEN_PAUSE.checked_sub(now.since(newest)))
            .filter(|pause| !pause.is_zero());
        if let Some(wait) = pause {
            return Err(Error::TooSoon { wait });
        }
        let expires = now.after(DEVICE_TOKEN_LIFETIME);
        let (token, key) = new_token(GitHolder::Device, Some(expires))?;
        let switching = self.git.switching.lock().await;
        let actor = format!("device {client}");
        let refused = |error| git_error(error, client.as_str());
        if record.is_some()
            || !self.store.begin_git(client, key.clone(), now, &actor).await.map_err(refused)?
        {
            self.store.add_git_token(client, key, now).await.map_err(refused)?;
        }
        self.git.admit(client);
        drop(switching);
        self.git.published.notify_one();
        Ok(Some(identity::GitToken {
            url: address(&self.server_by(host), client),
            username: client.to_string(),
            token,
            expires: time(expires),
            authority: self.options.web_authority.clone(),
        }))
    }

    /// Whose repository a token opens.
    pub(crate) async fn git_pass(&self, token: &str) -> Result<Option<Pass>, Error> {
        let Some(token) = hash(token) else { return Ok(None) };
        // From before the look-up on, so that no change is missed.
        let revoked = self.git.revoked.subscribe();
        let owner = self.store.git_owner(token, self.now()).await?;
        Ok(owner.map(|client| Pass { client, token, revoked }))
    }

    /// Answers a fetch, from a repository that has everything that was published until now.
    pub(crate) async fn git_fetch(
        self: &Arc<Self>,
        mut pass: Pass,
        protocol: Protocol,
        ask: Ask,
    ) -> Result<Upload, FetchError> {
        self.git_check(&mut pass).await?;
        let repository = self.git.of(&pass.client).ok_or(FetchError::Void)?;
        let places = self.git_places(&repository).await?;
        let version = self.git_catch_up(&pass.client, &repository).await.map_err(|error| match error {
            RepositoryError::NoGit(missing) => FetchError::NoGit(missing),
            RepositoryError::Closed => FetchError::Void,
            error => FetchError::Behind(error),
        })?;
        let packs = repository.hold().await;
        // Its right may have ended while it waited.
        self.git_check(&mut pass).await?;
        let mut command = self.git.program.on(repository.path()).await.map_err(FetchError::NoGit)?;
        command.args(["upload-pack", "--strict", "--stateless-rpc", "--timeout=60"]);
        let request = match ask {
            Ask::Advertisement => {
                command.arg("--advertise-refs");
                Bytes::new()
            }
            Ask::Request(body) => body,
        };
        command.arg(repository.path());
        if let Some(version) = protocol.named() {
            command.env("GIT_PROTOCOL", version);
        }
        let started = Running::start(command, "upload-pack");
        let (running, pipes) = started.map_err(|error| FetchError::Behind(error.into()))?;
        self.touched(&pass.client);
        self.live.was_given(&pass.client, version);
        let held = upload::Held { _places: places, _packs: packs };
        Ok(upload::start(Arc::clone(self), pass, repository, running, pipes, request, held))
    }

    /// Whether the pass still opens its repository; costs nothing unless somebody lost a right since the last look.
    async fn git_check(&self, pass: &mut Pass) -> Result<(), FetchError> {
        if self.standing(&pass.client) != Some(Standing::Accepted) {
            return Err(FetchError::Retired);
        }
        if !pass.revoked.has_changed().unwrap_or(true) {
            return Ok(());
        }
        // Before the look-up, so that no change is missed.
        pass.revoked.borrow_and_update();
        let owner = self.store.git_owner(pass.token, self.now()).await;
        match owner.map_err(|error| FetchError::Storage(error.into()))? {
            Some(owner) if owner == pass.client => Ok(()),
            _ => Err(FetchError::Void),
        }
    }

    /// A place among all fetches and one among the client's own, waited for a little.
    async fn git_places(&self, repository: &Repository) -> Result<[OwnedSemaphorePermit; 2], FetchError> {
        let _waiting = self.git.waiting.try_acquire().map_err(|_| FetchError::Busy)?;
        let wait = async {
            // The client's own first: whoever waits for that must not keep others out.
            let own = Arc::clone(&repository.places).acquire_owned().await;
            let all = Arc::clone(&self.git.places).acquire_owned().await;
            [own, all].map(|place| place.expect("nobody closes the semaphores"))
        };
        tokio::time::timeout(WAIT_MAX, wait).await.map_err(|_| FetchError::Busy)
    }

    async fn git_catch_up(&self, client: &ClientId, repository: &Repository) -> Result<u64, RepositoryError> {
        let wanted = self.live.version(client);
        repository.catch_up(&self.git.program, &self.store, wanted, self.now()).await
    }

    /// Commits whatever was published and is not in its repository yet. One that cannot follow does not hold up
    /// others, and is tried again the next time.
    pub async fn commit_manifests(&self) {
        for (client, repository) in self.git.all() {
            match self.git_catch_up(&client, &repository).await {
                Ok(version) => tracing::trace!(%client, version, "a Git repository is up to date"),
                Err(RepositoryError::Closed) => {}
                Err(error) => {
                    tracing::warn!(%client, error = sentence(&error), "a Git repository is not up to date");
                }
            }
        }
    }

    /// Ends when something was published that has to be committed.
    pub async fn git_published(&self) {
        self.git.published.notified().await;
    }

    /// Removes directories that belong to no repository: it was closed, and the server killed before they were gone.
    pub async fn sweep_git(&self) -> Result<(), Error> {
        self.store.sweep_git_tokens(self.now()).await?;
        let _switching = self.git.switching.lock().await;
        let known: Vec<std::ffi::OsString> = self
            .git
            .all()
            .iter()
            .flat_map(|(client, _)| [format!("{client}.git").into(), format!("~{client}").into()])
            .collect();
        for name in repository::names(&self.git.directory).await {
            let ours = program::name_ends_with(&name, ".git") || name.as_encoded_bytes().starts_with(b"~");
            if ours && !known.contains(&name) {
                let path = self.git.directory.join(&name);
                if let Err(error) = tokio::fs::remove_dir_all(&path).await {
                    tracing::warn!(path = %path.display(), %error, "a closed Git repository could not be removed");
                }
            }
        }
        Ok(())
    }

    /// The device whose client's repository an operator means. Children have none: they are in their gateway's.
    async fn git_device(&self, device: &DeviceRef) -> Result<DeviceRef, Error> {
        let device = self.live.addressed(device);
        if device.device.is_child() && self.store.device(&device).await?.is_some() {
            let gateway = DeviceRef::new(device.client.clone(), device.device.gateway());
            return Err(Error::conflict(format!(
                "{} gets its documents through its gateway; its documents are in the Git repository of {}",
                self.live.spoken(&device),
                self.live.spoken(&gateway)
            )));
        }
        // Addresses and user names have the id of a signed client, so whoever reads it there may also say it.
        let is_signed_client = device.device.as_str() == device.client.as_str()
            && self.dialect(&device.client) == Some(Dialect::Signed);
        if is_signed_client || self.store.device(&device).await?.is_some() {
            return Ok(device);
        }
        Err(Error::not_found(format!("device {device}")))
    }

    /// This server's address under the name that somebody knows it by, if that is one that its certificate has.
    fn server_by(&self, host: Option<&str>) -> String {
        let own = &self.options.server_url;
        let host = host.filter(|host| self.options.web_names.iter().any(|name| name == host));
        let port = own.rsplit(':').next().and_then(|port| port.parse().ok());
        match (host, port) {
            (Some(host), Some(port)) => format!("https://{}", authority(host, port)),
            _ => own.clone(),
        }
    }

    async fn shown_git(
        &self,
        device: &DeviceRef,
        token: Option<String>,
    ) -> Result<operator::GitRepository, Error> {
        let (client, called) = (&device.client, self.live.spoken(device));
        let record = self.store.git_repository(client, self.now()).await?;
        let GitRecord { since, version, tokens, .. } = record.ok_or_else(|| not_on(&called))?;
        let tokens = tokens.into_iter().map(|token| operator::GitTokenUse {
            holder: token.holder.as_str().to_owned(),
            created: time(token.created_at),
            expires: token.expires_at.map(time),
        });
        Ok(operator::GitRepository {
            device: called,
            url: address(&self.options.server_url, client),
            branch: "main".to_owned(),
            username: client.to_string(),
            token,
            since: time(since),
            version,
            tokens: tokens.collect(),
            authority: self.options.web_authority.clone(),
        })
    }
}

fn address(server: &str, client: &ClientId) -> String {
    format!("{server}{GIT_PATH}{client}.git")
}

fn new_token(holder: GitHolder, expires_at: Option<Moment>) -> Result<(String, NewGitToken), Error> {
    let token = secret("mgg_")?;
    let hash = Digest::of(token.as_bytes());
    Ok((token, NewGitToken { hash, holder, expires_at }))
}

/// `called` is what people call the device.
fn not_on(called: &str) -> Error {
    Error::not_found(format!("Git repository of {called}; `margrave device git {called}` makes one"))
}

fn no_git(error: NoGit) -> Error {
    Error::conflict(sentence(&error))
}

fn git_error(error: GitError, called: &str) -> Error {
    match error {
        GitError::NotAccepted(_) => Error::conflict(format!(
            "{called} is retired; accept it first with `margrave device accept {called}`"
        )),
        GitError::NotOn(_) => not_on(called),
        GitError::Store(error) => error.into(),
    }
}
