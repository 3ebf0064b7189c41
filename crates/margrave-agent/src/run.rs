//! The device's loop: the core decides, the ledger remembers, this performs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use margrave_core::capabilities::Capabilities;
use margrave_core::constraints;
use margrave_core::device::{Action, Delivery, Device, Event, Hold, Reading, Settings};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::report::{Failure, FailureCode};
use margrave_core::schedule::Gate;
use margrave_core::workload::Placement;
use margrave_http::{Client, Limits, Origin, Trust};
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::tls::device_client_config;
use margrave_ledger::{Blobs, LedgerError, Recovery, StateFile};
use margrave_wire::document;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::clock;
use crate::hold::{self, Asked, Reply, Wish};
use crate::identity::{
    Authorized, AuthorizedError, Credential, Identity, IdentityError, SignedCredential, create_private,
};
use crate::keeper::Keeper;
use crate::runtime::Runtime;
use crate::status::{self, Live};
use crate::stranded::{self, Stranded};
use crate::supervisor::Supervisor;
use crate::unwritten::{self, Unwritten};
use crate::upstream::{Git, Link, Proof, Tongue, Upstream};
use crate::way::Way;

/// What a device needs to run; [`crate::launch::Launch`] makes one.
pub struct AgentConfig {
    /// Identity, ledger and artifacts; belongs to one running agent at a time.
    pub data: PathBuf,
    pub identity: Identity,
    pub(crate) access: Access,
    pub runtime: Arc<dyn Runtime>,
    pub capabilities: Capabilities,
    /// What to report instead once the runtime answers, when it does not yet.
    pub capabilities_later: Option<Capabilities>,
    pub settings: Settings,
    /// Whether a trust bundle with a lower number than the one in use is refused (ID-145).
    pub refuse_older_bundle: bool,
    pub supervisor: Supervisor,
    /// Whoever knows that the way to the server is open again says so here, and the device asks at once.
    pub way_open: Arc<Notify>,
}

/// The identity in use, shared with whatever else connects to the server: all see a renewal at once.
#[derive(Clone)]
pub(crate) enum Access {
    Svid { svid: Arc<LiveSvid>, bundle: Arc<LiveBundle> },
    Signed(SignedCredential),
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Authorized(#[from] AuthorizedError),
    #[error("the device's memory cannot be opened")]
    Ledger(#[from] LedgerError),
    #[error("another agent is already running on {0}; stop it, or give this one its own --data directory")]
    Busy(PathBuf),
    #[error("{0} cannot be locked")]
    Lock(PathBuf, #[source] std::io::Error),
    #[error("the server's address in the identity is not usable: {0}")]
    Address(String),
    #[error(
        "the container engine has not answered for minutes at the socket that was mounted into this container; it ends, so that its restart policy mounts the socket that is there now"
    )]
    Stranded,
}

/// How often to look for an engine that is not there: often enough for a technician who has just installed it.
const LOOK_FOR_RUNTIME_EVERY: Duration = Duration::from_secs(15);
/// Who only asks whether an agent runs here is gone sooner than that; another agent is not.
const LOCK_TRIES: u32 = 20;
const LOCK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Where Linux says which life of the machine this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Never sleep longer than this: clocks jump, and a device must notice.
const NAP_MAX: Duration = Duration::from_secs(60);

impl Access {
    pub(crate) fn open(identity: &Identity) -> Result<Access, IdentityError> {
        match &identity.credential {
            Credential::Svid(credential) => {
                let (svid, bundle) = credential.live()?;
                Ok(Access::Svid { svid, bundle })
            }
            Credential::Signed(credential) => Ok(Access::Signed(credential.clone())),
        }
    }

    /// The device interface, on connections of its own.
    pub(crate) async fn link(
        &self,
        data: &Path,
        identity: &Identity,
        way: &Arc<Way>,
    ) -> Result<Link, RunError> {
        let limits = Limits::device();
        let origin =
            Origin::parse(&identity.device_url).map_err(|error| RunError::Address(error.to_string()))?;
        match self {
            Access::Svid { svid, bundle } => {
                let trust = Trust::Tls(device_client_config(svid.clone(), bundle.clone()));
                let client = Client::new(trust, origin, limits)
                    .map_err(|error| RunError::Address(error.to_string()))?;
                Ok(Link::new(
                    client,
                    Proof::Svid { svid: svid.clone(), authorized: Authorized::open(data)? },
                    way.clone(),
                ))
            }
            Access::Signed(credential) => Ok(credential.link(origin, limits, way.clone()).await?),
        }
    }
}

/// Runs until `shutdown` becomes true. What runs on the device keeps running.
pub async fn run(config: AgentConfig, mut shutdown: watch::Receiver<bool>) -> Result<(), RunError> {
    let AgentConfig {
        data,
        identity,
        access,
        runtime,
        capabilities,
        capabilities_later,
        settings,
        refuse_older_bundle,
        mut supervisor,
        way_open,
    } = config;
    let _lock = lock(&data)?;
    let mut agent = Agent::open(&data, &identity, runtime, capabilities, settings)?;
    let way = Arc::new(Way::default());
    let link = access.link(&data, &identity, &way).await?;
    let git = identity.git.clone().map(|source| Git::new(source, &data));
    let device = agent.settings.device.clone();
    let upstream = Arc::new(Upstream::new(link, identity.tongue(), device, identity.is_issued(), git));

    let live = Arc::new(std::sync::Mutex::new(Live::default()));
    let mut background = JoinSet::new();
    match access {
        Access::Svid { svid, bundle } => {
            let (data, upstream, way) = (data.clone(), upstream.clone(), way.clone());
            background.spawn(
                Keeper { data, identity, svid, bundle, upstream, way, tag: None, refuse_older_bundle }.keep(),
            );
        }
        // Its certificate is the one that the server was shown; another one would be another client.
        Access::Signed(_) => {}
    }
    background.spawn(status::serve(data.clone(), live.clone()));
    let (ask, mut asked) = mpsc::channel(1);
    background.spawn(hold::serve(data.clone(), ask));

    let (stir, mut stirred) = mpsc::channel(1);
    background.spawn(watch_runtime(agent.runtime.clone(), stir));
    let mut capabilities_later = capabilities_later;
    let mut appeared = Box::pin(appearance(agent.runtime.clone()));

    tracing::info!(device = %agent.settings.device, "running");
    let mut doing: JoinSet<(u64, Event)> = JoinSet::new();
    let mut under_way: BTreeMap<u64, (Action, tokio::task::AbortHandle)> = BTreeMap::new();
    let mut ticket = 0u64;
    let mut stranded = Stranded::here();
    let is_stranded = loop {
        while let Some(action) = agent.device.next(&agent.settings, clock::now()) {
            agent.absorb(Event::Began(action.clone()));
            if let Err(error) = agent.commit()
                && unwritten::needs_intent(&action)
            {
                // Not on disk, so not done: the failure comes back as the action's outcome, with its pause.
                tracing::error!(%error, "the intent could not be written down");
                agent.absorb(Event::Unbegun(action.clone()));
                agent.absorb(not_begun(&action, &error));
                continue;
            }
            ticket += 1;
            let work = perform(action.clone(), upstream.clone(), agent.runtime.clone(), agent.own.clone());
            let number = ticket;
            let handle = doing.spawn(async move { (number, work.await) });
            under_way.insert(number, (action, handle));
        }
        agent.publish_status(&live, &upstream, &way);
        let works = |(action, _): &(Action, _)| matches!(action, Action::Prefetch(_) | Action::Apply(_));
        if stranded.take_in(agent.device.runtime_trouble(), Instant::now())
            && !under_way.values().any(works)
            && stranded::is_deaf(&*agent.runtime, stranded::PATIENCE).await
        {
            break true;
        }
        supervisor.beat(&agent.device);
        let obsolete: Vec<u64> = under_way
            .iter()
            .filter(|(_, (action, _))| agent.device.obsolete(action))
            .map(|(number, _)| *number)
            .collect();
        for number in obsolete {
            let (action, handle) = under_way.remove(&number).expect("listed just above");
            handle.abort();
            agent.take_in(cancelled(&action));
        }
        let now = clock::now();
        let nap_max = supervisor.alive_every().map_or(NAP_MAX, |every| every.min(NAP_MAX));
        let nap =
            agent.device.wake(&agent.settings, now).map_or(nap_max, |wake| wake.since(now).min(nap_max));
        tokio::select! {
            Some(ended) = doing.join_next() => match ended {
                Ok((number, event)) => {
                    if under_way.remove(&number).is_some() {
                        let was_away = agent.device.contact().1.is_some();
                        agent.take_in(event);
                        if was_away && agent.device.contact().1.is_none() {
                            // Back after an outage: trust may have changed meanwhile (ID-148).
                            way.doubtful.notify_one();
                        }
                    }
                }
                Err(error) if error.is_cancelled() => {}
                Err(error) => {
                    // A bug in performing must not stop the device: whatever it was, it did not happen.
                    tracing::error!(%error, "an action panicked");
                    let panicked = error.id();
                    if let Some(number) = under_way.iter().find(|(_, (_, handle))| handle.id() == panicked).map(|(n, _)| *n) {
                        let (action, _) = under_way.remove(&number).expect("found just above");
                        agent.take_in(cancelled(&action));
                    }
                }
            },
            Some(()) = stirred.recv() => agent.absorb(Event::Stirred),
            Some(asked) = asked.recv() => agent.asked(asked),
            () = way.renewed.notified() => agent.absorb(Event::WayRenewed),
            () = way_open.notified() => agent.absorb(Event::WayRenewed),
            () = &mut appeared, if capabilities_later.is_some() => {
                if let Some(mut capabilities) = capabilities_later.take() {
                    capabilities.holds.clone_from(&agent.own.capabilities.holds);
                    capabilities.looked = agent.own.capabilities.looked;
                    capabilities.blind.clone_from(&agent.own.capabilities.blind);
                    tracing::info!("a container engine answers; telling the server");
                    agent.become_now(capabilities);
                }
            }
            () = tokio::time::sleep(nap) => {}
            _ = shutdown.wait_for(|stop| *stop) => break false,
        }
    };
    supervisor.stopping();
    tracing::info!("stopping; what runs keeps running");
    doing.shutdown().await;
    background.shutdown().await;
    agent.commit()?;
    agent.stop();
    if is_stranded { Err(RunError::Stranded) } else { Ok(()) }
}

/// Says so whenever something happens to a container of ours, at most once a second.
async fn watch_runtime(runtime: Arc<dyn Runtime>, stir: mpsc::Sender<()>) {
    loop {
        let pause = match runtime.changed().await {
            Ok(()) => {
                if stir.send(()).await.is_err() {
                    return;
                }
                Duration::from_secs(1)
            }
            // The regular look goes on without news.
            Err(failure) => {
                tracing::debug!(%failure, "no news from the engine");
                LOOK_FOR_RUNTIME_EVERY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Ends once the runtime answers.
async fn appearance(runtime: Arc<dyn Runtime>) {
    while !runtime.answers().await {
        tokio::time::sleep(LOOK_FOR_RUNTIME_EVERY).await;
    }
}

/// Makes sure that one agent at a time uses `data`, for as long as the file lives.
pub(crate) fn lock(data: &std::path::Path) -> Result<File, RunError> {
    create_private(data).map_err(|error| RunError::Lock(data.to_owned(), error))?;
    let path = data.join("lock");
    let file = match File::options().create(true).truncate(false).write(true).open(&path) {
        // What runs here has to be told of all the same, and the lock is the open file and not what is in it.
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => File::open(&path),
        opened => opened,
    };
    let file = file.map_err(|error| RunError::Lock(path.clone(), error))?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // Whoever asks whether an agent runs here has it for a moment, too.
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_AGAIN_AFTER),
            Err(std::fs::TryLockError::Error(error)) => return Err(RunError::Lock(path, error)),
        }
    }
    Err(RunError::Busy(data.to_owned()))
}

/// What this device is, as it tells the server and as documents are held against.
struct Own {
    device: DeviceId,
    tongue: Tongue,
    capabilities: Capabilities,
    /// The capabilities as they go over the wire.
    body: Vec<u8>,
}

struct Agent {
    device: Device,
    settings: Settings,
    runtime: Arc<dyn Runtime>,
    own: Arc<Own>,
    ledger: StateFile<Device>,
    blobs: Blobs,
    /// The documents that were kept at the last sweep, if there was one.
    kept: Option<BTreeSet<Digest>>,
    /// Whether the server has answered a poll since the start; said once in the log.
    polled: bool,
    unwritten: Unwritten,
}

impl Agent {
    fn open(
        data: &std::path::Path,
        identity: &Identity,
        runtime: Arc<dyn Runtime>,
        capabilities: Capabilities,
        settings: Settings,
    ) -> Result<Self, RunError> {
        let (ledger, device, recovery) = StateFile::open(&data.join("ledger"))?;
        match recovery {
            Recovery::Fresh | Recovery::Clean => {}
            Recovery::FellBack => {
                tracing::warn!("the newest state was damaged; going on from the one before it")
            }
            Recovery::StartedOver => {
                tracing::error!(
                    "security: the device's memory was lost; starting over from what the server says"
                )
            }
        }
        let blobs = Blobs::open(&data.join("documents"))?;
        let own = Arc::new(Own::new(settings.device.clone(), identity.tongue(), capabilities));
        let mut agent = Agent {
            device: device.unwrap_or_else(Device::blank),
            settings,
            runtime,
            own,
            ledger: ledger.with_reserve(),
            blobs,
            kept: None,
            polled: false,
            unwritten: Unwritten::default(),
        };
        let mut readings = vec![];
        for (digest, (id, in_force)) in agent.device.kept() {
            // A document that the disk lost is fetched again by its digest.
            if let Some(document) = agent.blobs.read(&digest) {
                let reading = match in_force {
                    true => agent.own.understand(id, &document),
                    false => agent.own.read(id, &document),
                };
                readings.push((digest, reading));
            }
        }
        tracing::info!(client = %identity.client_id, documents = readings.len(), "restored from disk");
        // First what the documents say: nothing can be judged without.
        agent.absorb(Event::Read(readings));
        agent.absorb(Event::IdentityIs(identity.principal()?));
        match std::fs::read_to_string(BOOT_ID) {
            Ok(boot) => agent.absorb(Event::Booted(boot.trim().to_owned())),
            Err(error) => tracing::debug!(%error, "this system does not say when it was started"),
        }
        // As they are by now: with who holds changes back, which the memory knew.
        let capabilities_are = Digest::of(&agent.own.body);
        agent.absorb(Event::CapabilitiesAre(capabilities_are));
        Ok(agent)
    }

    /// The device is another one than it said; the server hears of it, and documents are read anew with it.
    fn become_now(&mut self, capabilities: Capabilities) {
        let own = Own::new(self.settings.device.clone(), self.own.tongue.clone(), capabilities);
        let are = Digest::of(&own.body);
        self.own = Arc::new(own);
        self.absorb(Event::CapabilitiesAre(are));
    }

    /// The server hears who holds changes back, also while nothing waits for it, that a look it asked for is done, and that the
    /// device cannot look, or not write down what it sees.
    fn tell_of_passing(&mut self) {
        let now = clock::now();
        let holds: Vec<Hold> = self.device.holds(now).into_iter().cloned().collect();
        let blind = self.device.blind().or_else(|| self.unwritten.told(now)).cloned();
        let looked = self.device.looked();
        let known = &self.own.capabilities;
        if holds != known.holds || looked != known.looked || blind != known.blind {
            self.become_now(Capabilities { holds, looked, blind, ..known.clone() });
        }
    }

    /// Somebody at the device wants changes to be held back, or to go on. Answered once it is written down.
    fn asked(&mut self, Asked { wish, reply }: Asked) {
        let now = clock::now();
        let before = (self.device.clone(), self.unwritten.clone());
        let answer = match wish {
            Wish::Hold { holder, reason, seconds } => {
                let held = self.device.hold(&holder, &reason, Duration::from_secs(seconds), now);
                match &held {
                    // Nothing new: asked again, long before its end.
                    Ok(hold) if self.device.holds(now).contains(&hold) => {}
                    Ok(hold) => {
                        tracing::info!(holder = hold.holder, reason = hold.reason, until = %hold.until, "changes are held back");
                        self.absorb(Event::Held(hold.clone()));
                    }
                    Err(refused) => tracing::info!(holder, %refused, "changes are not held back"),
                }
                Reply::from(held)
            }
            Wish::Release { holder } => {
                let ends = |hold: &&Hold| holder.as_ref().is_none_or(|holder| hold.holder == *holder);
                let released = self.device.holds(now).into_iter().filter(ends).count();
                tracing::info!(holder, released, "changes go on");
                self.absorb(Event::Released(holder));
                Reply { released: Some(released), ..Reply::default() }
            }
        };
        let answer = match self.commit() {
            Ok(()) => answer,
            Err(error) => {
                tracing::error!(%error, "what was asked could not be written down; holds are as before");
                (self.device, self.unwritten) = before;
                self.tell_of_passing();
                Reply { error: Some(format!("it could not be written down: {error}")), ..Reply::default() }
            }
        };
        // Who asked may have gone; what was asked holds all the same.
        reply.send(answer).ok();
    }

    fn absorb(&mut self, event: Event) {
        let before: BTreeMap<AssignmentId, _> =
            self.device.assignments().iter().map(|(id, assignment)| (*id, assignment.state)).collect();
        let could_look = self.device.runtime_trouble().is_none();
        let refused = self.device.hold_refused().map(str::to_owned);
        self.device.absorb(&self.settings, clock::now(), clock::roll(), event);
        self.runtime.let_images_go(self.device.removes_images(&self.settings));
        for (id, assignment) in self.device.assignments() {
            if before.get(id) != Some(&assignment.state) {
                let reason = assignment.failure.as_ref().map(|failure| failure.message.as_str());
                let name = [assignment.wanted, assignment.here().held]
                    .into_iter()
                    .flatten()
                    .find_map(|document| self.name_in(document));
                tracing::info!(deployment = name.unwrap_or_else(|| id.to_string()), assignment = %id, state = %assignment.state, attempt = assignment.attempt, reason, "state");
            }
        }
        if let Some(why) = self.device.hold_refused().filter(|why| refused.as_deref() != Some(*why)) {
            tracing::warn!(why, "changes are not held back, though an operator asks for it");
        }
        match self.device.runtime_trouble() {
            Some(failure) if could_look => {
                tracing::warn!(%failure, "the container engine cannot be used; what runs there is not seen")
            }
            None if !could_look => tracing::info!("the container engine is back"),
            _ => {}
        }
        self.tell_of_passing();
    }

    /// What people call what a document is about; none where it is not here.
    fn name_in(&self, document: Digest) -> Option<String> {
        let document = self.blobs.read(&document)?;
        Some(document::read_any(document.bytes(), &self.settings.device).ok()?.name)
    }

    /// A fact: remembered at once, and written down as soon as the disk allows.
    fn take_in(&mut self, event: Event) {
        let event = match event {
            Event::Fetched(Ok(delivery)) => match self.keep(&delivery) {
                Ok(()) => Event::Fetched(Ok(self.judged_before(delivery))),
                Err(error) => {
                    tracing::error!(%error, "documents could not be kept");
                    Event::Fetched(Err(unwritten::no_place(error.to_string())))
                }
            },
            event => event,
        };
        if matches!(event, Event::Polled(Ok(_))) && !self.polled {
            self.polled = true;
            tracing::info!("first poll answered");
        }
        if let Some(trouble) = trouble_in(&event) {
            tracing::warn!(trouble, "the server could not be used");
        }
        let judged = matches!(event, Event::Polled(Ok(_)));
        let was_away = self.device.contact().1.is_some();
        self.absorb(event);
        if was_away && self.device.contact().1.is_none() {
            tracing::info!("the server answers again");
        }
        if let (true, Some(trouble)) = (judged, self.device.contact().1) {
            // The server answered, and its manifest goes back (MI-G2-080).
            tracing::warn!(trouble, "security: the server's manifest was refused; what is held stays");
        }
        if let Err(error) = self.commit() {
            // The fact is known and will be written with the next commit; a crash before it repeats an
            // action that is safe to repeat.
            tracing::error!(%error, "a fact could not be written down yet");
        }
    }

    /// What is in force and was lost on the disk was judged when it came first, as at a start.
    fn judged_before(&self, delivery: Delivery) -> Delivery {
        let kept = self.device.kept();
        let read = |(document, reading): (Document, Reading)| match kept.get(&document.digest()) {
            Some((id, true)) => {
                let reading = reading.or_else(|_| self.own.understand(*id, &document));
                (document, reading)
            }
            _ => (document, reading),
        };
        delivery.into_iter().map(read).collect()
    }

    fn keep(&mut self, delivery: &Delivery) -> Result<(), LedgerError> {
        delivery.iter().try_for_each(|(document, _)| self.blobs.put(document))
    }

    fn commit(&mut self) -> Result<(), LedgerError> {
        let written = self.ledger.commit(&self.device);
        let is_back = self.unwritten.take_in(written.as_ref().err(), clock::now());
        written?;
        if is_back {
            // What was not sent for want of a disk waits no longer.
            self.absorb(Event::WayRenewed);
        }
        let documents = self.device.documents();
        if self.kept.as_ref() != Some(&documents) {
            self.blobs.sweep(&documents);
            // Until every document is here nobody can tell, and it is asked again.
            if let Some(orders) = self.device.needed() {
                self.runtime.keep(orders);
                self.kept = Some(documents);
            }
        }
        Ok(())
    }

    /// Whoever asks before the server is heard again is to read when it was heard last. That is all that is not written down yet,
    /// and no reason to end badly.
    fn stop(&mut self) {
        self.absorb(Event::Stopping);
        if let Err(error) = self.commit() {
            tracing::warn!(%error, "when the server was last heard could not be written down");
        }
    }

    fn publish_status(&self, live: &std::sync::Mutex<Live>, upstream: &Upstream, way: &Way) {
        let (last_contact, trouble) = self.device.contact();
        let mut live = live.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        live.last_contact = last_contact;
        live.trouble = trouble.map(str::to_owned);
        live.identity_notice = way.notice();
        live.overrides = self.own.capabilities.overrides.clone();
        live.remarks = self.runtime.remarks();
        live.seen = self.device.seen().to_vec();
        live.seen_at = self.device.seen_at();
        live.crowded_out = self.device.crowded_out(&self.settings, clock::now());
        live.silent_until = match self.device.network(&self.settings, clock::now()) {
            Gate::Closed(opens) => opens,
            Gate::Open(_) => None,
        };
        way.set_silent_until(live.silent_until);
        live.runtime_trouble = self.device.runtime_trouble().map(|failure| failure.message.clone());
        let why = self.unwritten.trouble();
        live.unwritten = why.map(|why| (why.to_owned(), Box::new(self.device.clone())));
        live.bytes_written =
            self.ledger.bytes_written() + self.blobs.bytes_written() + self.runtime.bytes_written();
        let traffic = upstream.traffic();
        live.bytes_sent = traffic.sent;
        live.bytes_received = traffic.received;
    }
}

impl Own {
    fn new(device: DeviceId, tongue: Tongue, capabilities: Capabilities) -> Self {
        let body = tongue.capabilities(&capabilities);
        Own { device, tongue, capabilities, body }
    }

    /// What the document of an assignment says, whoever it is for.
    fn understand(&self, id: AssignmentId, document: &Document) -> Reading {
        let invalid = |message: String| Failure::new(FailureCode::DocumentInvalid, message);
        let workload =
            margrave_wire::document::read_any(document.bytes(), &self.device).map_err(|violations| {
                let said: Vec<String> =
                    violations.iter().take(5).map(|violation| violation.to_string()).collect();
                invalid(format!("the document is not usable: {}", said.join("; ")))
            })?;
        if id != workload.id {
            return Err(invalid(format!("the document of {id} calls itself {}", workload.id)));
        }
        Ok(workload)
    }

    /// What it says to this device: a workload that can run here, or why it cannot.
    fn read(&self, id: AssignmentId, document: &Document) -> Reading {
        let not_eligible = |message: String| Failure::new(FailureCode::NotEligible, message);
        let workload = self.understand(id, document)?;
        match &workload.placement {
            Placement::Device(wanted) if *wanted == self.device => {}
            Placement::Device(other) => {
                return Err(not_eligible(format!("the document is for device {other}")));
            }
            Placement::AnyChildOf(gateway) => {
                let message = format!(
                    "the document is for a child of {gateway}, and this device has none to choose from"
                );
                return Err(not_eligible(message));
            }
        }
        if let Some(constraints) = &workload.constraints {
            let Capabilities { properties, labels, .. } = &self.capabilities;
            constraints::eligible(constraints, properties, labels)
                .map_err(|misfit| not_eligible(misfit.message))?;
        }
        Ok(workload)
    }
}

async fn perform(action: Action, upstream: Arc<Upstream>, runtime: Arc<dyn Runtime>, own: Arc<Own>) -> Event {
    match action {
        Action::SendCapabilities => Event::CapabilitiesSent(upstream.send_capabilities(&own.body).await),
        Action::Poll { held, wait } => Event::Polled(upstream.poll(held, wait).await),
        Action::Fetch(plan) => Event::Fetched(upstream.fetch(&plan).await.map(|documents| {
            let read = |(id, document): (AssignmentId, Document)| {
                let reading = own.read(id, &document);
                (document, reading)
            };
            documents.into_iter().map(read).collect()
        })),
        Action::Send(report) => {
            let sequence = report.detail.as_ref().map_or(0, |detail| detail.sequence);
            match upstream.send_report(&report).await {
                Ok(()) => Event::Sent { sequence, result: Ok(()) },
                Err(untold) => untold.of_report(sequence),
            }
        }
        Action::Observe => Event::Observed(runtime.observe().await),
        Action::Prefetch(order) => {
            let result = runtime.prefetch(&order).await;
            let fingerprint = order.fingerprint();
            Event::Prefetched {
                assignment: order.assignment,
                component: order.component,
                fingerprint,
                result,
            }
        }
        Action::Apply(order) => {
            let result = runtime.apply(&order).await;
            let fingerprint = order.fingerprint();
            Event::Applied { assignment: order.assignment, component: order.component, fingerprint, result }
        }
        Action::Remove { assignment, component, aside } => {
            let result = match aside {
                true => runtime.set_aside(assignment, &component).await,
                false => runtime.remove(assignment, &component).await,
            };
            Event::Removed { assignment, component, result }
        }
    }
}

fn trouble_in(event: &Event) -> Option<&str> {
    let trouble = match event {
        Event::CapabilitiesSent(Err(trouble))
        | Event::Polled(Err(trouble))
        | Event::Fetched(Err(trouble)) => trouble,
        Event::Sent { result: Err(trouble), .. } | Event::Rebuffed { trouble, .. } => trouble,
        _ => return None,
    };
    Some(&trouble.message)
}

/// The outcome of an action that was dropped because nobody wants it any more.
fn cancelled(action: &Action) -> Event {
    action.undone("stopped, because something else is wanted now", FailureCode::StartFailed)
}

fn not_begun(action: &Action, error: &LedgerError) -> Event {
    let message = format!("not begun: {error}");
    match action {
        Action::Fetch(_) => Event::Fetched(Err(unwritten::no_place(message))),
        // Full or broken: either way it is the disk, and not what was to be done.
        _ => action.undone(&message, FailureCode::DiskFull),
    }
}

#[cfg(test)]
mod tests {
    use margrave_core::device::Trouble;

    use super::*;
    use crate::runtime::simulated::{SimulatedRuntime, Simulation};

    fn agent(data: &Path) -> Agent {
        let device: DeviceId = "line-1".parse().unwrap();
        let capabilities = Capabilities {
            device: device.clone(),
            vendor: "margrave".into(),
            model_number: "one".into(),
            serial_number: "1".into(),
            hosting: None,
            properties: Default::default(),
            labels: BTreeMap::new(),
            simulated: true,
            agent_version: None,
            overrides: vec![],
            holds: vec![],
            looked: 0,
            blind: None,
        };
        let (ledger, ..) = StateFile::open(&data.join("ledger")).unwrap();
        Agent {
            device: Device::blank(),
            settings: Settings::new(device.clone()),
            runtime: Arc::new(SimulatedRuntime::new(Simulation::new(1))),
            own: Arc::new(Own::new(device, Tongue::G2, capabilities)),
            ledger,
            blobs: Blobs::open(&data.join("documents")).unwrap(),
            kept: None,
            polled: false,
            unwritten: Unwritten::default(),
        }
    }

    /// What is logged meanwhile.
    fn logged(what: impl FnOnce()) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = std::sync::Mutex::new(file.reopen().unwrap());
        let log =
            tracing_subscriber::fmt().with_writer(writer).with_ansi(false).without_time().with_target(false);
        tracing::subscriber::with_default(log.finish(), what);
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn an_engine_and_a_server_that_go_away_and_are_back_are_told_of_once() {
        let data = tempfile::tempdir().unwrap();
        let mut agent = agent(data.path());
        let away = || Failure::new(FailureCode::RuntimeUnreachable, "No answer.");
        let log = logged(|| {
            agent.take_in(Event::Observed(Ok(vec![])));
            agent.take_in(Event::Observed(Err(away())));
            agent.take_in(Event::Observed(Err(away())));
            agent.take_in(Event::Observed(Ok(vec![])));
            agent.take_in(Event::Observed(Ok(vec![])));
        });
        assert_eq!(
            log.lines().map(str::trim).collect::<Vec<_>>(),
            [
                "WARN the container engine cannot be used; what runs there is not seen failure=No answer.",
                "INFO the container engine is back",
            ]
        );
        let sent = Digest::of(&agent.own.body);
        let log = logged(|| {
            agent.take_in(Event::CapabilitiesSent(Err(Trouble::passing("no connection"))));
            agent.take_in(Event::CapabilitiesSent(Ok(sent)));
            agent.take_in(Event::CapabilitiesSent(Ok(sent)));
        });
        assert_eq!(
            log.lines().map(str::trim).collect::<Vec<_>>(),
            [r#"WARN the server could not be used trouble="no connection""#, "INFO the server answers again"]
        );
    }

    fn ask(agent: &mut Agent, wish: Wish) -> Reply {
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        agent.asked(Asked { wish, reply });
        answer.try_recv().unwrap()
    }

    #[test]
    fn what_could_not_be_written_down_is_neither_held_nor_released() {
        let data = tempfile::tempdir().unwrap();
        let (ledger, away) = (data.path().join("ledger"), data.path().join("away"));
        let mut agent = agent(data.path());
        let hold = || Wish::Hold { holder: "mes".into(), reason: "a batch runs".into(), seconds: 600 };
        let release = || Wish::Release { holder: None };
        let holds =
            |agent: &Agent| (agent.device.holds(clock::now()).len(), agent.own.capabilities.holds.len());

        std::fs::rename(&ledger, &away).unwrap();
        assert!(ask(&mut agent, hold()).error.unwrap().contains("could not be written down"));
        assert_eq!(holds(&agent), (0, 0), "who asked was told that nothing is held back");
        std::fs::rename(&away, &ledger).unwrap();
        assert_eq!(ask(&mut agent, hold()).error, None);
        assert_eq!(holds(&agent), (1, 1));
        std::fs::rename(&ledger, &away).unwrap();
        assert!(ask(&mut agent, release()).error.unwrap().contains("could not be written down"));
        assert_eq!(holds(&agent), (1, 1));
        std::fs::rename(&away, &ledger).unwrap();
        assert_eq!(ask(&mut agent, release()).released, Some(1));
        assert_eq!(holds(&agent), (0, 0));
    }
}
