//! What must hold after every step.

use std::collections::{BTreeMap, BTreeSet};

use margrave_core::device::{Assignment, Order};
use margrave_core::digest::{Digest, Document};
use margrave_core::id::AssignmentId;
use margrave_core::lifecycle::{STATES, State};
use margrave_core::report::Report;
use margrave_core::rollback::When;
use margrave_core::schedule::Schedule;
use margrave_wire::g2;

use super::machine::given_up;
use super::shell::short;
use super::{World, broken};
use crate::check::{Check, Violation};
use crate::engine::{Behaviour, Container};
use crate::fault::Fault;
use crate::sabotage::Sabotage;
use crate::upstream::is_strange;

/// What the server ever published for a device, in any of its pasts.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// By the digest of the exact manifest.
    pub(crate) manifests: BTreeMap<Digest, u64>,
    newest: Option<Digest>,
    /// The fingerprints of everything that was in a published document.
    pub(crate) orders: BTreeSet<Digest>,
    pub(crate) documents: BTreeMap<Digest, Facts>,
    /// When to talk and to change, by the digest of the manifest that says so.
    pub(crate) schedules: BTreeMap<Digest, Schedule>,
}

/// What is known of a document that no device is told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// It can never be well.
    pub(crate) bad: bool,
    /// It takes an agent that is not dated.
    pub(crate) strange: bool,
    /// Its policy lets a device go back.
    pub(crate) goes_back: bool,
    /// Its policy ends trying where there is nothing to go back to.
    pub(crate) binding: bool,
}

impl World {
    /// Notes what the server shows each device now.
    pub(super) async fn note_published(&mut self) -> Result<(), Violation> {
        let Some(server) = &self.server else { return Ok(()) };
        let mut given = vec![];
        for (at, (machine, published)) in self.machines.iter().zip(&mut self.published).enumerate() {
            let Some(live) = server.manifest(&machine.client) else { continue };
            if published.newest == Some(live.digest) {
                continue;
            }
            published.newest = Some(live.digest);
            published.manifests.insert(live.digest, live.version);
            let listing = g2::manifest::read(&live.body).map_err(broken)?;
            published.schedules.insert(live.digest, listing.manifest.schedule().clone());
            let version = live.version;
            let entries = listing.manifest.entries().len();
            self.story.tell(
                self.now,
                "server",
                format_args!("shows {} version {version} with {entries} documents", machine.client),
            );
            for entry in listing.manifest.entries() {
                let digest = entry.document.digest;
                if published.documents.contains_key(&digest) {
                    continue;
                }
                let bytes = server.fleet.document(&machine.client, entry.id, digest).await.map_err(broken)?;
                let Some(bytes) = bytes else {
                    return Err(broken(format!("the manifest lists {digest}, which is not there")));
                };
                let document = Document::verified(bytes.to_vec(), digest).map_err(broken)?;
                let workload = machine.own.with_agent(false).read(entry.id, &document).map_err(broken)?;
                let strange = is_strange(&workload);
                let orders = Order::of(&workload);
                let bad = orders.iter().any(|order| Behaviour::of(order) != Behaviour::Good);
                let goes_back = workload.hints.rollback.when == When::OnFailedUpdate;
                let binding = workload.hints.rollback.binding;
                published.orders.extend(orders.iter().map(Order::fingerprint));
                published.documents.insert(digest, Facts { bad, strange, goes_back, binding });
                given.push((at, orders));
            }
        }
        given.into_iter().try_for_each(|(at, orders)| self.check_care(at, &orders))
    }

    /// Asked after everything that a device took in.
    pub(super) fn after_absorbing(&mut self, at: usize) -> Result<(), Violation> {
        let Schedule { saver: saves, leaves_drift, .. } = *self.told(at);
        let machine = &mut self.machines[at];
        let memory = &mut machine.memory;
        let name = machine.name.clone();
        let mut fresh: Vec<Report> = vec![];
        for report in machine.device.outbox().waiting() {
            let sequence = report.detail.as_ref().map_or(0, |detail| detail.sequence);
            if sequence > memory.sequence {
                fresh.push(kept_back(self.sabotage, report.clone()));
            }
        }
        if !leaves_drift {
            memory.left.clear();
        }
        let mut lines = vec![];
        let mut removals = vec![];
        let mut installed = vec![];
        for report in &fresh {
            let Some(detail) = &report.detail else { continue };
            memory.sequence = memory.sequence.max(detail.sequence);
            memory.made.insert(Digest::of(&g2::status::write(report)));
            memory.newest.entry(report.assignment).or_default().push(detail.sequence);
            let before = memory.told.insert(report.assignment, detail.state);
            let goes = match detail.state {
                State::Deleting => before != Some(State::Deleting),
                // It says of what it never had that it is not here.
                State::Deleted => !matches!(before, None | Some(State::Deleting | State::Deleted)),
                _ => false,
            };
            removals.extend(goes.then_some(report.assignment));
            if matches!(detail.state, State::Deleted | State::Pending) {
                memory.begun.remove(&report.assignment);
            }
            match detail.state {
                State::Failed => {
                    let unwell = report.fault.as_ref().is_some_and(|fault| fault.code == "unhealthy");
                    let by_hand = unwell && !memory.sick.contains(&report.assignment);
                    if leaves_drift && by_hand && before == Some(State::Installed) {
                        memory.left.insert(report.assignment);
                    }
                }
                State::Installed => {
                    memory.sick.remove(&report.assignment);
                    memory.left.remove(&report.assignment);
                }
                _ => {}
            }
            let legal = match before {
                None => true,
                Some(before) if before == detail.state => true,
                // It came back: a new life.
                Some(State::Deleted) => detail.state == State::Pending,
                // Who saves data only tells where it got to.
                Some(before) if saves => {
                    let step = |next: &State| before.may_become(*next) && next.may_become(detail.state);
                    let came_back = before == State::Deleting && detail.state == State::Pending;
                    before.may_become(detail.state) || STATES.iter().any(step) || came_back
                }
                Some(before) => before.may_become(detail.state),
            };
            let id = short(report.assignment);
            if !legal {
                let what = format!("{id} went from {before:?} to {}", detail.state);
                return Err(Violation::of(Check::OnlyLegalTransitions, &name, what));
            }
            if before != Some(detail.state) {
                let why = detail.reason.as_deref().unwrap_or("");
                lines.push(format!("{id} is {} {why}", detail.state));
            }
            let said = detail.document.filter(|_| detail.state == State::Installed);
            let was_said = match said {
                Some(document) => memory.installed.insert(report.assignment, document),
                None => memory.installed.remove(&report.assignment),
            };
            // Where it is so already, a look that found something ill is not believed before its time.
            if detail.state == State::Installed && (before != Some(State::Installed) || said != was_said) {
                let reading = detail.document.and_then(|document| machine.device.reading(&document));
                let orders = match reading {
                    Some(Ok(workload)) => Order::of(workload),
                    // A document that the disk lost says nothing about its components.
                    None if detail.document.is_some() && memory.faults.has(Fault::DocumentDamaged) => {
                        vec![]
                    }
                    other => {
                        let what = format!("{id}: installed is {:?}, read as {other:?}", detail.document);
                        return Err(Violation::of(Check::InstalledIsBacked, &name, what));
                    }
                };
                for order in &orders {
                    let word = (order.assignment, order.component.clone(), order.fingerprint());
                    if !memory.words.contains(&word) {
                        let what = format!("{id}: nobody said that {} is up", order.component);
                        return Err(Violation::of(Check::InstalledIsBacked, &name, what));
                    }
                }
                let works = matches!(before, Some(State::Installing | State::Updating | State::RollingBack));
                let applied = works && !memory.beneath.contains(&report.assignment);
                installed.push((report.assignment, orders, applied));
            }
        }
        let lives_beneath =
            |(id, assignment): (&AssignmentId, &Assignment)| assignment.beneath().map(|_| *id);
        memory.beneath = machine.device.assignments().iter().filter_map(lives_beneath).collect();
        for (id, assignment) in machine.device.assignments() {
            let known = memory.wanted.get(id).map(|(wanted, _)| *wanted);
            if known != Some(assignment.wanted) {
                memory.wanted.insert(*id, (assignment.wanted, self.now));
            }
            memory.given_up.extend(given_up(assignment).map(|document| (*id, document)));
        }
        let accepted = machine.device.accepted();
        let entries = accepted.map_or(&[][..], |accepted| &accepted.entries);
        let lists = |id: &AssignmentId, document: &Digest| {
            entries.iter().any(|entry| entry.id == *id && entry.document.digest == *document)
        };
        memory.given_up.retain(|id, document| lists(id, document));
        // What is forgotten may be found again, as something new.
        memory.wanted.retain(|id, _| machine.device.assignments().contains_key(id));
        memory.installed.retain(|id, _| machine.device.assignments().contains_key(id));
        memory.told.retain(|id, _| machine.device.assignments().contains_key(id));
        for (id, assignment) in machine.device.assignments() {
            let told = memory.told.get(id).copied();
            if told != Some(assignment.state) {
                let what = format!("{} is {} and was told to be {told:?}", short(*id), assignment.state);
                return Err(Violation::of(Check::OnlyLegalTransitions, &name, what));
            }
        }
        let accepted = machine.device.accepted().map(|accepted| (accepted.version, accepted.body));
        let version = accepted.map_or(0, |(version, _)| version);
        if version < memory.version {
            let what = format!("version {} was accepted, and then {version}", memory.version);
            return Err(Violation::of(Check::VersionNeverGoesBack, &name, what));
        }
        if version > memory.version {
            memory.polls_to_accept = memory.polls;
            lines.push(format!("accepts version {version}"));
        }
        memory.version = version;
        if let Some((version, body)) = accepted
            && self.published[at].manifests.get(&body) != Some(&version)
        {
            let what = format!("version {version} with body {body} was never published");
            return Err(Violation::of(Check::AcceptedWasPublished, &name, what));
        }
        for line in lines {
            self.tell(Some(at), line);
        }
        for (id, orders, applied) in installed {
            self.check_version(at, id, &orders, applied)?;
        }
        for id in removals {
            self.check_removal(at, id)?;
        }
        self.check_holds(at)
    }

    /// Asked when something is newly said to be installed; `applied` where that is the end of work, and not of a look.
    fn check_version(
        &self,
        at: usize,
        id: AssignmentId,
        orders: &[Order],
        applied: bool,
    ) -> Result<(), Violation> {
        let machine = &self.machines[at];
        let assignment = machine.device.assignments().get(&id);
        let Some(assignment) = assignment.filter(|assignment| assignment.state == State::Installed) else {
            return Ok(());
        };
        if orders.is_empty() {
            // Its document is lost, so nobody knows what should run.
            return Ok(());
        }
        // What only an overtaken document had is known once a look has found it, and goes then. Whatever is found well was worked on
        // before, and what is left of that goes next.
        let given_up = assignment.given_up.as_ref().map(|given_up| given_up.document);
        let documents = [assignment.good, given_up].into_iter().flatten();
        let readings = documents.filter_map(|document| machine.device.reading(&document)?.as_ref().ok());
        let was_in_one = readings.flat_map(Order::of).map(|order| order.component);
        let seen = machine.device.seen().iter().filter(|seen| seen.assignment == id);
        let known: BTreeSet<_> = was_in_one.chain(seen.map(|seen| seen.component.clone())).collect();
        let of =
            |container: &&Container| container.assignment == id && container.runs() && !container.by_hand;
        for container in machine.engine.containers().iter().filter(of) {
            let component = &container.component;
            let is_right = match orders.iter().find(|order| order.component == *component) {
                Some(order) => container.fingerprint == Some(order.fingerprint()),
                None => !applied || !known.contains(component),
            };
            if !is_right && !machine.memory.deceived.contains(&(id, component.clone())) {
                let what = format!("{} is installed, and {component} of another version runs", short(id));
                return Err(Violation::of(Check::NeverTwoVersions, &machine.name, what));
            }
        }
        Ok(())
    }

    /// Asked after everything that the engine did because the agent wanted it; `touched` are containers that were
    /// stopped, and whether they were well.
    pub(super) fn check_touched(
        &mut self,
        at: usize,
        touched: Vec<(Container, bool)>,
    ) -> Result<(), Violation> {
        let machine = &self.machines[at];
        for (container, was_well) in touched {
            let assignment = machine.device.assignments().get(&container.assignment);
            let Some(assignment) = assignment.filter(|a| was_well && a.state != State::Deleting) else {
                continue;
            };
            // What an update has not touched yet is lived by, up to the way back from it.
            let reading = assignment.here().aim().and_then(|aim| machine.device.reading(&aim));
            let Some(Ok(workload)) = reading else { continue };
            let as_desired = |order: &Order| {
                order.component == container.component && Some(order.fingerprint()) == container.fingerprint
            };
            if Order::of(workload).iter().any(as_desired) {
                let what = format!(
                    "{}/{} was well and as desired, and was stopped",
                    short(container.assignment),
                    container.component
                );
                return Err(Violation::of(Check::AsDesiredIsLeftAlone, &machine.name, what));
            }
        }
        self.check_engine(at)
    }

    pub(super) fn check_engine(&mut self, at: usize) -> Result<(), Violation> {
        let machine = &mut self.machines[at];
        let orders = &self.published[at].orders;
        let mut running = BTreeSet::new();
        for container in machine.engine.containers() {
            let (id, component) = (short(container.assignment), &container.component);
            if !container.by_hand && !container.fingerprint.is_some_and(|print| orders.contains(&print)) {
                let what = format!("{id}/{component} is in no document that was published for this device");
                return Err(Violation::of(Check::NothingUnverifiedRuns, &machine.name, what));
            }
            if container.runs() && !running.insert((container.assignment, component.clone())) {
                let what = format!("{id}/{component} runs twice");
                return Err(Violation::of(Check::NeverTwoVersions, &machine.name, what));
            }
        }
        let memory = &mut machine.memory;
        for (key, content) in &machine.engine.volumes {
            memory.volumes.entry(key.clone()).or_insert(*content);
        }
        if let Some(((id, component), _)) =
            memory.volumes.iter().find(|(key, content)| machine.engine.volumes.get(*key) != Some(*content))
        {
            let what = format!("the volume of {}/{component} is gone", short(*id));
            return Err(Violation::of(Check::VolumesSurvive, &machine.name, what));
        }
        Ok(())
    }

    /// Asked after the server has tidied up: what a device has is not gone.
    async fn gone(&self, at: usize) -> Result<(), Violation> {
        let machine = &self.machines[at];
        let Some(server) = self.server.as_ref().filter(|_| machine.is_up() && self.pasts == 0) else {
            return Ok(());
        };
        let records = server.picture(&machine.client).await.map_err(broken)?;
        // Of what was never begun nothing is there.
        let is_there = |held: &Assignment| match held.state {
            State::Deleting | State::Deleted => false,
            State::Pending => held.is_touched(),
            _ => true,
        };
        let mut there = machine.device.assignments().iter().filter(|(_, held)| is_there(held));
        match there.find(|(id, _)| records.iter().all(|record| record.id != **id)) {
            Some((id, assignment)) => {
                let what =
                    format!("{} is {}, and the server says that it is gone", short(*id), assignment.state);
                Err(Violation::of(Check::PictureIsTheDevices, &machine.name, what))
            }
            None => Ok(()),
        }
    }

    pub(super) async fn check_gone(&self) -> Result<(), Violation> {
        for at in 0..self.machines.len() {
            self.gone(at).await?;
        }
        Ok(())
    }

    /// Asked after every report that reached the server.
    pub(super) async fn check_picture(&mut self, at: usize) -> Result<(), Violation> {
        let Some(server) = &self.server else { return Ok(()) };
        let machine = &mut self.machines[at];
        let records = server.picture(&machine.client).await.map_err(broken)?;
        let memory = &mut machine.memory;
        if memory.pictured_past != self.pasts {
            memory.pictured.clear();
            memory.pictured_past = self.pasts;
        }
        for record in records {
            let Some(observed) = record.observed else { continue };
            let Some(detail) = &observed.report.detail else { continue };
            let id = short(record.id);
            if !memory.made.contains(&Digest::of(&g2::status::write(&observed.report))) {
                let what =
                    format!("{id}: the server shows #{}, which the device never said", detail.sequence);
                return Err(Violation::of(Check::PictureIsTheDevices, &machine.name, what));
            }
            let shows = (observed.report.adopted_version, detail.life.unwrap_or(0), detail.sequence);
            let before = memory.pictured.insert(record.id, shows);
            if before.is_some_and(|before| before > shows) {
                let what =
                    format!("{id}: the server showed {before:?} and now {shows:?} (version, life, number)");
                return Err(Violation::of(Check::PictureNeverMovesBack, &machine.name, what));
            }
        }
        Ok(())
    }
}

/// A deliberate bug: what is installed is not said.
fn kept_back(sabotage: Option<Sabotage>, mut report: Report) -> Report {
    let keeps = sabotage == Some(Sabotage::KeepsTheDocumentBack);
    if let Some(detail) = report.detail.as_mut().filter(|detail| keeps && detail.state == State::Installed) {
        detail.document = None;
    }
    report
}
