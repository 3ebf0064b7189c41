//! The arguments of `margrave schedule`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Schedule {
    /// List what is set for the fleet, for labels and for devices
    #[command(after_help = "Example:\n  margrave schedule list")]
    List,
    /// Show what is set for one of them
    #[command(
        after_help = "Examples:\n  margrave schedule show fleet\n  margrave schedule show device:press-1"
    )]
    Show {
        /// fleet, label:KEY=VALUE or device:NAME
        reach: String,
    },
    /// Set when devices talk to the server, and when they change what runs
    Set(Box<SetSchedule>),
    /// Take back what is set for the fleet, a label or a device
    #[command(after_help = "Example:\n  margrave schedule remove label:line=7")]
    Remove {
        /// fleet, label:KEY=VALUE or device:NAME
        reach: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave schedule set fleet --window=\"sun 02:00-05:00 Europe/Berlin\"
  margrave schedule set label:link=satellite --poll 15m --data-saver on
  margrave schedule set device:truck-7 \\
    --hours=\"mon-fri 06:00-20:00 Europe/Berlin\" \\
    --downtime 2026-12-24T12:00Z/2027-01-04T06:00Z
  margrave schedule set device:press-1 --window any

What is not named stays as it is. Of each part a device follows what is closest to it: its own, then its labels', then the \
fleet's. Downloads need no window; repairs and going back from a failed update do not wait for one either.")]
pub(crate) struct SetSchedule {
    /// For whom: fleet, label:KEY=VALUE or device:NAME
    pub(crate) reach: String,
    /// Time between two polls, such as 5m; without it devices hear of news at once
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) poll: Option<Duration>,
    /// Let polls be held open although --poll says how often
    #[arg(long, requires = "poll")]
    pub(crate) hold_open: bool,
    /// When devices may talk, such as "mon-fri 06:00-22:00 Europe/Berlin", or any; repeat for several
    #[arg(long, value_name = "WHEN")]
    pub(crate) hours: Vec<String>,
    /// When nobody can be reached: like --hours, FROM/TO for once, or none; repeat for several
    #[arg(long, value_name = "WHEN")]
    pub(crate) downtime: Vec<String>,
    /// When devices may change what runs: like --hours, or any; repeat for several
    #[arg(long, value_name = "WHEN")]
    pub(crate) window: Vec<String>,
    /// Whether reports wait for the next poll, and downloads for the window
    #[arg(long, value_name = "ON|OFF", value_parser = ["on", "off"])]
    pub(crate) data_saver: Option<String>,
    /// What devices do about containers that others stopped, changed or removed [usually: repair]
    #[arg(long, value_name = "WHAT", value_parser = ["repair", "report"])]
    pub(crate) drift: Option<String>,
    /// What devices do with images that they pulled and no deployment needs any more [usually: keep]
    #[arg(long, value_name = "WHAT", value_parser = ["keep", "remove"])]
    pub(crate) images: Option<String>,
    /// The longest that somebody at a device may hold changes back, such as 2h; none forbids it [usually: 24h]
    #[arg(long, value_name = "DURATION", value_parser = duration_or_none)]
    pub(crate) hold_max: Option<Duration>,
    /// Choose nothing here any more about this; repeat for several
    #[arg(long, value_enum, value_name = "PART")]
    pub(crate) unset: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    Poll,
    Hours,
    Downtime,
    Window,
    DataSaver,
    Drift,
    Images,
    HoldMax,
}

fn duration_or_none(text: &str) -> Result<Duration, String> {
    if text == "none" { Ok(Duration::ZERO) } else { duration(text) }
}
