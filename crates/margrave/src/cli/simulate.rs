//! The arguments of `margrave simulate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Connection, Pair, duration, pair};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  margrave simulate --devices 500
  margrave simulate --devices 9000 --poll 60s --for 5m --json
  margrave simulate --remove

The devices are simulated and say so to the server; only their containers are not there. They are labelled \
simulation=NAME, so that `margrave deploy PACKAGE --label simulation=NAME` reaches all of them and nobody else. \
Do not run this against a server that real devices depend on, unless you mean to.")]
pub(crate) struct Simulate {
    /// How many devices; those that are missing join first
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=25_000))]
    pub(crate) devices: u32,
    /// Let the server hold polls open until there is news; this is what happens without --poll too
    #[arg(long, conflicts_with = "poll")]
    pub(crate) wait: bool,
    /// Poll at this interval instead
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) poll: Option<Duration>,
    /// End after this time, instead of on Ctrl-C
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub(crate) lasting: Option<Duration>,
    /// Reports a second that all devices together send of their own accord, once something is installed
    #[arg(long, value_name = "RATE", default_value_t = 0.0, value_parser = rate)]
    pub(crate) report_rate: f64,
    /// How long installing a component takes
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    pub(crate) install_time: Duration,
    /// How many installations in a hundred fail
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    pub(crate) failures: f64,
    /// Spread the first requests over this time
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) ramp: Duration,
    /// Further label for devices that join; repeat for several
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) labels: Vec<Pair>,
    /// Keep the devices' identities here, instead of in a directory of this user for this server
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Retire the devices that were made here, and forget their identities
    #[arg(long, conflicts_with_all = ["devices", "wait", "poll", "lasting", "report_rate", "labels"])]
    pub(crate) remove: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

fn number(text: &str, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=most).contains(&number) => Ok(number),
        _ => Err(format!("write a number from 0 to {most}")),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 1_000_000.0)
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, 100.0)
}
