//! Work for all cores, off the threads that answer requests; and work that goes on when nobody waits for it any more.

use std::sync::OnceLock;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

/// What `each` makes of every piece of `work`, in its order. Less than `part_min` of them are not worth a thread.
pub(crate) async fn spread<T, U>(
    work: Vec<T>,
    part_min: usize,
    each: impl Fn(T) -> U + Send + Sync + 'static,
) -> Vec<U>
where
    T: Send + 'static,
    U: Send + 'static,
{
    aside(move || {
        let part = work.len().div_ceil(count()).max(part_min);
        let each = &each;
        std::thread::scope(|scope| {
            let mut rest = work.into_iter();
            let mut parts = Vec::new();
            // The last part is this thread's own.
            while rest.len() > part {
                let some: Vec<T> = rest.by_ref().take(part).collect();
                parts.push(scope.spawn(move || some.into_iter().map(each).collect::<Vec<U>>()));
            }
            let own: Vec<U> = rest.map(each).collect();
            let mut done: Vec<U> = Vec::new();
            for part in parts {
                done.extend(part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            done.extend(own);
            done
        })
    })
    .await
}

/// How many there are.
pub(crate) fn count() -> usize {
    // Asking reads files of the system's.
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// What `work` comes to, off the threads that answer requests.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        // Whoever has one thread waits either way.
        return work();
    }
    finished(tokio::task::spawn_blocking(work)).await
}

/// What came of a task that nobody ends.
pub(crate) async fn finished<T>(task: JoinHandle<T>) -> T {
    match task.await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that is being taken down cancels, and nobody is asked for anything any more.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everything_is_done_once_and_in_order() {
        for (count, part_min) in [(0, 1), (1, 1), (64, 64), (65, 64), (7, 1), (1000, 64), (10_007, 1)] {
            let done = spread((0..count).collect(), part_min, |at| at * 2).await;
            assert_eq!(done, (0..count).map(|at| at * 2).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    #[should_panic(expected = "on purpose")]
    async fn a_panic_is_not_swallowed() {
        spread((0..1000).collect(), 1, |at| assert!(at != 7, "on purpose")).await;
    }
}
