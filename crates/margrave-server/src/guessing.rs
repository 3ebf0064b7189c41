//! Slows down whoever tries tokens that are not ours.
//!
//! They cannot be guessed anyway, having 256 random bits; this keeps the trying from costing us, and makes it seen. A
//! right token is never asked about here: whatever a flood of wrong ones does, its holder is let in at once, also from
//! the very address that the flood comes from.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the answer to the first wrong token takes; each further one takes twice as long.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// After so long, one wrong token of a source is forgotten.
const FORGIVEN_EVERY: Duration = Duration::from_secs(30);
/// Beyond, it does not get slower, and need not be remembered.
const TRIES_MAX: u64 = 10;
/// Answers to one source that are held back at the same time; more are turned away at once.
const WAITING_PER_SOURCE_MAX: usize = 4;
/// The same for all sources together.
const WAITING_MAX: usize = 64;
/// Sources that are told apart; more share what is left.
const SOURCES_MAX: usize = 4096;

/// Where requests come from, as far as it can be told: one address of IPv4, or a network of IPv6, because there
/// whoever has one address has as many as they like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Of(IpAddr),
    /// All whom there is no room to tell apart.
    Others,
}

impl Source {
    pub(crate) fn of(address: IpAddr) -> Source {
        Source::Of(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            address => address,
        })
    }
}

/// Wrong tokens wait; see [`Guessing::wrong`].
pub(crate) struct Guessing {
    born: Instant,
    table: Mutex<Table>,
}

/// So many wrong tokens are being tried that this one is not even slowed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Default for Guessing {
    fn default() -> Self {
        Guessing { born: Instant::now(), table: Mutex::default() }
    }
}

impl Guessing {
    /// Returns when a wrong token may be told so.
    pub(crate) async fn wrong(&self, source: Source) -> Result<(), TooMany> {
        let (source, wait) = self.table(|table, now| table.begin(source, now)).ok_or(TooMany)?;
        let _turn = Turn { guessing: self, source };
        tokio::time::sleep(wait).await;
        Ok(())
    }

    fn table<T>(&self, work: impl FnOnce(&mut Table, Duration) -> T) -> T {
        work(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner), self.born.elapsed())
    }
}

/// Given back when the answer goes out, or when its reader did not wait for it.
struct Turn<'a> {
    guessing: &'a Guessing,
    source: Source,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.guessing.table(|table, _| table.end(self.source));
    }
}

#[derive(Default)]
struct Table {
    sources: HashMap<Source, Tries>,
    waiting: usize,
}

#[derive(Default)]
struct Tries {
    /// When the last of its wrong tokens will be forgotten.
    forgiven_at: Duration,
    waiting: usize,
}

impl Tries {
    /// Wrong tokens that are remembered.
    fn count(&self, now: Duration) -> u64 {
        let left = self.forgiven_at.saturating_sub(now).as_millis();
        u64::try_from(left.div_ceil(FORGIVEN_EVERY.as_millis())).unwrap_or(u64::MAX)
    }
}

impl Table {
    /// Takes in one wrong token: for how long its answer is held back, and on whose account. `None` when too many are.
    fn begin(&mut self, source: Source, now: Duration) -> Option<(Source, Duration)> {
        if !self.sources.contains_key(&source) && self.sources.len() >= SOURCES_MAX {
            self.sources.retain(|_, tries| tries.waiting > 0 || tries.count(now) > 0);
        }
        let full = self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&source);
        let source = if full { Source::Others } else { source };
        let tries = self.sources.entry(source).or_default();
        let count = tries.count(now);
        if count < TRIES_MAX {
            tries.forgiven_at = tries.forgiven_at.max(now) + FORGIVEN_EVERY;
        }
        if tries.waiting >= WAITING_PER_SOURCE_MAX || self.waiting >= WAITING_MAX {
            return None;
        }
        tries.waiting += 1;
        self.waiting += 1;
        let doubled = u32::try_from(count).unwrap_or(u32::MAX).min(16);
        Some((source, (FIRST * 2u32.pow(doubled)).min(LONGEST)))
    }

    fn end(&mut self, source: Source) {
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(tries) = self.sources.get_mut(&source) {
            tries.waiting = tries.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    fn source(number: u32) -> Source {
        Source::of(Ipv4Addr::from_bits(number).into())
    }

    #[test]
    fn every_wrong_token_is_slower_than_the_one_before_and_time_forgives() {
        let mut table = Table::default();
        let mut wait = |now: u64| {
            let (source, wait) = table.begin(source(1), Duration::from_secs(now)).unwrap();
            table.end(source);
            wait.as_millis()
        };
        let waits: Vec<_> = (0..8).map(|_| wait(0)).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        // Eight are remembered; half of them after two minutes, and none after a quarter of an hour of silence.
        assert_eq!(wait(120), 1600);
        assert_eq!(wait(1000), 100);
        // However many there were, what is remembered ends.
        for _ in 0..10_000 {
            wait(1000);
        }
        assert_eq!(wait(1000 + 30 * (TRIES_MAX + 1)), 100);
    }

    #[test]
    fn one_source_slows_no_other_and_all_together_have_a_bound() {
        let mut table = Table::default();
        let now = Duration::ZERO;
        for _ in 0..WAITING_PER_SOURCE_MAX {
            assert!(table.begin(source(1), now).is_some());
        }
        assert_eq!(table.begin(source(1), now), None);
        assert_eq!(table.begin(source(2), now), Some((source(2), FIRST)));
        table.end(source(1));
        assert!(table.begin(source(1), now).is_some());
        let taken = (3..10_000).filter(|number| table.begin(source(*number), now).is_some()).count();
        assert_eq!(taken, WAITING_MAX - WAITING_PER_SOURCE_MAX - 1);
        assert_eq!(table.begin(source(20_000), now), None);
        // Nobody may make us remember more than that.
        assert!(table.sources.len() <= SOURCES_MAX + 1, "{}", table.sources.len());
    }

    #[test]
    fn those_who_cannot_be_told_apart_share_what_is_left_until_there_is_room() {
        let mut table = Table::default();
        for number in 0..SOURCES_MAX as u32 {
            table.begin(source(number), Duration::ZERO);
            table.end(source(number));
        }
        let (shared, _) = table.begin(source(1 << 20), Duration::from_secs(1)).unwrap();
        assert_eq!(shared, Source::Others);
        table.end(shared);
        let (own, wait) = table.begin(source(1 << 20), Duration::from_secs(60)).unwrap();
        assert_eq!((own, wait), (source(1 << 20), FIRST));
    }

    #[test]
    fn a_network_is_one_source_and_an_address_has_one_name() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::1"), of("2001:db8:1:2:ffff::2"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[tokio::test]
    async fn whoever_gives_up_makes_room() {
        let guessing = Arc::new(Guessing::default());
        // So slow that none of them ends by itself here.
        for _ in 0..TRIES_MAX {
            guessing.table(|table, now| {
                if let Some((source, _)) = table.begin(source(1), now) {
                    table.end(source);
                }
            });
        }
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..WAITING_PER_SOURCE_MAX {
            let guessing = Arc::clone(&guessing);
            waiting.spawn(async move { guessing.wrong(source(1)).await });
        }
        let all_wait = async {
            while guessing.table(|table, _| table.waiting) < WAITING_PER_SOURCE_MAX {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all_wait).await.unwrap();
        assert_eq!(guessing.wrong(source(1)).await, Err(TooMany));
        assert_eq!(guessing.wrong(source(2)).await, Ok(()));
        waiting.shutdown().await;
        assert_eq!(guessing.table(|table, _| table.waiting), 0);
    }
}
