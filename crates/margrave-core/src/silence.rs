//! Who is not heard of any more, and when that is told.
//!
//! Silence is a matter of the clock: nobody sends it. Whoever looks now and then says here who is silent, and is told what of it
//! is news. A site that goes dark falls silent piece by piece, for as long as polls are held, so what happens soon after something
//! was told is gathered: an outage is a handful of news, however many devices it meets.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use crate::moment::Moment;

/// After news, this long at least until the next; twice as long after each that follows soon.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// The longest that a page may show what is not so any more.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// So long without news, and the next are told at once again.
const CALM: Duration = Duration::from_secs(3 * 60);

/// When the server was there to hear anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Up {
    /// It was started.
    pub since: Moment,
    /// It was last there before that.
    pub before: Moment,
}

impl Up {
    /// A server that was there at `before` is started. A clock that jumped back in between is no time away.
    pub fn new(since: Moment, before: Moment) -> Up {
        Up { since, before: before.min(since) }
    }

    /// Who was not heard of since is silent, where silence is `after` so long: time in which the server was away is nobody's
    /// silence.
    pub fn silent_before(&self, now: Moment, after: Duration) -> Moment {
        let listened = now.since(self.since);
        match after.checked_sub(listened) {
            Some(missing) if !missing.is_zero() => before(self.before, missing),
            _ => before(now, after),
        }
    }
}

fn before(moment: Moment, duration: Duration) -> Moment {
    Moment(moment.0.saturating_sub(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}

/// What is known of who is silent, and what of it was told.
#[derive(Debug, Clone)]
pub struct Hearing<C> {
    silent: BTreeSet<C>,
    news: News<C>,
    told: Option<Moment>,
    pause: Duration,
}

/// What is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News<C> {
    pub fell: BTreeSet<C>,
    pub returned: BTreeSet<C>,
}

impl<C> Default for News<C> {
    fn default() -> Self {
        News { fell: BTreeSet::new(), returned: BTreeSet::new() }
    }
}

impl<C> News<C> {
    fn is_empty(&self) -> bool {
        self.fell.is_empty() && self.returned.is_empty()
    }
}

impl<C: Ord + Clone> Hearing<C> {
    /// Who is silent already is no news.
    pub fn new(silent: BTreeSet<C>) -> Self {
        Hearing { silent, news: News::default(), told: None, pause: PAUSE_MIN }
    }

    /// These are silent now. Of those that are not any more `is_heard` says who was heard of: the others were retired, or are
    /// allowed to be quiet.
    pub fn look(&mut self, silent: BTreeSet<C>, is_heard: impl Fn(&C) -> bool) {
        let before = mem::replace(&mut self.silent, silent);
        for fell in self.silent.difference(&before) {
            // Who is back and gone again before anybody heard of it was silent all the time.
            if !self.news.returned.remove(fell) {
                self.news.fell.insert(fell.clone());
            }
        }
        for other in before.difference(&self.silent) {
            if !self.news.fell.remove(other) && is_heard(other) {
                self.news.returned.insert(other.clone());
            }
        }
    }

    /// What is to be told now; nothing while it is gathered.
    pub fn due(&self, now: Moment) -> Option<&News<C>> {
        // A clock that jumped back delays nothing for long.
        let gathers = self.told.is_some_and(|told| told <= now && now.since(told) < self.pause);
        (!self.news.is_empty() && !gathers).then_some(&self.news)
    }

    /// What was due has been told.
    pub fn told(&mut self, now: Moment) {
        let is_calm = self.told.is_none_or(|told| now.since(told) >= CALM);
        self.pause = if is_calm { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
        self.told = Some(now);
        self.news = News::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn after(minutes: u64) -> Duration {
        Duration::from_secs(minutes * 60)
    }

    #[test]
    fn time_in_which_the_server_was_away_is_nobodys_silence() {
        let up = Up::new(Moment(100 * MINUTE), Moment(40 * MINUTE));
        let silent_before = |now: u64| up.silent_before(Moment(now * MINUTE), after(7)).0 / MINUTE;
        assert_eq!(silent_before(100), 33, "who was silent when it stopped is silent");
        assert_eq!(silent_before(102), 35, "two minutes more");
        assert_eq!(silent_before(106), 39, "who was heard of last of all has a minute left");
        assert_eq!(silent_before(107), 100, "it has listened for long enough by itself");
        assert_eq!(silent_before(200), 193);
        let jumped = Up::new(Moment(10 * MINUTE), Moment(90 * MINUTE));
        assert_eq!(jumped.silent_before(Moment(10 * MINUTE), after(7)), Moment(3 * MINUTE));
        assert_eq!(Up::default().silent_before(Moment(MINUTE), after(7)), Moment(0));
    }

    /// Lives through looks at `(second, who is silent)` and says what was told when.
    fn told(looks: &[(u64, &str)]) -> Vec<String> {
        let mut hearing = Hearing::new(BTreeSet::new());
        let mut told = Vec::new();
        for (second, silent) in looks {
            let now = Moment(second * 1000);
            hearing.look(silent.chars().collect(), |who| *who != 'r');
            if let Some(News { fell, returned }) = hearing.due(now) {
                let words = |who: &BTreeSet<char>| who.iter().collect::<String>();
                told.push(format!("{second}: -{} +{}", words(fell), words(returned)));
                hearing.told(now);
            }
        }
        told
    }

    #[test]
    fn the_first_is_told_at_once_and_what_follows_soon_is_gathered() {
        assert_eq!(
            told(&[(0, ""), (5, "a"), (10, "ab"), (15, "abc"), (20, "abcd"), (25, "abcde"), (35, "abcdef")]),
            ["5: -a +", "15: -bc +", "35: -def +"]
        );
        assert_eq!(told(&[(5, "a"), (10, ""), (15, "")]), ["5: -a +", "15: - +a"]);
        assert_eq!(told(&[(5, "a"), (300, "ab"), (310, "abc"), (320, "abcd")]).len(), 3, "calm in between");
    }

    #[test]
    fn who_is_gone_and_back_in_between_is_no_news() {
        assert_eq!(told(&[(5, "a"), (7, "ab"), (9, "a"), (60, "a")]), ["5: -a +"]);
        assert_eq!(
            told(&[(5, "a"), (300, "ab"), (303, "b"), (306, "ab"), (600, "ab")]),
            ["5: -a +", "300: -b +"]
        );
    }

    #[test]
    fn who_was_retired_did_not_come_back() {
        assert_eq!(told(&[(5, "r"), (300, "")]), ["5: -r +"]);
        assert_eq!(told(&[(5, "a"), (7, "ar"), (9, "a"), (60, "a")]), ["5: -a +"]);
    }

    #[test]
    fn an_outage_of_many_is_a_handful_of_news() {
        let mut hearing = Hearing::new(BTreeSet::new());
        let mut times = 0;
        // Ten thousand, whose polls were held for up to five minutes.
        for look in 0..120u64 {
            let now = Moment(look * 5000);
            hearing.look((0..(look * 170).min(10_000)).collect(), |_| true);
            if hearing.due(now).is_some() {
                times += 1;
                hearing.told(now);
            }
        }
        assert!(times <= 9, "{times}");
        assert!(hearing.due(Moment(u64::MAX)).is_none(), "nothing is left out");
    }

    #[test]
    fn a_clock_that_jumped_back_delays_nothing() {
        assert_eq!(told(&[(5000, "a"), (10, "ab")]), ["5000: -a +", "10: -b +"]);
    }

    #[test]
    fn who_was_silent_from_the_beginning_is_told_of_when_it_is_back() {
        let mut hearing = Hearing::new(BTreeSet::from(['a', 'b']));
        assert_eq!(hearing.due(Moment(0)), None);
        hearing.look(BTreeSet::from(['b']), |_| true);
        assert_eq!(hearing.due(Moment(0)).unwrap().returned, BTreeSet::from(['a']));
    }
}
