//! The one place that asks what time it is, and the one that rolls dice.

use std::time::{SystemTime, UNIX_EPOCH};

use margrave_core::moment::Moment;

pub fn now() -> Moment {
    // Before 1970 is no time at all; zero is as good as any other wrong answer.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
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
