//! One deployment on this device: where it stands, and what it wants.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::id::ComponentName;
use crate::lifecycle::{Reported, State};
use crate::moment::Moment;
use crate::report::{Awaited, Failure, FailureCode};

/// Durable. What runs is observed and never remembered here; this is what was meant and how it went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub state: State,
    pub since: Moment,
    /// The document that should run; `None` once the manifest no longer lists it.
    pub wanted: Option<Digest>,
    /// The document that is being applied, or was last.
    pub held: Option<Digest>,
    /// The manifest version at which `held` was taken up (MI-G2-104).
    pub adopted_version: u64,
    /// The last document that was healthy, and stayed so for a while.
    pub good: Option<Digest>,
    /// The document that was tried and given up, for as long as this device lives by what it went back to; not tried again
    /// before the manifest's entry changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<GivenUp>,
    /// One per component of `held`, in its order.
    pub components: Vec<Progress>,
    /// How often `held` has been tried since it was taken up.
    pub attempt: u32,
    /// How often `held` failed after its containers were touched.
    #[serde(default)]
    pub strikes: u32,
    /// It stayed well since it was tried last; only kept where tries are counted to an end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proven: bool,
    /// Containers of `held` were begun with.
    #[serde(default)]
    pub touched: bool,
    /// Not before what began last.
    #[serde(skip)]
    pub touched_first: bool,
    /// What is here while nothing of `held` was touched, as it was when `held` was taken up and became since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beneath: Option<Box<Assignment>>,
    /// What was told to be wrong with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ailment: Option<Failure>,
    /// Containers were begun with, of whatever document: only then there may be something to remove. An older agent did not
    /// write that down.
    #[serde(default = "perhaps")]
    pub begun: bool,
    /// Its containers are being touched, and how that went is not known yet.
    #[serde(default)]
    pub applying: bool,
    /// How often the device went down in the middle of that.
    #[serde(default)]
    pub falls: u32,
    /// It went down, and nothing failed since: what does so next failed for that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fell: bool,
    /// How often it got sick without having been well for long.
    #[serde(default)]
    pub relapses: u32,
    pub next_try: Option<Moment>,
    pub failure: Option<Failure>,
    /// Why what is wanted has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaited: Option<Awaited>,
    /// A document of which everything is on this device already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Digest>,

    /// What was fetched while the change waits. Only what failed and its pause are durable: what is here is asked again.
    #[serde(default, skip_serializing_if = "is_untroubled")]
    pub ahead: Option<Ahead>,
    /// Since when an installed assignment has looked unhealthy; not durable, a reboot starts the grace anew.
    #[serde(skip)]
    pub unhealthy_since: Option<Moment>,
    /// Since when something of it did not run, or was not what was ordered.
    #[serde(skip)]
    pub down_since: Option<Moment>,
    /// Since when every look found something of an installed assignment starting, and nothing sick.
    #[serde(skip)]
    pub starting_since: Option<Moment>,
    /// Since when every look found an installed assignment well, and how many did; not durable, what nobody saw does
    /// not count.
    #[serde(skip)]
    pub well: Option<(Moment, u32)>,
    /// When work on it last ended, in ticks of this process; older observations say nothing about it.
    #[serde(skip)]
    pub worked_at: u64,
    /// When a report was last made for nothing but how often it was brought back; not durable, a start may tell it once more.
    #[serde(skip)]
    pub restarts_told: Option<Moment>,
    /// Components that were removed since the document was taken up; removing one twice does no harm.
    #[serde(skip)]
    pub cleared: BTreeSet<ComponentName>,
    /// A component that is in no document and was to go: why it did not, if so. Told with the next report.
    #[serde(skip)]
    pub stray: Option<(ComponentName, Option<Failure>)>,
    /// Components that could not be removed since the last pause: the others are tried before them.
    #[serde(skip)]
    pub stuck: BTreeSet<ComponentName>,
}

fn perhaps() -> bool {
    true
}

/// Flash wears out: of what goes well there is nothing to write down before it is everything.
fn is_untroubled(ahead: &Option<Ahead>) -> bool {
    ahead.as_ref().is_none_or(|ahead| ahead.trouble.is_none())
}

/// What was fetched of a document that may not be applied yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    pub document: Digest,
    #[serde(skip)]
    pub fetched: BTreeSet<ComponentName>,
    pub failures: u32,
    pub next: Moment,
    pub trouble: Option<String>,
}

/// A document that this device does not try any more, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    pub document: Digest,
    pub failure: Failure,
    /// It was not even tried, because this device could not use it then; an older agent did not write that down.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub name: ComponentName,
    pub state: Reported,
    pub failure: Option<Failure>,
    /// Everything it needs is on this device; not durable, asking again is cheap.
    #[serde(skip)]
    pub fetched: bool,
    /// How often it was told to have been brought back since it was started; 0 where nothing was told.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub restarts: u32,
}

fn is_none_yet(number: &u32) -> bool {
    *number == 0
}

impl Progress {
    /// Of a component that is to go.
    pub fn removing(name: &ComponentName) -> Progress {
        Progress { name: name.clone(), state: Reported::Removing, failure: None, fetched: false, restarts: 0 }
    }
}

impl Assignment {
    pub fn new(wanted: Option<Digest>, version: u64, now: Moment) -> Self {
        Assignment {
            state: State::Pending,
            since: now,
            wanted,
            held: None,
            adopted_version: version,
            good: None,
            given_up: None,
            components: vec![],
            attempt: 0,
            strikes: 0,
            proven: false,
            touched: false,
            touched_first: false,
            beneath: None,
            ailment: None,
            begun: false,
            applying: false,
            falls: 0,
            fell: false,
            relapses: 0,
            next_try: None,
            failure: None,
            waiting: None,
            awaited: None,
            ready: None,
            ahead: None,
            unhealthy_since: None,
            starting_since: None,
            down_since: None,
            well: None,
            worked_at: 0,
            restarts_told: None,
            cleared: BTreeSet::new(),
            stray: None,
            stuck: BTreeSet::new(),
        }
    }

    /// The document that should run in the end: the wanted one, or the last good one where that was given up.
    pub fn goal(&self) -> Option<Digest> {
        self.gave_up().and(self.good).or(self.wanted)
    }

    /// The documents that may be applied, now or again.
    pub fn documents(&self) -> [Option<Digest>; 5] {
        let [held, good] = self.beneath.as_ref().map_or([None; 2], |here| [here.held, here.good]);
        [self.wanted, self.held, self.good, held, good]
    }

    /// The document to work on. While a change waits that is the one that is here: it is looked after as ever.
    pub fn aim(&self) -> Option<Digest> {
        self.held.filter(|_| self.waiting.is_some()).or(self.goal())
    }

    /// Whether containers of `held` were ever begun with: what is untouched can still wait.
    pub fn is_touched(&self) -> bool {
        self.touched || self.strikes > 0 || (self.good.is_some() && self.good == self.held)
    }

    /// Another document is wanted. A changed manifest starts every try anew; but until something newer begins, the device lives
    /// by what it has as if nothing had come, tries and all: taking the newer one up forgets them.
    pub fn want(&mut self, next: Option<Digest>, leaves_drift: bool, now: Moment) {
        if next.is_some() && next == self.held {
            // What somebody did is not undone because something else was wanted for a while; the next look tells what it is.
            let again = self.state == State::Failed && !(leaves_drift && self.is_left());
            self.next_try = again.then_some(now);
            self.attempt = 0;
            self.strikes = 0;
            self.falls = 0;
            self.given_up = None;
        }
        if !self.is_touched() {
            // It is not here, so it is nothing to live by.
            self.next_try = self.next_try.filter(|_| next == self.held);
        }
        let comes_back = |given_up: &mut GivenUp| next == Some(given_up.document);
        drop(self.given_up.take_if(comes_back));
        // What could not be fetched of another document says nothing about this one.
        drop(self.ahead.take_if(|ahead| next != Some(ahead.document)));
        self.waiting = None;
        self.awaited = None;
        self.wanted = next;
    }

    /// That the wanted document was given up.
    pub fn gave_up(&self) -> Option<&GivenUp> {
        self.given_up.as_ref().filter(|given_up| self.wanted == Some(given_up.document))
    }

    /// One more look found it well; since when that is so, and how many looks did.
    pub fn found_well(&mut self, now: Moment) -> (Moment, u32) {
        // A beginning in the future: the clock was set back.
        let (since, looks) = self.well.filter(|(since, _)| *since <= now).unwrap_or((now, 0));
        *self.well.insert((since, looks + 1))
    }

    /// That it failed by what was seen, and nothing is tried.
    pub fn is_left(&self) -> bool {
        let code = self.failure.as_ref().map(|failure| failure.code);
        self.next_try.is_none() && code == Some(FailureCode::Unhealthy)
    }

    /// Whether it works on, or runs, what it should.
    pub fn on_aim(&self) -> bool {
        self.aim() == self.held
    }

    /// Takes up `document`: every component starts over, what ran before keeps running.
    pub fn take_up(&mut self, document: Digest, version: u64, components: &[ComponentName]) {
        if self.held != Some(document) {
            let here = self.put_beneath();
            self.held = Some(document);
            self.attempt = 0;
            self.strikes = 0;
            self.falls = 0;
            self.fell = false;
            self.relapses = 0;
            // What is here was begun with, whatever was wanted in between.
            self.touched = here.as_ref().is_some_and(|here| here.held == Some(document));
            self.applying = false;
            if self.good != self.held {
                self.given_up = None;
            }
            self.beneath = here.filter(|_| !self.is_touched());
        }
        self.proven = false;
        self.adopted_version = version;
        self.components = components
            .iter()
            .map(|name| Progress {
                name: name.clone(),
                state: Reported::Pending,
                failure: None,
                fetched: false,
                restarts: 0,
            })
            .collect();
        self.failure = None;
        self.next_try = None;
        (self.unhealthy_since, self.down_since) = (None, None);
        self.well = None;
        self.cleared.clear();
        self.stuck.clear();
        self.stray = None;
    }

    pub fn progress(&mut self, component: &ComponentName) -> Option<&mut Progress> {
        self.components.iter_mut().find(|progress| &progress.name == component)
    }
}
