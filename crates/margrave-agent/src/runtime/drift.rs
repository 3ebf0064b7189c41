//! What hands did to a component where Compose would not see it, or could not get past it.
//!
//! Compose puts right what is missing, stopped or of another definition. It cannot start what is paused, does not know
//! containers that carry no mark of its own, and does not compare what can be changed in place.

use margrave_core::report::Failure;

use super::container::Status;
use super::health;
use super::prepared::Prepared;
use super::project::Record;

/// Makes the project one that Compose can put right; returns the services that it has to make anew for that.
/// `recorded` is what was noted when the component was started.
pub(super) async fn straighten(
    prepared: &Prepared,
    recorded: Option<&Record>,
) -> Result<Vec<String>, Failure> {
    let project = &prepared.project;
    let recorded = |service: &str| recorded.and_then(|record| record.services.get(service));
    let mut bent = Vec::new();
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
        }
        if ordered
            && recorded(service).is_some_and(|started| health::bent(started, &container))
            && !bent.contains(service)
        {
            tracing::info!(%project, service, container = container.id, "somebody changed this container; making it anew");
            bent.push(service.clone());
        }
    }
    Ok(bent)
}
