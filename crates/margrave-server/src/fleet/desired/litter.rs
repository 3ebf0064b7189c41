//! What lies about in a repository: objects by themselves, packs, and what a killed `git` left half-made.

use std::fs::{self, DirEntry};
use std::io::{ErrorKind, Result};
use std::path::Path;

use super::repository::Clutter;

/// Removes what packing and fetching left when they were killed. Only for who has the data directory to itself.
pub(super) fn sweep(repository: &Path) -> Result<()> {
    let objects = repository.join("objects");
    for folder in entries(&objects)? {
        if !folder.file_type()?.is_dir() {
            continue;
        }
        for entry in entries(&folder.path())? {
            if starts_with(&entry, &["tmp_", ".tmp-"]) {
                fs::remove_file(entry.path())?;
                tracing::info!(file = %entry.path().display(), "what a killed git left was removed");
            }
        }
    }
    Ok(())
}

pub(super) fn count(repository: &Path) -> Result<Clutter> {
    let mut clutter = Clutter { loose: 0, packs: 0 };
    for folder in entries(&repository.join("objects"))? {
        let name = folder.file_name();
        if name == "pack" {
            let packs = entries(&folder.path())?;
            let is_pack = |entry: &&DirEntry| entry.path().extension().is_some_and(|end| end == "pack");
            clutter.packs = packs.iter().filter(is_pack).count();
        } else if name.len() == 2 {
            // Objects are in folders by the first two digits of their names.
            clutter.loose += entries(&folder.path())?.len();
        }
    }
    Ok(clutter)
}

fn starts_with(entry: &DirEntry, beginnings: &[&str]) -> bool {
    let name = entry.file_name();
    beginnings.iter().any(|beginning| name.as_encoded_bytes().starts_with(beginning.as_bytes()))
}

/// Nothing where there is no folder: an empty one goes when the last object was packed.
fn entries(folder: &Path) -> Result<Vec<DirEntry>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.collect(),
    }
}
