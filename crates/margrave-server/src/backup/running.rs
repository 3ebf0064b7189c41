//! A backup beside a running server, as a stream.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use tokio::sync::{Semaphore, mpsc};

use super::write::{self, Copy};
use crate::fleet::{Actor, Clock, Error, Fleet};

/// How much is read ahead of a slow reader: a few megabytes.
const PIECES_AHEAD: usize = 8;
const PIECE_BYTES: usize = 256 * 1024;

/// Makes backups of one data directory, one at a time: each needs room for a second copy of the database.
pub(crate) struct Backups {
    data: PathBuf,
    clock: Clock,
    place: Arc<Semaphore>,
}

impl Backups {
    /// Takes away what a backup left that was killed.
    pub(crate) fn new(data: &Path, clock: Clock) -> io::Result<Backups> {
        write::forget_unfinished(data)?;
        Ok(Backups { data: data.to_owned(), clock, place: Arc::new(Semaphore::new(1)) })
    }

    /// The archive, piece by piece. One that cannot be finished ends in an error, and has no list at its end.
    pub(crate) async fn begin(
        &self,
        fleet: &Fleet,
        actor: &Actor,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>, Error> {
        let busy = |_| Error::conflict("a backup is being made already; wait until it is done");
        let place = Arc::clone(&self.place).try_acquire_owned().map_err(busy)?;
        let made_at = self.clock.now();
        let copies =
            write::directory_for_copies(&self.data).map_err(|error| Error::Storage(Box::new(error)))?;
        let database = copies.path().join("margrave.db");
        // Before the copy, and with its entry in the log, so that it is known in the copy too who has it.
        fleet.note_backup(actor).await?;
        // Whatever the database refers to has to be found where it lies.
        let still = fleet.intent_still().await;
        let schema = fleet.copy_database(database.clone()).await?;
        let (sender, mut receiver) = mpsc::channel(PIECES_AHEAD);
        let data = self.data.clone();
        tokio::task::spawn_blocking(move || {
            let copy = Copy { database, schema, made_at };
            let pipe = BufWriter::with_capacity(PIECE_BYTES, Pipe(sender.clone()));
            match write::write(&data, &copy, pipe) {
                Ok(made) => tracing::info!(files = made.files, bytes = made.bytes, "a backup was made"),
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a backup was not finished");
                    // Whoever went away needs no answer.
                    drop(sender.blocking_send(Err(io::Error::other(error))));
                }
            }
            drop((copies, place, still));
        });
        Ok(stream::poll_fn(move |context| receiver.poll_recv(context)))
    }
}

/// The writing end.
struct Pipe(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
