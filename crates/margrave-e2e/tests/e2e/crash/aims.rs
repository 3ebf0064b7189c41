//! Which points there are, at which of them a device really died, and which are left to try again.
//!
//! A point counts once, and only when what a device died at is what the point is about. A device that died at something
//! else, or had nothing left to do before it came to the point, has shown nothing about it; the next round tries it on
//! a fresh one.

use std::collections::{BTreeMap, BTreeSet};

use crate::trap::{About, Point};

/// After so many tries a point is one that only the first device came to.
pub(crate) const ROUNDS_MAX: usize = 4;

/// A point and the number of its scenario.
type Aim = (usize, Point);

pub(crate) struct Aims {
    all: BTreeSet<Aim>,
    hit: BTreeSet<Aim>,
    /// What came of the last try at each that was not hit.
    missed: BTreeMap<Aim, String>,
    /// Devices that died at something else, and that had nothing left to do.
    pub(crate) elsewhere: usize,
    pub(crate) survived: usize,
}

impl Aims {
    /// At these points, a list for each scenario.
    pub(crate) fn at(points: Vec<Vec<Point>>) -> Aims {
        let all = points.into_iter().enumerate().flat_map(|(scenario, points)| {
            points.into_iter().map(move |point| (scenario, point)).collect::<Vec<_>>()
        });
        let all = all.collect();
        Aims { all, hit: BTreeSet::new(), missed: BTreeMap::new(), elsewhere: 0, survived: 0 }
    }

    /// What is not hit yet: a list for each device, with at most one point for each of so many scenarios.
    pub(crate) fn lives(&self, scenarios: usize) -> Vec<Vec<Option<Point>>> {
        let mut left: Vec<Vec<Point>> = vec![Vec::new(); scenarios];
        for (scenario, point) in self.all.difference(&self.hit) {
            left[*scenario].push(point.clone());
        }
        let count = left.iter().map(Vec::len).max().unwrap_or_default();
        (0..count).map(|number| left.iter().map(|points| points.get(number).cloned()).collect()).collect()
    }

    /// A device died at this while it was meant to at `point`.
    pub(crate) fn died(&mut self, scenario: usize, point: &Point, at: Option<&About>) {
        let aim = (scenario, point.clone());
        if at == Some(&point.about) {
            self.missed.remove(&aim);
            self.hit.insert(aim);
            return;
        }
        self.elsewhere += 1;
        let at = at.map_or("of something that does not last".to_owned(), About::to_string);
        self.missed.insert(aim, format!("that was a call {at}"));
    }

    /// A device never came to the point.
    pub(crate) fn survived(&mut self, scenario: usize, point: &Point) {
        self.survived += 1;
        self.missed.insert((scenario, point.clone()), "nobody came to it".to_owned());
    }

    pub(crate) fn hit(&self) -> impl Iterator<Item = (usize, &Point)> {
        self.hit.iter().map(|(scenario, point)| (*scenario, point))
    }

    pub(crate) fn by_kind(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for (_, point) in &self.hit {
            *kinds.entry(point.about.kind.as_str()).or_default() += 1;
        }
        kinds
    }

    /// In words: how many were hit, and what it took.
    pub(crate) fn sum(&self) -> String {
        let (hit, all, kinds) = (self.hit.len(), self.all.len(), self.by_kind());
        let Aims { elsewhere, survived, .. } = self;
        format!(
            "{hit} of {all} points hit, each another call, on {kinds:?}; {elsewhere} tries died elsewhere and {survived} not at all, and were made again; {} points never hit",
            self.never().len()
        )
    }

    /// Points that were never hit, each with what came of the last try.
    pub(crate) fn never(&self) -> Vec<(usize, &Point, &str)> {
        let why = |aim| self.missed.get(aim).map_or("nobody was there to try it", String::as_str);
        self.all.difference(&self.hit).map(|aim| (aim.0, &aim.1, why(aim))).collect()
    }

    /// Why what was hit does not show what it should: `must` are the kinds of which every point has to be hit, and of all
    /// points at most so many of a hundred may never be.
    pub(crate) fn complaint(&self, must: &[&str], never_percent_max: usize) -> Option<String> {
        let never = self.never();
        let not_hit = never.iter().find(|(_, point, _)| must.contains(&point.about.kind.as_str()));
        if let Some((_, point, why)) = not_hit {
            return Some(format!("nobody was ever killed {point}: {why}"));
        }
        let (never, all) = (never.len(), self.all.len());
        (never * 100 > all * never_percent_max)
            .then(|| format!("{never} of {all} points were never hit, more than {never_percent_max} of 100"))
    }
}

#[test]
fn a_point_is_hit_by_its_own_call_alone_and_what_is_left_is_tried_again_or_told() {
    let point = |text: &str| text.parse::<Point>().expect("a point");
    let (ledger, server) =
        (point("after fsync 1 of ledger at ledger/state.0"), point("before writev 4 of server"));
    let mut aims = Aims::at(vec![vec![ledger.clone()], vec![server.clone(), ledger.clone()]]);
    assert_eq!(aims.lives(2).len(), 2);
    aims.died(1, &server, Some(&ledger.about));
    aims.died(1, &ledger, Some(&ledger.about));
    aims.survived(0, &ledger);
    assert_eq!(aims.lives(2), [[Some(ledger.clone()), Some(server.clone())]]);
    assert_eq!(
        aims.sum(),
        "1 of 3 points hit, each another call, on {\"ledger\": 1}; 1 tries died elsewhere and 1 not at all, and were made again; 2 points never hit"
    );
    let complaint = aims.complaint(&["ledger"], 3).expect("the ledger's was not hit");
    assert!(
        complaint.ends_with("after fsync 1 of ledger at ledger/state.0: nobody came to it"),
        "{complaint}"
    );
    assert!(aims.complaint(&[], 3).is_some_and(|complaint| complaint.starts_with("2 of 3 points")));
    // The same call again is no other point.
    aims.died(0, &ledger, Some(&ledger.about));
    aims.died(0, &ledger, Some(&ledger.about));
    aims.died(1, &server, Some(&server.about));
    assert_eq!((aims.hit().count(), aims.complaint(&["ledger"], 3)), (3, None));
}
