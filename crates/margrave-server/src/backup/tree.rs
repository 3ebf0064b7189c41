//! The files below a directory that others may change while it is read.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use margrave_wire::backup::{ArchivePath, FILES_MAX};

use super::write::BackupError;

/// Repositories nest as deep as their names allow.
const DEPTH_MAX: usize = 140;
/// How often a directory is read again because something that was there has gone.
const ROUNDS_MAX: usize = 20;

/// One thing to copy.
pub(super) enum Found {
    Directory(ArchivePath),
    File { path: ArchivePath, file: File },
}

/// Gives every file below `root` to `take` once. What goes away meanwhile is looked for again, because it may have come
/// back under another name, as Git's objects do.
pub(super) fn each(
    root: &Tree<'_>,
    mut take: impl FnMut(Found) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    let mut taken = HashSet::new();
    for _ in 0..ROUNDS_MAX {
        let mut listed = Vec::new();
        list(root, &root.on_disk.clone(), root.name.to_owned(), 0, &mut listed)?;
        listed.sort_by_cached_key(|(path, ..)| ((root.rank)(path.as_str()), path.clone()));
        let mut all_there = true;
        for (path, on_disk, is_directory) in listed {
            if taken.contains(&path) {
                continue;
            }
            let found = if is_directory {
                Found::Directory(path.clone())
            } else {
                match File::open(&on_disk) {
                    Ok(file) => Found::File { path: path.clone(), file },
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        all_there = false;
                        continue;
                    }
                    Err(source) => return Err(BackupError::Read { path: on_disk, source }),
                }
            };
            take(found)?;
            taken.insert(path);
        }
        if all_there {
            return Ok(());
        }
    }
    Err(BackupError::Restless(root.on_disk.clone()))
}

/// A directory, and what is special about it.
pub(super) struct Tree<'a> {
    pub(super) on_disk: PathBuf,
    /// As the archive calls it.
    pub(super) name: &'a str,
    /// Whether empty directories mean something.
    pub(super) with_directories: bool,
    /// What is left out, by its path in the archive.
    pub(super) skip: fn(&str) -> bool,
    /// Whether links, which no archive takes, are left out; otherwise they do not belong there.
    pub(super) skip_links: bool,
    /// What is copied before what: the lower first.
    pub(super) rank: fn(&str) -> u8,
}

fn list(
    root: &Tree<'_>,
    directory: &Path,
    name: String,
    depth: usize,
    into: &mut Vec<(ArchivePath, PathBuf, bool)>,
) -> Result<(), BackupError> {
    let failed = |source| BackupError::Read { path: directory.to_owned(), source };
    if depth > DEPTH_MAX || into.len() > FILES_MAX {
        return Err(BackupError::TooMuch(directory.to_owned()));
    }
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    if root.with_directories {
        into.push((parse(&name, directory)?, directory.to_owned(), true));
    }
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let on_disk = entry.path();
        let Some(own) = on_disk.file_name().and_then(|own| own.to_str()) else {
            return Err(BackupError::Unexpected(on_disk));
        };
        let name = format!("{name}/{own}");
        if (root.skip)(&name) {
            continue;
        }
        let kind = match entry.file_type() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            kind => kind.map_err(failed)?,
        };
        if kind.is_dir() {
            list(root, &on_disk, name, depth + 1, into)?;
        } else if kind.is_file() {
            into.push((parse(&name, &on_disk)?, on_disk, false));
        } else if kind.is_symlink() && root.skip_links {
            tracing::warn!(path = %on_disk.display(), "a link is not in the backup");
        } else {
            return Err(BackupError::Unexpected(on_disk));
        }
    }
    Ok(())
}

fn parse(name: &str, on_disk: &Path) -> Result<ArchivePath, BackupError> {
    ArchivePath::parse(name).map_err(|_| BackupError::Unexpected(on_disk.to_owned()))
}
