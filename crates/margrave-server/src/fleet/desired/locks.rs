//! Git's lock files. Git makes `main.lock` beside `main`, writes there and renames it; a process that is killed in
//! between leaves the lock behind, and Git would refuse that file to everybody from then on.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Refs are not nested deeper by anybody; a folder tree that is was not made by Git.
const DEPTH_MAX: usize = 16;

/// Removes the locks that a killed server left, also in a repository that is only half made. Only for who has the data
/// directory to itself: then nobody holds one.
pub(super) fn break_left(repository: &Path) -> Result<(), Error> {
    break_in(repository)?;
    break_below(&repository.join("refs"), DEPTH_MAX)
}

fn break_below(folder: &Path, depth: usize) -> Result<(), Error> {
    for within in break_in(folder)? {
        if depth > 0 {
            break_below(&within, depth - 1)?;
        }
    }
    Ok(())
}

/// Removes the locks of one folder; returns the folders in it.
fn break_in(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            folders.push(path);
        } else if path.extension().is_some_and(|end| end == "lock") {
            std::fs::remove_file(&path)?;
            tracing::info!(file = %path.display(), "a lock that a killed server left was removed");
        }
    }
    Ok(folders)
}
