//! Bytes by their digest. What is here is whole: it appears by rename, after it was made durable.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use margrave_core::digest::{Digest, Document};

use crate::{LedgerError, create_directory, sync_directory};

#[derive(Debug)]
pub struct Blobs {
    directory: PathBuf,
    bytes_written: u64,
    /// What could not be swept, and was said so.
    stays: BTreeSet<PathBuf>,
}

impl Blobs {
    pub fn open(directory: &Path) -> Result<Self, LedgerError> {
        create_directory(directory)?;
        Ok(Blobs { directory: directory.to_owned(), bytes_written: 0, stays: BTreeSet::new() })
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.hex())
    }

    /// Makes the document durable; costs nothing when it is here already.
    pub fn put(&mut self, document: &Document) -> Result<(), LedgerError> {
        let path = self.path(&document.digest());
        if path.exists() {
            if self.read(&document.digest()).is_some() {
                return Ok(());
            }
            make_way(&path);
        }
        let temporary = self.directory.join(format!("{}.part", document.digest().hex()));
        let write = || -> std::io::Result<()> {
            let mut file =
                File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(document.bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)
        };
        if let Err(error) = write() {
            // Half a blob must not eat the space that is missing; if even this fails, sweep finds it.
            if let Err(left) = std::fs::remove_file(&temporary) {
                tracing::debug!(path = %temporary.display(), error = %left, "partial blob stays until swept");
            }
            return Err(LedgerError::io("written", &path)(error));
        }
        sync_directory(&self.directory)?;
        self.bytes_written += document.bytes().len() as u64;
        Ok(())
    }

    /// The document, or `None` when it is not here, no longer what it was, or cannot be read: it is as lost as any, and one of
    /// them must not take the others along.
    pub fn read(&self, digest: &Digest) -> Option<Document> {
        let path = self.path(digest);
        match std::fs::read(&path) {
            Ok(bytes) => match Document::verified(bytes, *digest) {
                Ok(document) => return Some(document),
                Err(mismatch) => {
                    tracing::warn!(path = %path.display(), error = %mismatch, "a blob is damaged and will be fetched again");
                    if let Err(left) = std::fs::remove_file(&path) {
                        tracing::debug!(path = %path.display(), error = %left, "a damaged blob stays until it is replaced");
                    }
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a blob cannot be read and will be fetched again");
            }
        }
        None
    }

    /// Removes everything but `keep`, and what interrupted writes left behind. What cannot be removed is left, and said once: it
    /// takes some room, and nothing depends on it.
    pub fn sweep(&mut self, keep: &BTreeSet<Digest>) {
        let keep: BTreeSet<String> = keep.iter().map(Digest::hex).collect();
        let listed =
            std::fs::read_dir(&self.directory).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries = match listed {
            Ok(entries) => entries,
            Err(error) => return self.leave(self.directory.clone(), &error),
        };
        for path in entries.into_iter().map(|entry| entry.path()) {
            let kept =
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| keep.contains(name));
            if !kept && let Err(error) = std::fs::remove_file(&path) {
                self.leave(path, &error);
            }
        }
    }

    fn leave(&mut self, path: PathBuf, error: &std::io::Error) {
        if self.stays.insert(path.clone()) {
            tracing::warn!(path = %path.display(), %error, "this cannot be swept and is left");
        }
    }

    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }
}

/// Something else is where a blob belongs. Its name is given away, whatever it is: that asks nothing of its content.
fn make_way(path: &Path) {
    if let Err(error) = std::fs::rename(path, path.with_extension("unreadable")) {
        tracing::warn!(path = %path.display(), %error, "what cannot be read stays where a blob belongs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_comes_back_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::open(directory.path()).unwrap();
        let document = Document::of(b"desired".to_vec());
        assert_eq!(blobs.read(&document.digest()), None);
        blobs.put(&document).unwrap();
        blobs.put(&document).unwrap();
        assert_eq!(blobs.bytes_written(), 7);
        assert_eq!(blobs.read(&document.digest()), Some(document.clone()));
        std::fs::write(directory.path().join(document.digest().hex()), b"tampered").unwrap();
        assert_eq!(blobs.read(&document.digest()), None);
        blobs.put(&document).unwrap();
        assert_eq!(blobs.read(&document.digest()), Some(document));
    }

    #[test]
    fn sweeping_keeps_what_is_needed_and_clears_interrupted_writes() {
        let directory = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::open(directory.path()).unwrap();
        let (old, new) = (Document::of(b"old".to_vec()), Document::of(b"new".to_vec()));
        blobs.put(&old).unwrap();
        blobs.put(&new).unwrap();
        std::fs::write(directory.path().join("abc.part"), b"half").unwrap();
        blobs.sweep(&[new.digest()].into());
        assert_eq!(blobs.read(&old.digest()), None);
        assert_eq!(blobs.read(&new.digest()), Some(new));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn one_blob_that_cannot_be_read_is_lost_alone_and_kept_anew() {
        let directory = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::open(directory.path()).unwrap();
        let (lost, whole) = (Document::of(b"lost".to_vec()), Document::of(b"whole".to_vec()));
        blobs.put(&whole).unwrap();
        // Reading a directory fails as a bad sector does.
        let path = directory.path().join(lost.digest().hex());
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("content"), b"x").unwrap();
        assert_eq!(blobs.read(&lost.digest()), None);
        assert_eq!(blobs.read(&whole.digest()), Some(whole));
        blobs.put(&lost).unwrap();
        assert_eq!(blobs.read(&lost.digest()), Some(lost), "it is durable again, and not in memory only");
    }

    #[test]
    fn what_cannot_be_swept_is_left_and_the_rest_is_swept() {
        let directory = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::open(directory.path()).unwrap();
        std::fs::create_dir(directory.path().join("lost+found")).unwrap();
        let (old, new) = (Document::of(b"old".to_vec()), Document::of(b"new".to_vec()));
        blobs.put(&old).unwrap();
        blobs.put(&new).unwrap();
        for _ in 0..2 {
            blobs.sweep(&[new.digest()].into());
            assert_eq!(blobs.stays.len(), 1, "said once");
        }
        assert!(directory.path().join("lost+found").is_dir());
        assert_eq!((blobs.read(&old.digest()), blobs.read(&new.digest())), (None, Some(new)));
        std::fs::remove_dir_all(directory.path()).unwrap();
        blobs.sweep(&BTreeSet::new());
    }

    #[test]
    fn a_full_disk_leaves_no_half_blob() {
        let directory = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::open(directory.path()).unwrap();
        let document = Document::of(b"large".to_vec());
        let part = directory.path().join(format!("{}.part", document.digest().hex()));
        std::os::unix::fs::symlink("/dev/full", &part).unwrap();
        assert!(blobs.put(&document).unwrap_err().is_disk_full());
        assert!(!part.exists());
        blobs.put(&document).unwrap();
    }
}
