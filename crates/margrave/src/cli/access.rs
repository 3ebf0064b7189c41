//! The arguments of `margrave token`, `margrave session` and `margrave audit`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Connection, token_validity};

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a token for a person or a program; it is shown this once
    #[command(after_help = "\
Examples:
  margrave token create ann --role operator --expires 90d
  margrave token create ci@nord --role viewer --json

A viewer looks at everything but secrets and tokens. An operator also changes deployments, packages and devices. An admin also \
looks after tokens, the authority, registries, settings and backups.")]
    Create {
        /// Whose it is
        name: String,
        /// What it allows
        #[arg(long, value_name = "ROLE", value_parser = ["viewer", "operator", "admin"])]
        role: String,
        /// For how long it can be used, 1m to 3650d; until it is revoked unless given
        #[arg(long, value_name = "DURATION", value_parser = token_validity)]
        expires: Option<Duration>,
    },
    /// List the tokens, also those that cannot be used any more
    #[command(after_help = "Example:\n  margrave token list")]
    List,
    /// Void a token at once, with every page that was signed in to with it
    #[command(after_help = "Example:\n  margrave token revoke 4f7d21c09ab3 --yes")]
    Revoke {
        /// The token's id, as `margrave token list` shows it
        id: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    /// Sign out of the page in every browser: every session of whoever this command's token belongs to
    #[command(after_help = "\
Example:
  margrave session end-all

Tokens stay as they are, and so does this command's own access; `margrave token revoke` puts an end to a token.")]
    EndAll,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  margrave audit --actor ann
  margrave audit --subject press-1 --since 2027-01-31T06:00:00Z --limit 500
  margrave audit verify")]
pub(crate) struct Audit {
    #[command(subcommand)]
    pub(crate) verb: Option<AuditVerb>,
    /// Only what this operator did; unknown for those who showed no token that counts
    #[arg(long, value_name = "NAME")]
    pub(crate) actor: Option<String>,
    /// Only what was done to this: a device, a deployment, "PACKAGE VERSION", a token's id
    #[arg(long, value_name = "NAME")]
    pub(crate) subject: Option<String>,
    /// Only what happened since this day, or this moment
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(crate) since: Option<String>,
    /// How many of the newest
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditVerb {
    /// Read the whole log and check that nobody changed it; exit code 1 if somebody did
    #[command(after_help = "\
Examples:
  margrave audit verify
  margrave audit verify --head \\
    1204:sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

It prints the newest entry as NUMBER:HASH. Keep that elsewhere and give it as --head the next time: only so it is seen that the \
end of the log was cut off, or that all of it was written anew.")]
    Verify {
        /// An entry as an earlier run printed it
        #[arg(long, value_name = "NUMBER:HASH", value_parser = head)]
        head: Option<Head>,
    },
}

/// An entry that must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) sequence: u64,
    pub(crate) hash: margrave_core::digest::Digest,
}

fn head(text: &str) -> Result<Head, String> {
    let wrong = || "write it as `margrave audit verify` prints it, NUMBER:sha256:…".to_owned();
    let (sequence, hash) = text.split_once(':').ok_or_else(wrong)?;
    Ok(Head { sequence: sequence.parse().map_err(|_| wrong())?, hash: hash.parse().map_err(|_| wrong())? })
}

/// A day begins at midnight, UTC.
fn since(text: &str) -> Result<String, String> {
    let text = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    match margrave_core::moment::Moment::from_rfc3339(&text) {
        Some(_) => Ok(text),
        None => Err("write it as 2027-01-31, or as 2027-01-31T06:00:00Z".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_heads_are_read_before_anybody_is_asked() {
        assert_eq!(since("2027-01-31").unwrap(), "2027-01-31T00:00:00Z");
        assert_eq!(since("2027-01-31T06:00:00+01:00").unwrap(), "2027-01-31T06:00:00+01:00");
        for wrong in ["", "yesterday", "2027-13-01", "31.01.2027"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
        let hash = margrave_core::digest::Digest::of(b"x");
        assert_eq!(head(&format!("7:{hash}")), Ok(Head { sequence: 7, hash }));
        for wrong in ["", "7", "7:", "x:sha256:00", ":sha256:00"] {
            assert!(head(wrong).is_err(), "{wrong}");
        }
    }
}
