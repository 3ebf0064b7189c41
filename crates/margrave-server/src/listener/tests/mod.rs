//! The listener from outside, over real sockets, with plain text where TLS is not the point.

mod device;

use super::*;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const SHORT: Limits = Limits {
    connections: 2,
    strangers: 2,
    sockets: 100,
    stranger_time_min: Duration::ZERO,
    handshake_time: Duration::from_millis(200),
    quiet_time: Duration::from_millis(200),
    age: None,
    drain: Duration::from_millis(500),
};
const DEADLINE: Duration = Duration::from_secs(20);

struct Running {
    address: SocketAddr,
    stop: tokio::sync::watch::Sender<bool>,
    /// One permit for each request that takes long.
    arrived: Arc<tokio::sync::Semaphore>,
    task: tokio::task::JoinHandle<()>,
}

async fn running(limits: Limits) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopping) = Stopping::new();
    let wait = stopping.clone();
    let arrived = Arc::new(tokio::sync::Semaphore::new(0));
    let (held, stuck) = (Arc::clone(&arrived), Arc::clone(&arrived));
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route(
            "/held",
            get(move || async move {
                held.add_permits(1);
                wait.wait().await;
                "released"
            }),
        )
        .route(
            "/stuck",
            get(move || async move {
                stuck.add_permits(1);
                std::future::pending::<()>().await
            }),
        )
        .route(
            "/panic",
            post(|| async {
                if true {
                    panic!("on purpose")
                }
            }),
        );
    let task = tokio::spawn(serve(listener, Door::Local, router, limits, stopping));
    Running { address, stop, arrived, task }
}

/// Sends `text` and reads to the end of the connection.
async fn exchange(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("the server closes").unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn headers_that_never_end_are_cut_off() {
    let running = running(SHORT).await;
    let answer = exchange(running.address, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ").await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(exchange(running.address, "").await.is_empty());
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_cut_off() {
    use margrave_core::moment::Moment;
    use margrave_identity::live::LiveWebLeaf;
    use margrave_identity::web::WebAuthority;
    let now = Moment(1_800_000_000_000);
    let authority = WebAuthority::create(now).unwrap();
    let leaf = authority.issue(&["localhost".to_owned()], now, Duration::from_secs(60)).unwrap();
    let tls = margrave_identity::tls::web_server_config(LiveWebLeaf::new(leaf));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_stop, stopping) = Stopping::new();
    tokio::spawn(serve(listener, Door::Web(tls), Router::new(), SHORT, stopping));
    for hello in ["", "\u{16}\u{3}\u{1}\u{2}"] {
        assert!(exchange(address, hello).await.is_empty());
    }
}

#[tokio::test]
async fn headers_without_measure_are_refused() {
    let running = running(SHORT).await;
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "y".repeat(HEADER_BYTES_MAX));
    assert!(exchange(running.address, &long).await.starts_with("HTTP/1.1 431"));
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(HEADER_COUNT_MAX));
    assert!(exchange(running.address, &many).await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn rfc_9112_a_request_says_once_which_host_it_is_for() {
    let running = running(Limits { quiet_time: DEADLINE, ..SHORT }).await;
    for hosts in ["", "Host: a\r\nHost: b\r\n", "Host: a\r\nhost: a\r\n"] {
        // The connection ends by itself, although nobody asked for that.
        let text = format!("GET / HTTP/1.1\r\n{hosts}\r\n");
        let answer = exchange(running.address, &text).await.to_lowercase();
        assert!(answer.starts_with("http/1.1 400"), "{hosts:?}: {answer}");
        for part in ["application/problem+json", "connection: close", "one host header"] {
            assert!(answer.contains(part), "{hosts:?}: {answer}");
        }
    }
    for fine in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n"] {
        let answer = exchange(running.address, fine).await;
        assert!(answer.contains(" 200 ") && answer.ends_with("hello"), "{answer}");
    }
    let both = exchange(running.address, "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n").await;
    assert!(both.contains(" 400 "), "{both}");
}

#[tokio::test]
async fn a_panic_is_one_failed_request_and_a_problem() {
    let running = running(SHORT).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let both = "POST /panic HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(both.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("application/problem+json"), "{answer}");
    assert!(answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn stopping_releases_held_requests_and_gives_up_on_stuck_ones() {
    let running = running(Limits { quiet_time: DEADLINE, ..SHORT }).await;
    let ask = |path: &'static str| {
        let address = running.address;
        tokio::spawn(
            async move { exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await },
        )
    };
    let (held, stuck) = (ask("/held"), ask("/stuck"));
    drop(timeout(DEADLINE, running.arrived.acquire_many(2)).await.expect("both arrive"));
    // Both places are taken, and a third connection is told to come back later.
    let ask = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let turned_away = exchange(running.address, ask).await.to_lowercase();
    assert!(turned_away.starts_with("http/1.1 503"), "{turned_away}");
    assert!(
        turned_away.contains("retry-after: ") && turned_away.contains("connection: close"),
        "{turned_away}"
    );
    running.stop.send(true).unwrap();
    assert!(held.await.unwrap().ends_with("released"));
    assert_eq!(stuck.await.unwrap(), "");
    timeout(DEADLINE, running.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn a_connection_of_age_is_closed_after_its_request() {
    let limits = Limits { age: Some(Duration::from_millis(300)), quiet_time: DEADLINE, ..SHORT };
    let running = running(limits).await;
    let answer = exchange(running.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn an_answer_is_heard_by_a_peer_that_is_still_sending() {
    let running = running(Limits { quiet_time: DEADLINE, ..SHORT }).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // More than the kernel takes in at once, for a handler that never looks at it.
    let body = vec![b'x'; 2_000_000];
    timeout(DEADLINE, stream.write_all(&body)).await.expect("somebody takes it").unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("the server closes").unwrap();
    assert!(answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn who_is_in_the_middle_of_an_answer_is_not_quiet() {
    // The handler takes far longer than anybody may be quiet.
    let running = running(SHORT).await;
    let address = running.address;
    let held = tokio::spawn(async move { exchange(address, "GET /held HTTP/1.1\r\nHost: x\r\n\r\n").await });
    // A connection that says nothing, opened later and several times over, goes before.
    for _ in 0..5 {
        assert!(exchange(address, "").await.is_empty());
    }
    assert!(!held.is_finished());
    running.stop.send(true).unwrap();
    assert!(held.await.unwrap().ends_with("released"));
}

#[tokio::test]
async fn requests_keep_a_connection_open() {
    let running = running(SHORT).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let began = Instant::now();
    let mut buffer = [0; 1024];
    // Longer in all than it may be quiet.
    while began.elapsed() < SHORT.quiet_time * 3 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let count = timeout(DEADLINE, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(buffer[..count].starts_with(b"HTTP/1.1 200"), "{count} bytes");
    }
    let closed = timeout(DEADLINE, stream.read(&mut buffer)).await.expect("it is quiet now").unwrap();
    assert_eq!(closed, 0);
}
