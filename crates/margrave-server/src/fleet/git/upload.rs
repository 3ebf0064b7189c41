//! One answer of `git upload-pack` on its way to a client.
//!
//! The program talks to the client through us, bounded in time and size. It is killed when the client goes away and when
//! time is up. When the client's right ends half-way, what has not been given by then is never given.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::Pass;
use super::program::{Pipes, RunError, Running, last_words};
use super::repository::Repository;
use crate::fleet::Fleet;

/// For one answer as a whole. Who takes nothing is thrown out by the listener much earlier; this is for slow lines.
pub(super) const TIME_MAX: Duration = Duration::from_secs(15 * 60);
/// Far more than ten thousand versions of large documents.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
const PIECE_BYTES: usize = 32 * 1024;
/// With the pieces above, what one fetch holds in memory.
pub(super) const PIECES_AHEAD: usize = 4;

/// Why an answer ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cut {
    #[error("the fetch took longer than {} s", TIME_MAX.as_secs())]
    TooLong,
    #[error("the answer is larger than {OUTPUT_BYTES_MAX} bytes")]
    TooMuch,
    #[error("the right to this repository ended")]
    Closed,
    #[error("git stopped in the middle")]
    Broken(#[source] RunError),
}

/// The answer, piece by piece. Dropped, the program behind it is killed.
pub(crate) struct Upload {
    pieces: mpsc::Receiver<Result<Bytes, Cut>>,
    fleet: Arc<Fleet>,
    pass: Pass,
}

impl Upload {
    /// The next piece; `None` at the end. Nothing is given any more once the right has ended, not even what was made
    /// ready before.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        let piece = self.pieces.recv().await;
        match self.fleet.git_check(&mut self.pass).await {
            Ok(()) => piece,
            Err(error) => {
                tracing::info!(client = %self.pass.client, reason = %error, "a fetch was cut off");
                self.pieces.close();
                Some(Err(Cut::Closed))
            }
        }
    }
}

/// What must stay as it is for as long as the answer takes.
pub(super) struct Held {
    pub(super) _places: [OwnedSemaphorePermit; 2],
    pub(super) _packs: OwnedRwLockReadGuard<()>,
}

/// Feeds the request to the program, and what it says to the client.
pub(super) fn start(
    fleet: Arc<Fleet>,
    pass: Pass,
    repository: Arc<Repository>,
    running: Running,
    pipes: Pipes,
    request: Bytes,
    held: Held,
) -> Upload {
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    let client = pass.client.clone();
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = relay(running, pipes, request, &sender) => ended,
            () = sender.closed() => {
                tracing::debug!(%client, "a Git client went away");
                return;
            }
            () = tokio::time::sleep_until(Instant::now() + TIME_MAX) => Err(Cut::TooLong),
        };
        drop(held);
        match ended {
            Ok(()) => {}
            // Whatever it was, the client sees that something is missing: what was sent says where it ends.
            Err(Cut::Broken(error)) => {
                tracing::info!(%client, error = &error as &dyn std::error::Error, "git upload-pack failed");
                repository.suspect().await;
            }
            Err(cut) => {
                tracing::info!(%client, reason = %cut, "a fetch was cut off");
                // Nobody there any more needs no reason.
                drop(sender.send(Err(cut)).await);
            }
        }
    });
    Upload { pieces, fleet, pass }
}

pub(super) async fn relay(
    running: Running,
    pipes: Pipes,
    request: Bytes,
    to: &mpsc::Sender<Result<Bytes, Cut>>,
) -> Result<(), Cut> {
    let Pipes { mut input, mut output, errors } = pipes;
    let ask = async {
        // One that ends before it has read everything says why in its own words.
        drop(input.write_all(&request).await);
        drop(input);
        Ok(())
    };
    let answer = async {
        let mut sent = 0u64;
        loop {
            let mut piece = bytes::BytesMut::with_capacity(PIECE_BYTES);
            let count = output
                .read_buf(&mut piece)
                .await
                .map_err(|source| Cut::Broken(RunError::Pipe { act: "upload-pack", source }))?;
            if count == 0 {
                return Ok(());
            }
            sent += count as u64;
            if sent > OUTPUT_BYTES_MAX {
                return Err(Cut::TooMuch);
            }
            // If nobody listens any more, this is dropped in a moment.
            drop(to.send(Ok(piece.freeze())).await);
        }
    };
    let words = async { Ok(last_words(errors).await) };
    // The first that goes wrong ends it: the program waits for ever for whoever does not read on.
    let ((), (), errors) = tokio::try_join!(ask, answer, words)?;
    running.end(errors).await.map_err(Cut::Broken)
}
