//! The device's door: who is let in, who may stay, and who is in the way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use margrave_core::moment::Moment;
use margrave_identity::authority::Authority;
use margrave_identity::bundle::Bundle;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_identity::live::{LiveBundle, LiveSvid};
use margrave_identity::svid::Svid;
use margrave_identity::tls::{device_client_config, device_server_config};
use rustls::ClientConfig;
use tokio_rustls::TlsConnector;

use super::*;
use crate::identity::Wanted;

const HOUR: Duration = Duration::from_secs(3600);

fn machine_now() -> Moment {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Moment(now.as_millis().try_into().unwrap())
}

/// Holds requests until their connection is to end.
struct Holding {
    router: Router,
    ending: Arc<Notify>,
}

impl Inside for Holding {
    fn answer(&self, guest: &Guest, request: http::Request<Incoming>) -> Reply {
        self.router.answer(guest, request)
    }

    fn turn_away(&self, request: &http::Request<Incoming>) -> Response {
        self.router.turn_away(request)
    }

    fn misaddressed(&self, request: &http::Request<Incoming>) -> Response {
        self.router.misaddressed(request)
    }

    fn ending(&self, guest: &Guest) {
        assert!(guest.caller.is_some());
        self.ending.notify_waiters();
    }
}

/// A device listener with its own authority, and a clock that can be turned ahead.
struct Plant {
    address: SocketAddr,
    identity: Arc<Identity>,
    ahead: Arc<AtomicU64>,
    /// One permit for each request that is being held.
    held: Arc<tokio::sync::Semaphore>,
    stop: tokio::sync::watch::Sender<bool>,
    _data: tempfile::TempDir,
}

impl Plant {
    async fn new(limits: Limits) -> Plant {
        let data = tempfile::tempdir().unwrap();
        let (trust_domain, wfm) = ("plant.example".parse().unwrap(), "line-7".parse().unwrap());
        let wanted = Wanted {
            trust_domain: Some(&trust_domain),
            wfm: Some(&wfm),
            svid_lifetime: 2 * HOUR,
            web_names: &["localhost".to_owned()],
            fleet_exists: false,
        };
        let identity = Arc::new(Identity::open(data.path(), machine_now(), wanted).unwrap());
        let ahead = Arc::new(AtomicU64::new(0));
        let turned = Arc::clone(&ahead);
        let clock = Clock::new(move || Moment(machine_now().0 + turned.load(Ordering::Relaxed)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopping) = Stopping::new();
        let tls = device_server_config(Arc::clone(&identity.svid), Arc::clone(&identity.bundle));
        let door = Door::Device { tls, identity: Arc::clone(&identity), clock };
        let ending = Arc::new(Notify::new());
        let held = Arc::new(tokio::sync::Semaphore::new(0));
        let (arrived, release) = (Arc::clone(&held), Arc::clone(&ending));
        let router = Router::new().route("/", get(|| async { "hello" })).route(
            "/held",
            get(move || async move {
                let released = release.notified();
                arrived.add_permits(1);
                released.await;
                "released"
            }),
        );
        tokio::spawn(serve(listener, door, Holding { router, ending }, limits, stopping));
        Plant { address, identity, ahead, held, stop, _data: data }
    }

    fn client(&self, authority: &Authority, lifetime: Duration) -> Arc<ClientConfig> {
        self.named("press.42", authority, lifetime)
    }

    fn named(&self, name: &str, authority: &Authority, lifetime: Duration) -> Arc<ClientConfig> {
        let key = PrivateKey::generate().unwrap();
        let csr = Csr::make(&key).unwrap();
        let (wfm, client) = ("line-7".parse().unwrap(), name.parse().unwrap());
        let issued = authority.issue_client(&wfm, &client, &csr, machine_now(), lifetime).unwrap();
        let svid = LiveSvid::new(Svid::new(issued.chain, key).unwrap());
        // The client trusts the server of the beginning, whatever that learns later.
        device_client_config(svid, LiveBundle::new(Bundle::clone(&self.identity.bundle.current())))
    }

    async fn call(&self, tls: &Arc<ClientConfig>) -> io::Result<Call> {
        let stream = TcpStream::connect(self.address).await?;
        let name = rustls::pki_types::ServerName::from(self.address.ip());
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?;
        let resumed = stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        Ok(Call { stream, resumed })
    }

    fn bundle_of(&self, authority: &Authority) -> Bundle {
        Bundle::of_anchor(authority.trust_domain().clone(), authority.anchor(), 2, HOUR)
    }
}

struct Call {
    stream: tokio_rustls::client::TlsStream<TcpStream>,
    resumed: bool,
}

impl Call {
    /// One answer, or nothing if the connection ended.
    async fn ask(&mut self, path: &str) -> Option<String> {
        let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        self.stream.write_all(text.as_bytes()).await.ok()?;
        self.answer().await
    }

    async fn answer(&mut self) -> Option<String> {
        let mut answer = Vec::new();
        let mut piece = [0; 1024];
        let read = async {
            while !(answer.ends_with(b"hello") || answer.ends_with(b"released")) {
                match self.stream.read(&mut piece).await {
                    Ok(count) if count > 0 => answer.extend_from_slice(&piece[..count]),
                    _ => return None,
                }
            }
            Some(String::from_utf8(answer).unwrap())
        };
        timeout(DEADLINE, read).await.expect("it is answered or closed")
    }

    async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        let read = timeout(DEADLINE, self.stream.read(&mut byte)).await.expect("the server closes");
        !matches!(read, Ok(count) if count > 0)
    }
}

const PATIENT: Limits = Limits {
    connections: 100,
    strangers: 100,
    sockets: 200,
    quiet_time: DEADLINE,
    handshake_time: DEADLINE,
    ..SHORT
};

#[tokio::test]
async fn id_067_a_resumed_connection_is_answered_and_an_expired_one_is_not() {
    let plant = Plant::new(PATIENT).await;
    let tls = plant.client(&plant.identity.authorities.issuing(), HOUR);
    let mut first = plant.call(&tls).await.unwrap();
    assert!(first.ask("/").await.is_some() && !first.resumed);
    for _ in 0..2 {
        let mut again = plant.call(&tls).await.unwrap();
        assert!(again.ask("/").await.is_some() && again.resumed);
    }
    // rustls asks the machine and would go on; the listener's clock says that the SVID has ended.
    plant.ahead.store(u64::try_from((HOUR * 3 / 2).as_millis()).unwrap(), Ordering::Relaxed);
    let mut late = plant.call(&tls).await.unwrap();
    assert!(late.resumed);
    assert_eq!(late.ask("/").await, None);
}

#[tokio::test]
async fn id_113_open_connections_end_when_the_bundle_no_longer_holds_them() {
    let plant = Plant::new(PATIENT).await;
    let own = &plant.identity.authorities.issuing();
    let other = Authority::create("plant.example".parse().unwrap(), machine_now()).unwrap();
    let (tls, other_tls) = (plant.client(own, HOUR), plant.client(&other, HOUR));
    let mut open = plant.call(&tls).await.unwrap();
    assert!(open.ask("/").await.is_some());
    // Both count: nobody goes, and others come.
    let both = plant.bundle_of(own).with_anchor(other.anchor());
    plant.identity.bundle.replace(both).unwrap();
    assert!(open.ask("/").await.is_some());
    let mut new = plant.call(&other_tls).await.unwrap();
    assert!(new.ask("/").await.is_some());
    let mut held = plant.call(&tls).await.unwrap();
    assert!(held.ask("/").await.is_some());
    held.stream.write_all(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    drop(timeout(DEADLINE, plant.held.acquire()).await.expect("it arrives"));
    // Only the other one counts.
    plant.identity.bundle.replace(plant.bundle_of(&other)).unwrap();
    assert!(open.is_closed().await);
    assert!(new.ask("/").await.is_some());
    let mut refused = plant.call(&tls).await.unwrap();
    assert_eq!(refused.ask("/").await, None);
    // Who was in the middle of a request gets its answer first.
    let answer = held.answer().await.expect("it was asked before");
    assert!(answer.ends_with("released"), "{answer}");
    assert!(held.is_closed().await);
}

#[tokio::test]
async fn silent_strangers_keep_nobody_out() {
    let plant = Plant::new(Limits { strangers: 4, ..PATIENT }).await;
    let tls = plant.client(&plant.identity.authorities.issuing(), HOUR);
    let mut open = plant.call(&tls).await.unwrap();
    assert!(open.ask("/").await.is_some());
    let mut strangers = Vec::new();
    for at in 0..100usize {
        let mut stranger = TcpStream::connect(plant.address).await.unwrap();
        let said: &[u8] = match at % 3 {
            0 => b"",
            1 => b"\x16\x03\x01\x02\x00\x01\x00",
            _ => b"GET / HTTP/1.1\r\n",
        };
        stranger.write_all(said).await.unwrap();
        strangers.push(stranger);
    }
    assert!(open.ask("/").await.is_some());
    let mut new = plant.call(&tls).await.unwrap();
    assert!(new.ask("/").await.is_some());
    // All but the newest are gone, long before their time.
    for mut stranger in strangers.into_iter().take(90) {
        let mut rest = Vec::new();
        let gone = timeout(DEADLINE, stranger.read_to_end(&mut rest)).await;
        // An alert or nothing; an end or a reset.
        drop(gone.expect("its place was taken"));
        assert!(rest.len() < 16, "{rest:?}");
    }
}

#[tokio::test]
async fn a_handshake_without_end_is_cut_off() {
    let plant = Plant::new(PATIENT).await;
    let mut stranger = TcpStream::connect(plant.address).await.unwrap();
    // The beginning of a first message that says that it is as long as can be, and goes on and on.
    let mut record = b"\x16\x03\x01\x40\x00\x01\x00\xff\xff".to_vec();
    record.resize(16 * 1024 + 5, 0);
    let sending = async { while stranger.write_all(&record).await.is_ok() {} };
    timeout(DEADLINE, sending).await.expect("the server closes");
}

#[tokio::test]
async fn a_full_house_tells_devices_when_to_come_back() {
    let plant = Plant::new(Limits { connections: 1, ..PATIENT }).await;
    let tls = plant.client(&plant.identity.authorities.issuing(), HOUR);
    let mut open = plant.call(&tls).await.unwrap();
    assert!(open.ask("/").await.is_some());
    let others = plant.named("press.43", &plant.identity.authorities.issuing(), HOUR);
    let mut turned_away = plant.call(&others).await.unwrap();
    turned_away.stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    timeout(DEADLINE, turned_away.stream.read_to_end(&mut answer)).await.expect("the server closes").unwrap();
    let answer = String::from_utf8(answer).unwrap().to_lowercase();
    assert!(answer.starts_with("http/1.1 503") && answer.contains("retry-after: "), "{answer}");
    drop(open);
    let comes_in = async {
        loop {
            let mut again = plant.call(&others).await.unwrap();
            if again.ask("/").await.is_some() {
                return;
            }
        }
    };
    timeout(DEADLINE, comes_in).await.expect("there is a place again");
}

#[tokio::test]
async fn in_a_full_house_a_held_request_of_the_same_device_is_answered_and_gives_its_place() {
    let plant = Plant::new(Limits { connections: 2, ..PATIENT }).await;
    let authority = plant.identity.authorities.issuing();
    let tls = plant.client(&authority, HOUR);
    let mut other = plant.call(&plant.named("press.43", &authority, HOUR)).await.unwrap();
    assert!(other.ask("/").await.is_some());
    let mut held = plant.call(&tls).await.unwrap();
    held.stream.write_all(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    drop(timeout(DEADLINE, plant.held.acquire()).await.expect("it arrives"));
    let mut second = plant.call(&tls).await.unwrap();
    assert!(second.ask("/").await.is_some());
    let answer = held.answer().await.expect("nothing is closed without an answer");
    assert!(answer.ends_with("released"), "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    assert!(held.is_closed().await);
    assert!(other.ask("/").await.is_some() && second.ask("/").await.is_some());
}

#[tokio::test]
async fn a_server_that_stops_answers_what_it_holds_and_says_that_it_goes() {
    let plant = Plant::new(PATIENT).await;
    let tls = plant.client(&plant.identity.authorities.issuing(), HOUR);
    let mut held = plant.call(&tls).await.unwrap();
    held.stream.write_all(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    drop(timeout(DEADLINE, plant.held.acquire()).await.expect("it arrives"));
    plant.stop.send(true).unwrap();
    let answer = held.answer().await.expect("nothing is closed without an answer");
    assert!(answer.ends_with("released"), "{answer}");
    // Otherwise it would be asked again at once, by somebody who takes the answer for a held one that was short.
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    assert!(held.is_closed().await);
}
