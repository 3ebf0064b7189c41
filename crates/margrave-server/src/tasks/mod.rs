//! What happens by itself: idempotent functions on timers.
//!
//! Each may run at any time, twice, or not at all for a while; none is needed for a correct answer. They stop
//! between two runs when the server does.

mod follow;
mod git;
mod rollout;
mod watches;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand;
use margrave_registry::Registry;
use tokio::task::JoinSet;

use crate::fleet::{Clock, Fleet};
use crate::http::Stopping;
use crate::identity::Identity;

/// Contacts that a crash may lose; they say nothing that the next poll does not say again.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
/// How often expiry is looked at, when certificates live long.
const RENEW_EVERY: Duration = Duration::from_secs(60);
const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);
/// How long nobody must have changed anything before the repository is packed.
const PACK_EVERY: Duration = Duration::from_secs(10 * 60);
/// What was pushed within a day may belong to a push that is still going on, over a bad network.
const SWEEP_GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// Starts them all.
pub(crate) fn start(
    fleet: &Arc<Fleet>,
    registry: &Arc<Registry>,
    identity: &Arc<Identity>,
    clock: &Clock,
    stopping: &Stopping,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();

    let of = Arc::clone(fleet);
    tasks.spawn(repeat("flush contacts", FLUSH_EVERY, stopping.clone(), async move || hear(&of).await));

    let (keys, now) = (Arc::clone(identity), clock.clone());
    let renew_every = RENEW_EVERY.min(identity.svid_lifetime / 10);
    tasks.spawn(repeat("renew certificates", renew_every, stopping.clone(), async move || {
        keys.renew(now.now())
    }));

    let of = Arc::clone(fleet);
    tasks.spawn(repeat("sweep the store", SWEEP_EVERY, stopping.clone(), async move || of.sweep().await));

    let of = Arc::clone(registry);
    tasks.spawn(repeat("sweep the registry", SWEEP_EVERY, stopping.clone(), async move || {
        of.sweep(SWEEP_GRACE).await.map(drop)
    }));

    let of = Arc::clone(fleet);
    tasks
        .spawn(repeat("pack the intent", PACK_EVERY, stopping.clone(), async move || of.tidy_intent().await));

    let (of, stop) = (Arc::clone(fleet), stopping.clone());
    tasks.spawn(async move {
        let read = async {
            if let Err(error) = of.read_claims_again().await {
                tracing::warn!(error = &error as &dyn Error, "what packages claim could not be read again");
            }
            // Done once; a task that ends stops the server.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = read => {}
            () = stop.wait() => {}
        }
    });
    tasks.spawn(git::follow(Arc::clone(fleet), stopping.clone()));
    tasks.spawn(watches::follow(Arc::clone(fleet), stopping.clone()));
    tasks.spawn(rollout::follow(Arc::clone(fleet), stopping.clone()));
    tasks
}

/// Writes down who was heard of, and tells of who was not.
pub(crate) async fn hear(fleet: &Fleet) -> Result<(), crate::fleet::Error> {
    fleet.flush_contacts().await?;
    // Who falls silent is told whether anything can be written into the repository or not.
    let noted = fleet.note_joins().await;
    fleet.listen().await?;
    noted
}

/// Looks at a remote about so often.
pub(crate) fn follow(tasks: &mut JoinSet<()>, fleet: &Arc<Fleet>, every: Duration, stopping: &Stopping) {
    tasks.spawn(follow::follow(Arc::clone(fleet), every, stopping.clone()));
}

/// Does `work` about every `period` until the server stops. A failure is logged and tried again at the next turn.
async fn repeat<E: Error + 'static>(
    name: &'static str,
    period: Duration,
    stopping: Stopping,
    mut work: impl AsyncFnMut() -> Result<(), E>,
) {
    loop {
        // Never all at once, and never in step with a fleet that was started by the same script.
        let pause = period.mul_f64(0.8 + 0.4 * chance());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stopping.wait() => return,
        }
        if let Err(error) = work().await {
            tracing::warn!(
                task = name,
                error = &error as &dyn Error,
                "a background task failed and will run again"
            );
        }
    }
}

/// A number from 0 to 1, for spreading things in time. Nothing secret depends on it.
pub(crate) fn chance() -> f64 {
    let mut bytes = [0u8; 4];
    match rand::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn a_task_goes_on_after_a_failure_and_ends_when_the_server_stops() {
        let (stop, stopping) = Stopping::new();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let stop_at_third = move |run| {
            if run == 2 {
                stop.send(true).unwrap()
            }
        };
        let task = repeat("test", Duration::from_millis(1), stopping, async move || {
            let run = count.fetch_add(1, Ordering::Relaxed);
            stop_at_third(run);
            if run == 0 { Err(std::io::Error::other("on purpose")) } else { Ok(()) }
        });
        tokio::time::timeout(Duration::from_secs(20), task).await.unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn chance_is_between_nothing_and_certainty() {
        assert!((0..1000).map(|_| chance()).all(|chance| (0.0..=1.0).contains(&chance)));
    }
}
