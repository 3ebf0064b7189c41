//! What an idle agent costs in a day: bytes on the wire and on its disk.
//!
//! A day does not fit into a benchmark, so the real agent polls at short intervals, through a forwarder that sees
//! every byte and every TLS record; a cycle is weighed, and a day is made of cycles. What happens less often is
//! weighed once and counted as often as a day has it: reconnecting (the agent closes connections of a certain
//! age) and looking for a changed trust bundle. TCP and IP headers are not counted.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use margrave_core::device::Settings;
use margrave_core::id::DeviceId;
use margrave_device_api::g2::WAIT_MAX;
use margrave_http::{Client, Limits, Origin, Request, Trust, header};
use margrave_identity::pin::Pin;
use margrave_identity::tls::pinned_client_config;
use margrave_wire::identity::BUNDLE_PATH;

use super::Lab;
use super::stage::{Stage, bytes_written, wait_for};
use super::table::{Table, median};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The interval of the goal.
const POLL: Duration = Duration::from_secs(60);

pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let stage = Stage::new(&lab.programs, &lab.scratch)?;
    let (_server, _) = stage.serve(None)?;
    let data = stage.add_device("weighed")?;
    let forwarder = Forwarder::start(stage.device)?;
    let identity_file = data.join("identity.json");
    let mut identity: serde_json::Value = serde_json::from_slice(&std::fs::read(&identity_file)?)?;
    // Addresses are routing only; the peer is recognised by its SVID all the same (ID-101).
    identity["deviceUrl"] = format!("https://127.0.0.1:{}", forwarder.port).into();
    std::fs::write(&identity_file, serde_json::to_vec(&identity)?)?;
    let refresh = weigh_refresh(&identity)?;

    let cycles = if lab.quick { 8 } else { 30 };
    let own = Settings::new(DeviceId::parse("weighed")?);
    let held = own.poll_wait.min(WAIT_MAX);
    let ways = [
        ("polling every 60 s, keep-alive", ["--poll", "1s", "--wait", "0s"], POLL, 500.0),
        // Held by the server for its shortest possible time.
        ("waiting (Prefer: wait)", ["--poll", "60s", "--wait", "1s"], held, 150.0),
    ];
    for (what, arguments, real_cycle, goal) in ways {
        let weight = weigh(&stage, &data, &forwarder, &arguments, cycles)?;
        let day = |every: Duration| DAY.as_secs_f64() / every.as_secs_f64();
        let reconnects = day(Limits::device().connection_age);
        let refreshes = day(refresh.every);
        let total = day(real_cycle) * weight.cycle as f64
            + reconnects * weight.connection as f64
            + refreshes * refresh.bytes as f64;
        let total = total / 1000.0;
        let value = format!(
            "{total:.0} KB = {:.0} polls × {} B + {reconnects:.0} reconnects × {} B + {refreshes:.0} looks at the \
             trust bundle × {} B",
            day(real_cycle),
            weight.cycle,
            weight.connection,
            refresh.bytes
        );
        let goal_text = format!("≤ {goal} KB");
        table.judged(format!("agent, wire per idle day, {what}"), value, &goal_text, total <= goal);
        let written = weight.written as f64 / weight.cycles as f64 * day(real_cycle) / 1e6;
        let value = format!("{written:.2} MB ({} B in {} cycles)", weight.written, weight.cycles);
        table.judged(format!("agent, disk per idle day, {what}"), value, "≤ 1 MB", written <= 1.0);
    }
    Ok(())
}

struct Refresh {
    bytes: u64,
    every: Duration,
}

/// One look at the trust bundle as the agent's keeper does it: a new connection, and nothing changed.
fn weigh_refresh(identity: &serde_json::Value) -> Result<Refresh> {
    let text = |key: &str| identity[key].as_str().with_context(|| format!("no {key} in the identity"));
    let hint = identity["trustBundle"]["spiffe_refresh_hint"].as_u64().context("no refresh hint")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bytes = runtime.block_on(async {
        let look = async |tag: Option<String>| {
            let trust = Trust::Tls(pinned_client_config(vec![Pin::parse(text("pin")?)?]));
            let client = Client::new(trust, Origin::parse(text("url")?)?, Limits::default())?;
            let mut request = Request::get(BUNDLE_PATH).header(header::ACCEPT, "application/json");
            if let Some(tag) = tag {
                request = request.header(header::IF_NONE_MATCH, tag);
            }
            let response = client.send(request).await?;
            let traffic = client.traffic();
            anyhow::Ok((response.header(header::ETAG).map(str::to_owned), traffic.sent + traffic.received))
        };
        let (tag, _) = look(None).await?;
        let (_, bytes) = look(tag).await?;
        anyhow::Ok(bytes)
    })?;
    Ok(Refresh { bytes, every: Duration::from_secs(hint.max(30)) })
}

struct Weight {
    cycles: u64,
    /// Bytes of one poll and its answer, both ways.
    cycle: u64,
    /// Bytes of a new connection beside its polls.
    connection: u64,
    written: u64,
}

fn weigh(
    stage: &Stage,
    data: &std::path::Path,
    forwarder: &Forwarder,
    arguments: &[&str],
    cycles: u64,
) -> Result<Weight> {
    let mut all = vec!["--runtime", "simulated"];
    all.extend(arguments);
    let (agent, _) = stage.start_agent(data, &all)?;
    let polls = |connection: &Seen| connection.up.len() as u64;
    // Capabilities and the first polls are over once a few cycles have gone by; then everything is cut once, so
    // that what follows is a connection that does nothing but poll.
    wait_for("the agent polls", || Ok((polls(&forwarder.newest()) >= 5).then_some(())))?;
    forwarder.cut();
    wait_for("the agent polls again", || Ok((polls(&forwarder.newest()) >= 6).then_some(())))?;
    let before = bytes_written(agent.id())?;
    let start = polls(&forwarder.newest());
    let deadline = Instant::now() + Duration::from_secs(120);
    while polls(&forwarder.newest()) < start + cycles {
        ensure!(Instant::now() < deadline, "the agent stopped polling");
        std::thread::sleep(Duration::from_millis(20));
    }
    let written = bytes_written(agent.id())? - before;
    let seen = forwarder.newest();
    ensure!(forwarder.count_since_cut() == 1, "the agent did not keep its connection");
    // Polls are all alike, so their records are the ones that come again and again.
    let (up, down) = (most_frequent(&seen.up)?, most_frequent(&seen.down)?);
    let alike = |records: &[u64], one: u64| records.iter().filter(|size| **size == one).sum::<u64>();
    let total: u64 = seen.up.iter().chain(&seen.down).sum();
    let connection = total - alike(&seen.up, up) - alike(&seen.down, down);
    Ok(Weight { cycles, cycle: up + down, connection, written })
}

fn most_frequent(records: &[u64]) -> Result<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for size in records {
        *counts.entry(*size).or_default() += 1;
    }
    let found = counts.iter().max_by_key(|(_, count)| **count).map(|(size, _)| *size);
    // The median agrees, or these are not polls.
    let found = found.context("no TLS records were seen")?;
    ensure!(median(records) == Some(found), "the agent's polls are not alike: {counts:?}");
    Ok(found)
}

/// Sizes of the TLS records of one connection, headers included.
#[derive(Debug, Clone, Default)]
struct Seen {
    up: Vec<u64>,
    down: Vec<u64>,
}

/// A TCP forwarder that reads along, as far as TLS lets it: where records begin and end.
struct Forwarder {
    port: u16,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    connections: Vec<Seen>,
    streams: Vec<TcpStream>,
    /// Connections before the cut are over.
    cut_at: usize,
}

impl Forwarder {
    fn start(to: u16) -> Result<Forwarder> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let log = Arc::new(Mutex::new(Log::default()));
        let shared = log.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                // A connection that fails is the agent's to notice, and the figure's that waits for it.
                let Ok(client) = client else { continue };
                if let Err(error) = forward(client, to, &shared) {
                    eprintln!("the forwarder could not connect: {error:#}");
                }
            }
        });
        Ok(Forwarder { port, log })
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest connection since the cut.
    fn newest(&self) -> Seen {
        let log = self.log();
        log.connections.get(log.cut_at..).and_then(<[Seen]>::last).cloned().unwrap_or_default()
    }

    fn count_since_cut(&self) -> usize {
        let log = self.log();
        log.connections.len() - log.cut_at
    }

    fn cut(&self) {
        let mut log = self.log();
        log.cut_at = log.connections.len();
        for stream in log.streams.drain(..) {
            // One that is closed already is as cut as can be.
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

fn forward(client: TcpStream, to: u16, log: &Arc<Mutex<Log>>) -> Result<()> {
    let server = TcpStream::connect(("127.0.0.1", to))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let number = {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.connections.push(Seen::default());
        log.streams.extend([client.try_clone()?, server.try_clone()?]);
        log.connections.len() - 1
    };
    for (from, to, up) in [(client.try_clone()?, server.try_clone()?, true), (server, client, false)] {
        let log = log.clone();
        std::thread::spawn(move || {
            let record = |size: u64| {
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                let seen = &mut log.connections[number];
                if up { seen.up.push(size) } else { seen.down.push(size) }
            };
            // The end of either side is the end of both.
            drop(copy(from, to, record));
        });
    }
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream, record: impl Fn(u64)) -> std::io::Result<()> {
    let mut records = Records::default();
    let mut buffer = [0u8; 16 * 1024];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return to.shutdown(Shutdown::Write);
        }
        to.write_all(&buffer[..count])?;
        records.take(&buffer[..count], &record);
    }
}

/// Finds records in a stream of bytes: five bytes of header, the last two of which say how much follows.
#[derive(Default)]
struct Records {
    header: Vec<u8>,
    left: u64,
}

impl Records {
    fn take(&mut self, mut bytes: &[u8], record: impl Fn(u64)) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let now = self.left.min(bytes.len() as u64);
                bytes = &bytes[usize::try_from(now).expect("no more than there is")..];
                self.left -= now;
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if let [_, _, _, high, low] = self.header[..] {
                self.left = u64::from(u16::from_be_bytes([high, low]));
                record(self.left + 5);
                self.header.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_however_the_stream_is_cut() {
        let mut stream = vec![22, 3, 3, 0, 3, 1, 2, 3];
        stream.extend([23, 3, 3, 1, 0]);
        stream.extend([0; 256]);
        for piece in [1, 2, 7, 1000] {
            let found = std::cell::RefCell::new(vec![]);
            let mut records = Records::default();
            for bytes in stream.chunks(piece) {
                records.take(bytes, |size| found.borrow_mut().push(size));
            }
            assert_eq!(found.into_inner(), [8, 261], "{piece}");
        }
    }

    #[test]
    fn what_comes_most_often_is_a_poll() {
        assert_eq!(most_frequent(&[500, 80, 6, 90, 90, 90, 90, 90]).unwrap(), 90);
        assert!(most_frequent(&[]).is_err());
        assert!(most_frequent(&[1, 2, 3, 4, 4]).is_err());
    }
}
