//! Keeps Git repositories up with what is published.

use std::sync::Arc;
use std::time::Duration;

use super::chance;
use crate::fleet::Fleet;
use crate::http::Stopping;

/// A publication is committed at once; this is for what did not work then.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Commits at start, after every publication, and now and then, until the server stops. Stopped in the middle, it
/// goes on with the next start.
pub(super) async fn follow(fleet: Arc<Fleet>, stopping: Stopping) {
    let work = async {
        if let Err(error) = fleet.sweep_git().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "closed Git repositories were not removed"
            );
        }
        loop {
            fleet.commit_manifests().await;
            tokio::select! {
                () = fleet.git_published() => {}
                () = tokio::time::sleep(LOOK_EVERY.mul_f64(0.8 + 0.4 * chance())) => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = stopping.wait() => {}
    }
}
