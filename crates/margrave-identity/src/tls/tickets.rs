//! Tickets with which a device's session is resumed, and how long they are good for.
//!
//! A resumed session skips the certificates, so it must never be a way around them. A ticket therefore carries
//! the moment of the full handshake it goes back to, which resuming does not move (ID-112), and the number of the
//! trust bundle it was made under: a ticket that is too old, or of another bundle, is not refused but not
//! recognised, and the client shakes hands in full. Whoever resumed is judged again by the listener (ID-067).
//! Keys are made anew at every start and live in memory.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::ServerConnection;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::ProducesTickets;

use crate::live::LiveBundle;

/// How old a connection may become, counted from the full handshake behind it (ID-110). This is the outermost
/// bound: it ends before with its SVID, and whenever a new trust bundle does not hold it (ID-113).
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A client without keep-alive shakes hands in full twice an hour.
const RESUMED_AGE_MAX: Duration = Duration::from_secs(30 * 60);

/// Starts the resumption data of our own connections. A secret, so that no certificate can contain it.
static MARK: LazyLock<[u8; MARK_BYTES]> = LazyLock::new(|| {
    let mut mark = [0; MARK_BYTES];
    // Without randomness nothing is ever sealed either, so an empty mark opens nothing.
    super::provider().secure_random.fill(&mut mark).unwrap_or_default();
    mark
});
const MARK_BYTES: usize = 16;

/// What a connection goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// How long ago the full handshake was.
    pub age: Duration,
}

/// Tells a connection what it goes back to, so that its next ticket says the same.
///
/// Called for each connection of the device listener once its first message is in, and before the handshake goes
/// on. Without this call a connection gets no ticket.
pub fn begin_session(connection: &mut ServerConnection, bundle: &LiveBundle) -> Session {
    begin_session_at(connection, bundle, machine_now())
}

pub(super) fn begin_session_at(connection: &mut ServerConnection, bundle: &LiveBundle, now: u64) -> Session {
    let resumed = connection.received_resumption_data().and_then(Origin::find);
    let origin = resumed
        .filter(|origin| origin.at <= now)
        .unwrap_or_else(|| Origin { at: now, generation: bundle.generation() });
    connection.set_resumption_data(&origin.write());
    Session { age: Duration::from_millis(now - origin.at) }
}

/// The full handshake behind a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Origin {
    /// Milliseconds since 1970.
    at: u64,
    generation: u64,
}

impl Origin {
    fn write(self) -> Vec<u8> {
        [MARK.as_slice(), &self.at.to_be_bytes(), &self.generation.to_be_bytes()].concat()
    }

    /// Behind the mark, wherever that is: what else a session holds, and in which order, is rustls' affair.
    fn find(session: &[u8]) -> Option<Origin> {
        let at = session.windows(MARK_BYTES).rposition(|bytes| bytes == MARK.as_slice())?;
        let (at, rest) = session.get(at + MARK_BYTES..)?.split_first_chunk()?;
        let (generation, _) = rest.split_first_chunk()?;
        Some(Origin { at: u64::from_be_bytes(*at), generation: u64::from_be_bytes(*generation) })
    }
}

/// Milliseconds since 1970 by the machine's clock, which rustls asks as well.
pub(super) fn machine_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Seals sessions into tickets, and opens those that still count.
#[derive(Debug)]
pub(super) struct Tickets {
    seal: Arc<dyn ProducesTickets>,
    bundle: Arc<LiveBundle>,
}

impl Tickets {
    pub(super) fn new(bundle: Arc<LiveBundle>) -> Result<Tickets, rustls::Error> {
        Ok(Tickets { seal: Ticketer::new()?, bundle })
    }

    fn opened(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let session = self.seal.decrypt(ticket)?;
        let origin = Origin::find(&session)?;
        let age = now.checked_sub(origin.at)?;
        let young = u128::from(age) < RESUMED_AGE_MAX.as_millis();
        (young && origin.generation == self.bundle.generation()).then_some(session)
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        RESUMED_AGE_MAX.as_secs() as u32
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        Origin::find(session)?;
        self.seal.encrypt(session)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.opened(ticket, machine_now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;
    use crate::bundle::Bundle;
    use crate::forge::system_now;

    fn bundle() -> Bundle {
        let authority = Authority::create("plant.example".parse().unwrap(), system_now()).unwrap();
        Bundle::of_anchor(authority.trust_domain().clone(), authority.anchor(), 1, Duration::from_secs(60))
    }

    fn session(at: u64) -> Vec<u8> {
        [b"what rustls keeps".as_slice(), &Origin { at, generation: 0 }.write(), b"more"].concat()
    }

    #[test]
    fn id_112_a_ticket_is_good_for_a_time_that_counts_from_the_full_handshake() {
        let tickets = Tickets::new(LiveBundle::new(bundle())).unwrap();
        let origin = 1_800_000_000_000;
        let ticket = tickets.encrypt(&session(origin)).unwrap();
        let last = origin + u64::try_from(RESUMED_AGE_MAX.as_millis()).unwrap() - 1;
        for now in [origin, last] {
            assert_eq!(tickets.opened(&ticket, now), Some(session(origin)));
        }
        // Too old, and from the future: a clock was set.
        for now in [last + 1, u64::MAX, origin - 1] {
            assert_eq!(tickets.opened(&ticket, now), None);
        }
        assert!(u64::from(tickets.lifetime()) < CONNECTION_AGE_MAX.as_secs());
    }

    #[test]
    fn id_113_a_ticket_ends_with_the_bundle_it_was_made_under() {
        let live = LiveBundle::new(bundle());
        let tickets = Tickets::new(live.clone()).unwrap();
        let ticket = tickets.encrypt(&session(5)).unwrap();
        assert!(tickets.opened(&ticket, 5).is_some());
        live.replace(bundle()).unwrap();
        assert_eq!(tickets.opened(&ticket, 5), None);
    }

    #[test]
    fn a_session_without_an_origin_gets_no_ticket_and_a_spoilt_ticket_opens_nothing() {
        let tickets = Tickets::new(LiveBundle::new(bundle())).unwrap();
        assert_eq!(tickets.encrypt(b"what rustls keeps"), None);
        assert_eq!(tickets.encrypt(MARK.as_slice()), None);
        assert_eq!(tickets.encrypt(&session(5)[..40]), None);
        let ticket = tickets.encrypt(&session(5)).unwrap();
        for at in 0..ticket.len() {
            let mut spoilt = ticket.clone();
            spoilt[at] ^= 1;
            assert_eq!(tickets.opened(&spoilt, 5), None, "byte {at}");
            assert_eq!(tickets.opened(&ticket[..at], 5), None, "{at} bytes");
        }
        let other = Tickets::new(LiveBundle::new(bundle())).unwrap();
        assert_eq!(other.opened(&ticket, 5), None);
    }
}
