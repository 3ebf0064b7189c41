//! Ninety days without a server, with reboots, a certificate that ends, clocks that drift and jump, and crashes.

use std::time::Duration;

use margrave_core::id::DeploymentName;
use margrave_wire::operator::{PutDeployment, Targets};
use serde_json::json;

use super::act::{DOWNLOAD_MAX, SWITCH_MAX, WARM_UP_MAX};
use super::machine::Machine;
use super::network::LATENCY_MAX;
use super::{Happening, Outcome, World};
use crate::check::Violation;
use crate::dice::Dice;
use crate::engine::Hand;
use crate::plan::{Incident, Plan, Rates};
use crate::server::{VERSIONS, client, operator};

const DAYS: u64 = 90;
const DAY: Duration = Duration::from_secs(24 * 3600);
const DEVICES: usize = 2;
/// The certificate ends here, and nobody can renew it before the server is back.
const EXPIRES_ON: u64 = 20;
/// While the devices are away, something else is wanted of one of the two applications.
const CHANGED_ON: u64 = 45;
/// How often it is looked at on return whether everything is as wanted.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Offline {
    pub days: u64,
    pub reboots: u64,
    pub agent_deaths: u64,
    pub container_crashes: u64,
    /// Containers that the agents started while they were away: the repair of what somebody stopped.
    pub repairs: u64,
    /// Of what was as desired on return.
    pub restarts_on_return: u64,
    /// Answered polls, by device, until the newest manifest was accepted.
    pub polls_to_accept: Vec<u64>,
    /// From the renewed certificate to everything being as wanted, and the server knowing it.
    pub converged_after: Duration,
    /// What that may take at most: one poll, what it says fetched and applied, and everything told.
    pub converged_within: Duration,
    /// Reports that the server heard on return, and whether in the order in which they were made.
    pub reports_on_return: usize,
    pub in_order: bool,
}

impl World {
    /// Lives through it.
    pub async fn ninety_days() -> anyhow::Result<(Outcome, Option<Offline>)> {
        let plan = Plan {
            devices: DEVICES,
            life: Duration::ZERO,
            acts: vec![],
            timetables: vec![],
            holders: vec![],
            rates: Rates::default(),
            incidents: vec![],
            patient: vec![true, false],
            dated: vec![false, false],
            careful: false,
            weather: "ninety days offline",
        };
        let mut world = World::new(DAYS, plan, Dice::new(DAYS), None, false).await?;
        world.sweep_every = DAY;
        for machine in &mut world.machines {
            // A slow full look; what happens to containers is heard of at once all the same.
            machine.settings.observe_every = Duration::from_secs(300);
        }
        let mut figures = None;
        let lived = match world.be_away().await {
            Ok(lived) => {
                figures = Some(lived);
                Ok(())
            }
            Err(violation) => Err(violation),
        };
        Ok((world.end(DAYS, lived), figures))
    }

    async fn be_away(&mut self) -> Result<Offline, Violation> {
        self.begin().await?;
        self.want("alpha", "good-1").await?;
        self.want("beta", "good-1").await?;
        let settled_by = self.now.after(Duration::from_secs(600));
        self.run_until(settled_by).await?;
        self.settled().await?;

        let starts = self.starts();
        let away = DAY * u32::try_from(DAYS + 1).unwrap_or(u32::MAX);
        for machine in &mut self.machines {
            machine.outage_until = self.now.after(away);
        }
        let mut lived = Offline {
            days: DAYS,
            reboots: 0,
            agent_deaths: 0,
            container_crashes: 0,
            repairs: 0,
            restarts_on_return: 0,
            polls_to_accept: vec![],
            converged_after: Duration::ZERO,
            converged_within: Duration::ZERO,
            reports_on_return: 0,
            in_order: true,
        };
        for day in 1..=DAYS {
            for at in 0..DEVICES {
                self.spend_day(at, day, &mut lived).await?;
            }
            if day == CHANGED_ON {
                self.want("alpha", "good-2").await?;
            }
            let tomorrow = self.now.after(DAY);
            self.run_until(tomorrow).await?;
        }
        lived.repairs = self.starts() - starts;
        self.come_back(&mut lived).await?;
        Ok(lived)
    }

    async fn spend_day(&mut self, at: usize, day: u64, lived: &mut Offline) -> Result<(), Violation> {
        // Twenty seconds a day are a bad clock, but there are such.
        self.machines[at].offset += 20_000;
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let mut happens =
            |pause: Duration, incident| self.after(pause, Happening::Incident { device: at, incident });
        match day {
            30 => happens(hours(1), Incident::ClockLost),
            60 => happens(hours(1), Incident::ClockJump(2 * 24 * 3600 * 1000)),
            _ => {}
        }
        if day.is_multiple_of(7) {
            happens(hours(3), Incident::PowerCut(Duration::from_secs(120)));
            lived.reboots += 1;
        }
        if day.is_multiple_of(5) {
            happens(hours(9), Incident::Kill);
            lived.agent_deaths += 1;
        }
        if day == 50 {
            happens(hours(12), Incident::Hand(Hand::Kill, 0));
        }
        if day == EXPIRES_ON {
            // Until somebody renews it, which is after all this.
            happens(hours(6), Incident::Expiry(DAY * 10_000));
        }
        if matches!(day, 31 | 63) {
            // A time server was found.
            self.machines[at].offset = 0;
        }
        if matches!(day, 11 | 47) {
            let now = self.now;
            self.machines[at].engine.crash_and_restart(at, now);
            self.stir(at);
            lived.container_crashes += 1;
        }
        Ok(())
    }

    async fn come_back(&mut self, lived: &mut Offline) -> Result<(), Violation> {
        self.tell(None, "the server can be reached again");
        let starts: Vec<u64> = self.machines.iter().map(|machine| machine.engine.starts).collect();
        for at in 0..DEVICES {
            self.machines[at].outage_until = self.now;
            self.machines[at].memory.heard.clear();
            self.machines[at].memory.polls = 0;
            self.after(Duration::from_secs(30), Happening::Renewed { device: at });
        }
        let back = self.now.after(Duration::from_secs(30));
        let deadline = back.after(Duration::from_secs(3600));
        let mut polls: Vec<Option<u64>> = vec![None; DEVICES];
        loop {
            let next = self.now.after(LOOK_EVERY);
            self.run_until(next).await?;
            for (machine, polls) in self.machines.iter().zip(&mut polls) {
                let newest = self.server.as_ref().and_then(|server| server.manifest(&machine.client));
                let accepted = machine.device.accepted().map(|accepted| accepted.version);
                if polls.is_none() && accepted == newest.map(|newest| newest.version) {
                    *polls = Some(machine.memory.polls_to_accept);
                }
            }
            if self.now >= back {
                match self.settled().await {
                    Ok(()) => break,
                    Err(violation) if self.now >= deadline => return Err(violation),
                    Err(_) => {}
                }
            }
        }
        lived.converged_after = self.now.since(back);
        lived.polls_to_accept = polls.into_iter().map(|polls| polls.unwrap_or(u64::MAX)).collect();
        // One component of one application was changed meanwhile, on every device.
        let more = |(machine, before): (&Machine, u64)| (machine.engine.starts - before).saturating_sub(1);
        lived.restarts_on_return = self.machines.iter().zip(starts).map(more).sum();
        for machine in &self.machines {
            lived.reports_on_return += machine.memory.heard.len();
            lived.in_order &= machine.memory.heard.is_sorted();
        }
        lived.converged_within = within(lived.reports_on_return);
        Ok(())
    }

    fn starts(&self) -> u64 {
        self.machines.iter().map(|machine| machine.engine.starts).sum()
    }

    async fn want(&mut self, name: &str, mode: &str) -> Result<(), Violation> {
        let Some(server) = &self.server else { return Ok(()) };
        let want = PutDeployment {
            package: "app".to_owned(),
            version: Some(VERSIONS[0].0.to_owned()),
            profile: None,
            parameters: [("first".to_owned(), json!(mode))].into(),
            targets: Targets {
                devices: (0..DEVICES).map(|at| client(at).to_string()).collect(),
                ..Default::default()
            },
            rollback: None,
            strategy: None,
            revision: None,
            ..Default::default()
        };
        let name = DeploymentName::parse(name).map_err(super::broken)?;
        server.fleet.put_deployment(&operator(), &name, want).await.map_err(super::broken)?;
        self.after_server().await
    }
}

/// How long it takes at most until everything is as wanted and told, from the moment on at which the server can be asked: one poll,
/// one document, its components fetched and then applied one after the other, and so many reports. Nobody waits for a time between two
/// polls.
fn within(reports: usize) -> Duration {
    let exchange = LATENCY_MAX * 2;
    let (_, components) = VERSIONS[0];
    let each = DOWNLOAD_MAX + SWITCH_MAX + WARM_UP_MAX;
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    exchange * 2 + each * count(components.len()) + exchange * count(reports) + LOOK_EVERY
}
