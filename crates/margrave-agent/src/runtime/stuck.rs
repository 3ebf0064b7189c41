//! Containers that an engine cannot start any more, because it was killed while it started them: it takes them for never
//! started, and what it works with takes them for running. Every try ends the same until they are made anew.

use std::collections::BTreeSet;

use margrave_core::report::Failure;

use super::container::{Container, Status};
use super::prepared::Prepared;

/// Removes those of the project, and returns whether there were any. Their volumes stay.
pub(super) async fn cleared(prepared: &Prepared) -> Result<bool, Failure> {
    let mut any = false;
    for container in prepared.containers().await?.iter().filter(|container| is_stuck(container)) {
        tracing::warn!(
            project = %prepared.project, service = container.service, error = container.error,
            "the engine lost track of a container; it is made anew"
        );
        prepared.engine.remove_container(&container.id).await?;
        any = true;
    }
    Ok(any)
}

/// Whether a container could not start because the network that it was made for is not there any more. Compose makes one of that name
/// and goes on asking for the old one.
pub(super) fn lacks_a_network(failure: &Failure) -> bool {
    let words = failure.message.as_str();
    words.split("network ").skip(1).any(|rest| rest.split_once(" not found").is_some_and(|(id, _)| is_id(id)))
}

/// As an engine names what it made itself: 64 hexadecimal digits.
fn is_id(word: &str) -> bool {
    word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The services of the project that have containers which do not run.
pub(super) async fn stopped(prepared: &Prepared) -> Result<BTreeSet<String>, Failure> {
    let containers = prepared.containers().await?.into_iter();
    let stopped = containers.filter(|c| !matches!(c.status, Status::Running | Status::Paused));
    let ordered = |service: &String| prepared.model.services.contains_key(service);
    Ok(stopped.map(|container| container.service).filter(ordered).collect())
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
    use crate::runtime::container::RestartPolicy;

    #[test]
    fn only_a_network_that_the_engine_itself_named_is_one_that_is_gone() {
        let id = "0f".repeat(32);
        let lacks = |words: &str| lacks_a_network(&Failure::new(FailureCode::StartFailed, words));
        assert!(lacks(&format!(
            "Service web could not start: failed to set up container networking: network {id} not found."
        )));
        assert!(lacks(&format!("no network: network {id} not found.")));
        for words in
            ["network shop not found", "network not found", "image not found", &format!("network {id} found")]
        {
            assert!(!lacks(words), "{words}");
        }
    }

    #[test]
    fn only_what_the_engine_has_lost_track_of_is_made_anew() {
        let check = |status: Status, error: &str| {
            is_stuck(&Container {
                id: "1".into(),
                project: "p".into(),
                service: "web".into(),
                assignment: None,
                component: None,
                config_hash: None,
                status,
                exit_code: 0,
                error: error.into(),
                out_of_memory: false,
                started_at: String::new(),
                finished_at: String::new(),
                health: None,
                restart_count: 0,
                restart_policy: RestartPolicy::No,
                stop_signal: None,
                adjustable: Default::default(),
                volumes: Default::default(),
            })
        };
        assert!(check(Status::Created, "task ab65d8f04e31: already exists"));
        assert!(check(Status::Exited, "failed to create task: task ab65d8f04e31: already exists: unknown"));
        assert!(!check(Status::Running, "task ab65d8f04e31: already exists"));
        assert!(!check(Status::Created, "driver failed: port is already allocated"));
        assert!(!check(Status::Created, ""));
    }
}
