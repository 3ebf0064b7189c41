//! Which devices move next, and why not yet.
//!
//! A rollout takes one revision of a deployment to its devices in the steps of a [`Strategy`]. [`decide`] looks at what
//! every device of it is *now* and says who is to be released, and what the whole is waiting for. It remembers nothing
//! itself: what it needs again ([`Reached`]) goes out and comes back in, so that a server which was killed at any moment
//! decides the same once more.
//!
//! Two words are kept apart everywhere. A device that cannot be heard is *not yet* there: it is neither released nor
//! waited for, and gets its turn when it is back. A device that the deployment does not fit is *never* there, and out of
//! every count.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::DeviceRef;
use crate::moment::Moment;

mod strategy;

pub use strategy::{
    Amount, Canary, InvalidAmount, InvalidOnFailure, InvalidPercent, InvalidStrategy, OnFailure, Percent,
    Rank, SOAK_MAX, STEPS_MAX, Strategy,
};

/// Who comes back asks what is wanted and tells what happened meanwhile at the same time, and what it tells may come second:
/// a failure that was kept for weeks is here before anybody else is given what failed.
pub const HEARD_OUT_AFTER: Duration = Duration::from_secs(10);

/// A rollout as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// How many devices it began with.
    pub size: u32,
    /// Those that it is still meant for.
    pub members: Vec<Member>,
    /// The places of those that failed, were forgiven by a person, and are not part of it any more.
    pub forgiven_gone: Vec<u32>,
    pub reached: Reached,
    /// Since when enough of the batch that is under way were heard of after its soak. A server that was started meanwhile
    /// has heard of nobody.
    pub heard_since: Option<Moment>,
    pub hold: Hold,
    /// Whether there is an earlier revision to go back to.
    pub revertible: bool,
}

/// How far it came. It never goes back: who is late in an early batch does not stop a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reached {
    /// The batch that is under way; those before are open.
    pub batch: u32,
    /// Since when it is good, while it is.
    pub good_since: Option<Moment>,
}

/// Whether somebody stopped it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Hold {
    #[default]
    None,
    /// By a person, until a person lets it go on.
    Paused,
    /// By what went wrong, until a person lets it go on.
    Halted(String),
    /// For good: nobody further.
    Aborted,
}

/// One device of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub device: DeviceRef,
    /// Its place in line.
    pub place: u32,
    /// Its label `site`; those without one are a site together.
    pub site: String,
    pub released: bool,
    /// It failed, and a person let the rollout go on all the same.
    pub forgiven: bool,
    /// When it was last heard of.
    pub heard: Moment,
    /// Not released, and what it was given before has not come to its end: it may be down at any moment.
    pub half_way: bool,
    pub now: Now,
}

impl Member {
    /// Whether it went silent on the way to something, so that nobody knows whether it runs.
    pub fn is_dark(&self) -> bool {
        self.now == Now::Silent && (self.released || self.half_way)
    }
}

/// What a device is at the moment, with regard to the new revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Now {
    /// Not released, and in contact. `down`: what it was given before does not run, or is on its way.
    Waits { down: bool },
    /// Not heard of, released or not.
    Silent,
    /// What is wanted does not fit it.
    Never,
    /// Released, and neither there nor failed.
    UnderWay,
    /// It says that the new document is installed.
    Done,
    /// It failed, and may be on its way back.
    Failed,
    /// It failed, and runs again what it had before.
    GoneBack,
}

/// What is to be done, and how things are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// These get the new revision now, in this order.
    pub release: Vec<DeviceRef>,
    /// To be remembered.
    pub reached: Reached,
    /// The same, for as long as the server runs.
    pub heard_since: Option<Moment>,
    pub standing: Standing,
    pub batches: Vec<Batch>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Devices are at it.
    Running,
    Waiting(Waiting),
    Paused,
    /// Too much went wrong; nobody further until a person says so.
    Halted(String),
    /// Too much went wrong; the deployment is to go back to the revision before.
    Reverting(String),
    Aborted,
    /// Everybody has it who ever will, or failed within what is tolerated.
    Done,
}

/// What a rollout waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// The batch is good, and has to stay so until then.
    Soak { batch: u32, until: Moment },
    /// The batch was good for as long as it had to be, as far as anybody knows: too few of those that have it were heard of
    /// after `since`, when that time was over. What nobody saw proves nothing.
    Unheard { batch: u32, since: Moment, unheard: u32 },
    /// Of its devices none is under way, and those left are held back because their sites have enough devices unavailable.
    Sites { held: u32 },
    /// Only devices are left that are not heard of.
    Silent { not_yet: u32 },
}

/// One batch, counted. Every member is in exactly one of the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Batch {
    pub number: u32,
    pub done: u32,
    pub under_way: u32,
    /// In contact, and its turn has not come.
    pub waiting: u32,
    /// Not heard of.
    pub not_yet: u32,
    /// Does not fit.
    pub never: u32,
    pub failed: u32,
}

impl Batch {
    pub fn total(&self) -> u32 {
        self.done + self.under_way + self.waiting + self.not_yet + self.never + self.failed
    }

    fn of(number: u32, members: &[&Member]) -> Batch {
        let mut batch = Batch { number, ..Default::default() };
        members.iter().for_each(|member| batch.count(member.now));
        batch
    }

    fn count(&mut self, now: Now) {
        *match now {
            Now::Waits { .. } => &mut self.waiting,
            Now::Silent => &mut self.not_yet,
            Now::Never => &mut self.never,
            Now::UnderWay => &mut self.under_way,
            Now::Done => &mut self.done,
            Now::Failed | Now::GoneBack => &mut self.failed,
        } += 1;
    }
}

/// Says who moves next.
///
/// - The devices of a batch are released when the batch before it is good and has soaked, in their order, as far as
///   their sites allow. Who is silent is passed over, and released when it is heard of again. Who is down with what it had
///   before, and so keeps others of its site from their turn, is released before its own.
/// - A batch is good when the threshold of those that can answer have it installed. Out of that count are those that do
///   not fit, those that are silent, those that a person forgave, and those that wait at a site whose room is all taken
///   by released devices that went silent. If nobody is left to count, the batch is good once any device of the rollout
///   has it, so that a dark site stops nobody but a first batch that proves nothing. If nobody is left to wait for
///   either, a person has to say that it goes on without proof, unless the next batch proves as much.
/// - A batch has soaked when it was good for that time and the threshold of it were heard of after: what a device said
///   before it went silent says nothing of how it went on. Who asks seldom is waited for. The last batch soaks, too.
/// - Too much went wrong when a batch cannot be good any more because of those that failed, or when as many have failed
///   as the strategy allows.
/// - It is done when nobody is left waiting, silent or under way, and the last batch has soaked.
pub fn decide(strategy: &Strategy, progress: &Progress, now: Moment) -> Decision {
    let Progress { size, members, hold, .. } = progress;
    let batch_of = |member: &Member| strategy.batch_of(member.place, *size);
    let mut ordered: Vec<&Member> = members.iter().collect();
    ordered.sort_by_key(|member| member.place);

    let mut by_batch: BTreeMap<u32, Vec<&Member>> = BTreeMap::new();
    for member in &ordered {
        by_batch.entry(batch_of(member)).or_default().push(member);
    }
    let batches: Vec<Batch> = by_batch.iter().map(|(number, members)| Batch::of(*number, members)).collect();
    let last = batches.last().map_or(0, |last| last.number);
    let decided = |release, reached, standing| Decision {
        release,
        reached,
        heard_since: None,
        standing,
        batches: batches.clone(),
    };
    let mut reached = progress.reached;
    match hold {
        Hold::Paused => return decided(Vec::new(), reached, Standing::Paused),
        Hold::Halted(why) => return decided(Vec::new(), reached, Standing::Halted(why.clone())),
        Hold::Aborted => return decided(Vec::new(), reached, Standing::Aborted),
        Hold::None => {}
    }
    if let Some(why) = trouble(strategy, *size, &ordered) {
        let standing = match strategy.on_failure {
            OnFailure::Revert if progress.revertible => Standing::Reverting(why),
            OnFailure::Revert => {
                Standing::Halted(format!("{why}; there is no revision before to go back to"))
            }
            OnFailure::Halt => Standing::Halted(why),
        };
        return decided(Vec::new(), reached, standing);
    }

    let sites = Sites::of(strategy, &ordered);
    let proven = ordered.iter().any(|member| member.now == Now::Done);
    let mut heard_since = None;
    let soaking = loop {
        let of_batch = by_batch.get(&reached.batch).map_or(&[][..], Vec::as_slice);
        let needed = match judged(strategy, of_batch, &sites) {
            Judged::Good { needed } => Some(needed),
            // Where nobody has it, there is nothing to watch.
            Judged::Nobody { .. } if proven => Some(0),
            Judged::Nobody { waited_for: 0 } => {
                // Who resumed counted on the others of the batch: one who left without having been forgiven has proven nothing either.
                let places = (0..*size).filter(|place| strategy.batch_of(*place, *size) == reached.batch);
                let mut gone =
                    places.filter(|place| !of_batch.iter().any(|member| member.place == *place)).peekable();
                let is_forgiven =
                    gone.peek().is_some() && gone.all(|place| progress.forgiven_gone.contains(&place));
                if !is_forgiven && !proves_without(strategy, reached.batch, &by_batch) {
                    let batch = reached.batch + 1;
                    let why = format!(
                        "nobody is left in batch {batch} who could prove it; resume to go on without"
                    );
                    // Who resumes has said that this batch is passed over.
                    let passed = Reached { batch, good_since: None };
                    return decided(Vec::new(), passed, Standing::Halted(why));
                }
                Some(0)
            }
            Judged::Nobody { .. } | Judged::Open => None,
        };
        let Some(needed) = needed else {
            reached.good_since = None;
            break None;
        };
        let batch = reached.batch;
        let soak = if needed > 0 { strategy.soak_of(batch) } else { Duration::ZERO };
        // A clock that was set back must not make the time longer than it is.
        let since = reached.good_since.unwrap_or(now).min(now);
        let until = since.after(soak);
        if !soak.is_zero() {
            reached.good_since = Some(since);
            if now < until {
                break Some(Waiting::Soak { batch, until });
            }
            let done = || of_batch.iter().filter(|member| member.now == Now::Done);
            let unheard = done().filter(|member| member.heard < until).count();
            if done().count() - unheard < needed as usize {
                let unheard = u32::try_from(unheard).unwrap_or(u32::MAX);
                break Some(Waiting::Unheard { batch, since: until, unheard });
            }
            let known = progress.heard_since.filter(|_| batch == progress.reached.batch);
            let heard = known.unwrap_or(now).min(now);
            heard_since = Some(heard);
            if now < heard.after(HEARD_OUT_AFTER) {
                break Some(Waiting::Soak { batch, until: heard.after(HEARD_OUT_AFTER) });
            }
        }
        if batch >= last {
            reached.good_since = Some(since);
            break None;
        }
        reached = Reached { batch: batch + 1, good_since: None };
        heard_since = None;
    };

    let (release, held) = sites.admit(&ordered, |member| batch_of(member) <= reached.batch);
    let count = |wanted: fn(&Now) -> bool| ordered.iter().filter(|member| wanted(&member.now)).count();
    let under_way = count(|now| *now == Now::UnderWay);
    let not_yet = count(|now| *now == Now::Silent);
    let waits = count(|now| matches!(now, Now::Waits { .. }));
    let standing = if !release.is_empty() {
        Standing::Running
    } else if let Some(waiting) = soaking {
        Standing::Waiting(waiting)
    } else if under_way > 0 {
        Standing::Running
    } else if held > 0 {
        Standing::Waiting(Waiting::Sites { held })
    } else if not_yet > 0 {
        Standing::Waiting(Waiting::Silent { not_yet: u32::try_from(not_yet).unwrap_or(u32::MAX) })
    } else if waits > 0 {
        Standing::Running
    } else {
        Standing::Done
    };
    Decision { heard_since, ..decided(release, reached, standing) }
}

/// Whether a batch of which nobody is left, before anybody proved anything, may be passed over all the same: nobody comes after it,
/// a person looked at its failures already, or all of it said no, to which nothing broke, and the next to get it are as few and
/// are watched for as long. A canary that was retired because it went dark has proven nothing, and nobody will in its place.
fn proves_without(strategy: &Strategy, batch: u32, by_batch: &BTreeMap<u32, Vec<&Member>>) -> bool {
    let gets_it = |member: &&&Member| member.now != Now::Never;
    let mut later = by_batch.range(batch + 1..);
    let Some((next, members)) = later.find(|(_, members)| members.iter().any(|member| gets_it(&member)))
    else {
        return true;
    };
    let left = by_batch.get(&batch).map_or(&[][..], Vec::as_slice);
    let is_as_careful = members.iter().filter(gets_it).count() <= left.len()
        && strategy.soak_of(*next) >= strategy.soak_of(batch);
    is_as_careful || left.iter().any(|member| member.forgiven)
}

/// What went wrong, if it is more than is tolerated.
fn trouble(strategy: &Strategy, size: u32, members: &[&Member]) -> Option<String> {
    let is_failure = |member: &Member| matches!(member.now, Now::Failed | Now::GoneBack) && !member.forgiven;
    let failed = members.iter().filter(|member| is_failure(member)).count();
    if failed == 0 {
        return None;
    }
    let devices = |count: usize| if count == 1 { "1 device".to_owned() } else { format!("{count} devices") };
    if let Some(limit) = strategy.failures
        && failed >= usize::try_from(limit.get()).unwrap_or(usize::MAX)
    {
        return Some(format!("{} failed, and the strategy allows fewer than {limit}", devices(failed)));
    }
    let mut counted: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for member in members.iter().filter(|member| counts(member)) {
        let (all, failed) = counted.entry(strategy.batch_of(member.place, size)).or_default();
        *all += 1;
        *failed += u32::from(is_failure(member));
    }
    counted.into_iter().find_map(|(batch, (all, failed))| {
        let needed = strategy.threshold.of(all);
        (failed > all - needed).then(|| {
            format!(
                "{} of batch {} failed, and {} of {all} must have it installed",
                devices(usize::try_from(failed).unwrap_or(usize::MAX)),
                batch + 1,
                needed
            )
        })
    })
}

/// Whether a device can answer for the batch that it is in.
fn counts(member: &Member) -> bool {
    match member.now {
        Now::Silent | Now::Never => false,
        Now::Failed | Now::GoneBack => !member.forgiven,
        Now::Waits { .. } | Now::UnderWay | Now::Done => true,
    }
}

enum Judged {
    /// So many had to have it, and have.
    Good {
        needed: u32,
    },
    Open,
    /// Nobody in it can answer; so many of them are to be waited for in the end.
    Nobody {
        waited_for: u32,
    },
}

fn judged(strategy: &Strategy, batch: &[&Member], sites: &Sites<'_>) -> Judged {
    let (mut all, mut done, mut waited_for) = (0, 0, 0);
    for member in batch {
        let stuck = matches!(member.now, Now::Waits { .. }) && sites.is_dark(&member.site);
        if counts(member) && !stuck {
            all += 1;
            done += u32::from(member.now == Now::Done);
        } else if stuck || member.now == Now::Silent {
            waited_for += 1;
        }
    }
    match all {
        0 => Judged::Nobody { waited_for },
        all if done >= strategy.threshold.of(all) => Judged::Good { needed: strategy.threshold.of(all) },
        _ => Judged::Open,
    }
}

/// How many devices of each site are unavailable, and how many may be.
struct Sites<'a>(Option<BTreeMap<&'a str, Site>>);

#[derive(Default, Clone, Copy)]
struct Site {
    members: u32,
    unavailable: u32,
    /// Of those, the ones that went silent on the way.
    dark: u32,
    limit: u32,
}

impl<'a> Sites<'a> {
    fn of(strategy: &Strategy, members: &[&'a Member]) -> Sites<'a> {
        let Some(limit) = strategy.unavailable_max else { return Sites(None) };
        let mut sites: BTreeMap<&str, Site> = BTreeMap::new();
        for member in members {
            let site = sites.entry(&member.site).or_default();
            site.members += u32::from(member.now != Now::Never);
            // Who went silent on the way, to this or to what went before, may be down; who was silent before was not touched by us.
            let dark = member.is_dark();
            let down = matches!(member.now, Now::UnderWay | Now::Failed | Now::Waits { down: true });
            site.dark += u32::from(dark);
            site.unavailable += u32::from(dark || down);
        }
        for site in sites.values_mut() {
            site.limit = limit.at_most(site.members);
        }
        Sites(Some(sites))
    }

    /// Whether those that wait here wait for silent ones.
    fn is_dark(&self, site: &str) -> bool {
        let site = self.0.as_ref().and_then(|sites| sites.get(site));
        site.is_some_and(|site| site.dark >= site.limit)
    }

    /// Those who can be released now, and how many are held back.
    ///
    /// Where the room of a site is taken by devices that are down with what they had before, and whose own turn is later, these
    /// are released: they cannot get more so, and what is new may be what mends them. Otherwise both would wait for ever.
    fn admit(mut self, members: &[&'a Member], is_open: impl Fn(&Member) -> bool) -> (Vec<DeviceRef>, u32) {
        let mut release = Vec::new();
        let mut held: BTreeMap<&str, u32> = BTreeMap::new();
        for member in members.iter().filter(|member| is_open(member)) {
            let Now::Waits { down } = member.now else { continue };
            let site = self.0.as_mut().and_then(|sites| sites.get_mut(member.site.as_str()));
            match site {
                // What is down already does not get more so.
                Some(site) if !down && site.unavailable >= site.limit => {
                    *held.entry(&member.site).or_default() += 1;
                    continue;
                }
                Some(site) => site.unavailable += u32::from(!down),
                None => {}
            }
            release.push(member.device.clone());
        }
        // Who is on the way to what went before comes to an end by itself.
        let is_down = |member: &&&Member| {
            !is_open(member) && member.now == (Now::Waits { down: true }) && !member.half_way
        };
        for (site, _) in held.iter() {
            let of_site = || members.iter().filter(is_down).filter(|member| member.site == *site);
            let takes_room = u32::try_from(of_site().count()).unwrap_or(u32::MAX);
            let Some(room) = self.0.as_ref().and_then(|sites| sites.get(site)) else { continue };
            if room.unavailable.saturating_sub(takes_room) < room.limit {
                release.extend(of_site().map(|member| member.device.clone()));
            }
        }
        (release, held.values().sum())
    }
}

#[cfg(test)]
mod tests;
