//! What nobody sends and should be known all the same: that devices fell silent and are heard of again, and that the remote gives no
//! answer. Looked for on a timer, and told as events, so that pages follow it like everything else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use margrave_core::id::{ClientId, DeviceRef};
use margrave_core::moment::Moment;
use margrave_core::schedule::Schedule;
use margrave_core::silence::{Hearing, Up};
use margrave_store::{NewEvent, Silence, Store};

use super::client::Clients;
use super::event::time;
use super::schedule::is_excused;
use super::{Error, Fleet};

/// Until when the server was there, as it is written down.
const ALIVE: &str = "alive";
/// So often: what it lost by a crash it waits longer before it calls anybody silent.
const ALIVE_EVERY: Duration = Duration::from_secs(60);
/// Devices that are told of by name, each on its own timeline; more are one event.
const NAMED_MAX: usize = 5;
/// Sites that such an event names.
const SITES_MAX: usize = 3;
/// A remote that gives no answer for so long is no hiccup.
const AWAY_AFTER: Duration = Duration::from_secs(5 * 60);

const ACTOR: &str = "server";

/// What was last seen, and told.
pub(super) struct Heard {
    hearing: Hearing<ClientId>,
    /// That the remote is away.
    away_told: bool,
    alive_written: Moment,
}

impl Heard {
    /// As it is when the server is started.
    pub(super) fn new(silent: BTreeSet<ClientId>) -> Self {
        Heard { hearing: Hearing::new(silent), away_told: false, alive_written: Moment::default() }
    }
}

/// When a server that is started now was there. What it heard last tells it as well, where it could not write it down.
pub(super) async fn up(store: &Store, live: &Clients, now: Moment) -> Result<Up, Error> {
    let written = store.recall(ALIVE).await?.and_then(|text| String::from_utf8(text).ok());
    let written = written.and_then(|text| text.parse().ok()).map(Moment);
    Ok(Up::new(now, written.max(live.heard_last()).unwrap_or(now)))
}

impl Fleet {
    /// Devices that were not heard of since are silent.
    pub(super) fn silent_before(&self) -> Moment {
        self.up.silent_before(self.now(), self.options.silent_after)
    }

    /// Whether a device that was last heard of at `contact` is quiet as it was told to be. Hours in which the server was away
    /// itself are nobody's fault.
    pub(super) fn is_excused(&self, schedule: &Schedule, contact: Moment) -> bool {
        let excused = |contact, at| is_excused(schedule, contact, at, self.options.silent_after);
        let now = self.now();
        excused(contact, now) || (excused(contact, self.up.before) && excused(self.up.since, now))
    }

    /// Who counts as silent, by what is in memory and not only by what is written down: looking writes nothing.
    pub(super) fn silence(&self) -> Silence {
        let before = self.silent_before();
        let mut heard = self.live.heard_since(before);
        heard.extend(self.live.told.those(|client, schedule| {
            let contact = self.live.contact(client).unwrap_or_default();
            contact < before && self.is_excused(schedule, contact)
        }));
        Silence { before, heard }
    }

    /// Whether this client is silent, from memory alone.
    pub(super) fn is_silent(&self, client: &ClientId) -> bool {
        self.live.heard(client).is_some_and(|heard| self.is_silent_since(client, heard))
    }

    /// When a client was last heard of, if the store says that it was at `heard`.
    pub(super) fn heard_last(&self, client: &ClientId, heard: Moment) -> Moment {
        self.live.contact(client).map_or(heard, |contact| contact.max(heard))
    }

    /// Whether nothing was heard of a client for too long, as `DeviceRecord::condition` says it.
    pub(super) fn is_silent_since(&self, client: &ClientId, heard: Moment) -> bool {
        let heard = self.heard_last(client, heard);
        let told = self.live.told.of(client);
        heard < self.silent_before() && !told.is_some_and(|schedule| self.is_excused(&schedule, heard))
    }

    /// The clients that are silent, from memory alone.
    pub(super) fn silent(&self) -> BTreeSet<ClientId> {
        let quiet = self.live.quiet_since(self.silent_before()).into_iter();
        let silent = quiet.filter(|(client, contact)| {
            let told = self.live.told.of(client);
            !told.is_some_and(|schedule| self.is_excused(&schedule, *contact))
        });
        silent.map(|(client, _)| client).collect()
    }

    /// Tells what nobody sends; called on a timer.
    pub(crate) async fn listen(&self) -> Result<(), Error> {
        let mut heard = self.heard.lock().await;
        let now = self.now();
        let before = self.silent_before();
        heard.hearing.look(self.silent(), |client| self.live.contact(client) >= Some(before));
        if let Some(news) = heard.hearing.due(now).cloned() {
            self.tell("device.silent", "fell silent", news.fell).await?;
            self.tell("device.heard", "heard of again", news.returned).await?;
            heard.hearing.told(now);
        }
        let away = self.intent_away();
        if away.is_some() != heard.away_told {
            let url = self.desired.following().map(|following| following.follow.url.clone());
            let url = url.unwrap_or_default();
            let event = match &away {
                Some((since, why)) => {
                    let text = format!("{url} does not answer since {}: {why}", time(*since));
                    NewEvent::new(now, "intent.away", ACTOR, text)
                }
                None => NewEvent::new(now, "intent.back", ACTOR, format!("{url} answers again")),
            };
            self.store.note(event).await?;
            heard.away_told = away.is_some();
        }
        if now.since(heard.alive_written) >= ALIVE_EVERY || now < heard.alive_written {
            self.is_alive().await?;
            heard.alive_written = now;
        }
        Ok(())
    }

    /// Writes down that the server is there; called before it stops as well.
    pub(crate) async fn is_alive(&self) -> Result<(), Error> {
        Ok(self.store.remember(ALIVE, self.now().0.to_string().into_bytes()).await?)
    }

    /// Since when the remote gives no answer, and why not, once that is more than a hiccup.
    pub(crate) fn intent_away(&self) -> Option<(Moment, String)> {
        let away = self.desired.following().and_then(|following| following.away());
        away.filter(|(since, _)| self.now().since(*since) >= AWAY_AFTER)
    }

    /// What is wrong with the repository of what is wanted, for whoever measures: each word, and whether it is so.
    pub(crate) fn intent_wrong(&self) -> [(&'static str, bool); 3] {
        let flawed = self.desired.following().is_some_and(|following| !following.flaws().is_empty());
        [
            ("away", self.intent_away().is_some()),
            ("flawed", flawed),
            ("held", self.desired.conflict().is_some()),
        ]
    }

    async fn tell(&self, kind: &'static str, became: &str, clients: BTreeSet<ClientId>) -> Result<(), Error> {
        if clients.is_empty() {
            return Ok(());
        }
        let now = self.now();
        let devices = self.store.devices_through(clients.into_iter().collect()).await?;
        if devices.len() > NAMED_MAX {
            return Ok(self.store.note(NewEvent::new(now, kind, ACTOR, together(became, &devices))).await?);
        }
        for (device, _) in devices {
            let contact = self.live.contact(&device.client);
            let text = match (kind, contact) {
                ("device.silent", Some(contact)) => {
                    format!("{device} fell silent: it was last heard of at {}", time(contact))
                }
                ("device.silent", None) => format!("{device} fell silent: it joined and was never heard of"),
                _ => format!("{device} is {became}"),
            };
            self.store.note(NewEvent::new(now, kind, ACTOR, text).device(&device)).await?;
        }
        Ok(())
    }
}

/// What became of many devices, and where those are.
fn together(became: &str, devices: &[(DeviceRef, Option<String>)]) -> String {
    let mut sites: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for (_, site) in devices {
        *sites.entry(site.as_deref()).or_default() += 1;
    }
    let mut sites: Vec<(Option<&str>, usize)> = sites.into_iter().collect();
    sites.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let became = if became.starts_with("fell") { became.to_owned() } else { format!("are {became}") };
    let told = format!("{} devices {became}", devices.len());
    if let [(None, _)] = sites[..] {
        return told;
    }
    let others = sites.split_off(sites.len().min(SITES_MAX));
    let mut places: Vec<String> = sites
        .iter()
        .map(|(site, count)| match site {
            Some(site) => format!("{count} at site {site}"),
            None => format!("{count} without a site"),
        })
        .collect();
    if !others.is_empty() {
        let count: usize = others.iter().map(|(_, count)| count).sum();
        let noun = if others.len() == 1 { "1 other".to_owned() } else { format!("{} others", others.len()) };
        places.push(format!("{count} at {noun}"));
    }
    format!("{told}: {}", places.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_told_together_with_where_they_are() {
        let told = |became: &str, sites: &[(&str, usize)]| {
            let devices: Vec<(DeviceRef, Option<String>)> = sites
                .iter()
                .flat_map(|(site, count)| (0..*count).map(move |number| (*site, number)))
                .map(|(site, number)| {
                    let name = DeviceRef::parse(&format!("d-{number}")).unwrap();
                    (name, Some(site.to_owned()).filter(|site| !site.is_empty()))
                })
                .collect();
            together(became, &devices)
        };
        assert_eq!(told("fell silent", &[("", 7)]), "7 devices fell silent");
        assert_eq!(told("fell silent", &[("nord", 7)]), "7 devices fell silent: 7 at site nord");
        assert_eq!(
            told("heard of again", &[("nord", 2), ("", 1), ("sued", 9)]),
            "12 devices are heard of again: 9 at site sued, 2 at site nord, 1 without a site"
        );
        assert_eq!(
            told("fell silent", &[("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]),
            "15 devices fell silent: 5 at site e, 4 at site d, 3 at site c, 3 at 2 others"
        );
    }
}
