//! The devices of a rollout, as narrow as deciding about them allows.
//!
//! A rollout is looked at whenever one of its devices said something, and each look is at all of them. So nothing is read
//! here that does not decide: no capabilities, no manifests, and of the labels only those that the targets ask for.

use std::collections::BTreeMap;

use margrave_core::deployment::{Deployment, SITE};
use margrave_core::id::{DeploymentId, DeviceRef};
use margrave_core::moment::Moment;
use rusqlite::{Row, named_params};

use crate::column::{self, Columns as _};
use crate::rollout::MemberRecord;
use crate::sql::Sql;
use crate::{DeviceRecord, Error, Standing, Store};

/// A device in line, as far as it decides who moves next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinedRecord {
    pub member: MemberRecord,
    pub retired: bool,
    /// When it was last heard of, or joined; not what is only in memory so far.
    pub heard: Moment,
    /// It told what it is.
    pub speaks: bool,
    /// Its label `site`.
    pub site: Option<String>,
    /// Those that the deployment's targets ask for, as far as it has them.
    pub labels: BTreeMap<String, String>,
}

impl LinedRecord {
    /// The same from what is known of a device anyway.
    pub fn new(member: MemberRecord, device: &DeviceRecord) -> LinedRecord {
        LinedRecord {
            member,
            retired: device.standing == Standing::Retired,
            heard: device.last_contact.unwrap_or(device.joined_at),
            speaks: device.capabilities.is_some(),
            site: device.labels.get(SITE).cloned(),
            labels: device.labels.clone(),
        }
    }
}

impl Store {
    /// The devices of a rollout, in their order.
    pub async fn rollout_lineup(&self, deployment: &Deployment) -> Result<Vec<LinedRecord>, Error> {
        self.lineup(deployment, "rollout_member").await
    }

    /// The devices that a deployment went to all at once, as if each were first in line and had been released.
    pub async fn assigned_lineup(&self, deployment: &Deployment) -> Result<Vec<LinedRecord>, Error> {
        let members = "(SELECT deployment, client, device, 0 AS place, changed_at AS released_at, 1 AS forgiven, NULL AS keeps
             FROM assignment WHERE archived = 0 AND wanted = 1)";
        self.lineup(deployment, members).await
    }

    async fn lineup(
        &self,
        deployment: &Deployment,
        members: &'static str,
    ) -> Result<Vec<LinedRecord>, Error> {
        let id = deployment.id;
        let keys: Vec<String> = deployment.targets.keys().into_iter().map(str::to_owned).collect();
        self.read(move |sql| {
            // What is true of nearly all devices costs nothing here: who has not spoken is in an index of its own, and when a
            // device joined is asked only of those that were never heard of.
            let mut statement = sql.statement(&format!(
                "SELECT member.client, member.device, place, released_at, forgiven, keeps, standing.condition, standing.site,
                     coalesce(contact.at, (SELECT joined_at FROM client WHERE client.id = member.client)) AS heard,
                     NOT EXISTS (SELECT 1 FROM device INDEXED BY device_unheard WHERE device.client = member.client
                         AND device.device = member.device AND capabilities IS NULL) AS speaks
                 FROM {members} AS member
                 CROSS JOIN device_standing AS standing ON standing.client = member.client AND standing.device = member.device
                 LEFT JOIN contact ON contact.client = member.client
                 WHERE member.deployment = ?1"
            ))?;
            let rows = statement.query_map([id.uuid().as_bytes()], read)?;
            let mut lined: Vec<LinedRecord> = rows.collect::<Result<_, _>>()?;
            if !keys.is_empty() {
                lined.sort_by(|a, b| a.member.device.cmp(&b.member.device));
                label(sql, id, members, &keys, &mut lined)?;
            }
            lined.sort_by_key(|lined| lined.member.place);
            Ok(lined)
        })
        .await
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<LinedRecord> {
    Ok(LinedRecord {
        member: MemberRecord::read(row)?,
        retired: row.get::<_, String>(6)? == "retired",
        site: row.get(7)?,
        heard: row.moment("heard")?,
        speaks: row.get(9)?,
        labels: BTreeMap::new(),
    })
}

/// Adds these labels to devices that lie in order.
fn label(
    sql: &Sql<'_>,
    deployment: DeploymentId,
    members: &str,
    keys: &[String],
    lined: &mut [LinedRecord],
) -> rusqlite::Result<()> {
    let mut statement = sql.statement(&format!(
        "SELECT member.client, member.device, label.key, label.value
         FROM {members} AS member CROSS JOIN label ON label.client = member.client AND label.device = member.device
         WHERE member.deployment = :deployment AND label.key IN (SELECT value FROM json_each(:keys))"
    ))?;
    let mut rows = statement.query(named_params! {
        ":deployment": deployment.uuid().as_bytes(),
        ":keys": column::json(&keys),
    })?;
    while let Some(row) = rows.next()? {
        let (client, device) = (row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?);
        let found = lined.binary_search_by(|lined| {
            let DeviceRef { client: own_client, device: own } = &lined.member.device;
            (own_client.as_str(), own.as_str()).cmp(&(client, device))
        });
        // Both were read of one moment.
        if let Ok(at) = found {
            lined[at].labels.insert(row.get(2)?, row.get(3)?);
        }
    }
    Ok(())
}
