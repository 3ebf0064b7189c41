//! Why the fleet did not do what it was asked.

use std::io;
use std::time::Duration;

use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::violation::Violation;
use margrave_wire::operator;
use margrave_wire::resource::Flaw;

/// One enum for every verb, so that a handler needs ONE match to turn it into problem+json.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no {what}")]
    NotFound { what: String },
    /// Somebody else was faster, or the name is taken; the message says what to do.
    #[error("{message}")]
    Conflict { message: String },
    /// It is not what the writer says to have seen.
    #[error("it has changed since you read it; read it again and repeat your change")]
    Changed,
    #[error("{}", sentence(.0))]
    Invalid(Vec<Violation>),
    /// Files break rules, each where it says.
    #[error("{}", flawed(.0))]
    Flawed(Vec<Flaw>),
    #[error("{what} is still used by {}; remove that first", .by.join(", "))]
    InUse { what: String, by: Vec<String> },
    /// A child device was reported before its gateway (MI-G2).
    #[error("the gateway {0} has not reported its own capabilities yet; report the gateway first")]
    GatewayNotFound(DeviceId),
    #[error("there is no device {0} of this client")]
    DeviceNotFound(DeviceId),
    #[error("there is no deployment {0} for this client")]
    AssignmentUnknown(AssignmentId),
    #[error("this token is not known; ask an operator for a new one")]
    TokenUnknown,
    #[error("this join token was used already; ask an operator for a new one")]
    TokenUsed,
    #[error("this join token has expired; ask an operator for a new one")]
    TokenExpired,
    #[error("{}", misfits(.0))]
    Misfit(Vec<operator::Misfit>),
    /// A registry did not give what was needed; the message names the registry's object.
    #[error("{message}")]
    Upstream {
        message: String,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    #[error("the server could not write to or read from its database")]
    Storage(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the server could not make or write its keys")]
    Keys(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "the system gives no random numbers, without which no secret is safe; mend the machine, then try again"
    )]
    NoRandomness,
    /// A pause that one device has to keep; nothing is wrong with the server.
    #[error("this was asked for a moment ago, and each answer is written down; ask again after a pause")]
    TooSoon { wait: Duration },
    #[error("the server has more to write than it can at the moment; try again shortly")]
    Overloaded,
}

impl Error {
    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Error::NotFound { what: what.into() }
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Error::Conflict { message: message.into() }
    }

    /// Whether there is no room left where the server keeps what it knows: no waiting helps against that.
    pub(crate) fn is_disk_full(&self) -> bool {
        let full = |error: &(dyn std::error::Error + 'static)| {
            let of_store = matches!(error.downcast_ref(), Some(margrave_store::Error::Full(_)));
            let of_file = error.downcast_ref::<io::Error>().is_some_and(|error| {
                matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            });
            // The library tells it in words only.
            let of_git = error.downcast_ref::<git2::Error>().is_some_and(|error| {
                error.class() == git2::ErrorClass::Os && error.message().contains("No space left")
            });
            of_store || of_file || of_git
        };
        std::iter::successors(Some(self as &(dyn std::error::Error + 'static)), |error| error.source())
            .any(full)
    }

    pub(crate) fn invalid(place: impl Into<String>, rule: &'static str, message: impl Into<String>) -> Self {
        Error::Invalid(vec![Violation::new(place, rule, message)])
    }
}

impl From<margrave_store::Error> for Error {
    fn from(error: margrave_store::Error) -> Self {
        match error {
            margrave_store::Error::Overloaded => Error::Overloaded,
            error => Error::Storage(Box::new(error)),
        }
    }
}

fn sentence(violations: &[Violation]) -> String {
    match violations {
        [] => "the request breaks a rule".to_owned(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}

fn flawed(flaws: &[Flaw]) -> String {
    match flaws {
        [] => "a file breaks a rule".to_owned(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}

fn misfits(misfits: &[operator::Misfit]) -> String {
    match misfits {
        [] => "a device does not fit".to_owned(),
        [first, rest @ ..] => {
            let more =
                if rest.is_empty() { String::new() } else { format!(" (and {} more devices)", rest.len()) };
            format!("{} does not fit: {}{more}", first.device, first.reasons.join("; "))
        }
    }
}
