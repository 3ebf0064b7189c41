//! One deployment on one device, as the pages of both show it.

use margrave_wire::operator;

use super::badge::Badge;
use super::link;
use super::stamp::Stamp;

/// What the two pages have in common; each adds where it leads.
pub(super) struct AssignmentLine {
    /// Names its element, so that the live page finds it again.
    pub(super) key: String,
    pub(super) badge: Badge,
    /// What the state speaks of, where that is not what is wanted now.
    pub(super) chip: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) error: Option<operator::ErrorDetail>,
    /// A component says what is wrong, closer to the cause.
    pub(super) explained: bool,
    pub(super) attempt: u32,
    pub(super) next_try: Option<Stamp>,
    pub(super) changed: Option<Stamp>,
    pub(super) components: Vec<ComponentLine>,
}

impl AssignmentLine {
    pub(super) fn of(assignment: &operator::Assignment) -> Self {
        AssignmentLine {
            key: format!("assignment-{}", assignment.id),
            badge: badge(assignment),
            chip: chip(assignment),
            reason: assignment.reason.clone(),
            error: assignment.error.clone(),
            explained: assignment.components.iter().any(|component| component.error.is_some()),
            attempt: assignment.attempt,
            next_try: assignment.next_try.as_deref().map(Stamp::ago),
            changed: assignment.changed_at.as_deref().map(Stamp::at),
            components: assignment
                .components
                .iter()
                .map(|component| ComponentLine::of(component, went_back(assignment)))
                .collect(),
        }
    }
}

pub(super) struct ComponentLine {
    pub(super) name: String,
    pub(super) badge: Badge,
    pub(super) error: Option<operator::ErrorDetail>,
}

impl ComponentLine {
    /// Of what went back, a failure is told of the update; what runs is the version before it.
    fn of(component: &operator::ComponentStatus, went_back: bool) -> Self {
        let failed = went_back && component.state == "failed";
        ComponentLine {
            name: component.name.clone(),
            badge: if failed { Badge::failed_update() } else { Badge::component(&component.state) },
            error: component.error.clone(),
        }
    }
}

/// A deployment on a device, in a word and a colour.
pub(super) struct DeploymentMark {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) badge: Badge,
}

impl DeploymentMark {
    pub(super) fn of(assignment: &operator::Assignment) -> Self {
        DeploymentMark {
            name: assignment.deployment.clone(),
            path: link::deployment(&assignment.deployment),
            badge: badge(assignment),
        }
    }
}

/// How it stands: what runs and what is wanted are not the same where an update failed, or where a rollout holds it back.
pub(super) fn badge(assignment: &operator::Assignment) -> Badge {
    match &assignment.waiting {
        Some(waiting) if is_held_back(assignment) => match waiting.word.as_str() {
            "left-behind" => Badge::left_behind(),
            _ => Badge::step("waiting"),
        },
        _ if went_back(assignment) => Badge::went_back(),
        _ => Badge::state(&assignment.state),
    }
}

/// A rollout holds it back, and nothing worse is to be told.
pub(super) fn is_held_back(assignment: &operator::Assignment) -> bool {
    assignment.waiting.is_some() && matches!(assignment.state.as_str(), "INSTALLED" | "PENDING")
}

/// The update failed, and the last good version runs again.
pub(super) fn went_back(assignment: &operator::Assignment) -> bool {
    let older = assignment.state == "INSTALLED" && !assignment.current && assignment.waiting.is_none();
    older && assignment.error.is_some()
}

fn chip(assignment: &operator::Assignment) -> Option<String> {
    if let Some(waiting) = &assignment.waiting {
        return waiting.keeps.map(|keeps| format!("keeps revision {keeps}"));
    }
    // What is pending or going speaks of no revision.
    let speaks = !matches!(assignment.state.as_str(), "PENDING" | "DELETING" | "DELETED");
    if went_back(assignment) {
        return Some("the last good version runs".to_owned());
    }
    (!assignment.current && speaks).then(|| "of an older revision".to_owned())
}

/// Everything is as wanted, so that there is nothing to explain.
pub(super) fn settled(assignment: &operator::Assignment) -> bool {
    assignment.current && assignment.state == "INSTALLED"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_shown_of_an_older_revision_says_so_and_what_never_came_does_not() {
        let shown = |state: &str, current: bool, waiting: serde_json::Value| {
            let assignment: operator::Assignment = serde_json::from_value(json!({
                "id": "a", "deployment": "gate", "device": "press-1", "package": "p", "version": "1",
                "state": state, "current": current, "components": [], "attempt": 0, "waiting": waiting,
            }))
            .unwrap();
            let line = AssignmentLine::of(&assignment);
            (line.badge.word, line.chip)
        };
        let chip = |text: &str| Some(text.to_owned());
        let waits =
            |word: &str, keeps: Option<u64>| json!({"word": word, "revision": 2, "keeps": keeps, "batch": 2});
        assert_eq!(shown("INSTALLED", true, json!(null)), ("INSTALLED".into(), None));
        assert_eq!(
            shown("INSTALLED", false, json!(null)),
            ("INSTALLED".into(), chip("of an older revision"))
        );
        assert_eq!(shown("PENDING", false, json!(null)), ("PENDING".into(), None));
        assert_eq!(
            shown("INSTALLED", false, waits("waiting", Some(1))),
            ("waiting".into(), chip("keeps revision 1"))
        );
        assert_eq!(shown("PENDING", false, waits("waiting", None)), ("waiting".into(), None));
        assert_eq!(
            shown("INSTALLED", false, waits("left-behind", Some(1))),
            ("left behind".into(), chip("keeps revision 1"))
        );
        assert_eq!(
            shown("FAILED", false, waits("waiting", Some(1))),
            ("FAILED".into(), chip("keeps revision 1"))
        );
    }

    #[test]
    fn what_went_back_says_what_runs_and_what_failed() {
        let error = json!({ "code": "unhealthy", "source": "agent", "message": "it said so" });
        let assignment: operator::Assignment = serde_json::from_value(json!({
            "id": "a", "deployment": "gate", "device": "press-1", "package": "p", "version": "1", "state": "INSTALLED",
            "current": false, "attempt": 0, "error": error,
            "components": [{ "name": "web", "state": "failed", "error": error }, { "name": "db", "state": "installed" }],
        }))
        .unwrap();
        let line = AssignmentLine::of(&assignment);
        assert_eq!(
            (line.badge.word.as_str(), line.chip.as_deref()),
            ("went back", Some("the last good version runs"))
        );
        let components: Vec<&str> =
            line.components.iter().map(|component| component.badge.word.as_str()).collect();
        assert_eq!(components, ["failed in the update", "installed"]);
    }
}
