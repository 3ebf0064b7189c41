//! The one place that asks what time it is, and the one that rolls dice.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use margrave_core::moment::Moment;

thread_local! {
    /// By how much this thread's clock is ahead, in milliseconds.
    static AHEAD: Cell<i64> = const { Cell::new(0) };
}

pub fn now() -> Moment {
    // Before 1970 is no time at all; zero is as good as any other wrong answer.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let right = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Moment(right.saturating_add_signed(AHEAD.get()))
}

/// Makes the clock of this thread wrong, for a device that has the thread for itself: a demo shows what comes of it.
pub fn skew(ahead_millis: i64) {
    AHEAD.set(ahead_millis);
}

/// A number in 0..1.
pub fn roll() -> f64 {
    let mut bytes = [0u8; 8];
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        // Without randomness jitter is lost, and nothing else.
        return 0.5;
    }
    (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_clock_is_one_thread_s_own() {
        let hour = 3_600_000;
        let before = now();
        std::thread::spawn(move || {
            skew(hour as i64);
            assert!(now().0 >= before.0 + hour);
            skew(-(hour as i64));
            assert!(now().0 < before.0);
        })
        .join()
        .unwrap();
        assert!(now().0 < before.0 + hour);
    }
}
