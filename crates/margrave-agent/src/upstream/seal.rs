//! Signs requests for servers of the signed generation (RFC 9421), and finds out how a server wants it: by which
//! clock, and with which components covered.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use margrave_http::{HeaderName, Origin, Request, Response, StatusCode};
use margrave_identity::message::{Signer, SignerError};
use margrave_wire::signature::{
    self, BaseError, CONTENT_DIGEST, Message, SIGNATURE, SIGNATURE_INPUT, Style, Unsigned,
};

use crate::clock;

/// Servers allow for some minutes of difference, or at least for a request's way; less is not worth correcting.
const SKEW_MIN: i64 = 30;

/// The client's key, and what it learnt about the server.
pub(crate) struct Seal {
    signer: Signer,
    origin: Origin,
    /// What to add to our clock to get the server's, in seconds.
    skew: AtomicI64,
    /// Whether the server wants requests as the public reference client signs them.
    reference: AtomicBool,
    /// Whether the server ever took a request that was signed as we sign now.
    proven: AtomicBool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error("a request could not be signed")]
    Sign(#[source] SignerError),
    #[error("a request cannot be signed")]
    Base(#[source] BaseError),
    #[error("a request whose content comes from a reader cannot be signed")]
    Unread,
}

/// What to do about an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lesson {
    /// It stands.
    Stands,
    /// Our clock is off by so many seconds; the same request again, by the server's.
    OtherTime(i64),
    /// The same request again, signed in the other style.
    OtherStyle,
}

impl Seal {
    pub(crate) fn new(signer: Signer, origin: Origin) -> Seal {
        Seal {
            signer,
            origin,
            skew: AtomicI64::new(0),
            reference: AtomicBool::new(false),
            proven: AtomicBool::new(false),
        }
    }

    /// The request with its signature.
    pub(crate) fn sign(&self, request: Request) -> Result<Request, SealError> {
        let body = request.content().ok_or(SealError::Unread)?;
        let digest = (!body.is_empty()).then(|| signature::content_digest(body));
        let target_uri = format!("{}{}", self.origin, request.path());
        let whole = format!("{}{}", self.origin.prefix(), request.path());
        let (path, query) = match whole.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (whole.as_str(), None),
        };
        let field = |name: &str| digest.clone().filter(|_| name == CONTENT_DIGEST);
        let authority = self.origin.authority();
        let message = Message {
            method: request.method().as_str(),
            scheme: "https",
            authority: &authority,
            target_uri: &target_uri,
            path,
            query,
            field: &field,
        };
        let style = match self.reference.load(Ordering::Relaxed) {
            true => Style::Reference,
            false => Style::Standard,
        };
        let created = (seconds(now()) + self.skew.load(Ordering::Relaxed)).max(0).unsigned_abs();
        let unsigned = Unsigned::new(style, &message, digest.is_some(), created, self.signer.keyid())
            .map_err(SealError::Base)?;
        let signed = self.signer.sign(unsigned.base()).map_err(SealError::Sign)?;
        let (input, signature) = unsigned.sealed(&signed);
        let mut request = request
            .header(HeaderName::from_static(SIGNATURE_INPUT), input)
            .header(HeaderName::from_static(SIGNATURE), signature);
        if let Some(digest) = digest {
            request = request.header(HeaderName::from_static(CONTENT_DIGEST), digest);
        }
        Ok(request)
    }

    /// What an answer teaches about how to sign. `retold` counts how often this request was already sent again.
    pub(crate) fn learn(&self, response: &Response, retold: u32) -> Lesson {
        if response.status != StatusCode::UNAUTHORIZED {
            if response.status.is_success() || response.status == StatusCode::NOT_MODIFIED {
                self.proven.store(true, Ordering::Relaxed);
            }
            return Lesson::Stands;
        }
        let skew = self.skew.load(Ordering::Relaxed);
        if let Some(date) = response.date() {
            let off = seconds(date) - seconds(now());
            if (off - skew).abs() > SKEW_MIN && retold == 0 {
                self.skew.store(off, Ordering::Relaxed);
                return Lesson::OtherTime(off);
            }
        }
        // Some verifiers want `@authority` covered too. Only found out while nothing has worked yet: a server that
        // took our signatures before has another reason now.
        if !self.proven.load(Ordering::Relaxed) && retold < 2 {
            self.reference.fetch_xor(true, Ordering::Relaxed);
            return Lesson::OtherStyle;
        }
        Lesson::Stands
    }
}

fn now() -> SystemTime {
    UNIX_EPOCH + std::time::Duration::from_millis(clock::now().0)
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(since).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_http::{HeaderMap, HeaderValue, header};
    use margrave_identity::key::PrivateKey;

    fn seal() -> Seal {
        let key = PrivateKey::generate().unwrap();
        Seal::new(Signer::from_pem(&key.to_pem()).unwrap(), Origin::parse("https://wfm.example/v1").unwrap())
    }

    fn answer(status: u16, date: Option<&'static str>) -> Response {
        let mut headers = HeaderMap::new();
        if let Some(date) = date {
            headers.insert(header::DATE, HeaderValue::from_static(date));
        }
        Response { status: StatusCode::from_u16(status).unwrap(), headers, body: Default::default() }
    }

    #[test]
    fn a_refused_signature_is_first_made_by_the_servers_clock_then_in_the_other_style() {
        let seal = seal();
        let past = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        let Lesson::OtherTime(off) = seal.learn(&answer(401, past), 0) else {
            panic!("the clock is far off")
        };
        assert!(off < -86_400 * 365);
        assert_eq!(seal.learn(&answer(401, past), 1), Lesson::OtherStyle);
        assert_eq!(seal.learn(&answer(401, past), 2), Lesson::Stands);
        // Whoever was taken once has another reason to be refused.
        let seal = self::seal();
        assert_eq!(seal.learn(&answer(304, None), 0), Lesson::Stands);
        assert_eq!(seal.learn(&answer(401, None), 0), Lesson::Stands);
        assert_eq!(seal.learn(&answer(403, past), 0), Lesson::Stands);
    }
}
