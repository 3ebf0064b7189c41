//! What operators ask of devices themselves.

use std::collections::HashMap;

use margrave_core::asked::Asked;
use margrave_core::device::Hold;
use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::moment::Moment;
use rusqlite::{OptionalExtension as _, Row};

use crate::column;
use crate::event::NewEvent;
use crate::sql::Sql;
use crate::{Error, Store};

/// What is asked of one client's device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AskedRecord {
    pub asked: Asked,
    /// Who wants the look.
    pub look_by: Option<String>,
}

impl Store {
    /// What is asked of these clients, where anything ever was.
    pub async fn asked(&self, clients: Vec<ClientId>) -> Result<HashMap<ClientId, AskedRecord>, Error> {
        self.read(move |sql| {
            let mut found = HashMap::new();
            for client in clients {
                if let Some(record) = of(sql, &client)? {
                    found.insert(client, record);
                }
            }
            Ok(found)
        })
        .await
    }

    /// Asks a device to hold changes back, in place of what was asked before, or to do so no more. It becomes unsettled, so that
    /// its manifest says so.
    pub async fn ask_hold(
        &self,
        device: &DeviceRef,
        hold: Option<Hold>,
        at: Moment,
        actor: &str,
    ) -> Result<(), Error> {
        let (device, actor) = (device.clone(), actor.to_owned());
        self.write(move |tx| {
            tx.sql
                .statement(
                    "INSERT INTO asked (client, hold) VALUES (?1, ?2) ON CONFLICT (client) DO UPDATE SET hold = ?2",
                )?
                .execute((device.client.as_str(), hold.as_ref().map(column::json)))?;
            unsettle(tx.sql, &device)?;
            let (kind, text) = match &hold {
                Some(hold) => ("device.hold-asked", format!("{device} is asked to hold changes back, {hold}")),
                None => ("device.release-asked", format!("{device} is asked to let changes go on")),
            };
            tx.note(NewEvent::new(at, kind, actor.clone(), text).device(&device))?;
            Ok(())
        })
        .await
    }

    /// Asks a device to look again, and gives the number of that look.
    pub async fn ask_look(&self, device: &DeviceRef, at: Moment, actor: &str) -> Result<u64, Error> {
        let (device, actor) = (device.clone(), actor.to_owned());
        self.write(move |tx| {
            let before = of(tx.sql, &device.client)?.unwrap_or_default().asked;
            let look = before.next_look(at);
            tx.sql
                .statement(
                    "INSERT INTO asked (client, look, look_by) VALUES (?1, ?2, ?3)
                     ON CONFLICT (client) DO UPDATE SET look = ?2, look_by = ?3",
                )?
                .execute((device.client.as_str(), column::unsigned("a look", look)?, &actor))?;
            unsettle(tx.sql, &device)?;
            let text = format!("{device} is asked to look again");
            tx.note(NewEvent::new(at, "device.look-asked", actor.clone(), text).device(&device))?;
            Ok::<_, Error>(look)
        })
        .await
    }
}

fn of(sql: &Sql<'_>, client: &ClientId) -> rusqlite::Result<Option<AskedRecord>> {
    sql.statement("SELECT hold, look, look_by FROM asked WHERE client = ?1")?
        .query_row([client.as_str()], read)
        .optional()
}

fn read(row: &Row<'_>) -> rusqlite::Result<AskedRecord> {
    Ok(AskedRecord { asked: read_at(row, 0)?, look_by: row.get(2)? })
}

/// The columns `hold` and `look` from this one on; both are null where nothing was ever asked.
pub(crate) fn read_at(row: &Row<'_>, index: usize) -> rusqlite::Result<Asked> {
    let hold: Option<String> = row.get(index)?;
    let hold = hold.map(|text| column::json_at(index, &text)).transpose()?;
    let look: Option<i64> = row.get(index + 1)?;
    Ok(Asked { hold, look: look.and_then(|look| u64::try_from(look).ok()).unwrap_or_default() })
}

fn unsettle(sql: &Sql<'_>, device: &DeviceRef) -> rusqlite::Result<usize> {
    sql.statement("UPDATE device SET unsettled = unsettled + 1 WHERE client = ?1 AND device = ?2")?
        .execute((device.client.as_str(), device.device.as_str()))
}
