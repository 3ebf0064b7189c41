//! What an error answer says, whoever wrote it: problem details, the older `error` and `message`, or nothing.
//!
//! Reading never fails. A member of the wrong type is as good as absent, because a device must find out whether
//! and when to ask again also from a server that gets the rest of its errors wrong.

use std::time::Duration;

use serde_json::Value;

use crate::problem::{Backoff, ProblemType};

/// Longer explanations are cut: they end up in a status line and a log.
const TEXT_LENGTH_MAX: usize = 500;

/// The parts of an error that a client acts on or shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal {
    /// The registered type, in any spelling of its namespace (AMB-12, ID-205).
    pub kind: Option<ProblemType>,
    pub title: Option<String>,
    pub detail: Option<String>,
    pub retryable: Option<bool>,
    /// Advisory; the `Retry-After` header wins (MI-G2-193).
    pub retry_after: Option<Duration>,
    pub backoff: Option<Backoff>,
}

impl Refusal {
    pub fn read(body: &[u8]) -> Refusal {
        let Ok(Value::Object(members)) = serde_json::from_slice(body) else { return Refusal::default() };
        let text = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| members.get(*name)?.as_str());
            found.map(|text| {
                text.chars().filter(|c| !c.is_control()).take(TEXT_LENGTH_MAX).collect::<String>()
            })
        };
        Refusal {
            kind: members.get("type").and_then(Value::as_str).and_then(ProblemType::of),
            title: text(["title", "error"]),
            detail: text(["detail", "message"]),
            retryable: members.get("retryable").and_then(Value::as_bool),
            retry_after: members.get("retryAfterSeconds").and_then(Value::as_u64).map(Duration::from_secs),
            backoff: members
                .get("backoffStrategy")
                .and_then(|strategy| serde_json::from_value(strategy.clone()).ok()),
        }
    }

    /// In words; `None` when the answer had none.
    pub fn words(&self) -> Option<String> {
        match (&self.title, &self.detail) {
            (Some(title), Some(detail)) if title != detail => Some(format!("{title} ({detail})")),
            (Some(text), _) | (None, Some(text)) => Some(text.clone()),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mi_g2_193_retry_members_are_read_also_from_half_a_problem() {
        let said = Refusal::read(
            br#"{"type":"about:blank","retryable":true,"retryAfterSeconds":30,"backoffStrategy":"fixed","status":"x"}"#,
        );
        assert_eq!(
            (said.retryable, said.retry_after, said.backoff, said.words()),
            (Some(true), Some(Duration::from_secs(30)), Some(Backoff::Fixed), None)
        );
        let wrong = br#"{"title":7,"retryable":"yes","retryAfterSeconds":-3,"backoffStrategy":"linear"}"#;
        assert_eq!(Refusal::read(wrong), Refusal::default());
        for nothing in [&b""[..], b"[]", b"<html>", b"null", &[0xff; 9]] {
            assert_eq!(Refusal::read(nothing), Refusal::default());
        }
    }

    #[test]
    fn amb_12_id_205_a_retired_relationship_is_known_in_each_spelling() {
        for kind in [
            "https://docs.margo.org/specification/problem-types#not-authorized",
            "https://docs.margo.org/specification/problem-types#wfm-client-relationship-retired",
            "https://margo.org/docs/errors/wfm-client-relationship-retired",
        ] {
            let body = format!(r#"{{"type":"{kind}","title":"Client Relationship Retired","status":403}}"#);
            assert_eq!(Refusal::read(body.as_bytes()).kind, Some(ProblemType::NotAuthorized), "{kind}");
        }
    }

    #[test]
    fn the_older_error_body_has_words_too() {
        let said = Refusal::read(br#"{"error":"Invalid signature","message":"It does not match.\nAt all."}"#);
        assert_eq!(said.words().as_deref(), Some("Invalid signature (It does not match.At all.)"));
    }
}
