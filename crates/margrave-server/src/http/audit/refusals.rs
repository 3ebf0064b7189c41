//! How many refusals go into the audit log one by one. It is never cut, so whoever is refused must not be able to fill
//! the disk with it; what is not written down one by one is counted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use margrave_core::moment::Moment;

use crate::guessing::Source;

const WINDOW_MS: u64 = 60_000;
/// Refusals of one source in a minute: more than a person runs into, and enough to see what somebody tries.
const PER_SOURCE_MAX: u32 = 20;
/// Of all sources together: at 500 bytes each, some 70 MB in a day of nothing but attack.
const ALL_MAX: u32 = 100;
/// Sources that are told apart; more share what is left.
const SOURCES_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Refusals(Mutex<Window>);

/// One minute.
#[derive(Default)]
struct Window {
    began: Moment,
    recorded: u32,
    sources: HashMap<Source, Count>,
}

#[derive(Default, Clone, Copy)]
struct Count {
    recorded: u32,
    left_out: u64,
}

/// Refusals that were only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) source: Source,
    pub(super) number: u64,
}

impl Refusals {
    /// Whether one more refusal is written down, and what has to be told of the minute before.
    pub(super) fn take(&self, source: Source, now: Moment) -> (bool, Vec<LeftOut>) {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = window.turn(now);
        let full = window.sources.len() >= SOURCES_MAX && !window.sources.contains_key(&source);
        let source = if full { Source::Others } else { source };
        let all = window.recorded;
        let count = window.sources.entry(source).or_default();
        let taken = all < ALL_MAX && count.recorded < PER_SOURCE_MAX;
        if taken {
            count.recorded += 1;
            window.recorded += 1;
        } else {
            count.left_out += 1;
        }
        (taken, due)
    }

    /// What has to be told of a minute that is over; of the present one as well when this is the end.
    pub(super) fn due(&self, now: Moment, end: bool) -> Vec<LeftOut> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if end { window.close(now) } else { window.turn(now) }
    }
}

impl Window {
    fn turn(&mut self, now: Moment) -> Vec<LeftOut> {
        // A clock that jumps back ends the minute, too: otherwise nothing would be written down until it catches up.
        let within = now >= self.began && now.0 - self.began.0 < WINDOW_MS;
        if within { Vec::new() } else { self.close(now) }
    }

    fn close(&mut self, now: Moment) -> Vec<LeftOut> {
        let sources = std::mem::take(self).sources;
        self.began = now;
        let left_out = sources.into_iter().filter(|(_, count)| count.left_out > 0);
        let mut left_out: Vec<_> =
            left_out.map(|(source, count)| LeftOut { source, number: count.left_out }).collect();
        // A line for each of the worst; the rest together, so that this is bounded as well.
        left_out.sort_unstable_by_key(|left| std::cmp::Reverse(left.number));
        if left_out.len() > PER_SOURCE_MAX as usize {
            let rest = left_out.split_off(PER_SOURCE_MAX as usize);
            let number = rest.iter().map(|left| left.number).sum();
            left_out.push(LeftOut { source: Source::Others, number });
        }
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn source(number: u32) -> Source {
        Source::of(Ipv4Addr::from_bits(number).into())
    }

    const NOW: Moment = Moment(1_800_000_000_000);

    #[test]
    fn so_many_of_a_source_are_written_down_and_the_rest_is_counted() {
        let refusals = Refusals::default();
        let taken = (0..1000).filter(|_| refusals.take(source(1), NOW).0).count();
        assert_eq!(taken, PER_SOURCE_MAX as usize);
        assert!(refusals.take(source(2), NOW).0);
        let later = Moment(NOW.0 + WINDOW_MS);
        let left = LeftOut { source: source(1), number: 1000 - u64::from(PER_SOURCE_MAX) };
        assert_eq!(refusals.take(source(1), later), (true, vec![left]));
        assert_eq!(refusals.due(Moment(later.0 + WINDOW_MS), false), []);
    }

    #[test]
    fn all_sources_together_have_a_bound_in_entries_and_in_memory() {
        let refusals = Refusals::default();
        let taken = (0..100_000).filter(|number| refusals.take(source(*number), NOW).0).count();
        assert_eq!(taken, ALL_MAX as usize);
        assert!(refusals.0.lock().unwrap().sources.len() <= SOURCES_MAX + 1);
        let due = refusals.due(NOW, true);
        assert!(due.len() <= PER_SOURCE_MAX as usize + 1, "{}", due.len());
        assert_eq!(due.iter().map(|left| left.number).sum::<u64>(), 100_000 - u64::from(ALL_MAX));
    }

    #[test]
    fn a_clock_that_jumps_back_stops_nothing() {
        let refusals = Refusals::default();
        while refusals.take(source(1), NOW).0 {}
        assert!(refusals.take(source(1), Moment(NOW.0 - 1)).0);
    }
}
