//! What can go wrong between us and a registry, told apart by what can be done about it.

use std::io;
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::report::{FailureCode, Retry};
use margrave_http::StatusCode;

/// An exchange with a registry that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "this machine does not know where the registry {0:?} is; it is the server's own, and no server is set here"
    )]
    UnknownHost(String),
    #[error("{0} is not in the registry; check the name, or push it first")]
    NotFound(String),
    #[error("the registry wants credentials for {0}; log in, or check user and password")]
    Unauthorized(String),
    #[error("the registry refuses access to {what}{}", detail(told))]
    Denied { what: String, told: String },
    #[error("{what} has digest {got}, promised was {wanted}; nothing of it was used (PK-041)")]
    DigestMismatch { what: String, wanted: Digest, got: Digest },
    #[error("{what} has {got} bytes, promised were {wanted}; nothing of it was used (PK-041)")]
    SizeMismatch { what: String, wanted: u64, got: u64 },
    #[error("{what} is larger than the {max} bytes allowed here")]
    TooLarge { what: String, max: u64 },
    #[error("the registry did not take {what}: {status}{}", detail(told))]
    Refused { what: String, status: StatusCode, told: String },
    #[error("the registry cannot serve {what} now: {status}{}", detail(told))]
    Unavailable { what: String, status: StatusCode, told: String, retry_after: Option<Duration> },
    #[error("the registry answered {what} in a way that makes no sense: {why}")]
    Protocol { what: String, why: String },
    #[error("{what} could not be reached")]
    Network {
        what: String,
        #[source]
        source: margrave_http::Error,
    },
    #[error("the trusted authorities of this system cannot be used: {0}")]
    SystemRoots(String),
    #[error("the authority that was given is not usable: {0}; give its certificate as PEM")]
    Authority(String),
    #[error(
        "plain HTTP is for registries on this machine only (localhost, 127.0.0.1, [::1]); {0} is reached by HTTPS, \
         also with an authority of its own"
    )]
    PlainElsewhere(String),
    #[error("cannot {doing} {}", path.display())]
    Disk { doing: &'static str, path: std::path::PathBuf, source: io::Error },
}

/// What the registry itself said, if it did.
fn detail(told: &str) -> String {
    if told.is_empty() { String::new() } else { format!(" ({told})") }
}

impl ClientError {
    /// What a device reports.
    pub fn failure(&self) -> FailureCode {
        match self {
            ClientError::NotFound(_) => FailureCode::PullNotFound,
            ClientError::Unauthorized(_) | ClientError::Denied { .. } => FailureCode::PullDenied,
            ClientError::Disk { source, .. } if crate::archive::is_full(source) => FailureCode::DiskFull,
            // Too much: no other try of the same thing ends better. What is not as promised may be on the way there: a proxy
            // that answers with a page of its own, or a download that was cut.
            ClientError::TooLarge { .. } => FailureCode::ArchiveInvalid,
            _ => FailureCode::PullFailed,
        }
    }

    pub fn retry(&self) -> Retry {
        self.failure().retry()
    }

    /// How long the registry asked us to stay away.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ClientError::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the very next try, seconds from now, may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            ClientError::Network { source, .. } => source.retry() == margrave_http::Retry::Later,
            ClientError::Unavailable { .. } => true,
            _ => false,
        }
    }
}

/// The registry's own words, from its error body: `{"errors":[{"code","message"}]}`.
pub(crate) fn told(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Errors {
        errors: Vec<One>,
    }
    #[derive(serde::Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(Errors { errors }) = serde_json::from_slice::<Errors>(body) else { return String::new() };
    let Some(first) = errors.first() else { return String::new() };
    let clean = |text: &str| text.chars().filter(|c| !c.is_control()).take(200).collect::<String>();
    match (clean(&first.code), clean(&first.message)) {
        (code, message) if message.is_empty() => code,
        (code, message) if code.is_empty() => message,
        (code, message) => format!("{code}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_on_the_way_is_fetched_again() {
        let what = || "a blob".to_owned();
        let (wanted, got) = (Digest::of(b"1"), Digest::of(b"2"));
        for error in [
            ClientError::SizeMismatch { what: what(), wanted: 1, got: 2 },
            ClientError::DigestMismatch { what: what(), wanted, got },
        ] {
            assert_eq!(error.failure(), FailureCode::PullFailed, "{error}");
        }
        let error = ClientError::TooLarge { what: what(), max: 1 };
        assert_eq!(error.failure(), FailureCode::ArchiveInvalid);
    }

    #[test]
    fn the_words_of_a_registry_are_kept_short_and_clean() {
        assert_eq!(
            told(b"{\"errors\":[{\"code\":\"DENIED\",\"message\":\"no\\u001b[31m\"}]}"),
            "DENIED: no[31m"
        );
        assert_eq!(told(b"{\"errors\":[]}"), "");
        assert_eq!(told(b"<html>"), "");
        let long = format!("{{\"errors\":[{{\"code\":\"X\",\"message\":\"{}\"}}]}}", "y".repeat(9000));
        assert!(told(long.as_bytes()).len() < 300);
    }
}
