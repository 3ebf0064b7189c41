//! Tickets with which a device's session is resumed, and how long they are good for.
//!
//! A resumed session skips the certificates, so it must never be a way around them. A ticket therefore carries
//! the moment of the full handshake it goes back to, which resuming does not move (ID-112), and the number of the
//! trust bundle it was made under: a ticket that is too old, or of another bundle, is not refused but not
//! recognised, and the client shakes hands in full. Whoever resumed is verified again by the listener (ID-067).
//! Keys are made anew at every start and live in memory.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::ServerConnection;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::ProducesTickets;

use crate::live::LiveBundle;

/// How old a connection may become, counted from the full handshake behind it (ID-110).
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(60 * 60);

/// Half of it: what is resumed is worth something for a while yet. A client without keep-alive shakes hands in
/// full twice an hour.
const RESUMED_AGE_MAX: Duration = Duration::from_secs(30 * 60);

/// Starts the resumption data of our own connections. A secret, so that no certificate can contain it.
static MARK: LazyLock<[u8; MARK_BYTES]> = LazyLock::new(|| {
    let mut mark = [0; MARK_BYTES];
    // Without randomness nothing is ever sealed either, so an empty mark opens nothing.
    super::provider().secure_random.fill(&mut mark).unwrap_or_default();
    mark
});
const MARK_BYTES: usize = 16;
const NUMBER_BYTES: usize = 8;

/// Gives a connection the age it has: how long ago the full handshake was that it goes back to.
///
/// Called for each connection of the device listener once its first message is in, and before the handshake goes
/// on: its next ticket then says the same. Without this call a connection gets no ticket.
pub fn begin_session(connection: &mut ServerConnection) -> Duration {
    begin_session_at(connection, machine_now())
}

pub(super) fn begin_session_at(connection: &mut ServerConnection, now: u64) -> Duration {
    let resumed = connection.received_resumption_data().and_then(origin_in);
    let origin = resumed.filter(|origin| *origin <= now).unwrap_or(now);
    let mut data = MARK.to_vec();
    data.extend_from_slice(&origin.to_be_bytes());
    connection.set_resumption_data(&data);
    Duration::from_millis(now - origin)
}

/// Milliseconds since 1970 by the machine's clock, which rustls asks as well.
pub(super) fn machine_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The origin behind the mark, wherever that is: what else a session holds, and in which order, is rustls' affair.
fn origin_in(session: &[u8]) -> Option<u64> {
    let at = session.windows(MARK_BYTES).rposition(|bytes| bytes == MARK.as_slice())?;
    number(session.get(at + MARK_BYTES..)?)
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(..NUMBER_BYTES)?.try_into().ok()?))
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
        let mut session = self.seal.decrypt(ticket)?;
        let generation = number(&session)?;
        session.drain(..NUMBER_BYTES);
        let age = now.checked_sub(origin_in(&session)?)?;
        let young = u128::from(age) < RESUMED_AGE_MAX.as_millis();
        (young && generation == self.bundle.generation()).then_some(session)
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
        origin_in(session)?;
        let mut sealed = self.bundle.generation().to_be_bytes().to_vec();
        sealed.extend_from_slice(session);
        self.seal.encrypt(&sealed)
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

    fn session(origin: u64) -> Vec<u8> {
        [b"what rustls keeps".as_slice(), MARK.as_slice(), &origin.to_be_bytes(), b"more"].concat()
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
