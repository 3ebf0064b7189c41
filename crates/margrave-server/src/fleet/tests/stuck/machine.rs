//! A device beside the fleet: the real core over the real wire formats. Its network, engine and clock do what a test says.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::device::{
    Action, Delivery, Device, Event, FetchPlan, Health, Observation, Polled, Settings, Trouble,
};
use margrave_core::digest::Document;
use margrave_core::id::{ComponentName, DeviceId};
use margrave_core::report::{Failure, FailureCode};

use super::super::*;

/// What goes wrong on the device, until it does not any more.
#[derive(Default)]
pub(super) struct Faults {
    /// Nobody is reached.
    pub(super) cut_off: bool,
    /// Reports are lost on the way; everything else comes through.
    pub(super) mute: bool,
    /// Documents arrive with other bytes than were promised.
    pub(super) tampered: bool,
    /// Documents say what this agent does not understand.
    pub(super) puzzled: bool,
    pub(super) prefetch: Option<FailureCode>,
    pub(super) apply: Option<FailureCode>,
    /// What ran before is applied all the same.
    pub(super) spares_old: bool,
    pub(super) remove: Option<FailureCode>,
    /// The engine begins with it and never ends.
    pub(super) hangs: bool,
    /// What runs is not well.
    pub(super) sick: bool,
    /// The engine does not answer whoever looks.
    pub(super) engine_away: bool,
}

pub(super) struct Machine<'a> {
    world: &'a World,
    client: ClientId,
    settings: Settings,
    device: Device,
    running: BTreeMap<(AssignmentId, ComponentName), Digest>,
    ran: BTreeSet<Digest>,
    /// Ahead of the server's clock, in milliseconds.
    skew: i64,
    pub(super) faults: Faults,
}

impl World {
    /// A device that has joined and was switched on for a minute.
    pub(super) async fn machine(&self, name: &str, labels: &[(&str, &str)]) -> Machine<'_> {
        self.machine_with(name, labels, 0).await
    }

    /// The same, with a clock that is so many seconds ahead.
    pub(super) async fn machine_with(&self, name: &str, labels: &[(&str, &str)], ahead: i64) -> Machine<'_> {
        self.join(name, labels).await;
        let mut settings = Settings::new(DeviceId::parse(name).unwrap());
        settings.poll_wait = Duration::ZERO;
        let mut machine = Machine {
            world: self,
            client: client(name),
            settings,
            device: Device::blank(),
            running: BTreeMap::new(),
            ran: BTreeSet::new(),
            skew: ahead * 1000,
            faults: Faults::default(),
        };
        let body = Digest::of(&machine.capabilities());
        machine.absorb(Event::Read(vec![]));
        machine.absorb(Event::CapabilitiesAre(body));
        machine.live(60).await;
        machine
    }
}

impl Machine<'_> {
    fn capabilities(&self) -> Bytes {
        let body = capabilities(self.client.as_str(), "4Gi", &["compose"]);
        let mut capabilities = g2::capabilities::read(&body).unwrap();
        capabilities.blind = self.device.blind().cloned();
        g2::capabilities::write(&capabilities).into()
    }

    fn now(&self) -> Moment {
        let now = self.world.clock.load(Ordering::Relaxed);
        Moment(now.saturating_add_signed(self.skew))
    }

    fn absorb(&mut self, event: Event) {
        let now = self.now();
        let blind = self.device.blind().cloned();
        self.device.absorb(&self.settings, now, 0.5, event);
        if self.device.blind() != blind.as_ref() {
            let are = Digest::of(&self.capabilities());
            self.device.absorb(&self.settings, now, 0.5, Event::CapabilitiesAre(are));
        }
    }

    /// Downloads one thing at a time.
    pub(super) fn one_at_a_time(&mut self) {
        self.settings.work_count_max = 1;
    }

    /// Somebody at the device holds changes back.
    pub(super) fn hold(&mut self, holder: &str, seconds: u64) {
        let hold = self.device.hold(holder, "a batch runs", Duration::from_secs(seconds), self.now());
        self.absorb(Event::Held(hold.unwrap()));
    }

    /// Lives for so long; the world's clock goes on with it.
    pub(super) async fn live(&mut self, seconds: u64) {
        let end = self.world.clock.load(Ordering::Relaxed) + seconds * 1000;
        loop {
            while let Some(action) = self.device.next(&self.settings, self.now()) {
                self.absorb(Event::Began(action.clone()));
                if let Some(event) = self.perform(action).await {
                    self.absorb(event);
                }
            }
            let now = self.world.clock.load(Ordering::Relaxed);
            if now >= end {
                return;
            }
            let wake = self.device.wake(&self.settings, self.now());
            let wake = wake.map_or(end, |at| at.0.saturating_add_signed(-self.skew));
            self.world.clock.store(wake.clamp(now + 1, end), Ordering::Relaxed);
        }
    }

    /// What comes of an action; nothing if it never ends.
    async fn perform(&mut self, action: Action) -> Option<Event> {
        let fleet = &self.world.fleet;
        let talks = matches!(
            action,
            Action::SendCapabilities | Action::Poll { .. } | Action::Fetch(_) | Action::Send(_)
        );
        if talks && self.faults.cut_off {
            return Some(action.undone("the cable is out", FailureCode::PullFailed));
        }
        let failure = |code: FailureCode| Failure::new(code, format!("it is {code}"));
        Some(match action {
            Action::SendCapabilities => {
                let body = self.capabilities();
                let parsed = g2::capabilities::read(&body).unwrap();
                let digest = Digest::of(&body);
                fleet.put_capabilities(&self.client, parsed, body).await.unwrap();
                fleet.touched(&self.client);
                Event::CapabilitiesSent(Ok(digest))
            }
            Action::Poll { held, .. } => {
                fleet.touched(&self.client);
                let Ok(live) = fleet.manifest(&self.client, Dialect::Miaf) else {
                    return Some(Event::Polled(Err(Trouble::passing("the server refuses this device"))));
                };
                if held == Some(live.digest) {
                    fleet.client_holds(&self.client, live.version);
                    return Some(Event::Polled(Ok(Polled::Unchanged { held_open: false })));
                }
                let manifest = g2::manifest::read(&live.body).unwrap().manifest;
                Event::Polled(Ok(Polled::Manifest { manifest, body: live.digest, held_open: false }))
            }
            Action::Fetch(FetchPlan::Bundle { entries, .. } | FetchPlan::Documents(entries)) => {
                let mut delivery: Delivery = Vec::new();
                for entry in entries {
                    let digest = entry.document.digest;
                    let bytes = fleet.document(&self.client, entry.id, digest).await.unwrap().unwrap();
                    let mut bytes = bytes.to_vec();
                    if self.faults.tampered {
                        bytes.push(b' ');
                    }
                    let reading = match self.faults.puzzled {
                        true => Err(failure(FailureCode::DocumentInvalid)),
                        false => Ok(g2::document::read(&bytes).unwrap()),
                    };
                    delivery.push((Document::of(bytes), reading));
                }
                Event::Fetched(Ok(delivery))
            }
            Action::Send(report) => {
                let sequence = report.detail.as_ref().unwrap().sequence;
                if self.faults.mute {
                    return Some(Event::Sent { sequence, result: Err(Trouble::passing("no answer")) });
                }
                let told = g2::status::read(&g2::status::write(&report)).unwrap();
                fleet.touched(&self.client);
                let result = fleet.report(&self.client, told).await;
                let result = result.map(drop).map_err(|error| Trouble::permanent(error.to_string()));
                Event::Sent { sequence, result }
            }
            Action::Observe if self.faults.engine_away => {
                Event::Observed(Err(failure(FailureCode::RuntimeUnreachable)))
            }
            Action::Observe => {
                let seen = self.running.iter().map(|((assignment, component), fingerprint)| Observation {
                    assignment: *assignment,
                    component: component.clone(),
                    fingerprint: Some(*fingerprint),
                    health: match self.faults.sick {
                        true => Health::Unhealthy("its health check fails".into()),
                        false => Health::Healthy,
                    },
                    restarts: 0,
                });
                Event::Observed(Ok(seen.collect()))
            }
            Action::Prefetch(_) | Action::Apply(_) | Action::Remove { .. } if self.faults.hangs => {
                return None;
            }
            Action::Prefetch(order) => Event::Prefetched {
                assignment: order.assignment,
                fingerprint: order.fingerprint(),
                component: order.component,
                result: self.faults.prefetch.map_or(Ok(()), |code| Err(failure(code))),
            },
            Action::Apply(order) => {
                let (fingerprint, key) = (order.fingerprint(), (order.assignment, order.component.clone()));
                let spared = self.faults.spares_old && self.ran.contains(&fingerprint);
                let fault = self.faults.apply.filter(|_| !spared);
                let result = fault.map_or(Ok(()), |code| Err(failure(code)));
                match result {
                    Ok(()) => {
                        self.ran.insert(fingerprint);
                        self.running.insert(key, fingerprint)
                    }
                    Err(_) => self.running.remove(&key),
                };
                Event::Applied {
                    assignment: order.assignment,
                    component: order.component,
                    fingerprint,
                    result,
                }
            }
            Action::Remove { assignment, component, .. } => {
                let result = self.faults.remove.map_or(Ok(()), |code| Err(failure(code)));
                if result.is_ok() {
                    self.running.remove(&(assignment, component.clone()));
                }
                Event::Removed { assignment, component, result }
            }
        })
    }
}
