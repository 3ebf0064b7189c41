//! One broken rule: where, which, and what to do about it.

use std::fmt;

/// A rule that a document breaks. Several are collected, so that a vendor mends all of them in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Where in the document: a JSON Pointer such as `/deploymentProfiles/0/type`; empty for the whole.
    pub place: String,
    /// The rule's number in our digests, such as `DM-003`.
    pub rule: &'static str,
    /// What is wrong and how to mend it, as one sentence.
    pub message: String,
}

impl Violation {
    pub fn new(place: impl Into<String>, rule: &'static str, message: impl Into<String>) -> Self {
        Violation { place: place.into(), rule, message: message.into() }
    }
}

/// The JSON Pointer (RFC 6901) of `token` within `place`.
pub fn join(place: &str, token: &str) -> String {
    format!("{place}/{}", token.replace('~', "~0").replace('/', "~1"))
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.place.is_empty() { "/" } else { &self.place };
        // Words that come from elsewhere may name the rule themselves.
        let rule = format!(" ({})", self.rule);
        write!(f, "{place}: {}{rule}", self.message.replacen(&rule, "", 1))
    }
}
