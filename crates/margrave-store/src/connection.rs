//! Opening the database file: settings, schema, and the rule that only one process has it.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::OpenError;

/// One file per step, applied in order, each in its own transaction; `user_version` says how far we are.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_first.sql"),
    include_str!("migrations/0002_signed.sql"),
    include_str!("migrations/0003_git.sql"),
    include_str!("migrations/0004_used_signatures.sql"),
    include_str!("migrations/0005_device_origin.sql"),
    include_str!("migrations/0006_rollback.sql"),
    include_str!("migrations/0007_schedule.sql"),
    include_str!("migrations/0008_intent.sql"),
    include_str!("migrations/0009_access.sql"),
    include_str!("migrations/0010_catalog.sql"),
    include_str!("migrations/0011_rollout.sql"),
    include_str!("migrations/0012_standing.sql"),
    include_str!("migrations/0013_room.sql"),
    include_str!("migrations/0014_behind.sql"),
    include_str!("migrations/0015_asked.sql"),
    include_str!("migrations/0016_documents.sql"),
    include_str!("migrations/0017_deployment_windows.sql"),
    include_str!("migrations/0018_applied.sql"),
    include_str!("migrations/0019_blind.sql"),
    include_str!("migrations/0020_waiting.sql"),
    include_str!("migrations/0021_attempts.sql"),
    include_str!("migrations/0022_finding.sql"),
    include_str!("migrations/0023_unfinished.sql"),
    include_str!("migrations/0024_begun.sql"),
    include_str!("migrations/0025_images.sql"),
    include_str!("migrations/0026_named.sql"),
    include_str!("migrations/0027_sizes.sql"),
    include_str!("migrations/0028_refused.sql"),
    include_str!("migrations/0029_given_up.sql"),
    include_str!("migrations/0030_made.sql"),
    include_str!("migrations/0031_noted.sql"),
];

/// How many steps there are: the schema that this program writes.
pub(crate) fn schema_known() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("there are few migrations")
}

/// How long connections wait for each other.
pub(crate) const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);

pub(crate) const FILE_NAME: &str = "margrave.db";

const LETTING_GO_MAX: Duration = Duration::from_secs(2);
const LETTING_GO_LOOK: Duration = Duration::from_millis(20);

/// Takes the directory for this process; the lock ends with the file handle, also on `kill -9`.
pub(crate) fn lock(directory: &Path) -> Result<File, OpenError> {
    let failed = |source| OpenError::Directory { path: directory.to_owned(), source };
    fs::create_dir_all(directory).map_err(failed)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(directory.join("margrave.lock"))
        .map_err(failed)?;
    // Whoever is just stopping lets go in a moment; a restart must not fail for that.
    let until = Instant::now() + LETTING_GO_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LETTING_GO_LOOK),
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(directory.to_owned())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

/// The connection that writes. Creates the file and brings its schema up to date.
pub(crate) fn writing(directory: &Path, page_count_max: Option<u32>) -> Result<Connection, OpenError> {
    let mut connection = Connection::open(directory.join(FILE_NAME)).map_err(OpenError::Sqlite)?;
    settle(&connection).map_err(OpenError::Sqlite)?;
    connection
        .query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))
        // FULL: an acknowledged report must survive a power cut, not only a crash of ours.
        .and_then(|()| connection.execute_batch("PRAGMA synchronous = FULL"))
        // Checkpoints run on another connection (writer.rs), so that no caller waits for one.
        .and_then(|()| connection.query_row("PRAGMA wal_autocheckpoint = 0", [], |_| Ok(())))
        // Twice what the log grows to before it begins anew: to cut it off each time would make somebody wait.
        .and_then(|()| connection.query_row("PRAGMA journal_size_limit = 268435456", [], |_| Ok(())))
        .map_err(OpenError::Sqlite)?;
    // In kilobytes, taken as they are needed and not given back. A publication to ten thousand devices changes more than
    // fits, but most of that is new and written once either way.
    connection.execute_batch("PRAGMA cache_size = -16384").map_err(OpenError::Sqlite)?;
    migrate(&mut connection, MIGRATIONS)?;
    if let Some(pages) = page_count_max {
        connection
            .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
            .map_err(OpenError::Sqlite)?;
    }
    Ok(connection)
}

/// A connection that cannot write.
pub(crate) fn reading(directory: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(directory.join(FILE_NAME), flags)?;
    settle(&connection)?;
    connection.execute_batch("PRAGMA query_only = ON")?;
    Ok(connection)
}

/// The connection that only moves the log into the file.
pub(crate) fn checkpointing(directory: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(directory.join(FILE_NAME))?;
    settle(&connection)?;
    Ok(connection)
}

fn settle(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_WAIT_MAX)?;
    // Plans must not depend on the values that are bound: where they do, SQLite compiles the statement anew for each
    // value, which takes many times as long as running it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.execute_batch("PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY;")
}

fn migrate(connection: &mut Connection, migrations: &[&str]) -> Result<(), OpenError> {
    let known = u32::try_from(migrations.len()).expect("there are few migrations");
    let found: u32 =
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(OpenError::Sqlite)?;
    if found > known {
        return Err(OpenError::Newer { found, known });
    }
    for (step, sql) in (1u32..).zip(migrations).skip(found as usize) {
        let failed = |source| OpenError::Migration { to: step, source };
        let transaction = connection.transaction().map_err(failed)?;
        transaction.execute_batch(sql).map_err(failed)?;
        transaction.pragma_update(None, "user_version", step).map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_continue_where_they_stopped() {
        let mut connection = Connection::open_in_memory().unwrap();
        let steps = ["CREATE TABLE a (x)", "CREATE TABLE b (x)"];
        migrate(&mut connection, &steps[..1]).unwrap();
        migrate(&mut connection, &steps).unwrap();
        migrate(&mut connection, &steps).unwrap();
        connection.execute_batch("SELECT * FROM a, b").unwrap();
    }

    #[test]
    fn a_failing_migration_leaves_the_schema_as_it_was() {
        let mut connection = Connection::open_in_memory().unwrap();
        let error =
            migrate(&mut connection, &["CREATE TABLE a (x)", "CREATE TABLE b (x); CREATE TABLE a (x)"])
                .unwrap_err();
        assert!(matches!(error, OpenError::Migration { to: 2, .. }), "{error}");
        let version: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        assert_eq!(version, 1);
        assert!(connection.execute_batch("SELECT * FROM b").is_err());
    }

    #[test]
    fn tokens_of_before_there_were_roles_are_admins_and_their_sessions_end() {
        let mut connection = Connection::open_in_memory().unwrap();
        let step = MIGRATIONS.iter().position(|sql| sql.contains("access_token")).unwrap();
        migrate(&mut connection, &MIGRATIONS[..step]).unwrap();
        connection
            .execute_batch(
                "INSERT INTO operator_token VALUES (x'00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF',
                     'ann', 7);
                 INSERT INTO session VALUES (x'FF112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF',
                     'operator ann', 7, 8)",
            )
            .unwrap();
        migrate(&mut connection, MIGRATIONS).unwrap();
        let token: (String, String, String, i64) = connection
            .query_row("SELECT id, name, role, created_at FROM operator_token", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })
            .unwrap();
        assert_eq!(token, ("001122334455".to_owned(), "ann".to_owned(), "admin".to_owned(), 7));
        let sessions: u32 =
            connection.query_row("SELECT count(*) FROM session", [], |row| row.get(0)).unwrap();
        assert_eq!(sessions, 0);
    }

    #[test]
    fn a_newer_schema_is_refused_with_a_clear_error() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.pragma_update(None, "user_version", 7).unwrap();
        let error = migrate(&mut connection, &["CREATE TABLE a (x)"]).unwrap_err();
        assert!(matches!(error, OpenError::Newer { found: 7, known: 1 }), "{error}");
    }
}
