//! A device's disk: the real ledger on memory, and what a power cut does to it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use margrave_core::device::Device;
use margrave_core::digest::{Digest, Document};
use margrave_core::id::AssignmentId;
use margrave_core::lifecycle::State;
use margrave_ledger::{Blobs, LedgerError, StateFile};

use crate::dice::Dice;

/// What is on disk for sure, as far as the checks look at it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durable {
    pub(crate) version: Option<u64>,
    pub(crate) states: BTreeMap<AssignmentId, State>,
}

impl Durable {
    fn of(device: &Device) -> Durable {
        Durable {
            version: device.accepted().map(|accepted| accepted.version),
            states: device.assignments().iter().map(|(id, assignment)| (*id, assignment.state)).collect(),
        }
    }
}

pub(crate) struct Disk {
    directory: PathBuf,
    ledger: StateFile<Device>,
    blobs: Blobs,
    kept: BTreeSet<Digest>,
    pub(crate) durable: Durable,
    is_behind: bool,
    pub(crate) full: bool,
    /// An older state, for a ledger that forgets.
    earlier: Option<(u64, String)>,
}

/// How a write ends when the agent dies in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Torn {
    /// Nothing of it reached the disk.
    Lost,
    /// A part of it did.
    Half,
}

impl Disk {
    pub(crate) fn open(directory: &Path) -> Result<(Disk, Option<Device>), LedgerError> {
        let (ledger, device, _) = StateFile::open(&directory.join("ledger"))?;
        let blobs = Blobs::open(&directory.join("documents"))?;
        let directory = directory.to_owned();
        let durable = Durable::default();
        let kept = BTreeSet::new();
        let disk =
            Disk { directory, ledger, blobs, kept, durable, is_behind: false, full: false, earlier: None };
        Ok((disk, device))
    }

    /// The agent starts again: only what is on disk is left.
    pub(crate) fn reopen(&mut self) -> Result<Option<Device>, LedgerError> {
        let (ledger, device, _) = StateFile::open(&self.directory.join("ledger"))?;
        self.ledger = ledger;
        self.kept = BTreeSet::new();
        self.is_behind = false;
        Ok(device)
    }

    /// The device's memory is not any more what is on disk.
    pub(crate) fn falls_behind(&mut self) {
        self.is_behind = true;
    }

    /// Whether the device's memory is on disk as it is now.
    pub(crate) fn is_up_to_date(&self) -> bool {
        !self.is_behind
    }

    /// Writes everything down, as the agent does.
    pub(crate) fn commit(&mut self, device: &Device, keeps: &BTreeSet<Digest>) -> Result<(), LedgerError> {
        if self.full && self.is_behind {
            // Where that is differs from run to run, and a story does not.
            let path = PathBuf::from("ledger");
            return Err(LedgerError::DiskFull { path, source: std::io::ErrorKind::StorageFull.into() });
        }
        if self.ledger.commit(device)? {
            self.durable = Durable::of(device);
            if let Some(version) = self.durable.version
                && self.earlier.as_ref().is_none_or(|(known, _)| *known + 1 < version)
            {
                self.earlier = serde_json::to_string(device).ok().map(|text| (version, text));
            }
        }
        self.is_behind = false;
        if *keeps != self.kept {
            self.blobs.sweep(keeps);
            self.kept = keeps.clone();
        }
        Ok(())
    }

    /// The agent dies while it writes. The slot that was being written suffers, never the other.
    pub(crate) fn tear(&mut self, device: &Device, how: Torn, dice: &mut Dice) -> Result<(), LedgerError> {
        if how == Torn::Lost || self.full {
            return Ok(());
        }
        let slots = ["state.0", "state.1"].map(|slot| self.directory.join("ledger").join(slot));
        let read = |path: &PathBuf| std::fs::read(path).unwrap_or_default();
        let before = slots.each_ref().map(read);
        if !self.ledger.commit(device)? {
            return Ok(());
        }
        for (path, old) in slots.iter().zip(before) {
            let new = read(path);
            if new != old {
                let at = dice.below(new.len());
                let mut torn = new[..at].to_vec();
                // The beginning of the new one over the end of the old one, or nothing after it.
                if dice.hit(0.5) {
                    torn.extend_from_slice(old.get(at..).unwrap_or_default());
                }
                if torn == new {
                    // Only what comes after the tear was the same already.
                    self.durable = Durable::of(device);
                }
                std::fs::write(path, torn).map_err(|source| LedgerError::Io {
                    what: "torn",
                    path: path.clone(),
                    source,
                })?;
            }
        }
        Ok(())
    }

    pub(crate) fn keep(&mut self, document: &Document) -> Result<(), LedgerError> {
        if self.full {
            let path = PathBuf::from("documents");
            return Err(LedgerError::DiskFull { path, source: std::io::ErrorKind::StorageFull.into() });
        }
        self.blobs.put(document)
    }

    pub(crate) fn read(&self, digest: &Digest) -> Option<Document> {
        self.blobs.read(digest)
    }

    /// A document's bytes change where they lie, or cannot be read any more; `false` when there is none.
    pub(crate) fn damage_document(&self, dice: &mut Dice) -> bool {
        let Ok(entries) = std::fs::read_dir(self.directory.join("documents")) else { return false };
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        if files.is_empty() {
            return false;
        }
        let path = &files[dice.below(files.len())];
        let Ok(mut bytes) = std::fs::read(path) else { return false };
        if dice.hit(0.3) {
            // Reading a directory fails as a bad sector does.
            return std::fs::remove_file(path).and_then(|()| std::fs::create_dir(path)).is_ok();
        }
        let at = dice.below(bytes.len().max(1));
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 0x20;
        }
        std::fs::write(path, bytes).is_ok()
    }

    /// The device as it was some versions ago.
    pub(crate) fn earlier(&self) -> Option<Device> {
        let (_, text) = self.earlier.as_ref()?;
        serde_json::from_str(text).ok()
    }
}
