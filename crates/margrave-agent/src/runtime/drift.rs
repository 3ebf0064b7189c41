//! What hands did to a component where Compose would not see it, or could not get past it.
//!
//! Compose puts right what is missing, stopped or of another definition. It cannot start what is paused, does not know
//! containers that carry no mark of its own, and does not compare what can be changed in place.

use std::time::Duration;

use margrave_core::report::Failure;
use tokio::time::Instant;

use super::container::{HealthState, Status};
use super::health;
use super::prepared::{LOOK_FIRST, Prepared};
use super::record::Record;

/// An engine calls a paused container unhealthy, and goes on doing so until the next check after it was resumed. By default
/// there is one every half minute.
const RESUMED_TIME_MAX: Duration = Duration::from_secs(40);

/// Makes the project one that Compose can put right; returns the services that it has to make anew for that.
/// `recorded` is what was noted when the component was started.
pub(super) async fn straighten(
    prepared: &Prepared,
    recorded: Option<&Record>,
) -> Result<Vec<String>, Failure> {
    let project = &prepared.project;
    let recorded = |service: &str| recorded.and_then(|record| record.services.get(service));
    let mut bent = Vec::new();
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
            bent.push(service.clone());
        }
    }
    wait_for_checks(prepared, &resumed).await?;
    Ok(bent)
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
