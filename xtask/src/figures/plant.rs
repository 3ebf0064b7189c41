//! One server that many simulated clients have joined and told what they are. Four figures share it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use margrave_core::id::DeviceId;
use margrave_simulate::barrage::Caller;
use margrave_simulate::fleet::{Behaviour, Fleet, Polling};
use margrave_simulate::roster::Roster;
use margrave_simulate::tally::Look;
use rustls::client::Resumption;
use tokio::runtime::Runtime;

use super::Lab;
use super::stage::{Stage, on_core, wait_for};
use super::table::Table;

const PATIENCE: Duration = Duration::from_secs(180);

pub(super) struct Plant {
    pub(super) stage: Stage,
    pub(super) roster: Roster,
    /// For what may use every core.
    pub(super) runtime: Runtime,
    pub(super) has_package: bool,
}

impl Plant {
    pub(super) fn build(lab: &Lab, table: &mut Table) -> Result<Plant> {
        let stage = Stage::new(&lab.programs, &lab.scratch)?;
        // Devices that heard first must not keep others from hearing: every other turn for whoever waits longest.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().global_queue_interval(2).enable_all().build()?;
        let mut roster = Roster::open(&stage.path("simulated"))?;
        let (server, _) = stage.serve(None)?;
        let operator = stage.operator()?;
        let begun = Instant::now();
        let progress = |joined: usize| {
            if joined.is_multiple_of(1000) {
                eprintln!("{joined} clients joined …");
            }
        };
        runtime.block_on(roster.fill(&operator, lab.clients(), &BTreeMap::new(), progress))?;
        let rate = lab.clients() as f64 / begun.elapsed().as_secs_f64();
        table.row(
            format!("{} clients joined (token, key, CSR, SVID)", lab.clients()),
            format!("{rate:.0}/s"),
            "",
        );
        // Each says what it is, so that something can be deployed to it.
        runtime.block_on(async {
            let fleet = Fleet::start(&roster, lab.clients(), waiting(Duration::from_secs(3)))?;
            let all = lab.clients() as u64;
            until(&fleet, "every client has told what it is", |look| look.waiting == all).await?;
            fleet.stop().await;
            anyhow::Ok(())
        })?;
        server.stop()?;
        Ok(Plant { stage, roster, runtime, has_package: false })
    }

    /// The callers of a barrage, each with a TLS memory of its own, or none at all.
    pub(super) fn callers(&self, count: usize, resume: bool) -> Result<Vec<Caller>> {
        let caller = |member: Arc<margrave_simulate::roster::Member>| {
            let mut tls = self.roster.tls(&member)?;
            if !resume {
                let mut alone = (*tls).clone();
                alone.resumption = Resumption::disabled();
                tls = Arc::new(alone);
            }
            Ok(Caller { device: DeviceId::parse(member.client.as_str())?, tls })
        };
        self.roster.members(count).into_iter().map(caller).collect()
    }

    /// The bare responder beside the server, on the same core.
    pub(super) fn responder(
        &self,
        core: Option<usize>,
    ) -> Result<(super::stage::Process, std::net::SocketAddr)> {
        let port = super::stage::free_port()?;
        let process = on_core(core, &self.stage.programs.xtask)
            .arg("respond")
            .arg(self.stage.data())
            .arg(port.to_string())
            .spawn()?;
        let mut process = super::stage::Process(process);
        wait_for("the responder listens", || {
            ensure!(process.0.try_wait()?.is_none(), "the responder ended");
            Ok(std::net::TcpStream::connect(("127.0.0.1", port)).ok().map(drop))
        })?;
        Ok((process, std::net::SocketAddr::from(([127, 0, 0, 1], port))))
    }

    /// A package to deploy, added once.
    pub(super) fn package(&mut self) -> Result<&'static str> {
        const COMPOSE: &str = "services:\n  main:\n    image: example.invalid/nothing:1\n";
        if !self.has_package {
            self.stage.add_package(COMPOSE)?;
            self.has_package = true;
        }
        Ok("figures")
    }
}

pub(super) fn waiting(ramp: Duration) -> Behaviour {
    Behaviour {
        polling: Polling::Wait,
        install_time: Duration::from_secs(1),
        failure_rate: 0.0,
        report_every: None,
        ramp,
    }
}

/// Waits until the tally says so, and how long that took.
pub(super) async fn until(fleet: &Fleet, what: &str, so: impl Fn(&Look) -> bool) -> Result<Duration> {
    let begun = Instant::now();
    loop {
        let look = fleet.tally().look();
        if so(&look) {
            return Ok(begun.elapsed());
        }
        let troubles: Vec<String> = look
            .troubles
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(trouble, count)| {
                let example = fleet.tally().example(*trouble).unwrap_or_default();
                format!("{count} × {}, such as: {example}", trouble.words())
            })
            .collect();
        ensure!(
            begun.elapsed() < PATIENCE,
            "waited in vain until {what}: {} reached, {} waiting, {} paced; {}",
            look.reached,
            look.waiting,
            look.paced,
            troubles.join("; ")
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
