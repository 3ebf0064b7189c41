//! Looks at watched repositories when their time comes, and at where packages came from.

use std::sync::Arc;
use std::time::Duration;

use super::chance;
use crate::fleet::Fleet;
use crate::http::Stopping;

/// The longest pause: a clock that was set must not make a watch sleep for hours.
const PAUSE_MAX: Duration = Duration::from_secs(60);
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Until the server stops. Stopped in the middle of a turn, the next start takes it again; what it added is there.
pub(super) async fn follow(fleet: Arc<Fleet>, stopping: Stopping) {
    let work = async {
        loop {
            for looked in [fleet.look_at_watches().await, fleet.look_at_origins().await] {
                if let Err(error) = looked {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "watched repositories could not be looked at; it is tried again"
                    );
                }
            }
            let next = fleet.next_look().await.ok().flatten().unwrap_or(PAUSE_MAX);
            let pause = next.clamp(PAUSE_MIN, PAUSE_MAX).mul_f64(1.0 + 0.1 * chance());
            tokio::select! {
                () = fleet.watch_news() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = stopping.wait() => {}
    }
}
