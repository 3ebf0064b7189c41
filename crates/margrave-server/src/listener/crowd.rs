//! Who is here: every connection that got in, and how to ask it to end.
//!
//! One place to ask from: a newer connection of the same client (a device must always be able to come back), a
//! replaced trust bundle (ID-113), the server's stop, its age. A connection learns of all of them by its line.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use margrave_core::id::ClientId;
use rustls::pki_types::CertificateDer;

use super::line::Line;

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
        let Some(present) = self.present.get_mut(&number) else { return false };
        let asked = !present.asked && present.line.ask_to_end(Instant::now());
        present.asked |= asked;
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
    line: Arc<Line>,
    /// To end; counted among those who leave.
    asked: bool,
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

    /// A place for a line. When there are as many as there may be, a client takes the place of its
    /// own oldest connection, which ends after the request that it is in; who has none gets nothing.
    pub(super) fn enter(self: &Arc<Self>, known: Option<Known>, line: &Arc<Line>) -> Option<Presence> {
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
        inner.present.insert(number, Present { known, line: Arc::clone(line), asked: false });
        if inner.over {
            inner.ask_to_end(number);
        }
        Some(Presence { crowd: Arc::clone(self), number })
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

    /// Asks those to end whose time has come, and ends those who do not.
    pub(super) fn look_after(&self, quiet_time: Duration) {
        let now = Instant::now();
        let mut inner = self.inner();
        let due = inner.present.iter().filter(|(_, present)| present.line.is_due(now, quiet_time));
        let due: Vec<u64> = due.map(|(number, _)| *number).collect();
        for number in due {
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
        let Some(Present { known, asked, .. }) = inner.present.remove(&self.number) else { return };
        inner.leaving -= usize::from(asked);
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
    use super::super::line::Stage;
    use super::*;

    fn known(client: &str) -> Option<Known> {
        let leaf = CertificateDer::from(client.as_bytes().to_vec());
        Some(Known { client: client.parse().unwrap(), chain: Arc::new([leaf]) })
    }

    /// Somebody who comes in, and the line to ask it by.
    fn enter(crowd: &Arc<Crowd>, known: Option<Known>) -> Option<(Presence, Arc<Line>)> {
        let line = Line::new(None);
        crowd.enter(known, &line).map(|presence| (presence, line))
    }

    fn asked(all: &[(Presence, Arc<Line>)]) -> Vec<bool> {
        all.iter().map(|(_, line)| line.stage() == Stage::Ending).collect()
    }

    #[test]
    fn the_newest_connections_of_a_client_stay() {
        let crowd = Crowd::new(100);
        let all: Vec<_> =
            (0..CONNECTIONS_PER_CLIENT_MAX + 2).map(|_| enter(&crowd, known("line-1")).unwrap()).collect();
        let displaced = asked(&all);
        assert!(displaced[0] && displaced[1]);
        assert_eq!(displaced.iter().filter(|was| **was).count(), 2);
        drop(all);
        assert!(crowd.inner().clients.is_empty() && crowd.len() == 0);
    }

    #[test]
    fn there_are_only_so_many_places_and_each_is_given_again() {
        let crowd = Crowd::new(2);
        let first = enter(&crowd, None);
        let second = enter(&crowd, known("line-1"));
        assert!(first.is_some() && second.is_some() && enter(&crowd, None).is_none());
        drop(first);
        assert!(enter(&crowd, None).is_some());
    }

    #[test]
    fn in_a_full_house_a_client_takes_its_own_place_and_nobody_elses() {
        let crowd = Crowd::new(3);
        let mut all: Vec<_> =
            ["line-1", "line-2", "line-1"].map(|name| enter(&crowd, known(name)).unwrap()).into();
        assert!(enter(&crowd, known("line-3")).is_none() && enter(&crowd, None).is_none());
        all.push(enter(&crowd, known("line-1")).unwrap());
        all.push(enter(&crowd, known("line-1")).unwrap());
        assert_eq!(asked(&all), [true, false, true, false, false]);
    }

    #[test]
    fn those_who_leave_make_room_only_up_to_a_bound() {
        let crowd = Crowd::new(LEAVING_MAX + 2);
        let names: Vec<String> = (0..LEAVING_MAX + 2).map(|at| format!("line-{at}")).collect();
        let all: Vec<_> = names.iter().map(|name| enter(&crowd, known(name)).unwrap()).collect();
        let more: Vec<_> = names.iter().filter_map(|name| enter(&crowd, known(name))).collect();
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
        let mut all = vec![enter(&crowd, None).unwrap()];
        crowd.end_all();
        all.push(enter(&crowd, known("line-1")).unwrap());
        assert_eq!(asked(&all), [true, true]);
    }

    #[tokio::test]
    async fn id_113_those_whose_chain_does_not_hold_any_more_are_asked_to_end() {
        let crowd = Crowd::new(100);
        let mut all: Vec<_> =
            (0..40).map(|at| enter(&crowd, known(&format!("line-{}", at % 2))).unwrap()).collect();
        all.push(enter(&crowd, None).unwrap());
        let (left, leaving) = (crowd.len(), crowd.inner().leaving);
        let ended = crowd.end_unless(|client, chain| {
            assert_eq!(client.as_str().as_bytes(), chain[0].as_ref());
            client.as_str() == "line-0"
        });
        assert_eq!(ended.await, 20);
        // Who was displaced before is not asked twice.
        let displaced = all.len() - 1 - 2 * CONNECTIONS_PER_CLIENT_MAX;
        assert_eq!((leaving, crowd.inner().leaving), (displaced, displaced + CONNECTIONS_PER_CLIENT_MAX));
        assert_eq!(crowd.len(), left);
        // The stranger has no chain.
        let asked = asked(&all);
        assert!(!asked[40] && asked[39] && asked[25] && !asked[38]);
    }
}
