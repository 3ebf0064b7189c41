//! The arguments of `margrave registry`, and how a registry is opened wherever one is named.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Registry {
    /// Tell the server how a registry is reached and opened, in place of what it knew
    Add(AddRegistry),
    /// List the registries that the server knows
    #[command(after_help = "Example:\n  margrave registry list")]
    List,
    /// Let the server ask a registry whether it answers and takes the credentials; exit code 1 if not
    #[command(after_help = "Example:\n  margrave registry check registry.example:5000")]
    Check {
        /// host or host:port
        host: String,
    },
    /// Let the server forget a registry and its credentials
    #[command(after_help = "Example:\n  margrave registry remove registry.example:5000")]
    Remove {
        /// host or host:port
        host: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave registry add registry.example --user plant --password-stdin
  margrave registry add registry.example:5000 --ca company.pem
  margrave registry add 127.0.0.1:5000 --plain-http

Where a registry sends its clients to a token service, user and password are for that. A secret is stored at the server \
and never shown again. Without one, the registry is asked anonymously.")]
pub(crate) struct AddRegistry {
    /// host or host:port
    pub(crate) host: String,
    #[command(flatten)]
    pub(crate) opening: Opening,
}

/// How a registry is reached, trusted and opened.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Registry")]
pub(crate) struct Opening {
    /// User at the registry, or at its token service; the password comes from --password-stdin or from the environment [env: MARGRAVE_REGISTRY_PASSWORD]
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Read the password from standard input
    #[arg(long, requires = "user")]
    pub(crate) password_stdin: bool,
    /// Read a bearer token that the registry itself takes from standard input [env: MARGRAVE_REGISTRY_TOKEN]
    #[arg(long, conflicts_with_all = ["user", "password_stdin"])]
    pub(crate) token_stdin: bool,
    /// Certificates of the registry's own authority, PEM, trusted beside the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Without TLS; only for a registry on this machine
    #[arg(long, conflicts_with = "ca")]
    pub(crate) plain_http: bool,
}
