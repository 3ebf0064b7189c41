//! How much of the server one device may have, and all of them together.
//!
//! Limits go by identity, never by address: a plant is one address. One identity over its rate hears 429, and
//! everybody hears 503 when there is too much of everything; both say when to come back, each device at another
//! moment. Answers from memory (an unchanged manifest) are not counted as work, only against the rate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use margrave_core::id::ClientId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A device asks a few times a minute. A gateway with a hundred devices behind it that all have something to say
/// stays below; what asks more often than this is broken, and would ask for ever.
const RATE: u32 = 20;
/// What it may ask in one go: a device that was offline for a week, and tells of it.
const BURST: u32 = 100;

/// What all those may ask together who have proven nothing to the signed interface (g1): whose signature does not count,
/// who names nobody, or who wants to be let in. To check a signature takes a tenth of a millisecond, with the largest
/// keys a few: strangers get no more than a part of one processor. A plant of some thousands that waits to be let in,
/// asking once a minute, stays below.
const STRANGERS_RATE: u32 = 100;
const STRANGERS_BURST: u32 = 1_000;
/// For how long a client is doubted in whose name somebody asked wrongly.
const DOUBT: Duration = Duration::from_secs(10);

/// Requests that are being worked on at the same time; as many as the store lets wait for one commit and the next.
/// Held polls are none: they wait and do nothing.
const WORK_MAX: usize = 8_192;
/// For bodies that are arriving or being read, in kilobytes: 64 MB, or a thousand of the largest reports at once.
const BODIES_KB_MAX: usize = 64 * 1024;
/// For documents and bundles on their way to devices that may be slow to take them, in kilobytes: 256 MB.
const ARTIFACTS_KB_MAX: usize = 256 * 1024;

/// When there is too much of everything, devices come back within this time, each at its own moment.
const BUSY_RETRY: Duration = Duration::from_secs(30);
/// When one asks too much, it comes back within this time.
const RATE_RETRY: Duration = Duration::from_secs(5);

/// Accounts that are looked through for ones to forget; below, it is not worth the while.
const ACCOUNTS_SWEPT_MIN: usize = 1024;

pub(crate) struct Admission {
    accounts: Mutex<Accounts>,
    strangers: Account,
    work: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    artifacts: Arc<Semaphore>,
    born: Instant,
}

#[derive(Default)]
struct Accounts {
    of: HashMap<ClientId, Arc<Account>>,
    /// When there are so many, those that say nothing are forgotten. Those that stay belong to open connections, of
    /// which there is a bound, or to ones that ended within the last seconds.
    sweep_at: usize,
}

/// What one identity has used up of its rate.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Microseconds after the birth of [`Admission`]: when everything that was asked would be paid for, at the rate.
    paid_at: AtomicU64,
    /// Until when somebody who asks in its name may well be somebody else.
    doubted_until: AtomicU64,
}

/// So much at once, and then one after the other; in microseconds.
#[derive(Clone, Copy)]
struct Rate {
    one: u64,
    all: u64,
}

impl Rate {
    const CLIENT: Rate = Rate::new(RATE, BURST);
    const STRANGERS: Rate = Rate::new(STRANGERS_RATE, STRANGERS_BURST);

    const fn new(rate: u32, burst: u32) -> Rate {
        let one = 1_000_000 / rate as u64;
        Rate { one, all: one * burst as u64 }
    }
}

/// A part of what all requests may use together, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    _work: OwnedSemaphorePermit,
    _body: Option<OwnedSemaphorePermit>,
}

/// The server has too much to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Admission {
    pub(crate) fn new() -> Arc<Admission> {
        Admission::with(WORK_MAX, BODIES_KB_MAX, ARTIFACTS_KB_MAX)
    }

    fn with(work: usize, bodies: usize, artifacts: usize) -> Arc<Admission> {
        Arc::new(Admission {
            accounts: Mutex::default(),
            strangers: Account::default(),
            work: Arc::new(Semaphore::new(work)),
            bodies: Arc::new(Semaphore::new(bodies)),
            artifacts: Arc::new(Semaphore::new(artifacts)),
            born: Instant::now(),
        })
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The account of an identity. Whoever keeps it need not ask again.
    pub(crate) fn account(&self, client: &ClientId) -> Arc<Account> {
        self.account_at(client, self.elapsed())
    }

    fn account_at(&self, client: &ClientId, now: u64) -> Arc<Account> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.of.get(client) {
            return Arc::clone(account);
        }
        if accounts.of.len() >= accounts.sweep_at {
            accounts.of.retain(|_, account| Arc::strong_count(account) > 1 || account.says_something(now));
            accounts.sweep_at = accounts.of.len().saturating_mul(2).max(ACCOUNTS_SWEPT_MIN);
        }
        Arc::clone(accounts.of.entry(client.clone()).or_default())
    }

    /// Takes one request from an account; otherwise says when to come back.
    pub(crate) fn charge(&self, account: &Account) -> Result<(), Duration> {
        account.charge(Rate::CLIENT, self.elapsed()).map_err(rate_retry)
    }

    /// Takes one request from what strangers may ask together; otherwise says when to come back.
    pub(crate) fn charge_stranger(&self) -> Result<(), Duration> {
        self.strangers.charge(Rate::STRANGERS, self.elapsed()).map_err(rate_retry)
    }

    /// Somebody asked in the name of a client and was not it. It counts as a stranger's request, and not as one of the
    /// client's: nobody may use up what a device may ask without having its key.
    pub(crate) fn forged(&self, client: &ClientId) {
        self.forged_at(client, self.elapsed());
    }

    fn forged_at(&self, client: &ClientId, now: u64) {
        let doubt = u64::try_from(DOUBT.as_micros()).unwrap_or(u64::MAX);
        self.account_at(client, now).doubted_until.fetch_max(now.saturating_add(doubt), Ordering::Relaxed);
        // Full is full: this request was looked at already.
        self.strangers.charge(Rate::STRANGERS, now).unwrap_or_default();
    }

    /// Whether to look at a request in the name of a client. Not while strangers use up all that they may and somebody
    /// asks wrongly in this very name; everybody else is looked at even then.
    pub(crate) fn claimed(&self, client: &ClientId) -> Result<(), Duration> {
        self.claimed_at(client, self.elapsed()).map_err(rate_retry)
    }

    fn claimed_at(&self, client: &ClientId, now: u64) -> Result<(), Duration> {
        match self.strangers.wait(Rate::STRANGERS, now) {
            Some(wait) if self.account_at(client, now).doubted_until.load(Ordering::Relaxed) > now => {
                Err(wait)
            }
            _ => Ok(()),
        }
    }

    /// A share for a request whose body takes up to `body` bytes.
    pub(crate) fn share(&self, body: u64) -> Result<Share, Full> {
        let work = Arc::clone(&self.work).try_acquire_owned().map_err(|_| Full)?;
        let body = (body > 0).then(|| reserve(&self.bodies, body)).transpose()?;
        Ok(Share { _work: work, _body: body })
    }

    /// Room for an answer of so many bytes until its device has taken it.
    pub(crate) fn artifact(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Full> {
        reserve(&self.artifacts, bytes)
    }
}

fn reserve(from: &Arc<Semaphore>, bytes: u64) -> Result<OwnedSemaphorePermit, Full> {
    let kilobytes = u32::try_from(bytes.div_ceil(1024)).map_err(|_| Full)?;
    Arc::clone(from).try_acquire_many_owned(kilobytes).map_err(|_| Full)
}

impl Account {
    /// `now` in microseconds; the wait if it has to.
    fn charge(&self, rate: Rate, now: u64) -> Result<(), Duration> {
        let charged = self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid_at| {
            let paid_at = paid_at.max(now) + rate.one;
            (paid_at - now <= rate.all).then_some(paid_at)
        });
        match charged {
            Ok(_) => Ok(()),
            Err(paid_at) => Err(rate.wait(paid_at, now)),
        }
    }

    /// How long the next one would have to wait, if it would.
    fn wait(&self, rate: Rate, now: u64) -> Option<Duration> {
        Some(rate.wait(self.paid_at.load(Ordering::Relaxed), now)).filter(|wait| !wait.is_zero())
    }

    fn says_something(&self, now: u64) -> bool {
        self.paid_at.load(Ordering::Relaxed) > now || self.doubted_until.load(Ordering::Relaxed) > now
    }
}

impl Rate {
    fn wait(self, paid_at: u64, now: u64) -> Duration {
        Duration::from_micros((paid_at + self.one).saturating_sub(now + self.all))
    }
}

/// When to come back with what has to wait for so long.
pub(crate) fn rate_retry(wait: Duration) -> Duration {
    wait + RATE_RETRY.mul_f64(crate::tasks::chance())
}

/// When to come back to a server that has too much to do.
pub(crate) fn busy_retry() -> Duration {
    BUSY_RETRY.mul_f64(0.1 + 0.9 * crate::tasks::chance())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn an_identity_may_burst_and_then_has_its_rate() {
        let account = Account::default();
        let taken = |now| (0..10_000).take_while(|_| account.charge(Rate::CLIENT, now).is_ok()).count();
        assert_eq!(taken(0), BURST as usize);
        assert_eq!(taken(SECOND), RATE as usize);
        assert_eq!(account.charge(Rate::CLIENT, SECOND), Err(Duration::from_millis(50)));
        assert_eq!(taken(SECOND + SECOND / 2), RATE as usize / 2);
        // Full again, and no fuller than full.
        assert_eq!(taken(3600 * SECOND), BURST as usize);
        // A clock that stands still or goes back lets nobody in and breaks nothing.
        assert!(account.charge(Rate::CLIENT, 0).is_err());
    }

    #[test]
    fn accounts_are_per_identity_and_forgotten_once_they_say_nothing() {
        let admission = Admission::new();
        let (one, two): (ClientId, ClientId) = ("line-1".parse().unwrap(), "line-2".parse().unwrap());
        let kept = admission.account_at(&one, 0);
        while kept.charge(Rate::CLIENT, 0).is_ok() {}
        assert!(admission.account_at(&one, 0).charge(Rate::CLIENT, 0).is_err());
        assert!(admission.account_at(&two, 0).charge(Rate::CLIENT, 0).is_ok());
        for at in 0..5 * ACCOUNTS_SWEPT_MIN {
            admission.account_at(&format!("passer-by-{at}").parse().unwrap(), 0);
        }
        let known = admission.accounts.lock().unwrap().of.len();
        assert!(known <= 2 * ACCOUNTS_SWEPT_MIN, "{known}");
        // Neither held nor full: it still says something.
        drop(kept);
        assert!(admission.account_at(&one, 0).charge(Rate::CLIENT, 0).is_err());
    }

    #[test]
    fn who_asks_in_anothers_name_takes_nothing_from_it_and_is_put_off_alone() {
        let admission = Admission::new();
        let (one, two): (ClientId, ClientId) = ("line-1".parse().unwrap(), "line-2".parse().unwrap());
        // A device that signs wrongly now and then is looked at every time.
        for _ in 0..STRANGERS_BURST {
            assert_eq!(admission.claimed_at(&one, 0), Ok(()));
            admission.forged_at(&one, 0);
        }
        // Then it is put off, until strangers have paid; the others notice nothing.
        assert_eq!(admission.claimed_at(&one, 0), Err(Duration::from_millis(10)));
        assert_eq!(admission.claimed_at(&two, 0), Ok(()));
        assert_eq!(admission.account_at(&one, 0).charge(Rate::CLIENT, 0), Ok(()));
        assert!(admission.strangers.charge(Rate::STRANGERS, 0).is_err());
        assert_eq!(admission.claimed_at(&one, 10_000), Ok(()));
        // A flood in one name goes on: a request of it is looked at as often as the rate says.
        let looked = (0..SECOND).step_by(1000).filter(|now| {
            let looked = admission.claimed_at(&one, *now).is_ok();
            if looked {
                admission.forged_at(&one, *now);
            }
            looked
        });
        let looked = looked.count();
        assert!(looked <= STRANGERS_RATE as usize, "{looked}");
        // Whoever was doubted is trusted again after a while, flood or not.
        while admission.strangers.charge(Rate::STRANGERS, 20 * SECOND).is_ok() {}
        assert_eq!(admission.claimed_at(&one, 20 * SECOND), Ok(()));
    }

    #[test]
    fn everybody_together_has_bounds_too() {
        let admission = Admission::with(2, 3, 1);
        let first = admission.share(1025).unwrap();
        assert_eq!(admission.share(1025).unwrap_err(), Full);
        let second = admission.share(0).unwrap();
        assert_eq!(admission.share(0).unwrap_err(), Full);
        drop(first);
        assert!(admission.share(3 * 1024).is_ok());
        assert_eq!(admission.share(3 * 1024 + 1).unwrap_err(), Full);
        assert_eq!(admission.share(u64::MAX).unwrap_err(), Full);
        drop(second);
        let sent = admission.artifact(1).unwrap();
        assert_eq!(admission.artifact(1).unwrap_err(), Full);
        drop(sent);
        assert!(admission.artifact(1024).is_ok());
    }

    #[test]
    fn mi_g2_190_those_who_are_sent_away_do_not_come_back_together() {
        for retry in [busy_retry as fn() -> Duration, || rate_retry(Duration::from_millis(50))] {
            let waits: std::collections::BTreeSet<_> = (0..100).map(|_| retry().as_millis()).collect();
            assert!(waits.len() > 50, "{waits:?}");
            assert!(waits.iter().all(|wait| *wait <= BUSY_RETRY.as_millis()));
        }
    }
}
