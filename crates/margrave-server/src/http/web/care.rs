//! When changes of a deployment may begin, and what devices do about one that fails, as form fields. Whether it makes sense is the
//! fleet's to say; here is only what a person types for it.

use margrave_core::rollback::When;
use margrave_core::violation::Violation;
use margrave_wire::operator::Rollback;

use super::error::sentence;
use super::pace::{seconds, spoken};
use super::session::Fields;
pub(super) use crate::fleet::difference::policy as words;

#[derive(Default)]
pub(super) struct Care {
    /// One window a line.
    pub(super) windows: String,
    /// Devices stay with what fails.
    pub(super) never_back: bool,
    pub(super) attempts: String,
    pub(super) grace: String,
    pub(super) wrong_windows: Vec<String>,
    pub(super) wrong_attempts: Option<String>,
    pub(super) wrong_grace: Option<String>,
    /// About going back as a whole.
    pub(super) wrong: Vec<String>,
    /// The form asked for it; else it stays as it is.
    asked: bool,
}

impl Care {
    pub(super) fn of(windows: &[String], rollback: &Rollback) -> Self {
        let Rollback { when, attempts, health_grace_seconds } = rollback;
        Care {
            windows: windows.join("\n"),
            never_back: when.as_deref() == Some(When::Never.as_str()),
            attempts: attempts.map(|attempts| attempts.to_string()).unwrap_or_default(),
            grace: health_grace_seconds.map(spoken).unwrap_or_default(),
            asked: true,
            ..Care::default()
        }
    }

    pub(super) fn typed(fields: &Fields) -> Self {
        Care {
            windows: fields.one("windows").to_owned(),
            never_back: fields.one("rollback") == When::Never.as_str(),
            attempts: fields.one("attempts").trim().to_owned(),
            grace: fields.one("health-grace").trim().to_owned(),
            asked: fields.raw("rollback").is_some(),
            ..Care::default()
        }
    }

    pub(super) fn is_wrong(&self) -> bool {
        !self.wrong.is_empty()
            || !self.wrong_windows.is_empty()
            || self.wrong_attempts.is_some()
            || self.wrong_grace.is_some()
    }

    /// The windows to ask of the fleet: `None` leaves them as they are.
    pub(super) fn windows(&self) -> Option<Vec<String>> {
        let lines = self.windows.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "any");
        self.asked.then(|| lines.map(ToOwned::to_owned).collect())
    }

    /// The policy to ask of the fleet: `None` leaves it as it is. What cannot be read is noted at its field.
    pub(super) fn rollback(&mut self) -> Option<Rollback> {
        if !self.asked {
            return None;
        }
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let attempts = text(&self.attempts).and_then(|text| {
            let read = text.parse::<u32>();
            read.map_err(|_| self.wrong_attempts = Some(format!("“{text}” is no number of attempts."))).ok()
        });
        let grace = text(&self.grace)
            .and_then(|text| seconds(&text).map_err(|wrong| self.wrong_grace = Some(wrong)).ok());
        let when = if self.never_back { When::Never } else { When::OnFailedUpdate };
        Some(Rollback { when: Some(when.as_str().to_owned()), attempts, health_grace_seconds: grace })
    }

    /// Notes what the fleet said about it; `false` when it is about something else.
    pub(super) fn refused(&mut self, violation: &Violation) -> bool {
        let message = sentence(&violation.message);
        let mut place = violation.place.trim_start_matches('/').split('/');
        match place.next() {
            Some("windows") => {
                // Which of several lines, as people count.
                let line = place.next().and_then(|index| index.parse::<usize>().ok());
                let line = line.filter(|_| self.windows.lines().count() > 1);
                let line = line.map(|index| format!("Line {}: ", index + 1)).unwrap_or_default();
                self.wrong_windows.push(format!("{line}{message}"));
            }
            Some("rollback") => self.wrong.push(message),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollback(when: Option<&str>, attempts: Option<u32>, grace: Option<u64>) -> Rollback {
        Rollback { when: when.map(ToOwned::to_owned), attempts, health_grace_seconds: grace }
    }

    #[test]
    fn what_is_shown_is_what_is_sent_again() {
        for policy in
            [rollback(Some("on-failed-update"), None, None), rollback(Some("never"), Some(3), Some(90))]
        {
            let windows = ["sun 02:00-05:00 Europe/Berlin".to_owned(), "sat 01:00-02:00".to_owned()];
            let mut care = Care::of(&windows, &policy);
            assert_eq!(care.windows().as_deref(), Some(&windows[..]));
            assert_eq!(care.rollback(), Some(policy));
            assert!(!care.is_wrong());
        }
    }

    #[test]
    fn what_is_wrong_is_told_at_its_field() {
        let mut care = Care::of(&["sun".to_owned(), "mon".to_owned()], &rollback(None, None, None));
        (care.attempts, care.grace) = ("often".to_owned(), "soon".to_owned());
        care.rollback();
        assert!(care.wrong_attempts.is_some() && care.wrong_grace.is_some());
        assert!(care.refused(&Violation::new("/windows/1", "x", "no window")));
        assert_eq!(care.wrong_windows, ["Line 2: No window."]);
        assert!(care.refused(&Violation::new("/rollback", "x", "too many")) && care.wrong == ["Too many."]);
        assert!(!care.refused(&Violation::new("/targets", "x", "y")));
    }

    #[test]
    fn a_form_that_did_not_ask_changes_nothing() {
        let mut care = Care::default();
        assert_eq!((care.windows(), care.rollback()), (None, None));
    }
}
