//! What a container last said before it failed, kept on the device.
//!
//! Whoever goes back to an earlier version replaces the container, and its log goes with it: then this is all that is left to look
//! at. One file per assignment, of its last failure. A log may hold secrets, so only the agent's user can read the file, and it is
//! never sent anywhere; `margrave-agent status` says where it is.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use margrave_core::id::AssignmentId;
use margrave_core::report::FailureCode;

use super::compose::ComposeRuntime;
use super::container::{Container, LABEL_PROJECT};
use super::engine::Engine;
use super::health::{self, Condition};
use super::project::{ProjectDirectory, ProjectName};
use super::restarts::LOOP_WITHIN;
use super::written::Written;

/// A program's reason is in its last lines. More would be a log, which is the engine's to keep.
const LINES_MAX: usize = 20;
/// A line may be a page of JSON.
const BYTES_MAX: usize = 4096;

/// Whether something ran that may have said why. Of what never ran only an earlier failure has words.
pub(crate) fn tells_of(code: FailureCode) -> bool {
    use FailureCode::{RollbackFailed, StartFailed, Timeout, Unhealthy};
    matches!(code, RollbackFailed | StartFailed | Timeout | Unhealthy)
}

/// Where it is, if it is.
pub(crate) fn file_in(data: &Path, assignment: AssignmentId) -> PathBuf {
    data.join("output").join(format!("{assignment}.txt"))
}

impl ComposeRuntime {
    /// Keeps what failed last said; `only_down` of what does not run any more, and not of what is slow. That this does not succeed
    /// is no reason to fail at anything else.
    pub(super) async fn keep_last_output(
        &self,
        engine: &Engine,
        of: AssignmentId,
        project: &ProjectName,
        only_down: bool,
    ) {
        let Ok(containers) = engine.containers(&[(LABEL_PROJECT, project.as_str())]).await else { return };
        let rank_max = if only_down { 1 } else { 2 };
        let Some(container) = failing(&containers, rank_max, Timestamp::now()) else { return };
        let said = match engine.last_lines(&container.id, LINES_MAX).await {
            Ok(said) => tail(&unframed(&said)),
            Err(error) => {
                tracing::debug!(%project, %error, "what a container last said is not known");
                return;
            }
        };
        if said.is_empty() {
            return;
        }
        let text =
            format!("Service {} of {project}, kept at {:.0}:\n{said}\n", container.service, Timestamp::now());
        let file = file_in(&self.settings.data, of);
        let write = || {
            let directory = file.parent().unwrap_or(&self.settings.data);
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            self.written.durably(&file, text.as_bytes())
        };
        if let Err(error) = write() {
            tracing::warn!(%project, %error, "what a container last said could not be kept");
        }
    }

    /// Nothing is kept of an assignment that has no component here any more.
    pub(super) fn forget_last_output(&self, of: AssignmentId) -> io::Result<()> {
        let others = ProjectDirectory::all(&self.projects(), &self.written)?;
        if others.iter().filter_map(ProjectDirectory::record).any(|record| record.assignment == of) {
            return Ok(());
        }
        let file = file_in(&self.settings.data, of);
        // Also what a power cut left half-written.
        for file in [Written::unfinished(&file), file] {
            match std::fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The container to listen to: one that failed, before one that was brought back just now, before one that does not come up.
fn failing(containers: &[Container], rank_max: u8, now: Timestamp) -> Option<&Container> {
    let rank = |container: &Container| match health::condition(container) {
        Condition::Failed(_) | Condition::Restarting(_) => Some(0),
        // One restart after a night is nothing.
        Condition::Running { .. } if health::brought_back_within(container, LOOP_WITHIN, now) => Some(1),
        Condition::Starting(_) => Some(2),
        Condition::Running { .. } | Condition::Ended => None,
    };
    let ranked = containers.iter().filter_map(|container| Some((rank(container)?, container)));
    let first = ranked.min_by_key(|(rank, _)| *rank).filter(|(rank, _)| *rank <= rank_max);
    first.map(|(_, container)| container)
}

/// The words of a log. Engines put eight bytes before each piece, of which the last four are its length; of containers with a
/// terminal they do not.
fn unframed(log: &[u8]) -> String {
    let mut words = Vec::new();
    let mut rest = log;
    while let Some((head, after)) = rest.split_first_chunk::<8>() {
        let [0..=2, 0, 0, 0, length @ ..] = *head else { break };
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        let (piece, next) = after.split_at(length.min(after.len()));
        words.extend_from_slice(piece);
        rest = next;
    }
    words.extend_from_slice(rest);
    String::from_utf8_lossy(&words).into_owned()
}

/// The last of it, without what would do something to the terminal that it is shown on.
fn tail(words: &str) -> String {
    let plain: String =
        words.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect::<String>();
    let lines: Vec<&str> = plain.trim_end().lines().collect();
    let lines = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n");
    let cut = lines.len().saturating_sub(BYTES_MAX);
    let cut = (cut..lines.len()).find(|at| lines.is_char_boundary(*at)).unwrap_or(lines.len());
    lines[cut..].to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use margrave_core::id::{ComponentName, DeviceId};
    use margrave_http::StatusCode;
    use margrave_oci::client::{Client, Hosts};
    use serde_json::json;

    use super::*;
    use crate::runtime::components::Components;
    use crate::runtime::compose::ComposeSettings;
    use crate::runtime::container::Status;
    use crate::runtime::engine::Places;
    use crate::runtime::health::tests::container;
    use crate::runtime::pretended_engine::{Answer, PretendedEngine};

    fn framed(pieces: &[&str]) -> Vec<u8> {
        let frame = |piece: &&str| {
            let length = u32::try_from(piece.len()).unwrap().to_be_bytes();
            [&[2, 0, 0, 0], length.as_slice(), piece.as_bytes()].concat()
        };
        pieces.iter().flat_map(frame).collect()
    }

    #[test]
    fn the_end_of_a_log_is_kept_in_bounds_and_does_nothing_to_a_terminal() {
        assert_eq!(tail(&unframed(&framed(&["one\n", "two\n"]))), "one\ntwo");
        assert_eq!(tail(&unframed(b"of a terminal\r\n")), "of a terminal");
        assert_eq!(tail(&unframed(&framed(&["whole\n", "half"])[..15])), "whole");
        assert_eq!(tail("\u{1b}[2Jgone\u{7}\n"), "[2Jgone");
        let many: String = (0..100).map(|number| format!("line {number}\n")).collect();
        assert_eq!(tail(&many).lines().count(), LINES_MAX);
        assert!(tail(&many).starts_with("line 80\n") && tail(&many).ends_with("line 99"));
        assert_eq!(tail(&"é".repeat(BYTES_MAX)).len(), BYTES_MAX);
        assert_eq!(tail(&format!("{}x", "é".repeat(BYTES_MAX))).len(), BYTES_MAX - 1);
    }

    #[test]
    fn what_failed_is_listened_to_and_what_is_well_is_not() {
        let now: Timestamp = "2026-11-18T12:00:00Z".parse().unwrap();
        let of = |containers: &[Container]| failing(containers, 2, now).map(|c| c.service.clone());
        let (well, down) = (
            container("db", Status::Running),
            Container { exit_code: 7, ..container("web", Status::Exited) },
        );
        let back = Container {
            restart_count: 2,
            started_at: "2026-11-18T11:58:00.123456789Z".into(),
            ..container("job", Status::Running)
        };
        assert_eq!(of(&[well.clone(), back.clone(), down]).as_deref(), Some("web"));
        assert_eq!(of(&[well.clone(), back.clone()]).as_deref(), Some("job"));
        assert_eq!(of(&[well]), None);
        let long_ago = Container { started_at: "2026-11-18T04:00:00.123456789Z".into(), ..back };
        assert_eq!(of(&[long_ago]), None, "it was brought back, and has run for hours since");
        let slow = [container("web", Status::Created)];
        assert!(of(&slow).is_some() && failing(&slow, 1, now).is_none());
    }

    #[tokio::test]
    async fn it_is_one_private_file_of_an_assignment_until_that_is_removed() {
        let assignment = AssignmentId::from_uuid(uuid::Uuid::from_bytes([1; 16]));
        let project = ProjectName::of(assignment, &ComponentName::parse("web").unwrap());
        let of = project.as_str().to_owned();
        let pretended = PretendedEngine::start(move |asked| match asked {
            asked if asked.starts_with("GET /containers/json") => Answer::Json(json!([{"Id": "1"}])),
            "GET /containers/1/json" => Answer::Json(json!({
                "Id": "1", "State": {"Status": "exited", "ExitCode": 7, "StartedAt": "s", "FinishedAt": "f"},
                "HostConfig": {}, "Config": {"Labels": {"com.docker.compose.project": of,
                    "com.docker.compose.service": "web"}},
            })),
            "GET /containers/1/logs?stdout=true&stderr=true&tail=20" => {
                Answer::Bytes(framed(&["reading /etc/web.conf\n", "no such file\n"]))
            }
            _ => Answer::Refused(StatusCode::NOT_FOUND, "no such container"),
        });
        let data = tempfile::tempdir().unwrap();
        let settings = ComposeSettings {
            data: data.path().to_owned(),
            agent: DeviceId::parse("line-1").unwrap(),
            places: Places { named: Some(pretended.address()), sockets: vec![] },
            telemetry: None,
            registry: None,
        };
        let components = Components::new(Client::new(Hosts::new()), data.path()).unwrap();
        let runtime = ComposeRuntime::new(settings, components).unwrap();
        let engine = pretended.engine().await;
        for _ in 0..2 {
            runtime.keep_last_output(&engine, assignment, &project, true).await;
        }
        let file = file_in(data.path(), assignment);
        let kept = std::fs::read_to_string(&file).unwrap();
        assert!(kept.starts_with(&format!("Service web of {project}, kept at 20")), "{kept}");
        assert!(kept.ends_with(":\nreading /etc/web.conf\nno such file\n"), "{kept}");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        std::fs::write(Written::unfinished(&file), b"half").unwrap();
        runtime.forget_last_output(assignment).unwrap();
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 0);
        runtime.forget_last_output(assignment).unwrap();
    }
}
