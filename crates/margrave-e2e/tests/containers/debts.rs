//! Reports that a killed device had on its disk, and whether the server heard all of them in the end.
//!
//! Each is owed under its own number, and the server is asked for that number, so that equal ones are as many as they are.
//! What is neither on the disk any more nor with the server is lost, with two exceptions. A device keeps eight reports
//! of one assignment (`outbox.rs` of the core) and forgets the oldest for a ninth: that is believed of a report only
//! where there can have been eight newer ones before the next look. And the server keeps no report that is the same in
//! everything as the one before.

use std::collections::BTreeMap;
use std::ops::Add;

use margrave_core::report::Report;

const KEPT_MAX: u64 = 8;

/// What became of all that was owed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) heard: usize,
    pub(crate) nothing_new: usize,
    pub(crate) forgotten: usize,
}

impl Add for Settled {
    type Output = Settled;

    fn add(self, other: Settled) -> Settled {
        Settled {
            heard: self.heard + other.heard,
            nothing_new: self.nothing_new + other.nothing_new,
            forgotten: self.forgotten + other.forgotten,
        }
    }
}

#[derive(Default)]
pub(crate) struct Debts {
    /// On the disk at the last look, by number.
    waiting: BTreeMap<u64, Report>,
    /// On the disk once, and no more; with whether the device may have forgotten it.
    gone: BTreeMap<u64, (Report, bool)>,
    /// The number that the next report had at the last look.
    next: u64,
}

impl Debts {
    /// A look at a device that is off: what waits on its disk, and the number of its next report.
    pub(crate) fn look(&mut self, waiting: BTreeMap<u64, Report>, next: u64) {
        let made = next.saturating_sub(self.next);
        let before = std::mem::replace(&mut self.waiting, waiting);
        let newer = |number: u64| before.range(number + 1..).count() as u64;
        // The oldest is forgotten first: what is older than one that waits still cannot have been kept instead.
        let oldest = self.waiting.keys().next().copied().unwrap_or(u64::MAX);
        for (number, report) in &before {
            if !self.waiting.contains_key(number) {
                let forgotten = newer(*number) + made >= KEPT_MAX && *number < oldest;
                self.gone.insert(*number, (report.clone(), forgotten));
            }
        }
        self.next = next;
    }

    /// What became of everything that is no longer on the disk, when the server keeps these, by number; an error when
    /// something of it is lost.
    pub(crate) fn settled(&self, kept: &BTreeMap<u64, Report>) -> Result<Settled, String> {
        let mut settled = Settled::default();
        for (number, (report, may_be_forgotten)) in &self.gone {
            let before = || kept.range(..number).next_back();
            if kept.contains_key(number) {
                settled.heard += 1;
            } else if before().is_some_and(|(_, before)| report.is_no_step(before)) {
                settled.nothing_new += 1;
            } else if *may_be_forgotten {
                settled.forgotten += 1;
            } else {
                let numbers: Vec<&u64> = kept.keys().collect();
                return Err(format!(
                    "report {number} is lost: {report:?}; the server keeps {numbers:?}, the last before it {:?}",
                    before()
                ));
            }
        }
        Ok(settled)
    }
}

#[cfg(test)]
mod tests {
    use margrave_core::lifecycle::{Reported, State};
    use margrave_core::moment::Moment;
    use serde_json::json;

    use super::*;

    fn report(number: u64, state: State) -> Report {
        let report = json!({
            "assignment": "6f1c2c1e-9d0b-4b7e-8a55-0c4f6a3f1a11", "device": null, "adopted_version": 3,
            "state": Reported::Installing, "fault": null, "components": [],
            "detail": { "state": state, "sequence": number, "at": Moment(number * 10), "document": null,
                "attempt": 0, "next_try": null, "reason": null },
        });
        serde_json::from_value(report).unwrap()
    }

    /// Every other one says something else.
    fn reports(numbers: impl IntoIterator<Item = u64>) -> BTreeMap<u64, Report> {
        let state = |number| if number % 2 == 0 { State::Installing } else { State::Failed };
        numbers.into_iter().map(|number| (number, report(number, state(number)))).collect()
    }

    #[test]
    fn what_left_the_disk_and_is_not_with_the_server_is_lost_also_where_something_equal_is() {
        let mut debts = Debts::default();
        debts.look(reports([2, 3, 4]), 5);
        debts.look(reports([4]), 7);
        let heard = debts.settled(&reports([2, 3])).unwrap();
        assert_eq!(heard, Settled { heard: 2, ..Settled::default() });
        debts.look(BTreeMap::new(), 7);
        assert!(debts.settled(&reports([2, 3])).unwrap_err().starts_with("report 4 is lost"));
        assert!(debts.settled(&reports([2, 4])).unwrap_err().starts_with("report 3 is lost"));
    }

    #[test]
    fn what_eight_newer_ones_took_the_place_of_is_forgotten_and_nothing_else_is() {
        let look_again = |waiting: BTreeMap<u64, Report>, next: u64| {
            let mut debts = Debts::default();
            debts.look(reports([2, 3]), 4);
            debts.look(waiting, next);
            debts.settled(&BTreeMap::new())
        };
        assert_eq!(look_again(reports(3..=10), 11).unwrap().forgotten, 1);
        // One too few to take its place.
        assert!(look_again(reports(4..=9), 10).unwrap_err().starts_with("report 2 is lost"));
        // The older one is still there.
        assert!(look_again(reports([2]), 20).unwrap_err().starts_with("report 3 is lost"));
    }

    #[test]
    fn what_says_the_same_as_the_one_before_is_no_step() {
        let mut debts = Debts::default();
        debts.look([(3, report(3, State::Installing))].into(), 4);
        debts.look(BTreeMap::new(), 4);
        assert_eq!(debts.settled(&reports([2])).unwrap().nothing_new, 1);
        assert!(debts.settled(&reports([1])).is_err());
    }
}
