//! The arguments of `margrave rollout`, and those that say in which steps a change goes through devices.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use margrave_core::rollout::{Amount, InvalidAmount, InvalidPercent, Percent};
use margrave_wire::rollout::{CanaryBody, StrategyBody};

use super::{Pair, duration, pair, unique};
use crate::exit::{Result, Trouble};

#[derive(Debug, Subcommand)]
pub(crate) enum Rollout {
    /// Show how far the newest revision of a deployment came, batch by batch
    #[command(after_help = "Example:\n  margrave rollout show andon-board")]
    Show {
        /// The deployment
        name: String,
    },
    /// Give it to nobody further until it is resumed
    #[command(after_help = "Example:\n  margrave rollout pause andon-board")]
    Pause {
        /// The deployment
        name: String,
    },
    /// Let it go on, also after it was halted; what failed until now is not counted any more
    #[command(after_help = "Example:\n  margrave rollout resume andon-board")]
    Resume {
        /// The deployment
        name: String,
    },
    /// End it here: nobody further gets it, and who has it keeps it
    #[command(after_help = "Example:\n  margrave rollout abort andon-board")]
    Abort {
        /// The deployment
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// In which steps a change goes through the devices. Without any of these it stays as it is, and is all at once at first.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Rollout")]
pub(crate) struct Steps {
    /// File with the whole strategy, as YAML or JSON; docs/rollouts.md describes it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["all_at_once", "batch", "canary", "canary_label", "canary_soak", "soak",
        "order", "max_unavailable_per_site", "threshold", "on_failure", "failures"])]
    pub(crate) strategy: Option<PathBuf>,
    /// Give it to all devices at once
    #[arg(long, conflicts_with_all = ["batch", "canary", "canary_label", "canary_soak", "soak", "order", "max_unavailable_per_site",
        "threshold", "on_failure", "failures"])]
    pub(crate) all_at_once: bool,
    /// Size of a batch, such as 5 or 10%; repeat for several, the last repeats by itself
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub(crate) batch: Vec<String>,
    /// Size of a first batch of its own, such as 2 or 1%
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub(crate) canary: Option<String>,
    /// Devices with this label are first
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair, requires = "canary")]
    pub(crate) canary_label: Vec<Pair>,
    /// How long the first batch has to be good, where that is not as long as for the others
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "canary")]
    pub(crate) canary_soak: Option<Duration>,
    /// How long each batch has to be good before the next begins, such as 30m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) soak: Option<Duration>,
    /// Label whose values put devices in order; repeat for several
    #[arg(long, value_name = "LABEL")]
    pub(crate) order: Vec<String>,
    /// Of the devices with one value of the label `site`, at most so many at a time, such as 1 or 10%
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub(crate) max_unavailable_per_site: Option<String>,
    /// The part of a batch that must have it, such as 95% [usually: 100%]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) threshold: Option<String>,
    /// What is done when too many fail [usually: halt]
    #[arg(long, value_name = "WHAT", value_parser = ["halt", "revert"])]
    pub(crate) on_failure: Option<String>,
    /// So many failed devices are too many, whatever the threshold says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) failures: Option<u32>,
}

fn amount(text: &str) -> std::result::Result<String, InvalidAmount> {
    text.parse::<Amount>().map(|_| text.to_owned())
}

fn percent(text: &str) -> std::result::Result<String, InvalidPercent> {
    text.parse::<Percent>().map(|_| text.to_owned())
}

impl Steps {
    /// What was said about it, on top of what is so already.
    pub(crate) fn over(&self, now: &StrategyBody) -> Result<Option<StrategyBody>> {
        if let Some(path) = &self.strategy {
            let text = std::fs::read(path)
                .map_err(|error| Trouble::broke(format!("cannot read {}: {error}", path.display())))?;
            let wrong = |error: &dyn std::fmt::Display| {
                Trouble::refused(format!("{} is no strategy: {error}", path.display()))
            };
            // What is JSON is YAML as well.
            let read = margrave_wire::yaml::read(&text).map_err(|error| wrong(&error))?;
            return serde_json::from_value(read.to_value()).map(Some).map_err(|error| wrong(&error));
        }
        if self.all_at_once {
            return Ok(Some(StrategyBody::default()));
        }
        let mut next = now.clone();
        if !self.batch.is_empty() {
            next.batches.clone_from(&self.batch);
        }
        if let Some(size) = &self.canary {
            let labels = unique(&self.canary_label).map_err(Trouble::broke)?;
            let soak_seconds = now.canary.as_ref().and_then(|canary| canary.soak_seconds);
            next.canary = Some(CanaryBody { size: size.clone(), labels, soak_seconds });
        }
        if let Some(soak) = self.soak {
            next.soak_seconds = Some(soak.as_secs());
            // Nor has the first batch a time of its own any more, unless one is said.
            if let Some(canary) = &mut next.canary
                && canary.soak_seconds != next.soak_seconds
            {
                canary.soak_seconds = None;
            }
        }
        if let (Some(soak), Some(canary)) = (self.canary_soak, &mut next.canary) {
            canary.soak_seconds = Some(soak.as_secs());
        }
        if !self.order.is_empty() {
            next.order.clone_from(&self.order);
        }
        for (said, kept) in [
            (&self.max_unavailable_per_site, &mut next.max_unavailable_per_site),
            (&self.threshold, &mut next.threshold),
            (&self.on_failure, &mut next.on_failure),
        ] {
            if said.is_some() {
                kept.clone_from(said);
            }
        }
        next.failures = self.failures.or(next.failures);
        Ok((next != *now).then_some(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(words: &str) -> Steps {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            steps: Steps,
        }
        Only::try_parse_from(format!("x {words}").split_whitespace()).unwrap().steps
    }

    #[test]
    fn what_is_said_goes_over_what_is_so() {
        let first = steps("--batch 10% --canary 2 --soak 30m --max-unavailable-per-site 1 --threshold 95% --on-failure revert")
            .over(&StrategyBody::default())
            .unwrap()
            .unwrap();
        assert_eq!(
            first.words().join("; "),
            "first 2; batches of 10%; each watched for 30 min; at most 1 of a site unavailable; \
             95% must have it; reverts when it fails"
        );
        assert_eq!(steps("").over(&first).unwrap(), None, "nothing said changes nothing");
        let longer = steps("--canary 1 --canary-soak 2h --soak 1m").over(&first).unwrap().unwrap();
        assert_eq!((longer.canary.unwrap().soak_seconds, longer.soak_seconds), (Some(7200), Some(60)));
        let second = steps("--batch 5 --batch 50%").over(&first).unwrap().unwrap();
        assert_eq!((second.batches.len(), &second.canary), (2, &first.canary));
        assert_eq!(steps("--all-at-once").over(&first).unwrap(), Some(StrategyBody::default()));
    }

    #[test]
    fn a_file_says_it_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steps.json");
        std::fs::write(&path, r#"{ "batches": ["1"], "soakSeconds": 60 }"#).unwrap();
        let read = |path: &std::path::Path| {
            steps(&format!("--strategy {}", path.display())).over(&StrategyBody::default())
        };
        assert_eq!(read(&path).unwrap().unwrap().soak_seconds, Some(60));
        std::fs::write(&path, "# Slowly.\nbatches: [\"10%\"]\nsoakSeconds: 90\n").unwrap();
        assert_eq!(read(&path).unwrap().unwrap().soak_seconds, Some(90));
        std::fs::write(&path, r#"{ "batch": 1 }"#).unwrap();
        assert!(read(&path).unwrap_err().message().contains("is no strategy: unknown field `batch`"));
        assert!(read(&folder.path().join("none")).is_err());
    }
}
