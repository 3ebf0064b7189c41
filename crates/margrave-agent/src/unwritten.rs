//! What this device knows and cannot write down: which work goes on all the same, and how the server hears of it.
//!
//! A disk that turned read-only must not make a device mute. It owns no file; `run.rs` says how each commit went.

use std::time::Duration;

use margrave_core::device::{Action, Backoff, Blind, Trouble};
use margrave_core::moment::Moment;
use margrave_ledger::LedgerError;

/// How long nothing could be written before the server is told: as long as of looks that fail. A full disk that frees itself
/// is no news.
const TOLD_AFTER: Duration = Duration::from_secs(30);
/// Until documents are fetched again that had no place. Polls work meanwhile and bring the same manifest each time, so that a pause
/// that grows would always begin anew.
const FETCH_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Since when what is known is not on disk, and why.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unwritten(Option<Blind>);

impl Unwritten {
    /// How a commit went. True when it is the first that went well again.
    pub(crate) fn take_in(&mut self, failed: Option<&LedgerError>, now: Moment) -> bool {
        match (failed, &mut self.0) {
            (Some(error), none @ None) => {
                let cause = margrave_core::chain::sentence(error);
                tracing::error!(
                    cause,
                    "the device's memory cannot be written; nothing is changed until it can"
                );
                let message = format!(
                    "what it sees cannot be written down, so it changes and reports nothing: {cause}"
                );
                *none = Blind::told(now, &message);
            }
            // A beginning in the future: the clock was set back.
            (Some(_), Some(since)) => since.since = since.since.min(now),
            (None, known) => {
                let is_back = known.take().is_some();
                if is_back {
                    tracing::info!("the device's memory can be written again");
                }
                return is_back;
            }
        }
        false
    }

    /// What a person at the device is to know, at once.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.0.as_ref().map(|since| since.message.as_str())
    }

    /// What the server is to know: reports stay here, so that what it was told last may not hold any more.
    pub(crate) fn told(&self, now: Moment) -> Option<&Blind> {
        self.0.as_ref().filter(|since| now.since(since.since) >= TOLD_AFTER)
    }
}

/// Whether this must not begin before it is written down that it does. The others change nothing on the device and are safe to
/// repeat for a process that knows nothing of them.
pub(crate) fn needs_intent(action: &Action) -> bool {
    match action {
        Action::Observe | Action::Poll { .. } | Action::SendCapabilities => false,
        Action::Apply(_)
        | Action::Remove { .. }
        | Action::Prefetch(_)
        | Action::Fetch(_)
        | Action::Send(_) => true,
    }
}

/// Documents that were not fetched, or not kept, because of the disk.
pub(crate) fn no_place(message: String) -> Trouble {
    Trouble { backoff: Backoff::Fixed, advice: Some(FETCH_AGAIN_AFTER), ..Trouble::passing(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_800_000_000_000);

    #[test]
    fn a_memory_that_cannot_be_written_is_told_after_half_a_minute_until_it_can() {
        let error = LedgerError::TooLarge { size: 2, max: 1 };
        let mut unwritten = Unwritten::default();
        unwritten.take_in(Some(&error), NOW);
        assert_eq!(unwritten.told(NOW.after(TOLD_AFTER / 2)), None);
        unwritten.take_in(Some(&error), NOW.after(TOLD_AFTER));
        let told = unwritten.told(NOW.after(TOLD_AFTER)).unwrap();
        assert_eq!(told.since, NOW);
        assert!(told.message.contains("the state would take 2 bytes"), "{}", told.message);
        assert!(unwritten.take_in(None, NOW.after(TOLD_AFTER)), "it is back");
        assert_eq!(unwritten.told(NOW.after(TOLD_AFTER * 2)), None);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_put_off_what_is_told_of_the_memory() {
        let error = LedgerError::TooLarge { size: 2, max: 1 };
        let mut unwritten = Unwritten::default();
        unwritten.take_in(Some(&error), NOW.after(Duration::from_secs(86_400)));
        unwritten.take_in(Some(&error), NOW);
        assert!(unwritten.told(NOW.after(TOLD_AFTER)).is_some());
    }
}
