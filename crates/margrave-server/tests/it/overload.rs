//! More than the server can take, or than one device may have of it.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::line::{DEADLINE, Line, Reply};
use crate::plant::{Device, Plant};

const MANIFEST: &str = "/api/v1/deployments";

/// What a client reads from an answer that sends it away (MI-G2-190).
#[track_caller]
fn sends_away(reply: &Reply, status: u16) -> u64 {
    reply.is_problem(status);
    let problem: serde_json::Value = reply.json();
    let seconds: u64 = reply.header("retry-after").parse().unwrap();
    assert_eq!(problem["retryable"], true);
    assert_eq!(problem["retryAfterSeconds"], seconds);
    assert_eq!(problem["backoffStrategy"], "exponential");
    assert!((1..=60).contains(&seconds), "{seconds}");
    seconds
}

/// Whether so many sockets can be open at once; says aloud if not.
fn has_files(wanted: u64) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_none_or(|most| most >= wanted) {
        return true;
    }
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "in CI nothing may be missing: open files");
    #[allow(clippy::print_stderr, reason = "a skipped test says so")]
    {
        eprintln!("skipped: this needs {wanted} open files, ulimit -Hn allows fewer");
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flood_of_handshakes_keeps_neither_open_nor_new_devices_from_being_served() {
    const FLOOD: usize = 5_000;
    if !has_files(2 * FLOOD as u64 + 1_000) {
        return;
    }
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let mut line = device.line(&plant).await;
    line.get(MANIFEST).await.unwrap().is(200);
    let flood = flood(plant.server.addresses().device, FLOOD);
    let (strangers, polls) = tokio::join!(flood, async {
        let mut polls = 0;
        for _ in 0..50 {
            line.get(MANIFEST).await.unwrap().is(200);
            polls += 1;
        }
        polls
    });
    assert_eq!((strangers.len(), polls), (FLOOD, 50));
    // They are all still there, as far as they are concerned.
    line.get(MANIFEST).await.unwrap().is(200);
    let another = plant.join("press.43").await;
    let mut line = another.line(&plant).await;
    line.get(MANIFEST).await.unwrap().is(200);
    drop(strangers);
}

/// Connections that begin a handshake, each in another way, and never end it.
async fn flood(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut strangers = Vec::with_capacity(count);
    for at in 0..count {
        let mut stranger = timeout(DEADLINE, TcpStream::connect(address)).await.unwrap().unwrap();
        let said: &[u8] = match at % 4 {
            0 => b"",
            1 => b"\x16",
            2 => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            _ => b"no handshake at all\r\n\r\n",
        };
        // Whoever lost its place already cannot say anything; that is the point.
        drop(stranger.write_all(said).await);
        strangers.push(stranger);
    }
    strangers
}

#[tokio::test]
async fn mi_g2_190_one_device_over_its_rate_is_429_and_others_are_served() {
    let plant = Plant::new().await;
    let (eager, calm) = (plant.join("eager").await, plant.join("calm").await);
    let ask = async |device: &Device| {
        let mut line = device.line(&plant).await;
        let sent_away = async {
            loop {
                let reply = line.get(MANIFEST).await.unwrap();
                if reply.status != 200 {
                    return reply;
                }
            }
        };
        timeout(DEADLINE, sent_away).await.expect("nobody may ask for ever")
    };
    // On several connections at once, which does not help.
    let replies = tokio::join!(ask(&eager), ask(&eager), ask(&eager), ask(&eager));
    for reply in [replies.0, replies.1, replies.2, replies.3] {
        sends_away(&reply, 429);
    }
    // Neither does another connection, and the rate counts for everything.
    let mut line = eager.line(&plant).await;
    let sent_away = async {
        loop {
            let path = margrave_wire::identity::REGISTRY_TOKEN_PATH;
            let reply = line.send("POST", path, &[], "").await.unwrap();
            // While it shook hands it may have earned another request.
            if reply.status != 200 {
                return reply;
            }
        }
    };
    sends_away(&timeout(DEADLINE, sent_away).await.expect("nobody may ask for ever"), 429);
    calm.line(&plant).await.get(MANIFEST).await.unwrap().is(200);
}

#[tokio::test]
async fn mi_g2_190_bodies_that_do_not_arrive_take_no_more_than_there_is() {
    // Each of these reserves 256 kB and sends nothing of it.
    const DEVICES: usize = 33;
    const PER_DEVICE: usize = 8;
    let plant = Plant::new().await;
    let mut silent = Vec::new();
    let mut sent_away = None;
    for at in 0..DEVICES {
        let name = format!("slow-{at}");
        let device = plant.join(&name).await;
        for _ in 0..PER_DEVICE {
            let mut line = device.line(&plant).await;
            let path = format!("/api/v1/capabilities/{name}");
            let headers = [("content-length", "262144"), ("content-type", "application/json")];
            let mut asking = Box::pin(async move {
                let reply = line.send("PUT", &path, &headers, pending_body()).await;
                (line, reply)
            });
            // Either nothing comes because the body is waited for, or the server has enough of these.
            match timeout(Duration::from_millis(5), asking.as_mut()).await {
                Ok((_, reply)) => sent_away = reply.ok(),
                Err(_) => silent.push(asking),
            }
        }
    }
    let sent_away = match sent_away {
        Some(reply) => reply,
        // A slow machine: they all are on their way.
        None => {
            let first = futures_util::future::select_all(silent.drain(..));
            let ((_, reply), _, _) = timeout(DEADLINE, first).await.expect("one is too many");
            reply.unwrap()
        }
    };
    sends_away(&sent_away, 503);
    // What needs no room is answered all the same.
    let device = plant.join("press.42").await;
    device.line(&plant).await.get(MANIFEST).await.unwrap().is(200);
    // And everybody once there is room again.
    drop(silent);
    let served = async {
        let mut line = device.line(&plant).await;
        loop {
            let reply = line.send("DELETE", "/api/v1/capabilities/press.42", &[], "{}").await.unwrap();
            if reply.status != 503 {
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(DEADLINE, served).await.expect("there is room again").is_problem(404);
}

/// A body that never comes.
fn pending_body() -> axum::body::Body {
    axum::body::Body::new(http_body_util::StreamBody::new(futures_util::stream::pending::<
        Result<http_body::Frame<bytes::Bytes>, std::convert::Infallible>,
    >()))
}

#[tokio::test]
async fn id_067_a_device_that_comes_back_resumes_and_is_who_it_was() {
    let plant = Plant::new().await;
    let device = plant.join("press.42").await;
    let tls = device.tls();
    let open = async || Line::open(plant.server.addresses().device, tls.clone()).await.unwrap();
    let mut line = open().await;
    assert!(!line.resumed);
    line.get(MANIFEST).await.unwrap().is(200);
    let mut line = open().await;
    assert!(line.resumed);
    line.get(MANIFEST).await.unwrap().is(200);
    // Policy counts on a resumed connection as on any other (ID-082).
    plant.server.fleet().retire(&crate::plant::operator(), &"press.42".parse().unwrap()).await.unwrap();
    line.get(MANIFEST).await.unwrap().is_problem(403);
    let mut line = open().await;
    line.get(MANIFEST).await.unwrap().is_problem(403);
    // A renewed SVID is shown and not resumed around (ID-106).
    let device = plant.join("press.43").await;
    let tls = device.tls();
    let open = async || Line::open(plant.server.addresses().device, tls.clone()).await.unwrap();
    open().await.get(MANIFEST).await.unwrap().is(200);
    device.renew(&plant).await.is(200);
    let mut line = open().await;
    assert!(!line.resumed);
    line.get(MANIFEST).await.unwrap().is(200);
}
