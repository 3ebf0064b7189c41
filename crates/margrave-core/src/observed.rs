//! What a device said about an assignment, held against what is wanted of it.
//!
//! Owns how a report changes the picture, when it came too late to do so, and what an operator is told. Where
//! the picture is kept, and that no report is lost, is the store's.

use crate::digest::Digest;
use crate::lifecycle::{Reported, State};
use crate::moment::Moment;
use crate::report::Report;

/// The newest that a device said about an assignment.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub state: State,
    pub report: Report,
    pub received_at: Moment,
    /// Since when it is in this state, by the server's clock.
    pub since: Moment,
    /// Whether it was ever running in this life; a later install is then an update.
    pub was_installed: bool,
}

/// What the server wants of an assignment, as far as reports are judged by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aim {
    /// In the manifest; otherwise it waits for the device to say that it is gone.
    pub wanted: bool,
    /// Gone, kept for its history.
    pub archived: bool,
    /// The document that is wanted, or was last.
    pub document: Digest,
    /// The manifest version in which it last came in.
    pub wanted_since: u64,
    /// The manifest version in which it last came in, changed or went.
    pub changed_version: u64,
}

/// How an assignment weighs on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Converged,
    Pending,
    Failed,
}

/// What an operator is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outlook {
    pub state: State,
    /// Whether `state` speaks of what is wanted now, or still of something older (MI-G2-109).
    pub current: bool,
    pub verdict: Verdict,
}

impl Observed {
    /// The picture after a report that is not late.
    pub fn next(before: Option<Observed>, report: &Report, now: Moment) -> Self {
        let state = reported_state(before.as_ref(), report);
        let since = match &before {
            Some(before) if before.state == state => before.since,
            _ => now,
        };
        let was_installed = match state {
            State::Installed => true,
            State::Deleted => false,
            _ => before.is_some_and(|before| before.was_installed),
        };
        Observed { state, report: report.clone(), received_at: now, since, was_installed }
    }
}

/// So far ahead of the server's a device's clock is told to be wrong; less is no trouble to anybody.
const CLOCK_AHEAD_TOLD_SECONDS: i64 = 30;
/// No clock before 2020 is right.
const CLOCK_SENSIBLE: Moment = Moment(1_577_836_800_000);

impl Observed {
    /// By how many seconds the device's clock was ahead of the server's when it said this (behind, if less than nothing), as far
    /// as it was certainly wrong: what was under way for long was said with a clock that may have been right.
    pub fn clock_ahead(&self) -> Option<i64> {
        let said = self.report.detail.as_ref()?.at;
        let ahead = said.0.cast_signed().wrapping_sub(self.received_at.0.cast_signed()) / 1000;
        (ahead >= CLOCK_AHEAD_TOLD_SECONDS || said < CLOCK_SENSIBLE).then_some(ahead)
    }
}

/// The same in words: "2 h ahead of the server's".
pub fn clock_words(ahead_seconds: i64) -> String {
    let by = match ahead_seconds.unsigned_abs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7140 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", (seconds + 1800) / 3600),
        seconds => format!("{} days", seconds / 86_400),
    };
    format!("{by} {} the server's", if ahead_seconds > 0 { "ahead of" } else { "behind" })
}

/// The state in our own words: our agent says it, for others it follows from what was before.
pub fn reported_state(before: Option<&Observed>, report: &Report) -> State {
    if let Some(detail) = &report.detail {
        return detail.state;
    }
    match report.state {
        Reported::Pending => State::Pending,
        Reported::Installing if before.is_some_and(|before| before.was_installed) => State::Updating,
        Reported::Installing => State::Installing,
        Reported::Installed => State::Installed,
        Reported::Failed => State::Failed,
        Reported::Removing => State::Deleting,
        Reported::Removed => State::Deleted,
    }
}

impl Aim {
    /// Whether the report speaks of a time before what is known. What decides is what it says, not when it came:
    /// a lower adopted version, or at the same version a lower number of the agent's own counting or an earlier
    /// signature, never moves the picture back.
    pub fn is_late(&self, before: Option<&Observed>, report: &Report) -> bool {
        // Of a life before this one: it went, and came back since.
        if matches!(report.state, Reported::Removing | Reported::Removed)
            && report.adopted_version < self.wanted_since
        {
            return true;
        }
        let Some(before) = before else {
            // Nothing observed in this life: what an archived one says now cannot wake it.
            return self.archived;
        };
        if report.adopted_version != before.report.adopted_version {
            return report.adopted_version < before.report.adopted_version;
        }
        match (&report.detail, &before.report.detail) {
            // A device that lost its memory counts from the beginning again.
            (Some(new), Some(old)) => match (new.life, old.life) {
                (Some(new), Some(old)) if new != old => new < old,
                // The same memory counts on, whatever its clock says.
                _ if new.memory.is_some() && new.memory == old.memory => new.sequence <= old.sequence,
                // Had it been lost since, it would have begun anew with this version.
                (Some(life), Some(_)) if life < report.adopted_version => new.sequence <= old.sequence,
                // Where that cannot be told, its clock tells. It also begins anew with everything, so what is no beginning is
                // late, even if its clock was set back since.
                _ => new.sequence <= old.sequence && (new.at <= old.at || new.state != State::Pending),
            },
            // Within the same second they cannot be told apart; then the one that came later counts.
            (None, None) => {
                matches!((report.signed_at, before.report.signed_at), (Some(new), Some(old)) if new < old)
            }
            _ => false,
        }
    }

    /// Whether the device holds this very version with other content, and so lives in a past that the server has lost:
    /// whoever has adopted what is wanted speaks of its document, or says what is wrong with it.
    pub fn is_of_another_past(&self, report: &Report) -> bool {
        let Some(detail) = &report.detail else { return false };
        let has_another = match detail.document {
            Some(document) => document != self.document,
            None => detail.state == State::Deleted,
        };
        self.wanted && report.fault.is_none() && report.adopted_version >= self.changed_version && has_another
    }

    /// Whether an assignment that reached this state has ended.
    pub fn ends_with(&self, state: State) -> bool {
        self.archived || (state == State::Deleted && !self.wanted)
    }

    pub fn outlook(&self, observed: Option<&Observed>) -> Outlook {
        if self.archived {
            return Outlook { state: State::Deleted, current: true, verdict: Verdict::Converged };
        }
        let Some(observed) = observed else {
            let state = if self.wanted { State::Pending } else { State::Deleting };
            return Outlook { state, current: false, verdict: Verdict::Pending };
        };
        let adopted = observed.report.adopted_version >= self.changed_version;
        if !self.wanted {
            return match observed.state {
                State::Failed if adopted => {
                    Outlook { state: State::Failed, current: true, verdict: Verdict::Failed }
                }
                _ => Outlook { state: State::Deleting, current: adopted, verdict: Verdict::Pending },
            };
        }
        // It came back while it was going: first it is gone, then it begins anew.
        let state = if observed.state == State::Deleted { State::Pending } else { observed.state };
        let other_document = || {
            let spoken_of = observed.report.detail.as_ref().and_then(|detail| detail.document);
            spoken_of.is_some_and(|document| document != self.document)
        };
        let current = adopted && !other_document() && observed.state != State::Deleted;
        let verdict = match state {
            State::Installed if current => Verdict::Converged,
            // Back on the last good document: it runs, and yet what is wanted failed.
            State::Installed if adopted && observed.report.fault.is_some() => Verdict::Failed,
            State::Failed if adopted => Verdict::Failed,
            _ => Verdict::Pending,
        };
        Outlook { state, current, verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::AssignmentId;
    use crate::report::{Detail, Fault};

    const NOW: Moment = Moment(1_800_000_000_000);

    fn report(adopted_version: u64, state: Reported) -> Report {
        Report {
            assignment: AssignmentId::parse("00000000-0000-4000-8000-000000000001").unwrap(),
            device: None,
            adopted_version,
            state,
            fault: None,
            components: vec![],
            detail: None,
            signed_at: None,
        }
    }

    /// What our own agent says.
    fn detailed(adopted_version: u64, state: State, sequence: u64) -> Report {
        let detail = Detail {
            state,
            sequence,
            at: Moment(NOW.0 + sequence),
            document: None,
            attempt: 1,
            next_try: None,
            reason: None,
            waiting: None,
            awaited: None,
            life: None,
            holds: None,
            memory: None,
        };
        Report { detail: Some(detail), ..report(adopted_version, state.reported()) }
    }

    fn aim() -> Aim {
        Aim {
            wanted: true,
            archived: false,
            document: Digest::of(b"wanted"),
            wanted_since: 5,
            changed_version: 5,
        }
    }

    fn after(reports: &[Report]) -> Option<Observed> {
        reports.iter().fold(None, |before, report| Some(Observed::next(before, report, NOW)))
    }

    #[test]
    fn a_foreign_device_that_installs_again_updates() {
        let check = |told: &[Reported], expected: State| {
            let reports: Vec<Report> = told.iter().map(|state| report(5, *state)).collect();
            assert_eq!(after(&reports).unwrap().state, expected, "{told:?}");
        };
        check(&[Reported::Installing], State::Installing);
        check(&[Reported::Installing, Reported::Installed, Reported::Installing], State::Updating);
        check(&[Reported::Installed, Reported::Failed, Reported::Installing], State::Updating);
        check(&[Reported::Installed, Reported::Removed, Reported::Installing], State::Installing);
        check(&[Reported::Removing], State::Deleting);
        // Our agent is believed.
        assert_eq!(reported_state(None, &detailed(5, State::RollingBack, 1)), State::RollingBack);
    }

    #[test]
    fn a_clock_is_wrong_only_where_that_is_certain() {
        let said_at = |at: u64| {
            let mut report = detailed(5, State::Installed, 1);
            report.detail.as_mut().unwrap().at = Moment(at);
            Observed::next(None, &report, NOW).clock_ahead()
        };
        assert_eq!(said_at(NOW.0 + 7_199_000), Some(7199));
        assert_eq!(said_at(NOW.0 + 10_000), None);
        assert_eq!(said_at(NOW.0 - 86_400_000), None, "it may have been under way for a day");
        assert!(said_at(1000).is_some_and(|ahead| ahead < 0), "no clock of 1970 is right");
        assert_eq!(Observed::next(None, &report(5, Reported::Installed), NOW).clock_ahead(), None);
        let words = [
            (45, "45 s ahead of"),
            (300, "5 min ahead of"),
            (7199, "2 h ahead of"),
            (-200_000, "2 days behind"),
        ];
        for (ahead, expected) in words {
            assert_eq!(clock_words(ahead), format!("{expected} the server's"));
        }
    }

    #[test]
    fn a_state_lasts_since_it_was_first_reported() {
        let first = Observed::next(None, &detailed(5, State::Failed, 1), NOW);
        let later = Moment(NOW.0 + 1000);
        let second = Observed::next(Some(first.clone()), &detailed(5, State::Failed, 2), later);
        assert_eq!((second.since, second.received_at), (NOW, later));
        assert_eq!(Observed::next(Some(first), &detailed(5, State::Installed, 3), later).since, later);
    }

    #[test]
    fn mi_g2_109_the_picture_never_moves_back() {
        let check = |known: &Report, new: &Report, late: bool| {
            assert_eq!(aim().is_late(after(std::slice::from_ref(known)).as_ref(), new), late, "{new:?}");
        };
        let known = detailed(6, State::Installing, 10);
        check(&known, &detailed(5, State::Installed, 11), true);
        check(&known, &detailed(6, State::Installed, 9), true);
        check(&known, &detailed(6, State::Installed, 11), false);
        check(&known, &detailed(7, State::Installed, 1), false);
        check(&known, &report(6, Reported::Installed), false);
        // Counting from the beginning again, at a later time.
        let at_99 = |state| {
            let mut report = detailed(6, state, 1);
            report.detail.as_mut().unwrap().at = Moment(NOW.0 + 99);
            report
        };
        check(&known, &at_99(State::Pending), false);
        // Unless it is of the very memory that said the other: then its clock was set back since, and it came late.
        let of_memory = |mut report: Report, memory: u32| {
            report.detail.as_mut().unwrap().memory = Some(memory);
            report
        };
        check(&of_memory(known.clone(), 7), &of_memory(at_99(State::Pending), 7), true);
        check(&of_memory(known.clone(), 7), &of_memory(at_99(State::Pending), 8), false);
        // Said before the device's clock was set back, and kept on the way for long.
        check(&known, &at_99(State::Installed), true);
    }

    #[test]
    fn what_was_said_before_a_memory_was_lost_is_told_from_what_was_said_since() {
        let said = |life, state, sequence: u64, at: u64| {
            let mut report = detailed(6, state, sequence);
            let detail = report.detail.as_mut().unwrap();
            (detail.life, detail.at) = (life, Moment(NOW.0 + at));
            report
        };
        let check = |known: &Report, new: &Report, late: bool| {
            assert_eq!(aim().is_late(after(std::slice::from_ref(known)).as_ref(), new), late, "{new:?}");
        };
        let known = said(Some(2), State::Installed, 10, 1000);
        // Lost, and the clock with it: every report counts, not only the first.
        check(&known, &said(Some(6), State::Pending, 1, 0), false);
        check(&known, &said(Some(6), State::Installed, 4, 0), false);
        // Kept on the way for long, and its sender's clock was set back since: nothing was lost.
        check(&known, &said(Some(2), State::Pending, 9, 5000), true);
        check(&said(Some(6), State::Pending, 1, 0), &known, true);
        // It began with this very version: only the clock can tell.
        let first = said(Some(6), State::Installed, 10, 1000);
        check(&first, &said(Some(6), State::Pending, 1, 5000), false);
        check(&first, &said(Some(6), State::Pending, 1, 0), true);
        // Of an older agent, as ever.
        check(&known, &said(None, State::Pending, 1, 5000), false);
        check(&known, &said(None, State::Installed, 1, 5000), true);
        check(&known, &said(None, State::Installed, 11, 5000), false);
    }

    #[test]
    fn who_holds_the_same_version_with_other_content_lives_in_another_past() {
        let with = |adopted, state, document: Option<&[u8]>| {
            let mut report = detailed(adopted, state, 1);
            report.detail.as_mut().unwrap().document = document.map(Digest::of);
            report
        };
        let check = |aim: Aim, report: &Report, expected| {
            assert_eq!(aim.is_of_another_past(report), expected, "{report:?}");
        };
        check(aim(), &with(5, State::Installed, Some(b"wanted")), false);
        check(aim(), &with(5, State::Installed, Some(b"other")), true);
        check(aim(), &with(4, State::Installed, Some(b"other")), false);
        check(aim(), &with(5, State::Deleted, None), true);
        check(aim(), &with(5, State::Installed, None), false);
        check(Aim { wanted: false, ..aim() }, &with(5, State::Installed, Some(b"other")), false);
        // It went back to the last good one, and says why.
        let mut back = with(5, State::Installed, Some(b"other"));
        back.fault = Some(Fault { code: "unhealthy".into(), source: "web".into(), message: "no".into() });
        check(aim(), &back, false);
        check(aim(), &report(5, Reported::Installed), false);
    }

    #[test]
    fn mi_g1_065_what_was_signed_earlier_moves_nothing_back() {
        let signed = |state, second: u64| Report {
            signed_at: Some(Moment(NOW.0 + second * 1000)),
            ..report(5, state)
        };
        let known = after(&[signed(Reported::Installed, 10)]);
        let late = |report: &Report| aim().is_late(known.as_ref(), report);
        assert!(late(&signed(Reported::Installing, 9)));
        assert!(!late(&signed(Reported::Failed, 10)), "the same second says nothing");
        assert!(!late(&signed(Reported::Failed, 11)));
        assert!(
            !late(&Report { adopted_version: 6, ..signed(Reported::Installing, 9) }),
            "a newer version does"
        );
        assert!(!late(&report(5, Reported::Failed)), "without a signature nothing orders them");
    }

    #[test]
    fn the_end_of_an_earlier_life_does_not_end_this_one() {
        assert!(aim().is_late(None, &report(4, Reported::Removed)));
        assert!(!aim().is_late(None, &report(5, Reported::Removed)));
        assert!(!aim().is_late(None, &report(4, Reported::Installed)));
        let archived = Aim { wanted: false, archived: true, ..aim() };
        assert!(archived.is_late(None, &report(9, Reported::Installed)));
        assert!(!aim().ends_with(State::Deleted), "it is wanted again");
        let going = Aim { wanted: false, ..aim() };
        assert!(going.ends_with(State::Deleted) && !going.ends_with(State::Deleting));
        assert!(archived.ends_with(State::Deleting), "what ended stays ended");
    }

    #[test]
    fn an_outlook_tells_what_is_wanted_from_what_is_said() {
        use Verdict::{Converged, Failed, Pending};
        let check = |aim: Aim, said: Option<Report>, expected: (State, bool, Verdict)| {
            let observed = said.map(|report| Observed::next(None, &report, NOW));
            let Outlook { state, current, verdict } = aim.outlook(observed.as_ref());
            assert_eq!((state, current, verdict), expected, "{observed:?}");
        };
        let going = Aim { wanted: false, ..aim() };
        check(aim(), None, (State::Pending, false, Pending));
        check(going, None, (State::Deleting, false, Pending));
        check(aim(), Some(detailed(5, State::Installed, 1)), (State::Installed, true, Converged));
        check(aim(), Some(detailed(4, State::Installed, 1)), (State::Installed, false, Pending));
        check(aim(), Some(detailed(5, State::Failed, 1)), (State::Failed, true, Failed));
        check(aim(), Some(detailed(4, State::Failed, 1)), (State::Failed, false, Pending));
        check(aim(), Some(detailed(5, State::Deleted, 1)), (State::Pending, false, Pending));
        check(going, Some(detailed(5, State::Failed, 1)), (State::Failed, true, Failed));
        check(going, Some(detailed(5, State::Installed, 1)), (State::Deleting, true, Pending));
        check(
            Aim { archived: true, ..going },
            Some(detailed(5, State::Failed, 1)),
            (State::Deleted, true, Converged),
        );
        // It went back to its last good document.
        let mut back = detailed(5, State::Installed, 1);
        back.detail.as_mut().unwrap().document = Some(Digest::of(b"before"));
        check(aim(), Some(back.clone()), (State::Installed, false, Pending));
        back.fault = Some(Fault { code: "unhealthy".into(), source: "web".into(), message: "no".into() });
        check(aim(), Some(back), (State::Installed, false, Failed));
    }
}
