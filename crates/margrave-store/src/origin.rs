//! What registries still have of the packages in the catalog.

use margrave_core::id::{PackageId, PackageVersion};
use margrave_core::moment::Moment;
use margrave_core::watch::Warning;
use rusqlite::Row;

use crate::column::{self, Columns as _};
use crate::event::NewEvent;
use crate::{Error, Store};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginRecord {
    pub id: PackageId,
    pub version: PackageVersion,
    pub looked_at: Moment,
    pub warnings: Vec<Warning>,
}

fn read(row: &Row<'_>) -> rusqlite::Result<OriginRecord> {
    Ok(OriginRecord {
        id: row.parsed("id")?,
        version: row.parsed("version")?,
        looked_at: row.moment("looked_at")?,
        warnings: row.json("warnings")?,
    })
}

impl Store {
    /// Of all packages whose registry was asked.
    pub async fn origins(&self) -> Result<Vec<OriginRecord>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT * FROM package_origin")?;
            Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Writes down what a registry has, whoever made us ask; nothing where the package was removed meanwhile.
    pub async fn note_origin(&self, origin: OriginRecord, events: Vec<NewEvent>) -> Result<(), Error> {
        self.write_for_nobody(move |tx| {
            let OriginRecord { id, version, looked_at, warnings } = &origin;
            let key = (id.as_str(), version.as_str());
            if !tx.sql.statement("SELECT 1 FROM package WHERE id = ?1 AND version = ?2")?.exists(key)? {
                return Ok(());
            }
            tx.sql
                .statement(
                    "INSERT INTO package_origin (id, version, looked_at, warnings) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (id, version) DO UPDATE SET looked_at = ?3, warnings = ?4",
                )?
                .execute((key.0, key.1, column::moment(*looked_at), column::json(warnings)))?;
            for event in &events {
                tx.note(event.clone())?;
            }
            Ok(())
        })
        .await
    }
}
