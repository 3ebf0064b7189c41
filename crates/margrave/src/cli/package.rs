//! The arguments of those verbs of `margrave package` that have several.

use std::time::Duration;

use clap::Args;

use super::{Connection, Opening, duration};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave package push ./andon-board \\
    oci://registry.example/packages/andon-board
  margrave package push andon-board.tgz \\
    oci://127.0.0.1:5000/packages/andon-board:1.0.0

The package is checked first, and nothing is pushed of one that breaks a rule. It goes under its version as tag; its \
component folders go where their repository says, at the same registry. Without --user, credentials are taken from \
Docker's config.json. What is there already with other content is left alone, unless --replace is given.")]
pub(crate) struct Push {
    /// A package's directory, or an archive of it (.tar, .tgz)
    #[arg(value_name = "DIR|ARCHIVE")]
    pub(crate) source: std::path::PathBuf,
    /// Where to, as oci://HOST/REPOSITORY[:TAG]; the tag, if given, must be the package's version
    #[arg(value_name = "REFERENCE")]
    pub(crate) target: String,
    /// Move tags that hold something else
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) opening: Opening,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave package watch oci://registry.example/packages/andon-board
  margrave package watch oci://registry.example/packages/andon-board \\
    --match 1.* --every 1h

New tags that hold valid packages are added to the catalog by themselves. A tag that moves afterwards is told and never \
followed. Watching again changes how, and looks at once.")]
pub(crate) struct WatchRepository {
    /// The repository, without a tag
    #[arg(value_name = "oci://HOST/REPOSITORY")]
    pub(crate) repository: String,
    /// Which tags: * stands for any characters, ? for one
    #[arg(long = "match", value_name = "PATTERN")]
    pub(crate) pattern: Option<String>,
    /// Time between two looks, from 1m to 7d; 15m unless given
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) every: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave package check ./andon-board
  margrave package check andon-board.tgz
  margrave package check margo.yaml
  margrave package check oci://registry.example/packages/andon-board:1.0.0

Every broken rule is told with its place, its number and how to mend it; exit code 1 if there is any.")]
pub(crate) struct Check {
    /// A package's directory, an archive of it (.tar, .tgz), a description alone, or an OCI reference
    #[arg(value_name = "DIR|ARCHIVE|FILE|REFERENCE")]
    pub(crate) source: String,
    #[command(flatten)]
    pub(crate) opening: Opening,
}
