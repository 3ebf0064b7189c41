//! Backup and restore: everything that a server keeps, in one archive, and back again.
//!
//! An archive holds the database, the keys, the registry and, where there is one, the repository of what operators
//! want; `margrave_wire::backup` is its format. Left out is what the server makes anew by itself: devices' Git
//! repositories, uploads that were not finished, locks.
//!
//! **The database is copied first.** Whatever it refers to was there before it was written down: a package's contents
//! before the package, a commit before the head that counts. All of these are only ever added to, so whatever is copied
//! later has everything that the copy of the database knows of, and perhaps more, as after a crash between the two
//! steps. The other way round, the database could name what the archive has not.
//!
//! `write.rs` makes an archive, `running.rs` does so beside a running server, `restore.rs` reads one.

mod restore;
mod running;
mod tree;
mod write;

pub(crate) use restore::is_unfinished;
pub use restore::{RestoreError, check, restore};
pub(crate) use running::Backups;
pub use write::{BackupError, back_up_closed};

use margrave_core::moment::Moment;

/// What an archive holds, in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    pub made_at: Moment,
    /// Of the program that made it.
    pub version: String,
    /// Of the database.
    pub schema: u32,
    pub files: usize,
    /// Of all files together.
    pub bytes: u64,
}
