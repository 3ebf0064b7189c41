//! Taking a container away: in its own time, and then firmly.

use std::time::Duration;

use margrave_http::{Error, Request};
use serde::Deserialize;

use super::container::LABEL_PROJECT;
use super::engine::{Engine, EngineError, done_or_gone, encoded};
use super::project::ProjectName;

/// What engines wait where a container says nothing.
const GRACE_USUAL: Duration = Duration::from_secs(10);
/// A database that writes down what it holds may need minutes on slow flash. Whoever does not end in a quarter of an hour does
/// not end, and holds up what else there is to do on the device.
const GRACE_MAX: Duration = Duration::from_secs(15 * 60);
/// What an engine may take after the grace period to end what did not end by itself; past this it hangs.
const STOP_QUIET_MAX: Duration = Duration::from_secs(90);

impl Engine {
    /// Stops a container within its grace period and removes it. Its anonymous volumes stay, like all others.
    pub async fn remove_container(&self, id: &str) -> Result<(), EngineError> {
        self.remove_in_time(id, STOP_QUIET_MAX).await
    }

    async fn remove_in_time(&self, id: &str, quiet_max: Duration) -> Result<(), EngineError> {
        let Some(answer) = self.inspected(id).await? else { return Ok(()) };
        let grace = grace(&answer);
        let stop = self.path(&format!("/containers/{}/stop?t={}", encoded(id), grace.as_secs()));
        match done_or_gone(self.act_within(Request::post(stop), grace + quiet_max).await) {
            Err(EngineError::Unreachable { source: Error::Timeout { .. }, .. }) => {
                tracing::warn!(
                    id,
                    ?grace,
                    "the engine did not stop a container in time; it is removed as it is"
                );
            }
            stopped => stopped?,
        }
        let remove = self.path(&format!("/containers/{}?force=true", encoded(id)));
        done_or_gone(self.act(Request::delete(remove)).await)
    }
}

impl Engine {
    /// The longest that a container of the project may take to end, and not less than what is usual.
    pub(super) async fn longest_grace(&self, project: &str) -> Result<Duration, EngineError> {
        let mut longest = GRACE_USUAL;
        for id in self.container_ids(&[(LABEL_PROJECT, project)]).await? {
            if let Some(answer) = self.inspected(&id).await? {
                longest = longest.max(grace(&answer));
            }
        }
        Ok(longest)
    }
}

/// Podman up to 4.3 kills at once when it is told to stop and not how long it may take, as Compose does; Docker knows each
/// container's own grace period. Compose takes one time for all.
pub(super) async fn podman_grace(engine: &Engine, project: &ProjectName) -> Result<Vec<String>, EngineError> {
    if !engine.is_podman() {
        return Ok(vec![]);
    }
    let grace = engine.longest_grace(project.as_str()).await?;
    Ok(vec!["--timeout".to_owned(), grace.as_secs().to_string()])
}

/// How long a container may take to end.
fn grace(inspected: &[u8]) -> Duration {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Inspected {
        config: Config,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Config {
        stop_timeout: Option<i64>,
    }
    let read: Option<Inspected> = serde_json::from_slice(inspected).ok();
    match read.and_then(|read| read.config.stop_timeout) {
        None => GRACE_USUAL,
        // Less than nothing is for ever.
        Some(seconds) => u64::try_from(seconds).map_or(GRACE_MAX, Duration::from_secs).min(GRACE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use margrave_http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::runtime::pretended_engine::{Answer, PretendedEngine};

    #[test]
    fn a_container_has_its_own_time_to_end_but_not_for_ever() {
        let of = |timeout: serde_json::Value| {
            grace(json!({"Config": {"StopTimeout": timeout}}).to_string().as_bytes()).as_secs()
        };
        assert_eq!((of(json!(null)), of(json!(0)), of(json!(120)), of(json!(900))), (10, 0, 120, 900));
        assert_eq!((of(json!(9999 * 3600)), of(json!(-1))), (900, 900));
        assert_eq!((grace(b"{\"Config\": {}}").as_secs(), grace(b"{}").as_secs()), (10, 10));
    }

    #[tokio::test]
    async fn all_of_a_project_have_as_long_as_the_slowest_may_take() {
        let longest = async |timeouts: [i64; 2]| {
            let pretended = PretendedEngine::start(move |asked| match asked {
                "GET /containers/0/json" => Answer::Json(json!({"Config": {"StopTimeout": timeouts[0]}})),
                "GET /containers/1/json" => Answer::Json(json!({"Config": {"StopTimeout": timeouts[1]}})),
                _ => Answer::Json(json!([{"Id": "0"}, {"Id": "1"}])),
            });
            pretended.engine().await.longest_grace("p").await.unwrap().as_secs()
        };
        assert_eq!((longest([2, 120]).await, longest([0, 3]).await, longest([-1, 3]).await), (120, 10, 900));
    }

    /// Without the versions of the interface.
    async fn asked(stop: fn() -> Answer, timeout: i64) -> (Result<(), EngineError>, Vec<String>) {
        let pretended = PretendedEngine::start(move |asked| match asked {
            "GET /containers/c/json" => Answer::Json(json!({"Config": {"StopTimeout": timeout}})),
            asked if asked.starts_with("POST /containers/c/stop") => stop(),
            _ => Answer::Json(json!(null)),
        });
        let result = pretended.engine().await.remove_in_time("c", Duration::from_millis(100)).await;
        (result, pretended.asked())
    }

    #[tokio::test]
    async fn what_does_not_stop_in_time_is_removed_all_the_same() {
        let (result, asked) = asked(|| Answer::Silence, 0).await;
        result.unwrap();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        assert_eq!(
            asked,
            ["GET /containers/c/json", "POST /containers/c/stop?t=0", "DELETE /containers/c?force=true"]
        );
    }

    #[tokio::test]
    async fn nothing_is_removed_by_force_while_the_engine_says_that_it_cannot_be_stopped() {
        let (result, asked) =
            asked(|| Answer::Refused(StatusCode::INTERNAL_SERVER_ERROR, "cannot stop container"), 120).await;
        assert!(matches!(result, Err(EngineError::Refused { .. })), "{result:?}");
        assert_eq!(asked.last().map(String::as_str), Some("POST /containers/c/stop?t=120"));
    }
}
