//! How long something took, counted in a few steps: cheap to add to from anywhere, cheap to look at.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// From a fast disk's commit to a publication for a whole fleet.
const BOUNDS: [Duration; 12] = [
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(10),
    Duration::from_secs(60),
];

#[derive(Debug, Default)]
pub struct Histogram {
    /// Of each step alone; the last is for what took longer than all of them.
    counts: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// What was counted until one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// How many took at most so long, for each step.
    pub within: Vec<(Duration, u64)>,
    pub count: u64,
    /// All together.
    pub sum: Duration,
}

impl Histogram {
    pub fn observe(&self, took: Duration) {
        let step = BOUNDS.iter().position(|bound| took <= *bound).unwrap_or(BOUNDS.len());
        self.counts[step].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub fn distribution(&self) -> Distribution {
        let mut count = 0;
        let mut up_to = |index: usize| {
            count += self.counts[index].load(Ordering::Relaxed);
            count
        };
        let within = BOUNDS.iter().enumerate().map(|(index, bound)| (*bound, up_to(index))).collect();
        let count = up_to(BOUNDS.len());
        Distribution { within, count, sum: Duration::from_micros(self.micros.load(Ordering::Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_in_every_step_that_it_is_within() {
        let histogram = Histogram::default();
        for millis in [1, 2, 30, 100_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let Distribution { within, count, sum } = histogram.distribution();
        let counts: Vec<u64> = within.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!((count, sum), (4, Duration::from_millis(100_033)));
        assert!(within.is_sorted());
    }
}
