//! Who is here: every connection that got in, and how to ask it to end.
//!
//! One place to ask from: a newer connection of the same client (a device must always be able to come back), a
//! replaced trust bundle (ID-113), the server's stop. A connection learns of all of them by one signal, so waiting
//! for them costs it next to nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use margrave_core::id::ClientId;
use rustls::pki_types::CertificateDer;
use tokio::sync::oneshot;

/// A client needs one connection, and two while it renews. What lies beyond is left over from a bad network, so
/// a new one closes the oldest instead of being refused.
pub(super) const CONNECTIONS_PER_CLIENT_MAX: usize = 8;
/// Chains that are verified again at a stretch, some tens of microseconds each; others get their turn in between.
const VERIFIED_TOGETHER_MAX: usize = 16;

/// A client as its handshake showed it.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) client: ClientId,
    /// What it presented, leaf first.
    pub(super) chain: Arc<[CertificateDer<'static>]>,
}

pub(super) struct Crowd {
    present_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    present: HashMap<u64, Present>,
    /// Which connections each client has, oldest first.
    clients: HashMap<ClientId, VecDeque<u64>>,
    /// Nobody stays any more.
    over: bool,
}

struct Present {
    known: Option<Known>,
    /// Taken when it was asked to end.
    end: Option<oneshot::Sender<()>>,
}

impl Present {
    fn ask_to_end(&mut self) {
        if let Some(end) = self.end.take() {
            // An error means that it is just ending by itself, which is as good.
            end.send(()).unwrap_or_default();
        }
    }
}

/// One connection's place in the crowd, given up when dropped.
pub(super) struct Presence {
    crowd: Arc<Crowd>,
    number: u64,
}

impl Crowd {
    pub(super) fn new(present_max: usize) -> Arc<Crowd> {
        Arc::new(Crowd { present_max, inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, and the signal to leave it; nothing when there are as many as there may be.
    pub(super) fn enter(self: &Arc<Self>, known: Option<Known>) -> Option<(Presence, oneshot::Receiver<()>)> {
        let (end, ending) = oneshot::channel();
        let mut inner = self.inner();
        let Inner { next, present, clients, over } = &mut *inner;
        if present.len() >= self.present_max {
            return None;
        }
        *next += 1;
        let number = *next;
        if let Some(Known { client, .. }) = &known {
            let places = clients.entry(client.clone()).or_default();
            if places.len() >= CONNECTIONS_PER_CLIENT_MAX
                && let Some(oldest) = places.pop_front().and_then(|oldest| present.get_mut(&oldest))
            {
                tracing::debug!(%client, "closing the oldest of too many connections");
                oldest.ask_to_end();
            }
            places.push_back(number);
        }
        let mut newcomer = Present { known, end: Some(end) };
        if *over {
            newcomer.ask_to_end();
        }
        present.insert(number, newcomer);
        Some((Presence { crowd: Arc::clone(self), number }, ending))
    }

    pub(super) fn len(&self) -> usize {
        self.inner().present.len()
    }

    /// Asks everybody to end, and whoever comes later as well.
    pub(super) fn end_all(&self) {
        let mut inner = self.inner();
        inner.over = true;
        inner.present.values_mut().for_each(Present::ask_to_end);
    }

    /// Asks those clients to end whose chain does not hold any more; says how many.
    pub(super) async fn end_unless(&self, holds: impl Fn(&ClientId, &[CertificateDer<'_>]) -> bool) -> usize {
        let known: Vec<(u64, Known)> = {
            let inner = self.inner();
            inner.present.iter().filter_map(|(number, one)| Some((*number, one.known.clone()?))).collect()
        };
        let mut ended = 0;
        for some in known.chunks(VERIFIED_TOGETHER_MAX) {
            for (number, Known { client, chain }) in some {
                if !holds(client, chain)
                    && let Some(present) = self.inner().present.get_mut(number)
                {
                    present.ask_to_end();
                    ended += 1;
                }
            }
            tokio::task::yield_now().await;
        }
        ended
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut inner = self.crowd.inner();
        let Some(Present { known: Some(Known { client, .. }), .. }) = inner.present.remove(&self.number)
        else {
            return;
        };
        if let Some(places) = inner.clients.get_mut(&client) {
            places.retain(|place| *place != self.number);
            if places.is_empty() {
                inner.clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(client: &str) -> Option<Known> {
        let leaf = CertificateDer::from(client.as_bytes().to_vec());
        Some(Known { client: client.parse().unwrap(), chain: Arc::new([leaf]) })
    }

    fn asked(all: &mut [(Presence, oneshot::Receiver<()>)]) -> Vec<bool> {
        all.iter_mut().map(|(_, ending)| ending.try_recv().is_ok()).collect()
    }

    #[test]
    fn the_newest_connections_of_a_client_stay() {
        let crowd = Crowd::new(100);
        let mut all: Vec<_> =
            (0..CONNECTIONS_PER_CLIENT_MAX + 2).map(|_| crowd.enter(known("line-1")).unwrap()).collect();
        let displaced = asked(&mut all);
        assert!(displaced[0] && displaced[1]);
        assert_eq!(displaced.iter().filter(|was| **was).count(), 2);
        drop(all);
        assert!(crowd.inner().clients.is_empty() && crowd.len() == 0);
    }

    #[test]
    fn there_are_only_so_many_places_and_each_is_given_again() {
        let crowd = Crowd::new(2);
        let first = crowd.enter(None);
        let second = crowd.enter(known("line-1"));
        assert!(first.is_some() && second.is_some() && crowd.enter(None).is_none());
        drop(first);
        assert!(crowd.enter(None).is_some());
    }

    #[test]
    fn whoever_comes_after_the_end_is_asked_to_go_at_once() {
        let crowd = Crowd::new(10);
        let mut all = vec![crowd.enter(None).unwrap()];
        crowd.end_all();
        all.push(crowd.enter(known("line-1")).unwrap());
        assert_eq!(asked(&mut all), [true, true]);
    }

    #[tokio::test]
    async fn id_113_those_whose_chain_does_not_hold_any_more_are_asked_to_end() {
        let crowd = Crowd::new(100);
        let mut all: Vec<_> =
            (0..40).map(|at| crowd.enter(known(&format!("line-{}", at % 2))).unwrap()).collect();
        all.push(crowd.enter(None).unwrap());
        drop(asked(&mut all));
        let left = crowd.len();
        let ended = crowd.end_unless(|client, chain| {
            assert_eq!(client.as_str().as_bytes(), chain[0].as_ref());
            client.as_str() == "line-0"
        });
        assert_eq!(ended.await, 20);
        assert_eq!(crowd.len(), left);
        // Who was displaced before is not asked twice; the stranger has no chain.
        let asked = asked(&mut all);
        assert!(!asked[40] && asked[39] && asked[25] && !asked[38]);
    }
}
