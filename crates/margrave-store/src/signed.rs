//! Clients of the signed interface: who asked to be let in, and what was decided.
//!
//! Who has a key is a client, whatever certificate is around it: a certificate that was renewed for the same key
//! speaks for the same client. Whether somebody may come in is decided by others; that the decision is kept, and
//! that strangers cannot fill the database with their asking, is decided here.

use margrave_core::digest::Digest;
use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_wire::Dialect;
use rusqlite::{OptionalExtension as _, Row};

use crate::client::{self, own_device, retire};
use crate::column::{self, Columns as _};
use crate::device;
use crate::error::from_database;
use crate::event::NewEvent;
use crate::sql::Sql;
use crate::writer::Tx;
use crate::{Error, Store};

/// Undecided clients that are remembered. An operator looks through some hundreds at most; a stranger who makes up
/// keys cannot take more than about a megabyte.
pub const PENDING_MAX: u32 = 500;
/// What a commit is to say of a move that the database has and the repository has not; kept with the move.
pub const MOVE_UNWRITTEN: &str = "move-unwritten";

/// What was decided about somebody who asked to be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Pending,
    Accepted,
    Rejected,
}

impl Admission {
    pub const ALL: [Admission; 3] = [Admission::Pending, Admission::Accepted, Admission::Rejected];

    pub fn as_str(self) -> &'static str {
        match self {
            Admission::Pending => "pending",
            Admission::Accepted => "accepted",
            Admission::Rejected => "rejected",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|decision| decision.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedRecord {
    pub id: ClientId,
    /// DER, exactly as it came.
    pub certificate: Vec<u8>,
    /// SHA-256 of the public key.
    pub fingerprint: Digest,
    pub decision: Admission,
    pub first_seen: Moment,
    pub last_seen: Moment,
    /// Where it last asked from; `None` when it never did.
    pub address: Option<String>,
    /// The newest manifest version that it was given.
    pub version_given: u64,
    /// The device that took its place.
    pub moved_to: Option<DeviceRef>,
}

/// Somebody who shows a certificate, or whose certificate an operator brings.
#[derive(Debug, Clone)]
pub struct NewSigned {
    /// Its id, if the key was never seen before.
    pub id: ClientId,
    pub certificate: Vec<u8>,
    pub fingerprint: Digest,
    /// Where it asks from.
    pub address: Option<String>,
    /// Until when the certificate is valid.
    pub not_after: Moment,
    /// What is to become of it, if nobody decided before.
    pub decision: Admission,
    /// Who says so, for the log.
    pub actor: String,
}

/// Why a decision about a signed client cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    #[error("nobody with the id {0} asked to be let in")]
    Unknown(ClientId),
    #[error("{0} was accepted before; retire it to shut it out")]
    Accepted(ClientId),
    #[error("{client} was moved to {to} and cannot be let in again")]
    Moved { client: ClientId, to: DeviceRef },
    #[error(transparent)]
    Store(#[from] Error),
}
from_database!(AdmissionError);

/// What onboarding came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Onboarded {
    pub record: SignedRecord,
    /// Undecided ones that had to make place.
    pub forgotten: Vec<ClientId>,
}

fn read(row: &Row<'_>) -> rusqlite::Result<SignedRecord> {
    let moved: Option<String> = row.get("moved_to")?;
    Ok(SignedRecord {
        id: row.parsed("id")?,
        certificate: row.get("certificate")?,
        fingerprint: row.digest("fingerprint")?,
        decision: column::word(row, "decision", Admission::parse)?,
        first_seen: row.moment("first_seen")?,
        last_seen: row.moment("last_seen")?,
        address: row.get("address")?,
        version_given: row.unsigned("version_given")?,
        moved_to: moved.map(|_| row.parsed("moved_to")).transpose()?,
    })
}

fn one(sql: &Sql<'_>, client: &ClientId) -> rusqlite::Result<Option<SignedRecord>> {
    sql.statement("SELECT * FROM signed_client WHERE id = ?1")?.query_row([client.as_str()], read).optional()
}

/// Whether the id belongs to a signed client, of whatever decision.
pub(crate) fn is_signed(sql: &Sql<'_>, client: &ClientId) -> rusqlite::Result<bool> {
    sql.statement("SELECT 1 FROM signed_client WHERE id = ?1")?.exists([client.as_str()])
}

impl Store {
    /// Everybody who ever asked and is still remembered, the oldest first.
    pub async fn signed_clients(&self) -> Result<Vec<SignedRecord>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT * FROM signed_client ORDER BY first_seen, id")?;
            Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Keeps who asks. A key that was seen before keeps its id and what was decided about it, unless that was
    /// nothing yet. `first_manifest` is the body of an empty manifest of version 1.
    pub async fn onboard(
        &self,
        new: NewSigned,
        at: Moment,
        first_manifest: Vec<u8>,
    ) -> Result<Onboarded, Error> {
        self.write(move |tx| onboard(tx, &new, at, &first_manifest)).await
    }

    /// Lets in who waits, or who was rejected before.
    pub async fn admit_signed(
        &self,
        client: &ClientId,
        not_after: Moment,
        at: Moment,
        actor: &str,
        first_manifest: Vec<u8>,
    ) -> Result<SignedRecord, AdmissionError> {
        let (client, actor) = (client.clone(), actor.to_owned());
        self.write(move |tx| {
            let record = one(tx.sql, &client)?.ok_or_else(|| AdmissionError::Unknown(client.clone()))?;
            match record.decision {
                Admission::Accepted => return Err(AdmissionError::Accepted(client.clone())),
                Admission::Pending | Admission::Rejected => {}
            }
            admit(tx, &record, not_after, at, &actor, &first_manifest)?;
            one(tx.sql, &client)?.ok_or_else(|| AdmissionError::Unknown(client.clone()))
        })
        .await
    }

    /// Turns away who waits. Who was accepted is retired instead.
    pub async fn reject_signed(
        &self,
        client: &ClientId,
        at: Moment,
        actor: &str,
    ) -> Result<SignedRecord, AdmissionError> {
        let (client, actor) = (client.clone(), actor.to_owned());
        self.write(move |tx| {
            let mut record = one(tx.sql, &client)?.ok_or_else(|| AdmissionError::Unknown(client.clone()))?;
            match record.decision {
                Admission::Accepted => return Err(AdmissionError::Accepted(client.clone())),
                Admission::Rejected => return Ok(record),
                Admission::Pending => {}
            }
            decide(tx.sql, &client, Admission::Rejected)?;
            let text = format!("{client} was rejected; its onboarding is refused from now on");
            tx.note(NewEvent::new(at, "device.rejected", &actor, text).device(&own_device(&client)))?;
            record.decision = Admission::Rejected;
            Ok(record)
        })
        .await
    }

    /// When signed clients last asked to be let in, and from where.
    pub async fn touch_signed(&self, seen: Vec<(ClientId, Moment, String)>) -> Result<(), Error> {
        if seen.is_empty() {
            return Ok(());
        }
        self.write(move |tx| {
            let mut statement = tx.sql.statement(
                "UPDATE signed_client SET last_seen = ?2, address = ?3 WHERE id = ?1 AND last_seen <= ?2",
            )?;
            for (client, at, address) in &seen {
                statement.execute((client.as_str(), column::moment(*at), address))?;
            }
            Ok(())
        })
        .await
    }

    /// The client is about to be given this manifest version; an older one changes nothing.
    pub async fn note_given(&self, client: &ClientId, version: u64) -> Result<(), Error> {
        let client = client.clone();
        self.write(move |tx| {
            let version = column::unsigned("the manifest version", version)?;
            tx.sql
                .statement("UPDATE signed_client SET version_given = max(version_given, ?2) WHERE id = ?1")?
                .execute((client.as_str(), version))?;
            Ok(())
        })
        .await
    }

    /// Puts a signed client out for good, because other devices take the place of its own: each pair is one of its
    /// devices and the one that gets its labels and the ids of its assignments. What the new device was labelled with
    /// before stays.
    pub async fn move_signed(
        &self,
        client: &ClientId,
        pairs: Vec<(DeviceRef, DeviceRef)>,
        to: &DeviceRef,
        at: Moment,
        actor: &str,
    ) -> Result<(), AdmissionError> {
        let (client, to, actor) = (client.clone(), to.clone(), actor.to_owned());
        self.write(move |tx| {
            let record = one(tx.sql, &client)?.ok_or_else(|| AdmissionError::Unknown(client.clone()))?;
            match record.moved_to {
                Some(before) if before == to => return Ok(()),
                Some(before) => return Err(AdmissionError::Moved { client: client.clone(), to: before }),
                None => {}
            }
            for (old, new) in &pairs {
                // A child that its new gateway has not reported yet: what waits for it has to be kept somewhere.
                device::expect(tx.sql, new, at)?;
                device::lend_labels(tx.sql, old, new)?;
            }
            retire(tx, &client, at)?;
            for (old, new) in &pairs {
                device::take_place(tx.sql, old, new)?;
            }
            tx.sql
                .statement("UPDATE signed_client SET moved_to = ?2 WHERE id = ?1")?
                .execute((client.as_str(), to.to_string()))?;
            let from = pairs.first().map_or_else(|| own_device(&client), |(old, _)| old.clone());
            let text = format!(
                "{from} was moved to {to}; what it was labelled and given goes there, and its old \
                 credential is refused from now on"
            );
            let sql =
                "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
            let message = format!("Move {from} to {to}");
            tx.sql.statement(sql)?.execute((MOVE_UNWRITTEN, message.into_bytes()))?;
            tx.note(NewEvent::new(at, "device.moved", &actor, text.clone()).device(&from))?;
            tx.note(NewEvent::new(at, "device.moved", &actor, text).device(&to))?;
            Ok(())
        })
        .await
    }
}

fn onboard(tx: &Tx<'_, '_>, new: &NewSigned, at: Moment, first_manifest: &[u8]) -> Result<Onboarded, Error> {
    let NewSigned { id, certificate, fingerprint, address, not_after, decision, actor } = new;
    let known = tx
        .sql
        .statement("SELECT * FROM signed_client WHERE fingerprint = ?1")?
        .query_row([fingerprint.as_bytes()], read)
        .optional()?;
    let id = known.as_ref().map_or(id, |known| &known.id).clone();
    let mut forgotten = Vec::new();
    match &known {
        Some(known) => {
            tx.sql
                .statement(
                    "UPDATE signed_client SET certificate = ?2, last_seen = max(last_seen, ?3),
                         address = coalesce(?4, address) WHERE id = ?1",
                )?
                .execute((id.as_str(), certificate, column::moment(at), address))?;
            if known.certificate != *certificate {
                client::set_certificate_end(tx.sql, &id, *not_after)?;
                let device = client::speaker(tx.sql, &id)?;
                let text = format!("{device} showed another certificate for the same key");
                tx.note(NewEvent::new(at, "device.certificate", actor, text).device(&device))?;
            }
        }
        None => {
            tx.sql
                .statement(
                    "INSERT INTO signed_client (id, certificate, fingerprint, decision, first_seen, last_seen, address)
                     VALUES (?1, ?2, ?3, 'pending', ?4, ?4, ?5)",
                )?
                .execute((
                    id.as_str(),
                    certificate,
                    fingerprint.as_bytes(),
                    column::moment(at),
                    address,
                ))?;
        }
    }
    let before = known.map(|known| known.decision);
    if matches!(before, None | Some(Admission::Pending)) {
        match decision {
            Admission::Accepted => {
                let record = one(tx.sql, &id)?.ok_or(Error::Damaged { what: "a row that is not there" })?;
                admit(tx, &record, *not_after, at, actor, first_manifest)?;
            }
            Admission::Rejected => {
                decide(tx.sql, &id, Admission::Rejected)?;
                let text = format!("{id} was rejected");
                tx.note(NewEvent::new(at, "device.rejected", actor, text).device(&own_device(&id)))?;
            }
            Admission::Pending if before.is_none() => {
                let text = format!("{id} asks to be let in, with the key {}", fingerprint.hex());
                tx.note(NewEvent::new(at, "device.asks", actor, text).device(&own_device(&id)))?;
                forgotten = forget_undecided(tx, &id, at)?;
            }
            Admission::Pending => {}
        }
    }
    let record = one(tx.sql, &id)?.ok_or(Error::Damaged { what: "a row that is not there" })?;
    Ok(Onboarded { record, forgotten })
}

/// Forgets those who have not asked for longest, if there are too many; never the one who just asked.
fn forget_undecided(tx: &Tx<'_, '_>, newest: &ClientId, at: Moment) -> Result<Vec<ClientId>, Error> {
    let forgotten: Vec<ClientId> = tx
        .sql
        .statement(
            "DELETE FROM signed_client WHERE id IN
                 (SELECT id FROM signed_client WHERE decision = 'pending'
                  ORDER BY id = ?1 DESC, last_seen DESC, id LIMIT -1 OFFSET ?2)
             RETURNING id",
        )?
        .query_map((newest.as_str(), PENDING_MAX), |row| row.parsed("id"))?
        .collect::<Result<_, _>>()?;
    for client in &forgotten {
        let text = format!(
            "{client} asked to be let in, nobody decided, and more than {PENDING_MAX} wait: it was forgotten"
        );
        tx.note(NewEvent::new(at, "device.forgotten", "server", text).device(&own_device(client)))?;
    }
    Ok(forgotten)
}

fn decide(sql: &Sql<'_>, client: &ClientId, decision: Admission) -> rusqlite::Result<()> {
    sql.statement("UPDATE signed_client SET decision = ?2 WHERE id = ?1")?
        .execute((client.as_str(), decision.as_str()))?;
    Ok(())
}

/// Makes a client of who asked, with a manifest and a device that has the client's name until it says its own.
fn admit(
    tx: &Tx<'_, '_>,
    record: &SignedRecord,
    not_after: Moment,
    at: Moment,
    actor: &str,
    first_manifest: &[u8],
) -> Result<(), Error> {
    let client = &record.id;
    decide(tx.sql, client, Admission::Accepted)?;
    client::insert(tx.sql, client, Dialect::Signed, at, first_manifest)?;
    client::set_certificate_end(tx.sql, client, not_after)?;
    let text = format!("{client} was accepted, with the key {}", record.fingerprint.hex());
    tx.note(NewEvent::new(at, "device.accepted", actor, text).device(&own_device(client)))?;
    Ok(())
}
