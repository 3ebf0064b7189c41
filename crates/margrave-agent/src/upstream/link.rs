//! One request to the server and its answer, authenticated the way of this device's form.

use std::sync::Arc;

use margrave_core::device::{Backoff, Trouble};
use margrave_http::{Answer, Client, Error, Request, Response, StatusCode, TlsFault, Traffic};
use margrave_identity::live::LiveSvid;
use margrave_wire::problem;
use margrave_wire::refusal::Refusal;

use super::seal::{Lesson, Seal, SealError};
use crate::clock;
use crate::identity::{Authorized, refusal};
use crate::status::timestamp;
use crate::way::Way;

/// The connection to the device interface.
pub(crate) struct Link {
    client: Client,
    proof: Proof,
    way: Arc<Way>,
}

/// How the server learns who asks.
pub(crate) enum Proof {
    /// From the handshake.
    Svid { svid: Arc<LiveSvid>, authorized: Authorized },
    /// From a signature on every request.
    Signature(Seal),
}

impl Link {
    pub(crate) fn new(client: Client, proof: Proof, way: Arc<Way>) -> Link {
        Link { client, proof, way }
    }

    /// The answer, whatever its status.
    pub(crate) async fn send(&self, request: Request) -> Result<Response, Trouble> {
        self.may_call()?;
        let Proof::Signature(seal) = &self.proof else {
            return self.client.send(request).await.map_err(|error| self.unreachable(error));
        };
        let mut retold = 0;
        loop {
            let copy =
                request.again().ok_or_else(|| Trouble::permanent("a request cannot be signed twice"))?;
            let signed = seal.sign(copy).map_err(|error| unsigned(&error))?;
            let response = self.client.send(signed).await.map_err(|error| self.unreachable(error))?;
            match seal.learn(&response, retold) {
                Lesson::Stands => return Ok(response),
                Lesson::OtherTime(off) => self.note_clock(off),
                Lesson::OtherStyle => {}
            }
            retold += 1;
        }
    }

    /// A wrong clock is worked around, but somebody should set it right.
    fn note_clock(&self, off: i64) {
        let notice = match off {
            -30..=30 => None,
            31.. => Some(format!(
                "this device's clock is {off} s behind the server's; requests are signed by the server's"
            )),
            _ => Some(format!(
                "this device's clock is {} s ahead of the server's; requests are signed by the server's",
                -off
            )),
        };
        match &notice {
            Some(notice) => tracing::warn!("{notice}"),
            None => tracing::info!("this device's clock is right again"),
        }
        self.way.note(notice);
    }

    /// The head of the answer; its body is read piece by piece.
    pub(crate) async fn open(&self, request: Request) -> Result<Answer, Trouble> {
        self.may_call()?;
        let request = match &self.proof {
            Proof::Svid { .. } => request,
            // Polls come before downloads, so how to sign is known by now.
            Proof::Signature(seal) => seal.sign(request).map_err(|error| unsigned(&error))?,
        };
        self.client.open(request).await.map_err(|error| self.unreachable(error))
    }

    pub(crate) fn reset(&self) {
        self.client.reset();
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.client.traffic()
    }

    /// A path of a manifest, relative to the address that this link puts before every path: servers that live
    /// under a prefix write it into their manifests or leave it out (AMB-25).
    pub(crate) fn path<'a>(&self, listed: &'a str) -> &'a str {
        let rest = Some(self.client.prefix())
            .filter(|prefix| !prefix.is_empty())
            .and_then(|prefix| listed.strip_prefix(prefix))
            .filter(|rest| rest.starts_with('/'));
        rest.unwrap_or(listed)
    }

    /// With an expired certificate every call is in vain, and a server full of refused handshakes (ID-187).
    fn may_call(&self) -> Result<(), Trouble> {
        match &self.proof {
            Proof::Svid { svid, authorized } => {
                let svid = svid.current();
                if !authorized.permits(svid.server_name()) {
                    return Err(Trouble::passing(format!(
                        "{} does not list {}, the server of this device; it is not called (ID-104)",
                        authorized.path().display(),
                        svid.server_name()
                    )));
                }
                if svid.is_expired(clock::now()) {
                    return Err(Trouble::passing(format!(
                        "this device's certificate expired at {}; the server is not called until it has a new one (ID-187)",
                        timestamp(svid.not_after())
                    )));
                }
                Ok(())
            }
            // What a server of that generation thinks of dates is its own affair.
            Proof::Signature(_) => Ok(()),
        }
    }

    fn unreachable(&self, error: Error) -> Trouble {
        if matches!(error, Error::Tls { source: TlsFault::PeerRefused(_), .. }) {
            // Its authority may have been replaced while we were away.
            self.way.doubtful.notify_one();
        }
        Trouble::passing(margrave_core::chain::sentence(&error))
    }
}

fn unsigned(error: &SealError) -> Trouble {
    Trouble::passing(margrave_core::chain::sentence(error))
}

/// Any success will do; everything else is trouble, and says whether and when asking again can help (MI-G2-193).
pub(crate) fn accepted(response: Response) -> Result<Response, Trouble> {
    if response.status.is_success() { Ok(response) } else { Err(trouble_of(&response)) }
}

/// What an answer that is no success means for whoever asked.
pub(crate) fn trouble_of(response: &Response) -> Trouble {
    let status = response.status;
    let said = Refusal::read(&response.body);
    let curable = !status.is_client_error()
        // A device that is refused today may be accepted tomorrow, and its news must not be lost by then.
        || matches!(
            status,
            StatusCode::FORBIDDEN
                | StatusCode::UNAUTHORIZED
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::TOO_EARLY
                | StatusCode::TOO_MANY_REQUESTS
        );
    let busy = status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        );
    let retryable = said.retryable.unwrap_or(busy);
    let backoff = match said.backoff {
        _ if !retryable => Backoff::None,
        Some(problem::Backoff::None) => Backoff::None,
        Some(problem::Backoff::Fixed) => Backoff::Fixed,
        Some(problem::Backoff::Exponential) | None => Backoff::Exponential,
    };
    Trouble {
        message: format!("the server answered {}", refusal(response)),
        retry_after: response.retry_after(),
        advice: said.retry_after,
        backoff,
        permanent: !(curable || said.retryable == Some(true)),
        answered: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_http::{HeaderMap, HeaderValue, header};
    use std::time::Duration;

    fn trouble(status: u16, retry_after: Option<&'static str>, body: &'static str) -> Trouble {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(value));
        }
        trouble_of(&Response { status: StatusCode::from_u16(status).unwrap(), headers, body: body.into() })
    }

    #[test]
    fn mi_g2_193_the_header_binds_the_body_advises_and_retryable_decides() {
        let seconds = |n| Some(Duration::from_secs(n));
        let busy = trouble(
            503,
            Some("40"),
            r#"{"title":"Busy","retryable":true,"retryAfterSeconds":5,"backoffStrategy":"fixed"}"#,
        );
        assert_eq!(
            (busy.retry_after, busy.advice, busy.backoff, busy.permanent),
            (seconds(40), seconds(5), Backoff::Fixed, false)
        );
        for (status, body, backoff, permanent) in [
            (500, "", Backoff::Exponential, false),
            (429, "nonsense", Backoff::Exponential, false),
            (503, r#"{"retryable":false,"backoffStrategy":"exponential"}"#, Backoff::None, false),
            (422, r#"{"retryable":false}"#, Backoff::None, true),
            (422, "", Backoff::None, true),
            (404, r#"{"retryable":true,"backoffStrategy":"exponential"}"#, Backoff::Exponential, false),
            // What may become true again keeps its news, in the regular rhythm.
            (403, r#"{"retryable":false,"backoffStrategy":"none"}"#, Backoff::None, false),
            (401, "", Backoff::None, false),
            (302, "", Backoff::None, false),
        ] {
            let got = trouble(status, None, body);
            assert_eq!((got.backoff, got.permanent), (backoff, permanent), "{status} {body}");
        }
    }

    #[test]
    fn a_redirect_says_what_to_do() {
        assert!(trouble(307, None, "").message.contains("redirects are not followed"));
    }
}
