//! A backup of a server: one tar archive that begins with a head and ends with a list.
//!
//! The head says what the archive is before anything else is read. The list has every file with its digest, and comes
//! last because it is made while the archive is written: an archive without it was cut off.

use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use serde::{Deserialize, Serialize};

/// What this program writes. A higher number is of a newer program, and refused.
pub const FORMAT: u32 = 1;
/// The first entry.
pub const HEAD: &str = "margrave-backup.json";
/// The last entry.
pub const LIST: &str = "margrave-files.json";

pub const HEAD_BYTES_MAX: u64 = 64 * 1024;
/// Some 200 bytes for each of a million files.
pub const LIST_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Ten times what a registry of a thousand packages has.
pub const FILES_MAX: usize = 1_000_000;
const PATH_BYTES_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 255;

/// What may lie in a data directory and belongs into a backup.
pub const ROOTS: [&str; 7] =
    ["context.json", "identity", "intent.git", "registry", "secrets", "secrets.key", "store"];
/// The copy of the database.
pub const DATABASE: &str = "store/margrave.db";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    pub format: u32,
    /// Of the program that made it.
    pub version: String,
    /// Of the database.
    pub schema: u32,
    /// Milliseconds since 1970.
    pub made_at: Moment,
}

/// Only the number: whatever else a newer format says, this much it says too.
#[derive(Deserialize)]
struct Numbered {
    format: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    pub files: Vec<Listed>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    pub path: ArchivePath,
    pub size: u64,
    pub digest: Digest,
}

/// Why a head is none that this program reads.
#[derive(Debug, thiserror::Error)]
pub enum InvalidHead {
    #[error("it has no head of a backup")]
    Foreign,
    #[error("it has format {0}, and this program reads format {FORMAT}")]
    Newer(u32),
}

impl Head {
    pub fn read(bytes: &[u8]) -> Result<Head, InvalidHead> {
        let Numbered { format } = serde_json::from_slice(bytes).map_err(|_| InvalidHead::Foreign)?;
        if format > FORMAT {
            return Err(InvalidHead::Newer(format));
        }
        serde_json::from_slice(bytes).map_err(|_| InvalidHead::Foreign)
    }
}

/// A path in an archive: below one of [`ROOTS`], and never out of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArchivePath(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a path that a backup has")]
pub struct InvalidPath(String);

impl ArchivePath {
    pub fn parse(text: &str) -> Result<ArchivePath, InvalidPath> {
        let is_name = |name: &str| {
            !matches!(name, "" | "." | "..")
                && name.len() <= NAME_BYTES_MAX
                && !name.chars().any(|c| c.is_control() || c == '\\')
        };
        let mut names = text.split('/');
        let known = names.next().is_some_and(|root| ROOTS.contains(&root));
        if !known || text.len() > PATH_BYTES_MAX || !names.all(is_name) {
            let shown = text.chars().take(100).collect();
            return Err(InvalidPath(shown));
        }
        Ok(ArchivePath(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ArchivePath {
    type Error = InvalidPath;
    fn try_from(text: String) -> Result<Self, InvalidPath> {
        ArchivePath::parse(&text)
    }
}

impl From<ArchivePath> for String {
    fn from(path: ArchivePath) -> String {
        path.0
    }
}

impl std::fmt::Display for ArchivePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_the_directory() {
        for good in
            ["context.json", "store/margrave.db", "registry/repositories/a/b/_tags/1.0..x", "intent.git/refs"]
        {
            assert_eq!(ArchivePath::parse(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "/",
            "/store/margrave.db",
            "../store/margrave.db",
            "store/../../x",
            "store/./x",
            "store//x",
            "store/",
            "elsewhere/x",
            "lock",
            "store/a\0b",
            "store/a\nb",
            "store\\..\\x",
            "store/..\\x",
        ] {
            assert!(ArchivePath::parse(bad).is_err(), "{bad:?}");
            assert!(serde_json::from_value::<ArchivePath>(bad.into()).is_err(), "{bad:?}");
        }
        assert!(ArchivePath::parse(&format!("store/{}", "x".repeat(256))).is_err());
        assert!(ArchivePath::parse(&format!("store{}", "/x".repeat(600))).is_err());
    }

    #[test]
    fn a_newer_head_is_told_from_a_foreign_one() {
        let head = Head { format: FORMAT, version: "1.2.3".into(), schema: 7, made_at: Moment(1) };
        assert_eq!(Head::read(&serde_json::to_vec(&head).unwrap()).unwrap(), head);
        let newer = Head::read(br#"{"format": 2, "all": "else"}"#).unwrap_err();
        assert!(matches!(newer, InvalidHead::Newer(2)), "{newer}");
        for foreign in [&b""[..], b"{}", b"[1]", b"{\"format\": 1}", b"{\"format\": \"1\"}"] {
            assert!(matches!(Head::read(foreign), Err(InvalidHead::Foreign)));
        }
    }
}
