//! Fleets in numbers: from what triggers keep counted wherever that is enough, so that a number costs the same for any fleet.

use std::collections::BTreeMap;

use margrave_core::id::DeploymentId;
use rusqlite::named_params;

use crate::assignment::{Apart, AssignmentCount, COUNTS, read_count};
use crate::column::{self, Columns as _};
use crate::finding::{DeviceFilter, QUIET, SILENT, Side, Silence};
use crate::sql::Sql;
use crate::{Condition, Error, Store};

/// How many devices are in which condition, by the value of their label `site`.
pub type SiteCounts = BTreeMap<Option<String>, BTreeMap<String, u64>>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetCounts {
    /// Devices by condition.
    pub devices: BTreeMap<String, u64>,
    /// Assignments by state, of clients that are not retired; those that a rollout holds back are under `WAITING` and `LEFT`, those that
    /// their devices refuse under `NEVER`, and those of devices that are not heard of under `NOTYET`.
    pub assignments: BTreeMap<String, u64>,
    /// Of those that failed, how many their devices do not try again by themselves.
    pub given_up: u64,
    pub packages: u64,
    pub deployments: u64,
}

/// How many devices match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    Exactly(u64),
    /// Counting stopped there.
    MoreThan(u64),
}

/// Devices by condition, as far as that is written down: silent ones are among those that they would be otherwise.
fn tally(sql: &Sql<'_>) -> rusqlite::Result<BTreeMap<String, u64>> {
    sql.statement("SELECT condition, count FROM device_tally WHERE count > 0")?
        .query_map([], |row| Ok((row.get(0)?, row.unsigned("count")?)))?
        .collect()
}

/// Takes silent ones from where they were counted.
fn hush(counts: &mut BTreeMap<String, u64>, otherwise: &str, silent: u64) {
    if let Some(count) = counts.get_mut(otherwise) {
        *count = count.saturating_sub(silent);
    }
    *counts.entry(Condition::Silent.as_str().to_owned()).or_default() += silent;
}

/// Silent devices: their site, what they would be otherwise, how many.
fn silent(sql: &Sql<'_>, silence: &Silence) -> rusqlite::Result<Vec<(Option<String>, String, u64)>> {
    let mut statement = sql.statement(&format!(
        "SELECT standing.site, standing.condition, count(*) AS count FROM device_standing AS standing
         WHERE standing.client IN ({QUIET}) AND {SILENT} GROUP BY 1, 2"
    ))?;
    let rows = statement.query_map(
        named_params! {
            ":silent_before": column::moment(silence.before),
            ":heard": column::json(&silence.heard),
        },
        |row| Ok((row.get(0)?, row.get(1)?, row.unsigned("count")?)),
    )?;
    rows.collect()
}

/// What failed because its device refuses it. The codes are those of `FailureCode::is_refusal`, as the index has them.
const REFUSED: &str =
    "SELECT assignment.deployment, assignment.state, verdict, waits, rollout.state AS rollout, count(*) AS count
    FROM assignment INDEXED BY assignment_refused LEFT JOIN rollout ON rollout.deployment = assignment.deployment
    WHERE archived = 0 AND verdict = 2 AND json_extract(report, '$.fault.code') IN ('document-invalid', 'not-eligible')
        AND (:deployment IS NULL OR assignment.deployment = :deployment)
    GROUP BY 1, 2, 3, 4";

/// What failed and is not tried again by itself, as far as devices tell that, as the index has it. What they refuse is counted as that.
pub(crate) const GIVEN_UP: &str = "archived = 0 AND verdict = 2 AND state = 'FAILED'
    AND json_type(report, '$.detail') = 'object' AND json_extract(report, '$.detail.next_try') IS NULL
    AND coalesce(json_extract(report, '$.fault.code'), '') NOT IN ('document-invalid', 'not-eligible')";

/// What is pending, or waits for its turn, on devices that are silent. Whom an aborted rollout left behind gets nothing by being heard.
fn unheard() -> String {
    format!(
        "SELECT part.deployment, part.state, verdict, waits, rollout.state AS rollout, count(*) AS count FROM (
            SELECT deployment, assignment.state, verdict, 0 AS waits FROM device_standing AS standing
            CROSS JOIN assignment ON assignment.client = standing.client AND assignment.device = standing.device
            WHERE standing.client IN ({QUIET}) AND {SILENT} AND archived = 0 AND verdict = 1 AND waits = 0
                AND wanted = 1
            UNION ALL
            SELECT member.deployment, coalesce(assignment.state, 'PENDING'), coalesce(verdict, 1), 1
            FROM device_standing AS standing
            CROSS JOIN rollout_member AS member ON member.client = standing.client AND member.device = standing.device
                AND member.waits = 1
            LEFT JOIN assignment ON assignment.client = member.client AND assignment.device = member.device
                AND assignment.deployment = member.deployment AND archived = 0
            WHERE standing.client IN ({QUIET}) AND {SILENT} AND coalesce(verdict, 1) <> 2
        ) AS part LEFT JOIN rollout ON rollout.deployment = part.deployment
        WHERE (:deployment IS NULL OR part.deployment = :deployment)
            AND (waits = 0 OR rollout.state <> 'aborted')
        GROUP BY 1, 2, 3, 4"
    )
}

/// Assignments by deployment and what they are; never archived ones. What is counted apart is taken from where it was counted.
fn assignments(
    sql: &Sql<'_>,
    silence: &Silence,
    only: Option<DeploymentId>,
) -> rusqlite::Result<Vec<AssignmentCount>> {
    let only = only.map(|only| *only.uuid().as_bytes());
    let mut counts: Vec<AssignmentCount> = sql
        .statement(&format!(
            "{COUNTS} WHERE (:deployment IS NULL OR assignment_tally.deployment = :deployment) AND count > 0"
        ))?
        .query_map(named_params! { ":deployment": only }, read_count)?
        .collect::<Result<_, _>>()?;
    let refused: Vec<AssignmentCount> = sql
        .statement(REFUSED)?
        .query_map(named_params! { ":deployment": only }, read_count)?
        .collect::<Result<_, _>>()?;
    let (before, heard) = (column::moment(silence.before), column::json(&silence.heard));
    let unheard: Vec<AssignmentCount> = sql
        .statement(&unheard())?
        .query_map(
            named_params! { ":deployment": only, ":silent_before": before, ":heard": heard },
            read_count,
        )?
        .collect::<Result<_, _>>()?;
    let never = refused.into_iter().map(|count| AssignmentCount { apart: Some(Apart::Never), ..count });
    let not_yet = unheard.into_iter().map(|count| AssignmentCount { apart: Some(Apart::NotYet), ..count });
    for part in never.chain(not_yet) {
        let whole = AssignmentCount { apart: None, count: 0, ..part.clone() };
        let found =
            counts.iter_mut().find(|count| AssignmentCount { count: 0, ..(**count).clone() } == whole);
        if let Some(found) = found {
            found.count = found.count.saturating_sub(part.count);
        }
        counts.push(part);
    }
    counts.retain(|count| count.count > 0);
    Ok(counts)
}

impl DeviceFilter {
    /// The number that is known without looking for the devices, where nothing else is asked for.
    fn known(&self, sql: &Sql<'_>) -> rusqlite::Result<Option<u64>> {
        let alone = |filter: DeviceFilter| {
            let same = DeviceFilter {
                silence: self.silence.clone(),
                after: self.after.clone(),
                limit: self.limit,
                ..filter
            };
            same == *self
        };
        let one = |text: &str, given: &[&str]| {
            sql.statement(text)?
                .query_row(rusqlite::params_from_iter(given), |row| row.unsigned("count"))
                .map(Some)
        };
        if alone(DeviceFilter::default()) {
            return Ok(Some(tally(sql)?.values().sum()));
        }
        if let Some(condition) = self.condition
            && alone(DeviceFilter { condition: Some(condition), ..DeviceFilter::default() })
        {
            let mut counts = tally(sql)?;
            for (_, otherwise, count) in silent(sql, &self.silence)? {
                hush(&mut counts, &otherwise, count);
            }
            return Ok(Some(counts.get(condition.as_str()).copied().unwrap_or_default()));
        }
        if let Some(site) = &self.site
            && alone(DeviceFilter { site: Some(site.clone()), ..DeviceFilter::default() })
        {
            return one("SELECT coalesce(sum(count), 0) AS count FROM site_tally WHERE site = ?1", &[site]);
        }
        if alone(DeviceFilter { without_site: true, ..DeviceFilter::default() }) {
            let with = one("SELECT coalesce(sum(count), 0) AS count FROM site_tally", &[])?;
            let all: u64 = tally(sql)?.values().sum();
            return Ok(with.map(|with| all.saturating_sub(with)));
        }
        Ok(None)
    }
}

impl Store {
    /// How many devices match on all pages together; counting stops at the filter's limit where they have to be looked for.
    pub async fn devices_counted(&self, filter: DeviceFilter) -> Result<Counted, Error> {
        self.read(move |sql| {
            if let Some(known) = filter.known(sql)? {
                return Ok(Counted::Exactly(known));
            }
            let most = filter.limit;
            let filter = DeviceFilter { limit: most.saturating_add(1), ..filter };
            let counted = filter.finding(sql, Side::All)?.rows(
                sql,
                |text| format!("SELECT count(*) AS count FROM ({text})"),
                |row| row.unsigned("count"),
            )?;
            Ok(match counted.first().copied().unwrap_or_default() {
                count if count > most.into() => Counted::MoreThan(most.into()),
                count => Counted::Exactly(count),
            })
        })
        .await
    }

    /// The sites that devices have, by name, up to so many.
    pub async fn sites(&self, most: u32) -> Result<Vec<String>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT DISTINCT site FROM site_tally WHERE condition <> 'retired' ORDER BY site LIMIT ?1",
            )?;
            let rows = statement.query_map([most], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// How many devices of each site are in which condition; those without a site are under `None`. Retired ones are not counted.
    pub async fn site_counts(&self, silence: Silence) -> Result<SiteCounts, Error> {
        self.read(move |sql| {
            let mut sites = SiteCounts::new();
            let mut everywhere = tally(sql)?;
            let mut statement = sql.statement("SELECT site, condition, count FROM site_tally")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (site, condition) = (row.get::<_, String>(0)?, row.get::<_, String>(1)?);
                let count = row.unsigned("count")?;
                if let Some(left) = everywhere.get_mut(&condition) {
                    *left = left.saturating_sub(count);
                }
                sites.entry(Some(site)).or_default().insert(condition, count);
            }
            sites.insert(None, everywhere);
            for (site, otherwise, count) in silent(sql, &silence)? {
                hush(sites.entry(site).or_default(), &otherwise, count);
            }
            for counts in sites.values_mut() {
                counts.retain(|condition, count| *count > 0 && condition != Condition::Retired.as_str());
            }
            sites.retain(|_, counts| !counts.is_empty());
            Ok(sites)
        })
        .await
    }

    /// The assignments of every deployment, counted by state; never archived ones.
    pub async fn assignment_counts(&self, silence: Silence) -> Result<Vec<AssignmentCount>, Error> {
        self.read(move |sql| Ok(assignments(sql, &silence, None)?)).await
    }

    /// The assignments of one deployment, counted by state; never archived ones.
    pub async fn assignment_counts_of(
        &self,
        id: DeploymentId,
        silence: Silence,
    ) -> Result<Vec<AssignmentCount>, Error> {
        self.read(move |sql| Ok(assignments(sql, &silence, Some(id))?)).await
    }

    /// The whole fleet in numbers.
    pub async fn fleet_counts(&self, silence: Silence) -> Result<FleetCounts, Error> {
        self.read(move |sql| {
            let mut counts = FleetCounts { devices: tally(sql)?, ..FleetCounts::default() };
            for (_, otherwise, count) in silent(sql, &silence)? {
                hush(&mut counts.devices, &otherwise, count);
            }
            counts.devices.retain(|_, count| *count > 0);
            for count in assignments(sql, &silence, None)? {
                *counts.assignments.entry(count.word().to_owned()).or_default() += count.count;
            }
            let count = |rows: &str| {
                sql.query_row(&format!("SELECT count(*) FROM {rows}"), [], |row| row.unsigned("count(*)"))
            };
            counts.given_up = count(&format!("assignment INDEXED BY assignment_given_up WHERE {GIVEN_UP}"))?;
            counts.packages = count("package")?;
            counts.deployments = count("deployment WHERE removed = 0")?;
            Ok(counts)
        })
        .await
    }
}
