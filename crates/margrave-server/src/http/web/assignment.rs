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
    pub(super) current: bool,
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
            current: assignment.current,
            reason: assignment.reason.clone(),
            error: assignment.error.clone(),
            explained: assignment.components.iter().any(|component| component.error.is_some()),
            attempt: assignment.attempt,
            next_try: assignment.next_try.as_deref().map(Stamp::ago),
            changed: assignment.changed_at.as_deref().map(Stamp::ago),
            components: assignment.components.iter().map(ComponentLine::of).collect(),
        }
    }
}

pub(super) struct ComponentLine {
    pub(super) name: String,
    pub(super) badge: Badge,
    pub(super) error: Option<operator::ErrorDetail>,
}

impl ComponentLine {
    fn of(component: &operator::ComponentStatus) -> Self {
        ComponentLine {
            name: component.name.clone(),
            badge: Badge::component(&component.state),
            error: component.error.clone(),
        }
    }
}

/// How it stands: what runs and what is wanted are not the same where an update failed.
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

pub(super) fn badge(assignment: &operator::Assignment) -> Badge {
    match went_back(assignment) {
        true => Badge::went_back(),
        false => Badge::state(&assignment.state),
    }
}

/// The update failed, and the version before runs again.
pub(super) fn went_back(assignment: &operator::Assignment) -> bool {
    assignment.state == "INSTALLED" && !assignment.current && assignment.error.is_some()
}

/// Everything is as wanted, so that there is nothing to explain.
pub(super) fn settled(assignment: &operator::Assignment) -> bool {
    assignment.current && assignment.state == "INSTALLED"
}
