//! What became of the requests: counts, times, errors. Written by thousands of devices at once, so it is made
//! of counters; read by one, who compares two looks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use margrave_http::{Error, Phase};
use serde::Serialize;

/// What a device can ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// What am I to run? Answered at once.
    Poll,
    /// The same, held open by the server; how long it took says nothing.
    HeldPoll,
    Capabilities,
    /// A document or a bundle.
    Fetch,
    Report,
}

/// Why a question had no usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// Nobody listens at the address.
    Refused,
    /// No TCP connection for another reason.
    Connect,
    Tls,
    TimedOutDialling,
    TimedOutWaiting,
    /// The connection was closed before the answer was complete.
    Closed,
    /// An answer that is not HTTP, or too large.
    Protocol,
    /// 401 and 403.
    NotAllowed,
    /// Another 4xx.
    ClientError,
    /// 5xx without `Retry-After`.
    ServerError,
    /// Bytes that are not what their digest promised, or a manifest that went back.
    Content,
    /// A certificate could not be renewed.
    Renewal,
}

impl Trouble {
    pub const ALL: [Trouble; 12] = [
        Trouble::Refused,
        Trouble::Connect,
        Trouble::Tls,
        Trouble::TimedOutDialling,
        Trouble::TimedOutWaiting,
        Trouble::Closed,
        Trouble::Protocol,
        Trouble::NotAllowed,
        Trouble::ClientError,
        Trouble::ServerError,
        Trouble::Content,
        Trouble::Renewal,
    ];

    /// For a table that people read.
    pub fn words(self) -> &'static str {
        match self {
            Trouble::Refused => "connection refused",
            Trouble::Connect => "no connection",
            Trouble::Tls => "TLS failed",
            Trouble::TimedOutDialling => "timed out connecting",
            Trouble::TimedOutWaiting => "timed out waiting for an answer",
            Trouble::Closed => "closed before the answer",
            Trouble::Protocol => "not HTTP as expected",
            Trouble::NotAllowed => "not allowed (401, 403)",
            Trouble::ClientError => "request refused (4xx)",
            Trouble::ServerError => "server error (5xx)",
            Trouble::Content => "content refused",
            Trouble::Renewal => "certificate not renewed",
        }
    }

    pub(crate) fn of(error: &Error) -> Trouble {
        match error {
            Error::Connect { source, .. } if source.kind() == std::io::ErrorKind::ConnectionRefused => {
                Trouble::Refused
            }
            Error::Connect { .. } | Error::Resolve { .. } => Trouble::Connect,
            Error::Tls { .. } => Trouble::Tls,
            Error::Timeout { phase: Phase::Dial, .. } => Trouble::TimedOutDialling,
            Error::Timeout { .. } => Trouble::TimedOutWaiting,
            Error::Closed(_) => Trouble::Closed,
            Error::TooLarge { .. } | Error::Protocol(_) | Error::Request(_) => Trouble::Protocol,
        }
    }
}

/// Durations in buckets that are never wider than an eighth of what they hold, from a microsecond to an hour.
pub struct Times {
    buckets: [AtomicU64; BUCKETS],
    longest_micros: AtomicU64,
}

/// Eight for each doubling of a microsecond; 2^32 microseconds are more than an hour.
const BUCKETS: usize = 8 * 32;

impl Default for Times {
    fn default() -> Times {
        Times { buckets: std::array::from_fn(|_| AtomicU64::new(0)), longest_micros: AtomicU64::new(0) }
    }
}

impl Times {
    pub fn add(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(micros)].fetch_add(1, Ordering::Relaxed);
        self.longest_micros.fetch_max(micros, Ordering::Relaxed);
    }

    pub fn look(&self) -> TimesLook {
        TimesLook {
            buckets: self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            longest: Duration::from_micros(self.longest_micros.load(Ordering::Relaxed)),
        }
    }
}

fn bucket(micros: u64) -> usize {
    let micros = micros.max(1);
    let doubling = 63 - micros.leading_zeros() as usize;
    // The three bits below the leading one.
    let eighth = if doubling >= 3 { (micros >> (doubling - 3)) & 7 } else { (micros << (3 - doubling)) & 7 };
    (doubling * 8 + eighth as usize).min(BUCKETS - 1)
}

/// The upper end of a bucket.
fn bound(bucket: usize) -> Duration {
    let (doubling, eighth) = (bucket / 8, (bucket % 8) as u64);
    Duration::from_nanos(((1000u64 << doubling) / 8).saturating_mul(8 + eighth + 1))
}

/// [`Times`] at one moment.
#[derive(Debug, Clone)]
pub struct TimesLook {
    buckets: Vec<u64>,
    longest: Duration,
}

impl TimesLook {
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The time that `part` (0 to 1) of all stayed below.
    pub fn quantile(&self, part: f64) -> Duration {
        let wanted = (self.count() as f64 * part.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return bound(bucket).min(self.longest);
            }
        }
        self.longest
    }

    /// The longest ever, also before the earlier look.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    pub fn since(&self, earlier: &TimesLook) -> TimesLook {
        let buckets = self.buckets.iter().zip(&earlier.buckets).map(|(now, then)| now - then).collect();
        TimesLook { buckets, longest: self.longest }
    }
}

/// Everything that is counted.
pub struct Tally {
    began: Instant,
    /// Devices whose latest request was answered.
    reached: AtomicU64,
    /// Polls that the server holds open at this moment.
    waiting: AtomicU64,
    unchanged: AtomicU64,
    manifests: AtomicU64,
    fetched: AtomicU64,
    reports: AtomicU64,
    paced: AtomicU64,
    renewals: AtomicU64,
    /// Microseconds after `began`, as the two below.
    forgiven_before: AtomicU64,
    first_manifest: AtomicU64,
    last_manifest: AtomicU64,
    troubles: [AtomicU64; Trouble::ALL.len()],
    /// An example in words for each kind of trouble.
    examples: Mutex<BTreeMap<Trouble, String>>,
    polls: Times,
    fetches: Times,
    report_times: Times,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            began: Instant::now(),
            reached: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            manifests: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            reports: AtomicU64::new(0),
            paced: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            forgiven_before: AtomicU64::new(0),
            first_manifest: AtomicU64::new(u64::MAX),
            last_manifest: AtomicU64::new(0),
            troubles: std::array::from_fn(|_| AtomicU64::new(0)),
            examples: Mutex::default(),
            polls: Times::default(),
            fetches: Times::default(),
            report_times: Times::default(),
        }
    }
}

/// A gauge that goes down when it is dropped.
pub(crate) struct Held<'a>(&'a AtomicU64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tally {
    pub(crate) fn hold(&self) -> Held<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Held(&self.waiting)
    }

    pub(crate) fn reach(&self) -> Held<'_> {
        self.reached.fetch_add(1, Ordering::Relaxed);
        Held(&self.reached)
    }

    pub(crate) fn renewed(&self) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unchanged(&self) {
        self.unchanged.fetch_add(1, Ordering::Relaxed);
    }

    /// How long it is since somebody was last given a manifest.
    pub(crate) fn since_manifest(&self) -> Duration {
        let last = Duration::from_micros(self.last_manifest.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(last)
    }

    pub(crate) fn manifest(&self) {
        let at = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.manifests.fetch_add(1, Ordering::Relaxed);
        self.first_manifest.fetch_min(at, Ordering::Relaxed);
        self.last_manifest.fetch_max(at, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, question: Question, took: Duration) {
        match question {
            Question::Poll => self.polls.add(took),
            Question::HeldPoll | Question::Capabilities => {}
            Question::Fetch => {
                self.fetched.fetch_add(1, Ordering::Relaxed);
                self.fetches.add(took);
            }
            Question::Report => {
                self.reports.fetch_add(1, Ordering::Relaxed);
                self.report_times.add(took);
            }
        }
    }

    /// The server asked to come back later, which is no error.
    pub(crate) fn paced(&self) {
        self.paced.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that began at `begun` had no usable answer.
    pub(crate) fn troubled(&self, trouble: Trouble, begun: Instant, example: &dyn Fn() -> String) {
        let at = u64::try_from(begun.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX);
        let is_absence = matches!(trouble, Trouble::Refused | Trouble::Connect | Trouble::Closed);
        if is_absence && at < self.forgiven_before.load(Ordering::Relaxed) {
            return;
        }
        if self.troubles[trouble as usize].fetch_add(1, Ordering::Relaxed) == 0 {
            let mut examples = self.examples.lock().unwrap_or_else(PoisonError::into_inner);
            examples.insert(trouble, example());
        }
    }

    /// Requests that began before now, and find that the server went away under them, are no longer counted as
    /// errors: it was stopped on purpose.
    pub fn forgive_absence(&self) {
        let at = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.forgiven_before.store(at, Ordering::Relaxed);
    }

    /// From now on the first and last new manifest are those to come.
    pub fn watch_manifests(&self) {
        self.first_manifest.store(u64::MAX, Ordering::Relaxed);
        self.last_manifest.store(0, Ordering::Relaxed);
    }

    pub fn look(&self) -> Look {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let at = |counter: &AtomicU64| self.began + Duration::from_micros(load(counter));
        let manifests_seen = load(&self.last_manifest) > 0;
        Look {
            at: Instant::now(),
            reached: load(&self.reached),
            waiting: load(&self.waiting),
            unchanged: load(&self.unchanged),
            manifests: load(&self.manifests),
            fetched: load(&self.fetched),
            reports: load(&self.reports),
            paced: load(&self.paced),
            renewals: load(&self.renewals),
            manifest_times: manifests_seen.then(|| (at(&self.first_manifest), at(&self.last_manifest))),
            troubles: Trouble::ALL
                .into_iter()
                .map(|trouble| (trouble, load(&self.troubles[trouble as usize])))
                .collect(),
            polls: self.polls.look(),
            fetches: self.fetches.look(),
            report_times: self.report_times.look(),
        }
    }

    /// One real message for a kind of trouble.
    pub fn example(&self, trouble: Trouble) -> Option<String> {
        self.examples.lock().unwrap_or_else(PoisonError::into_inner).get(&trouble).cloned()
    }
}

/// The tally at one moment. Counts are since the beginning.
#[derive(Debug, Clone)]
pub struct Look {
    pub at: Instant,
    pub reached: u64,
    pub waiting: u64,
    /// 304.
    pub unchanged: u64,
    /// 200 with a manifest.
    pub manifests: u64,
    pub fetched: u64,
    pub reports: u64,
    /// 429 and 503 with `Retry-After`.
    pub paced: u64,
    pub renewals: u64,
    /// When the first and the last new manifest arrived since [`Tally::watch_manifests`].
    pub manifest_times: Option<(Instant, Instant)>,
    pub troubles: BTreeMap<Trouble, u64>,
    pub polls: TimesLook,
    pub fetches: TimesLook,
    pub report_times: TimesLook,
}

impl Look {
    /// What happened between an earlier look and this one; what is true at one moment stays as it is now.
    pub fn since(&self, earlier: &Look) -> Look {
        let troubles = self
            .troubles
            .iter()
            .map(|(trouble, count)| (*trouble, count - earlier.troubles.get(trouble).copied().unwrap_or(0)))
            .collect();
        Look {
            unchanged: self.unchanged - earlier.unchanged,
            manifests: self.manifests - earlier.manifests,
            fetched: self.fetched - earlier.fetched,
            reports: self.reports - earlier.reports,
            paced: self.paced - earlier.paced,
            renewals: self.renewals - earlier.renewals,
            troubles,
            polls: self.polls.since(&earlier.polls),
            fetches: self.fetches.since(&earlier.fetches),
            report_times: self.report_times.since(&earlier.report_times),
            ..self.clone()
        }
    }

    pub fn errors(&self) -> u64 {
        self.troubles.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_an_eighth() {
        let times = Times::default();
        for micros in 1..=10_000u64 {
            times.add(Duration::from_micros(micros));
        }
        let look = times.look();
        assert_eq!(look.count(), 10_000);
        for (part, exact) in [(0.5, 5_000.0), (0.9, 9_000.0), (0.99, 9_900.0)] {
            let found = look.quantile(part).as_micros() as f64;
            assert!((exact..=exact * 1.13).contains(&found), "{part}: {found}");
        }
        assert_eq!(look.longest(), Duration::from_micros(10_000));
        assert_eq!(look.quantile(1.0), Duration::from_micros(10_000));
    }

    #[test]
    fn every_duration_has_a_bucket() {
        for micros in [0, 1, 2, 7, 8, 9, 1 << 20, u64::MAX] {
            assert!(bucket(micros) < BUCKETS);
        }
        let times = Times::default();
        times.add(Duration::from_secs(1_000_000));
        assert_eq!(times.look().count(), 1);
        let bounds: Vec<Duration> = (0..BUCKETS).map(bound).collect();
        assert!(bounds.is_sorted());
    }

    #[test]
    fn a_look_since_another_has_only_what_is_new() {
        let tally = Tally::default();
        tally.unchanged();
        tally.troubled(Trouble::Tls, Instant::now(), &|| "first".to_owned());
        let before = tally.look();
        tally.unchanged();
        tally.answered(Question::Report, Duration::from_millis(3));
        tally.troubled(Trouble::Tls, Instant::now(), &|| "second".to_owned());
        let new = tally.look().since(&before);
        assert_eq!((new.unchanged, new.reports, new.errors()), (1, 1, 1));
        assert_eq!(tally.example(Trouble::Tls).unwrap(), "first");
        assert_eq!(new.report_times.count(), 1);
    }

    #[test]
    fn only_what_began_while_the_server_was_away_is_forgiven() {
        let tally = Tally::default();
        let before = Instant::now();
        while before.elapsed() < Duration::from_micros(10) {}
        tally.forgive_absence();
        let example = || "example".to_owned();
        tally.troubled(Trouble::Refused, before, &example);
        assert_eq!(tally.look().errors(), 0);
        tally.troubled(Trouble::TimedOutWaiting, before, &example);
        while before.elapsed() < Duration::from_micros(1000) {}
        tally.troubled(Trouble::Refused, Instant::now(), &example);
        assert_eq!(tally.look().errors(), 2);
    }

    #[test]
    fn what_is_held_is_counted_until_it_is_let_go() {
        let tally = Tally::default();
        let held = tally.hold();
        assert_eq!(tally.look().waiting, 1);
        drop(held);
        assert_eq!(tally.look().waiting, 0);
    }
}
