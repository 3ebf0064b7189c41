//! How fast the server answers unchanged polls and takes new connections, beside a bare responder.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use margrave_simulate::barrage::{Caller, Lines, Outcome, connect};
use tokio::runtime::Runtime;

use super::Lab;
use super::plant::Plant;
use super::stage::{Kept, Process, cpu_time};
use super::table::{Table, median};

/// Polls in flight at once: enough that the server is never idle, few enough that none waits long.
const POLLS_TOGETHER: usize = 64;
/// Handshakes in flight at once.
const CONNECTIONS_TOGETHER: usize = 16;
/// Identities that take turns. The server limits each of them, and must not get to.
const CALLERS: usize = 4_500;

/// The rates of one server over the rounds.
#[derive(Default)]
struct Rates {
    /// Answers per second by the clock.
    wall: Vec<f64>,
    /// Answers per second of the server's own processor time.
    cpu: Vec<f64>,
    /// The part of one core that it used.
    busy: Vec<f64>,
}

impl Rates {
    fn add(&mut self, outcome: &Outcome, used: Duration) -> Result<()> {
        ensure!(
            outcome.failed == 0,
            "{} failed, such as: {}",
            outcome.failed,
            outcome.failure.as_deref().unwrap_or("?")
        );
        ensure!(outcome.paced == 0, "{} answers were paced, so this measures a limit", outcome.paced);
        self.wall.push(outcome.per_second());
        self.cpu.push(outcome.answers as f64 / used.as_secs_f64().max(0.01));
        self.busy.push(used.as_secs_f64() / outcome.elapsed.as_secs_f64());
        Ok(())
    }

    fn row(&self, table: &mut Table, what: &str, note: &str) -> Result<()> {
        let (wall, cpu) = (median(&self.wall).context("rounds")?, median(&self.cpu).context("rounds")?);
        let busy = median(&self.busy).context("rounds")? * 100.0;
        let value = format!("{wall:.0}/s; {cpu:.0} per second of its own CPU ({busy:.0} % of a core)");
        table.row(what, value, note);
        Ok(())
    }
}

/// Ours over the bare one's, by the clock and by processor time. The lower one counts: by the clock alone, a slow
/// generator would make every server look alike.
fn ratio(table: &mut Table, what: &str, ours: &Rates, bare: &Rates, goal: f64) -> Result<()> {
    // Round by round: what disturbs the machine for a while disturbs both.
    let of = |ours: &[f64], bare: &[f64]| {
        median(&ours.iter().zip(bare).map(|(ours, bare)| ours / bare).collect::<Vec<_>>())
    };
    let wall = of(&ours.wall, &bare.wall).context("rounds")?;
    let cpu = of(&ours.cpu, &bare.cpu).context("rounds")?;
    let value = format!("{wall:.2} by the clock, {cpu:.2} by CPU; the lower counts");
    table.judged(what, value, &format!("≥ {goal}"), wall.min(cpu) >= goal);
    Ok(())
}

/// The server and the responder side by side on one core, the generator on the other.
struct Bench {
    server: Process,
    responder: Process,
    address: SocketAddr,
    bare: SocketAddr,
    runtime: Runtime,
    _kept: Option<Kept>,
}

impl Bench {
    fn set_up(lab: &Lab, plant: &Plant) -> Result<Bench> {
        let core = lab.cores.as_ref().map(|cores| cores.server);
        let (server, _) = plant.stage.serve(core)?;
        let (responder, bare) = plant.responder(core)?;
        let kept = lab.cores.as_ref().map(|cores| cores.keep_to_generator()).transpose()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        if kept.is_some() {
            // On a core of its own the generator never sleeps: to wake it would be the server's work, and the more so
            // the slower the server is.
            runtime.spawn(async {
                loop {
                    tokio::task::yield_now().await;
                }
            });
        }
        Ok(Bench { server, responder, address: plant.stage.device_address(), bare, runtime, _kept: kept })
    }
}

pub(super) fn polls(lab: &Lab, plant: &mut Plant, table: &mut Table) -> Result<()> {
    let bench = Bench::set_up(lab, plant)?;
    let callers = plant.callers(CALLERS, false)?;
    let (mut ours, mut bare) = (Rates::default(), Rates::default());
    bench.runtime.block_on(async {
        let mut our_lines = Lines::open(bench.address, &callers).await.context("the server")?;
        let mut bare_lines = Lines::open(bench.bare, &callers).await.context("the bare responder")?;
        for round in 0..=lab.rounds() {
            for (lines, process, rates) in
                [(&mut bare_lines, &bench.responder, &mut bare), (&mut our_lines, &bench.server, &mut ours)]
            {
                let before = cpu_time(process.id())?;
                let outcome = lines.poll(lab.lasting(), POLLS_TOGETHER).await;
                let used = cpu_time(process.id())? - before;
                // The first round warms caches up.
                if round > 0 {
                    rates.add(&outcome, used)?;
                }
            }
        }
        anyhow::Ok(())
    })?;
    let clients = callers.len();
    bare.row(
        table,
        &format!("304 answers over mutual TLS, {clients} connections: bare hyper + rustls"),
        "baseline",
    )?;
    ours.row(table, "304 answers: our server", "")?;
    ratio(table, "304 answers, ratio", &ours, &bare, 0.8)
}

pub(super) fn connections(lab: &Lab, plant: &mut Plant, table: &mut Table) -> Result<()> {
    let bench = Bench::set_up(lab, plant)?;
    for (what, resume) in [("full handshake", false), ("resumed", true)] {
        // Tickets of one server mean nothing to the other, so each has callers of its own.
        let (our_callers, bare_callers) = (plant.callers(CALLERS, resume)?, plant.callers(CALLERS, resume)?);
        let (mut ours, mut bare) = (Rates::default(), Rates::default());
        bench.runtime.block_on(async {
            if resume {
                // Everybody once, for a ticket.
                drop(Lines::open(bench.bare, &bare_callers).await.context("the bare responder")?);
                drop(Lines::open(bench.address, &our_callers).await.context("the server")?);
            }
            for round in 0..=lab.rounds() {
                for (address, callers, process, rates) in [
                    (bench.bare, &bare_callers, &bench.responder, &mut bare),
                    (bench.address, &our_callers, &bench.server, &mut ours),
                ] {
                    let (outcome, used) = one_round(address, callers, process, lab.lasting()).await?;
                    if round > 0 {
                        rates.add(&outcome, used)?;
                    }
                }
            }
            anyhow::Ok(())
        })?;
        bare.row(table, &format!("new connections, {what}: bare hyper + rustls"), "baseline")?;
        ours.row(table, &format!("new connections, {what}: our server"), "")?;
        ratio(table, &format!("new connections, {what}, ratio"), &ours, &bare, 0.9)?;
    }
    Ok(())
}

async fn one_round(
    address: SocketAddr,
    callers: &[Caller],
    process: &Process,
    lasting: Duration,
) -> Result<(Outcome, Duration)> {
    let before = cpu_time(process.id())?;
    let outcome = connect(address, callers, lasting, CONNECTIONS_TOGETHER).await;
    Ok((outcome, cpu_time(process.id())? - before))
}
