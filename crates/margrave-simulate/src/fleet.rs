//! Many simulated devices, started and stopped together.

use std::sync::Arc;
use std::time::Duration;

use margrave_core::id::DeviceId;
use margrave_http::{Client, Limits, Traffic, Trust};
use tokio::task::JoinSet;

use crate::device::SimulatedDevice;
use crate::roster::{Roster, RosterError};
use crate::tally::Tally;
use crate::upstream::Upstream;

/// How devices ask for news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polling {
    /// The server holds each poll open until there is something new (`Prefer: wait`).
    Wait,
    Every(Duration),
}

/// What all devices of a fleet do.
#[derive(Debug, Clone)]
pub struct Behaviour {
    pub polling: Polling,
    /// How long installing a component takes, give or take half of it.
    pub install_time: Duration,
    /// The part of installations that fail, from 0 to 1. A device tries again, as a real one does.
    pub failure_rate: f64,
    /// How often a device reports something of its own accord.
    pub report_every: Option<Duration>,
    /// The first requests of all devices are spread over this time.
    pub ramp: Duration,
}

/// A running fleet. Dropped, its devices vanish as if their power went.
pub struct Fleet {
    tally: Arc<Tally>,
    clients: Vec<Client>,
    tasks: JoinSet<()>,
}

impl Fleet {
    /// Starts the first `count` members of the roster.
    pub fn start(roster: &Roster, count: usize, behaviour: Behaviour) -> Result<Fleet, RosterError> {
        let desk = roster.desk()?;
        let behaviour = Arc::new(behaviour);
        let mut fleet = Fleet { tally: Arc::default(), clients: Vec::new(), tasks: JoinSet::new() };
        for member in roster.members(count) {
            let id = DeviceId::parse(member.client.as_str())
                .map_err(|error| RosterError::Address(error.to_string()))?;
            let trust = Trust::Tls(member.tls(desk));
            // The very limits of a real device, so that sizing is not flattered.
            let client = Client::new(trust, desk.device_origin().clone(), Limits::device())
                .map_err(|error| RosterError::Address(error.to_string()))?;
            fleet.clients.push(client.clone());
            let upstream = Arc::new(Upstream::new(client, id.clone(), fleet.tally.clone()));
            let (behaviour, tally) = (behaviour.clone(), fleet.tally.clone());
            let device = SimulatedDevice::new(member, desk.clone(), upstream, behaviour, tally, id);
            fleet.tasks.spawn(device.live());
        }
        Ok(fleet)
    }

    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Bytes and connections of all devices together, TLS included.
    pub fn traffic(&self) -> Traffic {
        self.clients.iter().map(Client::traffic).fold(Traffic::default(), |sum, one| Traffic {
            sent: sum.sent + one.sent,
            received: sum.received + one.received,
            connections: sum.connections + one.connections,
        })
    }

    /// How many connections each device has had.
    pub fn connections(&self) -> Vec<u64> {
        self.clients.iter().map(|client| client.traffic().connections).collect()
    }

    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}
