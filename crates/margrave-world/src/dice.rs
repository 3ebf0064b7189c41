//! Everything that is left to chance, from one number.

use std::time::Duration;

/// Splitmix64: small, quick, the same everywhere. Nothing here has to be unpredictable.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed ^ 0x6d61_7267_7261_7665);
        // Neighbouring seeds must not begin alike.
        dice.number();
        dice
    }

    /// Dice of their own for something that must not change what others throw.
    pub(crate) fn fork(&mut self) -> Dice {
        Dice(self.number())
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0..1.
    pub(crate) fn roll(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn hit(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.roll() < chance
    }

    /// In `0..count`; `count` is not 0.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.roll() * count as f64) as usize % count
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        // Whole milliseconds, as the core counts them.
        let millis = (most - least).mul_f64(self.roll()).as_millis();
        least + Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        self.between(Duration::from_millis(least), Duration::from_millis(most))
    }

    pub(crate) fn seconds(&mut self, least: u64, most: u64) -> Duration {
        self.between(Duration::from_secs(least), Duration::from_secs(most))
    }
}
