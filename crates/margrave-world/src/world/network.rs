//! The way between devices and the server: loses, delays, repeats, reorders, cuts and corrupts.
//!
//! Bytes are only corrupted on the way to a device. On the way to the server TLS would notice, and a request that was
//! noticed to be damaged is a lost one.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use margrave_core::device::{Action, Event, Polled, Trouble};
use margrave_core::digest::Digest;
use margrave_core::manifest::Manifest;
use margrave_core::schedule::Schedule;
use margrave_wire::g2;

use super::shell::misread;
use super::{Happening, Hold, Leg, World, broken};
use crate::check::Violation;
use crate::fault::Fault;
use crate::sabotage::Sabotage;
use crate::server::{look, read};
use crate::upstream::{Ask, Reply, accepted, read_poll};

/// How long a device waits for an answer beyond what it offered to.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a message is on its way, where nothing goes wrong.
const LATENCY_MIN: Duration = Duration::from_millis(5);
pub(super) const LATENCY_MAX: Duration = Duration::from_millis(200);

impl World {
    fn latency(&mut self) -> Duration {
        if self.dice.hit(self.rates.delayed) {
            self.tally.note(Fault::Delayed);
            return self.dice.millis(1000, 90_000);
        }
        self.dice.between(LATENCY_MIN, LATENCY_MAX)
    }

    /// A device asks the server something.
    pub(super) fn send(&mut self, at: usize, ticket: u64, ask: Ask) {
        let machine = &mut self.machines[at];
        machine.exchange += 1;
        let exchange = machine.exchange;
        let leg = Leg { device: at, life: machine.life, ticket, exchange };
        machine.under_way.get_mut(&ticket).expect("it is under way").exchange = exchange;
        if machine.expired {
            let answer = Err("the certificate expired; the server is not called (ID-187)".to_owned());
            return self.after(Duration::from_millis(1), Happening::Answer { leg, answer });
        }
        self.after(PATIENCE + ask.wait, Happening::GiveUp { leg });
        if self.machines[at].outage_until > self.now {
            let pause = self.dice.millis(5, 3000);
            let answer = Err("no way to the server".to_owned());
            return self.after(pause, Happening::Answer { leg, answer });
        }
        if self.dice.hit(self.rates.duplicated) {
            self.tally.note(Fault::Duplicated);
            let pause = self.dice.millis(10, 240_000);
            self.after(pause, Happening::Arrive { leg, ask: ask.clone(), echo: true });
        }
        if self.dice.hit(self.rates.request_lost) {
            self.tally.note(Fault::RequestLost);
            return;
        }
        let pause = self.latency();
        self.after(pause, Happening::Arrive { leg, ask, echo: false });
    }

    /// A request reaches the server.
    pub(super) async fn arrive(&mut self, leg: Leg, mut ask: Ask, echo: bool) -> Result<(), Violation> {
        let machine = &mut self.machines[leg.device];
        let client = machine.client.clone();
        let is_waited_for = machine.is(leg.life) && machine.open(leg.ticket, leg.exchange).is_some();
        if !is_waited_for {
            self.tally.note(Fault::Late);
        }
        if echo && self.sabotage == Some(Sabotage::LateReportRenumbered) && ask.is_report() {
            renumber(&mut ask);
        }
        let Some(server) = &self.server else {
            let answer = Err("the server is down".to_owned());
            if !echo {
                self.after(Duration::from_millis(20), Happening::Answer { leg, answer });
            }
            return Ok(());
        };
        match server.ask(&client, &ask).await {
            Ok(reply) => {
                let again = if echo { "again: " } else { "" };
                let what = shortened(&ask.path);
                let line = format!("{again}{} {what} of {client}: {}", ask.method, reply.status);
                match reply.status {
                    StatusCode::NOT_MODIFIED => self.story.murmur(self.now, "server", line),
                    _ => self.story.tell(self.now, "server", line),
                }
                self.after_server().await?;
                if ask.is_report() {
                    self.check_picture(leg.device).await?;
                    if let Some(detail) = g2::status::read(&ask.body).ok().and_then(|report| report.detail) {
                        self.machines[leg.device].memory.heard.push(detail.sequence);
                    }
                }
                if !echo {
                    self.reply(leg, reply, ask.is_poll())?;
                }
            }
            // Whoever holds a line that nobody listens on any more finds out in the end.
            Err(held) if is_waited_for && !echo => {
                self.holds.push(Hold { leg, held });
                self.after(ask.wait, Happening::HoldOver { leg });
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// The time is up for which the server may hold a poll.
    pub(super) async fn hold_over(&mut self, leg: Leg) -> Result<(), Violation> {
        if self.holds.iter().any(|hold| hold.leg == leg) {
            let client = self.machines[leg.device].client.clone();
            if let Some(server) = &self.server {
                server.fleet.release_held(&client);
            }
        }
        self.after_server().await
    }

    /// The server did something: what it published is noted, and whoever waited for it hears.
    pub(super) async fn after_server(&mut self) -> Result<(), Violation> {
        self.note_published().await?;
        let mut at = 0;
        while at < self.holds.len() {
            match look(&mut self.holds[at].held) {
                Some(response) => {
                    let Hold { leg, .. } = self.holds.remove(at);
                    let reply = read(response).await;
                    let client = &self.machines[leg.device].client;
                    self.story.tell(
                        self.now,
                        "server",
                        format_args!("lets go of the poll of {client}: {}", reply.status),
                    );
                    self.reply(leg, reply, true)?;
                }
                None => at += 1,
            }
        }
        Ok(())
    }

    /// An answer goes back.
    fn reply(&mut self, leg: Leg, mut reply: Reply, is_poll: bool) -> Result<(), Violation> {
        if self.sabotage == Some(Sabotage::ServerFails) && self.dice.hit(0.01) {
            reply.status = StatusCode::INTERNAL_SERVER_ERROR;
        }
        if reply.status.is_server_error() {
            return Err(broken(format!("answered {}: {:?}", reply.status, reply.body)));
        }
        let machine = &mut self.machines[leg.device];
        if is_poll && reply.status == StatusCode::OK {
            machine.history.push(reply.clone());
        }
        if self.dice.hit(self.rates.answer_lost) {
            self.tally.note(Fault::AnswerLost);
            return Ok(());
        }
        let pause = self.latency();
        if self.dice.hit(self.rates.cut) {
            self.tally.note(Fault::Cut);
            let answer = Err("the answer was cut".to_owned());
            self.after(pause, Happening::Answer { leg, answer });
            return Ok(());
        }
        if self.dice.hit(self.rates.corrupted) && !reply.body.is_empty() {
            self.tally.note(Fault::Corrupted);
            let mut bytes = reply.body.to_vec();
            let at = self.dice.below(bytes.len());
            match self.dice.hit(0.3) {
                true => bytes.truncate(at),
                false => bytes[at] ^= 1 << self.dice.below(8),
            }
            reply.body = bytes.into();
        }
        let history = &self.machines[leg.device].history;
        if is_poll && !history.is_empty() && self.dice.hit(self.rates.replayed) {
            self.tally.note(Fault::Replayed);
            reply = history[self.dice.below(history.len())].clone();
            if self.sabotage == Some(Sabotage::ReplayRenumbered) {
                forge(&mut reply);
            }
            self.tell(Some(leg.device), "an old manifest is replayed to it");
        }
        self.after(pause, Happening::Answer { leg, answer: Ok(reply) });
        Ok(())
    }

    /// An answer reaches the device.
    pub(super) fn answered(&mut self, leg: Leg, answer: Result<Reply, String>) -> Result<(), Violation> {
        let Leg { device: at, life, ticket, exchange } = leg;
        let machine = &mut self.machines[at];
        if !machine.is(life) || machine.outage_until > self.now && answer.is_ok() {
            return Ok(());
        }
        let was_away = machine.device.contact().1.is_some();
        let Some(doing) = machine.under_way.get_mut(&ticket).filter(|doing| doing.exchange == exchange)
        else {
            return Ok(());
        };
        let reply = match answer {
            Ok(reply) => reply,
            Err(why) => {
                let event = doing.action.undone(&why, margrave_core::report::FailureCode::PullFailed);
                let event = self.forge_refusal(at, event);
                return self.finish(at, ticket, event);
            }
        };
        machine.memory.polls += u64::from(matches!(doing.action, Action::Poll { .. }));
        let event = match &doing.action {
            Action::SendCapabilities => {
                let digest = Digest::of(&machine.own.body);
                Event::CapabilitiesSent(accepted(&reply).map(|()| digest))
            }
            Action::Poll { held, .. } => {
                let polled = read_poll(&reply, *held, &mut machine.urls);
                Event::Polled(polled.map(|polled| overheard(self.sabotage, polled)))
            }
            Action::Fetch(_) => {
                let mut fetch = doing.fetch.take().unwrap_or_else(|| unreachable!("a fetch has its plan"));
                match fetch.take(&reply) {
                    Err(trouble) => Event::Fetched(Err(trouble)),
                    Ok(()) => match fetch.next(&machine.urls) {
                        Some(ask) => {
                            doing.fetch = Some(fetch);
                            self.send(at, ticket, ask);
                            return Ok(());
                        }
                        None => {
                            let sabotage = self.sabotage;
                            let read = |(id, document)| {
                                let reading = machine.own.read(id, &document);
                                (document, reading.map(|said| misread(sabotage, said)))
                            };
                            Event::Fetched(Ok(fetch.got().into_iter().map(read).collect()))
                        }
                    },
                }
            }
            Action::Send(report) => {
                let sequence = report.detail.as_ref().map_or(0, |detail| detail.sequence);
                Event::Sent { sequence, result: accepted(&reply) }
            }
            Action::Observe | Action::Prefetch(_) | Action::Apply(_) | Action::Remove { .. } => {
                unreachable!("the server is not asked for that")
            }
        };
        let event = self.forge_refusal(at, event);
        if was_away && self.sabotage == Some(Sabotage::RestartsOnReconnect) {
            let touched = self.machines[at].engine.restart_all(self.now);
            self.check_touched(at, touched)?;
        }
        self.finish(at, ticket, event)
    }

    /// The device has waited long enough.
    pub(super) fn give_up(&mut self, leg: Leg) -> Result<(), Violation> {
        let machine = &mut self.machines[leg.device];
        if !machine.is(leg.life) {
            return Ok(());
        }
        let Some(doing) = machine.open(leg.ticket, leg.exchange) else { return Ok(()) };
        let event = doing.action.undone("no answer in time", margrave_core::report::FailureCode::PullFailed);
        self.holds.retain(|hold| hold.leg != leg);
        self.finish(leg.device, leg.ticket, event)
    }

    /// A deliberate bug: nothing to be had means that nothing is wanted.
    fn forge_refusal(&self, at: usize, event: Event) -> Event {
        let accepted = self.machines[at].device.accepted();
        match (&event, accepted, self.sabotage) {
            (Event::Polled(Err(Trouble { .. })), Some(accepted), Some(Sabotage::RefusalDeletes)) => {
                let manifest = Manifest::new(accepted.version + 1, None, vec![])
                    .unwrap_or_else(|_| unreachable!("an empty manifest is one"));
                Event::Polled(Ok(Polled::Manifest {
                    manifest,
                    body: Digest::of(b"refused"),
                    held_open: false,
                }))
            }
            _ => event,
        }
    }
}

/// A deliberate bug: that drift is to be left is not understood.
fn overheard(sabotage: Option<Sabotage>, polled: Polled) -> Polled {
    match polled {
        Polled::Manifest { manifest, body, held_open } if sabotage == Some(Sabotage::RepairsAnyway) => {
            let schedule = Schedule { leaves_drift: false, ..manifest.schedule().clone() };
            Polled::Manifest { manifest: manifest.with_schedule(schedule), body, held_open }
        }
        other => other,
    }
}

/// A path without what makes it long.
fn shortened(path: &str) -> &str {
    path.strip_prefix("/api/v1/").map_or(path, |rest| &rest[..rest.len().min(24)])
}

/// A deliberate bug: the same manifest under a number that is above all others.
fn forge(reply: &mut Reply) {
    let Ok(listing) = g2::manifest::read(&reply.body) else { return };
    let manifest = listing.manifest;
    let Ok(higher) = Manifest::new(manifest.version() + 100, manifest.bundle(), manifest.entries().to_vec())
    else {
        return;
    };
    let body = g2::manifest::write(&higher);
    let tag = g2::validator::tag(&Digest::of(&body));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        reply.headers.insert(header::ETAG, tag);
    }
    reply.body = Bytes::from(body);
}

/// A deliberate bug: a report that was sent before, as if it were the newest.
fn renumber(ask: &mut Ask) {
    let Ok(mut report) = g2::status::read(&ask.body) else { return };
    if let Some(detail) = &mut report.detail {
        detail.sequence += 1000;
    }
    ask.body = g2::status::write(&report).into();
}
