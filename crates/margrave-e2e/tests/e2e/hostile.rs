//! Bad input against real programs, over real sockets: every answer is a no with a reason, nothing hangs,
//! nothing that runs or is stored is touched.
//!
//! Requests are written byte by byte here, because a decent HTTP client refuses to send most of them.
//! `sockets.rs` is what comes instead of decent HTTP and TLS, `requests.rs` what operators, strangers and registry clients may send, `device.rs` what a device may,
//! `certificates.rs` who may come in at all, `packages.rs` what may be in a package, and `manifests.rs` what a
//! server may tell a device.

mod certificates;
mod device;
mod manifests;
mod packages;
mod requests;
mod sockets;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;

use crate::stage::{PRETENDED, Running, Stage, free_port, wait_for};

/// Longer than any time that a server may give a slow peer; whoever is not answered by then is not answered.
const SILENCE_MAX: Duration = Duration::from_secs(50);

/// A server with one device on which `hello` is installed, and how all of it looked then.
struct Plant {
    stage: Stage,
    signed: u16,
    token: String,
    before: Value,
    _agent: Running,
}

impl Plant {
    fn start() -> Self {
        let signed = free_port();
        let stage = Stage::start_with(&["--signed-listen", &format!("127.0.0.1:{signed}")]);
        stage.join("line-1");
        let agent = stage.simulated("line-1", "10ms");
        stage.add_package("hello", "1.0.0", &[("main", PRETENDED)]);
        stage.json(&["deploy", "hello", "--to", "line-1"]);
        stage.wait_state("line-1", "hello", "INSTALLED");
        wait_for("every report is delivered", || {
            (stage.agent_status("line-1")["reportsWaiting"] == 0).then_some(())
        });
        let token = stage.token();
        let before = picture(&stage);
        Plant { stage, signed, token, before, _agent: agent }
    }

    /// The plain listener of this machine: operator interface, pages, registry.
    fn local(&self) -> Door {
        Door { port: self.stage.local, tls: None }
    }

    /// As [`Plant::local`], from everywhere, and identity beside it.
    fn web(&self) -> Door {
        let token = self.stage.json(&["device", "token"]);
        let pin = token["pin"].as_str().expect("a pin").parse().expect("the pin is a pin");
        Door { port: self.stage.web, tls: Some(margrave_identity::tls::pinned_client_config(vec![pin])) }
    }

    /// The older generation's interface; its certificate is of the page's authority.
    fn signed(&self) -> Door {
        Door { port: self.signed, ..self.web() }
    }

    fn bearer(&self) -> (&'static str, String) {
        ("Authorization", format!("Bearer {}", self.token))
    }

    /// Everything is as it was, the server is the same process, and it never stumbled.
    fn assert_unharmed(mut self) {
        assert_eq!(picture(&self.stage), self.before);
        assert_eq!(self.stage.agent_status("line-1")["deployments"][0]["state"], "INSTALLED");
        assert!(self.stage.server().is_running(), "the server is gone");
        let log = self.stage.server().log();
        for bad in ["panicked", "ERROR"] {
            let line = log.lines().find(|line| line.contains(bad));
            assert_eq!(line, None, "the server's log says that something broke");
        }
    }
}

/// What is wanted and what is stored, without what changes by itself.
fn picture(stage: &Stage) -> Value {
    let mut device = stage.json(&["device", "show", "line-1"]);
    device["lastContact"].take();
    serde_json::json!({
        "deployments": stage.json(&["deployment", "list"]),
        "packages": stage.json(&["package", "list"]),
        "device": device,
        "history": stage.history("line-1", "hello"),
    })
}

/// Where to knock.
#[derive(Clone)]
struct Door {
    port: u16,
    tls: Option<Arc<ClientConfig>>,
}

impl Door {
    fn connect(&self) -> Box<dyn Connection> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_read_timeout(Some(SILENCE_MAX)).expect("a live socket");
        stream.set_write_timeout(Some(SILENCE_MAX)).expect("a live socket");
        match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from("127.0.0.1").expect("an address is a name");
                let connection = rustls::ClientConnection::new(tls.clone(), name).expect("a configuration");
                Box::new(rustls::StreamOwned::new(connection, stream))
            }
        }
    }

    /// Sends exactly these bytes and returns all that comes back until the server closes.
    ///
    /// A server that has heard enough may close in the middle; what it said before is what counts. One that
    /// says nothing for too long is a failure.
    fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut connection = self.connect();
        let mut answer = Vec::new();
        // An error of a write is told by what can be read afterwards.
        let _sent = connection.write_all(bytes).and_then(|()| connection.flush());
        let mut buffer = [0; 16 * 1024];
        loop {
            match connection.read(&mut buffer) {
                Ok(0) => return answer,
                Ok(count) => answer.extend(&buffer[..count]),
                Err(error) => {
                    let silent = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                    assert!(!silent, "the server neither answers nor closes");
                    return answer;
                }
            }
        }
    }

    /// As [`Door::exchange`], but says at once that nothing more will come.
    fn half_closed(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_read_timeout(Some(SILENCE_MAX)).expect("a live socket");
        let mut answer = Vec::new();
        let ended = match &self.tls {
            None => {
                let _sent = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
                stream.read_to_end(&mut answer)
            }
            Some(tls) => {
                let name = ServerName::try_from("127.0.0.1").expect("an address is a name");
                let mut connection =
                    rustls::ClientConnection::new(tls.clone(), name).expect("a configuration");
                let mut tls = rustls::Stream::new(&mut connection, &mut stream);
                let _sent = tls.write_all(bytes).and_then(|()| tls.flush());
                tls.conn.send_close_notify();
                let _said = tls.conn.write_tls(tls.sock).and_then(|_| tls.sock.shutdown(Shutdown::Write));
                tls.read_to_end(&mut answer)
            }
        };
        let silent =
            ended.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert!(!silent, "the server neither answers nor closes");
        answer
    }

    fn ask(&self, ask: &Ask<'_>) -> Answer {
        let bytes = self.exchange(&ask.bytes());
        Answer::read(&bytes).unwrap_or_else(|| panic!("{} {}: no answer", ask.method, ask.path))
    }
}

trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

/// A request, well-formed as HTTP and wrong as anything else.
#[derive(Clone, Default)]
struct Ask<'a> {
    method: &'a str,
    path: &'a str,
    headers: Vec<(&'a str, String)>,
    body: Option<Vec<u8>>,
}

impl<'a> Ask<'a> {
    fn new(method: &'a str, path: &'a str) -> Self {
        Ask { method, path, ..Ask::default() }
    }

    fn with(mut self, header: (&'a str, String)) -> Self {
        self.headers.push(header);
        self
    }

    fn json(self, body: impl Into<Vec<u8>>) -> Self {
        let mut ask = self.with(("Content-Type", "application/json".to_owned()));
        ask.body = Some(body.into());
        ask
    }

    fn bytes(&self) -> Vec<u8> {
        let mut head =
            format!("{} {} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = &self.body {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        let mut bytes = format!("{head}\r\n").into_bytes();
        bytes.extend(self.body.iter().flatten());
        bytes
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let status = head.strip_prefix("http/1.1 ")?.split(' ').next()?.parse().ok()?;
        Some(Answer { status, head, body: bytes[end + 4..].to_vec() })
    }

    /// Every answer on a connection, one behind the other. Bodies are counted, so that text in one is no answer.
    fn all(mut bytes: &[u8]) -> Vec<Self> {
        let mut answers = Vec::new();
        while let Some(mut answer) = Answer::read(bytes) {
            let length = answer.head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.and_then(|length| length.trim().parse().ok());
            // Without a length, the rest is its body.
            let length = length.unwrap_or(answer.body.len()).min(answer.body.len());
            answer.body.truncate(length);
            bytes =
                &bytes[bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(0) + 4 + length..];
            answers.push(answer);
        }
        assert!(bytes.is_empty(), "not an answer: {}", String::from_utf8_lossy(bytes));
        answers
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// A no that says what is wrong; returns its words.
    fn refused(&self, what: &str) -> String {
        let shown = String::from_utf8_lossy(&self.body).chars().take(500).collect::<String>();
        let what: String = what.chars().take(200).collect();
        assert!((400..500).contains(&self.status), "{what} was answered {} {shown}", self.status);
        assert!(self.head.contains("content-type: application/problem+json"), "{what}: {}", self.head);
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{what}: {problem}");
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.len() > 10, "{what} was refused without a reason: {problem}");
        assert!(detail.len() < 2000, "{what} was refused with too many words: {shown}");
        detail.to_owned()
    }
}
