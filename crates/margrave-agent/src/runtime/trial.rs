//! Containers that have yet to prove themselves, and those that have.
//!
//! What was well once is never touched because a health check fails: that may pass, and making it anew costs what it was doing. What
//! an order made and what never was well with it is another matter: Compose leaves it as it is, so that to try again would be no
//! more than to look again.

use std::collections::BTreeSet;

use super::container::{Container, HealthState, Status};
use super::health::{self, Condition};
use super::record::{Record, Stage};

/// How far that is with what is begun now.
#[derive(Debug)]
pub(super) struct Trial {
    pub proven: Option<BTreeSet<String>>,
    pub remade: u32,
}

/// The containers that are not on trial in what is begun now, by id: all that are here, unless what was begun before has not come
/// to be well since. `None` where an older agent began with that: then nobody knows.
pub(super) fn proven(before: Option<&Record>, containers: &[Container]) -> Option<BTreeSet<String>> {
    let here = containers.iter().map(|container| container.id.clone()).collect();
    match before {
        Some(record) if record.stage != Stage::Settled => {
            Some(&(&here & record.proven.as_ref()?) | &well(containers))
        }
        _ => Some(here),
    }
}

/// Takes down what is well now, whoever looked: a try may be over by then, or may fail for something else. What has no check cannot
/// fail one.
pub(super) fn note_well(record: &mut Record, containers: &[Container]) {
    if let Some(proven) = &mut record.proven {
        proven.extend(well(containers));
    }
}

fn well(containers: &[Container]) -> BTreeSet<String> {
    let is_well =
        |container: &&Container| health::condition(container) == Condition::Running { checked: true };
    containers.iter().filter(is_well).map(|container| container.id.clone()).collect()
}

/// So often something is made anew because it does not become well. What needs longer for its first start than its check allows, such
/// as a data base that reads a dump, comes to its end once it is left alone.
const REMADE_MAX: u32 = 3;

/// The services with containers whose health check fails and that never were well, where the same is tried again.
pub(super) fn sick(record: &Record, containers: &[Container]) -> BTreeSet<String> {
    let is_tried = record.stage != Stage::Settled && record.remade < REMADE_MAX;
    let Some(proven) = record.proven.as_ref().filter(|_| is_tried) else {
        return BTreeSet::new();
    };
    let is_sick = |container: &&Container| {
        container.status == Status::Running
            && container.health.as_ref().is_some_and(HealthState::unhealthy)
            && record.services.contains_key(&container.service)
            && !proven.contains(&container.id)
    };
    containers.iter().filter(is_sick).map(|container| container.service.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::health::tests::container;
    use crate::runtime::record::tests;

    fn checked(id: &str, status: &str) -> Container {
        let health = Some(HealthState { status: status.into(), last_output: None });
        Container { id: id.into(), health, ..container("web", Status::Running) }
    }

    #[test]
    fn only_what_was_never_well_is_made_anew_for_a_failing_health_check() {
        let ids = |ids: &[&str]| Some(ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>());
        let record = |stage, proven| Record { stage, proven, ..tests::record() };
        let check = |record: &Record, container: &Container, want: bool| {
            let found = sick(record, std::slice::from_ref(container));
            assert_eq!(!found.is_empty(), want, "{record:?} {container:?}");
        };
        let (started, begun) = (Stage::Started, Stage::Begun);
        check(&record(started, ids(&[])), &checked("new", "unhealthy"), true);
        // Something waited for it, and Compose gave up.
        check(&record(begun, ids(&[])), &checked("new", "unhealthy"), true);
        for status in ["healthy", "starting"] {
            check(&record(started, ids(&[])), &checked("new", status), false);
        }
        let exited = Container { status: Status::Exited, ..checked("new", "unhealthy") };
        check(&record(started, ids(&[])), &exited, false);
        let often = |remade| Record { remade, ..record(started, ids(&[])) };
        check(&often(REMADE_MAX - 1), &checked("new", "unhealthy"), true);
        check(&often(REMADE_MAX), &checked("new", "unhealthy"), false);
        // It was well before the update, or before something beside it was mended.
        check(&record(started, ids(&["old"])), &checked("old", "unhealthy"), false);
        check(&record(started, ids(&["old"])), &checked("new", "unhealthy"), true);
        check(&record(Stage::Settled, None), &checked("old", "unhealthy"), false);
        // Nobody knows.
        check(&record(started, None), &checked("old", "unhealthy"), false);
        let stranger = Container { service: "stranger".into(), ..checked("new", "unhealthy") };
        check(&record(started, ids(&[])), &stranger, false);
    }

    #[test]
    fn what_was_well_once_is_known_through_all_tries() {
        let old = checked("old", "healthy");
        let settled = Record { stage: Stage::Settled, proven: None, ..tests::record() };
        let first = proven(Some(&settled), std::slice::from_ref(&old));
        assert_eq!(first, Some(["old".to_owned()].into()));
        let failed = Record { proven: first.clone(), ..tests::record() };
        assert_eq!(proven(Some(&failed), &[old, checked("new", "unhealthy")]), first);
        assert_eq!(proven(Some(&failed), &[checked("new", "unhealthy")]), Some(BTreeSet::new()));
        assert_eq!(proven(None, &[]), Some(BTreeSet::new()));
        let by_an_older_agent = Record { proven: None, ..tests::record() };
        assert_eq!(proven(Some(&by_an_older_agent), &[]), None);
    }
}
