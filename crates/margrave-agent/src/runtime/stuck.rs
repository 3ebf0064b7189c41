//! Containers that an engine cannot start any more, because it was killed while it started them: it takes them for never
//! started, and what it works with takes them for running. Every try ends the same until they are made anew.

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

fn is_stuck(container: &Container) -> bool {
    let never_came_up = matches!(container.status, Status::Created | Status::Exited);
    // As containerd says it, and Docker after it: `task <id>: already exists`.
    never_came_up && container.error.contains("task ") && container.error.contains("already exists")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::container::RestartPolicy;

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
