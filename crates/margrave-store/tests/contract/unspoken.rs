//! Removals that devices say nothing about: which of them may be ended without a word, and which are waited for.

use margrave_core::id::AssignmentId;
use margrave_core::lifecycle::State;
use margrave_core::report::Report;
use margrave_store::*;

use crate::fixture::*;

/// What happens to one deployment on one device. Its manifest is at 1 before, and one higher with each that changes it.
enum Step {
    Comes,
    Goes,
    /// The device says it, having adopted this version.
    Says(State, u64),
    /// The same, while what is wanted waits for a window or for somebody who holds changes back.
    Waits(State, u64),
}

use Step::*;

struct Story {
    world: World,
    id: AssignmentId,
    told: u64,
}

impl Story {
    async fn new(steps: &[Step]) -> Self {
        let world = World::new();
        world.join("line-1").await;
        let id = AssignmentId::derive(deployment_id("hello"), &device("line-1"));
        let mut story = Story { world, id, told: 0 };
        for step in steps {
            story.take(step).await;
        }
        story
    }

    async fn take(&mut self, step: &Step) {
        match *step {
            Comes => self.world.run("line-1", &[("hello", b"one")]).await,
            Goes => self.world.run("line-1", &[]).await,
            Says(state, adopted) => self.say(state, adopted, None).await,
            Waits(state, adopted) => self.say(state, adopted, Some("for its window".to_owned())).await,
        }
    }

    async fn say(&mut self, state: State, adopted: u64, waiting: Option<String>) {
        self.told += 1;
        let mut report: Report = numbered(self.id, adopted, state, self.told);
        report.detail.as_mut().unwrap().waiting = waiting;
        self.world.store.record_report(&client("line-1"), report, NOW).await.unwrap();
        let kept = self.world.assignments("line-1").await.into_iter().find_map(|record| record.observed);
        // Otherwise the story would be another one than it looks.
        assert!(
            kept.is_none_or(|kept| (kept.state, kept.report.adopted_version) == (state, adopted)),
            "what was said came too late"
        );
    }

    async fn unspoken(&self) -> Vec<UnspokenRemoval> {
        self.world.store.removals_unspoken(NOW).await.unwrap()
    }
}

/// Whether the removal that these steps lead to is one that nothing was said about; if so, in which version it went, and whether
/// the device had told that it has it.
async fn check(steps: &[Step], expected: Option<(u64, bool)>) {
    let story = Story::new(steps).await;
    let expected = expected.map(|(version, was_there)| UnspokenRemoval {
        id: story.id,
        client: client("line-1"),
        version,
        was_there,
    });
    assert_eq!(story.unspoken().await, Vec::from_iter(expected));
}

#[tokio::test]
async fn what_went_before_the_device_said_anything_was_never_there() {
    check(&[Comes, Goes], Some((3, false))).await;
}

#[tokio::test]
async fn what_was_there_went_without_a_word() {
    for state in [State::Pending, State::Installing, State::Installed, State::Failed] {
        check(&[Comes, Says(state, 2), Goes], Some((3, true))).await;
    }
}

#[tokio::test]
async fn what_is_wanted_is_no_removal_whatever_is_said_of_it() {
    check(&[Comes], None).await;
    check(&[Comes, Says(State::Installed, 2)], None).await;
    // It came back while it goes.
    check(&[Comes, Says(State::Installed, 2), Goes, Says(State::Deleting, 3), Comes], None).await;
}

#[tokio::test]
async fn a_removal_that_the_device_speaks_of_is_waited_for() {
    check(&[Comes, Says(State::Installed, 2), Goes, Says(State::Deleting, 3)], None).await;
    // With the version that it came in, and none since: the device removes it of itself, and will say so.
    check(&[Comes, Says(State::Deleting, 2), Goes], None).await;
    check(&[Comes, Says(State::Installed, 2), Goes, Says(State::Deleted, 3)], None).await;
}

#[tokio::test]
async fn a_removal_that_failed_is_spoken_of() {
    check(&[Comes, Says(State::Installed, 2), Goes, Says(State::Failed, 3)], None).await;
}

#[tokio::test]
async fn a_removal_that_waits_is_waited_for() {
    check(&[Comes, Says(State::Installed, 2), Goes, Waits(State::Installed, 2)], None).await;
    check(&[Comes, Says(State::Installed, 2), Goes, Waits(State::Deleting, 3)], None).await;
}

#[tokio::test]
async fn what_was_said_to_be_gone_while_it_was_wanted_may_have_come_back_and_was_not_there() {
    // The server goes on above the version that it was said with.
    check(&[Comes, Says(State::Installed, 2), Says(State::Deleted, 2), Goes], Some((4, false))).await;
}

#[tokio::test]
async fn what_was_said_to_go_before_it_came_back_says_nothing_of_its_second_end() {
    let steps = [Comes, Says(State::Installed, 2), Goes, Says(State::Deleting, 3), Comes, Goes];
    check(&steps, Some((5, true))).await;
}

#[tokio::test]
async fn a_window_of_the_life_before_holds_up_no_second_end() {
    let steps = [Comes, Says(State::Installed, 2), Goes, Waits(State::Deleting, 3), Comes, Goes];
    check(&steps, Some((5, true))).await;
}

#[tokio::test]
async fn what_runs_and_waits_since_the_life_before_is_waited_for() {
    // Somebody holds changes back: the device takes up neither of the manifests, and still runs it.
    check(&[Comes, Waits(State::Installed, 2), Goes, Comes, Goes], None).await;
}

#[tokio::test]
async fn what_was_said_in_the_life_before_does_not_tell_that_it_is_there() {
    check(&[Comes, Says(State::Installed, 2), Goes, Comes, Goes], Some((5, false))).await;
}

#[tokio::test]
async fn a_removal_that_is_younger_is_left_alone() {
    let story = Story::new(&[Comes, Goes]).await;
    let before = margrave_core::moment::Moment(NOW.0 - 1);
    assert_eq!(story.world.store.removals_unspoken(before).await.unwrap(), []);
    assert_eq!(story.unspoken().await.len(), 1);
}

#[tokio::test]
async fn what_went_with_its_client_is_no_removal() {
    let story = Story::new(&[Comes, Goes]).await;
    story.world.store.retire_clients(vec![client("line-1")], NOW, "operator ann").await.unwrap();
    assert_eq!(story.unspoken().await, []);
}

#[tokio::test]
async fn what_is_spoken_of_at_the_last_moment_is_not_ended() {
    for (word, left) in [
        (None, false),
        (Some(Says(State::Deleting, 5)), true),
        (Some(Waits(State::Installed, 4)), true),
        (Some(Says(State::Installed, 4)), false),
    ] {
        let steps = [Comes, Says(State::Installed, 2), Goes, Says(State::Deleting, 3), Comes, Goes];
        let mut story = Story::new(&steps).await;
        let ids: Vec<_> = story.unspoken().await.into_iter().map(|removal| removal.id).collect();
        assert_eq!(ids, [story.id]);
        if let Some(word) = word {
            story.take(&word).await;
        }
        story.world.store.archive_unspoken(ids, NOW).await.unwrap();
        assert_eq!(!story.world.assignments("line-1").await.is_empty(), left);
        assert_eq!(story.unspoken().await, [], "what ended has ended");
    }
}
