//! The directory: where things lie, and how they get there so that no crash leaves half of one.
//!
//! ```text
//! lock                                    held while a process owns the directory
//! incoming/<uuid>                         being written; nothing here means anything after a restart
//! blobs/sha256/ab/<hex>                   every content, once, whoever has it
//! repositories/<name>/_blobs/<hex>        this repository has that blob (empty file)
//! repositories/<name>/_manifests/<hex>    ... has that manifest (its media type)
//! repositories/<name>/_tags/<tag>         the digest the tag points to
//! repositories/<name>/_referrers/<subject>/<hex>   that manifest refers to that subject (empty file)
//! ```
//!
//! No component of a repository name can begin with an underscore, so the two kinds of directories
//! cannot meet. Order of writing: content before link, link before tag; order of removing: the reverse.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use margrave_core::digest::Digest;
use margrave_oci::reference::{RepositoryName, Tag};
use uuid::Uuid;

use crate::error::OpenError;

pub(crate) struct Disk {
    root: PathBuf,
    /// Directories whose own entries this process has made durable; see [`Disk::ensure_dir`].
    durable: Mutex<HashSet<PathBuf>>,
    /// Locked as long as we live.
    _lock: File,
}

impl Disk {
    pub(crate) fn open(root: &Path) -> Result<Disk, OpenError> {
        let failed = |source| OpenError::Io { path: root.to_owned(), source };
        fs::create_dir_all(root).map_err(failed)?;
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(root.join("lock"))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(OpenError::InUse(root.to_owned())),
            Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        let disk = Disk { root: root.to_owned(), durable: Mutex::default(), _lock: lock };
        for dir in [disk.incoming(), disk.blobs(), disk.repositories()] {
            disk.ensure_dir(&dir).map_err(failed)?;
        }
        // Whatever was being written when the last process ended was never acknowledged.
        for entry in fs::read_dir(disk.incoming()).map_err(failed)? {
            fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
        }
        Ok(disk)
    }

    fn incoming(&self) -> PathBuf {
        self.root.join("incoming")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs").join("sha256")
    }

    pub(crate) fn repositories(&self) -> PathBuf {
        self.root.join("repositories")
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        let hex = digest.hex();
        self.blobs().join(&hex[..2]).join(hex)
    }

    pub(crate) fn repository(&self, name: &RepositoryName) -> PathBuf {
        self.repositories().join(name.as_str())
    }

    pub(crate) fn blob_links(&self, name: &RepositoryName) -> PathBuf {
        self.repository(name).join("_blobs")
    }

    pub(crate) fn blob_link(&self, name: &RepositoryName, digest: &Digest) -> PathBuf {
        self.blob_links(name).join(digest.hex())
    }

    pub(crate) fn manifest_links(&self, name: &RepositoryName) -> PathBuf {
        self.repository(name).join("_manifests")
    }

    pub(crate) fn manifest_link(&self, name: &RepositoryName, digest: &Digest) -> PathBuf {
        self.manifest_links(name).join(digest.hex())
    }

    pub(crate) fn tags(&self, name: &RepositoryName) -> PathBuf {
        self.repository(name).join("_tags")
    }

    pub(crate) fn tag(&self, name: &RepositoryName, tag: &Tag) -> PathBuf {
        self.tags(name).join(tag.as_str())
    }

    pub(crate) fn referrers(&self, name: &RepositoryName, subject: &Digest) -> PathBuf {
        self.repository(name).join("_referrers").join(subject.hex())
    }

    /// Makes a directory and everything above it exist for good.
    ///
    /// That a directory is there does not mean that it will be there after a power cut: the process that
    /// made it may have been killed before it synced the parent. So every directory is synced once in
    /// the life of a process, and remembered.
    fn ensure_dir(&self, dir: &Path) -> io::Result<()> {
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<&Path> =
            dir.ancestors().take_while(|dir| *dir != self.root && !durable.contains(*dir)).collect();
        while let Some(dir) = missing.pop() {
            match fs::create_dir(dir) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            sync_dir(dir.parent().expect("everything here is below the root"))?;
            durable.insert(dir.to_owned());
        }
        Ok(())
    }

    /// Removes a directory if nothing is in it.
    pub(crate) fn remove_dir_if_empty(&self, dir: &Path) -> io::Result<bool> {
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        match fs::remove_dir(dir) {
            Ok(()) => {
                durable.remove(dir);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A new file that nobody sees yet.
    pub(crate) fn stage(&self) -> io::Result<Staged> {
        let path = self.incoming().join(Uuid::new_v4().to_string());
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        Ok(Staged { file, path, published: false })
    }

    /// Puts a staged and synced file where everybody sees it, replacing what was there.
    pub(crate) fn publish(&self, mut staged: Staged, to: &Path) -> io::Result<()> {
        let dir = to.parent().expect("everything here is below the root");
        self.ensure_dir(dir)?;
        fs::rename(&staged.path, to)?;
        staged.published = true;
        sync_dir(dir)
    }

    /// Replaces a small file as a whole.
    pub(crate) fn write(&self, to: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut staged = self.stage()?;
        staged.file.write_all(bytes)?;
        staged.file.sync_all()?;
        self.publish(staged, to)
    }

    /// Makes an empty file exist, and be of now.
    pub(crate) fn mark(&self, path: &Path) -> io::Result<()> {
        let dir = path.parent().expect("everything here is below the root");
        self.ensure_dir(dir)?;
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => renew(path)?,
            Err(error) => return Err(error),
        }
        sync_dir(dir)
    }

    /// Removes a file for good; `false` if it was not there.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<bool> {
        match fs::remove_file(path) {
            Ok(()) => sync_dir(path.parent().expect("everything here is below the root")).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A file being written; gone again unless it is published.
pub(crate) struct Staged {
    file: File,
    path: PathBuf,
    published: bool,
}

impl Staged {
    /// Writes at a position, so that a write that failed half-way is simply overwritten by the next.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Cuts off what a failed write left behind the end, and waits for the disk.
    pub(crate) fn finish(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.file.sync_all()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = fs::remove_file(&self.path)
        {
            // Nothing is lost by it: the next start clears the directory.
            tracing::warn!(path = %self.path.display(), %error, "a discarded upload could not be removed");
        }
    }
}

/// Says that a file was wanted just now, which keeps it from being swept.
pub(crate) fn renew(path: &Path) -> io::Result<()> {
    File::open(path)?.set_modified(SystemTime::now())
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The names in a directory; none if the directory is not there.
pub(crate) fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        // A name that is not text is not one of ours.
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

/// The digests that name the files in a directory.
pub(crate) fn digests(dir: &Path) -> io::Result<Vec<Digest>> {
    Ok(names(dir)?.iter().filter_map(|name| Digest::parse(&format!("sha256:{name}")).ok()).collect())
}

/// `None` if there is no such file.
pub(crate) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
