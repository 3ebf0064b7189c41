//! What operators did and were refused: written once, never changed, each entry chained to the one before.

use margrave_core::audit::{BEGINNING, Entry};
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use rusqlite::types::Value;
use rusqlite::{OptionalExtension as _, Row, params_from_iter};

use crate::column::{self, Columns as _};
use crate::sql::Sql;
use crate::{Error, Store};

const PAGE_MAX: usize = 1000;

/// An entry and its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    pub entry: Entry,
    pub hash: Digest,
}

/// Which entries; all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub actor: Option<String>,
    pub subject: Option<String>,
    pub since: Option<Moment>,
    /// Only entries older than this number.
    pub before: Option<u64>,
}

/// The columns that an entry has from its beginning on, as [`begun_values`] gives them.
pub(crate) const BEGUN_COLUMNS: &str =
    "at, actor, role, token, source, way, action, subject, detail, git_commit";

pub(crate) fn begun_values(entry: &Entry) -> [Value; 10] {
    let text = |text: &String| Value::from(text.clone());
    let maybe = |text: &Option<String>| Value::from(text.clone());
    [
        Value::from(column::moment(entry.at)),
        text(&entry.actor),
        maybe(&entry.role),
        maybe(&entry.token),
        text(&entry.source),
        text(&entry.way),
        text(&entry.action),
        text(&entry.subject),
        text(&entry.detail),
        maybe(&entry.commit),
    ]
}

/// An entry as far as those columns tell it: without a number and what came of it.
pub(crate) fn read_begun(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry {
        sequence: 0,
        at: row.moment("at")?,
        actor: row.get("actor")?,
        role: row.get("role")?,
        token: row.get("token")?,
        source: row.get("source")?,
        way: row.get("way")?,
        action: row.get("action")?,
        subject: row.get("subject")?,
        outcome: String::new(),
        detail: row.get("detail")?,
        commit: row.get("git_commit")?,
    })
}

fn read(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    let (sequence, outcome) = (row.unsigned("sequence")?, row.get("outcome")?);
    Ok(AuditRecord { entry: Entry { sequence, outcome, ..read_begun(row)? }, hash: row.digest("hash")? })
}

/// Writes an entry at the end; its number is given here.
pub(crate) fn append(sql: &Sql<'_>, entry: Entry) -> Result<AuditRecord, Error> {
    let newest = sql
        .statement("SELECT sequence, hash FROM audit ORDER BY sequence DESC LIMIT 1")?
        .query_row([], |row| Ok((row.unsigned("sequence")?, row.digest("hash")?)))
        .optional()?;
    let (newest, previous) = newest.unwrap_or((0, BEGINNING));
    // What is stored is what is hashed: a time beyond what the column holds is its largest.
    let at = column::moment(entry.at);
    let entry = Entry { sequence: newest + 1, at: Moment(u64::try_from(at).unwrap_or_default()), ..entry };
    let hash = entry.hash(&previous);
    let last = [
        Value::from(column::unsigned("an entry's number", entry.sequence)?),
        Value::from(entry.outcome.clone()),
        Value::from(hash.as_bytes().to_vec()),
    ];
    sql.statement(&format!(
        "INSERT INTO audit ({BEGUN_COLUMNS}, sequence, outcome, hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)"
    ))?
    .execute(params_from_iter(begun_values(&entry).into_iter().chain(last)))?;
    Ok(AuditRecord { entry, hash })
}

impl Store {
    /// Writes an entry at the end; its number is given here, whatever it says.
    pub async fn audit(&self, entry: Entry) -> Result<AuditRecord, Error> {
        self.write_for_nobody(move |tx| append(tx.sql, entry.clone())).await
    }

    /// Entries that match, newest first.
    pub async fn audit_entries(&self, filter: AuditFilter, limit: usize) -> Result<Vec<AuditRecord>, Error> {
        self.read(move |sql| {
            let AuditFilter { actor, subject, since, before } = filter;
            let mut conditions = Vec::new();
            let mut values: Vec<Value> = Vec::new();
            let before = before.map(|before| i64::try_from(before).unwrap_or(i64::MAX));
            for (condition, value) in [
                ("actor = ?", actor.map(Value::from)),
                ("subject = ?", subject.map(Value::from)),
                ("at >= ?", since.map(|since| Value::from(column::moment(since)))),
                ("sequence < ?", before.map(Value::from)),
            ] {
                if let Some(value) = value {
                    conditions.push(condition);
                    values.push(value);
                }
            }
            let filter = if conditions.is_empty() {
                String::new()
            } else {
                format!("WHERE {}", conditions.join(" AND "))
            };
            let limit = limit.min(PAGE_MAX);
            let mut statement =
                sql.statement(&format!("SELECT * FROM audit {filter} ORDER BY sequence DESC LIMIT {limit}"))?;
            Ok(statement.query_map(params_from_iter(values), read)?.collect::<Result<_, _>>()?)
        })
        .await
    }
}
