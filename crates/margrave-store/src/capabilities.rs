//! What devices said they are and can do.

use margrave_core::device::{Blind, Hold};
use margrave_core::id::{ClientId, DeviceId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_core::schedule::CLOCK_SENSIBLE;
use margrave_wire::g2;
use rusqlite::OptionalExtension as _;

use crate::client::{self, own_device};
use crate::error::from_database;
use crate::event::NewEvent;
use crate::sql::Sql;
use crate::{DeviceRecord, Error, Put, Store};
use crate::{column, device};

/// A device's capabilities as they came.
#[derive(Debug, Clone)]
pub struct NewCapabilities {
    pub device: DeviceId,
    pub body: Vec<u8>,
    pub simulated: bool,
    /// Who holds changes back there, as `body` says.
    pub holds: Vec<Hold>,
    /// The last look that was asked for and done there, as `body` says.
    pub looked: u64,
    /// That it cannot look at its containers, as `body` says.
    pub blind: Option<Blind>,
}

#[derive(Debug, thiserror::Error)]
pub enum CapabilitiesError {
    #[error("there is no such client")]
    ClientUnknown,
    #[error("the gateway {0} has not reported its own capabilities")]
    GatewayUnknown(DeviceId),
    #[error("there is no device {0} of this client")]
    DeviceUnknown(DeviceId),
    #[error("the client has {DEVICES_MAX} devices already, more are not accepted")]
    TooMany,
    #[error(transparent)]
    Store(#[from] Error),
}
from_database!(CapabilitiesError);

/// One client cannot fill the database with made-up children.
const DEVICES_MAX: i64 = 10_000;

impl Store {
    /// Keeps what a device said. The same body again changes nothing; another one makes the device unsettled.
    pub async fn put_capabilities(
        &self,
        client: &ClientId,
        capabilities: NewCapabilities,
        at: Moment,
    ) -> Result<Put, CapabilitiesError> {
        let client = client.clone();
        self.write(move |tx| {
            let NewCapabilities { device, body, simulated, holds, looked, blind } = &capabilities;
            let subject = DeviceRef::new(client.clone(), device.clone());
            if !client::exists(tx.sql, &client)? {
                return Err(CapabilitiesError::ClientUnknown);
            }
            let known = |device: &DeviceId| {
                tx.sql
                    .statement("SELECT capabilities FROM device WHERE client = ?1 AND device = ?2")?
                    .query_row((client.as_str(), device.as_str()), |row| row.get::<_, Option<Vec<u8>>>(0))
                    .optional()
            };
            let gateway = device.gateway();
            if device.is_child() && known(&gateway)?.flatten().is_none() {
                return Err(CapabilitiesError::GatewayUnknown(gateway));
            }
            let before = known(device)?;
            if before.as_ref().is_some_and(|before| before.as_ref() == Some(body)) {
                return Ok(Put::Updated);
            }
            if before.is_none() {
                let count: i64 = tx
                    .sql
                    .statement("SELECT count(*) FROM device WHERE client = ?1")?
                    .query_row([client.as_str()], |row| row.get(0))?;
                if count >= DEVICES_MAX {
                    return Err(CapabilitiesError::TooMany);
                }
                tx.sql
                    .statement("INSERT INTO device (client, device, created_at) VALUES (?1, ?2, ?3)")?
                    .execute((client.as_str(), device.as_str(), column::moment(at)))?;
                take_place_of_unnamed(tx.sql, &subject)?;
                device::welcome(tx.sql, &subject)?;
            }
            let before = before.flatten();
            // What a device should run does not depend on who holds it back, or on whether and when it looked.
            let differ = g2::capabilities::differ_in_passing_only;
            let is_the_same = before.as_ref().is_some_and(|before| differ(before, body));
            let earlier =
                before.as_ref().and_then(|before| serde_json::from_slice(before).ok()).unwrap_or_default();
            let has_looked = *looked > 0 && g2::capabilities::looked(&earlier) != *looked;
            tx.sql
                .statement(
                    "UPDATE device SET capabilities = ?3, capabilities_at = ?4, simulated = ?5,
                         unsettled = unsettled + ?6,
                         blind_since = iif(?7, coalesce(?8, blind_since, ?4), NULL)
                     WHERE client = ?1 AND device = ?2",
                )?
                .execute((
                    client.as_str(),
                    device.as_str(),
                    body,
                    column::moment(at),
                    simulated,
                    i64::from(!is_the_same),
                    blind.is_some(),
                    blind
                        .as_ref()
                        .map(|blind| blind.since)
                        .filter(|since| is_likely(*since, at))
                        .map(column::moment),
                ))?;
            let first = before.is_none();
            if has_looked {
                let text = format!("{subject} looked again and said how everything stands");
                let event = NewEvent::new(at, "device.looked", format!("device {client}"), text);
                tx.note(event.device(&subject))?;
            }
            let sighted = g2::capabilities::blind(&earlier);
            let sight = match blind {
                Some(Blind { message, .. }) if sighted.is_none() => {
                    Some(("device.cannot-look", format!("cannot look at its containers: {message}")))
                }
                None if sighted.is_some() => {
                    Some(("device.can-look", "can look at its containers again".to_owned()))
                }
                _ => None,
            };
            let told = match holds.first() {
                _ if first => Some(("device.capabilities", "reported its capabilities".to_owned())),
                _ if !is_the_same => {
                    Some(("device.capabilities", "reported changed capabilities".to_owned()))
                }
                _ if g2::capabilities::holds(&earlier) == *holds => None,
                Some(hold) => Some(("device.hold", format!("holds changes back, {hold}"))),
                None => Some(("device.hold", "holds nothing back any more".to_owned())),
            };
            for (kind, text) in told.into_iter().chain(sight) {
                let event = NewEvent::new(at, kind, format!("device {client}"), format!("{subject} {text}"));
                tx.note(event.device(&subject))?;
            }
            Ok(if first { Put::Created } else { Put::Updated })
        })
        .await
    }

    /// Devices that are in contact and cannot look at their containers, by name, and how many there are.
    pub async fn devices_blind(&self, most: u32) -> Result<(Vec<DeviceRecord>, u64), Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT device.client, device.device, count(*) OVER ()
                 FROM device INDEXED BY device_blind CROSS JOIN client ON client.id = device.client
                 WHERE blind_since IS NOT NULL AND standing <> 'retired' ORDER BY 1, 2 LIMIT ?1",
            )?;
            let mut total = 0;
            let rows = statement.query_map([most], |row| {
                total = row.get::<_, u32>(2)?;
                Ok(DeviceRef::new(column::parsed_at(row, 0)?, column::parsed_at(row, 1)?))
            })?;
            let mut found = Vec::new();
            for name in rows.collect::<Result<Vec<_>, _>>()? {
                found.extend(device::one(sql, &name)?);
            }
            Ok((found, total.into()))
        })
        .await
    }

    /// Forgets a device and its children. Deployments lose their place there (open point 6).
    pub async fn delete_capabilities(
        &self,
        client: &ClientId,
        device: &DeviceId,
        at: Moment,
    ) -> Result<(), CapabilitiesError> {
        let (client, device) = (client.clone(), device.clone());
        self.write(move |tx| {
            let sql = tx.sql;
            let forgotten = sql
                .statement(
                    "UPDATE device SET capabilities = NULL, capabilities_at = NULL, blind_since = NULL,
                         unsettled = unsettled + 1
                     WHERE client = ?1 AND device = ?2 AND capabilities IS NOT NULL",
                )?
                .execute((client.as_str(), device.as_str()))?;
            if forgotten == 0 {
                return Err(CapabilitiesError::DeviceUnknown(device.clone()));
            }
            // '0' follows '/' in the alphabet: everything between is a child.
            sql.statement(
                "UPDATE device SET capabilities = NULL, capabilities_at = NULL, blind_since = NULL,
                     unsettled = unsettled + 1
                 WHERE client = ?1 AND device > ?2 || '/' AND device < ?2 || '0'",
            )?
            .execute((client.as_str(), device.as_str()))?;
            let subject = DeviceRef::new(client.clone(), device.clone());
            let event = NewEvent::new(
                at,
                "device.withdrawn",
                format!("device {client}"),
                format!("{subject} withdrew its capabilities"),
            );
            tx.note(event.device(&subject))?;
            Ok(())
        })
        .await
    }
}

/// Whether a device can mean this moment, by what it is for us when it says so.
fn is_likely(since: Moment, at: Moment) -> bool {
    CLOCK_SENSIBLE <= since && since <= at
}

/// A client that names its device otherwise than itself: what an operator prepared under the client's name
/// (labels) goes to the device that really came, and the placeholder goes.
fn take_place_of_unnamed(sql: &Sql<'_>, device: &DeviceRef) -> rusqlite::Result<()> {
    let placeholder = own_device(&device.client);
    if device.device.is_child() || device.device == placeholder.device {
        return Ok(());
    }
    let unused = sql
        .statement(
            "SELECT 1 FROM device WHERE client = ?1 AND device = ?2 AND capabilities IS NULL
             AND NOT EXISTS (SELECT 1 FROM assignment WHERE assignment.client = ?1 AND assignment.device = ?2)",
        )?
        .exists((placeholder.client.as_str(), placeholder.device.as_str()))?;
    if unused {
        sql.statement("UPDATE label SET device = ?3 WHERE client = ?1 AND device = ?2")?.execute((
            placeholder.client.as_str(),
            placeholder.device.as_str(),
            device.device.as_str(),
        ))?;
        // Whose place it took, if somebody moved a device here before it said anything.
        sql.statement(
            "UPDATE device SET origin = (SELECT origin FROM device WHERE client = ?1 AND device = ?2)
             WHERE client = ?1 AND device = ?3",
        )?
        .execute((
            placeholder.client.as_str(),
            placeholder.device.as_str(),
            device.device.as_str(),
        ))?;
        sql.statement("DELETE FROM device WHERE client = ?1 AND device = ?2")?
            .execute((placeholder.client.as_str(), placeholder.device.as_str()))?;
    }
    Ok(())
}
