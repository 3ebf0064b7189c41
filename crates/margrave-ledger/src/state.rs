//! One value in two slots, written in turns.
//!
//! A write goes over the older slot, so the newer one is whole whatever happens. No rename is needed, and
//! a full disk usually has room all the same: the slot's blocks are already there. Each slot carries a
//! generation and a digest over itself and its body; the newest whole one wins.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use margrave_core::digest::Digest;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{LedgerError, create_directory, sync_directory};

const MAGIC: &str = "margrave-ledger";
const FORMAT: u32 = 1;
/// Far more than a device's state can be; a larger file is not ours.
const STATE_SIZE_MAX: u64 = 64 << 20;

/// What opening found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// No state was ever written here.
    Fresh,
    /// The newest state was whole.
    Clean,
    /// The newest write was cut off or damaged; the one before it was whole.
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
        for (index, path) in slots.iter().enumerate() {
            match read_slot(path)? {
                Slot::Absent => {}
                Slot::Damaged => damaged += 1,
                Slot::Whole { generation, body } => match serde_json::from_slice::<T>(&body) {
                    Ok(value) => found.push((generation, index, Digest::of(&body), value)),
                    Err(_) => damaged += 1,
                },
            }
        }
        found.sort_by_key(|(generation, ..)| *generation);
        let newest = found.pop();
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
        let file = StateFile { slots, next, generation, written, bytes_written: 0, value: PhantomData };
        Ok((file, value, recovery))
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
        let created = !path.exists();
        write_slot(path, &content).map_err(LedgerError::io("written", path))?;
        if created && let Some(directory) = path.parent() {
            sync_directory(directory)?;
        }
        self.bytes_written += content.len() as u64;
        self.generation = generation;
        self.next = 1 - self.next;
        self.written = Some(digest);
        Ok(true)
    }

    /// Bytes of state written since opening.
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
