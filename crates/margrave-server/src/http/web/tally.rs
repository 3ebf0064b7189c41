//! Parts of a whole: a bar that they fill exactly, and the same in words.

use std::collections::BTreeMap;

use askama::Template;
use askama::filters::HtmlSafe;
use margrave_core::lifecycle::{STATES, State};
use margrave_wire::operator::AssignmentCounts;
use margrave_wire::rollout::RolloutCounts;

use super::badge::Badge;
use super::tiers::grouped;

/// The conditions of devices, the worst first.
pub(super) const CONDITIONS: [&str; 4] = ["failed", "silent", "pending", "converged"];

#[derive(Template)]
#[template(path = "tally.html")]
pub(super) struct Tally {
    total: u64,
    shares: Vec<Share>,
}

struct Share {
    badge: Badge,
    /// How many, in words.
    count: String,
    /// Of a bar that is 1000 wide.
    from: u64,
    width: u64,
}

impl HtmlSafe for Tally {}

impl Tally {
    fn new(parts: impl IntoIterator<Item = (Badge, u64)>) -> Self {
        let parts: Vec<(Badge, u64)> = parts.into_iter().filter(|(_, count)| *count > 0).collect();
        let total = parts.iter().map(|(_, count)| count).sum();
        let mut done = 0;
        let mut shares = Vec::with_capacity(parts.len());
        for (badge, count) in parts {
            let from = done * 1000 / total;
            done += count;
            shares.push(Share { badge, count: grouped(count), from, width: done * 1000 / total - from });
        }
        Tally { total, shares }
    }

    /// How many assignments are in which state.
    pub(super) fn of(counts: &AssignmentCounts) -> Self {
        let states = STATES.into_iter().flat_map(|state| {
            let count = counts.states.get(state.as_str()).copied().unwrap_or(0);
            let back = if state == State::Installed { counts.went_back.min(count) } else { 0 };
            [(Badge::state(state.as_str()), count - back), (Badge::went_back(), back)]
        });
        let held = [
            (Badge::step("waiting"), counts.waiting),
            (Badge::left_behind(), counts.left_behind),
            (Badge::step("not yet"), counts.not_yet),
            (Badge::step("never"), counts.never),
        ];
        Tally::new(states.chain(held))
    }

    /// How many devices are in which condition.
    pub(super) fn conditions(counts: &BTreeMap<String, u64>) -> Self {
        let count = |condition: &str| counts.get(condition).copied().unwrap_or(0);
        Tally::new(CONDITIONS.map(|condition| (Badge::condition(condition), count(condition))))
    }

    /// How far a rollout came.
    pub(super) fn rollout(counts: &RolloutCounts, aborted: bool) -> Self {
        let RolloutCounts { total: _, done, under_way, waiting, not_yet, never, failed } = *counts;
        let parts = [
            (Badge::step("done"), done),
            (Badge::step("failed"), failed),
            (Badge::step("under way"), under_way),
            (if aborted { Badge::left_behind() } else { Badge::step("waiting") }, waiting),
            (Badge::step("not yet"), not_yet),
            (Badge::step("never"), never),
        ];
        Tally::new(parts.map(|(badge, count)| (badge, u64::from(count))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::badge::Tone;
    use super::*;

    #[test]
    fn a_tally_fills_its_bar_exactly() {
        let states = [("INSTALLED", 4), ("FAILED", 1), ("PENDING", 1), ("INSTALLING", 1)];
        let states = states.map(|(state, count)| (state.to_owned(), count)).into();
        let tally = Tally::of(&AssignmentCounts { total: 7, states, ..Default::default() });
        assert_eq!(tally.shares.iter().map(|share| share.width).sum::<u64>(), 1000);
        let counts: Vec<&str> = tally.shares.iter().map(|share| share.count.as_str()).collect();
        assert_eq!((tally.total, counts), (7, vec!["1", "1", "4", "1"]));
        assert!(Tally::of(&Default::default()).shares.is_empty());
    }

    #[test]
    fn who_went_back_is_not_among_those_that_are_as_wanted() {
        let states = [("INSTALLED".to_owned(), 4)].into();
        let counts = AssignmentCounts { total: 4, went_back: 1, states, ..Default::default() };
        let tally = Tally::of(&counts);
        let shown: Vec<_> =
            tally.shares.iter().map(|share| (share.badge.tone, share.count.as_str())).collect();
        assert_eq!(shown, [(Tone::Ok, "3"), (Tone::Bad, "1")]);
        assert_eq!(tally.shares.iter().map(|share| share.width).sum::<u64>(), 1000);
    }

    #[test]
    fn who_waits_for_its_turn_is_not_among_those_that_are_as_wanted() {
        let states = [("INSTALLED".to_owned(), 1), ("WAITING".to_owned(), 3)].into();
        let counts = AssignmentCounts { total: 4, waiting: 3, states, ..Default::default() };
        let tally = Tally::of(&counts);
        let shown: Vec<_> =
            tally.shares.iter().map(|share| (share.badge.word.as_str(), share.width)).collect();
        assert_eq!(shown, [("INSTALLED", 250), ("waiting", 750)]);
    }

    #[test]
    fn who_refuses_and_who_is_not_heard_of_is_told_in_the_words_of_rollouts() {
        let states = [("INSTALLED".to_owned(), 2), ("NOTYET".to_owned(), 1), ("NEVER".to_owned(), 1)].into();
        let counts = AssignmentCounts { total: 4, never: 1, not_yet: 1, states, ..Default::default() };
        let tally = Tally::of(&counts);
        let shown: Vec<_> =
            tally.shares.iter().map(|share| (share.badge.word.as_str(), share.width)).collect();
        assert_eq!(shown, [("INSTALLED", 500), ("not yet", 250), ("never", 250)]);
    }

    #[test]
    fn a_rollout_is_done_only_as_far_as_devices_have_it() {
        let counts = RolloutCounts { total: 4, done: 1, failed: 1, waiting: 2, ..Default::default() };
        let tally = Tally::rollout(&counts, false);
        let shown: Vec<_> =
            tally.shares.iter().map(|share| (share.badge.word.as_str(), share.width)).collect();
        assert_eq!(shown, [("done", 250), ("failed", 250), ("waiting", 500)]);
    }
}
