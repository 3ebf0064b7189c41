//! What a device must not forget when the power goes: a crash-safe state and content-addressed blobs.
//!
//! This crate knows nothing of what the state means; it keeps a serialisable value and bytes by digest.
//! It blocks, because a caller may only act once the intent is on disk. Every byte is counted: flash
//! wears out.

mod blobs;
mod reserve;
mod state;

pub use blobs::Blobs;
pub use state::{Recovery, StateFile};

use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be kept or read back.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("the disk is full, {} could not be written; free some space", path.display())]
    DiskFull {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} could not be {what}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the state is of format {found}, this program knows up to {known}; run the newer program again")]
    Newer { found: u32, known: u32 },
    #[error("the state would take {size} bytes, and more than {max} are not read back; the last one stays")]
    TooLarge { size: u64, max: u64 },
    #[error("the state cannot be written down")]
    Serialise(#[source] serde_json::Error),
}

impl LedgerError {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LedgerError {
        let path = path.to_owned();
        move |source| match is_full(&source) {
            true => LedgerError::DiskFull { path, source },
            false => LedgerError::Io { what, path, source },
        }
    }

    pub fn is_disk_full(&self) -> bool {
        matches!(self, LedgerError::DiskFull { .. })
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A directory entry is durable only once its directory is.
fn sync_directory(path: &Path) -> Result<(), LedgerError> {
    let synced = std::fs::File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(LedgerError::io("made durable", path))
}

/// Documents hold parameter values: nobody but the agent's own user has to read them.
fn create_directory(path: &Path) -> Result<(), LedgerError> {
    use std::os::unix::fs::PermissionsExt;
    // Looking at a device, as its status command does, must not write.
    let is_private = |metadata: std::fs::Metadata| metadata.permissions().mode() & 0o777 == 0o700;
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.is_dir() && is_private(metadata)) {
        return Ok(());
    }
    std::fs::create_dir_all(path).map_err(LedgerError::io("created", path))?;
    let own = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(path, own).map_err(LedgerError::io("kept to its owner", path))?;
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync_directory(parent)?;
    }
    Ok(())
}
