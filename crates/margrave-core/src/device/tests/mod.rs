//! The device against a small world that lies, loses and crashes, all from one seed.

mod asked;
mod asking;
mod beneath;
mod blind;
mod contact;
mod counting;
mod crowds;
mod dice;
mod download;
mod drift;
mod going_back;
mod holding;
mod overtaken;
mod removal;
mod restarting;
mod restarts;
mod retelling;
mod settling;
mod starting;
mod untaken;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use self::dice::Dice;
use super::*;
use crate::digest::Document;
use crate::id::{ComponentName, PackageId};
use crate::manifest::{Blob, Entry, Manifest};
use crate::package::{Component, ProfileKind, Revision};
use crate::parameters::{ParameterValue, ResolvedParameter, Target};
use crate::report::FailureCode;
use crate::workload::{Hints, Placement};

fn id(n: u8) -> AssignmentId {
    AssignmentId::parse(&format!("00000000-0000-4000-8000-0000000000{n:02x}")).unwrap()
}

fn name(text: &str) -> ComponentName {
    ComponentName::parse(text).unwrap()
}

/// A workload with one component per name, all told `value`; its "document" is its debug text.
fn workload(n: u8, components: &[&str], value: &str) -> Workload {
    let component = |c: &&str| Component {
        name: name(c),
        repository: format!("oci://margrave/{c}"),
        revision: Revision::parse("1.0.0").unwrap(),
        wait: None,
        timeout: None,
        extensions: Default::default(),
    };
    let parameter = ResolvedParameter {
        name: "value".parse().unwrap(),
        value: ParameterValue::Text(value.into()),
        targets: vec![Target {
            pointer: "VALUE".into(),
            components: components.iter().map(|c| name(c)).collect(),
        }],
        secret: false,
    };
    Workload {
        id: id(n),
        name: format!("app-{n}"),
        namespace: format!("app-{n}"),
        placement: Placement::Device("line-1".parse().unwrap()),
        application: PackageId::parse("app").unwrap(),
        kind: ProfileKind::Compose,
        components: components.iter().map(component).collect(),
        constraints: None,
        parameters: vec![parameter],
        extensions: Default::default(),
        hints: Hints::default(),
    }
}

fn document(workload: &Workload) -> Document {
    Document::of(format!("{workload:?}").into_bytes())
}

/// Server, runtime and disk around one device.
struct World {
    settings: Settings,
    now: Moment,
    dice: Dice,
    device: Device,
    /// What the ledger holds: the state of the last commit.
    ledger: String,
    blobs: BTreeMap<Digest, Workload>,
    manifest: Manifest,
    store: BTreeMap<Digest, Workload>,
    running: BTreeMap<(AssignmentId, ComponentName), Digest>,
    started: u32,
    reports: Vec<Report>,
    doing: Vec<Action>,
    faults: f64,
    /// What does not start, by a component's fingerprint.
    broken: BTreeSet<Digest>,
    /// What runs and is not well.
    sick: BTreeSet<Digest>,
    /// What is otherwise than it should be, and how the runtime tells it.
    odd: BTreeMap<Digest, Health>,
    /// How often the engine brought something back.
    restarts: BTreeMap<Digest, u32>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut settings = Settings::new("line-1".parse().unwrap());
        settings.poll_wait = Duration::ZERO;
        // Not within any life here: what is said should have a cause (`retelling.rs` looks at what has none).
        settings.retell_every = Duration::from_secs(100 * 365 * 24 * 3600);
        let mut world = World {
            settings,
            now: Moment(1_800_000_000_000),
            dice: Dice(seed),
            device: Device::blank(),
            ledger: String::new(),
            blobs: BTreeMap::new(),
            manifest: Manifest::new(1, None, vec![]).unwrap(),
            store: BTreeMap::new(),
            running: BTreeMap::new(),
            started: 0,
            reports: vec![],
            doing: vec![],
            faults: 0.0,
            broken: BTreeSet::new(),
            sick: BTreeSet::new(),
            odd: BTreeMap::new(),
            restarts: BTreeMap::new(),
        };
        world.commit();
        world.boot();
        world
    }

    fn publish(&mut self, workloads: Vec<Workload>) {
        let entries = workloads
            .iter()
            .map(|w| Entry { id: w.id, document: Blob { digest: document(w).digest(), size: Some(100) } });
        let entries: Vec<Entry> = entries.collect();
        let bundle = (!entries.is_empty()).then(|| Blob { digest: Digest::of(b"bundle"), size: Some(150) });
        self.manifest = Manifest::new(self.manifest.version() + 1, bundle, entries).unwrap();
        self.store.extend(workloads.into_iter().map(|w| (document(&w).digest(), w)));
    }

    fn commit(&mut self) {
        self.ledger = serde_json::to_string(&self.device).unwrap();
    }

    /// The power comes back: only ledger, blobs and containers survive.
    fn boot(&mut self) {
        self.boot_in(None);
    }

    /// The same on a system that says which life of the machine it is.
    fn boot_in(&mut self, life: Option<&str>) {
        self.device = serde_json::from_str(&self.ledger).unwrap();
        self.doing.clear();
        let readings = self.blobs.iter().map(|(digest, workload)| (*digest, Ok(workload.clone()))).collect();
        self.absorb(Event::Read(readings));
        life.into_iter().for_each(|life| self.absorb(Event::Booted(life.to_owned())));
        self.absorb(Event::CapabilitiesAre(Digest::of(b"capabilities")));
    }

    fn absorb(&mut self, event: Event) {
        let roll = self.dice.roll();
        let before: BTreeMap<_, _> = self.device.assignments().iter().map(|(id, a)| (*id, a.state)).collect();
        self.device.absorb(&self.settings, self.now, roll, event);
        for (id, assignment) in self.device.assignments() {
            if assignment.state == State::Installed {
                let done = assignment.components.iter().all(|progress| progress.state == Reported::Installed);
                assert!(done && assignment.good.is_some(), "INSTALLED stands for the document held");
            }
            if let Some(before) = before.get(id) {
                let reborn = *before == State::Deleted && assignment.state == State::Pending;
                let straight = *before == assignment.state || reborn || before.may_become(assignment.state);
                // One event may settle through several legal steps; `transition` itself asserts each.
                assert!(straight || reachable(*before, assignment.state), "{before} -> {}", assignment.state);
            }
        }
    }

    /// Begins everything there is to do, then lets one thing that is under way end.
    fn step(&mut self) {
        self.step_with(|_, _| {});
    }

    /// The same; `check` sees every action before it begins.
    fn step_with(&mut self, check: impl Fn(&World, &Action)) {
        while let Some(action) = self.device.next(&self.settings, self.now) {
            check(self, &action);
            self.absorb(Event::Began(action.clone()));
            assert!(!self.device.obsolete(&action), "begun to be dropped, over and over: {action:?}");
            self.commit();
            self.doing.push(action);
            if self.dice.hit(self.faults / 5.0) {
                return self.boot();
            }
        }
        if self.doing.is_empty() {
            let wake = self.device.wake(&self.settings, self.now).expect("a device always has a next poll");
            assert!(wake > self.now);
            self.now = wake;
            return;
        }
        let at = (self.dice.roll() * self.doing.len() as f64) as usize;
        let action = self.doing.remove(at);
        self.now = self.now.after(Duration::from_millis(50));
        let event = self.perform(action);
        if self.dice.hit(self.faults / 5.0) {
            // Done, but nobody lived to write it down.
            return self.boot();
        }
        self.absorb(event);
        self.commit();
    }

    /// Begins an action and sees it through.
    fn carry_out(&mut self, action: Action) {
        self.absorb(Event::Began(action.clone()));
        let event = self.perform(action);
        self.absorb(event);
    }

    fn perform(&mut self, action: Action) -> Event {
        let fails = self.dice.hit(self.faults);
        let trouble = || Trouble::passing("the cable is out");
        let failure = || Failure::new(FailureCode::StartFailed, "did not start");
        match action {
            Action::SendCapabilities => {
                Event::CapabilitiesSent(if fails { Err(trouble()) } else { Ok(Digest::of(b"capabilities")) })
            }
            Action::Poll { held, .. } => {
                let body = Digest::of(format!("{:?}", self.manifest).as_bytes());
                Event::Polled(match fails {
                    true => Err(trouble()),
                    false if held == Some(body) => Ok(Polled::Unchanged { held_open: false }),
                    false => Ok(Polled::Manifest { manifest: self.manifest.clone(), body, held_open: false }),
                })
            }
            Action::Fetch(plan) => {
                let entries = match plan {
                    FetchPlan::Bundle { entries, .. } | FetchPlan::Documents(entries) => entries,
                };
                if fails {
                    return Event::Fetched(Err(trouble()));
                }
                let is_here = |entry: &Entry| self.store.contains_key(&entry.document.digest);
                if !entries.iter().all(is_here) {
                    return Event::Fetched(Err(Trouble::passing("nobody has it")));
                }
                let wanted = entries.iter().map(|entry| &self.store[&entry.document.digest]);
                let delivery: Delivery = wanted.map(|w| (document(w), Ok(w.clone()))).collect();
                for (document, reading) in &delivery {
                    self.blobs.insert(document.digest(), reading.clone().unwrap());
                }
                Event::Fetched(Ok(delivery))
            }
            Action::Send(report) => {
                let sequence = report.detail.as_ref().unwrap().sequence;
                let result = if fails { Err(trouble()) } else { Ok(()) };
                if result.is_ok() {
                    self.reports.push(report);
                }
                Event::Sent { sequence, result }
            }
            Action::Observe => Event::Observed(Ok(self
                .running
                .iter()
                .map(|((assignment, component), fingerprint)| Observation {
                    assignment: *assignment,
                    component: component.clone(),
                    fingerprint: Some(*fingerprint),
                    health: match self.sick.contains(fingerprint) {
                        true => Health::Unhealthy("it is not well".into()),
                        false => self.odd.get(fingerprint).cloned().unwrap_or(Health::Healthy),
                    },
                    restarts: self.restarts.get(fingerprint).copied().unwrap_or(0),
                })
                .collect())),
            Action::Prefetch(order) => Event::Prefetched {
                assignment: order.assignment,
                fingerprint: order.fingerprint(),
                component: order.component,
                result: if fails { Err(failure()) } else { Ok(()) },
            },
            Action::Apply(order) => {
                let fails = fails || self.broken.contains(&order.fingerprint());
                let key = (order.assignment, order.component.clone());
                self.odd.remove(&order.fingerprint());
                self.restarts.remove(&order.fingerprint());
                // What fails to start has taken the place of what ran before.
                match fails {
                    true => drop(self.running.remove(&key)),
                    false if self.running.insert(key, order.fingerprint()) != Some(order.fingerprint()) => {
                        self.started += 1;
                    }
                    false => {}
                }
                Event::Applied {
                    assignment: order.assignment,
                    fingerprint: order.fingerprint(),
                    component: order.component,
                    result: if fails { Err(failure()) } else { Ok(()) },
                }
            }
            Action::Remove { assignment, component, .. } => {
                if !fails {
                    self.running.remove(&(assignment, component.clone()));
                }
                let failure = Failure::new(FailureCode::RemoveFailed, "still in use");
                Event::Removed { assignment, component, result: if fails { Err(failure) } else { Ok(()) } }
            }
        }
    }

    fn converged(&self) -> bool {
        let wanted = self.manifest.entries().iter().flat_map(|e| Order::of(&self.store[&e.document.digest]));
        let wanted: BTreeMap<_, _> =
            wanted.map(|o| ((o.assignment, o.component.clone()), o.fingerprint())).collect();
        self.device.converged()
            && self.device.accepted().is_some_and(|a| a.version == self.manifest.version())
            && self.running == wanted
    }

    fn run_until_converged(&mut self) {
        for _ in 0..5_000 {
            if self.converged() {
                return;
            }
            self.step();
        }
        panic!("not converged: {:#?}\nwanted {:#?}\nrunning {:#?}", self.device, self.manifest, self.running);
    }

    /// Until nothing is done any more but asking and looking.
    fn rest(&mut self) {
        let mut quiet = 0;
        for _ in 0..20_000 {
            self.step();
            let idle = |a: &Action| matches!(a, Action::Poll { .. } | Action::Observe);
            let waits = self.device.assignments().values().any(|a| a.next_try.is_some());
            quiet = if self.doing.iter().all(idle) && !waits { quiet + 1 } else { 0 };
            if quiet > 100 {
                return;
            }
        }
        panic!("never comes to rest: {:#?}", self.device);
    }

    fn fingerprints(workload: &Workload) -> Vec<Digest> {
        Order::of(workload).iter().map(Order::fingerprint).collect()
    }

    fn told(&self, n: u8) -> String {
        let of = self.reports.iter().filter(|r| r.assignment == id(n));
        let mut states: Vec<&str> = of.map(|r| r.detail.as_ref().unwrap().state.as_str()).collect();
        states.dedup();
        states.join(" ")
    }
}

fn reachable(from: State, to: State) -> bool {
    let mut known = BTreeSet::from([from]);
    for _ in 0..8 {
        let more: Vec<State> = known
            .iter()
            .flat_map(|a| crate::lifecycle::STATES.into_iter().filter(|b| a.may_become(*b)))
            .collect();
        known.extend(more);
    }
    known.contains(&to) || known.contains(&State::Deleted)
}

#[test]
fn mi_g2_120_capabilities_are_the_first_exchange() {
    let world = World::new(1);
    assert_eq!(world.device.next(&world.settings, world.now), Some(Action::SendCapabilities));
}

#[test]
fn first_boot_without_desired_state_looks_at_nothing_and_starts_nothing() {
    let mut world = World::new(1);
    world.absorb(Event::CapabilitiesSent(Ok(Digest::of(b"capabilities"))));
    world.absorb(Event::Began(Action::Poll { held: None, wait: Duration::ZERO }));
    world.absorb(Event::Polled(Err(Trouble::passing("no network"))));
    assert_eq!(world.device.next(&world.settings, world.now), None);
    assert!(world.device.wake(&world.settings, world.now).is_some());
}

#[test]
fn install_update_remove_are_told_in_order() {
    let mut world = World::new(7);
    world.publish(vec![workload(1, &["db", "web"], "a")]);
    world.run_until_converged();
    assert_eq!(world.told(1), "PENDING INSTALLING INSTALLED");
    world.publish(vec![workload(1, &["db", "web"], "b")]);
    world.run_until_converged();
    assert_eq!(world.told(1), "PENDING INSTALLING INSTALLED UPDATING INSTALLED");
    world.publish(vec![]);
    world.run_until_converged();
    assert_eq!(world.told(1), "PENDING INSTALLING INSTALLED UPDATING INSTALLED DELETING DELETED");
    assert!(world.device.assignments().is_empty() && world.device.documents().is_empty());
}

#[test]
fn dm_022_components_start_in_order_and_everything_is_fetched_before_anything_is_switched() {
    let mut world = World::new(3);
    world.publish(vec![workload(1, &["db", "web"], "a")]);
    let mut seen = vec![];
    for _ in 0..200 {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            match &action {
                Action::Prefetch(order) => seen.push(format!("fetch {}", order.component)),
                Action::Apply(order) => seen.push(format!("apply {}", order.component)),
                _ => {}
            }
            world.absorb(Event::Began(action.clone()));
            world.doing.push(action);
        }
        world.step();
    }
    assert_eq!(seen, ["fetch db", "fetch web", "apply db", "apply web"]);
}

#[test]
fn a_reboot_restarts_nothing_that_is_as_desired() {
    let mut world = World::new(5);
    world.publish(vec![workload(1, &["web"], "a"), workload(2, &["db"], "a")]);
    world.run_until_converged();
    let started = world.started;
    for _ in 0..5 {
        world.boot();
        for _ in 0..50 {
            world.step();
        }
    }
    assert_eq!(world.started, started);
    assert_eq!(world.told(1), "PENDING INSTALLING INSTALLED");
}

#[test]
fn a_component_that_vanished_is_seen_repaired_and_reported() {
    let mut world = World::new(5);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    world.running.clear();
    world.run_until_converged();
    assert_eq!(world.told(1), "PENDING INSTALLING INSTALLED FAILED INSTALLING INSTALLED");
    let failed = world.reports.iter().find(|r| r.fault.is_some()).unwrap();
    assert_eq!(failed.fault.as_ref().unwrap().code, "unhealthy");
}

#[test]
fn something_that_stirred_is_looked_at_within_a_second() {
    let mut world = World::new(5);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    let regular = world.device.wake(&world.settings, world.now).unwrap();
    assert!(regular.since(world.now) > Duration::from_secs(1));
    world.absorb(Event::Stirred);
    let soon = world.device.wake(&world.settings, world.now).unwrap();
    assert!(soon.since(world.now) <= Duration::from_secs(1));
    world.now = soon;
    assert_eq!(world.device.next(&world.settings, world.now), Some(Action::Observe));
}

#[test]
fn a_component_that_an_update_drops_is_removed_also_after_a_crash() {
    let mut world = World::new(9);
    world.publish(vec![workload(1, &["db", "web"], "a")]);
    world.run_until_converged();
    let mut next = workload(1, &["web"], "a");
    // So much goes wrong here that going back would come to its end.
    next.hints.rollback.when = crate::rollback::When::Never;
    world.publish(vec![next]);
    world.faults = 0.3;
    for _ in 0..100 {
        world.step();
    }
    world.faults = 0.0;
    world.run_until_converged();
}

#[test]
fn what_runs_without_being_in_the_manifest_is_removed_once_there_is_one() {
    let mut world = World::new(9);
    world.running.insert((id(9), name("ghost")), Digest::of(b"?"));
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    assert!(!world.running.contains_key(&(id(9), name("ghost"))));
}

#[test]
fn a_document_that_can_never_run_here_fails_once_and_waits_for_the_manifest() {
    let mut world = World::new(2);
    let bad = workload(1, &["web"], "bad");
    let digest = document(&bad).digest();
    world.publish(vec![bad]);
    for _ in 0..60 {
        if let Some(action) = world.device.next(&world.settings, world.now) {
            world.absorb(Event::Began(action.clone()));
            let event = match world.perform(action) {
                Event::Fetched(Ok(delivery)) => {
                    let refused = Failure::new(FailureCode::NotEligible, "needs a gpu");
                    let delivery = delivery.into_iter().map(|(d, _)| (d, Err(refused.clone())));
                    Event::Fetched(Ok(delivery.collect()))
                }
                event => event,
            };
            world.absorb(event);
        } else {
            world.now = world.device.wake(&world.settings, world.now).unwrap();
        }
    }
    assert_eq!(world.told(1), "PENDING FAILED");
    assert_eq!(world.device.assignments()[&id(1)].held, Some(digest));
    assert!(world.running.is_empty());
}

#[test]
fn a_clock_that_is_lost_while_something_falls_ill_does_not_hide_that() {
    let mut world = World::new(3);
    let ill = workload(1, &["web"], "a");
    world.publish(vec![ill.clone()]);
    world.run_until_converged();
    world.sick.insert(World::fingerprints(&ill)[0]);
    while world.device.assignments()[&id(1)].unhealthy_since.is_none() {
        world.step();
    }
    // In the middle of its grace.
    world.now = Moment(10_000);
    let end = world.now.after(Duration::from_secs(120));
    while world.now < end {
        world.step();
    }
    assert!(
        world.told(1).ends_with("FAILED") || world.told(1).contains("FAILED INSTALLING"),
        "{}",
        world.told(1)
    );
}

#[test]
fn a_clock_that_steps_back_a_little_delays_the_next_look_a_little() {
    let mut world = World::new(5);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    for seconds in [30, 90, 600, 1200] {
        // Nobody is asked meanwhile; only looking is.
        world.now = Moment(world.now.0 - seconds * 1000);
        let before = world.now;
        while world.device.seen_at().is_none_or(|seen| seen < before || seen > world.now) {
            world.step();
        }
        assert!(
            world.now.since(before) <= Duration::from_secs(61),
            "{seconds}: {:?}",
            world.now.since(before)
        );
    }
}

#[test]
fn a_clock_that_starts_in_1970_delays_nothing_for_decades() {
    let mut world = World::new(4);
    world.faults = 1.0;
    world.publish(vec![workload(1, &["web"], "a")]);
    for _ in 0..200 {
        world.step();
    }
    world.faults = 0.0;
    world.now = Moment(1_000);
    world.boot();
    world.run_until_converged();
    assert!(world.now < Moment(7_200_000), "took until {:?}", world.now);
}

#[test]
fn a_newer_document_makes_work_on_the_older_one_obsolete() {
    let mut world = World::new(4);
    world.publish(vec![workload(1, &["web"], "a")]);
    let apply = loop {
        world.step();
        let applying = world.doing.iter().find(|a| matches!(a, Action::Apply(_)));
        if let Some(action) = applying {
            break action.clone();
        }
    };
    assert!(!world.device.obsolete(&apply));
    world.publish(vec![workload(1, &["web"], "b")]);
    while world.device.accepted().unwrap().version < 3 {
        world.now = world.now.after(Duration::from_secs(60));
        world.doing.retain(|a| !matches!(a, Action::Apply(_)));
        world.step();
    }
    assert!(world.device.obsolete(&apply));
}

#[test]
fn a_newer_document_that_the_disk_lost_lets_the_older_one_go_on_until_it_is_here_again() {
    for touched in [false, true] {
        let mut world = World::new(4);
        world.publish(vec![workload(1, &["web"], "a")]);
        let is_under_way = |world: &World| {
            let applies = |action: &Action| match touched {
                true => matches!(action, Action::Apply(_)),
                false => matches!(action, Action::Prefetch(_)),
            };
            world.doing.iter().any(applies)
        };
        while !is_under_way(&world) {
            world.step();
        }
        let newer = workload(1, &["web"], "b");
        world.publish(vec![newer.clone()]);
        while world.device.accepted().unwrap().version < 3 {
            world.now = world.now.after(Duration::from_secs(60));
            world.doing.retain(|a| !matches!(a, Action::Apply(_) | Action::Prefetch(_)));
            world.step();
        }
        // The power goes, the newer document with it, and nobody has it for now.
        world.blobs.remove(&document(&newer).digest()).expect("it was here");
        let stored = std::mem::take(&mut world.store);
        world.boot();
        for _ in 0..100 {
            world.step();
        }
        let runs = if touched { World::fingerprints(&workload(1, &["web"], "a")) } else { vec![] };
        assert_eq!(world.running.values().copied().collect::<Vec<_>>(), runs, "touched: {touched}");
        world.store = stored;
        world.run_until_converged();
    }
}

#[test]
fn a_removal_is_told_with_the_version_that_asked_for_it() {
    let mut world = World::new(4);
    world.publish(vec![workload(1, &["web"], "a")]);
    world.run_until_converged();
    // It went and came back while nobody could be asked, and went again.
    for workloads in [vec![], vec![workload(1, &["web"], "a")], vec![]] {
        world.publish(workloads);
    }
    world.run_until_converged();
    let removal = |report: &&Report| matches!(report.state, Reported::Removing | Reported::Removed);
    let versions: Vec<u64> = world.reports.iter().filter(removal).map(|told| told.adopted_version).collect();
    assert_eq!(versions, [world.manifest.version(); 2]);
}

#[test]
fn what_an_application_prints_of_a_secret_is_in_no_report() {
    let mut world = World::new(4);
    let mut with_secret = workload(1, &["web"], "hunter2-hunter2\nsecond-line-of-it");
    with_secret.hints.salt = Some("salt".into());
    world.publish(vec![with_secret, workload(2, &["db"], "no-secret-at-all")]);
    for _ in 0..200 {
        while let Some(action) = world.device.next(&world.settings, world.now) {
            let Action::Apply(order) = &action else {
                world.carry_out(action);
                continue;
            };
            let order = order.clone();
            world.absorb(Event::Began(action));
            let message = "password hunter2-hunter2 second-line-of-it, port no-secret-at-all";
            let result = Err(Failure::new(FailureCode::StartFailed, message));
            let (assignment, fingerprint) = (order.assignment, order.fingerprint());
            world.absorb(Event::Applied { assignment, fingerprint, component: order.component, result });
        }
        world.now = world.device.wake(&world.settings, world.now).unwrap();
    }
    let said = |n: u8| {
        let of = world.reports.iter().filter(|report| report.assignment == id(n));
        format!("{:?}", of.collect::<Vec<_>>())
    };
    assert!(said(1).contains("password (hidden) (hidden), port no-secret-at-all"), "{}", said(1));
    assert!(!said(1).contains("hunter2") && !said(1).contains("second-line"));
    assert!(said(2).contains("port no-secret-at-all") && !said(2).contains("(hidden)"));
}

#[test]
fn a_memory_that_was_lost_lives_anew_and_says_so() {
    let lives = |world: &World| {
        let detail = |report: &Report| report.detail.as_ref().unwrap().life;
        world.reports.iter().map(detail).collect::<BTreeSet<_>>()
    };
    let mut world = World::new(5);
    world.rest();
    for value in ["a", "b"] {
        world.publish(vec![workload(1, &["web"], value)]);
        world.run_until_converged();
        world.boot();
    }
    assert_eq!(lives(&world), BTreeSet::from([Some(1)]));
    world.reports.clear();
    world.device = Device::blank();
    world.commit();
    world.boot();
    world.run_until_converged();
    assert_eq!(lives(&world), BTreeSet::from([Some(3)]));
}

/// Migration from signed requests, section 6, step 5.
#[test]
fn versions_of_another_identity_say_nothing_and_what_runs_keeps_running() {
    let mut world = World::new(3);
    world.absorb(Event::IdentityIs("g1 https://old.example c-17".to_owned()));
    for value in ["a", "b", "c"] {
        world.publish(vec![workload(1, &["web"], value), workload(2, &["db"], "a")]);
        world.run_until_converged();
    }
    let (started, held) = (world.started, world.device.accepted().unwrap().version);

    // The new identity's sequence starts at 1, with the same documents.
    let new = "spiffe://plant.example/margo/wfm/line-7/client/press".to_owned();
    let entries = world.manifest.entries().to_vec();
    world.manifest = Manifest::new(1, world.manifest.bundle(), entries).unwrap();
    assert!(world.manifest.version() < held);
    world.reports.clear();
    world.boot();
    world.absorb(Event::IdentityIs(new.clone()));
    world.commit();
    assert_eq!(world.device.next(&world.settings, world.now), Some(Action::SendCapabilities));
    assert_eq!(world.device.assignments().len(), 2);
    for _ in 0..60 {
        world.step();
    }
    world.run_until_converged();
    assert_eq!((world.started, world.device.accepted().unwrap().version), (started, 1));
    let told: BTreeSet<_> = world.reports.iter().map(|r| (r.assignment, r.adopted_version)).collect();
    assert_eq!(
        told,
        BTreeSet::from([(id(1), 1), (id(2), 1)]),
        "the new server hears where everything stands"
    );

    // And from here on it does not go back either, under either name for the same ledger.
    world.boot();
    world.absorb(Event::IdentityIs(new));
    world.manifest = Manifest::new(1, None, vec![]).unwrap();
    for _ in 0..60 {
        world.step();
    }
    assert_eq!(world.device.assignments().len(), 2);
    assert!(world.device.contact().1.is_some_and(|trouble| trouble.contains("other content")));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever was wanted in between, and whatever failed or crashed: once the faults stop, the device
    /// runs exactly what the newest manifest says, and the server knows.
    #[test]
    fn every_device_converges_once_the_faults_stop(seed in any::<u64>(), rounds in 1usize..6) {
        let mut world = World::new(seed);
        let sets: [&[&str]; 4] = [&["web"], &["db", "web"], &["db"], &["db", "web", "cache"]];
        for _ in 0..rounds {
            let mut wanted = vec![];
            for n in 1..4 {
                if world.dice.hit(0.6) {
                    let set = sets[(world.dice.roll() * 4.0) as usize];
                    let value = if world.dice.hit(0.5) { "a" } else { "b" };
                    wanted.push(workload(n, set, value));
                }
            }
            world.publish(wanted);
            world.faults = world.dice.roll() * 0.5;
            for _ in 0..(world.dice.roll() * 150.0) as usize {
                world.step();
            }
        }
        world.faults = 0.0;
        // What was given up meanwhile stays given up, and what replaced it runs or says why not.
        world.rest();
        for (id, assignment) in world.device.assignments() {
            let last = world.reports.iter().rfind(|r| r.assignment == *id).unwrap();
            prop_assert_eq!(last.state == Reported::Installed, assignment.wanted == assignment.held
                && assignment.state == State::Installed);
            prop_assert!(matches!(assignment.state, State::Installed | State::Failed));
            prop_assert!(assignment.state == State::Installed || assignment.gave_up().is_some());
        }
        // A newer document is tried in any case.
        let newer: Vec<Workload> = world.manifest.entries().iter().map(|entry| {
            let old = &world.store[&entry.document.digest];
            let n = (1..4).find(|n| id(*n) == old.id).unwrap();
            let names: Vec<String> = old.components.iter().map(|c| c.name.to_string()).collect();
            workload(n, &names.iter().map(String::as_str).collect::<Vec<_>>(), "newer")
        }).collect();
        world.publish(newer);
        world.run_until_converged();
        // What the server heard last of each assignment is how it is.
        for entry in world.manifest.entries() {
            let last = world.reports.iter().rfind(|r| r.assignment == entry.id).unwrap();
            prop_assert_eq!(last.detail.as_ref().unwrap().state, State::Installed);
            prop_assert_eq!(last.detail.as_ref().unwrap().document, Some(entry.document.digest));
        }
        let sequences: Vec<u64> = world.reports.iter().map(|r| r.detail.as_ref().unwrap().sequence).collect();
        let mut sorted = sequences.clone();
        sorted.sort();
        prop_assert_eq!(sequences, sorted);
    }
}
