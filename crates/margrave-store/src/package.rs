//! The catalog: descriptions as they were pulled, with what was pinned.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::constraints::Claims;
use margrave_core::digest::Digest;
use margrave_core::id::{PackageId, PackageVersion};
use margrave_core::image::{Images, Part};
use margrave_core::moment::Moment;
use rusqlite::{OptionalExtension as _, Row};

use crate::column::{self, Columns as _};
use crate::error::from_database;
use crate::event::NewEvent;
use crate::sql::Sql;
use crate::writer::Tx;
use crate::{Error, Store};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageRecord {
    pub id: PackageId,
    pub version: PackageVersion,
    /// Where it was pulled from, by digest.
    pub reference: String,
    /// Of the package's manifest.
    pub digest: Digest,
    /// The exact bytes of the description.
    pub description: Vec<u8>,
    /// The manifest digest behind each component's reference, `repository:revision` (PK-053).
    pub pins: BTreeMap<String, Digest>,
    /// Bytes that a device fetches for each component, under the same names, where its manifest tells them.
    pub sizes: BTreeMap<String, u64>,
    /// What each component takes of a device that nothing else may have there, under the same names.
    pub claims: BTreeMap<String, Claims>,
    /// What the images mean that its components name.
    pub images: Images,
    pub added_at: Moment,
    pub added_by: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRecord {
    pub path: String,
    pub media_type: String,
    pub bytes: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("there is no such package")]
    Unknown,
    #[error("this version is in the catalog already with other content, {stored}")]
    OtherDigest { stored: Digest },
    #[error("the package is used by {}", .0.join(", "))]
    InUse(Vec<String>),
    #[error(transparent)]
    Store(#[from] Error),
}
from_database!(PackageError);

fn read(row: &Row<'_>) -> rusqlite::Result<PackageRecord> {
    Ok(PackageRecord {
        id: row.parsed("id")?,
        version: row.parsed("version")?,
        reference: row.get("reference")?,
        digest: row.digest("digest")?,
        description: row.get("description")?,
        pins: row.json("pins")?,
        sizes: row.json("sizes")?,
        claims: row.json("claims")?,
        images: row.json("images")?,
        added_at: row.moment("added_at")?,
        added_by: row.get("added_by")?,
    })
}

fn one(sql: &Sql<'_>, id: &PackageId, version: &PackageVersion) -> rusqlite::Result<Option<PackageRecord>> {
    sql.statement("SELECT * FROM package WHERE id = ?1 AND version = ?2")?
        .query_row((id.as_str(), version.as_str()), read)
        .optional()
}

impl Store {
    pub async fn packages(&self) -> Result<Vec<PackageRecord>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT * FROM package ORDER BY id, version")?;
            Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub async fn package(
        &self,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<Option<PackageRecord>, Error> {
        let (id, version) = (id.clone(), version.clone());
        self.read(move |sql| Ok(one(sql, &id, &version)?)).await
    }

    pub async fn package_resource(
        &self,
        id: &PackageId,
        version: &PackageVersion,
        path: &str,
    ) -> Result<Option<ResourceRecord>, Error> {
        let (id, version, path) = (id.clone(), version.clone(), path.to_owned());
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT path, media_type, bytes FROM package_resource WHERE id = ?1 AND version = ?2 AND path = ?3",
            )?;
            let found = statement.query_row((id.as_str(), version.as_str(), &path), |row| {
                Ok(ResourceRecord { path: row.get(0)?, media_type: row.get(1)?, bytes: row.get(2)? })
            });
            Ok(found.optional()?)
        })
        .await
    }
}

impl Store {
    /// The names of the deployments whose documents a package's version is in, or that can be gone back to with it.
    pub async fn package_keepers(
        &self,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<Vec<String>, Error> {
        let (id, version) = (id.clone(), version.clone());
        self.read(move |sql| Ok(keepers(sql, &id, &version)?)).await
    }

    /// The names of the deployments that devices have a package's version by, also while they wait for another, and of those
    /// whose rollout may still go back to it.
    pub async fn package_holders(
        &self,
        id: &PackageId,
        version: &PackageVersion,
    ) -> Result<BTreeSet<String>, Error> {
        let (id, version) = (id.clone(), version.clone());
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT deployment_name FROM assignment
                 WHERE package = ?1 AND version = ?2 AND wanted = 1 AND archived = 0
                 UNION SELECT earlier.name FROM rollout
                     JOIN deployment ON deployment.id = rollout.deployment AND deployment.removed = 0
                     JOIN deployment_revision AS earlier
                         ON earlier.name = deployment.name AND earlier.revision = rollout.before
                     WHERE rollout.state <> 'done' AND earlier.package = ?1 AND earlier.version = ?2",
            )?;
            let names = statement.query_map((id.as_str(), version.as_str()), |row| row.get(0))?;
            Ok(names.collect::<Result<_, _>>()?)
        })
        .await
    }
}

impl Store {
    /// What a package takes of a device for itself, where that was not known when it was added.
    pub async fn put_claims(
        &self,
        id: &PackageId,
        version: &PackageVersion,
        claims: BTreeMap<String, Claims>,
    ) -> Result<(), Error> {
        let (id, version) = (id.clone(), version.clone());
        self.write(move |tx| {
            tx.sql.statement("UPDATE package SET claims = ?3 WHERE id = ?1 AND version = ?2")?.execute((
                id.as_str(),
                version.as_str(),
                column::json(&claims),
            ))?;
            Ok(())
        })
        .await
    }
}

impl Store {
    /// How much devices fetch of a package, where that was not known when it was added: of components under their references, of
    /// images by what they are. What is known stays, and so does every pin.
    pub async fn put_sizes(
        &self,
        id: &PackageId,
        version: &PackageVersion,
        components: BTreeMap<String, u64>,
        images: BTreeMap<Digest, BTreeMap<String, Vec<Part>>>,
    ) -> Result<(), Error> {
        let (id, version) = (id.clone(), version.clone());
        self.write_for_nobody(move |tx| {
            let Some(mut held) = one(tx.sql, &id, &version)? else { return Ok(()) };
            for (component, size) in &components {
                held.sizes.entry(component.clone()).or_insert(*size);
            }
            for image in held.images.known.values_mut().filter(|image| image.parts.is_empty()) {
                if let Some(parts) = image.digest.and_then(|digest| images.get(&digest)) {
                    image.parts.clone_from(parts);
                }
            }
            tx.sql
                .statement("UPDATE package SET sizes = ?3, images = ?4 WHERE id = ?1 AND version = ?2")?
                .execute((
                    id.as_str(),
                    version.as_str(),
                    column::json(&held.sizes),
                    column::json(&held.images),
                ))?;
            Ok(())
        })
        .await
    }
}

/// Adds a package; the same content a second time is no error and changes nothing.
pub(crate) fn add(
    tx: &Tx<'_, '_>,
    package: &PackageRecord,
    resources: &[ResourceRecord],
) -> Result<(), PackageError> {
    if let Some(stored) = one(tx.sql, &package.id, &package.version)? {
        return match stored.digest == package.digest {
            true => Ok(()),
            false => Err(PackageError::OtherDigest { stored: stored.digest }),
        };
    }
    let PackageRecord {
        id,
        version,
        reference,
        digest,
        description,
        pins,
        sizes,
        claims,
        images,
        added_at,
        added_by,
    } = package;
    tx.sql
        .statement(
            "INSERT INTO package (id, version, reference, digest, description, pins, added_at, added_by, claims, images,
                 sizes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute((
            id.as_str(),
            version.as_str(),
            reference,
            digest.as_bytes(),
            description,
            column::json(pins),
            column::moment(*added_at),
            added_by,
            column::json(claims),
            column::json(images),
            column::json(sizes),
        ))?;
    for ResourceRecord { path, media_type, bytes } in resources {
        tx.sql
            .statement(
                "INSERT INTO package_resource (id, version, path, media_type, bytes) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute((id.as_str(), version.as_str(), path, media_type, bytes))?;
    }
    let text = format!("package {id} {version} was added");
    tx.note(NewEvent::new(*added_at, "package.added", added_by, text).package(format!("{id} {version}")))?;
    Ok(())
}

/// Pins images of a package that were not when it came in. Not while something has it, or may be wanted again with it: documents
/// without these pins would change behind everybody's back the next time they are made.
pub(crate) fn pin(
    tx: &Tx<'_, '_>,
    id: &PackageId,
    version: &PackageVersion,
    images: &Images,
    at: Moment,
    actor: &str,
) -> Result<(), PackageError> {
    let by = keepers(tx.sql, id, version)?;
    if !by.is_empty() {
        return Err(PackageError::InUse(by));
    }
    let Some(held) = one(tx.sql, id, version)? else { return Err(PackageError::Unknown) };
    let images = held.images.with_later(images);
    tx.sql.statement("UPDATE package SET images = ?3 WHERE id = ?1 AND version = ?2")?.execute((
        id.as_str(),
        version.as_str(),
        column::json(&images),
    ))?;
    let text = format!("images of package {id} {version} were pinned");
    tx.note(NewEvent::new(at, "package.pinned", actor, text).package(format!("{id} {version}")))?;
    Ok(())
}

/// The names of the deployments that use it.
///
/// An open rollout uses what it may go back to.
fn users(sql: &Sql<'_>, id: &PackageId, version: &PackageVersion) -> rusqlite::Result<Vec<String>> {
    sql.statement(
        "SELECT name FROM deployment WHERE package = ?1 AND version = ?2 AND removed = 0
         UNION SELECT earlier.name FROM rollout
             JOIN deployment ON deployment.id = rollout.deployment AND deployment.removed = 0
             JOIN deployment_revision AS earlier
                 ON earlier.name = deployment.name AND earlier.revision = rollout.before
             WHERE rollout.state <> 'done' AND earlier.package = ?1 AND earlier.version = ?2
         ORDER BY 1",
    )?
    .query_map((id.as_str(), version.as_str()), |row| row.get(0))?
    .collect()
}

/// The names of the deployments that use it, or that can be gone back to with it; where there are none, of those that devices
/// still have it by, though nobody knows their revision any more.
///
/// That last question goes through everything that devices have, and every deployment of an unpinned image asks here: it is put only where it
/// decides.
fn keepers(sql: &Sql<'_>, id: &PackageId, version: &PackageVersion) -> rusqlite::Result<Vec<String>> {
    let known = "SELECT name FROM deployment WHERE package = ?1 AND version = ?2 AND removed = 0
         UNION SELECT name FROM deployment_revision WHERE package = ?1 AND version = ?2
         ORDER BY 1";
    let had = "SELECT DISTINCT deployment_name FROM assignment
         WHERE package = ?1 AND version = ?2 AND wanted = 1 AND archived = 0
         ORDER BY 1";
    for question in [known, had] {
        let mut statement = sql.statement(question)?;
        let names = statement.query_map((id.as_str(), version.as_str()), |row| row.get(0))?;
        let names: Vec<String> = names.collect::<rusqlite::Result<_>>()?;
        if !names.is_empty() {
            return Ok(names);
        }
    }
    Ok(Vec::new())
}

/// Takes a package out of the catalog, unless a deployment uses it.
pub(crate) fn remove(
    tx: &Tx<'_, '_>,
    id: &PackageId,
    version: &PackageVersion,
    at: Moment,
    actor: &str,
) -> Result<(), PackageError> {
    let key = (id.as_str(), version.as_str());
    let by = users(tx.sql, id, version)?;
    if !by.is_empty() {
        return Err(PackageError::InUse(by));
    }
    if tx.sql.statement("DELETE FROM package WHERE id = ?1 AND version = ?2")?.execute(key)? == 0 {
        return Err(PackageError::Unknown);
    }
    let text = format!("package {id} {version} was removed");
    tx.note(NewEvent::new(at, "package.removed", actor, text).package(format!("{id} {version}")))?;
    Ok(())
}
