//! One simulated device: the core decides, this performs, and only the containers are not there.
//!
//! It has no ledger: a restarted simulation is a fleet whose devices lost their memory, which the protocol
//! allows for. Everything of a device happens in one task, and it holds a connection and a few kilobytes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use margrave_core::capabilities::Capabilities;
use margrave_core::device::{Action, Device, Event, Reading, Settings};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::{AssignmentId, DeviceId};
use margrave_core::lifecycle::State;
use margrave_core::moment::Moment;
use margrave_core::report::{ComponentReport, Detail, Failure, FailureCode, Report};
use margrave_wire::g2;
use serde_json::json;

use crate::clock::{self, Dice};
use crate::fleet::{Behaviour, Polling};
use crate::roster::{Desk, Member};
use crate::tally::{Held, Tally, Trouble};
use crate::upstream::Upstream;
use crate::world::World;

/// Nothing stirs in a simulated world, so nobody has to look often.
const OBSERVE_EVERY: Duration = Duration::from_secs(3600);
/// Between two looks at the certificate's age, and after a renewal that failed.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
const NAP_MAX: Duration = Duration::from_secs(600);

type Doing = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What came to its end.
enum Done {
    Event(Box<Event>),
    Renewed(bool),
    /// The extra reports of `--report-rate`, whatever became of them: the tally knows.
    Reported,
}

pub(crate) struct SimulatedDevice {
    member: Arc<Member>,
    desk: Arc<Desk>,
    upstream: Arc<Upstream>,
    behaviour: Arc<Behaviour>,
    tally: Arc<Tally>,
    device: Device,
    settings: Settings,
    world: World,
    dice: Dice,
}

impl SimulatedDevice {
    pub(crate) fn new(
        member: Arc<Member>,
        desk: Arc<Desk>,
        upstream: Arc<Upstream>,
        behaviour: Arc<Behaviour>,
        tally: Arc<Tally>,
        id: DeviceId,
    ) -> SimulatedDevice {
        let mut settings = Settings::new(id);
        settings.observe_every = OBSERVE_EVERY;
        if let Polling::Every(interval) = behaviour.polling {
            settings.poll_wait = Duration::ZERO;
            settings.poll_every = interval;
        }
        SimulatedDevice {
            member,
            desk,
            upstream,
            behaviour,
            tally,
            device: Device::blank(),
            settings,
            world: World::default(),
            dice: Dice::thrown(),
        }
    }

    /// Lives until the task is ended. Devices of one fleet begin spread over the ramp.
    pub(crate) async fn live(mut self) {
        tokio::time::sleep(self.behaviour.ramp.mul_f64(self.dice.roll())).await;
        let tally = self.tally.clone();
        let mut reached: Option<Held<'_>> = None;
        let mut doing: FuturesUnordered<Doing> = FuturesUnordered::new();
        let renewal_roll = self.dice.roll();
        let mut renewal_at = Moment(0);
        let mut report_at = self.next_report(clock::now());
        let capabilities = g2::capabilities::write(&capabilities(&self.settings.device));
        self.absorb(Event::CapabilitiesAre(Digest::of(&capabilities)));
        loop {
            let now = clock::now();
            if now >= renewal_at {
                renewal_at = now.after(RENEWAL_PAUSE);
                if self.member.is_due(renewal_roll) {
                    renewal_at = Moment(u64::MAX);
                    let (desk, member) = (self.desk.clone(), self.member.clone());
                    doing.push(Box::pin(async move { Done::Renewed(desk.renew(&member).await.is_ok()) }));
                }
            }
            while let Some(action) = self.device.next(&self.settings, clock::now()) {
                self.absorb(Event::Began(action.clone()));
                doing.push(self.perform(action, &capabilities));
            }
            if report_at.is_some_and(|at| now >= at) {
                report_at = self.next_report(now);
                if let Some(reports) = self.extra_reports(now) {
                    let upstream = self.upstream.clone();
                    doing.push(Box::pin(async move {
                        for report in &reports {
                            if upstream.send_report(report).await.is_err() {
                                break;
                            }
                        }
                        Done::Reported
                    }));
                }
            }
            let now = clock::now();
            let wake = self.device.wake(&self.settings, now);
            let wake = [wake, report_at, Some(renewal_at)].into_iter().flatten().min();
            let nap = wake.map_or(NAP_MAX, |wake| wake.since(now).min(NAP_MAX));
            tokio::select! {
                Some(done) = doing.next() => match done {
                    Done::Event(event) => {
                        match heard(&event) {
                            Some(true) if reached.is_none() => reached = Some(tally.reach()),
                            Some(false) => reached = None,
                            _ => {}
                        }
                        self.take_in(*event);
                    }
                    Done::Renewed(worked) => {
                        renewal_at = clock::now().after(RENEWAL_PAUSE);
                        if worked {
                            tally.renewed();
                            // The next request shakes hands with the new certificate (ID-106).
                            self.upstream.client.reset();
                        } else {
                            let client = &self.member.client;
                            let example = || format!("{client} has no new certificate");
                            tally.troubled(Trouble::Renewal, Instant::now(), &example);
                        }
                    }
                    Done::Reported => {}
                },
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    fn absorb(&mut self, event: Event) {
        let roll = self.dice.roll();
        self.device.absorb(&self.settings, clock::now(), roll, event);
    }

    fn take_in(&mut self, event: Event) {
        match &event {
            Event::Applied { assignment, component, fingerprint, result: Ok(()) } => {
                self.world.start(*assignment, component.clone(), *fingerprint);
            }
            Event::Removed { assignment, component, result: Ok(()) } => {
                self.world.stop(*assignment, component);
            }
            _ => {}
        }
        self.absorb(event);
    }

    fn perform(&mut self, action: Action, capabilities: &[u8]) -> Doing {
        let upstream = self.upstream.clone();
        match action {
            Action::SendCapabilities => {
                let body = capabilities.to_vec();
                event(async move { Event::CapabilitiesSent(upstream.send_capabilities(body).await) })
            }
            Action::Poll { held, wait } => {
                event(async move { Event::Polled(upstream.poll(held, wait).await) })
            }
            Action::Fetch(plan) => event(async move {
                let delivery = upstream.fetch(&plan).await;
                let read = |(id, document): (AssignmentId, Document)| {
                    let reading = read(id, &document);
                    (document, reading)
                };
                Event::Fetched(delivery.map(|documents| documents.into_iter().map(read).collect()))
            }),
            Action::Send(report) => event(async move {
                let sequence = report.detail.as_ref().map_or(0, |detail| detail.sequence);
                Event::Sent { sequence, result: upstream.send_report(&report).await }
            }),
            Action::Observe => {
                let seen = self.world.observe();
                event(std::future::ready(Event::Observed(Ok(seen))))
            }
            Action::Prefetch(order) => {
                let fingerprint = order.fingerprint();
                let (assignment, component) = (order.assignment, order.component);
                event(std::future::ready(Event::Prefetched {
                    assignment,
                    component,
                    fingerprint,
                    result: Ok(()),
                }))
            }
            Action::Apply(order) => {
                let time = self.behaviour.install_time.mul_f64(0.5 + self.dice.roll());
                let result = match self.dice.roll() < self.behaviour.failure_rate {
                    true => Err(Failure::new(FailureCode::StartFailed, "the simulation let it fail")),
                    false => Ok(()),
                };
                let fingerprint = order.fingerprint();
                let (assignment, component) = (order.assignment, order.component);
                event(async move {
                    tokio::time::sleep(time).await;
                    Event::Applied { assignment, component, fingerprint, result }
                })
            }
            Action::Remove { assignment, component, .. } => {
                event(std::future::ready(Event::Removed { assignment, component, result: Ok(()) }))
            }
        }
    }

    /// When this device sends the next reports of its own accord; two at a time, so half as often.
    fn next_report(&mut self, now: Moment) -> Option<Moment> {
        let every = self.behaviour.report_every?;
        // Exponential pauses: devices do not agree on when something happens.
        let pause = -2.0 * (1.0 - self.dice.roll()).ln();
        Some(now.after(every.mul_f64(pause.min(20.0))))
    }

    /// An update that begins and ends: two reports that change what the server shows, and leave it as it was.
    fn extra_reports(&self, now: Moment) -> Option<[Report; 2]> {
        let (id, assignment) =
            self.device.assignments().iter().find(|(_, assignment)| assignment.state == State::Installed)?;
        let report = |state: State, at: Moment| Report {
            assignment: *id,
            device: Some(self.settings.device.clone()),
            adopted_version: assignment.adopted_version,
            state: state.reported(),
            fault: None,
            components: assignment
                .components
                .iter()
                .map(|component| ComponentReport {
                    name: component.name.to_string(),
                    state: state.reported(),
                    fault: None,
                    restarts: 0,
                })
                .collect(),
            // Numbered by the clock, far above what the device itself has counted to.
            detail: Some(Detail {
                state,
                sequence: at.0,
                at,
                document: assignment.held,
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
        };
        Some([report(State::Updating, now), report(State::Installed, Moment(now.0 + 1))])
    }
}

fn event(future: impl Future<Output = Event> + Send + 'static) -> Doing {
    Box::pin(async move { Done::Event(Box::new(future.await)) })
}

/// Whether the server answered; `None` for what has nothing to do with it.
fn heard(event: &Event) -> Option<bool> {
    match event {
        Event::CapabilitiesSent(result) => Some(result.is_ok()),
        Event::Polled(result) => Some(result.is_ok()),
        Event::Fetched(result) => Some(result.is_ok()),
        Event::Sent { result, .. } => Some(result.is_ok()),
        _ => None,
    }
}

/// What a document says; a simulated device runs whatever it is given.
fn read(id: AssignmentId, document: &Document) -> Reading {
    let invalid = |message: String| Failure::new(FailureCode::DocumentInvalid, message);
    let workload = g2::document::read(document.bytes()).map_err(|violations| {
        let said: Vec<String> = violations.iter().take(5).map(ToString::to_string).collect();
        invalid(format!("the document is not usable: {}", said.join("; ")))
    })?;
    if workload.id != id {
        return Err(invalid(format!("the document of {id} calls itself {}", workload.id)));
    }
    Ok(workload)
}

/// A gateway of a common size, which says that it is simulated.
fn capabilities(device: &DeviceId) -> Capabilities {
    let properties = json!({
        "id": device.as_str(),
        "vendor": "Margrave",
        "modelNumber": "simulated device",
        "serialNumber": device.as_str(),
        "cpus": [{"cores": 4, "architecture": "amd64"}],
        "memory": "8192Mi",
        "storage": "65536Mi",
        "peripherals": [],
        "interfaces": [{"type": "ethernet"}],
        "otelCollector": true,
        "supportedRuntimes": ["oci"],
        "supportedDeploymentTypes": ["compose", "helm"],
    });
    let serde_json::Value::Object(properties) = properties else { unreachable!("written as an object") };
    Capabilities {
        device: device.clone(),
        vendor: "Margrave".to_owned(),
        model_number: "simulated device".to_owned(),
        serial_number: device.to_string(),
        // The writer looks at the properties; the checked reading is the server's.
        hosting: None,
        properties,
        labels: Default::default(),
        simulated: true,
        agent_version: Some(concat!("simulate ", env!("CARGO_PKG_VERSION")).to_owned()),
        overrides: vec![],
        holds: vec![],
        looked: 0,
        blind: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dm_102_a_simulated_device_says_what_it_is_and_that_it_is_simulated() {
        let device = DeviceId::parse("sim-a-00001").unwrap();
        let body = g2::capabilities::write(&capabilities(&device));
        let read = g2::capabilities::read(&body).expect("what the server reads");
        assert!(read.simulated && read.hosting.is_some());
        assert_eq!(read.device, device);
    }
}
