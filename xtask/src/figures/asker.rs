//! A client that asks a port all the time and notices when it gets no good answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// An answer that takes longer is as good as none: locally one takes a millisecond, and whoever waits longer for
/// one that never comes would see the service come back late.
const ANSWER_MAX: Duration = Duration::from_millis(100);
/// Between an answer and the next question, so that asking leaves room for what is asked.
const PAUSE: Duration = Duration::from_millis(2);
/// Two outages so close together are one: a port may answer for a moment while it goes away.
const SAME: Duration = Duration::from_millis(250);

/// From the last good answer before it to the first one after it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outage {
    pub(super) lasting: Duration,
    pub(super) failed: usize,
}

pub(super) struct Asker {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Outage>>>,
}

impl Asker {
    /// Begins with a good answer, or says why not.
    pub(super) fn start(port: u16) -> Result<Asker> {
        Asker::start_with(port, ANSWER_MAX)
    }

    fn start_with(port: u16, answer_max: Duration) -> Result<Asker> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let begun = Instant::now();
        while ask(address, answer_max).is_err() {
            ensure!(begun.elapsed() < Duration::from_secs(20), "port {port} does not answer");
            std::thread::sleep(PAUSE);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let asked_to = stop.clone();
        let thread = std::thread::spawn(move || watch(address, answer_max, &asked_to));
        Ok(Asker { stop, thread })
    }

    /// What there was, after a last good answer.
    pub(super) fn stop(self) -> Result<Vec<Outage>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the client panicked")?
    }
}

fn watch(address: SocketAddr, answer_max: Duration, stop: &AtomicBool) -> Result<Vec<Outage>> {
    let mut outages: Vec<Outage> = vec![];
    let (mut good, mut failed) = (Instant::now(), 0);
    // When the last outage began and ended.
    let mut span: Option<(Instant, Instant)> = None;
    loop {
        let answer = ask(address, answer_max);
        let now = Instant::now();
        match answer {
            Ok(()) => {
                if failed > 0 {
                    match (&mut span, outages.last_mut()) {
                        (Some((began, ended)), Some(last)) if good.duration_since(*ended) < SAME => {
                            *last = Outage { lasting: now - *began, failed: last.failed + failed };
                            *ended = now;
                        }
                        _ => {
                            outages.push(Outage { lasting: now - good, failed });
                            span = Some((good, now));
                        }
                    }
                }
                (good, failed) = (now, 0);
                if stop.load(Ordering::Relaxed) {
                    return Ok(outages);
                }
            }
            Err(error) => {
                failed += 1;
                ensure!(good.elapsed() < Duration::from_secs(120), "no good answer for two minutes: {error}");
            }
        }
        std::thread::sleep(PAUSE);
    }
}

fn ask(address: SocketAddr, answer_max: Duration) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, answer_max)?;
    stream.set_read_timeout(Some(answer_max))?;
    stream.set_write_timeout(Some(answer_max))?;
    stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(64 * 1024).read_to_end(&mut answer)?;
    let good =
        answer.starts_with(b"HTTP/1.") && answer.get(8..12) == Some(b" 200") && answer.ends_with(b"up\n");
    if good { Ok(()) } else { Err(std::io::Error::other("another answer than a good one")) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    use std::sync::atomic::AtomicUsize;

    /// A busy machine's slowness is no outage here.
    const PATIENT: Duration = Duration::from_secs(60);

    /// A server that answers well until it is told otherwise, and counts its bad answers.
    #[derive(Clone, Default)]
    struct Moody {
        sick: Arc<AtomicBool>,
        refused: Arc<AtomicUsize>,
    }

    impl Moody {
        fn serve(&self) -> u16 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let moody = self.clone();
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let mut question = [0; 128];
                    let sick = moody.sick.load(Ordering::Relaxed);
                    let answer = if sick { "503 No\r\n\r\n" } else { "200 OK\r\n\r\nup\n" };
                    // Who has gone away gets no answer.
                    drop(
                        stream
                            .read(&mut question)
                            .and_then(|_| stream.write_all(format!("HTTP/1.0 {answer}").as_bytes())),
                    );
                    moody.refused.fetch_add(usize::from(sick), Ordering::Relaxed);
                }
            });
            port
        }
    }

    #[test]
    fn an_outage_is_seen_once_with_every_question_that_failed() {
        let moody = Moody::default();
        let asker = Asker::start_with(moody.serve(), PATIENT).unwrap();
        moody.sick.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        while moody.refused.load(Ordering::Relaxed) < 5 {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody asks");
            std::thread::yield_now();
        }
        moody.sick.store(false, Ordering::Relaxed);
        let outages = asker.stop().unwrap();
        assert_eq!(outages.len(), 1, "{outages:?}");
        assert!(outages[0].failed >= 5 && !outages[0].lasting.is_zero(), "{outages:?}");
    }

    #[test]
    fn a_service_that_always_answers_has_no_outage() {
        let asker = Asker::start_with(Moody::default().serve(), PATIENT).unwrap();
        assert!(asker.stop().unwrap().is_empty());
    }
}
