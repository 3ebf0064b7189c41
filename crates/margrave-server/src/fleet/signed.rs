//! Clients that sign their requests (g1): who asks to be let in, and what becomes of that.
//!
//! Owns the policy of onboarding and the picture that signatures are checked against, which is in memory: a
//! request costs no look at the disk. How requests are signed is not known here; `margrave-identity` has the keys,
//! `margrave-device-api` the checks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::manifest::Manifest;
use margrave_core::moment::Moment;
use margrave_identity::message::{CertificateFault, ClientCertificate, Roots, VerificationKey};
use margrave_store::{Admission, AdmissionError, NewSigned, SignedRecord, Standing, Store, UsedSignature};
use margrave_wire::{Dialect, operator};

use super::audit::Unasked;
use super::event::time;
use super::{Actor, Error, Fleet};

/// Short enough to type, long enough that nobody means another: a part of an id or fingerprint.
const PART_LENGTH_MIN: usize = 6;
/// Newcomers that are taken in at once, and how long each takes to be forgotten. A plant that is switched on
/// fits; a stranger who makes up keys gets no more lines into the log than this.
const NEWCOMERS_AT_ONCE: u32 = 500;
const NEWCOMER_EVERY: Duration = Duration::from_millis(200);
/// Asking again says little that is new; it is written down no more often than this.
const SEEN_EVERY: Duration = Duration::from_secs(60);

/// Who is let in without being asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accept {
    /// Nobody: an operator decides.
    #[default]
    Ask,
    /// Everybody who can reach the listener.
    Any,
}

/// What is done with those who want to become clients (MI-G1-011).
#[derive(Default)]
pub struct SignedPolicy {
    pub accept: Accept,
    /// Whoever has a certificate of one of these is let in at once.
    pub roots: Option<Roots>,
}

/// What became of somebody who asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Onboarding {
    Accepted(ClientId),
    Pending,
    Rejected,
    /// It was in once, and an operator ended that.
    Retired,
}

/// A signed client as its requests are judged by.
#[derive(Debug, Clone)]
pub struct SignedKey {
    /// `None` while it was not let in.
    pub standing: Option<Standing>,
    pub rejected: bool,
    pub key: Arc<VerificationKey>,
}

struct Signed {
    record: SignedRecord,
    certificate: ClientCertificate,
    given: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Clone)]
struct Seen {
    at: Moment,
    address: Option<String>,
    /// What the store knows.
    saved: Moment,
}

impl Signed {
    fn of(record: SignedRecord) -> Result<Signed, CertificateFault> {
        let certificate = ClientCertificate::read(vec![record.certificate.clone()])?;
        let seen = Seen { at: record.last_seen, address: record.address.clone(), saved: record.last_seen };
        Ok(Signed {
            given: AtomicU64::new(record.version_given),
            seen: Mutex::new(seen),
            certificate,
            record,
        })
    }

    fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn shown(&self) -> operator::SignedClient {
        let Seen { at, address, .. } = self.seen();
        operator::SignedClient {
            client: self.record.id.to_string(),
            decision: self.record.decision.as_str().to_owned(),
            fingerprint: self.record.fingerprint.hex(),
            key: self.certificate.key().kind().to_owned(),
            subject: self.certificate.subject().to_owned(),
            certificate_expires: time(self.certificate.not_after()),
            first_seen: time(self.record.first_seen),
            last_seen: time(at),
            address,
            moved_to: self.record.moved_to.as_ref().map(DeviceRef::to_string),
        }
    }
}

/// Everybody who ever asked and is remembered.
pub(super) struct SignedClients {
    known: RwLock<Known>,
    newcomers: Mutex<Newcomers>,
}

#[derive(Default)]
struct Known {
    by_id: HashMap<ClientId, Arc<Signed>>,
    by_key: HashMap<Digest, ClientId>,
}

/// Counts down as newcomers come, and up as time goes.
struct Newcomers {
    left: u32,
    since: Moment,
}

impl SignedClients {
    pub(super) async fn load(store: &Store) -> Result<Self, Error> {
        let clients = SignedClients {
            known: RwLock::default(),
            newcomers: Mutex::new(Newcomers { left: NEWCOMERS_AT_ONCE, since: Moment(0) }),
        };
        for record in store.signed_clients().await? {
            clients.keep(record);
        }
        Ok(clients)
    }

    fn of(&self, client: &ClientId) -> Option<Arc<Signed>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).by_id.get(client).cloned()
    }

    fn by_key(&self, fingerprint: Digest) -> Option<Arc<Signed>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_key.get(&fingerprint).and_then(|client| known.by_id.get(client)).cloned()
    }

    /// Puts what is durable into the picture. The version given never falls, whoever comes first.
    fn keep(&self, record: SignedRecord) {
        let id = record.id.clone();
        match Signed::of(record) {
            Ok(signed) => {
                let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(before) = known.by_id.get(&id) {
                    signed.given.fetch_max(before.given.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                known.by_key.insert(signed.record.fingerprint, id.clone());
                known.by_id.insert(id, Arc::new(signed));
            }
            // It was read before it was stored; others must not suffer for it.
            Err(fault) => tracing::error!(
                client = %id,
                error = &fault as &dyn std::error::Error,
                "the stored certificate of a signed client cannot be read; it is refused"
            ),
        }
    }

    fn forget(&self, client: &ClientId) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(signed) = known.by_id.remove(client) {
            known.by_key.remove(&signed.record.fingerprint);
        }
    }

    fn all(&self) -> Vec<Arc<Signed>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Arc<Signed>> = known.by_id.values().cloned().collect();
        all.sort_by(|a, b| (a.record.first_seen, &a.record.id).cmp(&(b.record.first_seen, &b.record.id)));
        all
    }

    fn undecided(&self) -> usize {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_id.values().filter(|signed| signed.record.decision == Admission::Pending).count()
    }

    /// Whether another newcomer can be taken in now.
    fn admit_newcomer(&self, now: Moment) -> bool {
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        let every = u64::try_from(NEWCOMER_EVERY.as_millis()).unwrap_or(u64::MAX);
        let passed = now.0.saturating_sub(newcomers.since.0) / every;
        if passed > 0 || newcomers.since > now {
            let more = u32::try_from(passed).unwrap_or(u32::MAX);
            newcomers.left = newcomers.left.saturating_add(more).min(NEWCOMERS_AT_ONCE);
            newcomers.since = now;
        }
        match newcomers.left.checked_sub(1) {
            Some(left) => newcomers.left = left,
            None => return false,
        }
        true
    }

    /// What was seen and is not in the store yet.
    fn unsaved(&self) -> Vec<(ClientId, Moment, String)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let unsaved = known.by_id.values().filter_map(|signed| {
            let Seen { at, address, saved } = signed.seen();
            (at.since(saved) >= SEEN_EVERY)
                .then(|| (signed.record.id.clone(), at, address.unwrap_or_default()))
        });
        unsaved.collect()
    }

    /// Whether anybody's devices were given to others.
    pub(super) fn any_moved(&self) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_id.values().any(|signed| signed.record.moved_to.is_some())
    }

    pub(super) fn moved_to(&self, client: &ClientId) -> Option<DeviceRef> {
        self.of(client)?.record.moved_to.clone()
    }

    pub(super) fn set_moved(&self, client: &ClientId, to: DeviceRef) {
        if let Some(signed) = self.of(client) {
            self.keep(SignedRecord { moved_to: Some(to), ..signed.record.clone() });
        }
    }

    /// Who is meant by an id, a fingerprint, or the beginning of either.
    fn meant(&self, text: &str) -> Result<Option<Arc<Signed>>, Error> {
        if let Some(signed) = ClientId::parse(text).ok().and_then(|client| self.of(&client)) {
            return Ok(Some(signed));
        }
        let text = text.to_ascii_lowercase();
        let text = text.strip_prefix("sha256:").unwrap_or(&text);
        if text.len() < PART_LENGTH_MIN {
            return Ok(None);
        }
        let begins = |signed: &Arc<Signed>| {
            signed.record.id.as_str().starts_with(text) || signed.record.fingerprint.hex().starts_with(text)
        };
        let mut found = self.all().into_iter().filter(begins);
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(Error::conflict(format!(
                "several clients have an id or fingerprint that begins with {text}; write more of it"
            ))),
            (one, _) => Ok(one),
        }
    }
}

impl Fleet {
    /// The client of that id as its requests are judged by; answered from memory.
    pub fn signed_key(&self, client: &ClientId) -> Option<SignedKey> {
        let signed = self.signed.of(client)?;
        let standing = match signed.record.decision {
            Admission::Accepted => self.standing(client),
            Admission::Pending | Admission::Rejected => None,
        };
        let rejected = signed.record.decision == Admission::Rejected;
        Some(SignedKey { standing, rejected, key: Arc::clone(signed.certificate.key()) })
    }

    /// Decides about somebody who hands in a certificate. `proven` says that it holds the key.
    pub async fn onboard(
        &self,
        policy: &SignedPolicy,
        certificate: ClientCertificate,
        proven: bool,
        address: Option<String>,
    ) -> Result<Onboarding, Error> {
        let now = self.now();
        let vouched = policy.roots.as_ref().is_some_and(|roots| roots.vouch_for(&certificate, now).is_ok());
        let decision = match policy.accept {
            _ if vouched => Admission::Accepted,
            // Nobody checks the dates of a certificate that stands for nothing but its key, but one that is over
            // when it is first shown is a mistake that an operator should see.
            Accept::Any if certificate.is_valid(now) => Admission::Accepted,
            Accept::Any | Accept::Ask => Admission::Pending,
        };
        let known = self.signed.by_key(certificate.fingerprint());
        if let Some(signed) = &known {
            let decided = signed.record.decision != Admission::Pending || decision == Admission::Pending;
            let same = signed.record.certificate == certificate.der() || !proven;
            if decided && same {
                let mut seen = signed.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.at = seen.at.max(now);
                seen.address = address.or(seen.address.take());
                drop(seen);
                return Ok(self.outcome(&signed.record));
            }
        }
        if known.is_none() && !vouched && !self.signed.admit_newcomer(now) {
            return Err(Error::Overloaded);
        }
        let actor = match (decision, vouched) {
            (Admission::Accepted, true) => "server (its issuer is trusted)",
            (Admission::Accepted, false) => "server (everybody is accepted)",
            _ => "server",
        };
        let onboarded = |id: String, decision| Unasked {
            actor: format!("device {id}"),
            way: "device",
            source: address.clone().unwrap_or_default(),
            detail: match decision {
                Admission::Pending => "waits for an operator's word".to_owned(),
                Admission::Accepted => "accepted".to_owned(),
                Admission::Rejected => "rejected".to_owned(),
            },
            ..Unasked::new("device.onboard", id)
        };
        // Bounded as newcomers are. By which name it is known is decided with it.
        let by_key = format!("with the key {}", certificate.fingerprint());
        let begun = self.begun(onboarded(by_key, decision));
        let keeping = Box::pin(self.keep_signed(certificate, address.clone(), decision, actor));
        let kept = begun.during(keeping).await;
        let entry = kept.as_ref().ok().map(|record| onboarded(record.id.to_string(), record.decision));
        self.conclude_or_log(&begun, entry.map(|entry| entry.entry(now))).await;
        let record = kept?;
        Ok(self.outcome(&record))
    }

    fn outcome(&self, record: &SignedRecord) -> Onboarding {
        match record.decision {
            Admission::Pending => Onboarding::Pending,
            Admission::Rejected => Onboarding::Rejected,
            // Who was put out does not come in again by asking.
            Admission::Accepted if self.standing(&record.id) == Some(Standing::Retired) => {
                Onboarding::Retired
            }
            Admission::Accepted => Onboarding::Accepted(record.id.clone()),
        }
    }

    async fn keep_signed(
        &self,
        certificate: ClientCertificate,
        address: Option<String>,
        decision: Admission,
        actor: &str,
    ) -> Result<SignedRecord, Error> {
        let new = NewSigned {
            // MI-G1-010: a UUIDv4, which cannot be guessed from anything else about the client.
            id: ClientId::parse(&uuid::Uuid::new_v4().to_string()).expect("a UUID is a client id"),
            certificate: certificate.der().to_vec(),
            fingerprint: certificate.fingerprint(),
            address,
            not_after: certificate.not_after(),
            decision,
            actor: actor.to_owned(),
        };
        let (id, record) = {
            // Nobody publishes to a new client before it is in the live picture.
            let _deciding = self.deciding.write().await;
            let onboarded = self.store.onboard(new, self.now(), first_manifest()).await?;
            for forgotten in &onboarded.forgotten {
                self.signed.forget(forgotten);
            }
            self.signed.keep(onboarded.record.clone());
            self.admit_live(&onboarded.record);
            (onboarded.record.id.clone(), onboarded.record)
        };
        if record.decision == Admission::Accepted {
            tracing::info!(client = %id, "a signed client was accepted");
            self.settle_or_log().await;
        }
        Ok(record)
    }

    fn admit_live(&self, record: &SignedRecord) {
        if record.decision == Admission::Accepted {
            let (id, body) = (record.id.clone(), first_manifest());
            self.live.admit(id, Dialect::Signed, Standing::Accepted, 1, body, (self.now(), None));
        }
    }

    /// Those who sign, or asked to; with a decision, only those of it. The oldest first.
    pub fn signed_clients(&self, decision: Option<&str>) -> Result<Vec<operator::SignedClient>, Error> {
        let decision = match decision.filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(Admission::parse(text).ok_or_else(|| {
                let message = "a decision is one of pending, accepted or rejected";
                Error::invalid("/decision", "query", message)
            })?),
        };
        let all = self.signed.all().into_iter();
        let wanted = all.filter(|signed| decision.is_none_or(|decision| signed.record.decision == decision));
        Ok(wanted.map(|signed| signed.shown()).collect())
    }

    /// How many devices wait for an operator to decide about them.
    pub fn signed_waiting(&self) -> usize {
        self.signed.undecided()
    }

    /// Lets a device in whose certificate an operator brings before it ever asked, or while it waits.
    pub async fn accept_certificate(
        &self,
        actor: &Actor,
        want: operator::AcceptCertificate,
    ) -> Result<operator::SignedClient, Error> {
        let certificate = ClientCertificate::from_pem(&want.certificate).map_err(|fault| {
            Error::invalid("/certificate", "MI-G1-029", format!("{}; give one in PEM", chain(&fault)))
        })?;
        let known = self.signed.by_key(certificate.fingerprint());
        match known.map(|signed| signed.record.clone()) {
            Some(record) if record.decision == Admission::Rejected => {
                self.admit_signed(actor, &record.id).await?;
            }
            Some(record) if self.standing(&record.id) == Some(Standing::Retired) => {
                let id = &record.id;
                return Err(Error::conflict(format!(
                    "the client with this key, {id}, is retired; accept it again with its id"
                )));
            }
            _ => {
                self.keep_signed(certificate.clone(), None, Admission::Accepted, &actor.name).await?;
            }
        }
        let kept = self.signed.by_key(certificate.fingerprint());
        kept.map(|signed| signed.shown()).ok_or_else(|| Error::not_found("client with this key"))
    }

    /// Turns away a device that waits to be let in.
    pub async fn reject(&self, actor: &Actor, device: &DeviceRef) -> Result<operator::SignedClient, Error> {
        let text = device.to_string();
        let signed = self.signed.meant(&text)?;
        let signed =
            signed.ok_or_else(|| Error::not_found(format!("device {text} that waits to be accepted")))?;
        let _deciding = self.deciding.write().await;
        let rejected = self.store.reject_signed(&signed.record.id, self.now(), &actor.name).await;
        self.signed.keep(rejected.map_err(admission_error)?);
        let kept = self.signed.of(&signed.record.id).unwrap_or(signed);
        Ok(kept.shown())
    }

    /// Lets in who waits, if somebody of that name does. `None` if nobody does.
    pub(super) async fn accept_waiting(
        &self,
        actor: &Actor,
        text: &str,
    ) -> Result<Option<operator::Device>, Error> {
        let Some(signed) = self.signed.meant(text)? else { return Ok(None) };
        let id = signed.record.id.clone();
        if signed.record.decision != Admission::Accepted {
            self.admit_signed(actor, &id).await?;
        }
        // It may have said its own name since then.
        let devices = self.store.devices_of(&id).await?;
        let device = devices.into_iter().find(|record| !record.device.device.is_child());
        match device {
            Some(record) => Ok(Some(self.device(&record.device).await?)),
            None => Ok(None),
        }
    }

    async fn admit_signed(&self, actor: &Actor, client: &ClientId) -> Result<(), Error> {
        let signed = self.signed.of(client).ok_or_else(|| Error::not_found(format!("client {client}")))?;
        let not_after = signed.certificate.not_after();
        {
            let _deciding = self.deciding.write().await;
            let admitted =
                self.store.admit_signed(client, not_after, self.now(), &actor.name, first_manifest()).await;
            let record = match admitted {
                // Somebody else was as fast; what was asked for is so.
                Err(AdmissionError::Accepted(_)) => return Ok(()),
                admitted => admitted.map_err(admission_error)?,
            };
            self.admit_live(&record);
            self.signed.keep(record);
        }
        self.settle_or_log().await;
        Ok(())
    }

    /// The client is about to be given this version of its manifest. Once this answers, it is known after a crash,
    /// too: a report that comes then says nothing about which version it speaks of.
    pub async fn manifest_given(&self, client: &ClientId, version: u64) -> Result<(), Error> {
        let Some(signed) = self.signed.of(client) else { return Ok(()) };
        if signed.given.load(Ordering::Relaxed) >= version {
            return Ok(());
        }
        self.store.note_given(client, version).await?;
        // The entry may have been replaced in the meantime.
        let signed = self.signed.of(client).unwrap_or(signed);
        signed.given.fetch_max(version, Ordering::Relaxed);
        Ok(())
    }

    pub fn manifest_last_given(&self, client: &ClientId) -> Option<u64> {
        let given = self.signed.of(client)?.given.load(Ordering::Relaxed);
        (given > 0).then_some(given)
    }

    /// Signatures that were used before the last stop or crash and could still be repeated.
    pub async fn used_signatures(&self) -> Result<Vec<UsedSignature>, Error> {
        Ok(self.store.used_signatures(self.now()).await?)
    }

    /// Keeps used signatures; durable before it answers.
    pub async fn keep_signatures(&self, used: Vec<UsedSignature>) -> Result<(), Error> {
        Ok(self.store.keep_signatures(used, self.now()).await?)
    }

    /// Writes down who asked again since the last time.
    pub(super) async fn flush_seen(&self) -> Result<(), Error> {
        let seen = self.signed.unsaved();
        self.store.touch_signed(seen.clone()).await?;
        for (client, at, _) in seen {
            if let Some(signed) = self.signed.of(&client) {
                signed.seen.lock().unwrap_or_else(PoisonError::into_inner).saved = at;
            }
        }
        Ok(())
    }
}

/// Of a client to whom nothing is assigned; the same for every client.
fn first_manifest() -> Vec<u8> {
    let first = Manifest::new(1, None, vec![]).expect("an empty manifest of version 1 is valid");
    margrave_wire::g2::manifest::write(&first)
}

pub(super) fn admission_error(error: AdmissionError) -> Error {
    match error {
        AdmissionError::Unknown(client) => Error::not_found(format!("client {client}")),
        error @ (AdmissionError::Accepted(_) | AdmissionError::Moved { .. }) => {
            Error::conflict(error.to_string())
        }
        AdmissionError::Store(error) => error.into(),
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
