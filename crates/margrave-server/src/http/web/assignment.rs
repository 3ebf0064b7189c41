//! One deployment on one device, as the pages of both show it.

use margrave_wire::operator;

use super::badge::Badge;
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
            badge: Badge::state(&assignment.state),
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

/// Everything is as wanted, so that there is nothing to explain.
pub(super) fn settled(assignment: &operator::Assignment) -> bool {
    assignment.current && assignment.state == "INSTALLED"
}
