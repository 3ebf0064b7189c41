//! Everything that can go wrong between asking and having the answer, told apart by what to do about it.

use std::io;
use std::time::Duration;

/// What was being waited for when time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Resolving the name, connecting, and the TLS handshake.
    Dial,
    /// Sending the request and waiting for the head of the answer.
    Answer,
    /// The next piece of the answer's body.
    Body,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Phase::Dial => "for a connection",
            Phase::Answer => "for the answer",
            Phase::Body => "for the rest of the answer",
        })
    }
}

/// An exchange that did not succeed. An answer with an error status is not one of these.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the name {host} could not be resolved; check the name server and the spelling")]
    Resolve {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error("no connection to {peer}")]
    Connect {
        peer: String,
        #[source]
        source: io::Error,
    },
    #[error("no trusted connection to {peer}")]
    Tls {
        peer: String,
        #[source]
        source: TlsFault,
    },
    #[error("waited {} s {phase}, in vain", after.as_secs_f32())]
    Timeout { phase: Phase, after: Duration },
    #[error("the answer is larger than {limit} bytes and was not read")]
    TooLarge { limit: u64 },
    #[error("the connection was cut before the answer was complete")]
    Closed(#[source] Option<Box<dyn std::error::Error + Send + Sync>>),
    #[error("the server does not speak HTTP/1.1 as expected")]
    Protocol(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the request cannot be sent: {0}")]
    Request(String),
}

/// Why TLS did not come about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    #[error("the server's certificate was refused: {0}")]
    PeerRefused(String),
    #[error("the server refused us or our certificate with the TLS alert {0}; its log says why")]
    RefusedByPeer(String),
    #[error("the handshake failed: {0}")]
    Handshake(String),
}

/// Whether trying the same again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The network or the other end may be better later.
    Later,
    /// The same request to the same server will have the same end.
    NotUntilChanged,
}

impl Error {
    pub fn retry(&self) -> Retry {
        match self {
            // Certificates are renewed and clocks are set right, so even a refused one is tried again.
            Error::Resolve { .. }
            | Error::Connect { .. }
            | Error::Tls { .. }
            | Error::Timeout { .. }
            | Error::Closed(_) => Retry::Later,
            Error::TooLarge { .. } | Error::Protocol(_) | Error::Request(_) => Retry::NotUntilChanged,
        }
    }

    /// Whether nobody was reached at all: what a device takes for "no network".
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Error::Resolve { .. } | Error::Connect { .. } | Error::Timeout { phase: Phase::Dial, .. }
        )
    }

    pub(crate) fn of_hyper(error: hyper::Error, peer: &str) -> Error {
        if let Some(tls) = tls_cause(&error) {
            return Error::Tls { peer: peer.to_owned(), source: TlsFault::of(tls) };
        }
        if error.is_parse() || error.is_user() {
            Error::Protocol(Box::new(error))
        } else if is_cut(&error) {
            // There is nothing more to know, and the TLS library has the address of a page about it in its words.
            Error::Closed(None)
        } else {
            Error::Closed(Some(Box::new(error)))
        }
    }

    /// An error while dialling over an established TCP connection.
    pub(crate) fn of_handshake(error: io::Error, peer: &str) -> Error {
        match tls_cause(&error) {
            Some(tls) => Error::Tls { peer: peer.to_owned(), source: TlsFault::of(tls) },
            None => Error::Connect { peer: peer.to_owned(), source: error },
        }
    }
}

/// Whether the other end went away without a word, as one that is killed does.
fn is_cut(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref().is_some_and(|io: &io::Error| io.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        next = error.source();
    }
    false
}

/// The rustls error somewhere below. An `io::Error` hides what it wraps from `source`, hence the detour.
pub(crate) fn tls_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

impl TlsFault {
    fn of(error: &rustls::Error) -> TlsFault {
        use rustls::{CertificateError, Error};
        match error {
            Error::InvalidCertificate(CertificateError::Other(other)) => {
                TlsFault::PeerRefused(chain_of(other.0.as_ref()))
            }
            Error::InvalidCertificate(certificate) => TlsFault::PeerRefused(certificate.to_string()),
            Error::AlertReceived(alert) => TlsFault::RefusedByPeer(format!("{alert:?}")),
            other => TlsFault::Handshake(other.to_string()),
        }
    }
}

fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
