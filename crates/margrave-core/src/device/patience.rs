//! When an exchange with the server may be tried next.
//!
//! Two clocks run. A [`Pause`] belongs to one kind of exchange and grows as the server's words say
//! (`backoffStrategy`, `retryAfterSeconds`). [`Quiet`] belongs to all of them: a server that answered with
//! `Retry-After` is left alone until then, whatever there is to say (MI-G2-193).

use std::time::Duration;

use crate::moment::Moment;

use super::{Backoff, Settings, Trouble, backoff};

/// A `Retry-After` beyond a day is taken for a mistake: a server may ask for patience, but not for eternity.
const QUIET_MAX: Duration = Duration::from_secs(24 * 3600);
/// The first pause after a failure that nobody gave advice about.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// A quiet time this long must survive a restart; a shorter one is over by the time the agent is back, and not
/// worth a write.
pub(super) const QUIET_KEPT_MIN: Duration = Duration::from_secs(60);

/// When an exchange may be tried next, and how often it went wrong in a row.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pause {
    pub(super) until: Moment,
    /// How long it was when it began.
    length: Duration,
    failures: u32,
}

impl Pause {
    pub(super) fn due(&self, now: Moment) -> bool {
        // More is left than there was in the beginning: the clock jumped back, be it by an hour.
        now >= self.until || self.until.since(now) > self.length
    }

    pub(super) fn succeeded(&mut self, now: Moment, length: Duration) {
        *self = Pause { until: now.after(length), length, failures: 0 };
    }

    /// `every` is the time between two polls.
    pub(super) fn failed(
        &mut self,
        settings: &Settings,
        every: Duration,
        now: Moment,
        roll: f64,
        trouble: &Trouble,
    ) {
        let advised = trouble.advice.unwrap_or_default().min(QUIET_MAX);
        let pause = match trouble.backoff {
            // No backoff: the exchange comes again in its regular rhythm, and no sooner than advised.
            Backoff::None => spread(every.max(advised), roll),
            Backoff::Fixed => spread(if advised.is_zero() { every } else { advised }, roll).max(advised),
            Backoff::Exponential => {
                let base = advised.max(FIRST_PAUSE);
                backoff(base, settings.poll_backoff_max.max(base), self.failures, roll).max(advised)
            }
        };
        self.failures = self.failures.saturating_add(1);
        (self.until, self.length) = (now.after(pause), pause);
    }

    pub(super) fn at_least(&mut self, now: Moment, length: Duration) {
        if self.until < now.after(length) {
            (self.until, self.length) = (now.after(length), length);
        }
    }

    /// The way to the server is a new one, so what was learnt about the old one does not count.
    pub(super) fn forget(&mut self, now: Moment) {
        self.succeeded(now, Duration::ZERO);
    }
}

/// Around `pause`, so that a fleet does not march in step.
pub(super) fn spread(pause: Duration, roll: f64) -> Duration {
    pause.mul_f64(0.75 + roll.clamp(0.0, 1.0) / 2.0)
}

/// The server asked to be left alone.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quiet {
    pub(super) since: Moment,
    pub(super) until: Moment,
}

impl Quiet {
    /// Until it may be spoken to again: never earlier than it asked for, and not all at once.
    pub(super) fn asked(now: Moment, asked: Duration, roll: f64) -> Quiet {
        let asked = asked.min(QUIET_MAX);
        Quiet { since: now, until: now.after(asked + asked.mul_f64(roll.clamp(0.0, 1.0) / 10.0)) }
    }

    /// As it was written down. Older agents did not say since when: then it is as long as any may be.
    pub(super) fn kept(since: Option<Moment>, until: Moment) -> Quiet {
        let longest = u64::try_from((QUIET_MAX + QUIET_MAX / 10).as_millis()).unwrap_or(u64::MAX);
        Quiet { since: since.unwrap_or(Moment(until.0.saturating_sub(longest))), until }
    }

    /// Whether its end still lies ahead, by a clock that may have jumped.
    pub(super) fn lasts(&self, now: Moment) -> bool {
        let length = self.until.since(self.since);
        // More is left than there was in the beginning, and more than a clock is put right by all the time: it was set back.
        now < self.until && self.until.since(now) <= length + length / 10
    }

    /// The one that ends later, of those that last.
    pub(super) fn or_longer(self, other: Quiet, now: Moment) -> Quiet {
        if other.lasts(now) && (other.until > self.until || !self.lasts(now)) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_800_000_000_000);

    fn settings() -> Settings {
        Settings::new("line-1".parse().unwrap())
    }

    fn trouble(backoff: Backoff, advice: Option<u64>) -> Trouble {
        Trouble { backoff, advice: advice.map(Duration::from_secs), ..Trouble::passing("away") }
    }

    /// The pauses of five failures in a row, in seconds, with the same roll of the dice.
    fn pauses(trouble: &Trouble, roll: f64) -> Vec<f64> {
        let mut pause = Pause::default();
        let one = |_| {
            pause.failed(&settings(), settings().poll_every, NOW, roll, trouble);
            pause.until.since(NOW).as_secs_f64()
        };
        (0..5).map(one).collect()
    }

    #[test]
    fn mi_g2_193_the_strategy_decides_how_pauses_grow() {
        assert_eq!(pauses(&trouble(Backoff::Exponential, None), 0.0), [1.0, 2.0, 4.0, 8.0, 16.0]);
        assert_eq!(pauses(&trouble(Backoff::Fixed, Some(20)), 0.5), [20.0; 5]);
        assert_eq!(pauses(&trouble(Backoff::Fixed, None), 0.5), [30.0; 5]);
        assert_eq!(pauses(&trouble(Backoff::None, None), 0.5), [30.0; 5]);
        assert_eq!(pauses(&trouble(Backoff::None, Some(90)), 0.5), [90.0; 5]);
    }

    #[test]
    fn mi_g2_193_advice_is_a_floor_for_growing_pauses_and_the_limit_stays() {
        let advised = pauses(&trouble(Backoff::Exponential, Some(100)), 0.0);
        assert_eq!(advised, [100.0, 200.0, 300.0, 300.0, 300.0]);
        assert!(pauses(&trouble(Backoff::Exponential, Some(100)), 1.0).iter().all(|pause| *pause >= 100.0));
        // Advice beyond the limit is followed, but not beyond a day.
        assert_eq!(pauses(&trouble(Backoff::Exponential, Some(u64::MAX)), 0.0), [86_400.0; 5]);
    }

    #[test]
    fn a_clock_that_is_set_back_prolongs_no_pause() {
        let mut pause = Pause::default();
        pause.failed(&settings(), settings().poll_every, NOW, 0.0, &trouble(Backoff::Fixed, Some(20)));
        let at = |millis: i64| Moment(NOW.0.saturating_add_signed(millis));
        assert!(!pause.due(at(0)) && !pause.due(at(19_000)) && pause.due(at(20_000)));
        for hours in [1, 11, 24, 24 * 365] {
            assert!(pause.due(at(-hours * 3_600_000)), "{hours} hours");
        }
    }

    #[test]
    fn pauses_are_spread() {
        for strategy in [Backoff::None, Backoff::Fixed, Backoff::Exponential] {
            let (low, high) = (pauses(&trouble(strategy, None), 0.1), pauses(&trouble(strategy, None), 0.9));
            assert!(low.iter().zip(&high).all(|(low, high)| (low - high).abs() > 0.1), "{low:?} {high:?}");
        }
    }

    #[test]
    fn mi_g2_193_quiet_never_ends_early_and_never_lasts_for_ever() {
        for roll in [0.0, 0.3, 1.0] {
            let Quiet { until, .. } = Quiet::asked(NOW, Duration::from_secs(100), roll);
            assert!(
                until >= NOW.after(Duration::from_secs(100)) && until <= NOW.after(Duration::from_secs(110))
            );
        }
        let endless = Quiet::asked(NOW, Duration::MAX, 1.0);
        assert!(endless.until <= NOW.after(Duration::from_secs(27 * 3600)));
        assert!(endless.lasts(NOW) && !endless.lasts(endless.until));
        // The clock jumped back by years.
        assert!(!endless.lasts(Moment(1_000)));
        // One of an older agent, of which nobody knows when it began.
        let kept = Quiet::kept(None, endless.until);
        assert!(kept.lasts(NOW) && !kept.lasts(Moment(1_000)));
    }

    #[test]
    fn a_clock_that_is_set_back_prolongs_no_quiet() {
        let quiet = Quiet::asked(NOW, Duration::from_secs(30), 0.0);
        let back = |seconds: u64| Moment(NOW.0 - 1000 * seconds);
        assert!(quiet.lasts(back(1)), "put right by a little, it was not set back");
        assert!(!quiet.lasts(back(60)) && !quiet.lasts(back(8 * 3600)));
        // What ended by a jump does not outdo what lasts.
        let (shorter, now) = (Quiet::asked(back(3600), Duration::from_secs(5), 0.0), back(3600));
        assert!(shorter.or_longer(quiet, now).lasts(now));
        assert!(quiet.or_longer(shorter, now).lasts(now));
    }
}
