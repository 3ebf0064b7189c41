//! A socket's pace: how long a peer may keep us waiting with what we send, and how its connection ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// In this time a peer has to take [`WRITE_BYTES_MIN`] of what we have for it, or all of it.
pub(super) const WRITE_STALL_MAX: Duration = Duration::from_secs(60);
/// Half a kilobit a second: nothing that is still a line is slower, and who is holds memory of ours.
const WRITE_BYTES_MIN: usize = 4096;
/// How long, and for how much, a closed connection is still listened to. What a peer is sending while we have
/// answered already (a body that is too large) would otherwise make the kernel throw away our answer.
const LINGER_TIME_MAX: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A stream whose peer has to keep taking what we send, and which does not close on its peer's last words.
pub(super) struct Paced<S> {
    inner: S,
    stall_max: Duration,
    stalled: Option<Stalled>,
    linger: Option<Linger>,
}

/// The peer does not take all that we have for it.
struct Stalled {
    until: Pin<Box<Sleep>>,
    /// What it took since then.
    taken: usize,
}

/// Our side is closed; what still comes is thrown away.
struct Linger {
    /// Most peers have closed before us.
    until: Option<Pin<Box<Sleep>>>,
    bytes_left: usize,
}

impl<S> Paced<S> {
    pub(super) fn new(inner: S, stall_max: Duration) -> Self {
        Paced { inner, stall_max, stalled: None, linger: None }
    }

    /// Takes note of what a write came to.
    fn pace(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match progress {
            Poll::Ready(Ok(count)) => {
                if let Some(stalled) = &mut self.stalled {
                    stalled.taken += count;
                    if stalled.taken >= WRITE_BYTES_MIN {
                        self.stalled = None;
                    }
                }
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.stall(context).map(Err),
        }
    }

    /// Takes note of whether everything is gone.
    fn pace_flush(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if progress.is_ready() {
            self.stalled = None;
            return progress;
        }
        self.stall(context).map(Err)
    }

    fn stall(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let stall_max = self.stall_max;
        let stalled = self.stalled.get_or_insert_with(|| Stalled {
            until: Box::pin(sleep_until(Instant::now() + stall_max)),
            taken: 0,
        });
        ready!(stalled.until.as_mut().poll(context));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the peer stopped reading"))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + Unpin> Paced<S> {
    /// Ready once the peer has closed as well, or has had its time. Nothing that happens here is an error: all
    /// that had to be said was said.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert(Linger { until: None, bytes_left: LINGER_BYTES_MAX });
        let mut scratch = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.inner).poll_read(context, &mut buffer) {
                Poll::Pending => {
                    let until = linger.until.get_or_insert_with(|| Box::pin(sleep(LINGER_TIME_MAX)));
                    return until.as_mut().poll(context);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => match linger.bytes_left.checked_sub(buffer.filled().len()) {
                    Some(left) if !buffer.filled().is_empty() => linger.bytes_left = left,
                    _ => return Poll::Ready(()),
                },
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.pace(context, progress)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.inner).poll_flush(context);
        self.pace_flush(context, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            let progress = Pin::new(&mut self.inner).poll_shutdown(context);
            ready!(self.pace_flush(context, progress))?;
        }
        self.poll_linger(context).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.pace(context, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn a_peer_that_stops_reading_is_given_up() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let mut paced = Paced::new(ours, Duration::from_millis(20));
        let error = paced.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_that_reads_a_byte_now_and_then_is_given_up() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut paced = Paced::new(ours, Duration::from_millis(200));
        let reading = async {
            loop {
                sleep(Duration::from_millis(10)).await;
                theirs.read_u8().await.unwrap();
            }
        };
        let error = tokio::select! {
            written = paced.write_all(&[0; 2 * WRITE_BYTES_MIN]) => written.unwrap_err(),
            () = reading => unreachable!("it reads for ever"),
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_on_a_slow_line_gets_all_of_it() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let mut paced = Paced::new(ours, Duration::from_secs(2));
        let content = vec![7; 64 * 1024];
        let wanted = content.len();
        let reading = tokio::spawn(async move {
            let mut got = vec![0; wanted];
            for piece in got.chunks_mut(1024) {
                sleep(Duration::from_millis(40)).await;
                theirs.read_exact(piece).await.unwrap();
            }
            got
        });
        paced.write_all(&content).await.unwrap();
        paced.flush().await.unwrap();
        assert_eq!(reading.await.unwrap(), content);
    }
}
