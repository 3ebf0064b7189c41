//! Memory of signatures that were used, so that a copied request does nothing.
//!
//! **What is remembered.** Requests that change something, once they have. Within the window a second one with
//! the same signature, or with the same `nonce`, is refused. A request that failed or was cut off changed
//! nothing that its client knows of, and may come again as it is.
//!
//! **What is not.** Reading requests: asking twice for the same thing tells a copier nothing that TLS did not
//! already keep from him, and a client that signs deterministically makes two equal signatures whenever it
//! asks twice in one second. For the same reason such a client (Ed25519, RSA v1.5) may repeat its *latest*
//! change within moments: it cannot do otherwise when it retries, and doing the latest thing again changes
//! nothing. ECDSA and PSS signatures are never equal by chance; a second one is always a copy.
//!
//! **Over a restart** the server keeps what is remembered, and gives it back to the next router. To refuse everything
//! that was signed before the start would need no memory, but refuse every device whose clock is behind ours, for as
//! long as it is behind; a device that hears 401 may give up for good. Kept is also what failed in the end: nobody can
//! say after a crash how far a change came, and whoever tries again signs anew.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use margrave_core::digest::Digest;
use margrave_core::id::ClientId;
use margrave_core::moment::Moment;
use margrave_identity::message::Verified;

use super::signed::UsedSignature;

/// A client that changes seven things a second for the whole window stays below; a device makes a few an hour.
const PER_CLIENT_MAX: usize = 2_500;
/// About 30 MB. Every one of 9,000 clients may change fifty things within the window.
const OVERALL_MAX: usize = 500_000;
/// How long a deterministic signer's retry looks the same: it signs whole seconds.
const RETRY_MAX: Duration = Duration::from_secs(2);
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// Half of a SHA-256: nobody finds a second signature with the same one.
type Mark = u128;

#[derive(Default)]
pub(super) struct Replay {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    clients: HashMap<ClientId, Used>,
    count: usize,
    next_sweep: Moment,
}

#[derive(Default)]
struct Used {
    marks: HashSet<Mark>,
    /// In the order of use, which is the order of forgetting.
    order: VecDeque<(Mark, Moment)>,
    latest: Option<(Mark, Moment)>,
}

/// Why a request is not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The same signature was used before.
    Copied,
    /// The client did more than its share within the window.
    ClientFull { retry_after: Duration },
    /// All clients together did.
    Full,
}

/// A request that was let through. Unless it is [`Ticket::spent`], its signature counts as unused again.
pub(super) struct Ticket {
    replay: Arc<Replay>,
    client: ClientId,
    marks: Vec<Mark>,
    until: Moment,
}

impl Replay {
    /// What was kept over a restart, in whatever order.
    pub(super) fn remembering(mut kept: Vec<UsedSignature>) -> Arc<Replay> {
        kept.sort_by_key(|used| used.until);
        let mut state = State::default();
        // More than fit were not remembered before, either.
        for UsedSignature { client, mark, until } in kept.into_iter().take(OVERALL_MAX) {
            let used = state.clients.entry(client).or_default();
            let mark = Mark::from_be_bytes(mark);
            if used.marks.insert(mark) {
                used.order.push_back((mark, until));
                state.count += 1;
            }
        }
        Arc::new(Replay { state: Mutex::new(state) })
    }

    /// Lets a changing request through once. `keep` is how long its signature could be repeated.
    pub(super) fn admit(
        self: &Arc<Self>,
        client: &ClientId,
        verified: &Verified,
        nonce: Option<&str>,
        now: Moment,
        keep: Duration,
    ) -> Result<Ticket, Refused> {
        let mut state = self.lock();
        if now >= state.next_sweep {
            state.sweep(now);
        }
        let full = state.count >= OVERALL_MAX;
        let State { clients, count, .. } = &mut *state;
        let used = clients.entry(client.clone()).or_default();
        *count -= used.forget(now);
        let mark = mark(verified.mark);
        let until = now.after(keep);
        let ticket = |marks| Ticket { replay: Arc::clone(self), client: client.clone(), marks, until };
        if used.marks.contains(&mark) {
            let retry = verified.algorithm.is_deterministic()
                && used.latest.is_some_and(|(latest, at)| latest == mark && now.since(at) <= RETRY_MAX);
            // What the first one noted stays noted, whatever becomes of the second.
            return if retry { Ok(ticket(Vec::new())) } else { Err(Refused::Copied) };
        }
        let mut marks = vec![mark];
        if let Some(nonce) = nonce {
            let nonce = self::mark(Digest::of(&[b"nonce ", nonce.as_bytes()].concat()));
            if used.marks.contains(&nonce) {
                return Err(Refused::Copied);
            }
            marks.push(nonce);
        }
        if used.order.len() + marks.len() > PER_CLIENT_MAX {
            let retry_after = used.order.front().map_or(keep, |(_, until)| until.since(now));
            return Err(Refused::ClientFull { retry_after });
        }
        if full {
            return Err(Refused::Full);
        }
        for mark in &marks {
            used.marks.insert(*mark);
            used.order.push_back((*mark, until));
        }
        used.latest = Some((mark, now));
        *count += marks.len();
        Ok(ticket(marks))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves at worst a count that is a little off.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn sweep(&mut self, now: Moment) {
        let mut forgotten = 0;
        self.clients.retain(|_, used| {
            forgotten += used.forget(now);
            !used.order.is_empty()
        });
        self.count -= forgotten;
        self.next_sweep = now.after(SWEEP_EVERY);
    }
}

impl Used {
    /// How many marks are too old to matter and now gone.
    fn forget(&mut self, now: Moment) -> usize {
        let before = self.order.len();
        while let Some((mark, _)) = self.order.front().filter(|(_, until)| *until < now) {
            self.marks.remove(mark);
            self.order.pop_front();
        }
        before - self.order.len()
    }
}

impl Ticket {
    /// What has to be kept, so that it is used up after a restart as well.
    pub(super) fn used(&self) -> Vec<UsedSignature> {
        let used = |mark: &Mark| UsedSignature {
            client: self.client.clone(),
            mark: mark.to_be_bytes(),
            until: self.until,
        };
        self.marks.iter().map(used).collect()
    }

    /// The request was done; its signature is used up.
    pub(super) fn spent(mut self) {
        self.marks.clear();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.marks.is_empty() {
            return;
        }
        let mut state = self.replay.lock();
        let State { clients, count, .. } = &mut *state;
        if let Some(used) = clients.get_mut(&self.client) {
            let before = used.order.len();
            // The newest is nearly always the one.
            for mark in &self.marks {
                used.marks.remove(mark);
                if let Some(at) = used.order.iter().rposition(|(other, _)| other == mark) {
                    used.order.remove(at);
                }
            }
            used.latest = used.latest.filter(|(latest, _)| !self.marks.contains(latest));
            *count -= before - used.order.len();
        }
    }
}

fn mark(digest: Digest) -> Mark {
    let (half, _) = digest.as_bytes().split_first_chunk::<16>().expect("a digest has 32 bytes");
    u128::from_be_bytes(*half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_identity::message::Algorithm;

    const WINDOW: Duration = Duration::from_secs(360);

    struct Check(Arc<Replay>);

    impl Check {
        fn new() -> Check {
            Check(Arc::default())
        }

        fn ask(&self, client: &str, what: &str, algorithm: Algorithm, at: u64) -> Result<Ticket, Refused> {
            let verified = Verified { algorithm, mark: Digest::of(what.as_bytes()) };
            let (what, nonce) =
                what.split_once('#').map_or((what, None), |(what, nonce)| (what, Some(nonce)));
            assert!(!what.is_empty());
            self.0.admit(&client.parse().unwrap(), &verified, nonce, Moment(at * 1000), WINDOW)
        }

        /// Asks and does it.
        fn done(&self, what: &str, algorithm: Algorithm, at: u64) -> Result<(), Refused> {
            self.ask("c", what, algorithm, at).map(Ticket::spent)
        }

        fn count(&self) -> usize {
            let state = self.0.lock();
            assert_eq!(state.count, state.clients.values().map(|used| used.order.len()).sum::<usize>());
            assert!(state.clients.values().all(|used| used.order.len() == used.marks.len()));
            state.count
        }
    }

    #[test]
    fn mi_g1_065_a_copy_is_refused_until_its_window_is_over() {
        let check = Check::new();
        assert_eq!(check.done("a", Algorithm::EcdsaP256Sha256, 1000), Ok(()));
        assert_eq!(check.done("a", Algorithm::EcdsaP256Sha256, 1000), Err(Refused::Copied));
        assert_eq!(check.done("b", Algorithm::EcdsaP256Sha256, 1001), Ok(()));
        assert_eq!(check.done("a", Algorithm::EcdsaP256Sha256, 1360), Err(Refused::Copied));
        assert_eq!(check.count(), 2);
        // By then the signature itself is too old; nobody needs to remember it.
        assert_eq!(check.done("a", Algorithm::EcdsaP256Sha256, 1361), Ok(()));
        // Another client's signatures are another client's.
        assert!(check.ask("d", "b", Algorithm::EcdsaP256Sha256, 1361).is_ok());
    }

    #[test]
    fn a_deterministic_signer_may_repeat_its_latest_change_at_once() {
        for algorithm in [Algorithm::Ed25519, Algorithm::RsaV15Sha256] {
            let check = Check::new();
            assert_eq!(check.done("a", algorithm, 1000), Ok(()));
            assert_eq!(check.done("a", algorithm, 1001), Ok(()));
            assert_eq!(check.done("a", algorithm, 1002), Ok(()));
            assert_eq!(check.done("a", algorithm, 1003), Err(Refused::Copied));
            assert_eq!(check.done("b", algorithm, 1003), Ok(()));
            assert_eq!(check.done("a", algorithm, 1003), Err(Refused::Copied));
            assert_eq!(check.count(), 2);
        }
    }

    #[test]
    fn what_failed_or_was_cut_off_may_come_again() {
        let check = Check::new();
        drop(check.ask("c", "a", Algorithm::EcdsaP256Sha256, 1000).unwrap_or_else(|_| panic!("first")));
        assert_eq!(check.count(), 0);
        assert_eq!(check.done("a", Algorithm::EcdsaP256Sha256, 1000), Ok(()));
        // A repeat that fails does not make the first one unused.
        let check = Check::new();
        assert_eq!(check.done("a", Algorithm::Ed25519, 1000), Ok(()));
        drop(check.ask("c", "a", Algorithm::Ed25519, 1000).unwrap_or_else(|_| panic!("retry")));
        assert_eq!(check.done("b", Algorithm::Ed25519, 1000), Ok(()));
        assert_eq!(check.done("a", Algorithm::Ed25519, 1000), Err(Refused::Copied));
    }

    #[test]
    fn a_nonce_is_used_once() {
        let check = Check::new();
        assert_eq!(check.done("a#n1", Algorithm::EcdsaP256Sha256, 1000), Ok(()));
        assert_eq!(check.done("b#n1", Algorithm::EcdsaP256Sha256, 1001), Err(Refused::Copied));
        assert_eq!(check.done("b#n2", Algorithm::EcdsaP256Sha256, 1001), Ok(()));
        assert_eq!(check.count(), 4);
    }

    #[test]
    fn one_client_cannot_fill_the_memory_and_the_memory_empties() {
        let check = Check::new();
        for n in 0..PER_CLIENT_MAX {
            assert_eq!(check.done(&format!("x{n}"), Algorithm::Ed25519, 1000), Ok(()));
        }
        let full = Refused::ClientFull { retry_after: WINDOW - Duration::from_secs(60) };
        assert_eq!(check.done("more", Algorithm::Ed25519, 1060), Err(full));
        assert!(check.ask("d", "a", Algorithm::Ed25519, 1060).is_ok());
        assert_eq!(check.done("more", Algorithm::Ed25519, 1361), Ok(()));
        assert_eq!(check.count(), 1);
        assert!(check.ask("d", "b", Algorithm::Ed25519, 2000).is_ok());
        assert_eq!(check.count(), 0);
        assert_eq!(check.0.lock().clients.len(), 1, "only the last one that asked");
    }

    #[test]
    fn mi_g1_065_what_was_used_before_a_restart_is_used_after_it() {
        let check = Check::new();
        let mut kept = Vec::new();
        for (what, at) in [("a#n1", 1000), ("b", 1100)] {
            let ticket = check.ask("c", what, Algorithm::EcdsaP256Sha256, at);
            let ticket = ticket.unwrap_or_else(|_| panic!("{what}"));
            kept.extend(ticket.used());
            ticket.spent();
        }
        assert_eq!(kept.len(), 3, "two signatures and a nonce");
        kept.reverse();
        kept.push(kept[0].clone());
        let check = Check(Replay::remembering(kept));
        assert_eq!(check.count(), 3);
        for what in ["a#n1", "b", "c#n1"] {
            assert_eq!(check.done(what, Algorithm::EcdsaP256Sha256, 1200), Err(Refused::Copied), "{what}");
        }
        assert_eq!(check.done("c#n2", Algorithm::EcdsaP256Sha256, 1200), Ok(()));
        assert_eq!(check.done("a", Algorithm::EcdsaP256Sha256, 1361), Ok(()));
        assert_eq!(check.count(), 4, "the oldest two are over");
        // Another client may have chosen the same nonce.
        assert!(check.ask("d", "e#n1", Algorithm::EcdsaP256Sha256, 1200).is_ok());
    }

    #[test]
    fn a_clock_that_jumps_back_forgets_nothing_too_early() {
        let check = Check::new();
        assert_eq!(check.done("a", Algorithm::EcdsaP256Sha256, 5000), Ok(()));
        assert_eq!(check.done("a", Algorithm::EcdsaP256Sha256, 1000), Err(Refused::Copied));
        assert_eq!(check.done("b", Algorithm::EcdsaP256Sha256, 1000), Ok(()));
        assert_eq!(check.count(), 2);
    }
}
