//! How often the engine brought containers back lately.
//!
//! What ends every half minute is found running by almost every look, and an engine only counts for how often it brought a
//! container back since somebody started it: months ago or just now is the same to it. So the count is followed from look to
//! look. It is not written down: an agent that was started anew finds a loop out again within minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::container::{Container, Status};
use super::health;

/// What has failed this often and was brought back each time is not going to start: waiting for the rest of
/// its timeout would only keep an operator in the dark. The engine goes on trying, and so does the device.
pub(super) const RESTARTS_MAX: u64 = 3;

/// As many restarts within this time are a loop. A program that runs for longer than that between its failures is of use
/// to somebody; one restart after a night is nothing.
pub(super) const LOOP_WITHIN: Duration = Duration::from_secs(5 * 60);

/// The containers that the last look saw, by id: one that was made anew has no past.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    of: BTreeMap<String, Followed>,
    /// How each ended when it was last seen down. An engine forgets that as soon as it has brought it back.
    exits: BTreeMap<String, String>,
}

/// What is known of containers that the engine brought back.
#[derive(Debug, Default)]
pub(super) struct Lately {
    /// Those that are in a loop, by id.
    pub(super) looping: BTreeSet<String>,
    /// How they last ended, as far as somebody looked just then.
    pub(super) exits: BTreeMap<String, String>,
}

impl Lately {
    pub(super) fn loops(&self, container: &Container) -> bool {
        self.looping.contains(&container.id)
    }

    /// That it does, in a sentence.
    pub(super) fn keeps_restarting(&self, container: &Container) -> String {
        let service = &container.service;
        match self.exits.get(&container.id) {
            Some(exit) => format!("Service {service} keeps restarting; it last {exit}."),
            None => format!("Service {service} keeps restarting."),
        }
    }
}

#[derive(Debug)]
struct Followed {
    count: u64,
    looked: Instant,
    /// When the last ones were, oldest first.
    last: Vec<Instant>,
}

impl Restarts {
    /// Takes in one look at all containers. The time is one that does not jump with the clock.
    pub(super) fn note<'a>(&mut self, containers: impl Iterator<Item = &'a Container> + Clone, now: Instant) {
        self.note_exits(containers.clone());
        let mut before = std::mem::take(&mut self.of);
        for container in containers {
            let count = container.restart_count;
            let last = match before.remove(&container.id) {
                Some(followed) if followed.count <= count => followed.with_more_until(count),
                // Seen for the first time, or started by somebody, from when on the engine counts anew.
                _ => vec![],
            };
            self.of.insert(container.id.clone(), Followed { count, looked: now, last });
        }
        self.exits.retain(|id, _| self.of.contains_key(id));
    }

    /// Takes in how those of some containers ended that are down.
    pub(super) fn note_exits<'a>(&mut self, containers: impl Iterator<Item = &'a Container>) {
        let down = containers.filter(|c| matches!(c.status, Status::Exited | Status::Restarting));
        for container in down {
            self.exits.insert(container.id.clone(), health::last_exit(container));
        }
    }

    pub(super) fn lately(&self, now: Instant) -> Lately {
        Lately { looping: self.looping(now), exits: self.exits.clone() }
    }

    /// The containers that are in a loop, by id. One is until it has stayed up for so long that its restarts are few again.
    fn looping(&self, now: Instant) -> BTreeSet<String> {
        let loops = |followed: &Followed| {
            followed.last.len() as u64 >= RESTARTS_MAX
                && followed.last.first().is_some_and(|first| now.duration_since(*first) <= LOOP_WITHIN)
        };
        self.of.iter().filter(|(_, followed)| loops(followed)).map(|(id, _)| id.clone()).collect()
    }
}

/// How often the engine brought these back since they were started, all of them together: as it counts, and not lately.
pub(super) fn counted(containers: &[Container]) -> u32 {
    let all = containers.iter().fold(0u64, |all, container| all.saturating_add(container.restart_count));
    u32::try_from(all).unwrap_or(u32::MAX)
}

impl Followed {
    /// What there were since the last look may have been right after it: a long time without looks makes no loop.
    fn with_more_until(self, count: u64) -> Vec<Instant> {
        let more = (count - self.count).min(RESTARTS_MAX);
        let mut last = self.last;
        last.extend((0..more).map(|_| self.looked));
        let excess = last.len().saturating_sub(RESTARTS_MAX as usize);
        last.drain(..excess);
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::health::tests::container;

    /// Looks at one container, each `(seconds since the one before, restarts counted)`; whether it loops after each.
    fn check(looks: &[(u64, u64)], want: &[bool]) {
        let (mut restarts, mut now) = (Restarts::default(), Instant::now());
        let mut got = vec![];
        for (seconds, restart_count) in looks {
            now += Duration::from_secs(*seconds);
            let web = Container { restart_count: *restart_count, ..container("web", Status::Running) };
            restarts.note([&web].into_iter(), now);
            got.push(restarts.looping(now).contains(&web.id));
        }
        assert_eq!(got, want, "{looks:?}");
    }

    #[test]
    fn three_restarts_within_five_minutes_are_a_loop_until_it_stays_up() {
        check(&[(0, 0), (12, 1), (12, 2), (12, 3)], &[false, false, false, true]);
        // It goes on, as slowly as it may; and then it stays up.
        check(
            &[(0, 0), (60, 1), (60, 2), (60, 3), (60, 4), (60, 5)],
            &[false, false, false, true, true, true],
        );
        check(&[(0, 0), (15, 3), (200, 3), (80, 3), (15, 3)], &[false, true, true, true, false]);
    }

    #[test]
    fn restarts_that_are_few_or_long_ago_are_no_loop() {
        // As it was when the agent started: nobody knows when that was.
        check(&[(0, 57), (15, 57), (15, 58), (15, 59)], &[false; 4]);
        check(&[(0, 0), (200, 1), (200, 2), (200, 3), (200, 4)], &[false; 5]);
        // Nobody could look for an hour.
        check(&[(0, 0), (3600, 9), (15, 9), (15, 10)], &[false; 4]);
    }

    #[test]
    fn how_it_ended_is_remembered_while_it_runs_again() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        let running = container("web", Status::Running);
        restarts.note([&running].into_iter(), now);
        assert_eq!(restarts.lately(now).keeps_restarting(&running), "Service web keeps restarting.");
        let down = Container { exit_code: 3, restart_count: 1, ..container("web", Status::Restarting) };
        restarts.note_exits([&down].into_iter());
        restarts.note([&running].into_iter(), now);
        assert_eq!(
            restarts.lately(now).keeps_restarting(&running),
            "Service web keeps restarting; it last exited with code 3."
        );
        let anew = Container { id: "anew".into(), ..running };
        restarts.note([&anew].into_iter(), now);
        assert!(restarts.exits.is_empty(), "what is gone is forgotten");
    }

    #[test]
    fn what_is_started_or_made_anew_has_no_past() {
        check(
            &[(0, 0), (12, 3), (12, 0), (12, 1), (12, 2), (12, 3)],
            &[false, true, false, false, false, true],
        );
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        let web = container("web", Status::Running);
        let later = now + Duration::from_secs(15);
        let looping = Container { restart_count: 3, ..web.clone() };
        let anew = Container { id: "anew".into(), restart_count: 3, ..web.clone() };
        restarts.note([&web].into_iter(), now);
        restarts.note([&looping].into_iter(), later);
        assert_eq!(restarts.looping(later), [web.id.clone()].into());
        restarts.note([&anew].into_iter(), later);
        assert!(restarts.looping(later).is_empty() && restarts.of.len() == 1, "what is gone is forgotten");
    }
}
