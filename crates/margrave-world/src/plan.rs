//! What a seed has in store: how large its world is, how bad its weather, and what happens when.

use std::time::Duration;

use crate::dice::Dice;
use crate::engine::Hand;
use crate::server::DEVICES_MAX;

/// How often small things go wrong, per message, write and act.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rates {
    pub(crate) request_lost: f64,
    pub(crate) answer_lost: f64,
    pub(crate) delayed: f64,
    pub(crate) duplicated: f64,
    pub(crate) cut: f64,
    pub(crate) corrupted: f64,
    pub(crate) replayed: f64,
    /// Per write of the ledger, and per step around it.
    pub(crate) killed: f64,
    pub(crate) act_failed: f64,
    pub(crate) act_hung: f64,
    pub(crate) said_done: f64,
    pub(crate) said_failed: f64,
    pub(crate) looked_wrong: f64,
    /// Per download: it takes minutes.
    pub(crate) pull_slow: f64,
    /// Per download: what came is not sound.
    pub(crate) archive_bad: f64,
}

/// What happens once, at a time, and how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Incident {
    Outage(Duration),
    ServerRestart(Duration),
    Backup,
    /// Whether the server is told that it was restored.
    Restore(Duration, bool),
    EngineAway(Duration),
    DiskFull(Duration),
    /// Milliseconds forwards or back.
    ClockJump(i64),
    /// The clock starts where clocks without a battery start.
    ClockLost,
    /// The certificate ends now, and nobody renews it for so long.
    Expiry(Duration),
    Kill,
    PowerCut(Duration),
    DamageDocument,
    /// The agent is replaced by one that understands more.
    Replace,
    Hand(Hand, usize),
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) devices: usize,
    /// How long things go wrong.
    pub(crate) life: Duration,
    /// When operators want something else.
    pub(crate) acts: Vec<Duration>,
    /// When operators choose other times to talk and to change.
    pub(crate) timetables: Vec<Duration>,
    /// When somebody at a device holds changes back, or lets them go on.
    pub(crate) holders: Vec<(Duration, usize)>,
    pub(crate) rates: Rates,
    pub(crate) incidents: Vec<(Duration, usize, Incident)>,
    /// Whether each device lets the server hold its polls.
    pub(crate) patient: Vec<bool>,
    /// Whether each device's agent is too old for some of what is wanted; operators want such things where any is.
    pub(crate) dated: Vec<bool>,
    /// Whether operators give what is new to one device after the other.
    pub(crate) careful: bool,
    pub(crate) weather: &'static str,
}

/// Which kinds of faults a seed has; some have all, and some have none, so that each is also seen alone.
#[derive(Debug, Clone, Copy)]
struct Weather {
    name: &'static str,
    network: bool,
    crashes: bool,
    runtime: bool,
    clocks: bool,
    server: bool,
    /// Downloads take minutes, and operators do not wait for them: two versions matter at the same time, or three.
    slow: bool,
}

impl Weather {
    const fn slow(self) -> Weather {
        Weather { slow: true, ..self }
    }
}

const fn weather(
    name: &'static str,
    network: bool,
    crashes: bool,
    runtime: bool,
    clocks: bool,
    server: bool,
) -> Weather {
    Weather { name, network, crashes, runtime, clocks, server, slow: false }
}

const WEATHERS: [Weather; 11] = [
    weather("calm", false, false, false, false, false),
    weather("bad line", true, false, false, false, false),
    weather("crashes", false, true, false, false, false),
    weather("bad engine", false, false, true, false, false),
    weather("bad clocks", true, false, false, true, false),
    weather("bad server", true, false, false, false, true),
    weather("bad site", true, true, false, true, false),
    weather("slow downloads", false, false, true, false, false).slow(),
    weather("everything", true, true, true, true, true),
    weather("everything", true, true, true, true, true),
    weather("everything, slowly", true, true, true, true, true).slow(),
];

impl Plan {
    pub(crate) fn of(dice: &mut Dice) -> Plan {
        let weather = dice.pick(&WEATHERS);
        let devices = 1 + dice.below(DEVICES_MAX);
        let life = dice.seconds(10 * 60, 45 * 60);
        let count = (3 + dice.below(5)) * if weather.slow { 2 } else { 1 };
        let mut acts: Vec<Duration> = (0..count).map(|_| life.mul_f64(dice.roll() * 0.95)).collect();
        // Something is wanted from early on.
        acts.push(Duration::from_secs(5));
        acts.sort();
        let force = dice.pick(&[0.3, 1.0, 1.0, 3.0]);
        let mut rates = rates(weather, dice, force);
        let mut incidents = incidents(weather, dice, force, life, devices);
        incidents.sort_by_key(|(at, ..)| *at);
        let patient = (0..devices).map(|_| dice.hit(0.5)).collect();
        // In half of all worlds nobody cares about times, so that everything else happens as closely as it can.
        let (timetables, holders) = match dice.below(4) {
            0 => (moments(dice, life, 1, 5), vec![]),
            1 => (moments(dice, life, 0, 3), held(dice, life, devices)),
            _ => (vec![], vec![]),
        };
        let careful = dice.hit(0.4);
        let is_strange = dice.hit(0.25);
        let dated: Vec<bool> = (0..devices).map(|_| is_strange && dice.hit(0.7)).collect();
        if is_strange {
            rates.archive_bad = dice.roll() * 0.05;
            let replaced = (0..devices).filter(|_| dice.hit(0.6)).collect::<Vec<_>>();
            incidents
                .extend(replaced.into_iter().map(|at| (life.mul_f64(dice.roll()), at, Incident::Replace)));
            incidents.sort_by_key(|(at, ..)| *at);
        }
        Plan {
            devices,
            life,
            acts,
            timetables,
            holders,
            rates,
            incidents,
            patient,
            dated,
            careful,
            weather: weather.name,
        }
    }

    /// Whether the server is to be restored without being told so.
    pub(crate) fn goes_back_unsaid(&self) -> bool {
        self.incidents.iter().any(|(.., incident)| matches!(incident, Incident::Restore(_, false)))
    }
}

fn moments(dice: &mut Dice, life: Duration, least: usize, most: usize) -> Vec<Duration> {
    let count = least + dice.below(most - least + 1);
    (0..count).map(|_| life.mul_f64(dice.roll() * 0.9)).collect()
}

fn held(dice: &mut Dice, life: Duration, devices: usize) -> Vec<(Duration, usize)> {
    let count = 2 + dice.below(12);
    (0..count).map(|_| (life.mul_f64(dice.roll()), dice.below(devices))).collect()
}

fn rates(weather: Weather, dice: &mut Dice, force: f64) -> Rates {
    let mut rates = Rates::default();
    let mut rate = |most: f64| (dice.roll() * most * force).min(0.5);
    if weather.network {
        rates.request_lost = rate(0.08);
        rates.answer_lost = rate(0.08);
        rates.delayed = rate(0.1);
        rates.duplicated = rate(0.1);
        rates.cut = rate(0.05);
        rates.corrupted = rate(0.05);
        rates.replayed = rate(0.1);
    }
    if weather.crashes {
        rates.killed = rate(0.01);
    }
    if weather.runtime {
        rates.act_failed = rate(0.15);
        rates.act_hung = rate(0.03);
        rates.said_done = rate(0.05);
        rates.said_failed = rate(0.05);
        rates.looked_wrong = rate(0.02);
    }
    if weather.slow {
        rates.pull_slow = 0.5;
    }
    rates
}

fn incidents(
    weather: Weather,
    dice: &mut Dice,
    force: f64,
    life: Duration,
    devices: usize,
) -> Vec<(Duration, usize, Incident)> {
    let mut planned = vec![];
    let mut some = |dice: &mut Dice, most: f64, make: &mut dyn FnMut(&mut Dice) -> Incident| {
        let count = (dice.roll() * most * force.min(2.0)).round() as usize;
        for _ in 0..count {
            let at = life.mul_f64(dice.roll());
            let device = dice.below(devices);
            let incident = make(dice);
            planned.push((at, device, incident));
        }
    };
    if weather.network {
        some(dice, 3.0, &mut |dice| Incident::Outage(dice.seconds(30, 1800)));
        some(dice, 1.5, &mut |dice| Incident::Expiry(dice.seconds(60, 1800)));
    }
    if weather.crashes {
        some(dice, 4.0, &mut |_| Incident::Kill);
        some(dice, 2.0, &mut |_| Incident::DamageDocument);
        some(dice, 1.5, &mut |dice| Incident::DiskFull(dice.seconds(10, 600)));
        some(dice, 3.0, &mut |dice| Incident::PowerCut(dice.seconds(5, 600)));
    }
    if weather.runtime {
        some(dice, 2.0, &mut |dice| Incident::EngineAway(dice.seconds(5, 900)));
        let hands = [Hand::Kill, Hand::Remove, Hand::Change, Hand::Add, Hand::MakeIll];
        some(dice, 5.0, &mut |dice| Incident::Hand(dice.pick(&hands), dice.below(8)));
    }
    if weather.clocks {
        some(dice, 4.0, &mut |dice| match dice.below(4) {
            0 => Incident::ClockLost,
            1 => Incident::ClockJump(-i64::try_from(dice.seconds(60, 200_000).as_millis()).unwrap_or(0)),
            _ => Incident::ClockJump(i64::try_from(dice.seconds(60, 200_000).as_millis()).unwrap_or(0)),
        });
    }
    if weather.server {
        some(dice, 3.0, &mut |dice| Incident::ServerRestart(dice.seconds(1, 600)));
        some(dice, 3.0, &mut |_| Incident::Backup);
        some(dice, 1.6, &mut |dice| Incident::Restore(dice.seconds(1, 600), dice.hit(0.75)));
    }
    planned
}
