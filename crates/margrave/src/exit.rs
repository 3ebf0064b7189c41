//! How a command ends: what it answered, or what went wrong and what to do about it.
//!
//! Exit codes are a promise to scripts: 0 done, 1 the honest answer is no, 2 it broke.

use std::error::Error;
use std::io;
use std::process::ExitCode;

/// A command that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// Nothing broke, but what was asked for is not so: not converged, not valid, not there.
    No,
}

/// Why a command could not do what it was asked, in a sentence, and what a person can do about it.
#[derive(Debug)]
pub(crate) struct Trouble {
    kind: Kind,
    message: String,
    hint: Option<String>,
    /// The same may be answered in a while, without anybody's doing here.
    passing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What was asked was understood, and the answer is no: it is not there, not valid, in conflict, does not fit, or is
    /// not allowed.
    Refused,
    /// It could not be asked (no answer, an unknown token, a command line that makes no sense), or something is broken.
    Broke,
    /// Whoever read our output had seen enough, as `head` does; that is no error.
    ReaderLeft,
}

pub(crate) type Result<T = Answer> = std::result::Result<T, Trouble>;

impl Trouble {
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Trouble { kind: Kind::Refused, message: message.into(), hint: None, passing: false }
    }

    pub(crate) fn broke(message: impl Into<String>) -> Self {
        Trouble { kind: Kind::Broke, message: message.into(), hint: None, passing: false }
    }

    /// A failure with its whole chain of causes, each said once.
    pub(crate) fn because(message: impl Into<String>, cause: &(dyn Error + 'static)) -> Self {
        Trouble::broke(chain(message.into(), cause))
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same in other words.
    pub(crate) fn reworded(mut self, message: String) -> Self {
        self.message = message;
        self
    }

    /// Says that waiting may help.
    pub(crate) fn passing(mut self) -> Self {
        self.passing = true;
        self
    }

    pub(crate) fn is_passing(&self) -> bool {
        self.passing
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    #[cfg(test)]
    pub(crate) fn hinted(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub(crate) fn is_refusal(&self) -> bool {
        self.kind == Kind::Refused
    }

    /// What standard error should say; nothing when the reader left.
    pub(crate) fn says(&self) -> Option<String> {
        if self.kind == Kind::ReaderLeft {
            return None;
        }
        let mut text = format!("error: {}", self.message);
        if let Some(hint) = &self.hint {
            text.push_str("\n hint: ");
            text.push_str(hint);
        }
        Some(text)
    }
}

impl From<io::Error> for Trouble {
    /// Only for writing to the terminal; files say which file they mean.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Trouble { kind: Kind::ReaderLeft, message: String::new(), hint: None, passing: false };
        }
        Trouble::because("the output cannot be written", &error)
    }
}

/// The message followed by its causes. A cause whose words are already there is not said twice.
pub(crate) fn chain(message: String, cause: &(dyn Error + 'static)) -> String {
    margrave_core::chain::because(message, Some(cause))
}

/// The process's exit code for a command's end.
pub(crate) fn code(end: &Result) -> ExitCode {
    ExitCode::from(match end {
        Ok(Answer::Done) => 0,
        Ok(Answer::No) => 1,
        Err(trouble) => match trouble.kind {
            Kind::ReaderLeft => 0,
            Kind::Refused => 1,
            Kind::Broke => 2,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_0_done_1_no_2_broke() {
        assert_eq!(code(&Ok(Answer::Done)), ExitCode::from(0));
        assert_eq!(code(&Ok(Answer::No)), ExitCode::from(1));
        assert_eq!(code(&Err(Trouble::refused("x"))), ExitCode::from(1));
        assert_eq!(code(&Err(Trouble::broke("x"))), ExitCode::from(2));
    }

    #[test]
    fn a_reader_who_left_is_no_error_and_gets_no_words() {
        let trouble = Trouble::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(trouble.says(), None);
        assert_eq!(code(&Err(trouble)), ExitCode::from(0));
    }

    #[test]
    fn causes_are_said_once_and_the_hint_comes_last() {
        #[derive(Debug, thiserror::Error)]
        #[error("the address is not reachable")]
        struct Outer(#[source] io::Error);
        let cause = Outer(io::Error::other("connection refused"));
        let trouble = Trouble::because("the server did not answer", &cause).hint("start it");
        assert_eq!(
            trouble.says().unwrap(),
            "error: the server did not answer: the address is not reachable: connection refused\n hint: start it"
        );
        assert_eq!(
            chain("connection refused by you".into(), &io::Error::other("connection refused")),
            "connection refused by you"
        );
    }
}
