//! What somebody began to do, and of which the audit log has no entry yet.
//!
//! An entry can only be written when it is known what came of something, which is after it was done. So that a crash in between
//! loses nothing, every transaction that changes something on behalf of a request also keeps who asked for what. The entry takes
//! its place. What a crash left is turned into entries by the next start ([`Store::conclude_cut_off`]).
//!
//! Whom a transaction is on behalf of is left with the task ([`Begun::during`]), so that no verb can forget it. Nothing of this
//! waits for the disk another time: it is in a commit that is made anyway.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use margrave_core::audit::Entry;
use rusqlite::params_from_iter;
use rusqlite::types::Value;

use crate::audit::{self, BEGUN_COLUMNS, begun_values, read_begun};
use crate::column;
use crate::sql::Sql;
use crate::writer::Tx;
use crate::{Error, Store};

tokio::task_local! {
    static PRESENT: Begun;
}

/// Tells those of one process apart; those of the one before are concluded by the time that it begins anything.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Something that was asked, from its beginning until its entry is written.
#[derive(Clone)]
pub struct Begun(Arc<Inner>);

struct Inner {
    id: u64,
    /// As much as is known by now.
    entry: Box<dyn Fn() -> Entry + Send + Sync>,
    commit: Mutex<Option<String>>,
    /// Whether the database may have it.
    kept: AtomicBool,
    /// Whether its entry is written.
    concluded: AtomicBool,
}

impl Begun {
    /// `entry` says what is known of it at any time; its outcome does not count.
    pub fn new(entry: impl Fn() -> Entry + Send + Sync + 'static) -> Begun {
        Begun(Arc::new(Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            entry: Box::new(entry),
            commit: Mutex::default(),
            kept: AtomicBool::new(false),
            concluded: AtomicBool::new(false),
        }))
    }

    /// Does the work; whatever it writes is written on behalf of this.
    pub async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        PRESENT.scope(self.clone(), work).await
    }

    /// On behalf of what this task writes.
    pub fn present() -> Option<Begun> {
        PRESENT.try_with(Begun::clone).ok()
    }

    /// The work, to be handed to another task, on behalf of what this one writes.
    pub fn carried<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
        let present = Begun::present();
        async move {
            match present {
                Some(begun) => begun.during(work).await,
                None => work.await,
            }
        }
    }

    /// As much as is known of it now.
    pub fn entry(&self) -> Entry {
        let entry = (self.0.entry)();
        let commit = self.0.commit.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Entry { commit: commit.or(entry.commit), ..entry }
    }

    /// Whether something may have been changed on its behalf that the log has no entry of.
    pub fn is_kept(&self) -> bool {
        self.0.kept.load(Ordering::Relaxed)
    }

    /// Whether its entry was written already, before it was answered.
    pub fn is_concluded(&self) -> bool {
        self.0.concluded.load(Ordering::Relaxed)
    }

    /// The commit that is taken up with what is written next.
    pub(crate) fn takes(&self, commit: Option<String>) {
        *self.0.commit.lock().unwrap_or_else(PoisonError::into_inner) = commit;
    }

    pub(crate) fn keep(&self, sql: &Sql<'_>) -> Result<(), Error> {
        self.0.kept.store(true, Ordering::Relaxed);
        let id = Value::from(column::unsigned("a number of something begun", self.0.id)?);
        sql.statement(&format!(
            "INSERT INTO audit_begun ({BEGUN_COLUMNS}, id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
             ON CONFLICT (id) DO UPDATE SET actor = excluded.actor, role = excluded.role, token = excluded.token,
                 action = excluded.action, subject = excluded.subject, detail = excluded.detail,
                 git_commit = coalesce(excluded.git_commit, git_commit)"
        ))?
        .execute(params_from_iter(begun_values(&self.entry()).into_iter().chain([id])))?;
        Ok(())
    }

    fn forget(&self, sql: &Sql<'_>) -> Result<(), Error> {
        let id = column::unsigned("a number of something begun", self.0.id)?;
        sql.statement("DELETE FROM audit_begun WHERE id = ?1")?.execute([id])?;
        Ok(())
    }
}

impl Store {
    /// Keeps that something was begun, before it is done: for what is changed elsewhere than here.
    pub async fn begin(&self, begun: &Begun) -> Result<(), Error> {
        let begun = begun.clone();
        self.write_for_nobody(move |tx| begun.keep(tx.sql)).await
    }

    /// Writes the entry of something that was begun in its place, or nothing where nobody has to know of it.
    pub async fn conclude(&self, begun: &Begun, entry: Option<Entry>) -> Result<(), Error> {
        if entry.is_none() && !begun.is_kept() {
            return Ok(());
        }
        let (written, concluded) = (entry.is_some(), begun.clone());
        self.write_for_nobody(move |tx| {
            if let Some(entry) = &entry {
                audit::append(tx.sql, entry.clone())?;
            }
            concluded.forget(tx.sql)
        })
        .await?;
        begun.0.kept.store(false, Ordering::Relaxed);
        begun.0.concluded.fetch_or(written, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the entries of everything that was begun and never concluded. Only for who begins nothing meanwhile: a server that
    /// starts.
    pub async fn conclude_cut_off(&self) -> Result<Vec<Entry>, Error> {
        let any = self.read(|sql| {
            let mut statement = sql.statement("SELECT EXISTS (SELECT 1 FROM audit_begun)")?;
            Ok(statement.query_row([], |row| row.get::<_, bool>(0))?)
        });
        if !any.await? {
            return Ok(Vec::new());
        }
        self.write_for_nobody(|tx: &Tx<'_, '_>| {
            let mut statement = tx.sql.statement("SELECT * FROM audit_begun ORDER BY at, id")?;
            let left = statement.query_map([], read_begun)?.collect::<Result<Vec<_>, _>>()?;
            let written = left.into_iter().map(|entry| Ok(audit::append(tx.sql, entry.cut_off())?.entry));
            let written = written.collect::<Result<Vec<_>, Error>>()?;
            tx.sql.statement("DELETE FROM audit_begun")?.execute([])?;
            Ok(written)
        })
        .await
    }
}
