//! The arguments of `margrave serve` about a remote that says what is wanted.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::duration;

/// Everything but the address only says how, and needs it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Follow a remote Git repository")]
pub(crate) struct Follow {
    /// Git repository that says what is wanted; then nothing else does
    #[arg(long, value_name = "URL")]
    pub(crate) follow: Option<String>,
    /// Its branch
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    pub(crate) follow_branch: String,
    /// About how often it is looked at
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub(crate) follow_every: Duration,
    /// File with the token for an https:// address
    #[arg(long, value_name = "FILE", requires = "follow")]
    pub(crate) follow_token_file: Option<PathBuf>,
    /// Certificates that vouch for an https:// address, in PEM, where the machine does not know them
    #[arg(long, value_name = "FILE", requires = "follow")]
    pub(crate) follow_ca: Option<PathBuf>,
    /// Private key for an ssh:// address
    #[arg(long, value_name = "FILE", requires = "follow", requires = "follow_known_hosts")]
    pub(crate) follow_ssh_key: Option<PathBuf>,
    /// Hosts' keys that SSH may believe, as `ssh-keyscan` writes them
    #[arg(long, value_name = "FILE", requires = "follow")]
    pub(crate) follow_known_hosts: Option<PathBuf>,
    /// File with the token that a caller of POST /hooks/intent must give; off without it
    #[arg(long, value_name = "FILE", requires = "follow")]
    pub(crate) follow_hook_token_file: Option<PathBuf>,
}
