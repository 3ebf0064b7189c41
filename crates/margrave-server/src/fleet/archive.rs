//! What became of assignments, also of those that are over.

use margrave_core::id::{DeploymentName, DeviceRef};
use margrave_wire::operator;

use super::event::time;
use super::view::{devices_page, shown_fault};
use super::{Error, Fleet};

impl Fleet {
    /// What a device said about a deployment, oldest first; what says nothing new is left out.
    pub async fn transitions(
        &self,
        deployment: &DeploymentName,
        device: &DeviceRef,
    ) -> Result<Vec<operator::Transition>, Error> {
        let device = &self.live.addressed(device);
        let records = self.store.transitions(deployment, device).await?;
        if records.is_empty() && self.store.device(device).await?.is_none() {
            return Err(Error::not_found(format!("device {device}")));
        }
        let mut steps: Vec<operator::Transition> = Vec::new();
        for record in records {
            let step = operator::Transition {
                at: time(record.at),
                state: record.state.to_string(),
                manifest_version: record.report.adopted_version,
                reason: record.report.detail.as_ref().and_then(|detail| detail.reason.clone()),
                error: record.report.fault.as_ref().map(shown_fault),
            };
            let same = |last: &operator::Transition| {
                operator::Transition { at: last.at.clone(), ..step.clone() } == *last
            };
            if !steps.last().is_some_and(same) {
                steps.push(step);
            }
        }
        Ok(steps)
    }

    /// Devices that had a deployment of this name and do not have it any more, by name, a page at a time.
    pub async fn departed(
        &self,
        deployment: &DeploymentName,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<operator::Page<operator::Departed>, Error> {
        let (after, limit) = devices_page(after, limit)?;
        // One more than asked for tells whether there is another page.
        let more = u32::try_from(limit + 1).unwrap_or(u32::MAX);
        let mut found = self.store.departed(deployment, after, more).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|last| last.device.to_string());
        let items = found
            .into_iter()
            .map(|gone| operator::Departed {
                device: self.live.spoken(&gone.device),
                ended_at: time(gone.ended),
            })
            .collect();
        Ok(operator::Page { items, next })
    }
}
