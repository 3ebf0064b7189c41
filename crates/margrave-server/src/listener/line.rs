//! One connection as others see it: whether it is in the middle of something, since when it is not, and whether it is
//! to end.
//!
//! Everything that time or others can do to a connection comes through here. Nothing of it costs a request more than a
//! look at this, which is one place in memory: a timer and a channel for each connection would cost more than most
//! requests do. Who looks at the clock is the crowd, for all of them, now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Context;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use margrave_device_api::g2::WAIT_MAX;

/// After its time has come, a connection may finish the request it is in; the longest is a held poll.
const LAST_REQUEST_MAX: Duration = WAIT_MAX.saturating_add(Duration::from_secs(30));
/// For one that is quiet and was asked to end: it may be in the middle of saying something.
const GOODBYE_MAX: Duration = Duration::from_secs(2);
/// For a moment that never comes, and in place of one while an answer is being given.
const NEVER: u64 = u64::MAX;

pub(super) struct Line {
    born: Instant,
    /// Moments are milliseconds after `born`. How old it may become.
    life_end: u64,
    /// When the last answer ended.
    quiet_since: AtomicU64,
    stage: AtomicU8,
    /// When it is over, once it is to end.
    over_at: AtomicU64,
    connection: AtomicWaker,
}

/// How far it is; never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Open,
    /// What is being answered is answered, and nothing after it.
    Ending,
    /// Nothing more is waited for.
    Over,
}

impl Stage {
    fn of(number: u8) -> Stage {
        [Stage::Open, Stage::Ending].into_iter().find(|stage| *stage as u8 == number).unwrap_or(Stage::Over)
    }
}

impl Line {
    pub(super) fn new(lifetime: Option<Duration>) -> Arc<Line> {
        Arc::new(Line {
            born: Instant::now(),
            life_end: lifetime.map_or(NEVER, millis),
            quiet_since: AtomicU64::new(0),
            stage: AtomicU8::new(Stage::Open as u8),
            over_at: AtomicU64::new(NEVER),
            connection: AtomicWaker::new(),
        })
    }

    fn at(&self, now: Instant) -> u64 {
        millis(now.saturating_duration_since(self.born))
    }

    /// From the end of a request's headers to the end of its answer.
    pub(super) fn beat(self: &Arc<Self>) -> Busy {
        self.quiet_since.store(NEVER, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    pub(super) fn stage(&self) -> Stage {
        Stage::of(self.stage.load(Ordering::Acquire))
    }

    /// As [`Line::stage`], for the connection itself: it is woken when that changes.
    pub(super) fn watched(&self, context: &Context<'_>) -> Stage {
        self.connection.register(context.waker());
        self.stage()
    }

    /// Asks it to end; false if that was done before.
    pub(super) fn ask_to_end(&self, now: Instant) -> bool {
        let over_at = self.at(now).saturating_add(millis(LAST_REQUEST_MAX));
        let asked = self.advance(Stage::Ending);
        if asked {
            self.over_at.store(over_at, Ordering::Relaxed);
        }
        asked
    }

    fn advance(&self, to: Stage) -> bool {
        let advanced = self.stage.fetch_max(to as u8, Ordering::AcqRel) < to as u8;
        if advanced {
            self.connection.wake();
        }
        advanced
    }

    pub(super) fn is_busy(&self) -> bool {
        self.quiet_since.load(Ordering::Relaxed) == NEVER
    }

    /// Whether its time has come and it is to be asked to end: it is old, or has been quiet for too long. One that was
    /// asked before and does not end is ended here.
    pub(super) fn is_due(&self, now: Instant, quiet_time: Duration) -> bool {
        let now = self.at(now);
        let quiet = now.saturating_sub(self.quiet_since.load(Ordering::Relaxed));
        let quiet_time = millis(quiet_time);
        match self.stage() {
            Stage::Open => quiet >= quiet_time || now >= self.life_end,
            Stage::Ending => {
                let had_its_time = now >= self.over_at.load(Ordering::Relaxed);
                if had_its_time || quiet >= quiet_time.saturating_add(millis(GOODBYE_MAX)) {
                    self.advance(Stage::Over);
                }
                false
            }
            Stage::Over => false,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(NEVER)
}

/// One request that is being answered.
pub(super) struct Busy(Arc<Line>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.quiet_since.store(self.0.at(Instant::now()), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(10);
    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn a_quiet_line_is_asked_to_end_and_then_ended_and_a_busy_one_is_neither() {
        let line = Line::new(None);
        let busy = line.beat();
        assert!(line.is_busy() && !line.is_due(line.born + 20 * QUIET, QUIET));
        drop(busy);
        let quiet_end = line.born + Duration::from_millis(line.quiet_since.load(Ordering::Relaxed)) + QUIET;
        assert!(!line.is_busy() && !line.is_due(quiet_end - MILLISECOND, QUIET));
        assert!(line.is_due(quiet_end, QUIET) && line.ask_to_end(quiet_end));
        // Something came after all, and is answered.
        let busy = line.beat();
        assert!(!line.is_due(quiet_end + GOODBYE_MAX, QUIET) && line.stage() == Stage::Ending);
        drop(busy);
        line.quiet_since.store(0, Ordering::Relaxed);
        assert!(!line.is_due(line.born + QUIET + GOODBYE_MAX, QUIET) && line.stage() == Stage::Over);
        assert!(!line.ask_to_end(quiet_end), "it is over");
    }

    #[test]
    fn a_line_of_age_is_asked_to_end_once_and_has_time_for_its_last_request() {
        let line = Line::new(Some(QUIET));
        let _busy = line.beat();
        let age = line.born + QUIET;
        assert!(!line.is_due(age - MILLISECOND, QUIET) && line.is_due(age, QUIET));
        assert!(line.ask_to_end(age) && !line.ask_to_end(age));
        for (after, stage) in
            [(LAST_REQUEST_MAX - MILLISECOND, Stage::Ending), (LAST_REQUEST_MAX, Stage::Over)]
        {
            assert!(!line.is_due(age + after, QUIET));
            assert_eq!(line.stage(), stage);
        }
    }
}
