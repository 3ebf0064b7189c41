//! Devices found: by an index and in its order wherever there is one, a text by its trigrams (`named.rs`), and otherwise in a table
//! that is narrow enough to be looked through (`device_standing`), so that a page costs what it shows and hardly what the fleet has.

use margrave_core::deployment::SITE;
use margrave_core::id::{ClientId, DeploymentName, DeviceRef};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use rusqlite::ToSql;

use crate::column::{self, Columns as _};
use crate::device::{self, DeviceRecord};
use crate::named::{self, Named};
use crate::sql::Sql;
use crate::{Condition, Error, Store};

/// Who counts as silent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Silence {
    /// Clients that were not heard of since.
    pub before: Moment,
    /// Except these: they were, and it is not written down yet.
    pub heard: Vec<ClientId>,
}

/// Clients that may be silent; [`SILENT`] tells which of them are. Who was never heard of has told nothing either.
pub(crate) const QUIET: &str = "SELECT contact.client FROM contact WHERE contact.at < :silent_before
    UNION SELECT device.client FROM device INDEXED BY device_unheard WHERE capabilities IS NULL";

/// Whether a device of the table `standing` is silent. [`DeviceRecord::condition`] says the same.
pub(crate) const SILENT: &str = "(standing.condition <> 'retired'
    AND coalesce((SELECT contact.at FROM contact WHERE contact.client = standing.client),
        (SELECT client.joined_at FROM client WHERE client.id = standing.client)) < :silent_before
    AND standing.client NOT IN (SELECT value FROM json_each(:heard)))";

/// Whether a value among the capabilities of a device of the table `standing` has the text.
const CAPABLE: &str =
    "(standing.capability_set IN (SELECT id FROM capability_set WHERE instr(words, :capability) > 0)
    OR instr(standing.own, :capability) > 0)";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceFilter {
    /// Part of the name, in any case.
    pub search: Option<String>,
    /// A label that must be there; with a value, it must be that.
    pub label: Option<(String, Option<String>)>,
    pub condition: Option<Condition>,
    /// With an assignment in this state.
    pub state: Option<State>,
    /// With this value of the label `site`.
    pub site: Option<String>,
    /// Without that label.
    pub without_site: bool,
    /// With something of the deployment of this name.
    pub deployment: Option<DeploymentName>,
    /// A text, in any case, that is in one of the values of its capabilities: `arm64`, `helm`, `camera`.
    pub capability: Option<String>,
    pub silence: Silence,
    pub after: Option<DeviceRef>,
    pub limit: u32,
}

/// Which devices of those that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// All of them.
    All,
    /// What comes after where the page before ended.
    Behind,
    /// What comes before, and the one where it ended, backwards.
    Before,
}

/// A statement that finds the names of devices, and what it is given.
pub(crate) struct Finding {
    text: String,
    given: Vec<(&'static str, Box<dyn ToSql>)>,
}

impl Finding {
    fn give(&mut self, name: &'static str, value: impl ToSql + 'static) {
        if self.given.iter().all(|(given, _)| *given != name) {
            self.given.push((name, Box::new(value)));
        }
    }

    /// The names, in their order, with what `wrap` makes of the statement.
    pub(crate) fn rows<T>(
        &self,
        sql: &Sql<'_>,
        wrap: impl FnOnce(&str) -> String,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        let given: Vec<(&str, &dyn ToSql)> =
            self.given.iter().map(|(name, value)| (*name, value.as_ref())).collect();
        sql.statement(&wrap(&self.text))?.query_map(given.as_slice(), read)?.collect()
    }
}

impl DeviceFilter {
    /// Only what is asked for is in the statement: every other condition would be looked up for nothing.
    pub(crate) fn finding(&self, sql: &Sql<'_>, side: Side) -> rusqlite::Result<Finding> {
        let DeviceFilter {
            search,
            label,
            condition,
            state,
            site,
            without_site,
            deployment,
            capability,
            silence,
            after,
            limit,
        } = self;
        let mut finding = Finding { text: String::new(), given: Vec::new() };
        let mut asked: Vec<String> = Vec::new();

        // Where to look at all: what leads to the fewest, in the order of its index.
        let labelled = label.as_ref().and_then(|(key, value)| Some((key, value.as_ref()?)));
        let capability = capability.as_ref().map(|text| text.to_lowercase());
        let searched = search.as_ref().map(|text| named::with_text(sql, text)).transpose()?.flatten();
        let capable =
            capability.as_ref().map(|text| named::with_capability(sql, text)).transpose()?.flatten();
        let gathered: Vec<(&'static str, Named)> = [(":searched", searched), (":capable", capable)]
            .into_iter()
            .filter_map(|(name, named)| Some((name, named?)))
            .collect();
        let (from, among) = if !gathered.is_empty() {
            for (name, named) in gathered {
                finding.give(name, column::json(&named));
                asked.push(format!(
                    "(standing.client, standing.device) IN (SELECT value ->> 0, value ->> 1 FROM json_each({name}))"
                ));
            }
            ("device_standing", "standing")
        } else if let Some((key, value)) = labelled {
            finding.give(":key", key.clone());
            finding.give(":value", value.clone());
            asked.push("among.key = :key AND among.value = :value".to_owned());
            ("label", "among")
        } else if let Some(name) = deployment {
            finding.give(":deployment", name.as_str().to_owned());
            asked.push("among.deployment_name = :deployment AND among.archived = 0".to_owned());
            if let Some(state) = state {
                finding.give(":state", state.as_str());
                asked.push("among.state = :state".to_owned());
            }
            ("assignment", "among")
        } else if let Some(site) = site {
            finding.give(":site", site.clone());
            asked.push(format!("among.key = '{SITE}' AND among.value = :site"));
            ("label", "among")
        } else if let Some(state) = state {
            finding.give(":state", state.as_str());
            asked.push("among.state = :state AND among.archived = 0".to_owned());
            ("assignment", "among")
        } else {
            ("device_standing", "standing")
        };

        if side != Side::All {
            let after = after.as_ref().map(|after| (after.client.to_string(), after.device.to_string()));
            let (client, device) = after.unwrap_or_default();
            finding.give(":client", client);
            finding.give(":device", device);
            let compared = if side == Side::Behind { ">" } else { "<=" };
            asked.push(format!("({among}.client, {among}.device) {compared} (:client, :device)"));
        }
        if let Some(text) = search {
            finding.give(":search", format!("%{}%", literally(text)));
            let like = "LIKE :search ESCAPE '\\'";
            asked.push(match text.contains(':') {
                true => format!("{among}.client || ':' || {among}.device {like}"),
                false => format!("({among}.client {like} OR {among}.device {like})"),
            });
        }
        if let Some((key, value)) = label.as_ref().filter(|(_, value)| value.is_none() || from != "label") {
            finding.give(":key", key.clone());
            let mut given = format!(
                "given.client = {among}.client AND given.device = {among}.device AND given.key = :key"
            );
            if let Some(value) = value {
                finding.give(":value", value.clone());
                given.push_str(" AND given.value = :value");
            }
            asked.push(format!("EXISTS (SELECT 1 FROM label AS given WHERE {given})"));
        }
        if from != "assignment" && (deployment.is_some() || state.is_some()) {
            let mut held = format!("held.client = {among}.client AND held.device = {among}.device");
            if let Some(name) = deployment {
                finding.give(":deployment", name.as_str().to_owned());
                held.push_str(" AND held.deployment_name = :deployment");
            }
            if let Some(state) = state {
                finding.give(":state", state.as_str());
                held.push_str(" AND held.state = :state");
            }
            asked.push(format!(
                "EXISTS (SELECT 1 FROM assignment AS held WHERE {held} AND held.archived = 0)"
            ));
        }

        let before = asked.len();
        if let Some(site) = site {
            finding.give(":site", site.clone());
            asked.push("standing.site = :site".to_owned());
        }
        if *without_site {
            asked.push("standing.site IS NULL".to_owned());
        }
        if let Some(text) = capability {
            finding.give(":capability", text);
            asked.push(CAPABLE.to_owned());
        }
        match condition {
            None => {}
            Some(Condition::Retired) => asked.push("standing.condition = 'retired'".to_owned()),
            Some(condition) => {
                finding.give(":silent_before", column::moment(silence.before));
                finding.give(":heard", column::json(&silence.heard));
                if *condition == Condition::Silent {
                    asked.push(format!("standing.client IN ({QUIET}) AND {SILENT}"));
                } else {
                    finding.give(":condition", condition.as_str());
                    asked.push(format!("standing.condition = :condition AND NOT {SILENT}"));
                }
            }
        }
        let beside = match asked.len() > before && among != "standing" {
            true => {
                "CROSS JOIN device_standing AS standing
                 ON standing.client = among.client AND standing.device = among.device"
            }
            false => "",
        };
        let order = match side {
            Side::All => String::new(),
            Side::Behind => format!("ORDER BY {among}.client, {among}.device"),
            Side::Before => format!("ORDER BY {among}.client DESC, {among}.device DESC"),
        };
        // An assignment that is being removed may be there beside its successor of the same name.
        let distinct = if from == "assignment" { "DISTINCT" } else { "" };
        let asked = if asked.is_empty() { "1".to_owned() } else { asked.join(" AND ") };
        finding.give(":limit", *limit);
        finding.text = format!(
            "SELECT {distinct} {among}.client, {among}.device FROM {from} AS {among} {beside}
             WHERE {asked} {order} LIMIT :limit"
        );
        Ok(finding)
    }
}

/// A text that `LIKE` takes as it is.
fn literally(text: &str) -> String {
    text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_")
}

impl Store {
    /// One page of devices, in the order of client and name.
    pub async fn devices(&self, filter: DeviceFilter) -> Result<Vec<DeviceRecord>, Error> {
        self.read(move |sql| {
            let mut found = Vec::new();
            for name in names(sql, &filter.finding(sql, Side::Behind)?)? {
                found.extend(device::one(sql, &name)?);
            }
            Ok(found)
        })
        .await
    }

    /// The device that the page before begins after, on pages of the filter's limit; `None` where that is the first page.
    pub async fn page_before(&self, mut filter: DeviceFilter) -> Result<Option<DeviceRef>, Error> {
        let size = filter.limit;
        filter.limit = size + 1;
        self.read(move |sql| {
            let before = names(sql, &filter.finding(sql, Side::Before)?)?;
            Ok(before.into_iter().nth(size as usize))
        })
        .await
    }
}

fn names(sql: &Sql<'_>, finding: &Finding) -> rusqlite::Result<Vec<DeviceRef>> {
    finding.rows(sql, str::to_owned, |row| Ok(DeviceRef::new(row.parsed("client")?, row.parsed("device")?)))
}
