//! An agent in a container whose engine is out of reach for good.
//!
//! A container keeps the socket that was mounted when it started. Where the engine has made a new one since (it was upgraded, or its socket unit
//! was started anew), nobody answers at the old one, however long one waits. Only a new start of the container mounts what is there
//! now, so the process ends, and whoever keeps the container brings it back. On the machine itself a path leads to the new socket.

use std::time::{Duration, Instant};

use margrave_core::report::{Failure, FailureCode};

use crate::runtime::{Runtime, own_container};

/// Who does not refuse and does not answer either may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// An engine that is restarted or upgraded is back by then. One that is away for longer costs a start of the agent every
/// five minutes, which harms nothing.
const ENDS_AFTER: Duration = Duration::from_secs(5 * 60);

#[derive(Debug)]
pub(crate) struct Stranded {
    in_container: bool,
    /// Of this process, and by a clock that nobody sets: what was seen before a start says nothing about the socket that it brought.
    since: Option<Instant>,
}

impl Stranded {
    pub(crate) fn here() -> Stranded {
        Stranded { in_container: own_container::id().is_some(), since: None }
    }

    /// How the last look at the engine went; whether it is time to find out if there is any use in waiting for it here. What else
    /// keeps a look from going well is nothing that a new start would mend.
    pub(crate) fn take_in(&mut self, trouble: Option<&Failure>, now: Instant) -> bool {
        let is_away = trouble.is_some_and(|failure| failure.code == FailureCode::RuntimeUnreachable);
        if !self.in_container || !is_away {
            self.since = None;
            return false;
        }
        now.duration_since(*self.since.get_or_insert(now)) >= ENDS_AFTER
    }
}

/// Whether nobody is at the engine's socket at all.
pub(crate) async fn is_deaf(runtime: &dyn Runtime, patience: Duration) -> bool {
    let reached = tokio::time::timeout(patience, runtime.reached()).await;
    matches!(reached, Ok(Err(failure)) if failure.code == FailureCode::RuntimeUnreachable)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use margrave_oci::client::{Client, Hosts};

    use super::*;
    use crate::runtime::components::Components;
    use crate::runtime::compose::{ComposeRuntime, ComposeSettings};
    use crate::runtime::engine::Places;

    fn after(in_container: bool, code: FailureCode, looks: &[(u64, bool)]) -> bool {
        let start = Instant::now();
        let away = Failure::new(code, "No answer.");
        let mut stranded = Stranded { in_container, since: None };
        let one = |(minutes, is_away): &(u64, bool)| {
            stranded.take_in(is_away.then_some(&away), start + Duration::from_secs(minutes * 60))
        };
        looks.iter().map(one).last().unwrap()
    }

    #[test]
    fn only_in_a_container_an_agent_ends_when_its_engine_has_not_answered_for_minutes() {
        use FailureCode::{RuntimeMissing, RuntimeUnreachable};
        assert!(after(true, RuntimeUnreachable, &[(0, true), (3, true), (5, true)]));
        assert!(!after(true, RuntimeUnreachable, &[(0, true), (4, true)]));
        assert!(!after(true, RuntimeUnreachable, &[(0, true), (3, false), (4, true), (8, true)]));
        assert!(!after(false, RuntimeUnreachable, &[(0, true), (60, true)]));
        assert!(!after(true, RuntimeMissing, &[(0, true), (60, true)]), "no start brings an engine");
    }

    fn runtime(data: &Path, socket: &Path) -> ComposeRuntime {
        let settings = ComposeSettings {
            data: data.to_owned(),
            agent: "line-1".parse().unwrap(),
            places: Places { named: None, sockets: vec![socket.to_owned()] },
            telemetry: None,
            registry: None,
        };
        ComposeRuntime::new(settings, Components::new(Client::new(Hosts::new()), data).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn nobody_is_there_where_only_the_socket_was_left() {
        let data = tempfile::tempdir().unwrap();
        let socket = data.path().join("engine.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        // As an engine that was upgraded leaves it to containers that had it mounted.
        drop(listener);
        assert!(is_deaf(&runtime(data.path(), &socket), PATIENCE).await);
    }

    #[tokio::test]
    async fn who_takes_the_call_and_says_nothing_yet_is_there() {
        let data = tempfile::tempdir().unwrap();
        let socket = data.path().join("engine.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        assert!(!is_deaf(&runtime(data.path(), &socket), Duration::from_millis(50)).await);
    }
}
