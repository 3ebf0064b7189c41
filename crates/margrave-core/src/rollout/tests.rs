//! Rules by example, and promises from seeds.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use super::*;

const NOW: Moment = Moment(1_800_000_000_000);

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

/// Devices in their places, a word each: `waits`, `down`, `silent`, `never` and `gone` (silent, half-way to what went before) are not released; `going`, `done`, `failed`,
/// `back` and `lost` (silent) are; a `*` forgives. The site is behind an `@`.
fn members(text: &str) -> Vec<Member> {
    let member = |(place, word): (usize, &str)| {
        let (word, site) = word.split_once('@').unwrap_or((word, ""));
        let (word, forgiven) = word.strip_suffix('*').map_or((word, false), |word| (word, true));
        let (released, now) = match word {
            "waits" => (false, Now::Waits { down: false }),
            "down" => (false, Now::Waits { down: true }),
            "silent" | "gone" => (false, Now::Silent),
            "never" => (false, Now::Never),
            "going" => (true, Now::UnderWay),
            "done" => (true, Now::Done),
            "failed" => (true, Now::Failed),
            "back" => (true, Now::GoneBack),
            "lost" => (true, Now::Silent),
            other => panic!("{other}"),
        };
        Member {
            device: DeviceRef::parse(&format!("d{place}")).unwrap(),
            place: u32::try_from(place).unwrap(),
            site: site.to_owned(),
            released,
            forgiven,
            heard: NOW,
            half_way: word == "gone",
            now,
        }
    };
    text.split_whitespace().enumerate().map(member).collect()
}

fn progress(text: &str) -> Progress {
    let members = members(text);
    Progress {
        size: u32::try_from(members.len()).unwrap(),
        members,
        forgiven_gone: Vec::new(),
        reached: Reached::default(),
        heard_since: None,
        hold: Hold::None,
        revertible: true,
    }
}

fn released(decision: &Decision) -> String {
    decision.release.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn pairs() -> Strategy {
    Strategy { batches: vec![amount("2")], ..Default::default() }
}

#[test]
fn all_at_once_releases_everybody_who_is_there() {
    let decision = decide(&Strategy::default(), &progress("waits silent waits never"), NOW);
    assert_eq!((released(&decision).as_str(), &decision.standing), ("d0 d2", &Standing::Running));
    let after = decide(&Strategy::default(), &progress("done silent done never"), NOW);
    assert_eq!(after.standing, Standing::Waiting(Waiting::Silent { not_yet: 1 }));
    let end = decide(&Strategy::default(), &progress("done done never"), NOW);
    assert_eq!((end.release.len(), end.standing), (0, Standing::Done));
    assert_eq!(decide(&pairs(), &progress(""), NOW).standing, Standing::Done);
}

#[test]
fn a_batch_follows_when_the_one_before_is_good() {
    let check = |strategy: &Strategy, now: &str, expected: &str| {
        assert_eq!(released(&decide(strategy, &progress(now), NOW)), expected, "{now}");
    };
    check(&pairs(), "waits waits waits waits", "d0 d1");
    check(&pairs(), "done going waits waits", "");
    check(&pairs(), "done done waits waits waits", "d2 d3");
    // Who does not fit is out of the count, who is silent is passed over.
    check(&pairs(), "done never waits waits", "d2 d3");
    check(&pairs(), "done silent waits waits", "d2 d3");
    check(&pairs(), "done lost waits waits", "d2 d3");
    check(&pairs(), "never never waits waits", "d2 d3");
    // A first batch that nobody answers from proves nothing; a later one stops nobody.
    check(&pairs(), "silent silent waits waits", "");
    check(&pairs(), "silent never waits waits", "");
    check(&pairs(), "done done silent silent waits", "d4");
    // It was passed over, and is back: its turn has come already.
    check(&pairs(), "done waits done done waits", "d1");
    let most =
        Strategy { batches: vec![amount("4")], threshold: "75%".parse().unwrap(), ..Default::default() };
    check(&most, "done done going going waits", "");
    check(&most, "done done done going waits", "d4");
    check(&most, "done done done failed waits", "d4");
}

#[test]
fn a_batch_of_which_nobody_is_left_proves_nothing() {
    let soak = Duration::from_secs(60);
    let canary = Canary { size: amount("2"), labels: BTreeMap::new(), soak: Some(soak) };
    let canary = Strategy { canary: Some(canary), batches: vec![amount("3")], ..Default::default() };
    let halted = |progress: &Progress| {
        let decision = decide(&canary, progress, NOW);
        assert_eq!(decision.release.len(), 0);
        let why = "nobody is left in batch 1 who could prove it; resume to go on without";
        assert_eq!(decision.standing, Standing::Halted(why.into()));
        decision.reached
    };
    // They went dark and were retired; what they were good for until then counts for nothing.
    let mut retired = progress("lost lost waits waits waits waits");
    retired.members.drain(..2);
    retired.reached.good_since = Some(NOW);
    // They refused it, and more would get it next, or as many and for no time.
    let refused = ["never never waits waits waits", "never never never silent waits"].map(progress);
    for mut at in [retired].into_iter().chain(refused) {
        at.reached = halted(&at);
        assert_eq!(at.reached, Reached { batch: 1, good_since: None });
        // A person lets it go on without them, and the next batch has to prove it.
        let resumed = decide(&canary, &at, NOW);
        assert_eq!((resumed.reached.batch, resumed.standing), (1, Standing::Running));
        assert!(!resumed.release.is_empty() && resumed.release.len() <= 3, "{:?}", resumed.release);
    }
    let mut alone = progress("lost waits waits");
    alone.members.remove(0);
    let ones = Strategy { batches: vec![amount("1")], ..Default::default() };
    assert!(matches!(decide(&ones, &alone, NOW).standing, Standing::Halted(_)), "it may have broken it");
    // Somebody looked at those that failed.
    assert_eq!(released(&decide(&canary, &progress("failed* never waits waits"), NOW)), "d2 d3");
    // Nobody is to come after them.
    assert_eq!(decide(&canary, &progress("never never never"), NOW).standing, Standing::Done);
}

#[test]
fn what_was_reached_stays_reached() {
    let mut progress = progress("waits done done done waits");
    progress.reached.batch = 2;
    assert_eq!(released(&decide(&pairs(), &progress, NOW)), "d0 d4");
}

#[test]
fn a_good_batch_is_watched_before_the_next() {
    let strategy = Strategy {
        canary: Some(Canary {
            size: amount("1"),
            labels: BTreeMap::new(),
            soak: Some(Duration::from_secs(1800)),
        }),
        batches: vec![amount("2")],
        soak: Duration::from_secs(60),
        ..Default::default()
    };
    let mut at = progress("done waits waits waits");
    let first = decide(&strategy, &at, NOW);
    let until = NOW.after(Duration::from_secs(1800));
    assert_eq!(first.standing, Standing::Waiting(Waiting::Soak { batch: 0, until }));
    assert_eq!(first.reached, Reached { batch: 0, good_since: Some(NOW) });
    at.reached = first.reached;
    assert!(decide(&strategy, &at, Moment(until.0 - 1)).release.is_empty());
    at.members[0].heard = until;
    at.heard_since = Some(until);
    let next = decide(&strategy, &at, until.after(HEARD_OUT_AFTER));
    assert_eq!((released(&next).as_str(), next.reached), ("d1 d2", Reached { batch: 1, good_since: None }));
    // It got worse meanwhile: the time begins anew.
    at.members[0].now = Now::UnderWay;
    let worse = decide(&strategy, &at, Moment(until.0 - 1));
    assert_eq!((worse.reached.good_since, worse.standing), (None, Standing::Running));
    // A clock that was set back makes the time no longer than it is.
    at.members[0].now = Now::Done;
    let back = decide(&strategy, &at, Moment(NOW.0 - 1_000_000));
    let until = Moment(NOW.0 - 1_000_000).after(Duration::from_secs(1800));
    assert_eq!(back.standing, Standing::Waiting(Waiting::Soak { batch: 0, until }));
}

#[test]
fn what_nobody_saw_is_not_good() {
    let strategy = Strategy { soak: Duration::from_secs(60), ..pairs() };
    let until = NOW.after(Duration::from_secs(60));
    let late = until.after(Duration::from_secs(3600));
    let mut at = progress("done done waits");
    at.reached.good_since = Some(NOW);
    let unheard = |unheard| Standing::Waiting(Waiting::Unheard { batch: 0, since: until, unheard });
    // Nobody was heard of since it was good, or too few were: one that asks seldom is waited for like one that is gone.
    assert_eq!(decide(&strategy, &at, late).standing, unheard(2));
    at.members[0].heard = until;
    let one = decide(&strategy, &at, late);
    assert_eq!((one.standing, one.release.len(), one.reached), (unheard(1), 0, at.reached));
    let half = Strategy { threshold: "50%".parse().unwrap(), ..strategy.clone() };
    assert!(decide(&half, &at, late).heard_since.is_some(), "half of them were asked for");
    // Both are back, and are heard out first.
    at.members[1].heard = late;
    let both = decide(&strategy, &at, late);
    let out = late.after(HEARD_OUT_AFTER);
    assert_eq!(both.standing, Standing::Waiting(Waiting::Soak { batch: 0, until: out }));
    assert_eq!((both.heard_since, both.release.len()), (Some(late), 0));
    at.heard_since = both.heard_since;
    assert_eq!(decide(&strategy, &at, Moment(out.0 - 1)).release.len(), 0);
    assert_eq!(released(&decide(&strategy, &at, out)), "d2");
    // Who failed in the meantime said so by then.
    at.members[1].now = Now::Failed;
    assert!(matches!(decide(&strategy, &at, out).standing, Standing::Halted(_)));
}

#[test]
fn the_last_batch_is_watched_before_it_is_done() {
    let strategy = Strategy { soak: Duration::from_secs(60), ..Strategy::default() };
    let mut at = progress("done done never");
    let first = decide(&strategy, &at, NOW);
    let until = NOW.after(Duration::from_secs(60));
    assert_eq!(first.standing, Standing::Waiting(Waiting::Soak { batch: 0, until }));
    at.reached = first.reached;
    assert!(matches!(decide(&strategy, &at, until).standing, Standing::Waiting(Waiting::Unheard { .. })));
    at.members.iter_mut().for_each(|member| member.heard = until);
    at.heard_since = decide(&strategy, &at, until).heard_since;
    assert_eq!(decide(&strategy, &at, until.after(HEARD_OUT_AFTER)).standing, Standing::Done);
    at.members[1].now = Now::Failed;
    assert!(matches!(decide(&strategy, &at, until).standing, Standing::Halted(_)));
}

#[test]
fn a_site_gives_no_more_devices_than_it_may() {
    let strategy = Strategy { unavailable_max: Some(amount("1")), ..Default::default() };
    let check = |now: &str, expected: &str| {
        assert_eq!(released(&decide(&strategy, &progress(now), NOW)), expected, "{now}");
    };
    check("waits@a waits@a waits@b waits", "d0 d2 d3");
    check("going@a waits@a waits@b", "d2");
    check("done@a waits@a", "d1");
    // What is down already may be made better.
    check("down@a waits@a down@a", "d0 d2");
    // Silent before we touched it; silent since we did.
    check("silent@a waits@a", "d1");
    check("lost@a waits@a waits@b", "d2");
    check("gone@a waits@a waits@b", "d2");
    let parts = Strategy { unavailable_max: Some(amount("50%")), ..Default::default() };
    assert_eq!(released(&decide(&parts, &progress("waits waits waits waits waits"), NOW)), "d0 d1");
    let held = decide(&strategy, &progress("lost@a waits@a done@b"), NOW);
    assert_eq!(held.standing, Standing::Waiting(Waiting::Sites { held: 1 }));
}

#[test]
fn what_is_down_with_the_version_before_does_not_keep_its_site_from_the_one_that_mends_it() {
    let one = |text: &str| Amount::from_str(text).unwrap();
    let strategy =
        Strategy { batches: vec![one("1")], unavailable_max: Some(one("1")), ..Default::default() };
    let check = |now: &str, expected: &str| {
        let decision = decide(&strategy, &progress(now), NOW);
        assert_eq!(released(&decision), expected, "{now}");
    };
    check("waits@a down@a waits@a", "d1");
    check("waits@a going@a waits@a", "");
    // Whoever is under way has the room, and comes to an end.
    check("waits@a going@a down@a", "");
    // Nobody waits for it: it has its own turn.
    check("waits@b down@a waits@a", "d0");
    check("done@a waits@a done@a down@a", "d3");
    check("waits@a done@a down@a", "d2");
    let mut halfway = progress("waits@a down@a");
    halfway.members[1].half_way = true;
    assert_eq!(released(&decide(&strategy, &halfway, NOW)), "");
}

#[test]
fn a_batch_of_which_only_forgiven_failures_went_is_passed_over_once_they_are_gone() {
    let strategy = Strategy { batches: vec![amount("1")], ..Default::default() };
    let mut gone = progress("failed waits waits");
    gone.members.remove(0);
    for (forgiven, expected) in [(vec![], ""), (vec![1], ""), (vec![0], "d1")] {
        gone.forgiven_gone = forgiven.clone();
        let decision = decide(&strategy, &gone, NOW);
        assert_eq!(released(&decision), expected, "{forgiven:?}");
        assert_eq!(matches!(decision.standing, Standing::Halted(_)), expected.is_empty(), "{forgiven:?}");
    }
    let mut both = progress("failed waits waits waits");
    both.members.drain(..2);
    for (forgiven, expected) in [(vec![0], ""), (vec![0, 1], "d2 d3")] {
        both.forgiven_gone = forgiven.clone();
        assert_eq!(released(&decide(&pairs(), &both, NOW)), expected, "{forgiven:?}");
    }
}

#[test]
fn a_dark_site_does_not_stop_the_others() {
    let strategy = Strategy { unavailable_max: Some(amount("1")), ..pairs() };
    assert_eq!(released(&decide(&strategy, &progress("done@b done@b lost@a waits@a waits@b"), NOW)), "d4");
    assert_eq!(released(&decide(&strategy, &progress("lost@a waits@a waits@b"), NOW)), "");
}

#[test]
fn too_many_failures_halt_or_revert() {
    let standing = |strategy: &Strategy, now: &str| decide(strategy, &progress(now), NOW).standing;
    let Standing::Halted(why) = standing(&pairs(), "done failed waits") else { panic!("it goes on") };
    assert_eq!(why, "1 device of batch 1 failed, and 2 of 2 must have it installed");
    assert!(matches!(standing(&pairs(), "done back waits"), Standing::Halted(_)));
    let revert = Strategy { on_failure: OnFailure::Revert, ..pairs() };
    assert!(matches!(standing(&revert, "done failed waits"), Standing::Reverting(_)));
    let mut first = progress("done failed waits");
    first.revertible = false;
    assert!(matches!(decide(&revert, &first, NOW).standing, Standing::Halted(_)));
    // One in four is tolerated, and two in all are not.
    let some = Strategy {
        batches: vec![amount("4")],
        threshold: "75%".parse().unwrap(),
        failures: NonZeroU32::new(2),
        ..Default::default()
    };
    assert_eq!(standing(&some, "done done done failed"), Standing::Done);
    assert!(matches!(standing(&some, "done failed failed going"), Standing::Halted(_)));
    assert!(matches!(standing(&some, "done done done failed failed done done done"), Standing::Halted(_)));
    // A person let it go on.
    assert_eq!(released(&decide(&pairs(), &progress("done failed* waits"), NOW)), "d2");
}

#[test]
fn nobody_new_is_released_while_it_is_held() {
    for (hold, standing) in [
        (Hold::Paused, Standing::Paused),
        (Hold::Aborted, Standing::Aborted),
        (Hold::Halted("so".into()), Standing::Halted("so".into())),
    ] {
        let mut held = progress("done done waits");
        held.hold = hold;
        let decision = decide(&pairs(), &held, NOW);
        assert_eq!((decision.release.len(), decision.standing), (0, standing));
        assert_eq!(decision.batches.iter().map(Batch::total).sum::<u32>(), 3);
    }
}

#[test]
fn the_two_words_are_counted_apart() {
    let decision = decide(&pairs(), &progress("done going silent never failed waits"), NOW);
    let words: Vec<String> = decision
        .batches
        .iter()
        .map(|batch| {
            format!(
                "{}: {} done, {} under way, {} waiting, {} not yet, {} never, {} failed",
                batch.number,
                batch.done,
                batch.under_way,
                batch.waiting,
                batch.not_yet,
                batch.never,
                batch.failed
            )
        })
        .collect();
    assert_eq!(
        words,
        [
            "0: 1 done, 1 under way, 0 waiting, 0 not yet, 0 never, 0 failed",
            "1: 0 done, 0 under way, 0 waiting, 1 not yet, 1 never, 0 failed",
            "2: 0 done, 0 under way, 1 waiting, 0 not yet, 0 never, 1 failed",
        ]
    );
}

/// Splitmix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn hit(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    fn amount(&mut self) -> Amount {
        match self.hit(50) {
            true => Amount::Count(NonZeroU32::new(1 + self.roll(5) as u32).unwrap()),
            false => Amount::Percent(Percent::new(1 + self.roll(100) as u8).unwrap()),
        }
    }

    fn strategy(&mut self) -> Strategy {
        let soak = |dice: &mut Dice| Duration::from_secs(dice.roll(3) * 60);
        Strategy {
            canary: self.hit(50).then(|| Canary {
                size: self.amount(),
                labels: BTreeMap::new(),
                soak: self.hit(70).then(|| soak(self)),
            }),
            batches: (0..self.roll(4)).map(|_| self.amount()).collect(),
            order: Vec::new(),
            soak: soak(self),
            unavailable_max: self.hit(50).then(|| self.amount()),
            threshold: Percent::new(50 + self.roll(51) as u8).unwrap(),
            on_failure: OnFailure::Halt,
            failures: None,
        }
    }
}

/// Devices that take what they are given, some of them badly, and a server that forgets between any two steps.
struct Fleet {
    strategy: Strategy,
    /// What is on disk.
    kept: Progress,
    now: Moment,
    dice: Dice,
    /// The batches of those that were released, as they were.
    order: Vec<u32>,
}

impl Fleet {
    fn new(seed: u64) -> Fleet {
        let mut dice = Dice(seed);
        let strategy = dice.strategy();
        let size = u32::try_from(1 + dice.roll(30)).unwrap();
        let members = (0..size).map(|place| Member {
            device: DeviceRef::parse(&format!("d{place}")).unwrap(),
            place,
            site: format!("s{}", dice.roll(4)),
            released: false,
            forgiven: false,
            heard: NOW,
            half_way: false,
            now: match dice.roll(20) {
                0 => Now::Never,
                1 | 2 => Now::Silent,
                3 => Now::Waits { down: true },
                _ => Now::Waits { down: false },
            },
        });
        let kept = Progress {
            size,
            members: members.collect(),
            forgiven_gone: Vec::new(),
            reached: Reached::default(),
            heard_since: None,
            hold: Hold::None,
            revertible: true,
        };
        Fleet { strategy, kept, now: NOW, dice, order: Vec::new() }
    }

    fn unavailable(&self, site: &str) -> u32 {
        let down = |member: &&Member| {
            matches!(member.now, Now::UnderWay | Now::Failed | Now::Waits { down: true })
                || (member.released && member.now == Now::Silent)
        };
        let of_site = self.kept.members.iter().filter(|member| member.site == site);
        u32::try_from(of_site.filter(down).count()).unwrap()
    }

    /// Decides, and keeps what was decided unless the power goes just before.
    fn step(&mut self) -> Standing {
        let decision = decide(&self.strategy, &self.kept, self.now);
        assert_eq!(decision, decide(&self.strategy, &self.kept, self.now), "the same facts, another answer");
        if self.dice.hit(20) {
            return decision.standing;
        }
        if matches!(decision.standing, Standing::Halted(_)) {
            assert!(decision.release.is_empty());
        }
        let before: BTreeMap<String, u32> =
            self.kept.members.iter().map(|m| (m.site.clone(), self.unavailable(&m.site))).collect();
        assert!(decision.reached.batch >= self.kept.reached.batch, "it goes back");
        let left = self.kept.reached;
        if let Some(since) = left.good_since
            && decision.reached.batch > left.batch
        {
            let soak = self.strategy.soak_of(left.batch);
            let size = self.kept.size;
            let done = self.kept.members.iter().filter(|member| {
                self.strategy.batch_of(member.place, size) == left.batch && member.now == Now::Done
            });
            let heard = done.clone().filter(|member| member.heard >= since.after(soak)).count();
            let enough = self.strategy.threshold.of(u32::try_from(done.count()).unwrap());
            assert!(soak.is_zero() || heard >= enough as usize, "{heard} of {enough} were heard of");
        }
        self.kept.reached = decision.reached;
        // A server that is started again has heard of nobody.
        self.kept.heard_since = decision.heard_since.filter(|_| !self.dice.hit(10));
        for device in &decision.release {
            let batch_open = decision.reached.batch;
            let member = self.kept.members.iter_mut().find(|member| member.device == *device).unwrap();
            assert!(matches!(member.now, Now::Waits { .. }) && !member.released, "{member:?}");
            // Who is down may come before its turn, where others of its site wait for that.
            let batch = self.strategy.batch_of(member.place, self.kept.size);
            let is_early = batch > batch_open;
            assert!(!is_early || member.now == (Now::Waits { down: true }), "{member:?}");
            self.order.extend((!is_early).then_some(batch));
            member.released = true;
            member.now = Now::UnderWay;
        }
        if let Some(limit) = self.strategy.unavailable_max {
            for (site, before) in before {
                let fit = self.kept.members.iter().filter(|m| m.site == site && m.now != Now::Never).count();
                let limit = limit.at_most(u32::try_from(fit).unwrap());
                let after = self.unavailable(&site);
                assert!(after <= limit.max(before), "{site}: {after} of {limit}, {before} before");
            }
        }
        decision.standing
    }

    /// What happens to devices between two decisions.
    fn live(&mut self, trouble: bool) {
        self.now = self.now.after(Duration::from_secs(self.dice.roll(90)));
        for member in &mut self.kept.members {
            let chance = self.dice.roll(100);
            member.now = match (member.now, member.released) {
                (Now::UnderWay, _) if trouble && chance < 3 => Now::Failed,
                (Now::UnderWay, _) if trouble && chance < 5 => Now::Silent,
                (Now::UnderWay, _) if chance > 40 => Now::Done,
                (Now::Waits { .. }, _) if trouble && chance < 3 => Now::Silent,
                (Now::Silent, false) if !trouble || chance < 10 => Now::Waits { down: false },
                (Now::Silent, true) if !trouble || chance < 10 => Now::UnderWay,
                (Now::Failed, _) if !trouble => Now::UnderWay,
                (same, _) => same,
            };
            if member.now != Now::Silent && (!trouble || self.dice.hit(60)) {
                member.heard = self.now;
            }
        }
    }
}

#[test]
fn from_any_seed_nobody_is_released_too_early_and_all_in_the_end() {
    let mut ends = BTreeMap::new();
    for seed in 0..2000 {
        let mut fleet = Fleet::new(seed);
        let mut standing = Standing::Running;
        for round in 0..3000 {
            standing = fleet.step();
            match standing {
                Standing::Done => break,
                // A person looks at it, and lets it go on.
                Standing::Halted(_) => {
                    for member in &mut fleet.kept.members {
                        member.forgiven |= matches!(member.now, Now::Failed | Now::GoneBack);
                    }
                    *ends.entry("halted").or_insert(0) += 1;
                }
                _ => {}
            }
            // In the end all get well.
            fleet.live(round < 60);
        }
        assert_eq!(standing, Standing::Done, "seed {seed}: {:?}", fleet.kept);
        let left =
            fleet.kept.members.iter().filter(|m| !matches!(m.now, Now::Done | Now::Never | Now::Failed));
        assert_eq!(left.count(), 0, "seed {seed}");
        *ends.entry("done").or_insert(0) += 1;
        if fleet.order.windows(2).any(|pair| pair[0] != pair[1]) {
            *ends.entry("in batches").or_insert(0) += 1;
        }
    }
    assert!(ends["halted"] > 100 && ends["in batches"] > 500, "the seeds are too tame: {ends:?}");
}

#[test]
fn from_any_seed_batches_come_in_order_when_nobody_is_late() {
    for seed in 0..500 {
        let mut fleet = Fleet::new(seed);
        // A site that has enough of it lets the next batch go ahead.
        fleet.strategy.unavailable_max = None;
        for member in &mut fleet.kept.members {
            member.now = Now::Waits { down: false };
        }
        for _ in 0..3000 {
            if fleet.step() == Standing::Done {
                break;
            }
            fleet.live(false);
        }
        assert!(fleet.order.is_sorted(), "seed {seed}: {:?}", fleet.order);
        assert_eq!(fleet.order.len(), fleet.kept.members.len(), "seed {seed}");
    }
}

#[test]
fn from_any_seed_a_failure_in_a_strict_rollout_stops_it() {
    for seed in 0..500 {
        let mut fleet = Fleet::new(seed);
        fleet.strategy.threshold = Percent::ALL;
        for _ in 0..200 {
            let standing = fleet.step();
            let failed = fleet.kept.members.iter().any(|member| member.now == Now::Failed);
            if failed {
                assert!(matches!(
                    decide(&fleet.strategy, &fleet.kept, fleet.now).standing,
                    Standing::Halted(_)
                ));
                break;
            }
            if standing == Standing::Done {
                break;
            }
            fleet.live(true);
        }
    }
}
