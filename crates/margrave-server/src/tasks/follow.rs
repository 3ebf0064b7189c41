//! Looks at the remote that says what is wanted.

use std::sync::Arc;
use std::time::Duration;

use margrave_core::chain::sentence;
use tokio::time::Instant;

use super::chance;
use crate::fleet::Fleet;
use crate::http::Stopping;

/// However often somebody calls, a remote is not asked more often.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// Between two looks at a remote that is away.
const PAUSE_MAX: Duration = Duration::from_secs(15 * 60);

pub(super) async fn follow(fleet: Arc<Fleet>, every: Duration, stopping: Stopping) {
    let mut failures = 0u32;
    let mut pause = Duration::ZERO;
    let mut last: Option<Instant> = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = nudged(&fleet, last) => {}
            () = stopping.wait() => return,
        }
        last = Some(Instant::now());
        match fleet.follow_once().await {
            Ok(()) => failures = 0,
            Err(error) => {
                failures = failures.saturating_add(1);
                tracing::warn!(error = sentence(&error), failures, "the remote could not be followed");
            }
        }
        // Never all servers of a company at once.
        pause = backed_off(every, failures).mul_f64(0.8 + 0.4 * chance());
    }
}

async fn nudged(fleet: &Fleet, last: Option<Instant>) {
    fleet.follow_nudged().await;
    if let Some(last) = last {
        tokio::time::sleep_until(last + PAUSE_MIN).await;
    }
}

fn backed_off(every: Duration, failures: u32) -> Duration {
    let longer = every.saturating_mul(2u32.saturating_pow(failures.min(16)));
    if failures == 0 { every } else { longer.min(PAUSE_MAX.max(every)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_that_is_away_is_asked_less_and_less_often() {
        let every = Duration::from_secs(60);
        assert_eq!(backed_off(every, 0), every);
        assert_eq!(backed_off(every, 1), every * 2);
        assert_eq!(backed_off(every, 40), PAUSE_MAX);
        assert_eq!(backed_off(PAUSE_MAX * 4, 40), PAUSE_MAX * 4);
    }
}
