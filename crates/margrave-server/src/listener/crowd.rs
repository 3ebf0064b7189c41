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
/// Connections that may be here beyond the limit while others, of the same clients, finish their last request.
const LEAVING_MAX: usize = 256;
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
    /// Those that were asked to end and are still here.
    leaving: usize,
    /// Nobody stays any more.
    over: bool,
}

impl Inner {
    fn is_full(&self, present_max: usize) -> bool {
        self.present.len() - self.leaving.min(LEAVING_MAX) >= present_max
    }

    /// Asks a connection to end; false if that was done before, or if it is gone.
    fn ask_to_end(&mut self, number: u64) -> bool {
        let asked = self.present.get_mut(&number).is_some_and(Present::ask_to_end);
        self.leaving += usize::from(asked);
        asked
    }

    /// Asks the oldest connection of a client to end that was not asked before.
    fn displace(&mut self, client: &ClientId) -> bool {
        let places = self.clients.get(client).cloned().unwrap_or_default();
        places.into_iter().any(|number| self.ask_to_end(number))
    }
}

struct Present {
    known: Option<Known>,
    /// Taken when it was asked to end.
    end: Option<oneshot::Sender<()>>,
}

impl Present {
    fn ask_to_end(&mut self) -> bool {
        let Some(end) = self.end.take() else { return false };
        // An error means that it is just ending by itself, which is as good.
        end.send(()).unwrap_or_default();
        true
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

    /// A place, and the signal to leave it. When there are as many as there may be, a client takes the place of its
    /// own oldest connection, which ends after the request that it is in; who has none gets nothing.
    pub(super) fn enter(self: &Arc<Self>, known: Option<Known>) -> Option<(Presence, oneshot::Receiver<()>)> {
        let (end, ending) = oneshot::channel();
        let mut inner = self.inner();
        if inner.is_full(self.present_max) {
            let Known { client, .. } = known.as_ref()?;
            if !inner.displace(client) || inner.is_full(self.present_max) {
                return None;
            }
            tracing::debug!(%client, "closing another connection of a client, there is no place for more");
        }
        inner.next += 1;
        let number = inner.next;
        if let Some(Known { client, .. }) = &known {
            let places = inner.clients.entry(client.clone()).or_default();
            places.push_back(number);
            if places.len() > CONNECTIONS_PER_CLIENT_MAX
                && let Some(oldest) = places.pop_front()
            {
                tracing::debug!(%client, "closing the oldest of too many connections");
                inner.ask_to_end(oldest);
            }
        }
        inner.present.insert(number, Present { known, end: Some(end) });
        if inner.over {
            inner.ask_to_end(number);
        }
        Some((Presence { crowd: Arc::clone(self), number }, ending))
    }

    pub(super) fn len(&self) -> usize {
        self.inner().present.len()
    }

    /// Asks everybody to end, and whoever comes later as well.
    pub(super) fn end_all(&self) {
        let mut inner = self.inner();
        inner.over = true;
        let all: Vec<u64> = inner.present.keys().copied().collect();
        for number in all {
            inner.ask_to_end(number);
        }
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
                if !holds(client, chain) {
                    let mut inner = self.inner();
                    inner.ask_to_end(*number);
                    ended += usize::from(inner.present.contains_key(number));
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
        let Some(Present { known, end }) = inner.present.remove(&self.number) else { return };
        inner.leaving -= usize::from(end.is_none());
        let Some(Known { client, .. }) = known else { return };
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
    fn in_a_full_house_a_client_takes_its_own_place_and_nobody_elses() {
        let crowd = Crowd::new(3);
        let mut all: Vec<_> =
            ["line-1", "line-2", "line-1"].map(|name| crowd.enter(known(name)).unwrap()).into();
        assert!(crowd.enter(known("line-3")).is_none() && crowd.enter(None).is_none());
        all.push(crowd.enter(known("line-1")).unwrap());
        all.push(crowd.enter(known("line-1")).unwrap());
        assert_eq!(asked(&mut all), [true, false, true, false, false]);
    }

    #[test]
    fn those_who_leave_make_room_only_up_to_a_bound() {
        let crowd = Crowd::new(LEAVING_MAX + 2);
        let names: Vec<String> = (0..LEAVING_MAX + 2).map(|at| format!("line-{at}")).collect();
        let all: Vec<_> = names.iter().map(|name| crowd.enter(known(name)).unwrap()).collect();
        let more: Vec<_> = names.iter().filter_map(|name| crowd.enter(known(name))).collect();
        assert_eq!(more.len(), LEAVING_MAX);
        assert_eq!(crowd.len(), 2 * LEAVING_MAX + 2);
        drop(all);
        assert_eq!((crowd.len(), crowd.inner().leaving), (LEAVING_MAX, 0));
        drop(more);
        assert!(crowd.inner().clients.is_empty() && crowd.len() == 0);
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
