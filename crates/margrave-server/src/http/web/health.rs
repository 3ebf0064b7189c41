//! How healthy what a device runs is, by its own reports: since when, what is the matter, and how often that was so before.

use margrave_core::report::{FailureCode, restarted};
use margrave_wire::operator;

use super::assignment::went_back;
use super::badge::Badge;
use super::link;
use super::stamp::Stamp;

/// The health of all that a device runs, as its page tells it.
pub(super) struct Health {
    pub(super) lines: Vec<HealthLine>,
    /// Why this may not be so any more.
    pub(super) doubt: Option<Doubt>,
}

/// What is told was seen at some time before, and nothing was since.
pub(super) struct Doubt {
    pub(super) words: &'static str,
    pub(super) since: Option<Stamp>,
}

/// Of one assignment.
pub(super) struct HealthLine {
    /// Names its element, so that the live page finds it again.
    pub(super) key: String,
    pub(super) deployment: String,
    pub(super) path: String,
    pub(super) badge: Badge,
    pub(super) words: &'static str,
    pub(super) since: Option<Stamp>,
    /// What is the matter, in the device's words.
    pub(super) reason: Option<String>,
    /// How often its only component was brought back; several say it each.
    pub(super) restarts: Option<String>,
    /// Each of several; of one there is nothing else to tell.
    pub(super) components: Vec<ComponentHealth>,
    /// How often it was healthy and then not, as far back as is remembered, and when last.
    pub(super) lost: Option<(String, Stamp)>,
}

pub(super) struct ComponentHealth {
    pub(super) name: String,
    pub(super) badge: Badge,
    pub(super) restarts: Option<String>,
}

impl Health {
    pub(super) fn of(device: &operator::Device, lines: Vec<HealthLine>) -> Self {
        let doubt = match &device.cannot_look {
            Some(blind) => Some(Doubt {
                words: "It cannot look at its containers since",
                since: Some(Stamp::at(&blind.since)),
            }),
            None if device.condition == "silent" => Some(Doubt {
                words: "It is silent, so this is how it was when it was last heard,",
                since: device.last_contact.as_deref().map(Stamp::ago),
            }),
            None => None,
        };
        Health { lines, doubt }
    }
}

impl HealthLine {
    /// `steps` are all that is remembered of it, the oldest first.
    pub(super) fn of(assignment: &operator::Assignment, steps: &[operator::Transition]) -> Self {
        let (word, words) = told(assignment);
        HealthLine {
            key: format!("health-{}", assignment.id),
            deployment: assignment.deployment.clone(),
            path: link::deployment(&assignment.deployment),
            badge: Badge::health(word),
            words,
            since: assignment.changed_at.as_deref().map(Stamp::at),
            reason: (word == "unhealthy" || word == "not running").then(|| reason(assignment)).flatten(),
            restarts: match assignment.components.as_slice() {
                [only] => {
                    only.restarts.map(|times| format!("It was {} since it was started.", restarted(times)))
                }
                _ => None,
            },
            components: match assignment.components.as_slice() {
                [_] => Vec::new(),
                several => several.iter().map(ComponentHealth::of).collect(),
            },
            lost: lost(steps).map(|(times, last)| (times_words(times), Stamp::ago(last))),
        }
    }
}

impl ComponentHealth {
    fn of(component: &operator::ComponentStatus) -> Self {
        let word = match component.state.as_str() {
            "installed" => "healthy",
            "failed" if is_unhealthy(component.error.as_ref()) => "unhealthy",
            "failed" => "not running",
            "installing" => "starting",
            "removing" | "removed" => "going",
            _ => "not started",
        };
        ComponentHealth {
            name: component.name.clone(),
            badge: Badge::health(word),
            restarts: component.restarts.map(restarted),
        }
    }
}

/// A word, and the sentence that a moment ends.
fn told(assignment: &operator::Assignment) -> (&'static str, &'static str) {
    match assignment.state.as_str() {
        // A device calls something installed once all of it runs and every check of it passes.
        "INSTALLED" if went_back(assignment) => {
            ("healthy", "the last good version runs and is healthy since")
        }
        "INSTALLED" => ("healthy", "runs and is healthy since"),
        "FAILED" if is_unhealthy(assignment.error.as_ref()) => ("unhealthy", "its health checks fail since"),
        "FAILED" => ("not running", "does not run as wanted since"),
        "INSTALLING" => ("starting", "is being installed since"),
        "UPDATING" => ("starting", "is being updated since"),
        "ROLLINGBACK" => ("starting", "goes back to its last good version since"),
        "DELETING" | "DELETED" => ("going", "is being removed since"),
        _ => ("not started", "waits to begin since"),
    }
}

fn is_unhealthy(error: Option<&operator::ErrorDetail>) -> bool {
    error.is_some_and(|error| error.code == FailureCode::Unhealthy.as_str())
}

/// The component's own words are closer to the cause.
fn reason(assignment: &operator::Assignment) -> Option<String> {
    let errors = assignment.components.iter().filter_map(|component| component.error.as_ref());
    let error = errors.chain(&assignment.error).next();
    error.map(|error| error.message.clone()).or_else(|| assignment.reason.clone())
}

/// How often it failed after it had been well, and when it did last.
fn lost(steps: &[operator::Transition]) -> Option<(usize, &str)> {
    let falls = steps.windows(2).filter(|two| two[0].state == "INSTALLED" && two[1].state == "FAILED");
    let falls: Vec<&str> = falls.map(|two| two[1].at.as_str()).collect();
    Some((falls.len(), falls.last().copied()?))
}

fn times_words(times: usize) -> String {
    match times {
        1 => "Once it was healthy and then not:".to_owned(),
        2 => "Twice it was healthy and then not, last".to_owned(),
        times => format!("{times} times it was healthy and then not, last"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn assignment(state: &str, code: Option<&str>, components: serde_json::Value) -> operator::Assignment {
        let error = code.map(|code| json!({ "code": code, "source": "agent", "message": "it said so" }));
        serde_json::from_value(json!({
            "id": "a", "deployment": "gate", "device": "press-1", "package": "p", "version": "1", "state": state,
            "current": true, "components": components, "attempt": 0, "error": error,
        }))
        .unwrap()
    }

    fn step(state: &str, at: &str) -> operator::Transition {
        serde_json::from_value(json!({ "at": at, "state": state, "manifestVersion": 1 })).unwrap()
    }

    #[test]
    fn health_is_told_in_words_with_its_reason() {
        let told = |state: &str, code: Option<&str>| {
            let line = HealthLine::of(&assignment(state, code, json!([])), &[]);
            (line.badge.word, line.words, line.reason)
        };
        let said = Some("it said so".to_owned());
        assert_eq!(told("INSTALLED", None), ("healthy".into(), "runs and is healthy since", None));
        assert_eq!(
            told("FAILED", Some("unhealthy")),
            ("unhealthy".into(), "its health checks fail since", said.clone())
        );
        assert_eq!(
            told("FAILED", Some("pull-failed")),
            ("not running".into(), "does not run as wanted since", said)
        );
        assert_eq!(told("UPDATING", None), ("starting".into(), "is being updated since", None));
        assert_eq!(told("PENDING", None), ("not started".into(), "waits to begin since", None));
        assert_eq!(told("no such state", None).0, "not started");
    }

    #[test]
    fn each_component_has_its_own_and_the_closest_reason_is_told() {
        let error = json!({ "code": "unhealthy", "source": "agent", "message": "its check answered 503" });
        let components = json!([{ "name": "web", "state": "failed", "error": error }, { "name": "store", "state": "installed" }]);
        let line = HealthLine::of(&assignment("FAILED", Some("unhealthy"), components), &[]);
        let shown: Vec<_> =
            line.components.iter().map(|it| (it.name.as_str(), it.badge.word.as_str())).collect();
        assert_eq!(shown, [("web", "unhealthy"), ("store", "healthy")]);
        assert!(line.restarts.is_none() && line.components.iter().all(|it| it.restarts.is_none()));
        assert_eq!(line.reason.as_deref(), Some("its check answered 503"));
    }

    #[test]
    fn how_often_something_was_brought_back_is_told() {
        let only = json!([{ "name": "web", "state": "installed", "restarts": 1 }]);
        let line = HealthLine::of(&assignment("INSTALLED", None, only), &[]);
        assert_eq!(line.restarts.as_deref(), Some("It was restarted once since it was started."));
        let both = json!([{ "name": "web", "state": "installed", "restarts": 3 }, { "name": "db", "state": "installed" }]);
        let line = HealthLine::of(&assignment("INSTALLED", None, both), &[]);
        let told: Vec<_> = line.components.iter().map(|of| of.restarts.as_deref()).collect();
        assert_eq!((line.restarts, told), (None, vec![Some("restarted 3 times"), None]));
    }

    #[test]
    fn what_nobody_sees_any_more_is_doubted() {
        let doubt = |condition: &str, cannot_look: serde_json::Value| {
            let device = json!({
                "id": "press-1", "client": "press-1", "form": "g2", "standing": "accepted", "condition": condition,
                "simulated": false, "labels": {}, "manifestVersion": 1, "assignments": [], "cannotLook": cannot_look,
            });
            Health::of(&serde_json::from_value(device).unwrap(), vec![]).doubt.map(|doubt| doubt.words)
        };
        assert_eq!(doubt("converged", json!(null)), None);
        assert!(doubt("silent", json!(null)).is_some_and(|words| words.contains("last heard")));
        let blind = json!({ "since": "2026-01-01T00:00:00Z", "message": "no engine answers" });
        assert!(doubt("pending", blind).is_some_and(|words| words.contains("cannot look")));
    }

    #[test]
    fn only_what_was_well_loses_its_health() {
        let steps = |states: &[&str]| -> Vec<operator::Transition> {
            states.iter().enumerate().map(|(at, state)| step(state, &format!("t{at}"))).collect()
        };
        assert_eq!(lost(&steps(&["INSTALLING", "FAILED", "INSTALLING", "INSTALLED"])), None);
        let twice =
            steps(&["INSTALLING", "INSTALLED", "FAILED", "INSTALLED", "UPDATING", "INSTALLED", "FAILED"]);
        assert_eq!(lost(&twice), Some((2, "t6")));
        assert_eq!(times_words(1), "Once it was healthy and then not:");
        assert_eq!(times_words(3), "3 times it was healthy and then not, last");
    }
}
