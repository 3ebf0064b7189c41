//! The arguments of `margrave device`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use margrave_core::lifecycle::{STATES, State};

use super::{Pair, duration, join_validity, pair};

#[derive(Debug, Subcommand)]
pub(crate) enum Device {
    /// List devices
    #[command(after_help = "\
Examples:
  margrave device list
  margrave device list --label site=nord --condition failed
  margrave device list --waiting")]
    List {
        /// Only those whose name contains this
        #[arg(long)]
        search: Option<String>,
        /// Only those with this label; the key alone is any value of it
        #[arg(long, value_name = "KEY[=VALUE]")]
        label: Option<String>,
        /// Only those that are converged, pending, failed, silent or retired
        #[arg(long, value_parser = ["converged", "pending", "failed", "silent", "retired"])]
        condition: Option<String>,
        /// Only those with an application in this state, such as FAILED
        #[arg(long, value_parser = STATES.map(State::as_str), ignore_case = true)]
        state: Option<String>,
        /// Only those of this site; :none are those without one
        #[arg(long)]
        site: Option<String>,
        /// Only those that have something of this deployment
        #[arg(long)]
        deployment: Option<String>,
        /// Only those with this in what they can do, such as arm64
        #[arg(long, value_name = "TEXT")]
        capability: Option<String>,
        /// Instead, those that wait to be accepted
        #[arg(long, conflicts_with_all = ["search", "label", "condition", "state", "site", "deployment", "capability"])]
        waiting: bool,
    },
    /// Show one device: what it is, what it runs, and why not
    #[command(after_help = "Example:\n  margrave device show press-1")]
    Show {
        /// The device
        device: String,
    },
    /// Make a one-time token with which a device joins
    #[command(after_help = "\
Examples:
  margrave device token --name press-3 --label site=nord --label line=press
  margrave device token --valid 1h")]
    Token {
        /// What the device will be called; made up by the server unless given
        #[arg(long)]
        name: Option<String>,
        /// Label that the device will have; repeat for several
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
        labels: Vec<Pair>,
        /// How long the token may be used, at most 30d
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = join_validity)]
        valid: Duration,
        /// Let the device set itself to Git, and pull from a repository of its own
        #[arg(long)]
        git: bool,
    },
    /// List the join tokens that can still be used
    #[command(after_help = "Example:\n  margrave device tokens")]
    Tokens,
    /// Make the join token of a device void that has not joined yet
    #[command(after_help = "Example:\n  margrave device untoken press-3")]
    Untoken {
        /// What the device was to be called
        device: String,
    },
    /// Give a device a read-only Git repository of its documents, and show the token that opens it
    Git(DeviceGit),
    /// Accept a device that waits, or one that was retired
    #[command(after_help = "\
Examples:
  margrave device accept press-3
  margrave device accept 3f9c01
  margrave device accept --certificate press-7.pem

Devices that sign their requests (g1) wait until they are accepted: `margrave device list --waiting` shows them. Name \
one by its id or fingerprint, or by the beginning of either; compare the fingerprint with what the device shows.")]
    Accept {
        /// The device, or the id or fingerprint of one that waits
        #[arg(required_unless_present = "certificate")]
        device: Option<String>,
        /// Accept the device that has this certificate (PEM), also before it first asks
        #[arg(long, value_name = "FILE", conflicts_with = "device")]
        certificate: Option<PathBuf>,
    },
    /// Turn away a device that waits to be accepted
    #[command(after_help = "Example:\n  margrave device reject 3f9c01")]
    Reject {
        /// The id or fingerprint, or the beginning of either
        device: String,
    },
    /// Put a device that joined in the place of one that signs (g1): labels and deployments go there
    #[command(after_help = "\
Examples:
  margrave device move press-7 press-7-new
  margrave device move press-7 press-7-new --yes

The old credential is refused from then on. The new device counts its manifests from 1.")]
    Move {
        /// The device that signs its requests
        device: String,
        /// The device that takes its place
        to: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Retire a device: it is out at once, and nothing is deployed to it any more
    #[command(after_help = "\
Examples:
  margrave device retire press-3
  margrave device retire press-3 --yes")]
    Retire {
        /// The device
        device: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Set labels, or remove them with a trailing dash
    #[command(after_help = "\
Examples:
  margrave device label press-3 line=press shift=2
  margrave device label press-3 shift-")]
    Label {
        /// The device
        device: String,
        /// Labels to set, or to remove
        #[arg(value_name = "KEY=VALUE|KEY-", required = true, value_parser = label_change)]
        changes: Vec<LabelChange>,
        /// Do not ask, also where applications go with the label
        #[arg(long, short)]
        yes: bool,
    },
    /// Hold changes on a device back for a while, as if somebody there did
    #[command(after_help = "\
Example:
  margrave device hold press-3 --for 2h --reason=\"batch 17 runs\"

It goes on by itself when the time is over, and never waits longer than its schedule allows (a day, unless set). Devices that \
do not run our agent do not understand this, and are not asked.")]
    Hold {
        /// The device
        device: String,
        /// Why, on one line; whoever waits for the change is told
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// For how long
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        length: Duration,
    },
    /// Let changes go on that an operator holds back on a device
    #[command(after_help = "Example:\n  margrave device release press-3")]
    Release {
        /// The device
        device: String,
    },
    /// Have a device look at what runs there at once, and say again how everything stands
    #[command(after_help = "Example:\n  margrave device look press-3")]
    Look {
        /// The device
        device: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave device git press-3 --authority margrave.pem
  margrave device git press-3 --rotate --grace 24h
  margrave device git press-3 --show
  margrave device git press-3 --off

The repository has one commit per manifest version on branch main: manifest.json and deployments/ID.yaml, byte for byte \
as devices get them. The token is the password; any user name does. docs/git.md tells how to clone it.")]
pub(crate) struct DeviceGit {
    /// The device
    pub(crate) device: String,
    /// Make a new token; those of before are void
    #[arg(long, conflicts_with_all = ["off", "show"])]
    pub(crate) rotate: bool,
    /// With --rotate: let those of before work for so long yet
    #[arg(long, value_name = "DURATION", requires = "rotate", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Close the repository, at once and for good
    #[arg(long, conflicts_with = "show")]
    pub(crate) off: bool,
    /// Show the repository and what opens it, and change nothing
    #[arg(long)]
    pub(crate) show: bool,
    /// Also write the certificate of the server's authority to this file, for git's http.sslCAInfo
    #[arg(long, value_name = "FILE", conflicts_with = "off")]
    pub(crate) authority: Option<PathBuf>,
}

/// `key=value` sets, `key-` removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LabelChange {
    pub(crate) key: String,
    pub(crate) value: Option<String>,
}

pub(super) fn label_change(text: &str) -> Result<LabelChange, String> {
    if let Ok(Pair { key, value }) = pair(text) {
        return Ok(LabelChange { key, value: Some(value) });
    }
    match text.strip_suffix('-') {
        Some(key) if !key.is_empty() => Ok(LabelChange { key: key.to_owned(), value: None }),
        _ => Err("write it as name=value to set, or as name- to remove".to_owned()),
    }
}
