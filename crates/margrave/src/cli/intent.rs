//! The arguments of the commands about what is wanted as files: `intent`, `get`, `apply`, `diff`, `plan`, `schema`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Connection;

#[derive(Debug, Subcommand)]
pub(crate) enum Intent {
    /// Show which commit is applied, and what keeps the server from following its repository
    #[command(after_help = "Example:\n  margrave intent show")]
    Show,
    /// Show the commits that were applied, newest first
    #[command(after_help = "Examples:\n  margrave intent log\n  margrave intent log --limit 5")]
    Log {
        /// How many
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
    },
    /// Decide a conflict between the server and its repository
    #[command(after_help = "Examples:\n  margrave intent resolve --keep\n  margrave intent resolve --take")]
    #[command(group = clap::ArgGroup::new("way").args(["keep", "take"]).required(true))]
    Resolve {
        /// Go on with what the server has
        #[arg(long)]
        keep: bool,
        /// Apply what the repository says
        #[arg(long)]
        take: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// Where files come from.
#[derive(Debug, Args)]
pub(crate) struct Sources {
    /// A file, a directory with files ending in .yaml, or a dash for standard input; repeat for several
    #[arg(long = "file", short = 'f', value_name = "FILE|DIR|-", required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave apply -f deployment.yaml
  margrave apply -f fleet/ --message=\"Shift 2 gets the new board\"

All files are done in one commit, or none. Files that are not named stay as they are; `git push` also takes away.")]
pub(crate) struct Apply {
    #[command(flatten)]
    pub(crate) sources: Sources,
    /// What the commit says
    #[arg(long, short, value_name = "TEXT")]
    pub(crate) message: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  margrave diff -f deployment.yaml\n  margrave diff -f fleet/\n  margrave diff --from=\"2d ago\"\n  margrave diff --from 2026-11-16T12:00:00Z --to 2026-11-17\n\nExit code 1 if something differs."
)]
pub(crate) struct Diff {
    /// A file, a directory with files ending in .yaml, or a dash for standard input; repeat for several
    #[arg(long = "file", short = 'f', value_name = "FILE|DIR|-", required_unless_present = "from")]
    pub(crate) files: Vec<PathBuf>,
    /// Instead of files: what was wanted at this moment, such as 2026-11-16T12:00:00Z or `2h ago`
    #[arg(long, value_name = "TIME", conflicts_with = "files")]
    pub(crate) from: Option<String>,
    /// The later moment; now if left out
    #[arg(long, value_name = "TIME", requires = "from")]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave plan -f deployment.yaml
  margrave plan -f fleet/ --json

The server checks and decides as it would for `apply`, with its fleet as it is, and writes nothing. \
A deployment that goes in steps is told batch by batch, with what each waits for. \
Exit code 1 if it would be refused.")]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) sources: Sources,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResourceKind {
    Deployment,
    Device,
    Package,
    Fleet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Yaml,
    Json,
    Table,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave get deployment
  margrave get deployment andon-board -o yaml
  margrave get package andon-board/1.0.0
  margrave get fleet")]
pub(crate) struct Get {
    /// What kind of file
    #[arg(value_name = "KIND")]
    pub(crate) kind: ResourceKind,
    /// Which one; a package as ID/VERSION; all of them if left out
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// How to show it; a table of names for all, YAML for one
    #[arg(long, short, value_name = "FORMAT")]
    pub(crate) output: Option<Format>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  margrave schema deployment\n  margrave schema fleet")]
pub(crate) struct Schema {
    /// What kind of file
    #[arg(value_name = "KIND")]
    pub(crate) kind: ResourceKind,
}
