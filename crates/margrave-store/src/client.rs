//! Clients: who may speak to the server, and since when.

use std::collections::BTreeMap;

use margrave_core::id::{ClientId, DeviceId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_wire::Dialect;
use rusqlite::OptionalExtension as _;

use crate::assignment;
use crate::column::{self, Columns as _};
use crate::event::NewEvent;
use crate::sql::Sql;
use crate::writer::Tx;
use crate::{Error, Store};

/// Whether a client may speak to this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Accepted,
    Retired,
}

impl Standing {
    pub fn as_str(self) -> &'static str {
        match self {
            Standing::Accepted => "accepted",
            Standing::Retired => "retired",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Standing::Accepted, Standing::Retired].into_iter().find(|standing| standing.as_str() == text)
    }
}

/// What a server needs of every client to answer its polls from memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRecord {
    pub id: ClientId,
    pub standing: Standing,
    /// In which form it is given its documents and manifest.
    pub dialect: Dialect,
    pub last_contact: Option<Moment>,
    pub joined_at: Moment,
    pub manifest_version: u64,
    /// The exact body of the manifest.
    pub manifest_body: Vec<u8>,
}

impl Store {
    pub async fn clients(&self) -> Result<Vec<ClientRecord>, Error> {
        self.read(|sql| {
            let mut statement = sql.prepare(
                "SELECT client.id, standing, dialect, joined_at, contact.at, manifest.version, manifest.body FROM client
                 JOIN manifest ON manifest.client = client.id LEFT JOIN contact ON contact.client = client.id",
            )?;
            let clients = statement.query_map([], |row| {
                Ok(ClientRecord {
                    id: row.parsed("id")?,
                    standing: column::word(row, "standing", Standing::parse)?,
                    dialect: column::word(row, "dialect", Dialect::parse)?,
                    last_contact: row.moment_maybe("at")?,
                    joined_at: row.moment("joined_at")?,
                    manifest_version: row.unsigned("version")?,
                    manifest_body: row.get("body")?,
                })
            })?;
            Ok(clients.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Lets a client in again; `false` if there is no such client. Its devices are placed anew.
    pub async fn accept_client(&self, client: &ClientId, at: Moment, actor: &str) -> Result<bool, Error> {
        let (client, actor) = (client.clone(), actor.to_owned());
        self.write(move |tx| {
            let sql = "UPDATE client SET standing = 'accepted' WHERE id = ?1 AND standing <> 'accepted'";
            if tx.sql.statement(sql)?.execute([client.as_str()])? == 0 {
                return Ok(exists(tx.sql, &client)?);
            }
            assignment::revive(tx.sql, &client)?;
            tx.sql
                .statement("UPDATE device SET unsettled = unsettled + 1 WHERE client = ?1")?
                .execute([client.as_str()])?;
            let device = speaker(tx.sql, &client)?;
            let text = format!("{device} was accepted again");
            tx.note(NewEvent::new(at, "device.accepted", &actor, text).device(&device))?;
            Ok(true)
        })
        .await
    }

    /// Puts clients out, all of them or none. Their assignments are archived as they were last seen. Who is out already, or
    /// unknown, is left alone.
    pub async fn retire_clients(&self, clients: Vec<ClientId>, at: Moment, actor: &str) -> Result<(), Error> {
        let actor = actor.to_owned();
        self.write(move |tx| {
            for client in &clients {
                if !retire(tx, client, at)? {
                    continue;
                }
                let device = speaker(tx.sql, client)?;
                let text = format!("{device} was retired; the server refuses it from now on");
                tx.note(NewEvent::new(at, "device.retired", &actor, text).device(&device))?;
            }
            Ok(())
        })
        .await
    }

    /// When clients were last heard of; a time that is older than the stored one changes nothing.
    pub async fn touch_contacts(&self, contacts: Vec<(ClientId, Moment)>) -> Result<(), Error> {
        if contacts.is_empty() {
            return Ok(());
        }
        self.write(move |tx| {
            let mut statement = tx.sql.statement(
                "INSERT INTO contact (client, at) SELECT id, ?2 FROM client WHERE id = ?1
                 ON CONFLICT (client) DO UPDATE SET at = max(at, excluded.at)",
            )?;
            for (client, at) in &contacts {
                statement.execute((client.as_str(), column::moment(*at)))?;
            }
            Ok(())
        })
        .await
    }

    /// The client has a new certificate; the one before stays known, so that a lost answer can be asked for again.
    pub async fn record_svid(
        &self,
        client: &ClientId,
        serial: &str,
        not_after: Moment,
        at: Moment,
    ) -> Result<bool, Error> {
        let (client, serial) = (client.clone(), serial.to_owned());
        self.write(move |tx| {
            let changed = tx
                .sql
                .statement(
                    "UPDATE client SET svid_serial_before = svid_serial, svid_serial = ?2, svid_not_after = ?3
                     WHERE id = ?1 AND svid_serial IS NOT ?2",
                )?
                .execute((client.as_str(), &serial, column::moment(not_after)))?;
            if changed == 0 {
                return Ok(exists(tx.sql, &client)?);
            }
            let actor = format!("device {client}");
            let text = format!("{client} received a certificate, serial {serial}");
            tx.note(NewEvent::new(at, "device.certificate", actor, text).device(&own_device(&client)))?;
            Ok(true)
        })
        .await
    }

    /// How many accepted clients have a newest certificate whose serial does not begin with `prefix`.
    pub async fn svids_besides(&self, prefix: &str) -> Result<u64, Error> {
        let prefix = prefix.to_owned();
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT count(*) AS number FROM client WHERE standing = 'accepted' AND svid_serial IS NOT NULL
                 AND substr(svid_serial, 1, length(?1)) <> ?1",
            )?;
            Ok(statement.query_row([&prefix], |row| row.unsigned("number"))?)
        })
        .await
    }

    /// The serials of the client's newest certificate and of the one before.
    pub async fn svid_serials(&self, client: &ClientId) -> Result<Vec<String>, Error> {
        let client = client.clone();
        self.read(move |sql| {
            let mut statement =
                sql.statement("SELECT svid_serial, svid_serial_before FROM client WHERE id = ?1")?;
            let serials: Option<(Option<String>, Option<String>)> =
                statement.query_row([client.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            let (newest, before) = serials.unwrap_or_default();
            Ok(newest.into_iter().chain(before).collect())
        })
        .await
    }
}

pub(crate) fn exists(sql: &Sql<'_>, client: &ClientId) -> rusqlite::Result<bool> {
    sql.statement("SELECT 1 FROM client WHERE id = ?1")?.exists([client.as_str()])
}

/// Makes a client with its first manifest, and a device that is named after it until it says otherwise.
pub(crate) fn insert(
    sql: &Sql<'_>,
    client: &ClientId,
    dialect: Dialect,
    at: Moment,
    first_manifest: &[u8],
) -> rusqlite::Result<()> {
    let at = column::moment(at);
    sql.statement("INSERT INTO client (id, standing, dialect, joined_at) VALUES (?1, 'accepted', ?2, ?3)")?
        .execute((client.as_str(), dialect.as_str(), at))?;
    sql.statement("INSERT INTO manifest (client, version, body) VALUES (?1, 1, ?2)")?
        .execute((client.as_str(), first_manifest))?;
    sql.statement("INSERT INTO device (client, device, created_at, unsettled) VALUES (?1, ?2, ?3, 1)")?
        .execute((client.as_str(), own_device(client).device.as_str(), at))?;
    Ok(())
}

/// Puts a client out and archives its assignments; `false` if that was done before.
pub(crate) fn retire(tx: &Tx<'_, '_>, client: &ClientId, at: Moment) -> rusqlite::Result<bool> {
    let sql = "UPDATE client SET standing = 'retired' WHERE id = ?1 AND standing <> 'retired'";
    if tx.sql.statement(sql)?.execute([client.as_str()])? == 0 {
        return Ok(false);
    }
    tx.sql
        .statement(
            "UPDATE assignment SET wanted = 0, archived = 1, changed_at = ?2
             WHERE client = ?1 AND archived = 0",
        )?
        .execute((client.as_str(), column::moment(at)))?;
    crate::deployment::forget_removed(tx.sql)?;
    tx.sql.statement("DELETE FROM misfit WHERE client = ?1")?.execute([client.as_str()])?;
    tx.sql
        .statement("DELETE FROM join_token WHERE client = ?1 AND used_at IS NULL")?
        .execute([client.as_str()])?;
    Ok(true)
}

/// Until when the certificate is valid that the client shows or signs with.
pub(crate) fn set_certificate_end(
    sql: &Sql<'_>,
    client: &ClientId,
    not_after: Moment,
) -> rusqlite::Result<()> {
    sql.statement("UPDATE client SET svid_not_after = ?2 WHERE id = ?1")?
        .execute((client.as_str(), column::moment(not_after)))?;
    Ok(())
}

/// The device that is named after its client, as nearly all are.
pub(crate) fn own_device(client: &ClientId) -> DeviceRef {
    let device = DeviceId::parse(client.as_str()).expect("every client id is a device id of one segment");
    DeviceRef::new(client.clone(), device)
}

/// The device under whose name things are written down that happen to its client: the one that is named after the
/// client, or, where a signed client has said what it calls itself, the one of that name.
pub(crate) fn speaker(sql: &Sql<'_>, client: &ClientId) -> rusqlite::Result<DeviceRef> {
    let mut statement = sql.statement(
        "SELECT device FROM device WHERE client = ?1 AND instr(device, '/') = 0
         ORDER BY device = ?1 DESC, device LIMIT 1",
    )?;
    let device = statement.query_row([client.as_str()], |row| row.parsed("device")).optional()?;
    Ok(device.map_or_else(|| own_device(client), |device| DeviceRef::new(client.clone(), device)))
}

pub(crate) fn set_labels(
    sql: &Sql<'_>,
    device: &DeviceRef,
    labels: &BTreeMap<String, Option<String>>,
) -> rusqlite::Result<usize> {
    let (client, device) = (device.client.as_str(), device.device.as_str());
    let mut changed = 0;
    for (key, value) in labels {
        changed += match value {
            Some(value) => sql
                .statement(
                    "INSERT INTO label (client, device, key, value) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (client, device, key) DO UPDATE SET value = ?4 WHERE value <> ?4",
                )?
                .execute((client, device, key, value))?,
            None => sql
                .statement("DELETE FROM label WHERE client = ?1 AND device = ?2 AND key = ?3")?
                .execute((client, device, key))?,
        };
    }
    Ok(changed)
}
