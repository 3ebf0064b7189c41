//! `margrave deployment …`

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Failing, Pair, Steps, Waiting, Windows, duration, pair};

#[derive(Debug, Subcommand)]
pub(crate) enum Deployment {
    /// List all deployments
    #[command(after_help = "Example:\n  margrave deployment list")]
    List,
    /// Show one deployment, its answers and where it stands
    #[command(after_help = "Example:\n  margrave deployment show andon-board")]
    Show {
        /// The deployment
        name: String,
    },
    /// Change a deployment; what is not named stays as it is
    Update(Box<DeploymentUpdate>),
    /// Go back to what a deployment was before; also brings back one that was removed
    #[command(after_help = "\
Examples:
  margrave deployment revert andon-board --wait
  margrave deployment revert andon-board --to 3

`margrave deployment history NAME` shows the revisions. Going back is a new revision, so that it can be undone too.")]
    Revert {
        /// The deployment
        name: String,
        /// The revision to go back to; the last one before the current one that came to its end unless given
        #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
        to: Option<u64>,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Remove a deployment from all its devices
    #[command(after_help = "\
Examples:
  margrave deployment remove andon-board
  margrave deployment remove andon-board --yes --wait")]
    Remove {
        /// The deployment
        name: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
        /// Show progress until it is gone from every device; exit code 1 if it is still on one
        #[arg(long)]
        wait: bool,
        /// How long to wait at most
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
        timeout: Duration,
    },
    /// Show what a deployment was and what it went through on its devices
    #[command(after_help = "\
Examples:
  margrave deployment history andon-board
  margrave deployment history andon-board --device press-1

Of a deployment on more than 20 devices only the revisions are shown, unless a device is named.
What was removed stays to be seen for 90 days: the first 20 devices that had it are listed.")]
    History {
        /// The deployment
        name: String,
        /// Only on this device
        #[arg(long)]
        device: Option<String>,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave deployment update andon-board --set message=\"Shift 2\" --wait
  margrave deployment update gate --version 1.1.0 --to pack-1 --to pack-2")]
pub(crate) struct DeploymentUpdate {
    /// The deployment
    pub(crate) name: String,
    /// Change an answer; repeat it with the same name for a list
    #[arg(long = "set", value_name = "PARAMETER=VALUE", value_parser = pair)]
    pub(crate) set: Vec<Pair>,
    /// Answer with a secret: env:MARGRAVE_SECRET_NAME or file:NAME at the server, or sealed:TEXT
    #[arg(long = "secret", value_name = "PARAMETER=REFERENCE", value_parser = pair)]
    pub(crate) secrets: Vec<Pair>,
    /// Go back to the package's own value
    #[arg(long = "unset", value_name = "PARAMETER")]
    pub(crate) unset: Vec<String>,
    /// Another version of the package
    #[arg(long)]
    pub(crate) version: Option<String>,
    /// Deploy to these devices instead; together with --label, --select and --site this replaces all targets
    #[arg(long = "to", value_name = "DEVICE", num_args = 1.., value_delimiter = ',')]
    pub(crate) devices: Vec<String>,
    /// Deploy to the devices with these labels instead; together with --to this replaces all targets
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) labels: Vec<Pair>,
    /// Deploy to the devices that an expression on labels selects instead
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) select: Option<String>,
    /// Deploy to the devices of these sites instead
    #[arg(long = "site", value_name = "SITE", num_args = 1.., value_delimiter = ',')]
    pub(crate) sites: Vec<String>,
    /// Deploy also to devices that it does not fit, and why; the reason is kept. What a device cannot run at all stays left out
    #[arg(long, value_name = "REASON")]
    pub(crate) force: Option<String>,
    /// No longer deploy to devices that it does not fit
    #[arg(long, conflicts_with = "force")]
    pub(crate) no_force: bool,
    #[command(flatten)]
    pub(crate) failing: Failing,
    #[command(flatten)]
    pub(crate) steps: Steps,
    #[command(flatten)]
    pub(crate) windows: Windows,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}
