//! Tickets that a device was given, kept in memory until it connects again.
//!
//! They stand for a server that was verified with the SVID and the bundle of then: when one of these is replaced,
//! all are dropped and the next connection verifies anew (ID-113). So they are after a while that counts from the
//! oldest full handshake behind them, however often they were used and given anew (ID-112).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName as TlsName;

use crate::live::{LiveBundle, LiveSvid};

/// As long as our own server takes them; another one may take them for a week, which is too long for us.
const SESSIONS_AGE_MAX: Duration = Duration::from_secs(30 * 60);
/// A device has one server, under an address or two.
const SERVERS_MAX: usize = 4;
/// One connection and its successor; some servers send several per connection, and each is used once.
const TICKETS_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct Sessions {
    svid: Arc<LiveSvid>,
    bundle: Arc<LiveBundle>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Of SVID and bundle.
    generation: (u64, u64),
    servers: HashMap<TlsName<'static>, Server>,
}

#[derive(Debug)]
struct Server {
    /// No full handshake behind these tickets is older.
    since: Instant,
    group: Option<NamedGroup>,
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl Sessions {
    pub(super) fn new(svid: Arc<LiveSvid>, bundle: Arc<LiveBundle>) -> Sessions {
        Sessions { svid, bundle, kept: Mutex::default() }
    }

    /// What is kept and still counts.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        let generation = (self.svid.generation(), self.bundle.generation());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.generation != generation {
            *kept = Kept { generation, ..Kept::default() };
        }
        kept
    }
}

impl Kept {
    fn server(&mut self, name: TlsName<'static>) -> &mut Server {
        if self.servers.len() >= SERVERS_MAX && !self.servers.contains_key(&name) {
            self.servers.clear();
        }
        self.servers.entry(name).or_insert_with(|| Server {
            since: Instant::now(),
            group: None,
            tickets: VecDeque::new(),
        })
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, name: TlsName<'static>, group: NamedGroup) {
        self.kept().server(name).group = Some(group);
    }

    fn kx_hint(&self, name: &TlsName<'_>) -> Option<NamedGroup> {
        self.kept().servers.get(&name.to_owned())?.group
    }

    fn set_tls12_session(&self, _: TlsName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &TlsName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &TlsName<'static>) {}

    fn insert_tls13_ticket(&self, name: TlsName<'static>, ticket: Tls13ClientSessionValue) {
        let mut kept = self.kept();
        let server = kept.server(name);
        if server.tickets.len() >= TICKETS_MAX {
            server.tickets.pop_front();
        }
        server.tickets.push_back(ticket);
    }

    fn take_tls13_ticket(&self, name: &TlsName<'static>) -> Option<Tls13ClientSessionValue> {
        let mut kept = self.kept();
        let server = kept.servers.get_mut(name)?;
        if server.since.elapsed() >= SESSIONS_AGE_MAX {
            // The next handshake is a full one, and the count begins anew.
            server.tickets.clear();
            server.since = Instant::now();
        }
        server.tickets.pop_back()
    }
}
