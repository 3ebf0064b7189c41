//! On real sockets: what only a connection can do wrong.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use margrave_core::digest::Digest;
use margrave_registry::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::rig::{Rig, everybody};

/// Sends raw bytes and reads the answer until the server closes.
async fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    head.lines()
        .find_map(|line| line.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)))
        .map(|(_, v)| v)
}

#[tokio::test]
async fn an_upload_that_was_cut_off_is_continued() {
    let rig = Rig::new();
    let address = rig.serve().await;
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
    let location = rig.start("a").await;
    let sent = 2_000_000;

    let head = format!("PATCH {location} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", bytes.len());
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&bytes[..sent]).await.unwrap();
    drop(stream);

    // How much arrived before the cut is the registry's to say; wait until it has noticed it.
    let status = format!("GET {location} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let deadline = Instant::now() + Duration::from_secs(20);
    let received = loop {
        let answer = exchange(address, status.as_bytes()).await;
        let last = header(&answer, "range").and_then(|range| range.strip_prefix("0-")?.parse::<usize>().ok());
        match last {
            Some(last) if last > 0 => break last + 1,
            _ => assert!(Instant::now() < deadline, "{answer}"),
        }
        tokio::task::yield_now().await;
    };
    assert!(received <= sent);
    assert_ne!(rig.incoming(), 0);

    let rest = &bytes[received..];
    let digest = Digest::of(&bytes);
    let head = format!(
        "PUT {location}?digest={digest} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-range: {received}-{}\r\ncontent-length: {}\r\n\r\n",
        bytes.len() - 1,
        rest.len()
    );
    let answer = exchange(address, &[head.as_bytes(), rest].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(rig.get(&format!("/v2/a/blobs/{digest}")).await.expect(200).body, bytes);
}

#[tokio::test]
async fn a_body_that_stops_coming_is_given_up() {
    let limits = Limits { body_stall_max: Duration::from_millis(200), ..Limits::default() };
    let rig = Rig::with(limits, everybody);
    let address = rig.serve().await;
    let location = rig.start("a").await;
    let request = format!(
        "PATCH {location} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 10\r\n\r\n01234"
    );
    let answer = exchange(address, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(rig.get(&location).await.expect(204).header("range"), "0-4");
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_is_still_sending() {
    let rig = Rig::new();
    let address = rig.serve().await;
    let body = vec![b' '; 5 * 1024 * 1024];
    let head = format!(
        "PUT /v2/a/manifests/1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/vnd.oci.image.manifest.v1+json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let answer = exchange(address, &[head.as_bytes(), &body].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("SIZE_INVALID"), "{answer}");
}

#[tokio::test]
async fn dot_segments_on_the_wire_are_names_like_any_other() {
    let rig = Rig::new();
    let address = rig.serve().await;
    for path in ["/v2/../../etc/tags/list", "/v2/%2e%2e/%2e%2e/tags/list", "/v2/a/../b/tags/list"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = exchange(address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("NAME_INVALID"), "{answer}");
    }
}
