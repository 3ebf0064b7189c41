//! Answers: whole, or piece by piece.

use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::header::{AsHeaderName, DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use crate::client::Lease;
use crate::date;
use crate::error::{Error, Phase};

/// An answer that was read whole.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// An answer whose head is there and whose body is still coming.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Body,
}

impl Response {
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// A header's value, if it is there and is text.
    pub fn header(&self, name: impl AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// How long the server asks us to stay away (ID-204).
    pub fn retry_after(&self) -> Option<Duration> {
        let asked = self.header(RETRY_AFTER)?.trim();
        if let Ok(seconds) = asked.parse() {
            return Some(Duration::from_secs(seconds));
        }
        // A date is one of the server's clock; ours may be wrong.
        let now = self.date().unwrap_or_else(SystemTime::now);
        Some(date::parse(asked)?.duration_since(now).unwrap_or_default())
    }

    /// What time it is at the server, if it says so.
    pub fn date(&self) -> Option<SystemTime> {
        date::parse(self.header(DATE)?)
    }
}

impl Answer {
    pub fn header(&self, name: impl AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Reads the rest, within the limit of the request.
    pub async fn whole(self) -> Result<Response, Error> {
        Ok(Response { status: self.status, headers: self.headers, body: self.body.whole().await? })
    }
}

/// The body of an answer, read piece by piece. Dropping it before its end closes the connection.
pub struct Body {
    incoming: Incoming,
    /// Given back when the body has been read to its end, so that the connection can be used again.
    lease: Option<Lease>,
    read: u64,
    limit: u64,
    idle: Duration,
    peer: String,
}

impl Body {
    pub(crate) fn new(
        incoming: Incoming,
        lease: Lease,
        limit: u64,
        idle: Duration,
        peer: String,
    ) -> Result<Body, Error> {
        if incoming.size_hint().lower() > limit {
            return Err(Error::TooLarge { limit });
        }
        let mut body = Body { incoming, lease: Some(lease), read: 0, limit, idle, peer };
        if body.incoming.is_end_stream() {
            body.finish();
        }
        Ok(body)
    }

    /// The same body with another limit from here on.
    pub(crate) fn limited(mut self, limit: u64) -> Body {
        self.limit = limit;
        self
    }

    /// The length the server announced, if it did.
    pub fn length(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }

    /// The next piece; `None` when the body is complete.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let Ok(frame) = tokio::time::timeout(self.idle, self.incoming.frame()).await else {
                self.lease = None;
                return Err(Error::Timeout { phase: Phase::Body, after: self.idle });
            };
            match frame {
                None => {
                    self.finish();
                    return Ok(None);
                }
                Some(Err(error)) => {
                    self.lease = None;
                    return Err(Error::of_hyper(error, &self.peer));
                }
                // Trailers say nothing to us.
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.read += bytes.len() as u64;
                        if self.read > self.limit {
                            self.lease = None;
                            return Err(Error::TooLarge { limit: self.limit });
                        }
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// Everything that is left, within the limit.
    pub async fn whole(mut self) -> Result<Bytes, Error> {
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        let Some(second) = self.chunk().await? else { return Ok(first) };
        let mut all = BytesMut::from(first);
        all.extend_from_slice(&second);
        while let Some(bytes) = self.chunk().await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all.freeze())
    }

    fn finish(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }
}
