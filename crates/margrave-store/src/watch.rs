//! Repositories whose tags are watched, and what became of each tag.

use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_core::watch::{TagPattern, TagState};
use rusqlite::Row;

use crate::column::{self, Columns as _};
use crate::event::NewEvent;
use crate::{Error, Put, Store};

/// Each is a question to a registry every few minutes.
pub const WATCHES_MAX: u64 = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchRecord {
    /// `oci://host/repository`.
    pub repository: String,
    pub pattern: TagPattern,
    pub every: Duration,
    pub added_at: Moment,
    pub added_by: String,
    pub looked_at: Option<Moment>,
    pub next_at: Moment,
    /// Turns in a row that did not work.
    pub failures: u32,
    /// Why the last turn did not work, or what it could not do.
    pub trouble: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRecord {
    pub tag: String,
    pub digest: Digest,
    pub state: TagState,
    /// `id version` of the package that it holds.
    pub package: Option<String>,
    /// Why it holds no package that can be added.
    pub reason: Option<String>,
    pub looked_at: Moment,
}

/// What one turn of a watch brought.
#[derive(Debug, Clone, Default)]
pub struct WatchTurn {
    pub at: Moment,
    pub next_at: Moment,
    pub failures: u32,
    pub trouble: Option<String>,
    pub tags: Vec<TagRecord>,
    pub forgotten: Vec<String>,
    pub events: Vec<NewEvent>,
}

fn read(row: &Row<'_>) -> rusqlite::Result<WatchRecord> {
    Ok(WatchRecord {
        repository: row.get("repository")?,
        pattern: row.parsed("pattern")?,
        every: Duration::from_millis(row.unsigned("every_ms")?),
        added_at: row.moment("added_at")?,
        added_by: row.get("added_by")?,
        looked_at: row.moment_maybe("looked_at")?,
        next_at: row.moment("next_at")?,
        failures: row.get("failures")?,
        trouble: row.get("trouble")?,
    })
}

fn read_tag(row: &Row<'_>) -> rusqlite::Result<TagRecord> {
    Ok(TagRecord {
        tag: row.get("tag")?,
        digest: row.digest("digest")?,
        state: row.parsed("state")?,
        package: row.get("package")?,
        reason: row.get("reason")?,
        looked_at: row.moment("looked_at")?,
    })
}

impl Store {
    pub async fn watches(&self) -> Result<Vec<WatchRecord>, Error> {
        self.read(|sql| {
            let mut statement = sql.statement("SELECT * FROM watch ORDER BY repository")?;
            Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub async fn watched_tags(&self, repository: &str) -> Result<Vec<TagRecord>, Error> {
        let repository = repository.to_owned();
        self.read(move |sql| {
            let mut statement =
                sql.statement("SELECT * FROM watched_tag WHERE repository = ?1 ORDER BY tag")?;
            Ok(statement.query_map([&repository], read_tag)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Watches a repository, or changes how; what was seen of its tags stays. `None` when there are [`WATCHES_MAX`].
    pub async fn put_watch(
        &self,
        repository: &str,
        pattern: TagPattern,
        every: Duration,
        at: Moment,
        actor: &str,
    ) -> Result<Option<Put>, Error> {
        let (repository, actor) = (repository.to_owned(), actor.to_owned());
        self.write(move |tx| {
            let known = tx.sql.statement("SELECT 1 FROM watch WHERE repository = ?1")?.exists([&repository])?;
            let count = tx.sql.query_row("SELECT count(*) FROM watch", [], |row| row.unsigned("count(*)"))?;
            if !known && count >= WATCHES_MAX {
                return Ok(None);
            }
            let every_ms =
                column::unsigned("a pause", u64::try_from(every.as_millis()).unwrap_or(u64::MAX))?;
            tx.sql
                .statement(
                    "INSERT INTO watch (repository, pattern, every_ms, added_at, added_by, next_at)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?4)
                     ON CONFLICT (repository) DO UPDATE SET
                         pattern = ?2, every_ms = ?3, added_at = ?4, added_by = ?5, next_at = ?4, failures = 0",
                )?
                .execute((&repository, pattern.as_str(), every_ms, column::moment(at), &actor))?;
            let text = format!("{repository} is watched for tags like {pattern}");
            tx.note(NewEvent::new(at, "watch.changed", &actor, text))?;
            Ok(Some(if known { Put::Updated } else { Put::Created }))
        })
        .await
    }

    /// Watches a repository no more; its packages stay. `false` where it was not watched.
    pub async fn remove_watch(&self, repository: &str, at: Moment, actor: &str) -> Result<bool, Error> {
        let (repository, actor) = (repository.to_owned(), actor.to_owned());
        self.write(move |tx| {
            if tx.sql.statement("DELETE FROM watch WHERE repository = ?1")?.execute([&repository])? == 0 {
                return Ok(false);
            }
            let text = format!("{repository} is no longer watched");
            tx.note(NewEvent::new(at, "watch.removed", &actor, text))?;
            Ok(true)
        })
        .await
    }

    /// Writes down what a turn brought; nothing of it where the watch was ended meanwhile.
    pub async fn note_watch(&self, repository: &str, turn: WatchTurn) -> Result<(), Error> {
        let repository = repository.to_owned();
        self.write(move |tx| {
            let WatchTurn { at, next_at, failures, trouble, tags, forgotten, events } = &turn;
            let updated = tx
                .sql
                .statement(
                    "UPDATE watch SET looked_at = ?2, next_at = ?3, failures = ?4, trouble = ?5
                     WHERE repository = ?1",
                )?
                .execute((&repository, column::moment(*at), column::moment(*next_at), failures, trouble))?;
            if updated == 0 {
                return Ok(());
            }
            for tag in forgotten {
                tx.sql
                    .statement("DELETE FROM watched_tag WHERE repository = ?1 AND tag = ?2")?
                    .execute((&repository, tag))?;
            }
            for TagRecord { tag, digest, state, package, reason, looked_at } in tags {
                tx.sql
                    .statement(
                        "INSERT INTO watched_tag (repository, tag, digest, state, package, reason, looked_at)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                         ON CONFLICT (repository, tag) DO UPDATE SET
                             digest = ?3, state = ?4, package = ?5, reason = ?6, looked_at = ?7",
                    )?
                    .execute((
                        &repository,
                        tag,
                        digest.as_bytes(),
                        state.as_str(),
                        package,
                        reason,
                        column::moment(*looked_at),
                    ))?;
            }
            for event in events {
                tx.note(event.clone())?;
            }
            Ok(())
        })
        .await
    }
}
