//! The eight states of an assignment and the only ways between them, as data.

use serde::{Deserialize, Serialize};

/// Where one deployment on one device stands. Every state says what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// Wanted, not started: waits for a window, its turn, a lease or a download.
    Pending,
    /// First install running: waits for its components to become healthy.
    Installing,
    /// Running and healthy: waits for nothing.
    Installed,
    /// A newer document is being applied: waits for its components to become healthy.
    Updating,
    /// Gave up for now: waits for its next try, or for the manifest to change.
    Failed,
    /// Going back to the last good document: waits for that to be healthy.
    RollingBack,
    /// Being removed: waits for the runtime to confirm that it is gone.
    Deleting,
    /// Gone, confirmed: waits for the server to hear of it.
    Deleted,
}

use State::*;

/// Every state, in the order people read them.
pub const STATES: [State; 8] =
    [Pending, Installing, Installed, Updating, Failed, RollingBack, Deleting, Deleted];

/// The table of the design page. `any → DELETING` is written out, so that this list is the whole truth.
/// DELETED has no way out: a deployment that comes back is a new assignment in PENDING.
pub const TRANSITIONS: &[(State, State)] = &[
    (Pending, Installing),
    (Pending, Failed),
    (Installing, Installed),
    (Installing, Failed),
    (Installed, Updating),
    (Updating, Installed),
    (Updating, Failed),
    (Installed, Failed),
    (Failed, Installed),
    (Failed, Installing),
    (Failed, Updating),
    (Failed, RollingBack),
    (RollingBack, Installed),
    (RollingBack, Failed),
    (Pending, Deleting),
    (Installing, Deleting),
    (Installed, Deleting),
    (Updating, Deleting),
    (Failed, Deleting),
    (RollingBack, Deleting),
    (Deleting, Deleted),
];

impl State {
    pub fn may_become(self, next: State) -> bool {
        TRANSITIONS.contains(&(self, next))
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Pending => "PENDING",
            Installing => "INSTALLING",
            Installed => "INSTALLED",
            Updating => "UPDATING",
            Failed => "FAILED",
            RollingBack => "ROLLINGBACK",
            Deleting => "DELETING",
            Deleted => "DELETED",
        }
    }

    pub fn parse(text: &str) -> Option<State> {
        STATES.into_iter().find(|state| state.as_str() == text)
    }

    /// The state that the standard has a word for.
    pub fn reported(self) -> Reported {
        match self {
            Pending => Reported::Pending,
            Installing | Updating | RollingBack => Reported::Installing,
            Installed => Reported::Installed,
            Failed => Reported::Failed,
            Deleting => Reported::Removing,
            Deleted => Reported::Removed,
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The six states of the standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reported {
    Pending,
    Installing,
    Installed,
    Failed,
    Removing,
    Removed,
}

impl Reported {
    pub fn as_str(self) -> &'static str {
        match self {
            Reported::Pending => "pending",
            Reported::Installing => "installing",
            Reported::Installed => "installed",
            Reported::Failed => "failed",
            Reported::Removing => "removing",
            Reported::Removed => "removed",
        }
    }

    pub fn parse(text: &str) -> Option<Reported> {
        use Reported::*;
        [Pending, Installing, Installed, Failed, Removing, Removed]
            .into_iter()
            .find(|state| state.as_str() == text)
    }

    /// The worst of several components, by the order of MI-G1-154 read as AMB-09 proposes.
    pub fn worst(states: impl IntoIterator<Item = Reported>) -> Option<Reported> {
        let severity = |state: &Reported| match state {
            Reported::Failed => 5,
            Reported::Removing => 4,
            Reported::Installing => 3,
            Reported::Pending => 2,
            Reported::Removed => 1,
            Reported::Installed => 0,
        };
        states.into_iter().max_by_key(severity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The design page's table, typed a second time: a slip in either copy shows.
    #[test]
    fn exactly_the_transitions_of_the_design_page_exist() {
        let rows = "PENDING: INSTALLING FAILED DELETING
             INSTALLING: INSTALLED FAILED DELETING
             INSTALLED: UPDATING FAILED DELETING
             UPDATING: INSTALLED FAILED DELETING
             FAILED: INSTALLED INSTALLING UPDATING ROLLINGBACK DELETING
             ROLLINGBACK: INSTALLED FAILED DELETING
             DELETING: DELETED
             DELETED:";
        for row in rows.lines() {
            let (from, to) = row.trim().split_once(':').unwrap();
            let from = State::parse(from).unwrap();
            let allowed: Vec<State> = to.split_whitespace().map(|t| State::parse(t).unwrap()).collect();
            for next in STATES {
                assert_eq!(from.may_become(next), allowed.contains(&next), "{from} -> {next}");
            }
        }
    }

    #[test]
    fn mi_g2_103_the_worst_component_speaks_for_the_deployment() {
        use Reported::*;
        assert_eq!(Reported::worst([Installed, Pending, Failed]), Some(Failed));
        assert_eq!(Reported::worst([Installed, Pending]), Some(Pending));
        assert_eq!(Reported::worst([Installed, Removed]), Some(Removed));
        assert_eq!(Reported::worst([Removed, Removing]), Some(Removing));
        assert_eq!(Reported::worst([]), None);
    }
}
