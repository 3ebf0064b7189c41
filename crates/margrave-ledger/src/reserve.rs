//! Room that is kept for the state on a disk that others fill.
//!
//! What fills a device's disk is seldom the agent, and all help from afar goes through the agent's memory: that something
//! failed is written down before it is told, and so is the removal that frees the space before it is begun. So there is a
//! file of bytes that mean nothing. When the disk is full it is given back, a piece at a time: whoever fills the disk is
//! still writing, and takes what is left over. It is made whole again once there is plenty of room.
//!
//! The power may go anywhere in this. The file is then shorter than it should be, and that is all that it can be.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use margrave_core::digest::Digest;

use crate::sync_directory;

/// Many times the state of a device, and little on any disk.
pub(crate) const RESERVE_SIZE: u64 = 256 << 10;
/// What is given back at a time: the block that a state grows by, some for the file system itself, and for the few words that a
/// runtime notes when something is removed. Where it is not enough, there is a next one.
const PIECE: u64 = 16 << 10;
/// The reserve is made where at least so much is free. Whoever fills the disk again has then written three times as much as we
/// do: it wears out the flash, not we. And the reserve is never what makes a disk full.
const ROOM_MIN: u64 = 4 * RESERVE_SIZE;
/// After a try in vain, commits until the next one. A quota is not seen before it is met.
const COMMITS_BETWEEN_TRIES: u32 = 200;

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    /// Bytes that are there, as far as is known.
    size: u64,
    /// Commits until it may be tried again to make it whole.
    wait: u32,
}

impl Reserve {
    /// Looks, and writes nothing.
    pub(crate) fn in_directory(directory: &Path) -> Reserve {
        let path = directory.join("reserve");
        let size = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        Reserve { path, size, wait: 0 }
    }

    /// Gives a piece back; `false` when there is nothing left.
    pub(crate) fn give_back(&mut self) -> bool {
        let shrink = || -> io::Result<Option<u64>> {
            let file = OpenOptions::new().write(true).open(&self.path)?;
            let size = file.metadata()?.len();
            if size == 0 {
                return Ok(None);
            }
            // Not made durable: while one waits for that, others take it. Whether it comes back with the power is all the same.
            let left = size.saturating_sub(PIECE);
            file.set_len(left)?;
            Ok(Some(left))
        };
        match shrink() {
            Ok(Some(left)) => {
                self.size = left;
                tracing::warn!(left, "the disk is full; room that was kept for the state is used");
                true
            }
            Ok(None) => {
                self.size = 0;
                false
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::NotFound {
                    self.size = 0;
                } else {
                    tracing::warn!(path = %self.path.display(), %error, "the room kept for the state cannot be used");
                }
                false
            }
        }
    }

    /// Makes it whole where something of it is missing and there is plenty of room. Returns how many bytes were written, also in
    /// vain. Failing to is nobody's trouble now.
    pub(crate) fn replenish(&mut self) -> u64 {
        if self.size >= RESERVE_SIZE {
            return 0;
        }
        if self.wait > 0 {
            self.wait -= 1;
            return 0;
        }
        match self.room() {
            Ok(room) if room >= ROOM_MIN => {}
            Ok(_) => return 0,
            Err(error) => return self.put_off(&error),
        }
        let is_new = !self.path.exists();
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        let (mut file, size) = match file.and_then(|file| file.metadata().map(|found| (file, found.len()))) {
            Ok(opened) => opened,
            Err(error) => return self.put_off(&error),
        };
        let fill = |file: &mut File| -> io::Result<()> {
            file.write_all(&filling(size))?;
            file.sync_all()
        };
        if let Err(error) = fill(&mut file) {
            let written = file.metadata().map_or(0, |found| found.len().saturating_sub(size));
            // The last free bytes are of more use to others.
            if let Err(error) = file.set_len(size) {
                tracing::debug!(path = %self.path.display(), %error, "a part of the reserve stays");
            }
            return written + self.put_off(&error);
        }
        if is_new && let Some(directory) = self.path.parent() {
            // Where its name is lost with the power, it is made again.
            if let Err(error) = sync_directory(directory) {
                tracing::debug!(%error, "the reserve may be lost with the power");
            }
        }
        self.size = RESERVE_SIZE.max(size);
        RESERVE_SIZE.saturating_sub(size)
    }

    fn put_off(&mut self, error: &io::Error) -> u64 {
        tracing::debug!(path = %self.path.display(), %error, "no room can be kept for the state yet");
        self.wait = COMMITS_BETWEEN_TRIES;
        0
    }

    /// What is free for us.
    fn room(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(self.path.parent().unwrap_or(Path::new(".")))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

/// What is missing behind `size` bytes. It cannot be compressed: a file system that does would keep no room for it.
fn filling(size: u64) -> Vec<u8> {
    let missing = RESERVE_SIZE.saturating_sub(size) as usize;
    let digests = (0u64..).flat_map(|number| *Digest::of(&number.to_le_bytes()).as_bytes());
    digests.take(missing).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::StateFile;

    /// Where the part of a test that needs a small disk has one.
    const SMALL_DISK: &str = "MARGRAVE_TEST_SMALL_DISK";

    fn open(directory: &Path) -> (StateFile<String>, Option<String>) {
        let (file, value, _) = StateFile::open(directory).unwrap();
        (file.with_reserve(), value)
    }

    fn size(directory: &Path) -> u64 {
        std::fs::metadata(directory.join("reserve")).map_or(0, |found| found.len())
    }

    /// Runs the test again in a mount namespace with a disk of 2 MiB; `None` once that is done, and where it cannot be.
    fn small_disk(test: &str) -> Option<PathBuf> {
        if let Some(directory) = std::env::var_os(SMALL_DISK) {
            return Some(directory.into());
        }
        let directory = tempfile::tempdir().unwrap();
        let unshare = |program: &Path, arguments: &[&str]| {
            let mount = "mount -t tmpfs -o size=2m tmpfs \"$0\" && exec \"$@\"";
            let mut unshare = Command::new("unshare");
            unshare.args(["--map-root-user", "--mount", "sh", "-c", mount]).arg(directory.path());
            unshare.arg(program).args(arguments).env(SMALL_DISK, directory.path()).output()
        };
        if !unshare(Path::new("true"), &[]).is_ok_and(|output| output.status.success()) {
            let why = "a small disk cannot be mounted here";
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "in CI nothing may be missing: {why}");
            #[allow(clippy::print_stderr, reason = "a skipped test says so")]
            {
                eprintln!("skipped: {why}");
            }
            return None;
        }
        let again = std::env::current_exe().unwrap();
        let output = unshare(&again, &[test, "--exact", "--nocapture"]).unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        None
    }

    /// Takes every byte that is free, as an application does that writes without end.
    fn fill(disk: &Path) {
        let mut file = OpenOptions::new().create(true).append(true).open(disk.join("filler")).unwrap();
        for size in [1 << 16, 1] {
            let piece = vec![0; size];
            while file.write_all(&piece).is_ok() {}
        }
    }

    #[test]
    fn a_state_is_kept_on_a_full_disk_also_while_others_take_what_becomes_free() {
        let test = "reserve::tests::a_state_is_kept_on_a_full_disk_also_while_others_take_what_becomes_free";
        let Some(disk) = small_disk(test) else { return };
        let ledger = disk.join("ledger");
        let (mut file, _) = open(&ledger);
        file.commit(&"begun".to_owned()).unwrap();
        assert_eq!(size(&ledger), RESERVE_SIZE);
        let mut state = String::new();
        for _ in 0..6 {
            fill(&disk);
            // Beyond the blocks that any slot has.
            state.push_str(&"x".repeat(4 << 10));
            file.commit(&state).unwrap();
            assert_eq!(open(&ledger).1.as_ref(), Some(&state));
        }
        assert!(size(&ledger) < RESERVE_SIZE);

        // Used up in the end; then the last state stays.
        let lost = loop {
            fill(&disk);
            let larger = format!("{state}{}", "x".repeat(4 << 10));
            match file.commit(&larger) {
                Ok(_) => state = larger,
                Err(error) => break error,
            }
        };
        assert!(lost.is_disk_full(), "{lost:?}");
        assert_eq!((size(&ledger), open(&ledger).1.as_ref()), (0, Some(&state)));

        // With room again it is there for the next time, also after a restart.
        std::fs::remove_file(disk.join("filler")).unwrap();
        let (mut file, _) = open(&ledger);
        file.commit(&"room".to_owned()).unwrap();
        assert_eq!(size(&ledger), RESERVE_SIZE);
    }

    #[test]
    fn it_is_written_once_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let (mut file, _) = open(directory.path());
        assert_eq!(size(directory.path()), 0, "looking writes nothing");
        file.commit(&"1".to_owned()).unwrap();
        assert!(file.bytes_written() > RESERVE_SIZE && file.bytes_written() < RESERVE_SIZE + 1000);
        for n in 2..9 {
            file.commit(&n.to_string()).unwrap();
        }
        assert!(file.bytes_written() < RESERVE_SIZE + 2000);
        let (mut file, _) = open(directory.path());
        file.commit(&"restarted".to_owned()).unwrap();
        assert!(file.bytes_written() < 1000);
        assert!(
            std::fs::read(directory.path().join("reserve")).unwrap().windows(64).all(|w| w[..32] != w[32..])
        );
    }

    #[test]
    fn whatever_a_power_cut_left_of_it_the_state_is_written_and_it_is_made_whole() {
        for left in [0, 1, PIECE, RESERVE_SIZE - 1, RESERVE_SIZE] {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("reserve"), vec![1; left as usize]).unwrap();
            let (mut file, _) = open(directory.path());
            file.commit(&"1".to_owned()).unwrap();
            assert_eq!(size(directory.path()), RESERVE_SIZE);
            let missing = RESERVE_SIZE - left;
            assert!((missing..missing + 1000).contains(&file.bytes_written()), "{left}");
        }
        // Nor does anything else in its place.
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("reserve")).unwrap();
        let (mut file, _) = open(directory.path());
        file.commit(&"1".to_owned()).unwrap();
        assert_eq!(open(directory.path()).1.as_deref(), Some("1"));
    }

    #[test]
    fn a_disk_that_stays_full_is_said_once_it_is_used_up() {
        let directory = tempfile::tempdir().unwrap();
        let (mut file, _) = open(directory.path());
        file.commit(&"1".to_owned()).unwrap();
        std::os::unix::fs::symlink("/dev/full", directory.path().join("state.1")).unwrap();
        for _ in 0..2 {
            assert!(file.commit(&"2".to_owned()).unwrap_err().is_disk_full());
            assert_eq!(size(directory.path()), 0);
        }
        std::fs::remove_file(directory.path().join("state.1")).unwrap();
        file.commit(&"3".to_owned()).unwrap();
        assert_eq!((size(directory.path()), open(directory.path()).1.as_deref()), (RESERVE_SIZE, Some("3")));
    }
}
