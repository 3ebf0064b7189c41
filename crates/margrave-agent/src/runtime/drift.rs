//! What hands did to a component where Compose would not see it, or could not get past it.
//!
//! Compose puts right what is missing, stopped or of another definition. It cannot start what is paused, does not know
//! containers that carry no mark of its own, and does not compare what can be changed in place.

use std::collections::BTreeSet;
use std::time::Duration;

use margrave_core::report::Failure;
use tokio::time::Instant;

use super::container::{Container, HealthState, Status};
use super::health;
use super::prepared::{LOOK_FIRST, Prepared};
use super::record::{Record, Service, Stage};

/// An engine calls a paused container unhealthy, and goes on doing so until the next check after it was resumed. By default
/// there is one every half minute.
const RESUMED_TIME_MAX: Duration = Duration::from_secs(40);

/// Makes the project one that Compose can put right; returns the services that it has to make anew for that.
/// `recorded` is what was noted when the component was started.
pub(super) async fn straighten(
    prepared: &Prepared,
    recorded: Option<&Record>,
) -> Result<BTreeSet<String>, Failure> {
    let project = &prepared.project;
    let recorded = |service: &str| recorded.and_then(|record| record.services.get(service));
    let mut bent = BTreeSet::new();
    let mut resumed = Vec::new();
    for container in prepared.containers().await? {
        let service = &container.service;
        let ordered = prepared.model.services.contains_key(service);
        if !ordered && recorded(service).is_none() {
            tracing::info!(%project, service, container = container.id, "removing a container that nobody ordered");
            prepared.engine.remove_container(&container.id).await?;
            continue;
        }
        if container.status == Status::Paused {
            tracing::info!(%project, service, container = container.id, "resuming a paused container");
            prepared.engine.unpause(&container.id).await?;
            resumed.push(container.id.clone());
        }
        if ordered
            && recorded(service).is_some_and(|started| health::bent(started, &container))
            && !bent.contains(service)
        {
            tracing::info!(%project, service, container = container.id, "somebody changed this container; making it anew");
            bent.insert(service.clone());
        }
    }
    wait_for_checks(prepared, &resumed).await?;
    Ok(bent)
}

/// Whether it is noted of what definition what is here was made. What tries found that were cut off, or failed, before all of it was
/// up once may be of an earlier version.
pub(super) fn is_noted(record: &Record, containers: &[Container]) -> bool {
    let has_hash = |service: &Service| service.hash.is_some();
    let is_known = |container: &Container| record.services.get(&container.service).is_some_and(has_hash);
    record.stage != Stage::Begun || record.services.values().any(has_hash) && containers.iter().all(is_known)
}

/// Which services have to be made anew although the order is the one that was started, where Compose is not to compare: it may hash
/// definitions in another way than when it made what is here, and would make all of them anew. Those that are not as noted. And, where
/// it does hash in another way, those of which only some containers are left: two that were hashed in different ways are never both as
/// noted.
pub(super) fn strayed(record: &Record, containers: &[Container], otherwise: bool) -> BTreeSet<String> {
    let strays = |(name, service): &(&String, &Service)| {
        let here: Vec<&Container> = containers.iter().filter(|c| &c.service == *name).collect();
        let as_noted = here.iter().all(|c| service.hash.is_some() && c.config_hash == service.hash);
        let too_few = otherwise && !here.is_empty() && here.len() < service.replicas as usize;
        !as_noted || too_few
    };
    record.services.iter().filter(strays).map(|(name, _)| name.clone()).collect()
}

/// Until the engine has checked what was resumed, or it is as sick as it looks.
async fn wait_for_checks(prepared: &Prepared, resumed: &[String]) -> Result<(), Failure> {
    let deadline = Instant::now() + RESUMED_TIME_MAX;
    while !resumed.is_empty() && Instant::now() < deadline {
        let containers = prepared.containers().await?;
        let sick = HealthState::unhealthy;
        let stale = containers.iter().any(|c| resumed.contains(&c.id) && c.health.as_ref().is_some_and(sick));
        if !stale {
            break;
        }
        tokio::time::sleep(LOOK_FIRST).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::health::tests::container;
    use crate::runtime::record::tests::{record, service};

    #[test]
    fn only_what_is_not_as_noted_or_not_all_there_is_made_anew_by_another_compose() {
        let of = |name: &str, replicas| {
            let hash = Some(format!("hash-{name}"));
            (name.to_owned(), Service { hash, replicas, ..service() })
        };
        let services = [of("well", 1), of("missing", 1), of("changed", 1), of("pair", 2), of("half", 2)];
        let record = Record { services: services.into(), ..record() };
        let changed =
            Container { config_hash: Some("other".into()), ..container("changed", Status::Running) };
        let mut containers: Vec<Container> =
            ["well", "pair", "pair", "half"].map(|name| container(name, Status::Running)).into();
        containers.push(changed);
        assert_eq!(strayed(&record, &containers, true), ["changed", "half"].map(str::to_owned).into());
        assert_eq!(strayed(&record, &containers, false), ["changed"].map(str::to_owned).into());
        let begun = Record { stage: Stage::Begun, ..record };
        assert!(is_noted(&begun, &containers));
        assert!(!is_noted(&begun, &[container("stranger", Status::Running)]));
        let never_up = begun.services.keys().map(|name| (name.clone(), service())).collect();
        assert!(!is_noted(&Record { services: never_up, ..begun }, &containers));
    }
}
