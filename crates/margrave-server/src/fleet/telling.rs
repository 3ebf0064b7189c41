//! News first: while many clients are being told of new manifests, what else there is to do waits for a moment.
//!
//! Whoever is told comes back at once, with a fetch, another connection and reports, each of which costs many times
//! what telling the next one costs. Without an order the first to hear would keep the last waiting for seconds. This
//! owns the count of those who are still to be told, and a bound on how long others wait for them; it deliberately
//! does not own who they are, because nothing but pace depends on it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Nobody waits longer than this, whatever became of those who were to be told.
const WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Telling {
    /// Polls that were woken and have not taken their answer yet.
    left: AtomicUsize,
    until: Mutex<Option<Instant>>,
    over: Notify,
}

impl Telling {
    /// So many held polls are about to be woken.
    pub(super) fn begin(&self, polls: usize) {
        if polls > 0 {
            *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + WAIT_MAX);
            self.left.fetch_add(polls, Ordering::Relaxed);
        }
    }

    /// One of them has its answer.
    pub(super) fn told(&self) {
        let one_less = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) == Ok(1) {
            self.over.notify_waiters();
        }
    }

    /// Ends when everybody has been told, or has had the time to be.
    pub(super) async fn over(&self) {
        loop {
            let over = self.over.notified();
            if self.left.load(Ordering::Relaxed) == 0 {
                return;
            }
            let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(until) = until.filter(|until| *until > Instant::now()) else {
                // Some went away instead of taking their answer; they are not waited for again.
                self.left.store(0, Ordering::Relaxed);
                self.over.notify_waiters();
                return;
            };
            drop(timeout_at(until, over).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Future as _, poll_fn};
    use std::task::Poll;

    #[tokio::test]
    async fn others_wait_until_the_last_has_been_told() {
        let telling = Telling::default();
        telling.over().await;
        telling.begin(2);
        let mut over = Box::pin(telling.over());
        let mut is_over =
            async || poll_fn(|context| Poll::Ready(over.as_mut().poll(context).is_ready())).await;
        assert!(!is_over().await);
        telling.told();
        assert!(!is_over().await);
        telling.told();
        assert!(is_over().await);
        // One more than were counted takes nobody else's place.
        telling.told();
        assert_eq!(telling.left.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn those_who_went_away_are_waited_for_once_and_not_for_long() {
        let telling = Telling::default();
        telling.begin(3);
        telling.told();
        tokio::time::timeout(20 * WAIT_MAX, telling.over()).await.expect("the wait is bounded");
        let mut again = Box::pin(telling.over());
        assert!(poll_fn(|context| Poll::Ready(again.as_mut().poll(context).is_ready())).await);
    }
}
