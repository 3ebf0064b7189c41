//! The arguments that say what devices do about an update that fails.

use std::time::Duration;

use clap::Args;
use margrave_wire::operator::Rollback;

use super::duration;

/// What devices do about an update that fails.
#[derive(Debug, Clone, Args)]
pub(crate) struct Failing {
    /// Whether devices go back to the last healthy version when an update fails [usually: on-failed-update]
    #[arg(long, value_name = "WHEN", value_parser = ["never", "on-failed-update"])]
    pub(crate) rollback: Option<String>,
    /// How often devices try an update before they go back [usually: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) attempts: Option<u32>,
    /// How long the application may look unhealthy before that counts as failed, such as 30s [usually: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) health_grace: Option<Duration>,
}

impl Failing {
    /// What was said about it, on top of what is so already.
    pub(crate) fn over(&self, now: &Rollback) -> Option<Rollback> {
        let Failing { rollback, attempts, health_grace } = self;
        let said = rollback.is_some() || attempts.is_some() || health_grace.is_some();
        said.then(|| Rollback {
            when: rollback.clone().or_else(|| now.when.clone()),
            attempts: attempts.or(now.attempts),
            health_grace_seconds: health_grace.map(|grace| grace.as_secs()).or(now.health_grace_seconds),
        })
    }
}
