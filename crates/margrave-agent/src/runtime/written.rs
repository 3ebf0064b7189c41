//! What a runtime writes to the device's disk: how it is written, and how much it comes to.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes since the agent began; clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct Written(Arc<AtomicU64>);

impl Written {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds everything under a directory that was just made.
    pub(super) fn add_directory(&self, path: &Path) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            match metadata.is_dir() {
                true => self.add_directory(&entry.path())?,
                false => self.add(metadata.len()),
            }
        }
        Ok(())
    }

    /// Where a file is written before it takes its place; a power cut may leave it there.
    pub(super) fn unfinished(path: &Path) -> PathBuf {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".new");
        PathBuf::from(unfinished)
    }

    /// Writes a file so that after a power cut it is the old one or the new one, never half of either.
    pub(super) fn durably(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new("."));
        let unfinished = Written::unfinished(path);
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        self.add(bytes.len() as u64);
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        fs::File::open(parent)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_counted_whoever_wrote_it() {
        let temp = tempfile::tempdir().unwrap();
        let written = Written::default();
        written.clone().durably(&temp.path().join("a"), b"12345").unwrap();
        written.durably(&temp.path().join("a"), b"67").unwrap();
        assert_eq!((written.bytes(), fs::read(temp.path().join("a")).unwrap().len()), (7, 2));
        fs::create_dir_all(temp.path().join("made/deeper")).unwrap();
        fs::write(temp.path().join("made/deeper/b"), b"123").unwrap();
        written.add_directory(&temp.path().join("made")).unwrap();
        assert_eq!(written.bytes(), 10);
    }
}
