//! What may come out of a socket instead of decent HTTP: two requests in the clothes of one, lines that end
//! otherwise, bodies without end, and bytes that are hardly TLS. On every listener.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use rustls::pki_types::ServerName;

use super::{Answer, Ask, Door, Plant, SILENCE_MAX};

/// Every way into a server, by name.
fn doors(plant: &Plant) -> Vec<(&'static str, Door)> {
    vec![
        ("local", plant.local()),
        ("web", plant.web()),
        ("device", super::device::member(&plant.stage, "line-2").0),
        ("signed", plant.signed()),
    ]
}

/// The second request in the clothes of the first; where it is answered, somebody else's words were believed.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn one_request_is_never_two() {
    let plant = Plant::start();
    let post = "POST /nothing HTTP/1.1\r\nHost: x\r\n";
    let length = HIDDEN.len();
    // Where lengths contradict each other, there is one answer at most, and then the connection is over.
    let shapes = [
        ("two lengths", format!("{post}Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{HIDDEN}")),
        ("two lengths in a list", format!("{post}Content-Length: 0, {length}\r\n\r\n{HIDDEN}")),
        ("a signed length", format!("{post}Content-Length: +0\r\n\r\n{HIDDEN}")),
        ("a length with a point", format!("{post}Content-Length: 0.0\r\n\r\n{HIDDEN}")),
        ("a length in hex", format!("{post}Content-Length: 0x0\r\n\r\n{HIDDEN}")),
        ("a length of nothing", format!("{post}Content-Length: \r\n\r\n{HIDDEN}")),
        (
            "a length and chunks",
            format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        (
            "chunks and a length",
            format!("{post}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        (
            "chunks that are not last",
            format!("{post}Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        ("an unknown coding", format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{HIDDEN}")),
        (
            "two codings",
            format!(
                "{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
        ),
        ("a blank before the colon", format!("{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{HIDDEN}")),
        ("a tab before the name", format!("{post}\tTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}")),
        ("a folded line", format!("{post}X: a\r\n b\r\nContent-Length: 0\r\n\r\n{HIDDEN}")),
        ("a folded length", format!("{post}Content-Length:\r\n 0\r\n\r\n{HIDDEN}")),
        ("a bare return in a value", format!("{post}X: a\rContent-Length: {length}\r\n\r\n{HIDDEN}")),
        ("a nul in a value", format!("{post}X: a\0\r\nContent-Length: 0\r\n\r\n{HIDDEN}")),
        (
            "chunks in HTTP/1.0",
            format!("POST /nothing HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        ("a size without digits", format!("{post}Transfer-Encoding: chunked\r\n\r\n;\r\n\r\n{HIDDEN}")),
        ("a negative size", format!("{post}Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n{HIDDEN}")),
        (
            "a size beyond every number",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n{}\r\n\r\n{HIDDEN}", "f".repeat(17)),
        ),
        (
            "a chunk longer than its size",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n{HIDDEN}"),
        ),
        (
            "two names in one",
            format!("{post}Content-Length Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        ("no name at all", format!("{post}: chunked\r\n\r\n{HIDDEN}")),
    ];
    for (listener, door) in doors(&plant) {
        for (what, bytes) in &shapes {
            let said = door.exchange(bytes.as_bytes());
            let answers = Answer::all(&said);
            assert!(answers.len() <= 1, "{what} at {listener} was taken for {} requests", answers.len());
            for answer in &answers {
                assert!((400..500).contains(&answer.status), "{what} at {listener}: {}", answer.status);
            }
            assert!(!String::from_utf8_lossy(&said).contains("/hidden"), "{what} at {listener} was believed");
        }
        // The same length twice, or lines that end in a line feed alone, mean only one thing; both are lawful.
        for (what, bytes) in [
            ("a length said twice", format!("{post}Content-Length: 2\r\nContent-Length: 2\r\n\r\nab")),
            ("line feeds alone", "POST /nothing HTTP/1.1\nHost: x\nContent-Length: 2\n\nab".to_owned()),
        ] {
            let last = "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let answers = Answer::all(&door.exchange(format!("{bytes}{last}").as_bytes()));
            let refused = answers.len() == 1 && answers[0].status == 400;
            assert!(refused || answers.len() == 2, "{what} at {listener}: {answers:?}");
            assert!(answers.iter().all(|answer| (300..500).contains(&answer.status)), "{answers:?}");
        }
    }
    plant.assert_unharmed();
}

#[test]
fn nobody_is_a_proxy_and_other_forms_of_targets_lead_nowhere_else() {
    let plant = Plant::start();
    for (listener, door) in doors(&plant) {
        let ask = |line: &str| {
            let bytes = format!("{line} HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n");
            let answers = Answer::all(&door.exchange(bytes.as_bytes()));
            assert!(answers.len() <= 1, "{line} at {listener}");
            answers.into_iter().next()
        };
        for line in [
            "CONNECT other.example:443",
            "CONNECT 127.0.0.1:22",
            "GET other.example:443",
            "GET ftp://other.example/",
            "GET http://",
            "GET //other.example/..//",
            "GET /../../etc/passwd",
            "GET \\..\\x",
            "GET http://other.example:99999/",
            "TRACE /",
            "TRACK /",
            "PROPFIND /",
            "GET /%00",
            "GET /%",
            "GET /\u{7f}",
            "G\u{e9}T /",
        ] {
            if let Some(answer) = ask(line) {
                assert!((300..500).contains(&answer.status), "{line} at {listener}: {}", answer.status);
                let body = String::from_utf8_lossy(&answer.body);
                assert!(!body.contains("root:"), "{line} at {listener}");
            }
        }
        // The asterisk is lawful and asks nothing; the absolute form is the same as its path, whatever host it names.
        assert!(ask("OPTIONS *").is_none_or(|answer| answer.status < 500), "OPTIONS * at {listener}");
        let (relative, absolute) = (ask("GET /nothing"), ask("GET http://other.example/nothing"));
        let status = |answer: Option<Answer>| answer.map(|answer| answer.status);
        assert_eq!(status(relative), status(absolute), "{listener}");
    }
    plant.assert_unharmed();
}

/// More than any limit of ours; who takes all of it has none.
const POURED_BYTES_MAX: usize = 16 << 20;

/// Writes a beginning and then a piece again and again, until the server has had enough. Returns what it said.
fn pour(door: &Door, beginning: &str, piece: &[u8], bytes_max: usize) -> Vec<u8> {
    let mut connection = door.connect();
    let mut sent = 0;
    let mut ended = connection.write_all(beginning.as_bytes()).is_err();
    while !ended && sent < bytes_max {
        ended = connection.write_all(piece).and_then(|()| connection.flush()).is_err();
        sent += piece.len();
    }
    let mut said = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        match connection.read(&mut buffer) {
            Ok(0) => return said,
            Ok(count) => said.extend(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("after {sent} bytes the server neither answers nor closes")
            }
            Err(_) => return said,
        }
    }
}

#[test]
fn what_never_ends_is_ended() {
    let plant = Plant::start();
    let bearer = format!("Authorization: {}\r\n", plant.bearer().1);
    let json = "Host: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
    for (listener, door) in doors(&plant) {
        // A handler that reads its body, so that the body is really read.
        let head = match listener {
            "device" => format!("PUT /api/v1/capabilities/line-2 HTTP/1.1\r\n{json}\r\n"),
            "signed" => format!("POST /api/v1/onboarding HTTP/1.1\r\n{json}\r\n"),
            _ => format!("POST /api/operator/v1/packages HTTP/1.1\r\n{bearer}{json}\r\n"),
        };
        let extension = [b"1;".to_vec(), vec![b'e'; 60 * 1024]].concat();
        let cases: Vec<(&str, String, Vec<u8>)> = vec![
            ("a chunk extension without end", format!("{head}1;"), vec![b'e'; 64 * 1024]),
            ("a long extension for every chunk", head.clone(), [&extension[..], b"\r\nx\r\n"].concat()),
            (
                "trailers without end",
                format!("{head}2\r\n{{}}\r\n0\r\n"),
                b"X-Trailer: more\r\n".repeat(1000),
            ),
            ("one trailer without end", format!("{head}2\r\n{{}}\r\n0\r\nX: "), vec![b't'; 64 * 1024]),
            ("chunks of one byte", head.clone(), b"1\r\n \r\n".repeat(10_000)),
            ("a chunk size without end", head.clone(), vec![b'0'; 64 * 1024]),
            ("a header without end", "GET / HTTP/1.1\r\nX: ".to_owned(), vec![b'h'; 64 * 1024]),
            ("a target without end", "GET /".to_owned(), vec![b'p'; 64 * 1024]),
            ("a method without end", String::new(), vec![b'M'; 64 * 1024]),
            ("empty lines without end", String::new(), b"\r\n".repeat(32 * 1024)),
        ];
        // Together, because some of them are ended by time alone.
        std::thread::scope(|scope| {
            for (what, beginning, piece) in &cases {
                let door = &door;
                scope.spawn(move || {
                    for answer in Answer::all(&pour(door, beginning, piece, POURED_BYTES_MAX)) {
                        let status = answer.status;
                        assert!((400..500).contains(&status), "{what} at {listener}: {status}");
                    }
                });
            }
        });
    }
    plant.assert_unharmed();
}

#[test]
fn pipelined_requests_are_answered_in_order_and_a_bad_one_ends_the_line() {
    let plant = Plant::start();
    for (listener, door) in doors(&plant) {
        let mut bytes = String::new();
        for number in 0..100 {
            // Bodies in between, so that a wrong count would show at once.
            let body = "x".repeat(number % 7);
            bytes.push_str(&format!(
                "POST /nothing/{number} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
        let last = "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let answers = Answer::all(&door.exchange(format!("{bytes}{last}").as_bytes()));
        assert_eq!(answers.len(), 101, "{listener}");
        assert!(answers.iter().all(|answer| (300..500).contains(&answer.status)), "{listener}: {answers:?}");
        // Whoever names the path in its refusals names them in order.
        let named: Vec<usize> = answers
            .iter()
            .filter_map(|answer| serde_json::from_slice::<serde_json::Value>(&answer.body).ok())
            .filter_map(|problem| problem["instance"].as_str()?.strip_prefix("/nothing/")?.parse().ok())
            .collect();
        assert!(named.is_sorted(), "{listener}: {named:?}");

        let bad = format!("GET /first HTTP/1.1\r\nHost: x\r\n\r\nBAD LINE HERE NOW\r\n\r\n{HIDDEN}");
        let said = door.exchange(bad.as_bytes());
        let answers = Answer::all(&said);
        assert_eq!(answers.iter().map(|answer| answer.status == 400).collect::<Vec<_>>(), [false, true]);
        assert!(!String::from_utf8_lossy(&said).contains("/hidden"), "{listener}");
    }
    plant.assert_unharmed();
}

#[test]
fn a_peer_that_says_no_more_is_answered_or_let_go() {
    let plant = Plant::start();
    let ask = Ask::new("GET", "/nothing").bytes();
    for (listener, door) in doors(&plant) {
        for end in [0, 1, ask.len() / 2, ask.len() - 1, ask.len()] {
            let said = door.half_closed(&ask[..end]);
            let answers = Answer::all(&said);
            assert!(answers.len() <= 1, "{listener}");
            assert!(
                answers.iter().all(|answer| (300..500).contains(&answer.status)),
                "{listener}: {answers:?}"
            );
        }
        // A body that was promised and never comes.
        let short = b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nonly this";
        for answer in Answer::all(&door.half_closed(short)) {
            assert!((300..500).contains(&answer.status), "{listener}: {}", answer.status);
        }
    }
    plant.assert_unharmed();
}

/// What a client says first in a handshake, as it goes over the wire.
fn hello(door: &Door) -> Vec<u8> {
    let tls = door.tls.clone().expect("a listener with TLS");
    let name = ServerName::try_from("127.0.0.1").expect("an address is a name");
    let mut connection = rustls::ClientConnection::new(tls, name).expect("a configuration");
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes).expect("memory takes every write");
    }
    bytes
}

/// Sends bytes without TLS of our own, says that no more will come, and waits for the end.
fn send_and_end(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    stream.set_read_timeout(Some(SILENCE_MAX)).expect("a live socket");
    // The server may have hung up by now; what can be read tells.
    let _sent = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("the server neither answers nor closes")
        }
        _ => said,
    }
}

#[test]
fn a_handshake_that_breaks_at_any_byte_ends_and_harms_nobody() {
    let plant = Plant::start();
    for (listener, door) in doors(&plant).into_iter().filter(|(_, door)| door.tls.is_some()) {
        let hello = hello(&door);
        let mut inputs: Vec<Vec<u8>> = Vec::new();
        for at in 0..hello.len() {
            inputs.push(hello[..at].to_vec());
            let mut flipped = hello.clone();
            flipped[at] ^= 0xff;
            inputs.push(flipped);
            inputs.push([&hello[..at], &b"GET / HTTP/1.1\r\n\r\n"[..]].concat());
        }
        // Lengths that promise more than ever comes, and other things that are no first message.
        for start in [
            &b"\x16\x03\x01\xff\xff\x01"[..],
            b"\x16\x03\x01\x40\x00\x01\xff\xff\xff",
            b"\x15\x03\x01\x00\x02\x02\x28",
            b"\x17\x03\x03\x00\x05hello",
            b"\x14\x03\x03\x00\x01\x01",
            b"\x80\x2e\x01\x00\x02",
        ] {
            inputs.push([start, &[0; 70_000]].concat());
        }
        let threads = 8;
        std::thread::scope(|scope| {
            for part in inputs.chunks(inputs.len().div_ceil(threads)) {
                let door = &door;
                scope.spawn(move || {
                    for bytes in part {
                        let said = send_and_end(door.port, bytes);
                        // Alerts and half a handshake, but never an answer.
                        assert!(!said.starts_with(b"HTTP"), "{listener} speaks without a handshake");
                    }
                });
            }
        });
        // After a good handshake, records that are none.
        for garbage in [&b"\x17\x03\x03\x00\x20"[..], b"\x17\x03\x03\x00\x02ab", b"\xff\xff\xff\xff\xff\xff"]
        {
            let mut stream = TcpStream::connect(("127.0.0.1", door.port)).expect("the server listens");
            stream.set_read_timeout(Some(SILENCE_MAX)).expect("a live socket");
            let name = ServerName::try_from("127.0.0.1").expect("an address is a name");
            let tls = door.tls.clone().expect("a listener with TLS");
            let mut connection = rustls::ClientConnection::new(tls, name).expect("a configuration");
            while connection.is_handshaking() {
                connection.complete_io(&mut stream).expect("a good handshake");
            }
            let _sent = stream.write_all(garbage).and_then(|()| stream.shutdown(Shutdown::Write));
            let mut said = Vec::new();
            let ended = stream.read_to_end(&mut said);
            let silent =
                ended.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
            assert!(!silent, "{listener} waits for the rest of a record for ever");
        }
        assert!(door.ask(&Ask::new("GET", "/nothing")).status < 500, "{listener} still answers");
    }
    plant.assert_unharmed();
}
