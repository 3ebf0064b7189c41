//! Reports waiting for the server, in order, bounded by coalescing and never by forgetting the latest.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::id::AssignmentId;
use crate::report::Report;

/// How many reports of one assignment are kept while the server cannot be reached. The newest is always
/// among them; eight tell the story of an install, an update and a failure.
const PER_ASSIGNMENT_MAX: usize = 8;

/// More than a device says in the seconds that a disk takes to write what it was given.
const NUMBERS_SKIPPED: u64 = 1_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outbox {
    /// Ascending by sequence.
    waiting: Vec<Report>,
    /// The sequence of the newest report ever made here, as far as that is known.
    newest: u64,
}

impl Outbox {
    /// The number that the next report gets.
    pub fn next_sequence(&self) -> u64 {
        self.newest + 1
    }

    /// `alone` forgets what waits of the same assignment: only where it stands counts.
    pub fn push(&mut self, report: Report, alone: bool) {
        self.newest += 1;
        let assignment = report.assignment;
        if alone {
            self.waiting.retain(|waiting| waiting.assignment != assignment);
        }
        self.waiting.push(report);
        let of_assignment = self.waiting.iter().filter(|r| r.assignment == assignment).count();
        if of_assignment > PER_ASSIGNMENT_MAX {
            // The oldest goes: whoever is behind by weeks wants to know where things stand, not where they stood.
            let oldest = self.waiting.iter().position(|r| r.assignment == assignment);
            self.waiting.remove(oldest.expect("the assignment has reports waiting"));
        }
    }

    pub fn first(&self) -> Option<&Report> {
        self.waiting.first()
    }

    /// What to send next: the oldest, unless one was passed over. Then the others have their turn, each assignment with its oldest.
    pub fn next(&self, passed_over: Option<u64>) -> Option<&Report> {
        let Some(passed_over) = passed_over else { return self.first() };
        let mut seen = BTreeSet::new();
        let mut oldest = self.waiting.iter().filter(|report| seen.insert(report.assignment));
        oldest.find(|report| sequence(report) > Some(passed_over)).or(self.first())
    }

    /// Everything that waits, in the order in which it is sent.
    pub fn waiting(&self) -> impl Iterator<Item = &Report> {
        self.waiting.iter()
    }

    /// Forgets the report with this sequence: the server has it, or will never take it.
    pub fn settle(&mut self, sequence: u64) {
        self.waiting.retain(|report| self::sequence(report) != Some(sequence));
    }

    /// What the report with this sequence is of, if it waits.
    pub fn assignment_of(&self, sequence: u64) -> Option<AssignmentId> {
        let of = self.waiting.iter().find(|report| self::sequence(report) == Some(sequence));
        of.map(|report| report.assignment)
    }

    pub fn waits(&self, sequence: u64) -> bool {
        self.waiting.iter().any(|report| self::sequence(report) == Some(sequence))
    }

    /// Whether something newer is to be said of the same assignment.
    pub fn is_superseded(&self, sequence: u64) -> bool {
        let mut from = self.waiting.iter().skip_while(|report| self::sequence(report) != Some(sequence));
        from.next().is_some_and(|report| from.any(|newer| newer.assignment == report.assignment))
    }

    /// The power went. Some disks say that they have written what they lose with it, and then it is not known here what was said
    /// last: a number that was used for that would let what is said now be taken for old.
    pub(super) fn skip_numbers(&mut self) {
        self.newest += NUMBERS_SKIPPED;
    }

    /// Forgets everything that waits. The numbering goes on.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    pub fn has(&self, assignment: AssignmentId) -> bool {
        self.waiting.iter().any(|report| report.assignment == assignment)
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn sequence(report: &Report) -> Option<u64> {
    report.detail.as_ref().map(|detail| detail.sequence)
}
