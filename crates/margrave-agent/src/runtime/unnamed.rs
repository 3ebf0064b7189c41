//! Volumes that nobody gave a name.
//!
//! Compose hands them on from a container to the one that takes its place. Where an update takes the service away nobody does,
//! and going back would begin with empty ones, although the old ones are still there: so it is noted which they were.

use std::collections::BTreeMap;

use margrave_http::StatusCode;
use serde_json::Value;

use super::container::Container;
use super::engine::{Engine, EngineError};

/// By service and by the path that its container sees them at.
pub(super) type Volumes = BTreeMap<String, BTreeMap<String, String>>;

/// Those of services that have one container: of several nobody could tell whose is whose.
pub(super) fn unnamed(containers: &[Container]) -> Volumes {
    let mut found = Volumes::new();
    for container in containers {
        let alone = containers.iter().filter(|other| other.service == container.service).count() == 1;
        let volumes = container.volumes.iter().filter(|(_, name)| alone && is_made_up(name));
        let volumes: BTreeMap<String, String> =
            volumes.map(|(target, name)| (target.clone(), name.clone())).collect();
        if !volumes.is_empty() {
            found.insert(container.service.clone(), volumes);
        }
    }
    found
}

/// Engines call what has no name by so many random digits.
fn is_made_up(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Without those that somebody removed since: naming them would keep everything from starting.
pub(super) async fn still_here(engine: &Engine, volumes: Volumes) -> Result<Volumes, EngineError> {
    let mut here = Volumes::new();
    for (service, of_service) in volumes {
        for (target, name) in of_service {
            match engine.read::<Value>(&format!("/volumes/{name}")).await {
                Ok(_) => here.entry(service.clone()).or_default().insert(target, name),
                Err(EngineError::Refused { status: StatusCode::NOT_FOUND, .. }) => continue,
                Err(error) => return Err(error),
            };
        }
    }
    Ok(here)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::container::Status;
    use crate::runtime::health::tests::container;

    #[test]
    fn only_what_has_no_name_and_one_owner_is_noted() {
        let with = |service: &str, volumes: &[(&str, &str)]| {
            let volumes = volumes.iter().map(|(target, name)| (target.to_string(), name.to_string()));
            Container { volumes: volumes.collect(), ..container(service, Status::Running) }
        };
        let made_up = "0123456789abcdef".repeat(4);
        let containers = [
            with("db", &[("/rows", &made_up), ("/named", "p_data")]),
            with("web", &[("/named", "p_data")]),
            with("crowd", &[("/rows", &made_up)]),
            with("crowd", &[("/rows", &made_up)]),
        ];
        let rows = BTreeMap::from([("/rows".to_owned(), made_up.clone())]);
        assert_eq!(unnamed(&containers), [("db".to_owned(), rows)].into());
    }
}
