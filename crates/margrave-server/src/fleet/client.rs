//! The live picture of clients: what every device request is answered from, without touching the disk.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, ClientId, DeviceId, DeviceRef};
use margrave_core::manifest::Manifest;
use margrave_core::moment::Moment;
use margrave_device_api::{LiveManifest, Outside};
use margrave_store::{Standing, Store};
use margrave_wire::Dialect;
use tokio::sync::watch;

use super::schedule::Told;
use super::telling::Telling;
use super::{Error, Fleet};

#[derive(Clone)]
struct State {
    standing: Standing,
    manifest: Arc<LiveManifest>,
}

struct Live {
    /// For as long as it exists.
    client: ClientId,
    dialect: Dialect,
    state: watch::Sender<State>,
    joined: Moment,
    /// Milliseconds; 0 when never.
    contact: AtomicU64,
    /// The contact that is in the store.
    contact_saved: AtomicU64,
    /// The newest manifest version that the client asked for and was given (or told that it has it).
    fetched: AtomicU64,
    /// The manifest version that the client showed to hold, and since when it does.
    holds: AtomicU64,
    holds_since: AtomicU64,
    /// Polls that are being held.
    held: AtomicUsize,
    /// How often those that were held have been let go.
    releases: AtomicUsize,
}

impl Live {
    /// When it was last heard of, or when it joined.
    fn heard(&self) -> Moment {
        match self.contact.load(Ordering::Relaxed) {
            0 => self.joined,
            contact => Moment(contact),
        }
    }

    /// Looks at an accepted client that is spoken to in this form.
    fn within<T>(&self, dialect: Dialect, look: impl FnOnce(&State) -> T) -> Result<T, Outside> {
        let state = self.state.borrow();
        match state.standing {
            _ if self.dialect != dialect => Err(Outside::Unknown),
            Standing::Retired => Err(Outside::Retired),
            Standing::Accepted => Ok(look(&state)),
        }
    }
}

/// A client that is known, found once: whoever keeps this need not look for it again.
#[derive(Clone)]
pub struct Found(Arc<Live>);

/// A client holds one poll, and perhaps one more that its network lost; what lies beyond is answered at once.
const HELD_PER_CLIENT_MAX: usize = 8;

/// A poll that is being held, until dropped.
struct Held<'a>(&'a AtomicUsize);

impl<'a> Held<'a> {
    fn one_of(held: &'a AtomicUsize) -> Option<Self> {
        let one = Held(held);
        (held.fetch_add(1, Ordering::Relaxed) < HELD_PER_CLIENT_MAX).then_some(one)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// In which forms nobody waits any longer.
#[derive(Default)]
struct Released {
    miaf: AtomicBool,
    signed: AtomicBool,
}

impl Released {
    fn of(&self, dialect: Dialect) -> &AtomicBool {
        match dialect {
            Dialect::Miaf => &self.miaf,
            Dialect::Signed => &self.signed,
        }
    }
}

#[derive(Default)]
pub(super) struct Clients {
    known: RwLock<HashMap<ClientId, Arc<Live>>>,
    /// Those whose last contact is not in the store: whoever asks for them does not go through everybody.
    unsaved: Mutex<HashSet<ClientId>>,
    telling: Telling,
    /// For whom nothing is held any more.
    released: Released,
    /// Which signed clients have a device of that name. Their own names are numbers that we made up, so people
    /// call these devices by the names that they gave themselves.
    signed_devices: RwLock<HashMap<DeviceId, BTreeSet<ClientId>>>,
    pub(super) told: Told,
}

impl Clients {
    pub(super) async fn load(store: &Store) -> Result<Self, Error> {
        let clients = Clients::default();
        for record in store.clients().await? {
            clients.admit(
                record.id,
                record.dialect,
                record.standing,
                record.manifest_version,
                record.manifest_body,
                (record.joined_at, record.last_contact),
            );
        }
        for device in store.devices_in(Dialect::Signed).await? {
            clients.learn(&device);
        }
        for (client, schedule) in store.schedules_told().await? {
            clients.told.set(&client, &schedule);
        }
        Ok(clients)
    }

    fn of(&self, client: &ClientId) -> Option<Arc<Live>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(client).cloned()
    }

    /// Makes a client known, that joined and was last heard of then; one that is known already keeps its place.
    pub(super) fn admit(
        &self,
        client: ClientId,
        dialect: Dialect,
        standing: Standing,
        version: u64,
        body: Vec<u8>,
        (joined, contact): (Moment, Option<Moment>),
    ) {
        let manifest = Arc::new(LiveManifest::new(version, body.into()));
        let live = Live {
            client: client.clone(),
            dialect,
            state: watch::Sender::new(State { standing, manifest }),
            joined,
            contact: AtomicU64::new(contact.map_or(0, |at| at.0)),
            contact_saved: AtomicU64::new(contact.map_or(0, |at| at.0)),
            fetched: AtomicU64::new(0),
            holds: AtomicU64::new(0),
            holds_since: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
        };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(client).or_insert_with(|| Arc::new(live));
    }

    pub(super) fn dialect(&self, client: &ClientId) -> Option<Dialect> {
        self.of(client).map(|live| live.dialect)
    }

    fn standing(&self, client: &ClientId) -> Option<Standing> {
        self.of(client).map(|live| live.state.borrow().standing)
    }

    /// A device of a signed client has this name.
    pub(super) fn learn(&self, device: &DeviceRef) {
        let mut devices = self.signed_devices.write().unwrap_or_else(PoisonError::into_inner);
        devices.entry(device.device.clone()).or_default().insert(device.client.clone());
    }

    /// The signed client whose device is meant by this name alone: the only one, or the only one that is not
    /// retired. A client of that very name comes first.
    fn holder(&self, device: &DeviceId) -> Option<ClientId> {
        let namesake = ClientId::parse(device.gateway().as_str());
        if namesake.is_ok_and(|client| self.of(&client).is_some()) {
            return None;
        }
        let devices = self.signed_devices.read().unwrap_or_else(PoisonError::into_inner);
        let clients = devices.get(device)?;
        let mut accepted = clients.iter().filter(|client| self.standing(client) == Some(Standing::Accepted));
        match (accepted.next(), accepted.next(), clients.len()) {
            (Some(only), None, _) => Some(only.clone()),
            (None, _, 1) => clients.first().cloned(),
            _ => None,
        }
    }

    /// What people call a device.
    pub(super) fn spoken(&self, device: &DeviceRef) -> String {
        match self.holder(&device.device) {
            Some(client) if client == device.client => device.device.to_string(),
            _ => device.to_string(),
        }
    }

    /// The device that people mean: one that is called so by itself is found without its client's name.
    pub(super) fn addressed(&self, device: &DeviceRef) -> DeviceRef {
        if device.device.gateway().as_str() != device.client.as_str() {
            return device.clone();
        }
        match self.holder(&device.device) {
            Some(client) => DeviceRef::new(client, device.device.clone()),
            None => device.clone(),
        }
    }

    /// From now on every request is answered by this standing; whoever waits is woken.
    pub(super) fn set_standing(&self, client: &ClientId, standing: Standing) {
        if let Some(live) = self.of(client) {
            live.state.send_modify(|state| state.standing = standing);
        }
    }

    /// Puts durable manifests in front of their clients. An older one never replaces a newer one, whoever comes first.
    pub(super) fn show(&self, manifests: impl IntoIterator<Item = (ClientId, Manifest, Bytes)>) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let shown: Vec<(Arc<Live>, Arc<LiveManifest>)> = manifests
            .into_iter()
            .filter_map(|(client, manifest, body)| {
                self.told.set(&client, manifest.schedule());
                Some((known.get(&client)?.clone(), Arc::new(LiveManifest::new(manifest.version(), body))))
            })
            .collect();
        drop(known);
        self.telling.begin(shown.iter().map(|(live, _)| live.held.load(Ordering::Relaxed)).sum());
        for (live, manifest) in shown {
            live.state.send_if_modified(|state| {
                let newer = manifest.version > state.manifest.version;
                if newer {
                    state.manifest = manifest;
                }
                newer
            });
        }
    }

    /// When the client was last heard of, also if that is not in the store yet.
    pub(super) fn contact(&self, client: &ClientId) -> Option<Moment> {
        let at = self.of(client)?.contact.load(Ordering::Relaxed);
        (at > 0).then_some(Moment(at))
    }

    pub(super) fn fetched(&self, client: &ClientId) -> u64 {
        self.of(client).map_or(0, |live| live.fetched.load(Ordering::Relaxed))
    }

    /// The version that the client showed to hold.
    pub(super) fn held(&self, client: &ClientId) -> Option<u64> {
        Some(self.of(client)?.holds.load(Ordering::Acquire)).filter(|version| *version > 0)
    }

    /// The same, if it was still heard from so long after it took that up. One that cannot be heard meanwhile
    /// may have much to say.
    pub(super) fn held_for(&self, client: &ClientId, millis: u64) -> Option<u64> {
        let version = self.held(client)?;
        let since = self.of(client)?.holds_since.load(Ordering::Relaxed);
        let heard = self.contact(client)?;
        (heard.0 >= since.saturating_add(millis)).then_some(version)
    }

    /// The version that the client would be given now.
    pub(super) fn version(&self, client: &ClientId) -> u64 {
        self.of(client).map_or(0, |live| live.state.borrow().manifest.version)
    }

    /// The client got this version in another way than by asking for the manifest.
    pub(super) fn was_given(&self, client: &ClientId, version: u64) {
        if let Some(live) = self.of(client) {
            live.fetched.fetch_max(version, Ordering::Relaxed);
        }
    }

    /// Heard of just now. Whoever saves contacts looks, under the lock, whether it is still so; here it is the other way round, so
    /// that one of the two sees the other.
    fn touch(&self, live: &Live, now: Moment) {
        let before = live.contact.fetch_max(now.0, Ordering::SeqCst);
        if before < now.0 && before <= live.contact_saved.load(Ordering::SeqCst) {
            self.unsaved.lock().unwrap_or_else(PoisonError::into_inner).insert(live.client.clone());
        }
    }

    /// Those whose last contact is not in the store, each with it.
    fn unsaved(&self) -> Vec<Arc<Live>> {
        let unsaved = self.unsaved.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        unsaved.iter().filter_map(|client| known.get(client).cloned()).collect()
    }

    fn unsaved_contacts(&self) -> Vec<(ClientId, Moment)> {
        let contact = |live: Arc<Live>| (live.client.clone(), Moment(live.contact.load(Ordering::SeqCst)));
        self.unsaved().into_iter().map(contact).collect()
    }

    fn contacts_are_saved(&self, contacts: &[(ClientId, Moment)]) {
        let mut unsaved = self.unsaved.lock().unwrap_or_else(PoisonError::into_inner);
        for (client, at) in contacts {
            let is_saved = self.of(client).is_none_or(|live| {
                live.contact_saved.fetch_max(at.0, Ordering::SeqCst);
                live.contact.load(Ordering::SeqCst) <= at.0
            });
            if is_saved {
                unsaved.remove(client);
            }
        }
    }

    /// Clients that the store takes for silent and that are not: those who came back within the last moments.
    pub(super) fn heard_since(&self, silent_before: Moment) -> Vec<ClientId> {
        let is_heard = |live: &Arc<Live>| {
            live.contact.load(Ordering::Relaxed) >= silent_before.0
                && live.contact_saved.load(Ordering::Relaxed) < silent_before.0
        };
        self.unsaved().into_iter().filter(is_heard).map(|live| live.client.clone()).collect()
    }

    /// When a client that is let in was last heard of, or when it joined.
    pub(super) fn heard(&self, client: &ClientId) -> Option<Moment> {
        self.of(client)
            .filter(|live| live.state.borrow().standing == Standing::Accepted)
            .map(|live| live.heard())
    }

    /// Clients that are let in and were not heard of since, each with when it was, or when it joined.
    pub(super) fn quiet_since(&self, before: Moment) -> Vec<(ClientId, Moment)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let quiet = known.iter().filter_map(|(client, live)| {
            let heard = live.heard();
            let is_quiet = heard < before && live.state.borrow().standing == Standing::Accepted;
            is_quiet.then(|| (client.clone(), heard))
        });
        quiet.collect()
    }

    /// When anybody was last heard of.
    pub(super) fn heard_last(&self) -> Option<Moment> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let contacts = known.values().map(|live| live.contact.load(Ordering::Relaxed));
        contacts.max().filter(|at| *at > 0).map(Moment)
    }
}

impl Fleet {
    /// Whether the client may speak; asked on every request and answered from memory.
    pub fn standing(&self, client: &ClientId) -> Option<Standing> {
        self.live.standing(client)
    }

    /// Whether the client may speak in this form; one that is spoken to in another does not exist in it.
    pub fn admits(&self, client: &ClientId, dialect: Dialect) -> Result<(), Outside> {
        self.live.of(client).ok_or(Outside::Unknown)?.within(dialect, |_| ())
    }

    /// In which form the client is spoken to; `None` if there is no such client.
    pub fn dialect(&self, client: &ClientId) -> Option<Dialect> {
        self.live.dialect(client)
    }

    /// The manifest to answer the client's request with; it counts as fetched.
    pub fn manifest(&self, client: &ClientId, dialect: Dialect) -> Result<Arc<LiveManifest>, Outside> {
        self.manifest_at(&self.find(client).ok_or(Outside::Unknown)?, dialect)
    }

    /// The client showed that it holds the manifest of this version; it has adopted everything up to it.
    pub fn client_holds(&self, client: &ClientId, version: u64) {
        if let Some(live) = self.live.of(client)
            && live.holds.load(Ordering::Relaxed) != version
        {
            live.holds_since.store(self.now().0, Ordering::Relaxed);
            live.holds.store(version, Ordering::Release);
        }
    }

    /// Where a client is kept. It stays there for as long as the server runs.
    pub fn find(&self, client: &ClientId) -> Option<Found> {
        self.live.of(client).map(Found)
    }

    /// As [`Fleet::manifest`], of a client that was found before.
    pub fn manifest_at(&self, Found(live): &Found, dialect: Dialect) -> Result<Arc<LiveManifest>, Outside> {
        let manifest = live.within(dialect, |state| Arc::clone(&state.manifest))?;
        live.fetched.fetch_max(manifest.version, Ordering::Relaxed);
        self.meters.poll();
        Ok(manifest)
    }

    /// Returns when the client's manifest differs from `than`, the client is put out or let go, or time is up. `false`
    /// at once when the client has as many polls held as it may.
    pub async fn manifest_changed(&self, client: &ClientId, than: Digest, within: Duration) -> bool {
        let Some(live) = self.live.of(client) else { return false };
        let releases = live.releases.load(Ordering::Relaxed);
        let Some(_held) = Held::one_of(&live.held) else { return false };
        let _waiting = self.meters.wait();
        let mut state = live.state.subscribe();
        let changed = state.wait_for(|state| {
            state.standing != Standing::Accepted
                || state.manifest.digest != than
                || self.live.released.of(live.dialect).load(Ordering::Relaxed)
                || live.releases.load(Ordering::Relaxed) != releases
        });
        // The sender lives as long as `live`; only time can end this without a change.
        drop(tokio::time::timeout(within, changed).await);
        if live.state.borrow().manifest.digest != than {
            self.live.telling.told();
        }
        true
    }

    /// Answers the polls of a client that are being held now, although there is nothing new: their connection ends.
    pub fn release_held(&self, client: &ClientId) {
        if let Some(live) = self.live.of(client)
            && live.held.load(Ordering::Relaxed) > 0
        {
            live.releases.fetch_add(1, Ordering::Relaxed);
            live.state.send_modify(|_| {});
        }
    }

    /// Ends when those who are being told of new manifests have been; at once as a rule, and soon in any case. What
    /// takes more than an answer from memory waits for this.
    pub async fn everybody_told(&self) {
        self.live.telling.over().await;
    }

    /// Ends the wait of everybody of this form who waits for a manifest, and of whoever comes later; for a server that
    /// stops.
    pub fn release_waiting(&self, dialect: Dialect) {
        self.live.released.of(dialect).store(true, Ordering::Relaxed);
        let known = self.live.known.read().unwrap_or_else(PoisonError::into_inner);
        let waiting = known.values().filter(|live| live.dialect == dialect);
        waiting.for_each(|live| live.state.send_modify(|_| {}));
    }

    pub async fn document(
        &self,
        client: &ClientId,
        id: AssignmentId,
        digest: Digest,
    ) -> Result<Option<Bytes>, Error> {
        Ok(self.store.document(client, id, digest).await?.map(Bytes::from))
    }

    pub async fn bundle(&self, client: &ClientId, digest: Digest) -> Result<Option<Bytes>, Error> {
        Ok(self.store.bundle(client, digest).await?.map(Bytes::from))
    }

    /// The client was heard of just now: said when a request comes, and not when it is answered, which may be long
    /// after. Costs nothing; written down later, many at once.
    pub fn touched(&self, client: &ClientId) {
        if let Some(found) = self.find(client) {
            self.touched_at(&found);
        }
    }

    /// As [`Fleet::touched`], of a client that was found before.
    pub fn touched_at(&self, Found(live): &Found) {
        self.live.touch(live, self.now());
    }

    /// Writes contacts to the store, and finishes what was left undone; called on a timer and before stopping.
    pub async fn flush_contacts(&self) -> Result<(), Error> {
        let contacts = self.live.unsaved_contacts();
        self.store.touch_contacts(contacts.clone()).await?;
        self.live.contacts_are_saved(&contacts);
        self.flush_seen().await?;
        self.settle().await
    }
}
