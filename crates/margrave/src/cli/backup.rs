//! `backup`, `restore` and `completions`, as clap reads them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Connection;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave backup --to plant.tar
  margrave backup --to plant.tar --data /var/lib/margrave

The server goes on meanwhile. With --data the backup is made from the directory of a server that is stopped. The file \
holds every key of the server: it is written for its owner only, and whoever has it can be the server.")]
pub(crate) struct Backup {
    /// The archive to write; there must be no such file yet
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Do not ask a server; read the data directory of one that is stopped
    #[arg(long, value_name = "DIR", conflicts_with_all = ["context", "server", "token", "pin"])]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  margrave restore plant.tar --data /var/lib/margrave

Everything is checked before it is done. Then start the server with `margrave serve` and the options that it had.")]
pub(crate) struct Restore {
    /// The archive that `margrave backup` wrote
    #[arg(value_name = "FILE")]
    pub(crate) archive: PathBuf,
    /// A new or empty directory
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave completions bash
  margrave completions zsh
  margrave completions fish

For bash:
    margrave completions bash \\
      > ~/.local/share/bash-completion/completions/margrave
For zsh, with fpath+=~/.zfunc before compinit:
    margrave completions zsh > ~/.zfunc/_margrave
For fish:
    margrave completions fish > ~/.config/fish/completions/margrave.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}
