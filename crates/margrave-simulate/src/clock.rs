//! What time it is, and the dice. Dice of a device are its own, so that thousands do not queue for the system's.

use std::time::{SystemTime, UNIX_EPOCH};

use margrave_core::moment::Moment;

pub(crate) fn now() -> Moment {
    // Before 1970 is no time at all; zero is as good as any other wrong answer.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Numbers for jitter and chance, not for secrets (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    /// Dice that nobody can foresee.
    pub(crate) fn thrown() -> Dice {
        let mut bytes = [0u8; 8];
        match aws_lc_rs::rand::fill(&mut bytes) {
            Ok(()) => Dice(u64::from_le_bytes(bytes)),
            // Then the moment must do; nothing but jitter depends on it.
            Err(_) => Dice(now().0),
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in 0..1.
    pub(crate) fn roll(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolls_are_spread_over_zero_to_one() {
        let mut dice = Dice(7);
        let rolls: Vec<f64> = (0..10_000).map(|_| dice.roll()).collect();
        assert!(rolls.iter().all(|roll| (0.0..1.0).contains(roll)));
        let mean = rolls.iter().sum::<f64>() / rolls.len() as f64;
        assert!((0.48..0.52).contains(&mean), "{mean}");
    }
}
