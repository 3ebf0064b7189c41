//! The body of a request: bytes that can be sent twice, or a reader that cannot.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};

const PIECE: usize = 64 * 1024;

pub(crate) enum Content {
    Bytes(Bytes),
    Reader { reader: Pin<Box<dyn AsyncRead + Send>>, left: u64 },
}

impl Content {
    pub(crate) fn empty() -> Content {
        Content::Bytes(Bytes::new())
    }

    /// The same content again, if it is still there.
    pub(crate) fn again(&self) -> Option<Content> {
        match self {
            Content::Bytes(bytes) => Some(Content::Bytes(bytes.clone())),
            Content::Reader { .. } => None,
        }
    }
}

impl http_body::Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Content::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Bytes(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Content::Reader { left: 0, .. } => Poll::Ready(None),
            Content::Reader { reader, left } => {
                let wanted = usize::try_from(*left).unwrap_or(PIECE).min(PIECE);
                let mut piece = BytesMut::zeroed(wanted);
                let mut buffer = ReadBuf::new(&mut piece);
                ready!(reader.as_mut().poll_read(context, &mut buffer))?;
                let read = buffer.filled().len();
                if read == 0 {
                    let short = "the content to send ended before its announced length";
                    return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, short))));
                }
                *left -= read as u64;
                piece.truncate(read);
                Poll::Ready(Some(Ok(Frame::data(piece.freeze()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Content::Bytes(bytes) => bytes.is_empty(),
            Content::Reader { left, .. } => *left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Reader { left, .. } => *left,
        })
    }
}
