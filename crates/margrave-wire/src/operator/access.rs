//! Operators' tokens, and the log of what was done with them.

use margrave_core::audit::Entry;
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A token of an operator, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// What commands call it.
    pub id: String,
    /// Whose it is.
    pub name: String,
    /// `viewer`, `operator` or `admin`.
    pub role: String,
    /// `usable`, `expired` or `revoked`.
    pub state: String,
    pub created: String,
    pub created_by: String,
    /// Left out, it can be used until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// To the hour; left out, it was never used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateToken {
    /// Whose it is, such as `ann` or `ci@nord`.
    pub name: String,
    /// `viewer`, `operator` or `admin`.
    pub role: String,
    /// For how long it can be used: 60 seconds to ten years; until it is revoked when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_seconds: Option<u64>,
}

/// A new token; the only answer that has its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedToken {
    pub token: Token,
    /// Sent as `Authorization: Bearer SECRET`.
    pub secret: String,
}

/// An operator who is signed out of the page in every browser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndedSessions {
    /// Who it is.
    pub name: String,
    /// How many browsers that were; none is no error.
    pub ended: u64,
}

/// Something that an operator did, or was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// 1 for the first, without gaps.
    pub sequence: u64,
    /// To the millisecond.
    pub at: String,
    /// `operator ann`, or `unknown` for whoever showed no token that counts.
    pub actor: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The id of the token that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The address that the request came from.
    pub source: String,
    /// `page`, `rest`, `cli`, `registry`, `git` or `server`.
    pub way: String,
    /// Such as `deployment.put`.
    pub action: String,
    /// What it was done to; empty where that is the server itself, or was not understood.
    pub subject: String,
    /// `done`, or the name of the problem, such as `role-needed`.
    pub outcome: String,
    pub detail: String,
    /// The Git commit that holds the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// SHA-256 over the hash of the entry before and all fields of this one.
    pub hash: String,
}

/// An entry that cannot be one of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {0} has a time or a hash that cannot be read")]
pub struct InvalidEntry(pub u64);

impl AuditEntry {
    pub fn new(entry: Entry, hash: Digest) -> Self {
        let Entry { sequence, at, actor, role, token, source, way, action, subject, outcome, detail, commit } =
            entry;
        AuditEntry {
            sequence,
            at: at.to_rfc3339(),
            actor,
            role,
            token,
            source,
            way,
            action,
            subject,
            outcome,
            detail,
            commit,
            hash: hash.to_string(),
        }
    }

    /// What was hashed, and the hash that it should have.
    pub fn parse(self) -> Result<(Entry, Digest), InvalidEntry> {
        let invalid = InvalidEntry(self.sequence);
        let AuditEntry {
            sequence,
            at,
            actor,
            role,
            token,
            source,
            way,
            action,
            subject,
            outcome,
            detail,
            commit,
            hash,
        } = self;
        let at = Moment::from_rfc3339(&at).ok_or(invalid.clone())?;
        let hash = Digest::parse(&hash).map_err(|_| invalid)?;
        let entry =
            Entry { sequence, at, actor, role, token, source, way, action, subject, outcome, detail, commit };
        Ok((entry, hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_core::audit::BEGINNING;

    #[test]
    fn an_entry_hashes_the_same_after_the_journey() {
        let entry = Entry {
            sequence: 7,
            at: Moment(1_800_000_000_007),
            actor: "operator Ann Müller".to_owned(),
            role: None,
            token: Some("0123456789ab".to_owned()),
            source: "2001:db8::1".to_owned(),
            way: "cli".to_owned(),
            action: "deployment.put".to_owned(),
            subject: String::new(),
            outcome: "done".to_owned(),
            detail: "\u{7f}\"".to_owned(),
            commit: Some("abc".to_owned()),
        };
        let hash = entry.hash(&BEGINNING);
        let text = serde_json::to_string(&AuditEntry::new(entry.clone(), hash)).unwrap();
        let read: AuditEntry = serde_json::from_str(&text).unwrap();
        assert_eq!(read.clone().parse(), Ok((entry, hash)));
        for (at, hash) in
            [("yesterday", read.hash.as_str()), ("1900-01-01T00:00:00Z", &read.hash), (&read.at, "7")]
        {
            let spoilt = AuditEntry { at: at.to_owned(), hash: hash.to_owned(), ..read.clone() };
            assert_eq!(spoilt.parse(), Err(InvalidEntry(7)));
        }
    }
}
