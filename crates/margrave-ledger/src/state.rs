//! One value in two slots, written in turns.
//!
//! A write goes over the older slot, so the newer one is whole whatever happens. No rename is needed, and
//! a full disk usually has room all the same: the slot's blocks are already there. For the rest there is a reserve
//! (`reserve.rs`). Each slot carries a
//! generation and a digest over itself and its body; the newest whole one wins.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use margrave_core::digest::Digest;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::reserve::Reserve;
use crate::{LedgerError, create_directory, is_full, sync_directory};

const MAGIC: &str = "margrave-ledger";
const FORMAT: u32 = 1;
/// Far more than a device's state can be. A larger file is not ours, so a larger state is not written: it would not be read again.
const STATE_SIZE_MAX: u64 = 64 << 20;

/// What opening found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// No state was ever written here.
    Fresh,
    /// The newest state was whole.
    Clean,
    /// One slot was cut off, damaged or not readable; the other was whole.
    FellBack,
    /// Both slots were damaged: nothing could be saved.
    StartedOver,
}

#[derive(Debug)]
pub struct StateFile<T> {
    slots: [PathBuf; 2],
    /// Index of the slot that the next write goes to.
    next: usize,
    generation: u64,
    /// The body that the newest slot holds, to skip writes that change nothing.
    written: Option<Digest>,
    bytes_written: u64,
    /// The slot that could not be read. Something new takes its place, so that it is not believed again when it can be.
    unreadable: Option<usize>,
    reserve: Option<Reserve>,
    value: PhantomData<fn() -> T>,
}

enum Slot {
    Absent,
    Damaged,
    Whole { generation: u64, body: Vec<u8> },
}

impl<T: Serialize + DeserializeOwned> StateFile<T> {
    /// Opens `directory` and returns the newest whole state in it.
    pub fn open(directory: &Path) -> Result<(Self, Option<T>, Recovery), LedgerError> {
        create_directory(directory)?;
        let slots = [directory.join("state.0"), directory.join("state.1")];
        let mut found = vec![];
        let mut damaged = 0;
        let mut unreadable = None;
        for (index, path) in slots.iter().enumerate() {
            match read_slot(path) {
                Err(error @ LedgerError::Newer { .. }) => return Err(error),
                Err(error) => {
                    damaged += 1;
                    unreadable = Some((index, error));
                }
                Ok(Slot::Absent) => {}
                Ok(Slot::Damaged) => damaged += 1,
                Ok(Slot::Whole { generation, body }) => match serde_json::from_slice::<T>(&body) {
                    Ok(value) => found.push((generation, index, Digest::of(&body), value)),
                    Err(_) => damaged += 1,
                },
            }
        }
        found.sort_by_key(|(generation, ..)| *generation);
        let newest = found.pop();
        let unreadable = match (&newest, unreadable) {
            // What cannot be read may be all that there is; to start over would be to forget it.
            (None, Some((_, error))) => return Err(error),
            (_, unreadable) => unreadable.map(|(index, error)| {
                let path = &slots[index];
                tracing::warn!(path = %path.display(), error = &error as &dyn std::error::Error, "one of two states cannot be read");
                index
            }),
        };
        let recovery = match (&newest, damaged) {
            (None, 0) => Recovery::Fresh,
            (None, _) => Recovery::StartedOver,
            (Some(_), 0) => Recovery::Clean,
            (Some(_), _) => Recovery::FellBack,
        };
        let (generation, next, written, value) = match newest {
            Some((generation, index, digest, value)) => (generation, 1 - index, Some(digest), Some(value)),
            None => (0, 0, None, None),
        };
        let (bytes_written, reserve) = (0, None);
        let file = StateFile {
            slots,
            next,
            generation,
            written,
            bytes_written,
            unreadable,
            reserve,
            value: PhantomData,
        };
        Ok((file, value, recovery))
    }

    /// With room on the disk that is kept for the state, from the first commit on. For whoever lives from this file; who only
    /// looks into it writes nothing.
    pub fn with_reserve(self) -> Self {
        let reserve = self.slots[0].parent().map(Reserve::in_directory);
        StateFile { reserve, ..self }
    }

    /// Makes `value` durable. Returns whether anything had to be written.
    pub fn commit(&mut self, value: &T) -> Result<bool, LedgerError> {
        let body = serde_json::to_vec(value).map_err(LedgerError::Serialise)?;
        let digest = Digest::of(&body);
        if self.written == Some(digest) {
            return Ok(false);
        }
        let generation = self.generation + 1;
        let path = &self.slots[self.next];
        let mut content =
            format!("{MAGIC} {FORMAT} {generation} {}\n", seal(FORMAT, generation, &body)).into_bytes();
        content.extend_from_slice(&body);
        if content.len() as u64 > STATE_SIZE_MAX {
            return Err(LedgerError::TooLarge { size: content.len() as u64, max: STATE_SIZE_MAX });
        }
        if self.unreadable == Some(self.next) {
            // Best effort: where it stays, writing says what is wrong.
            if let Err(error) = std::fs::rename(path, path.with_extension("unreadable")) {
                tracing::warn!(path = %path.display(), %error, "what cannot be read stays where the state belongs");
            }
            self.unreadable = None;
        }
        let created = !path.exists();
        let mut written = write_slot(path, &content);
        // What was cut off is the older slot, and is written over.
        while written.as_ref().is_err_and(is_full) && self.reserve.as_mut().is_some_and(Reserve::give_back) {
            written = write_slot(path, &content);
        }
        written.map_err(LedgerError::io("written", path))?;
        if created && let Some(directory) = path.parent() {
            sync_directory(directory)?;
        }
        self.bytes_written += content.len() as u64;
        self.generation = generation;
        self.next = 1 - self.next;
        self.written = Some(digest);
        self.bytes_written += self.reserve.as_mut().map_or(0, Reserve::replenish);
        Ok(true)
    }

    /// Bytes written since opening, those of the reserve too.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }
}

/// The digest of everything that is believed: with only the body in it, one flipped bit in a generation would
/// let the older slot win.
fn seal(format: u32, generation: u64, body: &[u8]) -> Digest {
    let mut sealed = format!("{MAGIC} {format} {generation}\n").into_bytes();
    sealed.extend_from_slice(body);
    Digest::of(&sealed)
}

fn write_slot(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(content)?;
    file.set_len(content.len() as u64)?;
    file.sync_all()
}

fn read_slot(path: &Path) -> Result<Slot, LedgerError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Slot::Absent),
        Err(error) => return Err(LedgerError::io("opened", path)(error)),
    };
    let mut content = vec![];
    let read = file.take(STATE_SIZE_MAX + 1).read_to_end(&mut content);
    read.map_err(LedgerError::io("read", path))?;
    if content.is_empty() {
        // Created, and the power went before the first byte: as good as absent.
        return Ok(Slot::Absent);
    }
    let Some(end) = content.iter().position(|byte| *byte == b'\n') else { return Ok(Slot::Damaged) };
    let (header, body) = (&content[..end], &content[end + 1..]);
    let header = String::from_utf8_lossy(header);
    let parts: Vec<&str> = header.split(' ').collect();
    let [MAGIC, format, generation, digest] = parts[..] else { return Ok(Slot::Damaged) };
    let (Ok(format), Ok(generation), Ok(digest)) =
        (format.parse(), generation.parse(), Digest::parse(digest))
    else {
        return Ok(Slot::Damaged);
    };
    if seal(format, generation, body) != digest {
        return Ok(Slot::Damaged);
    }
    if format > FORMAT {
        return Err(LedgerError::Newer { found: format, known: FORMAT });
    }
    Ok(Slot::Whole { generation, body: body.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Value = Vec<u32>;

    fn open(directory: &Path) -> (StateFile<Value>, Option<Value>, Recovery) {
        StateFile::open(directory).unwrap()
    }

    fn newest(directory: &Path) -> PathBuf {
        let generation = |path: &PathBuf| match read_slot(path).unwrap() {
            Slot::Whole { generation, .. } => generation,
            _ => 0,
        };
        let slots = [directory.join("state.0"), directory.join("state.1")];
        slots.into_iter().max_by_key(generation).unwrap()
    }

    #[test]
    fn what_was_committed_is_there_after_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let (mut file, value, recovery) = open(directory.path());
        assert_eq!((value, recovery), (None, Recovery::Fresh));
        for n in 0..5 {
            assert!(file.commit(&vec![n]).unwrap());
            assert_eq!(open(directory.path()).1, Some(vec![n]));
        }
    }

    #[test]
    fn nothing_is_written_when_nothing_changed() {
        let directory = tempfile::tempdir().unwrap();
        let (mut file, ..) = open(directory.path());
        assert!(file.commit(&vec![1]).unwrap());
        let written = file.bytes_written();
        assert!(!file.commit(&vec![1]).unwrap());
        assert_eq!(file.bytes_written(), written);
        let (mut again, ..) = open(directory.path());
        assert!(!again.commit(&vec![1]).unwrap());
    }

    #[test]
    fn two_damaged_slots_are_said_to_be_lost_and_the_next_commit_works() {
        let directory = tempfile::tempdir().unwrap();
        let (mut file, ..) = open(directory.path());
        file.commit(&vec![1]).unwrap();
        file.commit(&vec![2]).unwrap();
        for slot in ["state.0", "state.1"] {
            std::fs::write(directory.path().join(slot), b"rubbish").unwrap();
        }
        let (mut file, value, recovery) = open(directory.path());
        assert_eq!((value, recovery), (None, Recovery::StartedOver));
        file.commit(&vec![3]).unwrap();
        assert_eq!(open(directory.path()).1, Some(vec![3]));
    }

    #[test]
    fn a_slot_that_cannot_be_read_is_damaged_while_the_other_is_whole() {
        for lost in ["state.0", "state.1"] {
            let directory = tempfile::tempdir().unwrap();
            let (mut file, ..) = open(directory.path());
            file.commit(&vec![1]).unwrap();
            file.commit(&vec![2]).unwrap();
            // Reading a directory fails as a bad sector does.
            std::fs::remove_file(directory.path().join(lost)).unwrap();
            std::fs::create_dir(directory.path().join(lost)).unwrap();
            let (mut file, value, recovery) = open(directory.path());
            let left = if lost == "state.0" { 2 } else { 1 };
            assert_eq!((value, recovery), (Some(vec![left]), Recovery::FellBack));
            for n in 3..6 {
                file.commit(&vec![n]).unwrap();
                let (_, value, recovery) = open(directory.path());
                assert_eq!((value, recovery), (Some(vec![n]), Recovery::Clean));
            }
        }
    }

    #[test]
    fn a_state_that_cannot_be_read_is_not_forgotten_where_it_is_all_there_is() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("state.0")).unwrap();
        let error = StateFile::<Value>::open(directory.path()).unwrap_err();
        assert!(matches!(error, LedgerError::Io { what: "read", .. }), "{error:?}");
        assert!(directory.path().join("state.0").is_dir(), "looking changes nothing");
    }

    #[test]
    fn a_newer_format_is_refused_with_a_hint_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let content = format!("{MAGIC} 99 1 {}\n[1]", seal(99, 1, b"[1]"));
        std::fs::write(directory.path().join("state.0"), &content).unwrap();
        let error = StateFile::<Value>::open(directory.path()).unwrap_err();
        assert!(matches!(error, LedgerError::Newer { found: 99, known: 1 }));
        assert_eq!(std::fs::read_to_string(directory.path().join("state.0")).unwrap(), content);
    }

    #[test]
    fn a_full_disk_is_named_and_the_last_state_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (mut file, ..) = open(directory.path());
        file.commit(&vec![1]).unwrap();
        // The slot of the next write becomes a device that is always full.
        std::os::unix::fs::symlink("/dev/full", &file.slots[file.next]).unwrap();
        let error = file.commit(&vec![2]).unwrap_err();
        assert!(error.is_disk_full(), "{error:?}");
        std::fs::remove_file(&file.slots[file.next]).unwrap();
        assert_eq!(open(directory.path()).1, Some(vec![1]));
        file.commit(&vec![3]).unwrap();
        assert_eq!(open(directory.path()).1, Some(vec![3]));
    }

    #[test]
    fn a_state_that_would_not_be_read_again_is_refused_and_the_last_one_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (mut file, ..) = StateFile::<String>::open(directory.path()).unwrap();
        file.commit(&"first".to_owned()).unwrap();
        file.commit(&"last".to_owned()).unwrap();
        let mut large = "x".repeat(STATE_SIZE_MAX as usize);
        let error = file.commit(&large).unwrap_err();
        assert!(matches!(error, LedgerError::TooLarge { max: STATE_SIZE_MAX, .. }), "{error:?}");
        let (_, value, recovery) = StateFile::<String>::open(directory.path()).unwrap();
        assert_eq!((value.as_deref(), recovery), (Some("last"), Recovery::Clean));

        // The largest that is written is read again.
        large.truncate(STATE_SIZE_MAX as usize - 200);
        file.commit(&large).unwrap();
        let (_, value, recovery) = StateFile::<String>::open(directory.path()).unwrap();
        assert_eq!((value == Some(large), recovery), (true, Recovery::Clean));
    }

    proptest! {
        /// The newest write, cut off anywhere or with any byte changed, never takes the one before it along.
        #[test]
        fn a_torn_write_costs_at_most_itself(
            values in proptest::collection::vec(proptest::collection::vec(any::<u32>(), 0..20), 2..8),
            at in any::<prop::sample::Index>(), cut in any::<bool>(), flip in 1u8..=255
        ) {
            let directory = tempfile::tempdir().unwrap();
            let (mut file, ..) = open(directory.path());
            let mut kept: Vec<Value> = vec![];
            for value in values {
                if file.commit(&value).unwrap() {
                    kept.push(value);
                }
            }
            let path = newest(directory.path());
            let mut content = std::fs::read(&path).unwrap();
            let at = at.index(content.len());
            if cut { content.truncate(at) } else { content[at] ^= flip }
            std::fs::write(&path, &content).unwrap();
            let (_, value, recovery) = open(directory.path());
            if kept.len() > 1 {
                // Every bit is covered: the damage is always seen, and the one before it always stands in.
                prop_assert_eq!(value, kept.get(kept.len() - 2).cloned());
                let absent = cut && at == 0;
                prop_assert_eq!(recovery, if absent { Recovery::Clean } else { Recovery::FellBack });
            }
        }
    }
}
