//! `margrave secret …`

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Secret {
    /// Seal a value for a parameter of a deployment, so that it can stand in a file
    #[command(after_help = "\
Examples:
  margrave secret seal andon-board password --file password.txt
  margrave secret seal andon-board password --json

The value is read from standard input unless a file is named; one line break at its end is left out. What is printed is put in the \
value's place, in a file or with --secret PARAMETER=sealed:TEXT. Only this server opens it, and only there.")]
    Seal {
        /// The deployment that it is for; there need not be one yet
        deployment: String,
        /// The parameter
        parameter: String,
        /// Read the value from this file
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}
