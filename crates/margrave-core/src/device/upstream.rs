//! Towards the server: capabilities, polling, fetching, reporting.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use crate::digest::{Digest, Document};
use crate::id::AssignmentId;
use crate::lifecycle::State;
use crate::manifest::{self, Manifest, Verdict};
use crate::moment::Moment;
use crate::report::Holding;
use crate::schedule::{Gate, Poll, Schedule};

use super::patience::{Pause, QUIET_KEPT_MIN, Quiet, spread};
use super::{Action, Assignment, Delivery, Device, FetchPlan, Polled, Settings, Trouble, Verified};

/// Impressions of the connection; a restart simply asks again.
#[derive(Debug, Clone, Default)]
pub(super) struct Upstream {
    /// What this device is now.
    pub(super) capabilities: Option<Digest>,
    /// The capabilities that the server said it will never take.
    capabilities_refused: Option<Digest>,
    /// What it is being told.
    telling: Option<Digest>,
    tell: Pause,

    asking: bool,
    ask: Pause,
    /// When the poll under way began, and how long the server was allowed to hold it open.
    asked: Option<(Moment, Duration)>,
    /// Up to when adopted manifests have used up their time ([`ADOPTION_EVERY`]).
    adopted_until: Moment,
    /// The last poll was to be held and was answered at once.
    hurried: bool,
    /// Something between us and the server cuts polls that are held open for longer, and when that was learnt.
    wait_max: Option<(Duration, Moment)>,
    /// The manifest of another past that the server was last told about, and when.
    contradicted: Option<(Digest, Moment)>,
    /// Whether the server's newest answer was a manifest of another past.
    disputed: bool,
    /// A newer manifest whose documents are still to come.
    pub(super) staged: Option<(Manifest, Digest)>,
    /// Documents are being fetched one by one.
    fetching_singly: bool,
    /// That did not work the last time.
    singly_in_vain: bool,

    sending: bool,
    send: Pause,
    /// The report that was passed over last.
    passed_over: Option<u64>,
    /// Reports that were refused, by their numbers.
    refused: BTreeMap<u64, Refused>,

    /// Documents that the disk lost were asked for and did not come: what is wanted now is asked first.
    lost_in_vain: bool,

    /// When to say once more where everything stands, and what that was said of last.
    pub(super) retell: Pause,
    pub(super) retold: Option<AssignmentId>,
    /// Who is late with it waits a little once more, and no second time.
    pub(super) retell_put_off: bool,

    /// The server asked for it.
    quiet: Quiet,
    pub(super) trouble: Option<String>,
    pub(super) last_contact: Option<Moment>,
    /// When the server answered a poll last, by saying that nothing is newer than what is here or by bringing that.
    newest_at: Option<Moment>,
    /// The same of the answer that brought what is staged.
    brought_at: Option<Moment>,
    /// Whether the server answered a poll since the start or the last trouble.
    heard: bool,
    /// Thrown once in a process: how late this device is where many are allowed to begin.
    pub(super) dice: f64,
}

/// A report that was refused, and may be taken yet.
#[derive(Debug, Clone, Copy, Default)]
struct Refused {
    /// How often that happened although the server had answered a poll since the time before.
    while_heard: u32,
    /// How often it did although the server had taken another report since.
    while_told: u32,
    was_heard: bool,
    was_told: bool,
}

/// After so many it is the server who refuses a report, and not something that stands on the way for a while.
const REFUSALS_MAX: u32 = 3;
/// When a server is told again what it said that it will never take, give or take a quarter: it may be a newer one by then, and who said so may have been
/// something on the way there.
const REFUSED_AGAIN_AFTER: Duration = Duration::from_secs(1800);
/// Between a poll that was held and the next one.
const NEXT_PAUSE: Duration = Duration::from_millis(200);
/// A poll that was held for less was not held, whatever the server says of it.
const HELD_MIN: Duration = Duration::from_secs(1);
/// The pause after a poll that was to be held and was answered at once: a server that stops lets go of all polls, also of
/// those that reach it just then. One that does so again only says that it holds them.
const HURRIED_PAUSE: Duration = Duration::from_secs(2);
/// How often a manifest is adopted in the long run, and how many may come one upon the other. Each is written to the
/// disk, which a server that makes new ones all the time would wear out.
const ADOPTION_EVERY: Duration = Duration::from_secs(10);
const ADOPTIONS_TOGETHER: u32 = 8;
/// How often a server is told that it shows an older past, and how soon again about the same manifest: what was said
/// first may have met somebody's replay, and not the server.
const CONTRADICT_EVERY: Duration = Duration::from_secs(60);
const CONTRADICT_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// How often a server is told that this device is another one than it said: what was held back, and by whom, changes at the whim of
/// whoever holds.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// Shorter waits than this are cut by nobody, and would only be polls by another name.
const WAIT_MIN: Duration = Duration::from_secs(20);
/// A line that broke once looks like a firewall that allows less, and would cost ten times the polls for months.
const WAIT_MAX_KEPT: Duration = Duration::from_secs(24 * 3600);

impl Device {
    pub(super) fn next_upstream(&self, settings: &Settings, now: Moment) -> Option<Action> {
        let up = &self.upstream;
        if self.quiet(now).lasts(now) {
            return None;
        }
        let Gate::Open(closes) = self.network(settings, now) else { return None };
        let due = |pause: Pause| pause.due(now);

        let untold = up.capabilities.is_some() && up.capabilities != self.capabilities_known;
        if untold {
            // First exchange of all (MI-G2-120): nothing else is asked before it.
            let first = self.capabilities_known.is_none() && up.capabilities != up.capabilities_refused;
            if up.telling.is_none() && due(up.tell) && (first || due(up.ask) || !self.saves(settings)) {
                return Some(Action::SendCapabilities);
            }
            if first {
                return None;
            }
        }
        // Until a manifest of this identity is here, there is no version to report by.
        if !up.sending
            && !self.moved
            && due(up.send)
            && (due(up.ask) || !self.saves(settings))
            && let Some(report) = self.outbox.next(up.passed_over)
        {
            return Some(Action::Send(report.clone()));
        }
        // Who saves data tells everything before it asks, so that nothing waits for one poll more.
        let telling = !self.moved && !self.outbox.is_empty() && (up.sending || due(up.send));
        if !up.asking && due(up.ask) && !(telling && self.saves(settings)) {
            if let Some((manifest, _)) = &up.staged {
                return Some(Action::Fetch(self.fetch_plan(manifest)));
            }
            let lost = self.lost_documents();
            if !lost.is_empty() && !up.lost_in_vain && !self.moved {
                return Some(Action::Fetch(FetchPlan::Documents(lost)));
            }
            let held = self.accepted_here().map(|accepted| accepted.body);
            // Until the server has been heard, a quick answer says more than a long wait.
            let wait = if up.heard { self.poll_wait(settings) } else { Duration::ZERO };
            let learnt = up.wait_max.filter(|(_, at)| *at <= now && now.since(*at) < WAIT_MAX_KEPT);
            let wait = learnt.map_or(wait, |(limit, _)| wait.min(limit));
            let wait = closes.map_or(wait, |closes| wait.min(closes.since(now)));
            return Some(Action::Poll { held, wait });
        }
        None
    }

    /// How long between two polls.
    fn poll_every(&self, settings: &Settings) -> Duration {
        match self.schedule.poll {
            Some(poll) if !settings.overrides.poll => poll.every,
            _ => settings.poll_every,
        }
    }

    fn poll_wait(&self, settings: &Settings) -> Duration {
        match self.schedule.poll {
            Some(Poll { wait: false, .. }) if !settings.overrides.wait => Duration::ZERO,
            _ => settings.poll_wait,
        }
    }

    /// Whether bytes are dear.
    pub(super) fn saves(&self, settings: &Settings) -> bool {
        settings.overrides.saver.unwrap_or(self.schedule.saver)
    }

    /// An exchange did not work. In a known downtime that is no news.
    fn failed(
        &mut self,
        exchange: fn(&mut Upstream) -> &mut Pause,
        settings: &Settings,
        now: Moment,
        roll: f64,
        trouble: Trouble,
    ) {
        let every = self.poll_every(settings);
        if self.schedule.down_until(now).is_some() && !settings.overrides.schedule {
            // Where it never ends nobody keeps this device from asking but itself.
            let pause = if self.network(settings, now).is_open() { every } else { Duration::ZERO };
            exchange(&mut self.upstream).succeeded(now, pause);
            self.upstream.heard = false;
            return;
        }
        // Where polls are held open that is no choice of how often: one that waits for news is back as soon as any.
        let seldom = self.schedule.poll.is_some() && self.poll_wait(settings).is_zero();
        let pause = exchange(&mut self.upstream);
        pause.failed(settings, every, now, roll, &trouble);
        if seldom {
            // Operators chose how often this device talks; trouble is no reason to do so much more often.
            pause.at_least(now, spread(every / 4, roll));
        }
        self.troubled(now, roll, trouble);
    }

    pub(super) fn wake_upstream(&self, settings: &Settings, now: Moment) -> Option<Moment> {
        let up = &self.upstream;
        if let Gate::Closed(opens) = self.network(settings, now) {
            return opens;
        }
        let tell =
            (up.capabilities.is_some() && up.capabilities != self.capabilities_known && up.telling.is_none())
                .then_some(if self.capabilities_known.is_some() {
                    self.with_a_poll(settings, up.tell)
                } else {
                    up.tell
                });
        let sends = !up.sending && !self.moved && !self.outbox.is_empty();
        let send = sends.then(|| self.with_a_poll(settings, up.send));
        let ask = (!up.asking).then_some(up.ask);
        let quiet = Some(self.quiet(now)).filter(|quiet| quiet.lasts(now)).unwrap_or_default().until;
        let times = [tell, send, ask].into_iter().flatten().map(|pause| pause.until.max(quiet));
        times.filter(|until| *until > now).min()
    }

    /// Who saves data talks when it asks anyway.
    fn with_a_poll(&self, settings: &Settings, pause: Pause) -> Pause {
        let ask = self.upstream.ask;
        if self.saves(settings) && ask.until > pause.until { ask } else { pause }
    }

    /// What is left of the quiet that the server asked for.
    fn quiet(&self, now: Moment) -> Quiet {
        match self.quiet_until {
            Some(until) => self.upstream.quiet.or_longer(Quiet::kept(self.quiet_since, until), now),
            None => self.upstream.quiet,
        }
    }

    /// What was accepted from the server as which this device knows it now.
    fn accepted_here(&self) -> Option<&manifest::Accepted> {
        self.accepted.as_ref().filter(|_| !self.moved)
    }

    pub(super) fn identity_is(&mut self, principal: String) {
        if self.principal.as_ref().is_some_and(|known| *known != principal) {
            // Desired state stays in force until the new server says otherwise. News about it was meant for
            // the old one; the new one hears where everything stands as soon as it has a manifest.
            self.moved = self.accepted.is_some();
            self.capabilities_known = None;
            (self.quiet_since, self.quiet_until) = (None, None);
            self.outbox.clear();
            // When to talk was the other one's word. When to change stays until this one says otherwise.
            self.schedule = Schedule { windows: self.schedule.windows.take(), ..Schedule::default() };
        }
        self.principal = Some(principal);
    }

    pub(super) fn way_renewed(&mut self, now: Moment) {
        let up = &mut self.upstream;
        for pause in [&mut up.tell, &mut up.ask, &mut up.send] {
            pause.forget(now);
        }
    }

    pub(super) fn began_upstream(&mut self, now: Moment, action: &Action) {
        self.upstream.asked = match action {
            Action::Poll { wait, .. } => Some((now, *wait)),
            _ => self.upstream.asked,
        };
        match action {
            Action::SendCapabilities => self.upstream.telling = self.upstream.capabilities,
            Action::Fetch(plan) => {
                self.upstream.asking = true;
                self.upstream.fetching_singly = matches!(plan, FetchPlan::Documents(_));
            }
            Action::Poll { .. } => self.upstream.asking = true,
            Action::Send(_) => self.upstream.sending = true,
            _ => {}
        }
    }

    pub(super) fn capabilities_are(&mut self, digest: Digest, now: Moment) {
        let up = &mut self.upstream;
        up.capabilities = Some(digest);
        if up.capabilities_refused.take_if(|refused| *refused != digest).is_some() {
            up.tell.succeeded(now, TELL_EVERY);
        }
    }

    pub(super) fn capabilities_sent(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        result: Result<Digest, Trouble>,
    ) {
        let told = self.upstream.telling.take();
        match result {
            Ok(digest) => {
                self.heard(settings, now);
                self.keep_contact();
                self.capabilities_known = Some(digest);
                self.upstream.tell.succeeded(now, TELL_EVERY);
            }
            Err(trouble) => {
                // It may be another one since.
                let is_refused = trouble.permanent && told == self.upstream.capabilities;
                self.failed(|up| &mut up.tell, settings, now, roll, trouble);
                if is_refused {
                    self.upstream.capabilities_refused = told;
                    self.upstream.tell.at_least(now, spread(REFUSED_AGAIN_AFTER, roll));
                }
            }
        }
    }

    pub(super) fn polled(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        result: Result<Polled, Trouble>,
    ) {
        self.upstream.asking = false;
        self.upstream.lost_in_vain = false;
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(trouble) => {
                self.cut(now);
                return self.failed(|up| &mut up.ask, settings, now, roll, trouble);
            }
        };
        self.heard(settings, now);
        self.upstream.refused.values_mut().for_each(|refused| refused.was_heard = true);
        let lasted = self.upstream.asked.take().map(|(began, wait)| (now.since(began), wait));
        let first = !std::mem::replace(&mut self.upstream.heard, true);
        match outcome {
            Polled::Unchanged { held_open } => self.unchanged(settings, now, roll, first, held_open, lasted),
            Polled::Manifest { manifest, body, held_open } => {
                match manifest::judge(self.accepted_here(), &manifest, body) {
                    Verdict::Unchanged => self.unchanged(settings, now, roll, first, held_open, lasted),
                    Verdict::Newer if let Some(why) = self.misplaced(&manifest) => {
                        self.failed(|up| &mut up.ask, settings, now, roll, Trouble::passing(why));
                    }
                    Verdict::Newer => {
                        self.upstream.staged = Some((manifest, body));
                        self.upstream.brought_at = Some(now);
                        self.upstream.ask.succeeded(now, Duration::ZERO);
                        // Everything may be here already: a deployment removed, or an older one back again.
                        self.adopt_staged(settings, now, &[]);
                    }
                    Verdict::Refused(regression) => {
                        self.upstream.disputed = true;
                        self.contradict(settings, now, &manifest, body);
                        let trouble = Trouble::passing(regression.to_string());
                        self.failed(|up| &mut up.ask, settings, now, roll, trouble);
                    }
                }
            }
        }
    }

    /// Why a manifest cannot be meant as it is: a document says itself which deployment it is of, so nobody lists it under another
    /// one, nor twice.
    fn misplaced(&self, manifest: &Manifest) -> Option<String> {
        let mut of = BTreeMap::new();
        manifest.entries().iter().find_map(|entry| {
            let digest = entry.document.digest;
            let known = self.readings.get(&digest).and_then(|reading| Some(reading.as_ref().ok()?.id));
            let other = of.insert(digest, entry.id).or(known.filter(|known| *known != entry.id))?;
            Some(format!("the manifest lists the document of deployment {other} as that of {}", entry.id))
        })
    }

    /// The server answered that what this device has is the newest.
    fn unchanged(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        first: bool,
        held_open: bool,
        lasted: Option<(Duration, Duration)>,
    ) {
        self.upstream.disputed = false;
        self.upstream.newest_at = Some(now);
        let pause = self.pause(settings, first, held_open, lasted);
        self.upstream.ask.succeeded(now, spread(pause, roll));
        self.retell(settings, now, roll);
    }

    /// Tells a server that shows an older past than the one this device lives in what is held here: it was restored from
    /// a backup, and goes on above the version that it hears of. Without this a device that has nothing to report would
    /// refuse its manifests for ever. Not often: replayed manifests must not fill the outbox.
    fn contradict(&mut self, settings: &Settings, now: Moment, refused: &Manifest, body: Digest) {
        if let Some((told, at)) = self.upstream.contradicted {
            let pause = if told == body { CONTRADICT_AGAIN_AFTER } else { CONTRADICT_EVERY };
            // The beginning lies ahead where the clock was set back.
            if at <= now && now.since(at) < pause {
                return;
            }
        }
        self.upstream.contradicted = Some((body, now));
        for id in self.assignments.keys().copied().collect::<Vec<_>>() {
            self.report(settings, id, now);
        }
        let Some(held) = self.accepted_here().map(|accepted| accepted.version) else { return };
        // What it waits for the end of may have ended in the past that it has lost.
        let absent = refused.entries().iter().map(|entry| entry.id).chain(refused.leaving().iter().copied());
        let absent = absent.filter(|id| !self.assignments.contains_key(id)).collect();
        self.report_absences(settings, absent, held, now);
    }

    /// What is held here, when the server shows something else under a number that is not above.
    pub(super) fn disputed(&self) -> Option<Holding> {
        let held = self.accepted_here().filter(|_| self.upstream.disputed)?;
        Some(Holding { version: held.version, manifest: held.body })
    }

    /// How long to wait after a poll that brought nothing new, give or take: jitter keeps a fleet from marching in step.
    /// `lasted` is how long it was open, and how long it offered to be.
    fn pause(
        &mut self,
        settings: &Settings,
        first: bool,
        held_open: bool,
        lasted: Option<(Duration, Duration)>,
    ) -> Duration {
        // The first poll did not offer to wait; the second may find a server that does.
        if first && !self.poll_wait(settings).is_zero() {
            return NEXT_PAUSE;
        }
        // A server that holds polls open paces them itself. One that only says so would be asked all the time.
        let in_time = lasted.is_some_and(|(lasted, wait)| lasted >= HELD_MIN.min(wait / 2));
        let was_hurried = std::mem::replace(&mut self.upstream.hurried, held_open && !in_time);
        match held_open {
            true if in_time => NEXT_PAUSE,
            true if !was_hurried => HURRIED_PAUSE,
            _ => self.poll_every(settings),
        }
    }

    /// When to ask again after a manifest was adopted: at once, unless there were many lately.
    fn paced(&mut self, now: Moment) -> Moment {
        let saved = u64::try_from((ADOPTION_EVERY * ADOPTIONS_TOGETHER).as_millis()).unwrap_or(u64::MAX);
        // The upper end is for a clock that was set back.
        let until =
            self.upstream.adopted_until.clamp(Moment(now.0.saturating_sub(saved)), now.after(ADOPTION_EVERY));
        self.upstream.adopted_until = until.after(ADOPTION_EVERY);
        self.upstream.adopted_until.max(now)
    }

    /// A poll that was held open ended badly before its time: a proxy or a firewall may allow less than we asked
    /// for, so the next one asks for less. The full time is tried again after a while.
    fn cut(&mut self, now: Moment) {
        let Some((began, wait)) = self.upstream.asked.take() else { return };
        let lasted = now.since(began);
        if lasted >= WAIT_MIN && lasted < wait {
            self.upstream.wait_max = Some((lasted.mul_f64(0.75).max(WAIT_MIN), now));
        }
    }

    pub(super) fn fetched(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        result: Result<Delivery, Trouble>,
    ) {
        self.upstream.asking = false;
        self.upstream.singly_in_vain = result.is_err() && self.upstream.fetching_singly;
        match result {
            Ok(delivery) => {
                self.heard(settings, now);
                let (documents, readings): (Vec<Document>, Vec<_>) = delivery
                    .into_iter()
                    .map(|(document, reading)| (document.clone(), (document.digest(), reading)))
                    .unzip();
                for (digest, reading) in readings {
                    // What comes along with something new was judged when it came; what this device has become since is no
                    // reason to leave what runs to itself.
                    let is_known = matches!(self.readings.get(&digest), Some(Ok(_)));
                    if !is_known || reading.is_ok() {
                        self.readings.insert(digest, reading);
                    }
                }
                self.upstream.ask.succeeded(now, Duration::ZERO);
                let complete = match self.upstream.staged {
                    Some(_) => self.adopt_staged(settings, now, &documents),
                    None => self.lost_documents().is_empty(),
                };
                if !complete {
                    // Something is still missing: the server took it away meanwhile, so ask what is wanted now.
                    self.upstream.lost_in_vain = self.upstream.staged.take().is_none();
                    let trouble =
                        Trouble::passing("the server did not deliver every document of its manifest");
                    self.failed(|up| &mut up.ask, settings, now, roll, trouble);
                }
            }
            Err(trouble) => {
                // Start over with a fresh manifest: what could not be fetched may no longer be wanted.
                self.upstream.lost_in_vain = self.upstream.staged.take().is_none();
                self.failed(|up| &mut up.ask, settings, now, roll, trouble);
            }
        }
    }

    pub(super) fn sent(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        sequence: u64,
        result: Result<(), Trouble>,
    ) {
        self.upstream.sending = false;
        match result {
            Ok(()) => {
                self.heard(settings, now);
                self.done_with(sequence, now);
                self.upstream.refused.values_mut().for_each(|refused| refused.was_told = true);
            }
            Err(trouble) if trouble.permanent => {
                let of = self.outbox.assignment_of(sequence);
                // That it does not know what is not here either is an answer.
                let is_answer = of.is_some_and(|id| !self.assignments.contains_key(&id));
                if is_answer {
                    self.heard(settings, now);
                }
                // The server will never take this one; the next may still be news.
                self.done_with(sequence, now);
                if !is_answer {
                    self.troubled(now, roll, trouble);
                }
            }
            Err(trouble) => {
                if trouble.answered {
                    self.refused(sequence);
                }
                self.failed(|up| &mut up.send, settings, now, roll, trouble);
            }
        }
    }

    /// The server has this report, or will never take it.
    fn done_with(&mut self, sequence: u64, now: Moment) {
        self.outbox.settle(sequence);
        self.keep_contact();
        self.upstream.refused.remove(&sequence);
        self.upstream.send.succeeded(now, Duration::ZERO);
    }

    /// Counts that a report was refused. One that is refused again and again while the server is heard is passed over: only what
    /// follows it of the same assignment waits for it then.
    fn refused(&mut self, sequence: u64) -> Refused {
        let up = &mut self.upstream;
        up.refused.retain(|of, _| self.outbox.waits(*of));
        let refused = up.refused.entry(sequence).or_default();
        *refused = Refused {
            while_heard: refused.while_heard + u32::from(refused.was_heard),
            while_told: refused.while_told + u32::from(refused.was_told),
            ..Refused::default()
        };
        if refused.while_heard >= REFUSALS_MAX {
            up.passed_over = Some(sequence);
        }
        *refused
    }

    /// A server explains what it refuses for good (MI-G2-200). What does not may be something on the way there, and no news is
    /// given up for that. It may let polls pass and no report: so where an assignment stands is given up only while the server takes
    /// what is told of others, and what something newer waits behind while it answers at all.
    pub(super) fn rebuffed(
        &mut self,
        settings: &Settings,
        now: Moment,
        roll: f64,
        sequence: u64,
        trouble: Trouble,
    ) {
        let refused = self.refused(sequence);
        let times =
            if self.outbox.is_superseded(sequence) { refused.while_heard } else { refused.while_told };
        let trouble = Trouble { permanent: times >= REFUSALS_MAX, answered: false, ..trouble };
        self.sent(settings, now, roll, sequence, Err(trouble));
    }

    fn troubled(&mut self, now: Moment, roll: f64, trouble: Trouble) {
        self.keep_contact();
        if let Some(asked) = trouble.retry_after {
            // Two exchanges may be under way, and the one does not know what the other was asked for.
            let quiet = Quiet::asked(now, asked, roll).or_longer(self.quiet(now), now);
            self.upstream.quiet = quiet;
            if asked >= QUIET_KEPT_MIN {
                (self.quiet_since, self.quiet_until) = (Some(quiet.since), Some(quiet.until));
            }
        }
        self.upstream.trouble = Some(trouble.message);
        self.upstream.heard = false;
    }

    /// Up to when whatever this device lives by was all that the server had to say.
    pub(super) fn newest_at(&self) -> Option<Moment> {
        self.upstream.newest_at
    }

    /// Documents of the accepted manifest that the disk no longer has: fetched again by their digest.
    fn lost_documents(&self) -> Vec<manifest::Entry> {
        let entries = self.accepted.iter().flat_map(|accepted| &accepted.entries);
        entries.filter(|entry| !self.readings.contains_key(&entry.document.digest)).copied().collect()
    }

    fn fetch_plan(&self, manifest: &Manifest) -> FetchPlan {
        let missing: Vec<manifest::Entry> = manifest
            .entries()
            .iter()
            .filter(|entry| !self.readings.contains_key(&entry.document.digest))
            .copied()
            .collect();
        // What is asked for in many requests comes as a whole or not at all. Where a line or a server does not bear so many, one
        // that brings more is less.
        let is_too_many = self.upstream.singly_in_vain && missing.len() > 1;
        match manifest.bundle() {
            Some(bundle)
                if is_too_many || bundle_is_less(bundle.size, manifest.entries().len(), &missing) =>
            {
                FetchPlan::Bundle { bundle, entries: manifest.entries().to_vec() }
            }
            _ => FetchPlan::Documents(missing),
        }
    }

    /// Makes the staged manifest the desired state, once every document of it is here.
    fn adopt_staged(&mut self, settings: &Settings, now: Moment, arrived: &[Document]) -> bool {
        let Some((manifest, body)) = self.upstream.staged.take() else { return false };
        let readings = &self.readings;
        match Verified::new(manifest.clone(), body, arrived, |digest| readings.contains_key(digest)) {
            Ok(verified) => {
                self.adopt(settings, now, verified);
                true
            }
            Err(_) => {
                self.upstream.staged = Some((manifest, body));
                false
            }
        }
    }

    fn adopt(&mut self, settings: &Settings, now: Moment, verified: Verified) {
        let version = verified.manifest().version();
        let moved = std::mem::take(&mut self.moved);
        self.upstream.disputed = false;
        if moved || self.accepted.is_none() {
            self.life = Some(version);
            self.memory = Some((self.upstream.dice * f64::from(u32::MAX)) as u32);
        }
        let skipped = moved || self.accepted.as_ref().is_some_and(|held| version > held.version + 1);
        let wanted: BTreeMap<AssignmentId, Digest> =
            verified.manifest().entries().iter().map(|entry| (entry.id, entry.document.digest)).collect();

        let leaves_drift = verified.manifest().schedule().leaves_drift;
        let mut unmoved = vec![];
        for (id, assignment) in &mut self.assignments {
            let next = wanted.get(id).copied();
            if moved {
                // Versions of the former sequence mean nothing to this server.
                assignment.adopted_version = version;
            }
            let changed = assignment.wanted != next;
            if next.is_some()
                && (next == assignment.held || (!changed && assignment.goal() == assignment.held))
            {
                // Held already, so adopted at this version too (AMB-36). So is one that was given up: it was tried.
                assignment.adopted_version = version;
                if skipped || changed {
                    // The server may have changed it there and back while we were away, or before it was taken up.
                    unmoved.push(*id);
                }
            }
            if next.is_none() && matches!(assignment.state, State::Deleting | State::Deleted) {
                // That it goes is what this manifest says, too: it may have come back and gone again in others that were never seen
                // here, and whoever waits for that end does not take the one before for it.
                assignment.adopted_version = version;
                if assignment.state == State::Deleted && verified.manifest().leaving().contains(id) {
                    unmoved.push(*id);
                }
            }
            if changed {
                assignment.want(next, leaves_drift, now);
            }
        }
        self.accepted = Some(verified.accepted());
        self.schedule = verified.manifest().schedule().clone();
        self.take_up(settings, verified.manifest().asked(), now);
        self.upstream.newest_at = self.upstream.brought_at;
        self.keep_contact();
        let next = self.paced(now);
        self.upstream.ask.succeeded(now, next.since(now));
        if moved {
            // Made before there was a version to report by.
            self.outbox.clear();
        }
        for id in &unmoved {
            self.report(settings, *id, now);
        }
        if skipped {
            // So may it have forgotten what it was told: it was restored from a backup. Another server never heard any of it; what is
            // here of another document it would take for what it wants itself.
            let is_understood =
                |a: &Assignment| a.held.is_none() || a.failure.is_some() || a.given_up.is_some();
            let is_its = |a: &Assignment| !moved || (a.wanted.is_some() && is_understood(a));
            let others = self.assignments.iter().filter(|(id, of)| !unmoved.contains(id) && is_its(of));
            for id in others.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.report(settings, id, now);
            }
        }
        let is_gone = |id: &AssignmentId| !self.assignments.contains_key(id) && !wanted.contains_key(id);
        let absent = verified.manifest().leaving().iter().copied().filter(is_gone).collect();
        self.report_absences(settings, absent, version, now);
        for (id, digest) in wanted {
            if let Entry::Vacant(place) = self.assignments.entry(id) {
                place.insert(Assignment::new(Some(digest), version, now));
                self.report(settings, id, now);
            }
        }
        for id in self.assignments.keys().copied().collect::<Vec<_>>() {
            let assignment = &self.assignments[&id];
            if self.removal_is_due(settings, assignment, now) {
                self.begin_removal(settings, id, now);
            }
        }
    }
}

/// One request for everything, or one for each missing document: by bytes where the server told sizes,
/// with what a request costs beside its body.
fn bundle_is_less(bundle_size: Option<u64>, entries: usize, missing: &[manifest::Entry]) -> bool {
    const REQUEST_COST: u64 = 600;
    match missing.len() {
        0 | 1 => false,
        count => {
            let known: Option<u64> = missing.iter().map(|entry| entry.document.size).sum();
            match (bundle_size, known) {
                (Some(bundle), Some(single)) => {
                    bundle.saturating_add(REQUEST_COST) < single.saturating_add(count as u64 * REQUEST_COST)
                }
                _ => count * 2 > entries,
            }
        }
    }
}
