//! Uploads in progress: a staged file each, hashed as it grows.
//!
//! An upload lives in memory and in `incoming/`. It does not survive a restart: its client is told that
//! the upload is unknown and starts again, which every client can do.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use margrave_core::digest::Digest;
use margrave_oci::reference::RepositoryName;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use uuid::Uuid;

use crate::disk::Staged;
use crate::error::RegistryError;

/// How long a request waits for another one that writes to the same upload.
const WRITER_WAIT: Duration = Duration::from_secs(2);

/// Content on its way in.
pub(crate) struct Incoming {
    staged: Staged,
    hash: Context,
    received: u64,
    bytes_max: u64,
}

impl Incoming {
    pub(crate) fn new(staged: Staged, bytes_max: u64) -> Self {
        Incoming { staged, hash: Context::new(&SHA256), received: 0, bytes_max }
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Whether so many more bytes may come.
    pub(crate) fn check_room(&self, more: u64) -> Result<(), RegistryError> {
        match self.received.checked_add(more) {
            Some(total) if total <= self.bytes_max => Ok(()),
            _ => Err(RegistryError::TooLarge { max: self.bytes_max }),
        }
    }

    /// Takes some bytes, all or none of them.
    pub(crate) fn append(&mut self, pieces: &[Bytes]) -> Result<(), RegistryError> {
        self.check_room(pieces.iter().map(|piece| piece.len() as u64).sum())?;
        let mut offset = self.received;
        for piece in pieces {
            self.staged.write_at(piece, offset).map_err(RegistryError::io("write the upload"))?;
            offset += piece.len() as u64;
        }
        for piece in pieces {
            self.hash.update(piece);
        }
        self.received = offset;
        Ok(())
    }

    /// The file, its length, and what its digest turned out to be.
    pub(crate) fn finish(self) -> (Staged, u64, Digest) {
        let hash = self.hash.finish();
        let bytes = hash.as_ref().try_into().expect("SHA-256 gives 32 bytes");
        (self.staged, self.received, Digest::from_bytes(bytes))
    }

    /// Takes everything a reader has.
    pub(crate) fn append_all(&mut self, mut reader: impl io::Read) -> Result<(), RegistryError> {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => self.append(&[Bytes::copy_from_slice(&buffer[..length])])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(RegistryError::Io { doing: "read what is to be stored", source: error });
                }
            }
        }
    }
}

/// The right to write to one upload; nobody else has it meanwhile. `None` once the upload is over.
pub(crate) type Writing = OwnedMutexGuard<Option<Incoming>>;

struct Upload {
    repository: RepositoryName,
    used: Instant,
    incoming: Arc<AsyncMutex<Option<Incoming>>>,
}

/// All uploads in progress.
pub(crate) struct Uploads {
    open: Mutex<HashMap<Uuid, Upload>>,
    count_max: usize,
    idle_max: Duration,
}

impl Uploads {
    pub(crate) fn new(count_max: usize, idle_max: Duration) -> Self {
        Uploads { open: Mutex::default(), count_max, idle_max }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, Upload>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets uploads that nobody continued, with their files; returns how many.
    pub(crate) fn expire(&self) -> usize {
        let mut open = self.open();
        let before = open.len();
        open.retain(|_, upload| upload.used.elapsed() < self.idle_max || upload.incoming.try_lock().is_err());
        before - open.len()
    }

    /// Opens an upload; `stage` is called only when there is room for one more.
    pub(crate) fn start(
        &self,
        repository: &RepositoryName,
        stage: impl FnOnce() -> Result<Incoming, RegistryError>,
    ) -> Result<Uuid, RegistryError> {
        if self.open().len() >= self.count_max && self.expire() == 0 {
            return Err(RegistryError::TooManyUploads);
        }
        let upload = Upload {
            repository: repository.clone(),
            used: Instant::now(),
            incoming: Arc::new(AsyncMutex::new(Some(stage()?))),
        };
        let mut open = self.open();
        // Others may have come in while we staged.
        if open.len() >= self.count_max {
            return Err(RegistryError::TooManyUploads);
        }
        let id = Uuid::new_v4();
        open.insert(id, upload);
        Ok(id)
    }

    /// Takes the right to write to an upload of this repository.
    ///
    /// Waits a moment for whoever has it: a client whose connection was cut comes back before we have
    /// put away the last bytes it sent.
    pub(crate) async fn write(
        &self,
        repository: &RepositoryName,
        id: Uuid,
    ) -> Result<Writing, RegistryError> {
        let incoming = {
            let mut open = self.open();
            let upload = open
                .get_mut(&id)
                .filter(|upload| upload.repository == *repository)
                .ok_or(RegistryError::UploadUnknown)?;
            upload.used = Instant::now();
            upload.incoming.clone()
        };
        let writing = tokio::time::timeout(WRITER_WAIT, incoming.lock_owned())
            .await
            .map_err(|_| RegistryError::UploadBusy)?;
        if writing.is_none() { Err(RegistryError::UploadUnknown) } else { Ok(writing) }
    }

    /// Says that an upload moves, so that it does not expire.
    pub(crate) fn used(&self, id: Uuid) {
        if let Some(upload) = self.open().get_mut(&id) {
            upload.used = Instant::now();
        }
    }

    /// Forgets an upload. Its file goes when the last writer lets go, unless that one published it.
    pub(crate) fn forget(&self, id: Uuid) {
        self.open().remove(&id);
    }
}
