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
}

impl Blobs {
    pub fn open(directory: &Path) -> Result<Self, LedgerError> {
        create_directory(directory)?;
        Ok(Blobs { directory: directory.to_owned(), bytes_written: 0 })
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.hex())
    }

    /// Makes the document durable; costs nothing when it is here already.
    pub fn put(&mut self, document: &Document) -> Result<(), LedgerError> {
        let path = self.path(&document.digest());
        if path.exists() {
            return Ok(());
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

    /// The document, or `None` when it is not here or no longer what it was.
    pub fn read(&self, digest: &Digest) -> Result<Option<Document>, LedgerError> {
        let path = self.path(digest);
        match std::fs::read(&path) {
            Ok(bytes) => match Document::verified(bytes, *digest) {
                Ok(document) => Ok(Some(document)),
                Err(mismatch) => {
                    tracing::warn!(path = %path.display(), error = %mismatch, "a blob is damaged and will be fetched again");
                    std::fs::remove_file(&path).map_err(LedgerError::io("removed", &path))?;
                    Ok(None)
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LedgerError::io("read", &path)(error)),
        }
    }

    /// Removes everything but `keep`, and what interrupted writes left behind.
    pub fn sweep(&self, keep: &BTreeSet<Digest>) -> Result<(), LedgerError> {
        let keep: BTreeSet<String> = keep.iter().map(Digest::hex).collect();
        let entries =
            std::fs::read_dir(&self.directory).map_err(LedgerError::io("listed", &self.directory))?;
        for entry in entries {
            let path = entry.map_err(LedgerError::io("listed", &self.directory))?.path();
            let kept =
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| keep.contains(name));
            if !kept {
                std::fs::remove_file(&path).map_err(LedgerError::io("removed", &path))?;
            }
        }
        Ok(())
    }

    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
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
        assert_eq!(blobs.read(&document.digest()).unwrap(), None);
        blobs.put(&document).unwrap();
        blobs.put(&document).unwrap();
        assert_eq!(blobs.bytes_written(), 7);
        assert_eq!(blobs.read(&document.digest()).unwrap(), Some(document.clone()));
        std::fs::write(directory.path().join(document.digest().hex()), b"tampered").unwrap();
        assert_eq!(blobs.read(&document.digest()).unwrap(), None);
        blobs.put(&document).unwrap();
        assert_eq!(blobs.read(&document.digest()).unwrap(), Some(document));
    }

    #[test]
    fn sweeping_keeps_what_is_needed_and_clears_interrupted_writes() {
        let directory = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::open(directory.path()).unwrap();
        let (old, new) = (Document::of(b"old".to_vec()), Document::of(b"new".to_vec()));
        blobs.put(&old).unwrap();
        blobs.put(&new).unwrap();
        std::fs::write(directory.path().join("abc.part"), b"half").unwrap();
        blobs.sweep(&[new.digest()].into()).unwrap();
        assert_eq!(blobs.read(&old.digest()).unwrap(), None);
        assert_eq!(blobs.read(&new.digest()).unwrap(), Some(new));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
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
