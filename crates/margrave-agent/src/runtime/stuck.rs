//! Containers that an engine cannot start any more. Every try ends the same until they are made anew.
//!
//! An engine that was killed while it started a container takes it for never started, and what it works with takes it for running. And
//! a stopped container goes on asking for the network that it was made for.

use std::collections::BTreeSet;

use margrave_core::report::Failure;

use super::container::{Container, Status};

/// The services with containers that the engine lost track of.
pub(super) fn lost(_: &Failure, containers: &[Container]) -> BTreeSet<String> {
    containers.iter().filter(|container| is_stuck(container)).map(|c| c.service.clone()).collect()
}

/// The services with containers that do not run, where one could not be started because what it was made for is not there any more.
/// Whoever removes networks that nothing running is on takes it from all that was stopped: Compose makes one of that name, and they go
/// on asking for the old one.
pub(super) fn stopped(failure: &Failure, containers: &[Container]) -> BTreeSet<String> {
    if !refers_to_what_is_gone(failure) {
        return BTreeSet::new();
    }
    let stopped = containers.iter().filter(|c| !matches!(c.status, Status::Running | Status::Paused));
    stopped.map(|container| container.service.clone()).collect()
}

/// In the words of Docker: `network <id> not found`, `No such container: <id>`.
fn refers_to_what_is_gone(failure: &Failure) -> bool {
    let words = failure.message.as_str();
    let network = |rest: &str| rest.split_once(" not found").is_some_and(|(id, _)| is_id(id));
    let container = |rest: &str| rest.get(..ID_LENGTH).is_some_and(is_id);
    words.split("network ").skip(1).any(network) || words.split("No such container: ").skip(1).any(container)
}

/// As an engine names what it made itself.
const ID_LENGTH: usize = 64;

fn is_id(word: &str) -> bool {
    word.len() == ID_LENGTH && word.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_stuck(container: &Container) -> bool {
    let never_came_up = matches!(container.status, Status::Created | Status::Exited);
    // As containerd says it, and Docker after it: `task <id>: already exists`.
    never_came_up && container.error.contains("task ") && container.error.contains("already exists")
}

#[cfg(test)]
mod tests {
    use margrave_core::report::FailureCode;

    use super::*;
    use crate::runtime::health::tests::container;

    #[test]
    fn only_what_the_engine_itself_named_is_something_that_is_gone() {
        let id = "0f".repeat(32);
        let is_gone = |words: &str| refers_to_what_is_gone(&Failure::new(FailureCode::StartFailed, words));
        for words in [
            format!(
                "Service web could not start: failed to set up container networking: network {id} not found."
            ),
            format!("no network: network {id} not found."),
            format!(
                "Service web could not start: joining network namespace of container: No such container: {id}."
            ),
        ] {
            assert!(is_gone(&words), "{words}");
        }
        for words in [
            "network shop not found",
            "network not found",
            "image not found",
            "No such container: shop",
            "No such container: ",
            &format!("network {id} found"),
        ] {
            assert!(!is_gone(words), "{words}");
        }
    }

    #[test]
    fn only_what_the_engine_has_lost_track_of_is_made_anew() {
        let check = |status: Status, error: &str| {
            is_stuck(&Container { error: error.into(), ..container("web", status) })
        };
        assert!(check(Status::Created, "task ab65d8f04e31: already exists"));
        assert!(check(Status::Exited, "failed to create task: task ab65d8f04e31: already exists: unknown"));
        assert!(!check(Status::Running, "task ab65d8f04e31: already exists"));
        assert!(!check(Status::Created, "driver failed: port is already allocated"));
        assert!(!check(Status::Created, ""));
    }
}
