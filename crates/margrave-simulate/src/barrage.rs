//! One kind of question, asked as fast as a server answers or at a given rate: for measuring, not for pretending.
//!
//! Speaks HTTP/1.1 by hand over the same TLS as every device, so that the measuring costs as little as possible
//! and the server is what is measured. Many identities take turns, because servers limit each of them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use margrave_core::digest::Digest;
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::report::{ComponentReport, Detail, Report};
use margrave_wire::g2;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::clock;
use crate::tally::{Times, TimesLook};

/// A server that has not answered by then is broken, not slow.
const PATIENCE: Duration = Duration::from_secs(60);
/// Heads and bodies of the few answers that are asked for.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Handshakes under way at once while lines are opened.
const DIALLED_TOGETHER: usize = 32;

/// Somebody to ask as.
#[derive(Clone)]
pub struct Caller {
    pub device: DeviceId,
    pub tls: Arc<ClientConfig>,
}

/// What came of a barrage.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The answers that were hoped for.
    pub answers: u64,
    pub elapsed: Duration,
    /// 429 and 503: the server slowed us down, so this measures its limits and not its speed.
    pub paced: u64,
    /// Other statuses, and connections that broke.
    pub failed: u64,
    /// What the first of those said.
    pub failure: Option<String>,
    pub times: TimesLook,
}

impl Outcome {
    pub fn per_second(&self) -> f64 {
        self.answers as f64 / self.elapsed.as_secs_f64()
    }
}

/// Open connections, one for each caller.
pub struct Lines {
    lines: Vec<Line>,
}

struct Line {
    device: DeviceId,
    stream: TlsStream<TcpStream>,
    buffer: Vec<u8>,
    poll: Vec<u8>,
    subject: Option<Subject>,
}

/// What a device can report about.
#[derive(Clone, Copy)]
struct Subject {
    assignment: AssignmentId,
    version: u64,
    document: Digest,
    sequence: u64,
}

/// An answer, whose bytes are in the line's buffer.
struct Reply {
    status: u16,
    /// Where the body begins; it ends with the buffer.
    head_end: usize,
}

impl Lines {
    /// Connects everybody, and asks once for the manifest.
    pub async fn open(address: SocketAddr, callers: &[Caller]) -> io::Result<Lines> {
        let callers: Arc<Vec<Caller>> = Arc::new(callers.to_vec());
        let next = Arc::new(AtomicUsize::new(0));
        let mut workers = JoinSet::new();
        for _ in 0..DIALLED_TOGETHER {
            let (callers, next) = (callers.clone(), next.clone());
            workers.spawn(async move {
                let mut lines = Vec::new();
                while let Some(caller) = callers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    lines.push(in_time(Line::open(address, caller)).await?);
                }
                io::Result::Ok(lines)
            });
        }
        let mut lines = Vec::new();
        while let Some(ended) = workers.join_next().await {
            lines.extend(ended.map_err(io::Error::other)??);
        }
        Ok(Lines { lines })
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// How many have something to report about.
    pub fn subjects(&self) -> usize {
        self.lines.iter().filter(|line| line.subject.is_some()).count()
    }

    /// Polls that are answered 304, `together` at a time, for a while.
    pub async fn poll(&mut self, lasting: Duration, together: usize) -> Outcome {
        self.run(lasting, together, None, Ask::Poll).await
    }

    /// Reports that are answered once they are durable; `rate` is in reports per second, without one as fast as
    /// they are answered. Times count from when a report was due, not from when it could be sent.
    pub async fn report(&mut self, lasting: Duration, together: usize, rate: Option<f64>) -> Outcome {
        self.run(lasting, together, rate, Ask::Report).await
    }

    async fn run(&mut self, lasting: Duration, together: usize, rate: Option<f64>, ask: Ask) -> Outcome {
        let together = together.clamp(1, self.lines.len().max(1));
        let mut hands: Vec<Vec<Line>> = (0..together).map(|_| Vec::new()).collect();
        for (number, line) in self.lines.drain(..).enumerate() {
            hands[number % together].push(line);
        }
        let shared = Arc::new(Shared::default());
        let begun = Instant::now();
        let until = begun + lasting;
        let mut workers = JoinSet::new();
        for (number, mut lines) in hands.into_iter().enumerate() {
            let shared = shared.clone();
            let pace = rate.map(|rate| Pace { begun, number, step: together as f64 / rate, rate });
            workers.spawn(async move {
                let work = worker(&mut lines, until, pace, ask, &shared);
                if tokio::time::timeout(lasting + PATIENCE, work).await.is_err() {
                    shared.fail(|| "no answer came".to_owned());
                }
                lines
            });
        }
        while let Some(ended) = workers.join_next().await {
            match ended {
                Ok(lines) => self.lines.extend(lines),
                Err(error) => shared.fail(|| error.to_string()),
            }
        }
        shared.outcome(begun.elapsed().min(lasting))
    }
}

/// Connections that each ask one question and are closed: how many a second.
pub async fn connect(address: SocketAddr, callers: &[Caller], lasting: Duration, together: usize) -> Outcome {
    let callers: Arc<Vec<Caller>> = Arc::new(callers.to_vec());
    let (next, shared) = (Arc::new(AtomicUsize::new(0)), Arc::new(Shared::default()));
    let begun = Instant::now();
    let until = begun + lasting;
    let mut workers = JoinSet::new();
    for _ in 0..together {
        let (callers, next, shared) = (callers.clone(), next.clone(), shared.clone());
        workers.spawn(async move {
            while Instant::now() < until {
                let caller = &callers[next.fetch_add(1, Ordering::Relaxed) % callers.len()];
                let started = Instant::now();
                match in_time(Line::open(address, caller)).await {
                    Ok(mut line) => {
                        shared.answer(started.elapsed(), until);
                        // A peer that is already gone has no use for our goodbye.
                        drop(line.stream.shutdown().await);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        shared.paced.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => shared.fail(|| error.to_string()),
                }
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            shared.fail(|| error.to_string());
        }
    }
    shared.outcome(begun.elapsed().min(lasting))
}

#[derive(Clone, Copy)]
enum Ask {
    Poll,
    Report,
}

/// When a worker's questions are due: every worker in turn, evenly spread.
struct Pace {
    begun: Instant,
    number: usize,
    step: f64,
    rate: f64,
}

impl Pace {
    fn due(&self, turn: u64) -> Instant {
        self.begun + Duration::from_secs_f64(self.number as f64 / self.rate + turn as f64 * self.step)
    }
}

#[derive(Default)]
struct Shared {
    answers: std::sync::atomic::AtomicU64,
    paced: std::sync::atomic::AtomicU64,
    failed: std::sync::atomic::AtomicU64,
    failure: std::sync::OnceLock<String>,
    times: Times,
}

impl Shared {
    /// What comes after the end belongs to nobody's second.
    fn answer(&self, took: Duration, until: Instant) {
        if Instant::now() <= until {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
        self.times.add(took);
    }

    fn fail(&self, what: impl FnOnce() -> String) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.failure.get_or_init(what);
    }

    fn outcome(&self, elapsed: Duration) -> Outcome {
        Outcome {
            answers: self.answers.load(Ordering::Relaxed),
            elapsed,
            paced: self.paced.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            failure: self.failure.get().cloned(),
            times: self.times.look(),
        }
    }
}

async fn worker(lines: &mut Vec<Line>, until: Instant, pace: Option<Pace>, ask: Ask, shared: &Shared) {
    let mut turn = 0u64;
    while !lines.is_empty() {
        let place = usize::try_from(turn % lines.len() as u64).expect("an index of a list in memory");
        let mut begun = Instant::now();
        if let Some(pace) = &pace {
            begun = pace.due(turn);
            tokio::time::sleep_until(begun.into()).await;
        }
        if begun >= until || Instant::now() >= until {
            return;
        }
        turn += 1;
        let line = &mut lines[place];
        let answered = match ask {
            Ask::Poll => line.poll().await,
            Ask::Report => line.report().await,
        };
        match answered {
            Ok(200 | 201 | 304) => shared.answer(begun.elapsed(), until),
            Ok(429 | 503) => {
                shared.paced.fetch_add(1, Ordering::Relaxed);
            }
            Ok(status) => shared.fail(|| format!("the server answered {status}")),
            Err(error) => {
                shared.fail(|| format!("{}: {error}", line.device));
                lines.swap_remove(place);
            }
        }
    }
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer came")),
    }
}

impl Line {
    async fn open(address: SocketAddr, caller: &Caller) -> io::Result<Line> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::from(address.ip());
        let stream = TlsConnector::from(caller.tls.clone()).connect(name, stream).await?;
        let mut line = Line {
            device: caller.device.clone(),
            stream,
            buffer: Vec::with_capacity(1024),
            poll: poll_request(address, None),
            subject: None,
        };
        let first = line.poll.clone();
        let Reply { status, head_end } = line.ask(&first).await?;
        match status {
            200 | 304 => {}
            429 | 503 => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "the server asks to come later"));
            }
            _ => return Err(io::Error::other(format!("the server answered {status}"))),
        }
        let (head, body) = line.buffer.split_at(head_end);
        if let Some(etag) = header(head, "etag") {
            line.poll = poll_request(address, Some(etag));
        }
        if let Ok(listing) = g2::manifest::read(body)
            && let Some(entry) = listing.manifest.entries().first()
        {
            line.subject = Some(Subject {
                assignment: entry.id,
                version: listing.manifest.version(),
                document: entry.document.digest,
                sequence: clock::now().0,
            });
        }
        Ok(line)
    }

    async fn poll(&mut self) -> io::Result<u16> {
        let request = std::mem::take(&mut self.poll);
        let reply = self.ask(&request).await;
        self.poll = request;
        Ok(reply?.status)
    }

    async fn report(&mut self) -> io::Result<u16> {
        let Some(subject) = &mut self.subject else {
            return Err(io::Error::other("this device has nothing to report about"));
        };
        subject.sequence += 1;
        let body = g2::status::write(&subject.report(&self.device));
        let path = g2::status_path(subject.assignment);
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nhost: simulated\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend(body);
        Ok(self.ask(&request).await?.status)
    }

    async fn ask(&mut self, request: &[u8]) -> io::Result<Reply> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        self.buffer.clear();
        let head_end = loop {
            let from = self.buffer.len().saturating_sub(3);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(at) = find(&self.buffer[from..], b"\r\n\r\n") {
                break from + at + 4;
            }
            if self.buffer.len() > ANSWER_BYTES_MAX {
                return Err(io::Error::other("the answer's head does not end"));
            }
        };
        let head = &self.buffer[..head_end];
        let status = head
            .get(9..12)
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
            .ok_or_else(|| io::Error::other("the answer is not HTTP"))?;
        // A 304 has no body, whatever its headers say.
        let length = match status {
            304 => 0,
            _ => header(head, "content-length").and_then(|text| text.parse().ok()).unwrap_or(0),
        };
        if length > ANSWER_BYTES_MAX {
            return Err(io::Error::other("the answer is too large"));
        }
        while self.buffer.len() < head_end + length {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(Reply { status, head_end })
    }
}

impl Subject {
    /// Two states in turn, so that each report changes what the server shows.
    fn report(&self, device: &DeviceId) -> Report {
        let state = if self.sequence.is_multiple_of(2) { State::Installed } else { State::Updating };
        Report {
            assignment: self.assignment,
            device: Some(device.clone()),
            adopted_version: self.version,
            state: state.reported(),
            fault: None,
            components: vec![ComponentReport {
                name: "main".to_owned(),
                state: state.reported(),
                fault: None,
                restarts: 0,
            }],
            detail: Some(Detail {
                state,
                sequence: self.sequence,
                at: Moment(clock::now().0),
                document: Some(self.document),
                attempt: 1,
                next_try: None,
                reason: None,
                waiting: None,
                awaited: None,
                life: None,
                holds: None,
                memory: None,
            }),
            signed_at: None,
        }
    }
}

/// What our agent sends when it polls, without asking to wait.
fn poll_request(address: SocketAddr, held: Option<&str>) -> Vec<u8> {
    let condition = held.map(|etag| format!("if-none-match: {etag}\r\n")).unwrap_or_default();
    format!(
        "GET {} HTTP/1.1\r\naccept: {}\r\n{condition}host: {address}\r\nuser-agent: margrave-simulate\r\n\r\n",
        g2::MANIFEST_PATH,
        g2::manifest::MEDIA_TYPE
    )
    .into_bytes()
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// A header's value; names are compared as HTTP does.
fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(head).ok()?;
    text.split("\r\n").skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_whatever_their_case() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nETag: \"x\"\r\n\r\n";
        assert_eq!(header(head, "content-length"), Some("12"));
        assert_eq!(header(head, "etag"), Some("\"x\""));
        assert_eq!(header(head, "date"), None);
        assert_eq!(find(head, b"\r\n\r\n"), Some(head.len() - 4));
    }

    #[test]
    fn questions_of_all_workers_together_are_evenly_spread() {
        let begun = Instant::now();
        let pace = |number| Pace { begun, number, step: 4.0 / 100.0, rate: 100.0 };
        let mut due: Vec<Instant> = (0..4).flat_map(|n| (0..3).map(move |turn| pace(n).due(turn))).collect();
        due.sort();
        for pair in due.windows(2) {
            let gap = pair[1] - pair[0];
            assert!((9..=11).contains(&gap.as_millis()), "{gap:?}");
        }
    }
}
