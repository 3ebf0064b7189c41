//! From an address to a byte stream, with every byte on the wire counted.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::{Error, tls_cause};
use crate::origin::Origin;

/// A name with many addresses must not eat the whole time on dead ones.
const ADDRESSES_MAX: usize = 8;
/// Even the last of many addresses gets this long.
const ADDRESS_WAIT_MIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) connections: AtomicU64,
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(crate) enum Dialer {
    Tls { origin: Origin, config: Arc<ClientConfig> },
    Plain { origin: Origin, loopback_only: bool },
    Unix { path: PathBuf },
}

impl Dialer {
    /// What errors call the other end.
    pub(crate) fn peer(&self) -> String {
        match self {
            Dialer::Tls { origin, .. } | Dialer::Plain { origin, .. } => origin.to_string(),
            Dialer::Unix { path } => path.display().to_string(),
        }
    }

    /// One new connection. The caller bounds the time; `wait` only divides it between addresses.
    pub(crate) async fn dial(
        &self,
        wait: Duration,
        counters: &Arc<Counters>,
    ) -> Result<Box<dyn Stream>, Error> {
        match self {
            Dialer::Unix { path } => {
                let stream = UnixStream::connect(path)
                    .await
                    .map_err(|source| Error::Connect { peer: self.peer(), source })?;
                Ok(Box::new(Counted::new(stream, counters)))
            }
            Dialer::Plain { origin, loopback_only } => {
                let stream = connect(origin, *loopback_only, wait).await?;
                Ok(Box::new(Counted::new(stream, counters)))
            }
            Dialer::Tls { origin, config } => {
                let stream = Counted::new(connect(origin, false, wait).await?, counters);
                let stream = TlsConnector::from(config.clone())
                    .connect(origin.server_name(), stream)
                    .await
                    .map_err(|error| Error::of_handshake(error, &self.peer()))?;
                Ok(Box::new(Candid(stream)))
            }
        }
    }
}

async fn connect(origin: &Origin, loopback_only: bool, wait: Duration) -> Result<TcpStream, Error> {
    let failed = |source| Error::Connect { peer: origin.to_string(), source };
    let addresses: Vec<SocketAddr> = match origin.address() {
        Some(address) => vec![SocketAddr::new(address, origin.port())],
        None => tokio::net::lookup_host((origin.host(), origin.port()))
            .await
            .map_err(|source| Error::Resolve { host: origin.host().to_owned(), source })?
            // A name server could make "localhost" mean another machine.
            .filter(|address| !loopback_only || address.ip().is_loopback())
            .take(ADDRESSES_MAX)
            .collect(),
    };
    let share = u32::try_from(addresses.len().max(1)).expect("at most ADDRESSES_MAX");
    let share = (wait / share).max(ADDRESS_WAIT_MIN);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address that may be used");
    for address in addresses {
        match tokio::time::timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Requests are small and waited for.
                stream.set_nodelay(true).map_err(failed)?;
                stay_alive(&stream).map_err(failed)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, format!("{address} did not answer")),
        }
    }
    Err(failed(last))
}

/// A connection may be silent for minutes while a server holds a poll open. Probes below TCP's payload keep
/// middleboxes from forgetting it, and tell within three minutes that the other end is gone.
fn stay_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(120))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(20))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

/// Counts what goes over the wire, below TLS.
struct Counted<S> {
    stream: S,
    counters: Arc<Counters>,
}

impl<S> Counted<S> {
    fn new(stream: S, counters: &Arc<Counters>) -> Counted<S> {
        Counted { stream, counters: counters.clone() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.counters.received.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.counters.sent.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, pieces))?;
        self.counters.sent.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A TLS stream that says why writing failed.
///
/// In TLS 1.3 a server refuses our certificate after we have already sent the request: the alert waits to be
/// read while writing fails with a plain "broken pipe". The alert is the true reason, so it is looked for.
struct Candid<S>(TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> Candid<S> {
    fn explain(&mut self, context: &mut Context<'_>, error: io::Error) -> io::Error {
        let mut byte = [0];
        match Pin::new(&mut self.0).poll_read(context, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Err(reason)) if tls_cause(&reason).is_some() => reason,
            _ => error,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Candid<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Candid<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.0).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.explain(context, error)))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.0).poll_write_vectored(context, pieces));
        Poll::Ready(written.map_err(|error| self.explain(context, error)))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.0).poll_flush(context));
        Poll::Ready(flushed.map_err(|error| self.explain(context, error)))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Refusal;
    use tokio::io::AsyncWriteExt as _;

    #[tokio::test]
    async fn a_failing_write_tells_the_alert_behind_it() {
        let refusal = Refusal::new();
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let accept = tokio_rustls::TlsAcceptor::from(refusal.server).accept(theirs);
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let connect = TlsConnector::from(refusal.client).connect(name, ours);
        let (accepted, connected) = tokio::join!(accept, connect);
        assert!(accepted.is_err());
        // The other end is gone now, its alert is still in the pipe, and nobody has read it.
        drop(accepted);
        let mut stream = Candid(connected.unwrap());
        let error = loop {
            let step = async {
                stream.write_all(b"x").await?;
                stream.flush().await
            };
            if let Err(error) = step.await {
                break error;
            }
        };
        assert!(matches!(tls_cause(&error), Some(rustls::Error::AlertReceived(_))), "{error:?}");
    }
}
