//! Why containers ended: what the engine remembers of it.

use jiff::{SignedDuration, Timestamp};
use margrave_http::Request;
use serde::Deserialize;
use serde_json::json;

use super::container::{Container, EndedBy};
use super::engine::{ANSWER_QUIET_MAX, Engine, EngineError, encoded, understood};
use super::signal;

/// A stop sends its signal, waits for the grace period, and the end follows: seconds to minutes.
const BEFORE: SignedDuration = SignedDuration::from_secs(600);
/// Whoever ends well so soon after a signal, whichever it was, ended because of it.
const AT_ONCE: i64 = 5;
/// For what the engine notes after the end.
const AFTER: SignedDuration = SignedDuration::from_secs(2);

impl Engine {
    /// Why a container ended, as far as the engine remembers.
    pub async fn why_it_ended(&self, container: &Container) -> Result<EndedBy, EngineError> {
        let Some((since, until)) = span(&container.finished_at, Timestamp::now()) else {
            return Ok(EndedBy::Unknown);
        };
        let path = if self.is_podman() {
            // Podman shows nothing that is before an `until` in the past, and does not know all our words.
            let filters = json!({"container": [container.id]});
            format!("/events?stream=false&since={since}&filters={}", encoded(&filters.to_string()))
        } else {
            let happened = ["start", "die", "kill", "stop"];
            let filters = json!({"container": [container.id], "event": happened, "type": ["container"]});
            format!("/events?since={since}&until={until}&filters={}", encoded(&filters.to_string()))
        };
        let mut lines = self.lines(Request::get(self.path(&path)), ANSWER_QUIET_MAX).await?;
        let (mut died, mut told_to, mut signalled) = (false, false, None);
        while let Some(line) = lines.next().await? {
            let event: Event = understood(&line)?;
            match event.action() {
                // What happened in an earlier run of the same container says nothing about this one.
                "start" => (died, told_to, signalled) = (false, false, None),
                "die" => {
                    died = true;
                    // Some programs take any signal for one to end well.
                    let at_once = |at: i64| event.time.saturating_sub(at) <= AT_ONCE;
                    told_to |= container.exit_code == 0 && signalled.is_some_and(at_once);
                }
                "stop" => told_to = true,
                // Many are sent to have a program read its configuration again, or turn over its log.
                "kill" if event.signal().is_none_or(|signal| signal::ends(signal, container)) => {
                    told_to = true
                }
                "kill" => signalled = Some(event.time),
                _ => {}
            }
        }
        Ok(match (told_to, died) {
            (true, _) => EndedBy::Somebody,
            (false, true) => EndedBy::Itself,
            (false, false) => EndedBy::Unknown,
        })
    }
}

/// The seconds between which to look for what ended a container; `None` where that cannot be asked. Docker waits until an
/// `until` has come: after a clock was set back that may be in a year, and nothing is told before.
fn span(finished_at: &str, now: Timestamp) -> Option<(i64, i64)> {
    let finished: Timestamp = finished_at.parse().ok()?;
    if finished > now.checked_add(AFTER).ok()? {
        return None;
    }
    let (since, until) = (finished.checked_sub(BEFORE).ok()?, finished.checked_add(AFTER).ok()?);
    Some((since.as_second(), until.as_second()))
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "Action")]
    action: Option<String>,
    status: Option<String>,
    /// In seconds since 1970.
    #[serde(default)]
    time: i64,
    #[serde(rename = "Actor", default)]
    actor: Actor,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Actor {
    attributes: Option<Attributes>,
}

#[derive(Deserialize)]
struct Attributes {
    /// Docker says which; Podman does not.
    signal: Option<String>,
}

impl Event {
    fn signal(&self) -> Option<&str> {
        self.actor.attributes.as_ref()?.signal.as_deref()
    }

    fn action(&self) -> &str {
        // Podman says `died` in one field and `die` in the other, by version.
        match self.action.as_deref().or(self.status.as_deref()).unwrap_or_default() {
            "died" => "die",
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::container::Status;
    use crate::runtime::health::tests::container;
    use crate::runtime::pretended_engine::{Answer, PretendedEngine};

    #[test]
    fn what_ended_in_the_future_is_not_asked_about() {
        let now: Timestamp = "2026-11-15T13:00:00Z".parse().unwrap();
        let at = now.as_second();
        assert_eq!(span("2026-11-15T12:00:00.5Z", now), Some((at - 4200, at - 3598)));
        assert_eq!(
            span("2026-11-15T13:00:01.9Z", now),
            Some((at - 599, at + 3)),
            "two clocks of one machine"
        );
        // It ended at two, and then it was one again.
        assert_eq!(span("2026-11-15T14:00:00Z", now), None);
        assert_eq!(span("2027-11-15T12:00:00Z", now), None);
        assert_eq!(span("", now), None);
        assert_eq!(span("0001-01-01T00:00:00Z", now).map(|(since, _)| since < 0), Some(true));
    }

    async fn ended_by(events: serde_json::Value, container: &Container) -> EndedBy {
        let lines: String = events.as_array().unwrap().iter().map(|event| format!("{event}\n")).collect();
        let pretended = PretendedEngine::start(move |_| Answer::Bytes(lines.clone().into()));
        pretended.engine().await.why_it_ended(container).await.unwrap()
    }

    #[tokio::test]
    async fn only_a_signal_that_is_meant_to_end_a_container_tells_that_somebody_did() {
        let finished_at = "2020-01-01T00:00:00Z".to_owned();
        let web = Container { finished_at, exit_code: 1, ..container("web", Status::Exited) };
        let kill = |signal: &str| json!({"Action": "kill", "Actor": {"Attributes": {"signal": signal}}});
        let (die, stop) = (json!({"Action": "die"}), json!({"Action": "stop"}));
        for signal in ["1", "HUP", "SIGUSR1", "28", "cont"] {
            assert_eq!(ended_by(json!([kill(signal), die]), &web).await, EndedBy::Itself, "{signal}");
            assert_eq!(ended_by(json!([kill(signal), die, stop]), &web).await, EndedBy::Somebody);
        }
        for signal in ["9", "15", "2", "3", "KILL", "SIGTERM", "sigint", "what", "", "99"] {
            assert_eq!(ended_by(json!([kill(signal), die]), &web).await, EndedBy::Somebody, "{signal}");
        }
        // One signal after the other.
        assert_eq!(ended_by(json!([kill("15"), kill("1"), die]), &web).await, EndedBy::Somebody);
        // Who does not say which, such as Podman.
        let untold = [json!({"Actor": {"Attributes": null}}), json!({"Actor": {}}), json!({})];
        for mut untold in untold {
            untold["status"] = json!("kill");
            assert_eq!(ended_by(json!([untold, die]), &web).await, EndedBy::Somebody);
        }
    }

    #[tokio::test]
    async fn a_clock_that_was_set_back_leaves_an_ending_unexplained_and_asks_nobody_to_wait() {
        let pretended = PretendedEngine::start(|_| Answer::Silence);
        let finished_at = Timestamp::now().checked_add(SignedDuration::from_hours(1)).unwrap().to_string();
        let ended = Container { finished_at, ..container("web", Status::Exited) };
        let engine = pretended.engine().await;
        assert_eq!(engine.why_it_ended(&ended).await.unwrap(), EndedBy::Unknown);
        assert_eq!(pretended.asked(), [""; 0]);
    }
}
