//! Takes rollouts forward: on a timer, and soon after a device reported.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chance;
use crate::fleet::Fleet;
use crate::http::Stopping;

/// Soaks end and devices come back without a report.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Reports come in crowds; one look is for all of a moment's.
const PAUSE: Duration = Duration::from_millis(500);
/// Of the time, looking takes at most one part in so many.
const SHARE: u32 = 5;

/// Looks until the server stops. Stopped in the middle, it goes on with the next start.
pub(super) async fn follow(fleet: Arc<Fleet>, stopping: Stopping) {
    let work = async {
        loop {
            let begun = Instant::now();
            if let Err(error) = fleet.advance_rollouts().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a rollout could not be taken forward; will try again"
                );
            }
            tokio::time::sleep(PAUSE.max(begun.elapsed() * SHARE)).await;
            tokio::select! {
                () = fleet.rollouts_nudged() => {}
                () = tokio::time::sleep(LOOK_EVERY.mul_f64(0.8 + 0.4 * chance())) => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = stopping.wait() => {}
    }
}
